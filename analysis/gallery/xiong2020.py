"""Xiong et al. (2020): norms of gradients by layer, Post-LN and Pre-LN, measured, and the share of the norms."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.xiong2020 import NETS, PRINTED, WIDTH, gradients
from lngeom.plots import style

LAYERS = 32


def draw(out: Path) -> None:
    """Draws the norm of the gradient by W² against the layer, over that of the last layer of Post-LN."""
    problem = Problem(jnp.zeros((1, 1)))
    layers = np.arange(1, LAYERS + 1)
    values = {
        "Post-LN": gradients(problem, "post", LAYERS),
        "Pre-LN": gradients(problem, "pre", LAYERS),
    }
    values = {name: found / values["Post-LN"][-1] for name, found in values.items()}
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for (name, found), look in zip(values.items(), style.STYLE["axes.prop_cycle"], strict=False):
            axis.semilogy(layers, found, label=name, **look)
        share = {"color": style.GUIDE, "linestyle": ":", "label": "√(2/3) a layer: the norms alone"}
        axis.semilogy(layers, np.exp(PRINTED * (LAYERS - layers)), **share)
        axis.set(xlabel="layer", ylabel="norm of the gradient by W²")
        axis.legend()
        lg.plots.save(
            figure,
            out / "xiong2020",
            {"layers": layers, "norms": values},
            caption=f"Root mean square over {NETS} random networks of width {WIDTH} with 8 tokens, relative to the "
            "last layer of Post-LN. Dotted: the factor √(2/3) of the norms of a layer, without its residual path.",
            title="Gradients of Post-LN do not decay towards the input",
        )
