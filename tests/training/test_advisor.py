"""The plan: parts, predictions with conditions, shares of ε, and equivalences that are runs."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lngeom.training import decay_mask, plan, predict_equilibrium, read_geometry, scale_invariant_groups, track_geometry
from lngeom.training.laws import LAWS

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(12, 4)))
Y = jnp.asarray(RNG.normal(size=(12, 3)))
EPS = 0.01
PARAMS = {
    "w": jnp.asarray(RNG.normal(size=(4, 6)) / 2),
    "g": jnp.ones((1, 6)),
    "out": jnp.asarray(RNG.normal(size=(6, 3))),
}


@pytest.fixture(autouse=True)
def _optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


def apply(p, x, eps=EPS):
    a = x @ p["w"]
    return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + eps) * p["g"] @ p["out"]


def planned(optimizer="sgd", rate=0.1, decay=0.01, **settings):
    return plan(apply, PARAMS, X, optimizer=optimizer, learning_rate=rate, weight_decay=decay, **settings)


def test_a_plan_says_what_decay_does_and_where_the_norm_will_rest():
    decayed = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1))
    found = {row["name"]: row for row in planned(decayed, gradient_scale={"w": 2.0}).rows}
    rest = predict_equilibrium("sgd", 0.1, 0.01, gradient_scale=2.0)
    row = found["w"]
    assert (row["acts"], row["decayed"], row["size"]) == ("rate", True, 24)
    assert (row["equilibrium_norm"], row["equilibrium_angle"]) == (rest.norm, rest.angle)
    assert row["half_life"] == rest.half_life == math.log(2) / rest.relaxation
    assert row["norm"] == pytest.approx(np.linalg.norm(PARAMS["w"]))
    assert row["effective_learning_rate"] == pytest.approx(0.1 / np.linalg.norm(PARAMS["w"]) ** 2)
    assert {found[name]["acts"] for name in ("g", "out")} == {"regularizer"}
    assert math.isnan(found["out"]["equilibrium_angle"])
    with pytest.warns(UserWarning, match="decays none of"):
        without = planned(optax.sgd(0.1)).parameters[0]
    assert (without.decayed, math.isnan(without.equilibrium_angle)) == (False, True)


@pytest.mark.parametrize("name", LAWS)
def test_every_law_has_a_prediction_or_a_reason(name):
    found = planned(name, rate=1e-3, momentum=0.9).parameters[0]
    assert found.remark
    has = not math.isnan(found.equilibrium_angle)
    assert has is (name in {"sgd", "momentum", "adam", "adamw", "rmsprop", "lion", "normalized_gd", "lars"})
    assert ("no equilibrium is predicted" in found.remark) is not has
    needs = name in {"sgd", "momentum", "lars"}
    assert ("needs gradient_scale=" in found.remark) is needs
    assert math.isnan(found.equilibrium_norm) is (needs or not has)


def test_the_share_of_epsilon_is_that_of_the_denominators():
    (norm,) = planned().norms
    square = np.mean(np.square(X @ PARAMS["w"]), 1)
    share = EPS / (square + EPS)
    assert (norm.eps, norm.of) == (pytest.approx(EPS), ("w",))
    assert norm.share == pytest.approx(np.mean(share))
    assert norm.largest_share == pytest.approx(np.max(share))
    assert planned().parameters[0].epsilon_share == norm.share


def test_a_norm_of_other_parameters_has_its_own_share():
    def two(p, x):
        return jnp.tanh(apply(p, x)) @ p["v"] / jnp.sqrt(jnp.mean((apply(p, x) @ p["v"]) ** 2, 1, keepdims=True) + 1e-3)

    found = plan(two, PARAMS | {"v": jnp.ones((3, 2))}, X, optimizer="sgd", learning_rate=0.1)
    by_eps = {round(norm.eps, 5): norm.of for norm in found.norms}
    assert by_eps.keys() == {EPS, 1e-3}
    assert by_eps[EPS] == ("w",)
    assert by_eps[1e-3] == ("v",)


def test_an_equivalent_run_computes_the_same_function():
    """From the factors of the plan, by optax: and with another power it does not."""

    def loss(p):
        return jnp.mean(jnp.square(apply(p, X, 0.0) - Y))

    def outputs(make, rate, decay, scale, eps):
        label = {"w": "w", "g": "rest", "out": "rest"}
        optimizer = optax.multi_transform({"w": make(rate, decay, eps), "rest": optax.sgd(0.01)}, label)
        params = PARAMS | {"w": scale * PARAMS["w"]}

        @jax.jit
        def run(params):
            def step(carry, _):
                params, state = carry
                updates, state = optimizer.update(jax.grad(loss)(params), state, params)
                return (optax.apply_updates(params, updates), state), None

            return apply(jax.lax.scan(step, (params, optimizer.init(params)), length=20)[0][0], X, 0.0)

        return run(params)

    makers = {
        "sgd": (lambda rate, decay, eps: optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate)), 0.1),
        "adamw": (lambda rate, decay, eps: optax.adamw(rate, eps=eps, weight_decay=decay), 0.02),
    }
    for name, (make, rate) in makers.items():
        factors = planned(name).equivalent(3.0)
        scale, decay, eps = (factors[k] for k in ("initial_weights", "weight_decay", "eps"))
        three = outputs(make, 3 * rate, 0.1, 1.0, 1e-3)
        assert np.allclose(outputs(make, rate, 0.1 * decay, scale, 1e-3 * eps), three, rtol=0, atol=1e-10), name
        assert not np.allclose(outputs(make, rate, 0.1 * decay, scale**1.1, 1e-3 * eps), three, rtol=0, atol=1e-4), name
    with pytest.raises(ValueError, match="turns the weights by an angle that depends on η and not on their scale"):
        planned("lars").equivalent(2.0)
    with pytest.raises(ValueError, match="factor must be positive"):
        planned().equivalent(-1.0)


def test_masks_schedules_and_records_are_read():
    mask = {"w": False, "g": True, "out": True}
    row = planned(mask=mask).parameters[0]
    assert not row.decayed
    assert "without weight decay the norm only grows" in row.remark
    joint = lambda p, x: apply({**p, "w": p["w"] + p["u"]}, x)  # noqa: E731
    params = PARAMS | {"u": 2.0 + PARAMS["w"]}
    parted = plan(joint, params, X, optimizer="sgd", learning_rate=0.1, weight_decay=0.1, mask={"u": True, **mask})
    assert (parted.parameters[0].name, parted.parameters[0].acts) == ("u+w", "regularizer")
    assert "only together" in parted.parameters[0].remark
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100)
    assert planned(rate=schedule, step=10).learning_rate == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"got 0.0 at step 0 of the schedule: choose another with step="):
        planned(rate=schedule)
    decayed = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1))
    tracker = track_geometry(decayed, learning_rate=0.1, weight_decay=0.01, groups="w")
    _, state = tracker.update(PARAMS, tracker.init(PARAMS), PARAMS)
    record = state.geometry
    found = planned(gradient_scale=record).parameters[0]
    assert found.equilibrium_norm == pytest.approx(float(record.equilibrium_norm[0]))


def test_leaves_whose_measured_laws_agree_move_together():
    """Weights and bias before a norm: their decays are measured, and agree to some digits only."""

    def dense(p, x):
        a = x @ p["w"] + p["b"]
        return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True)) @ p["out"]

    params = PARAMS | {"b": jnp.zeros((1, 6))}
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), {k: params[k] for k in ("w", "b", "out")})

    def joint(optimizer):
        said = {"learning_rate": 1e-3, "weight_decay": 0.1}
        rows = plan(dense, params, X.astype(jnp.float32), optimizer=optimizer, **said).parameters
        return next(row for row in rows if row.name == "b+w")

    found = joint(optax.adamw(1e-3, weight_decay=0.1))
    rest = predict_equilibrium("adamw", 1e-3, 0.1, size=found.size)
    assert (found.equilibrium_norm, found.equilibrium_angle) == pytest.approx((rest.norm, rest.angle))
    labels = {"w": "slow", "b": "fast", "out": "slow"}
    apart = {"slow": optax.adamw(1e-3, weight_decay=0.1), "fast": optax.adamw(2e-3, weight_decay=0.1)}
    with pytest.warns(UserWarning, match="has the rate 0.002"):
        assert joint(optax.multi_transform(apart, labels)).remark == "its leaves move by different laws or rates"


def test_the_mask_of_a_state_of_nnx_is_taken():
    nnx = pytest.importorskip("flax.nnx")
    net = nnx.Sequential(nnx.Linear(4, 6, rngs=nnx.Rngs(0)), nnx.LayerNorm(6, rngs=nnx.Rngs(0)))
    graph, weights = nnx.split(net)
    model = lambda w, x: nnx.merge(graph, w)(x)  # noqa: E731
    x = X.astype(jnp.float32)
    mask = decay_mask(model, weights, x)
    optimizer = optax.adamw(1e-3, weight_decay=0.1, mask=mask)
    rows = plan(model, weights, x, optimizer=optimizer, mask=mask, learning_rate=1e-3, weight_decay=0.1).rows
    assert [row["decayed"] for row in rows] == [row["acts"] == "rate" for row in rows]
    assert any(row["decayed"] for row in rows)


def test_a_mask_decides_among_equal_sets():
    """Stream and value, or stream and output: either can be rescaled, since the block adds their product."""
    rng = np.random.default_rng(3)
    p = {name: jnp.asarray(rng.normal(size=(4, 4))) for name in ("embed", "head", "output", "value")}

    def block(p, x):
        stream = x @ p["embed"]
        stream = stream + jnp.tanh(stream / jnp.linalg.norm(stream, axis=1, keepdims=True)) @ p["value"] @ p["output"]
        return stream / jnp.linalg.norm(stream, axis=1, keepdims=True) @ p["head"]

    for other in ("value", "output"):
        mask = {name: name in {"embed", other} for name in p}
        rows = plan(block, p, X, optimizer="sgd", learning_rate=0.1, weight_decay=0.01, mask=mask).rows
        assert {row["name"] for row in rows if row["acts"] == "rate"} == {f"embed+{other}"}


def test_the_table_has_a_line_a_part_and_the_data_fit_pandas():
    text = planned("adamw", rate=1e-3, decay=0.1).to_text(80)
    first = [line.split()[0] for line in text.splitlines() if line]
    assert all(first.count(name) == 1 for name in ("w", "g", "out"))
    assert "[1] if gradients are independent over time" in text
    words = " ".join(text.split())
    assert "A learning rate f times as large is the same run as a weight decay f times as large, ε times f" in words
    assert "Angle: radians a step. Half life: steps." in words
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(planned().rows)
    assert list(frame["name"]) == ["w", "g", "out"]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_a_plan_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(planned("adamw", rate=1e-3, decay=0.1)).splitlines()
    assert max(map(len, lines)) <= width
    assert any("radians" in line for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_paths_of_parameters_are_not_broken(width):
    path = "params.LayerBlock_12.kernel"
    model = lambda p, x: apply({**PARAMS, "w": p[path] + p["also"]}, x)  # noqa: E731
    params = {path: PARAMS["w"], "also": PARAMS["w"] + 1.0}
    text = plan(model, params, X, optimizer="adamw", learning_rate=1e-3, weight_decay=0.1).to_text(width)
    assert any(path in line for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= width


def test_a_schedule_that_was_not_given_is_asked_for():
    warm = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000), weight_decay=0.1)
    with pytest.warns(UserWarning, match="give its schedule as learning_rate= if it has one"):
        planned(warm, rate=1e-3, decay=0.1)


def test_plan_search_mask_and_tracker_name_the_same_groups():
    """A bias before the norm is scale-invariant with its weights, in all four."""

    def apply(p, x):
        a = x @ p["weight"] + p["bias"]
        a = a - jnp.mean(a, 1, keepdims=True)
        return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + 1e-5) * p["gain"]

    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(9, 3)))
    params = {
        "bias": jnp.asarray(rng.normal(size=(1, 4))),
        "gain": jnp.ones((1, 4)),
        "weight": jnp.asarray(rng.normal(size=(3, 4))),
    }
    settings: Any = {"learning_rate": 1e-3, "weight_decay": 0.1}
    optimizer = optax.adamw(1e-3, weight_decay=0.1)
    found = plan(apply, params, inputs, optimizer=optimizer, **settings)
    expected = {"bias+weight": ("bias", "weight")}
    assert dict(found.groups) == expected
    assert scale_invariant_groups(apply, params, inputs) == expected
    assert decay_mask(apply, params, inputs) == {"bias": True, "gain": False, "weight": True}
    tracker = track_geometry(optimizer, groups=found, every=1, **settings)
    state = tracker.init(params)
    gradient = jax.grad(lambda p: jnp.sum(jnp.sin(3 * apply(p, inputs))))(params)
    _, state = tracker.update(gradient, state, params)
    record = read_geometry(state)  # a warning is an error here
    assert record.names == ("bias+weight",)
    alone = track_geometry(optimizer, every=1, **settings)
    _, state = alone.update(gradient, alone.init(params), params)
    with pytest.warns(UserWarning, match=r"give groups=plan\(apply, params, X"):
        read_geometry(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": "0.1"}, "learning_rate must be a number or a schedule; got '0.1'"),
        ({"optimizer": "sdg"}, r"did you mean 'sgd'"),
        ({"optimizer": 0.1}, "optimizer must be an optax optimizer or one of"),
        ({"optimizer": optax.stateless(lambda u, p: jax.tree.map(lambda g: -(g**3), u))}, "as optimizer="),
        ({"rate": -1.0}, "learning_rate must be at least 0; got -1.0"),
        ({"decay": -1.0}, "weight_decay must be at least 0"),
        ({"optimizer": "momentum"}, "give momentum="),
        (
            {"mask": {"w": True}},
            "mask must be a tree of booleans like the parameters, with the leaves g, out, w; got w",
        ),
        ({"gradient_scale": math.nan}, "gradient_scale must be positive and finite; got nan for w"),
    ],
)
def test_bad_input_says_what_was_expected(settings, message):
    with pytest.raises(ValueError, match=message):
        planned(**settings)


def test_the_half_life_of_adamw_knows_the_lag_of_its_second_moment():
    """Random gradients of size 1/‖w‖ on 64 × 256 weights: an excess of a tenth halves when predicted, not before."""
    rate, decay, b2, size = 2e-3, 1.0, 0.98, 256
    rest = predict_equilibrium("adamw", rate, decay, momentum=0.0, b2=b2, size=size)
    rng = np.random.default_rng(0)
    start = rng.normal(size=(64, size))
    start *= rest.norm / np.linalg.norm(start, axis=1, keepdims=True)

    def step(w, v, t):
        g = rng.normal(size=w.shape)
        g -= w * (np.sum(g * w, 1) / np.sum(w * w, 1))[:, None]
        g /= np.linalg.norm(w, axis=1, keepdims=True)
        v = b2 * v + (1 - b2) * g * g
        return w * (1 - rate * decay) - rate * g / np.sqrt(v / (1 - b2**t)), v

    w, v = start, np.zeros_like(start)
    for t in range(1, 1000):
        w, v = step(w, v, t)
    excess = []
    twins = [(w, v), (1.1**0.5 * w, v / 1.1)]
    for t in range(1000, 1300):
        state, squares = rng.bit_generator.state, []
        for k in (0, 1):
            rng.bit_generator.state = state
            twins[k] = step(*twins[k], t)
            squares.append(np.mean(np.sum(twins[k][0] ** 2, 1)))
        excess.append(squares[1] - squares[0])
    measured = 1 + int(np.argmax(np.array(excess) < np.mean(np.sum(w * w, 1)) * 0.1 / 2))
    assert measured == pytest.approx(rest.half_life, rel=0.05)
    assert math.log(2) / rest.relaxation < 0.9 * measured
