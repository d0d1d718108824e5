"""Every step and combination that the command offers, on every family, loaded back by the `transformers` package."""

import json
from collections import Counter

import numpy as np
import pytest
from analysis.models.families import CONFIGS, VISION, save_random
from lngeom.transformers import rewrite as rw
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.layouts import LABELS
from lngeom.transformers.rewrite.steps import STEPS, ScaleChannels, parse

from tests.rewrite.test_channels import scales_of

pytestmark = [pytest.mark.peers, pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]

TOKENS = np.random.default_rng(3).integers(2, 23, (3, 7))
IMAGES = np.random.default_rng(4).normal(size=(3, 9, 27))  # patches
SOUNDS = np.random.default_rng(4).normal(size=(3, 9, 24))  # two frames at each position
MARKED = {"scale", "rms", "turn-units", "turn-queries-and-keys"}  # transformers loads no exchanged norms
ALIKE = {"smooth", "fold-scales"}  # the first scales channels as scale-channels does; for the second see SCALED
LOADABLE = [word for word in STEPS if word not in MARKED | ALIKE]
WORDS = [*LOADABLE, "scale=2", "balance=power-of-two", "drop-key-bias=unrotated", "rotate=4"]
BEFORE = {True: ["", "untie,", "untie,fold,"], False: ["", "untie,fold,centre,rotate,"]}
"""What goes before a step, of models whose head is tied, and of others."""

LONG = 12  # random sequences of steps a family

SCALED = {"dinov2": ["fold-scales", "fold,fold-scales,centre,rotate"]}
"""Further plans of families whose branches have factors of channels."""

TWICE = ("llama", "gemma", "gemma2", "olmo", "olmo2", "mixtral", "gpt2", "gpt_neox", "gptj", "opt", "bert", "bloom")
TWICE += ("mistral", "qwen2", "qwen3")
"""Families that are rewritten untied, in one file, and tied, in shards, by half of the plans each; others by some."""

BIASES = {"attention_bias": True}
MODELS: list[tuple[str, dict, str | None, bool]] = [
    *((kind, {"tie_word_embeddings": tied}, None, tied) for kind in TWICE for tied in (False, True)),
    *(
        (kind, {"tie_word_embeddings": bool(i % 2)}, None, bool(i % 2))
        for i, kind in enumerate(CONFIGS)
        if kind not in TWICE
    ),
    *((kind, {**BIASES, "tie_word_embeddings": False}, None, False) for kind in ("llama", "gemma", "olmo2", "qwen3")),
    ("llama", {"mlp_bias": True, "tie_word_embeddings": True}, None, True),
    ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "relu"}, None, True),
    ("bert", {}, "BertForPreTraining", False),
    ("bert", {"tie_word_embeddings": False}, "BertForPreTraining", True),
    ("gpt2", {}, "GPT2DoubleHeadsModel", True),
    ("qwen3", {"pad_token_id": 0}, "Qwen3ForSequenceClassification", False),
    ("gemma", {"pad_token_id": 0}, "GemmaForTokenClassification", True),
    ("vit", {}, "ViTModel", False),
    ("dinov2", {}, "Dinov2Model", True),
    ("dinov2", {"use_swiglu_ffn": True}, None, True),
    ("t5", {"feed_forward_proj": "gated-gelu"}, "T5EncoderModel", False),
]


def plans(kind: str, tied: bool) -> list[str]:
    """Every step alone and after others, and random sequences; of families with a layout of others, some.

    Where a family has models of both kinds, `tied` tells which half of the plans.
    """
    draw = np.random.default_rng([len(kind), tied])
    before, count = (BEFORE[tied], LONG // 2) if kind in TWICE else ([""], LONG // 3)
    long = [",".join(draw.choice(WORDS, size=draw.integers(3, 7), replace=False)) for _ in range(count)]
    every = [f"{first}{word}" for first in before for word in WORDS] + [f"{BEFORE[False][-1]}balance"] + long
    return [*dict.fromkeys([*every, *SCALED.get(kind, ())])]


def made(text: str, stack, weights) -> list:
    """The steps of a text; those that scale channels get random scales of every place that can take them."""
    steps = []
    for word in text.split(","):
        if word == "scale-channels":
            step = ScaleChannels(scales_of(stack, weights))
            bad = {obstacle.site.split(" (")[0] for obstacle in step.obstacles(stack, Draft(weights))}
            kept = {path: s for path, s in step.scales.items() if not bad & {path, path.removesuffix(".up")}}
            steps += [ScaleChannels(kept)] if kept else []
        else:
            steps += parse(word)
    return steps


def moved(a: np.ndarray, b: np.ndarray, logits_move: bool) -> float:
    if logits_move:
        a, b = (x - x.max(-1, keepdims=True) for x in (a, b))
        a, b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (a, b))
    return float(np.abs(a - b).max() / np.abs(a).max())


@pytest.mark.parametrize(
    ("kind", "options", "name", "shards"), MODELS, ids=[f"{k}-{n or '-'.join(o)}-{s}" for k, o, n, s in MODELS]
)
def test_what_is_certified_is_what_the_package_loads(kind, options, name, shards, tmp_path, record_property):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind] | options, tmp_path / "old", name=name, shards=shards)
    assert (tmp_path / "old" / "model.safetensors.index.json").is_file() == shards
    stack, weights = rw.load(tmp_path / "old")
    own = {None, "BertForPreTraining", "GPT2DoubleHeadsModel", *(each for some in LABELS.values() for each in some)}
    spare = () if name in own else ("lm_head.weight",)
    tokens = SOUNDS if kind == "whisper" else IMAGES if kind in VISION else TOKENS
    theirs = hf.all_outputs(kind, tmp_path / "old", tokens, name=name)
    counts = Counter()
    worst = 0.0
    for i, text in enumerate(plans(kind, options.get("tie_word_embeddings", False))):
        steps = made(text, stack, weights)
        try:
            found = rw.apply(stack, weights, steps)
        except ValueError as error:
            if not isinstance(error, rw.Refused) and "flash-norm is for RMSNorms" not in str(error):
                raise
            counts["refused"] += 1
            continue
        target = tmp_path / f"new{i}"
        if not found.certificate.passed:
            counts["no certificate"] += 1
            continue
        try:
            certificate = rw.save(found, target)
        except ValueError as error:
            if "no config of model_type" not in str(error) and "is left out, and other norms" not in str(error):
                raise
            counts["no config"] += 1
            continue
        assert certificate.folder is not None
        ours = hf.all_outputs(kind, target, tokens, name=name, spare=spare)
        logits_move = any(step.moves_logits for step in steps) and name not in {
            "Qwen3ForSequenceClassification",
            "GemmaForTokenClassification",
        }
        apart = [moved(a, b, logits_move and j == 0) for j, (a, b) in enumerate(zip(theirs, ours, strict=True))]
        assert max(apart) < 1e-12, (text, apart)
        worst = max(worst, *apart)
        counts["certified"] += 1
    record_property("counts", json.dumps(counts))
    print(f"{kind} {name or options} {'shards' if shards else 'one file'}: {dict(counts)}, worst {worst:.1e}")
    assert counts["certified"] > (5 if kind in TWICE else 2)
    assert not counts["no certificate"]
