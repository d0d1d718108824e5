"""One sentence for what does not fit: parts of descriptions, steps, arrays, folders, numbers."""

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from lngeom.rewrite import steps as do
from lngeom.transformers import Attention, Block, FeedForward, Head, Linear, Norm, Rotary, Stack, Table, rewrite as rw
from lngeom.transformers.rewrite.layouts import describe

from tests.rewrite.zoo import CONFIGS, Everything, checkpoint


def model():
    attention = Attention(*(Linear(name) for name in ("q", "k", "v", "o")), 1, 1, 4, 4)
    block = Block(attention, FeedForward(Linear("up"), Linear("down")), "pre", Norm("rms", "g1"), Norm("rms", "g2"))
    draw = np.random.default_rng(0)
    weights = {name: draw.normal(size=(4, 4)) for name in ("q", "k", "v", "o", "up", "down", "E", "U")}
    weights |= {name: draw.uniform(1, 2, 4) for name in ("g1", "g2", "g3")}
    return Stack((Table("E"),), (block,), Head(Linear("U")), Norm("rms", "g3")), weights


STACK, WEIGHTS = model()
ATTENTION = STACK.blocks[0].attention
MAP = Linear("a")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Norm("rms", eps=-1e-6), "eps of a Norm must not be negative; got -1e-06"),
        (lambda: Norm("rms", eps=float("nan")), "eps of a Norm must be finite"),
        (lambda: Norm("rms", eps=float("inf")), "eps of a Norm must be finite"),
        (lambda: replace(ATTENTION, heads=0), "heads of an Attention must be positive; got 0"),
        (lambda: replace(ATTENTION, kv_heads=0), "kv_heads of an Attention must be positive"),
        (lambda: replace(ATTENTION, cap=0.0), "cap of an Attention must be positive"),
        (lambda: replace(ATTENTION, window=0), "window of an Attention must be positive"),
        (lambda: replace(ATTENTION, scale=float("nan")), "scale of an Attention must be finite"),
        (lambda: Head(MAP, cap=-1.0), "cap of a Head must be positive"),
        (lambda: Rotary((1.0, float("nan"))), "frequencies of a Rotary must be finite"),
        (lambda: Table("E", scale=0.0), "must not be 0"),
        (lambda: Linear("a", layout="io "), "layout of a Linear must be one of 'oi', 'io'"),
        (lambda: do.Rotate(seed=-1), "seed of a Rotate must not be negative"),
        (lambda: do.ScaleStream(float("nan")), "factor of a ScaleStream must be finite"),
    ],
)
def test_numbers_without_meaning_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Norm("rms", eps="1e-6"), "eps of a Norm must be a number; got '1e-6'"),
        (lambda: Norm("rms", eps=True), "eps of a Norm must be a number; got True"),
        (lambda: replace(ATTENTION, heads=2.0), "heads of an Attention must be an integer; got 2.0"),
        (lambda: replace(ATTENTION, causal="false"), "causal of an Attention must be True or False; got 'false'"),
        (lambda: replace(ATTENTION, query="q"), "query of an Attention must be a Linear; got 'q'"),
        (lambda: replace(ATTENTION, query=Linear), r"got the class Linear \(did you mean Linear\(...\)\?\)"),
        (
            lambda: Stack(Table("E"), (), Head(MAP)),
            "tables of a Stack must be a tuple, each entry a Table; got a Table",
        ),
        (lambda: Stack([Table("E")], (), Head(MAP)), "tables of a Stack must be a tuple"),
        (lambda: Linear(None), "weight of a Linear must be a text; got None"),
        (lambda: do.FoldNorms(only="final"), "only of a FoldNorms must be a tuple, each entry a text; got 'final'"),
    ],
)
def test_fields_of_another_type_are_refused(make, words):
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("fold", r"such as \[rw.steps.FoldNorms\(\)\]; got the text 'fold'"),
        ("untie,rotat", r"such as \[rw.steps.Untie\(\), rw.steps.Rotate\(\)\]"),
        (do.FoldNorms, r"got the class FoldNorms \(did you mean FoldNorms\(...\)\?\)"),
        (do.FoldNorms(), r"did you mean \[FoldNorms"),
        (None, "must be a list of steps, such as .*; got None"),
        ([None], "a step must be an object, such as .*; got None"),
        (["foldd"], r"such as rw.steps.FoldNorms\(\); got the text 'foldd'"),
        ([do.Untie], r"did you mean Untie\(...\)"),
    ],
)
def test_what_is_no_list_of_steps_is_told_so(steps, words):
    with pytest.raises(TypeError, match=words):
        rw.apply(STACK, WEIGHTS, steps)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            np.ndarray.tolist,
            "'E' must be a NumPy or JAX array of real numbers; got a list: make it one with np.asarray",
        ),
        (lambda a: a.astype(object), "got an array of dtype object"),
        (lambda a: a.astype(str), "give it a dtype of real numbers"),
        (lambda a: a + 0j, "got an array of dtype complex128"),
        (np.ma.asarray, r"filled\(\)"),
        (lambda a: None, "got None"),
    ],
)
def test_what_is_no_array_is_told_so(change, words):
    wrong = {name: change(array) for name, array in WEIGHTS.items()}
    for call in (
        lambda: rw.apply(STACK, wrong, [do.FoldNorms()]),
        lambda: rw.canonical(STACK, wrong),
        lambda: rw.certify((STACK, wrong), (STACK, WEIGHTS)),
        lambda: rw.check_description(STACK, wrong, lambda tokens: tokens),
    ):
        with pytest.raises(TypeError, match=words):
            call()


@pytest.mark.peers
def test_tensors_are_told_how_to_convert_them():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float64, torch.bfloat16):
        with pytest.raises(TypeError, match=r"'E' must be .* array .*; got a Tensor: convert it with tensor.detach"):
            rw.apply(STACK, {n: torch.tensor(a, dtype=dtype) for n, a in WEIGHTS.items()}, [do.FoldNorms()])


@pytest.mark.parametrize("dtype", [int, bool, ">f8", np.longdouble])
def test_arrays_that_are_no_weights_are_refused(dtype):
    if np.dtype(dtype) == np.float64 and np.dtype(dtype).isnative:
        pytest.skip("long double is double here")
    with pytest.raises(ValueError, match="'E'"):
        rw.apply(STACK, {n: a.astype(dtype) for n, a in WEIGHTS.items()}, [do.FoldNorms()])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_arrays_of_less_precision_are_rewritten(dtype):
    assert rw.apply(STACK, {n: a.astype(dtype) for n, a in WEIGHTS.items()}, [do.FoldNorms()]).certificate.passed


def test_what_is_no_description_no_mapping_or_no_pair_is_told_so():
    for stack in (None, Stack, "llama", WEIGHTS):
        with pytest.raises(TypeError, match=r"a model must be described \(lg.Stack\)"):
            rw.canonical(stack, WEIGHTS)
        with pytest.raises(TypeError, match=r"a model must be described|must be a pair"):
            rw.certify((stack, WEIGHTS), (STACK, WEIGHTS))
    with pytest.raises(TypeError, match="before must be a folder, a pair"):
        rw.certify(STACK, STACK)
    for weights in (None, [WEIGHTS], "x"):
        with pytest.raises(TypeError, match="arrays must be a dict"):
            rw.apply(STACK, weights, [do.FoldNorms()])


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"seed": "x"}, ValueError),
        ({"seed": -1}, ValueError),
        ({"exclude": 3}, TypeError),
        ({"exclude": "3"}, TypeError),
        ({"exclude": [1.5]}, ValueError),
        ({"probes": (4,)}, ValueError),
        ({"probes": (2.5, 3)}, ValueError),
        ({"probes": "4x16"}, ValueError),
    ],
)
def test_numbers_of_a_rewrite_that_do_not_fit_are_named(options, kind):
    with pytest.raises(kind, match=r"seed|exclude|probes"):
        rw.apply(STACK, WEIGHTS, [do.FoldNorms()], **options)


def test_folders_are_paths(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    for given in (old, str(old), f"{old}/"):
        stack, weights = rw.load(given)
    for given in (bytes(old), None, 3, Path):
        with pytest.raises(TypeError, match="a folder must be a path as text or Path"):
            rw.load(given)
        with pytest.raises(TypeError, match="a folder must be a path as text or Path"):
            rw.save(rw.apply(stack, weights, [do.FoldNorms()]), given)
    with pytest.raises(TypeError, match=r"ignore must be a list of texts.*did you mean \['x'\]"):
        rw.load(old, ignore="x")
    with pytest.raises(TypeError, match=r"must come from lg.rewrite.apply"):
        rw.save(weights, tmp_path / "new")
    with pytest.raises(TypeError, match="a description must be a Stack"):
        rw.load(old, "llama")


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("llama", {"rms_norm_eps": -1e-6}, "'rms_norm_eps' must not be negative"),
        ("gpt2", {"layer_norm_epsilon": -1.0}, "'layer_norm_epsilon' must not be negative"),
        ("llama", {"rms_norm_eps": float("nan")}, "'rms_norm_eps' must be a number; got nan"),
        ("llama", {"rms_norm_eps": 0}, "'rms_norm_eps' must be written as 0.0, not 0"),
        ("gemma2", {"final_logit_softcapping": 30}, "must be written as 30.0"),
        ("gemma2", {"final_logit_softcapping": -30.0}, "must be positive"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "must be positive"),
        ("llama", {"rope_theta": 0}, "'rope_theta' must be positive"),
        ("llama", {"rope_theta": -1e4}, "'rope_theta' must be positive"),
        ("llama", {"rope_theta": 1e-30}, "rotary positions turn by up to"),
        ("llama", {"vocab_size": 0}, "'vocab_size' must be positive"),
        ("gpt2", {"hidden_size": None}, "'hidden_size' must be an integer; got null"),
        ("llama", {"use_cache": "false"}, "'use_cache' must be true or false; got 'false'"),
        ("llama", {"pad_token_id": "0"}, "'pad_token_id' must be an integer or null"),
        ("llama", {"pad_token_id": 23}, "'pad_token_id' = 23 is no row of the 23"),
        ("llama", {"eos_token_id": [1, "2"]}, "'eos_token_id' must be an integer"),
        ("llama", {"initializer_range": 1}, "'initializer_range' must be written as 1.0"),
        ("llama", {"attention_dropout": -0.1}, "'attention_dropout' must not be negative"),
    ],
)
def test_options_without_meaning_are_named(kind, options, words):
    with pytest.raises(ValueError, match=words):
        describe({"model_type": kind, **CONFIGS[kind], **options}, Everything(kind))


def test_the_bands_of_llama_3_are_in_order():
    """The package has other frequencies where the upper band is below the lower one."""
    scheme = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16}
    config = {"model_type": "llama", **CONFIGS["llama"]}
    for low, high in ((4.0, 1.0), (1.0, 1.0)):
        bands = {"low_freq_factor": low, "high_freq_factor": high}
        with pytest.raises(ValueError, match="'high_freq_factor' must be above 'low_freq_factor'"):
            describe(config | {"rope_parameters": scheme | bands}, Everything("llama"))


@pytest.mark.parametrize("name", ["x", "torch.float16", "half", 3])
def test_a_dtype_that_the_package_does_not_load_is_named(name, tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(config | {"dtype": name}))
    with pytest.raises(ValueError, match=r"says dtype .*, which is not covered"):
        rw.load(old)
