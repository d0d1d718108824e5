r"""The null space of layer, RMS and group norm, predicted group by group.

Write θ̇ = (dW, db, dg) and, for a unit with g_i ≠ 0, e_i = dg_i / g_i. With U the (centred) weights on the span of the
data and u = U x: (a) rows in the kernel of the data; (b) shifts 1γᵀ (centred only); (c) scale, dW = W (ε = 0 only), on
each part of the data by itself where the samples fall into linearly independent parts; (d) trades between gain and
weights, dW = −diag(e) U, dg = e ⊙ g where Σ e_i u_i = 0 (centred only) and Σ e_i u_i² = 0 for every x. Outputs that may
move unseen (a zero gain, the shift of a softmax) add terms l(x) h to both conditions, l linear, so (d) is the kernel of
one matrix of the coefficients of linear and quadratic forms. If U has rank one on a part and ε = 0 the normalized
values are signs there, and (c) grows to every v γᵀ.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse
from jaxtyping import Float

from lngeom._numerics import decide_rank
from lngeom.information._directions import Collector, Condition, spans
from lngeom.normalizers import AbstractGroupedNormalizer


def grouped(
    into: Collector, normalizer: AbstractGroupedNormalizer, joint: bool, W, g, X, n
) -> tuple[int, list[Condition]]:
    """Layer, RMS and group norm; returns the most directions that the data can see, and conditions."""
    units, features = W.shape
    groups = normalizer.group_count
    size = units // groups
    span, kernel = spans(X)
    parts = _independent_parts(X, span)
    flat = normalizer.eps == 0
    line = flat and span.shape[1] == 1
    seen, fewest = 0, len(X)
    for k in range(groups):
        members = np.arange(k * size, (k + 1) * size)
        U = W[members] @ span
        if normalizer.centered:
            U = U - U.mean(0)
        _add_group(into, normalizer, joint and groups == 1, members, U @ parts.coordinates.T, parts, g, X, n)
        scale = np.sqrt(np.mean((X @ span @ U.T) ** 2, 1, keepdims=True) + normalizer.eps)
        distinct = _distinct(X / scale)
        fewest = min(fewest, len(distinct))
        seen += _seen_by_group(normalizer, joint and groups == 1, n[distinct][:, members], g[members])
    if len(kernel.T):
        moved = np.eye(units)[:, None, :, None] * kernel.T[None, :, None, :]
        into.add("weights that the data cannot see", moved.reshape(-1, units, features))
    if joint:
        into.add("softmax shift of all biases", None, np.ones((1, units)))
    seen = min(seen, fewest * (units - joint)) if groups == 1 else min(seen, len(X) * (units - joint))
    identifiable = units * (features + 2) - into.basis.shape[1]
    # Below these the polynomial identities of the theory need not follow from the samples at hand; a line of data has
    # two directions only, and two samples show both.
    needed = max(4 * units, -(-2 * identifiable // max(units - 2 * groups, 1)))
    return seen, [
        Condition("enough samples with distinct directions", line or fewest >= needed, f"{fewest} of {needed}"),
        Condition(
            "a softmax over several groups sees summed inputs that span more than a line",
            not (joint and groups > 1 and flat and len(spans(W @ span)[0].T) == 1),
            f"the data span {span.shape[1]} dimensions",
        ),
        Condition(
            "a group with zero gains has at least three others",
            all(live == size or live >= 3 for live in (g != 0).reshape(groups, size).sum(1)),
            f"{int(np.sum(g == 0))} zero gains",
        ),
        Condition(
            "with eps > 0, no sample lies outside the span of the others in a layer wider than the data",
            flat or not parts.lonely or size <= span.shape[1],
            "a sample is alone in its direction" if parts.lonely else "",
        ),
        Condition(
            "with eps > 0, no combination of the inputs is constant (no intercept column)",
            flat or len(spans(np.concatenate([X, np.ones((len(X), 1))], 1))[0].T) > span.shape[1],
            f"eps = {normalizer.eps}",
        ),
    ]


def _distinct(rows: Float[np.ndarray, "N D"]) -> np.ndarray:
    """Positions of rows that differ, to ten digits."""
    return np.unique(np.round(rows / np.abs(rows).max(), 10), axis=0, return_index=True)[1]


def _seen_by_group(normalizer, softmax: bool, n: Float[np.ndarray, "N h"], g: Float[np.ndarray, " h"]) -> int:
    """An upper bound on the rank of one group's Jacobian from N samples.

    The weights move a sample's n within the range of Π; what is left over must come from gains and biases.
    """
    samples, size = n.shape
    if np.any(g == 0):
        return samples * (size - softmax)
    ones = np.ones_like(n)
    outside = [ones] * normalizer.centered + [n] * (normalizer.eps == 0)
    if softmax and len(outside) == 2:
        outside = [ones * (n @ (1 / g))[:, None] - n * np.sum(1 / g)]
    elif softmax:
        return samples * (size - 1)
    if not outside:
        return samples * size
    left_over = np.concatenate([np.concatenate([psi, psi * n], 1) for psi in outside])
    return samples * (size - len(outside) - softmax) + int(np.linalg.matrix_rank(left_over))


@dataclass(frozen=True)
class _Parts:
    """Data as a direct sum: spans that no sample lies across, so that nothing ties their scales together.

    Attributes:
        columns: [r D], the functionals that give x's coefficients in a basis chosen among the samples.
        coordinates: [r r], that basis in the coordinates of the span.
        members: for each part, the positions of its coefficients.
        lonely: whether some part holds a single sample.
    """

    columns: Float[np.ndarray, "r D"]
    coordinates: Float[np.ndarray, "r r"]
    members: tuple[np.ndarray, ...]
    lonely: bool


def _independent_parts(X: Float[np.ndarray, "N D"], span: Float[np.ndarray, "D r"]) -> _Parts:
    """Splits the samples into the finest direct sum: the connected components of their linear matroid.

    A pixel that is on in one image alone makes that image a part of its own.
    """
    Y = X @ span / np.linalg.norm(X, axis=1, keepdims=True)
    order = scipy.linalg.qr(Y.T, pivoting=True, mode="r")[-1]
    chosen = order[: span.shape[1]]
    inverse = np.linalg.inv(Y[chosen])
    coefficients = np.abs(Y @ inverse) > 1e-8
    dims = len(chosen)
    samples, basis = np.nonzero(coefficients)
    links = scipy.sparse.coo_array((np.ones(len(samples)), (samples + dims, basis)), shape=(len(X) + dims,) * 2)
    labels = scipy.sparse.csgraph.connected_components(links, directed=False)[1]
    parts = tuple(np.flatnonzero(labels[:dims] == k) for k in np.unique(labels[:dims]))
    lonely = any(np.sum(labels[dims:] == labels[p[0]]) == 1 for p in parts)
    return _Parts(inverse.T @ span.T, Y[chosen], parts, lonely)


def _add_group(into, normalizer, softmax, members, U, parts: _Parts, g, X, n) -> None:
    """The null directions of one group: shifts, scale, and trades between gain and weights.

    U [h r] holds the group's (centred) weights in the coefficients of `parts`.
    """
    units, features = into.units, into.inputs
    size, dims = U.shape

    def rows(value: np.ndarray) -> np.ndarray:
        """Places [K size dims] on this group's rows of [K H D]."""
        full = np.zeros((len(value), units, features))
        full[:, members] = value @ parts.columns
        return full

    def entries(value: np.ndarray) -> np.ndarray:
        full = np.zeros((len(value), units))
        full[:, members] = value
        return full

    if normalizer.centered:
        into.add("shifts of all rows, 1 γᵀ", rows(np.broadcast_to(np.eye(dims)[:, None], (dims, size, dims))))
    if normalizer.eps == 0:
        into.add("scale of W", rows(U[None]))
        _add_scales_of_parts(into, U, parts, rows)
        _add_constant_signs(into, normalizer, U, parts, members, rows, entries, g, X, n)
    idle = np.abs(U).max(1) <= 1e-12 * max(np.abs(U).max(), 1e-300)
    if idle.any():
        into.add("gains of units whose normalized input is zero", None, None, entries(np.eye(size)[idle]))
    weights, gains = _trades(U, g[members], normalizer.centered, softmax, parts)
    into.add("trades between gain and weights", rows(weights), None, entries(gains))


def _add_scales_of_parts(into, U, parts: _Parts, rows) -> None:
    """W may be scaled on each independent part of the data alone, and turned freely where U has rank one."""
    dims = U.shape[1]
    for part in parts.members:
        left, s, _ = np.linalg.svd(U[:, part], full_matrices=False)
        if decide_rank(s, *U[:, part].shape).rank == 1:
            into.add(
                "rows along the one direction of PW on a part of the data (signs)",
                rows(left[None, :, :1] * np.eye(dims)[part][:, None, :]),
            )
        else:
            alone = np.zeros_like(U)
            alone[:, part] = U[:, part]
            into.add("scale of W on an independent part of the data", rows(alone[None]))


def _add_constant_signs(into, normalizer, U, parts, members, rows, entries, g, X, n) -> None:
    """Where U has rank one n is a vector of signs; if they never change, biases can stand in for gains and weights."""
    size = len(U)
    left, s, right = np.linalg.svd(U, full_matrices=False)
    t = X @ parts.columns.T @ right[0]
    if decide_rank(s, *U.shape).rank != 1 or not (np.all(t > 0) or np.all(t < 0)):
        return
    into.add(
        "gain against bias: the signs never change",
        None,
        entries(-n[0, members] * np.eye(size)),
        entries(np.eye(size)),
    )
    v = left[:, 0]
    moves = spans(np.stack([np.ones(size), v]) if normalizer.centered else v[None])[1].T
    per_line = np.sqrt(size) / (s[0] * np.sign(t[0]))
    into.add(
        "weights against bias: the signs never change",
        rows(-moves[:, :, None] * right[0]),
        entries(g[members] * moves * per_line),
    )


def _trades(U, g, centered: bool, softmax: bool, parts: _Parts) -> tuple[np.ndarray, np.ndarray]:
    """Kernel of the conditions (d): directions dW [K h r] in the coefficients of `parts`, and dg [K h].

    Quadratic forms must vanish on each independent part of the data; across parts there are no samples to see them.
    Unknowns: e of the units with a gain, one linear form l for each output direction h that may move unseen, and dg of
    units with zero gain under a softmax, which must follow the common shift.
    """
    size, dims = U.shape
    live, dead = np.flatnonzero(g), np.flatnonzero(g == 0)
    hidden = [np.eye(size)[k] for k in dead]
    if softmax:
        hidden.append(np.divide(1.0, g, out=np.zeros(size), where=g != 0))
    blocks = [(part[i], part[j]) for part in parts.members for i, j in [np.triu_indices(len(part))]]
    upper = tuple(np.concatenate(indices) for indices in zip(*blocks, strict=True))

    def conditions(linear: np.ndarray, quadratic: np.ndarray) -> np.ndarray:
        symmetric = (quadratic + quadratic.T)[upper]
        return np.concatenate([linear, symmetric]) if centered else symmetric

    columns = [conditions(U[i], np.outer(U[i], U[i])) for i in live]
    for h in hidden:
        for form in np.eye(dims):
            columns.append(conditions(-form * h.sum(), -np.outer(form, h @ U)))
    followers = len(dead) if softmax else 0
    columns += [np.zeros_like(columns[0])] * followers
    matrix = np.stack(columns, 1)
    if followers:  # l_softmax(x) = dg_k u_k(x) for every unit k with zero gain
        tie = np.zeros((followers * dims, matrix.shape[1]))
        start = len(live) + dims * (len(hidden) - 1)
        for row, k in enumerate(dead):
            tie[row * dims : (row + 1) * dims, start : start + dims] = np.eye(dims)
            tie[row * dims : (row + 1) * dims, start + dims + row] = -U[k]
        matrix = np.concatenate([matrix, tie])
    kernel = spans(matrix)[1].T
    e = np.zeros((len(kernel), size))
    e[:, live] = kernel[:, : len(live)]
    forms = kernel[:, len(live) : len(live) + dims * len(hidden)].reshape(len(kernel), len(hidden), dims)
    weights = -e[:, :, None] * U[None]
    if hidden:
        weights = weights + np.einsum("mh,kmd->khd", np.stack(hidden), forms)
    gains = e * g
    if followers:
        gains[:, dead] = kernel[:, -followers:]
    return weights, gains
