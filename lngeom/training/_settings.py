"""What users say of an optimizer, beside what it does: the numbers that a record and a plan compute with."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from lngeom.information.groups import Groups
from lngeom.training._detect import AGREES, Motion
from lngeom.training._probe import Start
from lngeom.training.equilibrium import is_short

FAR = 50.0
"""Ratio of rates from which an optimizer does not have the one that was given, but finds its own."""

UNDECAYED = "the optimizer does not decay it"


@dataclass(frozen=True)
class Moves:
    """How a group of leaves moves, in the numbers that predictions take.

    Attributes:
        law: one of `LAWS`, or "" where there is none.
        rate: factor of the learning rate that was given.
        decay: factor of the weight decay that was given; None where an equilibrium is not predicted.
        memory: β of momentum, β₁ of adamw and lion.
        b2: β₂.
        trust: κ of lars.
        period: gradients that are accumulated for a step.
        clips: whether larger gradients are limited, so that the law need not hold.
        remark: why no equilibrium is predicted, or "".
    """

    law: str
    rate: float = 1.0
    decay: float | None = 1.0
    memory: float = 0.9
    b2: float = 0.99
    trust: float = 1.0
    period: int = 1
    clips: bool = False
    remark: str = ""


NO_LAW = Moves("", decay=None, remark="its leaves move by different laws or rates")
"""Of leaves that do not move together."""


def as_one(moves: Sequence[Moves]) -> Moves:
    """How several leaves move together: as the first, where the others agree with it as measured, else by no law."""
    first = moves[0]
    if all(_alike(first, move) for move in moves):
        return replace(first, clips=any(move.clips for move in moves))
    return NO_LAW


def _alike(a: Moves, b: Moves) -> bool:
    numbers = ((a.rate, b.rate), (a.decay, b.decay), (a.memory, b.memory), (1 - a.b2, 1 - b.b2), (a.trust, b.trust))
    exact = (a.law, a.period, a.remark) == (b.law, b.period, b.remark)
    return exact and all(_same(x, y) for x, y in numbers)


FREE = {"sgd", "momentum", "rmsprop", "lion", "lars"}
"""Laws in which the number of a step matters only for schedules."""


@dataclass(frozen=True)
class Begun:
    """How a group moves at the first step that moves something.

    Attributes:
        starts: responses of each leaf; None for single numbers. Nothing where they are not known.
        counts: in the state before that step.
        first: number of that step.
        rate: what was said of the rate, as the group has it; None where that is not a number.
        decay: likewise.
        closed: whether the law is in closed form, so that its rates are read from responses at any count.
        varies: whether what was said of rate and decay are schedules.
    """

    starts: tuple[Start | None, ...] = ()
    counts: tuple[int, ...] = ()
    first: int = 0
    rate: float | None = None
    decay: float | None = None
    closed: bool = False
    varies: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Said:
    """What users say of their optimizer; None where they say nothing.

    Attributes:
        learning_rate: a number or a schedule.
        weight_decay: a number or a schedule.
        momentum: β, or β₁.
        b2: β₂.
        trust_coefficient: κ.
    """

    learning_rate: Any = None
    weight_decay: Any = 0.0
    momentum: float | None = None
    b2: float | None = None
    trust_coefficient: float | None = None

    def of_kind(self, law: str) -> Moves:
        """The numbers for a law that is given, and so is not looked for."""
        default = {"adamw": 0.999, "adam": 0.999, "rmsprop": 0.9}.get(law, 0.99)
        return Moves(
            law,
            memory=0.9 if self.momentum is None else self.momentum,
            b2=default if self.b2 is None else self.b2,
            trust=1.0 if self.trust_coefficient is None else self.trust_coefficient,
        )

    def begun(self, move: Moves, motions: Sequence[Motion], found: bool) -> Begun:
        """What a group's later steps are compared with.

        Args:
            move: the numbers of the group.
            motions: of its leaves.
            found: whether its law was found, and not given.
        """
        first = motions[0].first
        rate, decay = _at(self.learning_rate, first), _at(self.weight_decay, first)
        rate = None if rate is None else rate * move.rate
        closed = move.law in FREE or (found and move.law == "adamw" and motions[0].rate is not None)
        return Begun(
            starts=tuple(m.start for m in motions) if any(m.start for m in motions) else (),
            counts=motions[0].counts,
            first=first,
            rate=rate,
            decay=None if decay is None or move.decay is None else decay * move.decay,
            closed=closed and rate is not None,
            varies=(callable(self.learning_rate), callable(self.weight_decay)),
        )

    def beside(self, groups: Groups, motions: Sequence[Motion]) -> list[Moves]:
        """The numbers of each group: those of the optimizer where they differ from what was said.

        Args:
            groups: the groups.
            motions: of all leaves.

        Warns:
            UserWarning: where they differ, once for each kind of number.
        """
        told: set[str] = set()

        def tell(what: str, message: str) -> None:
            if what not in told:
                warnings.warn(message, stacklevel=4)
            told.add(what)

        found = [self._beside(name, [motions[k] for k in members], tell) for name, members in groups]
        undecayed = [move.remark == UNDECAYED for move in found]
        if undecayed and all(undecayed):
            first = [name for name, _ in groups[:3]]
            names = ", ".join(first) + (f" and {len(groups) - 3} more" if len(groups) > 3 else "")
            tell(
                "none",
                f"a weight decay was given, but the optimizer decays none of {names}: "
                "no equilibrium is predicted. Decay that is part of the loss is not seen",
            )
        return found

    def _beside(self, name: str, motions: list[Motion], tell: Callable[[str, str], None]) -> Moves:
        first = motions[0]
        alike = all((m.law, m.period) == (first.law, first.period) for m in motions)
        if not alike or any(not _same(m.rate, first.rate) for m in motions):
            return NO_LAW
        said = _at(self.learning_rate, first.first)
        if first.law != "lars" and first.rate and said and not 1 / FAR < first.rate / said < FAR:
            remark = (
                f"its first rate is {first.rate:.3g}, far from the {said:.3g} that was given: give its schedule as "
                "learning_rate= if it has one, else it may adapt"
            )
            tell("rate", f"the optimizer moves {name!r} by another law than was given: {remark}")
            return Moves("", decay=None, remark=remark)
        rate = trust = 1.0
        if first.law == "lars":
            trust = _factor(first.rate, said)
            if self.trust_coefficient is not None and not _same(trust, self.trust_coefficient):
                tell("trust", _differs("trust_coefficient", self.trust_coefficient, name, trust))
            trust = trust if said and first.rate else (self.trust_coefficient or 1.0)
        elif first.law:
            rate = _factor(first.rate, said)
            if rate != 1.0:
                tell(
                    "rate",
                    f"lngeom was given the learning rate {said:.3g}, but the first update of {name!r} by its "
                    f"optimizer has the rate {first.rate:.3g}, which is taken as its factor from there on. Give "
                    "learning_rate= what the optimizer was given, its schedule if it has one",
                )
        else:
            rate = 0.0
        memory = first.memory
        known = first.law in {"momentum", "adamw", "lion"} and first.rate is not None
        if known and self.momentum is not None and not _same(memory, self.momentum):
            tell("memory", _differs("momentum", self.momentum, name, memory))
        if first.b2 is not None and self.b2 is not None and not _same(1 - first.b2, 1 - self.b2):
            tell("b2", _differs("b2", self.b2, name, first.b2))
        decay, remark = self._decay(name, motions, first, tell)
        return Moves(
            first.law,
            rate,
            decay,
            memory,
            first.b2 if first.b2 is not None else (0.99 if self.b2 is None else self.b2),
            trust,
            first.period,
            any(m.clips for m in motions),
            remark,
        )

    def _decay(
        self, name: str, motions: list[Motion], first: Motion, tell: Callable[[str, str], None]
    ) -> tuple[float | None, str]:
        """The factor of the weight decay that was given, and why there is no equilibrium."""
        said = _at(self.weight_decay, first.first)
        remarks = [m.remark for m in motions if m.remark]
        if said == 0:
            return None, "no weight decay was given"
        if remarks:
            return None, remarks[0]
        if any(m.decay is None or abs(m.decay) < 1e-12 for m in motions):
            return None, UNDECAYED
        if any(not _same(m.decay, first.decay) for m in motions):
            return None, "its leaves decay by different amounts"
        if first.b2 is not None and is_short(first.law, first.b2):
            return None, f"its squared gradients are averaged over a few steps only (b2 is {first.b2:.3g})"
        if self._changes_otherwise(first):
            return None, "its learning rate changes from step to step in another way than the one that was given"
        if first.period > 1 and first.law in {"sgd", "momentum", "lars"}:
            return None, "the size of an accumulated gradient is not seen"
        factor = _factor(first.decay, said)
        if factor != 1.0:
            tell("decay", _differs("weight_decay", said, name, first.decay))
        return factor, ""

    def _changes_otherwise(self, motion: Motion) -> bool:
        """Whether the rates of the first steps are in other proportions than those that were given."""
        rates = [_at(self.learning_rate, motion.first + t) or 0.0 for t in range(len(motion.course))]
        if not rates or not all(rates):
            return False
        return not all(_same(found, rate / rates[0]) for found, rate in zip(motion.course, rates, strict=True))


def _differs(what: str, said: Any, name: str, found: Any) -> str:
    return (
        f"{what}={said:.3g} was given, but the optimizer moves {name!r} as with {found:.3g}: that is taken. Give what "
        "the optimizer was given"
    )


def _at(value: Any, step: int) -> float | None:
    """A number, or the value of a schedule; None where there is none, or it is traced."""
    if value is None:
        return None
    try:
        with jax.ensure_compile_time_eval():
            found: Any = value(jnp.asarray(step, jnp.int32)) if callable(value) else value
            return float(found)
    except (TypeError, jax.errors.ConcretizationTypeError):
        return None


def _factor(found: float | None, said: float | None) -> float:
    """What a number that was said must be multiplied by; 1 where both agree, or one is not known."""
    if found is None or not said or _same(found, said):
        return 1.0
    return found / said


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and abs(a - b) <= AGREES * max(abs(a), abs(b)))
