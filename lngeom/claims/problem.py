"""What claims are checked on: a data set, and random models for it that depend only on a seed and a name."""

import operator
import zlib
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom import families, methods as normalizers
from lngeom._core.draws import draw_small
from lngeom._core.types import GLMParameters
from lngeom.families import AbstractFamily
from lngeom.information.glm import NormalizedGLM
from lngeom.methods import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics

NORMALIZERS: dict[str, AbstractNormalizer] = {
    "bn": normalizers.BatchNorm(),
    "wn": normalizers.WeightNorm(),
    "ln": normalizers.LayerNorm(),
    "rms": normalizers.RMSNorm(),
    "gn": normalizers.GroupNorm(groups=2),
    "identity": normalizers.Identity(),
}
"""Normalizers by the names that claim ids use."""

TITLES = {
    "bn": "Batch norm",
    "wn": "Weight norm",
    "ln": "Layer norm",
    "rms": "RMS norm",
    "gn": "Group norm",
    "identity": "No normalization",
}
"""The same names, spelled out."""

UNITS = 4.0
"""Size of a change of the last digits, in units in the last place."""


class Case(NamedTuple):
    """A model with parameters and inputs: one point at which a claim is checked.

    Attributes:
        model: the model.
        params: its parameters.
        inputs: X.
    """

    model: NormalizedGLM
    params: GLMParameters
    inputs: Float[Array, "N D"]

    def statistics(self) -> Statistics:
        """μ and σ of the normalizer, which must be of the form of Eq. 5."""
        normalizer = self.model.normalizer
        assert isinstance(normalizer, AbstractStatisticsNormalizer)
        return _statistics(normalizer, self.params.weights, self.inputs)

    def rounding(self) -> float:
        """Largest eps Σ|w x|/σ: what rounding of the summed inputs does to (a − μ)/σ; infinite where σ is zero."""
        inputs, weights = (np.abs(np.asarray(v)) for v in (self.inputs, self.params.weights))
        with np.errstate(all="ignore"):
            found = float(np.max(inputs @ weights.T / np.asarray(self.statistics().scale)))
        found *= float(jnp.finfo(jax.dtypes.canonicalize_dtype(inputs.dtype)).eps)
        return found if found == found else float("inf")


@eqx.filter_jit
def _statistics(normalizer: AbstractStatisticsNormalizer, weights: Array, inputs: Array) -> Statistics:
    return normalizer.statistics(weights, inputs)


@dataclass(frozen=True)
class Problem:
    """Data and seed of an audit.

    Attributes:
        inputs: the data set, scaled to a mean square of one per entry.
        seed: seed of all that is random.
        units: H of the models put on the data set.
        results: folder of the results of experiments, where they were given.
        draw: which other last digits the data have; None for those they came with.
    """

    inputs: Float[Array, "N D"]
    seed: int = 0
    units: int = 6
    results: Path | None = None
    draw: int | None = None

    @property
    def dtype(self) -> np.dtype:
        """Of the data; asking for it does not read them."""
        return vars(self)["inputs"].dtype

    def key(self, name: str) -> PRNGKeyArray:
        """A key for this purpose: it depends on the seed and the name alone."""
        return _key(operator.index(self.seed), np.uint32(zlib.crc32(name.encode())))

    def normal(self, name: str, *shape: int, dtype: jax.typing.DTypeLike | None = None) -> Float[Array, "..."]:
        """Standard normal numbers for this purpose, by default in the dtype of the data."""
        return draw_small(jax.random.normal, self.key(name), shape, self.dtype if dtype is None else dtype)

    def uniform(self, name: str, *shape: int, low: float, high: float) -> Float[Array, "..."]:
        """Uniform numbers for this purpose."""
        return draw_small(jax.random.uniform, self.key(name), shape, self.dtype, low, high)

    def case(
        self, normalizer: str | AbstractNormalizer, family: AbstractFamily | None = None, name: str = "case"
    ) -> Case:
        """A random model on the data set."""
        return _case(self.key(name), normalizer, family, self.inputs, self.units)

    def with_other_last_digits(self, draw: int) -> "Problem":
        """The problem on data whose last digits are others: what `rounded` gives for this draw."""
        other = replace(self, draw=draw)
        return replace(other, inputs=other.rounded(self.inputs))

    def rounded(self, values: Float[Array, "..."]) -> Float[Array, "..."]:
        """Values as they are; under other last digits with every entry changed by up to a few units in the last place.

        Checks pass through it what they have changed by more than rounding, as data plus a large shift.
        """
        if self.draw is None:
            return values
        change = self.uniform(f"last digits {self.draw}", *values.shape, low=-1.0, high=1.0)
        return values * (1 + UNITS * float(jnp.finfo(values.dtype).eps) * np.asarray(change))

    @cached_property
    def rounding(self) -> float:
        """What rounding does to summed inputs that batch or layer norm have normalized on the data."""
        return max(self.case(method).rounding() for method in ("bn", "ln"))

    def small(
        self,
        normalizer: str | AbstractNormalizer,
        family: AbstractFamily | None = None,
        shape: tuple[int, int, int] = (60, 5, 6),
        name: str = "small",
    ) -> Case:
        """A random model on random inputs of shape (N, D, H), whatever the data set."""
        samples, features, units = shape
        inputs = self.normal(f"{name} inputs", samples, features)
        return _case(self.key(name), normalizer, family, inputs, units)


class Watched(Problem):
    """A problem that knows whether a check used its data; what did not cannot suffer from their rounding.

    Attributes:
        read: whether the data were read, or values rounded like them.
    """

    read = False

    @property
    def inputs(self) -> Float[Array, "N D"]:  # noqa: D102
        vars(self)["read"] = True
        return vars(self)["inputs"]

    @inputs.setter
    def inputs(self, values: Float[Array, "N D"]) -> None:
        vars(self)["inputs"] = values

    def rounded(self, values):  # noqa: D102
        vars(self)["read"] = True
        return super().rounded(values)

    @classmethod
    def of(cls, problem: Problem) -> "Watched":
        """The same problem, not read yet."""
        return cls(**{field.name: getattr(problem, field.name) for field in fields(problem)})


@partial(jax.jit, static_argnums=0)
def _key(seed: int, number: np.uint32) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.key(seed), number)


def _case(key, normalizer, family, inputs, units) -> Case:
    normalizer = NORMALIZERS[normalizer] if isinstance(normalizer, str) else normalizer
    model = NormalizedGLM(normalizer, families.Bernoulli() if family is None else family)
    weights_key, gain_key, bias_key = jax.random.split(key, 3)
    params = model.init(weights_key, inputs=inputs.shape[1], outputs=units, dtype=inputs.dtype)
    if not jnp.isfinite(model.family.upper):
        params = GLMParameters(
            params.weights,
            0.3 * draw_small(jax.random.normal, bias_key, (units,), inputs.dtype),
            draw_small(jax.random.uniform, gain_key, (units,), inputs.dtype, 0.5, 1.5),
        )
    return Case(model, params, inputs)
