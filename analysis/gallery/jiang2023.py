"""Jiang et al. (2023): how far three ways of training a converted stack are from the Pre-LN run."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.jiang2023 import WAYS, trajectories
from lngeom.plots import style


def draw(out: Path) -> None:
    """Draws the distance of the outputs from those of the Pre-LN stack against the step."""
    distances = {}
    for name, path in trajectories(Problem(jnp.zeros((1, 1)))).items():
        gaps = np.abs(path[:, 1:] - path[:, :1]).max((2, 3)) / np.abs(path[:, :1]).max((2, 3))
        distances[name] = dict(zip([*WAYS][1:], gaps.T, strict=True))
    with lg.plots.figure(1, 2, height=3.2, sharey=True) as (figure, axes):
        for axis, (name, gaps) in zip(axes[0], distances.items(), strict=True):
            for (way, gap), look in zip(gaps.items(), style.STYLE["axes.prop_cycle"], strict=False):
                axis.semilogy(np.arange(1, len(gap) + 1), np.maximum(gap, 1e-17), label=way, **look)
            axis.set(xlabel="step", title=name)
        axes[0, 0].set_ylabel("distance from the Pre-LN run")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
        lg.plots.save(
            figure,
            out / "jiang2023",
            {"distance": distances},
            caption="Four blocks, 50 steps. Distance is the largest difference of outputs over the largest output. "
            "Rounding stays near 10⁻¹⁵.",
            title="Projected gradients repair SGD on converted weights, but not Adam",
        )
