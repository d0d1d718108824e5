"""Words and lines for people: counts with their nouns, the width of the terminal, lines that fit it."""

import itertools
import shutil
import textwrap
from collections.abc import Container, Iterator, Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, in the singular for one.

    Args:
        number: how many.
        noun: of one.
        plural: of several; by default the noun with an s.

    Example:
        >>> counted(1, "claim"), counted(2, "claim"), counted(0, "matrix", "matrices")
        ('1 claim', '2 claims', '0 matrices')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def verb(number: int, one: str = "is", several: str = "are") -> str:
    """The verb of a number of things."""
    return one if number == 1 else several


def terminal_width(otherwise: int = 80) -> int:
    """Columns of the terminal, 40 at least.

    Args:
        otherwise: columns where there is no terminal.
    """
    return max(40, shutil.get_terminal_size((otherwise, 24)).columns)


def wrapped(line: str, width: int | None, further: str = "  ") -> list[str]:
    """Lines of at most `width` columns, where words allow it, with the line's indent.

    Args:
        line: a line.
        width: columns; None for any number.
        further: more indent of the lines after the first.
    """
    if width is None or len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent + further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    rows: Sequence[Sequence[str]], width: int, least: Sequence[tuple[int, int]], right: Container[int] = ()
) -> list[str]:
    """A table of text whose cells are wrapped, between words where that is possible, to fit a terminal.

    Args:
        rows: the cells; the first row is the heading, and a line is drawn below it.
        width: columns of the terminal.
        least: numbers of columns that may be narrower than their cells, and the fewest columns they take, in the order
            in which they give way.
        right: numbers of the columns that are aligned to the right. Their headings alone are wrapped.

    Returns:
        Lines, without blanks at their ends. They may be longer than `width`.
    """
    columns = list(zip(*rows, strict=True))
    widths = [
        max(*map(len, cells), *map(len, heading.split())) if k in right else max(len(heading), *map(len, cells))
        for k, (heading, *cells) in enumerate(columns)
    ]
    gaps = 2 * (len(widths) - 1)
    for k, fewest in least:
        excess = sum(widths) + gaps - width
        widths[k] -= max(0, min(excess, widths[k] - min(fewest, widths[k])))

    def lines(row: Sequence[str]) -> Iterator[str]:
        cells = [
            textwrap.wrap(cell, size, break_on_hyphens=False) or [""] for cell, size in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            aligned = (
                part.rjust(size) if k in right else part.ljust(size)
                for k, (part, size) in enumerate(zip(parts, widths, strict=True))
            )
            yield "  ".join(aligned).rstrip()

    return [*lines(rows[0]), "─" * (sum(widths) + gaps), *(line for row in rows[1:] for line in lines(row))]
