"""Every route to the Fisher matrix gives one matrix, and a broken route does not."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from lngeom._core.numerics import agreement
from lngeom.information import _closed_form, reference
from lngeom.methods import METHODS

from tests.cases import FAMILIES, drawn, normalizers

NORMALIZERS = ("identity", "batch", "batch_evaluation", "weight", "layer", "rms", "group2", "group3")

dense = eqx.filter_jit(_closed_form.dense)


@eqx.filter_jit
def two_routes(model, params, X):
    """The matrix in closed form and by definition."""
    return _closed_form.dense(model, params, X), reference.by_definition(model, params, X)


@eqx.filter_jit
def three_routes(model, params, X, chunk):
    """The same, in chunks, and a factor of it: one program for each method, family and shape."""
    factor = reference.factor(model, params, X)
    return _closed_form.dense(model, params, X, chunk), reference.by_definition(model, params, X), factor


def case(normalizer: str, family: str, shape=(30, 5, 6), eps: float = 0.0):
    """A model with gains and biases away from 1 and 0, and data with a constant-zero pixel."""
    samples, inputs, units = shape
    model = lg.NormalizedGLM(normalizers(units, inputs, eps)[normalizer], FAMILIES[family])
    params = model.init(jax.random.key(1), inputs=inputs, outputs=units)
    rng = np.random.default_rng(2)
    gain, bias = params.gain * rng.uniform(0.6, 1.2, units), params.bias - rng.uniform(0, 0.4, units)
    X = drawn(0, samples, inputs).at[:, inputs // 2].set(0.0)
    return model, lg.GLMParameters(params.weights, bias, gain), X


@cache
def routes(normalizer: str, family: str) -> tuple[np.ndarray, ...]:
    """The three routes of a case."""
    return tuple(map(np.asarray, three_routes(*case(normalizer, family), chunk=8)))


def definition(normalizer: str, family: str) -> np.ndarray:
    """The matrix of a case by definition."""
    return routes(normalizer, family)[1]


def test_the_names_are_those_of_all_normalizers():
    assert tuple(normalizers(6, 5)) == NORMALIZERS


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_closed_form_is_the_definition(normalizer, family):
    model, params, X = case(normalizer, family)
    closed, exact, factor = routes(normalizer, family)
    assert agreement(closed, exact, tol=1e-12).agrees
    v = drawn(5, params.size)
    product = ravel_pytree(lg.fisher(model, params, X).mv(ravel_pytree(params)[1](v)))[0]
    assert agreement(product, exact @ v, tol=1e-12).agrees
    assert agreement(factor.T @ factor, exact, tol=1e-12).agrees


@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 1, 5), (40, 7, 3), (25, 2, 12), (9, 20, 4)])
@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("normalizer", ["layer", "rms", "weight", "identity"])
def test_closed_form_is_the_definition_at_every_size(normalizer, eps, shape):
    for family in ("bernoulli", "categorical"):
        model, params, X = case(normalizer, family, shape)
        model = eqx.tree_at(lambda m: m.normalizer.eps, model, jnp.asarray(eps))  # one program for every ε
        assert agreement(*two_routes(model, params, X + 0.1), tol=1e-12).agrees


@pytest.mark.parametrize("normalizer", ["layer", "rms", "group2"])
def test_closed_form_rounds_no_worse_than_summed_inputs_whose_offset_the_weights_cancel(normalizer):
    model, params, X = case(normalizer, "categorical")
    rows = params.weights - jnp.mean(params.weights, 1, keepdims=True)
    params, offset = lg.GLMParameters(rows, params.bias, params.gain), 1000.0
    exact = reference.by_definition(model, params, X + offset)
    tol = 1e-14 * offset  # the precision times |W||x|/σ, and a factor for the sums
    assert agreement(dense(model, params, X + offset), exact, tol=tol).agrees
    assert agreement(dense(model, params, X + 1.01 * offset), exact, tol=tol).differs


@pytest.mark.parametrize("normalizer", ["identity", "batch", "batch_evaluation", "weight"])
def test_the_printed_matrix_is_exact_where_units_do_not_mix(normalizer):
    for family in ("poisson", "categorical"):
        printed = reference.as_printed(*case(normalizer, family))
        assert agreement(printed, definition(normalizer, family), tol=1e-12).agrees


@pytest.mark.parametrize("normalizer", ["layer", "rms", "group2"])
def test_the_printed_matrix_is_not_the_fisher_matrix_of_normalizers_that_mix_units(normalizer):
    model, params, X = case(normalizer, "bernoulli")
    assert agreement(reference.as_printed(model, params, X), reference.by_definition(model, params, X)).differs


def test_printed_chi_of_layer_norm_is_its_closed_form():
    model, params, X = case("layer", "bernoulli")
    n = model.normalized(params, X)
    units = params.units
    closed = X[:, None, :] * (1 - 1 / units - jnp.square(n) / units)[:, :, None]
    assert agreement(reference.chi(model.normalizer, params.weights, X), closed).agrees


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("normalizer", ["layer", "batch"])
def test_finite_divergences_see_the_same_metric(normalizer, family):
    model, params, X = case(normalizer, family)
    exact = definition(normalizer, family)
    for seed in range(3):
        delta = 0.3 * drawn(seed, params.size)
        found = reference.form_from_divergences(model, params, X, delta)
        assert agreement(found, delta @ exact @ delta, tol=1e-6).agrees


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("normalizer", ["layer", "rms", "group2", "weight"])
def test_products_of_the_operator_are_the_definition(normalizer, family):
    model, params, X = case(normalizer, family)
    exact = definition(normalizer, family)
    F = lg.fisher(model, params, X)
    V = drawn(6, params.size, 3)
    assert agreement(F.mm(V), exact @ V, tol=1e-12).agrees
    assert agreement(ravel_pytree(F.mv(F.problem.unravel(V[:, 0])))[0], exact @ V[:, 0], tol=1e-12).agrees
    assert agreement(F @ V[:, 1], exact @ V[:, 1], tol=1e-12).agrees


def test_a_bound_product_is_a_pytree_of_the_operator():
    model, params, X = case("layer", "bernoulli")
    F = lg.fisher(model, params, X)
    product = jax.jit(lambda mv, v: mv(v))(F.mv, params)
    assert agreement(ravel_pytree(product)[0], ravel_pytree(F.mv(params))[0], tol=1e-13).agrees


def test_a_broken_closed_form_is_seen():
    model, params, X = case("layer", "bernoulli")
    wrong = lg.NormalizedGLM(lg.normalizers.RMSNorm(), model.family)
    assert agreement(dense(wrong, params, X), reference.by_definition(model, params, X)).differs


class MeanAbsolute(lg.normalizers.RMSNorm):
    """A user's method: a class of the library with statistics of its own."""

    def statistics(self, weights, inputs):
        a = inputs @ weights.T
        return lg.normalizers.Statistics(0 * a[:, :1], 1 + jnp.mean(jnp.abs(a), 1, keepdims=True))


class OtherCall(lg.normalizers.WeightNorm):
    def __call__(self, weights, inputs):
        return jnp.tanh(super().__call__(weights, inputs))


class OtherModel(lg.NormalizedGLM):
    def natural_parameters(self, params, inputs):
        return jnp.sin(super().natural_parameters(params, inputs))


OTHER = OtherModel(lg.normalizers.LayerNorm(), lg.families.Bernoulli())


@pytest.mark.parametrize(
    "model",
    [
        lg.NormalizedGLM(MeanAbsolute(), lg.families.Bernoulli()),
        lg.NormalizedGLM(OtherCall(), lg.families.Bernoulli()),
        OTHER,
    ],
    ids=["statistics", "call", "natural parameters"],
)
def test_what_a_subclass_replaces_has_no_closed_form(model):
    _, params, X = case("layer", "bernoulli")
    F = lg.fisher(model, params, X)
    assert agreement(F.as_matrix(), reference.by_definition(model, params, X), tol=1e-12).agrees
    other = lg.fisher(model.natural_parameters, params, X, family=model.family)
    assert agreement(F.as_matrix(), other.as_matrix(), tol=1e-12).agrees


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OTHER, "OtherModel has natural parameters of its own"),
        (lg.NormalizedGLM(OtherCall(), lg.families.Bernoulli()), "OtherCall is not one"),
        (lg.NormalizedGLM(METHODS["dyt"].kind(), lg.families.Bernoulli()), "DynamicTanh is not one"),
    ],
    ids=["natural parameters", "call", "no statistics"],
)
def test_a_printed_matrix_is_of_the_form_that_the_paper_states(model, message):
    _, params, X = case("layer", "bernoulli")
    with pytest.raises(ValueError, match=message):
        lg.fisher(model, params, X, method="printed")
    with pytest.raises(ValueError, match=message):
        reference.as_printed(model, params, X)


class Doubled(lg.normalizers.Identity):
    def statistics(self, weights, inputs):
        mean, scale = super().statistics(weights, inputs)
        return lg.normalizers.Statistics(mean, 2 * scale)


def test_statements_about_a_form_refuse_a_subclass_that_replaced_it():
    _, params, X = case("layer", "bernoulli")
    plain = lg.GLMParameters(params.weights, params.bias, jnp.ones(6))
    doubled = lg.NormalizedGLM(Doubled(), lg.families.Bernoulli())
    with pytest.raises(ValueError, match="about the standard GLM"):
        reference.standard_glm(doubled, plain, X)
    with pytest.raises(ValueError, match="about the standard GLM"):
        lg.metric.magnitude(doubled, plain, X, jnp.ones(6))
    for refused in (lg.metric.gain_matrix, lg.predicted_nullspace):
        with pytest.raises(ValueError, match="OtherModel has natural parameters of its own"):
            refused(OTHER, params, X)


def test_a_subclass_is_not_streamed_as_batch_norm():
    _, params, X = case("batch", "bernoulli")
    model = OtherModel(lg.normalizers.BatchNorm(), lg.families.Bernoulli())
    assert agreement(
        lg.fisher(model, params, X).as_matrix(), reference.by_definition(model, params, X), tol=1e-12
    ).agrees
    with pytest.raises(ValueError, match="divided into chunks"):
        lg.fisher(model, params, X, chunk=5)


@pytest.mark.thorough
def test_conjugate_gradients_know_the_null_space_of_streamed_batch_norm():
    model, params, X = case("batch", "bernoulli")
    whole, streamed = lg.fisher(model, params, X), lg.fisher(model, params, X, chunk=10)
    for damping in (0.0, 1e-3):
        x, y = (
            ravel_pytree(F.solve(params, damping, method=m).value)[0] for F, m in ((whole, "svd"), (streamed, "cg"))
        )
        assert agreement(x, y, tol=1e-6).agrees


def test_no_null_space_is_predicted_of_statistics_that_a_subclass_replaced():
    _, params, X = case("layer", "bernoulli")
    model = lg.NormalizedGLM(MeanAbsolute(), lg.families.Bernoulli())
    with pytest.raises(ValueError, match="no theory of the null space for MeanAbsolute"):
        lg.predicted_nullspace(model, params, X)
    dead = params.weights.shape[0]  # the third input is 0 for all samples; RMS norm has one direction more, its scale
    assert lg.fisher(model, params, X).rank() == params.size - dead


def test_paper_order_is_a_permutation_with_an_inverse():
    size = 3 * (4 + 2)
    F = np.random.default_rng(0).normal(size=(size, size))
    there = lg.to_paper_order(F, 3, 4)
    assert agreement(lg.from_paper_order(there, 3, 4), F, tol=0.0).agrees
    names = [f"w{i}{d}" for i in range(3) for d in range(4)] + [f"b{i}" for i in range(3)] + [f"g{i}" for i in range(3)]
    order = np.asarray(lg.to_paper_order(np.arange(size), 3, 4))
    assert [names[k] for k in order][:6] == ["w00", "w01", "w02", "w03", "b0", "g0"]
    with pytest.raises(ValueError, match=r"P = 18; got shape \(5,\)"):
        lg.to_paper_order(np.zeros(5), 3, 4)


def test_equation_12_refuses_a_normalized_model():
    model, params, X = case("layer", "bernoulli")
    with pytest.raises(ValueError, match="standard GLM"):
        reference.standard_glm(model, params, X)


def test_float32_stays_float32():
    model, params, X = jax.tree.map(
        lambda v: v.astype(jnp.float32) if hasattr(v, "astype") else v, case("layer", "bernoulli")
    )
    assert dense(model, params, X).dtype == jnp.float32
