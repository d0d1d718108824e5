"""A Fisher matrix in numbers, in the terminal."""

from rich.table import Table
from rich.text import Text

from lngeom.information.summary import Summary


def fisher(summary: Summary) -> Table:
    """Rank and null space of a Fisher matrix, then its leading eigenvalues, its sizes and its cost."""
    table = Table(title=Text(summary.operator), show_header=False, show_lines=True, expand=True)
    table.add_column(width=18)
    table.add_column(overflow="fold")
    leaves = "\n".join(f"{name}  {' × '.join(map(str, shape)) or 'scalar'}" for name, shape in summary.leaves)
    if summary.excluded:
        leaves += f"\nleft out: {', '.join(summary.excluded)}"
    values = "  ".join(f"{v:.4g}" for v in summary.eigenvalues)
    spectrum = [("largest eigenvalues", values), ("trace", f"{summary.trace:.6g}")]
    if summary.rank is None:
        rows = [("rank", "not known from products alone"), *spectrum]
    else:
        rows = [
            ("rank", f"{summary.rank} (smallest kept ÷ largest dropped singular value: {summary.gap:.2g})"),
            ("nullity", _nullity(summary)),
            ("null directions", f"{summary.description}"),
            *spectrum,
            ("effective rank", f"{summary.effective_rank:.4g}"),
            ("pseudo-logdet", f"{summary.pseudo_logdet:.6g}"),
        ]
    rows += [("parameters", leaves), ("predicted bytes", summary.plan.describe())]
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def _nullity(summary: Summary) -> Text:
    text = Text(f"{summary.nullity}")
    if summary.predicted is None:
        return text.append(", found by numbers: theory predicts that of exact matrices of normalized GLMs", style="dim")
    kind = {True: "as predicted", False: "predicted:", None: "predicted at least:"}[summary.as_predicted]
    text.append(f", {kind}", style={True: "green", False: "red", None: "yellow"}[summary.as_predicted])
    return text.append(f"\n{summary.predicted.describe()}")
