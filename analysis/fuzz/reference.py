r"""The Fisher matrix written out, $F = \frac1N \sum_n \sum_t m_{nt} J_{nt}^\top \Lambda_{nt} J_{nt}$, in float64.

z on the whole batch; J by `jax.jacfwd` of the whole function with respect to all parameters in one vector; Λ by
`jax.hessian` of the log-partition; sums, spectra and ranks by NumPy. Nothing here is taken from `lngeom`. It reads the
log-partition of a family, and for observed responses its gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from analysis.fuzz.models import Case

TOLERANCE = {"float64": 1e-13, "float32": 3e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest relative error of a matrix in each precision, beside what its parameters' rounding causes."""

SENSITIVE, REPEATED = 30.0, 8.0
"""How often is allowed as an error what changes in the reference when its parameters are rounded otherwise, and when
the function as it is, in its low precision, takes the place of that in float64."""

VACUOUS = {"float64": 1e-5, "float32": 0.05, "float16": 0.2, "bfloat16": 0.6}
"""From this tolerance on a comparison says nothing: the model is too badly conditioned for its precision."""

CLEAR = 1e4
"""A rank is clear where singular values fall by this factor and the kept ones are this far above rounding."""

HIDDEN = 1e-12
"""A rank is not known where rounding of Λ alone changes the matrix by more than this part of it."""

CLASSES = {"Categorical", "Multinomial", "TwoHeaded"}
"""Families with a direction of the outputs that Λ does not see."""


@dataclass(frozen=True)
class Reference:
    """A Fisher matrix and what belongs to it.

    Attributes:
        matrix: F.
        factor: rows of √Λ J/√N at positions that count.
        singular_values: of the factor, descending, P of them.
        vectors: its right singular vectors, one a row, all P.
        rank: the rank, or None where singular values do not tell it.
        ranks: the least and the largest plausible rank.
        bound: of the rank, by the number of parameters and of outputs.
        tolerance: relative, of the matrix.
        scale: of the matrix: its largest entry, or what rounding leaves of one that is zero.
        valid: whether everything is finite and in the family's domain, at positions that count.
        spans: columns of each differentiated leaf, by its path.
        outputs: z, at all positions.
    """

    matrix: Float[np.ndarray, "P P"]
    factor: Float[np.ndarray, "R P"]
    singular_values: Float[np.ndarray, " P"]
    vectors: Float[np.ndarray, "P P"]
    rank: int | None
    ranks: tuple[int, int]
    bound: int
    tolerance: float
    scale: float
    valid: bool
    spans: dict[str, slice]
    outputs: np.ndarray


@dataclass(frozen=True)
class _Pieces:
    """z, J and Λ of every position, as rows; and the gradient of the log-partition."""

    outputs: np.ndarray
    jacobian: np.ndarray
    metric: np.ndarray
    mean: np.ndarray
    shape: tuple[int, ...]


def _dotted(path: tuple) -> str:
    return ".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)


class Evaluation:
    """z, J and Λ of a case, as functions of all differentiated parameters in one vector.

    Attributes:
        theta: their values, in float64.
        spans: columns of each leaf, by path.
    """

    def __init__(self, case: Case):
        self.case = case
        named, self._tree = jax.tree_util.tree_flatten_with_path(case.params)
        wrt = case.arguments.get("wrt")
        self._leaves = [leaf for _, leaf in named]
        self._chosen = []
        self.spans, start = {}, 0
        for position, (path, leaf) in enumerate(named):
            name = _dotted(path)
            if _is_float(leaf) and (wrt is None or any(name == w or name.startswith(f"{w}.") for w in wrt)):
                self._chosen.append(position)
                self.spans[name] = slice(start, start + leaf.size)
                start += leaf.size
        parts = [np.asarray(self._leaves[k], np.float64).reshape(-1) for k in self._chosen]
        self.theta = np.concatenate(parts)
        inputs = case.X
        if case.mask is not None:
            inputs = jax.tree.map(self._without_junk, inputs)
        self._inputs = inputs

    def _without_junk(self, leaf: Any) -> Any:
        """As the documentation says: what is not finite at masked positions counts as 0."""
        counts = np.asarray(self.case.mask) > 0
        if not _is_float(leaf) or leaf.shape[: counts.ndim] != counts.shape:
            return leaf
        keep = counts.reshape(counts.shape + (1,) * (leaf.ndim - counts.ndim)) | np.isfinite(np.asarray(leaf, float))
        return np.where(keep, leaf, np.zeros((), leaf.dtype))

    def pieces(self, wide: bool, *thetas: np.ndarray) -> list[_Pieces]:
        """At each vector of parameters, in float64 throughout (wide) or in the model's own precision."""
        case, family = self.case, self.case.family
        apply: Callable = case.wide if wide else case.apply
        inputs = jax.tree.map(lambda v: v.astype(jnp.float64) if wide and _is_float(v) else v, self._inputs)
        leaves = [jnp.asarray(v, jnp.float64) if wide and _is_float(v) else v for v in self._leaves]

        def outputs(theta, inputs):
            values = list(leaves)
            for k, span in zip(self._chosen, self.spans.values(), strict=True):
                values[k] = theta[span].reshape(values[k].shape).astype(values[k].dtype)
            z = apply(jax.tree_util.tree_unflatten(self._tree, values), inputs)
            return z if z.ndim > 1 else z[:, None]

        def everything(theta, inputs):
            z = outputs(theta, inputs)
            J = (jax.jacrev if case.reverse else jax.jacfwd)(outputs)(theta, inputs)
            eta = lambda z: jnp.sum(family.log_partition(z))  # noqa: E731
            rows = z.reshape(-1, z.shape[-1])
            return z, J.reshape(*rows.shape, -1), jax.vmap(jax.hessian(eta))(rows), jax.vmap(jax.grad(eta))(rows)

        compiled = jax.jit(everything)
        found = []
        for theta in thetas:
            z, J, metric, mean = (np.asarray(v, np.float64) for v in compiled(theta, inputs))
            if wide and np.isfinite(z).all() and not np.isfinite(J).all():
                # XLA may compute a maximum's operand twice, with other roundings: no entry is the maximum then, and its
                # derivative is 0/0. One operation at a time has no such copies.
                with jax.disable_jit():
                    z, J, metric, mean = (np.asarray(v, np.float64) for v in everything(theta, inputs))
            found.append(_Pieces(z, J, metric / family.dispersion, mean, z.shape))
        return found


def _weights(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape[:-1]).reshape(-1) if case.mask is None else np.asarray(case.mask, float).reshape(-1)


def _statistics(case: Case, shape: tuple[int, ...], y: np.ndarray) -> np.ndarray:
    """Observed responses as sufficient statistics, one row a position."""
    y = np.asarray(y)
    if case.family.joint and y.shape == shape[:-1]:
        return np.eye(shape[-1])[np.clip(y, 0, shape[-1] - 1)].reshape(-1, shape[-1])
    return y.reshape(-1, shape[-1]).astype(float)


def _scores(case: Case, p: _Pieces, drawn: np.ndarray | None) -> np.ndarray | None:
    """∂ log p/∂z of each draw at each position, [m N·T C], or None for the exact metric."""
    if drawn is not None:  # [N m *T C]
        return np.moveaxis(np.asarray(drawn, float)[: p.shape[0]], 1, 0).reshape(drawn.shape[1], -1, p.shape[-1])
    if case.arguments.get("method") == "empirical":
        y = _statistics(case, p.shape, case.arguments["y"])
        return ((y - p.mean) / case.family.dispersion)[None]
    return None


def _noise(p: _Pieces, moved: list[_Pieces]) -> np.ndarray:
    """What rounding makes of the entries of Λ, for each position: 1 − q is lost where a softmax is saturated.

    Terms of Λ, such as q and q², may be of size one, however small their difference.
    """
    largest = np.maximum(np.max(np.abs(p.metric), (1, 2)), 1.0)
    changes = [np.max(np.abs(other.metric - p.metric), (1, 2)) for other in moved]
    return np.max([16 * np.finfo(float).eps * largest, *(4 * change for change in changes)], 0)


def _factor(case: Case, p: _Pieces, floor: Any, scores: np.ndarray | None) -> np.ndarray:
    """Rows whose Gram matrix is F; eigenvalues of Λ up to a floor, which a position may have of its own, count as 0."""
    weights, samples = _weights(case, p.shape), p.shape[0]
    counts = weights > 0
    J = np.where(counts[:, None, None], p.jacobian, 0)
    if scores is not None:
        s = np.where(counts[None, :, None], scores, 0) * np.sqrt(weights)[None, :, None]
        each = np.einsum("mnc,ncp->mnp", s, J).reshape(len(s), samples, -1, J.shape[-1]).sum(2)
        return each.reshape(-1, J.shape[-1]) / (samples * len(s)) ** 0.5
    values, vectors = np.linalg.eigh(np.where(counts[:, None, None], p.metric, 0))
    values = np.where(values > np.reshape(floor, (-1, 1)), values, 0)
    rows = np.sqrt(values)[:, :, None] * np.einsum("nij,nip->njp", vectors, J)
    return (rows * np.sqrt(weights / samples)[:, None, None]).reshape(-1, J.shape[-1])


def _blur(case: Case, p: _Pieces, noise: np.ndarray) -> float:
    """What that noise makes of the factor's null directions, through eigenvectors of small eigenvalues of Λ."""
    weights = _weights(case, p.shape)
    counts = weights > 0
    metric, J = np.where(counts[:, None, None], p.metric, 0), np.where(counts[:, None, None], p.jacobian, 0)
    values = np.linalg.eigvalsh(metric)
    smallest = np.min(np.where(values > 4 * noise[:, None], values, np.inf), 1)
    lengths = np.linalg.norm(J, axis=(1, 2)) * np.sqrt(weights / p.shape[0])
    return float(np.max(noise / 16 / np.sqrt(smallest) * lengths, initial=0.0))


def _hidden(case: Case, p: _Pieces, noise: np.ndarray) -> float:
    """The largest singular value that an eigenvalue of Λ below its noise may cause, beyond the one that is zero."""
    weights = _weights(case, p.shape)
    counts = weights > 0
    small = np.sum(np.linalg.eigvalsh(np.where(counts[:, None, None], p.metric, 0)) <= 4 * noise[:, None], 1)
    hides = counts & (small > (type(case.family).__name__ in CLASSES))
    lengths = np.linalg.norm(np.where(counts[:, None, None], p.jacobian, 0), axis=(1, 2))
    return float(np.max(np.where(hides, 2 * np.sqrt(noise * weights / p.shape[0]) * lengths, 0.0), initial=0.0))


def _matrix(case: Case, p: _Pieces, scores: np.ndarray | None) -> np.ndarray:
    if scores is not None:
        rows = _factor(case, p, 0.0, scores)
        return rows.T @ rows
    weights = _weights(case, p.shape)
    counts = weights > 0
    J = np.where(counts[:, None, None], p.jacobian, 0)
    metric = np.where(counts[:, None, None], p.metric, 0)
    return np.einsum("n,nip,nij,njq->pq", weights, J, metric, J) / p.shape[0]


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    scale = np.max(np.abs(b), initial=0.0)
    return float(np.max(np.abs(a - b)) / scale) if scale > 0 else 0.0


def _spectrum(rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    _, s, vectors = np.linalg.svd(
        np.concatenate([rows, np.zeros((max(0, size - len(rows)), size))]), full_matrices=True
    )
    return s[:size], vectors


def _bound(case: Case, p: _Pieces, scores: np.ndarray | None) -> int:
    size = p.jacobian.shape[-1]
    if scores is not None:
        return min(size, len(scores) * p.shape[0])
    lost = type(case.family).__name__ in CLASSES
    return min(size, int(np.sum(_weights(case, p.shape) > 0)) * (p.shape[-1] - lost))


def reference(case: Case, drawn: np.ndarray | None = None) -> Reference:
    """The matrix of a case, its spectrum and its rank.

    Args:
        case: the model.
        drawn: scores at sampled responses [N m *T C], for "monte_carlo".

    Returns:
        The reference.
    """
    evaluation = Evaluation(case)
    generator = np.random.default_rng([case.seed, 2])
    theta = evaluation.theta
    nearby = [theta * (1 + 4 * np.finfo(float).eps * generator.choice([-1, 1], theta.shape)) for _ in range(2)]
    with np.errstate(all="ignore"):
        exact, *moved = evaluation.pieces(True, theta, *nearby)
        scores = _scores(case, exact, drawn)
        matrix = _matrix(case, exact, scores)
        sensitivity = max(_difference(_matrix(case, p, _scores(case, p, drawn)), matrix) for p in moved)
        low = 0.0
        if case.dtype != "float64":
            (own,) = evaluation.pieces(False, theta)
            low = _difference(_matrix(case, own, _scores(case, own, drawn)), matrix)
    counts = _weights(case, exact.shape) > 0
    pieces = (exact.outputs.reshape(len(counts), -1), exact.jacobian, exact.metric)
    finite = all(np.isfinite(v[counts]).all() for p in (pieces,) for v in p) and np.isfinite(matrix).all()
    valid = bool(finite and np.all(pieces[0][counts] < case.family.upper))
    noise = np.where(counts, _noise(exact, moved), 0)
    largest, lost = float(np.max(np.abs(matrix), initial=0.0)), 0.0
    if valid and scores is None:
        J = np.where(counts[:, None, None], exact.jacobian, 0)
        shares = np.einsum("n,ncp->p", _weights(case, exact.shape) * noise / 16, np.square(J)) / exact.shape[0]
        lost = float(np.max(shares, initial=0.0))
        sensitivity += lost / largest if largest else 0.0
    tolerance = TOLERANCE[case.dtype] + SENSITIVE * sensitivity + REPEATED * low
    result = Reference(
        matrix,
        np.zeros((0, theta.size)),
        np.zeros(theta.size),
        np.eye(theta.size),
        None,
        (0, theta.size),
        _bound(case, exact, scores),
        tolerance,
        max(largest, lost / tolerance),
        valid,
        evaluation.spans,
        exact.outputs,
    )
    if not valid:
        return result
    rows = _factor(case, exact, 4 * noise, scores)
    s, vectors = _spectrum(rows, theta.size)
    blur = _blur(case, exact, noise) if scores is None else 0.0
    least = _count(s, CLEAR, blur)
    most = _count(_spectrum(_factor(case, exact, 0.0, scores), theta.size)[0], 1.0)
    careful = _count(_spectrum(_factor(case, exact, 1e3 * noise, scores), theta.size)[0], CLEAR, blur)
    clear = least == careful and (least == theta.size or s[least] * CLEAR <= s[max(least - 1, 0)])
    # where a softmax is saturated, rounding hides small eigenvalues of Λ that its exact root has
    hidden = scores is None and _hidden(case, exact, noise) > np.finfo(float).eps * s.max(initial=0.0)
    sensitive = case.dtype == "float64" and (sensitivity > 1e-6 or lost > HIDDEN * largest or hidden)
    return replace(
        result,
        factor=rows,
        singular_values=s,
        vectors=vectors,
        rank=least if clear and not sensitive else None,
        ranks=(min(least, careful), most),
    )


def _count(s: np.ndarray, times: float, blur: float = 0.0) -> int:
    """Singular values above so many times the rounding of the largest."""
    return int(np.sum(s > max(times * np.finfo(float).eps * s.max(initial=0.0), blur)))
