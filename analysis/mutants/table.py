"""Results of a run: counts by area, a file of JSON, and a table in Markdown."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lngeom._core.files import replacing

from analysis.mutants.examine import Result
from analysis.mutants.mutant import AREAS, Mutant

COLUMNS = {
    "claims": "by claims",
    "tests": "by tests only",
    "none": "by none",
    "equivalent": "no result changes",
    "import": "every import ends",
    "no answer": "no answer",
}
"""What becomes of mutants, and its heading."""


def kind(result: Result, mutant: Mutant) -> str:
    """The column of a mutant: its outcome, or "equivalent" where nobody notices a fault that changes no result."""
    return "equivalent" if result.outcome == "none" and mutant.equivalent else result.outcome


def summarize(found: Sequence[Result], mutants: Mapping[str, Mutant]) -> dict[str, dict[str, int]]:
    """Counts of what became of the mutants, by area and in all.

    Args:
        found: results.
        mutants: the catalogue by id.

    Returns:
        Area → "planted" and each of `COLUMNS` → number.
    """
    counts = Counter((mutants[r.id].area, kind(r, mutants[r.id])) for r in found)
    rows = {a: {c: counts[a, c] for c in COLUMNS} for a in AREAS if any(m.area == a for m in mutants.values())}
    rows["all"] = {c: sum(row[c] for row in rows.values()) for c in COLUMNS}
    return {area: {"planted": sum(row.values()), **row} for area, row in rows.items()}


def write(found: Sequence[Result], mutants: Mapping[str, Mutant], configuration: dict[str, Any], path: Path) -> None:
    """Writes the summary and every result as JSON, in the order of the catalogue.

    Args:
        found: results.
        mutants: the catalogue by id.
        configuration: of the run.
        path: of the file.
    """
    order = {id: place for place, id in enumerate(mutants)}
    rows = []
    for result in sorted(found, key=lambda r: order[r.id]):
        mutant = mutants[result.id]
        more = {"area": mutant.area, "file": mutant.file, "wrong": mutant.wrong, "equivalent": mutant.equivalent}
        rows.append(json.dumps(asdict(result) | more, ensure_ascii=False))
    head = {"configuration": configuration, "summary": summarize(found, mutants)}
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
        names = Result.__dataclass_fields__
        rows = [Result(**{name: row[name] for name in names}) for row in document["mutants"]]
        return document["configuration"], rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results of a run ({error!r}): start without --resume") from error


def markdown(found: Sequence[Result], mutants: Mapping[str, Mutant], configuration: Mapping[str, Any]) -> str:
    """The table by area, and one line for each mutant.

    Args:
        found: results.
        mutants: the catalogue by id.
        configuration: of the run; "again" names the code and the ids of faults planted again after it.

    Returns:
        A page.
    """
    results = {result.id: result for result in found}
    lines = [
        "# Planted faults, and who notices them",
        "",
        f"`{configuration['command']}` plants one fault at a time in a copy of `lngeom` and checks the claims that "
        "ought to notice it. A claim notices if its verdict differs from the verdict without the fault, or if it ends "
        "in an error. If no claim notices, test files run. The data are 100 × 6 standard normal numbers. The command "
        "writes this page and `figures/mutants.json`. The catalogue is `analysis/mutants/catalogue`.",
        "",
        "| area | planted | " + " | ".join(COLUMNS.values()) + " |",
        "|---|" + "---|" * (1 + len(COLUMNS)),
    ]
    for area, row in summarize(found, mutants).items():
        if row["planted"]:
            lines.append(f"| {area} | " + " | ".join(map(str, row.values())) + " |")
    if again := configuration.get("again"):
        lines += [
            "",
            f"In the whole run, of code `{configuration['code']}`, nobody noticed {len(again['ids'])} of these faults. "
            f"Tests were added, and the faults planted again, in code {again['code']}: "
            f"{', '.join(f'`{id}`' for id in again['ids'])}.",
        ]
    for area in AREAS:
        members = [m for m in mutants.values() if m.area == area and m.id in results]
        if not members:
            continue
        lines += ["", f"## {area.capitalize()}", "", "| fault | file | who notices first | how |", "|---|---|---|---|"]
        for mutant in members:
            result = results[mutant.id]
            what = kind(result, mutant)
            who = {"claims": f"`{result.by}`", "tests": f"test `{result.by}`"}.get(what, f"**{COLUMNS[what]}**")
            how = mutant.equivalent if what == "equivalent" else result.how
            cells = (f"{mutant.wrong} (`{mutant.id}`)", f"`{mutant.file}`", who, how)
            lines.append("| " + " | ".join(_escaped(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _escaped(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").split())
