"""The methods of Table 1 and related ones: moments over samples, over units, or of the weights."""

from abc import abstractmethod
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractStatisticsNormalizer, Statistics, summed_inputs


class Identity(AbstractStatisticsNormalizer):
    r"""No normalization: $\mu = 0$, $\sigma = 1$, the standard GLM with a gain."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        shape = (1,) * inputs.ndim
        return Statistics(jnp.zeros(shape, weights.dtype), jnp.ones(shape, weights.dtype))


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


class WeightNorm(AbstractStatisticsNormalizer):
    r"""Weight normalization: $\mu = 0$, $\sigma_i = \sqrt{\|w_i\|^2 + \epsilon}$ (text after Eq. 5)."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        shape = (1,) * (inputs.ndim - 1) + (-1,)
        scale = jnp.sqrt(jnp.sum(jnp.square(weights), 1) + self.eps).reshape(shape)
        return Statistics(jnp.zeros_like(scale), scale)


class AbstractGroupedNormalizer(AbstractStatisticsNormalizer):
    """Statistics over groups of units of one sample: layer, RMS and group norm compute theirs here.

    `linearization.py` has the derivative of this formula in closed form. A subclass with its own `statistics` is
    differentiated automatically.
    """

    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True
    centered: ClassVar[bool]

    @property
    @abstractmethod
    def group_count(self) -> int:
        """Number of groups into which the units are divided, in order."""

    def statistics(self, weights, inputs):
        a = summed_inputs(weights, inputs)
        units = a.shape[-1]
        size, remainder = divmod(units, self.group_count)
        if remainder or not size:
            raise ValueError(f"the number of units must be a multiple of groups = {self.group_count}; got H = {units}")
        if self.centered and size == 1 and self.eps == 0:
            raise ValueError(
                f"{type(self).__name__} of one unit is undefined: its variance is always zero (H = {units}, "
                f"groups = {self.group_count}); use at least two units a group, or eps > 0"
            )
        grouped = a.reshape(*a.shape[:-1], self.group_count, size)
        mean = jnp.mean(grouped, -1, keepdims=True) if self.centered else jnp.zeros_like(grouped[..., :1])
        scale = jnp.sqrt(jnp.mean(jnp.square(grouped - mean), -1, keepdims=True) + self.eps)
        if self.group_count == 1:
            return Statistics(mean[..., 0], scale[..., 0])
        return Statistics(*(jnp.broadcast_to(s, grouped.shape).reshape(a.shape) for s in (mean, scale)))


class LayerNorm(AbstractGroupedNormalizer):
    r"""Layer normalization (Eq. 3): moments over the H summed inputs of one sample.

    $\mu = \frac1H \sum_i a_i$ and $\sigma^2 = \frac1H \sum_i (a_i - \mu)^2 + \epsilon$. Undefined for H = 1; for
    H = 2 and eps = 0 the output is a pair of signs.
    """

    eps: float = 0.0
    centered: ClassVar[bool] = True

    @property
    def group_count(self) -> int:
        return 1


class RMSNorm(AbstractGroupedNormalizer):
    r"""Root mean square normalization (arXiv 1910.07467): $\mu = 0$, $\sigma^2 = \frac1H \sum_i a_i^2 + \epsilon$."""

    eps: float = 0.0
    centered: ClassVar[bool] = False

    @property
    def group_count(self) -> int:
        return 1


class ScaleNorm(AbstractStatisticsNormalizer):
    r"""ScaleNorm (arXiv 1910.05895): $\mu = 0$, $\sigma^2 = \|a\|^2 + \epsilon$, RMS norm divided by $\sqrt H$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        a = summed_inputs(weights, inputs)
        scale = jnp.sqrt(jnp.sum(jnp.square(a), -1, keepdims=True) + self.eps)
        return Statistics(jnp.zeros_like(scale), scale)


class GroupNorm(AbstractGroupedNormalizer):
    """Group normalization (arXiv 1803.08494): layer norm of each of `groups` blocks of consecutive units.

    Attributes:
        groups: number of groups; divides H.
    """

    groups: int
    eps: float = 0.0
    centered: ClassVar[bool] = True

    def __check_init__(self):
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1; got {self.groups}")

    @property
    def group_count(self) -> int:
        return self.groups
