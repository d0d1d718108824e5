"""Brody, Alon and Yahav (2023): unselectable keys in heads of any width."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
from lngeom.claims import Problem
from lngeom.papers.gallery.brody2023 import COUNT, WIDE, share_unselectable
from lngeom.plots import style

HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 32)
SEEDS = range(5)


def draw(out: Path) -> None:
    """Draws the share of unselectable keys against the width of the head."""
    shares = [share_unselectable(Problem(jnp.zeros((1, 1)), seed=seed), HEADS) for seed in SEEDS]
    mean = [sum(column) / len(shares) for column in zip(*shares, strict=True)]
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for seed, share in zip(SEEDS, shares, strict=True):
            axis.plot(HEADS, share, ".", color=style.GUIDE, label="one draw of keys" if not seed else None)
        axis.plot(HEADS, mean, "-", color=style.COLOUR_OF["layer norm"], label=f"mean of {len(shares)} draws")
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
        axis.set(xlabel="width of the head $d_h$", ylabel="share of unselectable keys", ylim=(-0.03, 1.03))
        axis.legend()
        lg.plots.save(
            figure,
            out / "brody2023",
            {"heads": HEADS, "shares": shares},
            caption=f"{COUNT} layer-normalized Gaussian keys of {WIDE} dimensions after a random projection. A key "
            "is unselectable if it is a convex combination of the others.",
            title="Narrow heads bring unselectable keys back",
        )
