"""Planted faults: which claims of the audit and which tests notice them."""
