"""Pytrees: paths of their leaves in one syntax, how they lie in a vector, and how they cross `jax.jit`.

A path is names and positions joined by dots.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree


def leaf_path(path: tuple) -> str:
    """A key path as one would write it, such as "layers.0.kernel"; a flax variable goes by its own name."""
    wrapped = len(path) > 1 and path[-1] == jax.tree_util.GetAttrKey("value")
    return jax.tree_util.keystr(path[:-1] if wrapped else path, simple=True, separator=".") or "params"


def leaf_paths(tree: PyTree) -> list[str]:
    """Path of each leaf, in the order of the leaves."""
    return [leaf_path(path) for path, _ in jax.tree.leaves_with_path(tree)]


def leaf_slices(tree: PyTree) -> dict[str, slice]:
    """Where each leaf lies in the ravelled vector."""
    edges = itertools.accumulate((leaf.size for leaf in jax.tree.leaves(tree)), initial=0)
    return {name: slice(a, b) for name, (a, b) in zip(leaf_paths(tree), itertools.pairwise(edges), strict=True)}


def leaf_rows(tree: PyTree) -> list[tuple[dict[str, Any], slice]]:
    """Of each leaf its path, shape and size, as a row of a table, and where it lies in the ravelled vector."""
    shapes = (leaf.shape for leaf in jax.tree.leaves(tree))
    return [
        ({"leaf": name, "shape": shape, "size": math.prod(shape)}, where)
        for (name, where), shape in zip(leaf_slices(tree).items(), shapes, strict=True)
    ]


class Layout(NamedTuple):
    """Structure, shapes and dtypes of a tangent: static, and so free to hash and compare.

    Attributes:
        structure: of the pytree.
        leaves: (shape, dtype) of each leaf.
    """

    structure: Any
    leaves: tuple

    @property
    def edges(self) -> list[int]:
        """First position of each leaf in the vector, and P at the end."""
        return list(itertools.accumulate((math.prod(shape) for shape, _ in self.leaves), initial=0))

    @property
    def size(self) -> int:
        """Number of scalars P."""
        return self.edges[-1]

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the ravelled vector."""
        return jnp.result_type(*(dtype for _, dtype in self.leaves))

    def shapes(self) -> PyTree:
        """A pytree of `jax.ShapeDtypeStruct`."""
        return jax.tree.unflatten(self.structure, [jax.ShapeDtypeStruct(*leaf) for leaf in self.leaves])

    def unravel(self, vector: Float[Array, " P"]) -> PyTree:
        """A vector as a tangent.

        Raises:
            ValueError: if the length or dtype is not that of the parameters.
        """
        if vector.shape != (self.size,) or vector.dtype != self.dtype:
            raise ValueError(
                f"expected a vector of P = {self.size} entries and dtype {self.dtype}, as the parameters have; got "
                f"{vector.dtype}{list(vector.shape)}"
            )
        return jax.tree.unflatten(self.structure, _divide(vector, self))

    def kind_of(self, v: PyTree) -> str:
        """What a vector is: a "tangent" like the differentiated parameters, a "vector" [P], or "columns" [P K].

        Raises:
            ValueError: if it is none of these, or has another dtype.
        """
        single = isinstance(v, jax.Array | np.ndarray)
        if not single or (jax.tree.structure(v) == self.structure and v.shape == self.leaves[0][0]):
            self.check(v)
            return "tangent"
        kind = {1: "vector", 2: "columns"}.get(v.ndim)
        if kind is None or v.shape[0] != self.size or jnp.result_type(v) != self.dtype:
            raise ValueError(
                f"expected a pytree like the differentiated params, a vector [{self.size}] or columns "
                f"[{self.size}, K] of dtype {self.dtype}, as the parameters have; got "
                f"{jnp.result_type(v)}{list(v.shape)}"
            )
        return kind

    def check(self, tangent: PyTree) -> None:
        """Checks the structure, shapes and dtypes of a tangent.

        Raises:
            ValueError: if they are not those of the parameters.
        """
        leaves, structure = jax.tree.flatten(tangent)
        if structure != self.structure:
            raise ValueError(
                f"a tangent must be a pytree like the differentiated params, {self.structure}; got {structure}: "
                "leaves left out by wrt= are None (F.in_structure() shows the form)"
            )
        for leaf, (shape, dtype) in zip(leaves, self.leaves, strict=True):
            if jnp.shape(leaf) != shape or jnp.result_type(leaf) != dtype:
                raise ValueError(
                    f"a tangent's leaf must be {dtype}{list(shape)}, like its parameter; got "
                    f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
                )


@functools.partial(jax.jit, static_argnames="layout")
def _divide(vector: Float[Array, " P"], layout: Layout) -> list[Array]:
    parts = [vector[a:b] for a, b in itertools.pairwise(layout.edges)]
    return [part.reshape(shape).astype(dtype) for part, (shape, dtype) in zip(parts, layout.leaves, strict=True)]


class Frozen(eqx.Module):
    """A pytree whose arrays are traced and whose everything else is static, so that it can cross `jax.jit`.

    Attributes:
        arrays: its array leaves, None elsewhere.
        static: its structure and its other leaves.
    """

    arrays: list
    static: tuple = eqx.field(static=True)

    def __init__(self, tree: PyTree):
        leaves, structure = jax.tree.flatten(tree)
        self.arrays = [leaf if eqx.is_array(leaf) else None for leaf in leaves]
        self.static = (structure, tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves))

    def __reduce__(self) -> tuple:
        """Pickled as the pytree itself: structures of a user's classes do not pickle, their objects may."""
        return Frozen, (self.thaw(),)

    def thaw(self) -> Any:
        """The pytree itself."""
        structure, others = self.static
        leaves = [b if a is None else a for a, b in zip(self.arrays, others, strict=True)]
        return jax.tree.unflatten(structure, leaves)
