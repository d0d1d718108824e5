"""Layer norm against a copy, what XLA makes of a plain one, and torch."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lngeom.nn import fused_layer_norm, layer_norm

from analysis.benchmarks.gpu.timing import relative_error, seconds_of

CHAIN = 4
"""Calls of a kernel in one program."""

MODES = {"forward": 2, "forward and backward": 5}
"""How a layer is measured, and the arrays that must be moved."""


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
    "XLA": lambda x, gain, bias: plain(x, gain, bias),
    "lngeom": lambda x, gain, bias: layer_norm(x, gain, bias, eps=1e-5),
}


def plain(x: Any, gain: Any, bias: Any) -> Any:
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
        layer = torch.compile(layer, dynamic=False)  # a second shape would be compiled for any shape

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
