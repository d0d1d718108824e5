"""The audited papers: `ba2016`, training of networks, the extended table and derivatives, experiments, and the gallery.

It may import `_core`, `claims`, `families`, `information`, `methods`, `nn`, `symbolic`, `training`, `transformers`.
"""
