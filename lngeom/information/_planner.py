"""Memory is planned before it is used: every budget, and how the size of a chunk, batch or block follows from it.

A size is always the number of things that fit: `fitting(bytes of each, bytes together, most)`.

| what is divided | together at most | each | most |
|---|---|---|---|
| samples, in products | `CHUNK_BYTES` | a sample's derivative, twice | N |
| samples, where rows of the factor are formed | `ROW_BYTES` | a sample's rows, or its inputs and signals of layers | |
| samples, in the closed form of a normalized GLM | `ROW_BYTES` | a sample's packed factors | `PACKED` |
| samples, in covariances of predictions | `ROW_BYTES` | a sample's rows, twice | `PREDICTED` |
| vectors, in products with many | `VECTOR_BYTES` | the derivative of a chunk | `VECTORS` |

Of the first two no more than a quarter of what may be used is taken. Where bytes say nothing there is a number:
`COUPLED_VECTORS`, `CLASSES` and `ASSEMBLED`.
"""

from collections.abc import Callable
from typing import NamedTuple

from lngeom._core.memory import available_memory, format_bytes
from lngeom._core.text import counted

STORED_BYTES = 2**30
"""Largest derivative kept for repeated products: reading more is as dear as computing it."""

CHUNK_BYTES = 2**25
"""Intermediate values of a chunk of samples in products: about what a last-level cache holds."""

ROW_BYTES = 2**27
"""Rows of the factor, or what they are made of, in a chunk of samples: enough for matrix products at full speed."""

VECTOR_BYTES = 2**21
"""Intermediate values of all vectors of one pass: beyond a cache, more vectors gain nothing."""

VECTORS = 128
"""Most vectors of one pass."""

COUPLED_VECTORS = 64
"""Rows or columns at a time of the factor of samples that interact: one at a time takes six times as long."""

CLASSES = 4096
"""Classes of a vocabulary whose logits are computed at a time, where the user says nothing else."""

PACKED = 512
"""Most samples at a time in a closed form: fewer add to the sum too often, and the factors of more leave the cache."""

PREDICTED = 16
"""Most samples at a time in covariances of predictions, for each of which values inside the model are held too."""

ASSEMBLED = 2**14
"""Samples at least between two assemblies of the matrix in closed form, which then do not cost much."""


def fitting(each: int, together: int, most: int | None = None) -> int:
    """How many things of one size fit together: at least 1, and no more than `most`."""
    count = max(1, together // max(each, 1))
    return count if most is None else min(count, max(most, 1))


def budget_of(memory: int | None) -> int:
    """Bytes that may be used: what the user says, or half of what is free."""
    return available_memory() // 2 if memory is None else memory


def stores(derivative: int, budget: int) -> bool:
    """Whether a derivative of so many bytes is kept for repeated products."""
    return derivative <= min(STORED_BYTES, budget // 4)


def samples_in_products(derivative: int, budget: int, samples: int) -> int:
    """Samples at a time in products, of so many bytes of derivative each; their images take as much again."""
    return fitting(2 * derivative, min(CHUNK_BYTES, budget // 4), samples)


def samples_in_rows(held: int, budget: int, most: int | None = None) -> int:
    """Samples at a time where so many bytes are held for the rows of each."""
    return fitting(held, min(ROW_BYTES, budget // 4), most)


def even_chunk(chunk: int, samples: int) -> int:
    """A chunk of about this many samples, so that none has one alone, whose program has other operations."""
    least = max(2, min(chunk, samples))
    return next(size for size in range(least, least + samples + 1) if samples % size != 1)


class Sizes(NamedTuple):
    """What a plan is made from, all known from shapes.

    Attributes:
        parameters: P.
        samples: samples on one device.
        rows_per_sample: rows of the factor for each.
        width: bytes of a number.
        coupled: whether samples interact, so that they cannot be divided.
        derivative: number of samples ↦ bytes of their derivative.
    """

    parameters: int
    samples: int
    rows_per_sample: int
    width: int
    coupled: bool
    derivative: Callable[[int], int]


class Plan(NamedTuple):
    """What computations will need, in bytes, and how they are divided.

    Attributes:
        budget: what may be used.
        parameters: P.
        samples: samples on one device.
        derivative: a stored derivative of all those samples.
        factor: the whole factor of those samples.
        dense: the matrix.
        store: whether the derivative is kept for repeated products.
        chunk: samples at a time in products.
        row_chunk: samples at a time where rows of the factor are needed; more than there are where more would fit.
        batch: vectors at a time in products with many.
    """

    budget: int
    parameters: int
    samples: int
    derivative: int
    factor: int
    dense: int
    store: bool
    chunk: int
    row_chunk: int
    batch: int

    def describe(self) -> str:
        """The plan in a few lines."""
        chunk, vectors = min(self.row_chunk, self.samples), counted(self.batch, "vector")
        kept = (
            "kept for repeated products" if self.store else f"recomputed in chunks of {counted(self.chunk, 'sample')}"
        )
        return "\n".join(
            [
                f"P = {counted(self.parameters, 'parameter')}, {counted(self.samples, 'sample')} a device, budget "
                f"{format_bytes(self.budget)}",
                f"products: derivative {format_bytes(self.derivative)}, {kept}; {vectors} at a time",
                f"factor:   {format_bytes(self.factor)}, in chunks of {counted(chunk, 'sample')}",
                f"matrix:   {format_bytes(self.dense)}",
            ]
        )

    def require(self, needed: int, what: str, alternative: str) -> None:
        """Refuses an allocation that would not fit.

        Args:
            needed: bytes.
            what: that would be allocated.
            alternative: what to call instead.

        Raises:
            MemoryError: if it is more than the budget.
        """
        if needed > self.budget:
            raise MemoryError(
                f"{what} would need {format_bytes(needed)}, more than the budget of {format_bytes(self.budget)}: "
                f"{alternative}, or raise the budget with lg.fisher(..., memory=bytes)"
            )


def plan(sizes: Sizes, memory: int | None, chunk: int | None) -> Plan:
    """Predicts bytes and chooses chunks, without computing anything.

    Args:
        sizes: of the problem.
        memory: budget in bytes; half of what is free where None.
        chunk: samples at a time, to override the choice.

    Raises:
        ValueError: if a coupled problem is to be divided into chunks.
        MemoryError: if a coupled problem, which cannot be divided, does not fit.
    """
    if sizes.coupled and chunk is not None and chunk < sizes.samples:
        raise ValueError(
            f"a coupled function cannot be divided into chunks: its samples interact; got chunk={chunk} "
            f"for N = {sizes.samples}: take its statistics with lngeom.information.BatchCoupled"
        )
    budget, samples = budget_of(memory), sizes.samples
    derivative = sizes.derivative(samples)
    store = sizes.coupled or (chunk is None and stores(derivative, budget))
    each = 0 if store else max(sizes.derivative(2) - sizes.derivative(1), 1)
    products = samples if store else chunk or samples_in_products(each, budget, samples)
    row_bytes = sizes.rows_per_sample * sizes.parameters * sizes.width
    result = Plan(
        budget=budget,
        parameters=sizes.parameters,
        samples=samples,
        derivative=derivative,
        factor=row_bytes * samples,
        dense=sizes.width * sizes.parameters**2,
        store=store,
        chunk=products,
        row_chunk=samples if sizes.coupled else chunk or samples_in_rows(row_bytes, budget),
        batch=fitting(derivative if store else each * products, VECTOR_BYTES, VECTORS),
    )
    if sizes.coupled:
        result.require(
            derivative,
            "the derivative of a coupled function, which cannot be divided,",
            "take its statistics with lngeom.information.BatchCoupled, which can be, or use fewer samples",
        )
    return result
