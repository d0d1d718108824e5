r"""One training loop: a pure step, seeds by `vmap`, chunks of steps by `scan`, a Python loop over chunks outside.

Everything random in step t of seed s comes from `fold_in(key(s), t)`, and chunks begin at the same steps however
often a run was interrupted. A run that is killed and resumed therefore gives the same bits as one that was not.
"""

import json
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
from lngeom._files import check_writable

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


def _check(seeds: Sequence[int], steps: int, every: int) -> None:
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must be at least one, and all different; got {tuple(seeds)}")
    if every < 1 or steps < every or steps % every:
        raise ValueError(
            f"steps must be a positive multiple of every, the steps between evaluations; got {steps} and {every}"
        )


def _keys(seeds: Sequence[int], purpose: int) -> PRNGKeyArray:
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(jax.random.fold_in, (0, None))(keys, purpose)


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


def _chunk(task: Task, scan: bool, streamed: bool, batched: bool) -> Callable:
    """Takes the steps of one chunk for every seed; gives states, first bad steps and the mean loss of each seed.

    Without a stream `batches` is the data, the same for every step; it stays an argument of the program and does not
    become a constant in it.
    """

    def one_step(carry, key, step, batch):
        state, bad = carry
        state, loss = task.step(state, jax.random.fold_in(key, step), batch)
        return (state, jnp.where((bad < 0) & ~jnp.isfinite(loss), step, bad)), loss

    if scan:

        def one_seed(carry, key, steps, batches):
            items = (steps, batches if streamed else None)
            carry, losses = jax.lax.scan(
                lambda c, item: one_step(c, key, item[0], item[1] if streamed else batches), carry, items
            )
            return carry, jnp.mean(losses)

        return jax.jit(_over_seeds(one_seed, batched, (0, 0, None, None)), donate_argnums=0)

    single = jax.jit(_over_seeds(one_step, batched, (0, 0, None, None)), donate_argnums=0)

    def stepped(carry, keys, steps, batches):
        losses = []
        for i in range(len(steps)):
            batch = jax.tree.map(lambda v, i=i: v[i], batches) if streamed else batches
            carry, loss = single(carry, keys, steps[i], batch)
            losses.append(loss)
        return carry, jnp.mean(jnp.stack(losses), 0)

    return stepped


def _shard(tree: Any, mesh: Mesh | None, axis: str, position: int) -> Any:
    """Spreads one axis of every leaf over the devices of a mesh, where the mesh has such an axis."""
    if mesh is None or axis not in mesh.axis_names:
        return tree
    spec = PartitionSpec(*(None,) * position, axis)
    sharding = NamedSharding(Mesh(mesh.devices, mesh.axis_names), spec)
    return jax.device_put(tree, sharding)


def _resumed(path: Path, identity: Mapping[str, Any], like: Any) -> tuple[int, Any]:
    """Steps taken and what was saved; refuses what another configuration has left behind."""
    known = read_header(path).get("identity", {})
    different = sorted(k for k in {*known, *identity} if known.get(k) != identity.get(k))
    if different:
        raise ValueError(
            f"{path} comes from another configuration, which differs in {', '.join(different)}: "
            "give the same settings, remove it, or start without resuming"
        )
    header, tree = load_checkpoint(path, like)
    return header["step"], tree


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
    configuration: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    scan: bool = True,
    batched: bool = True,
    mesh: Mesh | None = None,
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
        configuration: what the result depends on, as JSON can hold it; a checkpoint of another is refused.
        progress: called after every chunk with the steps taken, their number, and the metrics of each seed.
        scan: whether the steps of a chunk are one program; False suits convolutions on a CPU.
        batched: whether the seeds are one batch; False trains them one after the other within the same program, which
            suits recurrent networks on a CPU: what a step of one seed touches then stays in the cache.
        mesh: devices: the seeds are spread over its axis "seeds", the batches of the stream over its axis
            "batch", where it has them.

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
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(start(key) for key in _keys(seeds, 0)))
    states = _shard(states, mesh, "seeds", 0)
    bad = _shard(jnp.full(len(seeds), -1, jnp.int32), mesh, "seeds", 0)
    evaluate = jax.jit(_over_seeds(task.evaluate, batched, (0, None)))
    names = [LOSS, *sorted(jax.eval_shape(evaluate, states, data))]
    values = np.full((len(seeds), steps // every + 1, len(names)), np.nan)
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
    taken = 0

    def record(losses: Array | None) -> None:
        found = {k: np.asarray(v) for k, v in evaluate(states, data).items()}
        found[LOSS] = np.full(len(seeds), np.nan) if losses is None else np.asarray(losses)
        values[:, taken // every] = np.stack([found[name] for name in names], 1)

    if checkpoint is not None and resume and checkpoint.exists():
        taken, (states, bad, values) = _resumed(checkpoint, identity, (states, bad, values))
        states, bad = _shard((states, bad), mesh, "seeds", 0)
    else:
        record(None)
    chunk = _chunk(task, scan, stream is not None, batched)
    saved = time.monotonic()
    while taken < steps:
        numbers = jnp.arange(taken, taken + every, dtype=jnp.int32)
        batches = _shard(stream(taken, every), mesh, "batch", 1) if stream else data
        (states, bad), losses = chunk((states, bad), keys, numbers, batches)
        taken += every
        record(losses)
        values[:, taken // every][np.asarray(bad) >= 0] = np.nan
        if checkpoint is not None and (taken == steps or time.monotonic() - saved >= checkpoint_seconds):
            save_checkpoint(checkpoint, {"step": taken, "identity": identity}, (states, bad, values))
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
