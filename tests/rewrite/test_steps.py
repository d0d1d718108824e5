"""Every rewrite keeps the function, or is refused with the difference that it makes."""

from dataclasses import replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.stats
from analysis.models.stacks import Variant, build, random_weights as layout_weights
from lngeom.rewrite import steps as do
from lngeom.transformers import Attention, FeedForward, Linear, Mixture, Rotary, Rows, rewrite as rw
from lngeom.transformers.description import exchange
from lngeom.transformers.rewrite.certificate import certify, outputs
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.rewriting import plan

from tests.rewrite.zoo import random_weights, stack_of
from tests.stacks.test_forward import D, F, K, Made, N

TOKENS = np.random.default_rng(0).integers(0, 23, (4, 9))


def model(kind, dtype=np.float64, **options):
    stack = stack_of(kind, **options)
    return stack, random_weights(kind, stack, dtype)


EXACT = {
    "llama": [do.FoldNorms(), do.Rotate(), do.Balance(), do.RotateValues()],
    "qwen2": [do.RotateValues(seed=3, hadamard=False), do.FoldNorms(), do.Rotate(seed=1)],
    "gemma": [do.Untie(), do.FoldNorms(), do.Rotate(hadamard=False), do.Balance()],
    "gemma2": [do.Untie(), do.FoldNorms(), do.Balance()],
    "olmo": [do.CentreReaders(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate(), do.ScaleStream(0.5)],
    "olmo2": [do.FoldNorms(), do.Balance(), do.CentreHead()],
    "mixtral": [do.FoldNorms(), do.CentreRouter(), do.Rotate(seed=5), do.Balance(power_of_two=True)],
    "gpt2": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate(), do.ShiftTables()],
    "gpt_neox": [do.RotateValues(), do.FoldNorms(), do.MergeValueBias(), do.MergeParallelBias(), do.Rotate()],
    "gptj": [do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate(), do.CentreHead()],
    "opt": [do.MergeValueBias(), do.DropKeyBias(), do.Balance(), do.Untie(), do.FoldNorms(), do.Rotate()],
    "bloom": [do.Untie(), do.FoldNorms(), do.MergeValueBias(), do.DropKeyBias()],
    "granite": [do.FoldNorms(), do.Rotate(), do.Balance(), do.ScaleStream(0.5)],
    "cohere": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate(), do.CentreHead()],
    "qwen2_moe": [do.FoldNorms(), do.CentreRouter(), do.Rotate(), do.Balance(), do.ScaleStream(2.0)],
    "gpt_oss": [do.FoldNorms(), do.Rotate(), do.CentreRouter(), do.ScaleStream(0.5), do.RotateValues()],
    "modernbert": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.ScaleStream(0.5), do.RotateValues()],
    "deepseek_v2": [do.RotateValues(), do.FoldNorms(), do.Rotate(), do.Balance(), do.CentreRouter(), do.CentreHead()],
    "deepseek_v3": [do.FlashNorm(), do.FoldNorms(), do.Rotate(), do.TurnQueriesAndKeys(), do.ScaleStream(0.5)],
    "bert": [
        *(do.FoldNorms(only=("blocks.1.feed_forward_norm",)), do.MergeValueBias(), do.DropKeyBias()),
        do.CentreWriters(only=("blocks.*",)),
    ],
}


@pytest.mark.parametrize("kind", EXACT)
def test_the_function_stays(kind):
    stack, weights = model(kind)
    found = rw.apply(stack, weights, EXACT[kind])
    assert found.certificate.passed, found.certificate
    assert set(found.weights) == set(found.stack.arrays)
    again = outputs(found.stack, found.weights, TOKENS)
    before = outputs(stack, weights, TOKENS)
    gap = before - again
    if found.certificate.moves_logits:
        gap = gap - gap.mean(-1, keepdims=True)
    assert np.abs(gap).max() < 1e-12 * np.abs(before).max()


REFUSED = [
    ("deepseek_v3, sigmoids", "deepseek_v3", {}, [], do.CentreRouter(), "blocks.1.feed_forward.router", "sigmoids"),
    (
        *("deepseek_v3, latents before RMSNorm", "deepseek_v3", {}, []),
        *(do.CentreWriters(only=("*_latent.linear",)), "query_latent.norm", "LayerNorms alone"),
    ),
    ("gpt_oss, clamped units", "gpt_oss", {}, [], do.Balance(), "blocks.0.feed_forward.experts.0", "Leave the units"),
    ("llama, rotated with its gains", "llama", {}, [], do.Rotate(), "blocks.0.attention_norm", "(fold)"),
    ("llama, centred before RMSNorm", "llama", {}, [], do.CentreWriters(), "RMSNorm", "LayerNorms alone"),
    ("gemma, tied", "gemma", {}, [], do.FoldNorms(), "head.linear", "untie"),
    ("llama, tied", "llama", {"tie_word_embeddings": True}, [], do.FoldNorms(), "tables.0", "untie"),
    ("gpt2, tied", "gpt2", {}, [], do.FoldNorms(), "transformer.wte.weight", "untie"),
    ("gpt2, centred while tied", "gpt2", {}, [], do.CentreWriters(), "tables.0", "untie"),
    ("gpt2, rms uncentred", "gpt2", {}, [do.Untie()], do.ToRMSNorm(), "tables.0", "(centre)"),
    (
        *("gpt2, position table uncentred", "gpt2", {}),
        *([do.Untie(), do.CentreWriters(only=("tables.0", "blocks.*"))], do.ToRMSNorm(), "tables.1", "(centre)"),
    ),
    (
        *("gpt2, one writer uncentred", "gpt2", {}),
        [do.Untie(), do.CentreWriters(only=("tables.*", "blocks.0.*", "blocks.1.attention.*"))],
        *(do.ToRMSNorm(), "blocks.1.feed_forward.down", "(centre)"),
    ),
    (
        *("bloom, embedding norm", "bloom", {}, [do.Untie(), do.CentreWriters()]),
        *(do.ToRMSNorm(), "embedding_norm", "cannot be centred"),
    ),
    ("bert, post-norm", "bert", {}, [], do.FoldNorms(), "residual stream", "Leave this norm"),
    (
        *("gemma2, writing norms", "gemma2", {}, []),
        *(do.FoldNorms(only=("*writing_norm",)), "attention_writing_norm", "Leave this norm"),
    ),
    ("olmo2, writing norms", "olmo2", {}, [], do.FoldNorms(only=("*writing_norm",)), "post_attention", "Leave"),
    (
        *("gemma2, rotated", "gemma2", {}, [do.Untie(), do.FoldNorms()], do.Rotate()),
        *("attention_writing_norm", "no such rotation"),
    ),
    (
        *("qwen3, gains of queries", "qwen3", {"tie_word_embeddings": False}, []),
        *(do.FoldNorms(only=("*.query_norm",)), "q_norm", "Leave the norms"),
    ),
    ("gpt2, balanced", "gpt2", {}, [], do.Balance(), "gelu_tanh", "Only ReLU"),
    ("qwen2, no output bias", "qwen2", {}, [], do.MergeValueBias(), "o_proj", "Leave b_V"),
    ("qwen2, rotary key bias", "qwen2", {}, [], do.DropKeyBias(), "rotary positions", "drop-key-bias=unrotated"),
    (
        "pythia, all of the key bias",
        "gpt_neox",
        {},
        [],
        do.DropKeyBias(),
        "rotary positions",
        "drop-key-bias=unrotated",
    ),
    ("gemma2, capped head", "gemma2", {}, [do.Untie()], do.CentreHead(), "cap of the logits", "Leave the head"),
    ("llama, ε ignored", "llama", {"rms_norm_eps": 0.1}, [], do.ScaleStream(0.1, scale_epsilon=False), "ε = 0.1", "c²"),
    (
        *("olmo, LayerNorm and any Q", "olmo", {}, []),
        do.Rotate(matrix=np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]),
        *("Q1 = 1", "(centre, rms)"),
    ),
    ("gpt2, readers centred unfolded", "gpt2", {}, [], do.CentreReaders(), "ln_1", "(fold)"),
    ("gpt2, no parallel block", "gpt2", {}, [], do.MergeParallelBias(), "blocks.0", "not added"),
    ("bloom, scaled while tied", "bloom", {}, [], do.FoldNorms(), "head.linear", "untie"),
]


@pytest.mark.parametrize(
    ("kind", "options", "before", "step", "site", "remedy"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_a_step_that_would_change_the_function_is_refused(kind, options, before, step, site, remedy):
    with pytest.raises(rw.Refused) as caught:
        rw.apply(*model(kind, **options), [*before, step])
    message = str(caught.value)
    assert site in message
    assert remedy in message
    assert message.startswith(f"{step.word} refused at ")
    assert not any(kind.__name__ in message for kind in (do.FoldNorms, do.CentreWriters, do.ToRMSNorm))
    if type(step) is not do.MergeParallelBias:
        assert caught.value.difference > 1e-3, message
        assert f"{caught.value.difference:.1e}" in message


def test_the_gain_of_a_latent_is_folded_into_what_reads_it():
    stack, weights = model("deepseek_v3")
    found = rw.apply(stack, weights, [do.FoldNorms(only=("blocks.0.attention.*_latent.norm",))])
    assert found.certificate.passed, found.certificate
    at = "model.layers.0.self_attn."
    for norm, reader in (("q_a_layernorm", "q_b_proj"), ("kv_a_layernorm", "kv_b_proj")):
        gain, W = weights[f"{at}{norm}.weight"], weights[f"{at}{reader}.weight"]
        np.testing.assert_array_equal(found.weights[f"{at}{norm}.weight"], 1)
        np.testing.assert_allclose(found.weights[f"{at}{reader}.weight"], W * gain)
    changed = {name for name in weights if np.any(found.weights[name] != weights[name])}
    assert len(changed) == 4


def test_the_gains_of_latents_are_left_out_with_the_others():
    stack, weights = model("deepseek_v3")
    found = rw.apply(stack, weights, [do.FlashNorm()])
    assert found.certificate.passed, found.certificate
    left = [norm.path for norm in found.stack.norms if norm.part.gain is not None]
    assert left == ["final"]
    assert len(weights) - len(found.weights) == len(stack.norms) - 1 == 8


LATENT = [
    ([do.FoldNorms()], ("layer", "rms"), (False, True)),
    ([do.FoldNorms(), do.CentreReaders(), do.Rotate()], ("layer",), (True,)),
    ([do.FoldNorms(), do.CentreReaders(only=("blocks.*.attention.*",))], ("layer",), (True,)),
    ([do.CentreWriters(), do.ToRMSNorm(), do.FoldNorms()], ("layer",), (False, True)),
    ([do.MergeValueBias(), do.RotateValues(), do.TurnQueriesAndKeys(), do.ScaleStream(2.0)], ("layer", "rms"), (True,)),
    ([do.DropKeyBias(), do.DropKeyBias(unrotated_only=True)], ("layer", "rms"), (True,)),
]
"""Steps, kinds of the norms of latents, and whether their readers have biases."""


@pytest.mark.parametrize(
    ("steps", "kind", "biased"),
    [(steps, kind, biased) for steps, kinds, biases in LATENT for kind in kinds for biased in biases],
    ids=lambda value: "-".join(step.word for step in value) if isinstance(value, list) else str(value),
)
def test_latents_with_biases_of_their_own_are_rewritten(steps, kind, biased):
    """Norms of latents with β, readers with and without b, a part of all keys that turns."""
    made = Made()
    options = {"bias": biased, "kind": kind, "rotary": Rotary((0.7,), start=2)}
    stack = made.stack(*(made.block(attention=made.latent_attention(**options)) for _ in range(2)))
    tokens = TOKENS[:, :5] % 9
    found = rw.apply(stack, made.weights, steps, probes=tokens)
    assert found.certificate.passed, found.certificate
    assert found.draft.labels
    before, after = outputs(stack, made.weights, tokens), outputs(found.stack, found.weights, tokens)
    assert np.abs(before - after).max() < 1e-12 * np.abs(before).max()
    assert rw.certify((stack, made.weights), (found.stack, dict(found.weights))).verdict == "same"


def test_a_rotary_part_of_all_keys_keeps_its_bias():
    made = Made()
    stack = made.stack(made.block(attention=made.latent_attention(rotary=Rotary((0.7,), start=1))))
    with pytest.raises(rw.Refused, match="rotary positions turn it"):
        rw.apply(stack, made.weights, [do.DropKeyBias()])
    found = rw.apply(stack, made.weights, [do.DropKeyBias(unrotated_only=True)])
    a = stack.blocks[0].attention
    kept = np.tile([0.0, 1.0], 2)  # the first coordinate of each key stands still, the shared ones are not its own
    np.testing.assert_array_equal(found.weights[a.key.bias], kept * made.weights[a.key.bias])
    np.testing.assert_array_equal(found.weights[a.shared_key.bias], made.weights[a.shared_key.bias])


def test_readers_of_a_norm_are_centred_where_nothing_else_is_added_to_its_output():
    only = do.CentreReaders(only=("embedding_norm",))
    stack, weights = model("modernbert")
    weights["model.embeddings.norm.weight"] = np.full(16, 2.0)
    found = rw.apply(stack, weights, [only])
    assert found.certificate.passed, found.certificate
    assert np.abs(found.weights["model.layers.0.attn.Wqkv.weight"].sum(1)).max() < 1e-12

    late = replace(stack, blocks=tuple(replace(b, attention_norm=None, bare_attention=True) for b in stack.blocks))
    with pytest.raises(rw.Refused, match=r"reads what blocks.0.* adds to the output of embedding_norm") as error:
        rw.apply(late, weights, [only])
    assert error.value.difference > 1e-3

    stack, weights = model("bloom", tie_word_embeddings=False)
    weights["transformer.word_embeddings_layernorm.weight"] = np.ones(16)
    weights["transformer.word_embeddings_layernorm.bias"] = np.zeros(16)
    with pytest.raises(rw.Refused, match="no linear map reads its output itself") as error:
        rw.apply(stack, weights, [only])
    assert error.value.difference > 1e-3


def test_the_shared_expert_is_balanced_with_the_others():
    stack, weights = model("qwen2_moe")
    draft = rw.apply(stack, weights, [do.Balance()]).draft
    shared = stack.blocks[1].feed_forward.shared
    sides = np.linalg.norm(draft.matrix(shared.up), axis=1), np.linalg.norm(draft.matrix(shared.down), axis=0)
    np.testing.assert_allclose(*sides, rtol=1e-12)


def test_the_unrotated_half_of_a_key_bias_is_void():
    stack, weights = model("gpt_neox")
    found = rw.apply(stack, weights, [do.DropKeyBias(unrotated_only=True)])
    assert found.certificate.passed
    assert found.certificate.changed


def test_the_certificate_says_how_far_weights_spread_before_and_after():
    stack, weights = model("llama")
    weights = {name: value.copy() for name, value in weights.items()}
    at = "model.layers.0.self_attn.q_proj.weight"
    weights[at][:, 3] *= 40  # a column of outliers, which a rotation spreads
    found = rw.apply(stack, weights, [do.FoldNorms(), do.Rotate(seed=2)])
    before, after = found.certificate.spread
    matrices = {name: value for name, value in weights.items() if value.ndim > 1}
    assert before.largest == max(np.abs(value).max() for value in matrices.values())
    assert before.largest_in == before.kurtosis_in == at
    expected = max(scipy.stats.kurtosis(value.ravel(), fisher=False) for value in matrices.values())
    np.testing.assert_allclose(before.kurtosis, expected, rtol=1e-10)
    assert after.kurtosis < before.kurtosis / 2
    assert after.largest < before.largest / 1.5
    assert f"largest kurtosis: {before.kurtosis:.3g} ({at}) → {after.kurtosis:.3g} (" in str(found.certificate)
    assert found.certificate.to_json()["spread"][0]["largest_in"] == at
    unmatched = rw.apply(*model("gpt2"), [do.DropKeyBias()]).certificate.spread
    assert unmatched is None, "no matrix was changed"


def test_rotation_of_a_layer_norm_stack_fixes_the_ones():
    stack, weights = model("gpt2")
    found = rw.apply(stack, weights, [do.Untie(), do.FoldNorms(), do.Rotate(seed=2)])
    assert found.certificate.passed
    assert all(n.part.kind == "layer" for n in found.stack.norms)
    before, after = (w["transformer.wpe.weight"] for w in (weights, found.weights))
    np.testing.assert_allclose(before.sum(1), after.sum(1), atol=1e-12)
    assert np.abs(before - after).max() > 0.1


def test_equal_gains_commute_with_rotations_even_where_they_cannot_be_folded():
    stack, weights = model("gemma2")
    for site in stack.norms:
        weights[site.part.gain] = np.full(16, 0.25)
    found = rw.apply(stack, weights, [do.Rotate()])
    assert found.certificate.passed
    assert found.stack.tied


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", ["opt", "llama", "mixtral"])
def test_scaling_units_by_powers_of_two_is_exact_bit_for_bit(kind, dtype):
    stack, weights = model(kind, dtype)
    weights = {n: 37 * w if "down" in n or "fc2" in n else w for n, w in weights.items()}
    found = rw.apply(stack, weights, [do.Balance(power_of_two=True)])
    assert found.certificate.passed
    before, after = (outputs(stack, w, TOKENS) for w in (weights, found.weights))
    assert (before == after).all()
    assert any((weights[n] != found.weights[n]).any() for n in weights)


def test_balanced_units_have_equal_norms_on_both_sides():
    stack, weights = model("opt")
    found = rw.apply(stack, weights, [do.Balance()])
    up, b, down = (found.weights[f"model.decoder.layers.0.{n}"] for n in ("fc1.weight", "fc1.bias", "fc2.weight"))
    np.testing.assert_allclose((up**2).sum(1) + b**2, (down**2).sum(0), rtol=1e-12)


def test_balancing_squared_relu_makes_the_sum_of_squares_smallest():
    stack, weights = model("opt", activation_function="relu2")
    found = rw.apply(stack, weights, [do.Balance()])
    assert found.certificate.passed
    up, b, down = (found.weights[f"model.decoder.layers.0.{n}"] for n in ("fc1.weight", "fc1.bias", "fc2.weight"))
    into, out = (up**2).sum(1) + b**2, (down**2).sum(0)
    for c in (0.99, 1.01):
        assert (into * c**2 + out / c**4 > into + out).all()


def certificate_of(kind, steps, spoil=None, exchange=None):
    """The certificate of a rewrite in which something was changed afterwards."""
    stack, weights = model(kind)
    made = plan(stack, weights, steps)
    draft, after = made.draft.copy(), made.stack
    if spoil:
        spoil(draft)
    if exchange:
        after = exchange(after)
    return certify((stack, Draft(weights)), (after, draft), (), TOKENS, made.moves_logits)


FOLD = [do.FoldNorms()]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight"),
        ("deepseek_v3", "model.layers.1.self_attn.q_b_proj.weight"),
        ("deepseek_v3", "model.layers.1.self_attn.kv_b_proj.weight"),
        ("deepseek_v3", "model.layers.1.mlp.shared_experts.gate_proj.weight"),
    ],
)
def test_a_forgotten_reader_fails_the_certificate(kind, name):
    def forget(draft):
        draft.__dict__.update(draft.without(name).__dict__)

    assert certificate_of(kind, FOLD).passed
    assert not certificate_of(kind, FOLD, forget).passed


def test_an_epsilon_of_its_own_fails_the_certificate():
    def rebuild(stack):
        return exchange(stack, {n.path: replace(n.part, eps=1e-5) for n in stack.norms})

    assert not certificate_of("llama", FOLD, exchange=rebuild).passed


def test_a_bias_that_does_not_rotate_fails_the_certificate():
    steps = [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate()]
    unrotated = rw.apply(*model("gpt2"), steps[:-1]).weights["transformer.ln_f.bias"]
    assert np.any(unrotated)
    assert certificate_of("gpt2", steps).passed
    spoiled = certificate_of("gpt2", steps, lambda draft: draft.set("transformer.ln_f.bias", unrotated, "planted"))
    assert not spoiled.passed


def test_numbers_that_are_not_finite_pass_nothing():
    bad = np.full(16, np.nan)
    assert not certificate_of("llama", FOLD, lambda draft: draft.set("model.norm.weight", bad, "planted")).passed


def test_probes_that_see_nothing_pass_nothing():
    stack, weights = model("llama")
    blind = weights | {"lm_head.weight": np.zeros((23, 16))}
    certificate = rw.apply(stack, blind, FOLD).certificate
    assert certificate.exact.relative == 0
    assert not certificate.passed


def test_arrays_that_do_not_fit_the_description_are_named():
    stack, weights = model("gpt2")
    turned = weights | {"transformer.h.0.attn.c_attn.weight": weights["transformer.h.0.attn.c_attn.weight"].T}
    with pytest.raises(ValueError, match="c_attn"):
        rw.apply(stack, turned, [do.Untie()])
    missing = {k: v for k, v in weights.items() if k != "transformer.ln_f.bias"}
    with pytest.raises(ValueError, match=r"transformer\.ln_f\.bias"):
        rw.apply(stack, missing, [do.Untie()])


def test_biases_stay_where_a_sink_takes_part_of_the_attention():
    made = Made()
    sink = made.array(N)
    stack = made.stack(made.block(attention=made.attention(sink=sink)))
    stack = replace(stack, blocks=(replace(stack.blocks[0], attention=with_value_bias(stack, made)),))
    for step in (do.MergeValueBias(), do.DropKeyBias()):
        with pytest.raises(rw.Refused, match=r"sink") as caught:
            rw.apply(stack, made.weights, [step])
        assert caught.value.difference > 1e-3


def with_value_bias(stack, made):
    attention = stack.blocks[0].attention
    return replace(attention, value=replace(attention.value, bias=made.array(6)))


def test_arrays_of_jax_are_rewritten_too():
    stack, weights = model("llama")
    found = rw.apply(stack, {name: jnp.asarray(w, jnp.bfloat16) for name, w in weights.items()}, [*FOLD, do.Rotate()])
    assert found.certificate.passed
    assert found.certificate.dtype == "bfloat16"
    assert isinstance(found.weights, dict)


def test_a_function_is_told_to_be_described():
    with pytest.raises(ValueError, match="check_description"):
        rw.apply(lambda params, tokens: tokens, {}, FOLD)  # pyright: ignore[reportArgumentType]


def test_a_bias_that_nothing_can_take_is_refused():
    made = Made()
    attention = Attention(*(made.linear(N * K, D, bias=False) for _ in range(3)), made.linear(D, N * K), N, N, K, K)
    stack, weights = made.stack(made.block(attention=attention, kind="rms")), made.weights
    found = rw.apply(stack, weights, [do.FoldNorms()])
    assert found.certificate.passed
    kept = stack.blocks[0].attention_norm
    np.testing.assert_allclose(found.weights[kept.bias], weights[kept.bias] / weights[kept.gain])
    weights[kept.gain][1] = 0.0
    with pytest.raises(rw.Refused, match="bias of zeros"):
        rw.apply(stack, weights, [do.FoldNorms()])


def test_a_path_that_no_norm_has_is_refused():
    with pytest.raises(rw.Refused, match="no norm has such a path"):
        rw.apply(*model("llama"), [do.FoldNorms(only=("layers.*",))])


def test_only_orthogonal_matrices_of_the_right_size_rotate():
    for matrix, words in ((np.eye(5), "16 × 16"), (2 * np.eye(16), "orthogonal")):
        with pytest.raises(ValueError, match=words):
            rw.apply(*model("llama"), [do.FoldNorms(), do.Rotate(matrix=matrix)])


@pytest.mark.parametrize("text", ["foldy", "", "rotate=x", "scale", "scale=x", "untie=all", "scale-channels", "smooth"])
def test_unknown_steps_and_values_are_named(text):
    with pytest.raises(ValueError, match=r"step|factor|number of rows|needs a file"):
        rw.steps.parse(text)


def test_a_gain_that_two_norms_share_is_not_folded():
    stack, weights = model("llama")
    one, other = stack.norms[:2]
    shared = exchange(stack, {other.path: replace(other.part, gain=one.part.gain)})
    with pytest.raises(rw.Refused, match="shares") as caught:
        rw.apply(shared, weights, [do.FoldNorms()])
    assert caught.value.difference > 1e-3


def fused(seed=0):
    """A stack with fused and transposed arrays, stacked experts and interleaved gates, biases everywhere."""
    made = Made(seed)
    whole, offsets = made.array(D, 3 * N * K), made.array(3 * N * K)
    inputs = [Linear(whole, offsets, "io", Rows(j * K, K, N, 3 * K)) for j in range(3)]
    gates, offsets, out, last = made.array(2, 2 * F, D), made.array(2, 2 * F), made.array(2, F, D), made.array(2, D)
    experts = tuple(
        FeedForward(
            Linear(gates, offsets, rows=Rows(1, 1, F, 2), expert=e),
            Linear(out, last, "io", expert=e),
            Linear(gates, offsets, rows=Rows(0, 1, F, 2), expert=e),
            "silu",
        )
        for e in range(2)
    )
    attention = Attention(*inputs, Linear(made.array(N, K, D), made.array(D), "io", input_axes=2), N, N, K, K)
    blocks = [
        made.block(attention=attention, network=Mixture(made.linear(2, D), experts, top=1, renormalize=False)),
        made.block(parallel=True, shared=True),
        made.block("sandwich"),
    ]
    return made.stack(*blocks), made.weights


@pytest.mark.parametrize(
    "steps",
    [
        [do.Balance(), do.RotateValues(), do.MergeValueBias(), do.DropKeyBias(), do.CentreRouter(), do.CentreHead()],
        [do.FoldNorms(), do.CentreWriters(), do.ScaleStream(0.3), do.ShiftTables()],
    ],
)
def test_fused_arrays_and_stacked_experts_are_rewritten(steps):
    stack, weights = fused()
    if any(isinstance(step, do.Balance) for step in steps):
        gated = replace(stack, blocks=stack.blocks[:1])
        assert rw.apply(gated, weights, steps).certificate.passed
        stack, steps = stack, [step for step in steps if not isinstance(step, do.Balance)]
    found = rw.apply(stack, weights, steps)
    assert found.certificate.passed, found.certificate


def test_fused_arrays_are_rotated():
    stack, weights = fused()
    stack = replace(stack, blocks=stack.blocks[:2])
    steps = [do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate()]
    found = rw.apply(stack, weights, steps)
    assert found.certificate.passed, found.certificate


@pytest.mark.parametrize("placing", ["pre", "sandwich", "outer", "post"])
def test_the_stream_is_scaled_wherever_the_norms_stand(placing):
    made = Made()
    options = {"final": None} if placing == "post" else {}
    stack = made.stack(made.block(placing), made.block(placing), embedding_norm=made.norm(), **options)
    found = rw.apply(stack, made.weights, [do.ScaleStream(3.0)])
    assert found.certificate.passed, found.certificate
    with pytest.raises(rw.Refused, match=r"ε = 0\.1"):
        rw.apply(stack, made.weights, [do.ScaleStream(3.0, scale_epsilon=False)])


def test_a_description_is_held_against_the_model_itself():
    stack, weights = model("gemma")
    found = rw.check_description(stack, weights, lambda tokens: outputs(stack, weights, tokens).astype(np.float32))
    assert found.relative < 1e-6
    plain = exchange(stack, {n.path: replace(n.part, offset=0) for n in stack.norms})
    with pytest.raises(ValueError, match="not that of the model"):
        rw.check_description(plain, weights, lambda tokens: outputs(stack, weights, tokens))
    with pytest.raises(ValueError, match="differ by inf"):
        rw.check_description(stack, weights, lambda tokens: np.full((*tokens.shape, 23), np.nan))


@pytest.mark.parametrize("hadamard", [True, False])
def test_values_are_turned_by_a_hadamard_matrix_where_that_is_preferred(hadamard):
    stack, weights = model("llama")
    found = rw.apply(stack, weights, [do.RotateValues(hadamard=hadamard)]).weights
    name = stack.blocks[0].attention.value.weight
    size = stack.blocks[0].attention.value_width
    R = np.linalg.lstsq(weights[name][:size].T, found[name][:size].T)[0].T
    np.testing.assert_allclose(R @ R.T, np.eye(size), atol=1e-10)
    assert np.allclose(np.abs(R), size**-0.5) == hadamard


def test_value_biases_of_grouped_heads_move_behind_the_average():
    variant = Variant(heads=4, kv_heads=2, vocabulary=9, blocks=1)
    stack, shapes = build(variant)
    found = rw.apply(stack, layout_weights(variant, shapes, 0), [do.MergeValueBias()])
    assert found.certificate.passed, found.certificate
    assert not np.any(found.weights[stack.blocks[0].attention.value.bias])
