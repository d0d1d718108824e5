"""Random numbers: those of the library's own probes, and those of small arrays, without a program for each shape.

A number that JAX draws depends on the key and on its place alone, with `jax_threefry_partitionable`, its default. So
a small array of any shape is the beginning of one of three draws, whose programs all of them share.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from lngeom._core.types import is_concrete, is_tracing

OWN = 0x6C6E67656F6D
"""In every seed of the library's own probes. Users draw weights and inputs from seeds such as 0."""


def probe_generator(*seed: int) -> np.random.Generator:
    """For numbers that are compared with a user's: a direction that equals the weights, say, would prove nothing."""
    return np.random.default_rng([OWN, *seed])


def probe_key(seed: int = 0) -> PRNGKeyArray:
    """The same for numbers that JAX draws."""
    return jax.random.fold_in(jax.random.key(OWN % 2**32), seed)


SIZES = 64, 1024, 4096
"""Numbers that are drawn at a time: an array takes the first size that is enough, and a larger one its own program."""


def draw_small(
    draw: Callable[..., Array], key: PRNGKeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike, *more: Any
) -> Array:
    """The result of `draw(key, shape, dtype, *more)`; `draw` is `jax.random.normal`, for example.

    Where the key was put on a device, the numbers are drawn there, by a program of their own.
    """
    count = math.prod(shape)
    enough = [size for size in SIZES if count <= size]
    is_integer = isinstance(count, int | np.integer)  # if not, JAX says what is wrong
    by_place = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    here = is_concrete(key) and not is_tracing() and not getattr(key, "committed", False)
    if not (enough and is_integer and by_place and here):
        return draw(key, shape, dtype, *more)
    # device_put compiles nothing; jnp.asarray of a NumPy array compiles a program for each shape
    return jax.device_put(np.asarray(_drawn(draw, key, enough[0], dtype, more))[:count].reshape(shape))


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def _drawn(draw, key, size, dtype, more):
    return draw(key, (size,), dtype, *more)
