"""What a tracker records and a plan predicts is what the optimizer does, however it is put together."""

import dataclasses

import flax.serialization
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest
from analysis.measurements.optimizer_laws import RIGHT, examine, optimizers
from flax import linen
from hypothesis import strategies as st
from lngeom.information import groups
from lngeom.training import _detect, _present, _record, _recursions, _settings, read_geometry, track_geometry, tracker
from lngeom.training.laws import LAWS

from tests.relations.relation import as_users_have_it, assert_close, fails, relation

SEEDS = st.integers(0, 999)
MAKERS = {
    "sgd": lambda rate, decay: optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate)),
    "momentum": lambda rate, decay: optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum=0.9)),
    "adamw": lambda rate, decay: optax.adamw(rate, weight_decay=decay),
    "rmsprop": lambda rate, decay: optax.chain(
        optax.scale_by_rms(eps=1e-16), optax.add_decayed_weights(decay), optax.scale(-rate)
    ),
    "lion": lambda rate, decay: optax.lion(rate, weight_decay=decay),
}
NAMES = st.sampled_from(sorted(MAKERS))
RATE, DECAY = 0.02, 0.05


def start(seed):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=(4, 3))) for k in ("a", "b")}


def gradients(seed, steps=6):
    """Gradients at right angles to the weights that they are taken at."""
    noise = np.random.default_rng([seed, 1]).normal(size=(steps, 2, 4, 3))

    def at(params, t):
        def one(w, g):
            return (g - w * jnp.vdot(w, g) / jnp.vdot(w, w)) / jnp.linalg.norm(w)

        return {k: one(params[k], jnp.asarray(noise[t, j])) for j, k in enumerate(sorted(params))}

    return at


def walk(optimizer, seed, steps=6, repeat=1, params=None):
    """The weights after each step, and the state; each gradient is given as often as is said."""
    params = start(seed) if params is None else params
    state, path, of = optimizer.init(params), [params], gradients(seed, steps)
    update = jax.jit(optimizer.update)
    for t in range(steps):
        g = of(params, t)
        for _ in range(repeat):
            updates, state = update(g, state, params)
            params = optax.apply_updates(params, updates)
        path.append(params)
    return path, state


def angle(a, b):
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (a, b))
    return 2 * np.arcsin(np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b)) / 2)


@relation(name=NAMES, seed=SEEDS, thorough=30)
def test_a_record_is_that_of_the_weights_before_and_after(name, seed):
    plain = MAKERS[name](RATE, DECAY)
    wrapped = track_geometry(plain, learning_rate=RATE, every=1)
    path, state = walk(wrapped, seed)
    untouched, _ = walk(plain, seed)
    link = walk(optax.chain(plain, track_geometry(every=1)), seed)[1]
    records = read_geometry(state), read_geometry(link)
    for j, k in enumerate(("a", "b")):
        # two programs: XLA may contract a product and a sum in one of them
        assert_close(path[-1][k], untouched[-1][k], 1e-14)
        for record in records:
            assert_close(record.norm[j], np.linalg.norm(path[-2][k]))
            assert_close(record.angle[j], angle(path[-2][k], path[-1][k]), 1e-7)


@relation(name=NAMES, seed=SEEDS, accumulated=st.integers(2, 4), every=st.integers(1, 5), thorough=30)
def test_accumulated_batches_are_one_batch(name, seed, accumulated, every):
    one = MAKERS[name](RATE, DECAY)
    many = optax.MultiSteps(one, accumulated).gradient_transformation()
    settings = {"learning_rate": RATE, "weight_decay": DECAY, "every": every * accumulated, "history": 4}
    path, state = walk(track_geometry(many, **settings), seed, steps=12, repeat=accumulated)
    settings["every"] = every
    expected, single = walk(track_geometry(one, **settings), seed, steps=12)
    assert_close(path[-1]["a"], expected[-1]["a"], 1e-7)
    a, b = read_geometry(state), read_geometry(single)
    kept = min(4, -(-12 // every))
    assert_close(a.history["angle"][-kept:], b.history["angle"][-kept:], 1e-5)
    assert_close(a.effective_learning_rate, b.effective_learning_rate, 1e-7)


@relation(
    name=st.sampled_from(["adamw", "lion", "rmsprop"]),
    seed=SEEDS,
    factor=st.sampled_from([1e-2, 10.0]),
    thorough=20,
    quick=0,
)
def test_the_size_of_the_loss_does_not_matter_to_adaptive_optimizers(name, seed, factor):
    make = lambda: optax.chain(optax.scale(factor), MAKERS[name](RATE, DECAY))  # noqa: E731
    settings = {"learning_rate": RATE, "weight_decay": DECAY, "every": 1}
    path, state = walk(track_geometry(make(), **settings), seed)
    expected, plain = walk(track_geometry(MAKERS[name](RATE, DECAY), **settings), seed)
    found, other = read_geometry(state), read_geometry(plain)
    assert state.optimizer == plain.optimizer == name
    assert_close(found.equilibrium_norm, other.equilibrium_norm, 1e-3)
    assert_close(path[-1]["a"], expected[-1]["a"], 1e-3)


@relation(name=NAMES, seed=SEEDS, how=st.sampled_from(["masked", "frozen", "own rate"]), thorough=40)
def test_each_leaf_has_its_own_settings(name, seed, how):
    both = {"learning_rate": RATE, "weight_decay": DECAY, "every": 1}
    make = MAKERS[name]
    if how == "masked":
        optimizer = optax.multi_transform({"x": make(RATE, DECAY), "y": make(RATE, 0.0)}, {"a": "x", "b": "y"})
    elif how == "frozen":
        optimizer = optax.multi_transform({"x": make(RATE, DECAY), "y": optax.set_to_zero()}, {"a": "x", "b": "y"})
    else:
        optimizer = optax.multi_transform({"x": make(RATE, DECAY), "y": make(RATE / 4, DECAY)}, {"a": "x", "b": "y"})
    if how == "own rate":
        with pytest.warns(UserWarning, match="learning rate"):
            tracked = read_geometry(walk(track_geometry(optimizer, **both), seed, 1)[1])
    else:
        tracked = read_geometry(walk(track_geometry(optimizer, **both), seed, 1)[1])
    alone = read_geometry(walk(track_geometry(make(RATE, DECAY), groups="a", **both), seed, 1)[1])
    assert_close(tracked.equilibrium_norm[0], alone.equilibrium_norm[0], 1e-5)
    power = LAWS[name].rate
    rate = {"masked": RATE, "frozen": 0.0, "own rate": RATE / 4}[how]
    assert_close(tracked.effective_learning_rate[1], rate / np.linalg.norm(start(seed)["b"]) ** power, 1e-4)
    if how != "own rate":
        assert np.isnan(tracked.equilibrium_norm[1])
        assert tracked.remarks[1]


@relation(seed=SEEDS, size=st.sampled_from([1e-4, 1.0, 1e4]), limit=st.sampled_from([1e-2, 1.0]), thorough=30)
def test_a_clipped_gradient_has_no_law_and_one_below_the_limit_has(seed, size, limit):
    optimizer = optax.chain(optax.clip_by_global_norm(limit), optax.sgd(RATE))
    tracked = track_geometry(optimizer, learning_rate=RATE, every=1)
    params = start(seed)
    g = gradients(seed)(params, 0)
    norm = np.sqrt(sum(float(jnp.sum(v**2)) for v in g.values()))
    g = jax.tree.map(lambda v: size * v / norm, g)
    _, state = tracked.update(g, tracked.init(params), params)
    assert state.optimizer == "sgd"
    found = np.asarray(state.geometry.effective_learning_rate)
    if size < limit:
        assert_close(found[0], RATE / np.linalg.norm(params["a"]) ** 2)
    elif size > limit:
        assert np.isnan(found).all()


@relation(name=NAMES, seed=SEEDS, thorough=20)
def test_a_state_that_is_written_and_read_goes_on_the_same(name, seed):
    tracked = track_geometry(MAKERS[name](RATE, DECAY), learning_rate=RATE, every=2, history=3)
    _, state = walk(tracked, seed, 3)
    read = flax.serialization.from_bytes(tracked.init(start(seed)), flax.serialization.to_bytes(state))
    assert jax.tree.structure(read) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(read), jax.tree.leaves(state), strict=True):
        assert np.array_equal(a, b, equal_nan=True)


@relation(seed=SEEDS, bad=st.sampled_from([np.nan, np.inf]), thorough=20)
def test_one_bad_gradient_does_not_stay_in_the_means(seed, bad):
    tracked = track_geometry(optax.apply_if_finite(optax.sgd(RATE), 5), kind="sgd", learning_rate=RATE, every=1)
    params, of = start(seed), gradients(seed)
    state = tracked.init(params)
    for t in range(4):
        g = of(params, t)
        g = jax.tree.map(lambda v, t=t: v * bad if t == 1 else v, g)
        updates, state = tracked.update(g, state, params)
        params = optax.apply_updates(params, updates)
    assert np.isfinite(state.geometry.gradient_scale).all()
    assert np.isfinite(state.geometry.radial_spread).all()


@relation(seed=SEEDS, dtype=st.sampled_from([jnp.bfloat16, jnp.float16, jnp.float32]), thorough=20)
def test_an_angle_is_of_the_weights_as_stored(seed, dtype):
    large = 1e6 if dtype == jnp.float32 else 1.0
    params = jax.tree.map(lambda v: (large * v).astype(dtype), start(seed))
    for rate in (1e-5, 1e-1):
        tracked = track_geometry(optax.sgd(rate), kind="sgd", learning_rate=rate, every=1)
        g = jax.tree.map(lambda v: v.astype(dtype), gradients(seed)(start(seed), 0))
        updates, state = jax.jit(tracked.update)(g, tracked.init(params), params)
        after = optax.apply_updates(params, updates)
        for j, k in enumerate(("a", "b")):
            expected = angle(np.asarray(params[k], float), np.asarray(after[k], float))
            assert abs(float(state.geometry.angle[j]) - expected) <= 1e-3 * expected + (1e-6 if large == 1 else 1e-12)


class Normed(linen.Module):
    dtype: object

    @linen.compact
    def __call__(self, x):
        x = linen.LayerNorm(dtype=self.dtype)(linen.Dense(16, use_bias=False, dtype=self.dtype)(x))
        x = linen.RMSNorm(dtype=self.dtype)(linen.Dense(16, use_bias=False, dtype=self.dtype)(linen.relu(x)))
        return linen.Dense(3, dtype=self.dtype)(linen.relu(x))


@relation(seed=SEEDS, dtype=st.sampled_from([jnp.bfloat16, jnp.float16]), all_=st.booleans(), thorough=20)
def test_masks_of_decay_do_not_depend_on_the_precision(seed, dtype, all_):
    X = jnp.asarray(np.random.default_rng(seed).normal(size=(16, 4)), jnp.float32)
    masks = []
    for kind in (jnp.float32, dtype):
        model = Normed(kind)
        params = model.init(jax.random.key(seed), X)["params"]
        params = jax.tree.map(lambda v, kind=kind: v.astype(kind) if all_ else v, params)
        masks.append(lg.training.decay_mask(lambda p, x, model=model: model.apply({"params": p}, x), params, X))
    assert masks[0] == masks[1]
    assert [masks[0][f"Dense_{k}"]["kernel"] for k in range(3)] == [True, True, False]


@relation(decay=st.sampled_from([0.02, 0.1]), seed=SEEDS, thorough=20)
def test_what_is_said_wrong_is_corrected(decay, seed):
    """The equilibrium is that of what the optimizer does, whatever is said of it, and a warning says so."""
    right = track_geometry(MAKERS["momentum"](RATE, decay), learning_rate=RATE, weight_decay=decay, every=1)
    wrong = track_geometry(MAKERS["momentum"](RATE, decay), learning_rate=2 * RATE, weight_decay=3 * decay, every=1)
    expected = read_geometry(walk(right, seed, 1)[1])
    with pytest.warns(UserWarning, match="was given"):
        found = read_geometry(walk(wrong, seed, 1)[1])
    assert_close(found.effective_learning_rate, expected.effective_learning_rate, 1e-5)
    assert np.allclose(found.equilibrium_norm, expected.equilibrium_norm, rtol=1e-4, equal_nan=True)


def change(state, name, by):
    """The state of a tracker, with a hyperparameter changed in that of its optimizer."""
    hyper = state.inner.hyperparams
    return dataclasses.replace(state, inner=state.inner._replace(hyperparams=hyper | {name: by * hyper[name]}))


INJECTED = {
    "sgd": lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate),
    "momentum": lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate, momentum=0.9),
    "adamw": lambda rate: optax.inject_hyperparams(optax.adamw)(learning_rate=rate, weight_decay=DECAY),
    "lion": lambda rate: optax.inject_hyperparams(optax.lion)(learning_rate=rate, weight_decay=DECAY),
    "adabelief": lambda rate: optax.inject_hyperparams(optax.adabelief)(learning_rate=rate),
    "lamb": lambda rate: optax.inject_hyperparams(optax.lamb)(learning_rate=rate),
}
POWERS = {"sgd": 2, "momentum": 2, "lamb": 0}


@relation(
    name=st.sampled_from(sorted(INJECTED)),
    by=st.sampled_from([0.1, 0.5, 3.0]),
    at=st.integers(1, 5),
    given=st.booleans(),
    seed=SEEDS,
    thorough=30,
)
def test_a_rate_that_is_changed_in_the_state_is_recorded(name, by, at, given, seed):
    decay = {"weight_decay": DECAY} if name in {"adamw", "lion"} else {}
    kind = {"kind": name} if given and name in LAWS else {}
    if name == "momentum":
        decay["momentum"] = 0.9
    tracked = track_geometry(INJECTED[name](RATE), learning_rate=RATE, every=1, **kind, **decay)
    _, state = walk(tracked, seed, at)
    before = read_geometry(state)
    params = start(seed)
    _, state = tracked.update(gradients(seed)(params, 0), change(state, "learning_rate", by), params)
    after = read_geometry(state)
    norms = np.array([np.linalg.norm(params[k]) for k in "ab"])
    assert_close(after.effective_learning_rate, by * RATE / norms ** POWERS.get(name, 1), 2e-4)
    if name in {"adamw", "lion"}:
        assert_close(after.equilibrium_norm, np.sqrt(by) * before.equilibrium_norm, 1e-2)


@relation(name=st.sampled_from(["sgd", "momentum", "adamw", "lion"]), seed=SEEDS, thorough=12)
def test_a_schedule_of_which_nothing_is_said_is_recorded(name, seed):
    drops = optax.piecewise_constant_schedule(RATE, {12: 0.1})
    tracked = track_geometry(MAKERS[name](drops, DECAY), learning_rate=RATE, weight_decay=DECAY, every=1)
    _, state = walk(tracked, seed, 15)
    found = read_geometry(state)
    assert_close(found.effective_learning_rate * found.norm ** LAWS[name].rate, [RATE / 10] * 2, 2e-4)


OF_EPSILON = {
    "adamw": optax.adamw(RATE, weight_decay=DECAY),
    "rmsprop": optax.chain(optax.scale_by_rms(), optax.add_decayed_weights(DECAY), optax.scale(-RATE)),
}


@relation(name=st.sampled_from(sorted(OF_EPSILON)), size=st.sampled_from([1e-12, 1.0]), seed=SEEDS, thorough=12)
def test_a_step_that_epsilon_outweighs_has_no_law(name, size, seed):
    tracked = track_geometry(OF_EPSILON[name], learning_rate=RATE, weight_decay=DECAY, every=1)
    params = start(seed)
    state = tracked.init(params)
    for t in range(3):
        g = jax.tree.map(lambda v: size * v, gradients(seed)(params, t))
        _, state = tracked.update(g, state, params)
    found = read_geometry(state)
    assert np.isnan(found.effective_learning_rate).all() == (size < 1e-9)
    assert np.isnan(found.equilibrium_norm).all() == (size < 1e-9)
    assert all(("ε" in remark) == (size < 1e-9) for remark in found.remarks)


@relation(b1=st.sampled_from([0.6, 0.9, 0.95]), b2=st.sampled_from([0.9, 0.98, 0.999]), warm=st.booleans(), thorough=10)
def test_the_memory_of_lion_is_found(b1, b2, warm):
    rate = optax.linear_schedule(0.0, RATE, 10) if warm else RATE
    optimizer = optax.lion(rate, b1=b1, b2=b2, weight_decay=DECAY)
    (move, _) = track_geometry(optimizer, learning_rate=rate, weight_decay=DECAY).init(start(0)).moves
    assert move.law == "lion"
    assert_close(move.memory, b1, 1e-4)
    assert_close(1 - move.b2, 1 - b2, 1e-2)


def decayed_by(pull):
    """Weight decay that is some function of weights and count, beside sgd."""
    return optax.GradientTransformation(
        lambda params: jnp.zeros((), jnp.int32),
        lambda u, count, params: (
            jax.tree.map(lambda u, p: u - RATE * DECAY * pull(p, count), u, params),
            count + 1,
        ),
    )


@pytest.mark.parametrize(
    ("optimizer", "remark"),
    [
        (optax.chain(optax.sgd(RATE), decayed_by(lambda p, _: p)), ""),
        (optax.chain(optax.sgd(RATE), decayed_by(lambda p, _: jnp.sign(p))), "in proportion"),
        (optax.chain(optax.sgd(RATE), decayed_by(lambda p, _: p / jnp.linalg.norm(p))), "in proportion"),
        (optax.chain(optax.sgd(RATE), decayed_by(lambda p, t: p * jnp.where(t % 10 == 0, 10.0, 0.0))), "another way"),
        (optax.adamw(RATE, b2=0.8, weight_decay=DECAY), "a few steps"),
        (optax.adamw(RATE, eps_root=1e-3, weight_decay=DECAY), "not that of its law"),
    ],
)
def test_an_equilibrium_is_predicted_only_where_its_formula_applies(optimizer, remark):
    tracked = track_geometry(optimizer, learning_rate=RATE, weight_decay=DECAY, every=1)
    params = start(0)
    g = jax.tree.map(lambda v: 0.1 * v, gradients(0)(params, 0))
    with as_users_have_it():
        found = read_geometry(tracked.update(g, tracked.init(params), params)[1])
    assert np.isnan(found.equilibrium_norm).all() == bool(remark)
    assert all(remark in text for text in found.remarks)


def test_the_first_group_may_stand_still():
    frozen = optax.masked(optax.set_to_zero(), {"a": True, "b": False})
    tracked = track_geometry(optax.chain(optax.adamw(RATE), frozen), learning_rate=RATE, every=1)
    with as_users_have_it():
        found = read_geometry(tracked.update(gradients(0)(start(0), 0), tracked.init(start(0)), start(0))[1])
    assert_close(found.effective_learning_rate[1], RATE / np.linalg.norm(start(0)["b"]), 1e-5)


def test_a_state_of_another_tracker_is_refused():
    states = [track_geometry(optax.sgd(RATE), learning_rate=RATE, history=k).init(start(0)) for k in (2, 3)]
    with pytest.raises(ValueError, match=r"written by another tracker: .* history"):
        flax.serialization.from_bytes(states[0], flax.serialization.to_bytes(states[1]))
    read = flax.serialization.from_bytes(states[0], flax.serialization.to_bytes(states[0]))
    tracked = track_geometry(optax.sgd(RATE), learning_rate=RATE, history=2)
    tracked.update(gradients(0)(start(0), 0), read, start(0))


EVERY = dict(optimizers())


@pytest.mark.thorough
@pytest.mark.parametrize("name", EVERY)
def test_every_optimizer_of_optax_has_a_right_prediction_or_none(name):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = examine(name, EVERY[name], 6000)
    assert found.law
    assert not found.error > RIGHT, found


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_angles(self, monkeypatch):
        monkeypatch.setattr(_record, "_moved", lambda w, u: 2 * u)
        fails(test_a_record_is_that_of_the_weights_before_and_after)

    def test_periods(self, monkeypatch):
        monkeypatch.setattr(_detect.Probe, "_find_steps", lambda self: (0, 1))
        fails(test_accumulated_batches_are_one_batch)

    def test_one_setting_for_all(self, monkeypatch):
        original = _settings.Said._beside

        def first_alone(self, name, motions, tell):
            first_alone.kept = getattr(first_alone, "kept", None) or original(self, name, motions, tell)
            return first_alone.kept

        monkeypatch.setattr(_settings.Said, "_beside", first_alone)
        fails(test_each_leaf_has_its_own_settings, how=st.just("frozen"))

    def test_changed_rates(self, monkeypatch):
        monkeypatch.setattr(_present, "with_numbers", lambda state, of, kind: state)
        fails(test_a_rate_that_is_changed_in_the_state_is_recorded)

    def test_schedules(self, monkeypatch):
        original = _present.with_numbers
        faulty = lambda state, of, kind: state if kind is jnp.integer else original(state, of, kind)  # noqa: E731
        monkeypatch.setattr(_present, "with_numbers", faulty)
        fails(test_a_schedule_of_which_nothing_is_said_is_recorded)

    def test_epsilon(self, monkeypatch):
        monkeypatch.setattr(_present, "OUTWEIGHS", 2.0)
        fails(test_a_step_that_epsilon_outweighs_has_no_law, size=st.just(1e-12))

    def test_signs(self, monkeypatch):
        monkeypatch.setattr(_detect, "TURNS", (1e-4, 1e-2))
        fails(test_the_memory_of_lion_is_found, draws=4, b1=st.just(0.95), b2=st.just(0.9))

    def test_clipping(self, monkeypatch):
        monkeypatch.setattr(tracker, "is_linear", lambda *a: jnp.ones(2, bool))
        fails(test_a_clipped_gradient_has_no_law_and_one_below_the_limit_has)

    def test_means(self, monkeypatch):
        original = jnp.isfinite
        monkeypatch.setattr(_record.jnp, "isfinite", lambda v: jnp.ones_like(v, bool))
        fails(test_one_bad_gradient_does_not_stay_in_the_means)
        monkeypatch.setattr(_record.jnp, "isfinite", original)

    def test_storage(self, monkeypatch):
        monkeypatch.setattr(_record, "_moved", lambda w, u: u)
        fails(test_an_angle_is_of_the_weights_as_stored, draws=20)

    def test_precision(self, monkeypatch):
        monkeypatch.setattr(groups, "in_32_bits", lambda function: function)
        fails(test_masks_of_decay_do_not_depend_on_the_precision, draws=40, dtype=st.just(jnp.bfloat16))

    def test_what_was_said(self, monkeypatch):
        monkeypatch.setattr(_settings, "_factor", lambda found, said: 1.0)
        fails(test_what_is_said_wrong_is_corrected)

    def test_serialization(self, monkeypatch):
        original = _record.replace
        monkeypatch.setattr(_record, "replace", lambda state, inner, packed: original(state, inner=inner))
        fails(test_a_state_that_is_written_and_read_goes_on_the_same)

    def test_sizes_of_gradients(self, monkeypatch):
        times_x = lambda x, b1, b2: x * _recursions.adam(x, b1, b2)  # noqa: E731
        faulty = tuple(dataclasses.replace(r, of=times_x) if r.law == "adamw" else r for r in _recursions.RECURSIONS)
        monkeypatch.setattr(_detect, "RECURSIONS", faulty)
        fails(test_the_size_of_the_loss_does_not_matter_to_adaptive_optimizers, name=st.just("adamw"))
