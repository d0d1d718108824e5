"""An optimizer's law of motion, leaf by leaf, found by what it does to small weights.

Weights are ones. Gradients are alternating signs times a number x_t of each step, so that ⟨w, ∇⟩ = 0 and every entry
moves alike: a response along the signs is that to gradients, one along the ones is weight decay. A law is a recursion
of numbers x_t ↦ u_t. It holds where it gives the responses to a sequence x_t, in units of those to a constant gradient,
so that the schedule of the rate cancels. Its memory β is fitted.
"""

import math
import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy
from jaxtyping import PyTree

from lngeom._core.trees import leaf_paths
from lngeom.training._probe import NoStep, Probe, Start, at_once, led
from lngeom.training._recursions import RECURSIONS, Recursion, lion
from lngeom.training.laws import LAWS

STEPS = np.array([1.0, -2.0, 0.0, 0.5, 1.0, -1.0, 0.25, 2.0])
"""The sequence x_t; its zero shows memory, and its length optimizers that adapt only after some steps."""

SIZES = (1.0, 1e-3)
"""Sizes of gradients: an optimizer that clips is linear below its limit alone."""

LARGE = 1e6
"""A size of gradients that every clipping limits."""

AGREES = 1e-2
"""Relative difference up to which a response is that of a law, and a setting the one that was given."""

SIGNS = 0.05
"""β₂ below which an average of squared gradients is a sign."""

TURNS = (1e-4, 1e4)
"""Sizes of a gradient between which the sign of an average is seen to turn."""

SHRINKS = 0.8
"""Most by which a schedule lowers the rate from one step to the next at the start."""


@dataclass(frozen=True)
class Motion:
    """How an optimizer moves a leaf. None stands for unknown.

    Attributes:
        law: one of `LAWS`, or "" where the leaf never moves.
        rate: η of the first step that moves it; of lars ηκ.
        first: the number of that step.
        period: gradients that are accumulated for a step.
        decay: λ as the law has it: beside the step and multiplied by η, or in the gradient.
        memory: β of momentum, β₁ of adamw and lion.
        b2: β₂.
        clips: whether larger gradients are limited.
        remark: why no equilibrium is predicted, or "".
        recursion: the law of one entry, where it is known.
        betas: its β's.
        course: rates of the first steps, in units of the first, where they are known.
        start: the first responses; None for a single number.
        counts: in the optimizer's state before the first step that moves something.
    """

    law: str
    rate: float | None = None
    first: int = 0
    period: int = 1
    decay: float | None = 0.0
    memory: float = 0.0
    b2: float | None = None
    clips: bool = False
    remark: str = ""
    recursion: Recursion | None = None
    betas: tuple[float, ...] = ()
    course: tuple[float, ...] = ()
    start: Start | None = None
    counts: tuple[int, ...] = ()


def first_steps(
    optimizer: optax.GradientTransformationExtraArgs, params: PyTree, law: str, leaves: Collection[int]
) -> list[Motion]:
    """The motion of each leaf by a law that is given to some of them, as far as first steps show it.

    Warns:
        UserWarning: if a first step is another power of the size of the gradient.
    """
    paths = leaf_paths(params)
    try:
        with at_once():
            probe = Probe(optimizer, params)
            starts = probe.starts()
            powers = [probe.run([2 * size])[0][0] / probe.run([size])[0][0] for size in SIZES]
    except Exception:  # whatever an optimizer raises that needs more than gradients
        return [Motion(law)] * len(paths)
    expected = 2.0 if LAWS[law].rate == 2 else 1.0
    for k, (path, start, *found) in enumerate(zip(paths, starts, *powers, strict=True)):
        if k in leaves and start is not None and all(abs(p - expected) > 0.1 for p in found):
            warnings.warn(
                f"kind={law!r} was given, whose step is multiplied by {expected:g} for a gradient of twice the size, "
                f"but the first step of {path!r} is multiplied by {found[0]:.3g}: rates and equilibria of {law} mean "
                "nothing for it. Leave kind out, so that the law is found, or give another",
                stacklevel=4,
            )
            return [Motion(law)] * len(paths)
    return [Motion(law, None, probe.first, probe.period, start=start, counts=probe.counts) for start in starts]


@dataclass(frozen=True)
class Shown:
    """What an optimizer does to one leaf at one size of gradients.

    Attributes:
        constant: responses to a constant gradient.
        varied: responses to `STEPS`.
        twice: the last one to a gradient of twice the size.
        larger: the last one at weights of twice the size.
        radial: the first response along the weights.
        still: responses along the weights to no gradient.
        still_of_larger: the first of these at weights of twice the size.
    """

    constant: np.ndarray
    varied: np.ndarray
    twice: float
    larger: float
    radial: float
    still: np.ndarray
    still_of_larger: float


def detect(optimizer: optax.GradientTransformationExtraArgs, params: PyTree) -> list[Motion | str]:
    """Finds how an optimizer moves each leaf.

    Args:
        optimizer: the optimizer.
        params: the parameters. Only their structure and numbers of axes are used.

    Returns:
        A motion for each leaf, or what is not known of it (see `require`). Its law is "adaptive" where only the
        effective learning rate can be known.

    Raises:
        ValueError: if the optimizer cannot be probed, or takes no step.
    """
    with at_once():
        try:
            probe = Probe(optimizer, params)
            motions = _motions(probe)
        except NoStep as error:
            raise ValueError(f"{error}, so that its law is unseen; {ADVICE}") from error
        except Exception as error:
            raise ValueError(f"the optimizer cannot be probed ({type(error).__name__}: {error}); {ADVICE}") from error
    return motions


ADVICE = f"give its law with kind=, one of {', '.join(LAWS)}"


def require(motion: Motion | str, path: str) -> Motion:
    """The motion of a leaf.

    Raises:
        ValueError: if its step is no known power of the sizes of gradient and weights.
    """
    if isinstance(motion, str):
        raise ValueError(f"unknown optimizer: its first step of {path!r} {motion}; {ADVICE}")
    return motion


def _motions(probe: Probe) -> list[Any]:
    """The motion of each leaf, or a sentence on what is not known of it."""
    leaves = jax.tree.leaves(probe.weights)
    still, still_of_larger = probe.run(np.zeros(2))[1], probe.run(np.zeros(1), weight=2.0)[1]
    shown: list[list[Shown]] = [[] for _ in leaves]
    ones = np.ones(len(STEPS))
    for size in SIZES:
        if size != SIZES[0] and all(m.recursion for m in _read_all(probe, leaves, shown) if isinstance(m, Motion)):
            break
        constant, _ = probe.run(size * ones)
        varied, radial = probe.run(size * STEPS)
        twice, larger = probe.run(2 * size * ones)[0][-1:], probe.run(size * ones, weight=2.0)[0][-1:]
        for k, found in enumerate(shown):
            rows = (
                constant[:, k],
                varied[:, k],
                twice[0, k],
                larger[0, k],
                radial[0, k],
                still[:, k],
                still_of_larger[0, k],
            )
            found.append(Shown(*rows))
    read = [_read_all(probe, leaves, [[r[n]] for r in shown], n) for n in range(len(shown[0]))]
    chosen = [
        _best(list(options), responses) for options, responses in zip(zip(*read, strict=True), shown, strict=True)
    ]
    looked = [_look_again(probe, k, motion) for k, motion in enumerate(chosen)]
    return [
        replace(motion, start=start, counts=probe.counts) if isinstance(motion, Motion) and motion.law else motion
        for motion, start in zip(looked, probe.starts(), strict=True)
    ]


def _read_all(probe: Probe, leaves: list, shown: list[list[Shown]], size: int = 0) -> list[Any]:
    """What is read of each leaf at one size of gradients."""
    single = Motion("", remark="it is a single number")
    return [
        single if leaf.size == 1 else _read(responses[0], SIZES[size], probe.first)
        for leaf, responses in zip(leaves, shown, strict=True)
    ]


def _best(options: list, shown: list[Shown]) -> Any:
    """What was read at the first size; at a smaller one where the first is that with its gradients limited."""
    first, *smaller = options
    for motion in smaller:
        closed = isinstance(motion, Motion) and motion.recursion is not None
        if closed and isinstance(first, Motion) and first.recursion is None and _is_limited(motion, shown[0]):
            return motion
    return first


def _is_limited(motion: Motion, shown: Shown) -> bool:
    """Whether responses to gradients of size 1 are those of a law to gradients that are cut at some size."""
    assert motion.recursion is not None
    assert motion.rate is not None

    def of(x: np.ndarray) -> np.ndarray:
        assert motion.recursion is not None
        return motion.recursion.of(led(x, motion.first), *motion.betas)[motion.first :]

    # a law that is independent of sizes is tried with all gradients cut alike
    linear = motion.recursion.power == 2.0
    limit = abs(shown.constant[0]) / motion.rate / abs(of(np.ones(1))[0]) if linear else 0.2
    expected = of(np.clip(STEPS, -limit, limit)) / of(np.full(len(STEPS), min(limit, 1.0)))
    return bool(np.max(np.abs(expected - shown.varied / shown.constant)) <= 1e-3)


def _read(shown: Shown, size: float, start: int) -> Any:
    """The law of a leaf and its decay, from responses at one size of gradients that begin with step `start`."""
    base, last = shown.constant[0], shown.constant[-1]
    if not np.any(shown.constant) and not np.any(shown.varied):
        return Motion("", rate=0.0, remark="the optimizer does not move it")
    if not last:
        return "is zero, where others move"
    by_gradient, by_weights = float(shown.twice / last), float(shown.larger / last)
    powers = round(by_gradient, 1), round(by_weights, 1)
    if powers not in {(2.0, 1.0), (1.0, 1.0), (1.0, 2.0)}:
        return (
            f"is multiplied by {by_gradient:g} for a gradient of twice the size, and by {by_weights:g} for weights of "
            "twice the size"
        )
    ratio = shown.varied / np.where(shown.constant == 0, 1, shown.constant)
    if powers == (1.0, 2.0):
        if not base:
            return Motion("lars", decay=None, remark="its first step is not that of a trust ratio")
        decay = 0.0 if abs(shown.radial) < 1e-12 else float(size * shown.radial / base)
        rate, remark = float(np.hypot(base, shown.radial)), ""
        shares = STEPS / np.maximum(np.hypot(STEPS, decay / size), 1e-300) * np.hypot(1.0, decay / size)
        if np.max(np.abs(ratio - shares)) > AGREES:
            remark = "no equilibrium of a trust ratio with memory is known in closed form"
        elif decay and abs(shown.still[0] / -rate - 1) > AGREES:
            remark = "its weight decay is not inside of the trust ratio"
        return Motion("lars", rate=rate, decay=decay, remark=remark)
    for recursion in RECURSIONS:
        if base and recursion.power == powers[0] and (betas := _fit(recursion, ratio, start)) is not None:
            ones = recursion.of(np.ones(start + len(STEPS)), *betas)[start:]
            course = shown.constant / base / (ones / ones[0])
            if recursion.power == 2.0 and course[1] < SHRINKS:
                continue  # the size of its average does not grow as that of momentum
            motion = Motion(
                recursion.law,
                float(-base / ones[0] / (size if recursion.power == 2.0 else 1)),
                start,
                memory=betas[0] if recursion.law in {"momentum", "adamw"} else 0.0,
                b2=betas[-1] if recursion.law in {"adamw", "rmsprop"} else None,
                remark=recursion.remark,
                recursion=recursion,
                betas=betas,
                course=tuple(float(c) for c in course),
            )
            return _with_decay(motion, shown)
    if powers[0] == 2.0:
        return Motion("momentum", decay=None, remark="no equilibrium is known of its memory in closed form")
    return _with_decay(Motion("adaptive", remark="the equilibrium depends on the particular adaptive optimizer"), shown)


def _fit(recursion: Recursion, ratio: np.ndarray, start: int) -> tuple[float, ...] | None:
    """The values of β with which a recursion gives the responses, if there are such."""
    varied, constant = led(STEPS, start), np.ones(start + len(STEPS))

    def gap(betas: np.ndarray) -> np.ndarray:
        return (recursion.of(varied, *betas) / recursion.of(constant, *betas))[start:] - ratio

    for guess in recursion.starts:
        betas = np.array(guess)
        if guess:
            bounds = (np.zeros(len(guess)), np.full(len(guess), 1 - 1e-9))
            betas = scipy.optimize.least_squares(gap, betas, bounds=bounds, xtol=1e-15, ftol=1e-15, gtol=1e-15).x
        averages = recursion.power == 2.0 or SIGNS < betas[-1] < 1 - 1e-6
        if averages and np.max(np.abs(gap(betas))) <= AGREES * max(1.0, float(np.max(np.abs(ratio)))):
            return tuple(float(b) for b in betas)
    return None


def _with_decay(motion: Motion, shown: Shown) -> Motion:
    """The motion with its weight decay, which shows where there is no gradient."""
    first, second, of_larger = *shown.still, shown.still_of_larger
    if not math.isfinite(first):  # no gradient divided by no size: what a gradient leaves along the weights
        first, second, of_larger = shown.radial, shown.radial, 2 * shown.radial
    if not first:
        return replace(motion, decay=0.0)
    in_moments = abs(of_larger / first - 1) < AGREES and abs(first) > 0.5 * abs(shown.constant[0])
    if in_moments and motion.law not in {"sgd", "momentum"}:
        remark = "no equilibrium is known in closed form where weight decay is in the moments"
        return replace(motion, law="adam_l2", decay=None, remark=remark)
    if abs(of_larger / first - 2) > AGREES:
        return replace(motion, decay=None, remark="its weight decay is not in proportion to the weights")
    if motion.rate is None:
        return replace(motion, decay=None)
    decay, growth = float(-first / motion.rate), motion.course[1]
    changes = abs(growth - 1)
    seen = 1e-6 if motion.law == "adamw" else 1e-3  # of others, ε changes first steps too
    close = min(AGREES, 0.1 * changes) if changes > seen else AGREES
    coupled = abs(second / first - growth - motion.memory) <= close if motion.law == "momentum" else False
    if not coupled and abs(second / first - growth) > close:
        motion = replace(motion, remark="its weight decay changes in another way than its learning rate")
    # beside the buffer it is not accumulated: as much in the long run as less of it in the gradient
    beside = motion.law == "momentum" and not coupled
    return replace(motion, decay=decay * (1 - motion.memory) if beside else decay)


def _look_again(probe: Probe, k: int, motion: Any) -> Any:
    """What needs steps of its own: trust ratios, signs, orthogonal updates, limits of the gradient."""
    if not isinstance(motion, Motion) or not motion.law:
        return motion
    motion = replace(motion, first=probe.first, period=probe.period)
    many = jax.tree.leaves(probe.weights)[k].size > 2  # of two entries all steps look alike
    alike = {"sgd": _is_along, "momentum": _is_along, "adamw": _is_even, "rmsprop": _is_even}.get(motion.law)
    if many and motion.recursion is not None and alike is not None and not alike(probe, k):
        return replace(motion, law="adaptive", rate=None, decay=None, remark="its entries do not move by themselves")
    if motion.law == "lars" and _is_even(probe, k):
        remark = "no equilibrium of an adaptive step times the size of the weights is known"
        return replace(motion, law="lamb", rate=None, decay=None, remark=remark)
    if motion.law == "adaptive":
        if (signs := _signs(probe, k)) is not None:
            rate, (b1, b2) = signs
            decay = float(-probe.run(np.zeros(1))[1][0, k] / rate)
            course = tuple(float(u / -rate) for u in probe.run(np.ones(len(STEPS)))[0][:, k])
            return replace(motion, law="lion", rate=rate, memory=b1, b2=b2, decay=decay, course=course, remark="")
        if _is_orthogonal(probe, k):
            return replace(motion, law="muon", remark="no equilibrium of orthogonalized momentum is known")
    if motion.law in {"sgd", "momentum"} and motion.rate is not None:
        large, small = (probe.run(size * np.ones(1))[0][0, k] / size for size in (LARGE, SIZES[-1]))
        return replace(motion, clips=bool(abs(large / small - 1) > AGREES))
    return motion


def _first_step(probe: Probe, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The first update of a leaf along a gradient without a pattern, and that gradient."""
    step = probe.steps(np.ones(probe.first + 1), pattern=probe.uneven)[-1][k]
    return np.real(step), np.real(np.asarray(jax.tree.leaves(probe.uneven)[k]))


def _is_even(probe: Probe, k: int) -> bool:
    """Whether a first step has entries of one size for gradients of all sizes, beside decay along weights of ones."""
    step = _first_step(probe, k)[0]
    sizes = np.abs(step - np.mean(step))
    return sizes.size > 2 and float(np.ptp(sizes)) < 0.1 * float(np.max(sizes))


def _is_along(probe: Probe, k: int) -> bool:
    """Whether a first step is along the gradient, beside decay along weights of ones."""
    step, gradient = (v - np.mean(v) for v in _first_step(probe, k))
    norms = float(np.linalg.norm(step) * np.linalg.norm(gradient))
    return norms > 0 and abs(float(np.sum(step * gradient))) > 0.999 * norms


def _signs(probe: Probe, k: int) -> tuple[float, tuple[float, float]] | None:
    """Where updates are signs of a moving average, or of gradients: η and the β's."""
    if not _is_even(probe, k):
        return None
    sizes = np.abs(probe.run(np.ones(3))[0][:, k])  # a schedule changes them, but not the gradients

    def rate_with(b1: float, b2: float) -> float | None:
        """η, where signs turn at the gradients that these β tell, and not at somewhat smaller ones."""
        turn = b1 * (1 - b2 ** (probe.first + 1)) / (1 - b1)
        turned = (1, -0.97 * turn), (1, -1.03 * turn), (1, 0, -0.997 * b2 * turn), (1, 0, -1.003 * b2 * turn)
        for x in ((1, 3, 0.2), *turned):  # the first shows whether sizes matter
            along = probe.run(np.array(x, float))[0][:, k]
            expected = sizes[: len(x)] * lion(led(x, probe.first), b1, b2)[probe.first :]
            if not np.allclose(-along, expected, rtol=AGREES):
                return None
        return float(-along[0])

    for values in ((0.9, 0.99), (0.0, 0.0)):  # the usual ones, so that they need not be looked for
        if rate := rate_with(*values):
            return rate, values

    def turns(lead: tuple[float, ...]) -> float:
        """The size of a gradient against the average of those before it at which the sign turns."""
        low, high = math.log(TURNS[0]), math.log(TURNS[1])
        while high - low > 1e-7:
            middle = (low + high) / 2
            turned = probe.run([*lead, -math.exp(middle)])[0][-1, k] > 0
            low, high = (low, middle) if turned else (middle, high)
        return math.exp(low)

    first = turns((1.0,))
    b2 = turns((1.0, 0.0)) / first
    b1 = first / (first + 1 - b2 ** (probe.first + 1))
    rate = rate_with(b1, b2) if 0 < b2 < 1 else None
    return (rate, (round(b1, 6), round(b2, 6))) if rate else None


def _is_orthogonal(probe: Probe, k: int) -> bool:
    """Whether updates of a matrix have two singular values of nearly one size, where gradients have not."""
    leaf = jax.tree.leaves(probe.weights)[k]
    if leaf.ndim != 2 or min(leaf.shape) < 2:
        return False

    def pattern(w: Any) -> Any:  # of two very different singular values; its signs have one
        return (jnp.eye(*w.shape) + 1).astype(w.dtype) if w.ndim == 2 else w

    step = probe.steps(np.ones(probe.first + 1), pattern=jax.tree.map(pattern, probe.weights))[-1][k]
    s = np.linalg.svd(np.real(step), compute_uv=False)
    return bool(s[-1] > 0.5 * s[0])
