r"""Predicted norms, angles and half-lives against two real trainings: `python -m analysis training_plan`.

Protocol, written before the runs at full size. Runs at toy size came before it was final and changed two things: the
noise on the MLP's data, and the start at 1.5 times the rest. They changed no goal and no measure.
After the first run at full size, two things about half-lives were changed: SGD's are means over 8 pairs instead of 2,
since they scattered by 20 %; and the prediction for AdamW now knows the lag of its second moment, which lengthens it
from 347 to 407 steps. Goals, norms and angles are those of before.
Written after that run, and before the runs that follow it: an equilibrium is to be measured at rest, and the sets of
SGD and momentum were not. Their norms still drifted, on the transformer by 10 and 15 % of what decay takes away in the
median, since gradients still changed. So the window is now repeated until the median of |drift| over the sets is at
most `REST`, or `WINDOWS` times, and the last one is taken. Runs whose first window meets this are kept: AdamW and Lion.
SGD and momentum are run again, on both networks. Batches of the windows have keys of their own since then, so that the
kept runs cannot be repeated to the bit.

- Networks: a pre-norm transformer of about 2 million parameters with normalized queries and keys, which predicts the
  next character of the sources of Python's standard library; and a layer-normalized MLP on scikit-learn's digits, with
  normal noise of 0.3 on pixels between 0 and 1 and a fifth of the labels drawn at random at every step. Without noise
  the MLP fits all digits, its gradients go to zero, and there is no stationary state to predict.
- Optimizers: SGD, SGD with momentum 0.9, AdamW (0.9, 0.99) and Lion (0.9, 0.99), at a constant rate. `SETTINGS` has the
  rates and decays. Weights decay where `lngeom.training.decay_mask` says that decay is a rate.
- Groups: all sets that `plan` calls scale-invariant. None is left out.
- Start: every set is scaled to 1.5 times ‖w‖^q at rest, which leaves the function as it is. AdamW's and Lion's norms at
  rest are known in advance; for SGD that is done after `2 CHUNK` steps and again after three half-lives, from the size
  of the gradients until then. From its own first norm SGD would take up to fifteen half-lives to settle.
- Measured, after `SETTLE` half-lives, over a window of two half-lives at rest: the root mean square of the angles per
  step, and the mean of ‖w‖^q, to the power 1/q. The predictions of SGD's norms take the root mean square of ‖w‖‖∇‖ in
  the window.
- Half-lives: from then on two runs on the same batches, one with every set and its optimizer's state scaled so that
  ‖w‖^q is 1.5 times as large. The slope of the logarithm of the difference of ‖w‖^q, a mean over `REPEATS` such pairs,
  until a third of it is left.
- Goals: a median relative error of at most 5 % for norms and for angles, over all sets, networks and optimizers; and of
  at most 10 % for half-lives. All cases beyond are listed with the correlation of successive gradients, which the
  prediction takes for zero, and the share of ε.
- Reasons, added before the first run of the transformer. With Δ the step, r the rate of decay and u = Δ + rw, the mean
  over the window has $2r |w|^2 + \mathrm{drift} = \kappa |u|^2$, which defines κ, the growth for each squared update.
  With e_u and e_κ the relative errors of the predicted |u| and κ, and d the drift over $2r |w|^2$, exactly
  $(n/\hat n)^q = (1 + e_u)^2 (1 + e_\kappa) / (1 + d)$: updates of another size, updates that keep or reverse their
  direction over time, and weights that are not at rest. The angle has $(a/\hat a)^2 = (1 + d) / (1 + e_\kappa)$, up to
  the variance of the norm.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from lngeom import training
from lngeom._core.files import check_writable
from lngeom.plots import figure, save
from lngeom.plots.style import COLOUR_OF, GUIDE
from lngeom.training.advisor import Plan, PlanRow
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.console import Console
from rich.table import Table

from analysis.measurements.planned_networks import SEED, Task, mlp, transformer

SETTLE, WINDOW, CHUNK, EXCESS = 6, 2, 25, 1.5
REST, WINDOWS = 0.03, 40
REPEATS = {"sgd": 8, "momentum": 8, "adamw": 2, "lion": 2}

_MOVES = ("norm", "along", "step")
"""What is seen of each set at each step: ‖w‖, ⟨w, Δ⟩ and ‖Δ‖²."""


class Setting(NamedTuple):
    """An optimizer and its hyperparameters.

    Attributes:
        make: (η, λ, mask) → the optimizer.
        rate: η.
        decay: λ.
        memory: β and β₂, for the plan.
    """

    make: Callable
    rate: float
    decay: float
    memory: dict[str, Any]


def _descent(rate: float, decay: float, mask: Any, momentum: float | None = None) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(decay, mask), optax.sgd(rate, momentum=momentum))


SETTINGS = {
    "sgd": Setting(_descent, 0.1, 0.02, {}),
    "momentum": Setting(lambda *a: _descent(*a, momentum=0.9), 0.05, 0.008, {"momentum": 0.9}),
    "adamw": Setting(
        lambda rate, decay, mask: optax.adamw(rate, 0.9, 0.99, eps=1e-12, weight_decay=decay, mask=mask),
        1e-3,
        1.0,
        {"momentum": 0.9, "b2": 0.99},
    ),
    "lion": Setting(
        lambda rate, decay, mask: optax.lion(rate, 0.9, 0.99, weight_decay=decay, mask=mask),
        5e-4,
        2.0,
        {"momentum": 0.9, "b2": 0.99},
    ),
}


def _rescaled(tree: Any, factors: list[float], kinds: dict[str, int]) -> Any:
    """Every group of leaves times a power of its factor: weights 1, their gradients' averages −1, squares −2."""
    structure = jax.tree.structure
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        values = {
            name: jax.tree.unflatten(
                structure(value),
                [v * f ** kinds[name] for v, f in zip(jax.tree.leaves(value), factors, strict=True)],
            )
            if name in kinds
            else _rescaled(value, factors, kinds)
            for name, value in zip(tree._fields, tree, strict=True)
        }
        return type(tree)(**values)
    if isinstance(tree, tuple):
        return tuple(_rescaled(value, factors, kinds) for value in tree)
    return tree


_STATES = {"trace": -1, "mu": -1, "nu": -2}


class Runner:
    """One network under one optimizer."""

    def __init__(self, task: Task, name: str, progress: Callable[[str], None]):
        self.task, self.name, self.setting, self.progress = task, name, SETTINGS[name], progress
        sample = jax.tree.map(lambda v: v[:8], task.batch(jax.random.key(SEED + 1)))
        self.inputs = sample[0]
        mask = training.decay_mask(task.apply, task.params, self.inputs)
        s = self.setting
        self.mask = mask
        self.optimizer = s.make(s.rate, s.decay, mask)
        self.first = self.plan(task.params)
        self.rows = [row for row in self.first.parameters if row.acts == "rate"]
        self.groups = {row.name: self.first.groups[row.name] for row in self.rows}
        tracked = training.track_geometry(
            self.optimizer,
            learning_rate=s.rate,
            weight_decay=s.decay,
            groups=self.groups,
            kind=name,
            every=1,
            **s.memory,
        )
        self.tracked = tracked
        self.power = {"sgd": 4, "momentum": 4}.get(name, 2)

        def step(carry, key):
            params, state, before = carry
            inputs, labels = task.batch(key)

            def loss(p):
                return optax.softmax_cross_entropy_with_integer_labels(task.apply(p, inputs), labels).mean()

            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = tracked.update(gradient, state, params)
            record = training.read_geometry(state)
            parts = {"norm": record.norm, "angle": record.angle, "scale": _sizes(params, gradient, state.groups)}
            parts |= {"correlation": _cosines(before, gradient, state.groups), "loss": value}
            parts |= {"along": _sums(params, updates, state.groups), "step": _sums(updates, updates, state.groups)}
            return (optax.apply_updates(params, updates), state, gradient), parts

        self.chunk = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))

    def plan(self, params: Any, scales: dict[str, float] | None = None) -> Plan:
        """The plan at these parameters."""
        s = self.setting
        return training.plan(
            self.task.apply,
            params,
            self.inputs,
            optimizer=self.name,
            learning_rate=s.rate,
            weight_decay=s.decay,
            mask=self.mask,
            gradient_scale=scales,
            **s.memory,
        )

    def steps(self, carry: Any, count: int, key: jax.Array) -> tuple[Any, dict[str, np.ndarray]]:
        """Takes steps, in chunks."""
        found = []
        keys = jax.random.split(key, max(1, math.ceil(count / CHUNK)) * CHUNK).reshape(-1, CHUNK)
        for k, part in enumerate(keys):
            carry, parts = self.chunk(carry, part)
            found.append(jax.tree.map(np.asarray, parts))
            if not np.isfinite(found[-1]["loss"]).all():
                raise ValueError(f"{self.name} diverged: its loss is not finite; lower its rate in SETTINGS")
            self.progress(f"{self.name}: step {(k + 1) * CHUNK} of {keys.size}, loss {found[-1]['loss'].mean():.3f}")
        return carry, {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def measure(self) -> dict[str, Any]:
        """Settles, measures norm and angle, and then half-lives."""
        half = self.rows[0].half_life
        params = self._scaled(self.task.params, [self._to_rest(row) for row in self.rows])
        zeros = jax.tree.map(jnp.zeros_like, params)
        keys = jax.random.split(jax.random.key(SEED + 2), 4 + REPEATS[self.name])
        carry = (params, self.tracked.init(params), zeros)
        if math.isnan(self.rows[0].equilibrium_norm):
            for key, count in zip(keys[:2], (2 * CHUNK, int(3 * half)), strict=True):
                carry, seen = self.steps(carry, count, key)
                now = [row for row in self.plan(carry[0], self._scales(seen)).parameters if row.acts == "rate"]
                carry = self._larger(carry, [self._to_rest(row) for row in now])
        carry, _ = self.steps(carry, int(SETTLE * half), keys[2])
        for window in range(WINDOWS):
            carry, seen = self.steps(carry, int(WINDOW * half), jax.random.fold_in(keys[3], window))
            drifts = [self._drift({name: seen[name][:, k] for name in _MOVES}) for k in range(len(self.rows))]
            if np.median(np.abs(drifts)) <= REST:
                break
        scales = self._scales(seen)
        planned = {row.name: row for row in self.plan(carry[0], scales).parameters}
        excess = self._excess(carry, int(1.6 * half), keys[4:])
        found = []
        for k, row in enumerate(self.rows):
            now, q = planned[row.name], self.power
            found.append(
                {
                    "group": row.name,
                    "size": row.size,
                    "norm": float(np.mean(seen["norm"][:, k] ** q) ** (1 / q)),
                    "predicted norm": now.equilibrium_norm,
                    "angle": float(np.sqrt(np.mean(seen["angle"][:, k] ** 2))),
                    "predicted angle": now.equilibrium_angle,
                    "half-life": _half_life(excess[:, k]),
                    "predicted half-life": now.half_life,
                    "correlation of successive gradients": float(np.mean(seen["correlation"][1:, k])),
                    "share of ε": now.epsilon_share,
                    **self._reasons(now, {name: values[:, k] for name, values in seen.items() if values.ndim == 2}),
                }
            )
        return {
            "loss": float(seen["loss"].mean()),
            "groups": found,
            "excess": excess,
            "windows": window + 1,
            "drift": float(np.median(np.abs(drifts))),
        }

    def _reasons(self, row: PlanRow, seen: dict[str, np.ndarray]) -> dict[str, float]:
        """e_u, e_κ and d of the protocol, which together are the error of the norm."""
        r = self._decay
        n, a, q = row.equilibrium_norm, row.equilibrium_angle, self.power
        square = np.mean(np.float64(seen["norm"]) ** 2)
        drift = self._drift(seen) * 2 * r * square
        update = np.mean(seen["step"] + 2 * r * np.float64(seen["along"])) + r**2 * square
        expected = (a * n) ** 2 * (n**2 / square) ** (q / 2 - 1)
        growth = (drift + 2 * r * square) / update
        return {
            "size of updates": float(np.sqrt(update / expected) - 1),
            "growth for each squared update": float(growth * a**2 / (2 * r) - 1),
            "drift": self._drift(seen),
        }

    @property
    def _decay(self) -> float:
        """The share r of the weights that decay takes away at a step."""
        kept = self.setting.memory["momentum"] if self.name == "momentum" else 0
        return self.setting.rate * self.setting.decay / (1 - kept)

    def _drift(self, seen: dict[str, np.ndarray]) -> float:
        """d of the protocol: growth of ‖w‖² at a step, in the mean, over what decay takes away."""
        growth = np.mean(2 * np.float64(seen["along"]) + seen["step"])
        return float(growth / (2 * self._decay * np.mean(np.float64(seen["norm"]) ** 2)))

    def _to_rest(self, row: PlanRow) -> float:
        if math.isnan(row.equilibrium_norm):
            return 1.0
        return row.equilibrium_norm * EXCESS ** (1 / self.power) / row.norm

    def _scales(self, seen: dict[str, np.ndarray]) -> dict[str, float]:
        """Root mean square of ‖w‖‖∇‖ of each set, by name."""
        return {row.name: float(np.sqrt(np.mean(seen["scale"][:, k] ** 2))) for k, row in enumerate(self.rows)}

    def _larger(self, carry: Any, factors: list[float]) -> Any:
        """Every set times its factor, with the state of its optimizer."""
        params, state, before = carry
        inner = _rescaled(state.inner, self._factors(params, factors), _STATES)
        return self._scaled(params, factors), replace(state, inner=inner), before

    def _factors(self, params: Any, factors: list[float]) -> list[float]:
        groups = self.tracked.init(params).groups
        of = {leaf: f for (_, members), f in zip(groups, factors, strict=True) for leaf in members}
        return [of.get(leaf, 1.0) for leaf in range(len(jax.tree.leaves(params)))]

    def _scaled(self, params: Any, factors: list[float]) -> Any:
        leaves, structure = jax.tree.flatten(params)
        scaled = [v * f for v, f in zip(leaves, self._factors(params, factors), strict=True)]
        return jax.tree.unflatten(structure, scaled)

    def _excess(self, carry: Any, count: int, keys: jax.Array) -> np.ndarray:
        """Difference of ‖w‖^q of the run with larger weights and its twin, over the latter's first, [T G]."""
        found = []
        for key in keys:
            larger = self._larger(carry, [EXCESS ** (1 / self.power)] * len(self.rows))
            carry, twin = self.steps(carry, count, key)
            _, seen = self.steps(larger, count, key)
            found.append((seen["norm"] ** self.power - twin["norm"] ** self.power) / twin["norm"][0] ** self.power)
        return np.mean(found, 0)


def _sums(a: Any, b: Any, groups: Any) -> jax.Array:
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return jnp.stack([sum((jnp.vdot(a[k], b[k]) for k in members), jnp.zeros(())) for _, members in groups])


def _sizes(params: Any, gradient: Any, groups: Any) -> jax.Array:
    """‖w‖‖∇‖ of each group."""
    return jnp.sqrt(_sums(params, params, groups) * _sums(gradient, gradient, groups))


def _cosines(before: Any, gradient: Any, groups: Any) -> jax.Array:
    """Cosine of the gradient with the one before, 0 where there is none."""
    sizes = jnp.sqrt(_sums(before, before, groups) * _sums(gradient, gradient, groups))
    return jnp.where(sizes > 0, _sums(before, gradient, groups) / jnp.where(sizes > 0, sizes, 1), 0)


def _half_life(excess: np.ndarray) -> float:
    """From the slope of the logarithm, until a third is left; NaN where it does not fall."""
    low = np.flatnonzero(excess <= excess[0] / 3)
    part = excess[: low[0] if len(low) else len(excess)]
    if len(part) < 3:
        return math.nan
    slope = np.polyfit(np.arange(len(part)), np.log(part), 1)[0]
    return math.log(2) / -slope if slope < 0 else math.nan


QUANTITIES = ("norm", "angle", "half-life")
COLOURED_AS = {"sgd": "SGD", "momentum": "momentum", "adamw": "Adam", "lion": "Lion"}
"""Optimizers under their names in `COLOUR_OF`."""


def errors(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Median relative errors of the predictions over all groups; a half-life that could not be measured counts as 1.

    Args:
        results: of `Runner.measure`, by name of network and optimizer.

    Returns:
        By quantity.
    """
    rows = [row for result in results.values() for row in result["groups"]]
    return {q: float(np.median([relative(row, q) for row in rows])) for q in QUANTITIES}


def relative(row: dict[str, Any], quantity: str) -> float:
    """|predicted/measured − 1|, 1 where it is not finite."""
    found = abs(row[f"predicted {quantity}"] / row[quantity] - 1) if row[quantity] else math.nan
    return found if math.isfinite(found) else 1.0


def kept(path: Path) -> dict[str, dict[str, Any]]:
    """Runs of an earlier figure, with the half-lives that are predicted today.

    Args:
        path: of its data.

    Returns:
        Results of `Runner.measure`, by name.
    """
    results = json.loads(path.read_text())["data"]["runs"]
    for name, result in results.items():
        setting = SETTINGS[optimizer := name.rpartition(", ")[2]]
        rest = training.predict_equilibrium(optimizer, setting.rate, setting.decay, **setting.memory)
        for row in result["groups"]:
            row["predicted half-life"] = rest.half_life
    return results


def draw(results: dict[str, dict[str, Any]], stem: Path, configuration: dict[str, Any]) -> None:
    """Predicted against measured, a panel for each quantity.

    Args:
        results: of `Runner.measure`, by name.
        stem: path of the figure.
        configuration: of the run.
    """
    median = errors(results)
    with figure(1, 3) as (fig, axes):
        for axis, quantity in zip(axes.flat, QUANTITIES, strict=True):
            everything = []
            for name, result in results.items():
                measured, predicted = (
                    np.array([row[key] for row in result["groups"]]) for key in (quantity, f"predicted {quantity}")
                )
                marker = "os"["MLP" in name]
                axis.plot(
                    predicted,
                    measured,
                    marker,
                    color=COLOUR_OF[COLOURED_AS[name.rpartition(", ")[2]]],
                    label=name,
                    alpha=0.7,
                    linestyle="none",
                )
                everything += [*measured, *predicted]
            known = np.array(everything)[np.isfinite(everything)]
            axis.plot([known.min(), known.max()], [known.min(), known.max()], "-", color=GUIDE, linewidth=0.8)
            axis.set(xscale="log", yscale="log", xlabel=f"predicted {quantity}", ylabel=f"measured {quantity}")
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
                scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                scale.set_minor_locator(NullLocator())
            axis.set_title(f"median error {100 * median[quantity]:.1f} %")
        fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        caption = (
            "Norm, angle per step (radians) and half-life (steps) of every scale-invariant set of weights of a "
            "transformer and an MLP under four optimizers, against the plan's predictions. On the line both are equal."
        )
        save(
            fig, stem, {"median relative error": median, "runs": results}, caption=caption, configuration=configuration
        )


SIZES = {
    "full": ({"width": 192, "layers": 4, "heads": 6, "context": 64, "batch": 8}, {"units": 128, "batch": 32}),
    "toy": ({"width": 16, "layers": 1, "heads": 2, "context": 8, "batch": 2}, {"units": 16, "batch": 8}),
}


def main() -> None:
    """Runs all networks and optimizers, and writes figure and data after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--networks", nargs="+", choices=("transformer", "MLP"), default=["MLP", "transformer"])
    parser.add_argument("--optimizers", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("figures/training_plan/plan"), help="path of the figure")
    parser.add_argument("--keep", type=Path, help="data of an earlier figure, whose other runs are kept")
    options = parser.parse_args()
    check_writable(options.out.parent)
    large, small = SIZES[options.size]
    tasks = {"transformer": lambda: transformer(**large), "MLP": lambda: mlp(**small)}
    console, results = Console(), {} if options.keep is None else kept(options.keep)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    for network in options.networks:
        task = tasks[network]()
        size = sum(jnp.size(v) for v in jax.tree.leaves(task.params))
        for name in options.optimizers:
            start = time.perf_counter()
            with console.status(f"{network}, {name}") as status:
                runner = Runner(task, name, lambda text, net=network, s=status: s.update(f"{net}, {text}"))
                results[f"{network}, {name}"] = result = runner.measure()
            result |= {"parameters": size, "seconds": time.perf_counter() - start}
            console.print(_table(f"{network} ({size} parameters), {name}: {result['seconds']:.0f} s", result))
            configuration = {"size": options.size, "settings": {k: (s.rate, s.decay) for k, s in SETTINGS.items()}}
            configuration |= {"settle": SETTLE, "rest": REST, "windows": WINDOWS}
            draw(results, options.out, configuration)
    goals = {"norm": 0.05, "angle": 0.05, "half-life": 0.1}
    for quantity, error in errors(results).items():
        met = "met" if error <= goals[quantity] else "missed"
        console.print(f"median relative error of {quantity}: {error:.1%} (goal {goals[quantity]:.0%}: {met})")


def _table(title: str, result: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("group", *QUANTITIES, "corr.", "e_u", "e_κ", "drift"):
        table.add_column(name)
    for row in result["groups"]:
        name = row["group"] if row["group"].count("+") < 2 else "stream"
        cells = [f"{row[q]:.3g} ({row[q] / row[f'predicted {q}'] - 1:+.1%})" for q in QUANTITIES]
        reasons = (row[key] for key in ("size of updates", "growth for each squared update", "drift"))
        table.add_row(
            name, *cells, f"{row['correlation of successive gradients']:+.3f}", *(f"{v:+.1%}" for v in reasons)
        )
    return table


if __name__ == "__main__":
    main()
