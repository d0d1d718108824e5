"""Methods of transformers: they normalize the input before the weights, or add it back after the norm."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, check_positions, summed_inputs
from lngeom.methods.statistics import BatchNorm, LayerNorm, RMSNorm, ScaleNorm


def _of_inputs(norm: AbstractNormalizer, inputs: Float[Array, "N *T D"]) -> Float[Array, "N *T D"]:
    return norm(jnp.eye(inputs.shape[-1], dtype=inputs.dtype), inputs)


class PreLayerNorm(AbstractNormalizer):
    r"""Layer norm before the weights, $n = W\,\mathrm{LN}(x)$: moments over the D entries of x."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return summed_inputs(weights, _of_inputs(LayerNorm(self.eps), inputs))


class PreRMSNorm(AbstractNormalizer):
    r"""RMS norm before the weights, $n = W\,\mathrm{RMS}(x)$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return summed_inputs(weights, _of_inputs(RMSNorm(self.eps), inputs))


class PreBatchNorm(AbstractNormalizer):
    r"""Batch norm before the weights, $n = W\,\mathrm{BN}(x)$: moments of every input over the data set."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = True
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return summed_inputs(weights, _of_inputs(BatchNorm(self.eps), inputs))


class ResidualLayerNorm(AbstractNormalizer):
    r"""A residual block whose branch is layer-normalized, $n = x + \mathrm{LN}(Wx)$, for H = D."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def __call__(self, weights, inputs):
        if weights.shape[0] != weights.shape[1]:
            raise ValueError(f"a residual block needs as many units as inputs, H = D; got weights {weights.shape}")
        return inputs + LayerNorm(self.eps)(weights, inputs)


class AbstractQueryKeyNorm(AbstractNormalizer):
    r"""Attention logits of normalized queries and keys of one head: [N T D] to [N T T].

    The first half of the rows of W are $W_q$, the second half $W_k$; the logit of positions (t, s) is the inner
    product of the normalized $W_q x_t$ and $W_k x_s$.
    """

    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True
    needs_positions: ClassVar[bool] = True
    outputs_are_units: ClassVar[bool] = False

    def _logits(self, norm: AbstractNormalizer, weights, inputs) -> Float[Array, "N T T"]:
        check_positions(type(self).__name__, inputs)
        if weights.shape[0] % 2:
            raise ValueError(f"weights hold W_q above W_k: their rows must be even in number; got {weights.shape[0]}")
        queries, keys = (norm(half, inputs) for half in jnp.split(weights, 2))
        return queries @ jnp.swapaxes(keys, 1, 2)


class QueryKeyNorm(AbstractQueryKeyNorm):
    r"""Query-key normalization (arXiv 2010.04245): cosines of queries and keys, each divided by its length."""

    eps: float = 0.0

    def __call__(self, weights, inputs):
        return self._logits(ScaleNorm(self.eps), weights, inputs)


class QueryKeyLayerNorm(AbstractQueryKeyNorm):
    r"""Query-key normalization by layer norm (arXiv 2302.05442), with unit gain, divided by the width of the head."""

    eps: float = 0.0

    def __call__(self, weights, inputs):
        return self._logits(LayerNorm(self.eps), weights, inputs) / (weights.shape[0] // 2)
