"""Public bugs rebuilt from their issues: the mistake in a few lines of our own, and the mended model.

Each builder takes whether to mend, and returns model, X and further arguments of `lint`.
"""

import copy
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")


class Bug(NamedTuple):
    """A bug of a public repository.

    Attributes:
        issue: repository and number.
        rule: the rule that finds it.
        framework: of the rebuilt model.
        build: (mended) → model, X, options.
    """

    issue: str
    rule: str
    framework: str
    build: Callable[[bool], tuple[Any, Any, dict]]


BUGS: list[Bug] = []


def bug(issue: str, rule: str, framework: str = "torch"):
    def register(build):
        BUGS.append(Bug(issue, rule, framework, build))
        return build

    return register


def normal(*shape, scale=1.0, offset=0.0):
    return np.random.default_rng(0).normal(size=shape) * scale + offset


def torch_norm(formula, units=8, name="LayerNorm", bias=True) -> Any:
    """A torch module that applies a formula f(x, weight, bias), with gains and biases that are not trivial."""
    import torch

    def forward(self, x):
        return formula(x, self.weight, self.bias)

    made = type(name, (torch.nn.Module,), {"forward": forward})()
    ramp = torch.linspace(0.5, 1.7, units)
    made.weight, made.bias = torch.nn.Parameter(ramp), torch.nn.Parameter(ramp.flip(0) - 1) if bias else None
    return made


def layer_norm(x, w, b, eps=1e-5, axis=-1):
    centred = x - x.mean(axis, keepdim=True)
    return centred / (centred.square().mean(axis, keepdim=True) + eps).sqrt() * w + b


@bug("pytorch/pytorch#41527", "epsilon-lost")
def epsilon_below_half(mended):
    """ε = 1e-12 in float16 is zero; padding gives NaN."""

    def formula(x, w, b):
        if mended:
            return layer_norm(x.float(), w.float(), b.float(), 1e-12).half()
        return layer_norm(x, w, b, 1e-12)

    return torch_norm(formula).half(), normal(6, 8), {}


@bug("deepspeedai/DeepSpeed#581", "epsilon-lost")
def variance_rounded_after_epsilon(mended):
    """ε is added in float32, the sum is rounded to float16, and then divides."""

    def formula(x, w, b):
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True) + 1e-12
        variance = variance if mended else variance.half().float()
        return (centred / variance.sqrt() * w.float() + b.float()).half()

    return torch_norm(formula).half(), normal(6, 8), {}


@bug("pytorch/pytorch#51102", "cancellation")
def mean_of_squares(mended):
    """Activations of mean 2000 and variance 1."""

    def formula(x, w, b):
        if mended:
            return layer_norm(x, w, b)
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / (x.square().mean(-1, keepdim=True) - mean.square() + 1e-5).clamp(min=1e-5).sqrt() * w + b

    return torch_norm(formula), normal(6, 8, offset=2000.0), {}


@bug("ml-explore/mlx#2238", "cancellation", "nnx")
def fast_variance_of_offset_activations(mended):
    """Activations near 1449 with σ = 0.5, in a layer with the same variance formula."""
    from flax import nnx

    norm = nnx.LayerNorm(8, use_fast_variance=not mended, rngs=nnx.Rngs(0))
    return norm, normal(6, 8, scale=0.5, offset=1449.0).astype(np.float32), {}


@bug("huggingface/transformers#30236", "low-precision")
def gain_after_rounding(mended):
    """Normalized values are rounded to bfloat16 before the gain multiplies them."""
    import torch

    def formula(x, w, b):
        wide = x.float()
        n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (n * w.float()).to(x.dtype) if mended else w * n.to(x.dtype)

    return torch_norm(formula, name="LlamaRMSNorm", bias=False).bfloat16(), normal(6, 8), {}


@bug("pytorch/pytorch#66707", "low-precision")
def statistics_in_half(mended):
    """Mean and variance summed in float16."""

    def formula(x, w, b):
        return layer_norm(x.float(), w.float(), b.float()).half() if mended else layer_norm(x, w, b)

    return torch_norm(formula).half(), normal(6, 8), {}


@bug("harvardnlp/annotated-transformer#119", "ddof")
def unbiased_std(mended):
    """torch.std divides by H − 1."""

    def formula(x, w, b):
        return w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, unbiased=not mended) + 1e-6) + b

    return torch_norm(formula), normal(6, 8), {}


@bug("FluxML/Flux.jl#529", "ddof", "equinox")
def corrected_std(mended):
    """The standard deviation is corrected by default; a layer of equinox with the same formula."""
    import equinox as eqx
    import jax.numpy as jnp

    class LayerNorm(eqx.Module):
        weight: Any

        def __call__(self, x):
            return (x - jnp.mean(x)) / jnp.sqrt(jnp.var(x, ddof=0 if mended else 1) + 1e-5) * self.weight

    return LayerNorm(jnp.linspace(0.5, 1.5, 8)), normal(6, 8).astype(np.float32), {}


@bug("131250208/TPlinker-joint-extraction#37", "not-scale-invariant")
def square_for_root(mended):
    """(variance + ε) ** 2 where ** 0.5 was meant."""
    power = 0.5 if mended else 2

    def formula(x, w, b):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5) ** power * w + b

    return torch_norm(formula), normal(6, 8), {}


@bug("huggingface/transformers#4360", "decay-on-gains", "keras")
def excluded_by_another_name(mended):
    """Decay leaves out "layer_norm", but the layers are called LayerNorm."""
    import keras

    model = keras.Sequential([keras.layers.LayerNormalization(name="LayerNorm")])
    model.build((None, 8))
    excluded = ("LayerNorm", "bias") if mended else ("layer_norm", "bias")
    return model, normal(6, 8).astype(np.float32), {"decay": lambda path: not any(e in path for e in excluded)}


@bug("ServiceNow/Fast-LLM#542", "decay-on-gains")
def decay_by_default(mended):
    """Gains fall back to the decay of all parameters."""
    import torch

    model = torch.nn.Sequential(torch.nn.RMSNorm(8))
    gains = {"params": list(model.parameters()), "weight_decay": 0.0 if mended else 0.01}
    return model, normal(6, 8), {"decay": torch.optim.AdamW([gains])}


@bug("torch/torch7#846", "decay-on-scale-invariant-weights")
def decay_before_batch_norm(mended):
    """Decay of all parameters, weights before a batch norm among them."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(5, 8, bias=False), torch.nn.BatchNorm1d(8))
    return model, normal(9, 5), {"decay": lambda path: not mended and path == "0.weight"}


@bug("milesial/Pytorch-UNet#325", "redundant-bias")
def bias_before_batch_norm(mended):
    import torch

    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=mended is False), torch.nn.BatchNorm2d(8)), _images(), {}


@bug("keras-team/keras#1802", "redundant-bias", "keras")
def dense_before_batch_norm(mended):
    import keras

    layers = [keras.layers.Dense(8, use_bias=not mended), keras.layers.BatchNormalization()]
    return keras.Sequential(layers), normal(9, 5).astype(np.float32), {}


def _images():
    return normal(6, 3, 6, 6)


@bug("pytorch/vision#8250", "momentum")
def momentum_of_the_other_library(mended):
    """momentum = 0.99, as in TensorFlow, where torch means 0.01."""
    import torch

    return torch.nn.Sequential(torch.nn.BatchNorm2d(3, momentum=0.01 if mended else 0.99)), _images(), {}


@bug("affinelayer/pix2pix-tensorflow#126", "momentum", "keras")
def momentum_of_torch(mended):
    """momentum = 0.1, as in torch, where Keras means 0.9."""
    import keras

    norm = keras.layers.BatchNormalization(momentum=0.9 if mended else 0.1)
    return keras.Sequential([norm]), normal(9, 5).astype(np.float32), {}


@bug("xieyulai/LSTM-for-Human-Activity-Recognition-using-2D-Pose_Pytorch#2", "wrong-axis")
def batch_norm_over_time_steps(mended):
    """BatchNorm1d takes [N, C, T] and is given [N, T, C]."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.norm = torch.nn.Linear(5, 8, bias=False), torch.nn.BatchNorm1d(8 if mended else 4)
            self.head = torch.nn.Linear(8, 2)

        def forward(self, x):
            x = self.dense(x)
            return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2) if mended else self.norm(x))

    return Model(), normal(6, 4, 5), {}


@bug("espnet/espnet#3183", "wrong-axis")
def layer_norm_ignores_its_axis(mended):
    """A layer norm over axis 1 of convolutional features normalizes the last axis instead."""
    import torch

    def formula(x, w, b):
        return layer_norm(x.transpose(1, -1), w, b).transpose(1, -1) if mended else layer_norm(x, w, b)

    conv = torch.nn.Conv1d(3, 8, 3, padding=1, bias=False)
    return torch.nn.Sequential(conv, torch_norm(formula)), normal(6, 3, 8), {}


@bug("Qualcomm-AI-research/geometric-algebra-transformer#8", "wrong-axis")
def layer_norm_over_tokens(mended):
    """Statistics over all axes but the first, tokens among them."""
    import torch

    def formula(x, w, b):
        axis = -1 if mended else (1, 2)
        return layer_norm(x, w, b, axis=axis)

    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch_norm(formula), torch.nn.Linear(8, 2)), normal(6, 4, 5), {}


@bug("reczoo/FuxiCTR#23", "wrong-axis")
def layer_norm_over_fields(mended):
    """LayerNorm([fields, dimension]) where each field has its own statistics."""
    import torch

    norm = torch.nn.LayerNorm(8 if mended else [4, 8])
    return torch.nn.Sequential(torch.nn.Linear(5, 8), norm, torch.nn.Linear(8, 2)), normal(6, 4, 5), {}


@bug("deezer/spleeter#151", "running-statistics")
def trained_gains_and_initial_statistics(mended):
    """In a trained model every moving mean is 0 and every moving variance is 1."""
    import torch

    norm = torch.nn.BatchNorm1d(5)
    torch.nn.init.normal_(norm.weight, 1.0, 0.2)
    if mended:
        norm(torch.tensor(normal(9, 5), dtype=torch.float32))
    return torch.nn.Sequential(norm), normal(9, 5, offset=3.0), {}


@bug("YunYang1994/tensorflow-yolov3#23", "running-statistics", "keras")
def statistics_without_updates(mended):
    """No step of training updates moving mean and variance; a momentum of 1 has the same effect."""
    import keras

    norm = keras.layers.BatchNormalization(momentum=0.9 if mended else 1.0)
    return keras.Sequential([norm]), normal(9, 5, offset=3.0).astype(np.float32), {}


@bug("tensorflow/tensorflow#33027", "epsilon-large", "keras")
def small_features(mended):
    """Features of a small scale stay small, as ε = 1e-3 is far above their variance."""
    import keras

    norm = keras.layers.BatchNormalization(epsilon=1e-12 if mended else 1e-3)
    return keras.Sequential([norm]), normal(9, 5, scale=1e-3).astype(np.float32), {}


@bug("pytorch/pytorch#86580", "epsilon-differs")
def epsilon_exported_as_zero(mended):
    import torch

    models = (torch.nn.Sequential(torch.nn.LayerNorm(8, eps=e)) for e in (1e-8, 1e-8 if mended else 0.0))
    return next(models), normal(6, 8), {"export": next(models)}


@bug("NVIDIA-NeMo/Megatron-Bridge#5712", "epsilon-differs")
def epsilon_of_another_default(mended):
    import torch

    models = (torch.nn.Sequential(torch.nn.RMSNorm(8, eps=e)) for e in (1e-6, 1e-6 if mended else 1e-5))
    return next(models), normal(6, 8), {"export": next(models)}


@bug("sahagobinda/GPM#9", "sample-leak")
def batch_statistics_in_evaluation(mended):
    """Without running statistics, a sample's result depends on its batch."""
    import torch

    return torch.nn.Sequential(torch.nn.BatchNorm1d(5, track_running_stats=mended)), normal(9, 5), {}


@bug("gallenszl/CFNet#21", "dead-gain")
def gains_still_zero(mended):
    """Trained gains that are all zero."""
    import torch

    norm = torch.nn.LayerNorm(8)
    if not mended:
        torch.nn.init.zeros_(norm.weight)
    return torch.nn.Sequential(norm), normal(6, 8), {}


PLANTED: list[Bug] = []
"""Mistakes of our own for rules without a public bug, or in other libraries."""


def planted(rule: str, framework: str = "torch"):
    def register(build):
        PLANTED.append(Bug(f"planted: {build.__name__}", rule, framework, build))
        return build

    return register


@planted("affine-before-statistics")
def gain_before_statistics(mended):
    def formula(x, w, b):
        return layer_norm(x, w, b) if mended else layer_norm(x * w + b, 1.0, 0.0)

    return torch_norm(formula), normal(6, 8), {}


@planted("sample-leak")
def statistics_over_samples(mended):
    return torch_norm(lambda x, w, b: layer_norm(x, w, b, axis=-1 if mended else (0, -1))), normal(6, 8), {}


@planted("dead-gain", "equinox")
def one_dead_unit(mended):
    import equinox as eqx
    import jax.numpy as jnp

    gain = jnp.ones(8).at[3].set(1.0 if mended else 1e-6)
    return eqx.tree_at(lambda m: m.weight, eqx.nn.LayerNorm(8), gain), normal(6, 8).astype(np.float32), {}


@planted("unused-parameter")
def bias_left_out(mended):
    return torch_norm(lambda x, w, b: layer_norm(x, w, b if mended else 0.0)), normal(6, 8), {}


@planted("affine-before-statistics")
def bias_before_statistics(mended):
    return torch_norm(lambda x, w, b: layer_norm(x, w, b) if mended else layer_norm(x + b, w, 0.0)), normal(6, 8), {}


@planted("affine-before-statistics")
def gain_before_batch_statistics(mended):
    def formula(x, w, b):
        return layer_norm(x, w, b, axis=0) if mended else layer_norm(x * w, 1.0, b, axis=0)

    return torch_norm(formula, name="BatchNorm"), normal(6, 8), {"rules": ["affine-before-statistics"]}


@planted("wrong-gradient")
def statistics_are_constants_in_the_backward_pass(mended):
    import torch

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.save_for_backward(x, w, b)
            return layer_norm(x, w, b)

        @staticmethod
        def backward(ctx, c):
            x, w, b = (value.detach().requires_grad_() for value in ctx.saved_tensors)
            with torch.enable_grad():
                scale = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
                constant = (x - x.mean(-1, keepdim=True).detach()) / scale.detach() * w + b
                return torch.autograd.grad(layer_norm(x, w, b) if mended else constant, (x, w, b), c)

    norm = torch_norm(Made.apply)
    return torch.nn.Sequential(norm, copy.deepcopy(norm)), normal(6, 8), {}


@planted("wrong-gradient", "equinox")
def gradient_as_if_the_gain_were_one(mended):
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    normalized = lambda x: x / jnp.sqrt(jnp.mean(x**2) + 1e-6)  # noqa: E731
    norm = jax.custom_vjp(lambda x, w: normalized(x) * w)

    def backward(kept, c):
        x, w = kept
        return jax.vjp(normalized, x)[1](c * w if mended else c)[0], c * normalized(x)

    norm.defvjp(lambda x, w: (norm(x, w), (x, w)), backward)

    class RMSNorm(eqx.Module):
        weight: jax.Array

        def __call__(self, x, key=None):
            return norm(x, self.weight)

    return RMSNorm(jnp.linspace(0.5, 2, 8, dtype=jnp.float32)), normal(6, 8).astype(np.float32), {}


@planted("scaled-gradient")
def backward_pass_that_overflows_in_float16(mended):
    import torch

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.save_for_backward(x, w)
            scale = (x.float().square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return (x / scale * w + b).to(x.dtype)

        @staticmethod
        def backward(ctx, c):
            x, w = (value.float() if mended else value for value in ctx.saved_tensors)
            scale = (x.float().square().mean(-1, keepdim=True) + 1e-5).sqrt().to(x.dtype)
            g = c.to(x.dtype) * w
            inner = g / scale - x / scale * ((g * x).mean(-1, keepdim=True) / scale) / scale
            return inner.to(c.dtype), (c * (x / scale)).sum(0).to(c.dtype), c.sum(0)

    inputs = 1000 * normal(6, 8)
    return torch_norm(Made.apply, name="RMSNorm").half(), inputs.astype(np.float16), {"rules": ["scaled-gradient"]}
