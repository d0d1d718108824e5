"""A model under change: arrays that are computed in float64 when they are read, and rounded once.

Changes of matrices are recorded, not carried out, so that a model larger than memory can be rewritten array by array.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lngeom.transformers.description import Linear

PIECE = 1 << 21
"""Entries of a matrix that are changed at a time."""

KEPT = 1 << 24
"""Entries up to which the array that was read last is kept, for the parts of fused arrays."""

Change = Callable[[np.ndarray, Any], np.ndarray]
"""Changed rows of a matrix [out, in], from these rows and their positions (an index array, or a slice).

Of an edit by columns: changed columns, from these columns and their positions.
"""


class Edit(NamedTuple):
    """A change of a linear map's matrix.

    Attributes:
        part: the map, or a table as a map.
        label: what is done, for the certificate.
        change: the new rows.
        by_rows: whether each row changes by itself; if not, each column does.
    """

    part: Linear
    label: str
    change: Change
    by_rows: bool

    @property
    def plain(self) -> bool:
        """Whether the rows of the matrix are the rows of the stored array."""
        p = self.part
        whole = p.rows is None and p.columns is None and p.expert is None
        return self.by_rows and whole and p.layout == "oi" and p.input_axes == 1

    def apply(self, array: np.ndarray) -> None:
        """Changes a stored array in place, some rows or columns at a time."""
        matrix = self.part.matrix(array)
        if self.part.rows is not None or self.part.columns is not None:  # a copy
            self.part.assign(array, self.change(matrix, slice(None)))
            return
        along, across = matrix.shape if self.by_rows else matrix.shape[::-1]
        step = max(1, PIECE // max(1, across))
        for start in range(0, along, step):
            index = slice(start, min(start + step, along))
            place = (index,) if self.by_rows else (slice(None), index)
            matrix[place] = self.change(matrix[place], index)


class Draft(Mapping[str, np.ndarray]):
    """Arrays by name, in float64, with all changes so far.

    Args:
        source: stored arrays by name. Each has a shape, a dtype and rows that are read by indexing.

    Attributes:
        dropped: names of stored arrays that are left out.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.source = source
        self._origins: dict[str, str] = {name: name for name in source}
        self._edits: dict[str, tuple[Edit, ...]] = {}
        self._set: dict[str, np.ndarray] = {}
        self._labels: dict[str, tuple[str, ...]] = {}
        self.dropped: frozenset[str] = frozenset()
        self._last: tuple[str, int, np.ndarray] | None = None

    def copy(self) -> "Draft":
        """A draft that changes by itself."""
        new = Draft(self.source)
        new._origins, new._edits = dict(self._origins), dict(self._edits)
        new._set, new._labels, new.dropped = dict(self._set), dict(self._labels), self.dropped
        return new

    def on(self, source: Mapping[str, Any]) -> "Draft":
        """A draft with the same changes of other stored arrays."""
        new = self.copy()
        new.source = source
        return new

    def without(self, name: str) -> "Draft":
        """A draft in which one array is as stored."""
        new = self.copy()
        new._edits.pop(name, None)
        new._set.pop(name, None)
        new._labels.pop(name, None)
        return new

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._set:
            return self._set[name]
        edits = self._edits.get(name, ())
        if self._last is not None and self._last[:2] == (name, len(edits)):
            return self._last[2]
        self._last = None
        array = np.ascontiguousarray(np.asarray(self._stored(name)).astype(np.float64))
        for edit in edits:
            edit.apply(array)
        array.setflags(write=False)
        if array.size <= KEPT:
            self._last = (name, len(edits), array)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an array."""
        return tuple(self._set[name].shape if name in self._set else self._stored(name).shape)

    def dtype(self, name: str) -> np.dtype:
        """The dtype in which an array is stored."""
        return np.dtype(self._stored(name).dtype)

    def rows(self, name: str, index: Any) -> np.ndarray:
        """Rows along the first axis, in float64; nothing else is computed where rows change by themselves."""
        edits = self._edits.get(name, ())
        if name in self._set or not self._plain(name):
            return self[name][index]
        rows = np.asarray(self._stored(name)[index]).astype(np.float64)
        for edit in edits:
            rows = edit.change(rows, index)
        return rows

    def pieces(self, name: str) -> Iterator[tuple[slice, np.ndarray]]:
        """The array's rows in float64, some at a time, with their positions."""
        shape = self.shape(name)
        alone = name not in self._set and self._plain(name)
        whole = None if alone else self[name]
        for index in _slabs(shape):
            yield index, self.rows(name, index) if whole is None else whole[index]

    def rounded(self, name: str) -> Iterator[np.ndarray]:
        """The array in the dtype in which it is stored, some rows at a time; bit for bit as stored if unchanged."""
        if self.changed(name):
            dtype = self.dtype(name)
            for _, piece in self.pieces(name):
                with np.errstate(over="ignore", invalid="ignore"):  # certificates name what is not finite
                    stored = piece.astype(dtype)
                yield stored
        else:
            stored = self._stored(name)
            yield from (np.asarray(stored[index]) for index in _slabs(stored.shape))

    def changed(self, name: str) -> bool:
        """Whether an array was changed, or made."""
        return bool(self._labels.get(name))

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """What was done, by the name of the array."""
        return dict(self._labels)

    def matrix(self, part: Linear) -> np.ndarray:
        """W [out, in] of a linear map."""
        return part.matrix(self[part.weight])

    def offsets(self, part: Linear) -> np.ndarray | None:
        """B [out] of a linear map, or None."""
        return None if part.bias is None else part.offsets(self[part.bias])

    def edit(self, part: Linear, label: str, change: Change, *, by_rows: bool) -> None:
        """Records a change of a linear map's matrix."""
        name = part.weight
        self._edits[name] = (*self._edits.get(name, ()), Edit(part, label, change, by_rows))
        self._note(name, label)

    def set(self, name: str, array: np.ndarray, label: str) -> None:
        """Sets a vector."""
        self._set[name] = np.asarray(array, np.float64)
        self._note(name, label)

    def set_offsets(self, part: Linear, offsets: np.ndarray, label: str) -> None:
        """Sets the bias of a linear map."""
        assert part.bias is not None
        self.set(part.bias, part.with_offsets(self[part.bias], offsets), label)

    def duplicate(self, name: str, new: str, label: str) -> None:
        """Makes an array equal to another, with its changes so far."""
        self._origins[new] = self._origins[name]
        self._edits[new] = tuple(
            edit._replace(part=Linear(new)) if edit.plain else edit for edit in self._edits.get(name, ())
        )
        self._note(new, label)

    def drop(self, name: str, label: str) -> None:
        """Leaves an array out."""
        del self._origins[name]
        self._edits.pop(name, None)
        self._set.pop(name, None)
        self.dropped |= {name}
        self._note(name, label)

    def _plain(self, name: str) -> bool:
        """Whether the rows of the array change by themselves."""
        edits = self._edits.get(name, ())
        return not edits or (len(self.shape(name)) == 2 and all(edit.plain for edit in edits))

    def _note(self, name: str, label: str) -> None:
        labels = self._labels.get(name, ())
        self._labels[name] = labels if label in labels else (*labels, label)

    def _stored(self, name: str) -> Any:
        return self.source[self._origins[name]]


def _slabs(shape: tuple[int, ...]) -> Iterator[Any]:
    """Slices of the first axis of at most `PIECE` entries; an index of the whole where there is no axis."""
    if not shape:
        yield ...
        return
    step = max(1, PIECE // max(1, int(np.prod(shape[1:]))))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))
