"""The normal form decides identities between sums over unspecified ranges."""

import pytest
import sympy as sp
from lngeom.symbolic.evaluation import agrees_at_small_sizes, numerical_value
from lngeom.symbolic.sums import D, H, derivative, displayed, field, i, j, k, mean, normal_form, total, vanishes
from sympy import KroneckerDelta, sqrt

a, b, w = field("a"), field("b"), field("w")
A = field("A")
delta, sign_free = sp.Symbol("delta", positive=True), sp.Symbol("delta", real=True)
deviation = lambda l: a(l) - mean(a, H)  # noqa: E731
variance = mean(lambda l: deviation(l) ** 2, H)

IDENTITIES = {
    "linearity": (total(lambda l: 2 * a(l) + b(l), H), 2 * total(a, H) + total(b, H)),
    "sum of a constant": (total(lambda l: delta, H), H * delta),
    "product of sums": (total(a, H) * total(b, H), total(lambda l: total(lambda m: a(l) * b(m), H), H)),
    "square of a sum": (total(a, H) ** 2, total(lambda l: total(lambda m: a(l) * a(m), H), H)),
    "renamed indices": (
        total(lambda l: total(lambda m: A(l, m) * a(l) * b(m), H), H),
        total(lambda m: total(lambda l: A(m, l) * b(l) * a(m), H), H),
    ),
    "cube of a sum": (total(a, H) ** 3, total(a, H) * total(lambda l: a(l) * total(a, H), H)),
    "centred sum": (total(deviation, H), 0),
    "variance": (variance, mean(lambda l: a(l) ** 2, H) - mean(a, H) ** 2),
    "variance again": (variance, mean(lambda l: mean(lambda m: (a(l) - a(m)) ** 2, H), H) / 2),
    "contraction": (total(lambda l: KroneckerDelta(l, i) * a(l), H), a(i)),
    "double contraction": (
        total(lambda l: KroneckerDelta(l, i) * KroneckerDelta(l, j) * a(l), H),
        KroneckerDelta(i, j) * a(i),
    ),
    "delta of free indices": (KroneckerDelta(i, k) * a(i), KroneckerDelta(i, k) * a(k)),
    "root of a square": (sqrt(delta**2 * variance), delta * sqrt(variance)),
    "root squared": (sqrt(variance) * sqrt(variance), variance),
    "unit norm": (total(lambda l: (w(l) / sqrt(total(lambda m: w(m) ** 2, D))) ** 2, D), 1),
    "standardized": (mean(lambda l: deviation(l) ** 2 / variance, H), 1),
    "Lagrange": (
        total(lambda l: a(l) ** 2, H) * total(lambda l: b(l) ** 2, H) - total(lambda l: a(l) * b(l), H) ** 2,
        total(lambda l: total(lambda m: (a(l) * b(m) - a(m) * b(l)) ** 2, H), H) / 2,
    ),
}

FALSEHOODS = {
    "sum of squares is no square of a sum": (total(a, H) ** 2, total(lambda l: a(l) ** 2, H)),
    "a free index is not summed": (total(lambda l: a(l), H), H * a(i)),
    "transposed matrix": (
        total(lambda l: total(lambda m: A(l, m) * a(l) * b(m), H), H),
        total(lambda l: total(lambda m: A(m, l) * a(l) * b(m), H), H),
    ),
    "variance with one unit too few": (variance, total(lambda l: deviation(l) ** 2, H) / (H - 1)),
    "different ranges": (total(a, H), total(a, D)),
    "contraction at the wrong unit": (total(lambda l: KroneckerDelta(l, i) * a(l), H), a(j)),
    "root of a square of any sign": (sqrt(sign_free**2 * variance), sign_free * sqrt(variance)),
    "a small change": (variance, mean(lambda l: a(l) ** 2, H) - mean(a, H) ** 2 + sp.Rational(1, 10**9) * a(i)),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identity_is_proved_for_all_sizes_and_holds_at_small_ones(name):
    left, right = map(sp.sympify, IDENTITIES[name])
    assert vanishes(left - right)
    assert agrees_at_small_sizes(left, right)


@pytest.mark.parametrize("name", FALSEHOODS)
def test_falsehood_is_refused_both_ways(name):
    left, right = map(sp.sympify, FALSEHOODS[name])
    assert not vanishes(left - right)
    assert not agrees_at_small_sizes(left, right)


@pytest.mark.parametrize("name", IDENTITIES)
def test_normal_form_has_the_value_of_what_it_came_from(name):
    left = sp.sympify(IDENTITIES[name][0])
    assert agrees_at_small_sizes(left, normal_form(left))


def test_a_root_is_not_lost_from_an_odd_power():
    root = sqrt(total(lambda l: a(l) ** 2, H))
    assert not vanishes(b(i) * root - b(i))
    assert vanishes(b(i) * root**3 / total(lambda l: a(l) ** 2, H) - b(i) * root)


def test_the_root_of_a_square_has_no_sign():
    """As a factor of a sum, which SymPy does not take out of a root by itself."""
    root = sqrt(a(i) ** 2 * delta + a(i) ** 2 * w(j) ** 2)
    assert vanishes(root - sp.Abs(a(i)) * sqrt(delta + w(j) ** 2))
    assert not vanishes(root - a(i) * sqrt(delta + w(j) ** 2))


def test_free_symbols_of_a_sum_are_those_of_sympy():
    for sum_ in (total(lambda l: A(i, l) * delta, H), total(lambda l: total(lambda m: A(l, m), D), H)):
        assert sum_.free_symbols == sp.Sum(sum_.function, *sum_.limits).free_symbols
        assert sum_.is_zero is None


def test_sums_of_zeros_vanish():
    zeros = total(lambda l: total(lambda m: A(l, m) * 0, D), H)
    assert zeros.is_zero is not False
    assert vanishes(zeros)
    assert vanishes(derivative(lambda t: total(lambda l: (a(l) + t) ** 2 - t * (2 * a(l) + t), H)))
    assert not vanishes(zeros + a(i))


def test_a_sum_is_real_only_where_its_terms_are():
    assert total(a, H).is_real
    roots = total(lambda l: sqrt(a(l)), H)
    assert not roots.is_real
    assert not vanishes(sp.Abs(roots) ** 2 - roots**2)


def test_bound_indices_get_readable_names_without_capture():
    shown = displayed(total(lambda l: total(lambda m: A(l, m) * a(i), H), H))
    assert {s.name for s in shown.bound_symbols} == {"j", "k"}
    assert vanishes(shown - total(a, H) * 0 - total(lambda l: total(lambda m: A(l, m), H), H) * a(i))


def test_sums_must_start_at_one():
    with pytest.raises(ValueError, match="start at 1"):
        normal_form(sp.Sum(a(i), (i, 0, H)))


def test_value_of_an_unknown_function_is_refused():
    with pytest.raises(NotImplementedError, match="no numerical rule"):
        numerical_value(sp.Function("f")(sp.Integer(1)), {})
