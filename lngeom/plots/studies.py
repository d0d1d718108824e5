r"""Numbers behind the figures: sweeps of Fisher matrices and metrics on small random models, in seconds.

Each study returns a frozen dataclass of arrays; `lngeom.plots.geometry` draws it. All of them take float64 inputs from
their own seeds, so call them inside `with jax.enable_x64(True)`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom import families, methods as normalizers
from lngeom._core.draws import draw_small
from lngeom._core.types import GLMParameters
from lngeom.families import AbstractFamily
from lngeom.information import _closed_form, fisher, metric
from lngeom.information.glm import NormalizedGLM
from lngeom.information.orders import to_paper_order
from lngeom.information.predicted import predicted_nullspace
from lngeom.information.reference import as_printed
from lngeom.methods import AbstractNormalizer

structured: Callable[..., Array] = eqx.filter_jit(_closed_form.dense)

NORMALIZERS: dict[str, AbstractNormalizer] = {
    "none": normalizers.Identity(),
    "batch norm": normalizers.BatchNorm(),
    "weight norm": normalizers.WeightNorm(),
    "layer norm": normalizers.LayerNorm(),
    "RMS norm": normalizers.RMSNorm(),
}


def features(inputs: Float[np.ndarray, "N D"], samples: int = 400, count: int = 6) -> Float[np.ndarray, "n d"]:
    """The inputs of all studies, from a data set: some rows, on the columns that vary most, each less its mean.

    They are divided by one number, the root of their mean variance, so that units see summed inputs of order one.

    Args:
        inputs: the data set.
        samples: at most so many rows, evenly spaced.
        count: at most so many columns.

    Returns:
        Rows.

    Raises:
        ValueError: if no column varies.

    Example:
        >>> features(np.array([[1.0, 5.0, 0.0], [3.0, 5.0, 0.5]]), count=2)
        array([[-1.37198868, -0.34299717],
               [ 1.37198868,  0.34299717]])
    """
    rows = np.asarray(inputs, np.float64)[np.linspace(0, len(inputs) - 1, min(len(inputs), samples)).astype(int)]
    varying = np.argsort(-rows.var(0), kind="stable")[:count]
    chosen = rows[:, np.sort(varying[rows.var(0)[varying] > 0])]
    if not chosen.size:
        raise ValueError("no column of the data varies")
    return (chosen - chosen.mean(0)) / np.sqrt(chosen.var(0).mean())


def _random(
    normalizer: AbstractNormalizer,
    family: AbstractFamily,
    shape: tuple[int, int, int],
    seed: int,
    data: Float[np.ndarray, "N D"] | None = None,
):
    """A model with random parameters of shape (N, D, H), and standard normal inputs, or rows of data."""
    samples, inputs, units = _fitted(shape, data)
    weights_key, data_key, gain_key, bias_key = jax.random.split(jax.random.key(seed), 4)
    model = NormalizedGLM(normalizer, family)
    weights = model.init(weights_key, inputs=inputs, outputs=units).weights
    gain = draw_small(jax.random.uniform, gain_key, (units,), weights.dtype, 0.5, 1.5)
    bias = 0.3 * draw_small(jax.random.normal, bias_key, (units,), weights.dtype)
    X = draw_small(jax.random.normal, data_key, (samples, inputs), weights.dtype)
    if data is not None:
        X = jnp.asarray(data[:samples, :inputs], weights.dtype)
    return model, GLMParameters(weights, bias, gain), X


def _fitted(shape: tuple[int, int, int], data: Float[np.ndarray, "N D"] | None) -> tuple[int, int, int]:
    """The shape (N, D, H), with at most as many rows and columns as the data have."""
    samples, inputs, units = shape
    return shape if data is None else (min(samples, data.shape[0]), min(inputs, data.shape[1]), units)


@dataclass(frozen=True)
class PrintedAgainstExact:
    """Layer norm's Fisher matrix by Eqs. 13 and 14, and as it is, with logistic responses.

    Attributes:
        printed: the paper's matrix, in the paper's order, [P P].
        exact: the Fisher matrix, [P P].
        printed_spectrum: its eigenvalues, descending, [P].
        exact_spectrum: its eigenvalues, squared singular values of the factor, descending, [P].
        nullity: predicted dimension of the null space.
        widths: numbers of units H, [K].
        block_error: Frobenius error of the diagonal blocks relative to the exact ones, mean over units, [S K].
        spectral_error: spectral norm of the error relative to the exact matrix's, [S K].
        shape: N, D, H of the matrices; the widths share D and N.
    """

    printed: Float[np.ndarray, "P P"]
    exact: Float[np.ndarray, "P P"]
    printed_spectrum: Float[np.ndarray, " P"]
    exact_spectrum: Float[np.ndarray, " P"]
    nullity: int
    widths: tuple[int, ...]
    block_error: Float[np.ndarray, "S K"]
    spectral_error: Float[np.ndarray, "S K"]
    shape: tuple[int, int, int]


def printed_against_exact(
    shape: tuple[int, int, int] = (400, 6, 8),
    widths: tuple[int, ...] = (4, 8, 16, 32, 64),
    sweep: tuple[int, int] = (400, 4),
    seeds: int = 3,
    data: Float[np.ndarray, "N D"] | None = None,
) -> PrintedAgainstExact:
    """Both matrices at one size, and the error of the printed one against the width.

    Args:
        shape: N, D, H of the matrices.
        widths: numbers of units of the sweep.
        sweep: N, D of the sweep.
        seeds: random models for each width.
        data: rows of inputs in place of random ones, as `features` makes them.

    Returns:
        The study.
    """
    shape = _fitted(shape, data)
    case = _random(normalizers.LayerNorm(), families.Bernoulli(), shape, 0, data)
    both = [np.asarray(to_paper_order(route(*case), shape[2], shape[1])) for route in (as_printed, structured)]
    errors = np.array([[_errors((*sweep, units), seed, data) for units in widths] for seed in range(seeds)])
    return PrintedAgainstExact(
        printed=both[0],
        exact=both[1],
        printed_spectrum=np.linalg.eigvalsh(both[0])[::-1],
        exact_spectrum=np.square(np.asarray(fisher(*case).singular_values())),
        nullity=predicted_nullspace(*case).dimension,
        widths=widths,
        block_error=errors[..., 0],
        spectral_error=errors[..., 1],
        shape=shape,
    )


def _errors(
    shape: tuple[int, int, int], seed: int, data: Float[np.ndarray, "N D"] | None = None
) -> tuple[float, float]:
    _, inputs, units = _fitted(shape, data)
    case = _random(normalizers.LayerNorm(), families.Bernoulli(), shape, 100 + seed, data)
    false, true = (np.asarray(to_paper_order(route(*case), units, inputs)) for route in (as_printed, structured))
    width = inputs + 2
    blocks = [slice(i * width, (i + 1) * width) for i in range(units)]
    relative = [np.linalg.norm(false[b, b] - true[b, b]) / np.linalg.norm(true[b, b]) for b in blocks]
    return float(np.mean(relative)), float(np.linalg.norm(false - true, 2) / np.linalg.norm(true, 2))


@dataclass(frozen=True)
class BlockScaling:
    """Norms of blocks of the Fisher matrix as weights are multiplied by c, relative to c = 1, with softmax responses.

    Attributes:
        factors: c, [K].
        cases: what is scaled → block → relative norms [K].
        exponents: what is scaled → block → least-squares slope in the logarithms.
        shape: N, D, H.
    """

    factors: Float[np.ndarray, " K"]
    cases: dict[str, dict[str, Float[np.ndarray, " K"]]]
    exponents: dict[str, dict[str, float]]
    shape: tuple[int, int, int]


def block_scaling(
    shape: tuple[int, int, int] = (200, 5, 6),
    factors: tuple[float, ...] = (),
    data: Float[np.ndarray, "N D"] | None = None,
) -> BlockScaling:
    """Blocks of batch norm (one unit scaled) and of layer norm (all of W, and one unit).

    Args:
        shape: N, D, H.
        factors: c; by default 1/8 to 8.
        data: rows of inputs in place of random ones, as `features` makes them.

    Returns:
        The study.
    """
    shape = _fitted(shape, data)
    c = np.asarray(factors or 2.0 ** np.arange(-3, 4))
    _, width, units = shape
    size = width * units
    unit, other, rest = slice(0, width), slice(width, 2 * width), slice(size, None)
    weights = slice(0, size)
    one_unit = {"w₁ with w₁": (unit, unit), "w₁ with w₂": (unit, other), "w₂ with w₂": (other, other)}
    matrix = {"W with W": (weights, weights), "W with b, g": (weights, rest), "b, g with b, g": (rest, rest)}
    plan = {
        "batch norm, one unit": ("batch norm", 0, one_unit),
        "layer norm, all of W": ("layer norm", None, matrix),
        "layer norm, one unit": ("layer norm", 0, one_unit),
    }
    cases = {}
    for title, (name, row, blocks) in plan.items():
        model, params, inputs = _random(NORMALIZERS[name], families.Categorical(), shape, 1, data)
        matrices = []
        for factor in [1.0, *c.tolist()]:
            moved = params.weights * factor if row is None else params.weights.at[row].multiply(factor)
            moved = GLMParameters(moved, params.bias, params.gain)
            matrices.append(np.asarray(structured(model, moved, inputs)))
        first, *later = matrices
        cases[title] = {
            block: np.array([np.linalg.norm(F[index]) / np.linalg.norm(first[index]) for F in later])
            for block, index in blocks.items()
        }
    slopes = {
        title: {block: float(np.polyfit(np.log(c), np.log(norms), 1)[0]) for block, norms in blocks.items()}
        for title, blocks in cases.items()
    }
    return BlockScaling(c, cases, slopes, shape)


@dataclass(frozen=True)
class LineElements:
    """ds² of a change of the gains, or of the weights' magnitudes, as the inputs are multiplied by s (Eqs. 32–35).

    Attributes:
        scales: s, [K].
        values: responses → curve → ds² in nats, [K]; the printed Eq. 35 is zero for independent responses.
        shape: N, D, H.
    """

    scales: Float[np.ndarray, " K"]
    values: dict[str, dict[str, Float[np.ndarray, " K"]]]
    shape: tuple[int, int, int]


def line_elements(
    shape: tuple[int, int, int] = (400, 5, 6),
    scales: tuple[float, ...] = (),
    data: Float[np.ndarray, "N D"] | None = None,
) -> LineElements:
    """Eqs. 32 to 35, printed where that differs from exact, for Gaussian, logistic and softmax responses.

    Args:
        shape: N, D, H.
        scales: s; by default 1/8 to 8.
        data: rows of inputs in place of random ones, as `features` makes them.

    Returns:
        The study.
    """
    shape = _fitted(shape, data)
    s = np.asarray(scales or 2.0 ** np.arange(-3, 4))
    responses = {"Gaussian": families.Gaussian(), "logistic": families.Bernoulli(), "softmax": families.Categorical()}
    curves: dict[str, tuple[str, Callable[..., Array], str]] = {
        "batch norm, Eq. 32 printed": ("batch norm", metric.gain, "printed"),
        "batch norm, exact": ("batch norm", metric.gain, "exact"),
        "layer norm, Eq. 33": ("layer norm", metric.gain, "exact"),
        "weight norm, Eq. 34": ("weight norm", metric.gain, "exact"),
        "standard, Eq. 35 printed": ("none", metric.magnitude, "printed"),
        "standard, exact": ("none", metric.magnitude, "exact"),
    }
    values: dict[str, dict[str, np.ndarray]] = {}
    for response, family in responses.items():
        values[response] = {}
        for curve, (name, form, method) in curves.items():
            model, params, inputs = _random(NORMALIZERS[name], family, shape, 2, data)
            params = GLMParameters(params.weights, jnp.zeros_like(params.bias), jnp.ones_like(params.gain))
            delta = jnp.zeros_like(params.gain).at[jnp.array([0, 2])].set(jnp.array([0.1, -0.1], inputs.dtype))
            found = [float(form(model, params, float(x) * inputs, delta, method=method)) for x in s]
            values[response][curve] = np.array(found)
    return LineElements(s, values, shape)


@dataclass(frozen=True)
class Spectra:
    """Eigenvalues of the Fisher matrix of each normalizer on the same weights and inputs, logistic responses.

    Attributes:
        eigenvalues: normalizer → squared singular values of the factor, descending, [P].
        nullity: normalizer → predicted dimension of the null space.
        shape: N, D, H.
    """

    eigenvalues: dict[str, Float[np.ndarray, " P"]]
    nullity: dict[str, int]
    shape: tuple[int, int, int]


def spectra(shape: tuple[int, int, int] = (400, 6, 8), data: Float[np.ndarray, "N D"] | None = None) -> Spectra:
    """Spectra of no normalization, batch, weight, layer and RMS norm.

    Args:
        shape: N, D, H.
        data: rows of inputs in place of random ones, as `features` makes them.

    Returns:
        The study.
    """
    shape = _fitted(shape, data)
    eigenvalues, nullity = {}, {}
    for name, normalizer in NORMALIZERS.items():
        case = _random(normalizer, families.Bernoulli(), shape, 3, data)
        eigenvalues[name] = np.square(np.asarray(fisher(*case).singular_values()))
        nullity[name] = predicted_nullspace(*case).dimension
    return Spectra(eigenvalues, nullity, shape)


ALL = (printed_against_exact, block_scaling, line_elements, spectra)
"""The studies; `lngeom.plots.geometry` has a drawing of the same name for each."""
