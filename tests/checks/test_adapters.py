"""Layers of other packages, as they come: each is like the row of its method."""

import subprocess
import sys

import lngeom as lg
import numpy as np
import pytest
from lngeom.checks import adapt
from lngeom.checks.findings import Verdict

RNG = np.random.default_rng(0)
W, X = RNG.integers(-4, 5, (6, 5)) / 2, RNG.integers(-4, 5, (7, 5)) / 2


def expected(method, a, eps):
    """The textbook formulas, in NumPy."""
    axis = {"batch": 0}.get(method, -1)
    if method == "group":
        a = a.reshape(-1, 2, 3)
    mean = 0 if method == "rms" else a.mean(axis, keepdims=True)
    n = (a - mean) / np.sqrt(np.square(a - mean).mean(axis, keepdims=True) + eps)
    return n.reshape(len(n), -1)


CORE = [
    ("lngeom.nn:LayerNorm", "layer"),
    ("lngeom.nn:BatchNorm", "batch"),
    ("lngeom.nn:GroupNorm", "group"),
    ("equinox.nn:LayerNorm", "layer"),
    ("equinox.nn:GroupNorm", "group"),
    ("equinox.nn:BatchNorm", "batch"),
    ("flax.linen:LayerNorm", "layer"),
    ("flax.linen:BatchNorm", "batch"),
    ("flax.nnx:LayerNorm", "layer"),
    ("flax.nnx:BatchNorm", "batch"),
]
PEERS = [
    ("torch.nn:LayerNorm", "layer"),
    ("torch.nn:BatchNorm1d", "batch"),
    ("torch.nn:GroupNorm", "group"),
    ("torch.nn:RMSNorm", "rms"),
    ("keras.layers:LayerNormalization", "layer"),
    ("keras.layers:BatchNormalization", "batch"),
    ("keras.layers:GroupNormalization", "group"),
    ("haiku:LayerNorm", "layer"),
    ("haiku:BatchNorm", "batch"),
    ("haiku:RMSNorm", "rms"),
]


def is_applied(layer, method):
    subject = adapt(layer)
    outputs = subject(W, X, "float32")
    assert outputs.dtype == np.float32
    eps = subject.eps if subject.eps is not None else 1e-5
    np.testing.assert_allclose(outputs, expected(method, X @ W.T, eps), rtol=1e-4, atol=1e-4)


def differs_from_no_cell(layer, method):
    if method in {"layer", "batch"}:
        report = lg.check_invariances(layer, like=method)
        assert not report.differences, str(report)
        assert not {f.name for f in report.findings} - {"not finite at zero variance"}


@pytest.mark.parametrize(("layer", "method"), CORE)
def test_a_class_is_built_and_applied(layer, method):
    is_applied(layer, method)


@pytest.mark.thorough
@pytest.mark.parametrize("layer", ["flax.linen:LayerNorm", "flax.nnx:BatchNorm", "equinox.nn:LayerNorm"])
def test_a_layer_of_another_package_is_like_its_row(layer):
    differs_from_no_cell(layer, "batch" if "Batch" in layer else "layer")


@pytest.mark.peers
@pytest.mark.parametrize(("layer", "method"), PEERS)
def test_a_class_of_a_peer_is_built_and_applied_and_like_its_row(layer, method):
    is_applied(layer, method)
    differs_from_no_cell(layer, method)


@pytest.mark.parametrize("layer", ["flax.linen:BatchNorm", "flax.nnx:BatchNorm", "lngeom.nn:BatchNorm"])
def test_evaluation_mode_uses_what_is_stored(layer):
    outputs = adapt(layer, training=False)(W, X, "float32")
    np.testing.assert_allclose(outputs, X @ W.T, rtol=1e-4)


def test_an_instance_keeps_its_parameters_and_its_state_after_the_check():
    from flax import nnx

    layer = nnx.BatchNorm(6, rngs=nnx.Rngs(0))
    layer.scale[...] = 3 * layer.scale[...]
    outputs = adapt(layer)(W, X, "float32")
    np.testing.assert_allclose(outputs, 3 * expected("batch", X @ W.T, 1e-5), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(layer.mean[...], 0)


@pytest.mark.peers
def test_a_torch_module_keeps_its_state_and_its_inputs():
    torch = pytest.importorskip("torch")
    layer = torch.nn.BatchNorm1d(6)
    first = adapt(layer)(W, X, "float32")
    assert float(layer.running_mean.abs().max()) == 0
    assert layer.weight.dtype == torch.float32
    assert adapt(layer)(W, X, "bfloat16").dtype.name == "bfloat16"

    class InPlace(torch.nn.Module):
        def forward(self, a):
            return a.sub_(a.mean(-1, keepdim=True))

    report = lg.check_invariances(InPlace())
    assert "writes to its input" in {f.name for f in report.findings}
    assert report["weight_matrix_recentering"].as_expected("I")
    assert np.isfinite(first).all()


@pytest.mark.peers
def test_functions_of_torch_are_called_with_tensors():
    torch = pytest.importorskip("torch")

    def norm(W, X):
        return torch.nn.functional.layer_norm(torch.matmul(X, W.T), (W.shape[0],))

    assert lg.check_invariances(norm, like="layer")["weight_matrix_recentering"].verdict is not Verdict.NOT


def test_positions_are_kept_beside_channels():
    subject = adapt("equinox.nn:GroupNorm", positions=4)
    inputs = RNG.integers(-4, 5, (3, 4, 5)) / 2
    outputs = subject(W, inputs, "float64")
    a = (inputs @ W.T).reshape(3, 4, 2, 3)
    mean, variance = a.mean((1, 3), keepdims=True), a.var((1, 3), keepdims=True)
    np.testing.assert_allclose(outputs, ((a - mean) / np.sqrt(variance + 1e-5)).reshape(3, 4, 6), atol=1e-12)


def test_the_suite_imports_no_package_that_it_does_not_meet():
    code = (
        "import sys, lngeom as lg; suite = lg.checks.suite.Suite(lg.checks.adapt(lg.normalizers.LayerNorm())); "
        "suite.findings; suite.result('weight_sign_flip'); "
        "found = {'flax', 'torch', 'keras', 'haiku', 'pytest'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
