r"""What layer normalization does to recurrent dynamics (Sections 3.1 and 4 of the paper), measured.

The paper: in a standard RNN the summed inputs "grow or shrink at every time-step", and the invariance to
their scale "results in much more stable hidden-to-hidden dynamics". Here a random network is run for many
steps over a range of recurrent gains s, $W_{hh} = s N/\sqrt H$, with and without layer norm; what grows or
shrinks is the Jacobian product $J_T \cdots J_1$, $J_t = \partial h^t / \partial h^{t-1}$, so its growth rates
are measured along with the hidden norm.

Recurrent batch norm is the contrast: it stores statistics for each time step, and has none for a step that
was never reached in training.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from lngeom import nn, plots
from lngeom.nn.dynamics import gradient_growth, hidden_dynamics, unroll_batch_norm
from lngeom.plots.axes import common_legend, guide, number, span
from lngeom.plots.style import COLOUR_OF, DASHES, INK, MARKERS

GAINS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
ARMS = ("standard", "layer norm")
WITH = {"standard": "without normalization", "layer norm": "with layer norm"}


@jax.jit
def _run(cell, xs, tangent):
    """Hidden vectors, summed inputs, log growth of a tangent and of a gradient, at each step."""
    found = hidden_dynamics(cell, xs, tangent)
    return *found, gradient_growth(cell, xs, found.hidden, tangent)


@dataclass(frozen=True)
class Dynamics:
    r"""Measured dynamics of one network over a sequence.

    Attributes:
        gain: s, the recurrent gain.
        hidden_norm: root mean square of the hidden vector at each step, shape [T].
        summed_input_norm: root mean square of the summed inputs $a^t$, before any normalization, shape [T].
        lyapunov: growth rate of a generic tangent vector per step, the largest Lyapunov exponent.
        log_gradient_norm: logarithm of the norm of $\partial L / \partial h^t$ for a loss at the last step
            only, relative to that at the last step, shape [T].
        gradient_rate: its mean growth per step backwards.
    """

    gain: float
    hidden_norm: Float[np.ndarray, " T"]
    summed_input_norm: Float[np.ndarray, " T"]
    lyapunov: float
    log_gradient_norm: Float[np.ndarray, " T"]
    gradient_rate: float


def rms(v: Float[Array, "*batch H"]) -> Float[Array, "*batch"]:
    """Root mean square over the last axis."""
    return jnp.sqrt(jnp.mean(jnp.square(v), -1))


def make_cell(
    arm: str,
    gain: float,
    *,
    hidden: int,
    inputs: int,
    seed: int,
    scale: float = 1.0,
    activation: Callable[[Array], Array] = jnp.tanh,
) -> nn.RNN | nn.LayerNormRNN:
    r"""A random network with $W_{hh} = s N / \sqrt H$; the same seed gives both arms the same weights.

    Args:
        arm: one of `ARMS`.
        gain: s.
        hidden: hidden units.
        inputs: inputs.
        seed: of the weights.
        scale: factor on *all* summed inputs, hence on both weight matrices.
        activation: f.

    Returns:
        The cell, in double precision.

    Raises:
        ValueError: if there is no such arm.
    """
    if arm not in ARMS:
        raise ValueError(f"arm must be one of {ARMS}; got {arm!r}")
    options = {"key": jax.random.key(seed), "activation": activation, "dtype": jnp.float64}
    cell = (
        nn.RNN(inputs, hidden, **options)
        if arm == "standard"
        else nn.LayerNormRNN(inputs, hidden, exact=True, **options)
    )
    weights = (scale * gain * cell.recurrent_weights, scale * cell.input_weights)
    return eqx.tree_at(lambda c: (c.recurrent_weights, c.input_weights), cell, weights)


def dynamics(
    cell: nn.RNN | nn.LayerNormRNN, gain: float, xs: Float[Array, "T D"], *, seed: int = 0, discard: int = 100
) -> Dynamics:
    """Runs a cell from the state of zeros and measures its dynamics.

    Tangent and gradient are renormalized at every step and their logarithms summed, so that a product of a
    thousand Jacobians neither overflows nor underflows.

    Args:
        cell: the network.
        gain: its recurrent gain, for the record.
        xs: inputs of every step.
        seed: of the tangent vector.
        discard: first steps left out of the Lyapunov exponent.

    Returns:
        The dynamics.
    """
    tangent = jax.random.normal(jax.random.key(seed), (cell.hidden,), xs.dtype)
    after, a, growth, shrinkage = _run(cell, xs, tangent)
    return Dynamics(
        gain=gain,
        hidden_norm=np.asarray(rms(after)),
        summed_input_norm=np.asarray(rms(a)),
        lyapunov=float(jnp.mean(growth[discard:])),
        log_gradient_norm=np.append(np.cumsum(np.asarray(shrinkage)[::-1])[::-1], 0.0),
        gradient_rate=float(np.mean(np.asarray(shrinkage))),
    )


@dataclass(frozen=True)
class StabilityReport:
    """Dynamics of both arms over a range of recurrent gains.

    Attributes:
        dynamics: for each arm, one entry for each gain.
        steps: length T of the sequence.
        hidden: hidden units.
        seed: of weights and inputs.
    """

    dynamics: dict[str, tuple[Dynamics, ...]]
    steps: int
    hidden: int
    seed: int

    def spread(self, arm: str, name: str) -> float:
        """Range of a number (its mean, where it is a series over steps) over the gains."""
        values = [float(np.mean(getattr(d, name))) for d in self.dynamics[arm]]
        return max(values) - min(values)


def recurrent_stability(
    gains: tuple[float, ...] = GAINS,
    *,
    steps: int = 1000,
    hidden: int = 64,
    inputs: int = 8,
    input_scale: float = 0.1,
    activation: Callable[[Array], Array] = jnp.tanh,
    seed: int = 0,
) -> StabilityReport:
    """Measures both arms over a range of recurrent gains, on the same weights and inputs.

    Args:
        gains: recurrent gains s.
        steps: length of the sequence.
        hidden: hidden units.
        inputs: inputs.
        input_scale: standard deviation of the inputs.
        activation: f.
        seed: of weights and inputs.

    Returns:
        The report, in double precision.
    """
    with jax.enable_x64(True):
        xs = input_scale * jax.random.normal(jax.random.key(seed + 1), (steps, inputs), jnp.float64)
        make = partial(make_cell, hidden=hidden, inputs=inputs, seed=seed, activation=activation)
        measured = {
            arm: tuple(dynamics(make(arm, s), s, xs, seed=seed, discard=steps // 10) for s in gains) for arm in ARMS
        }
    return StabilityReport(measured, steps, hidden, seed)


def scale_response(
    arm: str,
    scales: tuple[float, ...] = (0.25, 0.5, 2.0, 4.0),
    *,
    steps: int = 200,
    hidden: int = 64,
    seed: int = 0,
) -> float:
    """Largest change of the hidden vectors when all summed inputs of a network are re-scaled.

    Args:
        arm: one of `ARMS`.
        scales: factors on both weight matrices.
        steps: length of the sequence.
        hidden: hidden units.
        seed: of weights and inputs.

    Returns:
        The change on the scale of the hidden vectors: 0 for a layer-normalized network.
    """
    with jax.enable_x64(True):
        xs = jax.random.normal(jax.random.key(seed + 1), (steps, 8), jnp.float64)
        outputs = [
            nn.unroll(make_cell(arm, 1.0, hidden=hidden, inputs=8, seed=seed, scale=scale), xs)[1]
            for scale in (1.0, *scales)
        ]
        largest = jnp.max(jnp.abs(outputs[0]))
        return float(max(jnp.max(jnp.abs(y - outputs[0])) for y in outputs[1:]) / largest)


@dataclass(frozen=True)
class LengthContrast:
    """What becomes of a recurrent network on sequences longer than those its statistics come from.

    Errors are relative to the outputs under the statistics of the test batch itself.

    Attributes:
        trained_steps: length of the training sequences.
        test_steps: length of the test sequences.
        steps_without_statistics: test steps for which recurrent batch norm has nothing stored.
        error_within: error of recurrent batch norm within the trained length.
        error_beyond: its error beyond, if the statistics of the last trained step are used there.
        error_trained_longer: its error on those same steps, had training been as long.
        layer_norm_error: largest difference between layer norm on the whole batch and on each sequence by
            itself.
    """

    trained_steps: int
    test_steps: int
    steps_without_statistics: int
    error_within: float
    error_beyond: float
    error_trained_longer: float
    layer_norm_error: float


def length_contrast(
    *,
    trained_steps: int = 10,
    test_steps: int = 40,
    sequences: int = 256,
    hidden: int = 32,
    drift: float = 0.15,
    seed: int = 0,
) -> LengthContrast:
    """Runs recurrent batch norm and layer norm beyond the length of training, on inputs whose mean drifts.

    Args:
        trained_steps: length of the training sequences.
        test_steps: length of the test sequences.
        sequences: how many of each.
        hidden: hidden units.
        drift: shift of the mean of the inputs at every step.
        seed: of weights and inputs.

    Returns:
        The contrast.
    """
    with jax.enable_x64(True):
        drifting = drift * jnp.arange(test_steps, dtype=jnp.float64)[:, None, None]
        train, test = (
            jax.random.normal(jax.random.key(seed + k), (test_steps, sequences, 4), jnp.float64) + drifting
            for k in (1, 2)
        )
        standard = make_cell("standard", 1.0, hidden=hidden, inputs=4, seed=seed)
        assert isinstance(standard, nn.RNN)
        normalized = make_cell("layer norm", 1.0, hidden=hidden, inputs=4, seed=seed)
        _, stored = unroll_batch_norm(standard, train[:trained_steps])
        held = jax.tree.map(lambda v: jnp.concatenate([v, jnp.repeat(v[-1:], test_steps - trained_steps, 0)]), stored)
        _, longer = unroll_batch_norm(standard, train)
        expected, _ = unroll_batch_norm(standard, test)
        errors = [
            np.asarray(rms(unroll_batch_norm(standard, test, known)[0] - expected).mean(1) / rms(expected).mean(1))
            for known in (held, longer)
        ]
        together = nn.unroll(normalized, test)[1]
        alone = jax.vmap(lambda x: nn.unroll(normalized, x)[1], 1, 1)(test)
        return LengthContrast(
            trained_steps=trained_steps,
            test_steps=test_steps,
            steps_without_statistics=test_steps - stored.mean.shape[0],
            error_within=float(errors[0][:trained_steps].mean()),
            error_beyond=float(errors[0][trained_steps:].mean()),
            error_trained_longer=float(errors[1][trained_steps:].mean()),
            layer_norm_error=float(jnp.max(jnp.abs(together - alone))),
        )


def title(data: Mapping[str, Any]) -> str:
    """How far the Lyapunov exponent moves over all gains with layer norm."""
    moved = {arm: float(np.ptp(np.asarray(found["lyapunov"], float))) for arm, found in data.items()}
    less = moved["layer norm"] < min(v for arm, v in moved.items() if arm != "layer norm")
    keeps = "keeps a recurrent network near the edge of stability: its" if less else "does not steady the"
    return f"Layer norm {keeps} Lyapunov exponent moves by {number(moved['layer norm'], math.ceil)} over all gains"


def numbers(data: Mapping[str, Any]) -> str:
    """The range of the Lyapunov exponents of each arm."""
    ranges = (f"{span(found['lyapunov'])} {WITH[arm]}" for arm, found in data.items())
    gains = span(next(iter(data.values()))["gain"])
    return f"For recurrent gains {gains} the Lyapunov exponent is {' and '.join(ranges)}"


def draw_data(data: Mapping[str, Any], configuration: Mapping[str, Any], stem: Path | str) -> list[Path]:
    """Draws exponents, hidden norms and gradients of both arms.

    Args:
        data: as `draw` writes them.
        configuration: its settings.
        stem: path of the figure without a suffix.

    Returns:
        The paths written.
    """
    with plots.figure(1, 3, height=2.7) as (fig, axes):
        growth, norm, gradient = axes[0]
        for arm, found in data.items():
            method = "none" if arm == "standard" else arm
            style = {"color": COLOUR_OF[method], "linestyle": DASHES[method]}
            marked = style | {"marker": MARKERS[method]}
            growth.plot(found["gain"], found["lyapunov"], label=arm, **marked)
            norm.plot(found["gain"], found["hidden_norm"], label=arm, **marked)
            for gain, backward in found["log_gradient_norm_every_10_steps_back"].items():
                decades = np.asarray(backward) / np.log(10)
                gradient.plot(10 * np.arange(len(decades)), decades, linewidth=1.2, **style)
                place = {"textcoords": "offset points", "xytext": (3, 0), "va": "center", "fontsize": 6.5}
                if arm == "standard":
                    gradient.annotate(
                        f"s = {gain}", (10 * len(decades), decades[-1]), color=INK, annotation_clip=False, **place
                    )
        guide(growth, data["standard"]["gain"], np.zeros(len(data["standard"]["gain"])))
        growth.set(title="growth of a perturbation", xlabel="recurrent gain s", ylabel="Lyapunov exponent per step")
        norm.set(title="hidden vector", xlabel="recurrent gain s", ylabel="root mean square", ylim=(0, 1))
        gradient.set(title="gradient", xlabel="steps back from the loss", ylabel=r"$\log_{10}$ of its relative norm")
        common_legend(fig, [growth])
        return plots.save(
            fig,
            stem,
            data,
            title=title(data),
            caption=(
                f"{numbers(data)}. "
                "A random recurrent network with and without layer norm, over the scale s of its recurrent weights. "
                "Right: for the smallest gain, the one nearest 1 and the largest. One network, whose exponents are "
                "averages over its steps."
            ),
            configuration=configuration,
        )


def draw(report: StabilityReport, stem: Path | str = "figures/recurrent_stability") -> list[Path]:
    """Draws a report.

    Args:
        report: what `recurrent_stability` measured.
        stem: path of the figure without a suffix.

    Returns:
        The paths written.
    """
    gains = [d.gain for d in report.dynamics[ARMS[0]]]
    shown = {gains[0], min(gains, key=lambda s: abs(s - 1)), gains[-1]}
    data = {
        arm: {
            "gain": gains,
            "lyapunov": [d.lyapunov for d in found],
            "hidden_norm": [d.hidden_norm.mean() for d in found],
            "gradient_rate": [d.gradient_rate for d in found],
            "log_gradient_norm_every_10_steps_back": {
                f"{d.gain:g}": d.log_gradient_norm[::-10] for d in found if d.gain in shown
            },
        }
        for arm, found in report.dynamics.items()
    }
    configuration = {"steps": report.steps, "hidden": report.hidden, "seed": report.seed, "dtype": "float64"}
    return draw_data(data, configuration, stem)


if __name__ == "__main__":
    draw(recurrent_stability())
