r"""Symmetries that only an ε in a normalizer breaks, found by the law of their forms.

Scaling the weights before a normalizer by δ acts as ε → ε/δ². The form along the logarithm of that scale is
$E[(\varepsilon/\sigma^2)^2 \dots] \propto \varepsilon^2$, so it falls as δ⁻⁴: almost null, but not null, and what a
solve divides by.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._types import GLMParameters
from lngeom.information._problem import Problem, leaf_paths
from lngeom.information._pullback import GLMFunction
from lngeom.information._spectrum import SMALL
from lngeom.information._streaming import at_parameters
from lngeom.normalizers import AbstractGroupedNormalizer


class BrokenDirection(NamedTuple):
    """A symmetry that only an ε in a normalizer breaks.

    Attributes:
        name: the symmetry.
        form: vᵀFv for the unit vector v along it, relative to the largest eigenvalue.
        exponent: p in vᵀFv ∝ ε^p, found by scaling the leaf (ε acts as ε/δ²); 2 by theory.
    """

    name: str
    form: float
    exponent: float


def broken_symmetries(
    operator: Any, identifiable: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " P"]]
) -> Iterator[tuple[BrokenDirection, Float[np.ndarray, " P"]]]:
    """Scales of weights whose form falls as δ⁻⁴ when they grow by δ: what ε/δ² in a variance does.

    Args:
        operator: a Fisher operator, with concrete arrays.
        identifiable: v ↦ its part outside the null space, whose directions are left out.

    Yields:
        Each direction, and its unit vector.
    """
    problem = operator.problem
    close = float(jnp.finfo(problem.dtype).eps) ** 0.4
    largest = None
    for name, direction in _scales(problem):
        norm = np.linalg.norm(direction)
        unit = direction / norm if norm else direction
        if not norm or np.linalg.norm(identifiable(unit)) < close:
            continue
        first, second = (_scale_form(operator, direction, delta) for delta in (1.0, 2.0))
        if not first > 0 or not second > 0:
            continue
        exponent = math.log2(first / second) / 2
        if abs(exponent - 2) < 0.2:
            largest = _largest_eigenvalue(operator) if largest is None else largest
            yield BrokenDirection(f"scale of {name}", first / float(norm) ** 2 / largest, exponent), unit


def _scales(problem: Problem) -> Iterator[tuple[str, Float[np.ndarray, " P"]]]:
    """Weights that may go through a normalizer together: a matrix, one with its bias, one of a GLM's groups."""
    values = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(problem.params)]
    names = leaf_paths(problem.params)

    def ravelled(parts: dict[int, np.ndarray]) -> np.ndarray:
        return np.concatenate([parts.get(k, np.zeros_like(v)).reshape(-1) for k, v in enumerate(values)])

    for i, matrix in enumerate(values):
        if matrix.ndim < 2:
            continue
        yield names[i], ravelled({i: matrix})
        for j, vector in enumerate(values):
            siblings = names[i].rpartition(".")[0] == names[j].rpartition(".")[0]
            if vector.ndim == 1 and siblings and len(vector) in matrix.shape and vector.any():
                yield f"{names[i]} and {names[j]}", ravelled({i: matrix, j: vector})
    model = problem.model
    if (
        isinstance(model, GLMFunction)
        and isinstance(problem.params, GLMParameters)
        and problem.params.weights is not None
    ):
        normalizer = model.model.normalizer
        groups = normalizer.group_count if isinstance(normalizer, AbstractGroupedNormalizer) else 1
        for k in range(groups if groups > 1 else 0):
            rows = np.zeros_like(values[0])
            size = len(rows) // groups
            rows[k * size : (k + 1) * size] = values[0][k * size : (k + 1) * size]
            yield f"weights in group {k}", ravelled({0: rows})


def _scale_form(operator: Any, direction: Float[np.ndarray, " P"], delta: float) -> float:
    """The form along the logarithm of a scale, where these weights are δ times as large."""
    problem = operator.problem
    change = jnp.asarray(direction, problem.dtype)
    there = problem.unravel(problem.ravel(problem.params) + (delta - 1) * change)
    return float(operator.at_problem(at_parameters(problem, there)).quadratic_form(problem.unravel(delta * change)))


def _largest_eigenvalue(operator: Any) -> float:
    return float(operator.eigenvalues(1, steps=None if operator.in_size() <= SMALL else 10)[0])
