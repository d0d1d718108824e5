"""Methods of convolutional networks, with statistics over the positions of a sample, for inputs [N T D]."""

from typing import ClassVar

import jax.numpy as jnp

from lngeom.methods.base import AbstractStatisticsNormalizer, Statistics, check_positions, summed_inputs
from lngeom.methods.formulas import H, M, T, moment_slopes, pooled, standardized
from lngeom.methods.layer import SCALES
from lngeom.methods.page import GROUPS, indexed, moves, row


def _moments(values, axes, eps) -> Statistics:
    mean = jnp.mean(values, axes, keepdims=True)
    return Statistics(mean, jnp.sqrt(jnp.mean(jnp.square(values - mean), axes, keepdims=True) + eps))


@row(
    "ln_pooled",
    "LN over C×H×W",
    invariant=SCALES,
    equivariant="unit_rotations_fixing_one",
    basis="input_basis_changes",
)
@indexed(
    lambda L, n, i, eps: pooled(L, lambda u, j: L.a((n[0], u), j), H, (n[1], i), eps),
    smallest=(2, 2, 1),
    positions=2,
)
@moves(moment_slopes(T, H))
class PooledLayerNorm(AbstractStatisticsNormalizer):
    r"""Layer norm over all positions and units of a sample at once (C × H × W of an image): [N T D] to [N T H]."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True
    needs_positions: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        check_positions(type(self).__name__, inputs)
        return _moments(summed_inputs(weights, inputs), (1, 2), self.eps)


@row(
    "in",
    "InstanceNorm",
    alias="instance",
    invariant=(
        *SCALES,
        "weight_vector_rescaling",
        "weight_group_rescaling",
        "dataset_recentering",
        "single_case_recentering",
        "single_case_constant_shift",
    ),
    equivariant="unit_permutations",
    basis="input_basis_changes",
)
@indexed(lambda L, n, i, eps: standardized(L, lambda u: L.a((n[0], u), i), T, n[1], eps), positions=3)
@moves(moment_slopes(T))
class InstanceNorm(AbstractStatisticsNormalizer):
    r"""Instance normalization (arXiv 1607.08022): moments over the positions of a sample, for each unit."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False
    needs_positions: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        check_positions(type(self).__name__, inputs)
        return _moments(summed_inputs(weights, inputs), (1,), self.eps)


@row(
    "gn_spatial",
    "GroupNorm, spatial",
    lambda weights, inputs: {"groups": GROUPS},
    invariant=(*SCALES, "weight_group_rescaling"),
    equivariant="group_permutations",
    basis="input_basis_changes",
)
@indexed(
    lambda L, n, i, eps: pooled(L, lambda u, k: L.a((n[0], u), (i[0], k)), M, (n[1], i[1]), eps),
    grouped=True,
    smallest=(2, 2, 1),
    groups=GROUPS,
    positions=2,
)
@moves(moment_slopes(T, M))
class SpatialGroupNorm(AbstractStatisticsNormalizer):
    r"""Group normalization of images (arXiv 1803.08494): moments over positions and the units of a group.

    Attributes:
        groups: number of groups of consecutive units; divides H.
    """

    groups: int
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True
    needs_positions: ClassVar[bool] = True

    def __check_init__(self):
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1; got {self.groups}")

    def statistics(self, weights, inputs):
        check_positions(type(self).__name__, inputs)
        a = summed_inputs(weights, inputs)
        if a.shape[-1] % self.groups:
            raise ValueError(f"the number of units must be a multiple of groups = {self.groups}; got H = {a.shape[-1]}")
        grouped = a.reshape(*a.shape[:-1], self.groups, -1)
        unit = grouped.shape[-1]
        return Statistics(*(jnp.repeat(s[..., 0], unit, -1) for s in _moments(grouped, (1, 3), self.eps)))
