"""The curse of depth: stacks against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.papers.gallery import sun2025


def centred(x):
    """Layer norm without its division."""
    return x - x.mean(-1, keepdims=True)


def unscaled(x):
    """The same with its pullback."""
    return centred(x), centred


def test_a_linear_variance_is_no_exponential():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sun2025, "signs_alone", lambda depth: 2**depth)
        with pytest.raises(ValueError, match="not linear in depth"):
            sun2025.exponential_proof()


def test_stacks_without_a_norm_grow_exponentially(monkeypatch, problem):
    monkeypatch.setattr(sun2025, "normalized", unscaled)
    monkeypatch.setattr(sun2025, "DEPTH", 64)
    found = np.log(sun2025.variances(problem).mean(0))
    assert found[64] > 1.8 * found[32] > 20


@pytest.mark.parametrize("scaled", [False, True])
def test_derivatives_of_stacks_are_those_of_automatic_differentiation(monkeypatch, problem, scaled):
    shape = nets, tokens, width = 2, 3, 5
    for name, value in (("NETS", nets), ("TOKENS", tokens), ("WIDTH", width), ("DEPTH", 4), ("DIRECTIONS", 1)):
        monkeypatch.setattr(sun2025, name, value)
    draw = np.random.default_rng(problem.seed)
    start = sun2025.standardized(draw.standard_normal(shape))
    matrices = [draw.standard_normal((2, nets, width, width)) / width**0.5 for _ in range(4)]
    v = np.random.default_rng([problem.seed, 1]).standard_normal(shape)
    v = v / np.sqrt(np.mean(v**2, 2, keepdims=True))

    def states(x):
        for layer, (first, second) in enumerate(matrices, 1):
            u = x - x.mean(2, keepdims=True)
            n = u / jnp.sqrt(jnp.mean(u**2, 2, keepdims=True))
            x = x + (layer**-0.5 if scaled else 1.0) * jax.nn.relu(2**0.5 * n @ first) @ second
        return x

    last, moved = jax.jvp(states, (jnp.asarray(start),), (jnp.asarray(v),))
    found = sun2025.stacks(problem, scaled=scaled)
    np.testing.assert_allclose(found.variance[:, -1], jnp.mean(last**2, (1, 2)), rtol=1e-10)
    np.testing.assert_allclose(found.gradient[:, -1], jnp.mean(moved**2, (1, 2)), rtol=1e-10)


def test_the_terms_of_the_bound_with_a_factor():
    terms = sun2025.block_terms(lambda l: 2.0 * l, 5.0, 7.0, lambda l: 3.0 * l)
    assert terms(4) == pytest.approx(5 * 12 / 8 + 7 * 12**2 / 8**2)
