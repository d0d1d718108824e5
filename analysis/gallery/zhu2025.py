"""Layer norm's outputs against its inputs for tokens of one scale and of different scales."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.zhu2025 import best_fit, inverse_root, layer_norm, tokens

from analysis.gallery import series_colour

PANELS = {"tokens of one scale": 0.0, "log-normal scales": 0.7}
CURVES = {"DyT": (np.tanh, 1, "--"), "elementwise LN": (inverse_root, 2, "-.")}


def draw(out: Path) -> None:
    """Draws entries of 12 tokens as lines, and the best fits of both curves to all tokens."""
    problem = Problem(jnp.ones((1, 1)))  # for its seed
    line = np.linspace(-8, 8, 201)
    data = {}
    with lg.plots.figure(1, 2, width="page", sharey=True) as (figure, axes):
        for axis, (name, spread) in zip(axes[0], PANELS.items(), strict=True):
            x = tokens(problem, spread)
            y = layer_norm(x)
            for token, output in zip(x[:12], y[:12], strict=True):
                axis.plot(token, output, ".", ms=1.5, color=series_colour(4))
            data[name] = {"x": x[:12, :100], "y": y[:12, :100]}
            for label, (curve, colour, dashes) in CURVES.items():
                fit = best_fit(curve, x, y)
                axis.plot(
                    line, fit.gain * curve(fit.alpha * line), color=series_colour(colour), linestyle=dashes, label=label
                )
                data[name][label] = fit._asdict()
            axis.set(title=name, xlabel="input x", xlim=(-8, 8), ylim=(-4.5, 4.5))
        axes[0, 0].set_ylabel("output y of layer norm")
        axes[0, 0].plot([], [], ".", ms=4, color=series_colour(4), label="entries of 12 tokens")
        axes[0, 0].legend(loc="upper left")
        lg.plots.save(
            figure,
            out / "zhu2025",
            data,
            title="The S comes from tokens of different scale: each token is a straight line",
            caption="Layer norm of Gaussian tokens, with the best fits of α and a gain to 1000 tokens. Left, all "
            "tokens have the same line. Right, large inputs belong to tokens of large scale, whose lines are flat.",
        )
