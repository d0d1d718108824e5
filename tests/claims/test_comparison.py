"""Comparisons of curves: ratios by hand, censored runs, and verdicts that need five seeds."""

import numpy as np
import pytest
from lngeom.claims.comparison import TrainingStatement, compare_best, compare_speed, sign_test
from scipy.stats import binomtest

STEPS = np.array([0, 10, 20, 30, 40])
BASELINE = np.tile([5.0, 4.0, 3.0, 2.0, 2.5], (5, 1))


def test_sign_test_is_the_binomial_test():
    for wins, trials in ((5, 5), (4, 5), (0, 3), (7, 9)):
        assert sign_test(wins, trials) == pytest.approx(binomtest(wins, trials, alternative="greater").pvalue)


def test_ratio_of_steps_to_the_best_of_the_baseline():
    faster = np.tile([5.0, 1.0, 3.0, 3.0, 3.0], (5, 1))
    found = compare_speed(STEPS, faster, BASELINE)
    assert found.median == pytest.approx(1 / 3)
    assert not found.censored.any()
    assert found.finding == "SUPPORTED"
    assert found.p_supports == 1 / 32
    assert compare_speed(STEPS, faster, BASELINE, bound=0.3).finding == "REFUTED"
    assert compare_speed(STEPS, -faster, -BASELINE, lower_is_better=False).median == pytest.approx(1 / 3)
    assert compare_speed(STEPS, faster[:4], BASELINE[:4]).finding == "UNDECIDED", "four seeds decide nothing"
    assert compare_speed(STEPS, BASELINE, BASELINE).finding == "UNDECIDED", "ties decide nothing"


def test_a_run_that_never_arrives_is_a_loss_and_its_ratio_a_lower_bound():
    never = np.full_like(BASELINE, 3.0)
    never[0] = np.nan
    found = compare_speed(STEPS, never, BASELINE)
    assert found.censored.all()
    assert (found.values == 50 / 30).all()
    assert found.finding == "REFUTED"
    assert compare_speed(STEPS, never, never, target=1.0).finding == "UNDECIDED"
    won = compare_speed(STEPS, BASELINE, never, target=2.0)
    assert (won.values == 30 / 50).all()
    assert won.finding == "SUPPORTED"


def test_one_seed_of_five_against_leaves_a_statement_undecided():
    mixed = np.tile([5.0, 1.0, 3.0, 3.0, 3.0], (5, 1))
    mixed[2] = 9.0
    assert compare_speed(STEPS, mixed, BASELINE).finding == "UNDECIDED"


def test_best_values_are_compared():
    better = BASELINE - 0.2
    assert compare_best(better, BASELINE).finding == "SUPPORTED"
    assert compare_best(BASELINE, better).finding == "REFUTED"
    assert compare_best(-better, -BASELINE, lower_is_better=False).finding == "SUPPORTED"
    assert compare_best(np.full_like(BASELINE, np.nan), BASELINE).finding == "REFUTED"


def test_curves_of_different_seeds_are_refused():
    with pytest.raises(ValueError, match="of the same seeds"):
        compare_best(BASELINE[:3], BASELINE)


def test_a_statement_is_the_same_after_json():
    statement = TrainingStatement("experiments.x", "a beats b", "faster", "a", "b", "loss", target=0.1, bound=0.6)
    assert TrainingStatement.from_json(statement.as_json() | {"median": 0.3}) == statement
    with pytest.raises(ValueError, match="lacks claim, metric"):
        TrainingStatement.from_json({"text": "", "paper": "", "treated": "a", "baseline": "b"})
    with pytest.raises(ValueError, match="'speed' or 'best'; got 'time'"):
        TrainingStatement.from_json(statement.as_json() | {"measure": "time"})


def test_swapped_arms_turn_a_statement_round():
    curves = {"a": np.tile([5.0, 1.0, 3.0, 3.0, 3.0], (5, 1)), "b": BASELINE}
    statement = TrainingStatement("experiments.x", "a beats b", "faster", "a", "b", "loss")
    steps = {"a": STEPS, "b": STEPS}
    assert statement.compare(steps, curves).finding == "SUPPORTED"
    assert statement.compare(steps, {"a": curves["b"], "b": curves["a"]}).finding == "REFUTED"


def test_ten_times_the_steps_of_one_arm_turn_a_statement_round():
    curves = {"a": np.tile([5.0, 1.0, 3.0, 3.0, 3.0], (5, 1)), "b": BASELINE}
    statement = TrainingStatement("experiments.x", "a beats b", "faster", "a", "b", "loss")
    assert statement.compare({"a": 10 * STEPS, "b": STEPS}, curves).finding == "REFUTED"
    assert statement.compare({"a": STEPS, "b": STEPS[:3] * 5}, curves | {"b": BASELINE[:, :3]}).median == 10 / 100
    with pytest.raises(ValueError, match="of the same seeds"):
        statement.compare({"a": STEPS, "b": STEPS[:3]}, curves)
