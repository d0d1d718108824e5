"""Mutants: what each operator changes, that the rest of a file stays, and what becomes of faults in a small library."""

import ast
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import lngeom
import pytest
from analysis.mutants import campaign, examine, mutator
from analysis.mutants.examine import Baseline, Copy, Result, Witness
from analysis.mutants.mutator import OPERATORS, Mutant, definitions, render, sites
from analysis.mutants.table import Survivors, kind, markdown, read, shares, summarize, write
from analysis.mutants.targets import MATHEMATICS, TARGETS, all_mutants, draw, fresh_mutants
from rich.console import Console

ROOT = Path(lngeom.__file__).resolve().parents[1]
NOBODY = Survivors({}, {})

CHANGED = {
    "sums": ("a + b - c", ["a + b + c", "a - b - c"]),
    "products": ("a * b / c", ["a * b * c", "a / b / c"]),
    "powers": ("a ** 2", ["a * 2"]),
    "comparisons": ("a < b", ["a > b"]),
    "connectives": ("a and b", ["a or b"]),
    "signs": ("f(-a, axis=-1)", ["f(a, axis=-1)", "f(-a, axis=0)"]),
    "constants": ("f(a[0], 1, axis=2, ddof=0.5, exact=True)", None),
    "terms": ("a - b", ["a", "-b"]),
    "factors": ("a * b / c", ["a * b", "a / c", "b / c"]),
    "calls": ("jnp.mean(jnp.sqrt(a))", ["jnp.sum(jnp.sqrt(a))", "jnp.mean(a)"]),
    "arguments": ("f(a, b, c)", ["f(b, a, c)"]),
    "keywords": ("f(a, axis=0, dtype=d)", ["f(a, dtype=d)"]),
    "transposes": ("a.T @ b", ["a @ b"]),
    "guards": ("if a:\n    raise ValueError", ["pass"]),
    "cases": ("jnp.where(a, b, c)", ["b", "c"]),
    "conditions": ("b if not a else c", ["b if a else c"]),
}
"""A line, and what each operator makes of it."""


def function(body):
    source = "def f():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return definitions(ast.parse(source))["f"]


def changes(operator, body):
    """The bodies that an operator makes of a body."""
    found = []
    for k in range(sum(s.operator == operator for s in sites(function(body)))):
        source = ast.unparse(function(body))
        changed, _ = Mutant("file.py", "f", operator, k).apply(source)
        found.append(ast.unparse(definitions(ast.parse(changed))["f"]).partition("\n    ")[2])
    return found


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_changes_each_place_once(operator):
    body, expected = CHANGED[operator]
    if operator == "constants":
        expected = [body.replace(*pair) for pair in (("0]", "1]"), (", 1,", ", 2,"), ("=2", "=1"), ("0.5", "1.0"))]
        expected.append(body.replace("True", "False"))
    assert changes(operator, body) == expected


@pytest.mark.parametrize(
    ("operator", "body"),
    [
        ("sums", "'a' + b"),
        ("sums", "raise ValueError(a + b)"),
        ("sums", "f'{a + b}'"),
        ("constants", "100"),
        ("constants", "-1"),
        ("arguments", "f(a, a)"),
        ("arguments", "f(a, 'text')"),
        ("arguments", "isinstance(a, b)"),
        ("guards", "if a:\n    raise ValueError\nelse:\n    pass"),
        ("calls", "jnp.sqrt(*a)"),
    ],
)
def test_what_decides_no_result_is_not_changed(operator, body):
    assert changes(operator, body) == []


def test_annotations_decorators_and_docstrings_are_not_changed():
    source = '@g(1 + 1)\ndef f(a: int = 1 + 2) -> "b + 1":\n    """1 + 1"""\n    return a\n'
    assert [s.text for s in sites(definitions(ast.parse(source))["f"])] == [
        "1 + 2 → 1 - 2", "1 + 2 → 1", "1 + 2 → 2", "1 → 2", "2 → 1",
    ]  # fmt: skip


SOURCE = '''"""A file."""

import  math  # not as the formatter has it

class A:
    x = (1 +
         2)

    @property   # a comment
    def f(self):
        """A docstring, 1 + 1."""
        # a comment that goes
        return self.x + 1

    @f.setter
    def f(self, value):
        self.x = value - 1

y = lambda : 3  ;  z = 4
'''


def test_the_rest_of_the_file_stays_byte_for_byte():
    changed, text = Mutant("file.py", "A.f", "sums", 0).apply(SOURCE)
    assert text == "self.x + 1 → self.x - 1"
    before, after = SOURCE.split("        # a comment that goes\n        return self.x + 1\n")
    assert changed == before + "        return self.x - 1\n" + after
    assert Mutant("file.py", "y", "constants", 0).apply(SOURCE)[0] == SOURCE.replace("lambda : 3", "lambda: 4")
    changed, _ = Mutant("file.py", "A.x", "sums", 0).apply(SOURCE)
    assert changed == SOURCE.replace("(1 +\n         2)", "1 - 2")


def test_a_second_definition_of_a_name_has_a_number():
    assert list(definitions(ast.parse(SOURCE))) == ["A.x", "A.f", "A.f#2", "y", "z"]
    changed, _ = Mutant("file.py", "A.f#2", "sums", 0).apply(SOURCE)
    assert changed == SOURCE.replace("value - 1", "value + 1")


def test_a_definition_written_anew_without_a_change_is_the_same_program():
    for file in ("information/metric.py", "methods/layer.py", "symbolic/sums.py"):
        source = (ROOT / "lngeom" / file).read_text(encoding="utf-8")
        for definition in definitions(ast.parse(source)).values():
            assert ast.dump(ast.parse(render(source, definition, definition))) == ast.dump(ast.parse(source))


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("file.py:A.f:sums", "no id of a mutant"),
        ("file.py:A.f:sums:x", "no id of a mutant"),
        ("file.py:A.f:thoughts:0", "no id of a mutant"),
        ("file.py:A.g:sums:0", r"defines no 'A\.g'"),
        ("file.py:A.f:sums:1", r"no place 1 for 'sums'"),
    ],
)
def test_an_id_that_is_none_is_refused(id, message):
    with pytest.raises(ValueError, match=message):
        Mutant.of(id).apply(SOURCE)


TARGET = TARGETS[0]._replace(file="file.py", number=4)
MORE = "\n\ndef first(a, b):\n    return a + b - 1\n\n\ndef second(a, b):\n    return a * b / 2 if a else 0\n"


def test_ids_are_stable():
    drawn = draw(TARGET, MORE)
    assert drawn == draw(TARGET, "import math\n" + MORE)
    assert drawn[:2] == draw(TARGET, MORE, 2)
    assert [Mutant.of(m.id) for m in drawn] == drawn
    assert {m.name for m in drawn[:2]} == {m.name for m in drawn[2:]} == {"first", "second"}
    assert len({m.id for m in drawn}) == len({(m.name, m.operator) for m in drawn}) == 4


def test_functions_that_only_write_or_refuse_are_not_drawn():
    for name in ("describe", "_warn_of", "check_shape"):
        assert draw(TARGET, MORE.replace("first", name).replace("second", name)) == []
    assert draw(TARGET, MORE.replace("def", "@PAPER.claim(1)\ndef")) == []


def test_every_drawn_mutant_is_another_program():
    mutants = all_mutants(ROOT)
    assert len(mutants) == sum(t.number for t in TARGETS)
    assert set(MATHEMATICS) < {area for _, area in mutants.values()}
    sources = {m.file: (ROOT / "lngeom" / m.file).read_text(encoding="utf-8") for m, _ in mutants.values()}
    plain = {file: ast.dump(ast.parse(source)) for file, source in sources.items()}
    for mutant, _ in mutants.values():
        changed, text = mutant.apply(sources[mutant.file])
        assert ast.dump(ast.parse(changed)) != plain[mutant.file], f"{mutant.id} changes no code: {text}"


def test_fresh_mutants_are_not_listed_and_are_of_the_mathematics():
    listed = all_mutants(ROOT)
    fresh = fresh_mutants(ROOT, 40, set(listed))
    assert len(fresh) == 40
    assert not fresh.keys() & listed.keys()
    assert {area for _, area in fresh.values()} <= set(MATHEMATICS)
    assert list(fresh_mutants(ROOT, 10, set(listed))) == list(fresh)[:10]


def test_survivors_of_the_whole_run_are_explained_once():
    """In the sources that were measured; places of those at hand may be others."""
    survivors, (configuration, found) = Survivors.read(campaign.SURVIVORS), read(ROOT / "figures/mutants.json")
    every = [*found, *(Result(**row) for row in configuration["fresh"])]
    explained = [id for reasons in survivors for id in reasons]
    assert sorted(explained) == sorted(r.id for r in every if r.outcome in {"none", "no answer"})
    for test in survivors.tests.values():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), test


FORMULA = """
RATIO = 1 / (2 - 1)

def doubled(x):
    return RATIO * x * 2

def area(a, b):
    return a * b

def longest(a):
    return max(a) + 0 * RATIO

def waits(n):
    while n > 0:
        n = n - 1

def unseen(a):
    return a + 1
"""

REGISTRY = """
from types import SimpleNamespace as Record
from lngeom import formula

BA2016 = "ba2016"

def all_claims(topic):
    return [Record(id="double", topic=""), Record(id="wait", topic="")]

def run(claim, problem):
    if claim.id == "wait":
        formula.waits(3)
    value = "holds" if claim.id == "wait" or formula.doubled(3) == 6 else "refuted"
    return Record(error="", waiting=False, verdict=Record(value=value))
"""

PROOFS = """
from types import SimpleNamespace as Record

def provable():
    return ["double"]

def proof_evidence(id, steps):
    return [Record(passed=True, description="", role=Record(value="supports"))]
"""

TESTS = """
import pytest
from lngeom import formula

@pytest.mark.relation
@pytest.mark.parametrize("a", [2, 3])
def test_area(a):
    assert formula.area(a, 5) == 5 * a

def test_longest():
    assert formula.longest([1, 2]) == 2

def test_fails():
    assert formula.unseen(1) == 3
"""

LIBRARY = {
    "lngeom/__init__.py": "",
    "lngeom/formula.py": FORMULA,
    "lngeom/claims/__init__.py": "class Problem:\n    def __init__(self, inputs, seed):\n        pass\n",
    "lngeom/claims/registry.py": REGISTRY,
    "lngeom/claims/papers.py": "def ids():\n    return ['ba2016']\n",
    "lngeom/claims/proofs.py": PROOFS,
    "tests/test_it.py": TESTS,
    "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["relation: holds"]\n',
}
"""A small library with claims, a relation and tests, one of which fails."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A copy of the small library, and its baseline."""
    root = tmp_path_factory.mktemp("library")
    for name, text in LIBRARY.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for name in ("analysis/__init__.py", "analysis/mutants/worker.py", "analysis/mutants/mutator.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((ROOT / name).read_bytes())
    (root / "analysis/mutants/__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch, Copy(root, tmp_path_factory.mktemp("copy")) as copy:
        patch.setattr(examine, "QUICK", ("tests",))
        patch.setattr(examine, "MORE", 4.0)
        kept = root / "baseline.json"
        baseline = Baseline.read(kept, copy, Console(quiet=True))
        assert Baseline.read(kept, copy, Console(quiet=True)).of == baseline.of
        yield SimpleNamespace(copy=copy, baseline=baseline)


def become(small, id):
    return examine.examine(Mutant.of(f"formula.py:{id}"), "core", small.baseline, small.copy)


@pytest.mark.thorough
def test_the_baseline_says_what_runs_without_a_fault(small):
    of = small.baseline.of
    assert {name: w.answer for name, w in of["claims"].items()} == {
        "numbers double": "holds", "numbers wait": "holds", "proof double": "checks: supports",
    }  # fmt: skip
    assert of["claims"]["numbers double"].seen == {"formula.py:doubled"} | {"claims/registry.py:run"} | {
        "claims/__init__.py:Problem.__init__"
    }
    assert list(of["relations"]) == ["tests/test_it.py::test_area[2]", "tests/test_it.py::test_area[3]"]
    assert of["tests"]["tests/test_it.py::test_longest"].seen == {"formula.py:longest"}
    assert small.baseline.failing == ["tests/test_it.py::test_fails"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("id", "outcome", "by"),
    [
        ("doubled:products:0", "claims", "numbers double"),
        ("area:products:0", "relations", "tests/test_it.py::test_area"),
        ("longest:constants:0", "tests", "tests/test_it.py::test_longest"),
        ("longest:factors:0", "none", ""),
        ("unseen:sums:0", "none", ""),
        ("RATIO:constants:1", "import", ""),
        ("waits:sums:0", "no answer", ""),
        ("doubled:factors:1", "claims", "numbers double"),
    ],
)
def test_what_becomes_of_a_fault(small, id, outcome, by):
    file = small.copy.root / "lngeom/formula.py"
    found = become(small, id)
    assert (found.outcome, found.by.split("[")[0]) == (outcome, by), found  # the quicker of two draws is asked first
    assert file.read_text(encoding="utf-8") == FORMULA


def test_witnesses_are_asked_that_run_the_function_quick_ones_first():
    many = {f"numbers {k}": Witness("holds", float(k), frozenset({"a.py:f", "a.py:g"})) for k in range(1, 20)}
    few = {"numbers other": Witness("holds", 0.1, frozenset({"a.py:g", "b.py:f"}))}
    baseline = Baseline({"claims": many | few, "relations": {}, "tests": {}}, 0.0, [])
    assert list(baseline.asked(Mutant("a.py", "f", "sums", 0), "claims")) == [f"numbers {k}" for k in range(1, 7)]
    assert list(baseline.asked(Mutant("b.py", "f", "sums", 0), "claims")) == ["numbers other"]
    assert list(baseline.asked(Mutant("b.py", "TABLE", "sums", 0), "claims")) == ["numbers other"]
    assert not baseline.asked(Mutant("c.py", "f", "sums", 0), "claims")
    imported = Baseline(baseline.of, 0.0, [], frozenset({"b.py:table"}))
    assert list(imported.asked(Mutant("b.py", "table", "sums", 0), "claims")) == ["numbers other"]


def end_when(started, copy):
    while not started.exists():
        time.sleep(0.1)
    copy.end()


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.thorough
def test_what_runs_ends_with_the_process_that_started_it(tmp_path):
    root, started = tmp_path / "library", tmp_path / "started"
    for name in ("analysis/mutants/worker.py", "tests/test_it.py"):
        (root / name).parent.mkdir(parents=True)
    (root / "analysis/mutants/worker.py").write_bytes((ROOT / "analysis/mutants/worker.py").read_bytes())
    (root / "tests/test_it.py").write_text(
        "import os, pathlib, time\n\n\ndef test_long():\n"
        f"    pathlib.Path({str(started)!r}).write_text(str(os.getpid()))\n    time.sleep(100)\n"
    )
    with Copy(root, tmp_path / "copy") as copy:
        threading.Thread(target=end_when, args=(started, copy)).start()
        with pytest.raises(RuntimeError, match="ended early"):
            copy.ask("tests", 100.0, watch=False, tests=["tests"])
    for _ in range(100):
        if not is_running(int(started.read_text())):
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")


@pytest.mark.thorough
def test_an_added_test_is_seen_to_notice_a_survivor(small):
    found = {"formula.py:longest:constants:0": result("formula.py:longest:constants:0", "none")}
    campaign.ask_again(small.copy, found, Survivors({}, dict.fromkeys(found, "tests/test_it.py::test_longest")), "new")
    (again,) = found.values()
    assert (again.outcome, again.later, again.later_code) == ("none", "tests/test_it.py::test_longest", "new")
    for test, message in (("test_area[2]", "does not notice"), ("test_fails", "fails without"), ("test_no", "no such")):
        with pytest.raises(ValueError, match=message):
            campaign.ask_again(small.copy, found, Survivors({}, dict.fromkeys(found, f"tests/test_it.py::{test}")), "")


@pytest.mark.thorough
def test_a_fault_of_this_library_is_noticed_by_its_claim(tmp_path):
    mutant = Mutant("information/metric.py", "gain", "constants", 0)
    claims = {"numbers equation.33": Witness("holds", 5.0, frozenset({f"{mutant.file}:{mutant.name}"}))}
    baseline = Baseline({"claims": claims, "relations": {}, "tests": {}}, 0.0, [])
    with Copy(ROOT, tmp_path) as copy:
        found = examine.examine(mutant, "information", baseline, copy)
    assert (found.outcome, found.by, found.asked) == ("claims", "numbers equation.33", 1), found


def result(id, outcome, area="nn", *, change="a → b", **more):
    return Result(id, area, change, outcome, more.pop("by", ""), more.pop("how", ""), 1, 0.5, **more)


FOUND = [
    result("1", "claims", by="numbers equation.3", how="holds → refuted"),
    result("2", "relations", by="tests/relations/test_operator.py::test_rows"),
    result("3", "tests", by="tests/test_glm.py::test"),
    result("4", "none", later="tests/test_glm.py::test_new", later_code="later"),
    result("5", "none"),
    result("6", "import", "papers", how="SyntaxError"),
    result("7", "none", "papers"),
]
SAID = Survivors({"5": "a | b is symmetric"}, {"4": "tests/test_glm.py::test_new"})


def test_shares_are_of_what_changes_a_result():
    assert [kind(r, SAID) for r in FOUND] == ["claims", "relations", "tests", "none", "equivalent", "import", "none"]
    rows = summarize(FOUND, SAID)
    assert list(rows) == ["nn", "papers", "mathematics", "all"]
    assert shares(rows["mathematics"]) == (0.5, 0.75)
    assert shares(rows["all"]) == (0.4, 0.6)
    assert shares(rows["papers"]) == (0.0, 0.0)
    assert shares(summarize(FOUND, NOBODY)["nn"]) == (0.4, 0.6)


def test_results_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "mutants.json"
    given = {"command": "python -m analysis mutants", "code": "abc", "seconds": 1200.0, "baseline seconds": 600.0}
    write(FOUND, SAID, given, path)
    configuration, again = read(path)
    assert (configuration, again) == (given, FOUND)
    page = markdown(again, SAID, configuration)
    assert "hash `abc`" in page
    assert "10 min without a fault and 20 min with 7 faults" in page
    assert "| mathematics | 5 | 1 | 1 | 1 | 1 | 1 | 0 | 0 | 50 % | 75 % |" in page
    assert "| `4` | `a → b` | `tests/test_glm.py::test_new` |" in page
    assert r"| `5` | `a → b` | a \| b is symmetric |" in page
    assert "| `7` | `a → b` | **by none** |" in page
    assert "in the sources `later`" in page
    assert "Fresh faults" not in page
    fresh = {"fresh": [r._asdict() for r in FOUND[:5]], "fresh code": "newer", "fresh seconds": 60.0}
    page = markdown(again, SAID, configuration | fresh)
    assert "(`--fresh 5`, in the sources `newer`, 1 min)" in page
    assert "claims and relations notice 50 %, all together 75 %" in page
    assert "\n\nNot in one piece.\n\n| area |" in markdown(again, SAID, configuration | {"note": "Not in one piece."})
    assert campaign.kept_results(path, "abc") == (given, FOUND)
    assert campaign.kept_results(tmp_path / "none.json", "abc") == ({}, [])
    with pytest.raises(ValueError, match="other code"):
        campaign.kept_results(path, "def")
    path.write_text("{}")
    with pytest.raises(ValueError, match="holds no results"):
        read(path)


def test_operators_are_those_that_are_tested():
    assert set(CHANGED) == set(mutator.OPERATORS)
