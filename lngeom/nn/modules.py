"""Equinox modules that hold the parameters of the layers in `lngeom.nn.functional`."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom.nn.functional import (
    RunningStatistics,
    batch_norm,
    check_eps,
    group_norm,
    layer_norm,
    rms_norm,
    weight_norm,
)


class _AffineNorm(eqx.Module):
    """Gain, bias and options of a layer with a variance; gains start at 1 and biases at 0.

    Attributes:
        gain: g, shape [H], or None for ones.
        bias: b, shape [H], or None for zeros.
        eps: added to the variance before the square root.
        exact: whether scaling and rows of zero variance are handled exactly (then eps = 0).
    """

    gain: Float[Array, " H"] | None
    bias: Float[Array, " H"] | None
    eps: float = eqx.field(static=True)
    exact: bool = eqx.field(static=True)

    def __init__(
        self,
        units: int,
        *,
        eps: float | None = None,
        exact: bool = False,
        use_gain: bool = True,
        use_bias: bool = True,
        dtype: jax.typing.DTypeLike = jnp.float32,
    ):
        if units < 1:
            raise ValueError(f"units must be at least 1; got {units}")
        self.gain = jnp.ones(units, dtype) if use_gain else None
        self.bias = jnp.zeros(units, dtype) if use_bias else None
        self.eps = check_eps(eps, exact)
        self.exact = exact


class LayerNorm(_AffineNorm):
    """Layer normalization of the last axis (Eq. 3); see `layer_norm`."""

    def __init__(
        self,
        units: int,
        *,
        eps: float | None = None,
        exact: bool = False,
        use_gain: bool = True,
        use_bias: bool = True,
        dtype: jax.typing.DTypeLike = jnp.float32,
    ):
        super().__init__(units, eps=eps, exact=exact, use_gain=use_gain, use_bias=use_bias, dtype=dtype)

    def __call__(self, x: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
        """Normalized values, of the shape and dtype of x."""
        return layer_norm(x, self.gain, self.bias, eps=self.eps, exact=self.exact)


class RMSNorm(_AffineNorm):
    """Root mean square normalization of the last axis; see `rms_norm`."""

    def __init__(
        self,
        units: int,
        *,
        eps: float | None = None,
        exact: bool = False,
        use_gain: bool = True,
        use_bias: bool = True,
        dtype: jax.typing.DTypeLike = jnp.float32,
    ):
        super().__init__(units, eps=eps, exact=exact, use_gain=use_gain, use_bias=use_bias, dtype=dtype)

    def __call__(self, x: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
        """Normalized values, of the shape and dtype of x."""
        return rms_norm(x, self.gain, self.bias, eps=self.eps, exact=self.exact)


class GroupNorm(_AffineNorm):
    """Group normalization of the last axis, and of positions before it; see `group_norm`.

    Attributes:
        groups: number of groups; divides the units.
        positions: axes before the last over which statistics are pooled.
    """

    groups: int = eqx.field(static=True)
    positions: int = eqx.field(static=True)

    def __init__(self, units: int, groups: int, *, positions: int = 0, **options: Any):
        if groups < 1 or units % groups:
            raise ValueError(f"groups must divide the number of units H = {units}; got {groups}")
        super().__init__(units, **options)
        self.groups, self.positions = groups, positions

    def __call__(self, x: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
        """Normalized values, of the shape and dtype of x."""
        return group_norm(
            x,
            self.gain,
            self.bias,
            groups=self.groups,
            positions=self.positions,
            eps=self.eps,
            exact=self.exact,
        )


class BatchNorm(_AffineNorm):
    """Batch normalization over all leading axes (Eq. 2); see `batch_norm`.

    Attributes:
        momentum: weight of the stored statistics when new ones are mixed in.
        unbiased: whether the stored variance has the divisor N − 1.
    """

    momentum: float = eqx.field(static=True)
    unbiased: bool = eqx.field(static=True)

    def __init__(self, units: int, *, momentum: float = 0.9, unbiased: bool = False, **options: Any):
        super().__init__(units, **options)
        self.momentum, self.unbiased = momentum, unbiased

    def __call__(
        self, x: Float[Array, "*batch H"], running: RunningStatistics | None = None, *, training: bool = True
    ) -> tuple[Float[Array, "*batch H"], RunningStatistics]:
        """Normalized values, of the shape and dtype of x, and the statistics to store."""
        return batch_norm(
            x,
            self.gain,
            self.bias,
            running,
            training=training,
            momentum=self.momentum,
            unbiased=self.unbiased,
            eps=self.eps,
            exact=self.exact,
        )


class WeightNorm(eqx.Module):
    """A dense layer with weight normalization; see `weight_norm`.

    Attributes:
        weights: incoming weights as rows, shape [H D].
        gain: g, shape [H].
        bias: b, shape [H].
        eps: added to the squared norm of a row before the square root.
        exact: whether scaling of a row is handled exactly.
    """

    weights: Float[Array, "H D"]
    gain: Float[Array, " H"]
    bias: Float[Array, " H"]
    eps: float = eqx.field(static=True)
    exact: bool = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        key: PRNGKeyArray,
        eps: float = 0.0,
        exact: bool = False,
        dtype: jax.typing.DTypeLike = jnp.float32,
    ):
        self.weights = jax.random.normal(key, (outputs, inputs), dtype) / math.sqrt(inputs)
        self.gain = jnp.ones(outputs, dtype)
        self.bias = jnp.zeros(outputs, dtype)
        self.eps = check_eps(eps, exact)
        self.exact = exact

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch H"]:
        """Outputs, in the dtype of x."""
        return weight_norm(x, self.weights, self.gain, self.bias, eps=self.eps, exact=self.exact)


def convert_layer_norm(source: Any, *, eps: float | None = None, exact: bool = False) -> LayerNorm:
    """Converts the layer norm of another library, with its parameters and its epsilon.

    Args:
        source: a `LayerNorm` of flax.nnx (`scale`, `bias`, `epsilon`) or of equinox (`weight`, `bias`,
            `eps`), or the parameters of one of flax.linen, a mapping with `scale` or `bias` or both.
        eps: the epsilon to use; by default that of the source, and 1e-6, flax's default, for a mapping.
        exact: whether to drop epsilon and convert to the exact layer.

    Returns:
        The layer.

    Raises:
        ValueError: if the source holds neither gain nor bias, or one that is not a vector.
    """
    if isinstance(source, Mapping):
        fields, source_eps = dict(source), 1e-6
    else:
        fields = {name: getattr(source, name, None) for name in ("scale", "weight", "bias")}
        source_eps = getattr(source, "epsilon", getattr(source, "eps", None))
    gain = fields.get("scale") if fields.get("scale") is not None else fields.get("weight")
    values = {"gain": _value(gain), "bias": _value(fields.get("bias"))}
    shapes = {name: v.shape for name, v in values.items() if v is not None}
    if not shapes:
        raise ValueError(
            "source must be a LayerNorm with a gain or a bias, or a mapping with 'scale' or 'bias' "
            f"(params['LayerNorm_0'] of a flax module, not params); got {type(source).__name__} "
            f"with {sorted(fields)}"
        )
    if len(set(shapes.values())) > 1 or any(len(s) != 1 for s in shapes.values()):
        raise ValueError(f"gain and bias must be vectors [H] of one length; got {shapes}")
    dtype = next(v.dtype for v in values.values() if v is not None)
    eps = eps if eps is not None else (None if exact else source_eps)
    layer = LayerNorm(next(iter(shapes.values()))[0], eps=eps, exact=exact, dtype=dtype)
    return eqx.tree_at(lambda l: (l.gain, l.bias), layer, (values["gain"], values["bias"]), is_leaf=lambda v: v is None)


def _value(leaf: Any) -> Array | None:
    """An array, from an array or from a variable that wraps one."""
    if leaf is None:
        return None
    value = leaf if isinstance(leaf, (jax.Array, np.ndarray)) else leaf[...]
    return None if value is None else jnp.asarray(value)
