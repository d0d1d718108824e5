"""The client: folders of the public `transformers` package, rewritten and loaded back by it."""

import json

import numpy as np
import pytest
from analysis.models.families import CONFIGS, save_random
from lngeom.rewrite import steps as do
from lngeom.transformers import rewrite as rw
from lngeom.transformers.rewrite.certificate import outputs

from tests.rewrite.zoo import write_file

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

TOKENS = np.random.default_rng(3).integers(2, 23, (5, 9))
PLAIN = [do.Untie(), do.FoldNorms(), do.Rotate(seed=0)]
ENCODER = [do.Untie(), do.FoldNorms(only=("blocks.1.feed_forward_norm",)), do.MergeValueBias(), do.DropKeyBias()]
STEPS: dict[str, list[rw.steps.AbstractStep]] = {
    **{kind: [*PLAIN, do.Balance()] for kind in ("llama", "mistral", "qwen2", "qwen3")},
    **{kind: [*PLAIN, do.Balance()] for kind in ("smollm3", "seed_oss", "helium", "ernie4_5", "phi3", "glm", "gemma")},
    **{kind: [do.Untie(), do.FoldNorms(), do.Balance()] for kind in ("gemma3_text", "glm4", "olmo3")},
    **{kind: [*PLAIN, do.Balance(), do.CentreRouter()] for kind in ("olmoe", "qwen3_moe")},
    "vaultgemma": [*PLAIN, do.Balance()],
    "ministral": [*PLAIN, do.Balance()],
    "exaone4": [do.FoldNorms(), do.Balance(), do.RotateValues(seed=0)],
    "hunyuan_v1_dense": [*PLAIN, do.Balance()],
    "granite": [*PLAIN, do.Balance()],
    **{kind: [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0)] for kind in ("cohere", "cohere2")},
    "qwen2_moe": [*PLAIN, do.Balance(), do.CentreRouter()],
    "stablelm": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.Balance()],
    "arcee": [*PLAIN, do.Balance()],
    "nemotron": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.Balance()],
    "starcoder2": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias()],
    "phi": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias(), do.MergeParallelBias()],
    "persimmon": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias(), do.Balance()],
    "gemma2": [do.Untie(), do.FoldNorms(), do.Balance()],
    "olmo": [do.CentreWriters(), do.Rotate(seed=0), do.Balance()],
    "olmo2": [do.FoldNorms(), do.Balance()],
    "mixtral": [*PLAIN, do.Balance(), do.CentreRouter()],
    "gpt2": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias(), do.DropKeyBias()],
    "gpt_neox": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeParallelBias()],
    **{kind: [*PLAIN, do.Balance(), do.RotateValues(seed=1)] for kind in ("deepseek_v2", "deepseek_v3")},
    "gpt_oss": [*PLAIN, do.CentreRouter(), do.RotateValues(seed=1)],
    "codegen": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0)],
    "gpt_bigcode": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias()],
    "gpt_neo": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0)],
    "falcon": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias(), do.MergeParallelBias()],
    "mpt": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0)],
    "gptj": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0)],
    "opt": [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.Balance(), do.DropKeyBias()],
    **dict.fromkeys(("ernie", "roberta", "xlm-roberta", "camembert", "electra", "distilbert"), ENCODER),
    "modernbert": [do.Untie(), do.FoldNorms(), do.CentreReaders(), do.CentreWriters(), do.Balance()],
    "bert": [do.FoldNorms(only=("blocks.1.feed_forward_norm",)), do.MergeValueBias(), do.DropKeyBias()],
    "bloom": [do.Untie(), do.FoldNorms(), do.MergeValueBias(), do.DropKeyBias()],
    "vit": [do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0), do.MergeValueBias(), do.DropKeyBias()],
    "dinov2": [do.FoldNorms(), do.FoldScales(), do.CentreWriters(), do.Rotate(seed=0), do.RotateValues(seed=1)],
    "t5": [*PLAIN, do.Balance(), do.RotateValues(seed=1)],
    "whisper": [do.FoldNorms(), do.CentreWriters(), do.MergeValueBias(), do.RotateValues(seed=1)],
}


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(a).max())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_rewritten_folder_has_the_package_s_logits(kind, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind], tmp_path / "old")
    theirs = hf.logits(kind, tmp_path / "old", TOKENS)
    stack, weights = rw.load(tmp_path / "old")
    assert relative(theirs, outputs(stack, weights, TOKENS)) < 1e-12

    rewritten = rw.apply(stack, weights, STEPS[kind])
    assert rewritten.certificate.passed, rewritten.certificate
    rw.save(rewritten, tmp_path / "new")
    assert relative(theirs, hf.logits(kind, tmp_path / "new", TOKENS)) < 1e-12


YARN = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS = [
    ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 32}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, "attention_bias": True}),
    ("llama", {"tie_word_embeddings": True, "mlp_bias": True, "head_dim": 6}),
    ("llama", {"rope_parameters": YARN, "head_dim": 16}),
    ("qwen3", {"rope_parameters": {**YARN, "truncate": False, "beta_fast": 4.0, "beta_slow": 2}, "head_dim": 16}),
    ("llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}, "head_dim": 16}),
    ("glm", {"rope_parameters": {**YARN, "attention_factor": 1.5, "partial_rotary_factor": 0.5}, "head_dim": 16}),
    ("olmo3", {"rope_scaling": YARN}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1, "layer_types": None}),
    ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "relu"}),
    ("roberta", {"pad_token_id": 0}),
    ("electra", {"tie_word_embeddings": False, "hidden_act": "relu"}),
    ("bloom", {"n_head": 2, "hidden_size": 16}),
    ("phi", {"qk_layernorm": True}),
    ("deepseek_v2", {"q_lora_rank": 6, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0}),
    ("deepseek_v2", {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}, "qk_rope_head_dim": 8}),
    ("deepseek_v2", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 32}}),
    ("deepseek_v3", {"rope_interleave": False, "q_lora_rank": None, "norm_topk_prob": False, "qk_nope_head_dim": 3}),
    ("deepseek_v3", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, "qk_rope_head_dim": 16}),
    ("deepseek_v3", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0}, "qk_rope_head_dim": 16}),
    ("deepseek_v3", {"attention_bias": True, "num_key_value_heads": None, "rope_scaling": YARN, "hidden_size": 18}),
    ("gpt_oss", {"rope_theta": 150000.0, "head_dim": 16, "attention_bias": False}),
    ("modernbert", {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}),
    ("modernbert", {"decoder_bias": False, "classifier_activation": "silu", "global_attn_every_n_layers": 1}),
    ("cohere", {"use_qk_norm": True, "attention_bias": True}),
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    ("qwen2_moe", {"norm_topk_prob": True, "mlp_only_layers": [], "qkv_bias": False}),
    ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 3}),
    ("granite", {"residual_multiplier": 1, "attention_bias": True}),
    ("persimmon", {"qk_layernorm": False}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    ("phi3", {"partial_rotary_factor": 0.5, "sliding_window": 3}),
    ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("olmo3", {"rope_theta": 100.0}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 3}),
    ("qwen3_moe", {"norm_topk_prob": True, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 3}),
    ("gpt_bigcode", {"multi_query": False}),
    ("falcon", {"num_ln_in_parallel_attn": 1}),
    ("falcon", {"new_decoder_architecture": False, "multi_query": True}),
    ("falcon", {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "num_kv_heads": 4}),
    ("mpt", {"attn_config": {"softmax_scale": 0.7, "alibi": False}}),
    ("opt", {"tie_word_embeddings": False, "activation_function": "gelu"}),
    ("vit", {"qkv_bias": False, "head_dim": 6, "hidden_act": "gelu_new"}),
    ("vit", {"image_size": [3, 27], "patch_size": [1, 9], "layer_norm_eps": 0.1}),
    ("dinov2", {"use_swiglu_ffn": True, "hidden_act": "relu", "use_mask_token": False}),
    ("dinov2", {"qkv_bias": False, "mlp_ratio": 3, "layerscale_value": 0.1}),
    ("t5", {"feed_forward_proj": "gated-gelu", "d_kv": 6}),
    ("t5", {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 6, "tie_word_embeddings": False}),
    ("t5", {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}),
]


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=[f"{k}-{next(iter(o))}" for k, o in VARIANTS])
def test_options_of_a_family_are_read_as_the_package_reads_them(kind, options, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind] | options, tmp_path / "old")
    found = outputs(*rw.load(tmp_path / "old"), TOKENS)
    assert relative(hf.logits(kind, tmp_path / "old", TOKENS), found) < 1e-12


LOW = [
    (kind, d) for kind in ("llama", "gemma", "gpt2", "opt", "mixtral", "deepseek_v2") for d in ("float32", "bfloat16")
]
LOW.append(("deepseek_v3", "float32"))  # in bfloat16 rounding changes which experts are chosen, at some positions


@pytest.mark.parametrize(("kind", "dtype"), LOW)
def test_in_low_precision_it_is_as_near_as_the_original(kind, dtype, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind], tmp_path / "old", dtype)
    exact = hf.logits(kind, tmp_path / "old", TOKENS)  # the rounded arrays, run in float64
    rewritten = rw.apply(*rw.load(tmp_path / "old"), STEPS[kind])
    assert rewritten.certificate.passed, rewritten.certificate
    rw.save(rewritten, tmp_path / "new")
    before = relative(exact, hf.logits(kind, tmp_path / "old", TOKENS, dtype))
    after = relative(exact, hf.logits(kind, tmp_path / "new", TOKENS, dtype))
    assert after < 4 * before


def another_head(folder, table, head):
    arrays = stored(folder)
    write_file(folder / "model.safetensors", arrays | {head: 0.5 - arrays[table]})


def equal_heads(folder, table, head):
    arrays = stored(folder)
    write_file(folder / "model.safetensors", arrays | {head: arrays[table]})


def head_alone(folder, table, head):
    write_file(folder / "model.safetensors", {head if n == table else n: a for n, a in stored(folder).items()})


def other_shards(folder, table, head):
    """An index, and a shard of other numbers, beside the one file."""
    name = "model-00001-of-00001.safetensors"
    write_file(folder / name, {n: a + 1 for n, a in stored(folder).items()})
    index = {"metadata": {"total_size": 0}, "weight_map": dict.fromkeys(stored(folder), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def other_formats(folder, table, head):
    (folder / "pytorch_model.bin").write_bytes(b"old arrays")
    (folder / "model.fp16.safetensors").write_bytes(b"a variant")


def incomplete_index(folder, table, head):
    """An index that names the shard, and not all of its arrays."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": {table: "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def config_without(*names):
    def change(folder, table, head):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in names}))

    return change


def other_names(folder, table, head):
    """Without the prefix of the base model, or with the names of BERT's first norms, or with today's name of a head."""
    words = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta", "embed_out.": "lm_head."}
    arrays = {}
    for name, array in stored(folder).items():
        new = name.removeprefix("transformer.").removeprefix("gpt_neox.")
        for old, word in words.items():
            new = new.replace(old, word)
        arrays[new] = array
    write_file(folder / "model.safetensors", arrays)


ODD = {f.__name__: f for f in (another_head, equal_heads, head_alone, other_shards, other_formats, incomplete_index)}
ODD |= {"no_tie_key": config_without("tie_word_embeddings"), "other_names": other_names}
TABLES = {
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "gpt_neox": ("gpt_neox.embed_in.weight", "embed_out.weight"),
    "opt": ("model.decoder.embed_tokens.weight", "lm_head.weight"),
    "bloom": ("transformer.word_embeddings.weight", "lm_head.weight"),
    "qwen3": ("model.embed_tokens.weight", "lm_head.weight"),
    "mixtral": ("model.embed_tokens.weight", "lm_head.weight"),
}


def stored(folder):
    return {name: np.asarray(array) for name, array in rw.load(folder)[1].stored.items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", TABLES)
def test_an_odd_folder_is_read_as_the_package_reads_it_or_refused(kind, odd, tied, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind] | {"tie_word_embeddings": tied}, tmp_path / "old")
    table, head = TABLES[kind]
    ODD[odd](tmp_path / "old", table, head)
    try:
        stack, weights = rw.load(tmp_path / "old")
    except ValueError:
        if (odd, tied) not in {("head_alone", False), ("no_tie_key", True), ("no_tie_key", False)}:
            raise
        return
    spare = ("embed_out.weight", "lm_head.weight") if odd == "no_tie_key" else ()
    theirs = hf.all_outputs(kind, tmp_path / "old", TOKENS, spare=spare)[0]
    assert relative(theirs, outputs(stack, weights, TOKENS)) < 1e-12
    steps = [do.Untie(), do.MergeValueBias()] if kind in {"gpt2", "bert", "opt"} else [do.Untie(), do.RotateValues()]
    rw.save(rw.apply(stack, weights, steps), tmp_path / "new")
    assert relative(theirs, hf.all_outputs(kind, tmp_path / "new", TOKENS, spare=spare)[0]) < 1e-12
