r"""A record of the tracker, and its computation from weights, update and gradients."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from lngeom.information.groups import Groups
from lngeom.training._present import Present
from lngeom.training._settings import Begun, Moves
from lngeom.training.equilibrium import at_rest, largest_product
from lngeom.training.laws import LAWS

MEMORY = 0.99
"""Decay per record of the running means of the gradient's size and of the squared radial residual."""

RADIAL_LIMIT = 1e-3
"""Radial residual (root mean square over recent steps) from which a group does not count as scale-invariant."""


class Geometry(eqx.Module):
    r"""The record of a tracker, one entry per group. NaN stands for unknown. "Last" is the last recorded step.

    Attributes:
        names: names of the groups.
        sizes: number of weights of each.
        every: steps from one record to the next.
        step: number of steps taken.
        norm: ‖w‖ before the last step.
        angle: between the weights before and after it, in radians.
        effective_learning_rate: $\eta/\|w\|^p$, p = 2 for SGD and momentum, 1 for Adam, Lion and Muon, 0 for LARS.
        radial_residual: $\langle w, \nabla\rangle / (\|w\| \|\nabla\|)$ of the last step, 0 for scale-invariant
            weights.
        radial_spread: root mean square of that over recent steps.
        gradient_scale: root mean square of ‖w‖‖∇‖ over recent steps.
        equilibrium_angle: predicted angle per step at equilibrium.
        equilibrium_norm: predicted norm there.
        diverged_at: first recorded step whose update was not finite, or −1.
        history: norm, angle, effective learning rate and radial residual of the last K records, oldest first, [K G].
        history_steps: the numbers of their steps, −1 where there is none yet.
        offset: the number of the first step that is recorded: the last of those that accumulate its gradient.
        remarks: for each group why no equilibrium is predicted, or "".
    """

    names: tuple[str, ...] = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    every: int = eqx.field(static=True)
    step: Int[Array, ""]
    norm: Float[Array, " G"]
    angle: Float[Array, " G"]
    effective_learning_rate: Float[Array, " G"]
    radial_residual: Float[Array, " G"]
    radial_spread: Float[Array, " G"]
    gradient_scale: Float[Array, " G"]
    equilibrium_angle: Float[Array, " G"]
    equilibrium_norm: Float[Array, " G"]
    diverged_at: Int[Array, ""]
    history: dict[str, Float[Array, "K G"]] | None = None
    history_steps: Int[Array, " K"] | None = None
    offset: int = eqx.field(static=True, default=0)
    remarks: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def records(self) -> Any:
        """How many steps have been recorded."""
        return jnp.maximum(0, -(-(self.step - self.offset) // self.every))

    @property
    def scale_invariant(self) -> Bool[Array, " G"]:
        """Whether each group behaves as scale-invariant: false where the radial residual is above rounding."""
        sizes = jnp.asarray(self.sizes, self.radial_spread.dtype)
        limit = jnp.minimum(RADIAL_LIMIT, 0.1 / jnp.sqrt(sizes))
        return ~(self.radial_spread > jnp.broadcast_to(limit, self.radial_spread.shape))

    def curves(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Numbers of the recorded steps [T], and the values [T G] of each quantity by name.

        They are those of the history, of a record stacked over steps, or else of the last step alone. The equilibria of
        a history are those of the last step.
        """
        names = (*HISTORY, "equilibrium_norm", "equilibrium_angle")
        if self.norm.ndim > 2:
            raise ValueError(
                f"a record must be of one run, [G] or stacked over steps [T G]; got norms of shape {self.norm.shape}: "
                "take one run of the batch by jax.tree.map(lambda v: v[k], record)"
            )
        if self.norm.ndim == 2:
            return np.asarray(self.step) - 1, {name: np.asarray(getattr(self, name)) for name in names}
        if self.history is None or self.history_steps is None:
            taken = min(1, int(self.records))
            steps = np.array([(int(self.records) - 1) * self.every + self.offset])[:taken]
            return steps, {name: np.asarray(getattr(self, name))[None][:taken] for name in names}
        steps = np.asarray(self.history_steps)
        taken = steps >= 0
        found = {name: np.asarray(self.history[name])[taken] for name in HISTORY}
        found |= {name: np.broadcast_to(np.asarray(getattr(self, name)), found["norm"].shape) for name in names[-2:]}
        return steps[taken], found

    def rows(self) -> list[dict[str, Any]]:
        """The recorded steps as dictionaries, one for each step and group, as `pandas.DataFrame` takes them."""
        steps, curves = self.curves()
        return [
            {"step": int(step), "group": group} | {name: float(values[t, k]) for name, values in curves.items()}
            for t, step in enumerate(steps)
            for k, group in enumerate(self.names)
        ]

    def line(self, group: str | None = None) -> str:
        """The last record on one line, for a terminal's progress.

        Args:
            group: name of the group; by default the one whose last step turned most.

        Returns:
            Such as "step 1200  hidden  ‖w‖ 3.12 → 2.95  angle 0.0141 → 0.0139  rate 0.0103", where numbers after an
            arrow are the predicted equilibrium.

        Raises:
            ValueError: if there is no such group.
        """
        _, curves = self.curves()
        last = {
            name: values[-1] if len(values) else np.full(len(self.names), np.nan) for name, values in curves.items()
        }
        if group is not None and group not in self.names:
            raise ValueError(f"no group {group!r}; the groups are {', '.join(self.names)}")
        turned = np.nan_to_num(last["angle"], nan=-1.0)
        k = int(np.argmax(turned)) if group is None else self.names.index(group)
        parts = [f"step {int(np.max(self.step))}", self.names[k]]
        for title, name, rest in _LINE:
            if np.isfinite(last[name][k]):
                towards = f" → {last[rest][k]:.3g}" if rest and np.isfinite(last[rest][k]) else ""
                parts.append(f"{title} {last[name][k]:.3g}{towards}")
        return "  ".join(parts)


_NUMBERS = (
    "norm",
    "angle",
    "effective_learning_rate",
    "radial_residual",
    "radial_spread",
    "gradient_scale",
    "equilibrium_angle",
    "equilibrium_norm",
)
HISTORY = _NUMBERS[:4]
"""Quantities of a record that the history keeps."""

_LINE = (
    ("‖w‖", "norm", "equilibrium_norm"),
    ("angle", "angle", "equilibrium_angle"),
    ("rate", "effective_learning_rate", None),
)


class Packed(eqx.Module):
    """A record in two arrays, or four with a history. Each array adds dispatch overhead to a compiled step.

    Attributes:
        counts: steps taken, and the first recorded step that diverged or −1.
        numbers: the record's quantities of each group, one row per quantity.
        history: the quantities of the last K records, in a ring buffer.
        history_steps: the numbers of their steps.
    """

    counts: Int[Array, "2"]
    numbers: Float[Array, "8 G"]
    history: Float[Array, "K 4 G"] | None
    history_steps: Int[Array, " K"] | None

    def __init__(self, geometry: Geometry):
        self.counts = jnp.stack([geometry.step, geometry.diverged_at])
        self.numbers = jnp.stack([getattr(geometry, name) for name in _NUMBERS])
        kept = geometry.history
        self.history = None if kept is None else jnp.stack([kept[name] for name in HISTORY], 1)
        self.history_steps = geometry.history_steps


class GeometryState(eqx.Module):
    """State of the tracker: the wrapped optimizer's state and the record.

    Attributes:
        inner: state of the wrapped optimizer; None for a link of a chain.
        packed: the record.
        groups: the leaves of each group.
        sizes: number of weights of each.
        every: steps from one record to the next.
        moves: how each group moves; nothing for a link.
        offset: the number of the first step that is recorded.
        begun: what each group's later steps are compared with.
    """

    inner: Any
    packed: Packed
    groups: Groups = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    every: int = eqx.field(static=True)
    moves: tuple[Moves, ...] = eqx.field(static=True)
    offset: int = eqx.field(static=True)
    begun: tuple[Begun, ...] = eqx.field(static=True)

    @property
    def optimizer(self) -> str:
        """Name of the optimizer's law; several are joined, and a link has none."""
        return ", ".join(sorted({move.law or "none" for move in self.moves}))

    @property
    def geometry(self) -> Geometry:
        """The record by name; its history is a ring. Axes of stacked states come first."""
        packed = self.packed
        kept = packed.history
        return Geometry(
            names=tuple(name for name, _ in self.groups),
            sizes=self.sizes,
            every=self.every,
            step=packed.counts[..., 0],
            diverged_at=packed.counts[..., 1],
            history=None if kept is None else {name: kept[..., k, :] for k, name in enumerate(HISTORY)},
            history_steps=packed.history_steps,
            offset=self.offset,
            remarks=tuple(move.remark for move in self.moves),
            **{name: packed.numbers[..., k, :] for k, name in enumerate(_NUMBERS)},
        )


def dtype_of(leaves: list[Array], groups: Groups):
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *(leaves[k].dtype for _, members in groups for k in members))


def _inner_products(a: list[Array], b: list[Array], groups: Groups, dtype) -> Float[Array, " G"]:
    """⟨a, b⟩ over the leaves of each group."""
    return jnp.stack(
        [sum(jnp.vdot(a[k].astype(dtype), b[k].astype(dtype)) for k in members) for _, members in groups]  # type: ignore
    )


def _moved(w: Array, u: Array) -> Array:
    """The change of a leaf as it is stored: what is small beside a weight is lost, as in `optax.apply_updates`."""
    if not jnp.issubdtype(w.dtype, jnp.floating) or not jnp.issubdtype(u.dtype, jnp.floating):
        return u
    if (bits := jnp.finfo(w.dtype)).bits >= 32:
        return (w + u.astype(w.dtype)) - w
    u = _stored(u, jnp.finfo(u.dtype)) if jnp.finfo(u.dtype).bits < 32 else u.astype(jnp.float32)
    return _stored(w.astype(jnp.float32) + u, bits) - w.astype(jnp.float32)


def _stored(v: Array, as_: Any) -> Array:
    """Values rounded to 16 bits, in float32. XLA drops two casts that cancel, and its rounding drops subnormals."""
    v = v.astype(jnp.float32)
    rounded = jax.lax.reduce_precision(v, as_.nexp, as_.nmant)
    if as_.nexp == jnp.finfo(jnp.float32).nexp:
        return rounded
    spacing = float(as_.smallest_subnormal)
    return jnp.where(jnp.abs(v) < float(as_.smallest_normal), jnp.round(v / spacing) * spacing, rounded)


def record(
    state: GeometryState,
    params: PyTree,
    updates: PyTree,
    gradients: PyTree,
    present: Callable[[Float[Array, " G"]], Present] | None,
) -> Geometry:
    """The record after a step, from ‖w‖, ⟨w, u⟩, ‖u‖, ⟨w, ∇⟩ and ‖∇‖ of each group.

    Args:
        state: before the step.
        params: before the step.
        updates: of the step.
        gradients: of the step; None for a link.
        present: from sizes of entries of each group's gradients to how the groups move; None where no rate was given.
    """
    old, groups = state.geometry, state.groups
    w = jax.tree.leaves(params)
    u = [_moved(*pair) for pair in zip(w, jax.tree.leaves(updates), strict=True)]
    dtype = old.norm.dtype
    ww, wu, uu = (_inner_products(*pair, groups, dtype) for pair in ((w, w), (w, u), (u, u)))
    norm = jnp.sqrt(ww)
    along = wu / norm
    angle = jnp.arctan2(jnp.sqrt(jnp.maximum(uu - jnp.square(along), 0)), norm + along)
    broken = ~jnp.all(jnp.isfinite(uu))
    diverged_at = jnp.where((old.diverged_at < 0) & broken, old.step, old.diverged_at)
    unknown = jnp.full_like(norm, jnp.nan)
    values = {"norm": norm, "angle": angle, "effective_learning_rate": unknown, "radial_residual": unknown}
    spread, scale, eq_angle, eq_norm = old.radial_spread, old.gradient_scale, unknown, unknown
    if gradients is not None:
        g = jax.tree.leaves(gradients)
        wg, gg = (_inner_products(*pair, groups, dtype) for pair in ((w, g), (g, g)))
        size = norm * jnp.sqrt(gg)
        residual = jnp.where(size > 0, wg / jnp.where(size > 0, size, 1), 0)
        count = (old.step // old.every).astype(dtype)
        weight = (1 - MEMORY) / (1 - MEMORY ** (count + 1))

        def running(mean, value):
            after = jnp.sqrt(jnp.square(mean) + weight * (jnp.square(value) - jnp.square(mean)))
            return jnp.where(jnp.isfinite(value), after, mean)  # one bad gradient does not stay

        spread, scale = running(old.radial_spread, residual), running(old.gradient_scale, size)
        values["radial_residual"] = residual
        if present is not None:
            now = present(scale / norm / jnp.sqrt(jnp.asarray(state.sizes, dtype)))
            effective = now.rate / norm ** jnp.asarray([_power(move) for move in state.moves], dtype)
            effective, eq_angle, eq_norm = (
                jnp.where(now.holds, v, jnp.nan) for v in (effective, *_equilibrium(state, now, scale))
            )
            values["effective_learning_rate"] = effective
    history, steps = old.history, old.history_steps
    if history is not None and steps is not None:
        place = ((old.step - old.offset) // old.every) % steps.shape[0]
        history = {name: ring.at[place].set(values[name]) for name, ring in history.items()}
        steps = steps.at[place].set(old.step)
    return Geometry(
        names=old.names,
        sizes=old.sizes,
        every=old.every,
        step=old.step,
        radial_spread=spread,
        gradient_scale=scale,
        equilibrium_angle=eq_angle,
        equilibrium_norm=eq_norm,
        diverged_at=diverged_at,
        history=history,
        history_steps=steps,
        offset=old.offset,
        remarks=old.remarks,
        **values,
    )


def _power(move: Moves) -> float:
    """Power of the norm in the effective learning rate; NaN where the group has no law, unless it never moves."""
    return LAWS[move.law].rate if move.law else (0.0 if move.rate == 0 else np.nan)


def _equilibrium(state: GeometryState, now: Present, scale: Float[Array, " G"]) -> tuple[Array, Array]:
    """`predict_equilibrium` in traced form, with the measured size of the gradient; NaN where it does not apply."""
    angle = norm = jnp.full_like(scale, jnp.nan)
    sizes = jnp.asarray(state.sizes, scale.dtype)
    for move in set(state.moves):
        if not move.law or move.decay is None:
            continue
        found = at_rest(move.law, now.rate, now.decay, move.memory, move.b2, scale, sizes, move.trust, jnp)
        if found is None:
            continue
        product = now.rate * now.decay
        applies = (now.decay > 0) & (now.rate > 0) & (product <= largest_product(move.law, move.memory, move.b2))
        chosen = jnp.asarray([m == move for m in state.moves]) & applies
        angle, norm = (
            jnp.where(chosen, jnp.broadcast_to(v, scale.shape), kept)
            for v, kept in zip(found[:2], (angle, norm), strict=True)
        )
    return angle, norm


def register_with_flax() -> None:
    """Lets `flax.serialization` write and read the state of a tracker, where it is imported."""
    serialization: Any = sys.modules.get("flax.serialization")
    if serialization is None:
        return

    def to_dict(state: GeometryState) -> dict[str, Any]:
        packed = {str(k): leaf for k, leaf in enumerate(jax.tree.leaves(state.packed))}
        return {"inner": serialization.to_state_dict(state.inner), "packed": packed}

    def from_dict(target: GeometryState, found: dict[str, Any]) -> GeometryState:
        leaves, structure = jax.tree.flatten(target.packed)
        arrays = [jnp.asarray(found["packed"][str(k)]) for k in range(len(leaves))]
        shapes = [[jnp.shape(leaf) for leaf in of] for of in (leaves, arrays)]
        if shapes[0] != shapes[1] or len(found["packed"]) != len(leaves):
            raise ValueError(
                f"the state was written by another tracker: its arrays have the shapes {shapes[1]}, where {shapes[0]} "
                "are expected. Make the tracker with the groups and the history that it had"
            )
        packed = jax.tree.unflatten(structure, arrays)
        return replace(target, inner=serialization.from_state_dict(target.inner, found["inner"]), packed=packed)

    serialization.register_serialization_state(GeometryState, to_dict, from_dict, override=True)
