"""The affine symmetry algebra of a layer, and quantities derived from it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lngeom._numerics import decide_rank
from lngeom.discovery._discrete import DiscreteSymmetries
from lngeom.discovery._generators import AlgebraDescription, explain
from lngeom.discovery._layer import Part


@dataclass(frozen=True)
class SymmetryAlgebra:
    r"""All generators $v \mapsto Av + c$ that leave a layer's outputs unchanged, v = vec(W) or a sample x.

    Attributes:
        basis: orthonormal basis, each entry a matrix (A | c), shape [k m m+1] with m the size of v.
        part: what the generators move: "weights", "inputs" (every sample alike) or "single input".
        shape: rows and columns of v as a matrix: (H, D) for weights, (T, D) for inputs.
        singular_values: of the stacked constraints, descending, relative to the largest.
        gap: smallest kept singular value over the largest dropped one; a large gap makes the dimension certain.
        residual: largest relative residual of the basis in the constraints of fresh points.
        finite_residual: largest relative change of the outputs under finite transformations exp(tA), a certificate
            without derivatives.
        draws: number of points (W, X) in the constraints.
        weights: fixed W, or None.
        data: fixed X, or None.
        discrete: permutations and sign flips, where they were searched for.
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

    @property
    def dimension(self) -> int:
        """Dimension of the affine algebra."""
        return len(self.basis)

    @property
    def nearly(self) -> int:
        """Number of further generators that the constraints reject by less than 1e-3, such as those broken by ε."""
        return int(np.sum(self.singular_values < 1e-3)) - self.dimension

    def tangent(self, point: Float[np.ndarray, "..."]) -> Float[np.ndarray, "m k"]:
        r"""The tangent of the orbit through a point: an orthonormal basis of $\{Av + c\}$.

        Args:
            point: W [H D], or a sample [D] or [T D].

        Returns:
            Columns, in the order of `point.reshape(-1)`.

        Raises:
            ValueError: if the point has another size than the generators.
        """
        v = np.asarray(point, np.float64).reshape(-1)
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
        r"""Dimension of the orbit through a point. For weights it is their share of the Fisher null space.

        Args:
            point: W [H D], or a sample [D] or [T D].

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
        """Names the known generators in the algebra, and counts the remaining dimensions."""
        return explain(self)
