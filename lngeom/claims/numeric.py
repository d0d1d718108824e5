"""The numbers of a claim, made in another process."""

import functools
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from lngeom.claims.data import load
from lngeom.claims.evidence import Evidence
from lngeom.claims.papers import find
from lngeom.claims.problem import Problem
from lngeom.claims.registry import all_claims, numbers


@functools.lru_cache(1)
def _problem(data: str, seed: int, results: Path | None) -> Problem:
    return Problem(jnp.asarray(load(data, seed).inputs), seed, results=results)


def numeric_evidence(id: str, data: str, seed: int, results: Path | None = None, *, paper: str) -> list[Evidence]:
    """The numeric evidence of a claim, in float64, with arrays of NumPy.

    Args:
        id: the claim's id.
        data: name or path of the data set, as `lngeom.claims.data.load` takes it.
        seed: of the random parameters.
        results: folder of the experiments' results.
        paper: what the claim's paper is found by (`lngeom.claims.papers.find`).

    Returns:
        Evidence.

    Raises:
        ValueError: if this process knows no such claim.
        NoResults: if the claim needs results of experiments that are not there.
    """
    (claim,) = all_claims(id=id, paper=find(paper).id)
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        return [_in_numpy(evidence) for evidence in numbers(claim, _problem(data, seed, results))]


def _in_numpy(evidence: Evidence) -> Evidence:
    """Arrays of JAX would lose digits in a process whose default is float32."""
    matrices = {name: np.asarray(value) for name, value in evidence.matrices.items()}
    curves = {name: (np.asarray(x), np.asarray(y)) for name, (x, y) in evidence.curves.items()}
    return replace(evidence, matrices=matrices, curves=curves)
