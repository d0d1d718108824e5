"""The house keeps its rules: imports run downward in every folder, importing is light."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import lngeom
import pytest

HERE = Path(__file__).parents[1]
TREES = tuple(sorted(p.parent.name for p in HERE.glob("*/__init__.py")))
Graph = dict[str, set[str]]


def module_name(path: Path) -> str:
    parts = path.relative_to(HERE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, known: set[str], package: str = "") -> set[str]:
    """Known modules that a module imports, wherever in it; a name that is no module is from a package's `__init__`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: package.count(".") + 2 - node.level]) if node.level else ""
            origin = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.add(inner if inner in known else origin)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


PATHS = {module_name(p): p for tree in TREES for p in sorted((HERE / tree).rglob("*.py"))}
FOLDERS = ("", *sorted({name.rpartition(".")[0] for name in PATHS} - {""}))


@pytest.fixture(scope="module")
def whole() -> Graph:
    """Every module of the three trees → the modules of them that it imports."""
    graph = {}
    for name, path in PATHS.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        graph[name] = imported(path.read_text(encoding="utf-8"), set(PATHS), package) - {name}
    return graph


def inside(graph: Graph, folder: str) -> Graph:
    """Imports between the entries of a folder, files and subfolders, each taken as a whole; "" is the root."""
    prefix = f"{folder}." if folder else ""

    def entry(module: str) -> str:
        return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else ""

    found: Graph = {entry(module): set() for module in graph if entry(module)}
    for module, targets in graph.items():
        if entry(module):
            found[entry(module)] |= {entry(t) for t in targets} - {"", entry(module)}
    return found


def floors(graph: Graph) -> dict[str, int]:
    """The floor of each node: one above the highest that it imports.

    Raises:
        ValueError: where imports run in a circle, so that one of them runs upward; the message shows the circle.
    """
    found: dict[str, int] = {}

    def visit(node: str, above: tuple[str, ...]) -> int:
        if node in above:
            raise ValueError(" → ".join((*above[above.index(node) :], node)))
        if node not in found:
            found[node] = 1 + max((visit(n, (*above, node)) for n in sorted(graph[node])), default=-1)
        return found[node]

    for node in sorted(graph):
        visit(node, ())
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder or "root")
def test_imports_run_downward_between_the_entries_of_a_folder(folder, whole):
    assert floors(inside(whole, folder))


def test_no_modules_import_each_other_in_a_circle(whole):
    assert floors(whole)


def test_the_library_stands_below_the_analysis_and_both_below_the_tests(whole):
    assert floors(inside(whole, "")) == {"lngeom": 0, "analysis": 1, "tests": 2}
    assert {"families", "claims", "cli"} <= set(floors(inside(whole, "lngeom")))


def allowed(package: str) -> set[str]:
    """Packages that a package may import by its docstring."""
    text = " ".join((importlib.import_module(f"lngeom.{package}").__doc__ or "").split())
    if text.endswith("It imports no other package."):
        return set()
    if text.endswith("It may import every package."):
        return PACKAGES
    said = re.search(r"It may import ([^.]*)[.]$", text)
    assert said, f"the docstring of lngeom.{package} ends with what it may import"
    return set(re.findall(r"`([a-z_]+)`", said[1]))


PACKAGES = {path.parent.name for path in HERE.glob("lngeom/*/__init__.py")}


def test_the_library_is_fourteen_packages(whole):
    assert len(PACKAGES) == 14
    assert {path.name for path in HERE.glob("lngeom/*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_imports_what_its_docstring_says_and_no_more(package, whole):
    graph = inside(whole, "lngeom")
    assert graph[package] <= allowed(package)
    assert package == "cli" or graph[package] == allowed(package)


@pytest.mark.parametrize(
    ("module", "target", "folder"),
    [
        ("lngeom.information.glm", "lngeom.claims", "lngeom"),
        ("lngeom.families", "lngeom.information.glm", "lngeom"),
        ("lngeom.training.laws", "lngeom.training.tracker", "lngeom.training"),
        ("lngeom.information.metric", "analysis.experiments.loop", ""),
        ("analysis.experiments.loaders.assemble", "analysis.experiments.mnist", "analysis.experiments"),
        ("analysis.experiments.loop", "analysis.__main__", "analysis"),
        ("analysis.figures.redraw", "tests.cases", ""),
        ("tests.test_data", "tests.test_cli", "tests"),
    ],
)
def test_an_import_upward_is_seen(module, target, folder, whole):
    planted = whole | {module: whole[module] | {target}}
    with pytest.raises(ValueError, match="→"):
        floors(inside(planted, folder))


def test_two_folders_that_import_each_other_are_seen_though_no_two_modules_do():
    graph = {"p.a.x": {"p.b.x"}, "p.b.x": set(), "p.b.y": {"p.a.y"}, "p.a.y": set()}
    assert floors(graph) == {"p.a.x": 1, "p.b.x": 0, "p.b.y": 1, "p.a.y": 0}
    with pytest.raises(ValueError, match="a → b → a"):
        floors(inside(graph, "p"))


def test_imports_are_read_wherever_they_stand():
    known = {"lngeom", "lngeom.claims", "lngeom.metric", "lngeom.metric.inner"}
    assert imported("from lngeom.claims import run", known) == {"lngeom.claims"}
    assert imported("def f():\n    from lngeom import metric", known) == {"lngeom.metric"}
    assert imported("from lngeom import __version__\nimport jax", known) == {"lngeom"}
    assert imported("import lngeom.metric.inner as m", known) == {"lngeom.metric.inner"}
    assert imported("from . import inner\nfrom .. import claims", known, "lngeom.metric") == {
        "lngeom.metric.inner",
        "lngeom.claims",
    }


def test_importing_pulls_in_nothing_heavy():
    code = (
        "import sys, lngeom; heavy = {'jax', 'numpy', 'scipy', 'matplotlib', 'hypothesis', 'sympy', 'typer', 'optax'}; "
        "found = heavy & {m.split('.')[0] for m in sys.modules}; assert not found, found"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env={**os.environ})


UNUSED = "sympy matplotlib scipy.linalg scipy.sparse scipy.optimize scipy.special scipy.stats optax hypothesis flax"
UNUSED += " sklearn typer rich jinja2 lngeom.transformers lngeom.claims lngeom.checks lngeom.symbolic lngeom.training"


def test_a_first_fisher_matrix_loads_only_what_it_uses():
    code = (
        "import sys, jax, jax.numpy as jnp, lngeom as lg; "
        "apply = lambda params, X: jax.nn.standardize(X @ params['W'].T); "
        "F = lg.fisher(apply, {'W': jnp.eye(3)}, jnp.arange(12.0).reshape(4, 3) ** 2, family=lg.families.Bernoulli()); "
        "assert F.as_matrix().shape == (9, 9); "
        f"found = set({UNUSED!r}.split()) & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env={**os.environ})


def test_no_module_begins_with_the_import_of_a_part_of_scipy():
    """`import scipy` loads a part when it is first used. All claims use several, but never its statistics."""
    library = {name: path.read_text(encoding="utf-8") for name, path in PATHS.items() if name.startswith("lngeom")}
    part = re.compile(r"^(import scipy\.|from scipy)", re.MULTILINE)
    statistics = re.compile(r"^(import scipy\.stats|from scipy\.stats|from scipy import .*stats)", re.MULTILINE)
    assert part.search("import numpy\nimport scipy.linalg\n")
    assert statistics.search("import numpy\nimport scipy.stats\n")
    assert not [name for name, text in library.items() if statistics.search(text)]
    assert not [name for name, text in library.items() if part.search(text) and not name.startswith("lngeom.papers")]


def test_importing_flips_no_global_flag():
    code = "import jax; before = dict(jax.config.values); import lngeom; assert dict(jax.config.values) == before"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env={**os.environ})


def test_short_names_are_the_modules_themselves():
    code = (
        "import lngeom.rewrite.layouts, lngeom.stacks, pickle; from lngeom.normalizers import LayerNorm; "
        "from lngeom.transformers.rewrite import layouts; import lngeom.transformers, lngeom.methods as methods; "
        "assert lngeom.rewrite.layouts is layouts and lngeom.stacks is lngeom.transformers; "
        "assert LayerNorm is methods.LayerNorm and layouts.__spec__.name == layouts.__name__; "
        "assert pickle.loads(pickle.dumps(LayerNorm())) == LayerNorm()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env={**os.environ})
    with pytest.raises(ModuleNotFoundError, match=r"lngeom\.rewrite\.nothing"):
        importlib.import_module("lngeom.rewrite.nothing")


def surface() -> dict[str, list[str]]:
    """Public names by package, as the reference lists them."""
    entries = re.split(r"\n(?=- `lngeom|\n)", lngeom.__doc__ or "")
    names = [re.findall(r"`([\w.]+)`", entry) for entry in entries if entry.strip().startswith("- `lngeom")]
    return {package: listed for package, *listed in names}


def test_the_reference_lists_what_packages_export():
    packages = {
        name
        for name, path in PATHS.items()
        if name.startswith("lngeom") and path.name == "__init__.py" and "__all__" in path.read_text(encoding="utf-8")
    }
    listed = surface()
    assert set(listed) == packages
    assert set(listed["lngeom"]) == set(lngeom._NAMES)
    for package, names in listed.items():
        assert sorted(names) == sorted(importlib.import_module(package).__all__), package


def test_names_are_few_and_have_one_meaning():
    meanings: dict[str, set[int]] = {}
    for package, names in surface().items():
        for name in names:
            meanings.setdefault(name, set()).add(id(getattr(importlib.import_module(package), name)))
    several = {name for name, found in meanings.items() if len(found) > 1}
    layers = {"BatchNorm", "GroupNorm", "LayerNorm", "RMSNorm", "WeightNorm"}  # a map, and a layer
    assert several == {*layers, "save", "Mixture"}  # a figure and a checkpoint; of distributions and of experts
    assert sum(map(len, meanings.values())) <= 165


def test_methods_and_transformations_are_found_by_name():
    from lngeom import methods, transformations  # modules that can be subscripted

    assert methods["qk_l2"]().needs_positions
    assert methods["layer"] is methods["ln"] is methods.LayerNorm
    assert methods["Layer normalization"] is methods["LN"] is methods["LayerNorm"] is methods.LayerNorm
    assert (
        transformations["Weight matrix re-scaling"]
        is transformations["δW"]
        is transformations["weight_matrix_rescaling"]
    )
    assert transformations["weight_matrix_rescaling"] is transformations.WEIGHT_MATRIX_RESCALING
    with pytest.raises(KeyError, match="no method 'qk_l3': did you mean qk_ln, qk_l2"):
        methods["qk_l3"]
    with pytest.raises(KeyError, match="no transformation 'weight_flip': did you mean weight_sign_flip"):
        transformations["weight_flip"]


def test_probes_are_drawn_from_seeds_that_users_do_not_have():
    """A direction that equals a user's weights, of the same seed, proves nothing about them."""
    probing = ("information", "training", "checks", "transformers/rewrite/comparison")
    for path in (path for folder in probing for path in sorted((HERE / "lngeom" / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert not name.endswith("default_rng"), f"{path.name}:{node.lineno} takes no probe_generator"
