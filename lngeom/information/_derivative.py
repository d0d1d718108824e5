r"""The pullback $F = J^\top \Lambda J$: the derivative of the outputs, and the metric they carry.

A `Derivative` is $v \mapsto Jv$ and its transpose, computed once and used for every product. A `Metric` is
$\Lambda = S S^\top$, scaled by 1/N and by the samples' weights: the family's covariance, or outer products of scores
$s = \partial \log p(y \mid z)/\partial z = (y - E[y])/\phi$. With y drawn from the model (Monte Carlo),
$E[s s^\top] = \Lambda$ and the estimate is unbiased, with an error that falls as 1/√m. With observed y it is the
empirical Fisher, which is another matrix.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.lifting import in_32_bits
from lngeom._core.programs import has_reverse_rule_only
from lngeom._core.trees import Frozen, Layout
from lngeom._core.types import GLMParameters
from lngeom.families import AbstractDistribution
from lngeom.information._problem import Problem
from lngeom.information._vocabulary import HeadMetric, VocabularyHead
from lngeom.information.glm import NormalizedGLM, is_affine
from lngeom.information.reference import chi
from lngeom.methods import AbstractStatisticsNormalizer
from lngeom.methods.linearization import AbstractLinearization, has_linearization, linearize


class AbstractDerivative(eqx.Module):
    """J at one point, for the samples of a problem.

    Attributes:
        outputs: natural parameters z, shape [N *T C]; of a `VocabularyHead`, features and head (h, W, b).
    """

    outputs: PyTree

    @abstractmethod
    def push(self, tangent: PyTree) -> PyTree:
        """J v, like the outputs."""

    @abstractmethod
    def pull(self, cotangent: PyTree) -> PyTree:
        """Jᵀ y, for y like the outputs."""


class TracedDerivative(AbstractDerivative):
    """J of any function, traced once by forward mode (`jax.linearize`) and transposed for the pull.

    Attributes:
        linear: v ↦ Jv with its residuals.
        layout: of a tangent.
    """

    linear: PyTree
    layout: Layout = eqx.field(static=True)

    def push(self, tangent):
        return self.linear(tangent)

    def pull(self, cotangent):
        return jax.linear_transpose(self.linear, self.layout.shapes())(cotangent)[0]


class ReverseDerivative(AbstractDerivative):
    """J of a function with a custom reverse rule, which has no forward mode: Jv as the transpose of y ↦ Jᵀy.

    Attributes:
        reverse: y ↦ Jᵀy with its residuals.
    """

    reverse: PyTree

    def push(self, tangent):
        return jax.linear_transpose(self.pull, self.outputs)(tangent)[0]

    def pull(self, cotangent):
        return self.reverse(cotangent)[0]


class ClosedFormDerivative(AbstractDerivative):
    """J of a normalized GLM in closed form.

    Attributes:
        at: derivative of the normalizer and its gain.
    """

    at: AbstractLinearization

    @property
    def inputs(self) -> Array:
        """What weights are multiplied by: x̃ [N D], or the printed χ [N H D]."""
        return self.at.inputs

    def push(self, tangent):
        return self.at.push(tangent.weights) + tangent.bias[None, :] + self.at.normalized * tangent.gain[None, :]

    def pull(self, cotangent):
        # three sums and a sweep read it: the barrier keeps XLA from computing it again in one of them
        cotangent = jax.lax.optimization_barrier(cotangent)
        return GLMParameters(self.at.pull(cotangent), jnp.sum(cotangent, 0), jnp.sum(self.at.normalized * cotangent, 0))


class PrintedLinearization(AbstractLinearization):
    """Eq. 14's derivative of g n, which lets only unit i's own weights move its statistics: `inputs` is χ, [N H D]."""

    def push(self, weights):
        return self.gain[None, :] * jnp.einsum("nhd,hd->nh", self.inputs, weights) * self.inverse_scale

    def pull(self, cotangent):
        return jnp.einsum("nhd,nh->hd", self.inputs, self.gain[None, :] * cotangent * self.inverse_scale)


def has_closed_form(problem: Problem) -> bool:
    """Whether the problem is that of a whole normalized GLM on inputs [N D] with a known derivative."""
    model, params = problem.model, problem.params
    if not isinstance(model, GLMFunction) or not isinstance(params, GLMParameters):
        return False
    if len(jax.tree.leaves(params)) != 3 or problem.inputs.ndim != 2 or problem.is_narrow:
        return False
    return model.printed or (is_affine(model.model) and has_linearization(model.model.normalizer))


class GLMFunction(eqx.Module):
    """A normalized GLM as a function apply(params, inputs) → z.

    Attributes:
        model: the GLM.
        printed: whether its derivative is to be the printed one (Eq. 14).
    """

    model: NormalizedGLM
    printed: bool = False

    def __call__(self, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "N H"]:
        """Natural parameters."""
        return self.model.natural_parameters(params, inputs)


def differentiate(problem: Problem) -> AbstractDerivative:
    """J at the problem's parameters, for the samples it holds."""
    return _closed_form(problem) if has_closed_form(problem) else _traced(problem, problem.forward)


def _traced(problem: Problem, forward: Callable[[PyTree], PyTree]) -> AbstractDerivative:
    """J of a function of the problem's parameters."""
    z, linear = jax.linearize(forward, problem.params)
    if has_reverse_rule_only(jax.make_jaxpr(linear)(problem.params)):
        return ReverseDerivative(*jax.vjp(forward, problem.params))
    return TracedDerivative(z, linear, problem.layout)


def _closed_form(problem: Problem) -> ClosedFormDerivative:
    function, params, inputs = problem.model, problem.params, problem.inputs
    normalizer, weights = function.model.normalizer, params.weights
    if function.printed:
        assert isinstance(normalizer, AbstractStatisticsNormalizer)
        n = normalizer(weights, inputs)
        scale = jnp.broadcast_to(normalizer.statistics(weights, inputs).scale, n.shape)
        at = PrintedLinearization(params.gain, n, 1 / scale, chi(normalizer, weights, inputs))
    else:
        at = linearize(normalizer, weights, inputs, params.gain)
    z = problem.ignore(params.gain[None, :] * at.normalized + params.bias[None, :])
    return ClosedFormDerivative(z, at)


class Metric(eqx.Module):
    """Λ = S Sᵀ of the outputs, with weights and 1/N.

    Attributes:
        outputs: z.
        family: whose covariance Λ is.
        weights: of each position [N *T], or None.
        scores: [N m *T C], whose outer products take Λ's place, or None.
        linear: dz ↦ Λ dz / N with all that z determines computed once; None with scores.
        samples: N.
    """

    outputs: Float[Array, "N *T C"]
    family: Frozen
    weights: Float[Array, "N *T"] | None
    scores: Float[Array, "N m *T C"] | None
    linear: PyTree
    samples: int = eqx.field(static=True)

    def product(self, dz: Float[Array, "N *T C"]) -> Float[Array, "N *T C"]:
        """Λ dz / N."""
        if self.linear is None:
            return self.transposed_sqrt(self.sqrt_product(dz))
        return self.linear(dz)

    def sqrt_product(self, dz: Float[Array, "N *T C"]) -> Float[Array, "N *R"]:
        """Sᵀ dz / √N: shape [N *T C], or [N m] with scores."""
        if self.scores is not None:
            axes = tuple(range(2, self.scores.ndim))
            weights = 1 if self.weights is None else jnp.sqrt(self.weights)[:, None, ..., None]
            scale = (self.samples * self.scores.shape[1]) ** 0.5
            return jnp.sum(self.scores * weights * dz[:, None], axes) / scale
        y = self.family.thaw().metric_sqrt_product(self.outputs, dz)
        if self.weights is not None:
            y = y * jnp.sqrt(self.weights)[..., None]
        return y / self.samples**0.5

    def transposed_sqrt(self, y: Float[Array, "N *R"]) -> Float[Array, "N *T C"]:
        """S y / √N, the transpose of `sqrt_product`."""
        return jax.linear_transpose(self.sqrt_product, self.outputs)(y)[0]


def metric(problem: Problem, outputs: Float[Array, "N *T C"]) -> Metric:
    """The metric at these outputs of the problem."""
    family, weights = problem.family, problem.weights

    def product(dz: Float[Array, "N *T C"]) -> Float[Array, "N *T C"]:
        y = family.metric_product(outputs, dz)
        return (y if weights is None else y * weights[..., None]) * (1 / problem.samples)

    if problem.scores is not None:
        linear = None
    elif family.joint:
        linear = jax.linearize(product, jnp.zeros_like(outputs))[1]
    else:
        linear = jax.tree_util.Partial(jnp.multiply, product(jnp.ones_like(outputs)))
    return Metric(outputs, Frozen(family), weights, problem.scores, linear, problem.samples)


class Pullback(eqx.Module):
    """F = Jᵀ Λ J on the samples held here.

    Attributes:
        derivative: J.
        metric: Λ.
    """

    derivative: AbstractDerivative
    metric: Metric

    def __init__(self, problem: Problem):
        self.derivative = differentiate(problem)
        self.metric = metric(problem, self.derivative.outputs)

    def product(self, v: PyTree) -> PyTree:
        """The product v → Jv → ΛJv → JᵀΛJv."""
        return self.derivative.pull(self.metric.product(self.derivative.push(v)))

    def root(self, v: PyTree) -> Float[Array, "N *R"]:
        """The product A v = Sᵀ J v / √N with the factor, for which F = Aᵀ A."""
        return self.metric.sqrt_product(self.derivative.push(v))

    def transposed_root(self, y: Float[Array, "..."]) -> PyTree:
        """The product Aᵀ y, with y as `root` gives it or ravelled."""
        shape = jax.eval_shape(self.metric.sqrt_product, self.metric.outputs).shape
        return self.derivative.pull(self.metric.transposed_sqrt(y.reshape(shape)))

    def squared_norm(self, v: PyTree) -> Float[Array, ""]:
        """The form vᵀFv = |Av|², which rounding cannot make negative."""
        return jnp.sum(jnp.square(self.root(v)))


class BlockedPullback(eqx.Module):
    """F = Jᵀ Λ J behind a `VocabularyHead`: J is the derivative of features and head, Λ that of the logits in blocks.

    Attributes:
        derivative: J.
        metric: Λ.
    """

    derivative: AbstractDerivative
    metric: HeadMetric

    def __init__(self, problem: Problem):
        head = problem.model
        problem.require_unchanged()

        def forward(params: PyTree) -> tuple:
            h, weight, bias = head.parts(problem.join(params), problem.inputs)
            if problem.weights is not None:
                h = jnp.where(problem.weights[..., None] > 0, h, 0)
            return h, weight, bias

        self.derivative = _traced(problem, in_32_bits(forward) if problem.is_narrow else forward)
        self.metric = HeadMetric(self.derivative.outputs, problem.weights, problem.samples, head.block)

    def product(self, v: PyTree) -> PyTree:
        """The product v → Jv → ΛJv → JᵀΛJv."""
        return self.derivative.pull(self.metric.product(self.derivative.push(v)))

    def squared_norm(self, v: PyTree) -> Float[Array, ""]:
        """The form vᵀFv, which rounding cannot make negative."""
        return self.metric.squared_norm(self.derivative.push(v))


@functools.partial(jax.jit, inline=True)
def pullback_of(problem: Problem) -> Pullback | BlockedPullback:
    """What products are made of: logits in blocks where the function says so and no scores take Λ's place.

    It is traced once for all programs that differentiate these samples.
    """
    blocked = isinstance(problem.model, VocabularyHead) and problem.scores is None
    return BlockedPullback(problem) if blocked else Pullback(problem)


def derivative_bytes(problem: Problem, rows: int) -> int:
    """Bytes of the derivative of this many samples, from shapes alone."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype), problem.per_sample)
    kept = jax.eval_shape(pullback_of, problem.with_samples(shapes))
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(kept))


def sampled_scores(
    family: AbstractDistribution, z: Float[Array, "N *T C"], key: PRNGKeyArray, samples: int
) -> Float[Array, "N m *T C"]:
    """Scores at m responses drawn for each sample; draw k depends on the key and on k alone.

    Responses to outputs of 16 bits are drawn in 32 bits: decompositions that a family may need exist in no fewer.
    """
    wide = z if jnp.finfo(z.dtype).bits >= 32 else z.astype(jnp.float32)

    def draw(k: Array) -> Array:
        return family.score(wide, family.sample(jax.random.fold_in(key, k), wide)).astype(z.dtype)

    return jnp.moveaxis(jax.vmap(draw)(jnp.arange(samples)), 0, 1)
