"""Figures of results; the only room that imports matplotlib. Nothing here computes."""

from lngeom.plots._style import COLOURS as COLOURS, figure as figure, save as save
