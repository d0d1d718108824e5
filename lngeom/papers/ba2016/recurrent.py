"""Eqs. 4 and 15–31: layer-normalized recurrent cells, and what the supplement says of their parameters."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from sympy import Expr, KroneckerDelta, sqrt

from lngeom import nn
from lngeom._core.draws import draw_small
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, numpy_reference, same_integer, vanishes
from lngeom.claims.context import Context, Read, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.methods.transformations import WEIGHT_MATRIX_RESCALING
from lngeom.nn.gated import LSTMState
from lngeom.papers.ba2016.metric import POSITIVE
from lngeom.papers.ba2016.rescaling import POSITIVE_EPSILON, scaling_assumptions
from lngeom.symbolic.actions import DELTA
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import LAYER_NORM, Layer
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, equality, expanded, fact, matrix, refutation
from lngeom.symbolic.scale_free import scaled_layer
from lngeom.symbolic.sums import D, Field, H, derivative, field, i, mean, n, total

TOPIC = "recurrent"
STEPS, BATCH, INPUTS, HIDDEN = 12, 3, 4, 6


def sequences(problem: Problem):
    """Random inputs [T B D]; more than one input, since a layer norm of scalar inputs would discard their size."""
    return problem.normal("sequences", STEPS, BATCH, INPUTS)


def cell_of(problem: Problem, kind, **options):
    """A random cell whose gains and biases are away from 1 and 0, started from a random state."""
    dtype = problem.dtype
    cell = kind(INPUTS, HIDDEN, key=problem.key(kind.__name__), dtype=dtype, **options)
    leaves, structure = jax.tree.flatten(eqx.filter(cell, eqx.is_array))
    keys = jax.random.split(problem.key("gains and biases"), len(leaves))
    moved = [v + 0.3 * draw_small(jax.random.normal, k, v.shape, dtype) for v, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), cell)


def start(problem: Problem, cell):
    """A random state (h, c) of the cell; zeros would have no variance, and an undefined layer norm with ε = 0."""
    h, c = problem.normal("state", 2, BATCH, HIDDEN)
    return LSTMState(h, c) if isinstance(cell, nn.LSTM | nn.LayerNormLSTM) else h


def transcription(problem: Problem, cell):
    """Outputs [T B H] of a cell by the NumPy transcription of its equations."""
    h, c = problem.normal("state", 2, BATCH, HIDDEN)
    return numpy_reference.recurrent(cell, *(np.asarray(v) for v in (sequences(problem), h, c)))


def run(problem: Problem, cell):
    """Outputs [T B H] of a cell by the library's scan."""
    return eqx.filter_jit(nn.unroll)(cell, sequences(problem), start(problem, cell))[1]


@claim(
    "equation.4",
    topic=TOPIC,
    source="Eq. 4; Section 3.1",
    statement="The layer-normalized RNN is invariant to re-scaling all of the summed inputs to a layer.",
    formula=r"\mathbf h^t = f\left[\tfrac{\mathbf g}{\sigma^t}\odot(\mathbf a^t-\mu^t)+\mathbf b\right]",
    assumptions=("δ > 0", "ε = 0", "σ > 0"),
    context=Context(
        sentence=(
            "In a layer normalized RNN, the normalization terms make it invariant to re-scaling all of the summed "
            "inputs to a layer, which results in much more stable hidden-to-hidden dynamics."
        ),
        before=(
            "In a standard RNN, there is a tendency for the average magnitude of the summed inputs to the recurrent "
            "units to either grow or shrink at every time-step, leading to exploding or vanishing gradients."
        ),
        after="",
        readings=(
            Reading(
                "A re-scaling is by one positive factor for all summed inputs of a step, and ε is zero as in Eq. 4.",
                Verdict.HOLDS,
            ),
            Reading("A re-scaling may have a negative factor, which changes the output.", Verdict.REFUTED),
        ),
        verdict=(
            "The invariance is exact. It is conditional because the sentence does not say that the factor is positive."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def equation_4(problem: Problem):
    """W_hh and W_xh multiplied by one δ, in the layer-normalized and in the standard RNN."""

    def scaled(cell, delta: float):
        def weights(c):
            return c.recurrent_weights, c.input_weights

        return eqx.tree_at(weights, cell, tuple(delta * w for w in weights(cell)))

    def compare(cell, delta: float):
        return run(problem, cell), run(problem, scaled(cell, delta))

    cell = cell_of(problem, nn.LayerNormRNN, eps=0.0)
    yield agree("layer norm, all summed inputs times 3, every step", *compare(cell, 3.0))
    both = transcription(problem, cell), transcription(problem, scaled(cell, 3.0))
    yield agree("the same by the NumPy transcription", *both, tol=1e-11)
    yield agree("scan and transcription", run(problem, cell), both[0], tol=1e-11)
    yield differ("δ < 0", *compare(cell, -3.0), role=Role.FAILS_WITHOUT_CONDITION)
    damped = cell_of(problem, nn.LayerNormRNN, eps=0.1)
    yield differ("with an ε, which Eq. 4 does not have, it is not", *compare(damped, 3.0))
    yield differ("the standard RNN is not invariant", *compare(cell_of(problem, nn.RNN), 3.0))


def _recurrent(h: Field, x: Field, U: Field, V: Field, scale):
    return total(lambda j: scale * U(i, j) * h(j), H) + total(lambda d: scale * V(i, d) * x(d), D)


@equation_4.proof("conditional")
def equation_4_proof() -> Proof:
    """A layer normalized recurrent step ignores the scale of all its summed inputs."""
    h, x, U, V = field("h"), field("x"), field("U"), field("V")
    a = lambda i: total(lambda j: U(i, j) * h(j), H) + total(lambda d: V(i, d) * x(d), D)

    def normalized(a: Field, eps=sp.S.Zero):
        average = mean(a, H)
        return (a(i) - average) / sqrt(mean(lambda j: (a(j) - average) ** 2, H) + eps)

    scaled = lambda i: DELTA * a(i)
    spread, variance = mean(lambda j: (a(j) - mean(a, H)) ** 2, H), sp.Symbol(r"\sigma^2")
    eps = POSITIVE_EPSILON
    return Proof(
        r"a^t \mapsto \delta a^t,\ a^t = W_{hh}h^{t-1} + W_{xh}x^t \Rightarrow h^t \text{ stays}",
        (
            equality("Normalized summed inputs stay", normalized(scaled), normalized(a), r"n'"),
            equality(
                "With ε they change by an exact ratio, σ² being the variance of a",
                normalized(scaled, eps),
                sp.Symbol("n_{i}") * sqrt((variance + eps) / (variance + eps / DELTA**2)),
                "n'_i",
                {"n_{i}": normalized(a, eps)},
                {r"\sigma^2": spread},
            ),
            equality("Scaling both weight matrices scales all summed inputs", scaled(i), _recurrent(h, x, U, V, DELTA)),
        ),
        scaling_assumptions("equation.4", WEIGHT_MATRIX_RESCALING),
    )


@claim(
    "supplement.cells",
    topic=TOPIC,
    source="Eqs. 15–22, 29–31",
    formerly=("equation.15_16", "equation.17_19", "equation.21_22", "equation.29_31"),
    statement=(
        "The supplement's cells are defined as the library computes them: LN with gain and bias (15, 16), the LSTM "
        "(17–19), the layer-normalized LSTM, which carries the raw cell (20–22), and DRAW's, which normalizes the cell "
        "on its way to the output and nothing else (29–31)."
    ),
    formula=r"\mathrm{LN}(\mathbf z;\alpha,\beta) = \frac{\mathbf z-\mu}{\sigma}\odot\alpha+\beta",
    assumptions=("σ > 0",),
    expected=Verdict.HOLDS,
    why_numeric="A definition: what can be checked is that the library computes it.",
)
def supplement_cells(problem: Problem):
    """The library's layer norm against its definition, its cells against a NumPy transcription over twelve steps."""
    z = sequences(problem).reshape(-1, INPUTS)
    alpha, beta = problem.normal("alpha", 2, INPUTS)
    values, gain, bias = (np.asarray(v, np.longdouble) for v in (z, alpha, beta))
    spread = values - values.mean(1, keepdims=True)
    defined = spread / np.sqrt((spread**2).mean(1, keepdims=True)) * gain + bias
    yield agree("layer_norm and the definition", nn.layer_norm(z, alpha, beta, eps=0.0), defined, tol=1e-12)
    identity = nn.layer_norm(z, jnp.ones(INPUTS, z.dtype), jnp.zeros(INPUTS, z.dtype), eps=0.0)
    yield vanishes("mean with gain 1 and bias 0", jnp.mean(identity, 1), scale=1.0)
    for what, kind, options in (
        ("LSTM", nn.LSTM, {}),
        ("layer-normalized LSTM", nn.LayerNormLSTM, {"eps": 0.0}),
        ("LSTM with normalized output", nn.LayerNormLSTM, {"eps": 0.0, "output_only": True}),
    ):
        cell = cell_of(problem, kind, **options)
        yield agree(f"{what}: scan and transcription", run(problem, cell), transcription(problem, cell), tol=1e-11)


@claim(
    "equation.20",
    topic=TOPIC,
    source="Eq. 20",
    statement=(
        "The gates' two layer norms and the bias, LN(W_h h; α₁, β₁) + LN(W_x x; α₂, β₂) + b, have 2·4H redundant "
        "dimensions."
    ),
    expected=Verdict.HOLDS,
)
def equation_20(problem: Problem):
    """Moving a vector between β₁, β₂ and b changes nothing; the rank of ∂gates/∂(β₁, β₂, b) is 4H of 12H."""
    x, cell = sequences(problem), cell_of(problem, nn.LayerNormLSTM, eps=0.0)

    def where(c):
        return c.recurrent_norm.bias, c.input_norm.bias, c.bias

    @eqx.filter_jit
    def outputs(biases):
        return nn.unroll(eqx.tree_at(where, cell, biases), x, start(problem, cell))[1]

    t, s = problem.normal("moved", 2, 4 * HIDDEN)
    first, second, bias = where(cell)
    yield agree(
        "t moved from β₁ to b, s from β₂",
        outputs((first, second, bias)),
        outputs((first - t, second - s, bias + t + s)),
    )
    jacobian = eqx.filter_jit(jax.jacfwd(outputs))((first, second, bias))
    stacked = np.concatenate([np.asarray(j).reshape(-1, 4 * HIDDEN) for j in jacobian], 1)
    redundant = stacked.shape[1] - int(np.linalg.matrix_rank(stacked))
    yield same_integer("redundant dimensions and 2·4H", redundant, 2 * 4 * HIDDEN)


@equation_20.proof()
def equation_20_proof() -> Proof:
    """Two layer norms and a bias: both scales are ignored, and three biases do the work of one."""
    U, V, h, x = (field(name) for name in ("U", "V", "h", "x"))
    layers = [Layer(U, lambda n, d: h(d)), Layer(V, lambda n, d: x(d))]
    first, second, bias, c, r = *(field(name) for name in ("p", "q", "b", "c")), field("r")
    gates = lambda A, B, C: sum((LAYER_NORM(L) for L in layers), A(i) + B(i) + C(i))
    alone = Layer(lambda l, d: DELTA * U(l, d), layers[0].X)
    shifted = [lambda l: first(l) + c(l), lambda l: second(l) + r(l), lambda l: bias(l) - c(l) - r(l)]

    def redundancy() -> bool:
        units = 4
        jacobian = sp.Matrix.hstack(*[sp.eye(units)] * 3)
        return 3 * units - jacobian.rank() == 2 * units

    return Proof(
        r"\mathrm{LN}(W_hh;\alpha_1,\beta_1) + \mathrm{LN}(W_xx;\alpha_2,\beta_2) + "
        r"b: 2\cdot 4H \text{ redundant dimensions}",
        (
            equality("Scaling W_h alone changes nothing", LAYER_NORM(alone), LAYER_NORM(layers[0])),
            equality(
                "With p = β₁ and q = β₂: p + c, q + r and b − c − r give the same gates",
                gates(*shifted),
                gates(first, second, bias),
                "s'_i",
            ),
            fact(
                "so of three biases for each of 4H gates two are redundant, by rank",
                r"3\cdot 4H - \mathrm{rank}[I\,I\,I] = 2\cdot 4H",
                redundancy,
            ),
        ),
        (POSITIVE, Assumption("positive factor", r"\delta > 0")),
    )


@claim(
    "recurrent.separate_scales",
    topic=TOPIC,
    source="Eq. 20 (not in the paper)",
    statement=(
        "The layer-normalized LSTM, whose two products have norms of their own, ignores the scale of W_h alone and of "
        "W_x alone. The layer-normalized RNN of Eq. 4, with one norm for their sum, ignores only a common scale."
    ),
    formula=r"\mathrm{LN}(cW_hh) + \mathrm{LN}(dW_xx) = \mathrm{LN}(W_hh) + \mathrm{LN}(W_xx)",
    assumptions=("factors c, d > 0", "ε = 0", "σ > 0"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def separate_scales(problem: Problem):
    """Hidden vectors of twelve steps with W_h, W_x or both multiplied by a factor."""
    lstm, rnn = cell_of(problem, nn.LayerNormLSTM, eps=0.0), cell_of(problem, nn.LayerNormRNN, eps=0.0)

    def scaled(cell, recurrent: float, inputs: float):
        weights = recurrent * cell.recurrent_weights, inputs * cell.input_weights
        return run(problem, eqx.tree_at(lambda c: (c.recurrent_weights, c.input_weights), cell, weights))

    before = run(problem, lstm)
    yield agree("LSTM: W_h → 7 W_h", before, scaled(lstm, 7.0, 1.0))
    yield agree("LSTM: W_x → W_x/5", before, scaled(lstm, 1.0, 0.2))
    yield differ("RNN of Eq. 4: W_h → 7 W_h", run(problem, rnn), scaled(rnn, 7.0, 1.0))
    yield agree("RNN of Eq. 4: both times 7", run(problem, rnn), scaled(rnn, 7.0, 7.0))


@separate_scales.proof()
def separate_scales_proof() -> Proof:
    """Each norm ignores the scale of its own product; one norm of the sum does not."""
    alone = Layer(lambda l, d: DELTA * LAYER.W(l, d), LAYER.X)
    first = lambda v, c: LAYER_NORM.exactly(c * v["W"] + v["V"], v["x"])[0]
    one_norm = Counterexample(
        "recurrent.separate_scales with one norm",
        r"\mathrm{LN}(cW_hh + W_xx) = \mathrm{LN}(W_hh + W_xx)",
        {"W": matrix([[1], [0], [0]]), "V": matrix([[0], [1], [0]]), "x": matrix([[1]])},
        lambda v: (first(v, 1), first(v, 7)),
        "First unit of LN(W_h h + W_x x) at h = x = 1 (left), with W_h → 7 W_h (right).",
    )
    return Proof(
        r"\mathrm{LN}(cW_hh) = \mathrm{LN}(W_hh),\quad \mathrm{LN}(cW_hh + W_xx) \neq \mathrm{LN}(W_hh + W_xx)",
        (
            equality("A norm ignores the scale of its product", LAYER_NORM(alone), LAYER_NORM(LAYER), r"n'_{ni}"),
            refutation("and one norm of the sum sees the scale of one of them", one_norm),
        ),
        (POSITIVE, Assumption("positive factor", r"c > 0")),
    )


@claim(
    "equation.23_28",
    topic=TOPIC,
    source="Eqs. 23–28",
    statement="One matrix W_x gives both the stacked gates (Eqs. 23, 26) and the candidate (Eqs. 24, 27) of the GRU.",
    context=Context(
        sentence="These experiments utilize a variant of gated recurrent unit which is defined as follows:",
        before="",
        after="[Eqs. 23–25] Layer normalization is applied as follows: [Eqs. 26–28]",
        readings=(
            Reading(
                "W_x stands for two matrices, one of the gates and one of the candidate, and products of vectors are "
                "element-wise.",
                Verdict.SLIP,
            ),
        ),
        verdict=(
            "With this reading the equations are the cell, and the correction states it. The notation alone is wrong: "
            "one W_x cannot have H and 2H rows."
        ),
    ),
    erratum=Erratum(Consequence.NOTATION, "In the GRU's equations W_x stands for two matrices, and products lack ⊙."),
    expected=Verdict.SLIP,
    correction=(
        "The gates need a matrix of 2H rows and the candidate one of H rows: two matrices. Two ⊙ are missing in "
        "each of Eqs. 25 and 28: (1 − σ(z)) ⊙ h + σ(z) ⊙ ĥ."
    ),
    why_numeric="A slip of notation: the shapes of the two uses are all there is to it.",
)
def equation_23_28(problem: Problem):
    """The shapes at which the equations are defined, by trying them; with two matrices and ⊙ the cells are these."""
    one = [rows for rows in range(1, 4 * HIDDEN + 1) if gru_is_defined(rows, rows)]
    two = [sizes for sizes in itertools.product(range(1, 4 * HIDDEN + 1), repeat=2) if gru_is_defined(*sizes)]
    yield same_integer(
        "numbers of rows of one W_x, of those up to 4H, at which Eqs. 23 to 25 are defined",
        len(one),
        0,
        role=Role.MISPRINT,
    )
    yield same_integer("pairs of rows at which they are, with two matrices", len(two), 1, role=Role.CORRECTS)
    yield same_integer(
        "without ⊙, read as products of vectors", int(gru_is_defined(*two[0], star=False)), 0, role=Role.MISPRINT
    )
    for what, kind, options in (("GRU", nn.GRU, {}), ("layer-normalized GRU", nn.LayerNormGRU, {"eps": 0.0})):
        cell = cell_of(problem, kind, **options)
        rows = len(cell.input_weights), len(cell.candidate_input_weights)
        yield agree(
            f"{what}: rows of its two matrices, and the pair", np.array(rows), np.array(two[0]), role=Role.CORRECTS
        )
        both = run(problem, cell), transcription(problem, cell)
        yield agree(f"{what} with two matrices: scan and transcription", *both, tol=1e-11, role=Role.CORRECTS)


def gru_is_defined(gates: int, candidate: int, hidden: int = HIDDEN, star: bool = True) -> bool:
    """Whether every operation of Eqs. 23–25 is one between vectors of the same size, h being a vector of H.

    Args:
        gates: rows of the matrix W_x of Eq. 23.
        candidate: rows of the W_x of Eq. 24.
        hidden: H.
        star: whether the products of Eq. 25 are ⊙, as everywhere else in the section; row times column otherwise.

    Returns:
        Whether they are.
    """

    def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.shape != b.shape:
            raise ValueError(f"{a.shape} and {b.shape}")
        return a + b

    product = same if star else np.dot
    h, U = np.ones(hidden), np.ones((hidden, hidden))
    try:
        z, r = np.split(np.ones(gates), 2)
        proposed = same(np.ones(candidate), same(r, U @ h))
        following = same(np.asarray(product(z, h)), np.asarray(product(z, proposed)))
        return following.shape == h.shape
    except ValueError:
        return False


@claim(
    "supplement.initialization",
    topic=TOPIC,
    source="Supplement, after Eqs. 22, 28, 31",
    statement="Each α is initialized to a vector of zeros and each β to one of ones, with LN as in Eq. 15.",
    context=Context(
        sentence="Each α_i is initialized to a vector of zeros and each β_i is initialized to a vector of ones.",
        before="where α_i, β_i are the additive and multiplicative parameters, respectively.",
        after=(
            "[Section 6:] Unless otherwise noted, the default initialization of layer normalization is to set the "
            "adaptive gains to 1 and the biases to 0 in the experiments."
        ),
        readings=(
            Reading(
                "α is the additive and β the multiplicative parameter, as the sentence before says: biases 0 and "
                "gains 1.",
                Verdict.HOLDS,
            ),
            Reading(
                "α multiplies and β is added, as Eq. 15 prints them: gains 0 give no gradient of the weights.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "What is meant is clear and agrees with Section 6: biases 0 and gains 1. Eq. 15 gives α the gains and β "
            "the biases."
        ),
    ),
    erratum=Erratum(Consequence.NOTATION, "The initial values of α and β are swapped with respect to Eq. 15."),
    expected=Verdict.SLIP,
    correction="Biases start at 0 and gains at 1: with the names of Eq. 15, α at ones and β at zeros.",
)
def supplement_initialization(problem: Problem):
    """The LSTM of Eqs. 20–22 started by the sentence, and with Eq. 15's names, under which it cannot learn."""
    x = sequences(problem)
    dtype = x.dtype

    def started(alpha: float, beta: float):
        cell = nn.LayerNormLSTM(INPUTS, HIDDEN, key=problem.key("lstm"), eps=0.0, dtype=dtype)

        def norms(c):
            return c.recurrent_norm, c.input_norm, c.cell_norm

        def filled(norm):
            return eqx.tree_at(
                lambda n: (n.gain, n.bias), norm, (jnp.full_like(norm.gain, alpha), jnp.full_like(norm.bias, beta))
            )

        return eqx.tree_at(norms, cell, tuple(filled(norm) for norm in norms(cell)))

    @eqx.filter_jit
    def gradient(cell):
        return eqx.filter_grad(lambda c: jnp.sum(nn.unroll(c, x, start(problem, c))[1] ** 2))(cell)

    swapped, meant = started(0.0, 1.0), started(1.0, 0.0)
    usual = nn.LayerNormLSTM(INPUTS, HIDDEN, key=problem.key("lstm"), eps=0.0, dtype=dtype)
    yield agree(
        "α adds, β multiplies: the start of Section 6", run(problem, meant), run(problem, usual), role=Role.CORRECTS
    )
    found = gradient(meant)
    sizes = jnp.array([jnp.max(jnp.abs(found.recurrent_weights)), jnp.max(jnp.abs(found.input_weights))])
    yield differ("and the gradient of the weights is not zero", sizes, 0 * sizes, role=Role.CORRECTS)
    hidden, constant = run(problem, swapped), 1 / (1 + np.exp(-2.0)) * np.tanh(1.0)
    yield agree(
        "α multiplies, β adds: every hidden unit and 0.6708",
        hidden,
        np.full(hidden.shape, constant),
        role=Role.MISPRINT,
    )
    found = gradient(swapped)
    weights = jnp.concatenate([found.recurrent_weights.reshape(-1), found.input_weights.reshape(-1)])
    yield vanishes("and the gradient of the weights", weights, scale=1.0, role=Role.MISPRINT)


@supplement_initialization.proof("slip")
def supplement_initialization_proof() -> Counterexample:
    """Gain one and bias zero standardize; with Eq. 15's names the cell ignores its input and its weights."""
    V, gain = field("V"), field("g")
    gated = lambda a, b: lambda t: a * LAYER_NORM(LAYER.towards(V, t)) + b
    slope = lambda gain: derivative(gated(gain, 1))

    def logistic(z: Expr) -> Expr:
        return 1 / (1 + sp.exp(-z))

    def outputs(values) -> tuple[Expr, Expr]:
        a, b = values[r"\alpha"], values[r"\beta"]
        literal = a * LAYER_NORM.exactly(values["W"], values["x"]) + b * sp.ones(1, 4)
        normal = LAYER_NORM.exactly(values["W"], values["x"])
        return logistic(2 * literal[0]) * sp.tanh(literal[0]), logistic(2 * normal[0]) * sp.tanh(normal[0])

    correct = Proof(
        r"\text{gain } 1,\ \text{bias } 0:\ \mathrm{LN} \text{ standardizes};\quad \text{gain } 0,\ \text{bias } 1:\ "
        r"h = \sigma(2)\tanh(1),\ \partial h/\partial W = 0",
        (
            equality(
                "Gain one and bias zero standardize", gated(sp.S.One, sp.S.Zero)(0), LAYER_NORM(LAYER), r"\mathrm{LN}_i"
            ),
            equality(
                "The derivative by W has the gain as a factor",
                slope(gain(i)),
                gain(i) * sp.Symbol("dn_{i}"),
                r"d\,\mathrm{LN}_i",
                {"dn_{i}": slope(sp.S.One)},
            ),
            equality("so with gain zero it vanishes", slope(sp.S.Zero), 0, r"d\,\mathrm{LN}_i"),
            equality(
                "and LN is its bias: each gate is 1 + 1 + 0 = 2, LN(c) is 1",
                gated(sp.S.Zero, 1)(0) * 2,
                2,
                r"\mathrm{LN} + \mathrm{LN}",
            ),
        ),
        (POSITIVE, Assumption("α adds and β multiplies", r"\mathrm{LN}(z) = \beta \odot n + \alpha")),
        name="the correction",
    )
    return Counterexample(
        "supplement.initialization",
        r"\alpha = 0, \beta = 1 \text{ is the initialization of Eq. 15 by gains one and biases zero}",
        {"W": matrix([[3], [1], [-1], [-3]]), "x": matrix([[1]]), r"\alpha": 0, r"\beta": 1},
        outputs,
        "σ(2 LN) tanh(LN) of the first unit: by Eq. 15 σ(2) tanh(1) (left), with gain one and bias zero (right).",
        correct,
    )


@claim(
    "experiments.no_ln_on_logits",
    topic=TOPIC,
    source="Section 6.6",
    statement=(
        "The scale of the logits determines the prediction confidence, and layer norm takes it away: normalized logits "
        "cap the largest probability. A gain lifts the cap."
    ),
    formula=r"\max_i q_i \le \frac{1}{1+(H-1)e^{-gH/\sqrt{H-1}}}",
    assumptions=(
        "one gain g for all logits, bias 0, ε = 0",
        "the paper concludes that layer norm is unnecessary there, which is a choice and no consequence of the cap",
    ),
    expected=Verdict.HOLDS,
)
def no_ln_on_logits(problem: Problem):
    """At gain 1 layer-normalized logits of ten classes cap the confidence at 0.757; the cap is attained, not passed."""

    @jax.jit
    def confidence(logits):
        return jnp.max(jax.nn.softmax(logits, -1), -1)

    @jax.jit
    def normalized(logits, gain):
        return confidence(gain * nn.layer_norm(logits, eps=0.0))

    for classes, gain in ((3, 1.0), (10, 1.0), (100, 1.0), (10, 3.0)):
        bound = 1 / (1 + (classes - 1) * np.exp(-gain * classes / np.sqrt(classes - 1)))
        drawn = np.asarray(problem.normal("logits", 2000, classes, dtype=float))
        logits = np.concatenate([np.eye(1, classes, dtype=drawn.dtype), 50 * drawn])
        found = np.asarray(normalized(logits, gain))
        what = f"{classes} classes, gain {gain:g}"
        yield agree(f"{what}: bound ({bound:.3f}) and attained confidence", found[:1], np.array([bound]))
        yield vanishes(f"{what}: excess over the bound", np.maximum(found - bound, 0.0), scale=bound)
    smaller = 0.01 * logits
    yield differ("confidence in the logits, and in 0.01 times the logits", confidence(smaller), confidence(logits))
    pair = (normalized(values, 1.0) for values in (smaller, logits))
    yield agree("layer norm: the same confidence in both", *pair)


@no_ln_on_logits.proof()
def no_ln_on_logits_proof() -> Proof:
    """Normalized logits bound the largest probability of a softmax away from one, at any gain."""
    a = field("n")
    others = lambda f: total(lambda l: (1 - KroneckerDelta(l, i)) * f(l), H)
    lagrange = (
        total(
            lambda k: (1 - KroneckerDelta(k, i)) * total(lambda l: (1 - KroneckerDelta(l, i)) * (a(k) - a(l)) ** 2, H),
            H,
        )
        / 2
    )
    x = sp.Symbol("x", real=True)
    height = sp.Symbol("H", integer=True, positive=True)
    root = sqrt(height - 1)
    gain = sp.Symbol("g", positive=True)

    spike = Layer(lambda l, d: KroneckerDelta(l, i), lambda n, d: 1 / D)
    peak = lambda l: LAYER_NORM(spike, n, l)

    def tangent() -> bool:
        gap = sp.exp(x) - 1 - x
        return gap.subs(x, 0) == 0 and gap.diff(x).subs(x, 0) == 0 and bool(sp.diff(gap, x, 2).is_positive)

    def attained() -> bool:
        for size in (2, 3, 5, 10):
            (row,) = LAYER_NORM.exactly([[size], *[[0]] * (size - 1)], [[1]]).tolist()
            gaps = [sp.radsimp(value - row[0] + size / sqrt(sp.Integer(size - 1))) for value in row[1:]]
            if any(gap != 0 for gap in gaps):
                return False
        return True

    return Proof(
        r"\max_i q_i \leq \frac{1}{1+(H-1)e^{-gH/\sqrt{H-1}}},\ q = \mathrm{softmax}(gn),\ g > 0,\ \text{attained}",
        (
            equality("Layer norm does not see the scale of the logits", LAYER_NORM(scaled_layer()), LAYER_NORM(LAYER)),
            equality("The other logits sum to −n_i, since all sum to zero", others(a), total(a, H) - a(i)),
            equality(
                "Their squares and their sum (Lagrange's identity): the gap is a sum of squares",
                (H - 1) * others(lambda l: a(l) ** 2) - others(a) ** 2,
                lagrange,
            ),
            expanded(
                "With Σn = 0 and Σn² = H that is (H − 1)(H − n²) ≥ n², so n_i ≤ √(H − 1)",
                r"(H-1)(H-n^2) - n^2 = H(H-1-n^2)",
                (height - 1) * (height - x**2) - x**2 - height * (height - 1 - x**2),
            ),
            fact(
                "eˣ ≥ 1 + x: tangent at 0 of a convex function; so a mean of exponentials is at least that of the mean",
                r"e^x \geq 1 + x",
                tangent,
            ),
            expanded(
                "The mean of n_j − n_i over the others is −n_i H/(H − 1) ≥ −H/√(H − 1)",
                r"-\frac{x}{H-1} - x = -\frac{xH}{H-1}",
                -x / (height - 1) - x + x * height / (height - 1),
                root * height / (height - 1) - height / root,
            ),
            expanded(
                "so with gain g the mean of the exponents is at least −gH/√(H − 1), and equal gaps give equality",
                r"1 + (H-1)e^{gs},\ s = -H/\sqrt{H-1}",
                gain * (-x / (height - 1) - x) + gain * x * height / (height - 1),
                gain * (root * height / (height - 1)) - gain * height / root,
            ),
            equality("One logit above H − 1 equal ones reaches n_i² = H − 1", a(i) ** 2, H - 1, short={"n": peak}),
            equality(
                "where all the others are equal, n_j = −1/n_i",
                others(lambda l: (a(l) * a(i) + 1) ** 2),
                0,
                short={"n": peak},
            ),
            fact(
                "so the gaps are −H/√(H − 1) and the bound is attained: exactly, at H = 2, 3, 5, 10",
                r"n_j - n_i = -H/\sqrt{H-1}",
                attained,
            ),
        ),
    )
