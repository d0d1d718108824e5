"""`Batches`: data that are read a batch at a time, again and again."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lngeom._core.arguments import check_count
from lngeom._core.text import counted
from lngeom.families import described
from lngeom.information._given import one_line

Part = int | str | Callable[[Any], Any] | None


class Batch(NamedTuple):
    """What one batch holds.

    Attributes:
        inputs: X, a pytree of arrays with one sample a row.
        mask: weights of positions or samples, or None.
        y: responses, or None.
    """

    inputs: PyTree
    mask: Any
    y: PyTree


class Batches:
    """Data as batches, for `lg.fisher` and `lg.laplace` in the place of X: one is in memory at a time, and the next.

    `lg.fisher` takes a loader as it is where every batch is X. With `Batches` one says what a batch holds, and that a
    list is one of batches.

    Args:
        source: what gives batches and can be gone through again: a list, a torch `DataLoader`, a dataset of tf.data, a
            grain loader, or a function without arguments that returns an iterator. An iterator can be read once only,
            and is refused. All passes must give the same samples, in any order.
        inputs: which part of a batch is X: an index or key, as in (x, y) or {"x": x}, or a function of the batch. By
            default the whole batch.
        mask: which part is the mask, [N *T] or [N], as in `lg.fisher`.
        y: which part holds observed responses, for method="empirical" and `lg.laplace`.

    Example:
        >>> import jax, jax.numpy as jnp, lngeom as lg
        >>> X = jax.random.normal(jax.random.key(0), (10, 3))
        >>> apply, family = lambda p, x: x @ p, lg.families.Categorical()
        >>> F = lg.fisher(apply, jnp.ones((3, 2)), lg.Batches([X[:4], X[4:8], X[8:]]), family=family)
        >>> whole = lg.fisher(apply, jnp.ones((3, 2)), X, family=family)
        >>> bool(jnp.allclose(F.as_matrix(), whole.as_matrix(), atol=1e-6)), F.samples
        (True, 10)
    """

    def __init__(self, source: Any, *, inputs: Part = None, mask: Part = None, y: Part = None):
        if isinstance(source, Batches):
            raise ValueError("these are Batches already")
        if not callable(source) and not isinstance(source, Iterable):
            raise ValueError(f"expected a loader, a list of batches or a function; got a {type(source).__name__}")
        if not callable(source) and isinstance(source, Iterator):
            raise ValueError(
                f"a {type(source).__name__} can be read once, and most results need several passes: give what makes "
                "it, a list, a loader or a function without arguments that returns an iterator"
            )
        self.source, self._parts = source, {"inputs": inputs, "mask": mask, "y": y}
        self._convert: Callable[[PyTree], PyTree] = lambda inputs: inputs

    @staticmethod
    def of_rows(X: PyTree, size: int, *, mask: Any = None, y: Any = None) -> "Batches":
        """Rows of arrays, `size` at a time: of memory-mapped files, or whatever else has `shape` and slices.

        Args:
            X: an array or a pytree of arrays with one number of rows.
            size: rows of a batch; the last one may have fewer. One alone is joined to its neighbour.
            mask: of the rows, or None.
            y: responses of the rows, or None.

        Raises:
            ValueError: if the size is no whole number of at least 1, or numbers of rows differ.

        Example:
            >>> import numpy as np, lngeom as lg
            >>> [len(batch.inputs) for batch in lg.Batches.of_rows(np.zeros((8, 2)), 3).read()]
            [3, 3, 2]
        """
        size = check_count("size", size, 1, what="a whole number of rows")
        leaves = jax.tree.leaves((X, mask, y))
        strange = [type(leaf).__name__ for leaf in leaves if not getattr(leaf, "shape", ())]
        rows = {leaf.shape[0] for leaf in leaves if getattr(leaf, "shape", ())}
        if strange or len(rows) != 1 or 0 in rows:
            shapes = [getattr(leaf, "shape", type(leaf).__name__) for leaf in leaves]
            raise ValueError(f"expected arrays with one number of rows, at least 1; got {shapes}")
        count = rows.pop()
        parts = [part for part in (X, mask, y) if part is not None]

        def batches() -> Iterator[tuple]:
            for start in range(0, count, size):
                yield tuple(jax.tree.map(lambda a, s=start: a[s : s + size], part) for part in parts)

        return Batches(
            batches,
            inputs=0,
            mask=None if mask is None else 1,
            y=None if y is None else len(parts) - 1,
        )

    def __len__(self) -> int:
        """How many batches there are.

        Raises:
            TypeError: if the source does not say.
        """
        source: Any = self.source
        return len(source)

    @property
    def has_responses(self) -> bool:
        """Whether it is said which part of a batch holds responses."""
        return self._parts["y"] is not None

    @property
    def has_mask(self) -> bool:
        """Whether it is said which part of a batch is the mask."""
        return self._parts["mask"] is not None

    def read(self) -> Iterator[Batch]:
        """The batches of one pass, as arrays.

        Raises:
            ValueError: if there is none, or one has not the parts that were named.
        """
        taken = (self._read(batch, number) for number, batch in enumerate(iter(self._open()), 1))
        batches = _of_two_at_least(taken)
        first = next(batches, None)
        if first is None:
            raise ValueError("the loader gave no batch: one that was read before may be exhausted")
        yield first
        yield from batches

    def converted(self, convert: Callable[[PyTree], PyTree]) -> "Batches":
        """The same batches with other inputs."""
        found = Batches(self.source, **self._parts)
        found._convert = convert
        return found

    def _open(self) -> Any:
        """What gives the batches of one pass."""
        return self.source() if callable(self.source) else self.source

    def explained(self, error: Exception, first: Batch) -> Exception:
        """What a function that cannot be evaluated at the first batch is told."""
        several = isinstance(first.inputs, list | tuple | dict)
        if not several or self._parts["inputs"] is not None:
            return error
        return ValueError(
            f"apply failed at the first batch of the loader: {_described(first.inputs)}. If X is one of its parts, say "
            f"which: lg.Batches(loader, inputs={next(iter(first.inputs)) if isinstance(first.inputs, dict) else 0!r}) "
            f"({one_line(error)})"
        )

    def _read(self, batch: Any, number: int) -> Batch:
        inputs, mask, y = (self._take(name, batch, number) for name in ("inputs", "mask", "y"))
        return Batch(self._convert(inputs), mask, y)

    def _take(self, name: str, batch: Any, number: int) -> Any:
        part = self._parts[name]
        if part is None:
            return as_arrays(batch) if name == "inputs" else None
        if callable(part):
            return as_arrays(part(batch))
        try:
            return as_arrays(batch[part])
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"batch {number} has no part {part!r} for {name}: {_described(batch)}") from error


def _of_two_at_least(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same samples, a batch of one joined to its neighbour: the program of one sample alone is another."""
    held = rest = None
    for batch in batches:
        rest = batch if rest is None else _joined(rest, batch)
        if not _is_one(rest):
            if held is not None:
                yield held
            held, rest = rest, None
    if held is None or rest is None:
        yield from (batch for batch in (held, rest) if batch is not None)
    else:
        yield _joined(held, rest)


def _is_one(batch: Batch) -> bool:
    return {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch.inputs)} == {(1,)}


def _joined(a: Batch, b: Batch) -> Batch:
    """Two batches as one.

    Raises:
        ValueError: if they are not alike.
    """
    try:
        return jax.tree.map(lambda x, y: np.concatenate([np.asarray(x), np.asarray(y)]), a, b)
    except (ValueError, TypeError) as error:
        raise ValueError(f"batches are not alike: {described(a.inputs)} and {described(b.inputs)}") from error


def _described(batch: Any) -> str:
    if isinstance(batch, dict):
        return f"it is a dict with {', '.join(map(repr, batch))}"
    if isinstance(batch, list | tuple):
        return f"it is a {type(batch).__name__} of {counted(len(batch), 'part')}"
    return f"it is a {type(batch).__name__}"


def as_arrays(tree: PyTree) -> PyTree:
    """The arrays of any library, on the CPU, as those of NumPy or JAX."""
    return jax.tree.map(_as_array, tree)


def _as_array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic) or not hasattr(leaf, "__array__"):
        return leaf
    try:
        return np.asarray(leaf)
    except (TypeError, RuntimeError):  # 16-bit numbers of torch, or numbers with a gradient
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(leaf, torch.Tensor):
            raise
        return jnp.array(jnp.from_dlpack(leaf.detach().cpu()), copy=True)


def as_batches(X: Any) -> Batches | None:
    """The batches of a loader; None for arrays and pytrees of them.

    A list is a pytree of arrays, one sample a row in each; that it is one of batches must be said.
    """
    if isinstance(X, Batches):
        return X
    plain = isinstance(X, list | tuple | dict | str | bytes | Iterator) or hasattr(X, "shape")
    if plain or not jax.tree_util.all_leaves([X]):
        return None
    return Batches(X) if callable(X) or isinstance(X, Iterable) else None
