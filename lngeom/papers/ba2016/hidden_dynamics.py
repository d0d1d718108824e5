"""Hidden-to-hidden dynamics with and without layer norm, and why recurrent batch norm needs the length of training."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
SMALL = 0.1
SCALES = (SMALL, 0.3, 1.0, 3.0)
"""Standard deviations of the inputs."""
STEPS, INPUTS, HIDDEN, NETWORKS = 120, 8, 160, 3
TRAINED, TESTED, SEQUENCES = 10, 30, 64


class Growth(NamedTuple):
    """Lyapunov exponents and hidden norms (root mean square) of random networks, [networks settings].

    Attributes:
        rates: largest Lyapunov exponents.
        norms: of hidden vectors.
    """

    rates: np.ndarray
    norms: np.ndarray

    def ranges(self) -> np.ndarray:
        """How far the mean exponents of each pair of settings are apart, [pairs]."""
        return np.ptp(self.rates.mean(0).reshape(-1, len(GAINS)), axis=1)


class Setting(NamedTuple):
    """What a network is run with.

    Attributes:
        recurrent: gain of W_hh.
        inputs: gain of W_xh.
        scale: standard deviation of the inputs.
    """

    recurrent: float
    inputs: float
    scale: float


TOGETHER = [Setting(gain, gain, SMALL) for gain in GAINS]
ALONE = [Setting(gain, 1.0, scale) for scale in SCALES for gain in GAINS]


def growth(problem: Problem, kind, settings: Sequence[Setting], **options) -> Growth:
    """Exponents and norms of random networks of one kind at each setting."""
    dtype = problem.dtype

    def one(key, recurrent, inputs, scale):
        weights_key, inputs_key, tangent_key = jax.random.split(key, 3)
        cell = kind(INPUTS, HIDDEN, key=weights_key, dtype=dtype, **options)
        weights = recurrent * cell.recurrent_weights, inputs * cell.input_weights
        cell = eqx.tree_at(lambda c: (c.recurrent_weights, c.input_weights), cell, weights)
        xs = scale * jax.random.normal(inputs_key, (STEPS, INPUTS), dtype)
        found = dynamics.hidden_dynamics(cell, xs, jax.random.normal(tangent_key, (HIDDEN,), dtype))
        after = STEPS // 4
        return jnp.mean(found.growth[after:]), jnp.sqrt(jnp.mean(jnp.square(found.hidden[after:])))

    keys = jnp.repeat(jax.random.split(problem.key("recurrent networks"), NETWORKS), len(settings))
    columns = np.tile(np.asarray(settings, dtype), (NETWORKS, 1)).T
    found = jax.jit(jax.vmap(one))(keys, *columns)
    return Growth(*(np.asarray(values).reshape(NETWORKS, -1) for values in found))


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
        "stable: the growth of tangents and the size of hidden vectors do not depend on the scale of the summed "
        "inputs; not that tangents do not grow",
        "the scale is that of all summed inputs, so of W_hh and W_xh together; where W_hh alone is scaled, inputs must "
        "be small against W_hh h (range of the exponent over gains 0.5 to 3, layer norm over standard: 0.03 at inputs "
        "of scale 0.1, above a half at 1)",
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
                "Stable dynamics do not depend on the scale of all summed inputs.",
                Verdict.HOLDS,
            ),
            Reading(
                "They hardly depend on the size of the recurrent weights alone, whatever the inputs.", Verdict.REFUTED
            ),
            Reading("Tangents and gradients do not grow.", Verdict.REFUTED),
        ),
        verdict=(
            "With W_hh and W_xh scaled together the dynamics of layer norm are exactly the same, and those of the "
            "standard network change. The conditions are needed because the scale of W_hh alone is hidden only "
            "as far as inputs are small, and because tangents may still grow."
        ),
    ),
    expected=Verdict.CONDITIONAL,
    why_numeric="A statement about typical networks, measured on random ones. The invariance is proved (equation.4).",
)
def stable_dynamics(problem: Problem):
    """Lyapunov exponents and hidden norms of random networks at gains 0.5 and 3 of all weights, and of W_hh alone."""
    settings, both = [*TOGETHER, *ALONE], slice(len(TOGETHER))
    standard, normalized = growth(problem, nn.RNN, settings), growth(problem, nn.LayerNormRNN, settings, eps=0.0)
    yield differ("standard network, all weights: exponents at gains 0.5 and 3", *standard.rates[:, both].mean(0))
    yield agree("layer norm, all weights: exponents at gains 0.5 and 3", *normalized.rates[:, both].T, tol=1e-9)
    yield agree("layer norm, all weights: hidden norms at gains 0.5 and 3", *normalized.norms[:, both].T, tol=1e-11)
    found = np.array([normalized.ranges(), standard.ranges()])[:, 1:]
    share = dict(zip(SCALES, (found[0] / found[1]).tolist(), strict=True))
    yield _smaller(
        f"W_hh alone, inputs of scale {SMALL}: range of the exponent over that of the standard network",
        share[SMALL],
        0.2,
        curves={"layer norm": (np.asarray(SCALES), found[0]), "standard": (np.asarray(SCALES), found[1])},
    )
    yield Evidence(
        Kind.COUNTEREXAMPLE,
        Role.FAILS_WITHOUT_CONDITION,
        f"the same at inputs of scale 1: {share[1.0]:.2f}",
        passed=share[1.0] > 0.5,
        residual=share[1.0],
        tolerance=0.5,
        samples=NETWORKS,
    )
    # σ² = E[f(a)²] in a wide network, so a tangent grows by E[f'(a)²]/E[f(a)²] ≥ 1: the Gaussian Poincaré inequality
    rate = float(normalized.rates[:, settings.index(Setting(GAINS[-1], 1.0, SMALL))].mean())
    yield Evidence(
        Kind.COUNTEREXAMPLE,
        Role.FAILS_WITHOUT_CONDITION,
        f"layer norm, inputs of scale {SMALL}, gain 3 of W_hh: exponent {rate:.3f}, not negative: tangents still grow",
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
