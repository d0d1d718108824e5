"""Which leaves of a pytree are parameters: those to differentiate, those left out, and those that are one array."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lngeom._core.trees import leaf_path, leaf_paths
from lngeom.information._given import require_numbers


@dataclass(frozen=True)
class SameAs:
    """In the place of a leaf: it is the leaf of this number."""

    leaf: int


class Selected(NamedTuple):
    """Parameters in three parts.

    Attributes:
        params: the leaves to differentiate, None elsewhere.
        rest: the others; a second place of a shared leaf holds `SameAs`.
        excluded: paths of the numbers left out.
    """

    params: PyTree
    rest: PyTree
    excluded: tuple[str, ...]


def join(params: PyTree, rest: PyTree) -> PyTree:
    """The whole parameters."""
    leaves, structure = jax.tree.flatten(eqx.combine(params, rest))
    return jax.tree.unflatten(structure, [leaves[v.leaf] if isinstance(v, SameAs) else v for v in leaves])


def select_leaves(params: PyTree, wrt: str | Sequence[str] | Callable[[str, Array], bool] | None) -> Selected:
    """Splits parameters into the leaves to differentiate and the rest.

    Real floating point arrays of JAX and NumPy, and NumPy's scalars, are parameters. Python's own numbers are
    settings, as in equinox: they are left out, and can be named with `wrt`. Left out are also buffers: collections of
    linen beside "params", the state of an optimizer in a training state, variables of nnx that are no `nnx.Param`, and
    `equinox.nn.State`.

    One variable of nnx at several places is one parameter.

    Args:
        params: pytree of parameters.
        wrt: paths of leaves or of subtrees; a predicate of (path, leaf); or None for every parameter.

    Raises:
        ValueError: if a name selects nothing, or a leaf that cannot be differentiated.

    Warns:
        UserWarning: if one array is several of the leaves to differentiate.
    """
    paths, leaves = leaf_paths(params), jax.tree.leaves(params)
    numbers = {name: leaf for name, leaf in zip(paths, leaves, strict=True) if _is_number(leaf)}
    for name, leaf in numbers.items():
        require_numbers(f"the leaf {name!r} of params", [leaf])
    smooth = {name for name, leaf in numbers.items() if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)}
    chosen = _chosen(numbers, smooth, params, wrt, paths)
    if fixed := sorted(chosen - smooth):
        kinds = {name: str(jnp.result_type(numbers[name])) for name in fixed}
        raise ValueError(f"cannot differentiate with respect to {kinds}: only real floating point leaves")
    if not chosen:
        raise ValueError(f"no floating point leaf to differentiate; the leaves of params are {sorted(paths)}")
    places = _same_variables(params)
    for first, *others in places:
        if chosen & {paths[k] for k in (first, *others)}:
            chosen = (chosen | {paths[first]}) - {paths[k] for k in others}
    _warn_of_shared_arrays({name: numbers[name] for name in paths if name in chosen})
    again = {k: SameAs(first) for first, *others in places for k in others if paths[first] in chosen}
    structure = jax.tree.structure(params)
    selected = [jnp.asarray(v) if name in chosen else None for name, v in zip(paths, leaves, strict=True)]
    rest = [None if name in chosen else again.get(k, v) for k, (name, v) in enumerate(zip(paths, leaves, strict=True))]
    shared = {paths[k] for k in again}
    named = {name for name, leaf in numbers.items() if not isinstance(leaf, bool | int) or isinstance(leaf, np.generic)}
    return Selected(
        jax.tree.unflatten(structure, selected),
        jax.tree.unflatten(structure, rest),
        tuple(sorted(named - chosen - shared)),
    )


def _is_number(leaf: Any) -> bool:
    return eqx.is_array_like(leaf)


def _is_setting(leaf: Any) -> bool:
    """Whether a leaf is a number of Python, and no scalar of NumPy (whose float64 is a `float` too)."""
    return isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic)


def _chosen(
    numbers: Mapping[str, Any],
    smooth: set[str],
    params: PyTree,
    wrt: str | Sequence[str] | Callable[[str, Array], bool] | None,
    paths: list[str],
) -> set[str]:
    if wrt is None:
        parameters = {name for name, leaf in numbers.items() if not _is_setting(leaf)} - buffers(params)
        complex_leaves = [
            name for name in sorted(parameters) if jnp.issubdtype(jnp.result_type(numbers[name]), jnp.complexfloating)
        ]
        if complex_leaves:
            raise ValueError(
                f"complex parameters are not supported: {complex_leaves}; split them into real and imaginary parts, or "
                "name the real leaves with wrt="
            )
        return parameters & smooth
    if callable(wrt):
        return {name for name, leaf in numbers.items() if not _is_setting(leaf) and wrt(name, leaf)}
    found: set[str] = set()
    for wanted in [wrt] if isinstance(wrt, str) else list(wrt):
        under = {path for path in numbers if path.startswith(f"{wanted}.") and not _is_setting(numbers[path])}
        under |= {wanted} & numbers.keys()
        if not under:
            raise ValueError(
                f"wrt names {wanted!r}, which is no leaf or subtree of params; its leaves are {sorted(paths)}"
            )
        found |= under
    return found


def buffers(params: PyTree) -> set[str]:
    """Paths of the leaves that a framework does not train: statistics, counters and the like."""
    found = _under(params, lambda node: isinstance(node, eqx.nn.State))
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is not None:
        found |= _under(params, lambda node: isinstance(node, nnx.Variable) and not isinstance(node, nnx.Param))
    for path, node in _nodes(params, lambda node: isinstance(node, Mapping) and "params" in node):
        whole = all(isinstance(value, Mapping) for value in node.values())
        beside = {name for name in node if name != "params" and (whole or name in COLLECTIONS)}
        found |= {leaf_path((*path, *at)) for at, _ in _leaves_with_path(node) if leaf_path(at[:1]) in beside}
    found |= {path for path in leaf_paths(params) if "batch_stats" in path.split(".")}
    for path, node in _nodes(params, lambda node: hasattr(node, "opt_state") and hasattr(node, "params")):
        found |= {leaf_path((*path, *at)) for at, _ in _leaves_with_path(node) if leaf_path(at[:1]) == "opt_state"}
    return found


COLLECTIONS = {"cache", "intermediates", "losses", "metrics", "perturbations", "spectral_stats"}
"""Usual names of linen's collections beside "params", where something else stands beside them too."""

_leaves_with_path = jax.tree_util.tree_leaves_with_path


def _nodes(tree: PyTree, is_node: Callable[[Any], bool]) -> list[tuple[tuple, Any]]:
    """The outermost nodes of a kind, with their paths."""
    return [(path, node) for path, node in jax.tree.leaves_with_path(tree, is_leaf=is_node) if is_node(node)]


def _under(tree: PyTree, is_node: Callable[[Any], bool]) -> set[str]:
    """Paths of the leaves of all nodes of a kind."""
    return {leaf_path((*path, *inner)) for path, node in _nodes(tree, is_node) for inner, _ in _leaves_with_path(node)}


def _same_variables(params: PyTree) -> list[list[int]]:
    """Numbers of the leaves that are one variable of nnx, where there are several of it."""
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None:
        return []
    places: dict[int, list[int]] = {}
    nodes = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, nnx.Variable))
    at = 0
    for node in nodes:
        size = len(jax.tree.leaves(node))
        if isinstance(node, nnx.Variable) and size == 1:
            places.setdefault(id(node), []).append(at)
        at += size
    return [found for found in places.values() if len(found) > 1]


def _warn_of_shared_arrays(chosen: Mapping[str, Any]) -> None:
    places: dict[Any, list[str]] = {}
    for name, leaf in chosen.items():
        if isinstance(leaf, jax.Array | np.ndarray) and leaf.size:
            memory = id(leaf) if isinstance(leaf, jax.Array) else (leaf.ctypes.data, leaf.nbytes)  # a view of it, too
            places.setdefault(memory, []).append(name)
    for names in places.values():
        if len(names) > 1:
            warnings.warn(
                f"{', '.join(names)} are one array. They count as {len(names)} parameters, as for jax.grad. If the "
                "model ties them, pass the array once and let the function use it at each place; else copy it",
                stacklevel=4,
            )
