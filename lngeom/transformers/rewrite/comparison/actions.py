"""What was done to a model that is still the same function, read off from both."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lngeom._core.text import counted
from lngeom.transformers.rewrite.certificate import TOLERANCE
from lngeom.transformers.rewrite.comparison.aligned import aligned, far, settled
from lngeom.transformers.rewrite.comparison.models import Model
from lngeom.transformers.rewrite.comparison.plain import pair
from lngeom.transformers.rewrite.comparison.streams import Map
from lngeom.transformers.rewrite.comparison.sweep import ROUNDINGS, Branch, Local
from lngeom.transformers.rewrite.comparison.verdict import Comparison


@dataclass(frozen=True)
class Place:
    """A part, where it stands, and the maps of streams before and after it.

    Attributes:
        where: block and branch; None of tables and head.
        local: how far it is.
        before: the map of streams before it.
        after: the map after it.
        effect: what it alone changes in log-probabilities.
    """

    where: tuple[int, Branch] | None
    local: Local
    before: Map
    after: Map
    effect: float | None = None


def actions_of(
    first: Model, second: Model, between: Map, found: Comparison, sites: list[Place], small: bool
) -> list[str]:
    """What was done to the first model, read off."""
    a, b = first.stack, second.stack
    actions = []
    if a.tied != b.tied:
        actions.append("the head was untied" if a.tied else "the head was tied")
    kinds = [(x.part, y.part) for x, y in zip(a.norms, b.norms, strict=False)]
    if count := sum(x.kind == "layer" and y.kind == "rms" for x, y in kinds):
        actions.append(f"{count} LayerNorms became RMSNorms, after their input was centred")

    def bare(model: Model, norm: Any) -> bool:
        return norm.gain is None or bool(np.all(norm.offset + np.asarray(model.arrays[norm.gain]) == 1))

    if count := sum(bare(second, y) and not bare(first, x) for x, y in kinds):
        actions.append(f"the gains of {count} of {len(kinds)} norms were folded into their readers")
    scaled = sum(not bare(second, y) and _another(first, x, second, y, between) for x, y in kinds)
    if scaled:
        actions.append(f"{counted(scaled, 'norm')} got another gain, and the readers take the inverse")
    if between.scale != 1 and abs(between.scale - 1) > 1e-9:
        actions.append(f"the stream was scaled by {between.scale:.6g}")
    if between.turn is not None:
        entries = np.abs(between.turn)
        shuffled = np.allclose(entries.max(0), 1, atol=1e-6)
        actions.append(
            "the stream's coordinates were permuted or changed sign" if shuffled else "the stream was rotated"
        )
    for name, what in (("units", "hidden units"), ("queries_and_keys", "queries and keys")):
        if (name in first.turned) != (name in second.turned):
            still = "" if name in second.turned else "no longer "
            actions.append(f"{what} are {still}turned when the model runs")
    if small:
        actions += _inner(first, second, sites)
    if found.logits > max(ROUNDINGS * found.log_probabilities, TOLERANCE):
        actions.append("all logits of a position moved together, which softmax does not see")
    return actions


def _another(first: Model, x: Any, second: Model, y: Any, between: Map) -> bool:
    """Whether a norm has another gain; under a rotation gains do not compare."""
    if between.turn is not None or x.kind != y.kind:
        return False
    a, b = (None if n.gain is None else n.offset + np.asarray(m.arrays[n.gain]) for m, n in ((first, x), (second, y)))
    a, b = (np.ones_like(other) if one is None and other is not None else one for one, other in ((a, b), (b, a)))
    if a is None or b is None or a.shape != b.shape:
        return False
    spacing = max(m.spacing(n.gain) for m, n in ((first, x), (second, y))) if x.gain and y.gain else 1e-9
    return far(a, b) > max(4 * spacing, 1e-9)


INNER = {
    "query": "queries and keys have another basis",
    "key": "queries and keys have another basis",
    "value": "values and outputs have another basis",
    "output": "values and outputs have another basis",
    "up": "hidden units were scaled or reordered",
    "gate": "hidden units were scaled or reordered",
    "down": "hidden units were scaled or reordered",
    "router": "experts were reordered",
}


def _inner(first: Model, second: Model, sites: list[Place]) -> list[str]:
    """Changes inside of the parts."""
    counts: dict[str, int] = {}
    rounding = max(ROUNDINGS * max(model.spacing(*model.stack.arrays) for model in (first, second)), 1e-6)
    places = [site for site in sites if site.where is not None]
    for site in places:
        assert site.where is not None
        one, other = (settled(part) for part in pair(first, second, *site.where, (site.before, site.after)))
        here = aligned(one, other)
        changed = {
            INNER[name.rpartition(".")[2]]
            for name, part in one.maps.items()
            if name in other.maps
            and part.matrix.shape == other.maps[name].matrix.shape
            and far(part.matrix, here.maps[name].matrix) > rounding
        }
        for text in changed:
            counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({count} of {len(places)} parts)" for text, count in sorted(counts.items())]
