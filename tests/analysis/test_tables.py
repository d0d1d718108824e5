"""Tables 2 and 3: from files in their true formats and kept weights to rows, and what is refused on the way."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from analysis.experiments import loop, order_embeddings, running, skip_thoughts, table2, table3, variants, weights
from analysis.experiments.loaders import assemble
from lngeom.claims.data import DataError

from tests.analysis.loaders import formats
from tests.analysis.tasks import made_once

ARMS = ("OE, reference Adam", "OE + LN, reference Adam, authors' code")
SEEDS = 2


@pytest.fixture(scope="module", autouse=True)
def _promotion_as_optax_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
        yield


@pytest.fixture(scope="module", autouse=True)
def _tasks_made_once():
    with pytest.MonkeyPatch.context() as patch:
        for module in (order_embeddings, skip_thoughts):
            patch.setattr(module, "EXPERIMENT", made_once(module.EXPERIMENT))
        yield


@pytest.fixture(scope="module")
def captioned(tmp_path_factory):
    """Weights of two arms, their run, and the folder of their data: 6 images to train on, 4 to validate, 5 to test."""
    folder, rng = tmp_path_factory.mktemp("coco"), np.random.default_rng(0)
    (folder / "images" / "10crop").mkdir(parents=True)
    words = ["cat", "dog", "sits", "runs", "red", "mat"]
    for split, count in (("train", 6), ("val", 4), ("test", 5)):
        np.save(folder / "images" / "10crop" / f"{split}.npy", rng.random((count, 7), np.float32))
        told = (" ".join(rng.choice(words, rng.integers(2, 5))) + "\n" for _ in range(5 * count))
        (folder / f"{split}.txt").write_text("".join(told))
    sizes = {"features": 7, "embedding": 3, "hidden": 4, "vocabulary": 30, "batch": 3, "held_out": 4}
    settings = replace(order_embeddings.EXPERIMENT.full, steps=12, every=2, rate=0.05, **sizes)
    both = variants.with_variant(order_embeddings.EXPERIMENT, "both")
    chosen = replace(both, arms={a: both.arms[a] for a in ARMS}, statements=())
    kept = tmp_path_factory.mktemp("weights")
    data = assemble.order_embeddings(folder, settings)
    results = running.run(chosen, settings=settings, data=data, seeds=SEEDS, folder=kept, keep_best=True)
    return folder, kept, results


def counted(energy, of):
    """Recall and mean rank by counting; row i is to find the columns for which `of` gives i."""
    own = [[k for k in range(energy.shape[1]) if of(i, k)] for i in range(len(energy))]
    ranks = [sum(e < min(row[k] for k in mine) for e in row) for row, mine in zip(energy, own, strict=True)]
    recalls = [100 * float(np.mean([r < k for r in ranks])) for k in (1, 5, 10)]
    return [*recalls, float(np.mean(ranks)) + 1]


def test_table_2_is_retrieval_on_the_test_split_with_the_weights_at_the_best_validation_recall(captioned, monkeypatch):
    folder, kept, results = captioned
    monkeypatch.setattr(table2, "FOLD", 2)
    monkeypatch.setattr(table2.folds, "__defaults__", (2,))
    files = weights.find(order_embeddings.EXPERIMENT, kept, "best")
    assert tuple(files.paths) == ARMS
    rows = table2.measure(folder, files)
    test = assemble.order_embeddings(folder, files.settings, "test")
    assert len(test.test_features) == 5
    for arm in ARMS:
        curve, steps = results.runs[arm].curves["R@1+5+10"], results.runs[arm].steps
        assert rows[arm]["steps"] == steps[np.argmax(curve, 1)].tolist()
        assert rows[arm]["parts"] == 2
        _, trained = weights.load(order_embeddings.EXPERIMENT, files, arm, test)
        np.testing.assert_allclose(trained.values["R@1+5+10"], curve.max(1), rtol=1e-6)
        for seed in range(SEEDS):
            model = jax.tree.map(lambda v, s=seed: v[s], trained.states).model
            found = []
            for first in (0, 2):
                part = slice(first, first + 2)
                told = test.test_captions[part].reshape(10, -1)
                below = np.asarray(model.sentence(told, test.test_lengths[part].reshape(-1)), np.float64)
                seen = np.asarray(model.picture(test.test_features[part]), np.float64)
                energy = np.array([[np.sum(np.maximum(s - m, 0) ** 2) for m in seen] for s in below])
                found.append(counted(energy.T, lambda i, k: k // 5 == i) + counted(energy, lambda i, k: i // 5 == k))
            for name, value in zip(table2.METRICS, np.mean(found, 0), strict=True):
                assert rows[arm][name][seed] == pytest.approx(value, rel=1e-5), name


def test_five_thousand_images_are_five_parts_and_the_rest_is_left_out():
    data = assemble.Captioned(*[np.zeros((0, 5, 1))] * 3, *[np.arange(5321)] * 3)
    parts = table2.folds(data)
    assert [(len(p.test_features), p.test_captions[0]) for p in parts] == [(1000, 1000 * k) for k in range(5)]
    few = data._replace(test_features=np.arange(7))
    assert [len(p.test_features) for p in table2.folds(few)] == [7]


def test_table_2_refuses_other_data_missing_files_and_damaged_weights(captioned, tmp_path):
    folder, kept, _ = captioned
    files = weights.find(order_embeddings.EXPERIMENT, kept, "best")
    (tmp_path / "images" / "10crop").mkdir(parents=True)
    for name in [f"{s}.txt" for s in ("train", "val")] + [f"images/10crop/{s}.npy" for s in ("train", "val")]:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(DataError, match=r"expected captions, five lines an image: test\.txt"):
        table2.measure(tmp_path, files)
    (tmp_path / "test.txt").write_bytes((folder / "test.txt").read_bytes())
    with pytest.raises(DataError, match=r"expected features \[N 4096\], float32: images/10crop/test\.npy"):
        table2.measure(tmp_path, files)
    np.save(tmp_path / "images" / "10crop" / "test.npy", np.ones((5, 6), np.float32))
    with pytest.raises(DataError, match=r"features of 6 numbers an image \(test\); expected 7"):
        table2.measure(tmp_path, files)
    np.save(tmp_path / "images" / "10crop" / "test.npy", np.load(folder / "images" / "10crop" / "test.npy"))
    path = tmp_path / "images" / "10crop" / "val.npy"
    np.save(path, np.load(path)[::-1])
    with pytest.raises(ValueError, match=r"validation R@1\+5\+10 is .* and was .* in training: give the folder"):
        table2.measure(tmp_path, files)
    with pytest.raises(ValueError, match=r"has no weights \(\*\.best\): train with"):
        weights.find(order_embeddings.EXPERIMENT, tmp_path, "best")
    with pytest.raises(ValueError, match=r"holds weights of order_embeddings, OE.*; expected an arm of skip_thoughts"):
        weights.find(skip_thoughts.EXPERIMENT, kept, "best")
    cut = tmp_path / "cut"
    cut.mkdir()
    for source in files.paths.values():
        (cut / source.name).write_bytes(source.read_bytes()[:-9])
    with pytest.raises(ValueError, match="damaged or holds another model"):
        table2.measure(folder, weights.find(order_embeddings.EXPERIMENT, cut, "best"))
    header, states = source.read_bytes().split(b"\n", 1)
    other = json.loads(header)
    other["identity"]["configuration"]["settings"]["hidden"] = 5
    (cut / source.name).write_bytes(json.dumps(other).encode() + b"\n" + states)
    with pytest.raises(ValueError, match="weights of different sizes"):
        weights.find(order_embeddings.EXPERIMENT, cut, "best")
    del other["identity"]
    (cut / source.name).write_bytes(json.dumps(other).encode() + b"\n" + states)
    with pytest.raises(ValueError, match="does not say which run it belongs to"):
        weights.find(order_embeddings.EXPERIMENT, cut, "best")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Weights of an arm, and the folder of its data, in which no book has a word of the films that MR is about."""
    folder, kept = tmp_path_factory.mktemp("books"), tmp_path_factory.mktemp("weights")
    (folder / "books").mkdir()
    (folder / "books" / "one.txt").write_text("".join(f"{said}\n" for said in formats.SAID * 3))
    formats.write_sick_of_12_columns(folder)
    formats.write_classes(folder)
    formats.write_vectors(folder)
    formats.write_vectors_of_bytes(folder)
    for end, word in (("pos", "film"), ("neg", "small")):
        (folder / f"rt-polarity.{end}").write_text(f"{word}\n" * 15)
    sizes = {"vocabulary": 30, "embedding": 3, "hidden": 4, "batch": 2}
    settings = replace(skip_thoughts.EXPERIMENT.full, steps=4, every=2, rate=0.05, **sizes)
    both = variants.with_variant(skip_thoughts.EXPERIMENT, "both")
    arm = "LN, authors' code"
    chosen = replace(both, arms={arm: both.arms[arm]}, statements=(), finish=None)
    found = assemble.skip_thoughts(folder, settings)
    bare = found._replace(data=found.data._replace(test=found.data.test._replace(pairs=None, tasks=None)))
    running.run(chosen, settings=settings, data=bare, seeds=SEEDS, folder=kept)
    return folder, kept, arm


@pytest.mark.parametrize("vectors", ["vectors.txt", "vectors.bin"])
def test_table_3_tells_words_that_training_has_not_seen_by_their_word_vectors(told, vectors, monkeypatch):
    assert table3.AUTHORS == (True, (1, 2, 4, 8, 16, 32, 64, 128, 256), 10, (1, 2, 4, 8, 16, 32, 64, 128, 256))
    monkeypatch.setattr(
        table3, "AUTHORS", table3.AUTHORS._replace(penalties=(1.0, 256.0), inner=2, of_pairs=(1.0, 256.0))
    )
    folder, kept, arm = told
    files = weights.find(skip_thoughts.EXPERIMENT, kept, "checkpoint")
    assert list(files.paths) == [arm]
    tasks = ["SICK", "MR"] if vectors == "vectors.txt" else ["MR"]
    blind = table3.measure(folder, files, tasks, None)[arm]
    seen = table3.measure(folder, files, tasks, folder / vectors)[arm]
    assert blind["words of the tasks"] == {"by the map": 0, "unknown": 2}
    assert seen["words of the tasks"] == {"by the map": 2, "unknown": 0}
    assert max(blind["MR"]) < 70
    assert seen["MR"] == [100, 100]
    assert seen["steps"] == [4, 4]
    if "SICK" in tasks:
        assert set(seen) == {"steps", "words of the tasks", "SICK r", "SICK ρ", "SICK MSE", "MR"}
        assert seen["SICK MSE"] == blind["SICK MSE"], "all words of SICK are of training"


def test_the_map_to_learned_vectors_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    vectors = {f"w{k}": rng.normal(size=3) for k in range(9)}
    matrix, shift = rng.normal(size=(3, 4)), rng.normal(size=4)
    known = {f"w{k}": 3 + k for k in range(6)} | {"rare": 9}
    learned = np.zeros((10, 4))
    learned[3:9] = [vectors[f"w{k}"] @ matrix + shift for k in range(6)]
    found = table3.expanded(learned, known, vectors, ["w7", "w8"])
    np.testing.assert_array_equal(found[:10], learned)
    np.testing.assert_allclose(found[10:], [vectors[w] @ matrix + shift for w in ("w7", "w8")])
    noisy = learned + rng.normal(size=learned.shape)
    x = np.column_stack([[vectors[f"w{k}"] for k in range(6)], np.ones(6)])
    best = np.linalg.lstsq(x, noisy[3:9], rcond=None)[0]
    np.testing.assert_allclose(table3.expanded(noisy, known, vectors, ["w7"])[10], [*vectors["w7"], 1] @ best)
    with pytest.raises(ValueError, match=r"3 of 3 words of training are among the word vectors; .* needs at least 4"):
        table3.expanded(learned, {f"w{k}": 3 + k for k in range(3)}, vectors, ["w7"])


def test_table_3_refuses_other_books_and_missing_tasks(told, tmp_path):
    folder, kept, _ = told
    files = weights.find(skip_thoughts.EXPERIMENT, kept, "checkpoint")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("".join(f"{said}\n" for said in formats.SAID * 3))
    with pytest.raises(DataError, match=r"expected sentences of MR: rt-polarity\.pos"):
        table3.measure(tmp_path, files, ["MR"], None)
    with pytest.raises(DataError, match=r"expected pairs of SICK: SICK\.txt or SICK_train\.txt, SICK_trial\.txt"):
        table3.measure(tmp_path, files, ["SICK"], None)
    with pytest.raises(DataError, match=r"none\.bin: expected word vectors"):
        table3.measure(folder, files, ["MR"], tmp_path / "none.bin")
    (tmp_path / "books" / "one.txt").write_text("".join(f"{said}\n" for said in formats.SAID[::-1] * 3))
    with pytest.raises(ValueError, match=r"test NLL is .* and was .* in training: give the folder"):
        table3.measure(tmp_path, files, [], None)


def test_weights_of_a_run_that_stopped_between_two_evaluations_are_refused(told, tmp_path):
    _, kept, arm = told
    path = weights.find(skip_thoughts.EXPERIMENT, kept, "checkpoint").paths[arm]
    header, rest = path.read_bytes().split(b"\n", 1)
    stopped = tmp_path / path.name
    stopped.write_bytes(json.dumps(json.loads(header) | {"step": 3}).encode() + b"\n" + rest)
    made = variants.with_variant(skip_thoughts.EXPERIMENT, "both").arms[arm]
    settings = weights.find(skip_thoughts.EXPERIMENT, kept, "checkpoint").settings
    with pytest.raises(ValueError, match="stopped between two evaluations, at step 3"):
        loop.read_weights(skip_thoughts.task(settings, made, None), stopped)
