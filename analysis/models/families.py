"""Tiny models of each family that `lg.rewrite.load` reads, as the transformers package writes them.

Weights, gains and biases are random, in float64, and nothing is cast to float32 on the way. The package is imported
when a model is made (extra `peers`).
"""

import contextlib
import copy
import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

SMALL = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2}
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
WINDOWS = ["sliding_attention", "full_attention"]
LATENT = {
    "tie_word_embeddings": False,
    "q_lora_rank": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
}
IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 9,
    "patch_size": 3,
    "num_labels": 23,
}
GPT = {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12, "n_inner": 20}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**GROUPED, "tie_word_embeddings": False},
    "mistral": {**GROUPED, "tie_word_embeddings": False, "sliding_window": 3},
    "qwen2": {**GROUPED, "tie_word_embeddings": False},
    "qwen3": {**GROUPED, "tie_word_embeddings": True, "head_dim": 4},
    "gemma": {**SMALL, "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {
        **GROUPED,
        "head_dim": 4,
        "query_pre_attn_scalar": 4,
        "sliding_window": 3,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 8.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "olmo": {**GROUPED, "tie_word_embeddings": False},
    "olmo2": {**GROUPED, "tie_word_embeddings": False},
    "mixtral": {**GROUPED, "tie_word_embeddings": False, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_text": {
        **GROUPED,
        "head_dim": 4,
        "query_pre_attn_scalar": 4,
        "sliding_window": 3,
        "sliding_window_pattern": 2,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "olmo3": {**GROUPED, "tie_word_embeddings": False, "sliding_window": 3, "layer_types": WINDOWS},
    "smollm3": {**GROUPED, "pad_token_id": 0, "tie_word_embeddings": False, "no_rope_layer_interval": 2},
    "seed_oss": {**GROUPED, "tie_word_embeddings": False, "head_dim": 4},
    "helium": {**GROUPED, "tie_word_embeddings": False, "head_dim": 4},
    "ernie4_5": {**GROUPED, "tie_word_embeddings": False, "head_dim": 4, "use_bias": True},
    "phi3": {**GROUPED, "pad_token_id": 0, "tie_word_embeddings": False},
    "glm": {**GROUPED, "pad_token_id": 0, "tie_word_embeddings": False, "head_dim": 4},
    "glm4": {**GROUPED, "pad_token_id": 0, "tie_word_embeddings": False, "head_dim": 4},
    "stablelm": {**GROUPED, "tie_word_embeddings": False, "partial_rotary_factor": 0.5},
    "olmoe": {**GROUPED, "tie_word_embeddings": False, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **GROUPED,
        "tie_word_embeddings": False,
        "head_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "mlp_only_layers": [0],
    },
    "arcee": {**GROUPED, "tie_word_embeddings": False},
    "nemotron": {**GROUPED, "tie_word_embeddings": False},
    "starcoder2": {**GROUPED, "tie_word_embeddings": False, "sliding_window": 3},
    "phi": {**GROUPED, "tie_word_embeddings": False},
    "persimmon": {**SMALL, "tie_word_embeddings": False},
    "gpt2": {**GPT, "activation_function": "gelu_new"},
    "gpt_neox": {
        **SMALL,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "gptj": {**GPT, "rotary_dim": 2, "tie_word_embeddings": False},
    "vaultgemma": {
        **GROUPED,
        "head_dim": 4,
        "query_pre_attn_scalar": 4,
        "sliding_window": 3,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 8.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "ministral": {**GROUPED, "head_dim": 4, "tie_word_embeddings": False, "sliding_window": 3, "layer_types": WINDOWS},
    "exaone4": {**GROUPED, "tie_word_embeddings": False, "sliding_window": 3, "sliding_window_pattern": 2},
    "hunyuan_v1_dense": {**GROUPED, "tie_word_embeddings": False, "head_dim": 4},
    "granite": {
        **GROUPED,
        "tie_word_embeddings": False,
        "embedding_multiplier": 2.5,
        "logits_scaling": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
    },
    "cohere": {**GROUPED, "tie_word_embeddings": True, "logit_scale": 0.3},
    "cohere2": {
        **GROUPED,
        "tie_word_embeddings": True,
        "logit_scale": 0.3,
        "sliding_window": 3,
        "sliding_window_pattern": 2,
    },
    "qwen2_moe": {
        **GROUPED,
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 14,
        "mlp_only_layers": [0],
    },
    "deepseek_v2": {
        **SMALL,
        **LATENT,
        "q_lora_rank": None,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.5,
    },
    "deepseek_v3": {
        **SMALL,
        **LATENT,
        "num_key_value_heads": 4,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "n_group": 3,
        "topk_group": 2,
    },
    "gpt_oss": {
        **GROUPED,
        "tie_word_embeddings": False,
        "head_dim": 8,
        "sliding_window": 3,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 0.8,
        "rope_theta": 100.0,
    },
    "codegen": {**GPT, "rotary_dim": 2, "tie_word_embeddings": False},
    "gpt_bigcode": {**GPT},
    "gpt_neo": {
        **{name: value for name, value in SMALL.items() if not name.startswith("num")},
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 3,
        "max_position_embeddings": 12,
    },
    "falcon": {
        "vocab_size": 23,
        "hidden_size": 16,
        "ffn_hidden_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "tie_word_embeddings": False,
        "bias": True,
    },
    "mpt": {"vocab_size": 23, "d_model": 16, "n_layers": 2, "n_heads": 4, "max_seq_len": 12},
    "opt": {
        "vocab_size": 23,
        "hidden_size": 16,
        "ffn_dim": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 16,
        "max_position_embeddings": 12,
    },
    "bert": {**SMALL, "max_position_embeddings": 12, "type_vocab_size": 2},
    "ernie": {**SMALL, "max_position_embeddings": 12, "type_vocab_size": 2},
    **{kind: {**SMALL, "max_position_embeddings": 12, "type_vocab_size": 2} for kind in ROBERTAS},
    "electra": {**SMALL, "embedding_size": 16, "max_position_embeddings": 12, "type_vocab_size": 2},
    "distilbert": {
        "vocab_size": 23,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 20,
        "max_position_embeddings": 12,
    },
    "modernbert": {
        **SMALL,
        "pad_token_id": 0,
        "local_attention": 4,
        "layer_types": WINDOWS[::-1],
        "global_rope_theta": 1e4,
        "local_rope_theta": 100.0,
    },
    "bloom": {"vocab_size": 23, "hidden_size": 16, "n_layer": 2, "n_head": 4},
    "vit": {**IMAGES, "intermediate_size": 20},
    "dinov2": {**IMAGES, "mlp_ratio": 2},
    "t5": {
        "vocab_size": 23,
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 20,
        "num_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 6,
        "num_labels": 23,
    },
    "whisper": {
        "d_model": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 20,
        "num_mel_bins": 12,
        "max_source_positions": 9,
        "vocab_size": 23,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 8,
    },
}
"""Options of each family; others have their defaults."""

ENCODERS = ("bert", "ernie", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "modernbert")
"""Families whose models fill in masked tokens."""

VISION = ("vit", "dinov2")
"""Families whose inputs are images."""

CLASSES = {"gpt2": "GPT2LMHeadModel", "t5": "T5ForTokenClassification", "gemma3_text": "Gemma3ForCausalLM"}
CLASSES |= {"whisper": "WhisperEncoder"}
"""Classes that are not named like their configurations."""

_find = importlib.util.find_spec


def package() -> Any:
    """The package. Its import fails where torchvision does not fit torch, so it does not see torchvision."""

    def find(name: str, *rest: Any, **options: Any) -> ModuleSpec | None:
        return None if name.split(".")[0] == "torchvision" else _find(name, *rest, **options)

    with mock.patch.object(importlib.util, "find_spec", find):
        import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Casts to float32 become casts to float64."""
    import torch
    from torch.nn import functional

    to, typed, arange = torch.Tensor.to, torch.Tensor.type, torch.arange
    softmax, method = functional.softmax, torch.Tensor.softmax

    def wide(kind: Any) -> Any:
        return torch.float64 if kind is torch.float32 else kind

    def patched_to(self: Any, *args: Any, **options: Any) -> Any:
        return to(self, *map(wide, args), **{k: wide(v) for k, v in options.items()})

    def patched_type(self: Any, *args: Any, **options: Any) -> Any:
        return typed(self, *map(wide, args), **options)

    def patched_softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        return softmax(x, dim=dim, dtype=wide(dtype))

    def patched_method(self: Any, dim: Any, dtype: Any = None) -> Any:
        return method(self, dim, dtype=wide(dtype))

    def patched_arange(*args: Any, dtype: Any = None, **options: Any) -> Any:
        return arange(*args, dtype=wide(dtype), **options)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(torch.Tensor, "to", patched_to),
            mock.patch.object(torch.Tensor, "type", patched_type),
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
            mock.patch.object(torch.Tensor, "softmax", patched_method),
            mock.patch.object(torch, "arange", patched_arange),
            mock.patch.object(functional, "softmax", patched_softmax),
        ):
            yield
    finally:
        torch.set_default_dtype(before)


def model_class(kind: str, name: str | None = None) -> Any:
    """The class of a family, or another one by its name."""
    transformers = package()
    if name is None:
        config = type(transformers.AutoConfig.for_model(kind)).__name__
        ending = "ForMaskedLM" if kind in ENCODERS else "ForCausalLM"
        ending = "ForImageClassification" if kind in VISION else ending
        name = CLASSES.get(kind, config.replace("Config", ending))
    inner = {"WhisperEncoder": "models.whisper.modeling_whisper"}  # the package does not export it
    for part in inner[name].split(".") if name in inner else ():
        transformers = getattr(transformers, part)
    return getattr(transformers, name)


def save_random(
    kind: str,
    config: dict[str, Any],
    folder: Path,
    dtype: str = "float64",
    *,
    name: str | None = None,
    shards: bool = False,
) -> None:
    """A folder as the package writes it, with random weights, gains and biases.

    Args:
        kind: the family, as `model_type` of config.json names it.
        config: options; others have their defaults.
        folder: where it is written.
        dtype: of what is stored.
        name: of another class than usual.
        shards: whether the arrays are spread over several files.
    """
    import torch

    made = package().AutoConfig.for_model(kind, **copy.deepcopy(config))  # it changes objects in place
    with float64():
        model = model_class(kind, name)(made).double()
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter, value in model.named_parameters():
                one = value.ndim == 1 and "weight" in parameter and not kind.startswith("gemma")
                scale = 0.4 if value.ndim > 1 else 0.5
                value.copy_(scale * torch.randn(value.shape, generator=draw, dtype=torch.float64) + float(one))
            for name, buffer in model.named_buffers():
                if name.endswith("correction_bias"):  # which the package draws as zeros, and stores
                    buffer.copy_(0.15 * torch.randn(buffer.shape, generator=draw, dtype=torch.float64))
    model.to(getattr(torch, dtype)).save_pretrained(folder, **({"max_shard_size": "9KB"} if shards else {}))
