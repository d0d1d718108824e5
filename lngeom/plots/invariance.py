"""The invariance tables: what each transformation does to the output of each method, beside the paper's Table 1."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.patches import Rectangle

from lngeom.claims.paper import TABLE1
from lngeom.plots.axes import legend_below, number
from lngeom.plots.style import ANSWERS, GUIDE, INK, figure, points, save

SHOWN = {"invariant": ("invariant", "I"), "no": ("no", "no"), "up to sign": ("±", "±"), "unknown": ("??", "??")}
"""Content of a cell → its text in a small table, and in a large one."""
MEANING = {
    "invariant": "invariant",
    "no": "no: the output changes",
    "up to sign": "±: only its sign changes, which g → −g repairs",
    "unknown": "undecided",
}


def agreement(row: str, column: str, cell: Mapping[str, Any]) -> str:
    """Whether the paper's Table 1 has the same answer.

    Args:
        row: name of the method.
        column: name of the transformation.
        cell: a cell of a report's table.

    Returns:
        "✓" if it has, "✗" if it has another, and "" if it does not have the cell.
    """
    printed = TABLE1.get(row, {}).get(column)
    if printed is None:
        return ""
    return "✓" if {True: "invariant", False: "no"}[printed] == cell["says"] else "✗"


def invariance_title(table: Mapping[str, Any]) -> str:
    """Whether the cells of the paper's Table 1 hold."""
    cells = _cells(table)
    marks = [mark for (row, column), cell in cells.items() if (mark := agreement(row, column, cell))]
    wrong = marks.count("✗")
    whole = f"All {len(marks)} cells" if len(marks) == len(cells) else "All cells"
    if not wrong:
        return f"{whole} of the paper's Table 1 hold"
    return f"{wrong} cell{'s' if wrong > 1 else ''} of the paper's Table 1 do{'' if wrong > 1 else 'es'} not hold"


def invariance_numbers(table: Mapping[str, Any]) -> str:
    """How many cells of the paper the measured ones confirm, and the counts of each answer."""
    cells = _cells(table)
    marks = [agreement(row, column, cell) for (row, column), cell in cells.items()]
    compared = [mark for mark in marks if mark]
    counts = {answer: sum(cell["says"] == answer for cell in cells.values()) for answer in SHOWN}
    words = {"invariant": "invariant", "no": "not", "up to sign": "up to the sign", "unknown": "undecided"}
    found = ", ".join(f"{count} {words[answer]}" for answer, count in counts.items() if count)
    printed = f"{compared.count('✓')} of {len(compared)} cells printed in the paper hold"
    return f"{table['title']}: {printed}" + ("" if len(compared) == len(cells) else f". Of all {len(cells)}: {found}")


def _cells(table: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Row, column → cell, of those that were checked."""
    names = [column["name"] for column in table["columns"]]
    pairs = ((row["name"], zip(names, row["cells"], strict=True)) for row in table["rows"])
    return {(row, column): cell for row, cells in pairs for column, cell in cells if cell is not None}


def _gap(table: Mapping[str, Any]) -> str:
    """The largest change of an invariant cell, and the smallest of another."""
    measured = [c for c in _cells(table).values() if c["deviation"] is not None]
    same = [c["deviation"] for c in measured if c["says"] == "invariant"]
    other = [c["deviation"] for c in measured if c["says"] == "no"]
    parts = [f"by at most {number(max(same), math.ceil)} where invariant"] if same else []
    parts += [f"by {number(min(other), math.floor)} or more where not"] if other else []
    return f"The output changes, relative to itself, {' and '.join(parts)} (float64)." if parts else ""


def invariance_table(table: Mapping[str, Any], stem: Path | str) -> list[Path]:
    """An invariance table. A cell tells whether the output changes, and whether the paper's Table 1 says the same.

    Args:
        table: one of a report's "tables".
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    rows, columns = len(table["rows"]), len(table["columns"])
    large = columns > 8
    cells = _cells(table)
    with figure(1, 1, height=(0.21 if large else 0.42) * rows + (2.0 if large else 1.6)) as (fig, axes):
        ax = axes[0, 0]
        ax.grid(False)
        for i, row in enumerate(table["rows"]):
            for j, column in enumerate(table["columns"]):
                if (cell := cells.get((row["name"], column["name"]))) is None:
                    continue
                fill = ANSWERS[cell["says"]]
                ax.add_patch(
                    Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor=GUIDE, linewidth=0.5, clip_on=False)
                )
                mark = agreement(row["name"], column["name"], cell)
                text = f"{SHOWN[cell['says']][large]} {mark}".strip()
                if not large and cell["deviation"] is not None:
                    text += f"\n{number(cell['deviation'])}"
                size, weight = points(6.5) if large else points(8), "normal" if cell["as_recorded"] else "bold"
                ax.text(j, i, text, ha="center", va="center", color=INK, fontsize=size, weight=weight)
        titles = [c["title"] if large else _wrapped(c["title"]) for c in table["columns"]]
        ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
        ax.xaxis.tick_top()
        ax.set_xticks(range(columns), titles, rotation=45 if large else 0, ha="left" if large else "center")
        ax.set_yticks(range(rows), [row["title"] for row in table["rows"]])
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
        present = [answer for answer in MEANING if any(cell["says"] == answer for cell in cells.values())]
        keys = [Rectangle((0, 0), 1, 1, facecolor=ANSWERS[a], edgecolor=GUIDE, linewidth=0.5) for a in present]
        names = ["I: invariant" if large and a == "invariant" else MEANING[a] for a in present]
        legend_below(fig, keys, names)
        numbers = "" if large else " Numbers: the largest relative change of the output."
        return save(
            fig,
            stem,
            {"table": dict(table)},
            title=invariance_title(table),
            caption=(
                f"{invariance_numbers(table)}. "
                "What each transformation does to the output of each method. ✓: the paper's Table 1 says the same; "
                f"✗: it does not.{numbers} {_gap(table)}"
            ).strip(),
        )


def _wrapped(title: str) -> str:
    words = title.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]) + "\n" + " ".join(words[middle:])
