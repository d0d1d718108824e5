"""What a function closes over is read at each call; what is left out is left out by every name for it."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import strategies as st
from lngeom.information import _captured

from tests.relations.models import FAMILIES, ROWS, C, N, cases, plain
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation

SCALE = 1.0


def by_global(f):
    def set_(value):
        global SCALE
        SCALE = value

    return lambda p, x: f(p, x) * SCALE, set_


def by_attribute(f):
    holder = SimpleNamespace(scale=jnp.ones(()))
    return lambda p, x: f(p, x) * holder.scale, lambda value: setattr(holder, "scale", jnp.asarray(value))


def by_method(f):
    class Trainer:
        scale = 1.0

        def apply(self, p, x):
            return f(p, x) * self.scale

    trainer = Trainer()
    return trainer.apply, lambda value: setattr(trainer, "scale", value)


def by_dictionary(f):
    settings = {"scale": np.float64(1.0)}
    return lambda p, x: f(p, x) * settings["scale"], lambda value: settings.update(scale=np.float64(value))


def by_array_in_place(f):
    scale = np.ones(C)
    return lambda p, x: f(p, x) * scale[None], lambda value: scale.__setitem__(slice(None), value)


def by_list(f):
    layers = [1.0]

    def apply(p, x):
        z = f(p, x)
        for factor in layers:
            z = z * factor
        return z

    return apply, lambda value: layers.__setitem__(slice(None), [value])


def by_default(f):
    def apply(p, x, scale=[1.0]):  # noqa: B006
        return f(p, x) * scale[0]

    return apply, lambda value: apply.__defaults__[0].__setitem__(0, value)


def by_inner_jit(f):
    holder = SimpleNamespace(scale=1.0)

    def apply(p, x):
        return jax.jit(lambda z: z * holder.scale)(f(p, x))

    return apply, lambda value: setattr(holder, "scale", value)


HOLDERS = [by_global, by_attribute, by_method, by_dictionary, by_array_in_place, by_list, by_default, by_inner_jit]
QUADRATIC = cases(ROWS, FAMILIES[:1])


@relation(case=QUADRATIC, holder=st.sampled_from(HOLDERS), value=st.sampled_from([2.0, 0.5, -3.0]), thorough=100)
def test_after_a_change_the_matrix_is_that_of_a_fresh_function(case, holder, value):
    apply, change = holder(case.model.apply)
    change(1.0)
    assert_same_matrix(case.fisher(apply).as_matrix(), plain(case))
    change(value)
    assert_same_matrix(case.fisher(apply).as_matrix(), value**2 * plain(case))
    assert_close(case.fisher(apply).trace(), value**2 * np.trace(plain(case)))
    change(1.0)
    assert_same_matrix(case.fisher(apply).as_matrix(), plain(case))


@relation(case=QUADRATIC, holder=st.sampled_from(HOLDERS), thorough=30, quick=0)
def test_after_a_change_the_posterior_is_that_of_a_fresh_function(case, holder):
    apply, change = holder(case.model.apply)
    y = np.zeros((N, C))
    evidence = lambda f: lg.laplace(f, case.params, case.X, y, family=case.family).log_evidence  # noqa: E731
    change(1.0)
    before = evidence(apply)
    change(2.0)
    assert_close(evidence(apply), evidence(lambda p, x: 2 * case.model.apply(p, x)))
    assert evidence(apply) != before


# A program may share the memory of an array of NumPy: what is changed there in place may be seen by an older operator.
@relation(
    case=QUADRATIC,
    holder=st.sampled_from([h for h in HOLDERS if h is not by_array_in_place]),
    dropped=st.booleans(),
    thorough=40,
)
def test_an_operator_made_before_a_change_is_that_of_before_or_refuses(case, holder, dropped):
    apply, change = holder(case.model.apply)
    change(1.0)
    F = case.fisher(apply, chunk=5)
    change(2.0)
    if dropped:
        jax.clear_caches()  # so that all programs are traced again
    for ask in (lambda: F.as_matrix(), lambda: F.mm(jnp.eye(F.in_size()))):
        try:
            found = ask()
        except ValueError as error:
            assert "is not what it was when lg.fisher was called" in str(error)  # noqa: PT017
        else:
            assert_same_matrix(found, plain(case))
    change(1.0)
    assert_same_matrix(case.fisher(apply, chunk=5).as_matrix(), plain(case))


def by_forward_rule(f):
    holder = SimpleNamespace(scale=1.0)

    @jax.custom_jvp
    def scaled(z):
        return z

    scaled.defjvp(lambda z, dz: (z[0], holder.scale * dz[0]))
    return lambda p, x: scaled(f(p, x)), lambda value: setattr(holder, "scale", value)


def by_reverse_rule(f):
    holder = SimpleNamespace(scale=1.0)

    @jax.custom_vjp
    def scaled(z):
        return z

    scaled.defvjp(lambda z: (z, None), lambda _, dz: (holder.scale * dz,))
    return lambda p, x: scaled(f(p, x)), lambda value: setattr(holder, "scale", value)


def by_callback(f):
    holder = SimpleNamespace(function=np.asarray)

    def apply(p, x):
        return f(p, jax.pure_callback(holder.function, x, x, vmap_method="broadcast_all"))

    return apply, lambda value: setattr(holder, "function", lambda x: value * np.asarray(x))


@pytest.mark.parametrize("holder", [by_forward_rule, by_reverse_rule, by_callback])
def test_state_of_rules_and_callbacks_is_read_at_each_call(holder):
    """The inputs of a linear function, or its derivative, are scaled: the trace is scaled by the square."""
    X, params = jnp.asarray(np.random.default_rng(0).normal(size=(N, C))), jnp.ones((C, C))
    apply, change = holder(lambda p, x: x @ p)
    change(1.0)
    before = lg.fisher(apply, params, X, family=FAMILIES[0]).trace()
    change(3.0)
    assert_close(lg.fisher(apply, params, X, family=FAMILIES[0]).trace(), 9 * before)


@pytest.mark.parametrize(
    "bound",
    [
        lambda factor: functools.partial(lambda by, v: by * np.asarray(v), factor),
        lambda factor: lambda v, by=factor: by * np.asarray(v),
        lambda factor: lambda v: factor * np.asarray(v),
    ],
)
def test_what_a_callback_is_bound_to_is_read_at_each_call(bound):
    X, params, holder = jnp.ones((N, C)), jnp.ones((C, C)), SimpleNamespace(factor=1.0)

    def apply(p, x):
        return jax.pure_callback(bound(holder.factor), x, x, vmap_method="broadcast_all") @ p

    before = lg.fisher(apply, params, X, family=FAMILIES[0]).trace()
    holder.factor = 3.0
    assert_close(lg.fisher(apply, params, X, family=FAMILIES[0]).trace(), 9 * before)


def test_a_callback_is_no_change():
    """A function that makes its callback and its rule anew at each trace is the same function."""
    X, params = jnp.asarray(np.random.default_rng(0).normal(size=(N, C))), jnp.ones((C, C))

    def apply(p, x):
        @jax.custom_jvp
        def own(z):
            return z

        own.defjvp(lambda z, dz: (z[0], 2.0 * dz[0]))
        return own(jax.pure_callback(lambda v: np.asarray(v), x, x, vmap_method="broadcast_all") @ p)

    F = lg.fisher(apply, params, X, family=FAMILIES[0])
    jax.clear_caches()
    assert_close(F.as_matrix(), 4 * lg.fisher(lambda p, x: x @ p, params, X, family=FAMILIES[0]).as_matrix())


def test_a_precision_is_read_at_each_call_and_a_setting_of_jax_is_no_change():
    X, params, holder = jnp.ones((N, C)), jnp.ones((C, C)), SimpleNamespace(precision=None)

    def captured():
        return _captured.capture(lambda p, x: jnp.dot(x, p, precision=holder.precision), params, X)

    before = captured()
    with jax.default_matmul_precision("highest"):
        assert captured() == before
    holder.precision = "highest"
    assert captured() != before


@relation(case=cases(), data=st.data(), thorough=80)
def test_stopped_is_zero_and_left_out_is_the_rest(case, data):
    names = sorted(case.params)
    out = data.draw(st.sampled_from(names))
    apply = case.model.apply
    stopped = case.fisher(lambda p, x: apply(p | {out: jax.lax.stop_gradient(p[out])}, x))
    where = np.concatenate([np.full(case.params[name].size, name != out) for name in names])
    kept = plain(case)[np.ix_(where, where)]
    matrix = np.asarray(stopped.as_matrix())
    assert not matrix[~where].any()
    assert_same_matrix(matrix[np.ix_(where, where)], kept)
    if len(names) == 1:
        return
    rest = [name for name in names if name != out]
    named = case.fisher(wrt=rest)
    assert named.excluded == (out,)
    assert_same_matrix(named.as_matrix(), kept)
    fixed = case.params[out]
    closed = case.fisher(lambda p, x: apply(p | {out: fixed}, x), {name: case.params[name] for name in rest})
    assert_same_matrix(closed.as_matrix(), kept)


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_by_identity(self, monkeypatch):
        monkeypatch.setattr(_captured, "_signature", lambda *of: 0)
        fails(test_after_a_change_the_matrix_is_that_of_a_fresh_function)
        fails(test_after_a_change_the_posterior_is_that_of_a_fresh_function)

    def test_constants(self, monkeypatch):
        monkeypatch.setattr(_captured, "_bits", lambda array: b"")
        fails(test_after_a_change_the_matrix_is_that_of_a_fresh_function, holder=st.just(by_array_in_place))

    def test_late(self, monkeypatch):
        from lngeom.information import _problem

        monkeypatch.setattr(_problem, "unchanged", lambda captured, function: True)
        fails(test_an_operator_made_before_a_change_is_that_of_before_or_refuses)

    def test_left_out(self, monkeypatch):
        from lngeom.information import _fisher

        original = _fisher.select_leaves
        monkeypatch.setattr(_fisher, "select_leaves", lambda params, wrt: original(params, None))
        fails(test_stopped_is_zero_and_left_out_is_the_rest)
