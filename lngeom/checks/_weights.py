"""Layers that normalize their weights, as functions of the unnormalized weights and of inputs."""

import math
from typing import Any

import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks._in_place import differing
from lngeom.checks._invariances import invariances
from lngeom.checks._orbits import Data
from lngeom.checks._probed import FAR, TOLERANCES, ordinary, rounding_of
from lngeom.checks.recorded import Layer
from lngeom.checks.recorded.layer import floating
from lngeom.checks.recorded.torch import normalized_weights
from lngeom.checks.reports import NormReport
from lngeom.checks.subject import deviation
from lngeom.methods import METHODS

MATRICES = (
    "it normalizes weights, and has no matrix or kernel of its own, or several; check the function of weights and "
    "inputs with lg.check_invariances(lambda W, X: ...)"
)
"""Why a norm of weights was left out."""

KEEPS = {"weight_matrix_rescaling", "weight_vector_rescaling"}
"""Columns that are compared: the gain is fixed, so that signs and others follow from it."""

DIRECTIONS = {
    "wn": ("parametrizations.weight.original1", "weight_v"),
    "sn": ("parametrizations.weight.original", "weight_orig"),
}
"""Names of the unnormalized weights in torch."""

LIBRARIES = {"torch", "flax", "equinox", "keras", "haiku"}
"""Packages whose own layers have known weights."""

SAMPLES = 6


def of_weights(layer: Layer, like: str | None = None) -> NormReport:
    """The report of a layer that normalizes its weights; an error is its note."""
    kind = layer.kind.removeprefix("Parametrized")
    bare = NormReport(layer.path, kind, calls=len(layer.calls))
    try:
        return _examined(layer, bare, like)
    except Exception as error:
        text = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return NormReport(layer.path, kind, note=f"could not be checked: {text}".splitlines()[0])


def _examined(layer: Layer, bare: NormReport, like: str | None) -> NormReport:
    if not layer.calls:
        raise ValueError("it is not called in the forward pass on X")
    direction, expected = _direction(layer)
    expected = like or expected
    value = np.asarray(layer.parameters[direction], np.float64)
    bias = {k: np.zeros_like(v) for k, v in layer.parameters.items() if k.rsplit(".", 1)[-1] == "bias"}
    last = layer.framework not in {"torch", "equinox"}  # units are the last axis of the weights, and of outputs
    units = value.shape[-1] if last else value.shape[0]
    patch = value.shape[:-1] if last else value.shape[1:]
    axis = len(patch) if last else 1
    inner = axis - 1  # place of the channels in a patch
    repeats = layer.inputs.shape[-1 if last else 1] // patch[inner] if value.ndim > 2 else 1
    rng = probe_generator()
    size = float(np.sqrt(np.mean(value**2))) or 1.0
    data = Data(rng.normal(size=(units, int(np.prod(patch)))), 0.4 + rng.normal(size=(SAMPLES, np.prod(patch))))
    training = layer.framework in {"keras", "linen", "nnx"}  # there, weights are normalized by their own norm then
    dtype = _dtype(layer, training)

    def outputs(data: Data, scale: float) -> np.ndarray:
        W = scale * size * data.weights
        own = {direction: (W.T if last else W).reshape(value.shape), **bias}
        inputs = np.repeat(data.inputs.reshape(len(data.inputs), *patch)[:, None], repeats, 1)
        inputs = np.concatenate(list(np.moveaxis(inputs, 1, 0)), axis)  # every group of channels is given the same
        found = np.asarray(layer.run(inputs, dtype=dtype, training=training, parameters=own), np.float64)
        found = np.moveaxis(found, -1, 1) if last else found
        found = found[(slice(None), slice(None), *(n // 2 for n in found.shape[2:]))]
        if found.shape != (len(inputs), units):
            raise ValueError(f"weights {list(value.shape)} give outputs {list(found.shape)}: units cannot be matched")
        return found

    unit = rounding_of(lambda W: outputs(Data(W, data.inputs), 1.0), data.weights, outputs(data, 1.0), dtype)
    tolerance = TOLERANCES[unit]
    results = invariances(
        outputs, data, groups=2, tolerance=tolerance, scales=(1.0, FAR), damped=lambda: None, saturates=False
    )
    wrong = tuple(name for name in differing(results, expected) if name in KEEPS)
    kind = f"{bare.kind}, {METHODS[expected].title}"
    return NormReport(
        bare.path, kind, units, (0,), "weights", expected, results, wrong, (), math.nan, calls=len(layer.calls)
    )


def _direction(layer: Layer) -> tuple[str, str]:
    """Name of the weights that a layer normalizes, and the row of the table."""
    kind = layer.normalized or layer.declared
    if layer.framework == "torch" and (by_torch := normalized_weights(layer.module)) is not None:
        name = next((n for n in DIRECTIONS[by_torch] if n in layer.parameters), None)
        if name is None:
            raise ValueError(f"{METHODS[by_torch].title} of another array than its weight")
        dim = _dim(layer.module)
        if dim is not None and dim != 0:
            raise ValueError(
                f"its weight norm is over all axes but {dim}, which are not the units"
                if dim >= 0
                else "its weight norm is over all axes"
            )
        return name, by_torch
    matrix = matrix_of(layer)
    if kind is None or matrix is None:
        raise ValueError(MATRICES)
    axes = getattr(layer.module, "feature_axes", -1)  # of flax: those that weight norm keeps
    if kind == "wn" and axes not in {-1, (-1,), layer.parameters[matrix].ndim - 1}:
        raise ValueError(f"its weight norm is over all axes but {axes}, which are not the units")
    return matrix, kind


def matrix_of(layer: Layer) -> str | None:
    """Name of the one parameter of a layer with several long axes; None where there is none, or there are several."""
    found = [k for k, v in layer.parameters.items() if sum(n > 1 for n in v.shape) > 1]
    return found[0] if len(found) == 1 else None


def measured(layer: Layer, training: bool) -> str | None:
    """Row of a layer that normalizes its weights by code of its own: its outputs stay where large weights are doubled.

    Layers of the libraries are known, and are not measured.

    Args:
        layer: the layer.
        training: whether to look at it in training mode.

    Returns:
        "ws" where a constant added to the weights of each unit leaves outputs too, "wn" where one factor for each unit
        does, "sn" where only one for all units does; None where outputs follow the weights.
    """
    known = type(layer.module).__module__.partition(".")[0] in LIBRARIES
    matrix = None if known or not layer.childless or not layer.calls or layer.problem else matrix_of(layer)
    if matrix is None or not (layer.call.arrays and layer.call.outputs and floating(layer.inputs)):
        return None
    value = np.asarray(layer.parameters[matrix], np.float64)
    last = layer.framework not in {"torch", "equinox"}
    rng = probe_generator()
    try:
        dtype = _dtype(layer, training)
        inputs = ordinary(1, (min(SAMPLES, len(layer.inputs)), *layer.inputs.shape[1:]))[0]

        def outputs(weights: np.ndarray) -> np.ndarray:
            return layer.run(inputs, dtype=dtype, training=training, parameters={matrix: weights})

        far = FAR * (value + 0.1 * np.std(value) * rng.normal(size=value.shape))
        start = outputs(far)
        tolerance = TOLERANCES[rounding_of(outputs, far, start, dtype)]
        units = np.ones(value.ndim, int)
        units[-1 if last else 0] = value.shape[-1 if last else 0]
        each = 2.0 ** rng.integers(1, 4, units)

        def stays(weights: np.ndarray) -> bool:
            return deviation(start, outputs(weights)) <= tolerance

        nearby = outputs(far + 0.02 * np.std(far) * rng.normal(size=far.shape))  # what saturates hardly moves
        moves = np.mean(np.abs(nearby - start) > 1e-4 * np.max(np.abs(start - start.mean()))) > 0.2
        if not moves or not stays(2 * far):
            return None
        if not stays(each * far):
            return "sn"
        return "ws" if stays(far + np.abs(far).max() * each) else "wn"
    except Exception:  # it cannot be called again
        return None


def _dim(module: Any) -> int | None:
    """The axis of the weights that weight norm of torch keeps; None for spectral norm."""
    wrapped = getattr(module, "parametrizations", {})
    found = [*module._forward_pre_hooks.values(), *(p for name in wrapped for p in wrapped[name])]
    return next((f.dim for f in found if type(f).__name__ in {"WeightNorm", "_WeightNorm"}), None)


def _dtype(layer: Layer, training: bool) -> str:
    """The widest dtype in which a layer runs."""
    try:
        layer.run(layer.inputs[:1], dtype="float64", training=training)
    except Exception:
        return "float32"
    return "float64"
