"""The table of planted mistakes, on one family; and what it shows of a comparison that is wrong."""

import json
import sys
from dataclasses import replace

import jax
import pytest
from analysis.measurements import certified
from analysis.models import mistakes
from analysis.models.families import CONFIGS
from lngeom.transformers import rewrite as rw

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

FEW = (mistakes.gain_forgotten, mistakes.router_forgotten, mistakes.quantized, mistakes.epsilon)


@pytest.fixture(autouse=True)
def _few_mistakes(monkeypatch):
    monkeypatch.setattr(certified, "MISTAKES", FEW)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def run(monkeypatch, folder):
    """The result, the rows of the page, and the page of one family."""
    monkeypatch.setattr(sys, "argv", ["certified", "--only", "olmo3", "--out", str(folder)])
    certified.main()
    text = (folder / "certified.md").read_text(encoding="utf-8")
    found = json.loads((folder / "certified.json").read_text(encoding="utf-8"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return found["models"]["olmo3"], {row[0]: row[1:] for row in cells}, text


def test_a_family_has_a_row_and_sums(monkeypatch, tmp_path):
    found, rows, text = run(monkeypatch, tmp_path)
    assert {verdict["float64"] for verdict in found["rewrites"].values()} == {"same"}
    assert {verdict["bfloat16"] for verdict in found["rewrites"].values()} == {"rounding"}
    assert set(found["mistakes"]) == {"quantized"}  # its norms are those of what a branch writes, and it has no router
    count = f"{len(found['rewrites'])} of {len(found['rewrites'])}"
    assert len(found["rewrites"]) > 5
    assert rows["olmo3"] == [count, "1", "1", "1", "1", count, "1", "1", "1"]
    assert rows["1 others"] == rows["1 in all"] == rows["olmo3"]
    assert rows["One matrix in four bits"] == ["1"] * 7
    assert rows["A gain is folded into all readers but one"] == ["0"] * 7
    assert text.endswith("None.\n")


def test_a_comparison_that_is_wrong_shows_in_the_table(monkeypatch, tmp_path):
    true = rw.certify

    def wrong(before, after, **options):
        found = true(before, after, **options)
        return replace(found, verdict="same" if found.verdict == "different" else "different")

    monkeypatch.setattr(certified.rw, "certify", wrong)
    _, rows, text = run(monkeypatch, tmp_path)
    assert rows["olmo3"][0].startswith("0 of ")
    assert rows["olmo3"][5].startswith("0 of ")
    assert rows["olmo3"][1:5] == ["1", "0", "0", "0"]
    assert '- olmo3, rewrite "untie": different in float64, different in bfloat16' in text
    assert "- olmo3, quantized, in blocks." in text


def test_families_in_view_are_families():
    assert set(certified.IN_VIEW) <= set(CONFIGS)
    assert len(set(certified.IN_VIEW)) == 21
