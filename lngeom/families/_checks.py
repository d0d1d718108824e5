"""Checks of a family: is it a distribution, and is Λ the covariance of its score?"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom._core.numerics import tolerance

DEVIATIONS = 6.0
"""Standard errors that a mean of draws may be off: by chance one mean in 500 million is."""

FEW = 64
"""Different values among the draws up to which they may be all values of a response."""

FACTORS = (0.03, 0.3, 1.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0, 30.0, 45.0, 60.0, 90.0)
"""Multiples of z at which means and variances must keep their digits."""

LOST = 3e-4
"""Relative error of a number in float32 that has lost half of its digits."""

NODES = 2001
"""Of an integral, by the double exponential substitution."""


def check(
    family: Any, z: Float[Array, "B C"] | None = None, *, draws: int = 5000, key: PRNGKeyArray | None = None
) -> tuple[str, ...]:
    r"""Checks a family of one's own, and says in one sentence what is wrong.

    Compared are the gradient of the density with the score, mean and variance with $\eta'$ and $\phi\eta''$, roots and
    parts of Λ with Λ, sums of the density with 1, and the score of draws with mean 0 and covariance Λ. The density of a
    response of several numbers is compared with that at other outputs, not with 1. The mean and the diagonal of Λ of an
    `AbstractFamily` in float32 are compared with those in float64, up to 90 times as far from 0 and of both signs,
    where automatic derivatives may overflow or cancel.

    Args:
        family: an `AbstractFamily`, or another distribution with a metric.
        z: outputs inside its domain, one a row; `family.points()` where None.
        draws: at each row.
        key: of the draws.

    Returns:
        The names of the checks, all passed.

    Raises:
        ValueError: if one fails.

    Example:
        >>> import lngeom as lg
        >>> lg.families.check(lg.families.Poisson())
        ('shapes', 'mean and variance', 'score', 'metric', 'normalization', 'draws', 'digits')
    """
    at: Array = family.points() if z is None else jnp.asarray(z, float)
    many = jnp.broadcast_to(at[None], (draws, *at.shape))
    key = jax.random.key(0) if key is None else key
    try:
        if at.ndim != 2 or not bool(jnp.all(jnp.isfinite(at) & ~family.outside(at))):
            raise Fault(f"z must be finite outputs [B C] inside the domain; got {at.shape}")
        _check_shapes(family, many, key)
        y, found = jax.jit(lambda z, key: _numbers(family, z, draws, key))(at, key)
        found = jax.tree.map(lambda value: np.asarray(value, float), found)
        close = max(1e-7, 10 * tolerance(at.dtype))
        done = ("shapes", *_check_numbers(family, at, found, close))
        try:
            family.check_responses(y, many.shape)
        except ValueError as error:
            raise Fault(f"sample draws outside the support: {error}") from error
        done = (*done, _check_normalization(family, at, y, found))
        _check_draws(family, found)
        if has_partition := hasattr(family, "log_partition"):
            _check_digits(family, at)
    except Fault as fault:
        raise ValueError(f"{family.name}: {fault}") from fault.__cause__
    return (*done, "draws", "digits") if has_partition else (*done, "draws")


class Fault(Exception):
    """What is wrong, in one sentence."""


def _check_shapes(family: Any, many: Array, key: PRNGKeyArray) -> None:
    y = jax.eval_shape(family.sample, key, many)
    if hasattr(y, "shape") and y.shape not in (allowed := family.response_shapes(many.shape)):
        raise Fault(f"sample gives {y.shape} for outputs {many.shape}; expected {' or '.join(map(str, allowed))}")
    shape = jax.eval_shape(family.log_prob, many, y).shape
    if shape != (expected := many.shape[:-1] if family.joint else many.shape):
        what = "the last axis alone" if family.joint else "no axis"
        raise Fault(f"log_prob of outputs {many.shape} has shape {shape}, not {expected}: reduce {what}")
    for name in ("metric_product", "metric_sqrt_product"):
        if (shape := jax.eval_shape(getattr(family, name), many, many).shape) != many.shape:
            raise Fault(f"{name} of outputs {many.shape} has shape {shape}; expected that of the outputs")


def _numbers(family: Any, z: Float[Array, "B C"], draws: int, key: PRNGKeyArray) -> tuple[Any, dict[str, Any]]:
    """Draws, and everything that is compared."""
    many = jnp.broadcast_to(z[None], (draws, *z.shape))
    y = family.sample(key, many)
    first = jax.tree.map(lambda leaf: leaf[0], y)
    basis = jnp.broadcast_to(jnp.eye(z.shape[-1], dtype=z.dtype)[None], (*z.shape, z.shape[-1]))
    v = jnp.cos(jnp.arange(z.size, dtype=z.dtype)).reshape(z.shape)
    rows = lambda function, *values: jax.lax.map(lambda part: function(*part), values)  # noqa: E731
    one = lambda function: lambda *parts: function(*(jax.tree.map(lambda p: p[None], part) for part in parts))[0]  # noqa: E731

    def mean_log_prob(z: Array, y: Any) -> Array:
        return jnp.sum(family.log_prob(jnp.broadcast_to(z[None], (draws, len(z))), y)) / draws

    log_prob = family.log_prob(many, y)
    found = {
        "log_prob": log_prob,
        "log_prob alone": rows(one(family.log_prob), z, first),
        "scores": family.score(many, y),
        "gradient": jax.grad(lambda z: jnp.sum(family.log_prob(z, y)))(many),
        "metric": family.metric(z),
        "product alone": rows(one(family.metric_product), z, v),
        "product": family.metric_product(z, v),
        "root alone": rows(one(family.metric_sqrt_product), z, v),
        "root product": family.metric_sqrt_product(z, v),
        "roots": jax.vmap(family.metric_sqrt_product, (None, 1), 1)(z, basis),
        "diagonal": family.metric_diagonal(z),
        "parts": family.metric_parts(z),
        "curvature": -rows(jax.hessian(mean_log_prob), z, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), y)),
        "ratio": jnp.exp(family.log_prob(0.97 * many, y) - log_prob),
    }
    if hasattr(family, "log_partition"):
        partition = lambda z: jnp.sum(family.log_partition(z))  # noqa: E731
        phi = jnp.broadcast_to(jnp.asarray(family.dispersion, z.dtype), z.shape[-1:])[None, :]
        hessian = rows(jax.hessian(partition), z)
        found |= {"mean": family.mean(z), "variance": family.variance(z), "slope": rows(jax.grad(partition), z)}
        found |= {"spread": phi * jnp.diagonal(hessian, axis1=1, axis2=2), "hessian": hessian / phi[:, :, None]}
    return y, found


def _check_numbers(family: Any, z: Array, found: dict[str, Any], close: float) -> tuple[str, ...]:
    """Compares what must be equal; returns the names of the comparisons."""

    def same(a: Any, b: Any, fault: str) -> None:
        largest = max(float(np.max(np.abs(found[b]), initial=0)), 1e-30)
        if found[a].shape != found[b].shape or not np.max(np.abs(found[a] - found[b]), initial=0) <= close * largest:
            raise Fault(fault)

    if not np.all(np.isfinite(found["log_prob"])):
        raise Fault("log_prob is not finite at draws of sample")
    found["first"] = found["log_prob"][0]
    for name, a, b in (("log_prob", "log_prob alone", "first"), ("metric_product", "product alone", "product")):
        same(a, b, f"{name} of a batch is not that of its rows: reduce the last axis alone")
    same("root alone", "root product", "metric_sqrt_product of a batch is not that of its rows")
    done = ("score", "metric")
    if "mean" in found:
        same("mean", "slope", "mean is not η', the gradient of log_partition")
        same("variance", "spread", "variance is not φ η'', by the second derivatives of log_partition")
        same("metric", "hessian", "Λ of metric_product is not η''/φ, by the second derivatives of log_partition")
        done = ("mean and variance", *done)
    same("scores", "gradient", "score is not the gradient of log_prob with respect to z")
    matrix = found["metric"]
    found["transposed"] = matrix.swapaxes(1, 2)
    same("metric", "transposed", "Λ of metric_product is not symmetric")
    if np.linalg.eigvalsh(matrix).min() < -close * np.abs(matrix).max():
        raise Fault("Λ of metric_product has a negative eigenvalue")
    found["square"] = found["roots"] @ found["roots"].swapaxes(1, 2)
    same("square", "metric", "S of metric_sqrt_product does not have S Sᵀ = Λ")
    found["known diagonal"] = np.diagonal(matrix, axis1=1, axis2=2)
    same("diagonal", "known diagonal", "metric_diagonal is not the diagonal of Λ")
    if found["parts"] is not None:
        diagonal, q = found["parts"]
        found["of parts"] = diagonal[..., None] * np.eye(z.shape[-1]) - q[..., :, None] * q[..., None, :]
        same("of parts", "metric", "metric_parts do not have diag(λ) − q qᵀ = Λ")
    said, eps = family.metric_rank(z.shape[-1]), 10 * float(jnp.finfo(z.dtype).eps)
    fewest, most = (int(np.linalg.matrix_rank(matrix, rtol=rtol).max()) for rtol in (100 * close, eps))
    if said < fewest or (said > most and z.dtype == jnp.float64):  # in float32 small eigenvalues are lost
        raise Fault(f"metric_rank({z.shape[-1]}) is {said}; Λ has rank {most if said > most else fewest}")
    return done


def _check_digits(family: Any, z: Array) -> None:
    """The mean and the diagonal of Λ in float32 are those in float64, also at z closer to 0 and further from it."""
    single = np.asarray(z, np.float32)
    factors = [sign * factor for sign in (1, -1) for factor in FACTORS]
    if family.upper < float("inf"):
        factors = [1e-4, *FACTORS]  # close to the limit, if that is 0
    at = np.concatenate([np.float32(factor) * single for factor in factors])
    at = at[np.all(np.abs(at) < 80, -1)]  # beyond, the exponential is outside the range of float32
    at = at[~np.any(np.asarray(family.outside(jnp.asarray(at))), -1)]
    remedies = {
        "mean": ("the mean η'", "define mean"),
        "metric_diagonal": ("the diagonal of Λ", "define metric_product" if family.joint else "define curvature"),
    }
    for name in remedies:
        compute = jax.jit(lambda z, name=name: getattr(family, name)(z))
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            found, known = (np.asarray(compute(jnp.asarray(at, dtype)), float) for dtype in (np.float32, np.float64))
        size = np.abs(known)
        seen = ~((size < 1e-30) | (size > 1e30))  # a NaN in float64 is seen too
        if family.joint:  # beside the largest of its row
            seen &= ~(size < 1e-6 * np.max(size, -1, keepdims=True))
        lost = seen & ~(np.abs(found - known) <= LOST * size)
        if not np.any(lost):
            continue
        where = np.broadcast_to(at, lost.shape)[lost] if not family.joint else at[np.any(lost, -1)]
        first = tuple(np.argwhere(lost)[np.argmin(np.max(np.abs(at), -1)[np.argwhere(lost)[:, 0]])])
        what, remedy = remedies[name]
        raise Fault(
            f"{what} loses its digits in float32 from z = {where.min():.3g} to {where.max():.3g}: {found[first]:.4g} "
            f"instead of {known[first]:.4g} at z = {np.array2string(at[first[0]], precision=3)}; log_partition or its "
            f"derivatives overflow or cancel there: {remedy}, or log_partition, in a form that does not"
        )


def _check_normalization(family: Any, z: Array, y: Any, found: dict[str, Any]) -> str:
    """Probabilities or densities sum to 1, where a response is one number or label."""
    if family.joint and family.atoms(z.shape[-1]) is None:
        ratio = found["ratio"]
        error = DEVIATIONS * ratio.std(0) / len(ratio) ** 0.5 + 1e-6
        if not np.all(np.abs(ratio.mean(0) - 1) <= error):
            raise Fault(
                f"the mean of p(y | 0.97 z)/p(y | z) over draws at z is {ratio.mean(0)[0]:.4g} at the first z, not 1: "
                "the part of log_prob without y is wrong, or sample draws from another density"
            )
        return "normalization up to a constant"
    mass = _masses(family, z, np.asarray(y, float))
    off = np.abs(mass - 1)
    worst = np.unravel_index(np.argmax(np.where(np.isfinite(off), off, np.inf)), mass.shape)
    if not off[worst] <= max(1e-5, 100 * tolerance(z.dtype)):
        at = np.array2string(np.asarray(z)[worst], precision=3)
        raise Fault(
            f"probabilities sum to {mass[worst]:.4g} at z = {at}, not to 1: correct log_base_measure or log_partition"
        )
    return "normalization"


def _masses(family: Any, z: Array, y: np.ndarray) -> np.ndarray:
    """Sums or integrals of the density over all responses, at every output."""

    @jax.jit
    def log_density(values: Array) -> Array:
        many = jnp.broadcast_to(z[None], (len(values), *z.shape))
        shape = many.shape[:-1] if family.joint else many.shape
        return family.log_prob(many, jnp.broadcast_to(values.reshape(-1, *(1,) * (len(shape) - 1)), shape))

    def density(values: np.ndarray) -> np.ndarray:
        return np.exp(np.asarray(log_density(jnp.asarray(values, int if family.labels else z.dtype)), float))

    atoms = family.atoms(z.shape[-1])
    if atoms is not None:
        return density(np.asarray(atoms)).sum(0)
    low, high = family.support
    seen = np.unique(y)
    if np.array_equal(seen, np.round(seen)):
        few = density(seen).sum(0) if len(seen) <= FEW else np.zeros(1)
        if np.all(np.abs(few - 1) < 1e-9):
            return few
        spread = np.round(60 * y.std() + 60)
        return density(np.arange(max(low, seen[0] - spread), min(high, seen[-1] + spread) + 1)).sum(0)
    t = np.linspace(-4, 4, NODES)
    u, slope = np.pi / 2 * np.sinh(t), np.pi / 2 * np.cosh(t)
    if np.isfinite(low) and np.isfinite(high):
        nodes, weights = (low + high) / 2 + (high - low) / 2 * np.tanh(u), (high - low) / 2 * slope / np.cosh(u) ** 2
    elif np.isfinite(low) or np.isfinite(high):
        end, sign = (low, 1) if np.isfinite(low) else (high, -1)
        away = np.exp(u) * np.median(np.abs(y - end))
        nodes, weights = end + sign * away, away * slope
    else:
        nodes, weights = np.median(y) + y.std() * np.sinh(u), y.std() * slope * np.cosh(u)
    inside = (nodes > low) & (nodes < high)
    values = density(nodes[inside]) * weights[inside].reshape(-1, *(1,) * (z.ndim - family.joint))
    return values.sum(0) * (t[1] - t[0])


def _check_draws(family: Any, found: dict[str, Any]) -> None:
    """The score of draws has mean 0 and covariance Λ."""
    s, matrix = found["scores"], found["metric"]
    share = DEVIATIONS / len(s) ** 0.5
    off = np.abs(s.mean(0)) - share * s.std(0)
    if not np.all(off <= 1e-6):
        raise Fault(
            f"the mean score of draws is {s.mean(0).flat[np.argmax(off)]:.3g}, not 0: sample draws from another "
            "density than that of log_prob"
        )
    i, j = np.tril_indices(s.shape[-1]) if family.joint else (np.arange(s.shape[-1]),) * 2
    products = s[..., i] * s[..., j]
    drawn, error = products.mean(0), share * products.std(0) + 1e-6
    wrong = ~(np.abs(drawn - matrix[:, i, j]) <= error)
    if np.any(wrong):
        row, k = np.argwhere(wrong)[0]
        about = (
            f"Λ[{i[k]}, {j[k]}] is {matrix[row, i[k], j[k]]:.4g}, and the mean product of scores {drawn[row, k]:.3g}"
        )
        if np.all(np.abs(drawn - found["curvature"][:, i, j]) <= 2 * error):
            raise Fault(f"{about}, like the curvature of log_prob: correct metric_product")
        raise Fault(f"{about}: sample draws from another density than that of log_prob")
