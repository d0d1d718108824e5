"""Yang et al. (2019): growth of squared gradients a layer, against the batch size or the width."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.yang2019 import dual_growth, linear, linear_rate, rates, relu
from lngeom.plots import style

SIZES = (6, 8, 12, 16, 24, 32, 48)
DEPTH = 4


def draw(out: Path) -> None:
    """Draws the laws of linear networks with points of random ones, and ReLU networks with their limit."""
    problem = Problem(jnp.zeros((1, 1)))
    fine = np.linspace(SIZES[0], SIZES[-1], 200)

    def a_layer(size: int, centre: bool) -> float:
        total = dual_growth(problem, size, DEPTH, 4_000_000 // size**2, centre=centre).mean()
        return float((total * size / (size - 1)) ** (1 / DEPTH))

    values = {
        "batch norm, linear": [float(rates(problem, linear, size, 100_000).mean()) for size in SIZES],
        "layer norm, linear": [a_layer(size, True) for size in SIZES],
        "RMS norm, linear": [a_layer(size, False) for size in SIZES],
        "batch norm, ReLU": [float(rates(problem, relu, size, 50_000).mean()) for size in SIZES],
    }
    with lg.plots.figure(width="column", height=3.2) as (figure, axes):
        axis = axes[0, 0]
        axis.plot(fine, (fine - 2) / (fine - 3), color=style.COLOUR_OF["batch norm"], label="(B − 2)/(B − 3)")
        axis.plot(
            fine, (fine - 1) / (fine - 2), linestyle="--", color=style.COLOUR_OF["RMS norm"], label="(H − 1)/(H − 2)"
        )
        limit = np.pi / (np.pi - 1)
        axis.axhline(limit, color=style.GUIDE, linestyle=":", label="π/(π − 1)")
        for (name, found), marker in zip(values.items(), "oxvs", strict=True):
            colour = style.COLOUR_OF[style.method_of(name)]
            axis.plot(SIZES, found, marker, color=colour, label=name, markerfacecolor="none", markersize=5)
        axis.set(xlabel="batch size B, or width H", ylabel="growth of ‖∇‖² a layer")
        figure.legend(loc="outside lower center", ncols=2)
        lg.plots.save(
            figure,
            out / "yang2019",
            {"sizes": SIZES, "rates": values, "linear law": [linear_rate(size) for size in SIZES], "limit": limit},
            caption="Lines: laws. Points: random networks, by draws of a unit (batch norm) and by backpropagation "
            f"through {DEPTH} layers (layer norm, RMS norm).",
            title="A linear layer norm network of width H explodes like batch norm with batch H",
        )
