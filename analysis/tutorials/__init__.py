"""Tutorials, one for each door: scripts that say what they do and check what they say."""
