"""A method that is added on one page has a Fisher matrix, a row, proofs, claims, a reference and a null space."""

import json
import subprocess
import sys

import pytest

ASK = """
import json
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from tests.cases import definition, metric_of
from tests.new_methods import L1LayerNorm, L1WeightNorm
import lngeom as lg
from lngeom.claims import Problem, all_claims, run
from lngeom.claims.proofs import proof_of
from lngeom.cli.commands.where import find

X = jax.random.normal(jax.random.key(0), (40, 5))
answers = {}
for kind, name in ((L1LayerNorm, "l1"), (L1WeightNorm, "l1_weight")):
    model = lg.NormalizedGLM(kind(), lg.families.Bernoulli())
    params = model.init(jax.random.key(1), inputs=5, outputs=6)
    F = lg.fisher(model, params, X)
    defined = np.asarray(definition(model.natural_parameters, metric_of(model.family))(params, X))
    problem = Problem(X, seed=1)
    claims = [claim for claim in all_claims("all") if claim.id.startswith(f"extended.{name}.")]
    cells = lg.normalizers.METHODS[name].cells
    try:
        predicted = lg.predicted_nullspace(model, params, X).dimension
    except ValueError as refusal:
        predicted = str(refusal)
    answers[name] = {
        "error": float(np.abs(F.as_matrix() - defined).max()),
        "null": len(defined) - int(F.rank()),
        "predicted": predicted,
        "cells": len(cells),
        "claims": len(claims),
        "as recorded": all(run(claim, problem).as_recorded for claim in claims),
        "proved": sum(proof_of(claim.id) is not None for claim in claims),
        "checked": not lg.check_invariances(kind(), like=name).differs,
        "path": str(find(name)[0].file),
    }
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers():
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_page_is_all_that_a_layer_norm_of_another_kind_needs(answers):
    found = answers["l1"]
    assert found["error"] < 1e-14
    assert found["null"] == 6
    assert "no theory of the null space for L1LayerNorm" in found["predicted"]
    assert found["cells"] == 14
    assert found["claims"] == 21
    assert found["as recorded"]
    assert found["proved"] >= 14
    assert found["checked"]


def test_a_page_is_all_that_a_weight_norm_of_another_kind_needs(answers):
    found = answers["l1_weight"]
    assert found["error"] < 1e-14
    assert found["null"] == found["predicted"] == 6
    assert found["claims"] == 21
    assert found["as recorded"]
    assert found["checked"]
