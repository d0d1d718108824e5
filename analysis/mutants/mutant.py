"""A mutant: one fault, as a replacement of one fragment of the source."""

import fnmatch
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

AREAS = (
    "normalizers",
    "families",
    "glm",
    "information",
    "nullspace",
    "metric",
    "transformations",
    "symbolic",
    "claims",
    "training",
    "nn",
    "numerics",
    "studies",
)
"""The areas, in the order of the table."""


@dataclass(frozen=True)
class Mutant:
    """A fault that a person could make.

    Attributes:
        id: short identifier.
        area: one of `AREAS`.
        file: path below `lngeom/`.
        fragment: source text, which occurs once in the file.
        replacement: what takes its place.
        wrong: the fault, in a few words.
        claims: claims that ought to notice it: ids, topics, or patterns of ids.
        tests: test files that ought to notice it.
        proofs: whether proofs can notice it, so that claims are checked with them.
        equivalent: why it changes no result, where that is so.
    """

    id: str
    area: str
    file: str
    fragment: str
    replacement: str
    wrong: str
    claims: tuple[str, ...]
    tests: tuple[str, ...]
    proofs: bool = False
    equivalent: str = ""

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides its result."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:16]

    def apply(self, source: str) -> str:
        """The source with the fault.

        Args:
            source: text of the file.

        Returns:
            The changed text.

        Raises:
            ValueError: if the fragment does not occur exactly once, or nothing changes.
        """
        if (count := source.count(self.fragment)) != 1:
            raise ValueError(f"mutant {self.id!r}: its fragment occurs {count} times in lngeom/{self.file}, not once")
        if self.fragment == self.replacement:
            raise ValueError(f"mutant {self.id!r} changes nothing")
        return source.replace(self.fragment, self.replacement)

    def plant(self, root: Path) -> None:
        """Plants the fault in a copy of the repository, and drops the compiled form of the file.

        Args:
            root: the copy.
        """
        path = root / "lngeom" / self.file
        path.write_text(self.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()


@dataclass(frozen=True)
class Source:
    """A file and those who ought to notice its faults: makes mutants.

    Attributes:
        area: one of `AREAS`.
        file: path below `lngeom/`.
        claims: claims for faults that name none.
        tests: test files for faults that name none.
        proofs: whether proofs can notice faults, where they do not say.
    """

    area: str
    file: str
    claims: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    proofs: bool = False

    def __call__(
        self,
        id: str,
        fragment: str,
        replacement: str,
        wrong: str,
        claims: tuple[str, ...] | None = None,
        tests: tuple[str, ...] | None = None,
        proofs: bool | None = None,
        equivalent: str = "",
    ) -> Mutant:
        """A fault of the file; arguments as in `Mutant`."""
        return Mutant(
            id,
            self.area,
            self.file,
            fragment,
            replacement,
            wrong,
            self.claims if claims is None else claims,
            self.tests if tests is None else tests,
            self.proofs if proofs is None else proofs,
            equivalent,
        )


def matching(patterns: Iterable[str], known: Sequence[tuple[str, str]]) -> list[str]:
    """Ids of the claims that patterns name, in the patterns' order.

    Args:
        patterns: ids, topics, or patterns of ids with the wildcards of file names.
        known: (id, topic) of every claim.

    Returns:
        Ids, each once.

    Raises:
        ValueError: if a pattern names no claim.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        hits = [id for id, topic in known if pattern == topic or fnmatch.fnmatchcase(id, pattern)]
        if not hits:
            raise ValueError(f"no claim or topic {pattern!r}")
        found |= dict.fromkeys(hits)
    return list(found)
