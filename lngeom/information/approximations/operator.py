r"""A block-diagonal approximation of a Fisher matrix as an operator, with an error that is measured.

Every part is $Q\, \mathrm{diag}(s)\, Q^\top$, so that products, solutions, draws and determinants are one formula each.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count, check_nonnegative
from lngeom._core.draws import probe_key
from lngeom._core.numerics import ConvergenceError
from lngeom._core.trees import Layout
from lngeom._core.types import is_concrete
from lngeom.information._products import AbstractFisher
from lngeom.information._solve import Solution, side_by_side
from lngeom.information.layers import Rearrangement

NULL = ("keep", "drop")
"""What becomes of null directions where there is damping."""


class Part(eqx.Module):
    r"""One diagonal block, $Q\, \mathrm{diag}(s)\, Q^\top$, of some leaves.

    Attributes:
        left: [D D] orthogonal, or None for the identity.
        right: [H H] orthogonal, or None.
        values: s, [D H]; each of the three has one more leading axis for G groups, which are blocks of their own.
        places: of each leaf its number, and how it becomes rows of the matrix [D H] (columns where D = 1).
        name: paths of the leaves.
        kind: "kronecker", "block" or "diagonal".
    """

    left: Float[Array, "*G D D"] | None
    right: Float[Array, "*G H H"] | None
    values: Float[Array, "*G D H"]
    places: tuple[tuple[int, Rearrangement], ...] = eqx.field(static=True)
    name: str = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    @property
    def _axis(self) -> int:
        return -2 if self.kind == "kronecker" else -1

    def gather(self, leaves: list[Array]) -> Float[Array, "*G D H"]:
        """The leaves as one matrix."""
        return jnp.concatenate([place.to_matrix(leaves[leaf]) for leaf, place in self.places], self._axis)

    def scatter(self, matrix: Float[Array, "*G D H"]) -> dict[tuple[int, int], Array]:
        """The matrix as pieces of ravelled leaves, by leaf and start."""
        sizes = [place.matrix[self._axis] for _, place in self.places]
        parts = jnp.split(matrix, np.cumsum(sizes)[:-1].tolist(), self._axis)
        pairs = zip(self.places, parts, strict=True)
        return {(leaf, place.start): place.to_piece(part) for (leaf, place), part in pairs}

    def turn(self, matrix: Float[Array, "*G D H"]) -> Float[Array, "*G D H"]:
        """Qᵀ v."""
        matrix = matrix if self.left is None else _multiply(self.left.mT, matrix)
        return matrix if self.right is None else _multiply(matrix, self.right)

    def turn_back(self, matrix: Float[Array, "*G D H"]) -> Float[Array, "*G D H"]:
        """Q c."""
        matrix = matrix if self.left is None else _multiply(self.left, matrix)
        return matrix if self.right is None else _multiply(matrix, self.right.mT)

    def diagonal(self) -> Float[Array, "*G D H"]:
        """The diagonal of the block."""
        found = self.values if self.left is None else _multiply(jnp.square(self.left), self.values)
        return found if self.right is None else _multiply(found, jnp.square(self.right).mT)


def _multiply(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


class ApproximationError(NamedTuple):
    """How far an approximation is from F, measured by random vectors.

    Attributes:
        frobenius: |F − F̂| / |F|, Frobenius norms, from products with random signs.
        interval: of 95 %, by the jackknife over the probes.
        angles: degrees between the natural gradients (F + λI)⁻¹g and (F̂ + λI)⁻¹g, one for each of some random
            gradients.
        damping: λ of the angles.
        probes: number of random vectors.
    """

    frobenius: float
    interval: tuple[float, float]
    angles: tuple[float, ...]
    damping: float
    probes: int

    @property
    def angle(self) -> float:
        """Median of the angles, in degrees; NaN where there are none."""
        return float(np.median(self.angles)) if self.angles else math.nan


class ApproximateFisher(lx.AbstractLinearOperator):
    """An approximation of a Fisher matrix: symmetric, positive semidefinite, block-diagonal by layers.

    Made by `F.approximate`. Vectors are pytrees like the differentiated parameters, or ravelled.

    Attributes:
        parts: the blocks; together they cover all parameters.
        of: the Fisher matrix.
        kind: one of "kfac", "ekfac", "blocks" and "diagonal".
        convention: for sequences, "expand" or "reduce".
    """

    parts: tuple[Part, ...]
    of: AbstractFisher
    kind: str = eqx.field(static=True)
    convention: str = eqx.field(static=True)

    def __repr__(self) -> str:
        """What it is, and its parts."""
        parts = "; ".join(f"{part.kind} {part.name}" for part in self.parts)
        return f"ApproximateFisher({self.in_size():,} × {self.in_size():,}, {self.kind}: {parts})"

    def apply(self, function: Callable[[Array], Array], v: PyTree) -> PyTree:
        """The product Q f(s) Qᵀ v, of any function of the eigenvalues."""
        return _apply(self.parts, self._layout, function, v)

    def mv(self, vector: PyTree) -> PyTree:
        """F̂ v, for v as `FisherOperator.mv` takes it."""
        if isinstance(vector, jax.Array | np.ndarray) and self.of.problem.layout.kind_of(vector) != "tangent":
            return self @ jnp.asarray(vector)
        return _product(self.parts, self._layout, vector)

    def __matmul__(self, other: Any) -> Any:
        """F̂ v for a ravelled vector [P], F̂ V for a matrix [P K], or a composition with another operator."""
        if isinstance(other, lx.AbstractLinearOperator):
            return super().__matmul__(other)
        function = _product if jnp.ndim(other) == 1 else _products
        return function(self.parts, self._layout, jnp.asarray(other))

    def solve(self, gradient: PyTree, damping: float | Array = 0.0, *, null: str = "keep") -> Solution:
        """The solution (F̂ + λI)⁻¹ g; without damping the minimum-norm solution F̂⁺ g.

        Args:
            gradient: g, a pytree like params, ravelled [P], or several as columns [P K].
            damping: λ ≥ 0.
            null: what becomes of the part of g along eigenvectors of eigenvalue 0, up to rounding, where λ > 0: "keep"
                divides it by λ, "drop" leaves it out. Without damping it is always left out.

        Returns:
            The solution, like the gradient given; its rank is the number of eigenvalues that are not 0.

        Raises:
            ValueError: if damping is no finite number of at least 0, or null another word.
        """
        check_nonnegative("damping", damping)
        if null not in NULL:
            raise ValueError(f"null must be {' or '.join(map(repr, NULL))}; got {null!r}")
        if self.of.problem.layout.kind_of(gradient) == "columns":
            return side_by_side(lambda g: self.solve(g, damping, null=null), jnp.asarray(gradient))
        x, rank, left = _solution(self.parts, self._layout, gradient, damping, null)
        report: Any = (int(rank), float(left)) if is_concrete(rank, left) else (rank, left)
        return Solution(x, report[0], None, 0.0, report[1], 0)

    def sample(
        self, key: PRNGKeyArray, count: int = 1, damping: float | Array = 0.0, scale: float = 1.0
    ) -> Float[Array, "K P"]:
        """Draws from N(0, (scale · F̂ + λI)⁻¹), one a row; without damping from N(0, (scale · F̂)⁺).

        Args:
            key: random key.
            count: how many.
            damping: λ ≥ 0.
            scale: factor of F̂, such as the number of samples.

        Raises:
            ValueError: if count is no whole number of at least 0, or damping or scale no finite number of at least 0.
        """
        check_nonnegative("damping", damping)
        check_nonnegative("scale", scale)
        return _draws(self.parts, self._layout, key, check_count("count", count, 0), damping, scale)

    def eigenvalues(self) -> Float[Array, " P"]:
        """All eigenvalues, descending."""
        return _descending(self.parts)

    def logdet(self, damping: float | Array, scale: float = 1.0) -> Float[Array, ""]:
        """The logarithm of det(scale · F̂ + λI)."""
        return _logdet(self.parts, damping, scale)

    def diagonal(self) -> Float[Array, " P"]:
        """The diagonal."""
        return _diagonal(self.parts)

    def trace(self) -> Float[Array, ""]:
        """The sum of the eigenvalues."""
        return jnp.sum(jnp.stack([jnp.sum(part.values) for part in self.parts]))

    def as_matrix(self) -> Float[Array, "P P"]:
        """The matrix.

        Raises:
            MemoryError: if it would not fit.
        """
        self.of.plan.require(3 * self.of.plan.dense, "the dense matrix", "use products")
        return self @ jnp.eye(self.in_size(), dtype=self._layout.dtype)

    def transpose(self) -> "ApproximateFisher":
        """Itself."""
        return self

    def in_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a tangent."""
        return self.of.in_structure()

    def out_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The same as `in_structure`."""
        return self.of.in_structure()

    @functools.cached_property
    def error(self) -> ApproximationError:
        """The error by 16 probes and 4 gradients (eager); `measure` takes more."""
        return self.measure(probe_key())

    def measure(
        self, key: PRNGKeyArray, probes: int = 16, gradients: int = 4, damping: float | None = None
    ) -> ApproximationError:
        """Measures how far the approximation is from F, by products with F alone (eager).

        Args:
            key: random key.
            probes: random vectors, at least 3.
            gradients: number of random gradients F ξ, with ξ standard normal, for the angles; at least 0.
            damping: λ of the natural gradients; by default the mean eigenvalue of F̂.

        Raises:
            ValueError: if probes or gradients is no whole number, or too small.
            ConvergenceError: if the natural gradients of F do not converge in the precision of the model.
            ArithmeticError: if a number is not finite, or F is zero: that is no evidence.
        """
        probes, gradients = check_count("probes", probes, 3), check_count("gradients", gradients, 0)
        signs = jax.random.rademacher(key, (self.in_size(), probes), self._layout.dtype)
        exact = self.of @ signs
        gaps, sizes = (np.asarray(jnp.sum(jnp.square(m), 0), float) for m in (exact - self @ signs, exact))
        if not (np.all(np.isfinite(gaps)) and np.all(np.isfinite(sizes)) and sizes.sum() > 0):
            raise ArithmeticError("products with F or its approximation are not finite, or all zero: no evidence")
        frobenius, interval = jackknife(gaps, sizes)
        rate = float(self.trace()) / self.in_size() if damping is None else damping
        pairs = natural_gradients(self.of, jax.random.fold_in(key, 1), gradients, rate)
        return ApproximationError(frobenius, interval, self.angles(pairs, rate), rate, probes)

    def angles(self, pairs: Sequence[tuple[Array, Array]], damping: float) -> tuple[float, ...]:
        """Degrees between F̂'s natural gradients and those given (eager).

        Args:
            pairs: gradients g and (F + λI)⁻¹g, ravelled.
            damping: λ.
        """
        found = []
        for g, exact in pairs:
            a, b = np.asarray(exact, float), np.asarray(self.solve(g, damping).value, float)
            cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
            found.append(float(np.degrees(np.arccos(np.clip(cosine, -1, 1)))))
        return tuple(found)

    @property
    def _layout(self) -> Layout:
        return self.of.problem.layout


Parts = tuple[Part, ...]


def _apply(parts: Parts, layout: Layout, function: Callable[[Array], Array], v: PyTree) -> PyTree:
    """The product Q f(s) Qᵀ v of a pytree like the parameters, or of a ravelled vector."""
    flat = isinstance(v, jax.Array) and layout.kind_of(v) == "vector"
    tangent = layout.unravel(v) if flat else v
    layout.check(tangent)
    leaves = jax.tree.leaves(tangent)
    found: dict[tuple[int, int], Array] = {}
    for part in parts:
        matrix = part.gather(leaves).astype(part.values.dtype)
        found |= part.scatter(part.turn_back(function(part.values) * part.turn(matrix)))
    result = []
    for k, leaf in enumerate(leaves):
        pieces = [found[piece] for piece in sorted(found) if piece[0] == k]
        result.append(jnp.concatenate(pieces).reshape(leaf.shape).astype(leaf.dtype))
    tree = jax.tree.unflatten(layout.structure, result)
    return ravel_pytree(tree)[0] if flat else tree


def _cutoff(parts: Parts, layout: Layout) -> Array:
    """Eigenvalues up to this are 0, rounding aside."""
    largest = jnp.max(jnp.stack([jnp.max(part.values) for part in parts]))
    return 10 * layout.size**0.5 * jnp.finfo(largest.dtype).eps * largest


@functools.partial(jax.jit, static_argnames="layout")
def _product(parts: Parts, layout: Layout, v: PyTree) -> PyTree:
    return _apply(parts, layout, lambda s: s, v)


@functools.partial(jax.jit, static_argnames="layout")
def _products(parts: Parts, layout: Layout, vectors: Float[Array, "P K"]) -> Float[Array, "P K"]:
    return jax.lax.map(lambda v: _product(parts, layout, v), vectors.T).T


@functools.partial(jax.jit, static_argnames=("layout", "null"))
def _solution(
    parts: Parts, layout: Layout, gradient: PyTree, damping: float | Array, null: str
) -> tuple[PyTree, Array, Array]:
    """The solution, the number of eigenvalues that are not 0, and the part of the gradient that is left out."""
    cutoff = _cutoff(parts, layout)

    def used(s: Array) -> Array:
        return (s > cutoff) | ((jnp.asarray(damping) > 0) & (null == "keep"))

    def invert(s: Array) -> Array:
        return jnp.where(used(s), 1 / jnp.where(used(s), s + jnp.asarray(damping, s.dtype), 1), 0)

    rank = jnp.sum(jnp.stack([jnp.sum(part.values > cutoff) for part in parts]))
    inside = _apply(parts, layout, lambda s: used(s).astype(s.dtype), gradient)
    g, h = (ravel_pytree(tree)[0] for tree in (gradient, inside))
    norm = jnp.linalg.norm(g)
    left = jnp.where(norm > 0, jnp.linalg.norm(g - h) / jnp.where(norm > 0, norm, 1), 0)
    return _apply(parts, layout, invert, gradient), rank, left


@functools.partial(jax.jit, static_argnames=("layout", "count"))
def _draws(
    parts: Parts, layout: Layout, key: PRNGKeyArray, count: int, damping: float | Array, scale: float
) -> Float[Array, "K P"]:
    cutoff = _cutoff(parts, layout)

    def root(s: Array) -> Array:
        shifted = jnp.asarray(scale, s.dtype) * s + jnp.asarray(damping, s.dtype)
        kept = (shifted > 0) & ((s > cutoff) | (jnp.asarray(damping) > 0))
        return jnp.where(kept, jax.lax.rsqrt(jnp.where(kept, shifted, 1)), 0)

    noise = jax.random.normal(key, (count, layout.size), layout.dtype)
    return jax.lax.map(lambda v: _apply(parts, layout, root, v), noise)


@jax.jit
def _descending(parts: Parts) -> Float[Array, " P"]:
    return jnp.sort(jnp.concatenate([part.values.reshape(-1) for part in parts]))[::-1]


@jax.jit
def _logdet(parts: Parts, damping: float | Array, scale: float) -> Float[Array, ""]:
    def one(s: Array) -> Array:
        return jnp.sum(jnp.log(jnp.asarray(scale, s.dtype) * s + jnp.asarray(damping, s.dtype)))

    return jnp.sum(jnp.stack([one(part.values) for part in parts]))


@jax.jit
def _diagonal(parts: Parts) -> Float[Array, " P"]:
    found: dict[tuple[int, int], Array] = {}
    for part in parts:
        found |= part.scatter(part.diagonal())
    return jnp.concatenate([found[piece] for piece in sorted(found)])


def natural_gradients(F: Any, key: PRNGKeyArray, count: int, damping: float) -> list[tuple[Array, Array]]:
    """Random gradients g = F ξ, and their natural gradients (F + λI)⁻¹g by conjugate gradients.

    Their residuals are at most 1e-4 |g|, or one rounding error of the precision in which the model computes.

    Raises:
        ConvergenceError: if the iterations stop before.
    """
    dtype, found = F.problem.dtype, []
    precision = F.problem.precision()
    tolerance = max(1e-4, precision.eps)
    for k in jax.random.split(key, count):
        g = F @ jax.random.normal(k, (F.in_size(),), dtype)
        try:
            found.append((g, F.solve(g, damping, method="cg", tolerance=tolerance).value))
        except ConvergenceError as error:
            raise ConvergenceError(
                f"the natural gradients of F at damping {damping:.2g}, with which those of the approximation are "
                f"compared, did not converge in the model's precision, {precision.dtype}: take a larger damping=, or "
                "gradients=0 for the error in the Frobenius norm alone"
            ) from error
    return found


def jackknife(gaps: np.ndarray, sizes: np.ndarray) -> tuple[float, tuple[float, float]]:
    r"""The ratio √(Σ gaps / Σ sizes) and an interval of 95 %, by the jackknife of its logarithm with Student's t."""
    if not gaps.sum():
        return 0.0, (0.0, 0.0)
    n = len(gaps)
    without = 0.5 * np.log((gaps.sum() - gaps) / (sizes.sum() - sizes))
    spread = float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))
    ratio, reach = float(np.sqrt(gaps.sum() / sizes.sum())), spread * float(scipy.special.stdtrit(n - 1, 0.975))
    return ratio, (ratio * float(np.exp(-reach)), ratio * float(np.exp(reach)))


for _property in (
    *(lx.is_negative_semidefinite, lx.has_unit_diagonal, lx.is_diagonal, lx.is_tridiagonal),
    *(lx.is_lower_triangular, lx.is_upper_triangular),
):
    _property.register(ApproximateFisher)(lambda operator: False)


@lx.linearise.register(ApproximateFisher)
@lx.conj.register(ApproximateFisher)
def _(operator: ApproximateFisher):
    return operator


@lx.diagonal.register(ApproximateFisher)
def _(operator: ApproximateFisher):
    return operator.diagonal()
