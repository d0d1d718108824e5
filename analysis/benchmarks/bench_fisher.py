"""Fisher products and matrices against the other libraries, side by side: `python -m analysis bench_fisher`.

Rounds are interleaved and the smallest time of each contender counts, so that a ratio is one of a single run. A peer
that is not installed is left out; what cannot finish is measured on fewer samples or columns, its time multiplied,
and marked `scaled`. Each task can be run alone; its results replace those in the JSON file.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom import plots
from lngeom._core.files import check_writable
from lngeom.plots import style
from lngeom.plots.axes import number, plain_ticks, span
from lngeom.plots.style import COLOUR_OF, GUIDE, INK

from analysis.benchmarks import fisher_peers as peers

OURS = "lngeom"
Times = dict[str, float]


def best_times(contenders: peers.Contenders, rounds: int, budget: float = 0.25) -> Times:
    """Smallest mean time of each contender over rounds in which all take turns, in seconds.

    Each round has an order of its own: threads that one library leaves spinning slow down whoever comes next.
    """
    repeats = {}
    for name, run in contenders.items():
        jax.block_until_ready(run())
        start = time.perf_counter()
        jax.block_until_ready(run())
        repeats[name] = max(1, int(budget / max(time.perf_counter() - start, 1e-6)))
    best = dict.fromkeys(contenders, float("inf"))
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            run = contenders[name]
            start = time.perf_counter()
            for _ in range(repeats[name]):
                result = run()
            jax.block_until_ready(result)
            best[name] = min(best[name], (time.perf_counter() - start) / repeats[name])
    return best


GEMM = "a matrix product"
SIZE = 1024


def gemm(dtype: Any) -> peers.Contenders:
    """A large matrix product, which takes its turn among the contenders: the rate of the machine at that time."""
    a = jnp.ones((SIZE, SIZE), dtype)
    product = jax.jit(jnp.matmul)
    return {GEMM: lambda: product(a, a)}


def fraction(operations: float, seconds: float, gemm_seconds: float) -> float:
    """Rate of so many multiplications and additions, over that of the matrix product."""
    return operations / seconds * gemm_seconds / (2 * SIZE**3)


def fisher(model: peers.Model) -> lg.FisherOperator:
    """Our operator of a network."""
    return lg.fisher(model.apply, model.params, model.inputs, family=model.family)


def bench_product(F: lg.FisherOperator, model: peers.Model, rounds: int, slow: bool, budget: float = 0.25) -> Times:
    """One product."""
    v, plain = model.tangent, peers.plain_product(model)
    compiled = jax.jit(lambda v: F.mv(v))
    ours = {OURS: lambda: F.mv(v), f"{OURS}, inside a jit": lambda: compiled(v)}
    written = {"jvp → Λ → vjp": lambda: plain(model.params, model.inputs, v)}
    return best_times(ours | written | peers.products(model, slow), rounds, budget)


RATE = "fraction of the rate of a matrix product"
"""How near a task is to the arithmetic it cannot do without, at the rate of a large matrix product."""


def bench_many(F: lg.FisherOperator, model: peers.Model, rounds: int) -> Times:
    """64 products, at once and one by one: the arithmetic of both is that of matrix products with the kernels."""
    vectors = jax.random.normal(jax.random.key(5), (F.in_size(), 64), F.problem.dtype)
    tangents = [F.problem.unravel(v) for v in vectors.T]
    contenders = {OURS: lambda: F.mm(vectors), "64 products": lambda: [F.mv(v) for v in tangents]}
    times = best_times(contenders | gemm(F.problem.dtype), rounds)
    one = times.pop(GEMM)
    kernels = [a * b for a, b in itertools.pairwise(model.widths)]
    operations = 64 * 4 * len(model.inputs) * (sum(kernels) + sum(kernels[1:]))
    one_by_one = fraction(operations, times["64 products"], one)
    return times | {RATE: fraction(operations, times[OURS], one), f"{RATE}, of the 64 products": one_by_one}


def bench_dense(
    F: lg.FisherOperator, parts: dict[str, peers.Part], rounds: int, budget: float = 0.1, floor: float | None = None
) -> Times:
    """The matrix; of those that do a part of the work, their times multiplied."""
    contenders = {OURS: F.as_matrix} | {name: part.run for name, part in parts.items()} | gemm(F.problem.dtype)
    times = best_times(contenders, rounds, budget)
    one = times.pop(GEMM)
    result = {}
    for name, value in times.items():
        scale = parts[name].scale if name in parts else 1.0
        result[name if scale == 1.0 else f"{name}, scaled"] = value * scale
    if floor is not None:
        result[RATE] = fraction(floor, times[OURS], one)
    return result


def product_s(rounds: int) -> Times:
    """One product, P = 1,034, f64: so short that many short rounds are needed to meet every contender at its best."""
    model = peers.network([20, 32, 10], 256, jnp.float64)
    return bench_product(fisher(model), model, 20 * rounds, slow=True, budget=0.02)


def product_m(rounds: int) -> Times:
    """One product, P = 670,730, f32."""
    model = peers.network([784, 512, 512, 10], 512, jnp.float32)
    return bench_product(fisher(model), model, rounds, slow=False)


def product_glm(rounds: int) -> Times:
    """One product of a layer-normalized GLM, H = D = 64, N = 2,000, f64 (somax with the cheaper Λ = I)."""
    glm, model = peers.glm(64, 64, 2000)
    return bench_product(lg.fisher(glm, model.params, model.inputs), model, rounds, slow=False)


def many_s(rounds: int) -> Times:
    """64 products at once, task S."""
    model = peers.network([20, 32, 10], 256, jnp.float64)
    return bench_many(fisher(model), model, rounds)


def many_m(rounds: int) -> Times:
    """64 products at once, task M."""
    model = peers.network([784, 512, 512, 10], 512, jnp.float32)
    return bench_many(fisher(model), model, min(rounds, 2))


def many_glm(rounds: int) -> Times:
    """64 products at once, the GLM."""
    glm, model = peers.glm(64, 64, 2000)
    return bench_many(lg.fisher(glm, model.params, model.inputs), model, rounds)


def dense_s(rounds: int) -> Times:
    """The matrix of task S, f64."""
    model = peers.network([20, 32, 10], 256, jnp.float64)
    return bench_dense(fisher(model), peers.dense(model, None, None), rounds)


def dense_d(rounds: int) -> Times:
    """The matrix of 64-64-10, N = 512, P = 4,874, f32."""
    model = peers.network([64, 64, 10], 512, jnp.float32)
    return bench_dense(fisher(model), peers.dense(model, 128, 64), min(rounds, 2))


def dense_cnn(rounds: int) -> Times:
    """The matrix of a convolutional network, N = 256, P = 2,698, f32."""
    model = peers.convolutional(256, jnp.float32)
    return bench_dense(fisher(model), peers.dense(model, 128, 64, (16, 256)), min(rounds, 2))


def _dense_glm(size: int, samples: int, rounds: int) -> Times:
    glm, model = peers.glm(size, size, samples)
    parts = peers.dense(model, 64, 100 if size < 64 else 16, (16, 64) if samples < 10_000 else (16,))
    floor = 2 * samples * (size * (size + 1) / 2) ** 2
    return bench_dense(lg.fisher(glm, model.params, model.inputs), parts, rounds, floor=floor)


def dense_glm_32(rounds: int) -> Times:
    """The matrix of a layer-normalized GLM, H = D = 32, N = 2,000, f64."""
    return _dense_glm(32, 2000, rounds)


def dense_glm_32_long(rounds: int) -> Times:
    """The same, N = 10,000."""
    return _dense_glm(32, 10_000, min(rounds, 2))


def dense_glm_64(rounds: int) -> Times:
    """The same, H = D = 64, N = 2,000."""
    return _dense_glm(64, 2000, min(rounds, 2))


def same_sums(contenders: peers.Contenders) -> None:
    """Refuses results with different sums: they would be of different things.

    Raises:
        AssertionError: naming the contender.
    """
    sums = {name: float(np.sum(np.asarray(run(), float))) for name, run in contenders.items()}
    for name, total in sums.items():
        assert abs(total / sums[OURS] - 1) < 1e-3, f"{name} gives {total:.6g}, {OURS} {sums[OURS]:.6g}"


def bench_diagonal(model: peers.Model, rounds: int) -> Times:
    """The exact diagonal."""
    F = fisher(model)
    contenders = {OURS: F.diagonal} | peers.diagonals(model)
    same_sums(contenders)
    return best_times(contenders, rounds, budget=0.1)


def diagonal_m(rounds: int) -> Times:
    """The exact diagonal of 784-128-10, N = 256, P = 102,026, f32."""
    return bench_diagonal(peers.network([784, 128, 10], 256, jnp.float32), rounds)


def diagonal_cnn(rounds: int) -> Times:
    """The exact diagonal of a convolutional network, N = 256, P = 2,698, f32."""
    return bench_diagonal(peers.convolutional(256, jnp.float32), rounds)


def kfac_cnn(rounds: int) -> Times:
    """Kronecker factors of the convolutional network (KFC), and one product with them."""
    model = peers.convolutional(256, jnp.float32)
    F = fisher(model)
    ones = jnp.ones(F.in_size(), jnp.float32)
    contenders = {OURS: lambda: F.approximate("kfac") @ ones} | peers.kronecker(model)
    same_sums(contenders)
    return best_times(contenders, rounds, budget=0.1)


TASKS: dict[str, Callable[[int], dict]] = {
    "product-S": product_s,
    "product-M": product_m,
    "product-GLM": product_glm,
    "many-S": many_s,
    "many-M": many_m,
    "many-GLM": many_glm,
    "dense-S": dense_s,
    "dense-D": dense_d,
    "dense-CNN": dense_cnn,
    "dense-GLM-32": dense_glm_32,
    "dense-GLM-32-long": dense_glm_32_long,
    "dense-GLM-64": dense_glm_64,
    "diagonal-M": diagonal_m,
    "diagonal-CNN": diagonal_cnn,
    "kfac-CNN": kfac_cnn,
}


def table(results: dict[str, dict]) -> str:
    """The results as Markdown."""
    lines = ["| task | contender | time | ÷ lngeom |", "|---|---|---|---|"]
    for task, times in results.items():
        for name, value in times.items():
            if name.startswith("fraction"):
                lines.append(f"| {task} | {name} | {value:.2f} | |")
            else:
                lines.append(f"| {task} | {name} | {value * 1e3:.3g} ms | {value / times[OURS]:.2f} |")
    return "\n".join(lines)


def ratios(results: Mapping[str, dict]) -> dict[str, dict[str, float]]:
    """Times of other contenders than lngeom as multiples of its time, by task."""
    found = {}
    for task, times in results.items():
        others = {n: v for n, v in times.items() if not n.startswith(("fraction", OURS))}
        found[task] = {name: value / times[OURS] for name, value in others.items()}
    return found


def times_numbers(results: Mapping[str, dict]) -> str:
    """The range of the fastest other contender, over products and over matrices."""
    best = {task: min(others.values()) for task, others in ratios(results).items()}
    parts = []
    for kind, start in (("products", "product"), ("matrices", "dense")):
        if values := [v for task, v in best.items() if task.startswith(start)]:
            parts.append(f"{span(values)} times lngeom's time for {kind}")
    return f"The fastest other way to compute the Fisher matrix takes {' and '.join(parts)}" if parts else ""


KINDS = {
    "the matrix of a normalized GLM": ("dense-GLM-32", "dense-GLM-32-long", "dense-GLM-64"),
    "the matrix of a small network": ("dense-S", "dense-D", "dense-CNN"),
    "a product with one vector": ("product-S", "product-M", "product-GLM"),
}
"""What is computed → its tasks, a bar of the figure each."""

WHAT = {
    "product-S": "a product, network 20-32-10",
    "product-M": "a product, network 784-512-512-10",
    "product-GLM": "a product, GLM of 64 units",
    "many-S": "64 products at once, network 20-32-10",
    "many-M": "64 products at once, network 784-512-512-10",
    "many-GLM": "64 products at once, GLM of 64 units",
    "dense-S": "the matrix, network 20-32-10",
    "dense-D": "the matrix, network 64-64-10",
    "dense-CNN": "the matrix, a convolutional network",
    "dense-GLM-32": "the matrix, GLM of 32 units",
    "dense-GLM-32-long": "the matrix, GLM of 32 units, N = 10 000",
    "dense-GLM-64": "the matrix, GLM of 64 units",
    "diagonal-M": "the exact diagonal, network 784-128-10",
    "diagonal-CNN": "the exact diagonal, a convolutional network",
    "kfac-CNN": "Kronecker factors and a product, a convolutional network",
}
"""Task → what it computes."""

LIBRARIES = ("somax", "laplax", "curvlinops", "nngeometry", "BackPACK")


def fastest(results: Mapping[str, dict]) -> dict[str, tuple[float, str]]:
    """The fastest other library of each task that one of them has: its time over lngeom's, and its name.

    Times of a library called by itself count too; they are never the smallest.
    """
    found = {}
    for task, others in ratios(results).items():
        known = [(v, lib) for name, v in others.items() for lib in LIBRARIES if name.startswith(lib)]
        if known:
            found[task] = min(known)
    return found


def lost(results: Mapping[str, dict]) -> list[str]:
    """The tasks at which something else is faster than lngeom, in words, with how much less time it takes."""
    told = []
    for task, others in ratios(results).items():
        name, least = min(others.items(), key=lambda item: item[1], default=("", 1.0))
        if least < 1:
            other = "the products one after the other" if name == "64 products" else name.split(",")[0]
            told.append(f"{WHAT.get(task, task)} ({other}: {100 * (1 - least):.0f} % less time)")
    return told


def times_title(results: Mapping[str, dict]) -> str:
    """By how much matrices are faster at least, of all tasks with a matrix and all other libraries."""
    least = [ratio for task, (ratio, _) in fastest(results).items() if task.startswith("dense")]
    if not least:
        return ""
    if min(least) < 1:
        return "Another library computes some Fisher matrix faster than lngeom"
    return (
        f"lngeom computes Fisher matrices at least {number(min(least), math.floor)} times faster than other libraries"
    )


def draw_times(results: Mapping[str, dict], stem: Path, configuration: Mapping[str, Any]) -> list[Path]:
    """A bar for each kind of task: the time of the fastest other library over lngeom's, at least and at most."""
    found = fastest(results)
    bars = {kind: [found[task] for task in tasks if task in found] for kind, tasks in KINDS.items()}
    bars = {kind: values for kind, values in bars.items() if values}
    with plots.figure(height=0.45 * len(bars) + 0.7) as (figure, axes):
        axis = axes[0, 0]
        for row, values in enumerate(bars.values()):
            least, most = min(values), max(values)
            axis.barh(row, least[0] - 1, left=1, height=0.55, color=COLOUR_OF[OURS])
            axis.plot([least[0], most[0]], [row, row], "-", color=GUIDE, linewidth=1.2)
            names = " or ".join(dict.fromkeys(name for _, name in (least, most)))
            text = f"{number(least[0])} to {number(most[0])} ×, {names}"
            behind = sorted({name for ratio, name in values if ratio < 1})
            if behind:
                slower_at = sum(ratio < 1 for ratio, _ in values)
                text += f"\nlngeom is slower than {' and '.join(behind)} at {slower_at} of these {len(values)} tasks"
            axis.annotate(
                text,
                (max(most[0], 1), row),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )
        axis.axvline(1, color=INK, linestyle="-", linewidth=1.0)
        axis.set_yticks(range(len(bars)), bars)
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        top = max(value for values in bars.values() for value, _ in values)
        axis.set(xscale="log", xlabel="time of the fastest other library ÷ time of lngeom", xlim=(0.7, 4 * top))
        plain_ticks(axis.xaxis, [1, 2, 5, 10, 20, 50, 100])
        slower = lost(results)
        about = (
            f"{times_numbers(results)}. Bars: the task of a kind at which lngeom leads least; grey lines: at which it "
            "leads most. Of somax, laplax, curvlinops and nngeometry the fastest counts."
            + (f" lngeom is slower at {' and at '.join(slower)}." if slower else "")
            + " Smallest times of interleaved rounds on two cores. Where a library would take too long it computed a "
            "part, and its time is scaled; somax takes Λ = I in the GLM tasks."
        )
        title = times_title(results)
        return plots.save(figure, stem, results, title=title, caption=about, configuration=configuration)


def stored_data(parser: argparse.ArgumentParser, path: Path) -> dict[str, dict]:
    """The data of a figure, to which a run adds; nothing where there is none yet. Damaged ones end the program."""
    try:
        return json.loads(path.read_text())["data"] if path.exists() else {}
    except (ValueError, KeyError) as error:
        parser.error(f"{path} is damaged ({error!r}): remove it, or give another --out")


def main() -> None:
    """Runs the tasks named, prints the table, and writes JSON and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--no-caption", action="store_true", help="leave the captions out of the pictures")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    unknown = sorted(set(options.tasks) - set(TASKS))
    if unknown:
        parser.error(f"no task {', '.join(unknown)}; the tasks are {', '.join(TASKS)}")
    check_writable(options.out)
    jax.config.update("jax_enable_x64", True)
    results = stored_data(parser, options.out / "bench_fisher.json")
    for name in options.tasks or TASKS:
        results[name] = TASKS[name](options.rounds)
        print(table({name: results[name]}), flush=True)
    results = {name: results[name] for name in TASKS if name in results}
    packages = ["curvlinops-for-pytorch", "jaxlib", "laplax", "nngeometry", "python-somax", "torch"]
    installed = {distribution.metadata["Name"].lower() for distribution in metadata.distributions()}
    about = {name: metadata.version(name) for name in packages if name in installed}
    with style.options(captions=not options.no_caption):
        draw_times(results, options.out / "bench_fisher", about)


if __name__ == "__main__":
    main()
