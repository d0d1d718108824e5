"""Looks for NaN, infinities and variances of zero in outputs, metric and derivatives, and says where they are."""

import functools
import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from lngeom._core.text import counted
from lngeom._core.trees import leaf_paths
from lngeom.information._derivative import BlockedPullback, GLMFunction, Pullback, pullback_of
from lngeom.information._problem import Problem
from lngeom.information._products import Stored, store
from lngeom.information._sharding import Placement, sum_over_samples


@functools.partial(jax.jit, static_argnames=("at", "keep"))
def store_and_count(problem: Problem, at: Placement, keep: bool) -> tuple[Stored | None, dict]:
    """The derivative of all samples if it is kept, and numbers of bad entries, in one program."""
    if keep:
        stored, (bad, pulled) = store(problem, at, _bad_entries)
    else:
        stored = None
        bad, pulled = sum_over_samples(lambda part: _bad_entries(part, pullback_of(part)), problem, at)
    by_leaf = {"parameters": problem.params, "Jacobians": pulled}
    return stored, bad | {what: [_nonfinite(leaf) for leaf in jax.tree.leaves(tree)] for what, tree in by_leaf.items()}


def _bad_entries(part: Problem, pullback: Pullback | BlockedPullback) -> tuple[dict[str, Array], PyTree]:
    """Numbers of bad entries in z and Λ, and Jᵀ1/N, which is not finite where J is not; a sum may leave 16 bits."""
    z = pullback.derivative.outputs
    one = jax.tree.map(lambda leaf: jnp.ones_like(leaf).at[..., 0].set(2), z)
    metric = pullback.metric.product(one) if part.scores is None else part.scores
    bad = {
        "outputs": _nonfinite(z),
        "cancelled": _count_cancelled(part),
        "mistaken": sum(_mistaken(part, leaf) for leaf in jax.tree.leaves(z)[:1]),
        "outside": sum(jnp.sum(part.family.outside(leaf)) for leaf in jax.tree.leaves(z)),
        "metric": _nonfinite(metric),
    }
    if part.weights is not None:  # at the positions that count: the others are constants
        tangents = pullback.derivative.push(jax.tree.map(jnp.ones_like, part.params))
        bad["tangents"] = _nonfinite(tangents)
    return bad, pullback.derivative.pull(jax.tree.map(lambda leaf: jnp.full_like(leaf, 1 / part.samples), z))


def _mistaken(part: Problem, z: Array) -> Array:
    """Number of positions that count where outputs look like something else than the family expects."""
    found = part.family.mistaken(z)
    return jnp.sum(found if part.weights is None else found & (part.weights > 0))


def require_finite(problem: Problem, bad: dict[str, Any], stated: Problem) -> None:
    """Raises a ValueError for NaN and infinities in z, Λ and J, and for variances of zero.

    Args:
        problem: what was looked at.
        bad: the numbers of bad entries, from `store_and_count`.
        stated: the problem as the user stated it. A GLM may say more of inputs that it cannot normalize.
    """
    names = leaf_paths(problem.params)
    for name, count in zip(names, bad["parameters"], strict=True):
        _require_none(f"parameter {name}", count)
    if bad["outputs"] + bad["cancelled"] and isinstance(stated.model, GLMFunction) and stated.weights is None:
        stated.model(stated.join(stated.params), stated.inputs)
    if bad["cancelled"]:
        raise ValueError(
            f"{type(problem.model.model.normalizer).__name__} is undefined: zero variance for "
            f"{counted(bad['cancelled'], 'normalized input')} at positions that count; mask such samples too, or "
            "use eps > 0 (check=False skips this check)"
        )
    _require_none("natural parameters z", bad["outputs"])
    positions = problem.samples * math.prod(problem.output_shape.shape[1:-1])
    whole = positions if problem.weights is None else int(jnp.sum(problem.weights > 0))
    if bad["mistaken"] and bad["mistaken"] == whole > 1:
        warnings.warn(
            f"all {whole} rows of outputs are probabilities, between 0 and 1 with a sum of 1, and "
            f"{problem.family.name} takes logits: the softmax is applied twice. Leave it out of the model, or return "
            "the logarithms",
            stacklevel=4,
        )
    if bad["outside"]:
        raise ValueError(
            f"{problem.family.name} needs natural parameters z < {problem.family.upper:g}; {bad['outside']} are not"
        )
    _require_none("the metric Λ of the outputs, or their scores,", bad["metric"])
    for name, count in zip(names, bad["Jacobians"], strict=True):
        if not count or problem.weights is None or bad["tangents"]:
            _require_none(f"the Jacobian ∂z/∂{name}", count)
            continue
        raise ValueError(
            f"the Jacobian ∂z/∂{name} must be finite at masked positions too, where it is multiplied by 0: make the "
            "model finite there, with jnp.where on the argument of the operation that is undefined (check=False skips "
            "this check)"
        )


def _count_cancelled(problem: Problem) -> Array:
    """Number of normalized inputs of a GLM, at positions that count, whose variance is zero but for rounding."""
    if not isinstance(problem.model, GLMFunction):
        return jnp.zeros((), int)
    params = eqx.combine(problem.params, problem.fixed.thaw())
    cancelled = problem.model.model.cancelled(params, problem.inputs)
    return jnp.sum(cancelled if problem.weights is None else cancelled & (problem.weights > 0)[..., None])


def _nonfinite(tree: PyTree) -> Array:
    return sum((jnp.sum(~jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)), jnp.zeros((), int))


def _require_none(name: str, bad: int) -> None:
    if bad:
        entries = counted(bad, "entry is", "entries are")
        raise ValueError(f"{name} must be finite; {entries} NaN or infinite (check=False skips this check)")
