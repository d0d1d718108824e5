"""The tracker: what it records is what the equations say, in any training loop, and it notices what is not so."""

import contextlib
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest
from lngeom.training import _record, predict_equilibrium, read_geometry, scale_invariant_groups, track_geometry, tracker
from lngeom.training._settings import Moves
from lngeom.training.laws import LAWS

from tests.cases import drawn

X = drawn(1, 20, 3)
Y = jnp.sin(X @ jnp.ones((3, 2)))


@pytest.fixture(autouse=True)
def _optax_promotes():
    """optax's Adam raises a float to an integer count."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def layer(params, x=X):
    """A layer-normalized layer and a readout."""
    a = x @ params["weights"].T
    u = a - jnp.mean(a, 1, keepdims=True)
    return (u / jnp.sqrt(jnp.mean(u**2, 1, keepdims=True))) @ params["readout"].T


def loss(params):
    return jnp.mean((layer(params) - Y) ** 2)


def start():
    return {"weights": drawn(2, 5, 3), "readout": drawn(3, 2, 5)}


def run(optimizer, steps=6, params=None, value=loss):
    params = start() if params is None else params

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(value)(params), state, params)
        after = optax.apply_updates(params, updates)
        return (after, state), (params, after, read_geometry(state))

    return jax.jit(lambda c: jax.lax.scan(step, c, None, length=steps))((params, optimizer.init(params)))


def test_it_records_norm_angle_rate_and_residual_and_leaves_updates_alone():
    schedule = optax.linear_schedule(0.1, 0.05, 6)
    tracked = track_geometry(optax.sgd(schedule), learning_rate=schedule, groups="weights", every=1, history=4)
    (_, state), (before, after, geometry) = run(tracked)
    (plain, _), _ = run(optax.chain(optax.sgd(schedule), track_geometry(groups="weights")))
    assert np.allclose(plain["weights"], after["weights"][-1], rtol=1e-14)
    w, v = (np.asarray(p["weights"]).reshape(6, -1) for p in (before, after))
    norm = np.linalg.norm(w, axis=1)
    angle = np.arccos(np.sum(w * v, 1) / norm / np.linalg.norm(v, axis=1))
    assert np.allclose(geometry.norm[:, 0], norm, rtol=1e-13)
    assert np.allclose(geometry.angle[:, 0], angle, rtol=1e-9)
    rates = np.array([schedule(t) for t in range(6)])
    assert np.allclose(geometry.effective_learning_rate[:, 0], rates / norm**2, rtol=1e-6)
    assert np.max(np.abs(geometry.radial_residual)) < 1e-14
    last = read_geometry(state)
    assert last.history_steps.tolist() == [2, 3, 4, 5]
    assert np.array_equal(last.history["norm"], geometry.norm[2:])
    assert bool(last.scale_invariant[0])


def test_between_records_the_last_one_stands():
    settings = {"learning_rate": 0.1, "groups": "weights"}
    (_, state), (_, _, each) = run(track_geometry(optax.sgd(0.1), **settings, every=1), steps=7)
    (_, state), (_, _, some) = run(track_geometry(optax.sgd(0.1), **settings, every=3, history=2), steps=7)
    for name in ("norm", "angle", "effective_learning_rate", "radial_residual"):
        assert np.allclose(getattr(some, name), getattr(each, name)[np.array([0, 0, 0, 3, 3, 3, 6])], atol=1e-16)
    assert read_geometry(state).history_steps.tolist() == [3, 6]
    assert read_geometry(state).step == 7
    with pytest.raises(ValueError, match="every must be a whole number of steps, at least 1; got 0"):
        track_geometry(optax.sgd(0.1), every=0)


def workspace(optimizer):
    """Bytes that a compiled step needs beside its arguments and results, which share their memory."""

    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params = start()
    program = jax.jit(step, donate_argnums=(0, 1)).lower(params, optimizer.init(params)).compile()
    return program.memory_analysis().temp_size_in_bytes


def test_between_records_nothing_is_copied_that_only_a_record_reads(monkeypatch):
    wrapped = track_geometry(optax.adam(1e-2), learning_rate=1e-2, groups="weights")
    link = optax.chain(optax.adam(1e-2), track_geometry(groups="weights"))
    least = workspace(wrapped), workspace(link)
    monkeypatch.setattr(tracker, "_after", lambda packed, tree: tree)
    copy = start()["weights"].nbytes
    assert workspace(wrapped) >= least[0] + 3 * copy  # weights and both moments
    assert workspace(link) >= least[1] + copy


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16, jnp.complex64])
def test_updates_are_the_same_to_the_bit(dtype):
    gradients = jnp.array([[0.0, -0.0], [jnp.inf, -jnp.inf], [jnp.nan, 1e-30], [1.0, -3e30]], dtype)
    params = jnp.ones_like(gradients)
    tracked = track_geometry(optax.sgd(1.0), kind="sgd", groups=lambda path, leaf: True)
    plain, found = (np.asarray(o.update(gradients, o.init(params), params)[0]) for o in (optax.sgd(1.0), tracked))
    assert plain.tobytes() == found.tobytes()


@pytest.mark.thorough
def test_seeds_side_by_side_record_when_due_and_only_then():
    """Each in its own rhythm, and a step where none is due computes no record: the `cond` is not made a select."""
    tracked = track_geometry(optax.adam(1e-2), learning_rate=1e-2, groups="weights", every=3, history=2)
    counts = jnp.arange(5)

    def late(count):
        state = tracked.init(start())
        return eqx.tree_at(lambda s: s.packed.counts, state, state.packed.counts.at[0].set(jnp.int32(count)))

    def four_steps(state):
        def step(carry, _):
            updates, state = tracked.update(jax.grad(loss)(carry[0]), carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(step, (start(), state), None, length=4)[0][1].geometry

    together = jax.jit(jax.vmap(lambda count: four_steps(late(count))))
    found = together(counts)
    for k, alone in enumerate(map(four_steps, map(late, counts))):
        one = jax.tree.map(lambda v, k=k: v[k], found)
        assert all(
            np.allclose(a, b, rtol=1e-12, atol=1e-15, equal_nan=True)
            for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(alone), strict=True)
        ), k
    twice = jax.jit(jax.vmap(jax.vmap(lambda count: four_steps(late(count)))))
    for program, argument in ((together, counts), (twice, counts[None])):
        assert "cond[" in str(jax.make_jaxpr(program)(argument))
    assert np.array_equal(twice(counts[None]).norm[0], found.norm)


def test_a_loss_can_be_differentiated_through_a_tracked_step():
    def after(rate, wrap):
        optimizer = wrap(optax.sgd(rate))
        updates, _ = optimizer.update(jax.grad(loss)(start()), optimizer.init(start()), start())
        return loss(optax.apply_updates(start(), updates))

    plain = jax.grad(after)(0.1, lambda optimizer: optimizer)
    assert np.allclose(
        jax.grad(after)(0.1, lambda optimizer: track_geometry(optimizer, kind="sgd", groups="weights")), plain
    )


def test_as_a_link_it_records_norm_and_angle_only():
    link = optax.chain(optax.adam(1e-2), track_geometry(groups="weights"))
    (_, state), _ = run(link, steps=2)
    found = read_geometry(state)
    assert np.isfinite(found.norm) & np.isfinite(found.angle)
    assert np.isnan(found.effective_learning_rate) & np.isnan(found.radial_residual)
    with pytest.raises(ValueError, match="takes neither learning_rate"):
        track_geometry(learning_rate=0.1)


def test_a_group_without_a_law_has_no_effective_rate_unless_it_never_moves():
    powers = [_record._power(Moves(law, rate)) for law, rate in (("sgd", 1.0), ("adamw", 2.0), ("", 1.0), ("", 0.0))]
    np.testing.assert_array_equal(powers, [LAWS["sgd"].rate, LAWS["adamw"].rate, np.nan, 0.0])


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("sgd", optax.sgd(0.1)),
        ("sgd", optax.chain(optax.clip_by_global_norm(1e6), optax.add_decayed_weights(1e-3), optax.sgd(0.1))),
        ("momentum", optax.sgd(0.1, momentum=0.9)),
        ("adamw", optax.adamw(1e-3)),
        ("lion", optax.lion(1e-3)),
        ("muon", optax.contrib.muon(1e-3)),
        ("lars", optax.lars(0.1, weight_decay=1e-4)),
        ("lamb", optax.lamb(0.1)),
        ("rmsprop", optax.rmsprop(0.1)),
        ("adaptive", optax.rmsprop(0.1, momentum=0.9)),
        ("adaptive", optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1))),
    ],
)
def test_it_finds_the_law_of_an_optimizer(name, optimizer):
    state = track_geometry(optimizer, groups="weights").init(start())
    assert state.optimizer == name


WARMED = optax.warmup_cosine_decay_schedule(1e-4, 1e-2, 10, 100)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        (optax.sgd(0.01), 0.01),
        (optax.chain(optax.clip(5.0), optax.add_decayed_weights(0.5), optax.sgd(0.01)), 0.01),
        (optax.chain(optax.clip_by_global_norm(1e6), optax.sgd(0.01, momentum=0.9)), 0.01),
        (optax.sgd(0.01, momentum=0.9, nesterov=True), 0.01),
        (optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.01)), 0.01),
        (optax.rmsprop(0.01), 0.01),
        (optax.adamw(0.01, weight_decay=0.5), 0.01),
        (optax.adam(optax.linear_schedule(0.0, 0.01, 10)), optax.linear_schedule(0.0, 0.01, 10)),
        (optax.lion(0.01), 0.01),
        (optax.inject_hyperparams(optax.sgd)(learning_rate=0.01), 0.01),
        (optax.sgd(WARMED), WARMED),
        (optax.adam(WARMED), WARMED),
    ],
)
def test_a_rate_ten_times_off_the_optimizers_own_is_told_and_the_right_one_is_not(optimizer, rate):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        track_geometry(optimizer, learning_rate=rate).init(start())
    for factor in (10, 0.1):
        wrong = (lambda step, factor=factor: factor * rate(step)) if callable(rate) else factor * rate
        with pytest.warns(UserWarning, match="was given the learning rate .* of 'readout' by its optimizer") as told:
            jax.jit(track_geometry(optimizer, learning_rate=wrong).init)(start())
        assert len(told) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.lars(0.01),
        optax.lamb(0.01),
        optax.nadam(0.01),
        optax.chain(optax.clip_by_global_norm(1e-3), optax.adam(0.01)),
        optax.contrib.muon(0.01),
    ],
)
def test_a_rate_that_steps_do_not_tell_is_not_doubted(optimizer):
    for rate in (0.01, 0.1):
        track_geometry(optimizer, learning_rate=rate).init(start())


def test_a_rate_is_compared_group_by_group_and_a_traced_one_not_at_all():
    labels = {"weights": "slow", "readout": "fast"}
    optimizer = optax.multi_transform({"slow": optax.sgd(0.01), "fast": optax.sgd(0.1)}, labels)
    with pytest.warns(UserWarning, match="0.1, but the first update of 'weights' by its optimizer has the rate 0.01"):
        track_geometry(optimizer, learning_rate=0.1).init(start())
    track_geometry(optimizer, learning_rate=0.1, groups="readout").init(start())
    over_rates = jax.vmap(lambda rate: track_geometry(optax.sgd(0.01), learning_rate=rate).init(start()).packed)
    assert over_rates(jnp.array([0.01, 0.1])).counts.shape == (2, 2)


def test_an_optimizer_of_no_known_law_is_refused():
    squared = optax.stateless(lambda updates, params: jax.tree.map(lambda g: -(g**3), updates))
    with pytest.raises(ValueError, match=r"unknown optimizer: its .*step of 'readout' is multiplied by 8 .* kind="):
        track_geometry(squared, learning_rate=0.1).init(start())
    with pytest.raises(ValueError, match="takes no step at the gradients tried"):
        track_geometry(optax.sgd(0.0), learning_rate=0.1).init(start())
    warmed = optax.linear_schedule(0.0, 1.0, 5)
    assert track_geometry(optax.sgd(warmed), learning_rate=warmed).init(start()).optimizer == "sgd"
    with pytest.warns(UserWarning, match=r"kind='sgd' was given, .* of 'readout' is multiplied by 8"):
        assert track_geometry(squared, learning_rate=0.1, kind="sgd").init(start()).optimizer == "sgd"
    with pytest.raises(ValueError, match=r"no law is known for the optimizer 'adamm' \(did you mean 'adam'"):
        track_geometry(optax.sgd(0.1), kind="adamm")


def test_a_group_that_is_not_scale_invariant_is_noticed():
    (_, state), _ = run(track_geometry(optax.sgd(0.1), learning_rate=0.1, groups=["weights", "readout"]))
    with pytest.warns(UserWarning, match=r"1 of 2 groups is not scale-invariant: 'readout' \(0\.\d+\)\. In brackets"):
        found = read_geometry(state)
    assert found.scale_invariant.tolist() == [True, False]


@pytest.mark.parametrize(("layers", "more"), [(3, ""), (7, " and 2 more")])
def test_groups_that_are_not_scale_invariant_are_named_whole_in_one_warning(layers, more):
    """Without groups= every matrix is a group."""
    names = [f"a_model_with_long_names.block_{k}.{'sub_block.' * 8}kernel" for k in range(layers)]
    params = {name: jnp.ones((2, 2)) for name in names}
    tracked = track_geometry(optax.sgd(0.1), learning_rate=0.1)
    _, state = tracked.update(params, tracked.init(params), params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_geometry(state)
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"{layers} of {layers} groups are not scale-invariant: ")
    assert all(f"{name!r} (1)" in message for name in names[:5])
    assert f"(1){more}. In brackets" in message


def test_a_run_that_diverges_is_noticed():
    def exploding(p):
        return jnp.exp(jnp.exp(jnp.sum(p["weights"] ** 2)))

    (_, state), _ = run(track_geometry(optax.sgd(10.0), learning_rate=10.0, groups="weights", every=1), value=exploding)
    with pytest.warns(
        UserWarning, match="diverged: an update of the tracked weights was NaN or infinite first at step"
    ):
        assert read_geometry(state).diverged_at >= 0


def test_the_first_step_that_diverged_stays_on_record():
    optimizer = track_geometry(optax.sgd(0.1), learning_rate=0.1, groups="weights", every=1)
    params = start()
    state = optimizer.init(params)
    for broken in (False, True, False, True):
        gradient = jax.tree.map(lambda v, bad=broken: jnp.full_like(v, jnp.nan if bad else 0.0), params)
        _, state = optimizer.update(gradient, state, params)
    with pytest.warns(UserWarning, match="first at step 1"):
        assert read_geometry(state).diverged_at == 1


def test_missing_params_states_and_patterns_say_so():
    tracked = track_geometry(optax.sgd(0.1), learning_rate=0.1)
    state = tracked.init(start())
    with pytest.raises(ValueError, match="needs the parameters"):
        tracked.update(start(), state)
    with pytest.raises(ValueError, match="found 0 in a "):
        read_geometry(optax.sgd(0.1).init(start()))
    with pytest.raises(ValueError, match="no parameter matches the group pattern 'kernel'; there are readout, weights"):
        track_geometry(optax.sgd(0.1), groups="kernel").init(start())
    with pytest.raises(ValueError, match="give momentum="):
        track_geometry(optax.sgd(0.1, momentum=0.9), kind="momentum", learning_rate=0.1, weight_decay=0.1).init(start())
    with pytest.raises(ValueError, match="weight_decay must be at least 0"):
        track_geometry(optax.sgd(0.1), weight_decay=-1.0)


def test_groups_that_scale_alone_or_together_are_found():
    params = start() | {"recurrent": jnp.ones((5, 5)), "gain": jnp.ones(5)}

    def apply(p):
        a = X @ p["weights"].T + X[:, :1] @ jnp.ones((1, 5)) @ p["recurrent"].T
        return (a / jnp.linalg.norm(a, axis=1, keepdims=True) * p["gain"][None, :]) @ p["readout"].T

    assert scale_invariant_groups(apply, params) == {"recurrent+weights": ("recurrent", "weights")}
    alone = scale_invariant_groups(layer, start(), X)
    assert alone == {"weights": ("weights",)}
    state = track_geometry(optax.sgd(0.1), groups=alone).init(start())
    assert state.geometry.names == ("weights",)


def test_predicted_equilibria_are_those_of_the_table():
    for kind in ("sgd", "momentum", "normalized_gd", "adamw", "lion", "lars"):
        tracked = track_geometry(
            optax.sgd(0.1), learning_rate=0.1, weight_decay=0.01, groups="weights", kind=kind, momentum=0.8
        )
        told = pytest.warns(UserWarning, match=f"kind='{kind}' was given")  # the optimizer is sgd
        with contextlib.nullcontext() if LAWS[kind].rate == 2 else told:
            _, found = tracked.update(start(), tracked.init(start()), start())
        found = found.geometry
        rest = predict_equilibrium(
            kind, 0.1, 0.01, momentum=0.8, b2=0.99, gradient_scale=float(found.gradient_scale[0]), size=15
        )
        assert np.allclose([found.equilibrium_angle[0], found.equilibrium_norm[0]], [rest.angle, rest.norm]), kind
        assert np.allclose(found.effective_learning_rate[0], 0.1 / float(found.norm[0]) ** LAWS[kind].rate)


@pytest.mark.thorough
def test_it_works_in_a_loop_of_flax_and_in_one_of_equinox():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    tracked = track_geometry(optax.sgd(0.1), learning_rate=0.1, groups="kernel")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flax's own, of JAX's deprecations
        optimizer = nnx.Optimizer(model, tracked, wrt=nnx.Param)
        gradient = nnx.grad(lambda m: jnp.sum((m(X) / jnp.linalg.norm(m.kernel[...]) - Y) ** 2))(model)
        optimizer.update(model, gradient)
        found = read_geometry(optimizer.opt_state)
    assert np.isfinite(found.norm[0])
    linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    params, _ = eqx.partition(linear, eqx.is_array)
    tracked = track_geometry(optax.adam(0.1), learning_rate=0.1)
    state = tracked.init(params)
    assert state.geometry.names == ("weight",)
    gradient = eqx.filter_grad(lambda m: jnp.sum(jax.vmap(m)(X) ** 2))(linear)
    _, state = tracked.update(gradient, state, params)
    with pytest.warns(UserWarning, match="not scale-invariant"):
        assert read_geometry(state).step == 1


@pytest.mark.thorough
def test_a_figure_of_the_geometry_carries_its_data(tmp_path):
    decayed = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1))
    tracked = track_geometry(decayed, learning_rate=0.1, weight_decay=0.1, groups="weights", every=1, history=4)
    (_, state), (_, _, stacked) = run(tracked)
    lg.plots.training(read_geometry(state), tmp_path / "ring")
    lg.plots.training(stacked, tmp_path / "stacked")
    import json

    ring, whole = (json.loads((tmp_path / f"{n}.json").read_text())["data"] for n in ("ring", "stacked"))
    assert ring["norm"]["weights"] == whole["norm"]["weights"][2:]
    with pytest.raises(ValueError, match="one step alone"):
        lg.plots.training(tracked.init(start()).geometry.__class__(**_fields(stacked)))


def _fields(stacked):
    last = jax.tree.map(lambda v: v[-1], stacked)
    return {name: getattr(last, name) for name in last.__dataclass_fields__ if name not in {"history", "history_steps"}}
