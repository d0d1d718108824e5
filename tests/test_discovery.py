"""Discovered symmetries: dimensions, Table 1, the Fisher null space, names, and layers that are refused."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks import discovery
from lngeom.checks.discovery import _discover
from lngeom.claims import paper

from tests.cases import drawn

H, D = 4, 3
EYE = np.eye(H * D)


def pre_layer_norm(W, X):
    return lg.normalizers.LayerNorm()(jnp.eye(X.shape[1]), X) @ W.T


LAYERS = {
    "identity": lg.normalizers.Identity(),
    "bn": lg.normalizers.BatchNorm(),
    "wn": lg.normalizers.WeightNorm(),
    "ln": lg.normalizers.LayerNorm(),
    "rms": lg.normalizers.RMSNorm(),
    "pre_ln": pre_layer_norm,
}
DIMENSIONS = {"identity": 0, "bn": H, "wn": H, "ln": 1 + D * (H * D + 1), "rms": 1, "pre_ln": H * (H * D + 1)}
POINT = drawn(5, H, D)


@pytest.fixture(scope="module")
def algebras():
    return {name: lg.discover_symmetries(layer, inputs=D, outputs=H) for name, layer in LAYERS.items()}


def named(algebra):
    return {g.name: g.dimension for g in algebra.describe().generators}


def generator(A=None, c=None, size=H * D):
    A = np.zeros((size, size)) if A is None else A
    return np.concatenate([A, (np.zeros(size) if c is None else c)[:, None]], 1)


@pytest.mark.thorough
def test_dimensions_are_those_of_theory_and_sure(algebras):
    assert {name: a.dimension for name, a in algebras.items()} == DIMENSIONS
    for algebra in algebras.values():
        assert algebra.gap > 1e6
        assert algebra.residual < 1e-12
        assert algebra.finite_residual < 1e-10
        assert algebra.describe().left_over == 0


@pytest.mark.thorough
def test_generators_are_named(algebras):
    assert named(algebras["bn"]) == named(algebras["wn"]) == {"scale of each row": H}
    assert named(algebras["rms"]) == {"scale, W ↦ δW": 1}
    assert named(algebras["ln"]) == {
        "scale, W ↦ δW": 1,
        "shift, W + 1γᵀ": D,
        "shift, W + 1γᵀ, depending on W": D * H * D,
    }
    assert named(algebras["pre_ln"]) == {
        "shift along 1, w_i + c_i 1": H,
        "shift along 1, w_i + c_i 1, depending on W": H * H * D,
    }


@pytest.mark.thorough
def test_table_1_is_found_without_being_assumed(algebras):
    for method, cells in paper.TABLE1.items():
        weights = algebras[method]
        data, case = (
            lg.discover_symmetries(LAYERS[method], inputs=D, outputs=H, wrt="inputs", single_case=s)
            for s in (False, True)
        )
        gamma = np.array([1.0, -2.0, 0.5])
        row = np.diag(np.repeat(np.eye(H)[1], D))
        found = {
            "weight_matrix_rescaling": weights.contains(generator(EYE)),
            "weight_matrix_recentering": weights.contains(generator(c=np.tile(gamma, H))),
            "weight_vector_rescaling": weights.contains(generator(row)),
            "dataset_rescaling": data.contains(generator(np.eye(D), size=D)),
            "dataset_recentering": data.contains(generator(c=gamma, size=D)),
            "single_case_rescaling": case.contains(generator(np.eye(D), size=D)),
        }
        assert found == cells, method


@pytest.mark.parametrize("name", ["identity", "bn", "wn", "ln", "rms"])
def test_orbit_dimension_is_the_weight_part_of_the_fisher_null_space(algebras, name):
    model = lg.NormalizedGLM(LAYERS[name], lg.families.Bernoulli())
    X = drawn(1, 60, D)
    params = lg.GLMParameters(POINT, jnp.full(H, 0.2), jnp.linspace(0.5, 1.5, H))
    tangent = algebras[name].tangent(POINT)
    assert tangent.shape[1] == algebras[name].orbit_dimension(POINT)
    predicted = np.asarray(lg.predicted_nullspace(model, params, X).basis)
    measured = lg.fisher(model, params, X, wrt="weights").nullspace()
    assert measured.dimension == tangent.shape[1]
    assert np.all(measured.principal_angles(jnp.asarray(tangent)) < 1e-6)
    rest = np.delete(predicted, np.arange(H * D), 0)
    assert predicted.shape[1] - np.linalg.matrix_rank(rest, 1e-9) == tangent.shape[1]


def test_an_orbit_is_smaller_at_a_point_that_generators_fix(algebras):
    ones = np.ones((H, 1)) * np.array([[1.0, -2.0, 0.5]])
    assert algebras["ln"].orbit_dimension(ones) == D  # there the scale is one of the shifts
    with pytest.raises(ValueError, match="got a point of shape"):
        algebras["ln"].orbit_dimension(np.ones((3, 3)))


def test_group_norm_scales_and_shifts_by_group():
    algebra = lg.discover_symmetries(lg.normalizers.GroupNorm(2), inputs=2, outputs=6)
    names = named(algebra)
    assert names["scale of rows {1, 2, 3}, {4, 5, 6}"] == 2
    assert names["shift within each of 2 groups of rows, w_i + γ_group"] == 4
    assert algebra.dimension == 2 + 4 * 13
    found = algebra.discrete
    assert len(found.unit_permutations.equivariant) == 2 * 6 * 6
    assert len(found.unit_signs.equivariant) == 4


def test_permutations_and_signs_are_found(algebras):
    counts = {
        name: (len(a.discrete.unit_permutations.equivariant), len(a.discrete.unit_signs.equivariant))
        for name, a in algebras.items()
    }
    assert counts == {name: (24, 2 if name == "ln" else 16) for name in LAYERS}
    assert all(len(a.discrete.input_permutations.invariant) == 6 for a in algebras.values())
    assert all(a.discrete.unit_permutations.complete for a in algebras.values())
    assert all(len(a.discrete.input_signs.equivariant) == 2 for a in algebras.values())


def test_a_broken_equivariance_is_seen_and_a_bounded_search_says_so():
    def biased(W, X):
        return lg.normalizers.LayerNorm()(W, X) + jnp.arange(W.shape[0], dtype=X.dtype)[None, :] ** 2

    found = discovery.discrete_symmetries(biased, inputs=2, outputs=4)
    assert found.unit_permutations.equivariant == ((0, 1, 2, 3),)
    assert found.unit_signs.equivariant == ((1, 1, 1, 1),)
    many = discovery.discrete_symmetries(lambda W, X: X @ W.T, inputs=1, outputs=11)
    assert not many.unit_permutations.complete
    assert many.unit_permutations.tried == len(many.unit_permutations.equivariant) == 1 + 11 * 10 // 2
    assert "transpositions or single flips only" in str(many.unit_signs)


def test_inputs_of_pre_norm_and_of_positions():
    assert named(lg.discover_symmetries(pre_layer_norm, wrt="inputs")) == {
        "scale, x ↦ δx": 1,
        "shift along 1, x + c1": 1,
        "shift along 1, x + c1, depending on x": D,
    }
    at_positions = lg.discover_symmetries(lg.normalizers.LayerNorm(), wrt="inputs", positions=2)
    assert named(at_positions) == {"scale of each position": 2}


@pytest.mark.thorough
def test_fixed_weights_and_data_have_symmetries_of_their_own():
    W = drawn(1, 3, 5)
    at = lg.discover_symmetries(lg.normalizers.LayerNorm(), wrt="inputs", weights=W)
    gamma = np.linalg.svd(np.asarray(W - W.mean(0, keepdims=True)))[2][-1]
    assert at.contains(generator(c=gamma, size=5))
    assert named(at)["shift by γ with Wγ ∝ 1"] == 3
    X = drawn(2, 20, 3).at[:, 2].set(1.0)
    on = named(lg.discover_symmetries(lg.normalizers.BatchNorm(), outputs=3, data=X))
    assert on["shift by ν with Xν constant, w_i + ν_i"] == 3


def test_what_no_name_fits_is_left_over():
    Q = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    algebra = lg.discover_symmetries(lambda W, X: X * (W.reshape(-1) @ (Q @ Q.T) @ W.reshape(-1)), inputs=2, outputs=2)
    assert algebra.dimension == algebra.describe().left_over == 6  # rotations of an ellipsoid in four dimensions


def test_a_small_eps_is_reported_as_nearly_invariant():
    algebra = lg.discover_symmetries(lg.normalizers.RMSNorm(eps=1e-5), inputs=2, outputs=3)
    assert (algebra.dimension, algebra.nearly) == (0, 1)
    assert "broken by less than 1e-3" in str(algebra.describe())


def test_float32_finds_the_same_dimension():
    algebra = lg.discover_symmetries(lg.normalizers.RMSNorm(), inputs=2, outputs=3, dtype=jnp.float32)
    assert algebra.dimension == 1
    assert 1e2 < algebra.gap < 1e9


REFUSED = {
    "NaN": (lambda W, X: jnp.log(X @ W.T), "are NaN or infinite"),
    "shape": (lambda W, X: X.T @ X, r"outputs \[N \.\.\. H\], one sample per row"),
    "integer": (lambda W, X: (X @ W.T).astype(int), "has no derivative"),
    "nothing": (lambda W, X: None, "returned NoneType"),
    "numpy": (lambda W, X: np.asarray(X @ W.T), "cannot be differentiated by JAX"),
    "branch": (lambda W, X: X @ W.T if X.sum() > 0 else X, "without branches on values"),
    "rounded": (lambda W, X: jnp.round(2 * X @ W.T), "piecewise constant"),
    "stopped": (lambda W, X: jax.lax.stop_gradient(X @ W.T), "stops gradients"),
    "two units": (lambda W, X: lg.normalizers.LayerNorm()(W[:2], X), "piecewise constant"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_that_cannot_be_examined_is_refused(name):
    layer, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        lg.discover_symmetries(layer, inputs=2, outputs=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": 10, "outputs": 10}, "10100 unknowns, more than limit=1000"),
        ({"wrt": "gain"}, "wrt must be"),
        ({"single_case": True}, "needs wrt='inputs'"),
        ({"weights": np.ones((2, 2))}, "moves the weights"),
        ({"wrt": "inputs", "data": np.ones((2, 2))}, "moves the inputs"),
        ({"inputs": 0}, "at least 1"),
        ({"data": np.full((3, 2), np.nan)}, "finite array of 2 axes"),
    ],
)
def test_options_without_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lg.discover_symmetries(lg.normalizers.Identity(), **options)


def test_too_few_constraints_are_noticed_by_fresh_points():
    examined = _discover.Examined(LAYERS["bn"], (H, D), 14, None, "weights", None, None, np.dtype("float64"))
    search = _discover.Search(examined, jax.random.key(0))
    basis, _, _ = search.null(np.concatenate(search.fresh()[:2]))
    assert basis.shape[1] > H
    assert max(np.linalg.norm(rows @ basis, 2) for rows in search.fresh()) > 1e-3


@pytest.mark.thorough
def test_symmetries_of_several_weights_are_found_and_named():
    def gauge(p, x):
        return jnp.tanh(x @ p["query"] @ p["key"].T)

    params = {"query": jnp.ones((2, 1)), "key": jnp.ones((3, 1)), "name": "attention"}
    found = lg.discover_symmetries(gauge, params=params, inputs=2, dtype=float)
    assert found.dimension == 1
    assert found.orbit_dimension(params) == 1
    assert [g.name for g in found.describe().generators] == ["scales of leaves in fixed ratios (some of them)"]
    assert found.describe().left_over == 0

    def bare(p, x):
        return jnp.tanh(x @ p["query"] @ p["key"].T + p["bias"][None, :] - jnp.mean(p["bias"]))

    more = params | {"bias": jnp.zeros(3)}
    shifted = lg.discover_symmetries(bare, params=more, inputs=2, dtype=float)
    F = lg.fisher(
        bare,
        jax.tree.map(lambda v: v, {k: v for k, v in more.items() if k != "name"})
        | {"query": jnp.array([[0.3], [1.1]]), "key": jnp.array([[0.7], [-0.4], [1.9]])},
        drawn(0, 30, 2),
        family=lg.families.Gaussian(),
    )
    assert shifted.orbit_dimension(F.problem.params) == F.in_size() - F.rank() == 2
    with pytest.raises(ValueError, match="params= names the arrays that move"):
        lg.discover_symmetries(gauge, params=params, wrt="inputs")
