"""One way to run an experiment: arms in, curves and comparisons out."""

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from analysis.experiments import loop
from analysis.experiments.datasets import Streamed
from analysis.experiments.experiment import Experiment
from analysis.experiments.loop import Run
from analysis.experiments.results import Results, compare, measured, summarize

Trained = TypeVar("Trained")


def configuration(experiment: Experiment, settings: Any, seeds: int) -> dict[str, Any]:
    """All that the results of an experiment depend on.

    Args:
        experiment: the experiment.
        settings: its sizes.
        seeds: number of seeds.

    Returns:
        A dictionary that JSON can hold.
    """
    return {
        "experiment": experiment.name,
        "arms": list(experiment.arms),
        "settings": json.loads(json.dumps(asdict(settings))),
        "seeds": seeds,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "platform": jax.default_backend(),
    }


def train_arm(
    experiment: Experiment, settings: Any, name: str, data: Any, *, data_of_each: bool = False, **options: Any
) -> Run:
    """Trains one arm.

    Args:
        experiment: the experiment.
        settings: its sizes.
        name: of the arm.
        data: its data.
        data_of_each: whether the data have the seeds as first axis.
        **options: of `loop.train`; steps and their interval are those of the arm, if they are not given.

    Returns:
        The run.
    """
    arm = experiment.arms[name]
    steps, every = experiment.length(settings, arm)
    length: dict[str, Any] = {"steps": steps, "every": every}
    return loop.train(
        experiment.task(settings, arm, jax.tree.map(lambda v: v[0], data) if data_of_each else data),
        data=data,
        data_of_each=data_of_each,
        scan=experiment.scan,
        batched=experiment.batched,
        **(length | options),
    )


def run(
    experiment: Experiment,
    *,
    settings: Any = None,
    data: Any = None,
    seeds: int = 5,
    folder: Path | None = None,
    resume: bool = False,
    progress: Callable[[str], loop.Progress] | None = None,
    workers: int = 1,
    keep_best: bool = False,
    **overrides: Any,
) -> Results:
    """Trains every arm from every seed and compares them.

    Arms share nothing, so that their results do not depend on how many are trained at once.

    Args:
        experiment: the experiment.
        settings: its sizes; the small ones by default.
        data: its data, or a `Streamed`; by default what it generates for these sizes.
        seeds: number of seeds.
        folder: where checkpoints are kept while it runs; nowhere by default.
        resume: whether to go on from them.
        progress: gives the callback of an arm.
        workers: arms that are trained at once, each on a thread of its own.
        keep_best: whether the states at the best value of `experiment.selection` are kept beside the last.
        **overrides: fields of the settings to replace.

    Returns:
        The results.
    """
    settings = replace(settings or experiment.small, **overrides)
    data = experiment.data(settings) if data is None else data
    data, stream = data if isinstance(data, Streamed) else (data, None)
    described = configuration(experiment, settings, seeds)
    stopped = threading.Event()
    first = next(iter(experiment.statements), None)
    best = experiment.selection or (loop.Best(first.metric, first.lower_is_better) if first else None)

    def train(name: str) -> Run:
        shown = progress(name) if progress else None

        def report(*news: Any) -> None:
            if stopped.is_set():
                raise InterruptedError(f"training of {name} was stopped")
            if shown:
                shown(*news)

        return train_arm(
            experiment,
            settings,
            name,
            data,
            seeds=range(seeds),
            stream=stream,
            checkpoint=folder and folder / f"{file_name(name)}.checkpoint",
            resume=resume,
            best=best if keep_best else None,
            configuration=described | {"arm": name},
            progress=report,
        )

    runs = (
        on_threads(train, experiment.arms, workers, stopped) if workers > 1 else {n: train(n) for n in experiment.arms}
    )
    extra = experiment.finish(settings, data, runs) if experiment.finish else {}
    skipped = [s.text for s in experiment.statements if s not in measured(experiment, runs)]
    further = ({"further": extra} if extra else {}) | ({"not measured": skipped} if skipped else {})
    return Results(described, runs, compare(experiment, runs), summarize(runs) | further)


def on_threads(
    train: Callable[[str], Trained], names: Iterable[str], workers: int, stopped: threading.Event
) -> dict[str, Trained]:
    """What `train` gives for each name; if one fails, it tells the others by `stopped`."""
    with ThreadPoolExecutor(workers) as pool:
        waiting = {name: pool.submit(train, name) for name in names}
        try:
            for run in as_completed(waiting.values()):
                run.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: run.result() for name, run in waiting.items()}


def file_name(name: str) -> str:
    """The name of an arm as the name of a file."""
    return "".join(c if c.isalnum() else "_" for c in name)
