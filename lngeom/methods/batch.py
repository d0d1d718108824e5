r"""Batch normalization: moments over the data set, for each unit, and layers that have stored them."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractStatisticsNormalizer, Statistics, summed_inputs
from lngeom.methods.formulas import N, constant_scale, moment_slopes, standardized
from lngeom.methods.linearization import Units, unit_by_unit
from lngeom.methods.page import ROW_SCALES, indexed, moves, row


@row(
    "bn",
    "BN, training",
    alias="batch",
    invariant=(*ROW_SCALES, "dataset_rescaling", "dataset_recentering"),
    equivariant="unit_permutations",
    basis="input_basis_changes",
)
@indexed(lambda L, n, i, eps: standardized(L, lambda m: L.a(m, i), N, n, eps), smallest=(1, 2, 3))
@moves(moment_slopes(N))
class BatchNorm(AbstractStatisticsNormalizer):
    r"""Batch normalization with training statistics (Eq. 2): moments over the data set, for each unit.

    $\mu_i = E_x[a_i]$ and $\sigma_i^2 = E_x[(a_i - \mu_i)^2] + \epsilon$, expectations over the rows of X (and over
    positions, for inputs [N T D]).
    """

    eps: float = 0.0
    couples_samples: ClassVar[bool] = True
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        a = summed_inputs(weights, inputs)
        axes = tuple(range(a.ndim - 1))
        mean = jnp.mean(a, axes, keepdims=True)
        variance = jnp.mean(jnp.square(a - mean), axes, keepdims=True)
        return Statistics(mean, jnp.sqrt(variance + self.eps))

    def evaluation(self, weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> "BatchNormEvaluation":
        """The evaluation-mode layer whose stored statistics are those of this data set."""
        mean, scale = self.statistics(weights, inputs)
        variance = jnp.square(scale) - self.eps
        return BatchNormEvaluation(mean=mean.reshape(-1), variance=variance.reshape(-1), eps=self.eps)


@unit_by_unit(BatchNorm)
def _(normalizer, weights, inputs, scale, total) -> Units:
    centered = inputs - inputs.mean(0, keepdims=True)
    # the slope Cov(x) w_i / σ_i
    return Units(centered, total(centered @ weights.T / scale[None, :], centered) / len(inputs))


def _stored_mean(L, i):
    return L.mean(lambda m: L.a(m, i), N)


def _stored_mean_square(L, i):
    return L.mean(lambda m: L.a(m, i) ** 2, N)


def _moments(weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> dict[str, Array]:
    stored = BatchNorm().evaluation(weights, inputs)
    return {"mean": stored.mean, "variance": stored.variance}


@row(
    "bn_evaluation",
    "BN, evaluation",
    _moments,
    odd=False,
    basis="input_basis_changes",
)
@indexed(
    lambda L, n, i, eps: (L.a(n, i) - L.stored("mean", i), L.stored("variance", i) + eps),
    statistics=(
        ("mean", _stored_mean),
        ("variance", lambda L, i: _stored_mean_square(L, i) - _stored_mean(L, i) ** 2),
    ),
)
@moves(constant_scale())
class BatchNormEvaluation(AbstractStatisticsNormalizer):
    """Batch normalization with stored statistics: an affine map, which depends on no other sample.

    Attributes:
        mean: stored mean of each summed input, shape [H].
        variance: stored variance of each summed input, shape [H].
    """

    mean: Float[Array, " H"]
    variance: Float[Array, " H"]
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        units = weights.shape[0]
        if self.mean.shape != (units,) or self.variance.shape != (units,):
            raise ValueError(
                f"stored statistics must have shape [H] = ({units},); got mean {self.mean.shape} "
                f"and variance {self.variance.shape}"
            )
        shape = (1,) * (inputs.ndim - 1) + (-1,)
        return Statistics(self.mean.reshape(shape), jnp.sqrt(self.variance.reshape(shape) + self.eps))


@unit_by_unit(BatchNormEvaluation)
def _(normalizer, weights, inputs, scale, total) -> Units:
    return Units(inputs, offset=normalizer.mean)


def _mean_square(weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> dict[str, Array]:
    a = summed_inputs(weights, inputs)
    return {"mean_square": jnp.mean(jnp.square(a).reshape(-1, a.shape[-1]), 0)}


@row("pn", "PowerNorm, frozen", _mean_square, alias="power", basis="input_basis_changes")
@indexed(
    lambda L, n, i, eps: (L.a(n, i), L.stored("mean_square", i) + eps),
    statistics=(("mean_square", _stored_mean_square),),
)
@moves(constant_scale())
class PowerNormEvaluation(AbstractStatisticsNormalizer):
    r"""Power normalization (arXiv 2003.07845) with its statistics frozen: $n_i = a_i / \sqrt{\psi_i^2 + \epsilon}$.

    Attributes:
        mean_square: stored mean squares ψ² of the summed inputs, shape [H].
    """

    mean_square: Float[Array, " H"]
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        if self.mean_square.shape != weights.shape[:1]:
            raise ValueError(
                f"stored mean squares must have shape [H] = ({weights.shape[0]},); got {self.mean_square.shape}"
            )
        scale = jnp.sqrt(self.mean_square + self.eps).reshape((1,) * (inputs.ndim - 1) + (-1,))
        return Statistics(jnp.zeros_like(scale), scale)


@unit_by_unit(PowerNormEvaluation)
def _(normalizer, weights, inputs, scale, total) -> Units:
    return Units(inputs)


class StreamedBatchNorm(BatchNorm):
    """Batch norm with the moments of a data set, and how they move with the weights to first order.

    Attributes:
        origin: weights at which the moments were taken, [H D].
        input_mean: E[x], by which every mean moves with its weights, [D].
        scale: σ at the origin, [H].
        slope: ∂σ_i/∂w_i = Cov(x) w_i / σ_i, [H D].
        chunk: samples at a time when moments are computed.
    """

    origin: Float[Array, "H D"] = eqx.field(kw_only=True)
    input_mean: Float[Array, " D"] = eqx.field(kw_only=True)
    scale: Float[Array, " H"] = eqx.field(kw_only=True)
    slope: Float[Array, "H D"] = eqx.field(kw_only=True)
    chunk: int = eqx.field(kw_only=True)

    def statistics(self, weights, inputs):
        shape = (1,) * (inputs.ndim - 1) + (-1,)
        scale = self.scale + jnp.sum(self.slope * (weights - self.origin), 1)
        return Statistics((weights @ self.input_mean).reshape(shape), scale.reshape(shape))


@unit_by_unit(StreamedBatchNorm)
def _(normalizer, weights, inputs, scale, total) -> Units:
    return Units(inputs - normalizer.input_mean[None, :], normalizer.slope)
