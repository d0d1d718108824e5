"""The null space of a transformer's Fisher matrix, predicted from its description, weights and tokens."""

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from lngeom._core.conditions import Condition
from lngeom._core.numerics import ConvergenceError
from lngeom._core.text import counted
from lngeom.transformers.arrays import StackArrays
from lngeom.transformers.counts import count_symmetries
from lngeom.transformers.coverage import require_covered
from lngeom.transformers.description import Block, FeedForward, Mixture, Stack
from lngeom.transformers.families import FAMILIES
from lngeom.transformers.forward import attention, hidden, linear, norm, routing
from lngeom.transformers.symmetries import Generators, symmetries

MEMORY = 2**30
"""Bytes up to which a basis is formed."""

ITERATIONS_SPENT = 7
"""What LSMR says when it stops for want of steps."""

DEPENDENT = 1e-8
"""Unit vectors that are closer than this to the span of others add nothing to it."""


@dataclass(frozen=True, repr=False)
class StackNullspace:
    """What the theory says about the null space of the Fisher matrix of a stack under a softmax.

    Attributes:
        dimension: the number of independent symmetries; the nullity where all conditions hold.
        directions: pairs (name of a family, number of directions it adds to those before it).
        conditions: the conditions under which the dimension is exact.
        parameters: P.
        counts: numbers by the codes of the families.
        stack: the description.
        weights: the arrays by name, or None where only shapes were given.
    """

    dimension: int
    directions: tuple[tuple[str, int], ...]
    conditions: tuple[Condition, ...]
    parameters: int
    counts: Mapping[str, int]
    stack: Stack
    weights: Mapping[str, Any] | None

    def __repr__(self) -> str:
        """Its dimension and directions."""
        parts = "; ".join(f"{count} {name}" for name, count in self.directions)
        exact = "exact" if self.exact else "a lower bound"
        return f"StackNullspace(dimension {self.dimension:,} of {self.parameters:,}, {exact}: {parts})"

    @property
    def exact(self) -> bool:
        """Whether every condition holds."""
        return all(c.holds for c in self.conditions)

    def describe(self) -> str:
        """The directions and their counts, and the conditions that fail, as text."""
        width = max(5, len(str(self.dimension)))
        lines = [f"{count:{width}d}  {name}" for name, count in self.directions]
        lines.append(f"{self.dimension:{width}d}  in all")
        lines += [f"condition fails: {c.name} ({c.detail})" for c in self.conditions if not c.holds]
        return "\n".join(lines)

    @functools.cached_property
    def basis(self) -> Float[np.ndarray, "P K"]:
        """Orthonormal columns in the order of `ravel_pytree` of the weights.

        Raises:
            ValueError: if only shapes were given.
            MemoryError: if it does not fit; `project` needs no basis.
        """
        if self.weights is not None and not fits(self.parameters, self.dimension):
            raise MemoryError(
                f"a basis of {self.dimension:,} vectors of {self.parameters:,} entries exceeds {MEMORY:,} bytes; use "
                "project(v)"
            )
        return span(self._arrays)[0]

    def project(self, v: Any, tolerance: float = 1e-10) -> Any:
        """The part of v along the null space, by least squares on the tangent vectors where no basis fits.

        Args:
            v: arrays by name like the weights, or ravelled.
            tolerance: of the least squares (LSMR); the residual relative to v.

        Returns:
            The orthogonal projection, like v.

        Raises:
            ValueError: if only shapes were given, or v has another size.
            ConvergenceError: if the least squares do not reach the tolerance.
        """
        arrays = self._arrays
        vector, unravel = ravel_pytree(v)
        vector = np.asarray(vector, np.float64)
        if vector.shape != (arrays.size,):
            raise ValueError(f"v must have {arrays.size:,} entries, as the weights; got {vector.size:,}")
        if fits(arrays.size, self.dimension):
            found = self.basis @ (self.basis.T @ vector)
        else:
            found = _project(arrays, vector, tolerance)
        return unravel(jnp.asarray(found, ravel_pytree(v)[0].dtype))

    @functools.cached_property
    def _arrays(self) -> StackArrays:
        if self.weights is None:
            raise ValueError("only shapes were given, which fix the dimension but no directions; give the weights")
        return StackArrays(self.stack, self.weights)


def predict(
    stack: Stack, weights: Mapping[str, Any], tokens: Int[Array, "N T"] | None, types: Int[Array, "N T"] | None
) -> StackNullspace:
    """See `lngeom.predicted_nullspace`."""
    stack.check(weights)
    shapes = {name: tuple(weights[name].shape) for name in weights}
    if unknown := sorted(set(shapes) - set(stack.arrays)):
        raise ValueError(
            f"the weights hold {unknown[0]!r} ({len(unknown)} in all), which the description does not name"
        )
    require_covered(stack, shapes)
    expected = count_symmetries(stack, shapes)
    size = sum(math.prod(s) for s in shapes.values())
    concrete = all(not isinstance(w, jax.ShapeDtypeStruct) for w in weights.values())
    conditions = []
    counts = expected
    if concrete:
        require_gains(stack, weights)
        if fits(size, expected.total()):
            counts = span(StackArrays(stack, weights))[1]
            conditions.append(_generic(expected, counts))
    conditions += _on_shapes(stack, shapes)
    if tokens is not None and concrete:
        conditions += _on_data(stack, weights, size, np.asarray(tokens), None if types is None else np.asarray(types))
    directions = tuple((FAMILIES[code], counts[code]) for code in FAMILIES if counts[code])
    given = weights if concrete else None
    return StackNullspace(counts.total(), directions, tuple(conditions), size, counts, stack, given)


def ordered(arrays: StackArrays) -> list[Generators]:
    """The families of a stack in the order of `FAMILIES`."""
    place = {code: i for i, code in enumerate(FAMILIES)}
    return sorted(symmetries(arrays), key=lambda g: place[g.code])


def span(arrays: StackArrays, without: str | None = None) -> tuple[Float[np.ndarray, "P K"], Counter[str]]:
    """Orthonormal basis of all tangent vectors, and what each family adds to those before it.

    Args:
        arrays: the stack and its weights.
        without: code of a family to leave out.

    Returns:
        The basis, and numbers by code.
    """
    parts, counts = [], Counter()  # orthonormal columns, each part on the rows where it is not zero
    for family in ordered(arrays):
        if family.code == without:
            continue
        new = family.columns(arrays)
        norms = np.linalg.norm(new, axis=0)
        new = new[:, norms > 0] / norms[norms > 0]
        for _ in range(2):
            for rows, columns in parts:
                if (shared := new[rows]).any():
                    new[rows] = shared - columns @ (columns.T @ shared)
        rows = np.flatnonzero(new.any(1))
        left, s, _ = np.linalg.svd(new[rows], full_matrices=False)
        fresh = left[:, s > DEPENDENT]
        parts.append((rows, fresh))
        counts[family.code] += fresh.shape[1]
    basis = np.zeros((arrays.size, counts.total()))
    ends = np.cumsum([columns.shape[1] for _, columns in parts])
    for (rows, columns), end in zip(parts, ends, strict=True):
        basis[rows, end - columns.shape[1] : end] = columns
    return basis, counts


def fits(parameters: int, vectors: int) -> bool:
    """Whether a basis fits."""
    return 8 * parameters * vectors <= MEMORY


def require_gains(stack: Stack, weights: Mapping[str, Any]) -> None:
    """Refuses gains of zero.

    Raises:
        ValueError: naming the first.
    """
    for site in stack.norms:
        if site.part.gain is None:
            continue
        zero = np.flatnonzero(site.part.offset + np.asarray(weights[site.part.gain], np.float64) == 0)
        if zero.size:
            raise ValueError(
                f"gain {zero[0]} of {site} is zero, so its readers' columns are unused; symmetries are predicted for "
                "gains other than zero: take the coordinate out, or measure with lg.fisher(...).nullspace()"
            )


def _project(arrays: StackArrays, vector: Float[np.ndarray, " P"], tolerance: float) -> Float[np.ndarray, " P"]:
    """B c for the c that brings B c nearest to v, B the tangent vectors."""
    from scipy.sparse.linalg import LinearOperator, lsmr

    families = [f for f in ordered(arrays) if f.count]
    sizes = np.cumsum([0, *(f.count for f in families)])

    def combine(family: Generators, c: Any) -> Any:
        found = jnp.zeros(arrays.size)
        for change in family.tangents(c.reshape(1, *family.shape)):
            index = arrays.starts[change.array] + change.index
            found = found.at[index].add(jnp.broadcast_to(change.value, (1, *index.shape))[0])
        return found

    @jax.jit
    def multiply(c: Array) -> Array:
        parts = zip(families, sizes, strict=False)
        return sum((combine(f, c[at : at + f.count]) for f, at in parts), start=jnp.zeros(arrays.size))

    with jax.enable_x64(True):
        transpose = jax.jit(jax.linear_transpose(multiply, jax.ShapeDtypeStruct((int(sizes[-1]),), jnp.float64)))
        make: Any = LinearOperator
        size = arrays.size, int(sizes[-1])
        operator = make(size, matvec=multiply, rmatvec=lambda u: transpose(u)[0], dtype=np.float64)
        c, stop, *_ = lsmr(operator, vector, atol=tolerance, btol=tolerance, maxiter=5 * size[1])
        if stop == ITERATIONS_SPENT:
            raise ConvergenceError(f"least squares did not reach {tolerance:.1e} in {5 * size[1]:,} steps")
        return np.asarray(multiply(jnp.asarray(c)))


# Conditions.


def _generic(expected: Counter[str], counts: Counter[str]) -> Condition:
    more = {FAMILIES[c]: counts[c] - expected[c] for c in FAMILIES if counts[c] != expected[c]}
    detail = "; ".join(f"{number:+d} {name}" for name, number in more.items())
    return Condition("the weights are a generic point", not more, detail or "the closed formulas give the same numbers")


def _on_shapes(stack: Stack, shapes: Mapping[str, tuple[int, ...]]) -> list[Condition]:
    vocabulary, d = shapes[stack.tables[0].weight]
    found = [Condition("more tokens than coordinates", vocabulary > d, f"{vocabulary} tokens, {d} coordinates")]
    first = stack.blocks[0] if stack.blocks else None
    if first is not None and first.parallel and len(stack.tables) == 1:
        network = sum(math.prod(shapes[n]) for n in {m.weight for _, m in first.feed_forward.readers()})
        network += sum(math.prod(shapes[n]) for n in {m.weight for _, m in first.feed_forward.writers()})
        found.append(
            Condition(
                "a first feed-forward network beside attention, which sees one vector a token, sees enough of them",
                vocabulary * d > network,
                f"{vocabulary} tokens of {d} numbers for {network} weights",
            )
        )
    return found


def _on_data(
    stack: Stack, weights: Mapping[str, Any], size: int, tokens: np.ndarray, types: np.ndarray | None
) -> list[Condition]:
    samples, length = tokens.shape
    vocabulary, d = np.shape(weights[stack.tables[0].weight])
    unread = []
    for table in stack.tables:
        rows = len(weights[table.weight]) - table.offset
        given = types if types is not None else np.zeros_like(tokens)
        used = {"token": tokens, "position": np.arange(length), "type": given}[table.index]
        unread.append(rows - len(np.unique(used)))
    for buckets in stack.bucket_tables.values():
        unread.append(len(buckets.unread(length)) - len(buckets.unread()))
    outputs = samples * length * (vocabulary - 1)
    found = [
        Condition(
            "every row of every table is read", not any(unread), f"{counted(sum(unread), 'row is', 'rows are')} not"
        ),
        Condition("attention sees two positions", length > 1, counted(length, "position")),
        Condition("at least twice as many outputs as parameters", outputs >= 2 * size, f"{outputs:,} of {2 * size:,}"),
    ]
    needed = 4 * (d + 2)
    fewest, least = _firing(stack, weights, tokens, types)
    if fewest is not None:
        found.append(
            Condition(
                "every ReLU and every expert is on and off at many positions",
                fewest >= needed and least >= 4,
                f"on at {fewest} of {needed} needed, off at {least} of 4",
            )
        )
    return found


def _firing(stack: Stack, weights: Mapping[str, Any], tokens: np.ndarray, types: np.ndarray | None) -> Any:
    """The fewest positions at which a ReLU unit or an expert is on, and at which one is off (units only)."""
    rows = None if types is None else jnp.asarray(types)
    on: list[int] = []
    off: list[int] = []
    for i, block in enumerate(stack.blocks):
        network = block.feed_forward
        experts = network.experts if isinstance(network, Mixture) else (network,)
        relu = [e for e in experts if e.activation.startswith("relu")]
        chosen = isinstance(network, Mixture) and network.top is not None
        if not relu and not chosen:
            continue
        x = hidden(replace(stack, blocks=stack.blocks[:i], final=None), weights, jnp.asarray(tokens), rows)
        y = _network_input(block, weights, x)
        shares = np.asarray(routing(network, weights, y)) if isinstance(network, Mixture) else None
        for e, expert in enumerate(experts):
            used = np.ones(y.shape[:2], bool) if shares is None else shares[..., e] > 0
            if chosen:
                on.append(int(used.sum()))
            if expert in relu:
                on_here = _active(expert, weights, y) & used[..., None]
                on.append(int(on_here.sum((0, 1)).min()))
                off.append(int((used[..., None] & ~on_here).sum((0, 1)).min()))
    return (min(on), min(off, default=len(tokens) * len(tokens[0]))) if on else (None, 0)


def _network_input(block: Block, weights: Mapping[str, Any], x: Array) -> Array:
    """What the feed-forward network of a block reads."""
    before = x if block.attention_norm is None or block.placing == "post" else norm(block.attention_norm, weights, x)
    if block.shared_norm:
        return before
    added = x
    if not block.parallel:
        y = attention(block.attention, weights, before)
        y = y if block.attention_writing_norm is None else norm(block.attention_writing_norm, weights, y)
        added = x + block.factor * y
    if block.placing == "post":
        assert block.attention_norm is not None
        return norm(block.attention_norm, weights, added)
    return added if block.feed_forward_norm is None else norm(block.feed_forward_norm, weights, added)


def _active(network: FeedForward, weights: Mapping[str, Any], y: Array) -> np.ndarray:
    part = network.up if network.gate is None else network.gate
    return np.asarray(linear(part, weights, y)) > 0
