"""Continuous symmetries of transformers: tangent vectors, closed formulas and measured nullities agree."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from analysis.measurements.transformer_nullspaces import agrees, data, main, measure, outputs
from analysis.models.stacks import CHECKED, FURTHER, LLAMA, Variant, build, random_weights
from lngeom._core.numerics import ConvergenceError
from lngeom.transformers import (
    Attention,
    Block,
    FeedForward,
    Groups,
    Head,
    Linear,
    Mixture,
    Norm,
    Rotary,
    Rows,
    Stack,
    Table,
    nullspace,
)
from lngeom.transformers.arrays import StackArrays
from lngeom.transformers.counts import count_symmetries
from lngeom.transformers.families import FAMILIES
from lngeom.transformers.rewrite import canonical
from lngeom.transformers.symmetries import symmetries

from tests.stacks.test_forward import Made

VARIANTS = CHECKED | FURTHER
MEASURED = (
    "GPT-2: learned positions, tied",
    "Llama: RMS, rotary, SwiGLU",
    "ViT-22B: QK LN with gains, no mask",
    "BERT: post-LN, embedding LN, types, tied, no mask",
    "Gemma-3: sandwich RMS, tied, QK RMS",
    "OLMo-2: outer RMS, QK RMS over all heads",
    "post-LN, one block",
    "value bias without output bias",
    "tied RMS at unit gains",
    "QK RMS with gains and temperature",
)
NAMED = MEASURED[:4]
"""Their tests stand beside those of the measured null space (`scope="module"`), which compile the same programs."""


def model(name, seed=0):
    variant = VARIANTS[name][0]
    stack, shapes = build(variant)
    return stack, random_weights(variant, shapes, seed)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_rank_of_the_tangent_vectors_is_the_closed_formula(name):
    stack, weights = model(name)
    counts = nullspace.span(StackArrays(stack, weights))[1]
    expected = count_symmetries(stack, {n: w.shape for n, w in weights.items()})
    if VARIANTS[name][0].unit_gains:
        assert counts.total() > expected.total()
    else:
        assert +counts == expected
    assert VARIANTS[name][1] in {None, counts.total()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MEASURED, scope="module")
def test_the_predicted_null_space_is_the_measured_one(name):
    result = measure(VARIANTS[name][0], seed=2)
    assert agrees(result), result


SCALED = {
    "Granite: factors of branches and logits": Variant(**LLAMA, factor=0.4, head_scale=0.3),
    "Granite, tied": Variant(**LLAMA, factor=0.4, head_scale=0.3, tied=True, vocabulary=8),
    "Cohere: parallel, one LN without β, factor of logits, tied": Variant(
        **{**LLAMA, "norm": "layer"}, parallel="shared", head_scale=0.3, tied=True, vocabulary=20
    ),
    "factors under biases": Variant(factor=2.5, head_scale=0.3, head_cap=2.0, head_bias=True),
}


@pytest.mark.parametrize("name", SCALED)
def test_factors_of_branches_and_logits_change_no_count(name):
    variant = SCALED[name]
    stack, shapes = build(variant)
    counts = nullspace.span(StackArrays(stack, random_weights(variant, shapes, 0)))[1]
    plain = replace(variant, factor=1.0, head_scale=1.0)
    assert +counts == count_symmetries(stack, shapes) == count_symmetries(*build(plain))


def test_units_that_fire_are_counted_under_factors():
    variant = Variant(factor=2.5, activation="relu", biases="qkvo1")
    stack, shapes = build(variant)
    weights = random_weights(variant, shapes, 0)
    scaled = weights | {n: 2.5 * w for n, w in weights.items() if n.endswith(("output.weight", "down.weight"))}
    scaled |= {n: 2.5 * w for n, w in weights.items() if n.endswith("output.bias")}
    plain = replace(stack, blocks=tuple(replace(b, factor=1.0) for b in stack.blocks))
    tokens = np.random.default_rng(0).integers(0, 7, (300, 4))
    assert nullspace._firing(stack, weights, tokens, None) == nullspace._firing(plain, scaled, tokens, None)
    assert nullspace._firing(stack, weights, tokens, None) != nullspace._firing(plain, weights, tokens, None)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCALED)
def test_the_null_space_under_factors_is_the_measured_one(name):
    result = measure(SCALED[name], seed=2)
    assert agrees(result), result


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["left out", "wrong sign"])
def test_a_planted_fault_makes_the_measured_null_space_differ(fault, monkeypatch):
    def faulty(arrays):
        for family in symmetries(arrays):
            if family.code != "O":
                yield family
            elif fault == "wrong sign":

                def flipped(c, family=family):
                    value, output = family.tangents(c)[0], family.tangents(c)[-1]
                    return [value, output._replace(value=-output.value)]

                yield replace(family, tangents=flipped)

    monkeypatch.setattr(nullspace, "symmetries", faulty)
    result = measure(VARIANTS["value bias without output bias"][0], seed=2)
    assert not agrees(result)
    assert (result["predicted"] < result["nullity"]) == (fault == "left out")
    assert (result["outside"] > 0.1) == (fault == "wrong sign")


@pytest.mark.thorough
def test_the_command_writes_its_results_and_can_be_resumed(tmp_path, monkeypatch, capsys):
    arguments = ["x", "--only", "post-LN, one block", "--seeds", "1", "--out", str(tmp_path), "--resume"]
    monkeypatch.setattr("sys.argv", arguments)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests use what is compiled
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
    results = json.loads((tmp_path / "transformer_nullspaces.json").read_text(encoding="utf-8"))["variants"]
    assert {name: len(r["runs"]) for name, r in results.items()} == {
        "post-LN, one block": 1,
        "post-LN, one block, at unit gains": 1,
    }
    assert "| post-LN, one block | 302 | 102 | 102 | 102 |" in (tmp_path / "transformer_nullspaces.md").read_text(
        "utf-8"
    )
    assert "0 variants differ" in capsys.readouterr().out


def test_a_prediction_that_is_off_by_one_direction_does_not_agree():
    result = {"predicted": 5, "closed": 5, "nullity": 5, "certain": True, "outside": 1e-9, "failing": []}
    assert agrees(result)
    for fault in ({"predicted": 4}, {"nullity": 6}, {"closed": 6}, {"outside": 0.1}, {"certain": False}):
        assert not agrees(result | fault), fault


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMED, scope="module")
def test_every_measured_direction_has_a_name(name):
    variant = VARIANTS[name][0]
    stack, weights = model(name)
    X = data(variant, sum(w.size for w in weights.values()), seed=0)
    categorical = lg.families.Categorical()
    F = lg.fisher(outputs(stack), weights, X, family=categorical, check=False)
    null = F.nullspace()
    described = null.describe(stack)
    assert described.unexplained == 0
    assert (
        tuple((d.name, d.dimension) for d in described.directions) == lg.predicted_nullspace(stack, weights).directions
    )
    with pytest.raises(ValueError, match="dictionary of its arrays"):
        null.describe(replace(stack, final=Norm("rms", "another gain")))


@pytest.mark.parametrize("code", FAMILIES)
def test_no_family_can_be_left_out(code):
    if code == "unread":
        stack, weights = model("GPT-2, untied")
        stack = replace(stack, tables=(stack.tables[0], replace(stack.tables[1], offset=1)))
        models = [(stack, weights)]
    else:
        small = (n for n in sorted(VARIANTS, key=lambda n: VARIANTS[n][0].blocks) if "wide" not in n)
        models = map(model, small)
    for stack, weights in models:
        formula = count_symmetries(stack, {n: w.shape for n, w in weights.items()})
        if not formula[code]:
            continue
        arrays = StackArrays(stack, weights)
        if nullspace.span(arrays, without=code)[1].total() < formula.total():
            return
    raise AssertionError(f"no variant needs {code}")


def published(  # the sizes of a published model: no array of it is formed
    *, d, L, n, n_k, f, V, kind, positions=0, rotary=0, biases=True, gated=False, activation="gelu", parallel=False,
    tied=False, read_from=0,
):  # fmt: skip
    shapes = {"E": (V, d)}
    tables = [Table("E")]
    if positions:
        tables.append(Table("P", "position", read_from))
        shapes["P"] = (positions, d)

    def linear(name, out, into, bias=biases):
        shapes[name] = (out, into)
        if bias:
            shapes[f"{name}.b"] = (out,)
        return Linear(name, f"{name}.b" if bias else None)

    def norm(name):
        shapes[name] = (d,)
        if kind == "layer":
            shapes[f"{name}.b"] = (d,)
        return Norm(kind, name, f"{name}.b" if kind == "layer" else None, eps=1e-5)

    def block(i):
        k = d // n
        turn = Rotary(tuple(1e4 ** (-2 * j / rotary) for j in range(rotary // 2))) if rotary else None
        maps = [linear(f"{i}.{x}", out * k, d) for x, out in (("q", n), ("k", n_k), ("v", n_k))]
        attention = Attention(*maps, linear(f"{i}.o", d, n * k), n, n_k, k, k, rotary=turn)
        gate = linear(f"{i}.gate", f, d) if gated else None
        network = FeedForward(linear(f"{i}.up", f, d), linear(f"{i}.down", d, f), gate, activation)
        return Block(attention, network, "pre", norm(f"{i}.n1"), norm(f"{i}.n2"), parallel=parallel)

    head = Linear("E") if tied else linear("U", V, d, False)
    stack = Stack(tuple(tables), tuple(block(i) for i in range(L)), Head(head), norm("final"))
    return stack, {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


SMALL = {"d": 768, "L": 12, "n": 12, "n_k": 12, "f": 3072, "kind": "layer"}
LARGE = {"d": 4096, "L": 32, "n": 32, "kind": "rms", "biases": False, "gated": True, "activation": "silu"}


@pytest.mark.parametrize(
    ("dimension", "parameters", "sizes"),
    [
        (1_347_352, 124_439_808, {**SMALL, "V": 50257, "positions": 1024, "tied": True}),
        (1_443_085, 162_322_944, {**SMALL, "V": 50304, "rotary": 16, "parallel": True}),
        (1_385_242, 125_239_296, {**SMALL, "V": 50272, "positions": 2050, "tied": True, "activation": "relu"}),
        (25_917_440, 6_738_415_616, {**LARGE, "n_k": 32, "f": 11008, "V": 32000, "rotary": 128}),
        (13_342_720, 8_030_261_248, {**LARGE, "n_k": 8, "f": 14336, "V": 128256, "rotary": 128}),
    ],
    ids=["GPT-2 small", "Pythia-160M", "OPT-125M", "Llama-2-7B", "Llama-3-8B"],
)
def test_published_models_need_their_shapes_only(dimension, parameters, sizes):
    predicted = lg.predicted_nullspace(*published(**sizes))
    assert (predicted.dimension, predicted.parameters) == (dimension, parameters)
    assert predicted.exact
    with pytest.raises(ValueError, match="only shapes were given"):
        _ = predicted.basis


def test_rows_of_a_table_that_no_position_reads_are_null():
    sizes = {**SMALL, "V": 50272, "positions": 2050, "tied": True, "activation": "relu"}
    whole, later = (lg.predicted_nullspace(*published(**sizes, read_from=k)) for k in (0, 2))
    assert later.dimension - whole.dimension == 2 * (768 - 1)


def test_conditions_are_checked_on_the_tokens():
    variant = CHECKED["OPT: ReLU"][0]
    stack, weights = model("OPT: ReLU")
    tokens, _ = data(variant, sum(w.size for w in weights.values()), seed=0)

    def failing(weights, tokens):
        predicted = lg.predicted_nullspace(stack, weights, tokens)
        assert predicted.exact == (not any(not c.holds for c in predicted.conditions))
        return {c.name.split()[0] + " " + c.name.split()[1] for c in predicted.conditions if not c.holds}

    assert failing(weights, tokens) == set()
    assert failing(weights, tokens % 6) == {"every row"}
    assert failing(weights, tokens[:20]) == {"at least", "every ReLU"}
    assert {"every row", "attention sees"} <= failing(weights, tokens[:, :1])
    dead = dict(weights)
    dead["blocks.1.network.up.bias"] = weights["blocks.1.network.up.bias"] - np.array([100.0, 0, 0, 0])
    assert failing(dead, tokens) == {"every ReLU"}
    alive = dict(weights)
    alive["blocks.1.network.up.bias"] = weights["blocks.1.network.up.bias"] + np.array([100.0, 0, 0, 0])
    (condition,) = [c for c in lg.predicted_nullspace(stack, alive, tokens).conditions if c.name.startswith("every R")]
    assert "off at 0 of 4" in condition.detail
    assert "condition fails: every ReLU" in lg.predicted_nullspace(stack, dead, tokens).describe()


def test_a_point_that_is_not_generic_has_more_directions():
    stack, weights = model("tied RMS at unit gains")
    predicted = lg.predicted_nullspace(stack, weights)
    assert not predicted.exact
    assert "+10 rotations of the stream" in predicted.describe()
    assert predicted.basis.shape == (predicted.parameters, predicted.dimension)


@pytest.mark.parametrize(
    ("change", "gains", "rotations"),
    [
        ({"tied": True}, {"final": (2, 2, 2, 3, 3)}, 4),
        ({"tied": True}, {"final": (2, 2, 3, 4, 5)}, 1),
        ({"tied": True}, {"final": (2, -2, 3, 4, 5)}, 0),
        ({"placing": "sandwich"}, {"after1": (2, 2, 3, 4, 4), "after2": (5, 5, 6, 7, 7)}, 2),
        ({"placing": "sandwich"}, {"after1": (2, 2, 3, 4, 4), "after2": (5, 6, 7, 8, 8)}, 1),
        ({"placing": "sandwich"}, {"after1": (2, -2, 3, 4, 5), "after2": (6, 6, 7, 8, 9)}, 1),
    ],
)
def test_rotations_keep_the_classes_of_equal_gains(change, gains, rotations):
    variant = Variant(**LLAMA | {"blocks": 1, "vocabulary": 9} | change)
    stack, shapes = build(variant)
    weights = random_weights(variant, shapes, 0)
    for name in weights:
        for end, values in gains.items():
            if name.endswith(f"{end}.gain"):
                weights[name] = np.array(values, float)
    assert lg.predicted_nullspace(stack, weights).counts["R"] == rotations


def test_without_a_basis_least_squares_projects(monkeypatch):
    stack, weights = model("post-LN, one block")
    v = np.random.default_rng(0).normal(size=302)
    predicted = lg.predicted_nullspace(stack, weights)
    expected = predicted.basis @ (predicted.basis.T @ v)
    np.testing.assert_allclose(predicted.project(v), expected, atol=1e-12)
    monkeypatch.setattr(nullspace, "MEMORY", 0)
    large = lg.predicted_nullspace(stack, weights)
    assert large.dimension == predicted.dimension
    with pytest.raises(MemoryError, match="use project"):
        _ = large.basis
    np.testing.assert_allclose(large.project(v), expected, atol=1e-7)
    tree = large.project(jax.tree.map(jnp.ones_like, weights))
    assert set(tree) == set(weights)
    monkeypatch.setattr("scipy.sparse.linalg.lsmr", lambda *_, **__: (np.zeros(1), nullspace.ITERATIONS_SPENT))
    with pytest.raises(ConvergenceError, match="did not reach"):
        large.project(v)
    with pytest.raises(ValueError, match="302 entries"):
        large.project(v[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_key": "rms", "query_key_gain": False, "query_key_bias": True}, "with a bias and without a gain"),
        ({"query_key": "rms", "query_key_bias": True, "cap": 3.0}, "under a cap or a sink"),
        ({"activation": "identity"}, "without a nonlinearity"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(change, message):
    variant = Variant(**change)
    stack, shapes = build(variant)
    with pytest.raises(ValueError, match=message):
        lg.predicted_nullspace(stack, random_weights(variant, shapes, 0))


@pytest.mark.parametrize(
    ("latent", "mixture", "words"),
    [
        ({"shared": 0, "give": False}, {}, "latent attention"),
        ({"shared": 0, "ask": False}, {}, "latent attention"),
        ({"ask": False, "give": False}, {}, "a part of the keys that all heads share"),
        (None, {"groups": Groups(2, 1)}, "chooses among groups of experts"),
        (None, {"choice_bias": "b"}, "a bias for the choice of experts alone"),
        (None, {"factor": 2.0}, "a factor of the weights of experts"),
    ],
)
def test_latents_and_choices_of_experts_are_refused_by_name(latent, mixture, words):
    made = Made()
    made.weights["b"] = np.ones(2)
    experts = Mixture(made.linear(2, 6), (made.network(), made.network()), top=1, **mixture)
    attention = made.attention() if latent is None else made.latent_attention(**latent)
    stack = made.stack(made.block(attention=attention, network=experts if mixture else None))
    kept = {name: made.weights[name] for name in stack.arrays}
    for refuses in (lg.predicted_nullspace, canonical):
        with pytest.raises(ValueError, match=words):
            refuses(stack, kept)


def test_stacks_outside_the_theory_are_refused_by_name():
    stack, weights = model("GPT-2, untied")
    first, second = stack.blocks
    shared = replace(second, attention=replace(second.attention, value=first.attention.value))
    expert = first.feed_forward
    shared_expert = Mixture(replace(expert.up, rows=Rows(0, 1)), (second.feed_forward,), shared=expert)
    for changed, message in (
        (replace(stack, blocks=(first, shared)), "an array with two roles"),
        (replace(stack, final=None), "without a final norm"),
        (replace(stack, final=replace(stack.final, kind="rms")), "norms of two kinds"),
        (replace(stack, blocks=()), "without blocks"),
        (replace(stack, blocks=(first, replace(second, feed_forward=shared_expert))), "a shared expert"),
    ):
        kept = {n: weights[n] for n in changed.arrays}
        with pytest.raises(ValueError, match=message):
            lg.predicted_nullspace(changed, kept)
    with pytest.raises(ValueError, match=r"buffer.*which the description does not name"):
        lg.predicted_nullspace(stack, {**weights, "buffer": np.ones(3)})
    gains = dict(weights, **{"final.gain": np.array([1.0, 0, 1, 1, 1])})
    with pytest.raises(ValueError, match=r"gain 1 of final .* is zero"):
        lg.predicted_nullspace(stack, gains)
