"""What weight decay does to each parameter, and masks that say so."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from lngeom._core.trees import leaf_paths
from lngeom.information._given import check_function
from lngeom.information.groups import search

RATE, REGULARIZER, IDLE = "rate", "regularizer", "none"
"""What decay does: it sets the effective learning rate, it changes the function, or it does neither."""


class Part(NamedTuple):
    """Parameters on which weight decay acts in one way.

    Attributes:
        name: their paths, joined by "+".
        leaves: their numbers among the leaves of the parameters.
        acts: "rate", "regularizer" or "none".
        size: how many numbers they hold.
    """

    name: str
    leaves: tuple[int, ...]
    acts: str
    size: int


def parts(
    apply: Callable[..., PyTree], params: PyTree, *args: Any, decayed: frozenset[int] = frozenset()
) -> tuple[Part, ...]:
    """Which leaves weight decay acts on as a rate, which as a regularizer, and which not at all.

    Args:
        apply: (params, *args) → outputs.
        params: the parameters.
        *args: inputs, such as a batch.
        decayed: numbers of the leaves that decay, which decide among scale-invariant sets of equally many leaves.

    Returns:
        Scale-invariant sets first, then single leaves.

    Raises:
        ValueError: if the outputs or their derivatives are not finite, no parameter changes the outputs, or none is a
            floating point number.
    """
    found = search(apply, params, args, together=None, epsilon=True, preferred=decayed)
    paths, leaves = leaf_paths(params), []
    if not found.floating:
        raise ValueError(f"no parameter is an array of floating point numbers; there are {', '.join(paths) or 'none'}")
    if set(found.idle) == set(found.floating):
        raise ValueError(
            "no parameter changes the outputs at these inputs, as where all units are dead: that is no evidence; give "
            "other inputs or parameters"
        )
    covered = {k for chosen in found.sets for k in chosen}
    leaves = [(chosen, RATE) for chosen in found.sets]
    leaves += [((k,), IDLE if k in found.idle else REGULARIZER) for k in found.floating if k not in covered]
    sizes = [jnp.size(v) for v in jax.tree.leaves(params)]
    return tuple(
        Part("+".join(paths[k] for k in chosen), chosen, acts, sum(sizes[k] for k in chosen)) for chosen, acts in leaves
    )


def decay_mask(apply: Callable[..., PyTree], params: PyTree, *args: Any, acts: str = RATE) -> PyTree:
    r"""A mask for weight decay, from the symmetries of the model instead of the number of axes of a leaf.

    Weight decay on scale-invariant weights leaves the function as it is, and sets their effective learning rate: it
    acts as a rate. On other weights that change the outputs it acts as a regularizer. On those that never change them,
    such as a bias that the next layer subtracts, it does nothing.

    `acts="rate"` decays the weights whose equilibrium it sets, and nothing that the loss can see. `acts="regularizer"`
    is its counterpart for norm-constrained training, such as Hyperball, where only the rest is to decay.

    The search sets ε = 0 in every norm. Leaves that are scale-invariant only together, such as all that is added to
    the stream of a pre-norm transformer, are in the mask together; a mask or a rate that parts them makes the decay a
    regularizer.

    Args:
        apply: (params, *args) → outputs. The last layer's outputs, not the loss of one sample, tell symmetries from
            chance.
        params: the parameters.
        *args: inputs, such as a batch.
        acts: "rate" or "regularizer".

    Returns:
        A tree like `params` of Python's booleans, for `optax.adamw(mask=...)` or `optax.masked`. Of a state or module
        of nnx it is the tree of its bare values (`nnx.pure`), as `nnx.Optimizer` hands them to optax.

    Raises:
        ValueError: if `acts` is neither, `params` and `apply` are exchanged, the outputs or their derivatives are not
            finite, or no parameter is an array of floating point numbers.

    Source: van Laarhoven 2017 (arXiv 1706.05350).

    Example:
        >>> X = jnp.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]])
        >>> def apply(p, x):
        ...     a = x @ p["hidden"]
        ...     return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + 1e-6) * p["gain"]
        >>> params = {"gain": jnp.ones((1, 3)), "hidden": jnp.array([[1.0, 2.0, 0.5], [0.2, -1.0, 3.0]])}
        >>> decay_mask(apply, params, X)
        {'gain': False, 'hidden': True}
    """
    if acts not in {RATE, REGULARIZER}:
        raise ValueError(
            f"acts must be {RATE!r} or {REGULARIZER!r}, what decay does to the leaves chosen; got {acts!r}"
        )
    check_model(apply, params)
    chosen = {k for part in parts(apply, params, *args) if part.acts == acts for k in part.leaves}
    structure = jax.tree.structure(params)
    mask = jax.tree.unflatten(structure, [k in chosen for k in range(structure.num_leaves)])
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx.pure(mask) if nnx is not None and isinstance(params, nnx.State | nnx.Module) else mask


def check_model(apply: Any, params: Any) -> None:
    """Checks that a model is a function and parameters.

    Args:
        apply: (params, *args) → outputs.
        params: the parameters.

    Raises:
        ValueError: if `apply` cannot be called, or the parameters hold something that is no array.
    """
    check_function(apply)
    for path, leaf in zip(leaf_paths(params), jax.tree.leaves(params), strict=True):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float):
            raise ValueError(
                f"the parameter {path} is a {type(leaf).__name__}, not an array: take the arrays of the model alone, "
                "as equinox.partition(model, equinox.is_inexact_array) or flax.nnx.split(model) give them"
            )
