"""Normalized models at points where they are defined, and transformations of them."""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jaxtyping import Array, Bool, Float

from lngeom import families as _families, methods as _normalizers
from lngeom._core.types import GLMParameters
from lngeom.checks.strategies.numbers import Size, array, entries, grids, many, scales, sizes
from lngeom.families import AbstractFamily
from lngeom.information.glm import NormalizedGLM
from lngeom.methods import AbstractNormalizer, AbstractStatisticsNormalizer, transformations as _transformations
from lngeom.methods.base import summed_inputs
from lngeom.methods.transformations.actions import Column, Transformation

MARGIN = 0.05
"""A statistic σ counts as defined if it is at least this fraction of its largest summed input."""

LARGEST = 8.0
"""Natural parameters stay within ± this, so that no exponential family overflows."""


_GAINS, _VARIANCES = st.sampled_from([1.0, 2.0, 0.5, -1.0]), st.sampled_from([1.0, 4.0, 0.25])
_POSITIVE = st.one_of(st.integers(1, 8), st.integers(1, 127).map(lambda k: k / 16))
_integers = functools.cache(st.integers)


class NormalizedProblem(NamedTuple):
    """A normalized GLM with parameters and data.

    Attributes:
        model: normalizer and family.
        params: weights W, bias b, gain g (nonzero).
        inputs: X [N D].
        responses: y [N H], or labels [N] for a joint family, in the family's support.
    """

    model: NormalizedGLM
    params: GLMParameters
    inputs: Float[Array, "N D"]
    responses: Array


@st.composite
def normalizers(draw: st.DrawFn, *, units: int = 4, eps: float | st.SearchStrategy[float] = 0.0) -> AbstractNormalizer:
    """Every normalizer of the library that fits this many units; shrinks to the identity.

    Args:
        draw: supplied by hypothesis.
        units: H. Group norm takes groups of at least two.
        eps: ε, or a strategy of it.

    Returns:
        A normalizer.

    Raises:
        ValueError: if there are no units.
    """
    if units < 1:
        raise ValueError(f"units must be at least 1; got {units}")
    n = _normalizers
    value = eps if isinstance(eps, float | int) else draw(eps)
    kinds = [n.Identity(), n.WeightNorm(value), n.RMSNorm(value), n.BatchNorm(value)]
    if units > 1:
        kinds.append(n.LayerNorm(value))
    kinds += [n.GroupNorm(groups=groups, eps=value) for groups in range(2, units) if units % groups == 0]
    kind = draw(st.sampled_from([*kinds, n.BatchNormEvaluation]))
    if isinstance(kind, AbstractNormalizer):
        return kind
    mean = draw(grids(st.just(1), st.just(units), 2))[0]
    variance = draw(many(_VARIANCES, units))
    return n.BatchNormEvaluation(mean=array(mean, None), variance=array(np.array(variance), None), eps=float(value))


@functools.cache
def families(*, joint: bool | None = None) -> st.SearchStrategy[AbstractFamily]:
    """Every exponential family of the library; shrinks to the Gaussian.

    Args:
        joint: only families whose outputs parameterize one response (True), or only those of independent ones.

    Returns:
        The strategy.
    """
    f, dispersions = _families, st.sampled_from([1.0, 0.5, 2.0])
    independent = st.one_of(
        st.builds(f.Gaussian, dispersions),
        st.just(f.Bernoulli()),
        st.builds(f.Binomial, st.integers(1, 10)),
        st.just(f.Poisson()),
        st.builds(f.Gamma, dispersions),
        st.builds(f.InverseGaussian, dispersions),
        st.builds(f.NegativeBinomial, dispersions),
    )
    if joint is None:
        return st.one_of(independent, st.just(f.Categorical()))
    return st.just(f.Categorical()) if joint else independent


@st.composite
def points(
    draw: st.DrawFn,
    normalizer: AbstractNormalizer,
    *,
    units: Size = st.integers(3, 5),
    features: Size = st.integers(1, 3),
    samples: Size = st.integers(2, 5),
    dtype: jax.typing.DTypeLike | None = None,
) -> tuple[Float[Array, "H D"], Float[Array, "N D"]]:
    r"""Weights and inputs for which every statistic of a normalizer is defined, σ ≥ max|a|/20.

    Random matrices are moved along fixed ones, $W + t\,\mathbf{c} e_1^\top$ and $X + t\,\mathbf{c}' e_1^\top$ with
    c = c' = (1, 2, …), by the least t ∈ {0, 1, 2, …} that makes them valid. A large t always does.

    Args:
        draw: supplied by hypothesis.
        normalizer: the method, which JAX must be able to trace; where it is a `GroupNorm`, H must be a multiple of its
            groups.
        units: H.
        features: D.
        samples: N, at least 2 for batch norm.
        dtype: floating point type; JAX's default where None.

    Returns:
        W and X; they shrink to small integers.

    Raises:
        ValueError: if no weights and inputs of these sizes are valid, such as one unit for layer norm.

    Example:
        >>> from hypothesis import find
        >>> import lngeom as lg
        >>> W, X = find(points(lg.normalizers.LayerNorm(), features=1, samples=2), lambda point: True)
        >>> W.tolist(), X.tolist()
        ([[1.0], [2.0], [3.0]], [[1.0], [2.0]])
    """
    H, D, N = (draw(sizes(size)) for size in (units, features, samples))
    W, X = draw(grids(st.just(H), st.just(D), 4)), draw(grids(st.just(N), st.just(D), 4))
    for t in (0, *2 ** np.arange(8)):
        moved = W.copy(), X.copy()
        for value in moved:
            value[:, 0] += t * np.arange(1, len(value) + 1)
        point = array(moved[0], dtype), array(moved[1], dtype)
        if is_valid(normalizer, *point):
            return point
    raise ValueError(
        f"{type(normalizer).__name__} is undefined for H = {H}, D = {D}, N = {N}: statistics need two units in a "
        "group (layer and group norm) or two samples (batch norm)"
    )


def is_valid(normalizer: AbstractNormalizer, W: Array, X: Array) -> bool:
    """Whether the normalized inputs are finite and no scale is lost to rounding."""
    return bool(_normalized(normalizer, W, X)[1])


@eqx.filter_jit
def _normalized(normalizer: AbstractNormalizer, W: Array, X: Array) -> tuple[Float[Array, "N H"], Bool[Array, ""]]:
    """Normalized inputs, and whether they are valid: one program, since a search asks hundreds of times."""
    n = normalizer(W, X)
    finite = jnp.isfinite(n).all()
    if not isinstance(normalizer, AbstractStatisticsNormalizer):
        return n, finite
    scale, a = normalizer.statistics(W, X).scale, jnp.abs(summed_inputs(W, X))
    over = 0 if normalizer.couples_samples else 1
    size = jnp.max(a, over, keepdims=True) if normalizer.couples_samples or normalizer.couples_units else 0 * a[:1]
    return n, finite & jnp.all((scale > 0) & (scale >= MARGIN * size))


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    normalizer: AbstractNormalizer | st.SearchStrategy[AbstractNormalizer] | None = None,
    family: AbstractFamily | st.SearchStrategy[AbstractFamily] | None = None,
    units: Size = st.integers(3, 5),
    features: Size = st.integers(1, 3),
    samples: Size = st.integers(2, 5),
    dtype: jax.typing.DTypeLike | None = None,
) -> NormalizedProblem:
    """Normalized GLMs with weights, nonzero gains, biases, inputs and responses, all inside their domains.

    Args:
        draw: supplied by hypothesis.
        normalizer: a normalizer, which JAX must be able to trace, or a strategy of them; any by default.
        family: a family, or a strategy of them; any by default.
        units: H.
        features: D.
        samples: N.
        dtype: floating point type; JAX's default where None.

    Returns:
        A problem; it shrinks to small integers, gains 1 and biases 0.

    Example:
        >>> from hypothesis import find
        >>> import lngeom as lg
        >>> sizes = {"units": 3, "features": 1, "samples": 2}
        >>> gamma = problems(normalizer=lg.normalizers.RMSNorm(), family=lg.families.Gamma(), **sizes)
        >>> found = find(gamma, lambda problem: True)
        >>> found.params.gain.tolist(), found.params.bias.tolist()
        ([1.0, 1.0, 1.0], [-3.0, -3.0, -3.0])
    """
    H = draw(sizes(units))
    chosen = normalizers(units=H) if normalizer is None else normalizer
    norm = chosen if isinstance(chosen, AbstractNormalizer) else draw(chosen)
    kind = families() if family is None else family
    law = kind if isinstance(kind, AbstractFamily) else draw(kind)
    W, X = draw(points(norm, units=H, features=features, samples=samples, dtype=dtype))
    gain = np.array(draw(many(_GAINS, H)))
    bias = draw(grids(st.just(1), st.just(H), 2))[0]
    reach = float(np.max(np.abs(np.asarray(_normalized(norm, W, X)[0]) * gain)))
    while reach > LARGEST - 4:
        gain, reach = gain / 2, reach / 2
    if np.isfinite(law.upper):
        bias = law.upper - np.ceil(reach) - 1 - np.abs(bias)
    params = GLMParameters(W, array(bias, dtype), array(gain, dtype))
    return NormalizedProblem(NormalizedGLM(norm, law), params, X, draw(responses(law, samples=X.shape[0], units=H)))


@st.composite
def responses(draw: st.DrawFn, family: AbstractFamily, *, samples: int, units: int) -> Array:
    """Responses in a family's support: [N H], or labels [N] for a joint family.

    Args:
        draw: supplied by hypothesis.
        family: the family.
        samples: N.
        units: H, or the number of classes.

    Returns:
        y.
    """
    f = _families
    if family.joint:
        return jnp.asarray(draw(many(_integers(0, units - 1), samples)))
    match family:
        case f.Gaussian():
            one = entries()
        case f.Bernoulli():
            one = _integers(0, 1)
        case f.Binomial():
            one = _integers(0, family.trials)
        case f.Gamma() | f.InverseGaussian():
            one = _POSITIVE
        case _:
            one = _integers(0, 8)
    values = draw(many(one, samples * units))
    return array(np.array(values, np.float64).reshape(samples, units), None)


@st.composite
def transformations(
    draw: st.DrawFn,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    *,
    columns: tuple[Column, ...] = _transformations.TABLE1,
) -> tuple[Column, Transformation]:
    """A column of the invariance table and a member of its group, never the identity.

    Args:
        draw: supplied by hypothesis.
        params: parameters it is to act on, which give shapes and dtype.
        inputs: inputs it is to act on.
        columns: to choose from.

    Returns:
        The column and the transformation; scales shrink to 2, shifts to e₁.

    Example:
        >>> from hypothesis import find
        >>> import jax.numpy as jnp, lngeom as lg
        >>> params = lg.GLMParameters(jnp.ones((3, 2)), jnp.zeros(3), jnp.ones(3))
        >>> column, move = find(transformations(params, jnp.ones((4, 2))), lambda drawn: True)
        >>> column.name, float(move.weights.scale)
        ('weight_matrix_rescaling', 2.0)
    """
    column = draw(st.sampled_from(columns))
    value = params.weights if column.acts_on == "weights" else inputs

    def factors(shape: tuple[int, ...]) -> Array:
        return jnp.asarray(np.reshape([draw(scales()) for _ in range(math.prod(shape))], shape), value.dtype)

    def shifts(shape: tuple[int, ...]) -> Array:
        values = draw(grids(st.just(math.prod(shape[:-1])), st.just(shape[-1]), 4))
        values[0, 0] += 0.0 if values.any() else 1.0
        return jnp.asarray(values.reshape(shape), value.dtype)

    action = column.member(value, factors, shifts, lambda count: draw(st.integers(0, count - 1)))
    return column, Transformation(weights=action) if column.acts_on == "weights" else Transformation(inputs=action)
