"""The commands on approximations run at toy size, and their tables say what was measured."""

import jax
import numpy as np
import pytest
from analysis.measurements import curvature_quality, laplace_digits


@pytest.fixture(autouse=True)
def _promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.thorough
def test_approximations_are_measured_trained_and_not():
    name = "pre, layer norm"
    written = []
    with jax.enable_x64(False):
        rows = curvature_quality.measure(
            curvature_quality.SIZES["toy"], [name], 3, 2, 3, lambda rows: written.append(len(rows))
        )
    assert written == [6, 12]
    error = {(r["trained"], r["approximation"]): r["frobenius"] for r in rows}
    for trained in (False, True):  # no block-diagonal matrix is nearer to F than its own blocks
        assert all(0 < error[trained, "exact blocks"] <= e * 1.05 for (t, _), e in error.items() if t == trained)
    assert curvature_quality.page(rows).count(f"| {name} |") == 12


def test_a_chain_is_followed():
    transitions = np.array([[0.0, 1.0], [1.0, 0.0]])
    tokens = curvature_quality.sequences(transitions, 3, 5, np.random.default_rng(0))
    assert np.all(np.abs(np.diff(tokens, axis=1)) == 1)


def test_evidence_on_digits_changes_by_re_scaling_without_the_gauge_alone():
    rows = laplace_digits.rows_of(0, 4, 5, 0.2, "ekfac", 20)
    evidence = {(r["posterior"], r["factor"]): r["log evidence"] for r in rows if r.get("tau") == "1"}
    assert evidence["gauge out", 1] == pytest.approx(evidence["gauge out", 10], rel=1e-9)
    assert abs(evidence["plain", 1] - evidence["plain", 10]) > 1
    assert laplace_digits.page(rows).count("| gauge out |") == 4


def test_calibration_is_zero_where_confidence_is_accuracy():
    y = np.array([0, 0, 1, 1])
    p = np.tile([0.5, 0.5], (4, 1)) + np.array([[1e-9, -1e-9]])
    assert laplace_digits.calibration(p, y) < 1e-6
    assert laplace_digits.calibration(np.eye(2)[1 - y] * 0.9 + 0.05, y) == pytest.approx(0.95)
