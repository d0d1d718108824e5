r"""The appendix: the metric along the gains (Eqs. 32–35), initialization, and normalized logits."""

import sympy as sp
from sympy import Expr, KroneckerDelta, sqrt

from lngeom.symbolic.actions import ACTIONS, DELTA
from lngeom.symbolic.glm import LAMBDA, PHI, expanded
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.nullspaces import GAIN, LAYER
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix, refutation
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, H, N, derivative, field, i, j, mean, n, total
from lngeom.symbolic.table import counterexample

CHANGE = field("h")
POSITIVE = Assumption("positive scale", r"\sigma > 0,\ \epsilon = 0")
THREE_CASES = {"W": matrix([[1]]), "X": matrix([[1], [1], [-2]])}


def gain_form(method: Method) -> tuple[Step, ...]:
    """The metric along the gains is E[Λ_ij n_i n_j], from the derivative of z by g."""
    C = field("C")
    output = lambda l: method(LAYER, n, l)
    velocity = lambda l: derivative(lambda t: (GAIN(l) + t * CHANGE(l)) * output(l))
    form = total(lambda k: total(lambda l: C(k, l) * velocity(k) * velocity(l), H), H)
    entries = total(lambda k: total(lambda l: CHANGE(k) * C(k, l) * output(k) * output(l) * CHANGE(l), H), H)
    diagonal = total(lambda k: total(lambda l: KroneckerDelta(k, l) * LAMBDA(k) * velocity(k) * velocity(l), H), H)
    return (
        equality("z moves by n times the change of its gain", velocity(i), output(i) * CHANGE(i), r"dz_i"),
        equality("so ds² has entries Λ_kl n_k n_l, at each case", form, entries),
        equality(
            "which vanish off the diagonal for independent outputs",
            diagonal,
            total(lambda k: LAMBDA(k) * output(k) ** 2 * CHANGE(k) ** 2, H),
        ),
    )


def _poisson_forms(values) -> tuple[Expr, Expr]:
    """Printed and exact metric along the gain of one Poisson unit, z = n."""
    outputs = list(BATCH_NORM.exactly(values["W"], values["X"]))
    rates = [sp.exp(z) for z in outputs]
    exact = [rate * z**2 for rate, z in zip(rates, outputs, strict=True)]
    return sum(rates) / sp.Integer(3), sum(exact) / sp.Integer(3)


@proves("equation.32", "refuted")
def equation_32() -> Counterexample:
    """Batch norm's metric along the gains keeps n_i n_j under the expectation."""
    variance = field("lambda", positive=True)
    output = lambda m: BATCH_NORM(LAYER, m, i)
    gap = mean(lambda m: variance(m) * output(m) ** 2, N) - mean(variance, N)
    covariance = mean(lambda m: (variance(m) - mean(variance, N)) * (output(m) ** 2 - 1), N)
    g, u = sp.Symbol("g", positive=True), sp.Symbol("u", real=True)
    moment = lambda power: sp.integrate(u**power * sp.exp(g * u - u**2 / 2) / sqrt(2 * sp.pi), (u, -sp.oo, sp.oo))
    correct = Proof(
        "equation.32 corrected",
        r"ds^2 = \tfrac12\delta_g^\top E[\Lambda_{ij} n_i n_j]\,\delta_g;\quad "
        r"\text{printed iff } \mathrm{Cov}(\lambda, n^2) = 0",
        (
            *gain_form(BATCH_NORM),
            equality("Over the data n² has mean one", mean(lambda m: output(m) ** 2, N), 1),
            equality("so exact less printed is the covariance of λ and n²", gap, covariance),
            expanded(
                "Poisson outputs of normal inputs: printed over exact is 1/(1 + g²)",
                r"E[e^{gn}](1+g^2) = E[n^2e^{gn}]",
                moment(0) * (1 + g**2) - moment(2),
            ),
        ),
        (POSITIVE,),
    )
    return Counterexample(
        "equation.32",
        r"ds^2 = \tfrac12\delta_g^\top E[\mathrm{Cov}[y\mid x]/\phi^2]\,\delta_g",
        THREE_CASES,
        _poisson_forms,
        "Poisson outputs, g = 1, b = 0: 2 ds²/δ² as printed (left) and exact (right).",
        correct,
    )


@proves("equation.33")
def equation_33() -> Proof:
    """Layer norm's metric along the gains."""
    statement = r"ds^2 = \tfrac12\delta_g^\top\phi^{-2}E[\mathrm{Cov}_{ij}\,(a_i-\mu)(a_j-\mu)/\sigma^2]\,\delta_g"
    return Proof("equation.33", statement, gain_form(LAYER_NORM), (POSITIVE,))


@proves("equation.34")
def equation_34() -> Proof:
    """Weight norm's metric along the gains."""
    statement = r"ds^2 = \tfrac12\delta_g^\top\phi^{-2}E[\mathrm{Cov}_{ij}\,a_ia_j/(\|w_i\|\|w_j\|)]\,\delta_g"
    return Proof("equation.34", statement, gain_form(WEIGHT_NORM), (POSITIVE,))


@proves("equation.35", "refuted")
def equation_35() -> Counterexample:
    """The quadratic form has four terms; the printed right side is one cross term."""
    C, h = field("C"), field("delta_g")
    along_w = lambda l: h(l) * LAYER.a(n, l) / sqrt(total(lambda d: LAYER.W(l, d) ** 2, D))
    moved = lambda t: Layer(
        lambda l, d: LAYER.W(l, d) + t * h(l) * LAYER.W(l, d) / sqrt(total(lambda e: LAYER.W(l, e) ** 2, D)),
        LAYER.X,
    )
    form = total(lambda k: total(lambda l: C(k, l) * along_w(k) * along_w(l), H), H) / (2 * PHI**2)
    first, second = sp.symbols("delta_i delta_j", real=True)
    pair = lambda l: KroneckerDelta(l, i) * first + KroneckerDelta(l, j) * second
    unit = lambda l: LAYER.a(n, l) / sqrt(total(lambda d: LAYER.W(l, d) ** 2, D))
    of_pair = total(lambda k: total(lambda l: C(k, l) * pair(k) * pair(l) * unit(k) * unit(l), H), H)
    four = (
        C(i, i) * first**2 * unit(i) ** 2
        + (C(i, j) + C(j, i)) * first * second * unit(i) * unit(j)
        + C(j, j) * second**2 * unit(j) ** 2
    )
    by_norms = total(
        lambda k: total(
            lambda l: (
                C(k, l)
                * h(k)
                * h(l)
                * LAYER.a(n, k)
                * LAYER.a(n, l)
                / sqrt(total(lambda d: LAYER.W(k, d) ** 2, D) * total(lambda d: LAYER.W(l, d) ** 2, D))
            ),
            H,
        ),
        H,
    ) / (2 * PHI**2)
    correct = Proof(
        "equation.35 corrected",
        r"\frac{1}{2\phi^2}\sum_{p,q}\delta_{gp}\delta_{gq}E\left[\mathrm{Cov}_{pq}\frac{a_pa_q}{\|w_p\|\|w_q\|}\right]",
        (
            equality(
                "Along δ w/‖w‖ the summed input moves by δ a/‖w‖",
                derivative(lambda t: moved(t).a(n, i)),
                along_w(i),
                r"da_i",
            ),
            equality("so the form is a sum over all pairs (p, q)", form, by_norms),
            equality("of which a change of units i and j keeps four terms, not one", of_pair, four),
        ),
    )

    def two_units(values) -> tuple[Expr, Expr]:
        W, x, C = values["W"], values["x"], values["C"]
        unit = [(W.row(l) * x)[0] / sqrt(sum(w**2 for w in W.row(l))) for l in range(2)]
        return sum(C[p, q] * unit[p] * unit[q] for p in range(2) for q in range(2)) / 2, C[0, 1] * unit[0] * unit[1] / 2

    return Counterexample(
        "equation.35",
        r"\tfrac12 v^\top F v = \frac{\delta_{gi}\delta_{gj}}{2\phi^2}"
        r"E\left[\mathrm{Cov}_{ij}\frac{a_ia_j}{\|w_i\|\|w_j\|}\right]",
        {"W": matrix([[1], [2]]), "x": matrix([[1]]), "C": matrix([[1, 0], [0, 1]])},
        two_units,
        "Two independent Gaussian units, δ = (1, 1): the quadratic form (left) and the printed cross term (right).",
        correct,
    )


@proves("text.prediction_error_only", "refuted")
def prediction_error_only() -> Counterexample:
    """Along the gains the metric is the outputs' variance times n_i n_j, not the variance alone."""
    top = sp.Symbol("L", positive=True)
    output = lambda l: LAYER_NORM(LAYER, n, l)
    trace = total(lambda l: LAMBDA(l) * output(l) ** 2, H)
    correct = Proof(
        "text.prediction_error_only corrected",
        r"ds^2 = \tfrac12\delta_g^\top E[\Lambda_{ij}n_in_j]\delta_g,\quad \mathrm{tr}\,F_{gg} \leq H\max\lambda",
        (
            *gain_form(LAYER_NORM),
            equality(
                "H L − tr F_gg is a sum of (L − λ) n² ≥ 0, for L = max λ",
                H * top - trace,
                total(lambda l: (top - LAMBDA(l)) * output(l) ** 2, H),
            ),
        ),
        (POSITIVE,),
    )
    first = lambda W, values: LAYER_NORM.exactly(values[W], values["x"])[0] ** 2
    return Counterexample(
        "text.prediction_error_only",
        r"ds^2 \text{ depends on } \mathrm{Cov}[y\mid x] \text{ alone}",
        {"W": matrix([[1], [1], [-2]]), "W'": matrix([[2], [-1], [-1]]), "x": matrix([[1]])},
        lambda v: (first("W", v), first("W'", v)),
        "Layer norm, Gaussian outputs of variance 1 in both: 2 ds²/δ² along the first gain at W (left), W' (right).",
        correct,
    )


@proves("text.robust_to_scaling")
def robust_to_scaling() -> Proof:
    """Along the gains batch and layer norm ignore scales of X and W; the standard model does not."""
    by_inputs, by_weights = (ACTIONS[name].moved(LAYER) for name in ("dataset_rescaling", "weight_matrix_rescaling"))
    steps = []
    for method in (BATCH_NORM, LAYER_NORM):
        for layer, what in ((by_inputs, "inputs"), (by_weights, "weights")):
            steps.append(
                equality(
                    f"{method.name}: n, so z, Λ and Λ n n, stay when {what} are scaled",
                    method(layer),
                    method(LAYER),
                )
            )
    standard = lambda L: L.a(n, i) ** 2 / total(lambda d: L.W(i, d) ** 2, D)
    steps += [
        equality(
            "Standard model, constant variance: the metric along ‖w‖ grows as the square of the inputs",
            standard(by_inputs),
            DELTA**2 * standard(LAYER),
        ),
        equality("Weight norm's n scales with the inputs", WEIGHT_NORM(by_inputs), DELTA * WEIGHT_NORM(LAYER)),
        refutation(
            "so it is not invariant to them",
            counterexample("WeightNorm", WEIGHT_NORM, ACTIONS["dataset_rescaling"]),
        ),
    ]
    statement = r"F_{gg}(\delta X, W) = F_{gg}(X, \delta W) = F_{gg}(X, W)\text{ for batch and layer norm}"
    return Proof(
        "text.robust_to_scaling",
        statement,
        tuple(steps),
        (Assumption("positive factor", r"\delta > 0"), POSITIVE),
    )


@proves("equation.20")
def equation_20() -> Proof:
    """Two layer norms and a bias: both scales are ignored, and three biases do the work of one."""
    U, V, h, x = (field(name) for name in ("U", "V", "h", "x"))
    layers = [Layer(U, lambda n, d: h(d)), Layer(V, lambda n, d: x(d))]
    first, second, bias, c, r = *(field(name) for name in ("beta", "Beta", "b", "c")), field("r")
    gates = lambda A, B, C: sum((LAYER_NORM(L) for L in layers), A(i) + B(i) + C(i))
    alone = Layer(lambda l, d: DELTA * U(l, d), layers[0].X)
    shifted = [lambda l: first(l) + c(l), lambda l: second(l) + r(l), lambda l: bias(l) - c(l) - r(l)]

    def redundancy() -> bool:
        units = 4
        jacobian = sp.Matrix.hstack(*[sp.eye(units)] * 3)
        return 3 * units - jacobian.rank() == 2 * units

    return Proof(
        "equation.20",
        r"\mathrm{LN}(W_hh;\alpha_1,\beta_1) + \mathrm{LN}(W_xx;\alpha_2,\beta_2) + "
        r"b: 2\cdot 4H \text{ redundant dimensions}",
        (
            equality("Scaling W_h alone changes nothing", LAYER_NORM(alone), LAYER_NORM(layers[0])),
            equality("β₁ + c, β₂ + r, b − c − r give the same gates", gates(*shifted), gates(first, second, bias)),
            fact(
                "so of three biases for each of 4H gates two are redundant, by rank",
                r"3\cdot 4H - \mathrm{rank}[I\,I\,I] = 2\cdot 4H",
                redundancy,
            ),
        ),
        (POSITIVE, Assumption("positive factor", r"\delta > 0")),
    )


@proves("supplement.initialization", "refuted")
def initialization() -> Counterexample:
    """Gains zero and biases one, as the supplement says, make the cell ignore its input and its weights."""
    V, alpha = field("V"), field("alpha")
    gated = lambda a, b: lambda t: a * LAYER_NORM(LAYER.towards(V, t)) + b
    slope = lambda gain: derivative(gated(gain, 1))
    correct = Proof(
        "supplement.initialization corrected",
        r"\alpha = 1,\ \beta = 0;\quad \alpha = 0,\ \beta = 1 \Rightarrow "
        r"h = \sigma(2)\tanh(1),\ \partial h/\partial W = 0",
        (
            equality(
                "Eq. 15 with gain one and bias zero standardizes",
                gated(sp.S.One, sp.S.Zero)(0),
                LAYER_NORM(LAYER),
            ),
            equality("The derivative by W has the factor α", slope(alpha(i)), alpha(i) * slope(sp.S.One)),
            equality("so with α = 0 it vanishes", slope(sp.S.Zero), 0),
            equality("and LN is its bias: each gate is 1 + 1 + 0 = 2, LN(c) is 1", gated(sp.S.Zero, 1)(0) * 2, 2),
        ),
        (POSITIVE,),
    )

    def logistic(z: Expr) -> Expr:
        return 1 / (1 + sp.exp(-z))

    def outputs(values) -> tuple[Expr, Expr]:
        a, b = values[r"\alpha"], values[r"\beta"]
        literal = a * LAYER_NORM.exactly(values["W"], values["x"]) + b * sp.ones(1, 4)
        normal = LAYER_NORM.exactly(values["W"], values["x"])
        return logistic(2 * literal[0]) * sp.tanh(literal[0]), logistic(2 * normal[0]) * sp.tanh(normal[0])

    return Counterexample(
        "supplement.initialization",
        r"\alpha = 0, \beta = 1 \text{ is the initialization of Eq. 15 by gains one and biases zero}",
        {"W": matrix([[3], [1], [-1], [-3]]), "x": matrix([[1]]), r"\alpha": 0, r"\beta": 1},
        outputs,
        "σ(2 LN) tanh(LN) of the first unit: literally σ(2) tanh(1) (left), with gain one and bias zero (right).",
        correct,
    )


@proves("experiments.no_ln_on_logits")
def no_layer_norm_on_logits() -> Proof:
    """Normalized logits bound the largest probability of a softmax away from one."""
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
        "experiments.no_ln_on_logits",
        r"\max_i q_i \leq \frac{1}{1+(H-1)e^{-H/\sqrt{H-1}}},\ q = \mathrm{softmax}(n),\ \text{attained}",
        (
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
            equality("One logit above H − 1 equal ones reaches n_i² = H − 1", peak(i) ** 2, H - 1),
            equality(
                "where all the others are equal, n_j = −1/n_i",
                others(lambda l: (peak(l) * peak(i) + 1) ** 2),
                0,
            ),
            fact(
                "so the gaps are −H/√(H − 1) and the bound is attained: exactly, at H = 2, 3, 5, 10",
                r"n_j - n_i = -H/\sqrt{H-1}",
                attained,
            ),
        ),
    )
