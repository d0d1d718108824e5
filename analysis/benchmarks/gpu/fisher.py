"""Precision of matrix products, and Fisher products and matrices that rest on it."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from analysis.benchmarks.gpu.sizes import Sizes
from analysis.benchmarks.gpu.timing import relative_error, seconds_of
from analysis.models import gpt2 as transformer


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


def _measured(
    base: dict[str, Any], make: Callable[[], Callable], arguments: tuple, exact: Any, precise: str | None, budget: float
) -> dict[str, Any]:
    """A row: time until the first result is there, time of a later call, and error."""
    with _precision(precise):
        start = time.perf_counter()
        call = make()
        found = jax.block_until_ready(call(*arguments))
        first = time.perf_counter() - start
        took = seconds_of(lambda: call(*arguments), jax.block_until_ready, budget)
    times = {"microseconds": 1e6 * took, "first call, s": first}
    return base | {"precision": precise or "default", "error": relative_error(found, exact)} | times


PRECISIONS = (None, "highest")
"""JAX's default, which is TF32 on recent GPUs, and full float32."""


def products(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Time and error of one product of a network, by default and in full float32."""
    apply, params, X = network_parts(*sizes.product)
    params, X = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, X))
    v = _direction(params)
    exact = _exact_product(apply, params, X, v)
    base = {"task": "Fisher product", "parameters": sum(a.size for a in jax.tree.leaves(params)), "samples": len(X)}
    for precise, (name, make) in itertools.product(PRECISIONS, PRODUCTS.items()):
        made = functools.partial(make, apply, params, X)
        yield _measured(base | {"implementation": name}, made, (v,), exact, precise, sizes.seconds)


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


def matrices(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Time and error of the matrix of a small network, by default and in full float32."""
    apply, params, X = network_parts(*sizes.dense)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (params, X))
        exact = np.asarray(_columns(apply, *wide))
    params, X = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, X))
    base = {"task": "Fisher matrix", "parameters": len(exact), "samples": len(X)}
    ways = {"jvp–vjp": _written_matrix, "lngeom": _lngeom_matrix}
    for precise, (name, make) in itertools.product(PRECISIONS, ways.items()):
        made = functools.partial(make, apply, params, X)
        yield _measured(base | {"implementation": name}, made, (), exact, precise, sizes.seconds)


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
    for precise, (name, make) in itertools.product(PRECISIONS, PRODUCTS.items()):
        made = functools.partial(make, apply, params, tokens)
        row = _measured(base | {"implementation": name}, made, (v,), exact, precise, sizes.seconds)
        if name == "jvp–vjp":
            with _precision(precise):
                plan = written_product(apply).lower(params, tokens, v).compile().memory_analysis()
            row |= {} if plan is None else {"temporary bytes": plan.temp_size_in_bytes}
        yield row
