"""`lngeom where`: names lead to the line at which they are written."""

from pathlib import Path

import pytest
from lngeom.cli.commands import app
from lngeom.cli.commands.where import find
from typer.testing import CliRunner

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "what", "file", "line"),
    [
        ("equation.33", "claim", "lngeom/papers/ba2016/metric.py", "def "),
        ("equation.33", "proof", "lngeom/papers/ba2016/metric.py", "def "),
        ("zhang2019.equals_ln", "claim", "lngeom/papers/gallery/zhang2019.py", "def "),
        ("ln", "method", "lngeom/methods/statistics.py", "class LayerNorm"),
        ("batch", "method", "lngeom/methods/statistics.py", "class BatchNorm"),
        ("fold", "step", "lngeom/transformers/rewrite/steps.py", "class FoldNorms"),
        ("ddof", "rule", "lngeom/checks/linting/rules.py", "def ddof"),
        ("fisher", "name", "lngeom/information/_fisher.py", "def fisher"),
    ],
)
def test_a_name_leads_to_its_line(name, what, file, line):
    (place,) = [p for p in find(name) if p.what == f"{what} {name}"]
    assert place.file == Path(file)
    below = (HERE / file).read_text(encoding="utf-8").splitlines()[place.line - 1 : place.line + 40]
    assert line in "\n".join(below)


def test_the_command_prints_lines_and_refuses_what_it_does_not_know():
    shown = CliRunner().invoke(app, ["where", "ddof"])
    assert shown.exit_code == 0
    assert shown.output.startswith("lngeom/checks/linting/rules.py:")
    wrong = CliRunner().invoke(app, ["where", "equation.333"])
    assert wrong.exit_code == 2
    assert "near it: equation.33" in wrong.output
