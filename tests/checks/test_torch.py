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


@pytest.mark.parametrize("kind", ["one gain", "equal gains", "softplus of gains"])
def test_a_factor_of_the_gain_is_no_defect(kind):
    import torch
    from torch import nn

    class ScaleNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.g = nn.Parameter(torch.full((8,) if kind == "equal gains" else (), 8**0.5))

        def forward(self, x):
            return self.g * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)

    class Softplus(nn.Module):
        def forward(self, w):
            return nn.functional.softplus(w)

    norm = ScaleNorm()
    if kind == "softplus of gains":
        norm = nn.BatchNorm1d(8)
        nn.utils.parametrize.register_parametrization(norm, "weight", Softplus())
    report = lg.check_model(norm, normal(9, 8))
    assert not report.differs, str(report)
    said = "per unit of gain, outputs are 0.35355 times those of RMSNorm: the factor belongs to the gain"
    assert (said in report[""].note) == (kind != "softplus of gains")


def test_an_average_over_all_batches_is_said_to_be_one():
    import torch
    from torch import nn

    norm = nn.BatchNorm1d(8, momentum=None)
    for _ in range(2):
        note = lg.check_model(norm, normal(16, 8))[""].note
        assert "step t of training moves running_mean 1/t of the way to the mean of the batch" in note
        assert "variance of the batch over m − 1, an average over all batches" in note
        for _ in range(9):
            norm(torch.tensor(normal(16, 8)))


@pytest.mark.parametrize("function", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4])
def test_the_share_of_a_default_epsilon_is_that_of_the_dtype_that_runs(function, scale):
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Identity()

        def forward(self, x):
            return nn.functional.rms_norm(self.mix(x), (8,))

    X = scale * normal(9, 8)
    report = lg.check_model(Model() if function else nn.RMSNorm(8), X)
    eps = torch.finfo(torch.float32).eps
    expected = np.median(eps / (np.square(X.astype(np.float64)).mean(1) + eps))
    assert report["rms_norm()" if function else ""].eps_share == pytest.approx(expected, rel=1e-4)


def test_parameters_that_follow_the_first_batch_are_not_checked_before_it():
    import torch
    from torch import nn

    class ActNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.loc, self.scale = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.ones(8))
            self.register_buffer("initialized", torch.tensor(0))

        def forward(self, x):
            if self.training and not self.initialized:
                self.loc.data, self.scale.data = -x.mean(0), 1 / x.std(0)
                self.initialized.fill_(1)
            return (x + self.loc) * self.scale

    model, X = nn.Sequential(nn.Linear(6, 8), ActNorm()), normal(14, 6)
    said = "a call in training mode sets its parameters from the data: call the model in that mode once"
    report = lg.check_model(model, X)["1"]
    assert not report.checked
    assert report.note.startswith(f"could not be checked: {said}")
    found = lg.lint(model, X)
    assert found.findings == ()
    assert [(path, why.startswith(said)) for path, _, why in found.unchecked] == [("1", True)]
    assert not model[1].initialized
    model(torch.tensor(X))
    assert lg.lint(model, X).findings == ()
