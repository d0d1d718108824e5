"""Changes of a parametrization that a known symmetry would move along.

Changes of one leaf come from its values (`of_values`): its scale, shifts, fixed patterns along an axis, scales of its
slices. Changes of several leaves come from the spaces of the program (`of_program`): rescaling the units of a chain,
offsets that later biases take up, changes of basis, rotations. A described transformer has its own symmetries. Whether
a change is null is not known here.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lngeom._core.subspaces import Account
from lngeom.information.candidates.candidate import Candidate as Candidate, Leaf as Leaf, named_as
from lngeom.information.candidates.of_program import OfProgram
from lngeom.information.candidates.of_values import of_complex_units, of_one_leaf, of_two_leaves, scales
from lngeom.information.spaces import Spaces

if TYPE_CHECKING:  # models that are no transformers do without
    from lngeom.transformers.description import Stack


def candidates_of_stack(stack: "Stack", params: Any) -> Iterator[list[Candidate]]:
    """The symmetries of a described transformer, family by family.

    Args:
        stack: the description.
        params: its arrays by name.

    Yields:
        One candidate a family.

    Raises:
        ValueError: if the parameters are not those of the stack, or its symmetries have no names.
    """
    from lngeom.transformers.arrays import StackArrays
    from lngeom.transformers.coverage import other_ends
    from lngeom.transformers.families import FAMILIES
    from lngeom.transformers.symmetries import symmetries

    if not isinstance(params, Mapping) or set(params) != set(stack.arrays):
        raise ValueError(
            f"parameters described by a stack are a dictionary of its arrays, all differentiated: {stack.arrays[:3]} …"
        )
    stack.check(params)
    if (ends := other_ends(stack)) is not None:
        raise ValueError(f"symmetries of {ends} have no names: describe the null space without the stack")
    arrays = StackArrays(stack, params)
    families: dict[str, list[np.ndarray]] = {code: [] for code in FAMILIES}
    for family in symmetries(arrays):
        families[family.code].append(family.columns(arrays))
    for code, columns in families.items():
        if columns:
            together = np.hstack(columns)
            rows = np.flatnonzero(together.any(1))
            moved = [name for name, at in arrays.starts.items() if _moves(rows, at, np.size(params[name]))]
            yield [Candidate(rows, together[rows], named_as(FAMILIES[code], moved))]


def _moves(rows: np.ndarray, start: int, size: int) -> bool:
    return bool(np.any((rows >= start) & (rows < start + size)))


def candidates(leaves: list[Leaf], account: Account, spaces: Spaces | None) -> Iterator[Iterable[Candidate]]:
    """Candidates in groups, the simplest first; within a group, that which explains most is to be taken first.

    Args:
        leaves: all leaves, in order.
        account: of the null space, in which patterns along an axis are looked for.
        spaces: of the program; None where it cannot be read.
    """
    yield from of_one_leaf(leaves, account.null, account.close)
    if spaces is not None:
        of_program = OfProgram(leaves, spaces)
        yield of_program.rescalings()
        yield [scales(leaves)]
        yield of_program.trades()
        yield of_program.offsets()
        yield of_program.patterns(account.null)
        yield of_program.rotations(shared=True)
        yield of_program.bases()
        yield of_program.residuals()
        yield of_program.rotations(shared=False)
        yield of_program.joints(account)
        yield of_program.parted_rotations(account)
    else:
        yield [scales(leaves)]
    yield of_two_leaves(leaves, account)
    yield of_complex_units(leaves, account)
