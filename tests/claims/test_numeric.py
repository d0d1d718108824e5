"""Numbers of a claim that another process makes are those of this one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.claims import Problem
from lngeom.claims.data import load
from lngeom.claims.numeric import numeric_evidence
from lngeom.claims.registry import BA2016, all_claims, numbers


@pytest.mark.thorough
def test_evidence_is_the_same_with_arrays_of_numpy():
    (claim,) = all_claims(id="equation.8")
    with jax.enable_x64(True):
        here = numbers(claim, Problem(jnp.asarray(load("digits", 0).inputs), 0))
    away = numeric_evidence("equation.8", "digits", 0, paper=BA2016)
    said = [[(e.description, e.passed, e.residual) for e in evidence] for evidence in (here, away)]
    assert said[0] == said[1]
    arrays = [a for e in away for a in (*e.matrices.values(), *(v for pair in e.curves.values() for v in pair))]
    assert arrays
    assert all(type(a) is np.ndarray and a.dtype == np.float64 for a in arrays)


def test_an_unknown_claim_is_refused():
    with pytest.raises(ValueError, match=r"no claim 'equation\.80'"):
        numeric_evidence("equation.80", "digits", 0, paper=BA2016)
