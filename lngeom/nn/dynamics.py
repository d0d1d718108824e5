"""Recurrent dynamics: growth of tangents and gradients along a sequence, and recurrent batch norm."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.nn.functional import RunningStatistics, batch_norm
from lngeom.nn.recurrent import RNN, LayerNormRNN


class HiddenDynamics(NamedTuple):
    r"""What happens along a sequence, with $J_t = \partial h^t / \partial h^{t-1}$.

    Attributes:
        hidden: $h^t$ of each step, shape [T H].
        summed_inputs: $a^t$, before any normalization, shape [T H].
        growth: logarithm of $\|J_t v\| / \|v\|$ with v carried forward from the first step, shape [T]; its mean is
            the largest Lyapunov exponent.
    """

    hidden: Float[Array, "T H"]
    summed_inputs: Float[Array, "T H"]
    growth: Float[Array, " T"]


def hidden_dynamics(cell: RNN | LayerNormRNN, xs: Float[Array, "T D"], tangent: Float[Array, " H"]) -> HiddenDynamics:
    """Runs a cell from the state of zeros, and a tangent with it.

    The tangent is renormalized at every step, and only logarithms are kept. A product of a thousand Jacobians therefore
    neither overflows nor underflows. The function is not compiled: wrap it in `jax.jit`, or `jax.vmap` over cells.

    Args:
        cell: the network.
        xs: inputs of every step.
        tangent: the first tangent, not zero.

    Returns:
        The dynamics.
    """

    def forward(carry, x):
        h, v = carry
        following, dv = jax.jvp(lambda h: cell(h, x), (h,), (v,))
        growth = jnp.linalg.norm(dv)
        a = cell.recurrent_weights @ h + cell.input_weights @ x
        return (following, dv / growth), (following, a, jnp.log(growth))

    start = (cell.initial_state(dtype=xs.dtype), tangent / jnp.linalg.norm(tangent))
    return HiddenDynamics(*jax.lax.scan(forward, start, xs)[1])


def gradient_growth(
    cell: RNN | LayerNormRNN, xs: Float[Array, "T D"], hidden: Float[Array, "T H"], cotangent: Float[Array, " H"]
) -> Float[Array, " T-1"]:
    r"""Growth of a gradient backwards through time: logarithms of $\|J_t^\top u\| / \|u\|$ for t = 2 … T.

    Args:
        cell: the network.
        xs: inputs of every step.
        hidden: hidden vectors of every step, as `hidden_dynamics` gives them.
        cotangent: u at the last step, not zero; renormalized at every step.

    Returns:
        What a gradient $\partial L / \partial h^t$ is multiplied by at each step.
    """

    def backward(u, item):
        h, x = item
        pulled = jax.vjp(lambda h: cell(h, x), h)[1](u)[0]
        size = jnp.linalg.norm(pulled)
        return pulled / size, jnp.log(size)

    unit = cotangent / jnp.linalg.norm(cotangent)
    return jax.lax.scan(backward, unit, (hidden[:-1], xs[1:]), reverse=True)[1]


def unroll_batch_norm(
    cell: RNN, xs: Float[Array, "T N D"], stored: RunningStatistics | None = None
) -> tuple[Float[Array, "T N H"], RunningStatistics]:
    r"""The RNN with recurrent batch norm: $h^t = f(\mathrm{BN}_t(W_{hh} h^{t-1} + W_{xh} x^t) + b)$.

    Args:
        cell: a standard network: its weights, bias and activation.
        xs: inputs.
        stored: statistics of each time step, [T' H]; those of the batch by default.

    Returns:
        Outputs of every step, and the statistics used, [T H].

    Raises:
        ValueError: if there are no statistics stored for some of the steps.
    """
    if stored is not None and stored.mean.shape[0] < xs.shape[0]:
        raise ValueError(
            f"recurrent batch norm has statistics for {stored.mean.shape[0]} time steps and none for steps "
            f"{stored.mean.shape[0] + 1} to {xs.shape[0]}: train on longer sequences, or use layer norm"
        )

    def step(h, item):
        x, statistics = item
        a = h @ cell.recurrent_weights.T + x @ cell.input_weights.T
        n, statistics = batch_norm(a, None, cell.bias, statistics, training=stored is None)
        h = cell.activation(n)
        return h, (h, statistics)

    known = None if stored is None else jax.tree.map(lambda v: v[: xs.shape[0]], stored)
    start = cell.initial_state(xs.shape[1], dtype=xs.dtype)
    return jax.lax.scan(step, start, (xs, known))[1]
