"""Nothing is lost or hidden: leaves, interacting samples, NaN, saturation, memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.numerics import agreement

from tests.cases import drawn
from tests.information import zoo


@pytest.mark.thorough
def test_every_leaf_is_accounted_for():
    case = zoo.plain_network()
    params = {
        "net": case.params,
        "count": jnp.asarray(3),
        "key": jax.random.key(0),
        "name": "relu",
        "slope": 0.1,
    }
    F = lg.fisher(lambda p, x: case.apply(p["net"], x), params, case.X, family=case.family)
    assert F.leaves == ("net.0", "net.1", "net.2", "net.3")
    assert F.excluded == ("count", "key", "slope")  # every number that is no parameter
    assert agreement(F.as_matrix(), zoo.dense_reference(case), 1e-13).agrees
    assert F.mv(F.problem.params)["count"] is None


@pytest.mark.thorough
def test_wrt_selects_subtrees_leaves_and_by_predicate():
    case = zoo.layer_norm_network()
    M = zoo.dense_reference(case)
    F = case.fisher(wrt=["last", "norm.gain"])
    assert F.leaves == ("last.bias", "last.kernel", "norm.gain")
    kept = np.r_[24:45, 51:57]
    assert agreement(F.as_matrix(), M[np.ix_(kept, kept)], 1e-13).agrees
    assert set(F.excluded) == {"first.kernel", "norm.bias"}
    assert case.fisher(wrt=lambda path, leaf: leaf.ndim == 2).leaves == ("first.kernel", "last.kernel")
    with pytest.raises(ValueError, match="'middle', which is no leaf"):
        case.fisher(wrt="middle")


def test_wrt_refuses_leaves_that_cannot_be_differentiated():
    params = {"w": jnp.ones(3), "count": jnp.asarray(1), "z": jnp.ones(2, complex)}
    apply = lambda p, x: x @ p["w"]  # noqa: E731
    X = jnp.ones((4, 3))
    with pytest.raises(ValueError, match="only real floating point leaves"):
        lg.fisher(apply, params, X, family=lg.families.Gaussian(), wrt="count")
    with pytest.raises(ValueError, match="complex parameters"):
        lg.fisher(apply, params, X, family=lg.families.Gaussian())
    assert lg.fisher(apply, params, X, family=lg.families.Gaussian(), wrt="w").excluded == ("count", "z")


@pytest.mark.thorough
def test_equinox_and_flax_models_in_one_line():
    import flax.linen as nn

    mlp = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0), dtype=jnp.float64)
    X = drawn(1, 20, 3)
    F = lg.fisher(lambda m, x: jax.vmap(m)(x), mlp, X, family=lg.families.Gaussian())
    assert F.in_size() == 3 * 4 + 4 + 4 * 2 + 2
    assert F.leaves[0] == "layers.0.weight"
    model = nn.Dense(2, param_dtype=jnp.float64)
    params = model.init(jax.random.key(0), X)
    G = lg.fisher(model.apply, params, X, family=lg.families.Gaussian())
    extended = jnp.concatenate([jnp.ones((20, 1)), X], 1)
    assert agreement(jnp.trace(G.as_matrix()), 2 * jnp.sum(jnp.square(extended)) / 20, 1e-13).agrees


@pytest.mark.parametrize(
    ("apply", "params", "message"),
    [
        (lambda p, x: x * p[None, :], jnp.asarray([jnp.nan]), "parameter params must be finite"),
        (lambda p, x: x * p[None, :] / 0, jnp.asarray([1.0]), "natural parameters z must be finite"),
        (lambda p, x: x * jnp.sqrt(p)[None, :], jnp.asarray([0.0]), "Jacobian ∂z/∂params must be finite"),
        (lambda p, x: 800 + x * p[None, :], jnp.asarray([1.0]), "metric Λ"),
        (lambda p, x: jnp.zeros((3, 1)), jnp.asarray([1.0]), r"must return natural parameters"),
    ],
)
def test_values_that_are_not_finite_raise(apply, params, message):
    with pytest.raises(ValueError, match=message):
        lg.fisher(apply, params, jnp.ones((4, 1)), family=lg.families.Poisson())


def same_summed_inputs(spread, **options):
    """Arguments of `lg.fisher`: three units whose summed inputs differ by `spread` machine epsilons, four samples."""
    layer = lg.NormalizedGLM(lg.normalizers.LayerNorm(**options), lg.families.Bernoulli())
    weights = 1 + spread * jnp.finfo(float).eps * jnp.arange(3.0)[:, None]
    return layer, lg.GLMParameters(weights, jnp.zeros(3), jnp.ones(3)), jnp.ones((4, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("spread", [0, 1])
@pytest.mark.parametrize("method", ["exact", "printed"])
def test_a_variance_of_zero_is_named_and_what_to_do(spread, method):
    layer, params, X = same_summed_inputs(spread)
    z = jax.jit(layer.natural_parameters)(params, X)
    assert bool(jnp.all(jnp.isfinite(z))) == bool(spread)  # a variance that is rounding alone makes no NaN
    for options in ({}, {"chunk": 2}, {"wrt": "weights"}):
        with pytest.raises(ValueError, match=r"LayerNorm is undefined: zero variance .* for 12 of 12 .* \(0, 0\).*eps"):
            lg.fisher(layer, params, X, method=method, **options)
    with pytest.raises(ValueError, match=r"LayerNorm is undefined: zero variance for 9 normalized inputs .*eps > 0"):
        lg.fisher(layer, params, X, mask=jnp.asarray([True, True, True, False]))
    with pytest.raises(ValueError, match=r"BatchNorm is undefined: zero variance .* for 3 of 3 "):
        lg.fisher(lg.NormalizedGLM(lg.normalizers.BatchNorm(), layer.family), params, X[:1])
    lg.fisher(*same_summed_inputs(spread, eps=1e-3))


def test_a_spread_beyond_rounding_is_accepted():
    lg.fisher(*same_summed_inputs(100))


def test_a_variance_of_zero_at_masked_samples_does_not_matter():
    layer = same_summed_inputs(0)[0]
    params = layer.init(jax.random.key(0), inputs=2, outputs=3)
    X = drawn(1, 4, 2)
    F = lg.fisher(layer, params, X.at[3].set(0.0), mask=jnp.asarray([True, True, True, False]))
    assert agreement(F.as_matrix(), lg.fisher(layer, params, X[:3]).as_matrix() * 3 / 4, 1e-13).agrees


def test_outputs_outside_the_family_raise():
    with pytest.raises(ValueError, match="needs natural parameters z < 0"):
        lg.fisher(lambda p, x: x * p[None, :], jnp.asarray([1.0]), jnp.ones((4, 1)), family=lg.families.Gamma())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("logit", [1e3, -1e3, 30.0])
def test_saturated_softmax_stays_finite_and_right(dtype, logit):
    params = jnp.asarray([logit, 0.0, 0.5], dtype)
    F = lg.fisher(lambda p, x: x * p[None, :], params, jnp.ones((2, 1), dtype), family=lg.families.Categorical())
    z = np.asarray(params, np.longdouble)
    q = np.exp(z - z.max()) / np.sum(np.exp(z - z.max()))
    pair = -np.outer(q, q)
    np.fill_diagonal(pair, [q[i] * np.sum(np.delete(q, i)) for i in range(3)])
    M = np.asarray(F.as_matrix(), np.longdouble)
    assert np.all(np.isfinite(M))
    tiny = float(jnp.finfo(dtype).tiny)
    tol = 100 * float(jnp.finfo(dtype).eps) * float(np.max(np.abs(pair))) + tiny
    assert float(np.max(np.abs(M - pair))) <= tol
    assert bool(jnp.all(jnp.isfinite(F.singular_values())))


def test_the_plan_predicts_what_is_allocated():
    F = zoo.layer_norm_network().fisher()
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(F._stored.pullback))
    assert F.plan.derivative == stored
    assert F.plan.dense == F.as_matrix().nbytes
    assert F.plan.factor == F.factor().nbytes
    assert f"P = {F.in_size()}" in F.plan.describe()


@pytest.mark.thorough
def test_a_matrix_that_does_not_fit_is_refused_with_its_size_and_the_alternative():
    F = zoo.layer_norm_network().fisher(memory=40_000)
    with pytest.raises(MemoryError, match=r"57 × 57 matrix .* would need 76.1 KiB.*use products"):
        F.as_matrix()
    with pytest.raises(MemoryError, match="use singular_values"):
        zoo.layer_norm_network().fisher(memory=20_000).factor()
    assert F.plan.chunk < 40
    assert agreement(F.diagonal(), jnp.diagonal(zoo.dense_reference(zoo.layer_norm_network())), 1e-13).agrees


@pytest.mark.thorough
def test_masked_positions_may_hold_nan():
    case = zoo.transformer_block()
    embed = lambda p, x: jnp.tanh(x @ p["query"]) @ p["logits"]  # noqa: E731
    X = case.params["embedding"][case.X]
    case = case._replace(apply=embed, X=X, params={k: case.params[k] for k in ("query", "logits")})
    hidden = case._replace(X=jnp.where(case.mask[..., None], X, jnp.nan))
    F, G = case.fisher(), hidden.fisher()
    v = jnp.cos(jnp.arange(F.in_size(), dtype=float))
    assert agreement(G.as_matrix(), zoo.dense_reference(case), 1e-13).agrees
    assert agreement(G @ v, F @ v, 1e-13).agrees
    y = jnp.where(case.mask[..., None], jnp.eye(5)[zoo.transformer_block().X], jnp.nan)
    given, masked = (c.fisher(method="empirical", y=jnp.nan_to_num(y) if c is case else y) for c in (case, hidden))
    assert agreement(masked.as_matrix(), given.as_matrix(), 1e-15).agrees
    with pytest.raises(ValueError, match="natural parameters z must be finite"):
        hidden._replace(mask=None).fisher()
    mixing = hidden._replace(apply=lambda p, x: embed(p, x) + jnp.sum(x, 1, keepdims=True)[..., :5])
    with pytest.raises(ValueError, match="the mask must reach the model too"):
        mixing.fisher()


def _scaled(x):
    return x / jnp.sqrt(jnp.sum(jnp.square(x), -1, keepdims=True))


def tokens(p, x):
    """Divides 0 by 0 where a position is padding of zeros."""
    return jnp.tanh(_scaled(x @ p["a"])) @ p["b"]


def reverse_only(p, x):
    return zoo.reverse_only(_scaled(x @ p["a"])) @ p["b"]


def _scanned(p, x):
    return jnp.swapaxes(jax.lax.scan(lambda c, row: (c, tokens(p, row)), 0, jnp.swapaxes(x, 0, 1))[1], 0, 1)


def padded(apply=tokens):
    mask = jnp.arange(4)[None, :] < jnp.asarray([4, 3, 2, 0, 1])[:, None]
    X = drawn(0, 5, 4, 3)
    params = {"a": drawn(1, 3, 4), "b": drawn(2, 4, 3)}
    full = zoo.Case("padded tokens", tokens, params, X, lg.families.Categorical(), mask=mask)
    return full._replace(apply=apply, X=jnp.where(mask[..., None], X, 0)), zoo.dense_reference(full)


def guarded(p, x):
    """The same, with a harmless argument where a position is padding."""
    return tokens(p, jnp.where(jnp.any(x != 0, -1, keepdims=True), x, 1.0))


@pytest.mark.thorough
@pytest.mark.parametrize("apply", [guarded, jax.checkpoint(guarded)])
@pytest.mark.parametrize("chunk", [None, 2])
def test_masked_positions_at_which_the_model_is_finite_do_not_matter(apply, chunk):
    case, M = padded(apply)
    v = jnp.cos(jnp.arange(len(M), dtype=float))
    F = case.fisher(chunk=chunk)
    assert agreement(F.as_matrix(), M, 1e-13).agrees
    assert agreement(F @ v, M @ v, 1e-13).agrees


@pytest.mark.thorough
@pytest.mark.parametrize("apply", [tokens, jax.checkpoint(tokens), _scanned, reverse_only])
def test_a_model_that_is_not_finite_at_masked_positions_is_refused_with_the_remedy(apply):
    case, _ = padded(apply)
    assert not bool(jnp.all(jnp.isfinite(apply(case.params, case.X))))
    with pytest.raises(ValueError, match=r"finite at masked positions too, .* jnp\.where"):
        case.fisher()
    with pytest.raises(ValueError, match="natural parameters z must be finite"):
        case._replace(mask=None).fisher()


def test_samples_that_do_not_count_may_hold_anything():
    case, _ = padded()
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    X, counts = case.X[:, 0], jnp.asarray([True, True, True, False, True])
    expected = lg.fisher(model, params, X[counts]).as_matrix() * 4 / 5
    for held in (0.0, jnp.nan):
        F = lg.fisher(model, params, jnp.where(counts[:, None], X, held), mask=counts)
        assert agreement(F.as_matrix(), expected, 1e-13).agrees


def test_nan_that_reaches_positions_that_count_still_raises():
    case, _ = padded()
    leaking = lambda p, x: tokens(p, x) + jnp.mean(tokens(p, x), 1, keepdims=True)  # noqa: E731
    with pytest.raises(ValueError, match="natural parameters z must be finite"):
        case._replace(apply=leaking).fisher()
    steep = lambda p, x: guarded(p, x) + jnp.sqrt(0 * p["b"][0])[None, None]  # noqa: E731
    with pytest.raises(ValueError, match="Jacobian ∂z/∂b must be finite; 3 entries"):
        case._replace(apply=steep).fisher()


def test_masked_samples_may_lie_outside_the_family():
    model = lg.NormalizedGLM(lg.normalizers.Identity(), lg.families.Gamma())
    params = model.init(jax.random.key(0), inputs=2, outputs=3)
    X = 0.1 * drawn(1, 9, 2)
    mask = jnp.arange(9) < 7
    F = lg.fisher(model, params, jnp.where(mask[:, None], X, 1e6), mask=mask)
    expected = lg.fisher(model, params, X[:7]).as_matrix() * 7 / 9
    assert agreement(F.as_matrix(), expected, 1e-13).agrees


def test_operators_and_null_spaces_print_in_a_line():
    F = zoo.layer_norm_network().fisher(chunk=7)
    assert repr(F) == "FisherOperator(57 × 57 float64, exact, Categorical, 40 samples, chunks of 7 samples)"
    assert repr(F.nullspace()).startswith("MeasuredNullspace(dimension ")
    assert len(repr(F.nullspace())) < 250
