"""`dtype="float64"` computes in float64 what a model computes with fewer bits, or names what it cannot."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.lifting import In64Bits
from lngeom._core.numerics import agreement
from lngeom._core.programs import CALLS

from tests.cases import drawn

FAMILY = lg.families.Categorical()


@pytest.fixture(scope="module")
def params():
    return {"a": drawn(0, 4, 5).astype(jnp.float32), "b": drawn(1, 5, 3).astype(jnp.float32)}


@pytest.fixture(scope="module")
def X():
    return np.asarray(drawn(2, 20, 4))


def plain(params, x):
    a = x @ params["a"]
    n = (a - a.mean(1, keepdims=True)) / a.std(1, keepdims=True)
    return jnp.sin(n) @ params["b"]


def casting(params, x, sin=jnp.sin):
    a = x.astype(jnp.float32) @ params["a"].astype(jnp.float32)
    n = jax.jit(lambda a: ((a - a.mean(1, keepdims=True)) / a.std(1, keepdims=True)).astype(jnp.bfloat16))(a)
    return jax.lax.map(lambda row: sin(row.astype(jnp.float32)) @ params["b"].astype(jnp.float32), n)


def wide(tree):
    return jax.tree.map(lambda a: a.astype(jnp.float64), tree)


def test_casts_inside_are_lifted(params, X):
    expected = lg.fisher(plain, wide(params), X, family=FAMILY)
    for data in (X, lg.Batches.of_rows(X, 6)):
        F = lg.fisher(casting, params, data, family=FAMILY, dtype="float64")
        assert agreement(F.as_matrix(), expected.as_matrix(), 1e-13).agrees
        assert F.rank() == expected.rank()
    as_written = lg.fisher(casting, wide(params), X, family=FAMILY).as_matrix()
    assert not agreement(as_written, expected.as_matrix(), 1e-9).agrees


def test_casts_to_complex_numbers_are_lifted(params, X):
    def rotated(params, x, dtype=jnp.complex64):
        turn = jnp.exp(1j * jnp.arange(5)).astype(dtype)
        return jnp.abs((x @ params["a"]).astype(dtype) * turn[None] + turn[None]) @ params["b"]

    with jax.numpy_dtype_promotion("standard"):
        F = lg.fisher(rotated, params, X, family=FAMILY, dtype="float64")
        expected = lg.fisher(lambda p, x: rotated(p, x, jnp.complex128), wide(params), X, family=FAMILY).as_matrix()
        assert agreement(F.as_matrix(), expected, 1e-13).agrees


def test_names_that_are_codes_of_dtypes_stay_names(params, X):
    @jax.jit
    def f(a):
        return jnp.sin(a)

    program = jax.make_jaxpr(In64Bits(lambda params, x: f(x @ params["a"])))(params, jnp.asarray(X, jnp.float32))
    assert [e.params["name"] for e in program.jaxpr.eqns if e.primitive.name in CALLS] == ["f"]


def test_a_forward_rule_is_lifted_and_a_reverse_rule_is_named(params, X):
    @jax.custom_jvp
    def forward(x):
        return jnp.sin(x)

    forward.defjvp(lambda p, t: (jnp.sin(p[0]), t[0] * jnp.cos(p[0])))

    @jax.custom_vjp
    def reverse(x):
        return jnp.sin(x)

    reverse.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    expected = lg.fisher(plain, wide(params), X, family=FAMILY).as_matrix()
    F = lg.fisher(lambda p, x: casting(p, x, forward), params, X, family=FAMILY, dtype="float64")
    assert agreement(F.as_matrix(), expected, 1e-13).agrees
    with pytest.warns(RuntimeWarning, match=r"fewer than 64 bits.*reverse \(custom_vjp_call\)"):
        lg.fisher(lambda p, x: casting(p, x, reverse), params, X, family=FAMILY, dtype="float64")


def test_another_dtype_is_refused(params, X):
    for dtype in ("float32", "wide", jnp.bfloat16):
        with pytest.raises(ValueError, match="dtype must be 'float64'"):
            lg.fisher(plain, params, X, family=FAMILY, dtype=dtype)
    with pytest.raises(ValueError, match="params and X seem to be exchanged"):
        lg.fisher(plain, jnp.asarray(X), params, family=FAMILY, dtype="float64")
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        lg.fisher(plain, params, jnp.asarray(X), family=FAMILY, dtype="float64")
