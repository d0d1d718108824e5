"""What a user hands in is afterwards as it was: modules with all they keep, inputs, and random generators."""

import random
import threading
from typing import Any

import lngeom as lg
import numpy as np
import pytest

pytestmark = pytest.mark.peers


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def counting():
    import torch
    from torch import nn

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("ema", torch.zeros(8))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.n, self.cache, self.last = 0, [], None
            self.lock = threading.Lock()
            self.inner = nn.LayerNorm(8)

        def forward(self, x):
            self.n += 1
            self.steps += 1
            self.ema = 0.9 * self.ema + x.mean(0) * 0.1
            self.cache.append(x)
            self.last = x
            return self.inner(x)

    return Counting()


def test_buffers_and_attributes_of_a_torch_module_stay():
    model = counting()
    report = lg.check_model(model, normal(6, 8))
    assert [n.path for n in report.norms if n.checked] == ["inner"]
    assert not report.differs
    assert (model.n, model.cache, model.last, int(model.steps)) == (0, [], None, 0)
    assert not model.ema.any()
    lg.lint(model, normal(6, 8))
    assert (model.n, model.cache, model.last, int(model.steps)) == (0, [], None, 0)


def test_buffers_with_a_gradient_can_be_copied():
    model = counting()
    model(model.inner.weight * 2 + __import__("torch").ones(6, 8))
    assert model.ema.grad_fn is not None
    start = model.ema.detach().clone()
    assert lg.check_model(model, normal(6, 8))["inner"].checked
    assert (model.n, len(model.cache)) == (1, 1)
    assert np.array_equal(model.ema.detach(), start)


def test_the_old_weight_norm_of_torch_can_be_copied(recwarn):
    from torch import nn

    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.LayerNorm(8))
    report = lg.check_model(model, normal(6, 8))
    assert report["1"].checked
    recwarn.clear()


def test_lazy_modules_are_refused_and_stay_lazy_and_hooks_run():
    import torch
    from torch import nn

    model, X = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d()), normal(6, 5)
    for check in (lg.check_model, lg.lint):
        with pytest.raises(ValueError, match=r"0 \(LazyLinear\) has parameters without a shape: materialize them"):
            check(model, X)
    assert isinstance(model[0].weight, nn.parameter.UninitializedParameter)
    model(torch.tensor(X))

    def double(part: Any, given: Any, outputs: Any) -> Any:
        return 2 * outputs

    handle = model[1].register_forward_hook(double)
    report = lg.check_model(model, X)
    assert (report["1"].kind, report["1"].checked) == ("BatchNorm1d", True)
    assert "factor" in {f.name for f in report["1"].findings}  # the hook ran on the copy too
    assert len(model[1]._forward_hooks) == 1
    handle.remove()
    assert not any(isinstance(v, torch.Tensor) for part in model.modules() for v in vars(part).values())


def seeded():
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


def draws():
    import torch

    return random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002


def test_random_generators_and_inputs_stay():
    import torch
    from torch import nn

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            random.random()
            np.random.rand()  # noqa: NPY002
            x.add_(torch.randn(8))
            return self.norm(x)

    seeded()
    expected = draws()
    seeded()
    X = torch.tensor(normal(6, 8))
    lg.check_model(nn.Sequential(Noisy(), nn.Dropout(0.5), nn.LayerNorm(8)), X)
    assert draws() == expected
    assert np.array_equal(X, normal(6, 8))


def test_variables_of_a_keras_model_stay():
    import keras

    class Counting(keras.Layer):
        def build(self, shape):
            self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False)
            self.n, self.cache = 0, []

        def call(self, x):
            self.steps.assign_add(1.0)
            self.n += 1
            self.cache.append(x)
            self.last = x
            return x

    model = keras.Sequential(
        [keras.Input((8,)), Counting(), keras.layers.Dropout(0.5), keras.layers.LayerNormalization()]
    )
    values = lambda: [np.array(v.value) for v in model.variables]  # noqa: E731
    before, counts = values(), model.layers[0].n
    report = lg.check_model(model, normal(6, 8))
    assert [n.checked for n in report.norms] == [True]
    assert all(np.array_equal(a, b) for a, b in zip(before, values(), strict=True))
    counting = model.layers[0]
    assert (counting.n, len(counting.cache)) == (counts, counts)
