"""Conditions under which a prediction is exact."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Condition:
    """A condition of the theory, checked on the model and data at hand.

    Attributes:
        name: what is required.
        holds: whether it is so here.
        detail: the numbers it was judged by.
    """

    name: str
    holds: bool
    detail: str
