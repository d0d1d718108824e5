"""What the `transformers` package refuses is refused with one sentence; what it loads is read in the same way."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from analysis.models.families import CONFIGS, save_random
from lngeom.rewrite import steps as do
from lngeom.transformers import Head, Linear, rewrite as rw
from lngeom.transformers.rewrite.array_files import read_header
from lngeom.transformers.rewrite.certificate import outputs

from tests.rewrite.zoo import checkpoint, write_file

TOKENS = np.random.default_rng(3).integers(2, 23, (3, 9))
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
TABLES = {
    "llama": "model.embed_tokens.weight",
    "gpt2": "transformer.wte.weight",
    "opt": "model.decoder.embed_tokens.weight",
    "bloom": "transformer.word_embeddings.weight",
}


def arrays_of(folder):
    return {name: np.asarray(array) for name, array in rw.load(folder)[1].stored.items()}


def parts(folder):
    raw = (folder / SINGLE).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def put(folder, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / SINGLE).write_bytes(struct.pack("<Q", len(text)) + text + data)


def moved(header, by, names):
    return {
        name: {**entry, "data_offsets": [o + by for o in entry["data_offsets"]]} if name in names else entry
        for name, entry in header.items()
    }


def last(header):
    return max(header, key=lambda name: header[name]["data_offsets"])


def hole(header, data):
    start = header[last(header)]["data_offsets"][0]
    return moved(header, 8, {last(header)}), data[:start] + bytes(8) + data[start:]


def overlapping(header, data):
    return header | {"model.layers.0.self_attn.rotary_emb.inv_freq": header[last(header)]}, data


FILES = {
    "trailing bytes": (lambda h, d: (h, d + bytes(8)), "8 bytes after its last array"),
    "a trailing byte": (lambda h, d: (h, d + bytes(1)), "1 bytes after its last array"),
    "a hole": (hole, "what stands before it ends at"),
    "a hole at the start": (lambda h, d: (moved(h, 8, h), bytes(8) + d), "what stands before it ends at 0"),
    "an overlap": (overlapping, "what stands before it ends at"),
    "metadata that are no texts": (lambda h, d: (h | {"__metadata__": {"a": 1}}, d), "no object of texts"),
    "a byte order mark": (lambda h, d: (b"\xef\xbb\xbf" + json.dumps(h).encode(), d), "not JSON"),
    "another encoding": (lambda h, d: (json.dumps(h).encode("utf-16-le"), d), "not JSON"),
    "no number": (lambda h, d: (h | {last(h): {**h[last(h)], "x": float("nan")}}, d), "has NaN"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_the_library_does_not_open_is_refused(what, tmp_path):
    change, words = FILES[what]
    old = checkpoint(tmp_path / "old", "llama")
    put(old, *change(*parts(old)))
    with pytest.raises(ValueError, match=words):
        rw.load(old)


@pytest.mark.peers
@pytest.mark.parametrize("what", FILES)
def test_the_library_does_not_open_it(what, tmp_path):
    library = pytest.importorskip("safetensors")
    old = checkpoint(tmp_path / "old", "llama")
    with library.safe_open(old / SINGLE, framework="np") as file:
        assert file.keys()
    put(old, *FILES[what][0](*parts(old)))
    with pytest.raises(library.SafetensorError):
        library.safe_open(old / SINGLE, framework="np")


def test_metadata_may_be_null(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    header, data = parts(old)
    reference = outputs(*rw.load(old), TOKENS)
    put(old, header | {"__metadata__": None}, data)
    np.testing.assert_array_equal(outputs(*rw.load(old), TOKENS), reference)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rows", [22, 25])
def test_a_head_has_the_rows_of_the_vocabulary(kind, tied, rows, tmp_path):
    old = checkpoint(tmp_path / "old", kind, tie_word_embeddings=tied)
    arrays = arrays_of(old)
    head = np.resize(arrays[TABLES[kind]], (rows, 16))
    write_file(old / SINGLE, arrays | {"lm_head.weight": head})
    with pytest.raises(ValueError, match=rf"'lm_head.weight' has shape \({rows}, 16\), and config.json says 23"):
        rw.load(old)


def test_a_matrix_has_two_axes(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    arrays, name = arrays_of(old), "model.layers.0.mlp.up_proj.weight"
    write_file(old / SINGLE, arrays | {name: arrays[name][None]})
    with pytest.raises(ValueError, match="must have 2 axes"):
        rw.load(old)


@pytest.mark.parametrize("metadata", [None, [], "x", 3, ...])
def test_an_index_has_metadata(metadata, tmp_path):
    old = checkpoint(tmp_path / "old", "llama", files=2)
    index = json.loads((old / INDEX).read_text())
    del index["metadata"]
    (old / INDEX).write_text(json.dumps(index if metadata is ... else index | {"metadata": metadata}))
    with pytest.raises(ValueError, match="must have an object 'metadata'"):
        rw.load(old)


def test_an_index_names_safetensors_files(tmp_path):
    old = checkpoint(tmp_path / "old", "llama", files=2)
    index = json.loads((old / INDEX).read_text())
    first = min(index["weight_map"].values())
    (old / first).rename(old / "model-1.bin")
    where = {name: "model-1.bin" if file == first else file for name, file in index["weight_map"].items()}
    (old / INDEX).write_text(json.dumps(index | {"weight_map": where}))
    with pytest.raises(ValueError, match=r"convert it to \.safetensors first"):
        rw.load(old)


@pytest.mark.parametrize(("kind", "extra"), [("gpt2", 0), ("gemma", 0), ("bert", 23)])
def test_an_index_says_what_was_written(kind, extra, tmp_path):
    """Both biases of an untied BERT are parameters; a tied one has one."""
    old = checkpoint(tmp_path / "old", kind, files=2)
    arrays = arrays_of(old)
    if kind == "bert":
        arrays["cls.predictions.bias"] = arrays["cls.predictions.decoder.bias"]
        write_file(old / "model-00001-of-00002.safetensors", arrays)
        where = dict.fromkeys(arrays, "model-00001-of-00002.safetensors")
    else:
        where = json.loads((old / INDEX).read_text())["weight_map"]
    count = sum(array.size for array in arrays.values()) - extra
    (old / INDEX).write_text(json.dumps({"metadata": {"total_parameters": 7, "total_size": 7}, "weight_map": where}))
    for steps, new in (([do.RotateValues()], count), ([do.Untie()], count + 23 * 16 + extra)):
        target = tmp_path / steps[0].word
        rw.save(rw.apply(*rw.load(old), steps), target)
        found = json.loads((target / INDEX).read_text())["metadata"]
        written = [read for file in target.glob("*.safetensors") for read in header_arrays(file)]
        assert found["total_size"] == sum(array.size * 8 for array in written)
        assert found["total_parameters"] == new


def header_arrays(file):
    return [np.asarray(array) for array in read_header(file)[0].values()]


# Two names of the head of GPT-NeoX; heads beside that of the logits.


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stored", [("lm_head.weight",), ("embed_out.weight",), ("lm_head.weight", "embed_out.weight")])
@pytest.mark.parametrize("steps", [[do.RotateValues()], [do.Untie(), do.FoldNorms(), do.CentreHead()]])
def test_both_names_of_the_head_of_gpt_neox_are_read_and_written(tied, stored, steps, tmp_path):
    old = checkpoint(tmp_path / "old", "gpt_neox", tie_word_embeddings=tied)
    arrays = arrays_of(old)
    head = arrays.pop("gpt_neox.embed_in.weight" if tied else "embed_out.weight")
    arrays |= {"gpt_neox.embed_in.weight": head} if tied else {}
    write_file(old / SINGLE, arrays | dict.fromkeys(stored, head))
    rw.save(rw.apply(*rw.load(old), steps), tmp_path / "new")
    new = {name: np.asarray(a) for name, a in rw.load(tmp_path / "new")[1].stored.items()}
    for name in stored:
        assert name in new or (tied and len(steps) == 1)
    assert all(np.array_equal(new[name], new[stored[0]]) for name in stored if name in new)
    before, after = (outputs(*rw.load(f), TOKENS) for f in (old, tmp_path / "new"))
    if len(steps) > 1:
        before, after = (x - x.mean(-1, keepdims=True) for x in (before, after))
    np.testing.assert_allclose(after, before, atol=1e-11)


def test_two_names_of_the_head_of_gpt_neox_that_differ_are_refused(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt_neox")
    arrays = arrays_of(old)
    write_file(old / SINGLE, arrays | {"lm_head.weight": -arrays["embed_out.weight"]})
    with pytest.raises(ValueError, match="two names of one array, which differ"):
        rw.load(old)


def test_a_folder_without_logits_says_so_and_is_rewritten_by_hand(tmp_path):
    old = checkpoint(tmp_path / "old", "qwen3", tie_word_embeddings=False)
    stack = rw.load(old)[0]
    arrays = {name: array for name, array in arrays_of(old).items() if name != "lm_head.weight"}
    score = np.random.default_rng(0).normal(size=(2, 16))
    write_file(old / SINGLE, arrays | {"score.weight": score})
    with pytest.raises(ValueError, match=r"holds 'score.weight' and no 'lm_head.weight'.*Head\(Linear\('score.weight'"):
        rw.load(old)
    mine = replace(stack, head=Head(Linear("score.weight")))
    found = rw.apply(*rw.load(old, mine), [do.FoldNorms(), do.Rotate()])
    assert rw.save(found, tmp_path / "new").passed
    again = outputs(*rw.load(tmp_path / "new", mine), TOKENS)
    np.testing.assert_allclose(again, outputs(*rw.load(old, mine), TOKENS), atol=1e-12)


@pytest.mark.parametrize("target", ["real", "nowhere"])
def test_a_link_to_an_empty_folder_or_to_none_is_followed(target, tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(target)
    rw.save(rw.apply(*rw.load(old), [do.FoldNorms()]), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / target / "config.json").is_file()


def test_layers_beside_the_head_and_a_lost_bias_of_the_choice_are_named(tmp_path):
    """DeepSeek-V3's layers for further tokens stand after the last block, and read its stream."""
    old = checkpoint(tmp_path / "old", "deepseek_v3")
    arrays = arrays_of(old)
    write_file(old / SINGLE, arrays | {"model.layers.2.eh_proj.weight": np.ones((16, 32))})
    with pytest.raises(ValueError, match=r"holds 'model.layers.2.eh_proj.weight'.*may read or write the stream"):
        rw.load(old)
    lost = "model.layers.1.mlp.gate.e_score_correction_bias"
    write_file(old / SINGLE, {name: array for name, array in arrays.items() if name != lost})
    with pytest.raises(ValueError, match=f"names '{lost}'"):
        rw.load(old)


# The package itself.


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "bert", "gemma2", "deepseek_v3"])
@pytest.mark.parametrize("value", [-1, 0, 1, 1.5, -2.5, "1e-5", "false", True, None, [], {}])
def test_options_that_the_package_refuses_are_refused(kind, value, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind], tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "final_logit_softcapping", "use_cache")
    for name in (*names, "initializer_range", "pad_token_id", "eos_token_id", "tie_word_embeddings"):
        if name not in config:
            continue
        (tmp_path / "old" / "config.json").write_text(json.dumps(config | {name: value}))
        try:
            ours = outputs(*rw.load(tmp_path / "old"), TOKENS)
        except ValueError:
            continue
        theirs = hf.logits(kind, tmp_path / "old", TOKENS)
        assert np.abs(ours - theirs).max() < 1e-12 * np.abs(theirs).max(), name
