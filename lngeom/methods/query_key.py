"""Attention logits of normalized queries and keys."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, check_positions
from lngeom.methods.composites import Composite, Part, Parts
from lngeom.methods.formulas import M, Place, centred, dot
from lngeom.methods.layer import SCALES, LayerNorm, ScaleNorm
from lngeom.methods.page import GROUPS, composed, indexed, row


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


def _plain(L, values, size):
    return values


def _side(L, n, half, eps, prepared):
    """What a position's query, half 1, or key, half 2, has before its division, and the square of its divisor."""
    values = prepared(L, lambda k: L.a(n, (half, k)), M)
    return values, dot(L, values, values, M) + eps


def _logit(L, n, s, eps, prepared):
    """The logit of the query at position t of n = (n, t) and the key at s. Group 1 of the units is the queries'."""
    query, length = _side(L, n, 1, eps, prepared)
    key, other = _side(L, (n[0], s), 2, eps, prepared)
    return dot(L, query, key, M), length * other


_Q, _K, _QUERY, _KEY = r"\hat q", r"\hat k", r"\rho", r"\kappa"
"""Query and key, each divided by its length, and these lengths, which hold ε."""


def _logit_derivatives(prepared: Callable[..., Any], added: Callable[[Any, Any], Any], mean: bool) -> Composite:
    r"""Derivatives of a logit $\hat q \cdot \hat k$ by the summed inputs a of its query and b of its key.

    Args:
        prepared: (layer, values, size) to what is divided.
        added: (layer, ε) to what is added to its squared length.
        mean: whether `prepared` subtracts the mean.
    """

    def side(half: int, L, n, s, eps):
        return _side(L, n if half == 1 else (n[0], s), half, added(L, eps), prepared)

    def unit(half: int) -> Callable[..., Any]:
        def value(L, n, s, eps):
            values, square = side(half, L, n, s, eps)
            return lambda k: values(k) / L.root(square)

        return value

    def length(half: int) -> Callable[..., Any]:
        return lambda L, n, s, eps: L.root(side(half, L, n, s, eps)[1])

    def c(P: Parts, y: Place, z: Place) -> Any:
        return P.same(y, z) - 1 / P.size(M) if mean else P.same(y, z)

    def first(own: str, other: str, scale: str) -> Callable[[Parts, Place], Any]:
        return lambda P, y: (P(other, y) - P("n") * P(own, y)) / P(scale)

    def second(own: str, other: str, scale: str) -> Callable[[Parts, Place, Place], Any]:
        def formula(P: Parts, y: Place, z: Place) -> Any:
            crossed = P(own, y) * P(other, z) + P(own, z) * P(other, y)
            return (P("n") * (3 * P(own, y) * P(own, z) - c(P, y, z)) - crossed) / P(scale) ** 2

        return formula

    def mixed(P: Parts, y: Place, z: Place) -> Any:
        squares = P(_Q, y) * P(_Q, z) + P(_K, y) * P(_K, z)
        return (c(P, y, z) - squares + P("n") * P(_Q, y) * P(_K, z)) / (P(_QUERY) * P(_KEY))

    a, b = (rf"({letter} - \bar {letter})" if mean else letter for letter in "ab")
    eps = r"M\varepsilon" if mean else r"\varepsilon"
    return Composite(
        by={"a": lambda n, s, y: (n, (1, y)), "b": lambda n, s, y: ((n[0], s), (2, y))},
        runs=(M,),
        parts={
            "n": Part("", lambda L, n, s, eps: dot(L, unit(1)(L, n, s, eps), unit(2)(L, n, s, eps), M)),
            _Q: Part(rf"\hat q = {a}/\rho", unit(1)),
            _K: Part(rf"\hat k = {b}/\kappa", unit(2)),
            _QUERY: Part(rf"\rho^2 = \|{a}\|^2 + {eps}", length(1)),
            _KEY: Part(rf"\kappa^2 = \|{b}\|^2 + {eps}", length(2)),
        },
        whole=lambda P: P.total(lambda k: P(_Q, k) * P(_K, k), M),
        first={"a": first(_Q, _K, _QUERY), "b": first(_K, _Q, _KEY)},
        second={"aa": second(_Q, _K, _QUERY), "ab": mixed, "bb": second(_K, _Q, _KEY)},
    )


@row(
    "qk_l2",
    "QK-norm L2, logits",
    groups=2 * GROUPS,
    invariant=(*SCALES, "weight_sign_flip"),
    basis="input_basis_changes",
)
@indexed(
    lambda L, n, s, eps: _logit(L, n, s, eps, _plain),
    logits=True,
    smallest=(2, 2, 1),
    groups=2,
    blocks=4,
    positions=2,
)
@composed(_logit_derivatives(_plain, lambda L, eps: eps, mean=False))
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
@composed(_logit_derivatives(centred, lambda L, eps: eps * L.size(M), mean=True))
class QueryKeyLayerNorm(AbstractQueryKeyNorm):
    r"""Query-key normalization by layer norm (arXiv 2302.05442), with unit gain, divided by the width of the head."""

    eps: float = 0.0

    def __call__(self, weights, inputs):
        return self._logits(LayerNorm(self.eps), weights, inputs) / (weights.shape[0] // 2)
