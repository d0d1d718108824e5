"""Tasks in turn until the time is spent; what was measured is written after each."""

import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from analysis.benchmarks.gpu.fisher import matrices, precision, products, torch_products, transformer_products
from analysis.benchmarks.gpu.layers import JAX_LAYERS, copy_rate, jax_layer, torch_layer
from analysis.benchmarks.gpu.results import page
from analysis.benchmarks.gpu.sizes import Sizes
from analysis.store import write_results

MARGIN = 20.0
"""Seconds before the end of the budget after which no task begins."""

PACKAGES = ("jax", "jaxlib", "numpy", "lngeom", "torch", "triton", "curvlinops-for-pytorch", "lineax")


@dataclass
class Run:
    """The results so far.

    Attributes:
        sizes: what is measured.
        path: of the JSON file.
        deadline: on the clock `time.monotonic`.
        rows: one a measurement.
        skipped: tasks that were not run, or failed, with the reason.
        complete: whether every task was reached.
    """

    sizes: Sizes
    path: Path
    deadline: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    complete: bool = False

    @property
    def failed(self) -> list[dict[str, str]]:
        """The tasks that broke, not those whose packages are missing."""
        return [task for task in self.skipped if task["kind"] == "failed"]

    def write(self) -> None:
        """Writes the results, and the table of them."""
        found = {"device": about_device(), "complete": self.complete, "rows": self.rows, "skipped": self.skipped}
        write_results(self.path, found, page(found))


def about_device() -> dict[str, Any]:
    """The device, and the versions of packages."""
    device = jax.devices()[0]
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "compute capability": str(getattr(device, "compute_capability", "")),
        "count": len(jax.devices()),
        "versions": versions,
    }


def tasks(sizes: Sizes) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All tasks, the most important first."""
    yield "precision", precision

    arrays = [(*shape, dtype) for dtype in sizes.dtypes for shape in sizes.layers[:2]]
    arrays += [(*shape, dtype) for shape in sizes.layers[2:] for dtype in sizes.dtypes]

    def layers(arrays: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        for rows, width, dtype in arrays:
            at = (rows, width, dtype, sizes.seconds)
            yield f"copy, {rows} × {width} {dtype}", functools.partial(copy_rate, *at)
            for name in JAX_LAYERS:
                yield f"{name}, {rows} × {width} {dtype}", functools.partial(jax_layer, name, *at)
            yield f"torch, {rows} × {width} {dtype}", functools.partial(torch_layer, *at, compiled=False)

    yield from layers(arrays[:2])
    for rows, width in sizes.compiled:
        at = (rows, width, sizes.dtypes[0], sizes.seconds)
        yield f"torch.compile, {rows} × {width} {sizes.dtypes[0]}", functools.partial(torch_layer, *at, compiled=True)
    yield "Fisher products", functools.partial(products, sizes)
    yield "transformer", functools.partial(transformer_products, sizes)
    yield "Fisher by curvlinops", functools.partial(torch_products, sizes)
    yield from layers(arrays[2:4])
    yield "Fisher matrices", functools.partial(matrices, sizes)
    yield from layers(arrays[4:])


def measure(run: Run, say: Callable[[str], None]) -> Run:
    """Runs the tasks until the budget is spent, and writes what there is after each measurement."""
    for name, task in tasks(run.sizes):
        if time.monotonic() > run.deadline - MARGIN:
            run.skipped.append({"task": name, "kind": "budget", "reason": "the time was spent"})
            continue
        start = time.monotonic()
        try:
            for row in task():
                run.rows.append(row)
                run.write()
        except ImportError as error:
            run.skipped.append({"task": name, "kind": "missing", "reason": str(error)})
        except Exception as error:  # the other tasks are worth measuring
            run.skipped.append({"task": name, "kind": "failed", "reason": f"{type(error).__name__}: {error}"[:500]})
        say(f"{time.monotonic() - start:6.1f} s  {name}")
        run.write()
    run.complete = not any(task["kind"] == "budget" for task in run.skipped)
    run.write()
    return run
