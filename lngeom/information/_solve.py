r"""Natural gradients on the identifiable directions: minimum-norm solutions of $F x = g$.

F of a normalized model is singular by its symmetries, so $F^{-1} g$ does not exist; what does is the solution
orthogonal to the null space. Noise along null directions must be projected out, not divided by.
"""

import functools
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._numerics import ConvergenceError
from lngeom.glm import NormalizedGLM
from lngeom.information._broken import BrokenDirection, broken_symmetries
from lngeom.information._nullspace import predicted_nullspace
from lngeom.information._problem import Problem
from lngeom.information._pullback import GLMFunction, Pullback
from lngeom.information._sharding import Placement, sum_over_samples
from lngeom.information._spectrum import SMALL, Decomposition
from lngeom.information._streaming import original

NEARLY_NULL = 1e-6
"""A symmetry broken by an ε matters to a solution if its form is below this, relative to the largest eigenvalue."""

CLEAR_GAP = 10.0
"""A rank is clear if the smallest kept singular value is this much larger than the largest dropped one."""


class Solution(NamedTuple):
    r"""The minimum-norm solution of $(F + \lambda I) x = g$, and how far to trust it.

    Attributes:
        value: x, a tangent like params.
        rank: number of identifiable directions, or None where iterations did not determine it.
        gap: smallest kept ÷ largest dropped singular value, or None.
        residual: |(F + λI) x − g'| / |g'|, of the identifiable part, which g' is of g.
        unidentifiable: |g − g'| / |g|, the part of g along null directions, which was projected out.
        iterations: of conjugate gradients (0 for the decomposition).
        broken: symmetries that only an ε breaks, along which most of x lies: F is almost zero there (∝ ε²), so x is
            the gradient's rounding or noise, divided by almost nothing. `gauge="broken"` projects them out.
    """

    value: PyTree
    rank: int | None
    gap: float | None
    residual: float
    unidentifiable: float
    iterations: int
    broken: tuple[BrokenDirection, ...] = ()


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
        "residual": _relative(basis @ (basis.T @ (product(x) + damping * x)) - identifiable, identifiable),
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
        ConvergenceError: if the residual is not reached: the system is inconsistent or too badly conditioned.
    """
    basis = jnp.zeros((gradient.size, 0), gradient.dtype) if null is None else null
    identifiable = gradient - basis @ (basis.T @ gradient)
    norm = jnp.linalg.norm(identifiable)
    scale = jnp.asarray(damping, gradient.dtype)
    x, steps = _conjugate_gradients(product, basis, identifiable, scale, tolerance * norm, limit)
    image = product(x) + damping * x
    residual = _relative(image - basis @ (basis.T @ image) - identifiable, identifiable)
    if not residual <= 10 * tolerance:
        raise ConvergenceError(
            f"conjugate gradients stopped after {int(steps)} iterations at relative residual {residual:.2g} > "
            f"{tolerance:.2g}: the gradient has a part along null directions that nullspace= does not contain, or F "
            "is too badly conditioned; pass the null space, use damping, or method='svd'"
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
    gauge: str,
) -> tuple[Float[Array, " P"], dict]:
    """Chooses the method, and solves.

    Args:
        operator: a Fisher operator.
        gradient: g, ravelled.
        damping: λ.
        method: "svd", "cg", or None to choose by size.
        null: orthonormal basis of the known null space, for "cg"; that of theory where None.
        decomposition: for "svd".
        tolerance: for "cg".
        limit: for "cg".
        gauge: "exact" or "broken".

    Returns:
        x, and what `Solution` reports.

    Raises:
        ValueError: if damping is negative, or the method or gauge unknown.
    """
    if damping < 0:
        raise ValueError(f"damping must be at least 0; got {damping}")
    if gauge not in {"exact", "broken"}:
        raise ValueError(f"gauge must be 'exact' or 'broken'; got {gauge!r}")
    product = Partial(type(operator).__matmul__, operator)
    if method is None:
        method = "svd" if decomposition is not None or gradient.size <= SMALL else "cg"
    if method == "svd":
        decomposition = operator.decompose() if decomposition is None else decomposition
        assert decomposition is not None
        null = decomposition.null
        s = decomposition.singular_values
        suspect = decomposition.rank > 0 and float(s[decomposition.rank - 1]) < NEARLY_NULL**0.5 * float(s[0])
    elif method == "cg":
        null = known_nullspace(operator) if null is None else null
        suspect = True
    else:
        raise ValueError(f"method must be 'svd' or 'cg'; got {method!r}")
    basis = np.zeros((gradient.size, 0)) if null is None else np.asarray(null, np.float64)
    found = [(b, v) for b, v in broken_symmetries(operator, basis) if b.form < NEARLY_NULL] if suspect else []
    if found and gauge == "broken":
        rest = np.stack([v for _, v in found], 1)
        extra = jnp.asarray(np.linalg.qr(rest - basis @ (basis.T @ rest))[0], gradient.dtype)
        null, found = jnp.concatenate([jnp.asarray(basis, gradient.dtype), extra], 1), []
        decomposition = None if decomposition is None else without(decomposition, extra)
    if decomposition is not None and method == "svd":
        x, report = solve_by_decomposition(product, decomposition, gradient, damping)
    else:
        reach = float(jnp.finfo(gradient.dtype).eps) ** 0.625 if tolerance is None else tolerance
        limit = limit or 10 * gradient.size
        x, report = solve_by_conjugate_gradients(product, null, gradient, damping, reach, limit)
    shares = [abs(float(jnp.asarray(v, x.dtype) @ x)) / max(float(jnp.linalg.norm(x)), 1e-300) for _, v in found]
    amplified = [(b, share) for (b, _), share in zip(found, shares, strict=True) if share > 0.5]
    for b, share in amplified:
        warnings.warn(
            f"{100 * share:.0f} % of the solution lies along the {b.name}, a symmetry that only eps breaks: F there is "
            f"{b.form:.1e} of its largest eigenvalue (∝ eps²), so the solution is the gradient divided by almost "
            "nothing; gauge='broken' projects it out, damping bounds it",
            RuntimeWarning,
            stacklevel=3,
        )
    return x, report | {"broken": tuple(b for b, _ in amplified)}


def known_nullspace(operator: Any) -> Float[Array, "P k"] | None:
    """The null space that theory predicts for a whole normalized GLM, if its basis fits; None for other models.

    Args:
        operator: a Fisher operator, with concrete arrays.

    Returns:
        An orthonormal basis, or None.
    """
    problem = operator.problem
    params, model = problem.params, problem.model
    whole = isinstance(model, GLMFunction) and not model.printed and len(jax.tree.leaves(params)) == 3
    if not whole or problem.inputs.ndim != 2 or not problem.inputs.is_fully_addressable:
        return None
    if 24 * params.size * (params.inputs + params.units) > operator.plan.budget:
        return None
    glm = NormalizedGLM(original(model.model.normalizer), model.model.family)
    try:
        predicted = predicted_nullspace(glm, params, problem.inputs)
    except ValueError:  # a normalizer without theory, or a σ of zero
        return None
    return jnp.asarray(predicted.basis, problem.dtype)


def without(decomposition: Decomposition, extra: Float[Array, "P k"]) -> Decomposition:
    """The decomposition of the factor on the complement of more directions, which become null.

    Args:
        decomposition: of the factor.
        extra: orthonormal columns, orthogonal to its null space.

    Returns:
        That of A(I − UUᵀ), whose rank is lower by their number.
    """
    rows = decomposition.singular_values[:, None] * decomposition.vectors
    _, s, vectors = jnp.linalg.svd(rows - (rows @ extra) @ extra.T, full_matrices=True)
    rank = decomposition.rank - extra.shape[1]
    gap = float(s[rank - 1] / s[rank]) if float(s[rank]) > 0 else float("inf")
    return Decomposition(s, vectors, decomposition.decision._replace(rank=rank, gap=gap))


def sample_by_products(operator: Any, key: PRNGKeyArray, count: int) -> Float[Array, "K P"]:
    """Draws from N(0, F⁺) without a decomposition: F⁺ Aᵀ ξ, whose covariance is F⁺ (AᵀA) F⁺.

    Args:
        operator: a Fisher operator of the exact metric.
        key: for ξ.
        count: K.

    Returns:
        One draw a row.
    """
    problem = operator.problem
    at = operator.placement._replace(chunk=operator.plan.chunk)
    null = known_nullspace(operator)

    def draw(key: PRNGKeyArray) -> Float[Array, " P"]:
        z = jax.eval_shape(problem.forward, problem.params)
        noise = jax.random.normal(key, z.shape, z.dtype)
        gradient = _transposed_factor_product(replace(problem, scores=noise[:, None]), at)
        return solve(operator, gradient, 0.0, "cg", null, None, None, None, "exact")[0]

    return jnp.stack([draw(k) for k in jax.random.split(key, count)])


@functools.partial(jax.jit, static_argnames="at")
def _transposed_factor_product(problem: Problem, at: Placement) -> Float[Array, " P"]:
    """Aᵀ ξ, with ξ [N 1 *R] in the place of scores."""

    def term(part: Problem) -> PyTree:
        assert part.scores is not None
        pullback = Pullback(replace(part, scores=None))
        return pullback.derivative.pull(pullback.metric.transposed_sqrt(part.scores[:, 0]))

    return problem.ravel(sum_over_samples(term, problem, at))


def sample(
    operator: Any, key: PRNGKeyArray, count: int, decomposition: Decomposition | None, method: str | None
) -> Float[Array, "K P"]:
    """Draws from N(0, F⁺): V_r s⁻¹ ξ, or by products where P is large; none has a component along the null space.

    Args:
        operator: a Fisher operator.
        key: for ξ.
        count: K.
        decomposition: of the factor, for "svd".
        method: "svd", "cg", or None to choose by size.

    Returns:
        One draw a row.

    Raises:
        ValueError: if the method is unknown, or "cg" is asked of a Monte Carlo or empirical matrix.
    """
    if method not in {None, "svd", "cg"}:
        raise ValueError(f"method must be 'svd' or 'cg'; got {method!r}")
    exact = operator.problem.scores is None
    if method == "cg" and not exact:
        raise ValueError(f"method='cg' draws from an exact metric; got that of {operator.method!r}: use 'svd'")
    large = decomposition is None and operator.in_size() > SMALL
    if method == "cg" or (method is None and large and exact):
        return sample_by_products(operator, key, count)
    if decomposition is None:
        decomposition = operator.decompose()
    assert decomposition is not None
    s = decomposition.singular_values[: decomposition.rank]
    noise = jax.random.normal(key, (count, decomposition.rank), s.dtype)
    return noise / s[None, :] @ decomposition.vectors[: decomposition.rank]
