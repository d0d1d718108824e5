r"""Normalized GLMs in closed form: the derivative of each normalizer with its gain, and the exact Fisher matrix.

Unit by unit (identity, batch, weight norm), with x̃ the inputs less what the mean subtracts and v_i the slope of σ_i:
$$dn_i = \frac{\tilde x^\top dw_i - n_i\, v_i^\top dw_i}{\sigma_i}.$$
Across units (layer, RMS, group norm), with one projector for each group of h units:
$$dn = \Pi\,(dW\,x) / \sigma, \qquad \Pi = I - \frac{\mathbf 1 \mathbf 1^\top}{h} - \frac{n n^\top}{h}$$
(no $\mathbf 1\mathbf 1^\top$ term for RMS norm). Both hold for every ε ≥ 0, with σ and n those of the ε at hand.

A layer-normalized sample's weight block is the Kronecker product $\sigma^{-2}\, \Pi D_g \Lambda D_g \Pi \otimes x
x^\top$ of two symmetric matrices. The sum of those costs one matrix product of shapes [H(H+1)/2 N] and [N D(D+1)/2],
where JᵀΛJ costs N H (HD)².
"""

from abc import abstractmethod
from functools import singledispatch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._sums import over_samples
from lngeom._types import GLMParameters
from lngeom.glm import NormalizedGLM
from lngeom.information._sharding import sum_over_chunks
from lngeom.normalizers import AbstractNormalizer, BatchNorm, BatchNormEvaluation, Identity, WeightNorm
from lngeom.normalizers.base import summed_inputs
from lngeom.normalizers.statistics import AbstractGroupedNormalizer
from lngeom.paper_order import from_paper_order


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
    """The derivative of a normalizer and its gain at W, for each sample of X.

    Raises:
        NotImplementedError: if no closed form is known for this method.
    """
    raise NotImplementedError(f"no closed form is known for the derivative of {type(normalizer).__name__}")


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


@linearize.register(AbstractGroupedNormalizer)
def _(normalizer, weights, inputs, gain) -> GroupedLinearization:
    mean, scale = normalizer.statistics(weights, inputs)
    a = summed_inputs(weights, inputs)
    n, transposed = (a - mean) / scale, _transposed(inputs)
    groups, centered = normalizer.group_count, normalizer.centered
    return GroupedLinearization(gain, n, 1 / scale, inputs, gain[None, :] * n, transposed, groups, centered)


CHUNK = 512
"""Most samples summed at a time: fewer add to the sum too often, and the factors of more leave the cache."""

BYTES = 2**27
"""Of packed factors at a time, where units or inputs are so many that CHUNK samples would take more."""


def dense(
    model: NormalizedGLM,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    chunk: int = CHUNK,
    weights: Float[Array, " N"] | None = None,
    samples: int | None = None,
) -> Float[Array, "P P"]:
    """The exact Fisher matrix in the order of `ravel_pytree`, summed over chunks of samples.

    Args:
        model: a normalized GLM whose normalizer has a closed form.
        params: where the Fisher matrix is taken.
        inputs: X, one sample a row.
        chunk: most samples summed at a time.
        weights: of each sample in the mean; 1 where None.
        samples: what the sum is divided by; the number of samples where None.

    Raises:
        NotImplementedError: if the normalizer or the family's metric has no closed form.
    """
    at = linearize(model.normalizer, params.weights, inputs, params.gain)
    z = params.gain[None, :] * at.normalized + params.bias[None, :]
    parts = model.family.metric_parts(z)
    if parts is None:
        raise NotImplementedError(
            f"the metric of {type(model.family).__name__} is not a diagonal less one outer product"
        )
    diagonal, outer = parts
    outer = outer if model.family.joint else None
    if weights is not None:
        diagonal = diagonal * weights[:, None]
        outer = None if outer is None else outer * jnp.sqrt(weights)[:, None]
    held = (params.units + params.inputs) ** 2
    chunk = max(1, min(chunk, BYTES // (held * inputs.dtype.itemsize)))
    chunk = -(-len(inputs) // -(-len(inputs) // chunk))  # chunks of nearly one size
    samples = len(inputs) if samples is None else samples
    if isinstance(at, GroupedLinearization):
        return _dense_grouped(at, params, diagonal, outer, chunk, samples)
    assert isinstance(at, UnitwiseLinearization)
    return _dense_unitwise(at, params, diagonal, outer, chunk, samples)


def unpacking(size: int) -> np.ndarray:
    """Positions [K K] of a symmetric matrix's entries in its packed upper triangle."""
    rows, columns = np.triu_indices(size)
    positions = np.empty((size, size), np.int64)
    positions[rows, columns] = positions[columns, rows] = np.arange(len(rows))
    return positions


def _packed_products(a: Float[Array, "K N"], b: Float[Array, "K N"]) -> Float[Array, "K(K+1)/2 N"]:
    """The products a_i b_j of rows with i ≤ j: of rows that are written out first, which is then one fast sweep."""
    first, second = np.triu_indices(len(a))
    a, b = jax.lax.optimization_barrier((a, b))
    return a[first] * b[second]


def _dense_grouped(
    at: GroupedLinearization, params: GLMParameters, diagonal: Array, outer: Array | None, chunk: int, samples: int
) -> Float[Array, "P P"]:
    r"""Layer, RMS and group norm, with Λ = diag(λ) − q qᵀ.

    With $d = g^2\lambda$ and means over a group, the entries within a group of $\Pi D_g \Lambda D_g \Pi$ are
    $\delta_{ij} d_i - (v_i + v_j) - (u_i n_j + n_i u_j) - w_i w_j$, where $w = \Pi D_g q$,
    $h v = d - \tfrac12 \bar d - \overline{dn}\, n$ (centred only) and $h u = dn - \tfrac12 \overline{dn^2}\, n$: no
    H×H product is needed.
    Samples are the last axis of everything here, so that each row of a factor is written in one sweep.
    """
    units, features = params.units, params.inputs
    size = units // at.groups
    group = np.arange(units) // size
    gain = params.gain[:, None]
    first, second = np.triu_indices(units)

    def mean(value: Float[Array, "H N"]) -> Float[Array, "H N"]:
        grouped = value.reshape(at.groups, size, -1)
        return jnp.broadcast_to(jnp.mean(grouped, 1, keepdims=True), grouped.shape).reshape(value.shape)

    def term(part):
        n, x, s, weight = (v.T for v in part[:4])
        q = None if part[4] is None else part[4].T
        d, c = weight * gain * gain, weight * gain * s
        u = (d * n - 0.5 * mean(d * n * n) * n) / size
        v = (d - 0.5 * mean(d) - mean(d * n) * n) / size if at.centered else jnp.zeros_like(d)
        entries = -_packed_products(u * s, n * s) - _packed_products(n * s, u * s)
        if at.centered:
            v = jax.lax.optimization_barrier(v * jnp.square(s))
            entries -= v[first] + v[second]
        if at.groups > 1:
            entries *= jnp.asarray(group[first] == group[second], n.dtype)[:, None]
        entries = entries.at[np.flatnonzero(first == second)].add(d * jnp.square(s))
        # What belongs to the biases, and times n_j to the gains: of σ⁻¹ (Π D_g Λ)_ij x_d, the factors with j.
        own = jnp.concatenate([c, c * n])
        along = own * jnp.concatenate([n * s, n * s])
        crossed = ()
        shared = [jnp.diag(jnp.sum(m, 1)) for m in (weight, weight * n, weight * n * n)]
        if q is not None:
            w = gain * q - n * mean(n * gain * q)
            w = (w - mean(gain * q) if at.centered else w) * s
            entries -= _packed_products(w, w)
            crossed = (w[:, None] * x[None]).reshape(-1, w.shape[1]) @ jnp.concatenate([q, q * n]).T
            shared = [m - a @ b.T for m, a, b in zip(shared, (q, q, q * n), (q, q * n, q * n), strict=True)]
        second_moments = _packed_products(x, x).T
        return entries @ second_moments, along @ second_moments, own @ x.T, crossed, shared

    arrays = (at.normalized, at.inputs, at.inverse_scale, diagonal, outer)
    sums = sum_over_chunks(term, arrays, chunk)
    ww, along, own, crossed, (bb, bg, gg) = jax.tree.map(lambda part: part / samples, sums)
    ww = ww[unpacking(units)][:, :, unpacking(features)]
    ww = ww.transpose(0, 2, 1, 3).reshape(units * features, units * features)
    same = jnp.asarray((group[:, None] == group[None, :]) / size, ww.dtype)[:, None, None]
    alone = jnp.eye(units, dtype=ww.dtype)[:, None, None] - (same if at.centered else 0)
    # n is linear in x but for its scale: Σ n_j x_d … is a product of the weights with Σ σ⁻¹ x_e x_d …, which rounds
    # as n itself does, by |W||x|/σ times the precision.
    along = jnp.einsum("je,kde->jdk", at.center(params.weights), along[:, unpacking(features)])
    along = along.reshape(units, features, 2, units)
    wbg = alone * own.reshape(2, units, features).transpose(2, 0, 1)[None] - same * along
    if outer is not None:
        wbg -= crossed.reshape(units, features, 2, units)
    wbg = wbg.reshape(units * features, 2 * units)
    matrix = jnp.zeros((params.size, params.size), ww.dtype)  # filled in place: `jnp.block` copies twice
    matrix = matrix.at[: len(ww), : len(ww)].set(ww)
    matrix = matrix.at[: len(ww), len(ww) :].set(wbg).at[len(ww) :, : len(ww)].set(wbg.T)
    return matrix.at[len(ww) :, len(ww) :].set(jnp.block([[bb, bg], [bg.T, gg]]))


def _dense_unitwise(
    at: UnitwiseLinearization, params: GLMParameters, diagonal: Array, outer: Array | None, chunk: int, samples: int
) -> Float[Array, "P P"]:
    units, width = params.units, params.inputs + 2

    def term(part):
        n, x, diagonal, outer = part
        chi = x[:, None, :] - n[:, :, None] * at.scale_slope[None]
        f = jnp.concatenate([at.slopes[:, :, None] * chi, jnp.ones_like(n)[:, :, None], n[:, :, None]], 2)
        own = jnp.einsum("nip,niq->ipq", f * diagonal[:, :, None], f)
        if outer is None:
            return own, None
        crossed = (f * outer[:, :, None]).reshape(len(n), -1)
        return own, over_samples(crossed, crossed)

    arrays = (at.normalized, at.inputs, diagonal, outer)
    own, crossed = sum_over_chunks(term, arrays, chunk)
    matrix = jnp.zeros((units, width, units, width), own.dtype)
    matrix = matrix.at[np.arange(units), :, np.arange(units), :].set(own).reshape(params.size, params.size)
    if crossed is not None:
        matrix -= crossed
    return from_paper_order(matrix, units, params.inputs) / samples
