"""Figures of experiments: the median of the seeds as a line, their range as a band."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from lngeom import plots

from analysis.experiments.experiment import Experiment, Panel, Results


def draw(experiment: Experiment, results: Results, out: Path) -> list[Path]:
    """Draws the panels of an experiment and saves `out/NAME.{svg,png,json}`.

    Args:
        experiment: the experiment.
        results: what it gave.
        out: folder of figures.

    Returns:
        The paths.
    """
    columns = min(len(experiment.panels), 3 if len(experiment.panels) != 4 else 2)
    rows = math.ceil(len(experiment.panels) / columns)
    drawn: dict[str, Any] = {}
    with plots.figure(rows, columns, width="page" if columns > 1 else "column") as (fig, axes):
        for axis, panel in zip(axes.flat, experiment.panels, strict=False):
            drawn[panel.title] = _panel(axis, panel, experiment, results)
        for axis in axes.flat[len(experiment.panels) :]:
            axis.set_visible(False)
        return plots.save(
            fig,
            out / experiment.name,
            {"curves": drawn, **results.summary, "comparisons": results.comparisons},
            caption=f"{experiment.title} ({experiment.source}). Median of {results.configuration['seeds']} seeds; the "
            f"band is their range. {experiment.note}".strip(),
            configuration=results.configuration,
        )


def _panel(axis: Any, panel: Panel, experiment: Experiment, results: Results) -> dict[str, Any]:
    data = {}
    for i, name in enumerate(experiment.arms):
        if panel.arms is not None and name not in panel.arms:
            continue
        run = results.runs[name]
        curve = np.where(np.isfinite(run.curves[panel.metric]), run.curves[panel.metric], np.nan)
        shown = ~np.isnan(curve).all(0)
        steps, curve = run.steps[shown], curve[:, shown]
        middle, low, high = np.nanmedian(curve, 0), np.nanmin(curve, 0), np.nanmax(curve, 0)
        position = i if panel.arms is None else panel.arms.index(name)
        colour = plots.COLOURS[position % len(plots.COLOURS)]
        axis.plot(steps, middle, label=name.removesuffix(panel.ending), color=colour)
        axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        data[name] = {"steps": steps, "median": middle, "lowest": low, "highest": high}
    axis.set(title=panel.title, xlabel="training steps", ylabel=panel.label)
    if panel.log:
        axis.set_yscale("log")
    if panel.limits:
        axis.set_ylim(*panel.limits)
    axis.legend()
    return {name: {k: np.round(v, 5) for k, v in values.items()} for name, values in data.items()}
