"""Null spaces, ranks, and what is solved beside them."""

import jax
import jax.numpy as jnp
import lineax as lx
import lngeom as lg
import numpy as np
import pytest
from lngeom import GLMParameters
from lngeom._core.numerics import agreement

from tests.information import zoo


def problem(normalizer, family, units, inputs, deficient=0, dtype=jnp.float64, seed=0):
    """A normalized GLM whose data span inputs − deficient directions."""
    keys = jax.random.split(jax.random.key(seed), 3)
    model = lg.NormalizedGLM(normalizer, family)
    params = model.init(keys[0], inputs=inputs, outputs=units, dtype=dtype)
    rank = inputs - deficient
    shapes = (4 * (inputs + 2) * units, rank), (rank, inputs)
    a, b = (zoo.normal_of(key, *shape, dtype=dtype) for key, shape in zip(keys[1:], shapes, strict=True))
    return model, params, jax.device_put(a @ b)


CORNERS = (
    (lg.normalizers.GroupNorm(groups=2), lg.families.Bernoulli(), 4, 2, 0),  # groups of two: only rounding is left of W
    (lg.normalizers.LayerNorm(), lg.families.Categorical(), 6, 4, 1),
    (lg.normalizers.RMSNorm(eps=0.1), lg.families.Bernoulli(), 6, 2, 0),
    (lg.normalizers.BatchNorm(eps=0.1), lg.families.Categorical(), 4, 4, 1),
    (lg.normalizers.WeightNorm(), lg.families.Gaussian(), 4, 2, 0),
)


@pytest.mark.thorough
@pytest.mark.parametrize(("normalizer", "family", "units", "inputs", "deficient"), CORNERS)
def test_the_measured_null_space_is_the_predicted_one(normalizer, family, units, inputs, deficient):
    """In the library's own numbers; `test_nullspace` does the same by NumPy for any configuration."""
    model, params, X = problem(normalizer, family, units, inputs, deficient)
    predicted = lg.predicted_nullspace(model, params, X)
    assert predicted.exact
    F = lg.fisher(model, params, X)
    null = F.nullspace()
    assert F.rank() + null.dimension == F.in_size()
    assert null.dimension == predicted.dimension
    assert null.residual < 1e-10
    assert null.gap > 1e4
    assert np.all(null.principal_angles(predicted.basis) < 1e-6)


def test_principal_angles_see_a_wrong_basis():
    F = lg.fisher(*problem(lg.normalizers.LayerNorm(), lg.families.Bernoulli(), 5, 3))
    null = F.nullspace()
    assert null.dimension == 4
    wrong = null.basis.at[0, 0].add(0.1)
    assert float(jnp.max(null.principal_angles(wrong))) > 1e-3
    with pytest.raises(ValueError, match="expected columns"):
        null.principal_angles(jnp.ones((3, 1)))


def test_rank_is_right_in_float32_where_eigenvalues_are_not():
    model, params, X = problem(lg.normalizers.LayerNorm(), lg.families.Bernoulli(), 6, 4, dtype=jnp.float32)
    F = lg.fisher(model, params, X)
    assert F.as_matrix().dtype == jnp.float32
    assert F.rank() == 6 * 6 - 5
    assert F.nullspace().gap > 100
    eigenvalues = np.linalg.eigvalsh(np.asarray(F.as_matrix()))
    assert eigenvalues[0] < 0 or eigenvalues[4] > 1e-12


def test_the_residual_is_a_ratio_of_singular_values():
    F = lg.fisher(*problem(lg.normalizers.LayerNorm(), lg.families.Bernoulli(), 6, 4))
    null, rows = F.nullspace(), np.asarray(F.factor())
    expected = np.linalg.norm(rows @ np.asarray(null.basis), axis=0).max() / np.linalg.norm(rows, 2)
    assert 0.1 < null.residual / expected < 10  # both are rounding


def test_layer_norm_directions_are_named():
    description = lg.fisher(*problem(lg.normalizers.LayerNorm(), lg.families.Bernoulli(), 6, 3)).nullspace().describe()
    assert [(d.name, d.dimension) for d in description.directions] == [
        ("scale of weights", 1),
        ("shift of weights along axis 0", 3),
    ]
    assert description.unexplained == 0


@pytest.mark.thorough
def test_batch_norm_and_softmax_directions_are_named():
    scales = lg.fisher(*problem(lg.normalizers.BatchNorm(), lg.families.Bernoulli(), 4, 3)).nullspace().describe()
    assert sum(d.dimension for d in scales.directions if d.name.startswith("scale of")) == 4
    softmax = lg.fisher(*problem(lg.normalizers.LayerNorm(), lg.families.Categorical(), 6, 3)).nullspace().describe()
    assert ("shift of bias along axis 0", 1) in [(d.name, d.dimension) for d in softmax.directions]
    assert scales.unexplained == softmax.unexplained == 0


def test_trades_between_gain_and_weights_of_a_wide_layer_are_named():
    model, params, X = problem(lg.normalizers.LayerNorm(), lg.families.Bernoulli(), 12, 2)
    found = lg.fisher(model, params, X).nullspace().describe()
    assert ("trades between centred slices of weights and gain (12 units)", 7) in [
        (d.name, d.dimension) for d in found.directions
    ]
    assert found.unexplained == 0


def test_directions_that_move_all_logits_alike_are_named():
    x = np.random.default_rng(0).normal(size=(40, 2))
    frequencies = jnp.arange(1.0, 5.0)

    def logits(p, x):
        return x @ p["w"] + jnp.sum(jnp.sin(p["phases"] * frequencies)) * x[:, :1]

    params = {"w": jnp.asarray(np.random.default_rng(1).normal(size=(2, 3))), "phases": jnp.ones(4)}
    found = lg.fisher(logits, params, jnp.asarray(x), family=lg.families.Categorical()).nullspace().describe()
    alike = [d.dimension for d in found.directions if d.name.startswith("changes of all logits alike")]
    assert (alike, sum(d.dimension for d in found.directions) + found.unexplained) == ([1], 6)


def test_relu_rescaling_is_named():
    description = zoo.plain_network().fisher().nullspace().describe()
    rescalings = [d for d in description.directions if d.name.startswith("rescaling of 5 units")]
    assert sum(d.dimension for d in rescalings) == 5
    assert "0 and 1 and 2" in rescalings[0].name


def test_constant_zero_inputs_are_named_and_counted():
    model, params, X = problem(lg.normalizers.LayerNorm(), lg.families.Bernoulli(), 5, 4)
    F = lg.fisher(model, params, X.at[:, 2].set(0))
    names = {d.name: d.dimension for d in F.nullspace().describe().directions}
    assert names["entries of weights that no output depends on"] == 5


def test_a_direction_no_candidate_knows_is_counted_as_unexplained():
    mixing = jnp.asarray([[1.0, 2.0, 3.0], [0.5, -1.0, 0.2]])
    F = lg.fisher(
        lambda p, x: x @ (mixing @ p),
        jnp.asarray([1.0, -2.0, 0.7]),
        jax.random.normal(jax.random.key(0), (20, 2)),
        family=lg.families.Gaussian(),
    )
    null = F.nullspace()
    assert null.dimension == 1
    assert null.describe().unexplained == 1


def radial_form(model, params, X):
    """The law itself: E[(ε/σ²)² (g ⊙ n)ᵀ Λ (g ⊙ n)], with ε in σ² (to 1e-8 where ε/σ² is 1e-5: dn cancels to that)."""
    variance = jnp.square(model.normalizer.statistics(params.weights, X).scale)
    gn = params.gain[None, :] * model.normalized(params, X)
    metric = model.family.metric_product(model.natural_parameters(params, X), gn)
    return jnp.mean(jnp.sum(jnp.square(model.normalizer.eps / variance) * gn * metric, 1))


@pytest.mark.thorough
def test_epsilon_breaks_the_scale_by_its_square():
    forms = []
    for eps in (1e-5, 2e-5):
        model, params, X = problem(lg.normalizers.LayerNorm(eps=eps), lg.families.Bernoulli(), 6, 3)
        F = lg.fisher(model, params, X)
        null = F.nullspace()
        assert null.dimension == 3
        assert null.largest == pytest.approx(float(F.eigenvalues(1)[0]), rel=1e-12)
        (broken,) = null.describe().broken
        assert broken.name == "scale of weights"
        assert abs(broken.exponent - 2) < 0.05
        forms.append(broken.form)
        assert agreement(
            F.quadratic_form(GLMParameters(params.weights, 0 * params.bias, 0 * params.gain)),
            radial_form(model, params, X),
            1e-8,
        ).agrees
    assert abs(forms[1] / forms[0] - 4) < 0.1
    large, params, X = problem(lg.normalizers.LayerNorm(eps=0.3), lg.families.Bernoulli(), 6, 3)  # for any eps
    form = lg.fisher(large, params, X).quadratic_form(GLMParameters(params.weights, 0 * params.bias, 0 * params.gain))
    assert agreement(form, radial_form(large, params, X), 1e-12).agrees


def test_a_plain_scale_is_not_called_broken_by_epsilon():
    model, params, X = problem(lg.normalizers.Identity(), lg.families.Gaussian(), 4, 3)
    assert lg.fisher(model, params, X).nullspace().describe().broken == ()


@pytest.mark.thorough
@pytest.mark.parametrize("make", [zoo.layer_norm_network, zoo.plain_network, zoo.batch_norm_network])
def test_solution_is_the_minimum_norm_one(make):
    F = make().fisher()
    g = F @ zoo.normal(3, F.in_size())
    expected = np.linalg.lstsq(np.asarray(F.as_matrix()), np.asarray(g), rcond=1e-8)[0]
    # g = F r carries rounding of 1e-16 |F|; where only an eps of 1e-5 or 1e-6 keeps a direction up, F is 1e-12 |F| and
    # 4 of the 16 digits would be left. So what is below sqrt(1e-8) is left to lstsq's rcond and to the rank alike.
    identifiable = F.decompose(rtol=None if make is zoo.plain_network else 1e-4)
    solution = F.solve(g, decomposition=identifiable)
    assert agreement(solution.value, expected, 1e-9).agrees
    assert solution.rank == identifiable.rank
    assert solution.residual < 1e-10
    # the error of x is at most the residual times the condition number: 1e-12 · 1e8 at worst
    by_products = F.solve(g, method="cg", nullspace=identifiable.null, tolerance=1e-12)
    assert agreement(by_products.value, expected, 1e-6).agrees


@pytest.mark.thorough
def test_noise_along_null_directions_is_projected_out_and_reported():
    F = lg.fisher(*problem(lg.normalizers.LayerNorm(), lg.families.Bernoulli(), 6, 3))
    null = F.nullspace().basis
    g = F @ jnp.ones(F.in_size())
    noisy = g + 1e-3 * null[:, 0]
    clean, solution = F.solve(g), F.solve(noisy)
    assert agreement(clean.value, solution.value, 1e-9).agrees
    assert abs(solution.unidentifiable - 1e-3 / float(jnp.linalg.norm(noisy))) < 1e-9
    by_products = F.solve(noisy, method="cg", tolerance=1e-12)  # theory's null space is projected out by itself
    assert agreement(by_products.value, clean.value, 1e-9).agrees
    assert by_products.rank == solution.rank
    model = F.problem.model.model
    generic = lg.fisher(model.natural_parameters, F.problem.params, F.problem.inputs, family=model.family)
    with pytest.raises(RuntimeError, match="part along null directions"):
        generic.solve(noisy, method="cg")


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
def test_a_solution_along_what_only_epsilon_keeps_up_is_reported_and_can_be_projected_out():
    model, params, X = problem(lg.normalizers.LayerNorm(eps=1e-4), lg.families.Bernoulli(), 4, 2)
    F = lg.fisher(model, params, X)
    radial = jnp.zeros(F.in_size()).at[:8].set(params.weights.reshape(-1) / jnp.linalg.norm(params.weights))
    clean = F @ jnp.ones(F.in_size())
    noisy = clean + 1e-5 * radial
    for method in ("svd", "cg"):
        with pytest.warns(RuntimeWarning, match=r"scale of weights, a symmetry that only eps breaks"):
            amplified = F.solve(noisy, method=method)
        assert [b.name for b in amplified.broken] == ["scale of weights"]
        projected = F.solve(noisy, method=method, gauge="broken")
        assert projected.broken == ()
        assert projected.rank == amplified.rank - 1
        assert projected.residual < 1e-8
        assert float(abs(radial @ projected.value)) < 1e-12
        assert float(jnp.linalg.norm(amplified.value) / jnp.linalg.norm(projected.value)) > 10
        assert agreement(projected.value, F.solve(clean, gauge="broken").value, 1e-6).agrees
    assert F.solve(clean).broken == ()  # a gradient without noise is solved without a warning
    with pytest.raises(ValueError, match="gauge must be"):
        F.solve(clean, gauge="all")


def test_an_unclear_rank_is_warned_about():
    values = jnp.asarray(10.0 ** -np.arange(0, 20, 0.5))
    F = lg.fisher(lambda p, x: x * (values * p)[None, :], jnp.ones(40), jnp.eye(40), family=lg.families.Gaussian())
    with pytest.warns(RuntimeWarning, match="rank .* is not clear"):
        F.solve(jnp.ones(40))


def test_damped_solution_solves_the_damped_system():
    F = zoo.layer_norm_network().fisher()
    g = F @ jnp.ones(F.in_size())
    solution = F.solve(F.problem.unravel(g), damping=0.1)
    x = F.problem.ravel(solution.value)
    assert agreement(F @ x + 0.1 * x, g, 1e-12).agrees
    with pytest.raises(ValueError, match="damping must be a finite number, at least 0"):
        F.solve(g, damping=-1.0)


@pytest.mark.thorough
def test_horizontal_projection_and_samples_avoid_the_null_space():
    F = lg.fisher(*problem(lg.normalizers.RMSNorm(), lg.families.Bernoulli(), 4, 3))
    decomposition = F.decompose()
    null = decomposition.null
    v = F.project_horizontal(jnp.ones(F.in_size()))
    assert float(jnp.max(jnp.abs(null.T @ v))) < 1e-12
    draws = F.sample(jax.random.key(0), 20_000, decomposition)
    assert float(jnp.max(jnp.abs(draws @ null))) < 1e-10
    pseudoinverse = jnp.linalg.pinv(F.as_matrix(), rtol=1e-10)
    covariance = draws.T @ draws / len(draws)
    assert float(jnp.linalg.norm(covariance - pseudoinverse) / jnp.linalg.norm(pseudoinverse)) < 0.1
    one = F.sample(jax.random.key(5), 1, method="cg")[0]
    noise = jax.random.normal(jax.random.split(jax.random.key(5), 1)[0], (len(F.problem.inputs), 4))
    expected = pseudoinverse @ (F.factor().T @ noise.reshape(-1))  # F⁺ Aᵀ ξ: its covariance is F⁺ exactly
    assert agreement(one, expected, 1e-6).agrees
    assert F.sample(jax.random.key(5), 0, method="cg").shape == (0, F.in_size())


SOLVERS = {
    "CG": lx.CG(rtol=1e-12, atol=1e-12),
    "Normal": lx.Normal(lx.CG(rtol=1e-12, atol=1e-12)),
    "LSMR": lx.LSMR(rtol=1e-13, atol=1e-13),
    "SVD": lx.SVD(rcond=1e-12),
    "AutoLinearSolver": lx.AutoLinearSolver(well_posed=False),
    "BiCGStab": lx.BiCGStab(rtol=1e-10, atol=1e-10),
    "GMRES": lx.GMRES(rtol=1e-10, atol=1e-10, restart=40),
}
UNSUITED = {
    "LU": lx.LU(),
    "QR": lx.QR(),
    "Cholesky": lx.Cholesky(),
    "Triangular": lx.Triangular(),
    "Tridiagonal": lx.Tridiagonal(),
    "Diagonal": lx.Diagonal(),
}


@pytest.fixture(scope="module")
def singular_system():
    case = zoo.plain_network()
    X = case.X[:10]
    F = case._replace(X=X).fisher()
    return F, F @ jnp.cos(jnp.arange(F.in_size(), dtype=float))


@pytest.mark.parametrize("name", SOLVERS)
def test_lineax_solvers_reach_a_solution_of_the_singular_system(name, singular_system):
    F, g = singular_system
    solution = lx.linear_solve(F, F.problem.unravel(g), SOLVERS[name], throw=False)
    x = F.problem.ravel(solution.value)
    assert float(jnp.linalg.norm(F @ x - g) / jnp.linalg.norm(g)) < 1e-6


def test_every_lineax_solver_is_tested_or_needs_another_kind_of_operator(singular_system):
    """Direct solvers divide by pivots, which a singular matrix has not; three take structured operators alone."""
    kinds = {
        name for name, kind in vars(lx).items() if isinstance(kind, type) and issubclass(kind, lx.AbstractLinearSolver)
    }
    assert kinds - {"AbstractLinearSolver"} == set(SOLVERS) | set(UNSUITED)
    F, g = singular_system
    assert F.rank() < F.in_size()
    for name in ("Triangular", "Tridiagonal", "Diagonal"):
        with pytest.raises(ValueError, match="may only be used"):
            lx.linear_solve(F, F.problem.unravel(g), UNSUITED[name])


@pytest.mark.thorough
def test_lineax_knows_what_the_operator_is():
    F = zoo.plain_network().fisher()
    M = zoo.dense_reference(zoo.plain_network())
    assert lx.is_symmetric(F)
    assert lx.is_positive_semidefinite(F)
    others = (
        lx.is_diagonal,
        lx.is_tridiagonal,
        lx.is_lower_triangular,
        lx.is_negative_semidefinite,
        lx.has_unit_diagonal,
    )
    assert not any(check(F) for check in others)
    assert agreement(lx.diagonal(F), jnp.diagonal(M), 1e-13).agrees
    assert agreement(lx.tridiagonal(F)[1], jnp.diagonal(M, 1), 1e-13).agrees
    for same in (lx.materialise(F), lx.linearise(F), lx.conj(F), F.T):
        assert agreement(same.as_matrix(), M, 1e-13).agrees
        assert jax.tree.structure(same.mv(F.problem.params)) == jax.tree.structure(F.problem.params)
    damped = F + 0.3 * lx.IdentityLinearOperator(F.in_structure())
    g = F.problem.unravel(jnp.ones(F.in_size()))
    damped = lx.TaggedLinearOperator(damped, lx.positive_semidefinite_tag)
    x = lx.linear_solve(damped, g, lx.Cholesky()).value
    assert agreement((F @ F.problem.ravel(x)) + 0.3 * F.problem.ravel(x), jnp.ones(F.in_size()), 1e-12).agrees


def test_units_that_can_be_rescaled_are_named_where_others_cannot():
    def half(p, x):
        a = x @ p[0]
        return jnp.concatenate([jax.nn.relu(a[:, :2]), jnp.tanh(a[:, 2:])], 1) @ p[1]

    case = zoo.plain_network()
    params = (case.params[0], case.params[2])
    F = case._replace(apply=half, params=params).fisher()
    assert [d.name for d in F.nullspace().describe().directions] == ["rescaling of units 0, 1 (of 5) between 0 and 1"]
