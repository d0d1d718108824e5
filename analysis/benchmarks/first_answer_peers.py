"""From the import to a first matrix, beside other libraries: `python -m analysis first_answer_peers`.

One torch network, or the same network in JAX, of 1,034 parameters, 256 samples, float64. Each library does it in a
process of its own, with nothing compiled before. All must give the same matrix. Prints one table, and writes
`figures/first_answer_peers.json` and `figures/first_answer_peers.md`. It needs the extra `peers`.
"""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

STAGES = ("import", "set up", "first product", "matrix")
"""What is timed, in this order, in one process."""

SIZES, SAMPLES = (20, 32, 10), 256
"""Inputs, units behind a layer norm and tanh, and classes."""

Steps = tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]
"""What sets up, multiplies, and gives the matrix as NumPy's."""


def _numbers() -> dict[str, Any]:
    """Weights by torch's names, inputs and labels, in NumPy."""
    import numpy as np

    a, b, c = SIZES
    draw = np.random.default_rng(0)
    weights = {"0.weight": draw.normal(size=(b, a)) / a**0.5, "3.weight": draw.normal(size=(c, b)) / b**0.5}
    norm = {"1.weight": np.ones(b), "1.bias": np.zeros(b)}
    rest = {"X": draw.normal(size=(SAMPLES, a)), "y": draw.integers(c, size=SAMPLES)}
    return weights | norm | {"0.bias": np.zeros(b), "3.bias": np.zeros(c)} | rest


def _torch_network() -> tuple[Any, Any, Any]:
    import torch

    torch.set_default_dtype(torch.float64)
    a, b, c = SIZES
    net = torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.LayerNorm(b), torch.nn.Tanh(), torch.nn.Linear(b, c))
    given = {name: torch.tensor(value) for name, value in _numbers().items()}
    X, y = given.pop("X"), given.pop("y")
    net.load_state_dict(given)
    return net, X, y


def _curvlinops() -> Steps:
    import curvlinops
    import torch

    def operator() -> Any:
        net, X, y = _torch_network()
        return curvlinops.GGNLinearOperator(net, torch.nn.CrossEntropyLoss(), list(net.parameters()), [(X, y)])

    return operator, lambda G: G @ torch.ones(G.shape[1]), lambda G: (G @ torch.eye(G.shape[1])).numpy()


def _nngeometry() -> Steps:
    import torch
    from nngeometry import metrics, object as matrices

    def operator() -> Any:
        net, X, y = _torch_network()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=len(X))
        return lambda kind: metrics.FIM(net, loader, kind, variant="classif_logits")

    def product(made: Any) -> Any:
        F = made(matrices.PMatImplicit)
        ones = torch.ones(F.generator.layer_collection.numel())
        return F.mv(matrices.PVector(F.generator.layer_collection, vector_repr=ones))

    return operator, product, lambda made: made(matrices.PMatDense).to_torch().detach().numpy()


def _lngeom(from_torch: bool) -> Steps:
    import jax
    import jax.numpy as jnp
    import lngeom as lg
    import numpy as np

    jax.config.update("jax_enable_x64", True)

    def apply(p: Any, x: Any) -> Any:
        x = x @ p["0.weight"].T + p["0.bias"]
        x = x - jnp.mean(x, -1, keepdims=True)
        x = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return jnp.tanh(x * p["1.weight"] + p["1.bias"]) @ p["3.weight"].T + p["3.bias"]

    def operator() -> Any:
        if from_torch:
            net, X, _ = _torch_network()
            return lg.fisher(*lg.from_torch(net, X.numpy()), X.numpy(), family=lg.families.Categorical())
        params = {name: jnp.asarray(value) for name, value in _numbers().items() if name != "y"}
        X = params.pop("X")
        return lg.fisher(apply, params, X, family=lg.families.Categorical())

    def product(F: Any) -> Any:
        return jax.block_until_ready(F @ jnp.ones(F.in_size()))

    return operator, product, lambda F: np.asarray(F.as_matrix())


LIBRARIES: dict[str, Callable[[], Steps]] = {
    "lngeom, a function in JAX": functools.partial(_lngeom, False),
    "lngeom, from torch": functools.partial(_lngeom, True),
    "curvlinops": _curvlinops,
    "nngeometry": _nngeometry,
}
"""What imports a library, and returns the steps with it."""


def measured(name: str) -> dict[str, Any]:
    """All stages of a library in this process.

    Args:
        name: in `LIBRARIES`.

    Returns:
        Seconds of processor and clock by stage; the matrix's trace and its sum of squares.
    """
    stages: dict[str, list[float]] = {}
    mark = [0.0, time.perf_counter()]

    def timed(stage: str, run: Callable[[], Any]) -> Any:
        found = run()
        now = [time.process_time(), time.perf_counter()]
        stages[stage] = [b - a for a, b in zip(mark, now, strict=True)]
        mark[:] = now
        return found

    set_up, product, matrix = timed("import", LIBRARIES[name])
    operator = timed("set up", set_up)
    timed("first product", lambda: product(operator))
    found = timed("matrix", lambda: matrix(operator))
    return {"stages": stages, "trace": float(found.trace()), "squares": float((found**2).sum())}


def alone(name: str) -> dict[str, Any]:
    """The same in a process of its own."""
    given = [sys.executable, "-W", "ignore", "-m", "analysis.benchmarks.first_answer_peers", "--alone", name]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(given, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def require_same(results: dict[str, dict[str, Any]]) -> None:
    """Refuses matrices that differ: their times would be of different things.

    Raises:
        ValueError: naming the library.
    """
    first = next(iter(results.values()))
    for name, found in results.items():
        if any(abs(found[key] / first[key] - 1) > 1e-6 for key in ("trace", "squares")):
            raise ValueError(f"{name} gives another matrix: {found} in place of {first}")


def _rows(results: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row a library: seconds of the processor, in brackets those of a clock, and their sums."""
    require_same(results)
    found = []
    for name, r in results.items():
        stages = [r["stages"][stage] for stage in STAGES]
        total = [sum(column) for column in zip(*stages, strict=True)]
        found.append((name, *(f"{cpu:.1f} ({clock:.1f})" for cpu, clock in [*stages, total])))
    return found


def main() -> None:
    """Runs the libraries and writes their results."""
    if sys.argv[1:2] == ["--alone"]:
        sys.stdout.write(json.dumps(measured(sys.argv[2])) + "\n")
        return
    from analysis.measurements.model_table import ModelTable  # here, since it imports what is timed

    def page(results: dict[str, dict[str, Any]]) -> str:
        return "\n".join(
            [
                "# First answers beside other libraries",
                "",
                f"A network {'-'.join(map(str, SIZES))} with layer norm, {SAMPLES} samples, float64.",
                "Each library in a process of its own, nothing compiled before. Seconds of the processor, all threads;",
                "in brackets seconds of a clock. All give the same matrix.",
                "Written by `python -m analysis first_answer_peers`.",
                "",
                *table.markdown(results),
                "",
            ]
        )

    packages = ("jax", "torch", "torchax", "curvlinops-for-pytorch", "nngeometry")
    table = ModelTable("first_answer_peers", ("library", *STAGES, "in all"), _rows, page, packages, 15.0)
    table.command({name: functools.partial(alone, name) for name in LIBRARIES}, (__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
