"""The form of each data set, and the 1797 images of digits that come with scikit-learn."""

from collections.abc import Callable
from typing import Any, NamedTuple

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


class Binarized(NamedTuple):
    """Images of zeros and ones, as rows of pixels.

    Attributes:
        train: [N D].
        test: [M D].
    """

    train: Float[np.ndarray, "N D"]
    test: Float[np.ndarray, "M D"]


class Captioned(NamedTuple):
    """Images as features, with several captions each; captions are padded with zeros.

    Attributes:
        features: of the images to train on, [N F].
        captions: symbols, [N C T].
        lengths: [N C].
        test_features: likewise, held out.
        test_captions: likewise.
        test_lengths: likewise.
    """

    features: Float[np.ndarray, "N F"]
    captions: Int[np.ndarray, "N C T"]
    lengths: Int[np.ndarray, "N C"]
    test_features: Float[np.ndarray, "M F"]
    test_captions: Int[np.ndarray, "M C T"]
    test_lengths: Int[np.ndarray, "M C"]


class Questions(NamedTuple):
    """Documents and questions with a gap, as symbols padded with zeros; answers are entities, symbols from 1 on.

    Attributes:
        documents: [N T].
        document_lengths: [N].
        questions: [N Q].
        question_lengths: [N].
        answers: number of the entity, from 0, [N].
        test: the same of questions held out; None within it.
    """

    documents: Int[np.ndarray, "N T"]
    document_lengths: Int[np.ndarray, " N"]
    questions: Int[np.ndarray, "N Q"]
    question_lengths: Int[np.ndarray, " N"]
    answers: Any
    test: Any = None


class Triples(NamedTuple):
    """Three sentences in a row, as symbols padded with zeros; 1 ends a sentence.

    Attributes:
        sentences: [N 3 T].
        lengths: [N 3].
        test: the same, held out, or None within it.
        labels: of the middle sentence: what classifiers are to tell, [N]; None where there are none.
        pairs: twice, to train on and to test on: sentences a pair, their lengths and score from 1 to 5: [N 2 T], [N 2],
            [N]; None likewise.
        tasks: further sentences to classify: name → sentences [N T], their lengths [N] and classes [N].
    """

    sentences: Any
    lengths: Any
    test: Any = None
    labels: Any = None
    pairs: Any = None
    tasks: Any = None


class Lines(NamedTuple):
    """Lines of handwriting and their text, padded with zeros.

    Attributes:
        points: (dx, dy, lifted), scaled to a standard deviation of 1, [N T 3].
        lengths: points of each line, [N].
        texts: characters as numbers from 0, [N U].
        text_lengths: [N].
        test: the same of lines held out; None within it.
    """

    points: Float[np.ndarray, "N T 3"]
    lengths: Int[np.ndarray, " N"]
    texts: Int[np.ndarray, "N U"]
    text_lengths: Int[np.ndarray, " N"]
    test: Any = None


class Streamed(NamedTuple):
    """A data set too large for memory.

    Attributes:
        data: of the form that `Experiment.data` gives, with all that is held out.
        stream: batches of the same form with nothing held out, as `loop.train` takes them.
    """

    data: Any
    stream: Callable[[int, int], Any]


def bundled_digits(train: int = 1437) -> Digits:
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


def made_up_digits(train: int, test: int, pixels: int) -> Digits:
    """Noise of the shape of a data set, for a dry run."""
    rng = np.random.default_rng(0)
    images = rng.random((train + test, pixels), np.float32)
    labels = rng.integers(0, 10, train + test).astype(np.int32)
    return Digits(images[:train], labels[:train], images[train:], labels[train:])
