"""Which null directions of small and foreign models have names, at initial weights and at moved ones.

`python -m analysis null_names` takes about twenty minutes on one core, prints one table, and writes
`figures/null_names.json` and, as a table, `figures/null_names.md`. `--only TEXT` picks models by name. All is computed
in float64. It needs the extra `peers`.
"""

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import lngeom as lg

from analysis.measurements.model_table import ModelTable, Results
from analysis.models import small_models
from analysis.models.architectures import ARCHITECTURES, Foreign

SECONDS = 70.0
"""What a model takes on an idle core, about, at both kinds of weights and with compilation."""

LIBRARIES = ("jax", "flax", "equinox", "dm-haiku", "keras")
"""Packages whose versions are written beside the results."""

WEIGHTS = ("initial", "moved")
"""At which weights: those of the library, and those of `small_models.trained`."""


def described(foreign: Foreign, params: Any) -> dict[str, Any]:
    """The described null space of a model at some parameters.

    Args:
        foreign: the model.
        params: where.

    Returns:
        Parameters, nullity; how many null directions are unexplained, uncertain, due to the data; text and seconds.
    """
    assert foreign.apply is not None
    F = lg.fisher(foreign.apply, params, foreign.X, family=foreign.family)
    null = F.nullspace()
    start = time.perf_counter()
    found = null.describe()
    seconds = time.perf_counter() - start
    return {
        "parameters": F.in_size(),
        "nullity": null.dimension,
        "unexplained": found.unexplained,
        "uncertain": int(null.uncertain.shape[1]),
        "data": sum(d.data or 0 for d in found.directions),
        "described": str(found),
        "seconds": seconds,
    }


def run(make: Callable[..., Foreign], **sizes: int) -> dict[str, Any]:
    """The results of a model by kind of weights.

    Args:
        make: a function of `ARCHITECTURES` or `small_models.MODELS`.
        **sizes: passed to it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the libraries, at import and at odd sizes
        warnings.filterwarnings("ignore", "the rank may be", RuntimeWarning)  # the table says so
        foreign = make("float64", **sizes)
        moved = small_models.trained(foreign.params)
        return {kind: described(foreign, at) for kind, at in zip(WEIGHTS, (foreign.params, moved), strict=True)}


HEADINGS = (
    "model",
    "P",
    *(f"{what}{kind}" for kind in ("", ", moved") for what in ("null", "data", "unexplained", "s")),
)
"""Columns of the table."""


def rows(results: Results) -> list[tuple[str, ...]]:
    """A row a model, under `HEADINGS`."""
    found = []
    for name, r in results.items():
        cells = []
        for kind in WEIGHTS:
            at = r[kind]
            doubt = f" ± {at['uncertain']}" if at["uncertain"] else ""
            share = f" ({100 * at['unexplained'] / at['nullity']:.1f} %)" if at["unexplained"] else ""
            cells += [f"{at['nullity']}{doubt}", str(at["data"]), f"{at['unexplained']}{share}", f"{at['seconds']:.1f}"]
        found.append((name, f"{r[WEIGHTS[0]]['parameters']:,}", *cells))
    return found


def page(results: Results) -> str:
    """The results as Markdown: a table, and the descriptions of null spaces in which something has no name."""
    lines = [
        "# Names of null directions",
        "",
        "Null spaces of Fisher matrices in float64, at the libraries' initial weights and at moved ones. There every",
        "entry is changed by normal noise of a fifth of the root mean square of its leaf, or of 0.2 where that is 0.",
        "",
        "- null: dimension; after ± how many of these rounding may hide",
        "- data: how many of them other data of the same kind would see",
        "- unexplained: how many have no name, and their share",
        "- s: seconds for the names, with compilation",
        "",
        "Written by `python -m analysis null_names`.",
        "",
        *TABLE.markdown(results),
        "",
    ]
    for name, r in results.items():
        for kind in WEIGHTS:
            if r[kind]["unexplained"]:
                lines += [f"## {name}, {kind}", "", "```text", r[kind]["described"], "```", ""]
    return "\n".join(lines)


TABLE = ModelTable("null_names", HEADINGS, rows, page, LIBRARIES, SECONDS)


def main() -> None:
    """Runs the models and writes their results."""
    jax.config.update("jax_enable_x64", True)
    models = {**small_models.MODELS, **{name: make for name, make in ARCHITECTURES.items() if "torch" not in name}}
    TABLE.command(
        {name: functools.partial(run, make) for name, make in models.items()}, (__doc__ or "").splitlines()[0]
    )


if __name__ == "__main__":
    main()
