"""Ziomek, Whittle and Osborne (2025): the kernel along a ray, and towards the weakest direction of the first layer."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.ziomek2025 import directions, random_weights, variances, weakest_path
from lngeom.plots import style

SHAPES = ((8, 5), (6, 5), (5, 5), (8, 12))


def draw(out: Path) -> None:
    """Draws Θ(x, x) against the scale of x, and against its distance from the weakest direction."""
    problem = Problem(jnp.zeros((1, 1)))
    scales, distances = np.logspace(0, 4, 17), np.logspace(-5, -1, 17)
    w, x = random_weights(problem), directions(problem, 1)
    names = {
        "none": "no norm",
        "input": "norm of the input",
        "first": "of the first layer",
        "last": "of the last layer",
    }
    rays = {label: variances(w, scales[:, None] * x, place) for place, label in names.items()}
    weakest = {
        f"H = {units}, D = {inputs}": variances(*weakest_path(problem, units, inputs, tuple(distances)), "first")
        for units, inputs in SHAPES
    }
    with lg.plots.figure(1, 2, height=2.8) as (figure, axes):
        looks = ({"color": style.COLOUR_OF["none"], "linestyle": "-"}, *style.STYLE["axes.prop_cycle"])
        for (name, values), look in zip(rays.items(), looks, strict=False):
            axes[0, 0].loglog(scales, values, label=name, **look)
        axes[0, 0].set(xlabel="scale of the input", ylabel="Θ(x, x)", title="along a ray, H = 200, D = 5")
        for (name, values), look in zip(weakest.items(), style.STYLE["axes.prop_cycle"], strict=False):
            axes[0, 1].loglog(distances, values, label=name, **look)
        axes[0, 1].set(xlabel="distance from the weakest direction of PW¹", title="norm of the first layer")
        for axis in axes[0]:
            axis.legend()
        lg.plots.save(
            figure,
            out / "ziomek2025",
            {"scales": scales, "rays": rays, "distances": distances, "weakest": weakest},
            caption="Random networks of two hidden ReLU layers without biases. Θ is the neural tangent kernel.",
            title="One norm bounds the kernel along every ray, but not near the null space of PW¹",
        )
