"""`lngeom lint` as a user meets it."""

import json
import sys

import pytest
from lngeom.cli.commands import app
from typer.testing import CliRunner

SOURCE = """
import equinox as eqx
import numpy as np

X = np.random.default_rng(0).normal(size=(6, 8)).astype("float32")


def broken():
    return eqx.nn.LayerNorm(8, eps=0.5), X


def mended():
    return eqx.nn.LayerNorm(8), X


def empty():
    return eqx.nn.Identity(), X


def wrong():
    return eqx.nn.LayerNorm(8)


def shape():
    return eqx.nn.LayerNorm(7), X


pair = (eqx.nn.LayerNorm(8, eps=0.5), X, {"rules": ["ddof"]})
"""


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "linted_models", raising=False)  # the one of another test has another folder
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "linted_models.py").write_text(SOURCE)


def lngeom(*args):
    return CliRunner().invoke(app, ["lint", *args])


def test_it_exits_1_with_findings_and_writes_sarif_with_the_place(tmp_path):
    result = lngeom("linted_models:broken", "--sarif", "out/lint.sarif")
    assert result.exit_code == 1, result.output
    assert "epsilon-large" in result.output
    assert "remedy: " in result.output
    log = json.loads((tmp_path / "out/lint.sarif").read_text())
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "linted_models.py"}, "region": {"startLine": 8}}
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["lint.sarif"]


def test_it_exits_0_without_findings_and_prints_json():
    result = lngeom("linted_models:mended", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["findings"] == []
    assert lngeom("linted_models:pair").exit_code == 0  # the rule that would find ε is not among those asked for
    assert lngeom("linted_models:broken", "--rule", "ddof").exit_code == 0


def test_sarif_says_that_nothing_was_checked(tmp_path):
    result = lngeom("linted_models:empty", "--sarif", "out/lint.sarif")
    assert result.exit_code == 2
    (ran,) = json.loads((tmp_path / "out/lint.sarif").read_text())["runs"]
    (told,) = ran["invocations"]
    assert (ran["results"], told["executionSuccessful"]) == ([], False)
    assert told["toolExecutionNotifications"][0]["message"]["text"] == "Identity has no norm"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("linted_models:empty", "no norm of Identity could be checked: it has none"),
        ("linted_models:wrong", "must give (model, X); got LayerNorm"),
        ("linted_models:shape", "one forward pass of LayerNorm on X"),
        ("linted_models:missing", "linted_models has no missing"),
        ("linted_models", "a model is named as PACKAGE.MODULE:NAME"),
    ],
)
def test_it_exits_2_where_nothing_could_be_checked(name, said):
    result = lngeom(name)
    assert result.exit_code == 2, result.output
    assert said in result.output.replace("\n", " ")
