"""The style of all figures, and the function that writes a figure as SVG, PNG and JSON data."""

import json
import textwrap
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lngeom import __version__
from lngeom._files import replacing

WIDTHS = {"column": 3.6, "page": 7.2}
"""Inches: one column, or the page."""

CHARACTERS = 19.5
"""Characters of a caption on an inch."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f")
"""Okabe and Ito's colours and a grey, which colour-blind readers can distinguish. Dashes and markers differ too."""

STYLE: Any = {
    "axes.grid": True,
    "axes.prop_cycle": cycler(
        color=COLOURS, linestyle=["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-", "--"]
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "figure.dpi": 150,
    "font.size": 8,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "savefig.bbox": "tight",
    "svg.fonttype": "path",
    "svg.hashsalt": "lngeom",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}


@contextmanager
def figure(rows: int = 1, columns: int = 1, *, width: str = "page", height: float = 2.6, **subplots: Any):
    """A figure and its axes in the style of the project; global settings stay as they are.

    Args:
        rows: of axes.
        columns: of axes.
        width: "column" or "page".
        height: inches of one row.
        **subplots: passed to `Figure.subplots`, such as `sharex=True`.

    Yields:
        The figure and a [rows, columns] array of its axes.

    Raises:
        ValueError: if there is no such width.
    """
    if width not in WIDTHS:
        raise ValueError(f"no width {width!r}; the widths are {', '.join(WIDTHS)}")
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(WIDTHS[width], height * rows), layout="constrained")
        FigureCanvasAgg(fig)
        yield fig, fig.subplots(rows, columns, squeeze=False, **subplots)


def _plain(value: Any) -> Any:
    """The value in a form for JSON; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "__array__"):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value


def _write(path: Path, write: Callable[[BinaryIO], Any]) -> Path:
    with replacing(path) as file:
        write(file)
    return path


def save(
    fig: Figure,
    stem: Path | str,
    data: Mapping[str, Any],
    *,
    caption: str,
    configuration: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Writes a figure with its caption as `stem.svg` and `stem.png`, and its data as `stem.json`.

    Args:
        fig: the figure, made by `figure` and inside its `with` block.
        stem: path without a suffix; its folder is created if it is missing.
        data: the numbers in the figure. Arrays become lists; numbers that are not finite become null.
        caption: one or two sentences that explain the figure without other text.
        configuration: settings, seeds and sizes of the data.

    Returns:
        The three paths.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "caption": caption,
        "configuration": _plain(configuration or {}),
        "versions": {"lngeom": __version__} | {name: metadata.version(name) for name in ("jax", "numpy", "matplotlib")},
        "data": _plain(data),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    about = {"Title": stem.name, "Description": caption}
    lines = textwrap.wrap(caption, int(CHARACTERS * fig.get_figwidth()))
    fig.text(0, -0.06 / fig.get_figheight(), "\n".join(lines), va="top", size=7, color="#333333", parse_math=False)
    return [
        _write(
            stem.with_suffix(".svg"),
            lambda f: fig.savefig(f, format="svg", metadata=about | {"Date": None, "Creator": "lngeom"}),
        ),
        _write(stem.with_suffix(".png"), lambda f: fig.savefig(f, format="png", dpi=200, metadata=about)),
        _write(stem.with_suffix(".json"), lambda f: f.write(text.encode())),
    ]
