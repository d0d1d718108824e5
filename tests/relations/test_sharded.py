"""Samples divided over several devices have the matrix, the products and the solutions of one device."""

import subprocess
import sys

import pytest
from hypothesis import settings

from tests.devices import environment_with


@pytest.mark.relation
@pytest.mark.thorough
@pytest.mark.thorough
def test_samples_on_several_devices_have_the_matrix_of_one():
    draws = 30 if settings.get_current_profile_name() == "thorough" else 5
    command = [sys.executable, "-m", "tests.relations.sharded", str(draws)]
    found = subprocess.run(command, env=environment_with(devices=4), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
