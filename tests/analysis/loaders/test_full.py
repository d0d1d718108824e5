"""What is read from disk has the form that each experiment trains on."""

from dataclasses import replace
from importlib import import_module

import jax
import numpy as np
import pytest
from analysis.__main__ import discover
from analysis.experiments import attentive_reader, rows_of_digits
from analysis.experiments.datasets import Questions
from analysis.experiments.experiment import load_full
from analysis.experiments.loaders.assemble import padded, vocabulary
from lngeom.data import DataError

from tests.analysis.loaders import formats


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


EXPERIMENTS = [import_module(found.module).EXPERIMENT for found in discover().values() if found.experiment]


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e.load], ids=lambda e: e.name)
def test_data_have_the_form_of_made_up_data(experiment, folder):
    name = experiment.name
    experiment = replace(experiment, full=replace(experiment.full, **SMALLER.get(name, {})))
    made, read = experiment.synthetic(experiment.full), load_full(experiment, folder)
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
    reader = attentive_reader.EXPERIMENT
    read = load_full(reader, folder)
    first, seen, second, stop = read.documents[0]
    assert (first, second) == (2, 3)  # @entity1, @entity2; @entity0 would be 1
    assert min(seen, stop) > 601
    assert read.answers[0] == 1
    with pytest.raises(DataError, match="at most 2 entities"):
        load_full(replace(reader, full=replace(reader.full, entities=2)), folder)


def test_entities_are_renamed_alike_in_story_question_and_answer():
    documents, asked = np.array([[1, 2, 5, 0]], np.int32), np.array([[2, 6]], np.int32)
    batch = Questions(documents, np.array([3]), asked, np.array([2]), np.array([1], np.int32))
    found = [attentive_reader.renamed(batch, 4, 7, jax.random.key(seed)) for seed in range(8)]
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
    with pytest.raises(ValueError, match="rows_of_digits has no data set on disk"):
        load_full(rows_of_digits.EXPERIMENT, tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        load_full(attentive_reader.EXPERIMENT, tmp_path / "no")
