r"""Samples that interact, as in training-mode batch norm: found by a probe, and divided into chunks all the same.

A function whose samples interact through means over the data set is $z_n = f(\theta, m(\theta), x_n)$, with statistics
m. Their values and tangents $M = \partial m/\partial\theta$ are computed first, chunk by chunk. Then
$$z_n(\theta) = f(\theta,\ m(\theta_0) + M(\theta - \theta_0),\ x_n)$$
has the value and the Jacobian of the coupled function at $\theta_0$, and each sample's output depends on that sample
alone: it can be divided into chunks, and over devices, like any other function.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lngeom._core.draws import probe_key
from lngeom._core.memory import format_bytes
from lngeom._core.numerics import tolerance
from lngeom._core.programs import QUICKLY
from lngeom._core.types import is_concrete
from lngeom.information._derivative import GLMFunction, derivative_bytes
from lngeom.information._planner import budget_of, samples_in_products, stores
from lngeom.information._problem import Problem
from lngeom.information._sharding import Placement, sum_over_samples
from lngeom.information.glm import NormalizedGLM, is_affine
from lngeom.methods import BatchNorm
from lngeom.methods.batch import StreamedBatchNorm


class BatchCoupled(eqx.Module):
    """A function whose samples interact only through means over the data set, which it takes with `mean`.

    `mean(values)`, values [N, …], is their mean over all samples, [1, …]; on a chunk of samples too. It must not be
    called inside a `jax.jit`, `jax.vmap` or scan of the function's own.

    Attributes:
        apply: (params, X, mean) ↦ natural parameters.

    Example:
        >>> import jax, jax.numpy as jnp, lngeom as lg
        >>> from lngeom.information import BatchCoupled
        >>> def apply(params, X, mean):
        ...     centered = X @ params - mean(X @ params)
        ...     return centered / jnp.sqrt(mean(centered**2))
        >>> X = jax.random.normal(jax.random.key(0), (100, 3))
        >>> F = lg.fisher(BatchCoupled(apply), jnp.ones((3, 2)), X, family=lg.families.Gaussian(), chunk=10)
        >>> F.rank()  # the scale of each column is not identifiable
        4
    """

    apply: Callable

    def __call__(self, params: PyTree, inputs: PyTree) -> Array:
        """Natural parameters, all samples at once."""
        return _run(self.apply, params, inputs, ())[0]


def _run(apply: Callable, params: PyTree, inputs: PyTree, means: tuple[Array, ...]) -> tuple[Array, list[Array]]:
    """The function with its first means given, and what it averaged."""
    averaged = []

    def mean(values: Float[Array, "N ..."]) -> Float[Array, "1 ..."]:
        averaged.append(values)
        known = len(averaged) <= len(means)
        return means[len(averaged) - 1] if known else jnp.mean(values, 0, keepdims=True)

    return apply(params, inputs, mean), averaged


class Statistic(eqx.Module):
    """A mean over the samples, to first order in the parameters.

    Attributes:
        value: m at the origin, [1, …].
        slope: ∂m/∂θ, like params, each leaf [1, …, *leaf].
        origin: θ₀, the differentiated leaves.
    """

    value: Float[Array, "1 ..."]
    slope: PyTree
    origin: PyTree

    def __call__(self, params: PyTree) -> Float[Array, "1 ..."]:
        """The value at params, which may have more leaves than the origin."""
        nothing = lambda leaf: leaf is None  # noqa: E731
        moved = jax.tree.map(
            lambda o, s, p: 0.0 if o is None else jnp.tensordot(s, p - o, o.ndim),
            self.origin,
            self.slope,
            params,
            is_leaf=nothing,
        )
        return sum((m for m in jax.tree.leaves(moved) if not isinstance(m, float)), start=self.value)


class StreamedFunction(eqx.Module):
    """A coupled function with its statistics fixed to first order: samples no longer interact.

    Attributes:
        apply: (params, X, mean) ↦ natural parameters.
        statistics: its means, in the order they are taken.
        chunk: samples at a time when statistics are computed.
    """

    apply: Callable
    statistics: tuple[Statistic, ...]
    chunk: int

    def __call__(self, params: PyTree, inputs: PyTree) -> Array:
        """Natural parameters of any samples."""
        return _run(self.apply, params, inputs, tuple(s(params) for s in self.statistics))[0]


def _streams_batch_norm(problem: Problem) -> bool:
    model = problem.model
    glm = isinstance(model, GLMFunction) and not model.printed and is_affine(model.model)
    return glm and type(model.model.normalizer) is BatchNorm and problem.inputs.ndim == 2


def stream(problem: Problem, chunk: int | None, memory: int | None) -> Problem:
    """Turns a coupled problem into one whose samples can be divided, if it must be and its statistics are known.

    Raises:
        MemoryError: if the tangents of its statistics would not fit.
    """
    named = isinstance(problem.model, BatchCoupled)
    if not problem.coupled or not (named or _streams_batch_norm(problem)):
        return problem
    budget = budget_of(memory)
    if chunk is None and stores(derivative_bytes(problem, problem.rows), budget):
        return problem
    width, outputs = problem.dtype.itemsize, 1
    if named:
        averaged = jax.eval_shape(functools.partial(_averaged, problem, ()), problem.params)
        outputs = sum(math.prod(a.shape[1:]) for a in averaged)
        needed = outputs * problem.size * width
        if needed > budget // 2:
            raise MemoryError(
                f"the tangents of {outputs:,} batch statistics with respect to P = {problem.size:,} parameters would "
                f"need {format_bytes(needed)}, more than half the budget of {format_bytes(budget)}: name fewer leaves "
                "with wrt=, use fewer samples without chunk=, or raise the budget with lg.fisher(..., memory=bytes)"
            )
    if chunk is not None:
        return streamed(problem, chunk)
    each = outputs * (derivative_bytes(problem, 2) - derivative_bytes(problem, 1))
    return streamed(problem, samples_in_products(each, budget, problem.rows))


@functools.partial(jax.jit, static_argnames="chunk")
def streamed(problem: Problem, chunk: int) -> Problem:
    """The problem with statistics of all its samples, computed chunk by chunk, and their tangents."""
    problem = replace(problem, coupled=False)
    make = _streamed_function if isinstance(problem.model, BatchCoupled) else _streamed_glm
    function = make(problem, Placement(None, (), chunk))
    return problem.with_function(function)


def _averaged(problem: Problem, statistics: tuple[Statistic, ...], params: PyTree) -> list[Array]:
    """What the function averages, given its first statistics."""
    problem.require_unchanged()
    return _run(problem.model.apply, problem.join(params), problem.inputs, tuple(s(params) for s in statistics))[1]


def _streamed_function(problem: Problem, at: Placement) -> StreamedFunction:
    count = len(jax.eval_shape(functools.partial(_averaged, problem, ()), problem.params))
    statistics: tuple[Statistic, ...] = ()
    for k in range(count):

        def term(part: Problem, known: tuple[Statistic, ...], k: int = k) -> tuple[Array, PyTree]:
            def total(params: PyTree) -> Float[Array, "1 ..."]:
                return jnp.sum(_averaged(part, known, params)[k], 0, keepdims=True)

            return total(part.params), jax.jacrev(total)(part.params)

        sums = sum_over_samples(term, problem, at, statistics)
        value, slope = jax.tree.map(lambda s: s / problem.samples, sums)
        statistics = (*statistics, Statistic(value, slope, problem.params))
    return StreamedFunction(problem.model.apply, statistics, at.chunk)


def _streamed_glm(problem: Problem, at: Placement) -> GLMFunction:
    model, weights = problem.model.model, problem.join(problem.params).weights
    mean = sum_over_samples(lambda part: jnp.sum(part.inputs, 0), problem, at) / problem.samples

    def term(part: Problem) -> tuple[Array, Array]:
        x = part.inputs - mean[None, :]
        a = x @ weights.T
        return jnp.sum(jnp.square(a), 0), a.T @ x

    variance, covariances = (s / problem.samples for s in sum_over_samples(term, problem, at))
    scale = jnp.sqrt(variance + model.normalizer.eps)
    slope = covariances / scale[:, None]
    normalizer = StreamedBatchNorm(
        model.normalizer.eps, origin=weights, input_mean=mean, scale=scale, slope=slope, chunk=at.chunk
    )
    return GLMFunction(NormalizedGLM(normalizer, model.family))


def at_parameters(problem: Problem, params: PyTree) -> Problem:
    """The same problem at other parameters, with batch statistics computed anew.

    Raises:
        ValueError: if its statistics were computed before samples were divided over devices.
    """
    function: Any = problem.model
    moved = replace(problem, params=params)
    if isinstance(function, StreamedFunction):
        coupled, chunk = BatchCoupled(function.apply), function.chunk
    elif isinstance(function, GLMFunction) and isinstance(function.model.normalizer, StreamedBatchNorm):
        known = function.model.normalizer
        coupled, chunk = GLMFunction(NormalizedGLM(BatchNorm(known.eps), function.model.family)), known.chunk
    else:
        return moved
    if problem.rows != problem.samples:
        raise ValueError(
            "batch statistics cannot be computed anew for samples that were padded to divide them over devices; "
            "leave mesh= out"
        )
    return streamed(replace(moved.with_function(coupled), coupled=True), chunk)


PROBE, FEWER, LARGE = 32, 8, 10_000
"""Samples in the probe, and fewer where a sample has more outputs than the last number.

A random factor of each sample that is 1 with probability 0.9 is seen unless all factors happen to be equal: in 97 cases
of 100 among 32 samples, in 61 among 8.
"""

COARSEST = 0.1
"""Relative change of outputs that no rounding excuses, not even in 16 bits."""


def _perturbed(leaf: Array) -> Array:
    """The same rows but the first, which is replaced by something quite different."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.concatenate([leaf[-1:], leaf[1:]])
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        first = -1.5 * leaf[-1:] + 0.5 * leaf[:1]
    else:
        least, most = jnp.min(leaf), jnp.max(leaf)
        first = jnp.broadcast_to(jnp.where(jnp.all(leaf[:1] == most), least, most), leaf[:1].shape)
    return jnp.concatenate([first.astype(leaf.dtype), leaf[1:]])


def _few(problem: Problem, rows: int) -> Problem:
    """The first samples, with statistics of these alone."""
    few = problem.with_samples(jax.tree.map(lambda leaf: leaf[:rows], problem.per_sample))
    return streamed(few, rows) if isinstance(problem.model, BatchCoupled) else few


def _masked_outputs(problem: Problem) -> Array:
    """The outputs, with 0 at positions that do not count."""
    z = problem.outputs(problem.params, problem.inputs)
    return z if problem.weights is None else jnp.where(problem.weights[..., None] > 0, z, 0)


STEP = 2.0**-8
"""Relative change of the parameters by which the probe sees how large the terms of an output are."""


def _size_of_terms(size: Float[Array, "*T C"], change: Float[Array, "*T C"], tol: float) -> Float[Array, "*T C"]:
    """The size of the terms whose sum is an output: its rounding is relative to these.

    Args:
        size: of each output.
        change: of each output where each parameter changes by the relative `STEP`, up or down. Where large terms cancel
            this is large.
        tol: size of an output, relative to the largest, that may be rounding. It is if it changes entirely.
    """
    terms = jnp.maximum(size, jnp.where(jnp.isfinite(change), change, 0) / STEP)
    rounding = (change >= size / 4) & (size <= tol * jnp.max(size))
    return jnp.where(rounding, jnp.max(size), terms)


@functools.partial(jax.jit, static_argnames="rows", compiler_options=QUICKLY)
def _probe(problem: Problem, rows: int) -> tuple[Array, ...]:
    """Whether outputs are finite, the size of each, and how much each probe moves those of samples that are the same.

    The probes: another first sample, the samples in the reverse order, each sample alone. One compiled program
    evaluates the first three sets of samples, since another would round otherwise, and the samples at other parameters.
    """
    few = _few(problem, rows)
    inputs, *others = few.per_sample
    replaced = jax.tree.map(_perturbed, inputs), *others
    backwards = jax.tree.map(lambda leaf: leaf[::-1], few.per_sample)
    leaves, structure = jax.tree.flatten(few.params)
    keys = jax.random.split(probe_key(), len(leaves))
    signs = [jax.random.rademacher(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    turned = [leaf + jnp.asarray(STEP, leaf.dtype) * leaf * sign for leaf, sign in zip(leaves, signs, strict=True)]
    samples = (few.per_sample, replaced, backwards, few.per_sample)
    params = (few.params, few.params, few.params, jax.tree.unflatten(structure, turned))
    sets = jax.tree.map(lambda *leaves: jnp.stack(leaves), *zip(samples, params, strict=True))
    z, replaced, backwards, turned = jax.lax.map(
        lambda at: _masked_outputs(replace(few.with_samples(at[0]), params=at[1])), sets
    )

    def alone(per_sample: tuple) -> Array:
        return _masked_outputs(few.with_samples(jax.tree.map(lambda leaf: leaf[None], per_sample)))[0]

    def largest(values: Array, where: Array) -> Float[Array, "*T C"]:
        return jnp.max(jnp.where(jnp.isfinite(where), jnp.abs(values), 0), 0, initial=0)

    def moved(after: Array, before: Array) -> Float[Array, "*T C"]:
        return largest(after.astype(float) - before.astype(float), before)

    change = moved(turned, z)
    size = _size_of_terms(largest(z, z).astype(change.dtype), change, tolerance(z.dtype)).astype(z.dtype)
    pairs = (replaced[1:], z[1:]), (backwards[::-1], z), (jax.lax.map(alone, few.per_sample), z)
    return jnp.all(jnp.isfinite(z)), size, *(moved(*pair) for pair in pairs)


def check_coupling(problem: Problem) -> None:
    """Looks whether a sample's outputs depend on that sample alone, as they must unless samples are said to interact.

    One sample is replaced, the order of the samples is reversed, and samples are taken one by one: no output of an
    unchanged sample may change by more than its own rounding. A function with statistics of the samples is probed with
    those of the few.

    Raises:
        ValueError: if outputs change.
    """
    streams = isinstance(problem.model, BatchCoupled)
    if problem.rows < 2 or (problem.coupled and not streams):
        return
    outputs = math.prod(problem.output_shape.shape[1:])
    rows = min(FEWER if outputs > LARGE else PROBE, problem.rows)
    outcome = _probe(problem, rows)
    if not is_concrete(outcome):
        return  # the function closes over a traced value
    finite, size, *changes = jax.device_get(outcome)
    if not finite:
        return  # `fisher` says so when it counts bad entries
    finest = min(tolerance(size.dtype), COARSEST)
    if all((change <= finest * size).all() for change in changes):
        return
    rough = min(tolerance(_few(problem, rows).precision(of_inputs=True).dtype), COARSEST)
    probes = (
        f"changing the first of {rows} samples moved the outputs of the others",
        f"reversing the order of {rows} samples moved their outputs",
        "outputs of a sample change when it is evaluated alone",
    )
    for what, change in zip(probes, changes, strict=True):
        excess = change - max(finest, rough) * size
        if (excess <= 0).all():
            continue
        worst = np.unravel_index(np.argmax(excess), excess.shape)
        remedy = (
            "A BatchCoupled function must take every mean over samples with the mean it is given"
            if streams
            else "If that is meant, as in training-mode batch norm, say batch_coupled=True. If it comes from dropout "
            "or other randomness, use the model's deterministic mode, or give each sample its own key in X"
        )
        tiny = ". Outputs as small as that may be rounding alone: where they are 0 exactly, take other parameters"
        raise ValueError(
            f"samples interact: {what} by {change[worst]:.2g} (of {size[worst]:.2g}). {remedy}"
            + (tiny if size[worst] <= finest else "")
        )
