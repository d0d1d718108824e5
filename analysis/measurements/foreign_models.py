"""Ten models of other libraries through lngeom: checks of their norms, lint, and Fisher matrices where they are in JAX.

`python -m analysis foreign_models` takes about five minutes on one core, prints one table, and writes
`figures/foreign_models.json` and, as a table, `figures/foreign_models.md`. `--only TEXT` picks models by name. Checks
and lint run in float32, as users have their models, and Fisher matrices in float64. It needs the extra `peers`.
"""

import functools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np

from analysis.measurements.model_table import ModelTable
from analysis.models.architectures import ARCHITECTURES, Foreign

SECONDS = 30.0
"""What a model takes on an idle core, about, with compilation."""

LIBRARIES = ("jax", "flax", "equinox", "dm-haiku", "keras", "torch")
"""Packages whose versions are written beside the results."""


@contextmanager
def _timed(into: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    into[name] = time.perf_counter() - start


def _ready(value: Any) -> Any:
    return jax.block_until_ready(value)


def audited(foreign: Foreign) -> dict[str, Any]:
    """What `check_model` and `lint` say about the norms of a model.

    Args:
        foreign: the model.

    Returns:
        norms (found), unchecked, differing, findings (rule and path) and rules that could not run, with seconds.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "check"):
        report = lg.check_model(foreign.model, foreign.X)
    with _timed(seconds, "lint"):
        lint = lg.lint(foreign.model, foreign.X)
    return {
        "norms": len(report.norms),
        "unchecked": [[n.path, n.note] for n in report.unchecked],
        "differing": [n.path for n in report.norms if n.differences or n.findings],
        "findings": [[f.rule, f.path] for f in lint.findings],
        "not linted": [list(row) for row in lint.unchecked],
        "seconds": seconds,
    }


def measured(foreign: Foreign) -> dict[str, Any]:
    """The Fisher matrix of a model: a product, its rank, and the names of its null directions.

    Args:
        foreign: the model, in JAX.

    Returns:
        parameters, rank, whether it is certain, nullity, named (null directions with a name), directions (name and
        dimension), residual (of the null space, as singular values), largest eigenvalue, with seconds.
    """
    if foreign.apply is None:
        raise ValueError("a Fisher matrix needs a model in JAX; this one has no apply(params, X)")
    seconds: dict[str, float] = {}
    F = lg.fisher(foreign.apply, foreign.params, foreign.X, family=foreign.family)
    v = jnp.asarray(np.random.default_rng(3).normal(size=F.in_size()))
    _ready(F @ v)  # compiles
    with _timed(seconds, "product"):
        _ready(F @ v)
    with _timed(seconds, "rank"):
        rank = F.rank()
    with _timed(seconds, "null space"):
        null = F.nullspace()
        described = null.describe()
    with _timed(seconds, "eigenvalue"):
        largest = float(F.eigenvalues(1)[0])
    return {
        "parameters": F.in_size(),
        "rank": int(rank),
        "certain": bool(null.certain),
        "nullity": null.dimension,
        "named": null.dimension - described.unexplained,
        "directions": [[d.name, d.dimension] for d in described.directions],
        "described": str(described),
        "residual": null.residual,
        "eigenvalue": largest,
        "seconds": seconds,
    }


def run(make: Callable[..., Foreign], **sizes: int) -> dict[str, Any]:
    """All results of one model: checks and lint in float32, its Fisher matrix in float64.

    Args:
        make: a function of `ARCHITECTURES`.
        **sizes: passed to it.

    Returns:
        The results of `audited`, and those of `measured` as "fisher", which is None where the model is not in JAX.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the libraries, at import and at odd sizes
        audit = audited(make("float32", **sizes))
        warnings.filterwarnings("ignore", "the rank may be", RuntimeWarning)  # the table says so
        foreign = make("float64", **sizes)
        return {**audit, "fisher": measured(foreign) if foreign.apply else None}


HEADINGS = (
    "model",
    "P",
    "norms",
    "differ",
    "lint",
    "check s",
    "lint s",
    "F v ms",
    "rank",
    "s",
    "null",
    "named",
    "s",
    "λ₁",
)
"""Columns of the table."""


def rows(results: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row a model, under `HEADINGS`."""
    found = []
    for name, r in results.items():
        norms = f"{r['norms'] - len(r['unchecked'])} of {r['norms']}"
        seconds = (f"{r['seconds']['check']:.1f}", f"{r['seconds']['lint']:.1f}")
        first = (norms, str(len(r["differing"])), str(len(r["findings"])), *seconds)
        F = r["fisher"]
        if F is None:
            found.append((name, "", *first, *[""] * 7))
            continue
        s = F["seconds"]
        last = (
            f"{1000 * s['product']:.1f}",
            f"{F['rank']}{'' if F['certain'] else '?'}",
            f"{s['rank']:.1f}",
            str(F["nullity"]),
            str(F["named"]),
            f"{s['null space']:.1f}",
            f"{F['eigenvalue']:.3g}",
        )
        found.append((name, f"{F['parameters']:,}", *first, *last))
    return found


def page(results: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown: a table, what was found, and the null directions by name."""
    lines = [
        "# Ten models of other libraries",
        "",
        "Norms checked in place and linted in float32; Fisher matrices in float64, at the libraries' initial values.",
        "Seconds with compilation, and of one compiled product in ms. Written by `python -m analysis foreign_models`.",
        "",
        *TABLE.markdown(results),
        "",
    ]
    for name, r in results.items():
        said = [f"- {rule} at `{path}`" for rule, path in r["findings"]]
        said += [f"- {path}: {note}" for path, note in r["unchecked"]]
        said += [f"- `{path}` differs from its row" for path in r["differing"]]
        directions = ["```text", r["fisher"]["described"], "```"] if r["fisher"] else []
        if said or directions:
            lines += [f"## {name}", "", *said, *([""] if said and directions else []), *directions, ""]
    return "\n".join(lines)


TABLE = ModelTable("foreign_models", HEADINGS, rows, page, LIBRARIES, SECONDS)


def main() -> None:
    """Runs the models and writes their results."""
    jax.config.update("jax_enable_x64", True)
    models = {name: functools.partial(run, make) for name, make in ARCHITECTURES.items()}
    TABLE.command(models, (__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
