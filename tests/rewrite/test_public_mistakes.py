"""Mistakes that were made in public with such rewrites: each is refused, or done right."""

import json
from dataclasses import replace

import numpy as np
import pytest
from lngeom.rewrite import steps as do
from lngeom.transformers import Rows, rewrite as rw
from lngeom.transformers.description import exchange
from lngeom.transformers.rewrite.certificate import difference, outputs
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.layouts import describe

from tests.rewrite.test_steps import TOKENS, certificate_of, model
from tests.rewrite.zoo import CONFIGS, Everything, checkpoint


def change(kind, weights, rewritten, **options):
    """Relative change of the true model's logits by other arrays."""
    stack, _ = model(kind, **options)
    return difference(outputs(stack, weights, TOKENS), outputs(stack, rewritten, TOKENS)).relative


def test_a_centred_embedding_before_rmsnorm_is_refused():
    """QuaRot 7 and 57, SpinQuant 14, llm-compressor 1637, LightCompress 92, TransformerCompression 129."""
    stack, weights = model("llama")
    name = "model.embed_tokens.weight"
    with pytest.raises(rw.Refused) as caught:
        rw.apply(stack, weights, [do.CentreWriters(only=("tables.0",))])
    centred = weights | {name: weights[name] - weights[name].mean(1, keepdims=True)}
    assert caught.value.difference == pytest.approx(change("llama", weights, centred), rel=0.5)
    assert caught.value.difference > 0.05


def test_a_head_that_is_the_embedding_is_not_folded_in_place():
    """QuaRot 17, GPTQModel 1550, AngelSlim 319."""
    for kind in ("gpt2", "opt", "gemma"):
        with pytest.raises(rw.Refused, match="Untie"):
            rw.apply(*model(kind), [do.FoldNorms()])
        found = rw.apply(*model(kind), [do.Untie(), do.FoldNorms()])
        assert found.certificate.passed
        table = found.stack.tables[0].weight
        np.testing.assert_array_equal(found.weights[table], model(kind)[1][table])


def test_opt_centred_and_rotated_keeps_its_outputs():
    """QuaRot 30."""
    steps = [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate()]
    assert rw.apply(*model("opt"), steps).certificate.passed


def test_rotation_without_folding_is_refused():
    """PrefixQuant 5."""
    with pytest.raises(rw.Refused, match=r"rotate refused .* \(fold\)"):
        rw.apply(*model("llama"), [do.Rotate()])


def test_the_mean_goes_over_the_output_axis():
    """QuaRot 57's other question."""
    stack, weights = model("opt")
    found = rw.apply(stack, weights, [do.Untie(), do.CentreWriters()])
    W = found.weights["model.decoder.layers.0.fc2.weight"]  # [out, in]
    np.testing.assert_allclose(W.mean(0), 0, atol=1e-15)
    assert np.abs(W.mean(1)).max() > 0.01


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_new_norm_keeps_the_old_epsilon(kind):
    """`RMSN` with ε = 1e-5 in QuaRot and TransformerCompression, Megatron-Bridge 5712."""
    steps = [do.Untie(), do.FoldNorms(), *([do.CentreWriters(), do.ToRMSNorm()] if kind == "gpt2" else [])]
    stack, weights = model(kind)
    kept = rw.apply(stack, weights, steps).stack
    assert {n.part.eps for n in kept.norms} == {n.part.eps for n in stack.norms}
    other = 1e-5 if kind == "llama" else 1e-6
    wrong = certificate_of(
        kind, steps, exchange=lambda s: exchange(s, {n.path: replace(n.part, eps=other) for n in s.norms})
    )
    assert not wrong.passed


def test_gains_of_one_plus_w_are_folded_as_such():
    """Model-Optimizer 793, mold 1078 (added twice)."""
    stack, weights = model("gemma", tie_word_embeddings=False)
    found = rw.apply(stack, weights, [do.FoldNorms()])
    assert found.certificate.passed
    assert not np.any(found.weights["model.norm.weight"])
    plain = exchange(stack, {n.path: replace(n.part, offset=0) for n in stack.norms})
    misread = rw.apply(plain, weights, [do.FoldNorms()]).weights
    assert change("gemma", weights, misread, tie_word_embeddings=False) > 0.1


def test_a_norm_that_writes_is_not_taken_for_one_that_reads():
    """mlx-node 87: the same names have other roles in Gemma 2 and in Llama."""
    with pytest.raises(rw.Refused, match="attention_writing_norm"):
        rw.apply(*model("gemma2"), [do.FoldNorms(only=("*.attention_writing_norm",))])
    roles = {}
    for kind in ("llama", "gemma2", "olmo2"):
        stack, _ = model(kind)
        site = next(n for n in stack.norms if n.part.gain == "model.layers.0.post_attention_layernorm.weight")
        roles[kind] = stack.output_space(site).residual
    assert roles == {"llama": False, "gemma2": True, "olmo2": True}


@pytest.mark.parametrize(("kind", "read_as"), [("gemma2", "llama"), ("olmo2", "llama"), ("llama", "olmo2")])
def test_arrays_of_another_family_s_roles_are_named(kind, read_as, tmp_path):
    folder = checkpoint(tmp_path / "old", kind, tie_word_embeddings=False)
    config = json.loads((folder / "config.json").read_text())
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "sliding_window"):
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": read_as}))
    with pytest.raises(ValueError, match=r"norm\.weight"):
        rw.load(folder)


def test_a_post_norm_is_not_folded():
    """TransformerLens 509."""
    with pytest.raises(rw.Refused, match="residual stream"):
        rw.apply(*model("bert"), [do.FoldNorms()])


def test_matrices_of_another_layout_are_named():
    """TransformerLens 1580."""
    stack, weights = model("gpt2")
    name = "transformer.h.1.mlp.c_fc.weight"
    with pytest.raises(ValueError, match=r"c_fc.*\[out, in\] = "):
        rw.apply(stack, weights | {name: np.vstack([weights[name]] * 2)}, [])


def test_a_centred_head_is_certified_by_log_probabilities():
    """TransformerLens 693 (compared by logits) and 650 (soft cap)."""
    certificate = rw.apply(*model("llama"), [do.CentreHead()]).certificate
    assert certificate.passed
    assert certificate.exact.relative > 1e-3
    assert certificate.exact.relative_log_probabilities < 1e-14
    with pytest.raises(rw.Refused, match="cap"):
        rw.apply(*model("gemma2"), [do.Untie(), do.CentreHead()])


def test_the_router_reads_the_norm_too():
    """llm-compressor 2867."""
    stack, weights = model("mixtral")
    found = rw.apply(stack, weights, [do.FoldNorms()])
    router = "model.layers.0.block_sparse_moe.gate.weight"
    assert router in found.certificate.changed
    assert change("mixtral", weights, found.weights | {router: weights[router]}) > 0.1


def test_readers_of_a_shared_norm_are_all_folded():
    stack, weights = model("gptj")
    found = rw.apply(stack, weights, [do.FoldNorms()])
    up = "transformer.h.0.mlp.fc_in.weight"
    assert up in found.certificate.changed
    assert change("gptj", weights, found.weights | {up: weights[up]}) > 0.1


def test_the_key_bias_is_void_only_without_rotary_positions():
    """unilm 510."""
    found = rw.apply(*model("gpt2"), [do.DropKeyBias()])
    assert found.certificate.passed
    bias = found.weights["transformer.h.0.attn.c_attn.bias"]
    assert not np.any(bias[16:32])
    assert np.all(bias[:16])
    with pytest.raises(rw.Refused, match="rotary"):
        rw.apply(*model("qwen2"), [do.DropKeyBias()])


def test_value_rows_of_a_fused_matrix_are_those_of_each_head():
    stack, weights = model("gpt_neox")
    right = rw.apply(stack, weights, [do.MergeValueBias()])
    assert right.certificate.passed
    thirds = [Rows(16 * j, 16) for j in range(3)]
    blocks = tuple(
        replace(b, attention=replace(b.attention, value=replace(b.attention.value, rows=thirds[2])))
        for b in stack.blocks
    )
    wrong = rw.apply(replace(stack, blocks=blocks), weights, [do.MergeValueBias()]).weights
    assert change("gpt_neox", weights, wrong) > 0.1


def test_an_unknown_architecture_or_option_is_named():
    names = Everything("llama")
    for config, words in (
        ({"model_type": "mamba"}, "'mamba'"),
        ({}, "None"),
        ({"model_type": "llama", **CONFIGS["llama"], "residual_multiplier": 0.2}, "residual_multiplier"),
        ({"model_type": "llama", **CONFIGS["llama"], "quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "llama", **CONFIGS["llama"], "hidden_act": "mish"}, "mish"),
        (
            {"model_type": "llama", **CONFIGS["llama"], "rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
            "longrope",
        ),
        ({"model_type": "llama", "hidden_size": 16}, "num_attention_heads"),
        ({"model_type": "opt", **CONFIGS["opt"], "do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"model_type": "opt", **CONFIGS["opt"], "word_embed_proj_dim": 8}, "word_embed_proj_dim"),
        ({"model_type": "qwen2", **CONFIGS["qwen2"], "layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ({"model_type": "olmo", **CONFIGS["olmo"], "clip_qkv": 8.0}, "clip_qkv"),
    ):
        with pytest.raises(ValueError, match=words):
            describe(config, names)


def test_an_absent_head_does_not_mean_that_it_is_tied():
    stack, weights = model("gpt_neox")
    assert not stack.tied
    with pytest.raises(ValueError, match=r"embed_out\.weight"):
        rw.apply(stack, {k: v for k, v in weights.items() if k != "embed_out.weight"}, [])


def test_a_draft_leaves_its_source_alone():
    _, weights = model("llama")
    kept = {k: v.copy() for k, v in weights.items()}
    rw.apply(model("llama")[0], weights, [do.FoldNorms(), do.Rotate()])
    assert all((weights[k] == kept[k]).all() for k in kept)
    assert not Draft(weights).labels
