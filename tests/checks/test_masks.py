"""A mask that a norm is given and does not use is a finding, measured on both sides of it."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from flax import linen, nnx

from tests.checks.test_places import layer_norm, normal

X = normal(6, 7, 8)
MASK = np.arange(7)[None] < np.array([3, 4, 5, 6, 7, 2])[:, None]


class Norm(nnx.Module):
    """A batch norm that is given a mask."""

    def __init__(self, statistics):
        self.scale, self.statistics = nnx.Param(jnp.linspace(0.5, 1.5, 8, dtype=jnp.float32)), statistics

    def __call__(self, x, mask):
        mean, var = self.statistics(x, mask)
        return (x - mean) / jnp.sqrt(var + 1e-5) * self.scale[...].astype(x.dtype)


def over(x, weight):
    total = weight.sum()
    mean = (x * weight).sum((0, 1), keepdims=True) / total
    return mean, (jnp.square(x - mean) * weight).sum((0, 1), keepdims=True) / total


STATISTICS = {
    "all": lambda x, mask: over(x, jnp.ones((*x.shape[:2], 1), x.dtype)),
    "where it is true": lambda x, mask: over(x, mask[..., None].astype(x.dtype)),
    "where it is false": lambda x, mask: over(x, 1 - mask[..., None].astype(x.dtype)),
}


class Model(nnx.Module):
    def __init__(self, norm):
        self.norm = norm

    def __call__(self, x, mask):
        return self.norm(x, mask)


@pytest.mark.parametrize("which", STATISTICS)
def test_a_mask_that_is_not_used_is_a_finding(which):
    norm = type("MaskedBatchNorm", (Norm,), {})(STATISTICS[which])
    report = lg.check_model(Model(norm), (X, MASK))
    names = [f.name for f in report["norm"].findings]
    assert names == (["mask"] if which == "all" else []), str(report)
    if which == "all":
        assert "outputs where mask is 1 change by" in report["norm"].findings[0].message


def test_a_norm_within_a_position_needs_no_mask():
    norm = type(
        "LayerNorm", (Norm,), {"__call__": lambda self, x, mask: layer_norm(x) * self.scale[...].astype(x.dtype)}
    )
    assert not lg.check_model(Model(norm(None)), (X, MASK)).differs


@pytest.mark.parametrize("kind", ["batch", "group", "layer"])
def test_stock_norms_that_use_their_mask_give_no_finding(kind):
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, mask, train=False):
            each = jnp.broadcast_to(mask[..., None], x.shape)
            if kind == "batch":
                return linen.BatchNorm(use_running_average=not train)(x, mask=each)
            return linen.GroupNorm(2)(x, mask=each) if kind == "group" else linen.LayerNorm()(x, mask=jnp.arange(8) < 6)

    model = Net()
    report = lg.check_model((model, model.init(jax.random.key(0), X, MASK)), (X, MASK))
    assert report.norms[0].checked
    assert not report.differs, str(report)


def test_labels_of_samples_are_no_mask():
    class Conditional(nnx.Module):
        def __init__(self):
            self.gains = nnx.Param(jnp.asarray(1 + normal(2, 8)))

        def __call__(self, x, label):
            return layer_norm(x, 0) * self.gains[...].astype(x.dtype)[label]

    norm = type("ConditionalBatchNorm", (Conditional,), {})()
    report = lg.check_model(Model(norm), (normal(9, 8), np.array([0, 1, 0, 1, 1, 0, 0, 1, 1])))
    assert report["norm"].findings == (), str(report)


@pytest.mark.parametrize("ok", [False, True])
def test_a_mask_that_multiplies_outputs_alone_is_a_finding(ok):
    class Zeroed(Norm):
        def __call__(self, x, mask):
            return super().__call__(x, mask) * mask[..., None].astype(x.dtype)

    norm = type("MaskedBatchNorm", (Zeroed,), {})(STATISTICS["where it is true" if ok else "all"])
    report = lg.check_model(Model(norm), (X, MASK))
    assert [f.name for f in report["norm"].findings] == ([] if ok else ["mask"]), str(report)
    if not ok:
        assert "those where it is 0 are zero: it is masked, but in the statistics" in report["norm"].findings[0].message
