"""A sentence of a paper in its context, how a claim reads it, and where it was read."""

from dataclasses import dataclass
from enum import StrEnum


class Read(StrEnum):
    """Where the statement of a claim was read."""

    PAPER = "in the paper"
    NOTES = "in a transcription, notes or the authors' code"
    ABSTRACT = "in the paper's abstract only"
    NOWHERE = "not yet: the statement was not compared with the paper"
    OWN = "nowhere: lngeom adds it"


@dataclass(frozen=True)
class Context:
    """Literal quotations around a claim, with the charitable reading that its verdict is about.

    Mathematics is in Unicode, "…" marks omissions, and square brackets enclose the paper's citations, or words that are
    not the paper's.

    Attributes:
        sentence: the sentence that the claim is about.
        before: what the paper says before it.
        after: what it says after it.
        reading: the reading most favourable to the paper.
        verdict: why the verdict stands under that reading.
        otherwise: the verdict under another reading; empty where the verdict does not depend on the reading.
    """

    sentence: str
    before: str
    after: str
    reading: str
    verdict: str
    otherwise: str = ""
