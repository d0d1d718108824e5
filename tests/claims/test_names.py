"""Names of claims as people write them, and the report page's search, which finds the same."""

import json
import shutil
import subprocess

import pytest
from lngeom.claims import all_claims, names, papers
from lngeom.claims.registry import Claim, recorded
from lngeom.report.document import document
from lngeom.report.page import searched
from lngeom.report.templating import environment

from tests.report.test_page import OWN

THREE = ["equation.13_14.bn", "equation.13_14.wn", "equation.13_14.ln"]


def ids(name: str) -> list[str]:
    return [claim.id for claim in papers.claims(name)]


@pytest.mark.parametrize("name", ["Eq. 13", "eq 13", "EQ.13", "equation (13)", "Equation.13", "eqn 13", "13", "(13)"])
def test_an_equation_means_the_claims_whose_ids_name_it(name):
    assert ids(name) == THREE


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("equation.13_14.ln", ["equation.13_14.ln"]),
        ("Equation.13_14.LN", ["equation.13_14.ln"]),
        ("Eq. 13 layer norm", ["equation.13_14.ln"]),
        ("is Eq. 14 right for LayerNorm?", ["equation.13_14.ln"]),
        ("LN refuted", ["equation.13_14.ln"]),
        ("Eq. 16", ["supplement.cells"]),
        ("Eq. 25", ["equation.23_28"]),
        ("equation.15_16", ["supplement.cells"]),
        ("text.references_swapped", ["equation.3"]),
        ("scaling.unit.bn", ["scaling.unit"]),
        ("Weight Normalization table 1 dataset rescaling", ["table1.wn.dataset_rescaling"]),
        ("feature-shifting", ["text.feature_shifting"]),
        ("xiong2020.lemma_3", ["xiong2020.lemma_3"]),
        ("Theorem 4.4", ["santurkar2018.theorem_4_4"]),
    ],
)
def test_a_name_of_one_claim_finds_it(name, found):
    assert ids(name) == found


def test_a_place_means_all_of_its_claims():
    assert set(ids("Table 1")) == set(ids("table1")) == {c.id for c in all_claims("all") if c.id.startswith("table1.")}
    assert "text.all_methods_dataset_rescaling" in ids("section 5.1")
    assert set(ids("§ 5.1")) == set(ids("5.1")) < set(ids("Section 5"))
    assert set(ids("xiong2020")) == {c.id for c in papers.find("xiong2020").claims}


def test_what_is_meant_by_no_claim_is_answered_with_claims_near_it():
    for name, near in (
        ("riemanian", "text.riemannian"),
        ("table1.ln.dataset_rescalings", "table1.ln.dataset_rescaling"),
    ):
        with pytest.raises(names.UnknownClaim) as caught:
            papers.claims(name)
        assert caught.value.near[0].id == near
        assert f"{near}  " in str(caught.value)
    with pytest.raises(names.UnknownClaim, match=r"claims are about Eqs\. 2–4, 6–35"):
        papers.claims("Eq. 99")


def test_former_ids_are_nobody_s_now():
    everything = all_claims("all")
    former = [id for claim in everything for id in claim.formerly]
    assert len(former) >= 14
    assert len(set(former)) == len(former)
    assert not {claim.id for claim in everything} & set(former)


def test_nearer_texts_come_first():
    def claim(id, **fields):
        given = {"topic": "t", "source": "s", "statement": "x", "expected": all_claims()[0].expected}
        return Claim(id, **given | fields)

    said = claim("a.one", assumptions=("the gain is positive",))
    stated, placed, named = claim("a.two", statement="A gain."), claim("a.three", source="after gain"), claim("a.gain")
    assert [c.id for _, c in names.ranked("gain", [said, stated, placed, named])] == [
        "a.gain",
        "a.three",
        "a.two",
        "a.one",
    ]
    assert [c.id for c in names.best("Gain", [said, stated])] == ["a.two"]


QUERIES = (
    *("Eq. 13", "eqs 13", "equation (13)", "Equation.13", "13", "Eqs. 14-16", "Eqs. 9 to 12", "Eq. 99", "eq 1"),
    *("table1", "Table 1", "§5.2", "section 5.1", "5.1", "Sections 1 and 3", "Lemma 3.1", "equation.15_16", "Eq. 25"),
    *("layer norm refuted", "LN", "LayerNorm gain", "layer-normalised", "instance norm", "RMS", "batch normalization"),
    *("Re-scaling", "rescaling", "null_space", "dataset re-centering", "σ_i", "refuted", "is it true", "xyz", "of", ""),
    *("text.references_swapped", "equation.13_14.ln", "Supplement", "gain, refuted", "“gain”", "two  words", "norm."),
)


@pytest.fixture(scope="module")
def on_the_page():
    """Ids that the page's script finds for each query."""
    if shutil.which("node") is None:
        pytest.skip("the script of the page's search needs node")
    claims = all_claims("all")
    records = document([recorded(claim) for claim in claims], OWN, 0)["claims"]
    given = [{**searched(record)._asdict(), "verdict": record["verdict"]} for record in records]
    templates = environment()
    templates.globals["rules"] = names.rules()
    script = templates.get_template("search.js").render()
    run = f"const given = {json.dumps(given)}.map(c => ({{ ...c, keys: new Set(c.keys) }}));"
    run += f"const found = {json.dumps(QUERIES)}.map(q => given.filter(matcher(q, given)).map(c => c.ids[0]));"
    done = subprocess.run(
        ["node", "-"], input=f"{script}\n{run}\nconsole.log(JSON.stringify(found));", capture_output=True, text=True
    )
    assert not done.stderr
    return dict(zip(QUERIES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("query", QUERIES)
def test_the_page_s_search_finds_the_same_claims(on_the_page, query):
    claims = all_claims("all")
    found = (
        {claim.id for _, claim in names.ranked(query, claims)} if names.conditions(query) else {c.id for c in claims}
    )
    assert set(on_the_page[query]) == found


def test_most_queries_find_something(on_the_page):
    assert {query for query, found in on_the_page.items() if not found} == {
        "Eq. 99",
        "eq 1",
        "Lemma 3.1",
        "xyz",
        "two  words",
    }
