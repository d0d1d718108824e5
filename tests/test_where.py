"""`lngeom where`: names lead to the line at which they are written."""

from pathlib import Path

import pytest
from lngeom.cli.commands import NAMES, app
from lngeom.cli.commands.where import _place, find
from lngeom.cli.names import KINDS
from typer.testing import CliRunner

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "what", "file", "line"),
    [
        ("equation.33", "claim", "lngeom/papers/ba2016/metric.py", "def "),
        ("equation.33", "proof", "lngeom/papers/ba2016/metric.py", "def "),
        ("zhang2019.equals_ln", "claim", "lngeom/papers/gallery/zhang2019.py", "def "),
        ("ln", "method", "lngeom/methods/layer.py", "@row("),
        ("batch", "method", "lngeom/methods/batch.py", "@row("),
        ("BN, training", "method", "lngeom/methods/batch.py", "@row("),
        ("WeightNorm", "method", "lngeom/methods/weight.py", "@row("),
        ("fold", "step", "lngeom/transformers/rewrite/steps.py", "class FoldNorms"),
        ("ddof", "rule", "lngeom/checks/linting/rules.py", "def ddof"),
        ("new-paper", "command", "lngeom/cli/commands/new_paper.py", '"""Write a folder'),
        ("rewrite", "module", "lngeom/transformers/rewrite/__init__.py", '"""'),
        ("fisher", "name", "lngeom/information/_fisher.py", "def fisher"),
        ("Stack", "name", "lngeom/transformers/description.py", "class Stack"),
        ("FisherOperator.solve", "name", "lngeom/information/_operator.py", "def solve"),
        ("TABLE1", "name", "lngeom/methods/transformations/columns.py", "TABLE1"),
        ("normalizers", "name", "lngeom/checks/strategies/models.py", "def normalizers"),
    ],
)
def test_a_name_leads_to_its_line(name, what, file, line):
    (place,) = [p for p in find(name) if p.what == f"{what} {name}"]
    assert place.file == Path(file)
    below = (HERE / file).read_text(encoding="utf-8").splitlines()[place.line - 1 : place.line + 40]
    assert line in "\n".join(below)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("equation.13", {f"{kind} equation.13_14.{row}" for kind in ("claim", "proof") for row in ("bn", "wn", "ln")}),
        ("RMS norm", {"method RMSNorm", "name RMSNorm", "name rms_norm"}),
        ("lg.fisher", {"command fisher", "name fisher"}),
        ("lngeom.nn.LayerNorm", {"name nn.LayerNorm"}),
    ],
)
def test_a_beginning_and_another_spelling_lead_to_all_they_mean(name, found):
    assert {place.what for place in find(name)} == found


def test_a_pattern_leads_to_the_claims_of_a_table():
    cells = {place.what for place in find("table1.*")}
    assert {"claim table1.ln.dataset_rescaling", "proof table1.ln.dataset_rescaling"} < cells
    assert {place.what for place in find("table1")} == cells | {"name TABLE1"}


def test_a_name_of_claims_leads_to_them_and_their_proofs():
    assert [place.what for place in find("Eq. 9")] == ["claim equation.9", "proof equation.9"]
    assert len(find("equation (13)")) == 6
    with pytest.raises(ValueError, match=r"means 6 claims, such as equation\.3, "):
        find("section 5.1")


def test_a_map_and_a_layer_of_one_name_are_both_found():
    assert {str(p.file) for p in find("LayerNorm")} == {"lngeom/methods/layer.py", "lngeom/nn/modules.py"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_a_kind_has_a_place(kind):
    places = [_place(name, value) for name, value in KINDS[kind]()]
    assert places
    assert all((HERE / place.file).is_file() and place.line > 0 for place in places)


def test_the_command_prints_lines_and_refuses_what_it_does_not_know():
    shown = CliRunner().invoke(app, ["where", "ddof"])
    assert shown.exit_code == 0
    assert shown.output.startswith("lngeom/checks/linting/rules.py:")
    wrong = CliRunner().invoke(app, ["where", "equation.333"])
    assert wrong.exit_code == 2
    assert "did you mean equation.33" in wrong.output


def test_every_module_of_a_command_is_registered():
    files = {path.stem for path in (HERE / "lngeom/cli/commands").glob("*.py")}
    assert set(NAMES) == files - {"__init__"}
    assert len(set(NAMES)) == len(NAMES)
