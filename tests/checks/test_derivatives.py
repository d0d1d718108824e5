"""Derivatives of layers beside differences of their outputs: faults are named, right layers are not accused."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks import check_derivatives
from lngeom.checks.derivatives import Answer
from lngeom.checks.derivatives.differences import Differences, Stencils
from lngeom.checks.subject import Subject, as_elsewhere

from tests.checks.faulty_derivatives import BATCH, EVALUATION, FAULTS, LAYER, RMS, subject

QUICK = {"constants", "no gain", "gain mean", "cut"}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in FAULTS])
def test_a_fault_is_found_and_named(name):
    fault = FAULTS[name]
    report = check_derivatives(subject(fault.norm, fault.backward(fault.norm)))
    assert report.wrong
    assert fault.words in " ".join(report.diagnosis)


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
    assert {r.order for r in report.results if r.answer is Answer.RIGHT} == {1, 2, 3}
    assert {r.dtype for r in report.results} == {"float64", "float32"}


def test_a_gradient_that_is_no_number_where_outputs_are_finite():
    def layer(a):
        return a / (jnp.sqrt(jnp.sum((a - a.mean(-1, keepdims=True)) ** 2, -1, keepdims=True)) + 1e-2)

    report = check_derivatives(layer)
    assert any(
        "At a row and a column of equal values, where the outputs are finite, jvp, vjp" in s for s in report.diagnosis
    )


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
    with pytest.raises(ValueError, match="dtype must be float64"):
        check_derivatives(lg.nn.LayerNorm(6), dtype="int32")
    with pytest.raises(ValueError, match="no function that JAX or torch differentiates"):
        check_derivatives(lambda a: np.asarray(a) / np.std(np.asarray(a), -1, keepdims=True))
    with pytest.raises(ValueError, match="not finite for ordinary inputs"):
        check_derivatives(lambda a: a * jnp.nan)
    with pytest.raises(ValueError, match="layers is empty"):
        lg.checks.parametrize_with_derivatives([])
    with pytest.raises(KeyError, match="no route 'hvp'"):
        check_derivatives(lambda a: a * 2.0)["hvp"]


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
@pytest.mark.parametrize("name", ["keras.layers:LayerNormalization", "haiku:RMSNorm", "keras.layers:RMSNormalization"])
def test_peers_are_right(name):
    report = check_derivatives(name)
    assert not report.wrong
    assert report["vjp"].answer is Answer.RIGHT
