"""Norms that are functions, in a forward pass of torch, are rows of their own; so are those that return containers."""

import collections
import dataclasses
from typing import Any

import lngeom as lg
import numpy as np
import pytest
from flax import nnx

from tests.checks.test_places import checked, gain, module, normal, rms


def net(forward, **parameters) -> Any:
    """A torch model with a linear layer, and parameters and buffers of eight values."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(5, 8)
            for name, value in parameters.items():
                setattr(self, name, nn.Parameter(torch.full((8,), float(value))))
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("var", torch.ones(8))

        def forward(self, x):
            return forward(self, self.mix(x))

    return Net()


@pytest.mark.peers
def test_functional_norms_are_rows_at_the_module_in_which_they_are_called():
    import torch
    import torch.nn.functional as F

    def forward(self, x):
        x = F.batch_norm(x, self.mean, self.var, self.weight, self.bias, self.training)
        x = torch.relu(F.layer_norm(x, (8,), self.weight))
        x = F.group_norm(x + torch.arange(8), 2) + torch.arange(8)
        for _ in range(2):
            x = torch.tanh(torch.group_norm(x, 4, self.weight))
        return F.rms_norm(x, (8,), 1 + self.weight)[:, :2]

    model = net(forward, weight=1.5, bias=0.5)
    model.mean[0] = 0.25
    report = lg.check_model(torch.nn.Sequential(model), normal(9, 5))
    found = {n.path: (n.like, n.calls) for n in report.norms if "→" not in n.path}
    assert found == {
        "0.batch_norm()": ("bn", 1),
        "0.layer_norm()": ("ln", 1),
        "0.group_norm()": ("gn", 1),
        "0.group_norm() 2": ("gn", 2),
        "0.rms_norm()": ("rms", 1),
    }
    assert not report.differs, str(report)
    assert "0.mix → 0.batch_norm()" in {n.path for n in report.norms}
    assert (float(model.mean[0]), float(model.mean[1]), model.training) == (0.25, 0.0, True)


@pytest.mark.peers
def test_normalize_is_a_norm_wherever_it_is_called():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.full((8,), 1.5))

        def forward(self, x):
            return F.normalize(x, dim=-1) * 8**0.5 * self.gain

    cosine = net(lambda self, x: F.linear(F.normalize(x, dim=-1), self.mix.weight.T))
    report = lg.check_model(nn.Sequential(cosine, nn.Linear(5, 8), RMSNorm()), normal(9, 5))
    found = {n.path: n.like for n in report.norms if "→" not in n.path}
    assert found == {"0.normalize()": "rms", "2": "rms"}
    assert not report.differs, str(report)


@pytest.mark.peers
def test_a_functional_norm_within_a_norm_is_not_listed_twice():
    import torch.nn.functional as F
    from torch import nn

    class LayerNorm2d(nn.LayerNorm):
        def forward(self, x):
            return F.layer_norm(x.permute(0, 2, 3, 1), (8,), self.weight, self.bias).permute(0, 3, 1, 2)

    report = lg.check_model(nn.Sequential(LayerNorm2d(8), nn.BatchNorm2d(8)), normal(6, 8, 4, 4))
    assert [n.path for n in report.norms] == ["0", "1"]
    assert not report.differs, str(report)


@pytest.mark.peers
def test_a_fault_of_a_functional_norm_is_found():
    import torch
    import torch.nn.functional as F

    model = net(lambda self, x: F.batch_norm(x, self.mean, self.var, training=True)[:, :3])
    linted = lg.lint(model, normal(9, 5))
    assert ("batch_norm()", "sample-leak") in {(f.path, f.rule) for f in linted.findings}
    decayed = net(lambda self, x: F.layer_norm(x, (8,), self.weight)[:, :3], weight=1.5)
    optimizer = torch.optim.AdamW(decayed.parameters(), weight_decay=0.1)
    found = lg.lint(decayed, normal(9, 5), decay=optimizer)
    assert ("layer_norm()", "decay-on-gains") in {(f.path, f.rule) for f in found.findings}, str(found)
    assert not found.unchecked


@dataclasses.dataclass
class Output:
    hidden: object
    size: int = 0


class Whole(collections.OrderedDict):
    """A dict that JAX takes for a leaf."""


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda y: Output(y, 3), lambda out: out.hidden),
        (lambda y: Whole(hidden=y, size=3), lambda out: out["hidden"]),
        (lambda y: Output(Whole(a=[y])), lambda out: out.hidden["a"][0]),
        (collections.namedtuple("Named", ["hidden"]), lambda out: out.hidden),
    ],
    ids=["dataclass", "dict", "nested", "named tuple"],
)
def test_a_norm_that_returns_a_container_is_examined(pack, unpack):
    class Net(nnx.Module):
        def __init__(self):
            self.norm = module("RMSNorm", lambda norm, x: pack(rms(x) * gain(norm, x)))

        def __call__(self, x):
            return unpack(self.norm(x)) + 1

    report = lg.check_model(Net(), normal(6, 8))
    assert checked(report) == ["norm"]
    assert (report["norm"].like, report.differs) == ("rms", False)


@pytest.mark.peers
def test_a_norm_of_torch_that_returns_a_dataclass_is_examined():
    import torch
    from torch import nn

    class RMSNorm(nn.RMSNorm):
        def forward(self, x):
            return Output(super().forward(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = RMSNorm(8)

        def forward(self, x):
            return torch.relu(self.norm(x).hidden)

    report = lg.check_model(Net(), normal(6, 8))
    assert checked(report) == ["norm"]
    assert (report["norm"].like, report.differs) == ("rms", False)
    assert np.isfinite(report["norm"].eps_share)
