"""What does not fit is refused with one sentence: lists, exchanged arguments, states that are not merged."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(30, 3)))
Y = jnp.zeros((30, 2))
PARAMS = {"hidden": jnp.asarray(RNG.normal(size=(3, 4))), "out": jnp.asarray(RNG.normal(size=(4, 2)))}
GAUSSIAN = lg.families.Gaussian()
MODEL = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Categorical())
THETA = MODEL.init(jax.random.key(0), inputs=3, outputs=4)
ADAM = optax.adam(0.1)
TRAINING = lg.training
LIST = "must be an array; got a list: convert it, as by jnp.asarray("
EXCHANGED = "params and X seem to be exchanged"


def apply(p, x):
    a = x @ p["hidden"]
    return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True)) @ p["out"]


def plan(*args, **settings):
    return TRAINING.plan(*args, **{"optimizer": "sgd", "learning_rate": 0.1} | settings)


CASES = {
    "list, fisher of a GLM": (lambda: lg.fisher(MODEL, THETA, X.tolist()), f"inputs {LIST}inputs)"),
    "list, a GLM": (lambda: MODEL.natural_parameters(THETA, X.tolist()), f"inputs {LIST}inputs)"),
    "list, predicted": (lambda: lg.predicted_nullspace(MODEL, THETA, X.tolist()), f"inputs {LIST}inputs)"),
    "list, a method": (lambda: lg.normalizers.LayerNorm()([[1.0]], X), f"weights {LIST}weights)"),
    "list, a layer": (lambda: lg.nn.layer_norm([[1.0, 2.0]]), f"x {LIST}x)"),
    "list, fisher": (lambda: lg.fisher(apply, PARAMS, X.tolist(), family=GAUSSIAN), "must become an array"),
    "list, plan": (lambda: plan(apply, PARAMS, X.tolist()), "a list of numbers: convert it"),
    "list, groups": (
        lambda: TRAINING.scale_invariant_groups(apply, PARAMS, X.tolist()),
        "a list of numbers: convert it",
    ),
    "exchanged, a GLM": (lambda: MODEL.natural_parameters(X, THETA), "params and inputs are exchanged"),
    "exchanged, plan": (lambda: plan(PARAMS, apply, X), "The order is (apply, params, X)"),
    "exchanged, mask": (lambda: TRAINING.decay_mask(PARAMS, apply, X), "The order is (apply, params, X)"),
    "exchanged, groups": (
        lambda: TRAINING.scale_invariant_groups(PARAMS, apply, X),
        "The order is (apply, params, X)",
    ),
    "exchanged inputs, plan": (lambda: plan(apply, X, PARAMS), EXCHANGED),
    "exchanged inputs, mask": (lambda: TRAINING.decay_mask(apply, X, PARAMS), EXCHANGED),
    "exchanged inputs, groups": (lambda: TRAINING.scale_invariant_groups(apply, X, PARAMS), EXCHANGED),
    "exchanged, fisher": (
        lambda: lg.fisher(PARAMS, apply, X, family=GAUSSIAN),
        "expected a NormalizedGLM or a function apply(params, X)",
    ),
    "exchanged, laplace": (
        lambda: lg.laplace(PARAMS, apply, X, Y, family=GAUSSIAN),
        "expected a NormalizedGLM or a function apply(params, X)",
    ),
    "exchanged, equivariance": (
        lambda: lg.equivariance(apply, lambda g, p: p, PARAMS, X, family=GAUSSIAN),
        "action must be a function",
    ),
    "no model, natural gradient": (
        lambda: TRAINING.natural_gradient(PARAMS),
        "expected a NormalizedGLM or a function apply(params, X)",
    ),
    "words, tracker": (
        lambda: TRAINING.track_geometry(ADAM, learning_rate="0.1"),
        "learning_rate must be a number or a schedule; got '0.1'",
    ),
    "words, plan": (
        lambda: plan(apply, PARAMS, X, learning_rate="0.1"),
        "learning_rate must be a number or a schedule; got '0.1'",
    ),
    "words, momentum": (
        lambda: TRAINING.track_geometry(ADAM, learning_rate=0.1, momentum="0.9"),
        "momentum must be a number; got '0.9'",
    ),
    "a truth value, tracker": (
        lambda: TRAINING.track_geometry(ADAM, learning_rate=True),
        "learning_rate must be a number or a schedule; got True",
    ),
    "a number, groups": (
        lambda: TRAINING.track_geometry(ADAM, learning_rate=0.1, groups=3).init(PARAMS),
        "groups must be patterns of paths",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_refused_with_one_sentence(case):
    call, said = CASES[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is looked at
        call()
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("value", [0.1, np.float64(0.1), np.float32(0.1), jnp.asarray(0.1), lambda step: 0.1])
def test_numbers_of_every_kind_are_learning_rates(value):
    assert TRAINING.track_geometry(ADAM, learning_rate=value).init(PARAMS)


@pytest.mark.parametrize("name", ["fisher", "plan", "decay_mask", "scale_invariant_groups", "equivariance"])
def test_a_state_of_nnx_that_is_not_merged_is_told_how(name):
    nnx = pytest.importorskip("flax.nnx")

    module = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    _, state = nnx.split(module)
    calls = {
        "fisher": lambda f, p: lg.fisher(f, p, X, family=GAUSSIAN),
        "plan": lambda f, p: plan(f, p, X),
        "decay_mask": lambda f, p: TRAINING.decay_mask(f, p, X),
        "scale_invariant_groups": lambda f, p: TRAINING.scale_invariant_groups(f, p, X),
        "equivariance": lambda f, p: lg.equivariance(f, p, X, lambda g, q: q, family=GAUSSIAN),
    }
    with pytest.raises(ValueError, match=r"a State of nnx.*nnx\.split\(module\).*nnx\.merge\(graphdef, state\)\(X\)"):
        calls[name](lambda state, x: state(x), state)


def test_what_fails_inside_a_merged_module_of_nnx_is_said_first():
    """A variable that changes in training, and inputs of another width: both merge as they should."""
    nnx = pytest.importorskip("flax.nnx")

    module = nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    graph, weights, rest = nnx.split(module, nnx.Param, ...)
    batch = jnp.ones((4, 3), jnp.float32)
    told = r"^apply\(params, X\) raised TraceContextError: Cannot mutate BatchStat.*call module\.eval\(\) before"
    with pytest.raises(ValueError, match=told):
        lg.fisher(lambda w, x: nnx.merge(graph, w, rest)(x), weights, batch, family=GAUSSIAN)
    graph, state = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(TypeError, match=r"^dot_general requires") as raised:
        lg.fisher(lambda w, x: nnx.merge(graph, w)(x), state, batch[:, :2], family=GAUSSIAN)
    assert "a State of bias (2,), kernel (3, 2)" in raised.value.__notes__[-1]
