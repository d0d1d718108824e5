"""Norm of the weights at equilibrium against weight decay, under three optimizers."""

from pathlib import Path

import lngeom as lg
import numpy as np
from lngeom.papers.gallery.vanlaarhoven2017 import DECAYS, POWERS, stationary
from lngeom.plots.style import OPTIMIZERS

COLOUR_OF = dict(zip(POWERS, (OPTIMIZERS["SGD"], OPTIMIZERS["momentum"], OPTIMIZERS["Adam"]), strict=True))


def draw(out: Path) -> None:
    """Draws the norm against 1/λ with lines of the predicted slopes."""
    found = {name: stationary(name, seed=0) for name in POWERS}
    slopes = {name: -np.polyfit(np.log(DECAYS), np.log(norms), 1)[0] for name, norms in found.items()}
    with lg.plots.figure(width="column", height=3.0) as (figure, axes):
        axis = axes[0, 0]
        for k, (name, norms) in enumerate(found.items()):
            label = f"{name}: {slopes[name]:.3f} (law: 1/{round(1 / POWERS[name])})"
            axis.loglog(1 / DECAYS, norms, "os^"[k], ls="", color=COLOUR_OF[name], label=label)
            line = np.exp(np.mean(np.log(norms))) * (DECAYS / np.exp(np.mean(np.log(DECAYS)))) ** -POWERS[name]
            axis.loglog(1 / DECAYS, line, color=COLOUR_OF[name], lw=0.9, ls="-")
        axis.set(xlabel="1/λ", ylabel="norm of the weights at equilibrium")
        axis.set_xticks(1 / DECAYS, [f"{1 / d:g}" for d in DECAYS])
        axis.set_yticks([1, 1.5, 2, 2.5], ["1", "1.5", "2", "2.5"])
        axis.minorticks_off()
        axis.legend(title="power of 1/λ")
        lg.plots.save(
            figure,
            out / "vanlaarhoven2017",
            {"inverse decay": 1 / DECAYS, **found},
            title="At equilibrium the norm goes as λ to −1/4, −1/3 or −1/2, by optimizer",
            caption="Random walks with gradients that are orthogonal to the weights and of size 1/‖w‖, in 100 "
            "dimensions, η = 0.02. Lines: the laws.",
            configuration={"size": 100, "steps": 4000, "seed": 0, "rate": 0.02},
        )
