"""Data of one shape for all claims, so that their programs are compiled once; proofs, which are made once."""

import functools

import jax
import pytest
from lngeom.claims import Problem
from lngeom.claims.proofs import proof_evidence

SHAPE = 100, 6
"""Rows and columns."""

proof = functools.cache(proof_evidence)


@pytest.fixture(scope="session")
def problem():
    return Problem(jax.random.normal(jax.random.key(9), SHAPE), seed=1)
