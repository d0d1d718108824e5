"""The families' distributions, summed outcome by outcome in NumPy: a second route that shares no code with the library.

Probabilities are those of textbooks, in the parameters of textbooks: a rate, a chance, a mean and a shape. Products of
ratios stand for factorials, and Euler's integral for the gamma function. Moments and divergences are sums over
outcomes. Integrals are sums over a fine grid of y or log y, on which the trapezoidal rule is exact to rounding.
Derivatives are complex steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from lngeom.families import AbstractFamily

COUNTS = np.arange(400).astype(np.longdouble)
LOGARITHMS = np.arange(-40, 8, 0.05).astype(np.longdouble)
STEP = np.longdouble(1e-30)
"""Length of a complex step; there is no difference in it that could cancel."""


class Distribution(NamedTuple):
    """A family at each natural parameter, as probabilities of outcomes.

    Attributes:
        outcomes: y, [K], or vectors [K C] of a joint family.
        cells: length of the grid's cell around each outcome; 1 for counts.
        log_density: log p(y | z) of natural parameters [*B], for all outcomes, [*B K]; [*B C] to [*B K] if joint.
        dispersion: φ.
        joint: whether the C natural parameters belong to one response.
    """

    outcomes: Float[np.ndarray, "K *C"]
    cells: Float[np.ndarray, " K"]
    log_density: Callable[[np.ndarray], np.ndarray]
    dispersion: float = 1.0
    joint: bool = False

    def probabilities(self, z: ArrayLike) -> np.ndarray:
        """Probability of each outcome, or of its cell, [*B K]."""
        return np.exp(self.log_density(_long(z))) * self.cells

    def mean(self, z: ArrayLike) -> np.ndarray:
        """E[y], of the shape of z."""
        return self.probabilities(z) @ self.outcomes

    def covariance(self, z: ArrayLike) -> Float[np.ndarray, "*B C C"]:
        """Cov[y] for z [*B C], a diagonal matrix for independent responses."""
        p, mean = self.probabilities(z), self.mean(z)
        gap = self.outcomes - mean[..., None, :] if self.joint else self.outcomes - mean[..., None]
        if self.joint:
            return np.einsum("...k,...ki,...kj->...ij", p, gap, gap)
        return (p * gap**2).sum(-1)[..., None] * np.eye(mean.shape[-1], dtype=p.dtype)

    def kl(self, z: ArrayLike, other: ArrayLike) -> np.ndarray:
        """Σ p log(p/p′), [*B] for z [*B C]."""
        ratios = self.log_density(_long(z)) - self.log_density(_long(other))
        found = (self.probabilities(z) * ratios).sum(-1)
        return found if self.joint else found.sum(-1)

    def log_partition(self, z: ArrayLike, start: ArrayLike) -> np.ndarray:
        """η(z) − η(start) = φ log E[exp((z − start)ᵀy/φ)] under p(y | start)."""
        change = (_long(z) - _long(start)) / self.dispersion
        exponents = change @ self.outcomes.T if self.joint else change[..., None] * self.outcomes
        return self.dispersion * np.log((self.probabilities(start) * np.exp(exponents)).sum(-1))

    def score(self, z: ArrayLike) -> np.ndarray:
        """∂ log p/∂z of every outcome: [*B K], or [*B K C] if joint."""
        z = _long(z)
        if not self.joint:
            return self.log_density(z + 1j * STEP).imag / STEP
        steps = 1j * STEP * np.eye(z.shape[-1])
        return np.stack([self.log_density(z + step).imag / STEP for step in steps], -1)


def _long(values: ArrayLike) -> np.ndarray:
    return np.asarray(values).astype(np.longdouble)


def _counted(log_first: np.ndarray, log_ratios: np.ndarray) -> np.ndarray:
    """Log-probabilities of 0, 1, 2, … from the first and the ratio of each to the one before."""
    return log_first[..., None] + np.concatenate([0 * log_first[..., None], np.cumsum(log_ratios, -1)], -1)


def _successes(trials: int, chance: np.ndarray) -> np.ndarray:
    """Log-probabilities of 0 … n successes, one trial after the other."""
    p = np.ones((*chance.shape, 1), chance.dtype)
    for _ in range(trials):
        none = np.zeros_like(p[..., :1])
        p = np.concatenate([p * (1 - chance[..., None]), none], -1) + np.concatenate([none, p * chance[..., None]], -1)
    return np.log(p)


def _log_gamma(shape: np.longdouble) -> np.longdouble:
    """log ∫ t^(k−1) e^(−t) dt, in log t."""
    return np.log(np.exp(shape * LOGARITHMS - np.exp(LOGARITHMS)).sum() * (LOGARITHMS[1] - LOGARITHMS[0]))


def distribution(family: AbstractFamily, classes: int = 3) -> Distribution:
    """The distribution of a family of `lngeom.families`.

    Args:
        family: its kind and settings are read, and nothing is called.
        classes: number of classes of a categorical one.

    Returns:
        The distribution.

    Raises:
        ValueError: if the family is not one of the library's.
    """
    settings: Any = family
    phi = np.longdouble(family.dispersion)
    y = np.exp(LOGARITHMS)
    cells = y * (LOGARITHMS[1] - LOGARITHMS[0])
    match type(family).__name__:
        case "Gaussian":
            grid = np.arange(-20, 20, 0.05).astype(np.longdouble) * np.sqrt(phi)
            return Distribution(
                grid,
                np.full(grid.shape, grid[1] - grid[0]),
                lambda z: -((grid - z[..., None]) ** 2) / (2 * phi) - np.log(2 * np.pi * phi) / 2,
                family.dispersion,
            )
        case "Bernoulli" | "Binomial" as name:
            trials = 1 if name == "Bernoulli" else settings.trials
            return Distribution(
                COUNTS[: trials + 1], np.ones(trials + 1), lambda z: _successes(trials, 1 / (1 + np.exp(-z)))
            )
        case "Poisson":
            return Distribution(
                COUNTS, np.ones(COUNTS.shape), lambda z: _counted(-np.exp(z), z[..., None] - np.log(COUNTS[1:]))
            )
        case "NegativeBinomial":
            r = np.longdouble(settings.successes)
            ratios = np.log((COUNTS[1:] - 1 + r) / COUNTS[1:])
            return Distribution(
                COUNTS,
                np.ones(COUNTS.shape),
                lambda z: _counted(r * np.log(1 - np.exp(z)), ratios + np.log(np.exp(z))[..., None]),
            )
        case "Gamma":
            shape = 1 / phi

            def gamma(z: np.ndarray) -> np.ndarray:
                rate = shape / (-1 / z[..., None])
                return shape * np.log(rate * y) - rate * y - LOGARITHMS - _log_gamma(shape)

            return Distribution(y, cells, gamma, family.dispersion)
        case "InverseGaussian":

            def inverse_gaussian(z: np.ndarray) -> np.ndarray:
                mean = 1 / np.sqrt(-2 * z[..., None])
                return -((y - mean) ** 2) / (2 * phi * mean**2 * y) - np.log(2 * np.pi * phi * y**3) / 2

            return Distribution(y, cells, inverse_gaussian, family.dispersion)
        case "Categorical":
            return Distribution(
                np.eye(classes, dtype=np.longdouble),
                np.ones(classes),
                lambda z: np.log(np.exp(z) / np.exp(z).sum(-1, keepdims=True)),
                joint=True,
            )
        case other:
            raise ValueError(f"no reference for {other}")
