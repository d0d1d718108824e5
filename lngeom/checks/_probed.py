"""A norm as a function on probes, in the mode that runs, with the digits with which it computes."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._core.draws import probe_generator
from lngeom.checks._reach import Reach
from lngeom.checks.recorded import Layer
from lngeom.checks.subject import deviation

SAMPLES, SIDE = 6, 2
"""Samples, and positions along each axis, on which a norm is examined."""

WIDE = 48
"""Positions where the axis of positions may be that of the units."""

PROBES = 6
"""Inputs to which gains and biases are fitted."""

FAR = 2.0**20
"""Scale of inputs at which no ε matters."""

LARGEST = 50_000
"""Numbers of the inputs that are looked at, unless one sample has more."""

UNITS = (2.0**-52, 2.0**-23, 2.0**-8)
"""Roundings with which a layer may compute: those of float64, float32 and bfloat16."""

TOLERANCES = dict(zip(UNITS, (1e-7, 1e-3, 0.2), strict=True))
"""Change of outputs, relative to their size, that counts as a difference, by the rounding of the computation."""

UNSTEADY = 1e-5
"""Change of outputs, relative to them, from which two calls with the same inputs differ."""

FILLS = (None, (0.0, 1.0), (1.0, 1.0), (0.0, 0.0))
"""Values for further inputs, with fractions and without: their own first, then those that leave a norm alone."""


@functools.lru_cache(maxsize=8)
def ordinary(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers without special values, as many arrays of a shape."""
    found = 0.5 + probe_generator().normal(size=(count, *shape))
    found.setflags(write=False)
    return found


def rounding_of(run: Callable[[np.ndarray], np.ndarray], base: np.ndarray, start: np.ndarray, dtype: str) -> float:
    """Rounding of a computation: the finest of `UNITS` at which its outputs follow its inputs smoothly.

    Args:
        run: the computation.
        base: inputs.
        start: outputs for them.
        dtype: in which it is run.

    Returns:
        The rounding, relative to the outputs.
    """
    direction = probe_generator(1).uniform(-1, 1, base.shape) * np.max(np.abs(base))
    for unit, steps in zip(UNITS, ((2.0**-32, 2.0**-12), (2.0**-12, 2.0**-7)), strict=False):
        if unit == UNITS[0] and dtype != "float64":
            continue
        slopes = [(run(base + h * direction) - start) / h for h in steps]
        largest = np.max(np.abs(slopes), initial=0.0)
        if np.all(np.abs(slopes[0] - slopes[1]) <= 0.05 * largest):
            return unit
    return UNITS[2]


@dataclass(frozen=True)
class Probed:
    """A norm on probes: numbers without special values, of the shape of its inputs.

    Attributes:
        layer: the layer.
        axes: axes of its inputs that are units, in order; the first axis is that of samples.
        measured: whether a parameter showed the axes; otherwise they are the convention of its library.
        training: whether it is examined in training mode.
        shape: shape of the probes, in the layout of the inputs.
        dtype: the widest in which it runs.
        changed: values of parameters in place of its own, where those hide all else.
        reached: where outputs move with one value, for probes of the shape of its own inputs.
    """

    layer: Layer
    axes: tuple[int, ...]
    measured: bool
    training: bool
    shape: tuple[int, ...]
    dtype: str = "float64"
    changed: Mapping[str, np.ndarray] = field(default_factory=dict)
    reached: Reach | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """Axes that are neither samples nor units."""
        return tuple(i for i in range(1, self.layer.inputs.ndim) if i not in self.axes)

    def rows(self, array: np.ndarray) -> Float[np.ndarray, "N *T H"]:
        """An array in the layout of the inputs with units last, and positions, where there are any, in one axis."""
        moved = np.transpose(array, (0, *self.positions, *self.axes))
        shape = (len(array), *([-1] if self.positions else []), int(np.prod([array.shape[i] for i in self.axes])))
        return moved.reshape(shape)

    def back(self, rows: Float[np.ndarray, "N *T H"], like: np.ndarray) -> np.ndarray:
        """The inverse of `rows`, for positions and units as in `like`."""
        order = (0, *self.positions, *self.axes)
        shape = [len(rows), *(like.shape[i] for i in order[1:])]
        return np.transpose(rows.reshape(shape), np.argsort(order))

    def run(self, inputs: np.ndarray, **options: Any) -> np.ndarray:
        """Outputs in the layout of the inputs, as float64; by default in its widest dtype and in the mode that runs."""
        options = {"training": self.training, "dtype": self.dtype} | options
        options["parameters"] = {**self.changed, **options.get("parameters", {})}
        return np.asarray(self.layer.run(inputs, **options), np.float64)

    def __call__(self, rows: Float[np.ndarray, "N *T H"], **options: Any) -> np.ndarray:
        """Outputs of the layer, in rows, for inputs in rows with the positions of the probes."""
        return self.rows(self.run(self.back(rows, self.probe), **options))

    @property
    def probe(self) -> np.ndarray:
        """The first probe, in the layout of the inputs."""
        return self.probes[0]

    @cached_property
    def probes(self) -> np.ndarray:
        """Inputs of ordinary numbers."""
        return ordinary(PROBES, self.shape)

    @cached_property
    def size(self) -> float:
        """Root mean square of the layer's inputs, as far as they are finite; 1 where they are all zero."""
        values = np.asarray(self.layer.reaching(self.training), np.float64)
        values = values[np.isfinite(values)]
        return float(np.sqrt(np.mean(np.square(values)))) if np.any(values) else 1.0

    @cached_property
    def far(self) -> float:
        """The largest scale, up to `FAR`, at which outputs are finite, and no overflow inside makes them constant."""
        near = self.run(self.probe)
        for octaves in (20, 10, 5):
            outputs = self.run(2.0**octaves * self.probe)
            lost = not np.any(np.ptp(outputs, 0)) and np.any(np.ptp(near, 0))
            if np.all(np.isfinite(outputs)) and not lost:
                return 2.0**octaves
        return 1.0

    @cached_property
    def ordinary(self) -> np.ndarray:
        """Probes, in rows, of the size of the layer's inputs."""
        return self.size * self.rows(self.probe)

    @cached_property
    def units(self) -> int:
        """H."""
        return self.rows(self.probe).shape[-1]

    @cached_property
    def outputs(self) -> np.ndarray:
        """Outputs for probes at `far`."""
        return np.stack([self.run(self.far * x) for x in self.probes])

    @cached_property
    def unsteady(self) -> float:
        """Change of outputs between two calls with the same inputs; 0 where it is that of rounding."""
        change = deviation(self.outputs[0], self.run(self.far * self.probe))
        return change if UNSTEADY < change < math.inf else 0.0

    @cached_property
    def unit(self) -> float:
        """Rounding of the layer's own computation: the finest at which its outputs follow its inputs smoothly."""
        start = self.outputs[0]
        if self.dtype == "float64" and not np.any(start - start.mean()):
            return UNITS[0]
        return rounding_of(self.run, self.far * self.probe, start, self.dtype)

    @cached_property
    def shortened(self) -> float:
        """Rounding of a computation in a shorter dtype than those of its inputs and outputs; 0 where there is none.

        It shows in a quarter of the second differences of outputs along a line, which vanish but at kinks otherwise.
        """
        if self.unit != UNITS[2] or not self.normalizes:
            return 0.0
        base = self.size * self.probe
        direction = probe_generator(1).uniform(-1, 1, self.shape) * np.max(np.abs(base))
        known = max(float(jnp.finfo(v.dtype).eps) for v in (self.layer.inputs, self.layer.outputs))
        for step in 2.0 ** np.arange(-12, -6):  # at which float16 and bfloat16 round, statistics or outputs alone
            first, middle, last = (self.run(base + h * direction) for h in (0, step, 2 * step))
            size = np.sqrt(np.mean(np.square(middle)))
            bends = np.abs(first - 2 * middle + last)[np.abs(middle) > size / 10]
            rounding = float(np.quantile(bends, 0.75)) / size if size and bends.size else 0.0
            if rounding > max(step / 2, 4 * known):
                return rounding
        return 0.0

    @property
    def tolerance(self) -> float:
        """Change of outputs, relative to their size, that is a difference and no rounding."""
        return TOLERANCES[self.unit]

    @cached_property
    def constant(self) -> bool:
        """Whether its outputs do not depend on its inputs."""
        near = [self.run(self.size * x) for x in self.probes[:2]]
        return bool(deviation(*self.outputs[:2]) <= self.tolerance and deviation(*near) <= self.tolerance)

    @cached_property
    def normalizes(self) -> bool:
        """Whether large inputs can be doubled without a change of outputs that do move with the inputs.

        Functions that saturate do not move where they are invariant.
        """
        if self.constant or not np.all(np.isfinite(self.outputs)):
            return False
        base, start = self.far * self.probe, self.outputs[0]
        doubled = self.run(2 * base)
        if not deviation(start, doubled) <= max(self.tolerance, 1e-6):
            return False
        nearby = self.run(base + 0.02 * self.far * probe_generator(2).normal(size=self.shape))
        moved = np.abs(nearby - start) > 1e-4 * np.max(np.abs(start - start.mean()))
        return bool(np.mean(moved) > 0.2)

    @property
    def running(self) -> dict[str, np.ndarray]:
        """Running statistics: one value a unit."""
        found = self.layer.statistics.items()
        return {k: v for k, v in found if jnp.issubdtype(v.dtype, jnp.floating) and v.size == self.units}

    @cached_property
    def moving(self) -> dict[str, np.ndarray]:
        """Running statistics that a step in training mode moves; other arrays may be fixed gains or masks."""
        inputs = self.size * (3 * self.probe + 1)
        after = self.layer.step(inputs, self.layer.statistics, dtype=self.dtype, training=True)[1]
        return {k: v for k, v in self.running.items() if not np.array_equal(after[k], np.asarray(v, after[k].dtype))}

    @property
    def updated(self) -> bool:
        """Whether a step in training mode moves its running statistics."""
        return bool(self.moving)
