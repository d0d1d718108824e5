r"""Gated recurrent cells of the paper's supplement, with layer normalization and without (Eqs. 17–31)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom.nn.modules import GroupNorm, LayerNorm
from lngeom.nn.recurrent import AbstractCell, VectorStateCell, add_vector, normal_weights


def _gate_norm(gates: int, hidden: int, per_gate: bool, options: dict[str, Any]) -> LayerNorm | GroupNorm:
    """The norm of stacked gates: of all of them together, or of each by itself."""
    if per_gate:
        return GroupNorm(gates * hidden, gates, **options)
    return LayerNorm(gates * hidden, **options)


class LSTMState(NamedTuple):
    r"""Hidden vector $h_t$ and cell $c_t$, each [*batch H]."""

    hidden: Float[Array, "*batch H"]
    cell: Float[Array, "*batch H"]


class LSTM(AbstractCell[LSTMState, Array]):
    r"""The long short-term memory of the supplement (Eqs. 17–19, gates in the order f, i, o, g).

    Attributes:
        recurrent_weights: $W_h$, shape [4H H].
        input_weights: $W_x$, shape [4H D].
        bias: b, shape [4H].
    """

    recurrent_weights: Float[Array, "4*H H"]
    input_weights: Float[Array, "4*H D"]
    bias: Float[Array, "4*H"]
    inputs: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)

    def __init__(self, inputs, hidden, *, key, dtype=jnp.float32):
        keys = jax.random.split(key)
        self.inputs, self.hidden = inputs, hidden
        self.recurrent_weights = normal_weights(keys[0], 4 * hidden, hidden, dtype)
        self.input_weights = normal_weights(keys[1], 4 * hidden, inputs, dtype)
        self.bias = jnp.zeros(4 * hidden, dtype)

    def initial_state(self, *batch, dtype=jnp.float32):  # noqa: D102
        zeros = jnp.zeros((*batch, self.hidden), dtype)
        return LSTMState(zeros, zeros)

    def output(self, state):  # noqa: D102
        return state.hidden

    def project(self, x):  # noqa: D102
        return x @ self.input_weights.T

    def step(self, state, projected):  # noqa: D102
        gates = add_vector(state.hidden @ self.recurrent_weights.T + projected, self.bias)
        f, i, o, g = jnp.split(gates, 4, -1)
        c = sigmoid(f) * state.cell + sigmoid(i) * jnp.tanh(g)
        return LSTMState(sigmoid(o) * jnp.tanh(c), c)


class LayerNormLSTM(AbstractCell[LSTMState, Array]):
    r"""The layer-normalized LSTM (Eqs. 20–22); with `output_only`, the one of DRAW (Eqs. 29–31).

    The recurrent and the input part of the four stacked gates are normalized separately. The cell is carried without
    normalization. It is normalized only for the output.

    Attributes:
        recurrent_weights: $W_h$, shape [4H H].
        input_weights: $W_x$, shape [4H D].
        bias: b, shape [4H].
        recurrent_norm: LN with $\alpha_1, \beta_1$; None with `output_only`.
        input_norm: LN with $\alpha_2, \beta_2$; None with `output_only`.
        cell_norm: LN with $\alpha_3, \beta_3$.
        carry_normalized_cell: whether the *normalized* cell is carried to the next step, as in some libraries.
    """

    recurrent_weights: Float[Array, "4*H H"]
    input_weights: Float[Array, "4*H D"]
    bias: Float[Array, "4*H"]
    recurrent_norm: LayerNorm | GroupNorm | None
    input_norm: LayerNorm | GroupNorm | None
    cell_norm: LayerNorm
    inputs: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)
    carry_normalized_cell: bool = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden: int,
        *,
        key: PRNGKeyArray,
        output_only: bool = False,
        per_gate: bool = False,
        carry_normalized_cell: bool = False,
        eps: float | None = None,
        exact: bool = False,
        dtype: jax.typing.DTypeLike = jnp.float32,
    ):
        if output_only and per_gate:
            raise ValueError("output_only=True leaves the gates unnormalized: leave out per_gate=True")
        keys = jax.random.split(key)
        options: dict[str, Any] = {"eps": eps, "exact": exact, "dtype": dtype}
        self.inputs, self.hidden, self.carry_normalized_cell = inputs, hidden, carry_normalized_cell
        self.recurrent_weights = normal_weights(keys[0], 4 * hidden, hidden, dtype)
        self.input_weights = normal_weights(keys[1], 4 * hidden, inputs, dtype)
        self.bias = jnp.zeros(4 * hidden, dtype)
        self.recurrent_norm = None if output_only else _gate_norm(4, hidden, per_gate, options)
        self.input_norm = None if output_only else _gate_norm(4, hidden, per_gate, options)
        self.cell_norm = LayerNorm(hidden, **options)

    def initial_state(self, *batch, dtype=jnp.float32):  # noqa: D102
        zeros = jnp.zeros((*batch, self.hidden), dtype)
        return LSTMState(zeros, zeros)

    def output(self, state):  # noqa: D102
        return state.hidden

    def project(self, x):  # noqa: D102
        projected = x @ self.input_weights.T
        return projected if self.input_norm is None else self.input_norm(projected)

    def step(self, state, projected):  # noqa: D102
        recurrent = state.hidden @ self.recurrent_weights.T
        if self.recurrent_norm is not None:
            recurrent = self.recurrent_norm(recurrent)
        f, i, o, g = jnp.split(add_vector(recurrent + projected, self.bias), 4, -1)
        c = sigmoid(f) * state.cell + sigmoid(i) * jnp.tanh(g)
        normalized = self.cell_norm(c)
        return LSTMState(sigmoid(o) * jnp.tanh(normalized), normalized if self.carry_normalized_cell else c)


class GRUInputs(NamedTuple):
    """Input parts of the summed inputs of a GRU: of both gates and of the candidate."""

    gates: Float[Array, "*batch 2*H"]
    candidate: Float[Array, "*batch H"]


def _gru_inputs(cell: "GRU | LayerNormGRU", x: Float[Array, "*batch D"]) -> GRUInputs:
    """Input parts before any norm, with the bias of the cell where it has one."""
    gates, candidate = x @ cell.input_weights.T, x @ cell.candidate_input_weights.T
    if cell.bias is None:
        return GRUInputs(gates, candidate)
    gate_bias, candidate_bias = jnp.split(cell.bias, [2 * cell.hidden])
    return GRUInputs(add_vector(gates, gate_bias), add_vector(candidate, candidate_bias))


def _gru_update(h, gates, candidate, recurrent_candidate):
    r"""Eqs. 24–25 and 27–28 from summed inputs: $(1 - \sigma(z)) \odot h + \sigma(z) \odot \hat h$."""
    z, r = jnp.split(gates, 2, -1)
    proposal = jnp.tanh(candidate + sigmoid(r) * recurrent_candidate)
    return (1 - sigmoid(z)) * h + sigmoid(z) * proposal


class GRU(VectorStateCell[GRUInputs]):
    r"""The gated recurrent unit of the supplement (Eqs. 23–25, gates in the order z, r).

    The supplement writes $W_x$ for two matrices of different shape; here they have two names. Its unit has no bias.
    `use_bias=True` adds one to each of the summed inputs, for a comparison with the layer-normalized unit, whose norms
    have biases.

    Attributes:
        recurrent_weights: $W_h$, shape [2H H].
        input_weights: $W_x$ of Eq. 23, shape [2H D].
        candidate_recurrent_weights: U, shape [H H].
        candidate_input_weights: $W_x$ of Eq. 24, shape [H D].
        bias: of the gates and the candidate, shape [3H], or None.
    """

    recurrent_weights: Float[Array, "2*H H"]
    input_weights: Float[Array, "2*H D"]
    candidate_recurrent_weights: Float[Array, "H H"]
    candidate_input_weights: Float[Array, "H D"]
    bias: Float[Array, "3*H"] | None
    inputs: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)

    def __init__(self, inputs, hidden, *, key, use_bias=False, dtype=jnp.float32):
        keys = jax.random.split(key, 4)
        self.inputs, self.hidden = inputs, hidden
        self.recurrent_weights = normal_weights(keys[0], 2 * hidden, hidden, dtype)
        self.input_weights = normal_weights(keys[1], 2 * hidden, inputs, dtype)
        self.candidate_recurrent_weights = normal_weights(keys[2], hidden, hidden, dtype)
        self.candidate_input_weights = normal_weights(keys[3], hidden, inputs, dtype)
        self.bias = jnp.zeros(3 * hidden, dtype) if use_bias else None

    def project(self, x):  # noqa: D102
        return _gru_inputs(self, x)

    def step(self, state, projected):  # noqa: D102
        gates = state @ self.recurrent_weights.T + projected.gates
        return _gru_update(state, gates, projected.candidate, state @ self.candidate_recurrent_weights.T)


class LayerNormGRU(VectorStateCell[GRUInputs]):
    r"""The layer-normalized GRU (Eqs. 26–28).

    In the supplement it has no biases but those of its norms. `use_bias=True` adds one to each $W_x x$ before the
    norm, as the authors' code does. Where $W_x x$ starts small, the bias soon dominates it, and the norm amplifies it
    less. This can change the speed of training a lot.

    Attributes:
        recurrent_weights: $W_h$, shape [2H H].
        input_weights: $W_x$ of Eq. 26, shape [2H D].
        candidate_recurrent_weights: U, shape [H H].
        candidate_input_weights: $W_x$ of Eq. 27, shape [H D].
        bias: of the gates and the candidate, inside the norms of the input parts, shape [3H], or None.
        recurrent_norm: LN with $\alpha_1, \beta_1$.
        input_norm: LN with $\alpha_2, \beta_2$.
        candidate_input_norm: LN with $\alpha_3, \beta_3$.
        candidate_recurrent_norm: LN with $\alpha_4, \beta_4$.
    """

    recurrent_weights: Float[Array, "2*H H"]
    input_weights: Float[Array, "2*H D"]
    candidate_recurrent_weights: Float[Array, "H H"]
    candidate_input_weights: Float[Array, "H D"]
    bias: Float[Array, "3*H"] | None
    recurrent_norm: LayerNorm | GroupNorm
    input_norm: LayerNorm | GroupNorm
    candidate_input_norm: LayerNorm
    candidate_recurrent_norm: LayerNorm
    inputs: int = eqx.field(static=True)
    hidden: int = eqx.field(static=True)

    def __init__(
        self, inputs, hidden, *, key, use_bias=False, per_gate=False, eps=None, exact=False, dtype=jnp.float32
    ):
        keys = jax.random.split(key, 4)
        options: dict[str, Any] = {"eps": eps, "exact": exact, "dtype": dtype}
        self.inputs, self.hidden = inputs, hidden
        self.recurrent_weights = normal_weights(keys[0], 2 * hidden, hidden, dtype)
        self.input_weights = normal_weights(keys[1], 2 * hidden, inputs, dtype)
        self.candidate_recurrent_weights = normal_weights(keys[2], hidden, hidden, dtype)
        self.candidate_input_weights = normal_weights(keys[3], hidden, inputs, dtype)
        self.bias = jnp.zeros(3 * hidden, dtype) if use_bias else None
        self.recurrent_norm = _gate_norm(2, hidden, per_gate, options)
        self.input_norm = _gate_norm(2, hidden, per_gate, options)
        self.candidate_input_norm = LayerNorm(hidden, **options)
        self.candidate_recurrent_norm = LayerNorm(hidden, **options)

    def project(self, x):  # noqa: D102
        gates, candidate = _gru_inputs(self, x)
        return GRUInputs(self.input_norm(gates), self.candidate_input_norm(candidate))

    def step(self, state, projected):  # noqa: D102
        gates = self.recurrent_norm(state @ self.recurrent_weights.T) + projected.gates
        recurrent_candidate = self.candidate_recurrent_norm(state @ self.candidate_recurrent_weights.T)
        return _gru_update(state, gates, projected.candidate, recurrent_candidate)
