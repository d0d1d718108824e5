"""Maps of each summed input by itself: none, and dynamic tanh."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics, summed_inputs
from lngeom.methods.formulas import constant_scale
from lngeom.methods.linearization import Units, unit_by_unit
from lngeom.methods.page import indexed, moves, row


@indexed(lambda L, n, i, eps: (L.a(n, i), 1))
class Identity(AbstractStatisticsNormalizer):
    r"""No normalization: $\mu = 0$, $\sigma = 1$, the standard GLM with a gain."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        shape = (1,) * inputs.ndim
        return Statistics(jnp.zeros(shape, weights.dtype), jnp.ones(shape, weights.dtype))


@unit_by_unit(Identity)
def _(normalizer, weights, inputs, scale, total) -> Units:
    return Units(inputs)


@row("dyt", "DyT", equivariant="unit_permutations", basis="input_basis_changes")
@indexed(lambda L, n, i, eps: (L.stored("alpha", None) * L.a(n, i), 1), outer="tanh")
@moves(constant_scale(lambda P, y: P.stored("alpha") * P.same(P.place, y)))
class DynamicTanh(AbstractNormalizer):
    r"""Dynamic tanh (arXiv 2503.10622): $n = \tanh(\alpha a)$, a layer without statistics.

    Attributes:
        alpha: α, positive.
    """

    alpha: float | Float[Array, ""] = 0.5
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return jnp.tanh(self.alpha * summed_inputs(weights, inputs))
