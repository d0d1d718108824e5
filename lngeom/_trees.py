"""Paths of the leaves of a pytree: one syntax everywhere, names and positions joined by dots."""

import itertools

import jax
from jaxtyping import PyTree


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
