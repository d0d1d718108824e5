r"""Data and transformations of few bits. They are exact in every dtype, so that any deviation comes from the layer.

A drawn transformation which only scales, or only shifts, generates a one-parameter group: its orbit
$\delta \mapsto \delta^{p} \odot Y$ or $c \mapsto Y + c\,t$ serves to measure the range of an invariance.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._core.draws import probe_generator
from lngeom._core.programs import QUICKLY
from lngeom._core.types import GLMParameters
from lngeom.checks.subject import UNITS, Subject, as_elsewhere
from lngeom.methods.transformations.actions import AffineAction, Column, Transformation
from lngeom.methods.transformations.matrices import MatrixGroup

LARGEST = 58
"""Scales run from 3·2^-58 to 3·2^58, about 1e-17 to 1e18."""


class Data(NamedTuple):
    """Weights and inputs."""

    weights: Float[np.ndarray, "H D"]
    inputs: Float[np.ndarray, "N *T D"]


def example(
    subject: Subject, *, samples: int = 7, features: int = 5, units: int | None = None, grid: int = 2, seed: int = 0
) -> Data:
    """Random weights and inputs of a shape the subject takes, between -2 and 2.

    Args:
        subject: the layer.
        samples: N.
        features: D.
        units: H where the layer takes any; by default `UNITS`.
        grid: numbers are multiples of 1/grid.
        seed: of the draw.

    Returns:
        W and X, without a zero row or column.
    """
    rng = probe_generator(seed)
    rows = subject.units or units or -(-UNITS // subject.groups) * subject.groups
    features = rows if subject.square else features
    shape = (samples, *([subject.positions] if subject.positions else []), features)
    while True:
        data = Data(*(rng.integers(-2 * grid, 2 * grid + 1, s) / grid for s in ((rows, features), shape)))
        if all(np.any(data.weights, axis).all() for axis in (0, 1)) and np.any(data.inputs, -1).all():
            return data


class Move(NamedTuple):
    """A change of the data, and the expected change of the outputs.

    Attributes:
        apply: the change of W and X.
        expected: the expected change of the outputs.
        rows: samples whose outputs count; None for all.
        condition: amplification of the data's rounding.
        matrix: Q of W ↦ QW, by which outputs should be multiplied too; or A of (W, x) ↦ (WA⁻¹, Ax).
        acts_on: "units" where the matrix is Q, "inputs" where it is A.
        transformation: the member of a column's group, where the move is one.
        simpler: changes of the same kind that are easier to read.
    """

    apply: Callable[[Data], Data]
    expected: Callable[[np.ndarray], np.ndarray] = lambda outputs: outputs
    rows: tuple[int, ...] | None = None
    condition: float = 1.0
    matrix: np.ndarray | None = None
    acts_on: str = ""
    transformation: Transformation | None = None
    simpler: Callable[[], Iterable["Move"]] = tuple


def by(transformation: Transformation, simpler: Callable[[], Iterable[Move]] = tuple) -> Move:
    """The move by a transformation, in float64, under which outputs should stay."""

    def apply(data: Data) -> Data:
        vector = np.ones(len(data.weights))
        with np.errstate(over="ignore"):
            params, inputs = transformation(GLMParameters(data.weights, 0 * vector, vector), data.inputs)  # type: ignore[arg-type]
        return Data(np.asarray(params.weights), np.asarray(inputs))

    return Move(apply, transformation=transformation, simpler=simpler)


@functools.cache
def _draw_matrix(group: MatrixGroup, size: int) -> Callable:
    """The draw as one program: compiling each of its operations by itself takes ten times as long."""
    return jax.jit(lambda key: group.draw(key, size, jnp.float64), compiler_options=QUICKLY)


@functools.lru_cache(maxsize=256)
def _matrix(group: MatrixGroup, size: int, seed: int) -> np.ndarray:
    with as_elsewhere():
        return np.asarray(_draw_matrix(group, size)(jax.random.key(seed)))


def by_matrix(group: MatrixGroup, matrix: np.ndarray) -> Move:
    """The move by a matrix that mixes units, and then outputs too, or inputs."""

    def apply(data: Data) -> Data:
        if group.acts_on == "units":
            return Data(matrix @ data.weights, data.inputs)
        return Data(np.linalg.solve(matrix.T, data.weights.T).T, data.inputs @ matrix.T)

    condition = float(np.linalg.cond(matrix))
    if group.acts_on == "inputs":
        return Move(apply, condition=condition, matrix=matrix, acts_on=group.acts_on)
    expected = lambda outputs: outputs @ matrix.T  # noqa: E731
    return Move(apply, expected, condition=condition, matrix=matrix, acts_on=group.acts_on)


def draw(column: Column | MatrixGroup, data: Data, seed: int) -> Move:
    """A member of a column's group, its elementwise actions rounded to a few bits; or of a group of matrices."""
    if isinstance(column, MatrixGroup):
        return by_matrix(column, _matrix(column, data.weights.shape[0 if column.acts_on == "units" else 1], seed))
    key, vector = jax.random.key(seed), np.ones(len(data.weights))
    with as_elsewhere():
        weights, bias, gain, inputs = (
            np.asarray(v, np.float64) for v in (data.weights, 0 * vector, vector, data.inputs)
        )
        params = GLMParameters(weights, bias, gain)  # type: ignore[arg-type]
        drawn = column.draw(key, params, inputs)  # type: ignore[arg-type]

    def few_bits(node: Any) -> Any:
        if not isinstance(node, AffineAction):
            return np.asarray(node) if isinstance(node, jax.Array) else node
        scale, shift = np.asarray(node.scale, np.float64), np.asarray(node.shift, np.float64)
        mantissa, exponent = np.frexp(scale)
        unit = min(0.5, np.ldexp(0.25, np.frexp(np.max(np.abs(shift)))[1]))  # finer for small data: no shift becomes 0
        return AffineAction(np.ldexp(np.round(mantissa * 4) / 4, exponent), np.round(shift / unit) * unit)  # type: ignore[arg-type]

    return by(jax.tree.map(few_bits, drawn, is_leaf=lambda node: isinstance(node, AffineAction)))


@dataclass(frozen=True)
class Orbit:
    """The one-parameter group through a transformation which only scales (by positive factors) or only shifts.

    Attributes:
        transformation: where the parameter is that of the draw.
        scales: whether it scales; otherwise it shifts.
        size: magnitude of the draw: its largest factor, or its largest shift.
    """

    transformation: Transformation
    scales: bool
    size: float

    @property
    def uniform(self) -> bool:
        """Whether all that is scaled is scaled by the same factor."""
        actions = (self.transformation.weights, self.transformation.inputs)
        factors = np.concatenate([np.ravel(a.scale) for a in actions])
        return self.scales and len(set(factors[factors != 1])) == 1

    def at(self, magnitude: float) -> Move:
        """The member of this magnitude: a factor δ, or a largest shift."""

        def action(node: AffineAction) -> AffineAction:
            if self.scales:
                power = np.log(node.scale) / np.log(self.size)
                return AffineAction(np.where(power == 1, magnitude, magnitude**power), node.shift)  # type: ignore[arg-type]
            return AffineAction(node.scale, node.shift * (magnitude / self.size))

        return by(jax.tree.map(action, self.transformation, is_leaf=lambda node: isinstance(node, AffineAction)))


def orbit(move: Move) -> Orbit | None:
    """The orbit of a move; None where it does neither only scale nor only shift."""
    transformation = move.transformation
    if transformation is None:
        return None
    actions = [a for a in (transformation.weights, transformation.inputs) if isinstance(a, AffineAction)]
    others = [transformation.gain, transformation.bias]
    if len(actions) < 2 or not all(_trivial(a) for a in others):
        return None
    factors = np.concatenate([np.ravel(a.scale) for a in actions])
    shifts = np.concatenate([np.ravel(a.shift) for a in actions])
    scales, shifted = np.any(factors != 1), np.any(shifts != 0)
    if scales == shifted or np.any(factors <= 0):
        return None
    if shifted:
        return Orbit(transformation, False, float(np.max(np.abs(shifts))))
    return Orbit(transformation, True, float(factors[np.argmax(np.abs(np.log(factors)))]))


def _trivial(action: Any) -> bool:
    return isinstance(action, AffineAction) and bool(np.all(action.scale == 1) and np.all(action.shift == 0))


class Point(NamedTuple):
    """A place on an orbit.

    Attributes:
        magnitude: the factor δ; or the largest shift, in standard deviations of what is shifted.
        condition: largest summed input over their spread, κ.
        data: W and X there.
    """

    magnitude: float
    condition: float
    data: Data


def walk(along: Orbit, data: Data, dtype: jax.typing.DTypeLike, step: int = 2) -> Iterator[Point]:
    """Points on an orbit, from one end to the other, within the range of the dtype.

    Scales are 3·2^k, for every `step`-th k up to `LARGEST`, and 1; shifts double until the data lose bits.

    Args:
        along: the orbit.
        data: start of the orbit.
        dtype: dtype that must hold the data exactly.
        step: spacing of k for scales.

    Yields:
        The places.
    """
    info = jnp.finfo(dtype)
    if along.scales:
        top = min(LARGEST, int(info.maxexp) - 8, -int(info.minexp) - 6)
        top -= top % step
        magnitudes = [float(np.ldexp(3.0, k)) for k in range(-top, top + 1, step)]
        unit = 1.0
    else:
        magnitudes = [float(np.ldexp(along.size, k)) for k in range(-2, info.nmant + 2)]
        shifted = data.weights if not _trivial(along.transformation.weights) else data.inputs
        unit = float(np.std(shifted))
    for magnitude in magnitudes:
        moved = along.at(magnitude).apply(data)
        if not along.scales and not is_exact(moved, dtype):
            return
        yield Point(magnitude / unit, condition(moved), moved)


def is_exact(data: Data, dtype: jax.typing.DTypeLike) -> bool:
    """Whether a dtype holds weights, inputs and summed inputs without rounding."""
    summed = data.inputs @ data.weights.T
    kept = (np.array_equal(v.astype(jnp.dtype(dtype)).astype(np.float64), v) for v in (*data, summed))
    return all(kept)


def condition(data: Data) -> float:
    r"""$\kappa$: the largest summed input over their least spread, along units or along samples."""
    summed = data.inputs @ data.weights.T
    spreads = [np.std(summed, -1).min(), np.std(summed, tuple(range(summed.ndim - 1))).min()]
    spread = min(s for s in (*spreads, np.std(summed)) if s > 0) if np.std(summed) > 0 else np.nan
    return float(np.max(np.abs(summed)) / spread)
