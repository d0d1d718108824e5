"""Functions of several outputs, and outputs that are no natural parameters: every route is the definition."""

import math

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from lngeom._core.numerics import agreement

from tests.cases import definition, metric_of_divergence

from . import zoo
from .test_one_matrix import assert_one_matrix
from .zoo import Case, normal

families = lg.families
COVARIANCE = np.array([[2.0, 0.5], [0.5, 1.0]])
PARAMS = {"a": normal(0, 3, 4), "b": normal(1, 4, 4)}
X = normal(2, 9, 3)


def by_divergence(apply, params, X, divergence, weights=None):
    return definition(apply, metric_of_divergence(divergence))(params, X, weights)


def softmax_divergence(z, other):
    q = jax.nn.softmax(z)
    return jnp.sum(q * (jax.nn.log_softmax(z) - jax.nn.log_softmax(other)))


def normal_divergence(z, other):
    (m, r), (k, s) = z, other
    return 0.5 * ((jnp.exp(r) + (m - k) ** 2) * jnp.exp(-s) - 1 + s - r)


def mixture_divergence(z, other):
    """Two binomials of 3 trials, by the sum over their four values."""

    def probabilities(z):
        pi, p = jax.nn.softmax(z[:2]), jax.nn.sigmoid(z[2:])
        return jnp.stack([jnp.sum(pi * math.comb(3, k) * p**k * (1 - p) ** (3 - k)) for k in range(4)])

    p, q = probabilities(z), probabilities(other)
    return jnp.sum(p * (jnp.log(p) - jnp.log(q)))


def heads(p, x):
    z = jnp.tanh(x @ p["a"]) @ p["b"]
    return {"policy": z[:, :3], "value": z[:, 3] + 0.3 * z[:, 0]}


def unlike_heads(p, x):
    z = jnp.tanh(x @ p["a"]) @ p["b"]
    return (z[:, :2], z[:, 1:3]), [z, jnp.sin(z[:, 2:])]


@pytest.mark.thorough
def test_every_route_of_a_dict_of_outputs_is_the_sum_of_the_definitions_of_each():
    family = {"policy": families.Categorical(), "value": families.Gaussian(0.5)}
    policy = Case("", lambda p, x: heads(p, x)["policy"], PARAMS, X, family["policy"])
    value = Case("", lambda p, x: heads(p, x)["value"], PARAMS, X, family["value"])
    reference = zoo.dense_reference(policy) + zoo.dense_reference(value)
    F = lg.fisher(heads, PARAMS, X, family=family)
    assert_one_matrix(F, reference)
    assert "policy: Categorical; value: Gaussian" in repr(F)
    assert agreement(
        lg.fisher(heads, PARAMS, X, family=family, chunk=4) @ jnp.ones(28), reference @ jnp.ones(28)
    ).agrees

    y = {"policy": jnp.arange(9) % 3, "value": normal(5, 9)}

    def log_prob(p, x, label, response):
        z = heads(p, x[None])
        return jax.nn.log_softmax(z["policy"][0])[label] - (response - z["value"][0]) ** 2 / (2 * 0.5)

    score = jax.jit(jax.vmap(lambda *one: ravel_pytree(jax.grad(log_prob)(PARAMS, *one))[0]))
    scores = score(X, y["policy"], y["value"])
    observed = lg.fisher(heads, PARAMS, X, family=family, method="empirical", y=y)
    assert agreement(observed.as_matrix(), scores.T @ scores / 9).agrees
    drawn = lg.fisher(heads, PARAMS, X, family=family, method="monte_carlo", key=jax.random.key(0), samples=3000)
    assert float(jnp.linalg.norm(drawn.as_matrix() - reference)) < 0.1 * float(jnp.linalg.norm(reference))
    with pytest.raises(ValueError, match=r"Categorical takes labels 0 … 2; got 9 others"):
        lg.fisher(heads, PARAMS, X, family=family, method="empirical", y=y | {"policy": y["policy"] + 3})
    with pytest.raises(ValueError, match=r"y must hold a response for each output, policy: Categorical; value: Gauss"):
        lg.fisher(heads, PARAMS, X, family=family, method="empirical", y=y["value"])


@pytest.mark.thorough
def test_every_route_of_unlike_distributions_is_the_sum_of_the_definitions_of_each():
    scales = jnp.array([0.5, 2.0])
    family = (
        (families.HeteroscedasticGaussian(), families.MultivariateGaussian(COVARIANCE)),
        [families.Mixture(families.Binomial(3), 2), families.Gaussian(scales)],
    )
    inverse = jnp.linalg.inv(COVARIANCE)
    divergences = (
        normal_divergence,
        lambda z, k: 0.5 * (z - k) @ inverse @ (z - k),
        mixture_divergence,
        lambda z, k: jnp.sum((z - k) ** 2 / (2 * scales)),
    )
    reference = sum(
        by_divergence(lambda p, x, k=k: jax.tree.leaves(unlike_heads(p, x))[k], PARAMS, X, divergence)
        for k, divergence in enumerate(divergences)
    )
    assert_one_matrix(lg.fisher(unlike_heads, PARAMS, X, family=family), reference)


@pytest.mark.thorough
def test_images_and_outputs_with_positions_share_a_mask():
    def image(p, x):
        z = jnp.tanh(x @ p["a"]) @ p["b"]
        return {"classes": z[..., :3], "depth": z[..., 3]}

    x, mask = normal(3, 4, 2, 3, 3), jnp.arange(24).reshape(4, 2, 3) % 5 > 0
    family = {"classes": families.Categorical(), "depth": families.Gaussian()}
    parts = (softmax_divergence, lambda z, k: jnp.sum((z - k) ** 2) / 2)
    separate = [lambda p, x: image(p, x)["classes"], lambda p, x: image(p, x)["depth"][..., None]]
    both = [by_divergence(f, PARAMS, x, d, mask) for f, d in zip(separate, parts, strict=True)]
    assert_one_matrix(lg.fisher(image, PARAMS, x, family=family, mask=mask), both[0] + both[1])
    alone = lg.fisher(separate[0], PARAMS, x, family=family["classes"], mask=mask)
    assert agreement(alone.as_matrix(), both[0]).agrees
    assert agreement(alone.diagonal(), jnp.diagonal(both[0])).agrees
    with pytest.raises(ValueError, match="the mask has 4 axes, which every output must begin with"):
        lg.fisher(image, PARAMS, x, family=family, mask=jnp.ones((4, 2, 3, 3)))


def test_outputs_and_families_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"returns a dict of policy \(9, 3\), value \(9,\): give a family each"):
        lg.fisher(heads, PARAMS, X, family=families.Categorical())
    with pytest.raises(
        ValueError, match=r"returns a dict of policy \(9, 3\), value \(9,\): give a family each; got \(Ca"
    ):
        lg.fisher(heads, PARAMS, X, family=(families.Categorical(), families.Gaussian()))
    with pytest.raises(ValueError, match=r"Categorical needs one output a class, .* got \(9,\)"):
        lg.fisher(heads, PARAMS, X, family={"policy": families.Categorical(), "value": families.Categorical()})
    with pytest.raises(ValueError, match=r"family= must say how outputs are distributed, .* got {'policy': 'cat"):
        lg.fisher(heads, PARAMS, X, family={"policy": "categorical", "value": families.Gaussian()})


@pytest.mark.thorough
def test_a_mixture_without_closed_form_is_refused_with_the_alternative_and_estimated():
    family = families.Mixture(families.HeteroscedasticGaussian(), 1)
    apply = lambda p, x: x @ p["a"][:, :3]  # noqa: E731
    with pytest.raises(ValueError, match="a mixture of HeteroscedasticGaussian has no closed form: estimate it with"):
        lg.fisher(apply, PARAMS, X, family=family)
    drawn = lg.fisher(apply, PARAMS, X, family=family, method="monte_carlo", key=jax.random.key(0), samples=2000)
    component = lambda p, x: (x @ p["a"][:, :3])[:, 1:]  # noqa: E731
    exact = lg.fisher(component, PARAMS, X, family=families.HeteroscedasticGaussian()).as_matrix()
    assert float(jnp.linalg.norm(drawn.as_matrix() - exact)) < 0.1 * float(jnp.linalg.norm(exact))
