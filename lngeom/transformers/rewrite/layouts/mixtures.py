"""Families after Llama whose second branches are mixtures of experts."""

from typing import Any

from lngeom.transformers.description import (
    FeedForward,
    Linear,
    Mixture,
    Rows,
    Stack,
)
from lngeom.transformers.rewrite.configs import Options
from lngeom.transformers.rewrite.layouts.llama import after_llama
from lngeom.transformers.rewrite.layouts.shared import (
    Network,
    block_windows,
    check_windows,
    gated,
    linear,
    mixture,
    one_turn,
    rms,
    sizes,
)


def mixtral(options: Options) -> Stack:
    """Mixtral: the router and every expert read the norm's output; w1 is the gate, w3 the linear factor."""
    network = mixture(options, "block_sparse_moe.", options.get("num_local_experts"), names=("w3", "w2", "w1"))
    return after_llama(options, norm=rms(options), network=network)


def olmoe(options: Options) -> Stack:
    """OLMoE: norms of queries and keys over all heads at once."""
    options.only("clip_qkv", None)
    network = mixture(options, "mlp.", options.get("num_experts"), renormalize=options.get("norm_topk_prob"))
    return after_llama(options, norm=rms(options), heads_norm="all", network=network)


def some_sparse(options: Options, sparse: Network) -> Network:
    """Mixtures in every `decoder_sparse_step`-th block but those of `mlp_only_layers`; gated networks elsewhere."""
    dense, step, skipped = gated(options), options.get("decoder_sparse_step"), options.get("mlp_only_layers") or ()

    def network(prefix: str, i: int) -> Any:
        return sparse(prefix, i) if i not in skipped and (i + 1) % step == 0 else dense(prefix, i)

    return network


def qwen3_moe(options: Options) -> Stack:
    """Qwen 3 with experts: norms of queries and keys, by head; one window for all blocks, if it is in use."""
    window = options.get("sliding_window") if options.get("use_sliding_window") else None
    experts = mixture(options, "mlp.", options.get("num_experts"), renormalize=options.get("norm_topk_prob"))
    return after_llama(
        options,
        norm=rms(options),
        heads_norm="head",
        windows=check_windows([window] * sizes(options)[2]),
        network=some_sparse(options, experts),
    )


def qwen2_moe(options: Options) -> Stack:
    """Qwen 1.5 and 2 with experts: a shared expert, weighted by a gate of its own."""
    used, last = options.get("use_sliding_window"), options.get("max_window_layers")
    experts = mixture(
        options,
        "mlp.",
        options.get("num_experts"),
        shared="shared_expert",
        shared_gate="shared_expert_gate",
        renormalize=options.get("norm_topk_prob"),
    )
    return after_llama(
        options,
        norm=rms(options),
        biases=(options.get("qkv_bias"), False),
        windows=block_windows(options, sizes(options)[2], lambda i: used and i % 2 == 0 and i < last),
        network=some_sparse(options, experts),
    )


GPT_OSS_TURNS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Rotary positions of GPT-OSS where the config has none."""


def gpt_oss(options: Options) -> Stack:
    """GPT-OSS: attention sinks, clamped experts in one array, gate and linear factor in turns, a router with a bias."""
    options.only("swiglu_alpha", 1.702)
    inner, top, clamp = (options.get(name) for name in ("intermediate_size", "num_experts_per_tok", "swiglu_limit"))

    def expert(at: str, e: int) -> FeedForward:
        both = f"{at}experts.gate_up_proj"
        gate, up = (Linear(both, f"{both}_bias", "io", Rows(j, 1, inner, 2), e) for j in range(2))
        down = Linear(f"{at}experts.down_proj", f"{at}experts.down_proj_bias", "io", expert=e)
        return FeedForward(up, down, gate, "quick_gelu", clamp)

    def network(prefix: str, _: int) -> Mixture:
        at, count = f"{prefix}mlp.", options.get("num_local_experts")
        return Mixture(linear(f"{at}router", True), tuple(expert(at, e) for e in range(count)), top=top)

    return after_llama(
        options,
        norm=rms(options),
        sinks=True,
        windows=block_windows(options, sizes(options)[2], lambda i: i % 2 == 0),
        turns=one_turn(options, absent=GPT_OSS_TURNS),
        network=network,
    )
