"""Derivatives of norms in their place in models: faults are found there, and right norms are not accused."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks.derivatives import in_place
from lngeom.checks.derivatives.report import Answer

from tests.linting.bugs import BUGS, PLANTED, normal

ROUTES = {"jvp", "vjp", "jvp∘jvp", "jvp∘vjp", "vjp∘jvp", "vjp∘vjp", "vjp∘vjp in c"}


def planted(name, mended):
    (found,) = [bug for bug in (*BUGS, *PLANTED) if bug.issue == f"planted: {name}"]
    return found.build(mended)[:2]


def blocks(*norms):
    linear = lambda: eqx.nn.Linear(8, 8, dtype=jnp.float32, key=jax.random.key(0))  # noqa: E731
    return eqx.nn.Sequential([layer for norm in norms for layer in (linear(), norm)])


X = normal(5, 8).astype(np.float32)


def test_a_wrong_gradient_is_named_at_its_norm():
    norm, _ = planted("gradient_as_if_the_gain_were_one", mended=False)
    report = lg.check_model(blocks(eqx.nn.RMSNorm(8, use_bias=False), norm), X, derivatives=True)
    assert report["layers.1"].derivatives.wrong == ()
    assert {r.route for r in report["layers.3"].derivatives.wrong} >= {"vjp"}
    assert report.differs
    assert "layers.3: Of first order vjp, vjp∘vjp in c are wrong" in str(report)
    assert "as if weight were 1" in str(report)
    cells = [row["derivatives"] for row in json.loads(json.dumps(report.rows(), allow_nan=False))]
    assert [cell["wrong"] != [] for cell in cells if cell] == [False, True]


def test_right_norms_are_not_accused_in_any_mode_or_order():
    norm, _ = planted("gradient_as_if_the_gain_were_one", mended=True)
    report = lg.check_model(blocks(eqx.nn.LayerNorm(8), norm), X, derivatives=True)
    assert not report.differs
    results = report["layers.1"].derivatives.results
    assert {r.route for r in results if r.dtype == "float64"} == ROUTES
    assert {r.dtype for r in results} == {"float64", "float32"}
    assert {r.answer for r in results} == {Answer.RIGHT}
    assert "Derivatives at inputs in the model, 2 norms of 2 kinds: all " in str(report)


def test_derivatives_are_checked_when_they_are_asked_for():
    report = lg.check_model(blocks(eqx.nn.LayerNorm(8)), X)
    assert report["layers.1"].derivatives is None
    assert str(report).endswith("No derivatives were checked; check_model(..., derivatives=True) checks them.")


def test_norms_of_one_kind_are_checked_once(monkeypatch):
    seen = []

    def counted(placed, *rest):
        seen.append(placed.layer.path)
        return checked(placed, *rest)

    checked = in_place.derivatives_of
    monkeypatch.setattr(in_place, "derivatives_of", counted)
    norms = [eqx.nn.LayerNorm(8), eqx.nn.LayerNorm(8), eqx.nn.LayerNorm(8, eps=1e-3), eqx.nn.RMSNorm(8)]
    report = lg.check_model(blocks(*norms), X, derivatives=True)
    assert seen == ["layers.1", "layers.5", "layers.7"]
    assert report["layers.3"].derivatives is report["layers.1"].derivatives


@pytest.mark.parametrize("scale", [1.0, *(pytest.param(s, marks=pytest.mark.thorough) for s in (1e-4, 1e4))])
@pytest.mark.parametrize("shape", [(6, 8), (5, 4, 8), (4, 3, 3, 8)], ids=str)
def test_inputs_of_any_size_and_shape(shape, scale):
    from flax import nnx

    model = nnx.Sequential(nnx.GroupNorm(8, num_groups=2, rngs=nnx.Rngs(0)), nnx.RMSNorm(8, rngs=nnx.Rngs(0)))
    report = lg.check_model(model, normal(*shape, scale=scale).astype(np.float32), derivatives=True)
    for norm in report.norms:
        assert norm.derivatives is not None, norm.note
        assert norm.derivatives.wrong == (), norm.derivatives.to_text(100)
        assert norm.derivatives["vjp"].answer is Answer.RIGHT


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_derivatives_are_those_at_the_inputs_of_the_model(scale):
    normalized = lambda x: x / jnp.sqrt(jnp.mean(x**2) + 1e-6)  # noqa: E731
    norm = jax.custom_vjp(normalized)

    def backward(x, c):
        factor = jnp.where(jnp.max(jnp.abs(x)) > 100, 2, 1).astype(x.dtype)  # wrong for large inputs alone
        return (factor * jax.vjp(normalized, x)[1](c)[0],)

    norm.defvjp(lambda x: (norm(x), x), backward)

    class RMSNorm(eqx.Module):
        def __call__(self, x):
            return norm(x)

    report = lg.check_model(RMSNorm(), (scale * X).astype(np.float32), derivatives=True)
    assert report.differs == (scale > 1)
    assert ("2 times the true one" in str(report)) == (scale > 1)


def test_what_cannot_be_compared_is_said():
    def halved(x):
        return (x.astype(jnp.bfloat16) / jnp.sqrt(jnp.mean(x.astype(jnp.bfloat16) ** 2))).astype(x.dtype)

    class HalfNorm(eqx.Module):
        def __call__(self, x):
            return halved(x)

    report = lg.check_model(HalfNorm(), X, derivatives=True)
    assert "its derivatives could not be checked: it computes in 16 bits" in report[""].note
    assert report[""].derivatives is None
    assert "wrong-gradient" not in str(lg.lint(HalfNorm(), X))


@pytest.mark.peers
def test_norms_of_torch_in_place():
    from torch import nn

    layers = [nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.Flatten(2)]
    model = nn.Sequential(*layers, nn.LayerNorm(16), nn.RMSNorm(16))
    for training in (True, False):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        report = lg.check_model(model, normal(7, 3, 4, 4), training=training, derivatives=True)
        assert all(bool((v == before[k]).all()) for k, v in model.state_dict().items())
        found = {n.kind: n.derivatives for n in report.norms if n.derivatives}
        assert set(found) == {"BatchNorm2d", "GroupNorm", "InstanceNorm2d", "LayerNorm", "RMSNorm"}
        for kind, derivatives in found.items():
            wrong = {r.route for r in derivatives.wrong}
            forward = {"torch.func jvp∘jvp", "torch.func vjp∘jvp"}  # pytorch issue 196700
            evaluated = kind == "BatchNorm2d" and not training
            assert wrong == (set() if kind in {"GroupNorm", "RMSNorm"} or evaluated else forward), str(derivatives)
            for route in ("autograd backward", "torch.func jvp", "torch.func vjp"):
                assert derivatives[route].answer is Answer.RIGHT


@pytest.mark.peers
def test_running_statistics_of_a_function_of_torch_stay():
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("variance", torch.ones(8))

        def forward(self, x):
            return torch.nn.functional.batch_norm(x, self.mean, self.variance, training=self.training)

    model = Net()
    report = lg.check_model(model, normal(6, 8), derivatives=True)
    found = next(n.derivatives for n in report.norms if n.derivatives)
    assert found["torch.func jvp"].answer is found["autograd backward"].answer is Answer.RIGHT
    assert not model.mean.any()


@pytest.mark.peers
def test_a_wrong_backward_pass_of_torch_in_place():
    model, inputs = planted("statistics_are_constants_in_the_backward_pass", mended=False)
    report = lg.check_model(model, inputs, derivatives=True)
    assert "0 and 1 more of its kind: Of first order autograd vjp, autograd backward" in str(report)
    assert "mean and variance of a row are treated as constants" in str(report)


@pytest.mark.peers
@pytest.mark.parametrize("axes", [(0, 2, 1), (0, 1, 2)], ids=["channels last in memory", "in order"])
def test_a_function_of_torch_and_a_wide_norm(axes):
    import torch
    import torch.nn.functional as F

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(200))

        def forward(self, x):
            return F.rms_norm(x.permute(axes), (200,), self.weight)

    shape = np.array((6, 3, 200))[np.argsort(axes)]
    found = lg.check_model(Wide(), normal(*shape), derivatives=True).norms[-1].derivatives
    assert found.wrong == ()
    assert found["autograd backward"].answer is Answer.RIGHT


@pytest.mark.parametrize("short", [True, False])
def test_a_backward_pass_that_overflows_under_loss_scaling_is_found_in_jax(short):
    width = jnp.float16 if short else jnp.float32

    @jax.custom_vjp
    def norm(x):
        return (x / scale_of(x)).astype(x.dtype)

    def scale_of(x):
        return jnp.sqrt(jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True))

    def backward(x, c):
        along = jnp.mean((c.astype(width) * x.astype(width)).astype(jnp.float32), -1, keepdims=True)
        scale = scale_of(x)
        return (((c - x * along / scale**2) / scale).astype(x.dtype),)

    norm.defvjp(lambda x: (norm(x), x), backward)

    class RMSNorm(eqx.Module):
        def __call__(self, x, key=None):
            return norm(x)

    found = lg.lint(RMSNorm(), (1000 * X).astype(np.float16), rules=["scaled-gradient"])
    assert [f.rule for f in found.findings] == ["scaled-gradient"] * short, str(found)
    if short:
        assert "gradients in its inputs are not finite; the true ones, up to" in found.findings[0].consequence


@pytest.mark.peers
@pytest.mark.parametrize("short", [True, False])
def test_a_backward_pass_that_overflows_is_found_under_autocast(short):
    import torch

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x / x.float().square().mean(-1, keepdim=True).sqrt()).to(x.dtype)

        @staticmethod
        def backward(ctx, c):
            (x,) = ctx.saved_tensors
            scale = x.float().square().mean(-1, keepdim=True).sqrt()
            products = c * x if short else c.float() * x.float()
            return ((c - x * products.float().mean(-1, keepdim=True) / scale**2) / scale).to(x.dtype)

    class RMSNorm(torch.nn.Module):
        def forward(self, x):
            return Made.apply(x)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(X.shape[-1], 8), RMSNorm()

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.float16):
                return self.norm(self.linear(x))

    torch.manual_seed(0)
    found = lg.lint(Model(), (1000 * X).astype(np.float32), rules=["scaled-gradient"])
    assert [f.rule for f in found.findings] == ["scaled-gradient"] * short, str(found)
