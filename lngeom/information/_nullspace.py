r"""The null space of a Fisher matrix as measured: a basis, a certificate, and names for its directions.

Of each candidate (`lngeom.information.candidates`) the part in the null space is counted and set aside, the simplest
first; the rest is unexplained.

A symmetry that only an ε in a normalizer breaks is found by the law of its form. To scale the weights before a
normalizer by δ acts as ε → ε/δ². The form along the logarithm of that scale is
$E[(\varepsilon/\sigma^2)^2 \dots] \propto \varepsilon^2$, so it falls as δ⁻⁴: almost null, but not null, and the
divisor of a solve.
"""

import functools
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from lngeom._core.draws import probe_generator
from lngeom._core.progress import watched
from lngeom._core.subspaces import Account, Part
from lngeom._core.support import Support, supports
from lngeom._core.trees import leaf_paths, leaf_rows, leaf_slices
from lngeom.families import Categorical, Gaussian, Product
from lngeom.information._coupled import at_parameters
from lngeom.information._derivative import GLMFunction
from lngeom.information._elsewhere import Elsewhere, forms, gram
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher, quadratic_form
from lngeom.information._sharding import Placement
from lngeom.information._spectrum import Decomposition, leading_eigenvalues
from lngeom.information.candidates import Candidate, Leaf, candidates, candidates_of_stack
from lngeom.information.spaces import find_spaces, fits
from lngeom.methods.layer import AbstractGroupedNormalizer

if TYPE_CHECKING:  # models that are no transformers do without
    from lngeom.transformers.description import Stack

ALIKE = "changes of all logits alike, which the softmax does not see"
"""Name of null directions that change outputs."""

LANCZOS = 30
"""Iterations for the largest eigenvalue, as a scale."""


class BrokenDirection(NamedTuple):
    """A symmetry that only an ε in a normalizer breaks.

    Attributes:
        name: the symmetry.
        form: vᵀFv for the unit vector v along it, relative to the largest eigenvalue.
        exponent: p in vᵀFv ∝ ε^p, found by scaling the leaf (ε acts as ε/δ²); 2 by theory.
    """

    name: str
    form: float
    exponent: float


class Direction(NamedTuple):
    """A family of null directions.

    Attributes:
        name: the symmetry, in terms of leaves.
        dimension: what it adds to those before it.
        uncertain: how many of these rounding may hide: F may not be zero along them.
        data: how many of these other data of the same kind would see; None where no other data could be tried.
        leaves: paths of the leaves that it moves; empty for changes that may move any.
    """

    name: str
    dimension: int
    uncertain: int = 0
    data: int | None = 0
    leaves: tuple[str, ...] = ()

    @property
    def marks(self) -> str:
        """What is not certain about it, in brackets."""
        due = _marked(self.data or 0, self.dimension, "due to the data")
        return _marked(self.uncertain, self.dimension, "uncertain") + due


@dataclass(frozen=True)
class Description:
    """A null space in words.

    Attributes:
        directions: named families.
        unexplained: null directions that no candidate accounts for.
        broken: nearly null directions, broken by ε.
        supports: the unexplained by the leaves in which they lie, as few leaves as can be found.
        uncertain: how many of the unexplained rounding may hide.
    """

    directions: tuple[Direction, ...]
    unexplained: int
    broken: tuple[BrokenDirection, ...]
    supports: tuple[Support, ...] = ()
    uncertain: int = 0

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = 80) -> str:
        """A line for each family of directions, what is unexplained and what is uncertain.

        Args:
            width: columns.
        """

        def line(start: str, text: str) -> str:
            further = " " * len(start)
            return textwrap.fill(text, width, initial_indent=start, subsequent_indent=further, break_long_words=False)

        lines = [line(f"{d.dimension:5d}  ", d.name + d.marks) for d in self.directions]
        said = "; how many entries of a leaf each of them moves:" if self.supports else ""
        uncertain = _marked(self.uncertain, self.unexplained, "uncertain")
        lines.append(line(f"{self.unexplained:5d}  ", f"unexplained{uncertain}{said}"))
        lines += [line(f"{s.dimension:9d}  ", str(s)) for s in self.supports]
        lines += [
            line("broken by eps: ", f"{b.name}, form {b.form:.2g} of the largest, ∝ eps^{b.exponent:.2f}")
            for b in self.broken
        ]
        if self.uncertain or any(d.uncertain for d in self.directions):
            lines.append(line("", "uncertain: no gap in the singular values separates them from rounding."))
        if any(d.data for d in self.directions):
            lines.append(line("", "due to the data: the outputs at other inputs of the same kind depend on them."))
        if any(d.data is None for d in self.directions):
            lines.append(line("", "The outputs at other inputs are not finite: what is due to the data is not known."))
        return "\n".join(lines)


def _marked(count: int, dimension: int, what: str) -> str:
    return "" if not count else f" ({what})" if count == dimension else f" ({count} of them {what})"


@dataclass(frozen=True, repr=False)
class MeasuredNullspace:
    """Orthonormal basis of the null space, and what certifies it.

    Attributes:
        basis: columns [P k].
        dimension: k, the nullity.
        residual: largest singular value of the factor on the basis, relative to its largest on all
            directions.
        gap: smallest kept ÷ largest dropped singular value.
        operator: whose null space it is.
        certain: whether one gap alone separates the null space from the identifiable directions.
        largest: the largest eigenvalue of F.
        uncertain: the columns within it along which rounding may hide that F is not zero.
    """

    basis: Float[Array, "P k"]
    dimension: int
    residual: float
    gap: float
    operator: AbstractFisher
    certain: bool
    largest: float
    uncertain: Float[Array, "P u"]

    def __repr__(self) -> str:
        """Its dimension and certificate, not its arrays."""
        return (
            f"MeasuredNullspace(dimension {self.dimension} of {self.basis.shape[0]:,}, residual {self.residual:.1e}, "
            f"gap {self.gap:.1e}, of {self.operator!r})"
        )

    def principal_angles(self, basis: Float[Array, "P m"]) -> Float[Array, " n"]:
        """Principal angles in radians between this null space and the span of other columns, ascending.

        Args:
            basis: columns [P m], not necessarily orthonormal, such as a predicted null space.

        Returns:
            min(k, m) angles.

        Raises:
            ValueError: if the columns do not have P entries.
        """
        basis = jnp.asarray(basis, self.basis.dtype)
        if basis.ndim != 2 or basis.shape[0] != self.basis.shape[0]:
            raise ValueError(f"expected columns [P m] with P = {self.basis.shape[0]}; got shape {basis.shape}")
        if 0 in {basis.shape[1], self.dimension}:
            return jnp.zeros(0, self.basis.dtype)
        return jnp.asarray(scipy.linalg.subspace_angles(self.basis, basis)[::-1], self.basis.dtype)

    def by_leaf(self) -> list[dict[str, Any]]:
        """A row for each leaf: its path, shape and size, and how many of the null directions lie in it.

        That number is the squared norm of the basis on the leaf; over all leaves they add up to the dimension. Plain
        dicts of numbers, as `pandas.DataFrame` takes them.
        """
        squares = np.sum(np.square(np.asarray(self.basis, np.float64)), 1)
        rows = leaf_rows(self.operator.problem.params)
        return [row | {"null": float(squares[where].sum())} for row, where in rows]

    def describe(self, stack: "Stack | None" = None) -> Description:
        """Names each direction in the user's own parameters, and counts what is unexplained.

        Args:
            stack: description of the model, if it is a transformer whose parameters are arrays by name. Directions are
                then named by its symmetries.

        Raises:
            ValueError: if the parameters are not those of the stack.
        """
        first = () if stack is None else candidates_of_stack(stack, self.operator.problem.params)
        return explain(self, first)


def measure(F: AbstractFisher, decomposition: Decomposition) -> MeasuredNullspace:
    """The null space of an operator whose factor has been decomposed."""
    basis, decision = decomposition.null, decomposition.decision
    largest = float(np.asarray(decomposition.singular_values)[0])
    residual = 0.0
    if basis.shape[1] and largest > 0:
        residual = float(np.sqrt(np.max(forms(F, np.asarray(basis))))) / largest
    uncertain = decomposition.vectors[decision.rank : decision.most].T
    return MeasuredNullspace(
        basis, basis.shape[1], residual, decision.gap, F, decision.certain, largest * largest, uncertain
    )


def explain(nullspace: MeasuredNullspace, first: Iterable[Iterable[Candidate]] = ()) -> Description:
    """Accounts for a null space, by the candidates given first and then by those of any model."""
    F = nullspace.operator
    problem = F.problem
    with watched() as watch:
        null = np.linalg.qr(np.asarray(nullspace.basis, np.float64))[0]
        close = float(jnp.finfo(problem.dtype).eps) ** 0.4
        account = Account(null, close)
        softmax = _Softmax(F, close, nullspace.largest)
        named = _named(account, itertools.chain(first, _candidates_of(F, account)), softmax, watch)
        watch("names: other data")
        elsewhere = Elsewhere(F, math.sqrt(nullspace.largest))
        found = list(_at_other_data(elsewhere, named, null, close))
        rest = null @ account.rest()
        if rest.shape[1]:
            watch("names: what is left")
            for name, columns, data in _not_of_leaves(softmax, rest, elsewhere, close):
                fresh = null @ account.take(null.T @ columns)
                found.append((name, fresh, data and fresh.shape[1], ()))
        doubtful = np.asarray(nullspace.uncertain, np.float64)
        directions = tuple(
            Direction(name, sum(c.shape[1] for c in columns), _shared(np.hstack(columns), doubtful), data, leaves)
            for name, columns, data, leaves in _together(found)
        )
        watch("names: symmetries that an epsilon breaks")
        broken = tuple(b for b, _ in broken_symmetries(F, lambda v: v - null @ (null.T @ v), largest=nullspace.largest))
        unexplained = account.left
        lie = supports(null, null @ account.explained, leaf_slices(problem.params), close) if unexplained else ()
        others = _shared(null @ account.rest(), doubtful) if unexplained else 0
        return Description(directions, unexplained, broken, tuple(lie), others)


def _candidates_of(F: AbstractFisher, account: Account) -> Iterator[Iterable[Candidate]]:
    problem = F.problem
    values = zip(leaf_slices(problem.params).items(), jax.tree.leaves(problem.params), strict=True)
    leaves = [Leaf(name, np.asarray(value, np.float64), where.start) for (name, where), value in values]
    spaces = find_spaces(problem.outputs, problem.params, problem.inputs)
    readable = fits(spaces, [leaf.value.size for leaf in leaves])
    return candidates(leaves, account, spaces if readable else None)


def _named(
    account: Account, tiers: Iterable[Iterable[Candidate]], softmax: "_Softmax", watch: Callable[[str], None]
) -> list[tuple[str, np.ndarray, tuple[str, ...]]]:
    """Names, new directions in coordinates of the null space, and leaves; of a group the largest candidate first."""
    found: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {}
    for tier in tiers:
        parts = []
        for candidate in tier:
            if not account.left:
                break
            watch(f"names: {account.left} of {account.null.shape[1]} null directions are left")
            part = account.part(candidate.rows, candidate.columns)
            if part.coordinates.shape[1]:
                parts.append((candidate, part))
        for candidate, part in sorted(parts, key=lambda item: -item[1].coordinates.shape[1]):
            for name, divided, leaves in _divided(candidate, part, account.null, softmax):
                fresh = account.take(divided.coordinates)
                if fresh.shape[1]:
                    before = found.get(name, (fresh[:, :0], ()))[0]
                    found[name] = np.hstack([before, fresh]), leaves
    return [(name, fresh, leaves) for name, (fresh, leaves) in found.items()]


def _divided(
    candidate: Candidate, part: Part, null: np.ndarray, softmax: "_Softmax"
) -> Iterator[tuple[str, Part, tuple[str, ...]]]:
    """The named directions of a part; where no output is to depend on them, those that the softmax hides apart."""
    alike = part.coordinates.T @ (null.T @ softmax.hides(null @ part.coordinates)) if candidate.unread else None
    if alike is None or not alike.shape[1]:
        yield from candidate.named(part)
        return
    for _, _, leaves in candidate.named(part):
        yield ALIKE, part.combined(alike), leaves
        yield candidate.unread, part.combined(scipy.linalg.null_space(alike.T)), leaves


Found = tuple[str, np.ndarray, int | None, tuple[str, ...]]
"""Name, orthonormal null directions, how many of them are due to the data, leaves."""


def _at_other_data(elsewhere: Elsewhere, named: Sequence[tuple], null: np.ndarray, close: float) -> Iterator[Found]:
    """The same directions with what is due to the data: of changes of several leaves that has no name of a symmetry."""
    families = [null @ coordinates for _, coordinates, _ in named]
    hidden = []
    for (name, _, leaves), columns, seen in zip(named, families, elsewhere.seen_of(families, close), strict=True):
        if seen is None or not seen.shape[1] or len(leaves) == 1:
            yield name, columns, None if seen is None else seen.shape[1], leaves
        else:
            hidden.append(seen)
            yield name, columns @ scipy.linalg.null_space(seen.T @ columns), 0, leaves
    for columns in hidden:
        yield _unshown(elsewhere), columns, columns.shape[1], ()


def _unshown(elsewhere: Elsewhere) -> str:
    return f"directions that these inputs do not show ({elsewhere.described()})"


def _together(found: Iterable[Found]) -> list[tuple[str, list[np.ndarray], int | None, tuple[str, ...]]]:
    """Directions of one name together; none without a dimension."""
    rows: dict[str, tuple[str, list[np.ndarray], int | None, tuple[str, ...]]] = {}
    for name, columns, data, leaves in found:
        if columns.shape[1]:
            _, before, due, _ = rows.get(name, (name, [], 0, leaves))
            rows[name] = name, [*before, columns], None if data is None or due is None else due + data, leaves
    return list(rows.values())


def _not_of_leaves(
    softmax: "_Softmax", rest: np.ndarray, elsewhere: Elsewhere, close: float
) -> Iterator[tuple[str, np.ndarray, int | None]]:
    """What the data hide, and what the family hides, of directions without another name; orthonormal columns."""
    (seen,) = elsewhere.seen_of([rest], close)
    if seen is not None and seen.shape[1]:
        yield _unshown(elsewhere), seen, seen.shape[1]
        rest = rest @ scipy.linalg.null_space(seen.T @ rest)
    alike = softmax.hides(rest)
    if alike.shape[1]:
        yield ALIKE, alike, 0


def _shared(columns: np.ndarray, others: np.ndarray) -> int:
    """How many directions of a subspace lie in another, up to 60°; both have orthonormal columns."""
    if not columns.shape[1] or not others.shape[1]:
        return 0
    return int(np.sum(np.linalg.svd(others.T @ columns, compute_uv=False) > 0.5))


class _Softmax:
    """Null directions that change the outputs: the metric of a categorical family hides them, not the model.

    Args:
        F: whose null space it is.
        close: share of the largest eigenvalue up to which outputs do not move.
        largest: the largest eigenvalue.
    """

    def __init__(self, F: AbstractFisher, close: float, largest: float):
        self.given, self.least = F, close * largest

    @functools.cached_property
    def _moved(self) -> AbstractFisher:
        """With the metric of a Gaussian family, vᵀFv is the mean square of the change of the outputs."""
        return self.given.changed(lambda problem, _: problem.with_family(Gaussian()))

    def hides(self, columns: Float[np.ndarray, "P m"]) -> Float[np.ndarray, "P j"]:
        """Those of orthonormal null directions that change the outputs."""
        family = self.given.problem.family
        parts = family.parts if isinstance(family, Product) else (family,)
        m = columns.shape[1]
        if not m or not any(isinstance(part, Categorical) for part in parts):
            return columns[:, :0]
        one = columns @ probe_generator().normal(size=(m, 1))
        if forms(self._moved, one)[0] <= self.least:  # the form of one direction shows whether there are any
            return columns[:, :0]
        values, vectors = np.linalg.eigh(gram(self._moved, columns))
        return columns @ vectors[:, values > self.least]


def broken_symmetries(
    F: AbstractFisher,
    identifiable: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " P"]],
    known: Float[np.ndarray, "K 2"] | None = None,
    largest: float | None = None,
) -> Iterator[tuple[BrokenDirection, Float[np.ndarray, " P"]]]:
    """Scales of weights whose form falls as δ⁻⁴ when they grow by δ: what ε/δ² in a variance does.

    The `scale_forms` of all scales, and the largest eigenvalue, are computed where they are not given.
    """
    close = float(jnp.finfo(F.problem.dtype).eps) ** 0.4
    for k, (name, direction) in enumerate(scales(F.problem)):
        norm = np.linalg.norm(direction)
        unit = direction / norm if norm else direction
        if not norm or np.linalg.norm(identifiable(unit)) < close:
            continue
        first, second = _scaled_forms(F, direction) if known is None else np.asarray(known[k], float)
        if not first > 0 or not second > 0:
            continue
        exponent = math.log2(first / second) / 2
        if abs(exponent - 2) < 0.2:
            if largest is None:
                largest = float(leading_eigenvalues(F, 1, steps=min(F.in_size(), LANCZOS))[0])
            yield BrokenDirection(f"scale of {name}", first / float(norm) ** 2 / largest, exponent), unit


def scales(problem: Problem) -> Iterator[tuple[str, Float[np.ndarray, " P"]]]:
    """Weights that may go through a normalizer together: a matrix, one with its bias, one of a GLM's groups."""
    values = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(problem.params)]
    names = leaf_paths(problem.params)

    def ravelled(parts: dict[int, np.ndarray]) -> np.ndarray:
        return np.concatenate([parts.get(k, np.zeros_like(v)).reshape(-1) for k, v in enumerate(values)])

    for i, matrix in enumerate(values):
        if matrix.ndim < 2:
            continue
        yield names[i], ravelled({i: matrix})
        for j, vector in enumerate(values):
            siblings = names[i].rpartition(".")[0] == names[j].rpartition(".")[0]
            if vector.ndim == 1 and siblings and len(vector) in matrix.shape and vector.any():
                yield f"{names[i]} and {names[j]}", ravelled({i: matrix, j: vector})
    model = problem.model
    normalizer = model.model.normalizer if isinstance(model, GLMFunction) else None
    if isinstance(normalizer, AbstractGroupedNormalizer) and normalizer.group_count > 1 and names[0] == "weights":
        size = len(values[0]) // normalizer.group_count
        for k in range(normalizer.group_count):
            rows = np.zeros_like(values[0])
            rows[k * size : (k + 1) * size] = values[0][k * size : (k + 1) * size]
            yield f"weights in group {k}", ravelled({0: rows})


def _scaled_forms(F: AbstractFisher, direction: Float[np.ndarray, " P"]) -> Float[np.ndarray, " 2"]:
    """The same as `scale_forms`, by the program that has been compiled for the null space."""
    change = jnp.asarray(direction, F.problem.dtype)
    twice = F.changed(
        lambda problem, _: at_parameters(problem, problem.unravel(problem.ravel(problem.params) + change))
    )
    return np.concatenate([forms(F, direction[:, None]), forms(twice, 2 * direction[:, None])])


@functools.partial(jax.jit, static_argnames="at")
def scale_forms(problem: Problem, at: Placement, change: Float[Array, " P"]) -> Float[Array, " 2"]:
    """The forms along the logarithm of a scale, where these weights are as they are, and twice as large."""

    def form(delta: Float[Array, ""]) -> Float[Array, ""]:
        there = problem.unravel(problem.ravel(problem.params) + (delta - 1) * change)
        return quadratic_form(at_parameters(problem, there), at, problem.unravel(delta * change))

    return jax.lax.map(form, jnp.arange(1, 3, dtype=change.dtype))  # as a loop the program is half as long
