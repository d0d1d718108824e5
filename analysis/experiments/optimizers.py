"""Optimizers of the reference code of Sections 6.1 and 6.3, which differ from those whose names they bear."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax


class ReferenceAdamState(NamedTuple):
    """Count of steps and both moments."""

    count: jax.Array
    first: optax.Updates
    second: optax.Updates


def reference_adam(rate: float, b1: float = 0.1, b2: float = 0.001, eps: float = 1e-8) -> optax.GradientTransformation:
    r"""Adam as the skip-thoughts and order-embeddings code has it.

    $m \leftarrow b_1 g + (1 - b_1) m$ and $v \leftarrow b_2 g^2 + (1 - b_2) v$, with the update
    $-\eta \frac{\sqrt{1 - b_2^t}}{1 - b_1^t} \frac{m}{\sqrt v + \epsilon}$: the corrections take $b$ for $1 - b$ and
    are all but 1, so that the early steps are up to 6.6 times those of Adam.

    Args:
        rate: η.
        b1: weight of the new gradient in m.
        b2: weight of its square in v.
        eps: ε.

    Returns:
        The optimizer.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return ReferenceAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(gradients, state, params=None):
        count = state.count + 1
        t = count.astype(jnp.float32)
        factor = rate * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        first = jax.tree.map(lambda m, g: b1 * g + (1 - b1) * m, state.first, gradients)
        second = jax.tree.map(lambda v, g: b2 * g * g + (1 - b2) * v, state.second, gradients)
        updates = jax.tree.map(lambda m, v: -factor.astype(m.dtype) * m / (jnp.sqrt(v) + eps), first, second)
        return updates, ReferenceAdamState(count, first, second)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def clip_each(norm: float) -> optax.GradientTransformation:
    """Scales each tensor of the gradient by itself to at most a norm, as the order-embeddings code does.

    Args:
        norm: the largest norm.

    Returns:
        The transformation.
    """

    def clip(g):
        size = jnp.sqrt(jnp.sum(jnp.square(g)))
        return g * jnp.where(size > norm, norm / jnp.where(size > 0, size, 1), 1)

    return optax.stateless(lambda updates, params: jax.tree.map(clip, updates))
