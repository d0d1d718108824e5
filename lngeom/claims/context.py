"""A sentence of a paper in its context, how it can be read, and where it was read."""

from dataclasses import dataclass
from enum import StrEnum

from lngeom.claims.evidence import Verdict


class Read(StrEnum):
    """Where the statement of a claim was read."""

    PAPER = "in the paper"
    NOTES = "in a transcription, notes or the authors' code"
    ABSTRACT = "in the paper's abstract only"
    NOWHERE = "not yet: the statement was not compared with the paper"
    OWN = "nowhere: lngeom adds it"


@dataclass(frozen=True)
class Reading:
    """One way in which the words of a paper can be read: an interpretation, not a special case.

    Attributes:
        says: what the words mean under it.
        verdict: on the sentence under this reading.
    """

    says: str
    verdict: Verdict


@dataclass(frozen=True)
class Context:
    """Literal quotations around a claim, and the readings that the words allow.

    Mathematics is in Unicode, "…" marks omissions, and square brackets enclose the paper's citations, or words that are
    not the paper's.

    Attributes:
        sentence: the sentence that the claim is about.
        before: what the paper says before it.
        after: what it says after it.
        readings: the one most favourable to the paper first. A claim is refuted only if it fails under each of them.
        verdict: why the verdict stands.
    """

    sentence: str
    before: str
    after: str
    readings: tuple[Reading, ...]
    verdict: str
