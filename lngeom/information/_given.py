"""What users hand to `lg.fisher`, read, or refused with one sentence."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lngeom._core.types import is_concrete
from lngeom.families import AbstractDistribution, Product, described

EXPECTED_INPUTS = "X must be an array, or a pytree of arrays, with one row a sample, N ≥ 1"


def read_inputs(X: PyTree) -> tuple[PyTree, int]:
    """The inputs as arrays, and the number of samples N.

    Raises:
        ValueError: if they are no arrays of one number of rows.
    """
    if isinstance(X, Iterator):
        raise ValueError(
            f"{EXPECTED_INPUTS}; got a {type(X).__name__}, which can be read once: concatenate its "
            "batches into one array, or give what makes it, as in lg.Batches(lambda: iter(...))"
        )
    leaves = jax.tree.leaves(X)
    strange = [type(leaf).__name__ for leaf in leaves if not hasattr(leaf, "shape") and not np.isscalar(leaf)]
    if strange:
        raise ValueError(f"{EXPECTED_INPUTS}; got {', '.join(strange)}")
    require_numbers("X", leaves)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or 0 in rows:
        many = isinstance(X, list | tuple) and len({shape[1:] for shape in shapes}) == 1 and len(shapes) > 1
        remedy = {True: ": a list of numbers or rows must become an array, and a list of batches lg.Batches(X)"}
        raise ValueError(f"{EXPECTED_INPUTS}; got shapes {_few(shapes)}{remedy.get(many, '')}")
    return X, rows.pop()


def require_numbers(what: str, leaves: list) -> None:
    """Refuses arrays of NumPy that are no arrays of JAX.

    Raises:
        ValueError: if there is one of text, of objects, of times or of long doubles.
    """
    for leaf in leaves:
        dtype = leaf.dtype if isinstance(leaf, np.ndarray | np.generic) else None
        if dtype is not None and (dtype.kind in "OSUMm" or dtype == np.longdouble or dtype == np.clongdouble):
            raise ValueError(
                f"{what} must hold numbers that JAX knows; got dtype {dtype}: convert it, as by astype(float)"
            )


def read_responses(y: PyTree, family: AbstractDistribution) -> PyTree:
    """Observed responses as arrays: one for each output, each an array or a list of numbers."""
    if y is None or isinstance(family, Product):
        return jax.tree.map(jnp.asarray, y)
    try:
        return jnp.asarray(y)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y must be an array of responses, one row a sample; got {described(y)}") from error


def read_mask(mask: Any, outputs: jax.ShapeDtypeStruct) -> Float[Array, "N *T"]:
    """Weights of positions, [N *T]; those of whole samples, [N], are the weights of each position.

    Raises:
        ValueError: if the shape is another, or a weight is negative or not finite.
    """
    require_numbers("mask", [mask])
    shape = jnp.shape(mask)
    if shape not in {outputs.shape[:-1], outputs.shape[:1]}:
        raise ValueError(
            f"mask must have one entry a position, shape {outputs.shape[:-1]} for outputs {outputs.shape}, or one a "
            f"sample, shape {outputs.shape[:1]}; got {shape}"
        )
    mask = jnp.asarray(mask).reshape(*shape, *(1,) * (len(outputs.shape) - 1 - len(shape)))
    weights, allowed = _as_weights(jnp.broadcast_to(mask, outputs.shape[:-1]), outputs.dtype)
    if is_concrete(allowed) and not bool(allowed):
        raise ValueError("mask must be finite and at least 0")
    return weights


@jax.jit(static_argnames="dtype")
def _as_weights(mask: Array, dtype: jnp.dtype) -> tuple[Float[Array, "N *T"], Array]:
    """The weights, and whether all are finite and at least 0."""
    weights = mask.astype(dtype)
    return weights, jnp.all((weights >= 0) & (weights < jnp.inf))


def explained(error: Exception, apply: Callable, params: PyTree, *args: PyTree) -> Exception:
    """What a function that cannot be evaluated at its arguments is told: the cause where it is known.

    Args:
        error: what it raised.
        apply: the function.
        params: its parameters.
        *args: X, its inputs; there may be more.

    Returns:
        A ValueError for mistakes that are known; else the error itself, with a note.
    """
    if nnx_cause := _cause_in_nnx(error, apply, params):
        return ValueError(nnx_cause)
    X = args[0] if len(args) == 1 else args
    if len(args) == 1 and _works(apply, X, params):
        return ValueError(
            f"apply(params, X) fails and apply(X, params) works: params and X seem to be exchanged ({one_line(error)})"
        )
    if any(leaf is None or type(leaf).__name__ == "MaskedNode" for leaf in _with_nothing(params)):
        return ValueError(
            "apply failed at params with leaves that are None or masked. Give the whole parameters and name those to "
            "differentiate with wrt=, or have apply restore them, as in lambda arrays, X: "
            f"eqx.combine(arrays, static)(X) ({one_line(error)})"
        )
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(X)]
    if len(args) == 1 and isinstance(X, list | tuple) and set(shapes) == {()}:
        return ValueError(
            f"apply failed at X, a {type(X).__name__} of numbers: convert it, as by jnp.asarray(X) ({one_line(error)})"
        )
    if len(args) == 1 and isinstance(X, list | tuple) and len({shape[1:] for shape in shapes}) == 1:
        return ValueError(
            f"apply failed at X, a {type(X).__name__} of {len(shapes)} arrays of shapes {_few(shapes)}. "
            f"{EXPECTED_INPUTS}: if these are batches, say lg.Batches(X) ({one_line(error)})"
        )
    error.add_note(f"(raised by apply(params, X), called with params {described(params)} and X {described(X)})")
    return error


def _cause_in_nnx(error: Exception, apply: Callable, params: PyTree) -> str:
    """Why a function of a module or state of flax.nnx fails; empty where that is not the cause."""
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(params, nnx.State | nnx.Module):
        return ""
    if type(error).__name__ == "TraceContextError":
        return (
            f"apply(params, X) raised {one_line(error)}. It changes a variable of the module, as BatchNorm and Dropout "
            "do in training: call module.eval() before nnx.split"
        )
    if isinstance(params, nnx.Module) or isinstance(apply, nnx.Module) or "State" in str(error):
        what = "State" if isinstance(params, nnx.State) else "Module"
        return (
            f"apply(params, X) raised {one_line(error).rstrip('.')}, at params that are a {what} of nnx. "
            "Split the module, graphdef, state = nnx.split(module), give state as params, and have apply merge both: "
            "lambda state, X: nnx.merge(graphdef, state)(X)"
        )
    return ""


def check_function(apply: Any) -> None:
    """Checks that a model is a function of its parameters and inputs.

    Raises:
        ValueError: if it cannot be called. The message names the order of the arguments.
    """
    if not callable(apply):
        raise ValueError(
            f"apply must be a function of (params, *args); got a {type(apply).__name__}. The order is "
            "(apply, params, X)"
        )


def _with_nothing(tree: PyTree) -> list:
    return jax.tree.leaves(tree, is_leaf=lambda node: node is None or type(node).__name__ == "MaskedNode")


def _works(apply: Callable, params: PyTree, X: PyTree) -> bool:
    try:
        jax.eval_shape(lambda p, x: apply(p, x), params, X)
    except Exception:  # whatever the user's function raises
        return False
    return True


def one_line(error: Exception) -> str:
    """Its type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _few(shapes: list) -> str:
    return f"{shapes[:4]}" if len(shapes) <= 4 else f"{shapes[:4]} and {len(shapes) - 4} more"
