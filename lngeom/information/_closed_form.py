r"""The exact Fisher matrix of a normalized GLM in closed form.

A layer-normalized sample's weight block is the Kronecker product $\sigma^{-2}\, \Pi D_g \Lambda D_g \Pi \otimes x
x^\top$ of two symmetric matrices, with the projector Π of `lngeom.methods.linearization`. The sum of those costs
one matrix product of shapes [H(H+1)/2 N] and [N D(D+1)/2], where JᵀΛJ costs N H (HD)².
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._core.sums import over_samples
from lngeom._core.types import GLMParameters
from lngeom.information._planner import PACKED, ROW_BYTES, fitting
from lngeom.information._sharding import sum_over_chunks
from lngeom.information.glm import NormalizedGLM
from lngeom.information.orders import from_paper_order
from lngeom.methods.layer import GroupedLinearization
from lngeom.methods.linearization import UnitwiseLinearization, linearize


def dense(
    model: NormalizedGLM,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    chunk: int = PACKED,
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
    most = fitting(held * inputs.dtype.itemsize, ROW_BYTES, chunk)
    chunk = -(-len(inputs) // -(-len(inputs) // most))  # chunks of nearly one size
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
