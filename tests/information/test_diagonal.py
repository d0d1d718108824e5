"""The exact diagonal: read from layers where it can be, without rows, and equal to the sums of squares of rows."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.information import _diagonal, _rows
from lngeom.information._products import row_chunks

from tests.cases import drawn
from tests.information import zoo


class ConvolutionalNetwork(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Conv(4, (3, 3), strides=(2, 1), param_dtype=jnp.float64)(x))
        x = nn.tanh(nn.Conv(4, (2, 2), feature_group_count=2, param_dtype=jnp.float64)(x))
        return nn.Dense(3, param_dtype=jnp.float64)(x.reshape(len(x), -1))


def convolutional(**options):
    X, network = drawn(0, 7, 4, 4, 2), ConvolutionalNetwork()
    with jax.numpy_rank_promotion("allow"):
        params = network.init(jax.random.key(0), X)
        return lg.fisher(network.apply, params, X, family=lg.families.Categorical(), **options)


def deep(**options):
    """A network with a norm, a loop over two layers, and a head."""

    def apply(p, x):
        h = jnp.tanh(x @ p["in"] + p["bias"][None])
        h = h / jnp.sqrt(jnp.mean(jnp.square(h), 1, keepdims=True) + 1e-3) * p["gain"][None]
        h = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, p["loop"])[0]
        return h @ p["out"]

    params = {"in": drawn(0, 3, 4), "bias": drawn(1, 4), "gain": drawn(2, 4), "loop": drawn(3, 2, 4, 4)}
    return lg.fisher(
        apply, params | {"out": drawn(4, 4, 3)}, drawn(5, 9, 3), family=lg.families.Categorical(), **options
    )


def by_rows(F):
    return np.sum(np.square(np.asarray(_rows.factor_rows(F.problem))), 0)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [zoo.plain_network, convolutional], ids=["dense", "convolutional"])
def test_no_row_is_formed_where_every_leaf_is_read(make, monkeypatch):
    F = make().fisher() if make is zoo.plain_network else make()
    expected = by_rows(F)

    def refuse(problem):
        raise AssertionError("rows are formed")

    for module in (_diagonal, _rows):
        monkeypatch.setattr(module, "factor_rows", refuse)
    jax.clear_caches()
    with jax.numpy_rank_promotion("allow"):
        found = F.diagonal()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    jax.clear_caches()


@pytest.mark.thorough
def test_rows_are_formed_of_the_leaves_that_are_not_read_alone(monkeypatch):
    F, formed, before = deep(), [], _rows.factor_rows
    expected = by_rows(F)

    def spied(problem):
        formed.append(problem.size)
        return before(problem)

    monkeypatch.setattr(_rows, "factor_rows", spied)
    np.testing.assert_allclose(F.diagonal(), expected, rtol=1e-10)
    assert set(formed) == {2 * 4 * 4}


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"chunk": 2}, {"chunk": 1}, {"chunk": 4}, {"memory": 2**14}])
def test_chunks_of_any_size_add_up(options):
    np.testing.assert_allclose(deep(**options).diagonal(), by_rows(deep()), rtol=1e-10)


@pytest.mark.thorough
def test_one_sample_and_samples_that_interact_have_rows():
    F = deep()
    apply, params, X = F.problem.model, F.problem.params, F.problem.inputs
    for F in (
        lg.fisher(apply, params, X[:1], family=lg.families.Categorical()),
        lg.fisher(apply, params, X, family=lg.families.Categorical(), batch_coupled=True),
    ):
        assert _rows.readable_layers(F.problem, row_chunks(F)) is None
        np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)


def test_a_program_of_another_number_of_samples_has_rows():
    def apply(p, x):
        return x @ p if len(x) < 5 else jnp.negative(x @ -p)

    F = lg.fisher(apply, drawn(0, 4, 3), drawn(1, 9, 4), family=lg.families.Gaussian())
    np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)


def test_outputs_in_another_order_than_the_samples_have_rows():
    apply = lambda p, x: (x[::-1] @ p["w"])[::-1] + x @ p["u"]  # noqa: E731
    params = {"w": drawn(1, 4, 3), "u": drawn(2, 4, 3)}
    F = lg.fisher(apply, params, drawn(3, 11, 4), family=lg.families.Categorical(), mask=jnp.arange(11.0), check=False)
    assert _rows.readable_layers(F.problem, row_chunks(F)) is None
    np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)


def _sorted_rows(p, x):
    order = jnp.argsort(x[:, 0])
    return jnp.zeros((len(x), 3)).at[order].set(x[order] @ p["w"])


def _sorted_positions(p, x):
    """Rows of all samples together sorted, as by the expert that takes them; and back."""
    rows = jnp.concatenate([x[:, None], jnp.sin(3 * x[:, None])], 1).reshape(-1, 4)
    order = jnp.argsort(rows[:, 0])
    back = jnp.zeros((len(rows), 3)).at[order].set(jnp.tanh(rows[order] @ p["w"]))
    return jnp.sum(back.reshape(len(x), 2, 3), 1)


def _back_in_a_branch(p, x):
    return jax.lax.cond(x[0, 0] > -9, lambda h: h[::-1], lambda h: h, x[::-1] @ p["w"])


def _back_in_a_loop(p, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h)[::-1], None), x[::-1] @ p["w"], length=3)[0]


def _rolled_by_padding(p, x):
    h = jnp.roll(x, 1, 0) @ p["w"]
    return jnp.pad(h[1:], ((0, 1), (0, 0))) + jnp.pad(h[:1], ((len(x) - 1, 0), (0, 0)))


def _written_in_turn(p, x):
    h = x[::-1] @ p["w"]

    def put(k, z):
        return jax.lax.dynamic_update_slice(z, jax.lax.dynamic_slice(h, (len(x) - 1 - k, 0), (1, 3)), (k, 0))

    return jax.lax.fori_loop(0, len(x), put, jnp.zeros((len(x), 3)))


OTHER_ORDERS = (
    _sorted_rows,
    _sorted_positions,
    _back_in_a_branch,
    _back_in_a_loop,
    _rolled_by_padding,
    _written_in_turn,
)


@pytest.mark.parametrize("inner", OTHER_ORDERS)
def test_rows_that_operations_put_back_in_order_are_formed(inner):
    apply = lambda p, x: inner(p, x) + x @ p["u"]  # noqa: E731
    params, X = {"w": drawn(1, 4, 3), "u": drawn(2, 4, 3)}, drawn(3, 11, 4)
    F = lg.fisher(apply, params, X, family=lg.families.Categorical(), mask=jnp.arange(11.0), check=False)
    assert _rows.readable_layers(F.problem, row_chunks(F)) is None
    np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)
    np.testing.assert_allclose(jnp.diagonal(F.as_matrix()), by_rows(F), rtol=1e-10)


def _windowed(p, x):
    """Operations that move entries along other axes than that of samples."""
    h = jnp.tanh(x @ p["w"])
    h = jnp.zeros((len(x), 5)).at[:, jnp.array([4, 0, 2])].add(h)
    h = jax.lax.dynamic_update_slice(jnp.pad(h, ((0, 0), (1, 0))), h[:, :1], (0, 0))
    h = jax.lax.reduce_window(h, 0.0, jax.lax.add, (1, 2), (1, 1), "VALID")
    return jax.lax.cond(x[0, 0] > -9, jnp.tanh, jnp.sin, h)


def test_rows_that_stay_in_order_are_not_formed():
    F = lg.fisher(_windowed, {"w": drawn(1, 4, 3)}, drawn(3, 9, 4), family=lg.families.Categorical(), check=False)
    assert _rows.readable_layers(F.problem, row_chunks(F)) is not None
    np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)


@pytest.mark.parametrize("mode", ["clip", "wrap", "fill"])
def test_rows_of_a_table_beyond_its_end_are_those_that_are_read(mode):
    def apply(p, x):
        return jnp.tanh(jnp.sum(jnp.take(p["table"], x, 0, mode=mode, fill_value=0), 1)) @ p["head"]

    rows = jnp.array([[0, 1], [2, 7], [3, 4], [9, 1], [4, 4], [-9, 2], [-1, 8]])
    params = {"table": drawn(1, 5, 3), "head": drawn(2, 3, 2)}
    F = lg.fisher(apply, params, rows, family=lg.families.Categorical())
    assert not _rows.readable_layers(F.problem, row_chunks(F)).unknown
    np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)


COMPLEX = {
    "kernel": lambda p, x: jnp.abs(jnp.exp(1j * x) @ p["w"]),
    "gain": lambda p, x: jnp.imag((0.3 + 2j) * jnp.exp(1j * x) * p["g"]),
    "bias": lambda p, x: jnp.abs(jnp.exp(1j * x) + p["g"]),
    "transformed": lambda p, x: jnp.abs(jnp.fft.fft(x @ p["w"])),
    "factor": lambda p, x: jnp.imag((x + 2j) @ (p["w"] * (0.5 + 1j))),
}


@pytest.mark.parametrize("model", COMPLEX.values(), ids=COMPLEX)
def test_leaves_that_meet_complex_numbers_have_rows(model):
    def apply(p, x):
        return model(p, x) @ p["head"]

    params = {"w": drawn(1, 4, 4), "g": drawn(2, 1, 4), "head": drawn(3, 4, 2)}
    with jax.numpy_dtype_promotion("standard"):
        F = lg.fisher(apply, params, drawn(4, 7, 4), family=lg.families.Categorical())
        np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)
        np.testing.assert_allclose(F.approximate("ekfac").trace(), np.sum(by_rows(F)), rtol=1e-10)


@pytest.mark.thorough
def test_left_out_leaves_stay_out_and_leaves_of_16_bits_are_summed_in_32():
    F = deep(wrt=["in", "loop"])
    np.testing.assert_allclose(F.diagonal(), by_rows(F), rtol=1e-10)
    x, w = (a.astype(jnp.bfloat16) for a in (drawn(1, 600, 3), drawn(0, 3, 2)))
    F = lg.fisher(lambda p, x: x @ p, w, jnp.ones_like(x), family=lg.families.Gaussian())
    np.testing.assert_allclose(np.asarray(F.diagonal(), float), 1.0, atol=0.01)  # terms of 1/600 would end at 0.5


@pytest.mark.thorough
def test_the_product_of_the_same_numbers_is_that_of_the_matrix():
    F = deep()
    v = drawn(8, F.in_size())
    diagonal, image = _diagonal.diagonal_and_product(F.problem, row_chunks(F), v)
    np.testing.assert_allclose(image, F @ v, rtol=1e-9)
    rows = _diagonal.diagonal_and_product(F.problem, row_chunks(F), v, structured=False)
    np.testing.assert_allclose(diagonal, rows[0], rtol=1e-10)
    np.testing.assert_allclose(image, rows[1], rtol=1e-9)
    assert not np.allclose(_diagonal.diagonal(replace(F.problem, samples=10), row_chunks(F)), diagonal)
