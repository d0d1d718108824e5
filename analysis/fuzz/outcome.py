"""What became of a case."""

from dataclasses import dataclass, field

RIGHT, EITHER, REFUSED = "right", "right or refused", "refused"
"""What is expected of `lg.fisher`: the matrix; the matrix or an error with a remedy; an error."""

OUTCOMES = ("right", "refused", "undecided", "over-refused", "crash", "silent")
"""From best to worst. Over-refused: an error for a model that has a Fisher matrix; undecided: too badly conditioned."""

FAILURES = ("crash", "silent")


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        seed: of the case.
        name: what it was made of.
        outcome: one of `OUTCOMES`.
        expectation: what was expected.
        residuals: of each route, in units of its tolerance.
        messages: of routes that refused, crashed or differ.
        warned: warnings of the library.
        tolerance: relative, of the matrix.
        dtype: lowest precision in it.
        parameters: P.
        rank: of the reference, if it is clear, and that of the operator.
        seconds: taken.
    """

    seed: int
    name: str
    outcome: str = "right"
    expectation: str = RIGHT
    residuals: dict[str, float] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)
    tolerance: float = 0.0
    dtype: str = "float64"
    parameters: int = 0
    rank: tuple[int | None, int | None] = (None, None)
    seconds: float = 0.0

    def worsen(self, outcome: str, route: str, message: str) -> None:
        """Records a finding of a route."""
        self.outcome = max(self.outcome, outcome, key=OUTCOMES.index)
        self.messages[route] = f"{outcome}: {message}"
