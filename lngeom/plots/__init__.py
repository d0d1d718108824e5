"""Figures of results; the only room that imports matplotlib. Nothing here computes."""

from lngeom.plots._style import COLOURS as COLOURS, figure as figure, save as save
from lngeom.plots.training import training_geometry as training_geometry
