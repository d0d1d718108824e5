"""Figures of results. Only this package imports matplotlib, and it computes no results."""

from lngeom.plots._geometry import (
    block_scaling as block_scaling,
    line_elements as line_elements,
    printed_against_exact as printed_against_exact,
    spectra as spectra,
)
from lngeom.plots._invariance import invariance_table as invariance_table
from lngeom.plots._style import COLOURS as COLOURS, figure as figure, save as save
from lngeom.plots.training import training_geometry as training_geometry
