"""The table of doors: literal answers are right, and every planted fault is seen."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from analysis.measurements.doors import CLOSE, DOORS, MODELS, cell, doors, page


@pytest.mark.thorough
def test_faults_in_answers_are_seen():
    faults = {
        "fisher": lambda v: v.at[0].add(1e-3),
        "matrix": lambda F: F.at[3, 4].multiply(1.01),
        "diagonal": lambda d: d[:-1],
        "rank": lambda r: int(r) + 1,
        "null space": lambda null: replace(null, basis=jnp.roll(null.basis, 1, 0)),
        "loader": lambda F: F / 2,
        "laplace": lambda z: z + 1e-3,
    }
    made = MODELS["tied autoencoder, JAX"]()
    seen = []
    for door, call, distance in doors(made):
        seen.append(door)
        if door in faults:
            answer = call()
            assert distance(answer) <= CLOSE, door
            assert distance(faults[door](answer)) > CLOSE, door
    assert tuple(seen) == DOORS
    assert np.isfinite(made.J).all()


def test_cells_say_what_is_wrong_and_what_is_refused():
    right, wrong, refused = (
        {"off": 1e-12, "close": CLOSE, "cold": 2.0, "warm": 0.1},
        {"off": 1.0, "close": CLOSE, "cold": 2.0, "warm": 0.1},
        {"refused": "no"},
    )
    assert [cell(each) for each in (right, wrong, refused)] == ["2.0 / 0.1", "WRONG 2.0 / 0.1", "refused"]
    found = dict.fromkeys(DOORS, right) | {"rank": wrong, "plan": refused}
    text = page({"model": {"parameters": 3, "doors": found}})
    assert "9 answers: 8 right, 0 refused, 1 wrong" in text
    assert "- model, plan: no" in text
