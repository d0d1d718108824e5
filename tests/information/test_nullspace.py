"""The null space that theory predicts is the one that singular values find."""

import collections
import itertools
import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from lngeom._core.numerics import decide_rank
from lngeom.information import nullspace_theorem as theorem
from lngeom.symbolic.layers import BATCH_NORM, IDENTITY, LAYER_NORM, RMS_NORM, WEIGHT_NORM
from lngeom.symbolic.modular import PRIME, jacobian_rows, random_layer, rank

from tests.cases import Configuration, drawn, numpy_factor, random_configuration, special_configuration


def measured_nullity(configuration) -> tuple[int, np.ndarray]:
    factor, cancelled = numpy_factor(configuration.model, configuration.params, configuration.inputs)
    values = np.linalg.svd(factor, compute_uv=False)
    return factor.shape[1] - decide_rank(values, *factor.shape, scale=cancelled).rank, factor


def has_variance(case) -> bool:
    """Whether every σ is positive; what a σ of zero raises is tested with the GLM."""
    try:
        case.model.normalized(case.params, jnp.asarray(case.inputs))
    except ValueError as error:
        if "zero variance" in str(error):
            return False
        raise
    return True


def disagreement(case, model=None) -> str | None:
    """What is wrong with the prediction for a configuration (by another model's theory, if given), or None."""
    predicted = lg.predicted_nullspace(model or case.model, case.params, jnp.asarray(case.inputs))
    nullity, factor = measured_nullity(case)
    moved = np.abs(factor @ predicted.basis).max(initial=0.0) / max(np.abs(factor).max(), 1e-300)
    right = predicted.dimension == nullity if predicted.exact else predicted.dimension <= nullity
    if right and moved <= 1e-8:
        return None
    failing = [c.name for c in predicted.conditions if not c.holds]
    return f"{case.name}: predicted {predicted.dimension}, measured {nullity}, moved {moved:.1e} {failing}"


@settings(max_examples=250)
@given(st.integers(0, 2**32 - 1))
def test_predicted_dimension_is_measured_in_every_regime(seed):
    case = random_configuration(np.random.default_rng(seed))
    assume(has_variance(case))
    wrong = disagreement(case)
    assert not wrong, wrong


@settings(max_examples=250)
@given(st.integers(0, 2**32 - 1))
def test_exact_is_never_said_falsely_at_singular_points_and_on_special_data(seed):
    case = special_configuration(np.random.default_rng(seed))
    assume(has_variance(case))
    wrong = disagreement(case)
    assert not wrong, wrong


@pytest.mark.parametrize("samples", [3, 5])
def test_part_of_the_data_with_few_samples_makes_the_prediction_a_bound(samples):
    """Four samples in three dimensions, beside a hundred in three others: at H = 3 they leave one direction more."""
    X = np.zeros((100 + samples, 6))
    X[:100, :3], X[100:, 3:] = drawn(1, 100, 3), np.concatenate([np.eye(3), drawn(2, samples - 3, 3)])
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    case = Configuration("parts", model, model.init(jax.random.key(0), inputs=6, outputs=3), X)
    assert not disagreement(case)
    assert lg.predicted_nullspace(model, case.params, jnp.asarray(X)).exact == (samples == 3)


def test_the_theorem_counts_what_is_predicted_family_by_family():
    """At generic points, and with zero gains, by the names of its families."""
    rng = np.random.default_rng(0)
    for coupling, normalizer in (
        ("unit by unit", lg.normalizers.BatchNorm),
        ("centred groups", lg.normalizers.LayerNorm),
        ("groups", lg.normalizers.RMSNorm),
    ):
        for softmax, eps, zeros, (H, D) in itertools.product((False, True), (0.0, 0.1), (0, 1, 3), ((5, 2), (11, 2))):
            cell = theorem.cell_of(coupling, softmax=softmax, eps=eps)
            family = lg.families.Categorical() if softmax else lg.families.Bernoulli()
            gain = np.where(np.arange(H) < zeros, 0.0, rng.uniform(0.5, 1.5, H))
            params = lg.GLMParameters(*map(jnp.asarray, (rng.normal(size=(H, D)), rng.normal(size=H), gain)))
            model, X = lg.NormalizedGLM(normalizer(eps=eps), family), jnp.asarray(rng.normal(size=(300, D)))
            predicted, found = lg.predicted_nullspace(model, params, X), collections.Counter()
            for name, count in predicted.directions:
                found[name] += count
            assert predicted.exact
            assert +found == +collections.Counter(cell.counts(H, D, zero_gains=zeros)), (cell, zeros, H, D)


def test_the_printed_formula_of_each_cell_is_its_dimension():
    for cell in theorem.CELLS.values():
        plain = re.sub(r"(?<=[HDr0-9])\(", "*(", cell.latex.replace("\\max", "max ")).replace("max *(", "max (")
        for H, D in itertools.product(range(3, 14), range(2, 6)):
            rank = D if cell.coupling == "unit by unit" else min(D, H - cell.centred)
            assert eval(plain, {"max": max, "H": H, "D": D, "r": rank}) == cell.dimension(H, D), (cell, H, D)


FIELD = {
    "unit by unit": (BATCH_NORM, WEIGHT_NORM, IDENTITY),
    "centred groups": (LAYER_NORM,),
    "groups": (RMS_NORM,),
}


def exact_nullity(method, H, D, rng, *, data, zero_gains, weights, softmax, eps) -> int:
    """H(D + 2) minus the rank of the Jacobian over a prime field."""
    draw = random.Random(int(rng.integers(2**32)))
    layer = random_layer(method, H, D, cases=D * (D + 1) * (D + 2) // 6 + 4 * H * D + 8, draw=draw, eps=5 * eps)
    layer.gain[:zero_gains] = 0
    layer.inputs[:, data:] = layer.inputs[:, :1]
    if weights == 1:
        column, row, shift = layer.weights[:, :1].copy(), layer.weights[:1].copy(), layer.weights[1:2].copy()
        layer.weights[:] = (column * row + (shift if method is LAYER_NORM else 0)) % PRIME
    return H * (D + 2) - rank(jacobian_rows(layer, softmax=softmax))


def compare_with_exact_ranks(units, inputs) -> int:
    """Compares every cell with exact ranks, also on deficient data, at zero gains and rank one; returns how many."""
    rng, compared = np.random.default_rng(0), 0
    for (coupling, softmax, eps), cell in theorem.CELLS.items():
        for method in FIELD[coupling][: 1 if eps else None]:
            grid = itertools.product(units, inputs, (0, 1), range(max(units) + 1), (None, 1))
            for H, D, missing, zero_gains, weights in grid:
                given: dict[str, Any] = {"data": D - missing, "zero_gains": zero_gains, "weights": weights}
                if zero_gains > H or (coupling == "unit by unit" and weights):
                    continue
                try:
                    counted = cell.dimension(H, D, **given)
                except ValueError:  # the theorem counts nothing there
                    continue
                found = exact_nullity(method, H, D, rng, **given, softmax=softmax, eps=eps)
                assert counted == found, (method.name, cell, H, D, given)
                compared += 1
    return compared


def test_every_cell_of_the_theorem_is_the_exact_rank():
    assert compare_with_exact_ranks((2, 3, 4), (2, 3)) > 300


@pytest.mark.thorough
def test_every_cell_of_the_theorem_is_the_exact_rank_at_more_sizes():
    assert compare_with_exact_ranks((5, 7), (1, 3)) > 300


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": 0}, "data of rank 1 to 3"),
        ({"zero_gains": 1, "weights": 1}, "no generic count"),
        ({"weights": 4}, "no generic count"),
    ],
)
def test_sizes_that_the_theorem_does_not_count_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        theorem.cell_of("centred groups").dimension(5, 3, **given)
    with pytest.raises(ValueError, match="softmax of one class"):
        theorem.cell_of("groups", softmax=True).dimension(1, 3)


def test_a_wrong_theorem_is_seen(monkeypatch):
    right = theorem.trades
    monkeypatch.setattr(theorem, "trades", lambda *a, **k: right(*a, **k) + (k["softmax"] and not k["centred"]))
    with pytest.raises(AssertionError, match="softmax=True"):
        compare_with_exact_ranks((3,), (2,))
    with pytest.raises(AssertionError, match="groups"):
        test_the_theorem_counts_what_is_predicted_family_by_family()


def test_the_conditions_of_exactness_hold_for_most_and_a_wrong_theory_is_seen():
    rng = np.random.default_rng(0)
    cases = [random_configuration(rng) for _ in range(40)]
    plain = [c for c in cases if isinstance(c.model.normalizer, lg.normalizers.Identity | lg.normalizers.WeightNorm)]
    assert len(plain) > 5
    other = [lg.NormalizedGLM(lg.normalizers.RMSNorm(), c.model.family) for c in plain]
    assert sum(disagreement(c, m) is not None for c, m in zip(plain, other, strict=True)) > len(plain) // 2
    exact = [lg.predicted_nullspace(c.model, c.params, jnp.asarray(c.inputs)).exact for c in plain]
    assert sum(exact) > len(plain) // 2


def test_few_samples_make_the_prediction_a_bound_and_limit_what_is_seen():
    """Weights move a sample's n within a space of dimension H − 2: at H = 4, D = 6, N = 7 the rank is 22."""
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    few = lg.predicted_nullspace(model, model.init(jax.random.key(0), inputs=4, outputs=6), drawn(1, 5, 4))
    assert not few.exact
    params, inputs = model.init(jax.random.key(0), inputs=6, outputs=4), drawn(1, 7, 6)
    predicted = lg.predicted_nullspace(model, params, inputs)
    assert params.size - predicted.dimension == 22
    assert lg.fisher(model, params, inputs).rank() == 22


@pytest.mark.parametrize("normalizer", [lg.normalizers.LayerNorm(), lg.normalizers.RMSNorm()])
@pytest.mark.parametrize(
    ("size", "doubt"), [(1e5, "the equations of trades"), (1e6, "σ is linear in x on the data up to")]
)
def test_badly_scaled_data_make_the_prediction_uncertain_and_no_direction_is_made_up(normalizer, size, doubt):
    """With a large third column σ is nearly linear in x; biases would trade if it were."""
    x = np.arange(1.0, 20.0)
    X = np.stack([x, x**2, size * (x + 1)], 1)
    X = jnp.asarray(X / np.sqrt(np.mean(X**2)))
    model = lg.NormalizedGLM(normalizer, lg.families.Categorical())
    params = model.init(jax.random.key(0), inputs=3, outputs=10)
    predicted = lg.predicted_nullspace(model, params, X)
    assert not predicted.exact
    assert any(doubt in line for line in predicted.doubts)
    assert f"uncertain: {predicted.doubts[0]}" in predicted.describe()
    assert "uncertain" in repr(predicted)
    well = lg.predicted_nullspace(model, params, X / jnp.array([[1, 1, size]]))
    assert predicted.dimension == well.dimension == 10
    assert not well.doubts


def test_inputs_whose_rank_is_in_doubt_make_no_exact_prediction():
    """Batch norm in float32 of columns x and 10⁵ (x + 1): their sum with a constant is 0 up to rounding."""
    x = np.arange(1.0, 20.0)
    X = np.stack([x, x**2, 1e5 * (x + 1)], 1)
    X = X / np.sqrt(np.mean(X**2))
    model = lg.NormalizedGLM(lg.normalizers.BatchNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    exact = lg.predicted_nullspace(model, params, jnp.asarray(X))
    assert exact.exact
    assert exact.dimension == 8
    rounded = lg.predicted_nullspace(model, params, jnp.asarray(X.astype(np.float32), float))
    assert not rounded.exact
    assert any("the inputs with a constant column have rank 3 to 4" in doubt for doubt in rounded.doubts)
