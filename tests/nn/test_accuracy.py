"""Part of the promise: digits at any offset, bits at any power of two, in every dtype."""

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from lngeom import nn
from lngeom.nn import _rows

from tests.nn.oracle import residual, row_norm

pytestmark = pytest.mark.optimized

FLOAT32 = 3e-7
NORMS = {"layer": (nn.layer_norm, True), "rms": (nn.rms_norm, False)}


def problem(rows=64, width=1024, offset=0.0, scale=1.0, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    x = ((rng.normal(size=(rows, width)) + offset).astype(dtype) * np.asarray(scale, dtype)).astype(dtype)
    gain, bias = rng.normal(size=width) + 1, rng.normal(size=width)
    return x, gain.astype(np.float32), bias.astype(np.float32), rng.normal(size=(rows, width)).astype(dtype)


def value_and_gradients(norm, x, gain, bias, cotangent, **options):
    y, pullback = jax.vjp(lambda *args: norm(*args, **options), *map(jnp.asarray, (x, gain, bias)))
    return y, *pullback(jnp.asarray(cotangent))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("offset", [0.0, 10.0, 1e2, 1e3, 1e4, 1e5])
def test_layer_norm_keeps_its_digits_at_any_offset(offset, exact):
    x, gain, bias, ct = problem(offset=offset)
    y, dx, dgain, dbias = value_and_gradients(nn.layer_norm, x, gain, bias, ct, exact=exact)
    expected = row_norm(x, gain, bias, ct, 0 if exact else 1e-5)
    assert residual(y, expected[0]) <= FLOAT32
    assert residual(dx, expected[1]) <= FLOAT32
    assert residual(dgain, expected[2]) <= 2e-6
    assert residual(dbias, expected[3]) <= 2e-6


def test_one_pass_variance_fails_the_accuracy_test():
    x, gain, bias, ct = problem(offset=1e3)
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(x), -1, keepdims=True) - jnp.square(mean)
    y = (x - mean) / jnp.sqrt(variance + 1e-5) * gain[None] + bias[None]
    assert residual(y, row_norm(x, gain, bias, ct, 1e-5)[0]) > 1e-4


def offset(x):
    return x + np.float32(1e5)


def outliers_where_the_pivot_is_taken(x):
    x[::3, :: x.shape[1] // _rows.PIVOT_SAMPLES] += 1e4
    return x


def one_huge_first_entry(x):
    x[:, 0] = 1e6
    return x


def huge_first_entries(x):
    x[5, : _rows.PIVOT_SAMPLES] = 1e6
    return x


def half_at_another_level(x):
    x[:, x.shape[1] // 2 :] += 1e4
    return x


def constant_rows(x):
    x[7:90] = np.linspace(-1e3, 1e3, 83, dtype=np.float32)[:, None]
    return x


def one_distant_row(x):
    x[3, :-1:7] = 300.0
    x[3, :: x.shape[1] // _rows.PIVOT_SAMPLES] = -5e3
    return x


ADVERSARIAL = (
    offset,
    outliers_where_the_pivot_is_taken,
    one_huge_first_entry,
    huge_first_entries,
    half_at_another_level,
    constant_rows,
    one_distant_row,
)


def errors_of_rows(x, gain, bias, ct, norm=nn.layer_norm):
    """Largest error of y and of dx, each row on the scale of its own largest entry."""
    y, dx, *_ = value_and_gradients(norm, x, gain, bias, ct)
    wide = row_norm(x, gain, bias, ct, 1e-5)
    return tuple(
        float((np.abs(np.asarray(a) - e).max(-1) / np.abs(e).max(-1)).max())
        for a, e in zip((y, dx), wide[:2], strict=True)
    )


@pytest.mark.parametrize("rows", ADVERSARIAL, ids=lambda f: f.__name__)
def test_large_inputs_keep_their_digits_on_adversarial_rows(rows):
    x, gain, bias, ct = problem(rows=256)
    assert _rows.block_rows(*x.shape)
    assert max(errors_of_rows(rows(x), gain, bias, ct)) <= FLOAT32


def wrong_norm(center, one_pass=True):
    """Layer norm about a given center, with the variance in one pass or in two."""

    def norm(x, gain, bias):
        p = center(x)
        d = jnp.mean(x - p, -1, keepdims=True) if one_pass else jnp.zeros_like(p)
        variance = jnp.maximum(jnp.mean(jnp.square(x - p), -1, keepdims=True) - jnp.square(d), 0)
        return ((x - p) - d) / jnp.sqrt(variance + 1e-5) * gain[None] + bias[None]

    return norm


def coarse_mean(x):
    return jnp.mean(x, -1, keepdims=True).astype(jnp.bfloat16).astype(x.dtype)


WRONG = {
    offset: wrong_norm(lambda x: jnp.zeros_like(x[:, :1])),
    half_at_another_level: wrong_norm(coarse_mean, one_pass=False),
    one_huge_first_entry: wrong_norm(lambda x: x[:, :1]),
    huge_first_entries: wrong_norm(lambda x: jnp.mean(x[:, :16], -1, keepdims=True)),
    constant_rows: wrong_norm(coarse_mean, one_pass=False),
}


@pytest.mark.parametrize("rows", WRONG, ids=lambda f: f.__name__)
def test_a_wrong_center_fails_the_accuracy_test_on_adversarial_rows(rows):
    x, gain, bias, ct = problem(rows=256)
    assert max(errors_of_rows(rows(x), gain, bias, ct, WRONG[rows])) > FLOAT32


@pytest.mark.parametrize("rows", [outliers_where_the_pivot_is_taken, one_distant_row], ids=lambda f: f.__name__)
def test_an_unchecked_pivot_fails_the_accuracy_test(rows, monkeypatch):
    monkeypatch.setattr(_rows, "_is_near", lambda correction, variance: jnp.full(variance.shape, True))
    x, gain, bias, ct = problem(rows=256)
    assert max(errors_of_rows(rows(x), gain, bias, ct, partial(_rows.normalize_rows, _rows.Rule(1e-5), 64))) > FLOAT32


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 1])
def test_a_row_that_is_not_finite_leaves_the_others_alone(value, column):
    x, gain, bias, ct = problem(rows=256)
    x[70, column] = value
    others = np.arange(256) != 70
    y, dx, *_ = map(np.asarray, value_and_gradients(nn.layer_norm, x, gain, bias, ct))
    expected = row_norm(x[others], gain, bias, ct[others], 1e-5)
    assert np.isnan(y[70]).all()
    assert residual(y[others], expected[0]) <= FLOAT32
    assert residual(dx[others], expected[1]) <= FLOAT32
    assert residual(y, row_norm(np.where(others[:, None], x, 0), gain, bias, ct, 1e-5)[0]) > FLOAT32


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e-6, 1.0, 1e6, 1e18, 1e30])
def test_exact_norm_keeps_its_digits_at_any_scale(name, scale):
    norm, centered = NORMS[name]
    x, gain, bias, ct = problem(offset=3.0, scale=scale)
    y, dx, dgain, _ = value_and_gradients(norm, x, gain, bias, ct, exact=True)
    expected = row_norm(x, gain, bias, ct, 0, centered)
    assert residual(y, expected[0]) <= FLOAT32
    assert residual(dx, expected[1]) <= FLOAT32
    assert residual(dgain, expected[2]) <= 2e-6


def exact_norms():
    """Each layer with the statistics it takes, as a function of what Table 1 scales."""
    rng = np.random.default_rng(5)
    inputs = jnp.asarray(rng.normal(size=(7, 12)), jnp.float32)
    return {
        "layer": lambda a: nn.layer_norm(a, exact=True),
        "rms": lambda a: nn.rms_norm(a, exact=True),
        "group": lambda a: nn.group_norm(a, groups=3, exact=True),
        "instance": lambda a: nn.group_norm(a, groups=12, positions=1, exact=True),
        "batch": lambda a: nn.batch_norm(a, exact=True)[0],
        "weight": lambda w: nn.weight_norm(inputs, w, exact=True),
    }


@pytest.mark.parametrize("name", exact_norms())
@pytest.mark.parametrize("power", [-100, -40, -7, 7, 40, 100])
@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_exact_norm_is_bitwise_invariant_to_powers_of_two(name, power, offset):
    norm = exact_norms()[name]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(9, 12)) + offset, jnp.float32)
    scaled = x * jnp.float32(2.0**power)
    np.testing.assert_array_equal(norm(scaled), norm(x))


@given(
    name=st.sampled_from(list(exact_norms())),
    exponent=st.floats(-18, 18),
    seed=st.integers(0, 2**16),
)
def test_exact_norm_is_invariant_to_any_scale_in_float32(name, exponent, seed):
    norm = exact_norms()[name]
    x = np.random.default_rng(seed).normal(size=(9, 12)).astype(np.float32)
    assert residual(norm(jnp.asarray(x * np.float32(10.0**exponent))), norm(jnp.asarray(x))) <= 1e-6 * condition(x)


def condition(x):
    """How much the rounding of the scaled input is amplified: spread lost to the mean, along either axis."""
    return max(1.0, *(float(np.abs(x).max() / x.std(axis).min()) for axis in (0, 1)))


def test_layer_norm_with_eps_is_not_invariant_to_scaling():
    x, gain, bias, _ = problem()
    assert residual(nn.layer_norm(x * np.float32(1e-2), gain, bias), nn.layer_norm(x, gain, bias)) > 1e-2


@pytest.mark.parametrize("shift", [1.0, 1e3, 1e6])
def test_exact_layer_norm_of_a_rounded_shift_is_that_of_the_rounded_input(shift):
    x, gain, bias, ct = problem()
    shifted = x + np.float32(shift)
    y = nn.layer_norm(jnp.asarray(shifted), gain, bias, exact=True)
    assert residual(y, row_norm(shifted, gain, bias, ct, 0)[0]) <= FLOAT32
    bound = 4 * (shift + 5) * 2.0**-24
    assert residual(y, row_norm(x, gain, bias, ct, 0)[0]) <= max(bound, FLOAT32)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_constant_rows_give_the_bias_and_finite_gradients(norm):
    norm, centered = NORMS[norm]
    value = np.float32(0.1) if centered else np.float32(0.0)
    x, gain, bias, ct = problem(rows=4, width=37)
    x[1] = value
    y, dx, dgain, _ = value_and_gradients(norm, x, gain, bias, ct, exact=True)
    np.testing.assert_array_equal(y[1], bias)
    np.testing.assert_array_equal(dx[1], 0)
    assert np.isfinite(dx).all()
    assert np.isfinite(dgain).all()
    second = jax.jit(jax.hessian(lambda v: norm(v, exact=True).sum()))(jnp.full(5, value))
    assert np.isfinite(second).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 8), ("float16", 11), ("float64", 50)])
def test_other_dtypes_are_right_to_output_rounding(dtype, digits, exact):
    x, gain, bias, ct = problem(rows=8, width=300, offset=2.0)
    x, ct = jnp.asarray(x).astype(dtype), jnp.asarray(ct).astype(dtype)
    wide = jnp.float64 if dtype == "float64" else jnp.float32
    gain, bias = jnp.asarray(gain).astype(wide), jnp.asarray(bias).astype(wide)
    y, dx, dgain, _ = value_and_gradients(nn.layer_norm, x, gain, bias, ct, exact=exact)
    assert y.dtype == dx.dtype == x.dtype
    assert dgain.dtype == wide
    expected = row_norm(*(np.asarray(v.astype(jnp.float64)) for v in (x, gain, bias, ct)), 0 if exact else 1e-5)
    assert residual(y.astype(jnp.float64), expected[0]) <= 1.01 * 2.0**-digits
    assert residual(dx.astype(jnp.float64), expected[1]) <= 1.01 * 2.0**-digits


def test_residual_sees_a_wrong_number():
    assert residual(np.array([1.0, 2.0]), np.array([1.0, 2.2])) > 0.05
    assert residual(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == float("inf")


@pytest.mark.thorough
@pytest.mark.skipif(
    "xla_cpu_use_fusion_emitters" not in os.environ.get("XLA_FLAGS", ""), reason="is XLA's default here"
)
def test_accuracy_holds_as_xla_compiles_by_default():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
