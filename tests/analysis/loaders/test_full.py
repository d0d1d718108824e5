"""What is read from disk has the form that each experiment trains on."""

import json
import sys
from dataclasses import replace
from importlib import import_module

import jax
import numpy as np
import pytest
from analysis.__main__ import discover, main as analysis_main
from analysis.experiments import attentive_reader, loop, rows_of_digits, sentence_tasks
from analysis.experiments.checkpoint import read_header
from analysis.experiments.datasets import Questions
from analysis.experiments.experiment import load_full, real_version
from analysis.experiments.loaders import sentences
from analysis.experiments.loaders.assemble import padded, vocabulary
from analysis.experiments.results import read
from analysis.experiments.variants import AUTHORS, with_variant
from lngeom.claims.data import DataError

from tests.analysis.loaders import formats
from tests.analysis.tasks import made_once


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "IMAGES", np.repeat(np.repeat(formats.IMAGES, 7, 1), 7, 2))
    monkeypatch.setattr(formats, "BITS", np.resize(formats.BITS, (5, 784)))
    for one in formats.FORMATS.values():
        one.write(tmp_path)
    (tmp_path / "mnist.npz").unlink()
    for old in ("train.txt", "images/10crop/train.npy"):
        for split in ("val", "test"):
            (tmp_path / old.replace("train", split)).write_bytes((tmp_path / old).read_bytes())
    for split in ("training", "validation"):
        (tmp_path / "questions" / split).mkdir()
        (tmp_path / "questions" / split / "1.question").write_text(formats.STORY)
    ink = tmp_path / "lineStrokes" / "a01" / "a01-000" / "a01-000u-01.xml"
    ink.with_name("a01-000u-02.xml").write_text(ink.read_text())
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("it was night\nthe cat slept\nthe dog did not\nthen it was day\n")
    for name in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        (tmp_path / name).unlink()
    return tmp_path


SMALLER = {"order_embeddings": {"features": 7}} | {n: {"train": 7} for n in ("mnist", "convnet", "rows_of_digits")}


EXPERIMENTS = [import_module(found.module).EXPERIMENT for found in discover().values() if found.experiment]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_data_have_the_form_of_made_up_data(experiment, folder):
    name = experiment.name
    experiment = replace(experiment, full=replace(experiment.full, **SMALLER.get(name, {})))
    made, read = experiment.synthetic(experiment.full), load_full(experiment, folder)
    if name == "skip_thoughts":
        batch = read.stream(5, 2)
        assert batch.sentences.shape[:3] == (2, experiment.full.batch, 3)
        np.testing.assert_array_equal(batch.sentences[1], read.stream(6, 1).sentences[0])
        read = read.data
        pairs, tasks = read.test.pairs, read.test.tasks
        assert [side[0].shape[:2] for side in pairs] == [(7, 2), (4, 2)]
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
        load_full(replace(rows_of_digits.EXPERIMENT, load=None), tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        load_full(attentive_reader.EXPERIMENT, tmp_path / "no")


def test_questions_without_an_answer_in_four_sentences_are_left_out_and_counted(folder):
    late = formats.STORY.replace("@entity1 saw @entity2 .", "it . was . not . so . @entity1 saw @entity2 .")
    (folder / "questions" / "training" / "2.question").write_text(late)
    with pytest.warns(UserWarning, match="1 of 2 questions of training have no answer in the first 4 sentences"):
        read = load_full(attentive_reader.EXPERIMENT, folder)
    assert len(read.documents) == 1
    (folder / "questions" / "validation" / "1.question").write_text(late)
    with (
        pytest.warns(UserWarning, match="1 of 2 questions"),
        pytest.raises(DataError, match="no answer of validation is in the first 4 sentences"),
    ):
        load_full(attentive_reader.EXPERIMENT, folder)


def test_no_more_images_are_held_out_than_the_settings_say(folder):
    order = import_module("analysis.experiments.order_embeddings").EXPERIMENT
    found = load_full(replace(order, full=replace(order.full, features=7, held_out=1)), folder)
    assert (len(found.features), len(found.test_features), len(found.test_captions)) == (2, 1, 1)


def test_lines_of_pen_written_digits_hold_out_their_digits(tmp_path):
    formats.write_pens(tmp_path)
    writing = import_module("analysis.experiments.handwriting").EXPERIMENT
    settings = replace(writing.real.settings, lines=6, held_out=2, text=3)
    found = real_version(replace(writing, real=replace(writing.real, settings=settings)), tmp_path)
    data = found.data(found.small)
    assert data.points.shape == (6, 24, 3)
    assert data.test.points.shape == (2, 24, 3)
    assert (data.points[..., 2].sum(1) == 3).all(), "the pen is lifted after each digit"
    assert not found.generated
    with pytest.raises(DataError, match="60 digits; expected at least 300"):
        real_version(writing, tmp_path).data(replace(settings, held_out=50))
    with pytest.raises(ValueError, match="give their folder with --data"):
        real_version(writing, None)
    with pytest.raises(ValueError, match="attentive_reader has no version on real data"):
        real_version(attentive_reader.EXPERIMENT, tmp_path)


def test_skip_thoughts_on_reviews_are_judged_by_sentences_of_known_polarity(tmp_path):
    formats.write_reviews(tmp_path)
    skip = import_module("analysis.experiments.skip_thoughts").EXPERIMENT
    found = real_version(skip, tmp_path)
    streamed = found.data(replace(found.small, vocabulary=20, batch=5))
    symbols, lengths, labels = streamed.data.test.tasks["MR"]
    assert symbols.shape == (30, 20)
    assert lengths.max() <= 20
    assert {0, 1} == set(labels[:15].tolist()) == set(labels[15:].tolist())
    assert streamed.stream(0, 3).sentences.shape == (3, 5, 3, 20)
    tiny = replace(found.small, vocabulary=20, embedding=3, hidden=4, batch=5)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), jax.enable_x64(False):
        task = found.task(tiny, found.arms["LN"], streamed.data)
        measured = set(jax.eval_shape(lambda key: task.evaluate(task.init(key), streamed.data), jax.random.key(0)))
    assert {s.metric for s in found.statements} <= measured
    assert {name for p in found.panels for name in (p.metric, p.reference) if name} <= measured


TINY = {
    "rows_of_digits": {"train": 7, "hidden": 4, "batch": 3, "small_batch": 2, "small_batch_steps": 4},
    "order_embeddings": {"features": 7, "embedding": 3, "hidden": 4, "vocabulary": 30, "batch": 2, "held_out": 2},
    "attentive_reader": {"vocabulary": 30, "embedding": 3, "hidden": 4, "batch": 2},
    "skip_thoughts": {"vocabulary": 30, "embedding": 3, "hidden": 4, "batch": 2},
    "draw": {"glimpses": 2, "hidden": 4, "latent": 2, "batch": 2},
    "handwriting": {"hidden": 4, "windows": 2, "mixtures": 2, "batch": 2},
    "mnist": {"train": 7, "hidden": 4, "batch": 3, "small_batch": 2, "small_batch_steps": 4, "small_batch_every": 2},
    "convnet": {"train": 7, "channels": (2, 2), "hidden": 4, "batch": 3},
}


@pytest.fixture
def commanded(monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["python -m analysis", *map(str, arguments)])
        with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
            analysis_main()

    return call


AS_IN_THE_CODE = {"order_embeddings", "attentive_reader", "skip_thoughts"}
TABLES = {
    "order_embeddings": ("table2", lambda folder: ()),
    "skip_thoughts": ("table3", lambda folder: ("--vectors", folder / "vectors.bin")),
}


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", TINY)
def test_a_full_size_run_goes_from_files_to_a_figure_though_it_is_killed(
    name, folder, tmp_path, monkeypatch, commanded, capfd
):
    module = import_module(f"analysis.experiments.{name}")
    experiment = module.EXPERIMENT
    first = experiment.statements[0]
    arms = {arm: experiment.arms[arm] for arm in first.arms}
    tiny = replace(
        experiment,
        full=replace(experiment.full, steps=4, every=2, **TINY[name]),
        arms=arms,
        authors={arm: made for arm, made in experiment.authors.items() if arm in arms},
        statements=tuple(s for s in experiment.statements if set(s.arms) <= set(arms)),
        panels=tuple(
            replace(p, arms=tuple(a for a in p.arms or arms if a in arms), labels={})
            for p in experiment.panels
            if set(p.arms or arms) & set(arms)
        ),
        finish=None if name == "convnet" else experiment.finish,
    )
    tiny = made_once(tiny)
    monkeypatch.setattr(module, "EXPERIMENT", tiny)
    first = with_variant(tiny, "authors").statements[0]
    assert name not in AS_IN_THE_CODE or first.treated.endswith(AUTHORS)
    for pair in (name for names in sentences.CLASSES.values() for name in names):
        if name == "skip_thoughts":
            (folder / pair).write_bytes(b"".join(f"sentence {k} of {pair}\n".encode() for k in range(12)))
    monkeypatch.setattr(sentence_tasks.Judge.__new__, "__defaults__", (False, (1.0,), 2, (1.0,)))  # fewer fits
    out = tmp_path / "out"
    options = (name, "--full", "--data", folder, "--out", out, "--seeds", "1", "--workers", "1")
    step, saved = loop.save_checkpoint, []

    def killed(path, header, tree):
        step(path, header, tree)
        saved.append(header["step"])
        if path.suffix == ".checkpoint" and header["step"] >= 2:
            raise Killed

    monkeypatch.setattr(loop, "save_checkpoint", killed)
    monkeypatch.setattr(loop.train, "__kwdefaults__", loop.train.__kwdefaults__ | {"checkpoint_seconds": 0.0})
    with pytest.raises(Killed):
        commanded(*options)
    monkeypatch.setattr(loop, "save_checkpoint", step)
    (checkpoint,) = (out / name / "checkpoints").glob("*.checkpoint")
    assert read_header(checkpoint)["step"] == 2
    commanded(*options, "--resume")
    assert {p.name for p in (out / name).iterdir()} == {
        "curves.npz", "statements.json", "config.json", "summary.json", "weights",
    }  # fmt: skip
    assert {p.suffix for p in (out / name / "weights").iterdir()} == {".checkpoint", ".best"}
    assert (out / f"{name}.png").is_file()
    kept = read(with_variant(tiny, "authors"), out)
    assert first.claim in {row["claim"] for row in kept.comparisons}
    assert np.isfinite(kept.runs[first.treated].curves[first.metric]).all()
    capfd.readouterr()
    if name in TABLES:
        monkeypatch.setattr(sentence_tasks, "AUTHORS", sentence_tasks.Judge(unit=True, penalties=(1.0,), inner=2))
        table, more = TABLES[name]
        monkeypatch.delitem(sys.modules, f"analysis.experiments.{table}", raising=False)  # it is run as a program
        commanded(table, "--data", folder, "--weights", out / name / "weights", "--out", out, *more(folder))
        rows = json.loads((out / f"{table}.json").read_text())["rows"]
        assert {first.treated, first.baseline} <= set(rows)
        assert np.isfinite(np.array([rows[arm] for arm in first.arms], float)).all()
        assert f"| {first.treated} |" in capfd.readouterr().out
