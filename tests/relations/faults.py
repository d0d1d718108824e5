"""Which relations notice which planted fault: `python -m analysis fuzz --faults`.

Each test of a fault plants one and asserts that a relation fails. Here all relations of its file run under that fault.
At the end comes a table, a row a fault, and the relations that are alone in noticing one.
"""

import sys

import jax
import pytest

from tests.relations.relation import NOTICED, draw

DRAWS = 6
"""Draws of each relation under each fault, and at least twice as many of the one that the test names."""


class Table:
    """A plugin of pytest: where a test first says that a relation fails, all relations of its file run.

    Attributes:
        rows: relations that failed, by file and fault; True where the error is one by which a fault is noticed.
        relations: names, by file.
    """

    def __init__(self):
        self.rows: dict[tuple[str, str], dict[str, bool]] = {}
        self.relations: dict[str, list[str]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        module = item.module
        relations = {name: test for name, test in vars(module).items() if hasattr(test, "statement")}
        self.relations[module.__name__] = list(relations)

        def fails(named, draws=2 * DRAWS, **only):
            planted = (module.__name__, item.name)
            asked = {named.__name__: named} if planted in self.rows else relations
            row = self.rows.setdefault(planted, {})
            for name, test in asked.items():
                jax.clear_caches()  # what was compiled before knows nothing of the fault
                try:
                    draw(test, **({"draws": max(draws, 2 * DRAWS)} | only if test is named else {"draws": DRAWS}))
                except (Exception, pytest.fail.Exception) as error:
                    row[name] = isinstance(error, NOTICED)
            jax.clear_caches()
            print(f"{item.name}: {', '.join(row)}", file=sys.__stderr__, flush=True)

        before, module.fails = module.fails, fails
        yield
        module.fails = before

    def pytest_terminal_summary(self, terminalreporter):
        for module, relations in self.relations.items():
            rows = {fault: row for (name, fault), row in self.rows.items() if name == module}
            alone = {next(iter(row)) for row in rows.values() if len(row) == 1}
            noticed = {name for row in rows.values() for name in row}
            lines = [f"\n## {module}\n", "| fault | relations that fail |", "|---|---|"]
            for fault, row in rows.items():
                names = [name if kind else f"{name} (by an error of another kind)" for name, kind in row.items()]
                lines.append(f"| {fault} | {', '.join(names)} |")
            sets = {"alone with a fault": alone, "never alone": noticed - alone, "none": set(relations) - noticed}
            lines += [f"\n{title}: {', '.join(n for n in relations if n in names)}" for title, names in sets.items()]
            for line in lines:
                terminalreporter.write_line(line)
