"""Invariance tables as data: the claims of their cells, with measured changes."""

from collections.abc import Sequence
from typing import Any

from lngeom.claims import Role
from lngeom.claims.evidence import Kind
from lngeom.claims.paper import TABLE1
from lngeom.claims.problem import TITLES
from lngeom.claims.registry import Outcome
from lngeom.methods import METHODS, table as invariance_table, transformations

TABLES = {"table1": ("Table 1", TABLE1), "extended": ("Extended table", invariance_table.EXTENDED)}
"""First part of the claims' ids → title, and rows of columns."""

ROWS = {m.name: m.title for m in METHODS.values()} | TITLES
COLUMNS = {c.name: c for c in transformations.EXTENDED}


def tables(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The tables whose cells are among the outcomes, which are those with an id `<table>.<method>.<column>`.

    Args:
        outcomes: the claims that were checked.

    Returns:
        For each table its columns and rows; a cell is None where it was not checked.
    """
    return [found for prefix in TABLES if (found := _table(prefix, outcomes))["rows"]]


def _table(prefix: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    title, recorded = TABLES[prefix]
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for outcome in outcomes:
        first, _, rest = outcome.claim.id.partition(".")
        method, _, column = rest.partition(".")
        if first == prefix and column in recorded.get(method, ()):
            cells[method, column] = _cell(outcome, recorded[method][column] is invariance_table.Cell.SIGN)
    methods, columns = (list(dict.fromkeys(key[k] for key in cells)) for k in (0, 1))
    return {
        "name": prefix,
        "title": title,
        "columns": [_column(name) for name in columns],
        "rows": [
            {
                "name": method,
                "title": ROWS.get(method, method),
                "cells": [cells.get((method, column)) for column in columns],
            }
            for method in methods
        ],
    }


def _column(name: str) -> dict[str, str]:
    known = COLUMNS.get(name)
    return {
        "name": name,
        "title": known.title if known else name.replace("_", " ").capitalize(),
        "formula": known.formula if known else "",
    }


def _cell(outcome: Outcome, sign: bool) -> dict[str, Any]:
    """Content of a cell, from the kind of its supporting evidence: "invariant", "no", or "up to sign".

    Where the claim is about the sign, both kinds say "up to sign". Elsewhere numbers that agree beside a counterexample
    only compare two computations.
    """
    measured = [e for e in outcome.evidence if e.role is Role.SUPPORTS and e.residual is not None]
    same, other = (any(e.kind is kind for e in measured) for kind in (Kind.AGREEMENT, Kind.COUNTEREXAMPLE))
    deviations = [float(e.residual) for e in measured if e.residual is not None and not e.no_evidence]
    says = "up to sign" if sign and same and other else "no" if other else "invariant" if same else "unknown"
    deviation = max(deviations, default=float("nan"))
    return {
        "claim": outcome.claim.id,
        "says": says,
        "verdict": outcome.verdict.value,
        "strength": outcome.strength.value,
        "as_recorded": outcome.as_recorded,
        "deviation": deviation if abs(deviation) < float("inf") else None,
    }
