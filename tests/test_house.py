"""The house keeps its rules: imports run downward, importing is light."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import lngeom
import pytest

ROOT = Path(lngeom.__file__).parent
FLOORS = {
    0: ("_files", "_types", "_numerics", "paper", "invariance_table", "data"),
    1: ("_interrupts", "normalizers", "families", "transformations"),
    2: ("glm", "nn", "symbolic"),
    3: ("information", "checks", "discovery", "strategies"),
    4: ("metric", "training", "_fisher_inputs"),
    5: ("claims", "studies", "_fisher_command"),
    6: ("report", "plots"),
    7: ("cli", "__main__"),
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(source: str) -> set[str]:
    """Rooms of lngeom that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lngeom":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("lngeom.")}
    return found


def upward(room: str, source: str) -> set[str]:
    """Imports that do not run downward: of a higher floor, or of another room on the same floor."""
    here = FLOOR_OF[room]
    return {r for r in imports(source) if r in FLOOR_OF and r != room and FLOOR_OF[r] >= here}


MODULES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_downward(path):
    assert room_of(path) in FLOOR_OF, f"{room_of(path)} has no floor; add it to FLOORS"
    assert not upward(room_of(path), path.read_text())


def test_the_import_check_sees_an_upward_import():
    assert upward("glm", "from lngeom.claims import run") == {"claims"}
    assert upward("glm", "def f():\n    from lngeom import metric") == {"metric"}
    assert upward("metric", "from lngeom.glm import NormalizedGLM") == set()


def test_the_public_surface_is_under_60_lines():
    assert len((ROOT / "__init__.py").read_text().splitlines()) < 60


def test_importing_pulls_in_nothing_heavy():
    code = (
        "import sys, lngeom; heavy = {'matplotlib', 'hypothesis', 'sympy', 'typer', 'sklearn', 'optax', 'jinja2'}; "
        "found = heavy & {m.split('.')[0] for m in sys.modules}; assert not found, found"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env={**os.environ})


def test_importing_flips_no_global_flag():
    code = "import jax; before = dict(jax.config.values); import lngeom; assert dict(jax.config.values) == before"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env={**os.environ})
