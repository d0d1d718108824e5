"""Methods that normalize the input before the weights, as blocks of transformers do."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, summed_inputs
from lngeom.methods.batch import BatchNorm
from lngeom.methods.composites import Composite, Part
from lngeom.methods.formulas import D, N, centred, dot, ratio, standardized, weight_slopes
from lngeom.methods.layer import LayerNorm, RMSNorm
from lngeom.methods.page import CASE_SCALES, composed, indexed, moves, row


def _of_inputs(norm: AbstractNormalizer, inputs: Float[Array, "N *T D"]) -> Float[Array, "N *T D"]:
    return norm(jnp.eye(inputs.shape[-1], dtype=inputs.dtype), inputs)


def _layer_normalized(L, n, i, eps):
    case = centred(L, L.case(n), D)
    return dot(L, L.row(i), case, D), L.mean(lambda d: case(d) ** 2, D) + eps


@row(
    "pre_ln",
    "pre-LN, W·LN(x)",
    invariant=(*CASE_SCALES, "single_case_constant_shift", "weight_vector_constant_shift"),
    equivariant="unit_rotations",
    basis="input_rotations_fixing_one",
)
@indexed(_layer_normalized, smallest=(1, 3, 1))
@moves(weight_slopes(lambda P: 0, centred=True))
class PreLayerNorm(AbstractNormalizer):
    r"""Layer norm before the weights, $n = W\,\mathrm{LN}(x)$: moments over the D entries of x."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return summed_inputs(weights, _of_inputs(LayerNorm(self.eps), inputs))


@row(
    "pre_rms",
    "pre-RMS",
    invariant=CASE_SCALES,
    equivariant="unit_rotations",
    basis="input_rotations",
)
@indexed(lambda L, n, i, eps: (L.a(n, i), L.mean(lambda d: L.X(n, d) ** 2, D) + eps))
@moves(weight_slopes(lambda P: 0))
class PreRMSNorm(AbstractNormalizer):
    r"""RMS norm before the weights, $n = W\,\mathrm{RMS}(x)$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return summed_inputs(weights, _of_inputs(RMSNorm(self.eps), inputs))


def _normalized_inputs(L, n, eps):
    return lambda d: ratio(L, standardized(L, lambda m: L.X(m, d), N, n, eps))


_INPUT = r"\hat x"


@row(
    "pre_bn",
    "pre-BN",
    invariant=("dataset_rescaling", "dataset_recentering", "input_rescaling"),
    equivariant="unit_rotations",
)
@indexed(
    lambda L, n, i, eps: (dot(L, L.row(i), _normalized_inputs(L, n, eps), D), 1), smallest=(1, 2, 3), irrational=True
)
@composed(
    Composite(
        by={"W": lambda n, i, y: (i, y)},
        runs=(D,),
        parts={
            _INPUT: Part(r"\hat x_d = \mathrm{BN}(x_d)_n", lambda L, n, i, eps: _normalized_inputs(L, n, eps)),
            "w": Part("", lambda L, n, i, eps: L.row(i)),
        },
        whole=lambda P: P.total(lambda d: P("w", d) * P(_INPUT, d), D),
        first={"W": lambda P, y: P(_INPUT, y)},
        second={"WW": lambda P, y, z: 0},
    )
)
class PreBatchNorm(AbstractNormalizer):
    r"""Batch norm before the weights, $n = W\,\mathrm{BN}(x)$: moments of every input over the data set."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = True
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return summed_inputs(weights, _of_inputs(BatchNorm(self.eps), inputs))
