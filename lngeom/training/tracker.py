r"""`track_geometry`: an optax transformation that records how scale-invariant weights move."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from lngeom._core.arguments import check_count
from lngeom._core.text import counted, verb
from lngeom._core.trees import leaf_paths
from lngeom._core.types import is_concrete
from lngeom.information.groups import Selector, resolve_groups
from lngeom.training._detect import AGREES, Motion, detect, first_steps, require
from lngeom.training._present import Present, at_present
from lngeom.training._record import HISTORY, Geometry, GeometryState, Packed, dtype_of, record, register_with_flax
from lngeom.training._settings import Said
from lngeom.training.advisor import Plan
from lngeom.training.laws import check_settings, law_of

NAMED = 5
"""Groups that one warning names."""


def track_geometry(
    optimizer: optax.GradientTransformation | None = None,
    *,
    learning_rate: float | Callable | None = None,
    weight_decay: float | Callable = 0.0,
    groups: Selector | Plan | None = None,
    kind: str | None = None,
    momentum: float | None = None,
    b2: float | None = None,
    trust_coefficient: float | None = None,
    every: int = 50,
    history: int = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Wraps an optax optimizer and records the geometry of scale-invariant weights; the updates are unchanged.

    Without an optimizer it is the last link of an `optax.chain`. There it receives updates but no gradients, and
    records norm and angle only. Read the record with `read_geometry(state)`, after a step or inside the loop.

    Args:
        optimizer: any optax optimizer.
        learning_rate: learning rate of the optimizer, a number or a schedule. Needed for the effective learning rate.
            `init` compares it, and the numbers below, with what the optimizer does to small weights, leaf by leaf.
            Where they differ, a warning says so, and what the optimizer does is taken. A record compares them again,
            with the numbers in the optimizer's state: a rate that is changed there is taken.
        weight_decay: weight decay of the optimizer, a number or a schedule. Needed for the predicted equilibrium.
        groups: the scale-invariant groups: patterns of paths, a mapping from names to patterns, a predicate of path and
            leaf, the result of `scale_invariant_groups`, or a `plan`, whose groups they are. By default every leaf of
            two or more axes is a group, since the tracker has no model to measure invariance with.
        kind: the optimizer's law, one of `LAWS`. By default it is found from the optimizer's response to gradients,
            leaf by leaf; "adaptive" where only the effective learning rate is known. Of a law that is given, only the
            power of the gradient's size is compared with the optimizer. Rates and equilibria are NaN where no formula
            applies; `remarks` of the record says why.
        momentum: β of momentum, or β₁ of adamw and lion (0.9 by default), where `kind` is given; else it is found.
        b2: β₂ likewise (by default 0.999 of adamw, 0.99 of lion and 0.9 of rmsprop).
        trust_coefficient: trust coefficient of lars.
        every: steps from one record to the next, the first included. Where gradients are accumulated, as by
            `optax.MultiSteps`, the next step that moves the weights is recorded. A record reads weights, gradients and
            updates once more, and can take as long as half a step of training. Between records the overhead for SGD and
            Adam is 0 to 4 % of a step (`analysis/BENCHMARKS.md`). Lion also copies its weights and momentum. Under
            `vmap` a record is computed when it is due for any of the batch.
        history: number K of the last records to keep; 0 keeps only the last one.

    Returns:
        The transformation, whose `update` needs the parameters.

    Raises:
        ValueError: if a number is out of its range or `kind` is unknown. At `init`, if the optimizer's law cannot be
            found or a pattern matches no leaf. At `update`, if params are missing.

    Warns:
        UserWarning: at `init`, if a number or law that was given is not what the optimizer does.

    Example:
        >>> opt = track_geometry(optax.sgd(0.1), learning_rate=0.1)
        >>> params = {"w": jnp.ones((2, 2))}
        >>> state = opt.init(params)
        >>> _, state = opt.update({"w": jnp.array([[1.0, -1.0], [1.0, -1.0]])}, state, params)
        >>> round(float(read_geometry(state).effective_learning_rate[0]), 6)
        0.025
    """
    numbers = {"momentum": momentum, "trust_coefficient": trust_coefficient, "b2": b2}
    numbers |= {"weight_decay": weight_decay, "learning_rate": learning_rate}
    check_settings(**{name: value for name, value in numbers.items() if value is not None})
    groups = groups.groups if isinstance(groups, Plan) else groups
    history = check_count("history", history, 0, what="a whole number of records")
    every = check_count("every", every, 1, what="a whole number of steps")
    if kind is not None:
        law_of(kind)
    if optimizer is None and (learning_rate is not None or kind is not None or weight_decay):
        raise ValueError(
            "as a link of a chain the tracker sees no gradients, and takes neither learning_rate, weight_decay nor "
            "kind: wrap the optimizer instead, track_geometry(optimizer, learning_rate=...)"
        )
    wrapped = None if optimizer is None else optax.with_extra_args_support(optimizer)
    said = Said(learning_rate, weight_decay, momentum, b2, trust_coefficient)

    def init(params: PyTree) -> GeometryState:
        register_with_flax()
        found = resolve_groups(params, groups)
        if wrapped is None:
            moves, known = [], []
        elif kind is not None:
            if kind == "momentum" and weight_decay and momentum is None:
                raise ValueError("the equilibrium under momentum and weight decay depends on it: give momentum=")
            known = first_steps(wrapped, params, kind, {k for _, members in found for k in members})
            moves = [replace(said.of_kind(kind), period=known[members[0]].period) for _, members in found]
        else:
            paths, motions = leaf_paths(params), detect(wrapped, params)
            tracked = {k for _, members in found for k in members}
            known = [require(m, paths[k]) if k in tracked else Motion("") for k, m in enumerate(motions)]
            moves = said.beside(found, known)
        begun = tuple(
            said.begun(move, [known[k] for k in members], kind is None)
            for move, (_, members) in zip(moves, found if moves else (), strict=True)
            if learning_rate is not None
        )
        period = max((move.period for move in moves), default=1)
        leaves = jax.tree.leaves(params)
        sizes = tuple(sum(jnp.size(leaves[k]) for k in members) for _, members in found)
        unknown = jnp.full(len(found), jnp.nan, dtype_of(leaves, found))
        rest = -(-every // period) * period, period - 1
        geometry = Geometry(
            names=tuple(name for name, _ in found),
            sizes=sizes,
            every=rest[0],
            step=jnp.zeros((), jnp.int32),
            norm=unknown,
            angle=unknown,
            effective_learning_rate=unknown,
            radial_residual=unknown,
            radial_spread=jnp.zeros_like(unknown) if wrapped else unknown,
            gradient_scale=jnp.zeros_like(unknown) if wrapped else unknown,
            equilibrium_angle=unknown,
            equilibrium_norm=unknown,
            diverged_at=jnp.full((), -1, jnp.int32),
            history={k: jnp.full((history, len(found)), jnp.nan, unknown.dtype) for k in HISTORY} if history else None,
            history_steps=jnp.full(history, -1, jnp.int32) if history else None,
        )
        inner = None if wrapped is None else wrapped.init(params)
        return GeometryState(inner, Packed(geometry), found, sizes, rest[0], tuple(moves), rest[1], begun)

    def update(updates: PyTree, state: GeometryState, params: PyTree | None = None, **extra: Any):
        if params is None:
            raise ValueError("track_geometry needs the parameters: call update(gradients, state, params)")
        old = state.geometry
        period = state.offset + 1

        def step(given: PyTree) -> tuple[PyTree, Any]:
            return wrapped.update(given, state.inner, params, **extra) if wrapped else (given, None)

        def recorded(following: PyTree) -> Packed:
            taken = old.step // period if period > 1 else old.step
            rate, decay = (v(taken) if callable(v) else v for v in (learning_rate, weight_decay))
            if wrapped is None:
                return Packed(record(state, params, following, None, None))

            given: optax.GradientTransformationExtraArgs = wrapped

            def present(sizes: Float[Array, " G"]) -> Present:
                said = rate, decay
                found = at_present(
                    given, params, state.inner, extra, state.groups, state.moves, state.begun, taken, said, sizes
                )
                if any(move.clips for move in state.moves):
                    found = found._replace(holds=found.holds & is_linear(state, step, updates, following))
                return found

            return Packed(record(state, params, following, updates, None if rate is None else present))

        if state.every == 1:
            following, inner = step(updates)
            packed = recorded(following)
        else:
            due = old.step % state.every == state.offset

            def record_where_due() -> Packed:
                # of a step of its own, so that no other step has to keep what only a record reads
                new = recorded(step(updates)[0])
                return jax.tree.map(lambda new, last: jnp.where(due, new, last), new, state.packed)

            packed = jax.lax.cond(_any(due), record_where_due, lambda: state.packed)
            following, inner = step(_after(packed, updates))
        packed = eqx.tree_at(lambda p: p.counts, packed, packed.counts.at[0].set(old.step + 1))
        return following, replace(state, inner=inner, packed=packed)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def is_linear(state: GeometryState, step: Callable, gradients: PyTree, following: PyTree) -> Bool[Array, " G"]:
    """Whether each group's update is linear in the gradient up to the one at hand, so that nothing limits it."""

    def at(by: float) -> list[Array]:
        return jax.tree.leaves(step(jax.tree.map(lambda g: (by * g).astype(g.dtype), gradients))[0])

    half, none = at(0.5), at(0.0)
    found = []
    for _, members in state.groups:
        gap = size = jnp.zeros(())
        for k in members:
            whole, part, rest = (jax.tree.leaves(u)[k].astype(float) for u in (following, half, none))
            gap = gap + jnp.sum(jnp.square(whole - 2 * part + rest))
            size = size + jnp.sum(jnp.square(whole - rest))
        found.append(gap <= AGREES**2 * size)
    return jnp.stack(found)


@jax.custom_batching.custom_vmap
def _any(due: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether a record is due; under `vmap`, for any of the batch. One common predicate keeps the `cond` a `cond`."""
    return due


@_any.def_vmap
def _(size, batched, due):
    return _any(jnp.any(due, 0)), False


def _after(packed: Packed, tree: PyTree) -> PyTree:
    """The same numbers, but dependent on the record: x + (−0) = x.

    A record reads the weights, the gradients and the optimizer's state, which the update overwrites. Without a
    dependence between the two, XLA copies all of them at every step, recorded or not. On a CPU an
    `optimization_barrier` does not prevent these copies.
    """
    nothing = jnp.where(packed.counts[1] < -1, jnp.nan, -0.0)  # never below −1, which XLA does not know

    def tied(leaf):
        dtype = jnp.result_type(leaf)
        return leaf + nothing.astype(dtype) if jnp.issubdtype(dtype, jnp.floating) else leaf

    return jax.tree.map(tied, tree)


def read_geometry(state: Any) -> Geometry:
    """Reads the record of a tracker from anywhere inside a state.

    Args:
        state: the state of an optimizer that `track_geometry` wraps or is a link of, or a pytree that contains it. It
            also works inside `jit` and `scan`, with arrays and without warnings.

    Returns:
        The geometry after the last step, history in order of time.

    Raises:
        ValueError: if there is no tracker in the state, or more than one.

    Warns:
        UserWarning: if groups are not scale-invariant, or the run has diverged.
    """

    def is_state(node):
        return isinstance(node, GeometryState)

    found = [node for node in jax.tree.leaves(state, is_leaf=is_state) if is_state(node)]
    if len(found) != 1:
        raise ValueError(
            f"expected the state of one track_geometry; found {len(found)} in a {type(state).__name__}"
            + ("" if found else ": wrap the optimizer, track_geometry(optimizer, ...), before init")
        )
    # flax wraps every array of a state into a variable of its own
    arrays = jax.tree.map(
        lambda node: jax.tree.leaves(node)[0], found[0].packed, is_leaf=lambda node: not isinstance(node, Packed | None)
    )
    geometry = replace(found[0], packed=arrays).geometry
    if geometry.history is not None and geometry.step.ndim == 0:
        shift = -(geometry.records % geometry.history_steps.shape[0])
        geometry = eqx.tree_at(
            lambda g: (g.history, g.history_steps),
            geometry,
            ({k: jnp.roll(v, shift, 0) for k, v in geometry.history.items()}, jnp.roll(geometry.history_steps, shift)),
        )
    if is_concrete(geometry.step):
        _warn(geometry)
        geometry = replace(geometry, remarks=_remarks(found[0], geometry))
    return geometry


def _remarks(state: GeometryState, geometry: Geometry) -> tuple[str, ...]:
    """The remarks, with those on the last step."""
    if not state.begun or not jnp.all(geometry.records > 0):
        return geometry.remarks
    rates = jnp.reshape(geometry.effective_learning_rate, (-1, len(geometry.names)))[-1].tolist()
    return tuple(
        OTHERWISE if move.law and math.isnan(rate) else move.remark
        for move, rate in zip(state.moves, rates, strict=True)
    )


OTHERWISE = (
    "the last step is not that of its law: its gradient is limited, ε or another constant outweighs it, or numbers in "
    "the optimizer's state have changed"
)
"""A remark on a step that no law describes."""


def _warn(geometry: Geometry) -> None:
    diverged = jnp.max(geometry.diverged_at)
    if diverged >= 0:
        warnings.warn(
            "the run has diverged: an update of the tracked weights was NaN or infinite first at step "
            f"{int(diverged)}; what is recorded from there on means nothing. Lower the learning rate or clip the "
            "gradient",
            stacklevel=3,
        )
        return
    count = len(geometry.names)
    steady = jnp.all(geometry.scale_invariant.reshape(-1, count), 0).tolist()
    spreads = jnp.max(geometry.radial_spread.reshape(-1, count), 0).tolist()
    found = [
        f"{name!r} ({spread:.2g})"
        for name, fine, spread in zip(geometry.names, steady, spreads, strict=True)
        if not fine
    ]
    if found:
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        warnings.warn(
            f"{len(found)} of {counted(count, 'group')} {verb(len(found))} not scale-invariant: "
            f"{', '.join(found[:NAMED])}{more}. In brackets: the part of the gradient along the weights, a root mean "
            "square over recent steps, where 0 was expected. The effective learning rate and equilibrium of such a "
            "group mean nothing. To track scale-invariant weights only, give groups=plan(apply, params, X, ...) or "
            "groups=scale_invariant_groups(apply, params, X). A large ε in a normalizer, or weight decay that is part "
            "of the loss, has this effect too",
            stacklevel=3,
        )
