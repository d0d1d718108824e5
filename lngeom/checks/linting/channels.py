"""The axis of the channels of linear and convolutional layers of the libraries."""

from collections.abc import Callable
from typing import Any

from lngeom.checks.recorded import Layer

CHANNELS_FIRST = {"channels_first", "NCHW", "NCW", "NCDHW"}
"""Layouts of Keras and haiku with channels before the spatial axes."""


def _last(module: Any, ndim: int) -> int | None:
    """Linear layers of flax may contract other axes than the last."""
    return ndim - 1 if getattr(module, "axis", -1) in {-1, (-1,)} else None


def _torch_conv(module: Any, ndim: int) -> int | None:
    return 1 if ndim == 2 + len(module.kernel_size) else None


def _equinox_conv(module: Any, ndim: int) -> int | None:
    return ndim - 1 - module.num_spatial_dims


def _by_layout(module: Any, ndim: int) -> int | None:
    return 1 if getattr(module, "data_format", None) in CHANNELS_FIRST else ndim - 1


LINEAR: dict[str, set[str]] = {
    "torch": {"Linear", "Embedding"},
    "nnx": {"Linear", "LinearGeneral", "Embed"},
    "linen": {"Dense", "DenseGeneral", "Embed"},
    "keras": {"Dense", "Embedding"},
    "haiku": {"Linear", "Embed"},
    "equinox": {"Linear", "Embedding"},
}
"""Classes of each library whose layers treat each position by itself, with the channels last."""

CONVOLUTIONS: dict[str, tuple[set[str], Callable[[Any, int], int | None]]] = {
    "torch": ({"_ConvNd"}, _torch_conv),
    "nnx": ({"Conv", "ConvTranspose"}, _last),
    "linen": ({"_Conv", "ConvTranspose"}, _last),
    "keras": ({"BaseConv", "BaseConvTranspose", "BaseDepthwiseConv", "BaseSeparableConv"}, _by_layout),
    "haiku": ({"ConvND", "ConvNDTranspose", "DepthwiseConv1D", "DepthwiseConv2D"}, _by_layout),
    "equinox": ({"Conv", "ConvTranspose"}, _equinox_conv),
}
"""Classes of each library that are convolutions, and where their channels are."""

PACKAGES = {"nnx": "flax", "linen": "flax"}
"""Packages of libraries that are called otherwise."""


def channels_of(layer: Layer, ndim: int) -> tuple[int, bool] | None:
    """The axis of the channels of a layer, by its class or a class of its library from which it is derived.

    Args:
        layer: the layer.
        ndim: axes of its inputs or outputs.

    Returns:
        The axis, and whether the layer treats each position by itself; None for a layer of another class.
    """
    package = PACKAGES.get(layer.framework, layer.framework)
    names = {c.__name__ for c in type(layer.module).__mro__ if c.__module__.split(".", 1)[0] == package}
    convolutions, axis_of = CONVOLUTIONS[layer.framework]
    if names & convolutions:
        axis, by_position = axis_of(layer.module, ndim), False
    elif names & LINEAR[layer.framework]:
        axis, by_position = _last(layer.module, ndim), True
    else:
        return None
    return None if axis is None else (axis, by_position)
