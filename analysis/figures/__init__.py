"""Figures of the audit, drawn again from their data."""
