"""The affine symmetry algebra of a layer, and names for its generators.

To name them, each known family is projected into the algebra and counted.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from lngeom._core.numerics import decide_rank
from lngeom.checks.discovery._discrete import DiscreteSymmetries
from lngeom.checks.discovery._layer import Part

CLOSE = 1e-6
"""Sine of the angle up to which a known generator counts as one of the algebra's (float64; float32 takes 1e-3)."""

Matrices = Float[np.ndarray, "k m n"]


class Generator(NamedTuple):
    """A known family of generators.

    Attributes:
        name: description of the family.
        dimension: number of dimensions that the family adds to those before it.
    """

    name: str
    dimension: int


@dataclass(frozen=True)
class AlgebraDescription:
    """A symmetry algebra in words.

    Attributes:
        generators: the known families in it, simplest first.
        left_over: number of dimensions that no known family explains.
        notes: further properties: nearly invariant directions, permutations and signs.
    """

    generators: tuple[Generator, ...]
    left_over: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{g.dimension:5d}  {g.name}" for g in self.generators]
        return "\n".join([*lines, f"{self.left_over:5d}  unexplained", *self.notes])


@dataclass(frozen=True)
class SymmetryAlgebra:
    r"""All generators $v \mapsto Av + c$ that leave a layer's outputs unchanged, v = vec(W) or a sample x.

    Attributes:
        basis: orthonormal basis, each entry a matrix (A | c), shape [k m m+1] with m the size of v.
        part: what the generators move: "weights", "inputs" (every sample alike) or "single input".
        shape: rows and columns of v as a matrix: (H, D) for weights, (T, D) for inputs.
        singular_values: of the stacked constraints, descending, relative to the largest.
        gap: smallest kept over largest dropped of them; how sure the dimension is.
        residual: largest relative residual of the basis in the constraints of fresh points.
        finite_residual: largest relative change of the outputs under finite transformations exp(tA), a certificate
            that does not rest on derivatives.
        draws: points (W, X) the constraints come from.
        weights: W where it was held fixed, else None.
        data: X where it was held fixed, else None.
        discrete: permutations and sign flips, where they were searched for.
        leaves: of a pytree of weights, where each leaf lies in v; else None.
    """

    basis: Float[np.ndarray, "k m n"]
    part: Part
    shape: tuple[int, int]
    singular_values: Float[np.ndarray, " s"]
    gap: float
    residual: float
    finite_residual: float
    draws: int
    weights: Float[np.ndarray, "H D"] | None = None
    data: Float[np.ndarray, "N *T D"] | None = None
    discrete: DiscreteSymmetries | None = None
    leaves: Mapping[str, slice] | None = None

    @property
    def dimension(self) -> int:
        """Dimension of the affine algebra."""
        return len(self.basis)

    @property
    def nearly(self) -> int:
        """Generators beyond the algebra that the constraints reject by less than 1e-3: those a small ε breaks."""
        return int(np.sum(self.singular_values < 1e-3)) - self.dimension

    def tangent(self, point: Float[np.ndarray, "..."]) -> Float[np.ndarray, "m k"]:
        r"""The tangent of the orbit through a point: an orthonormal basis of $\{Av + c\}$.

        Args:
            point: W [H D], a pytree of weights, or a sample [D] or [T D].

        Returns:
            Columns, in the order of `point.reshape(-1)`.

        Raises:
            ValueError: if the point is not of the size that the generators move.
        """
        arrays = [leaf for leaf in jax.tree.leaves(point) if np.issubdtype(np.asarray(leaf).dtype, np.floating)]
        v = np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in arrays])
        if v.size != self.shape[0] * self.shape[1]:
            raise ValueError(
                f"the generators move {self.part} of shape {self.shape}; got a point of shape {np.shape(point)}"
            )
        if not self.dimension:
            return np.zeros((v.size, 0))
        moved = self.basis @ np.append(v, 1.0)
        u, s, _ = np.linalg.svd(moved.T, full_matrices=False)
        unknowns = self.basis[0].size
        return u[:, : decide_rank(s, unknowns, unknowns, scale=float(np.linalg.norm(v))).rank]

    def orbit_dimension(self, point: Float[np.ndarray, "..."]) -> int:
        r"""Dimension of the orbit through a point, which for weights is what the Fisher null space sees of them.

        Args:
            point: W [H D], a pytree of weights, or a sample [D] or [T D].

        Returns:
            The rank of $\{Av + c\}$; at most m, where the dimension of the algebra is at most m(m+1).
        """
        return self.tangent(point).shape[1]

    def contains(self, generator: Float[np.ndarray, "m n"], tol: float = 1e-6) -> bool:
        r"""Whether a generator (A | c), shape [m m+1] and not zero, is one of the algebra's.

        Args:
            generator: the matrix (A | c).
            tol: sine of the angle to the algebra up to which it counts.

        Returns:
            Whether it is.
        """
        unit = np.asarray(generator, np.float64).reshape(-1) / np.linalg.norm(generator)
        basis = self.basis.reshape(self.dimension, unit.size)
        return bool(np.linalg.norm(unit - basis.T @ (basis @ unit)) <= tol)

    def describe(self) -> AlgebraDescription:
        """Names the known generators in the algebra, and counts the dimensions left over."""
        return explain(self)


def explain(algebra: SymmetryAlgebra) -> AlgebraDescription:
    """Explains the dimensions of an algebra by known families.

    Args:
        algebra: the algebra.

    Returns:
        The description.
    """
    size = algebra.basis.shape[1]
    unknowns = size * (size + 1)
    null = algebra.basis.reshape(-1, unknowns).T
    close = max(CLOSE, 1e3 * algebra.residual)
    explained = np.zeros((unknowns, 0))
    generators = []
    for tier in _tiers(algebra, close):
        parts = [(name, *_within(matrices.reshape(-1, unknowns).T, null, close)) for name, matrices in tier]
        # a part of all constants, or of all linear maps, is no family
        if algebra.leaves is None:
            parts = [p for p, (_, m) in zip(parts, tier, strict=True) if p[2] or len(m) not in {size, size**2}]
        while parts and explained.shape[1] < null.shape[1]:
            parts = [(name, _outside(part, explained, close), whole) for name, part, whole in parts]
            name, best, whole = max(parts, key=lambda item: (item[2] and item[1].size > 0, item[1].shape[1]))
            if not best.shape[1]:
                break
            explained = np.concatenate([explained, best], 1)
            generators.append(Generator(name if whole else f"{name} (some of them)", best.shape[1]))
    notes = []
    if algebra.nearly > 0:
        notes.append(f"{algebra.nearly} more are broken by less than 1e-3: by a small eps in the layer?")
    if algebra.discrete is not None:
        notes += algebra.discrete.lines()
    return AlgebraDescription(tuple(generators), null.shape[1] - explained.shape[1], tuple(notes))


def _within(columns: np.ndarray, null: np.ndarray, close: float) -> tuple[np.ndarray, bool]:
    """Orthonormal basis of the part of a family's span that lies in the null space, and whether that is all of it."""
    u, s, _ = np.linalg.svd(columns, full_matrices=False)
    span = u[:, s > 1e-9 * s[0]] if s.size and s[0] > 0 else u[:, :0]
    if 0 in {span.shape[1], null.shape[1]}:
        return span[:, :0], False
    vectors = span @ np.linalg.svd(span.T @ null, full_matrices=False)[0]
    inside = vectors[:, np.linalg.norm(vectors - null @ (null.T @ vectors), axis=0) < close]
    return inside, inside.shape[1] == span.shape[1]


def _outside(vectors: np.ndarray, explained: np.ndarray, close: float) -> np.ndarray:
    """Orthonormal basis of what vectors add to those explained."""
    u, s, _ = np.linalg.svd(vectors - explained @ (explained.T @ vectors), full_matrices=False)
    return u[:, s > 10 * close]


def _tiers(algebra: SymmetryAlgebra, close: float) -> Iterator[list[tuple[str, Matrices]]]:
    """Known families in groups, the simplest first; within a group, that which explains most is taken first."""
    if algebra.leaves is not None:
        yield from _tiers_of_leaves(algebra.basis.shape[1], algebra.leaves)
        return
    what = "W" if algebra.part == "weights" else "x"
    first = 1 if algebra.shape[0] == 1 else 0
    yield _scales(algebra, close, first)
    shifts = [(name, directions) for name, directions in _shifts(algebra) if len(directions)]
    yield [(name, _affine(directions)) for name, directions in shifts]
    # what may be shifted by a constant may be shifted by any function of v
    size = algebra.basis.shape[1]
    null = algebra.basis.reshape(-1, size * (size + 1)).T
    allowed = []
    for name, directions in shifts:
        part, whole = _within(_affine(directions).reshape(len(directions), -1).T, null, close)
        if part.shape[1]:
            allowed.append(
                (not whole, f"{name}, depending on {what}", _linear(part.reshape(size, size + 1, -1)[:, -1].T))
            )
    yield [(name, matrices) for _, name, matrices in sorted(allowed, key=lambda item: item[0])]
    yield _scales(algebra, close, 1 - first)
    yield list(_mixings(algebra))


def _tiers_of_leaves(size: int, leaves: Mapping[str, slice]) -> Iterator[list[tuple[str, Matrices]]]:
    """Scales, shifts and linear maps of the leaves of a pytree, alone and together."""
    every = np.eye(size)
    scales = {name: np.diag(every[where].sum(0))[None] for name, where in leaves.items()}
    yield [(f"scale of {name}", _homogeneous(scale)) for name, scale in scales.items()]
    yield [(f"shift of {name}", _affine(every[where])) for name, where in leaves.items()]
    yield [(f"shift of {name}, depending on the others", _linear(every[where])) for name, where in leaves.items()]
    yield [("scales of leaves in fixed ratios", _homogeneous(np.concatenate(list(scales.values()))))]
    yield [("scales of entries in fixed ratios", _homogeneous(np.einsum("ki,kj->kij", every, every)))]
    blocks = {name: np.einsum("ai,bj->abij", every[where], every[where]) for name, where in leaves.items()}
    linear = {name: _homogeneous(block.reshape(-1, size, size)) for name, block in blocks.items()}
    yield [(f"linear mixing within {name}", block) for name, block in linear.items()]
    pairs = itertools.combinations(linear, 2)
    yield [(f"linear mixing within {a} and {b} together", np.concatenate([linear[a], linear[b]])) for a, b in pairs]


def _mixings(algebra: SymmetryAlgebra) -> Iterator[tuple[str, Matrices]]:
    """Linear maps of the rows, or of the columns, of v as a matrix."""
    names = ("rows", "columns") if algebra.part == "weights" else ("positions", "coordinates")
    whole = "W" if algebra.part == "weights" else "x"
    for axis, (name, count) in enumerate(zip(names, algebra.shape, strict=True)):
        pairs = np.eye(count * count).reshape(-1, count, count)
        for what, mixing in (("rotation", pairs - pairs.transpose(0, 2, 1)), ("linear mixing", pairs)):
            other = np.eye(algebra.shape[1 - axis])
            lifted = [np.kron(B, other) if axis == 0 else np.kron(other, B) for B in mixing]
            yield f"{what} of the {name} of {whole}", _homogeneous(np.stack(lifted))


def _scales(algebra: SymmetryAlgebra, close: float, axis: int) -> list[tuple[str, Matrices]]:
    """Scales of the rows, or of the columns, named by which of them move together."""
    weights = algebra.part == "weights"
    name = (("row", "column") if weights else ("position", "coordinate"))[axis]
    size, count = algebra.basis.shape[1], algebra.shape[axis]
    ones = np.ones(algebra.shape[1 - axis])
    each = _homogeneous(np.stack([np.diag(np.kron(e, ones) if axis == 0 else np.kron(ones, e)) for e in np.eye(count)]))
    normal = each.reshape(count, -1).T / np.sqrt(size / count)
    null = algebra.basis.reshape(-1, size * (size + 1)).T
    patterns = _reduced(normal.T @ _within(normal, null, close)[0])
    if not len(patterns):
        return []
    members = [[int(i) + 1 for i in np.flatnonzero(p)] for p in patterns]
    if not np.allclose(patterns, patterns > 0.5, atol=1e-4):
        title = f"scales of {name}s in fixed ratios"
    elif len(members[0]) == count:
        title = "scale, W ↦ δW" if weights else "scale, x ↦ δx"
    elif len(members) == count:
        title = f"scale of each {name}"
    else:
        title = f"scale of {name}s " + ", ".join("{" + ", ".join(map(str, m)) + "}" for m in members)
    return [(title, np.einsum("pk,kij->pij", patterns, each))]


def _shifts(algebra: SymmetryAlgebra) -> Iterator[tuple[str, Float[np.ndarray, "k m"]]]:
    """Directions along which v is known to be shifted by one symmetry or another."""
    rows, columns = algebra.shape
    every = np.eye(columns)
    if algebra.part == "weights":
        yield "shift, W + 1γᵀ", _outer(np.ones((1, rows)), every)
        for groups in range(2, rows):
            if rows % groups == 0:
                members = np.kron(np.eye(groups), np.ones(rows // groups))
                yield f"shift within each of {groups} groups of rows, w_i + γ_group", _outer(members, every)
        yield "shift along 1, w_i + c_i 1", _outer(np.eye(rows), np.ones((1, columns)))
        if algebra.data is not None:
            X = algebra.data.reshape(-1, columns)
            yield "shift by ν with Xν = 0, w_i + ν_i", _outer(np.eye(rows), _kernel(X))
            yield "shift by ν with Xν constant, w_i + ν_i", _outer(np.eye(rows), _kernel(X - X.mean(0)))
    else:
        if algebra.weights is not None:
            W = algebra.weights
            yield "shift by γ with Wγ = 0", _outer(np.eye(rows), _kernel(W))
            yield "shift by γ with Wγ ∝ 1", _outer(np.eye(rows), _kernel(W - W.mean(0)))
        yield "shift, x + γ", _outer(np.ones((1, rows)), every)
        yield "shift along 1, x + c1", _outer(np.ones((1, rows)), np.ones((1, columns)))
        if rows > 1:
            yield "shift along 1 at each position, x_t + c_t 1", _outer(np.eye(rows), np.ones((1, columns)))
    for i in range(rows):
        for j in range(columns):
            entry = _outer(np.eye(rows)[i : i + 1], every[j : j + 1])
            yield f"entry {(i + 1, j + 1)}, on which no output depends", entry


def _kernel(matrix: np.ndarray) -> np.ndarray:
    """Orthonormal rows that span the kernel."""
    _, s, vt = np.linalg.svd(matrix)
    return vt[int(np.sum(s > 1e-9 * s[0])) :]


def _outer(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.einsum("ai,bj->abij", rows, columns).reshape(len(rows) * len(columns), rows.shape[1] * columns.shape[1])


def _homogeneous(A: Float[np.ndarray, "k m m"]) -> Matrices:
    """Generators (A | 0)."""
    return np.concatenate([A, np.zeros((*A.shape[:2], 1))], 2)


def _affine(directions: Float[np.ndarray, "k m"]) -> Matrices:
    """Generators (0 | c), a constant shift along each direction."""
    count, size = directions.shape
    return np.concatenate([np.zeros((count, size, size)), directions[:, :, None]], 2)


def _linear(directions: Float[np.ndarray, "k m"]) -> Matrices:
    """Generators (c φᵀ | 0), a shift along each direction by a linear function of v."""
    count, size = directions.shape
    return _homogeneous(np.einsum("ki,lj->klij", directions, np.eye(size)).reshape(count * size, size, size))


def _reduced(columns: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k n"]:
    """Reduced row echelon form of the transpose, which shows the indicators in a span of them."""
    rows = columns.T.copy()
    done = 0
    for j in range(rows.shape[1]):
        if done == len(rows):
            break
        pivot = done + int(np.argmax(np.abs(rows[done:, j])))
        if abs(rows[pivot, j]) < 1e-4:
            continue
        rows[[done, pivot]] = rows[[pivot, done]]
        rows[done] /= rows[done, j]
        others = np.arange(len(rows)) != done
        rows[others] -= np.outer(rows[others, j], rows[done])
        done += 1
    rows[np.abs(rows) < 1e-4] = 0
    return rows
