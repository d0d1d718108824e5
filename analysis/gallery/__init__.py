"""Figures of the gallery, one module a paper; each has `draw`."""
