"""The operator against an explicit JᵀΛJ, in every form it can be asked for."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from lngeom._core.numerics import agreement
from lngeom.information import _products, _spectrum, reference

from tests.cases import drawn
from tests.information import zoo

EXACT = 1e-13


def random_vector(F, seed=0):
    return jax.device_put(np.asarray(drawn(seed, F.in_size()), F.problem.dtype))


def assert_main_forms_are(F, matrix, tol=EXACT):
    """Compares products, the matrix and the factor with a matrix."""
    v, A = random_vector(F), F.factor()
    forms = {
        "as_matrix": (F.as_matrix(), matrix),
        "@ vector": (F @ v, matrix @ v),
        "factor": (A.T @ A, matrix),
    }
    wrong = {name: a.residual for name, (x, y) in forms.items() if not (a := agreement(x, y, tol)).agrees}
    assert not wrong


def assert_every_form_is(F, matrix, tol=EXACT):
    """Compares all forms of an operator with a matrix."""
    v = random_vector(F)
    V = jnp.stack([v, jnp.cos(v), v - 1], 1)
    A = F.factor()
    forms = {
        "as_matrix": (F.as_matrix(), matrix),
        "@ vector": (F @ v, matrix @ v),
        "mv": (ravel_pytree(F.mv(F.problem.unravel(v)))[0], matrix @ v),
        "@ matrix": (F @ V, matrix @ V),
        "mm": (F.mm(V), matrix @ V),
        "factor": (A.T @ A, matrix),
        "diagonal": (F.diagonal(), jnp.diagonal(matrix)),
        "trace": (F.trace(), jnp.trace(matrix)),
        "quadratic_form": (F.quadratic_form(v), v @ matrix @ v),
        "quadratic_form of columns": (F.quadratic_form(V), jnp.diagonal(V.T @ matrix @ V)),
        "scipy": (F.as_scipy() @ np.asarray(V), matrix @ V),
        "jit": (jax.jit(lambda F, v: F @ v)(F, v), matrix @ v),
        "jit as_matrix": (jax.jit(lambda F: F.as_matrix())(F), matrix),
    }
    wrong = {name: a.residual for name, (x, y) in forms.items() if not (a := agreement(x, y, tol)).agrees}
    assert not wrong


@pytest.mark.thorough
@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.__name__)
def test_exact_fisher_of_any_function_is_the_explicit_product(case):
    every = case in {zoo.layer_norm_network, zoo.batch_norm_network}
    case = case()
    compare = assert_every_form_is if every else assert_main_forms_are
    compare(case.fisher(), zoo.dense_reference(case))


@pytest.mark.thorough
@pytest.mark.parametrize("family", zoo.FAMILIES, ids=lambda f: type(f).__name__)
def test_exact_fisher_of_every_family_is_the_explicit_product(family):
    case = zoo.layer_norm_network()
    bias = case.params["last"]["bias"] - (9.0 if family.upper < np.inf else 0.0)
    case = case._replace(family=family, params=case.params | {"last": case.params["last"] | {"bias": bias}})
    assert_main_forms_are(case.fisher(), zoo.dense_reference(case))


def test_the_comparison_fails_on_a_wrong_matrix():
    case = zoo.plain_network()
    with pytest.raises(AssertionError, match="vector"):
        assert_main_forms_are(case.fisher(), 1.0000001 * zoo.dense_reference(case))


@pytest.mark.parametrize(
    ("normalizer", "family"),
    [("LayerNorm", lg.families.Bernoulli())]
    + [(name, lg.families.Categorical()) for name in ("RMSNorm", "BatchNorm", "WeightNorm", "Identity", "GroupNorm")],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_fisher_of_a_normalized_glm_is_the_explicit_product_by_both_doors(normalizer, family):
    arguments = {"groups": 2} if normalizer == "GroupNorm" else {}
    model = lg.NormalizedGLM(getattr(lg.normalizers, normalizer)(**arguments), family)
    params = model.init(jax.random.key(0), inputs=3, outputs=6)
    X = drawn(1, 30, 3)
    oracle = reference.by_definition(model, params, X)
    assert_main_forms_are(lg.fisher(model, params, X), oracle)
    coupled = model.normalizer.couples_samples
    generic = lg.fisher(model.natural_parameters, params, X, family=family, batch_coupled=coupled)
    assert_main_forms_are(generic, oracle)


@pytest.mark.parametrize("normalizer", [lg.normalizers.LayerNorm(), lg.normalizers.BatchNorm()])
def test_printed_fisher_is_equation_13(normalizer):
    from lngeom.information import reference

    model = lg.NormalizedGLM(normalizer, lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=5)
    params = lg.GLMParameters(params.weights, params.bias, params.gain * jnp.linspace(0.6, 1.4, 5))
    X = drawn(1, 30, 3)
    F = lg.fisher(model, params, X, method="printed")
    assert_main_forms_are(F, reference.as_printed(model, params, X))
    exact = lg.fisher(model, params, X).as_matrix()
    same = agreement(F.as_matrix(), exact, EXACT)
    assert same.agrees if normalizer.couples_samples else same.residual > 1e-2


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [1, 7, 39])
def test_chunks_change_nothing(chunk):
    case = zoo.layer_norm_network()
    F = case.fisher(chunk=chunk)
    assert F._stored is None
    assert_main_forms_are(F, zoo.dense_reference(case))
    assert agreement(F.singular_values(), case.fisher().singular_values(), EXACT).agrees


def test_streamed_factor_has_the_same_singular_values():
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    X = drawn(1, 500, 3)
    F = lg.fisher(model, params, X, chunk=6)
    whole = jnp.linalg.svd(F.factor(), compute_uv=False)
    assert agreement(F.singular_values(), whole, EXACT).agrees
    assert F.rank() == 20 - 4


@pytest.mark.thorough
def test_function_with_a_reverse_rule_only():
    case = zoo.custom_reverse_rule()
    reference = zoo.dense_reference(
        case._replace(apply=lambda p, x: jnp.tanh(x @ p[0] + p[1][None, :]) @ p[2] + p[3][None, :])
    )
    assert_main_forms_are(case.fisher(), reference)
    assert_main_forms_are(case.fisher(chunk=8), reference)


@pytest.mark.thorough
def test_blocks_are_slices_of_the_matrix():
    case = zoo.layer_norm_network()
    F = case.fisher()
    M = F.as_matrix()
    sizes = dict(zip(F.leaves, [leaf.size for leaf in jax.tree.leaves(case.params)], strict=True))
    start = {name: sum(list(sizes.values())[:k]) for k, name in enumerate(sizes)}
    for i, j in [("first.kernel", "norm.gain"), ("last.bias", "last.bias"), ("norm.gain", "first.kernel")]:
        piece = M[start[i] : start[i] + sizes[i], start[j] : start[j] + sizes[j]]
        assert agreement(F.block(i, j), piece, EXACT).agrees
    with pytest.raises(ValueError, match="no such leaf"):
        F.block("first", "last.bias")


def test_blocks_of_units_are_in_the_papers_order():
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    F = lg.fisher(model, params, drawn(1, 20, 3))
    paper = lg.to_paper_order(F.as_matrix(), 4, 3)
    assert agreement(F.as_matrix("paper"), paper, EXACT).agrees
    assert agreement(F.block(1, 3), paper[5:10, 15:20], EXACT).agrees
    with pytest.raises(ValueError, match="units are numbered"):
        F.block(0, 4)


@pytest.mark.thorough
def test_divergence_is_half_the_quadratic_form_on_every_trial():
    case = zoo.layer_norm_network()
    F = case.fisher()
    z = case.apply(case.params, case.X)
    flat, unravel = ravel_pytree(case.params)
    trials = jax.vmap(lambda key: jax.random.normal(key, flat.shape))(jax.random.split(jax.random.key(0), 50))

    @jax.jit
    @jax.vmap
    def divergences(delta):
        moved = lambda step: jnp.mean(case.family.kl(z, case.apply(unravel(flat + step * delta), case.X)))  # noqa: E731
        return jnp.stack([2 * moved(s) / s**2 for s in (1e-2, 1e-4, 1e-3, -1e-3, 2e-3, -2e-3)])

    far, near, *steps = (np.asarray(divergences(trials)) / np.asarray(F.quadratic_form(trials.T))[:, None]).T
    assert np.all(np.abs(np.sqrt(near) - 1) < 1e-2)
    assert np.median(np.abs(np.sqrt(near) - 1) / np.abs(np.sqrt(far) - 1)) < 0.02  # the remainder is linear in δ
    one, two = (steps[0] + steps[1]) / 2, (steps[2] + steps[3]) / 2
    limit = (4 * one - two) / 3  # without the terms linear and quadratic in δ
    assert np.all(np.abs(np.sqrt(limit) - 1) < 1e-7)


def test_products_are_functions_that_jit_and_vmap_take():
    F = zoo.layer_norm_network().fisher()
    vectors = drawn(2, F.in_size(), 9)
    tangents = jax.vmap(F.problem.unravel, 1)(vectors)
    assert agreement(jax.jit(F.mm)(vectors), F.mm(vectors), EXACT).agrees
    assert agreement(jax.jit(F.quadratic_form)(vectors), F.quadratic_form(vectors), EXACT).agrees
    products = jax.jit(jax.vmap(F.mv))(tangents)
    assert agreement(jax.vmap(F.problem.ravel)(products).T, F.mm(vectors), EXACT).agrees


@pytest.mark.parametrize("name", ["as_matrix", "diagonal", "trace", "factor", "singular_values", "effective_rank"])
def test_methods_are_functions_that_jit_takes(name):
    method = getattr(zoo.layer_norm_network().fisher(), name)
    assert agreement(jax.jit(method)(), method(), EXACT).agrees


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_many_vectors_one_by_one_are_as_many_products(count):
    F = zoo.layer_norm_network().fisher()
    vectors = drawn(2, F.in_size(), count)
    found = _products.products(F._stored, F._placement, vectors, 1)
    assert found.shape == vectors.shape
    if count:
        assert agreement(found, F.as_matrix() @ vectors, EXACT).agrees


def test_works_under_jit_from_construction_on():
    case = zoo.layer_norm_network()

    @jax.jit
    def inside(params, X):
        F = lg.fisher(case.apply, params, X, family=case.family)
        return F.as_matrix(), F.diagonal(), F.trace(), F.singular_values(), F.mm(jnp.eye(F.in_size())[:, :2])

    matrix, diagonal, trace, s, two = inside(case.params, case.X)
    reference = zoo.dense_reference(case)
    assert agreement(matrix, reference, EXACT).agrees
    assert agreement(diagonal, jnp.diagonal(reference), EXACT).agrees
    assert agreement(trace, jnp.trace(reference), EXACT).agrees
    assert agreement(jnp.square(s), jnp.linalg.eigvalsh(reference)[::-1], 1e-12).agrees
    assert agreement(two, reference[:, :2], EXACT).agrees


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_results_have_the_parameters_dtype(dtype):
    case = zoo.plain_network()
    cast = lambda tree: jax.tree.map(lambda a: a.astype(dtype), tree)  # noqa: E731
    F = lg.fisher(case.apply, cast(case.params), cast(case.X), family=case.family)
    v = random_vector(F)
    results = (
        F.as_matrix(),
        F @ v,
        F.mm(v[:, None]),
        F.factor(),
        F.singular_values(),
        F.trace(),
        F.quadratic_form(v),
    )
    assert {r.dtype for r in results} == {jnp.dtype(dtype)}


@pytest.mark.thorough
def test_a_progress_bar_changes_nothing_and_shows_on_a_terminal_alone(capsys, monkeypatch):
    F = zoo.layer_norm_network().fisher(chunk=7)
    assert agreement(F.as_matrix(progress=True), F.as_matrix(), EXACT).agrees
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    F.as_matrix(progress=True)
    shown = capsys.readouterr()
    assert "Fisher matrix" in shown.err
    assert not shown.out


@pytest.fixture
def never_decomposed(monkeypatch):
    monkeypatch.setattr(_spectrum, "SMALL", 0)


def largest(F, count):
    return jnp.linalg.eigvalsh(F.as_matrix())[::-1][:count]


def linear(X, outputs=3):
    return lg.fisher(lambda p, x: x @ p, jnp.ones((X.shape[1], outputs)), X, family=lg.families.Gaussian())


def test_eigenvalues_by_decomposition_are_those_of_the_matrix():
    F = zoo.layer_norm_network().fisher()
    assert agreement(F.eigenvalues(4), largest(F, 4), 1e-12).agrees


def test_eigenvalues_by_iterations_are_those_of_the_matrix(never_decomposed):
    F = zoo.layer_norm_network().fisher()
    expected = largest(F, 4)
    assert agreement(F.eigenvalues(4), expected, 1e-12).agrees
    assert agreement(F.eigenvalues(F.in_size())[:4], expected, 1e-12).agrees


def test_so_many_lanczos_steps_find_what_they_find():
    F = zoo.layer_norm_network().fisher()
    expected = largest(F, 4)
    assert agreement(F.eigenvalues(4, steps=40), expected, 1e-10).agrees
    assert not agreement(F.eigenvalues(4, steps=5), expected, 1e-3).agrees


def _tanh(p, x):
    return jnp.tanh(x @ p)


def test_eigenvalues_under_jit_and_vmap_are_those_of_lanczos(never_decomposed):
    F = zoo.layer_norm_network().fisher()
    for within in (
        lambda: F.eigenvalues(2),
        lambda: jax.vmap(lambda k: F.eigenvalues(2, key=k))(jax.random.key(0)[None]),
    ):
        assert agreement(jax.jit(within)().reshape(2), largest(F, 2), 1e-2).agrees  # 2k + 20 steps


@pytest.mark.thorough
def test_every_copy_of_a_multiple_eigenvalue_is_found(never_decomposed):
    X = drawn(0, 200, 60)
    expected = jnp.repeat(jnp.linalg.eigvalsh(X.T @ X / 200)[::-1], 3)[:5]
    assert agreement(linear(X).eigenvalues(5), expected, 1e-10).agrees
    assert not np.any(linear(0 * X).eigenvalues(5))
    single = linear(X[:1], outputs=1)
    assert agreement(single.eigenvalues(3), jnp.array([jnp.sum(X[0] ** 2), 0, 0]), 1e-12).agrees


def test_eigenvalues_that_do_not_converge_say_so(never_decomposed, monkeypatch):
    monkeypatch.setattr(_spectrum, "RESTARTS", 1)
    F = linear(drawn(0, 200, 60))
    with pytest.raises(lg.information.ConvergenceError, match="of 5 eigenvalues converged"):
        F.eigenvalues(5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda F, key: F.eigenvalues(F.in_size() + 1), "k must be a whole number between 1 and P = 32; got 33"),
        (lambda F, key: F.eigenvalues(2.5), "k must be a whole number"),
        (lambda F, key: F.eigenvalues(4, steps=3), "steps must be a whole number, at least k = 4; got 3"),
        (lambda F, key: F.eigenpairs(0), "k must be"),
        (lambda F, key: F.eigenpairs(2, tolerance=jnp.nan), "tolerance must be a finite number"),
        (
            lambda F, key: F.eigenpairs(2, width=3),
            r"width must be a whole number, at least min\(k \+ 2, P\) = 4; got 3",
        ),
        (lambda F, key: F.estimate_diagonal(key, 1), "probes must be a whole number, at least 2; got 1"),
        (lambda F, key: F.spectral_density(probes=0), "probes must be"),
        (lambda F, key: F.spectral_density(steps=2.5), "steps must be"),
        (lambda F, key: F.sample(key, -1), "count must be a whole number, at least 0; got -1"),
        (lambda F, key: F.decompose(rtol=jnp.nan), "rtol must be a finite number, at least 0; got nan"),
        (lambda F, key: F.solve(jnp.ones(32), jnp.nan), "damping must be a finite number, at least 0; got nan"),
        (lambda F, key: F.solve(jnp.ones(32), jnp.ones(2)), "damping must be a finite number"),
        (lambda F, key: F.solve(jnp.ones(32), 1.0, method="cg", tolerance=-1), "tolerance must be"),
        (
            lambda F, key: F.solve(jnp.ones(32), 1.0, method="cg", limit=2.5),
            "limit must be a whole number of iterations, at least 1; got 2.5",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(zoo.plain_network().fisher(), jax.random.key(0))


@pytest.mark.thorough
def test_the_spectral_density_has_mass_one_and_the_matrix_s_trace():
    F = zoo.layer_norm_network().fisher()
    density = F.spectral_density(jax.random.key(1), probes=200)
    assert abs(float(jnp.sum(density.weights)) - 1) < 1e-12
    assert abs(float(jnp.sum(density.weights * density.nodes)) * F.in_size() / float(F.trace()) - 1) < 0.05


def test_pseudo_logdet_and_effective_rank():
    case = zoo.plain_network()
    F = case.fisher()
    flat, unravel = ravel_pytree(case.params)
    J = np.asarray(jax.jacrev(lambda theta: case.apply(unravel(theta), case.X))(flat)).reshape(-1, flat.size)
    s = np.linalg.svd(J / (case.family.dispersion * len(case.X)) ** 0.5, compute_uv=False)[: F.rank()]
    assert s[-1] > 1e-6 * s[0]
    assert abs(float(F.pseudo_logdet()) - 2 * np.sum(np.log(s))) < 1e-9
    p = s**2 / np.sum(s**2)
    assert abs(float(F.effective_rank()) - np.exp(-np.sum(p * np.log(p)))) < 1e-10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "approximate"}, "method must be one of"),
        ({"method": "monte_carlo"}, "needs key= and samples="),
        (
            {"method": "monte_carlo", "key": jax.random.key(0), "samples": 2.5},
            "samples must be a whole number of draws",
        ),
        ({"chunk": 0}, "chunk must be a whole number of samples, at least 1; got 0"),
        ({"method": "empirical"}, "needs y="),
        ({"method": "printed"}, "about a NormalizedGLM"),
        ({"y": jnp.zeros(40)}, "does not use y"),
        ({"family": None}, "family= must say"),
        ({"mask": jnp.ones(7)}, "one entry a position"),
        ({"mask": -jnp.ones(40)}, "at least 0"),
    ],
)
def test_bad_arguments_are_explained(change, message):
    with pytest.raises(ValueError, match=message):
        zoo.layer_norm_network().fisher(**change)


def test_bad_tangents_are_explained():
    F = zoo.plain_network().fisher()
    with pytest.raises(ValueError, match="pytree like the differentiated params"):
        F.mv({"a": jnp.ones(3)})
    with pytest.raises(ValueError, match="expected a vector of P = 32"):
        F @ jnp.ones(3)
    with pytest.raises(ValueError, match=r"mm takes a matrix \[P K\]"):
        F.mm(jnp.ones((3, 2)))
    with pytest.raises(ValueError, match="float64"):
        F @ jnp.ones(32, jnp.float32)


def test_samples_are_drawn_under_a_budget_of_more_than_32_bits():
    generator = np.random.default_rng(0)
    with jax.enable_x64(False):
        params = {"w": jnp.asarray(generator.normal(size=(2, 3)), jnp.float32)}
        X = jnp.asarray(generator.normal(size=(9, 2)), jnp.float32)
        F = lg.fisher(lambda p, x: x @ p["w"], params, X, family=lg.families.Categorical(), memory=2**40)
        assert F.sample(jax.random.key(0), 2).shape == (2, 6)
