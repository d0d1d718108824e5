r"""Natural gradients on the identifiable directions: minimum-norm solutions of $F x = g$.

F of a normalized model is singular by its symmetries, so $F^{-1} g$ does not exist; what does is the solution
orthogonal to the null space. Noise along null directions must be projected out, not divided by.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._types import is_concrete, is_tracing
from lngeom.information._derivative import GLMFunction, Pullback
from lngeom.information._nullspace import BrokenDirection, broken_symmetries
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher
from lngeom.information._programs import working_precision
from lngeom.information._sharding import Placement, sum_over_samples
from lngeom.information._spectrum import SMALL, Decomposition
from lngeom.nullspace import predicted_nullspace
from lngeom.numerics import ConvergenceError

NEARLY_NULL = 1e-6
"""A symmetry broken by an ε matters to a solution if its form is below this, relative to the largest eigenvalue."""


class Solution(NamedTuple):
    r"""The minimum-norm solution of $(F + \lambda I) x = g$, and how far to trust it (arrays under jit).

    Attributes:
        value: x, a tangent like params.
        rank: number of identifiable directions, or None where iterations did not determine it.
        gap: smallest kept ÷ largest dropped singular value, or None.
        residual: |(F + λI) x − g'| / |g'|, of the identifiable part, which g' is of g.
        unidentifiable: |g − g'| / |g|, the part of g along null directions, which was projected out.
        iterations: of conjugate gradients (0 for the decomposition).
        broken: symmetries that only an ε breaks, along which most of x lies: F is almost zero there (∝ ε²), so x is
            the gradient's rounding or noise, divided by almost nothing. `gauge="broken"` projects them out. Not looked
            for under jit.
        converged: whether the residual is within the tolerance of the iterations. Under jit nothing is raised: look
            at this.
    """

    value: PyTree
    rank: int | None
    gap: float | None
    residual: float
    unidentifiable: float
    iterations: int
    broken: tuple[BrokenDirection, ...] = ()
    converged: bool = True


def _relative(a: Array, b: Array) -> Array:
    norm = jnp.linalg.norm(b)
    return jnp.where(norm > 0, jnp.linalg.norm(a) / jnp.where(norm > 0, norm, 1), 0)


def solve_by_decomposition(
    product, decomposition: Decomposition, gradient: Float[Array, " P"], damping: float | Array
) -> tuple[Float[Array, " P"], dict]:
    """X = V_r (s² + λ)⁻¹ V_rᵀ g, by the singular value decomposition of the factor.

    Where λ is at least eps s₁², the rounding of F itself, directions that may be signal are kept: there λ bounds them.
    """
    decision, largest = decomposition.decision, decomposition.singular_values[0]
    bounded = jnp.asarray(damping, largest.dtype) >= jnp.finfo(largest.dtype).eps * largest**2
    count = jnp.where(bounded, decision.most, decision.rank)
    decomposition = decomposition._replace(decision=decision._replace(rank=count))
    s, vectors, kept = decomposition.singular_values, decomposition.vectors, decomposition.kept
    coefficients = jnp.where(kept, vectors @ gradient, 0)
    shifted = jnp.where(kept, jnp.square(s) + jnp.asarray(damping, s.dtype), 1)
    x, identifiable = (vectors.T @ c for c in (coefficients / shifted, coefficients))
    if is_concrete(decomposition, damping) and not decision.certain and not bool(bounded):
        warnings.warn(
            f"the rank {decision.rank} is not clear (it may be {decision.fewest} to {decision.most}), so the solution "
            "may be dominated by a direction that is null; use damping, or parameters in float64",
            RuntimeWarning,
            stacklevel=3,
        )
    report = {
        "rank": count if is_tracing() or not is_concrete(decomposition, damping) else int(count),
        "gap": decision.gap,
        "residual": _relative(decomposition.identifiable(product(x) + damping * x) - identifiable, identifiable),
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
    damping: float | Array,
    tolerance: float,
    limit: int,
) -> tuple[Float[Array, " P"], dict]:
    """Conjugate gradients from zero with the known null space projected out of every step.

    Raises:
        ConvergenceError: if the residual is not reached: the system is inconsistent or too badly conditioned. Not under
            jit, where the report says so.
    """
    basis = jnp.zeros((gradient.size, 0), gradient.dtype) if null is None else null
    identifiable = gradient - basis @ (basis.T @ gradient)
    norm = jnp.linalg.norm(identifiable)
    scale = jnp.asarray(damping, gradient.dtype)
    x, steps = _conjugate_gradients(product, basis, identifiable, scale, tolerance * norm, limit)
    image = product(x) + damping * x
    residual = _relative(image - basis @ (basis.T @ image) - identifiable, identifiable)
    converged = residual <= 10 * tolerance
    if is_concrete(converged) and not converged:
        raise ConvergenceError(
            f"conjugate gradients stopped after {int(steps)} iterations at relative residual {float(residual):.2g} > "
            f"{tolerance:.2g}: the gradient has a part along null directions that nullspace= does not contain, or F "
            "is too badly conditioned; pass the null space, use damping, or method='svd'"
        )
    report = {
        "rank": None if null is None else gradient.size - basis.shape[1],
        "gap": None,
        "residual": residual,
        "unidentifiable": _relative(gradient - identifiable, gradient),
        "iterations": steps,
        "converged": converged,
    }
    return x, report


def solve(
    F: AbstractFisher,
    gradient: Float[Array, " P"],
    damping: float | Array,
    method: str | None,
    null: Float[Array, "P k"] | None,
    decomposition: Decomposition | None,
    tolerance: float | None,
    limit: int | None,
    gauge: str,
) -> tuple[Float[Array, " P"], dict]:
    """Chooses the method, and solves (arguments as `FisherOperator.solve`).

    Raises:
        ValueError: if damping is negative, or the method or gauge unknown.
    """
    concrete = is_concrete(F.problem, gradient, damping) and not is_tracing()
    if is_concrete(damping) and damping < 0:
        raise ValueError(f"damping must be at least 0; got {damping}")
    if gauge not in {"exact", "broken"}:
        raise ValueError(f"gauge must be 'exact' or 'broken'; got {gauge!r}")
    if gauge == "broken" and not concrete:
        raise ValueError(
            "gauge='broken' looks for symmetries in the values of the parameters, which do not exist yet under jit, "
            "scan or vmap: use gauge='exact' there, with damping"
        )
    product, gradient = Partial(AbstractFisher.promoted_product, F), gradient.astype(F.problem.decomposition_dtype)
    if method is None:
        method = "svd" if decomposition is not None or gradient.size <= SMALL else "cg"
    if method == "svd":
        assert decomposition is not None
    elif method == "cg":
        decomposition = None
        null = known_nullspace(F) if null is None and concrete else null
    else:
        raise ValueError(f"method must be 'svd' or 'cg'; got {method!r}")
    if decomposition is not None:
        identifiable = decomposition.identifiable
    else:
        basis = jnp.zeros((gradient.size, 0), gradient.dtype) if null is None else null.astype(gradient.dtype)
        identifiable = lambda v: v - basis @ (basis.T @ v)  # noqa: E731
    found = _nearly_null(F, decomposition, identifiable) if concrete else []
    if found and gauge == "broken":
        along = jnp.asarray(np.stack([v for _, v in found], 1), gradient.dtype)
        extra, found = jnp.linalg.qr(identifiable(along))[0], []
        if decomposition is not None:
            decomposition = without(decomposition, extra)
        else:
            null = jnp.concatenate([basis, extra], 1)
    if decomposition is not None:
        x, report = solve_by_decomposition(product, decomposition, gradient, damping)
    else:
        reach = working_precision(F.problem).eps ** 0.625 if tolerance is None else tolerance
        limit = limit or 10 * gradient.size
        x, report = solve_by_conjugate_gradients(product, null, gradient, damping, reach, limit)
    if not concrete:
        return x, report
    report = {k: v.item() if isinstance(v, jax.Array) else v for k, v in report.items()}
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


def _nearly_null(
    F: AbstractFisher, decomposition: Decomposition | None, identifiable: Callable[[Array], Array]
) -> list[tuple[BrokenDirection, Float[np.ndarray, " P"]]]:
    """Symmetries that only an ε breaks, along which F is almost zero."""
    if decomposition is not None:
        s = np.asarray(decomposition.singular_values)
        if not decomposition.rank or s[decomposition.rank - 1] >= NEARLY_NULL**0.5 * s[0]:
            return []
    dtype = F.problem.decomposition_dtype
    rest = lambda v: np.asarray(identifiable(jnp.asarray(v, dtype)))  # noqa: E731
    return [(b, v) for b, v in broken_symmetries(F, rest) if b.form < NEARLY_NULL]


def known_nullspace(F: AbstractFisher) -> Float[Array, "P k"] | None:
    """The null space that theory predicts for a whole normalized GLM, if its basis fits; None for other models."""
    problem = F.problem
    params, model = problem.params, problem.model
    whole = isinstance(model, GLMFunction) and not model.printed and len(jax.tree.leaves(params)) == 3
    if not whole or problem.inputs.ndim != 2 or not problem.inputs.is_fully_addressable:
        return None
    if 24 * params.size * (params.inputs + params.units) > F.plan.budget:
        return None
    try:
        predicted = predicted_nullspace(model.model, params, problem.inputs)
    except ValueError:  # a normalizer without theory, or a σ of zero
        return None
    return jnp.asarray(predicted.basis, problem.dtype)


def without(decomposition: Decomposition, extra: Float[Array, "P k"]) -> Decomposition:
    """The decomposition of the factor on the complement of more directions, which become null."""
    s, vectors = decomposition.singular_values, decomposition.vectors
    along = vectors @ extra
    _, s, turned = jnp.linalg.svd(s[:, None] * (jnp.eye(len(s), dtype=s.dtype) - along @ along.T))
    rank = decomposition.rank - extra.shape[1]
    gap = float(s[rank - 1] / s[rank]) if rank and float(s[rank]) > 0 else float("inf")
    decision = decomposition.decision._replace(rank=rank, gap=gap, fewest=rank, most=rank)
    return decomposition._replace(singular_values=s, vectors=turned @ vectors, decision=decision)


def sample_by_products(F: AbstractFisher, key: PRNGKeyArray, count: int) -> Float[Array, "K P"]:
    """Draws from N(0, F⁺), one a row, without a decomposition: F⁺ Aᵀ ξ, whose covariance is F⁺ (AᵀA) F⁺."""
    problem = F.problem
    at = F.chunks
    null = known_nullspace(F) if is_concrete(problem) and not is_tracing() else None

    def draw(key: PRNGKeyArray) -> Float[Array, " P"]:
        z = jax.eval_shape(problem.forward, problem.params)
        noise = jax.random.normal(key, z.shape, z.dtype)
        gradient = _transposed_factor_product(replace(problem, scores=noise[:, None]), at)
        return solve(F, gradient, 0.0, "cg", null, None, None, None, "exact")[0]

    return jnp.stack([draw(k) for k in jax.random.split(key, count)])


@functools.partial(jax.jit, static_argnames="at")
def _transposed_factor_product(problem: Problem, at: Placement) -> Float[Array, " P"]:
    """Aᵀ ξ, with ξ [N 1 *R] in the place of scores."""

    def term(part: Problem) -> PyTree:
        assert part.scores is not None
        pullback = Pullback(replace(part, scores=None))
        return pullback.transposed_root(part.scores[:, 0])

    return problem.ravel(sum_over_samples(term, problem, at))


def sample_by_decomposition(decomposition: Decomposition, key: PRNGKeyArray, count: int) -> Float[Array, "K P"]:
    """Draws from N(0, F⁺), one a row: V_r s⁻¹ ξ."""
    s, kept = decomposition.singular_values, decomposition.kept
    noise = jax.random.normal(key, (count, s.size), s.dtype)
    return jnp.where(kept[None, :], noise / jnp.where(kept, s, 1)[None, :], 0) @ decomposition.vectors
