"""The protocol: its numbers, choice of rates, verdicts that turn when the curves do, and runs that resume."""

import dataclasses
import functools
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from analysis.__main__ import discover, main as analysis_main
from analysis.experiments.experiment import Experiment, Panel, Settings
from analysis.experiments.loop import gradient_task
from analysis.experiments.protocol import table
from analysis.experiments.protocol.__main__ import draw_again, known
from analysis.experiments.protocol.plan import DOCUMENT, Plan, groups, provenance, real_plan
from analysis.experiments.protocol.trials import Trials, carry_out, configuration, padded_stack
from analysis.progress import Watch
from lngeom.claims import judge
from lngeom.claims.comparison import TrainingStatement
from lngeom.claims.results import Curved, Curves, digest
from rich.console import Console
from statsmodels.stats.multitest import multipletests

SEEDS = 10


@pytest.fixture(scope="module", autouse=True)
def _promotion_as_optax_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
        yield


def statement(**more):
    given = {"claim": "c", "text": "faster", "paper": "p", "treated": "new", "baseline": "old", "metric": "nll"}
    return TrainingStatement(**(given | more))


def curve(pace, floor=0.0, seeds=SEEDS, steps=100, every=2):
    """Exponential decay from 1 to a floor, a little different for each seed."""
    at = np.arange(0, steps + 1, every)
    speeds = pace * (1 + 0.05 * np.sin(np.arange(seeds)))
    return Curves(at, {"nll": floor + (1 - floor) * np.exp(-speeds[:, None] * at[None])})


def study(new, old, seeds=SEEDS):
    """Curves of two arms whose pace at rate r is pace·r/(1 + r²), so that the best rate is 1."""
    rates = (0.1, 1.0, 10.0)
    tuned = {
        arm: {r: curve(pace * 2 * r / (1 + r * r), floor, 3) for r in rates}
        for arm, (pace, floor) in (("new", new), ("old", old))
    }
    fresh = {arm: {1.0: curve(*given, seeds)} for arm, given in (("new", new), ("old", old))}
    return tuned, fresh


def verdicts(tuned, fresh, *statements):
    return [row["verdict"] for row in judge.report(statements or (statement(target=0.1),), tuned, fresh)]


def test_the_plan_has_the_numbers_of_the_document():
    text, plan = DOCUMENT.read_text(), Plan()
    for sentence in (
        "learning rates: 0.0003, 0.001, 0.003 and 0.01",
        "0.0001 and\n   0.00003; 0.03 and 0.1",
        "seeds 0, 1 and 2",
        "ten fresh seeds**, 100 to 109",
        "at most 1 % of the whole improvement",
        "The longest is eight times",
        "margin of 2 % of the",
        "each of 21 targets",
        "at most twice",
    ):
        assert sentence in text
    assert (plan.rates, plan.below, plan.above) == ((0.0003, 0.001, 0.003, 0.01), (0.0001, 0.00003), (0.03, 0.1))
    assert (plan.choosing, plan.fresh, plan.longest) == ((0, 1, 2), tuple(range(100, 110)), 8)
    assert (judge.STOPPED, judge.TARGETS, judge.FACTOR) == (0.01, 21, 2.0)
    assert all(1 < b / a < 3.5 for a, b in itertools.pairwise(plan.rates))
    margins = {s.margin for x in known().values() for s in x.statements}
    assert margins == {0.02}


def test_every_experiment_is_under_the_protocol_and_says_whether_its_data_are_generated():
    found = known()
    assert set(found) == {name for name, runnable in discover().items() if runnable.experiment}
    assert {name for name, e in found.items() if e.generated} == {
        "skip_thoughts", "handwriting", "order_embeddings", "attentive_reader",
    }  # fmt: skip
    readme = (DOCUMENT.parent / "README.md").read_text()
    for name, e in found.items():
        row = next(line for line in readme.splitlines() if line.startswith("| `") and f"`{name}`" in line)
        assert ("generated" in row) == e.generated


def test_groups_join_arms_that_are_compared_by_way_of_another():
    def pair(a, b):
        return statement(treated=a, baseline=b)

    assert groups([pair("a", "b"), pair("c", "d"), pair("e", "b")]) == [("c", "d"), ("a", "b", "e")]
    assert [len(g) for g in groups(known()["mnist"].statements)] == [4, 4]


def test_the_grid_grows_on_the_side_of_an_edge_until_it_has_no_more_rates():
    plan = Plan()
    assert plan.extended(plan.rates, [0.001, 0.003]) == plan.rates
    wider = plan.extended(plan.rates, [0.001, 0.01])
    assert wider == (*plan.rates, 0.03)
    assert plan.extended(wider, [0.03, 0.0003]) == (0.0001, *plan.rates, 0.03, 0.1)
    widest = (0.00003, 0.0001, *plan.rates, 0.03, 0.1)
    assert plan.extended(widest, [0.1, 0.00003]) == widest


def test_the_rate_is_that_of_the_criterion():
    tuned, _ = study((0.1, 0.0), (0.05, 0.0))
    assert judge.choose(statement(target=0.1), "new", tuned) == 1.0
    low = {0.1: curve(0.02, 0.05, 3), 1.0: curve(0.2, 0.2, 3)}
    both = {"new": low, "old": {0.1: curve(0.02, 0.25, 3)}}
    assert judge.choose(statement(), "new", both) == 1.0, "faster to what the baseline reaches"
    assert judge.choose(statement(measure="best"), "new", both) == 0.1, "lower in the end"
    assert judge.choose(statement(target=0.15), "new", both) == 0.1, "the other never gets there"
    gone = Curves(low[1.0].steps, {"nll": np.where(low[1.0].steps[None] < 50, low[1.0].values["nll"], np.nan)})
    assert judge.choose(statement(), "new", both | {"new": low | {1.0: gone}}) == 0.1, "it diverges"
    up = {arm: {r: Curves(c.steps, {"nll": -c.values["nll"]}) for r, c in of.items()} for arm, of in both.items()}
    assert judge.choose(statement(lower_is_better=False), "new", up) == 1.0


def test_a_run_has_stopped_when_its_second_half_brings_next_to_nothing():
    assert judge.stopped(statement(), curve(0.2))
    assert not judge.stopped(statement(), curve(0.02))
    assert judge.stopped(statement(), curve(0.0)), "chance level is no improvement"


def test_swapping_the_arms_turns_the_verdict():
    new, old = study((0.1, 0.0), (0.03, 0.0))
    assert verdicts(new, old) == ["SUPPORTED"]
    swapped = [{"new": s["old"], "old": s["new"]} for s in (new, old)]
    assert verdicts(*swapped) == ["REFUTED"]
    for best in (statement(), statement(measure="best")):
        tuned, fresh = study((0.1, 0.0), (0.03, 0.01))
        assert verdicts(tuned, fresh, best) == ["SUPPORTED"]
        assert verdicts(*({"new": s["old"], "old": s["new"]} for s in (tuned, fresh)), best) == ["REFUTED"]


def test_ten_times_the_steps_turn_the_verdict():
    tuned, fresh = study((0.1, 0.0), (0.03, 0.0))

    def slow(s):
        return s | {"new": {r: Curves(10 * c.steps, c.values) for r, c in s["new"].items()}}

    for faster in (statement(target=0.1), statement()):
        assert verdicts(tuned, fresh, faster) == ["SUPPORTED"]
        assert verdicts(slow(tuned), slow(fresh), faster) == ["REFUTED"]


def test_each_arm_is_judged_at_its_own_rate():
    tuned, fresh = study((0.1, 0.0), (0.1, 0.0))
    tuned["old"] = {10 * r: c for r, c in tuned["old"].items()}
    with pytest.raises(ValueError, match="old has no fresh seeds at its best rate, 10"):
        verdicts(tuned, fresh)
    fresh["old"] = {10.0: fresh["old"][1.0]}
    (row,) = judge.report([statement(target=0.1)], tuned, fresh)
    assert {arm: v["rate"] for arm, v in row["arms"].items()} == {"new": 1.0, "old": 10.0}
    assert row["verdict"] == "UNDECIDED"
    assert (row["median"], row["wins"], row["losses"]) == ("1", 0, 0)


def test_a_target_that_is_not_reached_is_no_number():
    tuned, fresh = study((0.1, 0.0), (0.1, 0.5))
    (row,) = judge.report([statement(target=0.1)], tuned, fresh)
    assert row["median"].startswith("≤ 0.2")
    assert row["arms"]["old"]["steps to the target"] == "not reached"
    assert row["verdict"] == "SUPPORTED"
    (row,) = judge.report([statement(target=0.1)], *({"new": s["old"], "old": s["new"]} for s in (tuned, fresh)))
    assert row["median"].startswith("≥ ")
    assert row["interval"][1] is None
    assert row["verdict"] == "REFUTED"
    tuned, fresh = study((0.1, 0.5), (0.1, 0.5))
    (row,) = judge.report([statement(target=0.1)], tuned, fresh)
    assert (row["median"], row["verdict"], row["wins"], row["losses"]) == ("not known", "UNDECIDED", 0, 0)
    json.dumps(row, allow_nan=False)
    targets = row["time to target"]
    assert len(targets["target"]) == 21
    assert targets["steps of treated"][0] == 0
    assert targets["steps of treated"] == sorted(targets["steps of treated"])


def test_without_a_given_target_both_arms_reach_it():
    tuned, fresh = study((0.1, 0.3), (0.03, 0.0))
    (row,) = judge.report([statement()], tuned, fresh)
    assert all(isinstance(v["steps to the target"], float) for v in row["arms"].values())
    assert "≤" not in " ".join(row["seeds"])


def test_equivalence_needs_both_sides_and_enough_seeds():
    same = statement(measure="equivalent", margin=0.05)
    for floor, verdict in ((0.0, "SUPPORTED"), (0.02, "SUPPORTED"), (0.2, "REFUTED")):
        assert verdicts(*study((0.2, floor), (0.2, 0.0)), same) == [verdict]
        assert verdicts(*study((0.2, 0.0), (0.2, floor)), same) == [verdict]
    assert verdicts(*study((0.2, 0.0), (0.2, 0.0), seeds=4), same) == ["UNDECIDED"]


def test_holm_is_that_of_statsmodels_and_more_statements_make_it_harder():
    for p in ([0.01, 0.04, 0.03], [0.5, 0.001, 0.6, 0.02, 0.9]):
        np.testing.assert_allclose(judge.holm(p), multipletests(p, method="holm")[1])
    tuned, fresh = study((0.1, 0.0), (0.03, 0.0), seeds=5)
    assert verdicts(tuned, fresh) == ["SUPPORTED"]
    assert verdicts(tuned, fresh, *(statement(target=t) for t in (0.1, 0.2))) == ["UNDECIDED"] * 2


def test_the_interval_covers_the_median_at_least_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(size=(500, SEEDS))
    inside = [lower <= 0 <= upper for _, _, lower, upper in (judge.interval(d, d) for d in draws)]
    assert 0.95 <= np.mean(inside) <= 0.995
    assert judge.interval(*[np.arange(5.0)] * 2)[2:] == (-np.inf, np.inf)


def test_sensitivity_tells_the_rates_that_do_nearly_as_well():
    tuned, _ = study((0.1, 0.0), (0.1, 0.0))
    tuned["old"] = {r: curve(0.1, 0.0, 3) for r in tuned["old"]}
    found = judge.sensitivity(statement(target=0.1), tuned)
    assert found["rates of treated"] == [1.0, 1.0]
    assert found["rates of baseline"] == [0.1, 10.0]
    assert float(found["ratio at equal rates"]["1"]) == pytest.approx(1, abs=0.1)


def test_a_protocol_that_was_changed_and_not_committed_runs_nothing(tmp_path):
    document = tmp_path / "PROTOCOL.md"
    document.write_text("Version 3, 2026-01-02.\n")
    assert provenance(document) | {"sha256": ""} == {
        "version": "3", "date": "2026-01-02", "sha256": "", "commit": None,
    }  # fmt: skip
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    assert re.fullmatch("[0-9a-f]{40}", provenance(document)["commit"] or "")
    document.write_text("Version 3, 2026-01-02. Easier.\n")
    with pytest.raises(ValueError, match="commit it before its runs"):
        provenance(document)


class World(NamedTuple):
    """Where a quadratic has its minimum."""

    centre: np.ndarray


@dataclasses.dataclass(frozen=True)
class TinySettings(Settings):
    rate: float = 0.1


@functools.cache
def tiny_task_of(settings, arm):
    """One task of these, so that parts that are resumed find their compiled programs."""

    def loss(w, extra, key, data):
        noise = 0.01 * jax.random.normal(key, w.shape)
        return jnp.sum(arm * jnp.square(w - data.centre + noise)), extra

    return gradient_task(
        lambda key: (jnp.zeros(3), None),
        loss,
        optax.sgd(settings.rate),
        lambda w, extra, data: {"nll": jnp.sum(jnp.square(w - data.centre))},
    )


def tiny_task(settings, arm, data):
    return tiny_task_of(settings, arm)


def tiny(**more):
    """An experiment of two arms whose paces are 3 and 1: each is as fast as the other at its own rate."""
    given = {
        "name": "draw",
        "title": "t",
        "source": "s",
        "arms": {"new": 3.0, "old": 1.0},
        "small": TinySettings(steps=4, every=1),
        "full": None,
        "data": lambda settings, seed=0: World(np.random.default_rng(seed).normal(size=2 + 1).astype(np.float32)),
        "task": tiny_task,
        "statements": (statement(target=0.05), statement(text="better", measure="best")),
        "panels": (),
        "generated": True,
    }
    return Experiment(**(given | more))


PLAN = Plan((0.01, 0.03, 0.1, 0.3), (0.003,), (1.0,), fresh=(100, 101, 102, 103, 104, 105), longest=2)
SOURCE = {"version": "1", "date": "d", "sha256": "s", "commit": None}


def conducted(experiment, folder, progress=lambda name, steps: lambda done, whole: None, workers=1):
    described = configuration(experiment, PLAN, SOURCE)
    told = []
    trials = Trials(experiment, PLAN, described, folder / "parts", progress, workers)
    curved = carry_out(trials, told.append)
    return table.write(experiment, described, curved, folder), told


class Interrupted(Exception):
    pass


def test_a_protocol_that_is_stopped_anywhere_resumes_to_the_same_bits(tmp_path):
    whole, told = conducted(tiny(), tmp_path / "whole")
    assert any("at an edge" in text for text in told)
    assert any("still improving" in text for text in told)
    kept = [p.read_bytes() for p in whole]
    asked, budget = [], 11

    def progress(name, steps):
        def shown(done, steps):
            asked.append((name, done))
            if len(asked) % budget == 0:
                raise Interrupted

        return shown

    stops = 0
    while stops < 40:
        try:
            paths, _ = conducted(tiny(), tmp_path / "stopped", progress)
            break
        except Interrupted:
            stops += 1
    assert 3 < stops < 40
    assert [p.read_bytes() for p in paths] == kept


def test_arms_that_differ_by_a_factor_of_the_rate_alone_tie_when_each_has_its_own(tmp_path):
    slower = tiny(small=TinySettings(steps=40, every=1), statements=(statement(target=0.05),))
    conducted(slower, tmp_path)
    (found,) = table.reports([slower], tmp_path)
    first = found["statements"][0]
    rates = {arm: v["rate"] for arm, v in first["arms"].items()}
    assert rates["old"] > rates["new"]
    equal = first["sensitivity"]["ratio at equal rates"]
    assert float(equal["0.03"]) < 0.5, "at one low rate it seems three times as fast"
    assert 0.7 < float(first["median"]) < 1.4
    assert first["fresh seeds"] == 6
    assert found["data"] == "generated"


def test_fresh_seeds_have_data_of_their_own_where_data_are_generated(tmp_path):
    drawn = []

    def data(settings, seed=0):
        drawn.append(seed)
        return World(np.full(3, float(seed == 0), np.float32))

    trials = Trials(tiny(data=data), PLAN, {}, tmp_path)
    own, each = trials._data_of("fresh")
    assert each
    assert own.centre.shape == (6, 3)
    assert drawn == [0, *PLAN.fresh]
    _, each = Trials(tiny(data=data, generated=False), PLAN, {}, tmp_path)._data_of("fresh")
    assert not each
    stacked = padded_stack([World(np.ones((2, n))) for n in (1, 3)])
    assert stacked.centre.tolist() == [[[1, 0, 0]] * 2, [[1, 1, 1]] * 2]


def rewritten(path, change, factor=lambda key: 1):
    """Curves with some of their names changed, or some arrays multiplied."""
    with np.load(path) as file:
        arrays = {change(key): file[key] if factor(key) == 1 else factor(key) * file[key] for key in file.files}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(buffer.getvalue())


@pytest.mark.parametrize("edit", ["swap", "ten times"])
def test_kept_curves_decide_so_that_swapped_arms_or_ten_times_the_steps_turn_the_verdict(tmp_path, edit):
    experiment = tiny(statements=(statement(target=0.1), statement(text="without a target")))
    described = configuration(experiment, PLAN, SOURCE)
    _, curves, report = table.write(experiment, described, Curved(*study((0.1, 0.0), (0.03, 0.0))), tmp_path)

    def found():
        return [row["verdict"] for row in table.reports([experiment], tmp_path)[0]["statements"]]

    assert found() == ["SUPPORTED"] * 2
    if edit == "swap":
        rewritten(curves, lambda key: re.sub("/(new|old)/", lambda m: "/old/" if m[1] == "new" else "/new/", key))
    else:
        rewritten(curves, str, lambda key: 10 if re.fullmatch(".*/new/.*/steps", key) else 1)
    with pytest.raises(ValueError, match=r"curves\.npz is missing or was changed after its run"):
        found()
    known = json.loads(report.read_text())
    known["sha256"]["curves.npz"] = digest(curves.read_bytes())
    report.write_text(json.dumps(known))
    assert found() == ["REFUTED"] * 2, "the verdict is that of the curves, not the one written beside them"


def test_results_that_were_edited_are_refused_and_parts_of_another_protocol_too(tmp_path):
    folder = conducted(tiny(), tmp_path)[0][0].parent
    assert table.read(tiny(), tmp_path)
    for name, edit in (
        ("config.json", lambda p: p.write_text(p.read_text().replace('"longest": 2', '"longest": 3'))),
        ("curves.npz", lambda p: rewritten(p, lambda k: k.replace("new", "x").replace("old", "new"))),
    ):
        before = (folder / name).read_bytes()
        edit(folder / name)
        with pytest.raises(ValueError, match=f"{name} is missing or was changed after its run"):
            table.reports([tiny()], tmp_path)
        (folder / name).write_bytes(before)
    other = Trials(tiny(), PLAN, configuration(tiny(), PLAN, SOURCE | {"sha256": "t"}), tmp_path / "parts")
    with pytest.raises(ValueError, match="another configuration or version of the protocol"):
        carry_out(other)


def test_the_curves_of_fresh_seeds_are_drawn_each_arm_at_its_rate(tmp_path):
    experiment = tiny(panels=(Panel("nll", "t", "nll"),))
    described = configuration(experiment, PLAN, SOURCE)
    curved = carry_out(Trials(experiment, PLAN, described, tmp_path / "parts"))
    paths = table.draw(experiment, described, curved, tmp_path)
    assert {p.suffix for p in paths} == {".svg", ".png", ".json"}
    drawn = json.loads(next(p for p in paths if p.suffix == ".json").read_text())
    assert "Median of 6 seeds" in drawn["caption"]
    assert "Each arm at its best learning rate" in drawn["caption"]
    assert table.draw(tiny(), described, curved, tmp_path) == []


def test_the_real_plan_is_that_of_the_document():
    plan, text = real_plan(3), DOCUMENT.read_text()
    assert "the rates are 0.0003, 0.001 and 0.003, chosen on seed 0" in text
    assert (plan.rates, plan.choosing, plan.fresh, plan.longest) == ((0.0003, 0.001, 0.003), (0,), (100, 101, 102), 1)
    assert plan.extended(plan.rates, plan.rates) == plan.rates


def test_the_table_has_every_statement(tmp_path):
    conducted(tiny(), tmp_path)
    (markdown, _) = table.write_table([tiny()], tmp_path)
    rows = [line for line in markdown.read_text().splitlines() if line.startswith("| draw")]
    assert len(rows) == 2
    assert all("new: 0." in row and "generated" in row and "6 (" in row for row in rows)
    assert "version 1 of d" in markdown.read_text()
    conducted(tiny(generated=False), tmp_path / "real")
    (markdown, _) = table.write_table([tiny()], tmp_path)
    rows = [line for line in markdown.read_text().splitlines() if line.startswith("| draw")]
    assert [row.split(" | ")[-1] for row in rows] == ["generated |"] * 2 + ["real, larger version |"] * 2
    assert table.write_table([tiny()], tmp_path / "none") == []


def command(monkeypatch, capfd, *arguments):
    monkeypatch.setattr(sys, "argv", ["python -m analysis", *map(str, arguments)])
    monkeypatch.delitem(sys.modules, "analysis.experiments.protocol.__main__", raising=False)
    try:
        analysis_main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    return code, capfd.readouterr()


def test_the_command_estimates_first_and_refuses_in_one_line(tmp_path, monkeypatch, capfd):
    code, shown = command(monkeypatch, capfd, "protocol", "draw", "mnist", "--estimate", "--out", tmp_path)
    assert code == 0
    assert re.search(r"draw: .* of a processor; at the longest", shown.out)
    assert "order_embeddings" not in shown.out
    code, shown = command(monkeypatch, capfd, "protocol", "--table", "--out", tmp_path)
    assert "No results of the protocol" in shown.out
    code, shown = command(monkeypatch, capfd, "protocol", "none", "--out", tmp_path)
    assert code == 2
    assert "no experiment none" in shown.err


def test_a_log_gets_a_line_every_few_seconds_with_the_time_left():
    text = io.StringIO()
    with Watch(Console(file=text, width=200), every=0.02) as watch:
        update = watch.add("first")
        update(50, 200)
        update(100, 200)
        watch.add("second", 100)
        time.sleep(0.1)
        assert re.search(r"first 100 of 200, 1 not begun, \d+ s taken, about \d+ s left", watch.line())
    assert "first 100 of 200" in text.getvalue()
    assert Path(DOCUMENT).is_file()


def test_kept_curves_are_drawn_again_with_the_versions_of_their_run(tmp_path):
    shutil.copytree(DOCUMENT.parents[1] / "figures" / "protocol" / "draw", tmp_path / "protocol" / "draw")
    draw_again(known()["draw"], tmp_path)
    drawn = json.loads((tmp_path / "protocol" / "draw" / "curves.json").read_text(encoding="utf-8"))
    config = json.loads((tmp_path / "protocol" / "draw" / "config.json").read_text(encoding="utf-8"))
    assert drawn["versions"] == config["versions"]
    assert set(drawn["data"]["curves"]["DRAW"]) == {"baseline", "LN"}
    draw_again(known()["mnist"], tmp_path)
    assert not (tmp_path / "protocol" / "mnist").exists()
