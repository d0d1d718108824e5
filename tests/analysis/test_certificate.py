"""Certificates are checked by a program that shares no code with lngeom, and corrupted ones are refused."""

import ast
import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from analysis.checks import trust
from lngeom.claims.proofs import proof_of
from lngeom.symbolic.certificate import certificate

from analysis import check_certificate

CLAIMS = (
    "equation.6",
    "equation.3",
    "equation.13_14.bn",
    "table1.ln.weight_vector_rescaling",
    "nullspace.wn",
    "scaling.unit",
)
PROGRAM = Path(check_certificate.__file__)


def checked(data):
    return check_certificate.certificate(json.loads(json.dumps(data)))


@pytest.fixture(scope="module")
def certificates():
    return {id: certificate(id, proof_of(id)) for id in CLAIMS}


@pytest.mark.parametrize("id", CLAIMS)
def test_certificates_pass(certificates, id):
    steps = checked(certificates[id])
    assert sum(bool(shown) for _, shown in steps) >= 0.7 * len(steps)


def test_the_checker_stands_alone():
    imported = {
        name.name.split(".")[0] if isinstance(node, ast.Import) else (node.module or "").split(".")[0]
        for node in ast.walk(ast.parse(PROGRAM.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported <= {"itertools", "json", "random", "sys", "fractions", "math", "pathlib"}


def first(tree, wanted):
    """Paths to the parts of a tree that are wanted."""
    if wanted(tree):
        yield ()
    if isinstance(tree, list):
        for place, part in enumerate(tree):
            yield from ((place, *path) for path in first(part, wanted))


def put(tree, path, value):
    """The tree with another part at a path."""
    if not path:
        return value
    found = list(tree)
    found[path[0]] = put(found[path[0]], path[1:], value)
    return found


def at(tree, path):
    for place in path:
        tree = tree[place]
    return tree


def identities(data):
    for step in data["proof"]["steps"]:
        yield from (check for check in step["checks"] if check["kind"] == "identity")


def operation(name):
    return lambda tree: isinstance(tree, list) and tree[:1] == [name]


def change(data, side, wanted, new):
    """Changes the first wanted part on one side of the first identity that has one; zero may stay zero."""
    for check in identities(data):
        if check["right"] == 0:
            continue
        for path in first(check[side], wanted):
            check[side] = put(check[side], path, new(at(check[side], path)))
            return
    raise AssertionError("nothing to change")


def negative(tree):
    return ["*", -1, tree]


def entry(place, other):
    return lambda data: change(
        data,
        "left",
        lambda t: operation("at")(t) and len(t) > place and t[place] != other,
        lambda t: put(t, (place,), other),
    )


def drop_hypotheses(data):
    data["proof"]["hypotheses"] = [h for h in data["proof"]["hypotheses"] if not h["without"]]


def forbid(data):
    next(check for check in identities(data) if check["nonzero"])["nonzero"].pop()


def ranks(data):
    return next(check for step in data["proof"]["steps"] for check in step["checks"] if check["kind"] == "rank")


CORRUPTIONS = {
    "a sign on the right": ("equation.3", lambda d: change(d, "right", lambda t: True, negative)),
    "a sign on the left": ("equation.13_14.bn", lambda d: change(d, "left", lambda t: True, negative)),
    "a sign inside": ("equation.13_14.bn", lambda d: change(d, "left", operation("at"), negative)),
    "a term more": ("equation.3", lambda d: change(d, "right", lambda t: True, lambda t: ["+", t, 1])),
    "a factor more": ("equation.6", lambda d: change(d, "right", lambda t: True, lambda t: ["*", t, 2])),
    "a term dropped": ("equation.13_14.bn", lambda d: change(d, "left", operation("+"), lambda t: t[:-1])),
    "a factor dropped": ("nullspace.wn", lambda d: change(d, "right", operation("*"), lambda t: t[:-1])),
    "a power": ("equation.3", lambda d: change(d, "left", operation("^"), lambda t: put(t, (2,), t[2] + 1))),
    "a root": ("equation.6", lambda d: change(d, "right", operation("^"), lambda t: put(t, (3,), 3 - t[3]))),
    "a number": ("equation.3", lambda d: change(d, "left", lambda t: t in (-1, 2), lambda t: t + 1)),
    "a sum that is none": ("equation.3", lambda d: change(d, "left", operation("sum"), lambda t: put(t, (3,), 1))),
    "the size of a sum": (
        "equation.13_14.bn",
        lambda d: change(d, "left", operation("sum"), lambda t: put(t, (2,), "T")),
    ),
    "a size": ("equation.3", lambda d: change(d, "left", operation("size"), lambda t: ["size", "M"])),
    "another family": ("equation.13_14.bn", entry(1, "Z")),
    "an index that is a number": ("equation.3", entry(2, 1)),
    "an index that nothing binds": ("equation.3", entry(2, "zz")),
    "a free index dropped": (
        "equation.3",
        lambda d: next(c for c in identities(d) if c["indices"])["indices"].popitem(),
    ),
    "a hypothesis on denominators": ("equation.3", forbid),
    "hypotheses that are needed": ("equation.6", drop_hypotheses),
    "positive numbers": ("equation.6", lambda d: [c.update(positive=[]) for c in identities(d)]),
    "an unknown operation": ("equation.3", lambda d: change(d, "left", operation("+"), lambda t: ["-", *t[1:]])),
    "an unknown check": ("equation.3", lambda d: d["proof"]["steps"][0]["checks"].append({"kind": "trust"})),
    "no steps": ("equation.3", lambda d: d["proof"].update(steps=[])),
    "a lemma that is missing": ("scaling.unit", lambda d: d["lemmas"].clear()),
    "a sign in a lemma": (
        "scaling.unit",
        lambda d: change({"proof": next(iter(d["lemmas"].values()))}, "right", lambda t: True, negative),
    ),
    "sides that agree": (
        "table1.ln.weight_vector_rescaling",
        lambda d: d["counterexample"].update(right=d["counterexample"]["left"]),
    ),
    "a side that does not follow": (
        "table1.ln.weight_vector_rescaling",
        lambda d: d["counterexample"].update(left=["+", d["counterexample"]["left"], ["/", 1, 10**9]]),
    ),
    "a digit of the instance": (
        "table1.ln.weight_vector_rescaling",
        lambda d: d["counterexample"]["instance"].update({"W[1,1]": 5}),
    ),
    "an entry of the instance dropped": (
        "table1.ln.weight_vector_rescaling",
        lambda d: d["counterexample"]["instance"].pop("X[1,1]"),
    ),
    "a rank": ("nullspace.wn", lambda d: ranks(d).update(rank=ranks(d)["rank"] - 1, pivots=ranks(d)["pivots"][:-1])),
    "a digit of a matrix": ("nullspace.wn", lambda d: ranks(d)["rows"].append([[1, 0]] * len(ranks(d)["rows"][0]))),
    "a pivot": ("nullspace.wn", lambda d: ranks(d)["pivots"].__setitem__(0, 10**6)),
    "no prime": ("nullspace.wn", lambda d: ranks(d).update(prime=15)),
    "another schema": ("equation.3", lambda d: d.update(schema="lngeom.report/2")),
    "a refutation without a correction": (
        "table1.ln.weight_vector_rescaling",
        lambda d: d.update(establishes="refuted"),
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_certificate_is_refused(certificates, name):
    id, corrupt = CORRUPTIONS[name]
    data = copy.deepcopy(certificates[id])
    corrupt(data)
    assert data != certificates[id]
    with pytest.raises((check_certificate.Refused, KeyError)):
        checked(data)


def test_the_program_reads_files(certificates, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(certificates["equation.3"]))

    def run(*paths):
        command = [sys.executable, "-I", PROGRAM, *paths]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(good).returncode == 0
    bad.write_text("{")
    assert run(bad).returncode == 2
    bad.write_text(json.dumps(certificates["equation.3"] | {"establishes": "refuted"}))
    found = run(tmp_path)
    assert (found.returncode, "bad.json: REFUSED" in found.stdout) == (1, True)
    assert run(tmp_path / "none").returncode == 2


def test_the_page_of_trust_names_every_claim(certificates):
    page = trust.page({id: checked(data) for id, data in certificates.items()}, numbers=("text.nothing",))
    assert all(f"`{id}`" in page for id in (*CLAIMS, "text.nothing"))
