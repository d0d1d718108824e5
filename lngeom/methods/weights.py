"""Methods that normalize the weights, or weights and inputs, instead of the summed inputs."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics, summed_inputs
from lngeom.methods.statistics import GroupNorm


def _centered(rows: Float[Array, "... D"]) -> Float[Array, "... D"]:
    return rows - jnp.mean(rows, -1, keepdims=True)


def _squared_norms(rows: Float[Array, "... D"]) -> Float[Array, "..."]:
    return jnp.sum(jnp.square(rows), -1)


def _per_unit(values: Float[Array, " H"], inputs: Float[Array, "N *T D"]) -> Float[Array, "..."]:
    """Values of each unit, shaped to broadcast against summed inputs."""
    return values.reshape((1,) * (inputs.ndim - 1) + (-1,))


class WeightStandardization(AbstractNormalizer):
    r"""Weight standardization (arXiv 1903.10520): $n_i = (w_i - \bar w_i 1)^\top x / s_i$.

    Mean and variance $s_i^2 = \frac1D \sum_d (w_{id} - \bar w_i)^2 + \epsilon$ are those of a row's entries.
    """

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def standardized(self, weights: Float[Array, "H D"]) -> Float[Array, "H D"]:
        """Weights whose rows have mean 0 and mean square 1."""
        rows = _centered(weights)
        return rows / jnp.sqrt(jnp.mean(jnp.square(rows), -1, keepdims=True) + self.eps)

    def __call__(self, weights, inputs):
        return summed_inputs(self.standardized(weights), inputs)


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


class SpectralNorm(AbstractStatisticsNormalizer):
    r"""Spectral normalization (arXiv 1802.05957), exact: $\mu = 0$, $\sigma^2 = \sigma_{\max}(W)^2 + \epsilon$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        largest = jnp.linalg.norm(weights, 2)
        scale = jnp.sqrt(jnp.square(largest) + self.eps).reshape((1,) * inputs.ndim)
        return Statistics(jnp.zeros_like(scale), scale)


class CosineNorm(AbstractNormalizer):
    r"""Cosine normalization (arXiv 1702.05870): $n_i = w_i^\top x / \sqrt{\|w_i\|^2 \|x\|^2 + \epsilon}$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        square = _per_unit(_squared_norms(weights), inputs) * _squared_norms(inputs)[..., None]
        return summed_inputs(weights, inputs) / jnp.sqrt(square + self.eps)


class PearsonCorrelation(AbstractNormalizer):
    r"""Centred cosine normalization (arXiv 1702.05870): the correlation of $w_i$ and x over D entries."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return CosineNorm(self.eps)(_centered(weights), _centered(inputs))
