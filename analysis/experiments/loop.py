r"""One training loop: a pure step, seeds by `vmap`, chunks of steps by `scan`, a Python loop over chunks outside.

Everything random in step t of seed s comes from `fold_in(key(s), t)`, and chunks begin at the same steps however
often a run was interrupted. A run that is killed and resumed therefore gives the same bits as one that was not.
"""

import functools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray
from lngeom._core.files import check_writable

from analysis.experiments.checkpoint import load_checkpoint, read_header, save_checkpoint

State = TypeVar("State")
Metrics = dict[str, Float[Array, ""]]
Stream = Callable[[int, int], Any]
Progress = Callable[[int, int, Mapping[str, np.ndarray]], None]

LOSS = "loss"
"""Name of the curve of the training loss, averaged over the steps since the evaluation before."""


class Task(NamedTuple, Generic[State]):
    """What is trained, for one seed: three pure functions.

    Attributes:
        init: the state before the first step, from a key.
        step: the next state and the loss, from a state, a key and a batch: one of the stream or, without one, all of
            the data.
        evaluate: named scalars, from a state and the data.
    """

    init: Callable[[PRNGKeyArray], State]
    step: Callable[[State, PRNGKeyArray, Any], tuple[State, Float[Array, ""]]]
    evaluate: Callable[[State, Any], Metrics]


class TrainState(NamedTuple):
    """A model in training.

    Attributes:
        model: a pytree of arrays.
        optimizer: state of the optimizer.
        extra: what the loss carries from step to step without a gradient, such as running statistics.
    """

    model: Any
    optimizer: Any
    extra: Any = None


def gradient_task(
    init: Callable[[PRNGKeyArray], Any],
    loss: Callable[[Any, Any, PRNGKeyArray, Any], tuple[Float[Array, ""], Any]],
    optimizer: optax.GradientTransformation,
    evaluate: Callable[[Any, Any, Any], Metrics],
) -> Task[TrainState]:
    """The task of minimizing a loss with an optimizer of optax.

    Args:
        init: gives the model and what is carried with it, `(model, extra)`, from a key.
        loss: gives the loss and the next `extra` from `(model, extra, key, batch)`.
        optimizer: the optimizer.
        evaluate: named scalars from `(model, extra, data)`.

    Returns:
        The task, whose state is a `TrainState`.
    """

    def start(key):
        model, extra = init(key)
        return TrainState(model, optimizer.init(model), extra)

    def step(state, key, batch):
        (value, extra), gradient = jax.value_and_grad(loss, has_aux=True)(state.model, state.extra, key, batch)
        updates, following = optimizer.update(gradient, state.optimizer, state.model)
        return TrainState(optax.apply_updates(state.model, updates), following, extra), value

    return Task(start, step, lambda state, data: evaluate(state.model, state.extra, data))


def plain_task(
    init: Callable[[PRNGKeyArray], Any],
    loss: Callable[[Any, PRNGKeyArray, Any], Float[Array, ""]],
    optimizer: optax.GradientTransformation,
    evaluate: Callable[[Any, Any], Metrics],
) -> Task[TrainState]:
    """The task of minimizing a loss of a model that carries nothing from step to step.

    Args:
        init: gives the model from a key.
        loss: the loss from `(model, key, batch)`.
        optimizer: the optimizer.
        evaluate: named scalars from `(model, data)`.

    Returns:
        The task, whose state is a `TrainState` without `extra`.
    """
    return gradient_task(
        lambda key: (init(key), None),
        lambda model, extra, key, batch: (loss(model, key, batch), extra),
        optimizer,
        lambda model, extra, data: evaluate(model, data),
    )


@dataclass(frozen=True)
class Run:
    """What came out of training.

    Attributes:
        steps: steps taken at each evaluation, from 0, shape [E].
        curves: values of each metric, [seed, evaluation]; NaN where a run had diverged.
        diverged_at: the first step of each seed whose loss was not finite, or -1, shape [S].
        state: states after the last step, with the seeds as first axis.
        seeds: the seeds.
    """

    steps: Int[np.ndarray, " E"]
    curves: dict[str, Float[np.ndarray, "S E"]]
    diverged_at: Int[np.ndarray, " S"]
    state: Any
    seeds: tuple[int, ...]


class Weights(NamedTuple):
    """What training has left on disk.

    Attributes:
        states: with the seeds as first axis.
        steps: that each seed had taken.
        values: of each metric at these steps, [S]; NaN where it was not finite.
    """

    states: Any
    steps: tuple[int, ...]
    values: dict[str, Float[np.ndarray, " S"]]


def read_identity(path: Path) -> dict[str, Any]:
    """What a file of weights belongs to: configuration, seeds, steps, metrics.

    Args:
        path: a `.checkpoint` or a `.best` of `train`.

    Returns:
        A dictionary.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is none of `train`.
    """
    identity = read_header(path).get("identity")
    if not isinstance(identity, dict) or not {"configuration", "seeds", "steps", "every", "metrics"} <= set(identity):
        raise ValueError(f"{path} does not say which run it belongs to: train again with this version")
    return identity


def read_weights(task: Task[State], path: Path) -> Weights:
    """The states that `train` has kept: the last ones (`.checkpoint`), or the best ones (`.best`).

    Args:
        task: what was trained.
        path: of the file.

    Returns:
        States, steps and values.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is damaged, or of another task.
    """
    identity = read_identity(path)
    seeds, names = identity["seeds"], identity["metrics"]
    one = jax.eval_shape(jax.jit(task.init), _first(_keys(seeds, 0)))
    like = jax.tree.map(lambda v: jax.ShapeDtypeStruct((len(seeds), *v.shape), v.dtype), one)
    if path.suffix == ".best":
        header, states = load_checkpoint(path, like)
        values = np.array(header["values"], float)
        return Weights(states, tuple(header["steps"]), dict(zip(names, values.T, strict=True)))
    curves = np.empty((len(seeds), identity["steps"] // identity["every"] + 1, len(names)))
    bad, loss = jnp.zeros(len(seeds), jnp.int32), jnp.zeros(len(seeds))
    header, (states, _, _, curves) = load_checkpoint(path, (like, bad, loss, curves))
    last = header["step"]
    if last % identity["every"]:
        raise ValueError(f"{path} was stopped between two evaluations, at step {last}: resume its run first")
    found = np.asarray(curves)[:, last // identity["every"]]
    return Weights(states, (last,) * len(seeds), dict(zip(names, found.T, strict=True)))


def _check(seeds: Sequence[int], steps: int, every: int) -> None:
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must be at least one, and all different; got {tuple(seeds)}")
    if every < 1 or steps < every or steps % every:
        raise ValueError(
            f"steps must be a positive multiple of every, the steps between evaluations; got {steps} and {every}"
        )


@jax.jit
def _keys_of(seeds: Int[Array, " S"], purpose: Int[Array, ""]) -> PRNGKeyArray:
    return jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), purpose))(seeds)


def _keys(seeds: Sequence[int], purpose: int) -> PRNGKeyArray:
    return _keys_of(np.asarray(seeds, np.uint32), np.uint32(purpose))


def _over_seeds(function: Callable, batched: bool, axes: tuple[int | None, ...]) -> Callable:
    """The function for all seeds: as one batch, or one after the other in the same program."""
    if batched:
        return jax.vmap(function, axes)

    def mapped(*arguments):
        seeded = [a for a, axis in zip(arguments, axes, strict=True) if axis == 0]

        def one(those):
            given = iter(those)
            return function(*(a if axis is None else next(given) for a, axis in zip(arguments, axes, strict=True)))

        return jax.lax.map(one, seeded)

    return mapped


TASKS = 32
"""Tasks whose compiled programs are kept for further runs in the same process."""


@functools.lru_cache(TASKS)
def _evaluation(task: Task, batched: bool, data_axis: int | None) -> Callable[[Any, Any], Metrics]:
    return jax.jit(_over_seeds(task.evaluate, batched, (0, data_axis)))


@jax.jit
def _stacked(*states: State) -> State:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


@functools.lru_cache(TASKS)
def _chunk(task: Task, scan: bool, streamed: bool, batched: bool, data_axis: int | None) -> Callable:
    """Takes some steps for every seed; gives states, first bad steps and the sums of the losses.

    The number of steps is an argument of the program, so that one program serves chunks of every length, and the bits
    do not depend on where a chunk ends. Without a stream `batches` is the data, the same for every step; it stays an
    argument of the program and does not become a constant in it.
    """
    taken = jax.jit(task.step, inline=True)  # traced once, here and for the shape of the loss

    def one_step(carry, key, step, batch):
        state, bad, total = carry
        state, loss = taken(state, jax.random.fold_in(key, step), batch)
        return state, jnp.where((bad < 0) & ~jnp.isfinite(loss), step, bad), total + loss

    axes = (0, 0, None, data_axis)
    if scan:

        def one_seed(carry, key, span, batches):
            def body(i, carry):
                batch = jax.tree.map(lambda v: v[i], batches) if streamed else batches
                return one_step(carry, key, span[0] + i, batch)

            return jax.lax.fori_loop(jnp.zeros_like(span[1]), span[1], body, carry)

        return jax.jit(_over_seeds(one_seed, batched, axes), donate_argnums=0)

    single = jax.jit(_over_seeds(one_step, batched, axes), donate_argnums=0)

    def stepped(carry, keys, span, batches):
        for i in range(int(span[1])):
            batch = jax.tree.map(lambda v, i=i: v[i], batches) if streamed else batches
            carry = single(carry, keys, span[0] + i, batch)
        return carry

    return stepped


FIRST = 4
"""Steps of the first chunk, which tells how long a step takes."""

STREAMED = 64
"""The most steps of a chunk whose batches come from a stream."""


def _first(tree: Any) -> Any:
    """Shapes and dtypes of one of what the first axis counts."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), tree)


def _filled(batches: Any, size: int) -> Any:
    """Batches of `size` steps, of which the last are copies that no step uses: one shape for chunks of any length."""
    return jax.tree.map(lambda v: np.concatenate([v, np.repeat(v[-1:], size - len(v), 0)]), batches)


def _shard(tree: Any, mesh: Mesh | None, axis: str, position: int) -> Any:
    """Spreads one axis of every leaf over the devices of a mesh, where the mesh has such an axis."""
    if mesh is None or axis not in mesh.axis_names:
        return tree
    spec = PartitionSpec(*(None,) * position, axis)
    sharding = NamedSharding(Mesh(mesh.devices, mesh.axis_names), spec)
    return jax.device_put(tree, sharding)


def _resumed(path: Path, identity: Mapping[str, Any], like: Callable[[int], Any]) -> tuple[int, Any]:
    """Steps taken and what was saved; refuses what another configuration has left behind, or a longer run."""
    header = read_header(path)
    known = header.get("identity", {})
    different = {k for k in {*known, *identity} if known.get(k) != identity.get(k)}
    if "steps" in different and header.get("step", math.inf) <= identity["steps"]:
        different.remove("steps")  # a run goes on where a shorter one has ended
    if different:
        raise ValueError(
            f"{path} comes from another configuration, which differs in {', '.join(sorted(different))}: "
            "give the same settings, remove it, or start without resuming"
        )
    header, tree = load_checkpoint(path, like(known["steps"]))
    return header["step"], tree


class Best(NamedTuple):
    """The curve by whose best value states are kept.

    Attributes:
        metric: its name.
        lower_is_better: whether smaller values are better.
    """

    metric: str
    lower_is_better: bool


class _Kept:
    """States of each seed at the best value of a curve, in a file beside the checkpoint, with all values there."""

    def __init__(self, checkpoint: Path, best: Best, identity: Mapping[str, Any], states: Any):
        self.names = identity["metrics"]
        if best.metric not in self.names:
            raise ValueError(f"no curve {best.metric!r} to keep the best state by; there are {', '.join(self.names)}")
        self.path = checkpoint.with_suffix(".best")
        self.best = best
        self.identity = identity
        self.column = self.names.index(best.metric)
        self.states = jax.tree.map(np.array, states)
        self.steps = np.zeros(len(identity["seeds"]), int)
        self.values = np.full((len(self.steps), len(self.names)), np.nan)

    def update(self, taken: int, states: Any, row: np.ndarray, before: np.ndarray) -> None:
        """Keeps the states of seeds whose value is better than all before."""
        sign = 1 if self.best.lower_is_better else -1
        worst = np.full(len(row), np.inf)
        known = np.fmin.reduce(sign * before[:, :, self.column], axis=1, initial=np.inf) if before.size else worst
        better = sign * row[:, self.column] < known
        if better.any():
            self.states = jax.tree.map(
                lambda new, old: np.where(better.reshape(-1, *(1,) * (old.ndim - 1)), new, old), states, self.states
            )
            self.steps[better], self.values[better] = taken, row[better]
            header = {
                "identity": self.identity,
                "metric": self.best.metric,
                "step": taken,
                "steps": self.steps.tolist(),
                "values": [[float(v) if np.isfinite(v) else None for v in values] for values in self.values],
            }
            save_checkpoint(self.path, header, self.states)

    def load(self) -> None:
        """Takes up the states that a stopped run has kept."""
        if self.path.exists():
            header, self.states = load_checkpoint(self.path, self.states)
            self.steps, self.values = np.array(header["steps"]), np.array(header["values"], float)


def train(
    task: Task[State],
    *,
    seeds: Sequence[int],
    steps: int,
    every: int,
    data: Any = None,
    stream: Stream | None = None,
    checkpoint: Path | str | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 10.0,
    chunk_seconds: float = 4.0,
    best: Best | None = None,
    configuration: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    scan: bool = True,
    batched: bool = True,
    mesh: Mesh | None = None,
    data_of_each: bool = False,
) -> Run:
    """Trains from several seeds at once, evaluating in equal intervals.

    A run that diverges takes none of the others with it: its curves are NaN from there on.

    Args:
        task: what is trained.
        seeds: seeds of the runs.
        steps: steps of each run.
        every: steps between two evaluations; divides `steps`.
        data: a pytree of arrays that stays on the device: what `evaluate` gets and, without a stream, `step`.
        stream: gives the batches of steps t to t + n - 1, stacked in the first axis, from (t, n), and the same
            ones whenever it is asked; all seeds see them. Without it, the task draws its data from the key.
        checkpoint: file to save the states to, between chunks.
        resume: whether to go on from that file where it exists.
        checkpoint_seconds: least time between two checkpoints; the end of training is always saved.
        chunk_seconds: time that a chunk of steps is to take; shorter than an interval between evaluations where that
            takes longer.
        best: the curve by whose best value the states of each seed are kept in a second file, which ends in `.best`.
        configuration: what the result depends on, as JSON can hold it; a checkpoint of another is refused.
        progress: called after every chunk with the steps taken, their number, and the last metrics of each seed.
        scan: whether the steps of a chunk are one program; False suits convolutions on a CPU.
        batched: whether the seeds are one batch; False trains them one after the other within the same program, which
            suits recurrent networks on a CPU: what a step of one seed touches then stays in the cache.
        mesh: devices: the seeds are spread over its axis "seeds", the batches of the stream over its axis
            "batch", where it has them.
        data_of_each: whether the data have the seeds as first axis, so that each seed has data of its own.

    Returns:
        The curves, and the states after the last step.

    Raises:
        OSError: if the checkpoint cannot be written or read; before the first step, where that can be seen.
        ValueError: if seeds, steps or the intervals make no sense, or the checkpoint is of another
            configuration or damaged.
    """
    _check(seeds, steps, every)
    if checkpoint is not None:
        checkpoint = Path(checkpoint)
        check_writable(checkpoint.parent)
    keys = _shard(_keys(seeds, 1), mesh, "seeds", 0)
    # One seed at a time: batched decompositions, such as an orthogonal start needs, can hang on a CPU.
    start = jax.jit(task.init)
    states = _shard(_stacked(*(start(key) for key in _keys(seeds, 0))), mesh, "seeds", 0)
    bad = _shard(jnp.full(len(seeds), -1, jnp.int32), mesh, "seeds", 0)
    data_axis = 0 if data_of_each else None
    batch_axis = data_axis if stream is None else None
    evaluate = _evaluation(task, batched, data_axis)
    names = [LOSS, *sorted(jax.eval_shape(evaluate, states, data))]

    def empty(steps: int) -> np.ndarray:
        return np.full((len(seeds), steps // every + 1, len(names)), np.nan)

    identity = json.loads(
        json.dumps(
            {
                "configuration": dict(configuration or {}),
                "seeds": list(map(int, seeds)),
                "steps": steps,
                "every": every,
                "metrics": names,
                "jax": jax.__version__,
            }
        )
    )
    values, taken = empty(steps), 0
    of_batch = data if stream is None else stream(0, 1)
    of_batch = of_batch if stream is None and not data_of_each else _first(of_batch)
    key = _first(keys)
    _, loss = jax.eval_shape(jax.jit(task.step, inline=True), jax.eval_shape(start, key), key, of_batch)
    total = _shard(jnp.zeros(len(seeds), loss.dtype), mesh, "seeds", 0)
    kept = _Kept(checkpoint, best, identity, states) if checkpoint is not None and best is not None else None

    def record(losses: Array | None) -> None:
        found = {k: np.asarray(v) for k, v in evaluate(states, data).items()}
        found[LOSS] = np.full(len(seeds), np.nan) if losses is None else np.asarray(losses)
        row = np.stack([found[name] for name in names], 1)
        row[np.asarray(bad) >= 0] = np.nan
        if kept:
            kept.update(taken, states, row, values[:, : taken // every])
        values[:, taken // every] = row

    if checkpoint is not None and resume and checkpoint.exists():
        taken, (states, bad, total, old) = _resumed(
            checkpoint, identity, lambda steps: (states, bad, total, empty(steps))
        )
        values[:, : min(old.shape[1], values.shape[1])] = old[:, : values.shape[1]]
        states, bad, total = _shard((states, bad, total), mesh, "seeds", 0)
        if kept:
            kept.load()
    else:
        record(None)
    chunk = _chunk(task, scan, stream is not None, batched, batch_axis)
    saved, pace = time.monotonic(), FIRST
    while taken < steps:
        following = (taken // every + 1) * every
        count = min(pace, following - taken, STREAMED if stream else following)
        began = time.monotonic()
        batches = _shard(_filled(stream(taken, count), min(every, STREAMED)), mesh, "batch", 1) if stream else data
        states, bad, total = chunk((states, bad, total), keys, jnp.array((taken, count), jnp.int32), batches)
        jax.block_until_ready(total)
        taken += count
        pace = max(1, int(chunk_seconds * count / max(time.monotonic() - began, 1e-6)))
        if taken == following:
            record(total / every)
            total = jnp.zeros_like(total)
        if checkpoint is not None and (taken == steps or time.monotonic() - saved >= checkpoint_seconds):
            save_checkpoint(checkpoint, {"step": taken, "identity": identity}, (states, bad, total, values))
            saved = time.monotonic()
        if progress is not None:
            progress(taken, steps, {name: values[:, taken // every, i] for i, name in enumerate(names)})
    return Run(
        steps=np.arange(0, steps + 1, every),
        curves={name: values[:, :, i] for i, name in enumerate(names)},
        diverged_at=np.asarray(bad),
        state=states,
        seeds=tuple(map(int, seeds)),
    )
