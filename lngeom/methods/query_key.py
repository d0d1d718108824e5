"""Attention logits of normalized queries and keys."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, check_positions
from lngeom.methods.formulas import M, centred, dot
from lngeom.methods.layer import SCALES, LayerNorm, ScaleNorm
from lngeom.methods.page import GROUPS, indexed, row


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


def _logit(L, n, s, eps, prepared):
    """The logit of the query at position t of n = (n, t) and the key at s. Group 1 of the units is the queries'."""
    query = prepared(L, lambda k: L.a(n, (1, k)), M)
    key = prepared(L, lambda k: L.a((n[0], s), (2, k)), M)
    return dot(L, query, key, M), (dot(L, query, query, M) + eps) * (dot(L, key, key, M) + eps)


@row(
    "qk_l2",
    "QK-norm L2, logits",
    groups=2 * GROUPS,
    invariant=(*SCALES, "weight_sign_flip"),
    basis="input_basis_changes",
)
@indexed(
    lambda L, n, s, eps: _logit(L, n, s, eps, lambda L, values, size: values),
    logits=True,
    smallest=(2, 2, 1),
    groups=2,
    blocks=4,
    positions=2,
)
class QueryKeyNorm(AbstractQueryKeyNorm):
    r"""Query-key normalization (arXiv 2010.04245): cosines of queries and keys, each divided by its length."""

    eps: float = 0.0

    def __call__(self, weights, inputs):
        return self._logits(ScaleNorm(self.eps), weights, inputs)


@row(
    "qk_ln",
    "QK-norm LN, logits",
    groups=2 * GROUPS,
    invariant=(*SCALES, "weight_sign_flip", "weight_matrix_recentering"),
    basis="input_basis_changes",
)
@indexed(
    lambda L, n, s, eps: _logit(L, n, s, eps * L.size(M), centred),
    logits=True,
    smallest=(3, 2, 1),
    groups=2,
    blocks=4,
    least_units=2,
    positions=2,
)
class QueryKeyLayerNorm(AbstractQueryKeyNorm):
    r"""Query-key normalization by layer norm (arXiv 2302.05442), with unit gain, divided by the width of the head."""

    eps: float = 0.0

    def __call__(self, weights, inputs):
        return self._logits(LayerNorm(self.eps), weights, inputs) / (weights.shape[0] // 2)
