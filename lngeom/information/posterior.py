r"""Laplace approximations of the posterior that do not depend on the scale of weights before a norm.

Weights w before a norm with ε = 0 can be rescaled without a change of the function. An isotropic prior on them can
not: it breaks the evidence, and the variance of predictions (arXiv:2206.08900). Here the prior lives on one
representative of each orbit, in whose coordinates everything is computed: $\phi = w \sqrt{d} / |w|$, d entries of root
mean square 1, as draws from the prior have them at τ = 1. Then rescaled weights have the same φ, and the same
posterior.

With F the mean Fisher matrix by φ and N samples, the posterior is $N(\phi, (N F + \tau I)^{-1})$. Along null directions
of the gauge it is the prior itself, which cancels in the evidence; draws leave these directions out.

$$\log Z = \sum_n \log p(y_n \mid x_n) - \frac\tau2 |\phi_\perp|^2 + \frac12 \sum_i \log \frac{\tau}{N s_i + \tau}$$

with φ⊥ the part of φ outside the gauge's directions and $s_i$ the eigenvalues of F. Where the prior has a precision
$\tau r_g$ for each layer g, φ stands for $\sqrt{r_g}\, \phi$: then its prior is isotropic again.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count
from lngeom._core.draws import probe_generator
from lngeom._core.trees import leaf_paths
from lngeom.families import (
    AbstractDistribution,
    AbstractFamily,
    Gaussian,
    HeteroscedasticGaussian,
    MultivariateGaussian,
)
from lngeom.information import FisherOperator, fisher
from lngeom.information._parameters import join
from lngeom.information._planner import PREDICTED, ROW_BYTES, fitting
from lngeom.information._problem import Problem, unused_leaves
from lngeom.information._products import unchecked
from lngeom.information.batches import Batches, as_batches
from lngeom.information.evidence import Blocks, Eigenpairs, Evidence
from lngeom.information.glm import NormalizedGLM
from lngeom.information.groups import scale_invariant_groups
from lngeom.information.predicted import predicted_nullspace

STRUCTURES = ("exact", "low_rank", "kfac", "ekfac")

COVERED = (AbstractFamily, HeteroscedasticGaussian, MultivariateGaussian)
"""Distributions of a response with a mean and a variance."""


class Rescaled(eqx.Module):
    """A function of normalized weights φ, with θ = φ · scales. Its programs are found again at other parameters.

    Attributes:
        problem: whose outputs they are, without samples and parameters.
        scales: of each entry of the parameters.
    """

    problem: Problem
    scales: PyTree

    def __call__(self, representative: PyTree, inputs: PyTree) -> Float[Array, "N *T C"]:
        """Natural parameters."""
        return self.problem.outputs(jax.tree.map(jnp.multiply, representative, self.scales), inputs)


class Laplace(eqx.Module):
    """A Laplace approximation of the posterior, made by `lg.laplace`.

    Attributes:
        apply: (φ, X) → natural parameters, [N *T C].
        family: of the outputs.
        representative: φ, a pytree like the differentiated parameters.
        scales: of each entry of the parameters, θ / φ.
        fisher: F by φ, or its approximation.
        gauge: orthonormal basis of the directions that are left out, [P k].
        log_likelihood: of the data.
        samples: N.
        excluded: paths of the leaves without a posterior.
        prior_precision: τ; where layers have priors of their own, a factor of all.
        relative: of each leaf its path and the precision of its prior, relative to τ.
        responses: how many numbers y holds, those that a mask leaves out aside.
    """

    apply: Rescaled
    family: AbstractDistribution
    representative: PyTree
    scales: PyTree
    fisher: Eigenpairs | Blocks
    gauge: Float[Array, "P k"]
    log_likelihood: float
    samples: int
    excluded: tuple[str, ...]
    prior_precision: float
    relative: tuple[tuple[str, float], ...] = eqx.field(static=True, default=())
    responses: float = 0.0

    @property
    def prior_precisions(self) -> dict[str, float]:
        """The precision of the prior of each leaf's normalized weights, by its path."""
        return {path: self.prior_precision * factor for path, factor in self.relative}

    @property
    def log_evidence(self) -> float:
        """The logarithm of the marginal likelihood, log Z."""
        phi = ravel_pytree(self.representative)[0]
        horizontal = phi - self.gauge @ (self.gauge.T @ phi)
        tau = self.prior_precision
        energy = tau / 2 * float(jnp.sum(jnp.square(horizontal)))
        return self.log_likelihood - energy - self.fisher.log_ratio(self.samples, tau) / 2

    def maximize_evidence(
        self, low: float = 1e-6, high: float = 1e6, *, layers: bool = False, noise: bool = False
    ) -> "Laplace":
        """The same with the prior, and the noise, of the largest evidence between two bounds.

        Args:
            low: the smallest precision, and variance.
            high: the largest.
            layers: whether each layer gets a precision of its own: leaves whose paths are alike but for the last name
                (weight and bias). Otherwise all precisions are multiplied by one factor.
            noise: whether the variance of the noise is sought too; for `families.Gaussian` of one variance.

        Raises:
            ValueError: unless 0 < low < high, or if the family has no such variance, or an approximation of F holds two
                layers in one block.
        """
        if not 0 < low < high:
            raise ValueError(f"the bounds must be 0 < low < high; got {low}, {high}")
        loss = lambda t: -replace(self, prior_precision=math.exp(t)).log_evidence  # noqa: E731
        found: Any = scipy.optimize.minimize_scalar(loss, bounds=(math.log(low), math.log(high)), method="bounded")
        best = replace(self, prior_precision=math.exp(found.x))
        if not (layers or noise):
            return best
        paths = leaf_paths(self.representative)
        names = [path.rpartition(".")[0] or path if layers else "" for path in paths]
        labels = [list(dict.fromkeys(names)).index(name) for name in names]
        sizes = [leaf.size for leaf in jax.tree.leaves(self.representative)]
        groups = np.repeat(labels, sizes)
        squares, dispersion = self._noise() if noise else (math.nan, 1.0)
        evidence = Evidence(
            self.fisher.by_groups(groups),
            groups,
            np.asarray(ravel_pytree(self.representative)[0], float),
            np.asarray(self.gauge, float),
            self.samples,
            self.responses,
            squares,
            dispersion,
        )
        start = np.full(max(labels) + 1, best.prior_precision)
        precisions, variance = evidence.maximize(start, (low, high), noise)
        if variance is not None and not low * 1.001 < variance < high / 1.001:
            warnings.warn(
                f"the evidence grows up to the bound of the variance of the noise, {variance:.3g}: it has no maximum "
                f"between {low:g} and {high:g}",
                RuntimeWarning,
                stacklevel=2,
            )
        found = best if variance is None else best._with_noise(variance)
        if not layers:
            return replace(found, prior_precision=float(precisions[0]))
        return replace(found, prior_precision=1.0)._with_precisions(precisions[labels])

    def _noise(self) -> tuple[float, float]:
        """Sum of squares of the residuals, and the variance of the noise.

        Raises:
            ValueError: if the family has no such variance.
        """
        if not isinstance(self.family, Gaussian) or not isinstance(self.family.dispersion, int | float):
            raise ValueError(f"noise=True is for families.Gaussian of one variance; the family is {self.family}")
        dispersion = float(self.family.dispersion)
        constant = self.responses * math.log(2 * math.pi * dispersion)
        return -dispersion * (2 * self.log_likelihood + constant), dispersion

    def _with_noise(self, variance: float) -> "Laplace":
        """The same with another variance of the noise."""
        squares, before = self._noise()
        likelihood = -(squares / variance + self.responses * math.log(2 * math.pi * variance)) / 2
        fisher = self.fisher.times(before / variance)
        return replace(self, family=Gaussian(variance), fisher=fisher, log_likelihood=likelihood)

    def _with_precisions(self, factors: Sequence[float]) -> "Laplace":
        """The same with the precision of each leaf's prior multiplied by a factor, by √factor · φ."""
        leaves, structure = jax.tree.flatten(self.representative)
        each = [jnp.full_like(leaf, factor) for leaf, factor in zip(leaves, factors, strict=True)]
        precisions = np.concatenate([np.asarray(f, float).ravel() for f in each])
        roots = jax.tree.unflatten(structure, [jnp.sqrt(f) for f in each])
        scales = jax.tree.map(jnp.divide, self.scales, roots)
        gauge = np.sqrt(precisions)[:, None] * np.asarray(self.gauge, float)
        return replace(
            self,
            apply=replace(self.apply, scales=scales),
            representative=jax.tree.map(jnp.multiply, self.representative, roots),
            scales=scales,
            fisher=self.fisher.rescaled(precisions),
            gauge=jnp.asarray(np.linalg.qr(gauge)[0], self.gauge.dtype) if gauge.shape[1] else self.gauge,
            relative=tuple((path, old * f) for (path, old), f in zip(self.relative, map(float, factors), strict=True)),
        )

    def covariance(self, inputs: PyTree) -> Float[Array, "N R R"]:
        """Covariance of the outputs by linearization, J (N F + τI)⁻¹ Jᵀ, for each sample; R = C, or T·C."""
        return _covariance(*self._alike(), inputs)

    def variance(self, inputs: PyTree) -> Float[Array, "N R"]:
        """Variance of each output by linearization."""
        return jnp.diagonal(self.covariance(inputs), axis1=1, axis2=2)

    def predict(self, inputs: PyTree, key: PRNGKeyArray, samples: int = 100) -> Float[Array, "N *T C"]:
        """The mean response, averaged over draws of the outputs from N(z, J Σ Jᵀ).

        Raises:
            ValueError: if samples is no whole number of at least 1.
        """
        return self._predictive(inputs, key, samples)[0]

    def predict_variance(self, inputs: PyTree, key: PRNGKeyArray, samples: int = 100) -> Float[Array, "N *T C"]:
        """The variance of a response: the mean of Var[y | z] and the variance of E[y | z], over the draws of `predict`.

        Raises:
            ValueError: if samples is no whole number of at least 1.
        """
        return self._predictive(inputs, key, samples)[1]

    def _predictive(self, inputs: PyTree, key: PRNGKeyArray, samples: int) -> tuple[Array, Array]:
        return _predict(*self._alike(), inputs, key, check_count("samples", samples, 1, what="a whole number of draws"))

    def sample(self, key: PRNGKeyArray, count: int = 1) -> PyTree:
        """Draws of parameters θ from the posterior, with one more leading axis; none moves along the gauge.

        They are pytrees like the whole params. Arrays without a posterior are repeated for each draw.

        Raises:
            ValueError: if count is no whole number of at least 0.
        """
        phi, unravel = ravel_pytree(self.representative)

        def draw(key: PRNGKeyArray) -> PyTree:
            change = self._power(jax.random.normal(key, phi.shape, phi.dtype), -0.5)
            change = change - self.gauge @ (self.gauge.T @ change)
            return jax.tree.map(jnp.multiply, unravel(phi + change), self.scales)

        count = check_count("count", count, 0)
        draws = jax.vmap(draw)(jax.random.split(key, count))

        def repeated(leaf: Any) -> Any:
            arrays = isinstance(leaf, jax.Array | np.ndarray | np.generic)
            return jnp.broadcast_to(jnp.asarray(leaf), (count, *jnp.shape(leaf))) if arrays else leaf

        return join(draws, jax.tree.map(repeated, self.apply.problem.fixed.thaw()))

    def _alike(self) -> tuple["Laplace", Float[Array, ""]]:
        """The posterior with one value for all numbers that a program would hold as constants, and τ as an array."""
        same = replace(self, prior_precision=1.0, log_likelihood=0.0, responses=0.0)
        if isinstance(self.family, Gaussian):
            same = replace(same, family=Gaussian(jnp.asarray(self.family.dispersion, float)))
        return same, jnp.asarray(self.prior_precision)

    def _power(self, v: Float[Array, " P"], exponent: float) -> Float[Array, " P"]:
        """The product (N F + τI)^exponent v."""
        return self.fisher.power(v, self.samples, self.prior_precision, exponent)

    def _jacobian(self, inputs: PyTree) -> Float[Array, "R P"]:
        phi, unravel = ravel_pytree(self.representative)
        return jax.jacrev(lambda p: self.apply(unravel(p), inputs).reshape(-1))(phi)


@eqx.filter_jit
def _log_likelihood(
    apply: Rescaled, family: AbstractDistribution, phi: PyTree, X: PyTree, y: Array, mask: Array | None
) -> Float[Array, ""]:
    each = family.log_prob(apply(phi, X), y)
    if mask is None:
        return jnp.sum(each)
    weights = mask.astype(each.dtype).reshape(*mask.shape, *(1,) * (each.ndim - mask.ndim))
    return jnp.sum(jnp.where(weights == 0, 0, weights * each))


@eqx.filter_jit
def _covariance(posterior: Laplace, prior_precision: Float[Array, ""], inputs: PyTree) -> Float[Array, "N R R"]:
    at: Any = replace(posterior, prior_precision=prior_precision)

    def one(x: PyTree) -> Float[Array, "R R"]:
        rows = at._jacobian(jax.tree.map(lambda a: a[None], x))
        return rows @ jax.vmap(lambda v: at._power(v, -1))(rows).T

    outputs = math.prod(jax.eval_shape(at.apply, at.representative, inputs).shape[1:])
    rows = outputs * sum(leaf.nbytes for leaf in jax.tree.leaves(at.representative))
    return jax.lax.map(one, inputs, batch_size=fitting(2 * rows, ROW_BYTES, PREDICTED))


@eqx.filter_jit
def _predict(
    posterior: Laplace, prior_precision: Float[Array, ""], inputs: PyTree, key: PRNGKeyArray, samples: int
) -> tuple[Float[Array, "N *T C"], Float[Array, "N *T C"]]:
    family: Any = posterior.family
    z = posterior.apply(posterior.representative, inputs)
    s, vectors = jnp.linalg.eigh(_covariance(posterior, prior_precision, inputs))
    root = vectors * jnp.sqrt(jnp.maximum(s, 0))[:, None, :]
    noise = jax.random.normal(key, (samples, *root.shape[:2]), root.dtype)
    draws = jnp.einsum("nij,knj->kni", root, noise).reshape(samples, *z.shape)
    means, variances = jax.vmap(lambda dz: (family.mean(z + dz), family.variance(z + dz)))(draws)
    return jnp.mean(means, 0), jnp.mean(variances, 0) + jnp.var(means, 0)


def laplace(
    model_or_apply: NormalizedGLM | Callable[[PyTree, PyTree], Array],
    params: PyTree,
    X: PyTree,
    y: Array | None = None,
    *,
    family: AbstractDistribution | None = None,
    mask: Array | None = None,
    prior_precision: float | Mapping[str, float] = 1.0,
    structure: str = "exact",
    rank: int = 20,
    wrt: str | Sequence[str] | Callable[[str, Array], bool] | None = None,
    groups: Mapping[str, int | None] | None = None,
    nullspace: Float[Array, "P k"] | None = None,
    gauge: bool = True,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
) -> Laplace:
    r"""A Laplace approximation of the posterior of a trained model, with its gauge taken out.

    Args:
        model_or_apply: a `NormalizedGLM`, or any JAX function apply(params, X), as `lg.fisher` takes.
        params: trained parameters, as `lg.fisher` takes them: its parameters have a posterior, except leaves that the
            outputs have no derivative by, such as unused ones. `excluded` of the result names the leaves left out.
        X: training inputs, one sample a row; or a loader, as `lg.fisher` takes it, whose batches hold the responses
            too: lg.Batches(loader, inputs=0, y=1).
        y: training responses; None beside a loader.
        family: of the outputs of a function: one of natural parameters, or a Gaussian whose variances are outputs too
            (`HeteroscedasticGaussian`), or of a known covariance.
        mask: [N *T] or [N], as in `lg.fisher`: positions that count are not zero, and weights multiply the
            log-likelihood. The batches of a loader hold their own, lg.Batches(loader, inputs=0, y=1, mask=2).
        prior_precision: τ, of the normalized weights φ; or one for each layer, by the path of a leaf or of leaves that
            it begins. `maximize_evidence` finds them.
        structure: of F: "exact" (a decomposition of its factor), "low_rank" (its largest eigenvalues, the others taken
            as 0), "kfac" or "ekfac" (`F.approximate`).
        rank: number of eigenvalues for "low_rank".
        wrt: which leaves have a posterior, as in `lg.fisher`.
        groups: which leaves can be rescaled without a change of the outputs: paths, each with the axis of the units
            that can be rescaled one by one, or None where the leaf can as a whole. By default whole leaves are
            searched for (`lngeom.training.scale_invariant_groups`); at ε > 0 none is found.
        nullspace: orthonormal basis [P k] of more null directions of F at params; by default those that theory
            predicts for a normalized GLM (not of a loader).
        gauge: whether the gauge is taken out; False is the usual Laplace approximation, with a prior on params.
        key: for draws of an approximation.
        samples: draws, as in `F.approximate`.

    Returns:
        The posterior: `log_evidence`, `maximize_evidence()` (the τ of the largest evidence, for each layer and with the
        variance of the noise too), `covariance(X)` and `variance(X)` of the outputs by linearization, `predict(X, key)`
        and `predict_variance(X, key)` (mean and variance of a response), and `sample(key, count)` (draws of params;
        leaves left out are the same in each).

    Raises:
        ValueError: if an argument is unknown or out of its range, responses have another shape than the outputs or lie
            outside the support, or a group of weights is zero.

    Example:
        >>> import equinox as eqx, jax, lngeom as lg
        >>> X = jax.random.normal(jax.random.key(0), (40, 3))
        >>> y = (X[:, 0] > 0).astype(int)
        >>> mlp = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(1))  # train it first
        >>> apply = lambda m, x: jax.vmap(m)(x)
        >>> posterior = lg.laplace(apply, mlp, X, y, family=lg.families.Categorical())
        >>> posterior = posterior.maximize_evidence()
        >>> posterior.predict(X[:5], jax.random.key(2)).shape, posterior.covariance(X[:5]).shape
        ((5, 2), (5, 2, 2))
    """
    if structure not in STRUCTURES:
        raise ValueError(f"structure must be one of {', '.join(STRUCTURES)}; got {structure!r}")
    by_layer = prior_precision if isinstance(prior_precision, Mapping) else {"": prior_precision}
    for value in by_layer.values():
        number = np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"
        if not number or not 0 < value < math.inf:
            raise ValueError(f"prior_precision must be positive and finite; got {value}")
    batches = _batches_of(X, y, mask)
    F = fisher(model_or_apply, params, X, family=family, wrt=wrt, mask=mask)
    if wrt is None and (unused := unused_leaves(F.problem)):
        used = [path for path in F.leaves if path not in unused]
        if not used:
            raise ValueError(f"the outputs do not depend on any parameter; these are {', '.join(F.leaves)}")
        F = fisher(model_or_apply, params, X, family=family, wrt=used, mask=mask)
    problem, known = F.problem, F.problem.family
    if not isinstance(known, COVERED):
        raise ValueError(
            "a posterior needs a response with a mean and a variance, such as those of Categorical() and "
            f"HeteroscedasticGaussian(); got {known.name}"
        )
    if problem.coupled:
        raise ValueError("a posterior needs samples that do not interact: use the evaluation mode of batch norm")
    theta = problem.params
    found = _groups(problem.outputs, theta, problem.inputs, groups) if gauge else {}
    scales = _scales(theta, found)
    phi = jax.tree.map(jnp.divide, theta, scales)
    apply = Rescaled(replace(problem.with_samples((None, None, None)), params=None), scales)
    by_phi = fisher(apply, phi, X, family=known, check=False, mask=mask) if found else unchecked(F)  # φ is then θ
    rows = [(X, y, mask)] if batches is None else ((b.inputs, b.y, b.mask) for b in batches.read())
    sums = np.sum([_log_likelihood_of(apply, known, phi, *row) for row in rows], 0)
    log_likelihood, responses = map(float, sums)
    if not responses:
        raise ValueError("the mask leaves out every sample: there are no data")
    if not math.isfinite(log_likelihood):
        raise ValueError("the log-likelihood of the data is not finite at these parameters")
    basis = _gauge(model_or_apply, params, X, F, scales, phi, found, nullspace) if gauge else None
    empty = jnp.zeros((F.in_size(), 0), F.problem.dtype)
    chosen = _structure(by_phi, structure, rank, key, samples)
    paths = leaf_paths(phi)
    posterior = Laplace(
        apply,
        known,
        phi,
        scales,
        chosen,
        empty if basis is None else basis,
        log_likelihood,
        F.samples,
        F.excluded,
        1.0,
        tuple((path, 1.0) for path in paths),
        responses,
    )
    if not isinstance(prior_precision, Mapping):
        return replace(posterior, prior_precision=float(prior_precision))
    return posterior._with_precisions(_precisions(paths, prior_precision))


def _precisions(paths: Sequence[str], given: Mapping[str, float]) -> list[float]:
    """For each leaf the precision of the longest path that begins its own.

    Raises:
        ValueError: naming a leaf without one, or a path that begins no leaf.
    """
    begins = {path: [name for name in given if path == name or path.startswith(f"{name}.")] for path in paths}
    if idle := set(given).difference(*begins.values()):
        raise ValueError(
            f"prior_precision names {min(idle)!r}, which begins no leaf; the leaves are {', '.join(paths)}"
        )
    if without := [path for path, names in begins.items() if not names]:
        raise ValueError(f"prior_precision has none for {without[0]!r}: name this leaf, or what its path begins with")
    return [float(given[max(names, key=len)]) for names in begins.values()]


def _batches_of(X: PyTree, y: Array | None, mask: Array | None) -> Batches | None:
    """The batches of a loader, which hold the responses; None for arrays.

    Raises:
        ValueError: if responses are missing, or responses or a mask are given twice.
    """
    batches = as_batches(X)
    if batches is None and y is None:
        raise ValueError("y is missing: the responses of the training data, one row a sample")
    if batches is not None and (y is not None or not batches.has_responses):
        raise ValueError(
            "the batches of a loader hold the responses: say which part they are, as by "
            "lg.Batches(loader, inputs=0, y=1), and give no y="
        )
    if batches is not None and mask is not None:
        raise ValueError(
            "the batches of a loader hold the mask: say which part it is, as by lg.Batches(loader, mask=2)"
        )
    return batches


def _log_likelihood_of(
    apply: Rescaled, family: AbstractDistribution, phi: PyTree, X: PyTree, y: Any, mask: Any
) -> tuple[float, float]:
    """The log-likelihood of samples, once their responses are those of the family; and how many numbers y holds."""
    outputs = eqx.filter_eval_shape(apply, phi, X).shape
    family.check_shape(y, outputs)
    mask = None if mask is None else jnp.asarray(mask)
    family.check_responses(y, outputs, None if mask is None else mask.astype(bool))
    y = jnp.asarray(y) if family.labels else jnp.reshape(y, family.response_shapes(outputs)[0])
    count = y.size if mask is None else float(jnp.sum(mask.astype(float))) * (y.size // mask.size)
    return float(_log_likelihood(apply, family, phi, X, y, mask)), float(count)


def _groups(
    apply: Callable, theta: PyTree, X: PyTree, groups: Mapping[str, int | None] | None
) -> Mapping[str, int | None]:
    if groups is None:
        found = scale_invariant_groups(apply, theta, X, together=1, epsilon=False)
        return {path: None for (path,) in found.values()}
    known = dict(zip(leaf_paths(theta), jax.tree.leaves(theta), strict=True))
    for path, axis in groups.items():
        if path not in known:
            raise ValueError(f"groups names {path!r}, which is no leaf that has a posterior; these are {list(known)}")
        if axis is not None and not -known[path].ndim <= axis < known[path].ndim:
            raise ValueError(f"groups: the axis of {path!r} must be one of {known[path].ndim}; got {axis}")
    return groups


def _scales(theta: PyTree, groups: Mapping[str, int | None]) -> PyTree:
    """Root mean square of the group of each entry, 1 for entries of no group."""
    leaves, structure = jax.tree.flatten(theta)
    found = []
    for path, leaf in zip(leaf_paths(theta), leaves, strict=True):
        scale = jnp.ones_like(leaf)
        if path in groups:
            axis = groups[path]
            others = None if axis is None else tuple(k for k in range(leaf.ndim) if k != axis % leaf.ndim)
            scale = jnp.broadcast_to(jnp.sqrt(jnp.mean(jnp.square(leaf), others, keepdims=True)), leaf.shape)
            if not bool(jnp.all((scale > 0) & jnp.isfinite(scale))):
                raise ValueError(f"{path} has weights that are all zero, or not finite: they have no scale to remove")
        found.append(scale)
    return jax.tree.unflatten(structure, found)


def _gauge(
    model: Any,
    params: PyTree,
    X: PyTree,
    F: FisherOperator,
    scales: PyTree,
    phi: PyTree,
    groups: Mapping[str, int | None],
    nullspace: Float[Array, "P k"] | None,
) -> Float[Array, "P k"]:
    """Orthonormal basis, by φ, of the radial directions and of the null directions that are known."""
    paths, leaves = leaf_paths(phi), jax.tree.leaves(phi)
    edges = np.cumsum([0, *(leaf.size for leaf in leaves)])
    columns = []
    for path, leaf, start in zip(paths, leaves, edges, strict=False):
        if path not in groups:
            continue
        axis, values = groups[path], np.asarray(leaf, float)
        labels = np.zeros(leaf.shape, int)
        if axis is not None:
            shape = [-1 if k == axis % leaf.ndim else 1 for k in range(leaf.ndim)]
            labels = np.broadcast_to(np.arange(leaf.shape[axis]).reshape(shape), leaf.shape)
        for label in np.unique(labels):
            column = np.zeros(edges[-1])
            column[start : start + leaf.size] = np.where(labels == label, values, 0).ravel()
            columns.append(column)
    if nullspace is None and isinstance(model, NormalizedGLM) and not F.in_parts:
        try:
            nullspace = jnp.asarray(predicted_nullspace(model, params, X).basis)
        except ValueError:  # no theory for this normalizer
            nullspace = None
    flat = np.asarray(ravel_pytree(scales)[0], float)
    if nullspace is not None:
        columns += list((np.asarray(nullspace, float) / flat[:, None]).T)
    if not columns:
        return jnp.zeros((edges[-1], 0), F.problem.dtype)
    left, s, _ = np.linalg.svd(np.stack([c / np.linalg.norm(c) for c in columns], 1), full_matrices=False)
    return jnp.asarray(left[:, s > 1e-8 * s[0]], F.problem.dtype)


def _structure(
    F: FisherOperator, structure: str, rank: int, key: PRNGKeyArray | None, samples: int | None
) -> Eigenpairs | Blocks:
    if structure in {"kfac", "ekfac"}:
        return Blocks(F.approximate(structure, key=key, samples=samples))
    if structure == "low_rank":
        from scipy.sparse.linalg import eigsh

        rank = check_count("rank", rank, 1, F.in_size() - 1, bound="P − 1")
        start = probe_generator().standard_normal(F.in_size())
        values, vectors = eigsh(F.as_scipy(), rank, v0=start.astype(F.problem.decomposition_dtype))
        values, vectors = (jnp.asarray(a, F.problem.dtype) for a in (np.maximum(values, 0), vectors.T))
        return Eigenpairs(values, vectors)
    found = F._decomposed()
    s = jnp.where(found.kept, jnp.square(found.singular_values), 0)
    return Eigenpairs(*(a.astype(F.problem.dtype) for a in (s, found.vectors)))
