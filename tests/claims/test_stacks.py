"""Null spaces of stacks: a family of symmetries that is left out, or wrong, turns the claim into a clash."""

from dataclasses import replace

import pytest
from lngeom.claims import Verdict, all_claims, run
from lngeom.transformers import nullspace
from lngeom.transformers.symmetries import symmetries

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("fault", ["left out", "wrong sign"])
def test_a_planted_fault_is_a_clash(problem, monkeypatch, fault):
    claim = all_claims(id="nullspace.stacks")[0]
    assert run(claim, problem).as_recorded

    def faulty(arrays):
        for family in symmetries(arrays):
            if family.code != "O":
                yield family
            elif fault == "wrong sign":

                def flipped(c, family=family):
                    first, *others, last = family.tangents(c)
                    return [first, *others, last._replace(value=-last.value)]

                yield replace(family, tangents=flipped)

    monkeypatch.setattr(nullspace, "symmetries", faulty)
    found = run(claim, problem)
    assert not found.error
    assert found.verdict is Verdict.CLASH
