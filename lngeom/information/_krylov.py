r"""Krylov spaces and random probes of symmetric maps of pytrees, which stay where they lie and are not ravelled.

With an orthonormal basis $V$ of a Krylov space and $T = V^\top A V$, Ritz values are the eigenvalues θ of T, with
vectors $V y$. Their residuals $|A V y - \theta V y|$ are estimated as $\beta |y_m|$ while the basis grows, and
measured at the end. Every new vector is made orthogonal to all others, twice. Linear systems are solved by conjugate
gradients, which hold no basis.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count, check_nonnegative
from lngeom._core.decompositions import eigenvectors
from lngeom._core.numerics import ConvergenceError
from lngeom._core.text import counted

Map = Callable[[PyTree], PyTree]


class OnHost:
    """A map that cannot be a part of a program, since it reads data while it runs: loops over it run on the host.

    Attributes:
        apply: the map.
    """

    def __init__(self, apply: Map):
        self.apply = apply

    def __call__(self, v: PyTree) -> PyTree:
        """The product."""
        return self.apply(v)


def compiled_unless_on_host(*static: str) -> Callable[[Callable], Callable]:
    """Compiles a function of a map, or runs it step by step where the map is `OnHost`."""

    def decorate(function: Callable) -> Callable:
        whole = jax.jit(function, static_argnames=static)

        @functools.wraps(function)
        def run(product: Map, *arguments: Any, **keywords: Any) -> Any:
            return (function if isinstance(product, OnHost) else whole)(product, *arguments, **keywords)

        return run

    return decorate


def _while(product: Map, unfinished: Callable, iterate: Callable, state: Any) -> Any:
    """A loop in a program, or on the host where the map is."""
    if not isinstance(product, OnHost):
        return jax.lax.while_loop(unfinished, iterate, state)
    while bool(unfinished(state)):
        state = iterate(state)
    return state


def _each(product: Map, function: Callable, over: Array) -> Any:
    """The results of a function for each entry, in one program or on the host where the map is."""
    if not isinstance(product, OnHost):
        return jax.lax.map(function, over)
    return jax.tree.map(lambda *values: jnp.stack(values), *map(function, over))


EXTRA = 12
"""Vectors of a basis beyond twice the number of eigenvalues asked for."""


class RitzPairs(NamedTuple):
    """Leading eigenvalues with their vectors, and how far each pair is from one.

    Attributes:
        values: in descending order.
        vectors: orthonormal, a pytree with one more leading axis.
        residuals: |A v − θ v|; an eigenvalue lies within it of θ.
        products: how many were needed.
    """

    values: Float[np.ndarray, " k"]
    vectors: PyTree
    residuals: Float[np.ndarray, " k"]
    products: int


def inner(a: PyTree, b: PyTree) -> Float[Array, ""]:
    """The inner product of two pytrees of one structure."""
    products = jax.tree.map(lambda x, y: jnp.vdot(x, y, precision=jax.lax.Precision.HIGHEST), a, b)
    return functools.reduce(jnp.add, jax.tree.leaves(products))


def normal_like(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """Standard normal numbers in the place of every leaf, where it lies."""
    leaves, structure = jax.tree.flatten(tree)
    places = [getattr(leaf, "sharding", None) for leaf in leaves]
    known = tuple(
        (leaf.shape, jnp.dtype(leaf.dtype), place if isinstance(place, NamedSharding) else None)
        for leaf, place in zip(leaves, places, strict=True)
    )
    return jax.tree.unflatten(structure, _normal(key, known))


@functools.partial(jax.jit, static_argnums=1)
def _normal(key: PRNGKeyArray, known: tuple) -> list[Array]:
    drawn = [
        (jax.random.normal(k, shape, dtype), place)
        for k, (shape, dtype, place) in zip(jax.random.split(key, len(known)), known, strict=True)
    ]
    return [v if place is None else jax.lax.with_sharding_constraint(v, place) for v, place in drawn]


class DiagonalEstimate(NamedTuple):
    """A diagonal and its sum, from random vectors of signs (Hutchinson 1989).

    Attributes:
        diagonal: a pytree like the parameters, without bias; entries may be negative by chance.
        trace: its sum.
        trace_error: standard error of the trace.
    """

    diagonal: PyTree
    trace: float
    trace_error: float


def estimate_diagonal(product: Map, like: PyTree, key: PRNGKeyArray, probes: int) -> DiagonalEstimate:
    """The mean of v ∘ A v over vectors v of random signs; eager."""
    probes = check_count("probes", probes, 2)
    total, traces = None, []
    for k in jax.random.split(key, probes):
        v = _signs(normal_like(k, like))
        each, trace = _probed(v, product(v))
        total = each if total is None else _sum(total, each)
        traces.append(float(trace))
    diagonal = jax.tree.map(lambda x: x / probes, total)
    return DiagonalEstimate(diagonal, float(np.mean(traces)), float(np.std(traces, ddof=1) / probes**0.5))


_signs = jax.jit(lambda v: jax.tree.map(lambda x: jnp.where(x < 0, -1, 1).astype(x.dtype), v))
_probed = jax.jit(lambda v, image: (jax.tree.map(jnp.multiply, v, image), inner(v, image)))
_sum = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)


def _zeros(start: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda v: jnp.zeros_like(v, shape=(count, *v.shape)), start)


def _coefficients(basis: PyTree, w: PyTree) -> Float[Array, " m"]:
    parts = jax.tree.map(lambda b, x: jnp.tensordot(b, x, x.ndim, precision=jax.lax.Precision.HIGHEST), basis, w)
    return functools.reduce(jnp.add, jax.tree.leaves(parts))


def _combined(basis: PyTree, c: Float[Array, "*p m"]) -> PyTree:
    return jax.tree.map(lambda b: jnp.tensordot(c.astype(b.dtype), b, 1, precision=jax.lax.Precision.HIGHEST), basis)


def _extended(basis: PyTree, w: PyTree, count: Any) -> tuple[PyTree, Float[Array, " m"], Float[Array, ""]]:
    """The basis with w, made orthogonal to its first `count` vectors, as the next; what was taken off; what was left.

    What is left by rounding alone is no direction: it becomes zero.
    """
    taken, whole = 0.0, inner(w, w)
    for _ in range(2):
        found = _coefficients(basis, w)
        found = jnp.where(jnp.arange(found.size) < count, found, 0)
        w, taken = jax.tree.map(jnp.subtract, w, _combined(basis, found)), taken + found
    left = jnp.sqrt(inner(w, w))
    left = jnp.where(left > 10 * jnp.finfo(left.dtype).eps * jnp.sqrt(whole), left, 0)
    scale = jnp.where(left > 0, 1 / jnp.where(left > 0, left, 1), 0)
    basis = jax.tree.map(lambda b, x: b.at[count].set((x * scale).astype(b.dtype)), basis, w)
    return basis, jnp.asarray(taken), left


@compiled_unless_on_host("steps")
def tridiagonal(product: Map, start: PyTree, steps: int) -> Float[Array, "m m"]:
    """T of so many steps from a start vector; works under jit and vmap."""
    basis, _, _ = _extended(_zeros(start, steps + 1), start, 0)

    def step(basis: PyTree, j: Array) -> tuple[PyTree, tuple[Array, Array]]:
        image = product(jax.tree.map(lambda b: b[j], basis))
        basis, taken, left = _extended(basis, image, j + 1)
        return basis, (taken[j], left)

    if isinstance(product, OnHost):
        found = []
        for j in range(steps):
            basis, numbers = step(basis, jnp.asarray(j))
            found.append(numbers)
        diagonal, beside = (jnp.stack(values) for values in zip(*found, strict=True))
    else:
        _, (diagonal, beside) = jax.lax.scan(step, basis, jnp.arange(steps))
    return jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)


class SpectralDensity(NamedTuple):
    """A density of eigenvalues as point masses: Σ weights = 1, Σ weights · f(nodes) ≈ tr f(A) / P.

    Attributes:
        nodes: eigenvalue estimates, ascending.
        weights: their masses.
    """

    nodes: Float[Array, " K"]
    weights: Float[Array, " K"]


@compiled_unless_on_host("size", "dtype", "probes", "steps")
def lanczos_density(
    product: Map, size: int, dtype: jnp.dtype, key: PRNGKeyArray, probes: int, steps: int
) -> SpectralDensity:
    """Stochastic Lanczos quadrature of the spectral density of a symmetric map of vectors [P].

    Args:
        product: the map.
        size: P.
        dtype: of the vectors.
        key: for the probe vectors, of random signs.
        probes: how many there are.
        steps: from each of them; P where more are asked for.

    Raises:
        ValueError: if probes or steps is no whole number of at least 1.
    """
    probes, steps = check_count("probes", probes, 1), min(check_count("steps", steps, 1), size)

    def one(key: PRNGKeyArray) -> tuple[Array, Array]:
        start = jax.random.rademacher(key, (size,), dtype)
        nodes, vectors = eigenvectors(tridiagonal(product, start, steps))
        return nodes, jnp.square(vectors[0])

    nodes, weights = _each(product, one, jax.random.split(key, probes))
    order = jnp.argsort(nodes.reshape(-1))
    return SpectralDensity(nodes.reshape(-1)[order], weights.reshape(-1)[order] / probes)


_append = jax.jit(_extended, donate_argnums=0)
_take = jax.jit(lambda basis, j: jax.tree.map(lambda b: b[j], basis))
_combined_leaf = jax.jit(_combined)


@jax.jit
def _distance(image: PyTree, v: PyTree, value: Array) -> Float[Array, ""]:
    rest = jax.tree.map(lambda x, y: x - value.astype(y.dtype) * y, image, v)
    return jnp.sqrt(inner(rest, rest))


def _rows(basis: PyTree, count: int) -> Iterator[PyTree]:
    return (_take(basis, j) for j in range(count))


def _turned(basis: PyTree, c: np.ndarray) -> PyTree:
    """Rows of c times the vectors of a basis, which is given up: each leaf is freed once its own is made."""

    def turn(leaf: Array) -> Array:
        made = _combined_leaf(leaf, jnp.asarray(c)).block_until_ready()
        leaf.delete()
        return made

    return jax.tree.map(turn, basis)


def leading(
    product: Map,
    start: PyTree,
    count: int,
    *,
    key: PRNGKeyArray,
    tolerance: float,
    width: int | None = None,
    restarts: int = 100,
) -> RitzPairs:
    """The largest eigenvalues by Lanczos iterations with thick restarts (Wu and Simon 2000); eager.

    From one vector they find one copy of a multiple eigenvalue. So they start again, beside the pairs found, from
    random vectors, until such a start finds nothing larger.

    Args:
        product: a symmetric map, positive semidefinite.
        start: a vector, not zero.
        count: how many.
        key: for the further start vectors.
        tolerance: of each residual, relative to its eigenvalue, or to eps^(2/3) of the largest one where that is more.
        width: vectors of the basis that are held at a time, at least two more than `count`.
        restarts: after which they are given up.

    Raises:
        ValueError: if tolerance is no finite number of at least 0, or width too small.
        ConvergenceError: if not all pairs converge.
    """
    check_nonnegative("tolerance", tolerance)
    size = sum(leaf.size for leaf in jax.tree.leaves(start))
    width = 2 * count + EXTRA if width is None else width
    width = min(size, check_count("width", width, min(count + 2, size), bound="min(k + 2, P)"))
    basis, _, _ = _append(_zeros(start, width + 1), start, 0)
    matrix, known, products, settled = np.zeros((width, width)), 0, 0, None
    smallest = float(jnp.finfo(jax.tree.leaves(start)[0].dtype).eps) ** (2 / 3)

    def allowed(values: np.ndarray) -> np.ndarray:
        return tolerance * np.maximum(values, smallest * max(values[0], 0.0))

    for _ in range(restarts):
        left = 0.0
        for j in range(known, width):
            basis, taken, beside = _append(basis, product(_take(basis, j)), j + 1)
            matrix[: j + 1, j] = matrix[j, : j + 1] = np.asarray(taken, float)[: j + 1]
            left, products = float(beside), products + 1
            if left == 0 and j + 1 < width:  # the space is invariant: go on beside it
                basis, _, _ = _append(basis, normal_like(jax.random.fold_in(key, products), start), j + 1)
        values, vectors = (v[..., ::-1] for v in np.linalg.eigh(matrix))
        residuals = abs(left * vectors[-1])
        converged = residuals[:count] <= allowed(values[:count])
        found = bool(np.all(converged))
        if width == size or (found and settled is not None and np.all(values[:count] <= settled + allowed(settled))):
            pairs = _turned(basis, np.pad(vectors[:, :count].T, ((0, 0), (0, 1))))
            measured = [_distance(product(v), v, t) for v, t in zip(_rows(pairs, count), values, strict=False)]
            return RitzPairs(values[:count], pairs, np.array(measured, float), products + count)
        settled, known = (values[:count], count) if found else (None, min(width - 1, (width + count) // 2))
        matrix = np.diag(np.r_[values[:known], np.zeros(width - known)])
        rotation = np.zeros((width + 1, width + 1))
        rotation[:known, :width], rotation[known, width] = vectors[:, :known].T, 1
        basis = _turned(basis, rotation)
        if found:
            basis, _, _ = _append(basis, normal_like(jax.random.fold_in(key, products), start), known)
    raise ConvergenceError(
        f"{int(np.sum(converged))} of {counted(count, 'eigenvalue')} converged to a relative "
        f"residual of {tolerance:.0e}: ask for fewer, or for what a fixed number of Lanczos steps finds"
    )


def added(x: PyTree, scale: Array | float, y: PyTree) -> PyTree:
    """The sum x + scale · y."""
    return jax.tree.map(lambda a, b: a + jnp.asarray(scale, a.dtype) * b, x, y)


def horizontal(null: Float[Array, "P k"] | None, v: PyTree) -> PyTree:
    """A vector without its part in a null space; a pytree has none that is known."""
    return v if null is None else v - null @ (null.T @ v)


@compiled_unless_on_host("limit")
def conjugate_gradients(
    product: Map, null: Float[Array, "P k"] | None, b: PyTree, damping: Array, target: Array, limit: int
) -> tuple[PyTree, Array]:
    """Conjugate gradients from zero for (A + λI) x = b, with a null space projected out of every step.

    Args:
        product: a symmetric map A, positive semidefinite: a pytree whose call is the map.
        null: orthonormal columns, of ravelled vectors, to which b is orthogonal; None for pytrees.
        b: the right side.
        damping: λ.
        target: norm of the residual at which the iterations stop.
        limit: most iterations.

    Returns:
        The solution x and the number of iterations.
    """

    def apply(v: PyTree) -> PyTree:
        return added(horizontal(null, product(horizontal(null, v))), damping, v)

    def unfinished(state) -> Array:
        _, _, _, squared, step = state
        return (squared > target**2) & (step < limit)

    def iterate(state):
        x, r, p, squared, step = state
        q = apply(p)
        alpha = squared / inner(p, q)
        x, r = added(x, alpha, p), horizontal(null, added(r, -alpha, q))
        new = inner(r, r)
        return x, r, added(r, new / squared, p), new, step + 1

    start = (jax.tree.map(jnp.zeros_like, b), b, b, inner(b, b), jnp.zeros((), jnp.int32))
    x, _, _, _, steps = _while(product, unfinished, iterate, start)
    return horizontal(null, x), steps
