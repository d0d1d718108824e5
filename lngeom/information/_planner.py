"""Memory is planned before it is used: sizes are predicted from shapes alone, and chunks chosen to fit."""

import math
from typing import NamedTuple

import jax
import numpy as np

from lngeom._core.memory import available_memory, format_bytes
from lngeom.information._derivative import pullback_of
from lngeom.information._problem import Problem

STORED = 2**30
"""Largest derivative kept for repeated products, in bytes: reading more is as dear as computing it."""

CHUNK_BYTES = 2**25
"""Bytes of intermediate values a chunk of samples should have: about what a last-level cache holds."""

ROWS = 2**27
"""Bytes of factor rows in a chunk: enough for matrix products at full speed."""

BATCH = 2**21
"""Bytes of intermediate values of all vectors of one pass: beyond a cache, more vectors gain nothing."""


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
        kept = "kept for repeated products" if self.store else f"recomputed in chunks of {self.chunk} samples"
        return "\n".join(
            [
                f"P = {self.parameters:,} parameters, {self.samples:,} samples a device, budget "
                f"{format_bytes(self.budget)}",
                f"products: derivative {format_bytes(self.derivative)}, {kept}; {self.batch} vectors at a time",
                f"factor:   {format_bytes(self.factor)}, in chunks of {min(self.row_chunk, self.samples)} samples",
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


def derivative_bytes(problem: Problem, rows: int) -> int:
    """Bytes of the derivative of this many samples."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype), problem.per_sample)
    kept = jax.eval_shape(pullback_of, problem.with_samples(shapes))
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(kept))


def plan(problem: Problem, shards: int, memory: int | None, chunk: int | None) -> Plan:
    """Predicts sizes and chooses chunks, without computing anything.

    Args:
        problem: the problem (shapes alone matter).
        shards: number of devices the samples are divided over.
        memory: budget in bytes; half of what is free where None.
        chunk: samples at a time, to override the choice.

    Raises:
        ValueError: if a coupled problem is to be divided into chunks.
        MemoryError: if a coupled problem, which cannot be divided, does not fit.
    """
    budget = available_memory() // 2 if memory is None else memory
    samples = -(-problem.rows // shards)
    if problem.coupled and chunk is not None and chunk < problem.rows:
        raise ValueError(
            f"a coupled function cannot be divided into chunks: its samples interact; got chunk={chunk} "
            f"for N = {problem.rows}: take its statistics with lngeom.information.BatchCoupled"
        )
    derivative = derivative_bytes(problem, samples)
    width = problem.dtype.itemsize
    row_bytes = problem.rows_per_sample * problem.size * width
    store = problem.coupled or (derivative <= min(STORED, budget // 4) and chunk is None)
    if store:
        products, working = samples, derivative
    else:
        one, two = (derivative_bytes(problem, rows) for rows in (1, 2))
        slope = max(two - one, 1)
        products = chunk or max(1, min(samples, min(CHUNK_BYTES, budget // 4) // (2 * slope)))
        working = slope * products
    rows = samples if problem.coupled else chunk or max(1, min(ROWS, budget // 4) // row_bytes)
    batch = int(max(1, min(128, BATCH // max(working, 1))))
    factor, dense = row_bytes * samples, width * problem.size**2
    result = Plan(budget, problem.size, samples, derivative, factor, dense, store, products, rows, batch)
    if problem.coupled:
        result.require(
            derivative,
            "the derivative of a coupled function, which cannot be divided,",
            "take its statistics with lngeom.information.BatchCoupled, which can be, or use fewer samples",
        )
    return result
