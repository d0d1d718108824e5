"""Tests of planted faults in claims of the gallery: the thorough tier."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    """Every test of this folder is thorough."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.thorough)
