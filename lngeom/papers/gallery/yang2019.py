"""Yang, Pennington, Rao, Sohl-Dickstein and Schoenholz (2019), *A Mean Field Theory of Batch Normalization*.

Wide networks with independent Gaussian weights; batch of B samples. The rate is the factor by which squared gradients
grow from a layer to the one below it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, vanishes
from lngeom.methods import BatchNorm
from lngeom.papers.lab import at_least, at_most, mean_is, relu, standardized
from lngeom.symbolic.jacobian import LAYER, along
from lngeom.symbolic.layers import BATCH_NORM, Layer
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded, fact, matrix
from lngeom.symbolic.scale_free import scaled_layer
from lngeom.symbolic.sums import H, N, field, i, mean, n, total

PAPER = Paper(
    "yang2019",
    "A Mean Field Theory of Batch Normalization",
    ("Greg Yang", "Jeffrey Pennington", "Vinay Rao", "Jascha Sohl-Dickstein", "Samuel S. Schoenholz"),
    2019,
    "1902.08129",
    "Gradients of a linear layer norm network of width H explode exactly like those of a linear batch norm network of "
    "batch size H.",
    "A linear network with batch norm multiplies the mean squared gradient by (B − 2)/(B − 3) a layer, where B is the "
    "batch size. A linear network with layer norm multiplies it by (H − 2)/(H − 3), where H is its width, and one with "
    "RMSNorm by (H − 1)/(H − 2). All three are one formula: the norm divides by the length of a Gaussian vector in the "
    "directions that it leaves, and the mean of the inverse square of that length is 1/(k − 2) for k directions. The "
    "explosion is therefore no matter of batches. It is the fluctuation of a scale that is measured on few entries, "
    "and it fades as the width grows.",
)


def linear(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The identity."""
    return x


def rates(problem: Problem, activation, batch: int, draws: int) -> Float[np.ndarray, " K"]:
    """Draws whose mean is the rate of a wide network with this activation.

    Summed inputs of a unit are Gaussian; batch norm sees their centred part, of variance λ = E‖Pφ(n)‖²/(B − 1). By
    symmetry cotangents have covariance P. So the rate is E‖Jᵀ(φ'(n) ⊙ δ)‖²/(B − 1) with J that of batch norm.

    Args:
        problem: gives the seed.
        activation: piecewise linear.
        batch: B.
        draws: K.

    Returns:
        One number a draw.
    """
    generator = np.random.default_rng([problem.seed, 1902, batch])
    u, delta = generator.normal(size=(2, draws, batch))
    value, _ = standardized(u)
    after = activation(value)
    variance = np.mean(np.sum((after - after.mean(1, keepdims=True)) ** 2, 1)) / (batch - 1)
    _, pull = standardized(variance**0.5 * u)
    slope = np.where(value > 0, activation(np.ones(())), -activation(-np.ones(())))
    return np.sum(pull(slope * (delta - delta.mean(1, keepdims=True))) ** 2, 1) / (batch - 1)


def linear_rate(batch: int) -> float:
    """(B − 2)/(B − 3)."""
    return (batch - 2) / (batch - 3)


@PAPER.claim(
    "yang2019.linear",
    source="Theorems 3.9, 3.10",
    statement="In linear batch norm networks squared gradients grow by (B − 2)/(B − 3) a layer.",
    assumptions=("B > 3", "the width is infinite"),
    expected=Verdict.HOLDS,
)
def linear_networks(problem: Problem):
    """A unit by draws at three batch sizes; and 8 layers of networks of width 400."""
    for batch in (8, 16, 32):
        found = rates(problem, linear, batch, 40_000)
        yield mean_is(f"rate, B = {batch}", found, linear_rate(batch))
    growth = np.exp(layer_growth(problem, 12, 400, 8, 12).mean())
    yield agree("B = 12: growth a layer of networks of width 400, to 3 %", growth, linear_rate(12), tol=0.03)


def layer_growth(problem: Problem, batch: int, width: int, depth: int, nets: int) -> Float[np.ndarray, " K"]:
    """The growth of log ‖∇‖² a layer in linear batch norm networks, by backpropagation."""
    generator = np.random.default_rng([problem.seed, 1902, 1])
    found = []
    for _ in range(nets):
        x, tape = standardized(generator.normal(size=(batch, width)), -2)[0], []
        for _ in range(depth):
            matrix = generator.normal(0.0, width**-0.5, (width, width))
            x, pull = standardized(x @ matrix, -2)
            tape.append((matrix, pull))
        c = generator.normal(size=(batch, width))
        c = c - c.mean(0, keepdims=True)
        start = np.sum(c**2)
        for matrix, pull in reversed(tape):
            c = pull(c) @ matrix.T
        found.append(np.log(np.sum(c**2) / start) / depth)
    return np.array(found)


def _inverse_chi_square() -> Step:
    k, x = sp.Symbol("k", positive=True), sp.Symbol("x", positive=True)
    density = lambda k: x ** (k / 2 - 1) * sp.exp(-x / 2) / (2 ** (k / 2) * sp.gamma(k / 2))

    def verify() -> bool:
        ratio = sp.gammasimp(sp.powsimp(density(k) / x / density(k - 2)))
        return sp.simplify(ratio - 1 / (k - 2)) == 0

    return fact(
        "Over x, the density of χ²_k is that of χ²_(k−2) over k − 2, so its integral is 1/(k − 2) for k > 2",
        r"E[1/\chi^2_k] = 1/(k - 2)",
        verify,
    )


def _pullback() -> Step:
    V = field("V")
    change = lambda m: Layer(V, LAYER.X).a(m, i)
    value = lambda m: BATCH_NORM(LAYER, m, i)
    projected = change(n) - mean(change, N) - value(n) * mean(lambda m: value(m) * change(m), N)
    return equality(
        "Batch norm's derivative is the projection off 1 and n over σ, a symmetric matrix",
        along(BATCH_NORM, V),
        projected / sp.sqrt(BATCH_NORM.square(LAYER)),
        r"dn_{ni}[V]",
    )


@linear_networks.proof()
def linear_proof() -> Proof:
    """The centred part of Gaussian summed inputs has χ² lengths, independent of their direction."""
    B = sp.Symbol("B", positive=True)
    return Proof(
        r"\frac{B^2}{B}\cdot\frac{B-1}{B\,(B-3)}\cdot\frac{B-2}{B-1} = \frac{B-2}{B-3}",
        (
            _pullback(),
            equality(
                "The layer below has squared norm N per unit, so each of B − 1 centred directions variance B/(B − 1)",
                total(lambda m: BATCH_NORM(LAYER, m, i) ** 2, N),
                N,
                r"\sum_n n_{ni}^2",
            ),
            _inverse_chi_square(),
            expanded(
                "With k = B − 1: E[1/σ²] = B·(B − 1)/B/(B − 3); the direction n takes 1/(B − 1) of a centred cotangent",
                r"E[1/\sigma^2]\,(1 - 1/(B - 1)) = (B - 2)/(B - 3)",
                B * (B - 1) / B / (B - 3) * (1 - 1 / (B - 1)) - (B - 2) / (B - 3),
            ),
        ),
        (Assumption("independent Gaussian weights, infinite width", r"B > 3"),),
    )


@PAPER.claim(
    "yang2019.relu",
    source="rate of ReLU networks",
    statement="With ReLU the rate decreases in the batch size, to π/(π − 1).",
    expected=Verdict.HOLDS,
    why_numeric="rates at finite batch size are by simulation",
)
def relu_networks(problem: Problem):
    """Four batch sizes; the limit by extrapolation in 1/B from 50 and 200, to 1 %."""
    limit = np.pi / (np.pi - 1)
    found = np.array([rates(problem, relu, batch, 2_000_000 // batch).mean() for batch in (10, 20, 50, 200)])
    yield at_least("rate at B = 10, 20, 50 over that at the next B, least", found[:-1] / found[1:], 1)
    yield at_least("rate at B = 10, 20, 50, 200, least", found, limit)
    yield agree("limit by extrapolation, and π/(π − 1)", (4 * found[-1] - found[-2]) / 3, limit, tol=0.01)


@PAPER.claim(
    "yang2019.variance",
    source="Abstract",
    statement="The gradient explosion cannot be eliminated by tuning the variances of the weights.",
    formula=r"\mathrm{BN}(cWh) = \mathrm{BN}(Wh)",
    assumptions=("ε = 0, and no bias before the norm",),
    expected=Verdict.HOLDS,
)
def variance(problem: Problem):
    """Outputs on the data do not depend on the variance, so no later layer does."""
    _, params, inputs = problem.case("bn")
    W = params.weights
    norm = BatchNorm()
    yield agree("BN(10 W h) and BN(W h)", norm(10 * W, inputs), norm(W, inputs))
    yield agree("BN(W h/10) and BN(W h)", norm(W / 10, inputs), norm(W, inputs))


@variance.proof()
def variance_proof() -> Proof:
    """Mean and standard deviation are homogeneous. Gradients by inputs are then those of one function."""
    V = field("V")
    towards = lambda layer: along_inputs(layer, V)
    return Proof(
        r"\mathrm{BN}(cWh) = \mathrm{BN}(Wh),\ c > 0",
        (
            equality("Outputs", BATCH_NORM(scaled_layer()), BATCH_NORM(LAYER), r"n_{ni}(cW)"),
            equality(
                "and the derivative J by the layer below",
                towards(scaled_layer()),
                sp.Symbol("J"),
                r"\partial_h n_{ni}(cW)",
                {"J": towards(LAYER)},
            ),
        ),
        (Assumption("positive factor", r"c > 0"),),
    )


def along_inputs(layer: Layer, V):
    """The derivative of batch norm when the inputs move along V."""
    t = sp.Dummy("t", real=True)
    moved = Layer(layer.W, lambda m, d: layer.X(m, d) + t * V(m, d))
    return BATCH_NORM(moved).diff(t).subs(t, 0)


def orthogonal(generator: np.random.Generator, width: int) -> Float[np.ndarray, "d d"]:
    """A random orthogonal matrix."""
    return np.linalg.qr(generator.normal(size=(width, width)))[0]


def gaussian(generator: np.random.Generator, width: int) -> Float[np.ndarray, "d d"]:
    """Independent Gaussian entries of variance 1/d."""
    return generator.normal(0.0, width**-0.5, (width, width))


def uncentred_growth(problem: Problem, matrix_of, depth: int, nets: int = 10, width: int = 16) -> float:
    """The growth of log ‖∇‖² through linear networks with batch norm without centring, on as many samples as units."""
    generator = np.random.default_rng([problem.seed, 1902, 2])
    found = []
    for _ in range(nets):
        x, tape = generator.normal(size=(width, width)), []
        for _ in range(depth):
            matrix = matrix_of(generator, width)
            x, pull = standardized(x @ matrix, -2, centre=False)
            tape.append((matrix, pull))
        c = generator.normal(size=(width, width))
        start = np.sum(c**2)
        for matrix, pull in reversed(tape):
            c = pull(c) @ matrix.T
        found.append(np.log(np.sum(c**2) / start))
    return float(np.mean(found))


@PAPER.claim(
    "yang2019.only_bn",
    source="Abstract",
    statement="Batch normalization itself is the cause of gradient explosion.",
    assumptions=("independent Gaussian weights, under which no activation removes it",),
    expected=Verdict.CONDITIONAL,
)
def only_bn(problem: Problem):
    """Growth between depth 50 and 200, 16 units and 16 samples, without centring: Gaussian and orthogonal weights."""
    for matrix_of, what in ((gaussian, "Gaussian"), (orthogonal, "orthogonal")):
        growth = uncentred_growth(problem, matrix_of, 200) - uncentred_growth(problem, matrix_of, 50)
        if matrix_of is gaussian:
            yield at_least(f"{what} weights: growth of log ‖∇‖² from depth 50 to 200", growth, 1)
        else:
            description = f"{what} weights: growth of log ‖∇‖² from depth 50 to 200"
            yield at_most(description, growth, 0.5, Role.FAILS_WITHOUT_CONDITION)


def isometric_layer(values) -> tuple[sp.Expr, sp.Expr]:
    """The squared gradient before a layer, and what Gaussian weights make of it on average.

    At a batch √B Q with Q and W orthogonal every unit has mean square 1, so its Jacobian is I − qqᵀ with q = Qw.
    """
    Q, W, delta = values["Q"], values["W"], values[r"\delta"]
    gradient = sp.zeros(*Q.shape)
    for j in range(W.cols):
        q = Q * W[:, j]
        gradient += (delta[:, j] - q * (q.T * delta[:, j])[0]) * W[:, j].T
    batch = Q.rows
    squares = lambda A: sum(v**2 for v in A)
    return squares(gradient), sp.Rational(batch - 1, batch - 2) * squares(delta)


@only_bn.proof("conditional")
def only_bn_proof() -> Proof:
    """(B − 2)/(B − 3) > 1 for Gaussian weights; orthogonal weights map an orthonormal batch without growth."""
    B = sp.Symbol("B", positive=True)
    third = sp.Rational(1, 3)
    example = Counterexample(
        "yang2019.only_bn with orthogonal weights",
        r"\|\nabla_l\|^2 = \frac{B - 1}{B - 2}\|\nabla_{l+1}\|^2",
        {
            "Q": matrix([[1, 2, 2], [2, 1, -2], [2, -2, 1]]) * third,
            "W": matrix([[2, -1, 2], [2, 2, -1], [-1, 2, 2]]) * third,
            r"\delta": matrix([[1, 0, 2], [0, 1, 1], [1, 1, 0]]),
        },
        isometric_layer,
        "Squared gradient before a layer with orthogonal weights W and without centring, at the batch √3 Q (left); its "
        "mean for Gaussian weights (right).",
    )
    return Proof(
        r"(B - 2)/(B - 3) - 1 = 1/(B - 3) > 0",
        (
            _inverse_chi_square(),
            expanded(
                "The linear rate exceeds 1 for every batch size",
                r"(B - 2)/(B - 3) - 1 = 1/(B - 3)",
                (B - 2) / (B - 3) - 1 - 1 / (B - 3),
            ),
        ),
        (Assumption("independent Gaussian weights", r"W_{ij} \sim N(0, 1/H)", example),),
    )


@PAPER.claim(
    "yang2019.jacobian",
    source="text",
    statement="Batch normalization forces the singular values of the layer's Jacobian away from 1.",
    assumptions=("the batch's σ differs from the gain γ; at σ = γ all but two singular values are 1",),
    expected=Verdict.CONDITIONAL,
)
def jacobian(problem: Problem):
    """One unit on 12 samples: singular values by automatic differentiation."""
    y = np.random.default_rng([problem.seed, 1902, 3]).normal(size=12)
    found = np.linalg.svd(unit_jacobian(y), compute_uv=False)
    sigma, ones = y.std(), np.ones(10)
    for gain in (1.0, 2.0):
        yield agree(f"γ = {gain:g}: ten of twelve, and γ/σ", gain * found[:10], gain / sigma * ones)
        yield vanishes(f"γ = {gain:g}: the other two", gain * found[10:], scale=gain)
        yield differ(f"γ = {gain:g}: ten of twelve, and 1", gain * found[:10], ones)
    yield agree("γ = σ: ten of twelve, and 1", sigma * found[:10], ones, role=Role.FAILS_WITHOUT_CONDITION)


def unit_jacobian(y: Float[np.ndarray, " B"]) -> Float[np.ndarray, "B B"]:
    """The Jacobian of batch norm of one unit."""
    norm = BatchNorm()
    return np.asarray(jax.jit(jax.jacfwd(lambda y: norm(jnp.ones((1, 1)), y[:, None])[:, 0]))(y))


def singular_values_of_one(values) -> tuple[sp.Integer, sp.Integer]:
    """How many singular values of the Jacobian at y with gain σ are 1; and none."""
    y = values["y"]
    centred = y - sp.ones(len(y), 1) * sum(y) / len(y)
    square = sum(v**2 for v in centred)
    projection = sp.eye(len(y)) - sp.ones(len(y), len(y)) / len(y) - centred * centred.T / square
    gain_over_scale = values[r"\gamma^2"] / (square / len(y))
    found = (gain_over_scale * projection.T * projection).eigenvals()
    return sp.Integer(found.get(sp.S.One, 0)), sp.S.Zero


@jacobian.proof("conditional")
def jacobian_proof() -> Proof:
    """The Jacobian is γ/σ times a projection of rank B − 2."""
    value = lambda m: BATCH_NORM(LAYER, m, i)
    return Proof(
        r"J = \frac{\gamma}{\sigma}\,\Pi,\quad \Pi^2 = \Pi,\quad \mathrm{tr}\,\Pi = B - 2",
        (
            _pullback(),
            equality("It removes 1, since n has mean 0", mean(value, N), 0, r"\mu(n)"),
            equality("and n itself, since its mean square is 1", mean(lambda m: value(m) ** 2, N), 1, r"\mu(n^2)"),
            equality(
                "so it is a projection of rank N − 2, and singular values are γ/σ and 0",
                total(lambda m: 1 - 1 / N - value(m) ** 2 / N, N),
                N - 2,
                r"\mathrm{tr}\,\Pi",
            ),
        ),
        (
            Assumption(
                "σ is not γ",
                r"\sigma \ne \gamma",
                Counterexample(
                    "yang2019.jacobian at σ = γ",
                    r"\#\{\text{singular values equal to } 1\} = 0",
                    {"y": sp.ImmutableMatrix([1, 2, 0, 1]), r"\gamma^2": sp.S.Half},
                    singular_values_of_one,
                    "Singular values that are 1 (left), and none (right).",
                ),
            ),
        ),
    )


def dual_law(units: int, depth: int, *, centre: bool) -> float:
    """((H − 2)/(H − 3))^L (H − 1)/H for layer norm, ((H − 1)/(H − 2))^L (H − 1)/H for RMSNorm."""
    first = (units - 2) / (units - 3) if centre else (units - 1) / (units - 2)
    return first**depth * (units - 1) / units


def dual_growth(problem: Problem, units: int, depth: int, nets: int, *, centre: bool) -> Float[np.ndarray, " K"]:
    """The growth of ‖∇‖² through linear networks with layer norm or RMSNorm, from a random output cotangent."""
    generator = np.random.default_rng([problem.seed, 1902, 4])
    x, tape = standardized(generator.normal(size=(nets, 1, units)), centre=centre)[0], []
    for _ in range(depth):
        matrix = generator.normal(0.0, units**-0.5, (nets, units, units))
        x, pull = standardized(x @ matrix, centre=centre)
        tape.append((matrix, pull))
    c = generator.normal(size=(nets, 1, units))
    start = np.mean(np.sum(c**2, (1, 2)))
    for matrix, pull in reversed(tape):
        c = pull(c) @ matrix.swapaxes(1, 2)
    return np.sum(c**2, (1, 2)) / start


@PAPER.claim(
    "yang2019.layer_norm_dual",
    source="own corollary",
    statement="Squared gradients of a linear layer norm network of width H grow by (H − 2)/(H − 3) a layer, those of "
    "an RMSNorm network by (H − 1)/(H − 2).",
    formula=r"\left(\frac{H-2}{H-3}\right)^L\frac{H-1}{H}",
    assumptions=("H > 3", "weights N(0, 1/H), a normalized input, a random output cotangent"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def layer_norm_dual(problem: Problem):
    """Total growth through 3 layers of 8 units."""
    for centre, name in ((True, "layer norm"), (False, "RMSNorm")):
        found = dual_growth(problem, 8, 3, 60_000, centre=centre)
        yield mean_is(f"{name}, H = 8, L = 3", found, dual_law(8, 3, centre=centre))


@layer_norm_dual.proof()
def layer_norm_dual_proof() -> Proof:
    """As for batch norm with H in place of B, but exactly at every width."""
    units = sp.Symbol("H", positive=True)
    W, x, q, p = field("W"), field("x"), field("q"), sp.Symbol("p", positive=True)
    a = lambda l: total(lambda d: W(l, d) * x(d), H)
    one = lambda projected: (units - 1) / units * projected / (units - 1)
    return Proof(
        r"\left(\frac{H-2}{H-3}\right)^L\frac{H-1}{H},\quad \left(\frac{H-1}{H-2}\right)^L\frac{H-1}{H}",
        (
            _inverse_chi_square(),
            equality(
                "⟨x, Wᵀq⟩ = ⟨a, q⟩, which is 0 for a cotangent q from a norm: Wᵀq uses what x has not seen of W",
                total(lambda d: x(d) * total(lambda l: W(l, d) * q(l), H), H),
                total(lambda l: a(l) * q(l), H),
                r"\langle x, W^\top q\rangle",
            ),
            expanded(
                "so it is Gaussian on the H − 1 directions orthogonal to x, with (H − 1)/H of the squared length p",
                r"E\|W^\top q\|^2 = (H - 1)\,p/H",
                (units - 1) * p / units - (p - p / units),
            ),
            expanded(
                "Layer norm: the next projection leaves H − 2 of these directions, and E[1/σ²] = H/(H − 3), k = H − 1",
                r"\frac{H-1}{H}\cdot\frac{H-2}{H-1}\cdot\frac{H}{H-3} = \frac{H-2}{H-3}",
                one(units - 2) * units / (units - 3) - (units - 2) / (units - 3),
            ),
            expanded(
                "RMSNorm: it leaves all of them, and E[1/rms²] = H/(H − 2), k = H",
                r"\frac{H-1}{H}\cdot\frac{H}{H-2} = \frac{H-1}{H-2}",
                one(units - 1) * units / (units - 2) - (units - 1) / (units - 2),
            ),
            expanded(
                "The last norm meets a random cotangent, so it has the same factor: (H − 2)/H · H/(H − 3)",
                r"\frac{H-2}{H}\cdot\frac{H}{H-3} = \frac{H-2}{H-3}",
                (units - 2) / units * units / (units - 3) - (units - 2) / (units - 3),
            ),
        ),
        (Assumption("independent Gaussian weights", r"W_{ij} \sim N(0, 1/H),\ H > 3"),),
    )
