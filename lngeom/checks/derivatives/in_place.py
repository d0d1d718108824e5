"""Derivatives of a norm in its place in a model: with its own weights, and at inputs that reach it there."""

import math
import sys
from collections.abc import Collection
from typing import Any

import numpy as np

from lngeom.checks._probed import UNITS
from lngeom.checks.derivatives.diagnosis import diagnose
from lngeom.checks.derivatives.examine import NoReference, cases_at, results
from lngeom.checks.derivatives.report import Derivatives
from lngeom.checks.derivatives.routes import one_thread
from lngeom.checks.derivatives.vector import SAMPLES, vector_of
from lngeom.checks.placed import Placed
from lngeom.checks.subject import Opened, as_elsewhere, same_draws

MOST = 2**14
"""Numbers of the inputs at which a norm is differentiated."""

NAMES = {"name", "path", "parent", "scope", "owner", "trained", "training"}
"""Attributes that tell norms of one kind apart."""

PLAIN = (bool, int, float, str, tuple, list, dict, type(None))
"""Types of attributes that are compared by what they say; others are compared by identity."""

GRADIENT = ("vjp", "backward")
"""Routes that training takes."""


class InPlace:
    """Checks norms of a model, one of each kind: of one class, with the same attributes, shapes and dtypes.

    Args:
        highest: the highest order.
        modes: names of the only routes; all by default.
    """

    def __init__(self, highest: int = 2, modes: Collection[str] | None = None):
        self.highest, self.modes = highest, modes
        self._found: dict[Any, Derivatives | ValueError] = {}

    def __call__(self, placed: Placed) -> Derivatives:
        """The report of a norm, or that of one of its kind which was checked before.

        Raises:
            ValueError: if it cannot be differentiated, or there is nothing to compare with.
        """
        key = kind_of(placed)
        if key not in self._found:
            try:
                self._found[key] = derivatives_of(placed, self.highest, self.modes)
            except ValueError as error:
                self._found[key] = error
            except Exception as error:  # any error of a layer is a result
                said = str(error).splitlines() or [""]
                self._found[key] = ValueError(f"{type(error).__name__}: {said[0]}")
        found = self._found[key]
        if isinstance(found, ValueError):
            raise found
        return found


def derivatives_of(placed: Placed, highest: int = 2, modes: Collection[str] | None = None) -> Derivatives:
    """Compares the derivatives of a norm with differences of its outputs, at inputs that reach it in the model.

    Of its inputs there are as many samples and positions as its formula needs. Its parameters are moved by a tenth in
    variance, so that a gain of 1 hides nothing. Inputs are divided by a power of 2 near their size, which scales the
    derivatives and no error relative to them.

    Args:
        placed: the norm in its place.
        highest: the highest order.
        modes: names of the only routes; all by default.

    Returns:
        The report; the second dtype is that of the inputs.

    Raises:
        ValueError: if the norm has too many inputs, or cannot be differentiated; as `NoReference` if inputs or outputs
            are not finite, or if it computes in 16 bits.
    """
    layer = placed.layer
    name = f"{layer.path or '(model)'} ({layer.kind})"
    if layer.framework == "keras" and sys.modules["keras"].backend.backend() != "jax":
        raise ValueError("Keras differentiates it by another backend: set KERAS_BACKEND=jax")
    if placed.unit == UNITS[2]:
        raise NoReference("it computes in 16 bits, where differences of its outputs have no digits")
    inputs = few_inputs(placed)
    if not np.all(np.isfinite(inputs)):
        raise NoReference("its inputs in the model are not finite")
    if inputs.size > MOST:
        raise ValueError(f"it needs {inputs.size} inputs at once; derivatives are checked for up to {MOST}")
    own = {k: np.asarray(v, np.float64) for k, v in {**layer.parameters, **placed.changed}.items()}
    opened, rows = layer.opened(placed.training, own), placed.rows(inputs)
    size = 2.0 ** round(math.log2(placed.size))
    axes = (0, *placed.positions, *placed.axes)
    back, apart = list(np.argsort(axes)), [inputs.shape[a] for a in axes]
    strides = sorted(range(inputs.ndim), key=lambda a: -layer.inputs.strides[a])  # as views need it

    def call(parameters: Any, given: Any) -> Any:
        whole = _transposed((size * given).reshape(apart), back)
        if opened.torch:
            whole = _transposed(_transposed(whole, strides).contiguous(), np.argsort(strides))
        return _transposed(opened.call(parameters, whole), axes).reshape(rows.shape)

    with as_elsewhere(), same_draws(), one_thread():
        vector = vector_of(Opened(own, call, opened.torch), {"inputs": rows.shape})
        first = vector.with_inputs(vector.draw(0), rows / size)
        wide = "float64" if placed.unit == UNITS[0] else "float32"
        narrow = layer.inputs.dtype.name
        points = cases_at({"": first}, name, vector, wide, narrow, digits=narrow, what="its inputs in the model")
        found = tuple(r for case in points for r in results(case, highest, modes))
        return Derivatives(name, wide, tuple(vector.shapes), found, tuple(diagnose(points[0], found)))


def few_inputs(placed: Placed) -> np.ndarray:
    """Samples and positions of the inputs evenly apart, or the first ones where further inputs go with them."""
    inputs = np.asarray(placed.layer.reaching(placed.training), np.float64)
    needed = [min(n, SAMPLES) if axis == 0 else n for axis, n in enumerate(placed.shape)]
    sets = None if placed.formula is None else placed.formula.scale
    for axis, n in enumerate(inputs.shape):
        count = min(n, needed[axis])
        if axis in placed.positions and not placed.layer.several and sets is not None and not sets.over(axis):
            count = 1
        places = np.arange(count) if placed.layer.several else np.linspace(0, n - 1, count).round().astype(int)
        inputs = np.take(inputs, places, axis) if count < n else inputs
    return inputs


def _transposed(values: Any, axes: Any) -> Any:
    axes = [int(a) for a in axes]
    if axes == sorted(axes):
        return values
    return values.permute(axes) if hasattr(values, "permute") else values.transpose(axes)


def kind_of(placed: Placed) -> Any:
    """What norms have in common whose derivatives are checked once."""
    layer = placed.layer
    config = layer.module.get_config() if layer.framework == "keras" else vars(layer.module)
    attributes = [
        (name, repr(value) if isinstance(value, PLAIN) else id(value))
        for name, value in sorted(config.items())
        if not (name.startswith("_") or name in NAMES or hasattr(value, "dtype"))
    ]
    return (
        (layer.framework, type(layer.module), layer.kind, placed.training, placed.dtype, placed.axes, placed.unit),
        tuple(attributes),
        tuple((name.rsplit("/", 1)[-1], v.shape, v.dtype.name) for name, v in sorted(layer.parameters.items())),
        (layer.inputs.shape[1:], layer.inputs.dtype.name, tuple(map(repr, layer.call.given.leaves))),
    )
