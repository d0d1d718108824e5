"""Inputs on which rounding, or a set of values without spread, could be taken for a defect; and stock norms."""

import os

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")


def hostile(shape, units):
    """Inputs of a shape, by name, whose units are an axis."""
    X, rng = np.random.default_rng(0).normal(size=shape), np.random.default_rng(1)
    unit = tuple(1 if a == units else slice(None) for a in range(len(shape)))
    first = tuple(slice(0, 1) if a == units else slice(None) for a in range(len(shape)))
    ramp = rng.normal(size=[n if a == units else 1 for a, n in enumerate(shape)])

    def changed(place, change):
        moved = X.copy()
        moved[place] = change(moved[place])
        return moved

    half = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) < shape[0] // 2
    return {
        "ordinary": X,
        "a zero sample": changed(1, np.zeros_like),
        "a dead unit": changed(unit, np.zeros_like),
        "rectified": np.maximum(X, 0),
        "sparse": X * (rng.random(shape) < 0.1),
        "one value that is not zero": np.where(np.arange(X.size).reshape(shape) == 7, 3.0, 0.0),
        "half of it padding": np.where(half, X, 0),
        "zeros": np.zeros(shape),
        "ones": np.ones(shape),
        "the same number": np.full(shape, 1000.1),
        "the same sample": np.broadcast_to(X[:1], shape),
        "equal units": np.broadcast_to(X[first], shape),
        "proportional units": X[first] * ramp,
        "an offset of 1000": X + 1000,
        "an offset of 1e4": X + 1e4,
        "tiny": 1e-6 * X,
        "very tiny": 1e-20 * X,
        "large": 1e6 * X,
        "very large": 1e15 * X,
        "one loud sample": changed(0, lambda v: 1e8 * v),
        "one massive unit": changed(unit, lambda v: 1e6 * v),
        "signs": np.sign(X),
        "whole numbers": np.round(2 * X),
        "exponentials": np.exp(3 * X),
        "one sample": X[:1],
    }


def torch_norms():
    from torch import nn

    image, rows = ((6, 8, 3, 3), 1), ((6, 8), 1)
    yield "LayerNorm", lambda: nn.LayerNorm(8), *rows
    yield "LayerNorm of positions", lambda: nn.LayerNorm(8), (6, 5, 8), 2
    yield "RMSNorm", lambda: nn.RMSNorm(8), *rows
    yield "BatchNorm1d", lambda: nn.BatchNorm1d(8), *rows
    yield "BatchNorm2d", lambda: nn.BatchNorm2d(8), *image
    yield "GroupNorm", lambda: nn.GroupNorm(2, 8), *image
    yield "InstanceNorm2d", lambda: nn.InstanceNorm2d(8, affine=True), *image


def linen_norms():
    from flax import linen as nn

    made = nn.LayerNorm(), nn.RMSNorm(), nn.BatchNorm(), nn.GroupNorm(2), nn.InstanceNorm()
    yield from ((type(m).__name__, lambda m=m: m, (6, 5, 8), 2) for m in made)


def nnx_norms():
    from flax import nnx

    rngs = nnx.Rngs(0)
    for kind in (nnx.LayerNorm, nnx.RMSNorm, nnx.BatchNorm, nnx.InstanceNorm):
        yield kind.__name__, lambda kind=kind: kind(8, rngs=rngs), (6, 5, 8), 2
    yield "GroupNorm", lambda: nnx.GroupNorm(8, num_groups=2, rngs=rngs), (6, 5, 8), 2


def equinox_norms():
    from equinox import nn

    yield "LayerNorm", lambda: nn.LayerNorm(8), (6, 8), 1
    yield "RMSNorm", lambda: nn.RMSNorm(8), (6, 8), 1
    yield "GroupNorm", lambda: nn.GroupNorm(2, 8), (6, 8, 5), 1
    yield "BatchNorm", lambda: nn.BatchNorm(8, "batch", mode="batch"), (6, 8, 5), 1


def keras_norms():
    from keras import layers

    for kind in (layers.LayerNormalization, layers.RMSNormalization, layers.BatchNormalization):
        yield kind.__name__, kind, (6, 5, 8), 2
    yield "GroupNormalization", lambda: layers.GroupNormalization(2), (6, 5, 8), 2


LIBRARIES = {
    "torch": torch_norms,
    "linen": linen_norms,
    "nnx": nnx_norms,
    "equinox": equinox_norms,
    "keras": keras_norms,
}
