"""IAM-OnDB: handwriting as strokes of a pen, and the text that was written."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring
from jaxtyping import Float
from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import inside, lines, opened

MAX_XML = 1 << 25


class Line(NamedTuple):
    """One line of handwriting.

    Attributes:
        name: such as a01-000u-01.
        points: x, y (upwards) and whether the pen is lifted after the point, [T 3].
        text: what was written.
    """

    name: str
    points: Float[np.ndarray, "T 3"]
    text: str


def read_strokes(path: Path) -> Float[np.ndarray, "T 3"]:
    """The points of one `lineStrokes` file, in pixels, y upwards.

    Args:
        path: of an XML file with WhiteboardCaptureSession > StrokeSet > Stroke > Point.

    Returns:
        x, y and 1 where a stroke ends, [T 3].

    Raises:
        DataError: if it is not such a file, declares entities, or a coordinate is not a number.
    """
    with opened(path) as file:
        text = file.read(MAX_XML + 1)
    if len(text) > MAX_XML:
        raise DataError(f"{path}: more than {MAX_XML} bytes; not one line of handwriting")
    try:
        root = fromstring(text, forbid_dtd=True)
    except DefusedXmlException as error:
        raise DataError(f"{path}: declares a document type or entities, which is refused ({error})") from error
    except (ParseError, ValueError, LookupError) as error:
        raise DataError(f"{path}: not well-formed XML ({error})") from error
    if root.tag != "WhiteboardCaptureSession":
        raise DataError(f"{path}: expected WhiteboardCaptureSession; the root is {root.tag!r}")
    points: list[tuple[float, float, float]] = []
    for stroke in root.iterfind("./StrokeSet/Stroke"):
        found = [_point(path, p.get("x"), p.get("y")) for p in stroke.iterfind("Point")]
        points += [(x, y, float(k == len(found) - 1)) for k, (x, y) in enumerate(found)]
    if not points:
        raise DataError(f"{path}: no points in StrokeSet > Stroke > Point")
    return np.array(points, np.float32)


def _point(path: Path, x: str | None, y: str | None) -> tuple[float, float]:
    try:
        values = float(x or ""), -float(y or "")
    except ValueError:
        raise DataError(f"{path}: a Point has x = {x!r}, y = {y!r}; expected numbers") from None
    if not np.all(np.abs(values) < 1e6):
        raise DataError(f"{path}: a Point has x = {x!r}, y = {y!r}; expected finite pixels")
    return values


def read_transcription(path: Path) -> list[str]:
    """The lines of text of one form: those after `CSR:`; several signs % in a row join two lines.

    Args:
        path: of a file under `ascii`.

    Returns:
        Lines, without the empty ones; none where the form has no text.
    """
    every = list(lines(path, "latin-1"))
    start = next((k for k, line in enumerate(every) if line.strip() == "CSR:"), len(every))
    parts = [part.strip() for line in every[start + 1 :] for part in re.split("%{2,}", line)]
    return [part for part in parts if part]


SKIPPED = 0.1
"""The largest share of lines that may have no text."""


def read_iam(folder: Path, skip: Callable[[str], None] = lambda reason: None) -> Iterator[Line]:
    """All lines of handwriting under a folder, one by one, in the order of their names.

    Lines without text, of which the data set has some, are left out: a form may have no transcription, no text in it,
    or fewer lines of text than of strokes.

    Args:
        folder: that has `lineStrokes` and `ascii`, nested as the archives unpack them or flat.
        skip: called with the reason for each line that is left out.

    Yields:
        Lines.

    Raises:
        DataError: if a folder is missing, a file is damaged, or more than a tenth of the lines have no text.
    """
    folder = Path(folder)
    strokes, texts = (_only(folder, name) for name in ("lineStrokes", "ascii"))
    transcriptions = {p.stem: p for p in sorted(texts.rglob("*.txt"))}
    paths = sorted(strokes.rglob("*.xml"), key=lambda p: p.name)
    if not paths:
        raise DataError(f"{strokes}: no .xml files")
    form, written, skipped = "", [], []
    for path in paths:
        name, _, number = path.stem.rpartition("-")
        if not number.isdecimal() or int(number) < 1:
            raise DataError(f"{path}: expected a name such as a01-000u-01.xml")
        if name != form:
            form, written = name, []
            if name in transcriptions:
                written = read_transcription(inside(folder, transcriptions[name]))
        if int(number) > len(written):
            what = f"{transcriptions[name]} has {len(written)} lines of text" if name in transcriptions else "no text"
            skipped.append(f"{path}: line {number}, but {what}")
            skip(skipped[-1])
            continue
        yield Line(path.stem, read_strokes(inside(folder, path)), written[int(number) - 1])
    if len(skipped) > SKIPPED * len(paths):
        raise DataError(f"{len(skipped)} of {len(paths)} lines have no text; expected few. The first is {skipped[0]}")


def _only(folder: Path, name: str) -> Path:
    found = [p for p in (folder / name, folder / name / name, *sorted(folder.glob(f"*/{name}"))) if p.is_dir()]
    if not found:
        raise DataError(f"{folder}: expected the folders lineStrokes and ascii of IAM-OnDB; {name} is not there")
    return inside(folder, found[0])
