"""Logits of folders by the `transformers` package, in float64 and with no cast to float32 on the way."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from analysis.models.families import VISION, float64, model_class

MIXTURES = ("mixtral", "olmoe", "qwen3_moe", "qwen2_moe", "gpt_oss", "deepseek_v2", "deepseek_v3")


def logits(kind: str, folder: Path, tokens: np.ndarray, dtype: str = "float64") -> np.ndarray:
    """Logits of a folder; every name must be in it, and no other."""
    return all_outputs(kind, folder, tokens, dtype)[0]


BESIDE = ("prediction_logits", "seq_relationship_logits", "mc_logits")


def all_outputs(
    kind: str, folder: Path, tokens: np.ndarray, dtype: str = "float64", *, name: str | None = None, spare: tuple = ()
) -> list[np.ndarray]:
    """Logits of a folder, and those of other heads; every name must be in it, and no other but `spare`.

    Gains may be absent where the config says that they are folded.
    """
    import torch
    from transformers.activations import ACT2FN

    options = {"experts_implementation": "eager"} if kind in MIXTURES else {}
    with float64() if dtype == "float64" else contextlib.nullcontext():
        model, report = model_class(kind, name).from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="eager", output_loading_info=True, **options
        )
        folded = json.loads((folder / "config.json").read_text()).get("flash_norm", False)
        absent = [name for name in report["missing_keys"] if not (folded and "norm" in name)]
        assert not absent, report
        assert set(report["unexpected_keys"]) <= set(spare), report
        assert not report["mismatched_keys"], report
        if kind == "bloom":  # its own tanh form has a constant of eight digits
            for block in model.transformer.h:
                block.mlp.gelu_impl = ACT2FN["gelu_pytorch_tanh"]
        ids = torch.tensor(tokens)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if kind in VISION:
            given = {"pixel_values": torch.tensor(images(tokens, model.config), dtype=getattr(torch, dtype))}
        if kind == "whisper":
            given = {"input_features": torch.tensor(frames(tokens, model.config), dtype=getattr(torch, dtype))}
        with torch.no_grad():
            found = model.eval()(**given)
    every = [found.get("logits"), *(found.get(other) for other in BESIDE)]
    some = [values.double().numpy() for values in every if values is not None]
    if not some:
        return [found["last_hidden_state"].double().numpy()]
    return [values[:, None] for values in some] if kind in VISION else some


def frames(inputs: np.ndarray, config: Any) -> np.ndarray:
    """Log-mel spectra [N, channels, frames] of inputs [N, T, 2 channels]; of numbers, inputs with a 1 at that entry."""
    if inputs.ndim == 2:
        inputs = np.eye(2 * config.num_mel_bins)[inputs]
    return inputs.reshape(len(inputs), -1, config.num_mel_bins).transpose(0, 2, 1)


def images(patches: np.ndarray, config: Any) -> np.ndarray:
    """Images of patches [N, T, channels · height · width]; of numbers, patches with a 1 at that entry."""
    (height, width), (high, wide) = (
        size if isinstance(size, list | tuple) else (size, size) for size in (config.image_size, config.patch_size)
    )
    if patches.ndim == 2:
        patches = np.eye(config.num_channels * high * wide)[patches]
    rows, columns = height // high, width // wide
    parts = patches.reshape(len(patches), rows, columns, config.num_channels, high, wide)
    return parts.transpose(0, 3, 1, 4, 2, 5).reshape(len(patches), config.num_channels, height, width)
