"""Rows of the factor: of convolutions by patches, the same as by transposed derivatives one by one."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.information import _rows
from lngeom.information._products import row_chunks

from tests.cases import drawn


def convolved(x, kernel, strides=(1, 1), padding: Any = "SAME", **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=numbers, **options)


def plain(p, x):
    h = jnp.tanh(convolved(x, p["first"]) + p["bias"][None, None, None])
    return jnp.mean(jnp.tanh(convolved(h, p["second"])), (1, 2)) @ p["head"]


def strided(p, x):
    h = jnp.tanh(convolved(x, p["first"], (2, 1), [(1, 0), (0, 2)], rhs_dilation=(1, 2)) * p["bias"][None, None, None])
    return (
        jnp.mean(jnp.tanh(convolved(h, p["second"], padding=[(1, 1), (0, 1)], lhs_dilation=(2, 1))), (1, 2)) @ p["head"]
    )


def grouped(p, x):
    h = jnp.tanh(convolved(x, p["first"]) + p["bias"][None, None, None])
    return jnp.mean(jnp.tanh(convolved(h, p["parted"], feature_group_count=2)), (1, 2)) @ p["head"]


def tied(p, x):
    h = jnp.tanh(convolved(x, p["first"]) + p["bias"][None, None, None])
    h = h + jnp.tanh(convolved(h, p["second"]))
    return jnp.mean(jnp.tanh(convolved(h, p["second"])), (1, 2)) @ p["head"]


def looped(p, x):
    h = jnp.tanh(convolved(x, p["first"]) + p["bias"][None, None, None])
    h = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, p["loop"])[0]
    return jnp.mean(jnp.tanh(convolved(h, p["second"])), (1, 2)) @ p["head"]


def by_position(p, x):
    """Outputs at every position: [N T C]."""
    h = jnp.tanh(convolved(x, p["first"]) + p["bias"][None, None, None])
    return (convolved(h, p["second"]) @ p["head"]).reshape(len(x), -1, 3)


def turned(p, x):
    """A kernel that a reshape takes in another order of its axes, as vmap over kernels does."""
    h = jnp.tanh(convolved(x, jax.lax.reshape(p["first"], (3, 2, 2, 4), (0, 2, 1, 3))) + p["bias"][None, None, None])
    return (
        jnp.mean(jnp.tanh(convolved(h, jax.lax.reshape(p["second"], (2, 2, 4, 4), (1, 0, 3, 2)))), (1, 2)) @ p["head"]
    )


MODELS = (plain, strided, grouped, tied, looped, by_position, turned)


def fisher(model: Callable = plain, count: int = 7, dtype: Any = float, **options: Any):
    params = {"first": drawn(0, 3, 2, 2, 4), "bias": drawn(1, 4), "second": drawn(2, 2, 2, 4, 4)}
    params |= {"head": drawn(3, 4, 3), "loop": drawn(4, 2, 4, 4) / 2, "parted": drawn(6, 2, 2, 2, 4)}
    params, X = jax.tree.map(lambda a: a.astype(dtype), (params, drawn(5, count, 4, 5, 2)))
    options = {"family": lg.families.Categorical()} | options
    return lg.fisher(model, params, X, **options)


@pytest.fixture
def formed_one_by_one(monkeypatch):
    """How often rows are formed one by one, of which leaves."""
    found, before = [], _rows._separate_rows

    def spied(problem):
        found.append({name for name, leaf in problem.params.items() if leaf is not None})
        return before(problem)

    monkeypatch.setattr(_rows, "_separate_rows", spied)
    return found


def one_by_one(F):
    return np.asarray(_rows._separate_rows(F.problem))


def agree(found, expected, size=1e-13):
    np.testing.assert_allclose(found, expected, rtol=0, atol=size * np.abs(expected).max())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_rows_of_convolutions_are_those_of_transposed_derivatives(model, formed_one_by_one):
    F = fisher(model)
    expected = one_by_one(F)
    formed_one_by_one.clear()
    agree(F.factor(), expected)
    unread = {"loop", "second" if model is grouped else "parted"}  # in a loop, or not used at all
    assert formed_one_by_one
    assert all(leaves == unread for leaves in formed_one_by_one)
    agree(F.as_matrix(), expected.T @ expected, 1e-12)
    agree(F.diagonal(), np.diag(expected.T @ expected), 1e-12)
    agree(F.singular_values(), np.linalg.svd(expected, compute_uv=False)[: F.in_size()])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"method": "monte_carlo", "key": jax.random.key(1), "samples": 3},
        {"mask": jnp.array([1.0, 0, 1, 1, 0.5, 1, 1])},
        {"chunk": 2},
        {"chunk": 1},
        {"wrt": ["second", "bias"]},
        {"family": lg.families.Gaussian()},
    ],
    ids=str,
)
def test_the_same_with_scores_weights_chunks_and_parts_of_the_leaves(options):
    F = fisher(strided, **options)
    expected = one_by_one(F)
    agree(F.factor(), expected)
    agree(F.singular_values()[:10], np.linalg.svd(expected, compute_uv=False)[:10])


def test_rows_in_float32_and_of_one_sample():
    narrow, wide = fisher(dtype=np.float32), one_by_one(fisher())
    assert narrow.factor().dtype == np.float32
    agree(narrow.factor(), wide, 1e-5)
    one = fisher(count=1)
    assert _rows.convolved_layers(one.problem, row_chunks(one)) is None
    agree(one.factor(), one_by_one(one))


def test_models_without_convolutions_and_layers_that_do_not_fit_have_rows_one_by_one(monkeypatch):
    F = lg.fisher(lambda p, x: jnp.tanh(x @ p), drawn(0, 3, 2), drawn(1, 7, 3), family=lg.families.Gaussian())
    assert _rows.convolved_layers(F.problem, row_chunks(F)) is None
    F = fisher()
    layers = functools.partial(_rows.convolved_layers, F.problem)
    assert layers(row_chunks(F)) is not None
    assert layers(row_chunks(F)._replace(chunk=1)) is not None  # of one sample at a time
    monkeypatch.setattr(_rows, "HELD", 1e-3)
    assert layers(row_chunks(F)._replace(chunk=1)) is None


@pytest.mark.parametrize("method", ["factor", "singular_values", "as_matrix"])
def test_rows_unlike_the_products_give_way_to_those_one_by_one(method, monkeypatch, request):
    expected, before = getattr(fisher(), method)(), _rows._rows_of_layers
    monkeypatch.setattr(_rows, "_rows_of_layers", lambda part, layers: 1.01 * before(part, layers))
    request.addfinalizer(jax.clear_caches)
    jax.clear_caches()
    with pytest.warns(RuntimeWarning, match="differs from the products"):
        found = getattr(fisher(), method)()
    agree(found, expected, 1e-12)
    with pytest.raises(AssertionError):  # the fault is there
        agree(getattr(fisher(check=False), method)(), expected, 1e-3)


def test_factors_that_the_number_of_samples_enters_are_not_read_at_another_number():
    """The product is the same for any number of samples; the programs at 2 and at 7 hold other numbers."""

    def apply(p, x):
        return jnp.mean(jnp.tanh(convolved(x, p["first"] / 3 * jnp.sum(x * 0 + 1) / x.size)), (1, 2)) @ p["head"]

    F = fisher(apply, check=False, wrt=["first", "head"])
    expected = one_by_one(F)
    agree(F.factor(), expected)
    agree(F.diagonal(), np.sum(expected**2, 0))
