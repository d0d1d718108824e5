"""Converted runs of optax compute the same function to 1e-10 in float64, and with a wrong power another."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lngeom.training import equivalent_decay, equivalent_schedule, fixed_norm_schedule

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(16, 4)))
Y = jnp.asarray(RNG.normal(size=(16, 6)))
W = jnp.asarray(RNG.normal(size=(4, 6)))
STEPS = 40


@pytest.fixture(autouse=True)
def _optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


def model(w):
    a = X @ w
    return a / jnp.linalg.norm(a)


def run(optimizer, w=W, *, trace=0.0, norm=None, factor=lambda t: 1.0):
    """Outputs at every step, and ‖w‖ before it."""
    state = optimizer.init(w)
    if trace:
        state = optax.tree.set(state, trace=trace * w)

    def step(carry, t):
        w, state = carry
        gradient = factor(t) * jax.grad(lambda w: jnp.sum(jnp.square(model(w) - Y)))(w)
        updates, state = optimizer.update(gradient, state, w)
        after = w + updates
        after = after if norm is None else optax.projections.projection_l2_sphere(after, scale=norm)
        return (after, state), (model(after), jnp.linalg.norm(w))

    return jax.jit(lambda: jax.lax.scan(step, (w, state), jnp.arange(STEPS))[1])()


def decayed(decay, *rest):
    return optax.chain(optax.add_decayed_weights(decay), *rest)


def normalized(rate, decay=0.0):
    return optax.chain(
        optax.normalize_by_update_norm(eps=0.0), optax.add_decayed_weights(decay), optax.scale_by_learning_rate(rate)
    )


def same(a, b):
    return np.allclose(a, b, rtol=0, atol=1e-10)


def far(a, b):
    return float(np.max(np.abs(a[-1] - b[-1]))) > 1e-5


@pytest.mark.thorough
def test_a_growing_rate_is_a_weight_decay():
    rate, growth = 0.05, 1.01
    growing = lambda t: rate * growth ** jnp.asarray(t, float)  # noqa: E731
    plain, _ = run(optax.sgd(growing))
    found = equivalent_decay("sgd", rate, growth)
    assert same(run(decayed(found.weight_decay, optax.sgd(found.learning_rate)))[0], plain)
    assert far(run(decayed(2 * found.weight_decay, optax.sgd(found.learning_rate)))[0], plain)
    assert far(run(optax.sgd(rate))[0], plain)

    beta, growth = 0.8, 1.005
    growing = lambda t: rate * growth ** jnp.asarray(t, float)  # noqa: E731
    heavy, _ = run(optax.sgd(growing, momentum=beta))
    found = equivalent_decay("momentum", rate, growth, momentum=beta)
    other = decayed(found.weight_decay, optax.sgd(found.learning_rate, momentum=beta))
    assert same(run(other, trace=found.initial_trace)[0], heavy)
    assert far(run(other)[0], heavy)  # without its first buffer
    assert far(run(decayed((growth**0.5 - 1) / rate, optax.sgd(rate, momentum=beta)))[0], heavy)  # SGD's decay

    growing = lambda t: rate * growth ** jnp.asarray(t, float)  # noqa: E731
    found = equivalent_decay("normalized_gd", rate, growth)
    assert same(run(normalized(found.learning_rate, found.weight_decay))[0], run(normalized(growing))[0])


def test_back_and_forth_is_the_run_that_was():
    for name, settings in (("sgd", {}), ("momentum", {"momentum": 0.8}), ("normalized_gd", {})):
        there = equivalent_schedule(name, 0.05, 0.1, without_weight_decay=True, **settings)
        first, second = (float(there.learning_rate(t)) for t in (0, 1))
        back = equivalent_decay(name, first, second / first, **settings)
        assert np.allclose([back.learning_rate, back.weight_decay], [0.05, 0.1], rtol=1e-9), name


def test_the_initial_scale_is_a_learning_rate():
    c = 3.0
    assert same(run(optax.sgd(0.1))[0], run(optax.sgd(c**2 * 0.1), c * W)[0])
    assert far(run(optax.sgd(0.1))[0], run(optax.sgd(c * 0.1), c * W)[0])
    found = equivalent_schedule("adam", 0.01, scale=c, eps=1e-2)
    adam, _ = run(optax.adam(0.01, eps=1e-2))
    assert same(adam, run(optax.adam(found.learning_rate, eps=found.eps), c * W)[0])
    assert far(adam, run(optax.adam(found.learning_rate, eps=1e-2), c * W)[0])  # ε as it was
    assert far(adam, run(optax.adam(c**2 * 0.01, eps=found.eps), c * W)[0])


ON_SPHERE = {
    "sgd": (
        lambda rate, decay: decayed(decay, optax.sgd(rate)),
        lambda s: optax.sgd(s.learning_rate),
        0.1,
        0.5,
    ),
    "adamw": (
        lambda rate, decay: optax.adamw(rate, eps=0.0, weight_decay=decay),
        lambda s: optax.adam(s.learning_rate, eps=0.0),
        0.02,
        2.0,
    ),
    "lion": (
        lambda rate, decay: optax.lion(rate, weight_decay=decay),
        lambda s: optax.lion(s.learning_rate, weight_decay=0.0),
        0.02,
        2.0,
    ),
}


@pytest.mark.parametrize("name", ON_SPHERE)
@pytest.mark.parametrize("radius", [1.0, 2.5])
def test_with_recorded_norms_a_run_with_decay_is_one_on_a_sphere(name, radius):
    make, on_sphere, rate, decay = ON_SPHERE[name]
    schedule = optax.cosine_decay_schedule(rate, STEPS)
    schedule = lambda t, inner=schedule: inner(jnp.asarray(t, float))  # noqa: E731
    outputs, norms = run(make(schedule, decay))
    found = fixed_norm_schedule(name, schedule, decay, norms=norms, norm=radius)
    start = optax.projections.projection_l2_sphere(W, scale=radius)
    again, kept = run(on_sphere(found), start, norm=radius, factor=found.gradient_factor)
    assert np.allclose(kept, radius)
    assert same(again, outputs)
    wrong = fixed_norm_schedule(name, schedule, decay, norms=norms**1.2, norm=radius)
    assert far(run(on_sphere(wrong), start, norm=radius, factor=found.gradient_factor)[0], outputs)
    if name != "sgd":
        assert far(run(on_sphere(found), start, norm=radius)[0], outputs)  # moments that forget the norms


def test_normalized_descent_needs_no_record():
    rate, decay = 0.05, 1.0
    outputs, norms = run(normalized(rate, decay))
    found = fixed_norm_schedule("normalized_gd", rate, decay, initial_norm=float(jnp.linalg.norm(W)))
    assert np.allclose([found.learning_rate(t) * norms[t] * (1 - rate * decay) for t in (0, 20)], rate)
    start = W / jnp.linalg.norm(W)
    assert same(run(normalized(found.learning_rate), start, norm=1.0)[0], outputs)
    assert far(run(normalized(rate), start, norm=1.0)[0], outputs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: equivalent_decay("adamw", 0.1, 1.01), "ratio of its two memories"),
        (lambda: equivalent_decay("lars", 0.1, 1.01), "inside the trust ratio"),
        (lambda: equivalent_decay("sgd", 0.1, 0.99), "a rate that falls is no weight decay; got 0.99"),
        (lambda: equivalent_decay("sgd", lambda t: 0.1, 1.01), "give the rate of the first step"),
        (lambda: equivalent_decay("momentum", 0.1, 1.3, momentum=0.9), r"growth must be below 1/β = 1.11"),
        (lambda: equivalent_decay("momentum", 0.1, 1.01), "give momentum="),
        (lambda: equivalent_decay("muon", 0.1, 1.2, momentum=0.9), "never forgets"),
        (lambda: fixed_norm_schedule("adamw", 0.1, 0.1), "no schedule chosen in advance is equivalent; give the"),
        (lambda: fixed_norm_schedule("momentum", 0.1, 0.1), "across weights of different norms"),
        (lambda: fixed_norm_schedule("muon", 0.1, 0.1), "no exact step on the sphere"),
        (lambda: fixed_norm_schedule("lars", 0.1, 0.1), "set it to zero"),
        (lambda: fixed_norm_schedule("normalized_gd", 0.1, 0.1), "give initial_norm="),
        (lambda: fixed_norm_schedule("sgd", 0.1, 0.1, norms=[1.0, 0.0]), "norms must be positive"),
        (lambda: fixed_norm_schedule("sgd", 2.0, 0.5, norms=[1.0]), "must be below 1; got 1.0"),
        (lambda: fixed_norm_schedule("sgd", 0.1, norm=0.0, norms=[1.0]), "norm must be positive and finite"),
    ],
)
def test_what_has_no_equivalent_is_refused_with_its_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()
