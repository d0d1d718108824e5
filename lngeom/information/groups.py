"""Groups of scale-invariant parameters, from names, patterns or a search."""

import fnmatch
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, PyTree

from lngeom._core.arguments import check_count
from lngeom._core.draws import probe_generator
from lngeom._core.lifting import in_32_bits, widened
from lngeom._core.numerics import MARGIN
from lngeom._core.trees import leaf_paths
from lngeom.information._epsilon import without_epsilon
from lngeom.information._given import check_function, explained
from lngeom.information._parameters import buffers

Selector = str | Sequence[str] | Mapping[str, str | Sequence[str]] | Callable[[str, Any], bool]
Groups = tuple[tuple[str, tuple[int, ...]], ...]
"""Names of groups, and the indices of their leaves among the leaves of the parameters."""


def resolve_groups(params: PyTree, groups: Selector | None) -> Groups:
    """Finds the leaves of each group.

    Args:
        params: the parameters.
        groups: None makes a group of every floating point leaf of two or more axes that is no buffer, such as running
            statistics of linen or nnx. Patterns ("*.kernel", with the wildcards of file names) or a predicate of path
            and leaf make a group of every leaf that matches. A mapping from names to patterns makes groups of leaves
            with a common scale.

    Returns:
        The groups.

    Raises:
        ValueError: if a pattern matches no leaf, or there is no group. The message lists the paths.
    """
    paths, leaves = leaf_paths(params), jax.tree.leaves(params)

    def matching(patterns: str | Sequence[str]) -> list[int]:
        found: list[int] = []
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            hits = [k for k, path in enumerate(paths) if path == pattern or fnmatch.fnmatchcase(path, pattern)]
            if not hits:
                raise ValueError(f"no parameter matches the group pattern {pattern!r}; there are {', '.join(paths)}")
            found += [k for k in hits if k not in found]
        return found

    if isinstance(groups, Mapping):
        resolved = tuple((name, tuple(matching(patterns))) for name, patterns in groups.items())
    else:
        if groups is None:
            out = buffers(params)
            chosen = [
                k
                for k, v in enumerate(leaves)
                if jnp.ndim(v) >= 2 and jnp.issubdtype(jnp.result_type(v), jnp.floating) and paths[k] not in out
            ]
        elif callable(groups):
            chosen = [k for k, (path, leaf) in enumerate(zip(paths, leaves, strict=True)) if groups(path, leaf)]
        else:
            if not isinstance(groups, str | Sequence) or not all(isinstance(pattern, str) for pattern in groups):
                raise ValueError(
                    "groups must be patterns of paths, a mapping from names to patterns, a predicate of path and leaf, "
                    f"or a plan; got {groups!r}"
                )
            chosen = matching(groups)
        resolved = tuple((paths[k], (k,)) for k in chosen)
    if not resolved:
        raise ValueError(f"there is no group of parameters to track; the parameters are {', '.join(paths) or 'none'}")
    return resolved


def scale_invariant_groups(
    apply: Callable[..., PyTree], params: PyTree, *args: Any, together: int | None = None, epsilon: bool = True
) -> dict[str, tuple[str, ...]]:
    r"""Finds which parameters can be rescaled, alone or together, without a change of the outputs.

    A set S of leaves is scale-invariant to first order where $\sum_{l\in S} \partial f \cdot w_l = 0$: the derivative
    of the outputs along the leaves themselves (two forward-mode products for each leaf).

    At w = 0 that derivative is zero for every function, so that a leaf of zeros is no evidence. All such leaves are
    first replaced by standard normal numbers, the same in every call. A leaf that hardly changes the outputs in any
    direction is not named, such as an unused leaf or a bias that the next layer subtracts. Its invariance is trivial.

    Args:
        apply: (params, *args) → outputs or loss; more outputs make a chance zero less likely.
        params: the parameters.
        *args: inputs, such as a batch.
        together: largest number of leaves in a set: 2 finds a weight with the bias that its norm scales with it. None
            finds sets of any size, such as all that is added to the stream of a pre-norm transformer. Sets of more
            than one leaf then share no leaf: one of the fewest leaves is taken first, and of several such that of the
            most numbers.
        epsilon: whether the search sets every ε of a norm to zero. It reads them in the traced program: constants up
            to 0.01 under a root or added to one, but not those inside of a `while_loop`. Otherwise a norm with ε > 0 is
            not scale-invariant.

    Returns:
        Paths by name, for `track_geometry(groups=...)`; minimal sets only. Empty where there are none. By default these
        are the groups of `plan`, which decay acts on as a rate.

    Raises:
        ValueError: if `apply` is no function, or fails at these arguments for a reason that is known; if the outputs or
            their derivatives are not finite, which is no evidence; or if `together` is no whole number of at least 1.

    Example:
        >>> f = lambda p: p["w"] / jnp.linalg.norm(p["w"]) + p["b"]
        >>> scale_invariant_groups(f, {"w": jnp.array([[1.0, 2.0]]), "b": jnp.zeros((1, 2))})
        {'w': ('w',)}
    """
    found, paths = search(apply, params, args, together=together, epsilon=epsilon), leaf_paths(params)
    return {"+".join(paths[k] for k in chosen): tuple(paths[k] for k in chosen) for chosen in found.sets}


class Search(NamedTuple):
    """Leaves by what a change of their scale does to the outputs, as numbers of the leaves of the parameters.

    Attributes:
        sets: those that can be rescaled, together, without a change.
        idle: those that hardly change the outputs in any direction.
        floating: all of floating point numbers.
    """

    sets: tuple[tuple[int, ...], ...]
    idle: tuple[int, ...]
    floating: tuple[int, ...]


def search(
    apply: Callable[..., PyTree],
    params: PyTree,
    args: tuple,
    *,
    together: int | None,
    epsilon: bool,
    preferred: frozenset[int] = frozenset(),
) -> Search:
    """The search of `scale_invariant_groups`, which says what the arguments are.

    Of large sets with equally many leaves, one with the most leaves of `preferred` is taken.
    """
    check_function(apply)
    if together is not None:
        together = check_count("together", together, 1, what="None (any) or a whole number of leaves")
    paths, (leaves, structure) = leaf_paths(params), jax.tree.flatten(params)
    given = [jnp.result_type(v) for v in leaves]
    floating = [k for k, v in enumerate(leaves) if jnp.issubdtype(jnp.result_type(v), jnp.floating)]
    if not floating:
        return Search((), (), ())
    rng = probe_generator()

    leaves = [widened(jnp.asarray(v)) if k in set(floating) else v for k, v in enumerate(leaves)]

    def drawn(leaf: Any) -> Array:
        return jnp.asarray(rng.standard_normal(jnp.shape(leaf)), jnp.result_type(leaf))

    zeros = [paths[k] for k in floating if not np.any(np.asarray(leaves[k]))]
    trainable = [drawn(leaves[k]) if paths[k] in zeros else jnp.asarray(leaves[k]) for k in floating]
    directions = [drawn(v) for v in trainable]

    def outputs(trainable):
        full = list(leaves)
        for k, value in zip(floating, trainable, strict=True):
            full[k] = value.astype(given[k])
        return jnp.concatenate(
            [jnp.ravel(v) for v in jax.tree.leaves(apply(jax.tree.unflatten(structure, full), *args))]
        )

    exact = in_32_bits(outputs)  # rounding to 16 bits would hide, or feign, a derivative of zero
    function = without_epsilon(exact) if epsilon else exact

    @jax.jit
    def slope(at, switch, along):  # numbers that are not closed over are no constants, which XLA would compute with
        tangents = [s.astype(v.dtype) * v for s, v in zip(switch, along, strict=True)]
        return jax.jvp(function, (at,), (tangents,))

    dtype = np.result_type(*(v.dtype for v in trainable))
    rounding = MARGIN * float(jnp.finfo(dtype).eps)
    slopes, sizes = {}, {}
    for j, k in enumerate(floating):
        switch = np.eye(len(floating), dtype=dtype)[j]
        try:
            (value, radial), (_, other) = (
                map(np.asarray, slope(trainable, switch, along)) for along in (trainable, directions)
            )
        except Exception as error:  # whatever the user's function raises
            raise explained(error, apply, params, *args) from error
        if not all(np.all(np.isfinite(v)) for v in (value, radial, other)):
            at = f" with random numbers in the place of the zeros of {', '.join(zeros)}" if zeros else ""
            at += " and ε = 0 in all norms" if epsilon else ""
            raise ValueError(
                f"the outputs, or their derivatives by {paths[k]}, are not finite at these parameters{at}: that is no "
                "evidence; give parameters and inputs at which they are"
            )
        norm, drawn_norm = (float(np.linalg.norm(np.asarray(v[j], np.float64))) for v in (trainable, directions))
        slopes[k], sizes[k] = radial, float(np.max(np.abs(other), initial=0.0)) * norm / max(drawn_norm, 1e-300)
    largest = max(sizes.values())
    seen = [k for k in slopes if sizes[k] > rounding * largest]

    def vanishes(chosen: tuple[int, ...]) -> bool:
        parts = [slopes[k] for k in chosen]
        scale = sizes[chosen[0]] if len(chosen) == 1 else max(float(np.max(np.abs(p))) for p in parts)
        return bool(np.max(np.abs(sum(parts))) <= rounding * scale)

    found: list[tuple[int, ...]] = []
    for size in range(1, (1 if together is None else together) + 1):
        for chosen in itertools.combinations(seen, size):
            if not any(set(known) <= set(chosen) for known in found) and vanishes(chosen):
                found.append(chosen)
    if together is None:
        rest = [k for k in seen if (k,) not in found]
        found += [
            chosen
            for chosen in _disjoint_sets({k: slopes[k] for k in rest}, leaves, rounding, preferred)
            if vanishes(chosen)
        ]
    idle = tuple(k for k in floating if k not in seen)
    return Search(tuple(found), idle, tuple(floating))


def _disjoint_sets(
    slopes: dict[int, np.ndarray], leaves: list, rounding: float, preferred: frozenset[int]
) -> list[tuple[int, ...]]:
    """The smallest set with a sum of zero, again and again of leaves in no set yet: integer programs in 0 and 1.

    Costs decide among sets of one size: first leaves that are preferred, then numbers in a leaf, then its place. They
    are large because the solver takes costs within 1e-6 for equal.
    """
    free, found = list(slopes), []
    if len(free) < 2:
        return []
    columns = np.stack([v / np.max(np.abs(v)) for v in map(np.float64, slopes.values())], 1)
    sizes = np.array([np.max(np.abs(v)) for v in slopes.values()], np.float64)
    _, values, rows = np.linalg.svd(np.linalg.qr(columns, mode="r"))
    rows = rows[: int(np.sum(values > rounding * values[0]))] * (sizes / np.max(sizes))
    rows /= np.max(np.abs(rows), axis=1, keepdims=True)
    numbers = np.array([jnp.size(leaves[k]) for k in slopes])
    liked = np.array([k in preferred for k in slopes]) / (2 * len(slopes))
    costs = 1e6 * (1 - liked - 1e-4 * numbers / np.sum(numbers) + 1e-7 * np.arange(len(slopes)) / len(slopes))
    some = scipy.optimize.LinearConstraint(np.ones((1, len(slopes))), 1, np.inf)
    while free:
        solved = scipy.optimize.milp(
            costs,
            integrality=np.ones(len(slopes)),
            bounds=scipy.optimize.Bounds(0, np.array([float(k in free) for k in slopes])),  # pyright: ignore
            constraints=[scipy.optimize.LinearConstraint(rows, -rounding, rounding), some],
            options={"mip_rel_gap": 0.0},
        )
        if not solved.success:
            break
        chosen = tuple(k for k, c in zip(slopes, solved.x, strict=True) if c > 0.5)
        found.append(chosen)
        free = [k for k in free if k not in chosen]
    return found
