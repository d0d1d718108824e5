"""The variance of Pre-LN stacks against depth, with and without LayerNorm scaling."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.sun2025 import DEPTH, exponent, variances
from lngeom.plots import style

from analysis.gallery import series_colour

STACKS = {
    "equal blocks": {"repeated": True},
    "independent blocks": {},
    "equal blocks, scaled": {"repeated": True, "scaled": True},
    "independent blocks, scaled": {"scaled": True},
}


def draw(out: Path) -> None:
    """Draws the four stacks, and the order of the upper bound of Lemma 3.2."""
    problem = Problem(jnp.ones((1, 1)))  # for its seed
    l = np.arange(1, DEPTH + 1)
    found = {name: variances(problem, **options).mean(0)[1:] for name, options in STACKS.items()}
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        early = l[:18]
        bound = {"color": style.GUIDE, "linestyle": ":", "label": "eˡ, the order of the upper bound"}
        axis.plot(early, np.exp(early - 1.0) * 2, **bound)
        dashes = ("-", "--", "-.", ":")
        for k, (name, variance) in enumerate(found.items()):
            axis.plot(l, variance, color=series_colour(k), linestyle=dashes[k], label=name)
        axis.set(xscale="log", yscale="log", xlabel="layer l", ylabel="variance σ²", ylim=(1, 1e6))
        figure.legend(loc="outside lower center", ncols=2)
        steepest, flattest = (
            exponent(np.concatenate([[1.0], found[name]]), 64, DEPTH) for name in ("equal blocks", "independent blocks")
        )
        lg.plots.save(
            figure,
            out / "sun2025",
            {"layer": l, **found},
            title=f"Pre-LN: variance grows as depth to the power {flattest:.1f} to {steepest:.1f}, not exponentially",
            caption=f"Pre-LN stacks of {DEPTH} random blocks of width 32, means of 32. LayerNorm scaling (1/√l) lowers "
            "the growth to between log l and l.",
        )
