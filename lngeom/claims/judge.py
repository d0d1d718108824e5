r"""From curves to verdicts: the choice of learning rates, ratios of steps with intervals, exact tests, sensitivity.

A ratio of steps is an interval for each seed: a number where both runs reach the target, and else what is known of it.
The rules are those of `analysis/PROTOCOL.md`, whose points are named in brackets.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from lngeom.claims.comparison import SIGNIFICANCE, TrainingStatement, sign_test, steps_to
from lngeom.claims.results import Curves

Tuned = Mapping[str, Mapping[float, Curves]]
"""Arm → learning rate → curves."""

STOPPED = 0.01
"""Share of the whole improvement that the second half of a run may bring if it has stopped improving (6)."""

TARGETS = 21
"""Targets of a time-to-target curve (17)."""

FACTOR = 2.0
"""How many times the fewest steps a rate may take to count as insensitive (18)."""


class Lowered(NamedTuple):
    """A curve whose smaller values are better; what is not a number is infinite.

    Attributes:
        steps: at each evaluation, [E].
        values: [seed, evaluation].
    """

    steps: Int[np.ndarray, " E"]
    values: Float[np.ndarray, "S E"]

    def best(self) -> Float[np.ndarray, " S"]:
        """The best value of each seed."""
        return self.values.min(1)

    def to(self, targets: float | Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
        """Steps of each seed to its target; infinite where it is not reached."""
        goals = np.broadcast_to(targets, len(self.values))
        return np.array([steps_to(self.steps, v, goal) for v, goal in zip(self.values, goals, strict=True)])


def lowered(curves: Curves, statement: TrainingStatement) -> Lowered:
    """The metric of a statement, with the sign at which smaller is better."""
    values = np.asarray(curves.values[statement.metric], np.float64)
    values = values if statement.lower_is_better else -values
    return Lowered(curves.steps, np.where(np.isnan(values), np.inf, values))


def _sign(statement: TrainingStatement) -> int:
    return 1 if statement.lower_is_better else -1


def target_of_choice(statement: TrainingStatement, tuned: Tuned) -> float:
    """The target by which rates are chosen (4), lower being better: the statement's, or the worse of both bests."""
    if statement.target is not None:
        return _sign(statement) * statement.target
    reached = [min(_median(lowered(c, statement).best()) for c in tuned[arm].values()) for arm in statement.arms]
    return max(reached)


def _median(values: Iterable[float]) -> float:
    """The median; of an even number of values, the larger of both in the middle, so that it is the value of a run."""
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2])


def choose(statement: TrainingStatement, arm: str, tuned: Tuned) -> float:
    """The best rate of an arm by the criterion of a statement (4).

    Args:
        statement: the statement.
        arm: one of its arms.
        tuned: curves of both arms at every rate, on the seeds for the choice.

    Returns:
        The rate.
    """
    target = target_of_choice(statement, tuned)

    def order(rate: float) -> tuple:
        curve = lowered(tuned[arm][rate], statement)
        diverged = not np.isfinite(curve.values[:, -1]).all()
        best, steps = _median(curve.best()), _median(curve.to(target))
        return (diverged, steps, best, rate) if statement.measure == "speed" else (diverged, best, steps, rate)

    return min(tuned[arm], key=order)


def stopped(statement: TrainingStatement, curves: Curves) -> bool:
    """Whether the second half of the steps brings next to nothing (6)."""
    curve = lowered(curves, statement)
    so_far = np.minimum.accumulate(curve.values, 1)
    typical = np.array([_median(column) for column in so_far.T])
    half = typical[np.searchsorted(curve.steps, curve.steps[-1] / 2, side="right") - 1]
    whole = typical[0] - typical[-1]
    return not whole > 0 or bool(half - typical[-1] <= STOPPED * whole)


@dataclass(frozen=True)
class Judged:
    """What fresh seeds say of a statement.

    Attributes:
        low: least value of each seed that is compatible with its runs, [S].
        high: greatest value, [S].
        wins: seeds on which the statement is true.
        losses: seeds on which it is false.
        p_supports: probability of so many wins or more if it were a coin's throw.
        p_refutes: likewise of so many losses.
    """

    low: Float[np.ndarray, " S"]
    high: Float[np.ndarray, " S"]
    wins: int
    losses: int
    p_supports: float
    p_refutes: float


def ratios(treated: Float[np.ndarray, " S"], baseline: Float[np.ndarray, " S"], last: tuple[float, float]) -> Any:
    """Least and greatest ratio of steps that are compatible with two runs of each seed (12).

    Args:
        treated: steps to the target, infinite where it is not reached.
        baseline: likewise.
        last: all steps of both arms.

    Returns:
        Least ratios and greatest ratios.
    """
    t, b = (np.maximum(np.where(np.isfinite(s), s, n), 1.0) for s, n in zip((treated, baseline), last, strict=True))
    known_t, known_b = np.isfinite(treated), np.isfinite(baseline)
    return np.where(known_b, t / b, 0.0), np.where(known_t, t / b, np.inf)


def targets_of_seeds(statement: TrainingStatement, treated: Lowered, baseline: Lowered) -> Float[np.ndarray, " S"]:
    """The target of each seed (9)."""
    if statement.target is not None:
        return np.full(len(treated.values), _sign(statement) * statement.target)
    return np.maximum(treated.best(), baseline.best())


def judge(statement: TrainingStatement, treated: Lowered, baseline: Lowered) -> Judged:
    """Decides a statement from curves of the same fresh seeds (9 to 13).

    Args:
        statement: the statement.
        treated: curve of its arm at its rate.
        baseline: curve of the other arm at its own.

    Returns:
        What was found.

    Raises:
        ValueError: if both have not equally many seeds.
    """
    if len(treated.values) != len(baseline.values):
        raise ValueError(f"{len(treated.values)} and {len(baseline.values)} seeds of {statement.text!r}")
    if statement.measure == "speed":
        goals = targets_of_seeds(statement, treated, baseline)
        last = (float(treated.steps[-1]), float(baseline.steps[-1]))
        low, high = ratios(treated.to(goals), baseline.to(goals), last)
        exact = low == high
        won = np.where(exact, high < statement.bound, high <= statement.bound)
        lost = np.where(exact, low > statement.bound, low >= statement.bound)
        return Judged(low, high, *_tests(won, lost))
    with np.errstate(invalid="ignore"):
        difference = np.nan_to_num(treated.best() - baseline.best(), nan=0.0, posinf=np.inf, neginf=-np.inf)
    if statement.measure == "best":
        return Judged(difference, difference, *_tests(difference < 0, difference > 0))
    margin = statement.margin * (baseline.values[:, 0] - baseline.best())
    below, above = _tests(difference < margin, difference > margin), _tests(difference > -margin, difference < -margin)
    inside = np.abs(difference) < margin
    return Judged(
        difference,
        difference,
        int(inside.sum()),
        int((~inside).sum()),
        max(below[2], above[2]),
        min(1.0, 2 * min(below[3], above[3])),
    )


def _tests(won: np.ndarray, lost: np.ndarray) -> tuple[int, int, float, float]:
    wins, losses = int(won.sum()), int(lost.sum())
    return wins, losses, sign_test(wins, wins + losses), sign_test(losses, wins + losses)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities corrected by Holm's step-down method.

    Args:
        probabilities: of the statements of a family.

    Returns:
        Corrected ones, in the same order.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    found, largest = [0.0] * len(probabilities), 0.0
    for passed, k in enumerate(sorted(range(len(probabilities)), key=lambda k: probabilities[k])):
        largest = max(largest, min(1.0, (len(probabilities) - passed) * probabilities[k]))
        found[k] = largest
    return found


def interval(low: Float[np.ndarray, " S"], high: Float[np.ndarray, " S"]) -> tuple[float, float, float, float]:
    """Least and greatest median, and both ends of its exact interval of 95 % (14), infinite where seeds are too few."""
    from scipy.stats import quantile_test  # its import takes most of a second

    ends = [quantile_test(v, q=0, p=0.5).confidence_interval(0.95)[k] for k, v in enumerate((low, high))]
    lower, upper = (
        limit if math.isnan(end) else float(end) for end, limit in zip(ends, (-np.inf, np.inf), strict=True)
    )
    with np.errstate(invalid="ignore"):
        return float(np.median(low)), float(np.median(high)), lower, upper


def time_to_target(statement: TrainingStatement, treated: Lowered, baseline: Lowered) -> dict[str, list[float | None]]:
    """Median steps of both arms to equally spaced targets (17); None where the median run does not reach one."""
    worst = max(_median(c.values[:, 0]) for c in (treated, baseline))
    best = min(_median(c.best()) for c in (treated, baseline))
    goals = np.linspace(worst, best, TARGETS)
    found: dict[str, list[float | None]] = {"target": [_number(_sign(statement) * g) for g in goals]}
    for name, curve in (("treated", treated), ("baseline", baseline)):
        found[f"steps of {name}"] = [_number(_median(curve.to(goal))) for goal in goals]
    return found


def sensitivity(statement: TrainingStatement, tuned: Tuned) -> dict[str, Any]:
    """Rates around the fastest one at which an arm takes at most twice its steps, and ratios at equal rates (18)."""
    target = target_of_choice(statement, tuned)
    found: dict[str, Any] = {}
    for name, arm in zip(("treated", "baseline"), statement.arms, strict=True):
        rates = sorted(tuned[arm])
        steps = [_median(lowered(tuned[arm][r], statement).to(target)) for r in rates]
        fastest = int(np.argmin(steps))
        first = last = fastest
        if math.isfinite(steps[fastest]):
            while first > 0 and steps[first - 1] <= FACTOR * steps[fastest]:
                first -= 1
            while last + 1 < len(rates) and steps[last + 1] <= FACTOR * steps[fastest]:
                last += 1
            found[f"rates of {name}"] = [rates[first], rates[last]]
        else:
            found[f"rates of {name}"] = None
        found[f"steps of {name}"] = {f"{r:g}": _number(s) for r, s in zip(rates, steps, strict=True)}
    equal = {}
    for rate in sorted(set(tuned[statement.treated]) & set(tuned[statement.baseline])):
        treated, baseline = (lowered(tuned[arm][rate], statement) for arm in statement.arms)
        last = (float(treated.steps[-1]), float(baseline.steps[-1]))
        low, high = ratios(treated.to(target), baseline.to(target), last)
        equal[f"{rate:g}"] = shown(_median(low), _median(high))
    return found | {"ratio at equal rates": equal}


def shown(low: float, high: float) -> str:
    """A value of which two limits are known, with "≤" or "≥" where it is not a number (12)."""
    if low == high:
        return f"{low:.3g}"
    if math.isfinite(high):
        return f"≤ {high:.3g}"
    return f"≥ {low:.3g}" if low > 0 else "not known"


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def report(statements: Sequence[TrainingStatement], tuned: Tuned, fresh: Tuned) -> list[dict[str, Any]]:
    """All that the protocol reports of the statements of an experiment (15 to 18), as JSON can hold it.

    Args:
        statements: all of the experiment.
        tuned: curves on the seeds for the choice, of every arm at every rate.
        fresh: curves on fresh seeds, at least at the chosen rates.

    Returns:
        A dictionary for each statement.

    Raises:
        ValueError: if an arm lacks curves, or a chosen rate was not judged.
    """
    rows, judged = [], []
    for statement in statements:
        absent = [
            arm
            for arm in statement.arms
            if not all(
                arm in of and all(statement.metric in c.values for c in of[arm].values()) for of in (tuned, fresh)
            )
        ]
        if absent:
            raise ValueError(f"no curve {statement.metric!r} of {', '.join(map(repr, absent))}: run the protocol again")
        rates = {arm: choose(statement, arm, tuned) for arm in statement.arms}
        for arm, rate in rates.items():
            if rate not in fresh.get(arm, {}):
                raise ValueError(f"{arm} has no fresh seeds at its best rate, {rate:g}: run the protocol again")
        pair = [lowered(fresh[arm][rates[arm]], statement) for arm in statement.arms]
        found = judge(statement, *pair)
        judged.append(found)
        low, high, lower, upper = interval(found.low, found.high)
        goals = targets_of_seeds(statement, *pair)
        per_arm = {}
        for arm, curve in zip(statement.arms, pair, strict=True):
            to_goal = _number(_median(curve.to(goals)))
            grid = sorted(tuned[arm])
            per_arm[arm] = {
                "rate": rates[arm],
                "at the edge of the grid": rates[arm] in (grid[0], grid[-1]),
                "still improving": not stopped(statement, tuned[arm][rates[arm]]),
                "steps": int(curve.steps[-1]),
                "steps to its own best": _number(_median(curve.to(curve.best()))),
                "steps to the target": "not reached" if to_goal is None else to_goal,
                "best": _number(_sign(statement) * _median(curve.best())),
                "last": _number(_sign(statement) * _median(curve.values[:, -1])),
            }
        rows.append(
            statement.as_json()
            | {
                "fresh seeds": len(found.low),
                "wins": found.wins,
                "losses": found.losses,
                "median": shown(low, high),
                "interval": [_number(lower), _number(upper)],
                "seeds": [shown(a, b) for a, b in zip(found.low, found.high, strict=True)],
                "arms": per_arm,
                "time to target": time_to_target(statement, *pair),
                "sensitivity": sensitivity(statement, tuned),
            }
        )
    supports, refutes = (holm([getattr(f, f"p_{k}") for f in judged]) for k in ("supports", "refutes"))
    for row, p, q in zip(rows, supports, refutes, strict=True):
        verdict = "SUPPORTED" if p <= SIGNIFICANCE else "REFUTED" if q <= SIGNIFICANCE else "UNDECIDED"
        row |= {"p, corrected": _number(p), "p of the opposite, corrected": _number(q), "verdict": verdict}
    return rows
