"""One way to state an experiment, and one way to run it: arms in, curves, comparisons and a figure out."""

import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from lngeom._files import replacing
from lngeom.claims import all_claims
from lngeom.claims.comparison import TrainingStatement
from lngeom.claims.results import digest, read_curves

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
    """

    name: str
    title: str
    source: str
    arms: Mapping[str, Any]
    small: Any
    full: Any
    data: Callable[[Any], Any]
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


class Streamed(NamedTuple):
    """A data set too large for memory.

    Attributes:
        data: of the form that `Experiment.data` gives, with all that is held out.
        stream: batches of the same form with nothing held out, as `loop.train` takes them.
    """

    data: Any
    stream: loop.Stream


@dataclass(frozen=True)
class Results:
    """What an experiment gave.

    Attributes:
        configuration: all that the results depend on.
        runs: of each arm.
        comparisons: each statement with its claim, how it is decided and what was found, as JSON can hold them.
        summary: last values of each arm and further results, as JSON can hold them.
    """

    configuration: dict[str, Any]
    runs: Mapping[str, Run]
    comparisons: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)


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
        **overrides: fields of the settings to replace.

    Returns:
        The results.
    """
    settings = replace(settings or experiment.small, **overrides)
    data = experiment.data(settings) if data is None else data
    data, stream = data if isinstance(data, Streamed) else (data, None)
    described = configuration(experiment, settings, seeds)
    stopped = threading.Event()

    def train(name: str) -> Run:
        arm = experiment.arms[name]
        steps, every = experiment.length(settings, arm)
        shown = progress(name) if progress else None

        def report(*news: Any) -> None:
            if stopped.is_set():
                raise InterruptedError(f"training of {name} was stopped")
            if shown:
                shown(*news)

        return loop.train(
            experiment.task(settings, arm, data),
            seeds=range(seeds),
            steps=steps,
            every=every,
            data=data,
            stream=stream,
            checkpoint=folder and folder / f"{_file_name(name)}.checkpoint",
            resume=resume,
            configuration=described | {"arm": name},
            progress=report,
            scan=experiment.scan,
            batched=experiment.batched,
        )

    runs = (
        on_threads(train, experiment.arms, workers, stopped) if workers > 1 else {n: train(n) for n in experiment.arms}
    )
    extra = experiment.finish(settings, data, runs) if experiment.finish else {}
    skipped = [s.text for s in experiment.statements if s not in measured(experiment, runs)]
    further = ({"further": extra} if extra else {}) | ({"not measured": skipped} if skipped else {})
    return Results(described, runs, compare(experiment, runs), summarize(runs) | further)


def on_threads(
    train: Callable[[str], Run], names: Iterable[str], workers: int, stopped: threading.Event
) -> dict[str, Run]:
    """What `train` gives for each name; if one fails, or the user interrupts, it tells the others by `stopped`."""
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


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def summarize(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Last values of every arm.

    Args:
        runs: of each arm.

    Returns:
        A dictionary that JSON can hold.
    """
    arms = {
        name: {
            "steps": int(run.steps[-1]),
            "diverged at step": [int(s) if s >= 0 else None for s in run.diverged_at],
            "last": {metric: _rounded(curve[:, -1]) for metric, curve in run.curves.items()},
        }
        for name, run in runs.items()
    }
    return {"arms": arms}


def measured(experiment: Experiment, runs: Mapping[str, Run]) -> list[TrainingStatement]:
    """The statements whose arms were trained and whose metric was measured: a data set may lack what one needs.

    Args:
        experiment: the experiment.
        runs: of each arm.

    Returns:
        The statements, in order.
    """
    return [
        statement
        for statement in experiment.statements
        if all(arm in runs and statement.metric in runs[arm].curves for arm in statement.arms)
    ]


def compare(experiment: Experiment, runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Each statement of an experiment as data: its claim, how it is decided, and what was found.

    `lngeom verify --results` reads the statements from there and decides them again from the curves.

    Args:
        experiment: the experiment.
        runs: of each arm.

    Returns:
        Dictionaries that JSON can hold.
    """
    comparisons = []
    for statement in measured(experiment, runs):
        curves = {arm: runs[arm].curves[statement.metric] for arm in statement.arms}
        found = statement.compare(runs[statement.treated].steps, curves)
        comparisons.append(
            statement.as_json()
            | {
                "source": all_claims(id=statement.claim)[0].source,
                "rule": statement.rule,
                "finding": found.finding,
                "median": _rounded(found.median),
                "seeds": _rounded(found.values),
                "censored": found.censored.tolist(),
                "capped": found.capped.tolist(),
                "wins": found.wins,
                "losses": found.losses,
                "p": found.p_supports,
                "p of the opposite": found.p_refutes,
            }
        )
    return comparisons


def _rounded(values: Any) -> Any:
    """Five digits; what is not finite becomes null."""
    if np.ndim(values):
        return [_rounded(v) for v in values]
    return float(f"{values:.5g}") if np.isfinite(values) else None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(experiment: Experiment, out: Path) -> Results:
    """The results that `write` has left, compared anew; the states after training are not among them.

    Args:
        experiment: the experiment.
        out: folder of all results.

    Returns:
        The results.

    Raises:
        ValueError: if they are not there, or damaged.
    """
    folder = out / experiment.name
    missing = [name for name in ("config.json", "summary.json", "curves.npz") if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} has no {' and no '.join(missing)}: run the experiment first, or correct --out")
    runs = {}
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        old = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        seeds = tuple(range(described["seeds"]))
        for name, curves in read_curves(out, experiment.name).items():
            diverged = [-1 if s is None else s for s in old["arms"][name]["diverged at step"]]
            values = {metric: value.astype(np.float64) for metric, value in curves.values.items()}
            runs[name] = Run(curves.steps, values, np.array(diverged), None, seeds)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{folder} has no results of this version ({error!r}): run the experiment again") from error
    further = {k: v for k, v in old.items() if k in {"further", "not measured"}}
    return Results(described, runs, compare(experiment, runs), summarize(runs) | further)


def check_replaces_its_own(experiment: Experiment, described: Mapping[str, Any], out: Path) -> None:
    """Looks whether results that a run would replace are of the same sizes and seeds.

    Args:
        experiment: the experiment.
        described: configuration of the run.
        out: folder of all results.

    Raises:
        ValueError: if they are not; the message says what differs.
    """
    path = out / experiment.name / "config.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # nothing is there, or nothing that can be read
    different = [k for k in ("arms", "settings", "seeds") if known.get(k) != described[k]]
    if different:
        raise ValueError(
            f"{path.parent} holds results of another configuration, which differs in {', '.join(different)}: name "
            "another folder with --out, or remove them"
        )


def write(experiment: Experiment, results: Results, out: Path) -> list[Path]:
    """Writes `out/NAME/{curves.npz,statements.json,config.json,summary.json}`, each whole or not at all.

    Args:
        experiment: the experiment.
        results: what it gave.
        out: folder of all results.

    Returns:
        The paths.
    """
    folder = out / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for name, run in results.runs.items():
        arrays[f"{name}/steps"] = run.steps
        arrays[f"{name}/metrics"] = np.array(list(run.curves))
        arrays[f"{name}/curves"] = np.stack(list(run.curves.values()), -1).astype(np.float32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    curves, described = buffer.getvalue(), _json(results.configuration)
    statements = {
        "experiment": experiment.name,
        "sha256": {"config.json": digest(described), "curves.npz": digest(curves)},
        "statements": results.comparisons,
    }
    files = {
        "curves.npz": curves,
        "statements.json": _json(statements),
        "config.json": described,
        "summary.json": _json(results.summary),
    }
    for name, content in files.items():
        with replacing(folder / name) as file:
            file.write(content)
    return [folder / name for name in files]
