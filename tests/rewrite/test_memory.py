"""A rewrite needs memory for some arrays, not for the model."""

import pytest
from analysis.benchmarks.rewrite_large import measure


@pytest.mark.slow
def test_a_checkpoint_is_rewritten_in_less_memory_than_it_has(tmp_path):
    found = measure(tmp_path, 0.75, width=1024, vocabulary=8000)
    assert found["passed"]
    assert found["bytes"] > 0.75 * 2**30
    assert found["peak"] - found["base"] < 0.5 * found["bytes"]
