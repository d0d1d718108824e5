"""Layer norm, precision and Fisher products on the accelerator at hand, in nine minutes: `python -m analysis gpu`.

It measures on whatever device JAX finds. Results are written after every task, so that a run that is stopped leaves
what it measured. On an accelerator they are `gpu.json`, `gpu.md` and a figure; on a CPU the same tasks run at toy size
and are called `gpu_toy`, so that they never replace a measurement.

Calls of a kernel are chained inside one program, each on the result of the one before, and a barrier keeps the compiler
from joining them. A rate counts the bytes that must be moved: 2 arrays forward, 5 forward and backward. Small arrays
stay in the cache, so that a rate may exceed that of the memory.

It needs jax, numpy and `lngeom.nn`. What needs more (lineax for `lg.fisher`, torch, Triton through `torch.compile`,
curvlinops) is skipped where it is missing, and the results say so.
"""

import argparse
import functools
import importlib.metadata
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from lngeom._files import check_writable, replacing
from lngeom.nn import fused_layer_norm, layer_norm

from analysis import normalized_transformer as transformer

CHAIN = 8
"""Calls of a kernel in one program."""

MARGIN = 20.0
"""Seconds before the end of the budget after which no task begins."""

MODES = {"forward": 2, "forward and backward": 5}
"""How a layer is measured, and the arrays that must be moved."""

PACKAGES = ("jax", "jaxlib", "numpy", "lngeom", "torch", "triton", "curvlinops-for-pytorch", "lineax")


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        layers: rows and width of the inputs of layer norm, the most important first.
        compiled: those of `torch.compile`, which takes long.
        product: widths and samples of the network whose products are taken.
        dense: of the network whose matrix is computed.
        shape: of the transformer.
        tokens: sequences, and the length of each.
        seconds: of one measurement, about.
        dtypes: of the layers.
    """

    layers: tuple[tuple[int, int], ...]
    compiled: tuple[tuple[int, int], ...]
    product: tuple[tuple[int, ...], int]
    dense: tuple[tuple[int, ...], int]
    shape: transformer.Shape
    tokens: tuple[int, int]
    seconds: float
    dtypes: tuple[str, ...] = ("bfloat16", "float32")


_FIRST = ((16384, 4096), (16384, 1024), (4096, 512), (65536, 1024))
_REST = tuple((r, w) for r in (4096, 16384, 65536) for w in (512, 1024, 2048, 4096, 8192) if (r, w) not in _FIRST)
FULL = Sizes(
    (*_FIRST, *_REST),
    _FIRST[:2],
    ((784, 512, 512, 10), 512),
    ((64, 64, 10), 512),
    transformer.GPT2,
    (4, 256),
    0.2,
)
TOY = Sizes(((8, 128),), ((8, 128),), ((6, 5, 3), 7), ((4, 3, 3), 5), transformer.TOY, (2, 5), 0.002, ("float32",))


@dataclass
class Run:
    """The results so far.

    Attributes:
        sizes: what is measured.
        path: of the JSON file.
        deadline: on the clock `time.monotonic`.
        rows: one a measurement.
        skipped: tasks that were not run, or failed, with the reason.
        complete: whether every task was reached.
    """

    sizes: Sizes
    path: Path
    deadline: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    complete: bool = False

    @property
    def failed(self) -> list[dict[str, str]]:
        """The tasks that broke, not those whose packages are missing."""
        return [task for task in self.skipped if task["kind"] == "failed"]

    def write(self) -> None:
        """Writes the results, and the table of them."""
        found = {"device": about_device(), "complete": self.complete, "rows": self.rows, "skipped": self.skipped}
        with replacing(self.path) as file:
            file.write((json.dumps(_finite(found), indent=1, allow_nan=False) + "\n").encode())
        with replacing(self.path.with_suffix(".md")) as file:
            file.write(page(found).encode())


def about_device() -> dict[str, Any]:
    """The device, and the versions of packages."""
    device = jax.devices()[0]
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "compute capability": str(getattr(device, "compute_capability", "")),
        "count": len(jax.devices()),
        "versions": versions,
    }


def _finite(value: Any) -> Any:
    """The value with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def seconds_of(call: Callable[[], Any], wait: Callable[[Any], Any], budget: float, rounds: int = 3) -> float:
    """Smallest mean time of a call, each round about as long as the budget says."""
    wait(call())
    start = time.perf_counter()
    wait(call())
    repeats = max(1, min(1000, int(budget / max(time.perf_counter() - start, 1e-7))))
    best = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            result = call()
        wait(result)
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def relative_error(found: Any, exact: Any) -> float:
    """The relative error |a − b| / |b| of all arrays together, in float64.

    Raises:
        ArithmeticError: if it is not finite, which is no evidence.
    """
    a, b = (
        np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(t)]) for t in (found, exact)
    )
    error = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    if not math.isfinite(error):
        raise ArithmeticError("a result or its reference is not finite")
    return error


# Layer norm.


def chain(link: Callable[..., tuple], arguments: tuple, length: int = CHAIN) -> Callable[..., tuple]:
    """The program of several links, each on the result of the one before."""

    @jax.jit
    def run(*arguments: Any) -> tuple:
        for _ in range(length):
            arguments = jax.lax.optimization_barrier(link(*arguments))
        return arguments

    return functools.partial(run, *arguments)


def layer_inputs(rows: int, width: int, dtype: Any) -> tuple:
    """x, a cotangent, gain and bias, in this dtype."""
    keys = jax.random.split(jax.random.key(rows + width), 4)
    x, cotangent = (jax.random.normal(key, (rows, width), jnp.float32) for key in keys[:2])
    gain = 1 + 0.1 * jax.random.normal(keys[2], (width,), jnp.float32)
    bias = 0.1 * jax.random.normal(keys[3], (width,), jnp.float32)
    return tuple(a.astype(dtype) for a in (3 + 2 * x, cotangent, gain, bias))


def both_ways(layer: Callable) -> Callable[..., tuple]:
    """The map (x, cotangent, gain, bias) ↦ (y, dx, dγ, dβ)."""

    def run(x: Any, cotangent: Any, gain: Any, bias: Any) -> tuple:
        y, pull = jax.vjp(layer, x, gain, bias)
        return (y, *pull(cotangent))

    return run


CHECKED = 1024
"""Rows of y and dx that are compared with float64; the sums dγ and dβ are of all rows."""


def first_rows(y: Any, dx: Any, dgain: Any, dbias: Any) -> tuple:
    """What is compared."""
    return y[:CHECKED], dx[:CHECKED], dgain, dbias


@functools.lru_cache(maxsize=1)
def exact_layer_norm(rows: int, width: int, dtype: str, eps: float = 1e-5) -> tuple:
    """The four arrays of `both_ways` in float64, written out."""
    inputs = layer_inputs(rows, width, dtype)

    @jax.jit
    def exact(*inputs: Any) -> tuple:
        x, d, g, b = (a.astype(jnp.float64) for a in inputs)
        z = x - jnp.mean(x, -1, keepdims=True)
        s = 1 / jnp.sqrt(jnp.mean(z * z, -1, keepdims=True) + eps)
        n, a = z * s, g[None, :] * d
        dx = s * (a - jnp.mean(a, -1, keepdims=True) - n * jnp.mean(n * a, -1, keepdims=True))
        return first_rows(n * g[None, :] + b[None, :], dx, jnp.sum(n * d, 0), jnp.sum(d, 0))

    with jax.enable_x64(True):
        return jax.device_get(exact(*inputs))


def layer_errors(found: tuple, rows: int, width: int, dtype: str) -> list[float]:
    """Relative errors of y, dx, dγ and dβ."""
    exact = exact_layer_norm(rows, width, dtype)
    return [relative_error(a, b) for a, b in zip(first_rows(*found), exact, strict=True)]


JAX_LAYERS: dict[str, Callable] = {
    "lngeom fused": lambda x, gain, bias: fused_layer_norm(x, gain, bias, eps=1e-5),
    "XLA": lambda x, gain, bias: _plain(x, gain, bias),
    "lngeom": lambda x, gain, bias: layer_norm(x, gain, bias, eps=1e-5),
}


def _plain(x: Any, gain: Any, bias: Any) -> Any:
    """Layer norm as one writes it, in float32, for XLA to compile."""
    z = x.astype(jnp.float32)
    z = z - jnp.mean(z, -1, keepdims=True)
    z = z * jax.lax.rsqrt(jnp.mean(z * z, -1, keepdims=True) + 1e-5)
    return (z * gain.astype(jnp.float32)[None, :] + bias.astype(jnp.float32)[None, :]).astype(x.dtype)


WRONG = 16
"""Units of rounding by which y and dx of a layer may differ from float64: more is no rounding."""


def require_correct(name: str, dtype: str, errors: list[float]) -> None:
    """Raises an ArithmeticError where y or dx is wrong by more than rounding."""
    bound = WRONG * float(jnp.finfo(dtype).eps)
    if max(errors[:2]) > bound:
        raise ArithmeticError(f"{name}: y or dx differs from float64 by {max(errors[:2]):.1e}, more than {bound:.1e}")


def layer_rows(
    name: str, rows: int, width: int, dtype: str, seconds: dict[str, float], errors: list[float]
) -> list[dict[str, Any]]:
    """A row for each mode."""
    size = jnp.dtype(dtype).itemsize * rows * width
    base = {"task": "layer norm", "implementation": name, "rows": rows, "width": width, "dtype": dtype}
    named = dict(zip(("error of y", "error of dx", "error of dgain", "error of dbias"), errors, strict=False))
    return [
        base
        | {"mode": mode, "microseconds": 1e6 * s, "GB/s": 1e-9 * MODES[mode] * size / s}
        | (named if mode != "forward" else {})
        for mode, s in seconds.items()
    ]


def jax_layer(name: str, rows: int, width: int, dtype: str, budget: float) -> list[dict[str, Any]]:
    """Times and errors of one layer of JAX."""
    inputs = layer_inputs(rows, width, dtype)
    layer = JAX_LAYERS[name]
    both = both_ways(layer)
    errors = layer_errors(jax.jit(both)(*inputs), rows, width, dtype)
    require_correct(name, dtype, errors)
    x, cotangent, gain, bias = inputs

    def forward(x: Any) -> tuple:
        return (layer(x, gain, bias),)

    def link(x: Any, cotangent: Any, _dgain: Any, _dbias: Any) -> tuple:
        return both(x, cotangent, gain, bias)

    programs = {"forward": chain(forward, (x,)), "forward and backward": chain(link, (x, cotangent, gain, bias))}
    times = {mode: seconds_of(run, jax.block_until_ready, budget) / CHAIN for mode, run in programs.items()}
    return layer_rows(name, rows, width, dtype, times, errors)


def copy_rate(rows: int, width: int, dtype: str, budget: float) -> list[dict[str, Any]]:
    """The rate of x + 1, which reads and writes one array: the ceiling."""
    x = layer_inputs(rows, width, dtype)[0]
    run = chain(lambda x: (x + 1,), (x,))
    return layer_rows(
        "copy", rows, width, dtype, {"forward": seconds_of(run, jax.block_until_ready, budget) / CHAIN}, []
    )


def torch_layer(rows: int, width: int, dtype: str, budget: float, compiled: bool) -> list[dict[str, Any]]:
    """Times and errors of torch's layer norm, or of what `torch.compile` makes of it (Triton kernels on a GPU)."""
    import torch

    if compiled and not torch.cuda.is_available():
        raise ImportError("torch.compile makes Triton kernels on a GPU only")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arrays = layer_inputs(rows, width, dtype)
    x, cotangent, gain, bias = (torch.tensor(np.array(a, np.float32)).to(device, getattr(torch, dtype)) for a in arrays)

    def layer(x: Any, gain: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (width,), gain, bias, 1e-5)

    if compiled:
        layer = torch.compile(layer)

    def both(x: Any, cotangent: Any) -> tuple:
        leaves = [v.detach().requires_grad_() for v in (x, gain, bias)]
        y = layer(*leaves)
        return (y.detach(), *torch.autograd.grad(y, leaves, cotangent))

    def forward_links() -> Any:
        y = x
        with torch.no_grad():
            for _ in range(CHAIN):
                y = layer(y, gain, bias)
        return y

    def both_links() -> Any:
        y, d = x, cotangent
        for _ in range(CHAIN):
            y, d, *_ = both(y, d)
        return d

    found = tuple(v.double().cpu().numpy() for v in first_rows(*both(x, cotangent)))
    errors = layer_errors(found, rows, width, dtype)
    require_correct("torch", dtype, errors)
    wait = (lambda _: torch.cuda.synchronize()) if device == "cuda" else (lambda _: None)
    programs = {"forward": forward_links, "forward and backward": both_links}
    if device == "cuda":
        programs = {mode: _captured(run, torch) for mode, run in programs.items()}
    times = {mode: seconds_of(run, wait, budget) / CHAIN for mode, run in programs.items()}
    return layer_rows("torch compiled (Triton)" if compiled else "torch", rows, width, dtype, times, errors)


def _captured(run: Callable[[], Any], torch: Any) -> Callable[[], Any]:
    """The calls as a CUDA graph, which takes the launches from Python out of the time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


# Precision.


def precision() -> list[dict[str, Any]]:
    """What float32 matrix products round to by default, with `highest`, and in torch: TF32 has errors near 3e-4."""
    size = 256
    a, b = (jax.random.normal(jax.random.key(k), (size, size), jnp.float32) for k in range(2))
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    rows = []
    for name in ("default", "high", "highest"):
        found = jax.jit(functools.partial(jnp.matmul, precision=name))(a, b)
        rows.append({"task": "precision", "implementation": f"jax, {name}", "error": relative_error(found, exact)})
    configured = str(jax.config.jax_default_matmul_precision)
    rows[0] |= {"setting": f"jax_default_matmul_precision={configured}"}
    try:
        import torch
    except ImportError:
        return rows
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.tensor(np.array(a)).to(device) @ torch.tensor(np.array(b)).to(device)
    setting = f"torch.get_float32_matmul_precision()={torch.get_float32_matmul_precision()}"
    error = relative_error(found.cpu().numpy(), exact)
    return [*rows, {"task": "precision", "implementation": "torch, default", "error": error, "setting": setting}]


# Fisher products and matrices.


def network_parts(widths: tuple[int, ...], samples: int) -> tuple[Callable, list, np.ndarray]:
    """A network with layer norm and tanh after each hidden layer: its function, parameters and inputs as NumPy."""
    rng = np.random.default_rng(0)
    params = []
    for k, (a, b) in enumerate(itertools.pairwise(widths)):
        layer = {"w": rng.standard_normal((a, b)) / a**0.5, "b": np.zeros(b)}
        last = k == len(widths) - 2
        params.append(layer if last else layer | {"gain": np.ones(b), "shift": np.zeros(b)})

    def apply(params: list, x: Any) -> Any:
        for layer in params[:-1]:
            x = x @ layer["w"] + layer["b"]
            x = transformer.normalize(x, {"gain": layer["gain"], "bias": layer["shift"]}, 1e-5)
            x = jnp.tanh(x)
        return x @ params[-1]["w"] + params[-1]["b"]

    return apply, params, rng.standard_normal((samples, widths[0]))


def softmax_metric(z: Any, dz: Any) -> Any:
    """Λ dz of a softmax, (diag p − p pᵀ) dz, in log-sum-exp form."""
    p = jax.nn.softmax(z)
    return p * (dz - jnp.sum(p * dz, -1, keepdims=True))


def written_product(apply: Callable) -> Callable:
    """The product jvp → Λ → vjp, written by hand."""

    @jax.jit
    def product(params: Any, X: Any, v: Any) -> Any:
        z, push = jax.linearize(lambda p: apply(p, X), params)
        (out,) = jax.linear_transpose(push, params)(softmax_metric(z, push(v)) / len(X))
        return out

    return product


def _exact_product(apply: Callable, params: Any, X: Any, v: Any) -> Any:
    with jax.enable_x64(True):
        wide = lambda tree: jax.tree.map(lambda a: jnp.asarray(a).astype(jnp.float64), tree)  # noqa: E731
        X = wide(X) if jnp.issubdtype(jnp.asarray(X).dtype, jnp.floating) else X
        return jax.device_get(written_product(apply)(wide(params), X, wide(v)))


def _direction(params: Any) -> Any:
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape), a.dtype), params)


def products(sizes: Sizes, precise: str | None) -> Iterator[dict[str, Any]]:
    """Time and error of one product of a network."""
    apply, params, X = network_parts(*sizes.product)
    params, X = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, X))
    v = _direction(params)
    exact = _exact_product(apply, params, X, v)
    base = {"task": "Fisher product", "parameters": sum(a.size for a in jax.tree.leaves(params)), "samples": len(X)}
    for name, make in PRODUCTS.items():
        with _precision(precise):
            product = make(apply, params, X)
            error = relative_error(product(v), exact)
            took = seconds_of(lambda product=product: product(v), jax.block_until_ready, sizes.seconds)
        yield base | {
            "implementation": name,
            "precision": precise or "default",
            "error": error,
            "microseconds": 1e6 * took,
        }


def _precision(name: str | None) -> Any:
    return jax.default_matmul_precision(name) if name else nullcontext()


def _lngeom_product(apply: Callable, params: Any, X: Any) -> Callable:
    import lngeom as lg

    return lg.fisher(apply, params, X, family=lg.families.Categorical(), check=False).mv


PRODUCTS: dict[str, Callable[..., Callable]] = {
    "jvp–vjp": lambda apply, params, X: functools.partial(written_product(apply), params, X),
    "lngeom": _lngeom_product,
}


def _torch_network(widths: tuple[int, ...], params: list, X: Any) -> tuple[Any, Any, Any, str]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    modules: list[Any] = []
    for layer in params:
        a, b = layer["w"].shape
        linear = torch.nn.Linear(a, b)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(np.array(layer["w"]).T))
            linear.bias.copy_(torch.tensor(np.array(layer["b"])))
        modules += [linear, torch.nn.LayerNorm(b), torch.nn.Tanh()]
    module = torch.nn.Sequential(*modules[:-2]).to(device)
    return module, torch.tensor(np.array(X)).to(device), torch, device


def _in_torch(tree: list) -> Any:
    """A tangent in torch's order: the transposed kernel, bias, gain and shift of each layer."""
    parts = [
        [np.asarray(t["w"]).T, *(np.asarray(t[name]) for name in ("b", "gain", "shift") if name in t)] for t in tree
    ]
    return np.concatenate([a.ravel() for layer in parts for a in layer])


def torch_products(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """The same product, and the matrix of the smaller network, by curvlinops."""
    import curvlinops
    import torch

    torch.set_default_dtype(torch.float32)
    for task, (widths, samples) in (("Fisher product", sizes.product), ("Fisher matrix", sizes.dense)):
        apply, params, X = network_parts(widths, samples)
        params, X = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, X))
        module, inputs, _, device = _torch_network(widths, params, X)
        data = [(inputs, torch.zeros(samples, dtype=torch.long, device=device))]
        loss, weights = torch.nn.CrossEntropyLoss(), list(module.parameters())
        G = curvlinops.GGNLinearOperator(module, loss, weights, data, check_deterministic=False)
        wait = (lambda _: torch.cuda.synchronize()) if device == "cuda" else (lambda _: None)
        size = sum(p.numel() for p in weights)
        v = _direction(params)
        flat = torch.tensor(_in_torch(v).astype(np.float32)).to(device)
        error = relative_error((G @ flat).cpu().numpy(), _in_torch(_exact_product(apply, params, X, v)))
        eye = torch.eye(size, device=device) if task == "Fisher matrix" else None

        def run(G: Any = G, eye: Any = eye, flat: Any = flat, size: int = size) -> Any:
            return G @ flat if eye is None else torch.cat([G @ eye[:, k : k + 64] for k in range(0, size, 64)], 1)

        took = seconds_of(run, wait, sizes.seconds)
        base = {"task": task, "parameters": size, "samples": samples, "implementation": f"curvlinops ({device})"}
        yield base | {"precision": "default", "error": error, "microseconds": 1e6 * took}


def matrices(sizes: Sizes, precise: str | None) -> Iterator[dict[str, Any]]:
    """Time and error of the matrix of a small network."""
    apply, params, X = network_parts(*sizes.dense)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (params, X))
        exact = np.asarray(_columns(apply, *wide))
    params, X = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, X))
    base = {"task": "Fisher matrix", "parameters": len(exact), "samples": len(X), "precision": precise or "default"}
    for name, make in (("jvp–vjp", _written_matrix), ("lngeom", _lngeom_matrix)):
        with _precision(precise):
            run = make(apply, params, X)
            error = relative_error(run(), exact)
            took = seconds_of(run, jax.block_until_ready, sizes.seconds)
        yield base | {"implementation": name, "error": error, "microseconds": 1e6 * took}


def _columns(apply: Callable, params: Any, X: Any) -> Any:
    """The matrix, 64 columns of products at a time."""
    flat, unravel = ravel_pytree(params)
    z, push = jax.linearize(lambda p: apply(p, X), params)
    pull = jax.linear_transpose(push, params)

    def column(k: Any) -> Any:
        v = unravel(jnp.zeros_like(flat).at[k].set(1))
        return ravel_pytree(pull(softmax_metric(z, push(v)) / len(X))[0])[0]

    return jax.lax.map(column, jnp.arange(flat.size), batch_size=64)


def _written_matrix(apply: Callable, params: Any, X: Any) -> Callable:
    return functools.partial(jax.jit(functools.partial(_columns, apply)), params, X)


def _lngeom_matrix(apply: Callable, params: Any, X: Any) -> Callable:
    import lngeom as lg

    return lg.fisher(apply, params, X, family=lg.families.Categorical(), check=False).as_matrix


def transformer_products(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Time, memory and error of one product of a transformer of GPT-2's shape, by default and in full float32."""
    apply, (count, length) = transformer.function(sizes.shape), sizes.tokens
    params = transformer.parameters(sizes.shape, jax.random.key(0))
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, sizes.shape.vocabulary, (count, length)), jnp.int32)
    v = _direction(params)
    exact = _exact_product(apply, params, tokens, v)
    total = sum(a.size for a in jax.tree.leaves(params))
    base = {"task": "transformer product", "parameters": total, "samples": count, "length": length}
    for precise, (name, make) in itertools.product((None, "highest"), PRODUCTS.items()):
        with _precision(precise):
            product = make(apply, params, tokens)
            error = relative_error(product(v), exact)
            took = seconds_of(lambda product=product: product(v), jax.block_until_ready, sizes.seconds)
        row = {"implementation": name, "precision": precise or "default", "microseconds": 1e6 * took, "error": error}
        if name == "jvp–vjp":
            plan = written_product(apply).lower(params, tokens, v).compile().memory_analysis()
            row |= {} if plan is None else {"temporary bytes": plan.temp_size_in_bytes}
        yield base | row


def tasks(sizes: Sizes) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All tasks, the most important first."""
    yield "precision", precision

    def layers(shapes: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        for rows, width in shapes:
            for dtype in sizes.dtypes:
                at = (rows, width, dtype, sizes.seconds)
                yield f"copy, {rows} × {width} {dtype}", functools.partial(copy_rate, *at)
                for name in JAX_LAYERS:
                    yield f"{name}, {rows} × {width} {dtype}", functools.partial(jax_layer, name, *at)
                yield f"torch, {rows} × {width} {dtype}", functools.partial(torch_layer, *at, compiled=False)

    yield from layers(sizes.layers[:2])
    for precise in (None, "highest"):
        of = precise or "default"
        yield f"Fisher products, {of}", functools.partial(products, sizes, precise)
        yield f"Fisher matrices, {of}", functools.partial(matrices, sizes, precise)
    yield "Fisher by curvlinops", functools.partial(torch_products, sizes)
    yield "transformer", functools.partial(transformer_products, sizes)
    for rows, width in sizes.compiled:
        for dtype in sizes.dtypes:
            at = (rows, width, dtype, sizes.seconds)
            yield f"torch.compile, {rows} × {width} {dtype}", functools.partial(torch_layer, *at, compiled=True)
    yield from layers(sizes.layers[2:])


def measure(run: Run, say: Callable[[str], None]) -> Run:
    """Runs the tasks until the budget is spent, and writes what there is after each."""
    for name, task in tasks(run.sizes):
        if time.monotonic() > run.deadline - MARGIN:
            run.skipped.append({"task": name, "kind": "budget", "reason": "the time was spent"})
            continue
        start = time.monotonic()
        try:
            for row in task():
                run.rows.append(row)
        except ImportError as error:
            run.skipped.append({"task": name, "kind": "missing", "reason": str(error)})
        except Exception as error:  # the other tasks are worth measuring
            run.skipped.append({"task": name, "kind": "failed", "reason": f"{type(error).__name__}: {error}"[:500]})
        say(f"{time.monotonic() - start:6.1f} s  {name}")
        run.write()
    run.complete = not any(task["kind"] == "budget" for task in run.skipped)
    run.write()
    return run


# What is written.


def page(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    device = found["device"]
    versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
    lines = ["# Measured on one accelerator", "", f"{device['kind']} ({device['platform']}); {versions}.", ""]
    layers = [row for row in found["rows"] if row["task"] == "layer norm"]
    others = [row for row in found["rows"] if row["task"] != "layer norm"]
    if layers:
        lines += ["| rows × width | dtype | mode | implementation | µs | GB/s | error of y | of dx |", "|---" * 8 + "|"]
        for row in layers:
            errors = [f"{row[k]:.1e}" if k in row else "" for k in ("error of y", "error of dx")]
            cells = (f"{row['rows']} × {row['width']}", row["dtype"], row["mode"], row["implementation"])
            lines.append(
                f"| {' | '.join(cells)} | {row['microseconds']:.1f} | {row['GB/s']:.0f} | {' | '.join(errors)} |"
            )
        lines.append("")
    if others:
        lines += ["| task | parameters | implementation | precision | µs | error against float64 |", "|---" * 6 + "|"]
        for row in others:
            took = f"{row['microseconds']:.0f}" if "microseconds" in row else ""
            kind = row.get("precision", row.get("setting", ""))
            cells = (
                row["task"],
                str(row.get("parameters", "")),
                row["implementation"],
                kind,
                took,
                f"{row['error']:.1e}",
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [f"- not measured: {task['task']}: {task['reason'].splitlines()[0]}" for task in found["skipped"]]
    return "\n".join(lines) + "\n"


def title(rows: list[dict[str, Any]]) -> str:
    """The range of the fused kernel's rate over that of the copy, forward, in arrays that no cache holds."""
    large = [r for r in rows if r["task"] == "layer norm" and r["mode"] == "forward"]
    largest = max((r["rows"] * r["width"] for r in large), default=0)
    rate = {(r["implementation"], r["dtype"]): r["GB/s"] for r in large if r["rows"] * r["width"] == largest}
    shares = [
        rate["lngeom fused", d] / rate["copy", d] for _, d in rate if {("lngeom fused", d), ("copy", d)} <= {*rate}
    ]
    if not shares:
        return "Layer norm on an accelerator"
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return (
        f"Fused layer norm moves {low if low == high else f'{low} to {high}'} % of the bytes a second that a copy moves"
    )


def draw(rows: list[dict[str, Any]], stem: Path, device: dict[str, Any]) -> list[Path]:
    """The rates of layer norm by width."""
    from lngeom import plots
    from lngeom.plots.axes import common_legend
    from lngeom.plots.style import STYLE

    rows = [row for row in rows if row["task"] == "layer norm"]
    panels = [(mode, dtype) for mode in MODES for dtype in ("bfloat16", "float32")]
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    most = max((row["rows"] for row in rows), default=0)
    with plots.figure(2, 2, height=4.6) as (figure, axes):
        for axis, (mode, dtype) in zip(np.ravel(axes), panels, strict=True):
            for name, look in zip(names, STYLE["axes.prop_cycle"], strict=False):
                here = [r for r in rows if (r["mode"], r["dtype"], r["implementation"]) == (mode, dtype, name)]
                line = sorted((r["width"], r["GB/s"]) for r in here if r["rows"] == most)
                if line:
                    axis.plot(*zip(*line, strict=True), marker="o", markersize=3, label=name, **look)
            axis.set(xscale="log", yscale="log", xlabel="width", ylabel="GB/s", title=f"{mode}, {dtype}")
        if names:
            common_legend(figure, np.ravel(axes))
        about = (
            f"Bytes that must be moved over the time, by width, {most} rows, on {device['kind']}: a copy is "
            "the ceiling. Smallest times of three rounds, so there is no band."
        )
        return plots.save(figure, stem, {"rows": rows}, title=title(rows), caption=about, configuration=device)


def main() -> None:
    """Measures within the budget, writes results, a table and a figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="budget; results so far stay when it is spent")
    parser.add_argument("--toy", action="store_true", help="at toy size, as on a CPU")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    if not options.minutes > 0:
        parser.error(f"--minutes must be more than 0; got {options.minutes}")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory on the same device
    check_writable(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    toy = options.toy or jax.devices()[0].platform == "cpu"
    path = options.out / ("gpu_toy.json" if toy else "gpu.json")
    run = Run(TOY if toy else FULL, path, time.monotonic() + 60 * options.minutes)

    def stop() -> None:
        sys.stderr.write(f"the budget of {options.minutes:g} minutes is spent; what was measured is in {path}\n")
        sys.stderr.flush()
        os._exit(0)

    watch = threading.Timer(60 * options.minutes, stop)
    watch.daemon = True
    watch.start()
    measure(run, lambda line: print(line, file=sys.stderr, flush=True))
    print(path.with_suffix(".md").read_text(encoding="utf-8"))
    try:
        draw(run.rows, path.with_name(f"{path.stem}_rates"), about_device())
    except ImportError as error:
        print(f"no figure: {error}", file=sys.stderr)
    watch.cancel()
    if run.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
