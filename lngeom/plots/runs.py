"""A training run, as `lngeom.training.track_geometry` records it and `lngeom.training.plan` predicts it."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lngeom.plots.axes import log_scale
from lngeom.plots.style import COLOURS, figure, save
from lngeom.training._record import Geometry
from lngeom.training.advisor import Plan

_PANELS = (
    ("norm", "‖w‖", "equilibrium_norm", False),
    ("angle", "angle of a step (radians)", "equilibrium_angle", True),
    ("effective_learning_rate", "effective learning rate", None, True),
    ("radial_residual", "|⟨w, ∇⟩| / (‖w‖ ‖∇‖)", None, True),
)


def training(
    record: Geometry,
    stem: Path | str | None = None,
    *,
    plan: Plan | None = None,
    caption: str = "",
    configuration: dict | None = None,
) -> Figure:
    """Norm, angle per step, effective learning rate and radial residual of every group over the steps; shares of ε.

    Dashed lines are the equilibria predicted for weight decay, by the plan where the record has none. Zeros are in a
    band below the logarithmic axes.

    Args:
        record: result of `read_geometry` for a tracker with `history=K`; or its results for every step, stacked by
            `jax.lax.scan` or by `jax.tree.map` over a list.
        stem: path of the figure and its data (`stem.svg`, `.png`, `.json`); nothing is written by default.
        plan: result of `lngeom.training.plan` for the same parameters. It adds a panel with the share of ε in the
            denominator of every norm: its mean and its largest value.
        caption: caption of the figure.
        configuration: settings of the data.

    Returns:
        The figure.

    Raises:
        ValueError: if there is only one step, so that there is no curve.
    """
    steps, curves = record.curves()
    if record.norm.ndim == 1 and record.history is None:
        raise ValueError(
            "there is one step alone to draw: track_geometry(..., history=K) keeps the last K, or stack what "
            f"read_geometry gives at every step to [T G]; got norms of shape {tuple(record.norm.shape)}"
        )
    planned = {} if plan is None else {row.name: row for row in plan.parameters}
    data: dict = {"step": steps}
    with figure(2, 2 if plan is None else 3, height=2.2) as (fig, axes):
        panels = [axes[0, 0], axes[0, 1], axes[1, 0], axes[1, 1]]
        for axis, (name, label, predicted, log) in zip(panels, _PANELS, strict=True):
            values = np.abs(curves[name])
            data[name] = {group: values[:, k] for k, group in enumerate(record.names)}
            rest = np.full_like(values, np.nan) if predicted is None else np.abs(curves[predicted])
            if predicted is not None:
                ahead = np.array([getattr(planned.get(group), predicted, np.nan) for group in record.names])
                rest = np.where(np.isfinite(rest), rest, ahead)
            both = np.stack([values, rest])
            place = log_scale(axis, both) if log and (both[np.isfinite(both)] > 0).any() else np.asarray
            for k, group in enumerate(record.names):
                colour = COLOURS[k % len(COLOURS)]
                axis.plot(steps, place(values[:, k]), "-", color=colour, label=group)
                if predicted is not None and np.isfinite(rest[:, k]).any():
                    axis.plot(steps, place(rest[:, k]), "--", color=colour, linewidth=0.9)
                    data.setdefault(predicted, {})[group] = rest[:, k]
            if not np.isfinite(values).any():
                axis.text(0.5, 0.5, "not recorded", transform=axis.transAxes, ha="center", va="center")
            axis.set(xlabel="step", ylabel=label)
        if plan is None:
            axes[0, 0].legend()
        else:
            data["epsilon_share"] = _shares(axes[0, 2], plan)
            axes[1, 2].axis("off")
            axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="upper left")
        if stem is not None:
            text = caption or "Norm, angle of a step, effective learning rate and radial residual of each group."
            save(fig, stem, data, caption=text, configuration=configuration)
    return fig


def _shares(axis, plan: Plan) -> dict[str, list]:
    """Mean and largest share of ε in the denominators of each norm."""
    numbers = [norm.number + 1 for norm in plan.norms]
    mean, largest = [norm.share for norm in plan.norms], [norm.largest_share for norm in plan.norms]
    if not numbers:
        axis.text(0.5, 0.5, "no norm with ε", transform=axis.transAxes, ha="center", va="center")
    else:
        place = log_scale(axis, np.array([mean, largest]))
        axis.plot(numbers, place(np.array(largest)), "v", color=COLOURS[7], label="largest")
        axis.plot(numbers, place(np.array(mean)), "o", color=COLOURS[6], label="mean")
        axis.set_xticks(numbers)
        axis.legend()
    axis.set(xlabel="norm, in order of the program", ylabel="share of ε in the denominator")
    return {"norm": numbers, "mean": mean, "largest": largest}
