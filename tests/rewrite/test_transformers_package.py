"""The client: folders of the public `transformers` package, rewritten and loaded back by it."""

import numpy as np
import pytest
from lngeom import rewrite as rw
from lngeom.rewrite.certificate import outputs

from tests.rewrite.zoo import CONFIGS

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

TOKENS = np.random.default_rng(3).integers(2, 23, (5, 9))
PLAIN = [rw.Untie(), rw.FoldNorms(), rw.Rotate(seed=0)]
STEPS: dict[str, list[rw.steps.AbstractStep]] = {
    **{kind: [*PLAIN, rw.Balance()] for kind in ("llama", "mistral", "qwen2", "qwen3")},
    "gemma": [*PLAIN, rw.Balance()],
    "gemma2": [rw.Untie(), rw.FoldNorms(), rw.Balance()],
    "olmo": [rw.CentreWriters(), rw.Rotate(seed=0), rw.Balance()],
    "olmo2": [rw.FoldNorms(), rw.Balance()],
    "mixtral": [*PLAIN, rw.Balance(), rw.CentreRouter()],
    "gpt2": [rw.Untie(), rw.FoldNorms(), rw.CentreWriters(), rw.Rotate(seed=0), rw.MergeValueBias(), rw.DropKeyBias()],
    "gpt_neox": [rw.FoldNorms(), rw.CentreWriters(), rw.Rotate(seed=0), rw.MergeParallelBias()],
    "gptj": [rw.FoldNorms(), rw.CentreWriters(), rw.Rotate(seed=0)],
    "opt": [rw.Untie(), rw.FoldNorms(), rw.CentreWriters(), rw.Rotate(seed=0), rw.Balance(), rw.DropKeyBias()],
    "bert": [rw.FoldNorms(only=("blocks.1.feed_forward_norm",)), rw.MergeValueBias(), rw.DropKeyBias()],
    "bloom": [rw.Untie(), rw.FoldNorms(), rw.MergeValueBias(), rw.DropKeyBias()],
}


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(a).max())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_rewritten_folder_has_the_package_s_logits(kind, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    hf.save_random(kind, CONFIGS[kind], tmp_path / "old")
    theirs = hf.logits(kind, tmp_path / "old", TOKENS)
    stack, weights = rw.load(tmp_path / "old")
    assert relative(theirs, outputs(stack, weights, TOKENS)) < 1e-12

    rewritten = rw.apply(stack, weights, STEPS[kind])
    assert rewritten.certificate.passed, rewritten.certificate
    rw.save(rewritten, tmp_path / "new")
    assert relative(theirs, hf.logits(kind, tmp_path / "new", TOKENS)) < 1e-12


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS = [
    ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 32}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, "attention_bias": True}),
    ("llama", {"tie_word_embeddings": True, "mlp_bias": True, "head_dim": 6}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1, "layer_types": None}),
    ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "relu"}),
    ("bloom", {"n_head": 2, "hidden_size": 16}),
    ("opt", {"tie_word_embeddings": False, "activation_function": "gelu"}),
]


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=[f"{k}-{next(iter(o))}" for k, o in VARIANTS])
def test_options_of_a_family_are_read_as_the_package_reads_them(kind, options, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    hf.save_random(kind, CONFIGS[kind] | options, tmp_path / "old")
    found = outputs(*rw.load(tmp_path / "old"), TOKENS)
    assert relative(hf.logits(kind, tmp_path / "old", TOKENS), found) < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "gemma", "gpt2", "opt", "mixtral"])
def test_in_low_precision_it_is_as_near_as_the_original(kind, dtype, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    hf.save_random(kind, CONFIGS[kind], tmp_path / "old", dtype)
    exact = hf.logits(kind, tmp_path / "old", TOKENS)  # the rounded arrays, run in float64
    rewritten = rw.apply(*rw.load(tmp_path / "old"), STEPS[kind])
    assert rewritten.certificate.passed, rewritten.certificate
    rw.save(rewritten, tmp_path / "new")
    before = relative(exact, hf.logits(kind, tmp_path / "old", TOKENS, dtype))
    after = relative(exact, hf.logits(kind, tmp_path / "new", TOKENS, dtype))
    assert after < 4 * before
