r"""Completeness of Eq. 6: the weight symmetries it lists are all continuous ones."""

import random

import sympy as sp
from sympy import Expr, sqrt

from lngeom.symbolic.layers import (
    LAYER_NORM,
)
from lngeom.symbolic.modular import jacobian_rows, random_layer, rank
from lngeom.symbolic.nullspaces import LAYER, SHIFT, SPAN, along, null_step
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, H, field, mean, n, total


@proves("nullspace.completeness", "conditional")
def completeness() -> Proof:
    """If dW is null for every x then dW = λW + 1γᵀ, when rank PW ≥ 2."""
    V = field("V")
    u = lambda j: LAYER_NORM.numerator(LAYER, n, j)
    moved = lambda j: total(lambda d: V(j, d) * LAYER.X(n, d), D)
    m = lambda j: moved(j) - mean(moved, H)
    length = total(lambda j: u(j) ** 2, H)
    product = total(lambda j: u(j) * m(j), H)
    sigma = sqrt(LAYER_NORM.square(LAYER))
    minors = total(lambda j: total(lambda k: (u(j) * m(k) - u(k) * m(j)) ** 2, H), H) / 2
    form = total(lambda j: along(LAYER_NORM, V, unit=j) ** 2, H) * sigma**2 * length

    def coprime_forms() -> bool:
        """u_1 and u_2 independent linear forms: u_1 m_2 = u_2 m_1 forces (m_1, m_2) = λ(u_1, u_2)."""
        s, t, *c = sp.symbols("s t c0:4", real=True)
        identity = sp.Poly(s * (c[2] * s + c[3] * t) - t * (c[0] * s + c[1] * t), s, t)
        return sp.solve(identity.coeffs(), c, dict=True) == [{c[0]: c[3], c[1]: 0, c[2]: 0}]

    def more_at_rank_one(v) -> tuple[Expr, Expr]:
        first, second = (LAYER_NORM.exactly(W, v["X"]) for W in (v["W"], v["W"] + v["V"]))
        distance = sum((sp.Abs(a - b) for a, b in zip(first, second, strict=True)), sp.S.Zero)
        columns = [sp.Matrix(list(v["W"]))] + [_shift_column(v["W"].shape, d) for d in range(v["W"].cols)]
        independent = sp.Matrix.hstack(*columns, sp.Matrix(list(v["V"]))).rank() - sp.Matrix.hstack(*columns).rank()
        return sp.Integer(independent), distance

    dropped = Counterexample(
        "nullspace.completeness at rank PW = 1",
        r"\text{a direction that leaves every output is in the span of } W, 1\gamma^\top",
        {
            "W": matrix([[1, 0], [0, 0], [-1, 0]]),
            "V": matrix([[0, 1], [0, 0], [0, -1]]),
            "X": matrix([[2, 1], [3, -1]]),
        },
        more_at_rank_one,
        "Dimensions V adds to that span (left), and the change of the outputs from W to W + V (right).",
    )
    return Proof(
        "nullspace.completeness",
        r"\Pi(x)\,dW\,x = 0\ \forall x \Rightarrow dW = \lambda W + \mathbf{1}\gamma^\top",
        (
            equality("With u = PWx and m = P dW x, the squared change is a sum of squared minors", form, minors),
            equality(
                "for |u|²|m|² − (u·m)² is that sum",
                length * total(lambda j: m(j) ** 2, H) - product**2,
                minors,
            ),
            fact(
                "So u_j m_k = u_k m_j for all x; two independent linear forms u_1, u_2 (rank PW ≥ 2) then force "
                "m = λu with one number λ, as coefficients show in the basis u_1 = s, u_2 = t",
                r"s\,m_2(s,t) = t\,m_1(s,t) \Rightarrow m = \lambda\,(s, t)",
                coprime_forms,
                "u_1 m_2 = u_2 m_1 ⇒ m = λu",
            ),
            null_step("P(dW − λW) = 0 means dW = λW + 1γᵀ, and all of these are null", LAYER_NORM, _scale_and_shift),
            weight_rank_step(),
        ),
        (SPAN, Assumption("two independent directions", r"\mathrm{rank}\,PW \geq 2", dropped)),
    )


def _scale_and_shift(i, d):
    return sp.Symbol("lambda", real=True) * LAYER.W(i, d) + SHIFT(d)


def _shift_column(shape: tuple[int, int], d: int) -> sp.Matrix:
    shift = sp.zeros(*shape)
    shift[:, d] = sp.ones(shape[0], 1)
    return sp.Matrix(list(shift))


def weight_rank_step() -> Step:
    """The W-part of the null space has dimension D + 1 in exact arithmetic."""
    sizes = ((3, 2), (4, 2), (4, 3), (6, 3), (8, 2))

    def verify() -> bool:
        def weight_nullity(H: int, D: int) -> int:
            layer = random_layer("LayerNorm", H, D, cases=2 * D + D * D, draw=random.Random(H * D))
            return H * D - rank([row[: H * D] for row in jacobian_rows("LayerNorm", layer)])

        return all(weight_nullity(H, D) == D + 1 for H, D in sizes)

    latex = r"\dim\{dW : J\,dW = 0\} = D + 1"
    return fact("The exact rank of the Jacobian confirms it", latex, verify, f"D + 1 at (H, D) = {sizes}")
