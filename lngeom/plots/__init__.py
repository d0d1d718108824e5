"""Figures of results. Only this package imports matplotlib, and it computes no results."""

from lngeom.plots.geometry import block_scaling, line_elements, printed_against_exact, spectra
from lngeom.plots.invariance import invariance_table
from lngeom.plots.style import COLOURS, figure, save
from lngeom.plots.training import training_geometry

__all__ = [
    "COLOURS",
    "block_scaling",
    "figure",
    "invariance_table",
    "line_elements",
    "printed_against_exact",
    "save",
    "spectra",
    "training_geometry",
]
