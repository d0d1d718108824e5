"""Handwritten digits: the 1797 real images that come with scikit-learn, and the form that larger sets take."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Digits(NamedTuple):
    """Images and labels, as arrays.

    Attributes:
        train_images: rows of pixels in [0, 1], [N D].
        train_labels: [N].
        test_images: likewise, of images not trained on.
        test_labels: likewise.
    """

    train_images: Float[np.ndarray, "N D"]
    train_labels: Int[np.ndarray, " N"]
    test_images: Float[np.ndarray, "M D"]
    test_labels: Int[np.ndarray, " M"]


def bundled(train: int = 1437) -> Digits:
    """The 8 × 8 digits, in a fixed random order.

    Args:
        train: how many to train on; the others are for testing.

    Returns:
        The digits.
    """
    from sklearn.datasets import load_digits

    images, labels = map(np.asarray, load_digits(return_X_y=True))
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    return Digits(images[:train], labels[:train], images[train:], labels[train:])


def made_up(train: int, test: int, pixels: int) -> Digits:
    """Noise of the shape of a data set, for a dry run."""
    rng = np.random.default_rng(0)
    images = rng.random((train + test, pixels), np.float32)
    labels = rng.integers(0, 10, train + test).astype(np.int32)
    return Digits(images[:train], labels[:train], images[train:], labels[train:])
