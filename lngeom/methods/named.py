"""The rows of the extended invariance table: each method's names, its constructor, and what is recorded of it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, summed_inputs
from lngeom.methods.inputs import (
    PreBatchNorm,
    PreLayerNorm,
    PreRMSNorm,
    QueryKeyLayerNorm,
    QueryKeyNorm,
    ResidualLayerNorm,
)
from lngeom.methods.spatial import InstanceNorm, PooledLayerNorm, SpatialGroupNorm
from lngeom.methods.statistics import BatchNorm, GroupNorm, LayerNorm, RMSNorm, ScaleNorm, WeightNorm
from lngeom.methods.stored import BiasedLayerNorm, DynamicTanh, PowerNormEvaluation
from lngeom.methods.weights import (
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
        cells: the effect of each transformation, as `lngeom.methods.table` reads it.
        groups: number of groups of consecutive units for the group columns. For queries and keys they are not the two
            halves, since a scale of each half changes nothing.
        square: whether W must have as many rows as columns.
        alias: another name of the row.
    """

    name: str
    title: str
    make: Callable[[Float[Array, "H D"], Float[Array, "N *T D"]], AbstractNormalizer]
    cells: str
    groups: int = GROUPS
    square: bool = False
    alias: str = ""


METHODS: dict[str, Method] = {}


def _method(cells: str, name: str, title: str, make: Callable[[Array, Array], AbstractNormalizer], **kwargs) -> None:
    if name in METHODS:
        raise ValueError(f"method {name!r} is already in the table; names are unique")
    METHODS[name] = Method(name, title, make, cells, **kwargs)


def _mean_squares(weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> Float[Array, " H"]:
    a = summed_inputs(weights, inputs)
    return jnp.mean(jnp.square(a).reshape(-1, a.shape[-1]), 0)


def _ramp(weights: Float[Array, "H D"]) -> Float[Array, " H"]:
    """A bias that differs from unit to unit."""
    return jnp.linspace(-1.0, 2.0, weights.shape[0], dtype=weights.dtype)


# Recorded, never computed; the claims of the topic "extended" check every cell by numbers and algebra.
# I: invariant, .: changed, ±: only the sign changes, which g → −g repairs, -: does not apply. The columns are those of
# `transformations.EXTENDED` (first those of Table 1), then the groups of `EQUIVARIANCES` and of `BASIS_CHANGES`.
# Conditions: ε = 0 unless the row says otherwise, δ > 0, unit gain, and nonzero statistics.
_method("I.III. ±....I.. II.. III", "bn", "BN, training", lambda W, X: BatchNorm(), alias="batch")
_method("...... .......I .... III", "bn_evaluation", "BN, evaluation", lambda W, X: BatchNorm().evaluation(W, X))
_method("I.I... ±....I.I II.. II.", "wn", "WN", lambda W, X: WeightNorm(), alias="weight")
_method("II.I.I ±......I III. III", "ln", "LN (per position)", lambda W, X: LayerNorm(), alias="layer")
_method("I..I.I ±......I III. III", "ln_pooled", "LN over C×H×W", lambda W, X: PooledLayerNorm())
_method(".I.... ±......I III. III", "ln_eps", "LN, ε > 0", lambda W, X: LayerNorm(eps=0.5))
_method(
    ".I.... .......I .... III", "ln_biased", "LN with a bias before it", lambda W, X: BiasedLayerNorm(bias=_ramp(W))
)
_method("I..I.I ±......I IIII III", "rms", "RMSNorm", lambda W, X: RMSNorm())
_method("I..I.I ±......I IIII III", "scale", "ScaleNorm", lambda W, X: ScaleNorm())
_method(
    "II.I.I ±....III I... III", "gn", "GroupNorm, fully connected", lambda W, X: GroupNorm(groups=GROUPS), alias="group"
)
_method("I..I.I ±....I.I I... III", "gn_spatial", "GroupNorm, spatial", lambda W, X: SpatialGroupNorm(groups=GROUPS))
_method("I.IIII ±II..I.I II.. III", "in", "InstanceNorm", lambda W, X: InstanceNorm(), alias="instance")
_method("I.I... ±.II.I.I II.. I..", "ws", "Weight standardization", lambda W, X: WeightStandardization())
_method("I.II.I ±.II.I.I I... I..", "ws_gn", "WS + GN", lambda W, X: WeightStandardizedGroupNorm(groups=GROUPS))
_method("I..... ±......I IIII II.", "sn", "Spectral norm", lambda W, X: SpectralNorm(), alias="spectral")
_method("I.II.I ±....I.I II.. II.", "cosine", "Cosine", lambda W, X: CosineNorm())
_method("I.II.I ±.II.I.I II.. I..", "pcc", "PCC (centred cosine)", lambda W, X: PearsonCorrelation())
_method("I..I.I I......I ---- III", "qk_l2", "QK-norm L2, logits", lambda W, X: QueryKeyNorm(), groups=2 * GROUPS)
_method("II.I.I I......I ---- III", "qk_ln", "QK-norm LN, logits", lambda W, X: QueryKeyLayerNorm(), groups=2 * GROUPS)
_method("...... ±......I II.. III", "dyt", "DyT", lambda W, X: DynamicTanh())
_method(
    "...... ±......I .... III",
    "pn",
    "PowerNorm, frozen",
    lambda W, X: PowerNormEvaluation(mean_square=_mean_squares(W, X)),
    alias="power",
)
_method("...I.I ±.II...I IIII I..", "pre_ln", "pre-LN, W·LN(x)", lambda W, X: PreLayerNorm())
_method("...I.I ±......I IIII II.", "pre_rms", "pre-RMS", lambda W, X: PreRMSNorm())
_method("...II. ±...I... IIII ...", "pre_bn", "pre-BN", lambda W, X: PreBatchNorm())
_method(
    "II.... .......I .... ...", "residual_ln", "residual, x + LN(Wx)", lambda W, X: ResidualLayerNorm(), square=True
)
