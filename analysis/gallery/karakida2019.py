"""Karakida, Akaho and Amari (2019): the largest eigenvalue of the Fisher matrix against the width."""

from pathlib import Path

import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery.karakida2019 import (
    MANY,
    WIDTHS,
    as_it_is,
    batch_normalized,
    centred,
    divided,
    exponent,
    few_inputs,
    layer_norm,
    proportional,
    sharpness,
)
from lngeom.plots import style


def draw(out: Path) -> None:
    """Draws λ_max against M without and with normalization."""
    problem = Problem(jnp.zeros((1, 1)))
    values = {
        "none": sharpness(problem, proportional, as_it_is),
        "hidden layer norm": sharpness(problem, proportional, as_it_is, hidden=layer_norm),
        "last layer: division only": sharpness(problem, proportional, divided, seeds=MANY),
        "last layer: batch norm, 10 inputs": sharpness(problem, few_inputs, batch_normalized),
        "last layer: batch norm": sharpness(problem, proportional, batch_normalized, seeds=MANY),
        "last layer: mean subtraction only": sharpness(problem, proportional, centred),
        "hidden layer norm, last mean subtraction": sharpness(problem, proportional, centred, hidden=layer_norm),
    }
    with lg.plots.figure(width="column", height=3.4) as (figure, axes):
        axis = axes[0, 0]
        looks = ({"color": style.COLOUR_OF["none"], "linestyle": "-"}, *style.STYLE["axes.prop_cycle"])
        for (name, found), marker, look in zip(values.items(), "osv^Dx+", looks, strict=False):
            label = f"{name} ({exponent(found)[0]:+.2f})"
            axis.loglog(WIDTHS, np.exp(np.log(found).mean(0)), marker=marker, label=label, **look)
        axis.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
        axis.minorticks_off()
        axis.set(xlabel="width M = number of samples = number of inputs", ylabel=r"largest eigenvalue of $F$")
        figure.legend(loc="outside lower center", ncols=1)
        lg.plots.save(
            figure,
            out / "karakida2019",
            {"widths": WIDTHS, "largest eigenvalue": values},
            caption="Random ReLU networks with two hidden layers; geometric means over networks. In brackets: the "
            "fitted exponent in M.",
            title="Mean subtraction in the last layer removes the sharpness, if the inputs' dimension grows too",
        )
