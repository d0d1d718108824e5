"""Scale invariance needs evidence: non-zero weights, finite outputs, and outputs that the weights change at all."""

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.training import scale_invariant_groups

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(5, 3)))


def weights(*shape):
    return jnp.asarray(RNG.normal(size=shape))


PLAIN = {"w": weights(3, 4), "b": jnp.zeros((1, 4)), "v": weights(4, 2), "c": jnp.zeros((1, 2))}


def plain(p):
    return jnp.tanh(X @ p["w"] + p["b"]) @ p["v"] + p["c"]


def normalized(p):
    a = X @ p["w"]
    a = a - a.mean(-1, keepdims=True)
    return (a / jnp.linalg.norm(a, axis=-1, keepdims=True) + p["b"]) @ p["v"] + p["c"]


@pytest.mark.parametrize("seed", range(8))
def test_weights_that_users_draw_from_a_seed_are_no_direction_that_is_probed(seed):
    """Along the weights themselves a scale-invariant function is constant: the search would see no dependence."""
    drawn = lambda *shape: jnp.asarray(np.random.default_rng(seed).normal(size=shape))  # noqa: E731
    assert scale_invariant_groups(normalized, PLAIN | {"w": drawn(3, 4)}) == {"w": ("w",)}
    assert scale_invariant_groups(lambda p: p["w"] / jnp.linalg.norm(p["w"]), {"w": drawn(12)}) == {"w": ("w",)}


def test_biases_of_zeros_are_not_scale_invariant_where_nothing_is_normalized():
    assert scale_invariant_groups(plain, PLAIN) == {}


@pytest.mark.parametrize("zero", [(), ("w",), ("v",), ("w", "v")])
def test_a_normalized_weight_is_found_whatever_else_is_zero_and_when_it_is_zero_itself(zero):
    params = PLAIN | {name: jnp.zeros_like(PLAIN[name]) for name in zero}
    assert scale_invariant_groups(normalized, params) == {"w": ("w",)}


def test_a_gate_of_zero_hides_no_weight_and_makes_none_invariant():
    gated = lambda p: p["gate"] * plain(p)  # noqa: E731
    assert scale_invariant_groups(gated, PLAIN | {"gate": jnp.zeros((1, 1))}) == {}


def test_a_bias_that_scales_with_the_weights_is_found_with_them():
    def shifted(p):
        a = X @ p["w"] + p["b"]
        return a / jnp.linalg.norm(a, axis=-1, keepdims=True)

    params = {"w": PLAIN["w"], "b": PLAIN["b"]}
    assert scale_invariant_groups(shifted, params) == {"b+w": ("b", "w")}


def test_a_leaf_that_changes_no_output_is_not_named():
    def centred(p):
        return normalized(p | {"w": p["w"] + p["shift"]})

    assert scale_invariant_groups(plain, PLAIN | {"unused": weights(3)}) == {}
    assert scale_invariant_groups(centred, PLAIN | {"shift": jnp.ones((3, 1))}) == {"w": ("w",)}


def test_a_leaf_of_little_effect_is_judged_by_that_effect():
    small = lambda p: plain(p) + 1e-9 * p["t"].sum()  # noqa: E731
    assert scale_invariant_groups(small, PLAIN | {"t": weights(3)}) == {}


def test_a_set_that_holds_another_one_is_not_named():
    def three(p):
        a = X @ p["w"] + p["b"]
        return a / jnp.linalg.norm(a, axis=-1, keepdims=True) @ (p["v"] / jnp.linalg.norm(p["v"]))

    params = {"w": PLAIN["w"], "b": weights(1, 4), "v": PLAIN["v"]}
    assert scale_invariant_groups(three, params, together=3) == {"v": ("v",), "b+w": ("b", "w")}


def test_almost_invariant_is_not_invariant():
    damped = lambda p: X @ p["w"] / jnp.sqrt(jnp.sum(p["w"] ** 2) + 0.01)  # noqa: E731
    assert scale_invariant_groups(damped, {"w": PLAIN["w"]}, epsilon=False) == {}
    assert scale_invariant_groups(damped, {"w": PLAIN["w"]}) == {"w": ("w",)}


def test_outputs_that_are_not_finite_are_no_evidence():
    with pytest.raises(
        ValueError, match="not finite at these parameters with random numbers in the place of the zeros"
    ):
        scale_invariant_groups(lambda p: plain(p) / 0.0, PLAIN)
