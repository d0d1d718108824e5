"""Time and memory of layer norm against other libraries: `python -m analysis bench_layers`.

One process an implementation, all pinned to one core; rounds are interleaved, and the smallest time of each
is kept. The allocator is part of the result: with glibc's default, every large buffer is mapped anew and page
faults dominate; with huge pages and a heap that is kept, they do not. `copy` (x + 1, which reads and writes
one tensor) is the ceiling of a forward pass. Only ratios within one run mean anything.

Not measured here: accelerators.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

JAX_IMPLEMENTATIONS = ("copy", "lngeom", "lngeom exact", "flax", "equinox", "haiku", "keras", "tokamax")
IMPLEMENTATIONS = (*JAX_IMPLEMENTATIONS, "torch")
PACKAGES = {"haiku": "dm-haiku", "lngeom": "jax", "lngeom exact": "jax", "copy": "jax"}
MODES = ("forward", "forward and backward")
MALLOC = {
    "default": "",
    "huge pages": ":".join(
        f"glibc.malloc.{name}={value}"
        for name, value in {
            "hugetlb": 1,
            "mmap_max": 0,
            "arena_max": 1,
            "trim_threshold": 2**34,
            "top_pad": 2**28,
        }.items()
    ),
}


@dataclass(frozen=True)
class Measurement:
    """One implementation, in one mode, at one size.

    Attributes:
        implementation: name of the library.
        mode: "forward", or "forward and backward".
        rows: rows of the input.
        width: units of the input.
        malloc: allocator setting.
        milliseconds: smallest time of one call.
        temporaries: bytes XLA plans beyond inputs and outputs; None where there is no such plan.
    """

    implementation: str
    mode: str
    rows: int
    width: int
    malloc: str
    milliseconds: float
    temporaries: int | None


@dataclass(frozen=True)
class Report:
    """All measurements of a run.

    Attributes:
        measurements: one for each implementation, mode, size and allocator.
        versions: of the packages measured.
        rounds: interleaved rounds.
        accelerators: what is known about them.
    """

    measurements: tuple[Measurement, ...]
    versions: dict[str, str]
    rounds: int
    accelerators: str = "not measured"

    def milliseconds(self, implementation: str, mode: str, rows: int, width: int, malloc: str) -> float:
        """Time of one measurement.

        Returns:
            Milliseconds; NaN where it was not measured.
        """
        key = (implementation, mode, rows, width, malloc)
        found = [
            m.milliseconds for m in self.measurements if (m.implementation, m.mode, m.rows, m.width, m.malloc) == key
        ]
        return found[0] if found else float("nan")

    def ratio(self, other: str, mode: str, rows: int, width: int, malloc: str) -> float:
        """How many times the time of lngeom another implementation takes."""
        ours = self.milliseconds("lngeom", mode, rows, width, malloc)
        return self.milliseconds(other, mode, rows, width, malloc) / ours


def _jax_function(name: str, width: int) -> Callable:
    """The layer of a JAX library as a function of x, gain and bias."""
    import jax

    if name == "copy":
        return lambda x, gain, bias: x + 1
    if name.startswith("lngeom"):
        from lngeom.nn import layer_norm

        return lambda x, gain, bias: layer_norm(x, gain, bias, exact=name.endswith("exact"))
    if name == "flax":
        from flax import linen

        return lambda x, gain, bias: linen.LayerNorm().apply({"params": {"scale": gain, "bias": bias}}, x)
    if name == "equinox":
        import equinox as eqx

        layer = eqx.nn.LayerNorm(width)
        return lambda x, gain, bias: jax.vmap(eqx.tree_at(lambda m: (m.weight, m.bias), layer, (gain, bias)))(x)
    if name == "haiku":
        import haiku as hk

        layer = hk.without_apply_rng(hk.transform(lambda x: hk.LayerNorm(-1, True, True)(x)))
        return lambda x, gain, bias: layer.apply({"layer_norm": {"scale": gain, "offset": bias}}, x)
    if name == "keras":
        import keras

        layer = keras.layers.LayerNormalization()
        layer.build((None, width))
        return lambda x, gain, bias: layer.stateless_call([gain, bias], [], x)[0]
    if name == "tokamax":
        import tokamax

        return lambda x, gain, bias: tokamax.layer_norm(x, gain, bias, implementation="xla")
    raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}; got {name!r}")


def _jax_calls(name: str, rows: int, width: int) -> dict[str, tuple[Callable, int | None]]:
    """For each mode, a call that runs to its end, and the bytes of its temporaries."""
    import jax
    import jax.numpy as jnp

    function = _jax_function(name, width)
    x, cotangent = (jax.random.normal(jax.random.key(k), (rows, width)) for k in range(2))
    arguments = (x, jnp.ones(width), jnp.zeros(width))

    def forward_and_backward(x, gain, bias, cotangent):
        y, pullback = jax.vjp(function, x, gain, bias)
        return y, *pullback(cotangent)

    calls = {}
    for mode, traced, args in (
        ("forward", function, arguments),
        ("forward and backward", forward_and_backward, (*arguments, cotangent)),
    ):
        compiled = jax.jit(traced).lower(*args).compile()

        def call(compiled=compiled, args=args):
            jax.block_until_ready(compiled(*args))

        plan = compiled.memory_analysis()
        calls[mode] = (call, None if plan is None else plan.temp_size_in_bytes)
    return calls


def _torch_calls(rows: int, width: int) -> dict[str, tuple[Callable, None]]:
    import torch

    torch.set_num_threads(1)
    x, gain, bias = (v.requires_grad_() for v in (torch.randn(rows, width), torch.ones(width), torch.zeros(width)))
    cotangent = torch.randn(rows, width)

    def forward():
        return torch.nn.functional.layer_norm(x, (width,), gain, bias)

    def backward():
        torch.autograd.grad(forward(), (x, gain, bias), cotangent)

    return {"forward": (forward, None), "forward and backward": (backward, None)}


def _follow(parent: int) -> None:
    """Ends this worker when its parent has ended, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(name: str, rows: int, width: int, core: int) -> None:
    """Body of a worker process: pins itself, prepares, then times one round for each line it reads."""
    os.sched_setaffinity(0, {core})
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    calls = _torch_calls(rows, width) if name == "torch" else _jax_calls(name, rows, width)
    for call, _ in calls.values():
        call()
    print(json.dumps({mode: temporaries for mode, (_, temporaries) in calls.items()}), flush=True)
    repetitions = max(3, 2**24 // (rows * width))
    for _ in sys.stdin:
        times = dict.fromkeys(calls, float("inf"))
        for mode, (call, _) in calls.items():
            for _ in range(repetitions):
                start = time.perf_counter()
                call()
                times[mode] = min(times[mode], time.perf_counter() - start)
        print(json.dumps(times), flush=True)


def _start(name: str, rows: int, width: int, malloc: str, core: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "OMP_NUM_THREADS": "1",
        "GLIBC_TUNABLES": MALLOC[malloc],
    }
    command = [sys.executable, "-m", "analysis.benchmarks.bench_layers", "--work", name, "--sizes", f"{rows}x{width}"]
    command += ["--core", str(core)]
    from lngeom.cli.interrupts import start  # here alone: a worker that measures another library imports no JAX

    return start(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends its workers
    )


def _reply(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker stopped with exit status {worker.wait()}: {worker.args}")
    return json.loads(line)


def _ask(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return _reply(worker)


def installed(name: str) -> bool:
    """Whether the library of an implementation is installed."""
    try:
        importlib.metadata.version(PACKAGES.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def measure(rows: int, width: int, malloc: str, rounds: int, names: tuple[str, ...]) -> list[Measurement]:
    """Times implementations at one size, interleaved.

    Args:
        rows: rows of the input.
        width: units of the input.
        malloc: one of `MALLOC`.
        rounds: interleaved rounds.
        names: implementations; all must be installed.

    Returns:
        One measurement for each implementation and mode (of `copy`, the forward one alone).
    """
    core = max(os.sched_getaffinity(0))
    workers = {name: _start(name, rows, width, malloc, core) for name in names}
    try:
        temporaries = {name: _reply(worker) for name, worker in workers.items()}
        best = {name: dict.fromkeys(MODES, float("inf")) for name in names}
        for _ in range(rounds):
            for name, worker in workers.items():
                times = _ask(worker)
                best[name] = {mode: min(best[name][mode], times[mode]) for mode in MODES}
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()
    return [
        Measurement(name, mode, rows, width, malloc, 1e3 * best[name][mode], temporaries[name][mode])
        for name in names
        for mode in MODES
        if (name, mode) != ("copy", MODES[1])
    ]


def benchmark(sizes: tuple[tuple[int, int], ...], mallocs: tuple[str, ...] = tuple(MALLOC), rounds: int = 5) -> Report:
    """Measures every implementation that is installed.

    Args:
        sizes: rows and width of each input.
        mallocs: allocator settings.
        rounds: interleaved rounds.

    Returns:
        The report.
    """
    names = tuple(filter(installed, IMPLEMENTATIONS))
    measurements = [
        m for malloc in mallocs for rows, width in sizes for m in measure(rows, width, malloc, rounds, names)
    ]
    packages = sorted({PACKAGES.get(name, name) for name in names} | {"jaxlib"})
    return Report(tuple(measurements), {p: importlib.metadata.version(p) for p in packages}, rounds)


def _sizes(texts: list[str]) -> tuple[tuple[int, int], ...]:
    return tuple((int(rows), int(width)) for rows, width in (text.split("x") for text in texts))


def main() -> None:
    """Runs the benchmark and writes its JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=IMPLEMENTATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="+", default=["1024x1024", "4096x1024", "16384x1024"], metavar="ROWSxWIDTH")
    parser.add_argument("--malloc", nargs="+", choices=MALLOC, default=list(MALLOC))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("figures/bench_layers.json"))
    options = parser.parse_args()
    sizes = _sizes(options.sizes)
    if options.work:
        del sys.argv[1:]  # tokamax reads them too, and refuses those it does not know
        return _work(options.work, *sizes[0], options.core)
    from lngeom._core.files import check_writable

    from analysis.store import write_results

    check_writable(options.out.parent)
    report = benchmark(sizes, tuple(options.malloc), options.rounds)
    for m in report.measurements:
        ratio = report.ratio(m.implementation, m.mode, m.rows, m.width, m.malloc)
        memory = "" if m.temporaries is None else f"{m.temporaries / 2**20:8.2f} MiB"
        size = f"{m.rows}x{m.width}"
        name = f"{m.malloc:10} {size:11} {m.mode:21} {m.implementation:13}"
        print(f"{name} {m.milliseconds:8.3f} ms {ratio:6.2f}x {memory}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(options.out, asdict(report))
    return None


if __name__ == "__main__":
    main()
