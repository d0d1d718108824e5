"""Tests of the gallery's papers: the thorough tier."""

from pathlib import Path

import jax
import pytest
from lngeom.claims import Problem


@pytest.fixture(scope="session")
def problem():
    """Small random data."""
    return Problem(jax.random.normal(jax.random.key(7), (60, 8), float))


def pytest_collection_modifyitems(items):
    """Every test of this folder is thorough."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.thorough)
