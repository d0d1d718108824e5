"""Every norm of a model, checked in its place with its own weights and in the mode in which the model runs it."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks._in_place import differing, examined
from lngeom.checks._invariances import invariances
from lngeom.checks._norms import candidates
from lngeom.checks._orbits import Data
from lngeom.checks._weights import measured, of_weights
from lngeom.checks.derivatives.in_place import InPlace
from lngeom.checks.findings import Result
from lngeom.checks.placed import Placed
from lngeom.checks.recorded import MIXES, Layer, layers_of
from lngeom.checks.reports import ModelReport, NormReport
from lngeom.checks.rows import row
from lngeom.methods.page import named

__all__ = ["ModelReport", "NormReport", "check_model", "consumers", "producer"]


@np.errstate(all="ignore")  # what is not finite is a result
def check_model(
    model: Any,
    X: Any,
    *,
    training: bool = True,
    include: Sequence[str] = (),
    like: Mapping[str, str] | None = None,
    derivatives: bool = False,
) -> ModelReport:
    """Checks every norm of a model in its place: its own weights, its own mode, and the inputs that reach it.

    One forward pass on X in evaluation mode records every call of every layer, and one in training mode how the model
    calls its layers there. A layer is a norm if its name says so, or if its outputs stay where large inputs are doubled
    and yet move with them. Each norm is examined as a function, on ordinary numbers of the shape of its inputs: its
    invariances, and the axes over which its mean and its scale are taken. On its own inputs in that mode
    the share of ε and lost digits are measured; of several calls the worst is shown. Further inputs stay as they were,
    or are zeros or ones, as the note of the norm says.
    Layers with weight norm or spectral norm are examined as functions of weights and inputs, and so are layers whose
    outputs stay where large weights are doubled, and a linear layer together with the norm that follows it.
    A norm that is a function of torch.nn.functional is a row of its own (such as `layer_norm()`, at the module in whose
    forward pass it is called). Other code in a forward pass that divides values by the root of a sum over them is a row
    that is not checked, with its file and line; sums without a root, as in a softmax or an L1 norm, are not listed.
    So is a response norm, whose outputs grow with its inputs. One step of training shows how running
    statistics move; where they are those to which one batch moves them, evaluation must be training. A linen model
    whose attribute fixes the mode is examined in that mode.
    An invariance beyond those of a row is no difference. What could be a norm and was not examined is listed with the
    reason.

    Args:
        model: a module of torch, flax.nnx, Keras 3 or equinox (which takes one sample; with a state, as (module,
            state)); (module, variables) of flax.linen, or a bound module; (transformed, params[, state]) of haiku.
        X: inputs [N …]; a tuple of several; a dict of arrays; or a list of dict rows, one a sample.
        training: whether norms are examined as they run in training mode.
        include: paths of further layers, such as whole blocks, to examine.
        like: the row of the invariance table by path of a layer, where the name of its class promises another one.
        derivatives: whether derivatives to second order are checked too, at inputs of the first call: once for all
            norms of one class with the same attributes and shapes, which takes one to four seconds. Layers that
            normalize weights are left out.

    Returns:
        The report; `print` it, look up a norm by its path, or take its `rows()`.

    Raises:
        ValueError: if the model is of another kind, the forward pass fails, or there is no layer of a path, or no such
            row.

    Example:
        >>> import equinox as eqx, jax, lngeom as lg
        >>> model = eqx.nn.Sequential([eqx.nn.Linear(3, 4, key=jax.random.key(0)), eqx.nn.LayerNorm(4)])
        >>> report = lg.check_model(model, jax.random.normal(jax.random.key(1), (5, 3)))
        >>> norm = report["layers.1"]
        >>> norm.units, norm.axis, norm.like, norm.differences
        (4, (1,), 'ln', ())
    """
    rows = {path: named(name).name for path, name in (like or {}).items()}
    for name in rows.values():
        row(name)
    layers = [replace(k, normalized=k.normalized or measured(k, training)) for k in layers_of(model, X)]
    paths = {layer.path for layer in layers}
    if missing := sorted({*include, *rows} - paths):
        raise ValueError(f"no layer {', '.join(missing)}; there are {', '.join(sorted(paths - {''}))}")
    judged = {id(c.layer): c for c in candidates(layers, training, {*include, *rows})}
    found, differentiate = [], InPlace()
    for layer in layers:
        if layer.normalizes_weights:
            found.append(of_weights(layer, rows.get(layer.path)))
        elif (candidate := judged.get(id(layer))) is None:
            continue
        elif candidate.problem:
            note = f"could not be checked: {candidate.problem}"
            found.append(NormReport(layer.path, layer.kind, note=note, calls=len(layer.calls)))
        else:
            norm, placed = examined(layer, training, rows.get(layer.path), asked=layer.path in include)
            found.append(_differentiated(norm, placed, differentiate) if placed and derivatives else norm)
            before = producer(layer, layers) if placed else None
            if placed and before and norm.checked:
                found += _pair(before, placed, norm)
    first = model[0] if isinstance(model, tuple) else model
    return ModelReport(type(first).__name__, tuple(found))


def _differentiated(norm: NormReport, placed: Placed, differentiate: InPlace) -> NormReport:
    """The report with the derivatives of the norm, or with the reason why they could not be checked."""
    try:
        return replace(norm, derivatives=differentiate(placed))
    except ValueError as error:
        note = f"its derivatives could not be checked: {error}".splitlines()[0]
        return replace(norm, note="; ".join(filter(None, (norm.note, note))))


def producer(layer: Layer, layers: Sequence[Layer]) -> Layer | None:
    """The linear or convolutional layer whose outputs are the inputs of a layer, value by value."""
    for other in reversed(layers):
        if other is not layer and MIXES.match(other.kind) and other.order < layer.order and _given(other, layer):
            return other
    return None


def consumers(layer: Layer, layers: Sequence[Layer]) -> list[Layer]:
    """The linear or convolutional layers whose inputs are the outputs of a layer, value by value."""
    return [o for o in layers if MIXES.match(o.kind) and o.order > layer.order and _given(layer, o)]


def _given(first: Layer, second: Layer) -> bool:
    """Whether a layer's outputs are another one's inputs, in their first calls."""
    if not all(k.calls and k.call.arrays and k.call.outputs for k in (first, second)):
        return False
    a, b = first.outputs, second.inputs
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


def weights_of(layer: Layer) -> tuple[str, np.ndarray] | None:
    """Name and value of the matrix of a linear layer; None for another layer."""
    return next(((k, v) for k, v in layer.parameters.items() if v.ndim == 2), None)


def _pair(before: Layer, placed: Placed, norm: NormReport) -> list[NormReport]:
    """The linear layer before a norm, and the norm, as one function of weights and inputs."""
    matrix = weights_of(before)
    if matrix is None or placed.axes != (placed.layer.inputs.ndim - 1,) or before.inputs.ndim != len(placed.shape):
        return []
    name, value = matrix
    transposed = before.framework not in {"torch", "equinox"}
    weights = np.asarray(value.T if transposed else value, np.float64)
    if weights.shape != (placed.units, before.inputs.shape[-1]):
        return []
    rng = probe_generator()
    sizes = [float(np.sqrt(np.nanmean(np.asarray(v, np.float64) ** 2))) or 1.0 for v in (weights, before.inputs)]
    shape = (*placed.shape[:-1], weights.shape[1])
    flat = (shape[0], *([-1] if len(shape) > 2 else []), shape[-1])
    data = Data(rng.normal(size=weights.shape), rng.normal(size=shape).reshape(flat))

    def outputs(data: Data, scale: float, others: Mapping[str, np.ndarray] = MappingProxyType({})) -> np.ndarray:
        given = sizes[1] * data.inputs.reshape(shape)
        own = {name: sizes[0] * (data.weights.T if transposed else data.weights), **others}
        summed = before.run(given, dtype=placed.dtype, training=placed.training, parameters=own)
        return placed.rows(placed.run(scale * np.asarray(summed, np.float64)))

    path, kind = f"{before.path} → {norm.path}", f"{before.kind} → {norm.kind}"
    bare = replace(norm, path=path, kind=kind, differences=(), findings=(), eps_share=math.nan, note="")

    def results(outputs: Callable[[Data, float], np.ndarray]) -> tuple[Result, ...]:
        return invariances(
            outputs,
            data,
            groups=placed.group_count,
            tolerance=placed.tolerance,
            scales=(1.0, placed.far / placed.size),
            damped=lambda: None,
            saturates=not placed.normalizes,
        )

    biases = {k: np.zeros_like(v) for k, v in before.parameters.items() if v.ndim == 1}
    try:
        found = results(outputs)
        lost = differing(found, norm.like)
        without = differing(results(functools.partial(outputs, others=biases)), norm.like) if lost and biases else lost
    except Exception as error:  # any error of a layer is a result
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return [replace(bare, results=(), note=f"could not be checked: {text}")]
    titles = {r.name: r.title for r in found}
    said = []
    if kept := [titles[name] for name in lost if name not in without]:
        said.append(f"the bias of {before.path or before.kind} keeps these from holding: {', '.join(kept)}")
    if kept := [titles[name] for name in lost if name in without]:
        said.append(f"these do not hold for the two together: {', '.join(kept)}")
    return [replace(bare, results=found, eps_share=norm.eps_share, note="; ".join(said))]
