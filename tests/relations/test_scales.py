"""Scales: one output much larger than another, parameters in other units, and what must not hide behind them."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import strategies as st
from lngeom.families import _family, _outputs
from lngeom.information import _coupled, _diagonal, _matrix

from tests.relations.models import FAMILIES, ROWS, C, cases, plain, plain_of
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation

POWERS = st.sampled_from([1e-6, 1e-3, 1e3, 1e6])
GAUSSIAN = lg.families.Gaussian()


@relation(case=cases(ROWS, FAMILIES[:1]), scale=POWERS, thorough=60)
def test_a_scaled_head_scales_its_own_part_alone(case, scale):
    """F of two heads with parameters of their own is block-diagonal, whatever their scales."""
    apply = case.model.apply
    both = lambda p, x: jnp.concatenate([apply(p["one"], x), scale * apply(p["two"], x)], 1)  # noqa: E731
    copies = {name: {k: v + 0 for k, v in case.params.items()} for name in ("one", "two")}
    F, own = case.fisher(both, copies), plain(case)
    size, matrix = len(own), np.asarray(F.as_matrix())
    assert_same_matrix(matrix[:size, :size], own)
    assert_same_matrix(matrix[size:, size:], scale**2 * own)
    assert not matrix[:size, size:].any()
    v = np.random.default_rng(0).normal(size=2 * size)
    image = np.asarray(F @ jnp.asarray(v))
    assert_close(image[:size], own @ v[:size])
    assert_close(image[size:], scale**2 * own @ v[size:])
    assert_close(np.asarray(F.diagonal())[:size], np.diagonal(own))


@relation(case=cases(ROWS), scale=POWERS, thorough=60, quick=0)
def test_parameters_in_other_units_have_the_matrix_in_those_units(case, scale):
    name = sorted(case.params)[0]
    F = case.fisher(
        lambda p, x: case.model.apply(p | {name: scale * p[name]}, x),
        case.params | {name: case.params[name] / scale},
    )
    factor = np.concatenate([np.full(v.size, scale if k == name else 1.0) for k, v in sorted(case.params.items())])
    assert_same_matrix(F.as_matrix(), plain(case) * np.outer(factor, factor), 1e-8)


@relation(case=cases(ROWS, FAMILIES[:1], dtype=np.float32), scale=st.sampled_from([1.0, 1e2, 1e4, 1e6]), thorough=60)
def test_samples_that_interact_are_seen_beside_a_large_head(case, scale):
    def apply(p, x):
        z = case.model.apply(p["net"], x)
        return {"norm": z - z.mean(0, keepdims=True), "price": scale * (x @ p["price"])}

    params = {"net": case.params, "price": jnp.ones((x_columns(case), 1), jnp.float32)}
    family = {"norm": GAUSSIAN, "price": GAUSSIAN}
    with pytest.raises(ValueError, match="samples interact"):
        case.fisher(apply, params, family=family)
    said = case.fisher(apply, params, family=family, batch_coupled=True)
    assert said.in_size() == sum(v.size for v in jax.tree.leaves(params))


def x_columns(case):
    return case.X.shape[-1]


@relation(case=cases(ROWS, FAMILIES[:1]), scale=POWERS, thorough=40)
def test_outputs_of_rounding_alone_are_no_evidence(case, scale):
    """A sum taken in another order for one sample, less the same sum: 0 but for rounding."""

    def apply(p, x):
        terms = scale * (x * p["w"])
        ordered = terms if len(x) > 1 else terms[:, ::-1]
        zero = jax.lax.associative_scan(jnp.add, ordered, axis=1)[:, -1:] - scale * (x @ p["w"])[:, None]
        return jnp.concatenate([case.model.apply(p["net"], x), zero, 1 + scale * (x @ p["w"])[:, None]], 1)

    F = case.fisher(apply, {"net": case.params, "w": jnp.ones(x_columns(case))})
    assert F.in_size() == x_columns(case) + sum(v.size for v in case.params.values())


@relation(case=cases(ROWS, FAMILIES[:1]), heads=st.integers(2, 3), thorough=40)
def test_several_outputs_add_their_matrices(case, heads):
    """F of {head: family} is the sum of the heads' matrices: their responses are independent."""
    families = [lg.families.Gaussian(2.0), lg.families.Bernoulli(), lg.families.Categorical()][:heads]
    apply = lambda p, x: {f"h{k}": (1 + k) * case.model.apply(p, x) for k in range(heads)}  # noqa: E731
    F = case.fisher(apply, family={f"h{k}": family for k, family in enumerate(families)})
    parts = [
        plain_of(case, lambda p, x, k=k: (1 + k) * case.model.apply(p, x), family=family)
        for k, family in enumerate(families)
    ]
    assert_same_matrix(F.as_matrix(), sum(parts))


@relation(case=cases(ROWS, FAMILIES[:1]), factor=st.sampled_from([0.1, 3.0, 50.0]), thorough=40)
def test_variances_divide_the_matrix(case, factor):
    phi = factor * (1 + np.arange(C))
    expected = plain_of(case, lambda p, x: case.model.apply(p, x) / np.sqrt(phi), family=GAUSSIAN)
    assert_same_matrix(case.fisher(family=lg.families.Gaussian(jnp.asarray(phi))).as_matrix(), expected)


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_tolerance_of_the_largest(self, monkeypatch):
        monkeypatch.setattr(_coupled, "_size_of_terms", lambda size, change, tol: jnp.full_like(size, jnp.max(size)))
        jax.clear_caches()
        fails(test_samples_that_interact_are_seen_beside_a_large_head, scale=st.just(1e4))
        jax.clear_caches()

    def test_size_of_an_output_alone(self, monkeypatch):
        monkeypatch.setattr(_coupled, "_size_of_terms", lambda size, change, tol: size)
        jax.clear_caches()
        fails(test_outputs_of_rounding_alone_are_no_evidence, scale=st.just(1e6))
        jax.clear_caches()

    def test_one_leaf_hides_another(self, monkeypatch):
        original = _diagonal.diagonal_and_product

        def wrong(problem, at, v):
            diagonal, image = original(problem, at, v)
            return diagonal.at[0].multiply(1 + 1e-3), image

        monkeypatch.setattr(_diagonal, "diagonal_and_product", wrong)
        fails(test_a_scaled_head_scales_its_own_part_alone, scale=st.just(1e6))

    def test_small_entries_are_zero(self, monkeypatch):
        original = _matrix.dense

        def wrong(problem, at, **options):
            matrix = original(problem, at, **options)
            return jnp.where(jnp.abs(matrix) > 1e-9 * jnp.max(jnp.abs(matrix)), matrix, 0)

        monkeypatch.setattr(_matrix, "dense", wrong)
        fails(test_parameters_in_other_units_have_the_matrix_in_those_units, scale=st.just(1e6))

    def test_one_family_for_all_outputs(self, monkeypatch):
        def wrong(self, name, z, *values):
            found = [getattr(self.parts[0], name)(*rest) for rest in zip(self.split(z), *values, strict=True)]
            return jnp.concatenate([value.reshape(*z.shape[:-1], -1) for value in found], -1)

        monkeypatch.setattr(_outputs.Product, "_each", wrong)
        jax.clear_caches()
        fails(test_several_outputs_add_their_matrices)
        jax.clear_caches()

    def test_one_variance_for_all_outputs(self, monkeypatch):
        mean = lambda self, z: jnp.mean(self.along("dispersion", z))  # noqa: E731
        monkeypatch.setattr(_family.AbstractFamily, "dispersion_along", mean)
        jax.clear_caches()
        fails(test_variances_divide_the_matrix)
        jax.clear_caches()
