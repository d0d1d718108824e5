"""What an experiment compares, on what, and what it is to show."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lngeom.claims.comparison import TrainingStatement

from analysis.experiments import loop
from analysis.experiments.loop import Run, Task


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a figure.

    Attributes:
        metric: the curve that is drawn.
        title: its title.
        label: of the vertical axis.
        arms: the arms that are drawn; all by default.
        reference: a curve that is the same for all arms and steps, drawn as a thin grey line at its level.
        log: whether the vertical axis is logarithmic.
        limits: of the vertical axis, where they are not found from the data.
        labels: arm → its name in the legend, where that is shorter; the title tells the rest.
    """

    metric: str
    title: str
    label: str
    arms: tuple[str, ...] | None = None
    log: bool = False
    limits: tuple[float | None, float | None] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    reference: str | None = None


@dataclass(frozen=True)
class Settings:
    """Sizes of an experiment; each experiment adds its own.

    Attributes:
        steps: training steps.
        every: steps between evaluations.
    """

    steps: int
    every: int


@dataclass(frozen=True)
class Real:
    """The version of an experiment on real data that everybody can get, at sizes that train in hours.

    Attributes:
        settings: its sizes.
        load: its data, from a folder and the settings.
        files: what lies in that folder, in words.
        cost: processor seconds of a thousand steps of one seed, a mean of the arms, for estimates.
        statements: what is compared, where that is not what the small version compares.
        panels: what is drawn, likewise.
        note: what the captions of its figures say about data and sizes.
    """

    settings: Any
    load: Callable[[Path, Any], Any]
    files: str
    cost: float
    statements: tuple[TrainingStatement, ...] | None = None
    panels: tuple[Panel, ...] | None = None
    note: str = "Real data, at a reduced size."


@dataclass(frozen=True)
class Experiment:
    """What is compared, on what, and what it is to show.

    Attributes:
        name: of its files, and of its module in `analysis`.
        title: one line.
        source: where in the paper.
        arms: name of each arm → what `task` makes it from; the first is the baseline.
        small: sizes that run in minutes on bundled or generated data.
        full: sizes of the paper.
        data: generated or bundled data, from the settings: a pytree of arrays.
        task: the task of one arm, from `(settings, arm, data)`.
        statements: what is compared, each with what the paper says of it.
        panels: what is drawn.
        length: steps and interval of an arm, where arms differ.
        finish: further results from `(settings, data, runs)`, as JSON can hold them.
        scan: whether the steps of a chunk are one program.
        batched: whether the seeds are one batch.
        load: data of the full size, from the folder of a data set and the settings: of the same form as `data`, or
            a `Streamed`.
        synthetic: data of the shapes of the full size, for a dry run, from the settings.
        note: what a reader should know of the small version.
        generated: whether the data of the small version are generated; `data` then takes the generator's seed, too.
        files: what lies in the folder of `load`, in words.
        real: the version on real data.
        cost: processor seconds of a thousand small steps of one seed, a mean of the arms, for estimates.
        authors: arms as the authors' code has them, under the names of those of `arms` that they differ from.
        selection: the curve by whose best value weights are kept; by default that of the first statement.
    """

    name: str
    title: str
    source: str
    arms: Mapping[str, Any]
    small: Any
    full: Any
    data: Callable[..., Any]
    task: Callable[[Any, Any, Any], Task]
    statements: tuple[TrainingStatement, ...]
    panels: tuple[Panel, ...]
    length: Callable[[Any, Any], tuple[int, int]] = lambda settings, arm: (settings.steps, settings.every)
    finish: Callable[[Any, Any, Mapping[str, Run]], dict[str, Any]] | None = None
    scan: bool = True
    batched: bool = True
    load: Callable[[Path, Any], Any] | None = None
    synthetic: Callable[[Any], Any] | None = None
    note: str = ""
    generated: bool = False
    files: str = ""
    real: Real | None = None
    cost: float = 10.0
    authors: Mapping[str, Any] = field(default_factory=dict)
    selection: loop.Best | None = None


def load_full(experiment: Experiment, folder: Path | None) -> Any:
    """The data of the full size, read from disk.

    Args:
        experiment: the experiment.
        folder: where the data set lies.

    Returns:
        Data of the same form as `experiment.data` gives, or a `Streamed`.

    Raises:
        ValueError: if there is no folder, or no data set for this experiment; if its files are missing or damaged.
    """
    if experiment.load is None:
        raise ValueError(f"{experiment.name} has no data set on disk; --full --dry-run takes one step on made-up data")
    if folder is None:
        raise ValueError(f"the full size of {experiment.name} reads a data set from disk: give its folder with --data")
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    return experiment.load(folder, experiment.full)


def real_version(experiment: Experiment, folder: Path | None) -> Experiment:
    """The experiment with real data from disk, at sizes that they allow, in place of the small version.

    Args:
        experiment: the experiment.
        folder: where the data lie.

    Returns:
        An experiment whose `small` sizes and `data` are the real ones.

    Raises:
        ValueError: if there is no folder, or there are no real data for this experiment.
    """
    real, name = experiment.real, experiment.name
    if real is None:
        raise ValueError(f"{name} has no version on real data besides its small or its full one")
    if folder is None:
        raise ValueError(f"the real version of {name} reads its data from disk: give their folder with --data")
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    return replace(
        experiment,
        small=real.settings,
        data=lambda settings: real.load(folder, settings),
        statements=experiment.statements if real.statements is None else real.statements,
        panels=experiment.panels if real.panels is None else real.panels,
        generated=False,
        batched=False,
        cost=real.cost,
        note=real.note,
    )


def note_of(experiment: Experiment, settings: Mapping[str, Any]) -> str:
    """What a reader should know of the data of some results: above all, whether they are generated.

    Args:
        experiment: the experiment.
        settings: sizes of the results, as their configuration has them.

    Returns:
        Sentences.
    """
    notes = [(experiment.full, "Real data, at the paper's size.")]
    if experiment.real is not None:
        notes.append((experiment.real.settings, experiment.real.note))
    for size, note in notes:
        if size is not None and size != experiment.small and settings == json.loads(json.dumps(asdict(size))):
            return note
    return f"{'Generated data. ' if experiment.generated else ''}{experiment.note}".strip()
