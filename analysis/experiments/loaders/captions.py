"""COCO's images, as features, with five captions each: the files of order-embeddings, or Karpathy's JSON."""

import json
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import array, find, lines, opened

CAPTIONS = 5
MAX_JSON = 1 << 30


class Split(NamedTuple):
    """Images and their captions.

    Attributes:
        features: one row an image, mapped from disk.
        captions: five for each image, as words.
    """

    features: Float[np.ndarray, "N F"]
    captions: list[list[list[str]]]


def read_captions(path: Path) -> list[list[list[str]]]:
    """Captions as words, five lines an image.

    Args:
        path: of a text file.

    Returns:
        For each image, five lists of words.

    Raises:
        DataError: if a line is empty, or their number is not a multiple of five.
    """
    every = []
    for number, line in enumerate(lines(path), 1):
        if not (words := line.lower().split()):
            raise DataError(f"{path}, line {number}: empty; expected a caption")
        every.append(words)
    if not every or len(every) % CAPTIONS:
        raise DataError(f"{path}: {len(every)} captions; expected {CAPTIONS} lines for each image")
    source = iter(every)
    return [list(islice(source, CAPTIONS)) for _ in range(len(every) // CAPTIONS)]


def read_split(folder: Path, split: str) -> Split:
    """One split of the order-embeddings data.

    Args:
        folder: with `train.txt` and `images/10crop/train.npy`, and likewise `val` and `test`.
        split: "train", "val" or "test".

    Returns:
        Features, mapped, and captions.

    Raises:
        DataError: if files are missing or damaged, or do not have the same number of images.
    """
    captions = read_captions(find(folder, f"{split}.txt", what="captions, five lines an image"))
    path = find(folder, f"images/10crop/{split}.npy", f"images/{split}.npy", what="features [N 4096], float32")
    features = array(path)
    if features.ndim != 2 or features.dtype.kind != "f":
        raise DataError(f"{path}: expected floats [N F]; got {features.dtype} {features.shape}")
    if len(features) != len(captions):
        raise DataError(f"{path}: {len(features)} images, but captions of {len(captions)}")
    for start in range(0, len(features), 4096):
        if not np.all(np.isfinite(features[start : start + 4096])):
            raise DataError(f"{path}: NaN or infinite features among images {start} to {start + 4095}")
    return Split(features, captions)


def read_karpathy(path: Path) -> dict[str, list[list[list[str]]]]:
    """Captions of `dataset_coco.json`, by split.

    Args:
        path: of the file.

    Returns:
        Split → for each image, its captions as words (five or more).

    Raises:
        DataError: if it is not JSON of that form.
    """
    with opened(path) as file:
        text = file.read(MAX_JSON + 1)
    if len(text) > MAX_JSON:
        raise DataError(f"{path}: more than {MAX_JSON} bytes; not dataset_coco.json")
    try:
        document = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise DataError(f"{path}: expected an object with a list 'images'")
    found: dict[str, list[list[list[str]]]] = {}
    for number, image in enumerate(document["images"]):
        try:
            split, captions = image["split"], [sentence["tokens"] for sentence in image["sentences"]]
        except (TypeError, KeyError) as error:
            raise DataError(f"{path}: image {number} has no split or no sentences with tokens ({error!r})") from None
        words = isinstance(split, str) and captions and all(isinstance(c, list) for c in captions)
        if not words or not all(isinstance(w, str) for c in captions for w in c):
            raise DataError(f"{path}: image {number}: expected a split, and captions as lists of words")
        found.setdefault(split, []).append([[w.lower() for w in c] for c in captions])
    if not found:
        raise DataError(f"{path}: no images")
    return found
