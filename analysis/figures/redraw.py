"""Every figure whose data are stored, drawn again: experiments from their curves, all others from their JSON file."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lngeom import plots
from lngeom.plots import geometry, studies
from lngeom.plots.style import options

from analysis.benchmarks import bench_fisher, fisher_growth
from analysis.benchmarks.gpu import results as gpu
from analysis.experiments import (
    attentive_reader,
    convnet,
    draw,
    drawing,
    handwriting,
    mnist,
    order_embeddings,
    rows_of_digits,
    skip_thoughts,
)
from analysis.experiments.results import read
from analysis.measurements import curvature_quality, layer_audit, neuron_blocks, recurrent_stability
from analysis.measurements.learning_rate.figures import FIGURES, save_part

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        *(attentive_reader, convnet, draw, handwriting, mnist, order_embeddings, rows_of_digits, skip_thoughts),
    )
}


def arrays(value: Any) -> Any:
    """Data of a figure as they were before they were written: lists of numbers as arrays, null as NaN.

    Args:
        value: from the JSON file.

    Returns:
        Nested dictionaries of arrays and other values.
    """
    if isinstance(value, dict):
        return {k: arrays(v) for k, v in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], (str, dict)):
        return np.array(value, float)
    return value


def _study(name: str) -> Callable[[Path, Mapping[str, Any]], Any]:
    result = {"printed_against_exact": "PrintedAgainstExact", "block_scaling": "BlockScaling"}
    result |= {"line_elements": "LineElements", "spectra": "Spectra"}

    def drawn(stem: Path, document: Mapping[str, Any]) -> Any:
        data = arrays(document["data"])
        sizes = {k: tuple(int(n) for n in data[k]) for k in ("shape", "widths") if k in data}
        return getattr(geometry, name)(getattr(studies, result[name])(**data | sizes), stem)

    return drawn


def _part(name: str) -> Callable[[Path, Mapping[str, Any]], Any]:
    return lambda stem, document: save_part(name, arrays(document["data"]), document["configuration"], stem)


def _table(stem: Path, document: Mapping[str, Any]) -> Any:
    return plots.invariance_table(document["data"]["table"], stem)


DRAWINGS: dict[str, Callable[[Path, Mapping[str, Any]], Any]] = {
    "table1": _table,
    "extended": _table,
    **{study.__name__: _study(study.__name__) for study in studies.ALL},
    **{name: _part(name) for name in FIGURES},
    "bench_fisher": lambda stem, d: bench_fisher.draw_times(d["data"], stem, d["configuration"]),
    "fisher_growth": lambda stem, d: fisher_growth.draw(d["data"], stem, d["configuration"]),
    "curvature_quality": lambda stem, d: curvature_quality.draw(d["data"]["rows"], stem, d["configuration"]),
    "gpu_rates": lambda stem, d: gpu.draw(d["data"]["rows"], stem, d["configuration"]),
    "layer_audit": lambda stem, d: layer_audit.draw_data(d["data"], stem, d["configuration"]),
    "neuron_blocks": lambda stem, d: neuron_blocks.draw_data(d["data"], d["configuration"], stem),
    "recurrent_stability": lambda stem, d: recurrent_stability.draw_data(d["data"], d["configuration"], stem),
}
"""Figure → how it is drawn from a path without suffix and its JSON file."""


def redraw(name: str, folder: Path) -> None:
    """Draws a figure again from its data; the versions in its JSON file stay those of the computation.

    Args:
        name: of the figure.
        folder: of the figures.

    Raises:
        ValueError: if there is no such figure, or its data are missing or damaged.
    """
    if name not in DRAWINGS and name not in EXPERIMENTS:
        raise ValueError(f"no figure {name!r}; the figures are {', '.join(sorted({*DRAWINGS, *EXPERIMENTS}))}")
    stem = folder / name
    try:
        document = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
        versions = document["versions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{stem.with_suffix('.json')} is missing or damaged ({error!r}): compute it first") from error
    with options(versions=versions):
        if name in EXPERIMENTS:
            drawing.draw(EXPERIMENTS[name], read(EXPERIMENTS[name], folder), folder)
        else:
            DRAWINGS[name](stem, document)
