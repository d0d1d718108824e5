"""Layers are their one index formula, in values and derivatives; cells are loops over their equations."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import strategies as st
from lngeom import nn
from lngeom.methods import readings
from lngeom.nn import _rows, dynamics, functional, fused, gated, recurrent

from tests.nn import test_fused as kernels, test_recurrent as cells
from tests.nn.test_accuracy import ADVERSARIAL, errors_of_rows
from tests.relations.relation import assert_close, fails, relation

SEEDS = st.integers(0, 999)
STEP = 1e-4
N = lg.normalizers


class Layer(NamedTuple):
    """A layer of (x, gain, bias, more) and what it computes by its index formula.

    Attributes:
        call: the layer of the library.
        formula: normalized values of the same arguments without gain and bias, over any numbers of NumPy.
        more: shape of further weights, or None.
    """

    call: Callable[..., jax.Array]
    formula: Callable[..., np.ndarray]
    more: tuple[int, ...] | None = None


def each_row(normalizer: Any, x: np.ndarray) -> np.ndarray:
    """A method of summed inputs x = W x with W = 1."""
    rows = x.reshape(-1, x.shape[-1])
    return readings.normalized(normalizer, np.eye(x.shape[-1], dtype=x.dtype), rows).reshape(x.shape)


def in_groups(groups: int, positions: int, eps: float, x: np.ndarray) -> np.ndarray:
    """Layer norm of each group of units, with the positions of its sample beside each other."""
    lead = x.ndim - 1 - positions
    split = np.moveaxis(x.reshape(*x.shape[:-1], groups, -1), -2, lead)
    rows = split.reshape(*split.shape[: lead + 1], -1)
    return np.moveaxis(each_row(N.LayerNorm(eps), rows).reshape(split.shape), lead, -2).reshape(x.shape)


def by_weights(eps: float, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    rows = readings.normalized(N.WeightNorm(eps), w, x.reshape(-1, x.shape[-1]))
    return rows.reshape(*x.shape[:-1], -1)


def layers(eps: float, groups: int, positions: int) -> dict[str, Layer]:
    def batch(x: Any, *affine: Any) -> jax.Array:
        return nn.batch_norm(x, *affine, eps=eps)[0]

    return {
        "layer": Layer(partial(nn.layer_norm, eps=eps), partial(each_row, N.LayerNorm(eps))),
        "rms": Layer(partial(nn.rms_norm, eps=eps), partial(each_row, N.RMSNorm(eps))),
        "fused": Layer(partial(nn.fused_layer_norm, eps=eps), partial(each_row, N.LayerNorm(eps))),
        "group": Layer(
            partial(nn.group_norm, groups=groups, positions=positions, eps=eps),
            partial(in_groups, groups, positions, eps),
        ),
        "batch": Layer(batch, partial(each_row, N.BatchNorm(eps))),
        "weight": Layer(
            lambda x, gain, bias, w: nn.weight_norm(x, w, gain, bias, eps=eps), partial(by_weights, eps), (6, 4)
        ),
    }


NAMES = tuple(layers(0.1, 1, 0))
H = 6


@relation(
    each={"name": NAMES}, seed=SEEDS, eps=st.sampled_from([1e-3, 0.3]), groups=st.sampled_from([1, 2, 3]),
    positions=st.sampled_from([0, 1, 2]), thorough=20,
)  # fmt: skip
def test_a_layer_and_its_derivatives_are_those_of_its_index_formula(name, seed, eps, groups, positions):
    """The tangent is that of complex steps, the pullback its transpose, a second derivative that of the formula."""
    rng = np.random.default_rng(seed)
    layer = layers(eps, groups, positions)[name]
    shapes = [(5, 2, 3, 4 if layer.more else H), (H,), (H,), *([layer.more] if layer.more else [])]
    at, t, u = ([rng.normal(size=shape) for shape in shapes] for _ in range(3))

    def formula(x: np.ndarray, gain: np.ndarray, bias: np.ndarray, *more: np.ndarray) -> np.ndarray:
        return layer.formula(x, *more) * gain + bias

    def slope(k: float) -> np.ndarray:
        """The tangent along t, by a complex step, k steps along u."""
        step = (a + k * STEP * b + 1e-30j * c for a, b, c in zip(at, u, t, strict=True))
        return formula(*step).imag / 1e-30

    @jax.jit
    def computed(at: list, t: list, u: list) -> tuple[Any, ...]:
        tangent = lambda *at: jax.jvp(layer.call, tuple(at), tuple(t))[1]  # noqa: E731
        y, pull = jax.vjp(layer.call, *at)
        cotangent = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        return y, tangent(*at), cotangent, pull(cotangent), jax.jvp(tangent, tuple(at), tuple(u))[1]

    y, tangent, cotangent, pulled, second = computed(at, t, u)
    assert_close(y, formula(*at), 1e-12)
    assert_close(tangent, slope(0), 1e-11)
    assert_close(sum(np.vdot(a, b) for a, b in zip(pulled, t, strict=True)), np.vdot(cotangent, slope(0)), 1e-10)
    bent = (slope(-2) - 8 * slope(-1) + 8 * slope(1) - slope(2)) / (12 * STEP)
    assert_close(second, bent, 1e-7)


@relation(
    seed=SEEDS, eps=st.sampled_from([1e-3, 0.3]), momentum=st.sampled_from([0.0, 0.3, 0.9]), unbiased=st.booleans(),
    thorough=40,
)  # fmt: skip
def test_batch_norm_stores_the_statistics_by_which_it_repeats_itself(seed, eps, momentum, unbiased):
    rng = np.random.default_rng(seed)
    x, (gain, bias, mean), variance = rng.normal(size=(4, 3, H)), rng.normal(size=(3, H)), 1 + rng.random(H)
    rows, stored = x.reshape(-1, H), functional.RunningStatistics(mean, variance)
    y, found = nn.batch_norm(jnp.asarray(x), gain, bias, eps=eps, unbiased=unbiased)
    expected = functional.RunningStatistics(rows.mean(0), rows.var(0, ddof=int(unbiased)))
    _, mixed = nn.batch_norm(jnp.asarray(x), gain, bias, stored, momentum=momentum, eps=eps, unbiased=unbiased)
    for now, old, new, both in zip(expected, stored, found, mixed, strict=True):
        assert_close(new, now, 1e-12)
        assert_close(both, momentum * old + (1 - momentum) * now, 1e-12)
    own = functional.RunningStatistics(rows.mean(0), rows.var(0))
    again, kept = nn.batch_norm(jnp.asarray(x), gain, bias, own, training=False, eps=eps)
    assert_close(again, y, 1e-12)
    assert all(np.array_equal(a, b) for a, b in zip(kept, own, strict=True))


@relation(each={"name": NAMES}, seed=SEEDS, shape=st.sampled_from([(H - 1,), (1,), (), (1, H), (2 * H,)]), thorough=20)
def test_a_gain_or_a_bias_of_another_shape_is_refused(name, seed, shape):
    layer = layers(0.1, 2, 0)[name]
    more = [np.ones(layer.more)] if layer.more else []
    vectors = [np.ones(H), np.ones(H)]
    vectors[seed % 2] = np.ones(shape)
    with pytest.raises(ValueError, match="gain must have shape" if seed % 2 == 0 else "bias must have shape"):
        jax.eval_shape(layer.call, np.ones((3, 4 if layer.more else H)), *vectors, *more)


@relation(sizes=st.tuples(*[st.integers(1, 2)] * 2), units=st.integers(1, 6), thorough=40)
def test_groups_of_one_number_are_refused_without_eps(sizes, units):
    """Their variance is always zero."""
    x = jax.ShapeDtypeStruct((3, *sizes, units), float)
    for groups, positions in itertools.product([k for k in range(1, units + 1) if units % k == 0], range(3)):
        norm = partial(nn.group_norm, groups=groups, positions=positions)
        assert jax.eval_shape(norm, x).shape == x.shape
        if np.prod(x.shape[3 - positions : 3], dtype=int) * units > groups:
            assert jax.eval_shape(partial(norm, eps=0.0), x).shape == x.shape
            continue
        with pytest.raises(ValueError, match="one unit is undefined"):
            jax.eval_shape(partial(norm, eps=0.0), x)


BAND = 128
"""Rows of one kind: as many as statistics are taken of together."""


@relation(seed=SEEDS, thorough=10)
def test_each_row_of_a_large_input_keeps_its_digits_whatever_the_others_are(seed):
    rng = np.random.default_rng(seed)
    kinds = (*ADVERSARIAL, lambda x: x)
    x, cotangent = rng.normal(size=(2, BAND * len(kinds), 1024)).astype(np.float32)
    for k, kind in enumerate(rng.permutation(len(kinds))):
        x[k * BAND : (k + 1) * BAND] = kinds[kind](x[k * BAND : (k + 1) * BAND])
    gain, bias = (rng.normal(size=1024).astype(np.float32) for _ in range(2))
    assert _rows.block_rows(*x.shape)
    assert max(errors_of_rows(x, gain, bias, cotangent)) <= 4 * np.finfo(np.float32).eps


@relation(
    rows=st.integers(1, 7), units=st.sampled_from([128, 256]), offset=st.sampled_from([0.0, 3.0]),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]), thorough=10,
)  # fmt: skip
def test_the_kernels_of_a_gpu_are_the_layer_rounded_once(rows, units, dtype, offset):
    arrays = kernels.case(rows, units, dtype, offset)
    exact = [jnp.asarray(a, jnp.float64) for a in arrays]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_blocks", lambda rows, each: min(rows, 3))
        found = kernels.pullback(kernels.interpreted, *arrays)
    for a, b in zip(found, kernels.pullback(nn.layer_norm, *exact), strict=True):
        assert kernels.error(a, b) < max(float(jnp.finfo(dtype).eps), 1e-6)


@relation(each={"name": tuple(cells.CELLS)}, seed=SEEDS, thorough=10)
def test_a_cell_is_a_loop_over_its_equations(name, seed):
    cell, xs = cells.randomized(name, seed), cells.inputs(seed + 1)
    outputs, final = cells.transcribed(name, cell, xs)
    state, found = cells.unroll(cell, xs[:-1])
    last = cell(state, xs[-1])
    assert_close(found, outputs[:-1], 1e-12)
    assert_close(cell.output(last), outputs[-1], 1e-12)
    for a, b in zip(jax.tree.leaves(last), np.atleast_2d(final), strict=True):
        assert_close(a, b, 1e-12)


FRESH = (nn.RNN, nn.LayerNormRNN, nn.LSTM, nn.LayerNormLSTM, nn.GRU, nn.LayerNormGRU)


@relation(each={"kind": FRESH}, seed=SEEDS, thorough=10)
def test_fresh_weights_are_independent_and_keep_the_size_of_their_inputs(kind, seed):
    cell = kind(24, 24, key=jax.random.key(seed))
    matrices = [np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(cell, eqx.is_array)) if leaf.ndim == 2]
    assert len(matrices) >= 2
    for w in matrices:
        assert abs(24 * np.mean(w**2) - 1) <= 6 * (2 / w.size) ** 0.5
    for v, w in itertools.combinations(matrices, 2):
        size = min(v.size, w.size)
        assert abs(24 * np.mean(v[:size] * w[:size])) <= 6 / size**0.5


@relation(each={"name": ("RNN", "LayerNormRNN")}, seed=SEEDS, thorough=10)
def test_growths_multiply_to_the_whole_derivative(name, seed):
    rng = np.random.default_rng(seed)
    cell, xs = cells.randomized(name, seed), cells.inputs(seed + 1)
    v, u = rng.normal(size=(2, cells.H)) * 10.0 ** rng.integers(-2, 3)
    found = dynamics.hidden_dynamics(cell, xs, jnp.asarray(v))
    assert_close(found.hidden, cells.unroll(cell, xs)[1], 1e-12)

    @jax.jit
    def last(start: jax.Array, xs: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, len(xs), lambda k, h: cell(h, xs[k]), start)

    tangent = jax.jvp(lambda h: last(h, xs), (jnp.zeros(cells.H),), (jnp.asarray(v),))[1]
    assert_close(np.sum(found.growth), np.log(np.linalg.norm(tangent) / np.linalg.norm(v)), 1e-9)
    growth = dynamics.gradient_growth(cell, xs, found.hidden, jnp.asarray(u))
    pulled = u @ np.asarray(jax.jacfwd(lambda h: last(h, xs[1:]))(found.hidden[0]))
    assert_close(np.sum(growth), np.log(np.linalg.norm(pulled) / np.linalg.norm(u)), 1e-9)


@relation(seed=SEEDS, steps=st.integers(1, cells.STEPS), thorough=20)
def test_recurrent_batch_norm_is_a_loop_and_repeats_itself_with_its_statistics(seed, steps):
    cell, xs = cells.randomized("RNN", seed), np.asarray(cells.inputs(seed + 1, batch=(4,)))
    h, expected = np.zeros((4, cells.H)), []
    for x in xs:
        a = h @ np.asarray(cell.recurrent_weights).T + x @ np.asarray(cell.input_weights).T
        n = (a - a.mean(0)) / np.sqrt(a.var(0) + functional.DEFAULT_EPS)
        h = np.tanh(n + np.asarray(cell.bias))
        expected.append(h)
    found, stored = dynamics.unroll_batch_norm(cell, jnp.asarray(xs))
    assert_close(found, np.stack(expected), 1e-11)
    again, _ = dynamics.unroll_batch_norm(cell, jnp.asarray(xs[:steps]), stored)
    assert_close(again, found[:steps], 1e-11)
    longer = jnp.asarray(np.concatenate([xs, xs[:steps]]))
    with pytest.raises(ValueError, match=f"none for steps {len(xs) + 1} to {len(longer)}"):
        dynamics.unroll_batch_norm(cell, longer, stored)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_compiled_programs")
class TestEachRelationNoticesAFault:
    def test_a_derivative_that_forgets_the_mean(self, monkeypatch):
        before = _rows._statistics_tangent
        wrong = lambda *a: before(*a)._replace(mean=jnp.zeros_like(a[3].rstd))  # noqa: E731
        monkeypatch.setattr(_rows, "_statistics_tangent", wrong)
        fails(test_a_layer_and_its_derivatives_are_those_of_its_index_formula, name=st.just("batch"))

    def test_a_second_derivative(self, monkeypatch):
        before = _rows._statistics_tangent
        wrong = lambda *a: before(*a)._replace(rstd=jnp.zeros_like(a[3].rstd))  # noqa: E731
        monkeypatch.setattr(_rows, "_statistics_tangent", wrong)
        fails(test_a_layer_and_its_derivatives_are_those_of_its_index_formula, name=st.just("layer"))

    def test_statistics_of_another_divisor(self, monkeypatch):
        before = functional.statistics
        monkeypatch.setattr(functional, "statistics", lambda rule, axis, x: before(rule._replace(eps=0.0), axis, x))
        fails(test_batch_norm_stores_the_statistics_by_which_it_repeats_itself)

    def test_vectors_of_any_shape(self, monkeypatch):
        monkeypatch.setattr(functional, "vector", lambda name, value, like, units, default: jnp.resize(value, units))
        fails(test_a_gain_or_a_bias_of_another_shape_is_refused)

    def test_widths_that_are_not_checked(self, monkeypatch):
        monkeypatch.setattr(functional, "_check_width", lambda *_: None)
        fails(test_groups_of_one_number_are_refused_without_eps)

    def test_a_pivot_that_is_not_checked(self, monkeypatch):
        monkeypatch.setattr(_rows, "_is_near", lambda correction, variance: jnp.full(variance.shape, True))
        fails(test_each_row_of_a_large_input_keeps_its_digits_whatever_the_others_are, draws=2)

    def test_a_mean_of_a_kernel(self, monkeypatch):
        monkeypatch.setattr(fused, "_mean", lambda row: 1.01 * jnp.sum(row) / row.shape[0])
        fails(test_the_kernels_of_a_gpu_are_the_layer_rounded_once, draws=4)

    def test_gates_in_another_order(self, monkeypatch):
        before = gated._gru_update
        monkeypatch.setattr(gated, "_gru_update", lambda h, g, *rest: before(h, jnp.roll(g, cells.H, -1), *rest))
        fails(test_a_cell_is_a_loop_over_its_equations, name=st.just("GRU"))

    def test_weights_of_one_key(self, monkeypatch):
        before = recurrent.normal_weights
        monkeypatch.setattr(recurrent, "normal_weights", lambda key, *rest: before(jax.random.key(0), *rest))
        fails(test_fresh_weights_are_independent_and_keep_the_size_of_their_inputs, kind=st.just(nn.RNN))

    def test_growths_of_other_steps(self, monkeypatch):
        before = dynamics.gradient_growth
        monkeypatch.setattr(dynamics, "gradient_growth", lambda *a: before(*a[:-1], -a[-1] + 1))
        fails(test_growths_multiply_to_the_whole_derivative)

    def test_statistics_of_all_steps_at_once(self, monkeypatch):
        before = dynamics.batch_norm
        monkeypatch.setattr(dynamics, "batch_norm", lambda a, gain, bias, *r, **k: before(a, gain, -bias, *r, **k))
        fails(test_recurrent_batch_norm_is_a_loop_and_repeats_itself_with_its_statistics)
