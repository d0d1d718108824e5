"""Condition number of the gradient's covariance before and after weight normalization's projection."""

from pathlib import Path

import lngeom as lg
import numpy as np
from lngeom.papers.gallery.salimans2016 import condition, covariances
from lngeom.plots import style

from analysis.gallery import series_colour


def draw(out: Path) -> None:
    """Draws the condition number after the projection against that before it."""
    C, w = covariances(seed=0)
    before = np.linalg.cond(C)
    after = np.array([condition(*pair) for pair in zip(C, w, strict=True)])
    worst = float(np.max(after / before))
    with lg.plots.figure(width="column", height=3.0) as (figure, axes):
        axis = axes[0, 0]
        ends = np.array([1.5, 1.2 * before.max()])
        axis.loglog(ends, ends, color=style.GUIDE, lw=0.8, ls="-", label="no change")
        axis.loglog(before, after, "o", ms=2.5, mfc="none", color=series_colour(0), label="300 random cases")
        axis.set(xlabel="condition number of C", ylabel="condition number after the projection")
        axis.legend()
        lg.plots.save(
            figure,
            out / "salimans2016",
            {"before": before, "after": after},
            title=f"Projected covariances are never worse conditioned: the largest ratio is {worst:.3f}",
            caption="300 random covariances C of 6 gradients and random weights w. The projection M takes out the "
            "direction of w, which is left out of the condition number.",
            configuration={"count": 300, "size": 6, "seed": 0},
        )
