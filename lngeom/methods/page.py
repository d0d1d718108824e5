"""The registry of methods: what stands on a method's page besides its JAX formula.

`indexed` gives a class its index formula, `moves` its derivatives in n and σ, or `composed` those in its parts, `row` a
row of the extended invariance table. Claims, proofs, references and tables go through `FORMULAS`, `SLOPES`,
`COMPOSITES` and `METHODS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from jaxtyping import Array, Float

from lngeom._core.named import spelled
from lngeom.methods.base import AbstractNormalizer
from lngeom.methods.composites import Composite
from lngeom.methods.formulas import IndexFormula, Slopes
from lngeom.methods.transformations.columns import BATCH_INDEPENDENCE, EXTENDED, WEIGHT_SIGN_FLIP
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES, MatrixGroup

GROUPS = 2
"""Number of groups of the rows with groups."""

CASE_SCALES = ("dataset_rescaling", "single_case_rescaling")
"""Columns of methods that no factor of a case changes."""

ROW_SCALES = ("weight_matrix_rescaling", "weight_vector_rescaling", "weight_group_rescaling")
"""Columns of methods that no factor of a weight vector changes."""


class Cell(StrEnum):
    """Effect on the output: none, a change, or a change of sign only (which g → −g repairs)."""

    INVARIANT = "I"
    CHANGED = "no"
    SIGN = "±"


@dataclass(frozen=True)
class Method:
    """A row of the extended table.

    Attributes:
        name: identifier, as in claim ids.
        title: in words.
        kind: class of the method.
        make: constructs the method. Stored statistics, if any, are those of these weights and inputs.
        cells: column → effect on the output, by the names of `transformations.EXTENDED`.
        equivariance: group of matrices → I where f(QW, X) = Q f(W, X), or f(WA⁻¹, Ax) = f(W, x), by name. Outputs that
            are no units have the second only.
        groups: number of groups of consecutive units for the group columns. For queries and keys they are not the two
            halves, since a scale of each half changes nothing.
        square: whether W must have as many rows as columns.
        alias: another name of the row.
    """

    name: str
    title: str
    kind: type[AbstractNormalizer]
    make: Callable[[Float[Array, "H D"], Float[Array, "N *T D"]], AbstractNormalizer]
    cells: Mapping[str, Cell]
    equivariance: Mapping[str, Cell]
    groups: int = GROUPS
    square: bool = False
    alias: str = ""


METHODS: dict[str, Method] = {}
"""Rows of the extended table, by name."""

KINDS: dict[str, type[AbstractNormalizer]] = {}
"""Classes by name and alias of the first row of each."""

FORMULAS: dict[type[AbstractNormalizer], IndexFormula] = {}
"""Index formulas, by class."""

SLOPES: dict[type[AbstractNormalizer], Slopes] = {}
"""How numerator and scale move, by class."""

COMPOSITES: dict[type[AbstractNormalizer], Composite] = {}
"""Derivatives in parts, by class: of methods that have no `SLOPES`."""


def named(name: str) -> Method:
    """The row of a method by any of its names: "ln", "layer", "LayerNorm", "layer norm".

    Raises:
        UnknownName: a `KeyError` and `ValueError`, if no method has this name; the message shows names near it.
    """
    return METHODS[spelled(name, {m.name: (m.alias, m.title, m.kind.__name__) for m in METHODS.values()}, "method")]


Kind = TypeVar("Kind", bound=type[AbstractNormalizer])


def indexed(fraction: Callable[[Any, Any, Any, Any], Any], **kwargs: Any) -> Callable[[Kind], Kind]:
    """Gives a class its index formula; the arguments are those of `IndexFormula`."""

    def register(kind: Kind) -> Kind:
        FORMULAS[kind] = IndexFormula(fraction, **kwargs)
        return kind

    return register


def moves(slopes: Slopes) -> Callable[[Kind], Kind]:
    """Gives a class its derivatives in n and σ."""

    def register(kind: Kind) -> Kind:
        SLOPES[kind] = slopes
        return kind

    return register


def composed(composite: Composite) -> Callable[[Kind], Kind]:
    """Gives a class its derivatives in its parts."""

    def register(kind: Kind) -> Kind:
        COMPOSITES[kind] = composite
        return kind

    return register


def row(
    name: str,
    title: str,
    given: Callable[[Array, Array], Mapping[str, Any]] = lambda weights, inputs: {},
    *,
    invariant: tuple[str, ...] = (),
    odd: bool = True,
    equivariant: str = "",
    basis: str = "",
    **kwargs: Any,
) -> Callable[[Kind], Kind]:
    """Gives a class a row of the extended table.

    The row is recorded, never computed: the claims of the topic "extended" check every cell by numbers and algebra.
    Conditions: ε = 0 unless the row says otherwise, δ > 0, unit gain, and nonzero statistics.

    Args:
        name: identifier, as in claim ids.
        title: in words.
        given: the arguments of the class, from weights and inputs.
        invariant: names of the columns that leave the output as it is. Independence of the batch is what the class
            declares: it couples no samples.
        odd: whether W → −W changes only the sign of the output.
        equivariant: the largest group of `EQUIVARIANCES` under which f(QW, X) = Q f(W, X), by name; "" for none.
        basis: the largest group of `BASIS_CHANGES` under which f(WA⁻¹, Ax) = f(W, x), by name; "" for none.
        **kwargs: the other attributes of `Method`.

    Returns:
        A decorator of the class.

    Raises:
        ValueError: if a row has that name already, or the table has no such column or group.
    """
    columns = [column.name for column in EXTENDED]
    if unknown := set(invariant) - set(columns):
        raise ValueError(f"row {name!r}: no columns {sorted(unknown)} in the table; there are {', '.join(columns)}")

    def register(kind: Kind) -> Kind:
        if name in METHODS:
            raise ValueError(f"method {name!r} is already in the table; names are unique")
        cells = dict.fromkeys(columns, Cell.CHANGED)
        if odd:
            cells[WEIGHT_SIGN_FLIP.name] = Cell.SIGN
        if not kind.couples_samples:
            cells[BATCH_INDEPENDENCE.name] = Cell.INVARIANT
        cells |= dict.fromkeys(invariant, Cell.INVARIANT)
        units = _up_to(equivariant, EQUIVARIANCES) if kind.outputs_are_units else {}
        construct: Any = kind

        def make(weights: Array, inputs: Array) -> AbstractNormalizer:
            return construct(**given(weights, inputs))

        groups = units | _up_to(basis, BASIS_CHANGES)
        METHODS[name] = Method(name, title, kind, make, cells, groups, **kwargs)
        if kind not in KINDS.values():
            KINDS.update({label: kind for label in (name, METHODS[name].alias) if label})
        return kind

    return register


def _up_to(largest: str, groups: tuple[MatrixGroup, ...]) -> dict[str, Cell]:
    """Cells of groups of matrices, each a subgroup of the next: invariant up to the largest."""
    names = [group.name for group in groups]
    if largest and largest not in names:
        raise ValueError(f"no group of matrices {largest!r} in the table; there are {', '.join(names)}")
    count = names.index(largest) + 1 if largest else 0
    return {name: Cell.INVARIANT if place < count else Cell.CHANGED for place, name in enumerate(names)}
