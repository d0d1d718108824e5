"""The rows of the extended invariance table, with a constructor of each method for given weights and inputs."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.normalizers._base import AbstractNormalizer, summed_inputs
from lngeom.normalizers._inputs import (
    PreBatchNorm,
    PreLayerNorm,
    PreRMSNorm,
    QueryKeyLayerNorm,
    QueryKeyNorm,
    ResidualLayerNorm,
)
from lngeom.normalizers._spatial import InstanceNorm, PooledLayerNorm, SpatialGroupNorm
from lngeom.normalizers._statistics import BatchNorm, GroupNorm, LayerNorm, RMSNorm, ScaleNorm, WeightNorm
from lngeom.normalizers._stored import BiasedLayerNorm, DynamicTanh, PowerNormEvaluation
from lngeom.normalizers._weights import (
    CosineNorm,
    PearsonCorrelation,
    SpectralNorm,
    WeightStandardization,
    WeightStandardizedGroupNorm,
)

GROUPS = 2
"""Number of groups of the methods with groups."""


@dataclass(frozen=True)
class Method:
    """A row of the extended table.

    Attributes:
        name: identifier, as in claim ids.
        title: in words.
        make: constructs the method. Stored statistics, if any, are those of these weights and inputs.
        groups: number of groups of consecutive units for the group columns. For queries and keys they are not the two
            halves, since a scale of each half changes nothing.
        square: whether W must have as many rows as columns.
    """

    name: str
    title: str
    make: Callable[[Float[Array, "H D"], Float[Array, "N *T D"]], AbstractNormalizer]
    groups: int = GROUPS
    square: bool = False


METHODS: dict[str, Method] = {}


def _method(name: str, title: str, make: Callable[[Array, Array], AbstractNormalizer], **kwargs) -> None:
    if name in METHODS:
        raise ValueError(f"method {name!r} is already in the table; names are unique")
    METHODS[name] = Method(name, title, make, **kwargs)


def _mean_squares(weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> Float[Array, " H"]:
    a = summed_inputs(weights, inputs)
    return jnp.mean(jnp.square(a).reshape(-1, a.shape[-1]), 0)


def _ramp(weights: Float[Array, "H D"]) -> Float[Array, " H"]:
    """A bias that differs from unit to unit."""
    return jnp.linspace(-1.0, 2.0, weights.shape[0], dtype=weights.dtype)


_method("bn", "BN, training", lambda W, X: BatchNorm())
_method("bn_evaluation", "BN, evaluation", lambda W, X: BatchNorm().evaluation(W, X))
_method("wn", "WN", lambda W, X: WeightNorm())
_method("ln", "LN (per position)", lambda W, X: LayerNorm())
_method("ln_pooled", "LN over C×H×W", lambda W, X: PooledLayerNorm())
_method("ln_eps", "LN, ε > 0", lambda W, X: LayerNorm(eps=0.5))
_method("ln_biased", "LN with a bias before it", lambda W, X: BiasedLayerNorm(bias=_ramp(W)))
_method("rms", "RMSNorm", lambda W, X: RMSNorm())
_method("scale", "ScaleNorm", lambda W, X: ScaleNorm())
_method("gn", "GroupNorm, fully connected", lambda W, X: GroupNorm(groups=GROUPS))
_method("gn_spatial", "GroupNorm, spatial", lambda W, X: SpatialGroupNorm(groups=GROUPS))
_method("in", "InstanceNorm", lambda W, X: InstanceNorm())
_method("ws", "Weight standardization", lambda W, X: WeightStandardization())
_method("ws_gn", "WS + GN", lambda W, X: WeightStandardizedGroupNorm(groups=GROUPS))
_method("sn", "Spectral norm", lambda W, X: SpectralNorm())
_method("cosine", "Cosine", lambda W, X: CosineNorm())
_method("pcc", "PCC (centred cosine)", lambda W, X: PearsonCorrelation())
_method("qk_l2", "QK-norm L2, logits", lambda W, X: QueryKeyNorm(), groups=2 * GROUPS)
_method("qk_ln", "QK-norm LN, logits", lambda W, X: QueryKeyLayerNorm(), groups=2 * GROUPS)
_method("dyt", "DyT", lambda W, X: DynamicTanh())
_method("pn", "PowerNorm, frozen", lambda W, X: PowerNormEvaluation(mean_square=_mean_squares(W, X)))
_method("pre_ln", "pre-LN, W·LN(x)", lambda W, X: PreLayerNorm())
_method("pre_rms", "pre-RMS", lambda W, X: PreRMSNorm())
_method("pre_bn", "pre-BN", lambda W, X: PreBatchNorm())
_method("residual_ln", "residual, x + LN(Wx)", lambda W, X: ResidualLayerNorm(), square=True)
