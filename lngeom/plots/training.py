"""The geometry of a training run, as `lngeom.training.track_geometry` records it."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lngeom.plots.axes import log_scale
from lngeom.plots.style import COLOURS, figure, save
from lngeom.training.tracker import Geometry

_PANELS = (
    ("norm", "‖w‖", "equilibrium_norm", False),
    ("angle", "angle of a step (radians)", "equilibrium_angle", True),
    ("effective_learning_rate", "effective learning rate", None, True),
    ("radial_residual", "|⟨w, ∇⟩| / (‖w‖ ‖∇‖)", None, True),
)


def training_geometry(
    history: Geometry, stem: Path | str | None = None, *, caption: str = "", configuration: dict | None = None
) -> Figure:
    """Norm, angle per step, effective learning rate and radial residual of every group, over the steps.

    Dashed lines are the equilibria predicted for weight decay. Zeros are in a band below the logarithmic axes.

    Args:
        history: result of `read_geometry` for a tracker with `history=K`; or its results for every step, stacked by
            `jax.lax.scan` or by `jax.tree.map` over a list.
        stem: path of the figure and its data (`stem.svg`, `.png`, `.json`); nothing is written by default.
        caption: caption of the figure.
        configuration: settings of the data.

    Returns:
        The figure.

    Raises:
        ValueError: if there is only one step, so that there is no curve.
    """
    steps, curves = _curves(history)
    data: dict = {"step": steps}
    with figure(2, 2, height=2.2) as (fig, axes):
        for axis, (name, label, predicted, log) in zip(axes.flat, _PANELS, strict=True):
            values = np.abs(curves[name])
            data[name] = {group: values[:, k] for k, group in enumerate(history.names)}
            rest = np.full_like(values, np.nan) if predicted is None else np.abs(curves[predicted])
            both = np.stack([values, rest])
            place = log_scale(axis, both) if log and (both[np.isfinite(both)] > 0).any() else np.asarray
            for k, group in enumerate(history.names):
                colour = COLOURS[k % len(COLOURS)]
                axis.plot(steps, place(values[:, k]), "-", color=colour, label=group)
                if predicted is not None and np.isfinite(rest[:, k]).any():
                    axis.plot(steps, place(rest[:, k]), "--", color=colour, linewidth=0.9)
                    data.setdefault(predicted, {})[group] = rest[:, k]
            if not np.isfinite(values).any():
                axis.text(0.5, 0.5, "not recorded", transform=axis.transAxes, ha="center", va="center")
            axis.set(xlabel="step", ylabel=label)
        axes[0, 0].legend()
        if stem is not None:
            text = caption or "Norm, angle of a step, effective learning rate and radial residual of each group."
            save(fig, stem, data, caption=text, configuration=configuration)
    return fig


def _curves(history: Geometry) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps [T], and values [T G] by name; predictions of a ring are those of the last step."""
    names = [name for name, *_ in _PANELS]
    if history.history is not None and history.norm.ndim == 1:
        steps = np.asarray(history.history_steps)
        taken = steps >= 0
        curves = {name: np.asarray(history.history[name])[taken] for name in names}
        for name in ("equilibrium_norm", "equilibrium_angle"):
            curves[name] = np.broadcast_to(np.asarray(getattr(history, name)), curves["norm"].shape)
        steps = steps[taken]
    elif history.norm.ndim == 2:
        steps = np.asarray(history.step) - 1
        curves = {k: np.asarray(getattr(history, k)) for k in (*names, "equilibrium_norm", "equilibrium_angle")}
    else:
        raise ValueError(
            "there is one step alone to draw: track_geometry(..., history=K) keeps the last K, or stack what "
            f"read_geometry gives at every step to [T G]; got norms of shape {tuple(history.norm.shape)}"
        )
    return steps, curves
