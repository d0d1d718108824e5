"""Experiments: every model's step keeps its shapes, its parts are what their formulas say, sizes are the paper's."""

import dataclasses
import importlib
import json
import re
import sys
import threading
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis.__main__ import discover, estimate, main as analysis_main
from analysis.experiments import (
    attentive_reader,
    authors_reader,
    convnet,
    datasets,
    draw,
    handwriting,
    order_embeddings,
    results,
    running,
    sentence_tasks,
    skip_thoughts,
)
from analysis.experiments.experiment import load_full
from analysis.experiments.loop import Run
from analysis.experiments.networks import glorot, parameters, rows
from analysis.experiments.optimizers import clip_each, reference_adam
from analysis.store import only_run
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement
from lngeom.papers.experiments import RECORDS
from scipy import stats

NAMES = sorted(name for name, found in discover().items() if found.experiment)
FIGURES = Path(__file__).parents[2] / "figures"
FULL_PARAMETERS = {"handwriting": 3.7e6}  # Section 6.5


@pytest.fixture(scope="module", autouse=True)
def _promotion_as_optax_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
        yield


def experiment(name):
    return importlib.import_module(f"analysis.experiments.{name}").EXPERIMENT


def test_every_experiment_of_the_paper_is_there_and_every_arm_is_compared():
    assert {"order_embeddings", "attentive_reader", "skip_thoughts", "draw", "handwriting", "mnist", "convnet"} <= set(
        NAMES
    )
    for name in NAMES:
        found = experiment(name)
        assert found.name == name
        assert {arm for s in found.statements for arm in s.arms} == set(found.arms)


def test_every_claim_about_training_rests_on_statements_and_every_statement_belongs_to_a_claim():
    stated = {(s.claim, name) for name in NAMES for s in experiment(name).statements}
    assert stated == {(f"experiments.{r.id}", r.experiment) for r in RECORDS}


def test_the_committed_results_hold_the_statements_of_today():
    for name in NAMES:
        kept = [FIGURES / name / "statements.json", FIGURES / "protocol" / name / "report.json"]
        for path in (p for p in kept if p.is_file()):
            statements = json.loads(path.read_text())["statements"]
            assert [TrainingStatement.from_json(s) for s in statements] == list(experiment(name).statements)


def _decomposes(program):
    return bool(re.search(r" = (lu|cholesky|eigh?|svd|geqrf|qr|schur|hessenberg|triangular_solve)\[", str(program)))


def _of_seeds(function):
    """The program of a function of seeds' states and data, and the shapes of what it gives."""
    return jax.make_jaxpr(jax.vmap(function, (0, None)), return_shape=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_size_step_keeps_its_state_and_waits_for_no_batch_of_decompositions(name):
    """Threads that each wait for another's decomposition could wait for ever."""
    found = experiment(name)
    data = found.synthetic(found.full)
    keys = jax.random.split(jax.random.key(0), 2)
    for arm in list(found.arms)[-2:]:
        task = found.task(found.full, found.arms[arm], data)
        state = jax.eval_shape(jax.vmap(task.init), keys)
        program, (following, loss) = _of_seeds(lambda s, d, task=task: task.step(s, keys[0], d))(state, data)
        same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, following)
        assert all(jax.tree.leaves(same))
        assert loss.shape == (2,)
        assert {v.dtype.name for v in jax.tree.leaves(state)} <= {"float32", "int32"}
        assert not _decomposes(program)
        assert not _decomposes(_of_seeds(task.evaluate)(state, data)[0])
        if name in FULL_PARAMETERS:
            assert parameters(state.model) / 2 == pytest.approx(FULL_PARAMETERS[name], rel=0.03)


def test_a_batch_of_decompositions_is_seen():
    assert _decomposes(jax.make_jaxpr(jax.vmap(jnp.linalg.solve))(*[jnp.stack([jnp.eye(2)] * 2)] * 2))


def test_a_tiny_experiment_runs_from_data_to_files(tmp_path):
    found = experiment("mnist")
    names = ("BN on all layers, batch 4", "LN on hidden layers, batch 4")
    statements = tuple(s for s in found.statements if set(s.arms) <= set(names))
    found = dataclasses.replace(found, arms={name: found.arms[name] for name in names}, statements=statements)
    sizes = {"hidden": 8, "small_batch_steps": 6, "small_batch_every": 3}
    outcome = running.run(found, seeds=5, folder=tmp_path / "checkpoints", **sizes)
    for run in outcome.runs.values():
        assert run.curves["train NLL"].shape == (5, 3)
        assert np.isfinite(run.curves["train NLL"]).all()
    again = running.run(found, seeds=5, folder=tmp_path / "checkpoints", resume=True, **sizes)
    first, second = (
        [p.read_bytes() for p in results.write(found, r, tmp_path / str(i))] for i, r in enumerate((outcome, again))
    )
    assert first == second
    assert json.loads(first[2])["settings"]["hidden"] == 8
    reread = results.read(found, tmp_path / "0")
    assert reread.summary == outcome.summary
    assert reread.comparisons == outcome.comparisons == json.loads(first[1])["statements"]
    with pytest.raises(ValueError, match="--data"):
        load_full(found, None)


@pytest.mark.parametrize("name", NAMES)
def test_evaluations_divide_the_steps_of_every_size(name):
    found = experiment(name)
    for settings in (found.small, found.full):
        for arm in found.arms.values():
            steps, every = found.length(settings, arm)
            assert steps >= every
            assert steps % every == 0


def _small_results(metrics):
    run = Run(np.array([0, 4, 8]), {m: np.ones((5, 3)) for m in metrics}, np.full(5, -1), None, tuple(range(5)))
    return dict.fromkeys(experiment("skip_thoughts").arms, run)


def test_a_statement_whose_metric_the_data_do_not_have_is_left_out_and_named():
    found = experiment("skip_thoughts")
    runs = _small_results(["test NLL"])
    assert {c["metric"] for c in results.compare(found, runs)} == {"test NLL"}
    assert len(results.measured(found, runs)) == 2
    assert len(results.measured(found, {"LN": runs["LN"]})) == 0
    assert len(results.measured(found, _small_results(["test NLL", "relatedness r", "topic accuracy"]))) == 4


def test_cross_validation_predicts_each_sentence_without_its_fold_and_chooses_the_penalty_on_the_others():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(203, 7)).astype(np.float32)
    labels = (features[:, 0] + 0.8 * rng.normal(size=203) > 0).astype(int)
    x = features - features.mean(0)
    x = np.c_[x / np.sqrt(np.mean(x**2)), np.ones(203)].astype(float)
    fold, correct = np.arange(203) % 10, []
    for penalty in skip_thoughts.PENALTIES:
        right = np.zeros(203)
        for k in range(10):
            known = x[fold != k]
            gram = known.T @ known / 203 + penalty * np.eye(8)
            weights = np.linalg.solve(gram, known.T @ np.eye(2)[labels[fold != k]] / 203)
            right[fold == k] = (x[fold == k] @ weights).argmax(1) == labels[fold == k]
        correct.append(right)
    chosen = [np.argmax([right[fold != k].sum() for right in correct]) for k in range(10)]
    expected = 100 * sum(correct[chosen[k]][fold == k].sum() for k in range(10)) / 203
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = float(skip_thoughts.cross_validated(jnp.asarray(features), labels, 2))
        constant = float(skip_thoughts.cross_validated(jnp.ones((203, 7)) + 0 * jnp.asarray(features), labels, 2))
    assert found == pytest.approx(expected, abs=1e-4)
    assert 50 < expected < 95
    assert constant < 55, "constant features know nothing"


def test_results_that_were_changed_by_hand_are_refused(tmp_path):
    found = experiment("skip_thoughts")
    runs = _small_results(["test NLL", "relatedness r", "topic accuracy"])
    described = running.configuration(found, found.small, 5)
    results.write(
        found, results.Results(described, runs, results.compare(found, runs), results.summarize(runs)), tmp_path
    )
    assert len(results.read(found, tmp_path).comparisons) == 4
    path = tmp_path / found.name / "config.json"
    path.write_text(path.read_text().replace('"seeds": 5', '"seeds": 50'))
    with pytest.raises(ValueError, match=r"config\.json was changed after its run"):
        results.read(found, tmp_path)


def test_results_of_another_size_are_not_replaced(tmp_path):
    found = experiment("skip_thoughts")
    described = running.configuration(found, found.small, 5)
    results.check_replaces_its_own(found, described, tmp_path)
    (tmp_path / found.name).mkdir()
    (tmp_path / found.name / "config.json").write_text(json.dumps(described))
    results.check_replaces_its_own(found, described, tmp_path)
    for other in (running.configuration(found, found.full, 5), running.configuration(found, found.small, 3)):
        with pytest.raises(ValueError, match="another configuration, which differs in"):
            results.check_replaces_its_own(found, other, tmp_path)


def test_a_run_of_all_takes_finished_experiments_as_they_are(tmp_path):
    found = experiment("skip_thoughts")
    runs = _small_results(["test NLL", "relatedness r", "topic accuracy"])
    described = running.configuration(found, found.small, 5)
    assert not results.is_done(found, described, tmp_path)
    results.write(
        found, results.Results(described, runs, results.compare(found, runs), results.summarize(runs)), tmp_path
    )
    assert results.is_done(found, described, tmp_path)
    assert not results.is_done(found, running.configuration(found, found.small, 3), tmp_path)
    path = tmp_path / found.name / "curves.npz"
    path.write_bytes(path.read_bytes()[:-1])
    assert not results.is_done(found, described, tmp_path)


def test_results_without_an_arm_are_one_error_and_not_a_traceback(tmp_path):
    found = experiment("skip_thoughts")
    runs = _small_results(["test NLL"])
    one = dataclasses.replace(found, arms={"LN": found.arms["LN"]}, statements=())
    described = running.configuration(one, one.small, 5)
    outcome = results.Results(described, {"LN": runs["LN"]}, [], results.summarize({"LN": runs["LN"]}))
    results.write(one, outcome, tmp_path)
    with pytest.raises(ValueError, match=r"no curves of baseline.*run the experiment again"):
        results.read(found, tmp_path)


def test_an_estimate_names_every_experiment_and_help_says_what_data_holds(monkeypatch, capfd):
    experiments = [experiment(name) for name in NAMES]
    text = estimate(experiments, 5, 2)
    assert all(f"{name}: " in text for name in NAMES)
    assert re.search(r"In all about \d", text)
    assert command(monkeypatch, "--help") == 0
    shown = capfd.readouterr().out
    readme = (FIGURES.parent / "analysis" / "README.md").read_text()
    for found in experiments:
        assert (f"{found.name} --full: " in shown) == bool(found.load)
        assert (f"{found.name} --real: " in shown) == (found.real is not None)
        assert bool(found.files) == bool(found.load)
        assert not found.load or readme.count(f"\n| `{found.name}` |") >= 1


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["python -m analysis", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        analysis_main()
    return ended.value.code


def test_a_folder_of_results_that_will_not_do_is_one_error_before_the_work(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    (tmp_path / "damaged" / "mnist").mkdir(parents=True)
    for name in ("mnist/config.json", "mnist/summary.json", "mnist/curves.npz"):
        (tmp_path / "damaged" / name).write_text("{")
    monkeypatch.setattr("analysis.__main__.run", pytest.fail)
    cases = [
        (("mnist", "--redraw", "--out", tmp_path / "none"), "mnist has no config.json"),
        (("mnist", "--redraw", "--out", tmp_path / "damaged"), "mnist has no results of this version"),
        (("mnist", "--out", tmp_path / "file"), "file is not a folder"),
        (("mnist", "--full", "--data", tmp_path / "none", "--out", tmp_path / "out"), "none"),
        (("learning_rate", "--out", tmp_path / "file" / "out"), "file is not a folder"),
        (("bench_tracker", "--out", tmp_path / "file" / "out.json"), "file is not a folder"),
        (("bench_fisher", "product-S", "--out", tmp_path / "file"), "file is not a folder"),
    ]
    for name in ("benchmarks.bench_tracker", "benchmarks.bench_fisher", "measurements.learning_rate.__main__"):
        monkeypatch.delitem(sys.modules, f"analysis.{name}", raising=False)
    for arguments, message in cases:
        assert command(monkeypatch, *arguments) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line


def test_two_runs_do_not_share_a_folder(tmp_path, monkeypatch, capfd):
    pytest.importorskip("fcntl")
    checkpoint = tmp_path / "mnist" / "checkpoints" / "arm.checkpoint"
    with only_run(tmp_path / "mnist"):
        checkpoint.parent.mkdir()
        checkpoint.touch()
        assert command(monkeypatch, "mnist", "--out", tmp_path) == 2
    assert "another run is writing to" in capfd.readouterr().err
    assert checkpoint.exists()


def test_arms_on_threads_come_in_their_order_and_stop_where_one_of_them_fails():
    stopped = threading.Event()
    found = running.on_threads(lambda name: name.upper(), "abc", 2, stopped)
    assert list(found.items()) == [("a", "A"), ("b", "B"), ("c", "C")]

    def train(name):
        if name == "bad":
            raise ValueError("no such data")
        assert stopped.wait(60)

    with pytest.raises(ValueError, match="no such data"):
        running.on_threads(train, ["slow", "bad", "late"], 2, stopped)


def test_no_image_comes_twice_in_a_batch_of_captions():
    settings = dataclasses.replace(order_embeddings.EXPERIMENT.small, scenes=40, held_out=8)
    data = order_embeddings.scenes(settings)
    stop = settings.vocabulary - 1
    assert (np.take_along_axis(data.captions, data.lengths[..., None] - 1, -1) == stop).all()
    assert (np.sum(data.captions == stop, -1) == 1).all()
    assert data.captions.max() == stop
    drawn = rows(jax.random.key(0), 40, 30, replace=False)
    assert len(set(drawn.tolist())) == 30
    assert len(set(rows(jax.random.key(0), 40, 30).tolist())) < 30


def test_batches_of_a_stream_are_taken_as_they_come():
    found = experiment("mnist")
    data = found.data(found.small)
    asked = []

    def stream(first, count):
        asked.append((first, count))
        images = np.stack([data.train_images[4 * t : 4 * t + 4] for t in range(first, first + count)])
        return type(data)(images, np.zeros(images.shape[:2], np.int32), None, None)

    arm = "LN on hidden layers, batch 4"
    found = dataclasses.replace(found, arms={arm: found.arms[arm]}, statements=())
    streamed = datasets.Streamed(data, stream)
    sizes = {"hidden": 8, "rate": 0.05, "small_batch_steps": 60, "small_batch_every": 30}
    run = running.run(found, data=streamed, seeds=1, **sizes).runs[arm]
    assert [t for first, count in asked[1:] for t in range(first, first + count)] == list(range(60))
    assert run.curves["loss"][0, -1] < 0.3  # every image of the stream is said to be a zero
    assert run.curves["test error"][0, -1] > 0.8


def test_reference_adam_takes_larger_early_steps_than_adam():
    optimizer = reference_adam(1.0)
    state, g = optimizer.init(jnp.zeros(3)), jnp.array([0.5, -2.0, 1.0])
    sizes = []
    for _ in range(100):
        update, state = optimizer.update(g, state)
        sizes.append(float(jnp.abs(update[0])))
    assert sizes[0] == pytest.approx(3.5, abs=0.05)
    assert sizes[11] == pytest.approx(6.6, abs=0.1)
    assert sizes[99] == pytest.approx(3.2, abs=0.1)


def test_clipping_each_tensor_leaves_the_small_ones():
    clipped, _ = clip_each(2.0).update({"a": jnp.array([3.0, 4.0]), "b": jnp.array([1.0])}, clip_each(2.0).init({}))
    np.testing.assert_allclose(clipped["a"], [1.2, 1.6], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [1.0])


def test_the_mixture_is_that_of_scipy():
    rng = np.random.default_rng(0)
    parameters, target = rng.normal(size=(1, 13)), np.array([[0.3, -0.7, 1.0]])
    got = handwriting.log_density(jnp.asarray(parameters), jnp.asarray(target))[0]
    lift, weights, mx, my, sx, sy, rho = parameters[0, 0], *parameters[0, 1:].reshape(6, 2)
    weights, rho = np.exp(weights) / np.exp(weights).sum(), 0.999 * np.tanh(rho)
    density = 0
    for w, x, y, a, b, r in zip(weights, mx, my, np.exp(sx), np.exp(sy), rho, strict=True):
        covariance = [[a * a, r * a * b], [r * a * b, b * b]]
        density += w * stats.multivariate_normal([x, y], covariance).pdf(target[0, :2])
    assert got == pytest.approx(np.log(density) - np.log1p(np.exp(-lift)), rel=1e-4)


def test_retrieval_ranks_as_counting_does():
    energy = jnp.array([[0.0, 1.0], [2.0, 1.0], [3.0, 1.0], [0.5, 0.6]])  # two captions of each of two images
    found = order_embeddings.retrieval(energy, captions=2)
    assert found["image R@1"] == 50  # captions 0 and 2 find their image
    assert found["image mean rank"] == 1.5
    assert found["caption R@1"] == 100  # of image 0; image 1 is nearest to caption 3, its own
    loss = order_embeddings.ranking_loss(jnp.array([[0.1, 0.12], [0.3, 0.2]]), 0.05)
    assert loss == pytest.approx((0.03 + 0.0) + (0.0 + 0.13))


def test_an_image_above_its_caption_is_not_violated():
    low, high = jnp.array([[0.1, 0.2]]), jnp.array([[0.3, 0.2]])
    assert order_embeddings.violations(low, high)[0, 0] == 0
    assert order_embeddings.violations(high, low)[0, 0] == pytest.approx(0.04)


def test_filters_read_one_pixel_where_they_are_narrow():
    narrow = jnp.array([[0.0, 0.0, -8.0, 0.0, 0.0]])
    down, across, _ = draw.filterbank(narrow, 3, 7)
    image = jnp.arange(49.0).reshape(1, 7, 7)
    np.testing.assert_allclose(draw.apply_filters(down, image, across)[0], image[0, ::3, ::3], atol=1e-4)
    expected = jnp.einsum("bis,bst,bjt->bij", down, image, across)
    np.testing.assert_allclose(draw.apply_filters(down, image, across), expected, rtol=1e-5)


def test_patches_make_a_convolution():
    rng = np.random.default_rng(1)
    x, kernel = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 5, 5, 3), (3, 3, 3, 4)))
    expected = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(convnet.patches(x) @ kernel.reshape(27, 4), expected, atol=1e-4)


def test_the_largest_of_four_is_the_maximum_and_the_first_of_equals_takes_its_gradient():
    x = np.random.default_rng(2).normal(size=(3, 4, 6, 2)).astype(np.float32)
    x[0], x[1, :2, :2] = 1.0, [[[0.0], [2.0]], [[2.0], [2.0]]]
    found, pull = jax.vjp(convnet.largest_of_four, jnp.asarray(x))
    found, gradient = np.asarray(found), np.asarray(pull(jnp.ones_like(found))[0])
    for n, i, j, c in np.ndindex(found.shape):
        place = n, slice(2 * i, 2 * i + 2), slice(2 * j, 2 * j + 2), c
        first = np.arange(4).reshape(2, 2) == x[place].argmax()
        assert found[n, i, j, c] == x[place].max()
        np.testing.assert_array_equal(gradient[place], first)


def test_border_statistics_see_a_dead_border_and_no_other():
    summed = np.random.default_rng(0).normal(1.0, 0.1, (1, 50, 5, 5, 2))
    assert convnet.border_statistics(summed)["variance explained by the border"][0] < 0.3
    summed[:, :, [0, -1]] = summed[:, :, :, [0, -1]] = -1.0
    found = convnet.border_statistics(summed)
    assert found["on at the border"] == [0.0]
    assert found["on inside"] == [1.0]
    assert found["variance explained by the border"][0] > 0.99


def test_sentence_tasks_are_solved_where_vectors_tell_and_not_where_they_do_not():
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(
        sentence_tasks.score_distribution(np.array([1.0, 2.25, 5.0])) @ np.arange(1, 6), [1, 2.25, 5]
    )
    u, v = rng.normal(size=(2, 120, 3))
    scores = np.clip(5 - np.abs(u - v)[:, 0] * 2, 1, 5)
    features = sentence_tasks.pair_features(u, v)
    assert sentence_tasks.relatedness((features[:80], scores[:80]), (features[80:], scores[80:]))["r"] > 0.9
    sides = (features[:80], scores[:80]), (features[80:], scores[80:])
    chosen = sentence_tasks.relatedness(*sides, penalties=(1e-9, 10.0))
    fitted = (features[:72], scores[:72])
    assert chosen == sentence_tasks.relatedness(fitted, sides[1], penalties=(10.0,)), "by r on the last tenth"
    assert chosen["r"] > sentence_tasks.relatedness(fitted, sides[1], penalties=(1e-9,))["r"]
    noise = rng.normal(size=features.shape)
    assert sentence_tasks.relatedness((noise[:80], scores[:80]), (noise[80:], scores[80:]))["r"] < 0.5
    assert sentence_tasks.classification(u, (u[:, 0] > 0).astype(int), folds=3) > 90
    assert sentence_tasks.classification(u, rng.integers(0, 2, 120), folds=3) < 70


READER = dataclasses.replace(attentive_reader.EXPERIMENT.small, hidden=4, embedding=3, documents=6, held_out=2)


@pytest.mark.parametrize("arms", ["arms", "authors"])
def test_a_padded_question_is_read_as_the_same_one_without_padding(arms):
    settings, data = READER, attentive_reader.stories(READER)
    arm = getattr(attentive_reader.EXPERIMENT, arms)["BN-everywhere"]
    task = attentive_reader.task(settings, arm, data)
    state = task.init(jax.random.key(0))
    model = state.model
    assert isinstance(model.document.lstm if arms == "arms" else model.encoders[0].lstm, nn.LSTM)
    short = data.test._replace(document_lengths=np.full(2, 8, np.int32))
    garbled = short._replace(documents=np.where(np.arange(20)[None] < 8, short.documents, 1))
    run = jax.jit(lambda test: task.evaluate(state, data._replace(test=test))["validation NLL"])
    np.testing.assert_allclose(run(short), run(garbled), rtol=1e-6)
    assert abs(run(short) - run(data.test)) > 1e-5


def test_the_reader_of_the_authors_code_starts_and_normalizes_as_there():
    data, arms = attentive_reader.stories(READER), attentive_reader.EXPERIMENT.authors
    assert set(arms) == set(attentive_reader.EXPERIMENT.arms)
    key = jax.random.key(0)
    model = attentive_reader.task(READER, arms["BN-everywhere"], data).init(key).model
    assert {name for name, m in model.maps.items() if np.all(m.gain == np.float32(0.1))} == set(authors_reader.MAPS)
    assert set(model.fresh({"document": 20, "question": 4})) == {*authors_reader.MAPS, "document", "question"}
    inside = attentive_reader.task(READER, arms["BN-LSTM"], data).init(key).model
    assert set(inside.fresh({"document": 20, "question": 4})) == {"document", "question"}
    for gate in np.split(np.asarray(model.encoders[0].lstm.recurrent_weights), 4):
        np.testing.assert_allclose(gate @ gate.T, 0.05**2 * np.eye(4), atol=1e-8)
    limit = glorot(3, 5)
    assert 0.8 * limit < np.abs(model.encoders[1].lstm.input_weights).max() <= limit


def test_the_reader_of_the_authors_code_learns_its_first_state_and_sees_the_mean_document():
    data = attentive_reader.stories(READER)
    task = attentive_reader.task(READER, attentive_reader.EXPERIMENT.authors["LN-LSTM"], data)
    state, evaluate = jax.jit(task.init)(jax.random.key(0)), jax.jit(task.evaluate)
    assert not any(np.any(h) for h in state.model.starts)
    after, _ = jax.jit(task.step)(state, jax.random.key(1), data)
    assert all(np.all(h != 0) for h in after.model.starts)

    def nll(model):
        return float(evaluate(after._replace(model=model), data)["validation NLL"])

    def without(part):
        return eqx.tree_at(part, after.model, replace_fn=jnp.zeros_like)

    parts = (
        lambda m: m.maps["mean document"].weights,
        lambda m: m.similarity,
        lambda m: m.starts[0],
    )
    assert all(abs(nll(without(part)) - nll(after.model)) > 1e-7 for part in parts)
    half = dataclasses.replace(READER, dropout=0.5)
    start = attentive_reader.task(half, attentive_reader.EXPERIMENT.authors["LSTM"], data).init
    dropped = jax.jit(start)(jax.random.key(0)).model
    logits = jax.jit(lambda training: dropped(data.test, {}, training, jax.random.key(3))[0], static_argnums=0)
    quiet, noisy = (logits(training) for training in (False, True))
    assert float(jnp.max(jnp.abs(quiet - noisy))) > 1e-6


def test_arms_of_the_authors_code_differ_where_it_does():
    small = dataclasses.replace(order_embeddings.EXPERIMENT.small, scenes=10, held_out=4)
    data = order_embeddings.scenes(small)
    ours, theirs = (
        order_embeddings.task(small, arms["OE, reference Adam"], data).init(jax.random.key(0)).model.image.weights
        for arms in (order_embeddings.EXPERIMENT.arms, order_embeddings.EXPERIMENT.authors)
    )
    limit = glorot(small.features, small.hidden)
    assert np.abs(ours).max() <= 0.1 < 0.95 * limit < np.abs(theirs).max() <= limit
    tiny = dataclasses.replace(skip_thoughts.EXPERIMENT.small, hidden=4, triples=8, held_out=4)
    stories = skip_thoughts.stories(tiny)
    ours, theirs = (
        skip_thoughts.task(tiny, arms["LN"], stories).init(jax.random.key(0))
        for arms in (skip_thoughts.EXPERIMENT.arms, skip_thoughts.EXPERIMENT.authors)
    )
    assert ours.model.encoder.bias is None
    assert theirs.model.encoder.bias.shape == (12,)
    kinds = [{type(part).__name__ for part in state.optimizer[1:]} for state in (ours, theirs)]
    assert "ReferenceAdamState" not in str(kinds[0])
    assert kinds[1] == {"ReferenceAdamState"}
