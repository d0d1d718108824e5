"""A step that a rewrite allows moves along symmetries that the theory predicts: finite moves and tangents are one."""

from functools import cache

import numpy as np
import pytest
import scipy.linalg
from analysis.models.stacks import CHECKED, FURTHER, build, random_weights
from lngeom.rewrite import steps as do
from lngeom.transformers import Norm
from lngeom.transformers.arrays import StackArrays
from lngeom.transformers.nullspace import span
from lngeom.transformers.rewrite import channels
from lngeom.transformers.rewrite.draft import Draft

VARIANTS = CHECKED | FURTHER
SMALL = 1e-4
"""Parameter of curves, whose chords have an error of its square."""


@cache
def model(name):
    stack, shapes = build(VARIANTS[name][0])
    return stack, random_weights(VARIANTS[name][0], shapes, 0)


@cache
def folded(name):
    """With a head of its own, and gains of one where linear maps can take them."""
    stack, weights = model(name)
    draft = Draft(weights)
    for step in (do.Untie(), do.FoldNorms()):
        if step.obstacles(stack, draft):
            return None
        stack = step.run(stack, draft)
    return stack, {name: np.array(draft[name]) for name in draft}


@cache
def predicted(name, first=model):
    stack, weights = first(name)
    return span(StackArrays(stack, weights))[0]


def vector(weights):
    return np.concatenate([np.ravel(weights[name]) for name in sorted(weights)])


def moved(stack, weights, step):
    """The weights after a step as a vector; None where the step is refused, or changes the description."""
    draft = Draft(weights)
    try:
        if step.obstacles(stack, draft) or step.run(stack, draft) != stack:
            return None
    except ValueError:
        return None
    return vector(draft)


def distance(direction, basis):
    """Of a direction from the span, relative."""
    return np.linalg.norm(direction - basis @ (basis.T @ direction)) / np.linalg.norm(direction)


LINES = {
    "centre-head": do.CentreHead(),
    "centre-router": do.CentreRouter(),
    "centre": do.CentreWriters(),
    "drop-key-bias": do.DropKeyBias(),
    "merge-value-bias": do.MergeValueBias(),
    "merge-parallel-bias": do.MergeParallelBias(),
    "shift-tables": do.ShiftTables(),
}
"""Steps along a straight line of equal models: the step itself is a tangent vector."""


@pytest.mark.parametrize("word", LINES)
def test_a_straight_step_is_a_predicted_direction(word):
    taken = 0
    for name in VARIANTS:
        stack, weights = model(name)
        before, after = vector(weights), moved(stack, weights, LINES[word])
        if after is not None and np.any(after != before):
            assert distance(after - before, predicted(name)) < 1e-8, name
            taken += 1
    assert taken


def scaled(stack, weights, t):
    """Scales of every place, e^(tc)."""
    rng, draft = np.random.default_rng(5), Draft(weights)
    found = {p.site.path: np.exp(t * rng.normal(size=p.count)) for p in channels.places(stack, draft)}
    for path in list(found):
        if do.ScaleChannels({path: found[path]}).obstacles(stack, draft):
            del found[path]
    return do.ScaleChannels(found) if found else None


def turned(stack, weights, t):
    """A rotation of the stream that fixes the ones, e^(tS)."""
    d = len(weights[stack.tables[0].weight][0])
    S, P = np.random.default_rng(6).normal(size=(d, d)), np.eye(d) - 1 / d
    return do.Rotate(matrix=scipy.linalg.expm(t * P @ (S - S.T) @ P))


def stretched(stack, weights, t):
    """The stream scaled by e^t where no ε sees it."""
    return do.ScaleStream(float(np.exp(t)), scale_epsilon=False)


CURVES = {"scale-channels": (scaled, model, 40), "rotate": (turned, folded, 10), "scale": (stretched, model, 20)}


def tangent(curve, stack, weights):
    """The derivative of a curve of steps at its beginning, by a central difference; None where it is refused."""
    steps = [curve(stack, weights, t) for t in (SMALL, -SMALL)]
    ends = [None if step is None else moved(stack, weights, step) for step in steps]
    return None if any(end is None for end in ends) else (ends[0] - ends[1]) / (2 * SMALL)


@pytest.mark.parametrize("word", CURVES)
def test_a_curve_of_steps_begins_along_a_predicted_direction(word):
    curve, first, least = CURVES[word]
    taken = 0
    for name in VARIANTS:
        if (found := first(name)) is None:
            continue
        direction = tangent(curve, *found)
        if direction is not None and direction.any():
            assert distance(direction, predicted(name, first)) < 1e-6, name
            taken += 1
    assert taken >= least


def test_a_reader_that_is_left_out_is_no_predicted_direction(monkeypatch):
    name = "Llama: RMS, rotary, SwiGLU"
    places = channels.places

    def without_a_reader(stack, draft):
        for place in places(stack, draft):
            yield place._replace(readers=place.readers[1:]) if isinstance(place.site.part, Norm) else place

    monkeypatch.setattr(channels, "places", without_a_reader)
    assert distance(tangent(scaled, *model(name)), predicted(name)) > 1e-2
