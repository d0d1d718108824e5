"""The layer of the proofs: how its outputs move with its weights, and the exact rank of its Jacobian.

The rank over a prime field with its square roots is a lower bound of the rank at almost every real
point: a minor that is not zero modulo a prime is not zero.
"""

import random
from collections.abc import Sequence

import numpy as np
import sympy as sp
from sympy import Expr

from lngeom.methods.page import METHODS as ROWS, Cell
from lngeom.symbolic.actions import SHIFT
from lngeom.symbolic.layers import Layer, Method
from lngeom.symbolic.modular import PRIME, FieldLayer, jacobian_rows, random_layer, rank, reduced
from lngeom.symbolic.proof import Assumption, ProofError, Step, equality, fact
from lngeom.symbolic.sums import D, Field, derivative, e, field, n, total

LAYER = Layer()
SIGMA = Assumption("the scale is not zero", r"\sigma > 0")
GAIN = field("g")


def along(method: Method, V: Field, eps: Expr = sp.S.Zero, sample=n, unit=None) -> Expr:
    """Derivative of the normalized summed inputs when W moves in the direction V."""
    return derivative(lambda t: method(LAYER.towards(V, t), sample, unit, eps))


def null_step(text: str, method: Method, V: Field, extra: Expr | int = 0, moving: str = "V", of: str = "") -> Step:
    """The step that dz = g dn + extra is zero for all x, when W moves along V.

    Args:
        text: the claim in words.
        method: the method.
        V: the direction of W.
        extra: what the biases and gains add.
        moving: LaTeX of V.
        of: the method's short name, in a proof about several.

    Returns:
        The step.
    """
    unit = method.unit
    gain = GAIN(unit)
    return equality(
        text,
        gain * along(method, V) + extra,
        0,
        (rf"dz^{{\mathrm{{{of}}}}}_{{ni}}" if of else r"dz_{ni}") + f"[{moving}]",
    )


RADIAL: Field = lambda i, d: LAYER.W(i, d)
SHIFTS: Field = lambda i, d: SHIFT(d)


def rows_alone(scale: Field) -> Field:
    """The direction that scales each row by a factor of its own."""
    return lambda i, d: scale(i) * LAYER.W(i, d)


def rank_step(
    method: Method,
    cases: Sequence[tuple[tuple[int, ...], int]],
    *,
    softmax: bool = False,
    eps: int = 0,
    fixed: tuple[int, ...] = (),
) -> Step:
    """The step that the null space has these dimensions, at these sizes (H, D), for almost all W, g and x.

    It confirms what steps for all sizes show.

    Args:
        method: the method.
        cases: sizes and the dimension expected.
        softmax: whether outputs feed a softmax, which does not see a common shift of z.
        eps: ε.
        fixed: numbers that the last inputs are, in every case.

    Returns:
        The step.
    """

    def verify() -> bool:
        given = {"softmax": softmax, "eps": eps, "fixed": fixed}
        return all(nullity(method, sizes, **given) == expected for sizes, expected in cases)

    listed = ", ".join(str(sizes[:2]) for sizes, _ in cases)
    latex = r"\dim\ker F = " + ",\\ ".join(str(expected) for _, expected in cases)
    return fact(f"The exact rank modulo {PRIME} confirms it at (H, D) = {listed}", latex, verify)


def nullity(
    method: Method,
    sizes: tuple[int, ...],
    *,
    softmax: bool = False,
    eps: int = 0,
    fixed: tuple[int, ...] = (),
    seed: int = 2016,
) -> int:
    """H(D + 2) minus the exact rank of the Jacobian at a random point of a prime field.

    Args:
        method: the method.
        sizes: (H, D).
        softmax: whether outputs feed a softmax.
        eps: ε.
        fixed: numbers that the last inputs are, in every case.
        seed: of the point.

    Returns:
        The dimension of the null space there.

    Raises:
        ProofError: if the Jacobian does not vanish along the directions of the invariances that the table records.
    """
    H, D = sizes[:2]
    draw = random.Random(f"{method.name}{sizes}{seed}")
    layer = random_layer(method, H, D, cases=D + 2 + (D * (D + 5)) // 2 + 4, draw=draw, eps=eps, fixed=fixed)
    rows = jacobian_rows(layer, softmax=softmax)
    for direction in _recorded_directions(method, layer):
        if _moves(rows, direction):
            raise ProofError(f"{method.name}, (H, D) = {sizes}: the Jacobian moves along a direction that is null")
    return H * (D + 2) - rank(rows)


def _moves(rows: np.ndarray, direction: np.ndarray) -> bool:
    """Whether outputs move when W moves in a direction."""
    return bool(reduced(reduced(rows[:, : direction.size] * direction.ravel()).sum(1)).any())


def _recorded_directions(method: Method, layer: FieldLayer) -> list[np.ndarray]:
    """Changes of W along the orbits of what the method's row records: scales where ε = 0, and shifts."""
    row = next((row for row in ROWS.values() if row.kind.__name__ == method.name), None)
    if row is None:
        return []
    W, (H, D) = layer.weights, layer.weights.shape
    invariant = {name for name, cell in row.cells.items() if cell is Cell.INVARIANT}
    found = []
    if "weight_matrix_rescaling" in invariant and layer.eps == 0:
        found.append(W)
    if "weight_vector_rescaling" in invariant and layer.eps == 0:
        found += [W * e[:, None] for e in np.eye(H, dtype=int)]
    if "weight_matrix_recentering" in invariant:
        found += [np.ones((H, 1), int) * e for e in np.eye(D, dtype=int)]
    return found


def with_product(rows: Field, direction: Field, value: Expr) -> Field:
    r"""Rows $r + (s - r^\top v)\,v/|v|^2$, whose product with v is s: every row of product s is of this form."""
    product = lambda row: total(lambda d: rows(row, d) * direction(d), D)
    length = total(lambda d: direction(d) ** 2, D)
    return lambda row, d: rows(row, d) + (value - product(row)) * direction(d) / length


def product_steps(rows: Field, direction: Field, row: Expr, value: Expr, text: str) -> tuple[Step, Step]:
    """The rows have that product, and rows that have it are left as they are: so these are all of them."""
    adjusted = with_product(rows, direction, value)
    here = r"r'_{e}"
    return (
        equality(text, total(lambda d: adjusted(row, d) * direction(d), D), value),
        equality(
            "and no others do: for such a row r', adjusting it again changes nothing, r'' = r'",
            with_product(adjusted, direction, value)(row, e),
            sp.Symbol(here),
            r"r''_{e}",
            {here: adjusted(row, e)},
        ),
    )
