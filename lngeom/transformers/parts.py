"""What every part of a description has in common: fields that are held against their declared types."""

import math
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints


class Part:
    """A part of a description, whose fields have the types that they are declared with.

    A number is finite, a word is one of those declared. Fields named in `positive` are above zero, those in
    `not_negative` at least zero.
    """

    positive: ClassVar[tuple[str, ...]] = ()
    not_negative: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, (kind, at_sight) in _types(type(self)).items():
            value = getattr(self, name)
            if type(value) not in at_sight:
                self._check(name, kind, value)

    def _check(self, name: str, kind: Any, value: Any) -> None:
        where = f"{name} of {_article(type(self).__name__)}"
        if get_origin(kind) is Literal:
            if not any(type(value) is type(each) and value == each for each in get_args(kind)):
                raise ValueError(f"{where} must be one of {', '.join(map(repr, get_args(kind)))}; got {shown(value)}")
        elif not _is(value, kind):
            raise TypeError(f"{where} must be {_words(kind)}; got {shown(value)}")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, Real) and not math.isfinite(number):
                raise ValueError(f"{where} must be finite; got {number}")
            if name in self.positive and number is not None and number <= 0:
                raise ValueError(f"{where} must be positive; got {number}")
            if name in self.not_negative and number is not None and number < 0:
                raise ValueError(f"{where} must not be negative; got {number}")


@cache
def _types(part: type[Part]) -> dict[str, tuple[Any, frozenset[type]]]:
    """The declared type of each field, and the types all of whose values it takes: a mixture has 10⁵ fields."""
    hints, bounded = get_type_hints(part), {*part.positive, *part.not_negative}
    names = [field.name for field in fields(part)]  # pyright: ignore[reportArgumentType]
    return {name: (hints[name], frozenset(_at_sight(hints[name], name in bounded))) for name in names}


def _at_sight(kind: Any, bounded: bool) -> set[type]:
    """Types all of whose values a declared type takes."""
    if kind is Any or kind is float or get_origin(kind) in {tuple, Literal}:
        return set()
    if get_args(kind):
        return {each for member in get_args(kind) for each in _at_sight(member, bounded)}
    return set() if kind is int and bounded else {kind}


def _is(value: Any, kind: Any) -> bool:
    """Whether a value has a declared type."""
    if kind is Any:
        return True
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(each, get_args(kind)[0]) for each in value)
    if get_args(kind):
        return any(_is(value, each) for each in get_args(kind))
    if kind in {int, float}:
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    """A declared type in words."""
    if get_origin(kind) is tuple:
        return f"a tuple, each entry {_words(get_args(kind)[0])}"
    if get_args(kind):
        return " or ".join(_words(each) for each in get_args(kind))
    known = {int: "an integer", float: "a number", str: "a text", bool: "True or False", NoneType: "None"}
    return known.get(kind, _article(kind.__name__))


def shown(value: Any) -> str:
    """A value that was given, with its type."""
    if isinstance(value, type):
        return f"the class {value.__name__} (did you mean {value.__name__}(...)?)"
    if isinstance(value, str | int | float | NoneType):
        return repr(value)
    return _article(type(value).__name__)


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiouAEIOU' else 'a'} {word}"
