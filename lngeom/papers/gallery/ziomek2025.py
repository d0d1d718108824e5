"""Ziomek, Whittle and Osborne (2025), *Just One Layer Norm Guarantees Stable Extrapolation*.

Networks of two hidden ReLU layers without biases, in the scaling of the neural tangent kernel
Θ(x, x') = ⟨∂f(x), ∂f(x')⟩, with a norm of the input, of the first or of the last hidden layer, or with none.
"""

from typing import NamedTuple

import numpy as np
import sympy as sp
from jaxtyping import Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree
from lngeom.papers.lab import at_least, at_most, standardized, unchanged
from lngeom.symbolic.jacobian import LAYER, along
from lngeom.symbolic.layers import LAYER_NORM, Layer
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded
from lngeom.symbolic.sums import D, H, N, field, mean, n, total

PAPER = Paper(
    "ziomek2025",
    "Just One Layer Norm Guarantees Stable Extrapolation",
    ("Juliusz Ziomek", "George Whittle", "Michael A. Osborne"),
    2025,
    "2505.14512",
    "At finite width the kernel of a network with a norm of its first layer is bounded only if the centred weights of "
    "that layer are injective, so that it has more units than inputs.",
)
WIDTH, INPUTS = 200, 5
SCALES = (1.0, 1e2, 1e4)
NORMED = ("input", "first", "last")
"""Places of the one norm."""
NONE, LAST, SKIP = "none", "last", "last, with a linear path around it"


class Weights(NamedTuple):
    """Weights of a network.

    Attributes:
        first: [H D].
        second: [H H].
        readout: [H].
        path: of the linear path around the norm.
    """

    first: Float[np.ndarray, "H D"]
    second: Float[np.ndarray, "H H"]
    readout: Float[np.ndarray, " H"]
    path: Float[np.ndarray, " D"]


def random_weights(problem: Problem, width: int = WIDTH, inputs: int = INPUTS) -> Weights:
    """Standard Gaussian weights."""
    draw = np.random.default_rng([problem.seed, 2505, width, inputs]).normal
    return Weights(draw(size=(width, inputs)), draw(size=(width, width)), draw(size=width), draw(size=inputs))


def directions(problem: Problem, count: int, inputs: int = INPUTS) -> Float[np.ndarray, "N D"]:
    """Inputs of length √D."""
    x = np.random.default_rng([problem.seed, 2505, 1]).normal(size=(count, inputs))
    return x * (inputs / np.sum(x**2, 1, keepdims=True)) ** 0.5


class Network(NamedTuple):
    """A network at some inputs.

    Attributes:
        outputs: f.
        last: what the readout reads.
        pairs: of each layer, what it reads and the gradient by its summed inputs: ∂f/∂W is their outer product.
    """

    outputs: Float[np.ndarray, " N"]
    last: Float[np.ndarray, "N H"]
    pairs: list[tuple[np.ndarray, np.ndarray]]


def network(w: Weights, x: Float[np.ndarray, "N D"], place: str) -> Network:
    """Outputs and gradients.

    Args:
        w: weights.
        x: inputs.
        place: of the norm.

    Returns:
        The network at these inputs.
    """
    at = lambda here: standardized if here == place.partition(",")[0] else unchanged
    width, inputs = w.first.shape
    read, _ = at("input")(x)
    first, pull_first = at("first")(read @ w.first.T / inputs**0.5)
    hidden = np.maximum(first, 0)
    second, pull_second = at("last")(hidden @ w.second.T / width**0.5)
    last = np.maximum(second, 0)
    by_second = pull_second(w.readout[None, :] / width**0.5 * (second > 0))
    by_first = pull_first(by_second @ w.second / width**0.5 * (first > 0))
    pairs = [
        (last / width**0.5, np.ones((len(x), 1))),
        (hidden / width**0.5, by_second),
        (read / inputs**0.5, by_first),
    ]
    outputs = last @ w.readout / width**0.5
    if place == SKIP:
        pairs.append((x / inputs**0.5, np.ones((len(x), 1))))
        outputs = outputs + x @ w.path / inputs**0.5
    return Network(outputs, last, pairs)


def kernel(a: Network, b: Network) -> Float[np.ndarray, "N M"]:
    """The neural tangent kernel Θ of two lists of inputs."""
    products = [(u @ v.T) * (c @ d.T) for (u, c), (v, d) in zip(a.pairs, b.pairs, strict=True)]
    return np.sum(products, 0)


def variances(w: Weights, x: Float[np.ndarray, "N D"], place: str) -> Float[np.ndarray, " N"]:
    """Θ(x, x)."""
    return sum(np.sum(u**2, 1) * np.sum(c**2, 1) for u, c in network(w, x, place).pairs)


def _positive() -> Step:
    a, t = sp.Symbol("a", real=True), sp.Symbol("t", positive=True)
    relu = lambda value: (value + sp.Abs(value)) / 2
    return expanded("ReLU is positively homogeneous", r"(ta)_+ = t\,(a)_+", relu(t * a) - t * relu(a))


@PAPER.claim(
    "ziomek2025.unbounded",
    source="proof of Theorem 3.1",
    statement="Without layer norm Θ(x, x) grows without bound as the input is scaled.",
    formula=r"\Theta(tx, tx) = t^2\,\Theta(x, x)",
    assumptions=("no biases; with biases for large t",),
    expected=Verdict.HOLDS,
)
def unbounded(problem: Problem):
    """Twenty inputs at two larger scales."""
    w, x = random_weights(problem), directions(problem, 20)
    start = variances(w, x, NONE)
    for t in SCALES[1:]:
        yield agree(f"Θ(tx, tx)/t² and Θ(x, x), t = {t:g}", variances(w, t * x, NONE) / t**2, start)


@unbounded.proof()
def unbounded_proof() -> Proof:
    """What layers read is homogeneous of degree 1 in x, gradients by summed inputs of degree 0."""
    h, c, t = field("h"), field("c"), sp.Symbol("t", positive=True)
    theta = lambda factor: total(lambda d: (factor * h(d)) ** 2, D) * total(lambda l: c(l) ** 2, H)
    return Proof(
        r"\Theta(tx, tx) = t^2\,\Theta(x, x)",
        (
            _positive(),
            equality("so each layer's ‖h‖²‖∂f/∂a‖² has degree 2", theta(t), t**2 * theta(1), r"\Theta_l(tx, tx)"),
        ),
        (Assumption("no biases", r"f(tx) = t\,f(x),\ t > 0"),),
    )


def weakest_path(
    problem: Problem, width: int, inputs: int, distances: tuple[float, ...] = (1e-1, 1e-3, 1e-5)
) -> tuple[Weights, Float[np.ndarray, "K D"]]:
    """Weights, and inputs that approach the direction of the smallest singular value of PW¹."""
    w = random_weights(problem, width, inputs)
    centred = w.first - w.first.mean(0, keepdims=True)
    weakest = np.linalg.svd(centred)[2][-1]
    across = directions(problem, 1, inputs)[0]
    return w, np.stack([weakest + t * across for t in distances])


INJECTIVE, SINGULAR = (6, 5), (5, 5)
"""Units of the first layer and inputs: more units than inputs, and as many."""


@PAPER.claim(
    "ziomek2025.bounded",
    source="Theorem 3.2: “fully-connected layers, and at least one Layer Norm anywhere in the network”",
    statement="With one layer norm, anywhere in the network, Θ(x, x) is bounded.",
    assumptions=(
        "wide networks: the paper's are infinitely wide",
        "fully-connected layers, each fed by the one before",
    ),
    expected=Verdict.HOLDS,
)
def bounded(problem: Problem):
    """200 units, 5 inputs: Θ at three scales with the norm at three places, and in 300 directions."""
    w, x = random_weights(problem), directions(problem, 20)
    for place in NORMED:
        found = [variances(w, t * x, place) for t in SCALES]
        for t, other in zip(SCALES[1:], found[1:], strict=True):
            yield agree(f"norm: {place}; Θ(tx, tx) and Θ(x, x), t = {t:g}", other, found[0])
        every = variances(w, directions(problem, 300), place)
        yield at_most(
            f"norm: {place}; largest Θ(x, x) of 300 directions over their mean", every.max() / every.mean(), 3
        )


def homogeneity_steps() -> tuple[Step, ...]:
    """Outputs of a norm, and their derivative by the weights, do not depend on the scale of x."""
    t, V = sp.Symbol("t", positive=True), field("V")
    scaled = Layer(LAYER.W, lambda m, d: t * LAYER.X(m, d))
    s = sp.Dummy("s", real=True)
    slope = lambda layer: LAYER_NORM(layer.towards(V, s)).diff(s).subs(s, 0)
    return (
        equality(
            "Outputs of the norm do not depend on the scale of x", LAYER_NORM(scaled), LAYER_NORM(LAYER), r"n_i(tx)"
        ),
        equality(
            "nor does the derivative J by its weights",
            slope(scaled),
            sp.Symbol("J"),
            r"dn_i[V](tx)",
            {"J": slope(LAYER)},
        ),
    )


@bounded.proof()
def bounded_proof() -> Proof:
    """Θ(x, x) is of degree 0 in x, so that its values are those on the sphere."""
    return Proof(
        r"\Theta(tx, tx) = \Theta(x, x)",
        (_positive(), *homogeneity_steps()),
        (
            Assumption(
                "infinitely wide: Θ(x, x) does not depend on the direction of x", r"\Theta(x, x) = \theta(\|x\|)"
            ),
            Assumption(
                "every path from the input to the output passes the norm", r"f = f_2 \circ \mathrm{LN} \circ f_1"
            ),
        ),
    )


@PAPER.claim(
    "ziomek2025.finite_width",
    source="beyond the paper",
    statement="At finite width Θ(x, x) of a network with a norm after its first layer is bounded.",
    assumptions=("PW¹ has rank D, so H > D",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def finite_width(problem: Problem):
    """Towards the weakest direction of PW¹, for more units than inputs and for as many."""
    w, path = weakest_path(problem, *INJECTIVE)
    summed = path @ w.first.T
    smallest = np.linalg.svd(w.first - w.first.mean(0, keepdims=True), compute_uv=False)[-1]
    reached = np.linalg.norm(path, axis=1) / summed.std(1)
    yield at_most("H = 6, D = 5: ‖x‖/σ(W¹x), against √H/σ_min(PW¹)", reached, INJECTIVE[0] ** 0.5 / smallest)
    found = variances(w, path, "first")
    yield at_most("H = 6, D = 5: Θ at distance 1e-5 over Θ at 1e-1", found[2] / found[0], 100)
    w, path = weakest_path(problem, *SINGULAR)
    found = variances(w, path, "first")
    role = Role.FAILS_WITHOUT_CONDITION
    yield at_least("H = D = 5: Θ at distance 1e-5 over Θ at 1e-1", found[2] / found[0], 1e4, role)


def inverse_scale_excess(values) -> tuple[sp.Expr, sp.Integer]:
    """How far ‖x‖²/σ² is above C², for summed inputs Wx; and 0."""
    a, x = values["W"] * values["x"], values["x"]
    centred = [v - sum(a) / len(a) for v in a]
    ratio = sum(v**2 for v in x) * len(a) / sum(v**2 for v in centred)
    return sp.Max(ratio - values["C"] ** 2, 0), sp.S.Zero


@finite_width.proof("conditional")
def finite_width_proof() -> Proof:
    """The derivative of a normalized layer by its weights is of degree 0 in x, and bounded by ‖x‖/σ."""
    V = field("V")
    change = lambda l: Layer(V, LAYER.X).a(n, l)
    value = lambda l: LAYER_NORM(LAYER, n, l)
    unit = LAYER_NORM.unit
    rows = lambda l: total(lambda d: (LAYER.W(l, d) - mean(lambda r: LAYER.W(r, d), H)) * LAYER.X(n, d), D)
    small = sp.Rational(1, 1000)
    return Proof(
        r"\|\partial n/\partial W\| \le \|x\|/\sigma(Wx) \le \sqrt H/\sigma_{\min}(PW)",
        (
            *homogeneity_steps(),
            equality(
                "which is a projection of Vx over σ",
                along(LAYER_NORM, V),
                (change(unit) - mean(change, H) - value(unit) * mean(lambda l: value(l) * change(l), H))
                / sp.sqrt(LAYER_NORM.square(LAYER)),
                r"dn_i[V](x)",
            ),
            equality(
                "where Hσ² = ‖PWx‖², at least σ_min(PW)²‖x‖²",
                H * LAYER_NORM.square(LAYER),
                total(lambda l: rows(l) ** 2, H),
                r"H\sigma^2",
            ),
        ),
        (
            Assumption(
                "PW is injective, so H > D",
                r"\mathrm{rank}(PW) = D",
                Counterexample(
                    "ziomek2025.finite_width at H = D",
                    r"\|x\|/\sigma(Wx) \le C",
                    {"W": sp.eye(3), "x": sp.ImmutableMatrix([1 + small, 1, 1 - small]), "C": 1000},
                    inverse_scale_excess,
                    "‖x‖²/σ² − C², where it is positive (left), and 0 (right); x is close to the null space of PW.",
                ),
            ),
        ),
    )


def _lagrange(text: str, size) -> Step:
    u, v = field("u"), field("v")
    dot = lambda a, b: total(lambda k: a(k) * b(k), size)
    gap = total(lambda k: total(lambda l: (u(k) * v(l) - u(l) * v(k)) ** 2, size), size) / 2
    return equality(text, dot(u, v) ** 2, dot(u, u) * dot(v, v) - gap, r"\langle u, v\rangle^2")


@PAPER.claim(
    "ziomek2025.outputs",
    source="beyond the paper",
    statement="With one layer norm the outputs of a network are bounded.",
    formula=r"|f(x)| \le \|a\|",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def outputs(problem: Problem):
    """300 inputs over six decades, norm of the last layer; the other places by homogeneity."""
    w = random_weights(problem)
    x = directions(problem, 300) * np.logspace(-2, 4, 300)[:, None]
    found = network(w, x, LAST).outputs
    yield at_most("largest |f|, against ‖a‖", np.abs(found), np.linalg.norm(w.readout))
    for place in NORMED:
        yield agree(
            f"norm: {place}; f(100 x) and f(x)", network(w, 100 * x, place).outputs, network(w, x, place).outputs
        )


@outputs.proof()
def outputs_proof() -> Proof:
    """‖ReLU(n)‖ ≤ ‖n‖ = √H, and Cauchy–Schwarz."""
    a, t = sp.Symbol("a", real=True), sp.Symbol("t", positive=True)
    relu = lambda value: (value + sp.Abs(value)) / 2
    scaled = Layer(LAYER.W, lambda m, d: t * LAYER.X(m, d))
    return Proof(
        r"|a^\top\mathrm{ReLU}(n)|/\sqrt H \le \|a\|",
        (
            equality(
                "The output of layer norm has squared length H",
                total(lambda l: LAYER_NORM(LAYER, n, l) ** 2, H),
                H,
                r"\|n\|^2",
            ),
            expanded(
                "ReLU does not lengthen",
                r"(a)_+^2 = a^2 - (-a)_+^2",
                relu(a) ** 2 + relu(-a) ** 2 - a**2,
            ),
            _lagrange("A product of vectors is at most that of their lengths", H),
            equality(
                "A norm of an earlier layer makes f of degree 0", LAYER_NORM(scaled), LAYER_NORM(LAYER), r"n_i(tx)"
            ),
        ),
    )


@PAPER.claim(
    "ziomek2025.regression",
    source="Theorem 3.3",
    statement="Predictions of kernel regression with Θ are bounded: |Θ(x, X)Θ⁻¹y| ≤ √(C yᵀΘ⁻¹y) ≤ √(C/λ_min)‖y‖, where "
    "C bounds Θ(x, x).",
    expected=Verdict.HOLDS,
)
def regression(problem: Problem):
    """Eight points; predictions at 40 directions and four scales, and those of the kernel without a norm."""
    w = random_weights(problem)
    x = directions(problem, 48)
    y = np.random.default_rng([problem.seed, 2505, 2]).normal(size=8)
    train, test = network(w, x[:8], LAST), [network(w, t * x[8:], LAST) for t in (1, 10, 100, 1000)]
    theta = kernel(train, train)
    alpha = np.linalg.solve(theta, y)
    largest = variances(w, x[8:], LAST).max()
    bound = (largest * y @ alpha) ** 0.5
    for t, at in zip((1, 10, 100, 1000), test, strict=True):
        yield at_most(f"|prediction|, scale {t}", np.abs(kernel(at, train) @ alpha), bound)
    smallest = np.linalg.eigvalsh(theta)[0]
    yield at_most("√(C yᵀΘ⁻¹y), against √(C/λ_min)‖y‖", bound, (largest / smallest) ** 0.5 * np.linalg.norm(y))
    train = network(w, x[:8], NONE)
    alpha = np.linalg.solve(kernel(train, train), y)
    near, far = (np.abs(kernel(network(w, t * x[8:], NONE), train) @ alpha).max() for t in (1, 1000))
    yield at_least("without a norm: largest |prediction| at scale 1000 over that at 1", far / near, 100)


@regression.proof()
def regression_proof() -> Proof:
    """Cauchy–Schwarz in the space of gradients; k runs over the parameters, n over the training points."""
    alpha, phi, G = field("alpha"), field("phi"), field("G")
    v = lambda k: total(lambda m: alpha(m) * G(m, k), N)
    inner = lambda a, b: total(lambda k: a(k) * b(k), D)
    return Proof(
        r"\Theta(x, X)\alpha = \langle\phi(x), v\rangle,\quad v = G^\top\alpha,\quad "
        r"\|v\|^2 = \alpha^\top\Theta\alpha = y^\top\Theta^{-1}y",
        (
            equality(
                "The prediction is a product of the gradient at x with v",
                total(lambda m: alpha(m) * inner(phi, lambda k: G(m, k)), N),
                inner(phi, v),
                r"\Theta(x, X)\alpha",
            ),
            equality(
                "whose squared length is αᵀΘα = yᵀΘ⁻¹y, at most ‖y‖²/λ_min",
                inner(v, v),
                total(
                    lambda m: total(lambda l: alpha(m) * alpha(l) * inner(lambda k: G(m, k), lambda k: G(l, k)), N), N
                ),
                r"\|v\|^2",
            ),
            _lagrange("and ‖φ(x)‖² = Θ(x, x) ≤ C", D),
        ),
        (Assumption("Θ is invertible on the training points", r"\Theta\alpha = y"),),
    )


@PAPER.claim(
    "ziomek2025.skip",
    source="beyond the paper, whose networks are chains",
    statement="At least one layer norm anywhere in a network with skip connections bounds its outputs.",
    assumptions=("every path from the input to the output passes a norm",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def skip(problem: Problem):
    """A chain, and the same chain with a linear path around its norm."""
    w, x = random_weights(problem), directions(problem, 20)
    yield agree("chain: f(1e4 x) and f(x)", network(w, 1e4 * x, LAST).outputs, network(w, x, LAST).outputs)
    near, far = (np.abs(network(w, t * x, SKIP).outputs).max() for t in (1, 1e4))
    role = Role.FAILS_WITHOUT_CONDITION
    yield at_least("with a path around the norm: largest |f| at scale 1e4 over that at 1", far / near, 1e3, role)
    near, far = (variances(w, t * x, SKIP).max() for t in (1, 1e4))
    yield at_least("with a path around the norm: Θ at scale 1e4 over that at 1", far / near, 1e6, role)


@skip.proof("conditional")
def skip_proof() -> Proof:
    """A norm makes what follows it of degree 0 in x; a linear path around it is of degree 1."""
    t = sp.Symbol("t", positive=True)
    scaled = Layer(LAYER.W, lambda m, d: t * LAYER.X(m, d))

    def with_path(values, factor):
        x = factor * values["x"]
        return LAYER_NORM.exactly(values["W"], x.T)[0] + x[0]

    return Proof(
        r"n(W\,tx) = n(Wx)",
        (
            _positive(),
            equality(
                "Layers before the norm scale with x, and the norm ignores it",
                LAYER_NORM(scaled),
                LAYER_NORM(LAYER),
                r"n_i(tx)",
            ),
        ),
        (
            Assumption(
                "every path passes a norm",
                r"f(tx) = f(x)",
                Counterexample(
                    "ziomek2025.skip with a path around the norm",
                    r"f(2x) = f(x)",
                    {"W": sp.eye(3), "x": sp.ImmutableMatrix([1, 2, 4])},
                    lambda values: (with_path(values, 2), with_path(values, 1)),
                    "f = LN(Wx)₁ + x₁ at 2x (left) and at x (right).",
                ),
            ),
        ),
    )


def unseen(last: Float[np.ndarray, "N H"]) -> Float[np.ndarray, " H"]:
    """A random direction of the readout that some inputs do not see, of length 1."""
    draw = np.random.default_rng(2505).normal(size=last.shape[1])
    found = draw - np.linalg.lstsq(last, last @ draw)[0]
    return found / np.linalg.norm(found)


@PAPER.claim(
    "ziomek2025.no_uniform_bound",
    source="Proposition 3.4",
    statement="No bound holds for all parameters that fit the data.",
    expected=Verdict.HOLDS,
)
def no_uniform_bound(problem: Problem):
    """A change of the readout that 8 training points do not see, of three sizes."""
    w, x = random_weights(problem), directions(problem, 28)
    train, test = network(w, x[:8], LAST), network(w, x[8:], LAST)
    direction = unseen(train.last)
    for size in (10.0, 100.0, 1000.0):
        moved = w.readout + size * direction
        found = train.last @ moved / WIDTH**0.5
        yield agree(f"change of {size:g}: fit of the training points", found, train.outputs)
        gap = np.abs(test.last @ moved / WIDTH**0.5 - test.outputs).max()
        yield at_least(f"change of {size:g}: largest change of f elsewhere", gap, size / 100)


@no_uniform_bound.proof()
def no_uniform_bound_proof() -> Proof:
    """The readout enters linearly; fewer points than units leave a direction v with Φv = 0."""
    Phi, a, v, phi, c = field("Phi"), field("a"), field("v"), field("phi"), sp.Symbol("c", real=True)
    with_change = lambda row: total(lambda l: row(l) * (a(l) + c * v(l)), H)
    dot = lambda row, w: total(lambda l: row(l) * w(l), H)
    here = lambda l: Phi(n, l)
    return Proof(
        r"\Phi v = 0 \Rightarrow \Phi(a + cv) = \Phi a,\quad \phi^\top(a + cv) = \phi^\top a + c\,\phi^\top v",
        (
            equality(
                "At training points the change is cΦv = 0",
                with_change(here),
                dot(here, a) + c * dot(here, v),
                r"\Phi(a + cv)_n",
            ),
            equality(
                "elsewhere it is c φᵀv, which has no bound",
                with_change(phi),
                dot(phi, a) + c * dot(phi, v),
                r"\phi^\top(a + cv)",
            ),
        ),
        (Assumption("fewer training points than units", r"N < H"),),
    )
