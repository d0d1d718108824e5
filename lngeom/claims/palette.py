"""The signs and colours of verdicts and answers: one palette of report, explorer, site, figures and terminal."""

from types import MappingProxyType
from typing import NamedTuple

from lngeom.claims.evidence import Verdict


class Look(NamedTuple):
    """How a verdict or an answer is drawn.

    Attributes:
        sign: a character that tells it without its colour.
        light: its colour on a light ground, as #rrggbb.
        dark: on a dark ground.
        terminal: its style in a terminal, which has colours of its own.
    """

    sign: str
    light: str
    dark: str
    terminal: str


_TRUE, _AMBER = ("#136c34", "#5fd08a"), ("#855500", "#e8b64c")
_WRONG, _OPEN = ("#b3261e", "#ff8f86"), ("#7a2fb0", "#cf9dff")

VERDICTS = MappingProxyType(
    {
        Verdict.HOLDS: Look("✓", *_TRUE, "green"),
        Verdict.CONDITIONAL: Look("◐", *_AMBER, "yellow"),
        Verdict.REFUTED: Look("✗", *_WRONG, "red"),
        Verdict.SLIP: Look("✎", *_AMBER, "yellow"),
        Verdict.NOT_REPRODUCED: Look("≁", *_OPEN, "magenta"),
        Verdict.UNDECIDED: Look("?", *_OPEN, "magenta"),
        Verdict.CLASH: Look("⚠", *_WRONG, "bold white on red"),
    }
)
"""Verdict → its look. Text of these colours has a contrast of at least 4.5 to 1."""

ANSWERS = MappingProxyType(
    {
        "invariant": Look("yes", "#b3d3f0", "#1b4a78", "cyan"),
        "no": Look("no", "#fdf0e2", "#4e3013", "yellow"),
        "up to sign": Look("±", "#dccbee", "#44295c", "magenta"),
        "unknown": Look("–", "#eceef1", "#2a2f38", "magenta"),
    }
)
"""Answer in a cell of an invariance table → its look; the colours are grounds of the cells. Their greys differ too."""

BLUE, ORANGE = ("#0067a3", "#56b4e9"), ("#b34700", "#f0a050")
"""What agrees and what differs, in drawings: on a light ground, and on a dark one."""


def css_name(name: str) -> str:
    """A verdict or an answer as a class of a style sheet."""
    return name.replace(" ", "-")


def colours() -> dict[str, tuple[str, str]]:
    """Every colour by its name in style sheets: of verdicts, of the grounds of cells, blue and orange.

    Returns:
        Name → colours on a light ground and on a dark one.

    Example:
        >>> colours()["holds"], colours()["cell-no"]
        (('#136c34', '#5fd08a'), ('#fdf0e2', '#4e3013'))
    """
    verdicts = {css_name(verdict.value): (look.light, look.dark) for verdict, look in VERDICTS.items()}
    cells = {f"cell-{css_name(answer)}": (look.light, look.dark) for answer, look in ANSWERS.items()}
    return {**verdicts, **cells, "blue": BLUE, "orange": ORANGE}
