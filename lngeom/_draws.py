"""Random numbers of small arrays, without a program for each shape.

A number that JAX draws depends on the key and on its place alone, with `jax_threefry_partitionable`, its default. So
the arrays of all shapes begin one draw, and share its program.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from lngeom._types import is_concrete, is_tracing

MANY = 64, 4096
"""Numbers that are drawn at a time, the fewest that are enough; larger arrays have programs of their own."""


def draw_small(
    draw: Callable[..., Array], key: PRNGKeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike, *more: Any
) -> Array:
    """The result of `draw(key, shape, dtype, *more)`; `draw` is `jax.random.normal`, for example.

    Where the key was put on a device, the numbers are drawn there, by a program of their own.
    """
    size = math.prod(shape)
    by_place = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    placed = not is_concrete(key) or is_tracing() or getattr(key, "committed", False)
    many = next((many for many in MANY if size <= many), None) if isinstance(size, int | np.integer) else None
    if placed or many is None or not by_place:
        return draw(key, shape, dtype, *more)
    # device_put compiles nothing; jnp.asarray of a NumPy array compiles a program for each shape
    return jax.device_put(np.asarray(_drawn(draw, key, many, dtype, more))[:size].reshape(shape))


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def _drawn(draw, key, many, dtype, more):
    return draw(key, (many,), dtype, *more)
