r"""The null space of a Fisher matrix as measured: a basis, a certificate, and names for its directions.

Of each candidate (`lngeom.information.candidates`) the part in the null space is counted and set aside, the simplest
first; the rest is unexplained.

A symmetry that only an ε in a normalizer breaks is found by the law of its form. To scale the weights before a
normalizer by δ acts as ε → ε/δ². The form along the logarithm of that scale is
$E[(\varepsilon/\sigma^2)^2 \dots] \propto \varepsilon^2$, so it falls as δ⁻⁴: almost null, but not null, and the
divisor of a solve.
"""

import functools
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from lngeom._core.subspaces import null_part, outside
from lngeom._core.support import Support, supports
from lngeom._core.trees import leaf_paths, leaf_rows, leaf_slices
from lngeom.families import Categorical, Gaussian, Product
from lngeom.information._coupled import at_parameters
from lngeom.information._derivative import GLMFunction
from lngeom.information._diagonal import diagonal
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher, product_chunks, quadratic_form
from lngeom.information._sharding import Placement
from lngeom.information._spectrum import Decomposition, leading_eigenvalues
from lngeom.information.candidates import Candidate, Leaf, candidates, candidates_of_stack, name_with_units
from lngeom.methods.layer import AbstractGroupedNormalizer

if TYPE_CHECKING:  # models that are no transformers do without
    from lngeom.transformers.description import Stack

LANCZOS = 30
"""Iterations for the largest eigenvalue, as a scale."""


class BrokenDirection(NamedTuple):
    """A symmetry that only an ε in a normalizer breaks.

    Attributes:
        name: the symmetry.
        form: vᵀFv for the unit vector v along it, relative to the largest eigenvalue.
        exponent: p in vᵀFv ∝ ε^p, found by scaling the leaf (ε acts as ε/δ²); 2 by theory.
    """

    name: str
    form: float
    exponent: float


class Direction(NamedTuple):
    """A family of null directions.

    Attributes:
        name: the symmetry, in terms of leaves.
        dimension: what it adds to those before it.
        uncertain: how many of these rounding may hide: F may not be zero along them.
    """

    name: str
    dimension: int
    uncertain: int = 0


@dataclass(frozen=True)
class Description:
    """A null space in words.

    Attributes:
        directions: named families.
        unexplained: null directions that no candidate accounts for.
        broken: nearly null directions, broken by ε.
        supports: the unexplained by the leaves in which they lie, as few leaves as can be found.
        uncertain: how many of the unexplained rounding may hide.
    """

    directions: tuple[Direction, ...]
    unexplained: int
    broken: tuple[BrokenDirection, ...]
    supports: tuple[Support, ...] = ()
    uncertain: int = 0

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = 80) -> str:
        """A line for each family of directions, what is unexplained and what is uncertain.

        Args:
            width: columns.
        """

        def line(start: str, text: str) -> str:
            further = " " * len(start)
            return textwrap.fill(text, width, initial_indent=start, subsequent_indent=further, break_long_words=False)

        lines = [line(f"{d.dimension:5d}  ", d.name + _marked(d.uncertain, d.dimension)) for d in self.directions]
        said = "; how many entries of a leaf each of them moves:" if self.supports else ""
        lines.append(line(f"{self.unexplained:5d}  ", f"unexplained{_marked(self.uncertain, self.unexplained)}{said}"))
        lines += [line(f"{s.dimension:9d}  ", str(s)) for s in self.supports]
        lines += [
            line("broken by eps: ", f"{b.name}, form {b.form:.2g} of the largest, ∝ eps^{b.exponent:.2f}")
            for b in self.broken
        ]
        if self.uncertain or any(d.uncertain for d in self.directions):
            lines.append(line("", "uncertain: no gap in the singular values separates them from rounding."))
        return "\n".join(lines)


def _marked(uncertain: int, dimension: int) -> str:
    return "" if not uncertain else " (uncertain)" if uncertain == dimension else f" ({uncertain} of them uncertain)"


@dataclass(frozen=True, repr=False)
class MeasuredNullspace:
    """Orthonormal basis of the null space, and what certifies it.

    Attributes:
        basis: columns [P k].
        dimension: k, the nullity.
        residual: largest singular value of the factor on the basis, relative to its largest on all
            directions.
        gap: smallest kept ÷ largest dropped singular value.
        operator: whose null space it is.
        certain: whether one gap alone separates the null space from the identifiable directions.
        largest: the largest eigenvalue of F.
        uncertain: the columns within it along which rounding may hide that F is not zero.
    """

    basis: Float[Array, "P k"]
    dimension: int
    residual: float
    gap: float
    operator: AbstractFisher
    certain: bool
    largest: float
    uncertain: Float[Array, "P u"]

    def __repr__(self) -> str:
        """Its dimension and certificate, not its arrays."""
        return (
            f"MeasuredNullspace(dimension {self.dimension} of {self.basis.shape[0]:,}, residual {self.residual:.1e}, "
            f"gap {self.gap:.1e}, of {self.operator!r})"
        )

    def principal_angles(self, basis: Float[Array, "P m"]) -> Float[Array, " n"]:
        """Principal angles in radians between this null space and the span of other columns, ascending.

        Args:
            basis: columns [P m], not necessarily orthonormal, such as a predicted null space.

        Returns:
            min(k, m) angles.

        Raises:
            ValueError: if the columns do not have P entries.
        """
        basis = jnp.asarray(basis, self.basis.dtype)
        if basis.ndim != 2 or basis.shape[0] != self.basis.shape[0]:
            raise ValueError(f"expected columns [P m] with P = {self.basis.shape[0]}; got shape {basis.shape}")
        if 0 in {basis.shape[1], self.dimension}:
            return jnp.zeros(0, self.basis.dtype)
        return jnp.asarray(scipy.linalg.subspace_angles(self.basis, basis)[::-1], self.basis.dtype)

    def by_leaf(self) -> list[dict[str, Any]]:
        """A row for each leaf: its path, shape and size, and how many of the null directions lie in it.

        That number is the squared norm of the basis on the leaf; over all leaves they add up to the dimension. Plain
        dicts of numbers, as `pandas.DataFrame` takes them.
        """
        squares = np.sum(np.square(np.asarray(self.basis, np.float64)), 1)
        rows = leaf_rows(self.operator.problem.params)
        return [row | {"null": float(squares[where].sum())} for row, where in rows]

    def describe(self, stack: "Stack | None" = None) -> Description:
        """Names each direction in the user's own parameters, and counts what is unexplained.

        Args:
            stack: description of the model, if it is a transformer whose parameters are arrays by name. Directions are
                then named by its symmetries.

        Raises:
            ValueError: if the parameters are not those of the stack.
        """
        first = () if stack is None else candidates_of_stack(stack, self.operator.problem.params)
        return explain(self, first)


def measure(F: AbstractFisher, decomposition: Decomposition) -> MeasuredNullspace:
    """The null space of an operator whose factor has been decomposed."""
    basis, decision = decomposition.null, decomposition.decision
    largest = float(np.asarray(decomposition.singular_values)[0])
    residual = 0.0
    if basis.shape[1] and largest > 0:
        forms = F.quadratic_form(basis.astype(F.problem.dtype))
        residual = float(np.sqrt(np.max(np.asarray(forms, np.float64)))) / largest
    uncertain = decomposition.vectors[decision.rank : decision.most].T
    return MeasuredNullspace(
        basis, basis.shape[1], residual, decision.gap, F, decision.certain, largest * largest, uncertain
    )


def explain(nullspace: MeasuredNullspace, first: Iterable[Iterable[Candidate]] = ()) -> Description:
    """Accounts for a null space, by the candidates given first and then by those of any model."""
    F, basis = nullspace.operator, nullspace.basis
    params = F.problem.params
    values = zip(leaf_slices(params).items(), jax.tree.leaves(params), strict=True)
    leaves = [Leaf(name, np.asarray(value, np.float64), where.start) for (name, where), value in values]
    null = np.linalg.qr(np.asarray(basis, np.float64))[0]
    close = float(jnp.finfo(F.problem.dtype).eps) ** 0.4
    explained = np.zeros((len(null), 0))
    doubtful = np.asarray(nullspace.uncertain, np.float64)

    def direction(name: str, columns: np.ndarray) -> Direction:
        return Direction(name, columns.shape[1], _shared(columns, doubtful))

    directions = []
    general = candidates(leaves, null, np.asarray(F.summed(diagonal)))
    for tier in itertools.chain(first, general):
        if explained.shape[1] == null.shape[1]:
            break
        found = ((name, subspace, null_part(subspace, null, close)) for name, subspace in tier)
        parts = _new(found, explained, close)
        while parts and explained.shape[1] < null.shape[1]:
            name, subspace, best = max(parts, key=lambda item: item[2].shape[1])
            explained = np.concatenate([explained, best], 1)
            directions.append(direction(name_with_units(name, subspace, best), best))
            parts = _new(parts, explained, close)
    rest = outside(null, explained, close)
    family = F.problem.family
    parts = family.parts if isinstance(family, Product) else (family,)
    if any(isinstance(part, Categorical) for part in parts) and rest.shape[1]:
        alike = _moving_outputs(F, rest, close)
        if alike.shape[1]:
            name = "changes of all logits alike, which the softmax does not see"
            directions.append(direction(name, alike))
            explained = np.concatenate([explained, alike], 1)
    unexplained = null.shape[1] - sum(d.dimension for d in directions)
    broken = tuple(b for b, _ in broken_symmetries(F, lambda v: v - null @ (null.T @ v), largest=nullspace.largest))
    lie = supports(null, explained, leaf_slices(params), close) if unexplained else ()
    others = _shared(outside(null, explained, close), doubtful) if unexplained else 0
    return Description(tuple(directions), unexplained, broken, tuple(lie), others)


def _shared(columns: np.ndarray, others: np.ndarray) -> int:
    """How many directions of a subspace lie in another, up to 60°; both have orthonormal columns."""
    if not columns.shape[1] or not others.shape[1]:
        return 0
    return int(np.sum(np.linalg.svd(others.T @ columns, compute_uv=False) > 0.5))


def _moving_outputs(F: AbstractFisher, columns: np.ndarray, close: float) -> np.ndarray:
    """Those of orthonormal null directions that change the outputs: the metric, not the model, hides them."""
    moved = F.changed(lambda problem, _: problem.with_family(Gaussian()))
    product = np.asarray(moved.mm(jnp.asarray(columns, F.problem.dtype)))
    values, vectors = np.linalg.eigh(columns.T @ product)
    return columns @ vectors[:, values > close * float(jnp.sum(moved.summed(diagonal)))]


def _new(
    parts: Iterable[tuple[str, np.ndarray, np.ndarray]], explained: np.ndarray, close: float
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Candidates whose null parts, outside what is explained, are not empty."""
    added = ((name, subspace, outside(part, explained, close)) for name, subspace, part in parts)
    return [item for item in added if item[2].shape[1]]


def broken_symmetries(
    F: AbstractFisher,
    identifiable: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " P"]],
    forms: Float[np.ndarray, "K 2"] | None = None,
    largest: float | None = None,
) -> Iterator[tuple[BrokenDirection, Float[np.ndarray, " P"]]]:
    """Scales of weights whose form falls as δ⁻⁴ when they grow by δ: what ε/δ² in a variance does.

    The `scale_forms` of all scales, and the largest eigenvalue, are computed where they are not given.
    """
    close = float(jnp.finfo(F.problem.dtype).eps) ** 0.4
    for k, (name, direction) in enumerate(scales(F.problem)):
        norm = np.linalg.norm(direction)
        unit = direction / norm if norm else direction
        if not norm or np.linalg.norm(identifiable(unit)) < close:
            continue
        change = jnp.asarray(direction, F.problem.dtype)
        found = F.summed(scale_forms, change, at=product_chunks) if forms is None else forms[k]
        first, second = np.asarray(found, float)
        if not first > 0 or not second > 0:
            continue
        exponent = math.log2(first / second) / 2
        if abs(exponent - 2) < 0.2:
            if largest is None:
                largest = float(leading_eigenvalues(F, 1, steps=min(F.in_size(), LANCZOS))[0])
            yield BrokenDirection(f"scale of {name}", first / float(norm) ** 2 / largest, exponent), unit


def scales(problem: Problem) -> Iterator[tuple[str, Float[np.ndarray, " P"]]]:
    """Weights that may go through a normalizer together: a matrix, one with its bias, one of a GLM's groups."""
    values = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(problem.params)]
    names = leaf_paths(problem.params)

    def ravelled(parts: dict[int, np.ndarray]) -> np.ndarray:
        return np.concatenate([parts.get(k, np.zeros_like(v)).reshape(-1) for k, v in enumerate(values)])

    for i, matrix in enumerate(values):
        if matrix.ndim < 2:
            continue
        yield names[i], ravelled({i: matrix})
        for j, vector in enumerate(values):
            siblings = names[i].rpartition(".")[0] == names[j].rpartition(".")[0]
            if vector.ndim == 1 and siblings and len(vector) in matrix.shape and vector.any():
                yield f"{names[i]} and {names[j]}", ravelled({i: matrix, j: vector})
    model = problem.model
    normalizer = model.model.normalizer if isinstance(model, GLMFunction) else None
    if isinstance(normalizer, AbstractGroupedNormalizer) and normalizer.group_count > 1 and names[0] == "weights":
        size = len(values[0]) // normalizer.group_count
        for k in range(normalizer.group_count):
            rows = np.zeros_like(values[0])
            rows[k * size : (k + 1) * size] = values[0][k * size : (k + 1) * size]
            yield f"weights in group {k}", ravelled({0: rows})


@functools.partial(jax.jit, static_argnames="at")
def scale_forms(problem: Problem, at: Placement, change: Float[Array, " P"]) -> Float[Array, " 2"]:
    """The forms along the logarithm of a scale, where these weights are as they are, and twice as large."""

    def form(delta: Float[Array, ""]) -> Float[Array, ""]:
        there = problem.unravel(problem.ravel(problem.params) + (delta - 1) * change)
        return quadratic_form(at_parameters(problem, there), at, problem.unravel(delta * change))

    return jax.lax.map(form, jnp.arange(1, 3, dtype=change.dtype))  # as a loop the program is half as long
