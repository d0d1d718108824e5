"""The runs of the protocol: one part for each arm, rate and set of seeds, kept on disk, so that any of them resumes."""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from lngeom.claims import judge
from lngeom.claims.results import Curved, Curves

from analysis.experiments.datasets import Streamed
from analysis.experiments.experiment import Experiment
from analysis.experiments.protocol.plan import Plan, groups
from analysis.experiments.running import file_name, on_threads, train_arm
from analysis.store import curves_bytes, read_curves, write

Stage = Literal["choosing", "fresh"]


class Part(NamedTuple):
    """One training: an arm at a rate, on the seeds of a stage."""

    stage: Stage
    arm: str
    rate: float

    @property
    def name(self) -> str:
        """Its name, for keys of files and for people."""
        return f"{self.stage}/{self.arm}/{self.rate:g}"


Progress = Callable[[str, float], Callable[[float, float], None]]


def padded_stack(sets: Sequence[Any]) -> Any:
    """Data sets of one form as one, with a new first axis; shorter arrays are filled with zeros.

    Args:
        sets: pytrees of arrays that differ in sizes only.

    Returns:
        A pytree.
    """

    def stack(*leaves: Any) -> np.ndarray:
        arrays = [np.asarray(leaf) for leaf in leaves]
        shape = np.max([a.shape for a in arrays], 0)
        return np.stack([np.pad(a, [(0, n - m) for n, m in zip(shape, a.shape, strict=True)]) for a in arrays])

    return jax.tree.map(stack, *sets)


@dataclass
class Trials:
    """The trainings of an experiment.

    Attributes:
        experiment: the experiment.
        plan: rates, seeds and lengths.
        configuration: all that the curves depend on, as JSON can hold it; kept parts of another are refused.
        folder: where parts and checkpoints are kept.
        progress: gives the callback of a part, from its name and steps.
        workers: parts that are trained at once.
    """

    experiment: Experiment
    plan: Plan
    configuration: Mapping[str, Any]
    folder: Path
    progress: Progress = lambda name, steps: lambda done, whole: None
    workers: int = 1

    def __post_init__(self) -> None:
        """Makes the data on which rates are chosen."""
        small = self.experiment.small
        found = self.experiment.data(small)
        found, self._stream = found if isinstance(found, Streamed) else (found, None)
        self._data = {"choosing": found, "fresh": None}

    def _data_of(self, stage: Stage) -> tuple[Any, bool]:
        """The data of a stage, and whether each seed has its own (8)."""
        if stage == "choosing" or not self.experiment.generated:
            return self._data["choosing"], False
        if self._data["fresh"] is None:
            made = self.experiment.data
            self._data["fresh"] = padded_stack([made(self.experiment.small, seed) for seed in self.plan.fresh])
        return self._data["fresh"], True

    def length(self, arm: str, factor: int) -> int:
        """Steps of an arm."""
        return factor * self.experiment.length(self.experiment.small, self.experiment.arms[arm])[0]

    def train(self, parts: Iterable[Part], factor: int) -> dict[str, dict[float, Curves]]:
        """The curves of parts: read where they are kept, continued where they were stopped or are shorter.

        Args:
            parts: what is trained, all of one stage.
            factor: length, in lengths of the small version.

        Returns:
            Arm → rate → curves.

        Raises:
            ValueError: if what is kept is damaged, or of another configuration.
        """
        todo = {p.name: p for p in parts}
        found = {name: self._kept(p, self.length(p.arm, factor)) for name, p in todo.items()}
        missing = [name for name, curves in found.items() if curves is None]
        stages: set[Stage] = {todo[name].stage for name in missing}
        for stage in stages:
            self._data_of(stage)  # made once, before the threads
        rows = {name: self.progress(name, self.length(todo[name].arm, factor)) for name in missing}
        stopped = threading.Event()

        def one(name: str) -> Curves:
            return self._train(todo[name], factor, rows[name], stopped)

        trained = on_threads(one, missing, self.workers, stopped) if self.workers > 1 else {n: one(n) for n in missing}
        curves: dict[str, dict[float, Curves]] = {}
        for name, part in todo.items():
            kept = found[name]
            curves.setdefault(part.arm, {})[part.rate] = trained[name] if kept is None else kept
        return curves

    def _path(self, part: Part, end: str) -> Path:
        return self.folder / f"{file_name(part.name)}.{end}"

    def _identity(self, part: Part) -> dict[str, Any]:
        return json.loads(json.dumps({"configuration": dict(self.configuration), "part": part._asdict()}))

    def _kept(self, part: Part, steps: int) -> Curves | None:
        path = self._path(part, "npz")
        if not path.is_file():
            return None
        try:
            found, more = read_curves(path)
            curves, identity = found[part.name], json.loads(str(more["identity"]))
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it and start again") from error
        if identity != self._identity(part):
            raise ValueError(
                f"{path} comes from another configuration or version of the protocol: remove {self.folder}, or give "
                "another folder with --out"
            )
        if curves.steps[-1] < steps:
            return None
        kept = curves.steps <= steps
        return Curves(curves.steps[kept], {name: v[:, kept] for name, v in curves.values.items()})

    def _train(
        self, part: Part, factor: int, shown: Callable[[float, float], None], stopped: threading.Event
    ) -> Curves:
        experiment = self.experiment
        data, each = self._data_of(part.stage)

        def report(taken: int, steps: int, metrics: Any) -> None:
            if stopped.is_set():
                raise InterruptedError(f"{part.name} was stopped")
            shown(taken, steps)

        run = train_arm(
            experiment,
            replace(experiment.small, rate=part.rate),
            part.arm,
            data,
            data_of_each=each,
            seeds=self.plan.choosing if part.stage == "choosing" else self.plan.fresh,
            steps=self.length(part.arm, factor),
            stream=self._stream,
            checkpoint=self._path(part, "checkpoint"),
            resume=True,
            configuration=self._identity(part),
            progress=report,
        )
        identity = np.array(json.dumps(self._identity(part)))
        curves = Curves(run.steps, {name: values.astype(np.float32) for name, values in run.curves.items()})
        write(self._path(part, "npz"), curves_bytes({part.name: curves}, identity=identity))
        shown(run.steps[-1], run.steps[-1])
        return curves


def carry_out(trials: Trials, tell: Callable[[str], None] = lambda text: None) -> Curved:
    """Chooses rates and lengths and trains fresh seeds, as the protocol says (2 to 8).

    What it decides depends on curves alone, so that a run that was stopped decides the same again.

    Args:
        trials: the trainings.
        tell: called with a sentence for every decision.

    Returns:
        The curves.
    """
    experiment, plan = trials.experiment, trials.plan
    choosing: dict[str, dict[float, Curves]] = {}
    fresh: dict[str, dict[float, Curves]] = {}
    for group in groups(experiment.statements):
        own = [s for s in experiment.statements if s.arms[0] in group]
        factor, rates = 1, plan.rates
        while True:
            tuned = trials.train([Part("choosing", arm, rate) for arm in group for rate in rates], factor)
            chosen = {(s, arm): judge.choose(s, arm, tuned) for s in own for arm in s.arms}
            wider = plan.extended(rates, list(chosen.values()))
            if wider != rates:
                tell(f"{', '.join(group)}: a best rate is at an edge; rates from {wider[0]:g} to {wider[-1]:g}")
                rates = wider
                continue
            growing = {arm for (s, arm), rate in chosen.items() if not judge.stopped(s, tuned[arm][rate])}
            if not growing or factor >= plan.longest:
                break
            factor, rates = 2 * factor, plan.rates
            tell(f"{', '.join(sorted(growing))}: still improving; {factor} times the length")
        choosing |= tuned
        best = dict.fromkeys((arm, rate) for (_, arm), rate in chosen.items())
        tell(", ".join(f"{arm}: {rate:g}" for arm, rate in best) + "; fresh seeds")
        for arm, of_rate in trials.train([Part("fresh", *pair) for pair in best], factor).items():
            fresh.setdefault(arm, {}).update(of_rate)
    return Curved(choosing, fresh)


def configuration(experiment: Experiment, plan: Plan, source: Mapping[str, Any]) -> dict[str, Any]:
    """All that the curves of an experiment under the protocol depend on, as JSON can hold it."""
    return json.loads(
        json.dumps(
            {
                "experiment": experiment.name,
                "settings": asdict(experiment.small),
                "plan": asdict(plan),
                "protocol": dict(source),
                "generated": experiment.generated,
                "versions": {"jax": jax.__version__, "numpy": np.__version__},
                "platform": jax.default_backend(),
            }
        )
    )


def seconds(experiment: Experiment, plan: Plan, factor: int = 1) -> float:
    """Processor seconds of the protocol's runs of an experiment at one length, without extensions of the grid."""
    steps = sum(
        experiment.length(experiment.small, experiment.arms[arm])[0] for g in groups(experiment.statements) for arm in g
    )
    seeds = len(plan.rates) * len(plan.choosing) + len(plan.fresh)
    return factor * steps * seeds * experiment.cost / 1000
