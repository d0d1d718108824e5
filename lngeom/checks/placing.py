"""Where a norm is placed: the mode, the inputs and the output that are examined, and the axes of its units."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks._probed import FAR, FILLS, PROBES, SAMPLES, SIDE, TOLERANCES, UNITS, WIDE, ordinary
from lngeom.checks.placed import Placed
from lngeom.checks.recorded import Layer
from lngeom.checks.subject import deviation


def behaves(layer: Layer, training: bool = True) -> bool:
    """Whether outputs of a layer stay where large inputs are doubled: one without that is no norm.

    Args:
        layer: the layer.
        training: whether to look at it in training mode.

    Returns:
        Whether they stay.
    """
    shape, dtype = _shape(layer, training)
    probe = ordinary(PROBES, shape)[0]
    once, twice = (layer.run(s * FAR * probe, dtype=dtype, training=training) for s in (1, 2))
    return deviation(once, twice) <= TOLERANCES[UNITS[1]] or not np.all(np.isfinite(np.asarray(once, np.float64)))


def responds(layer: Layer, training: bool = True) -> bool:
    """Whether outputs are the inputs times factors that depend on other inputs and on no scale of them.

    Global response norm is: its factors are norms of channels, divided by their mean. Rectifiers and pooling are not.

    Args:
        layer: the layer.
        training: whether to look at it in training mode.

    Returns:
        Whether they are.
    """
    shape, dtype = _shape(layer, training)
    moved = {name: np.asarray(value, np.float64) + 1 for name, value in layer.parameters.items()}  # gains may be zero
    return any(_responds(layer, shape, dtype, training, own) for own in ({}, moved)[: 1 + bool(moved)])


def _responds(layer: Layer, shape: tuple[int, ...], dtype: str, training: bool, own: Mapping[str, np.ndarray]) -> bool:
    probe, other = ordinary(2, shape)

    def odd(inputs: np.ndarray) -> np.ndarray:
        found = [layer.run(s * inputs, dtype=dtype, training=training, parameters=own) for s in (1, -1)]
        return (np.asarray(found[0], np.float64) - np.asarray(found[1], np.float64)) / 2

    kept = probe_generator(8).random(shape) < 0.5
    start = odd(probe)
    scale = np.max(np.abs(start))
    slack = TOLERANCES[UNITS[1]] * scale
    if not (0 < scale < np.inf) or np.max(np.abs(odd(FAR * probe) / FAR - start)) > slack:
        return False
    if np.max(np.abs(odd(np.where(kept, probe, 0))[~kept]), initial=0.0) > slack:
        return False
    moved = np.abs(odd(np.where(kept, probe, 4 * other)) - start)[kept]
    return bool(np.mean(moved > slack) > 0.5)


def place(layer: Layer, training: bool = True) -> Placed:
    """Finds the mode, the inputs and the axes of the units of a norm.

    Further inputs are tried as they were, then as zeros and ones, until outputs are those of a formula. So are its
    other outputs of the shape of the inputs.

    Args:
        layer: the norm.
        training: whether to examine it in training mode, where the model has one for it.

    Returns:
        The norm in its place.

    Raises:
        ValueError: if its inputs have no axis of samples, or it cannot be called on them again.
    """
    if not layer.calls:
        raise ValueError("it is not called in the forward pass")
    if not layer.call.arrays or not layer.call.outputs:
        raise ValueError("its inputs or outputs are no arrays")
    if layer.inputs.ndim < 2:
        raise ValueError(f"its inputs have shape {list(layer.inputs.shape)}: give X with one sample a row")
    if not layer.same_shape:
        shapes = list(layer.inputs.shape), list(layer.outputs.shape)
        raise ValueError(f"inputs {shapes[0]} give outputs {shapes[1]}: units cannot be matched")
    found, problem = None, None
    for fill in FILLS if layer.several else FILLS[:1]:
        for slot in layer.call.places:
            try:
                placed = _placed(replace(layer, fill=fill, place=slot), training)
                if placed.fitted is not None and placed.damped:
                    return placed
                better = found is None or (found.formula is None and placed.formula is not None)
            except Exception as error:
                problem = problem or error
                continue
            found = placed if better else found
    if found is None:
        raise ValueError(_said(problem)) from problem
    return found


def _said(error: Exception | None) -> str:
    """The first line of an error, with its kind where that tells more than the text."""
    return (f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}").splitlines()[0]


def _placed(layer: Layer, training: bool) -> Placed:
    shape, dtype = _shape(layer, training)
    axes = _conventional(layer)
    placed = Placed(layer, axes, False, training, shape, dtype)
    found = _axes(placed)
    placed = replace(placed, axes=found or axes, measured=found is not None)
    if placed.constant:
        for name, value in layer.parameters.items():
            other = replace(placed, changed={name: np.asarray(value, np.float64) + 1})
            if not other.constant:
                return other
    if found is None and placed.layer.declared in {"ln", "rms", None} and placed.formula is not None:
        own = tuple(a for a in placed.formula.scale.axes if a > 0)
        if own and placed.formula.scale.split is None and not placed.formula.scale.over(0) and own != placed.axes:
            placed = replace(placed, axes=own)
    if placed.in_part and placed.reach is not None:
        larger = replace(placed, shape=placed.reach.shape, reached=placed.reach)
        return larger if larger.formula is not None or placed.formula is not None else placed
    return placed


def _shape(layer: Layer, training: bool) -> tuple[tuple[int, ...], str]:
    """Shape of probes, with few samples and positions where the layer takes them, and the widest dtype."""
    whole = layer.inputs.shape
    units = set(_conventional(layer)) | {1, len(whole) - 1}
    inner = [i for i in range(1, len(whole)) if i not in units]
    side = 2 * SIDE if len(whole) == 3 else SIDE
    small = (SAMPLES, *(min(n, side) if i in inner else n for i, n in enumerate(whole[1:], 1)))
    other = 1 if len(whole) - 1 in _conventional(layer) else len(whole) - 1
    least = side if _per_unit(layer.parameters) else WIDE  # without parameters this axis may be that of the units
    smaller = tuple(min(n, least) if i == other and i > 0 else n for i, n in enumerate(small))
    fewer = (min(SAMPLES, whole[0]), *whole[1:])
    shapes = [fewer, whole] if layer.several else [smaller, small, (SAMPLES, *whole[1:]), fewer, whole]
    native = str(layer.inputs.dtype)
    problem: Exception | None = None
    for dtype in dict.fromkeys(("float64", "float32", native)):
        for shape in dict.fromkeys(shapes):
            try:
                outputs = layer.run(ordinary(PROBES, shape)[0], dtype=dtype, training=training)
            except Exception as error:
                problem = problem or error
                continue
            if outputs.shape == shape:
                return shape, dtype
    raise ValueError(_said(problem)) from problem


def _axes(placed: Placed) -> tuple[int, ...] | None:
    """Axes along which one value of a parameter reaches only one place."""
    inputs = placed.probe
    start = placed.run(inputs)
    for name, value in _per_unit(placed.layer.parameters).items():
        moved = value.astype(np.float64).copy()
        moved.reshape(-1)[0] += 1.0
        after = placed.run(inputs, parameters={name: moved})
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
