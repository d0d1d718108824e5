"""Data sets on which statistics vanish, digits are lost or nothing differs, and what claims may say of them."""

import jax.numpy as jnp
import numpy as np
from lngeom.claims import Problem, Role, Verdict, all_claims, decide, run
from lngeom.claims.data import load
from lngeom.claims.evidence import Evidence, Kind

from .conftest import SHAPE


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


def hostile_problem(name, folder):
    """Claims' problem on rows that are read from a file, as a user's are."""
    path = folder / "rows.npy"
    np.save(path, ROWS[name](np.random.default_rng(0)))
    return Problem(jnp.asarray(load(str(path)).inputs))


def unexpected(outcomes):
    """Verdicts that are neither the recorded one, nor undecided for a reason that is given."""
    right = [o.as_recorded or (o.verdict is Verdict.UNDECIDED and (o.reasons or o.error)) for o in outcomes]
    return {o.claim.id: (o.verdict, o.reasons) for o, fine in zip(outcomes, right, strict=True) if not fine}


ROLES = {
    Verdict.HOLDS: (Role.SUPPORTS,),
    Verdict.REFUTED: (Role.REFUTES, Role.CORRECTS),
    Verdict.SLIP: (Role.MISPRINT, Role.CORRECTS),
    Verdict.CONDITIONAL: (Role.SUPPORTS, Role.FAILS_WITHOUT_CONDITION),
}
"""What the proofs of a claim do, by the verdict that is recorded."""


def beside_proofs(outcome):
    """The verdict of the numbers beside the claim's proofs, for which others stand: they take seconds to make."""
    roles = () if outcome.claim.why_numeric else ROLES[outcome.claim.expected]
    proofs = (Evidence(Kind.PROOF, role, "proof", passed=True) for role in roles)
    return decide([*outcome.evidence, *proofs])


def wrong_verdicts(topics, given):
    """Claims of topics whose verdict is false or a clash, by the numbers alone or beside proofs."""
    outcomes = [run(c, given) for topic in topics for c in all_claims(topic)]
    wrong = unexpected(outcomes)
    for o in outcomes:
        verdict = beside_proofs(o)
        if verdict not in {o.claim.expected, Verdict.UNDECIDED}:
            wrong[o.claim.id] = verdict, o.reasons
    return wrong
