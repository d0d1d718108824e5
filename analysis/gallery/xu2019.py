"""The gradient behind layer norm, with and without the derivatives of its statistics."""

from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.xu2019 import backward
from lngeom.plots import style

from analysis.gallery import series_colour

SERIES = {
    "layer norm": (True, True),
    "μ detached": (False, True),
    "σ detached": (True, False),
    "both detached": (False, False),
}
"""Which derivatives are taken: of the mean, of the scale."""
SHOWN = dict(zip(SERIES, ("o", "x", "s", "+"), strict=True))


def draw(out: Path) -> None:
    """Draws mean and variance of the gradient against those that arrive."""
    data = {}
    with jax.enable_x64(True):
        problem = Problem(jnp.zeros((1, 1)))
        for name, (mean, scale) in SERIES.items():
            g, b, y, sigma = map(np.asarray, backward(problem, mean=mean, scale=scale))
            data[name] = {
                "mean": b.mean(1) * sigma,
                "variance": b.var(1) * sigma**2 / g.var(1),
                "arriving": g.mean(1),
                "share": np.mean(g * y, 1) ** 2 / g.var(1),
            }
    with lg.plots.figure(1, 2, width="page", height=2.7) as (figure, axes):
        means, variances = axes[0]
        for k, (name, found) in enumerate(data.items()):
            look = {"marker": SHOWN[name], "ls": "", "color": series_colour(k), "mfc": "none", "label": name}
            means.plot(found["arriving"], found["mean"], **look)
            variances.plot(found["share"], found["variance"], **look)
        line = np.array([-1.0, 1.0])
        for axis, x, y in ((means, line, line), (means, line, 0 * line), (variances, [0, 1], [1, 0])):
            axis.plot(x, y, color=style.GUIDE, lw=0.8, ls="-", zorder=0)
        variances.axhline(1, color=style.GUIDE, lw=0.8, zorder=0)
        means.set(xlabel="mean ḡ of the arriving gradient", ylabel="mean of ∂ℓ/∂x, times σ")
        variances.set(xlabel=r"$c^2/D_g$, share of its variance along y", ylabel="variance of ∂ℓ/∂x, times $σ^2/D_g$")
        means.legend()
        lg.plots.save(
            figure,
            out / "xu2019",
            data,
            title="The derivative of μ centres the gradient, that of σ takes out exactly its part along y",
            caption="60 random cases with 9 units and a random arriving gradient. Lines: mean ḡ and 0 (left), variance "
            "1, or 1 less the share along y (right). The bound of the paper is the horizontal line at 1.",
            configuration={"cases": 60, "units": 9, "seed": 0},
        )
