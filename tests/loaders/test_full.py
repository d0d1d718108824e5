"""What is read from disk has the form that each experiment trains on."""

from dataclasses import replace
from importlib import import_module

import jax
import numpy as np
import pytest
from analysis import loaders
from analysis.loaders._full import ASSEMBLE, padded, vocabulary
from lngeom.data import DataError

from tests.loaders import formats


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "IMAGES", np.repeat(np.repeat(formats.IMAGES, 7, 1), 7, 2))
    monkeypatch.setattr(formats, "BITS", np.resize(formats.BITS, (5, 784)))
    for one in formats.FORMATS.values():
        one.write(tmp_path)
    (tmp_path / "mnist.npz").unlink()
    for old in ("train.txt", "images/10crop/train.npy"):
        (tmp_path / old.replace("train", "val")).write_bytes((tmp_path / old).read_bytes())
    for split in ("training", "validation"):
        (tmp_path / "questions" / split).mkdir()
        (tmp_path / "questions" / split / "1.question").write_text(formats.STORY)
    ink = tmp_path / "lineStrokes" / "a01" / "a01-000" / "a01-000u-01.xml"
    ink.with_name("a01-000u-02.xml").write_text(ink.read_text())
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("it was night\nthe cat slept\nthe dog did not\nthen it was day\n")
    return tmp_path


SMALLER = {"order_embeddings": {"features": 7}, "mnist": {"train": 7}, "convnet": {"train": 7}}


@pytest.mark.parametrize("name", ASSEMBLE)
def test_data_have_the_form_of_made_up_data(name, folder):
    experiment = import_module(f"analysis.{name}").EXPERIMENT
    settings = replace(experiment.full, **SMALLER.get(name, {}))
    made, read = experiment.synthetic(settings), loaders.load(name, folder, settings)
    if name == "skip_thoughts":
        pairs, tasks = read.test.pairs, read.test.tasks
        assert pairs[0].shape[:2] == (2, 2)
        assert set(tasks) == {"MR", "CR", "SUBJ", "MPQA"}
        read = read._replace(test=read.test._replace(pairs=None, tasks=None))
    if name == "handwriting":
        moves = read.points[0, : read.lengths[0]]
        np.testing.assert_allclose(moves[:, 2], [0, 1, 1])
    assert jax.tree.structure(read) == jax.tree.structure(made)
    for a, b in zip(jax.tree.leaves(read), jax.tree.leaves(made), strict=True):
        assert (a.dtype, a.ndim) == (b.dtype, b.ndim)


def test_symbols_are_those_of_the_words(folder):
    read = loaders.load("attentive_reader", folder, import_module("analysis.attentive_reader").EXPERIMENT.full)
    first, seen, second, stop = read.documents[0]
    assert (first, second) == (2, 3)  # @entity1, @entity2; @entity0 would be 1
    assert min(seen, stop) > 601
    assert read.answers[0] == 1
    settings = replace(import_module("analysis.attentive_reader").EXPERIMENT.full, entities=2)
    with pytest.raises(DataError, match="at most 2 entities"):
        loaders.load("attentive_reader", folder, settings)


def test_entities_are_renamed_alike_in_story_question_and_answer():
    reader = import_module("analysis.attentive_reader")
    documents, asked = np.array([[1, 2, 5, 0]], np.int32), np.array([[2, 6]], np.int32)
    batch = reader.Questions(documents, np.array([3]), asked, np.array([2]), np.array([1], np.int32))
    found = [reader.renamed(batch, 4, 7, jax.random.key(seed)) for seed in range(8)]
    assert len({tuple(np.asarray(f.documents)[0]) for f in found}) > 1
    for f in found:
        first, second, word, padding = np.asarray(f.documents)[0]
        assert (int(word), int(padding)) == (5, 0)
        assert first != second
        assert 1 <= min(first, second) <= max(first, second) <= 4
        assert np.asarray(f.questions)[0].tolist() == [second, 6]
        assert int(f.answers[0]) == second - 1


def test_vocabulary_is_of_the_commonest_words():
    assert vocabulary(["b", "a", "b", "c", "a", "b"], 4, 2) == {"b": 2, "a": 3}


def test_rows_are_cut_and_filled():
    rows, lengths = padded([[1, 2, 3], [4]], 2)
    assert rows.tolist() == [[1, 2], [4, 0]]
    assert lengths.tolist() == [2, 1]


def test_an_experiment_without_a_data_set_says_so(tmp_path):
    with pytest.raises(DataError, match="rows_of_digits has no data set on disk"):
        loaders.load("rows_of_digits", tmp_path, None)
    with pytest.raises(DataError, match="no such folder"):
        loaders.load("mnist", tmp_path / "no", None)
