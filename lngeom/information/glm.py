"""The normalized generalized linear model of Section 5.2.2, for any normalizer and any family."""

import functools
from typing import NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lngeom._core.draws import draw_small
from lngeom._core.text import verb
from lngeom._core.types import GLMParameters, check_parameters, is_concrete, is_tracing
from lngeom.families import AbstractFamily
from lngeom.methods import AbstractNormalizer, BatchNorm
from lngeom.methods.base import computes, keeps, summed_inputs
from lngeom.methods.batch import StreamedBatchNorm
from lngeom.methods.layer import AbstractGroupedNormalizer


class NormalizedGLM(eqx.Module):
    r"""H generalized linear models that share one normalization (Eqs. 5, 10 and 11).

    $$z = g \odot n(W, X) + b, \qquad y_i \mid x \sim p(\cdot \mid z_i).$$

    Attributes:
        normalizer: how summed inputs are normalized.
        family: the distribution of a response given its natural parameter.

    Example:
        >>> import jax, lngeom as lg
        >>> model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
        >>> X = jax.random.normal(jax.random.key(0), (5, 3))
        >>> params = model.init(jax.random.key(1), inputs=3, outputs=4)
        >>> model.natural_parameters(params, X).shape
        (5, 4)
    """

    normalizer: AbstractNormalizer
    family: AbstractFamily

    def init(
        self, key: PRNGKeyArray, *, inputs: int, outputs: int, dtype: jax.typing.DTypeLike | None = None
    ) -> GLMParameters:
        r"""Draws parameters: weights N(0, 1/D), gain 1, bias 0 (the paper's default for gains and biases).

        A family that needs z < 0 starts inside its domain. Where |n| ≤ √(group size), the bias is −1 − √(group size).
        Other normalizers have no such bound: the gain starts at 1/100 and the bias at −2.

        Args:
            key: random key for the weights.
            inputs: D, at least 1.
            outputs: H, at least 1.
            dtype: floating point type; JAX's default where None.

        Returns:
            Parameters for D inputs and H outputs.

        Raises:
            ValueError: if inputs or outputs is less than 1.
        """
        if inputs < 1 or outputs < 1:
            raise ValueError(f"inputs and outputs must be at least 1; got inputs={inputs}, outputs={outputs}")
        dtype = jnp.result_type(float if dtype is None else dtype)
        weights = draw_small(jax.random.normal, key, (outputs, inputs), dtype) / inputs**0.5
        gain, bias = 1.0, 0.0
        if self.family.upper < jnp.inf:
            if computes(self.normalizer, AbstractGroupedNormalizer):
                bias = self.family.upper - 1.0 - (outputs / self.normalizer.group_count) ** 0.5
            else:
                gain, bias = 0.01, self.family.upper - 2.0
        return GLMParameters(weights, jnp.full(outputs, bias, dtype), jnp.full(outputs, gain, dtype))

    def normalized(self, params: GLMParameters, inputs: Float[Array, "N *T D"]) -> Float[Array, "N *T H"]:
        r"""Normalized summed inputs $n = (a - \mu)/\sigma$, before gain and bias.

        Args:
            params: parameters of the model.
            inputs: X, one sample a row.

        Returns:
            n for each sample and unit.

        Raises:
            ValueError: if shapes do not agree or, outside of tracing, values are NaN or infinite or a σ is zero.
        """
        check_parameters(params, inputs)
        if not is_concrete(params, inputs) or is_tracing():
            return self.normalizer(params.weights, inputs)
        n, undefined, some = _judged(self.normalizer, params.weights, inputs)
        if some:
            self._refuse(params, inputs, undefined)
        return n

    def natural_parameters(self, params: GLMParameters, inputs: Float[Array, "N *T D"]) -> Float[Array, "N *T H"]:
        r"""Natural parameters $z = g \odot n + b$.

        Args:
            params: parameters of the model.
            inputs: X, one sample a row.

        Returns:
            z for each sample and unit.

        Raises:
            ValueError: as `normalized`, and, outside of tracing, if z leaves the family's domain.
        """
        n = self.normalized(params, inputs)
        z = _affine(n, params.gain, params.bias)
        if is_concrete(z):
            self.family.check_domain(z)
        return z

    def log_prob(self, params: GLMParameters, inputs: Float[Array, "N *T D"], y: Array) -> Array:
        r"""$\log P(y \mid x; \theta)$ of each sample, summed over the independent units (Eq. 10).

        Args:
            params: parameters of the model.
            inputs: X, one sample a row.
            y: responses [N *T H], or labels [N *T] for a joint family.

        Returns:
            Log-likelihood in nats of each sample, shape [N *T].
        """
        log_p = self.family.log_prob(self.natural_parameters(params, inputs), y)
        return log_p if self.family.joint else jnp.sum(log_p, -1)

    def kl(self, params: GLMParameters, other: GLMParameters, inputs: Float[Array, "N *T D"]) -> Float[Array, ""]:
        r"""$E_x\, D_{KL}[P(y \mid x; \theta) \,\|\, P(y \mid x; \theta')]$ in nats: the left side of Eq. 8.

        Args:
            params: θ, from whose distribution responses are drawn.
            other: θ'.
            inputs: X, one sample a row.

        Returns:
            A scalar, the mean over samples; about ½ δᵀFδ for a small δ = θ' − θ.
        """
        z = self.natural_parameters(params, inputs)
        return jnp.mean(self.family.kl(z, self.natural_parameters(other, inputs)))

    def sample(self, key: PRNGKeyArray, params: GLMParameters, inputs: Float[Array, "N *T D"]) -> Array:
        """Draws responses [N *T H] (labels [N *T] for a joint family) given X."""
        return self.family.sample(key, self.natural_parameters(params, inputs))

    def cancelled(self, params: GLMParameters, inputs: Float[Array, "N *T D"]) -> Bool[Array, "N *T H"]:
        r"""Where n is undefined, because its variance is zero up to rounding: $\sigma \le 4\,\varepsilon \max |a|$.

        Here ε is `jnp.finfo(a.dtype).eps`.

        Args:
            params: parameters of the model.
            inputs: X, one sample a row.

        Returns:
            For each sample and unit, whether n is undefined. False for normalizers without a variance of summed inputs.
        """
        return _cancelled(self.normalizer, params.weights, inputs)

    def _refuse(self, params: GLMParameters, inputs: Array, undefined: Array) -> NoReturn:
        """Raises a ValueError that says why n is undefined: values that are not finite, or a variance of zero."""
        for name, value in (
            ("inputs", inputs),
            *((k, getattr(params, k)) for k in ("weights", "bias", "gain")),
        ):
            bad = int(jnp.sum(~jnp.isfinite(value)))
            if bad:
                raise ValueError(f"{name} must be finite; {bad} of {value.size} entries {verb(bad)} NaN or infinite")
        bad = jnp.argwhere(undefined)
        raise ValueError(
            f"{type(self.normalizer).__name__} is undefined: zero variance (or overflow) for {len(bad)} of "
            f"{undefined.size} normalized inputs, the first at (sample, unit) = {tuple(int(i) for i in bad[0])}; "
            "drop such samples or units, or use eps > 0"
        )


def is_affine(model: object) -> bool:
    """Whether this is a normalized GLM with z = g ⊙ n + b: a subclass may have replaced that."""
    return keeps(model, NormalizedGLM, "normalized", "natural_parameters")


def require_affine(model: NormalizedGLM, what: str) -> None:
    """Raises a ValueError where a subclass has replaced z = g ⊙ n + b, which a statement is about."""
    if not is_affine(model):
        raise ValueError(f"{what} is about z = g ⊙ n + b; {type(model).__name__} has natural parameters of its own")


def _cancelled(normalizer: AbstractNormalizer, weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]) -> Array:
    """Where σ is within the rounding errors of the summed inputs that it is taken over."""
    if not computes(normalizer, BatchNorm, StreamedBatchNorm, AbstractGroupedNormalizer):
        return jnp.zeros((*inputs.shape[:-1], len(weights)), bool)
    a = summed_inputs(weights, inputs)
    axes = tuple(range(a.ndim - 1)) if normalizer.couples_samples else (-1,)
    size = jnp.max(jnp.abs(a), axes, keepdims=True)
    scale = normalizer.statistics(weights, inputs).scale
    return jnp.broadcast_to(scale <= 4 * jnp.finfo(a.dtype).eps * size, a.shape)


@functools.partial(jax.jit, inline=True)
def _affine(n: Float[Array, "N *T H"], gain: Float[Array, " H"], bias: Float[Array, " H"]) -> Float[Array, "N *T H"]:
    """The map z = g ⊙ n + b as one program."""
    shape = (1,) * (n.ndim - 1) + (-1,)
    return n * gain.reshape(shape) + bias.reshape(shape)


@eqx.filter_jit
def _judged(
    normalizer: AbstractNormalizer, weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]
) -> tuple[Array, Array, Array]:
    """What is normalized, where it is not finite or has cancelled, and whether it has anywhere: one program."""
    n = normalizer(weights, inputs)
    undefined = ~jnp.isfinite(n) | _cancelled(normalizer, weights, inputs)
    return n, undefined, jnp.any(undefined)
