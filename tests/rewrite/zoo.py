"""Random tiny checkpoints of each family, made without the packages that publish them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from analysis.models.families import CONFIGS, ROBERTAS
from lngeom.transformers import Linear, Stack
from lngeom.transformers.rewrite.array_files import DTYPES
from lngeom.transformers.rewrite.layouts import describe

WIDTHS = {"bloom": 64, "mpt": 64, "dinov2": 32}
POSITIONS = {
    "gpt2": 12,
    "gpt_bigcode": 12,
    "gpt_neo": 12,
    "opt": 14,
    **dict.fromkeys(("bert", "ernie", *ROBERTAS, "electra", "distilbert"), 12),
    "vit": 10,
    "dinov2": 10,
    "whisper": 9,
}


def stack_of(kind: str, **options: Any) -> Stack:
    return describe({"model_type": kind, **CONFIGS[kind], **options}, Everything(kind))


BARE = ("wte", "embed_in", "embed_tokens", "word_emb")


class Everything:
    """Names that a file of this family has: all but those of a base model saved without its prefix."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __contains__(self, name: str) -> bool:
        another = (*BARE, "transformer.decoder.") + (
            ("encoder.", "decoder.", "model.") if self.kind == "whisper" else ()
        )
        return "." in name and not name.endswith("gamma") and not name.startswith(another)


def random_weights(kind: str, stack: Stack, dtype: Any = np.float64, seed: int = 1) -> dict[str, np.ndarray]:
    """Random arrays, gains and biases included, of the shapes that the description asks for."""
    draw = np.random.default_rng(seed)
    d = 16
    shapes: dict[str, tuple[int, ...]] = {}
    for table in stack.tables:
        rows = {"token": 23, "position": POSITIONS.get(kind, 0), "type": 2, "patch": 27, "input": 1, "leading": 1}
        count = rows[table.index]
        shapes[table.weight] = (count, d) if table.layout == "rows" else (1, count, d)
        if table.index in {"patch", "input"}:
            shapes[table.weight] = (d, 3, 3, 3) if table.index == "patch" else (d,)
    for layer, channels in zip(stack.front.layers if stack.front else (), (12, d), strict=False):
        shapes |= {layer.linear.weight: (d, channels, 3), layer.linear.bias: (d,)}
    for block in stack.blocks:
        a = block.attention
        mixed = hasattr(block.feed_forward, "experts")
        networks = block.feed_forward.experts if mixed else (block.feed_forward,)
        inner = CONFIGS[kind].get("moe_intermediate_size" if mixed else "", WIDTHS.get(kind, 20))
        sizes: list[tuple[Linear, int, int]] = [
            (a.query, a.heads * a.query_width, a.query_latent.width if a.query_latent else d),
            (a.key, a.kv_heads * a.key_width, a.kv_latent.width if a.kv_latent else d),
            (a.value, a.kv_heads * a.value_width, a.kv_latent.width if a.kv_latent else d),
            (a.output, d, a.heads * a.value_width),
            *((latent.linear, latent.width, d) for _, latent, _ in a.latents()),
            *([(a.shared_key, a.shared_width, d)] if a.shared_key else []),
        ]
        if mixed and block.feed_forward.shared is not None:
            shared, gate = block.feed_forward.shared, block.feed_forward.shared_gate
            width = CONFIGS[kind].get(
                "shared_expert_intermediate_size", CONFIGS[kind].get("n_shared_experts", 1) * inner
            )
            sizes += [(shared.up, width, d), (shared.gate, width, d), (shared.down, d, width)]
            sizes += [(gate, 1, d)] if gate else []
        if mixed and block.feed_forward.choice_bias:
            shapes[block.feed_forward.choice_bias] = (len(networks),)
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
        if a.relative:
            shapes[a.relative] = (a.buckets.count, a.heads)
        for name in filter(None, (block.attention_scale, block.feed_forward_scale)):
            shapes[name] = (d,)
        for norm, heads in ((a.query_norm, a.heads), (a.key_norm, a.kv_heads)):
            for name in filter(None, (norm.gain, norm.bias) if norm is not None else ()):
                shapes[name] = (a.query_width * (heads if a.norm_over == "all" else 1),)
    head = stack.head
    if not stack.tied and not stack.hidden_states:
        shapes[head.linear.weight] = (23, 2 * d if head.mean else d)
    if head.linear is not None and head.linear.bias:
        shapes[head.linear.bias] = (23,)
    if head.transform is not None:
        shapes[head.transform.linear.weight] = (d, d)
        if head.transform.linear.bias:
            shapes[head.transform.linear.bias] = (d,)
    gains = {}
    for site in stack.norms:
        size = stack.output_space(site).width or d
        if site.part.gain:
            shapes[site.part.gain], gains[site.part.gain] = (size,), 1 - site.part.offset
        if site.part.bias:
            shapes[site.part.bias] = (size,)
    found = {}
    for name, shape in shapes.items():
        scale = 0.15 if name.endswith("correction_bias") else 0.5 if len(shape) == 1 else 0.4
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
