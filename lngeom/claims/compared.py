"""All families of the library by two routes: as the library has them, and summed outcome by outcome."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lngeom import families
from lngeom.claims.distributions import Distribution, distribution

FAMILIES = (
    families.Gaussian(2.0),
    families.Bernoulli(),
    families.Binomial(7),
    families.Poisson(),
    families.Gamma(0.6),
    families.InverseGaussian(0.4),
    families.NegativeBinomial(2.5),
    families.Categorical(),
)
"""All families of the library, with a dispersion other than 1 where they have one."""


@eqx.filter_jit
def _by_library(given):
    """What the library says of each family at natural parameters z and z′, and at responses y."""

    def of(family, z, other, y):
        root = jax.vmap(family.metric_sqrt_product, (None, 1), 1)(z, jnp.broadcast_to(jnp.eye(3), (2, 3, 3)))
        return {
            "log_prob": family.log_prob(z, y),
            "equation 10": families.AbstractFamily.log_prob(family, z, y),
            "log_partition": family.log_partition(z) - family.log_partition(other),
            "mean": family.mean(z),
            "variance": family.variance(z),
            "metric": family.metric(z),
            "metric by its root": jnp.einsum("nik,njk->nij", root, root),
            "score": family.score(z, y),
            "kl": family.kl(z, other),
        }

    return [of(*arguments) for arguments in given]


class Compared(NamedTuple):
    """A family by two routes.

    Attributes:
        family: as the library has it.
        distribution: its outcomes and their probabilities, in NumPy.
        z: natural parameters, [2 3].
        other: further ones.
        chosen: positions of the responses y among the outcomes, [2 3], or [2] if joint.
        library: what the library says of them.
    """

    family: families.AbstractFamily
    distribution: Distribution
    z: np.ndarray
    other: np.ndarray
    chosen: np.ndarray
    library: dict[str, Array]

    @property
    def name(self) -> str:
        """Its kind."""
        return type(self.family).__name__

    def drawn(self, count: int = 4000) -> np.ndarray:
        """So many responses that the library draws, [count 2 3], with a fixed seed; labels as one-hot rows."""
        z = jnp.broadcast_to(jnp.asarray(self.z, float), (count, *self.z.shape))
        y = np.asarray(jax.jit(self.family.sample)(jax.random.key(0), z))
        return np.eye(z.shape[-1])[y] if self.family.labels else y

    def at_responses(self, values: np.ndarray) -> np.ndarray:
        """Those of values for every outcome that belong to the responses."""
        if self.distribution.joint:
            return values[np.arange(len(self.chosen)), self.chosen]
        return np.take_along_axis(values, self.chosen[..., None], -1)[..., 0]


@functools.cache
def _point(family: families.AbstractFamily) -> tuple[Distribution, np.ndarray, np.ndarray, np.ndarray]:
    """The outcomes of a family, z, z′ and the positions of responses: several claims look at them."""
    z = np.linspace(-1.5, 0.9, 6).reshape(2, 3)
    at = z if np.isinf(family.upper) else family.upper - 0.5 * np.exp(-z)
    other = at + 0.1 * np.array([1.0, -2.0, 1.5])
    found = distribution(family)
    cumulative = np.cumsum(found.probabilities(at), -1)
    levels = np.linspace(0.1, 0.9, cumulative[..., 0].size).reshape(cumulative.shape[:-1])
    return found, at, other, np.sum(cumulative < levels[..., None], -1)


def compared() -> list[Compared]:
    """Every family by both routes, at responses from one tenth to nine tenths of its distribution."""
    points = [(family, *_point(family)) for family in FAMILIES]
    given = [(f, *map(jnp.asarray, (a, o, d.outcomes[c].astype(float)))) for f, d, a, o, c in points]
    library = _by_library(given)
    return [Compared(f, d, *more, values) for (f, d, *more), values in zip(points, library, strict=True)]
