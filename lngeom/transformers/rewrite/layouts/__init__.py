"""Descriptions of published architectures: from a config, as files have it, to a stack with the names on disk.

One function a family. Roles are stated here for each family; the same name has other roles elsewhere. Every option of
a config is read, known to be without effect on the function, or refused by name.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lngeom.transformers.description import Linear, Mixture, Site, Stack, exchange
from lngeom.transformers.rewrite.configs import Options
from lngeom.transformers.rewrite.layouts import encoders, gpt, latent, llama, mixtures, t5, vision, whisper
from lngeom.transformers.rewrite.layouts.encoders import HEAD_BIASES as HEAD_BIASES, POOLERS
from lngeom.transformers.rewrite.layouts.gpt import NEOX_HEADS as NEOX_HEADS
from lngeom.transformers.rewrite.layouts.shared import sizes
from lngeom.transformers.rewrite.online import with_online

RMS_MARK = "lngeom_rms_"
"""What `model_type` begins with where RMSNorms stand in place of the family's LayerNorms. No other library knows it."""

ONLINE_MARK = "lngeom_online_"
"""What `model_type` begins with where matrices act at run time, which the option `lngeom_online` names."""

FLASH_NORM = ("flash_norm", "flashnorm_folded")
"""Options that say that gains of RMSNorms are folded, and may be absent from the files. Then they are 1."""

_AFTER_LLAMA = (
    *(llama.llama, llama.mistral, llama.qwen2, llama.qwen3, llama.gemma, llama.gemma2, llama.gemma3_text, llama.olmo),
    *(llama.olmo2, llama.olmo3, llama.smollm3, llama.seed_oss, llama.helium, llama.ernie4_5, llama.phi3, llama.glm),
    *(llama.glm4, llama.stablelm, llama.arcee, llama.nemotron),
    *(llama.vaultgemma, llama.ministral, llama.exaone4, llama.hunyuan_v1_dense, llama.granite, llama.cohere),
    *(llama.cohere2, llama.starcoder2, llama.phi, llama.persimmon),
)
_LATENT = (latent.deepseek_v2, latent.deepseek_v3)
_MIXTURES = (mixtures.mixtral, mixtures.olmoe, mixtures.qwen3_moe, mixtures.qwen2_moe, mixtures.gpt_oss)
_AFTER_GPT = (
    gpt.gpt2,
    gpt.gpt_neox,
    gpt.gptj,
    gpt.opt,
    gpt.bloom,
    gpt.codegen,
    gpt.gpt_bigcode,
    gpt.gpt_neo,
    gpt.falcon,
    gpt.mpt,
)

_ENCODERS = (encoders.bert, encoders.ernie, encoders.electra, encoders.distilbert, encoders.modernbert)

_IMAGES = (vision.vit, vision.dinov2)
_RELATIVE = (t5.t5,)
_SOUNDS = (whisper.whisper,)

FAMILIES: dict[str, Callable[[Options], Stack]] = {
    **{f.__name__: f for f in (*_AFTER_LLAMA, *_MIXTURES, *_LATENT, *_AFTER_GPT, *_ENCODERS)},
    **{f.__name__: f for f in (*_IMAGES, *_RELATIVE, *_SOUNDS)},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), encoders.roberta),
}
"""Families by `model_type`."""

BUFFERS = (
    *("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias"),
    *("*.attention.rotary_emb.*", "*embeddings.position_ids"),
)
"""Arrays that the package computes by itself, and does not load."""

SIDE = (
    *("score", "classifier", "qa_outputs"),  # modeling_layers.py, models/*/modeling_*.py
    *("multiple_choice_head.summary", "v_head.summary"),  # GPT-2's second head; TRL's value head
)
"""Linear maps beside the head: each reads what the head reads."""

LABELS = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "t5": ("T5EncoderModel", "T5ForTokenClassification"),
    "whisper": ("WhisperEncoder",),
}
"""Families whose outputs are hidden states or logits of labels, and the classes of these."""

REMEDIES = {"whisper": f". {whisper.ENCODER_ALONE}"}
"""What to do with other classes of such a family."""

MASK_TOKEN = "*embeddings.mask_token"
"""What stands for patches that are masked when a vision transformer is trained."""

T5_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
"""Names of T5's table of tokens, which are one array."""

BERT_BEHIND = "cls.seq_relationship.*"
"""What only BERT's pooler is read by."""

BEFORE_POSITIONS = ("opt",)
"""Families whose table of positions has rows before the first position that the config does not count."""


def sides(kind: str, names: Container[str]) -> tuple[Linear, ...]:
    """Linear maps beside the head, of those that are stored.

    Raises:
        ValueError: naming a bias that the package would start at zero.
    """
    candidates = SIDE
    if kind in POOLERS or kind in LABELS:
        candidates = POOLERS.get(kind, ())
    found = [name for name in candidates if f"{name}.weight" in names]
    if lacking := [name for name in found if name != "score" and f"{name}.bias" not in names]:
        raise ValueError(f"the folder lacks '{lacking[0]}.bias', and holds '{lacking[0]}.weight'")
    return tuple(Linear(f"{name}.weight", f"{name}.bias" if f"{name}.bias" in names else None) for name in found)


def behind(kind: str) -> tuple[str, ...]:
    """Patterns of arrays that the function of the described maps does not depend on."""
    more = {"bert": BERT_BEHIND, "ernie": BERT_BEHIND, "vit": MASK_TOKEN, "dinov2": MASK_TOKEN}
    return (*BUFFERS, more[kind]) if kind in more else BUFFERS


def second_names(stack: Stack) -> dict[str, str]:
    """Second names of arrays, as the files of a family may hold them, with the first."""
    bias = None if stack.head.linear is None else stack.head.linear.bias
    found = {HEAD_BIASES[bias]: bias} if bias in HEAD_BIASES else {}
    if (table := stack.beginning[0]).endswith(T5_TABLES[0]):
        found[table.removesuffix(T5_TABLES[0]) + T5_TABLES[1]] = table
    return found | ({NEOX_HEADS[1]: NEOX_HEADS[0]} if stack.head.untied == NEOX_HEADS[0] else {})


def describe(config: Mapping[str, Any], names: Container[str], ignore: Iterable[str] = ()) -> Stack:
    """The description of a checkpoint.

    Args:
        config: its config.json.
        names: names of its arrays.
        ignore: options of the config that have no effect.

    Returns:
        The description.

    Raises:
        ValueError: naming an architecture or an option that is not covered.
    """
    return options_and_stack(config, names, ignore)[1]


def options_and_stack(
    config: Mapping[str, Any], names: Container[str], ignore: Iterable[str] = ()
) -> tuple[Options, Stack]:
    """As `describe`, with the options that were read."""
    marks, kind = family_of(config)
    family = FAMILIES.get(kind)
    if family is None:
        raise ValueError(
            f"model_type {config.get('model_type')!r} is not covered (covered: {', '.join(FAMILIES)}): describe it by "
            "hand (lg.Stack)"
        )
    options = Options(kind, config, names)
    options.check(ignore)
    stack = family(options)
    if RMS_MARK in marks:
        stack = with_rms(stack)
    if ONLINE_MARK in marks:
        stack = with_online(stack, config.get("lngeom_online"))
    elif config.get("lngeom_online"):
        raise ValueError(f"option 'lngeom_online' needs a model_type that begins with {ONLINE_MARK!r}")
    flags = [_flag(config, option) for option in FLASH_NORM]
    if any(flags):
        stack = without_absent_gains(stack, names)
    return options, stack


def family_of(config: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """The marks that `model_type` begins with, and the family that follows them; "" if it is no text."""
    kind, marks = config.get("model_type"), []
    while isinstance(kind, str) and (
        found := [mark for mark in (RMS_MARK, ONLINE_MARK) if kind.startswith(mark) and mark not in marks]
    ):
        marks += found
        kind = kind.removeprefix(found[0])
    return tuple(marks), kind if isinstance(kind, str) else ""


def _flag(config: Mapping[str, Any], option: str) -> bool:
    """An option that is true or false; absent and null: false.

    Raises:
        ValueError: if it is something else.
    """
    found = config.get(option)
    if found is not None and not isinstance(found, bool):
        raise ValueError(f"option {option!r} must be true or false; got {found!r}")
    return bool(found)


def folded(stack: Stack, option: str) -> list[Site]:
    """RMSNorms whose gains a loader ignores where an option of `FLASH_NORM` is true."""
    inside = [n for n in stack.norms if n.part.kind == "rms" and n.path.startswith("blocks.")]
    final = [n for n in stack.norms if n.part.kind == "rms" and n.path == "final"]
    return inside + (final if option == FLASH_NORM[1] else [])


def without_absent_gains(stack: Stack, names: Container[str]) -> Stack:
    """The stack without the gains of RMSNorms that the files lack."""
    absent = [n for n in stack.norms if n.part.kind == "rms" and n.part.gain is not None and n.part.gain not in names]
    return exchange(stack, {n.path: replace(n.part, gain=None) for n in absent})


def check_sizes(options: Options, stack: Stack, weights: Mapping[str, Any]) -> None:
    """Checks that arrays have the sizes of the config; the package loads no others.

    Raises:
        ValueError: naming an option and an array that differ.
    """
    d, head = sizes(options)[0], stack.head.linear
    positions, inner = (
        ("max_position_embeddings", "n_positions"),
        ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", "d_ff", "encoder_ffn_dim"),
    )
    rows = {"token": ("vocab_size",), "position": positions, "type": ("type_vocab_size",)}
    if stack.front is not None:
        wanted = list(_sound_sizes(options, stack))
    elif stack.inputs == "patch":
        wanted = list(_image_sizes(options, stack))
    else:
        wanted = [(stack.tables[0].weight, 1, d, "the width of the stream")]
    for table in stack.tables if stack.inputs == "token" else ():
        option, before = rows[table.index], table.offset if options.kind in BEFORE_POSITIONS else 0
        wanted.append((table.weight, 0, options.first(*option) + before, " or ".join(option)))
    spare = (name for name in (stack.head.untied, *second_names(stack)) if name in weights)
    count, what = (options.labels, "the number of labels") if options.kind in LABELS else (None, "vocab_size")
    maps = () if head is None else (head.weight, head.bias)
    for name in filter(None, (*maps, *spare)):
        wanted.append((name, 0, options.get("vocab_size") if count is None else count, what))
    if stack.head.mean is not None:
        wanted.append((stack.head.mean.weight, 1, 2 * d, "twice the width of the stream"))
    for block in stack.blocks:
        branch = block.feed_forward
        mixed = isinstance(branch, Mixture)
        if mixed and branch.shared is not None:
            size = options.first("shared_expert_intermediate_size")
            if size is None:
                size = options.get("moe_intermediate_size") * options.get("n_shared_experts")
            wanted.append((branch.shared.up.weight, 0, size, "the width of the shared expert"))
        size = options.first(*(("moe_intermediate_size",) if mixed else ()), *inner)
        if options.kind == "dinov2":
            size = vision.hidden_units(options)
        for network in branch.experts if mixed else (branch,):
            if network.up.rows is None and network.up.expert is None:
                axis = 0 if network.up.layout == "oi" else 1
                wanted.append((network.up.weight, axis, 4 * d if size is None else size, "the width of hidden layers"))
    wanted += [(name, axis, rows, "rows of the parts of a matrix") for name, axis, rows in _fused(stack)]
    wanted += [(name, axis, size, "the number of experts") for name, axis, size in _stacked(stack)]
    for side in stack.side if options.kind in POOLERS else ():
        wanted.append((side.weight, 0, options.first("pooler_output_size") or d, "the width of the pooler"))
    ranks = [
        (name, axes + (site.part.expert is not None))
        for site in stack.linears
        for name, axes in ((site.part.weight, 1 + site.part.input_axes), (site.part.bias, 1))
    ]
    if stack.inputs == "patch":
        ranks += zip((table.weight for table in stack.tables), (4, 1, 3, 3), strict=True)
    for name, axes in ranks:
        if name is not None and len(weights[name].shape) != axes:
            raise ValueError(f"{name!r} must have {axes} axes; it has shape {tuple(weights[name].shape)}")
    for name, axis, size, what in wanted:
        if len(weights[name].shape) <= axis or weights[name].shape[axis] != size:
            raise ValueError(
                f"{name!r} has shape {tuple(weights[name].shape)}, and config.json says {size} ({what}, axis {axis}): "
                "the config is that of another model, or lacks an option"
            )


def _image_sizes(options: Options, stack: Stack) -> Iterator[tuple[str, int, int, str]]:
    """Sizes of the tables of a stack that reads patches: name, axis, size, what it is."""
    d, (high, wide) = sizes(options)[0], options.pair("patch_size")
    patch, bias, leading, position = (table.weight for table in stack.tables)
    for axis, size, what in (
        (0, d, "the width of the stream"),
        (1, options.get("num_channels"), "num_channels"),
        (2, high, "patch_size"),
        (3, wide, "patch_size"),
    ):
        yield patch, axis, size, what
    yield bias, 0, d, "the width of the stream"
    yield from ((leading, axis, 1, "one class token") for axis in (0, 1))
    yield position, 0, 1, "one row a position"
    yield position, 1, vision.grid(options) + 1, "patches of an image, and the class token"


def _sound_sizes(options: Options, stack: Stack) -> Iterator[tuple[str, int, int, str]]:
    """Sizes of the arrays before the blocks of a stack that reads frames: name, axis, size, what it is."""
    assert stack.front is not None
    d, channels = sizes(options)[0], options.get("num_mel_bins")
    for layer, into in zip(stack.front.layers, (channels, d), strict=True):
        for axis, size, what in ((0, d, "the width of the stream"), (1, into, "channels"), (2, 3, "a window")):
            yield layer.linear.weight, axis, size, what
    position = stack.tables[0].weight
    yield position, 0, options.get("max_source_positions"), "max_source_positions"
    yield position, 1, d, "the width of the stream"


def _fused(stack: Stack) -> Iterator[tuple[str, int, int]]:
    """Matrices of which parts take rows: name, axis of the outputs, rows that the parts take together."""
    taken: dict[str, tuple[int, int]] = {}
    for site in stack.linears:
        part: Linear = site.part
        if part.rows is not None and part.expert in (None, 0):  # experts take the same rows
            axis = (0 if part.layout == "oi" else 1) + (part.expert is not None)
            before = taken.get(part.weight, (axis, 0))[1]
            taken[part.weight] = axis, before + part.rows.length * part.rows.count
    yield from ((name, axis, rows) for name, (axis, rows) in taken.items())


def _stacked(stack: Stack) -> Iterator[tuple[str, int, int]]:
    """Arrays with a leading axis of experts: name, that axis, how many experts there are."""
    parts = [site.part for site in stack.linears if site.part.expert is not None]
    count = Counter(part.weight for part in {(p.weight, p.expert): p for p in parts}.values())
    for part in parts:
        yield from ((name, 0, count[part.weight]) for name in filter(None, (part.weight, part.bias)))


def with_rms(stack: Stack) -> Stack:
    """The stack with RMSNorms in place of its LayerNorms."""
    layers = {n.path: replace(n.part, kind="rms") for n in stack.norms if n.part.kind == "layer"}
    return exchange(stack, layers)
