"""Stacks that read patches, give hidden states, scale channels of branches, or share relative positions."""

import json
from dataclasses import replace

import lngeom as lg
import ml_dtypes
import numpy as np
import pytest
from analysis.models.families import CONFIGS, model_class, package, save_random
from lngeom.rewrite import steps as do
from lngeom.transformers import Buckets, Head, rewrite as rw
from lngeom.transformers.rewrite.array_files import read_header
from lngeom.transformers.rewrite.certificate import everything, outputs
from lngeom.transformers.rewrite.layouts import LABELS

from tests.rewrite import zoo
from tests.rewrite.zoo import write_file

peers = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
PATCHES = np.random.default_rng(5).normal(size=(4, 9, 27))
TOKENS = np.random.default_rng(3).integers(2, 23, (4, 9))
INPUTS = {"vit": PATCHES, "dinov2": PATCHES, "t5": TOKENS}
KEEPS = {
    "ViTModel": [do.FoldNorms(), do.CentreWriters(), do.MergeValueBias(), do.DropKeyBias(), do.RotateValues(seed=1)],
    "Dinov2Model": [do.FoldNorms(), do.FoldScales(), do.CentreWriters(), do.RotateValues(seed=1)],
    "T5EncoderModel": [do.FoldNorms(), do.Balance(), do.RotateValues(seed=1)],
}


def made(kind, **options):
    stack = zoo.stack_of(kind, **options)
    return stack, zoo.random_weights(kind, stack)


def relative(a, b):
    return float(np.abs(a - b).max() / np.abs(a).max())


def changed(folder, **options):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **options}))


def arrays_of(folder):
    return {name: np.asarray(array) for name, array in read_header(folder / "model.safetensors")[0].items()}


# The package's own models.


@pytest.mark.parametrize("kind", INPUTS, ids=str)
@pytest.mark.parametrize("which", [0, 1], ids=["hidden states", "logits"])
@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_outputs_on_images_are_the_package_s_before_and_after(kind, which, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    name, inputs = LABELS[kind][which], INPUTS[kind]
    save_random(kind, CONFIGS[kind], tmp_path / "old", name=name)
    stack, weights = rw.load(tmp_path / "old")
    theirs = hf.all_outputs(kind, tmp_path / "old", inputs, name=name)[0]
    assert stack.hidden_states == (which == 0)
    assert relative(theirs, outputs(stack, weights, inputs)) < 1e-12

    out = rw.apply(stack, weights, KEEPS[LABELS[kind][0]])
    assert out.certificate.passed, out.certificate
    rw.save(out, tmp_path / "new")
    assert relative(theirs, hf.all_outputs(kind, tmp_path / "new", inputs, name=name)[0]) < 1e-12
    assert rw.certify(tmp_path / "old", tmp_path / "new").verdict == "same"


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [16, 10])
def test_the_pooler_of_vit_reads_the_class_token(size, tmp_path):
    import torch

    hf = pytest.importorskip("tests.rewrite.hf")
    save_random("vit", CONFIGS["vit"] | {"pooler_output_size": size}, tmp_path, name="ViTModel")
    stack, weights = rw.load(tmp_path)
    _, states, pooled = everything(stack, weights, PATCHES)
    with hf.float64(), torch.no_grad():
        model = model_class("vit", "ViTModel").from_pretrained(tmp_path, dtype=torch.float64).eval()
        found = model(torch.tensor(hf.images(PATCHES, model.config)))
    assert relative(found.last_hidden_state.numpy(), states) < 1e-12
    assert relative(found.pooler_output.numpy(), np.tanh(pooled[:, 0])) < 1e-12


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "options"), [("vit", {}), ("dinov2", {}), ("dinov2", {"use_swiglu_ffn": True}), ("t5", {})]
)
def test_names_in_memory_are_read_as_those_in_files(kind, options, tmp_path):
    import torch

    hf = pytest.importorskip("tests.rewrite.hf")
    save_random(kind, CONFIGS[kind] | options, tmp_path / "old")
    with hf.float64():
        model = model_class(kind).from_pretrained(tmp_path / "old", dtype=torch.float64)
    found = rw.certify(model, tmp_path / "old")
    assert found.verdict == "same", found
    # Files with these names are read too, as the package reads them.
    arrays = {name: value.numpy() for name, value in model.state_dict().items()}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text((tmp_path / "old" / "config.json").read_text())
    write_file(tmp_path / "new" / "model.safetensors", arrays)
    theirs = hf.logits(kind, tmp_path / "new", INPUTS[kind])
    assert relative(theirs, outputs(*rw.load(tmp_path / "new"), INPUTS[kind])) < 1e-12


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("count", "largest"), [(32, 128), (8, 6), (6, 4), (4, 3), (20, 100), (64, 1000), (12, 7)])
def test_relative_positions_share_the_rows_that_the_package_gives_them(count, largest):
    import torch

    attention = package().models.t5.modeling_t5.T5Attention
    positions = np.arange(max(300, 2 * largest))
    away = torch.tensor(positions[None] - positions[:, None])
    theirs = attention._relative_position_bucket(away, num_buckets=count, max_distance=largest)
    np.testing.assert_array_equal(Buckets(count, largest).rows(len(positions)), theirs.numpy())


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("vit", "ViTForMaskedImageModeling", r"architectures \['ViTForMaskedImageModeling'\], which is not covered"),
        ("dinov2", "Dinov2Backbone", r"architectures \['Dinov2Backbone'\], which is not covered"),
        ("t5", "T5ForConditionalGeneration", r"architectures \['T5ForConditionalGeneration'\], which is not covered"),
        ("t5", "T5Model", r"architectures \['T5Model'\], which is not covered"),
        ("t5", "T5ForSequenceClassification", r"architectures \['T5ForSequenceClassification'\], which is not"),
    ],
)
def test_classes_with_other_outputs_are_refused_by_name(kind, name, words, tmp_path):
    save_random(kind, CONFIGS[kind], tmp_path, name=name)
    with pytest.raises(ValueError, match=words):
        rw.load(tmp_path)
    model = model_class(kind, name).from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"before is a {name}, which is not covered"):
        rw.certify(model, model)
    changed(tmp_path, architectures=None)
    if kind == "t5":
        with pytest.raises(ValueError, match="its cross-attention reads the encoder"):
            rw.load(tmp_path)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_another_class_than_its_config_says_is_refused(tmp_path):
    for i, (saved, said, words) in enumerate(
        (("ViTModel", "ViTForImageClassification", "no 'classifier.weight'"), (None, "ViTModel", "a 'classifier.weig"))
    ):
        save_random("vit", CONFIGS["vit"], tmp_path / str(i), name=saved)
        changed(tmp_path / str(i), architectures=[said])
        with pytest.raises(ValueError, match=words):
            rw.load(tmp_path / str(i))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_t5_s_table_may_be_stored_twice_or_under_its_second_name(tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random("t5", CONFIGS["t5"], tmp_path / "old")
    arrays = arrays_of(tmp_path / "old")
    table = arrays["transformer.shared.weight"]
    second = "transformer.encoder.embed_tokens.weight"
    rest = {name: value for name, value in arrays.items() if name != "transformer.shared.weight"}
    for i, some in enumerate((arrays | {second: table}, rest | {second: table})):
        folder = tmp_path / f"new{i}"
        folder.mkdir()
        (folder / "config.json").write_text((tmp_path / "old" / "config.json").read_text())
        write_file(folder / "model.safetensors", some)
        theirs = hf.logits("t5", folder, TOKENS)
        assert relative(theirs, outputs(*rw.load(folder), TOKENS)) < 1e-12
        rw.save(rw.apply(*rw.load(folder), [do.FoldNorms(), do.Rotate(seed=0)]), tmp_path / f"turned{i}")
        assert relative(theirs, hf.logits("t5", tmp_path / f"turned{i}", TOKENS)) < 1e-12
    write_file(tmp_path / "new0" / "model.safetensors", arrays | {second: 2 * table})
    with pytest.raises(ValueError, match="two names of one array, which differ"):
        rw.load(tmp_path / "new0")


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_gains_of_t5_that_the_package_would_not_make_1_are_not_left_out(tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    for i, factor in enumerate((1.0, 2.0)):
        old, new = tmp_path / f"old{i}", tmp_path / f"new{i}"
        save_random("t5", CONFIGS["t5"] | {"initializer_factor": factor}, old)
        out = rw.apply(*rw.load(old), [do.FlashNorm(only=("*",))])
        if factor != 1:
            with pytest.raises(ValueError, match="no config of model_type 't5'"):
                rw.save(out, new)
            continue
        rw.save(out, new)
        assert relative(hf.logits("t5", old, TOKENS), hf.logits("t5", new, TOKENS)) < 1e-12


def test_the_bias_of_a_norm_goes_from_both_maps_of_the_head_into_one_bias():
    stack, weights = made("dinov2")
    out = rw.apply(stack, weights, [do.FoldNorms(("final",))])
    assert out.certificate.passed
    assert not np.any(out.weights[stack.final.bias])


# Sizes that config and arrays must share.


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("vit", {"patch_size": 9}, r"config.json says 9 \(patch_size, axis 2\)"),
        ("vit", {"num_channels": 1}, r"config.json says 1 \(num_channels, axis 1\)"),
        ("vit", {"image_size": 12}, r"config.json says 17 \(patches of an image, and the class token"),
        ("vit", {"num_labels": 5}, r"config.json says 5 \(the number of labels"),
        ("vit", {"intermediate_size": 8}, r"config.json says 8 \(the width of hidden layers"),
        ("dinov2", {"mlp_ratio": 4}, r"config.json says 64 \(the width of hidden layers"),
        ("dinov2", {"num_labels": 5}, r"config.json says 5 \(the number of labels"),
        ("t5", {"num_labels": 5}, r"config.json says 5 \(the number of labels"),
        ("t5", {"d_ff": 8}, r"config.json says 8 \(the width of hidden layers"),
        ("t5", {"relative_attention_num_buckets": 10}, r"must have shape \(10, 4\); got \(8, 4\)"),
        ("t5", {"vocab_size": 40}, r"config.json says 40 \(vocab_size"),
    ],
)
def test_sizes_of_images_and_labels_are_held_against_the_config(kind, options, words, tmp_path):
    zoo.checkpoint(tmp_path / "old", kind)
    rw.load(tmp_path / "old")
    changed(tmp_path / "old", **options)
    with pytest.raises(ValueError, match=words):
        rw.load(tmp_path / "old")


# Rewrites.


def test_factors_of_channels_are_folded_before_the_stream_is_centred_or_rotated():
    stack, weights = made("dinov2")
    for step in (do.CentreWriters(), do.Rotate(seed=0), do.ToRMSNorm()):
        with pytest.raises(rw.Refused, match="factors of its channels are not constant") as refused:
            rw.apply(stack, weights, [do.FoldNorms(), step])
        assert refused.value.difference > 1e-3
    out = rw.apply(stack, weights, [do.FoldScales(), do.FoldNorms(), do.CentreWriters(), do.Rotate(seed=0)])
    assert out.certificate.passed, out.certificate
    for block in stack.blocks:
        assert np.all(out.weights[block.attention_scale] == 1)
    plain = rw.apply(*made("vit"), [do.FoldScales()])
    assert not plain.draft.labels


def test_factors_of_channels_that_several_branches_share_stay():
    stack, weights = made("dinov2")
    name = stack.blocks[0].attention_scale
    shared = replace(stack, blocks=tuple(replace(block, attention_scale=name) for block in stack.blocks))
    with pytest.raises(rw.Refused, match="other branches use its factors too"):
        rw.apply(shared, weights, [do.FoldScales()])


def test_a_bias_left_out_of_folded_factors_fails_the_certificate(monkeypatch):
    stack, weights = made("dinov2")
    monkeypatch.setattr(rw.draft.Draft, "set_offsets", lambda *_: None)
    assert not rw.apply(stack, weights, [do.FoldScales()]).certificate.passed


def test_columns_of_the_head_that_are_not_rotated_fail_the_certificate(monkeypatch):
    stack, weights = made("dinov2")
    steps = [do.FoldNorms(), do.FoldScales(), do.CentreWriters(), do.Rotate(seed=0)]
    edit, mean = rw.draft.Draft.edit, stack.head.mean

    def without(self, part, label, change, *, by_rows):
        if part != mean or "rotated" not in label:
            edit(self, part, label, change, by_rows=by_rows)

    assert rw.apply(stack, weights, steps).certificate.passed
    monkeypatch.setattr(rw.draft.Draft, "edit", without)
    assert not rw.apply(stack, weights, steps).certificate.passed


def test_hidden_states_that_are_outputs_stay_what_they_are():
    stack, weights = made("t5")
    states = replace(stack, head=Head(None))
    weights = {name: weights[name] for name in states.arrays}
    for steps, words in (
        ([do.FoldNorms(("final",))], "its output is the model's output"),
        ([do.FoldNorms(), do.Rotate(seed=0)], "the model's output .* which would be rotated too"),
        ([do.CentreHead()], "the outputs are hidden states"),
    ):
        with pytest.raises(rw.Refused, match=words):
            rw.apply(states, weights, steps)
    out = rw.apply(states, weights, [do.FoldNorms(), do.FlashNorm(), do.Balance()])
    assert out.certificate.passed
    assert out.stack.final == states.final
    np.testing.assert_array_equal(out.weights[states.final.gain], weights[states.final.gain])


def test_a_shift_of_hidden_states_is_seen():
    stack, weights = made("vit")
    states = replace(stack, head=Head(None))
    weights = {name: weights[name] for name in states.arrays}
    moved = weights | {states.final.bias: weights[states.final.bias] + 1.0}  # which a softmax would not see
    found = rw.certify((states, weights), (states, moved))
    assert (found.verdict, found.first.path) == ("different", "head")
    assert states.final.bias in found.causes[0].arrays


def test_tables_of_patches_are_not_shifted():
    for kind in ("vit", "dinov2"):
        with pytest.raises(rw.Refused, match="not read once at each position"):
            rw.apply(*made(kind), [do.ShiftTables()])


def test_probes_may_be_patches():
    stack, weights = made("vit")
    out = rw.apply(stack, weights, [do.FoldNorms()], probes=PATCHES)
    assert out.certificate.passed
    assert out.certificate.probes == (4, 9)
    for wrong in (PATCHES[..., :5], PATCHES * np.nan, PATCHES[0]):
        with pytest.raises(ValueError, match="probes must be"):
            rw.apply(stack, weights, [do.FoldNorms()], probes=wrong)


# Comparisons.


def test_models_with_other_inputs_or_outputs_are_not_compared():
    vit, dinov2, t5 = made("vit"), made("dinov2"), made("t5")
    states = replace(t5[0], head=Head(None))
    wide = dict(vit[1])
    patch = vit[0].tables[0].weight
    wide[patch] = np.ones((16, 3, 3, 4))
    for first, second, words in (
        (vit, t5, "inputs of kind 'patch', after of kind 'token'"),
        (t5, (states, t5[1]), "before: outputs are logits; after: outputs are hidden states"),
        (vit, (vit[0], wide), "patches of 27 entries, after of 36"),
        (vit, (replace(vit[0], head=replace(vit[0].head, reads="each")), vit[1]), "reads 'first'; after: .* 'each'"),
    ):
        with pytest.raises(ValueError, match=words):
            rw.certify(first, second)
    assert rw.certify(vit, dinov2).verdict == "different"


def test_what_all_patches_share_is_told_from_their_map():
    stack, weights = made("vit")
    patch, bias = (table.weight for table in stack.tables[:2])
    shift = np.random.default_rng(0).normal(size=16)
    other = weights | {patch: weights[patch] + shift[:, None, None, None], bias: weights[bias] - shift}
    found = rw.certify((stack, weights), (stack, other))  # patches with one entry that is 1 are mapped alike
    assert (found.verdict, found.first.path, found.first.rows) == ("different", "tables", ("input 0",))


def test_logits_beyond_the_entries_of_a_patch_are_compared():
    stack, weights = made("vit")
    bias = stack.head.linear
    more = weights | {bias.weight: np.vstack([weights[bias.weight]] * 2), bias.bias: np.tile(weights[bias.bias], 2)}
    other = more | {bias.weight: np.array(more[bias.weight])}
    other[bias.weight][-1] *= 1.1  # row 45; a patch has 27 entries
    assert rw.certify((stack, more), (stack, dict(more))).verdict == "same"
    assert rw.certify((stack, more), (stack, other)).first.path == "head"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s, "a stack that reads patches"),
        (lambda s: replace(s, tables=(replace(s.tables[0], index="token"), *s.tables[1:])), "reads one position alone"),
    ],
)
def test_null_spaces_of_images_are_refused_by_name(change, words):
    stack, weights = made("vit")
    with pytest.raises(ValueError, match=words):
        lg.predicted_nullspace(change(stack), weights)


def test_null_spaces_of_hidden_states_and_factors_of_channels_are_refused_by_name():
    stack, weights = made("t5")
    states = replace(stack, head=Head(None))
    kept = {name: weights[name] for name in states.arrays}
    name = stack.final.gain
    first, *rest = stack.blocks
    scaled = replace(stack, blocks=(replace(first, attention_scale=name), *rest))
    read = replace(first, attention=replace(first.attention, buckets=Buckets(8, 7)))
    for other, arrays, words in (
        (states, kept, "whose outputs are hidden states"),
        (replace(stack, blocks=(read, *rest)), weights, "a relative table that blocks read by other rows"),
        (scaled, weights, "blocks.0: factors of channels of a branch"),
    ):
        with pytest.raises(ValueError, match=words):
            lg.predicted_nullspace(other, arrays)
        with pytest.raises(ValueError, match=words):
            rw.canonical(other, arrays)


@pytest.mark.parametrize(("count", "largest"), [(32, 128), (8, 20), (6, 3), (32, 9)])
def test_the_reach_of_buckets_is_the_fewest_positions_that_read_what_any_number_reads(count, largest):
    buckets = Buckets(count, largest)
    assert np.array_equal(buckets.unread(buckets.reach), buckets.unread())
    assert len(buckets.unread(buckets.reach - 1)) > len(buckets.unread())


@pytest.mark.peers
def test_rows_of_far_relative_positions_are_compared(tmp_path):
    """32 positions do not read all rows; probes have as many as it takes."""
    far = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
    save_random("t5", CONFIGS["t5"] | far, tmp_path / "old")
    stack, arrays = rw.load(tmp_path / "old")
    held = {name: np.asarray(arrays[name], np.float64) for name in stack.arrays}
    name = stack.blocks[0].attention.relative
    same = rw.certify((stack, held), (stack, held), probes=(1, 4))
    assert (same.verdict, same.probes) == ("same", (1, 92))
    for row in (15, 31):
        wrong = held[name].copy()
        wrong[row, 0] += 0.5
        found = rw.certify((stack, held), (stack, held | {name: wrong}))
        assert found.verdict == "different"
        assert found.first.path == "blocks.0.attention"
        assert name in found.causes[0].arrays


@pytest.mark.peers
def test_another_function_of_the_pooler_is_refused_where_there_is_one(tmp_path):
    for name in ("ViTModel", "ViTForImageClassification"):
        folder = tmp_path / name
        save_random("vit", CONFIGS["vit"], folder, name=name)
        changed(folder, pooler_act="relu")
        if name == "ViTModel":
            with pytest.raises(ValueError, match="option 'pooler_act' = 'relu' is not covered"):
                rw.load(folder)
        else:
            rw.load(folder)


def test_what_no_output_depends_on_may_be_rounded(tmp_path):
    name = "dinov2.embeddings.mask_token"
    zoo.checkpoint(tmp_path / "old", "dinov2")
    arrays = arrays_of(tmp_path / "old") | {name: np.random.default_rng(0).normal(size=(1, 16))}
    write_file(tmp_path / "old/model.safetensors", arrays)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/config.json").write_text((tmp_path / "old/config.json").read_text())
    narrow = {key: array.astype(np.float32) for key, array in arrays.items()}
    for gap, verdict in ((0, "rounding"), (1e-3, "different")):
        moved = narrow[name] + np.float32(gap)
        write_file(tmp_path / "new/model.safetensors", narrow | {name: moved})
        found = rw.certify(tmp_path / "old", tmp_path / "new")
        assert found.verdict == verdict
        assert bool(found.reasons) == bool(gap)


def test_a_rotation_is_known_as_well_as_the_tables_are_stored(tmp_path):
    """Tables in bfloat16, the rest in turns in three dtypes: a finer array is not held to its own roundings."""
    kinds = (np.dtype("float16"), np.dtype("float32"), np.dtype("float64"))
    folder = zoo.checkpoint(tmp_path / "old", "dinov2")
    tables = {table.weight for table in rw.load(folder)[0].tables[:2]}
    arrays = {
        name: array.astype(ml_dtypes.bfloat16 if name in tables else kinds[i % 3])
        for i, (name, array) in enumerate(arrays_of(folder).items())
    }
    write_file(folder / "model.safetensors", arrays)
    rewritten = rw.apply(*rw.load(folder), KEEPS["Dinov2Model"] + [do.Rotate(seed=1)])
    assert rewritten.certificate.passed
    rw.save(rewritten, tmp_path / "new")
    assert rw.certify(folder, tmp_path / "new").verdict == "rounding"
    stack, weights = rw.load(tmp_path / "new")
    held = {name: np.asarray(weights[name]).astype(weights[name].dtype) for name in stack.arrays}
    name = stack.blocks[1].attention.value.weight
    wrong = np.asarray(held[name], np.float64) * (1 + 0.3 * np.random.default_rng(0).normal(size=held[name].shape))
    found = rw.certify(folder, (stack, held | {name: wrong.astype(held[name].dtype)}))
    assert (found.verdict, found.first.path) == ("different", "blocks.1.attention")


@pytest.mark.parametrize("size", [1e-6, 0.1])
@pytest.mark.parametrize("seed", range(4))
def test_a_change_of_all_rows_is_no_rotation(size, seed):
    stack, held = made("vit")
    name = stack.tables[1].weight
    bias = held[name] + size * np.random.default_rng(seed).normal(size=held[name].shape)
    found = rw.certify((stack, held), (stack, held | {name: bias}))
    assert found.verdict == "different"
    assert [part.path for part in found.different] == ["tables"]
    assert found.causes[0].arrays == (name,)


@pytest.mark.parametrize(
    ("kind", "name", "change", "words"),
    [
        ("vit", "vit.encoder.layer.0.attention.attention.query.weight", None, "query.weight' .1 in all., which the"),
        ("dinov2", "dinov2.encoder.layer.0.attention.attention.query.weight", None, "query.weight' .1 in all., which"),
        ("vit", "vit.embeddings.cls_token", lambda a: a[:0], r"cls_token' has shape \(0, 1, 16\)"),
        ("vit", "vit.embeddings.cls_token", lambda a: np.concatenate([a, a]), r"cls_token' has shape \(2, 1, 16\)"),
        ("vit", "vit.embeddings.cls_token", lambda a: a[None], "cls_token' must have 3 axes"),
        ("vit", "vit.embeddings.position_embeddings", lambda a: np.concatenate([a, a]), "position_embeddings' has sha"),
        ("vit", "vit.embeddings.patch_embeddings.projection.weight", lambda a: a[..., None], "must have 4 axes"),
        (
            "vit",
            "vit.embeddings.patch_embeddings.projection.weight",
            lambda a: a.T,
            r"projection.weight' must have rows",
        ),
        ("vit", "vit.encoder.layer.1.output.dense.weight", lambda a: a[:, 1:], "must have 20 hidden units; got 19"),
    ],
)
def test_arrays_that_are_missing_or_of_another_shape_are_named(kind, name, change, words, tmp_path):
    folder = zoo.checkpoint(tmp_path / "old", kind)
    arrays = arrays_of(folder)
    assert name in arrays
    changed_array = arrays.pop(name)
    write_file(folder / "model.safetensors", arrays if change is None else arrays | {name: change(changed_array)})
    with pytest.raises(ValueError, match=words):
        rw.load(folder)


def test_images_without_a_patch_are_refused(tmp_path):
    folder = zoo.checkpoint(tmp_path / "old", "vit")
    changed(folder, image_size=2)
    with pytest.raises(ValueError, match=r"'image_size' = \[2, 2\] is smaller than 'patch_size' = \[3, 3\]"):
        rw.load(folder)
