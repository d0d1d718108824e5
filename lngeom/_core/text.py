"""Words and lines for people: counts with their nouns, the width of the terminal, lines that fit it."""

import shutil
import textwrap


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
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


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
