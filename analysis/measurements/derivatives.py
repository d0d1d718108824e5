"""Derivatives of stock norms beside differences of their outputs: layer × derivative × dtype.

`python -m analysis derivatives` takes about two minutes on one core, prints one table, and writes
`figures/derivatives.json` and, as a table, `figures/derivatives.md`. `--only TEXT` picks layers by name. It needs the
extra `peers`, and Keras on JAX (`KERAS_BACKEND=jax`).
"""

import time
from collections.abc import Callable
from typing import Any

import lngeom as lg
from lngeom.checks.derivatives import Answer

from analysis.measurements.model_table import ModelTable, Results

LAYERS = (
    *(f"torch.nn:{name}" for name in ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "InstanceNorm1d")),
    *(f"flax.nnx:{name}" for name in ("LayerNorm", "RMSNorm", "BatchNorm")),
    *(f"flax.linen:{name}" for name in ("LayerNorm", "GroupNorm")),
    *(f"equinox.nn:{name}" for name in ("LayerNorm", "RMSNorm")),
    *(f"haiku:{name}" for name in ("RMSNorm", "LayerNorm")),
    *(f"keras.layers:{name}" for name in ("LayerNormalization", "RMSNormalization", "BatchNormalization")),
    *(f"lngeom.nn:{name}" for name in ("LayerNorm", "RMSNorm", "GroupNorm")),
    *(f"lngeom.normalizers:{name}" for name in ("LayerNorm", "BatchNorm", "WeightNorm")),
)
"""What is imported and built with arguments of conventional names."""

WEIGHT_NORM = "torch weight_norm(Linear)"
"""The one layer that is no name: torch's weight norm parametrizes a layer that exists."""

POSITIONS = {"torch.nn:InstanceNorm1d": 4}
"""T of the inputs, where a layer needs positions."""

DTYPES = ("float32", "bfloat16")
"""Dtypes beside the widest one."""

ORDERS = (1, 2, 3)


def built(name: str) -> Any:
    """What is checked of a name."""
    if name != WEIGHT_NORM:
        return name
    import torch

    torch.manual_seed(0)
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 6))


def measured(name: str) -> dict[str, Any]:
    """Every derivative of a layer.

    Args:
        name: as in `LAYERS`, or `WEIGHT_NORM`.

    Returns:
        By dtype and order the number of derivatives of each answer, and the largest error of the right ones; what is
        said of wrong ones; seconds of the processor without imports.
    """
    kept: dict[str, Any] = {}
    layer, positions = built(name), POSITIONS.get(name)
    lg.checks.adapt(layer, positions=positions)  # imports
    start = time.process_time()
    reports = [lg.check_derivatives(layer, dtype=dtype, positions=positions) for dtype in DTYPES]
    seconds = time.process_time() - start
    for report in reports:
        for r in report.results:
            cell = kept.setdefault(f"{r.dtype}, {r.order}", {a.value: [] for a in Answer} | {"error": 0.0})
            route = r.route if not r.point else f"{r.route} at {r.point}"
            if route not in cell[r.answer.value]:
                cell[r.answer.value].append(route)
            if r.answer is Answer.RIGHT and not r.point:
                cell["error"] = max(cell["error"], r.deviation)
    first = reports[0]
    return {
        "cells": kept,
        "wide": first.wide,
        "wrong": sorted({r.route for report in reports for r in report.wrong}),
        "diagnosis": list(first.diagnosis),
        "seconds": seconds / len(DTYPES),
    }


def _cell(found: dict[str, Any], key: str) -> str:
    """Wrong derivatives and those that were compared, or the largest error."""
    cell = found["cells"].get(key)
    if not cell or not (cell["right"] or cell["wrong"]):
        return "–"
    if cell["wrong"]:
        return f"{len(cell['wrong'])} of {len(cell['right']) + len(cell['wrong'])} wrong"
    return f"{cell['error']:.0e}"


def rows(results: Results) -> list[tuple[str, ...]]:
    """A row a layer."""
    keys = [*(f"float64, {k}" for k in ORDERS), "float32, 1", "float32, 2", "bfloat16, 1"]
    return [(name, *(_cell(r, key) for key in keys), f"{r['seconds']:.1f}") for name, r in results.items()]


def page(results: Results) -> str:
    """The table and what is wrong, as Markdown."""
    wrong = [f"- {name}: {', '.join(r['wrong'])}. {r['diagnosis'][0]}" for name, r in results.items() if r["wrong"]]
    return "\n".join(
        [
            "# Derivatives of stock norms",
            "",
            "Derivatives in inputs, weights, gain and bias, by forward and reverse mode and by both nested, beside",
            "differences of the layer's own outputs in the widest dtype in which it computes. A cell has the largest",
            "relative error at ordinary inputs, or how many derivatives are wrong, at any. –: not in that dtype, or",
            "the reference has too few digits. s: seconds of the processor a layer and dtype, with compilation.",
            "Written by `python -m analysis derivatives`.",
            "",
            *TABLE.markdown(results),
            "",
            "## Wrong",
            "",
            *(wrong or ["None."]),
            "",
        ]
    )


TABLE = ModelTable(
    "derivatives",
    ("layer", "float64: 1st", "2nd", "3rd", "float32: 1st", "2nd", "bfloat16: 1st", "s"),
    rows,
    page,
    ("jax", "torch", "flax", "equinox", "dm-haiku", "keras"),
    5.0,
)


def main() -> None:
    """Runs the layers that the arguments choose."""
    models: dict[str, Callable[[], dict[str, Any]]] = {
        name: lambda name=name: measured(name) for name in (*LAYERS, WEIGHT_NORM)
    }
    TABLE.command(models, "derivatives of stock norms beside differences of their outputs")


if __name__ == "__main__":
    main()
