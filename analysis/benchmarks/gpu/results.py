"""The results as a page and as a figure."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.benchmarks.gpu.layers import MODES


def page(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    device = found["device"]
    versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
    lines = ["# Measured on one accelerator", "", f"{device['kind']} ({device['platform']}); {versions}.", ""]
    layers = [row for row in found["rows"] if row["task"] == "layer norm"]
    others = [row for row in found["rows"] if row["task"] != "layer norm"]
    if layers:
        lines += ["| rows × width | dtype | mode | implementation | µs | GB/s | error of y | of dx |", "|---" * 8 + "|"]
        for row in layers:
            errors = [f"{row[k]:.1e}" if k in row else "" for k in ("error of y", "error of dx")]
            cells = (f"{row['rows']} × {row['width']}", row["dtype"], row["mode"], row["implementation"])
            lines.append(
                f"| {' | '.join(cells)} | {row['microseconds']:.1f} | {row['GB/s']:.0f} | {' | '.join(errors)} |"
            )
        lines.append("")
    if others:
        lines += ["| task | parameters | implementation | precision | µs | first call, s | error |", "|---" * 7 + "|"]
        for row in others:
            took = f"{row['microseconds']:.0f}" if "microseconds" in row else ""
            kind = row.get("precision", row.get("setting", ""))
            cells = (
                row["task"],
                str(row.get("parameters", "")),
                row["implementation"],
                kind,
                took,
                f"{row['first call, s']:.1f}" if "first call, s" in row else "",
                f"{row['error']:.1e}",
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [f"- not measured: {task['task']}: {task['reason'].splitlines()[0]}" for task in found["skipped"]]
    return "\n".join(lines) + "\n"


def title(rows: list[dict[str, Any]]) -> str:
    """The range of the fused kernel's rate over that of the copy, forward, in arrays that no cache holds."""
    large = [r for r in rows if r["task"] == "layer norm" and r["mode"] == "forward"]
    largest = max((r["rows"] * r["width"] for r in large), default=0)
    rate = {(r["implementation"], r["dtype"]): r["GB/s"] for r in large if r["rows"] * r["width"] == largest}
    shares = [
        rate["lngeom fused", d] / rate["copy", d] for _, d in rate if {("lngeom fused", d), ("copy", d)} <= {*rate}
    ]
    if not shares:
        return "Layer norm on an accelerator"
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return (
        f"Fused layer norm moves {low if low == high else f'{low} to {high}'} % of the bytes a second that a copy moves"
    )


def draw(rows: list[dict[str, Any]], stem: Path, device: dict[str, Any]) -> list[Path]:
    """The rates of layer norm by width."""
    from lngeom import plots
    from lngeom.plots.axes import common_legend
    from lngeom.plots.style import STYLE

    rows = [row for row in rows if row["task"] == "layer norm"]
    panels = [(mode, dtype) for mode in MODES for dtype in ("bfloat16", "float32")]
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    most = max((row["rows"] for row in rows), default=0)
    with plots.figure(2, 2, height=4.6) as (figure, axes):
        for axis, (mode, dtype) in zip(np.ravel(axes), panels, strict=True):
            for name, look in zip(names, STYLE["axes.prop_cycle"], strict=False):
                here = [r for r in rows if (r["mode"], r["dtype"], r["implementation"]) == (mode, dtype, name)]
                line = sorted((r["width"], r["GB/s"]) for r in here if r["rows"] == most)
                if line:
                    axis.plot(*zip(*line, strict=True), marker="o", markersize=3, label=name, **look)
            axis.set(xscale="log", yscale="log", xlabel="width", ylabel="GB/s", title=f"{mode}, {dtype}")
        if names:
            common_legend(figure, np.ravel(axes))
        about = (
            f"Bytes that must be moved over the time, by width, {most} rows, on {device['kind']}: a copy is "
            "the ceiling. Smallest times of three rounds, so there is no band."
        )
        return plots.save(figure, stem, {"rows": rows}, title=title(rows), caption=about, configuration=device)
