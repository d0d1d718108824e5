"""Sums over samples, and transposes of linear maps, in the form that a CPU multiplies fastest."""

import jax
import jax.numpy as jnp
import pytest
from lngeom._numerics import agreement
from lngeom.information import _contraction
from lngeom.information._contraction import over_samples, transpose

X = jax.random.normal(jax.random.key(0), (30, 4))
TOKENS = jax.random.normal(jax.random.key(1), (6, 5, 4))
SLOW = "lhs_contracting_dims={0}, rhs_contracting_dims={0}"


def dense(kernel):
    return X.astype(kernel.dtype) @ kernel


def tokens(kernel):
    return jnp.einsum("ntd,dh->nth", TOKENS.astype(kernel.dtype), kernel)


def nested(kernel):
    return jax.jit(lambda k: 2 * dense(k))(kernel) - dense(kernel[::-1])


def batched(kernel):
    return jnp.einsum("nd,dhk->hnk", X.astype(kernel.dtype), jnp.stack([kernel, -kernel], 2))


@pytest.mark.parametrize("linear", [dense, tokens, nested, batched])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_the_transpose_is_that_of_jax(linear, dtype):
    kernel = jax.ShapeDtypeStruct((4, 3), dtype)
    y = jax.random.normal(jax.random.key(2), jax.eval_shape(linear, kernel).shape, jax.eval_shape(linear, kernel).dtype)
    expected = jax.linear_transpose(linear, kernel)(y)[0]
    found = jax.jit(transpose(linear, kernel))(y)
    assert found.dtype == dtype
    assert agreement(found, expected).agrees
    assert agreement(jax.vmap(transpose(linear, kernel))(y[None])[0], expected).agrees
    assert not agreement(transpose(lambda k: linear(k[:, ::-1]), kernel)(y), expected).agrees


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_sums_over_samples_can_be_differentiated_and_batched(dtype):
    a, b = X.astype(dtype), X[:, :3].astype(dtype) ** 2
    assert agreement(over_samples(a, b), a.T @ b).agrees
    assert agreement(jax.vmap(over_samples, (0, None))(jnp.stack([a, 2 * a]), b)[1], 2 * a.T @ b).agrees
    slope = jax.grad(lambda a: jnp.sum(over_samples(a, b) ** 2))(a)
    assert agreement(slope, jax.grad(lambda a: jnp.sum((a.T @ b) ** 2))(a)).agrees


def test_no_float64_product_on_a_cpu_sums_over_the_first_axis_of_both(monkeypatch):
    def compiled():
        def pull(x, y):
            return transpose(lambda kernel: x @ kernel, jax.ShapeDtypeStruct((4, 3), jnp.float64))(jnp.sin(y))

        return jax.jit(pull).lower(X, X[:, :3]).compile().as_text()

    assert " dot(" in compiled()
    assert SLOW not in compiled()
    monkeypatch.setattr(_contraction, "over_samples", lambda a, b: a.T @ b)
    assert SLOW in compiled()


def test_other_devices_keep_their_own_form():
    traced = jax.jit(over_samples).trace(X, X)
    assert "optimization_barrier" in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "optimization_barrier" not in traced.lower(lowering_platforms=("cuda",)).as_text()
