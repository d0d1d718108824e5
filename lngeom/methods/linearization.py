r"""The derivative of each normalizer with its gain, in closed form.

Unit by unit (identity, batch, weight norm), with x̃ the inputs less what the mean subtracts and v_i the slope of σ_i:
$$dn_i = \frac{\tilde x^\top dw_i - n_i\, v_i^\top dw_i}{\sigma_i}.$$
Across units (layer, RMS, group norm), with one projector for each group of h units:
$$dn = \Pi\,(dW\,x) / \sigma, \qquad \Pi = I - \frac{\mathbf 1 \mathbf 1^\top}{h} - \frac{n n^\top}{h}$$
(no $\mathbf 1\mathbf 1^\top$ term for RMS norm). Both hold for every ε ≥ 0, with σ and n those of the ε at hand. Each
method's page registers its derivative with `linearize`. The entries of the derivative are those of its `Slopes`, which
are proved for all sizes; the claims `derivative.*.first` hold the products here to them.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom._core.sums import over_samples
from lngeom.methods.base import AbstractNormalizer, entry_of, summed_inputs


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
        return self.slopes.T * (sum_of_products(self.transposed, cotangent) - radial[:, None] * self.scale_slope)


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
    return entry_of(normalizer, {kind: True for kind in linearize.registry if kind is not object}) is not None


def transposed(samples: Float[Array, "N D"]) -> Float[Array, "D N"]:
    """Written out: XLA on a CPU multiplies slower where it transposes inside a product."""
    return jax.lax.optimization_barrier(samples.T)


def sum_of_products(transposed: Float[Array, "D N"], b: Float[Array, "N H"]) -> Float[Array, "H D"]:
    r"""The sum $\sum_n b_n x_n^\top$."""
    return jax.lax.optimization_barrier(transposed @ b).T


class Units(NamedTuple):
    r"""What a unit-by-unit method is next to its weights: $\sigma_i n_i = \tilde x^\top w_i - c_i$, and ∂σ_i/∂w_i.

    Attributes:
        inputs: x̃, shape [N D].
        slope: v_i = ∂σ_i/∂w_i, shape [H D]; 0 for a constant σ.
        offset: c, shape [H]; 0 where nothing is subtracted but what the inputs lack.
    """

    inputs: Float[Array, "N D"]
    slope: Float[Array, "H D"] | float = 0.0
    offset: Float[Array, " H"] | float = 0.0


UnitFormula = Callable[..., Units]
UNITS: dict[type[AbstractNormalizer], UnitFormula] = {}
"""Class → (normalizer, W, X, σ [H], sum) to `Units`, for arrays of JAX and NumPy. `sum` is that of a_n b_nᵀ over n."""


def unit_by_unit(kind: type[AbstractNormalizer]) -> Callable[[UnitFormula], UnitFormula]:
    """Gives a class its closed derivative, on which the theory of its null space rests too."""

    def register(formula: UnitFormula) -> UnitFormula:
        UNITS[kind] = formula

        @linearize.register(kind)
        def _(normalizer, weights, inputs, gain) -> UnitwiseLinearization:
            mean, scale = normalizer.statistics(weights, inputs)
            x, slope, _ = formula(
                normalizer, weights, inputs, jnp.broadcast_to(scale, (1, len(weights)))[0], over_samples
            )
            n = (summed_inputs(weights, inputs) - mean) / scale
            inverse = jnp.broadcast_to(1 / scale, (1, len(weights)))
            return UnitwiseLinearization(gain, n, inverse, x, transposed(x), jnp.broadcast_to(slope, weights.shape))

        return formula

    return register
