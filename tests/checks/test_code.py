"""Norms that are lines of a forward pass, weights that a layer normalizes by itself, responses, and lifted layers."""

from typing import Any

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from flax import nnx
from lngeom.checks.recorded import layers_of

from tests.checks.test_places import checked, layer_norm, normal, rms

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def usual_promotion():
    """Models mix dtypes and ranks, which the suite forbids elsewhere."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def code(report):
    """Owners and functions of the rows of code, which are not checked."""
    rows = [n for n in report.norms if n.kind == "code"]
    assert not any(n.checked for n in rows)
    return [n.path.rpartition("():")[0] for n in rows]


def initialized(model, X):
    return model, model.init(KEY, X)


NORMS = {
    "standardize": lambda x: jax.nn.standardize(x, axis=-1),
    "layer norm": layer_norm,
    "root mean square": rms,
    "unit": lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
    "power": lambda x: x * (jnp.mean(x * x, -1, keepdims=True) + 1e-6) ** -0.5,
    "of the batch": lambda x: (x - x.mean(0)) / jnp.std(x, 0),
}
OTHERS = {
    "softmax": jax.nn.softmax,
    "gate": lambda x: x * jax.nn.sigmoid(x.mean(-1, keepdims=True)),
    "temperature": lambda x: x / jnp.sqrt(x.shape[-1]),
    "distance": lambda x: jnp.exp(-jnp.sqrt(jnp.sum(jnp.square(x[:, None] - x), -1))) @ x,
    "root of each value": lambda x: x * jnp.sqrt(jnp.abs(x)),
    "root of a map": lambda x: x * jnp.sqrt(jnp.abs(x @ jnp.eye(8))),
    "spread as a feature": lambda x: jnp.concatenate([x, x.std(-1, keepdims=True)], -1)[:, 1:],
    "weights": lambda x: x @ (w := jnp.arange(1.0, 65.0).reshape(8, 8)) / jnp.linalg.norm(w),
}


def linen_model(function):
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(function(linen.LayerNorm()(linen.Dense(8)(x))))

    return initialized(Net(), normal(6, 5))


def nnx_model(function):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.a, self.b, self.n = (
                nnx.Linear(5, 8, rngs=rngs),
                nnx.Linear(8, 3, rngs=rngs),
                nnx.LayerNorm(8, rngs=rngs),
            )

        def __call__(self, x):
            return self.b(function(self.n(self.a(x))))

    return Net(nnx.Rngs(0))


def equinox_model(function):
    class Net(eqx.Module):
        a: eqx.nn.Linear
        n: eqx.nn.LayerNorm
        b: eqx.nn.Linear

        @eqx.filter_jit
        def __call__(self, x):
            return self.b(function(self.n(self.a(x))[None])[0])

    return Net(eqx.nn.Linear(5, 8, key=KEY), eqx.nn.LayerNorm(8), eqx.nn.Linear(8, 3, key=KEY))


def haiku_model(function):
    import haiku as hk

    def net(x):
        h = hk.LayerNorm(-1, create_scale=True, create_offset=True)(hk.Linear(8)(x))
        return hk.Linear(3)(function(h))

    transformed = hk.transform(net)
    return transformed, transformed.init(KEY, normal(6, 5))


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("make", [linen_model, nnx_model])
def test_a_norm_in_a_forward_pass_is_a_row_with_its_place(make, name):
    report = lg.check_model(make(NORMS[name]), normal(6, 5))
    (owner,) = code(report)
    assert "__call__" in owner or "<lambda>" in owner or owner in {"rms", "layer_norm"}
    assert len(checked(report)) >= 1
    (row,) = (n for n in report.norms if n.kind == "code")
    assert ".py divides values by the root of a sum over them" in row.note


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("make", [linen_model, nnx_model, equinox_model])
def test_other_functions_in_a_forward_pass_are_no_norms(make, name):
    if make is equinox_model and name in {"distance", "weights"}:
        pytest.skip("one sample has no other samples")
    assert code(lg.check_model(make(OTHERS[name]), normal(6, 5))) == []


def test_programs_of_another_check_are_not_used_again():
    model, X = equinox_model(rms), normal(6, 5)
    first, second = (lg.check_model(model, X) for _ in range(2))
    assert code(first) == code(second) == ["rms"]
    assert checked(first) == checked(second)


@pytest.mark.peers
def test_a_norm_in_a_function_of_haiku_is_a_row():
    assert code(lg.check_model(haiku_model(rms), normal(6, 5))) == ["rms"]
    assert code(lg.check_model(haiku_model(jnp.tanh), normal(6, 5))) == []


@pytest.mark.peers
@pytest.mark.parametrize("name", ["normalize", "layer_normalization", "rms_normalization", "own"])
def test_a_norm_of_keras_ops_is_a_row_of_its_layer(name):
    import keras

    ops: Any = keras.ops

    class Net(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="net")
            self.mix = keras.layers.Dense(8)

        def call(self, inputs):
            x = self.mix(inputs)
            if name != "own":
                return getattr(ops, name)(x, axis=-1)[:, :3]
            mean, variance = ops.mean(x, -1, keepdims=True), ops.var(x, -1, keepdims=True)
            return ((x - mean) / ops.sqrt(variance + 1e-3))[:, :3]

    model = keras.Sequential([keras.Input((5,)), Net(), keras.layers.LayerNormalization()])
    report = lg.check_model(model, normal(6, 5))
    (owner,) = code(report)
    assert "/net." in owner
    assert len(checked(report)) == 1


TORCH = {
    "norm": lambda torch, x, g: x / x.norm(p=2, dim=-1, keepdim=True),
    "linalg": lambda torch, x, g: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-6),
    "rms": lambda torch, x, g: g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "power": lambda torch, x, g: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5) ** 0.5 * g,
    "std": lambda torch, x, g: (x - x.mean(0)) / x.std(0),
    "einsum": lambda torch, x, g: x * torch.einsum("nd,nd->n", x, x)[:, None].rsqrt(),
}
NONE = {
    "softmax": lambda torch, x, g: torch.softmax(x, -1),
    "gate": lambda torch, x, g: x * torch.sigmoid(x.mean(-1, keepdim=True)) / 8**0.5,
    "gain": lambda torch, x, g: x * g / g.norm(),
    "attention": lambda torch, x, g: torch.softmax(x @ x.T / 8**0.5, -1) @ x,
    "functional": lambda torch, x, g: torch.nn.functional.layer_norm(x, (8,), g),
}


def torch_net(function):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)
            self.gain = nn.Parameter(torch.full((8,), 1.5))

        def forward(self, x):
            return self.b(function(torch, self.norm(self.a(x)), self.gain))

    return nn.Sequential(Net())


@pytest.mark.peers
def test_lines_of_a_forward_pass_of_torch_that_normalize_are_rows():
    for name, function in TORCH.items():
        report = lg.check_model(torch_net(function), normal(6, 5))
        assert code(report) == ["0.<lambda>"], name
        assert "0.norm" in checked(report)
    for name, function in NONE.items():
        assert code(lg.check_model(torch_net(function), normal(6, 5))) == [], name


class GRN(linen.Module):
    """Global response norm (arXiv 2301.00808)."""

    axes: tuple[int, ...] = (1, 2)
    gain: float = 0.5

    @linen.compact
    def __call__(self, x):
        gain, bias = (self.param(n, linen.initializers.constant(self.gain), x.shape[-1:]) for n in ("gamma", "beta"))
        size = jnp.sqrt(jnp.sum(jnp.square(x), self.axes, keepdims=True))
        return gain * x * size / (size.mean(-1, keepdims=True) + 1e-6) + bias + x


class Excited(linen.Module):
    """Squeeze and excitation: its factors depend on the scale."""

    @linen.compact
    def __call__(self, x):
        w = self.param("w", linen.initializers.lecun_normal(), (x.shape[-1], x.shape[-1]))
        return x * jax.nn.sigmoid(x.mean((1, 2)) @ w)[:, None, None]


@pytest.mark.parametrize(("axes", "shape"), [((1, 2), (6, 5, 4, 3)), ((1,), (6, 5, 8))])
def test_a_response_norm_is_listed_with_the_reason(axes, shape):
    X = normal(*shape)
    for gain in (0.5, 0.0):  # it starts at zero
        (row,) = lg.check_model(initialized(GRN(axes, gain), X), X).norms
        assert not row.checked
        assert "response norm" in row.note


@pytest.mark.parametrize("layer", [Excited(), linen.Sequential([jax.nn.relu]), linen.Dropout(0.5, deterministic=True)])
def test_other_layers_that_multiply_their_inputs_are_no_response_norms(layer):
    X = normal(6, 5, 4, 3)
    assert lg.check_model(initialized(layer, X), X).norms == ()


def test_a_dynamic_tanh_is_no_norm_whatever_its_name():
    class DynamicTanh(linen.Module):
        @linen.compact
        def __call__(self, x):
            alpha = self.param("alpha", linen.initializers.constant(0.5), ())
            return jnp.tanh(alpha * x) * self.param("weight", linen.initializers.ones, x.shape[-1:])

    class DynamicTanhNorm(DynamicTanh):
        pass

    X = normal(6, 8)
    assert lg.check_model(initialized(DynamicTanh(), X), X).norms == ()
    (row,) = lg.check_model(initialized(DynamicTanhNorm(), X), X).norms
    assert (row.checked, row.like) == (False, None)
    assert "hardly move with large inputs" in row.note


class Weights(linen.Module):
    """A convolution that normalizes its kernel."""

    normalize: str

    @linen.compact
    def __call__(self, x):
        kernel = self.param("kernel", linen.initializers.lecun_normal(), (3, 3, x.shape[-1], 4), "float32")
        axes = (0, 1, 2)
        if self.normalize == "ws":
            kernel = (kernel - kernel.mean(axes)) / jnp.sqrt(kernel.var(axes) + 1e-5)
        elif self.normalize == "wn":
            gain = self.param("gain", linen.initializers.ones, (4,), "float32")
            kernel = gain * kernel / jnp.sqrt(jnp.sum(jnp.square(kernel), axes))
        elif self.normalize == "sn":
            kernel = kernel / jnp.linalg.norm(kernel.reshape(-1, 4), 2)
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dimensions)


@pytest.mark.parametrize("row", ["ws", "wn", "sn"])
def test_a_layer_that_normalizes_its_weights_is_examined_whatever_its_name(row):
    X = normal(6, 5, 4, 3)
    (found,) = lg.check_model(initialized(Weights(row), X), X).norms
    assert (found.like, found.differences, found.checked) == (row, (), True)
    assert ("weight_vector_constant_shift" in found.holds) == (row == "ws")
    assert ("weight_vector_rescaling" in found.holds) == (row != "sn")


def test_a_layer_of_plain_weights_is_not_listed():
    X = normal(6, 5, 4, 3)
    assert lg.check_model(initialized(Weights(""), X), X).norms == ()


@pytest.mark.peers
def test_a_standardized_convolution_of_torch_is_examined():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class StdConv2d(nn.Conv2d):
        def forward(self, x):
            variance, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
            return F.conv2d(x, (self.weight - mean) / torch.sqrt(variance + 1e-10), self.bias)

    class ByBatchNorm(nn.Conv2d):  # as that of BiT in the transformers package
        def forward(self, x):
            weight = F.batch_norm(self.weight.reshape(1, 4, -1), None, None, training=True, eps=1e-10)
            return F.conv2d(x, weight.reshape_as(self.weight), self.bias)

    (row,) = lg.check_model(nn.Sequential(ByBatchNorm(5, 4, 3)), normal(6, 5, 6, 6)).norms
    assert (row.path, row.like, row.differences) == ("0", "ws", ())
    report = lg.check_model(nn.Sequential(StdConv2d(5, 4, 3), nn.GroupNorm(2, 4)), normal(6, 5, 6, 6))
    assert (report["0"].like, report["0"].differences, report["1"].like) == ("ws", (), "gn_spatial")
    assert not report.differs


class Beside(linen.Module):
    """A wrapper of a layer that is made beside it."""

    wrap: type

    @linen.compact
    def __call__(self, x, train=False):
        options = {"update_stats": train} if self.wrap is linen.SpectralNorm else {}
        return self.wrap(linen.Dense(5))(x, **options)


class Set(linen.Module):
    """A wrapper of a layer that has a name."""

    def setup(self):
        self.mix = linen.Conv(5, (3,))
        self.norm = linen.WeightNorm(self.mix)

    def __call__(self, x):
        return self.norm(x)


@pytest.mark.parametrize(
    ("model", "row", "shape"),
    [
        (Beside(linen.WeightNorm), "wn", (6, 8)),
        (Beside(linen.SpectralNorm), "sn", (6, 8)),
        (Set(), "wn", (6, 7, 8)),
        (linen.WeightNorm(linen.Dense(5)), "wn", (6, 8)),
        (linen.Sequential([linen.WeightNorm(linen.Conv(5, (3, 3)))]), "wn", (6, 5, 4, 3)),
    ],
    ids=["beside", "spectral", "setup", "alone", "convolution"],
)
def test_wrappers_of_linen_that_normalize_weights_are_examined(model, row, shape):
    X = normal(*shape)
    (found,) = lg.check_model(initialized(model, X), X).norms
    assert (found.like, found.differences, found.checked, found.units) == (row, (), True, 5)


def test_a_weight_norm_over_other_axes_is_listed_with_the_reason():
    X = normal(6, 8)
    (found,) = lg.check_model(initialized(linen.WeightNorm(linen.Dense(5), feature_axes=0), X), X).norms
    assert not found.checked
    assert "over all axes but 0" in found.note


@pytest.mark.parametrize("wrap", [nnx.WeightNorm, nnx.SpectralNorm])
def test_wrappers_of_nnx_that_normalize_weights_are_examined(wrap):
    (found,) = lg.check_model(wrap(nnx.Linear(8, 5, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0)), normal(6, 8)).norms
    assert (found.checked, found.differences, found.like) == (True, (), "wn" if wrap is nnx.WeightNorm else "sn")


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.mix = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)
        scale: Any = self.norm.scale
        scale[...] = jax.random.uniform(rngs.params(), (8,), "float32")

    def __call__(self, x):
        return x + self.mix(self.norm(x))


class Lifted(nnx.Module):
    def __init__(self, call):
        make = nnx.split_rngs(splits=3)(nnx.vmap(in_axes=(0,), out_axes=0)(Block))
        self.blocks, self.call = make(nnx.Rngs(0)), call

    def __call__(self, x):
        return self.call(self.blocks, x)


def scanned(blocks, x):
    return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, blocks)


def mapped(blocks, x):
    return nnx.vmap(lambda x, block: block(x), in_axes=(None, 0), out_axes=0)(x, blocks).sum(0)


class Remat(nnx.Module):
    def __init__(self):
        self.block = Block(nnx.Rngs(0))

    @nnx.remat
    def __call__(self, x):
        return self.block(x)


def test_each_step_of_a_scan_of_nnx_is_a_layer_with_its_own_weights():
    model, X = Lifted(scanned), normal(6, 8)
    scales: Any = model.blocks.norm.scale
    found = [k for k in layers_of(model, X) if k.kind == "LayerNorm"]
    assert [k.path for k in found] == [f"blocks.norm[{i}]" for i in range(3)]
    for i, layer in enumerate(found):
        np.testing.assert_array_equal(layer.parameters["scale"], scales[i])
        np.testing.assert_allclose(layer.run(layer.inputs), layer.outputs, rtol=1e-5, atol=1e-6)
    report = lg.check_model(model, X)
    assert (checked(report), report.differs, report.unchecked) == ([k.path for k in found], False, ())


def test_a_recurrent_model_of_nnx_holds_random_keys():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.rnn = nnx.RNN(nnx.LSTMCell(3, 6, rngs=rngs), rngs=rngs)
            self.norm = nnx.LayerNorm(6, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.rnn(x))

    report = lg.check_model(Model(nnx.Rngs(0)), np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32))
    assert report["norm"].like == "ln"
    assert report["norm"].checked


def test_a_norm_inside_of_vmap_of_nnx_is_listed():
    report = lg.check_model(Lifted(mapped), normal(6, 8))
    assert [n.path for n in report.unchecked] == ["blocks.norm"]


def test_a_rematerialized_model_of_nnx_is_seen_at_every_check():
    model = Remat()
    for _ in range(2):
        (row,) = lg.check_model(model, normal(6, 8)).norms
        assert (row.path, row.calls, row.differences) == ("block.norm", 1, ())


@pytest.mark.parametrize("lift", [linen.jit, linen.remat])
def test_a_lifted_class_of_linen_is_seen_at_every_check(lift):
    class Part(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.LayerNorm()(linen.Dense(8)(x))

    Lift = lift(Part)

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return Lift()(x) + 1

    X = normal(6, 8)
    model = initialized(Net(), X)
    for _ in range(2):
        norms = [n for n in lg.check_model(model, X).norms if "→" not in n.path]
        assert [n.path.rpartition("/")[2] for n in norms] == ["LayerNorm_0"]


@pytest.mark.peers
def test_layers_inside_of_wrappers_and_loops_of_keras_are_examined():
    import keras
    from keras import layers

    class Cell(layers.Layer):
        def __init__(self):
            super().__init__()
            self.state_size = self.output_size = 8
            self.mix, self.norm = layers.Dense(8), layers.LayerNormalization()

        def build(self, shape):
            self.mix.build((shape[0], shape[1] + 8))
            self.norm.build((shape[0], 8))
            self.built = True

        def call(self, inputs, states):
            h = self.norm(self.mix(keras.ops.concatenate([inputs, states[0]], -1)))
            return h, [h]

    X = normal(6, 5, 8)
    kinds = {
        "ln": layers.TimeDistributed(layers.LayerNormalization(name="inner")),
        "bn": layers.TimeDistributed(layers.BatchNormalization(name="inner")),
        "rms": layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
    }
    for like, layer in kinds.items():
        rest = [layers.RMSNormalization(name="inner")] if like == "rms" else []
        report = lg.check_model(keras.Sequential([keras.Input((5, 8)), layer, *rest]), X)
        assert [(n.path.rpartition("/")[2], n.like, n.checked) for n in report.norms] == [("inner", like, True)]
        assert not report.differs
    report = lg.check_model(keras.Sequential([keras.Input((5, 8)), layers.RNN(Cell())]), X)
    assert [n.like for n in report.norms if "→" not in n.path] == ["ln"]
    assert not report.unchecked


@pytest.mark.peers
def test_norms_of_one_kind_share_their_programs_whatever_the_names_of_their_layers():
    import keras
    from keras import layers
    from lngeom.checks.recorded import tape

    def programs(count):
        norms = [layers.SpectralNormalization(layers.Dense(5)) for _ in range(count)]
        norms += [layers.GroupNormalization(1) for _ in range(count)]
        model = keras.Sequential([keras.Input((5,)), *norms])
        assert len([n for n in lg.check_model(model, normal(6, 5)).norms if "→" not in n.path]) == 2 * count
        return set(tape._PROGRAMS)

    tape._PROGRAMS.clear()
    assert programs(1) == programs(3)
