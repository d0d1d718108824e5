"""Families of one output and of several are densities: what is said of them is what sums over all responses give.

A sum over responses stands for an integral too: the trapezoidal rule is exact to rounding for a smooth density whose
tails are those of exp(−y²) or of exp(−eᵗ) with y = eᵗ.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import strategies as st
from jaxtyping import Array
from lngeom.families import _outputs, _sampling, exponential
from lngeom.families._distribution import AbstractDistribution

from tests.relations.relation import assert_close, fails, relation

f = lg.families
SEEDS = st.integers(0, 999)
TOL = 1e-9


class Rule(NamedTuple):
    """A family with every response, or nodes among them.

    Attributes:
        family: the distribution.
        nodes: responses, a pytree of arrays [Q …]; of independent outputs [Q C].
        weights: of each, [Q], or [Q C].
        moved: a change of outputs for a divergence, which keeps them inside the domain; None where there is none.
    """

    family: Any
    nodes: Any
    weights: np.ndarray
    moved: Callable[[np.ndarray, float], np.ndarray] | None = None


LINE = np.arange(-12, 12.01, 0.25)
"""Nodes in standard deviations."""


def added(z: np.ndarray, step: float) -> np.ndarray:
    return z + step * np.array([1.0, -0.6, 0.3, 0.8, -0.4, 0.1, 0.9])[: len(z)]


def multiplied(z: np.ndarray, step: float) -> np.ndarray:
    return z * np.exp(added(np.zeros(len(z)), step / 8))


def counts(family: Any, most: int, moved: Callable = added) -> Callable[[np.ndarray], Rule]:
    return lambda z: Rule(family, np.tile(np.arange(most + 1.0)[:, None], len(z)), np.ones((most + 1, len(z))), moved)


def along(family: Any, center: Callable, scale: Callable) -> Callable[[np.ndarray], Rule]:
    """Nodes on the line, about a center in units of a scale."""

    def rule(z: np.ndarray) -> Rule:
        nodes = center(z)[None] + scale(z)[None] * LINE[:, None]
        return Rule(family, nodes, 0.25 * scale(z)[None] * np.ones_like(nodes), added)

    return rule


def positive(family: Any, mean: Callable) -> Callable[[np.ndarray], Rule]:
    """Nodes y = mean · eᵗ."""
    t = np.arange(-90, 8, 0.1)[:, None]

    def rule(z: np.ndarray) -> Rule:
        nodes = mean(z)[None] * np.exp(t)
        return Rule(family, nodes, 0.1 * nodes, multiplied)

    return rule


def labels(family: Any, count: int, moved: Any = None) -> Callable[[np.ndarray], Rule]:
    return lambda z: Rule(family, np.arange(count), np.ones(count), moved)


def plane(family: Any, center: Callable, root: Callable) -> Callable[[np.ndarray], Rule]:
    """Nodes in two dimensions, m + L u."""

    def rule(z: np.ndarray) -> Rule:
        u = np.array(list(itertools.product(LINE[::2], repeat=2)))
        lower = root(z)
        return Rule(family, center(z)[None] + u @ lower.T, np.full(len(u), 0.25 * np.linalg.det(lower)))

    return rule


def pair(z: np.ndarray) -> Rule:
    """A label and a number: an output of three logits beside one of a mean."""
    mean = z[3]
    family = _outputs.Product(
        {"label": f.Categorical(), "number": f.Gaussian(0.7)}, {"label": jnp.ones((1, 3)), "number": jnp.ones((1, 1))}
    )
    label, number = np.repeat(np.arange(3), len(LINE)), np.tile(mean + 0.7**0.5 * LINE, 3)
    return Rule(family, {"label": label, "number": number[:, None]}, np.full(len(label), 0.25 * 0.7**0.5))


def kinds(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, Callable[[np.ndarray], Rule]]]:
    """Outputs of every kind of family, whose settings are drawn, and its rule."""
    phi = rng.uniform(0.4, 1.6, 2)
    a, s = rng.normal(size=(2, 2)), rng.uniform(0.7, 1.5, 2)
    lower = np.tril(a, -1) + np.diag(s)
    free, negative = rng.normal(size=7), -rng.uniform(0.3, 2.5, 2)
    trials = int(rng.integers(2, 9))
    points = np.asarray(f.Gamma(phi).points())[rng.integers(4)]
    return {
        "gaussian": (free[:2], along(f.Gaussian(phi), lambda z: z, lambda z: phi**0.5)),
        "bernoulli": (free[:2], counts(f.Bernoulli(), 1)),
        "binomial": (free[:2], counts(f.Binomial(trials), trials)),
        "poisson": (np.minimum(free[:2], 1.5), counts(f.Poisson(), 150)),
        "gamma": (points, positive(f.Gamma(phi), lambda z: -1 / z)),
        "inverse_gaussian": (negative, positive(f.InverseGaussian(phi), lambda z: (-2 * z) ** -0.5)),
        "negative_binomial": (negative, counts(f.NegativeBinomial(4 * phi), 400, multiplied)),
        "categorical": (2 * free[:4], labels(f.Categorical(), 4, added)),
        "two variances": (
            free[:4],
            plane(f.HeteroscedasticGaussian(), lambda z: z[:2], lambda z: np.diag(np.exp(z[2:] / 2))),
        ),
        "covariance": (free[:2], plane(f.MultivariateGaussian(lower @ lower.T), lambda z: z, lambda z: lower)),
        "mixture of logits": (free[:4], labels(f.Mixture(f.Bernoulli(), 2), 2)),
        "mixture of counts": (free[:6], labels(f.Mixture(f.Binomial(trials), 3), trials + 1)),
        "mixture of classes": (free[:6], labels(f.Mixture(f.Categorical(), 2), 2)),
        "label and number": (free[:4], pair),
    }


NAMES = tuple(kinds(np.random.default_rng(0)))


def rule_of(name: str, rng: np.random.Generator) -> tuple[np.ndarray, Rule]:
    z, rule = kinds(rng)[name]
    return z, rule(z)


def logs(rule: Rule, *at: np.ndarray) -> list[np.ndarray]:
    """Log p at every node, [Q C], or [Q] of one response of all outputs, at each of several outputs."""

    @jax.jit
    def all_of(points: tuple, y: Any) -> list[Array]:
        size = len(jax.tree.leaves(y)[0])
        return [rule.family.log_prob(jnp.broadcast_to(z, (size, len(z))), y) for z in points]

    return [np.asarray(found) for found in all_of(at, jax.tree.map(jnp.asarray, rule.nodes))]


def numbers(rule: Rule, z: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """The density with its derivatives at every node, and what the family says of its metric, in one program."""
    family, size = rule.family, len(jax.tree.leaves(rule.nodes)[0])

    @jax.jit
    def computed(z: Array, v: Array, y: Any) -> dict[str, Any]:
        many = jnp.broadcast_to(z, (size, len(z)))
        slope = jax.grad(lambda z: jnp.sum(family.log_prob(z, y)))
        gradient, bent = jax.jvp(slope, (many,), (jnp.broadcast_to(v, many.shape),))
        found = {"log_p": family.log_prob(many, y), "gradient": gradient, "bent": bent, "score": family.score(many, y)}
        at, eye = z[None], jnp.eye(len(z))[:, None]
        found |= {"metric": family.metric(at)[0], "diagonal": family.metric_diagonal(at)[0]}
        found |= {"root": jax.lax.map(lambda e: family.metric_sqrt_product(at, e)[0], eye).T}
        parts = family.metric_parts(at)
        return found | ({} if parts is None else {"parts": jnp.diag(parts[0][0]) - jnp.outer(parts[1][0], parts[1][0])})

    return jax.tree.map(np.asarray, computed(z, v, jax.tree.map(jnp.asarray, rule.nodes)))


@relation(each={"name": NAMES}, seed=SEEDS, thorough=20)
def test_the_metric_is_the_covariance_of_the_score_and_its_mean_slope(name, seed):
    rng = np.random.default_rng(seed)
    z, rule = rule_of(name, rng)
    v = rng.normal(size=len(z))
    found = numbers(rule, z, v)
    p, slope = rule.weights * np.exp(found["log_p"]), found["gradient"]
    assert_close(p.sum(0), np.ones(p.shape[1:]), TOL)
    assert_close(found["score"], slope, TOL)
    weights = p[:, None] if rule.family.joint else p
    spread = (weights * slope).T @ slope if rule.family.joint else np.diag((p * slope**2).sum(0))
    assert np.abs((weights * slope).sum(0)).max() <= TOL * np.sqrt(np.abs(spread).max())
    assert_close(found["metric"], spread, TOL)
    assert_close(-(weights * found["bent"]).sum(0), spread @ v, TOL)
    assert_close(found["diagonal"], np.diag(spread), TOL)
    assert_close(found["root"].T @ found["root"], spread, TOL if rule.family.has_exact_root else 1e-7)
    assert_close(found.get("parts", spread), spread, TOL)
    assert np.linalg.matrix_rank(spread, 1e-9) <= rule.family.metric_rank(len(z))


@relation(each={"name": NAMES[:8]}, seed=SEEDS, thorough=20)
def test_moments_and_divergences_are_expectations(name, seed):
    """Of near outputs the divergence is an integral, of far ones a difference."""
    z, rule = rule_of(name, np.random.default_rng(seed))
    family, near, far = rule.family, rule.moved(z, 0.1), rule.moved(z, 4.0)
    log_p, *log_others = logs(rule, z, near, far)
    p = rule.weights * np.exp(log_p)
    y = np.eye(len(z))[rule.nodes] if family.labels else rule.nodes
    weights = p[:, None] if family.joint else p
    mean = (weights * y).sum(0)

    @jax.jit
    def said(z: Array, *others: Array) -> tuple[Any, ...]:
        slope = jax.grad(lambda z: jnp.sum(family.log_partition(z)))
        return family.mean(z), family.variance(z), slope(z), family.kl(z, z), [family.kl(z, other) for other in others]

    found, variance, slope, nothing, divergences = said(z[None], near[None], far[None])
    assert_close(found[0], mean, TOL)
    assert_close(slope[0], mean, TOL)
    assert_close(variance[0], (weights * (y - mean) ** 2).sum(0), TOL)
    for divergence, log_other in zip(divergences, log_others, strict=True):
        assert_close(divergence[0], np.sum(p * (log_p - log_other)), 1e-7)
    assert abs(float(nothing[0])) <= 1e-14


MANY, MEAN = 20_000, 0.06
"""Draws; and a mean of counts at which those above 0 are rare, of which twenty times as many are drawn."""


def rare(name: str, z: np.ndarray, family: Any) -> np.ndarray | None:
    """Outputs of that mean, of a family of counts."""
    trials = {"poisson": 1, "binomial": getattr(family, "trials", 1)}
    return np.full_like(z, np.log(MEAN / trials[name])) if name in trials else None


@relation(each={"name": NAMES}, seed=SEEDS, thorough=10)
def test_draws_have_the_characteristic_function_of_the_density(name, seed):
    rng = np.random.default_rng(seed)
    z, rule = rule_of(name, rng)
    draw = jax.jit(lambda *a: rule.family.sample(*a))
    flat = lambda y: np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(y)], 1)  # noqa: E731
    for at, many in ((z, MANY), (rare(name, z, rule.family), 20 * MANY)):
        if at is None:
            continue
        y = draw(jax.random.key(seed), jnp.broadcast_to(at, (many, len(z))))
        rule.family.check_responses(y, (many, len(z)))
        p, drawn, nodes = rule.weights * np.exp(logs(rule, at)[0]), flat(y), flat(rule.nodes)
        for a in rng.normal(size=(3, drawn.shape[1])):
            found, known = ((v @ a if rule.family.joint else v * a) for v in (drawn, nodes))
            for wave in (np.cos, np.sin):
                expected = (p * wave(known)).sum(0)
                deviation = np.sqrt(np.maximum((p * wave(known) ** 2).sum(0) - expected**2, 0) / many)
                assert np.all(np.abs(wave(found).mean(0) - expected) <= 5 * deviation + 1e-12)


@relation(each={"name": NAMES}, seed=SEEDS, wrong=st.sampled_from([np.nan, np.inf, -np.inf]), thorough=10)
def test_draws_are_responses_and_other_values_are_not(name, seed, wrong):
    """A response that does not count may be anything."""
    rng = np.random.default_rng(seed)
    z, rule = rule_of(name, rng)
    many = jnp.broadcast_to(z, (6, len(z)))
    y = rule.family.sample(jax.random.key(seed), many)
    rule.family.check_responses(y, many.shape)
    leaves, structure = jax.tree.flatten(y)
    changed = [np.array(leaf, float) for leaf in leaves]
    row = rng.integers(6)
    changed[-1][row] = wrong
    broken = structure.unflatten(changed)
    with pytest.raises(ValueError, match="takes"):
        rule.family.check_responses(broken, many.shape)
    rule.family.check_responses(broken, many.shape, np.arange(6) != row)


PARTS = (
    (f.Gaussian(0.7), 1), (f.Bernoulli(), 1), (f.Poisson(), 1), (f.Gaussian([0.5, 2.0]), 2), (f.Categorical(), 3),
    (f.HeteroscedasticGaussian(), 2), (f.Mixture(f.Bernoulli(), 2), 4),
)  # fmt: skip


@relation(
    chosen=st.lists(st.sampled_from(range(len(PARTS))), min_size=2, max_size=3),
    positions=st.sampled_from([0, 1, 2]), inner=st.booleans(), seed=SEEDS, thorough=40,
)  # fmt: skip
def test_a_product_is_its_parts_side_by_side(chosen, positions, inner, seed):
    """Each has outputs [N *T C], or [N *T K C] of K responses beside each other."""
    rng = np.random.default_rng(seed)
    leading = (3, 2, 2)[: 1 + positions]
    families = tuple(PARTS[k][0] for k in chosen)
    shapes = [(*leading, *((2,) if inner and k % 2 else ()), PARTS[k][1]) for k in chosen]
    outputs = tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    product = _outputs.Product(families, outputs, positions)
    z = product.join(outputs)
    assert z.shape == (*leading, sum(np.prod(shape[1 + positions :], dtype=int) for shape in shapes))
    y = product.sample(jax.random.key(seed), z)
    for found, output in zip(product.split(z), outputs, strict=True):
        np.testing.assert_array_equal(found, output)
    v = tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)

    def each(method: str, *values: Any) -> list[np.ndarray]:
        rows = zip(families, outputs, *values, strict=True)
        return [np.asarray(getattr(family, method)(*row)) for family, *row in rows]

    whole = lambda parts: np.concatenate([part.reshape(*leading, -1) for part in parts], -1)  # noqa: E731
    product.check_responses(y, z.shape)
    assert_close(product.log_prob(z, y), whole(each("log_prob", y)).sum(-1))
    assert_close(product.score(z, y), whole(each("score", y)))
    assert_close(product.metric_product(z, product.join(v)), whole(each("metric_product", v)))
    assert_close(product.metric_sqrt_product(z, product.join(v)), whole(each("metric_sqrt_product", v)))
    assert_close(product.metric_diagonal(z), whole(each("metric_diagonal")))


@relation(dtype=st.sampled_from(["float64", "float32", "bfloat16"]), classes=st.integers(2, 9), seed=SEEDS, thorough=40)
def test_rows_of_probabilities_are_told_from_logits(dtype, classes, seed):
    family, logits = f.Categorical(), jnp.asarray(np.random.default_rng(seed).normal(size=(3, classes)), dtype)
    rows = jax.nn.softmax(logits, -1)
    assert np.all(family.mistaken(rows))
    for others in (logits, rows / 2, rows / 4, jax.nn.log_softmax(logits, -1)):
        assert not np.any(family.mistaken(others))


@relation(size=st.integers(2, 4), seed=SEEDS, thorough=40)
def test_a_covariance_is_a_symmetric_positive_definite_matrix(size, seed):
    root = np.random.default_rng(seed).normal(size=(size, size))
    covariance, skew = root @ root.T + 0.1 * np.eye(size), np.triu(np.ones((size, size)), 1)
    inverse = f.MultivariateGaussian(covariance).metric(jnp.zeros((1, size)))[0]
    assert_close(inverse @ covariance, np.eye(size), 1e-8)
    least = np.linalg.eigvalsh(covariance)[0]
    for wrong in (covariance + skew, covariance - 1.1 * least * np.eye(size), covariance[:-1], covariance[0]):
        with pytest.raises(ValueError, match="symmetric positive definite"):
            f.MultivariateGaussian(wrong)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_compiled_programs")
class TestEachRelationNoticesAFault:
    def test_a_constant_of_a_density(self, monkeypatch):
        monkeypatch.setattr(f.Gaussian, "log_base_measure", lambda self, y: -0.5 * jnp.square(y))
        fails(test_the_metric_is_the_covariance_of_the_score_and_its_mean_slope, name=st.just("gaussian"))

    def test_a_metric_of_another_density(self, monkeypatch):
        before = f.HeteroscedasticGaussian.metric_diagonal
        monkeypatch.setattr(f.HeteroscedasticGaussian, "metric_diagonal", lambda self, z: 2 * before(self, z))
        fails(test_the_metric_is_the_covariance_of_the_score_and_its_mean_slope, name=st.just("two variances"))

    def test_a_far_divergence(self, monkeypatch):
        monkeypatch.setattr(exponential, "_excess", lambda z, at: jax.nn.logsumexp(at, -1))
        fails(test_moments_and_divergences_are_expectations, name=st.just("categorical"))

    def test_tails_of_rare_counts(self, monkeypatch):
        before = _sampling._by_tails
        monkeypatch.setattr(_sampling, "_by_tails", lambda key, log_prob: before(key, lambda k: log_prob(k) + 0.2))
        fails(test_draws_have_the_characteristic_function_of_the_density, name=st.just("poisson"))

    def test_responses_beyond_the_support(self, monkeypatch):
        monkeypatch.setattr(AbstractDistribution, "check_responses", lambda *_: None)
        fails(test_draws_are_responses_and_other_values_are_not, name=st.just("poisson"))

    def test_parts_in_another_order(self, monkeypatch):
        before = _outputs.Product._each
        turned = lambda self, name, z, *values: before(self, name, z, *values)[..., ::-1]  # noqa: E731
        monkeypatch.setattr(_outputs.Product, "_each", turned)
        fails(test_a_product_is_its_parts_side_by_side)

    def test_any_matrix_for_a_covariance(self, monkeypatch):
        monkeypatch.setattr(_outputs.np, "allclose", lambda *_: True)
        fails(test_a_covariance_is_a_symmetric_positive_definite_matrix)

    def test_logits_that_are_taken_for_probabilities(self, monkeypatch):
        monkeypatch.setattr(f.Categorical, "mistaken", lambda self, z: jnp.all((z >= 0) & (z <= 1), -1))
        fails(test_rows_of_probabilities_are_told_from_logits)
