"""Where parameters enter is read correctly, or not at all; the factor in outer products is the factor."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import pytest
from lngeom._core.numerics import agreement
from lngeom.information import _matrix
from lngeom.information._matrix import separable_layers
from lngeom.information._products import row_chunks
from lngeom.information.layers import Irregular

from tests.cases import drawn
from tests.information import zoo


def tied():
    """A kernel used twice, once transposed; a gain; a bias added late; a leaf that is not used."""

    def apply(p, x):
        h = jnp.tanh((x @ p["w"].T) * p["gain"][None, :])
        return h @ p["w"] @ p["out"] + (jnp.square(x) @ p["skip"] + p["bias"][None, :])

    params = {"w": drawn(0, 5, 4), "gain": drawn(1, 5), "out": drawn(2, 4, 3), "skip": drawn(3, 4, 3)}
    params |= {"bias": drawn(4, 3), "unused": drawn(5, 2)}
    return zoo.Case("tied", apply, params, drawn(6, 11, 4), lg.families.Categorical(), mask=jnp.arange(11.0) % 3)


def equinox_network():
    arrays, rest = eqx.partition(eqx.nn.MLP(4, 3, 6, 2, key=jax.random.key(0)), eqx.is_array)
    return zoo.Case(
        "equinox", lambda p, x: jax.vmap(eqx.combine(p, rest))(x), arrays, drawn(1, 11, 4), lg.families.Poisson()
    )


def layer_normalized(inputs=4, units=6, outputs=3):
    def apply(p, x):
        a = x @ p["in"] + p["bias"][None]
        a = a - jnp.mean(a, 1, keepdims=True)
        n = a / jnp.sqrt(jnp.mean(jnp.square(a), 1, keepdims=True) + 1e-5)
        return jnp.tanh(n * p["gain"][None] + p["shift"][None]) @ p["out"]

    params = {"in": drawn(0, inputs, units), "bias": drawn(1, units), "gain": drawn(2, units)}
    params |= {"shift": drawn(3, units), "out": drawn(4, units, outputs) / units**0.5}
    return zoo.Case("layer-normalized", apply, params, drawn(5, 11, inputs), lg.families.Categorical())


@pytest.mark.thorough
@pytest.mark.parametrize("make", [tied, equinox_network, layer_normalized], ids=lambda make: make.__name__)
def test_outer_products_give_the_matrix_and_its_products(make):
    F = make().fisher()
    layers = separable_layers(F.problem)
    assert layers is not None
    reference = F.factor().T @ F.factor()
    route = _matrix.Route(layers, chunk=4)
    build = jax.jit(lambda problem: _matrix._dense(problem, row_chunks(F), route))
    assert agreement(build(F.problem), reference, 1e-12).agrees
    factor = jax.jit(_matrix.outer_products, static_argnums=1)(F.problem, layers)
    gram = jax.jit(lambda parts: _matrix.gram(layers, F.problem.layout, parts))
    assert agreement(gram(factor.gram_parts()), reference, 1e-12).agrees
    doubled = replace(factor, signals=(2 * factor.signals[0], *factor.signals[1:]))
    assert agreement(gram(doubled.gram_parts()), reference, 1e-12).differs


@pytest.mark.thorough
def test_the_cheaper_route_is_taken_and_is_right_for_a_network_of_some_width():
    F = layer_normalized(inputs=12, units=16, outputs=6).fisher()
    assert _matrix.choose_route(F.problem, row_chunks(F)._replace(chunk=21)).layers is not None
    A, vectors = F.factor(), drawn(4, F.in_size(), 9)
    assert agreement(F.as_matrix(), A.T @ A, 1e-12).agrees
    for found in (F.mm(vectors), jax.jit(lambda v: F.mm(v))(vectors), jax.jit(lambda F, v: F.mm(v))(F, vectors)):
        assert agreement(found, A.T @ (A @ vectors), 1e-12).agrees
    with pytest.raises(ValueError, match="dtype float64"):
        F.mm(vectors.astype(jnp.float32))


@pytest.mark.thorough
def test_samples_that_fit_at_once_are_summed_without_a_loop():
    """A program with a loop has the derivative twice, and takes twice as long to compile."""

    def loops(memory):
        F = layer_normalized(inputs=12, units=16, outputs=6).fisher(memory=memory)
        route = _matrix.choose_route(F.problem, row_chunks(F))
        assert route.layers is not None
        program = jax.make_jaxpr(lambda problem: _matrix._dense(problem, row_chunks(F), route))(F.problem)
        return str(program).count("= scan[")

    assert loops(memory=None) == 0
    assert loops(memory=2**18) == 1


def test_many_products_of_a_function_that_uses_no_parameter_are_zero():
    F = lg.fisher(lambda p, x: x, {"a": jnp.ones(3)}, drawn(0, 9, 4), family=lg.families.Categorical())
    assert not jnp.any(F.mm(jnp.ones((3, 9))))


@pytest.mark.parametrize(
    "apply",
    [
        lambda p, x: x @ (p / jnp.linalg.norm(p)),  # a function of a kernel
        lambda p, x: x @ (x.T @ x @ p),  # samples interact
        lambda p, x: jnp.cumsum(x @ p, 1) @ jnp.cumsum(p, 0),  # sums of a kernel's rows
        lambda p, x: jax.lax.scan(lambda h, _: (jnp.tanh(h @ p), None), x, None, 2)[0],  # inside a loop
    ],
)
def test_what_is_not_understood_is_left_to_the_general_route(apply):
    F = lg.fisher(
        apply, drawn(0, 4, 4), drawn(1, 9, 4), family=lg.families.Gaussian(), batch_coupled=False, check=False
    )
    assert separable_layers(F.problem) is None


def forced(F, chunk=4):
    """The matrix by outer products, whatever is cheaper."""
    layers = separable_layers(F.problem)
    assert layers is not None
    return jax.jit(lambda problem: _matrix._dense(problem, row_chunks(F), _matrix.Route(layers, chunk)))(F.problem)


SCALES = jnp.linspace(0.5, 3, 16)[None]


@pytest.mark.parametrize("options", [{"chunk": 2}, {"chunk": 1}, {}])
def test_a_chunk_of_one_sample_whose_program_has_fewer_numbers_is_not_mistaken(options):
    def apply(p, x):  # of one sample the two factors are one array
        return (x @ p) * jnp.broadcast_to(SCALES, (len(x), 16)) * SCALES

    F = lg.fisher(
        apply, drawn(0, 20, 16), drawn(1, 9, 20), family=lg.families.Gaussian(), batch_coupled=False, **options
    )
    reference = F.factor().T @ F.factor()
    assert agreement(jax.jit(lambda F: F.as_matrix())(F), reference, 1e-12).agrees
    assert agreement(F.approximate("blocks").as_matrix(), reference, 1e-12).agrees


@pytest.mark.parametrize(
    "turned",
    [
        lambda x: x[::-1],
        lambda x: x[jnp.arange(len(x))[::-1]],
        lambda x: jnp.eye(len(x))[::-1] @ x,
        lambda x: jnp.concatenate([x[1:], x[:1]])[::-1],
    ],
)
def test_samples_that_are_turned_round_and_back_are_left_to_the_general_route(turned):
    apply = lambda p, x: turned(turned(x) @ p["w"]) + x @ p["u"]  # noqa: E731
    params = {"w": drawn(1, 4, 3), "u": drawn(2, 4, 3)}
    F = lg.fisher(apply, params, drawn(3, 11, 4), family=lg.families.Categorical(), check=False)
    assert separable_layers(F.problem) is None
    assert agreement(F.as_matrix(), F.factor().T @ F.factor(), 1e-12).agrees


@pytest.mark.parametrize(
    "apply",
    [
        lambda p, x: jax.checkpoint(lambda p, x: (jax.debug.callback(lambda a: None, x), x @ p["w"])[1])(p, x) + p["b"],
        lambda p, x: ((x @ p["w"])[:, None, :] + p["b"][None])[:, 0],  # a bias [1 H]
        lambda p, x: jax.jit(jnp.matmul)(x, p["w"]) + p["b"],
    ],
)
def test_callbacks_axes_of_one_entry_and_inner_programs_are_read(apply):
    params = {"w": drawn(1, 6, 5), "b": jnp.full((1, 5), 0.1)}  # a weakly typed leaf
    F = lg.fisher(apply, params, drawn(3, 9, 6), family=lg.families.Categorical())
    reference = F.factor().T @ F.factor()
    assert agreement(forced(F), reference, 1e-12).agrees
    assert agreement(F.as_matrix(), reference, 1e-12).agrees
    assert "kronecker" in {part.kind for part in F.approximate("kfac").parts}


def test_a_program_that_depends_on_the_number_of_samples_is_not_mistaken():
    def apply(p, x):
        return x @ p[0] + p[1][None, :] if len(x) < 5 else jnp.negative(x @ -p[0]) + p[1][None, :]

    F = lg.fisher(apply, (drawn(0, 4, 3), drawn(1, 3)), drawn(2, 9, 4), family=lg.families.Gaussian())
    layers, vectors = separable_layers(F.problem), drawn(3, 15, 9)
    assert layers is not None
    with pytest.raises(Irregular):
        _matrix.outer_products(F.problem, layers)
    assert agreement(F.as_matrix() @ vectors, F.factor().T @ (F.factor() @ vectors), 1e-12).agrees
