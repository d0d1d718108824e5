"""Options are read as the `transformers` package reads them: absent, null, by a second name, or unknown."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from analysis.models.families import CONFIGS, package, save_random
from lngeom.transformers import Groups, rewrite as rw
from lngeom.transformers.rewrite.certificate import outputs
from lngeom.transformers.rewrite.configs import IGNORED, READ, matches
from lngeom.transformers.rewrite.defaults import DEFAULTS, NOT_NULL, Alias, Derived, Maybe, Pair
from lngeom.transformers.rewrite.layouts import FAMILIES, describe

from tests.rewrite.test_checkpoints import lngeom
from tests.rewrite.zoo import Everything, checkpoint, write_file

TOKENS = np.random.default_rng(3).integers(2, 23, (3, 9))


def described(kind, config):
    return describe({"model_type": kind, **config}, Everything(kind))


@pytest.mark.parametrize(
    ("kind", "option", "read"),
    [
        ("gemma2", "final_logit_softcapping", lambda s: s.head.cap == 30),
        ("gemma2", "attn_logit_softcapping", lambda s: s.blocks[0].attention.cap == 50),
        ("gemma2", "sliding_window", lambda s: [b.attention.window for b in s.blocks] == [4096, None]),
        ("gemma2", "head_dim", lambda s: s.blocks[0].attention.query_width == 256),
        ("gemma2", "hidden_activation", lambda s: s.blocks[0].feed_forward.activation == "gelu_tanh"),
        ("gemma", "num_key_value_heads", lambda s: s.blocks[0].attention.kv_heads == 16),
        ("mistral", "sliding_window", lambda s: s.blocks[1].attention.window == 4096),
        ("mixtral", "num_key_value_heads", lambda s: s.blocks[1].attention.kv_heads == 8),
        ("qwen3", "head_dim", lambda s: s.blocks[1].attention.query_width == 128),
        ("gptj", "rotary_dim", lambda s: s.blocks[1].attention.rotary.coordinates == 64),
    ],
)  # fmt: skip
def test_an_absent_option_has_the_default_of_its_family(kind, option, read):
    config = {name: value for name, value in CONFIGS[kind].items() if name != option}
    if option == "num_key_value_heads":
        config |= {"num_attention_heads": 16, "hidden_size": 64, "head_dim": 4}
    if option == "rotary_dim":
        config |= {"n_embd": 256}
    assert read(described(kind, config))


def test_the_guide_names_every_family_once():
    guide = (Path(__file__).parents[2] / "analysis" / "REWRITES.md").read_text(encoding="utf-8")
    rows = [row for row in guide.partition("## Architectures")[2].splitlines()[:15] if row.startswith("| ")]
    named = re.findall(r"`([\w-]+)`", "".join(rows).replace("`model_type`", ""))
    assert sorted(named) == sorted(FAMILIES)


def test_every_family_has_options_and_a_small_model():
    assert set(FAMILIES) == set(DEFAULTS) == set(CONFIGS)


def test_null_is_not_absent():
    assert described("gemma2", CONFIGS["gemma2"] | {"final_logit_softcapping": None}).head.cap is None
    assert described("mistral", CONFIGS["mistral"] | {"sliding_window": None}).blocks[0].attention.window is None
    for kind, option in (("gptj", "rotary_dim"), ("mistral", "num_key_value_heads"), ("llama", "rms_norm_eps")):
        with pytest.raises(ValueError, match=f"{option}.*null"):
            described(kind, CONFIGS[kind] | {option: None})


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("llama", {"num_hidden_layers": "2"}, "'num_hidden_layers' must be an integer; got '2'"),
        ("llama", {"num_hidden_layers": True}, "'num_hidden_layers' must be an integer; got True"),
        ("llama", {"rms_norm_eps": "1e-6"}, "'rms_norm_eps' must be a number"),
        ("llama", {"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false"),
        ("llama", {"num_attention_heads": 0}, "must be positive"),
        ("llama", {"num_key_value_heads": 3}, "3 key/value heads must divide 4"),
        ("llama", {"rope_scaling": "linear"}, "'rope_scaling' must be an object or null"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "'factor' must be a positive number; got None"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "'factor' must be a positive number; got 0"),
        ("llama", {"rope_scaling": {"rope_type": ["linear"]}}, "rotary positions of type"),
        ("llama", {"hidden_act": ["silu"]}, "'hidden_act' must be a text"),
        ("llama", {"is_causal": False}, "'is_causal' is not covered: False"),
        ("gpt2", {"is_causal": None}, "'is_causal' is not covered: null"),
        ("qwen2", {"head_dim": None}, "'head_dim' must be an integer; got null"),
        ("bert", {"hidden_dropout_prob": None}, "'hidden_dropout_prob' must not be null"),
        ("llama", {"transformers_weights": "other.safetensors"}, "'transformers_weights' is not covered"),
        ("llama", {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' = 0.5 is not covered"),
        ("llama", {"rms_norm_epsilon": 1e-3}, "did you mean 'rms_norm_eps'"),
        ("qwen2", {"layer_types": ["full_attention"]}, "an entry for each of 2 layers"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "no sliding_window is in use"),
        ("mistral", {"sliding_window": 0}, "'sliding_window' must be positive"),
        ("gpt2", {"num_hidden_layers": 3}, "'n_layer' = 2 and 'num_hidden_layers' = 3 are two names"),
        ("gptj", {"rotary_dim": 3}, "'rotary_dim' must be even"),
        ("llama", {"quantization_config": {"bits": 4}}, "rewrite first, quantize afterwards"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "'topk_method' = 'noaux_tc' is not covered"),
        ("deepseek_v2", {"num_experts_per_tok": None}, "'num_experts_per_tok' must not be null"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy"}, "'n_group' and 'topk_group' must not be null"),
        ("deepseek_v2", {"norm_topk_prob": True}, "'norm_topk_prob' = True is not covered"),
        ("deepseek_v2", {"hidden_size": 18}, "'num_attention_heads' = 4 must divide hidden_size = 18"),
        ("deepseek_v2", {"kv_lora_rank": 1 << 25}, "a width above"),
        (
            "deepseek_v3",
            {"num_key_value_heads": 2},
            "'num_key_value_heads' = 2 must be null, or num_attention_heads = 4",
        ),
        ("deepseek_v3", {"head_dim": 8}, "'head_dim' = 8 must be qk_rope_head_dim = 4"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "'scoring_func' = 'softmax' is not covered"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "'moe_layer_freq' = 2 is not covered"),
        ("deepseek_v3", {"n_group": 4}, "6 experts must make 4 equal groups"),
        ("deepseek_v3", {"v_head_dim": None}, "'v_head_dim' must be an integer; got null"),
        ("deepseek_v3", {"n_group": None}, "'n_group' must be an integer; got null"),
        ("deepseek_v3", {"topk_group": 1}, "hold the 3 experts in use"),
        ("gpt_oss", {"swiglu_alpha": 1.5}, "'swiglu_alpha' = 1.5 is not covered"),
        ("gpt_oss", {"original_max_position_embeddings": None}, "must not be null"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "takes them as longrope"),
        (
            "olmo3",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
            "'truncate' = False is not",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": "x"}},
            "'mscale' must be a positive number",
        ),
        ("falcon", {"alibi": True}, "rounded to bfloat16"),
        ("falcon", {"head_dim": None}, "loads no Falcon that has it"),
        ("falcon", {"parallel_attn": False}, "runs no such model"),
        (
            "falcon",
            {"new_decoder_architecture": False, "multi_query": False},
            "'num_kv_heads' = 2 without 'multi_query'",
        ),
        ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "'clip_qkv' = 6.0 is not covered"),
        ("mpt", {"attn_config": {"softmax_scale": 0}}, "'softmax_scale' in 'attn_config' must be a positive number"),
        ("mpt", {"max_seq_len": 1}, "'max_seq_len' must be at least 2"),
        ("mpt", {"n_heads": 3, "d_model": 12}, "'n_heads' = 3 is not covered"),
        ("codegen", {"n_head": 2}, "'n_head' must be a multiple of 4"),
        ("gpt_neo", {"attention_layers": ["global", "far"]}, "must say global or local for each of 2 layers"),
        ("smollm3", {"no_rope_layers": [1]}, "an entry for each of 2 layers"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "'sliding_window_pattern' must be positive"),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}, "one for sliding_attention; it has 'rope_type'"),
        ("exaone4", {"sliding_window": None}, "'layer_types' must be given"),
        ("ministral", {"head_dim": None}, "'head_dim' must be an integer"),
        ("stablelm", {"qk_layernorm": True}, "'qk_layernorm' = True is not covered"),
        ("electra", {"embedding_size": 8}, "'embedding_size' = 8 is not covered"),
        ("vit", {"image_size": [9]}, "'image_size' must be an integer or a list of two"),
        ("vit", {"patch_size": [3, "3"]}, "'patch_size' must be an integer; got '3'"),
        ("vit", {"image_size": None}, "'image_size' must be an integer; got null"),
        ("vit", {"qkv_bias": None}, "'qkv_bias' must be true or false; got null"),
        ("vit", {"num_labels": 0}, "'num_labels' = 0 is not covered"),
        ("vit", {"id2label": {"0": "a"}}, "'num_labels' = 23 and 'id2label', which has 1, do not agree"),
        ("dinov2", {"image_size": [9, 18]}, "'image_size' = .* DINOv2 interpolates"),
        ("dinov2", {"mlp_ratio": 4.0}, "'mlp_ratio' must be an integer; got 4.0"),
        ("t5", {"is_decoder": True}, "'is_decoder' = True is not covered"),
        ("t5", {"feed_forward_proj": "gelu-gated"}, "'feed_forward_proj' = 'gelu-gated' must be an activation"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "'feed_forward_proj' = 'mish' is not covered"),
        ("t5", {"dense_act_fn": "mish"}, "'dense_act_fn' = 'mish' is not covered"),
        ("t5", {"relative_attention_num_buckets": 7}, "'relative_attention_num_buckets' = 7"),
        ("t5", {"relative_attention_max_distance": 2}, "'relative_attention_max_distance' = 2 are not covered"),
        ("whisper", {"num_hidden_layers": 3}, "'encoder_layers' = 2 and 'num_hidden_layers' = 3 are two names"),
        ("whisper", {"activation_function": "mish"}, "'activation_function' = 'mish' is not covered"),
        ("whisper", {"max_source_positions": None}, "'max_source_positions' must be an integer; got null"),
        ("ernie", {"use_task_id": True}, "'use_task_id' = True is not covered"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "in 'rope_parameters'"),
    ],
)
def test_malformed_options_are_named(kind, options, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        described(kind, CONFIGS[kind] | options)


def test_rope_scaling_replaces_rope_parameters():
    linear = {"rope_type": "linear", "factor": 4.0}
    config = CONFIGS["llama"] | {"rope_theta": 100.0}
    one = described("llama", config | {"rope_scaling": linear, "rope_parameters": {"rope_theta": 7.0}})
    assert one == described("llama", config | {"rope_parameters": linear})
    assert one.blocks[0].attention.rotary.frequencies[1] == 100.0**-0.5 / 4


YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}
LATENT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "hidden_act": "silu",
    "seq_aux": True,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "num_hidden_layers": 3,
    "pretraining_tp": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "use_cache": True,
    "v_head_dim": 128,
    "n_shared_experts": 2,
    "ep_size": 1,
}


@pytest.mark.parametrize(
    ("kind", "options", "weight", "groups", "latent"),
    [
        (
            "deepseek_v2",
            {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None}
            | {"n_routed_experts": 64, "num_experts_per_tok": 6, "topk_method": "greedy", "scoring_func": "softmax"}
            | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
            0.707,
            None,
            None,
        ),
        (
            "deepseek_v2",
            {"hidden_size": 5120, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536}
            | {"n_routed_experts": 160, "num_experts_per_tok": 6, "topk_method": "group_limited_greedy"}
            | {"n_group": 8, "topk_group": 3, "norm_topk_prob": False, "routed_scaling_factor": 16.0},
            0.707,
            Groups(8, 3, 1),
            1536,
        ),
        (
            "deepseek_v3",
            {"hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536}
            | {"n_routed_experts": 256, "num_experts_per_tok": 8, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
            | {"n_group": 8, "topk_group": 4, "norm_topk_prob": True, "num_nextn_predict_layers": 1},
            1.0,
            Groups(8, 4, 2),
            1536,
        ),
    ],
)
def test_the_options_of_published_models_with_latents_are_read(kind, options, weight, groups, latent):
    turns = {**YARN, "mscale": weight, "mscale_all_dim": weight}
    stack = described(kind, LATENT | options | {"rope_scaling": turns})
    a, mixture = stack.blocks[1].attention, stack.blocks[1].feed_forward
    assert a.score_scale == pytest.approx(192**-0.5 * (0.1 * weight * np.log(40) + 1) ** 2, rel=1e-12)
    assert a.rotary.factor == 1
    assert a.rotary.turned == slice(128, 192)
    assert (a.query_latent and a.query_latent.width, a.kv_latent.width, a.shared_width) == (latent, 512, 64)
    assert (mixture.groups, len(mixture.experts)) == (groups, options["n_routed_experts"])
    assert not hasattr(stack.blocks[0].feed_forward, "experts")


def test_the_window_of_mistral_holds_for_every_layer_whatever_layer_types_says():
    config = CONFIGS["mistral"] | {"layer_types": ["full_attention"] * 2}
    with pytest.raises(ValueError, match="layer_types"):
        described("mistral", config)
    found = describe({"model_type": "mistral", **config}, Everything("mistral"), ["layer_types"])
    assert [b.attention.window for b in found.blocks] == [3, 3]


def test_gelu_of_gemma_means_its_tanh_approximation():
    assert described("gemma", CONFIGS["gemma"] | {"hidden_act": "gelu"}) == described("gemma", CONFIGS["gemma"])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"unsloth_fixed": True, "unsloth_version": "2025.3", "is_llama_config": True}),
        ("llama", {"max_sequence_length": 2048, "neftune_noise_alpha": 5, "rope_interleaved": False}),
        ("llama", {"temperature": 0.6, "top_p": 0.9, "max_length": 4096, "_attn_implementation_autoset": True}),
        ("gemma", {"hidden_activation": "gelu"}),
        ("bert", {"pooler_fc_size": 768, "pooler_type": "first_token_transform", "directionality": "bidi"}),
        ("gpt2", {"_num_labels": 1, "n_special": 0, "predict_special_tokens": True, "finetuning_task": "x"}),
        ("gptj", {"scale_attn_weights": True, "summary_type": "cls_index", "gradient_checkpointing": False}),
        ("bloom", {"n_inner": None, "bias_dropout_fusion": True, "skip_bias_add_qkv": False, "unk_token_id": 0}),
        ("gpt_neox", {"rope_theta": 5.0, "partial_rotary_factor": 1.0}),
        (
            "whisper",
            {"forced_decoder_ids": [[1, 50259]], "suppress_tokens": [1], "decoder_layers": 6, "num_hidden_layers": 2},
        ),
        ("whisper", {"pad_token_id": 50257, "max_target_positions": 448, "scale_embedding": True, "max_length": 448}),
    ],
)
def test_options_that_no_code_reads_have_no_effect(kind, options):
    assert described(kind, CONFIGS[kind] | options) == described(kind, CONFIGS[kind])


def test_unknown_options_are_ignored_by_name_and_no_others(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(config | {"my_note": "x"}))
    with pytest.raises(ValueError, match="--ignore my_note"):
        rw.load(old)
    assert rw.load(old, ignore=["my_note"])[0] == described("llama", CONFIGS["llama"])
    for option in ("rms_norm_eps", "is_causal", "quantization_config"):
        with pytest.raises(ValueError, match=f"{option}.*cannot be ignored"):
            rw.load(old, ignore=["my_note", option])
    with pytest.raises(ValueError, match=r"has no option 'mynote' to ignore.*did you mean 'my_note'"):
        rw.load(old, ignore=["mynote"])
    command = (old, "--do", "fold,rotate", "--out", tmp_path / "new")
    assert lngeom(*command).exit_code == 2
    result = lngeom(*command, "--ignore", "my_note")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "new" / "config.json").read_text())["my_note"] == "x"


def test_sizes_that_the_arrays_do_not_have_are_named(tmp_path):
    for i, (kind, options) in enumerate(
        [
            ("llama", {"vocab_size": 24}),
            ("llama", {"intermediate_size": 21}),
            ("gpt2", {"n_positions": 13}),
            ("bert", {"type_vocab_size": 3}),
            ("phi3", {"intermediate_size": 19}),
            ("phi3", {"num_key_value_heads": 1}),
            ("falcon", {"num_kv_heads": 4}),
            ("qwen2_moe", {"moe_intermediate_size": 13}),
            ("qwen2_moe", {"shared_expert_intermediate_size": 15}),
            ("roberta", {"max_position_embeddings": 11}),
            ("gpt_oss", {"intermediate_size": 19}),
            ("deepseek_v2", {"n_shared_experts": 3}),
            ("deepseek_v3", {"moe_intermediate_size": 13}),
        ]
    ):
        old = checkpoint(tmp_path / str(i), kind)
        config = json.loads((old / "config.json").read_text())
        (old / "config.json").write_text(json.dumps(config | options))
        with pytest.raises(ValueError, match="config is that of another model"):
            rw.load(old)


def test_a_stacked_array_of_more_experts_than_the_config_says_is_named(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt_oss")
    arrays = {name: np.asarray(array) for name, array in rw.load(old)[1].stored.items()}
    name = "model.layers.1.mlp.experts.down_proj"
    write_file(old / "model.safetensors", arrays | {name: np.concatenate([arrays[name], arrays[name][:1]])})
    with pytest.raises(ValueError, match=r"layers.1.*config.json says 4 \(the number of experts"):
        rw.load(old)


# What the package's own classes say.


def configuration(kind):
    """The package's class of configurations."""
    return type(package().AutoConfig.for_model(kind))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_the_table_is_that_of_the_package(kind):
    made = configuration(kind)
    fields = {field.name: field for field in dataclasses.fields(made)}
    for name, entry in DEFAULTS[kind].items():
        if isinstance(entry, Alias):
            assert entry.name in DEFAULTS[kind]
        elif name in fields and name != "rope_parameters":
            plain = None if isinstance(entry, Derived) else entry
            default = entry.default if isinstance(entry, Maybe | Pair) else plain
            assert fields[name].default == default, name
    names = ("rope_theta", "rotary_emb_base", "global_rope_theta")
    base = next((DEFAULTS[kind][name] for name in names if name in DEFAULTS[kind]), 10000.0)
    local = {"global": base, "local": DEFAULTS[kind].get("rope_local_base_freq", 10000.0)}
    assert made.default_theta == (local if isinstance(made.default_theta, dict) else base)
    unread = [name for name in fields if name not in DEFAULTS[kind] and not matches(name, IGNORED)]
    assert not unread


NEEDED = {
    "electra": {"embedding_size": 256},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "ministral": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
}
"""Options whose defaults are refused."""


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_each_option_left_out_has_the_package_s_default(kind):
    made = configuration(kind)
    needed = NEEDED.get(kind, {})
    full = made(**needed).to_dict()
    reference = described(kind, full)
    for name in set(full) - {"model_type", *needed}:
        assert described(kind, {k: v for k, v in full.items() if k != name}) == reference, name


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_each_option_of_a_small_model_left_out_or_null_is_read_as_the_package_reads_it(kind):
    made = configuration(kind)
    small = CONFIGS[kind]
    for name in {**small, **DEFAULTS[kind]}:
        for config in ({k: v for k, v in small.items() if k != name}, small | {name: None}):
            try:
                theirs = described(kind, made(**config).to_dict())
            except Exception:  # the package refuses it, or we refuse what it makes of it
                continue
            try:
                ours = described(kind, config)
            except ValueError as error:
                if "null" not in str(error) and "must divide" not in str(error):
                    raise
                continue
            assert ours == theirs, (name, config.get(name, "absent"))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_null_that_the_package_does_not_load_is_refused(kind):
    made = configuration(kind)
    small = CONFIGS[kind]
    refused = []
    for name in {field.name for field in dataclasses.fields(made)} - {"model_type", "transformers_version"}:
        try:
            made(**small | {name: None})
        except Exception:
            refused.append(name)
            with pytest.raises(ValueError, match=name):
                described(kind, small | {name: None})
    assert set(NOT_NULL.get(kind, ())) - {"chunk_size_feed_forward"} <= set(refused)


@pytest.mark.peers
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_an_option_of_all_families_that_is_null_is_read_as_the_package_reads_it_or_refused(kind, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in (*READ, "head_dim", "pad_token_id", "dtype", "chunk_size_feed_forward"):
        (tmp_path / "config.json").write_text(json.dumps(config | {name: None}))
        try:
            found = outputs(*rw.load(tmp_path), TOKENS)
        except ValueError as error:
            assert name in str(error)  # noqa: PT017
            continue
        theirs = hf.logits(kind, tmp_path, TOKENS)
        assert np.abs(found - theirs).max() < 1e-12 * np.abs(theirs).max(), name


OTHER = {
    str: ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "quick_gelu", "relu2"],
    bool: [False, True],
    float: [0.03, 4.0],
    int: [1, 2, 4],
    list: [["full_attention", "sliding_attention"]],
    dict: [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False},
        {"rope_type": "default", "rope_theta": 50.0},
        {"type": "linear", "factor": 3.0, "rope_theta": 50.0},
    ],
}
SIZES = {"vocab_size", "num_hidden_layers", "n_layer"}


@pytest.mark.peers
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_each_option_of_another_value_is_read_as_the_package_reads_it_or_refused(kind, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    read, refused = 0, []
    for name, entry in DEFAULTS[kind].items():
        if isinstance(entry, Alias) or name in SIZES:
            continue
        for value in OTHER[entry.kind if isinstance(entry, Maybe | Derived | Pair) else type(entry)]:
            extra = {"use_sliding_window": True, "sliding_window": 2} if name == "layer_types" else {}
            folder = tmp_path / f"{name}-{read}-{len(refused)}"
            tokens = TOKENS if name != "pad_token_id" else np.where(value == TOKENS, value + 1, TOKENS)
            try:
                save_random(kind, {**CONFIGS[kind], **extra, name: value}, folder)
                theirs = hf.logits(kind, folder, tokens)
            except Exception:  # the package refuses it
                continue
            config = json.loads((folder / "config.json").read_text())  # as it was given, not as it was normalized
            dropped = {"rope_parameters"} if name.startswith(("rope", "rotary", "partial")) else set()
            given = {k: v for k, v in config.items() if k not in dropped} | {**CONFIGS[kind], **extra, name: value}
            (folder / "config.json").write_text(json.dumps(given))
            try:
                found = outputs(*rw.load(folder), tokens)
            except ValueError as error:
                refused.append(f"{name} = {value}: {error}")
                continue
            assert np.abs(found - theirs).max() < 1e-12 * np.abs(theirs).max(), (name, value)
            read += 1
    print(f"{kind}: {read} read, {len(refused)} refused", *refused, sep="\n  ")
    assert read > 5
