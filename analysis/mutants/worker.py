"""Runs claims and tests of a copy of the repository, each request in a process forked from one that has JAX loaded.

It is run by its path in the copy, and imports nothing of this repository itself, so that each fork imports the copy's
`lngeom` as it is then. A request is a line of JSON on standard input, its answer a line on standard output.

`watch`: which definitions of `lngeom` run is noted. A call at the start of each says its name.
"""

import ast
import importlib.machinery
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

SHAPE = 100, 6
"""Rows and columns of the data, standard normal; those of the tests of claims."""

ABSENT = "experiments"
"""The topic of claims that read the results of experiments."""

WAITS = 8.0
"""Times as long as a process may compute, it may take on a machine on which others compute too."""

Say = Callable[..., None]


class Watching(MetaPathFinder):
    """Loads `lngeom` so that every function of it notes its first call.

    Attributes:
        seen: `FILE:NAME` of the functions that ran.
    """

    def __init__(self, root: Path):
        self.root, self.seen = root, set()
        import builtins

        builtins.__seen__ = self.seen.add

    def find_spec(self, fullname, path=None, target=None):  # noqa: D102
        if fullname.partition(".")[0] != "lngeom":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Noted(spec.loader.name, spec.loader.path)
            spec.loader.root = self.root
        return spec


class _Noted(importlib.machinery.SourceFileLoader):
    """Compiles a file with a call at the start of each function."""

    root: Path

    def get_code(self, fullname):
        from analysis.mutants.mutator import definitions

        tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        file = Path(self.path).resolve().relative_to(self.root / "lngeom").as_posix()
        for name, node in definitions(tree).items():
            if isinstance(node, ast.FunctionDef):
                call = ast.parse(f"__seen__({f'{file}:{name}'!r})").body[0]
                for part in ast.walk(call):
                    ast.copy_location(part, node.body[0])
                node.body.insert(1 if ast.get_docstring(node) else 0, call)
        return compile(tree, self.path, "exec")


def _ready() -> None:
    """Settings of the tests; checks that the copy's `lngeom` is the one that is imported."""
    import jax
    import lngeom
    from threadpoolctl import threadpool_limits

    if (where := Path(lngeom.__file__).resolve().parents[1]) != Path.cwd().resolve():
        raise ImportError(f"lngeom is imported from {where}, not from the copy in {Path.cwd()}")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    threadpool_limits(1, user_api="blas")


def _load() -> dict[str, Callable[[Any], str]]:
    """Imports all claims.

    Returns:
        Witnesses by name: `numbers ID` gives the verdict of a claim's numbers, or its error; `proof ID` says of each
        piece of evidence of its proof whether it checks.
    """
    from lngeom.claims import papers, registry
    from lngeom.claims.proofs import proof_evidence, provable

    known = [c for c in registry.all_claims("all") if c.topic != ABSENT]
    known += [c for id in papers.ids() if id != registry.BA2016 for c in papers.find(id).claims]

    def numbers(claim: Any) -> Callable[[Any], str]:
        def verdict(problem: Any) -> str:
            found = registry.run(claim, problem)
            return f"error: {found.error}" if found.error and not found.waiting else found.verdict.value

        return verdict

    def proof(id: str) -> Callable[[Any], str]:
        def checks(problem: Any) -> str:
            try:
                found = proof_evidence(id, steps=False)
            except Exception as error:  # every error of a changed library is an answer
                return f"error: {type(error).__name__}: {error}"
            failed = [e.description for e in found if not e.passed]
            return failed[0] if failed else f"checks: {', '.join(e.role.value for e in found)}"

        return checks

    witnesses = {f"numbers {c.id}": numbers(c) for c in known}
    return witnesses | {f"proof {id}": proof(id) for id in provable()}


def _problem() -> Any:
    import jax
    from lngeom.claims import Problem

    return Problem(jax.random.normal(jax.random.key(9), SHAPE), seed=1)


def alike(found: str, expected: str) -> bool:
    """Whether an answer is that of the code without a fault; two errors are alike, whatever they say."""
    return found == expected or (found.startswith("error") and expected.startswith("error"))


def claims(request: dict[str, Any], say: Say) -> None:
    """Asks witnesses in their order, up to the first whose answer is not the expected one."""
    _ready()
    witnesses = _load()
    say(ready=True)
    problem = _problem()
    for name, expected in request["expected"].items():
        found = witnesses[name](problem) if name in witnesses else "error: the claim is not registered"
        say(by=name, answer=found)
        if not alike(found, expected):
            return


def all_claims(request: dict[str, Any], say: Say) -> None:
    """Asks every witness, each group in a process of its own, and says which functions run."""
    watching = Watching(Path.cwd().resolve())
    sys.meta_path.insert(0, watching)
    _ready()
    witnesses = _load()
    before = set(watching.seen)
    say(imported=sorted(before))
    groups: dict[str, list[tuple[str, Callable[[Any], str]]]] = {}
    for name, witness in witnesses.items():
        groups.setdefault(_group(name), []).append((name, witness))
    for group in groups.values():

        def ask(say: Say, group=group) -> None:
            problem = _problem()
            for name, witness in group:
                start = time.monotonic()
                answer = witness(problem)
                seconds = round(time.monotonic() - start, 2)
                say(by=name, answer=answer, seconds=seconds, seen=sorted(watching.seen - before))

        lines, end = forked(ask, request["each"])
        for line in lines:
            say(**line)
        for name, _ in group[len(lines) :] if end else ():
            say(by=name, answer="", end=end)


def _group(name: str) -> str:
    """Cells of one row of the extended table share a process: what one of them ran counts for those after it."""
    id = name.partition(" ")[2]
    return name.rpartition(".")[0] if id.startswith("extended.") else name


class Recorder:
    """A plugin of pytest: says of every test whether it passes, and what runs.

    Attributes:
        say: takes the answers.
        watching: notes the functions that run; None where nothing is noted.
    """

    def __init__(self, say: Say, watching: Watching | None):
        self.say, self.watching = say, watching
        self.start, self.message = 0.0, ""

    def pytest_configure(self):
        """Takes an example that fails as it is: what hypothesis makes of it takes minutes and decides nothing."""
        from hypothesis import Phase, settings

        name = settings.get_current_profile_name()
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(name, settings.get_profile(name), phases=phases, database=None)
        settings.load_profile(name)

    def pytest_runtest_logstart(self, nodeid):  # noqa: D102
        self.start, self.message = time.monotonic(), ""
        if self.watching:
            self.watching.seen.clear()

    def pytest_runtest_logreport(self, report):  # noqa: D102
        if report.failed and not self.message:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.message = (getattr(crash, "message", "") or str(report.longrepr)).splitlines()[0][:200]

    def pytest_runtest_logfinish(self, nodeid):  # noqa: D102
        seconds = round(time.monotonic() - self.start, 2)
        seen = {"seen": sorted(self.watching.seen)} if self.watching else {}
        self.say(by=nodeid, answer=self.message, seconds=seconds, **seen)

    def pytest_collectreport(self, report):  # noqa: D102
        if report.failed:
            self.say(by=report.nodeid, answer=str(report.longrepr).strip().splitlines()[-1][:200] or "error", seconds=0)

    def pytest_collection_modifyitems(self, items):
        """Says which tests are relations."""
        for item in items:
            if self.watching and item.get_closest_marker("relation"):
                self.say(relation=item.nodeid)


def tests(request: dict[str, Any], say: Say) -> None:
    """Runs tests, up to the first that fails; with `watch` all, and says which functions run."""
    watching = None
    if request["watch"]:
        watching = Watching(Path.cwd().resolve())
        sys.meta_path.insert(0, watching)
        sys.dont_write_bytecode = False  # so that pytest keeps what it makes of the tests
    import pytest

    loaded = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"  # before pytest began
    options = ["-q", "-p", "no:cacheprovider", "-W", loaded, *([] if watching else ["-x"]), *request.get("options", ())]
    say(code=int(pytest.main([*options, *request["tests"]], plugins=[Recorder(say, watching)])))


KINDS = {"claims": claims, "all claims": all_claims, "tests": tests}


def forked(work: Callable[[Say], None], limit: float) -> tuple[list[dict[str, Any]], str]:
    """Does something in a process of its own, which is ended with its children.

    Args:
        work: takes a function that sends an answer, given as keywords.
        limit: seconds of a processor; what waits ends after `WAITS` times as many.

    Returns:
        The answers, and how it ended where it did not end by itself: "time", or the last line of its error.
    """
    reading, writing = os.pipe()
    alive, lifeline = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        os.close(lifeline)
        _child(work, limit, writing, alive)
    os.close(writing)
    os.close(alive)
    text, end, last = b"", "", time.monotonic() + WAITS * limit
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, last - time.monotonic()))
        if not ready:
            end = "time"
            break
        if not (piece := os.read(reading, 1 << 16)):
            break
        text += piece
    for kill in (os.kill, os.killpg):  # its group may not be one yet
        with suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    os.close(reading)
    os.close(lifeline)
    answers = [json.loads(line) for line in text.split(b"\n")[:-1]]
    failed = [a["failed"] for a in answers if "failed" in a]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        end = "time"
    if not end and failed:
        end = failed[0]
    elif not end and not any("done" in a for a in answers):
        end = f"ended with status {status}"
    return [a for a in answers if "done" not in a and "failed" not in a], end


def _child(work: Callable[[Say], None], limit: float, writing: int, alive: int) -> None:
    """The forked process: it does the work, and ends when the process that forked it is gone."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
    threading.Thread(target=lambda: os.read(alive, 1) or os.killpg(0, signal.SIGKILL), daemon=True).start()
    null = os.open(os.devnull, os.O_RDWR)
    for k in (0, 1, 2):
        os.dup2(null, k)

    def say(**values: Any) -> None:
        os.write(writing, (json.dumps(values) + "\n").encode())

    try:
        work(say)
        say(done=True)
    except BaseException as error:  # whatever a changed library raises is an answer
        say(failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300])
    os._exit(0)


def main() -> None:
    """Answers requests until standard input ends."""
    import equinox
    import hypothesis
    import jax
    import numpy
    import optax
    import pytest
    import scipy.linalg
    import sympy

    assert all((equinox, hypothesis, jax, numpy, optax, pytest, scipy.linalg, sympy))
    for line in requests():
        start = time.monotonic()
        lines, end = forked(lambda say, line=line: KINDS[line["kind"]](line, say), line["limit"])
        answer = {"lines": lines, "end": end, "seconds": round(time.monotonic() - start, 2)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def requests() -> Iterator[dict[str, Any]]:
    """The requests, as they come."""
    for line in sys.stdin:
        yield json.loads(line)
