"""Methods that normalize the input before the weights, as blocks of transformers do."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, summed_inputs
from lngeom.methods.batch import BatchNorm
from lngeom.methods.formulas import D, N, centred, dot, ratio, standardized, weight_slopes
from lngeom.methods.layer import LayerNorm, RMSNorm
from lngeom.methods.page import CASE_SCALES, indexed, moves, row


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


def _batch_normalized(L, n, i, eps):
    return L.total(lambda d: L.W(i, d) * ratio(L, standardized(L, lambda m: L.X(m, d), N, n, eps)), D), 1


@row(
    "pre_bn",
    "pre-BN",
    invariant=("dataset_rescaling", "dataset_recentering", "input_rescaling"),
    equivariant="unit_rotations",
)
@indexed(_batch_normalized, smallest=(1, 2, 3), irrational=True)
class PreBatchNorm(AbstractNormalizer):
    r"""Batch norm before the weights, $n = W\,\mathrm{BN}(x)$: moments of every input over the data set."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = True
    couples_units: ClassVar[bool] = False

    def __call__(self, weights, inputs):
        return summed_inputs(weights, _of_inputs(BatchNorm(self.eps), inputs))
