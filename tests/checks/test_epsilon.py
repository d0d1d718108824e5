"""An ε is recognized by its law, wherever it stands; what is no ε, and what is no rounding, is not taken for one."""

import math

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks._epsilon import Damping, find_law
from lngeom.checks._rounding import is_rounding
from lngeom.checks.findings import Verdict
from lngeom.checks.suite import Suite

SCALING = "weight_matrix_rescaling"


def mean(a):
    return a.mean(-1, keepdims=True)


def std(a):
    return jnp.sqrt(a.var(-1, keepdims=True))


def power_mean(a, p):
    return mean(jnp.abs(a) ** p)


def layer_norm(a, eps=1e-5):
    return (a - mean(a)) / jnp.sqrt(a.var(-1, keepdims=True) + eps)


def batch_norm(a):
    return (a - a.mean(0, keepdims=True)) / jnp.sqrt(a.var(0, keepdims=True) + 1e-5)


def ramp(a):
    return jnp.linspace(-1, 1, a.shape[-1], dtype=a.dtype)[None]


EPSILONS = {
    "in the root": (layer_norm, 2),
    "beside the deviation": (lambda a: (a - mean(a)) / (std(a) + 1e-5), 1),
    "large, beside the deviation": (lambda a: (a - mean(a)) / (std(a) + 0.1), 1),
    "deviation clamped": (lambda a: (a - mean(a)) / jnp.maximum(std(a), 1e-5), math.inf),
    "variance clamped": (lambda a: (a - mean(a)) / jnp.sqrt(jnp.maximum(a.var(-1, keepdims=True), 1e-5)), math.inf),
    "clamped above ordinary data": (lambda a: (a - mean(a)) / jnp.maximum(std(a), 100.0), math.inf),
    "beside the sum": (lambda a: a / (jnp.abs(a).sum(-1, keepdims=True) + 1e-5), 1),
    "beside the maximum": (lambda a: a / (jnp.abs(a).max(-1, keepdims=True) + 1e-12), 1),
    "in a fourth root": (lambda a: a / (power_mean(a, 4) + 1e-5) ** 0.25, 4),
    "beside a fourth root": (lambda a: a / (power_mean(a, 4) ** 0.25 + 1e-5), 1),
    "power 1.5": (lambda a: a / (power_mean(a, 1.5) + 1e-4) ** (1 / 1.5), 1.5),
    "energy": (lambda a: a * jnp.abs(a) / (power_mean(a, 2) + 1e-4), 2),
    "gain and bias after it": (lambda a: 2 * (a - mean(a)) / (std(a) + 1e-3) + ramp(a), 1),
    "then a rectifier": (lambda a: jax.nn.relu((a - mean(a)) / (std(a) + 1e-4)), 1),
    "one after another": (lambda a: layer_norm(batch_norm(a)), 2),
    "then a softmax": (lambda a: jax.nn.softmax(layer_norm(a)), 2),
}

OTHERS = {
    "a bias before the norm": lambda a: layer_norm(a + ramp(a)),
    "a small bias before the norm": lambda a: layer_norm(a + 1e-3 * ramp(a)),
    "a bias under the tolerance": lambda a: (a + 1e-5) / jnp.sqrt(power_mean(a + 1e-5, 2)),
    "a bias under the tolerance, float32": lambda a: OTHERS["a bias under the tolerance"](a.astype(jnp.float32)),
    "a constant that lets the denominator vanish": lambda a: a / (mean(a) - 0.1),
    "part of it linear": lambda a: a + 1e-3 * a**2 / jnp.abs(a),
    "a little linear": lambda a: layer_norm(a) + 1e-3 * a,
    "another power": lambda a: (a - mean(a)) / std(a) ** 0.999,
    "a logarithm": lambda a: (a - mean(a)) / std(a) / (1 + 1e-3 * jnp.log(std(a))),
    "tanh": jnp.tanh,
    "a little tanh": lambda a: layer_norm(a) + 1e-3 * jnp.tanh(a),
    "tanh, then a norm": lambda a: layer_norm(jnp.tanh(a)),
    "a root for each": lambda a: a / jnp.sqrt(1 + a * a),
    "a root for each, then a norm": lambda a: layer_norm(a / jnp.sqrt(1 + a * a)),
    "softsign": lambda a: a / (1 + jnp.abs(a)),
    "softsign, then a norm": lambda a: layer_norm(a / (1 + jnp.abs(a))),
    "clipped": lambda a: jnp.clip(a, -1, 1),
    "tanh of the deviation": lambda a: a * jnp.tanh(std(a)) / std(a),
}


def result(layer, name=SCALING, dtype="float32"):
    return Suite(lg.checks.adapt(layer, kind="summed"), dtype).result(name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", EPSILONS)
@pytest.mark.parametrize("column", [SCALING, "single_case_rescaling"])
def test_an_epsilon_in_any_form_is_recognized_and_its_power_is_found(name, column):
    layer, power = EPSILONS[name]
    if (name, column) == ("one after another", "single_case_rescaling"):
        return  # batch norm is not invariant there
    found = result(layer, column)
    assert found.verdict is Verdict.UP_TO_EPS, found.note
    assert found.eps_power == pytest.approx(power, rel=1e-2)
    assert found.as_expected("I")
    assert ("clamped" if math.isinf(power) else f"δ^−{power:g}") in found.note
    if found.curve.predicted:
        pairs = zip(found.curve.magnitudes, found.curve.deviations, found.curve.predicted, strict=True)
        assert max(abs(d - p) for m, d, p in pairs if m < 1) < 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("column", [SCALING, "single_case_rescaling"])
def test_what_is_no_epsilon_does_not_pass_for_one(name, column):
    found = result(OTHERS[name], column)
    assert found.verdict is Verdict.NOT, found.note
    assert found.deviation > found.tolerance


@pytest.mark.parametrize(
    "name",
    ["in the root", "beside the deviation", "deviation clamped", "in a fourth root", "gain and bias after it"],
)
def test_an_epsilon_is_recognized_in_float32_alone(name):
    layer, power = EPSILONS[name]
    found = result(lambda a: layer(a.astype(jnp.float32)).astype(a.dtype))
    assert found.verdict is Verdict.UP_TO_EPS, found.note
    assert found.eps_power == power


def test_the_ratio_of_epsilon_to_the_scale_is_that_of_the_smallest_one():
    suite = Suite(lg.checks.adapt(EPSILONS["large, beside the deviation"][0], kind="summed"))
    smallest = (suite.data.inputs @ suite.data.weights.T).std(-1).min()
    assert suite.result(SCALING).eps_ratio == pytest.approx(0.1 / smallest, rel=1e-6)


LIMIT, START = np.array([[2.0, -1.0, 3.0]]), np.array([[0.5, 0.0, -1.0]])


def at(k, damping):
    return damping.at(2.0**k)


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0, 16.0, math.inf])
def test_the_law_is_found_in_outputs_that_obey_it_and_refuted_by_a_change_of_any_of_them(power):
    """The planted fault is a hundredth of one output, at scales around the corner only."""
    damping = Damping(START, LIMIT, np.array([[1e-3, 2e-3, 5e-4]]), power)

    def path(k, fault=0.0):
        bump = np.array([[fault, 0, 0]]) * math.exp(-((k + 10) ** 2))
        return at(k, damping) + bump

    law, _ = find_law(path, lambda k: path(k + math.log2(3)), True, lambda k: False)
    assert law is not None
    assert law.power == power
    np.testing.assert_allclose(law.damping.corner, damping.corner, rtol=1e-2 if power == 16 else 1e-6)
    assert find_law(path, lambda k: path(k + math.log2(3)), True, lambda k: True)[0] is None
    spoiled = lambda k: path(k, 0.05)  # noqa: E731
    law, _ = find_law(spoiled, lambda k: spoiled(k + math.log2(3)), True, lambda k: False)
    assert law is None or law.damping is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda a: a / mean(a),
        lambda a: a / a.sum(-1, keepdims=True),
        lambda a: a / a[..., :1],
        lambda a: a / (mean(a) - 0.1),
        lambda a: jnp.sin(1000 * a),
        lambda a: jnp.sign(jnp.sin(1000 * a)),
    ],
    ids=["mean", "sum", "first", "shifted mean", "oscillating", "signs"],
)
def test_a_change_through_poles_or_oscillations_is_not_taken_for_rounding(layer, dtype):
    found = result(layer, "weight_vector_rescaling", dtype)
    assert found.verdict is Verdict.NOT
    assert found.deviation > 0.1
    assert found.counterexample is not None


def test_rounding_jumps_at_every_scale_and_smooth_change_at_none():
    bfloat16 = lambda t: np.asarray(jnp.asarray([1.0 + t, 2.0 - t, 3 + t * t]).astype(jnp.bfloat16), float)  # noqa: E731
    assert is_rounding(lambda t: bfloat16(7 * t) - np.array([1 + 7 * t, 2 - 7 * t, 3 + 49 * t * t]) + 5, 2.0**-40)
    assert not is_rounding(lambda t: np.array([1 + t, 2 - t, 3 + t * t]), 2.0**-40)
    assert not is_rounding(lambda t: np.array([10 + np.sin(1e4 * t), 10 + np.cos(1e4 * t)]), 2.0**-40)
    assert not is_rounding(lambda t: np.array([1.0, 1 / (t - 0.31)]), 2.0**-40)
    assert not is_rounding(lambda t: np.array([1.0, np.nan]), 2.0**-40)
