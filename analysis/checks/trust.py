"""What each claim of the audit rests on: writes TRUST.md, after a second program has checked the certificates.

`python -m analysis trust` makes the certificates of the default audit, checks them with `analysis/check_certificate.py`
and writes the page. A step counts as checked twice where lngeom and that program agree.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lngeom.claims.proofs import proof_evidence, proof_of
from lngeom.claims.registry import all_claims
from lngeom.report import second_check
from lngeom.report.document import as_record
from lngeom.symbolic.certificate import certificate

from analysis import check_certificate

Steps = Sequence[tuple[str, set[str]]]
PAGE = Path(__file__).parents[1] / "TRUST.md"
KINDS = ("for all sizes", "at sizes", "to ", "both sides", "two exact", "rank", "by lemma")
"""How the second program's words begin, a column each."""
HEAD = """# What each claim rests on

`python -m analysis trust` writes this page. It makes a certificate of each proof of the default audit, and checks it
with `analysis/check_certificate.py`, a second program of {lines} lines that uses Python's integers and fractions alone.

Both programs checked {steps} steps; the second one took {seconds:.0f} s. {words} steps rest on words, or on lngeom
alone. Differentiation, the translation of sentences into formulas, and the Jacobians of ranks are lngeom's own.

- *all sizes*: an identity, for every number of units, inputs and samples.
- *small sizes*: an identity at 2 to 4 of each. A step with several formulas counts in each of its columns.
- *digits*: to 150 digits at random points, where signs of roots matter, or for exponentials.
- *instance*: an exact counterexample; both sides follow from its numbers.
- *two numbers*: exact numbers that differ, as lngeom gives them.
- *rank*: of a matrix modulo a prime. *lemma*: another proof, checked with it.
- *words*: no formula for the second program.

| claim | all sizes | small sizes | digits | instance | two numbers | rank | lemma | words |
|---|---|---|---|---|---|---|---|---|
"""


def row(id: str, steps: Steps) -> str:
    """A claim's line of the table: how many steps rest on what."""
    counts = [sum(any(shown.startswith(kind) for shown in found) for _, found in steps) for kind in KINDS]
    return f"| `{id}` | {' | '.join(str(c or '') for c in (*counts, sum(not found for _, found in steps)))} |"


def page(checked: Mapping[str, Steps], numbers: Iterable[str], seconds: float = 0.0) -> str:
    """The page.

    Args:
        checked: steps of each claim with what the second program says of them.
        numbers: claims without a proof.
        seconds: what the second program took.

    Returns:
        Markdown.
    """
    steps = [found for claim in checked.values() for _, found in claim]
    lines = len(Path(check_certificate.__file__).read_text("utf-8").splitlines())
    head = HEAD.format(lines=lines, steps=sum(map(bool, steps)), words=sum(not s for s in steps), seconds=seconds)
    rest = "\n".join(f"- `{id}`" for id in numbers)
    return f"{head}{chr(10).join(row(*item) for item in checked.items())}\n\nOn numbers alone:\n\n{rest}\n"


def badges(checked: Mapping[str, Steps]) -> dict[str, dict[str, Any]]:
    """What the report's badges say: for each claim a digest of its proofs, steps checked twice and resting on words."""
    return {
        id: {
            "digest": second_check.digest([as_record(e) for e in proof_evidence(id)]),
            "twice": sum(bool(found) for _, found in steps),
            "words": sum(not found for _, found in steps),
        }
        for id, steps in checked.items()
    }


def main() -> None:
    """Makes and checks the certificates, and writes the page; status 1 where the second program refuses one."""
    checked, numbers, refused, seconds = {}, [], 0, 0.0
    for claim in all_claims():
        found = proof_of(claim.id)
        if found is None:
            numbers.append(claim.id)
            continue
        data = json.loads(json.dumps(certificate(claim.id, found)))
        start = time.perf_counter()
        try:
            checked[claim.id] = check_certificate.certificate(data)
        except check_certificate.Refused as reason:
            sys.stderr.write(f"{claim.id}: refused: {reason}\n")
            refused += 1
        seconds += time.perf_counter() - start
    if refused:
        sys.exit(1)
    PAGE.write_text(page(checked, numbers, seconds), encoding="utf-8")
    second_check.FILE.write_text(json.dumps(badges(checked), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"Written: {PAGE}, {second_check.FILE}\n")


if __name__ == "__main__":
    main()
