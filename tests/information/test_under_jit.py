"""Natural gradients inside jit, scan and vmap; what is eager only says so."""

import jax
import jax.numpy as jnp
import lngeom as lg
import pytest
from lngeom._core.numerics import agreement

from .zoo import normal

X = normal(2, 30, 3)
PARAMS = {"a": normal(0, 3, 5), "b": normal(1, 5, 4)}
LABELS = jnp.arange(30) % 4


def apply(p, x):
    return jnp.tanh(x @ p["a"]) @ p["b"]


def loss(p):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(apply(p, X)), LABELS[:, None], -1))


def operator(p):
    return lg.fisher(apply, p, X, family=lg.families.Categorical())


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["svd", "cg", None])
def test_solve_traces_and_agrees_with_the_eager_one(method):
    def solution(p):
        return operator(p).solve(jax.grad(loss)(p), damping=1e-3, method=method, tolerance=1e-12)

    eager, traced = solution(PARAMS), jax.jit(solution)(PARAMS)
    for name in ("a", "b"):
        assert agreement(traced.value[name], eager.value[name], tol=1e-8).agrees
    assert traced.rank is None if method == "cg" else int(traced.rank) == eager.rank
    assert bool(traced.converged)
    assert float(traced.residual) < 1e-10
    batch = jax.tree.map(lambda a: jnp.stack([a, a]), PARAMS)
    batched = jax.vmap(lambda p: solution(p).value)(batch)
    assert agreement(batched["a"][1], eager.value["a"], tol=1e-8).agrees


@pytest.mark.parametrize("method", ["svd", "cg"])
def test_natural_gradient_steps_run_in_a_scan(method):
    def step(p, _):
        change = operator(p).solve(jax.grad(loss)(p), damping=jnp.asarray(1e-2), method=method).value
        return jax.tree.map(lambda a, b: a - 0.5 * b, p, change), loss(p)

    _, losses = jax.jit(lambda p: jax.lax.scan(step, p, None, length=8))(PARAMS)
    assert losses[-1] < 0.6 * losses[0]
    assert jnp.all(jnp.diff(losses) < 0)


def test_iterations_that_do_not_converge_are_told_by_the_report():
    gradient = jax.tree.map(jnp.ones_like, PARAMS)  # has a part along null directions
    found = jax.jit(lambda p: operator(p).solve(gradient, method="cg", limit=3))(PARAMS)
    assert not bool(found.converged)
    assert float(found.residual) > 1e-3


def test_samples_and_projections_trace():
    def draw(p):
        F = operator(p)
        return F.sample(jax.random.key(0), 2), F.project_horizontal(jnp.ones(F.in_size())), F.pseudo_logdet()

    for traced, eager in zip(jax.jit(draw)(PARAMS), draw(PARAMS), strict=True):
        assert agreement(traced, eager, tol=1e-8).agrees


@pytest.mark.parametrize("traced", [jax.jit, jax.vmap, lambda one: lambda s: jax.jvp(one, (s,), (s,))[0]])
def test_a_function_may_close_over_a_traced_value(traced):
    """Its arguments have values, its outputs have none: checks are left out, as under jit."""
    mask = jnp.ones(30).at[3].set(0)

    def matrix(scale):
        model = lambda p, x: scale * apply(p, x)  # noqa: E731
        return lg.fisher(model, PARAMS, X.at[3].set(jnp.nan), family=lg.families.Categorical(), mask=mask).as_matrix()

    scale = jnp.full(1, 1.5) if traced is jax.vmap else jnp.asarray(1.5)
    assert agreement(jnp.squeeze(traced(matrix)(scale)), matrix(1.5), tol=1e-12).agrees


@pytest.mark.parametrize("name", ["rank", "nullspace"])
def test_what_needs_values_says_so(name):
    closed = lambda scale: lg.fisher(lambda p, x: scale * apply(p, x), PARAMS, X, family=lg.families.Categorical())  # noqa: E731
    for traced in (
        lambda: jax.jit(lambda p: getattr(operator(p), name)())(PARAMS),
        lambda: jax.vmap(lambda scale: getattr(closed(scale), name)())(jnp.ones(2)),
    ):
        with pytest.raises(ValueError, match=rf"{name}\(\) .* needs concrete arrays: call it outside jit"):
            traced()
    with pytest.raises(ValueError, match="gauge='broken' looks for symmetries in the values"):
        jax.jit(lambda p: operator(p).solve(p, damping=0.1, gauge="broken").value)(PARAMS)
