"""Claims about sentences turn when a fault is planted in what they rest on."""

import numpy as np
import pytest
import sklearn.datasets
import sympy as sp
from lngeom import methods as normalizers
from lngeom.claims import Verdict, all_claims, numpy_reference, run
from lngeom.claims.problem import NORMALIZERS
from lngeom.information.reference import by_definition
from lngeom.methods import Statistics
from lngeom.papers.ba2016 import sentences
from lngeom.symbolic.actions import SCALE
from lngeom.symbolic.jacobian import LAYER, along
from lngeom.symbolic.layers import LAYER_NORM, WEIGHT_NORM, Layer
from lngeom.symbolic.proof import Proof, ProofError, equality
from lngeom.symbolic.sums import H, KroneckerDelta, derivative, field, i, mean, n, total

IDS = (
    "statements.gradients_follow_outputs",
    "statements.any_unit_rescaling",
    "statements.gains_scale_blocks",
    "statements.fixed_mean_and_variance",
    "statements.recurrent_grow_or_shrink",
    "statements.units_at_the_boundary",
)


def verdict(id, problem):
    outcome = run(all_claims(id=id)[0], problem)
    assert not outcome.error
    return outcome.verdict


@pytest.mark.parametrize("id", IDS)
def test_they_come_out_as_recorded(problem, id):
    assert verdict(id, problem) is all_claims(id=id)[0].expected


class Coupled(normalizers.WeightNorm):
    """Weight norm by the largest norm of any unit."""

    def statistics(self, weights, inputs):
        found = super().statistics(weights, inputs)
        return Statistics(found.mean, 0.0 * found.scale + found.scale.max())


class Absolute(normalizers.WeightNorm):
    """Weight norm that loses the sign."""

    def __call__(self, weights, inputs):
        return abs(super().__call__(weights, inputs))


@pytest.mark.parametrize(
    ("id", "method", "broken"),
    [
        ("statements.any_unit_rescaling", "wn", Coupled()),
        ("statements.any_unit_rescaling", "wn", Absolute()),
        ("statements.any_unit_rescaling", "bn", normalizers.LayerNorm()),
        ("statements.fixed_mean_and_variance", "ln", normalizers.RMSNorm()),
        ("statements.fixed_mean_and_variance", "ln", normalizers.BatchNorm()),
        ("statements.fixed_mean_and_variance", "bn", normalizers.LayerNorm()),
    ],
)
def test_another_normalizer_turns_them(problem, monkeypatch, id, method, broken):
    monkeypatch.setitem(NORMALIZERS, method, broken)
    assert verdict(id, problem) is not all_claims(id=id)[0].expected


@pytest.mark.parametrize(("method", "other"), [("bn", "ln"), ("wn", "ln"), ("ln", "wn")])
def test_another_reference_turns_the_blocks(problem, monkeypatch, method, other):
    right = numpy_reference.natural_parameters
    swapped = {method: other}
    monkeypatch.setattr(numpy_reference, "natural_parameters", lambda m, p, x: right(swapped.get(m, m), p, x))
    assert verdict("statements.gains_scale_blocks", problem) is not Verdict.CONDITIONAL


def test_weight_blocks_are_those_of_the_fisher_matrix(problem):
    model, params, inputs = problem.small("ln")
    exact = by_definition(model, params, inputs)[: params.weights.size, : params.weights.size]
    assert np.allclose(sentences.weight_blocks("ln", model.family, params, inputs), exact, rtol=1e-7, atol=1e-9)


def test_a_fault_in_the_reference_turns_the_re_scaling(problem, monkeypatch):
    right = numpy_reference.natural_parameters
    monkeypatch.setattr(numpy_reference, "natural_parameters", lambda m, p, x: right("identity", p, x))
    assert verdict("statements.any_unit_rescaling", problem) is not Verdict.CONDITIONAL


@pytest.mark.parametrize("name", sentences.GROWTH)
def test_units_that_saturate_or_weights_of_no_effect_turn_growth(problem, monkeypatch, name):
    monkeypatch.setitem(sentences.GROWTH, name, (np.tanh, lambda a: 1 - np.tanh(a) ** 2))
    assert verdict("statements.recurrent_grow_or_shrink", problem) is not Verdict.CONDITIONAL


def test_tanh_units_that_would_grow_turn_the_condition(problem, monkeypatch):
    monkeypatch.setattr(sentences.np, "tanh", lambda a: 0.5 * a)
    assert verdict("statements.recurrent_grow_or_shrink", problem) is not Verdict.CONDITIONAL


@pytest.mark.parametrize("fault", ["no correlation", "correlation everywhere", "larger changes"])
def test_changes_of_another_kind_turn_the_gradients(problem, monkeypatch, fault):
    right = sentences.changes_of_gradient
    planted = {
        "no correlation": lambda problem, correlated: right(problem, False),
        "correlation everywhere": lambda problem, correlated: right(problem, True),
        "larger changes": lambda problem, correlated: (1.1 if correlated else 1.0) * right(problem, correlated),
    }
    monkeypatch.setattr(sentences, "changes_of_gradient", planted[fault])
    assert verdict("statements.gradients_follow_outputs", problem) is not Verdict.CONDITIONAL


@pytest.mark.parametrize("images", ["noise", "one bright ring"])
def test_images_of_another_kind_turn_the_boundary(problem, monkeypatch, images):
    found = np.random.default_rng(0).uniform(0.0, 16.0, (600, 8, 8))
    if images == "one bright ring":
        found[:, 2:-2, 2:-2] = 0.0
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda **_: (found.reshape(600, 64), None))
    assert verdict("statements.units_at_the_boundary", problem) is not Verdict.CONDITIONAL


def test_false_steps_of_their_proofs_are_refused():
    V, Q, h, c = field("V"), field("Q"), field("h"), field("c")
    rho = sp.Symbol("rho", positive=True)
    negative = Layer(lambda l, d: -SCALE(l) * LAYER.W(l, d), LAYER.X)

    def others(l, d):
        return (1 - KroneckerDelta(l, i)) * V(l, d)

    def own_offset(l):
        return LAYER.a(n, l) + c(l)

    def gram(e, o):
        return total(lambda l: Q(l, e) * Q(l, o), H)

    squared = total(lambda l: total(lambda e: rho * Q(l, e) * h(e), H) ** 2, H)
    form = total(lambda e: total(lambda o: gram(e, o) * h(e) * h(o), H), H)
    for left, right in (
        (WEIGHT_NORM(negative), WEIGHT_NORM(LAYER)),
        (along(LAYER_NORM, others), 0),
        (own_offset(i) - mean(own_offset, H), LAYER_NORM.numerator(LAYER)),
        (squared, rho * form),
        (derivative(lambda t: LAYER.towards(V, t).a(n, i)), LAYER.a(n, i)),
    ):
        with pytest.raises(ProofError):
            Proof("", (equality("", left, right),), name="false")
