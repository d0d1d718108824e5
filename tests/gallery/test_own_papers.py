"""A paper of one's own: written by a command, run from its folder, tested, and found when it is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lngeom.cli.commands import app
from lngeom.report import newpaper
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
SMALL = ("a,b,c,d", *(f"{k % 7},{(k * k) % 11},{(3 * k) % 5},{(k**3) % 13}" for k in range(40)))


LISTS = """
from lngeom.cli.commands import app
app(["papers"], standalone_mode=False)
print("=====")
app(["verify", "--paper", "roe2028", "--list"])
"""


def python(*arguments, path=(), **options):
    """A process that finds the library, and what else is on the path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)])}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A new paper, and data."""
    root = tmp_path_factory.mktemp("papers")
    done = CliRunner().invoke(app, ["new-paper", "doe2027", "--out", str(root)])
    assert done.exit_code == 0, done.output
    (root / "data.csv").write_text("\n".join(SMALL[1:]))
    return root / "doe2027"


def test_the_new_paper_is_audited_from_its_folder(folder):
    data, out = folder.parent / "data.csv", folder.parent / "report"
    done = python("-m", "lngeom", "verify", "--paper", folder, "--data", data, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["paper"]["id"] == "doe2027"
    assert [(c["id"], c["verdict"], c["strength"]) for c in report["claims"]] == [("doe2027.bound", "holds", "proof")]
    assert "coverage" not in report
    assert "doe2027" in (folder.parent / "report/report.html").read_text(encoding="utf-8")


def test_its_own_tests_pass(folder):
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", folder, cwd=folder)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_an_existing_folder_is_not_overwritten(folder):
    before = (folder / "__init__.py").read_text(encoding="utf-8")
    done = CliRunner().invoke(app, ["new-paper", "doe2027", "--out", str(folder.parent)])
    assert done.exit_code == 2
    assert "exists already" in done.output
    assert (folder / "__init__.py").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("name", ["Doe2027", "doe 2027", "2027doe", "ba2016", "zhang2019", ""])
def test_a_bad_name_is_refused(name, tmp_path):
    done = CliRunner().invoke(app, ["new-paper", name, "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_an_installed_paper_is_found(tmp_path):
    package = tmp_path / "roe2028"
    package.mkdir()
    for name, text in newpaper.files("roe2028").items():
        (package / name).write_text(text, encoding="utf-8")
    site = tmp_path / "site"
    installed = python("-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", site, package)
    if "Could not find a version that satisfies the requirement setuptools" in installed.stderr:
        pytest.skip("the index of packages cannot be reached")
    assert installed.returncode == 0, installed.stderr
    done = python("-c", LISTS, path=[site])
    assert done.returncode == 0, done.stderr
    papers, claims = done.stdout.split("=====")
    assert "roe2028" in papers
    assert "roe2028.bound" in claims


def test_a_paper_that_does_not_exist_ends_with_a_message(tmp_path):
    done = CliRunner().invoke(app, ["verify", "--paper", "nobody1999", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "no paper 'nobody1999'" in done.output
    done = CliRunner().invoke(app, ["verify", "--paper", "all", "--topic", "metric", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert not list(tmp_path.iterdir())
