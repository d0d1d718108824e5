"""The registry of claims: each is data and a check that yields evidence."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from lngeom.claims import names
from lngeom.claims._rounding import weigh
from lngeom.claims.context import Context, Read
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.evidence import Evidence, Kind, NoEvidence, Role, Strength, Verdict, decide, strength_of
from lngeom.claims.problem import Problem, Watched
from lngeom.claims.results import NoResults

if TYPE_CHECKING:
    from lngeom.symbolic.proof import Counterexample, Establishes, Proof

    Prover = Callable[[], Proof | Counterexample]

Check = Callable[[Problem], Iterable[Evidence]]

BA2016 = "ba2016"
"""Id of *Layer Normalization* (Ba, Kiros and Hinton 2016)."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, or about it, that can be checked.

    Attributes:
        id: permanent identifier.
        topic: group it is listed under.
        source: where in the paper.
        statement: what is claimed, in plain words and Unicode mathematics.
        formula: the same as LaTeX, where a formula says it better.
        assumptions: under which it is claimed, or under which it is true.
        expected: the recorded verdict.
        correction: what is true instead, or what was found; given exactly where the recorded verdict is "refuted",
            "slip" or "not reproduced".
        why_numeric: why the claim rests on numbers alone, where no proof of it is registered.
        context: the paper's sentence with its surroundings, and how it can be read; given where a sentence of the paper
            does not simply hold.
        erratum: what it means for the paper; given where the recorded verdict is "refuted" or "slip", and where a
            condition mends an error.
        paper: id of the paper it is about.
        formerly: ids of claims that were merged into this one.
        read: where the statement was read.
        check: yields evidence; without any the verdict is undecided.
    """

    id: str
    topic: str
    source: str
    statement: str
    expected: Verdict
    formula: str = ""
    assumptions: tuple[str, ...] = ()
    correction: str = ""
    why_numeric: str = ""
    context: Context | None = None
    erratum: Erratum | None = None
    paper: str = BA2016
    formerly: tuple[str, ...] = ()
    read: Read = Read.PAPER
    check: Check = lambda problem: ()


@dataclass(frozen=True)
class Outcome:
    """A claim after its check.

    Attributes:
        claim: the claim.
        verdict: what the evidence amounts to.
        strength: what it rests on.
        evidence: all of it.
        seconds: time taken; of what another process made, the time that was waited for it.
        error: what went wrong, if the check could not run; the verdict is then undecided.
        waiting: whether it waits for the results of an experiment, which were not given.
    """

    claim: Claim
    verdict: Verdict
    strength: Strength
    evidence: tuple[Evidence, ...]
    seconds: float
    error: str = ""
    waiting: bool = False

    @property
    def as_recorded(self) -> bool:
        """Whether the verdict is the one in the registry; one that waits for results does not differ from it."""
        return self.waiting or self.verdict is self.claim.expected

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why evidence did not pass, each reason once."""
        return tuple(dict.fromkeys(f"{e.description}: {e.reason}" for e in self.evidence if e.reason))

    @property
    def silent(self) -> bool:
        """Whether some of its numbers are no evidence."""
        return any(e.no_evidence for e in self.evidence)


class ClaimedCheck(Protocol):
    """The check of a claim, which takes the claim's proof: `@check.proof()`."""

    def __call__(self, problem: Problem) -> Iterable[Evidence]:
        """Its evidence."""
        ...

    def proof(self, establishes: Establishes = "holds") -> Callable[[Prover], Prover]:
        """Decorator for the function that makes the proof, as `proves` with the claim's id."""
        ...


_CLAIMS: dict[str, Claim] = {}
_PROVERS: dict[str, tuple[Establishes, Prover]] = {}

FOLDERS = ("ba2016", "training", "experiments", "extended", "derivatives")
"""Where claims stand under `lngeom.papers`, in the order they are listed: a folder a paper, a file a topic."""

ON_REQUEST = frozenset({"extended", "derivatives", "learning-rate", "experiments"})
"""Topics that an audit takes in only when they are asked for: they go beyond the paper's text, train networks,
or read the results of experiments."""


def load() -> None:
    """Imports the claims, which registers them and their proofs."""
    for folder in FOLDERS:
        importlib.import_module(f"lngeom.papers.{folder}")


def register(claim: Claim) -> Claim:
    """Adds a claim to the registry.

    Args:
        claim: the claim.

    Returns:
        The same claim.

    Raises:
        ValueError: if the id is taken, or the record is not fair (`unfair`).
    """
    if claim.id in _CLAIMS:
        raise ValueError(f"claim id {claim.id!r} is already registered; ids are permanent and unique")
    if reason := unfair(claim):
        raise ValueError(f"claim {claim.id!r}: {reason}")
    _CLAIMS[claim.id] = claim
    return claim


def unfair(claim: Claim) -> str:
    """Which rule of fairness the record of a claim breaks; empty where it breaks none.

    1. A verdict against a statement comes with what is true instead.
    2. A statement whose own words were not read is never refuted, and no slip is seen in words read nowhere.
    3. A refuted statement fails under every reading that its context lists. A statement that holds, holds under a
       condition or is a slip, is right under the most favourable one.
    4. A slip of notation is a verdict, and no other verdict calls an error one. What holds, is open or is not
       reproduced has no erratum. A clash is never recorded.

    Args:
        claim: the claim.

    Returns:
        One sentence.
    """
    verdict = claim.expected
    against = verdict in {Verdict.REFUTED, Verdict.SLIP, Verdict.NOT_REPRODUCED}
    if verdict is Verdict.CLASH:
        return "a clash is found, never recorded"
    if against != bool(claim.correction.strip()):
        return "a correction is needed exactly where the verdict is 'refuted', 'slip' or 'not reproduced'"
    if verdict is Verdict.REFUTED and claim.read not in {Read.PAPER, Read.OWN}:
        return f"it was read {claim.read.value}, so it cannot be refuted: read the paper's own words, or call it open"
    if verdict is Verdict.SLIP and claim.read is Read.NOWHERE:
        return "it was read nowhere, so no slip can be seen in it"
    readings = [r.verdict for r in claim.context.readings] if claim.context else []
    if verdict is Verdict.REFUTED and any(v is not Verdict.REFUTED for v in readings):
        return (
            "it is refuted, but not under every reading of its context: a fair reading that holds makes it conditional"
        )
    right = verdict in {Verdict.HOLDS, Verdict.CONDITIONAL, Verdict.SLIP}
    if right and readings and readings[0] not in {Verdict.HOLDS, verdict}:
        return f"it is recorded as {verdict.value!r}, but the first reading of its context is {readings[0].value!r}"
    if claim.erratum is not None and verdict not in {Verdict.REFUTED, Verdict.SLIP, Verdict.CONDITIONAL}:
        return f"it is recorded as {verdict.value!r}, and has an erratum"
    notation = claim.erratum is not None and claim.erratum.consequence is Consequence.NOTATION
    if claim.erratum is not None and notation != (verdict is Verdict.SLIP):
        return "a slip of notation has the verdict 'slip', and no other error has"
    return ""


def claim(id: str, **fields) -> Callable[[Check], ClaimedCheck]:
    """Decorator which registers a check under a claim's data.

    Args:
        id: permanent identifier.
        **fields: the other attributes of `Claim`.

    Returns:
        A decorator that leaves the check as it is, and gives it the decorator `proof` of the claim's proof.
    """

    def attach(check: Check) -> ClaimedCheck:
        register(Claim(id, check=check, **fields))
        claimed = cast("ClaimedCheck", check)
        claimed.proof = partial(proves, id)
        return claimed

    return attach


def proves(id: str, establishes: Establishes = "holds") -> Callable[[Prover], Prover]:
    """Decorator which registers a function that makes the proof, or the exact refutation, of a claim or a lemma.

    The proof gets the id as its name.

    Args:
        id: permanent id of the claim; of a lemma, which proofs cite, a name that begins with `lemma.`.
        establishes: what the proof says about it.

    Returns:
        A decorator, which leaves the function as it is.

    Raises:
        ValueError: if the claim has a proof already.
    """
    if id in _PROVERS:
        raise ValueError(f"claim {id!r} already has a proof; claim ids are unique")

    def attach(prover: Prover) -> Prover:
        _PROVERS[id] = (establishes, prover)
        return prover

    return attach


def former_ids(id: str) -> tuple[str, ...]:
    """Ids of claims that were merged into a registered one; none for another id."""
    return _CLAIMS[id].formerly if id in _CLAIMS else ()


def _folder(claim: Claim) -> int:
    """The position of a claim's folder in `FOLDERS`; claims from elsewhere come last."""
    parts = claim.check.__module__.split(".")
    return FOLDERS.index(parts[2]) if parts[:2] == ["lngeom", "papers"] and parts[2] in FOLDERS else len(FOLDERS)


def all_claims(topic: str | None = None, id: str | None = None, paper: str = BA2016) -> list[Claim]:
    """The registered claims about a paper, in the order of `FOLDERS` and of their files.

    Args:
        topic: only this topic; "all" for all of them. Without a topic and an id, those on request are left out.
        id: only the claim of this id, or those that a name means: "Eq. 13", "table1" (`lngeom.claims.names`).
        paper: id of the paper. One other than that of 2016 must have been imported (`lngeom.claims.papers.find`).

    Returns:
        Claims.

    Raises:
        ValueError: if there is no such topic or claim, or the claim is of another topic; the message names what is.
    """
    load()
    claims = sorted((c for c in _CLAIMS.values() if c.paper == paper), key=_folder)
    known = {c.id: c for c in claims}
    topics = list(dict.fromkeys(c.topic for c in claims))
    if topic not in {None, "all", *topics}:
        raise ValueError(f"no topic {topic!r}; the topics are {', '.join(topics)}, and 'all'")
    if id is not None:
        return of_topic([known[id]] if id in known else names.best(id, claims), topic)
    return [c for c in claims if topic in {"all", c.topic} or (topic is None and c.topic not in ON_REQUEST)]


def of_topic(claims: list[Claim], topic: str | None) -> list[Claim]:
    """Those of some claims that are of a topic; all for None and "all".

    Raises:
        ValueError: if none is.
    """
    found = [c for c in claims if topic in {None, "all", c.topic}]
    if not found:
        ids = ", ".join(c.id for c in claims[:3])
        own = claims[0].topic
        raise ValueError(f"claim {ids!r} is of the topic {own!r}, not {topic!r}; leave the topic out or name its own")
    return found


def recorded(claim: Claim) -> Outcome:
    """The outcome as it stands in the registry, without a check."""
    return Outcome(claim, claim.expected, Strength.NUMERIC, (), 0.0)


def run(
    claim: Claim,
    problem: Problem,
    proof: Callable[[str], Iterable[Evidence]] | None = None,
    numeric: Callable[[Claim, Problem], Iterable[Evidence]] | None = None,
) -> Outcome:
    """Checks one claim; an exception in its check becomes an undecided outcome which says what happened.

    A check that raises `NoEvidence` leaves the verdict to the proof.

    Args:
        claim: the claim.
        problem: data and seed.
        proof: gives the proof of a claim by its id as further evidence; none by default, since proofs take seconds.
        numeric: gives the numeric evidence in the place of `numbers`.

    Returns:
        The outcome.
    """
    start = time.perf_counter()
    evidence: list[Evidence] = []
    error, waiting = "", False
    try:
        evidence += (numeric or numbers)(claim, problem)
        evidence += proof(claim.id) if proof else ()
        verdict = decide(evidence)
    except NoResults as exception:
        error, verdict, waiting = str(exception), Verdict.UNDECIDED, True
    except Exception as exception:
        error, verdict = f"{type(exception).__name__}: {exception}", Verdict.UNDECIDED
    return Outcome(
        claim, verdict, strength_of(verdict, evidence), tuple(evidence), time.perf_counter() - start, error, waiting
    )


def numbers(claim: Claim, problem: Problem) -> list[Evidence]:
    """The numeric evidence of a claim, weighed against what rounding of the data may do, where the check used them.

    Args:
        claim: the claim.
        problem: data and seed.

    Returns:
        Evidence.
    """
    watched = Watched.of(problem)
    found = list(_numbers(claim, watched))
    return weigh(found, claim.check, problem) if watched.read else [replace(e, comparison=None) for e in found]


def _numbers(claim: Claim, problem: Problem) -> Iterator[Evidence]:
    """The evidence of a claim's check; the reason where it has none, or cannot be made to the end."""
    reason = "the check compared nothing"
    try:
        for evidence in claim.check(problem):
            reason = ""
            yield evidence
    except NoEvidence as exception:
        reason = str(exception)
    if reason:
        yield Evidence(Kind.AGREEMENT, Role.SUPPORTS, "numbers on this data", passed=False, no_evidence=reason)
