"""The kernels for GPUs: interpreted, they agree with the rows of XLA and float64; they are lowered for CUDA."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
from lngeom import nn
from lngeom.nn import fused

pytestmark = pytest.mark.optimized

RNG = np.random.default_rng(0)


def case(rows, units, dtype="float32", offset=0.0):
    x = RNG.normal(size=(rows, units)) + offset
    vectors = (RNG.normal(size=units).astype(np.float32) for _ in range(2))
    return jax.device_put((x.astype(dtype), *vectors, RNG.normal(size=(rows, units)).astype(dtype)))


def pullback(function, x, gain, bias, cotangent):
    y, pull = jax.vjp(function, x, gain, bias)
    return y, *pull(cotangent)


def error(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.max(np.abs(a - b)) / np.max(np.abs(b))


@pytest.fixture(autouse=True)
def _few_blocks(monkeypatch):
    monkeypatch.setattr(fused, "_blocks", lambda rows, each: min(rows, 3))


interpreted = partial(nn.fused_layer_norm, interpret=InterpretGPUParams())


@pytest.mark.thorough
@pytest.mark.parametrize(("rows", "units"), [(1, 128), (2, 256), (7, 384)])
@pytest.mark.parametrize(("offset", "ahead"), [(0.0, 0), (1e5, fused.AHEAD)])
def test_values_and_gradients_are_those_of_float64(monkeypatch, rows, units, offset, ahead):
    monkeypatch.setattr(fused, "AHEAD", ahead)
    x, *rest = case(rows, units, offset=offset)
    wide = [jnp.asarray(a, jnp.float64) for a in (x, *rest)]
    found, expected = pullback(interpreted, x, *rest), pullback(nn.layer_norm, *wide)
    for name, a, b in zip(("y", "dx", "dgain", "dbias"), found, expected, strict=True):
        assert a.dtype == jnp.float32
        assert error(a, b) < 1e-6, name


@pytest.mark.thorough
def test_an_error_of_a_thousandth_would_be_seen(monkeypatch):
    monkeypatch.setattr(fused, "_mean", lambda row: 1.001 * jnp.sum(row) / row.shape[0])
    x, *rest = case(2, 128)
    assert error(pullback(interpreted, x, *rest)[1], pullback(nn.layer_norm, x, *rest)[1]) > 1e-4


def test_half_precision_is_rounded_once_and_leading_shapes_are_kept():
    x, gain, bias, _ = case(4, 128, "bfloat16")
    y = interpreted(x.reshape(2, 2, 128), gain, bias)
    assert y.dtype == jnp.bfloat16
    assert y.shape == (2, 2, 128)
    assert error(y.reshape(4, 128), nn.layer_norm(x.astype(jnp.float32), gain, bias)) < 2**-8


def test_a_multiprocessor_holds_as_many_blocks_as_its_registers():
    assert [fused._resident(units) for units in (128, 512, 1024, 2048, 4096, 8192)] == [8, 8, 5, 3, 2, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("units", [128, 1536, 8192])
def test_both_kernels_are_lowered_for_cuda(dtype, units):
    x, gain, bias, cotangent = case(5, units, dtype)
    kernel = partial(fused._fused, 1e-5, False)
    both = jax.jit(lambda *arguments: pullback(kernel, *arguments))
    text = both.trace(x, gain, bias, cotangent).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 2


@pytest.mark.parametrize(("shape", "dtype"), [((0, 128), "float32"), ((3, 100), "float32"), ((3, 128), "float64")])
def test_rows_that_the_kernels_do_not_take_go_to_xla(shape, dtype):
    x = jnp.asarray(RNG.normal(size=shape), dtype)
    assert not fused.is_supported(x)
    np.testing.assert_allclose(interpreted(x), nn.layer_norm(x), atol=1e-6)


def test_without_such_a_gpu_xla_is_taken_and_bad_input_is_refused():
    x, gain, *_ = case(3, 128)
    np.testing.assert_allclose(nn.fused_layer_norm(x, gain), nn.layer_norm(x, gain), atol=1e-6)
    with pytest.raises(ValueError, match="floating point"):
        nn.fused_layer_norm(jnp.ones((2, 128), jnp.int32))
    with pytest.raises(ValueError, match="gain must have shape"):
        nn.fused_layer_norm(x, gain[:-1])
    with pytest.raises(ValueError, match="at least 0"):
        nn.fused_layer_norm(x, eps=-1.0)
