"""Figures of the papers of the gallery, one module a paper; each shows the main finding."""
