r"""The derivative of each normalizer with its gain, in closed form.

Unit by unit (identity, batch, weight norm), with x̃ the inputs less what the mean subtracts and v_i the slope of σ_i:
$$dn_i = \frac{\tilde x^\top dw_i - n_i\, v_i^\top dw_i}{\sigma_i}.$$
Across units (layer, RMS, group norm), with one projector for each group of h units:
$$dn = \Pi\,(dW\,x) / \sigma, \qquad \Pi = I - \frac{\mathbf 1 \mathbf 1^\top}{h} - \frac{n n^\top}{h}$$
(no $\mathbf 1\mathbf 1^\top$ term for RMS norm). Both hold for every ε ≥ 0, with σ and n those of the ε at hand.
"""

from abc import abstractmethod
from functools import singledispatch

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom._core.sums import over_samples
from lngeom.methods.base import AbstractNormalizer, computes, summed_inputs
from lngeom.methods.statistics import AbstractGroupedNormalizer, BatchNorm, BatchNormEvaluation, Identity, WeightNorm
from lngeom.methods.stored import StreamedBatchNorm


class AbstractLinearization(eqx.Module):
    """The derivative of g n with respect to W at one point.

    Attributes:
        gain: g, shape [H].
        normalized: n at that point, shape [N H].
        inverse_scale: 1/σ, shape [N H], with an axis of length 1 where it is the same for all units or samples.
        inputs: x̃, shape [N D].
    """

    gain: Float[Array, " H"]
    normalized: Float[Array, "N H"]
    inverse_scale: Float[Array, "#N #H"]
    inputs: Float[Array, "N D"]

    @property
    def slopes(self) -> Float[Array, "#N H"]:
        """Slopes g/σ of g n in the summed inputs, before Π; [1 H] where they are the same for all samples."""
        return self.gain[None, :] * self.inverse_scale

    @abstractmethod
    def push(self, weights: Float[Array, "H D"]) -> Float[Array, "N H"]:
        """The tangent g dn of a change dW of the weights."""

    @abstractmethod
    def pull(self, cotangent: Float[Array, "N H"]) -> Float[Array, "H D"]:
        """The transpose of `push`."""


class UnitwiseLinearization(AbstractLinearization):
    """The derivative of a method whose statistics of one unit depend on its own weights alone.

    The factors g_i/σ_i of the units multiply weights, before the push and after the pull, and no samples.

    Attributes:
        transposed: x̃ = x − ∂μ/∂w transposed, once for all products.
        scale_slope: v_i = ∂σ_i/∂w_i, shape [H D].
    """

    transposed: Float[Array, "D N"]
    scale_slope: Float[Array, "H D"]

    def push(self, weights):
        scaled = self.slopes.T * weights
        return self.inputs @ scaled.T - self.normalized * jnp.sum(self.scale_slope * scaled, 1)[None, :]

    def pull(self, cotangent):
        radial = jnp.sum(self.normalized * cotangent, 0)
        return self.slopes.T * (_sum_of_products(self.transposed, cotangent) - radial[:, None] * self.scale_slope)


class GroupedLinearization(AbstractLinearization):
    r"""The derivative of a method which normalizes groups of units within a sample.

    The mean that Π subtracts is taken of the weights instead of the samples, whose number is larger:
    $\Pi(dW\,x) = (I - nn^\top/h)(dW_c\,x)$.

    Attributes:
        scaled: g n, shape [N H]: with it the pull needs one sweep over the samples less.
        transposed: x transposed, once for all products.
        groups: number of groups.
        centered: whether a mean is subtracted.
    """

    scaled: Float[Array, "N H"]
    transposed: Float[Array, "D N"]
    groups: int = eqx.field(static=True)
    centered: bool = eqx.field(static=True)

    def project(self, value: Float[Array, "N H"]) -> Float[Array, "N H"]:
        """Π along the units' axis; symmetric, so its own transpose."""
        value = self.center(value.T).T
        return value - self._along_normalized(self.normalized, value)

    def push(self, weights):
        value = self.inputs @ self.center(weights).T
        return self.gain[None, :] * ((value - self._along_normalized(self.normalized, value)) * self.inverse_scale)

    def pull(self, cotangent):
        along = self._along_normalized(self.scaled, cotangent)
        projected = (self.gain[None, :] * cotangent - along) * self.inverse_scale
        return self.center(_sum_of_products(self.transposed, projected))

    def _along_normalized(self, scaled: Float[Array, "N H"], value: Float[Array, "N H"]) -> Float[Array, "N H"]:
        """The part along n of g times a value, in every group, given g n."""
        n, scaled, value = (v.reshape(len(v), self.groups, -1) for v in (self.normalized, scaled, value))
        return (n * jnp.mean(scaled * value, 2, keepdims=True)).reshape(self.normalized.shape)

    def center(self, weights: Float[Array, "H D"]) -> Float[Array, "H D"]:
        """The weights less their mean over each group of units, where a mean is subtracted."""
        if not self.centered:
            return weights
        grouped = weights.reshape(self.groups, -1, weights.shape[1])
        return (grouped - jnp.mean(grouped, 1, keepdims=True)).reshape(weights.shape)


@singledispatch
def linearize(
    normalizer: AbstractNormalizer, weights: Float[Array, "H D"], inputs: Float[Array, "N D"], gain: Float[Array, " H"]
) -> AbstractLinearization:
    """The derivative of a normalizer and its gain at W, for each sample of X, by the formula of its class.

    Raises:
        NotImplementedError: if no closed form is known for this method.
    """
    raise NotImplementedError(f"no closed form is known for the derivative of {type(normalizer).__name__}")


def has_linearization(normalizer: AbstractNormalizer) -> bool:
    """Whether `linearize` gives this normalizer's derivative: its class is known, and its formula is not replaced."""
    kind = next(c for c in type(normalizer).__mro__ if c in linearize.registry)
    return kind is not object and computes(normalizer, kind)


def _transposed(samples: Float[Array, "N D"]) -> Float[Array, "D N"]:
    """Written out: XLA on a CPU multiplies slower where it transposes inside a product."""
    return jax.lax.optimization_barrier(samples.T)


def _sum_of_products(transposed: Float[Array, "D N"], b: Float[Array, "N H"]) -> Float[Array, "H D"]:
    r"""The sum $\sum_n b_n x_n^\top$."""
    return jax.lax.optimization_barrier(transposed @ b).T


def unitwise(normalizer, weights, inputs, gain, shift, scale_slope) -> UnitwiseLinearization:
    """The derivative given x̃ − x and the slope of σ, a function of σ."""
    mean, scale = normalizer.statistics(weights, inputs)
    a = summed_inputs(weights, inputs)
    inverse = jnp.broadcast_to(1 / scale, (1, len(weights)))
    x = inputs - shift
    return UnitwiseLinearization(gain, (a - mean) / scale, inverse, x, _transposed(x), scale_slope(scale))


@linearize.register(Identity)
@linearize.register(BatchNormEvaluation)
def _(normalizer, weights, inputs, gain) -> UnitwiseLinearization:
    return unitwise(normalizer, weights, inputs, gain, jnp.zeros_like(inputs[:1]), lambda _: jnp.zeros_like(weights))


@linearize.register(WeightNorm)
def _(normalizer, weights, inputs, gain) -> UnitwiseLinearization:
    return unitwise(normalizer, weights, inputs, gain, jnp.zeros_like(inputs[:1]), lambda scale: weights / scale.T)


@linearize.register(BatchNorm)
def _(normalizer, weights, inputs, gain) -> UnitwiseLinearization:
    mean = jnp.mean(inputs, 0, keepdims=True)
    centered = inputs - mean

    def slope(scale: Float[Array, "1 H"]) -> Float[Array, "H D"]:
        """Cov(x) w_i / σ_i."""
        return over_samples(centered @ weights.T / scale, centered) / len(inputs)

    return unitwise(normalizer, weights, inputs, gain, mean, slope)


@linearize.register(StreamedBatchNorm)
def _(normalizer, weights, inputs, gain) -> UnitwiseLinearization:
    return unitwise(normalizer, weights, inputs, gain, normalizer.input_mean[None, :], lambda _: normalizer.slope)


@linearize.register(AbstractGroupedNormalizer)
def _(normalizer, weights, inputs, gain) -> GroupedLinearization:
    mean, scale = normalizer.statistics(weights, inputs)
    a = summed_inputs(weights, inputs)
    n, transposed = (a - mean) / scale, _transposed(inputs)
    groups, centered = normalizer.group_count, normalizer.centered
    return GroupedLinearization(gain, n, 1 / scale, inputs, gain[None, :] * n, transposed, groups, centered)
