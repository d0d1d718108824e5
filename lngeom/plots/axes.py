"""Axes in one style: logarithmic scales with a band for zeros, ticks as plain numbers, one legend, equal limits."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator

from lngeom.plots.style import GUIDE, PALE, points

BAND = 0.13
"""Height of the band for zeros, as a fraction of the axis above it."""
ZERO = "zeros"
"""The `gid` of a band's patch."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, toward: Callable[[float], float] = round) -> str:
    """A number with two digits, or one if it is very small or large: 0, 0.85, 12, 4·10⁻¹⁴.

    Args:
        value: the number.
        toward: how it is rounded: `math.ceil` for an upper bound, `math.floor` for a lower one.

    Returns:
        Its text.
    """
    if value == 0:
        return "0"
    plain = 1e-2 <= abs(value) < 1e4
    unit = math.floor(math.log10(abs(value))) - plain
    digits = value / 10.0**unit
    digits = round(digits) if math.isclose(digits, round(digits), rel_tol=1e-9) else toward(digits)
    if plain:
        return f"{float(f'{digits}e{unit}'):g}".replace("-", "−")
    mantissa, exponent = f"{float(f'{digits}e{unit}'):.0e}".split("e")
    factor = "" if mantissa == "1" else f"{mantissa}·"
    return f"{factor}10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")


def span(values: Iterable[float], text: Callable[[float], str] = number) -> str:
    """The range of numbers: "3–5", "−1 to 2" with signs, or "3" where smallest and largest read the same.

    Args:
        values: the numbers.
        text: gives the text of a number.

    Returns:
        The text.
    """
    found = list(values)
    low, high = text(min(found)), text(max(found))
    if low == high:
        return low
    between = " to " if re.search("^[-−+]", low + "\n" + high, re.MULTILINE) else "–"
    return f"{re.sub(' %$', '', low)}{between}{high}"


def plain_ticks(axis: Any, values: Iterable[float]) -> None:
    """Ticks at these values, as plain numbers.

    Args:
        axis: an `XAxis` or `YAxis`.
        values: where the ticks are.
    """
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_scale(
    axes: Any, values: Any, *, along: str = "y", below: float = 0.0, rows: int = 1
) -> Callable[..., np.ndarray]:
    """Makes axes logarithmic, with a band "0" at their lower end where values are zero.

    The band has no scale. Its rows tell series apart that are zero at the same places.

    Args:
        axes: one or more axes; those that share the scale are passed together.
        values: all that is drawn on them; NaN is left out.
        along: "x" or "y".
        below: values up to this count as zero.
        rows: of the band.

    Returns:
        A function from values and a row of the band, 0 by default, to the coordinates to draw them at.

    Raises:
        ValueError: if no value is positive, or one is negative.
    """
    drawn = np.asarray(values, float).reshape(-1)
    drawn = drawn[np.isfinite(drawn)]
    if not (drawn > below).any() or (drawn < 0).any():
        raise ValueError("a logarithmic axis needs values that are not negative, and a positive one")
    low, high = drawn[drawn > below].min(), drawn.max()
    margin = 1.1 * (high / low) ** 0.03
    low, high = low / margin, high * margin
    length = np.log10(high / low)
    height = BAND * length * (1 + 0.4 * (rows - 1))
    bottom = low / 10**height if (drawn <= below).any() else low
    centres = low / 10 ** (height * (np.arange(rows) + 0.5) / rows)
    middle = np.sqrt(bottom * low)
    ticks = _ticks(low, high)
    for ax in np.ravel(axes):
        scale = getattr(ax, f"{along}axis")
        getattr(ax, f"set_{along}scale")("log")
        getattr(ax, f"set_{along}lim")(bottom, high)
        labels = [_power(t) if length > 2 else f"{t:g}" for t in ticks]
        if bottom < low:
            area = ax.axhspan if along == "y" else ax.axvspan
            area(bottom, low, color=PALE, linewidth=0, zorder=0, gid=ZERO)
        zero = [middle] if bottom < low else []
        scale.set_major_locator(FixedLocator([*zero, *ticks]))
        scale.set_major_formatter(FixedFormatter([*("0" for _ in zero), *labels]))
        minor = np.outer(10.0 ** np.arange(np.floor(np.log10(low)), np.log10(high)), np.arange(2, 10)).ravel()
        scale.set_minor_locator(FixedLocator([t for t in minor if low <= t <= high and length <= 5]))
        scale.set_minor_formatter(FuncFormatter(lambda *_: ""))

    def place(some: Any, row: int = 0) -> np.ndarray:
        at = np.asarray(some, float)
        return np.where(at <= below, centres[row], at)

    return place


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten in a range, or where these are few, 1, 2 and 5 times them."""
    first, last = np.floor(np.log10(low)), np.ceil(np.log10(high))
    stride = max(1, int(np.ceil((last - first) / 8)))
    last_digits = (1,) if np.log10(high / low) > 2 else (1, 2, 5) if np.log10(high / low) > 0.5 else range(1, 10)
    exponents = np.arange(np.ceil(first / stride) * stride, last + 1, stride)
    return [t for e in exponents for d in last_digits if low <= (t := float(f"{d}e{int(e)}")) <= high]


def _power(value: float) -> str:
    exponent = round(np.log10(value))
    return f"{value:g}" if 0 <= exponent <= 1 else f"$10^{{{exponent}}}$"


def guide(axis: Any, x: Any, y: Any, label: str = "", **style: Any) -> None:
    """A thin grey line to compare with, with its label at its right end.

    Args:
        axis: the axes.
        x: its coordinates.
        y: its coordinates.
        label: drawn beside its end.
        **style: of the line.
    """
    axis.plot(x, y, **({"color": GUIDE, "linewidth": 0.9, "linestyle": "-", "marker": "", "zorder": 1} | style))
    if label:
        place = {"textcoords": "offset points", "xytext": (6, 0), "va": "center", "fontsize": points(7)}
        axis.annotate(label, (x[-1], y[-1]), color=GUIDE, annotation_clip=False, **place)


def common_legend(fig: Figure, axes: Iterable[Any], columns: int = 6) -> None:
    """One legend below all panels, of all labels in them.

    Args:
        fig: the figure.
        axes: its panels.
        columns: of the legend.
    """
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    legend_below(fig, list(entries.values()), list(entries), columns)


def legend_below(fig: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int = 6) -> None:
    """A legend below all panels, in fewer columns where it would be wider than the figure.

    Args:
        fig: the figure.
        handles: what is explained.
        labels: by what.
        columns: of the legend, at most.
    """
    count, rows = min(len(labels), columns), 1
    while True:
        legend = fig.legend(handles, labels, loc="outside lower center", ncols=count)
        if count <= 1 or legend.get_window_extent().width <= fig.bbox.width:
            return
        legend.remove()
        while -(-len(labels) // rows) >= count:
            rows += 1
        count = -(-len(labels) // rows)


def equal_limits(axes: Sequence[Any]) -> None:
    """Gives panels the same vertical limits, which hold all that is drawn in them.

    Args:
        axes: the panels.
    """
    lows, highs = zip(*(axis.get_ylim() for axis in axes), strict=True)
    for axis in axes:
        axis.set_ylim(min(lows), max(highs))
