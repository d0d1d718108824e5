"""Data that come a batch at a time, and sums of Fisher matrices, give what all data at once give."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.numerics import agreement
from lngeom.information import _matrix

from tests.cases import drawn

FAMILY = lg.families.Categorical()
ROWS = 23  # in batches of 6 the last has 5; of 11, one


def apply(params, x):
    return jnp.tanh(x @ params["kernel"] + params["bias"][None]) @ params["head"]


@pytest.fixture(scope="module")
def X():
    X = np.array(drawn(0, ROWS, 4))
    X[:, 3] = X[:, 2]  # a null direction by unit
    return X


@pytest.fixture(scope="module")
def params():
    return {"kernel": drawn(1, 4, 5), "bias": drawn(2, 5), "head": drawn(3, 5, 3)}


@pytest.fixture(scope="module")
def whole(X, params):
    return lg.fisher(apply, params, X, family=FAMILY)


def loaded(params, source, **options):
    return lg.fisher(apply, params, source, family=FAMILY, **options)


@pytest.mark.parametrize("size", [6, 11, 1, 100])
def test_a_loader_has_the_matrix_of_all_data(X, params, whole, size):
    F = loaded(params, lg.Batches.of_rows(X, size))
    v = drawn(4, F.in_size())
    assert agreement(F.as_matrix(), whole.as_matrix(), 1e-13).agrees
    assert agreement(F @ v, whole @ v, 1e-13).agrees
    assert (F.rank(), F.samples) == (whole.rank(), ROWS)
    assert F.rank() < F.in_size()


def test_every_result_is_that_of_all_data(X, params, whole):
    F = loaded(params, lg.Batches.of_rows(X, 6))
    v = drawn(4, F.in_size())
    same = {
        "diagonal": lambda F: F.diagonal(),
        "trace": lambda F: F.trace(),
        "block": lambda F: F.block("kernel", "head"),
        "columns": lambda F: F.mm(jnp.stack([v, 2 * v], 1)),
        "tangent": lambda F: F.problem.ravel(F.mv(F.problem.unravel(v))),
        "form": lambda F: F.quadratic_form(v),
        "gram": lambda F: F.factor().T @ F.factor(),
        "singular values": lambda F: F.singular_values()[: F.rank()],
        "solution": lambda F: F.solve(v, 0.1).value,
        "eigenvalues": lambda F: F.eigenvalues(2),
        "density": lambda F: F.spectral_density(probes=2, steps=4).nodes,
        "horizontal": lambda F: F.project_horizontal(v),
        "estimate": lambda F: jnp.asarray(F.estimate_diagonal(jax.random.key(0)).trace),
        "scipy": lambda F: jnp.asarray(F.as_scipy().matvec(np.asarray(v))),
    }
    for name, of in same.items():
        assert agreement(of(F), of(whole), 1e-10).agrees, name
    iterated = F.solve(v, 0.1, method="cg").value
    assert agreement(iterated, whole.solve(v, 0.1).value, 1e-7).agrees
    assert agreement(F.eigenpairs(2).values, whole.eigenvalues(2), 1e-10).agrees
    assert str(F.nullspace().describe()) == str(whole.nullspace().describe())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["kfac", "ekfac", "blocks", "diagonal"])
def test_approximations_are_those_of_all_data(X, params, whole, kind):
    F = loaded(params, lg.Batches.of_rows(X, 11))
    assert agreement(F.approximate(kind).as_matrix(), whole.approximate(kind).as_matrix(), 1e-12).agrees
    drawn_parts = loaded(params, lg.Batches([X])).approximate("kfac", key=jax.random.key(0), samples=3)
    at_once = whole.approximate("kfac", key=jax.random.key(0), samples=3)
    assert agreement(drawn_parts.as_matrix(), at_once.as_matrix(), 1e-12).agrees


def test_masks_and_responses_come_with_the_batches(X, params):
    mask, y = np.arange(ROWS) % 3 != 0, np.arange(ROWS) % 3
    F = loaded(params, lg.Batches.of_rows(X, 6, mask=mask))
    assert agreement(F.as_matrix(), loaded(params, X, mask=mask).as_matrix(), 1e-13).agrees
    assert F.rank() == loaded(params, X, mask=mask).rank()
    F = loaded(params, lg.Batches.of_rows(X, 6, y=y), method="empirical")
    assert agreement(F.as_matrix(), loaded(params, X, y=y, method="empirical").as_matrix(), 1e-13).agrees


@pytest.mark.thorough
def test_a_posterior_of_a_loader_is_that_of_all_data(X, params):
    y = np.arange(ROWS) % 3
    for structure in ("exact", "kfac"):
        found = lg.laplace(apply, params, lg.Batches.of_rows(X, 6, y=y), family=FAMILY, structure=structure)
        expected = lg.laplace(apply, params, X, y, family=FAMILY, structure=structure)
        assert agreement(found.covariance(X[:2]), expected.covariance(X[:2]), 1e-10).agrees
        assert agreement(jnp.asarray(found.log_evidence), jnp.asarray(expected.log_evidence), 1e-12).agrees


def test_passes_are_as_few_as_said(X, params):
    F = loaded(params, lg.Batches.of_rows(X, 6))
    for passes, result in enumerate([F.diagonal, F.as_matrix, F.trace, F.rank], 1):
        result()
        assert F.parts.passes == passes


def test_the_theory_of_one_batch_says_nothing_of_all(X):
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=4, outputs=5)
    F = lg.fisher(model, params, lg.Batches.of_rows(np.array(drawn(5, 12, 4)), 2))  # of two samples most is null
    v = drawn(4, F.in_size())
    expected = lg.fisher(model, params, np.array(drawn(5, 12, 4))).solve(v, 0.1).value
    assert agreement(F.solve(v, 0.1, method="cg").value, expected, 1e-7).agrees


class Loader:
    """What a torch DataLoader of a TensorDataset is: lists of two tensors, again and again."""

    def __init__(self, X, size):
        self.X, self.size = X, size

    def __len__(self):
        return -(-len(self.X) // self.size)

    def __iter__(self):
        return ([self.X[k : k + self.size], np.zeros(1)] for k in range(0, len(self.X), self.size))


def test_loaders_of_other_libraries(X, params, whole):
    M = whole.as_matrix()
    for source in (
        lg.Batches(Loader(X, 6), inputs=0),
        lg.Batches(Loader(X, 6), inputs=lambda batch: batch[0]),
        lg.Batches([{"x": X[:9]}, {"x": X[9:]}], inputs="x"),
        lambda: iter([X[:9], X[9:]]),
        lg.Batches([X[9:], X[:9]]),
    ):
        assert agreement(loaded(params, source).as_matrix(), M, 1e-13).agrees


def other_numbers(X):
    rng = np.random.default_rng(0)
    return lambda: iter([X[:9] + rng.normal(size=(9, 4)), X[9:]])


def fewer_later(X):
    counts = iter([2, 2, 1, 1])
    return lambda: iter([X[:9], X[9:]][: next(counts)])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda X: iter([X]), "can be read once"),
        (lambda X: Loader(X, 6), "a list of 2 parts.*lg.Batches"),
        (lambda X: [X[:9], X[9:18]], "lg.Batches"),
        (lambda X: lg.Batches([]), "no batch"),
        (lambda X: lg.Batches([X[:9], X[9:, :3]]), r"batch 2 .* expected float64 \[4\]; got float64 \[3\]"),
        (lambda X: lg.Batches([X[:9], X[9:].astype(np.float32)]), "batch 2 .*float32"),
        (lambda X: lg.Batches([X[:9], X[:0]]), "batch 2"),
        (lambda X: lg.Batches([X[:9], X[9:] * np.nan]), "batch 2 .*finite"),
        (lambda X: lg.Batches([(X,)], inputs=1), "has no part 1"),
        (other_numbers, "other numbers in another pass"),
        (fewer_later, "23 samples in its first pass, and 9 in another"),
    ],
)
def test_what_is_no_data_set_is_refused(X, params, source, message):
    def twice():
        F = loaded(params, source(X))
        return F.trace(), F.trace()

    with pytest.raises(ValueError, match=message):
        twice()


def test_what_a_loader_cannot_do_is_refused(X, params):
    batches = lg.Batches.of_rows(X, 6)
    for options, message in (
        ({"mask": np.ones(ROWS)}, "mask= cannot be given beside a loader"),
        ({"method": "monte_carlo", "key": jax.random.key(0), "samples": 2}, "got 'monte_carlo'"),
        ({"method": "empirical"}, "needs observed responses"),
        ({"batch_coupled": True}, "in memory together"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded(params, batches, **options)
    F = loaded(params, batches)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda v: F @ v)(jnp.ones(F.in_size()))
    with pytest.raises(ValueError, match="use 'svd'"):
        F.sample(jax.random.key(0), method="cg")


def test_a_sum_of_operators_is_an_operator(X, params, whole):
    parts = [loaded(params, X[:9]), loaded(params, X[9:])]
    mean, v = lg.information.average(parts), drawn(4, whole.in_size())
    assert agreement(mean.as_matrix(), whole.as_matrix(), 1e-13).agrees
    assert mean.rank() == whole.rank()
    assert agreement(mean.solve(v, 0.1).value, whole.solve(v, 0.1).value, 1e-10).agrees
    assert agreement(
        jax.jit(lambda F, v: F.solve(v, 0.1, method="cg").value)(mean, v), mean.solve(v, 0.1).value, 1e-6
    ).agrees
    total = parts[0] + parts[1] + whole
    assert agreement(total.as_matrix(), sum(F.as_matrix() for F in (*parts, whole)), 1e-13).agrees
    weighted = lg.information.weighted_sum(parts, [0.0, 2.0])
    assert agreement(weighted.as_matrix(), 2 * parts[1].as_matrix(), 1e-13).agrees
    other = lg.fisher(lambda p, x: x @ p, drawn(6, 4, 3), X, family=FAMILY)
    for make, message in (
        (lambda: whole + other, "different parameters"),
        (lambda: lg.information.weighted_sum([]), "at least one"),
        (lambda: lg.information.weighted_sum(parts, [1.0, -1.0]), "at least 0"),
        (lambda: lg.information.weighted_sum(parts, [1.0]), "one weight for each of 2"),
        (lambda: lg.information.average(parts, [0.0, 0.0]), "not all be 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_rounding_of_one_closed_form_counts_in_a_sum(X):
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    glm = lg.fisher(model, model.init(jax.random.key(0), inputs=4, outputs=5), X)
    plain = lg.fisher(lambda p, x: x @ p.weights.T, glm.problem.params, X, family=lg.families.Bernoulli())
    both = plain + glm
    assert not plain.has_closed_form
    assert both.has_closed_form
    assert both.rank() == np.linalg.matrix_rank(both.as_matrix())


def test_routes_are_compared_in_every_pass(X, params, monkeypatch):
    F = loaded(params, lg.Batches.of_rows(X, 6))
    F.trace()
    right = _matrix.dense
    monkeypatch.setattr(_matrix, "dense", lambda *a, **k: 2 * right(*a, **k))
    with pytest.raises(ValueError, match="are not of one matrix"):
        F.as_matrix()


def test_masked_numbers_that_are_not_finite_do_not_hide_other_numbers(X, params):
    mask = np.arange(ROWS) % 4 != 1
    hidden = np.where(mask[:, None], X, np.nan)
    passes = iter([hidden, hidden, 2 * hidden, 2 * hidden])
    F = loaded(params, lg.Batches(lambda: iter([(next(passes), mask)]), inputs=0, mask=1))
    F.trace()
    with pytest.raises(ValueError, match="other numbers in another pass"):
        F.trace()
