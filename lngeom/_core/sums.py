"""Sums over the rows of arrays: a product summed over samples at full speed, and a fold over chunks of samples."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


def over_samples(a: Float[Array, "N P"], b: Float[Array, "N Q"]) -> Float[Array, "P Q"]:
    r"""The sum $a^\top b = \sum_n a_n b_n^\top$, in the highest precision there is for the dtype.

    On a CPU, XLA multiplies two float64 matrices over the first axis of both at a third to a half of the rate at which
    it multiplies them when the left one was transposed before. It takes a transposition into the product unless a
    barrier keeps it out.
    """

    def plain(a: Array, b: Array) -> Array:
        return jnp.matmul(a.T, b, precision=jax.lax.Precision.HIGHEST)

    def transposed_before(a: Array, b: Array) -> Array:
        return jax.lax.optimization_barrier(jax.lax.optimization_barrier(a.T) @ b)

    if jnp.result_type(a, b) != jnp.float64:
        return plain(a, b)
    return jax.lax.platform_dependent(a, b, cpu=transposed_before, default=plain)


def fold_chunks(step: Callable, carry: PyTree, rows: PyTree, chunk: int) -> PyTree:
    """Folds step(carry, rows of a chunk) over chunks of arrays: a scan, then one shorter chunk for the rest."""
    count = len(jax.tree.leaves(rows)[0])
    if chunk >= count:
        return step(carry, rows)
    full, rest = divmod(count, chunk)
    head = jax.tree.map(lambda a: a[: full * chunk].reshape(full, chunk, *a.shape[1:]), rows)
    carry, _ = jax.lax.scan(lambda c, part: (step(c, part), None), carry, head)
    return step(carry, jax.tree.map(lambda a: a[full * chunk :], rows)) if rest else carry
