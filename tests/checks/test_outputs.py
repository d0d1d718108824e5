"""Beside a row: ddof and a large ε are differences, gain and bias and an ordinary ε are not, NaN is no evidence."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.checks._outputs import fit
from lngeom.checks.findings import Verdict
from lngeom.cli.commands import app
from typer.testing import CliRunner

RNG = np.random.default_rng(0)
GAIN, BIAS = RNG.normal(size=(2, 6))


UNTOLD = "a factor (as of ddof = 1) cannot be told from a gain if the number of units is fixed"


def mean(a):
    return a.mean(-1, keepdims=True)


def layer_norm(a, eps=1e-5, ddof=0):
    return (a - mean(a)) / jnp.sqrt(a.var(-1, keepdims=True, ddof=ddof) + eps)


def batch_norm(a, eps=1e-5, ddof=0):
    return (a - a.mean(0, keepdims=True)) / jnp.sqrt(a.var(0, keepdims=True, ddof=ddof) + eps)


def with_ddof(a):
    return layer_norm(a, ddof=1)


def with_large_eps(a):
    return layer_norm(a, 0.1)


def not_finite(a):
    return a * jnp.nan


def affine(a):
    return a * jnp.asarray(GAIN, a.dtype)[None] + jnp.asarray(BIAS, a.dtype)[None]


def beside(layer, like="layer", **options):
    return lg.check_invariances(layer, like=like, kind="summed", **options)


@pytest.mark.parametrize(
    ("layer", "like"),
    [
        (layer_norm, "layer"),
        (lambda a: layer_norm(a, 1e-3), "layer"),
        (lambda a: affine(layer_norm(a, 1e-6)), "layer"),
        (lambda a: -3 * layer_norm(a), "layer"),
        (lambda a: affine(batch_norm(a, 1e-3)), "batch"),
    ],
    ids=["plain", "large but usual", "gain and bias", "common gain", "batch"],
)
def test_gain_bias_and_an_ordinary_eps_are_no_differences(layer, like):
    found = beside(layer, like)
    assert not found.differs
    assert found.output_note in {"", UNTOLD}
    assert f"\nAs {like} norm, in " in str(found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layer", "like", "said"),
    [
        (with_ddof, "layer", ["0.9129 times", "0.9574 times", "ddof = 1"]),
        (lambda a: layer_norm(a, 1e-6, 1) * 2, "layer", ["1.826 times", "ddof = 1"]),
        (lambda a: affine(batch_norm(a, 1e-5, 1)), "batch", ["1.043 times as much", "ddof = 1"]),
        (with_large_eps, "layer", ["large ε: on ordinary data", "(ε/σ² = "]),
        (lambda a: affine(batch_norm(a, 0.2)), "batch", ["large ε"]),
        (lambda a: (a - mean(a)) / (jnp.sqrt(a.var(-1, keepdims=True)) + 0.1), "layer", ["(ε/σ = "]),
        (lambda a: (a - mean(a)) / jnp.linalg.norm(a - mean(a), axis=-1, keepdims=True), "layer", ["H^-0.5", "a sum"]),
    ],
    ids=["ddof", "ddof and gain", "batch ddof", "eps", "batch eps", "eps outside", "sum"],
)
def test_ddof_and_a_large_eps_are_differences_of_the_outputs(layer, like, said):
    found = beside(layer, like)
    assert found.differs
    assert not found.differences
    words = " ".join(str(found).split())
    assert all(text in words for text in said), words
    assert f"\nDiffers from {like} norm, in " in str(found)


class OneSize(eqx.Module):
    """A layer of eight units and no other number."""

    gain: jax.Array
    ddof: int

    def __init__(self, ddof=0):
        self.gain, self.ddof = jnp.ones(8, jnp.float32), ddof

    def __call__(self, a):
        return self.gain * layer_norm(a, ddof=self.ddof)


@pytest.mark.thorough
def test_a_layer_of_one_size_is_suspected_by_its_gain():
    assert not beside(OneSize(), units=8).differs
    (found,) = beside(OneSize(1), units=8).output_differences
    assert "√(1 − 1/8)" in found.message
    assert "(ddof = 1)?" in found.message
    trained = eqx.tree_at(lambda m: m.gain, OneSize(1), jnp.linspace(1, 2, 8, dtype=jnp.float32))
    assert beside(trained, units=8).output_note == UNTOLD


def test_a_layer_of_other_structure_is_said_not_to_be_compared():
    assert beside(lambda a: layer_norm(a) ** 3).output_note == "not compared, as the invariances differ"
    cube = beside(lambda a: batch_norm(a) ** 3, "batch")
    assert not cube.differs
    assert "another layer with the same invariances" in cube.output_note
    assert cube.output_note in " ".join(str(cube).split())
    assert "invariant as batch norm is, but its outputs are not those" in cube.diagnosis.sentence


def test_no_gain_turns_the_identity_into_a_normalizer():
    """On any one data set batch norm is a gain and a bias."""
    found = beside(lambda a: a, "batch")
    assert {"weight_matrix_rescaling", "dataset_recentering"} <= {name for name, _ in found.differences}
    reference = RNG.normal(size=(7, 6))
    assert fit(reference * GAIN + BIAS, reference).gap < 1e-14
    assert fit(np.tanh(reference), reference).gap > 0.01


def test_a_row_with_an_eps_of_its_own_is_compared_as_it_is():
    found = lg.check_invariances(lg.normalizers.LayerNorm(eps=0.5), like="ln_eps")
    assert not found.differs
    assert not found.output_note


def test_the_generator_checks_the_outputs_too():
    checks = {check.name: check for check in lg.checks.generate_checks(with_ddof, "layer", kind="summed")}
    with pytest.raises(AssertionError, match="ddof = 1"):
        checks["outputs"]()
    trained = {c.name: c for c in lg.checks.generate_checks(lambda a: affine(layer_norm(a)), "layer", kind="summed")}
    for name in ("outputs", "weight_sign_flip", "unit_permutations"):
        trained[name]()


def lngeom(*args):
    return CliRunner().invoke(app, ["check", *args])


def test_check_exits_1_where_outputs_differ_and_2_where_nothing_could_be_checked():
    for name in ("with_ddof", "with_large_eps"):
        result = lngeom(f"tests.checks.test_outputs:{name}", "--kind", "summed", "--like", "layer")
        assert result.exit_code == 1, result.output
        assert "Outputs differ from those of layer" in result.output
    for name in ("tests.checks.broken:raises", "tests.checks.test_outputs:not_finite"):
        result = lngeom(name)
        assert result.exit_code == 2
        assert "could be checked: " in result.output
        assert "transformation" not in result.output.split("could be checked")[0]
    assert "outputs are not finite to begin with: that is no evidence" in result.output


def test_a_layer_of_another_size_is_checked_at_it_and_says_so():
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.GroupNorm(8, 2, rngs=nnx.Rngs(0))
    found = lg.check_invariances(layer, like="group")
    assert found.layer == "GroupNorm (8 units)"
    assert not found.differs
    assert str(found).startswith("GroupNorm (8 units): group norm")
    for check in lg.checks.generate_checks(layer, "group"):
        check()
    unlike = lg.check_invariances(layer, units=7)
    assert "raises: called with" in unlike.unchecked


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (0.5, "outputs 0.5 times as large"),
        (2.0, "outputs 2 times as large"),
        (-1.0, "outputs -1 times as large"),
        (1.0, ""),
    ],
)
def test_a_factor_of_all_outputs_is_in_the_diagnosis(factor, said):
    layer = lambda a: factor * a / jnp.sqrt(jnp.mean(a**2, -1, keepdims=True))  # noqa: E731
    sentence = lg.check_invariances(layer, kind="summed", like="rms").diagnosis.sentence
    assert sentence == ", ".join(filter(None, ("RMS norm", "no ε", said)))


def test_a_sum_that_cannot_be_told_from_a_gain_is_said():
    gains = jnp.ones((1, 16))
    layer = lambda a: gains * a / jnp.linalg.norm(a, axis=-1, keepdims=True)  # noqa: E731
    sentence = lg.check_invariances(layer, kind="summed", like="rms", units=16).diagnosis.sentence
    assert sentence.endswith("outputs 0.25 times as large = 1/√16, a gain or a sum in place of a mean")


def finite_up_to(bound):
    return lambda a: jnp.where(jnp.abs(a).max(-1, keepdims=True) > bound, jnp.nan, layer_norm(a))


def test_outputs_that_are_not_finite_are_no_evidence():
    found = beside(finite_up_to(1e-3))
    assert {r.verdict for r in found.results} == {Verdict.UNKNOWN}
    assert "no evidence" in found.unchecked
    ordinary = np.abs(lg.checks.suite.Suite(lg.checks.adapt(layer_norm)).data.inputs).max() * 100
    partly = lg.check_invariances(finite_up_to(ordinary), kind="summed")
    assert partly["weight_matrix_rescaling"].verdict is not Verdict.NOT


def test_a_batch_check_without_finite_outputs_has_no_verdict():
    first = lg.checks.suite.Suite(lg.checks.adapt(layer_norm, kind="summed")).data
    allowed = jnp.asarray(first.inputs @ first.weights.T)

    def here_only(a):
        same = jnp.all(jnp.abs(a - allowed.astype(a.dtype)) < 1e-6) if a.shape == allowed.shape else True
        return jnp.where(same, a, jnp.nan)

    found = lg.check_invariances(here_only, kind="summed")
    assert found["batch_independence"].verdict is Verdict.UNKNOWN
    assert "not finite with another sample" in found["batch_independence"].note
    assert found["weight_matrix_rescaling"].verdict is Verdict.UNKNOWN
