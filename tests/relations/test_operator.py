"""One operator, one matrix: by products, rows, blocks and spectra, inside and outside of jit and vmap."""

import pickle
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import lineax as lx
import lngeom as lg
import numpy as np
import optax
import pytest
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from tests.relations.models import FAMILIES, MODELS, ROWS, C, D, N, cases, plain
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation

SEEDS = st.integers(0, 999)


def vectors(F, *shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(F.in_size(), *shape)))


@relation(case=cases(), seed=SEEDS, thorough=80)
def test_every_way_to_the_matrix_is_one(case, seed):
    F, matrix = case.fisher(), plain(case)
    assert_same_matrix(F.as_matrix(), matrix)
    assert_same_matrix(F.mm(jnp.eye(len(matrix))), matrix)
    assert_close(F.diagonal(), np.diagonal(matrix))
    assert_close(F.trace(), np.trace(matrix))
    rows = np.asarray(F.factor())
    assert_same_matrix(rows.T @ rows, matrix)
    s = np.asarray(F.singular_values())
    assert_close(s**2, np.linalg.eigvalsh(matrix)[::-1][: len(s)], 1e-8)
    v = vectors(F, seed=seed)
    assert_close(F.quadratic_form(v), v @ matrix @ v)


@relation(case=cases(), seed=SEEDS, thorough=60)
def test_every_kind_of_vector_gives_its_own_kind(case, seed):
    F, matrix = case.fisher(), plain(case)
    flat = vectors(F, seed=seed)
    tree = F.problem.unravel(flat)
    columns = vectors(F, 3, seed=seed)
    inverse = np.linalg.inv(matrix + 0.1 * np.eye(len(flat)))
    for act, expected in ((F.mv, matrix), (lambda v: F.solve(v, 0.1).value, inverse)):
        assert_close(ravel_pytree(act(tree))[0], expected @ flat, 1e-7)
        assert jax.tree.structure(act(tree)) == jax.tree.structure(case.params)
        for v in (flat, np.asarray(flat)):
            assert_close(act(v), expected @ flat, 1e-7)
        assert_close(act(columns), expected @ columns, 1e-7)
    for v in (tree, flat, np.asarray(flat), columns):
        back = F.project_horizontal(v)
        assert jax.tree.structure(back) == jax.tree.structure(v)
        assert_close(ravel_pytree(F.mv(back))[0], ravel_pytree(F.mv(v))[0], 1e-6)


@pytest.mark.filterwarnings("ignore:.*a symmetry that only eps breaks:RuntimeWarning")
@relation(case=cases(MODELS[:4]), seed=SEEDS, thorough=40)
def test_inside_jit_and_vmap_it_is_what_it_is_outside(case, seed):
    F = case.fisher()
    V = vectors(F, 2, seed=seed)
    apply, family = case.model.apply, case.family
    inside = jax.jit(lambda p, X, V: lg.fisher(apply, p, X, family=family).mm(V))(case.params, case.X, V)
    assert_close(inside, F.mm(V))
    assert_close(jax.vmap(F.mv, 1, 1)(V), F.mm(V))
    matrices = jax.jit(lambda p, X: lg.fisher(apply, p, X, family=family).as_matrix())(case.params, case.X)
    assert_same_matrix(matrices, plain(case))
    stacked = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), case.params)
    traces = jax.vmap(lambda p: lg.fisher(apply, p, case.X, family=family).trace())(stacked)
    assert_close(traces[0], np.trace(plain(case)))
    solved = jax.jit(lambda p, g: lg.fisher(apply, p, case.X, family=family).solve(g, 0.1).value)(case.params, V[:, 0])
    assert_close(solved, F.solve(V[:, 0], 0.1).value, 1e-6)


@pytest.mark.filterwarnings("ignore:.*a symmetry that only eps breaks:RuntimeWarning")
@relation(case=cases(), damping=st.sampled_from([1e-2, 1.0]), method=st.sampled_from(["svd", "cg"]), thorough=60)
def test_a_solution_multiplied_is_what_was_solved_for(case, damping, method):
    F = case.fisher()
    g = vectors(F)
    x = F.solve(g, damping, method=method, tolerance=1e-11).value
    assert_close(F @ x + damping * x, g, 1e-8)
    w = F.solve(F @ g).value
    assert_close(F @ w, F @ g, 1e-5)


@pytest.mark.filterwarnings("ignore:.*a symmetry that only eps breaks:RuntimeWarning")
@relation(case=cases(), damping=st.sampled_from([0.1, 1.0]), k=st.integers(1, 4), thorough=40)
def test_null_directions_are_kept_or_dropped_as_is_said(case, damping, k):
    """A leaf that is unused, and one of which the sum alone counts, are such directions in every model."""

    def apply(p, x):
        return case.model.apply(p["net"], x) * jnp.exp(0.1 * jnp.sum(p["sum"]))

    F = case.fisher(apply, {"net": case.params, "sum": jnp.ones(3), "unused": jnp.ones(2)})
    matrix, g = np.asarray(F.as_matrix()), vectors(F)
    values = np.linalg.eigvalsh(matrix)
    _, small, rows = np.linalg.svd(F.factor())  # squared, a scale that an ε breaks would be as small as rounding
    null = rows[np.sum(small > 1e-11 * small[0]) :].T
    shifted = np.linalg.inv(matrix + damping * np.eye(len(matrix)))
    rest = g - null @ (null.T @ g)
    for null_part, expected in (("keep", shifted @ g), ("drop", shifted @ rest)):
        known = {"method": "cg", "nullspace": jnp.asarray(null), "tolerance": 1e-11}
        for options in ({"method": "svd"}, known):
            assert_close(F.solve(g, damping, null=null_part, **options).value, expected, 1e-5)
    with pytest.raises(ValueError, match="needs the null space"):
        F.solve(g, damping, null="drop", method="cg")
    assert_close(F.solve(g, method="svd").value, F.solve(rest, method="svd").value, 1e-4)
    pairs = F.eigenpairs(k)
    assert_close(pairs.values, values[::-1][:k], 1e-7)
    assert_close(F.eigenvalues(k), values[::-1][:k], 1e-7)
    s = np.asarray(F.singular_values())
    between = np.sqrt(s[k - 1] * s[k]) / s[0]
    decision = F.decompose(rtol=between).decision
    assert decision.rank == np.sum(s > between * s[0])
    assert_close([decision.gap, decision.threshold], [s[k - 1] / s[k], between * s[0]], 1e-6)


@pytest.mark.filterwarnings("ignore:.*a symmetry that only eps breaks:RuntimeWarning")
@relation(units=st.sampled_from([3, 4]), damping=st.sampled_from([0.0, 1e-3]), seed=SEEDS, thorough=40)
def test_a_scale_that_only_epsilon_breaks_is_projected_out(units, damping, seed):
    """The solution is that of F on the directions at right angles to it and to those that are null."""
    rng = np.random.default_rng(seed)
    params = {"v": jnp.asarray(rng.normal(size=(units, 2))), "w": jnp.asarray(rng.normal(size=(D, units)))}
    apply = lambda p, x: lg.nn.layer_norm(x @ p["w"], eps=1e-7) @ p["v"]  # noqa: E731
    F = lg.fisher(apply, params, jnp.asarray(rng.normal(size=(40, D))), family=lg.families.Gaussian())
    matrix, g = np.asarray(F.as_matrix()), vectors(F, seed=seed)
    scale = np.concatenate([np.zeros(params["v"].size), np.ravel(params["w"])])
    others = np.linalg.svd(scale[None])[2][1:].T
    values, directions = np.linalg.eigh(others.T @ matrix @ others)
    seen = values > 1e-10 * values[-1]
    kept = others @ directions[:, seen]
    found = F.solve(g, damping, method="svd", gauge="broken")
    assert_close(found.value, kept @ ((kept.T @ g) / (values[seen] + damping)), 1e-4)
    assert found.rank == np.sum(seen)


@relation(case=cases(), data=st.data(), thorough=40)
def test_blocks_are_those_of_the_matrix(case, data):
    F, names = case.fisher(), sorted(case.params)
    i, j = (data.draw(st.sampled_from(names)) for _ in range(2))
    edges = np.cumsum([0, *(case.params[name].size for name in names)])
    rows, columns = (slice(edges[k], edges[k + 1]) for k in map(names.index, (i, j)))
    assert_close(F.block(i, j), plain(case)[rows, columns], 1e-7)


@relation(case=cases(MODELS[:5]), thorough=30, quick=0)
def test_another_library_reads_the_same_operator(case):
    F = case.fisher()
    v = vectors(F)
    assert_close(F.as_scipy() @ np.asarray(v), F @ v)
    damped = lx.TaggedLinearOperator(
        F + 0.1 * lx.IdentityLinearOperator(F.in_structure()), lx.positive_semidefinite_tag
    )
    found = lx.linear_solve(damped, F.problem.unravel(v), lx.CG(1e-11, 1e-11)).value
    assert_close(ravel_pytree(found)[0], F.solve(v, 0.1).value, 1e-6)
    again = pickle.loads(pickle.dumps(F))
    assert_same_matrix(again.as_matrix(), plain(case))


@relation(case=cases(ROWS, FAMILIES[:3]), tau=st.sampled_from([0.1, 1.0, 10.0]), thorough=40)
def test_a_posterior_is_its_formula_on_the_matrix(case, tau):
    labels = isinstance(case.family, lg.families.Categorical)
    y = np.zeros(N, int) if labels else np.zeros((N, C))
    found = lg.laplace(case.model.apply, case.params, case.X, y, family=case.family, prior_precision=tau, gauge=False)
    theta, unravel = ravel_pytree(case.params)
    precision = N * plain(case) + tau * np.eye(theta.size)
    J = np.asarray(jax.jacobian(lambda t: case.model.apply(unravel(t), case.X[:2]))(theta))
    assert_close(found.covariance(case.X[:2]), J @ np.linalg.inv(precision) @ J.swapaxes(1, 2), 1e-6)
    log_p = float(jnp.sum(case.family.log_prob(case.model.apply(case.params, case.X), jnp.asarray(y))))
    evidence = log_p - tau / 2 * float(theta @ theta) - np.linalg.slogdet(precision / tau)[1] / 2
    assert_close(found.log_evidence, evidence, 1e-8)
    low, high = tau * 1e-3, tau / 4
    best = found.maximize_evidence(low, high)
    assert low <= best.prior_precision <= high
    around = [replace(found, prior_precision=float(t)).log_evidence for t in np.geomspace(low, high, 9)]
    assert best.log_evidence >= max(around) - 1e-4 * abs(best.log_evidence)


@relation(case=cases(ROWS, FAMILIES[:3]), damping=st.sampled_from([1e-2, 0.5]), scheduled=st.booleans(), thorough=40)
def test_a_natural_gradient_is_its_formula_on_the_matrix(case, damping, scheduled):
    given = (lambda step: damping / (1 + step)) if scheduled else damping
    opt = lg.training.natural_gradient(case.model.apply, family=case.family, approximation=None, damping=given)
    g = jax.tree.map(lambda a: jnp.cos(a), case.params)
    found, state = opt.update(g, opt.init(case.params), case.params, inputs=case.X)
    flat, matrix = np.asarray(ravel_pytree(g)[0]), plain(case)
    assert_close(ravel_pytree(found)[0], np.linalg.solve(matrix + damping * np.eye(len(flat)), flat), 1e-5)
    second, _ = opt.update(g, state, case.params, inputs=case.X)
    then = damping / 2 if scheduled else damping
    assert_close(ravel_pytree(second)[0], np.linalg.solve(matrix + then * np.eye(len(flat)), flat), 1e-5)


@relation(case=cases(ROWS[1:]), data=st.data(), thorough=30)
def test_a_natural_gradient_of_some_leaves_moves_these_alone(case, data):
    trained = data.draw(st.sampled_from(sorted(case.params)))
    g = jax.tree.map(jnp.cos, case.params)
    options = {"family": case.family, "approximation": None, "damping": 0.1}
    opt = lg.training.natural_gradient(case.model.apply, wrt=trained, **options)
    found, _ = opt.update(g, opt.init(case.params), case.params, inputs=case.X)
    rest = {k: v for k, v in case.params.items() if k != trained}
    alone = lg.training.natural_gradient(lambda p, x: case.model.apply(p | rest, x), **options)
    own = {trained: case.params[trained]}
    expected, _ = alone.update({trained: g[trained]}, alone.init(own), own, inputs=case.X)
    assert_close(found[trained], expected[trained], 1e-6)
    assert not any(np.any(found[k]) for k in rest)
    hidden = optax.masked(lg.training.natural_gradient(case.model.apply, **options), {k: k == trained for k in g})
    with pytest.raises(ValueError, match="wrt="):
        hidden.update(g, hidden.init(case.params), case.params, inputs=case.X)


@relation(
    seed=SEEDS, groups=st.sampled_from([1, 2]), alike=st.sampled_from(["generic", "one line", "copies", "signs"]),
    joint=st.booleans(), eps=st.sampled_from([0.0, 0.1]), thorough=60,
)  # fmt: skip
def test_a_predicted_null_space_that_is_exact_is_the_measured_one(seed, groups, alike, joint, eps):
    rng = np.random.default_rng(seed)
    W, X, line = rng.normal(size=(6, D)), rng.normal(size=(150, D)), rng.normal(size=D)
    if alike == "one line":
        W = np.outer(rng.normal(size=6), line) + np.repeat(rng.normal(size=(2, D)), 3, 0)
    if alike == "copies":
        W[3:] = W[:3]
    if alike == "signs":
        other = line + 0.01 * rng.normal(size=D)
        W = np.outer(rng.normal(size=6), line)
        W[3:] = np.outer(rng.normal(size=3), other)
        X = X[np.sign(X @ line) == np.sign(X @ other)]
    family = lg.families.Categorical() if joint else lg.families.Bernoulli()
    model = lg.NormalizedGLM(lg.normalizers.GroupNorm(groups, eps=eps), family)
    params = lg.GLMParameters(*map(jnp.asarray, (W, rng.normal(size=6), 1 + rng.random(6))))
    predicted = lg.predicted_nullspace(model, params, jnp.asarray(X))
    F = lg.fisher(model, params, jnp.asarray(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a rank that is not clear
        rank = F.rank()
    measured = F.in_size() - rank.interval[0]
    assert predicted.dimension <= measured
    if predicted.exact:
        assert predicted.dimension in range(F.in_size() - rank.interval[1], measured + 1)


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_rows(self, monkeypatch):
        from lngeom.information import _derivative

        original = _derivative.Metric.sqrt_product
        monkeypatch.setattr(_derivative.Metric, "sqrt_product", lambda self, dz: 1.1 * original(self, dz))
        jax.clear_caches()
        fails(test_every_way_to_the_matrix_is_one)
        jax.clear_caches()

    def test_kinds(self, monkeypatch):
        from lngeom._core.trees import Layout

        original = Layout.kind_of
        monkeypatch.setattr(
            Layout, "kind_of", lambda self, v: "tangent" if isinstance(v, np.ndarray) else original(self, v)
        )
        fails(test_every_kind_of_vector_gives_its_own_kind)

    def test_damping(self, monkeypatch):
        from lngeom.information import _solve

        original = _solve.solve
        monkeypatch.setattr(_solve, "solve", lambda F, g, damping, *a, **k: original(F, g, damping * 1.01, *a, **k))
        fails(test_a_solution_multiplied_is_what_was_solved_for)
        fails(test_a_natural_gradient_is_its_formula_on_the_matrix)

    def test_null_directions_that_stay(self, monkeypatch):
        from lngeom.information import _solve

        original = _solve.solve
        monkeypatch.setattr(_solve, "solve", lambda *a, null_part: original(*a, null_part="keep"))
        fails(test_null_directions_are_kept_or_dropped_as_is_said)

    def test_broken_scales_that_stay(self, monkeypatch):
        from lngeom.information import _solve

        monkeypatch.setattr(_solve, "without", lambda decomposition, extra: decomposition)
        fails(test_a_scale_that_only_epsilon_breaks_is_projected_out)

    def test_a_block_of_other_leaves(self, monkeypatch):
        from lngeom.information import _operator

        original = _operator.leaf_slices
        backwards = lambda tree: dict(zip(original(tree), reversed(original(tree).values()), strict=True))  # noqa: E731
        monkeypatch.setattr(_operator, "leaf_slices", backwards)
        fails(test_blocks_are_those_of_the_matrix, draws=40)

    def test_samples_of_a_posterior(self, monkeypatch):
        from lngeom.information import posterior

        original = posterior.Eigenpairs.power
        monkeypatch.setattr(
            posterior.Eigenpairs, "power", lambda self, v, scale, tau, e: original(self, v, scale + 1, tau, e)
        )
        jax.clear_caches()
        fails(test_a_posterior_is_its_formula_on_the_matrix)
        jax.clear_caches()

    def test_leaves_that_are_not_trained(self, monkeypatch):
        from lngeom.training import natural

        original = natural.fisher
        monkeypatch.setattr(natural, "fisher", lambda *a, wrt, **k: original(*a, wrt=None, **k))
        fails(test_a_natural_gradient_of_some_leaves_moves_these_alone)

    def test_groups_that_move_alike(self, monkeypatch):
        from lngeom.information import predicted as nullspace

        monkeypatch.setattr(nullspace, "_add_common", lambda *a: None)
        fails(
            test_a_predicted_null_space_that_is_exact_is_the_measured_one,
            alike=st.sampled_from(["one line", "signs"]), groups=st.just(2), joint=st.just(True), eps=st.just(0.0),
        )  # fmt: skip
