"""Every rule finds its public bugs, is silent on the mended models, and on the stock layers of six libraries."""

import json
import warnings

import lngeom as lg
import numpy as np
import pytest
from lngeom.checks.linting.rules import RULES

from tests.linting.bugs import BUGS, PLANTED, layer_norm, normal, torch_norm

PEERS = {"torch", "keras", "haiku"}


def cases(bugs):
    for bug in bugs:
        marks = [pytest.mark.peers] if bug.framework in PEERS else []
        yield pytest.param(bug, marks=marks, id=f"{bug.issue} {bug.rule}")


def linted(bug, mended):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, X, options = bug.build(mended)
        return lg.lint(model, X, **options)


@pytest.mark.parametrize("bug", list(cases([*BUGS, *PLANTED])))
def test_a_mistake_is_found_by_its_rule_and_the_mended_model_is_clean(bug):
    found = linted(bug, mended=False)
    assert bug.rule in {f.rule for f in found.findings}, str(found)
    assert all(f.consequence for f in found.findings)
    mended = linted(bug, mended=True)
    assert mended.checked
    assert (mended.findings, mended.unchecked) == ((), ()), str(mended)


def test_there_are_fifteen_public_bugs_and_every_rule_has_a_mistake_to_find():
    assert len({bug.issue for bug in BUGS}) >= 15
    assert {bug.rule for bug in [*BUGS, *PLANTED]} == set(RULES)


def torch_stock():
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)]
    layers += [nn.LayerNorm([8, 4, 4]), nn.Flatten(), nn.Linear(128, 6), nn.LayerNorm(6), nn.RMSNorm(6)]
    return nn.Sequential(*layers, nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None)), normal(7, 3, 6, 6)


def keras_stock():
    import keras

    layers = [keras.layers.Dense(8, use_bias=False), keras.layers.BatchNormalization()]
    layers += [keras.layers.GroupNormalization(2), keras.layers.LayerNormalization(), keras.layers.RMSNormalization()]
    return keras.Sequential(layers), normal(7, 4, 5, scale=2.0).astype(np.float32)


def nnx_stock():
    from flax import nnx

    rngs = nnx.Rngs(0)
    norms = [nnx.BatchNorm(8, rngs=rngs), nnx.GroupNorm(8, num_groups=2, rngs=rngs), nnx.InstanceNorm(8, rngs=rngs)]
    return nnx.Sequential(*norms, nnx.LayerNorm(8, rngs=rngs), nnx.RMSNorm(8, rngs=rngs)), normal(7, 4, 8)


def linen_stock():
    from flax import linen

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8, use_bias=False)(x))
            x = linen.InstanceNorm()(linen.GroupNorm(num_groups=2)(x))
            return linen.RMSNorm()(linen.LayerNorm()(x))

    return Model(), normal(7, 4, 5).astype(np.float32)


def equinox_stock():
    import equinox as eqx
    import jax

    class Model(eqx.Module):
        batch: eqx.nn.BatchNorm
        group: eqx.nn.GroupNorm
        layer: eqx.nn.LayerNorm
        rms: eqx.nn.RMSNorm

        def __call__(self, x, state):
            x, state = self.batch(x, state)
            return jax.vmap(self.rms)(jax.vmap(self.layer)(self.group(x).T)), state

    norms = eqx.nn.BatchNorm(8, "batch", mode="batch"), eqx.nn.GroupNorm(2, 8), eqx.nn.LayerNorm(8), eqx.nn.RMSNorm(8)
    return Model(*norms), normal(7, 8, 4).astype(np.float32)


def haiku_stock():
    import haiku as hk
    import jax

    def function(training):
        def net(x):
            x = hk.BatchNorm(True, True, 0.9)(hk.Linear(8, with_bias=False)(x), is_training=training)
            x = hk.InstanceNorm(True, True)(hk.GroupNorm(2)(x))
            return hk.RMSNorm(-1)(hk.LayerNorm(-1, True, True)(x))

        return hk.transform_with_state(net)

    X = normal(7, 4, 5).astype(np.float32)
    params, state = function(True).init(jax.random.key(0), X)
    return (function(False), params, state), X


STOCK = (torch_stock, keras_stock, nnx_stock, linen_stock, equinox_stock, haiku_stock)
STOCK_NORMS = {"torch": 8, "keras": 4, "nnx": 5, "linen": 5, "equinox": 4, "haiku": 5}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stock",
    [
        pytest.param(s, marks=[pytest.mark.peers] if s.__name__.split("_")[0] in PEERS else [], id=s.__name__)
        for s in STOCK
    ],
)
def test_there_is_no_false_alarm_on_stock_layers(stock):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = lg.lint(*stock())
    assert (report.findings, report.unchecked) == ((), ()), str(report)
    assert len(report.eps_shares) == STOCK_NORMS[stock.__name__.split("_")[0]], str(report)


def test_a_norm_before_attention_has_its_channels_last():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(4, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)

        def __call__(self, x):
            return self.attention(self.norm(x))

    report = lg.lint(Model(nnx.Rngs(0)), normal(5, 3, 4).astype(np.float32), rules=["wrong-axis"])
    assert (report.findings, report.unchecked) == ((), ())


def large_epsilon():
    import equinox as eqx

    return lg.lint(eqx.nn.LayerNorm(8, eps=0.5), normal(6, 8).astype(np.float32))


def test_the_report_is_text_and_json():
    report = large_epsilon()
    assert "epsilon-large" in str(report)
    assert "remedy:" in str(report)
    assert abs(report.eps_shares[""] - 0.4) < 0.2  # ε/(σ² + ε) with σ² near 1
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["findings"][0]["rule"] == "epsilon-large"
    assert found["findings"][0]["remedy"]


def problems_of_sarif(log):
    """What the log lacks of the required structure of SARIF 2.1.0 (OASIS), sections 3.13 to 3.52."""
    if log.get("version") != "2.1.0" or not log.get("$schema", "").endswith("sarif-2.1.0.json"):
        yield "version or schema"
    for run in log.get("runs") or [None]:
        if run is None:
            yield "runs"
            continue
        driver = run.get("tool", {}).get("driver", {})
        if not driver.get("name"):
            yield "tool.driver.name"
        ids = [r.get("id") for r in driver.get("rules", [])]
        if len(set(ids)) != len(ids) or not all(ids):
            yield "rule ids"
        yield from (f"text of {r['id']}" for r in driver.get("rules", []) if not r["fullDescription"].get("text"))
        if not isinstance(run.get("results"), list):
            yield "results"
            continue
        for result in run["results"]:
            if not result.get("message", {}).get("text"):
                yield "message"
            if result.get("level") not in {"none", "note", "warning", "error"}:
                yield "level"
            if ids[result["ruleIndex"]] != result["ruleId"]:
                yield "ruleIndex"
            for place in result["locations"]:
                physical = place.get("physicalLocation")
                if physical and (not physical["artifactLocation"]["uri"] or physical["region"]["startLine"] < 1):
                    yield "physicalLocation"
                if not all(logical["fullyQualifiedName"] for logical in place["logicalLocations"]):
                    yield "logicalLocations"


def test_sarif_has_the_required_structure():
    report = large_epsilon()
    log = json.loads(json.dumps(report.to_sarif("models/net.py", 12)))
    assert list(problems_of_sarif(log)) == []
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 12
    assert list(problems_of_sarif(json.loads(json.dumps(report.to_sarif())))) == []
    log["version"], log["runs"][0]["results"][0]["level"] = "2.0", "bad"
    assert set(problems_of_sarif(log)) == {"version or schema", "level"}


def test_bad_input_is_named():
    import equinox as eqx

    norm, X = eqx.nn.LayerNorm(8), normal(6, 8)
    with pytest.raises(ValueError, match="no rule nothing; the rules are epsilon-lost"):
        lg.lint(norm, X, rules=["nothing"])
    with pytest.raises(ValueError, match="a module of torch, flax"):
        lg.lint(lambda x: x, X)
    with pytest.raises(ValueError, match=r"forward pass of LayerNorm on X .*float64\[6, 7\]"):
        lg.lint(norm, X[:, :7])
    with pytest.raises(ValueError, match="export has 0 norms and the model 1"):
        lg.lint(norm, X, export=eqx.nn.Identity())
    with pytest.raises(ValueError, match="decay must be"):
        lg.lint(norm, X, decay=3)


@pytest.mark.peers
@pytest.mark.parametrize(("scale", "large"), [(1e-4, True), (1.0, False)])
@pytest.mark.parametrize("own", [False, True], ids=["torch", "own"])
def test_an_epsilon_that_follows_the_dtype_is_measured_in_the_dtype_that_runs(scale, large, own):
    import torch
    from torch import nn

    class Centred(nn.Module):
        def forward(self, x):
            c = x - x.mean(-1, keepdim=True)
            return c * torch.rsqrt(c.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps)

    norm = Centred() if own else nn.RMSNorm(32)
    X = (np.random.default_rng(0).normal(size=(16, 32)) * scale).astype(np.float32)
    report = lg.lint(norm, X)
    assert [f.rule for f in report.findings] == (["epsilon-large"] if large else [])
    squares = (X - X.mean(1, keepdims=True) if own else X).astype(np.float64) ** 2
    eps = float(np.finfo(np.float32).eps)
    expected = np.median(eps / (squares.mean(1) + eps))
    assert abs(report.eps_shares[""] - expected) < 1e-5
    note = lg.check_model(norm, X).norms[0].note
    assert ("its ε follows the dtype" in note, "outputs are up to" in note) == (large, False)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        (lambda x, w, b: layer_norm(x, 1.0, b) * w, {}),
        (lambda x, w, b: layer_norm(x, w / w.mean(), b), {}),
        (lambda x, w, b: layer_norm(x, b + 2, w), {}),
        (lambda x, w, b: layer_norm(x, w.repeat_interleave(4)[None], b), {"weight": 2}),
        (lambda x, w, b: layer_norm(x, w.softmax(0)[0], b), {"weight": 2}),
        (lambda x, w, b: layer_norm(x, w.softmax(0)[0], b) + w.softmax(0)[1] * layer_norm(x, 1.0, 0.0, axis=0), {}),
    ],
    ids=["in another order", "of mean 1", "swapped", "of groups", "a weight of a mixture", "two norms"],
)
def test_gains_that_follow_the_statistics_are_not_said_to_be_before_them(formula, shapes):
    import torch

    norm = torch_norm(formula)
    for name, size in shapes.items():
        setattr(norm, name, torch.nn.Parameter(torch.linspace(0.5, 1.5, size)))
    found = lg.lint(torch.nn.Sequential(norm), normal(6, 8), rules=["affine-before-statistics", "unused-parameter"])
    assert found.findings == (), str(found)


@pytest.mark.peers
def test_a_gain_of_zero_in_the_place_of_the_bias_is_named_as_that():
    import torch
    import torch.nn.functional as F

    norm = torch_norm(lambda x, w, b: F.layer_norm(x, (8,), b, w))
    torch.nn.init.zeros_(norm.bias)
    model = torch.nn.Sequential(norm)
    assert {f.rule for f in lg.lint(model, normal(6, 8)).findings} == {"dead-gain"}
    report = lg.check_model(model, normal(6, 8))
    assert (report["0"].checked, report.differs) == (True, False), str(report)
    assert "examined with 1 more of bias" in report["0"].note


def test_a_mode_that_no_pass_has_shown_gives_no_finding():
    from flax import linen

    class Model(linen.Module):
        train: bool

        @linen.compact
        def __call__(self, x):
            return linen.BatchNorm(use_running_average=not self.train)(x)

    for train in (True, False):
        assert lg.lint(Model(train), normal(9, 5).astype(np.float32)).findings == ()
