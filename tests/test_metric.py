import jax
import jax.numpy as jnp
import lngeom as lg
import pytest
from lngeom._core.numerics import agreement
from lngeom.information import metric, reference

from tests.cases import drawn

X = drawn(0, 40, 4)


def case(normalizer, family):
    model = lg.NormalizedGLM(normalizer, family)
    params = model.init(jax.random.key(1), inputs=4, outputs=3)
    return model, lg.GLMParameters(params.weights, params.bias + 0.2, params.gain), X


@pytest.mark.parametrize("family", [lg.families.Bernoulli(), lg.families.Categorical(), lg.families.Gaussian(2.0)])
@pytest.mark.parametrize(
    "normalizer", [lg.normalizers.BatchNorm(), lg.normalizers.LayerNorm(), lg.normalizers.WeightNorm()]
)
def test_gain_is_the_fisher_matrix_along_the_gains(normalizer, family):
    model, params, inputs = case(normalizer, family)
    delta = jnp.array([0.3, -0.2, 0.5])
    tangent = jnp.concatenate([jnp.zeros(15), delta])
    exact = metric.ds2(reference.by_definition(model, params, inputs), tangent)
    assert agreement(metric.gain(model, params, inputs, delta), exact).agrees


def test_equation_32_as_printed_is_wrong_for_logistic_and_right_for_gaussian_responses():
    delta = jnp.array([0.3, 0.0, 0.0])
    for family, right in ((lg.families.Bernoulli(), False), (lg.families.Gaussian(), True)):
        args = (*case(lg.normalizers.BatchNorm(), family), delta)
        assert agreement(metric.gain(*args), metric.gain(*args, method="printed")).agrees is right


def test_magnitude_is_the_fisher_matrix_along_the_weights():
    for family in (lg.families.Poisson(), lg.families.Categorical()):
        model, params, inputs = case(lg.normalizers.Identity(), family)
        delta = jnp.array([0.3, 0.0, -0.6])
        unit = params.weights / jnp.linalg.norm(params.weights, axis=1, keepdims=True)
        tangent = jnp.concatenate([(delta[:, None] * unit).reshape(-1), jnp.zeros(6)])
        exact = metric.ds2(reference.by_definition(model, params, inputs), tangent)
        assert agreement(metric.magnitude(model, params, inputs, delta), exact).agrees
        printed = metric.magnitude(model, params, inputs, delta, method="printed")
        assert agreement(printed, exact).differs
        alone = sum(metric.magnitude(model, params, inputs, part) for part in (delta.at[0].set(0), delta.at[2].set(0)))
        assert float(2 * printed) == pytest.approx(float(exact - alone), rel=1e-3, abs=1e-7)  # one of two cross terms


def test_a_line_element_is_half_the_quadratic_form_of_an_operator_and_of_a_matrix():
    F, delta = lg.fisher(*case(lg.normalizers.LayerNorm(), lg.families.Bernoulli())), jnp.cos(jnp.arange(18.0))
    matrix = F.as_matrix()
    for form in (F, matrix):
        assert agreement(metric.ds2(form, delta), delta @ matrix @ delta / 2).agrees


def test_bad_input_is_named():
    identity = case(lg.normalizers.Identity(), lg.families.Poisson())
    with pytest.raises(ValueError, match="'exact' or 'printed'; got 'wrong'"):
        metric.gain(*identity, jnp.ones(3), method="wrong")
    with pytest.raises(ValueError, match="got 3 nonzero entries"):
        metric.magnitude(*identity, jnp.ones(3), method="printed")
    with pytest.raises(ValueError, match="standard GLM"):
        metric.magnitude(*case(lg.normalizers.LayerNorm(), lg.families.Poisson()), jnp.ones(3))
