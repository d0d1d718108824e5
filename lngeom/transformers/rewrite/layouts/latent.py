"""Families with latent attention: DeepSeek-V2 and DeepSeek-V3."""

from typing import Any

from lngeom.transformers.description import (
    Attention,
    Block,
    Groups,
    Head,
    Latent,
    Linear,
    Norm,
    Rotary,
    Rows,
    Stack,
    Table,
)
from lngeom.transformers.rewrite.configs import Options, rotary, yarn_score_scale
from lngeom.transformers.rewrite.layouts.shared import (
    LARGEST,
    Network,
    base_prefix,
    fused_rows,
    gated,
    linear,
    mixture,
    rms,
    sizes,
)

LATENT_EPS = 1e-6
"""ε of the norms of latents, whatever the config says."""


def latent_attention(options: Options, prefix: str, turn: Rotary) -> Attention:
    """Queries from a latent or from the input, keys and values from another latent, and a part that all keys share."""
    n, given = sizes(options)[1], options.get("num_key_value_heads")
    if given is not None and given != n:
        raise ValueError(
            f"option 'num_key_value_heads' = {given} must be null, or num_attention_heads = {n}: the transformers "
            "package runs no such model"
        )
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    asked, given, alone, shared, width = (options.get(name) for name in names)
    biased = options.get("attention_bias")

    def norm(name: str) -> Norm:
        return Norm("rms", f"{prefix}{name}.weight", eps=LATENT_EPS)

    first, last = (linear(f"{prefix}kv_a_proj_with_mqa", biased, rows=rows) for rows in fused_rows([given, shared]))
    key, value = (
        linear(f"{prefix}kv_b_proj", rows=Rows(start, length, n, alone + width))
        for start, length in ((0, alone), (alone, width))
    )
    query, latent = linear(f"{prefix}q_proj"), None
    if asked is not None:
        query = linear(f"{prefix}q_b_proj")
        latent = Latent(linear(f"{prefix}q_a_proj", biased), norm("q_a_layernorm"), asked)
    return Attention(
        query,
        key,
        value,
        linear(f"{prefix}o_proj", biased),
        n,
        n,
        alone + shared,
        width,
        scale=(alone + shared) ** -0.5 * yarn_score_scale(options),
        rotary=turn,
        query_latent=latent,
        kv_latent=Latent(first, norm("kv_a_layernorm"), given),
        shared_key=last,
        shared_width=shared,
    )


def deepseek(options: Options, pairing: Any, dense: Network, sparse: Network) -> Stack:
    """What both families share.

    Args:
        options: the config.
        pairing: of rotary coordinates.
        dense: makes the networks of the first `first_k_dense_replace` blocks.
        sparse: makes those of the others.

    Returns:
        The description.
    """
    options.only("moe_layer_freq", 1)
    if max(options.get(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")) > LARGEST:
        raise ValueError(f"config.json says a width above {LARGEST}")
    turn = rotary(options, options.get("qk_rope_head_dim"), pairing=pairing, start=options.get("qk_nope_head_dim"))
    norm, at = rms(options), base_prefix(options, "model.", "embed_tokens.weight")
    blocks = []
    for i in range(sizes(options)[2]):
        prefix = f"{at}layers.{i}."
        network = (dense if i < options.get("first_k_dense_replace") else sparse)(prefix, i)
        attention = latent_attention(options, f"{prefix}self_attn.", turn)
        first, second = norm(f"{prefix}input_layernorm"), norm(f"{prefix}post_attention_layernorm")
        blocks.append(Block(attention, network, "pre", first, second))
    table = f"{at}embed_tokens.weight"
    head = Head(Linear(table if options.get("tie_word_embeddings") else "lm_head.weight"))
    return Stack((Table(table),), tuple(blocks), head, norm(f"{at}norm"))


def _experts(options: Options, **form: Any) -> Network:
    """The mixture of both families."""
    if options.get("num_experts_per_tok") is None:
        raise ValueError("option 'num_experts_per_tok' must not be null: the transformers package runs no such model")
    count = options.get("n_routed_experts")
    factor = options.get("routed_scaling_factor")
    return mixture(options, "mlp.", count, shared="shared_experts", factor=factor, **form)


def _groups(options: Options, best: int) -> Groups:
    """Groups of experts."""
    count, top = (options.get(name) for name in ("n_group", "topk_group"))
    if count is None or top is None:
        raise ValueError("options 'n_group' and 'topk_group' must not be null where experts are chosen in groups")
    return Groups(count, top, best)


def deepseek_v2(options: Options) -> Stack:
    """DeepSeek-V2: softmax scores, which are never renormalized; groups, where `topk_method` says so."""
    d, n, _ = sizes(options)
    if d % n:
        raise ValueError(
            f"option 'num_attention_heads' = {n} must divide hidden_size = {d}: the transformers package loads no such "
            "model"
        )
    options.only("topk_method", "greedy", "group_limited_greedy")
    options.only("scoring_func", "softmax")
    options.only("norm_topk_prob", False, None)
    bias = options.get("mlp_bias")
    groups = _groups(options, 1) if options.get("topk_method") == "group_limited_greedy" else None
    sparse = _experts(options, groups=groups, renormalize=False, shared_bias=bias)
    return deepseek(options, "adjacent", gated(options, bias=bias), sparse)


def deepseek_v3(options: Options) -> Stack:
    """DeepSeek-V3: sigmoid scores, a bias for the choice of experts, and groups by their two best ones."""
    turned, head = options.get("qk_rope_head_dim"), options.get("head_dim")
    if head not in (None, turned):
        raise ValueError(f"option 'head_dim' = {head} must be qk_rope_head_dim = {turned}, or absent")
    options.only("topk_method", "noaux_tc")
    options.only("scoring_func", "sigmoid")
    sparse = _experts(
        options,
        scores="sigmoid",
        groups=_groups(options, 2),
        renormalize=bool(options.get("norm_topk_prob")),
        choice_bias="gate.e_score_correction_bias",
    )
    return deepseek(options, "adjacent" if options.get("rope_interleave") else "half", gated(options), sparse)
