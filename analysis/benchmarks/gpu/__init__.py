"""Measurements on an accelerator: layer norm, precision, Fisher products and matrices."""
