"""A model, its parameters and its inputs, in float64: `lg.fisher(dtype="float64")`."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lngeom._core.lifting import TO_64, In64Bits, kept_as_they_are
from lngeom.information._given import explained
from lngeom.information.batches import Batch, as_batches
from lngeom.information.glm import NormalizedGLM


def in_float64(dtype: Any, apply: Any, params: PyTree, X: PyTree) -> tuple[Any, PyTree, PyTree]:
    """The model, its parameters and inputs in float64.

    Raises:
        ValueError: for another dtype, or if JAX has no float64.
    """
    if dtype not in ("float64", jnp.float64, np.dtype("float64")):
        raise ValueError(f"dtype must be 'float64', or None to compute as the function is written; got {dtype!r}")
    if jax.dtypes.canonicalize_dtype("float64") != jnp.dtype("float64"):
        raise ValueError('dtype="float64" needs float64 in JAX: jax.config.update("jax_enable_x64", True) first')
    wide = lambda tree: jax.tree.map(lambda a: TO_64.of(jnp.asarray(a)) if eqx.is_array_like(a) else a, tree)  # noqa: E731
    batches = as_batches(X)
    params = jax.tree.map(lambda a: TO_64.of(a) if eqx.is_array(a) else a, params)
    X = wide(X) if batches is None else batches.converted(wide)
    if not callable(apply) or isinstance(apply, NormalizedGLM):
        return apply, params, X
    inputs = X if batches is None else next(X.read()).inputs
    try:
        program = eqx.filter_make_jaxpr(apply)(params, inputs)[0]
    except Exception as error:
        told = explained(error, apply, params, inputs)
        raise (told if batches is None else batches.explained(told, Batch(inputs, None, None))) from error
    kept = kept_as_they_are(program)
    if kept:
        warnings.warn(
            f"computed with fewer than 64 bits, since it cannot be widened: {', '.join(kept)}, which has a derivative "
            "rule of its own, or is a kernel",
            RuntimeWarning,
            stacklevel=3,
        )
    return In64Bits(apply), params, X
