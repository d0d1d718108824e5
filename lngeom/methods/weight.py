"""Methods that normalize the weights, or weights and inputs, instead of the summed inputs."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics, summed_inputs
from lngeom.methods.composites import SIGMA, Composite, Part, Parts, Quotient
from lngeom.methods.formulas import D, H, Place, Slopes, centred, dot, weight_slopes
from lngeom.methods.linearization import Units, unit_by_unit
from lngeom.methods.page import CASE_SCALES, ROW_SCALES, composed, indexed, moves, row


def _centered(rows: Float[Array, "... D"]) -> Float[Array, "... D"]:
    return rows - jnp.mean(rows, -1, keepdims=True)


def _squared_norms(rows: Float[Array, "... D"]) -> Float[Array, "..."]:
    return jnp.sum(jnp.square(rows), -1)


def _per_unit(values: Float[Array, " H"], inputs: Float[Array, "N *T D"]) -> Float[Array, "..."]:
    """Values of each unit, shaped to broadcast against summed inputs."""
    return values.reshape((1,) * (inputs.ndim - 1) + (-1,))


@row(
    "wn",
    "WN",
    alias="weight",
    invariant=ROW_SCALES,
    equivariant="unit_permutations",
    basis="input_rotations",
)
@indexed(lambda L, n, i, eps: (L.a(n, i), dot(L, L.row(i), L.row(i), D) + eps))
@moves(weight_slopes(lambda P: 1))
class WeightNorm(AbstractStatisticsNormalizer):
    r"""Weight normalization: $\mu = 0$, $\sigma_i = \sqrt{\|w_i\|^2 + \epsilon}$ (text after Eq. 5)."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def statistics(self, weights, inputs):
        scale = _per_unit(jnp.sqrt(_squared_norms(weights) + self.eps), inputs)
        return Statistics(jnp.zeros_like(scale), scale)


@unit_by_unit(WeightNorm)
def _(normalizer, weights, inputs, scale, total) -> Units:
    return Units(inputs, weights / scale[:, None])


def standardized_weights(L, n, i, eps):
    """The index formula of weight standardization."""
    row = centred(L, L.row(i), D)
    return dot(L, row, L.case(n), D), L.mean(lambda d: row(d) ** 2, D) + eps


@row(
    "ws",
    "Weight standardization",
    invariant=(*ROW_SCALES, "weight_vector_constant_shift", "single_case_constant_shift"),
    equivariant="unit_permutations",
    basis="input_rotations_fixing_one",
)
@indexed(standardized_weights, smallest=(1, 3, 1))
@moves(weight_slopes(lambda P: 1 / P.count, centred=True))
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


def spectral_parts(weights: Float[np.ndarray, "H D"]) -> dict[str, np.ndarray]:
    r"""Of the largest singular value s both singular vectors, and $R = (s^2 - W^\top W)^+$, WR and $WRW^\top$."""
    left, values, right = np.linalg.svd(np.asarray(weights, np.float64))
    s, v = values[0], right[0]
    R = np.linalg.pinv(s**2 * np.eye(len(v)) - weights.T @ weights, rcond=1e-13, hermitian=True)
    return {"s": s, _LEFT: left[:, 0], "v": v, "R": R, "K": weights @ R, "Q": weights @ R @ weights.T}


_LEFT = r"\ell"
"""The left singular vector."""


def _spectral_scale(P: Parts, y: Place) -> Any:
    """∂σ/∂W_jd = s ℓ_j v_d / σ."""
    j, d = y
    return P("s") * P(_LEFT, j) * P("v", d) / P(SIGMA)


def _spectral_square(P: Parts, y: Place, z: Place) -> Any:
    r"""$\tfrac12\partial^2\sigma^2 = [j=k] v_d v_e + C_{jd}^\top R\, C_{ke}$ with $C_{jd} = v_d w_j + s \ell_j e_d$."""
    (j, d), (k, e) = y, z
    s, left, v = P("s"), lambda unit: P(_LEFT, unit), lambda place: P("v", place)
    crossed = v(d) * left(k) * P("K", j, e) + v(e) * left(j) * P("K", k, d)
    return v(d) * v(e) * (P.same(j, k) + P("Q", j, k)) + s * crossed + s**2 * left(j) * left(k) * P("R", d, e)


SPECTRAL = Slopes(
    by="W",
    runs=(H, D),
    numerator=lambda output, y: output.parts.same(output.parts.unit, y[0]) * output.parts("x", y[1]),
    share=lambda output: 1,
    scale=lambda output, y: _spectral_scale(output.parts, y),
    square=lambda output, y, z: _spectral_square(output.parts, y, z),
)
"""How numerator and scale of spectral norm move with all weights."""


def spectral(P: Parts) -> Quotient:
    """The output of spectral norm."""
    return Quotient(P, value=lambda place: P("n"), sigma=P(SIGMA), count=P.size(H) * P.size(D))


@row(
    "sn",
    "Spectral norm",
    alias="spectral",
    invariant=("weight_matrix_rescaling",),
    equivariant="unit_rotations",
    basis="input_rotations",
)
@indexed(
    lambda L, n, i, eps: (L.a(n, i), L.largest_squared_singular_value() + eps), smallest=(2, 2, 1), irrational=True
)
@composed(
    Composite(
        by={"W": lambda n, i, y: y},
        runs=(H, D),
        parts={
            "n": Part("", lambda L, n, i, eps: L.a(n, i) / L.root(L.largest_squared_singular_value() + eps)),
            SIGMA: Part(
                r"\sigma^2 = s^2 + \varepsilon", lambda L, n, i, eps: L.root(L.largest_squared_singular_value() + eps)
            ),
            "x": Part(r"x_d = x_{nd}", lambda L, n, i, eps: L.case(n)),
            "w": Part("", lambda L, n, i, eps: L.row(i)),
        },
        whole=lambda P: P.total(lambda d: P("w", d) * P("x", d), D) / P(SIGMA),
        first={"W": lambda P, y: SPECTRAL.first(spectral(P), y)},
        second={"WW": lambda P, y, z: SPECTRAL.second(spectral(P), y, z)},
        solved=spectral_parts,
        meanings={
            "s": r"s = \|W\|_2",
            _LEFT: r"W v = s \ell",
            "v": r"W^\top \ell = s v,\ \|v\| = 1",
            "R": r"R = (s^2 - W^\top W)^+",
            "K": "K = W R",
            "Q": r"Q = W R W^\top",
        },
    )
)
class SpectralNorm(AbstractStatisticsNormalizer):
    r"""Spectral normalization (arXiv 1802.05957), exact: $\mu = 0$, $\sigma^2 = \sigma_{\max}(W)^2 + \epsilon$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        largest = jnp.linalg.norm(weights, 2)
        scale = jnp.sqrt(jnp.square(largest) + self.eps).reshape((1,) * inputs.ndim)
        return Statistics(jnp.zeros_like(scale), scale)


def _cosine(L, w, x, eps):
    return dot(L, w, x, D), dot(L, w, w, D) * dot(L, x, x, D) + eps


@row(
    "cosine",
    "Cosine",
    invariant=(*ROW_SCALES, *CASE_SCALES),
    equivariant="unit_permutations",
    basis="input_rotations",
)
@indexed(lambda L, n, i, eps: _cosine(L, L.row(i), L.case(n), eps))
@moves(weight_slopes(lambda P: P.squared_length()))
class CosineNorm(AbstractNormalizer):
    r"""Cosine normalization (arXiv 1702.05870): $n_i = w_i^\top x / \sqrt{\|w_i\|^2 \|x\|^2 + \epsilon}$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        square = _per_unit(_squared_norms(weights), inputs) * _squared_norms(inputs)[..., None]
        return summed_inputs(weights, inputs) / jnp.sqrt(square + self.eps)


@row(
    "pcc",
    "PCC (centred cosine)",
    invariant=(*ROW_SCALES, "weight_vector_constant_shift", *CASE_SCALES, "single_case_constant_shift"),
    equivariant="unit_permutations",
    basis="input_rotations_fixing_one",
)
@indexed(lambda L, n, i, eps: _cosine(L, centred(L, L.row(i), D), centred(L, L.case(n), D), eps), smallest=(1, 3, 1))
@moves(weight_slopes(lambda P: P.squared_length(), centred=True))
class PearsonCorrelation(AbstractNormalizer):
    r"""Centred cosine normalization (arXiv 1702.05870): the correlation of $w_i$ and x over D entries."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return CosineNorm(self.eps)(_centered(weights), _centered(inputs))
