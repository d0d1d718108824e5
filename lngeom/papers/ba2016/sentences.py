"""Sentences of Sections 2, 3, 5.1, 5.2.2 and 6.7 that stand between the equations, made precise enough to check."""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Float
from sympy import KroneckerDelta, sqrt

from lngeom import families
from lngeom._core.types import GLMParameters
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, numpy_reference
from lngeom.claims.context import Context, Reading
from lngeom.claims.evidence import Evidence, Kind
from lngeom.claims.problem import NORMALIZERS, TITLES
from lngeom.families import AbstractFamily
from lngeom.methods.transformations import WEIGHT_VECTOR_RESCALING
from lngeom.symbolic.actions import DELTA, SCALE
from lngeom.symbolic.jacobian import GAIN, LAYER, SIGMA, along
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, WEIGHT_NORM, Layer
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix, refutation
from lngeom.symbolic.sums import D, H, N, derivative, field, i, j, mean, n, total
from lngeom.symbolic.table import counterexample, expansion, general_steps

TOPIC = "statements"
CASES, DRAWS = 64, 1000


def changes_of_gradient(problem: Problem, correlated: bool) -> Float[np.ndarray, "K H D"]:
    """E[δ Δhᵀ] of many draws, for random δ and changes Δh of variance one, equal in all outputs or independent."""
    generator = np.random.default_rng(problem.seed)
    signals = generator.normal(size=(CASES, 16))
    changes = generator.normal(size=(DRAWS, CASES, 1 if correlated else 24))
    return signals.T @ np.broadcast_to(changes, (DRAWS, CASES, 24)) / CASES


@claim(
    "statements.gradients_follow_outputs",
    topic=TOPIC,
    source="Section 2",
    statement=(
        "The gradients of the weights of a layer depend on the outputs of the layer before, especially if these change "
        "in a highly correlated way."
    ),
    formula=r"\partial L/\partial W = E[\delta h^\top],\quad E\|\delta \Delta h^\top\|_F^2 \propto \mathrm{tr}\,C",
    assumptions=(
        "dependence is the largest singular value of the gradient's change; by the sum of squares the correlation of "
        "the outputs makes no difference",
        "the signals δ from above stay, and changes of different cases are independent",
    ),
    context=Context(
        sentence=(
            "One of the challenges of deep learning is that the gradients with respect to the weights in one layer are "
            "highly dependent on the outputs of the neurons in the previous layer especially if these outputs change "
            "in a highly correlated way."
        ),
        before=(
            "The parameters in the neural network are learnt using gradient-based optimization algorithms with the "
            "gradients being computed by back-propagation."
        ),
        after=(
            "Batch normalization [Ioffe and Szegedy, 2015] was proposed to reduce such undesirable ‘‘covariate shift’’."
        ),
        readings=(
            Reading(
                "Correlated changes move the gradient further in one direction than independent changes of equal size.",
                Verdict.HOLDS,
            ),
            Reading(
                "Dependence is the sum of squares of the gradient's change, on which correlation has no effect.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "It holds: the gradient is linear in the outputs, and correlated changes add up in one direction. The "
            "condition is needed because the sentence gives no measure of dependence."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def gradients_follow_outputs(problem: Problem) -> Iterator[Evidence]:
    """The gradient against E[δ hᵀ]; its change under correlated and independent changes of the outputs."""
    generator = np.random.default_rng(problem.seed)
    outputs, W, y = (generator.normal(size=shape) for shape in ((CASES, 5), (3, 5), (CASES, 3)))

    def loss(weights):
        z = outputs @ weights.T
        return np.sum(np.log(1 + np.exp(z)) - y * z) / CASES

    step = 1e-30
    entries = step * np.eye(W.size).reshape(W.size, *W.shape)
    gradient = np.array([np.imag(loss(W + 1j * entry)) / step for entry in entries]).reshape(W.shape)
    signals = 1 / (1 + np.exp(-outputs @ W.T)) - y
    yield agree("gradient of the weights, by complex steps, and E[δ hᵀ]", gradient, signals.T @ outputs / CASES)
    together, alone = (changes_of_gradient(problem, correlated) for correlated in (True, False))
    largest = [np.mean(np.linalg.norm(changes, 2, (1, 2)) ** 2) for changes in (together, alone)]
    yield Evidence(
        Kind.COUNTEREXAMPLE,
        Role.SUPPORTS,
        f"largest squared singular value of the change, correlated over independent: {largest[0] / largest[1]:.2f}; "
        "its distance from 1",
        passed=largest[0] > 1.5 * largest[1],
        contradicts=largest[0] < largest[1],
        residual=float(largest[0] / largest[1]) - 1,
        tolerance=0.5,
        samples=2 * len(together),
    )
    squares = [np.mean(np.sum(changes**2, (1, 2))) for changes in (together, alone)]
    yield agree(
        "sum of squares of the change, correlated and independent",
        squares[0],
        squares[1],
        tol=0.1,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


def _largest_square(changes: sp.Matrix) -> sp.Expr:
    """Largest squared singular value of an exact matrix."""
    return sp.Max(*(changes.T * changes).eigenvals())


@gradients_follow_outputs.proof("conditional")
def gradients_follow_outputs_proof() -> Proof:
    """The gradient is linear in the outputs; correlation moves its largest singular value, not its sum of squares."""
    V, C, signal = field("V"), field("C"), field("delta")
    moved = lambda t: total(lambda l: signal(n, l) * LAYER.towards(V, t).a(n, l), H)
    moments = lambda s, r, d: KroneckerDelta(s, r) * C(d, d)
    squares = total(
        lambda l: total(
            lambda d: total(lambda s: total(lambda r: signal(s, l) * signal(r, l) * moments(s, r, d), N), N), D
        ),
        H,
    )
    signs = list(itertools.product((-1, 1), repeat=2))
    correlated = [sp.Matrix([[a, a], [b, b]]) for a, b in signs]
    independent = [sp.Matrix([first, second]) for first in signs for second in signs]
    average = lambda f, cases: sum(f(case) for case in cases) / sp.Integer(len(cases))
    same = Counterexample(
        "statements.gradients_follow_outputs by the sum of squares",
        r"E\|\Delta G\|_F^2 \text{ depends on the correlation}",
        {"C": matrix([[1, 1], [1, 1]]), "C'": matrix([[1, 0], [0, 1]])},
        lambda v: (sp.Integer(v["C"].trace() == v["C'"].trace()), sp.S.Zero),
        "Whether the mean sum of squares, tr C for δ = 1, is the same for correlated and independent changes: 1 for "
        "yes (left), where 0 was stated (right).",
    )
    return Proof(
        r"\partial L/\partial W = \textstyle\sum_n \delta_n h_n^\top",
        (
            equality(
                "A change V of the weights changes the loss by ⟨V, δ hᵀ⟩: the gradient is linear in the outputs",
                derivative(moved),
                total(lambda l: total(lambda d: signal(n, l) * V(l, d) * LAYER.X(n, d), D), H),
            ),
            equality(
                "The mean sum of squares of its change has tr C alone, whatever the correlations",
                squares,
                total(lambda s: total(lambda l: signal(s, l) ** 2, H), N) * total(lambda d: C(d, d), D),
            ),
            fact(
                "Two units, cases and outputs, changes of ±1: the mean largest squared singular value is 4 or 3",
                r"E\,s_1^2 = 4 \text{ (correlated)},\ 3 \text{ (independent)}",
                lambda: [average(_largest_square, cases) for cases in (correlated, independent)] == [4, 3],
                sizes="two units, two cases and two outputs, changes of ±1",
            ),
        ),
        (Assumption("measured by the largest singular value", r"\|\Delta G\|_2", same),),
    )


@claim(
    "statements.any_unit_rescaling",
    topic=TOPIC,
    source="Section 5.1, weight re-scaling",
    statement=(
        "Under batch and weight norm, any re-scaling of the incoming weights of a single unit has no effect on its "
        "normalized summed inputs."
    ),
    formula=r"w_i \mapsto \delta_i w_i \Rightarrow n_i' = n_i",
    assumptions=("δ_i > 0", "ε = 0", "σ > 0"),
    context=Context(
        sentence=(
            "First, observe that under batch normalization and weight normalization, any re-scaling to the incoming "
            "weights w_i of a single neuron has no effect on the normalized summed inputs to a neuron."
        ),
        before="Weight re-scaling and re-centering:",
        after=(
            "To be precise, under batch and weight normalization, if the weight vector is scaled by δ, the two scalar "
            "μ and σ will also be scaled by δ."
        ),
        readings=(
            Reading("A re-scaling is by a positive factor, and ε is zero as in Eq. 2.", Verdict.HOLDS),
            Reading(
                "“Any” includes negative factors, which change the sign of the output.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "The sentence holds. The condition is needed because it says “any”, and the next sentence scales σ by δ, "
            "where |δ| is right."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def any_unit_rescaling(problem: Problem) -> Iterator[Evidence]:
    """A factor of its own for every unit: positive ones leave the normalized values, negative ones turn their sign."""
    for method in ("bn", "wn"):
        model, params, inputs = problem.case(method)
        factors = problem.uniform("factors", params.units, 1, low=0.25, high=4.0)

        def scaled(by, params=params):
            return GLMParameters(by * params.weights, params.bias, params.gain)

        name = TITLES[method]
        before, few = model.normalized(params, inputs), inputs[:256]
        negative = model.normalized(scaled(-factors), inputs)
        yield agree(f"{name}: positive factors", before, model.normalized(scaled(factors), inputs))
        reference = (numpy_reference.natural_parameters(method, p, few) for p in (params, scaled(factors)))
        yield agree(f"{name}: positive factors, NumPy reference", *reference, tol=1e-12)
        yield differ(f"{name}: negative factors", before, negative, role=Role.FAILS_WITHOUT_CONDITION)
        yield agree(f"{name}: negative factors change the sign alone", before, -negative)


@any_unit_rescaling.proof("conditional")
def any_unit_rescaling_proof() -> Proof:
    """Numerator and scale of unit i have the factors δ_i and |δ_i|."""
    id = "statements.any_unit_rescaling"
    factor = field("kappa")  # of either sign
    rescaled = Layer(lambda l, d: factor(l) * LAYER.W(l, d), LAYER.X)
    sign = factor(i) / sp.Abs(factor(i))
    steps: list[Step] = []
    for method in (BATCH_NORM, WEIGHT_NORM):
        steps += general_steps(method, WEIGHT_VECTOR_RESCALING, SCALE(i), sp.S.Zero)
        steps.append(expansion(method, WEIGHT_VECTOR_RESCALING))
        text = f"{method.name}: of a factor κ ≠ 0 of either sign the sign remains, since σ has the factor |κ|"
        steps.append(equality(text, method(rescaled), sign * method(LAYER)))
    flipped = [
        counterexample(f"{id} with δ < 0, {method.name}", method, WEIGHT_VECTOR_RESCALING, delta=Fraction(-2))
        for method in (BATCH_NORM, WEIGHT_NORM)
    ]
    steps.append(refutation("Weight norm at δ = −2, exactly", flipped[1]))
    return Proof(
        r"w_i \mapsto \delta_i w_i,\ \delta_i > 0 \Rightarrow n_i' = n_i",
        tuple(steps),
        (Assumption("positive factors", r"\delta_i > 0", flipped[0]), SIGMA),
        name=id,
    )


@claim(
    "statements.gain_is_magnitude",
    topic=TOPIC,
    source="Section 5.2.2, learning the magnitude of incoming weights; Appendix",
    statement=(
        "In normalized models the magnitude of the incoming weights of a unit is explicitly parameterized by its gain: "
        "the norm of w_i has no effect of its own."
    ),
    formula=r"w_i \mapsto c_iw_i,\ c_i > 0 \Rightarrow z = g \odot n(W, x) + b \text{ stays}",
    assumptions=(
        "batch or weight norm; under layer norm only the norm of the whole W has no effect, and the ratios of its "
        "rows' norms have one",
        "ε = 0",
    ),
    context=Context(
        sentence=(
            "In normalized models, the magnitude of the incoming weights is explicitly parameterized by the gain "
            "parameters."
        ),
        before="Learning the magnitude of incoming weights:",
        after="We compare how the model output changes between updating the gain parameters in the normalized GLM …",
        readings=(
            Reading(
                "The normalized models are those whose weight vectors have no scale: batch and weight norm.",
                Verdict.HOLDS,
            ),
            Reading("Layer norm is one of them, unit by unit.", Verdict.REFUTED),
        ),
        verdict=(
            "Under batch and weight norm the gain alone sets the size of z_i. The condition is needed because the "
            "section goes on to layer norm, where a longer w_i changes the outputs of all units."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def gain_is_magnitude(problem: Problem) -> Iterator[Evidence]:
    """Positive factors, one for each row of W: batch and weight norm keep the output, layer norm does not."""
    for method in ("bn", "wn", "ln"):
        model, params, inputs = problem.case(method)
        factors = problem.uniform("row factors", params.units, 1, low=0.25, high=4.0)
        longer = GLMParameters(factors * params.weights, params.bias, params.gain)
        before, after = (model.natural_parameters(p, inputs) for p in (params, longer))
        what = f"{TITLES[method]}: every row times its own factor"
        if method == "ln":
            yield differ(what, before, after, role=Role.FAILS_WITHOUT_CONDITION)
            whole = GLMParameters(3.0 * params.weights, params.bias, params.gain)
            yield agree(f"{TITLES[method]}: W times 3", before, model.natural_parameters(whole, inputs))
        else:
            yield agree(what, before, after)


@gain_is_magnitude.proof("conditional")
def gain_is_magnitude_proof() -> Proof:
    """Factors of rows drop out of batch and weight norm, and not of layer norm."""
    rows = Layer(lambda l, d: SCALE(l) * LAYER.W(l, d), LAYER.X)
    of_layer_norm = counterexample(
        "statements.gain_is_magnitude for layer norm", LAYER_NORM, WEIGHT_VECTOR_RESCALING, delta=Fraction(2)
    )
    return Proof(
        r"n(\mathrm{diag}(c)W, x) = n(W, x)",
        tuple(
            equality(f"{method.name}: factors of rows drop out", method(rows), method(LAYER), r"n'_{ni}")
            for method in (BATCH_NORM, WEIGHT_NORM)
        ),
        (Assumption("batch or weight norm", r"\sigma_i \text{ of } w_i \text{ alone}", of_layer_norm), SIGMA),
    )


@claim(
    "statements.gains_scale_blocks",
    topic=TOPIC,
    source="Section 5.2.2, after Eq. 14",
    statement="The block of F of the weights w_i and w_j is scaled by the gains, as g_i g_j.",
    formula=r"g \mapsto c \odot g \Rightarrow \bar F_{w_iw_j} \mapsto c_i c_j \bar F_{w_iw_j}",
    assumptions=(
        "batch or weight norm, where unit i has the gain g_i alone",
        "the covariance of the responses does not depend on the gains, as for Gaussian responses",
    ),
    context=Context(
        sentence=(
            "Notice that, comparing to standard GLM, the block F̄_ij along the weight vector w_i direction is scaled "
            "by the gain parameters and the normalization scalar σ_i."
        ),
        before="[Eqs. 13, 14] Implicit learning rate reduction through the growth of the weight vector:",
        after=(
            "If the norm of the weight vector w_i grows twice as large, even though the model's output remains the "
            "same, the Fisher information matrix will be different."
        ),
        readings=(
            Reading(
                "The block has the factor g_i g_j that Eq. 13 prints, at a given covariance of the responses.",
                Verdict.HOLDS,
            ),
            Reading(
                "The gains change the covariance too, as for logistic responses: then no method has the factor.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "It holds for batch and weight norm. The condition is needed because the section is about layer norm too, "
            "whose block of w_i has the gains of all units."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def gains_scale_blocks(problem: Problem) -> Iterator[Evidence]:
    """Weight blocks by definition at g and at c ⊙ g, Gaussian and logistic responses."""
    for method, family, role in (
        ("bn", families.Gaussian(2.0), Role.SUPPORTS),
        ("wn", families.Gaussian(2.0), Role.SUPPORTS),
        ("ln", families.Gaussian(2.0), Role.FAILS_WITHOUT_CONDITION),
        ("bn", families.Bernoulli(), Role.FAILS_WITHOUT_CONDITION),
    ):
        _, params, inputs = problem.small(method)
        factors = np.linspace(0.5, 2.0, params.units)
        changed = GLMParameters(params.weights, params.bias, factors * params.gain)
        before, after = (weight_blocks(method, family, p, inputs) for p in (params, changed))
        law = np.repeat(factors, params.inputs)
        text = f"{TITLES[method]}, {type(family).__name__}: weight blocks at c ⊙ g, and times c_i c_j"
        predicted = law[:, None] * before * law[None, :]
        yield (
            agree(text, after, predicted, tol=1e-7)
            if role is Role.SUPPORTS
            else differ(text, after, predicted, role=role)
        )


def weight_blocks(method: str, family: AbstractFamily, params: GLMParameters, inputs) -> Float[np.ndarray, "HD HD"]:
    """E[Jᵀ Λ J], J the derivative of z by W: central differences of the NumPy reference in long double."""
    weights, step = np.asarray(params.weights, np.longdouble), 1e-5

    def z(moved) -> np.ndarray:
        return numpy_reference.natural_parameters(method, GLMParameters(moved, params.bias, params.gain), inputs)

    moves = step * np.eye(weights.size).reshape(-1, *weights.shape)
    J = np.stack([(z(weights + move) - z(weights - move)) / (2 * step) for move in moves]).astype(np.float64)
    variances = np.asarray(family.variance(z(weights).astype(np.float64))) / family.dispersion**2
    return np.einsum("pnh,nh,qnh->pq", J, variances, J) / len(inputs)


def _block_of_first_unit(gains, size: int = 3) -> sp.Expr:
    """ww block of unit 1 under layer norm at W = (1, 1, −2) and x = 1, Gaussian responses: Σ_k g_k² (∂n_k/∂w_1)²."""
    w = sp.Symbol("w", real=True)
    outputs = LAYER_NORM.exactly(sp.Matrix([[w], [1], [-2]]), sp.Matrix([[1]]))
    slopes = [sp.diff(outputs[0, unit], w).subs(w, 1) for unit in range(size)]
    return sp.simplify(sum(g**2 * s**2 for g, s in zip(gains, slopes, strict=True)))


@gains_scale_blocks.proof("conditional")
def gains_scale_blocks_proof() -> Proof:
    """A unit of batch or weight norm moves with its own row and gain; a unit of layer norm moves all."""
    V, c, C, v = field("V"), field("c", positive=True), field("C"), field("v")
    others = lambda l, d: (1 - KroneckerDelta(l, i)) * V(l, d)
    velocity = lambda method, gain, l: derivative(lambda t: gain(l) * method(LAYER.towards(V, t), n, l))
    changed_gain = lambda l: c(l) * GAIN(l)
    steps: list[Step] = []
    for method in (BATCH_NORM, WEIGHT_NORM):
        steps += [
            equality(f"{method.name}: other rows of W do not move unit i", along(method, others), 0, r"dn_{ni}"),
            equality(
                f"{method.name}: with v_i = dz_i block ij, at a given covariance C, has the factor c_i c_j",
                C(i, j) * velocity(method, changed_gain, i) * velocity(method, changed_gain, j),
                c(i) * c(j) * C(i, j) * v(i) * v(j),
                r"C_{ij}\,v_i(cg)\,v_j(cg)",
                {"v": partial(velocity, method, GAIN)},
            ),
        ]
    other_gain = Counterexample(
        "statements.gains_scale_blocks for layer norm",
        r"\bar F_{w_1w_1}(g_1, 2g_2, g_3) = \bar F_{w_1w_1}(g_1, g_2, g_3)",
        {"g": sp.ImmutableMatrix([[1, 1, 1]]), "g'": sp.ImmutableMatrix([[1, 2, 1]])},
        lambda v: (_block_of_first_unit(v["g'"]), _block_of_first_unit(v["g"])),
        "The ww block of unit 1 under layer norm with the gain of unit 2 doubled (left) and as it was (right).",
    )
    block = lambda g: g**2 * sp.exp(g)
    poisson = Counterexample(
        "statements.gains_scale_blocks for Poisson responses",
        r"\bar F_{ww}(2g) = 4 \bar F_{ww}(g)",
        {"g": 1},
        lambda v: (block(2 * v["g"]), 4 * block(v["g"])),
        "λ g² (∂n/∂w_2)² with λ = e^{gn} under weight norm at w = (1, 0), x = (1, 1), where n = ∂n/∂w_2 = 1: at 2g "
        "(left) and four times at g (right).",
    )
    return Proof(
        r"g \mapsto c \odot g \Rightarrow \bar F_{w_iw_j} \mapsto c_ic_j\bar F_{w_iw_j}"
        r"\text{ for batch and weight norm}",
        tuple(steps),
        (
            Assumption("batch or weight norm", r"\partial n_i/\partial w_{k \neq i} = 0", other_gain),
            Assumption("a covariance that does not depend on the gains", r"\Lambda(c \odot g) = \Lambda(g)", poisson),
            SIGMA,
        ),
    )


@claim(
    "statements.fixed_mean_and_variance",
    topic=TOPIC,
    source="Section 3",
    statement="Fixing the mean and the variance of the summed inputs within each layer reduces covariate shift.",
    formula=r"a_n \mapsto s_n a_n + c_n\mathbf{1} \Rightarrow n' = n",
    assumptions=("s_n > 0",),
    context=Context(
        sentence=(
            "This suggests the ‘‘covariate shift’’ problem can be reduced by fixing the mean and the variance of the "
            "summed inputs within each layer."
        ),
        before=(
            "Notice that changes in the output of one layer will tend to cause highly correlated changes in the summed "
            "inputs to the next layer, especially with ReLU units whose outputs can change by a lot."
        ),
        after="We, thus, compute the layer normalization statistics over all the hidden units in the same layer …",
        readings=(
            Reading(
                "“Reduced” means that the common part of the changes, which the sentence before speaks of, is removed.",
                Verdict.HOLDS,
            ),
            Reading(
                "If every covariate shift were to be removed, a shift of the layer's inputs would refute it: the mean "
                "of a single unit over the data, which batch norm fixes, still moves.",
                Verdict.REFUTED,
            ),
        ),
        verdict="A common offset and a common positive factor of a case are removed exactly, so it holds.",
    ),
    expected=Verdict.HOLDS,
)
def fixed_mean_and_variance(problem: Problem) -> Iterator[Evidence]:
    """Common changes of a case leave layer norm; a shift of the inputs moves its units' means, and not batch norm's."""
    _, params, inputs = problem.small("ln")
    dtype = inputs.dtype
    units, eye = inputs @ params.weights.T, jnp.eye(params.units, dtype=dtype)
    size = problem.uniform("size", len(inputs), 1, low=0.5, high=3.0)
    moved = size * units + problem.normal("offset", len(inputs), 1)
    layer_norm, batch_norm = NORMALIZERS["ln"], NORMALIZERS["bn"]
    yield differ("without normalization: summed inputs move", moved, units)
    yield agree("layer norm: a common offset and factor of a case", layer_norm(eye, moved), layer_norm(eye, units))
    shift = problem.normal("shift", 1, params.inputs)
    means = [jnp.mean(layer_norm(params.weights, x), 0) for x in (inputs, inputs + shift)]
    yield differ("what is left: layer norm's means of units over the data, inputs shifted", *means)
    fixed = [batch_norm(params.weights, x) for x in (inputs, inputs + shift)]
    yield agree("batch norm: the same shift of the inputs", *fixed)


@fixed_mean_and_variance.proof()
def fixed_mean_and_variance_proof() -> Proof:
    """Layer norm of s a + c1 is layer norm of a."""
    c = sp.Symbol("c", real=True)
    a = lambda l: DELTA * LAYER.a(n, l) + c
    average = mean(a, H)
    normalized = (a(i) - average) / sqrt(mean(lambda l: (a(l) - average) ** 2, H))
    return Proof(
        r"\mathrm{LN}(s\,a + c\mathbf{1}) = \mathrm{LN}(a)",
        (
            equality("A common offset and factor leave the normalized values", normalized, LAYER_NORM(LAYER), r"n'"),
            equality("whose mean over the units is zero", mean(lambda l: LAYER_NORM(LAYER, n, l), H), 0),
            equality("and whose mean square is one", mean(lambda l: LAYER_NORM(LAYER, n, l) ** 2, H), 1),
        ),
        (SIGMA,),
    )


GROWTH = {"linear": (lambda a: a, np.ones_like), "ReLU": (lambda a: np.maximum(a, 0.0), lambda a: 1.0 * (a > 0))}
"""Units that do not saturate: f and f′."""
UNITS, STEPS, TANGENTS = 128, 16, 4
LEVEL = 0.05
"""Change of log |a| a step that counts as none: linear units of gain 3 change it by 1.1."""


def _step_factors(problem: Problem, unit, gain: float) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the factors per step of |a| and of |∂a^t/∂a^0 V|, random V, in a random network without inputs.

    W_hh has normal entries of variance gain²/H.
    """
    f, slope = unit
    generator = np.random.default_rng(problem.seed)
    W = gain * generator.normal(size=(UNITS, UNITS)) / UNITS**0.5
    a, tangents = generator.normal(size=UNITS), generator.normal(size=(UNITS, TANGENTS))
    sizes = [(np.linalg.norm(a), np.linalg.norm(tangents))]
    for _ in range(STEPS):
        tangents = W @ (slope(a)[:, None] * tangents)
        a = W @ f(a)
        sizes.append((np.linalg.norm(a), np.linalg.norm(tangents)))
    factors = np.diff(np.log(sizes), axis=0)
    return factors[:, 0], factors[:, 1]


@claim(
    "statements.recurrent_grow_or_shrink",
    topic=TOPIC,
    source="Section 3.1",
    statement=(
        "In a standard recurrent network the average magnitude of the summed inputs grows or shrinks at every step, "
        "and gradients explode or vanish."
    ),
    formula=r"W_{hh} = \rho Q,\ Q^\top Q = I \Rightarrow \|a^t\| = \rho\,\|a^{t-1}\|",
    assumptions=(
        "units that do not saturate",
        "no inputs that keep up the magnitude",
        "in the proof: linear units and W_hh = ρQ with orthogonal Q; ReLU and Gaussian W_hh by numbers alone",
    ),
    context=Context(
        sentence=(
            "In a standard RNN, there is a tendency for the average magnitude of the summed inputs to the recurrent "
            "units to either grow or shrink at every time-step, leading to exploding or vanishing gradients."
        ),
        before="b and g are defined as the bias and gain parameters of the same dimension as hᵗ.",
        after=(
            "In a layer normalized RNN, the normalization terms make it invariant to re-scaling all of the summed "
            "inputs to a layer, …"
        ),
        readings=(
            Reading(
                "A “tendency” is what large and small recurrent weights do to units that do not saturate.",
                Verdict.HOLDS,
            ),
            Reading(
                "The units are any, also saturating ones, whose gradients grow or vanish while the magnitude stays.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "It holds for linear units (proved for W_hh = ρQ) and for ReLU (by numbers). The condition is needed "
            "because the standard unit of the paper's experiments, tanh, keeps the magnitude at a level."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def recurrent_grow_or_shrink(problem: Problem) -> Iterator[Evidence]:
    """Factors of every step at recurrent gains 0.5 and 3, and tanh units at gain 3, which stay at a level."""
    for name, unit in GROWTH.items():
        for gain, sign in ((0.5, -1.0), (3.0, 1.0)):
            for what, factors in zip(("magnitude", "gradient"), _step_factors(problem, unit, gain), strict=True):
                least = float(np.min(sign * factors))
                yield Evidence(
                    Kind.COUNTEREXAMPLE,
                    Role.SUPPORTS,
                    f"{name} units, gain {gain:g}: the {what} {'grows' if sign > 0 else 'shrinks'} at every step; "
                    "least change of its logarithm",
                    passed=least > 0.1,
                    contradicts=float(np.mean(sign * factors)) < 0,
                    residual=least,
                    tolerance=0.1,
                    samples=STEPS,
                )
    factors, gradients = _step_factors(problem, (np.tanh, lambda a: 1 - np.tanh(a) ** 2), 3.0)
    late = float(np.abs(np.mean(factors[STEPS // 2 :])))
    yield Evidence(
        Kind.AGREEMENT,
        Role.FAILS_WITHOUT_CONDITION,
        f"tanh units, gain 3: the magnitude keeps its level over the last {STEPS // 2} steps, and the gradient grows "
        f"by {np.exp(np.mean(gradients)):.2f} a step; change of the logarithm of the magnitude a step",
        passed=late < LEVEL,
        contradicts=late > 4 * LEVEL,
        residual=late,
        tolerance=LEVEL,
        samples=STEPS // 2,
    )


@recurrent_grow_or_shrink.proof("conditional")
def recurrent_grow_or_shrink_proof() -> Proof:
    """Linear units with W = ρQ: every step multiplies the magnitude, and every gradient, by ρ."""
    Q, h, V = field("Q"), field("h"), field("V")
    rho = sp.Symbol("rho", positive=True)
    step = lambda of: lambda l: total(lambda e: rho * Q(l, e) * of(e), H)
    gram = lambda e, o: total(lambda l: Q(l, e) * Q(l, o), H)
    quadratic = lambda of: total(lambda e: total(lambda o: of(e, o) * h(e) * h(o), H), H)
    level = Counterexample(
        "statements.recurrent_grow_or_shrink for tanh units",
        r"a^t = w \tanh(a^{t-1}) \Rightarrow |a^t| = w\,|a^{t-1}|",
        {"w": 1 / sp.tanh(1), "a": 1},
        lambda v: (sp.S.One if v["w"] * sp.tanh(v["a"]) == 1 else sp.S.Zero, v["w"] * v["a"]),
        "w tanh(1), which is 1: the magnitude stays (left); w, by which it would grow if the unit did not saturate "
        "(right).",
    )
    return Proof(
        r"a^t = \rho Q a^{t-1},\ Q^\top Q = I \Rightarrow \|a^t\|^2 = \rho^2\|a^{t-1}\|^2",
        (
            equality(
                "The square of the magnitude is a form in QᵀQ",
                total(lambda l: step(h)(l) ** 2, H),
                rho**2 * quadratic(gram),
                r"\|a^t\|^2",
            ),
            equality(
                "which for QᵀQ = I is the square of the step before",
                quadratic(KroneckerDelta),
                total(lambda e: h(e) ** 2, H),
            ),
            equality(
                "A tangent obeys the same recursion, so gradients have the factor ρ too",
                derivative(lambda t: step(lambda e: h(e) + t * V(e))(i)),
                step(V)(i),
                r"da^t_i[V]",
            ),
        ),
        (
            Assumption("units that do not saturate", r"f(a) = a", level),
            Assumption("every direction has the same factor", r"W_{hh} = \rho Q,\ Q^\top Q = I"),
        ),
    )


def _moments_at_edge_and_inside(images: Float[np.ndarray, "N P P"], padding: str, seed: int) -> np.ndarray:
    """Share of cases with a ≠ 0, and variance of a, of random 3 × 3 filters: at the outer ring, and inside [2 2]."""
    filters = np.random.default_rng(seed).normal(size=(16, 3, 3)) / 3.0
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="wrap" if padding == "wrap" else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    a = np.einsum("nijkl,fkl->nijf", windows, filters, optimize=True)
    inside = np.zeros(a.shape[1:3], bool)
    inside[1:-1, 1:-1] = True
    active, variance = (a != 0).mean((0, 3)), a.var(0).mean(-1)
    return np.array([[values[place].mean() for place in (~inside, inside)] for values in (active, variance)])


@claim(
    "statements.units_at_the_boundary",
    topic=TOPIC,
    source="Section 6.7",
    statement=(
        "In a convolutional layer, units whose receptive fields lie near the boundary of the image are turned on less "
        "often than the rest, and have very different statistics."
    ),
    assumptions=(
        "images that are empty near the boundary, or padded with zeros",
        "“less often” means at most 0.9 times as often, “very different” means at most half the variance",
    ),
    context=Context(
        sentence=(
            "The large number of the hidden units whose receptive fields lie near the boundary of the image are rarely "
            "turned on and thus have very different statistics from the rest of the hidden units within the same layer."
        ),
        before="However, the assumption of similar contributions is no longer true for convolutional neural networks.",
        after="We think further research is needed to make layer normalization work well in ConvNets.",
        readings=(
            Reading(
                "“Rarely” compares with units inside the image; the images are digits on an empty ground.",
                Verdict.HOLDS,
            ),
            Reading(
                "The images are of any kind, also the same digits at random places of a torus.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "It holds on scikit-learn's digits, with zeros around them: at seed 0, units at the boundary are active "
            "0.75 times as often as the rest and have 0.31 times its variance. “Rarely” says more than that. The "
            "condition is needed because it rests on the images and the padding, not on the convolution."
        ),
    ),
    expected=Verdict.CONDITIONAL,
    why_numeric="It is about images: where they are empty has no algebraic form.",
)
def units_at_the_boundary(problem: Problem) -> Iterator[Evidence]:
    """Random filters on digits padded with zeros, and on the same digits moved at random around a torus."""
    from sklearn.datasets import load_digits

    images = np.asarray(load_digits(return_X_y=True)[0]).reshape(-1, 8, 8)[:600]
    places = np.random.default_rng(problem.seed).integers(0, 8, (len(images), 2))
    torus = np.stack([np.roll(image, tuple(place), (0, 1)) for image, place in zip(images, places, strict=True)])
    for text, shown, padding, role in (
        ("digits, padded with zeros", images, "constant", Role.SUPPORTS),
        ("digits at random places of a torus", torus, "wrap", Role.FAILS_WITHOUT_CONDITION),
    ):
        found = _moments_at_edge_and_inside(shown, padding, problem.seed)
        ratios = found[:, 0] / found[:, 1]
        for what, ratio, bound in zip(("share of active cases", "variance"), ratios, (0.9, 0.5), strict=True):
            less = 1 - float(ratio)
            supports = role is Role.SUPPORTS
            yield Evidence(
                Kind.COUNTEREXAMPLE if supports else Kind.AGREEMENT,
                role,
                f"{text}: {what} at the boundary over that inside is {ratio:.3f}; its distance from 1",
                passed=less > 1 - bound if supports else abs(less) < 0.1,
                contradicts=less < 0 if supports else abs(less) > 0.5,
                residual=less if supports else abs(less),
                tolerance=1 - bound if supports else 0.1,
                samples=len(images),
            )
