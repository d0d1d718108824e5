"""A method is its index formula in every arithmetic: exact numbers, floats, and sums written as loops."""

import dataclasses
from fractions import Fraction

import lngeom as lg
import numpy as np
import pytest
from hypothesis import strategies as st
from lngeom.methods import spatial
from lngeom.methods.page import FORMULAS
from lngeom.methods.readings import Arrays
from lngeom.methods.transformations import EXTENDED as COLUMNS
from lngeom.symbolic import actions, layers, prove, search, table
from lngeom.symbolic.actions import concretely
from lngeom.symbolic.proof import Change, Counterexample

from tests.relations.relation import assert_close, fails, relation
from tests.symbolic.test_one_definition import DELTA, GAMMA, TOLERANCE, by_library, disagreement, numeric, point

SEEDS = st.integers(0, 999)


@relation(each={"name": tuple(layers.METHODS)}, column=st.sampled_from(COLUMNS), seed=SEEDS, thorough=20)
def test_numbers_are_exact_arithmetic_before_and_after_a_transformation(name, column, seed):
    for eps in (Fraction(0), Fraction(1, 2)):
        for change in (None, column):
            assert disagreement(layers.METHODS[name], change, eps, seed) < TOLERANCE, change and change.name


@relation(
    units=st.integers(1, 4), inputs=st.integers(1, 4), samples=st.integers(1, 4), size=st.sampled_from(["N", "H", "D"]),
    seed=SEEDS, thorough=60,
)  # fmt: skip
def test_a_sum_is_a_loop_whatever_its_body_depends_on(units, inputs, samples, size, seed):
    rng = np.random.default_rng(seed)
    W, X = rng.normal(size=(units, inputs)), rng.normal(size=(samples, inputs))
    layer = Arrays(W, X, FORMULAS[lg.normalizers.LayerNorm])
    count, first = layer.size(size), int(rng.integers(1, inputs + 1))
    own = {"N": lambda k: layer.a(k, "i"), "H": lambda k: layer.a("n", k), "D": lambda k: layer.W("i", k)}[size]
    bodies = [lambda k: 2, lambda k: layer.W("i", first), lambda k: layer.X("n", first), own, lambda k: own(k) * own(k)]

    a = X @ W.T
    known = {"N": (a.sum(0), (a**2).sum(0)), "H": (a.sum(1), (a**2).sum(1)), "D": (W.sum(1), (W**2).sum(1))}[size]
    axes = "n" if size == "H" else "i"
    expected = [2 * count, count * W[:, first - 1], count * X[:, first - 1], *known]
    for k, (body, value) in enumerate(zip(bodies, expected, strict=True)):
        total, mean = layer.total(body, size), layer.mean(body, size)
        name = {1: "i", 2: "n"}.get(k, axes)
        numbers = [v.aligned(name) if hasattr(v, "aligned") else np.asarray(float(v)) for v in (total, mean)]
        assert_close(numbers[0], np.asarray(value, float))
        assert_close(numbers[1], np.asarray(value, float) / count)


@relation(each={"name": tuple(layers.METHODS)}, seed=SEEDS, thorough=20)
def test_an_exact_transformation_of_groups_changes_the_first_that_the_method_tells_apart(name, seed):
    method = layers.METHODS[name]
    W, X = point(method, seed)
    delta, gamma = Fraction(5, 2), [Fraction(k + 2, 3) for k in range(len(X[0]))]
    rows = len(W) // method.blocks
    for column in (c for c in COLUMNS if c.grouped):
        move = (lambda w, _: delta * w) if column.scale == "g" else (lambda w, g: w + g)
        first = [[move(w, g) for w, g in zip(row, gamma, strict=True)] for row in W[:rows]]
        assert concretely(column, W, X, delta, gamma, method) == (first + W[rows:], X)


@relation(each={"name": tuple(layers.METHODS)}, column=st.sampled_from(COLUMNS), thorough=20)
def test_what_refutes_an_invariance_is_seen_in_numbers_and_has_no_sample_to_spare(name, column):
    method, found = layers.METHODS[name], prove(name, column.name)
    if not isinstance(found, Counterexample):
        return
    values = found.instance
    change = found.changes(values)[-1]
    before, after = (np.array(side.tolist(), float) for side in change[1:])
    np.testing.assert_array_equal(change.differs, np.abs(after - before) > 1e-12)
    assert float(found.sides(values)[0]) in before
    W, X = (values[key].tolist() for key in "WX")
    stored = {field.name for field in dataclasses.fields(numeric(name, 0.0))} - {"eps", "groups", "alpha"}
    if not stored:  # those of another number of units
        by_numbers = by_library(method, W, X, float(values[r"\epsilon"]))
        np.testing.assert_allclose(before, by_numbers, atol=1e-12)
    moves = Fraction(str(values.get(r"\delta", 1))), list(values.get(r"\gamma", [0]))
    more = len(X) > method.smallest[2] * method.positions  # than do not make the method degenerate
    for k in range(0, len(X), method.positions) if more and not method.irrational else ():
        fewer = X[:k] + X[k + method.positions :]
        assert search._first_change(method, column, W, fewer, *moves, Fraction(str(values[r"\epsilon"]))) is None


IRRATIONAL = tuple(name for name, method in layers.METHODS.items() if method.irrational)


@relation(each={"name": IRRATIONAL}, column=st.sampled_from(COLUMNS), seed=SEEDS, thorough=20)
def test_roots_within_roots_agree_with_numbers_up_to_their_sign(name, column, seed):
    method = layers.METHODS[name]
    W, X = point(method, seed)
    sides = (W, X), concretely(column, W, X, DELTA, [GAMMA[d % len(GAMMA)] for d in range(len(X[0]))], method)
    before, after = (
        by_library(method, *side, 0.0)[: method.positions if column.compares_first else None] for side in sides
    )
    for sign in (1, -1):
        same = np.allclose(after, sign * before, atol=1e-9)
        assert table.expansion(method, column, flipped=sign < 0).verify() == same


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_groups_of_another_size(self, monkeypatch):
        monkeypatch.setattr(actions, "replace", lambda column, groups: column)
        fails(test_an_exact_transformation_of_groups_changes_the_first_that_the_method_tells_apart, draws=60)

    def test_an_epsilon(self, monkeypatch):
        before = spatial._moments
        monkeypatch.setattr(spatial, "_moments", lambda values, axes, eps: before(values, axes, 2 * eps))
        fails(test_numbers_are_exact_arithmetic_before_and_after_a_transformation, name=st.just("InstanceNorm"))

    def test_marks_of_what_is_the_same(self, monkeypatch):
        everything = property(lambda self: [[True] * self.before.cols] * self.before.rows)
        monkeypatch.setattr(Change, "differs", everything)
        fails(test_what_refutes_an_invariance_is_seen_in_numbers_and_has_no_sample_to_spare, draws=40)

    def test_instances_that_do_not_see_the_sign(self, monkeypatch):
        monkeypatch.setattr(table, "equal", lambda old, new, sign=1: True)
        fails(test_roots_within_roots_agree_with_numbers_up_to_their_sign, draws=40)

    def test_a_sum_of_what_does_not_change(self, monkeypatch):
        before = Arrays.total
        lost = lambda self, body, size: before(self, body, size) if size == "D" else body(f"{size}0")  # noqa: E731
        monkeypatch.setattr(Arrays, "total", lost)
        fails(test_a_sum_is_a_loop_whatever_its_body_depends_on)
