"""What an audit found, as text of any width: claims, their verdicts, what is true."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.text import Text

from lngeom.claims import Paper, Read, Verdict
from lngeom.claims.context import Context
from lngeom.claims.data import Dataset
from lngeom.claims.evidence import Evidence, Kind, Reach, Role, Strength
from lngeom.claims.registry import BA2016, Claim, Outcome
from lngeom.papers.ba2016.coverage import coverage
from lngeom.report import errata
from lngeom.report.terminal_tables import STYLES, cells_of_table1, table1
from lngeom.symbolic.notation import from_latex

MEANINGS = {
    Verdict.HOLDS: "true as stated",
    Verdict.CONDITIONAL: "true under a condition, and shown to fail without it",
    Verdict.REFUTED: "false under every reading that its words allow",
    Verdict.SLIP: "an error of notation, clear and right as meant",
    Verdict.NOT_REPRODUCED: "the experiment at small size came out otherwise",
    Verdict.UNDECIDED: "the evidence on this data decides nothing",
    Verdict.CLASH: "a number contradicts a proof or a statement, so that one of lngeom's own is wrong",
}
"""The verdicts in words."""
GROUNDS = {
    Strength.PROOF: "by proof",
    Strength.PROOF_AT_SIZES: "by proof at some sizes",
    Strength.COUNTEREXAMPLE: "by an exact counterexample",
    Strength.NUMERIC: "numerically",
    Strength.EXPERIMENT: "by experiment",
}
"""What a verdict rests on, in words."""
SETTLED = {Verdict.HOLDS, Verdict.CONDITIONAL, Verdict.REFUTED, Verdict.SLIP}
"""The verdicts that answer whether a statement is true."""
FEW = 5
"""Up to so many claims of a verdict are shown in an overview with their conditions. More are stated without them, or
only named where the verdict settles nothing."""
RECORD = "The record is the verdict that lngeom keeps in its sources beside each claim."


def counted(verdict: Verdict, count: int) -> str:
    """A verdict as the word beside a count: "2 hold", "3 slips", "1 refuted"."""
    plural = {Verdict.HOLDS: "hold", Verdict.SLIP: "slips"}
    return f"{count} {plural.get(verdict, verdict.value) if count != 1 else verdict.value}"


def counts(verdicts: Sequence[Verdict]) -> str:
    """Verdicts with their counts: "2 hold, 1 refuted"."""
    found = Counter(verdicts)
    return ", ".join(counted(v, found[v]) for v in Verdict if found[v])


def meanings(verdicts: Iterable[Verdict]) -> Text:
    """What verdicts mean that need a word of explanation."""
    told = set(verdicts) - {Verdict.HOLDS}
    return Text(". ".join(f"{v.value.capitalize()}: {MEANINGS[v]}" for v in Verdict if v in told), style="dim")


def of_claims(count: int) -> str:
    """A number of claims in words."""
    return f"{count} claim{'' if count == 1 else 's'}"


def papers_found(papers: Sequence[Paper]) -> Group:
    """Papers with the counts of their recorded verdicts, their titles and what was found."""
    parts: list[RenderableType] = []
    for paper in papers:
        verdicts = counts([c.expected for c in paper.claims])
        finding = Text.assemble(f"{paper.title} ({paper.year}). ", (paper.finding, STYLES[Verdict.HOLDS]))
        parts += [Text.assemble((paper.id, "bold"), f"  {verdicts}"), indented(finding)]
    return Group(*parts)


@dataclass(frozen=True)
class Indented:
    """A paragraph whose lines are indented, without spaces after them.

    Attributes:
        text: the paragraph.
        mark: what stands before its first line, in a margin as wide.
        margin: columns before its lines.
    """

    text: Text
    mark: Text | None = None
    margin: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines."""
        for place, row in enumerate(self.text.wrap(console, max(20, options.max_width - self.margin))):
            row.rstrip()
            lead = self.mark.copy() if self.mark and place == 0 else Text("")
            yield lead.append(" " * (self.margin - len(lead))).append_text(row)


def indented(text: str | Text) -> Indented:
    """A paragraph, indented by two."""
    return Indented(Text(text) if isinstance(text, str) else text)


def data(dataset: Dataset) -> Group:
    """A data set's name, shape and rank, and what was changed in it."""
    shape = " × ".join(map(str, dataset.shape))
    return Group(Text(f"Data: {dataset.name}, {shape}, rank {dataset.rank}"), *map(indented, dataset.notes))


def headed(title: str, *paragraphs: str | Text, style: str = "bold") -> list[RenderableType]:
    """A title and indented paragraphs, after an empty line; nothing where there are none."""
    shown = [p for p in paragraphs if p]
    return [Text(f"\n{title}", style=style), *map(indented, shown)] if shown else []


def entry(claim: Claim, verdict: Verdict | None = None) -> Group:
    """A claim's id and verdict, by default the recorded one, and its statement beneath them."""
    shown = verdict or claim.expected
    return Group(Text.assemble((claim.id, "bold"), "  ", (shown.value, STYLES[shown])), indented(claim.statement))


def listing(claims: Sequence[Claim]) -> Group:
    """Claims with their recorded verdicts and statements, without checking anything."""
    verdicts = counts([c.expected for c in claims])
    head = Text(f"{of_claims(len(claims))}, as recorded: {verdicts}", style="bold")
    about = Text(f"{RECORD} Nothing was checked now.", style="dim")
    return Group(head, about, meanings(c.expected for c in claims), Text(""), *map(entry, claims))


def verdict(outcome: Outcome) -> Text:
    """The verdict and what it rests on, with a mark where it differs from the recorded one."""
    text = outcome.verdict.value.upper()
    if outcome.verdict not in {Verdict.UNDECIDED, Verdict.CLASH}:
        text += f" {GROUNDS[outcome.strength]}"
    if not outcome.as_recorded:
        text += f" (recorded: {outcome.claim.expected.value})"
    return Text(text, style=STYLES[outcome.verdict] + ("" if outcome.as_recorded else " reverse"))


def lead(outcome: Outcome) -> Group:
    """A claim's id, place, verdict and statement; then what is true, or under which condition."""
    return _lead(outcome.claim, verdict(outcome), outcome.verdict)


def recorded(claim: Claim) -> Group:
    """The same, of a claim as it is recorded."""
    return _lead(claim, Text(claim.expected.value.upper(), style=STYLES[claim.expected]), claim.expected)


def _lead(claim: Claim, shown: Text, kind: Verdict) -> Group:
    head = Text.assemble((claim.id, "bold"), f"  {claim.source}\n", shown, ": ", MEANINGS[kind])
    says = "lngeom adds" if claim.read is Read.OWN else "Claimed"
    return Group(
        head,
        indented(f"{says}: {claim.statement}"),
        *(indented(text) for text in [_given(claim)] if text),
        *headed("What is true", claim.correction, style=f"bold {STYLES[Verdict.HOLDS]}"),
    )


def _given(claim: Claim) -> str:
    """Under what a claim is true, or is stated."""
    when = "True if" if claim.expected is Verdict.CONDITIONAL else "Given"
    return f"{when}: {'; '.join(claim.assumptions)}." if claim.assumptions else ""


def detail(outcome: Outcome) -> Group:
    """All that is known of one claim: verdict and what is true, the exact counterexample, the paper, evidence."""
    claim = outcome.claim
    trouble = [Text(reason, style=STYLES[Verdict.UNDECIDED]) for reason in (outcome.error, *outcome.reasons) if reason]
    proved = any(e.kind is Kind.PROOF for e in outcome.evidence)
    return Group(
        lead(outcome),
        *(part for e in outcome.evidence if e.reach is Reach.INSTANCE for part in _instance(e)),
        *headed("What decides nothing here", *trouble, style=STYLES[Verdict.UNDECIDED]),
        *(_context(claim.context) if claim.context else ()),
        *headed("On numbers alone", claim.why_numeric if outcome.strength is Strength.NUMERIC else ""),
        *(part for role in Role for part in _evidence(role, [e for e in outcome.evidence if e.role is role])),
        *([Text(f"\nStep by step: lngeom prove {claim.id}", style="dim")] if proved else []),
    )


ROLES = {
    Role.SUPPORTS: "Evidence for the statement",
    Role.FAILS_WITHOUT_CONDITION: "Evidence that it fails without the condition",
    Role.REFUTES: "Evidence against the statement as printed",
    Role.MISPRINT: "Evidence of the slip in print",
    Role.CORRECTS: "Evidence for what is true",
}


def _evidence(role: Role, evidence: Sequence[Evidence]) -> list[RenderableType]:
    """The evidence of one role: proofs, then numbers, each beside what it was held against."""
    if not evidence:
        return []
    ordered = sorted(evidence, key=lambda e: e.kind is not Kind.PROOF)
    measured = [_measured(e) for e in ordered]
    margin = 4 + max(map(len, measured)) + 2 * any(measured)
    parts: list[RenderableType] = [Text(f"\n{ROLES[role]}", style="bold")]
    for e, value in zip(ordered, measured, strict=True):
        mark = (
            ("✓", STYLES[Verdict.HOLDS])
            if e.passed
            else ("–", STYLES[Verdict.UNDECIDED])
            if e.no_evidence
            else ("✗", STYLES[Verdict.REFUTED])
        )
        unsaid = f"; does not count: {e.no_evidence}" if e.no_evidence else ""
        parts.append(Indented(Text(f"{e.description}{unsaid}"), Text.assemble("  ", mark, " ", (value, "dim")), margin))
    return parts


def _measured(evidence: Evidence) -> str:
    """What was measured, and what it was held against."""
    if evidence.residual is None:
        return ""
    sign = "≥" if evidence.kind is Kind.COUNTEREXAMPLE else "≤"
    return f"{evidence.residual:.1e}" + (f" {sign} {evidence.tolerance:.0e}" if evidence.tolerance is not None else "")


def _instance(evidence: Evidence) -> list[RenderableType]:
    """The exact counterexample of some evidence: what fails, at which values, and both sides."""
    steps = {part: [s for s in evidence.steps if s["part"] == part] for part in ("instance", "step")}
    at = ", ".join(f"{from_latex(s['text'].removesuffix(' ='))} = {from_latex(s['latex'])}" for s in steps["instance"])
    sides = (f"{s['text'].rstrip('.')}: {from_latex(s['latex'])}." for s in steps["step"])
    title = evidence.description[0].upper() + evidence.description[1:]
    return headed(title, f"Not true in general: {from_latex(evidence.statement)}", f"At {at}:" if at else "", *sides)


def _context(found: Context) -> list[RenderableType]:
    """The paper's sentence, in bold in its context, how it can be read, and why the verdict stands."""
    text = Text(f"{found.before} " if found.before else "")
    text.append(found.sentence, style="bold").append(f" {found.after}" if found.after else "")
    readings = []
    for place, reading in enumerate(found.readings):
        even = "Even read charitably" if reading.verdict is Verdict.REFUTED else "Read charitably"
        says = Text.assemble((even if place == 0 else "Read otherwise", "bold"), f": {reading.says} → ")
        readings.append(says.append(reading.verdict.value, style=STYLES[reading.verdict]))
    return [*headed("The paper says", text), *map(indented, readings), *headed("Why the verdict stands", found.verdict)]


def short(outcome: Outcome) -> Group:
    """A claim in a few lines: verdict, statement, condition, and what was counted and measured."""
    claim = outcome.claim
    kinds = Counter(e.kind.value for e in outcome.evidence)
    evidence = ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in kinds.items())
    trouble = [t for t in (outcome.error, *outcome.reasons) if t]
    return Group(
        Text.assemble((claim.id, "bold"), "  ", verdict(outcome), (f"  {claim.source}", "dim")),
        indented(claim.statement),
        *(indented(text) for text in [_given(claim)] if text),
        *(indented(f"What is true: {claim.correction}") for _ in [1] if claim.correction),
        *(indented(Text(reason, style=STYLES[Verdict.UNDECIDED])) for reason in trouble),
        indented(Text("; ".join(filter(None, (evidence, _residual(outcome)))), style="dim")),
    )


def _residual(outcome: Outcome) -> str:
    """The largest deviation of what should agree, and the smallest of what should differ."""
    measured = [e for e in outcome.evidence if e.residual is not None and not e.no_evidence]
    close = [e.residual for e in measured if e.kind is Kind.AGREEMENT and e.residual is not None]
    apart = [e.residual for e in measured if e.kind is Kind.COUNTEREXAMPLE and e.residual is not None]
    parts = (f"= {max(close):.1e}" if close else "", f"≠ {min(apart):.1e}" if apart else "")
    return ", ".join(filter(None, parts))


def _of_2016(outcomes: Sequence[Outcome]) -> bool:
    """Whether the claims are about the paper of 2016, whose statements are counted."""
    return all(o.claim.paper == BA2016 for o in outcomes)


def overview(outcomes: Sequence[Outcome], document: Mapping[str, Any], paper: Paper | None = None) -> Iterator:
    """An audit in one screen: counts, Table 1, where a condition is needed, and at the end what is true.

    Args:
        outcomes: the claims that were checked.
        document: the report on them.
        paper: which they are about, where it has a finding to be told.
    """
    exact = sum(o.strength.exact for o in outcomes if o.verdict in SETTLED)
    verdicts = counts([o.verdict for o in outcomes])
    yield Text(f"{of_claims(len(outcomes))}: {verdicts}; {exact} by proof or exact counterexample", style="bold")
    yield meanings(o.verdict for o in outcomes)
    if _of_2016(outcomes) and len(outcomes) > 1:
        yield Text(str(coverage()), style="dim")
    if cells := cells_of_table1(outcomes):
        yield Text("")
        yield table1(cells)
    found = errata.errors(document["claims"])
    told = {claim["id"] for claims in found.values() for claim in claims}
    for kind in Verdict:
        others = [o for o in outcomes if o.verdict is kind and o.claim.id not in told]
        if kind is Verdict.HOLDS or not others:
            continue
        names = [o.claim.id + ("" if o.as_recorded else f" (recorded: {o.claim.expected.value})") for o in others]
        few = len(others) <= FEW
        paragraphs: list[str | Text] = [", ".join(names)]
        if few or kind in SETTLED:
            paragraphs = [_stated(name, o.claim, few) for name, o in zip(names, others, strict=True)]
        yield from headed(kind.value.capitalize(), *paragraphs, style=STYLES[kind])
    yield Text("\nWhat is true", style="bold")
    yield Text(errata.headline(document))
    if paper is not None and paper.id != BA2016 and paper.finding:
        yield Text(paper.finding)
    for rank, claims in found.items():
        yield from headed(f"{errata.heading(rank, claims)}, corrected", *map(_finding, claims))


def _stated(name: str, claim: Claim, given: bool) -> Text:
    """A claim's name and statement; where its condition is asked for, both beneath its name."""
    if not given:
        return Text.assemble((name, "bold"), f"  {claim.statement}")
    return Text.assemble((name, "bold"), "\n", " ".join(filter(None, (claim.statement, _given(claim)))))


def _finding(claim: Mapping[str, Any]) -> Text:
    name = f"{claim['id']}, {claim['verdict']}".replace(" ", "\u00a0")
    return Text.assemble(claim["erratum"]["title"], (f" {name}", "dim"))


def clashes(outcomes: Sequence[Outcome]) -> Panel | None:
    """Numbers that contradict a proof or what a statement says. No audit should have any."""
    found = [o for o in outcomes if o.verdict is Verdict.CLASH]
    if not found:
        return None
    lines = [f"{o.claim.id}\n  " + "\n  ".join(o.reasons) for o in found]
    text = (
        "A number contradicts a proof, or a statement that is recorded to be true. The number, the proof or the record "
        "is wrong, and all three are lngeom's: please report the data set and the seed.\n\n"
    )
    title = f"CLASH in {of_claims(len(found))}"
    return Panel(Text(text + "\n".join(lines)), title=title, border_style=f"bold {STYLES[Verdict.REFUTED]}")


def notices(outcomes: Sequence[Outcome], dataset: Dataset) -> list[str]:
    """Notices about numbers that do not count as evidence on a user's data."""
    silent = sum(o.silent for o in outcomes)
    if not silent or dataset.bundled:
        return []
    text = f"{silent} of {len(outcomes)} claims have numbers that do not count as evidence on this data"
    return [f"{text}; where the verdict stands, a proof carries it alone"]


def problems(outcomes: Sequence[Outcome], dataset: Dataset) -> list[str]:
    """One line for each kind of failure; none if every verdict is the recorded one.

    On the default data, numbers that do not count as evidence are a failure too, since every number can be evidence
    there.

    Args:
        outcomes: the claims that were checked.
        dataset: the data set.

    Returns:
        Lines that name the claims.
    """
    clashing = [o for o in outcomes if o.verdict is Verdict.CLASH]
    found = {
        "CLASH, a number contradicts a proof or a recorded statement": clashing,
        "verdicts that differ from the record": [o for o in outcomes if not o.as_recorded],
        "numbers that do not count as evidence": [o for o in outcomes if o.silent and dataset.bundled],
    }
    lines = [f"{text}: {', '.join(o.claim.id for o in these)}" for text, these in found.items() if these]
    return [*lines, *([RECORD] if any(not o.as_recorded for o in outcomes) else [])]


def remarks(outcomes: Sequence[Outcome]) -> Group | None:
    """Reasons for verdicts that differ from the record, and numbers that do not count; None if there are none."""
    found = [o for o in outcomes if o.reasons or not o.as_recorded]
    if not found:
        return None
    parts: list[RenderableType] = [Text("\nWhat the numbers do not show on this data", style="bold")]
    for outcome in found:
        parts.append(Text.assemble((outcome.claim.id, "bold"), "  ", verdict(outcome)))
        parts += [indented(reason) for reason in (*outcome.reasons, outcome.error) if reason]
    return Group(*parts)
