"""Arrays as they are stored, role by role: which differ between two models, and one model with some of the other's."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lngeom.transformers.description import Attention, Block, Linear, Mixture, Norm
from lngeom.transformers.rewrite.comparison.aligned import far
from lngeom.transformers.rewrite.comparison.models import Model


class Role(NamedTuple):
    """A matrix, bias, gain or other vector that both models have.

    Attributes:
        path: where it stands in the descriptions.
        first: name of the first model's array.
        second: name of the second model's.
        read: its value in an array of the first model (0) or of the second (1).
        write: the second model's array with another value of it.
    """

    path: str
    first: str
    second: str
    read: Callable[[np.ndarray, int], np.ndarray]
    write: Callable[[np.ndarray, np.ndarray], np.ndarray]


class Differing(NamedTuple):
    """A role whose values differ: that of the first model, and that of the second."""

    role: Role
    a: np.ndarray
    b: np.ndarray


def roles_of(path: str, a: Any, b: Any) -> Iterator[Role]:
    """Roles of the arrays of two parts in one place: of maps, norms, and what else attention has."""
    if isinstance(a, Linear) and isinstance(b, Linear):
        yield Role(path, a.weight, b.weight, lambda array, k: (a, b)[k].matrix(array), b.with_matrix)
        if a.bias is not None and b.bias is not None:
            yield Role(f"{path}.bias", a.bias, b.bias, lambda array, k: (a, b)[k].offsets(array), b.with_offsets)
    elif isinstance(a, Norm) and isinstance(b, Norm):
        yield from _vector(f"{path}.gain", a.gain, b.gain, (a.offset, b.offset))
        yield from _vector(f"{path}.bias", a.bias, b.bias)
    elif isinstance(a, Attention) and isinstance(b, Attention):
        for name in ("temperature", "sink", "relative"):
            yield from _vector(f"{path}.{name}", getattr(a, name), getattr(b, name))
    elif isinstance(a, Block) and isinstance(b, Block):
        for name in ("attention_scale", "feed_forward_scale"):
            yield from _vector(f"{path}.{name}".removeprefix("."), getattr(a, name), getattr(b, name))
    elif isinstance(a, Mixture) and isinstance(b, Mixture):
        yield from _vector(f"{path}.choice_bias", a.choice_bias, b.choice_bias)


def _vector(path: str, first: str | None, second: str | None, offsets: tuple[int, int] = (0, 0)) -> Iterator[Role]:
    """A whole array, such as a gain, which may be stored less 1."""
    if first is not None and second is not None:
        yield Role(
            path,
            first,
            second,
            lambda array, k: offsets[k] + np.asarray(array),
            lambda array, value: (value - offsets[1]).reshape(array.shape),
        )


def differing(before: Model, after: Model, roles: Iterable[Role]) -> list[Differing] | None:
    """Roles whose values differ by more than rounding; None if the sizes of one differ."""
    found = []
    for role in roles:
        a, b = role.read(before.arrays[role.first], 0), role.read(after.arrays[role.second], 1)
        if a.shape != b.shape:
            return None
        if far(a, b) > 2 * max(before.spacing(role.first), after.spacing(role.second)):
            found.append(Differing(role, a, b))
    return found


class Changed(Mapping[str, np.ndarray]):
    """The second model's arrays, with the first model's values in some roles."""

    def __init__(self, after: Model, undone: Sequence[Differing]) -> None:
        self.arrays, self.changed = after.arrays, dict[str, np.ndarray]()
        for role, a, _ in undone:
            self.changed[role.second] = role.write(self[role.second], a)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.changed[name] if name in self.changed else self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)
