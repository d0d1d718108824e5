"""The numbers of `analysis/PROTOCOL.md`, the groups of arms, and where the protocol itself comes from."""

import hashlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "PROTOCOL.md"


@dataclass(frozen=True)
class Plan:
    """Rates, seeds and lengths; the defaults are those of the protocol.

    Attributes:
        rates: learning rates of every arm, ascending.
        below: rates by which the grid is extended downward, one after the other.
        above: likewise upward.
        choosing: seeds on which rates are chosen.
        fresh: seeds on which the chosen rates are judged.
        longest: the greatest length, in lengths of the small version; a power of two.
    """

    rates: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01)
    below: tuple[float, ...] = (0.0001, 0.00003)
    above: tuple[float, ...] = (0.03, 0.1)
    choosing: tuple[int, ...] = (0, 1, 2)
    fresh: tuple[int, ...] = tuple(range(100, 110))
    longest: int = 8

    def extended(self, rates: Sequence[float], chosen: Sequence[float]) -> tuple[float, ...]:
        """The grid with one more rate on each side at which the best rate of an arm lies, where there is one.

        Args:
            rates: the grid so far.
            chosen: the best rates.

        Returns:
            The grid; the same one if no best rate is at an edge, or there are no more rates.
        """
        lower = next((r for r in self.below if r < min(rates)), None) if min(rates) in chosen else None
        upper = next((r for r in self.above if r > max(rates)), None) if max(rates) in chosen else None
        return tuple(sorted({*rates, *(r for r in (lower, upper) if r is not None)}))


def real_plan(fresh: int) -> Plan:
    """The plan of the versions on real data (20).

    Args:
        fresh: number of fresh seeds.

    Returns:
        The plan.
    """
    return Plan((0.0003, 0.001, 0.003), (), (), (0,), tuple(range(100, 100 + fresh)), 1)


def groups(statements: Sequence[Any]) -> list[tuple[str, ...]]:
    """Arms that statements compare with each other, directly or by way of others.

    Args:
        statements: with `arms`.

    Returns:
        The groups, and the arms of each, in the order in which statements name them.
    """
    found: list[list[str]] = []
    for statement in statements:
        joined = [g for g in found if set(g) & set(statement.arms)]
        merged = list(dict.fromkeys([arm for g in joined for arm in g] + list(statement.arms)))
        found = [g for g in found if g not in joined] + [merged]
    return [tuple(g) for g in found]


def provenance(document: Path = DOCUMENT) -> dict[str, str | None]:
    """Version, date, SHA-256 and commit of the protocol.

    Args:
        document: the protocol, in a checkout.

    Returns:
        The four, as text; no commit outside a checkout.

    Raises:
        ValueError: if the protocol was changed and not committed, or does not give its version and date.
    """
    content = document.read_bytes()
    stated = re.search(rb"Version (\d+), (\d{4}-\d\d-\d\d)", content)
    if stated is None:
        raise ValueError(f"{document} does not give its version and date")
    version, date = (part.decode() for part in stated.groups())
    commit = None
    try:
        git = ["git", "-C", str(document.parent)]
        log = subprocess.run([*git, "log", "-1", "--format=%H", "--", document.name], capture_output=True, check=True)
        commit = log.stdout.decode().strip() or None
        if commit is None or subprocess.run([*git, "diff", "--quiet", "HEAD", "--", document.name]).returncode:
            raise ValueError(f"{document} was changed: commit it before its runs")
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or no checkout
    return {"version": version, "date": date, "sha256": hashlib.sha256(content).hexdigest(), "commit": commit}
