"""Methods that are made of two others."""

from typing import ClassVar

from lngeom.methods.base import AbstractNormalizer
from lngeom.methods.formulas import ratio
from lngeom.methods.layer import GroupNorm, LayerNorm, group_norm, layer_norm
from lngeom.methods.page import CASE_SCALES, GROUPS, ROW_SCALES, indexed, row
from lngeom.methods.weight import WeightStandardization, standardized_weights


@row(
    "ws_gn",
    "WS + GN",
    lambda weights, inputs: {"groups": GROUPS},
    invariant=(*ROW_SCALES, "weight_vector_constant_shift", *CASE_SCALES, "single_case_constant_shift"),
    equivariant="group_permutations",
    basis="input_rotations_fixing_one",
)
@indexed(
    group_norm(lambda L, n, i, eps: ratio(L, standardized_weights(L, n, i, eps))),
    grouped=True,
    smallest=(3, 3, 1),
    groups=GROUPS,
    least_units=2,
    irrational=True,
)
class WeightStandardizedGroupNorm(AbstractNormalizer):
    """Weight standardization followed by group norm, the pair of arXiv 1903.10520.

    Attributes:
        groups: number of groups of consecutive units; divides H.
        eps: added to the variance of each row and to that of each group.
    """

    groups: int
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def __call__(self, weights, inputs):
        standardized = WeightStandardization(self.eps).standardized(weights)
        return GroupNorm(groups=self.groups, eps=self.eps)(standardized, inputs)


@row(
    "residual_ln",
    "residual, x + LN(Wx)",
    square=True,
    invariant=("weight_matrix_rescaling", "weight_matrix_recentering"),
    odd=False,
)
@indexed(
    lambda L, n, i, eps: (L.X(n, i) + ratio(L, layer_norm(L, n, i, eps)), 1),
    smallest=(4, 4, 1),
    least_units=2,
    irrational=True,
)
class ResidualLayerNorm(AbstractNormalizer):
    r"""A residual block whose branch is layer-normalized, $n = x + \mathrm{LN}(Wx)$, for H = D."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def __call__(self, weights, inputs):
        if weights.shape[0] != weights.shape[1]:
            raise ValueError(f"a residual block needs as many units as inputs, H = D; got weights {weights.shape}")
        return inputs + LayerNorm(self.eps)(weights, inputs)
