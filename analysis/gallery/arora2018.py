"""Steps that gradient descent on scale-invariant weights takes, against its learning rate."""

from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
from lngeom.claims import Problem
from lngeom.papers.gallery.arora2018 import GOAL, RATES, times
from lngeom.plots import style

from analysis.gallery import series_colour


def draw(out: Path) -> None:
    """Draws the steps to a small gradient."""
    with jax.enable_x64(True):
        problem = Problem(jnp.zeros((1, 1)))
        found = times(problem, 0.0)
    with lg.plots.figure(width="column", height=3.0) as (figure, axes):
        axis = axes[0, 0]
        axis.loglog(RATES, found, "o", ls="", color=series_colour(0))
        for k, power in ((0, -1), (-1, 1)):
            line = RATES[:4] if power < 0 else RATES[-4:]
            axis.loglog(line, found[k] * (line / RATES[k]) ** power, color=style.GUIDE, ls="-", lw=0.8)
        axis.set(xlabel="learning rate η", ylabel=f"steps until ‖w‖‖∇L‖ < {GOAL:g}", ylim=(3, 1e5))
        lg.plots.save(
            figure,
            out / "arora2018",
            {"rates": RATES, "steps": found},
            title="Any rate converges, in a time proportional to the larger of η and 1/η",
            caption="One unit with 6 weights and batch norm on 40 samples. Lines: slopes −1 and 1.",
            configuration={"goal": GOAL, "seed": 0},
        )
