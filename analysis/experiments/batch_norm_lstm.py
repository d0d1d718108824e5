"""The LSTM with recurrent batch norm of Cooijmans et al. (arXiv 1603.09025)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float
from lngeom import nn
from lngeom.nn.functional import RunningStatistics

from analysis.experiments.networks import cell, fresh_statistics


class BatchNormLSTM(eqx.Module):
    """The LSTM of Cooijmans et al.: batch norm of both summed inputs and of the cell, by time step.

    Attributes:
        lstm: weights and bias.
        gains: of recurrent and input part, and of the cell.
        cell_bias: of the normalized cell.
    """

    lstm: nn.LSTM
    gains: tuple[Array, Array, Array]
    cell_bias: Float[Array, " H"]

    def __init__(self, inputs: int, hidden: int, *, key, gain: float):
        self.lstm = cell("LSTM", False, inputs, hidden, key=key)
        self.gains = tuple(jnp.full(n, gain, jnp.float32) for n in (4 * hidden, 4 * hidden, hidden))  # pyright: ignore
        self.cell_bias = jnp.zeros(hidden, jnp.float32)

    def fresh(self, steps: int) -> tuple[RunningStatistics, ...]:
        """Statistics of every time step, before the first batch."""
        h = self.lstm.hidden
        return jax.tree.map(
            lambda v: jnp.tile(v[None], (steps, 1)), tuple(fresh_statistics(n) for n in (4 * h, 4 * h, h))
        )

    def unroll(self, xs, lengths, running, training, start=None):
        """Last states, outputs of every step and statistics to store; padded steps keep the state.

        Args:
            xs: inputs, [T B D].
            lengths: of the sequences, [B].
            running: statistics of every time step.
            training: whether those of the batch are used.
            start: the hidden vector before the first step, [B H]; zeros by default.

        Returns:
            The three.
        """
        options = {"training": training, "momentum": 0.0}
        recurrent, inputs, cells = running
        projected, inputs = jax.vmap(lambda a, r: nn.batch_norm(a, self.gains[1], None, r, **options))(
            xs @ self.lstm.input_weights.T, inputs
        )

        def step(state, item):
            h, c = state
            b, t, recurrent, cells = item
            a, recurrent = nn.batch_norm(h @ self.lstm.recurrent_weights.T, self.gains[0], None, recurrent, **options)
            f, i, o, g = jnp.split(a + b + self.lstm.bias[None], 4, -1)
            following = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
            n, cells = nn.batch_norm(following, self.gains[2], self.cell_bias, cells, **options)
            inside = (t < lengths)[:, None]
            out = sigmoid(o) * jnp.tanh(n)
            state = (jnp.where(inside, out, h), jnp.where(inside, following, c))
            return state, (jnp.where(inside, out, 0), recurrent, cells)

        zeros = jnp.zeros((xs.shape[1], self.lstm.hidden), xs.dtype)
        (h, _), (outputs, recurrent, cells) = jax.lax.scan(
            jax.checkpoint(step, prevent_cse=False),
            (zeros if start is None else start, zeros),
            (projected, jnp.arange(xs.shape[0]), recurrent, cells),
        )
        return h, outputs, (recurrent, inputs, cells)
