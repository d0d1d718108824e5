"""Two methods that the library does not have, each on a page: L1 layer norm and L1 weight norm."""

from typing import ClassVar

import jax.numpy as jnp
from lngeom.methods.base import AbstractStatisticsNormalizer, Statistics, summed_inputs
from lngeom.methods.formulas import D, H, centred
from lngeom.methods.linearization import Units, unit_by_unit
from lngeom.methods.page import indexed, row


def l1(L, n, i, eps):
    deviation = centred(L, lambda j: L.a(n, j), H)
    return deviation(i), (L.mean(lambda k: abs(deviation(k)), H) + eps) ** 2


@row(
    "l1",
    "L1 layer norm",
    invariant=("weight_matrix_rescaling", "weight_matrix_recentering", "dataset_rescaling", "single_case_rescaling"),
    equivariant="unit_permutations",
    basis="input_basis_changes",
)
@indexed(l1, smallest=(3, 2, 1), least_units=2, irrational=True)
class L1LayerNorm(AbstractStatisticsNormalizer):
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        a = summed_inputs(weights, inputs)
        mean = jnp.mean(a, -1, keepdims=True)
        return Statistics(mean, jnp.mean(jnp.abs(a - mean), -1, keepdims=True) + self.eps)


@row(
    "l1_weight",
    "L1 weight norm",
    invariant=("weight_matrix_rescaling", "weight_vector_rescaling", "weight_group_rescaling"),
    equivariant="unit_permutations",
)
@indexed(lambda L, n, i, eps: (L.a(n, i), (L.total(lambda d: abs(L.W(i, d)), D) + eps) ** 2), irrational=True)
class L1WeightNorm(AbstractStatisticsNormalizer):
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        scale = (jnp.sum(jnp.abs(weights), 1) + self.eps).reshape((1,) * (inputs.ndim - 1) + (-1,))
        return Statistics(jnp.zeros_like(scale), scale)


@unit_by_unit(L1WeightNorm)
def _(normalizer, weights, inputs, scale, total) -> Units:
    return Units(inputs, weights / abs(weights))
