"""The layers of a model as they stand in it: their own weights, and the inputs that reach them in one forward pass."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lngeom._core.text import verb
from lngeom.checks.adapters import framework_of
from lngeom.checks.recorded import equinox, haiku, keras, linen, nnx, torch
from lngeom.checks.recorded.layer import MIXES as MIXES, Layer as Layer, as_numpy, floating, is_array, is_plain
from lngeom.checks.subject import same_draws

READERS = {
    "torch": torch.layers,
    "nnx": nnx.layers,
    "keras": keras.layers,
    "linen": linen.layers,
    "haiku": haiku.layers,
    "equinox": equinox.layers,
}
"""How the layers of a model of each library are read, from (model, …), positional arguments and those by name."""


def layers_of(model: Any, X: Any) -> list[Layer]:
    """The layers of a model and what goes through them in one forward pass in evaluation mode.

    Args:
        model: a module of torch, flax.nnx, Keras 3 or equinox (which takes one sample); (module, variables) of
            flax.linen, or a bound module; (transformed, params) or (transformed, params, state) of haiku;
            (module, state) of equinox.
        X: inputs [N …]; a tuple of several; a dict of arrays, passed by name where the model has arguments of these
            names; or a list of dict rows, one a sample.

    Returns:
        The layers, in the order of their first call.

    Raises:
        ValueError: if the model is of none of these libraries, or the forward pass fails.
    """
    framework, parts = _framework_of(model)
    if framework == "torch" and (text := torch.refused(parts[0])):
        raise ValueError(text)
    args, kwargs = _arguments(X, parts[0], framework)
    _usable([a for a in jax.tree.leaves((args, kwargs)) if is_plain(a)])
    try:
        with same_draws():
            return READERS[framework](parts, args, kwargs)
    except Exception as error:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in (*args, *kwargs.values()) if is_array(a))
        text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(". ")
        hint = ""
        if _OF_SHAPES.search(f"{error}"):
            mapped = "; an equinox model takes one sample and is mapped over rows" if framework == "equinox" else ""
            hint = f". X has one sample a row{mapped}"
        raise ValueError(
            f"one forward pass of {type(next(iter(parts))).__name__} on X ({shapes}) failed: {text}{hint}"
        ) from error


_OF_SHAPES = re.compile(r"shape|\b(in_)?dim|dimension|size of tensor|\bsizes?\b|broadcast|channels|features|rank", re.I)
"""Words of errors that may come of the shape of X."""


def _usable(arrays: list[Any]) -> None:
    """Refuses inputs without values, and values that are no numbers; −∞ stands in masks that are added."""
    for array in arrays:
        shape = list(array.shape)
        if 0 in shape:
            raise ValueError(f"X must have values, at least one sample; got an array of shape {shape}")
        values = as_numpy(array)
        if floating(values):
            wrong = int(np.sum(~(np.isfinite(np.asarray(values, np.float64)) | np.isneginf(values))))
            if wrong:
                raise ValueError(
                    f"X must be finite; {wrong} of its {values.size} values, {shape}, {verb(wrong)} NaN or infinite"
                )


SUPPORTED = (
    "a model is a module of torch, flax.nnx, keras or equinox; (module, variables) of flax.linen; (transformed, "
    "params[, state]) of haiku"
)
"""What a model may be, for errors."""


def _framework_of(model: Any) -> tuple[str, tuple[Any, ...]]:
    parts: tuple[Any, ...] = model if isinstance(model, tuple) and not hasattr(model, "apply") else (model,)
    first = next(iter(parts), None)
    if type(first).__name__ in {"Transformed", "TransformedWithState"}:
        return "haiku", parts
    framework = framework_of(first)
    if framework not in READERS or isinstance(first, type):
        raise ValueError(f"{SUPPORTED}; got {type(first).__name__ if first is not None else 'nothing'}")
    return framework, parts


def _arguments(X: Any, model: Any, framework: str) -> tuple[tuple, dict[str, Any]]:
    """Positional arguments and those by name."""
    if isinstance(X, list) and X and all(isinstance(row, Mapping) for row in X):
        if any(set(row) != set(X[0]) for row in X):
            raise ValueError("rows of X must have the same keys; give every row all of them")
        X = {key: np.stack([np.asarray(row[key]) for row in X]) for key in X[0]}
    if isinstance(X, tuple):
        return X, {}
    if isinstance(X, Mapping):
        call = getattr(model, "forward", None) or getattr(model, "call", None) or type(model).__call__
        if framework != "haiku" and set(X) <= set(inspect.signature(call).parameters):
            return (), dict(X)
        return (dict(X),), {}
    if isinstance(X, list) or (not is_array(X) and np.ndim(X)):
        X = np.asarray(X)
    if not is_array(X) or X.ndim == 0:
        raise ValueError(f"X must be an array [N …], a tuple, a dict or a list of dict rows; got {type(X).__name__}")
    return (X,), {}
