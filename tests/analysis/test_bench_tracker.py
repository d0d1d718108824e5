"""The benchmark measures what it says, on a size that takes no time."""

import time

import jax
import jax.numpy as jnp
import pytest
from analysis.benchmarks import bench_tracker as bench


@pytest.fixture(autouse=True)
def _optax_promotes():
    """optax's Adam raises a float to an integer count."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("loop", bench.LOOPS)
@pytest.mark.parametrize("variant", bench.variants())
def test_a_variant_is_compared_with_the_plain_step(loop, variant):
    start = time.perf_counter()
    milliseconds, overhead, copied = bench.compare((4, 8, 8, 3), loop, variant, 2)
    assert 0 < milliseconds < 1e3 * (time.perf_counter() - start)
    assert overhead > -1
    assert (copied is None) == (loop != bench.LOOPS[0])


def test_a_measurement_takes_the_median_of_new_processes():
    measured = bench.measure((4, 8, 3), bench.LOOPS[0], "plain, again", 1, 2)
    assert len(measured.overheads) == 2
    assert min(measured.overheads) <= measured.overhead <= max(measured.overheads)


def test_copies_are_counted_in_bytes():
    def swapped(a, b):
        return b, a

    arguments = (jnp.ones((8, 3), jnp.float32), jnp.zeros((8, 3), jnp.float32))
    program = jax.jit(swapped, donate_argnums=(0, 1)).lower(*arguments).compile()
    assert bench.copied_bytes(program) >= 2 * 96  # neither can be written before the other is read
    assert bench.copied_bytes(program) % 96 == 0
    assert bench.copied_bytes(jax.jit(lambda a: a + 1).lower(arguments[0]).compile()) == 0
