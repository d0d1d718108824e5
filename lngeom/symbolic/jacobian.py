"""The layer of the proofs: how its outputs move with its weights, and the exact rank of its Jacobian.

The rank over a prime field, at a point where its square roots exist, is a lower bound of the rank at almost every real
point: a minor that is not zero modulo a prime is not zero.
"""

import random
from collections.abc import Sequence

import sympy as sp
from sympy import Expr

from lngeom.symbolic.actions import SHIFT
from lngeom.symbolic.layers import Layer, Method
from lngeom.symbolic.modular import PRIME, FieldLayer, Row, jacobian_rows, random_layer, rank
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


def rank_step(name: str, cases: Sequence[tuple[tuple[int, ...], int]], *, softmax: bool = False) -> Step:
    """The step that the null space has these dimensions, at these sizes (H, D), for almost all W, g and x.

    It confirms what steps for all sizes show.

    Args:
        name: kind of layer, as in `jacobian_rows`.
        cases: sizes and the dimension expected.
        softmax: whether outputs feed a softmax, which does not see a common shift of z.

    Returns:
        The step.
    """

    def verify() -> bool:
        return all(nullity(name, sizes, softmax=softmax) == expected for sizes, expected in cases)

    listed = ", ".join(str(sizes[:2]) for sizes, _ in cases)
    latex = r"\dim\ker F = " + ",\\ ".join(str(expected) for _, expected in cases)
    return fact(f"The exact rank modulo {PRIME} confirms it at (H, D) = {listed}", latex, verify)


def nullity(name: str, sizes: tuple[int, ...], *, softmax: bool = False, seed: int = 2016) -> int:
    """H(D + 2) minus the exact rank of the Jacobian at a random point of a prime field.

    Raises:
        ProofError: if the Jacobian does not vanish along the null directions that are known: it is that of no layer.
    """
    H, D = sizes[:2]
    draw = random.Random(f"{name}{sizes}{seed}")
    layer = random_layer(name, H, D, cases=D + 2 + (D * (D + 5)) // 2 + 4, draw=draw)
    rows = jacobian_rows(name, layer, softmax=softmax)
    for direction in _known_directions(name, layer):
        if any(sum(a * b for a, b in zip(row, direction, strict=False)) % PRIME for row in rows):
            raise ProofError(f"{name}, (H, D) = {sizes}: the modular Jacobian moves along a direction that is null")
    return H * (D + 2) - rank(rows)


def _known_directions(name: str, layer: FieldLayer) -> list[Row]:
    """Changes of W alone that leave all outputs: every row by itself, or W and shifts."""
    W, (H, D) = layer.weights, (len(layer.weights), len(layer.weights[0]))
    if name == "WeightNorm" or (name.startswith("BatchNorm") and name != "BatchNormEvaluation"):
        return [[v * (j == i) for j in range(H) for v in W[j]] for i in range(H)]
    scale = [[v for row in W for v in row]] if name.startswith(("LayerNorm", "RMSNorm", "GroupNorm")) else []
    shifts = [[int(d == e) for _ in range(H) for d in range(D)] for e in range(D)]
    centred = name.startswith(("LayerNorm", "GroupNorm"))
    return (scale if not name.endswith("eps") else []) + (shifts if centred else [])


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
