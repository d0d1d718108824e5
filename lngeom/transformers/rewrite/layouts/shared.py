"""What the families share: sizes, windows, norms and maps by the names of their arrays."""

from collections.abc import Callable, Sized
from typing import Any

from lngeom.transformers.description import Linear, Norm, Rows
from lngeom.transformers.rewrite.configs import Options

LARGEST = 1 << 24
"""Widths and numbers of experts above this are mistakes."""


def base_prefix(options: Options, prefix: str, probe: str) -> str:
    """The prefix of names, "" where files were saved without it."""
    return "" if prefix + probe not in options.names and probe in options.names else prefix


def block_windows(options: Options, layers: int, default: Callable[[int], bool]) -> list[int | None]:
    """The sliding window of each block, or None, where `layer_types` says which blocks have one."""
    window, kinds = options.get("sliding_window"), options.get("layer_types")
    if options.first("use_sliding_window") is False:
        window = None
    if kinds is None:
        kinds = ["sliding_attention" if default(i) else "full_attention" for i in range(layers)]
    if len(kinds) != layers:
        raise ValueError(f"option 'layer_types' must have an entry for each of {layers} layers; it has {len(kinds)}")
    if unknown := [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]:
        raise ValueError(f"option 'layer_types' has {unknown[0]!r}, which is not covered")
    sliding = [kind == "sliding_attention" for kind in kinds]
    if any(sliding) and window is None:
        raise ValueError("option 'layer_types' has 'sliding_attention', and no sliding_window is in use")
    return [window if s else None for s in sliding]


def sizes(options: Options) -> tuple[int, int, int]:
    """Width of the stream, heads, blocks."""
    names = ("n_embd", "n_head") if options.kind in {"gpt2", "gptj"} else ("hidden_size", "num_attention_heads")
    names = ("hidden_size", "n_head") if options.kind == "bloom" else names
    d, n = map(options.get, names)
    layers = options.first("num_hidden_layers", "n_layer")
    if isinstance(options.names, Sized) and layers > len(options.names):
        raise ValueError(f"config.json says {layers} layers, and the folder holds {len(options.names)} arrays")
    if max(d, options.first("head_dim") or 0, options.first("num_local_experts") or 0) > LARGEST:
        raise ValueError(f"config.json says a width, or a number of experts, above {LARGEST}")
    if options.first("head_dim") is None and d % n:
        raise ValueError(f"{names[1]} = {n} must divide {names[0]} = {d}")
    return d, n, layers


def rms(options: Options, offset: Any = 0) -> Callable[[str], Norm]:
    """Makes an RMSNorm from its name."""
    eps = options.get("rms_norm_eps")
    return lambda name: Norm("rms", f"{name}.weight", offset=offset, eps=eps)


def layer_norm(options: Options, option: str) -> Callable[[str], Norm]:
    """Makes a LayerNorm with a bias from its name; `option` holds ε."""
    eps = options.get(option)

    def norm(name: str) -> Norm:
        old = options.kind == "bert" and f"{name}.gamma" in options.names  # its first files; no other class renames
        gain, bias = ("gamma", "beta") if old else ("weight", "bias")
        return Norm("layer", f"{name}.{gain}", f"{name}.{bias}", eps=eps)

    return norm


def biased(name: str, layout: Any = "oi", rows: Rows | None = None) -> Linear:
    """A map with a bias from its name."""
    return Linear(f"{name}.weight", f"{name}.bias", layout, rows)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slopes of ALiBi (arXiv 2108.12409): 2^(−8i/n) for the largest power of two n, then every other one of 2n.

    >>> alibi_slopes(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    n = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    return (*slopes, *(2 ** (-4 * i / n) for i in range(1, 2 * (heads - n) + 1, 2)))
