"""Names of claims as people write them: an id, "Eq. 13", "table1", "section 5.1", "layer norm gain refuted".

A query is read as conditions, and a claim is found where it meets all of them. A condition is a numbered place of the
paper, a method, a verdict, or a part of a word. The report page has the same data, `rules` and the `tokens` of each
claim, and its script, `search.js`, reads them in the same way.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lngeom.claims.evidence import Verdict
from lngeom.methods import METHODS

PLACES = {
    "eq": "eqn?s?|equations?",
    "table": "tables?",
    "section": "sections?|secs?|§+",
    "theorem": "theorems?|thms?",
    "lemma": "lemmas?",
    "proposition": "propositions?|props?",
    "figure": "figures?|figs?",
}
"""Kinds of numbered places, and the words that stand before their numbers."""

PASSED_OVER = (
    *("is", "are", "the", "of", "a", "an", "in", "on", "and", "for", "to", "by", "with"),
    *("why", "right", "wrong", "true", "correct", "et", "al"),
)
"""Words of a query that are no conditions."""

MARKS = ".,;:()\"'?!“”‘’"
"""What may stand around a word of a query."""

ENGLISH = {"in", "scale"}
"""Names of methods that are English words: their claims are found by the long form, such as "instance norm"."""

_NUMBER = r"\(?\d+(?:\.\d+)*\)?"
_LIST = rf"({_NUMBER}(?:\s*(?:,|and|&|to|[-–_])\s*{_NUMBER})*)"
_RANGE = r"(\d+(?:\.\d+)*)(?:\)?\s*(?:to|[-–_])\s*\(?(\d+)(?![.\d]))?"


class Tokens(NamedTuple):
    """By what a claim is found.

    Attributes:
        keys: places and methods that its record names: "eq13", "section5.2", "section5", "ln".
        words: the text of the record, in small letters.
    """

    keys: frozenset[str]
    words: str


class Condition(NamedTuple):
    """What a query asks for.

    Attributes:
        keys: places and methods, one of which is to be named; empty where it is a word or a verdict.
        word: a part of a word.
        verdict: a verdict.
    """

    keys: frozenset[str] = frozenset()
    word: str = ""
    verdict: str = ""

    def met(self, tokens: Tokens, verdict: str) -> bool:
        """Whether a claim of these tokens and this verdict meets it."""
        if self.verdict:
            return self.verdict == verdict
        return bool(self.keys & tokens.keys) if self.keys else self.word in tokens.words


class UnknownClaim(ValueError):
    """No claim has this name.

    Attributes:
        headline: the first line of the message.
        near: claims of names near it, each a line of the message.
    """

    def __init__(self, name: str, claims: Sequence[Any]):
        places = _places_of(name, claims)
        self.near: tuple[Any, ...] = () if places else tuple(near(name, claims))
        hint = places or ("did you mean" if self.near else "`lngeom verify --list` shows all")
        self.headline = f"no claim {name!r}; {hint}"
        super().__init__("\n  ".join((self.headline, *map(line, self.near))))


def line(claim: Any) -> str:
    """A claim's id, recorded verdict and statement."""
    return f"{claim.id}  {claim.expected.value}  {claim.statement}"


@functools.cache
def rules() -> dict[str, Any]:
    """How a query is read, as data: the regular expressions mean the same in Python and in JavaScript."""
    return {
        "places": {kind: rf"(?<![a-z0-9])(?:{words})[\s._(]*{_LIST}" for kind, words in PLACES.items()},
        "range": _RANGE,
        "methods": _methods(),
        "verdicts": [verdict.value for verdict in Verdict],
        "passed over": PASSED_OVER,
    }


def _methods() -> dict[str, str]:
    """How the methods whose classes are called "… norm" are written: "ln", "LayerNorm", "layer normalization"."""
    found = {}
    for method in METHODS.values():
        first, *rest = re.findall("[A-Z]+(?![a-z])|[A-Z][a-z]+", method.kind.__name__)
        if rest == ["Norm"] and "_" not in method.name:
            short = "" if method.name in ENGLISH else f"{method.name}|"
            long = rf"{first.lower()}[\s_-]*norm(?:s|ed|ali[sz][a-z]*)?"
            found[method.name] = rf"(?<![a-z0-9])(?:{short}{long})(?![a-z0-9])"
    return found


def _numbers(text: str) -> Iterator[str]:
    """The numbers of a list: "9–12, 14" has 9, 10, 11, 12 and 14."""
    for first, last in re.findall(_RANGE, text):
        if last and "." not in first and int(last) > int(first):
            yield from map(str, range(int(first), min(int(last), int(first) + 99) + 1))
        else:
            yield from filter(None, (first, last))


def _named(text: str) -> tuple[list[frozenset[str]], str]:
    """The places and methods that a text names, a set a mention, and the rest of the text."""
    found, text = [], text.lower()
    known = rules()
    for kind, pattern in known["places"].items():
        found += [frozenset(kind + n for n in _numbers(m[1])) for m in re.finditer(pattern, text)]
        text = re.sub(pattern, " ", text)
    for name, pattern in known["methods"].items():
        found += [frozenset({name})] * bool(re.search(pattern, text))
        text = re.sub(pattern, " ", text)
    return found, text


def _words(text: str) -> str:
    """A text in small letters, without marks within words: "Re-scaling", "rescaling" and "re_scaling" are one."""
    return re.sub(r"[-_\s]+", " ", re.sub(r"(?<![a-z])re[-_]", "re", text.lower()))


def conditions(query: str) -> list[Condition]:
    """What a query asks for: "Eq. 13 LN refuted" asks for equation 13, layer norm and the verdict."""
    named, rest = _named(query)
    found = [Condition(keys) for keys in named]
    for word in _words(rest).split():
        word = word.strip(MARKS)
        if re.fullmatch(r"\d{1,3}", word):
            found.append(Condition(frozenset({f"eq{word}"})))
        elif re.fullmatch(r"\d{1,2}(\.\d{1,2})+", word):
            found.append(Condition(frozenset(kind + word for kind in PLACES)))
        elif word in list(Verdict):
            found.append(Condition(verdict=word))
        elif word and word not in PASSED_OVER:
            found.append(Condition(word=word))
    return found


@functools.cache
def tokens(*texts: str) -> Tokens:
    """By what a claim is found whose record has these texts."""
    named = {key for text in texts for keys in _named(text)[0] for key in keys}
    within = {key.rsplit(".", n)[0] for key in named for n in range(key.count(".") + 1)}  # section 5.2 is in section 5
    return Tokens(frozenset(named | within), _words(" ".join(texts)))


def texts(record: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The texts of a claim: its names, its place, what it says, and what is said about it.

    Args:
        record: of the claim, as in a report, with its former ids.
    """
    context, erratum = record.get("context") or {}, record.get("erratum") or {}
    quoted = [context[part] for part in ("before", "sentence", "after", "verdict") if context]
    readings = [reading["says"] for reading in context.get("readings", ())]
    return (
        (record["id"], *record["formerly"]),
        (record["source"], record["topic"]),
        (record["statement"], erratum.get("title", "")),
        (record["correction"], *record["assumptions"], *quoted, *readings),
    )


@functools.cache
def _texts(claim: Any) -> tuple[tuple[str, ...], ...]:
    return texts(dataclasses.asdict(dataclasses.replace(claim, check=None)))


def ranked(query: str, claims: Iterable[Any]) -> list[tuple[int, Any]]:
    """The claims that a query finds, the nearest first.

    Args:
        query: a name.
        claims: among which it is looked for.

    Returns:
        Each with its rank: 0 where its id or a former id meets the query, 1 with its place in the paper, 2 with its
        statement, 3 with what is said about it. An id finds its claim alone.
    """
    claims = list(claims)
    if exact := [c for c in claims if query.strip().lower() in {c.id, *c.formerly}]:
        return [(0, c) for c in exact]
    asked = conditions(query)
    found = []
    for claim in claims if asked else ():
        known: tuple[str, ...] = ()
        for rank, more in enumerate(_texts(claim)):
            known += more
            if all(condition.met(tokens(*known), claim.expected.value) for condition in asked):
                found.append((rank, claim))
                break
    return sorted(found, key=lambda pair: pair[0])


def best(query: str, claims: Sequence[Any]) -> list[Any]:
    """The claims that a name means: those of the first rank that has any.

    Raises:
        UnknownClaim: if none has this name; it has claims of names near it.
    """
    found = ranked(query, claims)
    if not found:
        raise UnknownClaim(query, claims)
    return [claim for rank, claim in found if rank == found[0][0]]


def _places_of(query: str, claims: Sequence[Any]) -> str:
    """Where a query names a place alone, the places of that kind that claims are about."""
    asked = conditions(query)
    if len(asked) != 1 or not asked[0].keys:
        return ""
    kind = re.sub(r"[\d.]+$", "", min(asked[0].keys))
    keys = {key for c in claims for key in tokens(*sum(_texts(c)[:2], ())).keys if re.fullmatch(rf"{kind}[\d.]+", key)}
    numbers = sorted((key.removeprefix(kind) for key in keys), key=lambda n: [int(part) for part in n.split(".")])
    names = {"eq": "Eqs."}
    return f"claims are about {names.get(kind, f'{kind}s')} {', '.join(_runs(numbers))}" if numbers else ""


def _runs(numbers: Sequence[str]) -> Iterator[str]:
    """Numbers in order, consecutive ones as a range: 2, 3, 4, 6 are 2–4, 6."""
    whole = {int(n) for n in numbers if n.isdecimal()}
    for number in numbers:
        if not number.isdecimal() or int(number) - 1 not in whole:
            last = int(number) if number.isdecimal() else None
            while last is not None and last + 1 in whole:
                last += 1
            yield number if last is None or str(last) == number else f"{number}–{last}"


def near(query: str, claims: Sequence[Any], count: int = 3) -> list[Any]:
    """Claims whose ids, or the words of whose statements, are near a name."""
    known = sorted(
        {word for c in claims for text in (c.id, c.statement) for word in re.findall(r"[a-z]{3,}", _words(text))}
    )
    words = _words(query).split()
    corrected = [next(iter(difflib.get_close_matches(word, known, 1, 0.75)), word) for word in words]
    if corrected != words and (found := ranked(" ".join(corrected), claims)):
        return [claim for _, claim in found[:count]]
    ids = {c.id: c for c in claims}
    return [ids[id] for id in difflib.get_close_matches(query.strip().lower(), list(ids), count, 0.6)]
