"""The audited papers: `ba2016`, training of normalized networks, the extended table, experiments, and the gallery.

It may import `_core`, `claims`, `families`, `information`, `methods`, `nn`, `symbolic`, `training`, `transformers`.
"""
