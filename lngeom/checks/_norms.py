"""Which layers of a model are norms, by what they do."""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lngeom.checks.placed import Placed
from lngeom.checks.placing import behaves, place, responds
from lngeom.checks.recorded import Layer
from lngeom.checks.recorded.functions import Function
from lngeom.checks.recorded.inline import Code
from lngeom.checks.recorded.layer import floating

FIXED = 1e-3
"""Largest spread of mean squares, relative to them, at which outputs have a fixed mean square."""

RESPONSE = (
    "its outputs are its inputs times factors of its other inputs, whatever the scale of these, as in a response norm: "
    "no row of the table"
)
"""Why a layer that divides one statistic by another was not examined."""

OWNED = (Function, Code)
"""What stands for modules of what is called inside of others."""


@dataclass(frozen=True)
class Candidate:
    """A layer that could be a norm.

    Attributes:
        layer: the layer.
        problem: why it is not examined; empty where it is.
        placed: the layer in its place at its first call, where that is known already.
    """

    layer: Layer
    problem: str = ""
    placed: Placed | None = None


def candidates(layers: Sequence[Layer], training: bool, asked: Collection[str] = ()) -> list[Candidate]:
    """The layers that could be norms, in the order of their first calls.

    A layer without layers inside is one if its name says so, or if its outputs stay when large inputs are doubled and
    yet move with them. A layer with layers inside, or whose outputs have another shape than its inputs, is listed if
    its outputs have a fixed mean square over some axes, or if its name says that it is a norm, and none inside is one.

    Args:
        layers: the layers of a model.
        training: whether norms are examined in training mode.
        asked: paths of layers that are examined whatever they are.

    Returns:
        The layers; those that normalize weights are not among them.
    """
    found: dict[str, Candidate] = {}
    for layer in sorted(layers, key=lambda k: (isinstance(k.module, OWNED), -_depth(k.path), not k.childless)):
        if isinstance(layer.module, OWNED) and _computes(layer, found):
            continue
        if layer.normalizes_weights:
            found[layer.path] = Candidate(layer, "normalizes weights")
            continue
        if layer.path in asked:
            found[layer.path] = Candidate(layer)
            continue
        if not layer.childless and any(_inside(other, layer.path) for other in found):
            continue
        candidate = _judged(layer, training)
        if candidate is not None and not (candidate.problem and _passes_on(layer, found.values())):
            found[layer.path] = candidate
    ordered = [found[layer.path] for layer in layers if layer.path in found]
    return [c for c in ordered if not c.layer.normalizes_weights]


def _computes(layer: Layer, found: Mapping[str, Candidate]) -> bool:
    """Whether a function or a line of code is how a norm that was found computes."""
    above = found.get(layer.module.owner)
    if isinstance(layer.module, Code):
        owner, paths = layer.module.owner, {_without_step(path): c for path, c in found.items()}
        return owner in paths or any(_inside(owner, path) for path, c in paths.items() if not c.problem)
    return above is not None and (not above.problem or above.layer.normalizes_weights)


def _without_step(path: str) -> str:
    """The path of a layer in all steps of a loop."""
    return re.sub(r"\[\d+\]$", "", path)


def _passes_on(layer: Layer, found: Collection[Candidate]) -> bool:
    """Whether what a layer with layers inside returns is what an examined norm returned."""
    if layer.childless or not layer.calls or not layer.call.outputs:
        return False
    norms = [c.layer for c in found if not c.problem and c.layer.calls and c.layer.call.outputs]
    return any(np.array_equal(layer.outputs, norm.outputs, equal_nan=True) for norm in norms)


def _judged(layer: Layer, training: bool) -> Candidate | None:
    if not layer.calls:
        reason = layer.problem or "it is not called in the forward pass on X"
        listed = (layer.named and layer.childless) or isinstance(layer.module, Code)
        return Candidate(layer, reason) if listed else None
    if layer.same_shape and (layer.childless or layer.named):
        if layer.named:
            return Candidate(layer)
        try:
            if not behaves(layer, training):
                return Candidate(layer, RESPONSE) if responds(layer, training) else None
            placed = place(layer, training)
            return Candidate(layer, "", placed) if placed.normalizes else None
        except Exception:  # it cannot be called again; what it returned is looked at
            pass
    if layer.named and layer.childless:
        return Candidate(layer)
    axes = _fixed(layer)
    if axes is None:
        return None
    return Candidate(
        layer,
        f"its outputs have a fixed mean square over axes {', '.join(map(str, axes))}, but it has layers inside or "
        "outputs of another shape; examine the function with lg.check_invariances",
    )


def _fixed(layer: Layer) -> tuple[int, ...] | None:
    """Axes over which what it returned has the same mean square everywhere, and what it was given has not."""
    if not layer.call.arrays or not layer.call.outputs:
        return None
    inputs, outputs = layer.inputs, layer.outputs
    if not (floating(inputs) and floating(outputs)):
        return None
    outputs = np.asarray(outputs[:64], np.float64)
    if outputs.ndim < 2 or not np.all(np.isfinite(outputs)) or not np.any(outputs):
        return None
    axes = _evened(outputs)
    varies = axes is not None and np.ptp(outputs**2, axes).max() > 0.1 * np.mean(outputs**2)
    return axes if varies and _evened(np.asarray(inputs[:64], np.float64)) is None else None


def _evened(values: np.ndarray) -> tuple[int, ...] | None:
    """The fewest axes over which mean squares are the same everywhere."""
    inner = [a for a in range(1, values.ndim) if values.shape[a] > 1]
    subsets = (axes for count in range(1, len(inner) + 1) for axes in itertools.combinations(inner, count))
    return next((axes for axes in subsets if _even(values, axes)), None)


def _even(values: np.ndarray, axes: tuple[int, ...]) -> bool:
    squares = np.mean(np.square(values), axes)
    return squares.size >= 4 and bool(np.ptp(squares) <= FIXED * np.mean(squares))


def _depth(path: str) -> int:
    return path.count(".") + path.count("/") + bool(path)


def _inside(path: str, above: str) -> bool:
    return path != above and (not above or path.startswith((f"{above}.", f"{above}/")))
