"""Every cell of the invariance table is proved for all sizes or refuted by an exact instance."""

import jax.numpy as jnp
import lngeom as lg
import pytest
import sympy as sp
from lngeom.claims.proofs import proof_of
from lngeom.methods.table import EXTENDED, Cell
from lngeom.methods.transformations import WEIGHT_MATRIX_RESCALING, WEIGHT_VECTOR_RESCALING
from lngeom.methods.transformations.columns import WEIGHT_SIGN_FLIP
from lngeom.symbolic import Counterexample, Proof, prove
from lngeom.symbolic.layers import METHODS, Layer
from lngeom.symbolic.search import small_integers
from lngeom.symbolic.sums import vanishes
from lngeom.symbolic.table import expansion, settled

from tests.readable import unreadable

COLUMNS = [column.name for column in (*lg.transformations.TABLE1, WEIGHT_SIGN_FLIP)]
CELLS = [(method, column, cell) for method, row in EXTENDED.items() for column, cell in row.items()]


def test_a_cell_is_named_as_people_write_it():
    assert prove("layer norm", "Weight matrix re-centering").name == "LayerNorm.weight_matrix_recentering"
    assert prove("LN", "X+γ").name == "LayerNorm.dataset_recentering"


def test_every_symbolic_method_is_in_the_table():
    ones = jnp.ones((4, 4))
    names = {type(method.make(ones, ones)).__name__ for method in lg.normalizers.METHODS.values()}
    assert names | {"Identity"} == set(METHODS)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "column", "cell"), CELLS, ids=lambda v: str(v))
def test_cell_is_settled_as_recorded(method, column, cell):
    result = proof_of(f"extended.{method}.{column}")
    assert settled(result) is cell
    if cell is Cell.INVARIANT:
        assert isinstance(result, Proof)
        assert len(result.steps) >= 3
    else:
        assert isinstance(result, Counterexample)
        assert (result.correction is not None) == (cell is Cell.SIGN)
    assert "_Dummy" not in result.to_latex()
    assert not unreadable(result)


@pytest.mark.parametrize("column", COLUMNS)
def test_without_a_normalizer_only_the_sign_is_repaired(column):
    result = prove("Identity", column)
    assert settled(result) is (Cell.SIGN if column == "weight_sign_flip" else Cell.CHANGED)


@pytest.mark.thorough
def test_table_1_has_the_evidence_that_is_registered():
    for row in ("bn", "wn", "ln"):
        for column in COLUMNS[:6]:
            evidence = prove({"bn": "BatchNorm", "wn": "WeightNorm", "ln": "LayerNorm"}[row], column)
            assert type(evidence) is type(proof_of(f"table1.{row}.{column}"))


@pytest.mark.parametrize("column", [c for c in COLUMNS if c.endswith("rescaling")])
def test_dropping_a_needed_assumption_gives_a_counterexample(column):
    result = prove("LayerNorm", column)
    if isinstance(result, Proof):
        dropped = {a.latex: a.when_dropped for a in result.assumptions}
        assert dropped[r"\delta > 0"] is not None
        assert dropped[r"\epsilon = 0"] is not None
    else:
        assert column == "weight_vector_rescaling"


def test_without_a_positive_factor_the_general_argument_breaks():
    free = sp.Symbol("delta", real=True)
    layer, moved = Layer(), Layer(lambda i, d: free * Layer().W(i, d), Layer().X)
    method = METHODS["LayerNorm"]
    assert not vanishes(method(moved) - method(layer))
    negative = Layer(lambda i, d: -Layer().W(i, d), Layer().X)
    assert vanishes(method(negative) + method(layer))


def test_with_eps_scaling_is_refuted_and_the_shift_proved():
    layer_norm = lg.normalizers.LayerNorm(eps=1e-5)
    scaled = prove(layer_norm, lg.transformations.WEIGHT_MATRIX_RESCALING)
    assert isinstance(scaled, Counterexample)
    assert scaled.instance[r"\epsilon"] == sp.Rational(1, 10**5)
    assert isinstance(prove(layer_norm, lg.transformations.WEIGHT_MATRIX_RECENTERING), Proof)


@pytest.mark.parametrize("normalizer", [lg.normalizers.LayerNorm(), lg.normalizers.LayerNorm, "LayerNorm"])
def test_normalizer_may_be_instance_class_or_name(normalizer):
    assert isinstance(prove(normalizer, lg.transformations.WEIGHT_MATRIX_RECENTERING), Proof)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm_of_any_number_of_groups(groups):
    normalizer = lg.normalizers.GroupNorm(groups=groups)
    assert isinstance(prove(normalizer, "weight_matrix_recentering"), Proof)
    refuted = prove(normalizer, "weight_vector_rescaling")
    assert isinstance(refuted, Counterexample)
    assert refuted.instance["W"].rows == 3 * groups


@pytest.mark.parametrize(
    ("method", "indices"), [("LayerNorm", "ni"), ("GroupNorm", "npq"), ("InstanceNorm", "nti"), ("QueryKeyNorm", "nts")]
)
def test_both_sides_of_a_step_have_the_indices_of_the_method(method, indices):
    text = prove(method, "weight_matrix_rescaling").to_text()
    assert f"n'_{indices} = " in text
    assert f"a'_{indices} = δ a_{indices}" in text


def test_counterexample_is_exact_and_the_smallest():
    result = prove("LayerNorm", "weight_vector_rescaling")
    assert isinstance(result, Counterexample)
    assert (result.left, result.right) == (sp.sqrt(2) / 2, sp.sqrt(6) / 2)
    entries = [*result.instance["W"], *result.instance["X"]]
    assert all(entry.is_Rational for entry in entries)
    assert sum(entries) == 3


def test_search_visits_small_vectors_first():
    weights = [sum(v) for v in small_integers(3)]
    assert weights == sorted(weights)
    assert weights[:4] == [1, 1, 1, 2]


@pytest.mark.parametrize("units", [2, 3, 5])
def test_counterexample_may_have_a_given_number_of_units(units):
    result = prove("RMSNorm", "weight_vector_rescaling", units=units)
    assert isinstance(result, Counterexample)
    assert result.instance["W"].rows == units


@pytest.mark.parametrize(
    ("arguments", "units", "message"),
    [
        (("NoSuchNorm", "dataset_rescaling"), None, "no method 'NoSuchNorm'"),
        (("LayerNorm", "no_such_column"), None, "no transformation 'no_such_column'"),
        ((3, "dataset_rescaling"), None, "no symbolic definition of the normalizer 'int'"),
        ((lg.nn.LayerNorm(4), "dataset_rescaling"), None, r"normalizer 'lngeom\.nn\.modules\.LayerNorm'"),
        (("LayerNorm", "dataset_rescaling"), 1, "LayerNorm of H = 1 is undefined"),
        (("GroupNorm", "dataset_rescaling"), 2, "GroupNorm of H = 2 is undefined"),
        (("GroupNorm", "dataset_rescaling"), 5, "positive multiple of groups = 2; got 5"),
        (("LayerNorm", "dataset_rescaling"), 0, "positive multiple of groups = 1; got 0"),
    ],
)
def test_bad_requests_get_one_clear_error(arguments, units, message):
    with pytest.raises(ValueError, match=message):
        prove(*arguments, units=units)


def test_expansion_refuses_a_change_that_is_not_an_invariance():
    assert not expansion(METHODS["LayerNorm"], WEIGHT_VECTOR_RESCALING).verify()
    assert not expansion(METHODS["LayerNorm"], WEIGHT_MATRIX_RESCALING, eps=sp.S.One).verify()
    assert not expansion(METHODS["LayerNorm"], WEIGHT_SIGN_FLIP).verify()
