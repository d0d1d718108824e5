"""Options in which two parts differ: numbers and words of a description, beside its arrays."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from lngeom.transformers.description import ARRAYS, Block, Linear, Norm, walk
from lngeom.transformers.parts import Part

NAMES = {*ARRAYS, "offset", "untied"}
"""Fields that say how arrays are named and stored."""


TRADED = {"scale", "factor", "pairing"}
"""Options that arrays can make up for: factors of maps, and the order of rotary pairs."""


def options_of(
    first: Any,
    second: Any,
    path: str,
    scale: float,
    rebuild: Callable[[Any], Any] = lambda part: part,
    *,
    traded: bool = True,
) -> Iterator[tuple[str, Any]]:
    """Each option in which two parts differ, and the second part with the first one's.

    Args:
        first: the first part.
        second: the second.
        path: of both.
        scale: of the stream: it asks for another ε of the norms that read it.
        rebuild: makes the whole block of a changed part.
        traded: whether options count that arrays can make up for.

    Yields:
        What differs, and the changed block.
    """
    for f in fields(first):
        a: Any = getattr(first, f.name)
        b: Any = getattr(second, f.name)
        where = f"{path}.{f.name}"
        if isinstance(a, Linear) or f.name in NAMES or _alike(a, b) or (f.name in TRADED and not traded):
            continue
        if f.name == "experts":
            if len(a) == len(b) and a[0].activation != b[0].activation:
                experts = tuple(replace(e, activation=x.activation) for e, x in zip(b, a, strict=True))
                sentence = f"{path}.experts have activation {b[0].activation!r}, and had {a[0].activation!r}"
                yield sentence, rebuild(replace(second, experts=experts))
            continue
        sentence, expected = f"{where} is {_short(b)}, and was {_short(a)}", a
        if f.name == "eps":
            if path == "embedding_norm":
                continue  # tables may be scaled before it; they are compared after it
            if scale != 1 and path.endswith(("attention_norm", "feed_forward_norm", "final")):
                expected = a * scale**2
                sentence += f" (the stream is scaled by {scale:.3g}, so that it must be {expected:.3g})"
            if math.isclose(expected, b, rel_tol=1e-2 if scale != 1 else 1e-6):
                continue
        if isinstance(a, Part) and type(a) is type(b):

            def inner(part: Any, name: str = f.name) -> Any:
                return rebuild(replace(second, **{name: part}))

            yield from options_of(a, b, where, scale, inner, traded=traded)
            continue
        if _has_arrays(a) or _has_arrays(b):
            continue  # a part with arrays that the other has not, or another kind of part
        try:
            changed = rebuild(replace(second, **{f.name: expected}))
        except (TypeError, ValueError):  # it does not go with the others
            continue
        yield sentence, changed
    if scale != 1 and isinstance(first, Block):  # norms that are equal, and must not be
        for name in ("attention_norm", "feed_forward_norm"):
            a, b = getattr(first, name), getattr(second, name)
            if a is not None and b is not None and a.eps == b.eps and a.eps and first.placing != "post":
                expected = a.eps * scale**2
                sentence = (
                    f"{path}.{name}.eps is {_short(b.eps)} as before (the stream is scaled by {scale:.3g}, so that "
                )
                yield (
                    f"{sentence}it must be {expected:.3g})",
                    rebuild(replace(second, **{name: replace(b, eps=expected)})),
                )


def only_in_one(first: Any, second: Any, path: str) -> Iterator[str]:
    """What only one of two parts has, of maps, norms, latents and other arrays, but for the biases of maps."""
    for f in fields(first):
        a, b = getattr(first, f.name), getattr(second, f.name)
        inner = not isinstance(a, Linear | Norm)
        if (a is None) != (b is None) and (f.name in NAMES or _has_arrays(a) or _has_arrays(b)):
            yield f"{path}.{f.name}: only the {'second' if a is None else 'first'} model has one"
        elif inner and isinstance(a, Part) and type(a) is type(b):
            yield from only_in_one(a, b, f"{path}.{f.name}")


def _has_arrays(part: Any) -> bool:
    """Whether a part has a map or a norm."""
    return any(isinstance(inner, Linear | Norm) for _, inner in walk(part))


def _alike(a: Any, b: Any) -> bool:
    """Whether two values are equal, numbers up to rounding of float32."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6)
    return a == b


def all_of(changed: list[Any], plain_part: Any) -> Any:
    """A part with all changes of several changed ones."""
    new: dict[str, Any] = {}
    for f in fields(plain_part):
        old: Any = getattr(plain_part, f.name)
        others = [value for each in changed if (value := getattr(each, f.name)) != old]
        if others:
            nested = isinstance(old, Part) and all(type(value) is type(old) for value in others)
            new[f.name] = all_of(others, old) if nested else others[0]
    return replace(plain_part, **new)


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
