"""How blocks of the Fisher matrix scale with one row and with all rows: planted falsehoods are refused."""

import jax
import pytest
import sympy as sp
from lngeom.claims import Problem, Verdict, all_claims, run
from lngeom.claims.problem import TITLES
from lngeom.papers.ba2016 import scaling
from lngeom.papers.ba2016.fisher import weight_blocks
from lngeom.papers.ba2016.lg_fisher import SMALL
from lngeom.papers.ba2016.scaling import first_row_times, no_power_law, own_entry, quarter
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM
from lngeom.symbolic.proof import ProofError, matrix

PAIR = {"W": matrix([[1, 1], [1, -1]]), "X": matrix([[1, 0], [0, 1], [0, 0]])}


@pytest.mark.parametrize("method", [BATCH_NORM, WEIGHT_NORM])
def test_one_row_of_batch_and_weight_norm_follows_the_inverse_square(method):
    before = own_entry(method, PAIR["W"], PAIR["X"])
    for c in (2, 3):
        assert own_entry(method, first_row_times(c, PAIR["W"]), PAIR["X"]) == before / c**2
    with pytest.raises(ProofError, match="not a counterexample"):
        scaling.Counterexample("planted", "", PAIR, lambda v: (before / 4, own_entry(method, 2 * v["W"], v["X"])))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("id", "methods"), [("scaling.unit", ("bn", "wn")), ("scaling.matrix", tuple(scaling.METHODS))]
)
def test_a_wrong_power_is_seen_under_every_method(id, methods, monkeypatch):
    problem, right = Problem(jax.random.normal(jax.random.key(0), (40, 6)), seed=1), scaling.predicted
    (law,) = all_claims(id=id)
    assert run(law, problem).verdict is Verdict.HOLDS
    monkeypatch.setattr(scaling, "predicted", lambda F, p, c, unit=None: right(F, p, c**0.5, unit))
    found = [e.description for e in run(law, problem).evidence if e.contradicts]
    assert found == [
        f"{TITLES[m]}, {where}" for m in methods for where in ("softmax, by definition", "data, closed form")
    ]


def test_the_entry_by_derivatives_is_that_of_the_jacobian():
    assert own_entry(LAYER_NORM, SMALL["W"], SMALL["x"]) == weight_blocks(SMALL["W"] * SMALL["x"])[0]


@pytest.mark.parametrize("method", [LAYER_NORM, RMS_NORM])
def test_a_single_row_of_layer_or_rms_norm_scaled_alone_is_refused(method):
    with pytest.raises(ProofError, match="w_i → c_i w_i keeps outputs"):
        quarter((method,))


def test_a_power_law_of_all_rows_is_no_counterexample(monkeypatch):
    monkeypatch.setattr(scaling, "first_row_times", lambda c, W: sp.Integer(c) * W)
    with pytest.raises(ProofError, match="not a counterexample"):
        no_power_law(LAYER_NORM)
