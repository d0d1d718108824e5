"""Methods with parameters of their own, instead of or beside statistics: a slope, stored moments, a bias."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics, summed_inputs
from lngeom.methods.statistics import BatchNorm, LayerNorm


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


class BiasedLayerNorm(AbstractNormalizer):
    r"""Layer norm of summed inputs that have a bias already: $a = Wx + c$.

    Attributes:
        bias: c, shape [H]; not the one added after the normalization.
    """

    bias: Float[Array, " H"]
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def __call__(self, weights, inputs):
        if self.bias.shape != weights.shape[:1]:
            raise ValueError(f"bias must have shape [H] = ({weights.shape[0]},); got {self.bias.shape}")
        a = summed_inputs(weights, inputs) + self.bias.reshape((1,) * (inputs.ndim - 1) + (-1,))
        return LayerNorm(self.eps)(jnp.eye(a.shape[-1], dtype=a.dtype), a)


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
