"""What README and CONTRIBUTING print works as it stands, besides the examples that run as doctests."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lngeom.claims import Verdict, all_claims

from tests.rewrite import zoo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ACTIVATE = "source .venv/bin/activate"
WRITTEN = re.compile(r"--(?:out|sarif) (\S+)")


def blocks(text: str, language: str) -> list[str]:
    """The code of a document in one language."""
    return [code for name, code in FENCED.findall(text) if name == language]


def commands() -> list[str]:
    """Every `lngeom ...` of the README: lines of code, and code in sentences."""
    prose = FENCED.sub("", README)
    lines = "\n".join(blocks(README, "sh") + blocks(README, "yaml"))
    found = re.findall(r"^(?:- run: )?(lngeom .+)$", lines, re.MULTILINE)
    return [shlex.join(shlex.split(c, comments=True)) for c in found + re.findall(r"`(lngeom [^`]* [^`]*)`", prose)]


def writers(command: str) -> list[str]:
    """The commands of the README that write what this one reads, such as `rotated/`."""
    written = {found[1]: c for c in commands() if c != command and (found := WRITTEN.search(c))}
    return [written[word] for word in shlex.split(command) if word in written]


def run(command: str, folder: Path, code: Path = ROOT) -> subprocess.CompletedProcess:
    """Runs the command `lngeom` of a tree as a shell does in an activated environment."""
    words = [sys.executable, "-W", "ignore", "-m", *shlex.split(command)]
    path = f"{code}:{folder}"
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    """A reader's own data, package and checkpoint, under the names that the README gives them."""
    np.savetxt(tmp_path / "mine.csv", np.random.default_rng(0).normal(size=(40, 4)), delimiter=",")
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "layers.py").write_text("import lngeom as lg\n\nMyNorm = lg.nn.RMSNorm(8)\n")
    (package / "models.py").write_text(
        "import equinox as eqx, jax\n\n"
        "def problem():\n    return eqx.nn.LayerNorm(4), jax.random.normal(jax.random.key(0), (5, 4))\n\n"
        "def training():\n    apply = lambda params, X: jax.nn.standardize(X @ params['w'])\n"
        "    return apply, {'w': jax.random.normal(jax.random.key(1), (4, 3))}, problem()[1]\n"
    )
    zoo.checkpoint(tmp_path / "Llama", "llama", np.float32)
    return tmp_path


def test_the_readme_is_read_in_three_minutes():
    words = FENCED.sub("", README).split()
    assert len(words) < 750


def test_commands_stand_after_the_line_that_puts_them_on_the_path():
    assert README.index(ACTIVATE) < min(README.index(c) for c in ("\nlngeom ", "`lngeom check", "- run: lngeom"))


def test_links_and_pictures_of_the_readme_are_there():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert "CITATION.cff" in targets
    assert not [t for t in targets if not (ROOT / t).exists()]


def test_the_counts_of_the_readme_are_those_of_the_recorded_verdicts():
    verdicts = [c.expected for c in all_claims()]
    counted = re.search(
        r"checks (\d+) claims: (\d+) hold, (\d+) hold under conditions .*? (\d+) are refuted .*? (\d+) are slips .*? "
        r"supports (\d+) verdicts; (\d+) rest",
        " ".join(README.split()),
    )
    total, *by_verdict, proved, numeric = map(int, counted.groups())
    kinds = (Verdict.HOLDS, Verdict.CONDITIONAL, Verdict.REFUTED, Verdict.SLIP)
    assert by_verdict == [verdicts.count(kind) for kind in kinds]
    assert total == len(verdicts) == proved + numeric


@pytest.mark.thorough
@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_works(command, folder):
    for done in [run(c, folder) for c in [*writers(command), command]]:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    written = WRITTEN.search(command)
    assert not written or (folder / written[1]).exists()


def test_a_command_that_does_not_work_is_seen(folder):
    assert run("lngeom where equation.333", folder).returncode == 2


def test_the_rewrite_of_the_readme_is_certified_and_written(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    code = next(code for code in blocks(README, "python") if "rw.load" in code)
    assert len(code.split("\n\n")[-1].splitlines()) <= 5
    scope: dict = {}
    exec(code, scope)
    assert scope["done"].certificate.passed
    assert (folder / "rotated" / "config.json").is_file()
    assert capsys.readouterr().out


@pytest.mark.thorough
def test_the_decorated_test_of_the_readme_runs_under_pytest(tmp_path):
    code = next(code for code in blocks(README, "python") if "parametrize_with_invariances" in code)
    lines = [line.removeprefix(">>> ").removeprefix("... ").removeprefix("...") for line in code.splitlines()]
    (tmp_path / "test_mine.py").write_text("import lngeom as lg\n\n" + "\n".join(lines))
    done = run(f"pytest -q -p no:cacheprovider {tmp_path}/test_mine.py", tmp_path)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 3


def steps(text: str) -> tuple[str, str, str, str, str]:
    """What CONTRIBUTING says of a claim: its file, code, the line for `__init__.py` and its place, and the command."""
    section = text.partition("\n## Add a claim")[2].partition("\n## ")[0]
    path = re.search(r"`(lngeom/papers/ba2016/\w+\.py)`", section)
    line = re.search(r"^(from lngeom\.papers\.ba2016 import .+)$", section, re.MULTILINE)
    above = re.search(r"above the line `(.+)`", section)
    command = re.search(r"^(lngeom verify --claim .+)$", section, re.MULTILINE)
    assert path
    assert line
    assert above
    assert command
    code = next(code for code in blocks(section, "python") if "@claim(" in code)
    return path[1], code, line[1], above[1], command[1]


def followed(text: str, folder: Path) -> subprocess.CompletedProcess:
    """Does what CONTRIBUTING says, in a copy of the package."""
    shutil.copytree(ROOT / "lngeom", folder / "lngeom", ignore=shutil.ignore_patterns("__pycache__"))
    path, code, line, above, command = steps(text)
    assert not (folder / path).exists()
    (folder / path).write_text(code, encoding="utf-8")
    imports = (folder / path).with_name("__init__.py")
    before, mark, after = imports.read_text(encoding="utf-8").partition(above)
    assert mark
    imports.write_text(f"{before}{line}\n{mark}{after}", encoding="utf-8")
    return run(command, folder, code=folder)


@pytest.mark.thorough
def test_contributing_followed_literally_adds_a_claim_that_holds(tmp_path):
    done = followed(CONTRIBUTING, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "text.mean_zero" in done.stdout
    assert "HOLDS by proof" in done.stdout
    proved = run("lngeom prove text.mean_zero", tmp_path, code=tmp_path)
    assert proved.returncode == 0, proved.stderr


@pytest.mark.thorough
def test_what_contributing_adds_is_formatted(tmp_path):
    pytest.importorskip("ruff", reason="ruff is of the extra `dev`; .ci/run asks again with it")
    followed(CONTRIBUTING, tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    folder = tmp_path / "lngeom" / "papers" / "ba2016"
    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, str(folder)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_a_claim_of_contributing_that_is_false_is_seen(tmp_path):
    wrong = CONTRIBUTING.replace("model.normalized(params, inputs).mean(1)", "model.normalized(params, inputs).max(1)")
    assert wrong != CONTRIBUTING
    assert followed(wrong, tmp_path).returncode == 1
