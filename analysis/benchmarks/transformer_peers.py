"""Products of a 10 M transformer, ours and those of PyTorch libraries: `python -m analysis transformer_peers`.

The transformer of `python -m analysis large_transformer --size 10M`, with the same float32 weights in JAX and in
PyTorch, on one sequence. Each contender has a process of its own:

- lngeom: `F.mv`, exact, with all logits and with 512 of them at a time;
- curvlinops: `GGNLinearOperator`, exact;
- hessian-eigenthings: `GGNOperator`, exact, and `HessianOperator` by central differences of gradients, which its
  documentation offers for models of this size. That is the Hessian of the loss, not the Fisher matrix.

For each: the error of Fv (Hv) relative to float64 by JAX, for one random v; seconds of a product, the median of some,
once it is compiled; and the highest memory of the process beyond what it held before, in multiples of the parameters.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom._core.files import check_writable, temporary_folder

from analysis.measurements.large_transformer import SIZES, forget_peak, in_blocks, memory, problem
from analysis.store import write_results

BLOCK = 512
"""Logits at a time, of 4096."""

OURS = {"lngeom": False, "lngeom, logits in blocks": True}
PEERS = {
    "curvlinops, GGN": "curvlinops",
    "hessian-eigenthings, GGN": "hessian_eigenthings",
    "hessian-eigenthings, Hessian by differences": "hessian_eigenthings",
}
PACKAGES = {"curvlinops": "curvlinops-for-pytorch", "hessian_eigenthings": "hessian-eigenthings"}


def inputs(size: str, tokens: int) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Weights, data and direction, in float32.

    Args:
        size: of `large_transformer.SIZES`.
        tokens: of the sequence.

    Returns:
        (stack, params, apply, tokens [1 T], targets [1 T], v).
    """
    stack, params, apply, data = problem(size, jnp.float32, tokens)
    targets = jax.random.randint(jax.random.key(2), data.shape, 0, SIZES[size].vocabulary)
    rng = np.random.default_rng(4)
    v = {n: jnp.asarray(rng.normal(size=w.shape), jnp.float32) for n, w in params.items()}
    return stack, params, apply, data, targets, v


def module(size: str, params: dict[str, np.ndarray]) -> Any:
    """The same transformer as a module of PyTorch.

    Args:
        size: of `large_transformer.SIZES`.
        params: weights by name.

    Returns:
        The module, whose parameters have the order of the names, with "/" for ".".
    """
    import torch
    from torch.nn import functional

    variant = SIZES[size]

    class Transformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, w in sorted(params.items()):
                self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(torch.tensor(np.array(w))))

        def forward(self, tokens: Any) -> Any:
            get = lambda name: getattr(self, name.replace(".", "/"))  # noqa: E731
            linear = lambda x, path: functional.linear(x, get(f"{path}.weight"), get(f"{path}.bias"))  # noqa: E731

            def norm(x: Any, path: str) -> Any:
                x = x - x.mean(-1, keepdim=True)
                return x / x.square().mean(-1, keepdim=True).sqrt() * get(f"{path}.gain") + get(f"{path}.beta")

            count = tokens.shape[1]
            later = torch.ones(count, count, dtype=torch.bool).triu(1)
            x = get("tokens")[tokens] + get("positions")[:count]
            for k in range(variant.blocks):
                y = norm(x, f"blocks.{k}.norm1")
                q, key, value = (
                    linear(y, f"blocks.{k}.attention.{part}").unflatten(-1, (variant.heads, -1)).transpose(1, 2)
                    for part in ("query", "key", "value")
                )
                scores = (q @ key.transpose(-1, -2)) * variant.query_width**-0.5
                shares = scores.masked_fill(later, -torch.inf).softmax(-1)
                x = x + linear((shares @ value).transpose(1, 2).flatten(-2), f"blocks.{k}.attention.output")
                y = norm(x, f"blocks.{k}.norm2")
                y = functional.gelu(linear(y, f"blocks.{k}.network.up"), approximate="tanh")
                x = x + linear(y, f"blocks.{k}.network.down")
            return functional.linear(norm(x, "final"), get("tokens")).flatten(0, 1)

    return Transformer()


def references(size: str, tokens: int) -> dict[str, np.ndarray]:
    """Fv and Hv in float64 by JAX, as flat arrays in the order of the names.

    Args:
        size: of `large_transformer.SIZES`.
        tokens: of the sequence.

    Returns:
        By "GGN" and "Hessian", both for the mean over positions.
    """
    _, params, apply, data, targets, v = inputs(size, tokens)
    with jax.enable_x64(True):
        params, v = ({n: w.astype(jnp.float64) for n, w in tree.items()} for tree in (params, v))

        def loss(p: Any) -> jax.Array:
            logp = jax.nn.log_softmax(apply(p, data)[0])
            return -jnp.mean(jnp.take_along_axis(logp, targets[0, :, None], 1))

        F = lg.fisher(apply, params, data, family=lg.families.Categorical(), chunk=1, check=False)
        hessian = jax.jit(lambda p, v: jax.jvp(jax.grad(loss), (p,), (v,))[1])
        positions = data.shape[1]
        return {
            "GGN": _flat(F.mv(v)) / positions,  # our mean is over sequences
            "Hessian": _flat(hessian(params, v)),
        }


def _flat(tree: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(x, float).ravel() for _, x in sorted(tree.items())])


def _ours(size: str, tokens: int, blocked: bool) -> tuple[Callable[[], Any], Callable[[Any], np.ndarray]]:
    stack, params, apply, data, _, v = inputs(size, tokens)
    function = in_blocks(stack, BLOCK) if blocked else apply
    F = lg.fisher(function, params, data, family=lg.families.Categorical(), chunk=1, check=False)
    return (lambda: jax.block_until_ready(F.mv(v))), (lambda image: _flat(image) / data.shape[1])


def _peer(name: str, size: str, tokens: int) -> tuple[Callable[[], Any], Callable[[Any], np.ndarray]]:
    import torch

    _, params, _, data, targets, v = inputs(size, tokens)
    model = module(size, {n: np.asarray(w) for n, w in params.items()})
    x, y = torch.tensor(np.array(data)), torch.tensor(np.array(targets[0]), dtype=torch.long)
    direction = torch.tensor(_flat(v), dtype=torch.float32)
    loss = torch.nn.CrossEntropyLoss()
    if name.startswith("curvlinops"):
        import curvlinops

        G = curvlinops.GGNLinearOperator(model, loss, list(model.parameters()), [(x, y)], check_deterministic=False)
        product = lambda: G @ direction  # noqa: E731
    else:
        from hessian_eigenthings.loss_fns.standard import (
            supervised_forward,
            supervised_loss,
            supervised_loss_of_output,
        )
        from hessian_eigenthings.operators import GGNOperator, HessianOperator

        if name.endswith("differences"):
            H = HessianOperator(model, [(x, y)], supervised_loss(loss), method="finite_difference")
        else:
            H = GGNOperator(model, [(x, y)], supervised_forward, supervised_loss_of_output(loss))
        product = lambda: H.matvec(direction)  # noqa: E731
    return product, lambda image: image.detach().numpy().astype(float)


def measure(name: str, size: str, tokens: int, repeats: int, reference: Path) -> dict[str, float]:
    """Error, time and memory of one contender, in this process.

    Args:
        name: of `OURS` or `PEERS`.
        size: of `large_transformer.SIZES`.
        tokens: of the sequence.
        repeats: products that are timed.
        reference: file with what `references` gives.

    Returns:
        What was measured.
    """
    product, flat = _ours(size, tokens, OURS[name]) if name in OURS else _peer(name, size, tokens)
    image = flat(product())
    with np.load(reference) as file:
        right = file["Hessian" if "Hessian" in name else "GGN"]
    error = float(np.linalg.norm(image - right) / np.linalg.norm(right))
    held = 4 * right.size
    del image, right
    forget_peak()
    before, seconds = memory("VmRSS"), []
    for _ in range(repeats):
        start = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - start)
    return {
        "error": error,
        "seconds": statistics.median(seconds),
        "memory over parameters": (memory("VmHWM") - before) / held,
    }


def main() -> None:
    """Measures each contender in a process of its own, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="10M")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("figures/transformer_peers.json"))
    parser.add_argument("--one", choices=[*OURS, *PEERS], help=argparse.SUPPRESS)
    parser.add_argument("--reference", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        found = measure(options.one, options.size, options.tokens, options.repeats, options.reference)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    check_writable(options.out.parent)
    contenders = [*OURS, *(name for name, package in PEERS.items() if importlib.util.find_spec(package))]
    for name in (*OURS, *PEERS):
        if name not in contenders:
            print(f"{name}: not installed, left out", flush=True)
    results: dict[str, Any] = {}
    with temporary_folder() as folder:
        reference = folder / "reference.npz"
        found = references(options.size, options.tokens)
        np.savez(reference, GGN=found["GGN"], Hessian=found["Hessian"])
        for name in contenders:
            command = [sys.executable, "-m", "analysis.benchmarks.transformer_peers", "--one", name]
            command += ["--size", options.size, "--tokens", str(options.tokens), "--repeats", str(options.repeats)]
            run = subprocess.run(
                [*command, "--reference", str(reference)], stdout=subprocess.PIPE, text=True, check=False
            )
            if run.returncode:
                raise SystemExit(f"{name} ended with {run.returncode}; its message stands above")
            results[name] = json.loads(run.stdout.splitlines()[-1])
            row = results[name]
            print(
                f"{name:45} error {row['error']:8.1e}   {1e3 * row['seconds']:8.0f} ms   "
                f"{row['memory over parameters']:5.2f} times the parameters",
                flush=True,
            )
    packages = sorted({PACKAGES[PEERS[name]] for name in contenders if name in PEERS} | {"jax"})
    described = {
        "size": options.size,
        "tokens": options.tokens,
        "cores": os.cpu_count(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "contenders": results,
    }
    write_results(options.out, described)


if __name__ == "__main__":
    main()
