"""Where weight decay and a random gradient balance: measured angle, norm and relaxation against their predictions."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lngeom.claims import Problem, Verdict, agree, claim, differ, vanishes
from lngeom.claims.context import Read
from lngeom.claims.evidence import Evidence
from lngeom.training import predict_equilibrium, read_geometry, track_geometry
from lngeom.training._detect import detect
from lngeom.training.equilibrium import Equilibrium
from lngeom.training.laws import LAWS

TOPIC = "learning-rate"
SIZE, STEPS, SEEDS = 256, 3000, 8
MEMORY = 0.99

_decayed = optax.add_decayed_weights
OPTIMIZERS: dict[str, tuple[Callable[[float, float], optax.GradientTransformation], float, float, dict]] = {
    "sgd": (lambda rate, decay: optax.chain(_decayed(decay), optax.sgd(rate)), 0.1, 0.02, {}),
    "momentum": (
        lambda rate, decay: optax.chain(_decayed(decay), optax.sgd(rate, momentum=0.9)),
        0.1,
        0.002,
        {"momentum": 0.9},
    ),
    "normalized_gd": (
        lambda rate, decay: optax.chain(
            optax.normalize_by_update_norm(eps=0.0), _decayed(decay), optax.scale_by_learning_rate(rate)
        ),
        0.1,
        0.02,
        {},
    ),
    "adamw": (
        lambda rate, decay: optax.adamw(rate, 0.9, MEMORY, eps=0.0, weight_decay=decay),
        0.01,
        0.1,
        {"momentum": 0.9, "b2": MEMORY, "size": SIZE},
    ),
    "lion": (
        lambda rate, decay: optax.lion(rate, 0.9, 0.95, weight_decay=decay),
        0.01,
        0.1,
        {"momentum": 0.9, "b2": 0.95, "size": SIZE},
    ),
    "lars": (
        lambda rate, decay: optax.lars(rate, decay, trust_coefficient=0.1, momentum=0.0),
        0.5,
        0.1,
        {"trust_coefficient": 0.1},
    ),
}
TITLES = {
    "sgd": "SGD",
    "momentum": "SGD with momentum",
    "normalized_gd": "Normalized gradient descent",
    "adamw": "AdamW",
    "lion": "Lion",
    "lars": "LARS",
}
ANGLES = {
    "sgd": "cos θ = 1 − ηλ",
    "momentum": "cos θ = 1 − ηλ/(1+β)",
    "normalized_gd": "cos θ = 1 − ηλ",
    "adamw": "cos θ = (α+β₁)/(1+αβ₁), α = 1 − ηλ",
    "lion": "θ = √(2ηλ/S)",
    "lars": "θ = 2 arcsin(ηκ/2)",
}
EXACT = {"sgd", "normalized_gd", "lars"}
"""Those whose prediction is exact."""

MEMORIES = {"momentum": "1 − β", "adamw": "1 − β₂, for the norm", "lion": "1 − β₂"}
"""What ηλ must be small against for the others."""


def prediction(name: str) -> Equilibrium:
    """The predicted equilibrium at the settings of `OPTIMIZERS`."""
    _, rate, decay, settings = OPTIMIZERS[name]
    return predict_equilibrium(name, rate, decay, gradient_scale=math.sqrt(1 - 1 / SIZE), **settings)


def walk(problem: Problem, name: str, ratio: float):
    """Norms and angles [seed, step] under a gradient that is random on the sphere, from `ratio` times ‖w‖^q at rest.

    The gradient is that of a scale-invariant loss ⟨x, w⟩/‖w‖ with x drawn anew at every step: its part along w is
    taken out, and its size goes as 1/‖w‖.
    """
    make, rate, decay, _ = OPTIMIZERS[name]
    rest = prediction(name)
    size = np.asarray(ratio ** (1 / rest.power) * rest.norm, problem.dtype)
    return _walks(make, rate, decay, jax.random.split(problem.key(f"walk {name}"), SEEDS), size)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _walks(make, rate: float, decay: float, keys, size):
    """Norms and angles of a walk of each key, which starts with weights of this norm."""
    optimizer, dtype = make(rate, decay), size.dtype

    def one(key):
        first, keys = jax.random.split(key)
        w = jax.random.normal(first, (SIZE,), dtype)
        w = size * w / jnp.linalg.norm(w)
        draw = jax.vmap(lambda key: jax.random.normal(key, (SIZE,), dtype))
        noise = draw(jax.random.split(keys, STEPS))  # all at once takes half the time

        def step(carry, noise):
            w, state = carry
            norm = jnp.linalg.norm(w)
            x = noise / SIZE**0.5
            gradient = (x - jnp.vdot(x, w) * w / norm**2) / norm
            updates, state = optimizer.update(gradient, state, w)
            after = w + updates
            size = jnp.linalg.norm(after)
            return (after, state), (size, 2 * jnp.arcsin(jnp.linalg.norm(after / size - w / norm) / 2))

        with jax.numpy_dtype_promotion("standard"):
            return jax.lax.scan(step, (w, optimizer.init(w)), noise)[1]

    return jax.vmap(one)(keys)


def filtered(rate: float, decay: float, **settings: float) -> tuple[float, float]:
    """Mean square of w under unit noise, and cos θ = E[w⁺·w]/E[w·w], of a linear optimizer with a buffer m.

    m⁺ = βm + d (λw + x) + (1 − d)(1 − β) x and w⁺ = (1 − (1 − d) ηλ) w − ηm⁺, for white noise x; d = 1 if weight decay
    passes through the buffer, 0 if it is decoupled. The covariance Σ of (w, m) solves Σ = FΣFᵀ + qqᵀ.
    """
    beta, inside = settings.get("momentum", 0.0), settings.get("inside", 1.0)
    into = inside + (1 - inside) * (1 - beta)
    kept = np.array([inside * decay, beta])  # m⁺ from (w, m)
    F = np.stack([np.array([1 - (1 - inside) * rate * decay, 0.0]) - rate * kept, kept])
    q = np.array([-rate * into, into])
    covariance = np.linalg.solve(np.eye(4) - np.kron(F, F), np.outer(q, q).reshape(-1)).reshape(2, 2)
    return covariance[0, 0], (F @ covariance)[0, 0] / covariance[0, 0]


def of_signs(rate: float, decay: float, b1: float, b2: float) -> tuple[float, float]:
    """The same for Lion, a step of whose coordinates are signs of the noise filtered by β₁ and β₂.

    Signs of two normal numbers agree unless a random direction parts them: their correlation is 1 − 2 ∠/π, with the
    angle between the filter and its shift.
    """
    filter = np.concatenate([[1 - b1], b1 * (1 - b2) * b2 ** np.arange(2000)])
    products = np.correlate(filter, filter, "full")[len(filter) - 1 :]
    correlations = 1 - 2 * np.arccos(products / products[0]) / np.pi
    kept = (1 - rate * decay) ** np.arange(len(filter))
    later = float(np.sum(kept[:-1] * correlations[1:]))  # −E[s⁺·w]/η
    size = rate**2 * (1 + 2 * (1 - rate * decay) * later) / (1 - (1 - rate * decay) ** 2)
    return size, 1 - rate * decay + rate**2 * later / size


def iterated(rate: float, decay: float, trust: float) -> tuple[float, float]:
    """‖w‖² and cos θ after many steps of LARS along gradients of size 1/‖w‖ orthogonal to w."""
    square = cosine = 1.0
    for _ in range(20_000):
        step = rate * trust * math.sqrt(square / (1 / square + decay**2 * square))
        along, across = (1 - step * decay) * math.sqrt(square), step / math.sqrt(square)
        square, cosine = along**2 + across**2, along / math.hypot(along, across)
    return square, cosine


RECORDED = np.array([4, 6, 8])
"""Steps of the last three records of nine steps, where every second step is recorded."""


def tracked(problem: Problem, name: str) -> Iterator[Evidence]:
    """What users call, `track_geometry`, over nine steps of a walk: against angles, sizes and means in NumPy."""
    make, rate, decay, settings = OPTIMIZERS[name]
    optimizer, detected = make(rate, decay), name in {"sgd", "momentum", "adamw", "lion"}
    given = {k: v for k, v in settings.items() if k != "size"}
    kind = None if detected else name
    tracker = track_geometry(
        optimizer, learning_rate=rate, weight_decay=decay, kind=kind, every=2, history=len(RECORDED), **given
    )
    dtype = problem.dtype
    params = {"bias": jnp.ones(3, dtype), "weights": problem.normal("tracked", 16, 16)}
    if detected:
        whole = optax.with_extra_args_support(optimizer)
        found = detect(whole, params)[1]  # after that of the bias
        measured = np.array([found.law == name, found.rate, found.decay], float)
        yield agree("law, rate and decay found from first steps", measured, np.array([True, rate, decay]))
    state, path = tracker.init(params), []
    update = jax.jit(tracker.update)
    for step in range(9):
        w = params["weights"]
        x = problem.normal(f"tracked {step}", *w.shape)
        gradient = (x - jnp.vdot(x, w) * w / jnp.vdot(w, w)) / jnp.linalg.norm(w)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = update({"bias": jnp.ones(3, dtype), "weights": gradient}, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        path.append([np.asarray(v).reshape(-1) for v in (w, gradient, params["weights"])])
    found = read_geometry(state)
    assert found.history is not None
    assert found.history_steps is not None
    yield agree(
        "groups tracked, and steps recorded",
        np.array([len(found.names), *found.history_steps]),
        np.array([1, *RECORDED]),
    )
    w, g, after = (np.array(v) for v in zip(*path, strict=True))
    norm, size = np.linalg.norm(w, axis=1), np.linalg.norm(g, axis=1) * np.linalg.norm(w, axis=1)
    unit, turned = w / norm[:, None], after / np.linalg.norm(after, axis=1, keepdims=True)
    angles = 2 * np.arcsin(np.linalg.norm(unit - turned, axis=1) / 2)
    history = {k: np.asarray(v)[:, 0] for k, v in found.history.items()}
    yield agree("tracker: angles of steps", history["angle"], angles[RECORDED], tol=1e-9)
    effective = rate / norm[RECORDED] ** LAWS[name].rate
    yield agree("tracker: effective learning rates", history["effective_learning_rate"], effective)
    yield vanishes("tracker: the radial part of gradients", history["radial_residual"], scale=1.0)
    recent = 0.99 ** np.arange(4, -1, -1)  # weights of the five records, the oldest first
    scale = math.sqrt(np.sum(recent * size[::2] ** 2) / np.sum(recent))
    yield agree("tracker: root mean square of ‖w‖‖∇‖ over recent steps", found.gradient_scale, np.array([scale]))
    yield agree("tracker: scale-invariant", found.scale_invariant, np.array([True]))
    rest = predict_equilibrium(name, rate, decay, gradient_scale=scale, **settings)
    both = np.concatenate([found.equilibrium_angle, found.equilibrium_norm])
    yield agree("tracker: equilibrium, and the prediction", both, np.array([rest.angle, rest.norm]), tol=1e-9)


SLOWLY, QUICKLY = (1e-3, 1e-3), (0.5, 1.0)
"""η and λ at which corrections of the order of ηλ are negligible, and at which they are not."""


def by_second_moments(name: str) -> Iterator[Evidence]:
    """The prediction against second moments of the walk, without sampling; at a large ηλ where it is exact."""
    rate, decay = QUICKLY if name in EXACT else SLOWLY
    settings = OPTIMIZERS[name][3]
    rest = predict_equilibrium(name, rate, decay, **settings)
    beta = settings.get("momentum", 0.0)
    if name in {"sgd", "momentum"}:
        square, cosine = filtered(rate, decay, momentum=beta)
        square = math.sqrt(square)  # noise of size 1/‖w‖: ‖w‖² is the mean square under unit noise over ‖w‖²
    elif name == "lars":
        square, cosine = iterated(rate, decay, settings["trust_coefficient"])
    elif name == "normalized_gd":
        square, cosine = filtered(rate, decay, inside=0.0)
    elif name == "adamw":
        square, cosine = filtered(rate, decay, momentum=beta, inside=0.0)
        square *= SIZE
    else:
        square, cosine = of_signs(rate, decay, beta, settings["b2"])
        square *= SIZE
    tol = 1e-9 if name in EXACT else 1e-3
    what = f"second moments, ηλ = {rate * decay:g}"
    yield agree(f"{what}: angle", np.array([math.acos(cosine)]), np.array([rest.angle]), tol=tol)
    yield agree(f"{what}: norm", np.array([math.sqrt(square)]), np.array([rest.norm]), tol=tol)


def _equilibrium(name: str) -> None:
    @claim(
        f"dynamics.equilibrium.{name}",
        topic=TOPIC,
        source="Section 5.2.2; arXiv 1706.05350, 2305.17212",
        statement=(
            f"{TITLES[name]} with weight decay: under a random gradient the norm of scale-invariant weights and the "
            f"angle of a step, {ANGLES[name]}, settle where predicted, and relax to it at the predicted rate."
        ),
        assumptions=("gradients independent over time",) + (() if name in EXACT else (f"ηλ ≪ {MEMORIES[name]}",)),
        read=Read.OWN,
        expected=Verdict.HOLDS,
        why_numeric="A stationary mean over a random walk: averages over seeds and steps.",
    )
    def check(problem: Problem):
        """Random gradients in 256 dimensions, 8 seeds, 3000 steps, from 1.5 times ‖w‖^q; and second moments."""
        rest = prediction(name)
        norms, angles = (np.asarray(v) for v in walk(problem, name, 1.5))
        settled = slice(min(STEPS - 500, int(5 / rest.relaxation)), None)
        steps = np.arange(1, STEPS + 1)
        excess = np.mean(norms**rest.power, 0) / rest.norm**rest.power
        curve = {
            "‖w‖^q over its rest": (steps, excess),
            "predicted": (steps, 1 + 0.5 * np.exp(-rest.relaxation * steps)),
        }
        angle = math.sqrt(np.mean(angles[:, settled] ** 2))
        yield agree("angle", np.array([angle]), np.array([rest.angle]), tol=0.01 if name in EXACT else 0.03)
        norm = np.mean(norms[:, settled] ** rest.power) ** (1 / rest.power)
        yield agree("norm", np.array([norm]), np.array([rest.norm]), tol=0.01 if name in EXACT else 0.03, curves=curve)
        moment = max(1, min(int(1 / rest.relaxation), STEPS))
        rate = -math.log((excess[moment - 1] - 1) / 0.5) / moment
        yield agree("relaxation", np.array([rate]), np.array([rest.relaxation]), tol=0.05 if name in EXACT else 0.2)
        yield differ("it starts elsewhere", norms[:, 0], np.full(SEEDS, rest.norm))
        yield from by_second_moments(name)
        yield from tracked(problem, name)


for _name in OPTIMIZERS:
    _equilibrium(_name)
