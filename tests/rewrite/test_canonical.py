"""Canonical forms: one for each orbit of the symmetry group; two checkpoints of one model are recognized."""

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from analysis.models.stacks import BARE, LLAMA, RMS, Variant, build, random_weights
from lngeom.transformers import Linear, Mixture, logits, rewrite as rw
from lngeom.transformers.arrays import StackArrays
from lngeom.transformers.nullspace import ordered
from lngeom.transformers.rewrite.canonical import Form, canonical

from tests.rewrite import zoo

VARIANTS = {
    "Llama, groups": Variant(**LLAMA, heads=4, kv_heads=2, vocabulary=9),
    "Llama, ε > 0": Variant(**LLAMA, eps=0.3, vocabulary=9),
    "Qwen2: loose values": Variant(**{**LLAMA, "biases": "qkv"}, heads=4, kv_heads=2, vocabulary=9, blocks=1),
    "pre-RMS, learned positions": Variant(**RMS, **BARE, vocabulary=9),
    "pre-RMS with β": Variant(norm="rms", vocabulary=9, blocks=1),
    "OPT": Variant(activation="relu", vocabulary=9),
    "GPT-2, ε > 0": Variant(eps=0.2, vocabulary=9, blocks=1),
    "pre-LN without linear biases": Variant(**BARE, vocabulary=9, blocks=1),
    "Pythia": Variant(parallel="two", positions="rotary", rotated=2, query_width=4, vocabulary=9, blocks=1),
    "mixture": Variant(**RMS, experts=3, hidden=3, top=2, vocabulary=9, blocks=1),
    "T5": Variant(**RMS, **BARE, positions="relative", activation="relu", vocabulary=9, blocks=1),
    "sinks, ReLU squared": Variant(**RMS, sink=True, activation="relu2", vocabulary=9, blocks=1),
    "temperature": Variant(**LLAMA, temperature=True, vocabulary=9, blocks=1),
}


@cache
def model(name):
    stack, shapes = build(VARIANTS[name])
    weights = random_weights(VARIANTS[name], shapes, 0)
    for beta in (n for n in weights if n.endswith(".beta")):  # Σ β/γ is far from 0, where rows along 1/γ lose their use
        weights[beta] = weights[beta.replace(".beta", ".gain")] * (0.7 + 0.3 * np.sin(np.arange(5)))
    return stack, weights


@cache
def moved(name, seed=0):
    """A finite element of the continuous group: the flow along random tangent vectors of every family."""
    stack, weights = model(name)
    names = sorted(weights)
    sizes = np.cumsum([weights[n].size for n in names])[:-1]
    coefficients: dict[int, np.ndarray] = {}
    rng = np.random.default_rng(seed)

    def arrays(theta):
        parts = zip(names, np.split(theta, sizes), strict=True)
        return StackArrays(stack, {n: v.reshape(weights[n].shape) for n, v in parts})

    def velocity(_, theta, only=None):
        here = arrays(theta)
        total = np.zeros_like(theta)
        for i, family in enumerate(ordered(here)):
            if (family.code == "V′") == (only == "V′"):
                c = coefficients.setdefault(i, 0.15 * rng.normal(size=(1, *family.shape)))
                total += here.columns(family.tangents(c), 1)[:, 0]
        return total

    start = np.concatenate([weights[n].reshape(-1) for n in names])
    flow = scipy.integrate.solve_ivp(velocity, (0, 1), start, method="DOP853", rtol=1e-13, atol=1e-14)
    end = flow.y[:, -1]
    return dict(arrays(end + velocity(0, end, "V′")).values)  # the last family is a straight line


def permuted(name, weights, seed=0):
    """Heads, groups, units and experts in another order, and free signs flipped."""
    stack, _ = model(name)
    rng = np.random.default_rng(seed)
    form = Form(stack, weights)  # its setters, on the weights as given
    form.values = {n: np.array(v) for n, v in weights.items()}
    for block in stack.blocks:
        a, network = block.attention, block.feed_forward
        inside = np.array([rng.permutation(a.group) for _ in range(a.kv_heads)])
        form.permute_heads(a, rng.permutation(a.kv_heads), inside)
        if isinstance(network, Mixture):
            form.permute_experts(network, rng.permutation(len(network.experts)))
        for e in network.experts if isinstance(network, Mixture) else (network,):
            form.permute_units(e, rng.permutation(len(form.matrix(e.up))))
            if e.gate is not None:
                form.put(e.up, -form.matrix(e.up))
                form.put_offsets(e.up, -form.offsets(e.up))
                form.put(e.down, -form.matrix(e.down))
    return form.values


def outputs(stack, weights):
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 9, (20, 4)))
    z = logits(stack, weights, tokens)
    return np.asarray(z - z.mean(-1, keepdims=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_one_canonical_form_for_an_orbit(name):
    stack, weights = model(name)
    other = permuted(name, moved(name))
    far = max(np.abs(other[n] - weights[n]).max() for n in weights)
    assert far > 0.3
    np.testing.assert_allclose(outputs(stack, other), outputs(stack, weights), atol=1e-9)
    a, b = canonical(stack, weights), canonical(stack, other)
    np.testing.assert_allclose(outputs(stack, a.weights), outputs(stack, weights), atol=1e-10)
    for n in weights:
        np.testing.assert_allclose(b.weights[n], a.weights[n], atol=1e-7, err_msg=n)
    found = rw.certify((stack, weights), (stack, other))
    assert found.verdict == "same", found


@pytest.mark.parametrize("name", ["Llama, groups", "OPT"])
def test_a_canonical_form_is_its_own(name):
    stack, weights = model(name)
    once = canonical(stack, weights)
    twice = canonical(stack, once.weights)
    for n in weights:
        np.testing.assert_allclose(twice.weights[n], once.weights[n], atol=1e-10)


@pytest.mark.parametrize("name", ["Llama, groups", "GPT-2, ε > 0"])
def test_any_other_change_of_one_number_is_a_different_model(name):
    stack, weights = model(name)
    for array in ("tokens", "blocks.0.attention.query.weight", "blocks.0.network.down.weight", "head.weight"):
        other = {n: np.array(w) for n, w in weights.items()}
        other[array][0, 0] += 1e-4
        found = rw.certify((stack, weights), (stack, other))
        assert found.verdict == "different", (array, found)


def test_models_with_equal_eigenvalues_have_no_gap_and_are_recognized_all_the_same():
    stack, weights = model("pre-RMS, learned positions")
    E = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 5)))[0]
    weights = weights | {"tokens": 3 * E, "positions": weights["positions"] - weights["positions"].mean(0)}
    form = Form(stack, weights)
    assert form.gap < 1e-12
    assert form.narrowest.startswith("token table")
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    other = {n: np.array(w) for n, w in canonical(stack, weights).weights.items()}
    for table in ("tokens", "positions"):
        other[table] = other[table] @ rotation.T
    for i in range(2):
        for n in ("attention.output", "network.down"):
            other[f"blocks.{i}.{n}.weight"] = rotation @ other[f"blocks.{i}.{n}.weight"]
        for n in ("attention.query", "attention.key", "attention.value", "network.up"):
            other[f"blocks.{i}.{n}.weight"] = other[f"blocks.{i}.{n}.weight"] @ rotation.T
    other["head.weight"] = other["head.weight"] @ rotation.T
    found = rw.certify((stack, weights), (stack, other))
    assert found.verdict == "same", found


def test_units_and_heads_of_equal_size_are_matched():
    stack, weights = model("GPT-2, ε > 0")
    weights = {n: np.array(w) for n, w in weights.items()}
    for n, axis in (("network.down", 0), ("attention.output", None)):
        W = weights[f"blocks.0.{n}.weight"]
        W /= np.linalg.norm(W - W.mean(0), axis=axis, keepdims=axis is not None)
    other = permuted("GPT-2, ε > 0", weights, seed=3)
    assert any(np.abs(other[n] - weights[n]).max() > 0.1 for n in weights)
    found = rw.certify((stack, weights), (stack, other))
    assert found.verdict == "same", found


def test_names_and_layouts_do_not_matter():
    stack, weights = model("OPT")
    network = stack.blocks[0].feed_forward
    part = network.down
    turned = replace(network, down=Linear("other", part.bias, layout="io"))
    renamed = replace(stack, blocks=(replace(stack.blocks[0], feed_forward=turned), *stack.blocks[1:]))
    other = {n: w for n, w in weights.items() if n != part.weight} | {"other": weights[part.weight].T.copy()}
    assert rw.certify((stack, weights), (renamed, other)).verdict == "same"


def test_rounded_checkpoints_are_compared_with_the_tolerance_of_their_dtype():
    stack, weights = model("Llama, groups")
    rounded = {n: w.astype(np.float32) for n, w in weights.items()}
    other = {n: w.astype(np.float32) for n, w in permuted("Llama, groups", moved("Llama, groups")).items()}
    for seed in (0, 100):  # without the second look, which takes both models' roundings, one row is too far away
        assert rw.certify((stack, rounded), (stack, other), seed=seed).verdict == "rounding"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tied": True}, "untie first"),
        ({"placing": "post"}, "placing 'post'"),
        ({"placing": "sandwich"}, "placing 'sandwich'"),
        ({"embedding_norm": True}, "an embedding norm"),
        ({"query_key": "rms"}, "normalized queries and keys"),
        ({"positions": "rotary", "query_width": 4, "frequencies": (0.5, 0.5)}, "rotary pairs of one frequency"),
        ({"activation": "relu", "gated": True}, "a homogeneous activation under a gate"),
    ],
)
def test_stacks_without_a_canonical_form_are_refused_by_name(change, message):
    variant = Variant(**change)
    stack, shapes = build(variant)
    with pytest.raises(ValueError, match=message):
        canonical(stack, random_weights(variant, shapes, 0))


def test_a_row_of_a_table_that_no_probe_sees_counts():
    """In float32: one position of 1,024 is 30 % shorter, which the distance of all arrays together does not show."""
    stack = zoo.stack_of("gpt2", tie_word_embeddings=False)
    weights = zoo.random_weights("gpt2", stack, np.float32)
    positions = stack.tables[1].weight
    weights[positions] = np.random.default_rng(0).normal(size=(1024, 16)).astype(np.float32)
    other = dict(weights)
    other[positions] = weights[positions].copy()
    assert rw.certify((stack, weights), (stack, other)).verdict == "same"
    other[positions][1000] *= np.float32(0.7)
    assert rw.certify((stack, weights), (stack, other)).verdict == "undecided"
