"""Laws of optimizers as recursions of one entry: gradients x_t ↦ steps u_t, in units of −η."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def momentum(x: np.ndarray, beta: float, ahead: bool = False) -> np.ndarray:
    """m ← βm + x; a step is m, or x + βm where it looks ahead (Nesterov)."""
    m = np.array([sum(beta ** (t - s) * x[s] for s in range(t + 1)) for t in range(len(x))])
    return x + beta * m if ahead else m


def adam(x: np.ndarray, b1: float, b2: float) -> np.ndarray:
    """Averages of x and x², with their bias corrected: m̂/√v̂."""
    m, v, found = 0.0, 0.0, []
    for t, value in enumerate(x, 1):
        m, v = b1 * m + (1 - b1) * value, b2 * v + (1 - b2) * value**2
        found.append(m / (1 - b1**t) / math.sqrt(max(v / (1 - b2**t), 1e-300)))
    return np.array(found)


def rmsprop(x: np.ndarray, b2: float) -> np.ndarray:
    """The gradient over the root of an average of its squares, which starts at 0."""
    v, found = 0.0, []
    for value in x:
        v = b2 * v + (1 - b2) * value**2
        found.append(value / math.sqrt(max(v, 1e-300)))
    return np.array(found)


def lion(x: np.ndarray, b1: float, b2: float) -> np.ndarray:
    """The sign of β₁m + (1 − β₁)x, with m an average by β₂."""
    m, found = 0.0, []
    for value in x:
        found.append(np.sign(b1 * m + (1 - b1) * value))
        m = b2 * m + (1 - b2) * value
    return np.array(found)


@dataclass(frozen=True)
class Recursion:
    """A law of one entry.

    Attributes:
        law: its name.
        of: x and the β's ↦ u.
        starts: values of the β's from which a fit begins.
        power: of the size of the gradient.
        remark: why no equilibrium is predicted, or "".
    """

    law: str
    of: Callable[..., np.ndarray]
    starts: tuple[tuple[float, ...], ...]
    power: float
    remark: str = ""


RECURSIONS = (
    Recursion("sgd", lambda x: x, ((),), 2.0),
    Recursion("momentum", momentum, ((0.9,), (0.5,)), 2.0),
    Recursion(
        "momentum",
        functools.partial(momentum, ahead=True),
        ((0.9,), (0.5,)),
        2.0,
        "no equilibrium of Nesterov momentum is known in closed form",
    ),
    Recursion("rmsprop", rmsprop, ((0.9,), (0.99,)), 1.0),
    Recursion("adamw", adam, ((0.9, 0.999), (0.9, 0.95), (0.0, 0.99), (0.5, 0.5)), 1.0),
)
"""Laws that are fitted to responses, those with fewer β's first."""
