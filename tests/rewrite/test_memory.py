"""A rewrite needs memory for some arrays, not for the model."""

import pytest
from analysis.benchmarks.rewrite_large import measure


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_checkpoint(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    small = measure(tmp_path / "small", 0.03, width=512, vocabulary=2000)
    large = measure(tmp_path / "large", 0.1, width=512, vocabulary=2000)
    assert small["passed"]
    assert large["passed"]
    assert large["peak"] - small["peak"] < 0.5 * (large["bytes"] - small["bytes"])
