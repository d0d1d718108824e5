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
    large = [r for r in large if r["rows"] * r["width"] == largest]
    rate = {(r["implementation"], (r["rows"], r["width"], r["dtype"])): r["GB/s"] for r in large}
    both = [at for name, at in rate if name == "copy" and ("lngeom fused", at) in rate]
    shares = [rate["lngeom fused", at] / rate["copy", at] for at in both]
    if not shares:
        return "Layer norm on an accelerator"
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    share = low if low == high else f"{low} to {high}"
    return f"Fused layer norm, forward, moves {share} % of the bytes a second that a copy moves"


def draw(rows: list[dict[str, Any]], stem: Path, device: dict[str, Any]) -> list[Path]:
    """The rates of layer norm, one line a shape."""
    from lngeom import plots
    from lngeom.plots.axes import common_legend
    from lngeom.plots.style import COLOUR_OF, GUIDE

    looks = {
        "copy": {"color": GUIDE, "marker": "|", "markersize": 14},
        "lngeom fused": {"color": COLOUR_OF["lngeom"], "marker": "o"},
        "lngeom": {"color": COLOUR_OF["lngeom"], "marker": "o", "fillstyle": "none"},
        "XLA": {"color": COLOUR_OF["plain JAX"], "marker": "s", "fillstyle": "none"},
        "torch": {"color": COLOUR_OF["torch"], "marker": "^"},
        "torch compiled (Triton)": {"color": COLOUR_OF["torch"], "marker": "^", "fillstyle": "none"},
    }
    rows = [row for row in rows if row["task"] == "layer norm"]
    shapes = list(dict.fromkeys((row["rows"], row["width"], row["dtype"]) for row in rows))
    with plots.figure(1, 2, height=2.2 + 0.35 * len(shapes), sharey=True) as (figure, axes):
        for axis, mode in zip(np.ravel(axes), MODES, strict=True):
            for name, look in looks.items():
                here = [r for r in rows if (r["mode"], r["implementation"]) == (mode, name)]
                lines = [shapes.index((r["rows"], r["width"], r["dtype"])) for r in here]
                if here:
                    axis.plot([r["GB/s"] for r in here], lines, label=name, linestyle="none", **look)
            axis.set(xlabel="GB/s", title=mode, xlim=(0, None))
            axis.set_yticks(range(len(shapes)), [f"{r} × {w}\n{dtype}" for r, w, dtype in shapes])
            axis.set_ylim(max(len(shapes), 1) - 0.5, -0.5)
        if rows:
            common_legend(figure, np.ravel(axes))
        about = (
            f"Bytes that must be moved over the time, on {device['kind']}; further right is faster, and a copy is the "
            "ceiling. XLA is layer norm as one writes it in JAX. Smallest times of three rounds."
        )
        return plots.save(figure, stem, {"rows": rows}, title=title(rows), caption=about, configuration=device)
