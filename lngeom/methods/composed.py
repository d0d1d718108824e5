"""Methods that are made of two others."""

from typing import ClassVar

from lngeom.methods.base import AbstractNormalizer
from lngeom.methods.composites import SIGMA, Chain, Composite, Part, Parts, Quotient
from lngeom.methods.formulas import D, H, M, Place, centred, ratio
from lngeom.methods.layer import GroupNorm, LayerNorm, group_norm, layer_norm
from lngeom.methods.page import CASE_SCALES, GROUPS, ROW_SCALES, SLOPES, composed, indexed, row
from lngeom.methods.weight import WeightStandardization, standardized_weights

_MOMENTS = group_norm(lambda L, n, i, eps: ratio(L, standardized_weights(L, n, i, eps)))
_UNIT, _SPREAD, _ROW = r"\hat a", "s", r"\hat w"


def _group(P: Parts) -> Quotient:
    """Group norm of the summed inputs of standardized weights."""
    return Quotient(P, value=lambda q: P("n", q), sigma=P(SIGMA), count=P.size(M), place=P.unit)


def _summed(P: Parts, q: Place) -> Quotient:
    """The summed input of a unit with standardized weights."""
    return Quotient(
        P,
        value=lambda place: P(_UNIT, q),
        sigma=P(_SPREAD, q),
        count=P.size(D),
        w=lambda d: P(_ROW, q, d),
        x=lambda d: P("x", d),
    )


_CHAIN = Chain(
    GroupNorm, WeightStandardization, (SLOPES[GroupNorm], SLOPES[WeightStandardization]), output=_group, summed=_summed
)


def _standardized(L, n, i, eps):
    """Numerator and square of the summed input of a unit of the group, with standardized weights."""
    return lambda q: standardized_weights(L, n, (i[0], q), eps)


def _rows(L, n, i, eps):
    """Standardized weights of the units of the group."""
    return lambda q, d: centred(L, L.row((i[0], q)), D)(d) / L.root(standardized_weights(L, n, (i[0], q), eps)[1])


@row(
    "ws_gn",
    "WS + GN",
    lambda weights, inputs: {"groups": GROUPS},
    invariant=(*ROW_SCALES, "weight_vector_constant_shift", *CASE_SCALES, "single_case_constant_shift"),
    equivariant="group_permutations",
    basis="input_rotations_fixing_one",
)
@indexed(_MOMENTS, grouped=True, smallest=(3, 3, 1), groups=GROUPS, least_units=2, irrational=True)
@composed(
    Composite(
        by={"W": lambda n, i, y: ((i[0], y[0]), y[1])},
        runs=(M, D),
        parts={
            "n": Part("", lambda L, n, i, eps: lambda q: ratio(L, _MOMENTS(L, n, (i[0], q), eps))),
            SIGMA: Part(
                r"\sigma^2 = \tfrac1M\sum_q (\hat a_q - \tfrac1M\sum_o \hat a_o)^2 + \varepsilon",
                lambda L, n, i, eps: L.root(_MOMENTS(L, n, i, eps)[1]),
            ),
            _UNIT: Part(
                r"\hat a_q = \sum_d \hat w_{qd} x_d",
                lambda L, n, i, eps: lambda q: ratio(L, _standardized(L, n, i, eps)(q)),
            ),
            _SPREAD: Part(
                r"s_q^2 = \tfrac1D\sum_d (W_{pqd} - \tfrac1D\sum_e W_{pqe})^2 + \varepsilon",
                lambda L, n, i, eps: lambda q: L.root(_standardized(L, n, i, eps)(q)[1]),
            ),
            _ROW: Part(r"\hat w_{qd} = (W_{pqd} - \tfrac1D\sum_e W_{pqe})/s_q", _rows),
            "x": Part(r"x_d = x_{nd} - \tfrac1D\sum_e x_{ne}", lambda L, n, i, eps: centred(L, L.case(n), D)),
        },
        whole=lambda P: (P(_UNIT, P.unit) - P.total(lambda q: P(_UNIT, q), M) / P.size(M)) / P(SIGMA),
        first={"W": _CHAIN.first},
        second={"WW": _CHAIN.second},
        chain=_CHAIN,
    )
)
class WeightStandardizedGroupNorm(AbstractNormalizer):
    """Weight standardization followed by group norm, the pair of arXiv 1903.10520.

    Attributes:
        groups: number of groups of consecutive units; divides H.
        eps: added to the variance of each row and to that of each group.
    """

    groups: int
    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def __call__(self, weights, inputs):
        standardized = WeightStandardization(self.eps).standardized(weights)
        return GroupNorm(groups=self.groups, eps=self.eps)(standardized, inputs)


def _branch(P: Parts) -> Quotient:
    return Quotient(P, value=lambda j: P("m", j), sigma=P(SIGMA), count=P.size(H), place=P.unit)


@row(
    "residual_ln",
    "residual, x + LN(Wx)",
    square=True,
    invariant=("weight_matrix_rescaling", "weight_matrix_recentering"),
    odd=False,
)
@indexed(
    lambda L, n, i, eps: (L.X(n, i) + ratio(L, layer_norm(L, n, i, eps)), 1),
    smallest=(4, 4, 1),
    least_units=2,
    irrational=True,
)
@composed(
    Composite(
        by={"a": lambda n, i, y: (n, y)},
        runs=(H,),
        parts={
            "m": Part(r"m_i = \mathrm{LN}(a)_i", lambda L, n, i, eps: lambda j: ratio(L, layer_norm(L, n, j, eps))),
            SIGMA: Part(
                r"\sigma^2 = \tfrac1H\sum_i (a_i - \tfrac1H\sum_j a_j)^2 + \varepsilon",
                lambda L, n, i, eps: L.root(layer_norm(L, n, i, eps)[1]),
            ),
            "x": Part("", lambda L, n, i, eps: L.case(n)),
        },
        whole=lambda P: P("x", P.unit) + P("m", P.unit),
        first={"a": lambda P, y: SLOPES[LayerNorm].first(_branch(P), y)},
        second={"aa": lambda P, y, z: SLOPES[LayerNorm].second(_branch(P), y, z)},
    )
)
class ResidualLayerNorm(AbstractNormalizer):
    r"""A residual block whose branch is layer-normalized, $n = x + \mathrm{LN}(Wx)$, for H = D."""

    eps: float = 0.0
    couples_samples: ClassVar[bool] = False
    couples_units: ClassVar[bool] = True

    def __call__(self, weights, inputs):
        if weights.shape[0] != weights.shape[1]:
            raise ValueError(f"a residual block needs as many units as inputs, H = D; got weights {weights.shape}")
        return inputs + LayerNorm(self.eps)(weights, inputs)
