"""Results are kept: saved as numbers, pickled, tabulated, drawn; and programs are compiled once."""

import json
import logging
import pickle

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.support import supports

from .zoo import normal

FAMILY = {"policy": lg.families.Categorical(), "value": lg.families.Gaussian(0.5)}


def apply(p, x):
    z = jnp.tanh(x @ p["first"]["kernel"]) @ p["last"]
    return {"policy": z[:, :2], "value": z[:, 2]}


def operator(seed=0):
    params = {"first": {"kernel": normal(seed, 3, 5)}, "last": normal(seed + 1, 5, 3)}
    return lg.fisher(apply, params, normal(seed + 2, 12, 3), family=FAMILY)


@pytest.fixture(scope="module")
def F():
    return operator()


@pytest.mark.thorough
def test_a_file_holds_the_numbers_their_leaves_and_their_origin(F, tmp_path):
    F.save(tmp_path / "new" / "f.npz", ["matrix", "factor", "singular_values", "nullspace"])
    found = lg.FisherOperator.load(tmp_path / "new" / "f.npz")
    np.testing.assert_array_equal(found.matrix, F.as_matrix())
    np.testing.assert_allclose(found.factor.T @ found.factor, found.matrix, atol=1e-14)
    np.testing.assert_allclose(found.factor @ found.nullspace, 0, atol=1e-14)
    assert found.nullspace.shape[1] == F.in_size() - F.rank()
    assert (found.leaves, found.shapes) == (("first.kernel", "last"), ((3, 5), (5, 3)))
    np.testing.assert_allclose(found.block("last", "first.kernel"), F.block("last", "first.kernel"), atol=1e-14)
    assert found.provenance["family"] == "policy: Categorical; value: Gaussian"
    assert found.provenance["versions"]["lngeom"] == lg.__version__
    with np.load(tmp_path / "new" / "f.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype.kind in "fiU" for name in archive.files)
    assert repr(found).startswith("SavedFisher(FisherOperator(30 × 30")


def test_other_files_and_parts_are_refused(F, tmp_path):
    np.savez(tmp_path / "other.npz", a=np.ones(2))
    np.savez(tmp_path / "code.npz", provenance=np.array([object()], dtype=object))
    for name in ("other.npz", "code.npz"):
        with pytest.raises(ValueError, match=r"not a file of FisherOperator\.save"):
            lg.FisherOperator.load(tmp_path / name)
    with pytest.raises(ValueError, match=r"parts are matrix, factor, .*; got \['model'\]"):
        F.save(tmp_path / "f.npz", ["model"])
    with pytest.raises(ValueError, match=r"saved as a \.npz file"):
        F.save(tmp_path / "f.pkl")
    F.save(tmp_path / "s.npz", ["singular_values"])
    with pytest.raises(ValueError, match="no matrix was saved"):
        lg.FisherOperator.load(tmp_path / "s.npz").block("last", "last")
    assert not (tmp_path / "f.npz").exists()


def test_an_operator_pickles_where_its_function_does(F):
    v = jnp.arange(30.0)
    copy = pickle.loads(pickle.dumps(F))
    np.testing.assert_allclose(copy @ v, F @ v, rtol=1e-13)
    assert (copy.leaves, copy.method, repr(copy)) == (F.leaves, F.method, repr(F))
    local = lg.fisher(lambda p, x: x @ p, jnp.ones((3, 2)), normal(2, 12, 3), family=lg.families.Poisson())
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(local)


def test_rows_by_leaf_add_up(F):
    rows, null = F.by_leaf(), F.nullspace()
    assert [row["leaf"] for row in rows] == list(F.leaves)
    assert sum(row["trace"] for row in rows) == pytest.approx(float(F.trace()))
    assert max(row["largest"] for row in rows) == float(jnp.max(F.diagonal()))
    assert sum(row["null"] for row in null.by_leaf()) == pytest.approx(null.dimension)
    hidden = next(row for row in null.by_leaf() if row["leaf"] == "last")
    np.testing.assert_allclose(hidden["null"], np.sum(np.square(null.basis[15:])))


def test_unexplained_directions_are_shown_where_they_lie():
    mixing = jnp.asarray([[1.0, 2.0, 3.0], [0.5, -1.0, 0.2]])  # no candidate knows its null vector

    def mixed(p, x):
        return x @ (mixing[:, :2] @ p["a"] + mixing[:, 2] * p["b"])

    p = {"a": normal(0, 2), "b": jnp.asarray(1.3)}
    found = lg.fisher(mixed, p, normal(1, 9, 2), family=lg.families.Gaussian()).nullspace().describe()
    assert found.unexplained == 1
    (support,) = found.supports
    assert (support.leaves, support.dimension) == ((("a", 2, 2), ("b", 1, 1)), 1)
    assert str(found).endswith(
        "1  unexplained; how many entries of a leaf each of them moves:\n        1  a (2 of 2), b (1 of 1)"
    )


def test_null_directions_are_divided_by_the_fewest_leaves():
    rng = np.random.default_rng(0)
    leaves = {"a": slice(0, 4), "b": slice(4, 10), "c": slice(10, 18)}
    columns = np.zeros((18, 4))
    columns[0:4, 0] = 1, -1, 2, 3
    columns[2, 1], columns[4:10, 1] = 1, rng.normal(size=6)
    columns[10, 2], columns[17, 2] = 1, 1
    columns[:, 3] = rng.normal(size=18)
    null = np.linalg.qr(columns @ rng.normal(size=(4, 4)))[0]  # no column of it is sparse
    found = list(supports(null, null[:, :0], leaves, 1e-6))
    parts = {tuple(name for name, *_ in s.leaves): (s.leaves[0][1], s.dimension) for s in found}
    assert parts == {("c",): (2, 1), ("a",): (4, 1), ("a", "b"): (1, 1), ("a", "b", "c"): (3, 1)}
    spanned = np.hstack([s.columns for s in found])
    assert np.linalg.matrix_rank(spanned) == 4
    np.testing.assert_allclose(null @ (null.T @ spanned), spanned, atol=1e-9)
    named = np.linalg.qr(columns[:, [0, 2]])[0]  # what has a name is left out
    assert [s.dimension for s in supports(null, named, leaves, 1e-6)] == [1, 1]
    assert sum(s.dimension for s in supports(rng.normal(size=(18, 0)), null[:, :0], leaves, 1e-6)) == 0


@pytest.mark.thorough
def test_a_figure_of_an_operator_carries_its_numbers(F, tmp_path, monkeypatch):
    paths = lg.plots.spectrum(F, tmp_path / "f")
    data = json.loads(paths[2].read_text())["data"]
    assert (data["rank"], len(data["eigenvalues"])) == (F.rank(), 30)
    assert sum(row["null"] for row in data["by_leaf"]) == pytest.approx(30 - F.rank())

    def refuse(self):
        raise MemoryError

    monkeypatch.setattr(type(F), "nullspace", refuse)
    large = json.loads(lg.plots.spectrum(F, tmp_path / "g")[2].read_text())["data"]
    assert sum(large["weights"]) == pytest.approx(1)


class Compilations(logging.Handler):
    """Names of the programs that JAX compiles inside the `with` block."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []
        self.logger = logging.getLogger("jax._src.interpreters.pxla")

    def emit(self, record):
        message = record.getMessage()
        if message.startswith("Compiling"):
            self.names.append(message.split()[1])

    def __enter__(self):
        self.logger.addHandler(self)
        self.propagated, self.logger.propagate = self.logger.propagate, False
        jax.config.update("jax_log_compiles", True)
        return self

    def __exit__(self, *_):
        jax.config.update("jax_log_compiles", False)
        self.logger.propagate = self.propagated
        self.logger.removeHandler(self)


def test_the_same_function_and_shapes_are_compiled_once(F):
    later, gradient = [jax.tree.map(lambda a, k=k: a + k, operator().problem) for k in (1, 2)], np.ones(30)
    with Compilations() as again:
        new = lg.fisher(apply, later[0].params, later[0].inputs, family=FAMILY)
    assert again.names == []
    with Compilations() as first:
        new.solve(gradient, damping=1e-3, method="svd")
    assert len(first.names) <= 3, first.names  # with the forms of scales, that an ε may break
    newer = lg.fisher(apply, later[1].params, later[1].inputs, family=FAMILY)
    with Compilations() as second:
        newer.solve(2 * gradient, damping=1e-2, method="svd")
    assert second.names == []
    with Compilations() as other:
        lg.fisher(lambda p, x: apply(p, x), later[1].params, later[1].inputs, family=FAMILY)
    assert other.names  # the counter counts


def test_an_approximation_at_other_parameters_compiles_nothing():
    problem = jax.tree.map(lambda a: a + 1, operator().problem)
    with Compilations() as first:
        operator().approximate("ekfac")
    assert first.names
    with Compilations() as second:
        lg.fisher(apply, problem.params, problem.inputs, family=FAMILY).approximate("ekfac")
    assert second.names == []
