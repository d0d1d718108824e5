"""Comparing two models: exact rewrites are the same, each planted mistake is noticed, placed and named."""

import json
from dataclasses import replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from analysis.measurements.certified import asked
from analysis.models.mistakes import MISTAKES, choice_bias_lost, exact, gain_forgotten, quantized, shared_key_scaled
from lngeom.transformers import Mixture, rewrite as rw
from lngeom.transformers.description import exchange
from lngeom.transformers.rewrite import certify, steps as do
from lngeom.transformers.rewrite.comparison import models, sweep
from typer.testing import CliRunner

from tests.rewrite.test_steps import model
from tests.rewrite.zoo import CONFIGS, checkpoint, stack_of, write_file

QUICK = ("llama", "gpt2")
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.thorough) for kind in CONFIGS]
UNNAMED = {("modernbert", "blocks_exchanged")}
"""A block without a norm in the second place: it is found there, and not taken for the first one."""

RUN = CliRunner()


def app():
    from lngeom.cli.commands import app

    return app


@pytest.mark.parametrize("kind", KINDS)
def test_exact_rewrites_are_the_same(kind):
    stack, weights = model(kind)
    for name, new, arrays in exact(stack, weights):
        found = certify((stack, weights), (new, arrays))
        assert found.verdict == "same", (name, str(found))
        assert not found.reasons, name
        assert not found.different, name


@pytest.mark.parametrize("kind", KINDS)
def test_planted_mistakes_are_noticed_placed_and_named(kind):
    stack, weights = model(kind)
    planted = 0
    for plant in MISTAKES:
        mistake = plant(stack, weights, np.random.default_rng(5))
        if mistake is not None:
            planted += 1
            found = asked(stack, weights, mistake)
            assert found["verdict"] == "different", plant.__name__
            assert found["first"] == mistake.part, (plant.__name__, found)
            assert found["named"] or (kind, plant.__name__) in UNNAMED, (plant.__name__, found)
    assert planted >= 10


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", ["llama", pytest.param("mixtral", marks=pytest.mark.thorough)])
def test_a_rewrite_that_was_rounded_is_the_same_up_to_rounding(kind, dtype):
    stack, weights = model(kind)
    out = rw.apply(stack, weights, [do.Untie(), do.FoldNorms(), do.Rotate()])
    found = certify((stack, weights), (out.stack, {k: np.asarray(v).astype(dtype) for k, v in out.weights.items()}))
    assert found.verdict == "rounding"
    assert found.dtype == np.dtype(dtype).name
    assert 1e-9 < found.log_probabilities < 4 * found.rounding
    assert found.actions == tuple(a for a in found.actions if "folded" in a or "rotated" in a)
    assert len(found.actions) == 2


def test_a_mistake_is_found_beneath_a_change_of_basis():
    """Values turned, hidden units scaled, heads of a group reordered: and one gain was not folded."""
    stack, weights = model("llama")
    out = rw.apply(stack, weights, [do.RotateValues(), do.Balance()])
    base = out.stack, {name: np.array(value) for name, value in out.weights.items()}
    mistake = gain_forgotten(*base, np.random.default_rng(0))
    assert mistake is not None
    found = asked(stack, weights, mistake)
    assert found["placed"]
    assert found["named"], found


def test_other_sizes_of_heads_are_named():
    stack, weights = model("llama")
    for options, words in (
        ({"num_key_value_heads": 4}, "blocks.0.attention.kv_heads is 4, and was 2"),
        ({"num_attention_heads": 2}, "blocks.0.attention.heads is 2, and was 4"),
        ({"head_dim": 8}, "blocks.0.attention.value_width is 8, and was 4"),
    ):
        found = certify((stack, weights), model("llama", **options))
        assert found.verdict == "different"
        assert words in [cause.sentence for cause in found.causes], found


def test_an_option_that_rounding_hides_makes_the_models_different():
    stack, weights = model("gpt2")
    old = [n for n in stack.norms if n.path.startswith("blocks")]
    other = exchange(stack, {n.path: replace(n.part, eps=2e-5) for n in old})
    found = certify((stack, weights), (other, {k: v.astype(jnp.bfloat16) for k, v in weights.items()}))
    assert found.verdict == "different"
    assert not found.different
    assert any("eps is 2e-05, and was 1e-05; rounding" in reason for reason in found.reasons)
    found = certify((stack, weights), (other, weights))  # nothing was rounded
    assert found.first is not None
    assert found.first.path == "blocks.0.attention"


def test_a_row_that_no_probe_reads_is_not_called_the_same():
    stack, weights = model("llama")
    name = stack.tables[0].weight
    rows = np.array(weights[name])
    unused = sorted(set(range(23)) - set(np.unique(np.random.default_rng(0).integers(0, 23, (1, 4)))))[0]
    rows[unused] += 1
    found = certify((stack, weights), (stack, weights | {name: rows}), probes=(1, 4))
    assert found.verdict == "undecided"
    assert found.first is not None
    assert found.first.rows == (f"token {unused}",)
    assert not found.same


def test_an_expert_that_no_probe_chooses_is_seen():
    stack, weights = model("mixtral")
    mixture = stack.blocks[1].feed_forward
    assert isinstance(mixture, Mixture)
    down = mixture.experts[2].down.weight
    found = certify((stack, weights), (stack, weights | {down: 1.1 * weights[down]}), probes=(1, 2))
    assert found.first is not None
    assert found.first.path == "blocks.1.feed_forward"


def test_each_quantized_array_has_its_error():
    stack, weights = model("llama")
    mistake = quantized(stack, weights, np.random.default_rng(5))
    assert mistake is not None
    found = certify((stack, weights), (mistake.stack, mistake.weights))
    name, gap = found.arrays[0]
    true = np.linalg.norm(weights[name] - mistake.weights[name]) / np.linalg.norm(weights[name])
    assert gap == pytest.approx(true, rel=1e-6)
    assert found.first is not None
    assert found.first.alone == pytest.approx(found.log_probabilities)  # it is the only one


def test_descriptions_that_cannot_be_compared_part_by_part():
    stack, weights = model("llama")
    shorter = replace(stack, blocks=stack.blocks[:1])
    found = certify((stack, weights), (shorter, {name: weights[name] for name in shorter.arrays}))
    assert found.verdict == "different"
    assert found.reasons == ("there are 2 and 1 blocks",)
    assert not found.parts


def test_roundings_have_the_size_of_the_dtype():
    stack, weights = model("llama")
    first = models.opened((stack, weights), "before")
    name = stack.head.linear.weight
    for dtype in (np.float32, jnp.bfloat16, np.float16):
        shaken = models.Shaken(first, dict.fromkeys(stack.arrays, np.dtype(dtype)), 0)[name]
        true = np.abs(weights[name].astype(dtype).astype(np.float64) - weights[name]).max()
        assert 0.3 < np.abs(shaken - weights[name]).max() / true < 3


def test_a_sweep_without_the_map_of_streams_finds_every_part_different():
    """The check of parts rests on the map: without it a rotated model agrees nowhere."""
    stack, weights = model("llama")
    out = rw.apply(stack, weights, [do.Untie(), do.FoldNorms(), do.Rotate()])
    a, b = models.opened((stack, weights), "before"), models.opened((out.stack, out.weights), "after")
    from lngeom.transformers.rewrite.comparison.streams import Map

    tokens = models.tokens_for(a, b, (2, 8), 0)
    shaken = [models.Shaken(b, models.rounding_dtypes(a, b), 0)]
    assert all(local.differs for local, _, _ in sweep.sweep(a, b, Map(1.0, None, (False, False)), tokens, shaken))


def test_other_conventions_of_one_function_are_the_same():
    """Rotary pairs of neighbours with the rows to match; a factor of the scores that is in the queries instead."""
    stack, weights = model("llama")
    order = np.arange(4).reshape(2, -1).T.reshape(-1)
    arrays = {name: np.array(value) for name, value in weights.items()}
    blocks = []
    for block in stack.blocks:
        a = block.attention
        assert a.rotary is not None
        for part in (a.query, a.key):
            rows = arrays[part.weight]
            arrays[part.weight] = rows.reshape(-1, 4, 16)[:, order].reshape(rows.shape)
        arrays[a.query.weight] *= 2
        new = replace(a, scale=a.score_scale / 2, rotary=replace(a.rotary, pairing="adjacent"))
        blocks.append(replace(block, attention=new))
    found = certify((stack, weights), (replace(stack, blocks=tuple(blocks)), arrays))
    assert found.verdict == "same"
    assert not found.reasons
    assert certify((stack, weights), (replace(stack, blocks=tuple(blocks)), weights)).verdict == "different"


# Latent attention, and experts that are chosen in groups.


def put(arrays, part, matrix):
    arrays[part.weight] = part.with_matrix(arrays[part.weight], matrix)


def latent_turned(stack, arrays, draw):
    """The latent of keys and values turned: its gain is 1, so that its norm commutes with a rotation."""
    for a in (block.attention for block in stack.blocks):
        latent = a.kv_latent
        turn, gain = np.linalg.qr(draw.normal(size=(latent.width, latent.width)))[0], arrays[latent.norm.gain]
        put(arrays, latent.linear, turn @ latent.linear.matrix(arrays[latent.linear.weight]))
        for part in (a.key, a.value):
            put(arrays, part, part.matrix(arrays[part.weight]) * gain @ turn.T)
        arrays[latent.norm.gain] = np.ones(latent.width)


def keys_in_another_basis(stack, arrays, draw):
    """The part of each key that no other head has, and the queries' coordinates against it."""
    for a in (block.attention for block in stack.blocks):
        X = draw.normal(size=(a.heads, a.key_width, a.key_width)) + 2 * np.eye(a.key_width)
        K = a.key.matrix(arrays[a.key.weight]).reshape(a.heads, a.key_width, -1)
        Q = a.query.matrix(arrays[a.query.weight]).reshape(a.heads, a.query_width, -1)
        own = np.linalg.inv(X).transpose(0, 2, 1) @ Q[:, : a.key_width]
        put(arrays, a.key, (X @ K).reshape(-1, K.shape[-1]))
        put(arrays, a.query, np.concatenate([own, Q[:, a.key_width :]], 1).reshape(-1, Q.shape[-1]))


def heads_reordered(stack, arrays, draw):
    for a in (block.attention for block in stack.blocks):
        order = np.roll(np.arange(a.heads), 1)
        for part in (a.query, a.key, a.value):
            W = part.matrix(arrays[part.weight])
            put(arrays, part, W.reshape(a.heads, -1, W.shape[1])[order].reshape(W.shape))
        W = a.output.matrix(arrays[a.output.weight])
        put(arrays, a.output, W.reshape(len(W), a.heads, -1)[:, order].reshape(W.shape))


def reorder(arrays, mixture, order):
    """Experts with their rows of the router and their biases for the choice."""
    arrays[mixture.router.weight] = arrays[mixture.router.weight][order]
    arrays[mixture.choice_bias] = arrays[mixture.choice_bias][order]
    old = dict(arrays)
    for e, k in enumerate(order):
        for name in ("up", "gate", "down"):
            arrays[getattr(mixture.experts[e], name).weight] = old[getattr(mixture.experts[k], name).weight]


def experts_reordered(stack, arrays, draw):
    """Groups, and experts inside of each."""
    for mixture in (block.feed_forward for block in stack.blocks if isinstance(block.feed_forward, Mixture)):
        size = len(mixture.experts) // mixture.groups.count
        reorder(arrays, mixture, np.arange(len(mixture.experts)).reshape(-1, size)[::-1, ::-1].reshape(-1))


CHANGES = {
    latent_turned: None,
    keys_in_another_basis: "queries and keys have another basis (2 of 4 parts)",
    heads_reordered: "values and outputs have another basis (2 of 4 parts)",
    experts_reordered: "experts were reordered (1 of 4 parts)",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_latent_attention_does_not_see_is_the_same_and_a_mistake_beneath_it_is_found(change):
    stack, weights = model("deepseek_v3")
    arrays = {name: np.array(value) for name, value in weights.items()}
    change(stack, arrays, np.random.default_rng(0))
    found = certify((stack, weights), (stack, arrays))
    assert found.verdict == "same", found
    assert CHANGES[change] is None or CHANGES[change] in found.actions
    for plant in (shared_key_scaled, choice_bias_lost):
        mistake = plant(stack, arrays, np.random.default_rng(0))
        assert mistake is not None
        said = asked(stack, weights, mistake)
        assert said["placed"], said
        assert said["named"], said


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_experts_in_another_group_are_others_whatever_the_probes_choose(dtype):
    stack, weights = model("deepseek_v3")
    mixture = stack.blocks[1].feed_forward
    order = np.arange(len(mixture.experts))
    order[[0, -1]] = order[[-1, 0]]
    before = {name: value.astype(dtype) for name, value in weights.items()}
    arrays = dict(before)
    reorder(arrays, mixture, order)
    found = certify((stack, before), (stack, arrays))
    assert found.verdict in {"different", "undecided"}
    assert [part.path for part in found.parts if part.differs] == ["blocks.1.feed_forward"]
    assert "stands in another group" in found.causes[0].sentence
    open_ = exchange(
        stack, {"blocks.1.feed_forward": replace(mixture, groups=replace(mixture.groups, top=mixture.groups.count))}
    )
    assert certify((open_, before), (open_, arrays)).verdict in {"same", "rounding"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b + 3, None),
        (lambda b: b[::-1].copy(), "it is in another order than the experts"),
        (lambda b: np.full_like(b, 0.5), "it is the same for all experts"),
        (lambda b: b * np.where(np.arange(len(b)) == 1, 1.5, 1), "relative to the largest"),
    ],
    ids=["a number for all", "order", "lost", "one"],
)
def test_biases_for_the_choice_are_compared_up_to_a_number_for_all(change, words):
    stack, weights = model("deepseek_v3")
    name = stack.blocks[1].feed_forward.choice_bias
    found = certify((stack, weights), (stack, weights | {name: change(weights[name])}))
    assert (found.verdict == "same") == (words is None), found
    if words is not None:
        assert words in found.causes[0].sentence
        assert found.causes[0].arrays == (name,)


def test_a_large_bias_for_the_choice_does_not_hide_the_router():
    """Scores of all experts would be 1, were it added to the router's outputs."""
    stack, weights = model("deepseek_v3")
    mixture = stack.blocks[1].feed_forward
    before = {name: value.astype(ml_dtypes.bfloat16) for name, value in weights.items()}
    before[mixture.choice_bias] = weights[mixture.choice_bias].astype(np.float32) + 15
    for changed in (np.zeros_like, lambda W: W[::-1].copy()):
        after = before | {mixture.router.weight: changed(before[mixture.router.weight])}
        found = certify((stack, before), (stack, after))
        assert found.verdict == "different"
        assert [part.path for part in found.parts if part.differs] == ["blocks.1.feed_forward"]


def test_gains_of_latents_that_are_left_out_are_folded():
    stack, weights = model("deepseek_v3")
    out = rw.apply(stack, weights, [do.FlashNorm()])
    found = certify((stack, weights), (out.stack, dict(out.weights)))
    assert found.verdict == "same", found
    assert found.actions == ("the gains of 8 of 9 norms were folded into their readers",)


def test_latents_of_other_sizes_and_none_are_compared():
    stack, weights = model("deepseek_v3")
    for kind, options, words in (
        ("llama", {}, "blocks.0.attention.kv_latent: only the first model has one"),
        ("deepseek_v2", {}, "blocks.0.attention.query_latent: only the first model has one"),
        ("deepseek_v3", {"q_lora_rank": None}, "blocks.0.attention.query_latent: only the first model has one"),
    ):
        other, arrays = model(kind, **options)
        found = certify((stack, weights), (other, arrays))
        assert found.verdict == "different", kind
        assert found.parts[1].differs
        assert words in [cause.sentence for cause in found.causes], found.causes
    mixture = "blocks.1.feed_forward"
    plain = exchange(stack, {mixture: replace(stack.blocks[1].feed_forward, choice_bias=None)})
    causes = certify((plain, weights), (stack, weights)).causes
    assert causes[0].sentence == f"{mixture}.choice_bias: only the second model has one"
    wider = {name: np.array(value) for name, value in weights.items()}
    latents = {}
    for i, a in enumerate(block.attention for block in stack.blocks):  # two coordinates that nothing reads
        latent = a.query_latent
        for part, axis in ((latent.linear, 0), (a.query, 1)):
            shape = list(wider[part.weight].shape)
            shape[axis] = 2
            wider[part.weight] = np.concatenate([wider[part.weight], np.zeros(shape)], axis)
        wider[latent.norm.gain] = np.append(wider[latent.norm.gain] * np.sqrt(6 / 8), [1, 1])
        new = replace(latent, width=8, norm=replace(latent.norm, eps=latent.norm.eps * 6 / 8))
        latents[f"blocks.{i}.attention.query_latent"] = new
    found = certify((stack, weights), (exchange(stack, latents), wider))
    assert found.log_probabilities < 1e-12
    assert not found.different
    assert found.verdict == "undecided"
    assert any("query_latent.width is 8, and was 6" in reason for reason in found.reasons)


# The command, and bad input.


def test_the_command_compares_folders(tmp_path):
    old, new = checkpoint(tmp_path / "old", "llama"), tmp_path / "new"
    rw.save(rw.apply(*rw.load(old), [do.Untie(), do.FoldNorms(), do.Rotate()]), new)
    found = RUN.invoke(app(), ["certify", str(old), str(new), "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["schema"] == "lngeom.certify/1"
    assert document["verdict"] == "same"
    weights = {name: np.array(array) for name, array in rw.load(new)[1].items()}
    weights["model.layers.1.mlp.up_proj.weight"] *= 1.5
    write_file(new / "model.safetensors", weights)
    found = RUN.invoke(app(), ["certify", str(old), str(new)])
    assert found.exit_code == 1
    assert "blocks.1.feed_forward" in found.stdout
    assert "multiplied by 1.5" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "{old}"], "there is no folder"),
        (["{old}", "{old}/config.json"], "is a file"),
        (["{old}", "{old}", "--probes", "0", "4"], "positive"),
    ],
)
def test_bad_input_ends_with_2(tmp_path, arguments, words):
    old = checkpoint(tmp_path / "old", "llama")
    found = RUN.invoke(app(), ["certify", *(a.format(old=old) for a in arguments)])
    assert found.exit_code == 2
    assert words in found.stderr


def test_models_that_are_none_are_refused():
    stack, weights = model("llama")
    with pytest.raises(TypeError, match="before must be a folder, a pair"):
        certify(3, (stack, weights))
    holes = weights | {stack.head.linear.weight: weights[stack.head.linear.weight] * np.nan}
    with pytest.raises(ValueError, match=r"after: .*NaN"):
        certify((stack, weights), (stack, holes))
    with pytest.raises(ValueError, match="probes must be two positive integers"):
        certify((stack, weights), (stack, weights), probes=(4, 0))


@pytest.mark.thorough
def test_a_vocabulary_smaller_than_the_stream():
    """A rotation is not determined by such a table: nothing is claimed part by part."""
    stack, weights = model("llama")
    few = weights | {n: weights[n][:9] for n in (stack.tables[0].weight, stack.head.linear.weight)}
    out = rw.apply(stack, few, [do.Untie(), do.FoldNorms(), do.Rotate()])
    found = certify((stack, few), (out.stack, dict(out.weights)))
    assert found.verdict == "undecided"
    assert not found.parts
    assert "too few independent rows" in found.reasons[0]


def test_stacks_of_another_family_s_names_are_compared():
    """Mistral's and Llama's arrays have the same names; the window is the only difference."""
    stack, weights = model("llama")
    other = stack_of("mistral", rms_norm_eps=stack.norms[0].part.eps)
    found = certify((stack, weights), (other, weights))
    assert found.first is not None
    assert found.first.path == "blocks.0.attention"
    assert any("window is 3, and was None" in cause.sentence for cause in found.causes)


def test_outputs_that_overflow_are_no_evidence():
    stack, weights = model("llama")
    head = stack.head.linear.weight
    huge = dict(weights) | {head: 100 * weights[head], stack.final.gain: np.full(16, 1e308)}
    with pytest.raises(ValueError, match="before: its outputs are not finite"):
        certify((stack, huge), (stack, weights))
    with pytest.raises(ValueError, match="after: its outputs are not finite"):
        certify((stack, weights), (stack, huge))
