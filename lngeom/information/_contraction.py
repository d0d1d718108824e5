r"""Sums over samples $\sum_n a_n b_n^\top$, and the transposes of linear maps, which are made of them.

On a CPU, XLA multiplies two float64 matrices over the first axis of both at a third to a half of the rate at which it
multiplies them when the left one was transposed before (float32: at the same rate). It takes a transposition into the
product unless a barrier keeps it out.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array, Float, PyTree


def over_samples(a: Float[Array, "N P"], b: Float[Array, "N Q"]) -> Float[Array, "P Q"]:
    r"""The sum $a^\top b = \sum_n a_n b_n^\top$.

    Args:
        a: one sample a row.
        b: the same samples.

    Returns:
        The sum, in the highest precision there is for the dtype.
    """

    def plain(a: Array, b: Array) -> Array:
        return jnp.matmul(a.T, b, precision=jax.lax.Precision.HIGHEST)

    def transposed_before(a: Array, b: Array) -> Array:
        return jax.lax.optimization_barrier(jax.lax.optimization_barrier(a.T) @ b)

    if jnp.result_type(a, b) != jnp.float64:
        return plain(a, b)
    return jax.lax.platform_dependent(a, b, cpu=transposed_before, default=plain)


BLOCK = range(128, 257)
"""Samples of a block, where a sum is made of blocks."""

CACHE = 2**15
"""Bytes of a core's first cache. Sums that fill more than half of it, and fit, gain by blocks; others do not."""


class TransposedSamples(eqx.Module):
    r"""Samples a [N P] kept transposed for sums $\sum_n b_n a_n^\top$ with one b after another.

    Some sums in float64 are made of blocks of samples: XLA on a CPU adds them up inside its product, at up to twice the
    rate of a single product (64 × 64: 62 to 70 instead of 34 to 42 GFLOP/s).

    Attributes:
        blocks: of $a^\top$, shape [B P N/B]; a single one where more do not pay or N has no divisor that fits.
    """

    blocks: Float[Array, "B P R"]

    def __init__(self, samples: Float[Array, "N P"], columns: int):
        """Transposes the samples.

        Args:
            samples: a.
            columns: Q, of each b [N Q].
        """
        count, width = samples.shape
        pays = samples.dtype == jnp.float64 and CACHE // 2 < width * columns * samples.dtype.itemsize <= CACHE
        rows = next((r for r in reversed(BLOCK) if pays and count % r == 0), count)
        self.blocks = jax.lax.optimization_barrier(samples.reshape(-1, rows, width).swapaxes(1, 2))

    def sum(self, b: Float[Array, "N Q"]) -> Float[Array, "Q P"]:
        """The sum of outer products with b, which is best a selection: see `GroupedLinearization.pull`."""
        blocks, _, rows = self.blocks.shape
        total = self.blocks[0] @ b if blocks == 1 else jnp.sum(self.blocks @ b.reshape(blocks, rows, -1), 0)
        # the barrier keeps XLA from taking the transposition into the product, which then is slower on a CPU
        return jax.lax.optimization_barrier(total).T


def transpose(linear: Callable[[PyTree], PyTree], argument: PyTree) -> Callable[[PyTree], PyTree]:
    """The transpose of a linear map, as `jax.linear_transpose`, with sums over samples in their fast form.

    Args:
        linear: the map.
        argument: shapes and dtypes of its argument.

    Returns:
        The map from a cotangent of the result to one of the argument.
    """
    transposed = jax.linear_transpose(linear, argument)

    def apply(cotangent: PyTree) -> PyTree:
        if not any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(cotangent)):
            return transposed(cotangent)[0]
        program, shape = jax.make_jaxpr(transposed, return_shape=True)(cotangent)
        values = _run(program, jax.tree.leaves(cotangent))
        return jax.tree.unflatten(jax.tree.structure(shape), values)[0]

    return apply


def _run(program: Any, arguments: Sequence[Any]) -> list[Any]:
    jaxpr = program.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *arguments), strict=True))
    read = lambda v: v.val if isinstance(v, Literal) else values[v]  # noqa: E731
    for equation in jaxpr.eqns:
        operands = [read(v) for v in equation.invars]
        values.update(zip(equation.outvars, _apply(equation, operands), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(equation: Any, operands: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    if name == "jit":
        return _run(params["jaxpr"], operands)
    if name == "dot_general" and (axes := _leading(params["dimension_numbers"], *operands)):
        a, b = operands
        count = math.prod(a.shape[:axes])
        return [over_samples(a.reshape(count, -1), b.reshape(count, -1)).reshape(*a.shape[axes:], *b.shape[axes:])]
    return evaluate(equation, operands)


def evaluate(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation of a JAX program."""
    found = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
    return found if equation.primitive.multiple_results else [found]


def _leading(dimensions: Any, a: Array, b: Array) -> int:
    """How many leading axes, the same of both, a product of two float64 arrays sums over; 0 if it is another one."""
    (left, right), (batch, _) = dimensions
    first = tuple(range(len(left)))
    matrices = min(a.ndim, b.ndim) > len(left) and a.dtype == b.dtype == jnp.float64
    return len(left) if matrices and not batch and tuple(left) == tuple(right) == first else 0
