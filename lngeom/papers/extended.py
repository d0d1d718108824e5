"""The extended invariance table: every method against every transformation, equivariance and change of basis."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from lngeom._core.types import GLMParameters
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, numpy_reference, proves
from lngeom.claims.context import Read
from lngeom.claims.evidence import Evidence
from lngeom.claims.registry import Claim, register
from lngeom.methods import METHODS, AbstractNormalizer, LayerNorm
from lngeom.methods.page import GROUPS, Method
from lngeom.methods.table import EQUIVARIANCE, EXTENDED, Cell
from lngeom.methods.transformations.actions import Column, Transformation
from lngeom.methods.transformations.columns import extended
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES, MatrixGroup
from lngeom.symbolic.proof import Counterexample, Proof
from lngeom.symbolic.table import prove_recorded

TOPIC = "extended"
DRAWS = 3
UNITS, POSITIONS, SAMPLES, FEATURES = 8, 4, 48, 16
LEAST = 4
CONDITIONS = ("δ > 0", "ε = 0 unless it is stated", "no statistic is zero")
WHY_NUMERIC = "orthogonal and invertible matrices of every size are not in the algebra of indexed sums"

SAYS = {
    Cell.INVARIANT: "is invariant to",
    Cell.CHANGED: "is not invariant to",
    Cell.SIGN: "changes only its sign (which g → −g repairs) under",
}


@eqx.filter_jit
def normalized(
    normalizer: AbstractNormalizer, weights: Float[Array, "H D"], inputs: Float[Array, "N *T D"]
) -> Float[Array, "N *T H"]:
    """n(W, X), by one program for each method and shape."""
    return normalizer(weights, inputs)


class Point(NamedTuple):
    """A method at weights and inputs, which are in NumPy."""

    normalizer: AbstractNormalizer
    params: GLMParameters
    inputs: Float[np.ndarray, "N *T D"]

    def normalized(
        self, weights: Float[np.ndarray, "H D"], inputs: Float[np.ndarray, "N *T D"]
    ) -> Float[np.ndarray, "..."]:
        """The method's outputs at other weights and inputs; stored statistics stay what they are."""
        return np.asarray(normalized(self.normalizer, weights, inputs))

    def outputs(
        self, transformation: Transformation | None = None, rounded: Callable[[Any], Any] = lambda v: v
    ) -> Float[np.ndarray, "N *T H"]:
        """n(W, X), after a transformation and its rounding if one is given."""
        if transformation is None:
            return self.normalized(self.params.weights, self.inputs)
        params, inputs = transformation(self.params, self.inputs)
        return self.normalized(rounded(params.weights), rounded(inputs))


def data(problem: Problem, multiple: int = 1) -> Float[np.ndarray, "N D"]:
    """Rows of the data set and those of its inputs that vary most; random numbers where it is too small.

    Rows that are zero in these inputs are left out: statistics of a case vanish there. With fewer than four inputs, or
    rows, methods that standardize over them degenerate to signs. The number of inputs is a multiple of what is asked.
    """
    rows = np.asarray(problem.inputs)[:SAMPLES]
    spread = np.std(rows, 0)
    width = min(FEATURES, np.count_nonzero(spread)) // multiple * multiple
    rows = rows[:, np.argsort(-spread, kind="stable")[:width]]
    rows = rows[np.any(rows != 0, 1)]
    if min(rows.shape) < LEAST:
        return np.asarray(problem.normal("extended inputs", SAMPLES, FEATURES))
    return rows


def point(problem: Problem, method: Method) -> Point:
    """A method with random weights on the data; the positions of a case are rows that follow one another."""
    rows = data(problem, multiple=2 if method.square else 1)  # two groups must divide the units
    units = rows.shape[1] if method.square else UNITS
    weights = np.asarray(problem.normal(f"extended {units}", units, rows.shape[1]))
    ones: Any = np.ones(units, rows.dtype)
    normalizer = method.make(weights, rows)
    if normalizer.needs_positions:
        rows = np.stack([np.roll(rows, -shift, 0) for shift in range(POSITIONS)], 1)
        normalizer = method.make(weights, rows)
    return Point(normalizer, GLMParameters(weights, 0 * ones, ones), rows)


def defined(method: Method, at: Point) -> Evidence:
    """The method's outputs, and those of its second definition."""
    reference = numpy_reference.normalized(method.name, at.params.weights, at.inputs)
    return agree("library and NumPy reference", at.outputs(), reference)


def cell_check(method: Method, column: Column, recorded: Cell) -> Callable[[Problem], Iterator[Evidence]]:
    """The check of one cell: the outputs before and after a few draws of the transformation."""

    def check(problem: Problem) -> Iterator[Evidence]:
        at = point(problem, method)
        keys = [problem.key(f"{column.name} {draw}") for draw in range(DRAWS)]
        moved = [at.outputs(column.draw(k, at.params, at.inputs), problem.rounded) for k in keys]
        before = np.stack([column.compared(at.outputs())] * DRAWS)
        after = np.stack([column.compared(value) for value in moved])
        what = f"{DRAWS} draws, {len(before[0])} × {DRAWS} cases"
        if recorded is Cell.INVARIANT:
            yield agree(what, before, after)
        else:
            yield differ(what, before, after)
        if recorded is Cell.SIGN:
            yield agree("g → −g repairs it", before, -after)
        elif recorded is Cell.CHANGED and column.name == "weight_sign_flip":
            yield differ("g → −g does not repair it", before, -after)
        yield defined(method, at)

    return check


def _sums_of_groups(Q: np.ndarray) -> np.ndarray:
    size = Q.shape[-1] // GROUPS
    return Q.reshape(-1, GROUPS, size, GROUPS, size).sum((2, 4))


PROPERTIES: tuple[tuple[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]], ...] = (
    ("keep groups together", lambda Q: (_sums_of_groups(Q) ** 2, _sums_of_groups(Q) * (Q.shape[-1] // GROUPS))),
    ("are permutations", lambda Q: (Q**2, Q)),
    ("fix 1", lambda Q: (Q.sum(-1), np.ones(Q.shape[:-1]))),
    ("are orthogonal", lambda Q: (Q @ Q.swapaxes(1, 2), np.broadcast_to(np.eye(Q.shape[-1]), Q.shape))),
)
"""Equations of matrices, each a condition less: what a group of the table has, the next larger one lacks."""

LEVELS = {
    "group_permutations": 0,
    "unit_permutations": 1,
    "unit_rotations_fixing_one": 2,
    "unit_rotations": 3,
    "input_rotations_fixing_one": 2,
    "input_rotations": 3,
    "input_basis_changes": 4,
}
"""The first property that the matrices of a group have; they have all that follow."""


def of_group(group: MatrixGroup, drawn: np.ndarray) -> Iterator[Evidence]:
    """Whether matrices are of a group, and not all of the next smaller one.

    Args:
        group: the group.
        drawn: matrices, [draw K K].

    Yields:
        The properties that they have, and the one that they lack; of the smallest group, what they move.
    """
    level = LEVELS[group.name]
    for what, sides in PROPERTIES[level:]:
        yield agree(f"matrices drawn {what}", *sides(drawn))
    if level:
        what, sides = PROPERTIES[level - 1]
        yield differ(f"not all {what}", *sides(drawn))
        return
    group_of, place = np.divmod(np.arange(drawn.shape[-1]), drawn.shape[-1] // GROUPS)
    for what, labels in (("groups", group_of), ("units within groups", place)):
        yield differ(f"they move {what}", drawn @ labels, np.broadcast_to(labels, drawn.shape[:-1]))


def matrix_check(method: Method, group: MatrixGroup, recorded: Cell) -> Callable[[Problem], Iterator[Evidence]]:
    """The check of an equivariance or change of basis."""

    def check(problem: Problem) -> Iterator[Evidence]:
        at = point(problem, method)
        size = at.params.units if group.acts_on == "units" else at.inputs.shape[-1]
        compare = agree if recorded is Cell.INVARIANT else differ
        drawn = lambda name, size, dtype: np.stack(
            [group.draw(problem.key(f"{name} {draw}"), size, dtype) for draw in range(DRAWS)]
        )
        matrices = drawn(group.name, size, at.inputs.dtype)
        after = [at.normalized(*group(matrix, at.params.weights, at.inputs)) for matrix in matrices]
        before = [group.expected(matrix, at.outputs()) for matrix in matrices]
        yield compare(f"{DRAWS} draws", np.stack(before), np.stack(after))
        yield defined(method, at)
        yield from of_group(group, drawn(f"{group.name} control", UNITS, np.dtype(float)))

    return check


def cell(method: Method, column: Column, recorded: Cell) -> Proof | Counterexample:
    """The proof or exact counterexample of one cell."""
    ones = np.ones((4, 4), np.float32)
    return prove_recorded(method.make(ones, ones), column, recorded)


def _register_table() -> None:
    for name, row in EXTENDED.items():
        method = METHODS[name]
        for column in extended(method.groups):
            recorded = row[column.name]
            id = f"extended.{name}.{column.name}"
            register(
                Claim(
                    id,
                    topic=TOPIC,
                    source="Table 1, extended",
                    statement=f"{method.title} {SAYS[recorded]} {column.title.lower()}.",
                    formula=column.formula,
                    assumptions=CONDITIONS if recorded is not Cell.CHANGED else (),
                    read=Read.OWN,
                    expected=Verdict.HOLDS,
                    check=cell_check(method, column, recorded),
                )
            )
            proves(id)(functools.partial(cell, method, column, recorded))


def _register_matrices() -> None:
    for name, row in EQUIVARIANCE.items():
        method = METHODS[name]
        for group in (*EQUIVARIANCES, *BASIS_CHANGES):
            if group.name not in row:
                continue
            kind = "equivariant" if group.acts_on == "units" else "invariant"
            says = "is" if row[group.name] is Cell.INVARIANT else "is not"
            register(
                Claim(
                    f"extended.{name}.{group.name}",
                    topic=TOPIC,
                    source="Table 1, extended",
                    statement=f"{method.title} {says} {kind} under {group.title}.",
                    formula=group.formula,
                    assumptions=CONDITIONS if row[group.name] is Cell.INVARIANT else (),
                    read=Read.OWN,
                    expected=Verdict.HOLDS,
                    why_numeric=WHY_NUMERIC,
                    check=matrix_check(method, group, row[group.name]),
                )
            )


_register_table()
_register_matrices()


@claim(
    "extended.exception.ln_dataset_recentering",
    topic=TOPIC,
    source="Table 1, extended",
    statement="Layer norm is invariant to X + γ exactly where PWγ = 0: where all units see the shift alike.",
    formula=r"\mathrm{LN}(W(x + \gamma)) = \mathrm{LN}(Wx)\ \forall x \iff PW\gamma = 0",
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
    why_numeric="the proof is that of table1.exception.ln_dataset_recentering",
)
def ln_dataset_recentering(problem: Problem):
    """A shift γ with Wγ = 1 is not seen; another is."""
    at = point(problem, METHODS["ln"])
    ones = np.ones(at.params.units, at.inputs.dtype)
    unseen = np.linalg.lstsq(at.params.weights, ones)[0]
    # Where D < H no γ need have Wγ = 1: the weights are then moved by the least that makes it so.
    weights = at.params.weights + np.outer(ones - at.params.weights @ unseen, unseen) / np.sum(unseen**2)
    before = at.normalized(weights, at.inputs)
    yield agree("a shift with Wγ = 1", before, at.normalized(weights, problem.rounded(at.inputs + unseen)))
    seen = np.arange(1.0, 1.0 + len(unseen), dtype=unseen.dtype)
    shifted = at.normalized(weights, at.inputs + seen)
    yield differ("another shift", before, shifted, role=Role.FAILS_WITHOUT_CONDITION)


@claim(
    "extended.exception.query_key_sign",
    topic=TOPIC,
    source="Table 1, extended",
    statement="Logits of normalized queries and keys ignore the sign of W = (W_q, W_k), but not that of W_q alone.",
    formula=r"\hat q \cdot \hat k\,(-W_q, -W_k) = \hat q \cdot \hat k\,(W_q, W_k) = -\hat q \cdot \hat k\,(-W_q, W_k)",
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
    why_numeric="that of W is proved in the cells of qk_l2 and qk_ln; a sign of W_q alone is no column",
)
def query_key_sign(problem: Problem):
    """Two signs cancel; one is seen, and flips the logits."""
    for name in ("qk_l2", "qk_ln"):
        at = point(problem, METHODS[name])
        weights = np.asarray(at.params.weights)
        queries, keys = np.split(weights, 2)
        alone = at.normalized(np.concatenate([-queries, keys]), at.inputs)
        before = at.outputs()
        yield agree(f"{name}: −W", before, at.normalized(-weights, at.inputs))
        yield differ(f"{name}: −W_q", before, alone, role=Role.FAILS_WITHOUT_CONDITION)
        yield agree(f"{name}: −W_q and the sign of the logits", before, -alone)


@claim(
    "extended.exception.query_key_scales",
    topic=TOPIC,
    source="Table 1, extended",
    statement="Logits of normalized queries and keys ignore a scale of W_q and another of W_k, but not one of a unit.",
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
    why_numeric="two groups, of the queries and of the keys, are not the groups of the table's column",
)
def query_key_scales(problem: Problem):
    """Each of q and k is normalized by itself."""
    for name in ("qk_l2", "qk_ln"):
        at = point(problem, METHODS[name])
        halves, single = extended(2), extended(at.params.units)
        scale, unit = (next(c for c in cs if c.name == "weight_group_rescaling") for cs in (halves, single))
        before, key = at.outputs(), problem.key("halves")
        yield agree(f"{name}: two scales", before, at.outputs(scale.draw(key, at.params, at.inputs)))
        of_units = at.outputs(unit.draw(key, at.params, at.inputs))
        yield differ(f"{name}: a scale a unit", before, of_units, role=Role.FAILS_WITHOUT_CONDITION)


@claim(
    "extended.exception.residual_sign",
    topic=TOPIC,
    source="Table 1, extended",
    statement="A residual block x + g⊙LN(Wx) + b is repaired after W → −W by g → −g: its gain is that of the norm.",
    formula=r"x + (-g)\odot\mathrm{LN}(-Wx) + b = x + g\odot\mathrm{LN}(Wx) + b",
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric="it is the cell extended.ln.weight_sign_flip with x added to both sides",
)
def residual_sign(problem: Problem):
    """The sign of the branch is the norm's; that of the sum is not."""
    at = point(problem, METHODS["residual_ln"])
    gain = np.linspace(0.5, 1.5, at.params.units, dtype=at.inputs.dtype)
    branch, flipped = (
        np.asarray(normalized(LayerNorm(), W, at.inputs)) for W in (at.params.weights, -at.params.weights)
    )
    before = at.inputs + gain * branch
    yield agree("g → −g in the branch", before, at.inputs - gain * flipped)
    yield differ("W → −W alone", before, at.inputs + gain * flipped)
