"""The extended invariance table as recorded data, never computed.

The claims of the topic "extended" check every cell by numbers and algebra. Conditions: ε = 0 unless the row says
otherwise, δ > 0, unit gain, and nonzero statistics.
"""

from enum import StrEnum


class Cell(StrEnum):
    """Effect on the output: none, a change, or a change of sign only (which g → −g repairs)."""

    INVARIANT = "I"
    CHANGED = "no"
    SIGN = "±"


COLUMNS = (
    "weight_matrix_rescaling",
    "weight_matrix_recentering",
    "weight_vector_rescaling",
    "dataset_rescaling",
    "dataset_recentering",
    "single_case_rescaling",
    "weight_sign_flip",
    "single_case_recentering",
    "single_case_constant_shift",
    "weight_vector_constant_shift",
    "input_rescaling",
    "weight_group_rescaling",
    "weight_group_recentering",
    "batch_independence",
)
"""Names of the columns: δW, W + 1γᵀ, δᵢwᵢ, δX, X + γ, δxₙ, −W, xₙ + γ, xₙ + c1, wᵢ + cᵢ1, X·diag s, groups, batch."""

_ROWS = {
    "bn": "I  no I  I  I  no ±  no no no no I  no no",
    "bn_evaluation": "no no no no no no no no no no no no no I",
    "wn": "I  no I  no no no ±  no no no no I  no I",
    "ln": "I  I  no I  no I  ±  no no no no no no I",
    "ln_pooled": "I  no no I  no I  ±  no no no no no no I",
    "ln_eps": "no I  no no no no ±  no no no no no no I",
    "ln_biased": "no I  no no no no no no no no no no no I",
    "rms": "I  no no I  no I  ±  no no no no no no I",
    "scale": "I  no no I  no I  ±  no no no no no no I",
    "gn": "I  I  no I  no I  ±  no no no no I  I  I",
    "gn_spatial": "I  no no I  no I  ±  no no no no I  no I",
    "in": "I  no I  I  I  I  ±  I  I  no no I  no I",
    "ws": "I  no I  no no no ±  no I  I  no I  no I",
    "ws_gn": "I  no I  I  no I  ±  no I  I  no I  no I",
    "sn": "I  no no no no no ±  no no no no no no I",
    "cosine": "I  no I  I  no I  ±  no no no no I  no I",
    "pcc": "I  no I  I  no I  ±  no I  I  no I  no I",
    "qk_l2": "I  no no I  no I  I  no no no no no no I",
    "qk_ln": "I  I  no I  no I  I  no no no no no no I",
    "dyt": "no no no no no no ±  no no no no no no I",
    "pn": "no no no no no no ±  no no no no no no I",
    "pre_ln": "no no no I  no I  ±  no I  I  no no no I",
    "pre_rms": "no no no I  no I  ±  no no no no no no I",
    "pre_bn": "no no no I  I  no ±  no no no I  no no no",
    "residual_ln": "I  I  no no no no no no no no no no no I",
}

EXTENDED: dict[str, dict[str, Cell]] = {
    method: dict(zip(COLUMNS, map(Cell, row.split()), strict=True)) for method, row in _ROWS.items()
}
"""Method, column → effect on the output."""

MATRIX_GROUPS = (
    "group_permutations",
    "unit_permutations",
    "unit_rotations_fixing_one",
    "unit_rotations",
    "input_rotations_fixing_one",
    "input_rotations",
    "input_basis_changes",
)
"""Equivariances of the units, f(QW, X) = Q f(W, X), and changes of the inputs' basis, f(WA⁻¹, Ax) = f(W, x)."""

_MATRIX_ROWS = {
    "bn": "I  I  no no I  I  I",
    "bn_evaluation": "no no no no I  I  I",
    "wn": "I  I  no no I  I  no",
    "ln": "I  I  I  no I  I  I",
    "ln_pooled": "I  I  I  no I  I  I",
    "ln_eps": "I  I  I  no I  I  I",
    "ln_biased": "no no no no I  I  I",
    "rms": "I  I  I  I  I  I  I",
    "scale": "I  I  I  I  I  I  I",
    "gn": "I  no no no I  I  I",
    "gn_spatial": "I  no no no I  I  I",
    "in": "I  I  no no I  I  I",
    "ws": "I  I  no no I  no no",
    "ws_gn": "I  no no no I  no no",
    "sn": "I  I  I  I  I  I  no",
    "cosine": "I  I  no no I  I  no",
    "pcc": "I  I  no no I  no no",
    "qk_l2": "-  -  -  -  I  I  I",
    "qk_ln": "-  -  -  -  I  I  I",
    "dyt": "I  I  no no I  I  I",
    "pn": "no no no no I  I  I",
    "pre_ln": "I  I  I  I  I  no no",
    "pre_rms": "I  I  I  I  I  I  no",
    "pre_bn": "I  I  I  I  no no no",
    "residual_ln": "no no no no no no no",
}

EQUIVARIANCE: dict[str, dict[str, Cell]] = {
    method: {name: Cell(v) for name, v in zip(MATRIX_GROUPS, row.split(), strict=True) if v != "-"}
    for method, row in _MATRIX_ROWS.items()
}
"""Method, group of matrices → whether the property holds. Outputs of attention logits are not units."""
