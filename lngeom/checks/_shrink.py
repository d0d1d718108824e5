"""Readable counterexamples: few small whole numbers, most of them zero, as code for a test."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from lngeom.checks._orbits import Data, Move, by, by_matrix, draw, example, is_exact, orbit
from lngeom.checks.findings import Counterexample, Result, Verdict
from lngeom.checks.subject import Subject, deviation, layer_tolerance
from lngeom.methods.transformations.actions import AffineAction, Column
from lngeom.methods.transformations.matrices import MatrixGroup

ROWS = 6
"""Rows of W that are not zero, for a layer of many units."""


def shrink(
    subject: Subject, moves: Callable[[Data], Iterable[Move]], dtype: jax.typing.DTypeLike, *, finite: bool = True
) -> Counterexample | None:
    """Finds small data on which a change shows, then simplifies every number while it still shows.

    Args:
        subject: the layer.
        moves: changes to try, for data of a given shape.
        dtype: in which it is run.
        finite: whether outputs must be finite.

    Returns:
        The counterexample; None if none was found.
    """
    tolerance = layer_tolerance(dtype)

    def differ(small: Subject, data: Data, change: Move, threshold: float) -> float:
        """The deviation where it shows; 0 where it does not, or the data are not exact or the outputs not tame."""
        moved = change.apply(data)
        if change.transformation is not None and not (is_exact(data, dtype) and is_exact(moved, dtype)):
            return 0.0
        before, after = _compared(small, data, change, moved, dtype)
        rows = np.max(np.abs(before), -1)
        if not np.all((rows > 0.1) & (rows < 30)):  # NaN too
            return 0.0
        found = deviation(before, after)
        return found if found > threshold and (np.isfinite(found) or not finite) else 0.0

    for units, seed in itertools.product((3, 4, 6), range(3)):
        try:
            small = subject.with_units(units)
            data = example(small, samples=2, features=3, grid=1, seed=seed)
            for change in moves(data):
                data = _few_rows(data, change)
                found = differ(small, data, change, 4 * tolerance)
                if found:
                    least = max(4 * tolerance, min(0.1, found / 3))
                    shows = functools.partial(differ, small, threshold=least)
                    return _written(small, *_simplified(data, change, shows), dtype)
        except Exception:  # a layer may refuse a number of units, or raise where it was not expected to
            continue
    return None


def _few_rows(data: Data, change: Move) -> Data:
    """Of many rows of W only some, those that a change of a few moves among them; the others become zero."""
    if len(data.weights) <= 2 * ROWS:
        return data
    moved = np.flatnonzero(np.any(change.apply(data).weights != data.weights, 1))
    kept = [*moved[: ROWS // 2], *range(ROWS // 2)]
    weights = np.zeros_like(data.weights)
    weights[kept] = data.weights[kept]
    return data._replace(weights=weights)


def _simplified(data: Data, change: Move, bad: Callable[[Data, Move], float]) -> tuple[Data, Move]:
    for simpler in change.simpler():
        if bad(data, simpler):
            change = simpler
            break
    for field in data._fields:
        array = getattr(data, field)
        for index in np.ndindex(array.shape):
            for value in (0, 1, 2, -1):
                if array[index] == value:
                    break
                trial = array.copy()
                trial[index] = value
                candidate = data._replace(**{field: trial})
                if bad(candidate, change):
                    data, array = candidate, trial
                    break
    return data, change


def _compared(subject: Subject, data: Data, change: Move, moved: Data, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """What the outputs should be after a change, and what they are."""
    before, after = (np.asarray(subject(*d, dtype), np.float64) for d in (data, moved))
    rows = slice(None) if change.rows is None else list(change.rows)
    return change.expected(before)[rows], after[rows]


_CYCLE = np.roll(np.eye(3), 1, 0)
_FIXES_ONE = np.array([[2.0, -1, 2], [2, 2, -1], [-1, 2, 2]]) / 3
_ROTATION = np.array([[3.0, -4, 0], [4, 3, 0], [0, 0, 5]]) / 5
_SHEAR = np.array([[1.0, 1, 0], [0, 1, 0], [0, 0, 1]])
READABLE = {
    "unit_permutations": (_CYCLE,),
    "unit_rotations_fixing_one": (_CYCLE, _FIXES_ONE),
    "unit_rotations": (_CYCLE, _FIXES_ONE, _ROTATION),
    "input_rotations_fixing_one": (_CYCLE, _FIXES_ONE),
    "input_rotations": (_CYCLE, _FIXES_ONE, _ROTATION),
    "input_basis_changes": (_CYCLE, _SHEAR, _ROTATION),
}
"""Rational members of groups of matrices, of size three, the simplest first."""


ACTIONS = {
    "units": ("Q", {"W": "Q @ W"}),
    "inputs": ("A", {"W": "np.linalg.solve(A.T, W.T).T", "X": "X @ A.T"}),
}
"""The name of a matrix, and what it makes of W and X, as code."""


def _enlarged(matrix: np.ndarray, size: int) -> np.ndarray:
    """A matrix on the first coordinates, which leaves the others."""
    whole = np.eye(size)
    whole[: len(matrix), : len(matrix)] = matrix
    return whole


LARGEST = max(len(matrix) for matrices in READABLE.values() for matrix in matrices)
"""Size of the largest readable matrix."""


def _matrix(name: str, matrix: np.ndarray) -> list[str]:
    """Code that makes a matrix; of one which moves the first few coordinates alone, their block."""
    size = len(matrix)
    others = matrix != np.eye(size)
    moved = np.flatnonzero(others.any(0) | others.any(1))
    block = int(moved.max(initial=-1)) + 1
    if block in {0, size} or block > LARGEST:
        return _assigned(name, matrix)
    part = _plain(matrix[:block, :block].tolist())
    return [f"{name} = np.eye({size})", f"{name}[:{block}, :{block}] = {part}"]


def column_moves(column: Column | MatrixGroup, result: Result) -> Callable[[Data], Iterator[Move]]:
    """Members of a column's group, of growing size where only those far out on the orbit tell."""

    def of(move: Move) -> Move:
        return move._replace(simpler=lambda: _simpler(move))

    def moves(data: Data) -> Iterator[Move]:
        if isinstance(column, MatrixGroup):
            size = data.weights.shape[0 if column.acts_on == "units" else 1]
            readable = READABLE.get(column.name, ())
            yield from (by_matrix(column, _enlarged(q, size)) for q in readable if size >= len(q))
            if readable and size == 3:
                return
        along = orbit(draw(column, data, 0))
        if along and (result.verdict is Verdict.LOST or result.curve):
            for k in range(0, 60, 3):
                for size in (along.size * 2.0**k, *([along.size * 2.0**-k] if along.scales else [])):
                    yield of(along.at(size))
        else:
            yield from (of(draw(column, data, seed)) for seed in range(5))

    return moves


def _simpler(move: Move) -> Iterator[Move]:
    """A factor of two, or one shift by a power of two, instead of what was drawn."""
    along = orbit(move)
    if along is None:
        return
    if along.scales:
        yield from (along.at(factor) for factor in (2.0, 4.0, 0.5, 3.0))
        return
    for keep in range(3):

        def first(action: AffineAction, keep: int = keep) -> AffineAction:
            shift = np.zeros_like(action.shift)
            if shift.ndim and np.any(action.shift):
                flat = shift.reshape(-1)
                flat[min(keep, flat.size - 1)] = 2.0 ** np.ceil(np.log2(along.size))
            return AffineAction(action.scale, shift)  # type: ignore[arg-type]

        yield by(jax.tree.map(first, along.transformation, is_leaf=lambda node: isinstance(node, AffineAction)))


def _written(subject: Subject, data: Data, change: Move, dtype: jax.typing.DTypeLike) -> Counterexample:
    moved = change.apply(data)
    before, after = _compared(subject, data, change, moved, dtype)
    size = float(np.max(np.abs(before)))
    lines = ["import numpy as np", *adapted(subject), *_assigned("W", data.weights), *_assigned("X", data.inputs)]
    names = ["W", "X"]
    if change.matrix is not None:
        letter, made = ACTIONS[change.acts_on]
        lines += [*_matrix(letter, change.matrix), *(f"moved_{name} = {code}" for name, code in made.items())]
        names = [f"moved_{name}" if name in made else name for name in names]
    else:
        for i, (name, old, new) in enumerate(zip(names, data, moved, strict=True)):
            if not np.array_equal(old, new):
                lines += _assigned(f"moved_{name}", new)
                names[i] = f"moved_{name}"
    dtype = np.dtype(dtype).name
    select = "" if change.rows is None else f"[{list(change.rows)}]"
    expected = "before @ Q.T" if change.acts_on == "units" else "before"
    lines += [
        f'before = layer(W, X, "{dtype}"){select}' + ("" if change.acts_on == "units" else _seen(before)),
        f'after = layer({", ".join(names)}, "{dtype}"){select}' + _seen(after),
        f"np.testing.assert_allclose(after, {expected}, rtol=0, atol={layer_tolerance(dtype) * size:.1e})",
    ]
    return Counterexample(*data, *moved, before, after, deviation(before, after), "\n".join(lines) + "\n")


def adapted(subject: Subject) -> list[str]:
    """Lines of code that make `layer` the function which was checked."""
    options = "".join(f", {name}={value!r}" for name, value in subject.options)
    if subject.source:
        return ["from lngeom.checks import adapt", "", f'layer = adapt("{subject.source}"{options})']
    return ["from lngeom.checks import adapt", "", f"layer = adapt(layer{options})  # the {subject.name} checked"]


def _plain(values: Any) -> str:
    """A nested list with whole numbers written as such."""
    if isinstance(values, list):
        return "[" + ", ".join(map(_plain, values)) + "]"
    return str(int(values)) if float(values).is_integer() and abs(values) < 1e9 else repr(float(values))


def _assigned(name: str, array: np.ndarray) -> list[str]:
    """Code that makes an array; of a tall matrix, the row that most of its rows are is written once."""
    if array.ndim != 2 or len(array) <= 2 * ROWS:
        return [f"{name} = np.array({_plain(array.tolist())}, float)"]
    rows, which, counts = np.unique(array, axis=0, return_inverse=True, return_counts=True)
    others = np.flatnonzero(which.ravel() != counts.argmax())
    return [
        f"{name} = np.tile({_plain(rows[counts.argmax()].tolist())}, ({len(array)}, 1)).astype(float)",
        f"{name}[{others.tolist()}] = {_plain(array[others].tolist())}",
    ]


def _seen(values: np.ndarray) -> str:
    return f"  # {_plain(np.round(values, 3).tolist())}" if values.size <= 12 else ""
