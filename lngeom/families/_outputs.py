"""Distributions of outputs that are no natural parameters: variances that are outputs, mixtures, several heads."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lngeom._core.trees import leaf_paths
from lngeom.families._distribution import AbstractDistribution


class HeteroscedasticGaussian(AbstractDistribution):
    r"""Normal whose variance is an output too: z = [m, r] of K means and the K logarithms of the variances, [*B 2K].

    $\log p = -\frac12 \left((y - m)^2 e^{-r} + r + \log 2\pi\right)$ with
    $\Lambda = \mathrm{diag}(e^{-r}, \tfrac12)$. A response is [*B K].

    Example:
        >>> import jax.numpy as jnp, lngeom as lg
        >>> print(lg.families.HeteroscedasticGaussian().metric(jnp.array([1.0, 0.0])))
        [[1.  0. ]
         [0.  0.5]]
    """

    def _halves(self, z: Float[Array, "*B 2K"]) -> tuple[Float[Array, "*B K"], Float[Array, "*B K"]]:
        if z.shape[-1] % 2:
            raise ValueError(
                f"{self.name} takes K means and then K logarithms of variances, outputs [*B 2K]; got {z.shape}"
            )
        mean, log_variance = jnp.split(z, 2, -1)
        return mean, log_variance

    def log_prob(self, z, y):
        mean, r = self._halves(z)
        each = jnp.square(y.reshape(mean.shape) - mean) * jnp.exp(-r) + r + math.log(2 * math.pi)
        return -0.5 * jnp.sum(each, -1)

    def sample(self, key, z):
        mean, r = self._halves(z)
        return mean + jnp.exp(r / 2) * jax.random.normal(key, mean.shape, z.dtype)

    def mean(self, z):
        """The means m."""
        return self._halves(z)[0]

    def variance(self, z):
        """The variances exp(r)."""
        return jnp.exp(self._halves(z)[1])

    def response_shapes(self, outputs):
        shape = (*outputs[:-1], outputs[-1] // 2)
        return [shape, outputs[:-1]] if shape[-1] == 1 else [shape]

    def metric_diagonal(self, z):
        _, r = self._halves(z)
        return jnp.concatenate([jnp.exp(-r), jnp.full_like(r, 0.5)], -1)

    def metric_product(self, z, v):
        return self.metric_diagonal(z) * v

    def metric_sqrt_product(self, z, v):
        return jnp.sqrt(self.metric_diagonal(z)) * v

    def metric_parts(self, z):
        return self.metric_diagonal(z), jnp.zeros_like(z)

    def points(self):
        return jnp.resize(super().points(), (4, 4))


class MultivariateGaussian(AbstractDistribution):
    r"""Normal of a known covariance Σ whose mean is the output: $\Lambda = \Sigma^{-1}$.

    Attributes:
        root: L⁻¹, where Σ = L Lᵀ; made of the covariance that the constructor takes.

    Example:
        >>> import jax.numpy as jnp, lngeom as lg
        >>> family = lg.families.MultivariateGaussian([[2.0, 0.0], [0.0, 0.5]])
        >>> print(family.metric(jnp.zeros(2)).round(4))
        [[0.5 0. ]
         [0.  2. ]]
    """

    root: Float[Array, "C C"]

    def __init__(self, covariance: Any):
        covariance = jnp.asarray(covariance, float)
        square = covariance.ndim == 2 and covariance.shape[0] == covariance.shape[1]
        lower = jnp.linalg.cholesky(covariance) if square else covariance
        if not square or not np.all(np.isfinite(lower)) or not np.allclose(covariance, covariance.T):
            raise ValueError(
                f"covariance must be a symmetric positive definite matrix [C C]; got shape {covariance.shape}"
                + (", which is not" if square else "")
            )
        self.root = jax.scipy.linalg.solve_triangular(lower, jnp.eye(len(lower)), lower=True)

    def _whitened(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        if z.shape[-1] != len(self.root):
            raise ValueError(f"{self.name} has a covariance of {len(self.root)} responses; got outputs {z.shape}")
        return v @ self.root.astype(z.dtype).T

    def log_prob(self, z, y):
        square = jnp.sum(jnp.square(self._whitened(z, y - z)), -1)
        log_scale = jnp.sum(jnp.log(jnp.diagonal(self.root))).astype(z.dtype)
        return log_scale - 0.5 * (square + z.shape[-1] * math.log(2 * math.pi))

    def sample(self, key, z):
        noise = jax.random.normal(key, z.shape, z.dtype)
        root = jnp.linalg.inv(self.root).astype(z.dtype)
        return z + noise @ root.T

    def mean(self, z):
        """The outputs."""
        return z

    def variance(self, z):
        """The diagonal of Σ."""
        root = jnp.linalg.inv(self.root)
        return jnp.broadcast_to(jnp.sum(jnp.square(root), 1).astype(z.dtype), z.shape)

    def metric_product(self, z, v):
        return self._whitened(z, v) @ self.root.astype(z.dtype)

    def metric_sqrt_product(self, z, v):
        return self._whitened(z, v)

    def points(self):
        return jnp.resize(super().points(), (4, len(self.root)))


class Mixture(AbstractDistribution):
    r"""A mixture of K components of one kind: $p(y) = \sum_k \pi_k\, p(y \mid u_k)$, π a softmax of outputs.

    Outputs are [*B K(1 + m)]: K logits of π, then the m outputs of each component, one component after the other.
    $\Lambda = \sum_y p(y)\, s s^\top$ is known where a response has few values (Bernoulli, Binomial, Categorical).
    Of other mixtures it has no closed form: use `method="monte_carlo"`, or "empirical" with the responses.

    Attributes:
        component: distribution of a component; its responses are single numbers or labels.
        count: K.

    Example:
        >>> import lngeom as lg
        >>> print(*lg.families.check(lg.families.Mixture(lg.families.Bernoulli(), 2)), sep=", ")
        shapes, score, metric, normalization, draws
    """

    component: AbstractDistribution
    count: int = eqx.field(static=True)

    def _split(self, z: Float[Array, "*B C"]) -> tuple[Float[Array, "*B K"], Float[Array, "*B K m"]]:
        size, rest = divmod(z.shape[-1], self.count)
        if rest or size < 2:
            raise ValueError(
                f"a mixture of {self.count} takes {self.count}(1 + m) outputs, logits and then m of each component; "
                f"got outputs {z.shape}"
            )
        return z[..., : self.count], z[..., self.count :].reshape(*z.shape[:-1], self.count, size - 1)

    def log_prob(self, z, y):
        logits, parts = self._split(z)
        y = jnp.asarray(y).reshape(z.shape[:-1])[..., None]
        y = jnp.broadcast_to(y, parts.shape[:-1])
        if not self.component.labels:
            y = y[..., None]
        each = self.component.log_prob(parts, y)
        each = each if each.shape == logits.shape else jnp.sum(each, -1)
        return jax.nn.logsumexp(jax.nn.log_softmax(logits, -1) + each, -1)

    def sample(self, key, z):
        logits, parts = self._split(z)
        first, second = jax.random.split(key)
        chosen = jax.random.categorical(first, logits, -1)
        y = self.component.sample(second, parts).reshape(logits.shape)
        return jnp.take_along_axis(y, chosen[..., None], -1)[..., 0]

    def response_shapes(self, outputs):
        return [outputs[:-1], (*outputs[:-1], 1)]

    @property
    def labels(self):
        return self.component.labels

    @property
    def support(self):
        return self.component.support

    def check_responses(self, y, outputs, counts=None):
        parts = (*outputs[:-1], outputs[-1] // self.count - 1)
        self.component.check_responses(jnp.reshape(y, outputs[:-1]), parts, counts)

    def outside(self, z):
        logits, parts = self._split(z)
        return jnp.concatenate(
            [jnp.zeros(logits.shape, bool), self.component.outside(parts).reshape(*z.shape[:-1], -1)], -1
        )

    def atoms(self, outputs):
        return self.component.atoms(outputs // self.count - 1)

    def _roots(self, z: Float[Array, "*B C"]) -> Float[Array, "A *B C"]:
        """Rows √p(y) s(y) of all values of a response."""
        values = self.atoms(z.shape[-1])
        if values is None:
            raise ValueError(
                f"the Fisher information of a mixture of {self.component.name} has no closed form: estimate it with "
                "lg.fisher(..., method='monte_carlo', key=, samples=), or take method='empirical' with y="
            )

        def root(value: Array) -> Float[Array, "*B C"]:
            y = jnp.full(z.shape[:-1], value)
            log_p, pull = jax.vjp(lambda z: self.log_prob(z, y), z)
            return jnp.exp(log_p / 2)[..., None] * pull(jnp.ones_like(log_p))[0]

        return jax.vmap(root)(values.astype(z.dtype) if not self.labels else values)

    def metric_product(self, z, v):
        roots = self._roots(z)
        return jnp.sum(roots * jnp.sum(roots * v[None], -1, keepdims=True), 0)

    def metric_sqrt_product(self, z, v):
        """Sᵀ v: a column of S for each value of a response where they are not more than the outputs."""
        roots, outputs = self._roots(z), z.shape[-1]
        if len(roots) > outputs:
            return super().metric_sqrt_product(z, v)
        found = jnp.moveaxis(jnp.sum(roots * v[None], -1), 0, -1)
        return jnp.concatenate([found, jnp.zeros_like(z[..., len(roots) :])], -1)

    @property
    def has_exact_root(self):
        values = None if self.labels else self.component.atoms(1)
        return self.labels or (values is not None and len(values) <= 2 * self.count)

    def metric_rank(self, outputs):
        values = self.atoms(outputs)
        return outputs - 1 if values is None else min(outputs - 1, len(values) - 1)

    def points(self):
        parts = self.component.points()[:, : None if self.labels else 1]
        logits = jnp.resize(jnp.array([0.3, -0.4, 0.1, 0.7, -0.2]), (len(parts), self.count))
        moved = [
            parts + 0.2 * k if self.component.upper == float("inf") else parts * (1 + k / 3) for k in range(self.count)
        ]
        return jnp.concatenate([logits, *moved], -1)


class Product(AbstractDistribution):
    """Independent responses of several outputs, each with a family of its own: what a dict or tuple of families means.

    The outputs are kept side by side in one array z [*B C]. A response is a pytree like the families.

    Attributes:
        parts: the families, in the order of the leaves.
        structure: of the pytree.
        shapes: of each output, without [*B].
        positions: number of axes *T of [N *T C] that a mask is for.
    """

    parts: tuple[AbstractDistribution, ...]
    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    positions: int = eqx.field(static=True)

    def __init__(self, families: PyTree, outputs: PyTree, positions: int = 0):
        """A product for a function that returns these outputs.

        Args:
            families: pytree of distributions.
            outputs: pytree of arrays, or of their shapes, [N *T], [N *T C] or [N *T … C].
            positions: number of axes *T, which one mask is for; all others belong to the response of a sample.

        Raises:
            ValueError: if the two pytrees differ, or an output lacks the axes.
        """
        is_family = lambda leaf: isinstance(leaf, AbstractDistribution)  # noqa: E731
        parts, structure = jax.tree.flatten(families, is_leaf=is_family)
        if not parts or not all(map(is_family, parts)):
            raise ValueError(
                "family= must say how outputs are distributed, e.g. lg.families.Categorical() for logits, or a dict or "
                f"tuple of families like the outputs; got {families!r}"
            )
        if structure != jax.tree.structure(outputs):
            raise ValueError(f"the function returns {described(outputs)}: give a family each; got {families!r}")
        shapes = [leaf.shape for leaf in jax.tree.leaves(outputs)]
        short = [shape for shape in shapes if len(shape) <= positions]
        if short:
            raise ValueError(
                f"the mask has {1 + positions} axes, which every output must begin with; got outputs {shapes}: "
                "reshape them, or give weights [N] of whole samples"
            )
        self.parts, self.structure, self.positions = tuple(parts), structure, positions
        self.shapes = tuple(shape[1 + positions :] or (1,) for shape in shapes)
        for part, given in zip(parts, shapes, strict=True):
            if part.joint and len(given) <= 1 + positions:
                raise ValueError(f"{part.name} needs one output a class, [N C] or [N T C]; got {given}")

    @property
    def name(self) -> str:
        """The families by their paths."""
        tree = jax.tree.unflatten(self.structure, [0] * len(self.parts))
        return "; ".join(f"{path}: {part.name}" for path, part in zip(leaf_paths(tree), self.parts, strict=True))

    @property
    def upper(self):
        return min(part.upper for part in self.parts)

    def join(self, outputs: PyTree) -> Float[Array, "N *T C"]:
        """What the function returns, side by side, in the widest dtype."""
        leaves = jax.tree.leaves(outputs)
        dtype = jnp.result_type(*(leaf.dtype for leaf in leaves))
        return jnp.concatenate(
            [leaf.astype(dtype).reshape(*leaf.shape[: 1 + self.positions], -1) for leaf in leaves], -1
        )

    def split(self, z: Float[Array, "*B C"]) -> list[Array]:
        """The outputs of each family, with their own axes."""
        edges = itertools.accumulate(map(math.prod, self.shapes), initial=0)
        places = zip(itertools.pairwise(edges), self.shapes, strict=True)
        return [z[..., a:b].reshape(*z.shape[:-1], *shape) for (a, b), shape in places]

    def _each(self, name: str, z: Float[Array, "*B C"], *values: list) -> Float[Array, "*B C"]:
        """The results of a method of every family, side by side."""
        rows = zip(self.parts, self.split(z), *values, strict=True)
        found = [getattr(part, name)(*arguments) for part, *arguments in rows]
        return jnp.concatenate([value.reshape(*z.shape[:-1], -1) for value in found], -1)

    def _responses(self, y: PyTree) -> list[Array]:
        try:
            return [jnp.asarray(leaf) for leaf in self.structure.flatten_up_to(y)]
        except ValueError as error:
            raise ValueError(f"y must hold a response for each output, {self.name}; got {described(y)}") from error

    def log_prob(self, z, y):
        return jnp.sum(self._each("log_prob", z, self._responses(y)), -1)

    def sample(self, key, z):
        keys = jax.random.split(key, len(self.parts))
        rows = zip(self.parts, keys, self.split(z), strict=True)
        return jax.tree.unflatten(self.structure, [part.sample(key, value) for part, key, value in rows])

    def score(self, z, y):
        return self._each("score", z, self._responses(y))

    def check_responses(self, y, outputs, counts=None):
        for part, shape, value in zip(self.parts, self.shapes, self._responses(y), strict=True):
            part.check_responses(value, (*outputs[:-1], *shape), counts)

    def outside(self, z):
        return self._each("outside", z)

    def check_count(self, outputs):
        for part, shape in zip(self.parts, self.shapes, strict=True):
            part.check_count(shape[-1])

    def mistaken(self, z):
        rows = [
            jnp.all(p.mistaken(v).reshape(*z.shape[:-1], -1), -1)
            for p, v in zip(self.parts, self.split(z), strict=True)
        ]
        return functools.reduce(jnp.logical_or, rows)

    def metric_product(self, z, v):
        return self._each("metric_product", z, self.split(v))

    def metric_diagonal(self, z):
        return self._each("metric_diagonal", z)

    def metric_sqrt_product(self, z, v):
        return self._each("metric_sqrt_product", z, self.split(v))

    @property
    def has_exact_root(self):
        return all(part.has_exact_root for part in self.parts)

    def metric_rank(self, outputs):
        ranks = zip(self.parts, self.shapes, strict=True)
        return sum(math.prod(shape[:-1]) * part.metric_rank(shape[-1]) for part, shape in ranks)

    def points(self):
        found = [jnp.resize(part.points(), (4, *shape)) for part, shape in zip(self.parts, self.shapes, strict=True)]
        return jnp.concatenate([value.reshape(4, -1) for value in found], -1)


FEW = 6
"""Leaves that a message names."""


def described(outputs: PyTree) -> str:
    """The outputs of a function, or responses, by path and shape."""
    found = [
        f"{path} {jnp.shape(leaf)}" for path, leaf in zip(leaf_paths(outputs), jax.tree.leaves(outputs), strict=True)
    ]
    shown = [*found[:FEW], f"and {len(found) - FEW} more"] if len(found) > FEW else found
    return f"a {type(outputs).__name__} of {', '.join(shown)}" if jax.tree.structure(outputs) != LEAF else found[0]


class Joined(eqx.Module):
    """A function of several outputs as one of a single array.

    Attributes:
        apply: the function, with any arguments after its parameters.
        product: the families of its outputs.
    """

    apply: Callable
    product: Product

    def __call__(self, params: PyTree, *arguments: Any) -> Float[Array, "N *T C"]:
        """Natural parameters, side by side."""
        return self.product.join(self.apply(params, *arguments))


LEAF = jax.tree.structure(0)
