"""What is said of a run is what the run does: conversions, equilibria, plans, and the laws that are found."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest
from hypothesis import strategies as st
from lngeom.training import (
    _consequences,
    _detect,
    equilibrium,
    equivalence,
    equivalent_decay,
    equivalent_schedule,
    fixed_norm_schedule,
    plan,
    predict_equilibrium,
    read_geometry,
    track_geometry,
)
from lngeom.training.laws import LAWS

from tests.relations.relation import assert_close, fails, relation

SEEDS = st.integers(0, 999)
SIZE, STEPS = 12, 9


def slopes(seed):
    """(w, t) ↦ a gradient of a scale-invariant loss: at right angles to w, of degree −1."""
    noise = np.random.default_rng([seed, 1]).normal(size=(STEPS, SIZE))

    def at(w, t):
        u = w / np.linalg.norm(w)
        g = noise[t] + np.roll(noise[t], 1) * u  # depends on the direction too
        return (g - u * (u @ g)) / np.linalg.norm(w)

    return at


def walk(optimizer, w, at, *, trace=0.0, after=lambda w: w, rate=None, factor=None):
    """Directions of the weights after each step of an optimizer, and their norms before it.

    `rate` multiplies its updates, `factor` its gradients, and `trace` times w is its momentum at the start.
    """
    with jax.numpy_dtype_promotion("standard"):
        state, path, norms = optimizer.init(jnp.asarray(w)), [], []
        state = jax.tree.map(lambda leaf: trace * w if trace and jnp.shape(leaf) == w.shape else leaf, state)
        for t in range(STEPS):
            norms.append(np.linalg.norm(w))
            g = at(w, t) * (1.0 if factor is None else float(factor(t)))
            update, state = optimizer.update(jnp.asarray(g), state, jnp.asarray(w))
            w = after(w + np.asarray(update) * (1.0 if rate is None else float(rate(t))))
            path.append(w / np.linalg.norm(w))
    return np.stack(path), np.array(norms)


def normalized(updates, state, params=None):
    return jax.tree.map(lambda g: g / jnp.linalg.norm(g), updates), state


NORMALIZED = optax.GradientTransformation(lambda params: optax.EmptyState(), normalized)
STEP = {
    "sgd": lambda b1, b2: optax.identity(),
    "momentum": lambda b1, b2: optax.trace(b1),
    "normalized_gd": lambda b1, b2: NORMALIZED,
    "adamw": lambda b1, b2: optax.scale_by_adam(b1, b2, eps=0.0),
    "lion": lambda b1, b2: optax.scale_by_lion(b1, b2),
}
"""The steps of the laws, without rate and decay."""
IN_GRADIENT = {"sgd", "momentum"}


def made(name, rate, decay, b1, b2):
    """An optimizer with weight decay where its law has it."""
    step, add = STEP[name](b1, b2), optax.add_decayed_weights(decay)
    scale = optax.scale_by_learning_rate(rate)
    return optax.chain(add, step, scale) if name in IN_GRADIENT else optax.chain(step, add, scale)


def settings(name, b1, b2):
    found = {"momentum": b1} if name in {"momentum", "adamw", "lion"} else {}
    return found | ({"b2": b2} if name in {"adamw", "lion"} else {})


MEMORIES = st.tuples(st.sampled_from([0.5, 0.9]), st.sampled_from([0.8, 0.95]))


@relation(
    each={"name": tuple(STEP)}, rate=st.sampled_from([0.01, 0.1]), decay=st.sampled_from([0.05, 0.2]),
    memories=MEMORIES, scale=st.sampled_from([0.3, 4.0]), seed=SEEDS, thorough=10,
)  # fmt: skip
def test_a_converted_run_goes_through_the_same_directions(name, rate, decay, memories, scale, seed):
    """From other scales, without weight decay, back to it, and on the sphere."""
    w, at = np.random.default_rng(seed).normal(size=SIZE), slopes(seed)
    own = settings(name, *memories)
    expected, norms = walk(made(name, rate, decay, *memories), w, at)

    def check(found, start, optimizer):
        b1, b2 = found.momentum or 0.0, found.b2 or 0.0
        run = made(optimizer, found.learning_rate, found.weight_decay, b1, b2)
        path, lengths = walk(run, start, at, trace=found.initial_trace)
        assert_close(path, expected, 1e-8)
        ratio = [float(found.norm_ratio(t)) for t in range(STEPS)]
        assert_close(lengths, norms * ratio, 1e-8)

    check(equivalent_schedule(name, rate, decay, scale=scale, **own), scale * w, name)
    if name == "momentum" and (1 + memories[0] - rate * decay) ** 2 < 4 * memories[0]:
        return  # its recursion swings, and has no equivalent
    without = equivalent_schedule(name, rate, decay, without_weight_decay=True, **own)
    check(without, w, name)
    if name in {"sgd", "normalized_gd"}:
        growth = float(without.learning_rate(1) / without.learning_rate(0))
        back = equivalent_decay(name, float(without.learning_rate(0)), growth)
        assert_close([back.learning_rate, back.weight_decay], [rate, decay], 1e-9)
    if name == "momentum":
        return
    known = {"initial_norm": norms[0]} if name == "normalized_gd" else {"norms": norms}
    sphere = fixed_norm_schedule(name, rate, decay, norm=2.5, **known)
    onto = lambda v: 2.5 * v / np.linalg.norm(v)  # noqa: E731
    step = optax.chain(STEP[name](*memories), optax.scale(-1.0))
    path, _ = walk(step, onto(w), at, after=onto, rate=sphere.learning_rate, factor=sphere.gradient_factor)
    assert_close(path, expected, 1e-8)


@relation(beta=st.floats(0.05, 0.95), thorough=60)
def test_momentum_is_converted_where_its_recursion_does_not_swing(beta):
    """The roots of α² − (1 + β − λη) α + β are real and positive up to a product λη."""
    low, high = 0.0, 1.0
    for _ in range(80):  # where the discriminant first vanishes
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + beta - middle) ** 2 > 4 * beta else (low, middle)

    def converted(product):
        return equivalent_schedule("momentum", 0.1, product / 0.1, momentum=beta, without_weight_decay=True)

    for share in (0.5, 0.99):
        assert float(converted(share * low).norm_ratio(1)) > 1
    for share in (1.01, 1.5):
        with pytest.raises(ValueError, match="at most"):
            converted(share * low)


WIDE, LAST = 4000, 300
"""Weights of a random run, whose norm fluctuates little, and its steps."""


def rest(name, rate, decay, b1, b2, trust, rng, start):
    """Mean angle and norm of a run under random gradients, written out in NumPy, from a norm."""
    w = rng.normal(size=WIDE)
    w *= start / np.linalg.norm(w)
    m, v, angles, norms = np.zeros(WIDE), np.zeros(WIDE), [], []
    warm = int(20 / (1 - max(b1, b2)))
    for t in range(1, warm + LAST + 1):
        g = rng.normal(size=WIDE)
        g -= w * (w @ g) / (w @ w)
        g /= np.linalg.norm(g) * np.linalg.norm(w)
        if name in {"sgd", "momentum"}:
            m = (b1 if name == "momentum" else 0) * m + g + decay * w
            step = rate * m
        elif name == "normalized_gd":
            step = rate * (g / np.linalg.norm(g) + decay * w)
        elif name == "lars":
            whole = g + decay * w
            step = rate * trust * np.linalg.norm(w) * whole / np.linalg.norm(whole)
        elif name == "lion":
            step, m = rate * (np.sign(b1 * m + (1 - b1) * g) + decay * w), b2 * m + (1 - b2) * g
        else:
            first = b1 if name == "adamw" else 0.0
            m, v = first * m + (1 - first) * g, b2 * v + (1 - b2) * np.square(g)
            root = np.sqrt(v / (1 - b2**t))
            step = rate * (m / (1 - first**t) / root + decay * w)
        after = w - step
        if t > warm:
            angles.append(np.arccos(np.clip(w @ after / np.linalg.norm(w) / np.linalg.norm(after), -1, 1)))
            norms.append(np.linalg.norm(w))
        w = after
    return np.sqrt(np.mean(np.square(angles))), norms[0], norms[-1]


RESTS = ("sgd", "momentum", "normalized_gd", "adamw", "rmsprop", "lion", "lars")


@relation(
    each={"name": RESTS}, b1=st.sampled_from([0.3, 0.6, 0.9]), b2=st.sampled_from([0.95, 0.97]),
    share=st.sampled_from([0.3, 1.0]), seed=SEEDS, thorough=6,
)  # fmt: skip
def test_a_run_under_random_gradients_stays_at_the_predicted_norm_and_angle(name, b1, b2, share, seed):
    """To five per cent, as is said, of the products ηλ that are said."""
    product = share * min(0.02, equilibrium.largest_product(name, b1, b2), 0.1 * (1 - b2))
    decay, trust = 0.1, 0.3
    rate = product / decay
    own = {"momentum": b1} if name in {"momentum", "adamw", "lion"} else {}
    own |= {"b2": b2} if name in {"adamw", "rmsprop", "lion"} else {}
    found = predict_equilibrium(name, rate, decay, size=WIDE, trust_coefficient=trust, **own)
    angle, before, after = rest(name, rate, decay, b1, b2, trust, np.random.default_rng(seed), found.norm)
    assert abs(angle / found.angle - 1) <= 0.05
    assert abs(before / found.norm - 1) <= 0.05
    assert abs(after / found.norm - 1) <= 0.05


DETECTED = {
    "sgd": lambda rate, decay, b1, b2: optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate)),
    "momentum": lambda rate, decay, b1, b2: optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, b1)),
    "adamw": lambda rate, decay, b1, b2: optax.adamw(rate, b1, b2, weight_decay=decay),
    "adam_l2": lambda rate, decay, b1, b2: optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, b1, b2)),
    "lion": lambda rate, decay, b1, b2: optax.lion(rate, b1, b2, weight_decay=decay),
}


@relation(
    each={"name": tuple(DETECTED)}, rate=st.floats(-4, -0.3).map(lambda e: 10.0**e),
    decay=st.sampled_from([0.02, 0.1, 0.4]), b1=st.sampled_from([0.6, 0.9]), b2=st.sampled_from([0.95, 0.99]),
    seed=SEEDS, thorough=20,
)  # fmt: skip
def test_the_law_of_an_optimizer_is_found_and_its_rate_is_that_of_the_plan(name, rate, decay, b1, b2, seed):
    """At any rate, with its memory and its decay; a leaf that is frozen has the rate 0."""
    rng = np.random.default_rng(seed)
    params = {k: jnp.asarray(rng.normal(size=(4, 3))) for k in ("free", "frozen")}
    own = DETECTED[name](rate, decay, b1, b2)
    optimizer = optax.multi_transform({"own": own, "still": optax.set_to_zero()}, {"free": "own", "frozen": "still"})
    tracked = track_geometry(optimizer, learning_rate=rate, weight_decay=decay, every=1)
    state = tracked.init(params)
    free, still = state.moves
    assert (free.law, still.rate) == (name, 0.0)
    if name in {"momentum", "adamw", "lion"}:
        assert_close(free.memory, b1, 1e-3)
    if name != "adam_l2":  # in its moments
        assert_close([free.rate, free.decay], [1.0, 1.0], 2e-2)
    g = jax.tree.map(lambda w: jnp.cos(w) - w * jnp.vdot(w, jnp.cos(w)) / jnp.vdot(w, w), params)
    _, state = tracked.update(g, state, params)
    found = read_geometry(state).effective_learning_rate
    effective = rate / np.linalg.norm(params["free"]) ** LAWS[name].rate
    assert_close(found, [effective, 0.0], 1e-3)

    def apply(p, x):
        return x @ (p["free"] / jnp.linalg.norm(p["free"])) + x @ (p["frozen"] / jnp.linalg.norm(p["frozen"]))

    rows = plan(apply, {"free": params["free"], "frozen": params["frozen"]}, jnp.ones((2, 4)), optimizer=own,
                learning_rate=rate, weight_decay=decay).parameters  # fmt: skip
    assert_close(next(row for row in rows if row.name == "free").effective_learning_rate, effective, 1e-3)


@relation(
    name=st.sampled_from(["LayerNorm", "RMSNorm", "WeightNorm"]), power=st.sampled_from([0, 1, 2, 3]),
    given=st.booleans(), seed=SEEDS, thorough=8,
)  # fmt: skip
def test_a_rescaled_run_is_the_same_where_the_rate_has_the_second_power_alone(name, power, given, seed):
    model = lg.NormalizedGLM(getattr(lg.normalizers, name)(), lg.families.Bernoulli())
    params = model.init(jax.random.key(seed), inputs=3, outputs=5)
    X = jnp.asarray(np.random.default_rng(seed).normal(size=(40, 3)))
    y = model.sample(jax.random.key(seed + 1), params, X) if given else None

    def optimizer(c):
        parts = {"weights": optax.sgd(0.5 * float(c) ** power), "rest": optax.sgd(0.5)}
        return optax.partition(parts, lg.GLMParameters("weights", "rest", "rest"))

    def scale(c, p):
        return lg.GLMParameters(c * p.weights, p.bias, p.gain)

    found = lg.equivariance(model, params=params, X=X, y=y, action=scale, identity=1.0, optimizer=optimizer)
    assert found["optimizer"].outcome == ("holds" if power == 2 else "fails")
    assert all(c.holds for c in found.consequences if c.name != "optimizer")
    if given:
        with pytest.raises(ValueError, match="y must have shape"):
            lg.equivariance(model, params=params, X=X, y=y[:, :-1], action=scale, identity=1.0)


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_norms_in_advance(self, monkeypatch):
        before = equivalence._norms_in_advance
        monkeypatch.setattr(
            equivalence, "_norms_in_advance", lambda rate, decay, first: before(rate, decay, 1.1 * first)
        )
        fails(test_a_converted_run_goes_through_the_same_directions, name=st.just("normalized_gd"))

    def test_corrections_of_the_bias(self, monkeypatch):
        monkeypatch.setattr(equivalence, "_bias_corrections", lambda *_: 1.0)
        fails(test_a_converted_run_goes_through_the_same_directions, name=st.just("adamw"))

    def test_a_bound_of_momentum(self, monkeypatch):
        monkeypatch.setattr(equivalence.math, "sqrt", lambda x: 0.9 * x**0.5)
        fails(test_momentum_is_converted_where_its_recursion_does_not_swing)

    def test_correlations_of_lion(self, monkeypatch):
        before = equilibrium.lion_correlation
        monkeypatch.setattr(equilibrium, "lion_correlation", lambda b1, b2: 1.3 * before(b1, b2))
        fails(test_a_run_under_random_gradients_stays_at_the_predicted_norm_and_angle, name=st.just("lion"))

    def test_a_run_that_is_not_compared(self, monkeypatch):
        monkeypatch.setattr(_consequences.Measured, "_run", lambda self, optimizer, start, steps: [start] * steps)
        fails(test_a_rescaled_run_is_the_same_where_the_rate_has_the_second_power_alone, draws=3)

    def test_laws_without_decay(self, monkeypatch):
        monkeypatch.setattr(_detect, "_with_decay", lambda motion, shown: motion)
        fails(test_the_law_of_an_optimizer_is_found_and_its_rate_is_that_of_the_plan, name=st.just("sgd"))
