"""The first line of a check: which row of the table a layer is, and what it does otherwise."""

import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks.findings import Diagnosis
from lngeom.methods.table import in_words

RNG = np.random.default_rng(0)
GAIN, BIAS = RNG.uniform(0.5, 2, 6), RNG.normal(size=6)


def mean(a):
    return a.mean(-1, keepdims=True)


def layer_norm(a, eps=1e-5, ddof=0):
    return (a - mean(a)) / jnp.sqrt(a.var(-1, keepdims=True, ddof=ddof) + eps)


def rms_outside(a):
    n = a.shape[-1]
    return a / (jnp.sqrt(jnp.sum(a**2, -1, keepdims=True) / (n - 1)) + 1e-6)


def affine(a):
    return layer_norm(a) * jnp.asarray(GAIN, a.dtype)[None] + jnp.asarray(BIAS, a.dtype)[None]


def clamped(a):
    return (a - mean(a)) / jnp.maximum(a.std(-1, keepdims=True), 1e-3)


def batch_norm(a):
    return (a - a.mean(0, keepdims=True)) / jnp.sqrt(a.var(0, keepdims=True) + 1e-5)


def diagnosed(layer):
    return lg.check_invariances(layer, kind="summed").diagnosis


@pytest.mark.parametrize(
    ("layer", "closest", "sentence"),
    [
        (layer_norm, "ln", "layer norm, ε inside the root"),
        (rms_outside, "rms", "RMS norm, ε outside the root, ddof = 1"),
        (lambda a: layer_norm(a, 0.1), "ln", "layer norm, ε inside the root, large ε"),
        (affine, "ln", "layer norm, ε inside the root, a gain for each unit, a bias"),
        (clamped, "ln", "layer norm, the scale clamped at ε"),
        (batch_norm, "bn", "batch norm, ε inside the root"),
        (lambda a: a / jnp.linalg.norm(a, axis=-1, keepdims=True), "scale", "scale norm, no ε"),
    ],
    ids=["layer", "RMS, ddof", "large ε", "gain and bias", "clamp", "batch", "scale"],
)
def test_a_layer_is_named_by_what_it_does(layer, closest, sentence):
    found = diagnosed(layer)
    assert (found.closest, found.sentence, found.differences) == (closest, sentence, ())


def test_what_is_no_row_is_compared_with_the_closest():
    report = lg.check_invariances(lambda a: a / jnp.sqrt(a.var(-1, keepdims=True) + 1e-5), kind="summed")
    assert report.diagnosis.closest == "rms"
    assert report.diagnosis.sentence.startswith("no row of the table; closest is RMS norm, from which it differs in 1")
    (line,) = [line for line in report.to_text(200).splitlines() if "yours:" in line]
    assert line.strip().endswith("yours: not invariant; RMS norm: invariant")


@pytest.mark.parametrize(
    ("layer", "title"),
    [
        (lambda a: a / (jnp.abs(a).mean(-1, keepdims=True) + 1e-6), "DyT"),
        (lambda a: a / jnp.sqrt(jnp.mean(a[:, :3] ** 2, -1, keepdims=True) + 1e-6), "batch norm in evaluation"),
    ],
    ids=["mean of |a|", "RMS of half"],
)
def test_what_is_invariant_up_to_epsilon_is_not_said_to_be_as_a_row_that_is_not(layer, title):
    """The table has "no" for re-scalings under DyT and under batch norm in evaluation."""
    report = lg.check_invariances(layer, kind="summed")
    assert report["weight_matrix_rescaling"].verdict.value == "invariant up to ε"
    assert report.diagnosis.sentence == (
        f"no row of the table; its answers are those of {title}, where invariant up to ε counts as no, "
        "but its outputs are not"
    )


@pytest.mark.parametrize("name", ["rms", "rmsnorm", "RMSNorm", "rms norm", "RMS_norm", "rms normalization"])
def test_the_row_that_is_asked_for_is_named_in_words_however_it_is_spelled(name):
    lines = lg.check_invariances(rms_outside, like=name, kind="summed").to_text(200).splitlines()
    assert lines[0].endswith("rms_outside: RMS norm, ε outside the root, ddof = 1.")
    assert any(line.startswith(("As RMS norm, in float32", "Differs from RMS norm, in float32")) for line in lines)


def test_a_row_that_is_asked_for_does_not_change_what_the_layer_is():
    report = lg.check_invariances(batch_norm, like="layer", kind="summed")
    first, second = report.to_text(200).splitlines()[:2]
    assert first.endswith("batch_norm: batch norm, ε inside the root.")
    assert second.startswith("Differs from layer norm, in float32: ")


def test_where_nothing_could_be_checked_nothing_is_said():
    def broken(a):
        raise RuntimeError("no outputs")

    report = lg.check_invariances(broken, kind="summed")
    assert report.diagnosis == Diagnosis()
    assert "broken: nothing could be checked." in str(report).splitlines()[0]


@pytest.mark.parametrize("width", [40, 80, 140])
def test_the_report_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    report = lg.check_invariances(affine, kind="summed")
    assert max(map(len, str(report).splitlines())) <= width


def test_every_row_has_a_name_in_a_sentence():
    names = [in_words(name) for name in lg.normalizers.METHODS]
    assert len(set(names)) == len(names)
    assert in_words("layer") == in_words("ln") == "layer norm"
