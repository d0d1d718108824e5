"""A method of one's own is proved or refuted like those of the library."""

import lngeom as lg
import pytest
import sympy as sp
from lngeom.methods.transformations import columns
from lngeom.symbolic import Counterexample, Proof, method, prove, sums
from lngeom.symbolic.proof import ProofError

COLUMNS = [
    lg.transformations.WEIGHT_MATRIX_RESCALING,
    lg.transformations.WEIGHT_MATRIX_RECENTERING,
    lg.transformations.WEIGHT_VECTOR_RESCALING,
    lg.transformations.SINGLE_CASE_RESCALING,
    columns.WEIGHT_SIGN_FLIP,
    columns.BATCH_INDEPENDENCE,
]


def largest_deviation(a):
    centred = a - a.mean()
    return centred / abs(centred).max()


def by_l1_of_weights(a, w):
    return a / abs(w).sum()


def by_mean_deviation_of_the_batch(a):
    centred = a - a.mean(axis="samples")
    return centred / abs(centred).mean(axis="samples")


METHODS = {  # formula, and in which of the columns it is invariant
    "L1": ("a / mean(abs(a))", "100101"),
    "fourth power": ("a / mean(a**4)**0.25", "100101"),
    "largest deviation": (largest_deviation, "110101"),
    "range": ("(a - min(a)) / (max(a) - min(a))", "110101"),
    "tanh": ("tanh((a - mean(a)) / sqrt(var(a) + eps))", "110101"),
    "layer norm": ("(a - mean(a)) / std(a)", "110101"),
    "positive part": ("maximum(a - mean(a), 0*a) / std(a)", "110101"),
    "weights": (by_l1_of_weights, "101001"),
    "batch": (by_mean_deviation_of_the_batch, "101000"),
    "plain tanh": ("tanh(a)", "000001"),
    "softly": ("a / (1 + abs(a))", "000001"),
}


@pytest.mark.parametrize("name", METHODS)
def test_each_cell_is_proved_or_refuted(name):
    formula, expected = METHODS[name]
    own = method(formula, name)
    found = [prove(own, column) for column in COLUMNS]
    assert "".join(str(int(isinstance(evidence, Proof))) for evidence in found) == expected
    for evidence in found:
        evidence.check()
        assert isinstance(evidence, Proof) or evidence.left != evidence.right


def test_own_formulas_agree_with_the_table():
    for formula, known in (
        ("(a - mean(a)) / sqrt(var(a) + eps)", "LayerNorm"),
        ("a / sqrt(mean(a**2) + eps)", "RMSNorm"),
    ):
        own = method(formula)
        for column in COLUMNS:
            assert type(prove(own, column)) is type(prove(known, column)), (known, column.name)


def test_a_sign_flip_that_flips_the_output_is_corrected():
    evidence = prove(method("a / max(abs(a))"), "weight_sign_flip")
    assert isinstance(evidence, Counterexample)
    assert evidence.correction is not None


def test_a_false_rule_of_the_normal_form_is_seen(monkeypatch):
    """A maximum from which any factor is taken: the explicit loops disagree."""
    own = method("max(a)")
    monkeypatch.setattr(sums, "_positive_factor", lambda form, index=None: (sp.Integer(1), 0 * form + 1))
    monkeypatch.setattr("lngeom.symbolic.table.changes_somewhere", lambda *_: False)
    with pytest.raises(ProofError, match="explicit loops"):
        prove(own, lg.transformations.SINGLE_CASE_RESCALING)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("a.mean()", "a formula holds a, w, x, eps, numbers, .*; got 'a.mean\\(\\)'"),
        ("__import__('os')", "got \"__import__\\('os'\\)\""),
        ("a / w", r"the formula must give outputs \[samples, units\]; got \['inputs', 'samples', 'units'\]"),
        ("mean(a, axis='inputs')", "has none called 'inputs'"),
        (lambda a, b: a, r"a formula is a function of a, w, x, eps; got \['b'\]"),
    ],
)
def test_a_formula_that_is_none_is_named(formula, message):
    with pytest.raises(ValueError, match=message):
        method(formula)
