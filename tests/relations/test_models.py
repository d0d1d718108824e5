"""Models whose matrix is known twice: normalized GLMs, heads with many classes, and losses of other libraries."""

import functools

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from lngeom.information import VocabularyHead, _closed_form, _krylov, _vocabulary, conventions, glm, groups, predicted
from lngeom.methods import BatchNormEvaluation, readings

from tests.cases import definition, metric_of, normalizers
from tests.information.test_divided_params import _problem as spectrum
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation

SEEDS = st.integers(0, 999)
H, D, N = 4, 3, 15
METHODS = tuple(normalizers(H, D))
INDEPENDENT = (lg.families.Bernoulli(), lg.families.Gaussian(0.7), lg.families.Poisson())
FAMILIES = (*INDEPENDENT, lg.families.Categorical())


def drawn(name, family, seed, samples=N, eps=0.1):
    """A normalized GLM with parameters and inputs."""
    rng = np.random.default_rng(seed)
    model = lg.NormalizedGLM(normalizers(H, D, eps)[name], family)
    parts = rng.normal(size=(H, D)), 0.3 * rng.normal(size=H), 0.5 + rng.random(H)
    return model, lg.GLMParameters(*map(jnp.asarray, parts)), jnp.asarray(rng.normal(size=(samples, D))), rng


@functools.cache
def plain(name, family):
    model = lg.NormalizedGLM(normalizers(H, D, 0.1)[name], FAMILIES[family])
    return definition(model.natural_parameters, metric_of(FAMILIES[family]))


@relation(each={"name": METHODS}, family=st.sampled_from(range(len(FAMILIES))), seed=SEEDS, thorough=20)
def test_a_normalized_glm_is_its_index_formula_and_its_matrix_the_definition(name, family, seed):
    """Samples have weights, some of them 0."""
    model, params, X, rng = drawn(name, FAMILIES[family], seed)
    if not isinstance(model.normalizer, BatchNormEvaluation):  # whose statistics are of other inputs
        n = readings.normalized(model.normalizer, np.asarray(params.weights), np.asarray(X))
        assert_close(model.natural_parameters(params, X), n * params.gain + params.bias, 1e-12)
    weights = np.maximum(rng.uniform(-0.5, 2, N), 0)
    matrix = np.asarray(plain(name, family)(params, X, jnp.asarray(weights)))
    F = lg.fisher(model, params, X, mask=weights)
    assert_same_matrix(F.as_matrix(), matrix)
    assert_close(F.diagonal(), np.diagonal(matrix))
    v = jnp.asarray(rng.normal(size=len(matrix)))
    assert_close(F.mv(v), matrix @ v)


@relation(
    each={"name": METHODS}, family=st.sampled_from([lg.families.Gamma(), lg.families.Poisson()]),
    inputs=st.sampled_from([1, 8, 60]), outputs=st.sampled_from([12, 48]), seed=SEEDS, thorough=20,
)  # fmt: skip
def test_a_fresh_model_keeps_the_size_of_its_inputs_and_its_domain(name, family, inputs, outputs, seed):
    model = lg.NormalizedGLM(normalizers(outputs, inputs, 0.1)[name], family)
    params = model.init(jax.random.key(seed), inputs=inputs, outputs=outputs)
    size = params.weights.size
    assert abs(inputs * float(jnp.mean(jnp.square(params.weights))) - 1) <= 6 * (2 / size) ** 0.5
    X = 5 * jnp.asarray(np.random.default_rng(seed).normal(size=(20, inputs)))
    if name not in {"identity", "batch_evaluation"}:  # others bound what they return
        assert float(jnp.max(model.natural_parameters(params, X))) < family.upper


@relation(
    each={"name": METHODS}, joint=st.booleans(), zeros=st.integers(0, 2), rank=st.sampled_from([1, D]), seed=SEEDS,
    thorough=20,
)  # fmt: skip
def test_a_predicted_null_space_is_the_measured_one(name, joint, zeros, rank, seed):
    """With gains of zero, and weights or inputs of lower rank."""
    family = lg.families.Categorical() if joint else lg.families.Bernoulli()
    model, params, X, _ = drawn(name, family, seed, 60, 0.0)
    if rank < D:
        X = X.at[:, 0].set(X[:, 1] + X[:, 2])
    params = lg.GLMParameters(params.weights, params.bias, params.gain.at[:zeros].set(0.0))
    found = lg.predicted_nullspace(model, params, X)
    rows = np.asarray(lg.fisher(model, params, X).factor())
    s = np.linalg.svd(rows, compute_uv=False)
    measured = params.size - int(np.sum(s > 1e-9 * s[0]))
    assert found.dimension == measured if found.exact else found.dimension <= measured
    assert np.abs(rows @ found.basis).max(initial=0) <= 1e-7 * s[0]


@relation(each={"name": METHODS}, inputs=st.integers(1, 4), seed=SEEDS, thorough=20)
def test_of_one_class_every_direction_is_null(name, inputs, seed):
    rng = np.random.default_rng(seed)
    known = normalizers(2, inputs, 0.1)
    if name not in known or name == "batch_evaluation":  # whose statistics are of two units
        return
    model = lg.NormalizedGLM(known[name], lg.families.Categorical())
    shapes = (1, inputs), (1,), (1,)
    params = lg.GLMParameters(*(jnp.asarray(0.5 + rng.random(shape)) for shape in shapes))
    found = lg.predicted_nullspace(model, params, jnp.asarray(rng.normal(size=(9, inputs))))
    assert_close(found.basis @ found.basis.T, np.eye(inputs + 2))
    assert found.dimension == inputs + 2


@relation(
    bias=st.booleans(), tied=st.booleans(), positions=st.booleans(), block=st.integers(1, 20),
    scale=st.sampled_from([1.0, 60.0]), seed=SEEDS, thorough=60,
)  # fmt: skip
def test_a_head_in_blocks_is_that_of_all_logits(bias, tied, positions, block, scale, seed):
    """Also where a probability rounds to 1."""
    rng = np.random.default_rng(seed)
    classes, width, shape = 17, 3, (5, 2) if positions else (5,)
    params = {"layer": rng.normal(size=(width, width)), "head": rng.normal(size=(classes, width))}
    params |= {"bias": rng.normal(size=classes)} if bias else {}
    X = rng.integers(0, classes, shape) if tied else rng.normal(size=(*shape, width))

    def features(p, x):
        h = scale * lg.nn.layer_norm((p["head"][x] if tied else x) @ p["layer"], eps=0.1)
        return (h, p["head"], p["bias"]) if bias else (h, p["head"])

    def logits(p, x):
        h, head, *rest = features(p, x)
        return h @ head.T + sum(rest)

    params, mask = jax.tree.map(jnp.asarray, params), rng.integers(0, 3, shape) / 2
    routes = VocabularyHead(features, block), logits
    blocked, plainly = (
        lg.fisher(f, params, jnp.asarray(X), family=lg.families.Categorical(), mask=mask) for f in routes
    )
    v = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)
    assert_close(ravel_pytree(blocked.mv(v))[0], ravel_pytree(plainly.mv(v))[0])
    assert_close(blocked.quadratic_form(v), plainly.quadratic_form(v))


KNOWN = [(c.library, c.loss) for c in conventions.CONVENTIONS if c.library.split()[0] in {"curvlinops", "laplax"}]
LOSSES = {
    "mse": (lg.families.Gaussian(), lambda z, y: jnp.square(z - y)),
    "bce": (lg.families.Bernoulli(), lambda z, y: jax.nn.softplus(z) - z * y),
    "cross_entropy": (lg.families.Categorical(), lambda z, y: jax.nn.logsumexp(z, -1) - jnp.sum(z * y, -1)),
}


@relation(
    each={"known": KNOWN}, samples=st.sampled_from([4, 7]), outputs=st.sampled_from([2, 3]), seed=SEEDS, thorough=10
)
def test_a_loss_of_another_library_has_the_multiple_of_its_convention(known, samples, outputs, seed):
    """Of a linear function the Hessian of the loss is its Gauss–Newton matrix."""
    name, reduction = known[1].split(", ")
    family, each = LOSSES[name]
    rng = np.random.default_rng(seed)
    X, W = jnp.asarray(rng.normal(size=(samples, D))), jnp.asarray(rng.normal(size=(D, outputs)))
    y = jax.nn.softmax(jnp.asarray(rng.normal(size=(samples, outputs))))
    loss = lambda w: getattr(jnp, reduction)(each(X @ w.reshape(W.shape), y))  # noqa: E731
    F = definition(lambda p, x: x @ p, metric_of(family))(W, X)
    factor = conventions.scaling(*known, samples=samples, outputs=outputs)
    assert_close(jax.jit(jax.hessian(loss))(W.reshape(-1)), factor * F, 1e-9)


@relation(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), together=st.integers(1, 3), seed=SEEDS, thorough=40
)
def test_the_sets_of_leaves_that_share_a_norm_are_found(sizes, together, seed):
    """Beside a leaf without a norm, and one whose norm has an ε."""
    rng = np.random.default_rng(seed)
    names = [tuple(f"{'abc'[j]}{k}" for k in range(size)) for j, size in enumerate(sizes)]
    params = {name: jnp.asarray(rng.normal(size=(2, 3))) for chosen in names for name in chosen}
    params |= {"plain": jnp.asarray(rng.normal(size=3)), "eps": jnp.asarray(rng.normal(size=3))}

    def apply(p):
        parts = [jnp.concatenate([p[name] for name in chosen]).reshape(-1) for chosen in names]
        broken = p["eps"] / jnp.sqrt(jnp.sum(jnp.square(p["eps"])) + 0.01)
        return jnp.concatenate([*(v / jnp.linalg.norm(v) for v in parts), p["plain"], broken])

    for epsilon in (False, True):
        most = {chosen for chosen in names if len(chosen) <= together} | ({("eps",)} if epsilon else set())
        assert set(groups.scale_invariant_groups(apply, params, together=together, epsilon=epsilon).values()) == most
        all_of = set(names) | ({("eps",)} if epsilon else set())
        assert set(groups.scale_invariant_groups(apply, params, epsilon=epsilon).values()) == all_of


@relation(copies=st.lists(st.integers(1, 3), min_size=4, max_size=6), count=st.integers(1, 5), seed=SEEDS, thorough=40)
def test_leading_pairs_are_found_with_their_multiplicities(copies, count, seed):
    large = np.repeat(np.arange(len(copies), 0, -1.0) + 3, copies)
    values = np.concatenate([large, np.linspace(2, 0, 60)])
    matrix, product, start = spectrum(values)
    found = _krylov.leading(product, start, count, key=jax.random.key(seed), tolerance=1e-8)
    assert_close(found.values, values[:count], 1e-9)
    vectors = np.concatenate([found.vectors["a"].reshape(count, -1), found.vectors["b"]], 1)
    assert_close(vectors @ vectors.T, np.eye(count))
    assert np.linalg.norm(np.asarray(matrix) @ vectors.T - vectors.T * found.values, axis=0).max() < 1e-6


@pytest.mark.thorough
@pytest.mark.usefixtures("without_compiled_programs")
class TestEachRelationNoticesAFault:
    def test_an_affine_map(self, monkeypatch):
        monkeypatch.setattr(glm, "_affine", lambda n, gain, bias: n * gain[None] - bias[None])
        fails(test_a_normalized_glm_is_its_index_formula_and_its_matrix_the_definition, name=st.just("layer"))

    def test_weights_of_samples(self, monkeypatch):
        before = _closed_form.dense
        root = lambda *a, weights=None, **k: before(*a, weights=None if weights is None else weights**0.5, **k)  # noqa: E731
        monkeypatch.setattr(_closed_form, "dense", root)
        fails(test_a_normalized_glm_is_its_index_formula_and_its_matrix_the_definition, name=st.just("layer"))

    def test_the_size_of_fresh_weights(self, monkeypatch):
        monkeypatch.setattr(glm, "draw_small", lambda draw, key, shape, dtype: 2 * draw(key, shape, dtype))
        fails(test_a_fresh_model_keeps_the_size_of_its_inputs_and_its_domain, name=st.just("layer"))

    def test_functions_that_units_share(self, monkeypatch):
        monkeypatch.setattr(predicted, "_add_shared_functions", lambda *_: None)
        fails(test_a_predicted_null_space_is_the_measured_one, name=st.just("weight"), joint=st.just(True))

    def test_shares_of_positions(self, monkeypatch):
        monkeypatch.setattr(_vocabulary.HeadMetric, "_share", property(lambda self: 1.001 / self.samples))
        fails(test_a_head_in_blocks_is_that_of_all_logits)

    def test_few_of_all_directions(self, monkeypatch):
        before = predicted._everything
        monkeypatch.setattr(predicted, "_everything", lambda into: tuple(part[:-1] for part in before(into)))
        fails(test_of_one_class_every_direction_is_null, name=st.just("layer"))

    def test_a_convention(self, monkeypatch):
        monkeypatch.setattr(conventions, "scaling", lambda library, loss, samples, outputs=1: float(samples))
        fails(test_a_loss_of_another_library_has_the_multiple_of_its_convention)

    def test_sets_of_few_leaves(self, monkeypatch):
        before = groups._disjoint_sets
        monkeypatch.setattr(groups, "_disjoint_sets", lambda *a: before(*a)[:1])
        fails(test_the_sets_of_leaves_that_share_a_norm_are_found, draws=20)

    def test_copies_of_an_eigenvalue(self, monkeypatch):
        before = _krylov.normal_like
        monkeypatch.setattr(_krylov, "normal_like", lambda key, tree: jax.tree.map(jnp.zeros_like, before(key, tree)))
        fails(test_leading_pairs_are_found_with_their_multiplicities)
