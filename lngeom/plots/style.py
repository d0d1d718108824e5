"""The style of all figures, and the function that writes a figure as SVG, PNG and JSON data."""

import io
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from lngeom import __version__
from lngeom._core.files import replacing
from lngeom.claims import palette

WIDTHS = {"column": 3.6, "page": 7.2}
"""Inches: one column, or the page."""

CHARACTERS = 19.5
"""Characters of a caption on an inch."""

TITLE_CHARACTERS = 12.8
"""Characters of a title on an inch."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f")
"""Okabe and Ito's colours and a grey, which colour-blind readers can distinguish, for series that are no method."""

NORMALIZERS = {
    "none": "#000000",
    "layer norm": "#0072b2",
    "batch norm": "#d55e00",
    "weight norm": "#009e73",
    "RMS norm": "#cc79a7",
}
OPTIMIZERS = {
    "SGD": "#332288",
    "momentum": "#56b4e9",
    "Adam": "#e69f00",
    "Lion": "#882255",
    "Muon": "#999933",
    "normalized gradient descent": "#44aa99",
    "LARS": "#7f7f7f",
    "RMSProp": "#ee6677",
}
LIBRARIES = {
    "lngeom": "#117733",
    "flax": "#cc6677",
    "equinox": "#88ccee",
    "haiku": "#ddaa33",
    "keras": "#aa4499",
    "torch": "#666666",
    "somax": "#4477aa",
    "laplax": "#ee7733",
    "curvlinops": "#771155",
    "nngeometry": "#aaaa00",
    "plain JAX": "#222222",
}
COLOUR_OF: Mapping[str, str] = {**NORMALIZERS, **OPTIMIZERS, **LIBRARIES}
"""Method → its colour in all figures. Colours of Okabe, Ito and Tol; those of a group differ."""

INK, GUIDE, PALE = "#222222", "#767676", "#e4e4e4"
"""Greys: of text and frames, of lines to compare with, and of areas."""

ANSWERS = {answer: look.light for answer, look in palette.ANSWERS.items()}
"""Answer of a cell of an invariance table → the colour of the cell."""

DASHES: dict[str, Any] = {
    "none": (0, (4, 1.5)),
    "layer norm": "-",
    "batch norm": (0, (5, 1, 1, 1)),
    "weight norm": (0, (1, 1)),
    "RMS norm": (0, (8, 1.5)),
}
"""Normalizer → dashes of its line, by which it can be told without colours."""
VARIANT: Any = (0, (1, 0.8))
"""Dashes of a second arm of the same normalizer."""
MARKERS = {"none": "x", "layer norm": "D", "batch norm": "s", "weight norm": "^", "RMS norm": "v"}
"""Normalizer → marker of its points."""

_KNOWN = {
    "RMS norm": r"\bRMS\b",
    "layer norm": r"\bLN\b|\blayer norm\b",
    "batch norm": r"\bBN\b|\bbatch norm\b",
    "weight norm": r"\bWN\b|\bweight norm\b",
}


def method_of(name: str) -> str:
    """The normalizer of an arm, by its name.

    Args:
        name: such as "GRU + LN" or "batch norm, exact".

    Returns:
        A key of `NORMALIZERS`; "none" if the name holds none of the others.
    """
    return next((method for method, pattern in _KNOWN.items() if re.search(pattern, name)), "none")


def lines_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and dashes of arms drawn together; second arms of the same normalizer are dotted.

    Args:
        names: of the arms.

    Returns:
        Name → keywords of `Axes.plot`.
    """
    methods = [method_of(name) for name in names]
    return {
        name: {"color": COLOUR_OF[method], "linestyle": VARIANT if method in methods[:k] else DASHES[method]}
        for k, (name, method) in enumerate(zip(names, methods, strict=True))
    }


class _Options(NamedTuple):
    captions: bool = True
    slide: bool = False
    source: str = ""
    versions: Mapping[str, str] | None = None


_DEFAULT = _Options()
_OPTIONS: ContextVar[_Options] = ContextVar("options of figures", default=_DEFAULT)


@contextmanager
def options(**chosen: Any):
    """Options of all figures saved inside the `with` block; those not named stay as they are.

    Args:
        **chosen: `captions`, whether captions are drawn (metadata and JSON hold them in any case); `slide`, whether
            figures are of 16:9, with larger type and without captions; `source`, a sentence at the end of every
            caption, such as one on the inputs; `versions`, of the packages that computed the
            data, by default those installed.

    Yields:
        Nothing.

    Raises:
        ValueError: if there is no such option.
    """
    token = _OPTIONS.set(_OPTIONS.get()._replace(**chosen))
    try:
        yield
    finally:
        _OPTIONS.reset(token)


STYLE: Any = {
    "axes.grid": True,
    "axes.prop_cycle": cycler(
        color=COLOURS, linestyle=["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-", "--"]
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
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


MARGIN = 0.1
"""Inches around what is drawn."""
PIXELS = 2400
"""Width of every PNG."""
SLIDE = (9.6, 5.4)
"""Inches of a figure for a slide."""
LARGER = 1.5
"""Factor of type, lines and markers on a slide."""
_TYPE = ("font.size", "legend.fontsize", "lines.linewidth", "lines.markersize")
_TYPE += ("axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize")


def points(size: float) -> float:
    """A size of type, larger on a slide.

    Args:
        size: in points.

    Returns:
        Points.
    """
    return size * LARGER if _OPTIONS.get().slide else size


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
    slide = _OPTIONS.get().slide
    with matplotlib.rc_context(STYLE | {name: points(STYLE.get(name, 8)) for name in _TYPE}):
        fig = Figure(figsize=SLIDE if slide else (WIDTHS[width], height * rows), layout="constrained")
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


UNSEEN = 16
"""The largest change of a channel, of 255, that a palette may make at a pixel; the largest are at edges of lines."""


def _compact(png: bytes) -> bytes:
    """The picture with a palette of its own 256 colours, a third of the size; unchanged where that could be seen."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    reduced = picture.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    changes = np.subtract(*(np.asarray(p, np.int16) for p in (picture, reduced.convert("RGB"))))
    kept = reduced if np.abs(changes).max() <= UNSEEN else picture
    written = io.BytesIO()
    kept.save(written, "PNG", optimize=True)
    return written.getvalue()


def _fix_layout(fig: Figure) -> None:
    """Lays out the figure once, so that legends of the figure stay where they are when a caption extends it."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    for legend in fig.legends:
        corner = legend.get_window_extent().transformed(fig.transFigure.inverted())
        legend.borderaxespad = 0
        legend.set_loc("lower left")
        legend.set_bbox_to_anchor((corner.x0, corner.y0), transform=fig.transFigure)


def save(
    fig: Figure,
    stem: Path | str,
    data: Mapping[str, Any],
    *,
    caption: str,
    configuration: Mapping[str, Any] | None = None,
    title: str = "",
) -> list[Path]:
    """Writes a figure with title and caption as `stem.svg` and `stem.png`, and its data as `stem.json`.

    Args:
        fig: the figure, made by `figure` and inside its `with` block.
        stem: path without a suffix; its folder is created if it is missing.
        data: the numbers in the figure. Arrays become lists; numbers that are not finite become null.
        caption: one or two sentences that explain the figure without other text; drawn unless `options` say no.
        configuration: settings, seeds and sizes of the data.
        title: the finding, computed from the data; drawn above the panels.

    Returns:
        The three paths.
    """
    stem = Path(stem)
    caption = f"{caption} {_OPTIONS.get().source}".strip()
    stem.parent.mkdir(parents=True, exist_ok=True)
    current = {"lngeom": __version__} | {name: metadata.version(name) for name in ("jax", "numpy", "matplotlib")}
    document = {
        **({"title": title} if title else {}),
        "caption": caption,
        "configuration": _plain(configuration or {}),
        "versions": dict(_OPTIONS.get().versions or current),
        "data": _plain(data),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    about = {"Title": title or stem.name, "Description": caption}
    if title:
        longest = int(TITLE_CHARACTERS * fig.get_figwidth() * 9 / points(9))
        wrapped = "\n".join(textwrap.wrap(title.replace(" %", "\N{NO-BREAK SPACE}%"), longest))
        fig.suptitle(wrapped, x=0.01, ha="left", size=points(9), weight="bold", color=INK, parse_math=False)
    _fix_layout(fig)
    slide = _OPTIONS.get().slide
    if _OPTIONS.get().captions and not slide:
        lines = "\n".join(
            textwrap.wrap(caption.replace(" %", "\N{NO-BREAK SPACE}%"), int(CHARACTERS * fig.get_figwidth()))
        )
        fig.text(0, -0.06 / fig.get_figheight(), lines, va="top", size=7, color=INK, parse_math=False)
    drawn = Bbox.from_bounds(0, 0, *SLIDE) if slide else fig.get_tightbbox().padded(MARGIN)
    shared: dict[str, Any] = {"bbox_inches": drawn}
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=PIXELS / drawn.width, **shared)
    return [
        _write(
            stem.with_suffix(".svg"),
            lambda f: fig.savefig(f, format="svg", metadata=about | {"Date": None, "Creator": "lngeom"}, **shared),
        ),
        _write(stem.with_suffix(".png"), lambda f: f.write(_compact(png.getvalue()))),
        _write(stem.with_suffix(".json"), lambda f: f.write(text.encode())),
    ]
