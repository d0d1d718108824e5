"""Distributions of outputs: exponential families with natural parameter z, others, and their checks.

The formulas stand in `exponential.py`.

It may import `_core`.
"""

from lngeom.families._checks import check
from lngeom.families._distribution import AbstractDistribution, pivoted_cholesky as pivoted_cholesky
from lngeom.families._family import AbstractFamily
from lngeom.families._outputs import (
    HeteroscedasticGaussian,
    Joined as Joined,
    Mixture,
    MultivariateGaussian,
    Product,
    described as described,
)
from lngeom.families.exponential import (
    Bernoulli,
    Binomial,
    Categorical,
    Gamma,
    Gaussian,
    InverseGaussian,
    NegativeBinomial,
    Poisson,
)

__all__ = [
    "AbstractDistribution",
    "AbstractFamily",
    "Bernoulli",
    "Binomial",
    "Categorical",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "InverseGaussian",
    "Mixture",
    "MultivariateGaussian",
    "NegativeBinomial",
    "Poisson",
    "Product",
    "check",
]
