"""One mutant: a copy of the repository with the fault, its claims in a new process, then its tests."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from lngeom.cli.interrupts import start

from analysis.mutants.judge import differs
from analysis.mutants.mutant import Mutant

Outcome = Literal["claims", "tests", "none", "import", "no answer"]
"""Who notices a fault first, that it ends every import, or that no answer came in time."""

COPIED = ("lngeom", "tests", "analysis")
"""Folders of a copy; other files of the repository are links."""

LEFT_OUT = shutil.ignore_patterns(".*")

JUDGE = "from analysis.mutants.judge import main; main()"

PIECE = 25
"""Claims of one process without a fault."""

Verdicts = dict[str, dict[str, Any]]
"""Verdict and error of claims by their ids."""


class NoAnswer(RuntimeError):
    """A process took too long, or was killed."""


class BrokenImport(RuntimeError):
    """The package cannot be imported."""


@dataclass(frozen=True)
class Result:
    """What became of a mutant.

    Attributes:
        id: of the mutant.
        fingerprint: of the mutant.
        outcome: who noticed it first.
        by: the claim or test that did.
        how: what it said.
        claims: number of claims that were checked.
        seconds: time taken.
    """

    id: str
    fingerprint: str
    outcome: Outcome
    by: str
    how: str
    claims: int
    seconds: float


def snapshot(root: Path, to: Path) -> None:
    """Copies what claims and tests need of a repository.

    Args:
        root: the repository.
        to: where the copy goes.
    """
    to.mkdir(parents=True)
    for path in root.iterdir():
        if path.name in COPIED:
            shutil.copytree(path, to / path.name, ignore=LEFT_OUT)
        elif not path.name.startswith(".") and path.name not in {"report", "reference", "dist", "build"}:
            (to / path.name).symlink_to(path.resolve())


def _environment(root: Path) -> dict[str, str]:
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(root), "COLUMNS": "300", "NO_COLOR": "1"}
    return {"JAX_PLATFORMS": "cpu", **os.environ, **quiet}


def _run(arguments: Sequence[str], root: Path, limit: float, request: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of Python in a folder.

    Raises:
        NoAnswer: if it takes longer than the limit, or is killed; it and its children are ended.
    """
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = start(
        [sys.executable, *arguments], cwd=root, env=_environment(root), text=True, start_new_session=True, **pipes
    )
    try:
        out, error = process.communicate(request, limit)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer in {limit:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode < 0:
        raise NoAnswer(f"ended by signal {-process.returncode}")
    return process.returncode, out, error


def check(root: Path, claims: Sequence[str], proofs: bool, limit: float, expected: Verdicts | None = None) -> Verdicts:
    """Verdicts of claims in a copy of the repository, up to the first that differs from what is expected.

    Args:
        root: the copy.
        claims: their ids.
        proofs: whether proofs are made too.
        limit: seconds.
        expected: verdicts on code without a fault; None to check all claims.

    Returns:
        Verdict and error of each.

    Raises:
        BrokenImport: if the package or its claims cannot be imported.
        NoAnswer: if it takes too long, or the process ends early.
    """
    request = json.dumps({"claims": list(claims), "proofs": proofs, "expected": expected})
    code, out, error = _run(["-c", JUDGE], root, limit, request)
    lines = [json.loads(line) for line in out.splitlines()]
    last = (error.strip().splitlines() or [""])[-1]
    if not lines:
        raise BrokenImport(last)
    if code:
        raise NoAnswer(f"exit code {code}: {last}")
    return {line["id"]: {"verdict": line["verdict"], "error": line["error"]} for line in lines[1:]}


def run_tests(root: Path, files: Sequence[str], limit: float) -> tuple[str, str] | None:
    """Runs test files in a copy of the repository.

    Args:
        root: the copy.
        files: their paths.
        limit: seconds.

    Returns:
        The first test that fails and its message; None if all pass.

    Raises:
        NoAnswer: if it takes too long.
        RuntimeError: if no test could be run.
    """
    code, out, error = _run(["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files], root, limit)
    if code == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", out, re.MULTILINE)
    if code not in {1, 2} or found is None:
        raise RuntimeError(f"pytest ended with exit code {code}: {(out + error)[-2000:]}")
    return found[1], found[2] or ""


class Baseline:
    """Verdicts and tests on the code without a fault: in one copy, each computed when it is first needed.

    Args:
        root: the copy.
        limit: seconds for one run.
    """

    def __init__(self, root: Path, limit: float):
        self.root, self.limit = root, limit
        self._verdicts: dict[bool, Verdicts] = {False: {}, True: {}}
        self._failing: dict[str, bool] = {}
        self._lock = threading.Lock()

    def verdicts(self, claims: Sequence[str], proofs: bool) -> Verdicts:
        """Verdicts of these claims."""
        with self._lock:
            known = self._verdicts[proofs]
            missing = [id for id in claims if id not in known]
            for piece in (missing[k : k + PIECE] for k in range(0, len(missing), PIECE)):
                known |= check(self.root, piece, proofs, self.limit)
            return {id: known[id] for id in claims}

    def passes(self, file: str) -> bool:
        """Whether a test file passes."""
        with self._lock:
            if file not in self._failing:
                self._failing[file] = run_tests(self.root, [file], self.limit) is not None
            return not self._failing[file]


@contextmanager
def planted(mutant: Mutant, original: Path) -> Iterator[Path]:
    """A copy of a copy, with the fault.

    Args:
        mutant: the fault.
        original: a copy without it.

    Yields:
        Its folder.
    """
    with TemporaryDirectory(dir=original.parent, ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "copy"
        snapshot(original, root)
        mutant.plant(root)
        yield root


def _shown(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if after["error"] and not before["error"]:
        return after["error"].splitlines()[0][:200]
    return f"{before['verdict']} → {after['verdict']}"


def examine(
    mutant: Mutant, baseline: Baseline, claims: Sequence[str], limit: float, log: Callable[[str], None] = lambda _: None
) -> Result:
    """Plants a fault and asks its claims, then its tests.

    Args:
        mutant: the fault.
        baseline: of the code without it.
        claims: ids of its claims.
        limit: seconds for its claims, and for its tests.
        log: takes messages about tests that cannot be used.

    Returns:
        Who noticed.
    """
    begin, checked = time.monotonic(), 0

    def result(outcome: Outcome, by: str = "", how: str = "") -> Result:
        return Result(mutant.id, mutant.fingerprint, outcome, by, how, checked, round(time.monotonic() - begin, 1))

    expected = baseline.verdicts(claims, mutant.proofs)  # not part of its time
    begin = time.monotonic()
    with planted(mutant, baseline.root) as root:
        try:
            found = check(root, claims, mutant.proofs, limit, expected) if claims else {}
            checked = len(found)
            for id, verdict in found.items():
                if differs(verdict, expected[id]):
                    return result("claims", id, _shown(expected[id], verdict))
            for file in mutant.tests:
                if failed := run_tests(root, [file], limit):
                    if baseline.passes(file):
                        return result("tests", *failed)
                    log(f"{file} fails without a fault too: it decides nothing")
        except BrokenImport as error:
            return result("import", how=str(error))
        except NoAnswer as error:
            return result("no answer", how=str(error))
    return result("none")
