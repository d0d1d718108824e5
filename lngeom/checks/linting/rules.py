"""The rules: each has a reason, a remedy, and a function that measures a consequence on one norm of a model.

A rule speaks where it can measure what the mistake does to the activations of the model at hand. It returns the
consequence in words, or None. A rule of one's own is added with `rule`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from lngeom._core.draws import probe_generator
from lngeom._core.text import verb
from lngeom.checks._probed import UNITS
from lngeom.checks.derivatives.diagnosis import explained
from lngeom.checks.derivatives.examine import NoReference
from lngeom.checks.derivatives.scaled import scaled_gradient
from lngeom.checks.linting.case import Case
from lngeom.checks.linting.channels import channels_of
from lngeom.checks.recorded import Layer
from lngeom.checks.subject import deviation

LARGE_SHARE = 0.1
"""Share of ε in σ² + ε from which it is large: outputs are then 5 % smaller."""

VISIBLE = 1e-3
"""Relative change of outputs from which a loss of digits counts, in float32."""

UNMOVED = 1e-6
"""Relative change of outputs in float64 below which a change had no effect; some layers compute in float32 inside."""

OFFSET = 2048.0
"""Offset, in standard deviations, at which a variance taken as E[a²] − E[a]² shows in float32."""

MISROUNDED = 0.1
"""Share of outputs that are not the nearest number of a short dtype, from which digits are lost inside the layer."""

COINCIDENCE = 5e-3
"""Largest distance of mean squares from 1 − 1/m, relative to 1/m, at which they are those of ddof = 1."""

DEAD = 1e-3
"""Gain, relative to the largest, at which a unit counts as dead."""

OVERTAKEN = 0.5
"""Weight of the newest batch from which running statistics are those of the last batch."""


@dataclass(frozen=True)
class Rule:
    """A known mistake.

    Attributes:
        id: its name.
        reason: why it is a mistake.
        remedy: what to do.
        look: measures its consequence on a norm; None where there is none.
        of_inputs: whether the consequence depends on the inputs that reach the norm, and with them on the call.
    """

    id: str
    reason: str
    remedy: str
    look: Callable[[Case], str | None]
    of_inputs: bool = False


RULES: dict[str, Rule] = {}
"""Every rule by its id."""


def rule(
    id: str, reason: str, remedy: str, *, of_inputs: bool = False
) -> Callable[[Callable[[Case], str | None]], Callable[[Case], str | None]]:
    """Registers a function as a rule.

    Args:
        id: name of the rule.
        reason: why it is a mistake.
        remedy: what to do.
        of_inputs: whether the consequence depends on the inputs that reach the norm.

    Returns:
        The decorator.

    Raises:
        ValueError: if a rule of this id exists.
    """
    if id in RULES:
        raise ValueError(f"rule {id!r} exists; ids are unique")

    def register(look: Callable[[Case], str | None]) -> Callable[[Case], str | None]:
        RULES[id] = Rule(id, reason, remedy, look, of_inputs)
        return look

    return register


@rule(
    "epsilon-lost",
    "ε keeps the denominator from zero where all values are equal, as in padding. In a short dtype a small ε is zero.",
    "Add ε in float32, or take one that the dtype can hold: at least 1e-5 for float16.",
    of_inputs=True,
)
def epsilon_lost(case: Case) -> str | None:
    """Outputs where all values are equal, in the dtype of the activations."""
    if not case.normalizes:
        return None
    for words, value in (("zeros", 0.0), ("the same value throughout", 1.0)):
        outputs = case.norm.run(np.full_like(case.native, value), dtype=None)
        bad = float(np.mean(~np.isfinite(outputs)))
        if bad:
            return f"inputs of {words}, in {case.native.dtype}: {bad:.0%} of the outputs are NaN or infinite"
    return None


@rule(
    "epsilon-large",
    "An ε near the variance of the activations damps the outputs: they are not normalized.",
    "Take a smaller ε, or scale the activations up before the norm.",
    of_inputs=True,
)
def epsilon_large(case: Case) -> str | None:
    """The share of ε in σ² + ε, from outputs on the activations and on 2²⁰ times them."""
    share = case.norm.share
    if not share > LARGE_SHARE:
        return None
    return f"ε is {share:.0%} of σ² + ε (median), so that outputs are {1 - math.sqrt(max(1 - share, 0)):.0%} smaller"


@rule(
    "cancellation",
    "A variance taken as E[a²] − E[a]² loses digits as the square of mean over standard deviation.",
    "Subtract the mean before squaring: E[(a − E[a])²]; in flax use_fast_variance=False.",
    of_inputs=True,
)
def cancellation(case: Case) -> str | None:
    """The error against float64, where it also grows as κ²u on exact inputs of a large offset."""
    if not case.normalizes or not case.norm.centred:
        return None
    lost = case.norm.lost
    if not lost > max(VISIBLE, 16 * case.norm.short) or not _one_pass(case):
        return None
    measured = "NaN or infinity" if math.isinf(lost) else f"an error of {lost:.1%} of the outputs"
    if case.norm.formula is None:
        return f"on these activations this gives {measured} in {case.native.dtype}"
    sets, inputs = case.norm.formula.scale, case.norm.own
    mean = sets.mean(inputs)
    with np.errstate(all="ignore"):
        ratios = np.abs(mean) / np.sqrt(sets.mean((inputs - mean) ** 2))
    ratio = np.max(ratios[case.norm.spread & np.isfinite(ratios)], initial=0.0)
    return f"mean/σ is up to {ratio:.0f} on these activations, which gives {measured} in {case.native.dtype}"


def _one_pass(case: Case) -> bool:
    """Whether the error of outputs in float32 at a large offset is that of E[a²] − E[a]²; inputs are exact."""
    offset = OFFSET + probe_generator().integers(-128, 129, case.norm.shape) / 64
    exact, single = (case.norm.run(offset, dtype=d) for d in (case.norm.dtype, "float32"))
    return deviation(single, exact) > max(10 * OFFSET * float(jnp.finfo("float32").eps), 4 * case.norm.short)


@rule(
    "low-precision",
    "Statistics or the gain in a short dtype round more than once: every further step costs digits.",
    "Compute the norm in float32, gain and bias included, and round the result once.",
    of_inputs=True,
)
def low_precision(case: Case) -> str | None:
    """How many outputs are not the nearest number of their dtype to the outputs in float64."""
    dtype = case.native.dtype
    if case.norm.shortened:
        return f"outputs in {dtype} are rounded by {case.norm.shortened:.1e}: the norm computes in a shorter dtype"
    if jnp.finfo(dtype).nmant > 10:
        return None
    outputs = case.layer.run(case.native, training=case.norm.training, parameters=case.norm.changed)
    if outputs.dtype != dtype or not np.all(np.isfinite(outputs.astype(np.float64))):
        return None
    exact = case.norm.run(case.native)
    if not case.norm.refused:
        kept = case.norm.determined
        outputs, exact = outputs[kept], exact[kept]
    nearest = exact.astype(dtype)
    wrong = float(np.mean(outputs != nearest)) if exact.size else 0.0
    if wrong <= MISROUNDED:
        return None
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 1e-30)))) * float(jnp.finfo(dtype).eps)
    worst = float(np.max(np.abs(outputs.astype(np.float64) - exact) / unit))
    return f"{wrong:.0%} of the outputs are not the nearest {dtype} number; the worst is {worst:.1f} units off"


@rule(
    "affine-before-statistics",
    "A gain or bias before the statistics is removed by them, or moves the outputs of other units.",
    "Apply gain and bias to the normalized values.",
)
def affine_before_statistics(case: Case) -> str | None:
    """What one value of a gain or bias does: it moves the outputs of other units as its unit's input does, or none."""
    norm = case.norm
    if not case.normalizes or norm.stepped:  # a further step hides what follows
        return None
    rows = norm.rows(norm.far * norm.probe)
    start = norm(rows)
    size = np.max(np.abs(start))
    values = {k: np.asarray(norm.changed.get(k, v), np.float64) for k, v in case.layer.parameters.items()}
    firsts = [float(v.flat[0]) for v in values.values() if v.size == norm.units]
    for name, value in values.items():
        if value.size != norm.units or value.size < 2:
            continue
        last, lost = name.rsplit(".", 1)[-1], norm(rows, parameters={name: _with_first(value, math.nan)})
        moved = []
        for by in (1.0, norm.far):
            after = norm(rows, parameters={name: _with_first(value, float(value.flat[0]) + by)})
            change = np.max(np.abs(after - start), tuple(range(start.ndim - 1)))
            moved.append(bool(np.any(change > 1e-4 * size)) or not np.all(np.isfinite(after)))
            units = int(np.sum(change > 1e-4 * size))
            if units > 1 and any(
                deviation(norm(inputs), after) <= max(10 * norm.tolerance, 1e-5)
                for inputs in _with_first_unit(rows, float(value.flat[0]), by, firsts)
            ):
                return f"one value of {last} changed by {by:.1g} moves the outputs of {units} of {norm.units} units"
        if not any(moved) and np.any(np.isnan(lost)) and norm.unit != UNITS[2]:  # it enters, and not rounding loses it
            return f"one value of {last} changed by {norm.far:.1g} moves no output, though outputs are computed of it"
    return None


def _with_first_unit(rows: np.ndarray, value: float, by: float, gains: Sequence[float]) -> Iterator[np.ndarray]:
    """Inputs whose first unit is as if a gain before, or a bias before after one of some gains, were larger."""
    factors = [(v + by) / v for v in (value, 1 + value) if v]
    yield from (rows * np.append(factor, np.ones(rows.shape[-1] - 1)) for factor in factors)
    shifts = dict.fromkeys(by / gain for gain in (1.0, *gains) if gain)
    yield from (rows + np.append(shift, np.zeros(rows.shape[-1] - 1)) for shift in shifts)


def _with_first(values: np.ndarray, first: float) -> np.ndarray:
    """Values with another first one."""
    moved = values.copy()
    moved.reshape(-1)[0] = first
    return moved


@rule(
    "unused-parameter",
    "A gain or bias on which no output depends has no gradient: it stays as it was, and counts as a parameter.",
    "Apply it to the normalized values, or leave it out.",
)
def unused_parameter(case: Case) -> str | None:
    """Outputs of every call with NaN in place of a parameter, where they are those with the parameter."""
    calls = [replace(call, fill=case.layer.fill) for call in case.layer.each_call()]
    for name, value in case.layer.parameters.items():
        lost = {name: np.full(value.shape, math.nan)}
        pairs = [
            [call.run(call.inputs, training=case.norm.training, parameters=p) for p in (None, lost)] for call in calls
        ]
        known = any(np.any(np.isfinite(outputs.astype(np.float64))) for outputs, _ in pairs)
        if known and all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
            return f"with NaN in place of {name.rsplit('.', 1)[-1]}, outputs are what they were"
    return None


@rule(
    "wrong-axis",
    "A norm over another axis than the channels' pools unlike values, and its gain is shared by the wrong ones.",
    "Name the axis of the channels, or transpose before and after.",
)
def wrong_axis(case: Case) -> str | None:
    """The axis of the units against the channels of the layer before and of the layers after."""
    norm, shape = case.norm, case.layer.inputs.shape
    for other, words in ((case.before, "from"), *((o, "for") for o in case.after)):
        if other is None or len(shape) < 3:
            continue
        channels = channels_of(other, len(shape))
        if channels is None:
            continue
        axis, by_position = channels
        place = other.path or other.kind
        if axis not in norm.axes:
            own = ", ".join(map(str, norm.axes))
            size = int(np.prod([shape[i] for i in norm.axes]))
            return (
                f"its {size} units are on axis {own} of {list(shape)}, but the {shape[axis]} channels {words} {place} "
                f"are on axis {axis}"
            )
        pools = norm.coupling.positions or len(norm.axes) > 1
        if case.layer.declared in {"ln", "rms"} and pools and by_position:
            return (
                f"its statistics pool all positions of {list(shape)}, while {place} treats each by itself: a change at "
                f"one position moves all others by up to {_across(case):.1%}"
            )
    if case.layer.declared in {"ln", "rms"} and norm.row == "in":
        return f"its statistics are over positions of {list(shape)}, not over the {norm.units} units"
    return None


def _across(case: Case) -> float:
    """Change of outputs at other places of a sample when its first position changes."""
    start = case.norm.size * case.norm.probe
    moved = start.copy()
    moved[:, 0] = 2 * moved[:, 0] + case.norm.size
    before, after = (case.norm.run(v) for v in (start, moved))
    return deviation(before[:, 1:], after[:, 1:])


@rule(
    "sample-leak",
    "Outputs for a sample depend on which other samples are in the batch: results change with batch size and order.",
    "Take statistics within a sample; a batch norm uses its running statistics in evaluation mode.",
)
def sample_leak(case: Case) -> str | None:
    """The change of a sample's outputs in evaluation mode when the other samples are replaced."""
    fixed = case.layer.fixed
    if fixed is not None and fixed.training:
        return None
    leak = case.norm.evaluation_leak()
    if not leak > UNMOVED:
        return None
    return f"in evaluation mode a sample's outputs change by {min(leak, 1):.0%} when the other samples are replaced"


@rule(
    "ddof",
    "A variance that divides by one less than the number of values is not that of layer norm or batch norm.",
    "Divide by the number of values: unbiased=False, correction=0, ddof=0.",
)
def ddof(case: Case) -> str | None:
    """The mean square of normalized values over each set of m: 1, or 1 − 1/m of all sets with ddof = 1."""
    if not case.normalizes or case.norm.formula is None:
        return None
    sets = case.norm.formula.scale
    squares = sets.mean(case.norm.back(case.norm.normalized, case.norm.probe) ** 2)
    count = sets.size(case.norm.shape)
    known = squares[np.isfinite(squares) & (squares > 0)]  # 0 where a gain is 0
    found = float(np.median(known)) if known.size else 1.0
    if count < 2 or not known.size or np.max(np.abs(known - (1 - 1 / count))) > COINCIDENCE / count:
        return None
    smaller = 1 - math.sqrt(found)
    return f"normalized values have mean square {found:.4g} = 1 − 1/{count}: outputs are {smaller:.1%} smaller"


@rule(
    "not-scale-invariant",
    "Outputs of a norm do not change when its inputs are doubled, as far as ε allows.",
    "Divide by the standard deviation: the square root of the variance, not the variance or another power.",
)
def not_scale_invariant(case: Case) -> str | None:
    """The change of outputs when inputs that are so large that no ε matters are doubled."""
    if not (case.promised and case.normalizes):
        return None
    far, double = (case.norm.odd(s * case.far) for s in (1, 2))
    change = deviation(far, double)
    return f"doubling large inputs changes the outputs by {min(change, 1):.0%}" if change > VISIBLE else None


@rule(
    "decay-on-gains",
    "Weight decay on a gain shrinks the outputs towards zero, and is no regularization of the function's shape.",
    "Leave gains and biases of norms out of weight decay.",
)
def decay_on_gains(case: Case) -> str | None:
    """How much smaller outputs are with a tenth less of a decayed parameter."""
    if case.decays is None:
        return None
    for name, value in case.layer.parameters.items():
        if not case.decays(case.layer, name):
            continue
        shrunk = case.norm.odd(case.rows, parameters={name: np.asarray(value, np.float64) * 0.9})
        size = float(np.max(np.abs(case.norm.odd(case.rows))))
        if size and np.max(np.abs(shrunk)) < size * (1 - 1e-3):
            last = name.rsplit(".", 1)[-1]
            return f"{last} is decayed: 10 % less of it makes outputs {1 - np.max(np.abs(shrunk)) / size:.0%} smaller"
    return None


@rule(
    "decay-on-scale-invariant-weights",
    "Outputs do not depend on the size of weights before a norm: their decay only sets the effective learning rate.",
    "Know it: tune decay and learning rate together, or leave these weights out; lngeom.training tracks the rate.",
)
def decay_on_scale_invariant_weights(case: Case) -> str | None:
    """The change of outputs when the decayed weights before the norm are halved."""
    before = case.before
    if case.decays is None or before is None or not any(case.decays(before, name) for name in _weights(before)):
        return None
    inputs = np.asarray(before.inputs[: len(case.norm.own)], np.float64)
    half = {k: np.asarray(v, np.float64) / 2 for k, v in before.parameters.items()}
    first, second = (case.norm.run(before.run(inputs, dtype=case.norm.dtype, parameters=p)) for p in (None, half))
    change = deviation(first, second)
    if change > 0.01:
        return None
    return f"half the weights of {before.path or before.kind} change the outputs by {change:.1e}"


def _weights(layer: Layer) -> list[str]:
    return [k for k, v in layer.parameters.items() if v.ndim > 1]


@rule(
    "dead-gain",
    "A unit with a gain of zero is a constant: nothing before it learns through it.",
    "Start gains at 1, leave them out of decay, or remove the units. A gain of zero at the end of a residual branch is "
    "meant before training only.",
)
def dead_gain(case: Case) -> str | None:
    """Units whose gain, from outputs over normalized values, is zero next to the largest."""
    if case.norm.few:
        return None
    if case.norm.changed or (case.promised and case.norm.constant and not np.any(case.norm.odd(case.far))):
        return f"all {case.norm.units} units have a gain of 0: outputs do not depend on inputs"
    if not case.normalizes or not np.any(np.isfinite(case.gains)):
        return None
    largest = float(np.nanmax(case.gains))
    dead = int(np.sum(case.gains <= DEAD * largest))
    if not dead:
        return None
    return f"{dead} of {case.norm.units} units {verb(dead, 'has', 'have')} a gain of at most {DEAD:g} of the largest"


@rule(
    "redundant-bias",
    "The norm subtracts the mean of each unit, and with it a bias before it: memory and gradients without effect.",
    "Leave out the bias of the layer before the norm: bias=False, use_bias=False.",
)
def redundant_bias(case: Case) -> str | None:
    """The change of outputs with the bias of the layer before."""
    before = case.before
    if before is None:
        return None
    inputs = probe_generator(1).normal(size=before.inputs[: len(case.norm.own)].shape)
    rng = probe_generator()
    for name, value in before.parameters.items():
        if value.ndim != 1 or value.size < 2:
            continue
        summed = before.run(inputs, dtype=case.norm.dtype)
        moved = before.run(
            inputs, dtype=case.norm.dtype, parameters={name: value + np.std(summed) * rng.normal(size=value.shape)}
        )
        first, second = (case.norm.run(a) for a in (summed, moved))
        change = deviation(first, second)
        if change <= UNMOVED and deviation(summed, moved) > 0.01:
            last = name.rsplit(".", 1)[-1]
            return f"{last} of {before.path or before.kind} changed by one σ moves the outputs by {change:.0e}"
    return None


@rule(
    "epsilon-differs",
    "The exported model has another ε than the trained one: its outputs differ where the variance is small.",
    "Write ε into the exported model, and compare the two on data with small variance.",
)
def epsilon_differs(case: Case) -> str | None:
    """ε here and in the exported model, and what the difference does to inputs of small variance."""
    other = case.exported
    if other is None:
        return None
    mine, theirs = case.layer.eps, other.layer.eps
    shares = case.norm.share, other.share
    if mine is not None and theirs is not None:
        differ = not math.isclose(mine, theirs, rel_tol=1e-3)
        words = f"ε = {mine:g} here and {theirs:g} in the export"
    else:
        differ = abs(shares[0] - shares[1]) > 0.1 * max(*shares, 1e-9)
        words = f"ε has a share of {shares[0]:.1e} here and {shares[1]:.1e} in the export"
    if not differ:
        return None
    inputs = 1e-3 * case.norm.probe
    first, second = case.norm.run(inputs), other.run(inputs)
    return f"{words}: for inputs with σ = 1e-3 outputs differ by {deviation(first, second):.1%}"


@rule(
    "running-statistics",
    "Running statistics that training does not update are those of the start: evaluation normalizes by wrong numbers.",
    "Update them in training: model.train(), mutable=['batch_stats'], training=True, a momentum that lets them move.",
)
def running_statistics(case: Case) -> str | None:
    """Whether a step of training moves the running statistics, and how far evaluation is from training."""
    known, norm, fixed = case.norm.running, case.norm, case.layer.fixed
    if not known or (fixed is not None and not (fixed.training and norm.affine)):
        return None
    apart = norm.apart() or 0.0
    initial = all(np.all(v == v.flat[0]) and v.flat[0] in {0, 1} for v in known.values())
    trained = any(np.ptp(v) > 0 for v in case.layer.parameters.values() if v.size > 1)
    if apart <= UNMOVED and not norm.updated:
        if not (initial and norm.affine):
            return None
        return "the norm uses them in training too, where no step moves them, and they are those of the start, 0 and 1"
    if norm.updated and not (initial and trained):
        return None
    words = "they are those of the start, 0 and 1, while gains are not"
    words = words if norm.updated else "one step of training leaves them"
    return f"{words}; evaluation differs from training by {min(apart, 9.99):.0%} of the outputs"


@rule(
    "momentum",
    "Libraries define the momentum of running statistics as m or 1 − m. The wrong one keeps only the last batches.",
    "In torch momentum is the weight of the new batch (0.1); in keras, flax, haiku and equinox that of the old (0.9).",
)
def momentum(case: Case) -> str | None:
    """The weight of a new batch in the running statistics, from three steps."""
    norm, fixed = case.norm, case.layer.fixed
    if not norm.running or (fixed is not None and not fixed.training):
        return None
    if getattr(case.layer.module, "momentum", 0.0) is None:  # an average over all batches
        return None
    steps = [case.layer.statistics]
    for shift in (0.0, 1.0, 1.0):
        inputs = norm.size * (norm.probe + 3 * shift)
        steps.append(case.layer.step(inputs, steps[-1], dtype=norm.dtype, training=True)[1])
    weights = []
    for name in norm.running:
        first, second = (np.max(np.abs(steps[i + 1][name] - steps[i][name])) for i in (1, 2))
        if first > 0:
            weights.append(1 - second / first)
    weight = min(weights, default=0.0)
    if weight < OVERTAKEN:
        return None
    return f"each batch replaces {weight:.0%} of the running statistics"


@rule(
    "wrong-gradient",
    "A backward pass whose gradient is not that of the outputs trains something else than the model computes.",
    "Mend the backward pass, or leave it to the framework; where a stopped gradient is meant, leave out this rule. "
    "`lngeom check NAME --derivatives` shows every mode.",
)
def wrong_gradient(case: Case) -> str | None:
    """The gradients of reverse mode beside differences of the outputs, where these have digits.

    What no known error explains is left to `check_derivatives`: at extreme inputs rounding may look like it.
    """
    try:
        diagnosis = case.gradients(case.norm).diagnosis
    except NoReference:
        return None
    return " ".join(diagnosis) if explained(diagnosis) else None


@rule(
    "scaled-gradient",
    "Loss scaling multiplies what comes back to a norm. Where its backward pass in float16 overflows inside, steps are "
    "skipped though the gradients fit; where it vanishes inside, nothing is trained.",
    "Compute the backward pass in float32 and round the gradient once, or leave it to the framework.",
    of_inputs=True,
)
def scaled_gradients(case: Case) -> str | None:
    """The gradient in the inputs for large and for small cotangents beside that for ordinary ones, in float16."""
    return scaled_gradient(case.norm)
