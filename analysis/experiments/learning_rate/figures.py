"""Figures of `python -m analysis learning_rate`: each draws one part's results and gives the figure's caption."""

from collections.abc import Callable
from typing import Any

import numpy as np
from lngeom import plots
from lngeom.claims.training import equilibria
from lngeom.claims.training.equivalence import TITLES

Part = dict[str, Any]
NAMES = {"identity": "none", "bn": "batch norm", "wn": "weight norm", "ln": "layer norm", "rms": "RMS norm"}


def _band(axis, steps, curves, label: str, colour: str, dash: str = "-") -> None:
    """Median of the seeds as a line, their range as a band."""
    axis.plot(steps, np.nanmedian(curves, 0), dash, color=colour, label=label)
    axis.fill_between(steps, np.nanmin(curves, 0), np.nanmax(curves, 0), color=colour, alpha=0.15, linewidth=0)


def doubling(data: Part, axes) -> str:
    """Angles and blocks against the factor on the weights."""
    left, right = axes[0]
    c = np.asarray(data["factor"])
    markers = ({"marker": "o"}, {"marker": "s", "fillstyle": "none", "markersize": 8}, {"marker": "^"})
    for k, (name, values) in enumerate(data["angle"].items()):
        left.loglog(c, values / values[2], color=plots.COLOURS[k], label=name, linestyle="none", **markers[k])
    left.loglog(c, c**-2.0, "-", color="0.4", linewidth=0.8, label="c⁻²")
    left.loglog(c, c**-1.0, "--", color="0.4", linewidth=0.8, label="c⁻¹")
    left.set(
        xlabel="factor c on the weights", ylabel="angle of a step, over that at c = 1", title="The same learning rate"
    )
    for k, (name, values) in enumerate(data["blocks"].items()):
        right.loglog(c, values / values[2], "o", color=plots.COLOURS[k], label=f"block {name}")
    for power, dash in ((-2, "-"), (-1, "--"), (0, ":")):
        right.loglog(
            c, c**power, dash, color="0.4", linewidth=0.8, label=f"c{'⁻²' if power == -2 else '⁻¹' if power else '⁰'}"
        )
    right.set(xlabel="factor c on the weights", ylabel="size of the block, over that at c = 1", title="Fisher matrix")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(c, [f"{v:g}" for v in c])
        axis.legend()
    return (
        "A layer-normalized MLP trained on digits, its first weight matrix multiplied by c. Left: the angle by which "
        "one step at the same learning rate turns that matrix falls as c⁻² (SGD) and c⁻¹ (Adam, Lion). Right: blocks "
        "of the Fisher matrix of weights w and gains g scale as c⁻², c⁻¹ and c⁰. Doubling the norm changes the "
        "curvature along the weights by 1/4, not by 1/2."
    )


def equivalence(data: Part, axes) -> str:
    """Distances in function space over the steps."""
    axis = axes[0, 0]
    for k, (name, values) in enumerate(data.items()):
        steps, colour = np.arange(1, len(values["equivalent"]) + 1), plots.COLOURS[k % len(plots.COLOURS)]
        marker = "os^"[k // len(plots.COLOURS)]
        style = {"marker": marker, "markersize": 2.5, "markevery": 10, "linewidth": 0.9, "color": colour}
        axis.semilogy(steps, np.maximum(values["equivalent"], 1e-17), "-", label=TITLES[name], **style)
        axis.semilogy(steps, values["wrong power"], "--", **style)
    axis.axhline(1e-12, color="0.5", linewidth=0.8)
    axis.text(60, 1.6e-12, "tolerance 10⁻¹²", ha="right", fontsize=7)
    axis.text(30, 1e-5, "dashed: η to another power of c", ha="center", fontsize=7)
    axis.text(30, 1e-14, "solid: the equivalent hyperparameters", ha="center", fontsize=7)
    axis.set(xlabel="training step", ylabel="largest difference of outputs", ylim=(1e-17, 10))
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return (
        "Training a layer-normalized network from W and from 3W on the same minibatches. With η, λ and ε multiplied by "
        "the powers of c that belong to the optimizer the two runs compute the same outputs at every step, to rounding "
        "in float64; with η to another power they do not."
    )


def exponential(data: Part, axes) -> str:
    """Differences, rates and norms."""
    for k, (name, values) in enumerate(data.items()):
        steps, colour = np.arange(1, len(values["rate"]) + 1), plots.COLOURS[k]
        label = TITLES[name]
        axes[0, 0].semilogy(steps, np.maximum(values["difference"], 1e-17), "-", color=colour, label=label)
        axes[0, 1].semilogy(steps, values["rate"], "-", color=colour)
        axes[0, 2].semilogy(steps, values["norm"], "-", color=colour)
        axes[0, 2].semilogy(steps, values["norm with decay"], ":", color=colour)
    axes[0, 0].axhline(1e-10, color="0.5", linewidth=0.8)
    axes[0, 0].set(title="outputs", ylabel="largest difference", ylim=(1e-17, 1e-2))
    axes[0, 1].set(title="learning rate without decay", ylabel="over η with decay")
    axes[0, 2].set(title="norm of the weights", ylabel="‖w‖ (dotted: with decay)")
    for axis in axes[0]:
        axis.set_xlabel("training step")
    axes[0, 0].legend(fontsize=6)
    return (
        "Weight decay is a growing learning rate. For each optimizer a run with weight decay and one without it, whose "
        "rate grows exponentially: the outputs are the same at every step (left; the line is 10⁻¹⁰), while rate and "
        "norm part."
    )


def growth(data: Part, axes) -> str:
    """Norms, effective rates and errors without weight decay."""
    for k, (name, run) in enumerate(data.items()):
        group = "w1" if "MLP" in name else "cell.recurrent_weights"
        steps = run["steps"][1:]
        for axis, curve in zip(
            axes[0], (f"norm/{group}", f"effective_learning_rate/{group}", "train error"), strict=True
        ):
            values = run[curve][:, 1:]
            values = values / values[:, :1] if curve != "train error" else values
            _band(axis, steps, values, name.replace("AdamW", "Adam"), plots.COLOURS[k])
    axes[0, 0].set(title="norm of the weights", ylabel="‖w‖, over the start")
    axes[0, 1].set(title="effective learning rate", ylabel="η/‖w‖² (Adam: η/‖w‖), over the start", yscale="log")
    axes[0, 2].set(title="training error", ylabel="error rate", yscale="log")
    for axis in axes[0]:
        axis.set_xlabel("training step")
    axes[0, 0].legend()
    return (
        "Implicit early stopping on digits without weight decay: the norm of scale-invariant weights grows, and the "
        "effective learning rate falls at a constant learning rate. First layer of an MLP, and recurrent weights of a "
        "GRU that reads the digits by rows; median and range of the seeds."
    )


def equilibrium(data: Part, axes) -> str:
    """Measured over predicted, for walks and for the MLP."""
    walks = {k.removeprefix("walk, "): v for k, v in data.items() if k.startswith("walk")}
    for k, (name, walk) in enumerate(walks.items()):
        colour, title = plots.COLOURS[k], equilibria.TITLES[name]
        time = np.asarray(walk["steps"]) * walk["relaxation"]
        shown = time < 4
        axes[0, 0].semilogy(time[shown], np.maximum(walk["excess"], 1e-3)[shown], "-", color=colour, label=title)
        axes[0, 1].plot(time, walk["angle"], "-", color=colour, linewidth=0.9)
    line = np.linspace(0, 4, 50)
    axes[0, 0].semilogy(line, 0.5 * np.exp(-line), "--", color="0.3", linewidth=1.0, label="predicted")
    axes[0, 0].set(
        title="random gradients: relaxation", ylabel="‖w‖^q over its rest, less 1", xlabel="time × predicted rate"
    )
    axes[0, 1].set(
        title="random gradients: angle",
        ylabel="measured over predicted",
        xlabel="time × predicted rate",
        ylim=(0.7, 1.2),
        xlim=(0, 6),
    )
    axes[0, 0].set_ylim(5e-3, 1)
    runs = {k.removeprefix("MLP, "): v for k, v in data.items() if k.startswith("MLP")}
    for k, (name, run) in enumerate(runs.items()):
        steps = run["steps"][1:]
        for axis, what in ((axes[1, 0], "angle"), (axes[1, 1], "norm")):
            ratio = run[f"{what}/w2"][:, 1:] / run[f"equilibrium_{what}/w2"][:, 1:]
            _band(axis, steps, ratio, name, plots.COLOURS[k])
    for axis, what in ((axes[1, 0], "angle"), (axes[1, 1], "norm")):
        axis.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        axis.set(title=f"MLP on digits: {what}", ylabel="measured over predicted", xlabel="training step")
    axes[1, 0].set_yscale("log")
    axes[1, 1].set_ylim(0, 2)
    axes[0, 1].legend(*axes[0, 0].get_legend_handles_labels(), fontsize=6, loc="lower right", ncols=2)
    axes[1, 1].legend(loc="lower left", ncols=2)
    return (
        "Equilibrium of scale-invariant weights under weight decay. Above: with independent random gradients norm and "
        "angle relax to their predicted values at the predicted rates. Below: second layer of an MLP on digits, whose "
        "gradients are not independent over time; median and range of the seeds."
    )


def gain_magnitude(data: Part, axes) -> str:
    """Losses when only the magnitude is learned."""
    for axis, label in zip(axes[0], ("gain of batch norm", "gain of layer norm", "norm of w"), strict=True):
        for k, factor in enumerate((1, 10, 1000)):
            values = np.asarray(data[f"{label}, inputs × {factor}"])
            style = {"color": plots.COLOURS[k], "linewidth": 3.4 - 1.2 * k}
            axis.plot(values, ("-", "--", ":")[k], label=f"inputs × {factor}", **style)
        axis.set(title=f"learning the {label}", xlabel="step of gradient descent", ylabel="training loss (nats)")
    axes[0, 2].set_yscale("log")
    axes[0, 0].legend()
    return (
        "Logistic regression on digits with the directions of the weights fixed and only their magnitudes learned, at "
        "one learning rate. Through the gain of a normalized model the scale of the inputs makes no difference; "
        "through the norm of the weights of a standard model the same rate oscillates or diverges."
    )


def edge_of_stability(data: Part, axes) -> str:
    """Sharpness on the sphere over the steps."""
    for axis, (name, run) in zip(axes[0], data.items(), strict=True):
        axis.semilogy(run["steps"], run["sharpness"], ".", color=plots.COLOURS[0], markersize=2.5)
        later = np.median(run["sharpness"][len(run["sharpness"]) // 2 :])
        axis.axhline(2, color=plots.COLOURS[1], linewidth=1.0, linestyle="--", label="2")
        axis.axhline(later, color="0.3", linewidth=0.9, linestyle=":", label=f"median, second half: {later:.2f}")
        axis.set(title=name, xlabel="step of gradient descent", ylim=(0.1, 100))
        axis.legend(loc="lower right")
    axes[0, 0].set_ylabel("η_eff λ₁ on the unit sphere")
    return (
        "Edge of stability with normalization and weight decay: the effective learning rate times the largest "
        "eigenvalue of the Hessian on the unit sphere, along full-batch gradient descent on the weights of a "
        "layer-normalized layer. From below it rises past 2, and stays within a factor of a few of it."
    )


def fisher_spectra(data: Part, axes) -> str:
    """Largest eigenvalue and effective rank over the steps."""
    steps = np.asarray(data["steps"])
    for k, (method, title) in enumerate(NAMES.items()):
        for axis, what in zip(axes[0], ("largest", "effective rank", "loss"), strict=True):
            axis.plot(steps + 1, data[method][what], "o-", markersize=2.5, color=plots.COLOURS[k], label=title)
    axes[0, 0].set(title="largest eigenvalue", ylabel="λ_max of the Fisher matrix of w₁", yscale="log")
    axes[0, 1].set(title="effective rank", ylabel="(Σλ)² / Σλ²")
    axes[0, 2].set(title="training loss", ylabel="nats", yscale="log")
    for axis in axes[0]:
        axis.set_xscale("log")
        axis.set_xlabel("training step, counted from 1")
    axes[0, 1].legend()
    return (
        "The spectrum of the Fisher matrix of the first layer's weights along training of an MLP on digits (SGD, "
        "learning rate 0.1, 100 images), by normalizer."
    )


FIGURES: dict[str, tuple[Callable[[Part, Any], str], dict[str, Any]]] = {
    "lr_doubling": (doubling, {"rows": 1, "columns": 2}),
    "lr_equivalence": (equivalence, {"rows": 1, "columns": 1, "height": 3.4}),
    "lr_exponential": (exponential, {"rows": 1, "columns": 3, "height": 2.4}),
    "lr_growth": (growth, {"rows": 1, "columns": 3, "height": 2.4}),
    "lr_equilibrium": (equilibrium, {"rows": 2, "columns": 2, "height": 2.3}),
    "lr_gain_magnitude": (gain_magnitude, {"rows": 1, "columns": 3, "height": 2.4}),
    "lr_edge_of_stability": (edge_of_stability, {"rows": 1, "columns": 3, "height": 2.4}),
    "lr_fisher_spectra": (fisher_spectra, {"rows": 1, "columns": 3, "height": 2.4}),
}
"""How each part is drawn, and on how many axes."""
