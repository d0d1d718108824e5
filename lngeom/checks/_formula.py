r"""The formula of a norm, found from its outputs: over which sets of values their mean and their scale are taken.

$$y = g\,n + b, \qquad n = \frac{x - \mathrm{E}_A[x]}{\sqrt{\mathrm{E}_B[(x - \mathrm{E}_B[x])^2]}}.$$

A and B divide the values into sets: all values along some axes, or along parts of an axis. Gain and bias of every place
are fitted over several inputs, so that nothing has to be known of parameters, units or further inputs. Outputs for one
more input decide.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lngeom._core.draws import probe_generator

SPLITS = 24
"""Largest number of ways to divide an axis that are tried."""


class Sets(NamedTuple):
    """A division of the values of an array into sets.

    Attributes:
        axes: axes along which all values are in one set.
        split: axis of which parts are in one set; None where there is none.
        parts: number of its parts.
        strided: whether a part has every `parts`-th value; otherwise it has consecutive ones.
        tiles: further axes of which parts are in one set: (axis, number of parts, whether they are strided).
    """

    axes: tuple[int, ...]
    split: int | None = None
    parts: int = 1
    strided: bool = False
    tiles: tuple[tuple[int, int, bool], ...] = ()

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Mean of each set, in the place of each of its values."""
        shape: list[int] = []
        pooled: list[int] = []
        for axis, size in enumerate(values.shape):
            parts, strided = self.divided.get(axis, (1, False))
            if axis in self.divided or axis in self.axes:
                pooled.append(len(shape) + (axis in self.divided and not strided))
            shape += [size // parts, parts] if strided else [parts, size // parts] if axis in self.divided else [size]
        found = values.reshape(shape).mean(tuple(pooled), keepdims=True)
        return np.broadcast_to(found, shape).reshape(values.shape)

    @property
    def divided(self) -> dict[int, tuple[int, bool]]:
        """Number of parts, and whether they are strided, by axis of which parts are in one set."""
        units = {} if self.split is None else {self.split: (self.parts, self.strided)}
        return units | {axis: (parts, strided) for axis, parts, strided in self.tiles}

    def over(self, axis: int) -> bool:
        """Whether a set has several values along an axis."""
        return axis in self.axes or axis in self.divided

    def size(self, shape: Sequence[int]) -> int:
        """Number of values in a set."""
        whole = int(np.prod([shape[a] for a in self.axes], initial=1))
        return whole * int(np.prod([shape[a] // parts for a, (parts, _) in self.divided.items()], initial=1))

    def said(self, shape: Sequence[int]) -> str:
        """The sets in words."""
        words = (
            []
            if not self.axes
            else [f"ax{'e' if len(self.axes) > 1 else 'i'}s {', '.join(map(str, sorted(self.axes)))}"]
        )
        for axis, (parts, strided) in self.divided.items():
            how = f"every {parts}th place" if strided else f"{shape[axis] // parts} neighbours"
            words.append(f"{how} of axis {axis}")
        return " and ".join(words)


class Formula(NamedTuple):
    """A norm's formula.

    Attributes:
        scale: sets of its scale.
        mean: sets of the mean that it subtracts; None where it subtracts none.
        central: whether its scale is that of values without their mean.
        power: p, where the scale is the mean of |x|ᵖ to the power 1/p.
    """

    scale: Sets
    mean: Sets | None = None
    central: bool = False
    power: float = 2.0

    @property
    def centred(self) -> bool:
        """Whether it subtracts the mean."""
        return self.mean is not None

    @property
    def usual(self) -> bool:
        """Whether mean and scale are those of one set: a centred norm, or one that subtracts no mean."""
        same = self.mean == self.scale if self.centred else True
        return same and self.central == self.centred and self.power == 2

    def normalized(self, values: np.ndarray) -> np.ndarray:
        """n; 0 where the scale is 0."""
        around = values - self.scale.mean(values) if self.central else values
        size = self.scale.mean(np.abs(around) ** self.power) ** (1 / self.power)
        shifted = values if self.mean is None else values - self.mean.mean(values)
        return np.divide(shifted, size, out=np.zeros_like(shifted), where=size > 0)

    def said(self, shape: Sequence[int]) -> str:
        """The formula in words."""
        scale = "root mean square" if self.power == 2 else f"mean of |x|^{self.power:g} to the power 1/{self.power:g}"
        scale = "standard deviation" if self.central and self.power == 2 else scale
        words = f"they are divided by the {scale} over {self.scale.said(shape)}"
        if self.mean is None:
            return f"{words}; no mean is subtracted"
        same = self.mean == self.scale
        return f"{words}, and the mean over {'the same' if same else self.mean.said(shape)} is subtracted"


def _subsets(axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, count)


def divisions(shape: Sequence[int]) -> Iterator[Sets]:
    """Divisions of an array of a shape: whole axes first, then consecutive parts of one axis, then strided ones."""
    axes = [a for a, size in enumerate(shape) if size > 1]
    yield from map(Sets, _subsets(axes))
    for strided in (False, True):
        for split in sorted(axes, key=lambda a: a == 0):
            others = [a for a in axes if a not in {0, split}]
            parts = [p for p in range(2, shape[split]) if shape[split] % p == 0][:SPLITS]
            if split == 0:
                kept = [tuple(a for a in others if a != unit) for unit in others] or [()]
            else:
                kept = [(), tuple(others), (0, *others)] if len(others) else [(), (0,)]
            for part, whole in itertools.product(parts, dict.fromkeys(kept)):
                yield Sets(whole, split, part, strided)


def formulas(shape: Sequence[int], first: Sequence[Formula] = ()) -> Iterator[Formula]:
    """Formulas to try: some first, then the usual ones, then those of mistakes."""
    yield from first
    known = list(divisions(shape))
    for sets in known:
        yield Formula(sets, sets, True)
        yield Formula(sets)
    whole = [sets for sets in known if sets.split is None]
    for sets in whole:
        yield Formula(sets, None, True)
        yield Formula(sets, sets, False)
        yield Formula(sets, sets, True, 1.0)
        yield Formula(sets, None, False, 1.0)
    for mean, scale in itertools.permutations(whole, 2):
        yield Formula(scale, mean, True)


class Fitted(NamedTuple):
    """Outputs as g·n + b for each place.

    Attributes:
        formula: the formula of n; None for n = x, a map of each value by itself.
        gain: g.
        bias: b.
        off: largest difference at each place, relative to how far its outputs move.
    """

    formula: Formula | None
    gain: np.ndarray
    bias: np.ndarray
    off: np.ndarray


def fitted(formula: Formula | None, inputs: np.ndarray, outputs: np.ndarray, unit: float) -> Fitted:
    """Gain and bias of each place for the n of a formula."""
    n = np.stack([x if formula is None else formula.normalized(x) for x in inputs])
    return fit(n, outputs, unit)._replace(formula=formula)


def fit(n: np.ndarray, outputs: np.ndarray, unit: float) -> Fitted:
    """Gain and bias of each place by least squares over inputs.

    Args:
        n: normalized values, [K ...].
        outputs: y, of the same shape.
        unit: rounding of the layer's computation, relative to its outputs.

    Returns:
        The fit, without a formula.
    """
    centre, middle = n.mean(0), outputs.mean(0)
    varied, moved = n - centre, outputs - middle
    variance = np.mean(varied**2, 0)
    varies = variance > 1e-18 * max(float(np.max(variance, initial=0)), 1e-300)
    gain = np.divide(np.mean(varied * moved, 0), variance, out=np.zeros_like(variance), where=varies)
    size = np.maximum(np.sqrt(np.mean(moved**2, 0)), 1e3 * unit * np.max(np.abs(outputs), 0))
    off = np.max(np.abs(moved - gain * varied), 0)
    return Fitted(None, gain, middle - gain * centre, np.divide(off, size, out=np.zeros_like(off), where=size > 0))


def explain(
    inputs: np.ndarray, outputs: np.ndarray, tolerance: float, unit: float, tried: Iterable[Formula]
) -> Fitted | None:
    """The formula that gives the outputs, up to a gain and a bias of each place.

    Args:
        inputs: x, [K ...].
        outputs: y, of the same shape.
        tolerance: largest difference, relative to how far outputs move.
        unit: rounding of the layer's computation.
        tried: formulas to try, in this order.

    Returns:
        The fit of the first formula that does; None where none does.
    """
    few = slice(0, 3)  # a formula that fails on three inputs is dropped before it is tried on all
    for formula in tried:
        if np.max(fitted(formula, inputs[few], outputs[few], unit).off) > tolerance:
            continue
        found = fitted(formula, inputs, outputs, unit)
        if np.max(found.off) <= tolerance:
            return found
    return None


def follows(
    function: Callable[[np.ndarray], np.ndarray], shape: Sequence[int], tolerance: float, first: Sequence[Formula] = ()
) -> Formula | None:
    """The formula of the n of which outputs are a function, value by value: a norm with a further step after it.

    Outputs stay where x is replaced by n, and those of one place of each set where the other values of the set are
    replaced by others of the same mean and scale.

    Args:
        function: the layer, on inputs so large that no ε matters.
        shape: of its inputs.
        tolerance: largest change of outputs, relative to them.
        first: formulas to try before those over whole axes.

    Returns:
        The formula; None where there is none.
    """
    inputs = 0.5 + probe_generator(4).normal(size=shape)
    outputs = function(inputs)
    size = tolerance * np.max(np.abs(outputs))
    whole = [sets for sets in divisions(shape) if sets.split is None]
    usual = [f for sets in whole for f in (Formula(sets, sets, True), Formula(sets))]
    for formula in (*first, *usual):
        n = formula.normalized(inputs)
        if not np.max(np.abs(function(n) - outputs)) <= size:
            continue
        if all(np.max(np.abs(function(v) - outputs)[kept], initial=0.0) <= size for v, kept in _replaced(formula, n)):
            return formula
    return None


def _replaced(formula: Formula, n: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Other normalized values with one value of each set kept, and where these are."""
    labels = formula.scale.mean(np.arange(n.size, dtype=float).reshape(n.shape)).ravel()
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rng = probe_generator(5)
    for place in (0, -1):
        moved, kept = n.copy().ravel(), np.zeros(n.size, bool)
        for own in members:
            if len(own) < 4:
                continue
            one, rest = own[place], np.delete(own, place)
            value, drawn = moved[one], rng.normal(size=len(rest))
            shift = -value / len(rest) if formula.centred else 0.0
            drawn -= drawn.mean() if formula.centred else 0.0
            square = len(own) - value**2 - len(rest) * shift**2
            if square > 0:
                moved[rest] = shift + drawn * np.sqrt(square / np.sum(drawn**2))
                kept[one] = True
        yield moved.reshape(n.shape), kept.reshape(n.shape)


def padded(formula: Formula, values: np.ndarray, axis: int, length: int) -> Iterator[np.ndarray]:
    """The n of a formula whose sums run over an axis that was filled up with zeros: in all sums, and after the mean."""
    size = values.shape[axis]
    widths = [(0, length - size if a == axis else 0) for a in range(values.ndim)]
    whole = np.pad(values, widths)
    yield np.take(formula.normalized(whole), np.arange(size), axis)
    if formula.mean is not None:
        mean = formula.mean.mean(values)
        around = np.where(np.pad(np.ones(values.shape), widths) > 0, whole, 0) - np.pad(mean, widths, mode="edge")
        scale = np.sqrt(Sets(formula.scale.axes).mean(around**2))
        yield (values - mean) / np.take(scale, np.arange(size), axis)
