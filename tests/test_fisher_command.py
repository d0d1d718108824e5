"""`lngeom fisher` as a user meets it."""

import re

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.conditions import Condition
from lngeom.cli import programs
from lngeom.cli.commands import app
from lngeom.information import _spectrum
from lngeom.information.predicted import PredictedNullspace
from lngeom.information.summary import Summary, summarize
from typer.testing import CliRunner

MODULE = """
import jax, jax.numpy as jnp, numpy as np

def net(params, X):
    return jnp.tanh(X @ params["first"]["kernel"]) @ params["last"]

def problem(eps=0.0):
    params = {"first": {"kernel": jax.random.normal(jax.random.key(0), (3, 4))}, "last": jnp.eye(4)[:, 1:], "count": 3}
    def apply(p, x):
        a = x @ p["first"]["kernel"]
        a = a - jnp.mean(a, 1, keepdims=True)
        return (a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + eps)) @ p["last"]
    return apply, params, jax.random.normal(jax.random.key(1), (20, 3))

def coupled():
    return lambda p, x: (x - jnp.mean(x, 0, keepdims=True)) @ p, jnp.ones((3, 2)), problem()[2]

def masked():
    apply, params, X = problem()
    return apply, params, X, {"mask": jnp.arange(20) < 15}

def broken():
    raise RuntimeError("no data here")

def leaves():
    raise SystemExit(3)

def objects():
    return net, problem()[1], np.asarray(problem()[2], object)

def text():
    return net, {"first": {"kernel": np.array([["a"]])}, "last": jnp.ones((1, 1))}, problem()[2]

def shapes():
    return lambda p, x: x @ p, jnp.ones((3, 2)), jnp.ones((5, 4))

def graded():
    decay = 10.0 ** -jnp.arange(0, 20, 0.5)
    return lambda p, x: x * p["w"][None, :], {"w": jnp.ones(40)}, decay[None, :] * jnp.eye(40)

number = 3
def one(a): ...
"""


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    """Runs beside a module of models, and leaves the compilation cache alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(programs, "compile_sparingly", lambda: None)
    (tmp_path / "models_of_this_test.py").write_text(MODULE)
    rng = np.random.default_rng(0)
    np.save("small.npy", rng.normal(size=(40, 4)))


def run(*args):
    args = [a.replace("m:", "models_of_this_test:") if a.startswith("m:") else a for a in args]
    return CliRunner().invoke(app, ["fisher", *args])


def test_a_normalized_glm_on_data_has_the_predicted_null_space():
    result = run("--glm", "--normalizer", "layer", "--family", "bernoulli", "--data", "small.npy", "--outputs", "6")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    for part in ("31 (smallest kept", "5, as predicted", "4 shifts of all rows", "1 scale of W", "pseudo-logdet"):
        assert part in text
    assert "shift of weights" not in text, "a direction is named once, as theory names it"
    rows = ("rank", "nullity", "null directions", "largest", "pseudo-logdet", "parameters")
    places = [text.index(f"│ {row} ") for row in rows]
    assert places == sorted(places)


def test_the_plan_of_memory_is_printed_on_request_alone():
    given = ("--glm", "--family", "bernoulli", "--data", "small.npy", "--outputs", "6")
    planned, result = run(*given, "--plan"), run(*given)
    text = " ".join(planned.output.split())
    assert "P = 36 parameters, 40 samples" in text
    assert "matrix: 10.1 KiB" in text
    assert "nullity" not in planned.output
    assert "KiB" not in result.output


def test_uncertain_directions_are_marked():
    result = run("m:graded", "--family", "gaussian")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "uncertain: 21 to 32" in text
    assert "that no output depends on (4 of them uncertain)" in text


@pytest.mark.thorough
def test_a_nullity_that_is_not_the_predicted_one_exits_1(monkeypatch):
    monkeypatch.setattr(Summary, "as_predicted", property(lambda self: False))
    result = run("--glm", "--data", "small.npy", "--outputs", "3")
    assert result.exit_code == 1
    assert "predicted" in result.output


def test_badly_scaled_data_make_the_predicted_nullity_uncertain():
    x = np.arange(1.0, 20.0)
    np.save("scaled.npy", np.stack([x, x**2, 1e5 * (x + 1)], 1))
    result = run("--glm", "--data", "scaled.npy")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert re.search(r"nullity │ \d+, predicted: 10, which is uncertain", text)
    assert "bring the columns of X to one size" in text


def test_rows_that_are_left_out_are_said():
    np.save("rows.npy", np.concatenate([np.load("small.npy"), np.zeros((2, 4))]))
    for options in ((), ("--plan",)):
        result = run("--glm", "--data", "rows.npy", "--outputs", "3", *options)
        assert result.exit_code == 0, result.output
        assert result.output.startswith("Data: rows.npy, 42 × 4, rank 4\n  2 rows of zeros are left out: layer norm is")


@pytest.mark.parametrize(
    ("nullity", "ranks", "exact", "doubts", "answer"),
    [
        (5, (5, 5), True, (), True),
        (4, (6, 6), True, (), False),
        (6, (4, 4), False, (), None),
        (4, (6, 6), False, (), False),
        (4, (5, 6), False, (), None),
        (4, (6, 6), False, ("scale",), None),
    ],
)
def test_a_nullity_below_a_lower_bound_is_not_as_predicted(nullity, ranks, exact, doubts, answer):
    conditions = (Condition("enough samples", exact, ""),)
    predicted = PredictedNullspace(np.zeros((10, 5)), 5, (), conditions, doubts)
    found = Summary("F", None, (), (), 1.0, np.ones(1), 10 - nullity, 1e3, ranks, nullity, None, predicted)
    assert found.as_predicted is answer


def test_a_named_model_is_what_fisher_makes_of_it(tmp_path):
    result = run("m:problem", "--family", "categorical", "--save", "new/matrix.npz")
    assert result.exit_code == 0, result.output
    saved = np.load(tmp_path / "new/matrix.npz")
    assert saved["leaves"].tolist() == ["first.kernel", "last"]
    assert saved["sizes"].tolist() == [12, 12]
    import models_of_this_test as models

    apply, params, X = models.problem()
    F = lg.fisher(apply, params, X, family=lg.families.Categorical())
    np.testing.assert_allclose(saved["matrix"], F.as_matrix(), rtol=0, atol=1e-14)
    assert f"{F.rank()} (smallest kept" in result.output
    assert "scale of first.kernel" in result.output
    assert not list((tmp_path / "new").glob(".*"))


@pytest.mark.thorough
def test_epsilon_reaches_the_model_and_breaks_its_scale():
    exact, broken = (run("m:problem", "--family", "gaussian", *more) for more in ((), ("--epsilon", "1e-3")))
    assert "broken by eps" in broken.output
    assert "broken by eps" not in exact.output


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--method", "monte_carlo", "--samples", "3"), "monte_carlo, Gaussian"),
        (("--method", "empirical", "--responses", "y.npy"), "empirical, Gaussian"),
        (("--wrt", "last"), "12 × 12"),
        (("--products-only", "--top", "2"), "not known from products alone"),
        (("--dtype", "float32"), "float32"),
    ],
)
def test_options_reach_the_operator(more, expected):
    np.save("y.npy", np.zeros((20, 3)))
    result = run("m:problem", "--family", "gaussian", *more)
    assert result.exit_code == 0, result.output
    assert expected in result.output


@pytest.mark.thorough
def test_a_function_with_files_a_mask_and_interacting_samples(tmp_path):
    np.savez("params.npz", **{"first.kernel": np.ones((4, 2)), "last": np.ones((2, 3))})
    result = run("m:net", "--family", "gaussian", "--params", "params.npz", "--data", "small.npy")
    assert result.exit_code == 0, result.output
    assert "first.kernel  4 × 2" in result.output
    assert run("m:masked", "--family", "gaussian").exit_code == 0
    assert "say batch_coupled=True" in run("m:coupled", "--family", "gaussian").output
    assert run("m:coupled", "--family", "gaussian", "--batch-coupled").exit_code == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "name a model as MODULE:NAME, or use --glm"),
        (("m:problem",), "--family must say"),
        (("m:nothing", "--family", "gaussian"), "has no nothing"),
        (("nosuch:thing",), "cannot import nosuch"),
        (("m:",), "a model is named as PACKAGE.MODULE:NAME"),
        (("m:broken", "--family", "gaussian"), "broken() raised RuntimeError: no data here"),
        (("m:leaves", "--family", "gaussian"), "leaves() calls sys.exit(3) and so returns nothing"),
        (("m:objects", "--family", "gaussian"), "X must hold numbers that JAX knows; got dtype object"),
        (("m:text", "--family", "gaussian"), "params must hold numbers that JAX knows; got dtype <U1"),
        (("m:number", "--family", "gaussian"), "got a int. Write:"),
        (("m:one", "--family", "gaussian"), "got a function. Write:"),
        (("m:net", "--family", "gaussian"), "give --params and --data"),
        (("m:net", "--params", "no.npz", "--data", "small.npy"), "no.npz: cannot be read"),
        (("m:net", "--params", "small.npy", "--data", "small.npy"), "must be a .npz"),
        (("m:problem", "--data", "small.npy"), "brings its own parameters"),
        (("m:masked", "--epsilon", "0.1"), "no argument eps"),
        (("m:shapes", "--family", "gaussian"), "the model raised TypeError"),
        (("m:problem", "--family", "cat"), "no family 'cat'"),
        (("m:problem", "--family", "gamma"), "needs natural parameters z < 0"),
        (("m:problem", "--family", "gaussian", "--method", "exakt"), "method must be one of"),
        (("m:problem", "--family", "gaussian", "--method", "empirical"), "needs --responses"),
        (("m:problem", "--family", "gaussian", "--wrt", "layer9"), "no leaf or subtree"),
        (("m:problem", "--family", "gaussian", "--memory", "0.00001"), "would need"),
        (("m:problem", "--save", "out.txt"), "--save takes a .npz"),
        (("--glm", "--data", "none.csv"), "no such file"),
        (("--glm", "--normalizer", "lay"), "no method 'lay': did you mean layer"),
        (("--glm", "--normalizer", "identity", "--epsilon", "0.1"), "no ε"),
        (("--glm", "--dtype", "float16"), "--dtype must be"),
    ],
)
def test_bad_input_gets_one_error_and_exit_2(args, message, tmp_path):
    before = set(tmp_path.iterdir())
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.count("error: ") == 1
    assert {p for p in tmp_path.iterdir() if p.name != "__pycache__"} == before


def test_a_matrix_that_does_not_fit_is_refused_with_its_size_and_the_alternative():
    result = run("m:problem", "--family", "gaussian", "--memory", "0.00001")
    assert "KiB" in result.output
    assert "--products-only" in result.output


def test_eigenvalues_that_do_not_converge_are_one_error_with_the_option_to_change(monkeypatch):
    monkeypatch.setattr(_spectrum, "RESTARTS", 1)
    result = run(
        "--glm", "--family", "bernoulli", "--data", "small.npy", "--outputs", "60", "--products-only", "--top", "5"
    )
    assert result.exit_code == 2
    assert "of 5 eigenvalues converged" in result.output
    assert "(here: --top)" in " ".join(result.output.split())


@pytest.mark.thorough
def test_a_summary_is_of_the_operator_it_is_given():
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    F = lg.fisher(model, params, jax.random.normal(jax.random.key(1), (50, 3)))
    found, quick = (summarize(F, 3, products_only=p) for p in (False, True))
    np.testing.assert_allclose(found.eigenvalues, jnp.linalg.eigvalsh(F.as_matrix())[::-1][:3], rtol=1e-12)
    np.testing.assert_allclose(quick.eigenvalues, found.eigenvalues, rtol=1e-10)
    np.testing.assert_allclose([quick.trace, found.trace], F.trace(), rtol=1e-12)
    assert found.nullity == 20 - found.rank == 4
    assert found.as_predicted
    assert quick.rank is quick.as_predicted is None
    np.testing.assert_allclose(found.pseudo_logdet, F.pseudo_logdet(), rtol=1e-12)
    with pytest.raises(ValueError, match="at least 1"):
        summarize(F, 0)
