"""Arrays of a stack by their roles, and changes of W, b, γ, β and tables in the arrays' own layout."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lngeom.transformers.description import Linear, Norm, Stack, Table


def contract(subscripts: str, *operands: Any) -> Any:
    """Einstein sum: in NumPy, or in JAX where an operand is a JAX array."""
    library = jnp if any(isinstance(v, jax.Array) for v in operands) else np
    return library.einsum(subscripts, *operands)


class Change(NamedTuple):
    """Changes of entries of one array, K at once.

    Attributes:
        array: its name.
        index: positions in the ravelled array.
        value: [K, *index.shape].
    """

    array: str
    index: Int[np.ndarray, "..."]
    value: Float[np.ndarray | Array, "K ..."]


class StackArrays:
    """The arrays of a stack in float64, by role.

    Attributes:
        stack: the description.
        values: arrays by name.
        width: d.
    """

    def __init__(self, stack: Stack, weights: Mapping[str, Any]):
        self.stack = stack
        self.values = {name: np.asarray(weights[name], np.float64) for name in weights}
        self.width: int = stack.width(self.values)
        self.index = functools.cache(self._index)

    @functools.cached_property
    def starts(self) -> dict[str, int]:
        """First position of each array in the vector of `ravel_pytree`."""
        names = sorted(self.values)
        sizes = [self.values[name].size for name in names]
        return dict(zip(names, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return sum(v.size for v in self.values.values())

    def _index(self, name: str) -> np.ndarray:
        return np.arange(self.values[name].size).reshape(self.values[name].shape)

    def matrix(self, part: Linear) -> Float[np.ndarray, "out in"]:
        """The weights W of a linear map."""
        return part.matrix(self.values[part.weight])

    def offsets(self, part: Linear) -> Float[np.ndarray, " out"]:
        """The bias b of a linear map, zero where it has none."""
        return np.zeros(len(self.matrix(part))) if part.bias is None else part.offsets(self.values[part.bias])

    def gain(self, norm: Norm, size: int | None = None) -> Float[np.ndarray, " d"]:
        """The gain γ, 1 where a norm has none."""
        if norm.gain is None:
            return np.ones(self.width if size is None else size)
        return norm.offset + self.values[norm.gain].reshape(-1)

    def bias(self, norm: Norm, size: int | None = None) -> Float[np.ndarray, " d"]:
        """The bias β, zero where a norm has none."""
        return np.zeros(self.width if size is None else size) if norm.bias is None else self.values[norm.bias].ravel()

    def change_matrix(self, part: Linear, value: Any) -> Change:
        """DW [K out in]."""
        return Change(part.weight, part.matrix(self.index(part.weight)), value)

    def change_offsets(self, part: Linear, value: Any) -> Change:
        """Db [K out]."""
        assert part.bias is not None
        return Change(part.bias, part.offsets(self.index(part.bias)), value)

    def change_array(self, name: str | None, value: Any) -> Change:
        """Any array, such as a gain [K *shape]."""
        assert name is not None
        index = self.index(name)
        return Change(name, index, value.reshape(len(value), *index.shape))

    def change_rows(self, table: Table, value: Any) -> Change:
        """The rows of a table that are read [K rows d]."""
        return Change(table.weight, self.index(table.weight)[table.offset :], value)

    def columns(self, changes: Sequence[Change], count: int) -> Float[np.ndarray, "P K"]:
        """Changes as columns in the order of `ravel_pytree`."""
        found = np.zeros((self.size, count))
        for change in changes:
            value = np.broadcast_to(change.value, (count, *change.index.shape))
            found[self.starts[change.array] + change.index.reshape(-1)] += value.reshape(count, -1).T
        return found
