"""Figures of results. Only this package imports matplotlib. It computes nothing; `spectrum` asks an operator.

It may import `_core`, `claims`, `families`, `information`, `methods`, `training`.
"""

from lngeom.plots.invariance import invariance_table
from lngeom.plots.runs import training
from lngeom.plots.spectrum import spectrum
from lngeom.plots.style import COLOURS, figure, save

__all__ = [
    "COLOURS",
    "figure",
    "invariance_table",
    "save",
    "spectrum",
    "training",
]
