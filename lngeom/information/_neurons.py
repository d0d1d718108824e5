"""The block diagonal by neuron: what the paper's "easily applied to deep networks" comes to.

A neuron's parameters are its incoming weights with its bias and gain. Leaves are grouped by the axis that runs over the
same units; the blocks between different neurons, and between layers, are dropped.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lngeom.information._factor import factor_rows
from lngeom.information._problem import Problem
from lngeom.information._sharding import Placement, sum_over_samples


def neuron_positions(operator: Any, layers: Sequence[dict[str, int]]) -> list[Int[np.ndarray, "H p"]]:
    """Positions in the ravelled vector of the parameters of each neuron of each layer.

    Args:
        operator: a Fisher operator.
        layers: for each layer, the paths of its leaves and the axis of each that runs over neurons.

    Returns:
        For each layer, one row a neuron.

    Raises:
        ValueError: if a path is unknown or occurs twice, or axes of a layer differ in length.
    """
    start, where = 0, {}
    for name, leaf in zip(operator.leaves, jax.tree.leaves(operator.problem.params), strict=True):
        where[name] = np.arange(start, start + leaf.size).reshape(leaf.shape)
        start += leaf.size
    named = [name for layer in layers for name in layer]
    wrong = sorted({name for name in named if name not in where or named.count(name) > 1})
    if wrong:
        raise ValueError(f"each layer must name leaves once, of {list(where)}; got {wrong}")
    result = []
    for layer in layers:
        parts = [np.moveaxis(where[name], axis, 0) for name, axis in layer.items()]
        if len({len(part) for part in parts}) != 1:
            lengths = {name: where[name].shape[axis] for name, axis in layer.items()}
            raise ValueError(f"the leaves of a layer must have one entry a neuron along the axes given; got {lengths}")
        result.append(np.concatenate([part.reshape(len(part), -1) for part in parts], 1))
    return result


def neuron_blocks(operator: Any, layers: Sequence[dict[str, int]]) -> list[Float[Array, "H p p"]]:
    """The exact Fisher block of each neuron, [H p p] for each layer, without the matrix.

    Args:
        operator: a Fisher operator.
        layers: for each layer, the paths of its leaves and the axis of each that runs over neurons.

    Returns:
        The blocks.
    """
    positions = tuple(neuron_positions(operator, layers))
    at = operator.placement._replace(chunk=operator.plan.row_chunk)
    return _blocks(operator.problem, at, tuple(map(_Hashable, positions)))


class _Hashable:
    """An array of positions that can be a static argument."""

    def __init__(self, value: np.ndarray):
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashable) and np.array_equal(self.value, other.value)


@functools.partial(jax.jit, static_argnames=("at", "positions"))
def _blocks(problem: Problem, at: Placement, positions: tuple[_Hashable, ...]) -> list[Float[Array, "H p p"]]:
    def term(part: Problem) -> list[Float[Array, "H p p"]]:
        rows = factor_rows(part)
        own = [rows[:, p.value] for p in positions]
        return [jnp.einsum("rhi,rhj->hij", a, a) for a in own]

    return sum_over_samples(term, problem, at)


def block_diagonal(operator: Any, layers: Sequence[dict[str, int]]) -> Float[Array, "P P"]:
    """The blocks of all neurons in place, zero elsewhere: an approximation of the matrix.

    Args:
        operator: a Fisher operator.
        layers: for each layer, the paths of its leaves and the axis of each that runs over neurons.

    Returns:
        A matrix in the order of `ravel_pytree`.
    """
    size = operator.in_size()
    matrix = jnp.zeros((size, size), operator.problem.dtype)
    for p, blocks in zip(neuron_positions(operator, layers), neuron_blocks(operator, layers), strict=True):
        matrix = matrix.at[p[:, :, None], p[:, None, :]].set(blocks)
    return matrix
