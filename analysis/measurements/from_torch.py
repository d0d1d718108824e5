"""Torch modules through `lg.from_torch`, against torch alone: outputs, Jv, the Fisher matrix, its rank, and seconds.

`python -m analysis from_torch` takes about ten minutes on one core, prints one table, and writes
`figures/from_torch.json` and, as a table, `figures/from_torch.md`. `--only TEXT` picks models by name. Nothing compiled
is kept between runs, so that the seconds are those of a first answer. It needs the extra `peers`.

The reference is torch's own: J a row at a time by `torch.autograd.grad`, in float64, in which casts of the module's
code to float32 are casts to float64 and no embedding has a `padding_idx`; Λ = diag(p) − ppᵀ; F = Σ JᵀΛJ / N.
"""

import contextlib
import copy
import functools
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np

from analysis.measurements.model_table import ModelTable

SECONDS = 20.0
"""What a model takes in one dtype on an idle core, about."""

VOCABULARY, LENGTH, SAMPLES = 7, 5, 12
LIBRARIES = ("jax", "torch", "torchax", "transformers")
"""Packages whose versions are written beside the results."""


class Model(NamedTuple):
    """A torch module of random weights in evaluation mode, and data.

    Attributes:
        module: in float64.
        X: what it takes, arrays.
        output: which of its results is meant.
    """

    module: Any
    X: Any
    output: str | None = None


def _package() -> Any:
    """The transformers package. Its import fails where torchvision does not fit torch, so it does not see it."""
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name.split(".")[0] == "torchvision" else find(name, *rest)  # noqa: E731
    with mock.patch.object(importlib.util, "find_spec", hidden):
        import transformers
    transformers.logging.set_verbosity_error()
    return transformers


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def _tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (SAMPLES, LENGTH))


def mlp() -> Model:
    """A hidden layer with layer norm."""
    from torch import nn

    return Model(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)), _numbers(40, 4))


def cnn() -> Model:
    """A residual block with batch norm, whose statistics are those of data."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.first = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.inner, self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            h = torch.relu(self.first(self.stem(x)))
            h = torch.relu(h + self.second(self.inner(h)))
            return self.head(nn.functional.max_pool2d(h, 2).mean((2, 3)))

    module, X = Residual(), _numbers(30, 1, 6, 6)
    module(torch.tensor(2 * X + 1, dtype=torch.float32))
    return Model(module, X)


_SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}


def vit() -> Model:
    """A vision transformer."""
    package = _package()
    config = package.ViTConfig(**_SIZES, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    return Model(package.ViTForImageClassification(config), {"pixel_values": _numbers(30, 1, 8, 8)}, "logits")


def gpt2() -> Model:
    """GPT-2, whose table of tokens is its head too."""
    package = _package()
    config = package.GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    return Model(package.GPT2LMHeadModel(config), {"input_ids": _tokens()}, "logits")


def bert() -> Model:
    """BERT with three labels. Token 0 is its padding, and occurs."""
    package = _package()
    config = package.BertConfig(
        **_SIZES, vocab_size=VOCABULARY, max_position_embeddings=8, pad_token_id=0, num_labels=3
    )
    ids = _tokens()
    return Model(
        package.BertForSequenceClassification(config), {"input_ids": ids, "attention_mask": _kept(ids)}, "logits"
    )


def _kept(ids: np.ndarray) -> np.ndarray:
    """A mask of attention that leaves out the last tokens of every third sample."""
    mask = np.ones_like(ids)
    mask[::3, -2:] = 0
    return mask


def _causal(kind: str, **more: Any) -> Model:
    package = _package()
    sizes = {**_SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 16, "num_key_value_heads": 1, **more}
    config = getattr(package, f"{kind}Config")(**sizes)
    return Model(getattr(package, f"{kind}ForCausalLM")(config), {"input_ids": _tokens()}, "logits")


MODELS: dict[str, Callable[[], Model]] = {
    "MLP with layer norm": mlp,
    "ResNet with batch norm": cnn,
    "ViT": vit,
    "GPT-2": gpt2,
    "Llama": lambda: _causal("Llama"),
    "BERT": bert,
    "Qwen2": lambda: _causal("Qwen2"),
    "Gemma": lambda: _causal("Gemma", head_dim=4),
}
"""Models by name."""

KEYS = tuple(f"{name}, {dtype}" for name in MODELS for dtype in ("float64", "float32"))
"""Rows of the table, in its order."""


def made(make: Callable[[], Model], dtype: str) -> Model:
    """A model in evaluation mode, of weights that a seed draws, in a dtype.

    Biases of 0 and gains of 1, as packages start them, are moved, so that every leaf counts.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = make()
        module = found.module.to(getattr(torch, dtype)).eval()
        with torch.no_grad():
            for p in module.parameters():
                p.add_(0.2 * torch.randn(p.shape, dtype=torch.float64).to(p.dtype))
    return found._replace(module=module)


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """The code of modules finds float64 where it asks torch for float32."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(torch, "float32", torch.float64),
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
        ):
            yield
    finally:
        torch.set_default_dtype(before)


class Reference(NamedTuple):
    """What torch gives: outputs [R C], their derivative [R C P] and the Fisher matrix, and its rank."""

    z: np.ndarray
    J: np.ndarray
    F: np.ndarray
    rank: int


def reference(model: Model, names: list[str]) -> Reference:
    """The literal Fisher matrix of a module by torch alone, of a categorical distribution.

    Args:
        model: of any dtype; a copy in float64 is evaluated.
        names: of the parameters, in the order of the columns.
    """
    import torch

    module = copy.deepcopy(model.module).double()
    for part in module.modules():
        if isinstance(part, torch.nn.Embedding):
            part.padding_idx = None
    parameters = dict(module.named_parameters())
    leaves = [parameters[name] for name in names]
    tensors = jax.tree.map(torch.tensor, model.X)
    with exactly():
        result = module(**tensors) if isinstance(tensors, dict) else module(tensors)
        z = result if model.output is None else result[model.output]
        z = z.reshape(-1, z.shape[-1])
        rows = [torch.autograd.grad(v, leaves, retain_graph=True, allow_unused=True) for v in z.reshape(-1)]
    flat = [[torch.zeros_like(p) if g is None else g for g, p in zip(row, leaves, strict=True)] for row in rows]
    J = np.stack([np.concatenate([g.numpy().reshape(-1) for g in row]) for row in flat]).reshape(*z.shape, -1)
    logits = z.detach().numpy()
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    centred = J - np.einsum("rc,rcp->rp", p, J)[:, None]
    factor = (np.sqrt(p)[..., None] * centred).reshape(-1, J.shape[-1])
    samples = len(jax.tree.leaves(model.X)[0])
    return Reference(logits, J, factor.T @ factor / samples, int(np.linalg.matrix_rank(factor)))


def _off(found: Any, expected: np.ndarray) -> float:
    return float(np.max(np.abs(np.asarray(found, np.float64) - expected)) / np.max(np.abs(expected)))


def run(make: Callable[[], Model], dtype: str) -> dict[str, Any]:
    """A model in one dtype: differences from torch, relative to the largest entry, ranks, and seconds.

    Args:
        make: a function of `MODELS`.
        dtype: "float64" or "float32".

    Returns:
        parameters, outputs, Jv and F (differences), rank, certain, rank in torch, casts (lifted), and seconds: of the
        door, of the first product, of a compiled one, and of the rank.
    """
    model, seconds = made(make, dtype), {}
    X = jax.tree.map(lambda a: a.astype(dtype) if a.dtype == np.float64 else a, model.X)

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = jax.block_until_ready(call())
        seconds[name] = time.perf_counter() - start
        return value

    apply, params = timed("door", lambda: lg.from_torch(model.module, X, output=model.output))
    expected = reference(model, sorted(params))
    F = lg.fisher(apply, params, X, family=lg.families.Categorical())
    v = np.random.default_rng(1).normal(size=F.in_size())
    tangent = jnp.asarray(v, dtype)
    timed("first product", lambda: F @ tangent)
    timed("product", lambda: F @ tangent)
    direction = _unravel(params, v, dtype)
    z, moved = jax.jit(lambda p, d: jax.jvp(lambda p: apply(p, X), (p,), (d,)))(params, direction)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the rank may be", RuntimeWarning)  # the table says so
        rank = timed("rank", F.rank)
    return {
        "parameters": F.in_size(),
        "outputs": _off(np.reshape(z, expected.z.shape), expected.z),
        "Jv": _off(np.reshape(moved, expected.z.shape), expected.J @ v),
        "F": _off(F.as_matrix(), expected.F),
        "rank": int(rank),
        "certain": rank.certain,
        "rank in torch": expected.rank,
        "casts": list(apply.casts),
        "seconds": seconds,
    }


def _unravel(params: dict[str, Any], v: np.ndarray, dtype: str) -> dict[str, Any]:
    edges = np.cumsum([0, *(params[name].size for name in sorted(params))])
    parts = zip(sorted(params), edges, edges[1:], strict=False)
    return {name: jnp.asarray(v[a:b].reshape(params[name].shape), dtype) for name, a, b in parts}


HEADINGS = (
    "model",
    "dtype",
    "P",
    "outputs",
    "Jv",
    "F",
    "rank",
    "in torch",
    "door s",
    "first F v s",
    "F v ms",
    "rank s",
)
"""Columns of the table."""


def rows(results: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row a model and dtype, under `HEADINGS`."""
    found = []
    for name, r in results.items():
        s = r["seconds"]
        differences = (f"{r[key]:.0e}" for key in ("outputs", "Jv", "F"))
        ranks = (f"{r['rank']}{'' if r['certain'] else '?'}", str(r["rank in torch"]))
        times = (f"{s['door']:.1f}", f"{s['first product']:.1f}", f"{1000 * s['product']:.1f}", f"{s['rank']:.1f}")
        found.append((*name.split(", "), f"{r['parameters']:,}", *differences, *ranks, *times))
    return found


def page(results: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown: a table, and the casts that were lifted."""
    lines = [
        "# Torch modules through `lg.from_torch`",
        "",
        "Random weights, categorical outputs. Largest differences of outputs, Jv and F from torch in float64, relative",
        'to the largest entry; ranks by F.rank(), "?" where it is not certain; seconds with compilation, and of one',
        "compiled product in ms. Written by `python -m analysis from_torch`.",
        "",
        *TABLE.markdown(results),
        "",
    ]
    lifted = [f"- {name}: {'; '.join(r['casts'])}" for name, r in results.items() if r["casts"]]
    return "\n".join([*lines, *(["Casts that were lifted:", "", *lifted, ""] if lifted else [])])


TABLE = ModelTable("from_torch", HEADINGS, rows, page, LIBRARIES, SECONDS)


def main() -> None:
    """Runs the models and writes their results."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    models = {
        f"{name}, {dtype}": functools.partial(run, make, dtype)
        for name, make in MODELS.items()
        for dtype in ("float64", "float32")
    }
    TABLE.command(models, (__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
