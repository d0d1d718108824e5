"""What torch does to layers: pruning, lazy modules, parametrizations, parameters that follow the first batch."""

import lngeom as lg
import numpy as np
import pytest

from tests.checks.test_places import normal

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("kind", ["LayerNorm", "BatchNorm1d"])
@pytest.mark.parametrize("how", ["pruned", "a buffer of its own"])
def test_a_mask_of_gains_is_no_running_statistic(kind, how):
    import torch
    from torch import nn
    from torch.nn.utils import prune

    class Masked(getattr(nn, kind)):
        def __init__(self):
            super().__init__(8)
            self.register_buffer("kept", torch.tensor([0.0, 1, 1, 1, 0, 1, 1, 1]))

        def forward(self, x):
            return super().forward(x) * self.kept

    Masked.__name__ = kind
    norm = Masked() if how == "a buffer of its own" else getattr(nn, kind)(8)
    if how == "pruned":
        prune.l1_unstructured(norm, "weight", 0.5)
    report = lg.check_model(nn.Sequential(nn.Linear(6, 8), norm), normal(9, 6))["1"]
    assert report.like == ("ln" if kind == "LayerNorm" else "bn"), report.note
    assert (report.differences, report.findings) == ((), ())
    assert "no row" not in report.note
    assert ("a step of training moves running_mean 0.1 of the way" in report.note) == (kind != "LayerNorm")
