"""Inequalities pass up to their bound, fail beyond it, and say nothing of numbers that are not finite."""

import numpy as np
import pytest
from lngeom.claims import Role, Verdict, decide
from lngeom.papers.lab import at_least, at_most


@pytest.mark.parametrize(("compare", "inside", "outside"), [(at_most, 1.9, 2.1), (at_least, 2.1, 1.9)])
def test_values_within_a_bound_pass_and_those_beyond_it_show_the_opposite(compare, inside, outside):
    assert compare("x", [2.0, inside], 2.0).passed
    beyond = compare("x", [inside, outside], 2.0)
    assert not beyond.passed
    assert beyond.contradicts
    assert decide([compare("x", inside, 2.0)]) is Verdict.HOLDS
    assert decide([beyond]) is Verdict.CLASH


def test_each_value_may_have_a_bound_of_its_own():
    assert at_most("x", [1.0, 3.0], [1.0, 3.0]).passed
    assert not at_most("x", [3.0, 1.0], [1.0, 3.0]).passed


def test_the_role_and_the_numbers_are_in_the_evidence():
    found = at_least("growth", 4.76, 1, Role.FAILS_WITHOUT_CONDITION)
    assert found.role is Role.FAILS_WITHOUT_CONDITION
    assert found.description == "growth: at least 1, found 4.76"


@pytest.mark.parametrize("compare", [at_most, at_least])
@pytest.mark.parametrize("value", [np.nan, [1.0, np.nan]])
def test_numbers_that_are_not_finite_are_no_evidence(compare, value):
    found = compare("x", value, 1.0)
    assert not found.passed
    assert found.no_evidence
