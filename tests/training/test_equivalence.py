"""Conversions of hyperparameters and predicted equilibria: their numbers, and what they refuse."""

import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lngeom.training import equivalent_schedule, predict_equilibrium
from lngeom.training.equilibrium import lion_correlation
from lngeom.training.laws import LAWS


def test_scale_multiplies_by_the_powers_of_the_law():
    for name, law in LAWS.items():
        eps = 0.0 if name == "adaptive" else 1e-8  # where that is added, depends on the optimizer
        found = equivalent_schedule(name, 0.1, 0.01, scale=2.0, eps=eps)
        assert math.isclose(found.learning_rate, 0.1 * 2.0**law.rate)
        assert math.isclose(found.weight_decay, 0.01 * 2.0**law.decay)
        assert math.isclose(found.eps, eps * 2.0**law.eps)
    assert LAWS["adam"] == LAWS["adamw"]  # the decay of "adam" is decoupled, as its entry in `LAWS` says
    scheduled = equivalent_schedule("sgd", lambda t: 0.1 / (1 + t), scale=3.0)
    assert math.isclose(scheduled.learning_rate(4), 9 * 0.02)


def test_weight_decay_becomes_the_rate_of_li_and_arora():
    rate, decay, beta = 0.1, 0.02, 0.9
    plain = equivalent_schedule("sgd", rate, decay, without_weight_decay=True)
    assert np.isclose(plain.learning_rate(3), rate * (1 - rate * decay) ** -7)
    heavy = equivalent_schedule("momentum", rate, decay, without_weight_decay=True, momentum=beta)
    alpha = 1 / float(heavy.norm_ratio(1))
    assert abs(alpha**2 - (1 + beta - rate * decay) * alpha + beta) < 1e-14
    assert np.isclose(heavy.initial_trace, -(1 - alpha) / (rate * alpha))
    growth = [
        float(equivalent_schedule("momentum", rate, d, without_weight_decay=True, momentum=beta).norm_ratio(1))
        for d in (1e-6, decay)
    ]
    assert 1 < growth[0] < 1.0001 < growth[1]  # next to no decay is next to no growth: the larger root
    scheduled = equivalent_schedule("sgd", lambda t: jnp.asarray(rate), decay, without_weight_decay=True)
    assert np.isclose(scheduled.learning_rate(3), plain.learning_rate(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "sdg", "scale": 2.0}, r"no law is known for the optimizer 'sdg' \(did you mean 'sgd'"),
        ({"optimizer": "sgd"}, "choose one conversion"),
        ({"optimizer": "sgd", "scale": 2.0, "without_weight_decay": True}, "choose one conversion"),
        ({"optimizer": "sgd", "scale": -1.0}, "scale must be positive"),
        ({"optimizer": "adam_l2", "without_weight_decay": True}, "enters both moments"),
        ({"optimizer": "lars", "without_weight_decay": True}, "inside the trust ratio"),
        ({"optimizer": "lamb", "without_weight_decay": True}, "inside the trust ratio"),
        ({"optimizer": "adaptive", "without_weight_decay": True}, "particular adaptive optimizer"),
        ({"optimizer": "adaptive", "scale": 2.0, "eps": 1e-8}, "eps depends on the particular adaptive optimizer"),
        ({"optimizer": "natural_gradient", "without_weight_decay": True}, "scaled from step to step"),
        ({"optimizer": "adamw", "without_weight_decay": True, "eps": 1e-8}, "eps = 1e-08, would have to change"),
        ({"optimizer": "adamw", "without_weight_decay": True, "momentum": 0.9}, "depends on b2"),
        ({"optimizer": "muon", "without_weight_decay": True, "momentum": 0.9, "nesterov": True}, "Nesterov"),
        ({"optimizer": "momentum", "without_weight_decay": True, "momentum": 0.99}, r"at most \(1 − √β\)²"),
        ({"optimizer": "momentum", "without_weight_decay": True, "momentum": 1.5}, r"momentum must lie in \[0, 1\)"),
        ({"optimizer": "sgd", "weight_decay": 20.0, "without_weight_decay": True}, "must be below 1; got 2"),
        (
            {"optimizer": "lion", "learning_rate": lambda t: 0.1, "without_weight_decay": True},
            "remember learning rates of the past",
        ),
    ],
)
def test_what_does_not_hold_is_refused_with_its_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        equivalent_schedule(**{"learning_rate": 0.1, "weight_decay": 0.01} | arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("adam_l2", 0.1, 0.01), "decouple it and use 'adamw'"),
        (("muon", 0.1, 0.01), "no equilibrium is predicted for 'muon'"),
        (("momentum", 0.1, 0.01), "give momentum="),
        (("sgd", 0.1, 0.0), "without decay the norm only grows"),
        (("sgd", lambda t: 0.1, 0.1), "constant learning rate; got a schedule"),
        (("sgd", 2.0, 0.5), "must be below 1"),
        (("lars", 3.0, 0.5), "must be below 2"),
    ],
)
def test_equilibria_that_there_are_not_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        predict_equilibrium(*arguments)


def test_an_equilibrium_beyond_its_approximation_warns():
    with pytest.warns(RuntimeWarning, match=r"lion is predicted .* far below 1 − β = 0.01; here it is 0.01"):
        predict_equilibrium("lion", 0.1, 0.1)
    with pytest.warns(RuntimeWarning, match="adamw is predicted .* 1 − β = 0.001"):
        predict_equilibrium("adamw", 0.1, 0.1)
    predict_equilibrium("sgd", 0.5, 0.9)  # exact at any product


def test_lions_correlation_is_the_arcsine_law_summed():
    b1, b2, length = 0.9, 0.95, 3000
    weights = np.concatenate([[1 - b1], b1 * (1 - b2) * b2 ** np.arange(length)])
    covariance = np.correlate(weights, weights, "full")
    total = np.sum(2 / np.pi * np.arcsin(np.clip(covariance / covariance.max(), -1, 1)))
    assert np.isclose(lion_correlation(b1, b2), total, rtol=1e-9)
    assert lion_correlation(0.0, 0.5) == 1.0


def test_sgd_rests_where_growth_and_decay_balance():
    rest = predict_equilibrium("sgd", 0.1, 0.05, gradient_scale=2.0)
    shrunk, step = (1 - 0.1 * 0.05) * rest.norm, 0.1 * 2.0 / rest.norm
    assert np.isclose(math.hypot(shrunk, step), rest.norm)
    assert np.isclose(math.cos(rest.angle), shrunk / rest.norm)


def test_lars_rests_where_its_step_keeps_the_norm():
    """One step of optax's LARS from the predicted norm, across the weights: an isosceles triangle of apex θ."""
    rate, decay, trust, size = 1.0, 0.1, 0.8, 2.0
    rest = predict_equilibrium("lars", rate, decay, gradient_scale=size, trust_coefficient=trust)
    optimizer = optax.lars(rate, decay, trust_coefficient=trust, momentum=0.0)
    weights, gradient = jnp.array([rest.norm, 0.0]), jnp.array([0.0, size / rest.norm])
    updates, _ = optimizer.update(gradient, optimizer.init(weights), weights)
    after = weights + updates
    assert np.isclose(np.linalg.norm(after), rest.norm, rtol=1e-6)
    assert np.isclose(math.atan2(-after[1], after[0]), rest.angle, rtol=1e-6)
    assert rest.angle > 1.02 * rate * trust
