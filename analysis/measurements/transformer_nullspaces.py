"""Null spaces of tiny transformers of every variant: predicted, by closed formula, and measured.

`python -m analysis transformer_nullspaces` runs all variants with three seeds and writes
`figures/transformer_nullspaces.json` and, as a table, `figures/transformer_nullspaces.md`. `--only TEXT` picks variants
by name, `--resume` keeps the results that are in the file.
"""

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from jaxtyping import Array
from lngeom._core.files import check_writable
from lngeom.transformers import Stack, logits
from lngeom.transformers.families import FAMILIES
from rich.console import Console
from rich.progress import track
from rich.table import Table

from analysis.models.stacks import CHECKED, FURTHER, Variant, build, random_weights
from analysis.store import write, write_results

VARIANTS: dict[str, tuple[Variant, int | None]] = {**CHECKED, **FURTHER}

RICH = 2.5
"""Outputs of the data per parameter."""


DRAWS = 20
"""Random weights that are tried until the data meet every condition, such as that no ReLU is dead."""

GENERIC = "the weights are a generic point"
"""The condition under which the closed formulas hold."""


def data(variant: Variant, parameters: int, seed: int) -> tuple[Array, Array]:
    """Random tokens and types [N T], more where a unit or an expert is often off."""
    sparse = variant.activation.startswith("relu") or variant.top is not None
    samples = int(RICH * (1 + sparse) * parameters / (variant.length * (variant.vocabulary - 1))) + 40
    rng = np.random.default_rng([seed, 1])
    shape = samples, variant.length
    drawn = rng.integers(0, variant.vocabulary, shape), rng.integers(0, max(1, variant.types), shape)
    return jnp.asarray(drawn[0]), jnp.asarray(drawn[1])


@functools.lru_cache
def outputs(stack: Stack) -> Callable[[Any, Any], Array]:
    """The model of a stack, one function for equal stacks: what `lg.fisher` compiles is kept by function."""
    return lambda weights, x: logits(stack, weights, x[0], x[1])


def measure(variant: Variant, seed: int) -> dict[str, Any]:
    """The nullity of the exact Fisher matrix in float64, beside the prediction.

    Returns:
        parameters, predicted (rank of the tangent vectors), closed (the formula at generic weights), nullity, whether
        it is certain, smallest kept and largest dropped singular value (relative to the largest), the largest sine
        between the predicted and the measured null space, conditions that fail, and the families' numbers. "draw" is
        the number of random weights before these on which a condition on the data failed.
    """
    stack, shapes = build(variant)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    tokens, types = data(variant, parameters, seed)
    for draw in range(DRAWS):
        weights = random_weights(variant, shapes, seed + 1000 * draw)
        predicted = lg.predicted_nullspace(stack, weights, tokens, types=types)
        if all(c.holds or c.name == GENERIC for c in predicted.conditions):
            break
    closed = lg.predicted_nullspace(stack, {n: jax.ShapeDtypeStruct(s, float) for n, s in shapes.items()})
    F = lg.fisher(
        outputs(stack),
        weights,
        (tokens, types),
        family=lg.families.Categorical(),
        check=False,
    )
    found = F.decompose()
    s = np.asarray(found.singular_values) / float(found.singular_values[0])
    null = np.asarray(found.null)
    rank = parameters - null.shape[1]
    outside = predicted.basis - null @ (null.T @ predicted.basis)
    return {
        "parameters": parameters,
        "samples": len(tokens),
        "draw": draw,
        "predicted": predicted.dimension,
        "closed": closed.dimension,
        "nullity": null.shape[1],
        "certain": bool(found.decision.certain),
        "smallest kept": float(s[rank - 1]),
        "largest dropped": float(s[rank]) if rank < len(s) else 0.0,
        "outside": float(np.linalg.norm(outside, 2)) if outside.size else 0.0,
        "failing": [c.name for c in predicted.conditions if not c.holds],
        "families": dict(predicted.counts),
    }


def agrees(result: dict[str, Any]) -> bool:
    """Whether the prediction is the measured null space itself, and the formula its dimension at generic weights."""
    same = result["predicted"] == result["nullity"] and result["outside"] < 1e-5
    generic = GENERIC not in result["failing"]
    return same and result["certain"] and (result["closed"] == result["predicted"] or not generic)


HEADINGS = "variant", "P", "predicted", "formula", "measured", "kept", "dropped", "families"


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row a variant, under `HEADINGS`; numbers of several seeds where they differ."""
    found = []
    for name, result in results.items():
        runs = result["runs"]
        counts = ["; ".join(dict.fromkeys(str(r[key]) for r in runs)) for key in ("predicted", "closed", "nullity")]
        kept, dropped = min(r["smallest kept"] for r in runs), max(r["largest dropped"] for r in runs)
        families = " ".join(f"{code}{n}" for code, n in runs[0]["families"].items() if n)
        found.append((name, str(runs[0]["parameters"]), *counts, f"{kept:.0e}", f"{dropped:.0e}", families))
    return found


def page(results: dict[str, Any]) -> str:
    """The results as Markdown: a table, and the meaning of its codes."""
    lines = [
        "# Null spaces of transformers: predicted and measured",
        "",
        "The rank of the tangent vectors (predicted), the closed formula for generic weights, and the nullity of the",
        "exact Fisher matrix in float64. Kept and dropped are the singular values of its factor beside the cut,",
        "relative to the largest. Written by `python -m analysis transformer_nullspaces`.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---" * len(HEADINGS) + "|",
        *(f"| {' | '.join(row)} |" for row in rows(results)),
        "",
        *(f"- {code}: {name}" for code, name in FAMILIES.items()),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Runs the variants and writes their results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a variant's name")
    parser.add_argument("--resume", action="store_true", help="keep the results that are in the file")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    check_writable(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "transformer_nullspaces.json"
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    results: dict[str, Any] = {}
    if options.resume and path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))["variants"]
    console = Console()
    wanted = [(name, seed) for name in VARIANTS if options.only in name for seed in range(options.seeds)]
    started = time.perf_counter()
    for name, seed in track(wanted, "variants × seeds", console=Console(stderr=True)):
        kept = results.setdefault(name, {"checked elsewhere": VARIANTS[name][1], "runs": []})["runs"]
        if len(kept) > seed:
            continue
        kept.append(measure(VARIANTS[name][0], seed))
        write_results(path, {"seeds": options.seeds, "variants": results})
        jax.clear_caches()
    shown = {name: results[name] for name in VARIANTS if name in results}
    write(path.with_suffix(".md"), page(shown))
    table = Table(*HEADINGS)
    for row, result in zip(rows(shown), shown.values(), strict=True):
        table.add_row(*row, style=None if all(map(agrees, result["runs"])) else "red")
    console.print(table)
    wrong = [name for name, result in shown.items() if not all(map(agrees, result["runs"]))]
    runs = sum(len(r["runs"]) for r in shown.values())
    seconds = time.perf_counter() - started
    console.print(f"{len(shown)} variants, {runs} runs; {len(wrong)} variants differ; {seconds:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
