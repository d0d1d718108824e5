r"""The exact Fisher matrix of a normalized GLM in closed form (theory: differentiate through *every* row of W).

With $\partial z/\partial W$ in closed form, a layer-normalized sample's weight block is the Kronecker product
$\sigma^{-2}\, \Pi D_g \Lambda D_g \Pi \otimes x x^\top$ of two symmetric matrices. Summing those costs one matrix
product of shapes [H(H+1)/2 N] and [N D(D+1)/2], where JᵀΛJ costs N H (HD)².
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._types import GLMParameters
from lngeom.glm import NormalizedGLM
from lngeom.information._linearization import (
    GroupedLinearization,
    UnitwiseLinearization,
    linearize,
)
from lngeom.information._order import from_paper_order

CHUNK = 256
"""Samples summed at a time: the packed factors of a chunk stay in cache (by measurement; 128 to 512 are close)."""

BYTES = 2**27
"""Of packed factors at a time, where units or inputs are so many that CHUNK samples would take more."""


def product(
    model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"], v: GLMParameters
) -> GLMParameters:
    r"""Fisher-vector product: $v \mapsto Jv \mapsto \Lambda J v \mapsto J^\top \Lambda J v$, a mean over samples.

    Args:
        model: a normalized GLM.
        params: where the Fisher matrix is taken.
        inputs: X, one sample a row.
        v: a tangent, like params.

    Returns:
        F v, like params.
    """
    at = linearize(model.normalizer, params.weights, inputs)
    n, gain = at.normalized, params.gain[None, :]
    z = gain * n + params.bias[None, :]
    dz = gain * at.push(v.weights) + v.bias[None, :] + n * v.gain[None, :]
    y = model.family.metric_product(z, dz) / len(inputs)
    return GLMParameters(at.pull(gain * y), jnp.sum(y, 0), jnp.sum(n * y, 0))


def dense(
    model: NormalizedGLM,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    chunk: int = CHUNK,
    weights: Float[Array, " N"] | None = None,
) -> Float[Array, "P P"]:
    """The exact Fisher matrix, summed over chunks of samples.

    Args:
        model: a normalized GLM whose normalizer has a closed form.
        params: where the Fisher matrix is taken.
        inputs: X, one sample a row.
        chunk: most samples summed at a time.
        weights: of each sample in the mean; 1 where None.

    Returns:
        The matrix, in the order of `ravel_pytree`.

    Raises:
        NotImplementedError: if the normalizer has no closed form.
    """
    at = linearize(model.normalizer, params.weights, inputs)
    z = params.gain[None, :] * at.normalized + params.bias[None, :]
    diagonal, outer = model.family.metric_parts(z)
    outer = outer if model.family.joint else None
    if weights is not None:
        diagonal = diagonal * weights[:, None]
        outer = None if outer is None else outer * jnp.sqrt(weights)[:, None]
    held = (params.units + params.inputs) ** 2 + 2 * params.units**2
    chunk = max(1, min(chunk, BYTES // (held * inputs.dtype.itemsize)))
    if isinstance(at, GroupedLinearization):
        return _dense_grouped(at, params, diagonal, outer, chunk)
    assert isinstance(at, UnitwiseLinearization)
    return _dense_unitwise(at, params, diagonal, outer, chunk)


def _sum_over_chunks(term: Callable, arrays: tuple, samples: int, chunk: int):
    """Σ of term(slice of arrays) over chunks of samples, by a scan, and one last shorter chunk."""
    chunk = min(chunk, samples)
    full, rest = divmod(samples, chunk)
    head = jax.tree.map(lambda a: a[: full * chunk].reshape(full, chunk, *a.shape[1:]), arrays)
    shapes = jax.eval_shape(term, jax.tree.map(lambda a: a[0], head))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, _ = jax.lax.scan(lambda carry, part: (jax.tree.map(jnp.add, carry, term(part)), None), zero, head)
    if rest:
        tail = term(jax.tree.map(lambda a: a[full * chunk :], arrays))
        total = jax.tree.map(jnp.add, total, tail)
    return total


def unpacking(size: int) -> np.ndarray:
    """Positions [K K] of a symmetric matrix's entries in its packed upper triangle."""
    rows, columns = np.triu_indices(size)
    positions = np.empty((size, size), np.int64)
    positions[rows, columns] = positions[columns, rows] = np.arange(len(rows))
    return positions


def _dense_grouped(
    at: GroupedLinearization, params: GLMParameters, diagonal: Array, outer: Array | None, chunk: int
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

    def mean(value: Float[Array, "H N"]) -> Float[Array, "H N"]:
        return jnp.repeat(jnp.mean(value.reshape(at.groups, size, -1), 1), size, 0)

    def term(part):
        n, x, s, weight = (v.T for v in part[:4])
        q = None if part[4] is None else part[4].T
        d, c = weight * gain * gain, weight * gain * s
        u = (d * n - 0.5 * mean(d * n * n) * n) / size
        v = (d - 0.5 * mean(d) - mean(d * n) * n) / size if at.centered else jnp.zeros_like(d)
        rows = []
        for i in range(units):
            end = (group[i] + 1) * size
            row = -(u[i : i + 1] * n[i:end] + n[i : i + 1] * u[i:end])
            if at.centered:
                row -= v[i : i + 1] + v[i:end]
            row = jnp.concatenate([row[:1] + d[i : i + 1], row[1:]]) * jnp.square(s[i : i + 1])
            rows.append(jnp.concatenate([row, jnp.zeros((units - end, n.shape[1]), n.dtype)]) if end < units else row)
        # E[σ⁻¹ (Π D_g Λ)_ij x] for the biases, and the same times n_j for the gains.
        same = jnp.asarray(group[:, None] == group[None, :], n.dtype)[:, :, None]
        left = jnp.eye(units, dtype=n.dtype)[:, :, None] * c[None] - same * n[:, None] * (c * n / size)[None]
        if at.centered:
            left -= same * (c / size)[None]
        shared = [jnp.diag(jnp.sum(m, 1)) for m in (weight, weight * n, weight * n * n)]
        if q is not None:
            w = gain * q - n * mean(n * gain * q)
            w = (w - mean(gain * q) if at.centered else w) * s
            rows = [row - w[i : i + 1] * w[i:] for i, row in enumerate(rows)]
            left -= w[:, None] * q[None]
            shared = [m - a @ b.T for m, a, b in zip(shared, (q, q, q * n), (q, q * n, q * n), strict=True)]
        crossed = jnp.concatenate([left, left * n[None]], 1).reshape(2 * units * units, -1)
        products = jnp.concatenate([x[k : k + 1] * x[k:] for k in range(features)])
        return jnp.concatenate(rows) @ products.T, crossed @ x.T, *shared

    samples = len(at.inputs)
    arrays = (at.normalized, at.inputs, at.inverse_scale, diagonal, outer)
    ww, wbg, bb, bg, gg = _sum_over_chunks(term, arrays, samples, chunk)
    ww = ww[unpacking(units)][:, :, unpacking(features)]
    ww = ww.transpose(0, 2, 1, 3).reshape(units * features, units * features)
    wbg = wbg.reshape(units, 2 * units, features).transpose(0, 2, 1).reshape(units * features, 2 * units)
    shared = jnp.block([[bb, bg], [bg.T, gg]])
    return jnp.block([[ww, wbg], [wbg.T, shared]]) / samples


def _dense_unitwise(
    at: UnitwiseLinearization, params: GLMParameters, diagonal: Array, outer: Array | None, chunk: int
) -> Float[Array, "P P"]:
    units, width = params.units, params.inputs + 2
    gain = params.gain[None, :]

    def term(part):
        n, s, x, diagonal, outer = part
        chi = x[:, None, :] - n[:, :, None] * at.scale_slope[None]
        f = jnp.concatenate([(gain * s)[:, :, None] * chi, jnp.ones_like(n)[:, :, None], n[:, :, None]], 2)
        own = jnp.einsum("nip,niq->ipq", f * diagonal[:, :, None], f)
        if outer is None:
            return own, None
        crossed = (f * outer[:, :, None]).reshape(len(n), -1)
        return own, crossed.T @ crossed

    samples = len(at.inputs)
    arrays = (at.normalized, at.inverse_scale, at.inputs, diagonal, outer)
    own, crossed = _sum_over_chunks(term, arrays, samples, chunk)
    matrix = jnp.zeros((units, width, units, width), own.dtype)
    matrix = matrix.at[np.arange(units), :, np.arange(units), :].set(own).reshape(params.size, params.size)
    if crossed is not None:
        matrix -= crossed
    return from_paper_order(matrix, units, params.inputs) / samples
