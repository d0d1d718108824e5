r"""Scores: the Fisher matrix as an outer product of gradients, at sampled or at observed responses.

The score of an output is $s = \partial \log p(y \mid z)/\partial z = (y - E[y])/\phi$. With y drawn from the model
(Monte Carlo), $E[s s^\top] = \Lambda$ and the estimate is unbiased, with an error that falls as 1/√m; with observed y
it is the empirical Fisher, which is another matrix.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom.families import AbstractFamily


def score(family: AbstractFamily, z: Float[Array, "N *T C"], y: Array) -> Float[Array, "N *T C"]:
    """∂ log p(y | z)/∂z of each position.

    Args:
        family: the family.
        z: natural parameters.
        y: responses [N *T C]: the sufficient statistics of a joint family, or labels [N *T] where it has them.

    Returns:
        The scores.

    Raises:
        ValueError: if the shape of y is not one of those.
    """
    expected = [z.shape]
    if family.labels or (z.shape[-1] == 1 and not family.joint):
        expected.append(z.shape[:-1])
    if y.shape not in expected:
        raise ValueError(f"y must have shape {' or '.join(map(str, expected))} for outputs {z.shape}; got {y.shape}")
    if family.labels and y.shape != z.shape:
        y = jax.nn.one_hot(y.astype(int), z.shape[-1], dtype=z.dtype)
    return (y.reshape(z.shape).astype(z.dtype) - family.mean(z)) / family.dispersion


def sampled_scores(
    family: AbstractFamily, z: Float[Array, "N *T C"], key: PRNGKeyArray, samples: int
) -> Float[Array, "N m *T C"]:
    """Scores at m responses drawn for each sample; draw k depends on the key and on k alone."""

    def draw(k: Array) -> Array:
        return score(family, z, family.sample(jax.random.fold_in(key, k), z))

    return jnp.moveaxis(jax.vmap(draw)(jnp.arange(samples)), 0, 1)


def standard_error(operator: Any, statistic: Callable[[Any], PyTree]) -> PyTree:
    """Standard error of a linear function of a Monte Carlo estimate, from the spread of its draws.

    Args:
        operator: a Fisher operator.
        statistic: a linear function of it.

    Returns:
        Standard errors, of the shape of the statistic.

    Raises:
        ValueError: if the operator is not a Monte Carlo estimate from at least two draws.
    """
    scores = operator.problem.scores
    if operator.method != "monte_carlo" or scores.shape[1] < 2:
        raise ValueError("a standard error needs method='monte_carlo' with samples of at least 2")

    def one(draw: Array) -> PyTree:
        inputs, weights, _ = operator.problem.per_sample
        return statistic(operator.at_problem(operator.problem.with_samples((inputs, weights, draw[:, None]))))

    values = jax.lax.map(one, jnp.moveaxis(scores, 1, 0))
    return jax.tree.map(lambda v: jnp.std(v, 0, ddof=1) / scores.shape[1] ** 0.5, values)
