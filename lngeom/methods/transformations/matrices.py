"""Groups of matrices that mix units or inputs."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom.methods.transformations.actions import positive_scale

compiled = functools.partial(jax.jit, static_argnums=(1, 2))
"""A function of a key, a size and a dtype as one program for each size."""


@dataclass(frozen=True)
class MatrixGroup:
    r"""A group of square matrices that mixes units, $W \mapsto QW$, or inputs, $(W, x) \mapsto (WA^{-1}, Ax)$.

    Attributes:
        name: identifier, as used in claim ids.
        title: in words.
        formula: the property, LaTeX.
        draw: draws a matrix, given a key, its size and a dtype.
        acts_on: "units" or "inputs".
        heading: short heading for a table.
        groups: number of groups of consecutive units that it respects; 1 for no groups.
    """

    name: str
    title: str
    formula: str
    draw: Callable[[PRNGKeyArray, int, jax.typing.DTypeLike], Float[Array, "K K"]]
    acts_on: Literal["units", "inputs"]
    heading: str = ""
    groups: int = 1

    def __call__(
        self, matrix: Float[Array, "K K"], weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]
    ) -> tuple[Float[Array, "H D"], Float[Array, "N *T D"]]:
        """Weights and inputs after the matrix has acted."""
        if self.acts_on == "units":
            return matrix @ weights, inputs
        return jnp.linalg.solve(matrix.T, weights.T).T, inputs @ matrix.T

    def expected(self, matrix: Float[Array, "K K"], outputs: Float[Array, "N *T H"]) -> Float[Array, "N *T H"]:
        """The outputs after it has acted, of a layer that is equivariant (units) or invariant (inputs)."""
        return outputs @ matrix.T if self.acts_on == "units" else outputs


@compiled
def _orthogonal(key, size, dtype):
    return jax.random.orthogonal(key, size, dtype=dtype)


@compiled
def _orthogonal_fixing_one(key, size, dtype):
    """R diag(1, Q) R, where the reflection R maps the first axis to the diagonal."""
    diagonal = jnp.full(size, size**-0.5, dtype)
    normal = diagonal - jnp.eye(1, size, dtype=dtype)[0]
    reflection = jnp.eye(size, dtype=dtype) - 2 * jnp.outer(normal, normal) / jnp.sum(jnp.square(normal))
    block = jnp.eye(size, dtype=dtype).at[1:, 1:].set(_orthogonal(key, size - 1, dtype))
    return reflection @ block @ reflection


@compiled
def _permutation(key, size, dtype):
    """No permutation drawn is the identity: a cycle comes after a random relabelling."""
    order = jax.random.permutation(key, size)
    cycle = jnp.zeros(size, order.dtype).at[order].set(jnp.roll(order, 1))
    return jnp.eye(size, dtype=dtype)[cycle]


@compiled
def _invertible(key, size, dtype):
    left, right, scales = jax.random.split(key, 3)
    stretched = positive_scale(scales, (1, size), dtype) * _orthogonal(right, size, dtype)
    return _orthogonal(left, size, dtype) @ stretched


@jax.jit
def _within_groups(outer, within):
    """Matrices within groups of one size, and then one of the groups."""
    return jnp.kron(outer, jnp.eye(len(within[0]), dtype=outer.dtype)) @ jax.scipy.linalg.block_diag(*within)


def group_permutations(groups: int = 2) -> MatrixGroup:
    """Permutations of the groups, and of the units within each."""

    def draw(key, size, dtype):
        if size % groups:
            raise ValueError(f"the number of units must be a multiple of groups = {groups}; got H = {size}")
        keys = jax.random.split(key, groups + 1)
        within = [_permutation(k, size // groups, dtype) for k in keys[1:]]
        return _within_groups(_permutation(keys[0], groups, dtype), within)

    return MatrixGroup(
        "group_permutations",
        "permutations of units that respect groups",
        r"f(QW, X) = Q f(W, X),\ Q \in S_{H/G} \wr S_G",
        draw,
        "units",
        "S_H, groups",
        groups,
    )


UNIT_PERMUTATIONS = MatrixGroup(
    "unit_permutations", "permutations of units", r"f(QW, X) = Q f(W, X),\ Q \in S_H", _permutation, "units", "S_H"
)
UNIT_ROTATIONS_FIXING_ONE = MatrixGroup(
    "unit_rotations_fixing_one",
    "orthogonal maps of units that fix 1",
    r"f(QW, X) = Q f(W, X),\ Q \in O(H),\ Q\mathbf{1} = \mathbf{1}",
    _orthogonal_fixing_one,
    "units",
    "O(H), Q1=1",
)
UNIT_ROTATIONS = MatrixGroup(
    "unit_rotations", "orthogonal maps of units", r"f(QW, X) = Q f(W, X),\ Q \in O(H)", _orthogonal, "units", "O(H)"
)
EQUIVARIANCES = (group_permutations(), UNIT_PERMUTATIONS, UNIT_ROTATIONS_FIXING_ONE, UNIT_ROTATIONS)
"""Ways of mixing units, each a subgroup of the next; the first respects two groups."""

INPUT_ROTATIONS_FIXING_ONE = MatrixGroup(
    "input_rotations_fixing_one",
    "orthogonal changes of basis that fix 1",
    r"f(WA^{-1}, Ax) = f(W, x),\ A \in O(D),\ A\mathbf{1} = \mathbf{1}",
    _orthogonal_fixing_one,
    "inputs",
    "O(D), A1=1",
)
INPUT_ROTATIONS = MatrixGroup(
    "input_rotations",
    "orthogonal changes of basis",
    r"f(WA^{-1}, Ax) = f(W, x),\ A \in O(D)",
    _orthogonal,
    "inputs",
    "O(D)",
)
INPUT_BASIS_CHANGES = MatrixGroup(
    "input_basis_changes",
    "changes of basis",
    r"f(WA^{-1}, Ax) = f(W, x),\ A \in GL(D)",
    _invertible,
    "inputs",
    "GL(D)",
)
BASIS_CHANGES = (INPUT_ROTATIONS_FIXING_ONE, INPUT_ROTATIONS, INPUT_BASIS_CHANGES)
"""Changes of the inputs' basis, each a subgroup of the next."""
