"""The null space of a Fisher matrix as measured: a basis, a certificate, and names for its directions."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.information._describe import Description, explain
from lngeom.information._spectrum import Decomposition


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
    """

    basis: Float[Array, "P k"]
    dimension: int
    residual: float
    gap: float
    operator: Any
    certain: bool = True

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
        other = jnp.linalg.qr(basis)[0]
        a, b = (self.basis, other) if self.dimension >= basis.shape[1] else (other, self.basis)
        # sines of small angles are precise where cosines are not
        sines = jnp.linalg.svd(b - a @ (a.T @ b), compute_uv=False)
        return jnp.arcsin(jnp.clip(sines[::-1], 0, 1))

    def describe(self) -> Description:
        """Names each direction in the user's own parameters, and counts what is unexplained."""
        return explain(self.operator, self.basis)


def measure(operator: Any, decomposition: Decomposition) -> MeasuredNullspace:
    """The null space of an operator whose factor has been decomposed.

    Args:
        operator: a Fisher operator.
        decomposition: of its factor.

    Returns:
        Basis and certificate; the residual is measured with products, not read off the decomposition.
    """
    basis, decision = decomposition.null, decomposition.decision
    largest = decomposition.singular_values[0]
    residual = 0.0
    if basis.shape[1] and float(largest) > 0:
        forms = operator.quadratic_form(basis.astype(operator.problem.dtype))
        residual = float(jnp.sqrt(jnp.max(forms))) / float(largest)
    return MeasuredNullspace(basis, basis.shape[1], residual, decision.gap, operator, decision.certain)
