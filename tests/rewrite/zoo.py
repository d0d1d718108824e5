"""Random tiny checkpoints of each family, made without the packages that publish them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from lngeom.transformers import Linear, Stack
from lngeom.transformers.rewrite.array_files import DTYPES
from lngeom.transformers.rewrite.layouts import describe

SMALL = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2}
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
WINDOWS = ["sliding_attention", "full_attention"]
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
}
"""Options of each family; others have their defaults."""

WIDTHS = {"bloom": 64, "mpt": 64}
POSITIONS = {
    "gpt2": 12,
    "gpt_bigcode": 12,
    "gpt_neo": 12,
    "opt": 14,
    **dict.fromkeys(("bert", "ernie", *ROBERTAS, "electra", "distilbert"), 12),
}


def stack_of(kind: str, **options: Any) -> Stack:
    return describe({"model_type": kind, **CONFIGS[kind], **options}, Everything(kind))


BARE = ("wte", "embed_in", "embed_tokens", "word_emb")


class Everything:
    """Names that a file of this family has: all but those of a base model saved without its prefix."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __contains__(self, name: str) -> bool:
        return "." in name and not name.endswith("gamma") and not name.startswith(BARE)


def random_weights(kind: str, stack: Stack, dtype: Any = np.float64, seed: int = 1) -> dict[str, np.ndarray]:
    """Random arrays, gains and biases included, of the shapes that the description asks for."""
    draw = np.random.default_rng(seed)
    d = 16
    shapes: dict[str, tuple[int, ...]] = {}
    for table in stack.tables:
        rows = {"token": 23, "position": POSITIONS.get(kind, 0), "type": 2}[table.index]
        shapes[table.weight] = (rows, d)
    for block in stack.blocks:
        a = block.attention
        mixed = hasattr(block.feed_forward, "experts")
        networks = block.feed_forward.experts if mixed else (block.feed_forward,)
        inner = CONFIGS[kind].get("moe_intermediate_size" if mixed else "", WIDTHS.get(kind, 20))
        sizes: list[tuple[Linear, int, int]] = [
            (a.query, a.heads * a.query_width, d),
            (a.key, a.kv_heads * a.query_width, d),
            (a.value, a.kv_heads * a.value_width, d),
            (a.output, d, a.heads * a.value_width),
        ]
        if mixed and block.feed_forward.shared is not None:
            shared, width = block.feed_forward.shared, CONFIGS[kind]["shared_expert_intermediate_size"]
            sizes += [(shared.up, width, d), (shared.gate, width, d), (shared.down, d, width)]
            sizes.append((block.feed_forward.shared_gate, 1, d))
        for network in networks:
            sizes += [(network.up, inner, d), (network.down, d, inner)]
            sizes += [(network.gate, inner, d)] if network.gate else []
        if mixed:
            sizes.append((block.feed_forward.router, len(networks), d))
        if a.sink:
            shapes[a.sink] = (a.heads,)
        for linear, out, into in sizes:
            if linear.rows is not None:
                fused = [other.rows.indices() for other, _, _ in sizes if other.weight == linear.weight]
                out = 1 + int(np.concatenate(fused).max())
            stacked = () if linear.expert is None else (len(networks),)
            shapes[linear.weight] = (*stacked, *((out, into) if linear.layout == "oi" else (into, out)))
            if linear.bias:
                shapes[linear.bias] = (*stacked, out)
        for norm, heads in ((a.query_norm, a.heads), (a.key_norm, a.kv_heads)):
            for name in filter(None, (norm.gain, norm.bias) if norm is not None else ()):
                shapes[name] = (a.query_width * (heads if a.norm_over == "all" else 1),)
    head = stack.head
    if not stack.tied:
        shapes[head.linear.weight] = (23, d)
    if head.linear.bias:
        shapes[head.linear.bias] = (23,)
    if head.transform is not None:
        shapes[head.transform.linear.weight] = (d, d)
        if head.transform.linear.bias:
            shapes[head.transform.linear.bias] = (d,)
    gains = {}
    for site in stack.norms:
        if site.part.gain:
            shapes[site.part.gain], gains[site.part.gain] = (d,), 1 - site.part.offset
        if site.part.bias:
            shapes[site.part.bias] = (d,)
    found = {}
    for name, shape in shapes.items():
        scale = 0.5 if len(shape) == 1 else 0.4
        found[name] = (gains.get(name, 0.0) + scale * draw.standard_normal(shape)).astype(dtype)
    return found


def checkpoint(folder: Path, kind: str, dtype: Any = np.float64, *, files: int = 1, **options: Any) -> Path:
    """A folder with config.json and one or several files of random arrays."""
    stack = stack_of(kind, **options)
    weights = random_weights(kind, stack, dtype)
    folder.mkdir(parents=True)
    config = {"model_type": kind, **CONFIGS[kind], **options}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    names = sorted(weights)
    parts = [names[i::files] for i in range(files)]
    where = {}
    for i, part in enumerate(parts):
        file = "model.safetensors" if files == 1 else f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        write_file(folder / file, {name: weights[name] for name in part})
        where |= dict.fromkeys(part, file)
    if files > 1:
        index = {"metadata": {"total_size": 0}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_file(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A .safetensors file, written by another route than that of the library: all bytes at once."""
    words = {dtype: word for word, dtype in DTYPES.items()}
    header, body = {}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        where = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": words[array.dtype], "shape": list(array.shape), "data_offsets": where}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
