"""Correlations of tokens against depth behind ReLU with layer norm, with RMSNorm, and without an activation."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.joudaki2023 import (
    DEPTH,
    NETS,
    WIDTH,
    correlations,
    layer_norm,
    linear,
    recursion,
    relu,
    rms_norm,
)

from analysis.gallery import series_colour

ARMS = {
    "ReLU, RMS norm": (relu, rms_norm, False, 3, "v"),
    "no activation, layer norm": (linear, layer_norm, True, 6, "x"),
    "ReLU, layer norm": (relu, layer_norm, True, 0, "D"),
}


def draw(out: Path) -> None:
    """Draws the mean correlation of random networks, and that of the infinitely wide one."""
    problem = Problem(jnp.ones((1, 1)))  # for its seed
    layers = np.arange(DEPTH + 1)
    data = {}
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for name, (activation, norm, centred, colour, marker) in ARMS.items():
            found = correlations(problem, activation, norm).mean((1, 2))
            limit = recursion(activation, float(found[0]), DEPTH, centred=centred)
            axis.plot(layers, limit, color=series_colour(colour), linestyle="-", lw=0.8)
            axis.plot(layers, found, marker, color=series_colour(colour), linestyle="none", label=name)
            data[name] = {"networks": found, "infinite width": limit}
        axis.set(xlabel="depth", ylabel="mean correlation ρ", ylim=(0, 1))
        figure.legend(loc="outside lower center", ncols=2)
        lg.plots.save(
            figure,
            out / "joudaki2023",
            {"depth": layers, **data},
            title="With ReLU, layer norm drives tokens apart and RMSNorm lets them collapse",
            caption=f"Means of {NETS} random networks of width {WIDTH} (points) and infinite width (lines). Layer "
            "norm's centring removes the mean of the activation, which RMSNorm keeps.",
        )
