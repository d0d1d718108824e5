"""The `transformers` package in float64: models of random weights, and no cast to float32 on the way."""

import contextlib
import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

_find = importlib.util.find_spec


def package():
    """The package. Its import fails where torchvision does not fit torch, so it does not see torchvision."""

    def find(name: str, *rest, **options):
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

    to, softmax, arange = torch.Tensor.to, functional.softmax, torch.arange

    def wide(kind):
        return torch.float64 if kind is torch.float32 else kind

    def patched_to(self, *args, **options):
        return to(self, *map(wide, args), **{k: wide(v) for k, v in options.items()})

    def patched_softmax(x, dim=None, _stacklevel=3, dtype=None):
        return softmax(x, dim=dim, dtype=wide(dtype))

    def patched_arange(*args, dtype=None, **options):
        return arange(*args, dtype=wide(dtype), **options)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(torch.Tensor, "to", patched_to),
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
            mock.patch.object(torch, "arange", patched_arange),
            mock.patch.object(functional, "softmax", patched_softmax),
        ):
            yield
    finally:
        torch.set_default_dtype(before)


ENCODERS = ("bert", "ernie", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "modernbert")
CLASSES = {"gpt2": "GPT2LMHeadModel", "gemma3_text": "Gemma3ForCausalLM"}
MIXTURES = ("mixtral", "olmoe", "qwen3_moe", "qwen2_moe", "gpt_oss")


def model_class(kind: str):
    transformers = package()
    config = transformers.AutoConfig.for_model(kind)
    ending = "ForMaskedLM" if kind in ENCODERS else "ForCausalLM"
    return getattr(transformers, CLASSES.get(kind, type(config).__name__.replace("Config", ending)))


def named_class(kind: str, name: str | None):
    return model_class(kind) if name is None else getattr(package(), name)


def save_random(
    kind: str, config: dict, folder: Path, dtype: str = "float64", *, name: str | None = None, shards: bool = False
) -> None:
    """A folder as the package writes it, with random weights, gains and biases; of another class than usual by name."""
    import torch

    transformers = package()
    made = transformers.AutoConfig.for_model(kind, **copy.deepcopy(config))  # it changes objects in place
    with float64():
        model = named_class(kind, name)(made).double()
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, value in model.named_parameters():
                one = value.ndim == 1 and "weight" in name and not kind.startswith("gemma")
                scale = 0.4 if value.ndim > 1 else 0.5
                value.copy_(scale * torch.randn(value.shape, generator=draw, dtype=torch.float64) + float(one))
    model.to(getattr(torch, dtype)).save_pretrained(folder, **({"max_shard_size": "9KB"} if shards else {}))


def logits(kind: str, folder: Path, tokens: np.ndarray, dtype: str = "float64") -> np.ndarray:
    """Logits of a folder; every name must be in it, and no other."""
    return all_outputs(kind, folder, tokens, dtype)[0]


BESIDE = ("prediction_logits", "seq_relationship_logits", "mc_logits")


def all_outputs(
    kind: str, folder: Path, tokens: np.ndarray, dtype: str = "float64", *, name: str | None = None, spare: tuple = ()
) -> list[np.ndarray]:
    """Logits of a folder, and those of other heads; every name must be in it, and no other but `spare`."""
    import torch
    from transformers.activations import ACT2FN

    options = {"experts_implementation": "eager"} if kind in MIXTURES else {}
    with float64() if dtype == "float64" else contextlib.nullcontext():
        model, report = named_class(kind, name).from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="eager", output_loading_info=True, **options
        )
        assert not report["missing_keys"], report
        assert set(report["unexpected_keys"]) <= set(spare), report
        assert not report["mismatched_keys"], report
        if kind == "bloom":  # its own tanh form has a constant of eight digits
            for block in model.transformer.h:
                block.mlp.gelu_impl = ACT2FN["gelu_pytorch_tanh"]
        ids = torch.tensor(tokens)
        with torch.no_grad():
            found = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
    every = [found.get("logits"), *(found.get(other) for other in BESIDE)]
    return [values.double().numpy() for values in every if values is not None]
