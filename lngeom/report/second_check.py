"""Which proofs a second program has checked, by the text of their steps.

`python -m analysis trust` checks certificates of the default audit with `analysis/check_certificate.py`, which uses
Python's integers and fractions alone, and writes `second_check.json`: for each claim a digest of its proofs as the
report has them, and numbers of steps. A proof that has changed since then has another digest, and no badge.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("second_check.json")


class Checked(NamedTuple):
    """What a second program said of a claim's proofs.

    Attributes:
        twice: steps that both programs checked.
        words: steps that rest on words, or on lngeom alone.
    """

    twice: int
    words: int


def digest(evidence: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 of the statements and steps of the proofs among the evidence of a claim, as the document has them."""
    proofs = [{"statement": e["statement"], "steps": e["steps"]} for e in evidence if e["kind"] == "proof"]
    return hashlib.sha256(json.dumps(proofs, sort_keys=True).encode()).hexdigest()


@functools.cache
def _known() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def checked(record: Mapping[str, Any]) -> Checked | None:
    """What the second program said of the proofs of a claim's record; None of others, or where they have changed."""
    found = _known().get(record["id"])
    if found is None or found["digest"] != digest(record["evidence"]) or not found["twice"]:
        return None
    return Checked(found["twice"], found["words"])
