"""Every way JAX differentiates, maps and places a function, blocked and not."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from lngeom import nn
from lngeom._core.numerics import agreement
from lngeom.nn import _rows

from tests.devices import environment_with

pytestmark = pytest.mark.optimized

ROWS, WIDTH = 6, 5
RULES = {
    "layer": _rows.Rule(0.1),
    "rms": _rows.Rule(0.1, centered=False),
    "exact layer": _rows.Rule(0.0, exact=True),
    "exact rms": _rows.Rule(0.0, centered=False, exact=True),
}


def arguments(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jax.device_put(rng.normal(size=s) + 0.3) for s in ((ROWS, WIDTH), (WIDTH,), (WIDTH,)))


DRAWN = tuple(map(arguments, range(4)))
"""Where a function is taken, and directions of its derivatives."""


def plain(rule):
    """The same layer in elementary operations, differentiated by JAX."""

    def norm(x, gain, bias):
        u = x - jnp.mean(x, -1, keepdims=True) if rule.centered else x
        return u / jnp.sqrt(jnp.mean(u * u, -1, keepdims=True) + rule.eps) * gain[None] + bias[None]

    return norm


def loss(norm):
    return lambda *args: jnp.sum(jnp.sin(norm(*args)) * jnp.cos(jnp.arange(float(WIDTH)))[None])


def transposed(norm, at, t, u, v):
    """The pullback by transposing the tangent map, rather than by vjp."""
    return jax.linear_transpose(lambda *dot: jax.jvp(norm, at, dot)[1], *at)(u[0])


MODES = {
    "jvp": lambda norm, at, t, u, v: jax.jvp(norm, at, t),
    "grad": lambda norm, at, t, u, v: jax.grad(loss(norm), (0, 1, 2))(*at),
    "jacfwd": lambda norm, at, t, u, v: jax.jacfwd(norm, (0, 1, 2))(*at),
    "jacrev": lambda norm, at, t, u, v: jax.jacrev(norm, (0, 1, 2))(*at),
    "forward over reverse Hessian": lambda norm, at, t, u, v: jax.jacfwd(jax.jacrev(loss(norm), (0, 1, 2)), (0, 1, 2))(
        *at
    ),
    "reverse over forward Hessian": lambda norm, at, t, u, v: jax.jacrev(jax.jacfwd(loss(norm), (0, 1, 2)), (0, 1, 2))(
        *at
    ),
    "vmap of grad": lambda norm, at, t, u, v: jax.vmap(jax.grad(loss(norm)), (0, None, None))(
        jnp.stack([at[0], t[0], u[0]]), *at[1:]
    ),
    "linear_transpose": transposed,
    "third derivative": lambda norm, at, t, u, v: jax.jvp(jax.grad(lambda *a: jax.jvp(loss(norm), a, t)[1]), at, v)[1],
    "jit": lambda norm, at, t, u, v: jax.jit(norm)(*at),
    "linearize": lambda norm, at, t, u, v: jax.linearize(norm, *at)[1](*t),
}


def computed(mode, norm):
    """A mode in one program, which the compiler leaves as it is: rounding aside, derivatives are those of each step."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return jax.jit(functools.partial(MODES[mode], norm), compiler_options=options)(*DRAWN)


@functools.cache
def elementary(mode, name):
    """A mode of the layer in elementary operations."""
    return jax.tree.map(np.asarray, computed(mode, plain(RULES[name])))


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_agrees_with_elementary_operations(mode, name, block):
    actual = computed(mode, functools.partial(_rows.normalize_rows, RULES[name], block))
    pairs = list(zip(jax.tree.leaves(actual), jax.tree.leaves(elementary(mode, name)), strict=True))
    assert pairs
    for a, e in pairs:
        assert np.max(np.abs(np.asarray(a) - e)) <= 1e-11 * max(np.max(np.abs(e)), 1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("samples", [1, WIDTH], ids=["often in two passes", "in one pass"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_agrees_where_statistics_are_taken_about_a_pivot(mode, samples, monkeypatch):
    taken = []
    is_near = _rows._is_near
    monkeypatch.setattr(_rows, "LANES", WIDTH)
    monkeypatch.setattr(_rows, "PIVOT_SAMPLES", samples)
    monkeypatch.setattr(_rows, "_is_near", lambda *args: taken.append(args) or is_near(*args))
    actual = MODES[mode](lambda *args: _rows.normalize_rows(RULES["layer"], 2, *args), *DRAWN)  # not compiled as one
    assert taken
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(elementary(mode, "layer")), strict=True):
        assert np.max(np.abs(np.asarray(a) - e)) <= 1e-11 * max(np.max(np.abs(e)), 1e-3)


def test_modes_see_a_wrong_derivative():
    wrong = jax.custom_jvp(plain(RULES["layer"]))
    wrong.defjvp(lambda p, t: (plain(RULES["layer"])(*p), t[0] * p[1][None]))
    actual, expected = (MODES["jvp"](f, *DRAWN)[1] for f in (wrong, plain(RULES["layer"])))
    assert agreement(actual, expected).differs


def test_large_inputs_are_blocked_and_small_ones_are_not():
    assert _rows.block_rows(64, 1024) is None
    assert _rows.block_rows(4096, 1024) == 32
    assert _rows.block_rows(4100, 1024) == 25
    assert _rows.block_rows(4099, 1024) is None
    assert _rows.block_rows(8, 2**20) == 1


def test_backward_of_a_large_input_takes_little_memory():
    x, vector = jnp.ones((4096, 1024), jnp.float32), jnp.ones(1024, jnp.float32)

    def forward_and_backward(x, gain, bias, ct):
        y, pullback = jax.vjp(nn.layer_norm, x, gain, bias)
        return y, pullback(ct)

    def temporaries(function):
        compiled = jax.jit(function).lower(x, vector, vector, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(forward_and_backward) <= 2**21

    def unblocked(x, gain, bias, ct):
        y, pullback = jax.vjp(plain(RULES["layer"]), x, gain, bias)
        return y, pullback(ct)

    assert temporaries(unblocked) > 2**23


def test_blocked_layer_norm_agrees_with_the_rows_one_by_one():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 128, 4096)), jnp.float32)
    gain, ct = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4096,), x.shape))
    assert _rows.block_rows(256, 4096)
    whole = jax.vjp(lambda v: nn.layer_norm(v, gain), x)
    each = jax.vjp(jax.vmap(jax.vmap(lambda v: nn.layer_norm(v, gain))), x)
    assert agreement(whole[0], each[0], 1e-6).agrees
    assert agreement(whole[1](ct)[0], each[1](ct)[0], 1e-6).agrees


SHARDED = {
    "layer": nn.layer_norm,
    "exact layer": lambda x: nn.layer_norm(x, exact=True),
    "group": lambda x: nn.group_norm(x, groups=4),
    "spatial group": lambda x: nn.group_norm(x, groups=4, positions=1),
    "batch": lambda x: nn.batch_norm(x)[0],
    "weight": lambda x: nn.weight_norm(x, jnp.cos(jnp.arange(80.0)).reshape(5, 16)),
}


@functools.cache
def value_and_gradient(name):
    """Of a sum over outputs; one function for all kinds of axes, so that it is compiled once for one device."""
    return jax.jit(jax.value_and_grad(lambda v: jnp.sum(jnp.sin(SHARDED[name](v)))))


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_input_gives_the_same_values(axis_type, name):
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(axis_type,))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(jax.device_count() * 2, 3, 16)))
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows")))
    with jax.set_mesh(mesh):
        value, gradient = value_and_gradient(name)(placed)
    expected = value_and_gradient(name)(x)
    assert agreement(value, expected[0]).agrees
    assert agreement(gradient, expected[1]).agrees
    assert gradient.sharding.is_equivalent_to(placed.sharding, 3)


@pytest.mark.skipif(jax.device_count() > 1, reason="runs itself on eight devices")
def test_sharding_on_eight_devices():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "sharded", __file__]
    done = subprocess.run(command, env=environment_with(devices=8), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
