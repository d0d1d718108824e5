"""Fisher matrices in files: arrays with the paths of their leaves and their provenance, and no code."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from lngeom._core.files import CORRUPT, replacing

PARTS = ("matrix", "factor", "singular_values", "nullspace")


@dataclass(frozen=True, repr=False)
class SavedFisher:
    """What `FisherOperator.save` wrote; parts that were not saved are None.

    Attributes:
        leaves: paths of the leaves, in the order of the columns.
        shapes: of the leaves.
        provenance: what matrix it is, of what, and the versions that computed it.
        matrix: F.
        factor: A, with Aᵀ A = F.
        singular_values: of the factor, descending.
        nullspace: orthonormal basis as columns.
    """

    leaves: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    provenance: Mapping[str, Any]
    matrix: Float[np.ndarray, "P P"] | None = None
    factor: Float[np.ndarray, "R P"] | None = None
    singular_values: Float[np.ndarray, " k"] | None = None
    nullspace: Float[np.ndarray, "P k"] | None = None

    def __repr__(self) -> str:
        """What it is, and which parts there are."""
        held = ", ".join(name for name in PARTS if getattr(self, name) is not None)
        return f"SavedFisher({self.provenance.get('operator')}: {held})"

    def block(self, i: str, j: str) -> Float[np.ndarray, "p q"]:
        """The block of two leaves, by path.

        Raises:
            ValueError: if there is no such leaf, or the matrix was not saved.
        """
        if self.matrix is None or (unknown := {i, j} - set(self.leaves)):
            missing = "no matrix was saved" if self.matrix is None else f"no such leaf: {sorted(unknown)}"
            raise ValueError(f"{missing}; the leaves are {list(self.leaves)}")
        edges = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)])
        rows, columns = (slice(edges[k], edges[k + 1]) for k in map(self.leaves.index, (i, j)))
        return self.matrix[rows, columns]


def save(F: Any, path: Path, parts: Sequence[str], known: Mapping[str, Any]) -> None:
    """Writes parts of a `FisherOperator` as a .npz, whole or not at all (arguments as `FisherOperator.save`).

    Raises:
        ValueError: for another part, or a path that is not that of a .npz.
    """
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"parts are {', '.join(PARTS)}; got {sorted(unknown)}")
    if path.suffix != ".npz" or path.is_dir():
        raise ValueError(f"a Fisher matrix is saved as a .npz file; got {path}")
    make = {
        "matrix": F.as_matrix,
        "factor": F.factor,
        "singular_values": F.singular_values,
        "nullspace": lambda: F.nullspace().basis,
    }
    arrays = {name: np.asarray(known[name] if name in known else make[name]()) for name in parts}
    shapes = [list(shape) for shape, _ in F.problem.layout.leaves]
    about = {
        "operator": repr(F),
        "method": F.method,
        "family": F.problem.family.name,
        "samples": F.samples,
        "dtype": str(F.problem.dtype),
        "masked": F.problem.weights is not None,
        "excluded": list(F.excluded),
        "shapes": shapes,
        "versions": {name: metadata.version(name) for name in ("lngeom", "jax")},
    }
    arrays |= {"leaves": np.array(F.leaves), "sizes": np.array([math.prod(shape) for shape in shapes])}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, provenance=np.array(json.dumps(about)), **arrays)


def read(path: Path) -> SavedFisher:
    """Reads what `save` wrote; nothing is unpickled.

    Raises:
        ValueError: if the file holds something else.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
            about = json.loads(str(found["provenance"]))
            shapes = tuple(map(tuple, about.pop("shapes")))
            leaves = tuple(map(str, found["leaves"]))
    except CORRUPT as error:
        raise ValueError(f"{path}: not a file of FisherOperator.save ({error})") from error
    return SavedFisher(leaves, shapes, about, **{name: found[name] for name in PARTS if name in found})
