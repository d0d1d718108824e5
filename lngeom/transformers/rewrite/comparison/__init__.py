"""Comparing two transformers: whether they are one function, and the first part that differs, with its cause."""
