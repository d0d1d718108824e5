"""Sums over samples, and transposes of linear maps, in the form that a CPU multiplies fastest."""

import jax
import jax.numpy as jnp
import lngeom as lg
import pytest
from lngeom._numerics import agreement
from lngeom.information import _contraction, _linearization
from lngeom.information._contraction import TransposedSamples, over_samples, transpose

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


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize(("samples", "blocks"), [(1, 1), (200, 1), (257, 1), (260, 2), (768, 3), (5000, 20)])
def test_transposed_samples_sum_as_the_product(samples, blocks, dtype):
    a = jax.random.normal(jax.random.key(0), (samples, 64), dtype)
    b = jax.random.normal(jax.random.key(1), (samples, 48), dtype)
    kept = TransposedSamples(a, columns=48)
    assert len(kept.blocks) == (blocks if dtype == jnp.float64 else 1)
    assert agreement(jax.jit(TransposedSamples.sum)(kept, b), b.T @ a).agrees
    assert agreement(jax.vmap(kept.sum)(jnp.stack([b, 2 * b]))[1], 2 * b.T @ a).agrees
    pulled = jax.linear_transpose(kept.sum, b)(jnp.ones((48, 64), dtype))[0]
    assert agreement(pulled, jnp.broadcast_to(jnp.sum(a, 1, keepdims=True), b.shape)).agrees
    assert not agreement(kept.sum(b.at[-1].mul(1.01)), b.T @ a).agrees


@pytest.mark.parametrize(("columns", "blocks"), [(32, 1), (33, 2), (64, 2), (65, 1)])
def test_only_sums_that_fill_a_cache_are_made_of_blocks(columns, blocks):
    kept = TransposedSamples(jnp.ones((512, 64)), columns)
    assert kept.blocks.shape == (blocks, 64, 512 // blocks)


@pytest.mark.parametrize("constant", [False, True])
def test_what_a_pull_sums_is_computed_before_the_product_by_blocks(monkeypatch, constant):
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=64, outputs=64, dtype=jnp.float64)
    at = lg.fisher(model, params, jax.random.normal(jax.random.key(1), (512, 64))).stored.pullback.derivative.at
    assert at.transposed.blocks.shape == (2, 64, 256)

    def product_multiplies():
        y = jnp.ones((512, 64))
        lowered = jax.jit(lambda y: at.pull(y)).lower(y) if constant else jax.jit(lambda at, y: at.pull(y)).lower(at, y)
        (body,) = [part for part in lowered.compile().as_text().split("\n\n") if "dot(" in part]
        return " multiply(" in body

    assert not product_multiplies()
    monkeypatch.setattr(_linearization.jnp, "where", lambda condition, value, other: value)
    assert product_multiplies()


@pytest.mark.parametrize(
    "normalizer", [lg.normalizers.LayerNorm(), lg.normalizers.RMSNorm(), lg.normalizers.WeightNorm()]
)
def test_a_product_by_blocks_is_that_of_the_function(normalizer):
    model = lg.NormalizedGLM(normalizer, lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=64, outputs=64, dtype=jnp.float64)
    inputs = jax.random.normal(jax.random.key(1), (520, 64))
    v = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), params)
    F = lg.fisher(model, params, inputs)
    assert len(F.stored.pullback.derivative.at.transposed.blocks) == 4
    expected = lg.fisher(model.natural_parameters, params, inputs, family=model.family).mv(v)
    assert all(
        agreement(*pair).agrees for pair in zip(jax.tree.leaves(F.mv(v)), jax.tree.leaves(expected), strict=True)
    )
    other = lg.fisher(model, params, inputs.at[-1, 0].add(0.01)).mv(v)
    assert not agreement(other.weights, expected.weights).agrees


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
