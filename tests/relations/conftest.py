"""Counts the draws of relations, and shows and writes them at the end."""

import json
import os
from importlib import metadata
from pathlib import Path

import jax
import pytest

from tests.relations.faults import Table
from tests.relations.relation import DRAWN


def pytest_configure(config):
    if os.environ.get("RELATIONS_FAULTS"):
        config.pluginmanager.register(Table())


@pytest.fixture
def without_compiled_programs():
    """A planted fault is in no program that was compiled before, and in none that is left."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    name = getattr(item, "originalname", item.name)
    before = DRAWN[name]
    yield
    if DRAWN[name] > before:
        item.user_properties.append(("draws", DRAWN[name] - before))


def pytest_terminal_summary(terminalreporter):
    rows = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            draws = dict(report.user_properties).get("draws")
            if draws is not None:
                rows[report.nodeid] = {"draws": draws, "outcome": outcome}
    path = os.environ.get("RELATIONS_OUT")
    if not rows or path is None:
        return
    total, failed = sum(r["draws"] for r in rows.values()), sum(r["outcome"] == "failed" for r in rows.values())
    terminalreporter.write_line(f"{len(rows)} relations, {total} draws, {failed} relations failed")
    versions = {name: metadata.version(name) for name in ("jax", "numpy", "hypothesis", "optax", "flax", "equinox")}
    found = {"relations": len(rows), "draws": total, "failed": failed, "versions": versions, "each": rows}
    Path(path).write_text(json.dumps(found, indent=1) + "\n")
