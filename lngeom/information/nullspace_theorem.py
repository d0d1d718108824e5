r"""The null-space theorem: which directions of (W, b, g) leave a normalized GLM unchanged, and how many there are.

Outputs are $z_i(x) = g_i n_i(x) + b_i$, with responses that are independent (Λ ≻ 0) or one softmax (the kernel of Λ
is **1**). A direction (dW, db, dg) is null where it moves no output, or all outputs of a softmax alike.

*Unit by unit* (none, batch, weight norm; stored statistics; any ε). A unit with $g_i \neq 0$ can move by every affine
function of x on the data, of which there are r + 1, r the rank of Cov x; one with $g_i = 0$ by those of 1 and $n_i$.
What is left of its D + 2 parameters is null, and under a softmax also what all units can do alike.

*In groups* of h units (layer, RMS, group norm). Let U be the weights on the span of the data, centred in the group
unless the norm is RMS norm, r its rank, u = Ux, $\sigma^2 = |u|^2/h + \epsilon$, d the rank of the data. Null are

1. weights that no datum sees, h(D − d); shifts 1γᵀ, d (centred norms); with ε = 0 the scale of W; where r = 1 and ε = 0
   every aγᵀ, a the one direction of U; under a softmax the common shift of the biases;
2. *trades*: for $g_i \neq 0$: $dW_i = (c - e_i) U_i + t/g_i$, $dg_i = e_i g_i$; for $g_k = 0$: $dW_k = cU_k + l_k$;
   with numbers e, c and linear forms l, and under a softmax t, where for every datum $dg_k u_k = t$,
   $\sum_i (e_i u_i - t/g_i) = \sum_k l_k$ (centred norms) and
   $\sum_i u_i(e_i u_i - t/g_i) + h\epsilon c = \sum_k u_k l_k$.

These are all. `Cell.counts` counts them for almost all W and g; `lngeom.predicted_nullspace` solves the equations of 2
for the weights and data at hand; the claims `nullspace.*` prove it. For other methods and families there is no theory.
"""

from dataclasses import dataclass
from typing import Any, Literal

Coupling = Literal["unit by unit", "centred groups", "groups"]
"""What ties the units of a layer: nothing; mean and scale of a group (layer, group norm); its scale (RMS norm)."""

UNSEEN = "weights that the data cannot see"
ROWS = "each row's scale (against its gain)"
IDLE = "weights of units with zero gain"
SHIFTS = "shifts of all rows, 1 γᵀ"
SCALE = "scale of W"
SIGNS = "rows along the one direction of PW on a part of the data (signs)"
TRADES = "trades between gain and weights"
BIASES = "softmax shift of all biases"
COMMON = "softmax shift of all logits by one function of x"
"""Names of the families of null directions."""


@dataclass(frozen=True)
class Cell:
    """A cell of the theorem: a kind of norm, of responses, and whether ε is zero.

    Attributes:
        coupling: what ties units together.
        softmax: whether the responses are one softmax, not independent.
        eps: whether ε > 0; unit by unit it makes no difference.
        latex: the dimension where no gain is zero and the data span R^D, for one group.
    """

    coupling: Coupling
    softmax: bool
    eps: bool
    latex: str

    @property
    def centred(self) -> bool:
        """Whether shifts of all rows are null."""
        return self.coupling == "centred groups"

    @property
    def scaled(self) -> bool:
        """Whether the scale of all weights of a group is null."""
        return self.coupling != "unit by unit" and not self.eps

    def dimension(self, units: int, inputs: int, **given: Any) -> int:
        """The dimension of the null space for almost all weights and gains, on many data that fill a subspace.

        Args:
            units: H.
            inputs: D.
            **given: what `counts` takes.

        Returns:
            The dimension.

        Example:
            >>> CELLS["centred groups", False, False].dimension(units=8, inputs=6)
            7
        """
        return sum(self.counts(units, inputs, **given).values())

    def counts(
        self,
        units: int,
        inputs: int,
        *,
        data: int | None = None,
        zero_gains: int = 0,
        weights: int | None = None,
        groups: int = 1,
    ) -> dict[str, int]:
        """The number of directions of each family, beyond those of the families before it.

        Args:
            units: H.
            inputs: D.
            data: rank of the data; of Cov x unit by unit. None: D.
            zero_gains: how many gains are zero, in each group.
            weights: rank of the (centred) weights of a group on the data. None: the largest.
            groups: number of groups; unit by unit 1.

        Returns:
            Numbers by the names of this module.

        Raises:
            ValueError: for sizes of which the theorem gives no generic count: data of rank 0, one unit under a
                softmax, a group whose (centred) weights are 0, and weights of lower rank beside zero gains.
        """
        rank = inputs if data is None else data
        if not 1 <= rank <= inputs:
            raise ValueError(f"data of rank 1 to {inputs} are expected; got {rank}")
        if self.softmax and units == 1:
            raise ValueError("a softmax of one class is constant: every direction is null")
        if self.coupling == "unit by unit":
            live, alike = units - zero_gains, {0: rank + 1, 1: 2}.get(zero_gains, 2 if rank == 1 else 1)
            found = {UNSEEN: live * (inputs - rank), ROWS: live, IDLE: zero_gains * inputs}
            return found | ({BIASES: 1, COMMON: alike - 1} if self.softmax else {})
        size = units // groups
        largest = min(rank, size - self.centred)
        r = largest if weights is None else weights
        if not 1 <= r <= largest or (r < largest and zero_gains):
            raise ValueError(f"no generic count for weights of rank {r} in groups of {size}, {zero_gains} zero gains")
        alone = self.softmax and groups == 1
        found = {UNSEEN: size * (inputs - rank)}
        if zero_gains == size:
            found |= {IDLE: size * rank, TRADES: int(alone and r == 1)}
        else:
            found |= {SHIFTS: self.centred * rank, SCALE: int(self.scaled)}
            found |= {SIGNS: (rank - 1) * (self.scaled and r == 1)}
            found |= {TRADES: trades(size, r, zero_gains, centred=self.centred, softmax=alone)}
        return {name: groups * count for name, count in found.items()} | ({BIASES: 1} if self.softmax else {})


def trades(size: int, r: int, zero_gains: int = 0, *, centred: bool, softmax: bool) -> int:
    """The number of trades (2. of the theorem, without the scale) for almost all weights of rank r and gains.

    Args:
        size: h, the units of the group.
        r: rank of its (centred) weights.
        zero_gains: how many of its gains are zero; not all.
        centred: whether the norm is centred.
        softmax: whether the group alone feeds a softmax.

    Returns:
        Unknowns minus equations, where these are independent. Equations are quadratic forms in r variables. With zero
        gains those that have a u_k of zero gain (centred: a difference of two) as a factor are solved by l. Under a
        softmax t is u_k times a number for every zero gain k: 0 where two of the u_k are no multiples of each other.
    """
    live = size - zero_gains
    follows = softmax and zero_gains > 1 and r == 1
    forms = r * (r + 1) // 2
    if softmax and zero_gains == 0:
        return max(0, size + (0 if centred else r) - forms)
    if softmax and zero_gains == 1:
        return max(0, size - forms) if centred else 1 + max(0, live - r * (r - 1) // 2)
    if zero_gains == 0:
        return max(0, size - forms - (r if centred else 0))
    factors = zero_gains - centred
    if factors > r:
        return live + factors * r - forms + follows
    rest = r - factors
    return factors * (factors - 1) // 2 + max(0, live - rest * (rest + 1) // 2) + follows


CELLS: dict[tuple[Coupling, bool, bool], Cell] = {
    (cell.coupling, cell.softmax, cell.eps): cell
    for cell in (
        *(
            Cell("unit by unit", softmax, eps, latex)
            for eps in (False, True)
            for softmax, latex in ((False, "H(D - r + 1)"), (True, "H(D - r + 1) + 1 + r"))
        ),
        Cell("centred groups", False, False, r"D + 1 + \max(0, H - r(r+3)/2)"),
        Cell("centred groups", False, True, r"D + \max(0, H - r(r+3)/2)"),
        Cell("centred groups", True, False, r"D + 2 + \max(0, H - r(r+1)/2)"),
        Cell("centred groups", True, True, r"D + 1 + \max(0, H - r(r+1)/2)"),
        Cell("groups", False, False, r"1 + \max(0, H - r(r+1)/2)"),
        Cell("groups", False, True, r"\max(0, H - r(r+1)/2)"),
        Cell("groups", True, False, r"2 + \max(0, H + r - r(r+1)/2)"),
        Cell("groups", True, True, r"1 + \max(0, H + r - r(r+1)/2)"),
    )
}
"""The theorem by (coupling, softmax, ε > 0). r: the rank of Cov x unit by unit, of the (centred) weights in groups."""


def cell_of(coupling: Coupling, *, softmax: bool = False, eps: float = 0.0) -> Cell:
    """The cell of a kind of norm, of responses, and of an ε."""
    return CELLS[coupling, softmax, eps > 0]
