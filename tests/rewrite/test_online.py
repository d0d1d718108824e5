"""Matrices that act when the model runs: described, written, read again, and taken back for comparisons."""

import json
from dataclasses import replace

import numpy as np
import pytest
from lngeom.rewrite import steps as do
from lngeom.transformers import FeedForward, Linear, rewrite as rw
from lngeom.transformers.description import exchange
from lngeom.transformers.forward import hadamard
from lngeom.transformers.rewrite.certificate import outputs
from lngeom.transformers.rewrite.orthogonal import Orthogonal

from tests.rewrite.test_channels import apart
from tests.rewrite.test_steps import TOKENS, model
from tests.rewrite.zoo import checkpoint


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16])
def test_the_matrix_is_orthogonal_symmetric_and_its_own_inverse(block):
    H = hadamard(np.eye(16), block)
    np.testing.assert_allclose(H @ H, np.eye(16), atol=1e-15)
    np.testing.assert_array_equal(H, H.T)
    assert np.count_nonzero(H) == 16 * block
    np.testing.assert_allclose(np.abs(H[H != 0]), block**-0.5)


@pytest.mark.parametrize("kind", ["llama", "gemma", "gpt2", "qwen2_moe", "gpt_oss", "bert"])
def test_turned_units_queries_and_keys_leave_the_function(kind):
    stack, weights = model(kind)
    found = rw.apply(stack, weights, [do.TurnUnits(), do.TurnQueriesAndKeys(2)])
    assert found.certificate.passed, found.certificate
    assert apart(stack, weights, found) < 1e-12
    plain = exchange(
        found.stack,
        {
            f"blocks.{i}.feed_forward": replace(block.feed_forward, hadamard=None)
            for i, block in enumerate(found.stack.blocks)
            if isinstance(block.feed_forward, FeedForward)
        },
    )
    if plain != found.stack:  # without the matrix it is another function
        assert np.abs(outputs(plain, found.weights, TOKENS) - outputs(stack, weights, TOKENS)).max() > 1e-3
    assert rw.certify((stack, weights), (found.stack, found.weights)).verdict == "same"


def test_a_matrix_that_the_runtime_forgets_is_noticed():
    stack, weights = model("llama")
    found = rw.apply(stack, weights, [do.TurnUnits()])
    forgotten = rw.certify((stack, weights), (stack, found.weights))
    assert forgotten.verdict == "different"
    assert "blocks.0.feed_forward" in str(forgotten)
    assert "in blocks of 4 at run time, and is not" in str(forgotten)


def test_turned_units_are_refused_where_the_theory_ends():
    stack, weights = model("llama")
    turned = rw.apply(stack, weights, [do.TurnUnits()])
    for step, words in ((do.Balance(), "turns its units"), (do.TurnUnits(), "turned at run time already")):
        with pytest.raises(rw.Refused, match=words):
            rw.apply(turned.stack, turned.weights, [step])
    heads = rw.apply(stack, weights, [do.TurnQueriesAndKeys()])
    with pytest.raises(rw.Refused, match="turned at run time already"):
        rw.apply(heads.stack, heads.weights, [do.TurnQueriesAndKeys()])
    with pytest.raises(ValueError, match="turns at run time"):
        rw.canonical(turned.stack, turned.weights)
    for step in (do.TurnUnits(16), do.TurnUnits(6), do.TurnUnits(1), do.TurnQueriesAndKeys(16)):
        with pytest.raises(ValueError, match="have no blocks of"):
            rw.apply(stack, weights, [step])
    with pytest.raises(ValueError, match="power of two"):
        FeedForward(Linear("up"), Linear("down"), hadamard=6)
    with pytest.raises(ValueError, match="must divide its 20 hidden units"):
        exchange(stack, {"blocks.0.feed_forward": replace(stack.blocks[0].feed_forward, hadamard=8)}).check(weights)


@pytest.mark.parametrize("kind", ["llama", "mixtral", "olmo"])
def test_a_folder_says_what_acts_at_run_time(kind, tmp_path):
    stack, weights = rw.load(checkpoint(tmp_path / "old", kind))
    steps = [
        do.TurnUnits(4),
        do.TurnQueriesAndKeys(2),
        *([do.CentreWriters(), do.ToRMSNorm()] if kind == "olmo" else []),
    ]
    rw.save(rw.apply(stack, weights, steps), tmp_path / "new")
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["lngeom_online"] == {"units": 4, "queries_and_keys": 2}
    assert config["model_type"] == f"lngeom_online_{'lngeom_rms_' if kind == 'olmo' else ''}{kind}"
    again = rw.load(tmp_path / "new")
    assert {b.attention.hadamard for b in again[0].blocks} == {2}
    before = outputs(stack, weights, TOKENS)
    assert np.abs(outputs(*again, TOKENS) - before).max() < 1e-12 * np.abs(before).max()
    same = rw.certify(tmp_path / "old", tmp_path / "new")
    assert same.verdict == "same"
    assert {"hidden units are turned when the model runs", "queries and keys are turned when the model runs"} <= set(
        same.actions
    )
    back = rw.certify(tmp_path / "new", tmp_path / "old")
    assert "hidden units are no longer turned when the model runs" in back.actions
    for wrong, words in (
        ({"lngeom_online": None}, "must have 'units'"),
        ({"lngeom_online": {"units": 3}}, "power of two"),
        ({"lngeom_online": {"units": "4"}}, "whole numbers of rows"),
        ({"lngeom_online": {"units": None}}, "whole numbers of rows"),
        ({"lngeom_online": {"units": 1}}, "whole numbers of rows"),
        ({"model_type": f"lngeom_online_lngeom_online_{kind}"}, "is not covered"),
        ({"lngeom_online": {"other": 4}}, "must have 'units'"),
        ({"model_type": kind}, "needs a model_type"),
    ):
        (tmp_path / "new/config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(ValueError, match=words):
            rw.load(tmp_path / "new")


@pytest.mark.parametrize("kind", ["llama", "gemma", "qwen3", "mixtral"])
def test_a_folder_without_gains_is_read_again(kind, tmp_path):
    stack, weights = rw.load(checkpoint(tmp_path / "old", kind))
    step = do.FlashNorm(only=("blocks.*", "final") if kind == "llama" else ())
    rw.save(rw.apply(stack, weights, [step, do.RotateValues()]), tmp_path / "new")
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["flash_norm"] is True
    assert config.get("flashnorm_folded", False) is (kind == "llama")
    names = set(rw.load(tmp_path / "new")[1])
    assert not any("layernorm" in name for name in names)
    assert any("norm.weight" in name for name in names) == (kind != "llama")
    again = rw.load(tmp_path / "new")
    before = outputs(stack, weights, TOKENS)
    assert np.abs(outputs(*again, TOKENS) - before).max() < 1e-12 * np.abs(before).max()
    rw.save(rw.apply(*again, [do.RotateValues(seed=1)]), tmp_path / "later")
    assert json.loads((tmp_path / "later/config.json").read_text()) == config
    for wrong, words in (({"flash_norm": "yes"}, "true or false"), ({"flash_norm": 1}, "true or false")):
        (tmp_path / "new/config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(ValueError, match=words):
            rw.load(tmp_path / "new")
    bare = {name: value for name, value in config.items() if not name.startswith("flash")}
    (tmp_path / "new/config.json").write_text(json.dumps(bare))
    with pytest.raises(ValueError, match="lack"):
        rw.load(tmp_path / "new")


def test_what_is_turned_is_turned_back():
    stack, weights = model("qwen2_moe")
    turned = rw.apply(stack, weights, [do.TurnUnits(), do.TurnQueriesAndKeys()])
    back = rw.apply(turned.stack, turned.weights, [do.TurnBack(), do.Balance()])
    assert back.stack == stack
    assert apart(stack, weights, back) < 1e-12


def test_one_turned_block_is_compared():
    stack, weights = model("llama")
    block = stack.blocks[0].feed_forward
    other = dict(weights) | {block.down.weight: hadamard(weights[block.down.weight], 4)}
    turned = exchange(stack, {"blocks.0.feed_forward": replace(block, hadamard=4)})
    assert rw.certify((stack, weights), (turned, other)).verdict == "same"


def folded_folder(tmp_path, **options):
    """A folder of Llama with folded gains, and other options."""
    rw.save(rw.apply(*rw.load(checkpoint(tmp_path / "old", "llama")), [do.FoldNorms()]), tmp_path / "folded")
    config = json.loads((tmp_path / "folded/config.json").read_text())
    (tmp_path / "folded/config.json").write_text(json.dumps(config | options))
    return tmp_path / "folded"


def test_flags_of_folded_gains_follow_the_gains(tmp_path):
    both = {"flash_norm": True, "flashnorm_folded": True}
    stack, weights = rw.load(folded_folder(tmp_path, **both))
    s = np.linspace(0.5, 2, 16)
    for steps, left in (
        ([do.ScaleChannels({"blocks.0.attention_norm": s})], set()),
        ([do.ScaleChannels({"final": s})], {"flash_norm"}),
        ([do.ScaleChannels({"blocks.0.attention.value": s[:8]})], set(both)),
    ):
        rw.save(rw.apply(stack, weights, steps), tmp_path / str(len(left)))
        config = json.loads((tmp_path / str(len(left)) / "config.json").read_text())
        assert {option for option in both if option in config} == left
    with pytest.raises(ValueError, match="gains other than 1"):
        rw.save(
            rw.apply(*rw.load(tmp_path / "old"), [do.FlashNorm(only=("blocks.0.attention_norm",))]), tmp_path / "some"
        )


def test_a_flag_beside_another_gain_has_two_readings(tmp_path):
    old = checkpoint(tmp_path / "old", "llama")
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(config | {"flashnorm_folded": True}))
    with pytest.raises(ValueError, match="holds a gain other than 1"):
        rw.load(old)


@pytest.mark.parametrize(("size", "block", "fix"), [(16, 4, False), (24, 12, True), (24, 8, True), (16, 16, False)])
def test_rotations_in_blocks(size, block, fix):
    Q = Orthogonal(size, 3, fix_ones=fix, block=block)
    matrix = Q.matrix()
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-14)
    outside = np.kron(np.eye(size // block), np.ones((block, block))) == 0
    assert not matrix[outside].any()
    assert np.abs(matrix[~outside]).min() > 0 or fix
    if fix:
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-14)
    if not fix and block < size:
        assert len({tuple(np.sign(matrix[i : i + block, i : i + block]).ravel()) for i in range(0, size, block)}) > 1
    for wrong in (3, 5, 1, 32):
        with pytest.raises(ValueError, match="no Hadamard matrix in blocks"):
            Orthogonal(size, block=wrong)


@pytest.mark.parametrize("kind", ["llama", "olmo"])
def test_a_stream_is_rotated_in_blocks(kind):
    stack, weights = model(kind)
    found = rw.apply(stack, weights, [do.FoldNorms(), do.Rotate(seed=2, block=8)])
    assert apart(stack, weights, found) < 1e-12
    assert "2 blocks" in str(found.draft.labels)
    with pytest.raises(ValueError, match="block is for Hadamard"):
        do.Rotate(block=8, hadamard=False)
