"""Results of a check of derivatives, as data and as text."""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lngeom._core.text import table, terminal_width, wrapped

ORDINALS = {1: "first", 2: "second", 3: "third"}


class Answer(enum.Enum):
    """What a derivative turned out to be."""

    RIGHT = "right"
    WRONG = "wrong"
    UNDEFINED = "not defined"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Derivative:
    r"""One derivative of a layer, at one point.

    Attributes:
        route: modes of differentiation, the last one applied first: "jvp∘vjp" is forward over reverse mode.
        order: 1, 2 or 3; 0 for outputs under `vmap`.
        formula: what it is; x holds inputs, weights and parameters, u and v are directions, c is a cotangent.
        dtype: in which it was computed.
        point: what is special about the inputs; "" for ordinary ones.
        answer: whether it is the derivative of the layer's outputs.
        deviation: largest error of an entry, relative to the largest of its argument.
        tolerance: error that rounding explains.
        argument: where the error is largest: "inputs", the name of a parameter, or "outputs".
        found: the entry of largest error.
        expected: what it should be, by differences of outputs in the widest dtype.
        note: in words: an error of the framework, why it is undecided.
    """

    route: str
    order: int
    formula: str
    dtype: str
    point: str
    answer: Answer
    deviation: float = 0.0
    tolerance: float = 0.0
    argument: str = ""
    found: float = math.nan
    expected: float = math.nan
    note: str = ""

    @property
    def batched(self) -> bool:
        """Whether it was taken under `vmap`."""
        return "vmap(" in self.route

    @property
    def where(self) -> str:
        """The route with dtype and point."""
        return ", ".join(filter(None, (self.route, self.dtype, self.point)))


@dataclass(frozen=True)
class Derivatives:
    """The report of `check_derivatives`.

    Attributes:
        layer: name of the layer.
        wide: widest dtype in which the layer computes; the reference is in it.
        arguments: in what the layer was differentiated.
        results: one for each route, dtype and point.
        diagnosis: what is wrong, in sentences, first orders first; empty where nothing is.
        code: a program that shows the first wrong derivative; empty where none is or where the layer has no name.
    """

    layer: str
    wide: str
    arguments: tuple[str, ...]
    results: tuple[Derivative, ...]
    diagnosis: tuple[str, ...] = ()
    code: str = ""

    @property
    def wrong(self) -> tuple[Derivative, ...]:
        """Derivatives that are not those of the outputs."""
        return tuple(r for r in self.results if r.answer is Answer.WRONG)

    @property
    def checked(self) -> tuple[Derivative, ...]:
        """Derivatives that were compared with differences of the outputs, to the end."""
        return tuple(r for r in self.results if r.answer in {Answer.RIGHT, Answer.WRONG})

    def __getitem__(self, route: str) -> Derivative:
        """The worst result of a route, in any dtype and at any point."""
        found = [r for r in self.results if r.route == route]
        if not found:
            names = ", ".join(dict.fromkeys(r.route for r in self.results))
            raise KeyError(f"no route {route!r}; there are {names}")
        return max(found, key=lambda r: (r.answer is Answer.WRONG, r.answer is Answer.RIGHT, r.deviation))

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON takes it, without the derivatives that are right."""
        numbers = ("deviation", "tolerance", "found", "expected")
        wrong = [
            {"route": r.route, "order": r.order, "dtype": r.dtype, "point": r.point, "argument": r.argument}
            | {name: getattr(r, name) if math.isfinite(getattr(r, name)) else None for name in numbers}
            for r in self.wrong
        ]
        counts = {"checked": len(self.checked), "left": len(self.results) - len(self.checked)}
        return {"layer": self.layer, **counts, "wrong": wrong, "diagnosis": list(self.diagnosis)}

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int | None = None, *, code: bool = False) -> str:
        """What is wrong, a table, and what the table's numbers are.

        Args:
            width: columns, at least 40; those of the terminal by default. Code is not wrapped.
            code: whether a program follows that shows the first wrong derivative.

        Returns:
            Lines of text.
        """
        width = terminal_width() if width is None else width
        blocks = [[row for line in self._said() for row in wrapped(line, width)], self._table(width)]
        blocks.append([row for line in self._notes(code) for row in wrapped(line, width)])
        if code and self.code:
            blocks.append(self.code.rstrip().splitlines())
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def _said(self) -> Iterator[str]:
        checked = self.checked
        what = f"Derivatives of {self.layer} in {', '.join(self.arguments)}"
        if not checked:
            yield f"{what}: none could be checked."
        elif not self.wrong:
            yield f"{what}: all {len(checked)} that were checked are those of its outputs."
        else:
            yield f"{what}: {len(self.wrong)} of {len(checked)} are not those of its outputs."
        yield from (f"  {sentence}" for sentence in self.diagnosis)

    def _table(self, width: int) -> list[str]:
        """A row for each route: its worst result."""
        rows = [("derivative", "order", "answer", "error", "worst in")]
        for route in dict.fromkeys(r.route for r in self.results):
            worst = self[route]
            places = ", ".join(filter(None, (worst.argument, worst.dtype, worst.point)))
            shown = worst.answer in {Answer.RIGHT, Answer.WRONG}
            rows.append(
                (route, str(worst.order), worst.answer.value, _number(worst.deviation) if shown else "–", places)
            )
        return table(rows, width, [(4, 8), (0, 8), (2, 6)])

    def _notes(self, code: bool) -> Iterator[str]:
        yield (
            "jvp: forward mode, vjp: reverse mode, a∘b: a of b. The reference is differences of the layer's outputs "
            f"in {self.wide}. error: of an entry, relative to the largest one of its argument."
        )
        said: dict[str, list[str]] = {}
        for r in self.results:
            said.setdefault(r.note, []).append(r.where)
        for note, where in said.items():
            if note:
                names = ", ".join(where[:4]) + (f" and {len(where) - 4} more" if len(where) > 4 else "")
                yield f"  {names}: {note}"
        if self.code and not code:
            yield "A program that shows it: --counterexamples, or to_text(code=True)."


def _number(value: float) -> str:
    return "∞" if not math.isfinite(value) else "0" if value == 0 else f"{value:.0e}"
