"""The suite says what is so: of the library's own normalizers, and of layers that are deliberately wrong."""

import functools

import lngeom as lg
import numpy as np
import pytest
from lngeom.checks.findings import Verdict
from lngeom.claims.paper import TABLE1

from tests.checks import broken

pytestmark = pytest.mark.thorough


SCALINGS = ("weight_matrix_rescaling", "dataset_rescaling", "single_case_rescaling")


@functools.cache
def report(layer, like=None, **options):
    return lg.check_invariances(layer, like=like, **options)


def run(code, layer):
    exec(code, {"layer": layer})


def fails_as_written(result, layer):
    """The counterexample's code fails on the layer, whose numbers are small and whole."""
    example = result.counterexample
    assert example is not None
    for values in (example.weights, example.inputs):
        np.testing.assert_array_equal(values, np.round(values))
        assert np.abs(values).max() <= 4
        assert values.size <= 12
    with pytest.raises(AssertionError):
        run(example.code, layer)


@pytest.mark.parametrize(
    ("normalizer", "like"),
    [(lg.normalizers.LayerNorm, "layer"), (lg.normalizers.BatchNorm, "batch"), (lg.normalizers.WeightNorm, "weight")],
)
def test_the_printed_table_is_found_again(normalizer, like):
    found = report(normalizer, like=like)
    assert not found.differences
    says = TABLE1[{"layer": "ln", "batch": "bn", "weight": "wn"}[like]]
    for name, invariant in says.items():
        assert (found[name].verdict in {Verdict.INVARIANT, Verdict.LOST}) == invariant, name
    assert found["weight_sign_flip"].verdict is Verdict.FLIPS
    assert (found["batch_independence"].verdict is Verdict.INVARIANT) == (like != "batch")


def test_every_no_comes_with_a_counterexample_that_fails_as_written():
    found = report(lg.normalizers.LayerNorm, like="layer")
    for result in found.results:
        assert (result.counterexample is not None) == (result.verdict in {Verdict.NOT, Verdict.LOST})
        if result.verdict is Verdict.NOT:
            fails_as_written(result, lg.normalizers.LayerNorm)


@pytest.mark.parametrize("name", ["ln_pooled", "residual_ln", "pre_bn"])
def test_a_row_of_the_extended_table_is_found_again(name):
    """All of them are: see `lngeom.normalizers.METHODS`; three are enough to hold the kinds of data."""
    method = lg.normalizers.METHODS[name]
    example = method.make(np.eye(6), np.eye(6)[:, None])
    found = report(type(example), like=name)
    assert not found.differences, str(found)
    assert len(found.results) == 21


@pytest.mark.parametrize(
    ("layer", "name", "verdict"),
    [
        (broken.variance_from_the_wrong_axis, "weight_matrix_recentering", Verdict.NOT),
        (broken.variance_from_the_wrong_axis, "single_case_rescaling", Verdict.NOT),
        (broken.statistics_frozen, "weight_matrix_rescaling", Verdict.NOT),
        (broken.bias_before_the_norm, "weight_matrix_rescaling", Verdict.NOT),
        (broken.bias_before_the_norm, "unit_permutations", Verdict.NOT),
        (broken.bfloat16_statistics, "weight_matrix_rescaling", Verdict.LOST),
        (broken.leakage_of_one_row, "batch_independence", Verdict.NOT),
        (broken.dynamic_tanh, "weight_matrix_rescaling", Verdict.NOT),
    ],
)
def test_a_broken_layer_is_caught_with_a_counterexample(layer, name, verdict):
    found = report(layer, like="layer")
    assert name in dict(found.differences)
    assert found[name].verdict is verdict
    fails_as_written(found[name], layer)
    assert found[name].title in str(found)
    code = found[name].counterexample.code.rstrip()
    assert code in found.to_text(counterexamples=True)
    assert code not in str(found)


def test_a_missing_eps_is_caught_with_a_counterexample():
    found = report(broken.missing_eps)
    finding = next(f for f in found.findings if f.name == "not finite at zero variance")
    with pytest.raises(AssertionError):
        run(finding.code, broken.missing_eps)
    run(finding.code.replace("missing_eps", "layer_norm"), broken.layer_norm)
    assert not report(broken.layer_norm).findings


def test_a_constant_added_before_the_norm_is_told_from_eps():
    assert "does not scale with the data" in report(broken.bias_before_the_norm, like="layer")["dataset_rescaling"].note


@pytest.mark.parametrize("name", SCALINGS)
def test_eps_is_recognized_by_its_law(name):
    found = report(broken.layer_norm)[name]
    assert found.verdict is Verdict.UP_TO_EPS
    low, high = found.holds
    assert 1e-2 < low < 1 < 1e17 < high
    curve = (found.curve.magnitudes, found.curve.deviations, found.curve.predicted)
    below = [(d, p) for m, d, p in zip(*curve, strict=True) if m < 1]
    np.testing.assert_allclose(*np.transpose(below), atol=1e-3)
    assert max(d for d, _ in below) > 0.5
    assert found.as_expected("I")
    assert found.as_expected("no")
    assert not report(broken.missing_eps)[name].as_expected("no")


def test_the_ratio_of_eps_to_the_variance_is_measured():
    suite = lg.checks.suite.Suite(lg.checks.adapt(broken.layer_norm))
    variance = (suite.data.inputs @ suite.data.weights.T).var(-1).min()
    assert report(broken.layer_norm)["weight_matrix_rescaling"].eps_ratio == pytest.approx(1e-5 / variance, rel=1e-3)


def test_one_pass_variance_loses_recentering_to_rounding_sooner_than_two():
    one, two = (report(layer)["weight_matrix_recentering"] for layer in (broken.one_pass_variance, broken.layer_norm))
    exact = lg.check_invariances(lg.nn.LayerNorm(6, exact=True))["weight_matrix_recentering"]
    assert one.verdict is two.verdict is Verdict.LOST
    assert "E[a²] − E[a]²" in one.note
    assert "κu" in two.note
    assert one.holds[1] < two.holds[1] / 10
    assert exact.verdict is Verdict.INVARIANT
    assert exact.holds[1] == exact.curve.magnitudes[-1] > 4 * two.holds[1]


def test_the_exact_layer_keeps_every_scaling_from_1e_minus_17_to_1e18():
    for layer, names in (
        (lg.nn.LayerNorm(6, exact=True), SCALINGS),
        (lg.nn.RMSNorm(6, exact=True), SCALINGS),
        (lg.nn.BatchNorm(6, exact=True), (*SCALINGS[:2], "weight_vector_rescaling")),
    ):
        found = lg.check_invariances(layer)
        for name in names:
            assert found[name].verdict is Verdict.INVARIANT
            assert found[name].deviation < 1e-6
            assert found[name].holds[0] < 1.1e-17
            assert found[name].holds[1] > 8e17
        assert not found.findings


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_give_the_same_verdicts(dtype):
    found = lg.check_invariances(lg.nn.LayerNorm(6, exact=True), like="layer", dtype=dtype)
    assert not found.differences
    assert found.dtype == dtype


@pytest.mark.parametrize(
    ("layer", "finding"),
    [
        (broken.raises, "raises"),
        (broken.wrong_shape, "wrong shape"),
        (broken.returns_a_pair, "wrong shape"),
        (broken.returns_integers, "not an array"),
        (broken.not_a_number, "not finite"),
        (broken.writes_to_its_input, "writes to its input"),
        (broken.never_the_same, "not deterministic"),
        (broken.constant, "constant"),
    ],
)
def test_what_else_is_wrong_is_a_finding(layer, finding):
    found = report(layer)
    assert finding in {f.name for f in found.findings}
    assert finding in str(found)


def test_a_layer_that_raises_now_and_then_leaves_the_rest_to_be_checked():
    found = report(broken.raises_on_large)
    assert found["weight_matrix_rescaling"].verdict is Verdict.UNKNOWN
    assert "too large" in found["weight_matrix_rescaling"].note
    assert (
        found["weight_vector_rescaling"].verdict is not Verdict.UNKNOWN
        or found["weight_sign_flip"].verdict is Verdict.FLIPS
    )


def test_the_counterexample_of_a_wide_layer_is_short_too():
    layer = lg.nn.LayerNorm(96, exact=True)
    example = lg.check_invariances(layer)["weight_vector_rescaling"].counterexample
    assert example.weights.shape == (96, 3)
    assert len(example.code) < 1500
    with pytest.raises(AssertionError):
        run(example.code, layer)


def test_a_change_of_basis_is_refuted_by_a_readable_matrix():
    found = report(lg.normalizers.WeightNorm)["input_basis_changes"]
    assert "moved_W = np.linalg.solve(A.T, W.T).T" in found.counterexample.code
    assert "moved_X = X @ A.T" in found.counterexample.code
    fails_as_written(found, lg.normalizers.WeightNorm)


def test_an_orthogonal_map_of_many_units_is_written_by_the_two_that_it_mixes():
    layer = lg.nn.LayerNorm(64, exact=True)
    code = lg.check_invariances(layer)["unit_rotations"].counterexample.code
    assert "Q = np.eye(64)\nQ[:2, :2] = [[0.6, -0.8], [0.8, 0.6]]\nmoved_W = Q @ W\n" in code
    with pytest.raises(AssertionError):
        run(code, layer)


def test_an_equivariance_is_refuted_by_a_readable_matrix():
    found = report(lg.normalizers.BatchNorm)["unit_rotations_fixing_one"]
    assert found.verdict is Verdict.NOT
    assert "moved_W = Q @ W" in found.counterexample.code
    assert "np.testing.assert_allclose(after, before @ Q.T" in found.counterexample.code
    fails_as_written(found, lg.normalizers.BatchNorm)
    assert report(lg.normalizers.RMSNorm)["unit_rotations"].verdict is Verdict.INVARIANT


def test_digits_lost_inside_are_not_taken_for_a_broken_invariance():
    found = report(broken.float32_inside, "layer")
    assert not found.differences
    assert found["weight_matrix_rescaling"].verdict is Verdict.UP_TO_EPS
    names = {
        dtype: {f.name for f in report(broken.float32_inside, dtype=dtype).findings} for dtype in ("float32", "float64")
    }
    assert "fewer digits" in names["float64"] - names["float32"]
    honest = lambda a: (a - a.mean(-1, keepdims=True)) / (a.var(-1, keepdims=True) + 1e-3) ** 0.5  # noqa: E731
    assert "fewer digits" not in {f.name for f in lg.check_invariances(honest, dtype="float64").findings}
