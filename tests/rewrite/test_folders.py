"""What is certified is what the package loads from the folder: ties, files, second heads, numbers, bad input."""

import json
import struct
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from lngeom.rewrite import steps as do
from lngeom.transformers import Attention, Block, FeedForward, Head, Linear, Norm, Rotary, Stack, Table, rewrite as rw
from lngeom.transformers.description import exchange
from lngeom.transformers.rewrite import checkpoints
from lngeom.transformers.rewrite.certificate import everything, outputs
from lngeom.transformers.rewrite.draft import Draft

from tests.rewrite.test_checkpoints import lngeom
from tests.rewrite.zoo import checkpoint, write_file

BERT = ("cls.predictions.decoder.bias", "cls.predictions.bias")
TOKENS = np.random.default_rng(3).integers(2, 23, (3, 9))


def arrays_of(folder):
    return {name: np.asarray(array) for name, array in rw.load(folder)[1].items()}


def with_arrays(folder, *without, **changed):
    """The same folder with other arrays."""
    arrays = {n: a for n, a in arrays_of(folder).items() if n not in without}
    write_file(folder / "model.safetensors", arrays | changed)
    return folder


def stored(folder):
    return {name: np.asarray(array) for name, array in rw.load(folder)[1].stored.items()}


def with_config(folder, **options):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | options))
    return folder


# Two names of one array, and one name for two.


@pytest.mark.parametrize("steps", [[do.Untie()], [do.Untie(), do.CentreHead()]])
def test_both_names_of_bert_s_head_bias_are_written(steps, tmp_path):
    old = checkpoint(tmp_path / "old", "bert")
    arrays = arrays_of(old)
    write_file(old / "model.safetensors", {BERT[1] if n == BERT[0] else n: a for n, a in arrays.items()})
    assert BERT[1] in stored(old)
    assert BERT[0] not in stored(old)
    rw.save(rw.apply(*rw.load(old), steps), tmp_path / "new")
    new = stored(tmp_path / "new")
    np.testing.assert_array_equal(new[BERT[0]], new[BERT[1]])
    assert (np.abs(new[BERT[0]] - arrays[BERT[0]]).max() > 0.01) == (len(steps) > 1)


def test_the_bias_that_bert_adds_is_that_of_the_decoder(tmp_path):
    old = checkpoint(tmp_path / "old", "bert")
    reference = outputs(*rw.load(old), TOKENS)
    with_arrays(old, **{BERT[1]: np.full(23, 7.0)})
    np.testing.assert_array_equal(outputs(*rw.load(old), TOKENS), reference)
    rw.save(rw.apply(*rw.load(old), [do.Untie()]), tmp_path / "new")
    np.testing.assert_array_equal(outputs(*rw.load(tmp_path / "new"), TOKENS), reference)


def test_an_untied_bert_without_the_decoder_s_bias_is_refused(tmp_path):
    """The package would start it at zero."""
    old = checkpoint(tmp_path / "old", "bert", tie_word_embeddings=False)
    arrays = arrays_of(old)
    write_file(old / "model.safetensors", {BERT[1] if n == BERT[0] else n: a for n, a in arrays.items()})
    with pytest.raises(ValueError, match=r"cls\.predictions\.decoder\.bias"):
        rw.load(old)


@pytest.mark.parametrize(
    ("kind", "table"), [("gpt2", "transformer.wte.weight"), ("gemma", "model.embed_tokens.weight")]
)
@pytest.mark.parametrize("factor", [-1.0, 1 + 1e-9])
def test_a_head_that_differs_from_the_table_is_not_tied_whatever_the_config_says(kind, table, factor, tmp_path):
    old = checkpoint(tmp_path / "old", kind)
    head = factor * arrays_of(old)[table]
    with_arrays(old, **{"lm_head.weight": head})
    stack, weights = rw.load(old)
    assert not stack.tied
    found = rw.apply(stack, weights, [do.FoldNorms()])
    rw.save(found, tmp_path / "new")
    assert not json.loads((tmp_path / "new" / "config.json").read_text())["tie_word_embeddings"]
    again = outputs(*rw.load(tmp_path / "new"), TOKENS)
    np.testing.assert_allclose(again, outputs(stack, weights, TOKENS), atol=1e-12)


def test_a_head_that_differs_below_the_dtype_that_is_loaded_is_tied(tmp_path):
    old = with_config(checkpoint(tmp_path / "old", "gpt2"), dtype="float32")
    with_arrays(old, **{"lm_head.weight": arrays_of(old)["transformer.wte.weight"] * (1 + 1e-12)})
    assert rw.load(old)[0].tied


@pytest.mark.parametrize("steps", [[do.RotateValues()], [do.Untie(), do.FoldNorms()]])
def test_a_tied_table_may_be_stored_under_the_name_of_the_head(steps, tmp_path):
    old = checkpoint(tmp_path / "old", "qwen3")
    reference = outputs(*rw.load(old), TOKENS)
    arrays = arrays_of(old)
    write_file(
        old / "model.safetensors",
        {"lm_head.weight" if n == "model.embed_tokens.weight" else n: a for n, a in arrays.items()},
    )
    np.testing.assert_array_equal(outputs(*rw.load(old), TOKENS), reference)
    rw.save(rw.apply(*rw.load(old), steps), tmp_path / "new")
    assert ("lm_head.weight" in stored(tmp_path / "new")) == (len(steps) > 1)
    np.testing.assert_allclose(outputs(*rw.load(tmp_path / "new"), TOKENS), reference, atol=1e-12)


def test_one_file_comes_before_an_index(tmp_path):
    old = checkpoint(tmp_path / "old", "llama", files=2)
    other = arrays_of(checkpoint(tmp_path / "other", "llama"))
    other["model.norm.weight"] = other["model.norm.weight"] + 1
    write_file(old / "model.safetensors", other)
    np.testing.assert_array_equal(arrays_of(old)["model.norm.weight"], other["model.norm.weight"])
    rw.save(rw.apply(*rw.load(old), [do.FoldNorms()]), tmp_path / "new")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json"}


def test_what_does_not_come_back_from_the_disk_is_not_kept(tmp_path, monkeypatch):
    old = checkpoint(tmp_path / "old", "llama")
    found = rw.apply(*rw.load(old), [do.FoldNorms(), do.Rotate()])
    rounded = Draft.rounded

    def last_bit(self, name):
        for piece in rounded(self, name):
            yield piece if name != "lm_head.weight" else np.nextafter(piece, 9.0)

    write = checkpoints.write_arrays

    def other(path, draft, contents, source):
        sums = write(path, draft, contents, source)
        monkeypatch.setattr(Draft, "rounded", last_bit)
        write(path, draft, contents, source)
        monkeypatch.setattr(Draft, "rounded", rounded)
        return sums

    monkeypatch.setattr(checkpoints, "write_arrays", other)
    with pytest.raises(ValueError, match=r"'lm_head\.weight' was not read from the disk as it was written"):
        rw.save(found, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_config_that_says_something_else_is_not_kept(tmp_path, monkeypatch):
    old = checkpoint(tmp_path / "old", "gemma")
    found = rw.apply(*rw.load(old), [do.Untie(), do.FoldNorms()])
    monkeypatch.setattr(checkpoints, "new_config", lambda stack, old, draft: dict(old) | {"rms_norm_eps": 1e-3})
    with pytest.raises(ValueError, match="nothing was written"):
        rw.save(found, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_certificate_has_the_difference_of_the_folder(tmp_path):
    old = checkpoint(tmp_path / "old", "llama", np.float32)
    found = rw.apply(*rw.load(old), [do.FoldNorms()])
    assert found.certificate.folder is None
    certificate = rw.save(found, tmp_path / "new")
    assert certificate.folder == certificate.rounded
    assert "folder, read again and run in float32" in str(certificate)
    document = json.loads(lngeom(old, "--do", "fold", "--out", tmp_path / "third", "--json").stdout)
    assert document["certificate"]["folder"] == document["certificate"]["rounded"]


# Maps beside the head.

BESIDE = {
    "bert": {"bert.pooler.dense.weight": (16, 16), "bert.pooler.dense.bias": (16,)},
    "gpt2": {"multiple_choice_head.summary.weight": (1, 16), "multiple_choice_head.summary.bias": (1,)},
    "qwen3": {"score.weight": (2, 16)},
    "opt": {"v_head.summary.weight": (1, 16), "v_head.summary.bias": (1,)},
}
LAST = {"bert": do.FoldNorms(only=("blocks.1.feed_forward_norm",))}


@pytest.mark.parametrize("kind", BESIDE)
def test_maps_beside_the_head_are_rewritten_with_it(kind, tmp_path):
    draw = np.random.default_rng(0)
    extra = {name: draw.normal(size=shape) for name, shape in BESIDE[kind].items()}
    old = with_arrays(checkpoint(tmp_path / "old", kind), **extra)
    steps = [do.Untie(), LAST.get(kind, do.FoldNorms())]
    rw.save(rw.apply(*rw.load(old), steps), tmp_path / "new")
    before, after = (everything(*rw.load(f), TOKENS) for f in (old, tmp_path / "new"))
    assert len(before) == 2
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    name = next(iter(extra))
    assert np.abs(arrays_of(tmp_path / "new")[name] - extra[name]).max() > 0.1


def test_a_second_head_left_behind_fails_the_certificate(tmp_path):
    extra = {"score.weight": np.random.default_rng(0).normal(size=(2, 16))}
    stack, weights = rw.load(with_arrays(checkpoint(tmp_path / "old", "qwen3"), **extra))
    found = rw.rewriting.plan(stack, weights, [do.Untie(), do.FoldNorms()])
    forgotten = rw.rewriting.Plan(found.steps, stack, found.stack, found.draft.without("score.weight"), found.tokens)
    certificate = forgotten.certify()
    assert certificate.exact.relative < 1e-12
    assert certificate.exact.side > 0.1
    assert not certificate.passed


# Numbers that are not finite.


@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("model.embed_tokens.weight", (3, 1), np.nan, r"model\.embed_tokens\.weight holds NaN in row 3"),
        ("model.norm.weight", (5,), np.inf, r"model\.norm\.weight holds infinity in entry 5"),
        (
            "model.layers.1.mlp.down_proj.weight",
            (2, 0),
            -np.inf,
            r"model\.layers\.1\.mlp\.down_proj\.weight holds infinity in row 2",
        ),
    ],
)
def test_numbers_that_are_not_finite_are_named(name, place, value, words, tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    array = arrays_of(old)[name].copy()
    array[place] = value
    with_arrays(old, **{name: array})
    certificate = rw.apply(*rw.load(old), [do.RotateValues()]).certificate
    result = lngeom(old, "--do", "rotate-values", "--out", tmp_path / "new")
    with pytest.raises(rw.Refused, match=f"Note that {words}"):
        rw.apply(*rw.load(old), [do.Rotate()])
    assert not certificate.passed
    assert words.replace("\\", "") in str(certificate)
    assert result.exit_code == 1
    assert f"the certificate failed; {words}".replace("\\", "") in " ".join(result.output.split())
    assert not (tmp_path / "new").exists()


def overflowing(dtype):
    attention = Attention(*(Linear(name) for name in ("q", "k", "v", "o")), 1, 1, 4, 4)
    block = Block(attention, FeedForward(Linear("up"), Linear("down")), "pre", Norm("rms", "g1"), Norm("rms", "g2"))
    draw = np.random.default_rng(0)
    weights = {n: draw.normal(size=(4, 4)).astype(dtype) for n in ("q", "k", "v", "o", "up", "down", "E", "U")}
    weights |= {n: np.ones(4, dtype) for n in ("g1", "g2", "g3")}
    return Stack((Table("E"),), (block,), Head(Linear("U")), Norm("rms", "g3")), weights


@pytest.mark.parametrize("step", [do.FoldNorms(), do.ScaleStream(1e5)])
def test_an_overflow_of_the_stored_dtype_is_named(step):
    stack, weights = overflowing(np.float16)
    weights["up"] *= 400
    weights["g2"] *= 600
    found = rw.apply(stack, weights, [step])
    assert not found.certificate.passed
    name = "up" if isinstance(step, do.FoldNorms) else "E"
    assert f"{name} holds infinity in row" in str(found.certificate)
    assert "after the rewrite, in float16" in str(found.certificate)


def test_outputs_that_overflow_before_and_after_pass_nothing():
    stack, weights = overflowing(np.float16)
    weights["U"] *= 30000
    certificate = rw.apply(stack, weights, [do.RotateValues()]).certificate
    assert not certificate.passed
    assert "outputs of the original, run in float16, are not finite" in str(certificate)


def test_a_model_runs_in_the_dtype_that_the_package_gives_it(tmp_path):
    """float32 arrays that the config loads as float16 overflow where a fold makes them large."""
    old = with_config(checkpoint(tmp_path / "old", "llama", np.float32), dtype="float16")
    gain = arrays_of(old)["model.layers.0.input_layernorm.weight"]
    with_arrays(old, **{"model.layers.0.input_layernorm.weight": gain * 0 + 60000.0})
    certificate = rw.apply(*rw.load(old), [do.FoldNorms(only=("blocks.0.attention_norm",))]).certificate
    assert certificate.dtype == "float16"
    assert "holds infinity" in str(certificate)
    assert not certificate.passed
    wide = with_config(checkpoint(tmp_path / "wide", "llama", ml_dtypes.bfloat16), torch_dtype="float32")
    assert rw.apply(*rw.load(wide), [do.FoldNorms()]).certificate.dtype == "bfloat16"


# What changes the model when it is loaded, and bad input.


def test_adapters_and_models_of_hidden_states_are_refused(tmp_path):
    old = checkpoint(tmp_path / "old", "qwen3")
    for name, words in (
        ("adapter_config.json", "merge the adapter first"),
        ("adapter_model.safetensors", "merge the adapter first"),
        ("modules.json", "sentence-transformers"),
        ("shard-00000-model-00001-of-00002.safetensors", "distributed checkpoint"),
    ):
        (old / name).write_text("{}")
        result = lngeom(old, "--do", "untie,fold", "--out", tmp_path / "new")
        assert result.exit_code == 2
        assert words in result.output.replace("\n", " ")
        (old / name).unlink()
    with_config(old, architectures=["Qwen3Model"])
    with pytest.raises(ValueError, match="hidden states"):
        rw.load(old)
    assert rw.load(old, ignore=["architectures"])[0].tied
    for name in ("Qwen3ForCausalLM", "GPT2LMHeadModel", "GPT2DoubleHeadsModel"):
        assert rw.load(with_config(old, architectures=[name]))[0].tied


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "gpt2", "https://huggingface.co/openai-community/gpt2"])
def test_the_id_of_a_hub_model_is_told_what_it_is(name):
    result = lngeom(name, "--do", "fold")
    assert result.exit_code == 2
    assert "Hugging Face hub" in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_a_path_that_is_no_folder_is_told_so(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    with pytest.raises(ValueError, match="is a file: give the folder"):
        rw.load(old / "model.safetensors")
    with pytest.raises(ValueError, match="there is no folder"):
        rw.load(tmp_path / "absent" / "deeper")


def header(content):
    text = json.dumps(content).encode() if not isinstance(content, bytes) else content
    return struct.pack("<Q", len(text)) + text


GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors", header([1]), "header is no object"),
        ("model.safetensors", header({"a": []}), "entry of 'a' lacks"),
        ("model.safetensors", header({"a": {**GOOD, "shape": 3}}), "entry of 'a' lacks"),
        ("model.safetensors", header({"a": {**GOOD, "shape": [-1]}}), "entry of 'a' lacks"),
        ("model.safetensors", header({"a": {**GOOD, "data_offsets": [0]}}), "entry of 'a' lacks"),
        ("model.safetensors", header({"a": {**GOOD, "dtype": 3}}), "entry of 'a' lacks"),
        ("model.safetensors", header({"__metadata__": [], "a": GOOD}), "metadata is no object of texts"),
        ("model.safetensors", header(b'{"a": {}, "a": {}}'), "has 'a' twice"),
        ("model.safetensors", header({"a": GOOD}), "is cut off: 'a' ends at byte "),
        ("model.safetensors", header(b"[" * 5000 + b"]" * 5000), "no .safetensors file"),
        (INDEX, b"{}", "must have a 'weight_map'"),
        (INDEX, b'{"weight_map": {"a": 3}}', "must have a 'weight_map'"),
        (INDEX, b'{"metadata": {}, "weight_map": {"a": "../x.safetensors"}}', "as they stand beside the index"),
        (INDEX, b'{"metadata": {}, "weight_map": {"a": "model-1.safetensors"}}', "the checkpoint is partial"),
        ("config.json", b'{"model_type": 3}', "model_type 3 is not covered"),
        ("config.json", b'{"model_type": "llama", "num_hidden_layers": 2.5}', "must be an integer"),
        ("config.json", b'{"model_type": "llama"}', "says 32 layers, and the folder holds 21 arrays"),
        ("config.json", b'{"model_type": "llama", "num_hidden_layers": 1000000000}', "says 1000000000 layers"),
        ("config.json", b'{"model_type": "llama", "num_hidden_layers": 1, "head_dim": 1000000000000}', "says"),
        ("config.json", b"\xff\xfe", "is not JSON"),
    ],
)
def test_a_broken_file_is_one_line_and_status_2(file, content, words, tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    if file == INDEX:
        (old / "model.safetensors").unlink()
    (old / file).write_bytes(content)
    result = lngeom(old, "--do", "fold")
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert words in " ".join(result.output.split())


def test_quantized_arrays_are_refused(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    name = "model.layers.0.mlp.up_proj.weight"
    for dtype in (np.int8, ml_dtypes.float8_e4m3fn):
        with_arrays(old, **{name: arrays_of(checkpoint(tmp_path / np.dtype(dtype).name, "llama"))[name].astype(dtype)})
        with pytest.raises(ValueError, match="quantize afterwards"):
            rw.load(old)
        write_file(old / "model.safetensors", arrays_of(tmp_path / np.dtype(dtype).name))


# Descriptions by hand.


def by_hand(folder):
    """A model of no known family: Phi's blocks, with names of its own."""
    draw = np.random.default_rng(0)
    shapes = {
        "embed.weight": (11, 8),
        "head.weight": (11, 8),
        "head.bias": (11,),
        "final.weight": (8,),
        "final.bias": (8,),
    }
    for name, out, into in (*((n, 8, 8) for n in "qkvo"), ("fc1", 12, 8), ("fc2", 8, 12)):
        shapes |= {f"{name}.weight": (out, into), f"{name}.bias": (out,)}
    shapes |= {"norm.weight": (8,), "norm.bias": (8,)}
    arrays = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    folder.mkdir()
    config = {"model_type": "phi-like", "pad_token_id": 3, "tie_word_embeddings": False, "anything": {"x": [1]}}
    (folder / "config.json").write_text(json.dumps(config))
    write_file(folder / "model.safetensors", arrays)
    linear = {name: Linear(f"{name}.weight", f"{name}.bias") for name in ("q", "k", "v", "o", "fc1", "fc2", "head")}
    attention = Attention(*(linear[n] for n in "qkvo"), 2, 2, 4, 4, rotary=Rotary((1.0,)))
    norms = [Norm("layer", f"{name}.weight", f"{name}.bias", eps=1e-5) for name in ("norm", "final")]
    block = Block(attention, FeedForward(linear["fc1"], linear["fc2"], None, "gelu"), "pre", norms[0], parallel=True)
    return Stack((Table("embed.weight"),), (block,), Head(linear["head"]), norms[1]), arrays


def test_a_description_by_hand_is_saved_with_the_config_of_its_source(tmp_path):
    stack, arrays = by_hand(tmp_path / "old")
    stack, weights = rw.load(tmp_path / "old", stack)
    found = rw.apply(stack, weights, [do.FoldNorms(), do.CentreWriters(), do.Rotate()])
    assert rw.save(found, tmp_path / "new").passed
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == config
    again = outputs(*rw.load(tmp_path / "new", found.stack), TOKENS % 11)
    np.testing.assert_allclose(again, outputs(stack, arrays, TOKENS % 11), atol=1e-12)


def test_arrays_in_memory_are_saved_beside_their_source(tmp_path):
    stack, arrays = by_hand(tmp_path / "old")
    found = rw.apply(stack, arrays, [do.FoldNorms()])
    with pytest.raises(ValueError, match="source="):
        rw.save(found, tmp_path / "new")
    assert rw.save(found, tmp_path / "new", source=tmp_path / "old").passed
    other = rw.apply(stack, arrays | {"q.bias": arrays["q.bias"] + 1}, [do.FoldNorms()])
    with pytest.raises(ValueError, match=r"'q\.bias' in memory is not the array"):
        rw.save(other, tmp_path / "third", source=tmp_path / "old")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_arrays_of_a_known_family_in_memory_are_saved_too(kind, tmp_path):
    old = checkpoint(tmp_path / "old", kind, np.float32)
    stack, weights = rw.load(old)
    found = rw.apply(stack, {n: np.asarray(a) for n, a in weights.items()}, [do.Untie(), do.RotateValues()])
    for target, source in (("new", old), ("third", weights)):
        assert rw.save(found, tmp_path / target, source=source).passed
    assert rw.load(tmp_path / "new")[0] == found.stack


def test_a_description_by_hand_says_norms_and_arrays_that_its_config_cannot(tmp_path):
    stack, arrays = by_hand(tmp_path / "old")
    for steps in ([do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm()], [do.ScaleStream(2.0)]):
        found = rw.apply(*rw.load(tmp_path / "old", stack), steps)
        with pytest.raises(ValueError, match="leave out steps that change more than arrays"):
            rw.save(found, tmp_path / "new")
    write_file(tmp_path / "old" / "model.safetensors", arrays | {"vision.tower": np.ones(3)})
    found = rw.apply(*rw.load(tmp_path / "old", stack), [do.FoldNorms()])
    with pytest.raises(ValueError, match=r"vision\.tower.*untouched"):
        rw.save(found, tmp_path / "new")
    rw.save(found, tmp_path / "new", untouched=["vision.*"])
    np.testing.assert_array_equal(stored_by_hand(tmp_path / "new", found.stack)["vision.tower"], np.ones(3))


def test_a_description_by_hand_of_a_known_family_is_held_against_the_family(tmp_path):
    """Without the cap of the logits, centring the head would be exact."""
    stack, weights = rw.load(checkpoint(tmp_path / "old", "gemma2"))
    wrong = replace(stack, head=replace(stack.head, cap=None))
    found = rw.apply(wrong, weights, [do.Untie(), do.CentreHead()])
    assert found.certificate.passed
    with pytest.raises(ValueError, match="the written folder is not the original model"):
        rw.save(found, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    rw.save(rw.apply(wrong, weights, [do.Untie(), do.RotateValues()]), tmp_path / "new")


def stored_by_hand(folder, stack):
    return {name: np.asarray(array) for name, array in rw.load(folder, stack)[1].items()}


def test_names_that_a_description_misses_by_little_are_suggested(tmp_path):
    stack, arrays = by_hand(tmp_path / "old")
    with pytest.raises(ValueError, match=r"'embed\.weight'.*did you mean 'embedd\.weight'"):
        rw.apply(stack, {("embedd.weight" if n == "embed.weight" else n): a for n, a in arrays.items()}, [])
    with pytest.raises(ValueError, match="did you mean 'rotate'"):
        rw.steps.parse("fold,rotat")
    for step in (do.FoldNorms, do.ToRMSNorm, do.CentreReaders):
        with pytest.raises(rw.Refused, match=r"did you mean 'blocks\.0\.attention_norm'"):
            rw.apply(stack, arrays, [step(only=("block.0.attention_norms",))])


def test_probes_leave_out_padding(tmp_path):
    stack, arrays = by_hand(tmp_path / "old")
    seen = []

    def model(tokens):
        seen.append(tokens)
        return outputs(stack, arrays, tokens)

    rw.check_description(stack, arrays, model, probes=(40, 10), exclude=[0, 7])
    assert set(np.unique(seen[0])) == set(range(11)) - {0, 7}
    rw.check_description(*rw.load(tmp_path / "old", stack), model, probes=(40, 10))
    assert set(np.unique(seen[1])) == set(range(11)) - {3}
    with pytest.raises(ValueError, match="no probes"):
        rw.apply(stack, arrays, [do.FoldNorms()], exclude=range(11))
    with pytest.raises(ValueError, match="ids from 0 to 10"):
        rw.apply(stack, arrays, [do.FoldNorms()], probes=np.array([[11]]))


def test_a_description_is_held_against_float32_rounding_and_a_wrong_epsilon_is_found():
    stack, weights = overflowing(np.float64)
    weights["E"] *= 0.05
    single = {name: array.astype(np.float32) for name, array in weights.items()}
    found = rw.check_description(stack, weights, lambda t: outputs(stack, single, t))  # float64, with float32 inside
    assert 1e-9 < found.relative < 1e-5
    with pytest.raises(ValueError, match=r"differ by .* more than 1\.0e-12"):
        rw.check_description(stack, weights, lambda t: outputs(stack, single, t), tolerance=1e-12)
    other = replace(stack, final=Norm("rms", "g3", eps=1e-4))
    with pytest.raises(ValueError, match="not that of the model"):
        rw.check_description(stack, weights, lambda t: outputs(other, weights, t))
    assert rw.check_description(stack, weights, lambda t: outputs(other, weights, t), tolerance=0.1).relative < 0.1
    with pytest.raises(ValueError, match="must give logits of shape"):
        rw.check_description(stack, weights, lambda t: outputs(stack, weights, t)[:, -1])


# Options, dtypes, names, shapes and files that a folder in the wild may have.


def test_an_unknown_option_does_not_free_a_description_by_hand_from_its_family(tmp_path):
    """A Gemma multiplies by 1 + gain; the description is a Llama's."""
    old = with_config(checkpoint(tmp_path / "gemma", "gemma"), odd=1)
    by_hand = replace(rw.load(old, ignore=["odd"])[0])
    layers = {n.path: replace(n.part, offset=0) for n in by_hand.norms}
    wrong = exchange(by_hand, layers)
    with pytest.raises(ValueError, match="nothing was written"):
        rw.save(rw.apply(*rw.load(old, wrong), [do.Untie(), do.FoldNorms()]), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("factor", [1e19, 1e-22])
def test_a_float64_model_whose_norms_overflow_in_float32_is_not_written(factor, tmp_path):
    """The package computes RMS norms in float32, whatever the dtype."""
    found = rw.apply(*rw.load(checkpoint(tmp_path / "old", "llama")), [do.ScaleStream(factor)])
    with pytest.raises(ValueError, match="run in float32, in which the transformers package"):
        rw.save(found, tmp_path / "new")
    assert rw.save(rw.apply(*rw.load(tmp_path / "old"), [do.ScaleStream(4.0)]), tmp_path / "new").passed


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "bloom"])
def test_old_names_of_norms_are_those_of_bert_alone(kind, tmp_path):
    old = checkpoint(tmp_path / "old", kind)
    renamed = {
        (name[:-6] + "gamma" if name.endswith("weight") else name[:-4] + "beta")
        if "ln_1." in name or "input_layernorm." in name
        else name: array
        for name, array in arrays_of(old).items()
    }
    write_file(old / "model.safetensors", renamed)
    with pytest.raises(ValueError, match="which the weights lack"):
        rw.load(old)


def test_the_dtype_that_is_loaded_stays_where_no_config_names_it(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt2")
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in {"dtype", "torch_dtype"}}))
    arrays = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays_of(old).items()}
    first = "transformer.h.0.attn.c_attn.bias"
    others = {name: array for name, array in arrays.items() if name != first}
    write_file(old / "model.safetensors", {first: arrays[first].astype(np.float32)} | others)
    stack, weights = rw.load(old)
    assert weights.dtype == np.float32
    rw.save(rw.apply(stack, weights, [do.Untie(), do.FoldNorms()]), tmp_path / "new")
    assert rw.load(tmp_path / "new")[1].dtype == np.float32
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == "float32"


def test_the_dtype_of_an_index_counts(tmp_path):
    old = checkpoint(tmp_path / "old", "llama", files=2)
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in {"dtype", "torch_dtype"}}))
    index = json.loads((old / "model.safetensors.index.json").read_text())
    (old / "model.safetensors.index.json").write_text(json.dumps(index | {"metadata": {"dtype": "float16"}}))
    stack, weights = rw.load(old)
    assert weights.dtype == np.float16
    assert not rw.apply(stack, weights, [do.ScaleStream(1e6)]).certificate.passed


def test_folders_are_copied_and_what_is_not_is_named(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt2")
    (old / "additional_chat_templates").mkdir()
    (old / "additional_chat_templates" / "rag.jinja").write_text("{{ x }}")
    (old / "vocab.pt").write_bytes(b"x")
    (old / "merges.txt").symlink_to(tmp_path / "nowhere")
    result = lngeom(str(old), "--do", "untie,fold", "--out", str(tmp_path / "new"))
    assert result.exit_code == 0, result.output
    assert "Not copied: merges.txt, vocab.pt" in result.output
    assert (tmp_path / "new" / "additional_chat_templates" / "rag.jinja").read_text() == "{{ x }}"


def test_a_second_head_in_a_file_of_its_own_is_refused(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt2")
    write_file(old / "value_head.safetensors", {"v_head.summary.weight": np.ones((1, 8))})
    with pytest.raises(ValueError, match="a second head that reads the hidden states"):
        rw.load(old)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: np.append(b, b[:1]), lambda b: b[:0]])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "transformer.h.0.mlp.c_fc.bias"),
        ("bloom", "transformer.h.0.mlp.dense_4h_to_h.bias"),
        ("bloom", "transformer.h.0.self_attention.query_key_value.bias"),
        ("opt", "model.decoder.layers.0.fc2.bias"),
    ],
)
def test_biases_of_other_sizes_are_one_sentence(kind, name, change, tmp_path):
    old = checkpoint(tmp_path / "old", kind)
    with_arrays(old, **{name: change(arrays_of(old)[name])})
    with pytest.raises(ValueError, match=r"do not fit together|does not describe its arrays"):
        rw.load(old)


@pytest.mark.parametrize("eps", [10**400, -(10**400)])
def test_an_integer_beyond_the_largest_number_is_one_sentence(eps, tmp_path):
    old = with_config(checkpoint(tmp_path / "old", "llama"), rms_norm_eps=eps)
    with pytest.raises(ValueError, match="rms_norm_eps"):
        rw.load(old)
