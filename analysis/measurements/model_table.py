"""A program that runs models one after the other, and writes a table of them: JSON, a page, and the terminal."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
from lngeom._core.files import check_writable
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.progress import duration
from analysis.store import write_results

Results = dict[str, dict[str, Any]]
"""What was found of each model."""


class ModelTable(NamedTuple):
    """A table of models.

    Attributes:
        stem: name of the files.
        headings: of the columns; under the first one rows are aligned to the left.
        rows: results ↦ rows under the headings.
        page: results ↦ Markdown.
        libraries: packages whose versions are written beside the results.
        seconds: that a model takes on an idle core, about.
    """

    stem: str
    headings: Sequence[str]
    rows: Callable[[Results], Sequence[Sequence[str]]]
    page: Callable[[Results], str]
    libraries: Sequence[str]
    seconds: float

    def markdown(self, results: Results) -> list[str]:
        """Lines of the table on the page."""
        rows = (f"| {' | '.join(row)} |" for row in self.rows(results))
        return [f"| {' | '.join(self.headings)} |", "|---" * len(self.headings) + "|", *rows]

    def command(self, models: Mapping[str, Callable[[], dict[str, Any]]], summary: str) -> None:
        """Runs the models that the arguments choose, and writes the results after each.

        Args:
            models: what gives the results of each.
            summary: of `--help`.
        """
        parser = argparse.ArgumentParser(description=summary)
        parser.add_argument("--only", default="", help="part of a model's name")
        parser.add_argument("--out", type=Path, default=Path("figures"))
        parser.add_argument("--resume", action="store_true", help="keep the models that the results have already")
        options = parser.parse_args()
        check_writable(options.out)
        options.out.mkdir(parents=True, exist_ok=True)
        chosen = {name: run for name, run in models.items() if options.only in name}
        if not chosen:
            parser.error(f"no model has {options.only!r} in its name; there are {', '.join(models)}")
        console, errors = Console(width=110 if not sys.stdout.isatty() else None), Console(stderr=True)
        time_needed = duration(self.seconds * len(chosen))
        errors.print(f"{len(chosen)} models, about {time_needed} on an idle core", highlight=False)
        path = options.out / f"{self.stem}.json"
        results: Results = json.loads(path.read_text())["models"] if options.resume else {}
        versions = {package: metadata.version(package) for package in self.libraries}
        for name, run in chosen.items():
            if name in results:
                continue
            start = time.perf_counter()
            results[name] = run()
            write_results(path, {"versions": versions, "models": results}, self.page(results))
            errors.print(f"{time.perf_counter() - start:4.0f} s  {name}", highlight=False)
            jax.clear_caches()
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if number else "left", no_wrap=True)
        for row in self.rows(results):
            table.add_row(*row)
        console.print(table)
        console.print(f"Written: {path}, {path.with_suffix('.md')}", highlight=False, soft_wrap=True)
