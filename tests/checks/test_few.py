"""Sets of one or two values: outputs are constants or signs, which is no evidence against a norm."""

import lngeom as lg
import pytest
from lngeom.checks.findings import Verdict

from tests.checks.test_places import normal

pytestmark = pytest.mark.peers

CASES = {
    "LayerNorm(1)": (lambda nn: nn.LayerNorm(1), (9, 1), "units"),
    "LayerNorm(2)": (lambda nn: nn.LayerNorm(2), (9, 2), "units"),
    "RMSNorm(1)": (lambda nn: nn.RMSNorm(1), (9, 1), "units"),
    "InstanceNorm1d": (lambda nn: nn.InstanceNorm1d(8), (9, 8, 2), "positions"),
    "InstanceNorm2d": (lambda nn: nn.InstanceNorm2d(8, affine=True), (4, 8, 1, 2), "positions"),
    "GroupNorm, one value": (lambda nn: nn.GroupNorm(8, 8), (9, 8), "units in 8 groups"),
    "GroupNorm, one position": (lambda nn: nn.GroupNorm(8, 8), (4, 8, 1, 1), "units in 8 groups, positions"),
    "GroupNorm, two positions": (lambda nn: nn.GroupNorm(8, 8), (4, 8, 1, 2), "units in 8 groups, positions"),
    "GroupNorm, pairs": (lambda nn: nn.GroupNorm(4, 8), (9, 8), "units in 4 groups"),
}


@pytest.mark.parametrize("name", CASES)
def test_sets_of_one_or_two_values_are_no_difference(name):
    from torch import nn

    make, shape, over = CASES[name]
    report = lg.check_model(nn.Sequential(make(nn)), normal(*shape))
    assert not report.differs, str(report)
    assert report["0"].statistics == over
    assert "its statistics are over sets of" in report["0"].note
    assert "no row" not in report["0"].note
    assert not any(r.verdict is Verdict.NOT for r in report["0"].results)
    assert lg.lint(nn.Sequential(make(nn)), normal(*shape)).findings == ()


def test_what_normalizes_nothing_is_not_excused_by_the_size_of_its_sets():
    from torch import nn

    class LayerNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.normalized_shape = (2,)

        def forward(self, x):
            return 2 * x

    assert "weight_matrix_rescaling" in lg.check_model(LayerNorm(), normal(9, 2))[""].differences
