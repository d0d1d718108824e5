"""Blocks outside the diagonal of the Fisher matrix, against the number of classes."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.dong2025 import (
    INPUTS,
    UNITS,
    across_layers,
    block_norms,
    by_classes,
    of_hidden_units,
    outside,
)
from lngeom.plots.axes import guide

from analysis.gallery import series_colour

CLASSES = (2, 4, 8, 16, 32, 64, 128)


def draw(out: Path) -> None:
    """Draws their size for classes of a linear model, units before a layer norm, and layers of a residual network."""
    problem = Problem(jnp.ones((1, 1)))  # for its seed
    units = np.repeat(np.arange(UNITS), INPUTS)
    found = {
        "two classes of a linear model": [outside(by_classes(problem, C, 0.0)) for C in CLASSES],
        "two units before a layer norm": [outside(block_norms(of_hidden_units(problem, C), units)) for C in CLASSES],
        "two layers of a residual network": [across_layers(problem, C) for C in CLASSES],
    }
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for k, (name, sizes) in enumerate(found.items()):
            axis.plot(CLASSES, sizes, color=series_colour(k), marker="osD"[k], label=name)
        guide(axis, np.array(CLASSES), np.full(len(CLASSES), (UNITS - 1) ** -0.5), "1/√(H − 1)")
        axis.set(xscale="log", yscale="log", xlabel="classes C", ylabel="off over on the diagonal")
        figure.legend(loc="outside lower center", ncols=1)
        lg.plots.save(
            figure,
            out / "dong2025",
            {"classes": CLASSES, **found},
            title="Many classes decouple classes, but not units before a layer norm, nor layers",
            caption=f"Frobenius norm of the blocks outside the diagonal of F, over those on it; {UNITS} units. Classes "
            "follow 1/√(C − 1). Off the diagonal, units before a layer norm have at least 1/√(H − 1).",
        )
