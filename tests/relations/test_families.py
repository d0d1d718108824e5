"""Families are exact over their whole range, in every dtype, against closed forms that mpmath gives 50 digits of."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st
from lngeom.families import _family, exponential

from tests.relations.relation import assert_close, fails, relation, wide

ctx = mpmath.mp.clone()
ctx.dps = 50 + 610  # of which differences of confident probabilities, 1 − (1 − e^−700), lose up to 610
ULPS = 32
"""Allowed error of a result, in units in the last place of the dtype: of a dozen operations in a row."""


@dataclass(frozen=True)
class Exact:
    """A family beside its closed forms, each in 50 digits."""

    family: Any
    mean: Any
    variance: Any
    kl: Any
    log_p: Any
    negative: bool = False
    responses: tuple = (0, 1)


def s(z):
    return 1 / (1 + ctx.exp(-z))


def binomial(n):
    def kl(z, w):
        return n * (s(z) * (ctx.log(s(z)) - ctx.log(s(w))) + s(-z) * (ctx.log(s(-z)) - ctx.log(s(-w))))

    def log_p(z, y):
        return ctx.log(ctx.binomial(n, y)) + y * ctx.log(s(z)) + (n - y) * ctx.log(s(-z))

    return {"mean": lambda z: n * s(z), "variance": lambda z: n * s(z) * s(-z), "kl": kl, "log_p": log_p}


def negative_binomial(r):
    def kl(z, w):
        p = ctx.exp(z)
        return r * (ctx.log1p(-p) - ctx.log1p(-ctx.exp(w)) + p / (1 - p) * (z - w))

    def log_p(z, y):
        return ctx.loggamma(y + r) - ctx.loggamma(r) - ctx.loggamma(y + 1) + y * z + r * ctx.log1p(-ctx.exp(z))

    return {
        "mean": lambda z: r * ctx.exp(z) / (1 - ctx.exp(z)),
        "variance": lambda z: r * ctx.exp(z) / (1 - ctx.exp(z)) ** 2,
        "kl": kl,
        "log_p": log_p,
    }


def inverse_gaussian(phi):
    def kl(z, w):
        a, b = ctx.sqrt(-2 * z), ctx.sqrt(-2 * w)
        return (a - b) ** 2 / (2 * a * phi)

    def log_p(z, y):
        return (z * y + ctx.sqrt(-2 * z)) / phi - (ctx.log(2 * ctx.pi * phi * y**3) + 1 / (phi * y)) / 2

    return {
        "mean": lambda z: 1 / ctx.sqrt(-2 * z),
        "variance": lambda z: phi * (-2 * z) ** (-ctx.mpf(3) / 2),
        "kl": kl,
        "log_p": log_p,
    }


def gamma(phi):
    k = 1 / ctx.mpf(phi)
    return {
        "mean": lambda z: -1 / z,
        "variance": lambda z: phi / z**2,
        "kl": lambda z, w: k * (w / z - 1 - ctx.log(w / z)),
        "log_p": lambda z, y: k * ctx.log(-z * y * k) - ctx.log(y) - ctx.loggamma(k) + k * z * y,
    }


FAMILIES = {
    "bernoulli": Exact(lg.families.Bernoulli(), **binomial(1)),
    "binomial": Exact(lg.families.Binomial(7), **binomial(7), responses=(0, 3, 7)),
    "poisson": Exact(
        lg.families.Poisson(),
        mean=ctx.exp,
        variance=ctx.exp,
        kl=lambda z, w: ctx.exp(w) - ctx.exp(z) - (w - z) * ctx.exp(z),
        log_p=lambda z, y: z * y - ctx.exp(z) - ctx.loggamma(y + 1),
        responses=(0, 4),
    ),
    "gaussian": Exact(
        lg.families.Gaussian(0.5),
        mean=lambda z: z,
        variance=lambda z: ctx.mpf(0.5),
        kl=lambda z, w: (z - w) ** 2,
        log_p=lambda z, y: -((y - z) ** 2) - ctx.log(ctx.pi) / 2,
        responses=(0, 1, -3),
    ),
    "gamma": Exact(lg.families.Gamma(0.5), **gamma(0.5), negative=True, responses=(0.25, 2)),
    "inverse_gaussian": Exact(
        lg.families.InverseGaussian(0.5), **inverse_gaussian(0.5), negative=True, responses=(0.25, 2)
    ),
    "negative_binomial": Exact(
        lg.families.NegativeBinomial(2.5), **negative_binomial(ctx.mpf(2.5)), negative=True, responses=(0, 3)
    ),
}
LARGEST = {"float64": 700.0, "float32": 80.0, "bfloat16": 80.0, "float16": 8.0}
DTYPES = st.sampled_from(sorted(LARGEST))


@st.composite
def logits(draw, dtype, negative):
    """Values over the whole range: near zero, moderate, confident of either sign."""
    size = draw(st.floats(-6, 1).map(lambda e: 10.0**e) | st.floats(0.0, 1.0).map(lambda u: u * LARGEST[dtype]))
    size = min(max(size, 0.05 if dtype == "float16" else 1e-6), LARGEST[dtype])
    sign = -1.0 if negative else draw(st.sampled_from([-1.0, 1.0]))
    return jnp.asarray(sign * size, dtype)


@st.composite
def points(draw, names=tuple(FAMILIES), dtypes=DTYPES):
    name, dtype = draw(st.sampled_from(names)), draw(dtypes)
    exact = FAMILIES[name]
    return name, dtype, draw(logits(dtype, exact.negative)), draw(st.sampled_from(exact.responses))


def assert_exact(found, expected, dtype, scale=None, ulps=ULPS):
    """To `ulps` of the result, or of the scale of its terms; results below the normal numbers are exempt."""
    found, info = ctx.mpf(float(wide(found))), jnp.finfo(dtype)
    size = abs(expected) if scale is None else max(abs(expected), abs(scale))
    if size > float(info.max):
        return
    error = abs(found - expected)
    assert error <= ulps * float(info.eps) * size + 4 * float(info.tiny), (
        f"{mpmath.nstr(found, 12)} for {mpmath.nstr(expected, 12)}, {float(error / max(size, 1e-300)):.2g} relative"
    )


@relation(point=points(), thorough=300)
def test_moments_are_exact(point):
    name, dtype, z, _ = point
    exact, at = FAMILIES[name], ctx.mpf(float(wide(z)))
    for what in ("mean", "variance"):
        assert_exact(getattr(exact.family, what)(z[None])[0], getattr(exact, what)(at), dtype)
    phi = ctx.mpf(float(exact.family.dispersion))
    metric = exact.variance(at) / phi**2
    one = jnp.ones((1,), z.dtype)
    assert_exact(exact.family.metric_product(z[None], one)[0], metric, dtype)
    assert_exact(exact.family.metric_diagonal(z[None])[0], metric, dtype)
    assert_exact(exact.family.metric_sqrt_product(z[None], one)[0], ctx.sqrt(metric), dtype)


@relation(point=points(), thorough=300)
def test_scores_are_exact(point):
    """Of a logit the score keeps its digits also where the response was expected; else those of its terms."""
    name, dtype, z, y = point
    exact, at = FAMILIES[name], ctx.mpf(float(wide(z)))
    phi = ctx.mpf(float(exact.family.dispersion))
    terms = None if name == "bernoulli" else (abs(y) + abs(exact.mean(at))) / phi
    if name == "binomial" and y in (0, 7):
        terms = None
    found = exact.family.score(z[None], jnp.asarray([y], z.dtype))[0]
    assert_exact(found, (ctx.mpf(y) - exact.mean(at)) / phi, dtype, terms)


@relation(point=points(), thorough=200)
def test_log_probabilities_are_exact(point):
    name, dtype, z, y = point
    exact, at = FAMILIES[name], ctx.mpf(float(wide(z)))
    found = exact.family.log_prob(z[None], jnp.asarray([y], z.dtype))[0]
    phi = ctx.mpf(float(exact.family.dispersion))
    terms = None if name == "bernoulli" else (abs(at * y) + abs(exact.mean(at) * at) + 20) / phi + abs(exact.mean(at))
    assert_exact(found, exact.log_p(at, y), dtype, terms)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("z", [-0.3, -0.69, -0.88, -1.0007, -1.005, -1.0119, -1.2499, -1.2501, -3.0])
def test_the_log_partition_of_failures_has_no_place_where_digits_are_lost(dtype, z):
    z = jnp.linspace(z - 1e-3, z + 1e-3, 50, dtype=dtype)
    for at, found in zip(z, lg.families.NegativeBinomial(1.0).log_partition(z), strict=True):
        assert_exact(found, -ctx.log1p(-ctx.exp(ctx.mpf(float(at)))), dtype, ulps=3)


@relation(
    point=points(dtypes=st.sampled_from(["float64", "float32"])), step=st.floats(-9, 1), up=st.booleans(), thorough=300
)
def test_divergences_are_exact(point, step, up):
    """Also of neighbours, where the Bregman difference of η cancels."""
    name, dtype, z, _ = point
    exact = FAMILIES[name]
    delta = (1 if up else -1) * 10.0**step * (float(abs(z)) if exact.negative else 1.0)
    other = jnp.asarray(float(z) + delta, z.dtype)
    if exact.negative and not float(other) < 0:
        return
    at, to = ctx.mpf(float(wide(z))), ctx.mpf(float(wide(other)))
    # the step is a difference of rounded numbers, which is exact or small beside the rounding of η″
    assert_exact(exact.family.kl(z[None], other[None]), exact.kl(at, to), dtype, ulps=64 * ULPS)


@relation(dtype=DTYPES, seed=st.integers(0, 999), size=st.floats(-2, 1), thorough=200)
def test_a_softmax_is_exact(dtype, seed, size):
    rng = np.random.default_rng(seed)
    z = jnp.asarray(
        np.clip(rng.normal(size=4) * LARGEST[dtype] * 10.0 ** (size - 1), -1, 1) * LARGEST[dtype] / 2, dtype
    )
    v = jnp.asarray(rng.normal(size=4), dtype)
    family, at, along = lg.families.Categorical(), *([ctx.mpf(float(x)) for x in wide(a)] for a in (z, v))
    top = max(at)
    weights = [ctx.exp(a - top) for a in at]
    q = [w / sum(weights) for w in weights]
    label = int(rng.integers(0, 4))
    score = family.score(z[None], jnp.asarray([label]))[0]
    log_p = family.log_prob(z[None], jnp.asarray([label]))[0]
    product, mean, diagonal = family.metric_product(z, v), family.mean(z), family.metric_diagonal(z)
    leading = max(range(4), key=lambda k: at[k])
    for k in range(4):
        others = sum(q[j] for j in range(4) if j != k)
        ulps = ULPS + 2 * float(max(top - a for a in at))  # a difference of logits is rounded
        assert_exact(mean[k], q[k], dtype, ulps=ulps)
        assert_exact(diagonal[k], q[k] * others, dtype, ulps=ulps)
        assert_exact(score[k], others if k == label else -q[k], dtype, ulps=ulps)
        difference = [along[k] - along[j] for j in range(4)]
        terms = q[k] * sum(q[j] * (abs(along[k] - along[leading]) + abs(along[j] - along[leading])) for j in range(4))
        assert_exact(product[k], q[k] * sum(q[j] * d for j, d in enumerate(difference)), dtype, terms, 2 * ulps)
    rest = sum(weights) - 1
    expected = at[label] - top - ctx.log1p(rest)
    assert_exact(log_p, expected, dtype, ulps=ulps)


@relation(dtype=st.sampled_from(["float64", "float32"]), seed=st.integers(0, 999), step=st.floats(-7, 1), thorough=150)
def test_divergences_of_softmaxes_are_exact(dtype, seed, step):
    rng = np.random.default_rng(seed)
    z = jnp.asarray(rng.normal(size=3) * rng.choice([0.1, 1, 10]), dtype)
    other = z + jnp.asarray(rng.normal(size=3) * 10.0**step, dtype)
    p, r = ([ctx.exp(ctx.mpf(float(x))) for x in wide(a)] for a in (z, other))
    p, r = ([x / sum(a) for x in a] for a in (p, r))
    expected = sum(a * ctx.log(a / b) for a, b in zip(p, r, strict=True))
    assert_exact(lg.families.Categorical().kl(z[None], other[None])[0], expected, dtype, ulps=64 * ULPS)


BINARY = st.sampled_from(["bernoulli", "binomial"])


@relation(name=BINARY, dtype=DTYPES, size=st.floats(0, 1), thorough=100)
def test_a_logit_and_its_negative_have_the_same_information(name, dtype, size):
    family = FAMILIES[name].family
    z = jnp.asarray([size * LARGEST[dtype]], dtype)
    assert family.metric_diagonal(z) == family.metric_diagonal(-z)
    assert family.variance(z) == family.variance(-z)
    n = jnp.asarray([getattr(family, "trials", 1)], dtype)
    assert family.score(z, n) == -family.score(-z, jnp.zeros((1,), dtype))


@relation(dtype=DTYPES, seed=st.integers(0, 999), shift=st.sampled_from([-4.0, 2.0]), thorough=100)
def test_classes_in_another_order_or_shifted_have_the_same_information(dtype, seed, shift):
    rng, family = np.random.default_rng(seed), lg.families.Categorical()
    z, order = jnp.asarray(np.round(4 * rng.normal(size=5)) / 4, dtype), rng.permutation(5)
    metric = wide(family.metric(z))
    bound = ULPS * float(jnp.finfo(dtype).eps)
    assert_close(family.metric(z[order]), metric[np.ix_(order, order)], bound)
    assert_close(family.metric(z + jnp.asarray(shift, dtype)), metric, bound)
    assert_close(np.diagonal(metric), family.metric_diagonal(z), bound)
    root = jax.vmap(lambda e: family.metric_sqrt_product(z, e), 1, 1)(jnp.eye(5, dtype=dtype))
    assert_close(wide(root).T @ wide(root), metric, bound)


@relation(seed=st.integers(0, 99), thorough=5, quick=0)
def test_outputs_that_a_family_cannot_have_are_refused_or_said(seed):
    rng = np.random.default_rng(seed)
    X, W = jnp.asarray(rng.normal(size=(9, 3))), jnp.asarray(rng.normal(size=(3, 4)))
    family = lg.families.Categorical()
    with pytest.raises(ValueError, match="at least 2 outputs"):
        lg.fisher(lambda p, x: x @ p, W[:, :1], X, family=family)
    with pytest.warns(UserWarning, match="softmax is applied twice"):
        lg.fisher(lambda p, x: jax.nn.softmax(x @ p), W, X, family=family)
    logarithms = lg.fisher(lambda p, x: jax.nn.log_softmax(x @ p), W, X, family=family)
    assert_close(logarithms.trace(), lg.fisher(lambda p, x: x @ p, W, X, family=family).trace())
    many = np.zeros((9, 4))
    many[:, :2] = 1
    for y, words in ((many, "sum to 1"), (np.full(9, 4), "labels"), (np.full(9, 0.5), "labels"), (-many, "finite")):
        with pytest.raises(ValueError, match=words):
            lg.fisher(lambda p, x: x @ p, W, X, family=family, method="empirical", y=y)
    with pytest.raises(ValueError, match="finite responses from 0"):
        lg.fisher(lambda p, x: x @ p, W, X, family=lg.families.Poisson(), method="empirical", y=-many)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_compiled_programs")
class TestEachRelationNoticesAFault:
    def test_second_derivatives_of_softplus(self, monkeypatch):
        naive = lambda z: jax.nn.sigmoid(z) * (1 - jax.nn.sigmoid(z))  # noqa: E731
        monkeypatch.setattr(exponential, "_logistic_curvature", naive)
        fails(test_moments_are_exact, point=points(("bernoulli",)), draws=60)
        fails(test_a_logit_and_its_negative_have_the_same_information, draws=60)

    def test_residuals(self, monkeypatch):
        monkeypatch.setattr(
            exponential, "_logistic_residual", lambda z, y, failures: y - (y + failures) * jax.nn.sigmoid(z)
        )
        fails(test_scores_are_exact, point=points(("bernoulli",)), draws=60)

    def test_logarithms(self, monkeypatch):
        monkeypatch.setattr(
            lg.families.Bernoulli, "log_prob", lambda self, z, y: z * y.astype(z.dtype) - jax.nn.softplus(z)
        )
        fails(test_log_probabilities_are_exact, point=points(("bernoulli",)), draws=60)

    def test_quadrature(self, monkeypatch):
        monkeypatch.setattr(_family, "_QUADRATURE", (np.array([0.5]), np.array([1.0])))
        fails(test_divergences_are_exact, draws=60)
        fails(test_divergences_of_softmaxes_are_exact, draws=60)

    def test_one_less_a_confident_probability(self, monkeypatch):
        monkeypatch.setattr(exponential, "_others", lambda z: 1 - jax.nn.softmax(z, -1))
        fails(test_a_softmax_is_exact, draws=60)

    def test_a_root_of_something_else(self, monkeypatch):
        one_sided = lambda self, z, v: jnp.sqrt(self.mean(z)) * v  # noqa: E731
        monkeypatch.setattr(lg.families.Categorical, "metric_sqrt_product", one_sided)
        fails(test_classes_in_another_order_or_shifted_have_the_same_information)
