"""Norms of linen models inside of scan, remat, jit and vmap: their weights are known, or the reason is said."""

import flax.linen as linen
import jax
import numpy as np
import pytest
from lngeom import check_model
from lngeom.checks.recorded import layers_of

X = jax.random.normal(jax.random.key(0), (16, 8), "float32")


@pytest.fixture(autouse=True)
def usual_promotion():
    """linen mixes dtypes, which the suite forbids elsewhere."""
    with jax.numpy_dtype_promotion("standard"):
        yield


class Block(linen.Module):
    @linen.compact
    def __call__(self, x, _=None):
        return x + linen.Dense(8)(linen.LayerNorm()(x)), None


class Scanned(linen.Module):
    @linen.compact
    def __call__(self, x):
        stack = linen.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return stack()(x, None)[0]


class Mapped(linen.Module):
    @linen.compact
    def __call__(self, x):
        options = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "in_axes": None, "axis_size": 3}
        return linen.LayerNorm()(linen.vmap(Block, **options)()(x)[0].sum(0))


class Once(linen.Module):
    lift: str

    @linen.compact
    def __call__(self, x):
        return getattr(linen, self.lift)(Block)()(x)[0]


def initialized(model):
    params = model.init(jax.random.key(1), X)
    return jax.tree.map(lambda v: v + 0.3 * jax.random.normal(jax.random.key(v.size), v.shape, v.dtype), params)


def norms(model, params):
    return [layer for layer in layers_of((model, params), X) if layer.kind == "LayerNorm"]


def test_each_step_of_a_scan_is_a_layer_with_its_own_weights():
    model = Scanned()
    params = initialized(model)
    found = norms(model, params)
    assert [layer.path.rsplit("/", 1)[1] for layer in found] == [f"LayerNorm_0[{i}]" for i in range(3)]
    x, block = X, Block()
    for i, layer in enumerate(found):
        own = jax.tree.map(lambda v: v[i], params["params"]["ScanBlock_0"])  # noqa: B023
        np.testing.assert_array_equal(layer.parameters["params.scale"], own["LayerNorm_0"]["scale"])
        np.testing.assert_allclose(layer.inputs, x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(layer.run(layer.inputs), layer.outputs, rtol=1e-5, atol=1e-6)
        x = block.apply({"params": own}, x)[0]
    report = check_model((model, params), X)
    assert [placed.path.rsplit("/", 1)[1] for placed in report.norms] == [f"LayerNorm_0[{i}]" for i in range(3)]
    assert not report.unchecked


@pytest.mark.parametrize("lift", ["remat", "jit"])
def test_a_norm_inside_of_remat_or_jit_is_checked(lift):
    model = Once(lift)
    params = initialized(model)
    (layer,) = norms(model, params)
    (name,) = params["params"]
    np.testing.assert_array_equal(layer.parameters["params.scale"], params["params"][name]["LayerNorm_0"]["scale"])
    report = check_model((model, params), X)
    assert len(report.norms) == 1
    assert not report.unchecked


def test_a_norm_inside_of_vmap_is_one_row_that_is_not_checked():
    model = Mapped()
    report = check_model((model, initialized(model)), X)
    assert [placed.path for placed in report.unchecked] == ["VmapBlock_0/LayerNorm_0"]
    assert [placed.path for placed in report.norms if placed.checked] == ["LayerNorm_0"]
