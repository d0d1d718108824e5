"""Ranks know the precision in which the model computes, and decompositions fit any shape of problem."""

import functools
import warnings

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.numerics import decide_rank
from lngeom.information._problem import unused_leaves
from lngeom.information._spectrum import cancelled_squares

from . import zoo
from .zoo import normal


def _centred(a):
    return a - jnp.mean(a, -1, keepdims=True)


def _norm(a):
    centred = _centred(a)
    return centred / jnp.sqrt(jnp.mean(jnp.square(centred), -1, keepdims=True))  # an ε would be lost in float32


def _network(p, x):
    return jax.nn.relu(_norm(x @ p["a"])) @ p["b"]


def _fisher(dtype, apply=_network, samples=60, **kwargs):
    params = {"a": normal(0, 20, 8), "b": normal(1, 8, 5)}
    params, X = jax.tree.map(lambda a: a.astype(dtype), (params, normal(2, samples, 20)))
    return lg.fisher(apply, params, X, family=lg.families.Categorical(), **kwargs)


def test_the_size_of_what_cancels_is_that_of_the_columns_before():
    """√(Λ/N) diag(g) x/σ, row by row, whose rounding errors remain where Π cancels all of it."""
    model = lg.NormalizedGLM(lg.normalizers.GroupNorm(2, eps=0.0), lg.families.Bernoulli())
    params = model.init(jax.random.key(3), inputs=3, outputs=4, dtype=jnp.float64)
    params = lg.GLMParameters(params.weights, params.bias, jnp.asarray([0.5, -1.0, 2.0, 1.5]))
    X = 4 * normal(5, 6, 3)
    F = lg.fisher(model, params, X)
    W, gain, x, z = (np.asarray(v) for v in (params.weights, params.gain, X, model.natural_parameters(params, X)))
    sigma = np.repeat(np.std((x @ W.T).reshape(6, 2, 2), -1), 2, -1)
    q = 1 / (1 + np.exp(-z))
    columns = (np.sqrt(q * (1 - q)) * gain / sigma)[:, :, None] * x[:, None]
    np.testing.assert_allclose(F.summed(cancelled_squares), np.sum(columns**2) / 6, rtol=1e-12)


@pytest.mark.thorough
def test_the_rank_in_float32_is_that_in_float64():
    wide, narrow = _fisher(jnp.float64).rank(), _fisher(jnp.float32).rank()
    assert wide == narrow
    assert wide.certain
    assert narrow.certain
    assert narrow.interval == (narrow, narrow)


def _attention_in(dtype):
    def apply(p, x):
        scores = (x @ p["a"]).astype(dtype)
        return (jax.nn.softmax(scores, -1).astype(x.dtype) + 0.1 * x[:, :8]) @ p["b"]

    return apply


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_operations_of_less_precision_are_read_off_the_program_and_named(dtype):
    F = _fisher(jnp.float64, _attention_in(dtype))
    found = F.problem.precision()
    assert found.dtype == jnp.float32  # what has 16 bits is computed in 32
    assert "exp" in found.operations
    assert "float32" in found.describe()
    assert _fisher(jnp.float64).problem.precision().operations == ()


def test_low_precision_constants_and_inputs_do_not_count():
    def apply(p, x):
        table = jnp.arange(20, dtype=jnp.float32).astype(x.dtype)
        seen = jnp.tanh(x.astype(jnp.float32)).astype(x.dtype)
        return _network(p, seen * table[None, :])

    assert _fisher(jnp.float64, apply).problem.precision().dtype == jnp.float64


def test_low_precision_inside_a_scan_is_seen():
    def apply(p, x):
        step = lambda h, _: (jnp.tanh(h.astype(jnp.float32)).astype(h.dtype), None)  # noqa: E731
        return jax.lax.scan(step, x @ p["a"], None, length=3)[0] @ p["b"]

    assert _fisher(jnp.float64, apply).problem.precision().operations == ("tanh",)


@pytest.mark.parametrize("put", [lambda h: h.at[:, 0].add(1.0), lambda h: h.at[:, 0].set(1.0)])
def test_low_precision_behind_a_scatter_is_seen(put):
    def apply(p, x):
        return jnp.tanh(put(x @ p["a"]).astype(jnp.float32)).astype(x.dtype) @ p["b"]

    F = _fisher(jnp.float64, apply)
    assert F.problem.precision().operations == ("tanh",)
    assert not unused_leaves(F.problem)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_ranks_never_exceed_what_the_outputs_allow(dtype):
    F = _fisher(jnp.float64, _attention_in(dtype), samples=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rank = F.rank()
    assert rank <= 6 * (5 - 1)
    assert rank.interval[0] <= rank <= rank.interval[1]


@pytest.mark.thorough
def test_masked_positions_do_not_add_to_the_bound():
    case = zoo.transformer_block()
    assert case.fisher().rank() <= int(jnp.sum(case.mask)) * 4


def test_without_a_gap_the_rank_is_an_interval_and_says_so():
    decay = 10.0 ** -jnp.arange(0, 20, 0.5)
    F = lg.fisher(
        lambda p, x: x * p[None, :], jnp.ones(40), decay[None, :] * jnp.eye(40), family=lg.families.Gaussian()
    )
    with pytest.warns(RuntimeWarning, match=r"the rank may be \d+ to \d+ .* rounding errors of float64"):
        rank = F.rank()
    assert not rank.certain
    assert rank.interval[0] <= 24
    assert rank.interval[1] >= 30
    with pytest.warns(RuntimeWarning, match="the rank may be"):
        assert not F.nullspace().certain
    narrow = lg.fisher(
        lambda p, x: x * p[None, :],
        jnp.ones(40, jnp.float32),
        (decay[None, :] * jnp.eye(40)).astype(jnp.float32),
        family=lg.families.Gaussian(),
    )
    with pytest.warns(
        RuntimeWarning, match=r"compute in float64 to see more, by lg\.fisher\(\.\.\., dtype=\"float64\"\)"
    ):
        assert narrow.rank().interval[1] < rank.interval[1]


def test_values_beyond_the_bound_measure_the_noise():
    s = np.concatenate([np.ones(5), np.full(3, 1e-10)])
    assert decide_rank(s, 8, 8).rank == 8
    assert decide_rank(s, 8, 8, bound=5)[:1] == (5,)


def test_what_rounding_does_not_explain_is_not_dropped_with_certainty():
    eps = float(np.finfo(np.float32).eps)
    for dropped, certain in ((20 * eps, False), (5 * eps, True)):
        decision = decide_rank(np.array([1, 0.5, dropped, 3 * eps, 2 * eps], np.float32), 10, 10)
        assert (decision.rank, decision.certain) == (2, certain)


def test_small_values_beyond_a_gap_that_is_not_wide_are_uncertain():
    for faint, certain in ((0.02, False), (0.005, True)):
        decision = decide_rank(np.array([1.3, 0.6, 0.36, faint, 0.0012, 0.0008]), 18, 18, eps=2**-7)
        assert (decision.rank, decision.certain) == (3, certain)


def test_small_values_of_a_metric_without_an_exact_root_may_be_signal():
    scales = jnp.diag(jnp.array([1.0, 0.5, 1e-9, 0.8e-9]))
    F = lg.fisher(lambda p, x: x * p, jnp.ones((1, 4)), scales, family=Pairs())
    with pytest.warns(RuntimeWarning, match="define metric_sqrt_product of Pairs, known to √eps only"):
        assert F.rank().interval[1] == 4


def test_a_traced_decision_is_the_concrete_one():
    for s in (np.array([1.0, 1e-3, 1e-9, 1e-16]), np.array([1, 3e-15, 1e-16]), np.zeros(3), np.logspace(0, -20, 30)):
        traced = jax.jit(lambda s: tuple(decide_rank(s, 10, 10)))(s)
        assert tuple(map(float, traced)) == pytest.approx(tuple(map(float, decide_rank(s, 10, 10))))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the rank may be:RuntimeWarning")
def test_sixteen_bits_are_promoted_for_decompositions():
    F = _fisher(jnp.bfloat16)
    gradient = jax.tree.map(jnp.ones_like, F.problem.params)
    assert F.singular_values().dtype == F.decompose().vectors.dtype == jnp.float32
    assert 0 < F.rank() < F.in_size()
    assert F.nullspace().basis.shape == (F.in_size(), F.in_size() - F.rank())
    exact = _fisher(jnp.float32).eigenvalues(2)
    assert jnp.max(jnp.abs(F.eigenvalues(2) / exact - 1)) < 0.1
    assert jnp.all(jnp.isfinite(F.spectral_density(probes=1, steps=5).nodes))
    for method in ("svd", "cg"):
        value = F.solve(gradient, damping=0.1, method=method).value
        assert jax.tree.map(lambda a: a.dtype, value) == jax.tree.map(lambda a: a.dtype, gradient)
    assert F.sample(jax.random.key(0), 2).shape == (2, F.in_size())


def _wide(memory=None):
    params = {"a": normal(0, 50, 60), "b": 0.1 * normal(1, 60, 3)}
    apply = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]  # noqa: E731
    return lg.fisher(apply, params, normal(2, 4, 50), family=lg.families.Gaussian(), memory=memory)


@pytest.mark.thorough
def test_a_factor_of_few_rows_needs_nothing_of_the_size_of_the_matrix():
    F = _wide(memory=2**24)  # the matrix alone takes 2⁶·10⁶ bytes
    assert F.plan.dense > F.plan.budget
    assert F.rank() == 12
    g = F @ jnp.cos(jnp.arange(F.in_size()))
    assert F.solve(g, method="svd").residual < 1e-10
    assert jnp.max(jnp.abs(F @ F.solve(g, method="svd").value - g)) < 1e-10
    assert F.sample(jax.random.key(0)).shape == (1, F.in_size())
    v = jnp.sin(jnp.arange(F.in_size()))
    assert jnp.max(jnp.abs(F @ (v - F.project_horizontal(v)))) < 1e-12
    with pytest.raises(MemoryError, match=r"a basis of the null space, 3,180 × 3,168, .* use project_horizontal"):
        F.nullspace()


def test_the_null_space_beside_few_rows_is_complete():
    params = {"a": normal(0, 5, 6), "b": normal(1, 6, 3)}
    F = lg.fisher(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], params, normal(2, 4, 5), family=lg.families.Gaussian())
    null = F.nullspace()
    assert null.dimension == 48 - 12
    assert null.residual < 1e-13
    assert jnp.max(jnp.abs(null.basis.T @ null.basis - jnp.eye(36))) < 1e-13


DECOMPOSITIONS = {"svd", "eigh", "qr", "geqrf", "householder_product", "cholesky", "lu", "schur", "tridiagonal"}


def batched_decompositions(program) -> set[str]:
    """Names of decompositions that are called on a batch of matrices, anywhere in a program."""
    found = set()
    for equation in program.eqns:
        if equation.primitive.name in DECOMPOSITIONS and equation.invars[0].aval.ndim > 2:
            found.add(equation.primitive.name)
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            value = getattr(value, "jaxpr", value)
            found |= batched_decompositions(value) if hasattr(value, "eqns") else set()
    return found


def test_the_search_for_batched_decompositions_finds_one():
    batch = jax.jit(lambda a: jnp.linalg.svd(a, compute_uv=False))
    assert batched_decompositions(jax.make_jaxpr(batch)(jnp.ones((2, 3, 3))).jaxpr) == {"svd"}


METHODS = {
    "as_matrix": lambda F: F.as_matrix(),
    "diagonal": lambda F: F.diagonal(),
    "factor": lambda F: F.factor(),
    "singular_values": lambda F: F.singular_values(),
    "effective_rank": lambda F: F.effective_rank(),
    "pseudo_logdet": lambda F: F.pseudo_logdet(),
    "eigenvalues": lambda F: F.eigenvalues(3),
    "spectral_density": lambda F: F.spectral_density(probes=2, steps=4).nodes,
    "solve by svd": lambda F: F.solve(jnp.ones(F.in_size()), method="svd").value,
    "solve by cg": lambda F: F.solve(jnp.ones(F.in_size()), damping=0.1, method="cg").value,
    "sample": lambda F: F.sample(jax.random.key(0), 2),
    "project_horizontal": lambda F: F.project_horizontal(jnp.ones(F.in_size())),
    "mm": lambda F: F.mm(jnp.ones((F.in_size(), 3))),
}


class Pairs(lg.families.AbstractFamily):
    dispersion: float = 1.0
    joint = True

    def log_partition(self, z):
        return jnp.sum(jnp.square(z), -1) / 2 + (z[..., 0] * z[..., 1] + z[..., 2] * z[..., 3]) / 3

    def log_base_measure(self, y):
        return jnp.zeros(y.shape[:-1])

    def sample(self, key, z):
        return z


class Pair(lg.families.AbstractFamily):
    dispersion: float = 1.0
    joint = True

    def log_partition(self, z):
        return jnp.sum(jnp.square(z), -1) / 2 + z[..., 0] * z[..., 1] / 3

    def log_base_measure(self, y):
        return jnp.zeros(y.shape[:-1])

    def sample(self, key, z):
        return z


@pytest.mark.parametrize("name", METHODS)
def test_no_method_decomposes_a_batch_of_matrices(name):
    case = zoo.plain_network()

    def run(params, family):
        return METHODS[name](lg.fisher(case.apply, params, case.X, family=family))

    for family in (case.family, Pair()):
        one = functools.partial(run, family=family)
        batch = jax.tree.map(lambda a: jnp.stack([a, a]), case.params)
        assert batched_decompositions(jax.make_jaxpr(one)(case.params).jaxpr) == set()
        assert batched_decompositions(jax.make_jaxpr(jax.vmap(one))(batch).jaxpr) == set()


@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_the_rank_does_not_depend_on_the_scale_of_weights_where_all_their_columns_cancel(size):
    """In layer norm of two units n is a pair of signs: columns of weights are rounding, of the size of 1/σ."""
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=2)
    small = lg.GLMParameters(size * params.weights, params.bias, params.gain)
    F = lg.fisher(model, small, normal(3, 40, 3), check=False)
    assert _warned(F.decompose)[0].rank == 4  # with 1e-9 a value that is not zero is near rounding, and said to be


def _hidden_layer(p, x):
    p = {name: leaf if leaf.ndim == 2 else leaf[None] for name, leaf in p.items()}
    h = _centred(x @ p["a"] + p["b"])
    h = h / jnp.sqrt(jnp.mean(jnp.square(h), -1, keepdims=True) + 1e-5) * p["gain"] + p["shift"]
    return jax.nn.gelu(h, approximate=False) @ p["c"] + p["d"]


def _hidden_params(seed):
    draw = np.random.default_rng(seed)
    shapes = {"a": (4, 8), "b": (8,), "gain": (8,), "shift": (8,), "c": (8, 3), "d": (3,)}
    params = {name: 0.35 * draw.normal(size=shape) for name, shape in shapes.items()}
    return {**params, "gain": 1 + params["gain"]}


def _warned(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        value = call()
    return value, [str(warning.message) for warning in found]


def test_rank_nullspace_and_decomposition_give_one_number_and_one_warning():
    """In float32, with a singular value that an ε keeps up, of the size of one rounding error of the largest."""
    seen = set()
    for seed in range(8):
        params = {name: jnp.asarray(value, jnp.float32) for name, value in _hidden_params(seed).items()}
        F = lg.fisher(_hidden_layer, params, normal(2, 40, 4).astype(jnp.float32), family=lg.families.Categorical())
        rank, said = _warned(F.rank)
        nullspace, said_there = _warned(F.nullspace)
        decomposition, said_here = _warned(F.decompose)
        assert F.in_size() - nullspace.dimension == decomposition.rank == rank
        assert nullspace.certain == decomposition.decision.certain == rank.certain
        assert said == said_there == said_here
        assert bool(said) is not rank.certain
        seen.add(rank.certain)
    assert seen == {True, False}  # the seeds have both cases
