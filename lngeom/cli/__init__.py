"""The `lngeom` command. It alone prints and exits.

It may import every package.
"""
