"""Norms are found by what they do, in the mode that the model runs, with all that they are given and return."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from flax import linen, nnx


def normal(*shape, scale=1.0, offset=0.0):
    return (np.random.default_rng(0).normal(size=shape) * scale + offset).astype(np.float32)


def rms(x, axis=-1):
    return x / jnp.sqrt(jnp.square(x).mean(axis, keepdims=True) + 1e-6)


def layer_norm(x, axis: int | tuple[int, ...] = -1):
    return (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + 1e-5)


def module(kind, call, units=8):
    """A module of flax.nnx with a gain, whose class has a name."""

    def __init__(self):
        self.scale = nnx.Param(jnp.linspace(0.5, 1.5, units, dtype=jnp.float32))

    return type(kind, (nnx.Module,), {"__init__": __init__, "__call__": call})()


def gain(self, x):
    return self.scale[...].astype(x.dtype)


def checked(report):
    return [n.path for n in report.norms if n.checked]


@pytest.mark.parametrize("kind", ["LinearRMSNorm", "_EinsumNorm", "ConvNeXtRMSNorm", "Standardize", "Whitening"])
def test_a_norm_is_found_whatever_the_name_of_its_class(kind):
    (norm,) = lg.check_model(module(kind, lambda self, x: rms(x) * gain(self, x)), normal(6, 8)).norms
    assert norm.checked
    assert (norm.like, norm.differences, norm.findings) == ("rms", (), ())


@pytest.mark.parametrize("function", [jax.nn.relu, jnp.tanh, jax.nn.softmax, jax.nn.sigmoid, jnp.sign, lambda x: 2 * x])
def test_a_function_that_is_no_norm_is_not_listed(function):
    assert lg.check_model(module("Layer", lambda self, x: function(x)), normal(6, 8)).norms == ()


class Net(nnx.Module):
    def __init__(self, norm, call):
        self.norm, self.call = norm, call

    def __call__(self, x):
        return self.call(self.norm, x)


def fused(self, x, residual=None, mask=None):
    s = x if residual is None else x + residual
    y = rms(s) * gain(self, x)
    return y if residual is None else (y, s)


def turned(self, x, residual):
    s = x + residual
    return s, {"normalized": rms(s) * gain(self, x)}


def gated(self, x, gate):
    return rms(x * jax.nn.silu(gate)) * gain(self, x)


def modulated(self, x, shift):
    return layer_norm(x) * gain(self, x) + shift


@pytest.mark.parametrize(
    ("norm", "call", "like"),
    [
        (fused, lambda norm, x: sum(norm(x, 2 * x)), "rms"),
        (fused, lambda norm, x: sum(norm(x, residual=x)), "rms"),
        (turned, lambda norm, x: norm(x, x)[1]["normalized"], "rms"),
        (gated, lambda norm, x: norm(x, gate=x), "rms"),
        (modulated, lambda norm, x: norm(x, x[:1]), "ln"),
    ],
    ids=["tuple", "by name", "second output", "gate", "modulated"],
)
def test_further_inputs_and_outputs_are_kept(norm, call, like):
    kind = "LayerNorm" if like == "ln" else "RMSNorm"
    report = lg.check_model(Net(module(kind, norm), call), normal(6, 8))
    assert checked(report) == ["norm"]
    assert (report["norm"].like, report.differs) == (like, False), str(report)


def test_a_masked_norm_is_examined():
    norm = nnx.LayerNorm(8, rngs=nnx.Rngs(0))
    mask = np.arange(8)[None] < 6
    report = lg.check_model(Net(norm, lambda norm, x: norm(x, mask=jnp.asarray(mask))), normal(6, 8))
    assert checked(report) == ["norm"]
    assert not report.differs, str(report)


@pytest.mark.parametrize(
    ("second", "said"),
    [(lambda y: 3e-3 * y, "call 2 is shown"), (lambda y: y + 3000, "call 2 is shown; in float32 outputs are up to")],
)
def test_the_worst_of_several_calls_is_shown(second, said):
    def one_pass(self, x):
        m = x.mean(-1, keepdims=True)
        variance = jnp.maximum(jnp.square(x).mean(-1, keepdims=True) - jnp.square(m), 0)
        return (x - m) / jnp.sqrt(variance + 1e-5) * gain(self, x)

    report = lg.check_model(Net(module("LayerNorm", one_pass), lambda n, x: n(second(n(x)))), normal(6, 8))
    assert report["norm"].calls == 2
    assert said in report["norm"].note
    linted = lg.lint(Net(module("LayerNorm", one_pass), lambda n, x: n(second(n(x)))), normal(6, 8))
    assert "in call 2 of 2" in linted.findings[0].consequence


def test_a_norm_that_is_not_called_is_listed_and_one_that_fails_is_one_row():
    class Model(nnx.Module):
        def __init__(self):
            self.first, self.second = module("LayerNorm", self.broken), nnx.LayerNorm(8, rngs=nnx.Rngs(0))
            self.third = nnx.RMSNorm(8, rngs=nnx.Rngs(0))
            self.calls = 0

        @staticmethod
        def broken(module, x):
            if x.dtype == jnp.float64 or np.any(np.abs(np.asarray(x)) > 1e4):
                raise RuntimeError("no such device")
            return layer_norm(x) * gain(module, x)

        def __call__(self, x):
            return self.second(self.first(x))

    report = lg.check_model(Model(), normal(6, 8))
    assert {n.path: n.checked for n in report.norms} == {"first": False, "second": True, "third": False}
    assert "not called" in report["third"].note
    assert not report.differs


def frozen_linen(stored):
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            return linen.BatchNorm(use_running_average=True)(linen.Dense(8)(x))

    model, X = Model(), normal(9, 5)
    variables = model.init(jax.random.key(0), X)
    if stored:
        variables["batch_stats"]["BatchNorm_0"]["mean"] = jnp.linspace(-1, 1, 8, dtype=jnp.float32)
    return (model, variables), X


@pytest.mark.parametrize("stored", [False, True])
def test_a_batch_norm_that_is_frozen_in_training_is_compared_with_the_row_of_evaluation(stored):
    report = lg.check_model(*frozen_linen(stored))
    assert report["BatchNorm_0"].like == "bn_evaluation"
    assert not report.differs
    assert "no step of training moves them" in report["BatchNorm_0"].note
    assert {f.rule for f in lg.lint(*frozen_linen(stored)).findings} == (set() if stored else {"running-statistics"})


@pytest.mark.parametrize("name", ["train", "training", "is_training", "use_running_average", "deterministic"])
@pytest.mark.parametrize("trains", [True, False])
def test_a_linen_model_whose_mode_is_an_attribute_is_examined_in_that_mode(name, trains):
    value = trains if "train" in name else not trains

    def call(self, x):
        x = linen.BatchNorm(use_running_average=not trains, name="norm")(linen.Dense(8, use_bias=False)(x))
        return linen.Dropout(0.5, deterministic=not trains)(x)

    kind = type("Model", (linen.Module,), {"__annotations__": {name: bool}, "__call__": linen.compact(call)})
    model, X = kind(**{name: value}), normal(9, 5)
    variables = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)
    for given in (model, (model, variables)):
        report = lg.check_model(given, X)
        assert report["norm"].like == ("bn" if trains else "bn_evaluation")
        assert not report.differs, str(report)
        mode = "training" if trains else "evaluation"
        assert f"the model has {name}={value} and with it one mode, {mode}" in report["norm"].note
        assert "used in training mode too" not in report["norm"].note
        assert not lg.lint(given, X).findings  # of the other mode nothing was seen


def test_a_call_that_sets_the_mode_decides_it():
    norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    report = lg.check_model(Net(norm, lambda n, x: n(x, use_running_average=True)), normal(9, 8))
    assert report["norm"].like == "bn_evaluation"
    assert not report.differs
    evaluated = lg.check_model(nnx.BatchNorm(8, rngs=nnx.Rngs(0)), normal(9, 8), training=False)
    assert (evaluated[""].like, evaluated.differs) == ("bn_evaluation", False)


@pytest.mark.thorough
def test_more_invariance_than_the_row_is_no_difference():
    X = normal(6, 5, 8)
    each = lg.check_model(nnx.GroupNorm(8, num_groups=8, rngs=nnx.Rngs(0)), X)
    assert (each[""].like, each.differs) == ("in", False), str(each)
    whole = lg.check_model(nnx.GroupNorm(8, num_groups=1, rngs=nnx.Rngs(0)), X)
    assert not whole.differs, str(whole)

    class LayerNorm(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return layer_norm(x) * self.weight

    heads = lg.check_model(LayerNorm(jnp.asarray(1 + normal(4, 6))), normal(5, 4, 6))
    assert (heads[""].like, heads[""].axis, heads.differs) == ("gn", (1, 2), False), str(heads)


def test_like_and_include():
    mixed = Net(module("LayerNorm", lambda self, x: rms(x) * gain(self, x)), lambda n, x: n(x))
    assert lg.check_model(mixed, normal(6, 8), like={"norm": "ln"}).differs  # by its name alone it is one with a note
    found = lg.check_model(mixed, normal(6, 8), like={"norm": "rms"})
    assert (found["norm"].like, found.differs) == ("rms", False)
    plain = nnx.Sequential(module("Layer", lambda self, x: x * gain(self, x)))
    assert lg.check_model(plain, normal(6, 8)).norms == ()
    included = lg.check_model(plain, normal(6, 8), include=["layers.0"])
    assert [(n.path, n.like, n.differences) for n in included.norms] == [("layers.0", None, ())]
    assert "nothing is normalized" in included["layers.0"].note
    assert lg.check_model(plain, normal(6, 8), like={"layers.0": "layer"}).differs
    with pytest.raises(ValueError, match="no layer head; there are"):
        lg.check_model(plain, normal(6, 8), like={"head": "ln"})
    with pytest.raises(ValueError, match="no method 'lyer': did you mean layer"):
        lg.check_model(plain, normal(6, 8), like={"norm": "lyer"})


def test_a_function_with_a_fixed_mean_square_that_cannot_be_examined_is_listed():
    class Head(nnx.Module):
        def __init__(self):
            self.mix = nnx.Linear(8, 5, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return rms(self.mix(x))

    report = lg.check_model(Head(), normal(6, 8))
    assert [n.checked for n in report.norms] == [False]
    assert "fixed mean square over axes 1" in report[""].note


def test_an_activation_after_the_norm_is_no_defect():
    report = lg.check_model(
        module("LayerNormRelu", lambda self, x: jax.nn.relu(layer_norm(x) * gain(self, x))), normal(6, 8)
    )
    assert not report.differs, str(report)
    assert "a further step follows" in report[""].note


@pytest.mark.thorough
@pytest.mark.parametrize("units", [4, 8, 16])
def test_a_variance_in_two_passes_is_not_said_to_be_of_one(units):
    def one_pass(a):
        m = a.mean(-1, keepdims=True)
        return (a - m) / jnp.sqrt((a * a).mean(-1, keepdims=True) - m * m + 1e-5)

    said = {f: str(lg.check_invariances(f, kind="summed", units=units)) for f in (layer_norm, one_pass)}
    assert "E[a²] − E[a]²" not in said[layer_norm]
    assert "E[a²] − E[a]²" in said[one_pass]


@pytest.mark.peers
def test_hooks_stay_and_other_parametrizations_are_no_norms():
    from torch import nn
    from torch.nn.utils import parametrizations, parametrize, prune

    class Scaled(nn.Module):
        def forward(self, w):
            return 0.5 * w

    hooked = nn.LayerNorm(6)
    hooked.register_forward_pre_hook(lambda m, args: (2 * args[0],))
    pruned, low, turned = nn.Linear(6, 6), nn.Linear(6, 6), parametrizations.orthogonal(nn.Linear(6, 6))
    prune.random_unstructured(pruned, "weight", 0.5)
    parametrize.register_parametrization(low, "weight", Scaled())
    spectral = nn.utils.spectral_norm(nn.Linear(6, 6))
    report = lg.check_model(nn.Sequential(hooked, pruned, low, turned, spectral, nn.LayerNorm(6)), normal(7, 6))
    assert [n.path for n in report.norms if "→" not in n.path] == ["0", "4", "5"]
    assert not report.differs, str(report)
    assert report["4"].like == "sn"
    assert hooked._forward_pre_hooks


@pytest.mark.peers
def test_weight_norm_of_convolutions_with_groups_is_examined_and_other_axes_are_named():
    from torch import nn
    from torch.nn.utils.parametrizations import weight_norm

    models = {
        "2d": (weight_norm(nn.Conv2d(8, 12, 3, groups=4, padding=1)), normal(3, 8, 5, 5)),
        "strided": (weight_norm(nn.Conv1d(6, 6, 4, groups=6, stride=2)), normal(3, 6, 9)),
        "other axis": (weight_norm(nn.Conv1d(8, 8, 3, groups=2), dim=2), normal(3, 8, 9)),
        "transposed": (weight_norm(nn.ConvTranspose1d(6, 4, 3)), normal(3, 6, 9)),
    }
    found = {name: lg.check_model(nn.Sequential(layer), X)["0"] for name, (layer, X) in models.items()}
    assert {name: (n.checked, n.differences, n.findings) for name, n in found.items()} == {
        "2d": (True, (), ()),
        "strided": (True, (), ()),
        "other axis": (False, (), ()),
        "transposed": (False, (), ()),
    }
    assert "could not be checked" in found["other axis"].note


@pytest.mark.peers
def test_modes_of_torch_and_keras_are_those_that_run():
    import keras
    import torch

    class Frozen(torch.nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[0].eval()
            return self

    report = lg.check_model(Frozen(torch.nn.BatchNorm1d(8)), normal(9, 8))
    assert (report["0"].like, report.differs) == ("bn_evaluation", False), str(report)
    tracked = torch.nn.InstanceNorm1d(4, track_running_stats=True)
    evaluated = lg.check_model(tracked, normal(6, 4, 5), training=False)
    assert (evaluated[""].like, evaluated.differs) == ("bn_evaluation", False), str(evaluated)
    assert lg.check_model(tracked, normal(6, 4, 5))[""].like == "in"

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.BatchNormalization(name="norm")

        def call(self, x, training=None):
            return self.norm(x, training=False)

    for model in (Model(), keras.Sequential([keras.layers.BatchNormalization(name="norm", trainable=False)])):
        found = lg.check_model(model, normal(9, 8))
        (norm,) = [n for n in found.norms if n.path.endswith("norm")]
        assert (norm.like, found.differs) == ("bn_evaluation", False), str(found)


@pytest.mark.parametrize("kind", ["T5LayerNorm", "LayerNorm"])
@pytest.mark.parametrize("shape", [(6, 8), (6, 5, 8)])
def test_an_rms_norm_that_is_called_a_layer_norm_is_judged_as_one_and_told_so(kind, shape):
    model = module(kind, lambda self, x: rms(x) * gain(self, x))
    (norm,) = lg.check_model(model, normal(*shape)).norms
    assert (norm.like, norm.differences, norm.findings) == ("rms", (), ())
    assert norm.note == f"its class is called {kind}; it is RMSNorm: no mean is subtracted"
    (asked,) = lg.check_model(model, normal(*shape), like={"": "ln"}).norms
    assert asked.differences == ("weight_matrix_recentering",)
    assert "is called" not in asked.note


def test_a_layer_norm_of_parts_without_a_mean_still_differs():
    def halves(self, x):
        return rms(x.reshape(-1, 2, 4)).reshape(x.shape) * gain(self, x)

    (norm,) = lg.check_model(module("LayerNorm", halves), normal(6, 8)).norms
    assert (norm.like, bool(norm.findings), norm.note) == ("ln", True, "")


class Viewed:
    """Group norms of torch whose views need the memory order of their inputs."""

    @staticmethod
    def model(view):
        import torch
        from torch import nn

        class GroupNorm(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

            def forward(self, x):
                grouped = view(x)
                centred = grouped - grouped.mean(-1, keepdim=True)
                spread = grouped.var(-1, unbiased=False, keepdim=True)
                whole = (centred / torch.sqrt(spread + 1e-5)).reshape(*x.shape[:2], -1)
                return whole.reshape(x.shape) * self.weight.view(1, 8, 1, 1)

        return nn.Sequential(nn.Identity(), GroupNorm())


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_probes_have_the_memory_order_of_the_inputs(dtype):
    import torch

    X = torch.tensor(normal(5, 8, 4, 4))
    last = X.contiguous(memory_format=torch.channels_last)

    def flat(x):
        return x.view(x.shape[0], 2, -1)

    def last_flat(x):  # only a view where channels are last in memory
        pixels = x.permute(0, 2, 3, 1).view(len(x), -1, 8)
        return pixels.transpose(1, 2).reshape(len(x), 2, -1)

    for view, inputs in ((flat, X), (last_flat, last)):
        model = Viewed.model(view).to(getattr(torch, dtype))
        report = lg.check_model(model, inputs)
        assert checked(report) == ["1"], str(report)
        assert (report["1"].like, report["1"].differences, report["1"].findings) == ("gn_spatial", (), ())


@pytest.mark.peers
def test_a_model_that_ends_in_an_examined_norm_is_not_listed_beside_it():
    import keras

    inputs = keras.Input((6, 6, 3))
    norm = keras.layers.LayerNormalization(axis=[1, 2, 3], name="norm")  # type: ignore[arg-type]
    model = keras.Model(inputs, norm(keras.layers.Conv2D(8, 3)(inputs)))
    report = lg.check_model(model, normal(5, 6, 6, 3))
    assert [n.path for n in report.norms] == ["norm"]
