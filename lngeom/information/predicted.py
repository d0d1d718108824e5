r"""The null space of the Fisher matrix, predicted from the normalizer, the weights and the span of the data.

Nothing here differentiates the model.

*Unit by unit* (identity, batch, weight norm) z_i of the whole data set ranges over span[X̃, 1]. Its null directions are
(a) combinations of the columns of [X̃, 1] that vanish, (b) the radial one, w_i against g_i.

*By groups of units* (layer, RMS, group norm), write θ̇ = (dW, db, dg) and, for a unit with g_i ≠ 0, e_i = dg_i / g_i.
With U the (centred) weights on the span of the data and u = U x: (a) rows in the kernel of the data; (b) shifts 1γᵀ
(centred only); (c) scale, dW = W (ε = 0 only), on each part of the data by itself where the samples fall into linearly
independent parts; (d) trades between gain and weights, dW = −diag(e) U, dg = e ⊙ g where Σ e_i u_i = 0 (centred only)
and Σ e_i u_i² = 0 for every x. Outputs that may move unseen (a zero gain, the shift of a softmax) add terms l(x) h to
both conditions, l linear, so (d) is the kernel of one matrix of the coefficients of linear and quadratic forms. If U
has rank one on a part and ε = 0 the normalized values are signs there, and (c) grows to every v γᵀ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import jax
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from lngeom._core.conditions import Condition
from lngeom._core.numerics import decide_rank
from lngeom._core.types import GLMParameters, check_parameters
from lngeom.families import Categorical
from lngeom.information.glm import NormalizedGLM, require_affine
from lngeom.methods import AbstractNormalizer, BatchNorm
from lngeom.methods.base import computes, entry_of
from lngeom.methods.batch import StreamedBatchNorm
from lngeom.methods.layer import AbstractGroupedNormalizer
from lngeom.methods.linearization import UNITS
from lngeom.methods.readings import square

if TYPE_CHECKING:  # models that are no transformers do without
    from lngeom.transformers.description import Stack
    from lngeom.transformers.nullspace import StackNullspace


@dataclass(frozen=True, repr=False)
class PredictedNullspace:
    """What the theory says about the null space of a Fisher matrix.

    Unpacks as ``basis, dimension``.

    Attributes:
        basis: orthonormal columns [P K] in the order of `ravel_pytree`: the directions which are null for *every* data
            set with this span.
        dimension: predicted dimension for the data at hand; more than K where there are too few samples to see the
            rest of the parameters.
        directions: pairs (description, number of directions it adds to those before it).
        conditions: the conditions under which the dimension is exact.
    """

    basis: Float[np.ndarray, "P K"]
    dimension: int
    directions: tuple[tuple[str, int], ...]
    conditions: tuple[Condition, ...]

    def __iter__(self):
        return iter((self.basis, self.dimension))

    def __repr__(self) -> str:
        """Its dimension and directions, not its arrays."""
        parts = "; ".join(f"{count} {what}" for what, count in self.directions if count)
        exact = "exact" if self.exact else "a lower bound"
        return f"PredictedNullspace(dimension {self.dimension} of {self.basis.shape[0]:,}, {exact}: {parts})"

    @property
    def exact(self) -> bool:
        """Whether every condition holds."""
        return all(c.holds for c in self.conditions)

    def describe(self) -> str:
        """The directions and their counts, and the conditions that fail, as text."""
        lines = [f"{count:5d}  {what}" for what, count in self.directions if count]
        unseen = self.dimension - self.basis.shape[1]
        if unseen:
            lines.append(f"{unseen:5d}  not seen by so few samples")
        lines.append(f"{self.dimension:5d}  in all")
        lines += [f"condition fails: {c.name} ({c.detail})" for c in self.conditions if not c.holds]
        return "\n".join(lines)


class Collector:
    """Gathers null directions, and keeps those that are linearly independent of what is there."""

    def __init__(self, units: int, inputs: int):
        self.units, self.inputs = units, inputs
        self.basis = np.zeros((units * (inputs + 2), 0))
        self.directions: list[tuple[str, int]] = []

    def add(self, what: str, weights=None, bias=None, gain=None) -> None:
        """Adds K directions: arrays [K H D], [K H], [K H], zero where not given."""
        given = [v for v in (weights, bias, gain) if v is not None]
        count = len(given[0])
        shapes = ((self.units, self.inputs), (self.units,), (self.units,))
        parts = [
            np.zeros((count, *shape)) if v is None else np.asarray(v, float)
            for v, shape in zip((weights, bias, gain), shapes, strict=True)
        ]
        new = np.concatenate([p.reshape(count, int(np.prod(p.shape[1:]))) for p in parts], 1).T
        norms = np.linalg.norm(new, axis=0)
        new = new[:, norms > 0] / norms[norms > 0]
        for _ in range(2):
            new -= self.basis @ (self.basis.T @ new)
        left, s, _ = np.linalg.svd(new, full_matrices=False)
        fresh = left[:, s > 1e-8]
        self.basis = np.concatenate([self.basis, fresh], 1)
        self.directions.append((what, fresh.shape[1]))


def spans(matrix: Float[np.ndarray, "N D"]) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal bases of the row space [D r] and of the kernel [D D−r] of a matrix."""
    _, s, right = np.linalg.svd(matrix, full_matrices=len(matrix) < matrix.shape[1])
    rank = decide_rank(s, *matrix.shape).rank
    return right[:rank].T, right[rank:].T


@overload
def predicted_nullspace(
    model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]
) -> PredictedNullspace: ...


@overload
def predicted_nullspace(
    model: "Stack",
    params: Mapping[str, Any],
    inputs: Int[Array, "N T"] | None = None,
    *,
    types: Int[Array, "N T"] | None = None,
) -> "StackNullspace": ...


def predicted_nullspace(
    model: "NormalizedGLM | Stack",
    params: Any,
    inputs: Array | None = None,
    *,
    types: Array | None = None,
) -> "PredictedNullspace | StackNullspace":
    """Predicts the null space of the exact Fisher matrix from theory, without computing the matrix.

    For a stack the null space is that under a softmax of the logits at every position. Its dimension is the rank of
    tangent vectors of every family of symmetries. Where only shapes are given, or a basis would not fit, it is the
    closed formula for generic weights.

    Args:
        model: a GLM with identity, batch (training or evaluation), weight, layer, RMS or group norm, and a family of
            independent responses or `Categorical`; or the description of a transformer, `lngeom.transformers.Stack`.
        params: where the Fisher matrix is taken; of a stack the arrays by name, or `jax.ShapeDtypeStruct`s.
        inputs: X, one sample a row; only its span matters, and the number of samples when there are few. Of a stack the
            tokens; without them the data are taken to be rich.
        types: rows of a stack's table of types; None: 0.

    Returns:
        Basis, dimension, what each direction is, and the conditions checked.

    Raises:
        ValueError: if shapes do not agree, values are not finite, a σ or a stack's gain is zero, or there is no theory
            here for the normalizer, the family or a part of the stack.

    Example:
        >>> import jax, lngeom as lg
        >>> model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
        >>> X = jax.random.normal(jax.random.key(0), (100, 6))
        >>> params = model.init(jax.random.key(1), inputs=6, outputs=8)
        >>> print(lg.predicted_nullspace(model, params, X).describe())
            6  shifts of all rows, 1 γᵀ
            1  scale of W
            7  in all
    """
    if not isinstance(model, NormalizedGLM):
        from lngeom.transformers.description import Stack
        from lngeom.transformers.nullspace import predict

        if isinstance(model, Stack):
            return predict(model, params, inputs, types)
    if inputs is None:
        raise ValueError("the null space of a GLM depends on the inputs; give X, one sample a row")
    return _predict_glm(model, params, inputs)


def _predict_glm(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> PredictedNullspace:
    """The prediction for a normalized GLM."""
    require_affine(model, "the predicted null space")
    check_parameters(params, inputs)
    n = np.asarray(model.normalized(params, inputs), float)
    z = model.natural_parameters(params, inputs)
    W, g, X = (np.asarray(v, float) for v in (params.weights, params.gain, inputs))
    units, features = W.shape
    into = Collector(units, features)
    weight = np.asarray(model.family.variance(z))
    conditions = [
        Condition(
            "the responses have positive variance", bool(weight.min() > 0), f"smallest variance {weight.min():.3g}"
        )
    ]
    joint = model.family.joint
    if joint and not isinstance(model.family, Categorical):
        raise ValueError(
            "null spaces are predicted for independent responses and for Categorical; got "
            f"{type(model.family).__name__}: use lg.fisher(...).nullspace(), which measures"
        )
    rows = into.units * (into.inputs + 2)
    if joint and units == 1:
        into.add("everything: a softmax of one class is constant", *_everything(into))
        return PredictedNullspace(into.basis, rows, tuple(into.directions), tuple(conditions))
    if computes(model.normalizer, AbstractGroupedNormalizer):
        seen, more = _grouped(into, model.normalizer, joint, W, g, X, n)
    else:
        seen, more = _unitwise(into, model.normalizer, joint, W, g, X, n)
    dimension = max(into.basis.shape[1], rows - seen)
    return PredictedNullspace(into.basis, dimension, tuple(into.directions), (*conditions, *more))


def _everything(into: Collector) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    units, features = into.units, into.inputs
    eye = np.eye(units * (features + 2))
    weights, bias, gain = np.split(eye, [units * features, units * (features + 1)], axis=1)
    return weights.reshape(-1, units, features), bias, gain


def _unitwise(into: Collector, normalizer: AbstractNormalizer, joint: bool, W, g, X, n) -> tuple[int, list[Condition]]:
    """Methods of one unit at a time, exact for any N; returns the most directions seen, and conditions."""
    units, features = W.shape
    X, scale, slope, offset = _units(normalizer, W, X)
    extended, kernel = spans(np.concatenate([X, np.ones((len(X), 1))], 1))
    eye = np.eye(units)

    def compensated(unit: int, dw: np.ndarray, function_bias: np.ndarray):
        """Directions which move z_unit by g(X̃ dw + function_bias)/σ: the change of σ is undone by the gain."""
        db = g[unit] * function_bias / scale[unit]
        dg = g[unit] * (dw @ slope[unit]) / scale[unit]
        at = eye[unit]
        return dw[:, None, :] * at[None, :, None], db[:, None] * at[None], dg[:, None] * at[None]

    zero = np.flatnonzero(g == 0)
    for i in range(units):
        if g[i] == 0:
            every = np.eye(features)
            into.add("weights of units with zero gain", every[:, None, :] * eye[i][None, :, None])
            if np.ptp(n[:, i]) <= 1e-12 * np.abs(n[:, i]).max(initial=1e-300):
                into.add(
                    "gain of a constant unit against its bias",
                    None,
                    -n[:1, i, None] * eye[i][None],
                    eye[i][None],
                )
            continue
        into.add("weights that the data cannot see", *compensated(i, kernel[:-1].T, kernel[-1]))
        radial = g[i] * (1 - W[i] @ slope[i] / scale[i])
        into.add(
            "each row's scale (against its gain)",
            W[i][None, None] * eye[i][None, :, None],
            -g[i] * offset[i] / scale[i] * eye[i][None],
            -radial * eye[i][None],
        )
    if joint:
        _shared_functions(into, compensated, extended, g, zero, W, scale, offset)
    seen = len(X) * (units - joint)
    return seen, [Condition("at most one gain is zero", not (joint and len(zero) > 1), f"{len(zero)} zero gains")]


def _units(normalizer: AbstractNormalizer, W: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, ...]:
    """X̃, scales σ [H], slopes ∂σ/∂w [H D] and offsets c [H], in float64: those of its page in `lngeom.methods`.

    Raises:
        ValueError: if the method is not unit by unit, so that there is no theory of its null space here.
    """
    if isinstance(normalizer, StreamedBatchNorm):
        normalizer = BatchNorm(normalizer.eps)
    formula = entry_of(normalizer, UNITS)
    if formula is None:
        raise ValueError(
            f"no theory of the null space for {type(normalizer).__name__}; measure it with "
            f"lngeom.fisher(...).nullspace()"
        )
    plain = jax.tree.map(lambda leaf: np.asarray(leaf, float), normalizer)
    scale = np.broadcast_to(np.sqrt(square(plain, W, X)), len(W))
    inputs, slope, offset = formula(plain, W, X, scale, lambda a, b: a.T @ b)
    return np.asarray(inputs), scale, np.broadcast_to(slope, W.shape), np.broadcast_to(offset, len(W))


def _shared_functions(into, compensated, extended, g, zero, W, scale, offset) -> None:
    """Softmax: a function of x added to every logit alike changes nothing."""
    units = len(g)
    into.add("softmax shift of all biases", None, np.ones((1, units)))
    if len(zero) > 1:
        return
    if len(zero) == 1:
        k = zero[0]
        shared, shared_bias = W[k][None] / scale[k], np.array([-offset[k] / scale[k]])
    else:
        shared, shared_bias = extended[:-1].T, extended[-1]
    total = [
        np.zeros((len(shared), units, W.shape[1])),
        np.zeros((len(shared), units)),
        np.zeros((len(shared), units)),
    ]
    for i in range(units):
        if i in zero:
            total[2][:, i] += 1.0
            continue
        move = compensated(i, shared * scale[i] / g[i], shared_bias * scale[i] / g[i])
        total = [t + m for t, m in zip(total, move, strict=True)]
    into.add("softmax shift of all logits by one function of x", *total)


def _grouped(
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
    seen, fewest, coefficients = 0, len(X), []
    for k in range(groups):
        members = np.arange(k * size, (k + 1) * size)
        U = W[members] @ span
        if normalizer.centered:
            U = U - U.mean(0)
        coefficients.append(U @ parts.coordinates.T)
        _add_group(into, normalizer, joint and groups == 1, members, coefficients[-1], parts, g, X, n)
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
            "under a softmax over several groups, their variances are not proportional, nor all their signs alike",
            not (joint and groups > 1 and _move_alike(coefficients, parts, X)),
            "all groups can move all logits by one function of x",
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


def _move_alike(U: list[np.ndarray], parts: "_Parts", X: Float[np.ndarray, "N D"]) -> bool:
    """Whether all groups may move their logits by one function of x, on some part of the data.

    A group moves its logits alike by l(x)/σ(x) only, l linear. Two of these are equal where the quadratic forms σ² are
    proportional, since a form of rank two or more has no linear factor. Of rank one σ is |m(x)|, and the function a
    sign: two are equal where the signs of all samples are.
    """
    t = X @ parts.columns.T
    for part in parts.members:
        forms = [u[:, part].T @ u[:, part] for u in U]
        norms = [np.linalg.norm(form) for form in forms]
        if min(norms) <= 1e-12 * max(norms):
            return True
        if all(
            np.allclose(form / norm, forms[0] / norms[0], atol=1e-8) for form, norm in zip(forms, norms, strict=True)
        ):
            return True
        directions = [np.linalg.svd(u[:, part]) for u in U]
        if all(decide_rank(s, *u[:, part].shape).rank == 1 for u, (_, s, _) in zip(U, directions, strict=True)):
            members = np.abs(t[:, part]).max(1) > 0
            signs = [np.sign(t[members][:, part] @ right[0]) for _, _, right in directions]
            if all(np.array_equal(sign * sign[0], signs[0] * signs[0][0]) for sign in signs):
                return True
    return False


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
