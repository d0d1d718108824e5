"""`python -m analysis all`: an estimate first, progress while the first step is compiled, and resuming to the bit."""

import functools
import inspect
import json
import shutil
import sys
import time
from dataclasses import dataclass, replace

import analysis.__main__ as command
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from analysis.experiments import loop, running, variants
from analysis.experiments.experiment import Experiment, Panel, Real, Settings
from analysis.progress import Watch
from lngeom.claims.comparison import TrainingStatement

ORDER = ("draw", "handwriting")


@pytest.fixture(scope="module", autouse=True)
def _promotion_as_optax_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
        yield


@dataclass(frozen=True)
class Tiny(Settings):
    """Sizes."""

    rate: float = 0.1


@functools.cache
def task_of(settings, arm):
    """One task of these, so that a run that is resumed finds its compiled programs."""

    def loss(w, extra, key, data):
        return jnp.sum(arm * jnp.square(w - data + 0.01 * jax.random.normal(key, w.shape))), extra

    def evaluate(w, extra, data):
        return {"nll": jnp.sum(jnp.square(w - data))}

    return loop.gradient_task(lambda key: (jnp.zeros(3), None), loss, optax.sgd(settings.rate), evaluate)


def task(settings, arm, data):
    return task_of(settings, arm)


def tiny(name, **more):
    statement = TrainingStatement(f"experiments.{name}", "faster", "p", "new", "old", "nll", target=0.5)
    given = {
        "title": "t",
        "source": "s",
        "arms": {"old": 0.5, "new": 2.0},
        "small": Tiny(steps=6, every=2),
        "full": Tiny(steps=8, every=2),
        "data": lambda settings, seed=0: np.ones(3, np.float32),
        "task": task,
        "statements": (statement,),
        "panels": (Panel("nll", "t", "nll"),),
        "generated": True,
        "note": "Quadratics.",
    }
    return Experiment(name=name, **(given | more))


@pytest.fixture
def run_all(monkeypatch):
    monkeypatch.setattr(command, "experiments_of", lambda runnables: [tiny(name) for name in ORDER])
    monkeypatch.setattr(loop.train, "__kwdefaults__", loop.train.__kwdefaults__ | {"checkpoint_seconds": 0.0})

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["python -m analysis", "all", "--workers", "1", *map(str, arguments)])
        command.main()

    return call


def results(out):
    """All files but the checkpoints, and PNG, whose metadata may name the moment."""
    files = sorted(p for p in out.rglob("*") if p.is_file() and p.suffix in {".npz", ".json"})
    return {str(p.relative_to(out)): p.read_bytes() for p in files}


def test_an_estimate_comes_first_and_progress_while_a_first_step_takes_its_time(run_all, tmp_path, monkeypatch, capfd):
    assert inspect.signature(Watch).parameters["every"].default < 10, "seconds between two lines of a log"
    order, train = [], loop.train
    monkeypatch.setattr(command, "Watch", lambda console: Watch(console, every=0.02))

    def slow(*arguments, **options):
        order.append(capfd.readouterr())
        time.sleep(0.2)
        order.append(capfd.readouterr())
        return train(*arguments, **options)

    monkeypatch.setattr(loop, "train", slow)
    run_all("--out", tmp_path)
    before, during = order[:2]
    assert before.out.startswith("draw: ")
    assert "In all about " in before.out
    assert "2 not begun" in during.err, "nothing is trained yet, and a line says so"


class Killed(Exception):
    pass


def test_all_can_be_stopped_anywhere_and_resumed_to_the_same_bits(run_all, tmp_path, monkeypatch, capfd):
    run_all("--out", tmp_path / "whole")
    whole = results(tmp_path / "whole")
    assert {name.split("/")[0] for name in whole} == {*ORDER, *(f"{name}.json" for name in ORDER)}
    saved, drawn, save, draw = [], [], loop.save_checkpoint, command.draw

    def dying_save(*arguments):
        save(*arguments)
        saved.append(arguments)
        if len(saved) % 2 == 0:
            raise Killed("while it trained")

    def dying_draw(experiment, *arguments):
        paths = draw(experiment, *arguments)
        drawn.append(experiment.name)
        if drawn.count(experiment.name) == 1:
            raise Killed("at a figure")
        return paths

    monkeypatch.setattr(loop, "save_checkpoint", dying_save)
    monkeypatch.setattr(command, "draw", dying_draw)
    killed = []
    for _ in range(60):
        try:
            run_all("--out", tmp_path / "stopped", "--resume")
            break
        except Killed as moment:
            killed.append(str(moment))
    assert killed.count("at a figure") == 2
    assert killed.count("while it trained") >= 4
    assert results(tmp_path / "stopped") == whole
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "stopped")
    capfd.readouterr()


def test_without_resume_all_starts_anew_and_a_changed_run_is_refused(run_all, tmp_path, monkeypatch):
    run_all("--out", tmp_path)
    before = results(tmp_path)
    monkeypatch.setattr(command, "experiments_of", lambda r: [tiny(n, small=Tiny(steps=8, every=2)) for n in ORDER])
    with pytest.raises(SystemExit) as ended:
        run_all("--out", tmp_path, "--resume")
    assert ended.value.code == 2
    assert results(tmp_path) == before


def test_captions_say_generated_where_data_are_generated(tmp_path):
    found = tiny("draw")
    for experiment, settings, expected in (
        (found, found.small, "Generated data. Quadratics."),
        (replace(found, generated=False), found.small, "Quadratics."),
        (found, found.full, "Real data, at the paper's size."),
        (
            replace(found, real=Real(Tiny(steps=4, every=2), load=lambda *_: None, files="", cost=1.0)),
            Tiny(steps=4, every=2),
            "Real data, at a reduced size.",
        ),
    ):
        outcome = running.run(experiment, settings=settings, seeds=1)
        command.draw(experiment, outcome, tmp_path)
        caption = json.loads((tmp_path / "draw.json").read_text())["caption"]
        assert caption.endswith(f"range. {expected}"), caption


def test_arms_of_the_authors_code_are_beside_ours_or_in_their_place():
    found = tiny(
        "draw", authors={"new": 3.0}, panels=(Panel("nll", "t", "nll", arms=("old", "new"), labels={"new": "N"}),)
    )
    alone, both = (variants.with_variant(found, v) for v in ("authors", "both"))
    assert variants.with_variant(found, "ours") is found
    assert variants.with_variant(tiny("draw"), "both").arms == found.arms
    assert alone.arms == {"old": 0.5, "new, authors' code": 3.0}
    assert both.arms == {"old": 0.5, "new": 2.0, "new, authors' code": 3.0}
    assert [s.arms for s in alone.statements] == [("new, authors' code", "old")]
    assert [s.arms for s in both.statements] == [("new", "old"), ("new, authors' code", "old")]
    assert [s.text for s in both.statements] == ["faster", "faster, authors' code"]
    assert alone.panels[0].arms == ("old", "new, authors' code")
    assert alone.panels[0].labels == {"new, authors' code": "N"}
    assert both.panels[0].arms == ("old", "new", "new, authors' code")
    assert both.panels[0].labels == {"new": "N", "new, authors' code": "N, authors' code"}


def test_results_are_redrawn_with_the_arms_that_they_are_of(run_all, tmp_path, monkeypatch):
    found = tiny("draw", authors={"new": 3.0})
    monkeypatch.setattr(command, "experiments_of", lambda runnables: [found])
    run_all("--out", tmp_path, "--arms", "both")
    assert variants.variant_of(found, tmp_path) == "both"
    assert variants.variant_of(found, tmp_path / "none") == "ours"
    before = results(tmp_path)
    (tmp_path / "draw.json").unlink()
    run_all("--out", tmp_path, "--redraw")
    assert results(tmp_path) == before
    with pytest.raises(SystemExit):
        run_all("--out", tmp_path)
