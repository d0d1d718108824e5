r"""Scaling laws of optimizers: the powers of c that keep a trajectory under W → cW.

A loss that is invariant to the scale of W has $\nabla L(cW) = c^{-1}\nabla L(W)$. Suppose that an optimizer's step from
cW, with η multiplied by $c^p$, is c times its step from W. Then its effective learning rate is $\eta / \|W\|^p$.
"""

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np

from lngeom._core.types import is_concrete


@dataclass(frozen=True)
class Law:
    """Powers of c by which the hyperparameters of an optimizer are multiplied when the weights are multiplied by c.

    Attributes:
        rate: of the learning rate; the effective learning rate is η/‖w‖ to this power.
        decay: of the weight decay.
        eps: of the constant in the denominator (the damping, for the natural gradient).
        decoupled: whether weight decay is added to the update, and not to the gradient.
    """

    rate: int
    decay: int
    eps: int = 0
    decoupled: bool = False


LAWS: dict[str, Law] = {
    "sgd": Law(2, -2),
    "momentum": Law(2, -2),
    "adam": Law(1, -1, -1, decoupled=True),
    "adamw": Law(1, -1, -1, decoupled=True),
    "adam_l2": Law(1, -2, -1),
    "lion": Law(1, -1, decoupled=True),
    "muon": Law(1, -1, -1, decoupled=True),
    "normalized_gd": Law(1, -1, -1, decoupled=True),
    "rmsprop": Law(1, -1, -2, decoupled=True),
    "adaptive": Law(1, -1, -1, decoupled=True),
    "lars": Law(0, -2, -1),
    "lamb": Law(0, -1, -1, decoupled=True),
    "natural_gradient": Law(0, 0, -2, decoupled=True),
}
"""The laws by optimizer, with its usual weight decay. "rmsprop" has ε inside the root, as in optax, and
no momentum. "adaptive" is any other optimizer that is independent of the size of the gradient, such as Adafactor. Only
its effective learning rate is known."""


def law_of(optimizer: str) -> Law:
    """The law of an optimizer.

    Args:
        optimizer: one of `LAWS`.

    Returns:
        Its powers of c.

    Raises:
        ValueError: if the optimizer is unknown. The message names the known ones.
    """
    if optimizer not in LAWS:
        near = difflib.get_close_matches(str(optimizer), LAWS, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"no law is known for the optimizer {optimizer!r}{hint}; known are {', '.join(LAWS)}")
    return LAWS[optimizer]


def _number(name: str, value: Any) -> float:
    """A number of NumPy or JAX."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "iuf":
        scheduled = " or a schedule" if name in SCHEDULED else ""
        raise ValueError(f"{name} must be a number{scheduled}; got {value!r}")
    return float(array)


SCHEDULED = {"learning_rate", "weight_decay"}
"""Settings that may be functions of the step."""


def check_settings(**values: Any) -> None:
    """Checks hyperparameters that are numbers (schedules and traced values pass).

    Args:
        **values: by name; `momentum`, `b1` and `b2` must lie in [0, 1), the others be at least 0.

    Raises:
        ValueError: if one is no number, or out of its range; the message names it.
    """
    for name, given in values.items():
        if callable(given) or not is_concrete(given):
            continue
        value = given if isinstance(given, int | float) and not isinstance(given, bool) else _number(name, given)
        if name in {"momentum", "b1", "b2"} and not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1); got {value}")
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0; got {value}")
