"""Karakida, Akaho and Amari (2019), *The Normalization Method for Alleviating Pathological Sharpness in Wide Networks*.

With squared loss the Fisher matrix of N samples is F = JᵀJ/N. Its largest eigenvalue is that of the Gram matrix JJᵀ/N.
The networks are random: D inputs, two hidden ReLU layers of width M, and C linear outputs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg
from jaxtyping import Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, vanishes
from lngeom.claims.evidence import Evidence
from lngeom.papers.lab import at_least, exponent_of, standardized, unchanged

PAPER = Paper(
    "karakida2019",
    "The Normalization Method for Alleviating Pathological Sharpness in Wide Neural Networks",
    ("Ryo Karakida", "Shotaro Akaho", "Shun-ichi Amari"),
    2019,
    "1906.02926",
    "Mean subtraction in the last layer, and it alone, removes the sharpness, if samples and input dimension grow with "
    "the width.",
)
WIDTHS = (50, 100, 200, 400)
LARGER = (100, 200, 400, 800)
"""Widths of networks with few samples, which are cheap."""
SEEDS, MANY = 8, 24
"""Networks of each width; and where a standard deviation of the outputs divides, which fluctuates."""
FEW = 40
"""Number of samples, or of inputs, that stays the same while the width grows."""
WHY = "an exponent in the width of random networks"


class Network(NamedTuple):
    """What the Fisher matrix of a network needs.

    Attributes:
        outputs: [N C].
        gram: JJᵀ, [NC NC], samples in the slow index.
    """

    outputs: Float[np.ndarray, "N C"]
    gram: Float[np.ndarray, "NC NC"]


def weights(generator: np.random.Generator, rows: int, columns: int) -> Float[np.ndarray, "r c"]:
    """He's initialization: variance 2 over the number of inputs."""
    return generator.standard_normal((rows, columns)) * (2 / columns) ** 0.5


Array = np.ndarray
Norm = Callable[[Array], tuple[Array, Callable[[Array], Array]]]
"""A norm of [N M] summed inputs: its value, and the pullback of cotangents [K N M] of K outputs."""


no_norm = unchanged


def layer_norm(a: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Layer norm over the units."""
    return standardized(a, -1)


def batch_norm(a: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Batch norm over the samples."""
    return standardized(a, -2)


def network(
    generator: np.random.Generator,
    samples: int,
    inputs: int,
    width: int,
    *,
    hidden: Norm = no_norm,
    outputs: int = 1,
    draw: Callable[[np.random.Generator, int, int], Array] = weights,
) -> Network:
    """A random network with its Gram matrix, by layers.

    Args:
        generator: of all that is random.
        samples: N.
        inputs: D.
        width: M.
        hidden: norm of the hidden layers.
        outputs: C.
        draw: makes a weight matrix of so many rows and columns.

    Returns:
        The network.
    """
    states, pulls = [generator.standard_normal((samples, inputs))], []
    matrices = [draw(generator, *shape) for shape in ((width, inputs), (width, width), (outputs, width))]
    for matrix in matrices[:-1]:
        value, pull = hidden(states[-1] @ matrix.T)
        states.append(np.maximum(value, 0))
        pulls.append(lambda c, pull=pull, active=value > 0: pull(c * active))
    coupled = hidden is batch_norm
    if coupled:  # a sample's output depends on all samples: one cotangent of [N M] for each output of each sample
        cotangent = np.eye(samples * outputs).reshape(-1, samples, outputs)
    else:  # one for each output, of all samples at a time
        cotangent = np.broadcast_to(np.eye(outputs)[:, None, :], (outputs, samples, outputs))
    gram = np.zeros((samples * outputs, samples * outputs))
    for layer in reversed(range(3)):
        inner = states[layer] @ states[layer].T
        if coupled:
            seen = np.einsum("st,ktm->ksm", inner, cotangent, optimize=True)
            gram += cotangent.reshape(len(gram), -1) @ seen.reshape(len(gram), -1).T
        else:
            flat = cotangent.transpose(1, 0, 2).reshape(len(gram), -1)
            by_sample = (flat @ flat.T).reshape(samples, outputs, samples, outputs)
            gram += (by_sample * inner[:, None, :, None]).reshape(gram.shape)
        if layer:
            cotangent = pulls[layer - 1](cotangent @ matrices[layer])
    return Network(states[-1] @ matrices[-1].T, gram)


@functools.lru_cache(2**8)
def network_of(seeds: tuple[int, ...], *sizes: int, **options: Any) -> Network:
    """The network of random numbers with these seeds. Claims look at the same networks, which are kept."""
    return network(np.random.default_rng(seeds), *sizes, **options)


def as_it_is(found: Network) -> Float[np.ndarray, "NC NC"]:
    """The Gram matrix without a norm of the outputs."""
    return found.gram


def _after(found: Network, derivative: Callable[[Array], Array]) -> Float[np.ndarray, "NC NC"]:
    """The Gram matrix after an operation on the outputs, whose derivative along changes [K N C] is given."""
    once = derivative(found.gram.reshape(-1, *found.outputs.shape)).reshape(found.gram.shape)
    return derivative(once.T.reshape(-1, *found.outputs.shape)).reshape(found.gram.shape)


def centred(found: Network) -> Float[np.ndarray, "NC NC"]:
    """After subtraction of the mean over the samples from each output."""
    return _after(found, lambda change: change - change.mean(1, keepdims=True))


def divided(found: Network) -> Float[np.ndarray, "NC NC"]:
    """After division of each output by its standard deviation over the samples."""
    f, sigma = found.outputs, found.outputs.std(0)
    value = (f - f.mean(0)) / sigma
    return _after(found, lambda change: (change - f * (change * value).mean(1, keepdims=True) / sigma) / sigma)


def batch_normalized(found: Network) -> Float[np.ndarray, "NC NC"]:
    """After batch norm of each output."""
    return _after(found, batch_norm(found.outputs)[1])  # its Jacobian is symmetric: the pullback is the derivative


def layer_normalized(found: Network) -> Float[np.ndarray, "NC NC"]:
    """After layer norm across the outputs of each sample."""
    return _after(found, layer_norm(found.outputs)[1])  # the same


def largest(gram: Float[np.ndarray, "K K"], samples: int) -> float:
    """The largest eigenvalue of F, by Lanczos iterations to the precision of float64."""
    start = np.cos(np.arange(len(gram)))
    return float(scipy.sparse.linalg.eigsh(gram, 1, v0=start, return_eigenvectors=False)[0]) / samples


Setting = Callable[[int], tuple[int, int]]


def proportional(width: int) -> tuple[int, int]:
    """As many samples, and inputs, as units."""
    return width, width


def few_samples(width: int) -> tuple[int, int]:
    """Few samples, as many inputs as units."""
    return FEW, width


def few_inputs(width: int) -> tuple[int, int]:
    """As many samples as units, 10 inputs."""
    return width, 10


def sharpness(
    problem: Problem,
    setting: Setting,
    last: Callable[[Network], Array],
    *,
    hidden: Norm = no_norm,
    outputs: int = 1,
    widths: tuple[int, ...] = WIDTHS,
    seeds: int = SEEDS,
) -> Float[np.ndarray, "S W"]:
    """λ_max of F for random networks of each width.

    Args:
        problem: gives the seed.
        setting: samples and inputs for a width.
        last: what is done to the outputs.
        hidden: norm of the hidden layers.
        outputs: C.
        widths: M.
        seeds: number of networks of each width.

    Returns:
        One row a network, one column a width.
    """

    def one(seed: int, width: int) -> float:
        samples, inputs = setting(width)
        seeds = problem.seed, seed, width
        found = network_of(seeds, samples, inputs, width, hidden=hidden, outputs=outputs, draw=weights)
        return largest(last(found), samples)

    return np.array([[one(seed, width) for width in widths] for seed in range(seeds)])


def exponent(values: Float[np.ndarray, "S W"], widths: tuple[int, ...] = WIDTHS) -> tuple[float, float]:
    """The exponent in M, the slope of logarithms by least squares: mean over the networks, and its standard error."""
    slopes = np.array([exponent_of(widths, of_one) for of_one in values])
    return float(slopes.mean()), float(slopes.std(ddof=1) / len(slopes) ** 0.5)


def _described(what: str, values: Float[np.ndarray, "S W"], widths: tuple[int, ...]) -> tuple[str, float]:
    found, error = exponent(values, widths)
    return f"{what}, exponent in M from {widths[0]} to {widths[-1]}, {found:.2f} ± {error:.2f}", found


def grows_like(
    what: str, expected: float, values: Float[np.ndarray, "S W"], widths: tuple[int, ...] = WIDTHS
) -> Evidence:
    """Evidence that an exponent is the expected one, to 0.1."""
    description, found = _described(what, values, widths)
    return vanishes(f"{description}, and {expected:g}", found - expected, scale=1.0, tol=0.1)


def still_grows(
    what: str, values: Float[np.ndarray, "S W"], widths: tuple[int, ...] = WIDTHS, role: Role = Role.SUPPORTS
) -> Evidence:
    """Evidence that λ_max grows with the width: the exponent is at least a third.

    The bound was set after a first run, in which exponents between 0.6 and 0.9 were seen: growth is shown, not order M.
    """
    description, found = _described(what, values, widths)
    return at_least(description, found, 1 / 3, role)


@PAPER.claim(
    "karakida2019.none",
    source="Abstract",
    statement="Without normalization the landscape of wide random networks is pathologically sharp: λ_max of F grows "
    "like the width M.",
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
    why_numeric=WHY,
)
def none(problem: Problem):
    """With 40 samples, with as many samples as units and 10 inputs, and with as many of both."""
    yield grows_like("N = 40, D = M", 1, sharpness(problem, few_samples, as_it_is, widths=LARGER), LARGER)
    yield grows_like("N = M, D = 10", 1, sharpness(problem, few_inputs, as_it_is))
    yield grows_like("N = D = M", 1, sharpness(problem, proportional, as_it_is))


@PAPER.claim(
    "karakida2019.last_bn",
    source="Abstract",
    statement="Batch normalization in the last layer drastically decreases the sharpness, to order 1 in the width.",
    assumptions=("the number of samples grows with the width", "the dimension of the inputs grows with the width"),
    read=Read.ABSTRACT,
    expected=Verdict.CONDITIONAL,
    why_numeric=WHY,
)
def last_bn(problem: Problem):
    """With as many samples and inputs as units; then with 40 samples, and with 10 inputs."""
    yield grows_like("N = D = M", 0, sharpness(problem, proportional, batch_normalized, seeds=MANY))
    role = Role.FAILS_WITHOUT_CONDITION
    few = sharpness(problem, few_samples, batch_normalized, widths=LARGER)
    yield still_grows("N = 40, D = M", few, LARGER, role)
    yield still_grows("N = M, D = 10", sharpness(problem, few_inputs, batch_normalized), role=role)


@PAPER.claim(
    "karakida2019.mean_only",
    source="recalled in Section 3 of the authors' arXiv 1910.05992; division alone is lngeom's",
    statement="Of batch normalization in the last layer it is the mean subtraction that decreases the sharpness; "
    "division by the standard deviation alone does not.",
    assumptions=("N = D = M",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
    why_numeric=WHY,
)
def mean_only(problem: Problem):
    """Each of the two operations alone."""
    yield grows_like("mean subtraction alone", 0, sharpness(problem, proportional, centred))
    yield grows_like("division alone", 1, sharpness(problem, proportional, divided, seeds=MANY))


@PAPER.claim(
    "karakida2019.hidden_bn",
    source="Abstract",
    statement="Batch normalization in the hidden layers hardly alleviates the sharpness: λ_max stays of order M.",
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
    why_numeric=WHY,
)
def hidden_bn(problem: Problem):
    """40 samples, two outputs."""
    values = sharpness(problem, few_samples, as_it_is, hidden=batch_norm, outputs=2, seeds=4)
    yield grows_like("batch norm in both hidden layers, N = 40", 1, values)


@PAPER.claim(
    "karakida2019.layer_norm",
    source="Abstract",
    statement="Layer normalization cannot alleviate the sharpness either.",
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
    why_numeric=WHY,
)
def with_layer_norm(problem: Problem):
    """In the hidden layers, where λ_max is of order M; and across 12 outputs, where it grows.

    Across outputs the exponent is 0.7 to 0.9 by the widths it is fitted over, and 0.9 there without the norm.
    """
    hidden = sharpness(problem, few_samples, as_it_is, hidden=layer_norm, widths=LARGER)
    yield grows_like("layer norm in both hidden layers, N = 40", 1, hidden, LARGER)
    yield grows_like("N = D = M", 1, sharpness(problem, proportional, as_it_is, hidden=layer_norm))
    across = sharpness(problem, few_samples, layer_normalized, outputs=12, widths=LARGER, seeds=4)
    yield still_grows("layer norm across 12 outputs, N = 40", across, LARGER)


@PAPER.claim(
    "karakida2019.combined",
    source="own corollary",
    statement="Layer normalization in the hidden layers and mean subtraction in the last one are compatible: the "
    "sharpness is of order 1.",
    assumptions=("N = D = M",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric=WHY,
)
def combined(problem: Problem):
    """Both together."""
    values = sharpness(problem, proportional, centred, hidden=layer_norm)
    yield grows_like("hidden layer norm, outputs centred over the samples", 0, values)
