"""How good block-diagonal, KFAC and EKFAC approximations are for normalized transformers.

`python -m analysis curvature_quality` measures at 1 million parameters, `--size toy` at 2,000, and `--size 10M` one of
the models, with layer norm before each part, at 10 million with 6 probes. Protocol: transformers with
layer norm (pre and post), RMS norm (pre) and no norm, at random weights and after training on sequences of a random
Markov chain by Adam. For each the exact Fisher matrix F of the softmax over fresh sequences, in float32, and its
approximations F̂: exact blocks by layer, KFAC and EKFAC (positions expanded, random signs in the place of labels), each
with the exact blocks of norms and with their diagonals alone. Reported: |F − F̂| / |F| (Frobenius) from products with
random signs, with an interval of 95 % (jackknife), and the angle between natural gradients of random gradients, at
λ = the mean eigenvalue. Results are written after every model.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
from lngeom import plots
from lngeom._core.files import check_writable
from lngeom.information.approximations.approximate import group, together
from lngeom.information.approximations.operator import ApproximateFisher, Part, jackknife, natural_gradients
from lngeom.information.layers import find_layers

from analysis.gallery import series_colour
from analysis.models import gpt2 as transformer
from analysis.store import write_results

VARIANTS: dict[str, dict[str, Any]] = {
    "pre, layer norm": {"norm": "layer norm", "placing": "pre"},
    "post, layer norm": {"norm": "layer norm", "placing": "post"},
    "pre, RMS norm": {"norm": "RMS norm", "placing": "pre"},
    "no norm": {"norm": "none", "placing": "pre"},
}
SIZES = {
    "toy": {"vocabulary": 8, "length": 6, "width": 8, "depth": 1, "heads": 2},
    "1M": {"vocabulary": 64, "length": 32, "width": 128, "depth": 5, "heads": 4},
    "10M": {"vocabulary": 64, "length": 32, "width": 320, "depth": 8, "heads": 5},
}


def chain(vocabulary: int, seed: int) -> np.ndarray:
    """Transition probabilities of a random Markov chain, each row over a few likely tokens."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(vocabulary, 0.1), vocabulary)


def sequences(transitions: np.ndarray, count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Sequences of the chain, [N T]."""
    edges = np.cumsum(transitions, 1)
    tokens = np.zeros((count, length), np.int32)
    tokens[:, 0] = rng.integers(0, len(transitions), count)
    for t in range(1, length):
        drawn = rng.random(count)[:, None] > edges[tokens[:, t - 1]]
        tokens[:, t] = np.minimum(drawn.sum(1), len(transitions) - 1)
    return tokens


def train(shape: transformer.Shape, params: Any, transitions: np.ndarray, steps: int, seed: int) -> tuple[Any, float]:
    """The weights after Adam at 1e-3, and the last loss."""
    optimizer = optax.adam(1e-3)
    apply = transformer.function(shape)

    @jax.jit
    def step(params: Any, state: Any, tokens: Any) -> tuple:
        def loss(p: Any) -> Any:
            scores = jax.nn.log_softmax(apply(p, tokens[:, :-1]))
            return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], 2))

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    rng, state, value = np.random.default_rng(seed), optimizer.init(params), math.nan
    for _ in range(steps):
        params, state, value = step(params, state, jnp.asarray(sequences(transitions, 16, shape.length + 1, rng)))
    return params, float(value)


def diagonal_norms(approximation: ApproximateFisher) -> ApproximateFisher:
    """The same with the diagonal alone in the place of the exact blocks of gains and biases."""

    def plain(part: Part) -> Part:
        return part if part.kind != "block" else replace(part, right=None, values=part.diagonal(), kind="diagonal")

    return replace(approximation, parts=tuple(map(plain, approximation.parts)))


def block_error(F: lg.FisherOperator, key: Any, probes: int) -> dict[str, Any]:
    """The error of the exact blocks by layer, from products alone: each block is F between two projections."""
    problem = F.problem
    layers = find_layers(problem, 2048).readable(problem)
    members = together(layers, group(layers))
    edges = problem.layout.edges
    owner = np.zeros(F.in_size(), int)
    for number, leaves in enumerate(members):
        for leaf in leaves:
            owner[edges[leaf] : edges[leaf + 1]] = number
    gaps, sizes = [], []
    for k in jax.random.split(key, probes):
        signs = jax.random.rademacher(k, (F.in_size(),), problem.dtype)
        exact, blocks = F @ signs, jnp.zeros_like(signs)
        for number in range(len(members)):
            mask = jnp.asarray(owner == number)
            blocks = jnp.where(mask, F @ jnp.where(mask, signs, 0), blocks)
        gaps.append(float(jnp.sum((exact - blocks) ** 2)))
        sizes.append(float(jnp.sum(exact**2)))
    ratio, interval = jackknife(np.array(gaps), np.array(sizes))
    return {"approximation": "exact blocks", "frobenius": ratio, "interval": interval, "angles": [], "probes": probes}


def errors(F: lg.FisherOperator, draws: int, probes: int, gradients: int = 4) -> Iterator[dict[str, Any]]:
    """A row for each approximation; all angles are of the same gradients, at the mean eigenvalue of EKFAC."""
    key = jax.random.key(0)
    yield block_error(F, key, probes)
    ekfac = F.approximate("ekfac", key=jax.random.key(1), samples=draws)
    damping = float(ekfac.trace()) / F.in_size()
    pairs = natural_gradients(F, jax.random.key(2), gradients, damping)
    kfac = F.approximate("kfac", key=jax.random.key(1), samples=draws)
    named = {
        "kfac, exact norms": kfac,
        "kfac, diagonal norms": diagonal_norms(kfac),
        "ekfac, exact norms": ekfac,
        "ekfac, diagonal norms": diagonal_norms(ekfac),
        "diagonal of EKFAC": replace(ekfac, parts=tuple(map(_as_diagonal, ekfac.parts))),
    }
    for name, approximation in named.items():
        error = approximation.measure(key, probes, gradients=0, damping=damping)
        row = {"approximation": name, "frobenius": error.frobenius, "interval": error.interval, "probes": probes}
        yield row | {"angles": list(approximation.angles(pairs, damping)), "damping": damping}


def _as_diagonal(part: Part) -> Part:
    return replace(part, left=None, right=None, values=part.diagonal())


def page(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "# Approximations of Fisher matrices of transformers",
        "",
        "Relative Frobenius error from products with random signs (interval of 95 %), and the median angle between",
        "natural gradients. Written by `python -m analysis curvature_quality`.",
        "",
        "| model | trained | P | approximation | error | interval | angle |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        low, high = row["interval"]
        angle = f"{np.median(row['angles']):.1f}°" if row["angles"] else ""
        cells = (row["model"], "yes" if row["trained"] else "no", f"{row['parameters']:,}", row["approximation"])
        lines.append(f"| {' | '.join(cells)} | {row['frobenius']:.3f} | {low:.3f} to {high:.3f} | {angle} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], stem: Path, configuration: dict[str, Any]) -> list[Path]:
    """Errors of the approximations and angles of natural gradients, a line for each model, and the data beside them.

    Args:
        rows: the results.
        stem: path without suffix.
        configuration: of the run.

    Returns:
        The files.
    """
    shown = {
        "exact blocks": "blocks by layer",
        "kfac, exact norms": "KFAC",
        "ekfac, exact norms": "EKFAC",
        "diagonal of EKFAC": "diagonal of EKFAC",
    }
    models = list(dict.fromkeys((r["model"], r["trained"]) for r in rows))
    blocks = [r["frobenius"] for r in rows if r["approximation"] == "exact blocks"]
    with plots.figure(1, 2, height=1.2 + 0.3 * len(models), sharey=True) as (figure, axes):
        left, right = axes[0]
        for k, (name, label) in enumerate(shown.items()):
            chosen = {(r["model"], r["trained"]): r for r in rows if r["approximation"] == name}
            place = [m + 0.12 * (k - 1.5) for m, model in enumerate(models) if model in chosen]
            values = [chosen[model]["frobenius"] for model in models if model in chosen]
            ends = np.array([chosen[model]["interval"] for model in models if model in chosen]).T
            reach = np.abs(ends - np.array(values))
            style = {"color": series_colour(k), "marker": "osD^"[k], "linestyle": "none"}
            left.errorbar(values, place, xerr=reach, label=label, **style)
            if all(chosen[model]["angles"] for model in models):
                right.plot([np.median(chosen[model]["angles"]) for model in models], place, **style)
        labels = [f"{model}, {'trained' if trained else 'at random'}" for model, trained in models]
        left.set(yticks=range(len(models)), yticklabels=labels, xlim=(0, 1.05), xlabel="relative Frobenius error")
        left.invert_yaxis()
        right.set(xlim=(0, 90), xlabel="angle of natural gradients, degrees")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return plots.save(
            figure,
            stem,
            {"rows": rows},
            title=f"Blocks by layer miss at least {100 * min(blocks):.0f} % of the Fisher matrix of a transformer",
            caption=f"Blocks by layer miss {100 * min(blocks):.0f} to {100 * max(blocks):.0f} % of it, KFAC and EKFAC "
            f"a little more. Transformers of {rows[0]['parameters'] / 1e6:.2g} million parameters. Errors from "
            f"{rows[0]['probes']} random products, with 95 % intervals; angles are medians of 4 random gradients, "
            "damped by the mean eigenvalue. Norms have their exact blocks.",
            configuration=configuration,
        )


def measure(
    sizes: dict[str, int], variants: Sequence[str], steps: int, draws: int, probes: int, write: Callable[[list], Any]
) -> list:
    """The models, trained and not."""
    transitions = chain(sizes["vocabulary"], 0)
    tokens = jnp.asarray(sequences(transitions, 16, sizes["length"], np.random.default_rng(1)))
    rows: list[dict[str, Any]] = []
    for name in variants:
        shape = transformer.Shape(**sizes, **VARIANTS[name])
        start = transformer.parameters(shape, jax.random.key(0), tied=False)
        trained, loss = train(shape, start, transitions, steps, 2)
        for params, steps_done in ((start, 0), (trained, steps)):
            begin = time.perf_counter()
            F = lg.fisher(transformer.function(shape), params, tokens, family=lg.families.Categorical(), check=False)
            base = {"model": name, "trained": steps_done > 0, "steps": steps_done, "parameters": F.in_size()}
            rows += [base | row | ({"loss": loss} if steps_done else {}) for row in errors(F, draws, probes)]
            write(rows)
            print(f"{time.perf_counter() - begin:.0f} s  {name}, {steps_done} steps", file=sys.stderr)
    return rows


def main() -> None:
    """Measures, and writes results and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="1M")
    parser.add_argument("--probes", type=int, help="by default 12, and 6 at 10M")
    parser.add_argument("--draws", type=int, default=8, help="random signs for each sequence")
    parser.add_argument("--steps", type=int, help="of training; by default 500, and 20 at toy size")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    check_writable(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"curvature_quality{'' if options.size == '1M' else f'_{options.size}'}.json"
    probes = options.probes or (6 if options.size == "10M" else 12)
    settings = {"probes": probes, "draws": options.draws, "sizes": SIZES[options.size]}

    def write(rows: list) -> None:
        write_results(path, {"configuration": settings, "data": {"rows": rows}}, page(rows))

    steps = options.steps if options.steps is not None else 20 if options.size == "toy" else 500
    variants = list(VARIANTS)[:1] if options.size == "10M" else list(VARIANTS)
    rows = measure(settings["sizes"], variants, steps, options.draws, probes, write)
    draw(rows, path.with_suffix(""), settings)
    print(path.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
