r"""Which of two ways of training is faster, or ends better, told from paired runs and an exact sign test.

The measure of speed is the ratio of steps: those that a run needs to reach the best value of the baseline (or a
given target), over those that the baseline of the same seed needs. A run that never reaches it is censored: its
ratio is only known to exceed (all steps)/(steps of the baseline), which is all that a sign test asks for.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

SIGNIFICANCE = 0.05
LEAST_SEEDS = 5


Finding = Literal["SUPPORTED", "REFUTED", "UNDECIDED"]
"""What training runs say of a statement."""


@dataclass(frozen=True)
class TrainingComparison:
    """One arm against another, seed by seed.

    Attributes:
        values: ratio of steps, or difference of best values, below `bound` where the statement is true, [S]; where a
            run is censored, the bound that is known.
        censored: whether the treated run never reached the target, so that its value is a lower bound, [S].
        capped: whether the baseline never reached it, so that the value is an upper bound, [S].
        bound: what the values are held against.
        wins: seeds whose value is below the bound.
        losses: seeds whose value is above it.
        p_supports: probability of so many wins or more if each seed were a fair coin.
        p_refutes: probability of so many losses or more.
    """

    values: Float[np.ndarray, " S"]
    censored: Bool[np.ndarray, " S"]
    capped: Bool[np.ndarray, " S"]
    bound: float
    wins: int
    losses: int
    p_supports: float
    p_refutes: float

    @property
    def median(self) -> float:
        """Median of the values; a lower bound of it where censored runs reach the middle."""
        return float(np.median(self.values))

    @property
    def finding(self) -> Finding:
        """Supported or refuted where a one-sided sign test rejects at 5 % from five seeds or more."""
        if len(self.values) < LEAST_SEEDS:
            return "UNDECIDED"
        if self.p_supports <= SIGNIFICANCE:
            return "SUPPORTED"
        return "REFUTED" if self.p_refutes <= SIGNIFICANCE else "UNDECIDED"


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


def _compare(values, bound: float, at_least=None, at_most=None) -> TrainingComparison:
    """Counts the seeds that are known to lie below the bound and those known to lie above it."""
    at_least, at_most = (np.zeros(len(values), bool) if known is None else known for known in (at_least, at_most))
    wins = int(np.sum((values < bound) & ~at_least))
    losses = int(np.sum(((values > bound) & ~at_most) | (at_least & (values >= bound))))
    trials = wins + losses
    supports, refutes = sign_test(wins, trials), sign_test(losses, trials)
    return TrainingComparison(values, at_least, at_most, bound, wins, losses, supports, refutes)


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


def _best(curves: Float[np.ndarray, "S E"], lower_is_better: bool) -> Float[np.ndarray, " S"]:
    worst = math.inf if lower_is_better else -math.inf
    known = np.where(np.isnan(curves), worst, curves)
    return known.min(1) if lower_is_better else known.max(1)


def compare_speed(
    steps: Int[np.ndarray, " E"],
    treated: Float[np.ndarray, "S E"],
    baseline: Float[np.ndarray, "S F"],
    *,
    baseline_steps: Int[np.ndarray, " F"] | None = None,
    target: float | None = None,
    lower_is_better: bool = True,
    bound: float = 1.0,
) -> TrainingComparison:
    """Ratio of the steps that two arms need, seed by seed.

    Where the baseline never reaches a given target, it is taken to need one evaluation more than it had, which makes
    the ratio an upper bound; where neither reaches it, the pair is a tie.

    Args:
        steps: steps at each evaluation of the treated arm.
        treated: curves of the arm that the statement is about.
        baseline: curves of the arm it is compared with, of the same seeds.
        baseline_steps: steps at each evaluation of the baseline; those of the treated arm by default.
        target: value to reach; by default the best of the baseline of each seed.
        lower_is_better: whether smaller values are better.
        bound: the statement is that the ratio lies below it.

    Returns:
        The comparison.

    Raises:
        ValueError: if the curves are not of the same seeds, or not of these evaluations.
    """
    axes = (steps if baseline_steps is None else baseline_steps, steps)
    for axis, curves in zip(axes, (baseline, treated), strict=True):
        _check(curves, np.broadcast_to(axis, (len(treated), len(axis))))
    beyond = [float(axis[-1] + (axis[-1] - axis[-2])) for axis in axes]
    best = _best(baseline, lower_is_better) if target is None else np.full(len(baseline), target)
    values, censored, capped = np.empty(len(best)), np.zeros(len(best), bool), np.zeros(len(best), bool)
    for s, goal in enumerate(best):
        of_baseline, of_treated = (
            steps_to(axis, curves[s], goal, lower_is_better=lower_is_better)
            for axis, curves in zip(axes, (baseline, treated), strict=True)
        )
        censored[s], capped[s] = math.isinf(of_treated), math.isinf(of_baseline)
        values[s] = max(min(of_treated, beyond[1]), 1.0) / max(min(of_baseline, beyond[0]), 1.0)
    values[censored & capped] = bound
    return _compare(values, bound, censored & ~capped, capped & ~censored)


def compare_best(
    treated: Float[np.ndarray, "S E"],
    baseline: Float[np.ndarray, "S E"],
    *,
    lower_is_better: bool = True,
) -> TrainingComparison:
    """Difference of the best values of two arms, seed by seed; negative where the treated arm is better.

    Args:
        treated: curves of the arm that the statement is about.
        baseline: curves of the arm it is compared with.
        lower_is_better: whether smaller values are better.

    Returns:
        The comparison.

    Raises:
        ValueError: if the curves are not of the same seeds and evaluations.
    """
    _check(treated, baseline)
    difference = _best(treated, lower_is_better) - _best(baseline, lower_is_better)
    difference = np.nan_to_num(difference if lower_is_better else -difference, nan=0.0)
    return _compare(difference, 0.0)


def _check(treated, baseline) -> None:
    if np.shape(treated) != np.shape(baseline) or np.ndim(treated) != 2:
        raise ValueError(
            f"curves must be [seed, evaluation], of the same seeds and evaluations; got {np.shape(treated)} and "
            f"{np.shape(baseline)}"
        )


@dataclass(frozen=True)
class TrainingStatement:
    """What training runs are to show: that one arm of an experiment is faster than another, or ends better.

    Attributes:
        claim: id of the claim that rests on it.
        text: the statement.
        paper: what the paper reports, in its words or numbers.
        treated: the arm the statement is about.
        baseline: the arm it is compared with.
        metric: the curve they are compared by.
        measure: "speed", the ratio of steps to a target, or "best", the difference of best values.
        lower_is_better: whether smaller values of the metric are better.
        target: value to reach; by default the best of the baseline.
        bound: the ratio must lie below it.
    """

    claim: str
    text: str
    paper: str
    treated: str
    baseline: str
    metric: str
    measure: Literal["speed", "best"] = "speed"
    lower_is_better: bool = True
    target: float | None = None
    bound: float = 1.0

    def __post_init__(self) -> None:
        """Refuses a measure that does not exist."""
        if self.measure not in {"speed", "best"}:
            raise ValueError(f"the measure of {self.text!r} must be 'speed' or 'best'; got {self.measure!r}")

    @property
    def arms(self) -> tuple[str, str]:
        """Names of the two arms."""
        return self.treated, self.baseline

    @property
    def rule(self) -> str:
        """How it is decided, in words."""
        if self.measure == "best":
            return f"difference of the best {self.metric}, {self.treated} against {self.baseline}"
        goal = f"the best of {self.baseline}" if self.target is None else f"{self.target:g}"
        return (
            f"steps to {self.metric} = {goal}, {self.treated} over {self.baseline}; stated to be below {self.bound:g}"
        )

    def compare(
        self, steps: Mapping[str, Int[np.ndarray, " E"]], curves: Mapping[str, Float[np.ndarray, "S E"]]
    ) -> TrainingComparison:
        """Compares the two arms.

        Args:
            steps: steps at each evaluation of each arm.
            curves: the metric of each arm.

        Returns:
            The comparison.
        """
        treated, baseline = (curves[arm] for arm in self.arms)
        if self.measure == "best":
            return compare_best(treated, baseline, lower_is_better=self.lower_is_better)
        return compare_speed(
            steps[self.treated],
            treated,
            baseline,
            baseline_steps=steps[self.baseline],
            target=self.target,
            lower_is_better=self.lower_is_better,
            bound=self.bound,
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
