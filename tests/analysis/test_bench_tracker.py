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
def test_every_variant_is_timed_and_compared_with_the_plain_step(loop):
    start = time.perf_counter()
    measured = {m.variant: m for m in bench.measure((4, 8, 8, 3), loop, 2)}
    longest = 1e3 * (time.perf_counter() - start)
    assert list(measured) == list(bench.variants())
    assert all(0 < m.milliseconds < longest for m in measured.values())
    assert measured["plain"].overhead == 0
    assert (measured["tracked"].copied is None) == (loop != bench.LOOPS[0])


def test_copies_are_counted_in_bytes():
    def swapped(a, b):
        return b, a

    arguments = (jnp.ones((8, 3), jnp.float32), jnp.zeros((8, 3), jnp.float32))
    program = jax.jit(swapped, donate_argnums=(0, 1)).lower(*arguments).compile()
    assert bench.copied_bytes(program) >= 2 * 96  # neither can be written before the other is read
    assert bench.copied_bytes(program) % 96 == 0
    assert bench.copied_bytes(jax.jit(lambda a: a + 1).lower(arguments[0]).compile()) == 0
