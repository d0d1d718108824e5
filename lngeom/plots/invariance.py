"""The invariance tables as heat maps of measured changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm

from lngeom.plots.style import figure, save

SHOWN = {"invariant": ("invariant", "I"), "no": ("no", "no"), "up to sign": ("up to sign", "±"), "unknown": "??"}
"""Content of a cell → its text in a small table, and in a large one."""
LOWEST = 1e-17


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-").replace("e+00", "")


def invariance_table(table: Mapping[str, Any], stem: Path | str) -> list[Path]:
    """An invariance table. Colour and number are the largest relative change of the output.

    Args:
        table: one of a report's "tables".
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    cells = [row["cells"] for row in table["rows"]]
    deviation = np.array(
        [[np.nan if c is None or c["deviation"] is None else c["deviation"] for c in row] for row in cells]
    )
    rows, columns = deviation.shape
    large = columns > 8
    with figure(1, 1, height=(0.27 if large else 0.42) * rows + 1.5) as (fig, axes):
        ax = axes[0, 0]
        drawn = np.ma.masked_invalid(np.maximum(deviation, LOWEST))
        image = ax.imshow(drawn, norm=LogNorm(LOWEST, 10), cmap="cividis", aspect="auto", interpolation="nearest")
        ax.grid(False)
        for i, j in np.argwhere(np.isfinite(deviation)):
            cell = cells[i][j]
            dark = drawn[i, j] < 1e-6
            text = f"{SHOWN[cell['says']][large]}\n{_short(float(deviation[i, j]))}"
            ax.text(
                j,
                i,
                text,
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=5 if large else 7,
                linespacing=1.05,
                weight="bold" if not cell["as_recorded"] else "normal",
            )
        titles = [c["title"] if large else _wrapped(c["title"]) for c in table["columns"]]
        ax.set_xticks(range(columns), titles, rotation=60 if large else 0, ha="left" if large else "center")
        ax.xaxis.tick_top()
        ax.set_yticks(range(rows), [row["title"] for row in table["rows"]])
        ax.tick_params(length=0)
        ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1.2, linestyle="-", alpha=1)
        ax.tick_params(which="minor", length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
        fig.colorbar(image, ax=ax, label="largest relative change", shrink=0.9, pad=0.02)
        return save(
            fig,
            stem,
            {"table": dict(table)},
            caption=(
                f"{table['title']}: change of each method's output under each transformation. Colour and number give "
                "the largest relative change measured in float64. Dark cells do not change beyond rounding."
            ),
        )


def _wrapped(title: str) -> str:
    words = title.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]) + "\n" + " ".join(words[middle:])
