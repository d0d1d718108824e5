r"""The evidence of a Laplace approximation, by the precisions of the prior and the variance of the noise.

With weights φ in groups g, a prior $N(0, \mathrm{diag}(1/\tau_g))$ and noise of variance σ² (F was taken at σ₀²):

$$\log Z = \sum_n \log p(y_n \mid x_n) - \frac12 \min_a \sum_i \tau_{g(i)} (\phi - G a)_i^2
- \frac12 \log\det\Big(I + \frac{N \sigma_0^2}{\sigma^2} T^{-1/2} F T^{-1/2}\Big), \qquad T = \mathrm{diag}(\tau),$$

G the directions of the gauge. Its derivatives by log τ and log σ² are closed forms (MacKay, 1992), and everything is
computed in float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from lngeom.information.approximations.operator import ApproximateFisher

LogRatio = Callable[[Float[np.ndarray, " G"], float], tuple[float, Float[np.ndarray, " G"]]]
"""(τ [G], scale) → log det(I + scale T⁻¹ᐟ² F T⁻¹ᐟ²), and minus its derivatives by log τ."""


class Eigenpairs(eqx.Module):
    """F as Vᵀ diag(s) V, and 0 on all that V leaves out.

    Attributes:
        values: s, [k].
        vectors: V, one a row, [k P].
    """

    values: Float[Array, " k"]
    vectors: Float[Array, "k P"]

    def power(self, v: Float[Array, " P"], scale: float, damping: float, exponent: float) -> Float[Array, " P"]:
        """The product (scale · F + damping · I)^exponent v."""
        coefficients = self.vectors @ v
        rest = damping**exponent
        factors = (scale * self.values + damping) ** exponent - rest
        return rest * v + self.vectors.T @ (factors * coefficients)

    def log_ratio(self, scale: float, damping: float) -> float:
        """The sum of log((scale · s + damping) / damping)."""
        return float(jnp.sum(jnp.log1p(scale / damping * self.values)))

    def times(self, factor: float) -> "Eigenpairs":
        """The matrix times a number."""
        return Eigenpairs(factor * self.values, self.vectors)

    def rescaled(self, precisions: Float[np.ndarray, " P"]) -> "Eigenpairs":
        """T⁻¹ᐟ² F T⁻¹ᐟ²: the matrix by √τ φ."""
        rows = np.sqrt(np.asarray(self.values, float))[:, None] * np.asarray(self.vectors, float) / np.sqrt(precisions)
        _, s, right = np.linalg.svd(rows, full_matrices=False)
        return Eigenpairs(*(jnp.asarray(a, self.values.dtype) for a in (s**2, right)))

    def by_groups(self, groups: Int[np.ndarray, " P"]) -> LogRatio:
        """The logarithm of the determinant by a precision for each group."""
        s, rows = np.asarray(self.values, float), np.asarray(self.vectors, float)
        count = int(groups.max()) + 1
        root = np.sqrt(s)[:, None]
        if count == 1:
            return _of_eigenvalues([s], [0])
        parts = [(root * rows[:, groups == g]) @ (root * rows[:, groups == g]).T for g in range(count)]

        def found(precisions: np.ndarray, scale: float) -> tuple[float, np.ndarray]:
            terms = [scale / t * part for t, part in zip(precisions, parts, strict=True)]
            matrix = np.eye(len(s)) + sum(terms)
            inverse = np.linalg.inv(matrix)
            return float(np.linalg.slogdet(matrix)[1]), np.array([np.sum(inverse * term) for term in terms])

        return found


class Blocks(eqx.Module):
    """F by an approximation of `F.approximate`.

    Attributes:
        operator: the approximation.
    """

    operator: ApproximateFisher

    def power(self, v: Float[Array, " P"], scale: float, damping: float, exponent: float) -> Float[Array, " P"]:
        """The product (scale · F + damping · I)^exponent v."""
        return self.operator.apply(lambda s: (scale * s + damping) ** exponent, v)

    def log_ratio(self, scale: float, damping: float) -> float:
        """The sum of log((scale · s + damping) / damping)."""
        return float(jnp.sum(jnp.log1p(scale / damping * self.operator.eigenvalues())))

    def times(self, factor: float) -> "Blocks":
        """The matrix times a number."""
        return self._with([factor] * len(self.operator.parts))

    def rescaled(self, precisions: Float[np.ndarray, " P"]) -> "Blocks":
        """T⁻¹ᐟ² F T⁻¹ᐟ²: the matrix by √τ φ.

        Raises:
            ValueError: if a block has several precisions.
        """
        return self._with([1 / value for value in self._each(precisions)])

    def by_groups(self, groups: Int[np.ndarray, " P"]) -> LogRatio:
        """The logarithm of the determinant by a precision for each group.

        Raises:
            ValueError: if a block is in several groups.
        """
        return _of_eigenvalues([np.asarray(part.values, float) for part in self.operator.parts], self._each(groups))

    def _each(self, entries: np.ndarray) -> list[Any]:
        """The one value that the entries of each block have."""
        edges = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(self.operator.in_structure()))])
        found = []
        for part in self.operator.parts:
            here = np.unique(np.concatenate([entries[edges[leaf] : edges[leaf + 1]] for leaf, _ in part.places]))
            if len(here) > 1:
                raise ValueError(
                    f"an approximation by blocks has one prior precision for {part.name}, which are one block: give "
                    "them the same, or use structure='exact'"
                )
            found.append(here[0].item())
        return found

    def _with(self, factors: list[float]) -> "Blocks":
        parts = tuple(
            eqx.tree_at(lambda p: p.values, part, factor * part.values)
            for part, factor in zip(self.operator.parts, factors, strict=True)
        )
        return Blocks(eqx.tree_at(lambda o: o.parts, self.operator, parts))


def _of_eigenvalues(values: list[np.ndarray], labels: list[int]) -> LogRatio:
    """The logarithm of the determinant of blocks with these eigenvalues, each in one group."""

    def found(precisions: np.ndarray, scale: float) -> tuple[float, np.ndarray]:
        total, slopes = 0.0, np.zeros(len(precisions))
        for label, s in zip(labels, values, strict=True):
            ratio = scale / precisions[label] * s
            total += float(np.sum(np.log1p(ratio)))
            slopes[label] += np.sum(ratio / (1 + ratio))
        return total, slopes

    return found


class Evidence(NamedTuple):
    """What the evidence of a posterior depends on.

    Attributes:
        log_ratio: see `LogRatio`.
        groups: of each entry of φ.
        phi: φ.
        gauge: G, [P k].
        samples: N.
        responses: how many numbers y holds, M.
        squares: sum of squares of the residuals; NaN where the noise has no variance that is sought.
        dispersion: σ₀².
    """

    log_ratio: LogRatio
    groups: Int[np.ndarray, " P"]
    phi: Float[np.ndarray, " P"]
    gauge: Float[np.ndarray, "P k"]
    samples: int
    responses: float = 0.0
    squares: float = float("nan")
    dispersion: float = 1.0

    def __call__(self, log_precisions: np.ndarray, log_variance: float | None = None) -> tuple[float, np.ndarray]:
        """Log Z but for terms that nothing here changes, and its derivatives by log τ, and log σ² where it is given."""
        precisions = np.exp(log_precisions)
        root = np.sqrt(precisions[self.groups])
        rest = self.phi
        if self.gauge.shape[1]:
            a = np.linalg.lstsq(root[:, None] * self.gauge, root * self.phi)[0]
            rest = self.phi - self.gauge @ a
        energy = np.bincount(self.groups, (root * rest) ** 2, len(precisions))
        scale = self.samples * (1.0 if log_variance is None else self.dispersion * np.exp(-log_variance))
        log_det, slopes = self.log_ratio(precisions, scale)
        value, slope = -(energy.sum() + log_det) / 2, (slopes - energy) / 2
        if log_variance is None:
            return value, slope
        fit = self.squares * np.exp(-log_variance)
        value -= (fit + self.responses * log_variance) / 2
        return value, np.append(slope, (fit - self.responses + slopes.sum()) / 2)

    def maximize(
        self, start: np.ndarray, bounds: tuple[float, float], noise: bool
    ) -> tuple[Float[np.ndarray, " G"], float | None]:
        """Precisions and variance of the largest evidence near a start; both between two bounds."""

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self(x[: len(start)], float(x[-1])) if noise else self(x)
            return -value, -slope

        first = np.log(np.append(start, self.dispersion) if noise else start)
        limits = [(np.log(bounds[0]), np.log(bounds[1]))] * len(first)
        options = {"gtol": 1e-9, "ftol": 1e-14}
        found: Any = scipy.optimize.minimize(loss, first, jac=True, method="L-BFGS-B", bounds=limits, options=options)
        best = np.exp(found.x)
        return (best[:-1], float(best[-1])) if noise else (best, None)
