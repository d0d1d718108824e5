"""Both sides of Theorem 4.1 under its two readings."""

from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.santurkar2018 import readings
from lngeom.plots import style

from analysis.gallery import series_colour


def draw(out: Path) -> None:
    """Draws ‖∇_y L̂‖² against the right side of Theorem 4.1."""
    with jax.enable_x64(True):
        problem = Problem(jnp.zeros((1, 1)))
        found = {
            "∇L at the activations y": readings(problem),
            "∇L that arrives at z": readings(problem, literal=False),
        }
    left, right = found["∇L at the activations y"]
    above = int(np.sum(left > right))
    with lg.plots.figure(width="column", height=3.0) as (figure, axes):
        axis = axes[0, 0]
        for k, (name, (left, right)) in enumerate(found.items()):
            axis.loglog(right, left, "ox"[k], ls="", ms=2.5, mfc="none", color=series_colour(1 - k), label=name)
        ends = np.array([np.min(found["∇L that arrives at z"][0]), np.max(found["∇L that arrives at z"][0])])
        axis.loglog(ends, ends, color=style.GUIDE, lw=0.8, ls="-", label="equality")
        axis.set(xlabel="right side of Theorem 4.1", ylabel="squared gradient with batch norm")
        axis.set_xlim(left=ends[0] / 1e4)
        axis.legend()
        lg.plots.save(
            figure,
            out / "santurkar2018",
            {name: {"left": left, "right": right} for name, (left, right) in found.items()},
            title=f"Theorem 4.1 is an equality for one gradient; for two, it fails in {above} of 500 draws",
            caption="500 random batches of 12 activations and losses Σ a tanh(y). Points above the line violate the "
            "bound. Points further left are not shown.",
            configuration={"draws": 500, "size": 12, "seed": 0},
        )
