r"""Natural gradients: $(F + \lambda I)^{-1} g$, and at λ = 0 the minimum-norm solution of $F x = g$.

F of a normalized model is singular by its symmetries, so $F^{-1} g$ does not exist; what does is the solution
orthogonal to the null space. With damping, a part of g along null directions is divided by λ, unless it is dropped.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.numerics import ConvergenceError
from lngeom._core.text import counted
from lngeom._core.types import is_concrete, is_tracing
from lngeom.information._derivative import GLMFunction, Pullback
from lngeom.information._krylov import Map, added, compiled_unless_on_host, conjugate_gradients, horizontal, inner
from lngeom.information._nullspace import BrokenDirection, broken_symmetries, scale_forms, scales
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher, as_tangent, flat_map, product_chunks, tree_map
from lngeom.information._sharding import Placement, sum_over_samples
from lngeom.information._spectrum import Decomposition
from lngeom.information.predicted import predicted_nullspace

NEARLY_NULL = 1e-6
"""A symmetry broken by an ε matters to a solution if its form is below this, relative to the largest eigenvalue."""


class Solution(NamedTuple):
    r"""The solution of $(F + \lambda I) x = g$, and how far to trust it (arrays under jit).

    Of several gradients [P K] the solutions are columns, and numbers that differ are arrays [K].

    Attributes:
        value: x, like the gradient.
        rank: number of identifiable directions, or None where iterations did not determine it.
        gap: smallest kept ÷ largest dropped singular value, or None.
        residual: |(F + λI) x − g'| / |g'|, where g' is g without what was left out.
        unidentifiable: |g − g'| / |g|, the part of g that was left out: along null directions, without damping or with
            null="drop".
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


def side_by_side(one: Callable[[Array], Solution], columns: Float[Array, "P K"]) -> Solution:
    """The solutions for the columns of a matrix, as columns; numbers that differ become arrays [K]."""
    if not is_concrete(columns) or is_tracing() or not columns.shape[1]:
        found = jax.lax.map(one, columns.T)
        return found._replace(value=found.value.T)
    each = [one(column) for column in columns.T]
    numbers = {
        name: np.array([getattr(x, name) for x in each])
        for name in ("residual", "unidentifiable", "iterations", "converged")
    }
    broken = tuple(dict.fromkeys(b for x in each for b in x.broken))
    return each[0]._replace(value=jnp.stack([x.value for x in each], 1), broken=broken, **numbers)


def _relative(a: PyTree, b: PyTree) -> Array:
    """|a| / |b|, or 0 where b is 0."""
    square = inner(b, b)
    return jnp.sqrt(jnp.where(square > 0, inner(a, a) / jnp.where(square > 0, square, 1), 0))


@compiled_unless_on_host("keep")
def _solve_by_decomposition(
    product: Map, decomposition: Decomposition, gradient: PyTree, damping: float | Array, keep: bool
) -> tuple[PyTree, dict]:
    """X = V_r (s² + λ)⁻¹ V_rᵀ g like g, with its report.

    With `keep` and λ > 0 the rest of g, divided by λ, is added. Where λ is at least eps s₁², the rounding of F itself,
    directions that may be signal count: there λ bounds them.
    """
    flat, restore = ravel_pytree(gradient)
    s, vectors, decision = decomposition.singular_values, decomposition.vectors, decomposition.decision
    g, damping = flat.astype(s.dtype), jnp.asarray(damping, s.dtype)
    whole = keep & (damping > 0)
    count = jnp.where(damping >= _bound(s), decision.most, decision.rank)
    decomposition = decomposition._replace(decision=decision._replace(rank=count))
    kept = decomposition.kept
    coefficients = jnp.where(kept, vectors @ g, 0)
    shifted = jnp.where(kept, jnp.square(s) + damping, 1)
    x, identifiable = (vectors.T @ c for c in (coefficients / shifted, coefficients))
    x = x + jnp.where(whole, (g - identifiable) / jnp.where(damping > 0, damping, 1), 0)
    solved = jnp.where(whole, g, identifiable)
    image = product(x) + damping * x
    image = jnp.where(whole, image, decomposition.identifiable(image))
    report = {"rank": count, "residual": _relative(image - solved, solved), "unidentifiable": _relative(g - solved, g)}
    return restore(x.astype(flat.dtype)), report


@functools.partial(jax.jit, static_argnames="at")
def _all_scale_forms(problem: Problem, at: Placement, changes: Float[Array, "K P"]) -> Float[Array, "K 2"]:
    return jax.lax.map(lambda change: scale_forms(problem, at, change), changes)


def _bound(s: Any) -> Any:
    """The rounding of F."""
    return jnp.finfo(s.dtype).eps * s[0] ** 2


def solve_by_decomposition(
    F: AbstractFisher, decomposition: Decomposition, gradient: PyTree, damping: float | Array, keep: bool, gauge: str
) -> tuple[PyTree, dict]:
    """The solution by the singular value decomposition of the factor, with the scales that an ε may break."""
    decision = decomposition.decision
    concrete = F.problem.is_concrete and is_concrete(gradient, damping, decomposition)
    known = {"gap": decision.gap, "iterations": 0}
    run = lambda d: _solve_by_decomposition(flat_map(F), d._replace(budget=0), gradient, damping, keep)  # noqa: E731
    x, report = run(decomposition)
    if not concrete:
        return x, known | report
    s, vectors = (np.asarray(v) for v in decomposition[:2])
    nearly = decomposition.rank and s[decomposition.rank - 1] < NEARLY_NULL**0.5 * s[0]
    candidates = [direction for _, direction in scales(F.problem)] if nearly else []
    found: list[tuple[BrokenDirection, Float[np.ndarray, " P"]]] = []
    if candidates:
        kept = vectors[: decomposition.rank]
        rest = lambda v: kept.T @ (kept @ v)  # noqa: E731
        changes = jnp.asarray(np.stack(candidates), F.problem.dtype)
        forms = F.summed(_all_scale_forms, changes, at=product_chunks)
        everything = broken_symmetries(F, rest, np.asarray(forms), float(s[0]) ** 2)
        found = [(b, v) for b, v in everything if b.form < NEARLY_NULL]
    if found and gauge == "broken":
        along = np.stack([v for _, v in found], 1)
        x, report = run(without(decomposition, jnp.asarray(np.linalg.qr(rest(along))[0], s.dtype)))
        found = []
    if not decision.certain and float(damping) < float(_bound(s)):
        warnings.warn(
            f"the rank {decision.rank} is not clear (it may be {decision.fewest} to {decision.most}), so the solution "
            f"may be dominated by a direction that is null; use damping of at least {float(_bound(s)):.1g}, or float64",
            RuntimeWarning,
            stacklevel=4,
        )
    report = known | {name: value.item() for name, value in report.items()}
    return x, report | {"broken": _amplified(F, x, found, 5)}


def _amplified(
    F: AbstractFisher, x: PyTree, found: list[tuple[BrokenDirection, Float[np.ndarray, " P"]]], level: int
) -> tuple[BrokenDirection, ...]:
    """The broken symmetries along which most of a solution lies, each with a warning."""
    if not found:
        return ()
    flat = np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(x)])
    shares = [abs(v @ flat) / max(float(np.linalg.norm(flat)), 1e-300) for _, v in found]
    amplified = [(b, share) for (b, _), share in zip(found, shares, strict=True) if share > 0.5]
    for b, share in amplified:
        warnings.warn(
            f"{100 * share:.0f} % of the solution lies along the {b.name}, a symmetry that only eps breaks: F there is "
            f"{b.form:.1e} of its largest eigenvalue (∝ eps²), so the solution is the gradient divided by almost "
            "nothing; gauge='broken' projects it out, damping bounds it",
            RuntimeWarning,
            stacklevel=level,
        )
    return tuple(b for b, _ in amplified)


def solve_by_conjugate_gradients(
    product,
    null: Float[Array, "P k"] | None,
    gradient: PyTree,
    damping: float | Array,
    keep: bool,
    tolerance: float,
    limit: int,
) -> tuple[PyTree, dict]:
    """Conjugate gradients from zero with the known null space, of ravelled vectors, projected out of every step.

    With `keep` and λ > 0 the part of the gradient in that null space, divided by λ, is added.

    Raises:
        ConvergenceError: if the residual is not reached: the system is inconsistent or too badly conditioned. Not under
            jit, where the report says so.
    """
    identifiable = horizontal(null, gradient)
    norm = jnp.sqrt(inner(identifiable, identifiable))
    scale = jnp.asarray(damping, norm.dtype)
    x, steps = conjugate_gradients(product, null, identifiable, scale, tolerance * norm, limit)
    image = added(product(x), scale, x)
    residual = _relative(added(horizontal(null, image), -1.0, identifiable), identifiable)
    converged = residual <= 10 * tolerance
    if is_concrete(converged) and not converged:
        raise ConvergenceError(
            f"conjugate gradients stopped after {counted(int(steps), 'iteration')} at relative residual "
            f"{float(residual):.2g} > {tolerance:.2g}: the gradient has a part along null directions that nullspace= "
            "does not contain, or F is too badly conditioned; pass the null space, use "
            f"{'more ' * bool(damping)}damping, or method='svd'"
        )
    rest = added(gradient, -1.0, identifiable)
    if keep and null is not None:
        x = x + jnp.where(scale > 0, rest / jnp.where(scale > 0, scale, 1), 0)
        rest = jnp.where(scale > 0, 0, rest)
    report = {
        "rank": None if null is None else len(null) - null.shape[1],
        "gap": None,
        "residual": residual,
        "unidentifiable": _relative(rest, gradient),
        "iterations": steps,
        "converged": converged,
    }
    return x, report


def solve(
    F: AbstractFisher,
    gradient: PyTree,
    damping: float | Array,
    method: str,
    null: Float[Array, "P k"] | None,
    decomposition: Decomposition | None,
    tolerance: float | None,
    limit: int | None,
    gauge: str,
    null_part: str = "keep",
) -> tuple[PyTree, dict]:
    """Solves by the method given (arguments as `FisherOperator.solve`; `null_part` is its `null`).

    Raises:
        ValueError: if the method, gauge or null part is unknown, or null directions are to be dropped that are not
            known.
    """
    concrete = F.problem.is_concrete and is_concrete(gradient, damping)
    if gauge not in {"exact", "broken"}:
        raise ValueError(f"gauge must be 'exact' or 'broken'; got {gauge!r}")
    if null_part not in {"keep", "drop"}:
        raise ValueError(f"null must be 'keep' or 'drop'; got {null_part!r}")
    keep = null_part == "keep" and gauge == "exact"
    if gauge == "broken" and not concrete:
        raise ValueError(
            "gauge='broken' looks for symmetries in the values of the parameters, which do not exist yet under jit, "
            "scan or vmap: use gauge='exact' there, with damping"
        )
    if method == "svd":
        assert decomposition is not None
        return solve_by_decomposition(F, decomposition, gradient, damping, keep, gauge)
    if method != "cg":
        raise ValueError(f"method must be 'svd' or 'cg'; got {method!r}")
    reach = F.problem.precision().eps ** 0.625 if tolerance is None else tolerance
    limit = limit or 10 * F.in_size()
    if F._placement.params is not None and null is None and keep:
        wide = jax.tree.map(lambda v: v.astype(F.problem.decomposition_dtype), as_tangent(F, gradient))
        x, report = solve_by_conjugate_gradients(tree_map(F), None, wide, damping, True, reach, limit)
        return jax.tree.map(lambda a, v: a.astype(v.dtype), x, as_tangent(F, gradient)), report
    flat, restore = ravel_pytree(gradient)
    g = flat.astype(F.problem.decomposition_dtype)
    null = known_nullspace(F) if null is None and concrete else null
    if null is None and null_part == "drop":
        raise ValueError(
            "null='drop' needs the null space, and products alone do not show it: give nullspace=, an orthonormal "
            "basis, or method='svd'"
        )
    basis = jnp.zeros((g.size, 0), g.dtype) if null is None else null.astype(g.dtype)
    found = []
    if concrete:
        known = np.asarray(basis, np.float64)
        broken = broken_symmetries(F, lambda v: v - known @ (known.T @ v))
        found = [(b, v) for b, v in broken if b.form < NEARLY_NULL]
    if found and gauge == "broken":
        along = jnp.asarray(np.stack([v for _, v in found], 1), g.dtype)
        null, found = jnp.concatenate([basis, jnp.linalg.qr(along - basis @ (basis.T @ along))[0]], 1), []
    x, report = solve_by_conjugate_gradients(flat_map(F), null, g, damping, keep, reach, limit)
    if concrete:
        report = {k: v.item() if isinstance(v, jax.Array) else v for k, v in report.items()}
        report |= {"broken": _amplified(F, x, found, 4)}
    return restore(x.astype(flat.dtype)), report


def known_nullspace(F: AbstractFisher) -> Float[Array, "P k"] | None:
    """The null space that theory predicts for a whole normalized GLM, if its basis fits; None for other models."""
    problem = F.problem
    params, model = problem.params, problem.model
    if F.in_parts:  # the data of the first part say nothing of the others
        return None
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
    problem, null = F.problem, known_nullspace(F) if F.problem.is_concrete else None

    def draw(key: PRNGKeyArray) -> Float[Array, " P"]:
        z = problem.output_shape
        noise = jax.random.normal(key, z.shape, z.dtype)
        gradient = _transposed_factor_product(replace(problem, scores=noise[:, None]), product_chunks(F))
        return solve(F, gradient, 0.0, "cg", null, None, None, None, "exact")[0]

    draws = [draw(k) for k in jax.random.split(key, count)]
    return jnp.stack(draws) if draws else jnp.zeros((0, F.in_size()), problem.dtype)


@functools.partial(jax.jit, static_argnames="at")
def _transposed_factor_product(problem: Problem, at: Placement) -> Float[Array, " P"]:
    """Aᵀ ξ, with ξ [N 1 *R] in the place of scores."""

    def term(part: Problem) -> PyTree:
        assert part.scores is not None
        pullback = Pullback(replace(part, scores=None))
        return pullback.transposed_root(part.scores[:, 0])

    return problem.ravel(sum_over_samples(term, problem, at))


@functools.partial(jax.jit, static_argnames="count")
def sample_by_decomposition(decomposition: Decomposition, key: PRNGKeyArray, count: int) -> Float[Array, "K P"]:
    """Draws from N(0, F⁺), one a row: V_r s⁻¹ ξ."""
    s, kept = decomposition.singular_values, decomposition.kept
    noise = jax.random.normal(key, (count, s.size), s.dtype)
    return jnp.where(kept[None, :], noise / jnp.where(kept, s, 1)[None, :], 0) @ decomposition.vectors
