"""Derivatives of layers beside differences of their outputs: faults are named, right layers are not accused."""

import functools
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks import check_derivatives
from lngeom.checks.derivatives import Answer
from lngeom.checks.derivatives.differences import Differences, Stencils
from lngeom.checks.subject import Opened, Subject, as_elsewhere
from lngeom.methods.composed import ResidualLayerNorm

from tests.checks.faulty_derivatives import BATCH, EVALUATION, FAULTS, LAYER, RMS, H, subject

QUICK = {"constants", "no gain", "gain mean", "cut"}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in FAULTS])
def test_a_fault_is_found_and_named(name):
    fault = FAULTS[name]
    report = check_derivatives(subject(fault.norm, fault.backward(fault.norm)))
    assert report.wrong
    assert fault.words in " ".join(report.diagnosis)


def test_a_layer_with_as_many_units_as_inputs():
    report = check_derivatives(ResidualLayerNorm())
    assert report.checked
    assert report.wrong == ()


def test_fifteen_public_reports_are_among_the_faults():
    assert len({fault.source for fault in FAULTS.values() if fault.source}) >= 15


@pytest.mark.parametrize("masked", [True, False])
def test_a_gain_whose_gradient_forgets_the_mask_is_named(masked):
    keep = jnp.array([[1.0], [1.0], [0.0]])
    norm = jax.custom_vjp(lambda a, gain: LAYER.parts(a)[0] * gain * keep)

    def backward(kept, c):
        a, gain = kept
        by_inputs, by_gain, _ = LAYER.right(a, gain, c * keep)
        return by_inputs, by_gain if masked else LAYER.right(a, gain, c)[1]

    norm.defvjp(lambda a, gain: (norm(a, gain), (a, gain)), backward)
    opened = Opened({"gain": np.ones(H)}, lambda p, a: norm(a, p["gain"]))
    report = check_derivatives(Subject("masked", opened.closed(), False, units=H, opened=(opened,)))
    said = "Gradient in gain: rows that do not reach the outputs are counted, as without the mask."
    assert (said in report.diagnosis) == bool(report.wrong) == (not masked)


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("constants", "it breaks ⟨1, ∂L/∂x⟩ = 0, which the outputs' invariance demands ("),
        ("constants of the batch", "it breaks ⟨1, ∂L/∂x⟩ = 0, which the outputs' invariance demands ("),
        (
            "cut",
            "jvp∘vjp, vjp∘vjp break D²f[x, v] = −Df[v] for x and v of row 0, which the outputs' invariance demands.",
        ),
    ],
)
def test_an_identity_that_is_broken_is_named(name, identity):
    fault = FAULTS[name]
    report = check_derivatives(subject(fault.norm, fault.backward(fault.norm)))
    assert identity in " ".join(report.diagnosis)
    assert ("in unit 0" in " ".join(report.diagnosis)) == (fault.norm is BATCH)


@pytest.mark.parametrize("norm", [LAYER, pytest.param(RMS, marks=pytest.mark.thorough), BATCH, EVALUATION])
def test_a_backward_pass_by_hand_without_a_fault_is_right(norm):
    report = check_derivatives(subject(norm, norm.right))
    assert not report.wrong
    assert report.diagnosis == ()
    assert report["vjp∘vjp"].answer is Answer.RIGHT
    assert report["jvp"].answer is Answer.UNDEFINED  # JAX has no forward mode for a backward pass by hand
    assert "forward-mode" in report["jvp"].note


@pytest.mark.parametrize(
    "layer",
    [lg.nn.LayerNorm(6), pytest.param(lg.normalizers.RMSNorm(), marks=pytest.mark.thorough), "flax.nnx:RMSNorm"],
)
def test_stock_layers_are_right(layer):
    report = check_derivatives(layer)
    assert not report.wrong
    assert {r.order for r in report.results if r.answer is Answer.RIGHT} == {0, 1, 2, 3}
    assert {r.dtype for r in report.results} == {"float64", "float32"}


def test_a_gradient_that_is_no_number_where_outputs_are_finite():
    def layer(a):
        return a / (jnp.sqrt(jnp.sum((a - a.mean(-1, keepdims=True)) ** 2, -1, keepdims=True)) + 1e-2)

    report = check_derivatives(layer)
    assert any(
        "At a row and a column of equal values, where the outputs are finite, jvp, vjp" in s for s in report.diagnosis
    )


def test_outputs_that_are_wrong_under_vmap(tmp_path, monkeypatch):
    (tmp_path / "mybatched.py").write_text(
        "import jax\n"
        "@jax.custom_batching.custom_vmap\n"
        "def double(a):\n    return 2 * a\n"
        "@double.def_vmap\n"
        "def rule(size, batched, a):\n    return 2 * a[::-1], True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    report = check_derivatives("mybatched:double")
    assert "vmap(f)" in {r.route for r in report.wrong}
    assert "Right alone, wrong under vmap: vmap(f)" in " ".join(report.diagnosis)
    assert report.code == ""


def test_the_program_shows_the_fault(tmp_path, monkeypatch):
    (tmp_path / "mynorm.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "@jax.custom_vjp\n"
        "def norm(a):\n    return a / jnp.sqrt(jnp.mean(a**2, -1, keepdims=True) + 1e-5)\n"
        "norm.defvjp(lambda a: (norm(a), a), lambda a, c: (c / jnp.sqrt(jnp.mean(a**2, -1, keepdims=True)),))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    report = check_derivatives("mynorm:norm")
    assert "mean and variance of a row are treated as constants" in " ".join(report.diagnosis)
    assert "from mynorm import norm as f" in report.code
    with jax.enable_x64(True), pytest.raises(AssertionError):
        exec(report.code.replace('jax.config.update("jax_enable_x64", True)', ""), {})


@pytest.mark.parametrize("width", [40, 80, 120])
def test_text_fits(width):
    fault = FAULTS["constants"]
    report = check_derivatives(subject(fault.norm, fault.backward(fault.norm)))
    assert max(map(len, report.to_text(width).splitlines())) <= width


def test_bad_input():
    with pytest.raises(ValueError, match="dtype must be one of float64"):
        check_derivatives(lg.nn.LayerNorm(6), dtype="int32")
    with pytest.raises(ValueError, match="no function that JAX or torch differentiates"):
        check_derivatives(lambda a: np.asarray(a) / np.std(np.asarray(a), -1, keepdims=True))
    with pytest.raises(ValueError, match="not finite for ordinary inputs"):
        check_derivatives(lambda a: a * jnp.nan)
    with pytest.raises(ValueError, match="layers is empty"):
        lg.checks.parametrize_with_derivatives([])
    with pytest.raises(KeyError, match="no route 'hvp'"):
        check_derivatives(lambda a: a * 2.0)["hvp"]


def from_backward(forward, backward):
    """A function of JAX with its own backward pass."""
    f = jax.custom_vjp(forward)
    f.defvjp(lambda a: (forward(a), a), backward)
    return f


def test_a_wrong_second_derivative_of_a_linear_layer():
    wave = lambda a, c: (3 * c + (jnp.sin(a) - jax.lax.stop_gradient(jnp.sin(a))) * c,)  # noqa: E731
    report = check_derivatives(from_backward(lambda a: 3 * a, wave))
    assert report["vjp"].answer is Answer.RIGHT
    assert report["vjp∘vjp"].answer is Answer.WRONG
    assert not check_derivatives(lambda a: 3 * a).wrong


def test_one_entry_of_many_is_seen():
    double = lambda a, c: (c.at[-1, -1].multiply(2),)  # noqa: E731
    report = check_derivatives(from_backward(lambda a: 1 * a, double), units=64)
    assert report["vjp"].answer is Answer.WRONG
    assert report["vjp"].argument == "all arguments together"


def test_an_input_that_is_kept_in_16_bits():
    def backward(a, c):
        kept = a.astype(jnp.bfloat16).astype(a.dtype)
        return (c * 2 * kept,)

    report = check_derivatives(from_backward(lambda a: a**2, backward))
    assert "as a tensor kept in bfloat16 makes it" in " ".join(report.diagnosis)


def test_outputs_that_are_not_finite_in_a_dtype_are_no_evidence():
    report = check_derivatives(lambda a: a * 1e5, dtype="float16")
    assert not report.wrong
    assert {r.note for r in report.results if r.dtype == "float16" and not r.point} == {
        "outputs are not finite in float16"
    }


@pytest.mark.parametrize("layer", [lambda a: jnp.maximum(a, 0.0), lambda a: a * 2.0, jax.nn.softmax, jnp.tanh])
def test_functions_without_a_norm_are_right(layer):
    report = check_derivatives(layer)
    assert not report.wrong
    assert all(r.answer is Answer.RIGHT for r in report.results if not r.point and r.order < 3)


def test_what_is_no_array_of_numbers_is_refused():
    for layer, said in (
        (lambda a: jnp.argmax(a, -1), "one array of floating numbers is expected of a layer; got int"),
        (lambda a: (a, a), "one array of floating numbers is expected of a layer; got tuple"),
        (lambda a: a[:0], "has no outputs"),
    ):
        with pytest.raises(ValueError, match=said):
            check_derivatives(layer)
    for name, value in (("units", 0), ("units", 2.5), ("seed", -1), ("positions", True)):
        with pytest.raises(ValueError, match=f"{name} must be a whole number"):
            check_derivatives(lambda a: a, **{name: value})
    with pytest.raises(ValueError, match="dtype must be one of"):
        check_derivatives(lambda a: a, dtype=None)


def test_the_decorator_fails_with_the_diagnosis():
    fault = FAULTS["no gain"]
    mark = lg.checks.parametrize_with_derivatives([subject(fault.norm, fault.backward(fault.norm))]).mark
    layer, check = mark.args[1][0].values
    assert isinstance(layer, Subject)
    with pytest.raises(AssertionError, match="as if gain were 1"):
        check(layer)


@pytest.mark.parametrize(
    ("kind", "spike"), [(Differences, 1.0), (Differences, 1e-2), (Differences, 1e-4), (Stencils, 1.0), (Stencils, 1e-2)]
)
def test_differences_are_derivatives_and_know_their_error(kind, spike):
    """x / √(x² + s²), flat but for a spike of width s at 0, mixed over two variables."""

    def f(z):
        return np.array([z[0] * z[1] / np.sqrt(z[0] ** 2 + spike**2), np.sin(3 * z[1])])

    def traced(z):
        return jnp.stack([z[0] * z[1] / jnp.sqrt(z[0] ** 2 + spike**2), jnp.sin(3 * z[1])])

    with as_elsewhere():
        x, u, v = np.array([spike / 3, 0.7]), np.array([1.0, -0.5]), np.array([0.3, 2.0])
        first = lambda z: jax.jvp(traced, (z,), (u,))[1]  # noqa: E731
        second = lambda z: jax.jvp(first, (z,), (u,))[1]  # noqa: E731
        mixed = lambda z: jax.jvp(first, (z,), (v,))[1]  # noqa: E731
        exact = first(x), mixed(x), jax.jvp(second, (x,), (v,))[1]
        found = kind(f, x)
        values = found.along(u, 1), found.second(u, v), found.third(u, v)
    for value, true, tolerance in zip(values, exact, (1e-9, 1e-7, 1e-5), strict=True):
        off = np.max(np.abs(value.value - true)) / np.max(np.abs(true))
        assert off <= (tolerance if kind is Differences else 1e-3)
        if kind is Differences:
            assert value.error >= np.max(np.abs(value.value - true)) / 10


def test_a_kink_does_not_settle():
    assert Differences(np.abs, np.zeros(1)).along(np.ones(1), 1).error > 1e-2


@pytest.mark.peers
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("LayerNorm", {"torch.func jvp∘jvp", "torch.func vjp∘jvp"}),
        ("BatchNorm1d", {"torch.func jvp∘jvp", "torch.func vjp∘jvp"}),
        ("RMSNorm", set()),
        ("GroupNorm", set()),
    ],
)
def test_torch(name, wrong):
    """Second derivatives of forward mode, pytorch issue 196700; third ones are in issue 175754."""
    report = check_derivatives(f"torch.nn:{name}")
    assert {r.route for r in report.wrong if r.order <= 2} == wrong
    if wrong:
        assert "Derivatives of first order are right" in report.diagnosis[0]
        assert "autograd vjp∘vjp" not in {r.route for r in report.wrong}
        assert "torch.func" in report.code


@pytest.mark.peers
def test_the_second_derivative_of_weight_norm_in_torch():
    """Wrong in reverse mode over reverse mode by the vector; torch's own check of the fused kernel says so, too."""
    import torch

    torch.manual_seed(0)
    v, g = torch.randn(6, 6, dtype=torch.float64), 1 + torch.rand(6, 1, dtype=torch.float64)
    fused = lambda v, g: torch._weight_norm(v, g, 0)  # noqa: E731
    plain = lambda v, g: v * g / v.norm(dim=1, keepdim=True)  # noqa: E731
    right = [
        torch.autograd.gradgradcheck(f, (v.requires_grad_(), g.requires_grad_()), raise_exception=False)
        for f in (fused, plain)
    ]
    report = check_derivatives(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 6)))
    wrong = {r.route for r in report.wrong if r.order == 2}
    assert right == [not wrong, True]
    assert wrong <= {"autograd vjp∘vjp", "torch.func vjp∘vjp"}


@pytest.mark.peers
@pytest.mark.parametrize("name", ["keras.layers:LayerNormalization", "haiku:RMSNorm", "keras.layers:RMSNormalization"])
def test_peers_are_right(name):
    report = check_derivatives(name)
    assert not report.wrong
    assert report["vjp"].answer is Answer.RIGHT


@pytest.mark.peers
def test_torch_functions():
    import torch

    def function(backward):
        class Made(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x / ((x**2).mean(-1).reshape(-1, 1) + 1e-5) ** 0.5

            @staticmethod
            def backward(ctx, c):
                return backward(ctx.saved_tensors[0], c)

        return lambda x: Made.apply(x)

    def right(x, c):
        s = ((x**2).mean(-1, keepdim=True) + 1e-5) ** 0.5
        return c / s - x * (c * x).mean(-1, keepdim=True) / s**3

    assert not check_derivatives(function(right)).wrong
    plain = check_derivatives(function(lambda x, c: right(x, c) * (1 if torch.is_grad_enabled() else 2)))
    assert {r.route for r in plain.wrong} == {"autograd backward"}
    assert "Gradient in inputs: 2 times the true one" in " ".join(plain.diagnosis)
    assert check_derivatives(function(lambda x, c: c * 17)).wrong  # JAX runs its forward pass alone


@pytest.mark.peers
def test_torch_layers_at_their_limits():
    import torch
    from torch import nn

    for layer in (nn.RMSNorm(1), nn.RMSNorm(1, eps=1e-5), nn.GroupNorm(1, 2), nn.ReLU(inplace=True), nn.Identity()):
        for seed in range(2):
            report = check_derivatives(layer, seed=seed)
            assert not report.wrong, report.to_text(100)
            assert report.checked
    with pytest.raises(ValueError, match="differ for the same inputs"):
        check_derivatives(nn.Dropout(0.5))
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    check_derivatives(module, training=False)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_a_parameter_whose_gradient_is_stopped_on_purpose_is_left_out():
    fault = FAULTS["gain zero"]
    layer = subject(fault.norm, fault.backward(fault.norm))
    assert check_derivatives(layer).wrong
    report = check_derivatives(layer, constant=["gain"])
    assert report.wrong == ()
    assert report.arguments == ("inputs", "bias")
    with pytest.raises(ValueError, match="no parameter scale; it has bias, gain"):
        check_derivatives(layer, constant=["scale"])


def test_the_report_of_invariances_has_derivatives_when_they_are_asked_for(monkeypatch):
    fault = FAULTS["constants"]
    report = lg.check_invariances(subject(fault.norm, fault.backward(fault.norm)), dtype="bfloat16", seed=3)
    assert "derivatives" not in vars(report)
    assert report.derivatives is report.derivatives
    assert "treated as constants" in " ".join(report.derivatives.diagnosis)
    assert {r.dtype for r in report.derivatives.results} == {"float64", "bfloat16"}
    with pytest.raises(ValueError, match="no function that JAX or torch differentiates"):
        lg.check_invariances(lambda a: np.asarray(a) / np.std(np.asarray(a), -1, keepdims=True)).derivatives  # noqa: B018


@pytest.mark.peers
def test_what_torch_refuses_to_differentiate_twice_is_no_zero():
    import torch
    from torch.autograd.function import once_differentiable

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @once_differentiable
        def backward(ctx, c):
            return 2 * ctx.saved_tensors[0] * c

    class Square(torch.nn.Module):
        def forward(self, x):
            return Once.apply(x)

    report = check_derivatives(Square())
    assert report.wrong == (), str(report)
    assert report["autograd backward"].answer is Answer.RIGHT
    assert report["autograd vjp∘vjp"].answer is Answer.UNDEFINED
    assert "once_differentiable" in report["autograd vjp∘vjp"].note


def _with_a_compiler():
    """Whether torch.compile finds a C++ compiler, as its default backend needs one."""
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):
            torch.compile(lambda x: x + 1)(torch.zeros(3))
    except RuntimeError:  # all errors of compilers are
        return False
    return True


@pytest.mark.peers
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])  # the first needs no compiler
def test_a_layer_of_torch_is_differentiated_as_it_is_compiled(backend, monkeypatch, request):
    import torch

    if "torchax" in sys.modules:  # torch.compile does not work beside it
        again = [sys.executable, "-m", "pytest", "-q", "-m", "peers", request.node.nodeid]
        run = subprocess.run(again, cwd=request.config.rootpath, stdout=subprocess.PIPE, text=True, check=False)
        assert run.returncode == 0, run.stdout
        return
    if backend == "inductor" and not _with_a_compiler():
        result = check_derivatives(torch.nn.LayerNorm(6), compiled=True)["torch.compile backward"]
        assert result.answer is Answer.UNDEFINED
        assert "not compiled here" in result.note
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))

    class Norm(torch.nn.Module):
        def __init__(self, breaks=False, cuts=False):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(6))
            self.breaks, self.cuts = breaks, cuts

        def forward(self, x):
            scale = (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            if self.breaks and float(scale.sum()) < 0:  # a branch on data is no single graph
                return x
            if self.cuts and torch.compiler.is_compiling():
                scale = scale.detach()
            return x / scale * self.weight

    right, wrong, broken = (check_derivatives(Norm(*how), compiled=True) for how in ((0, 0), (0, 1), (1, 0)))
    assert right.wrong == (), str(right)
    compiled = [r for r in right.results if r.route == "torch.compile backward" and not r.point]
    assert {(r.dtype, r.answer) for r in compiled} == {("float64", Answer.RIGHT), ("float32", Answer.RIGHT)}
    assert {r.route for r in wrong.wrong} == {"torch.compile backward"}
    assert "treated as constants" in " ".join(wrong.diagnosis)
    assert broken.wrong == ()
    assert broken["torch.compile backward"].answer is Answer.UNDEFINED
    assert "not compiled here" in broken["torch.compile backward"].note
    assert check_derivatives(Norm(0, 1), constant=["weight"], compiled=True).wrong


@pytest.mark.parametrize("kind", [Differences, Stencils])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_and_their_errors_grow_with_the_direction(kind, order):
    point, u = np.array([0.3, -0.2]), np.array([0.6, 0.8])
    around = kind(lambda x: np.array([np.sin(x[0] * x[1]), np.exp(x[0])]), point)
    found = [around.along(factor * u, order) for factor in (1.0, 4.0)]
    assert 0 < found[0].error < 1e-3
    np.testing.assert_allclose(found[1].value, 4**order * found[0].value, rtol=1e-9)
    assert found[1].error == pytest.approx(4**order * found[0].error, rel=1e-9)
