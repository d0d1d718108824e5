"""A Fisher matrix in numbers, in the terminal."""

from rich.table import Table
from rich.text import Text

from lngeom._core.text import wrapped
from lngeom.information.summary import Summary

LABELS = 20
"""Columns that the names of the rows take, with the frame of the table."""


def fisher(summary: Summary, width: int = 80) -> Table:
    """Rank and null space of a Fisher matrix, then its leading eigenvalues and its sizes.

    Args:
        summary: the matrix in numbers.
        width: columns of the terminal.
    """
    table = Table(title=Text(summary.operator), show_header=False, show_lines=True, expand=True)
    table.add_column(width=LABELS - 2)
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
            ("rank", _rank(summary)),
            ("nullity", _nullity(summary)),
            ("null directions", _directions(summary, width - LABELS - 5)),
            *spectrum,
            ("effective rank", f"{summary.effective_rank:.4g}"),
            ("pseudo-logdet", f"{summary.pseudo_logdet:.6g}"),
        ]
    for name, value in [*rows, ("parameters", leaves)]:
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def _rank(summary: Summary) -> str:
    fewest, most = summary.ranks or (summary.rank, summary.rank)
    sure = "" if fewest == most else f"; uncertain: {fewest} to {most}"
    return f"{summary.rank} (smallest kept ÷ largest dropped singular value: {summary.gap:.2g}{sure})"


def _nullity(summary: Summary) -> Text:
    text = Text(f"{summary.nullity}")
    if summary.predicted is None:
        return text.append(", found by numbers: theory predicts that of exact matrices of normalized GLMs", style="dim")
    if summary.as_predicted:
        return text.append(", as predicted", style="green")
    predicted = summary.predicted
    kind = "predicted" if predicted.exact or predicted.doubts else "predicted at least"
    doubtful = ", which is uncertain" if predicted.doubts else ""
    style = "red" if summary.as_predicted is False else "yellow"
    lines = [f", {kind}: {predicted.dimension}{doubtful}", *predicted.reservations()]
    return text.append("\n".join(lines), style=style)


def _directions(summary: Summary, width: int) -> str:
    """The null directions, each named once: as theory names them where it accounts for all, else as measured."""
    assert summary.description is not None
    if summary.as_predicted and summary.predicted is not None:
        unseen = summary.predicted.dimension - sum(count for _, count in summary.predicted.directions)
        named = [*summary.predicted.directions, ("not seen by so few samples", unseen)]
        return "\n".join(line for what, count in named if count for line in wrapped(f"{count:5d}  {what}", width))
    return summary.description.to_text(width)
