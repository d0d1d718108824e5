"""How well the first units estimate the rms of all: the figure of *Root Mean Square Layer Normalization* (2019)."""

from pathlib import Path

import jax
import lngeom as lg
import numpy as np
from lngeom.papers.gallery.zhang2019 import estimate
from lngeom.plots import style

from analysis.gallery import series_colour

UNITS, DRAWS = 512, 2000


def draw(out: Path) -> None:
    """Draws the relative error of the partial rms² against the share of the units.

    Args:
        out: folder of the figure.
    """
    a = np.array(jax.random.normal(jax.random.key(0), (DRAWS, UNITS), float))
    outlier = a.copy()
    outlier[:, 0] *= 30
    counts = 2 ** np.arange(2, 10)
    errors = {
        name: [float(np.sqrt(np.mean((estimate(units, k) / estimate(units, UNITS) - 1) ** 2))) for k in counts[:-1]]
        for name, units in (("Gaussian units", a), ("one unit 30 times larger", outlier))
    }
    shares = counts[:-1] / UNITS
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for (name, values), marker in zip(errors.items(), "os", strict=True):
            axis.loglog(shares, values, marker=marker, color=series_colour("os".index(marker)), label=name)
        axis.loglog(
            shares,
            np.sqrt(2 / counts[:-1] * (1 - shares)),
            color=style.INK,
            ls=":",
            label="√(2/k), less the share that is seen",
        )
        axis.set(xlabel="share of the units, k/H", ylabel="relative error of rms²", ylim=(0.03, 2000))
        axis.legend()
        lg.plots.save(
            figure,
            out / "zhang2019",
            {"shares": shares.tolist(), "errors": errors},
            title="The rms of a part of the units is that of all only where units are alike",
            caption="pRMSNorm: relative error of the mean square of the first k of 512 units, over 2000 draws. One "
            "large unit among the first makes the error a hundred times as large at k/H = 1/100.",
        )
