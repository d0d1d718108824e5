"""Statements that compare two ways of training, and what their verdicts rest on: steps to a target, and a sign test."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

SIGNIFICANCE = 0.05


def sign_test(successes: int, trials: int) -> float:
    r"""$P(K \ge k)$ for $K \sim \mathrm{Binomial}(n, 1/2)$, exactly.

    Args:
        successes: k.
        trials: n, ties left out.

    Returns:
        The probability.

    Example:
        >>> sign_test(5, 5)
        0.03125
    """
    return sum(math.comb(trials, k) for k in range(successes, trials + 1)) / 2**trials


def steps_to(
    steps: Int[np.ndarray, " E"], curve: Float[np.ndarray, " E"], target: float, *, lower_is_better: bool = True
) -> float:
    """Steps at the first evaluation that reaches a target; infinite where none does.

    Args:
        steps: steps at each evaluation.
        curve: values; NaN reaches nothing.
        target: the value to reach.
        lower_is_better: whether it is reached from above.

    Returns:
        The number of steps.
    """
    reached = curve <= target if lower_is_better else curve >= target
    return float(steps[np.argmax(reached)]) if reached.any() else math.inf


@dataclass(frozen=True)
class TrainingStatement:
    """What training runs are to show: that one arm of an experiment is faster than another, ends better, or as well.

    Attributes:
        claim: id of the claim that rests on it.
        text: the statement.
        paper: what the paper reports, in its words or numbers.
        treated: the arm the statement is about.
        baseline: the arm it is compared with.
        metric: the curve they are compared by.
        measure: "speed", the ratio of steps to a target; "best", the difference of best values; "equivalent", the same
            difference, which is to lie within a margin.
        lower_is_better: whether smaller values of the metric are better.
        target: value to reach; by default the best that both arms reach.
        bound: the ratio must lie below it.
        margin: of "equivalent", as a share of the baseline's improvement from step 0 to its best.
    """

    claim: str
    text: str
    paper: str
    treated: str
    baseline: str
    metric: str
    measure: Literal["speed", "best", "equivalent"] = "speed"
    lower_is_better: bool = True
    target: float | None = None
    bound: float = 1.0
    margin: float = 0.02

    def __post_init__(self) -> None:
        """Refuses a measure that does not exist."""
        if self.measure not in {"speed", "best", "equivalent"}:
            raise ValueError(
                f"the measure of {self.text!r} must be 'speed', 'best' or 'equivalent'; got {self.measure!r}"
            )

    @property
    def arms(self) -> tuple[str, str]:
        """Names of the two arms."""
        return self.treated, self.baseline

    @property
    def rule(self) -> str:
        """How it is decided, in words."""
        if self.measure != "speed":
            within = f", within {self.margin:.0%} of the improvement" if self.measure == "equivalent" else ""
            return f"difference of the best {self.metric}, {self.treated} against {self.baseline}{within}"
        goal = "the best that both reach" if self.target is None else f"{self.target:g}"
        return (
            f"steps to {self.metric} = {goal}, {self.treated} over {self.baseline}; stated to be below {self.bound:g}"
        )

    def as_json(self) -> dict[str, Any]:
        """The statement as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrainingStatement":
        """The statement that `as_json` gave; further entries are ignored.

        Args:
            values: entries of a JSON object.

        Returns:
            The statement.

        Raises:
            ValueError: if an entry is missing.
        """
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
        if missing:
            raise ValueError(f"a statement lacks {', '.join(missing)}")
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
