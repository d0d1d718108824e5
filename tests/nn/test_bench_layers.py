"""The benchmark measures what it says, on a size that takes no time."""

import math
import time

import pytest
from analysis.benchmarks import bench_layers as bench

pytestmark = pytest.mark.optimized


def test_workers_are_timed_in_both_modes_and_compared_with_lngeom():
    start = time.perf_counter()
    measured = bench.measure(64, 32, "default", 1, ("copy", "lngeom"))
    longest = 1e3 * (time.perf_counter() - start)
    assert {(m.implementation, m.mode) for m in measured} == {
        ("copy", "forward"),
        ("lngeom", "forward"),
        ("lngeom", "forward and backward"),
    }
    assert all(0 < m.milliseconds < longest for m in measured)
    report = bench.Report(tuple(measured), {}, 1)
    assert report.ratio("lngeom", "forward", 64, 32, "default") == 1
    assert math.isnan(report.ratio("flax", "forward", 64, 32, "default"))
