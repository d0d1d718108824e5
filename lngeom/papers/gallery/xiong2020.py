"""Xiong et al. (2020), *On Layer Normalization in the Transformer Architecture*, at initialization.

The paper's setting: W_Q = W_K = 0, so attention is the mean over tokens; ReLU sub-layers of width d; all weights are
independent N(0, 1/d); gains are 1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Array, Float

from lngeom.claims import Paper, Problem, Role, Verdict, agree, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.methods import AbstractNormalizer, LayerNorm, RMSNorm
from lngeom.papers.lab import (
    at_least,
    at_most,
    exponent_of,
    layer_norm as normalized,
    mean_is,
    relu,
    standardized,
    unchanged,
)
from lngeom.symbolic.jacobian import LAYER, along
from lngeom.symbolic.layers import LAYER_NORM, RMS_NORM, Layer
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded
from lngeom.symbolic.sums import H, N, field, i, mean, n, total

PAPER = Paper(
    "xiong2020",
    "On Layer Normalization in the Transformer Architecture",
    (
        "Ruibin Xiong",
        "Yunchang Yang",
        "Di He",
        "Kai Zheng",
        "Shuxin Zheng",
        "Chen Xing",
        "Huishuai Zhang",
        "Yanyan Lan",
        "Liwei Wang",
        "Tie-Yan Liu",
    ),
    2020,
    "2002.04745",
    "Gradients of Post-LN do not decay at the rate of its norms: the factor 3/2 of a feed-forward sub-layer cancels "
    "the factor 2/3 of its norm.",
)
WIDTH, NETS = 32, 20
"""Width of the stacks, and number of random networks."""
GAUSSIAN = Assumption("independent weights of mean 0 and variance 1/H, symmetric", r"E[W_{ik}W_{il}] = \delta_{kl}/H")


def _half() -> Step:
    x = sp.Symbol("x", real=True)
    positive = lambda value: (value + sp.Abs(value)) / 2
    return expanded(
        "ReLU(x)² + ReLU(−x)² = x², so half of the second moment is left",
        r"(x)_+^2 + (-x)_+^2 = x^2",
        positive(x) ** 2 + positive(-x) ** 2 - x**2,
    )


def _second_moment() -> Step:
    h = field("h")
    moments = lambda k, l: sp.KroneckerDelta(k, l) / H
    found = total(lambda _: total(lambda k: total(lambda l: moments(k, l) * h(k) * h(l), H), H), H)
    return equality("A matrix keeps second moments", found, total(lambda k: h(k) ** 2, H), r"E\|Wh\|^2")


@PAPER.claim(
    "xiong2020.lemma_1",
    source="Lemma 1",
    statement="For Gaussian X of d independent entries of variance σ², E‖ReLU(X)‖² = σ²d/2.",
    expected=Verdict.HOLDS,
)
def lemma_1(problem: Problem):
    """d = 10, σ = 1.3."""
    X = 1.3 * np.random.default_rng([problem.seed, 2002, 1]).normal(size=(50_000, 10))
    yield mean_is("‖ReLU(X)‖² and σ²d/2", np.sum(relu(X) ** 2, 1), 1.3**2 * 10 / 2)


@lemma_1.proof()
def lemma_1_proof() -> Proof:
    """By symmetry."""
    variance = sp.Symbol("sigma", positive=True) ** 2
    return Proof(
        r"E\|\mathrm{ReLU}(X)\|^2 = \sigma^2 H/2",
        (
            _half(),
            equality("Summed over the entries", total(lambda _: variance / 2, H), variance * H / 2),
        ),
        (Assumption("X is symmetric", r"X \sim -X"),),
    )


def sublayer(x: Float[np.ndarray, "K d"], generator: np.random.Generator) -> Float[np.ndarray, "K d"]:
    """X + W² ReLU(W¹ x), with weights of its own for each row."""
    rows, width = x.shape
    first, second = generator.normal(0.0, width**-0.5, (2, rows, width, width))
    inner = relu(np.einsum("kij,kj->ki", first, x))
    return x + np.einsum("kij,kj->ki", second, inner)


@PAPER.claim(
    "xiong2020.lemma_2_post",
    source="Lemma 2",
    statement="In Post-LN the sum of a feed-forward sub-layer and its input has E‖x‖² = 3d/2.",
    expected=Verdict.HOLDS,
)
def lemma_2_post(problem: Problem):
    """d = 24, a normalized input."""
    generator = np.random.default_rng([problem.seed, 2002, 2])
    x = normalized(generator.normal(size=(4000, 24)))
    yield mean_is("‖x + W²ReLU(W¹x)‖²/d and 3/2", np.mean(sublayer(x, generator) ** 2, 1), 1.5)


@lemma_2_post.proof()
def lemma_2_post_proof() -> Proof:
    """Exact for every width: the expectation over W², then Lemma 1."""
    return Proof(
        r"E\|x + W^2\mathrm{ReLU}(W^1x)\|^2 = \tfrac32\|x\|^2 = \tfrac32 H",
        (
            _second_moment(),
            _half(),
            expanded(
                "so, as E W² = 0, 1 + 1/2 of ‖x‖² is left",
                r"1 + \tfrac12",
                sp.Rational(1, 1) + sp.S.Half - sp.Rational(3, 2),
            ),
            equality("and ‖x‖² = H after layer norm", total(lambda l: LAYER_NORM(LAYER, n, l) ** 2, H), H, r"\|x\|^2"),
        ),
        (GAUSSIAN,),
    )


def weights(generator: np.random.Generator, *shape: int) -> Float[np.ndarray, "..."]:
    """Gaussian weights of variance 1/d."""
    return generator.normal(0.0, shape[-1] ** -0.5, shape)


def pre_norms(problem: Problem, depth: int = 24, nets: int = 100) -> Float[np.ndarray, "L K"]:
    """‖x_l‖²/d of the tokens of Pre-LN stacks at each depth, the mean over 8 tokens."""
    generator = np.random.default_rng([problem.seed, 2002, 3])
    width = 32
    x, found = normalized(generator.normal(size=(nets, 8, width))), []
    for _ in range(depth):
        value, first, second = (weights(generator, nets, width, width) for _ in range(3))
        x = x + normalized(x).mean(1, keepdims=True) @ value
        x = x + relu(normalized(x) @ first) @ second
        found.append(np.mean(x**2, (1, 2)))
    return np.array(found)


@PAPER.claim(
    "xiong2020.lemma_2_pre",
    source="Lemma 2",
    statement="In Pre-LN (1 + l/2)d ≤ E‖x_l‖² ≤ (1 + 3l/2)d.",
    assumptions=("E‖x_0‖² = d",),
    expected=Verdict.HOLDS,
)
def lemma_2_pre(problem: Problem):
    """100 stacks of 24 layers, 8 tokens, d = 32."""
    found = pre_norms(problem)
    layers = np.arange(1, len(found) + 1)
    errors = 4 * found.std(1, ddof=1) / found.shape[1] ** 0.5
    yield at_most(
        "E‖x_l‖²/d less four standard errors, over 1 + 3l/2", (found.mean(1) - errors) / (1 + 1.5 * layers), 1
    )
    yield at_least(
        "E‖x_l‖²/d plus four standard errors, over 1 + l/2", (found.mean(1) + errors) / (1 + 0.5 * layers), 1
    )


@lemma_2_pre.proof()
def lemma_2_pre_proof() -> Proof:
    """A layer adds d/2 for its ReLU and ‖mean of normalized tokens‖², which is between 0 and d, for its attention."""
    v = field("v")
    center = lambda l: mean(lambda t: v(t, l), N)
    spread = mean(lambda t: total(lambda l: (v(t, l) - center(l)) ** 2, H), N)
    return Proof(
        r"E\|x_{l+1}\|^2 - E\|x_l\|^2 = E\|\bar v\|^2 + H/2,\quad 0 \le \|\bar v\|^2 \le H",
        (
            _second_moment(),
            equality(
                "The mean of tokens of squared norm H has a squared norm between 0 and H",
                total(lambda l: center(l) ** 2, H),
                mean(lambda t: total(lambda l: v(t, l) ** 2, H), N) - spread,
                r"\|\bar v\|^2",
            ),
            equality(
                "which is the squared norm of normalized tokens", total(lambda l: LAYER_NORM(LAYER, n, l) ** 2, H), H
            ),
            _half(),
        ),
        (GAUSSIAN,),
    )


def jacobian_of(norm: AbstractNormalizer) -> Callable[[Float[Array, " d"]], Float[Array, "d d"]]:
    """The Jacobian of a norm of one vector, by automatic differentiation."""
    return jax.jit(jax.jacfwd(lambda x: norm(jnp.eye(len(x)), x[None, :])[0]))


@PAPER.claim(
    "xiong2020.lemma_3",
    source="Lemma 3",
    statement="The Jacobian of layer norm has spectral norm O(√d/‖x‖) for x in R^d.",
    formula=r"\|J_{LN}(x)\|_2 = O(\sqrt d/\|x\|_2)",
    assumptions=(
        "the entries of x are not nearly equal, ‖Px‖ ≥ c‖x‖, as for the Gaussian states that the paper uses it for",
        "exactly: ‖J_LN(x)‖₂ = √d/‖Px‖₂ for d ≥ 3",
    ),
    expected=Verdict.CONDITIONAL,
    erratum=Erratum(Consequence.SENTENCE, "The Jacobian of layer norm has norm √d/‖Px‖, which √d/‖x‖ does not bound."),
    context=Context(
        sentence="[‖J_LN(x)‖₂ = O(√d/‖x‖₂) for x ∈ R^d.]",
        before="…",
        after="…",
        readings=(
            Reading("x is a state of the network at initialization, as where the lemma is used.", Verdict.HOLDS),
            Reading("x is any vector, and the constant does not depend on it.", Verdict.REFUTED),
        ),
        verdict="Of Gaussian states ‖Px‖ and ‖x‖ are close. Of vectors with nearly equal entries ‖x‖/‖Px‖ has no "
        "bound. The Jacobian of RMSNorm has norm √d/‖x‖₂ for every x.",
    ),
)
def lemma_3(problem: Problem):
    """Gaussian states, and vectors 1 + tξ of 8 entries, by singular values of the Jacobian."""
    generator = np.random.default_rng([problem.seed, 2002, 4])
    draw = generator.normal(size=8)
    by_layer_norm, by_rms_norm = jacobian_of(LayerNorm()), jacobian_of(RMSNorm())
    states = generator.normal(size=(20, 32))
    found = [np.linalg.norm(by_layer_norm(x), 2) * np.linalg.norm(x) / 32**0.5 for x in states]
    yield at_most("20 Gaussian states, d = 32: ‖J‖₂ over √d/‖x‖", found, 1.5)
    for t in (1.0, 1e-1, 1e-2):
        x = 1 + t * draw
        spectral = np.linalg.norm(by_layer_norm(x), 2)
        centred = np.linalg.norm(x - x.mean())
        whole = np.linalg.norm(x)
        yield agree(f"‖J‖₂ and √d/‖Px‖, t = {t:g}", spectral, 8**0.5 / centred)
        rms = np.linalg.norm(by_rms_norm(x), 2)
        yield agree(f"RMSNorm: ‖J‖₂ and √d/‖x‖, t = {t:g}", rms, 8**0.5 / whole)
        if t < 0.1:
            role = Role.FAILS_WITHOUT_CONDITION
            yield at_least(f"‖J‖₂ over √d/‖x‖, t = {t:g}", spectral * whole / 8**0.5, 30, role)


def squared_excess(values) -> tuple[sp.Expr, sp.Integer]:
    """How far (‖J‖‖x‖)²/d is above C², for J of layer norm at x, by its exact largest singular value; and 0."""
    x, C = values["x"], values["C"]
    moves = sp.symbols(f"t:{len(x)}")
    outputs = LAYER_NORM.exactly(sp.Matrix(x) + sp.Matrix(moves), [[1]])
    slopes = sp.Matrix(outputs.tolist()[0]).jacobian(moves).subs(dict.fromkeys(moves, 0))
    largest = max((slopes.T * slopes).applyfunc(sp.nsimplify).eigenvals())
    return sp.Max(largest * sum(v**2 for v in x) / len(x) - C**2, 0), sp.S.Zero


@lemma_3.proof("conditional")
def lemma_3_proof() -> Proof:
    """The exact norm, and an instance for C = 1000."""
    V, t, C = field("V"), sp.Symbol("t", positive=True), sp.Symbol("C", positive=True)
    change = lambda l: Layer(V, LAYER.X).a(n, l)
    sigma, rms = (sp.sqrt(method.square(LAYER)) for method in (LAYER_NORM, RMS_NORM))
    out = lambda method: lambda l: method(LAYER, n, l)

    def derivative(method, kept):
        value = out(method)
        return kept - value(i) * mean(lambda l: value(l) * change(l), H)

    v, w = field("v"), field("w")
    inner = mean(lambda l: w(l) * v(l), H)
    m, p, q, s = sp.symbols("m p q s")
    projected = lambda l: v(l) - mean(v, H) - w(l) * inner
    nearly_equal = Counterexample(
        "xiong2020.lemma_3 where entries are nearly equal",
        r"\|J_{LN}(x)\|_2 \le C\sqrt d/\|x\|_2",
        {"x": sp.ImmutableMatrix([1 + sp.Rational(1, 2000), 1, 1 - sp.Rational(1, 2000)]), "C": 1000},
        squared_excess,
        "(‖J‖‖x‖)²/d − C², where it is positive (left), and 0 (right).",
    )
    return Proof(
        r"\|J_{LN}(x)\|_2 = \sqrt H/\|Px\|_2,\quad \|J_{RMS}(x)\|_2 = \sqrt H/\|x\|_2",
        (
            equality(
                "Layer norm: the derivative is a projection over σ = ‖Px‖/√H",
                along(LAYER_NORM, V),
                derivative(LAYER_NORM, change(i) - mean(change, H)) / sigma,
                r"d\,\mathrm{LN}_{ni}[v]",
            ),
            equality(
                "whose length is at most ‖v‖, and is ‖v‖ for v orthogonal to 1 and n, which exist for H ≥ 3",
                total(lambda l: projected(l) ** 2, H),
                total(lambda l: v(l) ** 2, H) - H * (m**2 + (2 - s) * q**2 - 2 * m * p * q),
                r"\|v - m\mathbf{1} - qn\|^2",
                {
                    "m": mean(v, H),
                    "p": mean(w, H),
                    "q": inner,
                    "s": mean(lambda l: w(l) ** 2, H),
                },
            ),
            equality("since n has mean p = 0", mean(lambda l: out(LAYER_NORM)(l), H), 0, "p"),
            equality("and mean square s = 1", mean(lambda l: out(LAYER_NORM)(l) ** 2, H), 1, "s"),
            equality(
                "RMSNorm: the same without the mean, over rms = ‖x‖/√H",
                along(RMS_NORM, V),
                derivative(RMS_NORM, change(i)) / rms,
                r"d\,\mathrm{RMS}_{ni}[v]",
            ),
            expanded(
                "For every C there is an x: at (1 + t, 1, 1 − t) with t = 1/C, ‖x‖²/‖Px‖² = C² + C²/2 + 1",
                r"\|x\|^2/\|Px\|^2 = (3 + 2t^2)/(2t^2)",
                ((3 + 2 * t**2) / (2 * t**2)).subs(t, 1 / C) - C**2 - C**2 / 2 - 1,
            ),
        ),
        (Assumption("the entries of x are not nearly equal", r"\|Px\| \ge c\,\|x\|", nearly_equal),),
    )


def gradients(problem: Problem, arrangement: str, depth: int, tokens: int = 8) -> Float[np.ndarray, " L"]:
    """Norms of the gradients by W² of every layer of random stacks, by backpropagation of the cross-entropy.

    Args:
        problem: gives the seed.
        arrangement: "post", "pre", "pre without a final norm" or "pre, scaled" (branches over √L).
        depth: L.
        tokens: number of tokens.

    Returns:
        Root mean square over `NETS` networks, one value a layer.
    """
    generator = np.random.default_rng([problem.seed, 2002, 5])
    before, after = (unchanged, standardized) if arrangement == "post" else (standardized, unchanged)
    final = standardized if arrangement in {"pre", "pre, scaled"} else unchanged
    size = depth**-0.5 if arrangement == "pre, scaled" else 1.0
    embedding = weights(generator, NETS, WIDTH, WIDTH)
    labels = np.eye(WIDTH)[generator.integers(0, WIDTH, (NETS, tokens))]
    x, tape = normalized(generator.normal(size=(NETS, tokens, WIDTH))), []
    for _ in range(depth):
        value, first, second = weights(generator, 3, NETS, WIDTH, WIDTH)
        read, pull_read = before(x)
        x, pull_middle = after(x + size * read.mean(1, keepdims=True) @ value)
        read, pull_second = before(x)
        inner = read @ first
        x, pull_end = after(x + size * relu(inner) @ second)
        tape.append((value, first, second, inner, pull_read, pull_middle, pull_second, pull_end))
    x, pull = final(x)
    scores = np.exp(x @ embedding)
    c = pull((scores / scores.sum(2, keepdims=True) - labels) @ embedding.swapaxes(1, 2) / tokens)
    found = []
    for value, first, second, inner, pull_read, pull_middle, pull_second, pull_end in reversed(tape):
        c = pull_end(c)
        found.append(np.mean(np.sum((size * relu(inner).swapaxes(1, 2) @ c) ** 2, (1, 2))) ** 0.5)
        active = size * (c @ second.swapaxes(1, 2)) * (inner > 0)
        c = pull_middle(c + pull_second(active @ first.swapaxes(1, 2)))
        shared = size * c.mean(1, keepdims=True) @ value.swapaxes(1, 2)
        c = c + pull_read(np.broadcast_to(shared, c.shape))
    return np.array(found[::-1])


DEPTHS = (4, 8, 16, 32, 64)
PRE = "pre"
"""The arrangement that stands for Pre-LN."""


@PAPER.claim(
    "xiong2020.theorem_1",
    source="Theorem 1",
    statement="The gradient of the last feed-forward sub-layer is O(d√ln d) for Post-LN, whatever the depth L, and "
    "O(d√(ln d/L)) for Pre-LN.",
    expected=Verdict.HOLDS,
    why_numeric="an exponent in the depth of random networks",
)
def theorem_1(problem: Problem):
    """Exponents in L from 4 to 64: root mean squares over 20 networks of 8 tokens, d = 32, cross-entropy."""
    for name, arrangement, expected in (("Post-LN", "post", 0.0), ("Pre-LN", PRE, -0.5)):
        last = [gradients(problem, arrangement, depth)[-1] for depth in DEPTHS]
        exponent = exponent_of(DEPTHS, last)
        what = f"{name}: exponent in L from 4 to 64, {exponent:.3f}, and {expected:g}"
        yield vanishes(what, exponent - expected, scale=1.0, tol=0.1)


def backward(delta: Float[np.ndarray, "K d"], generator: np.random.Generator) -> Float[np.ndarray, "K d"]:
    """(I + W²DW¹)ᵀδ with weights of its own for each row, D that of a normalized Gaussian input."""
    rows, width = delta.shape
    x = normalized(generator.normal(size=(rows, width)))
    first, second = generator.normal(0.0, width**-0.5, (2, rows, width, width))
    active = np.einsum("kij,kj->ki", first, x) > 0
    return delta + np.einsum("kij,ki->kj", first, active * np.einsum("kij,ki->kj", second, delta))


PRINTED = float(np.log(2 / 3) / 2)
"""The printed decay of the logarithm of a gradient, a layer."""


@PAPER.claim(
    "xiong2020.post_decay",
    source="Appendix F",
    statement="Gradients of Post-LN contain a factor (2/3)^((L−l)/2), and so likely decay towards the input.",
    assumptions=(
        "of the norms alone: a feed-forward sub-layer with its residual path has 3/2 to their 2/3, so that the whole "
        "gradient does not decay",
    ),
    expected=Verdict.CONDITIONAL,
    erratum=Erratum(
        Consequence.SENTENCE,
        "The factor 3/2 of a feed-forward sub-layer cancels the 2/3 of its norm: gradients of Post-LN do not decay at "
        "the rate of the norms.",
    ),
    context=Context(
        sentence="[The gradient of layer l contains a factor (2/3)^((L−l)/2).]",
        before="[The appendix calls the analysis “preliminary”, and the main text the decay “likely”.]",
        after="…",
        readings=(
            Reading("The factor is the share of the norms, from which the decay is only guessed.", Verdict.HOLDS),
            Reading(
                "Expected gradients fall by (2/3)^(1/2) a layer, at initialization in the paper's setting.",
                Verdict.REFUTED,
            ),
        ),
        verdict="Each norm has the factor 2/3, since its input has the mean square 3/2. But the residual path and the "
        "branch together have the factor 3/2, by the same argument as in Lemma 2.",
    ),
)
def post_decay(problem: Problem):
    """A norm and a sub-layer by 4000 draws; and stacks of 32 layers, of one token and of eight."""
    generator = np.random.default_rng([problem.seed, 2002, 6])
    width = 24
    delta = generator.normal(size=(4000, width))
    _, pull = standardized(1.5**0.5 * normalized(generator.normal(size=(4000, width))))
    gain = np.sum(pull(delta) ** 2, 1) / np.sum(delta**2, 1) / (1 - 2 / width)
    yield mean_is("a norm whose input has σ² = 3/2: ‖Jᵀδ‖²/(1 − 2/d)‖δ‖² and 2/3", gain, 2 / 3)
    role = Role.FAILS_WITHOUT_CONDITION
    gain = np.sum(backward(delta, generator) ** 2, 1) / np.sum(delta**2, 1)
    yield mean_is("‖(I + W²DW¹)ᵀδ‖²/‖δ‖² and 3/2", gain, 1.5, role)
    for tokens in (1, 8):
        found = gradients(problem, "post", 32, tokens)
        slope = np.polyfit(np.arange(32), np.log(found), 1)[0]
        what = f"tokens: {tokens}, |slope of log ‖∇‖| a layer over the printed one"
        yield at_most(what, abs(slope / PRINTED), 0.25, role)
        what = f"tokens: {tokens}, layer 1 over layer 32, where (2/3)^15.5 = 0.0019"
        yield at_least(what, found[0] / found[-1], 0.3, role)


@post_decay.proof("conditional")
def post_decay_proof() -> Proof:
    """The share of a norm; expected squared norms after one sub-layer and its norm."""
    g, moment = field("g"), field("m")
    s = sp.Symbol("s", real=True)
    moments = lambda k, l: sp.KroneckerDelta(k, l) / H

    def sides(values):
        delta = values[r"\delta"]
        squared, width = sum(v**2 for v in delta), len(delta)
        branch = sum(sp.Rational(1, 2 * width) * squared / width for _ in range(width) for _ in range(width))
        return (squared + branch) / values[r"\sigma^2"], sp.Rational(2, 3) * squared

    change = lambda l: Layer(field("V"), LAYER.X).a(n, l)
    out = lambda l: LAYER_NORM(LAYER, n, l)
    whole = Counterexample(
        "xiong2020.post_decay of the whole gradient",
        r"E\|J^\top\delta\|^2 = \tfrac23\|\delta\|^2",
        {r"\delta": sp.ImmutableMatrix([1, 2, 2]), r"\sigma^2": sp.Rational(3, 2)},
        sides,
        "Expected squared gradient before a feed-forward sub-layer and its norm (left), and the printed one (right).",
    )
    return Proof(
        r"E\|(I + W^2DW^1)^\top\delta\|^2 = \tfrac32\|\delta\|^2,\quad \tfrac32\cdot\tfrac23 = 1",
        (
            equality(
                "A norm's pullback projects and divides by σ: at σ² = 3/2 its share is 2/3, as printed",
                along(LAYER_NORM, field("V")),
                (change(i) - mean(change, H) - out(i) * mean(lambda l: out(l) * change(l), H))
                / sp.sqrt(LAYER_NORM.square(LAYER)),
                r"d\,\mathrm{LN}_{ni}[v]",
            ),
            equality(
                "An entry of W²ᵀδ has second moment ‖δ‖²/H",
                total(lambda k: total(lambda l: moments(k, l) * g(k) * g(l), H), H),
                total(lambda k: g(k) ** 2, H) / H,
                r"E(W^{2\top}\delta)_k^2",
            ),
            expanded(
                "Half of the weights are active: those of W¹ or those of −W¹",
                r"D(W) + D(-W) = 1",
                (1 + s) / 2 + (1 - s) / 2 - 1,
            ),
            equality(
                "so W¹ᵀD halves second moments m_k",
                total(lambda _: total(lambda k: moment(k) / (2 * H), H), H),
                total(moment, H) / 2,
                r"E\|W^{1\top}Dv\|^2",
            ),
            expanded(
                "With the residual path 1 + 1/2, which cancels 1/σ² = 2/3",
                r"(1 + \tfrac12)\cdot\tfrac23 = 1",
                (1 + sp.S.Half) * sp.Rational(2, 3) - 1,
            ),
        ),
        (GAUSSIAN, Assumption("of the norms alone", r"\prod J_{LN}", whole)),
    )


@PAPER.claim(
    "xiong2020.pre_flat",
    source="main text and Appendix F",
    statement="Gradient norms of Pre-LN are independent of the layer l when l is large.",
    assumptions=("l is a fixed share of L: gradients follow a power of L/l",),
    expected=Verdict.CONDITIONAL,
    why_numeric="gradients of random networks",
)
def pre_flat(problem: Problem):
    """Gradients of the middle, and of the first layer, over that of the last, at depth 32 and 64."""
    for depth in (32, 64):
        found = gradients(problem, PRE, depth)
        middle, first = found[depth // 2 - 1] / found[-1], found[0] / found[-1]
        yield at_most(f"layer L/2 over layer L = {depth}", middle, 2)
        yield at_least(f"layer 1 over layer L = {depth}", first, 3, Role.FAILS_WITHOUT_CONDITION)
