r"""A norm in its place in a model: the layout of its units, what its statistics are taken over, and its share of ε.

All of it is measured on the layer as a function. One value of a parameter that belongs to a unit moves the outputs of
that unit alone, which shows the axis of the units. One value of the inputs moves the outputs that share its statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lngeom.checks._orbits import Data
from lngeom.checks.recorded import Layer
from lngeom.checks.subject import Subject, deviation
from lngeom.normalizers import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from lngeom.normalizers.methods import GROUPS
from lngeom.normalizers.spatial import PooledLayerNorm, SpatialGroupNorm

SAMPLES, SIDE = 6, 2
"""Samples, and positions along each axis, on which a norm is examined."""

FAR = 2.0**20
"""Scale of inputs at which no ε matters."""

ROWS = {
    "ln": LayerNorm,
    "rms": RMSNorm,
    "gn": GroupNorm,
    "gn_spatial": SpatialGroupNorm,
    "in": InstanceNorm,
    "bn": BatchNorm,
    "ln_pooled": PooledLayerNorm,
}
"""Rows of the invariance table that a layer of summed inputs may be, with their formulas."""


class Coupling(NamedTuple):
    """What the statistics of a value are taken over.

    Attributes:
        samples: other samples.
        positions: other positions of the sample.
        units: number of units, itself included.
    """

    samples: bool
    positions: bool
    units: int


@dataclass(frozen=True)
class Placed:
    """A norm in its place.

    Attributes:
        layer: the layer.
        axes: axes of its inputs that are units, in order; the first axis is that of samples.
        measured: whether a parameter showed the axes; otherwise they are the convention of its library.
        training: whether it is examined in training mode.
    """

    layer: Layer
    axes: tuple[int, ...]
    measured: bool
    training: bool = True

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

    @cached_property
    def small(self) -> np.ndarray:
        """Few samples and positions of the inputs, in their layout, in float64; more where the layer requires them."""
        inputs = np.asarray(self.layer.inputs, np.float64)
        fewer = inputs[:SAMPLES]
        side = 2 * SIDE if len(self.positions) == 1 else SIDE
        cropped = fewer[tuple(slice(side) if i in self.positions else slice(None) for i in range(fewer.ndim))]
        for given in (cropped, fewer):
            try:
                if self.layer.run(given, dtype="float64", training=self.training).shape == given.shape:
                    return given
            except Exception:
                continue
        return inputs

    def __call__(self, rows: Float[np.ndarray, "N *T H"], dtype: Any = "float64", **options: Any) -> np.ndarray:
        """Outputs of the layer, in rows, for inputs in rows with the positions of `small`."""
        options = {"training": self.training} | options
        inputs = self.back(rows, self.small)
        return self.rows(self.layer.run(inputs, dtype=dtype, **options))

    @cached_property
    def units(self) -> int:
        """H."""
        return self.rows(self.small).shape[-1]

    @cached_property
    def coupling(self) -> Coupling:
        """What moves with one value of the inputs."""
        start = self.rows(self.small)
        return self._coupled(start, self(start), lambda rows: self(rows))

    def evaluation_leak(self) -> float:
        """Largest change of a sample's outputs in evaluation mode when other samples are replaced."""
        start = self.rows(self.small)
        other = np.concatenate([start[:1], 3 * start[1:][::-1] + 1])
        before, after = (self(rows, training=False)[:1] for rows in (start, other))
        return deviation(before, after)

    def _coupled(self, start: np.ndarray, before: np.ndarray, function: Any) -> Coupling:
        spread = float(np.std(start)) or 1.0
        found = Coupling(False, False, 1)
        for place in self._places(start):
            moved = start.copy()
            moved[place] += (1 if moved[place] >= np.mean(start) else -1) * spread
            after = function(moved)
            scale = max(np.max(np.abs(before)), np.max(np.abs(after)), 1e-300)
            changed = ~(np.abs(after - before) <= 1e-6 * scale)
            sample, unit = place[0], place[-1]
            samples = np.delete(changed, sample, 0).any()
            here = changed[sample].reshape(-1, changed.shape[-1])
            at = place[1] if start.ndim == 3 else 0
            found = Coupling(
                found.samples or bool(samples),
                found.positions or bool(np.delete(here, at, 0)[:, unit].any()),
                max(found.units, int(here[at].sum()) or 1),
            )
        return found

    @staticmethod
    def _places(start: np.ndarray) -> list[tuple[int, ...]]:
        last = tuple(n - 1 for n in start.shape)
        return [(0,) * start.ndim, last]

    @cached_property
    def groups(self) -> int:
        """Number of groups of units, where they divide the units."""
        size = self.coupling.units
        return self.units // size if self.units % size == 0 else 1

    @cached_property
    def centred(self) -> bool:
        """Whether a constant added to all values that share statistics leaves the outputs."""
        start = self.rows(self.small)
        return deviation(self(start), self(start + float(np.std(start)))) <= 1e-6

    @cached_property
    def row(self) -> str | None:
        """Row of the invariance table that its statistics are those of; None where there is none."""
        samples, positions, size = self.coupling
        if samples:
            return "bn" if size == 1 or self.units == 1 else None
        if size == 1 and not positions:
            return "ln" if self.units == 1 and self.centred else "bn_evaluation"
        if positions:
            whole = "ln_pooled" if self.groups == 1 else "gn_spatial"
            return ("in" if size == 1 else whole) if self.centred else None
        if size < self.units:
            return "gn" if self.centred else None
        return "ln" if self.centred else "rms"

    @cached_property
    def expected(self) -> str | None:
        """Row that the name of its class promises for these inputs; that of its statistics where it promises none."""
        declared = self.layer.declared
        if declared == "ln" and self.row == "ln_pooled":
            return self.row
        if declared == "gn":
            return "gn_spatial" if self.positions else "gn"
        return declared or self.row

    def reference(self, row: str, data: Data) -> np.ndarray | None:
        """Normalized values by the formula of a row, without ε, gain and bias; None where it has none of this kind."""
        if row not in ROWS:
            return None
        grouped = row in {"gn", "gn_spatial"}
        normalizer = ROWS[row](groups=self.groups) if grouped else ROWS[row]()
        import jax.numpy as jnp

        from lngeom.checks.subject import as_elsewhere

        with as_elsewhere():
            return np.asarray(normalizer(*(jnp.asarray(v, jnp.float64) for v in data)))

    @cached_property
    def data(self) -> Data:
        """The inputs of `small` as a product X Wᵀ; an orthogonal factor keeps both from being special."""
        rows = self.rows(self.small)
        flat = rows.reshape(-1, rows.shape[-1])
        size = min(flat.shape)
        factor = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
        if flat.shape[1] == size:
            return Data(factor, rows @ factor)
        return Data(flat.T @ factor, factor.reshape(*rows.shape[:-1], size))

    def subject(self) -> Subject:
        """The layer as a function of summed inputs, for the suite of checks."""
        place = self.layer.path or self.layer.kind
        rows = self.rows(self.small)

        def function(summed: np.ndarray) -> np.ndarray:
            return self(summed, dtype=summed.dtype)

        return Subject(
            place,
            function,
            takes_weights=False,
            units=self.units,
            positions=rows.shape[1] if rows.ndim == 3 else None,
            groups=self.groups if self.expected in {"gn", "gn_spatial"} else GROUPS,
            eps=self.layer.eps,
        )

    def odd(self, rows: np.ndarray, **options: Any) -> np.ndarray:
        """Outputs without what does not change its sign with the inputs, such as a bias: g·n."""
        return (self(rows, **options) - self(-rows, **options)) / 2

    @cached_property
    def normalized(self) -> np.ndarray:
        """Its own normalized values n far from ε, for the inputs of `small`: outputs without bias, per unit of gain.

        The gain is the parameter that multiplies the odd part of the outputs; the change with it is n, whatever else
        the layer adds to it, such as 1.
        """
        rows = FAR * self.rows(self.small)
        base = self.odd(rows)
        for name, value in self.layer.parameters.items():
            moved = self.odd(rows, parameters={name: value + np.asarray(1, value.dtype)})
            change = moved - base
            if np.max(np.abs(change)) > 1e-6 * np.max(np.abs(base)):
                return change
        return base

    @cached_property
    def shares(self) -> np.ndarray:
        """Share of ε in the denominator, 1 − (g n)²/(g n∞)², of each set of values with common statistics."""
        full = replace(self)
        full.__dict__["small"] = np.asarray(self.layer.inputs, np.float64)
        rows = self.rows(full.small)
        near, far = full.odd(rows), full.odd(FAR * rows)
        if rows.ndim == 2:
            near, far = near[:, None], far[:, None]
        near, far = (v.reshape(*v.shape[:2], self.groups, -1) for v in (near, far))
        samples, positions, size = self.coupling
        over = (*((0,) if samples else ()), *((1,) if positions else ()), *((3,) if size > 1 else ()))
        with np.errstate(all="ignore"):
            found = 1 - np.sum(near**2, over) / np.sum(far**2, over)
        return found[np.isfinite(found)]

    @property
    def share(self) -> float:
        """Median share of ε; NaN where it has no denominator of the data, or none was finite."""
        known = self.row not in {None, "bn_evaluation"} and self.shares.size
        return max(float(np.median(self.shares)), 0.0) if known else float("nan")


def place(layer: Layer, training: bool = True) -> Placed:
    """Finds the axes of the units of a norm.

    Args:
        layer: the norm.
        training: whether to examine it in training mode.

    Returns:
        The norm in its place.

    Raises:
        ValueError: if its inputs have no axis of samples, or it cannot be called on them again.
    """
    if layer.inputs.ndim < 2:
        raise ValueError(f"its inputs have shape {list(layer.inputs.shape)}: give X with one sample a row")
    inputs = np.asarray(layer.inputs[:SAMPLES], np.float64)
    try:
        start = layer.run(inputs, dtype="float64", training=training)
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    if start.shape != inputs.shape:
        raise ValueError(f"inputs {list(inputs.shape)} give outputs {list(start.shape)}: units cannot be matched")
    found = _axes(layer, inputs, start, training)
    return Placed(layer, found or _conventional(layer), found is not None, training)


def _axes(layer: Layer, inputs: np.ndarray, start: np.ndarray, training: bool) -> tuple[int, ...] | None:
    """Axes along which one value of a parameter reaches only one place."""
    for name, value in _per_unit(layer.parameters).items():
        moved = value.astype(np.float64).copy()
        moved.reshape(-1)[0] += 1.0
        after = layer.run(inputs, dtype="float64", training=training, parameters={name: moved})
        changed = ~(np.abs(after - start) <= 1e-9 * max(np.max(np.abs(start)), 1e-300))
        if not changed.any():
            continue
        axes = tuple(
            i
            for i in range(1, inputs.ndim)
            if changed.any(tuple(j for j in range(inputs.ndim) if j != i)).sum() == 1 and inputs.shape[i] > 1
        )
        if axes and int(np.prod([inputs.shape[i] for i in axes])) == value.size:
            return axes
    return None


def _per_unit(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters of several values, biases first: their change shows where nothing else does."""
    several = {k: v for k, v in parameters.items() if v.size > 1}
    return dict(sorted(several.items(), key=lambda item: "b" not in item[0][:4] and "offset" not in item[0]))


def _conventional(layer: Layer) -> tuple[int, ...]:
    """The axes of the units by the convention of its library."""
    ndim = layer.inputs.ndim
    shape = getattr(layer.module, "normalized_shape", None) or getattr(layer.module, "shape", None)
    if layer.declared in {"ln", "rms"} and isinstance(shape, tuple) and len(shape) < ndim:
        return tuple(range(ndim - len(shape), ndim))
    axis = getattr(layer.module, "axis", None)
    if isinstance(axis, int) and layer.framework == "keras":
        return (axis % ndim,)
    first = layer.framework in {"torch", "equinox"} and layer.declared in {"bn", "in", "gn"}
    return (1,) if first else (ndim - 1,)
