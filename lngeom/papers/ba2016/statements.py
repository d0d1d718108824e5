"""Statements of Sections 1, 3 and 4 in words, made precise enough to check."""

import functools
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from sympy import Expr, KroneckerDelta, sqrt

from lngeom.claims import Problem, Role, Verdict, agree, claim, differ
from lngeom.claims.context import Context, Reading
from lngeom.claims.evidence import Evidence, Kind
from lngeom.methods import BatchNorm
from lngeom.symbolic.jacobian import GAIN, LAYER, SIGMA
from lngeom.symbolic.layers import (
    BATCH_NORM,
    BATCH_NORM_EVALUATION,
    EPSILON,
    LAYER_NORM,
    STORED_MEAN,
    STORED_VARIANCE,
    WEIGHT_NORM,
    Layer,
    Method,
)
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, changed, equality, fact, matrix, refutation
from lngeom.symbolic.sums import D, Field, H, N, field, i, j, k, m, mean, n, total

TOPIC = "statements"


def _other_cases_replaced() -> Layer:
    """The layer in which every case but case n is moved arbitrarily."""
    U = field("U")
    return Layer(LAYER.W, lambda s, d: LAYER.X(s, d) + (1 - KroneckerDelta(s, n)) * U(s, d))


@claim(
    "statements.one_case",
    topic=TOPIC,
    source="Sections 1, 3; Abstract",
    formerly=(
        "statements.batch_size_one",
        "statements.no_dependence_between_cases",
        "statements.same_at_train_and_test",
    ),
    statement=(
        "Layer norm is a function of one case: it introduces no dependencies between training cases, performs the same "
        "computation at training and test times, and works with batch size 1."
    ),
    expected=Verdict.HOLDS,
)
def one_case(problem: Problem):
    """Other cases are replaced; a case is computed alone and in a batch. Batch norm does not have these properties."""
    half = len(problem.inputs) // 2
    for method, compare in (("ln", agree), ("bn", differ)):
        model, params, inputs = problem.case(method)
        other = inputs.at[half:].multiply(-1.7)
        before, after = (model.natural_parameters(params, x)[:half] for x in (inputs, other))
        yield compare(f"{method}: outputs of the cases that stayed, the others replaced", before, after)
    model, params, inputs = problem.case("ln")
    few = inputs[:64]
    alone = jax.jit(jax.vmap(lambda x: model.natural_parameters(params, x[None])[0]))(few)
    yield agree("layer norm: batches of one and one batch", alone, model.natural_parameters(params, inputs)[:64])
    batch_norm = BatchNorm()
    stored = batch_norm.evaluation(params.weights, inputs[:half])
    yield differ(
        "batch norm: training on the second half, and statistics stored on the first",
        batch_norm(params.weights, inputs[half:]),
        stored(params.weights, inputs[half:]),
    )
    scale = batch_norm.statistics(params.weights, inputs[:1]).scale
    yield Evidence(
        Kind.COUNTEREXAMPLE,
        Role.SUPPORTS,
        "batch norm of one case divides by zero: its largest σ",
        passed=bool(jnp.max(scale) == 0),
        contradicts=bool(jnp.min(scale) > 0),
        residual=float(jnp.max(scale)),
        tolerance=0.0,
        samples=scale.size,
    )


@one_case.proof()
def one_case_proof() -> Proof:
    """The output for a case does not change when the other cases do; batch norm's does, and is 0/0 for one case."""
    depends = changed(
        "statements.one_case for batch norm",
        r"n_1 \text{ depends on } x_1 \text{ alone}",
        "Batch norm of the first case before (left) and after (right) the third case changes.",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: BATCH_NORM.exactly(v["W"], v["X'"]),
        {"W": matrix([[1]]), "X": matrix([[0], [1], [2]]), "X'": matrix([[0], [1], [5]])},
    )
    differs = changed(
        "statements.one_case for batch norm at test time",
        r"\text{batch norm of a batch} = \text{batch norm with statistics of the training data}",
        "Batch norm of x₁ in the batch x₁, x₂, x₃ (left) and with statistics 1 and 1 stored in training (right).",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: sp.ImmutableMatrix([[(v["W"] * v["X"].T)[0] - 1]]),
        {"W": matrix([[1]]), "X": matrix([[0], [1], [2]])},
    )
    W, X = matrix([[1, 0], [0, 1], [1, 1]]), matrix([[1, 2], [3, 1], [0, 5]])
    a = sp.Symbol("a", real=True)
    return Proof(
        r"x_m \mapsto x_m + u_m\ \forall m \neq n \Rightarrow n_n \text{ stays};\quad N = 1 \text{ is allowed}",
        (
            equality(
                "Case n keeps its output, whatever the batch around it is: there is no state",
                LAYER_NORM(_other_cases_replaced(), eps=EPSILON),
                LAYER_NORM(LAYER, eps=EPSILON),
                r"n'_{ni}",
            ),
            fact(
                "A batch of three and the case alone agree exactly",
                r"\mathrm{LN}(W, X)_1 = \mathrm{LN}(W, x_1)",
                lambda: LAYER_NORM.exactly(W, X).row(0) == LAYER_NORM.exactly(W, [list(X.row(0))]).row(0),
            ),
            refutation("Batch norm of a case depends on the others", depends),
            refutation("and computes another function at test time", differs),
            fact(
                "Batch norm of one case is 0/0, whatever its summed input a is",
                r"N = 1:\ \sigma_{BN}^2 = 0",
                lambda: BATCH_NORM.rows([[a]], [[sp.S.One]], sp.S.Zero) == [[(0, 0)]],
            ),
        ),
    )


SIZES = (4, 8, 16, 32, 64)


@claim(
    "statements.batch_size",
    topic=TOPIC,
    source="Section 1; Abstract",
    statement=(
        "The effect of batch normalization depends on the size of the mini-batch. Layer norm's output does not depend "
        "on the batch."
    ),
    expected=Verdict.HOLDS,
)
def batch_size(problem: Problem):
    """The outputs of one case in 400 random batches of each size, drawn from 200 random cases with replacement."""
    inputs = problem.small("bn", shape=(200, 5, 6)).inputs
    generator = np.random.default_rng([problem.seed, len(inputs)])
    drawn = {size: generator.integers(0, len(inputs), (400, size - 1)) for size in SIZES}

    def outputs(method: str, rows: np.ndarray) -> np.ndarray:
        model, params, _ = problem.small(method, shape=(200, 5, 6))
        batches = jnp.concatenate([jnp.broadcast_to(inputs[:1], (len(rows), 1, inputs.shape[1])), inputs[rows]], 1)
        return np.asarray(jax.jit(jax.vmap(lambda x: model.normalized(params, x)[0]))(batches))

    spreads = np.array([np.median(outputs("bn", rows).std(0)) for rows in drawn.values()])
    curve = {"spread of batch norm's output against N": (np.asarray(SIZES, float), spreads)}
    what = f"batch norm: spread of one case's output over random batches of {SIZES[0]} and of {SIZES[-1]}"
    yield differ(what, spreads[0], spreads[-1], curves=curve)
    found = outputs("ln", drawn[SIZES[0]])
    yield agree("layer norm: one case in all batches", found, np.broadcast_to(found[:1], found.shape))


@batch_size.proof()
def batch_size_proof() -> Proof:
    """The same case in a batch of two and of three; layer norm keeps its output whatever the batch is."""
    sizes = changed(
        "statements.batch_size for batch norm",
        r"n_1 \text{ in a batch of two} = n_1 \text{ in a batch of three}",
        "Batch norm of the first case in the batch 0, 1 (left) and in the batch 0, 1, 5 (right).",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: BATCH_NORM.exactly(v["W"], v["X'"]),
        {"W": matrix([[1]]), "X": matrix([[0], [1]]), "X'": matrix([[0], [1], [5]])},
    )
    return Proof(
        r"n_{1}(x_1, x_2) \neq n_1(x_1, x_2, x_3) \text{ for batch norm, } = \text{ for layer norm}",
        (
            refutation("Batch norm of a case depends on the size of the batch", sizes),
            equality(
                "Layer norm of a case does not depend on the rest of the batch",
                LAYER_NORM(_other_cases_replaced(), eps=EPSILON),
                LAYER_NORM(LAYER, eps=EPSILON),
                r"n'_{ni}",
            ),
        ),
    )


@claim(
    "statements.robust_to_batch_size",
    topic=TOPIC,
    source="Section 6.6",
    statement=(
        "Under layer norm the gradients of mini-batches average to the gradient of all data at every batch size. Under "
        "batch norm they do not, and the bias depends on the size."
    ),
    assumptions=(
        "the loss is a mean over cases",
        "what is meant is the mean of the gradient: its noise and the number of steps depend on the size under every "
        "method",
    ),
    context=Context(
        sentence=(
            "The experimental results from Figure 6 highlight that layer normalization is robust to the batch-sizes "
            "and exhibits a faster training convergence comparing to batch normalization that is applied to all layers."
        ),
        before=(
            "For the smaller batch-size, the variance term for batch normalization is computed using the unbiased "
            "estimator."
        ),
        after="We have also experimented with convolutional neural networks.",
        readings=(
            Reading("The size changes the noise of the gradient, and not what is minimized.", Verdict.HOLDS),
            Reading("Trained networks are as good at every size.", Verdict.UNDECIDED),
        ),
        verdict="The first reading is exact. The second has no bound in the paper, and is not judged here.",
    ),
    expected=Verdict.HOLDS,
)
def robust_to_batch_size(problem: Problem):
    """256 random cases in batches of each size; the loss is log cosh of distances to random targets."""
    cases = 256
    for method, compare in (("ln", agree), ("bn", differ)):
        model, params, inputs = problem.small(method, shape=(cases, 5, 6))
        targets = problem.normal("targets", cases, 6)

        def loss(weights, x, t, method=model.normalizer):
            return jnp.mean(jnp.log(jnp.cosh(method(weights, x) - t)))

        gradient = jax.jit(jax.grad(loss))
        whole = gradient(params.weights, inputs, targets)
        found = {
            size: np.mean(
                jax.lax.map(
                    lambda batch, weights=params.weights, gradient=gradient: gradient(weights, *batch),
                    (inputs.reshape(-1, size, 5), targets.reshape(-1, size, 6)),
                ),
                0,
            )
            for size in SIZES
        }
        error = [float(jnp.linalg.norm(g - whole) / jnp.linalg.norm(whole)) for g in found.values()]
        curves = {f"{method}: bias of the mean gradient against the size": (np.asarray(SIZES, float), np.array(error))}
        for size, average in found.items():
            what = f"{method}: mean gradient of batches of {size}, and the gradient of all {cases} cases"
            yield compare(what, average, whole, curves=curves if size == SIZES[-1] else {})
    yield differ("batch norm: relative bias at the smallest and at the largest size", error[0], error[-1])


@robust_to_batch_size.proof()
def robust_to_batch_size_proof() -> Proof:
    """A case has its own loss under layer norm. In batches of two, batch norm gives ±1, whose gradient is zero."""
    W, X = matrix([[1, 0]]), matrix([[1, 0], [2, 1], [4, 0], [7, 3]])
    targets = (1, 2, 3, 5)
    at = dict(zip(sp.symbols("w_1 w_2"), W, strict=True))

    def gradient(cases: slice) -> sp.ImmutableMatrix:
        """Of the mean of t n over these cases, at W."""
        rows = BATCH_NORM.rows([list(at)], X[cases, :].tolist(), sp.S.Zero)
        losses = [t * top / sqrt(square) for t, ((top, square),) in zip(targets[cases], rows, strict=True)]
        return sp.ImmutableMatrix([[sp.diff(sum(losses) / len(losses), w).subs(at) for w in at]])

    biased = changed(
        "statements.robust_to_batch_size for batch norm",
        r"\text{the mean of } \nabla L \text{ over two batches} = \nabla L \text{ of all cases}",
        "The gradient of the mean of t n, t = 1, 2, 3, 5: its mean over two batches of two (left), and that of all "
        "four cases (right). Batch norm of two cases is ±1 for almost all weights, so its gradient is zero.",
        lambda _: (gradient(slice(2)) + gradient(slice(2, 4))) / 2,
        lambda _: gradient(slice(4)),
        {"W": W, "X": X},
        entry=(0, 1),
    )
    loss = field(r"\ell")
    of_batch = lambda b: total(lambda c: loss(b, c), H) / H
    return Proof(
        r"\tfrac{1}{B}\textstyle\sum_b \nabla L_b = \nabla L \text{ under layer norm, at every size}",
        (
            equality(
                "The output of a case does not depend on its batch, and so its loss ℓ does not",
                LAYER_NORM(_other_cases_replaced(), eps=EPSILON),
                LAYER_NORM(LAYER, eps=EPSILON),
                r"n'_{ni}",
            ),
            equality(
                "N batches b of H cases c: the mean of their mean losses is the mean of all, and so are the gradients",
                total(of_batch, N) / N,
                total(lambda b: total(lambda c: loss(b, c), H), N) / (N * H),
                r"\tfrac1N\textstyle\sum_b L_b",
            ),
            refutation("Batch norm's gradients of batches do not average to it", biased),
        ),
    )


@claim(
    "statements.shared_statistics",
    topic=TOPIC,
    source="Section 3",
    statement="All units of a layer share the same μ and σ, but different training cases have different ones.",
    expected=Verdict.HOLDS,
)
def shared_statistics(problem: Problem):
    """One line n = (a − μ)/σ fits all units of a case; its slope and offset differ between cases."""
    model, params, inputs = problem.case("ln")
    a, n = inputs @ params.weights.T, model.normalized(params, inputs)
    centred = a - jnp.mean(a, 1, keepdims=True)
    slope = jnp.sum(n * centred, 1, keepdims=True) / jnp.sum(jnp.square(centred), 1, keepdims=True)
    yield agree("one affine map for all units of a case", n, slope * centred)
    yield differ("σ of different cases", jnp.broadcast_to(slope[:1], slope.shape), slope)


@shared_statistics.proof()
def shared_statistics_proof() -> Proof:
    """All units of a case share μ and σ; different cases have different ones."""
    average = lambda unit: LAYER.a(n, unit) - LAYER_NORM.numerator(LAYER, n, unit)
    W, X = matrix([[1, 0], [0, 1], [1, 1]]), matrix([[1, 2], [3, 1]])
    statistics = lambda v: sp.ImmutableMatrix(
        [[row[0][1]] for row in LAYER_NORM.rows(v["W"].tolist(), v["X"].tolist(), sp.S.Zero)]
    )
    differ = Counterexample(
        "statements.shared_statistics across cases",
        r"\sigma^2(x_1) = \sigma^2(x_2)",
        {"W": W, "X": X},
        lambda v: (statistics(v)[0], statistics(v)[1]),
        "σ² of the first (left) and second (right) case.",
    )
    batch = lambda v: BATCH_NORM.rows(v["W"].tolist(), v["X"].tolist(), sp.S.Zero)[0]
    per_unit = Counterexample(
        "statements.shared_statistics for batch norm",
        r"\sigma_1^2 = \sigma_2^2",
        {"W": W, "X": X},
        lambda v: (batch(v)[0][1], batch(v)[1][1]),
        "Batch norm's σ² of the first (left) and second (right) unit.",
    )
    return Proof(
        r"\mu_{ni} = \mu_{nj},\ \sigma_{ni} = \sigma_{nj},\quad \sigma_{n} \neq \sigma_{m} \text{ in general}",
        (
            equality("Units i and j share the mean", average(i), average(j), r"\mu_{nj}"),
            equality("and the scale", LAYER_NORM.square(LAYER, n, i), LAYER_NORM.square(LAYER, n, j), r"\sigma_{nj}^2"),
            refutation("Two cases with different scales", differ),
            equality(
                "Batch norm: cases n and m share the scale",
                BATCH_NORM.square(LAYER, n, k),
                BATCH_NORM.square(LAYER, m, k),
                r"\sigma_k^2(x_n)",
            ),
            refutation("but units do not", per_unit),
        ),
    )


@claim(
    "statements.bn_wn_reparameterize",
    topic=TOPIC,
    source="Section 4",
    statement=(
        "Weight norm, and batch norm with expected statistics, are a different parameterization of the original "
        "network."
    ),
    expected=Verdict.HOLDS,
)
def bn_wn_reparameterize(problem: Problem):
    """A network without normalization with w_i′ = g_i w_i/σ_i and b_i′ = b_i − g_i μ_i/σ_i computes the same."""
    for method in ("wn", "bn"):
        model, params, inputs = case = problem.case(method)
        mean, scale = (s[0] for s in case.statistics())
        slope = params.gain / scale
        plain = inputs @ (slope[:, None] * params.weights).T + (params.bias - slope * mean)[None, :]
        yield agree(f"{method}: against the plain network", model.natural_parameters(params, inputs), plain)


BIAS = field("b")


def plain(method: Method, slope: Expr, offset: Expr, gain: Expr, bias: Expr) -> tuple[Step, Step, Step]:
    """A normalized unit is a plain one of w' = slope·w, b' = offset, free of the case; gain and bias give Wx back.

    Args:
        method: the normalization method.
        slope: what the plain network multiplies w by.
        offset: its bias.
        gain: the gain at which the normalized unit is the plain one of weights w, without bias.
        bias: the bias at which it is.

    Returns:
        Three steps.
    """
    network = total(lambda d: slope * LAYER.W(i, d) * LAYER.X(n, d), D) + offset

    def of_unit_alone() -> bool:
        return n not in slope.free_symbols | offset.free_symbols

    return (
        equality(
            f"{method.name}: g n + b is a plain unit",
            GAIN(i) * method(LAYER, eps=EPSILON) + BIAS(i),
            network,
            r"z_{ni}",
        ),
        fact(
            f"{method.name}: its weights and bias are the same for every case", r"\partial_n(w', b') = 0", of_unit_alone
        ),
        equality(
            f"{method.name}: every plain unit is one",
            gain * method(LAYER, eps=EPSILON) + bias,
            LAYER.a(n, i),
            r"g_i n_{ni} + b_i",
        ),
    )


@bn_wn_reparameterize.proof()
def bn_wn_reparameterize_proof() -> Proof:
    """Weight norm, and batch norm with fixed statistics, compute what a plain network of other weights does."""
    average = mean(lambda m: LAYER.a(m, i), N)
    statistics = (
        (WEIGHT_NORM, sp.S.Zero, sqrt(WEIGHT_NORM.square(LAYER, eps=EPSILON))),
        (BATCH_NORM, average, sqrt(BATCH_NORM.square(LAYER, eps=EPSILON))),
        (BATCH_NORM_EVALUATION, STORED_MEAN(i), sqrt(STORED_VARIANCE(i) + EPSILON)),
    )
    batch = changed(
        "statements.bn_wn_reparameterize with batch statistics",
        r"z_1 \text{ is a function of } x_1",
        "Batch norm of the same first case in the first batch (left) and in another (right).",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: BATCH_NORM.exactly(v["W"], v["X'"]),
        {"W": matrix([[1]]), "X": matrix([[0], [1], [2]]), "X'": matrix([[0], [1], [5]])},
    )
    return Proof(
        r"g_i n_i + b_i = w_i'^\top x + b_i',\quad w_i' = g_iw_i/\sigma_i,\ b_i' = b_i - g_i\mu_i/\sigma_i",
        tuple(
            step
            for method, mu, sigma in statistics
            for step in plain(method, GAIN(i) / sigma, BIAS(i) - GAIN(i) * mu / sigma, sigma, mu)
        ),
        (Assumption("statistics of the data, not of a mini-batch", r"\mu_i, \sigma_i \text{ fixed}", batch), SIGMA),
    )


@claim(
    "statements.ln_not_reparameterization",
    topic=TOPIC,
    source="Section 4",
    statement="Layer norm is not a re-parameterization of the original network.",
    expected=Verdict.HOLDS,
)
def ln_not_reparameterization(problem: Problem):
    """z(x) is not affine in x, as every parameterization of the original layer is: second differences do not vanish."""
    model, params, inputs = problem.small("ln")
    x, y = np.split(np.asarray(inputs), 2)
    z = functools.partial(jax.jit(model.natural_parameters), params)
    middle, ends = z((x + y) / 2), (z(x) + z(y)) / 2
    yield differ("output at midpoints and midpoints of outputs", middle, ends)


def midpoint(eps: int) -> Counterexample:
    """Three units, two inputs: layer norm at a midpoint is not the midpoint of layer norms."""
    normalized = lambda v, x: LAYER_NORM.exactly(v["W"], x, v[r"\epsilon"])
    return changed(
        f"statements.ln_not_reparameterization as if it were affine, ε = {eps}",
        r"z\left(\tfrac{x + y}2\right) = \tfrac12 z(x) + \tfrac12 z(y)",
        "The mean of n of the first unit at both ends (left), and n at the midpoint (right).",
        lambda v: (normalized(v, v["x"]) + normalized(v, v["y"])) / 2,
        lambda v: normalized(v, (v["x"] + v["y"]) / 2),
        {"W": matrix([[1, 0], [0, 1], [0, 0]]), "x": matrix([[2, 0]]), "y": matrix([[0, 2]]), r"\epsilon": eps},
    )


def along_ray(output: Field) -> tuple[Expr, Expr]:
    """f(x) − f(−x), and f(2x) − f(x), of an output as a function of the inputs' factor."""
    return output(1) - output(-1), output(2) - output(1)


@ln_not_reparameterization.proof()
def ln_not_reparameterization_proof() -> Proof:
    """Layer norm's output is not affine in x, at any weights at which it is defined, as every plain network's is."""
    A, B = field("A"), field("B")
    affine = along_ray(lambda c: total(lambda d: A(i, d) * c * LAYER.X(n, d), D) + B(i))
    scaled = lambda c: Layer(LAYER.W, lambda s, d: c * LAYER.X(s, d))
    normalized = along_ray(lambda c: GAIN(i) * LAYER_NORM(scaled(c)) + BIAS(i))
    return Proof(
        r"g_i \neq 0 \Rightarrow \nexists A, B:\ g \odot \mathrm{LN}(Wx) + b = Ax + B\ \forall x",
        (
            equality("For an affine f: f(x) − f(−x) = 2 (f(2x) − f(x))", affine[0], 2 * affine[1], "f(x) - f(-x)"),
            equality("Layer norm does not see a factor: z(2x) − z(x) = 0", normalized[1], 0),
            equality("but it sees a sign: z(x) − z(−x) = 2 g n", normalized[0], 2 * GAIN(i) * LAYER_NORM(LAYER)),
            equality(
                "and n is not zero in every unit, for its mean square is one",
                mean(lambda l: LAYER_NORM(LAYER, n, l) ** 2, H),
                1,
            ),
            refutation("An exact instance", midpoint(0)),
            refutation("and one with ε = 1", midpoint(1)),
        ),
        (SIGMA, Assumption("gains are not zero", r"g_i \neq 0")),
    )


ACTIVATIONS = {"linear": lambda a: a, "tanh": np.tanh, "ReLU": lambda a: np.maximum(a, 0.0)}
MAP = tuple(itertools.product((0.0, 1.0, 2.0), (1.0, 4.0), (1, 3)))
"""Mean of standard normal inputs, gain of the random weights, and number of layers below the changes."""


def _changes(problem: Problem, activation: Callable, x: np.ndarray, gain: float, depth: int, units: int = 128):
    """Changes Δh of a layer's output between random cases, and the changes Δa = W Δh they cause in the next layer."""
    generator = np.random.default_rng(problem.seed)
    h = x
    for _ in range(depth):
        h = activation(gain * h @ (generator.normal(size=(units, h.shape[1])) / h.shape[1] ** 0.5).T)
    change = h[1::2] - h[: len(h) // 2 * 2 : 2]
    return change, change @ (generator.normal(size=(units, units)) / units**0.5).T


def _squared_correlation(changes: np.ndarray) -> float:
    """Mean squared correlation between the changes of different units."""
    correlation = np.corrcoef(changes, rowvar=False)
    return float(np.mean(np.square(correlation[np.triu_indices(len(correlation), 1)])))


def _correlations(problem: Problem, x: np.ndarray, gain: float, depth: int) -> tuple[list[float], list[float]]:
    """Mean squared correlation for each activation, and tr C²/(tr C)² with C = Cov(Δh)."""
    found, predicted = [], []
    for activation in ACTIVATIONS.values():
        change, caused = _changes(problem, activation, x, gain, depth)
        covariance = np.cov(change, rowvar=False)
        found.append(_squared_correlation(caused))
        predicted.append(float(np.sum(covariance**2) / np.trace(covariance) ** 2))
    return found, predicted


@claim(
    "statements.correlated_changes",
    topic=TOPIC,
    source="Section 3",
    statement=(
        "Changes in the output of one layer tend to cause highly correlated changes in the summed inputs to the next "
        "layer, especially with ReLU units."
    ),
    assumptions=(
        "as far as the output moves in few directions: with random weights the mean squared correlation is about "
        "tr C²/(tr C)², C = Cov(Δh)",
        "with ReLU more than with tanh where tanh saturates (inputs of large mean, large weights); less for centred "
        "inputs and weights of gain 1",
    ),
    context=Context(
        sentence=(
            "Notice that changes in the output of one layer will tend to cause highly correlated changes in the summed "
            "inputs to the next layer, especially with ReLU units whose outputs can change by a lot."
        ),
        before=(
            "We now consider the layer normalization method which is designed to overcome the drawbacks of batch "
            "normalization."
        ),
        after=(
            "This suggests the ‘‘covariate shift’’ problem can be reduced by fixing the mean and the variance of the "
            "summed inputs within each layer."
        ),
        readings=(
            Reading(
                "“Tend to” speaks of typical networks, and “especially” of those whose ReLU outputs change more than "
                "outputs of other units.",
                Verdict.HOLDS,
            ),
            Reading("It is so in every network, with centred inputs and weights of gain 1 too.", Verdict.REFUTED),
        ),
        verdict=(
            "Changes are correlated as far as outputs move in few directions. ReLU units raise the correlation where "
            "tanh units saturate, and lower it for centred inputs and weights of gain 1."
        ),
    ),
    expected=Verdict.CONDITIONAL,
    why_numeric="A statement about typical random networks: its terms ('tend to', 'highly') have no algebraic form.",
)
def correlated_changes(problem: Problem):
    """Squared correlations for linear, tanh and ReLU units over a map of input mean, gain and depth."""
    normal = np.random.default_rng(problem.seed).normal(size=(2000, 16))
    table = {point: _correlations(problem, point[0] + normal, *point[1:]) for point in MAP}
    found, predicted = (np.array([row[k] for row in table.values()]) for k in range(2))
    rows = np.concatenate([np.array(MAP), found], 1)
    yield agree(
        f"mean squared correlation and tr C²/(tr C)², at {len(MAP)} points",
        found,
        predicted,
        tol=0.2,
        matrices={"input mean, gain, depth; correlation with linear, tanh, ReLU units": rows},
    )
    # these two points were chosen with the map in view: one on either side of the condition
    for text, point, role in (
        ("inputs of mean 2, gain 4, one layer: ReLU above tanh", (2.0, 4.0, 1), Role.SUPPORTS),
        ("centred inputs, gain 1, one layer: ReLU below tanh", (0.0, 1.0, 1), Role.FAILS_WITHOUT_CONDITION),
    ):
        _, tanh, relu = table[point][0]
        larger, smaller = (relu, tanh) if role is Role.SUPPORTS else (tanh, relu)
        yield Evidence(
            Kind.COUNTEREXAMPLE,
            role,
            f"{text} ({relu:.3f} and {tanh:.3f})",
            passed=smaller < 0.95 * larger,
            residual=1 - smaller / larger,
            tolerance=0.05,
            samples=2000,
        )
    yield from _on_the_data(problem)


def _on_the_data(problem: Problem) -> Iterator[Evidence]:
    """The same identity on the data, at gain 1 and 4, one layer and three."""
    order = np.random.default_rng(problem.seed).permutation(len(problem.inputs))[:2000]
    x, points = np.asarray(problem.inputs)[order], tuple(itertools.product((1.0, 4.0), (1, 3)))
    if len(x) < 500:
        return
    with np.errstate(all="ignore"):
        pairs = [_correlations(problem, x, *point) for point in points]
    found, predicted = (np.array([pair[k] for pair in pairs]) for k in range(2))
    yield agree(
        "on the data: mean squared correlation and tr C²/(tr C)²",
        found,
        predicted,
        tol=0.2,
        matrices={
            "gain, depth; correlation with linear, tanh, ReLU units": np.concatenate([np.array(points), found], 1)
        },
    )
