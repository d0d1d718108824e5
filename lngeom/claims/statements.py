"""Statements of Sections 1, 3 and 4 in words, made precise enough to check."""

import jax
import jax.numpy as jnp
import numpy as np

from lngeom.claims._evidence import Evidence, Kind, Role, Verdict, agree, differ
from lngeom.claims._problem import Problem
from lngeom.claims._registry import claim
from lngeom.normalizers import BatchNorm

TOPIC = "statements"


@claim(
    "statements.no_dependence_between_cases",
    topic=TOPIC,
    source="Section 1",
    statement="Layer norm does not introduce any new dependencies between training cases.",
    expected=Verdict.HOLDS,
)
def no_dependence_between_cases(problem: Problem):
    """Half of the cases are replaced; the others' outputs stay under layer norm and change under batch norm."""
    half = len(problem.inputs) // 2
    for method, compare in (("ln", agree), ("bn", differ)):
        model, params, inputs = problem.case(method)
        other = inputs.at[half:].multiply(-1.7)
        before, after = (model.natural_parameters(params, x)[:half] for x in (inputs, other))
        yield compare(f"{method}: outputs of the cases that stayed", before, after)


@claim(
    "statements.same_at_train_and_test",
    topic=TOPIC,
    source="Section 1; Abstract",
    statement="Layer norm performs exactly the same computation at training and test times.",
    expected=Verdict.HOLDS,
)
def same_at_train_and_test(problem: Problem):
    """A test case computed alone and within a training batch; batch norm needs stored statistics, which differ."""
    model, params, inputs = problem.case("ln")
    in_batch = model.natural_parameters(params, inputs)[-1:]
    yield agree("layer norm: a case in the batch and alone", in_batch, model.natural_parameters(params, inputs[-1:]))
    half = len(inputs) // 2
    batch_norm = BatchNorm()
    stored = batch_norm.evaluation(params.weights, inputs[:half])
    yield differ(
        "batch norm: training on the second half, and statistics stored on the first",
        batch_norm(params.weights, inputs[half:]),
        stored(params.weights, inputs[half:]),
    )


@claim(
    "statements.batch_size_one",
    topic=TOPIC,
    source="Section 3",
    statement="Layer norm imposes no constraint on the size of a mini-batch and works with batch size 1.",
    expected=Verdict.HOLDS,
)
def batch_size_one(problem: Problem):
    """Every case as a batch of its own gives what the whole batch gives; batch norm of one case is undefined."""
    model, params, inputs = problem.case("ln")
    few = inputs[:64]
    alone = jax.vmap(lambda x: model.natural_parameters(params, x[None])[0])(few)
    yield agree("layer norm: batches of one and one batch", alone, model.natural_parameters(params, few))
    scale = BatchNorm().statistics(params.weights, inputs[:1]).scale
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
    x, y = inputs[:30], inputs[30:]
    middle = model.natural_parameters(params, (x + y) / 2)
    ends = (model.natural_parameters(params, x) + model.natural_parameters(params, y)) / 2
    yield differ("output at midpoints and midpoints of outputs", middle, ends)


def _changes(problem: Problem, activation, samples: int = 2000, features: int = 16, units: int = 128):
    """Changes Δh of a layer's output between random cases, and the changes Δa = W Δh they cause in the next layer."""
    keys = jax.random.split(problem.key("correlated changes"), 3)
    x = jax.random.normal(keys[0], (samples, features), problem.inputs.dtype)
    first, second = (
        jax.random.normal(k, shape, x.dtype) / shape[1] ** 0.5
        for k, shape in zip(keys[1:], ((units, features), (units, units)), strict=True)
    )
    h = activation(x @ first.T)
    change = np.asarray(h[1::2] - h[::2])
    return change, change @ np.asarray(second).T


def _squared_correlation(changes: np.ndarray) -> float:
    """Mean squared correlation between the changes of different units."""
    correlation = np.corrcoef(changes, rowvar=False)
    return float(np.mean(np.square(correlation[np.triu_indices(len(correlation), 1)])))


@claim(
    "statements.correlated_changes",
    topic=TOPIC,
    source="Section 3",
    statement=(
        "Changes in the output of one layer tend to cause highly correlated changes in the summed inputs to "
        "the next layer, "
        "especially with ReLU units."
    ),
    expected=Verdict.REFUTED,
    correction=(
        "The changes are correlated as far as the layer's output moves in few directions: with random weights the mean "
        "squared correlation is tr C²/(tr C)², C = Cov(Δh), whatever the units. ReLU does not raise it: on "
        "Gaussian inputs "
        "it is lower than for linear and for tanh units."
    ),
    why_numeric="A statement about typical random networks: its terms ('tend to', 'highly') have no algebraic form.",
)
def correlated_changes(problem: Problem):
    """Squared correlations for linear, tanh and ReLU units, against the effective dimension of the changes."""
    found, predicted = {}, {}
    for name, activation in (("linear", lambda a: a), ("tanh", jnp.tanh), ("ReLU", jax.nn.relu)):
        change, caused = _changes(problem, activation)
        covariance = np.cov(change, rowvar=False)
        found[name] = _squared_correlation(caused)
        predicted[name] = float(np.sum(covariance**2) / np.trace(covariance) ** 2)
    text = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    for other in ("linear", "tanh"):
        yield Evidence(
            Kind.COUNTEREXAMPLE,
            Role.REFUTES,
            f"mean squared correlation is lower with ReLU than with {other} units ({text})",
            passed=found["ReLU"] < 0.95 * found[other],
            residual=1 - found["ReLU"] / found[other],
            tolerance=0.05,
            samples=2000,
        )
    yield agree(
        "mean squared correlation and tr C²/(tr C)²",
        np.array(list(found.values())),
        np.array(list(predicted.values())),
        tol=0.2,
        role=Role.CORRECTS,
    )
