r"""Natural gradients on the identifiable directions: minimum-norm solutions of $F x = g$.

F of a normalized model is singular by its symmetries, so $F^{-1} g$ does not exist; what does is the solution
orthogonal to the null space. Noise along null directions must be projected out, not divided by.
"""

import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom.information._spectrum import SMALL, Decomposition

CLEAR_GAP = 10.0
"""A rank is clear if the smallest kept singular value is this much larger than the largest dropped one."""


class Solution(NamedTuple):
    r"""The minimum-norm solution of $(F + \lambda I) x = g$, and how far to trust it.

    Attributes:
        value: x, a tangent like params.
        rank: number of identifiable directions, or None where iterations did not determine it.
        gap: smallest kept ÷ largest dropped singular value, or None.
        residual: |(F + λI) x − g'| / |g'| with g' the identifiable part of g.
        unidentifiable: |g − g'| / |g|, the part of g along null directions, which was projected out.
        iterations: of conjugate gradients (0 for the decomposition).
    """

    value: PyTree
    rank: int | None
    gap: float | None
    residual: float
    unidentifiable: float
    iterations: int


def _relative(a: Array, b: Array) -> float:
    norm = float(jnp.linalg.norm(b))
    return float(jnp.linalg.norm(a)) / norm if norm else 0.0


def solve_by_decomposition(
    product, decomposition: Decomposition, gradient: Float[Array, " P"], damping: float
) -> tuple[Float[Array, " P"], dict]:
    """X = V_r (s² + λ)⁻¹ V_rᵀ g, by the singular value decomposition of the factor.

    Args:
        product: v ↦ Fv, for the residual.
        decomposition: of the factor.
        gradient: g.
        damping: λ.

    Returns:
        x, and what `Solution` reports.
    """
    basis, s = decomposition.range, decomposition.singular_values[: decomposition.rank]
    coefficients = basis.T @ gradient
    x = basis @ (coefficients / (jnp.square(s) + jnp.asarray(damping, s.dtype)))
    identifiable = basis @ coefficients
    gap = decomposition.decision.gap
    if gap < CLEAR_GAP:
        warnings.warn(
            f"the rank {decomposition.rank} is not clear: singular values fall only by a factor "
            f"{gap:.3g} at the cut, so the "
            "solution may be dominated by a direction that is null; use damping, or float64",
            RuntimeWarning,
            stacklevel=3,
        )
    report = {
        "rank": decomposition.rank,
        "gap": gap,
        "residual": _relative(product(x) + damping * x - identifiable, identifiable),
        "unidentifiable": _relative(gradient - identifiable, gradient),
        "iterations": 0,
    }
    return x, report


@functools.partial(jax.jit, static_argnames=("limit",))
def _conjugate_gradients(product, null: Array, b: Array, damping: Array, target: Array, limit: int):
    def horizontal(v: Array) -> Array:
        return v - null @ (null.T @ v)

    def apply(v: Array) -> Array:
        return horizontal(product(horizontal(v))) + damping * v

    def unfinished(state) -> Array:
        _, _, _, squared, step = state
        return (squared > target**2) & (step < limit)

    def iterate(state):
        x, r, p, squared, step = state
        q = apply(p)
        alpha = squared / jnp.vdot(p, q)
        x, r = x + alpha * p, horizontal(r - alpha * q)
        new = jnp.vdot(r, r)
        return x, r, r + new / squared * p, new, step + 1

    start = (jnp.zeros_like(b), b, b, jnp.vdot(b, b), jnp.zeros((), jnp.int32))
    x, _, _, _, steps = jax.lax.while_loop(unfinished, iterate, start)
    return horizontal(x), steps


def solve_by_conjugate_gradients(
    product,
    null: Float[Array, "P k"] | None,
    gradient: Float[Array, " P"],
    damping: float,
    tolerance: float,
    limit: int,
) -> tuple[Float[Array, " P"], dict]:
    """Conjugate gradients from zero with the known null space projected out of every step.

    Args:
        product: v ↦ Fv, a pytree that can cross jit (such as `jax.tree_util.Partial`).
        null: orthonormal basis of the known null space, or None.
        gradient: g.
        damping: λ.
        tolerance: relative residual to reach.
        limit: most iterations.

    Returns:
        x, and what `Solution` reports.

    Raises:
        RuntimeError: if the residual is not reached: the system is inconsistent or too badly conditioned.
    """
    basis = jnp.zeros((gradient.size, 0), gradient.dtype) if null is None else null
    identifiable = gradient - basis @ (basis.T @ gradient)
    norm = jnp.linalg.norm(identifiable)
    scale = jnp.asarray(damping, gradient.dtype)
    x, steps = _conjugate_gradients(product, basis, identifiable, scale, tolerance * norm, limit)
    residual = _relative(product(x) + damping * x - identifiable, identifiable)
    if not residual <= 10 * tolerance:
        raise RuntimeError(
            f"conjugate gradients stopped after {int(steps)} iterations at relative residual "
            f"{residual:.2g} > "
            f"{tolerance:.2g}: the gradient has a part along null directions that nullspace= does not "
            f"contain, or F is too "
            "badly conditioned; pass the null space, use damping, or method='svd'"
        )
    report = {
        "rank": None if null is None else gradient.size - basis.shape[1],
        "gap": None,
        "residual": residual,
        "unidentifiable": _relative(gradient - identifiable, gradient),
        "iterations": int(steps),
    }
    return x, report


def solve(
    operator: Any,
    gradient: Float[Array, " P"],
    damping: float,
    method: str | None,
    null: Float[Array, "P k"] | None,
    decomposition: Decomposition | None,
    tolerance: float | None,
    limit: int | None,
) -> tuple[Float[Array, " P"], dict]:
    """Chooses the method, and solves.

    Args:
        operator: a Fisher operator.
        gradient: g, ravelled.
        damping: λ.
        method: "svd", "cg", or None to choose by size.
        null: orthonormal basis of the known null space, for "cg".
        decomposition: for "svd".
        tolerance: for "cg".
        limit: for "cg".

    Returns:
        x, and what `Solution` reports.

    Raises:
        ValueError: if damping is negative or the method unknown.
    """
    if damping < 0:
        raise ValueError(f"damping must be at least 0; got {damping}")
    product = Partial(type(operator).__matmul__, operator)
    if method is None:
        method = "svd" if decomposition is not None or gradient.size <= SMALL else "cg"
    if method == "svd":
        return solve_by_decomposition(product, decomposition or operator.decompose(), gradient, damping)
    if method == "cg":
        reach = float(jnp.finfo(gradient.dtype).eps) ** 0.625 if tolerance is None else tolerance
        return solve_by_conjugate_gradients(product, null, gradient, damping, reach, limit or 10 * gradient.size)
    raise ValueError(f"method must be 'svd' or 'cg'; got {method!r}")


def sample(decomposition: Decomposition, key: PRNGKeyArray, count: int) -> Float[Array, "K P"]:
    """Draws from N(0, F⁺): V_r s⁻¹ ξ, with no component along the null space."""
    s = decomposition.singular_values[: decomposition.rank]
    noise = jax.random.normal(key, (count, decomposition.rank), s.dtype)
    return noise / s[None, :] @ decomposition.vectors[: decomposition.rank]
