"""Options that have an effect, by family, with the defaults that the `transformers` package gives them.

The tables hold what its configuration classes hold (`models/*/configuration_*.py`, version 5.23). An absent option has
the default of its family. A null is another value: it is allowed where a table says `Maybe`.
"""

from typing import Any, NamedTuple


class Maybe(NamedTuple):
    """An option that may be null.

    Attributes:
        kind: its type where it is not null.
        default: its value where it is absent.
    """

    kind: type
    default: Any = None


class Derived(NamedTuple):
    """An option that follows from others where it is absent, and must not be null.

    Attributes:
        kind: its type.
    """

    kind: type


class Alias(NamedTuple):
    """A second name of an option.

    Attributes:
        name: the first name.
    """

    name: str


_LLAMA_LIKE = {
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "head_dim": Maybe(int),
    "attention_bias": False,
    "rope_parameters": Maybe(dict),
    "rope_scaling": Maybe(dict),
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
}
_QWEN = {
    **_LLAMA_LIKE,
    "head_dim": Derived(int),
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_key_value_heads": Maybe(int, 32),
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": Maybe(int, 4096),
    "max_window_layers": 28,
    "layer_types": Maybe(list),
}
_OLMO = {
    **_LLAMA_LIKE,
    "head_dim": Derived(int),
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_key_value_heads": Maybe(int),
    "max_position_embeddings": 2048,
}
_MISTRAL = {
    **_LLAMA_LIKE,
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": Maybe(int, 4096),
}
_GEMMA = {
    **_LLAMA_LIKE,
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": Maybe(bool),
}
_GPT = {
    "hidden_size": Alias("n_embd"),
    "num_attention_heads": Alias("n_head"),
    "num_hidden_layers": Alias("n_layer"),
    "max_position_embeddings": Alias("n_positions"),
    "n_inner": Maybe(int),
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}

_PLAIN = {**_OLMO, "head_dim": Maybe(int)}
"""As Llama, with the sizes of its first models."""
_EXPERTS = {
    "num_local_experts": Alias("num_experts"),
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
}
_GLM = {
    **_OLMO,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
_LOCAL = {"sliding_window": Maybe(int, 4096), "layer_types": Maybe(list)}


def _without(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_OLMO, "head_dim": Maybe(int), "vocab_size": 32000, "mlp_bias": False},
    "mistral": _MISTRAL,
    "mixtral": {
        **_MISTRAL,
        "rms_norm_eps": 1e-5,
        "sliding_window": Maybe(int),
        "rope_theta": 1000000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "gemma": {
        **_GEMMA,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
    },
    "gemma2": {
        **{name: value for name, value in _GEMMA.items() if name != "hidden_act"},
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": Maybe(int, 4096),
        "layer_types": Maybe(list),
        "final_logit_softcapping": Maybe(float, 30.0),
        "attn_logit_softcapping": Maybe(float, 50.0),
    },
    "olmo": {**{name: value for name, value in _OLMO.items() if name != "rms_norm_eps"}, "clip_qkv": Maybe(float)},
    "olmo2": {**_OLMO, "rms_norm_eps": 1e-5},
    "gpt2": {
        **_GPT,
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "tie_word_embeddings": True,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    "gpt_neox": {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "attention_bias": True,
        "rope_parameters": Maybe(dict),
        "rope_scaling": Maybe(dict),
        "rotary_emb_base": 10000.0,
        "rotary_pct": 0.25,
    },
    "gptj": {
        **_GPT,
        "vocab_size": 50400,
        "n_positions": 2048,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "rotary_dim": 64,
        "tie_word_embeddings": False,
        "rotary": True,
    },
    "opt": {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "activation_function": "relu",
        "tie_word_embeddings": True,
        "do_layer_norm_before": True,
        "word_embed_proj_dim": Maybe(int),
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
    },
    "bert": {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    },
    "bloom": {
        "vocab_size": 250880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "n_embed": Alias("hidden_size"),
        "num_hidden_layers": Alias("n_layer"),
        "num_attention_heads": Alias("n_head"),
        "layer_norm_epsilon": 1e-5,
        "apply_residual_connection_post_layernorm": False,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        **_without(_GEMMA, "hidden_act"),
        **_LOCAL,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window_pattern": 6,
        "use_bidirectional_attention": Maybe(bool, False),
        "final_logit_softcapping": Maybe(float),
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    },
    "olmo3": {**_OLMO, **_LOCAL, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "smollm3": {
        **_OLMO,
        "vocab_size": 128256,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": Maybe(int, 4),
        "max_position_embeddings": 32768,
        "rope_theta": 2000000.0,
        "use_sliding_window": False,
        "sliding_window": Maybe(int),
        "no_rope_layers": Maybe(list),
        "no_rope_layer_interval": 4,
        "layer_types": Maybe(list),
        "mlp_bias": False,
        "tie_word_embeddings": True,
    },
    "seed_oss": {
        **_PLAIN,
        "vocab_size": 155136,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": Maybe(int, 8),
        "max_position_embeddings": 524288,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
        "head_dim": Maybe(int, 128),
    },
    "helium": {
        **_PLAIN,
        "vocab_size": 48000,
        "hidden_size": 2560,
        "intermediate_size": 7040,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100000.0,
        "mlp_bias": False,
    },
    "ernie4_5": {
        **_without(_PLAIN, "attention_bias"),
        "vocab_size": 103424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": Maybe(int, 2),
        "head_dim": Maybe(int, 128),
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "use_bias": Maybe(bool, False),
        "tie_word_embeddings": True,
    },
    "phi3": {
        **_without(_OLMO, "attention_bias"),
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": Maybe(int),
    },
    "glm": {**_GLM, "num_key_value_heads": Maybe(int, 2)},
    "glm4": _GLM,
    "stablelm": {
        **_without(_OLMO, "attention_bias", "rms_norm_eps", "head_dim"),
        "intermediate_size": 6912,
        "hidden_size": 2560,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
        "use_qkv_bias": False,
        "qk_layernorm": False,
        "use_parallel_residual": False,
        "partial_rotary_factor": 0.25,
    },
    "olmoe": {
        **_OLMO,
        **_EXPERTS,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "clip_qkv": Maybe(float),
    },
    "qwen3_moe": {
        **_without(_QWEN, "max_window_layers", "layer_types"),
        **_EXPERTS,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": Maybe(list),
    },
    "arcee": {
        **_PLAIN,
        "vocab_size": 32000,
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "mlp_bias": False,
    },
    "nemotron": {
        **_without(_PLAIN, "rms_norm_eps"),
        "vocab_size": 256000,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_attention_heads": 48,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "mlp_bias": False,
        "partial_rotary_factor": 0.5,
    },
    "starcoder2": {
        **_without(_OLMO, "attention_bias", "rms_norm_eps"),
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "sliding_window": Maybe(int),
        "use_bias": True,
        "tie_word_embeddings": True,
    },
    "phi": {
        **_without(_OLMO, "attention_bias", "rms_norm_eps"),
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "qk_layernorm": False,
        "partial_rotary_factor": 0.5,
    },
    "persimmon": {
        **_without(_OLMO, "attention_bias", "rms_norm_eps", "num_key_value_heads", "head_dim"),
        "vocab_size": 262144,
        "intermediate_size": 16384,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "hidden_act": "relu2",
        "max_position_embeddings": 16384,
        "layer_norm_eps": 1e-5,
        "qk_layernorm": True,
        "partial_rotary_factor": 0.5,
    },
}
"""Options that have an effect, by family, with their defaults."""

NOT_NULL: dict[str, tuple[str, ...]] = {
    "mistral": ("attention_dropout",),
    "mixtral": ("attention_dropout", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    "qwen2": ("attention_dropout",),
    "qwen3": ("attention_dropout",),
    "gemma": ("attention_dropout",),
    "olmo": ("attention_dropout",),
    "olmo2": ("attention_dropout",),
    "olmo3": ("attention_dropout",),
    "smollm3": ("attention_dropout",),
    "seed_oss": ("attention_dropout", "pretraining_tp", "residual_dropout"),
    "helium": ("attention_dropout",),
    "phi3": ("attention_dropout", "embd_pdrop", "resid_pdrop"),
    "glm4": ("attention_dropout",),
    "stablelm": ("attention_dropout", "hidden_dropout"),
    "olmoe": ("attention_dropout", "output_router_logits", "router_aux_loss_coef"),
    "qwen3_moe": ("attention_dropout", "output_router_logits", "router_aux_loss_coef"),
    "arcee": ("attention_dropout",),
    "nemotron": ("attention_dropout",),
    "starcoder2": ("attention_dropout", "embedding_dropout", "residual_dropout"),
    "phi": ("embd_pdrop", "resid_pdrop"),
    "persimmon": ("attention_dropout", "hidden_dropout"),
    "gpt2": (
        *("attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    "gpt_neox": ("attention_dropout", "classifier_dropout", "hidden_dropout", "is_decoder"),
    "gptj": ("attn_pdrop", "embd_pdrop", "resid_pdrop"),
    "opt": ("attention_dropout", "dropout", "init_std", "layerdrop"),
    "bert": ("attention_probs_dropout_prob", "hidden_dropout_prob", "chunk_size_feed_forward"),
    "bloom": ("attention_dropout", "hidden_dropout", "pretraining_tp", "slow_but_exact"),
}
"""Options without effect that a family declares, and of which the package loads no null; others beside `num_labels`."""
