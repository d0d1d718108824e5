"""The decay mask is the one that an expert would write by hand, and refuses what is no evidence."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lngeom.information._epsilon import denominators, without_epsilon
from lngeom.training import decay_mask, scale_invariant_groups

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(6, 4)))
IMAGES = jnp.asarray(RNG.normal(size=(5, 6, 6, 2)))
TOKENS = jnp.asarray(RNG.integers(0, 7, size=(3, 5)))


@pytest.fixture(autouse=True)
def _networks_promote():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def weights(*shape):
    return jax.device_put(RNG.normal(size=shape) / np.sqrt(shape[0]))


def rms(x, gain=1.0):
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * gain


def center(x):
    return x - jnp.mean(x, -1, keepdims=True)


def mlp(p, x):
    x = jax.nn.relu(rms(center(x @ p["w1"])) * p["g1"] + p["b1"])
    return jax.nn.relu(rms(center(x @ p["w2"] + p["c2"])) * p["g2"]) @ p["out"]


MLP = {"w1": weights(4, 8), "g1": jnp.ones(8), "b1": jnp.zeros(8), "w2": weights(8, 8), "c2": jnp.zeros(8)}
MLP |= {"g2": jnp.ones(8), "out": weights(8, 3)}
MLP_MASK = {"w1": True, "g1": False, "b1": False, "w2": True, "c2": True, "g2": False, "out": False}


def convnet(p, x):
    for name in ("c1", "c2"):
        x = jax.lax.conv_general_dilated(x, p[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        variance = jnp.var(x, (0, 1, 2), keepdims=True)
        x = jax.nn.relu(
            (x - jnp.mean(x, (0, 1, 2), keepdims=True)) / jnp.sqrt(variance + 1e-3) * p[f"g{name}"] + p[f"b{name}"]
        )
    return jnp.mean(x, (1, 2)) @ p["head"] + p["bias"]


CONVNET = {"c1": weights(3, 3, 2, 4), "c2": weights(3, 3, 4, 4), "gc1": jnp.ones(4), "gc2": jnp.ones(4)}
CONVNET |= {"bc1": jnp.zeros(4), "bc2": jnp.zeros(4), "head": weights(4, 3), "bias": jnp.zeros(3)}
CONVNET_MASK = {"c1": True, "c2": True, "gc2": False, "bc2": False, "head": False, "bias": False}
CONVNET_MASK |= {"gc1": True, "bc1": True}  # together: the next norm divides by what both are multiplied by


def transformer(p, tokens):
    """Pre-norm, with normalized queries and keys: all that is added to the stream scales together."""
    x = p["embed"][tokens] + p["positions"]
    for b in p["blocks"]:
        n = rms(x, b["gain"])
        q, k = rms(n @ b["q"], b["gain_q"]), rms(n @ b["k"])
        x = x + jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 2) @ (n @ b["v"]) @ b["o"]
        x = x + jax.nn.gelu(rms(x) @ b["up"] + b["bias"]) @ b["down"]
    return rms(x) @ p["head"]


def _block():
    names = {"q": (4, 4), "k": (4, 4), "v": (4, 4), "up": (4, 8), "down": (8, 4), "o": (4, 4)}
    block = {name: weights(*shape) for name, shape in names.items()}
    return block | {"gain": jnp.ones(4), "gain_q": jnp.ones(4), "bias": jnp.zeros(8)}


TRANSFORMER = {"embed": weights(7, 4), "positions": weights(5, 4), "head": weights(4, 7)}
TRANSFORMER |= {"blocks": [_block(), _block()]}
_BLOCK_MASK = {"q": True, "k": True, "down": True, "o": True, "v": False, "up": False}
_BLOCK_MASK |= {"gain": False, "gain_q": False, "bias": False}
TRANSFORMER_MASK = {"embed": True, "positions": True, "head": False, "blocks": [_BLOCK_MASK, _BLOCK_MASK]}


def weight_normed(p, x):
    for name in ("v1", "v2"):
        x = jnp.tanh(x @ (p[name] / jnp.linalg.norm(p[name], axis=0)) * p[f"g{name}"])
    return x @ p["out"]


NORMED = {"v1": weights(4, 6), "v2": weights(6, 6), "gv1": jnp.ones(6), "gv2": jnp.ones(6), "out": weights(6, 2)}
NORMED_MASK = {"v1": True, "v2": True, "gv1": False, "gv2": False, "out": False}


def recurrent(p, x):
    """Input and recurrent weights share a norm: they scale together."""

    def step(h, x):
        h = jnp.tanh(rms(center(x @ p["w"] + h @ p["u"])) * p["gain"])
        return h, h

    return jax.lax.scan(step, jnp.zeros(5), x)[1] @ p["out"]


RNN = {"w": weights(4, 5), "u": weights(5, 5), "gain": jnp.ones(5), "out": weights(5, 2)}
RNN_MASK = {"w": True, "u": True, "gain": False, "out": False}

PLAIN = {"w": weights(4, 5), "b": jnp.zeros(5), "out": weights(5, 2)}
ARCHITECTURES = {
    "MLP with layer norm": (MLP, mlp, X, MLP_MASK),
    "convolutions with batch norm": (CONVNET, convnet, IMAGES, CONVNET_MASK),
    "pre-norm transformer": (TRANSFORMER, transformer, TOKENS, TRANSFORMER_MASK),
    "weight norm": (NORMED, weight_normed, X, NORMED_MASK),
    "recurrent, layer norm": (RNN, recurrent, X, RNN_MASK),
    "nothing normalized": (
        PLAIN,
        lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) @ p["out"],
        X,
        {"w": False, "b": False, "out": False},
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_mask_is_the_one_made_by_hand(name):
    params, apply, inputs, by_hand = ARCHITECTURES[name]
    assert decay_mask(apply, params, inputs) == by_hand
    other = decay_mask(apply, params, inputs, acts="regularizer")
    opposite = jax.tree.map(lambda m: not m, by_hand)
    assert other == opposite


@pytest.mark.thorough
def test_decay_where_the_mask_is_true_leaves_the_function_and_elsewhere_does_not():
    for params, apply, inputs, mask in ARCHITECTURES.values():
        exact = without_epsilon(lambda p, apply=apply, inputs=inputs: apply(p, inputs))
        params = jax.tree.map(lambda v: v + 0.1, params)
        for chosen, same in ((mask, True), (jax.tree.map(lambda m: not m, mask), False)):
            decayed = jax.tree.map(lambda v, m: 0.7 * v if m else v, params, chosen)
            assert np.allclose(exact(decayed), exact(params), rtol=1e-9) is same


def test_a_bias_that_a_norm_subtracts_is_in_neither_mask():
    def apply(p, x):
        return rms(center(x @ p["w"] + p["shift"]))

    params = {"w": weights(4, 5), "shift": jnp.ones(1)}
    assert decay_mask(apply, params, X) == {"w": True, "shift": False}
    assert decay_mask(apply, params, X, acts="regularizer") == {"w": False, "shift": False}


def test_masks_fit_optax_flax_and_equinox():
    nnx = pytest.importorskip("flax.nnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flax's own, of JAX's deprecations
        model = nnx.Sequential(nnx.Linear(4, 6, rngs=nnx.Rngs(0)), nnx.LayerNorm(6, rngs=nnx.Rngs(0)))
        graph, params = nnx.split(model, nnx.Param)
        mask = decay_mask(lambda p, x: nnx.merge(graph, p)(x), params, X)
        assert sorted(map(bool, jax.tree.leaves(mask))) == [False, False, True, True]  # the kernel with its bias
        optimizer = optax.adamw(0.1, weight_decay=0.5, mask=mask)
        updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    moved = [bool(np.any(np.asarray(v))) for v in jax.tree.leaves(updates)]
    assert moved == [bool(m) and bool(np.any(np.asarray(v))) for m, v in zip(*map(jax.tree.leaves, (mask, params)))]  # noqa: B905
    layers = eqx.nn.Sequential([eqx.nn.Linear(4, 6, key=jax.random.key(0)), eqx.nn.LayerNorm(6)])
    params, rest = eqx.partition(layers, eqx.is_inexact_array)
    mask = decay_mask(lambda p, x: jax.vmap(eqx.combine(p, rest))(x), params, X)
    assert (mask.layers[0].weight, mask.layers[1].weight, mask.layers[1].bias) == (True, False, False)


def test_epsilon_is_read_in_every_place_where_a_norm_can_have_it():
    w = weights(4, 6)
    forms = [
        lambda w: (X @ w) / jnp.sqrt(jnp.mean((X @ w) ** 2, -1, keepdims=True) + 1e-5),
        lambda w: (X @ w) * jax.lax.rsqrt(jnp.mean((X @ w) ** 2, -1) + 1e-5)[:, None],
        lambda w: (X @ w) * (1e-5 + jnp.mean((X @ w) ** 2, -1, keepdims=True)) ** -0.5,
        lambda w: (X @ w) / (jnp.sqrt(jnp.mean((X @ w) ** 2, -1, keepdims=True)) + 1e-5),
        lambda w: (X @ w) / (jnp.std(X @ w, -1)[:, None] + 1e-5),
    ]
    for number, form in enumerate(forms):
        assert [d.eps for d in denominators(form, w)] == pytest.approx([1e-5]), number
        assert np.allclose(without_epsilon(form)(1e-4 * w), without_epsilon(form)(w), rtol=1e-9), number
        assert not np.allclose(form(1e-4 * w), form(w), rtol=1e-3), number
    rational = lambda w: (X @ w) / jnp.sqrt(1 + (X @ w) ** 2)  # noqa: E731
    assert not denominators(rational, w)
    assert np.allclose(without_epsilon(rational)(w), rational(w))


def test_larger_sets_are_found_unless_a_size_is_given():
    alone = scale_invariant_groups(lambda p: transformer(p, TOKENS), TRANSFORMER, together=2)
    assert sorted(alone) == ["blocks.0.k", "blocks.0.q", "blocks.1.k", "blocks.1.q"]
    every = scale_invariant_groups(lambda p: transformer(p, TOKENS), TRANSFORMER)
    (stream,) = every.keys() - alone.keys()
    assert set(every[stream]) == {"embed", "positions", *(f"blocks.{k}.{n}" for k in (0, 1) for n in ("o", "down"))}
    assert scale_invariant_groups(lambda p: transformer(p, TOKENS), TRANSFORMER, epsilon=False) == {}


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match=r"apply must be a function of \(params, \*args\); got a dict"):
        decay_mask(MLP, mlp, X)
    with pytest.raises(ValueError, match="acts must be 'rate' or 'regularizer'"):
        decay_mask(mlp, MLP, X, acts="both")
    with pytest.raises(ValueError, match="the parameter name is a str, not an array"):
        decay_mask(mlp, MLP | {"name": "mine"}, X)
    with pytest.raises(ValueError, match="no parameter is an array of floating point numbers; there are n"):
        decay_mask(lambda p, x: x, {"n": jnp.arange(3)}, X)
    with pytest.raises(ValueError, match=r"not finite at these parameters.* and ε = 0 in all norms"):
        decay_mask(mlp, MLP, jnp.zeros_like(X))
    with pytest.raises(ValueError, match="no parameter changes the outputs at these inputs"):
        decay_mask(lambda p, x: 0.0 * x, MLP, X)
    with pytest.raises(
        ValueError, match=r"together must be None \(any\) or a whole number of leaves, at least 1; got 0"
    ):
        scale_invariant_groups(mlp, MLP, X, together=0)
