r"""Exact curvature of a GPT-2-shaped transformer on this machine: `python -m analysis large_transformer`.

A pre-norm transformer with learned positions and a tied head, as `lngeom.transformers` describes it, at random weights
with ε = 0. For 256 tokens it measures

- one exact product F v: seconds, and the peak memory, in multiples of the bytes of the parameters (goal, in float32: at
  most 4). It counts parameters, tangent, and what the process takes beyond what it held before the product, once
  compiled;
- the same product with the logits in blocks of 4096 classes (`lngeom.information.VocabularyHead`), and its gap to the
  plain one;
- |F v| of unit vectors along predicted symmetries of every family, relative to the largest eigenvalue (goals: 1e-5 in
  float32, 1e-10 in float64);
- leading eigenvalues with their measured residuals;
- on simulated devices, with parameters divided over them: the gap to the product on one device, and the bytes that
  each device holds.
"""

import argparse
import ctypes
import functools
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from lngeom._core.files import check_writable
from lngeom.information import VocabularyHead
from lngeom.transformers import hidden, logits
from lngeom.transformers.families import FAMILIES

from analysis.models.stacks import Variant, build, random_weights
from analysis.store import write_results

SIZES = {
    "124M": Variant(768, 50257, 1024, 12, 3072, 12, query_width=64, value_width=64, tied=True, activation="gelu_tanh"),
    "10M": Variant(320, 4096, 256, 7, 1280, 8, query_width=40, value_width=40, tied=True, activation="gelu_tanh"),
    "toy": Variant(16, 32, 16, 2, 32, 2, query_width=8, value_width=8, tied=True, activation="gelu_tanh"),
}
PARTS = ("product", "blocks", "null", "eigenvalues", "divided")
BLOCK = 4096


def problem(size: str, dtype: Any, tokens: int) -> tuple[Any, dict[str, jax.Array], Any, jax.Array]:
    """Description, parameters, function and data.

    Args:
        size: of `SIZES`.
        dtype: of the parameters.
        tokens: of the one sample.

    Returns:
        (stack, params, apply, tokens [1 T]).
    """
    variant = SIZES[size]
    stack, shapes = build(variant)
    params = {name: jnp.asarray(w, dtype) for name, w in random_weights(variant, shapes, 0).items()}
    count = min(tokens, variant.length)
    data = jax.random.randint(jax.random.key(1), (1, count), 0, variant.vocabulary)
    return stack, params, lambda p, x: logits(stack, p, x), data


def directions(size: str, params: dict[str, jax.Array], count: int) -> Iterator[tuple[str, dict[str, jax.Array]]]:
    """Unit tangents along predicted symmetries, five families in turn, in random blocks and heads.

    At this size the library predicts how many there are. A basis would not fit, so that directions are written out
    here; a test holds them against the library's basis at toy size.

    Args:
        size: of `SIZES`.
        params: the arrays.
        count: how many.

    Yields:
        (what it is, tangent).
    """
    rng, variant = np.random.default_rng(2), SIZES[size]
    width, head = variant.width, variant.query_width
    for k in range(count):
        code = "KQOwV"[k % 5]
        path = f"blocks.{rng.integers(variant.blocks)}.attention"
        output = np.asarray(params[f"{path}.output.weight"], float)
        first = head * int(rng.integers(variant.heads))
        a, b = first + rng.choice(head, 2, replace=False)
        changes: dict[str, np.ndarray] = {}
        if code == "K":
            changes[f"{path}.key.bias"] = rng.normal(size=width)
        elif code == "V":
            shift = rng.normal(size=width)
            changes = {f"{path}.value.bias": shift, f"{path}.output.bias": -output @ shift}
        elif code == "w":
            changes[f"{path}.output.weight"] = np.broadcast_to(rng.normal(size=width), (width, width))
        else:  # coordinate b is added to a on one side, and taken off on the other
            one, other = ("query", "key") if code == "Q" else ("value", "output")
            for part, to, of, sign in ((one, a, b, 1.0), (other, b, a, -1.0)):
                for leaf in ("weight", "bias"):
                    if (part, leaf) == ("output", "bias"):
                        continue
                    known = np.asarray(params[f"{path}.{part}.{leaf}"], float)
                    changed = np.zeros(known.shape)
                    place = (slice(None), [to]) if part == "output" else [to]
                    source = (slice(None), [of]) if part == "output" else [of]
                    changed[place] = sign * known[source]
                    changes[f"{path}.{part}.{leaf}"] = changed
        norm = np.sqrt(sum(float(np.sum(v**2)) for v in changes.values()))
        tangent = {
            n: jnp.asarray(changes[n] / norm, w.dtype) if n in changes else jnp.zeros(w.shape, w.dtype)
            for n, w in params.items()
        }
        yield FAMILIES[code], tangent


def memory(field: str) -> int:
    """Bytes of this process, of a field of the system's status file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> None:
    """Gives freed memory back, and starts the highest mark anew (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def in_blocks(stack: Any, block: int = BLOCK) -> VocabularyHead:
    """The logits of a transformer with a linear head, of which products hold a block at a time."""
    return VocabularyHead(lambda p, x: (hidden(stack, p, x), p[stack.head.linear.weight]), block)


def measure_product(size: str, dtype: Any, tokens: int, block: int | None = None) -> dict[str, Any]:
    """Time and peak memory of one product; in blocks, its gap to the plain product too.

    Args:
        size: of `SIZES`.
        dtype: of the parameters.
        tokens: of the sample.
        block: number of logits at a time; None for all.

    Returns:
        What was measured.
    """
    stack, params, plain, data = problem(size, dtype, tokens)
    if block is None:
        return _measure(plain, params, data)
    blocked = in_blocks(stack, block)
    found = _measure(blocked, params, data)
    v = jax.tree.map(lambda w: jnp.ones(w.shape, w.dtype), params)
    images = []
    for function in (plain, blocked):
        F = lg.fisher(function, params, data, family=lg.families.Categorical(), chunk=1, check=False)
        images.append(jax.device_get(F.mv(v)))
    gaps = jax.tree.map(np.subtract, *images)
    squares = [sum(float(np.sum(np.square(w, dtype=float))) for w in tree.values()) for tree in (gaps, images[0])]
    return found | {"block": block, "gap": (squares[0] / squares[1]) ** 0.5}


def _measure(apply: Any, params: dict[str, jax.Array], data: jax.Array) -> dict[str, Any]:
    held = sum(w.nbytes for w in params.values())
    start = time.perf_counter()
    F = lg.fisher(apply, params, data, family=lg.families.Categorical(), chunk=1, check=False)
    v = jax.tree.map(lambda w: jnp.ones(w.shape, w.dtype), params)
    jax.block_until_ready(F.mv(v))
    first = time.perf_counter() - start
    forget_peak()
    before = memory("VmRSS")
    start = time.perf_counter()
    jax.block_until_ready(F.mv(v))
    seconds = time.perf_counter() - start
    peak = memory("VmHWM") - before + 2 * held
    return {
        "parameters": F.in_size(),
        "bytes of parameters": held,
        "seconds with compilation": first,
        "seconds": seconds,
        "peak bytes": peak,
        "peak over parameters": peak / held,
    }


def measure_null(size: str, dtype: Any, tokens: int, count: int = 100) -> dict[str, Any]:
    """Images of predicted null directions, relative to the largest eigenvalue.

    Args:
        size: of `SIZES`.
        dtype: of the parameters.
        tokens: of the sample.
        count: of directions.

    Returns:
        The worst for each family, and overall.
    """
    _, params, apply, data = problem(size, dtype, tokens)
    F = lg.fisher(apply, params, data, family=lg.families.Categorical(), chunk=1, check=False)
    largest = float(F.eigenpairs(1, width=6, tolerance=1e-2).values[0])
    worst: dict[str, float] = {}
    found = 0

    def size_of(v: dict[str, jax.Array]) -> float:
        return float(jnp.sqrt(sum(jnp.vdot(x, x) for x in v.values())))

    for name, v in directions(size, params, count):
        worst[name] = max(worst.get(name, 0.0), size_of(F.mv(v)) / largest)
        found += 1
    rng = np.random.default_rng(3)
    other = {n: jnp.asarray(rng.normal(size=w.shape), w.dtype) for n, w in params.items()}
    return {
        "directions": found,
        "largest eigenvalue": largest,
        "worst": max(worst.values()),
        "a random direction, for comparison": size_of(F.mv(other)) / size_of(other) / largest,
        "by family": worst,
    }


def measure_eigenvalues(size: str, dtype: Any, tokens: int, count: int = 10) -> dict[str, Any]:
    """Leading eigenvalues and their residuals.

    Args:
        size: of `SIZES`.
        dtype: of the parameters.
        tokens: of the sample.
        count: of eigenvalues.

    Returns:
        What was found.
    """
    _, params, apply, data = problem(size, dtype, tokens)
    F = lg.fisher(apply, params, data, family=lg.families.Categorical(), chunk=1, check=False)
    start = time.perf_counter()
    found = F.eigenpairs(count, width=count + 8)
    return {
        "eigenvalues": found.values.tolist(),
        "residuals over the largest": (found.residuals / found.values[0]).tolist(),
        "products": found.products,
        "seconds": time.perf_counter() - start,
    }


def measure_divided(size: str, dtype: Any, tokens: int) -> dict[str, Any]:
    """The same product with parameters divided over all devices.

    Args:
        size: of `SIZES`.
        dtype: of the parameters.
        tokens: of the sample.

    Returns:
        The gap, and bytes on each device.
    """
    _, params, apply, data = problem(size, dtype, tokens)
    devices = len(jax.devices())
    mesh = jax.make_mesh((devices,), ("parameters",))

    def spec(w: jax.Array) -> PartitionSpec:
        axes = [i for i, n in enumerate(w.shape) if n % devices == 0]
        return PartitionSpec(*(("parameters" if i == axes[0] else None) for i in range(w.ndim)) if axes else ())

    put = lambda tree: {n: jax.device_put(w, NamedSharding(mesh, spec(w))) for n, w in tree.items()}  # noqa: E731
    family = lg.families.Categorical()
    v = {
        n: jax.random.normal(key, w.shape, w.dtype)
        for (n, w), key in zip(params.items(), jax.random.split(jax.random.key(3), len(params)), strict=True)
    }
    whole = lg.fisher(apply, params, data, family=family, chunk=1, check=False).mv(v)
    F = lg.fisher(apply, put(params), data, family=family, chunk=1, check=False)
    image = F.mv(put(v))
    squares = [(float(jnp.sum((image[n] - whole[n]) ** 2)), float(jnp.sum(whole[n] ** 2))) for n in params]
    held = jax.jit(lambda F, v: F.mv(v)).lower(F, F.problem.params).compile().memory_analysis()
    everything = sum(w.nbytes for w in params.values())
    return {
        "devices": devices,
        "gap": float(np.sqrt(sum(a for a, _ in squares) / sum(b for _, b in squares))),
        "bytes of parameters": everything,
        "bytes of parameters and a tangent on each device": held.argument_size_in_bytes,
        "share of them": held.argument_size_in_bytes / (2 * everything),
        "bytes of the result on each device": held.output_size_in_bytes,
        "bytes of intermediate values on each device": held.temp_size_in_bytes,
    }


MEASURES = {
    "product": measure_product,
    "blocks": functools.partial(measure_product, block=BLOCK),
    "null": measure_null,
    "eigenvalues": measure_eigenvalues,
    "divided": measure_divided,
}


def main() -> None:
    """Measures each part in a process of its own, and writes results after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="124M")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--devices", type=int, default=8, help="simulated, for the part 'divided'")
    parser.add_argument("--out", type=Path, default=Path("figures/large_transformer.json"))
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        jax.config.update("jax_enable_x64", options.dtype == "float64")
        result = MEASURES[options.one](options.size, jnp.dtype(options.dtype), options.tokens)
        sys.stdout.write(json.dumps(result) + "\n")
        return
    check_writable(options.out.parent)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.parts:
        print(f"{options.size}, {options.dtype}: {part} …", flush=True)
        flags = f"--xla_force_host_platform_device_count={options.devices}" if part == "divided" else ""
        environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
        command = [
            sys.executable,
            "-m",
            "analysis.measurements.large_transformer",
            "--one",
            part,
            "--size",
            options.size,
        ]
        command += ["--dtype", options.dtype, "--tokens", str(options.tokens)]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"the part {part!r} ended with {run.returncode}; results so far are in {options.out}")
        result = json.loads(run.stdout.splitlines()[-1])
        for name, value in result.items():
            print(f"  {name}: {value if not isinstance(value, float) else f'{value:.4g}'}")
        key = f"{options.size}, {options.dtype}, {options.tokens} tokens"
        machine = {"jax": jax.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
        results.setdefault(key, {})[part] = result | machine
        write_results(options.out, results)


if __name__ == "__main__":
    main()
