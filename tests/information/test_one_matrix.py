"""Every route gives one matrix, or an error that says what to do."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln
from lngeom._core.numerics import agreement
from lngeom.information import _matrix, _products

from . import zoo
from .zoo import Case, normal

KEY = jax.random.key(7)
PARAMS = (normal(0, 3, 6), normal(1, 6, 4))
X = normal(2, 20, 3)


def _dropout(p, x):
    kept = jax.random.bernoulli(KEY, 0.8, (len(x), 6))
    return jnp.where(kept, jax.nn.relu(x @ p[0]) / 0.8, 0) @ p[1]


def _position(p, x):
    return x @ p[0] @ p[1] + 0.1 * jnp.arange(len(x), dtype=x.dtype)[:, None]


def _number(p, x):
    return x @ p[0] @ p[1] / len(x)


def _centred(p, x):
    return (x - jnp.mean(x, 0, keepdims=True)) @ p[0] @ p[1]


@pytest.mark.parametrize("apply", [_dropout, _position, _number, _centred])
@pytest.mark.parametrize("said", [None, False])
def test_outputs_that_depend_on_other_rows_are_refused(apply, said):
    with pytest.raises(ValueError, match=r"samples interact: .* say batch_coupled=True"):
        lg.fisher(apply, PARAMS, X, family=lg.families.Categorical(), batch_coupled=said)


@pytest.mark.parametrize(("size", "may_be_rounding"), [(1e-17, True), (1e-3, False)])
def test_an_error_about_outputs_of_the_size_of_rounding_says_so(size, may_be_rounding):
    with pytest.raises(ValueError, match="samples interact") as raised:
        lg.fisher(lambda p, x: size * _centred(p, x), PARAMS, X, family=lg.families.Categorical())
    assert ("may be rounding alone" in str(raised.value)) == may_be_rounding


@pytest.mark.thorough
@pytest.mark.parametrize("apply", [_dropout, _position, _number, _centred])
def test_outputs_that_depend_on_other_rows_have_one_matrix_once_that_is_said(apply):
    case = Case("coupled", apply, PARAMS, X, lg.families.Categorical(), coupled=True)
    assert_one_matrix(case.fisher(), zoo.dense_reference(case))


@pytest.mark.thorough
def test_noise_with_a_key_for_each_sample_is_a_function_of_the_sample():
    def apply(p, x):
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (6,)))(x["key"])
        return jnp.where(kept, jax.nn.relu(x["x"] @ p[0]) / 0.8, 0) @ p[1]

    case = Case("keys", apply, PARAMS, {"x": X, "key": jax.random.split(KEY, len(X))}, lg.families.Categorical())
    assert_one_matrix(case.fisher(), zoo.dense_reference(case))
    assert_one_matrix(case.fisher(chunk=6), zoo.dense_reference(case))


def test_rounding_of_another_batch_size_is_no_interaction():
    def apply(p, x):
        return jax.nn.softmax((x @ p[0]).astype(jnp.float32)).astype(x.dtype) @ p[1]

    lg.fisher(apply, PARAMS, X, family=lg.families.Categorical())


class CorrelatedGaussian(lg.families.AbstractFamily):
    dispersion: float = 0.7
    joint = True

    def log_partition(self, z):
        return (jnp.square(z[..., 0]) + jnp.square(z[..., 1]) + z[..., 0] * z[..., 1]) / 2

    def log_base_measure(self, y):
        return jnp.zeros(y.shape[:-1])

    def sample(self, key, z):
        return self.mean(z) + jax.random.normal(key, z.shape)  # not this family's: no test draws from it


class MeanPrecisionGaussian(CorrelatedGaussian):
    def log_partition(self, z):
        return -jnp.square(z[..., 0]) / (4 * z[..., 1]) - 0.5 * jnp.log(-2 * z[..., 1])


class Dirichlet(CorrelatedGaussian):
    def log_partition(self, z):
        return jnp.sum(gammaln(z + 1), -1) - gammaln(jnp.sum(z + 1, -1))


class Ordinal(CorrelatedGaussian):
    """Three categories with the first as reference: η = log(1 + Σ e^{z_1 + … + z_c})."""

    def log_partition(self, z):
        steps = jnp.cumsum(z, -1)
        return jax.nn.logsumexp(jnp.concatenate([jnp.zeros_like(steps[..., :1]), steps], -1), -1)


class TwoHeads(CorrelatedGaussian):
    """Logits of two classes, of which only the difference matters, and the mean of a Gaussian."""

    def log_partition(self, z):
        return jax.nn.logsumexp(z[..., :2], -1) + jnp.sum(jnp.square(z[..., 2:]), -1) / 2


def _joint_case(family):
    def apply(p, x):
        z = jnp.tanh(x @ p["a"]) @ p["b"]
        if isinstance(family, MeanPrecisionGaussian):
            return jnp.stack([z[:, 0], -jnp.exp(z[:, 1])], 1)
        return jnp.exp(z) if isinstance(family, Dirichlet) else z

    outputs = 3 if isinstance(family, TwoHeads) else 2
    params = {"a": normal(0, 3, 4), "b": normal(1, 4, outputs)}
    return Case(type(family).__name__, apply, params, normal(2, 9, 3), family)


JOINT = [family() for family in (CorrelatedGaussian, MeanPrecisionGaussian, Dirichlet, Ordinal, TwoHeads)]


def assert_one_matrix(F, reference):
    reference, vectors = np.asarray(reference), np.random.default_rng(5).normal(size=(F.in_size(), 9))
    first = jnp.asarray(vectors[:, 0])
    factor, s, kept = np.asarray(F.factor()), np.asarray(F.singular_values()), np.asarray(F.decompose().kept)
    image = reference @ vectors[:, 0]
    found = {
        "matrix": (F.as_matrix(), reference),
        "product": (F @ first, image),
        "products": (F.mm(jnp.asarray(vectors)), reference @ vectors),
        "diagonal": (F.diagonal(), np.diagonal(reference)),
        "factor": (factor.T @ factor, reference),
        "form": (F.quadratic_form(first), vectors[:, 0] @ image),
        "trace": (F.trace(), np.trace(reference)),
        "eigenvalues": (np.square(s[:3]), np.linalg.eigvalsh(reference)[::-1][:3]),
        "solve": (reference @ np.asarray(F.solve(jnp.asarray(image)).value), image),
    }
    if len(F.leaves) > 1:
        sizes = [leaf.size for leaf in jax.tree.leaves(F.problem.params)]
        found["block"] = (F.block(F.leaves[0], F.leaves[-1]), reference[: sizes[0], -sizes[-1] :])
    apart = {name: agreement(*pair, tol=1e-9).residual for name, pair in found.items()}
    assert all(residual < 1e-9 for residual in apart.values()), apart
    assert np.sum(kept) == F.rank() == np.linalg.matrix_rank(reference, rtol=1e-13)
    assert np.max(np.abs(reference @ np.asarray(F.nullspace().basis)), initial=0) < 1e-12


@pytest.mark.thorough
@pytest.mark.parametrize("family", JOINT, ids=lambda f: type(f).__name__)
def test_every_route_of_a_joint_family_is_the_definition(family):
    case = _joint_case(family)
    assert_one_matrix(case.fisher(), zoo.dense_reference(case))
    z = jax.jit(case.apply)(case.params, case.X)
    metric = jax.jit(jax.vmap(jax.hessian(family.log_partition)))(z) / family.dispersion
    assert agreement(family.metric(z), metric).agrees
    assert agreement(family.variance(z), family.dispersion**2 * jnp.diagonal(metric, axis1=1, axis2=2)).agrees
    y = jax.jit(family.mean)(z) + 0.1
    F = case.fisher(method="empirical", y=y)
    score = jax.jit(jax.grad(lambda p: jnp.sum(family.log_prob(case.apply(p, case.X)[:1], y[:1]))))(case.params)
    one = lg.fisher(case.apply, case.params, case.X[:1], family=family, method="empirical", y=y[:1])
    flat = ravel_pytree(score)[0]
    assert agreement(one.as_matrix(), jnp.outer(flat, flat)).agrees
    assert agreement(F.as_matrix() @ flat, F @ flat).agrees


@pytest.mark.parametrize("normalizer", [lg.normalizers.RMSNorm(), lg.normalizers.WeightNorm()])
def test_a_normalized_model_of_a_joint_family_has_one_matrix(normalizer):
    model = lg.NormalizedGLM(normalizer, TwoHeads())
    params = model.init(jax.random.key(0), inputs=4, outputs=3)
    F = lg.fisher(model, params, normal(3, 12, 4))
    case = Case("glm", model.natural_parameters, params, normal(3, 12, 4), model.family)
    assert agreement(F.as_matrix(), zoo.dense_reference(case), tol=1e-12).agrees
    assert agreement(F.as_matrix() @ jnp.ones(F.in_size()), F @ jnp.ones(F.in_size()), tol=1e-12).agrees
    with pytest.raises(ValueError, match="predicted for independent responses and for Categorical; got TwoHeads"):
        lg.predicted_nullspace(model, params, normal(3, 12, 4))


def test_a_matrix_unlike_the_products_gives_way_to_the_plain_route(monkeypatch):
    params = {"a": normal(0, 12, 16), "b": normal(1, 16, 8)}
    case = Case("wide", lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], params, normal(2, 9, 12), lg.families.Gaussian())
    reference, gram = zoo.dense_reference(case), _matrix.gram
    monkeypatch.setattr(_matrix, "gram", lambda *a: 1.01 * gram(*a))
    with pytest.warns(RuntimeWarning, match="differs from the products") as warned:
        matrix = case.fisher().as_matrix()
    assert warned[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="differs from the products"):
        case.fisher().block("a", "b")
    assert agreement(matrix, reference).agrees
    assert not agreement(case.fisher(check=False).as_matrix(), reference).agrees  # the fault is there


@pytest.mark.parametrize("method", ["factor", "singular_values", "rank"])
def test_a_function_of_the_number_of_samples_that_no_probe_meets_is_refused(method):
    """Probes evaluate 32 samples and one; this function is another one on more than 40, of which there are 100."""

    def apply(p, x):
        return jnp.tanh(x @ p) * (2.0 if len(x) > 40 else 1.0)

    case = Case("by size", apply, normal(0, 3, 2), normal(1, 100, 3), lg.families.Gaussian())
    with pytest.raises(ValueError, match="the factor and the products F @ v are not of one matrix"):
        getattr(case.fisher(), method)()
    F = case.fisher(check=False)
    rows, vector = F.factor(), jnp.ones(F.in_size())
    assert not agreement(rows.T @ (rows @ vector), F @ vector).agrees  # nothing else sees the fault


@pytest.mark.parametrize("method", ["factor", "singular_values", "decompose", "diagonal"])
def test_a_route_without_alternative_that_differs_is_refused(monkeypatch, method):
    case = zoo.plain_network.__wrapped__()  # a new function: of the other one the right product is compiled
    F = case.fisher()
    monkeypatch.setattr(_products, "flat_product", lambda source, at, v: 1.01 * (zoo.dense_reference(case) @ v))
    monkeypatch.setattr(
        type(F), "_flat_product", property(lambda self: lambda v: 1.01 * (zoo.dense_reference(case) @ v))
    )
    with pytest.raises(ValueError, match="are not of one matrix"):
        getattr(F, method)()


@pytest.mark.parametrize(
    ("family", "y"),
    [
        (lg.families.Categorical(), jnp.array([0, 1, -1])),
        (lg.families.Categorical(), jnp.array([1, 2, 4])),
        (lg.families.Categorical(), jnp.array([0.0, 1.5, 2.0])),
        (lg.families.Bernoulli(), jnp.full((3, 4), 2.0)),
        (lg.families.Poisson(), jnp.full((3, 4), -1.0)),
        (lg.families.Binomial(trials=4), jnp.full((3, 4), 5.0)),
        (lg.families.Gaussian(), jnp.full((3, 4), jnp.nan)),
    ],
)
def test_responses_outside_the_support_are_refused(family, y):
    with pytest.raises(ValueError, match=f"{type(family).__name__} takes (labels 0 … 3|finite responses)"):
        lg.fisher(lambda p, x: x @ p[0] @ p[1], PARAMS, X[:3], family=family, method="empirical", y=y)


def test_responses_at_masked_positions_may_be_anything():
    y = jnp.array([0, 3, -100])
    F = lg.fisher(
        lambda p, x: x @ p[0] @ p[1],
        PARAMS,
        X[:3],
        family=lg.families.Categorical(),
        method="empirical",
        y=y,
        mask=jnp.array([1, 1, 0]),
    )
    assert jnp.all(jnp.isfinite(F.as_matrix()))


def _half(scale, family):
    """A linear model in float16 whose outputs are multiplied by exp(s)."""
    params = {"s": jnp.array(scale, jnp.float16), "w": normal(3, 3, 2).astype(jnp.float16)}
    inputs = normal(4, 12, 3).astype(jnp.float16)
    return lg.fisher(lambda p, x: jnp.exp(p["s"]) * (x @ p["w"]), params, inputs, family=family)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", np.linspace(2, 6, 9))
def test_rounding_to_16_bits_is_no_other_matrix(scale):
    for family in (lg.families.Bernoulli(), lg.families.Categorical()):
        F = _half(scale, family)
        assert jnp.isfinite(F.as_matrix()).all()
        assert jnp.isfinite(F.trace())


@pytest.mark.thorough
def test_a_matrix_beyond_the_largest_number_is_refused():
    F = _half(8.0, lg.families.Gaussian())
    for result in (F.as_matrix, F.diagonal, F.factor, F.singular_values):
        with pytest.raises(ValueError, match=r"beyond the largest number of float16, 6\.55e"):
            result()


def test_a_sum_of_derivatives_beyond_the_largest_number_is_no_infinite_derivative():
    inputs = jnp.full((40_000, 2), 3.0, jnp.float16)
    F = lg.fisher(lambda p, x: x @ p, jnp.ones((2, 1), jnp.float16), inputs, family=lg.families.Gaussian())
    assert float(F.trace()) == pytest.approx(18, rel=2e-3)
