"""The command line as a user meets it."""

import dataclasses
import json
import os
import re
from contextlib import nullcontext

import jax
import numpy as np
import pytest
from lngeom import claims
from lngeom.claims import Verdict, agree, papers, proofs, registry
from lngeom.cli import programs, running, workers
from lngeom.cli.commands import app
from lngeom.symbolic.proof import ProofError
from rich.cells import cell_len
from typer.testing import CliRunner

from tests.test_data import bad_files


@pytest.fixture(scope="module")
def prover():
    """A process that makes the proofs of all commands: a new one takes seconds to start."""
    with workers.Workers(1) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path, prover):
    """Runs in an empty folder, wide enough for the tables, and leaves the compilation cache alone."""
    monkeypatch.setattr(workers, "Workers", lambda count: nullcontext(prover))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(programs, "compile_sparingly", lambda: None)


def lngeom(*args):
    return CliRunner().invoke(app, list(args))


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.npy"
    np.save(path, np.random.default_rng(0).normal(size=(40, 4)))
    return str(path)


def test_verify_writes_a_report_and_exits_0(small, tmp_path):
    result = lngeom("verify", "--data", small, "--topic", "metric", "--out", "here/there", "--all")
    assert result.exit_code == 0, result.output
    assert "equation.32" in result.output
    assert "E[Cov[y|x]/φ²]" in " ".join(result.output.split())
    report = json.loads((tmp_path / "here/there/report.json").read_text())
    assert report["schema"] == "lngeom.report/2"
    assert report["data"]["shape"] == [40, 4]
    assert len(report["data"]["sha256"]) == 64
    assert report["summary"]["as_recorded"] == report["summary"]["claims"] == len(report["claims"])
    refuted = next(c for c in report["claims"] if c["id"] == "equation.35")
    assert refuted["verdict"] == "slip"
    assert refuted["correction"]
    assert all(e["residual"] is not None for e in refuted["evidence"] if e["kind"] != "proof")
    page = (tmp_path / "here/there/report.html").read_text()
    assert "equation.32" in page
    assert "<math" in page
    assert not re.search(r"""(src=|<link[^>]* href=)["']?(https?:)?//""", page)
    assert not list((tmp_path / "here/there").glob(".*"))


def test_json_goes_to_standard_output(small):
    result = lngeom("verify", "--data", small, "--claim", "equation.13_14.ln", "--json")
    report = json.loads(result.stdout)
    matrices = report["claims"][0]["evidence"][0]["matrices"]
    assert np.shape(matrices["exact (units 1, 2)"]) == (12, 12)


def test_the_same_seed_gives_the_same_report(small):
    def residuals(seed):
        report = json.loads(lngeom("verify", "--data", small, "--claim", "equation.3", "--json", "--seed", seed).stdout)
        return [e["residual"] for e in report["claims"][0]["evidence"]]

    assert residuals("3") == residuals("3")
    assert residuals("3") != residuals("4")


def test_exit_1_when_a_verdict_differs(small, monkeypatch):
    from lngeom.claims import registry

    record = registry._CLAIMS["equation.33"]
    monkeypatch.setitem(registry._CLAIMS, "equation.33", dataclasses.replace(record, expected=Verdict.CONDITIONAL))
    result = lngeom("verify", "--data", small, "--claim", "equation.33")
    assert result.exit_code == 1
    assert "differ from the record: equation.33" in result.output


def changed(monkeypatch, id, check):
    """Gives a claim another check."""
    from lngeom.claims import registry

    monkeypatch.setitem(registry._CLAIMS, id, dataclasses.replace(registry._CLAIMS[id], check=check))


def test_a_number_against_a_proof_is_a_clash_and_exits_1(small, monkeypatch, tmp_path):
    changed(monkeypatch, "equation.6", lambda p: [agree("one and two", np.ones(3), 2 * np.ones(3))])
    result = lngeom("verify", "--data", small, "--claim", "equation.6", "--out", "out")
    assert result.exit_code == 1
    assert "CLASH in 1 claim" in result.output
    assert "CLASH, a number contradicts a proof or a recorded statement: equation.6" in result.output
    assert "REFUTED" not in result.output
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["claims"][0]["verdict"] == "clash"
    assert report["summary"]["verdicts"]["clash"] == 1


def test_a_proof_carries_a_verdict_alone_on_the_user_s_data_but_not_on_the_digits(small, monkeypatch):
    changed(monkeypatch, "table1.ln.weight_matrix_rescaling", lambda p: [agree("x", np.ones(3), np.nan * np.ones(3))])
    arguments = ("verify", "--claim", "table1.ln.weight_matrix_rescaling")
    result = lngeom(*arguments, "--data", small)
    assert result.exit_code == 0
    assert "does not count: 3 of 3 entries are NaN or infinite" in " ".join(result.output.split())
    assert "1 of 1 claims have numbers that do not count as evidence on this data" in result.output
    result = lngeom(*arguments)
    assert result.exit_code == 1
    assert "numbers that do not count as evidence: table1.ln.weight_matrix_rescaling" in result.output


def test_cells_of_a_table_that_are_undecided_are_explained(small, monkeypatch):
    changed(monkeypatch, "table1.ln.dataset_rescaling", lambda p: [])
    changed(monkeypatch, "table1.bn.dataset_rescaling", lambda p: [agree("x", np.ones(3), np.ones(3) + 1e-6)])
    result = lngeom("table", "--data", small)
    assert result.exit_code == 1
    text = " ".join(result.output.replace("│", " ").split())
    assert "no evidence: the check compared nothing" in text
    assert "it decides nothing: the residual 1.0e-06 is not within 2.2e-13" in text
    assert "differ from the record: table1.bn.dataset_rescaling" in result.output


def test_bad_data_exits_2_and_writes_nothing(tmp_path):
    for path, message in bad_files(tmp_path):
        result = lngeom("verify", "--data", str(path), "--topic", "metric", "--out", "never")
        assert result.exit_code == 2, path
        assert message.split(" ")[0] in result.output
        assert len(result.output.strip().splitlines()) == 1, result.output
        assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--topic", "weather"), "the topics are"),
        (("--claim", "equation.99"), "no claim 'equation.99'"),
        (
            ("--topic", "fisher", "--claim", "equation.6"),
            "claim 'equation.6' is of the topic 'invariance', not 'fisher'",
        ),
        (("--topic", "fisher", "--claim", "equation.6", "--list"), "is of the topic 'invariance'"),
        (("--seed", "-1"), "greater than or equal to 0"),
        (("--seed", "one"), "--seed"),
        (("--frobnicate",), "--frobnicate"),
    ],
)
def test_bad_options_exit_2(args, message):
    result = lngeom("verify", *args)
    assert result.exit_code == 2
    assert message in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(running, "run", lambda *a, **k: pytest.fail("worked before it checked"))
    result = lngeom("verify", "--out", "file/report")
    assert result.exit_code == 2
    assert "cannot write to --out" in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_told(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert lngeom("verify", "--out", "locked/report").exit_code == 2


def test_a_failed_write_leaves_no_pieces(tmp_path, monkeypatch):
    from pathlib import Path

    from lngeom import report

    def refuse(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        report.write(tmp_path / "out", {"a": "1", "b": "2"})
    assert not list((tmp_path / "out").iterdir())


def test_list_checks_nothing(monkeypatch):
    monkeypatch.setattr(claims, "run", lambda *a: pytest.fail("ran a claim"))
    result = lngeom("verify", "--list")
    assert result.exit_code == 0
    assert "equation.13_14.ln" in result.output


def test_prove_prints_a_proof_or_a_counterexample():
    result = lngeom("prove", "table1.ln.weight_matrix_rescaling")
    assert result.exit_code == 0
    assert "steps are checked by machine" in result.output
    assert "certified not 0" in lngeom("prove", "table1.ln.dataset_recentering").output
    assert "\\neq" in lngeom("prove", "table1.ln.dataset_recentering", "--latex").output
    assert "equation.13_14.ln" in lngeom("prove", "--list").output.split()


@pytest.mark.parametrize("options", [(), ("--latex",), ("--certificate", "one.json")])
def test_a_proof_that_does_not_check_is_one_sentence_and_no_verdict(options, monkeypatch):
    def fails(id):
        raise ProofError("this step does not hold: The mean [0 = 1]")

    monkeypatch.setattr(proofs, "proof_of", fails)
    result = lngeom("prove", "text.feature_shifting", *options)
    assert result.exit_code == 1
    error = "error: the proof of text.feature_shifting does not check: this step does not hold: The mean [0 = 1]"
    assert result.output.splitlines() == [error]


def test_figures_take_the_folder_of_a_report(small):
    result = lngeom("figures", "--only", "table1", "--report", small)
    assert result.exit_code == 2
    assert "--report takes the folder that lngeom verify wrote" in result.output


def test_the_last_line_of_a_proof_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = lngeom("prove", "equation.33").output.splitlines()
    end = next(k for k, line in enumerate(lines) if line.startswith("∎ "))
    assert max(map(cell_len, lines[end : end + 2])) <= 60
    assert lines[end + 1].endswith("words are not.")


def test_prove_answers_for_every_claim_that_a_name_means():
    lines = lngeom("prove", "Eq. 13").output.splitlines()
    assert lines[0] == "Eq. 13: 2 hold, 1 refuted"
    heads = [
        f"equation.13_14.{method}  {verdict}"
        for method, verdict in (("bn", "holds"), ("wn", "holds"), ("ln", "refuted"))
    ]
    assert [line for line in lines if line in heads] == heads
    assert sum("steps are checked by machine" in line for line in lines) == 3


def test_a_claim_on_numbers_alone_says_so_and_shows_them(small):
    result = lngeom("prove", "equation.15_16", "--data", small)
    assert result.exit_code == 0
    assert "equation.15_16 is now part of supplement.cells" in result.output
    assert "No proof: this claim rests on numbers alone" in result.output
    assert re.search(r"✓ \d\.\de-1\d ≤ 1e-11  LSTM", result.output)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_one_claim_leads_with_verdict_and_correction_then_counterexample_then_evidence(small, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = lngeom("verify", "--data", small, "--claim", "13 LN")
    lines = result.stdout.splitlines()
    assert max(map(cell_len, lines)) <= width
    starts = ("equation.13_14.ln", "REFUTED by", "What is true", "Exact counterexample", "Evidence for what is true")
    places = [next(n for n, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    assert places[0] == 0
    assert "W = [1; 1; −2]" in result.output


def test_data_and_papers_that_are_misspelt_are_answered_with_what_was_meant(small):
    assert "did you mean 'digits'?" in lngeom("verify", "--data", "digit").output
    assert "did you mean 'small.npy'?" in lngeom("verify", "--data", "smal.npy").output
    assert "xiong2020.theorem_1" in lngeom("verify", "--paper", "xiong", "--list").output
    several = lngeom("verify", "--paper", "layer normalization", "--list")
    assert several.exit_code == 2
    assert "xu2019  Understanding and Improving Layer Normalization (2019)" in several.output


@pytest.mark.parametrize(
    "name",
    ["xiong", "Xiong et al.", "Xiong et al. (2020)", "Xiong, Yang and He", "2002.04745", "Huishuai"],
)
def test_a_paper_has_one_name_in_every_command(name):
    claims = [f"xiong2020.{claim}" for claim in ("lemma_1", "lemma_2_post", "lemma_2_pre", "lemma_3", "theorem_1")]
    for command in (("prove", name), ("verify", "--claim", name), ("where", name)):
        refused = lngeom(*command)
        assert refused.exit_code == 2
        assert f"{name!r} means 7 claims" in refused.output
        assert all(claim in refused.output.replace("\n", " ") for claim in claims)
    lists = [lngeom("verify", "--list", "--json", option, name).stdout for option in ("--paper", "--claim")]
    assert lists[0] == lists[1]
    assert len(json.loads(lists[0])["claims"]) == 7


def test_an_author_of_several_papers_is_answered_with_their_ids():
    for command in (("prove", "Zheng"), ("verify", "--paper", "Zheng"), ("where", "Zheng")):
        refused = lngeom(*command)
        assert refused.exit_code == 2
        assert refused.output.startswith("error: 2 papers are called 'Zheng'; name one by its id:\n  xiong2020  On")


@pytest.mark.parametrize(
    ("name", "id"), [("Ba et al., Eq. 13 LN", "equation.13_14.ln"), ("Xiong Lemma 3", "xiong2020.lemma_3")]
)
def test_a_claim_is_found_behind_the_name_of_its_paper(name, id):
    found = json.loads(lngeom("verify", "--list", "--json", "--claim", name).stdout)["claims"]
    assert [claim["id"] for claim in found] == [id]


def test_a_list_as_json_has_the_record_of_each_claim(monkeypatch):
    monkeypatch.setattr(claims, "run", lambda *a: pytest.fail("ran a claim"))
    found = json.loads(lngeom("verify", "--list", "--json", "--claim", "13 LN").stdout)
    assert found["schema"] == "lngeom.claims/1"
    (claim,) = found["claims"]
    known = registry.all_claims(id="equation.13_14.ln")[0]
    assert (claim["id"], claim["expected"], claim["paper"]) == (known.id, "refuted", "ba2016")
    assert (claim["statement"], claim["correction"]) == (known.statement, known.correction)
    everything = json.loads(lngeom("verify", "--paper", "all", "--list", "--json").stdout)["claims"]
    assert {claim["paper"] for claim in everything} == set(papers.ids())


def test_a_list_is_searched_and_shows_statements():
    result = lngeom("verify", "--list", "--claim", "layer norm refuted")
    assert result.exit_code == 0
    assert "Eqs. 13 and 14 give the Fisher matrix of layer norm." in result.output
    assert "Nothing was checked" in result.output
    assert "table1.ln" not in result.output


@pytest.mark.parametrize("name", ["Table 1", "Table 1, layer norm"])
def test_the_list_of_a_name_has_the_claims_that_it_means(name):
    refused = lngeom("prove", name).output
    count = re.search(r"means (\d+) claims", refused)[1]
    assert f"All {count}: lngeom verify --list --claim {name!r}. As a table: lngeom table" in refused
    found = lngeom("verify", "--list", "--claim", name).output
    assert found.startswith(f"{count} claims, as recorded: ")
    more = int(re.search(rf"(\d+) more mention {name!r}: add --all", found)[1])
    assert lngeom("verify", "--list", "--claim", name, "--all").output.startswith(f"{int(count) + more} claims, as")


def test_the_audit_of_a_part_leaves_the_report_of_the_whole(small, tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_text("whole")
    for part in (("--claim", "equation.3"), ("--topic", "metric")):
        result = lngeom("verify", "--data", small, *part)
        assert result.exit_code == 0, result.output
        assert "Written" not in result.output
    assert (tmp_path / "report" / "report.json").read_text() == "whole"


def test_the_audit_of_another_paper_states_its_claims_and_names_its_own(small, tmp_path):
    result = lngeom("verify", "--paper", "xiong2020", "--data", small)
    assert "Written: report/xiong2020/report.json" in result.output
    words = " ".join(result.output.split())
    flat = papers.claims("xiong2020.pre_flat")[0]
    assert f"xiong2020.pre_flat {flat.statement} True if: " in words
    assert "Wrong sentences, corrected" in words
    assert "Eq. 13" not in words
    assert "lngeom verify --paper xiong2020 --claim xiong2020." in words


def test_rows_of_methods_by_any_of_their_names(small):
    result = lngeom("table", "LN", "batch norm", "--data", small)
    assert result.exit_code == 0, result.output
    assert re.search(r"^LN \(per position\) +yes +yes +no +yes +no +yes", result.output, re.MULTILINE)
    assert "RMSNorm" not in result.output
    assert "W ↦ W + 𝟏γᵀ" in result.output
    assert lngeom("table", "lyer").exit_code == 2


def test_the_version_is_printed():
    assert lngeom("--version").output == lngeom("version").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "name a claim"),
        (("table1.ln.nothing",), "did you mean table1.ln.dataset_rescaling  holds"),
        (("xyz",), "no claim 'xyz'"),
        (("lemma.equivarianze",), "no lemma 'lemma.equivarianze': did you mean lemma.equivariance"),
        (("Eq. 99",), "claims are about Eqs. 2–4, 6–35"),
        (("table1",), "means 20 claims: 20 hold. Name one of them, such as table1.bn"),
    ],
)
def test_prove_bad_names_exit_2(args, message):
    result = lngeom("prove", *args)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


def test_table_has_18_cells(small):
    result = lngeom("table", "--data", small)
    assert result.exit_code == 0
    assert (result.output.count("yes ✓"), result.output.count("no ✓")) == (10, 8)
    assert (result.output.count("proved"), result.output.count("counterexample")) == (10, 8)
    assert "all 18 answers hold" in result.output


def test_verify_reads_results_of_experiments_and_waits_where_there_are_none(small, tmp_path):
    assert lngeom("verify", "--results", "nowhere").exit_code == 2
    (tmp_path / "results" / "protocol" / "skip_thoughts").mkdir(parents=True)
    (tmp_path / "results" / "protocol" / "skip_thoughts" / "report.json").write_bytes(b"damaged")
    result = lngeom("verify", "--data", small, "--topic", "experiments", "--json", "--results", "results")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    damaged = [c["id"] for c in report["claims"] if "no results of this version" in c["error"]]
    assert damaged
    assert all(name.startswith("experiments.skip_thoughts") for name in damaged)
    waiting = [c for c in report["claims"] if "no results in" in c["error"]]
    assert len(waiting) == len(report["claims"]) - len(damaged)
    assert all(c["as_recorded"] for c in waiting)
    assert set(report["summary"]["differ"]) <= set(damaged)


@pytest.fixture
def no_folder_of_programs(monkeypatch):
    """JAX as a user starts it, who keeps no compiled programs."""
    fewest = "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", fewest)}
    monkeypatch.delenv(fewest.upper())
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update(fewest, 1.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_short_programs_stay_in_a_folder_that_is_set_already(no_folder_of_programs, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    programs.keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0


def test_compiled_programs_stay_in_the_users_folder(no_folder_of_programs, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs.keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "lngeom" / "jax")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    programs.keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "lngeom" / "jax")  # as it was set before


def test_without_a_home_no_programs_are_kept(no_folder_of_programs, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(programs.Path, "home", no_home)
    programs.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_cannot_be_made_keeps_no_programs(no_folder_of_programs, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    programs.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None
