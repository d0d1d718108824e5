r"""Recurrent cells, their unrolling over sequences, and the layer-normalized RNN (Eq. 4).

A cell maps a state and an input to the next state, for any leading shape. It has two parts. `project(x)` needs no
state and is computed for a whole sequence at once. `step(state, projected)` gives the next state. `unroll` runs a cell
over a sequence.

The supplement says that gains start as zeros and biases as ones. That contradicts Eq. 15 and counts as an erratum: here
gains start as ones and biases as zeros.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from lngeom._core.draws import draw_small
from lngeom.nn.modules import LayerNorm

State = TypeVar("State")
Projected = TypeVar("Projected")


class AbstractCell(eqx.Module, Generic[State, Projected]):
    """A recurrent cell.

    Attributes:
        inputs: number of inputs D.
        hidden: number of hidden units H.
    """

    inputs: eqx.AbstractVar[int]
    hidden: eqx.AbstractVar[int]

    @abstractmethod
    def initial_state(self, *batch: int, dtype: jax.typing.DTypeLike = jnp.float32) -> State:
        """The state of zeros for this leading shape."""

    @abstractmethod
    def project(self, x: Float[Array, "*batch D"]) -> Projected:
        """The part of the summed inputs that depends on the input alone."""

    @abstractmethod
    def step(self, state: State, projected: Projected) -> State:
        """The next state."""

    def output(self, state: State) -> Float[Array, "*batch H"]:
        r"""The hidden vector $h_t$ of a state."""
        return state  # pyright: ignore[reportReturnType]

    def __call__(self, state: State, x: Float[Array, "*batch D"]) -> State:
        """The next state after one input."""
        _check_inputs(self, x)
        return self.step(state, self.project(x))


class VectorStateCell(AbstractCell[Array, Projected]):
    """A cell whose state is its hidden vector."""

    def initial_state(self, *batch: int, dtype: jax.typing.DTypeLike = jnp.float32) -> Array:
        """The hidden vector of zeros."""
        return jnp.zeros((*batch, self.hidden), dtype)


def _check_inputs(cell: AbstractCell, x: Array) -> None:
    if jnp.ndim(x) < 1 or jnp.shape(x)[-1] != cell.inputs or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"x must be floating point with a last axis of D = {cell.inputs} inputs; "
            f"got {x.dtype} of shape {jnp.shape(x)}"
        )


def normal_weights(key: PRNGKeyArray, rows: int, columns: int, dtype: jax.typing.DTypeLike) -> Float[Array, "R C"]:
    """Normal weights, scaled so that summed inputs of unit inputs have variance 1."""
    return draw_small(jax.random.normal, key, (rows, columns), dtype) / math.sqrt(columns)


def add_vector(a: Float[Array, "*batch H"], b: Float[Array, " H"]) -> Float[Array, "*batch H"]:
    """Adds a vector to every row."""
    return a + b.reshape((1,) * (a.ndim - 1) + (-1,))


class RNN(VectorStateCell[Array]):
    r"""The recurrent layer $h^t = f(W_{hh} h^{t-1} + W_{xh} x^t + b)$.

    Attributes:
        recurrent_weights: $W_{hh}$, shape [H H].
        input_weights: $W_{xh}$, shape [H D].
        bias: b, shape [H].
        activation: f.
    """

    recurrent_weights: Float[Array, "H H"]
    input_weights: Float[Array, "H D"]
    bias: Float[Array, " H"]
    inputs: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, inputs, hidden, *, key, activation=jnp.tanh, dtype=jnp.float32):
        keys = jax.random.split(key)
        self.inputs, self.hidden, self.activation = inputs, hidden, activation
        self.recurrent_weights = normal_weights(keys[0], hidden, hidden, dtype)
        self.input_weights = normal_weights(keys[1], hidden, inputs, dtype)
        self.bias = jnp.zeros(hidden, dtype)

    def project(self, x):  # noqa: D102
        return x @ self.input_weights.T

    def step(self, state, projected):  # noqa: D102
        return self.activation(add_vector(state @ self.recurrent_weights.T + projected, self.bias))


class LayerNormRNN(VectorStateCell[Array]):
    r"""The layer-normalized recurrent layer (Eq. 4).

    $a^t = W_{hh} h^{t-1} + W_{xh} x^t$ and $h^t = f(\mathrm{LN}(a^t; g, b))$.

    Attributes:
        recurrent_weights: $W_{hh}$, shape [H H].
        input_weights: $W_{xh}$, shape [H D].
        norm: layer norm of the summed inputs, with gain and bias.
        activation: f.
    """

    recurrent_weights: Float[Array, "H H"]
    input_weights: Float[Array, "H D"]
    norm: LayerNorm
    inputs: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, inputs, hidden, *, key, activation=jnp.tanh, eps=None, exact=False, dtype=jnp.float32):
        keys = jax.random.split(key)
        self.inputs, self.hidden, self.activation = inputs, hidden, activation
        self.recurrent_weights = normal_weights(keys[0], hidden, hidden, dtype)
        self.input_weights = normal_weights(keys[1], hidden, inputs, dtype)
        self.norm = LayerNorm(hidden, eps=eps, exact=exact, dtype=dtype)

    def project(self, x):  # noqa: D102
        return x @ self.input_weights.T

    def step(self, state, projected):  # noqa: D102
        return self.activation(self.norm(state @ self.recurrent_weights.T + projected))


def unroll(
    cell: AbstractCell[State, Projected],
    inputs: Float[Array, "T *batch D"],
    state: State | None = None,
    *,
    lengths: Int[Array, "*batch"] | Sequence[int] | None = None,
    recompute: bool = False,
) -> tuple[State, Float[Array, "T *batch H"]]:
    """Runs a cell over sequences, time first, which may be padded.

    Args:
        cell: the cell.
        inputs: inputs of every step. Inputs beyond the length of a sequence are ignored.
        state: the state before the first step; zeros by default.
        lengths: length of each sequence; all T by default. Beyond it the state is constant and the output is zero.
        recompute: whether a gradient keeps only the states and recomputes every step. This takes less memory, and on a
            CPU often less time.

    Returns:
        The state after the last step of each sequence, and the outputs of every step.

    Raises:
        ValueError: if the shapes of inputs and lengths do not match the cell and each other.
    """
    _check_inputs(cell, inputs)
    if inputs.ndim < 2:
        raise ValueError(f"inputs must be [T ... D], time first; got shape {inputs.shape}")
    batch = inputs.shape[1:-1]
    lengths = None if lengths is None else jnp.asarray(lengths)
    if lengths is not None and (lengths.shape != batch or not jnp.issubdtype(lengths.dtype, jnp.integer)):
        raise ValueError(
            f"lengths must be integers of shape {batch}, one for each sequence of inputs {inputs.shape}; "
            f"got {lengths.dtype} of shape {lengths.shape}"
        )
    if state is None:
        state = cell.initial_state(*batch, dtype=inputs.dtype)
    return _unrolled(cell, inputs, state, lengths, recompute)


@eqx.filter_jit
def _unrolled(
    cell: AbstractCell[State, Projected],
    inputs: Float[Array, "T *batch D"],
    state: State,
    lengths: Int[Array, "*batch"] | None,
    recompute: bool,
) -> tuple[State, Float[Array, "T *batch H"]]:
    padding = None
    if lengths is not None:
        steps = jnp.arange(inputs.shape[0]).reshape(-1, *(1,) * lengths.ndim)
        padding = (steps >= lengths[None])[..., None]
        inputs = jnp.where(padding, 0, inputs)

    def step(state, item):
        projected, padded = item
        following = cell.step(state, projected)
        if padded is None:
            return following, cell.output(following)
        held = jax.tree.map(lambda old, new: jnp.where(padded, old, new), state, following)
        return held, jnp.where(padded, 0, cell.output(following))

    if recompute:
        step = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.scan(step, state, (cell.project(inputs), padding))
