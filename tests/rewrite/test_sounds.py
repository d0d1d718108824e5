"""Stacks that begin with a front end, which reads frames: Whisper's encoder."""

import json
import re
import shutil
from dataclasses import replace

import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from analysis.models.families import CONFIGS, model_class, save_random
from lngeom.cli.commands import app
from lngeom.information.candidates import candidates_of_stack
from lngeom.rewrite import steps as do
from lngeom.transformers import FrontEnd, Head, Linear, Table, rewrite as rw
from lngeom.transformers.rewrite.certificate import outputs
from typer.testing import CliRunner

from tests.rewrite import zoo
from tests.rewrite.test_checkpoints import lngeom

FRAMES = np.random.default_rng(5).normal(size=(4, 9, 24))
KEEPS = [do.FoldNorms(), do.CentreWriters(), do.MergeValueBias(), do.DropKeyBias(), do.RotateValues(seed=1)]


@pytest.fixture
def made():
    stack = zoo.stack_of("whisper")
    return stack, zoo.random_weights("whisper", stack)


def relative(a, b):
    return float(np.abs(a - b).max() / np.abs(a).max())


def changed(folder, **options):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **options}))


# The package's own models.


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"scale_embedding": True, "activation_function": "relu"}], ids=["", "relu"])
def test_hidden_states_of_sounds_are_the_package_s_before_and_after(options, tmp_path):
    hf = pytest.importorskip("tests.rewrite.hf")
    save_random("whisper", CONFIGS["whisper"] | options, tmp_path / "old")
    stack, weights = rw.load(tmp_path / "old")
    theirs = hf.logits("whisper", tmp_path / "old", FRAMES)
    assert relative(theirs, outputs(stack, weights, FRAMES)) < 1e-12

    steps = [*KEEPS, do.Balance()] if options else KEEPS
    out = rw.apply(stack, weights, steps)
    assert out.certificate.passed, out.certificate
    rw.save(out, tmp_path / "new")
    assert relative(theirs, hf.logits("whisper", tmp_path / "new", FRAMES)) < 1e-12
    assert rw.certify(tmp_path / "old", tmp_path / "new").verdict == "same"


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["WhisperModel", "WhisperForConditionalGeneration", "WhisperForAudioClassification"])
def test_a_whole_whisper_is_refused_and_its_encoder_saved_alone_is_read(name, tmp_path):
    import torch

    hf = pytest.importorskip("tests.rewrite.hf")
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    save_random("whisper", CONFIGS["whisper"] | ids, tmp_path / "whole", name=name)
    with pytest.raises(ValueError, match=rf"architectures \['{name}'\], which is not covered .*get_encoder\(\)"):
        rw.load(tmp_path / "whole")
    with hf.float64():
        model = model_class("whisper", name).from_pretrained(tmp_path / "whole", dtype=torch.float64)
    with pytest.raises(ValueError, match=rf"before is a {name}, which is not covered .*get_encoder\(\)"):
        rw.certify(model, model)
    model.get_encoder().save_pretrained(tmp_path / "encoder")
    theirs = hf.logits("whisper", tmp_path / "encoder", FRAMES)
    assert relative(theirs, outputs(*rw.load(tmp_path / "encoder"), FRAMES)) < 1e-12
    assert rw.certify(model.get_encoder(), tmp_path / "encoder").verdict == "same"
    changed(tmp_path / "whole", architectures=None)
    with pytest.raises(ValueError, match=r"a Whisper with more than its encoder .*, reads the encoder\. Save the"):
        rw.load(tmp_path / "whole")


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_the_commands_read_sounds(tmp_path):
    save_random("whisper", CONFIGS["whisper"], tmp_path / "old", "float32")
    done = lngeom(tmp_path / "old", "--do", "fold,centre,merge-value-bias,rotate-values", "--out", tmp_path / "new")
    assert done.exit_code == 0, done.output
    refused = lngeom(tmp_path / "old", "--do", "fold,rotate", "--out", tmp_path / "turned")
    assert refused.exit_code == 2
    assert "rotate refused at front" in refused.output
    assert not (tmp_path / "turned").exists()

    def certify(other):
        return CliRunner().invoke(app, ["certify", str(tmp_path / "old"), str(other)])

    same = certify(tmp_path / "new")
    assert (same.exit_code, same.output.split(":")[0]) == (0, "rounding"), same.output
    shutil.copytree(tmp_path / "old", tmp_path / "wrong")
    arrays = {name: np.asarray(array) for name, array in rw.load(tmp_path / "old")[1].stored.items()}
    zoo.write_file(tmp_path / "wrong" / "model.safetensors", arrays | {"conv2.bias": 1.1 * arrays["conv2.bias"]})
    different = certify(tmp_path / "wrong")
    assert different.exit_code == 1
    assert "conv2.bias" in different.output


@pytest.mark.peers
def test_a_description_is_held_against_the_package_s_model(made, tmp_path):
    import torch

    hf = pytest.importorskip("tests.rewrite.hf")
    save_random("whisper", CONFIGS["whisper"], tmp_path)
    stack, weights = rw.load(tmp_path)
    with hf.float64():
        model = model_class("whisper").from_pretrained(tmp_path, dtype=torch.float64).eval()

    def run(inputs):
        with torch.no_grad():
            return model(torch.tensor(hf.frames(inputs, model.config))).last_hidden_state.numpy()

    assert rw.check_description(stack, weights, run, probes=(3, 9)).relative < 1e-6
    first, last = stack.front.layers
    for layers in ((replace(first, activation="gelu_tanh"), last), (first, replace(last, activation="silu"))):
        wrong = replace(stack, front=FrontEnd(layers))
        with pytest.raises(ValueError, match="the description is not that of the model"):
            rw.check_description(wrong, weights, run, probes=(3, 9), tolerance=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_mel_bins": 13}, r"config.json says 13 \(channels, axis 1\)"),
        ({"max_source_positions": 8}, r"config.json says 8 \(max_source_positions, axis 0\)"),
        ({"d_model": 20}, r"must have \[out, in\] = \[20, 16\]; got \[16, 16\]"),
        ({"encoder_ffn_dim": 8}, r"config.json says 8 \(the width of hidden layers, axis 0\)"),
        ({"encoder_layers": 3}, r"names 'layers.2"),
        ({"encoder_attention_heads": 5}, "encoder_attention_heads = 5 must divide d_model = 16"),
        ({"architectures": ["WhisperModel"]}, "Save the encoder alone"),
    ],
)
def test_sizes_of_sounds_are_held_against_the_config(options, words, tmp_path):
    rw.load(zoo.checkpoint(tmp_path / "old", "whisper"))
    changed(tmp_path / "old", **options)
    with pytest.raises(ValueError, match=words):
        rw.load(tmp_path / "old")


def test_a_stored_array_of_another_shape_is_named(tmp_path):
    old = zoo.checkpoint(tmp_path / "old", "whisper")
    arrays = {name: np.asarray(array) for name, array in rw.load(old)[1].stored.items()}
    for name, shape, words in (
        ("conv1.weight", (16, 12, 5), r"config.json says 3 \(a window, axis 2\)"),
        ("conv2.bias", (1,), r"'conv2.bias' must have shape \(16,\); got \(1,\)"),
    ):
        zoo.write_file(old / "model.safetensors", arrays | {name: np.ones(shape)})
        with pytest.raises(ValueError, match=words):
            rw.load(old)


# Rewrites.


@pytest.mark.parametrize(
    "steps",
    [
        *([step] for step in KEEPS),
        KEEPS,
        [do.TurnUnits(), do.TurnQueriesAndKeys()],
        [do.ScaleChannels({"blocks.0.attention_norm": np.linspace(0.5, 2, 16)})],
    ],
    ids=lambda steps: ",".join(step.word for step in steps),
)
def test_rewrites_carry_a_front_end_along(steps, made):
    stack, weights = made
    out = rw.apply(stack, weights, steps)
    assert out.certificate.passed, out.certificate
    assert out.stack.front == stack.front
    for layer in stack.front.layers:
        for name in (layer.linear.weight, layer.linear.bias):
            np.testing.assert_array_equal(out.weights[name], weights[name])
    assert rw.certify(made, (out.stack, dict(out.weights))).verdict == "same"


FIXED = "what it writes to the stream comes from gelu, and its arrays are carried along unchanged"


@pytest.mark.parametrize(
    ("step", "words", "moves"),
    [
        (do.Rotate(seed=0), f"rotate refused at front and at 2 other places: {FIXED}", True),
        (do.ScaleStream(2.0), f"scale refused at front: {FIXED}", True),
        (do.CentreWriters(("front",)), f"centre refused at front: {FIXED}", False),
        (
            do.ToRMSNorm(),
            "rms refused at front .* its mean, which is not zero. A front end that .* cannot be cent",
            True,
        ),
        (do.CentreHead(), "the outputs are hidden states", False),
    ],
    ids=lambda given: getattr(given, "word", None),
)
def test_what_a_front_end_does_not_allow_is_refused(step, words, moves, made):
    with pytest.raises(rw.Refused, match=words) as refused:
        rw.apply(*made, [do.FoldNorms(), do.CentreWriters(), step])
    assert (refused.value.difference > 1e-3) == moves


def test_the_stream_of_a_model_with_logits_is_fixed_by_its_front_end_too(made):
    stack, weights = made
    named = replace(stack, head=Head(Linear("U")))
    weights = weights | {"U": np.random.default_rng(0).normal(size=(23, 16))}
    with pytest.raises(rw.Refused, match=f"rotate refused at front: {FIXED}") as refused:
        rw.apply(named, weights, [do.FoldNorms(), do.Rotate(seed=0)])
    assert refused.value.difference > 1e-3
    assert rw.apply(named, weights, [do.FoldNorms(), do.CentreWriters(), do.CentreHead()]).certificate.passed


def test_the_mean_of_types_goes_to_the_positions(made):
    stack, weights = made
    typed = replace(stack, tables=(*stack.tables, Table("types", "type")))
    weights = weights | {"types": np.random.default_rng(0).normal(size=(2, 16))}
    out = rw.apply(typed, weights, [do.ShiftTables()])
    assert out.certificate.passed
    assert np.abs(out.weights["types"].mean(0)).max() < 1e-15
    bare = replace(stack, tables=())
    kept = {name: weights[name] for name in bare.arrays}
    assert not rw.apply(bare, kept, [do.ShiftTables()]).draft.labels
    assert rw.apply(bare, kept, KEEPS).certificate.passed
    assert rw.certify((bare, kept), (bare, kept)).verdict == "same"


def test_probes_may_be_frames(made):
    out = rw.apply(*made, [do.FoldNorms()], probes=FRAMES)
    assert out.certificate.passed
    assert out.certificate.probes == (4, 9)
    for wrong in (FRAMES[..., :12], FRAMES * np.nan, FRAMES.reshape(4, 18, 12)):
        with pytest.raises(ValueError, match=r"probes must be vectors \[N, T, 24\]"):
            rw.apply(*made, [do.FoldNorms()], probes=wrong)


@pytest.mark.parametrize("which", [0, 1])
def test_a_front_end_that_is_changed_fails_the_certificate(which, made, monkeypatch):
    stack, weights = made
    name = stack.front.layers[which].linear.weight
    run = do.FoldNorms.run

    def touching(self, stack, draft):
        draft.set(name, 1.01 * draft[name], "touched")
        return run(self, stack, draft)

    monkeypatch.setattr(do.FoldNorms, "run", touching)
    assert not rw.apply(stack, weights, [do.FoldNorms()]).certificate.passed


# Comparisons.


def arrays_of(stack):
    return [name for name in stack.arrays if not name.startswith("layers.0")]


PART = {
    **dict.fromkeys(("conv1", "conv2", "embed_positions"), "tables"),
    **dict.fromkeys(("self_attn", "self_attn_layer_norm"), "blocks.1.attention"),
    **dict.fromkeys(("fc1", "fc2", "final_layer_norm"), "blocks.1.feed_forward"),
    "layer_norm": "head",
}


@pytest.mark.parametrize("name", arrays_of(zoo.stack_of("whisper")))
def test_one_entry_that_differs_is_placed_and_named(name, made):
    stack, weights = made
    wrong = np.array(weights[name])
    wrong.reshape(-1)[np.random.default_rng(len(name)).integers(wrong.size)] += 0.05
    found = rw.certify(made, (stack, weights | {name: wrong}))
    part = name.removeprefix("layers.1.").split(".")[0]
    assert (found.verdict, found.first.path) == ("different", PART[part])
    (cause,) = found.causes
    assert cause.explains
    assert cause.arrays == (name,)


@pytest.mark.parametrize("tap", [0, 1, 2])
@pytest.mark.parametrize("which", [0, 1])
def test_each_entry_of_a_window_is_seen(tap, which, made):
    stack, weights = made
    name = stack.front.layers[which].linear.weight
    wrong = np.array(weights[name])
    wrong[3, 2, tap] += 1e-6
    found = rw.certify(made, (stack, weights | {name: wrong}))
    assert (found.verdict, found.first.path, found.causes[0].arrays) == ("different", "tables", (name,))


def test_mistakes_in_a_front_end_are_named(made):
    stack, weights = made
    first, last = stack.front.layers
    flipped = weights | {first.linear.weight: weights[first.linear.weight][..., ::-1].copy()}
    both = flipped | {last.linear.bias: 0 * weights[last.linear.bias]}
    other = replace(stack, front=FrontEnd((first, replace(last, activation="gelu_tanh"))))
    scaled = replace(stack, tables=(replace(stack.tables[0], scale=4.0),))
    position = stack.tables[0].weight
    for model, words, arrays, explains in (
        ((stack, flipped), "front.layers.0: conv1.weight: it is .* away", (first.linear.weight,), True),
        ((stack, both), "front: its outputs differ", (first.linear.weight, last.linear.bias), False),
        ((scaled, weights), "tables.0: its rows are multiplied by 4", (), True),
        ((stack, weights | {position: weights[position][::-1]}), "tables.0: .*: 8 rows differ", (position,), True),
        ((other, weights), "front.layers.1.activation is 'gelu_tanh', and was 'gelu'", (), True),
    ):
        found = rw.certify(made, model)
        assert (found.verdict, found.first.path) == ("different", "tables")
        cause = found.causes[0]
        assert re.search(words, cause.sentence), cause
        assert (cause.arrays, cause.explains) == (arrays, explains)


def test_a_front_end_in_another_dtype_is_the_same_up_to_rounding(made):
    stack, weights = made
    rounded = {name: np.asarray(value).astype(jnp.bfloat16) for name, value in weights.items()}
    assert rw.certify(made, (stack, rounded)).verdict == "rounding"
    name = stack.front.layers[0].linear.weight
    wrong = np.array(weights[name])
    wrong[3] *= 1.2
    found = rw.certify(made, (stack, rounded | {name: wrong.astype(jnp.bfloat16)}))
    assert (found.verdict, found.first.path, found.causes[0].arrays) == ("different", "tables", (name,))


def test_units_of_the_first_layer_in_another_order_are_the_same_function(made):
    stack, weights = made
    first, last = (layer.linear for layer in stack.front.layers)
    order = np.random.default_rng(0).permutation(16)
    moved = {name: weights[name][order] for name in (first.weight, first.bias)}
    moved[last.weight] = weights[last.weight][:, order]
    assert rw.certify(made, (stack, weights | moved)).verdict == "same"


def test_models_with_other_front_ends_are_not_compared(made):
    stack, weights = made
    vit = zoo.stack_of("vit")
    first, last = stack.front.layers
    name = first.linear.weight
    wide = weights | {name: np.ones((16, 13, 3))}
    more = replace(stack, front=FrontEnd((first, replace(first, linear=Linear("W", input_axes=2)), last)))
    for other, words in (
        ((vit, zoo.random_weights("vit", vit)), "inputs of kind 'frame', after of kind 'patch'"),
        ((stack, wide), "inputs of 24 entries, after of 26"),
    ):
        with pytest.raises(ValueError, match=words):
            rw.certify(made, other)
    found = rw.certify(made, (more, weights | {"W": np.random.default_rng(0).normal(size=(16, 16, 3))}))
    assert found.verdict == "different"
    assert "the front ends have 2 and 3 layers" in found.reasons


def test_a_measured_null_space_is_not_described_by_symmetries_that_have_no_names():
    for kind, words in (("whisper", "frames, by a front end"), ("vit", "a stack that reads patches")):
        stack = zoo.stack_of(kind)
        with pytest.raises(ValueError, match=rf"{words} have no names: describe the null space without the stack"):
            next(candidates_of_stack(stack, zoo.random_weights(kind, stack)))


def test_null_spaces_of_sounds_are_refused_by_name(made):
    stack, weights = made
    for asked in (lg.predicted_nullspace, rw.canonical):
        with pytest.raises(ValueError, match="not predicted for a stack that reads frames, by a front end"):
            asked(stack, weights)


# What windows reach, and what inputs open.


def widened(made, size):
    """With windows of another size in the first layer, and positions enough for them."""
    stack, held = made
    name, table = stack.front.layers[0].linear.weight, stack.tables[0].weight
    draw = np.random.default_rng(0)
    shapes = {name: (*held[name].shape[:2], size), table: (size + 8, held[table].shape[1])}
    return stack, held | {key: draw.normal(size=shape) / 4 for key, shape in shapes.items()}


@pytest.mark.parametrize("size", [9, 65, 129])
@pytest.mark.parametrize("last", [False, True])
def test_wide_windows_are_read_to_their_ends(size, last, made):
    stack, held = widened(made, size)
    name = stack.front.layers[0].linear.weight
    wrong = held[name].copy()
    wrong[2, 1, -1 if last else 0] += 3
    assert rw.certify((stack, held), (stack, held)).verdict == "same"
    found = rw.certify((stack, held), (stack, held | {name: wrong}))
    assert (found.verdict, found.causes[0].arrays) == ("different", (name,))
    with pytest.raises(ValueError, match="the description is not that of the model"):
        rw.check_description(stack, held, lambda x: outputs(stack, held | {name: wrong}, x), tolerance=1e-6)


def test_units_that_only_loud_sounds_open_are_not_the_same(made):
    stack, held = made
    first, second = (layer.linear for layer in stack.front.layers)
    shut, wrong = held[first.bias].copy(), held[second.weight].copy()
    shut[3], wrong[:, 3] = -30, -2 * wrong[:, 3]
    front = FrontEnd(tuple(replace(layer, activation="relu") for layer in stack.front.layers))
    stack, held = replace(stack, front=front), held | {first.bias: shut}
    found = rw.certify((stack, held), (stack, held | {second.weight: wrong}))
    assert (found.verdict, found.causes[0].arrays) == ("undecided", (second.weight,))


def test_other_strides_and_a_lost_bias_are_named(made):
    stack, held = made
    one, two = stack.front.layers
    turned = replace(stack, front=FrontEnd((replace(one, stride=two.stride), replace(two, stride=one.stride))))
    assert rw.certify((stack, held), (turned, held)).causes[0].sentence == "front: strides are (2, 1), and were (1, 2)"
    bare = replace(stack, front=FrontEnd((one, replace(two, linear=replace(two.linear, bias=None)))))
    cause = rw.certify((stack, held), (bare, held)).causes[0]
    assert cause.sentence == "front.layers.1 has no bias, and had one"
    assert cause.arrays == (two.linear.bias,)


def test_inputs_that_no_row_of_a_table_is_for_are_refused(made):
    stack, held = made
    count = len(held[stack.tables[0].weight])
    long = np.random.default_rng(0).normal(size=(2, count + 1, 24))
    for call in (
        lambda: outputs(stack, held, long),
        lambda: lg.transformers.logits(stack, held, jnp.asarray(long)),
        lambda: rw.apply(stack, held, [do.FoldNorms()], probes=long),
    ):
        with pytest.raises(ValueError, match=rf"the inputs ask for rows 0 to {count} of 'embed_positions.weight'"):
            call()
    for probes in (long[0], long.tolist()[0], long + 1j):
        with pytest.raises(ValueError, match=r"probes must be vectors \[N, T, 24\]"):
            rw.apply(stack, held, [do.FoldNorms()], probes=probes)


def test_token_ids_that_a_table_has_no_row_for_are_refused():
    stack = zoo.stack_of("gpt2")
    held = zoo.random_weights("gpt2", stack)
    for ids in ([[0, 23]], [[-1, 0]]):
        with pytest.raises(ValueError, match="the inputs ask for rows"):
            lg.transformers.logits(stack, held, jnp.array(ids))


def test_a_head_beside_a_front_end_is_no_table(made):
    stack, _ = made
    with pytest.raises(ValueError, match=r"the head cannot be the table .embed_positions.weight."):
        replace(stack, head=Head(Linear("embed_positions.weight")))


def test_a_type_table_whose_first_row_is_left_out_is_compared(made):
    stack, held = made
    stack = replace(stack, tables=(*stack.tables, Table("types", "type", offset=1)))
    held = held | {"types": np.random.default_rng(0).normal(size=(3, 16))}
    assert rw.certify((stack, held), (stack, held)).verdict == "same"
    wrong = held["types"].copy()
    wrong[2, 5] += 1
    found = rw.certify((stack, held), (stack, held | {"types": wrong}))
    assert found.first.rows == ("type 1",)
