"""What a refuted or conditional statement means for a paper: how grave it is, and what was found, in one sentence."""

from dataclasses import dataclass
from enum import StrEnum


class Consequence(StrEnum):
    """How far an error reaches, the gravest first."""

    CONCLUSION = "changes a conclusion"
    SENTENCE = "wrong sentence"
    NOTATION = "slip of notation"


@dataclass(frozen=True)
class Erratum:
    """An entry of the list of errata.

    Attributes:
        consequence: how far the error reaches.
        title: what was found, in one sentence.
    """

    consequence: Consequence
    title: str
