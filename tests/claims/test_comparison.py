"""Statements about training, and what their verdicts rest on."""

import math

import numpy as np
import pytest
from lngeom.claims.comparison import TrainingStatement, sign_test, steps_to
from scipy.stats import binomtest


def test_sign_test_is_the_binomial_test():
    for wins, trials in ((5, 5), (4, 5), (0, 3), (7, 9)):
        assert sign_test(wins, trials) == pytest.approx(binomtest(wins, trials, alternative="greater").pvalue)


def test_steps_to_a_target_are_those_of_the_first_evaluation_that_reaches_it():
    steps, curve = np.array([0, 10, 20, 30]), np.array([5.0, 3.0, 4.0, 2.0])
    assert [steps_to(steps, curve, goal) for goal in (5.0, 3.0, 2.5, 1.0)] == [0, 10, 30, math.inf]
    assert steps_to(steps, -curve, -3.0, lower_is_better=False) == 10
    assert steps_to(steps, np.full(4, np.nan), 9.0) == math.inf


def test_a_statement_is_the_same_after_json():
    statement = TrainingStatement("experiments.x", "a beats b", "faster", "a", "b", "loss", target=0.1, bound=0.6)
    assert TrainingStatement.from_json(statement.as_json() | {"median": "0.3"}) == statement
    with pytest.raises(ValueError, match="lacks claim, metric"):
        TrainingStatement.from_json({"text": "", "paper": "", "treated": "a", "baseline": "b"})
    with pytest.raises(ValueError, match="'speed', 'best' or 'equivalent'; got 'time'"):
        TrainingStatement.from_json(statement.as_json() | {"measure": "time"})
