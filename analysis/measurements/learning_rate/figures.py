"""Figures of `python -m analysis learning_rate`: each draws one part's results and gives its title and caption.

What a title says is computed from the results.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lngeom import plots
from lngeom.papers.training import equilibria
from lngeom.papers.training.equivalence import TITLES
from lngeom.plots.axes import common_legend, guide, log_scale, number, plain_ticks, span
from lngeom.plots.style import COLOUR_OF, DASHES, GUIDE, INK, MARKERS, VARIANT

Part = dict[str, Any]
NAMES = {"identity": "none", "bn": "batch norm", "wn": "weight norm", "ln": "layer norm", "rms": "RMS norm"}
OPTIMIZER = {
    "sgd": "SGD",
    "momentum": "momentum",
    "adamw": "Adam",
    "lion": "Lion",
    "muon": "Muon",
    "normalized_gd": "normalized gradient descent",
    "lars": "LARS",
    "rmsprop": "RMSProp",
}
DASH = {
    "SGD": "-",
    "momentum": (0, (5, 1)),
    "Adam": (0, (3, 1, 1, 1)),
    "Lion": (0, (1, 1)),
    "Muon": (0, (8, 1.5)),
    "normalized gradient descent": (0, (6, 1, 1, 1, 1, 1)),
    "LARS": (0, (2, 2)),
    "RMSProp": (0, (5, 1, 1, 1, 1, 1)),
}
"""Optimizer → dashes of its line, by which it can be told without colours."""


class Words(NamedTuple):
    """What is written at a figure.

    Attributes:
        numbers: the finding, with its numbers; it leads the caption.
        caption: explains the figure.
    """

    numbers: str
    caption: str


def _line(optimizer: str) -> dict[str, Any]:
    return {"color": COLOUR_OF[optimizer], "linestyle": DASH[optimizer]}


def _of(name: str) -> str:
    """The optimizer in the name of a run, such as "MLP, AdamW"."""
    known = {"AdamW": "Adam"}
    last = name.rpartition(", ")[2]
    return known.get(last, last)


def _band(axis, steps, curves, label: str, style: Mapping[str, Any], place: Callable = np.asarray) -> None:
    """Median of the seeds as a line, their range as a band."""
    axis.plot(steps, place(np.nanmedian(curves, 0)), label=label, **style)
    low, high = place(np.nanmin(curves, 0)), place(np.nanmax(curves, 0))
    axis.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)


def slope(x: Any, y: Any) -> float:
    """Exponent of a power law, by least squares in the logarithms.

    Args:
        x: positive numbers.
        y: positive numbers.

    Returns:
        The exponent.
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def doubling_title(data: Part) -> str:
    """What twice the norm leaves of the curvature along the weights."""
    left = 100 * 2 ** slope(np.asarray(data["factor"]), data["blocks"]["w–w"])
    return f"Doubling the weights leaves {left:.0f} % of the curvature along them"


def doubling_numbers(data: Part) -> str:
    """Measured powers of c: of the block of the weights, and of the angles."""
    c = np.asarray(data["factor"])
    block = slope(c, data["blocks"]["w–w"])
    angles = ", ".join(f"{name} {slope(c, values):.2f}" for name, values in data["angle"].items())
    return (
        f"Doubling the weights leaves {100 * 2**block:.0f} % of the curvature along them (the paper: 50 %); "
        f"the angle of a step goes as a power of c: {angles}"
    ).replace("-", "−")


def doubling(data: Part, axes) -> Words:
    """Angles and blocks against the factor on the weights."""
    left, right = axes[0]
    c = np.asarray(data["factor"])
    at_one = int(np.flatnonzero(c == 1)[0])
    relative = {
        axis: {name: np.asarray(v) / v[at_one] for name, v in data[key].items()}
        for axis, key in ((left, "angle"), (right, "blocks"))
    }
    log_scale(axes[0], [v for curves in relative.values() for v in curves.values()])
    markers = ({"marker": "o"}, {"marker": "s", "fillstyle": "none", "markersize": 8}, {"marker": "^"})
    for (name, values), marker in zip(relative[left].items(), markers, strict=True):
        left.plot(c, values, color=COLOUR_OF[name], label=name, linestyle="none", **marker)
    for (name, values), marker in zip(relative[right].items(), "os^", strict=True):
        label = f"block {name}"
        right.plot(c, values, color=COLOUR_OF["layer norm"], marker=marker, label=label, linestyle="none")
    guide(left, c, c**-2.0, "$c^{-2}$")
    guide(left, c, c**-1.0, "$c^{-1}$", linestyle="--")
    guide(right, c, c**-2.0, "$c^{-2}$")
    guide(right, c, c**-1.0, "$c^{-1}$,\npaper for\nw–w", linestyle="--")
    guide(right, c, c**0.0, "$c^0$", linestyle=":")
    left.set(ylabel="angle of a step, over that at c = 1", title="steps at the same learning rate")
    right.set(ylabel="size of the block, over that at c = 1", title="blocks of the Fisher matrix")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("factor c on the weights")
        plain_ticks(axis.xaxis, c)
        axis.legend(loc="lower left")
    return Words(
        doubling_numbers(data),
        "A layer-normalized MLP trained on digits, its first weight matrix multiplied by c. Left: the angle by which "
        "one step at the same learning rate turns that matrix. Right: blocks of the Fisher matrix of weights w and "
        "gains g. Dashed: the power c⁻¹, which the paper gives for the curvature along the weights (its ½). One "
        "network; the powers are exact.",
    )


def equivalence_title(data: Part) -> str:
    """Largest difference of the outputs with equivalent hyperparameters."""
    right = max(float(np.max(v["equivalent"])) for v in data.values())
    return (
        f"With equivalent hyperparameters the scale of weights moves no output by more than {number(right, math.ceil)}"
    )


def equivalence_numbers(data: Part) -> str:
    """Largest difference with equivalent hyperparameters, and smallest last one with another power."""
    right = max(float(np.max(v["equivalent"])) for v in data.values())
    wrong = min(float(np.asarray(v["wrong power"])[-1]) for v in data.values())
    return (
        f"{len(data)} optimizers from W and from 3W: equivalent hyperparameters keep the outputs within "
        f"{number(right, math.ceil)}; with another power of c they end {number(wrong, math.floor)} apart or more"
    )


def equivalence(data: Part, axes) -> Words:
    """Range of the distances in function space over the steps, by optimizer."""
    axis = axes[0, 0]
    names = list(data)[::-1]
    place = log_scale(axis, [values for v in data.values() for values in v.values()], along="x")
    for key, fill, label in (
        ("equivalent", "full", "equivalent hyperparameters"),
        ("wrong power", "none", "η to another power of c"),
    ):
        for row, name in enumerate(names):
            values, colour = place(data[name][key]), COLOUR_OF["layer norm"]
            axis.plot([values.min(), values.max()], [row, row], color=colour, linestyle="-", linewidth=1.2, marker="|")
            style = {"color": colour, "marker": "o", "fillstyle": fill, "linestyle": "none"}
            axis.plot(values[-1:], [row], label="" if row else label, **style)
    axis.axvline(1e-12, color=GUIDE, linewidth=0.9, linestyle="--", label="tolerance of the test")
    axis.set_yticks(range(len(names)), [TITLES[name] for name in names])
    axis.set(xlabel="largest difference of outputs", ylim=(-0.6, len(names) - 0.4))
    common_legend(axis.figure, [axis])
    steps = len(next(iter(data.values()))["equivalent"])
    return Words(
        equivalence_numbers(data),
        "Training a layer-normalized network from W and from 3W on the same minibatches, in float64. With η, λ and ε "
        "multiplied by the powers of c that belong to the optimizer the two runs compute the same outputs. Lines: "
        f"range over {steps} steps; markers: last step. One run each, since runs are compared with each other.",
    )


def exponential_title(data: Part) -> str:
    """Largest difference of the outputs."""
    largest = max(float(np.max(v["difference"])) for v in data.values())
    return f"Weight decay is a growing learning rate: outputs differ by at most {number(largest, math.ceil)}"


def exponential_numbers(data: Part) -> str:
    """Largest difference of the outputs, and the range of the rates at the end."""
    largest = max(float(np.max(v["difference"])) for v in data.values())
    rates = [float(np.asarray(v["rate"])[-1]) for v in data.values()]
    return (
        f"Weight decay is a growing learning rate: without decay, at a rate that grows {span(rates)}-fold, "
        f"outputs differ by at most {number(largest, math.ceil)}"
    )


def exponential(data: Part, axes) -> Words:
    """Rates and norms; differences in the title and the legend."""
    left, right = axes[0]
    log_scale(left, [v["rate"] for v in data.values()])
    log_scale(right, [v[k] for v in data.values() for k in ("norm", "norm with decay")])
    for name, values in data.items():
        steps, style = np.arange(1, len(values["rate"]) + 1), _line(OPTIMIZER[name])
        left.plot(
            steps, values["rate"], label=f"{TITLES[name]}: {number(np.max(values['difference']), math.ceil)}", **style
        )
        right.plot(steps, values["norm"], **style)
        right.plot(steps, values["norm with decay"], **style, alpha=0.45, linewidth=2.6)
    left.set(title="learning rate of the run without decay", ylabel="over η of the run with decay")
    right.set(title="norm of the weights (broad and pale: with decay)", ylabel="‖w‖")
    for axis in axes[0]:
        axis.set_xlabel("training step")
    common_legend(left.figure, [left], columns=3)
    return Words(
        exponential_numbers(data),
        "For each optimizer a run with weight decay and one without it, whose rate grows exponentially. The legend "
        "gives the largest difference of their outputs over all steps, in float64. One run each, since runs are "
        "compared with each other.",
    )


def growth_title(data: Part) -> str:
    """By how much norms grow at most."""
    norms = [v[f"norm/{_group(k)}"][:, 1:] for k, v in data.items()]
    most = max(float(np.nanmedian(v[:, -1] / v[:, 0])) for v in norms)
    return f"Without weight decay norms grow, by up to {100 * (most - 1):.0f} %, and effective learning rates fall"


def growth_numbers(data: Part) -> str:
    """By how much norms grow and effective rates fall, from medians over the seeds."""
    norms, rates = [], []
    for name, run in data.items():
        for found, curve in ((norms, "norm"), (rates, "effective_learning_rate")):
            values = run[f"{curve}/{_group(name)}"][:, 1:]
            found.append(float(np.nanmedian(values[:, -1] / values[:, 0])))
    norm, rate = (span((v - 1 for v in found), lambda v: f"{100 * v:+.0f} %") for found in (norms, rates))
    return (
        f"Without weight decay norms change by {norm}, and effective learning rates by {rate} at a constant "
        "learning rate"
    ).replace("-", "−")


def _group(name: str) -> str:
    return "w1" if "MLP" in name else "cell.recurrent_weights"


def growth(data: Part, axes) -> Words:
    """Norms, effective rates and errors without weight decay."""
    error = log_scale(axes[0, 2], [run["train error"][:, 1:] for run in data.values()], rows=len(data))
    rates = []
    for row, (name, run) in enumerate(data.items()):
        steps = run["steps"][1:]
        style = _line(_of(name)) | ({"linestyle": VARIANT} if "GRU" in name else {})
        label = name.replace("AdamW", "Adam")
        norm, rate = (run[f"{k}/{_group(name)}"][:, 1:] for k in ("norm", "effective_learning_rate"))
        rates.append(rate / rate[:, :1])
        _band(axes[0, 0], steps, norm / norm[:, :1], label, style)
        _band(axes[0, 1], steps, rates[-1], label, style)
        _band(axes[0, 2], steps, run["train error"][:, 1:], label, style, lambda v, row=row: error(v, row))
    log_scale(axes[0, 1], np.concatenate(rates))
    axes[0, 0].set(title="norm of the weights", ylabel="‖w‖, over the start")
    axes[0, 1].set(title="effective learning rate", ylabel="η/‖w‖², over the start")
    axes[0, 2].set(title="training error", ylabel="error rate")
    for axis in axes[0]:
        axis.set_xlabel("training step")
    common_legend(axes[0, 0].figure, axes[0, :1])
    return Words(
        growth_numbers(data),
        "Scale-invariant weights in training on digits without weight decay: first layer of an MLP, and recurrent "
        "weights of a GRU that reads the digits by rows; for Adam η/‖w‖. Median and range of "
        f"{len(next(iter(data.values()))['train error'])} seeds; in the band 0, in rows, no error.",
    )


def _later(values: np.ndarray) -> np.ndarray:
    """Median of each seed over the second half of its steps."""
    return np.nanmedian(values[:, values.shape[1] // 2 :], 1)


def _ratios(data: Part, what: str) -> dict[str, np.ndarray]:
    """Run of the MLP → measured over predicted, [seeds steps]."""
    runs = {k: v for k, v in data.items() if k.startswith("MLP")}
    return {k: v[f"{what}/w2"][:, 1:] / v[f"equilibrium_{what}/w2"][:, 1:] for k, v in runs.items()}


def equilibrium_title(data: Part) -> str:
    """The angle of a step over the predicted one, in the walk that is farthest from it."""
    settled = [float(np.median(v["angle"][-len(v["angle"]) // 3 :])) for k, v in data.items() if k.startswith("walk")]
    farthest = max(settled, key=lambda v: abs(v - 1))
    return f"With random gradients the angle of a step settles at {farthest:.2f} times the predicted one"


def equilibrium_numbers(data: Part) -> str:
    """Angles over predicted ones in the last third of the walks, and for the MLP in the second half."""
    settled = [v["angle"][-len(v["angle"]) // 3 :] for k, v in data.items() if k.startswith("walk")]
    walks, two = [float(np.median(v)) for v in settled], "{:.2f}".format
    mlp = [float(np.median(_later(v))) for v in _ratios(data, "angle").values()]
    return (
        f"Random gradients: the angle of a step settles at {span(walks, two)} times the predicted one; in an MLP, "
        f"whose gradients are not independent, at {span(mlp, two)} times"
    )


def equilibrium(data: Part, axes) -> Words:
    """Measured over predicted, for walks and for the MLP."""
    walks = {k.removeprefix("walk, "): v for k, v in data.items() if k.startswith("walk")}
    for name, walk in walks.items():
        style = _line(OPTIMIZER[name])
        time = np.asarray(walk["steps"]) * walk["relaxation"]
        shown = (time < 4) & (walk["excess"] > 0)
        axes[0, 0].semilogy(time[shown], walk["excess"][shown], label=equilibria.TITLES[name], **style)
        axes[0, 1].plot(time, walk["angle"], **(style | {"linewidth": 0.9}))
    line = np.linspace(0, 4, 50)
    axes[0, 0].semilogy(line, 0.5 * np.exp(-line), color=INK, linestyle="-", linewidth=4, alpha=0.25, label="predicted")
    axes[0, 0].set(title="random gradients: relaxation", ylabel=r"$\|w\|^q$ over its limit, less 1", ylim=(5e-3, 1))
    axes[0, 1].set(title="random gradients: angle", ylabel="measured over predicted", ylim=(0.7, 1.2), xlim=(0, 6))
    for axis in axes[0]:
        axis.set_xlabel("time × predicted rate")
    angles, norms = (_ratios(data, what) for what in ("angle", "norm"))
    for row, (name, values) in enumerate(list(angles.items())[::-1]):
        seeds, colour = _later(values), COLOUR_OF[_of(name)]
        axes[1, 0].plot([seeds.min(), seeds.max()], [row, row], color=colour, linestyle="-", linewidth=2)
        axes[1, 0].plot([np.median(seeds)], [row], color=colour, marker="o", linestyle="none")
    log_scale(axes[1, 0], np.concatenate([[0.08, 1.5], *map(_later, angles.values())]), along="x")
    axes[1, 0].set_yticks(range(len(angles)), [name.removeprefix("MLP, ") for name in list(angles)[::-1]])
    axes[1, 0].axvline(1, color=GUIDE, linewidth=0.9, linestyle="--")
    axes[1, 0].set(
        title="MLP on digits: angle, second half", xlabel="measured over predicted", ylim=(-0.6, len(angles) - 0.4)
    )
    for name, values in norms.items():
        steps = data[name]["steps"][1:]
        _band(axes[1, 1], steps, values, "", _line(_of(name)))
    axes[1, 1].axhline(1, color=GUIDE, linewidth=0.9, linestyle="--")
    axes[1, 1].set(title="MLP on digits: norm", ylabel="measured over predicted", xlabel="training step", ylim=(0, 2))
    common_legend(axes[0, 0].figure, [axes[0, 0]], columns=4)
    return Words(
        equilibrium_numbers(data),
        "Equilibrium of scale-invariant weights under weight decay. Above: with independent random gradients, averages "
        "over walks, which have no band; excesses below 0.005 are not drawn. Below: second layer of an "
        "MLP on digits; median and range of the seeds. The "
        "angle is each seed's median over the second half of the training, since single steps scatter over a decade.",
    )


def gain_magnitude_title(data: Part) -> str:
    """What the scale of the inputs does where the norm of w is learned."""
    runs = np.array([v for k, v in data.items() if k.startswith("norm of w")], float)
    most = float(np.max(np.abs(runs / runs[:1])))
    return f"Where the norm of w is learned in place of gains, the scale of inputs changes the loss {number(most)}-fold"


def gain_magnitude_numbers(data: Part) -> str:
    """Relative difference of the losses between scales of the inputs."""

    def apart(label: str) -> float:
        runs = np.array([v for k, v in data.items() if k.startswith(label)], float)
        return float(np.max(np.abs(runs / runs[:1] - 1)))

    gains, norm = max(apart("gain of batch norm"), apart("gain of layer norm")), apart("norm of w")
    change = "makes no difference" if gains < 1e-5 else f"changes the loss by up to {number(100 * gains, math.ceil)} %"
    return (
        f"Learning gains, the scale of the inputs {change}; learning the norm of w at the same rate, "
        f"it multiplies the loss by up to {number(1 + norm, math.ceil)}"
    )


def gain_magnitude(data: Part, axes) -> Words:
    """Losses when only the magnitude is learned."""
    log_scale(axes[0], list(data.values()))
    labels = {"gain of batch norm": "batch norm", "gain of layer norm": "layer norm", "norm of w": "none"}
    for axis, (label, method) in zip(axes[0], labels.items(), strict=True):
        for k, factor in enumerate((1, 10, 1000)):
            values = np.asarray(data[f"{label}, inputs × {factor}"])
            style = {"color": COLOUR_OF[method], "linewidth": (4, 2, 1.2)[k], "alpha": (0.35, 0.7, 1)[k]}
            axis.plot(values, linestyle=("-", "--", ":")[k], label=f"inputs × {factor}", **style)
        axis.set(title=f"learning the {label}", xlabel="step of gradient descent", ylabel="training loss (nats)")
    common_legend(axes[0, 0].figure, axes[0, 2:])
    return Words(
        gain_magnitude_numbers(data),
        "Logistic regression on digits with the directions of the weights fixed and only their magnitudes learned, at "
        "one learning rate. Colours: batch norm, layer norm, none. One run each, of full-batch gradient descent, which "
        "is deterministic.",
    )


def edge_of_stability_title(data: Part) -> str:
    """How often effective learning rate × sharpness is above 2, least of all runs."""
    later = [run["sharpness"][len(run["sharpness"]) // 2 :] for run in data.values()]
    least = 100 * min(float(np.mean(v > 2)) for v in later)
    return f"Sharpness is beyond the edge of stability at {least:.0f} % of the later steps or more"


def edge_of_stability_numbers(data: Part) -> str:
    """Medians of the second half, and the fraction of its steps above 2."""
    later = [run["sharpness"][len(run["sharpness"]) // 2 :] for run in data.values()]
    medians = span((float(np.median(v)) for v in later), lambda v: f"{v:.1f}")
    above = span((100 * float(np.mean(v > 2)) for v in later), lambda v: f"{v:.0f} %")
    return (
        f"In the second half of training, effective learning rate × sharpness has medians of {medians}; it is "
        f"above 2, the edge of stability, at {above} of the steps"
    )


def _powers(name: str) -> str:
    """The name of a run with its number as a power of ten: "ηλ = 2e-04" is "ηλ = 2·10⁻⁴"."""
    text, value = name.rsplit(" ", 1)
    return f"{text} {number(float(value))}"


def edge_of_stability(data: Part, axes) -> Words:
    """Sharpness on the sphere over the steps: the measurements, their running median and middle half."""
    log_scale(axes[0], [run["sharpness"] for run in data.values()])
    colour = COLOUR_OF["layer norm"]
    for axis, (name, run) in zip(axes[0], data.items(), strict=True):
        steps, sharpness = run["steps"], run["sharpness"]
        axis.plot(steps, sharpness, ".", color=GUIDE, markersize=2.5, linestyle="none", label="one step")
        window = max(1, len(steps) // 5)
        starts = np.arange(0, len(steps) - window + 1)
        quartiles = np.array([np.quantile(sharpness[k : k + window], (0.25, 0.5, 0.75)) for k in starts])
        middles = [np.median(steps[k : k + window]) for k in starts]
        axis.plot(middles, quartiles[:, 1], color=colour, linestyle="-", label=f"median of {window}")
        axis.fill_between(
            middles, quartiles[:, 0], quartiles[:, 2], color=colour, alpha=0.2, linewidth=0, label="middle half"
        )
        axis.axhline(2, color=GUIDE, linewidth=1.2, linestyle="--", label="2")
        axis.set(title=_powers(name), xlabel="step of gradient descent")
    axes[0, 0].set_ylabel(r"$\eta_{\mathrm{eff}}\,\lambda_1$, unit sphere")
    common_legend(axes[0, 0].figure, axes[0, :1])
    return Words(
        edge_of_stability_numbers(data),
        "Normalization and weight decay: the effective learning rate times the largest eigenvalue of the Hessian on "
        "the unit sphere, along full-batch gradient descent on the weights of a layer-normalized layer. One run each, "
        "which is deterministic; the band is over steps.",
    )


def fisher_spectra_title(data: Part) -> str:
    """Whether the effective rank falls."""
    ranks = [np.asarray(data[method]["effective rank"]) for method in NAMES]
    verb = "concentrates" if all(r[-1] < r[0] for r in ranks) else "changes"
    return f"Training {verb} the Fisher matrix of the first layer"


def fisher_spectra_numbers(data: Part) -> str:
    """Ranges of the effective rank before and after training."""
    ranks = [np.asarray(data[method]["effective rank"]) for method in NAMES]
    first, last = (span((float(r[k]) for r in ranks), lambda v: f"{v:.0f}") for k in (0, -1))
    verb = "concentrates" if all(r[-1] < r[0] for r in ranks) else "changes"
    return f"Training {verb} the Fisher matrix of the first layer: its effective rank goes from {first} to {last}"


def fisher_spectra(data: Part, axes) -> Words:
    """Largest eigenvalue and effective rank over the steps."""
    steps = np.asarray(data["steps"])
    log_scale(axes[0, 0], [data[method]["largest"] for method in NAMES])
    for method, title in NAMES.items():
        style = {"color": COLOUR_OF[title], "linestyle": DASHES[title], "marker": MARKERS[title], "markersize": 3}
        for axis, what in zip(axes[0], ("largest", "effective rank"), strict=True):
            axis.plot(steps + 1, data[method][what], label=title, **style)
    axes[0, 0].set(title="largest eigenvalue", ylabel="largest eigenvalue of F")
    axes[0, 1].set(title="effective rank", ylabel="(Σλ)² / Σλ²", ylim=(0, None))
    for axis in axes[0]:
        axis.set_xscale("log")
        axis.set_xlabel("training step, counted from 1")
    common_legend(axes[0, 0].figure, axes[0, :1])
    return Words(
        fisher_spectra_numbers(data),
        "The spectrum of the Fisher matrix of the first layer's weights along training of an MLP on digits (SGD, "
        "learning rate 0.1, 100 images), by normalizer. One run each.",
    )


FIGURES: dict[str, tuple[Callable[[Part, Any], Words], dict[str, Any]]] = {
    "lr_doubling": (doubling, {"rows": 1, "columns": 2, "height": 3.0}),
    "lr_equivalence": (equivalence, {"rows": 1, "columns": 1, "height": 3.0}),
    "lr_exponential": (exponential, {"rows": 1, "columns": 2, "height": 3.1}),
    "lr_growth": (growth, {"rows": 1, "columns": 3, "height": 2.7}),
    "lr_equilibrium": (equilibrium, {"rows": 2, "columns": 2, "height": 2.6}),
    "lr_gain_magnitude": (gain_magnitude, {"rows": 1, "columns": 3, "height": 2.7}),
    "lr_edge_of_stability": (edge_of_stability, {"rows": 1, "columns": 3, "height": 2.7}),
    "lr_fisher_spectra": (fisher_spectra, {"rows": 1, "columns": 2, "height": 2.8}),
}
"""How each part is drawn, and on how many axes."""

TITLES_OF = {
    "lr_doubling": doubling_title,
    "lr_equivalence": equivalence_title,
    "lr_exponential": exponential_title,
    "lr_growth": growth_title,
    "lr_equilibrium": equilibrium_title,
    "lr_gain_magnitude": gain_magnitude_title,
    "lr_edge_of_stability": edge_of_stability_title,
    "lr_fisher_spectra": fisher_spectra_title,
}
"""The title of each part."""


def save_part(name: str, results: Part, configuration: Mapping[str, Any], stem: Path) -> list[Path]:
    """Draws a part and writes it.

    Args:
        name: of the part, a key of `FIGURES`.
        results: its results.
        configuration: the sizes it was run with.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    function, layout = FIGURES[name]
    with plots.figure(**layout) as (fig, axes):
        numbers, about = function(results, axes)
        caption, title = f"{numbers}. {about}", TITLES_OF[name](results)
        return plots.save(fig, stem, rounded(results), title=title, caption=caption, configuration=configuration)


def rounded(value: Any) -> Any:
    """Results with six digits, which are enough for a figure's data."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.array([float(f"{v:.6g}") for v in value.reshape(-1)]).reshape(value.shape)
    return value
