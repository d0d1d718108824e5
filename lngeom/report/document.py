"""The report as a JSON document, and atomic writing of its files."""

import importlib.metadata
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lngeom import __version__
from lngeom._core.files import replacing
from lngeom.claims import Paper, Read, Verdict
from lngeom.claims.data import Dataset
from lngeom.claims.evidence import Evidence, Strength
from lngeom.claims.papers import LAYER_NORMALIZATION
from lngeom.claims.registry import BA2016, Claim, Outcome
from lngeom.papers.ba2016.coverage import STATEMENTS, coverage
from lngeom.report.tables import tables

SCHEMA = "lngeom.report/2"
SCHEMA_OF_LISTS = "lngeom.claims/1"
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "equinox", "sympy", "scikit-learn")


def document(
    outcomes: Sequence[Outcome], dataset: Dataset, seed: int, paper: Paper = LAYER_NORMALIZATION
) -> dict[str, Any]:
    """The report as plain data.

    Args:
        outcomes: the claims that were checked.
        dataset: the data set.
        seed: random seed.
        paper: which the claims are about.

    Returns:
        A dictionary for `json.dumps`. Its "schema" names the version of the format.
    """
    counts = Counter(o.verdict for o in outcomes)
    return {
        "schema": SCHEMA,
        "paper": asdict(paper) | {"authors": list(paper.authors)},
        "repository": _repository(),
        "seed": seed,
        "versions": {"lngeom": __version__} | {name: _version(name) for name in PACKAGES},
        "data": {
            "name": dataset.name,
            "shape": list(dataset.shape),
            "used": list(dataset.inputs.shape),
            "rank": dataset.rank,
            "sha256": dataset.fingerprint,
            "notes": list(dataset.notes),
        },
        "summary": {
            "claims": len(outcomes),
            "verdicts": {v.value: counts[v] for v in Verdict},
            "strengths": {
                v.value: {s.value: sum(o.verdict is v and o.strength is s for o in outcomes) for s in Strength}
                for v in Verdict
            },
            "as_recorded": sum(o.as_recorded for o in outcomes),
            "differ": [o.claim.id for o in outcomes if not o.as_recorded],
            "clash": [o.claim.id for o in outcomes if o.verdict is Verdict.CLASH],
            "no_evidence": [o.claim.id for o in outcomes if o.silent],
        },
        **({"coverage": _coverage()} if paper.id == BA2016 else {}),
        "tables": tables(outcomes),
        "claims": [_outcome(o) for o in outcomes],
    }


def _coverage() -> dict[str, Any]:
    """The statements of the paper of 2016, and the claims that treat them."""
    return {**coverage()._asdict(), "list": [s._asdict() | {"claims": list(s.claims)} for s in STATEMENTS]}


def _origin(claim: Claim) -> str:
    """Whether the statement is the paper's or added."""
    return "added" if claim.read is Read.OWN else "paper"


def _repository() -> str:
    """The address of lngeom's repository, where its package names one."""
    try:
        named = importlib.metadata.metadata("lngeom").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    addresses = dict(entry.split(", ", 1) for entry in named)
    return addresses.get("Repository", "")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _record(claim: Claim) -> dict[str, Any]:
    return {
        "id": claim.id,
        "topic": claim.topic,
        "source": claim.source,
        "origin": _origin(claim),
        "read": claim.read.value,
        "statement": claim.statement,
        "formula": claim.formula,
        "assumptions": list(claim.assumptions),
        "expected": claim.expected.value,
    }


def listing(claims: Sequence[Claim]) -> dict[str, Any]:
    """Claims as they are recorded, without checks, as plain data."""
    found = [_record(c) | {"paper": c.paper, "correction": c.correction} for c in claims]
    return {"schema": SCHEMA_OF_LISTS, "claims": found}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    claim = outcome.claim
    context = {"context": asdict(claim.context)} if claim.context else {}
    erratum = {"erratum": asdict(claim.erratum)} if claim.erratum else {}
    return (
        context
        | erratum
        | _record(claim)
        | {
            "verdict": outcome.verdict.value,
            "strength": outcome.strength.value,
            "as_recorded": outcome.as_recorded,
            "correction": claim.correction,
            "why_numeric": claim.why_numeric if outcome.strength.value == "numeric" else "",
            "error": outcome.error,
            "reasons": list(outcome.reasons),
            "seconds": round(outcome.seconds, 3),
            "evidence": [as_record(e) for e in outcome.evidence],
        }
    )


def as_record(evidence: Evidence) -> dict[str, Any]:
    """One piece of evidence, as the document has it."""
    return {
        "kind": evidence.kind.value,
        "role": evidence.role.value,
        "description": evidence.description,
        "passed": evidence.passed,
        "vacuous": evidence.vacuous,
        "contradicts": evidence.contradicts,
        "no_evidence": evidence.no_evidence,
        "reason": evidence.reason,
        "residual": _number(evidence.residual),
        "tolerance": _number(evidence.tolerance),
        "rounding": _number(evidence.rounding),
        "samples": int(evidence.samples),
        "matrices": {name: _array(value) for name, value in evidence.matrices.items()},
        "curves": {name: {"x": _array(x), "y": _array(y)} for name, (x, y) in evidence.curves.items()},
        "statement": evidence.statement,
        "steps": [{"part": "note", **step} for step in evidence.steps],
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _array(value: np.ndarray) -> list:
    return np.vectorize(lambda v: _number(float(f"{v:.6g}")), otypes=[object])(np.asarray(value)).tolist()


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Writes files into a folder, each atomically, and none of them if one fails.

    Args:
        folder: created if it is missing.
        files: name → text.

    Returns:
        The paths written.

    Raises:
        OSError: if the folder cannot be created or written to. No file is then left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        for name, text in files.items():
            opened.enter_context(replacing(folder / name)).write(text.encode())
    return [folder / name for name in files]


def dumps(document: Mapping[str, Any]) -> str:
    """The document as JSON text."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
