"""Checks before a Fisher matrix is trusted: samples do not interact, values are finite, and all routes agree."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lngeom._trees import leaf_paths
from lngeom._types import is_concrete, is_tracing
from lngeom.information._coupled import BatchCoupled, streamed
from lngeom.information._derivative import GLMFunction, Pullback
from lngeom.information._factor import decomposition_dtype
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher
from lngeom.information._programs import working_precision
from lngeom.information._sharding import Placement, sum_over_samples
from lngeom.numerics import tolerance

PROBE = 8
"""Samples in the probe: few, so that one of them moves any shared statistic by much."""

COARSEST = 0.1
"""Relative change of outputs that no rounding excuses, not even in 16 bits."""


def _perturbed(leaf: Array) -> Array:
    """The same rows but the first, which is replaced by something quite different."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.concatenate([leaf[-1:], leaf[1:]])
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        first = -1.5 * leaf[-1:] + 0.5 * leaf[:1]
    else:
        least, most = jnp.min(leaf), jnp.max(leaf)
        first = jnp.broadcast_to(jnp.where(jnp.all(leaf[:1] == most), least, most), leaf[:1].shape)
    return jnp.concatenate([first.astype(leaf.dtype), leaf[1:]])


def ignore_masked(problem: Problem) -> Problem:
    """Puts 0 for entries of the inputs that are not finite at positions of weight 0.

    Raises:
        ValueError: if outputs at positions that count depend on such an entry.
    """
    assert problem.weights is not None
    counts = problem.weights > 0

    def clean(leaf: Array) -> Array:
        inexact = jnp.issubdtype(leaf.dtype, jnp.floating)
        if not inexact or leaf.shape[: counts.ndim] != counts.shape:
            return leaf
        shape = counts.shape + (1,) * (leaf.ndim - counts.ndim)
        return jnp.where(counts.reshape(shape) | jnp.isfinite(leaf), leaf, 0)

    cleaned = replace(problem, inputs=jax.tree.map(clean, problem.inputs))
    if is_concrete(problem) and any(
        bool(jnp.any(new != old))
        for new, old in zip(jax.tree.leaves(cleaned.inputs), jax.tree.leaves(problem.inputs), strict=True)
    ):
        forward = jax.jit(lambda p: p.forward(p.params))  # under jit a normalized GLM does not judge its inputs
        given, z = (forward(p) for p in (problem, cleaned))
        if not problem.coupled and bool(jnp.any(~jnp.isfinite(given) & jnp.isfinite(z))):
            raise ValueError(
                "outputs at positions that count depend on NaN or infinite inputs at masked positions: the mask must "
                "reach the model too (as an attention mask, say)"
            )
    return cleaned


def replace_masked_samples(problem: Problem) -> Problem:
    """Puts a sample that counts in the place of those that do not, so that derivatives there are finite.

    A problem whose samples interact, or which is traced, stays as it is.
    """
    if problem.weights is None or problem.coupled or not is_concrete(problem):
        return problem
    counts = jnp.any(problem.weights.reshape(problem.rows, -1) > 0, 1)
    if bool(jnp.all(counts)) or not bool(jnp.any(counts)):
        return problem
    first = int(jnp.argmax(counts))

    def put(leaf: Array) -> Array:
        return jnp.where(counts.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, leaf[first : first + 1])

    return replace(problem, inputs=jax.tree.map(put, problem.inputs))


@functools.partial(jax.jit, static_argnames="rows")
def _leading(per_sample: tuple, rows: int) -> tuple:
    """The first samples."""
    return jax.tree.map(lambda leaf: leaf[:rows], per_sample)


@jax.jit
def _probes(per_sample: tuple) -> tuple[tuple, ...]:
    """The samples with another first one, in the reverse order, and the first and the last one alone."""
    inputs, *others = per_sample
    orders = (slice(None, None, -1), slice(0, 1), slice(-1, None))
    picked = (jax.tree.map(lambda leaf, at=at: leaf[at], per_sample) for at in orders)
    return (jax.tree.map(_perturbed, inputs), *others), *picked


@jax.jit
def _masked_outputs(problem: Problem) -> Array:
    """The outputs, with 0 at positions that do not count."""
    z = problem.outputs(problem.params, problem.inputs)
    return z if problem.weights is None else jnp.where(problem.weights[..., None] > 0, z, 0)


@jax.jit
def _changes(z: Array, replaced: Array, backwards: Array, first: Array, last: Array) -> tuple[Array, ...]:
    """The size of the outputs, and by how much each probe moves those of samples that are the same."""
    wide = decomposition_dtype(z.dtype)
    z, replaced, backwards, first, last = (v.astype(wide) for v in (z, replaced, backwards, first, last))

    def largest(values: Array, where: Array) -> Array:
        return jnp.max(jnp.where(jnp.isfinite(where), jnp.abs(values), 0), initial=0)

    pairs = ((replaced[1:], z[1:]), (backwards[::-1], z), (first, z[:1]), (last, z[-1:]))
    return largest(z, z), *(largest(after - before, before) for after, before in pairs)


def check_coupling(problem: Problem) -> None:
    """Looks whether a sample's outputs depend on that sample alone, as they must unless samples are said to interact.

    One sample is replaced, the order of the samples is reversed, and samples are taken one by one: no output of an
    unchanged sample may change by more than rounding. A function with statistics of the samples is probed with those
    of the few.

    Raises:
        ValueError: if outputs change.
    """
    streams = isinstance(problem.model, BatchCoupled)
    if problem.rows < 2 or (problem.coupled and not streams):
        return
    rows = min(PROBE, problem.rows)
    few = problem.with_samples(_leading(problem.per_sample, rows))
    if streams:
        few = streamed(few, rows)

    replaced, backwards, first, last = _probes(few.per_sample)
    z = _masked_outputs(few)
    moved = [_masked_outputs(few.with_samples(probe)) for probe in (replaced, backwards, first, last)]
    scale, *changes = (float(v) for v in _changes(z, *moved))
    found = {
        f"changing the first of {rows} samples moved the outputs of the others": changes[0],
        f"reversing the order of {rows} samples moved their outputs": changes[1],
        "outputs of a sample change when it is evaluated alone": max(changes[2:]),
    }
    finest = tolerance(z.dtype)
    if all(change <= finest * scale for change in found.values()):
        return
    rough = min(tolerance(working_precision(few, of_inputs=True).dtype), COARSEST)
    for what, change in found.items():
        if not change <= max(finest, rough) * scale:
            remedy = (
                "A BatchCoupled function must take every mean over samples with the mean it is given"
                if streams
                else "If that is meant, as in training-mode batch norm, say batch_coupled=True. If it comes from "
                "dropout or other randomness, use the model's deterministic mode, or give each sample its own key in X"
            )
            raise ValueError(f"samples interact: {what} by {change:.2g} (of {scale:.2g}). {remedy}")


def check_finite(F: AbstractFisher, diagnose: Callable[[], object] | None = None) -> None:
    """Raises a ValueError for NaN and infinities in z, Λ and J, and for variances of zero.

    `diagnose` is called where z is not what it should be, to raise an error that says more.
    """
    problem = F.problem
    for name, bad in zip(leaf_paths(problem.params), _nonfinite(problem.params), strict=True):
        _complain(f"parameter {name}", int(bad))
    counts, pulled = count_nonfinite(problem, F.chunks)
    if diagnose is not None and int(counts["outputs"]) + int(counts["cancelled"]):
        diagnose()
    if int(counts["cancelled"]):
        raise ValueError(
            f"{type(problem.model.model.normalizer).__name__} is undefined: zero variance for "
            f"{int(counts['cancelled'])} normalized inputs at positions that count; mask such samples too, or use "
            "eps > 0 (check=False skips this check)"
        )
    _complain("natural parameters z", int(counts["outputs"]))
    if int(counts["outside"]):
        raise ValueError(
            f"{type(problem.family).__name__} needs natural parameters z < {problem.family.upper:g}; "
            f"{int(counts['outside'])} are not"
        )
    _complain("the metric Λ of the outputs", int(counts["metric"]))
    jacobians = {name: int(bad) for name, bad in zip(leaf_paths(pulled), _nonfinite(pulled), strict=True)}
    if any(jacobians.values()) and problem.weights is not None and not int(counts["tangents"]):
        first = next(name for name, bad in jacobians.items() if bad)
        raise ValueError(
            f"the Jacobian ∂z/∂{first} must be finite at masked positions too, where it is multiplied by 0: make the "
            "model finite there, with jnp.where on the argument of the operation that is undefined (check=False skips "
            "this check)"
        )
    for name, bad in jacobians.items():
        _complain(f"the Jacobian ∂z/∂{name}", bad)


@functools.partial(jax.jit, static_argnames="at")
def count_nonfinite(problem: Problem, at: Placement) -> tuple[dict[str, Array], PyTree]:
    """Numbers of bad entries in z and Λ, and Jᵀ1, which is not finite where J is not."""

    def term(part: Problem) -> tuple[dict[str, Array], PyTree]:
        pullback = Pullback(part)
        z = pullback.derivative.outputs
        metric = part.family.metric_product(z, jnp.ones_like(z).at[..., 0].set(2))
        counts = {
            "outputs": jnp.sum(~jnp.isfinite(z)),
            "cancelled": _count_cancelled(part),
            "outside": jnp.sum(z >= part.family.upper),
            "metric": jnp.sum(~jnp.isfinite(metric)),
        }
        if part.weights is not None:  # at the positions that count: the others are constants
            tangents = pullback.derivative.push(jax.tree.map(jnp.ones_like, part.params))
            counts["tangents"] = jnp.sum(~jnp.isfinite(tangents))
        return counts, pullback.derivative.pull(jnp.ones_like(z))

    return sum_over_samples(term, problem, at)


def _count_cancelled(problem: Problem) -> Array:
    """Number of normalized inputs of a GLM, at positions that count, whose variance is zero but for rounding."""
    if not isinstance(problem.model, GLMFunction):
        return jnp.zeros((), int)
    params = eqx.combine(problem.params, problem.fixed.thaw())
    cancelled = problem.model.model.cancelled(params, problem.inputs)
    return jnp.sum(cancelled if problem.weights is None else cancelled & (problem.weights > 0)[..., None])


@jax.jit
def _nonfinite(tree: PyTree) -> list[Array]:
    """For each leaf the number of entries that are NaN or infinite."""
    return [jnp.sum(~jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]


def _complain(name: str, bad: int) -> None:
    if bad:
        raise ValueError(f"{name} must be finite; {bad} entries are NaN or infinite (check=False skips this check)")


Route = Callable[[Float[Array, " P"]], tuple[Float[Array, " P"], Float[Array, " P"]]]
"""Random numbers ↦ (the image of a vector by some route, that vector)."""


def agrees(F: AbstractFisher, route: Route) -> bool:
    r"""Whether a route gives the image that the product gives: $|r - Fv| \le \sqrt{\text{eps}}\, |Fv|$.

    A wrong route misses by far more, rounding stays far below. eps is that of the precision in which the model
    computes.
    """
    if not F.checked or not is_concrete(F.problem) or is_tracing():
        return True
    dtype = decomposition_dtype(F.problem.dtype)
    image, vector = route(jax.random.normal(jax.random.key(0), (F.in_size(),), dtype))
    product = F.promoted_product(vector)
    gap, norm = float(jnp.linalg.norm(image - product)), float(jnp.linalg.norm(product))
    if gap <= float(jnp.finfo(F.problem.dtype).eps) ** 0.5 * norm:
        return True
    return gap <= working_precision(F.problem).eps ** 0.5 * norm


def require_agreement(F: AbstractFisher, what: str, route: Route) -> None:
    """Raises a ValueError where a route that has no alternative differs from the product (see `agrees`)."""
    if not agrees(F, route):
        raise ValueError(
            f"{what} and the products F @ v are not of one matrix: the function's outputs depend on how many samples "
            "it is given, or its forward- and reverse-mode derivatives differ. Say batch_coupled=True if samples "
            "interact; else make the function deterministic, or correct its derivative rule (check=False skips this "
            "check)"
        )


def warn_of_structure() -> None:
    """Warns that a structured route was given up."""
    warnings.warn(
        "the matrix read off the structure of the program differs from the products F @ v: the plain route is used "
        "instead, which is slower; please report this model",
        RuntimeWarning,
        stacklevel=4,
    )
