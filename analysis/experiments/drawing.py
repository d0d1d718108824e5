"""Figures of experiments: the median of the seeds as a line, their range as a band; titles from the comparisons."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lngeom import plots
from lngeom.plots.axes import common_legend, equal_limits, log_scale, span
from lngeom.plots.style import GUIDE, lines_of, method_of

from analysis.experiments.experiment import Experiment, Panel, note_of
from analysis.experiments.results import Results

LONG = 100
"""Characters of a title that does not fit above a figure of one column."""


def finding(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """How many steps one method takes, as a fraction of another's, from medians over the seeds.

    Args:
        comparisons: what `results.compare` gave.

    Returns:
        A sentence; where seeds lie on both sides of 100 %, or a median run never reached the goal, it says so. Empty
        where no speeds are compared.
    """
    groups: dict[tuple[str, str], dict[tuple[str, str], Mapping[str, Any]]] = {}
    for row in comparisons:
        methods = method_of(row["treated"]), method_of(row["baseline"])
        if row["measure"] == "speed" and methods[0] != methods[1] and _median(row):
            groups.setdefault(methods, {})[row["treated"], row["baseline"]] = row
    parts: dict[str, dict[str, str]] = {}
    for (treated, baseline), rows in groups.items():
        other = "no normalization" if baseline == "none" else baseline
        split = any(min(_numbers(r, "high")) < 1 < max(_numbers(r, "low")) for r in rows.values())
        bounds, values = zip(*filter(None, map(_median, rows.values())), strict=True)
        percent = span(values, lambda v: f"{100 * v:.0f} %")
        percent = _BOUND.get(frozenset(bounds), "about ") + percent + (" (seeds disagree)" if split else "")
        texts = parts.setdefault(treated, {})
        for goal in dict.fromkeys(map(_goal, rows.values())):
            before = f"{texts[goal]} and" if goal in texts else "in"
            texts[goal] = f"{before} {percent} of the steps of {other}"
    same = len({tuple(texts) for texts in parts.values()}) == 1 and all(len(texts) == 1 for texts in parts.values())
    named = []
    for treated, texts in parts.items():
        if named and same:
            named.append(f"{treated} {next(iter(texts.values()))}")
        else:
            named.append(f"{treated} reaches {', and '.join(f'{goal} {text}' for goal, text in texts.items())}")
    sentence = "; ".join(named)
    return sentence[:1].upper() + sentence[1:]


def headline(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Which method reaches the goal in fewer steps, in words; `finding` has the numbers.

    Args:
        comparisons: what `results.compare` gave.

    Returns:
        A sentence; empty where no speeds are compared.
    """
    groups: dict[str, dict[str, list[float]]] = {}
    for row in comparisons:
        treated, baseline = method_of(row["treated"]), method_of(row["baseline"])
        found = _median(row)
        if row["measure"] == "speed" and treated != baseline and found:
            side, ratio = found
            known = ratio if side != ("most" if ratio > 1 else "least") else math.nan
            split = min(_numbers(row, "high")) < 1 < max(_numbers(row, "low"))
            groups.setdefault(treated, {}).setdefault(baseline, []).append(math.nan if split else known)
    parts = []
    for treated, others in groups.items():
        words: dict[str, list[str]] = {}
        for baseline, ratios in others.items():
            faster, slower = all(r < 1 for r in ratios), all(r > 1 for r in ratios)
            word = "fewer steps than" if faster else "more steps than" if slower else "not always fewer than"
            words.setdefault(word, []).append("no normalization" if baseline == "none" else baseline)
        ordered = sorted(words, key=lambda word: word.startswith("not"))
        if ordered[0].startswith("not"):
            words = {"not always fewer steps than": words[ordered[0]]}
            ordered = list(words)
        said = ", but ".join(f"{word} {' and '.join(words[word])}" for word in ordered)
        parts.append(f"{treated} needs {said}")
    sentence = "; ".join(parts)
    return sentence[:1].upper() + sentence[1:]


def _goal(row: Mapping[str, Any]) -> str:
    return f"the best common {row['metric']}" if row["target"] is None else f"{row['metric']} {row['target']:g}"


def _numbers(row: Mapping[str, Any], side: str) -> list[float]:
    return [math.inf if v is None else v for v in row[side]]


def _median(row: Mapping[str, Any]) -> tuple[str, float] | None:
    """The median ratio, and on which side of it the true one may lie; None where nothing is known of it."""
    low, high = (float(np.median(_numbers(row, side))) for side in ("low", "high"))
    if low == high:
        return "", low
    if math.isfinite(high):
        return "most", high
    return ("least", low) if low > 0 else None


_BOUND = {
    frozenset({""}): "",
    frozenset({"most"}): "at most ",
    frozenset({"", "most"}): "at most ",
    frozenset({"least"}): "at least ",
    frozenset({"", "least"}): "at least ",
}
"""What stands before a span of medians; of bounds on both sides it is "about "."""


def draw(experiment: Experiment, results: Results, out: Path) -> list[Path]:
    """Draws the panels of an experiment and saves `out/NAME.{svg,png,json}`.

    Args:
        experiment: the experiment.
        results: what it gave.
        out: folder of figures.

    Returns:
        The paths.
    """
    panels = [p for p in experiment.panels if all(p.metric in run.curves for run in results.runs.values())]
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    rows = math.ceil(len(panels) / columns)
    drawn: dict[str, Any] = {}
    title, numbers = headline(results.comparisons) or experiment.title, finding(results.comparisons)
    width = "page" if columns > 1 or len(title) > LONG else "column"
    with plots.figure(rows, columns, width=width) as (fig, axes):
        shown = list(zip(axes.flat, panels, strict=False))
        for metric in dict.fromkeys(panel.metric for panel in panels):
            same = [(axis, panel) for axis, panel in shown if panel.metric == metric]
            curves = {panel.title: _curves(panel, experiment, results) for _, panel in same}
            drawn |= curves
            levels = {
                p.reference: float(np.nanmedian(run.curves[p.reference]))
                for _, p in same
                for run in results.runs.values()
                if p.reference in run.curves
            }
            _metric(same, curves, levels)
            for goal in {row["target"] for row in results.comparisons if row["metric"] == metric and row["target"]}:
                for axis, _ in same:
                    axis.axhline(goal, color=GUIDE, linewidth=0.9, linestyle=":", label=f"goal, {goal:g}")
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        labels = [set(axis.get_legend_handles_labels()[1]) for axis, _ in shown]
        if len(shown) > 1 and all(found <= max(labels, key=len) for found in labels):
            common_legend(fig, [axis for axis, _ in shown])
        else:
            for axis, _ in shown:
                axis.legend()
        bounded = re.search(" at (mo|lea)st ", numbers)
        bounds = " It is a bound, since some runs never reached the goal." if bounded else ""
        said = f" {numbers}.{bounds}" if numbers else ""
        return plots.save(
            fig,
            out / experiment.name,
            {"curves": drawn, **results.summary, "comparisons": results.comparisons},
            title=title,
            caption=f"{experiment.title} ({experiment.source}). Median of {results.configuration['seeds']} seeds; the "
            f"band is their range. {note_of(experiment, results.configuration.get('settings', {}))}".strip()
            + said,
            configuration=results.configuration,
        )


def _curves(panel: Panel, experiment: Experiment, results: Results) -> dict[str, Any]:
    """Arm → median, lowest and highest of its seeds, over the steps at which it was evaluated."""
    data = {}
    for name in experiment.arms if panel.arms is None else panel.arms:
        run = results.runs[name]
        curve = np.where(np.isfinite(run.curves[panel.metric]), run.curves[panel.metric], np.nan)
        known = ~np.isnan(curve).all(0)
        steps, curve = run.steps[known], curve[:, known]
        found = {"median": np.nanmedian(curve, 0), "lowest": np.nanmin(curve, 0), "highest": np.nanmax(curve, 0)}
        data[name] = {k: np.round(v, 5) for k, v in ({"steps": steps} | found).items()}
    return data


def _metric(shown: Sequence[tuple[Any, Panel]], curves: Mapping[str, Any], references: Mapping[str, float]) -> None:
    """Draws the panels of one metric, with one scale for all of them."""
    axes = [axis for axis, _ in shown]
    place: Any = np.asarray
    if shown[0][1].log:
        bands = [values[k] for arms in curves.values() for values in arms.values() for k in ("lowest", "highest")]
        place = log_scale(axes, np.concatenate(bands))
    for axis, panel in shown:
        styles = lines_of(list(curves[panel.title]))
        for name, values in curves[panel.title].items():
            label = panel.labels.get(name, name)
            axis.plot(values["steps"], place(values["median"]), label=label, **styles[name])
            low, high = place(values["lowest"]), place(values["highest"])
            axis.fill_between(values["steps"], low, high, color=styles[name]["color"], alpha=0.15, linewidth=0)
        if panel.reference and panel.reference in references:
            level = references[panel.reference]
            axis.axhline(level, color=GUIDE, linewidth=0.9, linestyle=":", label=panel.reference.split(", ")[-1])
        title = "" if panel.title.casefold() == panel.label.casefold() else panel.title
        axis.set(title=title, xlabel="training steps", ylabel=panel.label)
        if panel.limits:
            axis.set_ylim(*panel.limits)
    if not shown[0][1].log:
        equal_limits(axes)
