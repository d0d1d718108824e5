"""Given scales of channels, and gains that are left out: the function stays, or the step is refused."""

import json

import numpy as np
import pytest
from lngeom.rewrite import steps as do
from lngeom.transformers import rewrite as rw
from lngeom.transformers.rewrite.certificate import outputs
from lngeom.transformers.rewrite.channels import places, read_vectors
from lngeom.transformers.rewrite.draft import Draft

from tests.rewrite.test_steps import TOKENS, model
from tests.rewrite.zoo import write_file


def scales_of(stack, weights, seed=0, names=lambda place: place.site.path):
    """Scales between 1/4 and 4 for every place of a stack."""
    draw = np.random.default_rng(seed)
    return {names(place): 4 ** draw.uniform(-1, 1, place.count) for place in places(stack, Draft(weights))}


def apart(stack, weights, found):
    before, after = outputs(stack, weights, TOKENS), outputs(found.stack, found.weights, TOKENS)
    return np.abs(before - after).max() / np.abs(before).max()


KINDS = {
    "llama": [],
    "gemma": [do.Untie()],
    "qwen2": [do.Untie()],
    "mixtral": [],
    "qwen2_moe": [],
    "deepseek_v2": [],
    "deepseek_v3": [],
    "phi3": [],
    "glm4": [],
    "opt": [do.Untie()],
    "nemotron": [],
    "granite": [],
}


@pytest.mark.parametrize("kind", KINDS)
def test_given_scales_change_arrays_and_no_function(kind):
    stack, weights = model(kind)
    scales = scales_of(stack, weights)
    assert {path.rpartition(".")[2] for path in scales} >= {"value", "up", "attention_norm"}
    found = rw.apply(stack, weights, [*KINDS[kind], do.ScaleChannels(scales)])
    assert found.certificate.passed, found.certificate
    assert apart(stack, weights, found) < 1e-12
    changed = found.draft.labels
    assert all("channels scaled" in changed[site.part.weight] for site in stack.linears if "value" in site.path)


def test_places_are_called_by_path_array_or_module():
    stack, weights = model("llama")
    s = np.array([*range(1, 17)], float)
    for name in ("blocks.0.attention_norm", "model.layers.0.input_layernorm.weight", "model.layers.0.input_layernorm"):
        found = rw.apply(stack, weights, [do.ScaleChannels({name: s})])
        gain = "model.layers.0.input_layernorm.weight"
        np.testing.assert_allclose(found.weights[gain], weights[gain] / s)
        query = "model.layers.0.self_attn.q_proj.weight"
        np.testing.assert_allclose(found.weights[query], weights[query] * s)


@pytest.mark.parametrize(
    ("kind", "scales", "words"),
    [
        ("llama", {"blocks.9.attention_norm": np.ones(16)}, "no channels are called"),
        ("llama", {"blocks.0.attention_nrm": np.ones(16)}, "did you mean 'blocks.0.attention_norm'"),
        ("llama", {"blocks.0.attention.query": np.ones(16)}, "no channels are called"),
        ("llama", {"blocks.0.attention_norm": np.ones(15)}, "has 16 channels"),
        ("llama", {"blocks.0.attention_norm": np.zeros(16)}, "must not be zero"),
        ("llama", {"blocks.0.attention_norm": np.full(16, np.nan)}, "finite"),
        (
            "llama",
            {"blocks.0.attention_norm": np.ones(16), "model.layers.0.input_layernorm": np.ones(16)},
            "the same channels",
        ),
        ("gpt2", {"blocks.0.feed_forward.up": np.full(32, 2.0)}, "gelu_tanh is not homogeneous"),
        ("olmo", {"blocks.0.attention_norm": np.full(16, 2.0)}, "no gain that could take"),
        ("gemma", {"final": np.full(16, 2.0)}, "untie"),
        ("opt", {"blocks.0.feed_forward.up": np.full(32, -2.0)}, "negative"),
        ("gpt_oss", {"blocks.0.feed_forward.experts.0.up": np.full(24, 2.0)}, "clamped"),
    ],
)
def test_scales_that_fit_nothing_are_refused(kind, scales, words):
    stack, weights = model(kind)
    scales = {
        k: v if v.size != 32 and v.size != 24 else np.full(units_of(stack, weights, k), v[0]) for k, v in scales.items()
    }
    with pytest.raises(ValueError, match=words):
        rw.apply(stack, weights, [do.ScaleChannels(scales)])


def units_of(stack, weights, name):
    return next(place.count for place in places(stack, Draft(weights)) if name in place.names)


def test_a_reader_that_is_left_out_is_noticed():
    stack, weights = model("mixtral")
    scales = {"blocks.0.feed_forward_norm": scales_of(stack, weights)["blocks.0.feed_forward_norm"]}
    found = rw.apply(stack, weights, [do.ScaleChannels(scales)])
    router = stack.blocks[0].feed_forward.router.weight
    forgotten = rw.certify((stack, weights), (found.stack, dict(found.weights) | {router: weights[router]}))
    assert forgotten.verdict == "different"
    assert rw.certify((stack, weights), (found.stack, found.weights)).verdict == "same"


def test_channels_of_latents_are_scaled_and_smoothed():
    stack, weights = model("deepseek_v3")
    gain, reader = (f"model.layers.0.self_attn.{m}.weight" for m in ("kv_a_layernorm", "kv_b_proj"))
    s = np.array([*range(1, 9)], float)
    found = rw.apply(stack, weights, [do.ScaleChannels({gain: s})])
    np.testing.assert_allclose(found.weights[gain], weights[gain] / s)
    np.testing.assert_allclose(found.weights[reader], weights[reader] * s)
    found = rw.apply(stack, weights, [do.Smooth({reader: s}, alpha=0.7)])
    assert found.certificate.passed, found.certificate
    chosen = s**0.7 / np.abs(weights[reader]).max(0) ** 0.3
    np.testing.assert_allclose(found.weights[gain], weights[gain] / chosen)
    with pytest.raises(ValueError, match="has 8 inputs; got 16 numbers"):
        rw.apply(stack, weights, [do.Smooth({reader: np.ones(16)})])


def test_smoothing_is_that_of_smoothquant():
    stack, weights = model("llama")
    draw = np.random.default_rng(1)
    largest = {f"model.layers.0.self_attn.{m}_proj": draw.uniform(0, 9, 16) for m in "qkv"}
    largest["model.layers.0.self_attn.o_proj"] = draw.uniform(0, 9, 16)  # no norm is before it: left out
    largest["model.layers.0.self_attn.q_proj"][3] = 0
    largest["model.layers.0.self_attn.k_proj"][3] = 0
    largest["model.layers.0.self_attn.v_proj"][3] = 0
    found = rw.apply(stack, weights, [do.Smooth(largest, alpha=0.7)])
    a = np.max([largest[f"model.layers.0.self_attn.{m}_proj"] for m in "qkv"], 0)
    readers = np.concatenate([weights[f"model.layers.0.self_attn.{m}_proj.weight"] for m in "qkv"])
    s = np.maximum(a**0.7 / np.abs(readers).max(0) ** 0.3, 1e-5)
    gain = "model.layers.0.input_layernorm.weight"
    np.testing.assert_allclose(found.weights[gain], weights[gain] / s, rtol=1e-12)
    later = "model.layers.1.input_layernorm.weight"
    np.testing.assert_array_equal(found.weights[later], weights[later])
    assert apart(stack, weights, found) < 1e-12
    for bad in ({}, [1.0]):
        with pytest.raises(TypeError, match="largest must be"):
            do.Smooth(bad)
    for alpha in (-0.1, 1.5, np.nan, "0.5", True):
        with pytest.raises(ValueError, match="alpha"):
            do.Smooth(largest, alpha)
    for wrong, words in (
        (
            {"model.layers.0.self_attn.q_proj": np.ones(16), "model.layers.0.self_attn.k_proj": np.ones(15)},
            "k_proj.weight' has 16 inputs; got 15",
        ),
        ({"model.layers.0.self_attn.q_proj": -np.ones(16)}, "below zero"),
        ({"model.layers.7.self_attn.q_proj": np.ones(16)}, "no linear map"),
        ({"model.layers.0.self_attn.o_proj": np.ones(16)}, "none of the maps"),
        ({"lm_head": np.ones(16)}, "none of the maps"),
        ({"model.layers.0.self_attn.q_proj": np.full(16, np.nan)}, "it holds nan"),
        ({f"model.layers.0.self_attn.q_proj{end}": np.ones(16) for end in ("", ".weight")}, "another name of"),
    ):
        with pytest.raises(ValueError, match=words):
            rw.apply(stack, weights, [do.Smooth(wrong)])


def test_vectors_are_read_from_files(tmp_path):
    vectors = {"a": np.arange(3.0), "b": np.ones(2)}
    np.savez(tmp_path / "v.npz", **vectors)
    (tmp_path / "v.json").write_text(json.dumps({k: v.tolist() for k, v in vectors.items()}))
    for name in ("v.npz", "v.json"):
        found = read_vectors(tmp_path / name)
        assert set(found) == {"a", "b"}
        np.testing.assert_array_equal(found["a"], vectors["a"])
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.npz").write_text("{")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "text.json").write_text('{"a": "b"}')
    (tmp_path / "v.txt").write_text("")
    (tmp_path / "texts.json").write_text('{"a": ["1", "2"]}')
    (tmp_path / "null.json").write_text('{"a": [1, null]}')
    (tmp_path / "long.json").write_text('{"a": [1' + 400 * "0" + "]}")
    (tmp_path / "twice.json").write_text('{"a": [1], "a": [2]}')
    (tmp_path / "deep.json").write_text(100_000 * "[")
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "v.npz").read_bytes()[:-30])
    np.save(tmp_path / "npy.npy", np.ones(3))
    (tmp_path / "npy.npy").rename(tmp_path / "npy.npz")
    np.savez(tmp_path / "complex.npz", a=np.ones(3) + 1j)
    np.savez(tmp_path / "true.npz", a=np.ones(3, bool))
    write_file(tmp_path / "v.safetensors", {"a": np.arange(3, dtype=np.float16), "b": np.ones((1, 2), np.float32)})
    assert [read_vectors(tmp_path / "v.safetensors")[name].tolist() for name in "ab"] == [[0, 1, 2], [1, 1]]
    write_file(tmp_path / "number.safetensors", {"a": np.array(2.0)})
    with pytest.raises(ValueError, match="must be a vector"):
        read_vectors(tmp_path / "number.safetensors")
    for name, words in (
        ("bad.json", "is no JSON"),
        ("bad.npz", "pickled|npz"),
        ("list.json", "vectors by name"),
        ("text.json", "vector of real numbers"),
        ("texts.json", "vector of real numbers"),
        ("null.json", "vector of real numbers"),
        ("long.json", "vector of real numbers"),
        ("twice.json", "is there twice"),
        ("deep.json", "holds no vectors|is no JSON"),
        ("cut.npz", "holds no vectors"),
        ("npy.npz", "holds no vectors"),
        ("complex.npz", "complex128"),
        ("true.npz", "dtype bool"),
        ("empty.json", "it holds none"),
        ("v.txt", "are read from"),
    ):
        with pytest.raises(ValueError, match=words):
            read_vectors(tmp_path / name)
    with pytest.raises(OSError, match="none"):
        read_vectors(tmp_path / "none.npz")


@pytest.mark.peers
def test_files_of_awq_and_smoothquant_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    stack, weights = model("llama")
    scales = scales_of(stack, weights, names=lambda place: list(place.names)[-1])
    entries = [(name, ["some.reader"], torch.tensor(s).reshape(1, -1)) for name, s in scales.items()]
    torch.save({"scale": entries, "clip": []}, tmp_path / "awq.pt")
    found = read_vectors(tmp_path / "awq.pt")
    assert set(found) == set(scales)
    out = rw.apply(stack, weights, [do.ScaleChannels(found)])
    assert apart(stack, weights, out) < 1e-12
    torch.save({"model.layers.0.self_attn.q_proj": torch.ones(16, dtype=torch.bfloat16)}, tmp_path / "act.pt")
    rw.apply(stack, weights, [do.Smooth(read_vectors(tmp_path / "act.pt"))])
    torch.save({"scale": [entries[0], entries[0]]}, tmp_path / "twice.pt")
    torch.save({"scale": [("a", "b")]}, tmp_path / "short.pt")
    torch.save({"scale": []}, tmp_path / "none.pt")
    torch.save({"a": torch.ones(3, device="meta")}, tmp_path / "meta.pt")
    (tmp_path / "no.pt").write_text("no")
    for name, words in (
        ("twice.pt", "two scales"),
        ("short.pt", "entries of"),
        ("no.pt", "no vectors"),
        ("none.pt", "is empty"),
        ("meta.pt", "vector"),
    ):
        with pytest.raises(ValueError, match=words):
            read_vectors(tmp_path / name)


def test_gains_are_folded_and_left_out():
    stack, weights = model("llama")
    found = rw.apply(stack, weights, [do.FlashNorm()])
    assert found.certificate.passed
    gone = {n.part.gain for n in stack.norms if n.path.startswith("blocks.")}
    assert set(found.weights) == set(weights) - gone
    assert found.stack.final == stack.final
    assert all(n.part.gain is None for n in found.stack.norms if n.path.startswith("blocks."))
    assert apart(stack, weights, found) < 1e-12
    everything = rw.apply(stack, weights, [do.FlashNorm(only=("*",)), do.Rotate(seed=1)])
    assert all(n.part.gain is None for n in everything.stack.norms)
    assert apart(stack, weights, everything) < 1e-12
    assert rw.certify((stack, weights), (found.stack, found.weights)).verdict == "same"


@pytest.mark.parametrize(
    ("kind", "step", "words"),
    [
        ("gpt2", do.FlashNorm(), "no block has one"),
        ("gpt2", do.FlashNorm(only=("blocks.0.attention_norm",)), "it is no RMSNorm"),
        ("bert", do.FlashNorm(), "no block has one"),
        ("olmo2", do.FlashNorm(only=("*writing_norm",)), "residual stream"),
        ("gemma", do.FlashNorm(only=("final",)), "untie"),
        ("llama", do.FlashNorm(only=("nothing",)), "no norm has such a path"),
    ],
)
def test_gains_that_cannot_be_left_out_are_refused(kind, step, words):
    with pytest.raises(ValueError, match=words):
        rw.apply(*model(kind), [step])


def test_activations_of_awq_are_told_apart():
    stack, weights = model("gpt2")
    with pytest.raises(ValueError, match="An activation, as AWQ names it"):
        rw.apply(stack, weights, [do.ScaleChannels({"transformer.h.0.mlp.act": np.ones(4)})])


def test_smoothing_takes_the_files_of_tied_models():
    for kind in ("gpt2", "gemma", "opt", "bert"):
        stack, weights = model(kind)
        maps = {site.part.weight.removesuffix(".weight") for site in stack.linears if site.path.startswith("blocks")}
        largest = {
            name: np.ones(16) for name in maps if name.split(".")[-1] not in {"fc2", "c_proj", "down_proj", "dense"}
        }
        largest[stack.head.untied.removesuffix(".weight")] = np.ones(16)
        if kind == "bert":  # its norms write to the stream
            with pytest.raises(ValueError, match="none of the maps"):
                rw.apply(stack, weights, [do.Smooth(largest)])
            continue
        found = rw.apply(stack, weights, [do.Smooth(largest)])
        assert apart(stack, weights, found) < 1e-12
        assert not found.draft.changed(stack.head.linear.weight)


def test_a_large_head_is_read_in_pieces_and_a_fused_array_once(monkeypatch):
    stack, weights = model("gpt_oss")
    largest = {site.path: np.ones(16) for site in stack.linears if ".experts." in site.path and "down" not in site.path}
    read = []
    draft = Draft(weights)
    monkeypatch.setattr(
        Draft, "__getitem__", lambda self, name, get=Draft.__getitem__: read.append(name) or get(self, name)
    )
    do.Smooth(largest).scales(stack, draft)
    fused = [name for name in read if "gate_up" in name]
    assert len(fused) == len(set(fused)) == len(stack.blocks)


def test_patterns_leave_norms_of_heads_alone():
    stack, weights = model("qwen3", tie_word_embeddings=False)
    for pattern in ("*", "blocks.*"):
        found = rw.apply(stack, weights, [do.FlashNorm(only=(pattern,))])
        assert found.stack.blocks[0].attention.query_norm == stack.blocks[0].attention.query_norm
        assert apart(stack, weights, found) < 1e-12


def test_scaled_gains_are_said():
    stack, weights = model("llama")
    found = rw.apply(stack, weights, [do.ScaleChannels({"blocks.0.attention_norm": np.linspace(0.5, 2, 16)})])
    same = rw.certify((stack, weights), (found.stack, found.weights))
    assert same.verdict == "same"
    assert same.actions == ("1 norm got another gain, and the readers take the inverse",)


def test_a_file_with_a_comma_stands_in_quotes(tmp_path):
    np.savez(tmp_path / "a,b.npz", **{"blocks.0.attention_norm": np.full(16, 2.0)})
    untie, scaled = do.parse(f'untie, "scale-channels={tmp_path}/a,b.npz"')
    assert isinstance(untie, do.Untie)
    np.testing.assert_array_equal(scaled.scales["blocks.0.attention_norm"], np.full(16, 2.0))
