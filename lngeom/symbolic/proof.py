"""Proofs whose every step is checked by machine, and exact counterexamples certified to be non-zero."""

import copy
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import mpmath
import sympy as sp
from sympy import Eq, Expr, Indexed

from lngeom.symbolic import notation, sums
from lngeom.symbolic.evaluation import agrees_at_small_sizes
from lngeom.symbolic.notation import from_latex, legend, shown

Establishes = Literal["holds", "conditional", "refuted", "slip"]
Names = Mapping[str, Expr | Callable[..., Expr]]
"""What names stand for: a part of a formula, or a family of parts by its indices."""
LINE = 74
"""Columns of a formula in a terminal of 80, where it is indented by 6."""
APART = ",  "
"""What stands between formulas on one line; a line may be broken after it."""


class ProofError(ValueError):
    """A step of a proof, or a counterexample, that does not withstand its check."""


@dataclass(frozen=True)
class Written:
    """A formula as its author wrote it.

    Attributes:
        latex: LaTeX.
        plain: the same for a terminal; made from the LaTeX where it is empty.
        checked: LaTeX of what was checked, where the formula is shorter.
    """

    latex: str
    plain: str = ""
    checked: str = ""


@dataclass(frozen=True)
class Equation:
    """The formula left = right, written when it is asked for.

    Attributes:
        left: an expression in indexed sums.
        right: what it equals.
        name: LaTeX for what the left side is.
        short: names, as LaTeX, of parts of both sides. A symbol of that name in a side stands for the part, and an
            indexed symbol for an entry of a family.
        long: the same, used only where the line is otherwise too long.
    """

    left: Expr
    right: Expr
    name: str
    short: Names
    long: Names

    @cached_property
    def _sides(self) -> tuple[Expr, Expr]:
        """Both sides, with names for their parts."""
        sides = self.left, self.right
        if not self.long:
            return self._named(sides, self.short, {})
        full = self._named(self._named(sides, {}, self.long), self.short, {})
        return full if len(self._line(full)) <= LINE else self._named(sides, {**self.short, **self.long}, {})

    @cached_property
    def written(self) -> tuple[Expr, Expr]:
        """Both sides with every name written out: what is checked."""
        return self._named((self.left, self.right), {}, {**self.short, **self.long})

    @staticmethod
    def _named(sides: tuple[Expr, Expr], named: Names, written: Names) -> tuple[Expr, Expr]:
        """The sides with parts replaced by their names, and names by what they stand for."""
        symbols = {part: sp.Symbol(name) for name, part in named.items() if isinstance(part, Expr)}
        parts = {sp.Symbol(name): part for name, part in written.items() if isinstance(part, Expr)}
        fields = {name: part for name, part in written.items() if not isinstance(part, Expr)}
        first, second = (_entries_written(side.xreplace(symbols | parts), fields) for side in sides)
        return first, second

    def _line(self, sides: tuple[Expr, Expr]) -> str:
        left = from_latex(self.name) if self.name else notation.plain(sides[0])
        return f"{left} = {notation.plain(sides[1])}"

    @cached_property
    def latex(self) -> str:
        """The short line as LaTeX."""
        return f"{self.name or notation.latex(self._sides[0])} = {notation.latex(self._sides[1])}"

    @cached_property
    def plain(self) -> str:
        """The short line as Unicode."""
        return self._line(self._sides)

    @cached_property
    def checked(self) -> str:
        """What was checked, as LaTeX: the same with every name written out."""
        return sp.latex(Eq(*map(shown, self.written), evaluate=False))

    def holds(self) -> bool:
        """Whether both sides are equal: by normal form, and again by explicit loops at small sizes."""
        left, right = self.written
        return sums.vanishes(left - right) and agrees_at_small_sizes(left, right)


@dataclass(frozen=True)
class Step:
    """One step: what is claimed, and the check that settles it.

    Attributes:
        text: the claim in words.
        formula: the claim as a formula.
        verify: recomputes whether it is true.
        sizes: the sizes for which it was checked, where these are not all that the statement speaks of.
        lemma: the proof that it cites.
        rests: the equations and counterexamples that it consists of, for certificates.
    """

    text: str
    formula: Written | Equation
    verify: Callable[[], bool] = field(repr=False, compare=False)
    sizes: str = ""
    lemma: "Proof | None" = None
    rests: "tuple[Equation | Counterexample, ...]" = field(default=(), repr=False, compare=False)

    @property
    def latex(self) -> str:
        """The formula as LaTeX."""
        return self.formula.latex

    @property
    def plain(self) -> str:
        """The formula as Unicode."""
        return self.formula.plain or from_latex(self.formula.latex)

    @property
    def checked(self) -> str:
        """LaTeX of what was checked, where the formula is shorter; else empty."""
        return self.formula.checked

    def check(self) -> None:
        """Checks the step again.

        Raises:
            ProofError: if it is not true.
        """
        if self.verify() is not True:
            raise ProofError(f"this step does not hold: {self.text} [{self.plain}]")

    def as_dict(self) -> dict[str, str]:
        """Text, the formula as LaTeX, and what was checked where that is longer."""
        return {"text": self.text, "latex": self.latex, "checked": self.checked}


def equality(
    text: str,
    left: Expr | int,
    right: Expr | int,
    name: str = "",
    short: Names | None = None,
    long: Names | None = None,
) -> Step:
    r"""The step left = right, for all sizes: by normal form, and again by explicit loops at small sizes.

    Args:
        text: the claim in words.
        left: an expression in indexed sums.
        right: what it equals.
        name: LaTeX for what the left side is, shown in its place; what is checked is kept beside it.
        short: names, as LaTeX, of parts of both sides. They are shown in place of these parts, and a symbol of
            that name stands for the part in what is checked; an indexed symbol stands for an entry of a family.
        long: the same, used only where the line is otherwise too long for a terminal.

    Returns:
        The step.

    Raises:
        ProofError: if nothing in the sides has one of the names.
    """
    formula = Equation(sp.sympify(left), sp.sympify(right), name, short or {}, long or {})
    for symbol, part in {**formula.short, **formula.long}.items():
        used = {entry.base.name for side in (formula.left, formula.right) for entry in side.atoms(Indexed)}
        parts = (sp.Symbol(symbol), part) if isinstance(part, Expr) else ()
        if symbol not in used and not any(side.has(*parts) for side in (formula.left, formula.right) if parts):
            raise ProofError(f"{text}: no part of this step is {symbol}")
    return Step(text, formula, formula.holds, rests=(formula,))


def _entries_written(expr: Expr, fields: Mapping[str, Callable[..., Expr]]) -> Expr:
    """An expression with the entries of some families written out."""
    if not fields:
        return expr
    if isinstance(expr, Indexed):
        found = fields.get(expr.base.name)
        return expr if found is None else sp.sympify(found(*expr.indices))
    return notation.rebuilt(expr, lambda part: _entries_written(part, fields))


def fact(text: str, latex: str, verify: Callable[[], bool], plain: str = "", sizes: str = "") -> Step:
    """A step that is not an equation between sums: a rank, a sign, an expansion at one size.

    Args:
        text: the claim in words.
        latex: the claim as a formula.
        verify: recomputes whether it is true.
        plain: the formula for a terminal.
        sizes: the sizes at which it was checked, where the proof needs it at others too. A step that only confirms
            what others show for all sizes has none.

    Returns:
        The step.
    """
    return Step(text, Written(latex, plain), verify, sizes)


def jointly(text: str, steps: Sequence[Step]) -> Step:
    """Steps that read the same, such as one for each of several methods, as one.

    Args:
        text: the claim in words.
        steps: at least one.

    Returns:
        The step, which is true where all of them are and their formulas are the same.
    """
    first = steps[0].formula
    formula = Written(first.latex, first.plain, r",\quad ".join(step.checked for step in steps if step.checked))
    verify = lambda: all(s.plain == first.plain and s.verify() is True for s in steps)
    return Step(text, formula, verify, rests=_rests(steps))


def together(text: str, *steps: Step) -> Step:
    """Steps with the same reason as one, their formulas side by side.

    Args:
        text: the claim in words.
        *steps: at least one.

    Returns:
        The step, which is true where all of them are.
    """
    checked = r",\quad ".join(step.checked or step.latex for step in steps)
    formula = Written(r",\quad ".join(s.latex for s in steps), APART.join(s.plain for s in steps), checked)
    return Step(text, formula, lambda: all(step.verify() is True for step in steps), rests=_rests(steps))


def _rests(steps: Iterable[Step]) -> "tuple[Equation | Counterexample, ...]":
    return tuple(part for step in steps for part in step.rests)


def confirmed(step: Step, *others: Step) -> Step:
    """A step that others, which follow another route, confirm: they are kept beside it, with what was checked.

    Args:
        step: the step.
        *others: the others.

    Returns:
        The step, which is true where all of them are.
    """
    beside = (rf"\text{{{other.text}: }}{other.latex}" for other in others)
    formula = Written(step.latex, step.plain, r",\quad ".join((step.checked or step.latex, *beside)))
    verify = lambda: all(one.verify() is True for one in (step, *others))
    return Step(step.text, formula, verify, step.sizes, rests=_rests((step, *others)))


def cited(text: str, lemma: "Proof") -> Step:
    """The step that a lemma is true, which is a proof of its own.

    Args:
        text: what it says here, in words.
        lemma: the proof.

    Returns:
        The step, which is true where the proof, checked when it was made, needs no condition that it drops.
    """
    return Step(
        f"{text} ({lemma.name})", Written(lemma.statement), lambda: lemma.establishes == "holds", lemma.sizes, lemma
    )


def expanded(text: str, latex: str, *differences: Expr) -> Step:
    """The step that expressions without sums are zero, by differentiation, cancellation and expansion."""
    values = [x.doit() for x in differences]
    verify = lambda: all(sp.expand(sp.cancel(sp.expand(x))) == 0 for x in values)
    return Step(text, Written(latex), verify, rests=tuple(Equation(x, sp.S.Zero, "", {}, {}) for x in values))


@dataclass(frozen=True)
class Assumption:
    """A condition of a proof and, where it is needed, what goes wrong without it.

    Attributes:
        text: the condition in words.
        latex: the condition as a formula.
        when_dropped: an exact counterexample to the statement without the condition.
    """

    text: str
    latex: str
    when_dropped: "Counterexample | None" = None

    def as_dict(self) -> dict[str, Any]:
        """Text, LaTeX and the counterexample without the condition."""
        dropped = self.when_dropped.as_dict() if self.when_dropped else None
        return {"text": self.text, "latex": self.latex, "when_dropped": dropped}


@dataclass(frozen=True)
class Proof:
    """A statement, its assumptions, and steps each of which was checked when the proof was made.

    Attributes:
        statement: LaTeX.
        steps: at least one.
        assumptions: the conditions used.
        establishes: what it says about the claim it is a proof of.
        name: identifier; the proof of a claim has the claim's id.
    """

    statement: str
    steps: tuple[Step, ...]
    assumptions: tuple[Assumption, ...] = ()
    establishes: Establishes = "holds"
    name: str = ""

    def __post_init__(self):
        if not self.steps:
            raise ProofError(f"a proof needs at least one step; that of {self.name or self.statement!r} has none")
        self._check_steps()

    def check(self) -> None:
        """Checks every step, every lemma, and every counterexample to a dropped assumption, again.

        Raises:
            ProofError: if one of them fails.
        """
        for lemma in self.lemmas:
            lemma.check()
        self._check_steps()

    def _check_steps(self) -> None:
        for step in self.steps:
            step.check()
        for assumption in self.assumptions:
            if assumption.when_dropped:
                assumption.when_dropped.check()

    @property
    def sizes(self) -> str:
        """The sizes for which it is a proof; empty where it is one for all."""
        return "; ".join(step.sizes for step in self.steps if step.sizes)

    @property
    def lemmas(self) -> tuple["Proof", ...]:
        """The proofs that it cites, each once."""
        return tuple({step.lemma.name: step.lemma for step in self.steps if step.lemma}.values())

    def to_latex(self) -> str:
        """The proof as LaTeX: statement, assumptions, then steps."""
        lines = [rf"\textbf{{Statement.}} ${self.statement}$", ""]
        for a in self.assumptions:
            lines.append(rf"\textbf{{Assumption.}} {a.text}: ${a.latex}$.")
            if a.when_dropped:
                lines += ["Without it:", a.when_dropped.to_latex()]
        lines += [r"\begin{enumerate}"]
        lines += [rf"\item {s.text} \[{s.latex}\]" for s in self.steps]
        return "\n".join([*lines, r"\end{enumerate}", r"\qed"])

    def to_text(self, width: int = 100, full: bool = False) -> str:
        """The proof for a terminal.

        Args:
            width: columns.
            full: show what the machine checked beneath each line.
        """
        title = f"Proof of {self.name}" if self.name else "Proof"
        lines = _wrapped(f"{title}: {from_latex(self.statement)}", width)
        given = "; ".join(f"{a.text} ({from_latex(a.latex)})" for a in self.assumptions)
        lines += _wrapped(f"Assumed: {given}", width) if given else []
        used = legend(" ".join(step.plain for step in self.steps))
        lines += _wrapped(f"Notation: {used}", width) if used else []
        for number, step in enumerate(self.steps, 1):
            line = f"{number}. {step.text}: {step.plain}"
            fits = len(line) <= width
            lines += (
                [line] if fits else [*_wrapped(f"{number}. {step.text}:", width, "   "), *_formula(step.plain, width)]
            )
            if full and step.checked:
                lines += _wrapped(f"      checked: {step.checked}", width, "        ")
        of = "formula of its one step is" if len(self.steps) == 1 else f"formulas of all {len(self.steps)} steps are"
        lines += _wrapped(f"∎ The {of} checked by machine, the words are not.", width)
        for a in self.assumptions:
            if a.when_dropped:
                lines += _wrapped(f"Without {from_latex(a.latex)}: {a.when_dropped.in_words()}", width)
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "kind": "proof",
            "name": self.name,
            "statement": self.statement,
            "establishes": self.establishes,
            "assumptions": [a.as_dict() for a in self.assumptions],
            "steps": [s.as_dict() for s in self.steps],
        }


class Change(NamedTuple):
    """Two matrices side by side: before and after a transformation, or as stated and exact.

    Attributes:
        names: LaTeX of what each is.
        before: the first, exact.
        after: the second, of the same shape.
    """

    names: tuple[str, str]
    before: sp.MatrixBase
    after: sp.MatrixBase

    @property
    def differs(self) -> list[list[bool]]:
        """Where the entries are certified to differ, a row a list."""
        gap = sp.Matrix(self.after - self.before)
        return [[bool(value != 0 and certified_nonzero(value)) for value in row] for row in gap.tolist()]

    def as_dict(self) -> dict[str, Any]:
        """Names, entries as LaTeX, the places that differ, and both matrices as one formula."""
        before, after = ([[sp.latex(v) for v in row] for row in A.tolist()] for A in (self.before, self.after))
        formula = r",\quad ".join(f"{n} = {sp.latex(A)}" for n, A in zip(self.names, self[1:], strict=True))
        return {"names": self.names, "before": before, "after": after, "differs": self.differs, "latex": formula}


@dataclass(frozen=True)
class Counterexample:
    """An exact instance at which a statement fails.

    Attributes:
        name: identifier.
        statement: LaTeX of the statement that fails.
        instance: exact values by LaTeX name.
        sides: computes, from the instance, the two numbers that the statement says are equal.
        text: what the two sides are.
        correction: a proof of what is true instead.
        establishes: what it says about the claim it is evidence of.
        changes: computes, from the instance, matrices to be shown side by side. The two sides are entries of the last
            pair.
    """

    name: str
    statement: str
    instance: Mapping[str, Any]
    sides: Callable[[Mapping[str, Any]], tuple[Expr, Expr]] = field(repr=False, compare=False)
    text: str = ""
    correction: Proof | None = None
    establishes: Establishes = "refuted"
    changes: Callable[[Mapping[str, Any]], Sequence[Change]] | None = field(default=None, repr=False, compare=False)
    _computed: tuple[Expr, Expr] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "instance", {name: sp.sympify(v) for name, v in self.instance.items()})
        object.__setattr__(self, "_computed", self._checked_sides())

    @property
    def left(self) -> Expr:
        """Left side of the statement at the instance."""
        return self._computed[0]

    @property
    def right(self) -> Expr:
        """Right side of the statement at the instance."""
        return self._computed[1]

    @property
    def difference(self) -> Expr:
        """Left side minus right side, exact and not zero."""
        return self.left - self.right

    def check(self) -> None:
        """Computes both sides again, certifies that they differ, and checks the correction.

        Raises:
            ProofError: if they do not differ.
        """
        self._checked_sides()
        if self.correction:
            self.correction.check()

    def _checked_sides(self) -> tuple[Expr, Expr]:
        """Both sides, computed from the instance and certified to differ."""
        if any(_inexact(value) for value in self.instance.values()):
            raise ProofError(f"{self.name}: the instance of a counterexample must be exact; got {dict(self.instance)}")
        left, right = map(sp.sympify, self.sides(self.instance))
        if not certified_nonzero(left - right):
            raise ProofError(f"not a counterexample to {self.name}: both sides are {left}")
        if self.changes:
            last = self.changes(self.instance)[-1]
            if (left, right) not in zip(last.before, last.after, strict=True):
                raise ProofError(f"{self.name}: {left} and {right} are no entries of what is shown")
        return left, right

    def to_latex(self) -> str:
        """The counterexample as LaTeX."""
        values = r",\quad ".join(f"{name} = {sp.latex(value)}" for name, value in self.instance.items())
        lines = [
            rf"\textbf{{Counterexample}} to ${self.statement}$: at \[{values}\] {self.text}",
            rf"\[{sp.latex(self.left)} \neq {sp.latex(self.right)},\quad"
            rf"\text{{difference }} {sp.latex(self.difference)}\]",
        ]
        return "\n".join([*lines, *([r"\textbf{Correction.}", self.correction.to_latex()] if self.correction else [])])

    def to_text(self, width: int = 100, full: bool = False) -> str:
        """The counterexample for a terminal (arguments as `Proof.to_text`)."""
        lines = _wrapped(f"Counterexample to {self.name}: {from_latex(self.statement)}", width) + self._lines(width)
        return "\n".join([*lines, *([self.correction.to_text(width, full)] if self.correction else [])])

    def in_words(self) -> str:
        """Both sides, what they are, and the instance."""
        sides = f"{notation.plain(self.left)} ≠ {notation.plain(self.right)}"
        return f"{sides}. {self.text.rstrip('.')}, at {_instance(self.instance)}."

    def _lines(self, width: int) -> list[str]:
        """The instance, what is compared, and both sides."""
        near = str(sp.N(self.difference, 6)).replace("-", "−")
        sides = f"left = {notation.plain(self.left)}, right = {notation.plain(self.right)}"
        gap = f"left − right = {notation.plain(self.difference)} ≈ {near}, certified not 0"
        both = f"  {sides}, {gap}"
        lines = [
            f"At {_instance(self.instance)}:",
            self.text,
            *([both] if len(both) <= width else [f"  {sides}", f"  {gap}"]),
        ]
        return [row for line in lines for row in _wrapped(line, width, "    ")]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "kind": "counterexample",
            "name": self.name,
            "statement": self.statement,
            "establishes": self.establishes,
            "instance": {name: _plain(value) for name, value in self.instance.items()},
            "text": self.text,
            "left": str(self.left),
            "right": str(self.right),
            "difference": str(self.difference),
            "correction": self.correction.as_dict() if self.correction else None,
            "steps": [
                {"text": self.text, "latex": rf"{sp.latex(self.left)} \neq {sp.latex(self.right)}"},
                *([s.as_dict() for s in self.correction.steps] if self.correction else []),
            ],
        }


def changed(
    name: str,
    statement: str,
    text: str,
    before: Callable[[Mapping[str, Any]], Any],
    after: Callable[[Mapping[str, Any]], Any],
    instance: Mapping[str, Any],
    *,
    entry: tuple[int, int] = (0, 0),
    correction: Proof | None = None,
    names: tuple[str, str] = (r"\text{before}", r"\text{after}"),
) -> Counterexample:
    """A counterexample to before(instance) = after(instance), matrices whose `entry` is compared; `names` are LaTeX."""
    return Counterexample(
        name,
        statement,
        instance,
        lambda v: (sp.sympify(before(v))[entry], sp.sympify(after(v))[entry]),
        text,
        correction,
        changes=lambda v: (Change(names, sp.sympify(before(v)), sp.sympify(after(v))),),
    )


def refutation(text: str, counterexample: Counterexample, name: str = "") -> Step:
    """The step that a counterexample stands; `name` is LaTeX for its left side."""

    def verify() -> bool:
        counterexample.check()
        return True

    left, right = counterexample.left, counterexample.right
    what = f"{name} = " if name else ""
    line = f"{from_latex(name)} = " if name else ""
    formula = Written(
        rf"{what}{sp.latex(left)} \neq {sp.latex(right)}",
        f"{line}{notation.plain(left)} ≠ {notation.plain(right)}",
    )
    return Step(f"{text}: at {_instance(counterexample.instance)}", formula, verify, rests=(counterexample,))


def labelled(result: Proof | Counterexample, name: str, establishes: Establishes) -> Proof | Counterexample:
    """The same evidence with the name of a claim or lemma, and with what it says about it."""
    copied = copy.copy(result)
    object.__setattr__(copied, "name", name)
    object.__setattr__(copied, "establishes", establishes)
    return copied


def certified_nonzero(value: Expr) -> bool:
    """Whether a number is not zero, by exact arithmetic, or by interval arithmetic if it is transcendental."""
    if value.is_Rational:
        return value != 0
    try:
        interval = _interval(value)
        if not interval.a <= 0 <= interval.b:
            return True
    except (ProofError, ValueError):
        pass
    if value.is_algebraic:
        x = sp.Symbol("x")
        return sp.minimal_polynomial(value, x, compose=True) != x
    interval = _interval(value)
    return not (interval.a <= 0 <= interval.b)


def _interval(value: Expr) -> Any:
    """Enclosure of a closed expression by interval arithmetic."""
    iv = mpmath.iv
    if value.is_Rational:
        return iv.mpf(int(value.p)) / int(value.q)  # pyright: ignore
    if value == sp.E:
        return iv.e
    arguments = [_interval(arg) for arg in value.args]
    if isinstance(value, sp.Add):
        return sum(arguments, iv.mpf(0))
    if isinstance(value, sp.Mul):
        product = iv.mpf(1)
        for argument in arguments:
            product *= argument
        return product
    if isinstance(value, sp.Pow):
        exponent = value.exp
        return arguments[0] ** int(exponent) if exponent.is_Integer else iv.exp(arguments[1] * iv.log(arguments[0]))
    if isinstance(value, sp.tanh):
        twice = iv.exp(2 * arguments[0])
        return (twice - 1) / (twice + 1)
    if isinstance(value, (sp.exp, sp.log)):
        return getattr(iv, type(value).__name__)(arguments[0])
    raise ProofError(f"cannot enclose {value}: no interval rule for {type(value).__name__}")


def _inexact(value: Any) -> bool:
    return bool(value.atoms(sp.Float)) if hasattr(value, "atoms") else isinstance(value, float)


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Lines of at most `width` columns, where words allow it."""
    start = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text.strip(),
        width,
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(value: Any) -> str:
    return str(value.tolist()) if isinstance(value, sp.MatrixBase) else str(value)


def _value(value: Any) -> str:
    """A number, or the rows of a matrix between semicolons: [1 0; 0 1]."""
    if not isinstance(value, sp.MatrixBase):
        return notation.plain(value)
    return f"[{'; '.join(' '.join(map(notation.plain, row)) for row in value.tolist())}]"


def at(**instance: Any) -> str:
    """Names with their exact values, in a line."""
    return _instance(instance)


def _instance(instance: Mapping[str, Any]) -> str:
    return ", ".join(f"{from_latex(name)} = {_value(value)}" for name, value in instance.items())


def _formula(line: str, width: int) -> list[str]:
    """A formula on one line where it fits, else several on lines of their own, or broken before signs of equality.

    Those of a delta, in square brackets, stay. A side that is too long is broken before a plus or minus.
    """
    if len(line) + 6 <= width:
        return [f"      {line}"]
    if APART in line:
        rows: list[str] = []
        for part in line.split(APART):
            if rows and len(rows[-1]) + len(APART) + len(part) <= width:
                rows[-1] += APART + part
            else:
                rows += _formula(part, width)
        return [f"{row}," for row in rows[:-1]] + rows[-1:]
    first, *rest = re.split(r" (?=[=≠<>≤≥⇒] (?![^\[\]]*\]))", line)
    parts = [f"      {first}", *(f"        {part}" for part in rest)]
    lines = [row for part in parts for row in _before_signs(part, width)]
    return [row for line in lines for row in _wrapped(line, width, "          ")]


def _before_signs(line: str, width: int) -> list[str]:
    """A side of an equation on lines of at most `width` columns, broken before a plus or minus in few brackets."""
    if len(line) <= width:
        return [line]
    depth, best, least = 0, 0, math.inf
    for place, letter in enumerate(line[: width + 1]):
        depth += (letter in "([") - (letter in ")]")
        if line.startswith((" + ", " − "), place) and place > 10 and depth <= least:
            best, least = place, depth
    return [line[:best], *_before_signs(f"        {line[best + 1 :]}", width)] if best else [line]


def matrix(rows: Iterable[Iterable[Any]]) -> sp.ImmutableMatrix:
    """An exact matrix (integers, fractions, strings such as "1/2")."""
    return sp.ImmutableMatrix([[sp.Rational(str(value)) for value in row] for row in rows])
