"""Hidden-to-hidden dynamics with and without layer norm, and why recurrent batch norm needs the length of training."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lngeom import nn
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, numpy_reference, same_integer
from lngeom.claims.context import Context, Reading
from lngeom.claims.distributions import STEP
from lngeom.claims.evidence import Evidence, Kind
from lngeom.nn import dynamics

TOPIC = "recurrent"
GAINS = (0.5, 3.0)
STEPS, INPUTS, HIDDEN, NETWORKS = 120, 8, 160, 3
TRAINED, TESTED, SEQUENCES = 10, 30, 64


def growth_rates(problem: Problem, kind, **options) -> tuple[np.ndarray, np.ndarray]:
    """Largest Lyapunov exponents and hidden norms (root mean square) of random networks, [networks gains]."""
    dtype = problem.dtype

    def one(key, gain):
        weights_key, inputs_key, tangent_key = jax.random.split(key, 3)
        cell = kind(INPUTS, HIDDEN, key=weights_key, dtype=dtype, **options)
        cell = eqx.tree_at(lambda c: c.recurrent_weights, cell, gain * cell.recurrent_weights)
        xs = 0.1 * jax.random.normal(inputs_key, (STEPS, INPUTS), dtype)
        found = dynamics.hidden_dynamics(cell, xs, jax.random.normal(tangent_key, (HIDDEN,), dtype))
        after = STEPS // 4
        return jnp.mean(found.growth[after:]), jnp.sqrt(jnp.mean(jnp.square(found.hidden[after:])))

    keys = jnp.repeat(jax.random.split(problem.key("recurrent networks"), NETWORKS), len(GAINS))
    gains = jnp.tile(jnp.asarray(GAINS, dtype), NETWORKS)
    rates, norms = jax.jit(jax.vmap(one))(keys, gains)
    return np.asarray(rates).reshape(NETWORKS, -1), np.asarray(norms).reshape(NETWORKS, -1)


def _smaller(description: str, ratio: float, bound: float, **more) -> Evidence:
    """Evidence that a ratio is below a bound; 1 or more shows the opposite."""
    return Evidence(
        Kind.AGREEMENT,
        Role.SUPPORTS,
        f"{description}: {ratio:.3f}",
        passed=ratio < bound,
        contradicts=not ratio < 1,
        residual=ratio,
        tolerance=bound,
        samples=NETWORKS * len(GAINS),
        **more,
    )


@claim(
    "text.stable_dynamics",
    topic=TOPIC,
    source="Section 3.1",
    statement="Layer norm results in much more stable hidden-to-hidden dynamics.",
    assumptions=(
        "stable: how fast tangents and gradients grow, and how large hidden vectors are, hardly depends on the size "
        "of the recurrent weights; not that they do not grow",
    ),
    context=Context(
        sentence=(
            "In a layer normalized RNN, the normalization terms make it invariant to re-scaling all of the summed "
            "inputs to a layer, which results in much more stable hidden-to-hidden dynamics."
        ),
        before=(
            "In a standard RNN, there is a tendency for the average magnitude of the summed inputs to the recurrent "
            "units to either grow or shrink at every time-step, leading to exploding or vanishing gradients."
        ),
        after="",
        readings=(
            Reading(
                "Dynamics are stable if rates of growth and sizes of hidden vectors depend little on the size of the "
                "recurrent weights.",
                Verdict.HOLDS,
            ),
            Reading(
                "If “stable” means that tangents and gradients do not grow, it is refuted: at gain 3 they grow.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "Over gains from 0.5 to 3 both ranges are less than a fifth of those of the standard network. The "
            "condition is this meaning of “stable”."
        ),
    ),
    expected=Verdict.CONDITIONAL,
    why_numeric="A statement about typical networks, measured on random ones.",
)
def stable_dynamics(problem: Problem):
    """Lyapunov exponents and hidden norms of random networks at recurrent gains 0.5 and 3."""
    standard, standard_norms = growth_rates(problem, nn.RNN)
    normalized, normalized_norms = growth_rates(problem, nn.LayerNormRNN, eps=0.0)
    curves = {
        name: (np.asarray(GAINS), rates.mean(0)) for name, rates in (("standard", standard), ("layer norm", normalized))
    }

    def spread(values: np.ndarray) -> float:
        return float(np.ptp(values.mean(0)))

    yield differ("standard network: Lyapunov exponents at gains 0.5 and 3", *standard.mean(0))
    yield _smaller(
        "range of the Lyapunov exponent over the gains, layer norm against standard",
        spread(normalized) / spread(standard),
        0.2,
        curves=curves,
    )
    yield _smaller(
        "range of the hidden norm over the gains, layer norm against standard",
        spread(normalized_norms) / spread(standard_norms),
        0.2,
    )
    # σ² = E[f(a)²] in a wide network, so a tangent grows by E[f'(a)²]/E[f(a)²] ≥ 1: the Gaussian Poincaré inequality
    rate = float(normalized[:, -1].mean())
    yield Evidence(
        Kind.COUNTEREXAMPLE,
        Role.FAILS_WITHOUT_CONDITION,
        f"layer norm at gain 3: the Lyapunov exponent is {rate:.3f}, not negative: tangents still grow",
        passed=rate > 0.01,
        residual=rate,
        tolerance=0.01,
        samples=NETWORKS,
    )
    yield from tangent_growth(problem)


def tangent_growth(problem: Problem) -> Iterator[Evidence]:
    """Growth of a tangent over six steps of small networks, against a complex step of the first hidden vector."""
    key, dtype = problem.key("tangent"), problem.dtype
    xs, tangent = jax.random.normal(key, (6, 4), dtype), jnp.linspace(-1.0, 2.0, 8, dtype=dtype)
    step = STEP * np.asarray(tangent / jnp.linalg.norm(tangent), np.float64)
    for kind, options in ((nn.RNN, {}), (nn.LayerNormRNN, {"eps": 0.0})):
        cell = kind(4, 8, key=key, dtype=dtype, **options)
        grown = eqx.filter_jit(dynamics.hidden_dynamics)(cell, xs, tangent).growth
        hidden = numpy_reference.recurrent(cell, np.asarray(xs)[:, None], 1j * step[None], np.zeros((1, 8)))
        by_steps = np.linalg.norm(hidden[:, 0].imag.astype(np.float64) / float(STEP), axis=1)
        yield agree(f"{kind.__name__}: growth of a tangent, and by a complex step", jnp.cumsum(grown), np.log(by_steps))


def _runs(cell, xs, length, stored) -> bool:
    """Whether recurrent batch norm is defined on sequences like these of this length."""
    xs = jax.ShapeDtypeStruct((length, *xs.shape[1:]), xs.dtype)
    try:
        jax.eval_shape(lambda xs: dynamics.unroll_batch_norm(cell, xs, stored)[0], xs)
        return True
    except ValueError:
        return False


@claim(
    "text.bn_per_time_step",
    topic=TOPIC,
    source="Sections 1, 3.1",
    statement=(
        "Recurrent batch norm needs statistics for each time step, and has none for steps beyond the longest training "
        "sequence; layer norm does not depend on the time step."
    ),
    expected=Verdict.HOLDS,
    why_numeric="What is stored for a step is a matter of definition; that it differs between steps is measured.",
)
def bn_per_time_step(problem: Problem):
    """Both networks trained on ten steps and run on thirty, with inputs whose mean drifts."""
    dtype = problem.dtype
    drift = 0.15 * np.arange(TESTED, dtype=dtype)[:, None, None]
    train, test = (np.asarray(problem.normal(name, TESTED, SEQUENCES, 4)) + drift for name in ("train", "test"))
    options = {"key": problem.key("recurrent batch norm"), "dtype": dtype}
    cell, normalized = nn.RNN(4, 16, **options), nn.LayerNormRNN(4, 16, eps=0.0, **options)
    run = eqx.filter_jit(dynamics.unroll_batch_norm)
    all_stored = jax.tree.map(np.asarray, run(cell, train)[1])
    stored = jax.tree.map(lambda v: v[:TRAINED], all_stored)
    longest = max(length for length in range(1, TESTED + 1) if _runs(cell, test, length, stored))
    yield same_integer("longest test sequence that runs on the stored statistics, and training", longest, TRAINED)
    outputs, means = numpy_reference.recurrent_batch_norm(cell, np.asarray(train))
    yield agree("scan and transcription: outputs", run(cell, train)[0], outputs, tol=1e-11)
    yield agree("scan and transcription: means of each step", all_stored.mean, means, tol=1e-11)
    yield differ("stored means of the first and of the last trained step", stored.mean[0], stored.mean[-1])
    held = jax.tree.map(lambda v: np.concatenate([v, np.repeat(v[-1:], TESTED - TRAINED, 0)]), stored)
    outputs = [np.asarray(run(cell, test, statistics)[0]) for statistics in (all_stored, held)]
    yield agree("within the trained length: the same outputs", outputs[0][:TRAINED], outputs[1][:TRAINED])
    yield differ("beyond it: statistics of the last trained step, and of longer training", *outputs)
    unroll = eqx.filter_jit(nn.unroll)
    company = np.concatenate([test[:, :1], -2.0 * test[:, 1:]], 1)
    both = [np.asarray(unroll(normalized, xs)[1])[:, 0] for xs in (test, company)]
    yield agree("layer norm: a sequence among others, at every step", *both)
    alone = [np.asarray(run(cell, xs)[0])[:, 0] for xs in (test, company)]
    yield differ("batch statistics: the same sequence depends on the others", *alone)
