"""How groups of weights move at a step of a run: the rates that their optimizer has then, and whether its law holds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from lngeom.information.groups import Groups
from lngeom.training._detect import AGREES
from lngeom.training._probe import Start, numbers, respond, small, with_numbers
from lngeom.training._settings import Begun, Moves

OUTWEIGHS = 0.05
"""Largest part of a step that ε may take away before a law without ε does not hold."""

AVERAGES = ["adam", "adamw", "rmsprop"]
"""Laws whose steps are divided by √v + ε or √(v + ε), with v an average of squared gradients."""


class Present(NamedTuple):
    """How groups move at a step.

    Attributes:
        rate: η of each.
        decay: λ of each; NaN where no equilibrium is predicted.
        holds: whether the law holds that was found at the start.
    """

    rate: Float[Array, " G"]
    decay: Float[Array, " G"]
    holds: Bool[Array, " G"]


def at_present(
    optimizer: optax.GradientTransformationExtraArgs,
    params: PyTree,
    state: PyTree,
    extra: dict[str, Any],
    groups: Groups,
    moves: Sequence[Moves],
    begun: Sequence[Begun],
    taken: Int[Array, ""],
    said: tuple[Any, Any],
    sizes: Float[Array, " G"],
) -> Present:
    """Compares the optimizer's responses with those at the first step that moved something.

    Args:
        optimizer: the optimizer.
        params: the parameters.
        state: of the optimizer, before the step.
        extra: further arguments of its update.
        groups: the groups.
        moves: how each group moves.
        begun: how each moved at first.
        taken: number of steps so far.
        said: the learning rate and the weight decay that were given, at this step.
        sizes: root mean square of the entries of each group's gradients.

    Returns:
        What was said, as long as the responses are in proportion to it. Where they are not, what they tell: of laws in
        closed form, and of others while what was said is constant.
    """
    dtype = sizes.dtype
    all_hold = jnp.ones(len(moves), bool)
    rates = said[0] * _all_as([move.rate for move in moves], dtype)
    decays = said[1] * _all_as([jnp.nan if move.decay is None else move.decay for move in moves], dtype)
    hyper, now = numbers(state, jnp.floating), numbers(state, jnp.integer)
    if not hyper and not now and not any(move.law in AVERAGES for move in moves):
        return Present(rates, decays, all_hold)
    weights = jax.tree.map(small, params)
    fresh = optimizer.init(weights)
    seen = [
        (g, k, start)
        for g, ((_, members), begin) in enumerate(zip(groups, begun, strict=True))
        for k, start in zip(members, begin.starts, strict=False)
        if start is not None
    ]
    if not seen:
        changed = [new != old for new, old in zip(hyper, numbers(fresh, jnp.floating), strict=True)]
        return Present(rates, decays, all_hold & ~jnp.any(jnp.array(changed)))
    g, k = np.array([row[:2] for row in seen]).T
    laws = _Laws([moves[n] for n in g], [begun[n] for n in g], [row[2] for row in seen], dtype)
    top = jnp.max(jnp.array(now, taken.dtype)) if now else taken
    count = jnp.minimum(top, taken).astype(dtype)  # of adam; it lags behind where steps were left out
    ones = jnp.ones(len(jax.tree.leaves(params)), dtype)
    real = ones.at[k].set(sizes[g] * laws.as_average(count))

    def at(run: tuple[list, Array]) -> Float[Array, "3 L"]:
        counts, sizes = run
        held = with_numbers(with_numbers(fresh, hyper, jnp.floating), counts, jnp.integer)
        found = respond(lambda g, s, w: optimizer.update(g, s, w, **extra), weights, held, list(sizes))
        return jnp.stack([_all_as(of, dtype) for of in found])

    at_first = laws.begun[0].counts  # the same of all groups that move
    first = [jnp.asarray(c, n.dtype) for c, n in zip(at_first, now, strict=True)]
    runs = jax.tree.map(lambda *v: jnp.stack(v), (now, ones), (now, real), (first, ones))
    found = jax.lax.map(at, runs)[:, :, k]
    ratio, fall, holds = laws.compare(found, count)
    lead = np.array([list(g).index(n) for n in g])  # the first leaf of the group of each
    for values in (ratio, fall):
        holds &= jnp.abs(values - values[lead]) <= AGREES * jnp.abs(values[lead])
    told = []
    for n, value, by in ((0, rates, ratio), (1, decays, fall)):
        begins = _all_as([jnp.nan if (b := (m.rate, m.decay)[n]) is None else b for m in laws.begun], dtype)
        tells = jnp.where(jnp.isnan(begins), value[g], begins) * by
        same = jnp.abs(tells - value[g]) <= AGREES * jnp.abs(value[g])
        given = np.array([m.varies[n] and not m.closed for m in laws.begun])
        holds &= ~given | jnp.isnan(value[g]) | same | (jnp.abs(by - 1) <= AGREES)
        told.append(value.at[g].set(jnp.where(same | given, value[g], tells)))
    return Present(told[0], told[1], all_hold.at[g].min(holds))


def _all_as(values: list[Any], dtype: Any) -> Array:
    return jnp.stack([jnp.asarray(value, dtype) for value in values])


class _Laws:
    """Laws of leaves, by leaf.

    Attributes:
        begun: how each moved at first.
    """

    def __init__(self, moves: list[Moves], begun: list[Begun], starts: list[Start], dtype: Any):
        self.begun = begun
        self._along, self._pull, self._second = jnp.array([(s.along, s.pull, s.second) for s in starts], dtype).T
        rows = [(m.memory, m.b2, m.period, b.first) for m, b in zip(moves, begun, strict=True)]
        self._memory, self._b2, self._period, self._first = jnp.array(rows, dtype).T
        self._law = np.array([m.law for m in moves])
        self._closed = np.array([b.closed for b in begun])

    def as_average(self, count: Any) -> Array:
        """The size of a first gradient that alone makes the average of squares that those before it make."""
        forget = 1 - self._b2
        whole = jnp.where(np.isin(self._law, ["adam", "adamw"]), 1 - self._b2 ** (count + 1.0), 1.0)
        size = jnp.where(np.isin(self._law, AVERAGES), jnp.sqrt(whole / forget), 1.0)
        return size * self._period

    def compare(self, found: Float[Array, "3 3 L"], count: Any) -> tuple[Array, Array, Bool[Array, " L"]]:
        """Responses in units of those at first: along the gradient and along the weights, and whether the law holds.

        Args:
            found: responses of three runs [runs, along pull second].
            count: of adam.
        """
        along, pull, second = jnp.where(self._closed, found[0], found[2])
        stands = along == 0
        corrected = self._correction(count) / self._correction(self._first)
        ratio = along / self._along / corrected
        lars = self._law == "lars"
        ratio = jnp.where(lars, ratio * jnp.sqrt((1 + pull**2) / (1 + self._pull**2)), ratio)
        fixed = stands | (self._pull == 0)
        fall = jnp.where(fixed, 1.0, pull / jnp.where(fixed, 1.0, self._pull) * corrected)
        holds = stands | (jnp.abs(second - self._second) <= AGREES * jnp.maximum(1.0, jnp.abs(self._second)))
        kept = found[1, 0] / found[0, 0]
        averaged = np.isin(self._law, AVERAGES)
        return ratio, fall, holds & (~averaged | (found[0, 0] == 0) | (jnp.abs(kept - 1) <= OUTWEIGHS))

    def _correction(self, count: Any) -> Any:
        """The factor of a first response that is due to adam's correction of its bias, at some count."""
        factor = jnp.sqrt(1 - self._b2 ** (count + 1.0)) / (1 - self._memory ** (count + 1.0))
        return jnp.where(self._closed & (self._law == "adamw"), factor, 1.0)
