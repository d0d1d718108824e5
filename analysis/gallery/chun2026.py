"""The learning coefficient of the layer after a normalization, against the number of samples."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.chun2026 import OUTPUTS, WIDTH, coefficient, draw_inputs, gain_and_bias, layer_norm, rms_norm

from analysis.gallery import series_colour

BIASES = (0.1, 0.01)


def draw(out: Path) -> None:
    """Draws the slope of the posterior's volume for layer norm without and with bias, and for RMSNorm."""
    problem = Problem(jnp.ones((1, 1)))  # for its seed
    x = draw_inputs(problem)
    _, bias = gain_and_bias(problem)
    unit = bias / np.sqrt(np.mean(bias**2))
    points = {"RMS norm": rms_norm(x)}
    points |= {f"layer norm, bias of rms {size:g}": layer_norm(x) + size * unit for size in BIASES}
    points["layer norm, no bias"] = layer_norm(x)
    samples = np.geomspace(1, 1e8, 120)
    found = {name: np.array([coefficient(p, count) for count in samples]) for name, p in points.items()}
    full, low = found["RMS norm"][-1], found["layer norm, no bias"][-1]
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for colour, dashes, (name, slope) in zip((3, 4, 2, 0), ("-", "--", "-.", "-"), found.items(), strict=True):
            axis.plot(samples, slope, color=series_colour(colour), linestyle=dashes, label=name)
        axis.set(
            xscale="log",
            xlabel="samples n",
            ylabel="learning coefficient",
            ylim=(OUTPUTS * (WIDTH - 2) / 2, full + 0.3),
        )
        figure.legend(loc="outside lower center", ncols=1)
        lg.plots.save(
            figure,
            out / "chun2026",
            {"samples": samples, **found},
            title=f"Layer norm lowers the coefficient from {full:.1f} to {low:.1f}; a learned bias restores it",
            caption=f"Slope of ½ log det(I + nF) in log n for a linear layer with {OUTPUTS} outputs after {WIDTH} "
            "normalized units. A small bias is seen from about 1/λ samples on, with λ the least eigenvalue.",
        )
