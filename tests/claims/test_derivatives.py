"""Derivatives of methods in n and σ: every formula is proved and measured, and a wrong one is neither."""

import dataclasses

import numpy as np
import pytest
from lngeom.claims import Verdict, all_claims, decide
from lngeom.claims.proofs import proof_of
from lngeom.methods import METHODS
from lngeom.methods.composed import WeightStandardizedGroupNorm
from lngeom.methods.formulas import H, moment_slopes
from lngeom.methods.layer import LayerNorm
from lngeom.methods.page import COMPOSITES, SLOPES
from lngeom.methods.weight import SPECTRAL, SpectralNorm, spectral
from lngeom.papers.derivatives import ORDERS, derivative_check, point
from lngeom.symbolic import Proof, composites, layers
from lngeom.symbolic.composites import derivative_in_parts
from lngeom.symbolic.derivatives import derivative, statement
from lngeom.symbolic.proof import ProofError

CLAIMS = {claim.id: claim for claim in all_claims("derivatives")}
IN_PARTS = {
    METHODS[name].kind: COMPOSITES[METHODS[name].kind]
    for name in ("sn", "pre_bn", "residual_ln", "ws_gn", "qk_l2", "qk_ln")
}
"""Methods of another form: a singular value, sums, products and chains of normalized numbers."""
LN = SLOPES[LayerNorm]
WRONG = {
    "numerator": lambda P, y: P.same(P.place, y) + 1 / P.count,
    "share": lambda P: 2 / P.count,
    "scale": lambda P, y: -P.n(y),
    "square": lambda P, y, z: P.same(y, z),
}
"""A wrong sign, a factor 2, a wrong sign, and a term forgotten."""


def row_of(kind):
    return next(method for method in METHODS.values() if method.kind is kind)


def named(method):
    return layers.METHODS[METHODS[method].kind.__name__]


def test_every_row_of_the_table_has_both_derivatives():
    assert COMPOSITES == IN_PARTS
    assert {method.kind for method in METHODS.values()} == {*SLOPES, *COMPOSITES}
    assert not {*SLOPES} & {*COMPOSITES}
    assert set(CLAIMS) == {f"derivative.{name}.{order}" for name in set(METHODS) - {"ln_eps"} for order in ORDERS}


@pytest.mark.parametrize("id", CLAIMS)
def test_every_formula_is_proved_and_measured(problem, id):
    proof = proof_of(id)
    assert isinstance(proof, Proof)
    assert proof.statement == CLAIMS[id].formula
    assert not proof.sizes
    assert decide(list(CLAIMS[id].check(problem))) is Verdict.HOLDS


def test_the_first_derivative_of_layer_norm_is_its_projector_over_the_scale(problem):
    at = point(problem, METHODS["ln"], eps=0.3)
    a = np.asarray(at.inputs)[0]
    sigma = np.sqrt(a.var() + 0.3)
    n = (a - a.mean()) / sigma
    first = (np.eye(a.size) - 1 / a.size - np.outer(n, n) / a.size) / sigma
    found = first @ np.asarray(at.directions[0]) @ a
    assert np.allclose(at.by_formula("first")[0], found, rtol=0, atol=1e-13)


def test_the_proof_of_layer_norm_reads_as_expected():
    first, second = (derivative(named("ln"), LN, order).steps[-1].plain for order in ORDERS)
    assert first == "∂n_i/∂a_j = ([i=j] − n_i n_j / H − 1 / H) / σ"
    assert second == "∂² n_i/∂a_j∂a_k = ((3 n_j n_k / H − c_jk) n_i − n_k c_ij − n_j c_ik) / (σ² H)"
    assert statement(named("ln"), LN, "second").endswith("c_{jk} = [j=k] - 1/H")


@pytest.mark.parametrize(
    ("order", "part"), [(order, part) for order in ORDERS for part in WRONG if (order, part) != ("first", "square")]
)
def test_a_wrong_sign_factor_or_term_is_seen_by_proof_and_numbers(problem, monkeypatch, order, part):
    wrong = dataclasses.replace(LN, **{part: WRONG[part]})
    with pytest.raises(ProofError, match="does not hold"):
        derivative(named("ln"), wrong, order)
    monkeypatch.setitem(SLOPES, LayerNorm, wrong)
    assert decide(list(derivative_check(METHODS["ln"], order)(problem))) is not Verdict.HOLDS


@pytest.mark.parametrize("order", ORDERS)
def test_a_wrong_general_formula_is_seen(order):
    """The last step fails by itself where those of numerator and scale hold."""

    class Wrong(type(LN)):
        def first(self, P, y):
            return (self.numerator(P, y) + self.share(P) * P.n(P.place) * self.scale(P, y)) / P.sigma

        def second(self, P, y, z):
            return super().second(P, y, z) - self.share(P) * P.n(P.place) * self.square(P, y, z) / P.sigma**2

    with pytest.raises(ProofError, match=f"the {order} derivative of n is"):
        derivative(named("ln"), Wrong(**vars(LN)), order)


def test_moments_over_too_few_indices_are_seen():
    """Slopes of layer norm are not those of layer norm over all positions: others move it, too."""
    with pytest.raises(ProofError, match="n stays"):
        derivative(named("ln_pooled"), moment_slopes(H), "first")


FORMULAS = [
    (kind, order, letters)
    for kind, composite in COMPOSITES.items()
    for order in ORDERS
    for letters in getattr(composite, order)
]


@pytest.mark.parametrize(("kind", "order", "letters"), FORMULAS)
def test_a_wrong_formula_in_parts_is_seen_by_proof_and_numbers(problem, monkeypatch, kind, order, letters):
    right = COMPOSITES[kind]
    formulas = getattr(right, order)
    off = lambda P, *places: formulas[letters](P, *places) + 1  # noqa: E731
    wrong = dataclasses.replace(right, **{order: {**formulas, letters: off}})
    with pytest.raises(ProofError, match=f"{order} derivative"):
        derivative_in_parts(layers.METHODS[kind.__name__], wrong, order)
    monkeypatch.setitem(COMPOSITES, kind, wrong)
    assert decide(list(derivative_check(row_of(kind), order)(problem))) is not Verdict.HOLDS


@pytest.mark.parametrize("link", [0, 1])
@pytest.mark.parametrize("order", ORDERS)
def test_a_wrong_link_of_a_chain_is_seen(problem, monkeypatch, order, link):
    kind = WeightStandardizedGroupNorm
    right = COMPOSITES[kind]
    slopes = list(right.chain.slopes)
    slopes[link] = dataclasses.replace(slopes[link], share=lambda P: 2 / P.count)
    chain = dataclasses.replace(right.chain, slopes=tuple(slopes))
    wrong = dataclasses.replace(right, chain=chain, first={"W": chain.first}, second={"WW": chain.second})
    with pytest.raises(ProofError, match="does not hold"):
        derivative_in_parts(layers.METHODS[kind.__name__], wrong, order)
    monkeypatch.setitem(COMPOSITES, kind, wrong)
    assert decide(list(derivative_check(row_of(kind), order)(problem))) is not Verdict.HOLDS


def test_the_second_derivative_of_spectral_norm_needs_the_other_singular_values(problem, monkeypatch):
    """As if the singular vectors stood still, R = 0."""
    still = lambda P, y, z: P.same(y[0], z[0]) * P("v", y[1]) * P("v", z[1])  # noqa: E731
    wrong = dataclasses.replace(SPECTRAL, square=lambda output, y, z: still(output.parts, y, z))
    monkeypatch.setattr(composites, "SPECTRAL", wrong)
    with pytest.raises(ProofError, match="half the second derivative"):
        derivative_in_parts(named("sn"), IN_PARTS[SpectralNorm], "second")
    second = {"WW": lambda P, y, z: wrong.second(spectral(P), y, z)}
    monkeypatch.setitem(COMPOSITES, SpectralNorm, dataclasses.replace(IN_PARTS[SpectralNorm], second=second))
    assert decide(list(derivative_check(METHODS["sn"], "second")(problem))) is not Verdict.HOLDS


def test_the_proof_of_a_logit_reads_as_expected():
    plain = [
        step.plain for step in derivative_in_parts(named("qk_ln"), IN_PARTS[METHODS["qk_ln"].kind], "second").steps
    ]
    assert plain[2] == "∂² n/∂a_h∂b_o = (n k̂_o q̂_h + [h=o] − k̂_h k̂_o − q̂_h q̂_o − 1 / M) / (κ ρ)"
