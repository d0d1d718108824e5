"""Whether a norm that is given a mask leaves what is masked out of its statistics."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks.findings import Finding
from lngeom.checks.placed import Placed
from lngeom.checks.recorded import Layer
from lngeom.checks.recorded.layer import ARRAY
from lngeom.checks.subject import deviation

DEPENDS = 1e-4
"""Change of outputs, relative to them, from which they depend on other places."""


def findings(placed: Placed) -> Iterator[Finding]:
    """Masks on both sides of which outputs depend on the inputs of the other side.

    Which side is masked is a convention of each layer; a mask that is used leaves one side alone.
    """
    layer = replace(placed.layer, fill=None)
    inputs = np.asarray(layer.inputs, np.float64)
    for name, mask in _masks(placed):
        noise = probe_generator(7).normal(size=inputs.shape)

        def run(values: np.ndarray) -> np.ndarray:
            return np.asarray(layer.run(values, dtype=placed.dtype, training=placed.training), np.float64)

        start, changes, silent = run(inputs), [], []
        for side in (False, True):
            moved = run(np.where(mask == side, 3 * inputs + placed.size * noise, inputs))
            changes.append(deviation(start[mask != side], moved[mask != side]))
            silent.append(not np.any(moved[mask == side] - start[mask == side]) and not np.any(start[mask == side]))
        if silent[0] != silent[1]:  # outputs there are zero: it is the side that is masked
            side = silent.index(True)
            if changes[side] > DEPENDS:
                yield Finding(
                    "mask",
                    f"outputs where {name} is {1 - side} change by {min(changes[side], 9.99):.0%} with inputs where it "
                    f"is {side}, and those where it is {side} are zero: it is masked, but in the statistics",
                )
        elif min(changes) > DEPENDS:
            yield Finding(
                "mask",
                f"outputs where {name} is 1 change by {min(changes[0], 9.99):.0%} with inputs where it is 0, and those "
                f"where it is 0 by {min(changes[1], 9.99):.0%} with inputs where it is 1: the statistics are over both",
            )


def _masks(placed: Placed) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of masks among the inputs, in the shape of the examined input."""
    layer = placed.layer
    shape = layer.inputs.shape
    for i, (name, value) in enumerate(zip(_names(layer), layer.call.arrays, strict=True)):
        if i == layer.call.examined[0] or not ("mask" in name.lower() or value.dtype == bool):
            continue
        if set(np.unique(value).tolist()) != {0, 1}:
            continue
        found = np.asarray(value, bool)
        if found.shape == tuple(shape[a] for a in (0, *placed.positions)):
            found = np.expand_dims(found, placed.axes)
        elif found.shape == shape[: found.ndim]:
            found = found.reshape(*found.shape, *[1] * (len(shape) - found.ndim))
        try:
            yield name or "a mask", np.broadcast_to(found, shape)
        except ValueError:  # it is for something else, such as pairs of positions
            continue


def _names(layer: Layer) -> list[str]:
    """Names of the arguments in which the arrays of a call are."""
    given, module = layer.call.given, layer.module
    call: Any = getattr(module, "forward", None) or getattr(module, "call", None) or module
    try:
        known = list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        known = []
    paths = jax.tree.leaves_with_path(jax.tree.unflatten(given.structure, given.leaves))
    names = []
    for path, leaf in paths:
        if leaf is ARRAY:
            place = getattr(path[1], "idx", None) if path[0] == jax.tree_util.SequenceKey(0) else None
            named = known[place] if place is not None and place < len(known) else ""
            names.append(named if place is not None else str(getattr(path[1], "key", "")))
    return names
