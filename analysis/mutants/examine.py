"""One mutant: planted in a copy of the repository, its claims asked, then relations, then tests."""

import compileall
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from lngeom._core.files import replacing
from lngeom.cli.interrupts import start
from rich.console import Console

from analysis.mutants.mutator import Mutant
from analysis.mutants.worker import alike

Outcome = Literal["claims", "relations", "tests", "none", "import", "no answer"]
"""Who notices a fault first, that it ends every import, or that no answer came in time."""

COPIED = ("lngeom", "tests", "analysis")
"""Folders of a copy; other files of the repository are links."""

QUICK = (
    "tests/relations", "tests/information", "tests/symbolic", "tests/training", "tests/nn", "tests/claims",
    "tests/stacks", "tests/rewrite", "tests/checks", "tests/test_families.py", "tests/test_family_checks.py",
    "tests/test_glm.py", "tests/test_metric.py", "tests/test_numerics.py", "tests/test_posterior.py",
    "tests/test_draws.py", "tests/test_trees.py", "lngeom",
)  # fmt: skip
"""Where the tests are that may be asked, those of the quick tier: relations first; in `lngeom`, the doctests."""

SECONDS = {"claims": 25.0, "relations": 40.0, "tests": 30.0}
"""What the asked ones of a kind take without the fault, at most."""

TIMES, MORE = 5.0, 60.0
"""A process that computes more than so many times its time without the fault, and so many seconds more, is ended."""

WHOLE = 3600.0
"""Seconds for all claims, or all tests, without a fault."""

EACH = 300.0
"""Seconds for one claim without a fault, or one row of the extended table."""


class Result(NamedTuple):
    """What became of a mutant.

    Attributes:
        id: of the mutant.
        area: of its file.
        change: what was changed, and what took its place.
        outcome: who noticed it first.
        by: the claim, relation or test that did.
        how: what it said.
        asked: number of claims, relations and tests that ran.
        seconds: time taken.
        later: the test that noticed it when it was planted again.
        later_code: hash of the code that it was planted in then.
    """

    id: str
    area: str
    change: str
    outcome: Outcome
    by: str
    how: str
    asked: int
    seconds: float
    later: str = ""
    later_code: str = ""


def code_of(root: Path) -> str:
    """Hash of the code under test and of its tests.

    Args:
        root: the checkout.

    Returns:
        The hash.
    """
    found = hashlib.sha256()
    for path in sorted(p for folder in ("lngeom", "tests") for p in (root / folder).rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


class Copy:
    """A copy of the repository, and a process that runs its claims and tests.

    Args:
        root: the repository.
        folder: where the copy goes.
    """

    def __init__(self, root: Path, folder: Path):
        self.code, self.root = code_of(root), folder / "copy"
        self.root.mkdir(parents=True)
        for path in root.iterdir():
            if path.name in COPIED:
                shutil.copytree(path, self.root / path.name, ignore=shutil.ignore_patterns(".*", "__pycache__"))
            elif not path.name.startswith(".") and path.name not in {"report", "reference", "dist", "build"}:
                (self.root / path.name).symlink_to(path.resolve())
        compileall.compile_dir(self.root, quiet=2)
        self._environment = {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),  # programs without the fault are compiled once
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "KERAS_BACKEND": "jax",
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(self.root),
            "COLUMNS": "300",
            "NO_COLOR": "1",
        }

    def __enter__(self) -> Self:
        program = "import runpy; runpy.run_path('analysis/mutants/worker.py')['main']()"
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = start([sys.executable, "-c", program], cwd=self.root, env=self._environment, text=True, **pipes)
        return self

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()

    def __exit__(self, *error: object) -> None:
        self.end()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def ask(self, kind: str, limit: float, **request: Any) -> tuple[list[dict[str, Any]], str, float]:
        """Sends a request to the process of the copy.

        Args:
            kind: "claims", "all claims" or "tests".
            limit: seconds of a processor.
            **request: its other fields.

        Returns:
            Answers, how it ended where it did not end by itself, and the seconds it took.

        Raises:
            RuntimeError: if the process is gone.
        """
        self._process.stdin.write(json.dumps({"kind": kind, "limit": limit, **request}) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the process that runs claims and tests ended early")
        answer = json.loads(line)
        return answer["lines"], answer["end"], answer["seconds"]

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[str]:
        """The copy with a fault.

        Args:
            mutant: the fault.

        Yields:
            What was changed, in a line.
        """
        path = self.root / "lngeom" / mutant.file
        source, times = path.read_bytes(), path.stat()
        changed, text = mutant.apply(source.decode())
        compiled = {old: old.read_bytes() for old in path.parent.glob(f"__pycache__/{path.stem}.*.pyc")}
        try:
            for old in compiled:
                old.unlink()
            path.write_text(changed, encoding="utf-8")
            yield text
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            for old, content in compiled.items():
                old.write_bytes(content)


class Witness(NamedTuple):
    """A claim or a test without a fault.

    Attributes:
        answer: what it says: the verdict of a claim; nothing of a test that passes.
        seconds: it takes.
        seen: the functions that it runs, as `FILE:NAME`.
    """

    answer: str
    seconds: float
    seen: frozenset[str]


class Baseline:
    """What claims and tests say without a fault, and which functions they run.

    Attributes:
        of: witnesses by name, for "claims", "relations" and "tests".
        seconds: that it took.
        failing: witnesses that fail without a fault, and are not asked.
        imported: functions that run when the claims are imported, whichever claim is asked.
    """

    def __init__(
        self,
        of: dict[str, dict[str, Witness]],
        seconds: float,
        failing: list[str],
        imported: frozenset[str] = frozenset(),
    ):
        self.of, self.seconds, self.failing, self.imported = of, seconds, failing, imported

    @property
    def counts(self) -> dict[str, int]:
        """Number of witnesses of each kind."""
        return {kind: len(known) for kind, known in self.of.items()}

    @classmethod
    def read(cls, path: Path | None, copy: Copy, console: Console) -> "Baseline":
        """Reads the baseline from a file, or makes it.

        Args:
            path: of the file; None for none.
            copy: of the repository, without a fault.
            console: takes messages.

        Returns:
            The baseline.
        """
        if path is not None and path.exists():
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["code"] == copy.code:
                return cls._of(document["lines"], document["seconds"])
            console.print(f"{path} is of other code, and is made anew", highlight=False)
        console.print("claims without a fault", highlight=False)
        claims, end, first = copy.ask("all claims", WHOLE, each=EACH)
        if end:
            raise RuntimeError(f"the claims cannot be checked without a fault: {end}")
        console.print(f"{len(claims)} in {first:.0f} s; tests without a fault", highlight=False)
        tests, end, second = copy.ask("tests", WHOLE, watch=True, tests=list(QUICK))
        if end:
            raise RuntimeError(f"the tests cannot be run without a fault: {end}")
        console.print(f"{len(tests)} in {second:.0f} s", highlight=False)
        lines = [{"kind": "claims", **line} for line in claims] + [{"kind": "tests", **line} for line in tests]
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(json.dumps({"code": copy.code, "seconds": first + second, "lines": lines}).encode())
        return cls._of(lines, first + second)

    @classmethod
    def _of(cls, lines: list[dict[str, Any]], seconds: float) -> "Baseline":
        relations = {line["relation"] for line in lines if "relation" in line}
        of: dict[str, dict[str, Witness]] = {"claims": {}, "relations": {}, "tests": {}}
        failing, imported = [], frozenset()
        for line in lines:
            imported |= frozenset(line.get("imported", ()))
            if "by" not in line:
                continue
            kind = "relations" if line["by"] in relations else line["kind"]
            broken = line.get("end") or line["answer"].startswith("error") or (kind != "claims" and line["answer"])
            if broken:
                failing.append(line["by"])
            else:
                of[kind][line["by"]] = Witness(line["answer"], line["seconds"], frozenset(line.get("seen", ())))
        return cls(of, round(seconds, 1), failing, imported)

    def asked(self, mutant: Mutant, kind: str) -> dict[str, Witness]:
        """The witnesses of a kind that run the function of a mutant, quick ones first, up to a number of seconds.

        Of what runs at import or is no function, those that run anything of its file.

        Args:
            mutant: the mutant.
            kind: "claims", "relations" or "tests".

        Returns:
            Witnesses by name.
        """
        function, file = f"{mutant.file}:{mutant.name}", f"{mutant.file}:"
        known = self.of[kind]
        found = {name: w for name, w in known.items() if function in w.seen}
        if function in self.imported or not any(function in w.seen for of in self.of.values() for w in of.values()):
            found |= {name: w for name, w in known.items() if any(seen.startswith(file) for seen in w.seen)}
        total, taken = 0.0, {}
        for name in sorted(found, key=lambda n: (found[n].seconds * (10 + len(found[n].seen)), n)):
            total += found[name].seconds
            if taken and total > SECONDS[kind]:
                break
            taken[name] = found[name]
        return taken


def _limit(asked: dict[str, Witness]) -> float:
    return MORE + TIMES * sum(w.seconds for w in asked.values())


def examine(mutant: Mutant, area: str, baseline: Baseline, copy: Copy) -> Result:
    """Plants a fault and asks claims, then relations, then tests.

    Args:
        mutant: the fault.
        area: of its file.
        baseline: what they say without it.
        copy: of the repository, without it.

    Returns:
        Who noticed.
    """
    with copy.planted(mutant) as change:
        seconds, count = 0.0, 0

        def result(outcome: Outcome, by: str = "", how: str = "") -> Result:
            return Result(mutant.id, area, change, outcome, by, how, count, round(seconds, 1))

        asked = baseline.asked(mutant, "claims")
        expected = {name: w.answer for name, w in asked.items()}
        lines, end, seconds = copy.ask("claims", _limit(asked), expected=expected)
        if not lines and end != "time":
            return result("import", how=end)
        answers = [line for line in lines if "by" in line]
        count = len(answers)
        for line in answers:
            if not alike(line["answer"], expected[line["by"]]):
                return result("claims", line["by"], f"{expected[line['by']]} → {line['answer']}"[:300])
        if end:
            return result("no answer", how=end)
        for kind in ("relations", "tests"):
            answer = ask_tests(kind, mutant, baseline, copy)
            seconds += answer.seconds
            count += answer.count
            if answer.by:
                return result(kind, answer.by, answer.how)
            if answer.end:
                return result("no answer", how=answer.end)
        return result("none")


class Answer(NamedTuple):
    """What the relations or the tests that run the function of a mutant say of it.

    Attributes:
        by: the first that fails.
        how: what it says.
        end: how their process ended, where it did not end by itself.
        count: number that ran.
        seconds: time taken.
    """

    by: str = ""
    how: str = ""
    end: str = ""
    count: int = 0
    seconds: float = 0.0


def ask_tests(kind: str, mutant: Mutant, baseline: Baseline, copy: Copy) -> Answer:
    """Asks relations or tests about a fault.

    Args:
        kind: "relations" or "tests".
        mutant: the fault.
        baseline: what they say without it.
        copy: of the repository, with it.

    Returns:
        What they say.
    """
    asked = baseline.asked(mutant, kind)
    if not asked:
        return Answer()
    lines, end, seconds = copy.ask("tests", _limit(asked), watch=False, tests=list(asked))
    failed = next((line for line in lines if line.get("answer")), {"by": "", "answer": ""})
    return Answer(failed["by"], failed["answer"], end, sum("by" in line for line in lines), seconds)


def passes(copy: Copy, test: str) -> bool:
    """Whether a test passes in a copy.

    Args:
        copy: of the repository, with or without a fault.
        test: its id.

    Returns:
        Whether it does.

    Raises:
        ValueError: if there is no such test, or it gives no answer.
    """
    lines, end, _ = copy.ask("tests", EACH, watch=False, tests=[test], options=["-m", "not peers"])
    answers = [line["answer"] for line in lines if "by" in line]
    if end or not answers:
        raise ValueError(f"{test} does not run: {end or 'there is no such test'}")
    return not any(answers)
