"""Results of the protocol on disk, judged anew from their curves, and the table of every statement."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from lngeom.claims import judge
from lngeom.claims.results import FOLDER, Curved, Curves, Kept, NoResults, digest, read_protocol

from analysis.experiments.drawing import draw as figure
from analysis.experiments.experiment import Experiment
from analysis.experiments.loop import Run
from analysis.experiments.protocol.trials import Part, Stage
from analysis.experiments.results import Results
from analysis.store import curves_bytes, json_bytes, write_all


def write(experiment: Experiment, configuration: Mapping[str, Any], curved: Curved, out: Path) -> list[Path]:
    """Writes `out/protocol/NAME/{config.json,curves.npz,report.json}`, each whole or not at all.

    Args:
        experiment: the experiment.
        configuration: all that the curves depend on.
        curved: the curves.
        out: folder of all figures.

    Returns:
        The paths.
    """
    wanted = {s.metric for s in experiment.statements}
    wanted |= {name for p in experiment.panels for name in (p.metric, p.reference) if name}
    curves = {
        Part(stage, arm, rate).name: Curves(found.steps, {k: v for k, v in found.values.items() if k in wanted})
        for stage in get_args(Stage)
        for arm, of_rate in getattr(curved, stage).items()
        for rate, found in of_rate.items()
    }
    files = {"config.json": json_bytes(configuration), "curves.npz": curves_bytes(curves)}
    report = {
        "experiment": experiment.name,
        "data": "generated" if experiment.generated else "real",
        "protocol": configuration["protocol"],
        "sha256": {name: digest(content) for name, content in files.items()},
        "statements": judge.report(experiment.statements, *curved),
    }
    files["report.json"] = json_bytes(report)
    return write_all(out / FOLDER / experiment.name, files)


def draw(experiment: Experiment, configuration: Mapping[str, Any], curved: Curved, out: Path) -> list[Path]:
    """Draws the curves of the fresh seeds, each arm at its rate, as `out/protocol/NAME/curves.{svg,png,json}`.

    Args:
        experiment: the experiment.
        configuration: all that the curves depend on.
        curved: the curves.
        out: folder of all figures.

    Returns:
        The paths; none if no panel has its curves.
    """
    runs = {}
    for statement in experiment.statements:
        for arm in statement.arms:
            if arm not in runs:
                rate = judge.choose(statement, arm, curved.choosing)
                curves = curved.fresh[arm][rate]
                values = {metric: v.astype(np.float64) for metric, v in curves.values.items()}
                seeds = len(next(iter(values.values())))
                runs[arm] = Run(curves.steps, values, np.full(seeds, -1), None, tuple(range(seeds)))
    if not all(any(p.metric in run.curves for p in experiment.panels) for run in runs.values()) or not runs:
        return []
    drawn = replace(experiment, name="curves", note=f"{experiment.note} Each arm at its best learning rate.".strip())
    described = dict(configuration) | {"seeds": len(configuration["plan"]["fresh"])}
    return figure(drawn, Results(described, runs, [], {}), out / FOLDER / experiment.name)


def read(experiment: Experiment, out: Path) -> Kept | None:
    """Results that `write` has left.

    Args:
        experiment: the experiment.
        out: folder of all figures.

    Returns:
        Them, or None if there are none.

    Raises:
        ValueError: if they are damaged, or were changed after the run.
    """
    try:
        return read_protocol(out, experiment.name)
    except NoResults:
        return None


REAL = "real"
"""Folder of the results of the larger versions on real data, below that of all figures."""


def reports(experiments: Sequence[Experiment], out: Path) -> list[dict[str, Any]]:
    """What the kept results say today, judged anew from their curves.

    Statements are those that were kept with the curves: a change of one in the code reaches the table with a new run.

    Args:
        experiments: all of them; those without results are left out.
        out: folder of all figures; its folder `REAL` has the larger versions on real data, which come last.

    Returns:
        A report of each.
    """
    found = []
    for folder, data in ((out, "real"), (out / REAL, "real, larger version")):
        for experiment in experiments:
            kept = read(experiment, folder)
            if kept is not None:
                described, statements, curved = kept
                found.append(
                    {
                        "experiment": experiment.name,
                        "data": "generated" if described["generated"] else data,
                        "protocol": described["protocol"],
                        "statements": judge.report(statements, *curved),
                    }
                )
    return found


HEAD = (
    "| experiment | statement | verdict | ratio or difference | 95 % | fresh seeds | rates | steps | data |",
    "|---|---|---|---|---|---|---|---|---|",
)


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """The table of every statement.

    Args:
        found: reports of the experiments.

    Returns:
        Markdown.
    """
    lines = [*HEAD]
    for report in found:
        for row in report["statements"]:
            low, high = ("" if end is None else f"{end:.3g}" for end in row["interval"])
            arms = row["arms"]
            rates = "; ".join(f"{arm}: {_rate(values)}" for arm, values in arms.items())
            steps = max(values["steps"] for values in arms.values())
            improving = "".join(f", {arm} still improving" for arm, v in arms.items() if v["still improving"])
            cells = (
                report["experiment"],
                row["text"],
                row["verdict"].lower(),
                row["median"],
                f"{low or 'unknown'} to {high or 'unknown'}",
                f"{row['fresh seeds']} ({row['wins']} for, {row['losses']} against)",
                rates,
                f"{steps}{improving}",
                report["data"],
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", *_legend(found)]
    return "\n".join(lines) + "\n"


def _rate(values: Mapping[str, Any]) -> str:
    return f"{values['rate']:g}" + (" (at the edge)" if values["at the edge of the grid"] else "")


def _legend(found: Sequence[Mapping[str, Any]]) -> list[str]:
    sources = dict.fromkeys(tuple(sorted(r["protocol"].items())) for r in found)
    named = [dict(s) for s in sources]
    cited = "; ".join(
        f"version {s['version']} of {s['date']}, commit {(s['commit'] or 'unknown')[:12]}, SHA-256 {s['sha256'][:12]}"
        for s in named
    )
    return [
        "The ratio is that of steps, treated arm over baseline, each at its best rate; its median, and the interval of",
        "its median. Of final values it is the difference, negative where the treated arm is better.",
        "Larger versions on real data follow point 20 of the protocol: rates chosen on one seed, and nothing decided",
        "with fewer than five fresh ones, where an end of an interval is unknown.",
        f"Protocol: [PROTOCOL.md](../analysis/PROTOCOL.md), {cited}.",
    ]


def write_table(experiments: Sequence[Experiment], out: Path) -> list[Path]:
    """Writes `out/protocol.md` and `out/protocol.json` from all results that are kept.

    Args:
        experiments: all of them.
        out: folder of all figures.

    Returns:
        The paths; none if there are no results.
    """
    found = reports(experiments, out)
    if not found:
        return []
    return write_all(out, {"protocol.md": markdown(found), "protocol.json": json_bytes(found)})
