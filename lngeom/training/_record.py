r"""A record of the tracker, and its computation from weights, update and gradients."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lngeom.training.equilibrium import lion_correlation
from lngeom.training.groups import Groups
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

    @property
    def scale_invariant(self) -> Bool[Array, " G"]:
        """Whether each group behaves as scale-invariant: false where the radial residual is above rounding."""
        sizes = jnp.asarray(self.sizes, self.radial_spread.dtype)
        limit = jnp.minimum(RADIAL_LIMIT, 0.1 / jnp.sqrt(sizes))
        return ~(self.radial_spread > jnp.broadcast_to(limit, self.radial_spread.shape))


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
        optimizer: name of the optimizer's law, or "" for a link.
    """

    inner: Any
    packed: Packed
    groups: Groups = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    every: int = eqx.field(static=True)
    optimizer: str = eqx.field(static=True)

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


def record(state: GeometryState, params, updates, gradients, settings) -> Geometry:
    """The record after a step, from ‖w‖, ⟨w, u⟩, ‖u‖, ⟨w, ∇⟩ and ‖∇‖ of each group."""
    old, groups = state.geometry, state.groups
    w, u = jax.tree.leaves(params), jax.tree.leaves(updates)
    dtype = old.norm.dtype
    ww, wu, uu = (_inner_products(*pair, groups, dtype) for pair in ((w, w), (w, u), (u, u)))
    norm = jnp.sqrt(ww)
    along = wu / norm
    angle = jnp.arctan2(jnp.sqrt(jnp.maximum(uu - jnp.square(along), 0)), norm + along)
    broken = ~jnp.all(jnp.isfinite(uu))
    diverged_at = jnp.where((old.diverged_at < 0) & broken, old.step, old.diverged_at)
    rate, decay, beta, b2, trust = settings
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
            return jnp.sqrt(jnp.square(mean) + weight * (jnp.square(value) - jnp.square(mean)))

        spread, scale = running(old.radial_spread, residual), running(old.gradient_scale, size)
        values["radial_residual"] = residual
        if rate is not None:
            eta = jnp.asarray(rate, dtype)
            values["effective_learning_rate"] = eta / norm ** LAWS[state.optimizer].rate
            eq_angle, eq_norm = _equilibrium(state, eta, decay, beta, b2, trust, scale)
    history, steps = old.history, old.history_steps
    if history is not None and steps is not None:
        place = (old.step // old.every) % steps.shape[0]
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
        **values,
    )


def _equilibrium(state: GeometryState, eta, decay, beta, b2, trust, scale):
    """`predict_equilibrium` in traced form, with the measured size of the gradient."""
    unknown = jnp.full_like(scale, jnp.nan)
    sizes = jnp.asarray(state.geometry.sizes, scale.dtype)
    if not isinstance(decay, int | float) or decay <= 0:
        return unknown, unknown
    product = eta * decay

    def same(value):
        return jnp.broadcast_to(value, scale.shape)

    match state.optimizer:
        case "sgd":
            return same(jnp.arccos(1 - product)), (eta * scale**2 / (decay * (2 - product))) ** 0.25
        case "momentum":
            return same(jnp.sqrt(2 * product / (1 + beta))), (eta * scale**2 / (2 * decay * (1 - beta))) ** 0.25
        case "normalized_gd":
            return same(jnp.arccos(1 - product)), same(jnp.sqrt(eta / (decay * (2 - product))))
        case "adamw" | "adam":
            return same(jnp.sqrt(2 * product * (1 - beta) / (1 + beta))), jnp.sqrt(eta * sizes / (2 * decay))
        case "lion":
            memory = lion_correlation(beta, b2)
            return same(jnp.sqrt(2 * product / memory)), jnp.sqrt(eta * sizes * memory / (2 * decay))
        case "lars":
            step = eta * trust
            return same(2 * jnp.arcsin(step / 2)), jnp.sqrt(scale / (decay * jnp.sqrt(4 / step**2 - 1)))
    return unknown, unknown
