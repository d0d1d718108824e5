"""The parts of a Fisher matrix whose data come from a loader: one operator a batch, made when it is read."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lngeom._core.text import counted
from lngeom.information._operator import FisherOperator
from lngeom.information.batches import Batch, Batches

PATIENCE = 2.0
"""Seconds after which a pass shows how far it is."""


class LoadedParts:
    """The batches of a loader as operators of sums over samples; N is known once all have been seen.

    In the first pass numbers are looked at. Every pass must have the samples of the first, in any order: their number
    and sums of what the batches hold are compared.

    Attributes:
        passes: how many times all batches have been read.
    """

    on_host = True

    def __init__(self, batches: Batches, make: Callable[[Batch, bool], FisherOperator]):
        self.batches, self._make = batches, make
        self.passes = 0
        self._first: _Seen | None = None

    @property
    def samples(self) -> int:
        return self._known().samples

    @property
    def rows_that_count(self) -> int:
        return self._known().rows_that_count

    def scale(self) -> float:
        return 1.0 / self._known().samples

    def describe(self) -> str:
        if self._first is None:
            return "batches that have not been read"
        return f"{counted(self._first.samples, 'sample')} in {counted(self._first.batches, 'batch', 'batches')}"

    def weighted(self) -> Iterator[tuple[float, FisherOperator]]:
        seen = _Seen()
        first = self._first is None
        for batch in _shown(_prefetched(self.batches.read()), self._count()):
            try:
                F = self._make(batch, first)
            except ValueError as error:
                raise ValueError(f"batch {seen.batches + 1} of the loader: {error}") from error
            seen.add(batch, F)
            yield 1.0, F
        self.passes += 1
        if self._first is None:
            self._first = seen
        self._first.require_same(seen)

    def _known(self) -> "_Seen":
        if self._first is None:
            for _ in self.weighted():
                pass
        assert self._first is not None
        return self._first

    def _count(self) -> int | None:
        if self._first is not None:
            return self._first.batches
        try:
            return len(self.batches)
        except TypeError:
            return None


class _Seen:
    """What a pass has read: numbers of batches and samples, and sums by which another pass is compared.

    Attributes:
        sums: of the numbers of each array, and of their squares.
        sizes: of their absolute values, and of their squares: to which rounding errors of `sums` are relative.
    """

    def __init__(self) -> None:
        self.batches = self.samples = self.rows_that_count = 0
        self.sums: Any = 0.0
        self.sizes: Any = 0.0

    def add(self, batch: Batch, F: FisherOperator) -> None:
        numbers = [_numbers(leaf) for leaf in jax.tree.leaves(batch)]
        squares = [np.square(a).sum() for a in numbers]
        self.sums = self.sums + np.array([*(a.sum() for a in numbers), *squares])
        self.sizes = self.sizes + np.array([*(np.abs(a).sum() for a in numbers), *squares])
        self.batches += 1
        self.samples += len(jax.tree.leaves(batch.inputs)[0])
        self.rows_that_count += F.rows_that_count

    def require_same(self, other: "_Seen") -> None:
        if self.samples != other.samples:
            raise ValueError(
                f"the loader gave {self.samples:,} samples in its first pass, and {other.samples:,} in another: it "
                "must give the same ones each time (as with drop_last=False, and without random sampling)"
            )
        if (abs(self.sums - other.sums) > 1e-9 * self.sizes).any():
            raise ValueError(
                "the loader gave other numbers in another pass: F would be of no one data set. Take random "
                "augmentation out, or give it a seed that starts anew with each pass"
            )


def _numbers(leaf: Any) -> np.ndarray:
    """An array in float64; 0 for what is not finite, as at masked positions, since NaN compares with nothing."""
    known = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    values = np.asarray(known).astype(np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def _prefetched(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, each read by another thread while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = pool.submit(next, batches, None)
            yield batch


def _shown(batches: Iterator[Batch], count: int | None) -> Iterator[Batch]:
    """The same batches, with a bar on the terminal once a pass has taken some time."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield from batches
        return
    columns = TextColumn("batches"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=True) as progress:
        task, start = progress.add_task("batches", total=count), time.monotonic()
        for batch in batches:
            yield batch
            progress.advance(task)
            if progress.disable and time.monotonic() - start > PATIENCE:
                progress.disable = False
                progress.start()
