"""The angle of a step of AdamW's linear model at equilibrium, against the exact law and its approximation."""

from pathlib import Path

import lngeom as lg
import numpy as np
from lngeom.papers.gallery.wen2026 import cosine, walk
from lngeom.plots import style

from analysis.gallery import series_colour

STRENGTHS = (0.01, 0.03, 0.1, 0.25, 0.5)


def small(strengths, beta: float) -> np.ndarray:
    """The approximation √(2ηλ(1 − β)/(1 + β))."""
    return np.sqrt(2 * np.asarray(strengths) * (1 - beta) / (1 + beta))


def draw(out: Path) -> None:
    """Draws the angle over its approximation against ηλ for three β."""
    line = np.geomspace(STRENGTHS[0], STRENGTHS[-1], 60)
    data: dict[str, object] = {"product ηλ": STRENGTHS}
    with lg.plots.figure(width="column", height=2.8) as (figure, axes):
        axis = axes[0, 0]
        for k, beta in enumerate((0.0, 0.5, 0.9)):
            angles = np.arccos([walk(0, strength, beta).cosine for strength in STRENGTHS])
            exact = np.arccos([cosine(1 - strength, beta) for strength in line])
            look = {"color": series_colour(k)}
            axis.semilogx(STRENGTHS, angles / small(STRENGTHS, beta), "os^"[k], ls="", label=f"β = {beta:g}", **look)
            axis.semilogx(line, exact / small(line, beta), ls="-", lw=1, **look)
            data[f"angle, β = {beta:g}"] = angles
        axis.axhline(1, color=style.GUIDE, ls=":", lw=1)
        axis.set(xlabel="ηλ", ylabel="angle over √(2ηλ(1 − β)/(1 + β))", xticks=STRENGTHS)
        axis.set_xticks(STRENGTHS, [f"{strength:g}" for strength in STRENGTHS])
        axis.minorticks_off()
        axis.legend()
        lg.plots.save(
            figure,
            out / "wen2026",
            data,
            title="The exact law of the angle holds at every ηλ, the approximation at small ones",
            caption="Weights under random gradients with momentum β and weight decay at equilibrium; 20 000 weights, "
            "so that a point has a standard error of 0.7 %. Lines: cos θ = (α + β)/(1 + αβ), α = 1 − ηλ.",
            configuration={"size": 20_000, "seed": 0},
        )
