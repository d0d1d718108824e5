"""Figures of results. Only this package imports matplotlib. It computes nothing; `spectrum` asks an operator."""

from lngeom.plots.geometry import block_scaling, line_elements, printed_against_exact, spectra
from lngeom.plots.invariance import invariance_table
from lngeom.plots.runs import training
from lngeom.plots.spectrum import spectrum
from lngeom.plots.style import COLOURS, figure, save

__all__ = [
    "COLOURS",
    "block_scaling",
    "figure",
    "invariance_table",
    "line_elements",
    "printed_against_exact",
    "save",
    "spectra",
    "spectrum",
    "training",
]
