"""How time and memory of Fisher products and matrices grow: `python -m analysis fisher_growth`.

With samples, parameters, layers, outputs, positions, vocabulary and (simulated) devices, one of them at a time. Times
are the smallest of several rounds in which all contenders take turns; memory is what the compiled program of a product
holds beside its arguments. Each growth can be measured alone; its numbers replace those in the JSON file.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom import plots
from lngeom._core.files import check_writable
from lngeom.plots import style
from lngeom.plots.axes import guide, plain_ticks, span
from lngeom.plots.style import COLOUR_OF

from analysis.benchmarks import fisher_peers as peers
from analysis.benchmarks.bench_fisher import OURS, best_times, stored_data

BYTES = "temporary bytes"
"""Beside times, what a product holds."""

Row = dict[str, float]
"""Seconds by contender, and `BYTES`."""


class Growth(NamedTuple):
    """What grows.

    Attributes:
        axis: label of its sizes.
        about: what stays.
        sizes: that are measured.
        measure: size and rounds ↦ a row.
    """

    axis: str
    about: str
    sizes: tuple[int, ...]
    measure: Callable[[int, int], Row]


def held(F: lg.FisherOperator, v: Any) -> Row:
    """Bytes that a product holds beside its arguments and its result, on each device."""
    compiled = jax.jit(lambda F, v: F.mv(v)).lower(F, v).compile().memory_analysis()
    return {BYTES: compiled.temp_size_in_bytes}


def timed(F: lg.FisherOperator, rounds: int, v: Any, **others: Callable[[], Any]) -> Row:
    """Times of a product and of what else is named, and what a product holds."""
    return best_times({"product": lambda: F.mv(v)} | others, rounds, budget=0.05) | held(F, v)


def samples(size: int, rounds: int) -> Row:
    """Product and diagonal of a network 16-24-4, in chunks of 500."""
    model = peers.network([16, 24, 4], size, jnp.float32)
    F = lg.fisher(model.apply, model.params, model.inputs, family=model.family, chunk=500, check=False)
    return timed(F, min(rounds, 2), model.tangent, diagonal=F.diagonal)


def _network(sizes: Sequence[int], rounds: int) -> Row:
    model = peers.network(list(sizes), 256, jnp.float32)
    F = lg.fisher(model.apply, model.params, model.inputs, family=model.family)
    return timed(F, rounds, model.tangent)


def parameters(size: int, rounds: int) -> Row:
    """A product of a network of two layers of this width."""
    return _network([size, size, 10], rounds) | {"parameters": size * (size + 11) + 10}


def layers(size: int, rounds: int) -> Row:
    """A product of a network of so many layers."""
    return _network([64] * size + [10], rounds)


def outputs(size: int, rounds: int) -> Row:
    """Product, diagonal and matrix of the first layer's weights of a network 64-64-C."""
    model = peers.network([64, 64, size], 256, jnp.float32)
    layer, *rest = model.params
    first = layer["w"]

    def apply(w: jax.Array, x: jax.Array) -> jax.Array:
        return model.apply([layer | {"w": w}, *rest], x)

    F = lg.fisher(apply, first, model.inputs, family=model.family)
    return timed(F, rounds, first, diagonal=F.diagonal, matrix=F.as_matrix)


def positions(size: int, rounds: int) -> Row:
    """A product of one block of attention, 16 samples of so many positions of 32 units, ten classes each."""
    keys = jax.random.split(jax.random.key(0), 6)
    names = ("query", "key", "value", "out")
    params = {name: jax.random.normal(k, (32, 32), jnp.float32) / 32**0.5 for name, k in zip(names, keys, strict=False)}
    params["head"] = jax.random.normal(keys[4], (32, 10), jnp.float32) / 32**0.5
    X = jax.random.normal(keys[5], (16, size, 32), jnp.float32)

    def apply(p: dict, x: jax.Array) -> jax.Array:
        n = lg.nn.layer_norm(x)
        scores = (n @ p["query"]) @ (n @ p["key"]).swapaxes(1, 2) / 32**0.5
        return (x + jax.nn.softmax(scores) @ (n @ p["value"]) @ p["out"]) @ p["head"]

    return timed(lg.fisher(apply, params, X, family=lg.families.Categorical()), rounds, params)


def vocabulary(size: int, rounds: int) -> Row:
    """A product for 256 positions of 64 units: all logits at once, and in blocks."""
    x = jax.random.normal(jax.random.key(0), (256, 64), jnp.float32)
    W, v = (jax.random.normal(jax.random.key(k), (size, 64), jnp.float32) / 8 for k in (1, 2))
    blocked = lg.information.VocabularyHead(lambda W, x: (jnp.tanh(x), W), block=1024)
    heads = {"all logits": lambda W, x: jnp.tanh(x) @ W.T, "in blocks": blocked}
    all_of = {k: lg.fisher(head, W, x, family=lg.families.Categorical(), check=False) for k, head in heads.items()}
    times = best_times({name: partial(F.mv, v) for name, F in all_of.items()}, rounds, budget=0.05)
    return times | {f"{name}, {BYTES}": held(F, v)[BYTES] for name, F in all_of.items()}


def spectra(size: int, rounds: int) -> Row:
    """All singular values of the factor, 4,096 rows, and the ten largest eigenvalues by Lanczos iterations."""
    model = peers.network([size, size, 16], 256, jnp.float32)
    F = lg.fisher(model.apply, model.params, model.inputs, family=model.family)
    few = min(rounds, 2)
    times = best_times(
        {"all singular values": F.singular_values, "ten eigenpairs": lambda: F.eigenpairs(10).values}, few, budget=0.05
    )
    return times | {"parameters": F.in_size()}


def devices(size: int, rounds: int) -> Row:
    """A product of 16,384 samples divided over so many devices, which share the cores of this machine."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={size}"
    command = [sys.executable, "-m", "analysis.benchmarks.fisher_growth", "--devices", str(size), str(rounds)]
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def on_devices(size: int, rounds: int) -> Row:
    """The same in this process, which has so many devices."""
    model = peers.network([64, 128, 10], 16_384, jnp.float32)
    mesh = jax.make_mesh((size,), ("samples",))
    F = lg.fisher(model.apply, model.params, model.inputs, family=model.family, mesh=mesh, chunk=512)
    return timed(F, rounds, model.tangent)


GROWTHS = {
    "samples": Growth("samples N", "chunks of 500 samples", (10**3, 10**4, 10**5, 10**6), samples),
    "parameters": Growth("width", "two layers, 256 samples", (32, 64, 128, 256, 512, 1024), parameters),
    "layers": Growth("layers", "64 wide, 256 samples", (1, 2, 4, 8, 16, 32), layers),
    "outputs": Growth("outputs C", "4,096 weights, 256 samples", (2, 4, 8, 16, 32, 64, 128, 256), outputs),
    "positions": Growth("positions T", "one block of attention", (8, 16, 32, 64, 128, 256, 512), positions),
    "vocabulary": Growth("vocabulary V", "256 positions of 64 units", (2**10, 2**12, 2**14, 2**16), vocabulary),
    "spectra": Growth("width", "4,096 rows", (8, 16, 24, 32, 48), spectra),
    "devices": Growth("simulated devices", "16,384 samples, two cores", (1, 2, 4, 8), devices),
}
"""By name, in the order of the figure."""


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Exponent of a power law through the larger half of the sizes, by least squares of logarithms."""
    kept = max(2, (len(sizes) + 1) // 2)
    return float(np.polyfit(np.log(sizes[-kept:]), np.log(values[-kept:]), 1)[0])


def turn(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float:
    """The size, between two measured ones, from which on the second is faster; 0 if always, infinite if never."""
    ratios = np.log(np.asarray(second) / np.asarray(first))
    slower = np.flatnonzero(ratios > 0)
    if not slower.size:
        return 0.0
    k = int(slower[-1])
    if k == len(sizes) - 1:
        return float("inf")
    share = ratios[k] / (ratios[k] - ratios[k + 1])
    return float(np.exp(np.log(sizes[k]) * (1 - share) + np.log(sizes[k + 1]) * share))


class Curves(NamedTuple):
    """What a growth found: sizes (parameters, where they are what grows), times and bytes by contender."""

    sizes: list[float]
    times: dict[str, list[float]]
    memory: dict[str, list[float]]


def curves(found: Mapping[Any, Row]) -> Curves:
    """The numbers of a growth by contender; sizes are text where they come from JSON."""
    rows = {int(size): row for size, row in sorted(found.items(), key=lambda item: int(item[0]))}
    sizes = [float(row.get("parameters", size)) for size, row in rows.items()]
    first = next(iter(rows.values()))
    columns = {name: [row[name] for row in rows.values()] for name in first if name != "parameters"}
    memory = {name.removesuffix(f", {BYTES}"): v for name, v in columns.items() if name.endswith(BYTES)}
    return Curves(sizes, {name: v for name, v in columns.items() if not name.endswith(BYTES)}, memory)


def slopes(data: Mapping[str, Mapping]) -> dict[str, float]:
    """Exponents of the time of a product; of a vocabulary in blocks."""
    found = {}
    for name, rows in data.items():
        known = curves(rows)
        if times := known.times.get("product", known.times.get("in blocks")):
            found[name] = slope(known.sizes, times)
    return found


def title(data: Mapping[str, Mapping]) -> str:
    """In which sizes the time of a product grows faster than linearly, if in any."""
    faster = [name for name, power in slopes(data).items() if power > 1.05]
    if faster:
        return f"The time of a Fisher product grows faster than its {' and its '.join(faster)}"
    return "The time of a Fisher product grows at most linearly in everything measured"


def numbers(data: Mapping[str, Mapping]) -> str:
    """Exponents, the memory over the samples, and where one route becomes faster than another."""
    listed = [f"{power:.2f} ({name})".replace("-", "−") for name, power in slopes(data).items()]
    text = f"Exponents of the time of a product: {', '.join(listed)}"
    if "samples" in data:
        memory = [b / 2**10 for b in curves(data["samples"]).memory[BYTES]]
        text += f". In chunks it holds {span(memory, lambda v: f'{v:.0f} KiB')} for all numbers of samples"
    for name, first, second, what in (
        ("vocabulary", "all logits", "in blocks", "Blocks of logits take less time than all at once"),
        ("spectra", "all singular values", "ten eigenpairs", "Ten eigenpairs take less time than all singular values"),
    ):
        if name in data:
            known = curves(data[name])
            at = turn(known.sizes, known.times[first], known.times[second])
            where = {0.0: "at all sizes", float("inf"): "at no size"}.get(at, f"from about {plain(at)} on")
            text += f". {what} {where}"
    return text


def plain(value: float) -> str:
    """A number with two digits."""
    return f"{float(f'{value:.2g}'):,.0f}"


def draw(data: Mapping[str, Mapping], stem: Path, configuration: Mapping[str, Any]) -> list[Path]:
    """A panel for each growth: times, with a line of slope one; of the vocabulary memory too."""
    panels = [(name, False) for name in GROWTHS if name in data]
    if "vocabulary" in data:
        panels.insert([name for name, _ in panels].index("vocabulary") + 1, ("vocabulary", True))
    with plots.figure(-(-len(panels) // 3), 3, height=2.4) as (figure, axes):
        for axis in axes.ravel()[len(panels) :]:
            axis.set_axis_off()
        for axis, (name, memory) in zip(axes.ravel(), panels, strict=False):
            growth, known = GROWTHS[name], curves(data[name])
            lines = {k: [b / 2**20 for b in v] for k, v in known.memory.items()} if memory else known.times
            label = "parameters P" if "parameters" in next(iter(data[name].values())) else growth.axis
            for (contender, values), marker, dash in zip(
                lines.items(), itertools.cycle("osD"), itertools.cycle(["-", "--", ":"])
            ):
                text = f"{contender}: {slope(known.sizes, values):.2f}"
                axis.loglog(known.sizes, values, color=COLOUR_OF[OURS], marker=marker, linestyle=dash, label=text)
            if name != "devices":
                least = min(v[-1] for v in lines.values())
                guide(axis, np.array(known.sizes), least * np.array(known.sizes) / known.sizes[-1], "slope 1")
            axis.set(xlabel=label, ylabel="memory, MiB" if memory else "time, s", title=growth.about)
            axis.legend(fontsize=6)
            axis.tick_params(which="minor", labelbottom=False)
            axis.margins(y=0.3)
            if name in {"layers", "outputs", "devices"}:
                plain_ticks(axis.xaxis, [int(size) for size in known.sizes][:: 1 if name == "devices" else 2])
        text = (
            f"{numbers(data)}. Numbers in the legends are exponents of the larger half of the sizes. One size grows in "
            "each panel, in float32. Smallest times of several rounds."
        )
        return plots.save(figure, stem, data, title=title(data), caption=text, configuration=configuration)


def table(name: str, rows: Mapping[int, Row]) -> str:
    """The numbers of one growth, in microseconds and KiB."""
    known = curves(rows)
    times = [f"{k} {', '.join(f'{v * 1e6:,.0f}' for v in values)} µs" for k, values in known.times.items()]
    memory = [f"{k} {', '.join(f'{v / 2**10:,.0f}' for v in values)} KiB" for k, values in known.memory.items()]
    return "\n  ".join([f"{name}: {', '.join(f'{size:,.0f}' for size in known.sizes)}", *times, *memory])


def main() -> None:
    """Measures the growths named, prints their numbers, and writes JSON and the figure."""
    if sys.argv[1:2] == ["--devices"]:
        print(json.dumps(on_devices(*map(int, sys.argv[2:4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("growths", nargs="*", metavar="GROWTH", help=f"of {', '.join(GROWTHS)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--no-caption", action="store_true", help="leave the caption out of the picture")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    if unknown := sorted(set(options.growths) - set(GROWTHS)):
        parser.error(f"no growth {', '.join(unknown)}; they are {', '.join(GROWTHS)}")
    check_writable(options.out)
    found = stored_data(parser, options.out / "fisher_growth.json")
    for name in options.growths or GROWTHS:
        growth = GROWTHS[name]
        found[name] = {size: growth.measure(size, options.rounds) for size in growth.sizes}
        print(table(name, found[name]), flush=True)
    found = {name: found[name] for name in GROWTHS if name in found}
    with style.options(captions=not options.no_caption):
        draw(found, options.out / "fisher_growth", {"jaxlib": metadata.version("jaxlib")})


if __name__ == "__main__":
    main()
