"""The search: sampled constraints on affine generators, their null space, and its certificates."""

import math
import warnings
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.draws import probe_generator
from lngeom._core.numerics import decide_rank, tolerance
from lngeom._core.trees import leaf_slices
from lngeom.checks.discovery._algebra import SymmetryAlgebra
from lngeom.checks.discovery._discrete import discrete_symmetries
from lngeom.checks.discovery._layer import BATCH, Derivatives, Examined, Layer, Part

LIMIT = 1000
"""Most unknowns m(m+1), HD up to 31: a singular value decomposition of as many columns (600: 8 s on a core)."""


def discover_symmetries(
    layer: Layer,
    *,
    params: PyTree = None,
    inputs: int = 3,
    outputs: int = 4,
    wrt: Literal["weights", "inputs"] = "weights",
    single_case: bool = False,
    positions: int | None = None,
    weights: Float[Array, "H D"] | None = None,
    data: Float[Array, "N *T D"] | None = None,
    samples: int | None = None,
    key: PRNGKeyArray | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    limit: int = LIMIT,
) -> SymmetryAlgebra:
    r"""Finds every affine generator $v \mapsto Av + c$ that leaves a layer's outputs unchanged.

    With v = vec(W) or v = x, the generators are the null space of the linear constraints

    $$J(W, X)\,(A v + c) = 0 \qquad \text{for all } (W, X), \qquad J = \partial f / \partial v,$$

    which are stacked for random (W, X) until fresh points add no rank. There are two certificates: the residual of the
    constraints at fresh points, and the change of the outputs under finite transformations, without derivatives.

    There are m(m+1) unknowns, with m = HD for weights. Time grows as their cube and memory as their square. Use small
    sizes: the symmetries at H = 4, D = 3 are those of a layer of any size. In float32 a symmetry broken by an eps below
    about 1e-3 looks like rounding; use float64 (under `jax.enable_x64(True)`).

    When not to use it: for the null directions of one large model at one point. There
    `lngeom.fisher(...).nullspace()` needs HD unknowns instead of HD(HD+1).

    Args:
        layer: a function (W, X) -> outputs of JAX arrays [H D], [N D] (or [N T D]) to [N ...]; a normalizer is one.
            With `params`, a function (params, X) -> outputs.
        params: a pytree or module with several arrays, whose shapes are those of the arrays that move together, drawn
            at random; v holds them all. `orbit_dimension` and `tangent` then take such a pytree.
        inputs: D.
        outputs: H.
        wrt: move the weights, or the inputs.
        single_case: for inputs: move one sample and keep the others fixed, where samples interact. By default A and c
            move every sample of the data set in the same way.
        positions: T, for a layer with inputs [N T D]; x is then all T positions of a sample.
        weights: for inputs: fixed W, to find the symmetries at this W.
        data: for weights: fixed X, to find the symmetries on these data.
        samples: N; by default enough for derivatives by W of full rank.
        key: random key; `jax.random.key(0)` by default.
        dtype: floating point type; JAX's default where None.
        limit: largest number of unknowns.

    Returns:
        The algebra: `.dimension`, `.orbit_dimension(W)`, `.basis`, `.describe()`.

    Raises:
        ValueError: if options contradict each other, if the problem is too large, if the layer returns anything but
            finite floating point outputs [N ...], or if it is not differentiable at almost every point.

    Example:
        >>> import lngeom as lg
        >>> algebra = lg.discover_symmetries(lg.normalizers.RMSNorm(), inputs=2, outputs=3)
        >>> algebra.dimension
        1
        >>> print(algebra.describe().generators[0].name)
        scale, W ↦ δW

        Several weights, of which one undoes the scale of the other:

        >>> import jax.numpy as jnp
        >>> params = {"up": jnp.ones((2, 2)), "down": jnp.ones((2, 1))}
        >>> found = lg.discover_symmetries(lambda p, x: x @ p["up"] @ p["down"], params=params, inputs=2)
        >>> found.dimension  # four of (U, d) ↦ (U B⁻¹, B d), and two of U ↦ U + c d⊥ᵀ with d⊥ᵀ d = 0
        6
    """
    if params is not None and (wrt != "weights" or weights is not None):
        raise ValueError("params= names the arrays that move: leave weights= and wrt= out")
    if wrt not in {"weights", "inputs"}:
        raise ValueError(f"wrt must be 'weights' or 'inputs'; got {wrt!r}")
    if single_case and wrt == "weights":
        raise ValueError("single_case moves one sample of the inputs: it needs wrt='inputs'")
    if (weights is not None and wrt == "weights") or (data is not None and wrt == "inputs"):
        raise ValueError(f"wrt={wrt!r} moves the {wrt}, which must then be drawn: hold the other argument fixed")
    dtype = jnp.result_type(float if dtype is None else dtype)
    if weights is not None:
        weights = _held(weights, "weights", (2,), dtype)
        outputs, inputs = weights.shape
    if data is not None:
        data = _held(data, "data", (3,) if positions else (2,), dtype)
        samples, inputs = data.shape[0], data.shape[-1]
        positions = data.shape[1] if data.ndim == 3 else None
    leaves, width = None, None
    if params is not None:
        moving, rest = eqx.partition(params, eqx.is_inexact_array_like)
        moving = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), moving)
        leaves, original = leaf_slices(moving), layer
        flat, unravel = ravel_pytree(moving)
        layer = lambda W, X: original(eqx.combine(unravel(W[0]), rest), X)  # noqa: E731
        outputs, inputs, width = 1, flat.size, inputs if data is None else data.shape[-1]
    if min(inputs, outputs, positions or 1, samples or 1) < 1:
        raise ValueError(f"sizes must be at least 1; got inputs={inputs}, outputs={outputs}, positions={positions}")
    part: Part = "weights" if wrt == "weights" else "single input" if single_case else "inputs"
    size = inputs * (outputs if wrt == "weights" else positions or 1)
    unknowns = size * (size + 1)
    if unknowns > limit:
        what = f"HD = {outputs}·{inputs}" if wrt == "weights" else f"TD = {positions or 1}·{inputs}"
        raise ValueError(
            f"{what} = {size} entries make {unknowns} unknowns, more than limit={limit}: use smaller sizes (the "
            "symmetries of a layer are the same at H = 4, D = 3), or lngeom.fisher(...).nullspace() for the tangent "
            "at one point"
        )
    if samples is None:
        samples = size + 2 if wrt == "weights" else inputs + 3
    examined = Examined(layer, (outputs, inputs), samples, positions, part, weights, data, dtype, width)
    key = jax.random.key(0) if key is None else key
    check_key, draw_key, finite_key = jax.random.split(key, 3)
    examined.check(check_key)
    search = Search(examined, draw_key)
    basis, singular_values, gap, residual = search.run()
    finite = _finite_residual(examined, finite_key, basis)
    if finite > math.sqrt(tolerance(dtype)):
        raise ValueError(
            f"the derivatives of the layer do not say how its outputs change (they change by {finite:.1e} of their "
            "size along directions of zero derivative): it is piecewise constant (as layer norm of two units is), "
            "rounds, or stops gradients"
        )
    discrete = None
    if wrt == "weights" and data is None and params is None and positions is None and search.units_last:
        discrete = discrete_symmetries(layer, inputs=inputs, outputs=outputs, key=check_key, dtype=dtype)
    return SymmetryAlgebra(
        basis=basis.T.reshape(-1, size, size + 1),
        part=part,
        shape=examined.moved,
        singular_values=singular_values,
        gap=gap,
        residual=residual,
        finite_residual=finite,
        draws=search.draws,
        weights=None if weights is None else np.asarray(weights, np.float64),
        data=None if data is None else np.asarray(data, np.float64),
        discrete=discrete,
        leaves=leaves,
    )


def _held(value: Array, name: str, axes: tuple[int, ...], dtype: np.dtype) -> Array:
    value = jnp.asarray(value, dtype)
    if value.ndim not in axes or 0 in value.shape or not bool(jnp.all(jnp.isfinite(value))):
        raise ValueError(f"{name} held fixed must be a finite array of {axes[0]} axes; got shape {value.shape}")
    return value


class Search:
    """Stacks constraints until fresh points add none."""

    def __init__(self, examined: Examined, key: PRNGKeyArray):
        self.size = math.prod(examined.moved)
        self.unknowns = self.size * (self.size + 1)
        self.dtype = examined.dtype
        self.key = key
        self.differentiate = examined.differentiator()
        self.draws = 0
        self.outputs = examined.shape[0]
        self.units_last = False
        self.rounding = 10 * tolerance(self.dtype)

    def fresh(self) -> list[Float[np.ndarray, "r u"]]:
        """Constraints at BATCH new points, each of unit norm (or zero, where the outputs do not move at all)."""
        self.key, key = jax.random.split(self.key)
        found: Derivatives = self.differentiate(jax.random.split(key, BATCH))
        self.units_last = found.outputs.shape[-1] == self.outputs and found.outputs.ndim > 2
        self.draws += BATCH
        return [self._constraints(*each) for each in zip(*map(np.asarray, found), strict=True)]

    def _constraints(
        self, z: Float[np.ndarray, "N ..."], v: Float[np.ndarray, "n m"], J: Float[np.ndarray, "R n m"]
    ) -> Float[np.ndarray, "r u"]:
        """Rows k with k · vec(A | c) = 0: Σ_n J_n ⊗ (v_n, 1)."""
        scale = float(np.linalg.norm(J))
        rounding = self.rounding * float(np.linalg.norm(z) / np.linalg.norm(v))
        J = J / scale if scale > rounding else np.zeros_like(J)
        if len(v) == 1:
            J = _compressed(J[:, 0])[:, None]
        lifted = np.concatenate([v, np.ones((len(v), 1), v.dtype)], 1)
        rows = np.einsum("rni,nj->rij", J, lifted).reshape(len(J), self.unknowns)
        rows = _compressed(rows)
        return rows / max(float(np.linalg.norm(rows)), float(np.finfo(v.dtype).tiny))

    def run(self) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Basis of the null space [u k], singular values, gap, residual at fresh points."""
        first = self.fresh()
        rank = min(decide_rank(np.linalg.svd(rows, compute_uv=False), *rows.shape).rank for rows in first)
        wanted = math.ceil(1.1 * self.unknowns / max(rank, 1)) + 4
        stacked = first
        for _ in range(4):
            while len(stacked) < wanted:
                stacked = stacked + self.fresh()
            basis, values, gap = self.null(np.concatenate(stacked))
            fresh = self.fresh()
            residual = max(float(np.linalg.norm(rows @ basis, 2)) if basis.shape[1] else 0.0 for rows in fresh)
            if residual <= self.rounding:
                break
            stacked = stacked + fresh
            wanted = 2 * len(stacked)
        if residual > self.rounding or gap < 10:
            warnings.warn(
                f"the dimension {basis.shape[1]} is not clear: singular values drop by {gap:.2g} at it, and the "
                f"residual at fresh points is {residual:.1e}; use float64",
                RuntimeWarning,
                stacklevel=3,
            )
        return basis, values, gap, residual

    def null(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        count = len(rows)
        rows = _compressed(rows)
        if len(rows) < self.unknowns:
            rows = np.concatenate([rows, np.zeros((self.unknowns - len(rows), self.unknowns), rows.dtype)])
        _, s, vt = np.linalg.svd(rows)
        decision = decide_rank(s, count, self.unknowns)
        values = s / s[0] if s[0] > 0 else s
        return np.asarray(vt[decision.rank :].T, np.float64), np.asarray(values, np.float64), decision.gap


def _compressed(rows: np.ndarray) -> np.ndarray:
    """At most as many rows as columns, with the same null space and singular values."""
    return np.asarray(np.linalg.qr(rows, mode="r")) if rows.shape[0] > rows.shape[1] else rows


def _finite_residual(examined: Examined, key: PRNGKeyArray, basis: Float[np.ndarray, "u k"]) -> float:
    """Relative change of the outputs under exp of two random generators of the algebra."""
    if not basis.shape[1]:
        return 0.0
    size = math.prod(examined.moved)
    rng = probe_generator()
    worst = 0.0
    for point in jax.random.split(key, 2):
        W, X = examined.draw(point)
        v = np.asarray(examined.points(W, X), np.float64)
        generator = np.zeros((size + 1, size + 1))
        generator[:size] = (basis @ rng.normal(size=basis.shape[1])).reshape(size, size + 1)
        generator *= 0.7 / np.linalg.norm(generator, 2)
        moved = np.concatenate([v, np.ones((len(v), 1))], 1) @ scipy.linalg.expm(generator).T
        before = np.asarray(examined.move(W, X, jnp.asarray(v, examined.dtype)), np.float64)
        after = np.asarray(examined.move(W, X, jnp.asarray(moved[:, :size], examined.dtype)), np.float64)
        change = float(np.max(np.abs(after - before)))
        worst = max(worst, change / max(float(np.max(np.abs(before))), 1e-300) if np.isfinite(change) else math.inf)
    return worst
