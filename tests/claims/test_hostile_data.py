"""Data sets on which statistics vanish, digits are lost or nothing differs: no false verdict and no clash."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.claims import Problem, Role, Verdict, all_claims, decide, run
from lngeom.claims.evidence import Evidence, Kind, Strength
from lngeom.claims.problem import NORMALIZERS
from lngeom.data import DataError, load

from .conftest import SHAPE, proof


def nearly_dependent(rows):
    """Rows whose second column is the first but for one part in 10⁹."""
    return np.concatenate([rows[:, :1], rows[:, :1] + 1e-9 * rows[:, 1:2], rows[:, 2:]], 1)


ROWS = {
    "one-hot rows": lambda r: np.eye(40)[r.integers(0, 40, 300)],
    "an offset of 1e4": lambda r: 1e4 + r.normal(size=(240, 7)),  # the shape of the tests of the learning rate
    "an offset of 1e6": lambda r: 1e6 + r.normal(size=SHAPE),
    "an offset in one column": lambda r: r.normal(size=SHAPE) + np.array([1e6] + 5 * [0]),
    "a constant column": lambda r: np.concatenate([np.full((100, 1), 3.0), r.normal(size=(100, 5))], 1),
    "three rows": lambda r: r.normal(size=(3, 2)),
    "five columns": lambda r: r.normal(size=(60, 5)),
    "heavy tails": lambda r: r.standard_cauchy(size=SHAPE),
    "tiny values": lambda r: 1e-30 * r.normal(size=SHAPE),
    "huge values": lambda r: 1e30 * r.normal(size=SHAPE),
    "duplicated rows": lambda r: np.tile(r.normal(size=(20, 6)), (5, 1)),
    "rank one": lambda r: np.outer(r.normal(size=100), r.normal(size=6)),
    "two different rows": lambda r: np.repeat(r.normal(size=(2, 6)), 50, 0),
    "a nearly dependent column": lambda r: nearly_dependent(r.normal(size=SHAPE)),
}


SOME = (
    "table1.bn.weight_matrix_rescaling",
    "text.feature_shifting",
    "extended.ln.weight_matrix_rescaling",
    "extended.ln.weight_vector_rescaling",
    "extended.rms.dataset_rescaling",
    "extended.pre_bn.weight_vector_constant_shift",
    "extended.in.weight_matrix_rescaling",
    "extended.residual_ln.group_permutations",
)


def problem(name, folder):
    path = folder / "rows.npy"
    np.save(path, ROWS[name](np.random.default_rng(0)))
    return Problem(jnp.asarray(load(str(path)).inputs))


def unexpected(outcomes):
    """Verdicts that are neither the recorded one, nor undecided for a reason that is given."""
    right = [o.as_recorded or (o.verdict is Verdict.UNDECIDED and (o.reasons or o.error)) for o in outcomes]
    return {o.claim.id: (o.verdict, o.reasons) for o, fine in zip(outcomes, right, strict=True) if not fine}


def proofs_of(record):
    """Proofs that stand for those of a claim, which take seconds to make."""
    roles = {
        Verdict.HOLDS: (Role.SUPPORTS,),
        Verdict.REFUTED: (Role.REFUTES, Role.CORRECTS),
        Verdict.CONDITIONAL: (Role.SUPPORTS, Role.FAILS_WITHOUT_CONDITION),
    }
    return [Evidence(Kind.PROOF, role, "proof", passed=True) for role in roles[record.expected]]


@pytest.mark.parametrize("name", ROWS)
def test_no_data_set_gives_a_false_verdict_or_a_clash(name, tmp_path):
    given = problem(name, tmp_path)
    outcomes = [run(all_claims(id=id)[0], given) for id in SOME]
    assert not unexpected(outcomes)
    for o in outcomes:
        proofs = [] if o.claim.why_numeric else proofs_of(o.claim)
        recorded = decide([*o.evidence, *proofs]) is o.claim.expected
        assert recorded or o.claim.id in UNDECIDED.get(name, ()), (o.claim.id, o.reasons)


UNDECIDED = {
    "an offset of 1e4": ["extended.residual_ln.group_permutations"],
    "an offset of 1e6": ["extended.residual_ln.group_permutations"],
    "an offset in one column": ["extended.residual_ln.group_permutations"],
}
"""Claims that rest on numbers alone, whose difference is too small on the data to be a witness."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "topics"),
    [
        ("an offset of 1e6", (None, "extended")),  # the next two have its shape, and find its programs
        ("two different rows", (None, "extended")),
        ("a nearly dependent column", (None,)),
        ("one-hot rows", ("extended",)),
        ("an offset of 1e4", ("learning-rate",)),
    ],
)
def test_no_claim_of_a_topic_has_a_false_verdict_or_clashes(name, topics, tmp_path):
    given = problem(name, tmp_path)
    outcomes = [run(c, given) for topic in topics for c in all_claims(topic)]
    assert not unexpected(outcomes)
    for o in outcomes:
        proofs = [] if o.claim.why_numeric else proofs_of(o.claim)
        assert decide([*o.evidence, *proofs]) in {o.claim.expected, Verdict.UNDECIDED}, (o.claim.id, o.reasons)


def test_one_hot_rows_decide_by_numbers(tmp_path):
    given = problem("one-hot rows", tmp_path)
    for id in ("extended.ln.weight_matrix_rescaling", "extended.ln.weight_vector_rescaling"):
        found = run(all_claims(id=id)[0], given)
        assert found.verdict is Verdict.HOLDS
        assert not found.silent
        assert all(np.isfinite(e.residual) for e in found.evidence)


@pytest.mark.parametrize(
    ("name", "id", "text"),
    [
        ("an offset of 1e6", "table1.bn.weight_matrix_rescaling", "rounding alone may cause"),
        pytest.param("an offset of 1e6", "nullspace.ln", "too small to be told from rounding", marks=pytest.mark.slow),
        ("an offset of 1e4", "table1.ln.dataset_recentering", "too small to count"),
        ("two different rows", "extended.in.weight_matrix_rescaling", "are NaN or infinite"),
        pytest.param(
            "a nearly dependent column", "nullspace.wn", "too small to be told from rounding", marks=pytest.mark.slow
        ),
    ],
)
def test_the_proof_carries_the_verdict_and_the_reason_is_given(name, id, text, tmp_path):
    record = all_claims(id=id)[0]
    given = problem(name, tmp_path)
    with_proof, alone = run(record, given, proof), run(record, given)
    assert with_proof.as_recorded
    assert with_proof.strength in {Strength.PROOF, Strength.COUNTEREXAMPLE}
    assert alone.verdict is Verdict.UNDECIDED
    assert any(text in reason for reason in alone.reasons)
    assert any(text in reason for reason in with_proof.reasons)


def test_a_broken_library_clashes_on_ordinary_data_and_is_not_hidden_by_an_offset(tmp_path, monkeypatch):
    from lngeom import normalizers

    monkeypatch.setitem(NORMALIZERS, "bn", normalizers.BatchNorm(eps=0.5))
    record = all_claims(id="table1.bn.weight_matrix_rescaling")[0]
    assert run(record, Problem(jax.random.normal(jax.random.key(0), (60, 5))), proof).verdict is Verdict.CLASH
    assert run(record, problem("an offset of 1e4", tmp_path), proof).verdict is Verdict.CLASH


def test_constant_data_is_refused(tmp_path):
    np.save(tmp_path / "constant.npy", np.full((20, 5), 2.0))
    with pytest.raises(DataError, match="all rows are alike"):
        load(str(tmp_path / "constant.npy"))
