"""Fisher matrices of a loader against all data at once, time and memory: `python -m analysis loaders [--rows N]`.

A layer-normalized MLP 64-8-10, float32. Each way runs in a process of its own: the data lie in a file that is
memory-mapped. Times are of a second call, when everything is compiled; memory is the largest that the process held
beyond what it had after importing.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np

RESULTS = ("product", "diagonal", "matrix", "rank")


def network(params: dict, x: jax.Array) -> jax.Array:
    """Logits of one hidden layer with layer norm."""
    a = x @ params["kernel"]
    n = (a - a.mean(1, keepdims=True)) / (a.std(1, keepdims=True) + 1e-3)
    return jnp.tanh(n) @ params["head"]


def measure(path: Path, size: int | None) -> dict[str, float]:
    """Seconds of each result, and MiB, for one way.

    Args:
        path: the data, [N 64].
        size: rows of a batch; None for all data at once.
    """
    X = np.load(path, mmap_mode="r")
    keys = jax.random.split(jax.random.key(0))
    params = {"kernel": jax.random.normal(keys[0], (64, 8)) / 8, "head": jax.random.normal(keys[1], (8, 10)) / 3}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = jnp.asarray(X) if size is None else lg.Batches.of_rows(X, size)
    F = lg.fisher(network, params, data, family=lg.families.Categorical())
    v = jnp.ones(F.in_size())
    calls = {"product": lambda: F @ v, "diagonal": F.diagonal, "matrix": F.as_matrix, "rank": lambda: int(F.rank())}
    found = {}
    for name in RESULTS:
        jax.block_until_ready(calls[name]())
        start = time.perf_counter()
        jax.block_until_ready(calls[name]())
        found[name] = time.perf_counter() - start
    return found | {"MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    """Prints a row for each way."""
    parser = argparse.ArgumentParser(prog="python -m analysis loaders", description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        path, size = arguments.measure
        print(json.dumps(measure(Path(path), int(size) or None)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        np.save(path, np.random.default_rng(0).normal(size=(arguments.rows, 64)).astype(np.float32))
        print(f"{'':>18}" + "".join(f"{name + ' s':>12}" for name in RESULTS) + f"{'MiB':>8}")
        for name, size in (("all at once", 0), (f"batches of {arguments.batch}", arguments.batch)):
            command = [sys.executable, "-m", "analysis", "loaders", "--measure", str(path), str(size)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"{name:>18}" + "".join(f"{found[key]:12.3f}" for key in RESULTS) + f"{found['MiB']:8.0f}")


if __name__ == "__main__":
    main()
