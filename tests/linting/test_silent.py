"""Models without the mistake that a rule could take for it."""

import warnings

import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest

from tests.linting.bugs import normal

single = lambda *shape, **k: normal(*shape, **k).astype(np.float32)  # noqa: E731


def rules(report):
    assert report.unchecked == (), str(report)
    return [f.rule for f in report.findings]


@pytest.mark.peers
def test_the_axis_of_channels_is_not_read_from_the_name_of_a_class():
    import torch
    from torch import nn

    class Conv1D(nn.Module):  # the linear layer of GPT-2
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, x):
            return x @ self.weight

    class LinearAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return self.q(x) * x.softmax(-1)

    class DenseBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return x + self.c(x)

    assert rules(lg.lint(nn.Sequential(nn.LayerNorm(8), Conv1D()), normal(3, 5, 8))) == []
    only = ["wrong-axis"]
    assert rules(lg.lint(nn.Sequential(nn.GroupNorm(1, 4), LinearAttention()), normal(4, 4, 7, 9), rules=only)) == []
    assert rules(lg.lint(nn.Sequential(DenseBlock(), nn.BatchNorm2d(4)), normal(4, 4, 7, 9), rules=only)) == []


@pytest.mark.parametrize("kind", ["LayerNorm", "GroupNorm", "BatchNorm"])
def test_the_rounding_of_short_outputs_is_no_cancellation(kind):
    from flax import linen

    options = {"LayerNorm": {}, "GroupNorm": {"num_groups": 2}, "BatchNorm": {"use_running_average": False}}[kind]
    norm, X = getattr(linen, kind)(dtype=jnp.bfloat16, **options), single(4, 5, 8)
    assert rules(lg.lint(norm, X, rules=["cancellation"])) == []
    assert "outputs are up to" not in lg.check_model(norm, X).norms[0].note


def test_cancellation_shows_in_short_outputs_where_it_is_more_than_their_rounding():
    from flax import linen

    norm, X = linen.LayerNorm(dtype=jnp.bfloat16), single(6, 8, scale=0.5, offset=1449.0)
    found = lg.lint(norm, X, rules=["cancellation"])
    assert rules(found) == ["cancellation"]


@pytest.mark.peers
def test_a_norm_of_one_value_has_no_dead_gain():
    from torch import nn

    assert rules(lg.lint(nn.Sequential(nn.Linear(6, 1), nn.LayerNorm(1)), normal(9, 6), rules=["dead-gain"])) == []


@pytest.mark.peers
def test_modulation_by_another_input_is_no_ddof():
    import torch
    from torch import nn

    class AdaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = nn.Linear(4, 8)

        def forward(self, x, c):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.m(c)[:, None])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = AdaRMSNorm()

        def forward(self, x, c):
            return self.n(x, c)

    for seed in (242, 251):  # whose mean square is 1 − 1/8 by chance, up to 1 %
        torch.manual_seed(seed)
        model = Model()
        assert rules(lg.lint(model, (torch.randn(4, 5, 8), torch.randn(4, 4)), rules=["ddof"])) == []


@pytest.mark.peers
def test_numpy_warns_of_nothing():
    from torch import nn

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        half = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8)).half()
        one = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
        for model, X in ((half, normal(4, 3, 9, 9)), (one, normal(16, 3, 1, 1))):
            assert lg.lint(model, X).unchecked == ()
            assert not any("RuntimeWarning" in n.note or "could not" in n.note for n in lg.check_model(model, X).norms)


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("what", ["statistics", "all", "outputs"])
def test_statistics_in_a_shorter_dtype_than_that_of_the_inputs_are_lost_digits(dtype, what):
    import torch
    from torch import nn

    class Norm(nn.LayerNorm):
        def forward(self, x):
            h = x if what == "outputs" else x.to(getattr(torch, dtype))
            n = (h - h.mean(-1, keepdim=True)) * torch.rsqrt(h.var(-1, keepdim=True, unbiased=False) + 1e-5)
            if what == "all":
                n = n.relu()
            elif what == "outputs":
                n = n.to(getattr(torch, dtype))
            return n.float() * self.weight + self.bias

    Norm.__name__ = "LayerNorm"
    short = dtype != "float32"
    assert rules(lg.lint(Norm(8), normal(16, 8))) == (["low-precision"] if short else [])
    report = lg.check_model(Norm(8), normal(16, 8))[""]
    assert ("it computes in a shorter dtype than float32" in report.note) == short, report.note
    assert report.differences == ()


@pytest.mark.peers
@pytest.mark.parametrize("case", ["equal values", "values that overflow", "tiny", "a tiny sample"])
def test_stock_norms_in_short_dtypes_have_no_finding_from_rounding(case):
    import torch
    from torch import nn

    X = normal(6, 8)
    X = {
        "equal values": np.broadcast_to(X[:, :1], X.shape),
        "values that overflow": X - 3e5,
        "tiny": 1e-12 * X,
        "a tiny sample": np.where(np.arange(6)[:, None] == 0, 1e-30, X),
    }[case]
    for norm in (nn.LayerNorm(8).half(), nn.LayerNorm(8).bfloat16(), nn.RMSNorm(8).bfloat16()):
        assert rules(lg.lint(nn.Sequential(norm), X)) in ([], ["epsilon-large"])
    assert torch.isfinite(nn.LayerNorm(8).half()(torch.zeros(1, 8).half())).all()
