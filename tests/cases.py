"""The zoo of models, the definition of the Fisher matrix, and a NumPy Jacobian without code of the library."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from jax.flatten_util import ravel_pytree
from lngeom.families import AbstractFamily
from lngeom.methods import AbstractNormalizer

FAMILIES = {
    "gaussian": lg.families.Gaussian(2.0),
    "bernoulli": lg.families.Bernoulli(),
    "binomial": lg.families.Binomial(7),
    "poisson": lg.families.Poisson(),
    "gamma": lg.families.Gamma(0.5),
    "inverse_gaussian": lg.families.InverseGaussian(0.3),
    "negative_binomial": lg.families.NegativeBinomial(2.5),
    "categorical": lg.families.Categorical(),
}


@cache
def drawn(seed: int, *shape: int) -> jax.Array:
    """Standard normal numbers, drawn by NumPy: XLA takes 0.1 s to compile a generator for each shape."""
    with jax.ensure_compile_time_eval():  # kept for later calls, it must be no value of a program that is being traced
        return jax.device_put(np.random.default_rng(seed).normal(size=shape))


def definition(apply: Callable[[Any, Any], jax.Array], metric: Callable[[jax.Array], jax.Array]) -> Callable:
    r"""The mean over samples of $J^\top \Lambda J$, summed over positions with weights: (params, X, weights) ↦ [P P].

    J is written out by `jax.jacfwd`, and `metric` gives Λ [C C] at the outputs z [C] of one position.
    """

    @jax.jit
    def matrix(params: Any, X: Any, weights: Any = None) -> jax.Array:
        flat, unravel = ravel_pytree(params)
        z = apply(params, X)
        classes = 1 if z.ndim == 1 else z.shape[-1]
        J = jax.jacfwd(lambda theta: apply(unravel(theta), X))(flat).reshape(-1, classes, flat.size)
        weights = jnp.ones(len(J), z.dtype) if weights is None else weights.reshape(-1).astype(z.dtype)
        return jnp.einsum("n,nip,nij,njq->pq", weights, J, jax.vmap(metric)(z.reshape(-1, classes)), J) / len(z)

    return matrix


def metric_of(family: Any) -> Callable[[jax.Array], jax.Array]:
    """Λ of a family: the Hessian of its log-partition over its dispersion."""
    return lambda z: jax.hessian(lambda z: jnp.sum(family.log_partition(z)))(z) / family.dispersion


def metric_of_divergence(divergence: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    r"""Λ as the Hessian of $z' \mapsto D(p_z \| p_{z'})$ at z."""
    return lambda z: jax.hessian(lambda other: divergence(z, other))(z)


def normalizers(units: int, inputs: int, eps: float = 0.0) -> dict[str, AbstractNormalizer]:
    """Every normalizer with a closed form, for H units and D inputs."""
    rng = np.random.default_rng(3)
    weights, others = rng.normal(size=(units, inputs)), rng.normal(size=(9, inputs))
    mean, variance = jax.device_put([f(others @ weights.T, 0) for f in (np.mean, np.var)])
    return {
        "identity": lg.normalizers.Identity(),
        "batch": lg.normalizers.BatchNorm(eps),
        "batch_evaluation": lg.normalizers.BatchNormEvaluation(mean, variance, max(eps, 0.1)),
        "weight": lg.normalizers.WeightNorm(eps),
        "layer": lg.normalizers.LayerNorm(eps),
        "rms": lg.normalizers.RMSNorm(eps),
        **{f"group{g}": lg.normalizers.GroupNorm(g, eps) for g in (2, 3) if units % g == 0 and units > g},
    }


@dataclass(frozen=True)
class Configuration:
    """A model, its parameters and data."""

    name: str
    model: lg.NormalizedGLM
    params: lg.GLMParameters
    inputs: np.ndarray


SIZES = (
    *((2, 1, 80), (2, 4, 80), (3, 2, 80), (3, 4, 80), (6, 1, 80), (6, 4, 80)),
    *((2, 2, 1), (6, 4, 1), (3, 1, 3), (6, 2, 3), (3, 4, 8), (6, 4, 8)),
)
"""(H, D, N) of random configurations: few, because each is compiled."""


def special_configuration(rng: np.random.Generator) -> Configuration:
    """A random configuration whose data lie on a surface, or whose weights and gains are at a singular point."""
    case = random_configuration(rng)
    X, W, gain = (np.array(v) for v in (case.inputs, case.params.weights, case.params.gain))
    (units, inputs), kinds = W.shape, [case.name]
    groups = getattr(case.model.normalizer, "group_count", 1)
    match rng.integers(8):
        case 0:
            X /= np.linalg.norm(X, axis=1, keepdims=True)
            kinds.append("inputs of norm one")
        case 1:
            X = rng.integers(-1, 2, X.shape).astype(float)
            X[~X.any(1), 0] = 1.0
            kinds.append("inputs of -1, 0, 1")
        case 2 if inputs > 2:
            X[::2, 0] = X[1::2, 1] = 0.0
            kinds.append("first input times second is zero")
    if rng.random() < 0.4:
        zeros = rng.permutation(units)[: rng.integers(units + 1)]
        gain[zeros] = 0.0
        kinds.append(f"{len(zeros)} more zero gains")
    match rng.integers(8):
        case 0 | 1:
            shifts = np.repeat(rng.normal(size=(groups, inputs)), units // groups, 0)
            W = np.outer(rng.normal(size=units), rng.normal(size=inputs)) + shifts
            kinds.append("centred weights of rank one in one direction")
        case 2:
            W = np.tile(W[: units // groups], (groups, 1))
            kinds.append("groups that are copies")
        case 3:
            W = W[:1] / np.where(gain == 0, 1, gain)[:, None]
            kinds.append("the same g w for all units")
    params = lg.GLMParameters(jnp.asarray(W), case.params.bias, jnp.asarray(gain))
    return Configuration(", ".join(kinds), case.model, params, X)


def random_configuration(rng: np.random.Generator) -> Configuration:
    """Any normalizer and one of the sizes: deficient data, few samples, zero gains, weights of rank one."""
    units, inputs, samples = SIZES[rng.integers(len(SIZES))]
    eps = float(rng.choice([0.0, 0.0, 0.1]))
    X = rng.normal(size=(samples, inputs))
    kinds = [f"H={units} D={inputs} N={samples} eps={eps}"]
    if rng.random() < 0.3 and inputs > 1:
        X[:, : inputs // 2] = X[:, inputs // 2 :] @ rng.normal(size=(inputs - inputs // 2, inputs // 2))
        kinds.append("rank-deficient")
    if rng.random() < 0.15:
        X[:, 0] = 1.0
        kinds.append("intercept")
    if rng.random() < 0.2 and inputs > 1 and samples > 2:
        X[:, 0] = 0.0
        X[0, 0] = 1.3
        kinds.append("one sample alone in its direction")
    if rng.random() < 0.15 and inputs > 2:
        X[: samples // 2, :2] = 0.0
        X[samples // 2 :, 2:] = 0.0
        kinds.append("two independent halves")
    W = rng.normal(size=(units, inputs))
    if rng.random() < 0.15:
        W = np.outer(rng.normal(size=units), rng.normal(size=inputs))
        kinds.append("weights of rank one")
    gain = rng.uniform(0.5, 1.5, units)
    for _ in range(int(rng.choice([0, 0, 0, 0, 0, 1, 2]))):
        gain[rng.integers(units)] = 0.0
        kinds.append("a zero gain")
    name, normalizer = list(normalizers(units, inputs, eps).items())[
        rng.integers(6 + sum(units % g == 0 and units > g for g in (2, 3)))
    ]
    family: AbstractFamily = FAMILIES[str(rng.choice(["bernoulli", "categorical"]))]
    bias = 0.3 * rng.normal(size=units)
    params = lg.GLMParameters(jnp.asarray(W), jnp.asarray(bias), jnp.asarray(gain))
    kinds = [name, type(family).__name__, *kinds]
    return Configuration(", ".join(kinds), lg.NormalizedGLM(normalizer, family), params, X)


def numpy_statistics(normalizer: AbstractNormalizer, W: np.ndarray, X: np.ndarray) -> tuple:
    """Mean and scale of Eq. 5 in plain NumPy, which broadcast against summed inputs [N H]."""
    a = X @ W.T
    match normalizer:
        case lg.normalizers.Identity():
            return 0.0, 1.0
        case lg.normalizers.BatchNormEvaluation():
            return np.asarray(normalizer.mean), np.sqrt(np.asarray(normalizer.variance) + normalizer.eps)
        case lg.normalizers.WeightNorm():
            return 0.0, np.sqrt((W**2).sum(1) + normalizer.eps)
        case lg.normalizers.BatchNorm():
            return a.mean(0), np.sqrt(a.var(0) + normalizer.eps)
    groups = a.reshape(len(a), normalizer.group_count, -1)
    mean = groups.mean(2, keepdims=True) if normalizer.centered else 0.0
    scale = np.sqrt(((groups - mean) ** 2).mean(2, keepdims=True) + normalizer.eps)
    return tuple(np.broadcast_to(s, groups.shape).reshape(a.shape) for s in (mean, scale))


def numpy_factor(model: lg.NormalizedGLM, params: lg.GLMParameters, X: np.ndarray) -> tuple[np.ndarray, float]:
    """Rows of √Λ J for Bernoulli and categorical responses in plain NumPy, and the size of what cancelled in J."""
    W, b, g = (np.asarray(v) for v in (params.weights, params.bias, params.gain))
    units, inputs = W.shape
    normalizer = model.normalizer
    mean, scale = numpy_statistics(normalizer, W, X)
    n = (X @ W.T - mean) / scale
    s = np.broadcast_to(scale, n.shape)
    J = np.zeros((len(X), units, units * (inputs + 2)))
    for i in range(units):
        for d in range(inputs):
            dW = np.zeros_like(W)
            dW[i, d] = 1.0
            da = X @ dW.T
            match normalizer:
                case lg.normalizers.BatchNorm():
                    da = da - da.mean(0)
                    dn = (da - n * (n * da).mean(0)) / s
                case lg.normalizers.WeightNorm():
                    dn = (da - n * (W * dW).sum(1) / s) / s
                case lg.normalizers.Identity() | lg.normalizers.BatchNormEvaluation():
                    dn = da / s
                case _:
                    dn = np.empty_like(da)
                    for members in np.split(np.arange(units), normalizer.group_count):
                        v = da[:, members] - (da[:, members].mean(1, keepdims=True) if normalizer.centered else 0)
                        dn[:, members] = v - n[:, members] * (n[:, members] * da[:, members]).mean(1, keepdims=True)
                    dn /= s
            J[:, :, i * inputs + d] = g * dn
        J[:, i, units * inputs + i] = 1.0
        J[:, i, units * (inputs + 1) + i] = n[:, i]
    z = g * n + b
    if model.family.joint:
        q = np.exp(z - z.max(1, keepdims=True))
        q /= q.sum(1, keepdims=True)
        J = np.sqrt(q)[:, :, None] * (J - np.einsum("nh,nhp->np", q, J)[:, None])
    else:
        J = J * (np.exp(-np.abs(z) / 2) / (1 + np.exp(-np.abs(z))))[:, :, None]
    cancelled = np.sqrt(np.sum(np.sum((g / s) ** 2, 1) * np.sum(X**2, 1)))
    return J.reshape(-1, J.shape[-1]), float(cancelled)
