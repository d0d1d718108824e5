"""Folders are read and written whole: round trips, several files, low precision, interruptions, bad input."""

import json
import os
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from lngeom.cli import programs
from lngeom.cli.commands import app
from lngeom.rewrite import steps as do
from lngeom.transformers import rewrite as rw
from lngeom.transformers.rewrite import checkpoints
from lngeom.transformers.rewrite.certificate import outputs
from lngeom.transformers.rewrite.draft import Draft
from typer.testing import CliRunner

from tests.rewrite.test_steps import TOKENS
from tests.rewrite.zoo import CONFIGS, checkpoint, write_file


@pytest.fixture(autouse=True)
def _leave_the_cache(monkeypatch):
    monkeypatch.setattr(programs, "compile_sparingly", lambda: None)


def lngeom(*args):
    return CliRunner().invoke(app, ["rewrite", *map(str, args)])


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_that_nothing_changed_comes_back_byte_for_byte(kind, tmp_path):
    old = checkpoint(tmp_path / "old", kind)
    stack, weights = rw.load(old)
    checkpoints.write(stack, Draft(weights), tmp_path / "new")
    again, found = rw.load(tmp_path / "new")
    assert again == stack
    assert set(found) == set(weights)
    for name in weights:
        assert np.asarray(found[name]).tobytes() == np.asarray(weights[name]).tobytes()
    assert (tmp_path / "new" / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("count", [1, 3])
def test_what_was_saved_is_what_was_certified(dtype, count, tmp_path):
    old = checkpoint(tmp_path / "old", "gemma", dtype, files=count)
    found = rw.apply(*rw.load(old), [do.Untie(), do.FoldNorms(), do.Rotate()])
    assert found.certificate.passed, found.certificate
    rw.save(found, tmp_path / "new")
    stack, weights = rw.load(tmp_path / "new")
    assert stack == found.stack
    assert not stack.tied
    assert not json.loads((tmp_path / "new" / "config.json").read_text())["tie_word_embeddings"]
    assert set(weights) == {*rw.load(old)[1], "lm_head.weight"}
    for name, array in found.weights.items():
        assert np.asarray(weights[name]).dtype == dtype
        assert np.asarray(weights[name]).tobytes() == array.tobytes()
    assert len(list((tmp_path / "new").glob("*.safetensors"))) == count


def test_rows_are_read_alone(tmp_path):
    _, weights = rw.load(checkpoint(tmp_path / "old", "llama", ml_dtypes.bfloat16))
    array = weights["model.embed_tokens.weight"]
    whole = np.asarray(array)
    np.testing.assert_array_equal(array[3:7], whole[3:7])
    np.testing.assert_array_equal(array[np.array([9, 2])], whole[[9, 2]])
    np.testing.assert_array_equal(array[-2:], whole[-2:])
    assert array.ndim == 2


@pytest.mark.thorough
def test_rmsnorms_in_a_layernorm_family_are_saved_under_a_name_that_no_other_library_loads(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt2")
    steps = [do.Untie(), do.FoldNorms(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate()]
    found = rw.apply(*rw.load(old), steps)
    rw.save(found, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "config.json").read_text())["model_type"] == "lngeom_rms_gpt2"
    stack, weights = rw.load(tmp_path / "new")
    assert {n.part.kind for n in stack.norms} == {"rms"}
    before = outputs(*rw.load(old), TOKENS)
    np.testing.assert_allclose(outputs(stack, weights, TOKENS), before, atol=1e-12)


def test_the_command_says_that_only_lngeom_loads_them(tmp_path):
    result = lngeom(checkpoint(tmp_path / "old", "opt"), "--do", "untie,fold,centre,rms", "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert "lngeom alone loads it" in result.output


def test_a_scaled_epsilon_is_in_the_config(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    found = rw.apply(*rw.load(old), [do.ScaleStream(2.0)])
    rw.save(found, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "config.json").read_text())["rms_norm_eps"] == 4e-6
    assert rw.load(tmp_path / "new")[0] == found.stack


def test_a_description_that_no_config_has_is_not_written(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt2")
    steps = [do.Untie(), do.CentreWriters(), do.ToRMSNorm(only=("final",))]
    found = rw.apply(*rw.load(old), steps)
    with pytest.raises(ValueError, match="no config of model_type 'gpt2'"):
        rw.save(found, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_failed_certificate_is_not_written(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    head = np.asarray(rw.load(old)[1]["lm_head.weight"])
    arrays = {n: np.asarray(a) for n, a in rw.load(old)[1].items()} | {"lm_head.weight": 0 * head}
    write_file(old / "model.safetensors", arrays)
    found = rw.apply(*rw.load(old), [do.FoldNorms()])
    with pytest.raises(ValueError, match="certificate failed"):
        rw.save(found, tmp_path / "new")
    result = lngeom(old, "--do", "fold", "--out", tmp_path / "new")
    assert result.exit_code == 1, result.output
    assert not (tmp_path / "new").exists()


def test_arrays_in_memory_say_that_they_have_no_config(tmp_path):
    stack, weights = rw.load(checkpoint(tmp_path / "old", "llama"))
    found = rw.apply(stack, {n: np.asarray(a) for n, a in weights.items()}, [do.FoldNorms()])
    assert isinstance(found.weights, dict)
    with pytest.raises(ValueError, match=r"lg\.rewrite\.load"):
        rw.save(found, tmp_path / "new")


def test_an_error_while_writing_leaves_nothing(tmp_path, monkeypatch):
    old = checkpoint(tmp_path / "old", "llama", files=2)
    before = files(old)
    found = rw.apply(*rw.load(old), [do.FoldNorms()])
    rounded, calls = Draft.rounded, []

    def full(self, name):
        calls.append(name)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        return rounded(self, name)

    monkeypatch.setattr(Draft, "rounded", full)
    with pytest.raises(OSError, match="No space"):
        rw.save(found, tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert files(old) == before


STALLED = """
import sys, time
from lngeom import rewrite as rw
from lngeom.transformers.rewrite.draft import Draft
found = rw.apply(*rw.load(sys.argv[1]), [rw.steps.FoldNorms()])
rounded, calls = Draft.rounded, []
def slow(self, name):
    calls.append(name)
    if len(calls) == 5:
        print("half", flush=True)
        time.sleep(60)
    return rounded(self, name)
Draft.rounded = slow
from lngeom.cli.interrupts import stoppable
with stoppable("lngeom rewrite"):
    rw.save(found, sys.argv[2])
"""


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_a_stop_half_way_leaves_the_old_folder_and_no_new_one(kind, tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    before = files(old)
    command = [sys.executable, "-W", "ignore", "-c", STALLED, str(old), str(tmp_path / "new")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        assert any(p.name.startswith(".new.") for p in tmp_path.iterdir())
        process.send_signal(getattr(signal, kind))
    assert not (tmp_path / "new").exists()
    assert files(old) == before
    if kind != "SIGKILL":  # nobody can clean up after that one
        assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_a_folder_that_exists_is_not_replaced(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    result = lngeom(old, "--do", "fold", "--out", old)
    assert result.exit_code == 2
    assert "exists" in result.output
    (tmp_path / "empty").mkdir()
    assert lngeom(old, "--do", "fold", "--out", tmp_path / "empty").exit_code == 0
    assert (tmp_path / "empty" / "config.json").is_file()


def test_the_command_prints_the_plan_then_the_certificate(tmp_path):
    old = checkpoint(tmp_path / "old", "gemma", np.float32)
    result = lngeom(old, "--do", "untie,fold,rotate", "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert result.output.index("plan: untie, fold, rotate") < result.output.index("certificate: passed")
    assert "Hadamard" in result.output
    document = json.loads(lngeom(old, "--do", "untie,fold", "--json").stdout)
    assert document["certificate"]["passed"]
    assert document["certificate"]["dtype"] == "float32"
    assert document["written"] is None
    assert set(document["certificate"]["changed"]) >= {"lm_head.weight", "model.norm.weight"}


@pytest.mark.parametrize(
    ("steps", "words"),
    [("fold", "fold refused"), ("untie,rotate", "(fold)"), ("melt", "no step 'melt'"), ("untie,centre", "RMSNorm")],
)
def test_the_command_exits_2_where_a_step_is_refused(steps, words, tmp_path):
    result = lngeom(checkpoint(tmp_path / "old", "gemma"), "--do", steps, "--out", tmp_path / "new")
    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "new").exists()


def test_the_help_names_every_step(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    text = lngeom("--help").output
    assert all(word in text for word in rw.steps.STEPS)


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        rw.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        rw.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        rw.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must hold model\.safetensors"):
        rw.load(tmp_path)
    for content in (b"", b"no file of arrays", (9).to_bytes(8, "little") + b"{nothing}"):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"no \.safetensors file"):
            rw.load(tmp_path)


def test_a_file_that_ends_too_soon_is_named(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    path = old / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        rw.load(old)


def test_arrays_that_the_layout_does_not_know_are_named(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    arrays = {n: np.asarray(a) for n, a in rw.load(old)[1].items()}
    write_file(old / "model.safetensors", arrays | {"model.layers.0.mlp.adapter.weight": np.ones((2, 2))})
    with pytest.raises(ValueError, match="adapter"):
        rw.load(old)
    write_file(old / "model.safetensors", arrays | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2)})
    assert rw.load(old)


def test_a_second_copy_of_a_tied_head_is_replaced(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt2")
    arrays = {n: np.asarray(a) for n, a in rw.load(old)[1].items()}
    write_file(old / "model.safetensors", arrays | {"lm_head.weight": arrays["transformer.wte.weight"]})
    stack, weights = rw.load(old)
    assert stack.tied
    found = rw.apply(stack, weights, [do.Untie(), do.FoldNorms()])
    assert found.certificate.passed
    rw.save(found, tmp_path / "new")
    new = rw.load(tmp_path / "new")[1]
    assert np.abs(np.asarray(new["lm_head.weight"]) - arrays["transformer.wte.weight"]).max() > 0.1


def test_names_without_the_prefix_of_the_base_model_are_read(tmp_path):
    old = checkpoint(tmp_path / "old", "gpt2")
    arrays = {n: np.asarray(a) for n, a in rw.load(old)[1].items()}
    reference = outputs(*rw.load(old), TOKENS)
    write_file(old / "model.safetensors", {n.removeprefix("transformer."): a for n, a in arrays.items()})
    np.testing.assert_array_equal(outputs(*rw.load(old), TOKENS), reference)


def test_the_norms_of_bert_s_first_files_are_read(tmp_path):
    old = checkpoint(tmp_path / "old", "bert")
    arrays = {n: np.asarray(a) for n, a in rw.load(old)[1].items()}
    reference = outputs(*rw.load(old), TOKENS)
    words = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {
        "".join([n.removesuffix(k) + v for k, v in words.items() if n.endswith(k)] or [n]): a for n, a in arrays.items()
    }
    assert len(set(renamed) - set(arrays)) == 12
    write_file(old / "model.safetensors", renamed)
    np.testing.assert_array_equal(outputs(*rw.load(old), TOKENS), reference)
