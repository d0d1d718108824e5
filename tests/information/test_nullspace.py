"""The null space that theory predicts is the one that singular values find."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from hypothesis import assume, given, settings, strategies as st
from lngeom._core.numerics import decide_rank

from tests.cases import drawn, numpy_factor, random_configuration


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
