"""Discrete symmetries of a layer, found by trial: permutations and sign flips of its units and inputs."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom._core.draws import draw_small
from lngeom._core.numerics import tolerance
from lngeom._core.text import verb

LIMIT = 1024
"""Largest number of transformations of one kind to try. Beyond it only transpositions and single flips are tried."""


@dataclass(frozen=True)
class Search:
    """One kind of transformation, and its members that are symmetries.

    Attributes:
        name: kind of transformation.
        invariant: members that leave the outputs unchanged, including the identity.
        equivariant: members that move the outputs like the units. The same move of gains and biases repairs them.
        tried: number of transformations tried.
        complete: whether the whole group was tried, instead of its transpositions or single flips.
    """

    name: str
    invariant: tuple[tuple[int, ...], ...]
    equivariant: tuple[tuple[int, ...], ...]
    tried: int
    complete: bool

    def __str__(self) -> str:
        scope = "all" if self.complete else "transpositions or single flips only"
        alike, same = len(self.equivariant), len(self.invariant)
        return (
            f"{self.name}: {alike} of {self.tried} tried ({scope}) {verb(alike, 'moves', 'move')} the outputs alike, "
            f"{same} {verb(same, 'leaves', 'leave')} them unchanged"
        )


@dataclass(frozen=True)
class DiscreteSymmetries:
    """The permutations and sign flips among a layer's symmetries.

    Attributes:
        unit_permutations: W ↦ PW. f(PW, X) = P f(W, X) is equivariance.
        unit_signs: W ↦ SW with S diagonal, repaired by g ↦ Sg.
        input_permutations: (W, x) ↦ (WPᵀ, Px); only invariance is tried.
        input_signs: x ↦ −x, repaired by g ↦ −g.
    """

    unit_permutations: Search
    unit_signs: Search
    input_permutations: Search
    input_signs: Search

    def lines(self) -> list[str]:
        """One line a search."""
        return [str(s) for s in (self.unit_permutations, self.unit_signs, self.input_permutations, self.input_signs)]


def discrete_symmetries(
    layer: Callable[[Array, Array], Array],
    *,
    inputs: int = 3,
    outputs: int = 4,
    samples: int = 12,
    key: PRNGKeyArray | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> DiscreteSymmetries:
    """Tries permutations and sign flips of units and of inputs, at two random points.

    Every permutation is tried for up to 6 units, and every pattern of signs for up to 10. For more units only
    transpositions and single flips are tried. They generate the groups: if all of them pass, the whole group does. If
    some fail, larger elements such as swaps of groups remain untried. Products of signs and permutations that are
    symmetries only together are not searched for.

    Args:
        layer: (W, X) -> outputs [N ... H].
        inputs: D.
        outputs: H.
        samples: N.
        key: random key of the points; `jax.random.key(0)` by default.
        dtype: floating point type; JAX's default where None.

    Returns:
        The discrete symmetries.

    Raises:
        ValueError: if the last axis of the outputs does not have H entries, one per unit.

    Example:
        >>> import lngeom as lg
        >>> found = lg.discovery.discrete_symmetries(lg.normalizers.LayerNorm())
        >>> len(found.unit_permutations.equivariant), found.unit_signs.equivariant
        (24, ((1, 1, 1, 1), (-1, -1, -1, -1)))
    """
    dtype = jnp.result_type(float if dtype is None else dtype)
    first, second = jax.random.split(jax.random.key(0) if key is None else key)
    W = draw_small(jax.random.normal, first, (2, outputs, inputs), dtype)
    X = draw_small(jax.random.normal, second, (2, samples, inputs), dtype)
    shape = jnp.shape(jax.eval_shape(layer, W[0], X[0]))
    if not shape or shape[-1] != outputs:
        raise ValueError(f"outputs must have H = {outputs} entries on their last axis, one a unit; got shape {shape}")

    @jax.jit
    def values(left, middle, scale):
        """f(L W M, s X M) for stacked L [k H H], M [k D D] and s [k]; permutations and signs are orthogonal."""

        def one(L, M, s):
            return jax.vmap(lambda W, X: layer(L @ W @ M.T, s * X @ M.T))(W, X)

        return jax.vmap(one)(left, middle, scale)

    reference = np.asarray(jax.vmap(layer)(W, X))
    close = 10 * tolerance(dtype) * float(np.max(np.abs(reference)))
    eye = (np.eye(outputs), np.eye(inputs))

    def permutation(count):
        return lambda p: np.eye(count)[list(p)]

    of_units, of_inputs = permutation(outputs), permutation(inputs)
    kinds = [  # for each element (L, M, s), and the action on the outputs which would be equivariance
        ("permutations of units", _permutations(outputs), lambda p: (of_units(p), eye[1], 1.0, of_units(p))),
        ("signs of units", _signs(outputs), lambda s: (np.diag(s), eye[1], 1.0, np.diag(s))),
        ("permutations of inputs", _permutations(inputs), lambda p: (eye[0], of_inputs(p), 1.0, eye[0])),
        ("sign of the inputs", ([(1,), (-1,)], True), lambda s: (eye[0], eye[1], s[0], s[0] * eye[0])),
    ]
    actions = [act(element) for _, (elements, _), act in kinds for element in elements]
    moved = np.asarray(values(*(jnp.asarray(np.stack([a[k] for a in actions]), dtype) for k in range(3))))
    outcomes = iter(
        [
            (element, _apart(z, reference) <= close, _apart(z, reference @ action[3].T) <= close)
            for element, z, action in zip(
                (tuple(map(int, e)) for _, (elements, _), _ in kinds for e in elements), moved, actions, strict=True
            )
        ]
    )
    searches = []
    for name, (elements, complete), _ in kinds:
        found = list(itertools.islice(outcomes, len(elements)))
        same = tuple(e for e, invariant, _ in found if invariant)
        alike = tuple(e for e, _, equivariant in found if equivariant)
        searches.append(Search(name, same, alike, len(elements), complete))
    return DiscreteSymmetries(*searches)


def _apart(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    gap = float(np.max(np.abs(a - b)))
    return gap if np.isfinite(gap) else np.inf


def _permutations(count: int) -> tuple[list[tuple[int, ...]], bool]:
    if math.factorial(count) <= LIMIT:
        return list(itertools.permutations(range(count))), True
    found = [tuple(range(count))]
    for i, j in itertools.combinations(range(count), 2):
        swapped = list(range(count))
        swapped[i], swapped[j] = j, i
        found.append(tuple(swapped))
    return found[:LIMIT], False


def _signs(count: int) -> tuple[list[tuple[int, ...]], bool]:
    if 2**count <= LIMIT:
        return list(itertools.product((1, -1), repeat=count)), True
    flips = [tuple(-1 if i == j else 1 for i in range(count)) for j in range(count)]
    return [(1,) * count, (-1,) * count, *flips][:LIMIT], False
