"""Vision transformers: inputs are patches of an image, a class token stands before them, and a head reads it."""

from collections.abc import Callable

from lngeom.transformers.description import Attention, Block, FeedForward, Head, Linear, Rows, Stack, Table
from lngeom.transformers.rewrite.configs import Options
from lngeom.transformers.rewrite.layouts.shared import biased, layer_norm, linear, sizes

PROJECTION = "embeddings.patch_embeddings.projection"
CLASSIFIER = "classifier"

IN_FILES = (
    *("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    "attention.output.dense",
)
"""Maps of a block's attention, as files name them."""

IN_MEMORY = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")
"""The same, as the package names them in memory."""


def vit(options: Options) -> Stack:
    """ViT: pre-norm blocks, and a head that reads the class token, or none."""
    at, act = _prefix(options, "vit."), options.config.get("pooler_act") or "tanh"
    if act != "tanh" and f"{at}pooler.dense.weight" in options.names:
        raise ValueError(f"option 'pooler_act' = {act!r} is not covered: poolers are compared before their tanh")
    head = Head(biased(CLASSIFIER), reads="first", untied="") if _has_head(options) else Head(None, untied="")
    old = _in_files(options, at)
    parts = IN_FILES if old else IN_MEMORY
    up, down = ("intermediate.dense", "output.dense") if old else ("mlp.fc1", "mlp.fc2")
    norm, activation = layer_norm(options, "layer_norm_eps"), options.activation()

    def block(prefix: str) -> Block:
        network = FeedForward(biased(prefix + up), biased(prefix + down), None, activation)
        norms = (norm(f"{prefix}layernorm_before"), norm(f"{prefix}layernorm_after"))
        return Block(_attention(options, prefix, parts), network, "pre", *norms)

    blocks = _blocks(options, f"{at}encoder.layer." if old else f"{at}layers.", block)
    return Stack(_tables(at), blocks, head, norm(f"{at}layernorm"))


def dinov2(options: Options) -> Stack:
    """DINOv2: as ViT, with factors of channels; a head reads the class token and the mean of the others."""
    height, width = options.pair("image_size")
    if height != width:
        raise ValueError(
            f"option 'image_size' = {[height, width]} is not covered: DINOv2 interpolates its positions where an image "
            "is not square"
        )
    at, d = _prefix(options, "dinov2."), sizes(options)[0]
    old = _in_files(options, at)
    parts = IN_FILES if old else IN_MEMORY
    norm, activation = layer_norm(options, "layer_norm_eps"), options.activation()

    def network(prefix: str) -> FeedForward:
        if not options.get("use_swiglu_ffn"):
            return FeedForward(biased(f"{prefix}mlp.fc1"), biased(f"{prefix}mlp.fc2"), None, activation)
        return _swiglu(options, f"{prefix}mlp.")

    def block(prefix: str) -> Block:
        scales = (f"{prefix}layer_scale1.lambda1", f"{prefix}layer_scale2.lambda1")
        norms = (norm(f"{prefix}norm1"), norm(f"{prefix}norm2"))
        attention = _attention(options, prefix, parts)
        return Block(attention, network(prefix), "pre", *norms, attention_scale=scales[0], feed_forward_scale=scales[1])

    classifier = f"{CLASSIFIER}.weight"
    first = Linear(classifier, f"{CLASSIFIER}.bias", columns=Rows(0, d))
    head = Head(None, untied="")
    if _has_head(options):
        head = Head(first, reads="first", mean=Linear(classifier, columns=Rows(d, d)), untied="")
    blocks = _blocks(options, f"{at}encoder.layer.", block)
    return Stack(_tables(at), blocks, head, norm(f"{at}layernorm"))


def _has_head(options: Options) -> bool:
    """Whether there are logits of labels; without them the outputs are hidden states.

    Raises:
        ValueError: if there is a head that the config leaves out.
    """
    found = f"{CLASSIFIER}.weight" in options.names
    if found and options.labels < 1:
        raise ValueError(f"option 'num_labels' = {options.labels} is not covered where there is a {CLASSIFIER!r}")
    return found


def _in_files(options: Options, at: str) -> bool:
    """Whether the first block has names as in files, not as in memory; one missing array does not decide."""
    return any(f"{at}encoder.layer.0.{part}.weight" in options.names for part in IN_FILES)


def _prefix(options: Options, prefix: str) -> str:
    """The prefix of the names, "" where there is no head around the model."""
    bare = ("embeddings.cls_token", "embeddings.position_embeddings")
    found = any(name in options.names for name in bare) and not any(prefix + name in options.names for name in bare)
    return "" if found else prefix


def _tables(at: str) -> tuple[Table, ...]:
    """The map of patches, the class token, and positions."""
    return (
        Table(f"{at}{PROJECTION}.weight", "patch", layout="columns"),
        Table(f"{at}{PROJECTION}.bias", "input", layout="joined"),
        Table(f"{at}embeddings.cls_token", "leading", layout="joined"),
        Table(f"{at}embeddings.position_embeddings", "position", layout="joined"),
    )


def _attention(options: Options, prefix: str, names: tuple[str, ...]) -> Attention:
    d, n, _ = sizes(options)
    width = options.get("head_dim") or d // n
    q, k, v = (linear(prefix + name, options.get("qkv_bias")) for name in names[:3])
    return Attention(q, k, v, biased(prefix + names[3]), n, n, width, width, causal=False)


def _blocks(options: Options, prefix: str, block: Callable[[str], Block]) -> tuple[Block, ...]:
    return tuple(block(f"{prefix}{i}.") for i in range(sizes(options)[2]))


def hidden_units(options: Options) -> int:
    """Hidden units of a DINOv2 network: two thirds of the others' where there is a gate, in multiples of 8."""
    plain = sizes(options)[0] * options.get("mlp_ratio")
    return (int(plain * 2 / 3) + 7) // 8 * 8 if options.get("use_swiglu_ffn") else plain


def _swiglu(options: Options, prefix: str) -> FeedForward:
    """A gated network, in one array in files, the gate first."""
    if f"{prefix}weights_in.weight" in options.names:
        m = hidden_units(options)
        gate, up = (biased(f"{prefix}weights_in", rows=Rows(start, m)) for start in (0, m))
        return FeedForward(up, biased(f"{prefix}weights_out"), gate, "silu")
    gate, up, down = (biased(f"{prefix}{part}_proj") for part in ("gate", "up", "down"))
    return FeedForward(up, down, gate, "silu")


def grid(options: Options) -> int:
    """How many patches an image has.

    Raises:
        ValueError: if it has none.
    """
    (height, width), (high, wide) = options.pair("image_size"), options.pair("patch_size")
    if height < high or width < wide:
        raise ValueError(f"option 'image_size' = {[height, width]} is smaller than 'patch_size' = {[high, wide]}")
    return (height // high) * (width // wide)
