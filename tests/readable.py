"""What keeps a mathematician from reading a proof in a terminal.

Long lines, Python names, and lines that repeat another or whose two sides read the same.
"""

import itertools
import re
from collections.abc import Iterator

from lngeom.symbolic import Counterexample, Proof

WIDTH = 80
ALOUD = 15
"""Lines at most of a proof that is read aloud."""
WORDS = {
    *(
        "arctan",
        "cos",
        "dim",
        "exp",
        "ker",
        "lim",
        "log",
        "max",
        "mean",
        "min",
        "rank",
        "sign",
        "sin",
        "tan",
        "tanh",
        "vec",
    ),
    *("vec", "diag", "Cov", "Var", "RMS", "rms", "norm", "groups", "correlated", "independent"),
}
"""Words of three letters or more that a formula may have."""
BROKEN = " " * 10
"""How a line begins that continues one side of an equation."""


def too_long(evidence: Proof | Counterexample) -> list[str]:
    """The lines of its text at 80 columns that are too many."""
    return evidence.to_text(WIDTH).splitlines()[ALOUD:]


def formulas(evidence: Proof | Counterexample | None) -> Iterator[list[str]]:
    """The formulas of a proof, of its counterexamples' corrections, and of the correction of a counterexample."""
    if isinstance(evidence, Proof):
        yield [step.plain for step in evidence.steps]
        for assumption in evidence.assumptions:
            yield from formulas(assumption.when_dropped)
    elif evidence is not None:
        yield from formulas(evidence.correction)


def python_names(formula: str) -> list[str]:
    """Words that are not those of mathematics, indices aside, and operators of Python."""
    words = re.findall(r"[A-Za-z]{3,}", re.sub(r"_\(?[a-z]{1,4}(?![A-Za-z0-9_])", "", formula))
    return [*(w for w in words if w not in WORDS), *re.findall(r"\*\*|\\|__|[a-z]{2,}_[a-z]{5,}", formula)]


def unreadable(evidence: Proof | Counterexample) -> list[str]:
    """The faults of its text at 80 columns; none where it can be read."""
    lines = evidence.to_text(WIDTH).splitlines()
    faults = [f"wide: {line}" for line in lines if len(line) > WIDTH]
    faults += [f"broken: {line}" for line in lines if line.startswith(BROKEN)]
    for group in formulas(evidence):
        faults += [f"names {names}: {formula}" for formula in group if (names := python_names(formula))]
        faults += [f"twice: {one}" for one, other in itertools.pairwise(group) if one == other]
        sides = [formula.split(" = ") for formula in group]
        faults += [f"says nothing: {' = '.join(both)}" for both in sides if len(both) == 2 and both[0] == both[1]]
    return faults
