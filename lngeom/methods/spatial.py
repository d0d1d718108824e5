"""Methods of convolutional networks, with statistics over the positions of a sample, for inputs [N T D]."""

from typing import ClassVar

import jax.numpy as jnp

from lngeom.methods.base import AbstractStatisticsNormalizer, Statistics, check_positions, summed_inputs


def _moments(values, axes, eps) -> Statistics:
    mean = jnp.mean(values, axes, keepdims=True)
    return Statistics(mean, jnp.sqrt(jnp.mean(jnp.square(values - mean), axes, keepdims=True) + eps))


class PooledLayerNorm(AbstractStatisticsNormalizer):
    r"""Layer norm over all positions and units of a sample at once (C × H × W of an image): [N T D] to [N T H]."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True
    needs_positions: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        check_positions(type(self).__name__, inputs)
        return _moments(summed_inputs(weights, inputs), (1, 2), self.eps)


class InstanceNorm(AbstractStatisticsNormalizer):
    r"""Instance normalization (arXiv 1607.08022): moments over the positions of a sample, for each unit."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False
    needs_positions: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        check_positions(type(self).__name__, inputs)
        return _moments(summed_inputs(weights, inputs), (1,), self.eps)


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
