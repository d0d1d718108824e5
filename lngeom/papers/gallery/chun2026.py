"""Chun (2026), *The Geometric Cost of Normalization*: the learning coefficient of the layer after a normalization.

For a linear layer with outputs of a regular family the local learning coefficient (LLC) is rank(F)/2: the posterior's
volume at n samples falls like n^(−1/2) along each direction that the data see.
"""

import numpy as np
import sympy as sp
from jaxtyping import Float
from sympy import KroneckerDelta

from lngeom import families
from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, same_integer
from lngeom.families import AbstractFamily
from lngeom.information import fisher
from lngeom.papers.lab import exponent_of, layer_norm, rms_norm
from lngeom.symbolic.jacobian import GAIN, LAYER
from lngeom.symbolic.layers import LAYER_NORM
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix
from lngeom.symbolic.sums import H, field, i, j, k, mean, n, total

PAPER = Paper(
    "chun2026",
    "The Geometric Cost of Normalization: Affine Bounds on the Bayesian Complexity of Neural Networks",
    ("Sungbae Chun",),
    2026,
    "2603.27432",
    "Layer norm's centring takes m from the Fisher rank of the next layer, and almost every learned bias of that layer "
    "norm gives it back.",
    "Centring confines what the next layer reads to a hyperplane through 0. The Fisher matrix of a linear layer with m "
    "outputs then has m fewer directions, and the local learning coefficient is lower by m/2. Layer norm's own bias "
    "moves the hyperplane away from 0, unless the sum of b/g vanishes, and a hyperplane that misses 0 spans the whole "
    "space: the rank comes back. A bias of the next layer takes it away again, since it sees the constant. So the drop "
    "is there for layer norm without a bias, and before a layer with one.",
)
SAMPLES, WIDTH, OUTPUTS = 400, 7, 3
"""N, the width d of the normalized inputs, and the number m of outputs."""
Points = Float[np.ndarray, "N d"]


def draw_inputs(problem: Problem) -> Points:
    """Gaussian states, one a row."""
    return np.random.default_rng(problem.seed).standard_normal((SAMPLES, WIDTH)) + 0.5


def with_bias(x: Points) -> Points:
    """A column of ones, whose weights are the next layer's bias."""
    return np.concatenate([x, np.ones((len(x), 1))], 1)


def _linear(weights, inputs):
    return inputs @ weights.T


def fisher_rank(points: Points, family: AbstractFamily | None = None) -> int:
    """Rank of the Fisher matrix of a linear layer with m outputs."""
    weights = np.random.default_rng(1).standard_normal((OUTPUTS, points.shape[1])) / points.shape[1]
    return int(fisher(_linear, weights, points, family=family or families.Gaussian(), check=False).rank())


def coefficient(points: Points, samples: float = 1e8) -> float:
    """The slope of ½ log det(I + nF) in log n, for m Gaussian outputs: the LLC as n grows."""
    spectrum = np.linalg.svd(points / np.sqrt(len(points)), compute_uv=False) ** 2
    volume = lambda count: OUTPUTS / 2 * np.sum(np.log1p(count * spectrum))
    return float((volume(1.1 * samples) - volume(samples)) / np.log(1.1))


def coefficient_is(what: str, points: Points, inputs: int):
    """Evidence, by two routes, that the layer after these points has the LLC of m outputs with this many inputs."""
    yield same_integer(f"{what}: rank F and m · {inputs}", fisher_rank(points), OUTPUTS * inputs)
    yield agree(f"{what}: slope of ½ log det(I + nF) at n = 1e8", coefficient(points), OUTPUTS * inputs / 2, tol=1e-4)


def volume_step() -> Step:
    """A direction that the data see takes a factor n^(−1/2) of the posterior's volume, another takes none."""
    w = sp.Symbol("w", real=True)
    a, count = sp.symbols("a n", positive=True)
    form = sp.exp(-count * a * w**2 / 2)
    return fact(
        "Each positive eigenvalue a of F takes n^(−1/2) of the posterior's volume, a null direction nothing: the LLC "
        "is rank(F)/2",
        r"\int e^{-naw^2/2}dw = \sqrt{2\pi/(na)}",
        lambda: sp.simplify(sp.integrate(form, (w, -sp.oo, sp.oo)) - sp.sqrt(2 * sp.pi / (a * count))) == 0,
        "∫ e^(−n a w²/2) dw = √(2π/(n a))",
    )


def outputs_of_layer_norm_span() -> tuple[Step, ...]:
    """Outputs of layer norm have sum 0, and span all vectors of sum 0."""
    v = field("v")
    basis = lambda l: KroneckerDelta(l, i) - KroneckerDelta(l, j)
    pairs = total(lambda p: total(lambda q: (v(p) - v(q)) * (KroneckerDelta(k, p) - KroneckerDelta(k, q)), H), H)
    return (
        equality("The outputs of layer norm have mean 0", mean(lambda l: LAYER_NORM(LAYER, n, l), H), 0),
        equality(
            "e_i − e_j has mean 0 and square norm 2, so layer norm gives √(H/2)(e_i − e_j)",
            total(lambda l: basis(l) ** 2, H),
            2 - 2 * KroneckerDelta(i, j),
            r"|e_i - e_j|^2",
        ),
        equality(
            "and these span the vectors of mean 0",
            pairs / (2 * H),
            v(k) - mean(v, H),
            r"\frac{1}{2H}\sum_{ij}(v_i - v_j)(e_i - e_j)_k",
        ),
    )


@PAPER.claim(
    "chun2026.layer_norm",
    source="Abstract; main theorem",
    statement="Layer norm's centring lowers the local learning coefficient of the next weight matrix by exactly m/2.",
    formula=r"\mathrm{rank}\,F_V = m(d - 1)",
    assumptions=("m Gaussian or independent outputs", "d ≥ 3", "no bias and gain in the norm"),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def after_layer_norm(problem: Problem):
    """400 normalized Gaussian states."""
    yield from coefficient_is("layer norm", layer_norm(draw_inputs(problem)), WIDTH - 1)


@after_layer_norm.proof()
def after_layer_norm_proof() -> Proof:
    """Outputs of layer norm span the hyperplane of sum zero."""
    c, V = field("c"), field("V")
    seen = lambda weights: total(lambda l: weights(l) * LAYER_NORM(LAYER, n, l), H)
    return Proof(
        r"\mathrm{span}\,\{n\} = \mathbf{1}^\perp,\quad \mathrm{rank}\,F_V = m(d - 1)",
        (
            *outputs_of_layer_norm_span(),
            equality(
                "A row of V is seen up to a constant: one direction for each of the m outputs is lost",
                seen(lambda l: V(l) + c(i)),
                seen(V),
                r"\sum_l (V_l + c)\,n_l",
            ),
            volume_step(),
        ),
    )


@PAPER.claim(
    "chun2026.rms",
    source="Abstract",
    statement="RMSNorm preserves the local learning coefficient of the next weight matrix, md/2.",
    assumptions=("m Gaussian or independent outputs", "states in general position"),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def after_rms(problem: Problem):
    """400 normalized Gaussian states."""
    yield from coefficient_is("RMSNorm", rms_norm(draw_inputs(problem)), WIDTH)


@after_rms.proof()
def after_rms_proof() -> Proof:
    """The sphere spans the space."""
    v = field("v")
    return Proof(
        r"\mathrm{span}\,\{n\} = \mathbb{R}^d,\quad \mathrm{rank}\,F_V = md",
        (
            equality(
                "e_j has square norm 1, so RMSNorm gives √H e_j",
                total(lambda l: KroneckerDelta(l, j) ** 2, H),
                1,
                "|e_j|^2",
            ),
            equality(
                "and these span all vectors",
                total(lambda l: v(l) * KroneckerDelta(k, l), H),
                v(k),
                r"\sum_j v_j (e_j)_k",
            ),
            volume_step(),
        ),
    )


def gain_and_bias(problem: Problem) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """A gain, and a bias as training leaves it."""
    draw = np.random.default_rng(problem.seed + 1)
    return np.exp(0.3 * draw.standard_normal(WIDTH)), 0.3 * draw.standard_normal(WIDTH)


def balanced(gain, bias):
    """The bias with Σ b_i/g_i = 0 that is nearest to a given one in b/g."""
    return bias - gain * np.mean(bias / gain)


@PAPER.claim(
    "chun2026.learned_affine",
    source="beyond the paper",
    statement="The drop by m/2 stays when layer norm has a gain and a bias of its own.",
    assumptions=("Σ b_i/g_i = 0: no bias, for example; almost no learned bias meets it",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def learned_affine(problem: Problem):
    """A gain alone, a bias with Σ b/g = 0, and a bias as it is."""
    gain, bias = gain_and_bias(problem)
    scaled = gain * layer_norm(draw_inputs(problem))
    yield from coefficient_is("gain", scaled, WIDTH - 1)
    yield from coefficient_is("gain, and bias with Σ b/g = 0", scaled + balanced(gain, bias), WIDTH - 1)
    found = float(fisher_rank(scaled + bias))
    yield differ(
        "gain and any bias: rank F and m(d − 1)", found, OUTPUTS * (WIDTH - 1.0), role=Role.FAILS_WITHOUT_CONDITION
    )


def affine(l):
    """Layer norm with gain and bias."""
    return GAIN(l) * LAYER_NORM(LAYER, n, l) + field("b")(l)


def plane_step() -> Step:
    """Outputs of layer norm with gain and bias lie in one hyperplane."""
    b = field("b")
    return equality(
        "The outputs v = g n + b lie in the plane with normal 1/g and offset Σ b/g",
        total(lambda l: affine(l) / GAIN(l), H),
        total(lambda l: b(l) / GAIN(l), H),
        r"\sum_i v_{ni}/g_i",
    )


@learned_affine.proof("conditional")
def learned_affine_proof() -> Proof:
    """The plane of the outputs contains 0 exactly where Σ b/g = 0."""
    X = matrix([[1, 0, -1], [0, 1, -1], [1, -2, 1]])

    def determinant(values):
        outputs = LAYER_NORM.exactly(sp.eye(3), values["X"])
        return sp.Matrix(3, 3, lambda r, c: outputs[r, c] + values["b"][c]).det(), sp.Integer(0)

    b, V = field("b"), field("V")
    centred = lambda l: b(l) - GAIN(l) * mean(lambda p: b(p) / GAIN(p), H)
    balanced_output = lambda l: GAIN(l) * LAYER_NORM(LAYER, n, l) + centred(l)
    return Proof(
        r"(1/g)^\top(gn + b) = \mathbf{1}^\top(b/g)",
        (
            plane_step(),
            equality(
                "so with Σ b/g = 0 a row of V is seen up to a multiple of 1/g: m directions are lost",
                total(lambda l: (V(l) + field("c")(i) / GAIN(l)) * balanced_output(l), H),
                total(lambda l: V(l) * balanced_output(l), H),
                r"\sum_l (V_l + c/g_l)\,v_l",
            ),
            *outputs_of_layer_norm_span()[1:],
        ),
        (
            Assumption(
                "the bias is balanced",
                r"\sum_i b_i/g_i = 0",
                Counterexample(
                    "the drop with a bias",
                    r"\det(v_1, v_2, v_3) = 0",
                    {"X": X, "b": matrix([[1, 0, 0]])},
                    determinant,
                    "Three units, g = 1: the determinant of three outputs (left), 0 in a plane through 0",
                ),
            ),
        ),
    )


@PAPER.claim(
    "chun2026.downstream_bias",
    source="Abstract: affine symmetry extension",
    statement="With a bias in the next layer, any layer norm, with or without gain and bias, lowers the coefficient by "
    "m/2, and RMSNorm does not.",
    assumptions=("m Gaussian or independent outputs",),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def downstream_bias(problem: Problem):
    """Four layer norms and RMSNorm; with the bias a row has d + 1 weights."""
    gain, bias = gain_and_bias(problem)
    x = draw_inputs(problem)
    kinds = {
        "layer norm": layer_norm(x),
        "with gain": gain * layer_norm(x),
        "with gain and bias": gain * layer_norm(x) + bias,
        "with gain and balanced bias": gain * layer_norm(x) + balanced(gain, bias),
    }
    for what, points in kinds.items():
        yield from coefficient_is(what, with_bias(points), WIDTH)
    yield from coefficient_is("RMSNorm", with_bias(rms_norm(x)), WIDTH + 1)


@downstream_bias.proof()
def downstream_bias_proof() -> Proof:
    """A plane, through 0 or not, loses one direction of (V, c) for each output; the sphere lies in no plane."""
    b, V = field("b"), field("V")
    c, c0, t = sp.symbols("c c_0 t", real=True)
    offset = total(lambda l: b(l) / GAIN(l), H)
    return Proof(
        r"\mathrm{rank}(v, 1) = d \text{ in a plane},\ d + 1 \text{ on a sphere}",
        (
            plane_step(),
            equality(
                "so a row of V and its bias are seen up to a multiple of (1/g, −Σ b/g)",
                total(lambda l: (V(l) + t / GAIN(l)) * affine(l), H) - t * offset,
                total(lambda l: V(l) * affine(l), H),
                r"\sum_l (V_l + t/g_l)\,v_l - t\sum_l b_l/g_l",
            ),
            *outputs_of_layer_norm_span()[1:],
            fact(
                "A plane with normal c through √H e_j and −√H e_j, for all j, has c = 0 and offset 0",
                r"\sqrt H c_j + c_0 = -\sqrt H c_j + c_0 = 0 \Rightarrow c = 0",
                lambda: sp.solve([sp.sqrt(H) * c + c0, -sp.sqrt(H) * c + c0], [c, c0]) == {c: 0, c0: 0},
            ),
            volume_step(),
        ),
    )


def simplex(x: Points) -> Points:
    """Softmax of each row."""
    p = np.exp(x)
    return p / p.sum(1, keepdims=True)


@PAPER.claim(
    "chun2026.simplex",
    source="Abstract",
    statement="Inputs from a softmax have the same drop by m/2 when the next layer has a bias, and none without it.",
    assumptions=("m Gaussian or independent outputs",),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def softmax_inputs(problem: Problem):
    """400 points of the simplex."""
    points = simplex(draw_inputs(problem))
    yield from coefficient_is("softmax, with a bias", with_bias(points), WIDTH)
    yield from coefficient_is("softmax, without a bias", points, WIDTH)


@softmax_inputs.proof()
def softmax_inputs_proof() -> Proof:
    """The simplex lies in a plane that does not contain 0."""
    weight = field("w", positive=True)
    s = sp.Symbol("s", positive=True)
    p = lambda l: weight(l) / total(weight, H)
    corner = lambda r, c: 1 + s * KroneckerDelta(r, c)
    inverse = lambda r, c: (KroneckerDelta(r, c) - 1 / (H + s)) / s
    return Proof(
        r"\sum_i p_i = 1",
        (
            equality("Softmax inputs lie in a plane, so (1, −1) is not seen by weights and bias", total(p, H), 1),
            equality(
                "Logits log(1 + s) at one unit give rows of 11ᵀ + sI, which has an inverse: the inputs span the space",
                total(lambda l: corner(i, l) * inverse(l, j), H),
                KroneckerDelta(i, j),
                r"\sum_k (1 + s\delta_{ik})(\delta_{kj} - 1/(H + s))/s",
            ),
            volume_step(),
        ),
    )


def outputs_without_condition() -> AbstractFamily:
    """Outputs whose covariance is singular."""
    return families.Categorical()


@PAPER.claim(
    "chun2026.softmax_outputs",
    source="beyond the paper",
    statement="The drop after layer norm is m/2 whatever the distribution of the m outputs.",
    assumptions=("the covariance of the outputs is positive definite, as with independent outputs",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def softmax_outputs(problem: Problem):
    """The drop of the rank from RMSNorm to layer norm, with Bernoulli and with softmax outputs."""
    x = draw_inputs(problem)
    points = rms_norm(x), layer_norm(x)
    independent = [fisher_rank(p, families.Bernoulli()) for p in points]
    yield same_integer("Bernoulli outputs: drop of rank F and m", independent[0] - independent[1], OUTPUTS)
    softmax = [float(fisher_rank(p, outputs_without_condition())) for p in points]
    yield differ(
        f"softmax outputs: the drop, {softmax[0]:g} − {softmax[1]:g}, and m",
        softmax[0] - softmax[1],
        float(OUTPUTS),
        role=Role.FAILS_WITHOUT_CONDITION,
    )


def drop_at_zero(covariance: sp.Matrix, X: sp.MatrixBase) -> int:
    """Drop of rank F from RMSNorm to layer norm where all samples have one covariance, exactly."""
    outputs = [
        LAYER_NORM.exactly(sp.eye(X.cols), X),
        X,  # rows of equal norm, so RMSNorm is a common factor
    ]
    after_ln, after_rms_ = (sp.kronecker_product(covariance, sp.Matrix(v.T * v)).rank() for v in outputs)
    return after_rms_ - after_ln


@softmax_outputs.proof("conditional")
def softmax_outputs_proof() -> Proof:
    """F is Λ ⊗ E[nnᵀ] where Λ is constant, and a softmax's Λ has the null vector 1."""
    weight = field("w", positive=True)
    q = lambda l: weight(l) / total(weight, H)
    X = matrix([[1, 2, 2], [2, 1, 2], [-2, 2, 1]])
    return Proof(
        r"\mathrm{rank}(\Lambda \otimes E[nn^\top]) = \mathrm{rank}\,\Lambda\ \mathrm{rank}\,E[nn^\top]",
        (
            *outputs_of_layer_norm_span(),
            fact(
                "Three outputs and three units, Λ = I: the drop is m = 3",
                r"\mathrm{rank}\,F_{\mathrm{RMS}} - \mathrm{rank}\,F_{\mathrm{LN}} = 3",
                lambda: drop_at_zero(sp.eye(3), X) == 3,
            ),
            equality(
                "A softmax's covariance has the null vector 1, so it counts m − 1 outputs",
                total(lambda l: q(i) * KroneckerDelta(i, l) - q(i) * q(l), H),
                0,
                r"\sum_j \Lambda_{ij}",
            ),
        ),
        (
            Assumption(
                "the covariance of the outputs is positive definite",
                r"\Lambda \succ 0",
                Counterexample(
                    "the drop with softmax outputs",
                    r"\mathrm{rank}\,F_{\mathrm{RMS}} - \mathrm{rank}\,F_{\mathrm{LN}} = m",
                    {"X": X, "m": 3},
                    lambda v: (
                        sp.Integer(drop_at_zero(sp.eye(v["m"]) / v["m"] - sp.ones(v["m"]) / v["m"] ** 2, v["X"])),
                        v["m"],
                    ),
                    "Softmax outputs of equal probability, three states of equal norm: the drop (left) and m (right)",
                ),
            ),
        ),
    )


HEIGHTS, AZIMUTHS = 40, 10
ANGLES = np.array([1.0, 0.3, 0.1, 0.03, 0.01])


def cap(angle: float) -> Points:
    """400 points spread evenly over the cap of this angle of the sphere in three dimensions."""
    share = (np.arange(HEIGHTS) + 0.5) / HEIGHTS
    sunk = share * 2 * np.sin(angle / 2) ** 2  # 1 − height, without cancellation
    radius = np.sqrt(sunk * (2 - sunk))
    turn = 2 * np.pi * np.arange(AZIMUTHS) / AZIMUTHS
    ring = np.stack([np.outer(radius, np.cos(turn)), np.outer(radius, np.sin(turn))], -1)
    return np.concatenate([ring, np.broadcast_to(1 - sunk[:, None, None], (*ring.shape[:2], 1))], -1).reshape(-1, 3)


def bent(curvature: float) -> Points:
    """A disc that is bent to a paraboloid of this curvature."""
    disc = cap(1.0)[:, :2]
    return np.concatenate([disc, 1 + curvature / 2 * np.sum(disc**2, 1, keepdims=True)], 1)


def least_variance(points: Points) -> float:
    """The smallest eigenvalue of the covariance, from singular values."""
    return float(np.linalg.svd(points - points.mean(0), compute_uv=False)[-1] ** 2 / len(points))


@PAPER.claim(
    "chun2026.threshold",
    source="Abstract: geometric threshold",
    statement="Any curvature, whatever its sign and size, preserves the coefficient; only flat manifolds lower it. At "
    "n samples the crossover is smooth.",
    formula=r"\lambda_{\min} \propto \theta^4",
    assumptions=("surfaces of codimension one", "a bias in the next layer"),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def threshold(problem: Problem):
    """Bent discs, and caps of a sphere down to an angle of 0.01."""
    for curvature in (1.0, -1.0, 1e-3):
        yield same_integer(
            f"disc of curvature {curvature:g}: rank F and 4m", fisher_rank(with_bias(bent(curvature))), 4 * OUTPUTS
        )
    yield same_integer("flat disc: rank F and 3m", fisher_rank(with_bias(bent(0.0))), 3 * OUTPUTS)
    found = np.array([least_variance(cap(angle)) for angle in ANGLES])
    power = exponent_of(ANGLES, found)
    curve = {"least variance of a cap against its angle": (ANGLES, found)}
    yield agree("exponent of λ_min in θ, θ from 0.01 to 1", power, 4.0, tol=0.025, curves=curve)
    exact = (2 * np.sin(ANGLES / 2) ** 2) ** 2 / 12 * (1 - 1 / HEIGHTS**2)
    yield agree("λ_min and (1 − cos θ)²/12", found, exact, tol=1e-9)
    points = with_bias(cap(0.01))
    slopes = np.array([coefficient(points, count / found[-1]) for count in (1e-2, 1e2)])
    yield agree("LLC at 0.01/λ_min and 100/λ_min samples, θ = 0.01", slopes, OUTPUTS / 2 * np.array([3, 4.0]), tol=0.02)


@threshold.proof()
def threshold_proof() -> Proof:
    """The height of a cap has a positive variance, and so has that of a bent disc."""
    theta, h = sp.symbols("theta h", positive=True)
    kappa = sp.Symbol("kappa", real=True, nonzero=True)
    lowest = sp.cos(theta)
    average = sp.integrate(h, (h, lowest, 1)) / (1 - lowest)
    variance = sp.integrate(h**2, (h, lowest, 1)) / (1 - lowest) - average**2
    r = sp.Symbol("r", positive=True)
    squares = sp.integrate(r**4 * 2 * r, (r, 0, 1)) - sp.integrate(r**2 * 2 * r, (r, 0, 1)) ** 2
    bend = kappa**2 / 4 * squares
    return Proof(
        r"\mathrm{Var}\,h = (1 - \cos\theta)^2/12 = \theta^4/48 + O(\theta^6)",
        (
            fact(
                "The height of a point of a cap is uniform; its variance is positive for every angle",
                r"\mathrm{Var}\,h = (1 - \cos\theta)^2/12",
                lambda: sp.simplify(variance - (1 - sp.cos(theta)) ** 2 / 12) == 0,
            ),
            fact(
                "and of fourth order in the angle",
                r"\lim_{\theta\to0}\mathrm{Var}\,h/\theta^4 = 1/48",
                lambda: sp.limit((1 - sp.cos(theta)) ** 2 / 12 / theta**4, theta, 0) == sp.Rational(1, 48),
                "Var h/θ⁴ → 1/48 as θ → 0",
            ),
            fact(
                "A disc bent by κ ≠ 0 of either sign has a height of positive variance",
                r"\mathrm{Var}(\kappa r^2/2) = \kappa^2/48 > 0",
                lambda: sp.simplify(bend - kappa**2 / 48) == 0 and bend.is_positive is True,
            ),
        ),
    )
