r"""Which layer keeps which invariance of Table 1 in floating point, and why it fails.

`python -m analysis layer_audit`: normalization layers of several libraries, and ours, on inputs offset + N(0, 1):

- error of the output against extended precision *on the same rounded input*, over offsets: what re-centering costs;
- change of the output when the input is multiplied by δ, over 36 decades, beside what ε must cause,
  $|1 - \sqrt{(1 + \epsilon)/(1 + \epsilon/\delta^2)}|$ for inputs of variance one;
- every "yes" of Table 1 for the exact layers of `lngeom.nn`.

Libraries that are not installed are left out, and named.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from lngeom import plots
from lngeom._core.files import check_writable
from lngeom.plots import style
from lngeom.plots.axes import log_scale, number
from lngeom.plots.style import COLOUR_OF, GUIDE
from rich.console import Console
from rich.table import Table

from analysis.measurements.audited_layers import LAYERS, OFFSETS, SCALES, Cell, Row, exact_cells, measure


@dataclass(frozen=True)
class Audit:
    """What the audit found.

    Attributes:
        rows: layers.
        cells: the exact layers' "yes" cells.
        missing: libraries that are not installed.
        width: units of the layers.
        samples: rows of the input.
    """

    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    missing: tuple[str, ...]
    width: int
    samples: int


def epsilon_law(eps: float, delta: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    r"""$|1 - \sqrt{(1 + \epsilon)/(1 + \epsilon/\delta^2)}|$, the change of the output of inputs of variance one."""
    return np.abs(1 - np.sqrt((1 + eps) / (1 + eps / np.square(delta))))


def audit(*, width: int = 1024, samples: int = 64, dtypes: tuple[str, ...] = ("float32", "bfloat16")) -> Audit:
    """Runs every layer that is installed.

    Args:
        width: units.
        samples: rows of the input.
        dtypes: in which they are run; causes are found in the first.

    Returns:
        The audit.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")
    rows, missing = [], set()
    for (method, library), source in LAYERS.items():
        package = (source if isinstance(source, str) else library).split(".")[0].split(":")[0].split(",")[0].split()[0]
        if importlib.util.find_spec(package) is None:
            missing.add(package)
            continue
        for dtype in dtypes:
            causes = dtype == dtypes[0]
            with np.errstate(divide="ignore", invalid="ignore"):  # bfloat16 rounds rows to constants at large offsets
                rows.append(measure(method, library, source, dtype, width=width, samples=samples, causes=causes))
    return Audit(tuple(rows), exact_cells(), tuple(sorted(missing)), width, samples)


def _speeds(path: Path) -> dict[str, float]:
    """Milliseconds of a forward pass of 4096 × 1024, from the benchmark's record, where there is one."""
    if not path.exists():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    chosen = [m for m in record if m["mode"] == "forward" and m["malloc"] == "huge pages"]
    rows = max((m["rows"] for m in chosen), default=0)
    found = {m["implementation"]: m["milliseconds"] for m in chosen if m["rows"] == rows and m["width"] == 1024}
    names = {"flax": "flax linen", "lngeom exact": "lngeom, exact"}
    return {str(names.get(name, name)): value for name, value in found.items()}


def tables(found: Audit, speeds: Mapping[str, float]) -> list[Table]:
    """The layers, and the exact layers' cells, for a terminal."""
    table = Table(title=f"Normalization layers in floating point, width {found.width}, input = offset + N(0, 1)")
    table.add_column("layer")
    for name in ("ε", *(f"error at {o:.0e}" if o else "error at 0" for o in OFFSETS), "δ = 1e-2", "δ = 1e18"):
        table.add_column(name, justify="right")
    for name in ("scales to 1e-4", "why", "ms"):
        table.add_column(name)
    for row in found.rows:
        scales = "none" if row.scales is None else f"{row.scales[0]:.0e} … {row.scales[1]:.0e}"
        at = [row.deviations[SCALES.index(s)] for s in (1e-2, 1e18)]
        speed = speeds.get(row.library) if (row.method, row.dtype) == ("layer", "float32") else None
        table.add_row(
            f"{row.method}, {row.library}" + ("" if row.dtype == "float32" else f" ({row.dtype})"),
            *(f"{v:.0e}" for v in (row.eps, *row.errors, *at)),
            *(scales, row.cause, f"{speed:.2f}" if speed else ""),
        )
    cells = Table(title='lngeom.nn, exact, float32: each "yes" of Table 1')
    for name in ("method", "column", "worst", "bound", "change ÷ κ·2⁻²⁴"):
        cells.add_column(name)
    for cell in found.cells:
        ratio = "" if cell.against_rounding is None else f"{cell.against_rounding:.2f}"
        cells.add_row(cell.method, cell.column, f"{cell.worst:.1e}", f"{cell.bound:.0e}", ratio)
    return [table, cells]


MARKER_OF = {"flax": "o", "equinox": "^", "haiku": "v", "keras": "s", "torch": "x", "lngeom": "D"}


def _shown(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Layer norms in float32; flax's two interfaces compute the same."""
    rows = [r for r in data["rows"] if (r["method"], r["dtype"]) == ("layer", "float32")]
    return [r for r in rows if r["library"] != "flax nnx"]


def alike(rows: Sequence[dict[str, Any]], what: str) -> list[list[dict[str, Any]]]:
    """Groups of rows: for "errors" those within a factor of ten everywhere, else those of the same ε."""
    groups: list[list[dict[str, Any]]] = []

    def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
        if what != "errors":
            return one["eps"] == other["eps"]
        first, second = (np.maximum(np.asarray(row["errors"], float), 1e-9) for row in (one, other))
        return bool(np.all(np.abs(np.log10(first / second)) < 1))

    for row in rows:
        group = next((g for g in groups if same(g[0], row)), None)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    return groups


def together(rows: Sequence[dict[str, Any]]) -> str:
    """The names of rows that are drawn as one line."""
    return "; ".join(row["library"] for row in rows)


def look(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a line: the library's colour and marker where all rows are of one, else grey squares."""
    libraries = list(dict.fromkeys(row["library"].split(",")[0].split()[0] for row in rows))
    if len(libraries) > 1:
        return {"color": GUIDE, "marker": "s", "linestyle": "-", "markersize": 4, "linewidth": 1.4}
    plain = all("," not in row["library"] for row in rows)
    found = {"color": COLOUR_OF[libraries[0]], "marker": MARKER_OF[libraries[0]], "linestyle": "-" if plain else ":"}
    return found | {"fillstyle": "full" if plain else "none", "markersize": 4, "linewidth": 1.4}


def title(data: Mapping[str, Any]) -> str:
    """Which library loses its output at the largest offset."""
    worst = [row["library"].split(",")[0] for row in _shown(data) if row["errors"][-1] > 1]
    if not worst:
        return "No library loses the output of layer norm in float32 as the inputs are shifted"
    names = " and ".join(dict.fromkeys(worst))
    offset = number(data["offsets"][-1])
    return f"Layer norm of {names} loses all digits of float32 at an offset of {offset} standard deviations"


def numbers(data: Mapping[str, Any]) -> str:
    """Libraries whose output is wrong at the largest offset, and those that keep re-scaling at every factor."""
    rows = _shown(data)
    worst = max(rows, key=lambda r: r["errors"][-1])
    accurate = [r["library"] for r in rows if r["errors"][-1] <= 1e-6]
    exact = [r["library"] for r in rows if max(v if v is not None else np.inf for v in r["deviations"]) <= 1e-6]
    named = [" and ".join(f"“{name}”" for name in names) for names in (accurate, exact)]
    few = f", at most 10⁻⁶ in {named[0]}" if accurate else ""
    return (
        f"Layer norm in float32, offset {number(data['offsets'][-1])}: error {number(worst['errors'][-1])} in "
        f"{worst['library']}{few}; {'only ' + named[1] if exact else 'no layer'} changes by at most 10⁻⁶ at every δ"
    )


def draw_data(data: Mapping[str, Any], stem: Path, configuration: Mapping[str, Any]) -> list[Path]:
    """Draws layer norm's two failures.

    Args:
        data: as `draw` writes them.
        stem: path of the figure without a suffix.
        configuration: its settings.

    Returns:
        The paths written.
    """
    shown = _shown(data)
    changes = [[np.nan if v is None else v for v in row["deviations"]] for row in shown]
    with plots.figure(1, 2, height=3.1, sharey=True) as (figure, axes):
        left, right = axes[0]
        place = log_scale(axes[0], np.concatenate([np.ravel(changes), *(row["errors"] for row in shown)]))
        offset = log_scale(left, data["offsets"], along="x")
        for rows in alike(shown, "errors"):
            values = np.median([row["errors"] for row in rows], 0)
            left.plot(offset(data["offsets"]), place(values), label=together(rows), **look(rows))
        for rows in alike(shown, "deviations"):
            values = np.array([np.nan if v is None else v for v in rows[0]["deviations"]])
            left_out = f"ε = {number(rows[0]['eps'])}: {together(rows)}"
            right.plot(data["scales"], place(values), label=left_out, **look(rows) | {"markevery": 2})
        deltas = np.logspace(-7, -1e-3, 200)
        law = {"color": GUIDE, "linestyle": "-", "linewidth": 0.7, "zorder": 1}
        for eps in sorted({r["eps"] for r in shown if r["eps"] > 0}):
            right.plot(deltas, epsilon_law(eps, deltas), **law)
        left.set(xlabel="offset ÷ standard deviation", ylabel="error, or change, of the output")
        left.set_title("re-centering: error of the output")
        right.set(xscale="log", xlabel="factor δ on the input", title="re-scaling: change of the output")
        right.set_xlim(min(data["scales"]) / 3, max(data["scales"]) * 3)
        for axis in (left, right):
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22))
        caption = (
            f"Layer norm, width {data['width']}. Left: largest error of the output against extended precision "
            "on the same rounded input, offset + N(0, 1). Right: largest change of the output when the input is "
            "multiplied by δ; thin grey lines: |1 − √((1+ε)/(1+ε/δ²))| for the layers' ε. In the bands 0: no offset, "
            "no change. Layers whose curves coincide have one line, the median of theirs on the left."
        )
        return plots.save(
            figure, stem, data, title=title(data), caption=f"{numbers(data)}. {caption}", configuration=configuration
        )


def draw(found: Audit, stem: Path, speeds: Mapping[str, float]) -> list[Path]:
    """Draws an audit, and writes everything beside it as JSON."""
    data = asdict(found) | {"offsets": OFFSETS, "scales": SCALES, "milliseconds": dict(speeds)}
    packages = ("flax", "equinox", "dm-haiku", "keras", "torch")
    installed = {d.metadata["Name"].lower() for d in importlib.metadata.distributions() if d.metadata["Name"]}
    versions = {name: importlib.metadata.version(name) for name in packages if name in installed}
    return draw_data(data, stem, {"width": found.width, "samples": found.samples, "packages": versions})


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="width 96 and float32 only")
    parser.add_argument("--out", type=Path, default=Path("figures/layer_audit"), help="path of the figure, no suffix")
    parser.add_argument("--no-caption", action="store_true", help="leave the caption out of the picture")
    options = parser.parse_args()
    check_writable(options.out.parent)
    start = time.perf_counter()
    found = audit(width=96, samples=16, dtypes=("float32",)) if options.small else audit()
    speeds = _speeds(Path("figures/bench_layers.json"))
    console = Console(width=max(Console().width, 230))
    for table in tables(found, speeds):
        console.print(table)
    if found.missing:
        console.print(f"Not installed, left out: {', '.join(found.missing)}")
    console.print(f"{time.perf_counter() - start:.0f} s", highlight=False)
    with style.options(captions=not options.no_caption):
        written = draw(found, options.out, speeds)
    for path in written:
        console.print(f"Written: {path}", highlight=False)


if __name__ == "__main__":
    main()
