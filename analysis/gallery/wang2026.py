"""Scale vectors and columns of weights along gradient flow."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.wang2026 import flow
from lngeom.plots import style

from analysis.gallery import series_colour

RUNS = 3
SIZES = {"W(0) = 0": 0.0, "entries of W(0) about 0.3": 0.3, "about 0.8": 0.8}


def draw(out: Path) -> None:
    """Draws γ_j² against ‖W_:j‖² for the columns of some runs."""
    problem = Problem(jnp.ones((1, 1)))  # for its seed
    data = {}
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for k, (name, size) in enumerate(SIZES.items()):
            found = flow(problem, RUNS, size=size)
            columns = np.sum(found.weights**2, 2).reshape(len(found.times), -1)
            gains = (found.gain**2).reshape(len(found.times), -1)
            axis.plot(columns, gains, color=series_colour(k), linestyle="-", lw=0.8)
            axis.plot(columns[-1], gains[-1], "o", color=series_colour(k), ms=3, label=name)
            data[name] = {"columns": columns[::20], "gains": gains[::20]}
        axis.axhline(1, color=style.GUIDE, linestyle=":", lw=0.8)
        axis.set(xlabel="squared norm of a column of W", ylabel="γ² of that column", xlim=(-0.1, 3.2), ylim=(-0.1, 2.1))
        figure.legend(loc="outside lower center", ncols=3)
        lg.plots.save(
            figure,
            out / "wang2026",
            {"times": found.times[::20], **data},
            title="γ² less the squared norm of its column is conserved: γ falls where the column shrinks",
            caption=f"Gradient flow from γ = 1 to t = 5 (dots) of {RUNS} random linear problems behind a scale vector, "
            "5 columns each. All paths have slope 1. γ² stays above 1 from W(0) = 0.",
        )
