"""Counts the draws of relations, and shows and writes them at the end."""

import json
import os
import time
from importlib import metadata
from pathlib import Path

import jax
import pytest

from tests.relations.faults import Table
from tests.relations.relation import DRAWN

NO_TIME = "no time was left for this relation"


def pytest_configure(config):
    if os.environ.get("RELATIONS_FAULTS"):
        config.pluginmanager.register(Table())


@pytest.fixture
def without_compiled_programs():
    """A planted fault is in no program that was compiled before, and in none that is left."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def pytest_runtest_setup(item):
    if time.time() > float(os.environ.get("RELATIONS_UNTIL", "inf")):
        pytest.skip(NO_TIME)


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
    left_out = sum(NO_TIME in str(report.longrepr) for report in terminalreporter.getreports("skipped"))
    path = os.environ.get("RELATIONS_OUT")
    if path is None or not (rows or left_out):
        return
    total, failed = sum(r["draws"] for r in rows.values()), sum(r["outcome"] == "failed" for r in rows.values())
    without = f", {left_out} relations left out for want of time" if left_out else ""
    terminalreporter.write_line(f"{len(rows)} relations, {total} draws, {failed} relations failed{without}")
    versions = {name: metadata.version(name) for name in ("jax", "numpy", "hypothesis", "optax", "flax", "equinox")}
    found = {"relations": len(rows), "draws": total, "failed": failed, "left_out": left_out}
    found |= {"versions": versions, "each": rows}
    Path(path).write_text(json.dumps(found, indent=1) + "\n")
