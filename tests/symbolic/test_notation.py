"""What is shown in short is what is checked in full."""

import re

import pytest
import sympy as sp
from lngeom.symbolic.jacobian import LAYER, RADIAL, along
from lngeom.symbolic.layers import BATCH_NORM, GROUP_NORM, LAYER_NORM, WEIGHT_NORM, Layer
from lngeom.symbolic.notation import latex, legend, plain, shown
from lngeom.symbolic.sums import D, H, d, field, i, m, mean, n, total, vanishes
from sympy import Indexed


@pytest.mark.parametrize(
    ("expression", "short"),
    [
        (LAYER.a(n, i), "a[n, i]"),
        (LAYER_NORM.numerator(LAYER), "u[n, i]"),
        (LAYER_NORM.square(LAYER), "sigma[n]**2"),
        (LAYER_NORM(LAYER), "u[n, i]/sigma[n]"),
        (BATCH_NORM(LAYER), "u[n, i]/sigma[i]"),
        (GROUP_NORM(LAYER), "u[n, p, q]/sigma[n, p]"),
    ],
)
def test_definitions_are_shown_in_short(expression, short):
    assert str(shown(expression)) == short


@pytest.mark.parametrize(
    "expression",
    [
        LAYER.a(n, i) - mean(lambda j: LAYER.a(m, j), H),
        LAYER.a(n, i) - total(lambda j: LAYER.a(n, j), H),
        LAYER.a(n, i) + mean(lambda j: LAYER.a(n, j), H),
    ],
)
def test_what_is_not_centred_is_not_shown_as_centred(expression):
    assert "u[" not in str(shown(expression))


def _written_out(expression):
    """The short form with a, u and σ of layer norm written out again."""
    parts = {"a": LAYER.a, "u": lambda n, i: LAYER_NORM.numerator(LAYER, n, i)}

    def written(entry: Indexed):
        if entry.base.name == "sigma":
            return sp.sqrt(LAYER_NORM.square(LAYER, entry.indices[0]))
        return parts[entry.base.name](*entry.indices)

    return expression.replace(lambda e: isinstance(e, Indexed) and e.base.name in {"a", "u", "sigma"}, written)


@pytest.mark.parametrize("direction", [RADIAL, field("V")])
def test_short_form_written_out_is_the_original(direction):
    for original in (along(LAYER_NORM, direction), LAYER_NORM(LAYER) ** 2, LAYER_NORM(Layer())):
        assert vanishes(_written_out(shown(original)) - original)


DELTA, EPS, SCALAR = sp.Symbol("delta", positive=True), sp.Symbol("epsilon", positive=True), sp.Symbol("c", real=True)
SCALED = Layer(lambda l, d: DELTA * LAYER.W(l, d), LAYER.X)
v, w = field("v"), field("w")


@pytest.mark.parametrize(
    ("expression", "line", "formula"),
    [
        (LAYER_NORM(SCALED), "LN_i(δ Wx_ni)", r"\mathrm{LN}_{i}\left(\delta (Wx_{n})_{i}\right)"),
        (
            LAYER_NORM(SCALED, eps=EPS),
            "LN_i(δ Wx_ni; ε)",
            r"\mathrm{LN}_{i}\left(\delta (Wx_{n})_{i};\,\epsilon\right)",
        ),
        (BATCH_NORM(SCALED), "BN_n(δ Wx_ni)", r"\mathrm{BN}_{n}\left(\delta (Wx_{n})_{i}\right)"),
        (WEIGHT_NORM(SCALED), "Wx_ni / ‖W_i‖", r"\frac{(Wx_{n})_{i}}{\lVert {W}_{i}\rVert}"),
        (total(lambda d: (v(d) - SCALAR * w(d)) ** 2, D), "‖v − c w‖²", r"\lVert - c w + v\rVert^{2}"),
        (total(lambda d: v(d) * w(d), D) * v(d), "v_d (v·w)", r"(v^\top w) {v}_{d}"),
    ],
)
def test_norms_and_products_are_shown_in_short(expression, line, formula):
    assert plain(expression) == line
    assert latex(expression) == formula


@pytest.mark.parametrize(
    "expression",
    [
        LAYER_NORM.numerator(SCALED) / sp.sqrt(LAYER_NORM.square(Layer(field("V"), LAYER.X))),  # by another's scale
        (LAYER_NORM.numerator(SCALED) + 1) / sp.sqrt(LAYER_NORM.square(SCALED)),  # not centred
        LAYER_NORM.numerator(SCALED) / LAYER_NORM.square(SCALED),  # no root
        SCALED.a(n, i) / sp.sqrt(LAYER_NORM.square(SCALED)),  # nothing subtracted
        (SCALED.a(n, i) - 2 * mean(lambda j: SCALED.a(n, j), H)) / sp.sqrt(LAYER_NORM.square(SCALED)),  # twice the mean
    ],
)
def test_what_is_not_standardized_is_not_shown_so(expression):
    assert "LN_" not in plain(expression)


@pytest.mark.parametrize(
    "expression",
    [
        total(lambda d: (v(d) + SCALAR) * w(d), D),
        total(lambda d: v(d) ** 2 * w(d), D),
        total(lambda d: v(d) * w(d) * field("u")(d), D),
        total(lambda d: (v(d) + 1) ** 2, D),
        total(lambda d: (v(d) * field("u")(d) + w(d)) * w(d), D),
    ],
)
def test_what_is_no_product_of_vectors_is_not_shown_so(expression):
    assert "·" not in plain(expression)
    assert "‖" not in plain(expression)


@pytest.mark.parametrize(
    ("sign", "explained"),
    [(sign, "a_ni") for sign in ("a_ni", "a_ni²", "a_n", "a_mj", "a_ni⁻¹")]
    + [(sign, "a_nti") for sign in ("a_nti", "a_nti²", "a_nsj", "a_nts")]
    + [(sign, "a_npq") for sign in ("a_npq", "a_npr²")]
    + [(sign, "a_ntpq") for sign in ("a_ntpq", "a_nspr")]
    + [("a_nt1", "a_nt1"), ("a_ns2", "a_nt1")],
)
def test_summed_inputs_are_explained_by_their_indices(sign, explained):
    assert re.findall(r"^a_\w+|; a_\w+", legend(f"‖{sign}‖ / 2")) == [explained]


def test_only_the_signs_of_a_text_are_explained():
    assert legend("σ_n = 1") == "σ² = mean u²"
    assert "the query at position t" in legend("u_ns2·u_nt1 / σ_ns2")
    assert "LN_i(b_i; ε)" in legend("LN_i(γ·x_n)")
    assert "γ·x the inner product" in legend("LN_i(γ·x_n)")
    assert not legend("tr Π = H − 2")
