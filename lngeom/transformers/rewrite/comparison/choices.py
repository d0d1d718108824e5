"""What decides which experts are used, beside their scores: groups of experts, and biases for the choice alone.

A choice among nearly equal experts is not continuous, so that parts are compared with all experts in use. What only the
choice sees is compared here, array by array.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float, Int

from lngeom.transformers.description import Mixture
from lngeom.transformers.rewrite.comparison.models import Model
from lngeom.transformers.rewrite.comparison.plain import pair
from lngeom.transformers.rewrite.comparison.streams import Map
from lngeom.transformers.rewrite.comparison.sweep import Branch, choice, path_of

MATCHED = 1e-2
"""Squared distance of all rows of two routers, relative, up to which their experts are matched."""

ROUNDED = 4.0
"""Spacings of the dtype by which biases may be apart."""


@dataclass(frozen=True)
class Fault:
    """Another choice of experts.

    Attributes:
        sentence: what is wrong.
        arrays: the second model's arrays at fault.
        difference: of the biases, relative to the largest; of groups, the share of experts that stand in another one.
    """

    sentence: str
    arrays: tuple[str, ...]
    difference: float


def other_choice(first: Model, second: Model, i: int, branch: Branch, between: tuple[Map, Map]) -> Fault | None:
    """Why the second model chooses other experts for the same scores; None where it does not, or this is not known.

    Args:
        first: the first model.
        second: the second.
        i: number of a block.
        branch: the part of it that holds the network.
        between: maps of streams before and after the part.

    Returns:
        The fault.
    """
    a, b = first.stack.blocks[i].feed_forward, second.stack.blocks[i].feed_forward
    if branch == "attention" or not (isinstance(a, Mixture) and isinstance(b, Mixture)) or choice(a) != choice(b):
        return None
    if a.groups is None and a.choice_bias is None:
        return None
    parts = [part.maps["feed_forward.router"] for part in pair(first, second, i, branch, between)]
    order = _matched(*(np.concatenate([part.matrix, part.offset[:, None]], 1) for part in parts))
    if order is None:
        return None
    where = f"{path_of(i, branch)}{'.feed_forward' if branch == 'both' else ''}"
    if a.groups is not None and a.groups.top < a.groups.count:
        own = (order // (len(order) // a.groups.count)).reshape(a.groups.count, -1)
        usual = np.array([np.bincount(row).argmax() for row in own])
        moved = np.flatnonzero((own != usual[:, None]).reshape(-1))
        if len(moved):
            sentence = f"{where}: expert {moved[0]} stands in another group, and groups are chosen as wholes"
            return Fault(sentence, parts[1].stored, len(moved) / len(order))
    if a.choice_bias is None or b.choice_bias is None:
        return None
    one, other = (np.asarray(m.arrays[n], np.float64) for m, n in ((first, a.choice_bias), (second, b.choice_bias)))
    spacing = max(first.spacing(a.choice_bias), second.spacing(b.choice_bias))
    allowed = ROUNDED * spacing * max(np.max(np.abs(one)), np.max(np.abs(other)))
    one, other = one[order] - np.median(one), other - np.median(other)  # what all share changes no order
    apart = float(np.max(np.abs(one - other - np.median(one - other))))
    if not apart > allowed:
        return None
    difference = apart / max(np.max(np.abs(one)), np.max(np.abs(other)))
    words = f"it is {difference:.2g} away, relative to the largest"
    if np.ptp(other) <= allowed:
        words = "it is the same for all experts"
    elif np.max(np.abs(np.sort(one) - np.sort(other))) <= allowed:
        words = "it is in another order than the experts"
    return Fault(f"{where}.choice_bias: {words}", (b.choice_bias,), difference)


def _matched(x: Float[np.ndarray, "n m"], y: Float[np.ndarray, "n m"]) -> Int[np.ndarray, " n"] | None:
    """For each row of y the row of x that it is, each once; None where there are others. Equal rows stay in place."""
    if x.shape != y.shape or not (size := np.sum(x**2)):
        return None
    squares = np.maximum(np.sum(y**2, 1)[:, None] + np.sum(x**2, 1)[None] - 2 * y @ x.T, 0)
    stay = 1e-9 * size / len(x) * (1 - np.eye(len(x)))
    order = scipy.optimize.linear_sum_assignment(squares + stay)[1]
    return order if np.sum(squares[np.arange(len(x)), order]) <= MATCHED * size else None
