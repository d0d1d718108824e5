"""The same model by another way in has the same Fisher matrix."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from flax import linen, nnx
from hypothesis import strategies as st
from lngeom._core.trees import leaf_paths
from lngeom.information import _parameters, _problem

from tests.relations.models import MODELS, ROWS, cases, plain, plain_of
from tests.relations.relation import assert_same_matrix, fails, relation


class Callables:
    """One function in the forms in which users hand it over."""

    @staticmethod
    def plain(f):
        return f

    @staticmethod
    def closure(f):
        return lambda p, x: f(p, x)

    @staticmethod
    def partial(f):
        return functools.partial(lambda factor, p, x: f(p, x) * factor, 1.0)

    @staticmethod
    def bound_method(f):
        class Trainer:
            def apply(self, p, x):
                return f(p, x)

        return Trainer().apply

    @staticmethod
    def callable_object(f):
        class Net:
            def __call__(self, p, x):
                return f(p, x)

        return Net()

    @staticmethod
    def module(f):
        class Net(eqx.Module):
            one: jax.Array

            def __call__(self, p, x):
                return f(p, x) * self.one

        return Net(jnp.ones(()))

    @staticmethod
    def compiled(f):
        return jax.jit(f)

    @staticmethod
    def rematerialized(f):
        return jax.checkpoint(f)

    @staticmethod
    def mapped(f):
        return lambda p, x: jax.vmap(lambda row: f(p, row[None])[0])(x)

    @staticmethod
    def scanned(f):
        return lambda p, x: jax.lax.map(lambda row: f(p, row[None])[0], x)

    @staticmethod
    def tree_partial(f):
        return jax.tree_util.Partial(lambda factor, p, x: f(p, x) * factor, jnp.ones(()))


GAUSSIAN = lg.families.Gaussian()
FORMS = [name for name in vars(Callables) if not name.startswith("_")]


@relation(case=cases(), form=st.sampled_from(FORMS), thorough=120)
def test_a_function_in_any_form_has_one_matrix(case, form):
    assert_same_matrix(case.fisher(getattr(Callables, form)(case.model.apply)).as_matrix(), plain(case))


class Holder(eqx.Module):
    weights: Any
    count: int
    name: str
    nothing: None = None


CONTAINERS = {
    "nested": (lambda p: {"a": {"b": [p]}, "z": None}, lambda q: q["a"]["b"][0]),
    "tuple": (lambda p: (7, p, None, np.arange(3)), lambda q: q[1]),
    "module": (lambda p: Holder(p, 3, "relu"), lambda q: q.weights),
    "list of pairs": (lambda p: [[v, k] for k, v in sorted(p.items())], lambda q: {k: v for v, k in q}),
    "with a key": (lambda p: {"p": p, "key": jax.random.key(0)}, lambda q: q["p"]),
    "with flags": (lambda p: {"p": p, "train": False, "mask": jnp.array([True, False])}, lambda q: q["p"]),
}


@relation(case=cases(), container=st.sampled_from(sorted(CONTAINERS)), thorough=100)
def test_parameters_in_any_container_have_one_matrix(case, container):
    pack, unpack = CONTAINERS[container]
    found = case.fisher(lambda q, x: case.model.apply(unpack(q), x), pack(case.params))
    assert_same_matrix(found.as_matrix(), plain(case))
    assert len(found.leaves) == len(case.params)


NUMBERS = {"NumPy": np.asarray, "scalar of NumPy": lambda v: v[()], "JAX": jnp.asarray}


@relation(case=cases(), kind=st.sampled_from(sorted(NUMBERS)), thorough=60)
def test_numbers_of_any_kind_are_parameters(case, kind):
    params = {k: NUMBERS[kind](np.asarray(v)) for k, v in case.params.items()}
    assert_same_matrix(case.fisher(params=params).as_matrix(), plain(case))


@relation(case=cases(), value=st.floats(0.25, 2.0), thorough=40)
def test_a_number_of_python_is_a_parameter_or_named(case, value):
    apply = lambda p, x: case.model.apply(p["p"], x) * p["scale"]  # noqa: E731
    params = {"p": case.params, "scale": value}
    F, array = case.fisher(apply, params), case.fisher(apply, params | {"scale": np.float64(value)}, check=False)
    assert F.excluded == ("scale",)
    assert array.excluded == ()
    assert array.leaves[-1] == "scale"
    expected = plain_of(case, apply, params=params | {"scale": np.float64(value)})
    assert_same_matrix(case.fisher(apply, params, wrt=["p", "scale"]).as_matrix(), expected)
    assert_same_matrix(F.as_matrix(), expected[:-1, :-1])


def dense(kernels):
    """Two layers with the kernels given, in each framework: a function and its parameters."""
    first, second = kernels

    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.tanh(linen.Dense(first.shape[1], use_bias=False, param_dtype=first.dtype, name="a")(x))
            return linen.Dense(second.shape[1], use_bias=False, param_dtype=first.dtype, name="b")(x)

    class Net(nnx.Module):
        def __init__(self):
            self.a, self.b = nnx.Param(first), nnx.Param(second)

        def __call__(self, x):
            return jnp.tanh(x @ self.a[...]) @ self.b[...]

    class Equinox(eqx.Module):
        a: jax.Array
        b: jax.Array

        def __call__(self, x):
            return jnp.tanh(x @ self.a) @ self.b

    graph, state = nnx.split(Net())
    return {
        "linen": (Linen().apply, {"params": {"a": {"kernel": first}, "b": {"kernel": second}}}),
        "nnx": (lambda m, x: m(x), Net()),
        "nnx state": (lambda s, x: nnx.merge(graph, s)(x), state),
        "equinox": (lambda m, x: jax.vmap(m)(x), Equinox(first, second)),
    }


@relation(case=cases(MODELS[1:2]), framework=st.sampled_from(["linen", "nnx", "nnx state", "equinox"]), thorough=60)
def test_a_network_in_any_framework_has_one_matrix(case, framework):
    kernels = case.params["w"], case.params["v"]
    apply, params = dense(kernels)[framework]
    expected = plain_of(case, lambda p, x: jnp.tanh(x @ p[0]) @ p[1], params=kernels)
    assert_same_matrix(case.fisher(apply, params).as_matrix(), expected)


class Tied(nnx.Module):
    def __init__(self, first, other):
        self.a, self.b = nnx.Param(first), nnx.Param(other)
        self.c = self.a

    def __call__(self, x):
        return jnp.tanh(jnp.tanh(x @ self.a[...]) @ self.b[...]) @ self.c[...]


@relation(case=cases(MODELS[1:2]), thorough=40)
def test_a_variable_at_two_places_is_one_parameter(case):
    a, b = case.params["w"], case.params["v"]
    tied = Tied(a, b)
    found = case.fisher(lambda m, x: m(x), tied)
    explicit = lambda p, x: jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"]) @ p["a"]  # noqa: E731
    expected = plain_of(case, explicit, params={"a": a, "b": b})
    assert_same_matrix(found.as_matrix(), expected)
    graph, state = nnx.split(tied)
    assert_same_matrix(case.fisher(lambda s, x: nnx.merge(graph, s)(x), state).as_matrix(), expected)


@relation(case=cases(ROWS[:3]), thorough=20)
def test_one_array_at_two_leaves_is_said(case):
    apply = lambda p, x: case.model.apply(p["one"], x) + case.model.apply(p["two"], x)  # noqa: E731
    with pytest.warns(UserWarning, match="are one array"):
        case.fisher(apply, {"one": case.params, "two": case.params})
    copied = {"one": case.params, "two": {k: v + 0 for k, v in case.params.items()}}
    assert case.fisher(apply, copied).in_size() == 2 * sum(v.size for v in case.params.values())


@relation(case=cases(), held=st.sampled_from(["linen", "nnx", "equinox"]), thorough=40)
def test_buffers_are_left_out_and_named(case, held):
    statistics = jnp.ones(3)
    if held == "linen":
        params = {"params": case.params, "batch_stats": {"mean": statistics}}
        apply = lambda v, x: case.model.apply(v["params"], x) * v["batch_stats"]["mean"][0]  # noqa: E731
    elif held == "nnx":
        params = nnx.State({"p": {k: nnx.Param(v) for k, v in case.params.items()}, "mean": nnx.BatchStat(statistics)})
        apply = lambda s, x: case.model.apply({k: v[...] for k, v in s["p"].items()}, x) * s["mean"][...][0]  # noqa: E731
    else:
        index = eqx.nn.StateIndex(statistics)
        params = {"p": case.params, "state": eqx.nn.State({"i": index})}
        apply = lambda q, x: case.model.apply(q["p"], x) * q["state"].get(index)[0]  # noqa: E731
    F = case.fisher(apply, params)
    assert len(F.excluded) == 1
    assert_same_matrix(F.as_matrix(), plain(case))


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    """One edit of the library for each relation."""

    def test_a_change_seen_by_code_alone(self, monkeypatch):
        monkeypatch.setattr(_problem, "unchanged", lambda captured, function: hasattr(function, "__code__"))
        jax.clear_caches()
        fails(test_a_function_in_any_form_has_one_matrix, draws=30)

    def test_text_is_a_number(self, monkeypatch):
        original = _parameters._is_number
        number = lambda leaf: original(leaf) or isinstance(leaf, str)  # noqa: E731
        monkeypatch.setattr(_parameters, "_is_number", number)
        monkeypatch.setattr(_parameters, "require_numbers", lambda what, leaves: np.asarray(leaves, float))
        fails(test_parameters_in_any_container_have_one_matrix, draws=30)

    def test_names_of_a_framework(self, monkeypatch):
        original = _parameters.buffers
        kernels = lambda params: {path for path in leaf_paths(params) if path.endswith("kernel")}  # noqa: E731
        monkeypatch.setattr(_parameters, "buffers", lambda params: original(params) | kernels(params))
        fails(test_a_network_in_any_framework_has_one_matrix, draws=30)

    def test_settings(self, monkeypatch):
        monkeypatch.setattr(_parameters, "_is_setting", lambda leaf: isinstance(leaf, float))
        fails(test_a_number_of_python_is_a_parameter_or_named)

    def test_scalars(self, monkeypatch):
        monkeypatch.setattr(_parameters, "_is_number", lambda leaf: isinstance(leaf, jax.Array))
        fails(test_numbers_of_any_kind_are_parameters)

    def test_shared(self, monkeypatch):
        monkeypatch.setattr(_parameters, "_same_variables", lambda params: [])
        fails(test_a_variable_at_two_places_is_one_parameter)

    def test_unsaid(self, monkeypatch):
        monkeypatch.setattr(_parameters, "_warn_of_shared_arrays", lambda chosen: None)
        fails(test_one_array_at_two_leaves_is_said)

    def test_buffers(self, monkeypatch):
        monkeypatch.setattr(_parameters, "buffers", lambda params: set())
        fails(test_buffers_are_left_out_and_named)


@pytest.mark.parametrize(
    "beside",
    [
        lambda params, mean: {"params": params, "batch_stats": {"mean": mean}},
        lambda params, mean: {"params": params, "batch_stats": {"mean": mean}, "step": jnp.array(3.0)},
        lambda params, mean: {"params": params, "cache": {"mean": mean}, "losses": None, "step": 3},
        lambda params, mean: {"encoder": {"params": params, "batch_stats": mean}},
        lambda params, mean: [{"params": params}, {"batch_stats": {"mean": mean}}],
    ],
)
def test_collections_of_linen_are_no_parameters(beside):
    params, mean = {"w": jnp.ones((3, 2))}, jnp.ones(3)
    found = _parameters.buffers(beside(params, mean))
    assert len(found) == 1
    assert not any(path.endswith("params.w") for path in found)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("the leaf 'w' of params", lambda fisher, params, X: fisher({"w": np.asarray(params["w"], np.longdouble)}, X)),
        ("X must hold", lambda fisher, params, X: fisher(params, np.asarray(X, object))),
        ("mask must hold", lambda fisher, params, X: fisher(params, X, mask=np.array(["yes"] * len(X)))),
    ],
)
def test_numbers_that_jax_does_not_know_are_refused(what, how):
    X, params = jnp.ones((3, 2)), {"w": jnp.ones((2, 2))}
    fisher = functools.partial(lg.fisher, lambda p, x: x @ p["w"], family=lg.families.Gaussian())
    with pytest.raises(ValueError, match=f"{what}.* dtype"):
        how(fisher, params, X)


def test_views_of_one_memory_are_said():
    table, inputs = np.ones((3, 3)), np.ones((2, 3))
    with pytest.warns(UserWarning, match="one, two are one array"):
        lg.fisher(lambda p, x: x @ p["one"] @ p["two"], {"one": table, "two": table.T}, inputs, family=GAUSSIAN)
    halves = {"one": table[:1], "two": table[1:2]}  # of one array, with nothing in common
    assert lg.fisher(lambda p, x: x @ (p["one"] - p["two"]).T, halves, inputs, family=GAUSSIAN).in_size() == 6


def test_labels_may_be_whole_floats():
    rng = np.random.default_rng(0)
    X, params, labels = jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.normal(size=(3, 3))), np.arange(6) % 3
    posteriors = [
        lg.laplace(lambda p, x: x @ p, params, X, y, family=lg.families.Categorical(), prior_precision=1.0)
        for y in (labels, labels.astype(float))
    ]
    assert float(posteriors[0].log_evidence) == float(posteriors[1].log_evidence)
    with pytest.raises(ValueError, match="labels"):
        lg.laplace(lambda p, x: x @ p, params, X, labels + 0.5, family=lg.families.Categorical())
