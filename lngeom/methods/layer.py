r"""Layer normalization and its kin: moments over the summed inputs of one sample, all of them or group by group."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics, summed_inputs
from lngeom.methods.formulas import H, M, moment_slopes, standardized
from lngeom.methods.linearization import AbstractLinearization, linearize, sum_of_products, transposed
from lngeom.methods.page import CASE_SCALES, GROUPS, indexed, moves, row

SCALES = ("weight_matrix_rescaling", *CASE_SCALES)


class AbstractGroupedNormalizer(AbstractStatisticsNormalizer):
    """Statistics over groups of units of one sample: layer, RMS and group norm compute theirs here.

    `GroupedLinearization` is the derivative of this formula in closed form, and `lngeom.information.predicted` has the
    theory of its null space. A subclass with its own `statistics` is differentiated automatically.
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
        return self.center(sum_of_products(self.transposed, projected))

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


@linearize.register(AbstractGroupedNormalizer)
def _(normalizer, weights, inputs, gain) -> GroupedLinearization:
    mean, scale = normalizer.statistics(weights, inputs)
    n = (summed_inputs(weights, inputs) - mean) / scale
    groups, centered = normalizer.group_count, normalizer.centered
    return GroupedLinearization(gain, n, 1 / scale, inputs, gain[None, :] * n, transposed(inputs), groups, centered)


def layer_norm(L, n, i, eps):
    """The index formula of layer norm."""
    return standardized(L, lambda j: L.a(n, j), H, i, eps)


@row(
    "ln_eps",
    "LN, ε > 0",
    lambda weights, inputs: {"eps": 0.5},
    invariant=("weight_matrix_recentering",),
    equivariant="unit_rotations_fixing_one",
    basis="input_basis_changes",
)
@row(
    "ln",
    "LN (per position)",
    alias="layer",
    invariant=(*SCALES, "weight_matrix_recentering"),
    equivariant="unit_rotations_fixing_one",
    basis="input_basis_changes",
)
@indexed(layer_norm, smallest=(3, 2, 1), least_units=2)
@moves(moment_slopes(H))
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


def _ramp(weights: Float[Array, "H D"]) -> Float[Array, " H"]:
    """A bias that differs from unit to unit."""
    return jnp.linspace(-1.0, 2.0, weights.shape[0], dtype=weights.dtype)


@row(
    "ln_biased",
    "LN with a bias before it",
    lambda weights, inputs: {"bias": _ramp(weights)},
    invariant=("weight_matrix_recentering",),
    odd=False,
    basis="input_basis_changes",
)
@indexed(
    lambda L, n, i, eps: standardized(L, lambda j: L.a(n, j) + L.stored("bias", j), H, i, eps),
    smallest=(3, 2, 1),
    least_units=2,
)
@moves(moment_slopes(H))
class BiasedLayerNorm(AbstractNormalizer):
    r"""Layer norm of summed inputs that have a bias already: $a = Wx + c$.

    Attributes:
        bias: c, shape [H]; not the one added after the normalization.
    """

    bias: Float[Array, " H"]
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def __call__(self, weights, inputs):
        if self.bias.shape != weights.shape[:1]:
            raise ValueError(f"bias must have shape [H] = ({weights.shape[0]},); got {self.bias.shape}")
        a = summed_inputs(weights, inputs) + self.bias.reshape((1,) * (inputs.ndim - 1) + (-1,))
        return LayerNorm(self.eps)(jnp.eye(a.shape[-1], dtype=a.dtype), a)


@row("rms", "RMSNorm", invariant=SCALES, equivariant="unit_rotations", basis="input_basis_changes")
@indexed(lambda L, n, i, eps: (L.a(n, i), L.mean(lambda j: L.a(n, j) ** 2, H) + eps), smallest=(2, 2, 1))
@moves(moment_slopes(H, centred=False))
class RMSNorm(AbstractGroupedNormalizer):
    r"""Root mean square normalization (arXiv 1910.07467): $\mu = 0$, $\sigma^2 = \frac1H \sum_i a_i^2 + \epsilon$."""

    eps: float = 0.0
    centered: ClassVar[bool] = False

    @property
    def group_count(self) -> int:
        return 1


@row("scale", "ScaleNorm", invariant=SCALES, equivariant="unit_rotations", basis="input_basis_changes")
@indexed(lambda L, n, i, eps: (L.a(n, i), L.total(lambda j: L.a(n, j) ** 2, H) + eps), smallest=(2, 2, 1))
@moves(moment_slopes(H, centred=False, mean=False))
class ScaleNorm(AbstractStatisticsNormalizer):
    r"""ScaleNorm (arXiv 1910.05895): $\mu = 0$, $\sigma^2 = \|a\|^2 + \epsilon$, RMS norm divided by $\sqrt H$."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def statistics(self, weights, inputs):
        a = summed_inputs(weights, inputs)
        scale = jnp.sqrt(jnp.sum(jnp.square(a), -1, keepdims=True) + self.eps)
        return Statistics(jnp.zeros_like(scale), scale)


def group_norm(values):
    """The index formula of group norm, of values (layer, sample, unit, ε)."""
    return lambda L, n, i, eps: standardized(L, lambda k: values(L, n, (i[0], k), eps), M, i[1], eps)


@row(
    "gn",
    "GroupNorm, fully connected",
    lambda weights, inputs: {"groups": GROUPS},
    alias="group",
    invariant=(*SCALES, "weight_matrix_recentering", "weight_group_rescaling", "weight_group_recentering"),
    equivariant="group_permutations",
    basis="input_basis_changes",
)
@indexed(group_norm(lambda L, n, i, eps: L.a(n, i)), grouped=True, smallest=(3, 2, 1), groups=GROUPS, least_units=2)
@moves(moment_slopes(M))
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
