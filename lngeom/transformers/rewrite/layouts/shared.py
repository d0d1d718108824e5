"""What the families share: sizes, windows, norms, maps and networks by the names of their arrays."""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

from lngeom.transformers.description import FeedForward, Linear, Mixture, Norm, Rotary, Rows
from lngeom.transformers.rewrite.configs import Options, rotary, rotary_by_layer

LARGEST = 1 << 24
"""Widths and numbers of experts above this are mistakes."""

Network = Callable[[str, int], FeedForward | Mixture]
"""Makes the second branch of a block, from the prefix of its names and its number."""

KINDS = ("full_attention", "sliding_attention")


def base_prefix(options: Options, prefix: str, probe: str) -> str:
    """The prefix of names, "" where files were saved without it."""
    return "" if prefix + probe not in options.names and probe in options.names else prefix


WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
BLOCKS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
"""Names of the options with the three numbers; a family has one of each."""


def sizes(options: Options) -> tuple[int, int, int]:
    """Width of the stream, heads, blocks."""
    d, n, layers = (options.first(*names) for names in (WIDTH, HEADS, BLOCKS))
    if isinstance(options.names, Sized) and layers > len(options.names):
        raise ValueError(f"config.json says {layers} layers, and the folder holds {len(options.names)} arrays")
    experts = options.first("num_local_experts", "num_experts", "n_routed_experts") or 0
    if max(d, options.first("head_dim") or 0, experts) > LARGEST:
        raise ValueError(f"config.json says a width, or a number of experts, above {LARGEST}")
    if options.first("v_head_dim", "head_dim", "d_kv") is None and d % n:
        raise ValueError(f"{options.which(*HEADS)} = {n} must divide {options.which(*WIDTH)} = {d}")
    return d, n, layers


def head_sizes(options: Options) -> tuple[int, int, int]:
    """Query heads, key/value heads, width of a head."""
    d, n, _ = sizes(options)
    n_k, width = options.first("num_key_value_heads"), options.first("head_dim")
    return n, n if n_k is None else n_k, d // n if width is None else width


def layer_kinds(options: Options, layers: int, default: Callable[[int], bool]) -> list[bool]:
    """Whether each block has a sliding window, as `layer_types` says, or else `default`."""
    kinds = options.get("layer_types")
    if kinds is None:
        return [default(i) for i in range(layers)]
    if len(kinds) != layers:
        raise ValueError(f"option 'layer_types' must have an entry for each of {layers} layers; it has {len(kinds)}")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"option 'layer_types' has {unknown[0]!r}, which is not covered")
    return [kind == "sliding_attention" for kind in kinds]


def block_windows(options: Options, layers: int, default: Callable[[int], bool]) -> list[int | None]:
    """The sliding window of each block, or None, where `layer_types` says which blocks have one."""
    window, sliding = options.get("sliding_window"), layer_kinds(options, layers, default)
    if options.first("use_sliding_window") is False:
        window = None
    if any(sliding) and window is None:
        raise ValueError("option 'layer_types' has 'sliding_attention', and no sliding_window is in use")
    return check_windows([window if s else None for s in sliding])


def check_windows(windows: list[int | None]) -> list[int | None]:
    """Refuses windows that are not positive."""
    if wrong := [window for window in windows if window is not None and window < 1]:
        raise ValueError(f"option 'sliding_window' must be positive; got {wrong[0]}")
    return windows


def local_and_global(options: Options, sliding: Sequence[bool], bases: Mapping[bool, float]) -> list[Rotary | None]:
    """Rotary positions of blocks with a sliding window and of others, which the config gives apart.

    Args:
        options: the config.
        sliding: whether each block has a window.
        bases: the bases of blocks with and without one, where `rope_parameters` has none. `rope_scaling` is for those
            without.
    """
    width = head_sizes(options)[2]
    found = {s: rotary_by_layer(options, width, KINDS[s], base=bases[s], scaled=not s) for s in set(sliding)}
    return [found[s] for s in sliding]


def rms(options: Options, offset: Any = 0, option: str = "rms_norm_eps") -> Callable[[str], Norm]:
    """Makes an RMSNorm from its name; `option` holds ε."""
    eps = options.get(option)
    return lambda name: Norm("rms", f"{name}.weight", offset=offset, eps=eps)


def layer_norm(options: Options, option: str, *, bias: bool = True, offset: Any = 0) -> Callable[[str], Norm]:
    """Makes a LayerNorm from its name; `option` holds ε."""
    eps = options.get(option)

    def norm(name: str) -> Norm:
        old = options.kind == "bert" and f"{name}.gamma" in options.names  # its first files; no other class renames
        gain, beta = ("gamma", "beta") if old else ("weight", "bias")
        return Norm("layer", f"{name}.{gain}", f"{name}.{beta}" if bias else None, offset, eps)

    return norm


def linear(name: str, has_bias: bool = False, layout: Any = "oi", rows: Rows | None = None) -> Linear:
    """A map from its name."""
    return Linear(f"{name}.weight", f"{name}.bias" if has_bias else None, layout, rows)


def biased(name: str, layout: Any = "oi", rows: Rows | None = None) -> Linear:
    """A map with a bias from its name."""
    return linear(name, True, layout, rows)


def one_turn(options: Options, **form: Any) -> list[Rotary | None]:
    """Rotary positions that are the same in all blocks; `form` as of `rotary`."""
    return [rotary(options, head_sizes(options)[2], **form)] * sizes(options)[2]


def fused_rows(lengths: Sequence[int]) -> list[Rows]:
    """Rows of maps that stand one after the other in one matrix."""
    return [Rows(sum(lengths[:i]), length) for i, length in enumerate(lengths)]


def by_head(n: int, width: int) -> list[Rows]:
    """Rows of queries, keys and values in one matrix [head, (q, k, v), width]."""
    return [Rows(j * width, width, n, 3 * width) for j in range(3)]


def gated(options: Options, at: str = "mlp.", *, bias: bool = False, fused: bool = False) -> Network:
    """A gated network; `fused`: gate and up in one matrix, the gate first."""
    activation, inner = options.activation(), options.get("intermediate_size")

    def network(prefix: str, _: int = 0) -> FeedForward:
        down = linear(f"{prefix}{at}down_proj", bias)
        if fused:
            gate, up = (linear(f"{prefix}{at}gate_up_proj", bias, rows=r) for r in fused_rows([inner, inner]))
        else:
            gate, up = (linear(f"{prefix}{at}{part}_proj", bias) for part in ("gate", "up"))
        return FeedForward(up, down, gate, activation)

    return network


def plain(options: Options, up: str, down: str, *, bias: bool = True) -> Network:
    """A network without a gate."""
    activation = options.activation()

    def network(prefix: str, _: int = 0) -> FeedForward:
        return FeedForward(linear(prefix + up, bias), linear(prefix + down, bias), None, activation)

    return network


def mixture(
    options: Options,
    at: str,
    count: int,
    *,
    names: tuple[str, str, str] = ("up_proj", "down_proj", "gate_proj"),
    shared: str | None = None,
    shared_gate: str | None = None,
    shared_bias: bool = False,
    choice_bias: str | None = None,
    **form: Any,
) -> Network:
    """A mixture of `count` gated experts with their router `gate`.

    Args:
        options: the config.
        at: prefix of the names.
        count: how many experts.
        names: of the linear factor, the output map and the gate of an expert.
        shared: name of the expert that is always used, or None.
        shared_gate: name of the map to its weight, or None.
        shared_bias: whether the maps of the shared expert have biases.
        choice_bias: name of the vector for the choice of experts, or None.
        **form: further fields of `Mixture`.

    Returns:
        What makes the mixture of a block.
    """
    activation, top = options.activation(), options.get("num_experts_per_tok")

    def network(prefix: str, _: int = 0) -> Mixture:
        def expert(name: str, bias: bool = False) -> FeedForward:
            up, down, gate = (linear(f"{prefix}{at}{name}.{part}", bias) for part in names)
            return FeedForward(up, down, gate, activation)

        return Mixture(
            linear(f"{prefix}{at}gate"),
            tuple(expert(f"experts.{e}") for e in range(count)),
            top=top,
            shared=None if shared is None else expert(shared, shared_bias),
            shared_gate=None if shared_gate is None else linear(f"{prefix}{at}{shared_gate}"),
            choice_bias=None if choice_bias is None else f"{prefix}{at}{choice_bias}",
            **form,
        )

    return network


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slopes of ALiBi (arXiv 2108.12409): 2^(−8i/n) for the largest power of two n, then every other one of 2n.

    >>> alibi_slopes(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    n = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    return (*slopes, *(2 ** (-4 * i / n) for i in range(1, 2 * (heads - n) + 1, 2)))
