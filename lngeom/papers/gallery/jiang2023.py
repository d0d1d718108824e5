"""Jiang, Gu, Zhu and Pan (2023), *Pre-RMSNorm and Pre-CRMSNorm Transformers*: they equal Pre-LN transformers.

A Pre-LN stack is converted by recentring what is written to its main branch: the embedding and the output projections.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sympy as sp
from jaxtyping import Array, Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import LAYER_NORM, RMS_NORM, Layer
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, matrix, refutation
from lngeom.symbolic.sums import D, Field, H, field, i, mean, n, total

PAPER = Paper(
    "jiang2023",
    "Pre-RMSNorm and Pre-CRMSNorm Transformers: Equivalent and Efficient Pre-LN Transformers",
    ("Zixuan Jiang", "Jiaqi Gu", "Hanqing Zhu", "David Z. Pan"),
    2023,
    "2305.14858",
    "Adam on the converted parameters is another run than Adam on those of the Pre-LN network, even with projected "
    "gradients.",
)
WIDTH, HIDDEN, BLOCKS, EPS, STEPS = 12, 20, 4, 1e-3, 50
Params = dict[str, Any]


def rms_norm(h: Float[Array | np.ndarray, "N d"]) -> Any:
    """RMSNorm of the main branch."""
    return h / ((h**2).mean(1, keepdims=True) + EPS) ** 0.5


def layer_norm(h: Float[Array | np.ndarray, "N d"]) -> Any:
    """Layer norm of the main branch."""
    return rms_norm(centred(h, 1))


def compressed_norm(h: Float[Array | np.ndarray, "N k"]) -> Any:
    """CRMSNorm: RMSNorm of d = k + 1 entries of sum zero, of which the last is left out."""
    square = ((h**2).sum(1, keepdims=True) + h.sum(1, keepdims=True) ** 2) / (h.shape[1] + 1)
    return h / (square + EPS) ** 0.5


def stack(problem: Problem) -> tuple[Params, Float[np.ndarray, "N t"]]:
    """A random Pre-LN stack and inputs."""
    draw = np.random.default_rng([problem.seed, 2305_14858]).normal
    params = {
        "embedding": draw(size=(WIDTH, 5)),
        "embedding bias": draw(size=WIDTH),
        "gain": draw(1.0, 0.3, (BLOCKS, WIDTH)),
        "bias": draw(0.0, 0.3, (BLOCKS, WIDTH)),
        "in": draw(0.0, WIDTH**-0.5, (BLOCKS, HIDDEN, WIDTH)),
        "in bias": draw(0.0, 0.3, (BLOCKS, HIDDEN)),
        "out": draw(0.0, HIDDEN**-0.5, (BLOCKS, WIDTH, HIDDEN)),
        "out bias": draw(0.0, 0.3, (BLOCKS, WIDTH)),
        "readout": draw(0.0, WIDTH**-0.5, (3, WIDTH)),
    }
    return params, draw(size=(16, 5))


def centred(values: Float[Array | np.ndarray, "..."], axis: int) -> Any:
    """Values minus their mean over an axis."""
    return values - values.mean(axis, keepdims=True)


def recentred(params: Params) -> Params:
    """The parameters with what is written to the main branch centred: Â = PA, b̂ = Pb."""
    return params | {
        "embedding": centred(params["embedding"], 0),
        "embedding bias": centred(params["embedding bias"], 0),
        "out": centred(params["out"], 1),
        "out bias": centred(params["out bias"], 1),
    }


def compressed(params: Params) -> Params:
    """Parameters of the stack with d − 1 entries: the last is left out where they are written, and put in where read.

    Readers A diag(g) with bias A b become A_i − a_d 1ᵀ, since the last entry is minus the sum of the others.
    """
    found = recentred(params)
    read = found["in"] * found["gain"][:, None, :]
    without = lambda a: a[..., :-1] - a[..., -1:]
    return {
        "embedding": found["embedding"][:-1],
        "embedding bias": found["embedding bias"][:-1],
        "gain": np.ones((BLOCKS, WIDTH - 1)),
        "bias": np.zeros((BLOCKS, WIDTH - 1)),
        "in": without(read),
        "in bias": found["in bias"] + (found["in"] * found["bias"][:, None, :]).sum(2),
        "out": found["out"][:, :-1],
        "out bias": found["out bias"][:, :-1],
        "readout": without(found["readout"]),
    }


BLOCK = ("gain", "bias", "in", "in bias", "out", "out bias")


def forward(params: Params, inputs, normalize, *, post: bool = False, end=lambda y, block: y) -> Any:
    """Outputs of the stack.

    Args:
        params: of all blocks, stacked; NumPy's arrays or JAX's.
        inputs: [N t].
        normalize: the norm of the main branch.
        post: whether the norm stands after each block instead of before it.
        end: what stands at the end of a branch; a function of its output and of the block's number.

    Returns:
        [N o].
    """
    h = inputs @ params["embedding"].T + params["embedding bias"][None, :]
    for block in range(BLOCKS):
        g, b, A, a, B, c = (params[name][block] for name in BLOCK)
        affine = lambda h, g=g, b=b: g[None, :] * normalize(h) + b[None, :]
        inner = (h if post else affine(h)) @ A.T + a[None, :]
        h = h + end((inner * (inner > 0)) @ B.T + c[None, :], block)
        h = affine(h) if post else h
    return normalize(h) @ params["readout"].T


def _recentring(y: Field, l) -> Any:
    """Entry l of P y."""
    return y(l) - mean(y, H)


def _lemma() -> Step:
    A, b, x = field("A"), field("b"), field("x")
    y = lambda l: total(lambda d: A(l, d) * x(d), D) + b(l)
    hat = total(lambda d: (A(i, d) - mean(lambda r: A(r, d), H)) * x(d), D) + _recentring(b, i)
    names = {r"\hat{y}_i": hat, r"\mu": mean(y, H)}
    right = sp.Symbol(r"\hat{y}_i") + sp.Symbol(r"\mu")
    return equality("y = Ax + b is ŷ + μ1 with ŷ = Âx + b̂ and the mean μ of y", y(i), right, r"y_i", names)


@PAPER.claim(
    "jiang2023.lemma_3_1",
    source="Lemma 3.1",
    statement="A linear layer is one of centred outputs plus the mean of its outputs.",
    formula=r"Ax + b = \hat Ax + \hat b + \mu(y)\mathbf{1},\quad \hat A = PA,\ \hat b = Pb",
    expected=Verdict.HOLDS,
)
def lemma_3_1(problem: Problem):
    """On the data."""
    _, params, inputs = problem.case("ln")
    y = inputs @ params.weights.T + params.bias[None, :]
    hat = np.asarray(inputs) @ centred(np.asarray(params.weights), 0).T + centred(np.asarray(params.bias), 0)[None, :]
    yield agree("Ax + b and Âx + b̂ + μ(y)1", y, hat + y.mean(1, keepdims=True))
    yield differ("without μ(y)", y, hat)


@lemma_3_1.proof()
def lemma_3_1_proof() -> Proof:
    """P + 11ᵀ/d = I."""
    return Proof(r"Ax + b = \hat Ax + \hat b + \mu(y)\mathbf{1}", (_lemma(),))


@PAPER.claim(
    "jiang2023.inference",
    source="Section 3",
    statement="A Pre-LN stack equals the Pre-RMSNorm stack whose embedding and output projections are recentred, for "
    "any ε.",
    expected=Verdict.HOLDS,
)
def inference(problem: Problem):
    """Four blocks, ε = 1e-3; and the stack that is not recentred."""
    params, inputs = stack(problem)
    expected = forward(params, inputs, layer_norm)
    yield agree("Pre-LN, and Pre-RMSNorm recentred", forward(recentred(params), inputs, rms_norm), expected)
    yield differ("Pre-LN, and Pre-RMSNorm not recentred", forward(params, inputs, rms_norm), expected)


EPSILON = sp.Symbol("epsilon", nonnegative=True)
CENTRED = Layer(lambda l, d: LAYER.W(l, d) - mean(lambda r: LAYER.W(r, d), H))


def _one_norm() -> Step:
    return equality(
        "RMSNorm of the centred branch is layer norm of the branch, for any ε",
        RMS_NORM(CENTRED, eps=EPSILON),
        LAYER_NORM(LAYER, eps=EPSILON),
        r"\mathrm{RMS}_\epsilon(Ph)_{ni}",
    )


@inference.proof()
def inference_proof() -> Proof:
    """By induction over the blocks: the main branch of one is that of the other, centred."""
    h, y = field("h"), field("y")
    return Proof(
        r"h' = Ph \Rightarrow \mathrm{RMS}_\epsilon(h') = \mathrm{LN}_\epsilon(h),\ h' + \hat y = P(h + y)",
        (
            _one_norm(),
            _lemma(),
            equality(
                "so blocks write ŷ = Py, and the branch stays centred",
                _recentring(lambda l: h(l) + y(l), i),
                _recentring(h, i) + _recentring(y, i),
                r"P(h + y)_i",
            ),
        ),
    )


@PAPER.claim(
    "jiang2023.compressed",
    source="Eqs. 5, 6",
    statement="A Pre-LN stack equals a Pre-CRMSNorm stack with main branch in R^(d−1).",
    formula=r"\mathrm{CRMS}(x)^2 = \big(\textstyle\sum_i x_i^2 + (\sum_i x_i)^2\big)/d",
    expected=Verdict.HOLDS,
)
def compressed_stack(problem: Problem):
    """Four blocks, ε = 1e-3."""
    params, inputs = stack(problem)
    found = forward(compressed(params), inputs, compressed_norm)
    yield agree("Pre-LN and Pre-CRMSNorm", found, forward(params, inputs, layer_norm))


@compressed_stack.proof()
def compressed_proof() -> Proof:
    """The entry that is left out is minus the sum of the H = d − 1 others."""
    x, a, last = field("x"), field("a"), sp.Symbol("a_d", real=True)
    missing = -total(x, H)
    return Proof(
        r"x_d = -\textstyle\sum_i x_i",
        (
            equality(
                "The mean of all entries is 0, and their mean square is that of CRMSNorm",
                (total(lambda l: (x(l) - (total(x, H) + missing)) ** 2, H) + missing**2) / (H + 1),
                (total(lambda l: x(l) ** 2, H) + total(x, H) ** 2) / (H + 1),
                r"\sigma^2",
            ),
            equality(
                "Readers a of all entries are readers a_i − a_d of those that are left",
                total(lambda l: a(l) * x(l), H) + last * missing,
                total(lambda l: (a(l) - last) * x(l), H),
                r"\langle a, x\rangle",
            ),
        ),
    )


OPTIMIZERS = {"SGD": optax.sgd(0.05), "Adam": optax.adam(0.01)}
WAYS = {
    "the Pre-LN stack": (1.0, 0.0, 0.0),
    "gradient of the weights before recentring": (0.0, 1.0, 0.0),
    "gradient of the recentred weights": (0.0, 0.0, 0.0),
    "projected gradient of the recentred weights": (0.0, 0.0, 1.0),
}
"""Whether the norm centres, whether the stack recentres its weights, and whether it recentres their gradient."""


def trajectories(problem: Problem) -> dict[str, Float[np.ndarray, "T 4 N o"]]:
    """Outputs along training by each optimizer: of the Pre-LN stack, and of the Pre-RMSNorm stack in three ways."""
    params, inputs = stack(problem)
    targets = np.random.default_rng([problem.seed, 3]).normal(size=(len(inputs), 3))
    ways = jnp.asarray(list(WAYS.values()))

    def partly(share, p):
        return jax.tree.map(lambda whole, changed: whole + share * (changed - whole), p, recentred(p))

    def loss(p, way):
        norm = lambda h: rms_norm(h - way[0] * h.mean(1, keepdims=True))
        outputs = forward(partly(way[1], p), inputs, norm)
        return jnp.mean((outputs - targets) ** 2), outputs

    def gradient(p, way):
        found, outputs = jax.grad(loss, has_aux=True)(p, way)
        return partly(way[2], found), outputs

    starts = [params, params, recentred(params), recentred(params)]
    start = jax.tree.map(lambda *arrays: jnp.asarray(np.stack(arrays)), *starts)
    learn, paths = jax.jit(jax.vmap(gradient)), {}
    for name, optimizer in OPTIMIZERS.items():
        update = jax.jit(optimizer.update)
        p, memory, paths[name] = start, optimizer.init(start), []
        with jax.numpy_dtype_promotion("standard"):
            for _ in range(STEPS + 1):
                slope, outputs = learn(p, ways)
                paths[name].append(np.asarray(outputs))
                change, memory = update(slope, memory)
                p = jax.tree.map(jnp.add, p, change)
    return {name: np.stack(path)[1:] for name, path in paths.items()}


@PAPER.claim(
    "jiang2023.training",
    source="Abstract; Section 3.5",
    statement="Pre-LN and Pre-RMSNorm stacks are equivalent for both training and inference.",
    assumptions=("the optimizer updates the weights before recentring, as Section 3.5 says",),
    expected=Verdict.HOLDS,
)
def training(problem: Problem):
    """50 steps of SGD and of Adam, in three ways: as Section 3.5 says, and in two others."""
    for name, path in trajectories(problem).items():
        expected, *found = np.moveaxis(path, 1, 0)
        _, first, second, third = (f"{name}, {way}" for way in WAYS)
        yield agree(first, found[0], expected)
        yield differ(f"in another way: {second}", found[1], expected)
        compare = agree if name == "SGD" else differ
        yield compare(f"in another way: {third}", found[2], expected)


def after_a_step(values) -> tuple[Any, Any]:
    """First outputs after a step that lowers the first output: of layer norm, and of RMSNorm on the updated φ = Pθ."""
    theta, rate, one = values[r"\theta"], values[r"\eta"], sp.ImmutableMatrix([[1]])
    moves = sp.symbols("t:3")
    moved = theta + sp.Matrix(moves)
    slopes = lambda method: sp.Matrix(
        [method.exactly(moved, one)[0].diff(t).subs(dict.fromkeys(moves, 0)) for t in moves]
    )
    stepped = lambda method: method.exactly(theta - rate * slopes(method), one)[0]
    return sp.nsimplify(sp.simplify(stepped(LAYER_NORM))), sp.nsimplify(sp.simplify(stepped(RMS_NORM)))


@training.proof()
def training_proof() -> Proof:
    """Both losses are one function of the weights before recentring; its gradient is P times that of the others."""
    g, v, w = field("g"), field("v"), field("w")
    rate = sp.Symbol("eta", positive=True)
    step = lambda l: w(l) - rate * _recentring(g, l)
    return Proof(
        r"\nabla_\theta(L\circ P) = P\,\nabla_\phi L",
        (
            _one_norm(),
            equality(
                "so the gradient of the weights before recentring is the projected gradient of those after it",
                total(lambda l: g(l) * _recentring(v, l), H),
                total(lambda l: _recentring(g, l) * v(l), H),
                r"\langle\nabla_\phi L, Pv\rangle",
            ),
            equality(
                "and a step of gradient descent with the projected gradient keeps φ = Pθ",
                _recentring(step, i),
                _recentring(w, i) - rate * _recentring(g, i),
                r"P(\theta - \eta Pg)_i",
            ),
            refutation(
                "Updates of the recentred weights are others",
                Counterexample(
                    "jiang2023.training on the recentred weights",
                    r"\mathrm{LN}(\theta - \eta\nabla_\theta) = \mathrm{RMS}(\phi - \eta\nabla_\phi)",
                    {r"\theta": matrix([[1], [0], [-1]]), r"\eta": 1},
                    after_a_step,
                    "First outputs of layer norm (left) and of RMSNorm (right) on the weights θ = φ of mean 0, after a "
                    "step that lowers them.",
                ),
            ),
        ),
        (Assumption("the weights before recentring are updated", r"\theta \mapsto \theta - \eta\nabla_\theta L"),),
    )


def dropout_masks(problem: Problem) -> Float[np.ndarray, "L N d"]:
    """Masks that keep entries with probability 0.8."""
    return np.random.default_rng([problem.seed, 5]).binomial(1, 0.8, (BLOCKS, 16, WIDTH)) / 0.8


@PAPER.claim(
    "jiang2023.dropout",
    source="Section 3",
    statement="Dropout at the end of a branch breaks the equivalence.",
    expected=Verdict.HOLDS,
)
def dropout(problem: Problem):
    """The same masks in both stacks; and a branch that is recentred after its mask."""
    params, inputs = stack(problem)
    masks = dropout_masks(problem)
    masked = lambda y, block: y * masks[block]
    expected = forward(params, inputs, layer_norm, end=masked)
    found = forward(recentred(params), inputs, rms_norm, end=masked)
    yield differ("Pre-LN and Pre-RMSNorm with the same masks", found, expected)
    started = params | {name: recentred(params)[name] for name in ("embedding", "embedding bias")}
    repaired = forward(started, inputs, rms_norm, end=lambda y, block: centred(masked(y, block), 1))
    yield agree("with recentring after the mask instead of before it", repaired, expected)


@dropout.proof()
def dropout_proof() -> Proof:
    """A mask does not commute with P, unless it is one number."""
    y, c = field("y"), sp.Symbol("c", real=True)
    one = sp.ImmutableMatrix([[1]])

    def sides(values):
        mask, branch = sp.diag(*values["M"]), values["y"]
        projector = sp.eye(3) - sp.ones(3, 3) / 3
        return LAYER_NORM.exactly(mask * branch, one)[0], RMS_NORM.exactly(mask * projector * branch, one)[0]

    example = Counterexample(
        "jiang2023.dropout",
        r"\mathrm{LN}(My) = \mathrm{RMS}(MPy)",
        {"M": matrix([[1, 1, 0]]), "y": matrix([[3], [1], [2]])},
        sides,
        "First outputs of layer norm (left) and RMSNorm (right).",
    )
    return Proof(
        r"\mathrm{LN}(My) \ne \mathrm{RMS}(MPy)",
        (
            refutation("A mask of entries does not commute with P", example),
            equality(
                "a mask of whole vectors does", _recentring(lambda l: c * y(l), i), c * _recentring(y, i), r"P(cy)_i"
            ),
        ),
    )


def with_constant_gain(params: Params) -> Params:
    """The parameters with constant gains and biases of mean zero, and a centred embedding."""
    return params | {
        "gain": np.full_like(params["gain"], 1.3),
        "bias": centred(params["bias"], 1),
        "embedding": centred(params["embedding"], 0),
        "embedding bias": centred(params["embedding bias"], 0),
    }


@PAPER.claim(
    "jiang2023.post_ln",
    source="own corollary",
    statement="Post-LN stacks can be converted in the same way.",
    assumptions=("gains are constant, biases have mean 0, and inputs are centred",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def post_ln(problem: Problem):
    """Four blocks under the condition; then with inputs that are not centred, and with other gains."""
    params, inputs = stack(problem)
    fair = with_constant_gain(params)

    def both(p):
        first = forward(p, inputs, layer_norm, post=True)
        return forward(recentred(p), inputs, rms_norm, post=True), first

    role = Role.FAILS_WITHOUT_CONDITION
    yield agree("Post-LN and Post-RMSNorm", *both(fair))
    other = fair | {name: params[name] for name in ("embedding", "embedding bias")}
    yield differ("inputs not centred", *both(other), role=role)
    yield differ("gains not constant", *both(fair | {"gain": params["gain"]}), role=role)


@post_ln.proof("conditional")
def post_ln_proof() -> Proof:
    """What layer norm gives has mean zero under the condition, and what blocks add is recentred."""
    h, y, b, c = field("h"), field("y"), field("b"), sp.Symbol("c", real=True)
    one = sp.ImmutableMatrix([[1]])

    def sides(values):
        first = sp.diag(*values["g"]) * LAYER_NORM.exactly(values["h"], one).T
        return LAYER_NORM.exactly(first, one)[0], RMS_NORM.exactly(first, one)[0]

    return Proof(
        r"h = c\,\mathrm{LN}_\epsilon + b,\ \mathbf{1}^\top b = 0 \Rightarrow \mathbf{1}^\top h = 0",
        (
            equality(
                "The mean of what the norm gives is that of its bias",
                mean(lambda l: c * LAYER_NORM(LAYER, n, l, EPSILON) + b(l), H),
                mean(b, H),
                r"\mu(h)",
            ),
            equality(
                "so, where this is 0, the sum with a recentred block is centred",
                h(i) + _recentring(y, i),
                _recentring(lambda l: h(l) + y(l), i) + mean(h, H),
                r"h_i + \hat y_i",
            ),
            _one_norm(),
        ),
        (
            Assumption(
                "constant gain",
                r"g = c\mathbf{1}",
                Counterexample(
                    "jiang2023.post_ln with another gain",
                    r"\mathrm{LN}(g\odot\mathrm{LN}(h)) = \mathrm{RMS}(g\odot\mathrm{LN}(h))",
                    {"g": matrix([[2, 1, 1]]), "h": matrix([[1], [0], [-1]])},
                    sides,
                    "First outputs of layer norm (left) and RMSNorm (right) after a block that adds nothing.",
                ),
            ),
        ),
    )
