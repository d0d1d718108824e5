"""Readers of the data sets of the paper's experiments, from files on disk; nothing is downloaded."""
