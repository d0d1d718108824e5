"""The reference forward pass is what a literal reading of the description gives, for every variant."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.transformers import (
    Attention,
    Block,
    Buckets,
    Convolution,
    FeedForward,
    FrontEnd,
    Groups,
    Head,
    Latent,
    Linear,
    Mixture,
    Norm,
    Rotary,
    Rows,
    Stack,
    Table,
    Transform,
    logits,
)

from tests.stacks import literal

D, N, K, F, V, T = 6, 4, 4, 5, 9, 5


class Made:
    """Names arrays and draws them as they are named."""

    def __init__(self, seed=0):
        self.draw, self.weights = np.random.default_rng(seed), {}

    def array(self, *shape):
        name = f"a{len(self.weights)}"
        self.weights[name] = self.draw.normal(size=shape) * (0.6 if len(shape) > 1 else 0.4) + (len(shape) == 1)
        return name

    def linear(self, out, into, layout="oi", bias=True):
        shape = (out, into) if layout == "oi" else (into, out)
        return Linear(self.array(*shape), self.array(out) if bias else None, layout)

    def norm(self, kind="layer", size=D, **options):
        return Norm(kind, self.array(size), self.array(size), eps=0.1, **options)

    def attention(self, n_k=2, v=3, **options):
        return Attention(
            *(self.linear(N * K, D), self.linear(n_k * K, D), self.linear(n_k * v, D, bias=False)),
            *(self.linear(D, N * v, "io"), N, n_k, K, v),
            **options,
        )

    def latent(self, width, kind="rms"):
        return Latent(self.linear(width, D), self.norm(kind, width), width)

    def latent_attention(self, ask=True, give=True, shared=2, n_k=2, v=3, kind="rms", bias=True, **options):
        """Queries from a latent of 3, keys and values from one of 5, and the last coordinates of all keys shared."""
        query, both = self.latent(3, kind) if ask else None, self.latent(5, kind) if give else None
        return Attention(
            self.linear(N * K, 3 if ask else D, bias=bias),
            self.linear(n_k * (K - shared), 5 if give else D, bias=bias),
            self.linear(n_k * v, 5 if give else D, bias=bias),
            *(self.linear(D, N * v), N, n_k, K, v),
            query_latent=query,
            kv_latent=both,
            shared_key=self.linear(shared, D) if shared else None,
            shared_width=shared,
            **options,
        )

    def network(self, activation="gelu", gated=False):
        return FeedForward(self.linear(F, D), self.linear(D, F), self.linear(F, D) if gated else None, activation)

    def block(self, placing="pre", kind="layer", parallel=False, shared=False, **parts):
        reads = [self.norm(kind) if placing != "outer" else None for _ in range(2)]
        writes = [self.norm(kind) if placing in {"sandwich", "outer"} else None for _ in range(2)]
        attention, network = parts.get("attention") or self.attention(), parts.get("network") or self.network()
        return Block(attention, network, placing, reads[0], None if shared else reads[1], *writes, parallel=parallel)

    def stack(self, *blocks, **options):
        tables = (Table(self.array(V, D), scale=1.5), Table(self.array(T + 2, D), "position", 2))
        head = options.pop("head", None) or Head(self.linear(V, D))
        options.setdefault("final", self.norm())
        return Stack((*tables, Table(self.array(2, D), "type")), blocks, head, **options)


TURN = (1.0, 0.3)
ATTENTION = {
    "plain": {},
    "no mask": {"causal": False},
    "window": {"window": 2},
    "rotary halves": {"rotary": Rotary(TURN)},
    "rotary, adjacent, some": {"rotary": Rotary((0.7,), "adjacent", 1.3)},
    "rotary, adjacent, last": {"rotary": Rotary((0.7,), "adjacent", start=2)},
    "rotary halves, inside": {"rotary": Rotary((0.7,), start=1)},
    "cap": {"cap": 0.8, "scale": 0.9},
    "alibi": {"alibi": (0.5, 0.25, 0.2, 0.1)},
    "mqa": {"n_k": 1},
}
NETWORKS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh", "identity")


def agrees(stack, weights):
    stack.check(weights)
    draw = np.random.default_rng(1)
    tokens, types = draw.integers(0, V, (2, T)), draw.integers(0, 2, (2, T))
    found = np.asarray(logits(stack, weights, jnp.asarray(tokens), jnp.asarray(types)))
    expected = np.array([literal.logits(stack, weights, a, b) for a, b in zip(tokens, types, strict=True)])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    made = Made()
    agrees(made.stack(made.block(attention=made.attention(**ATTENTION[name]))), made.weights)


@pytest.mark.parametrize("extra", ["temperature", "sink", "relative"])
def test_attention_with_arrays_of_its_own(extra):
    made = Made()
    name = made.array(N, T) if extra == "relative" else made.array(N)
    agrees(made.stack(made.block(attention=made.attention(**{extra: name}))), made.weights)


@pytest.mark.parametrize("rotary_first", [False, True])
@pytest.mark.parametrize(("kind", "over"), [("rms", "head"), ("layer", "head"), ("l2", "head"), ("rms", "all")])
def test_norms_of_queries_and_keys(kind, over, rotary_first):
    made = Made()
    sizes = (N * K, 2 * K) if over == "all" else (K, K)
    query, key = (made.norm(kind, size) for size in sizes)
    options = {"query_norm": query, "key_norm": key, "norm_over": over, "rotary_first": rotary_first}
    agrees(made.stack(made.block(attention=made.attention(rotary=Rotary(TURN), **options))), made.weights)


def test_norms_of_queries_with_gains_of_each_head():
    made = Made()
    query, key = (Norm("rms", made.array(n, K), eps=0.1) for n in (N, 2))
    agrees(made.stack(made.block(attention=made.attention(query_norm=query, key_norm=key))), made.weights)


@pytest.mark.parametrize("gated", [False, True])
def test_networks(gated):
    made = Made()
    blocks = [made.block(network=made.network(activation, gated), kind="rms") for activation in NETWORKS[gated::2]]
    agrees(made.stack(*blocks), made.weights)


@pytest.mark.parametrize(
    "form", [("softmax", None, True), ("softmax", 2, True), ("softmax", 2, False), ("sigmoid", 2, True)]
)
def test_mixtures(form):
    made = Made()
    experts = tuple(made.network("silu", gated=True) for _ in range(3))
    agrees(made.stack(made.block(network=Mixture(made.linear(3, D), experts, *form))), made.weights)


LATENT = {
    "queries": {"give": False, "shared": 0},
    "keys and values": {"ask": False, "shared": 0},
    "both": {"shared": 0},
    "a shared part": {"ask": False, "give": False},
    "all, rotary last": {"rotary": Rotary((0.7,), "adjacent", start=2)},
    "all, rotary across": {"rotary": Rotary((0.7,), start=1), "cap": 2.0},
    "LayerNorms": {"kind": "layer", "n_k": 1, "shared": 3},
}


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention(name):
    made = Made()
    block = made.block(attention=made.latent_attention(**LATENT[name]))
    post = made.block("pre", parallel=True, shared=True, attention=made.latent_attention(**LATENT[name]))
    agrees(made.stack(block, post), made.weights)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("best", [None, 1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_experts_that_are_chosen_in_groups_or_with_a_bias(scores, best, biased):
    made = Made()
    experts = tuple(made.network("silu", gated=True) for _ in range(6))
    bias = made.array(6) if biased else None
    groups = None if best is None else Groups(3, 2, best)
    network = Mixture(
        made.linear(6, D), experts, scores, 3, choice_bias=bias, groups=groups, factor=1.5, renormalize=best != 1
    )
    agrees(made.stack(made.block(network=network)), made.weights)


def test_clamped_networks():
    made = Made()
    agrees(made.stack(made.block(network=replace(made.network("quick_gelu", gated=True), clamp=0.4))), made.weights)


@pytest.mark.parametrize("gate", [False, True])
def test_shared_experts(gate):
    made = Made()
    experts = tuple(made.network("silu", gated=True) for _ in range(3))
    gate = made.linear(1, D) if gate else None
    network = Mixture(made.linear(3, D), experts, top=2, shared=made.network("silu", gated=True), shared_gate=gate)
    agrees(made.stack(made.block(network=network)), made.weights)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("placing", ["pre", "sandwich", "outer", "post"])
def test_placings(placing, kind):
    made = Made()
    final = {"final": None} if placing == "post" else {}
    stack = made.stack(made.block(placing, kind), made.block(placing, kind), **final)
    agrees(stack, made.weights)
    agrees(replace(stack, embedding_norm=made.norm(kind)), made.weights)


@pytest.mark.parametrize("shared", [False, True])
def test_parallel_blocks(shared):
    made = Made()
    agrees(made.stack(*(made.block(parallel=True, shared=shared) for _ in range(2))), made.weights)


@pytest.mark.parametrize("parallel", [False, True])
def test_factors_of_branches_and_logits(parallel):
    made = Made()
    blocks = [replace(made.block(parallel=parallel), factor=factor) for factor in (0.4, 2.5)]
    agrees(made.stack(*blocks, head=Head(made.linear(V, D), 2.0, scale=0.3)), made.weights)


def test_attention_without_a_norm():
    made = Made()
    first = replace(made.block(), attention_norm=None, bare_attention=True)
    agrees(made.stack(first, made.block(), embedding_norm=made.norm()), made.weights)


def test_heads():
    made = Made()
    transform = Transform(made.linear(D, D), made.norm(offset=1), "silu")
    agrees(made.stack(made.block(), head=Head(made.linear(V, D, bias=False), 2.0, transform)), made.weights)
    tied = made.stack(made.block())
    tied = replace(tied, head=Head(Linear(tied.tables[0].weight, made.array(V))))
    assert tied.tied
    agrees(tied, made.weights)


def read_patches(made, *blocks, entries=(2, 2, 2), **options):
    """A stack that reads patches of 8 entries: their map with a bias, a class token, and positions."""
    tables = (
        Table(made.array(D, *entries), "patch", layout="columns"),
        Table(made.array(D), "input", layout="joined"),
        Table(made.array(1, 1, D), "leading", layout="joined"),
        Table(made.array(1, T + 1, D), "position", layout="joined"),
    )
    head = options.pop("head", None) or Head(made.linear(V, D))
    return Stack(tables, blocks, head, made.norm(), **options)


@pytest.mark.parametrize("numbered", [False, True])
def test_patches_behind_a_class_token(numbered):
    made, draw = Made(), np.random.default_rng(2)
    stack = read_patches(made, made.block(attention=made.attention(causal=False)), made.block())
    stack.check(made.weights)
    patches = draw.integers(0, 8, (2, T)) if numbered else draw.normal(size=(2, T, 8))
    found = np.asarray(logits(stack, made.weights, jnp.asarray(patches)))
    expected = np.array([literal.logits(stack, made.weights, each, [0] * T) for each in patches])
    assert found.shape == (2, T + 1, V)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    if numbered:  # a number is a patch with one entry that is 1
        units = logits(stack, made.weights, jnp.eye(8)[jnp.asarray(patches)])
        np.testing.assert_allclose(found, units, atol=1e-13)


def read_frames(made, *blocks, tables="position", **options):
    """A stack that reads six frames of two channels at each position, by windows of five and of three."""
    first = Convolution(Linear(made.array(4, 2, 5), made.array(4), input_axes=2), 3, "relu")
    last = Convolution(Linear(made.array(D, 4, 3), input_axes=2), 2)
    rows = {"position": T + 2, "type": 2}
    own = tuple(Table(made.array(rows[index], D), index) for index in tables.split())
    head = options.pop("head", None) or Head(made.linear(V, D))
    return Stack(own, blocks, head, made.norm(), front=FrontEnd((first, last)), **options)


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("tables", ["position", "", "type position"])
def test_frames_that_a_front_end_reads(tables, numbered):
    made, draw = Made(), np.random.default_rng(2)
    norms = {} if tables else {"embedding_norm": made.norm()}
    stack = read_frames(made, made.block(attention=made.attention(causal=False)), made.block(), tables=tables, **norms)
    stack.check(made.weights)
    assert (stack.inputs, stack.front.frames, stack.width(made.weights)) == ("frame", 6, D)
    frames = draw.integers(0, 12, (2, T)) if numbered else draw.normal(size=(2, T, 12))
    types = draw.integers(0, 2, (2, T))
    found = np.asarray(logits(stack, made.weights, jnp.asarray(frames), jnp.asarray(types)))
    expected = np.array([literal.logits(stack, made.weights, *each) for each in zip(frames, types, strict=True)])
    assert found.shape == (2, T, V)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_frames_in_another_order_are_refused():
    made = Made()
    stack = read_frames(made, made.block())
    with pytest.raises(
        ValueError, match=r"\[N, T, 12\]: at each position 6 frames of 2 channels, joined; got .*5, 2\)"
    ):
        logits(stack, made.weights, jnp.ones((2, T, 2)))


@pytest.mark.parametrize("mean", [False, True])
def test_heads_that_read_the_first_position(mean):
    made = Made()
    whole, bias = made.array(V, 2 * D), made.array(V)
    first, second = Linear(whole, bias, columns=Rows(0, D)), Linear(whole, columns=Rows(D, D))
    stack = made.stack(made.block(), head=Head(first, reads="first", mean=second if mean else None))
    agrees(stack, made.weights)
    assert logits(stack, made.weights, jnp.zeros((2, T), int)).shape == (2, 1, V)


def test_without_a_head_the_outputs_are_hidden_states():
    made = Made()
    stack = replace(made.stack(made.block()), head=Head(None))
    assert stack.hidden_states
    agrees(stack, {name: made.weights[name] for name in stack.arrays})


def test_factors_of_channels():
    made = Made()
    block = replace(made.block(), attention_scale=made.array(D), feed_forward_scale=made.array(D), factor=0.4)
    agrees(made.stack(block, replace(made.block(), feed_forward_scale=made.array(D))), made.weights)


@pytest.mark.parametrize(("count", "largest"), [(4, 3), (6, 4), (8, 3), (32, 128)])
def test_relative_positions_that_share_rows_of_a_table(count, largest):
    made = Made()
    name, form = made.array(count, N), {"scale": 1.0, "causal": False, "buckets": Buckets(count, largest)}
    agrees(made.stack(*(made.block(attention=made.attention(relative=name, **form)) for _ in range(2))), made.weights)


def test_fused_arrays_and_stacked_experts():
    made = Made()
    whole, offsets, wide = made.array(3 * N * K, D), made.array(3 * N * K), made.array(D, 3 * N * K)
    rows = [Rows(j * K, K, N, 3 * K) for j in range(3)]
    first = [Linear(whole, offsets, rows=r) for r in rows]
    second = [Linear(wide, offsets, "io", Rows(j * N * K, N * K)) for j in range(3)]
    stacked, out = made.array(2, 2 * F, D), made.array(2, F, D)
    experts = tuple(
        FeedForward(
            Linear(stacked, rows=Rows(1, 1, F, 2), expert=e),
            *(Linear(out, layout="io", expert=e), Linear(stacked, rows=Rows(0, 1, F, 2), expert=e), "relu"),
        )
        for e in range(2)
    )
    blocks = [
        made.block(attention=Attention(*inputs, made.linear(D, N * K), N, N, K, K), network=network)
        for inputs, network in ((first, None), (second, Mixture(made.linear(2, D), experts)))
    ]
    agrees(made.stack(*blocks), made.weights)


def test_axes_of_heads_are_joined():
    made = Made()
    query, output = made.array(D, N, K), made.array(N, K, D)
    attention = Attention(
        Linear(query, layout="io"),
        *(made.linear(N * K, D) for _ in range(2)),
        Linear(output, layout="io", input_axes=2),
        N,
        N,
        K,
        K,
    )
    stack = made.stack(made.block(attention=attention))
    flat = made.weights | {query: made.weights[query].reshape(D, -1), output: made.weights[output].reshape(-1, D)}
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, V, (1, T)))
    stack.check(made.weights)
    joined = replace(attention, output=Linear(output, layout="io"))
    plain = replace(stack, blocks=(replace(stack.blocks[0], attention=joined),))
    np.testing.assert_allclose(logits(stack, made.weights, tokens), logits(plain, flat, tokens), atol=1e-13)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_dtype_is_that_of_the_arrays(dtype):
    made = Made()
    stack = made.stack(made.block())
    weights = {name: jnp.asarray(value, dtype) for name, value in made.weights.items()}
    found = jax.jit(lambda w, x: logits(stack, w, x))(weights, jnp.zeros((1, T), int))
    assert found.dtype == dtype


def test_descriptions_that_contradict_themselves_are_refused():
    made = Made()
    block, a = made.block(), made.attention()
    for make, words in (
        (lambda: replace(block, placing="middle"), "placing of a Block must be one of"),
        (lambda: replace(block, placing="outer"), "needs 0 of attention_norm"),
        (lambda: replace(block, feed_forward_norm=None), "needs 2 of attention_norm"),
        (lambda: replace(block, placing="post", parallel=True), "parallel"),
        (lambda: replace(a, kv_heads=3), "must divide"),
        (lambda: replace(a, rotary=Rotary((1.0,) * 3)), "exceed"),
        (lambda: replace(a, query_norm=Norm("rms")), "both have a norm"),
        (lambda: replace(a, rotary=Rotary((1.0,), start=3)), "from 3 on exceed"),
        (lambda: replace(a, shared_width=2), "shared_key and shared_width go together"),
        (lambda: replace(a, shared_key=made.linear(K, D), shared_width=K), "leave a head of width 4 a key of its own"),
        (
            lambda: replace(
                a, shared_key=made.linear(2, D), shared_width=2, query_norm=Norm("rms"), key_norm=Norm("rms")
            ),
            "a norm of keys does not go with",
        ),
        (lambda: Latent(made.linear(2, D), Norm("rms"), 0), "width of a Latent must be positive"),
        (lambda: Mixture(made.linear(1, D), (made.network(),), choice_bias="b"), "for mixtures that choose experts"),
        (lambda: Mixture(made.linear(1, D), (made.network(),) * 3, top=1, groups=Groups(2, 1)), "equal groups"),
        (lambda: Mixture(made.linear(1, D), (made.network(),) * 4, top=3, groups=Groups(2, 1)), "hold the 3 experts"),
        (lambda: Mixture(made.linear(1, D), (made.network(),) * 4, top=1, groups=Groups(2, 3)), "equal groups"),
        (lambda: Mixture(made.linear(1, D), (made.network(),) * 4, top=1, groups=Groups(4, 1, 2)), "at least 2"),
        (lambda: Mixture(made.linear(1, D), (made.network(),), factor=0.0), "factor of a Mixture must be positive"),
        (lambda: replace(a, alibi=(1.0,)), "one slope"),
        (lambda: replace(a, norm_over="row"), "norm_over"),
        (lambda: Norm("batch"), "kind of a Norm"),  # pyright: ignore[reportArgumentType]
        (lambda: Norm("rms", offset=2), "offset"),  # pyright: ignore[reportArgumentType]
        (lambda: Linear("a", layout="ab"), "layout"),  # pyright: ignore[reportArgumentType]
        (lambda: Rotary((1.0,), "third"), "pairing"),  # pyright: ignore[reportArgumentType]
        (lambda: FeedForward(Linear("a"), Linear("b"), activation="mish"), "activation"),  # pyright: ignore
        (lambda: Mixture(Linear("a"), (), top=1), "top"),
        (lambda: Mixture(Linear("a"), (), "argmax"), "scores"),  # pyright: ignore[reportArgumentType]
        (lambda: Table("a", "row"), "index"),  # pyright: ignore[reportArgumentType]
        (lambda: Stack((Table("a", "position"),), (), Head(Linear("b"))), "begin with"),
        (lambda: made.stack(made.block(), made.block("post")), "all be post-norm"),
        (lambda: replace(made.block("post"), factor=0.5), "for placing 'pre'; placing is 'post'"),
        (lambda: replace(made.network(), clamp=1.0), "a clamp is for networks with a gate"),
        (lambda: replace(made.block(), bare_attention=True), "without an attention_norm"),
        (lambda: replace(made.block("outer"), bare_attention=True), "for blocks with placing 'pre'"),
        (lambda: replace(made.block(), factor=0.0), "factor of a Block must be positive"),
        (lambda: Head(made.linear(V, D), scale=-1.0), "scale of a Head must be positive"),
        (lambda: Mixture(made.linear(1, D), (made.network(),), shared_gate=made.linear(1, D)), "has no shared expert"),
        (lambda: replace(a, buckets=Buckets(8, 4)), "name it"),
        (lambda: Buckets(7, 4), "an even number, at least 4"),
        (lambda: Buckets(32, 8), "above a quarter of it; got 32 and 8"),
        (lambda: replace(made.block("post"), attention_scale="s"), "factors of channels are for blocks with placing"),
        (lambda: replace(made.block(parallel=True), feed_forward_scale="s"), "not parallel; got 'pre', parallel=True"),
        (lambda: Head(None, 2.0), "a head without a map has nothing else either"),
        (lambda: Head(made.linear(V, D), mean=Linear("m")), "for a head that reads the first position"),
        (lambda: Head(made.linear(V, D), reads="first", mean=made.linear(V, D)), "the bias is that of linear"),
        (lambda: replace(made.stack(made.block()), head=Head(None), final=None), "has a final norm"),
        (lambda: Stack((Table("a", "leading"),), (), Head(Linear("b"))), "'token' or 'patch'"),
        (lambda: Stack((Table("a"), Table("b", "patch")), (), Head(Linear("b"))), "the one table"),
        (lambda: Stack((Table("a"), *[Table("b", "leading")] * 2), (), Head(Linear("b"))), "at most one table"),
        (lambda: FrontEnd(()), "has at least one layer"),
        (lambda: Convolution(Linear("a")), "has input_axes=2"),
        (lambda: Convolution(Linear("a", input_axes=2, layout="io")), "is a whole array; got"),
        (lambda: Convolution(Linear("a", input_axes=2), 0), "stride of a Convolution must be positive"),
        (lambda: replace(read_frames(made), tables=(Table("a"),)), "have index 'position' or 'type'; got 'token'"),
        (lambda: Table("a", layout="rotated"), "layout of a Table"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_arrays_of_latents_and_of_the_choice_of_experts_have_the_sizes_of_the_description():
    made = Made()
    network = Mixture(made.linear(2, D), (made.network(), made.network()), top=1, choice_bias=made.array(2))
    stack = made.stack(made.block(attention=made.latent_attention(), network=network))
    a = stack.blocks[0].attention
    for name, shape, words in (
        (a.query.weight, (N * K, 4), r"attention.query .* = \[16, 3\]; got \[16, 4\]"),
        (a.key.weight, (2 * K, 5), r"attention.key .* = \[4, 5\]; got \[8, 5\]"),
        (a.shared_key.weight, (3, D), r"attention.shared_key .* = \[2, 6\]"),
        (a.kv_latent.linear.weight, (4, D), r"attention.kv_latent.linear .* = \[5, 6\]"),
        (a.kv_latent.norm.gain, (D,), r"attention.kv_latent.norm must have shape \(5,\); got \(6,\)"),
        (network.choice_bias, (3,), r"feed_forward must have shape \(2,\); got \(3,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            stack.check(made.weights | {name: np.ones(shape)})


def test_arrays_of_images_have_the_sizes_of_the_description():
    made = Made()
    form = {"causal": False, "relative": made.array(8, N), "buckets": Buckets(8, 3)}
    block = replace(made.block(attention=made.attention(**form)), attention_scale=made.array(D))
    stack = read_patches(made, block)
    stack.check(made.weights)
    patch, bias, leading, position = (table.weight for table in stack.tables)
    for name, shape, words in (
        (bias, (2, D), r"must have one row; got \(2, 6\)"),
        (leading, (1, 1, 4), r"must have rows of 6; got \(1, 1, 4\)"),
        (position, (7, 5), r"must have rows of 6; got \(7, 5\)"),
        (patch, (), "must have rows; it is a single number"),
        (block.attention_scale, (1, D), r"blocks.0.attention_scale must have shape \(6,\); got \(1, 6\)"),
        (form["relative"], (N, 8), r"blocks.0.attention must have shape \(8, 4\); got \(4, 8\)"),
    ):
        with pytest.raises(ValueError, match=words):
            stack.check(made.weights | {name: np.ones(shape)})


def test_arrays_of_a_front_end_have_the_sizes_of_the_description():
    made = Made()
    stack = read_frames(made, made.block())
    first, last = (layer.linear for layer in stack.front.layers)
    for name, shape, words in (
        (first.weight, (4, 2, 2), r"must have shape \[out, channels, an odd number\]; got \(4, 2, 2\)"),
        (first.weight, (4, 10), r"an odd number\]; got \(4, 10\)"),
        (first.bias, (1,), r"must have shape \(4,\); got \(1,\)"),
        (last.weight, (D, 2, 3), r"must have shape \[out, 4, an odd number\]; got \(6, 2, 3\)"),
        (last.weight, (D + 1, 4, 3), r"must give 6, as wide as the stream; got \(7, 4, 3\)"),
        (stack.tables[0].weight, (T, D + 1), r"must have rows of 6; got \(5, 7\)"),
    ):
        with pytest.raises(ValueError, match=words):
            stack.check(made.weights | {name: np.ones(shape)})


def test_latents_are_spaces_of_their_own():
    made = Made()
    stack = made.stack(made.block(attention=made.latent_attention()))
    at, spaces = "blocks.0.attention", {space.name: space for space in stack.spaces}
    reading = [site.path for site in spaces["blocks.0.attention_norm"].readers]
    assert reading == [f"{at}.query_latent.linear", f"{at}.kv_latent.linear", f"{at}.shared_key"]
    for latent, readers, width in (("query_latent", ["query"], 3), ("kv_latent", ["key", "value"], 5)):
        before, after = spaces[f"{at}.{latent}"], spaces[f"{at}.{latent}.norm"]
        assert [site.path for site in before.writers] == [f"{at}.{latent}.linear"]
        assert (
            [site.path for site in before.readers] == [site.path for site in after.writers] == [f"{at}.{latent}.norm"]
        )
        assert [site.path for site in after.readers] == [f"{at}.{name}" for name in readers]
        assert (before.width, after.width, after.residual) == (width, width, False)
    assert spaces["blocks.0.attention_norm"].width is None


def test_spaces_list_writers_and_readers_in_order():
    made = Made()
    stack = made.stack(made.block(), made.block("sandwich"), embedding_norm=made.norm())
    spaces = {space.name: space for space in stack.spaces}
    order = [f"{e.access} {e.site.path}" for e in spaces["stream"].events]
    assert order == [
        *("write embedding_norm", "read blocks.0.attention_norm", "write blocks.0.attention.output"),
        *("read blocks.0.feed_forward_norm", "write blocks.0.feed_forward.down", "read blocks.1.attention_norm"),
        *("write blocks.1.attention_writing_norm", "read blocks.1.feed_forward_norm"),
        *("write blocks.1.feed_forward_writing_norm", "read final"),
    ]
    assert [s.path for s in spaces["embedding"].writers] == ["tables.0", "tables.1", "tables.2"]
    assert [s.path for s in spaces["blocks.1.attention"].writers] == ["blocks.1.attention.output"]
    readers = spaces["blocks.0.attention_norm"].readers
    assert [s.path for s in readers] == [f"blocks.0.attention.{part}" for part in ("query", "key", "value")]
    for norm in stack.norms:
        assert norm in stack.output_space(norm).writers
        assert norm in stack.input_space(norm).readers
    early = spaces["stream"].writers_before(spaces["stream"].readers[1])
    assert [s.path for s in early] == ["embedding_norm", "blocks.0.attention.output"]
    assert spaces["stream"].readers_after(early[1])[0].path == "blocks.0.feed_forward_norm"
