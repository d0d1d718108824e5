"""The cells against Eqs. 4 and 17–31 transcribed in NumPy, step by step and in gradients."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom import nn

D, H, STEPS, EPS = 3, 5, 7, 1e-2


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def LN(z, norm, eps=EPS):
    """Eqs. 15–16, with eps under the root."""
    mu = sum(z) / len(z)
    sigma = np.sqrt(sum((z - mu) ** 2) / len(z) + eps)
    return (z - mu) / sigma * np.asarray(norm.gain) + np.asarray(norm.bias)


def rnn(cell, h, x):
    return np.tanh(np.asarray(cell.recurrent_weights) @ h + np.asarray(cell.input_weights) @ x + np.asarray(cell.bias))


def layer_norm_rnn(cell, h, x):
    a = np.asarray(cell.recurrent_weights) @ h + np.asarray(cell.input_weights) @ x
    return np.tanh(LN(a, cell.norm))


def lstm_tail(gates, c, output=lambda c: c):
    f, i, o, g = gates[:H], gates[H : 2 * H], gates[2 * H : 3 * H], gates[3 * H :]
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(output(c)), c


def lstm(cell, state, x):
    h, c = state
    wh, wx = np.asarray(cell.recurrent_weights) @ h, np.asarray(cell.input_weights) @ x
    return lstm_tail(wh + wx + np.asarray(cell.bias), c)


def layer_norm_lstm(cell, state, x):
    h, c = state
    wh, wx = np.asarray(cell.recurrent_weights) @ h, np.asarray(cell.input_weights) @ x
    gates = LN(wh, cell.recurrent_norm) + LN(wx, cell.input_norm) + np.asarray(cell.bias)
    return lstm_tail(gates, c, lambda c: LN(c, cell.cell_norm))


def output_only_lstm(cell, state, x):
    h, c = state
    wh, wx = np.asarray(cell.recurrent_weights) @ h, np.asarray(cell.input_weights) @ x
    return lstm_tail(wh + wx + np.asarray(cell.bias), c, lambda c: LN(c, cell.cell_norm))


class _Slice:
    def __init__(self, norm, gate):
        self.gain, self.bias = (np.asarray(v)[gate * H : (gate + 1) * H] for v in (norm.gain, norm.bias))


def per_gate(z, norm):
    return np.concatenate([LN(z[k * H : (k + 1) * H], _Slice(norm, k)) for k in range(len(z) // H)])


def per_gate_lstm(cell, state, x):
    h, c = state
    wh, wx = np.asarray(cell.recurrent_weights) @ h, np.asarray(cell.input_weights) @ x
    gates = per_gate(wh, cell.recurrent_norm) + per_gate(wx, cell.input_norm) + np.asarray(cell.bias)
    return lstm_tail(gates, c, lambda c: LN(c, cell.cell_norm))


def carrying_lstm(cell, state, x):
    h, c = layer_norm_lstm(cell, state, x)
    return h, LN(c, cell.cell_norm)


def gru(cell, h, x):
    zr = np.asarray(cell.recurrent_weights) @ h + np.asarray(cell.input_weights) @ x
    z, r = zr[:H], zr[H:]
    uh, wx = np.asarray(cell.candidate_recurrent_weights) @ h, np.asarray(cell.candidate_input_weights) @ x
    proposal = np.tanh(wx + sigmoid(r) * uh)
    return (1 - sigmoid(z)) * h + sigmoid(z) * proposal


def biased_gru(cell, h, x):
    bias = np.asarray(cell.bias)
    zr = np.asarray(cell.recurrent_weights) @ h + np.asarray(cell.input_weights) @ x + bias[: 2 * H]
    z, r = zr[:H], zr[H:]
    uh, wx = np.asarray(cell.candidate_recurrent_weights) @ h, np.asarray(cell.candidate_input_weights) @ x
    return (1 - sigmoid(z)) * h + sigmoid(z) * np.tanh(wx + bias[2 * H :] + sigmoid(r) * uh)


def layer_norm_gru(cell, h, x, gates=LN, bias=np.zeros(3 * H)):
    wh, wx = np.asarray(cell.recurrent_weights) @ h, np.asarray(cell.input_weights) @ x + bias[: 2 * H]
    zr = gates(wh, cell.recurrent_norm) + gates(wx, cell.input_norm)
    z, r = zr[:H], zr[H:]
    uh = np.asarray(cell.candidate_recurrent_weights) @ h
    wx = np.asarray(cell.candidate_input_weights) @ x + bias[2 * H :]
    proposal = np.tanh(LN(wx, cell.candidate_input_norm) + sigmoid(r) * LN(uh, cell.candidate_recurrent_norm))
    return (1 - sigmoid(z)) * h + sigmoid(z) * proposal


def per_gate_gru(cell, h, x):
    return layer_norm_gru(cell, h, x, per_gate)


def biased_layer_norm_gru(cell, h, x):
    return layer_norm_gru(cell, h, x, bias=np.asarray(cell.bias))


LN_OPTIONS = {"eps": EPS, "dtype": jnp.float64, "key": jax.random.key(0)}
PLAIN = {"dtype": jnp.float64, "key": jax.random.key(0)}
CELLS = {
    "RNN": (lambda: nn.RNN(D, H, **PLAIN), rnn),
    "LayerNormRNN": (lambda: nn.LayerNormRNN(D, H, **LN_OPTIONS), layer_norm_rnn),
    "LSTM": (lambda: nn.LSTM(D, H, **PLAIN), lstm),
    "LayerNormLSTM": (lambda: nn.LayerNormLSTM(D, H, **LN_OPTIONS), layer_norm_lstm),
    "LayerNormLSTM output_only": (
        lambda: nn.LayerNormLSTM(D, H, output_only=True, **LN_OPTIONS),
        output_only_lstm,
    ),
    "LayerNormLSTM per_gate": (lambda: nn.LayerNormLSTM(D, H, per_gate=True, **LN_OPTIONS), per_gate_lstm),
    "LayerNormLSTM carry": (
        lambda: nn.LayerNormLSTM(D, H, carry_normalized_cell=True, **LN_OPTIONS),
        carrying_lstm,
    ),
    "GRU": (lambda: nn.GRU(D, H, **PLAIN), gru),
    "GRU use_bias": (lambda: nn.GRU(D, H, use_bias=True, **PLAIN), biased_gru),
    "LayerNormGRU": (lambda: nn.LayerNormGRU(D, H, **LN_OPTIONS), layer_norm_gru),
    "LayerNormGRU use_bias": (lambda: nn.LayerNormGRU(D, H, use_bias=True, **LN_OPTIONS), biased_layer_norm_gru),
    "LayerNormGRU per_gate": (lambda: nn.LayerNormGRU(D, H, per_gate=True, **LN_OPTIONS), per_gate_gru),
}


@functools.cache
def made(name):
    return eqx.partition(CELLS[name][0](), eqx.is_array)


def moved(name, flat):
    """The cell with these numbers for its arrays, in NumPy."""
    arrays, static = made(name)
    leaves, structure = jax.tree.flatten(arrays)
    parts = np.split(flat, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return eqx.combine(structure.unflatten([p.reshape(v.shape) for p, v in zip(parts, leaves, strict=True)]), static)


def flattened(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))])


def randomized(name, seed=0):
    """The cell with random gains and biases, so that none of them goes unnoticed."""
    flat = flattened(made(name)[0])
    cell = moved(name, flat + np.random.default_rng(seed).normal(size=flat.shape) * 0.5)
    return jax.tree.map(lambda v: jax.device_put(v) if eqx.is_array(v) else v, cell)


unroll = eqx.filter_jit(nn.unroll)


def inputs(seed=1, batch=()):
    return jax.device_put(np.random.default_rng(seed).normal(size=(STEPS, *batch, D)))


def transcribed(name, cell, xs):
    """Outputs of every step by the transcription, from a state of zeros."""
    step = CELLS[name][1]
    state = np.zeros(H) if "LSTM" not in name else (np.zeros(H), np.zeros(H))
    outputs = []
    for x in np.asarray(xs):
        state = step(cell, state, x)
        outputs.append(state if isinstance(state, np.ndarray) else state[0])
    return np.stack(outputs), state


def gap(a, b):
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CELLS)
def test_unrolled_gradients_agree_with_finite_differences_of_the_transcription(name):
    cell, xs = randomized(name), inputs()
    arrays, static = eqx.partition(cell, eqx.is_array)
    flat = flattened(arrays)
    weights = np.random.default_rng(2).normal(size=(STEPS, H))

    def loss(arrays, recompute):
        return jnp.sum(nn.unroll(eqx.combine(arrays, static), xs, recompute=recompute)[1] * weights)

    slope = jax.jit(jax.grad(loss), static_argnums=1)

    def oracle(flat):
        return float(np.sum(transcribed(name, moved(name, flat), xs)[0] * weights))

    gradient = flattened(slope(arrays, False))
    assert gap(flattened(slope(arrays, True)), gradient) <= 1e-12 * np.linalg.norm(gradient)
    step = 1e-4
    for direction in np.random.default_rng(3).normal(size=(4, flat.size)) / np.sqrt(flat.size):
        values = [oracle(flat + k * step * direction) for k in (-2, -1, 1, 2)]
        difference = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        assert abs(difference - gradient @ direction) <= 1e-8 * max(1.0, np.linalg.norm(gradient))
        assert abs(difference - 1.001 * gradient @ direction) > 1e-8 or abs(difference) < 1e-4


@pytest.mark.parametrize("name", ["LayerNormRNN", "LayerNormLSTM", "GRU"])
def test_padding_changes_nothing(name):
    cell, xs = randomized(name), inputs(batch=(4,))
    lengths = np.array([STEPS, 3, 1, 0])
    spoilt = np.where((np.arange(STEPS)[:, None] >= lengths[None])[..., None], np.nan, xs)
    final, outputs = jax.tree.map(np.asarray, unroll(cell, spoilt, lengths=lengths))
    for n, length in enumerate(lengths):
        alone, steps = unroll(cell, np.asarray(xs)[:length, n])
        assert gap(outputs[:length, n], steps) <= 1e-14 if length else True
        np.testing.assert_array_equal(outputs[length:, n], 0)
        for whole, single in zip(jax.tree.leaves(final), jax.tree.leaves(alone), strict=True):
            assert gap(whole[n], single) <= 1e-14
    gradient = jax.jit(jax.grad(lambda v: jnp.sum(nn.unroll(cell, v, lengths=lengths.tolist())[1])))(spoilt)
    assert np.isfinite(gradient).all()


def test_gains_start_as_ones_and_biases_as_zeros():
    cell = nn.LayerNormLSTM(D, H, key=jax.random.key(0))
    for norm in (cell.recurrent_norm, cell.input_norm, cell.cell_norm):
        np.testing.assert_array_equal(norm.gain, 1)
        np.testing.assert_array_equal(norm.bias, 0)


def test_layer_norm_rnn_is_invariant_to_scaling_all_summed_inputs():
    cell = nn.LayerNormRNN(D, H, key=jax.random.key(0), exact=True)

    def weights(cell):
        return cell.recurrent_weights, cell.input_weights

    xs = np.asarray(inputs(), np.float32)
    _, outputs = unroll(cell, xs)
    for power in (-30, 30):
        scaled = eqx.tree_at(weights, cell, tuple(w * 2.0**power for w in weights(cell)))
        np.testing.assert_array_equal(unroll(scaled, xs)[1], outputs)
    halved = eqx.tree_at(weights, cell, (cell.recurrent_weights, cell.input_weights / 2))
    assert gap(unroll(halved, xs)[1], outputs) > 1e-2


def test_cells_start_from_given_states_and_train_at_the_state_of_zeros():
    cell, xs = randomized("LayerNormLSTM"), np.asarray(inputs(batch=(2,)))
    middle, first = unroll(cell, xs[:4])
    final, second = unroll(cell, xs[4:], middle)
    whole, outputs = unroll(cell, xs)
    assert gap(np.concatenate([first, second]), outputs) <= 1e-14
    assert gap(final.cell, whole.cell) <= 1e-14
    exact = nn.LayerNormLSTM(D, H, key=jax.random.key(0), exact=True)
    gradients = eqx.filter_jit(eqx.filter_grad(lambda c: jnp.sum(nn.unroll(c, np.float32(xs))[1])))(exact)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


BAD = {
    "other inputs": (lambda c: c(c.initial_state(), jnp.ones(D + 1)), "last axis of D = 3"),
    "integers": (lambda c: nn.unroll(c, jnp.ones((2, D), int)), "floating point"),
    "no time axis": (lambda c: nn.unroll(c, jnp.ones(D)), "time first"),
    "lengths of another batch": (
        lambda c: nn.unroll(c, jnp.ones((2, 4, D)), lengths=jnp.ones(3, int)),
        "lengths",
    ),
    "fractional lengths": (
        lambda c: nn.unroll(c, jnp.ones((2, 4, D)), lengths=jnp.ones(4)),
        "lengths must be int",
    ),
    "per gate without gates": (
        lambda c: nn.LayerNormLSTM(D, H, key=jax.random.key(0), output_only=True, per_gate=True),
        "output_only=True leaves the gates unnormalized",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_clear_error(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call(nn.RNN(D, H, key=jax.random.key(0)))
