"""Results of a run: counts by area, a file of JSON, and a page in Markdown."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from lngeom._core.files import replacing

from analysis.mutants.examine import Result
from analysis.mutants.targets import AREAS, MATHEMATICS

COLUMNS = {
    "claims": "by claims",
    "relations": "by relations",
    "tests": "by tests",
    "none": "by none",
    "equivalent": "no result changes",
    "import": "every import ends",
    "no answer": "no answer",
}
"""What becomes of mutants, and its heading."""

GOOD = {"claims", "relations", "tests", "equivalent"}
"""What should become of every mutant."""


class Survivors(NamedTuple):
    """Why nobody notices some mutants.

    Attributes:
        equivalent: why a mutant changes no result, by id.
        tests: the test that notices one, by id: it was added, or is not asked in a run.
        open: why no test notices one yet, by id.
    """

    equivalent: Mapping[str, str]
    tests: Mapping[str, str]
    open: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def read(cls, path: Path) -> "Survivors":
        """The reasons in a file.

        Args:
            path: of the file; it need not exist.

        Returns:
            Reasons.
        """
        document = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return cls(*(document.get(name, {}) for name in cls._fields))


def kind(result: Result, survivors: Survivors) -> str:
    """The column of a mutant: its outcome, or "equivalent" where nobody notices a fault that changes no result."""
    return "equivalent" if result.outcome == "none" and result.id in survivors.equivalent else result.outcome


def is_good(result: Result, survivors: Survivors) -> bool:
    """Whether somebody notices a mutant, at once or after a test was added, or it changes no result."""
    return kind(result, survivors) in GOOD or bool(result.later)


def summarize(found: Sequence[Result], survivors: Survivors) -> dict[str, dict[str, int]]:
    """Counts of what became of the mutants, by area, of the mathematics and in all.

    Args:
        found: results.
        survivors: reasons.

    Returns:
        Area → "planted" and each of `COLUMNS` → number.
    """
    counts = Counter((r.area, kind(r, survivors)) for r in found)
    rows = {a: {c: counts[a, c] for c in COLUMNS} for a in AREAS if any(r.area == a for r in found)}
    for name, areas in (("mathematics", MATHEMATICS), ("all", AREAS)):
        rows[name] = {c: sum(counts[a, c] for a in areas) for c in COLUMNS}
    return {area: {"planted": sum(row.values()), **row} for area, row in rows.items()}


def shares(row: Mapping[str, int]) -> tuple[float, float]:
    """Shares of the mutants that change a result and can be imported: by claims and relations, and by anybody.

    Args:
        row: of `summarize`.

    Returns:
        Both, between 0 and 1; 1 where there are no mutants.
    """
    counted = row["planted"] - row["equivalent"] - row["import"]
    first = row["claims"] + row["relations"]
    return (first / counted, (first + row["tests"]) / counted) if counted else (1.0, 1.0)


def write(found: Sequence[Result], survivors: Survivors, configuration: dict[str, Any], path: Path) -> None:
    """Writes the summary and every result as JSON.

    Args:
        found: results.
        survivors: reasons.
        configuration: of the run.
        path: of the file.
    """
    rows = [json.dumps(result._asdict(), ensure_ascii=False) for result in found]
    head = {"configuration": configuration, "summary": summarize(found, survivors)}
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write((text + ',\n "mutants": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n").encode())


def read(path: Path) -> tuple[dict[str, Any], list[Result]]:
    """The configuration and the results that `write` has written.

    Args:
        path: of the file.

    Returns:
        Both.

    Raises:
        ValueError: if the file is missing or not one of these.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return document["configuration"], [Result(**row) for row in document["mutants"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results of a run ({error!r}): start without --resume") from error


def markdown(found: Sequence[Result], survivors: Survivors, configuration: Mapping[str, Any]) -> str:
    """The table by area, the survivors with their reasons, and one line for each mutant.

    Args:
        found: results.
        survivors: reasons.
        configuration: of the run; its "note" says what a reader must know of how it was made.

    Returns:
        A page.
    """
    rows = summarize(found, survivors)
    lines = [
        "# Planted faults, and who notices them",
        "",
        f"`{configuration['command']}` changes one place of one function of `lngeom` at a time: an operator, a number, "
        "an axis, a term, a factor, the order of arguments, a keyword, a guard, a condition. It draws the mutants from "
        "`analysis/mutants/targets.py`, the same ones each time, and asks those that run the function: claims with "
        "their proofs, then relations over drawn models, then other tests of the quick tier. A claim notices if its "
        "verdict is another, or if it or its proof ends in an error. The data are 100 × 6 standard normal numbers.",
        "",
        f"Measured on the sources with the hash `{configuration['code']}` (of `lngeom` and `tests`), "
        f"{_minutes(configuration, 'baseline seconds')} without a fault and {_minutes(configuration, 'seconds')} with "
        f"{len(found)} faults{configuration.get('conditions', '')}.",
        *(["", configuration["note"]] if "note" in configuration else []),
        "",
        "| area | planted | " + " | ".join(COLUMNS.values()) + " | claims and relations | all |",
        "|---|" + "---|" * (3 + len(COLUMNS)),
    ]
    for area, row in rows.items():
        cells = [area, *map(str, row.values()), *(f"{100 * share:.0f} %" for share in shares(row))]
        lines.append("| " + " | ".join(cells) + " |")
    counted = [r for r in found if kind(r, survivors) not in {"equivalent", "import"}]
    since = sum(is_good(r, survivors) for r in counted)
    lines += [
        "",
        "The shares are of the mutants that change a result and can be imported. A process that gives no answer counts "
        f"as noticed by nobody. With the tests added since, {since} of {len(counted)} are noticed.",
    ]
    lines += _of_fresh(survivors, configuration) + _of_survivors(found, survivors)
    for area in AREAS:
        members = [r for r in found if r.area == area]
        if not members:
            continue
        lines += [
            "",
            f"## {area.capitalize()}",
            "",
            "| fault | change | who notices first | how |",
            "|---|---|---|---|",
        ]
        lines += [_line(result, survivors) for result in members]
    return "\n".join(lines) + "\n"


def _line(result: Result, survivors: Survivors) -> str:
    """A mutant and who notices it first, as a row."""
    who = f"`{result.by}`" if result.by else f"**{COLUMNS[kind(result, survivors)]}**"
    who = survivors.equivalent.get(result.id, who) if result.outcome == "none" else who
    cells = (f"`{result.id}`", f"`{_short(result.change)}`", who, _short(result.how))
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _minutes(configuration: Mapping[str, Any], name: str) -> str:
    return f"{configuration.get(name, 0) / 60:.0f} min"


def _of_fresh(survivors: Survivors, configuration: Mapping[str, Any]) -> list[str]:
    """Faults that nobody had seen when the tests were written."""
    fresh = [Result(**row) for row in configuration.get("fresh", ())]
    if not fresh:
        return []
    row = summarize(fresh, survivors)["all"]
    first, every = shares(row)
    lines = [
        "",
        "## Fresh faults",
        "",
        "Many relations and tests were written with the list above at hand. So further mutants were drawn from the "
        f"mathematics that had never been planted (`--fresh {len(fresh)}`, in the sources "
        f"`{configuration['fresh code']}`, {_minutes(configuration, 'fresh seconds')}). Of those that change a result "
        f"claims and relations notice {100 * first:.0f} %, all together {100 * every:.0f} %.",
        "",
        "| fault | change | who notices first | how |",
        "|---|---|---|---|",
    ]
    return lines + [_line(result, survivors) for result in fresh]


def _of_survivors(found: Sequence[Result], survivors: Survivors) -> list[str]:
    """What nobody noticed in the whole run, and why, or which test notices it since."""
    members = [r for r in found if r.outcome in {"none", "no answer"}]
    if not members:
        return []
    later = {code for r in members if (code := r.later_code)}
    codes = ", ".join(f"`{code}`" for code in sorted(later))
    lines = ["", "## Survivors", ""]
    if later:
        lines += [
            f"Where a test is named, the fault was planted again in the sources {codes}: the test passes without it, "
            "and fails with it. Most of these tests were added. Others exist, but are thorough or compute in "
            "processes of their own, and are not asked in a run.",
            "",
        ]
    lines += ["| fault | change | why it changes no result, or the test that notices it |", "|---|---|---|"]
    for result in members:
        why = survivors.equivalent.get(result.id, "") or (f"`{result.later}`" if result.later else "")
        why = why or f"**{COLUMNS[result.outcome]}** {survivors.open.get(result.id, '')}"
        cells = (f"`{result.id}`", f"`{_short(result.change)}`", why)
        lines.append("| " + " | ".join(_escaped(cell) for cell in cells) + " |")
    return lines


def _short(text: str, width: int = 160) -> str:
    text = " ".join(text.replace("`", "'").split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _escaped(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").split())
