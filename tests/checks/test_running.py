"""How a step of training moves running statistics is measured, and evaluation is compared with training there."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from flax import linen, nnx

from tests.checks.test_places import normal


class Stat(nnx.Variable):
    pass


def batch_norm(targets=lambda mean, var, square: (mean, var), *, weight=0.1, kept=None, kind="BatchNorm"):
    """A batch norm with running statistics r' = kept r + weight s for given s."""

    class Norm(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.linspace(0.5, 1.7, 8, dtype=jnp.float32))
            self.mean, self.var = Stat(jnp.zeros(8, jnp.float32)), Stat(jnp.ones(8, jnp.float32))
            self.use_running_average = False

        def __call__(self, x):
            mean, var = x.mean(0), x.var(0)
            stored = self.mean[...], self.var[...]
            if self.use_running_average:
                mean, var = stored
            else:
                new = targets(mean, var, jnp.square(x).mean(0))
                old = 1 - weight if kept is None else kept
                for variable, r, s in zip((self.mean, self.var), stored, new, strict=True):
                    variable[...] = (old * r + weight * s).astype(r.dtype)
            return (x - mean[None]) / jnp.sqrt(var[None] + 1e-5) * self.scale[...].astype(x.dtype)[None]

    Norm.__name__ = kind
    return Norm()


FAULTY = {
    "standard deviation": (
        lambda mean, var, square: (mean, jnp.sqrt(var)),
        "var 0.1 of the way to the standard deviation",
    ),
    "mean square": (lambda mean, var, square: (mean, square), "var 0.1 of the way to the mean square of the batch"),
    "swapped": (lambda mean, var, square: (var, mean), "var 0.1 of the way to the mean of the batch"),
    "inverse": (lambda mean, var, square: (mean, 1 / jnp.sqrt(var)), "var 0.1 of the way to the inverse standard"),
    "one for all": (
        lambda mean, var, square: (mean, var.mean() + 0 * var),
        "var 0.1 of the way to no mean or variance",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_statistics_of_another_kind_are_a_finding_and_named(name):
    targets, said = FAULTY[name]
    norm = lg.check_model(batch_norm(targets), normal(9, 8))[""]
    assert [f.name for f in norm.findings] == ["running statistics"]
    assert said in norm.note


def test_statistics_that_are_summed_are_a_finding():
    norm = lg.check_model(batch_norm(weight=1.0, kept=0.9), normal(9, 8))[""]
    assert [f.name for f in norm.findings] == ["running statistics"]


def test_the_weight_of_a_batch_and_the_divisor_of_the_variance_are_measured():
    biased = lg.check_model(batch_norm(weight=0.9), normal(9, 8))[""]
    assert "mean 0.9 of the way to the mean of the batch, var 0.9 of the way to the variance of the batch over m" in (
        biased.note
    )
    unbiased = lg.check_model(batch_norm(lambda mean, var, square: (mean, var * 6 / 5)), normal(9, 8))[""]
    assert "over m − 1" in unbiased.note
    assert (biased.findings, unbiased.findings) == ((), ())


def trained_linen(steps):
    X = normal(9, 8)
    model, key = linen.BatchNorm(), jax.random.key(0)
    variables = model.init(key, X, use_running_average=False)
    for _ in range(steps):
        after = model.apply(variables, X, use_running_average=False, mutable=["batch_stats"])[1]
        variables = {**variables, **after}
    return (model, variables), X


def trained_equinox(steps, mode):
    X = normal(6, 8, 5)
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(8, "batch", mode=mode, dtype=jnp.float32)
    run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    for _ in range(steps):
        state = run(jnp.asarray(X), state)[1]
    return (model, state), X


@pytest.mark.parametrize("steps", [0, 1, 3, 20])
def test_stock_batch_norms_of_any_history_give_no_finding(steps):
    for model, X in (trained_linen(steps), trained_equinox(steps, "batch"), trained_equinox(steps, "ema")):
        report = lg.check_model(model, X)
        assert not report.differs, str(report)
        (norm,) = report.norms
        assert "0.01 of the way to the variance of the batch over m" in norm.note


def test_a_moving_average_in_training_is_said_to_be_one():
    (norm,) = lg.check_model(*trained_equinox(2, "ema")).norms
    assert (norm.like, norm.differences, norm.findings) == (None, (), ())
    assert "in training its outputs depend on its running statistics and on the batch" in norm.note


@pytest.mark.peers
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_stock_batch_norms_of_torch_and_keras_give_no_finding(steps):
    import keras
    import torch
    from torch import nn

    X = normal(6, 8, 5)
    built = nn.BatchNorm1d(8), nn.BatchNorm1d(8, momentum=None), nn.InstanceNorm1d(8, track_running_stats=True)
    for norm in built:
        for i in range(steps):
            norm(torch.tensor(X + i))
        report = lg.check_model(norm, X)
        assert not report.differs, str(report)
        assert "over m − 1" in report[""].note
    model = keras.Sequential([keras.layers.BatchNormalization(name="norm")])
    for _ in range(steps):
        model(X, training=True)
    report = lg.check_model(model, X)
    assert not report.differs, str(report)
    assert "variance of the batch over m" in report.norms[-1].note


def test_a_history_with_other_data_is_a_note_and_no_finding():
    norm = batch_norm()
    for _ in range(100):
        norm(jnp.asarray(normal(9, 8, offset=30.0, scale=5.0)))
    (found,) = lg.check_model(norm, normal(9, 8)).norms
    assert found.findings == ()
    assert "evaluation differs from training by" in found.note
    assert np.isfinite(found.eps_share)
