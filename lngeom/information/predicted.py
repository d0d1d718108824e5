r"""The null space of the Fisher matrix, predicted by the theorem of `lngeom.information.nullspace_theorem`.

Nothing here differentiates the model. The theorem's directions are written down, and the equations of its trades are
solved on the samples, so that they hold for these data: parts of the data that nothing ties together, inputs that fill
no open set, zero gains, weights of low rank, several groups that feed one softmax. If σ is a linear function of x on
the data, as where signs never change, biases trade too. That there are no other directions takes samples in general
position, and enough of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import jax
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from lngeom._core.conditions import Condition
from lngeom._core.numerics import decide_rank, tolerance
from lngeom._core.types import GLMParameters, check_parameters
from lngeom.families import Categorical
from lngeom.information.glm import NormalizedGLM, require_affine
from lngeom.information.nullspace_theorem import (
    BIASES,
    COMMON,
    IDLE,
    ROWS,
    SCALE,
    SHIFTS,
    SIGNS,
    TRADES,
    UNSEEN,
    Cell,
    cell_of,
)
from lngeom.methods import AbstractNormalizer, BatchNorm
from lngeom.methods.base import computes, entry_of
from lngeom.methods.batch import StreamedBatchNorm
from lngeom.methods.layer import AbstractGroupedNormalizer
from lngeom.methods.linearization import UNITS
from lngeom.methods.readings import square

if TYPE_CHECKING:  # models that are no transformers do without
    from lngeom.transformers.description import Stack
    from lngeom.transformers.nullspace import StackNullspace


NEARLY_LINEAR = 1e-9
"""Departure of σ from a linear function of x, relative to its size, up to which it is in doubt."""


@dataclass(frozen=True, repr=False)
class PredictedNullspace:
    """What the theory says about the null space of a Fisher matrix.

    Unpacks as ``basis, dimension``.

    Attributes:
        basis: orthonormal columns [P K] in the order of `ravel_pytree`: the directions that the theorem names.
        dimension: predicted dimension for the data at hand; more than K where there are too few samples to see the
            rest of the parameters.
        directions: pairs (description, number of directions it adds to those before it).
        conditions: the conditions under which the dimension is exact.
        doubts: decisions about these data that rounding may have made, as where columns are badly scaled. Where there
            is none, the dimension is a lower bound, whatever conditions fail; else it may be too large or too small.
    """

    basis: Float[np.ndarray, "P K"]
    dimension: int
    directions: tuple[tuple[str, int], ...]
    conditions: tuple[Condition, ...]
    doubts: tuple[str, ...] = ()

    def __iter__(self):
        return iter((self.basis, self.dimension))

    def __repr__(self) -> str:
        """Its dimension and directions, not its arrays."""
        parts = "; ".join(f"{count} {what}" for what, count in self.directions if count)
        exact = "exact" if self.exact else "uncertain" if self.doubts else "a lower bound"
        return f"PredictedNullspace(dimension {self.dimension} of {self.basis.shape[0]:,}, {exact}: {parts})"

    @property
    def exact(self) -> bool:
        """Whether every condition holds, and nothing is in doubt."""
        return all(c.holds for c in self.conditions) and not self.doubts

    def describe(self) -> str:
        """The directions and their counts, and the conditions that fail, as text."""
        lines = [f"{count:5d}  {what}" for what, count in self.directions if count]
        unseen = self.dimension - self.basis.shape[1]
        if unseen:
            lines.append(f"{unseen:5d}  not seen by so few samples")
        lines.append(f"{self.dimension:5d}  in all")
        return "\n".join([*lines, *self.reservations()])

    def reservations(self) -> list[str]:
        """The conditions that fail, and what is in doubt, a line each."""
        failing = [f"condition fails: {c.name} ({c.detail})" for c in self.conditions if not c.holds]
        doubts = [f"uncertain: {doubt}" for doubt in self.doubts]
        advice = ["inputs or weights may be badly scaled: bring the columns of X to one size"]
        return failing + doubts + (advice if doubts else [])


class Collector:
    """Gathers null directions, and keeps those that are linearly independent of what is there."""

    def __init__(self, units: int, inputs: int):
        self.units, self.inputs = units, inputs
        self.basis = np.zeros((units * (inputs + 2), 0))
        self.directions: list[tuple[str, int]] = []
        self.doubts: list[str] = []

    def rank(self, singular_values: np.ndarray, shape: tuple[int, ...], what: str, *, most: bool = False) -> int:
        """The rank of a matrix, or the most that it may be; where rounding may have decided it, a doubt is noted."""
        found = decide_rank(singular_values, *shape)
        rank = found.most if most else found.rank
        if not found.certain:
            self.doubts.append(f"{what} have rank {found.fewest} to {found.most}, taken as {rank}")
        return rank

    def spans(
        self, matrix: Float[np.ndarray, "N D"], what: str, *, most: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Orthonormal bases of the row space [D r] and of the kernel [D D−r] of a matrix, as `rank` decides."""
        _, s, right = np.linalg.svd(matrix, full_matrices=len(matrix) < matrix.shape[1])
        rank = self.rank(s, matrix.shape, what, most=most)
        return right[:rank].T, right[rank:].T

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
        inputs: X, one sample a row. Of a stack the tokens; without them the data are taken to be rich.
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
    doubts = tuple(dict.fromkeys(into.doubts))
    return PredictedNullspace(into.basis, dimension, tuple(into.directions), (*conditions, *more), doubts)


def _everything(into: Collector) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    units, features = into.units, into.inputs
    eye = np.eye(units * (features + 2))
    weights, bias, gain = np.split(eye, [units * features, units * (features + 1)], axis=1)
    return weights.reshape(-1, units, features), bias, gain


def _unitwise(into: Collector, normalizer: AbstractNormalizer, joint: bool, W, g, X, n) -> tuple[int, list[Condition]]:
    """Methods of one unit at a time, exact for any N; returns the most directions seen, and conditions."""
    units, features = W.shape
    X, scale, slope, offset = _units(normalizer, W, X)
    extended, kernel = into.spans(np.concatenate([X, np.ones((len(X), 1))], 1), "the inputs with a constant column")
    eye = np.eye(units)

    def compensated(unit: int, dw: np.ndarray, function_bias: np.ndarray):
        """Directions which move z_unit by g(X̃ dw + function_bias)/σ: the change of σ is undone by the gain."""
        db = g[unit] * function_bias / scale[unit]
        dg = g[unit] * (dw @ slope[unit]) / scale[unit]
        at = eye[unit]
        return dw[:, None, :] * at[None, :, None], db[:, None] * at[None], dg[:, None] * at[None]

    for i in range(units):
        if g[i] == 0:
            every = np.eye(features)
            into.add(IDLE, every[:, None, :] * eye[i][None, :, None])
            if np.ptp(n[:, i]) <= 1e-12 * np.abs(n[:, i]).max(initial=1e-300):
                into.add(
                    "gain of a constant unit against its bias",
                    None,
                    -n[:1, i, None] * eye[i][None],
                    eye[i][None],
                )
            continue
        into.add(UNSEEN, *compensated(i, kernel[:-1].T, kernel[-1]))
        radial = g[i] * (1 - W[i] @ slope[i] / scale[i])
        into.add(
            ROWS,
            W[i][None, None] * eye[i][None, :, None],
            -g[i] * offset[i] / scale[i] * eye[i][None],
            -radial * eye[i][None],
        )
    if joint:
        into.add(BIASES, None, np.ones((1, units)))

        def adding(unit: int, forms: np.ndarray, constants: np.ndarray):
            """Directions that add the functions to the output of a unit with a gain."""
            return compensated(unit, forms * scale[unit] / g[unit], constants * scale[unit] / g[unit])

        def normalized(unit: int):
            """n of a unit as a function of x."""
            return W[unit][None] / scale[unit], np.array([-offset[unit] / scale[unit]])

        _add_shared_functions(into, adding, (extended[:-1].T, extended[-1]), g, n, normalized)
    return len(X) * (units - joint), []


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


def _add_shared_functions(into: Collector, adding, functions, g, n, normalized) -> None:
    """Softmax: functions of x that all units can add to their logits.

    A unit with zero gain adds α + β n alone, so that two of them share constants only, unless one n is α + β times the
    other.

    Args:
        into: what collects the directions.
        adding: the directions by which one unit with a gain adds functions.
        functions: pairs of forms [K D] and constants [K], of all that a unit with a gain can add.
        g: gains.
        n: normalized values.
        normalized: the same pair of the n of a unit.
    """
    units, zero = len(g), np.flatnonzero(g == 0)
    forms, constants = functions
    gains, biases = np.zeros((0, len(forms))), np.zeros((0, len(forms)))
    if len(zero):
        spread = n[:, zero] - n[:, zero].mean(0)
        products, lengths = spread.T @ spread[:, 0], np.linalg.norm(spread, axis=0)
        constant = lengths.min() <= 1e-12 * max(np.abs(n).max(), 1e-300)
        if constant or np.any(np.abs(products) < (1 - 1e-10) * lengths * lengths[0]):
            return
        forms, constants = normalized(zero[0])
        gains = (products[0] / products)[:, None]
        biases = n[:, zero[0]].mean() - gains * n[:, zero].mean(0)[:, None]
    weights = np.zeros((len(forms), units, into.inputs))
    bias, gain = np.zeros((2, len(forms), units))
    bias[:, zero], gain[:, zero] = biases.T, gains.T
    for i in np.flatnonzero(g):
        dw, db, dg = adding(i, forms, constants)
        weights, bias, gain = weights + dw, bias + db, gain + dg
    into.add(COMMON, weights, bias, gain)


@dataclass(frozen=True)
class _Group:
    """One group of units, in the coefficients of `_Parts`.

    Attributes:
        members: positions of its units.
        gain: their g.
        weights: U, the (centred) weights on the span of the data.
        outputs: n.
        scale: σ.
    """

    members: np.ndarray
    gain: Float[np.ndarray, " h"]
    weights: Float[np.ndarray, "h r"]
    outputs: Float[np.ndarray, "N h"]
    scale: Float[np.ndarray, " N"]

    @property
    def live(self) -> np.ndarray:
        """Positions in the group of units with a gain."""
        return np.flatnonzero(self.gain)


def _grouped(
    into: Collector, normalizer: AbstractGroupedNormalizer, joint: bool, W, g, X, n
) -> tuple[int, list[Condition]]:
    """Layer, RMS and group norm; returns the most directions that the data can see, and conditions."""
    units, features = W.shape
    cell = cell_of("centred groups" if normalizer.centered else "groups", softmax=joint, eps=normalizer.eps)
    size = units // normalizer.group_count
    span, kernel = into.spans(X, "the inputs")
    parts = _independent_parts(X, span)
    groups = []
    for members in np.arange(units).reshape(-1, size):
        U = W[members] @ span
        U = U - U.mean(0) if normalizer.centered else U
        scale = np.sqrt(np.mean((X @ span @ U.T) ** 2, 1) + normalizer.eps)
        groups.append(_Group(members, g[members], U @ parts.coordinates.T, n[:, members], scale))
    alone = joint and len(groups) == 1
    if len(kernel.T):
        moved = np.eye(units)[:, None, :, None] * kernel.T[None, :, None, :]
        into.add(UNSEEN, moved.reshape(-1, units, features))
    if joint:
        into.add(BIASES, None, np.ones((1, units)))
    for group in groups:
        _add_group(into, group, cell, parts)
    for chosen in [groups] if joint else [[group] for group in groups]:
        _add_trades(into, chosen, cell, parts, normalizer.eps)
    return _seen(groups, cell, X, alone), [
        _enough_samples(groups, parts, X, cell),
        Condition(
            "under a softmax with eps > 0, the units' g w·x are not all equal",
            not (joint and cell.eps and any(_all_alike(group, parts) for group in groups)),
            "all weights of a group, centred and times g, are the same",
        ),
    ]


def _seen(groups: list[_Group], cell: Cell, X: Float[np.ndarray, "N D"], alone: bool) -> int:
    """An upper bound of the rank of the Jacobian, which few samples make small."""
    units = sum(len(group.members) for group in groups)
    if len(groups) > 1:
        seen = sum(_seen_by_group(group, cell, False, _distinct(X / group.scale[:, None])) for group in groups)
        return min(seen, len(X) * (units - cell.softmax))
    distinct = _distinct(X / groups[0].scale[:, None])
    return min(_seen_by_group(groups[0], cell, alone, distinct), len(distinct) * (units - cell.softmax))


def _enough_samples(groups: list[_Group], parts: "_Parts", X: Float[np.ndarray, "N D"], cell: Cell) -> Condition:
    """Whether samples in general position determine the weights of every part: twice as many equations as unknowns.

    A part of one direction needs none, where that has one n or, with ε = 0, one up to its sign.
    """
    alone = cell.softmax and len(groups) == 1
    found = []
    for group in groups:
        size, live = len(group.members), len(group.live)
        for part, samples in zip(parts.members, parts.samples, strict=True):
            there = len(_distinct(X[samples] / group.scale[samples, None]))
            if live and (len(part) > 1 or (cell.eps and there > 1)):
                equations = max(live - 2 - alone, 1)
                found.append((there, max(4 * size, -(-2 * size * (len(part) + 2) // equations))))
    there, needed = min(found, key=lambda pair: pair[0] / pair[1], default=(0, 0))
    return Condition("enough samples with distinct directions", there >= needed, f"{there} of {needed}")


def _all_alike(group: _Group, parts: "_Parts") -> bool:
    """Whether on some part of the data all units have the same g u, which is not 0."""
    scaled = group.gain[:, None] * group.weights
    return len(group.live) == len(group.members) and any(
        np.ptp(scaled[:, part], axis=0).max() <= 1e-8 * np.abs(scaled[:, part]).max() for part in parts.members
    )


def _distinct(rows: Float[np.ndarray, "N D"]) -> np.ndarray:
    """Positions of rows that differ, to ten digits."""
    return np.unique(np.round(rows / np.abs(rows).max(), 10), axis=0, return_index=True)[1]


def _seen_by_group(group: _Group, cell: Cell, softmax: bool, distinct: np.ndarray) -> int:
    """An upper bound on the rank of one group's Jacobian from N samples.

    The weights move a sample's n within the range of Π; what is left over must come from gains and biases.
    """
    n, g = group.outputs[distinct], group.gain
    samples, size = n.shape
    if np.any(g == 0):
        return samples * (size - softmax)
    ones = np.ones_like(n)
    outside = [ones] * cell.centred + [n] * (not cell.eps)
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
        data: [N r], the samples as coefficients in a basis chosen among them.
        columns: [r D], the functionals that give these.
        coordinates: [r r], that basis in the coordinates of the span.
        members: for each part, the positions of its coefficients.
        samples: for each part, the positions of its samples.
    """

    data: Float[np.ndarray, "N r"]
    columns: Float[np.ndarray, "r D"]
    coordinates: Float[np.ndarray, "r r"]
    members: tuple[np.ndarray, ...]
    samples: tuple[np.ndarray, ...]


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
    each = np.unique(labels[:dims])
    columns = inverse.T @ span.T
    return _Parts(
        X @ columns.T,
        columns,
        Y[chosen],
        tuple(np.flatnonzero(labels[:dims] == k) for k in each),
        tuple(np.flatnonzero(labels[dims:] == k) for k in each),
    )


def _add_group(into: Collector, group: _Group, cell: Cell, parts: _Parts) -> None:
    """What a group has besides trades: shifts and scales, or all weights where every gain is zero."""
    dims, size = len(parts.columns), len(group.members)

    def rows(value: np.ndarray) -> np.ndarray:
        """Places [K h r] on this group's rows of [K H D]."""
        full = np.zeros((len(value), into.units, into.inputs))
        full[:, group.members] = value @ parts.columns
        return full

    if not len(group.live):
        every = np.eye(size * dims).reshape(-1, size, dims)
        into.add(IDLE, rows(every))
        return
    if cell.centred:
        into.add(SHIFTS, rows(np.broadcast_to(np.eye(dims)[:, None], (dims, size, dims))))
    if not cell.scaled:
        return
    into.add(SCALE, rows(group.weights[None]))
    for part in parts.members:
        left, s, _ = np.linalg.svd(group.weights[:, part], full_matrices=False)
        if into.rank(s, (size, len(part)), "the weights on the data") == 1:
            into.add(
                SIGNS,
                rows(left[None, :, :1] * np.eye(dims)[part][:, None, :]),
            )
        else:
            into.add("scale of W on an independent part of the data", rows(_on(part, group.weights)[None]))


def _on(part: np.ndarray, weights: Float[np.ndarray, "h r"]) -> Float[np.ndarray, "h r"]:
    """Weights that see one part of the data alone."""
    alone = np.zeros_like(weights)
    alone[:, part] = weights[:, part]
    return alone


class _Trades:
    """The equations of 2. of the theorem, one column an unknown, and the direction that it stands for.

    An equation is that of one sample. Those of u are divided by σ, those of squares by σ².
    """

    def __init__(self, units: int, dims: int, rows: int):
        self.units, self.dims, self.rows = units, dims, rows
        self.columns: list[np.ndarray] = []
        self.weights: list[np.ndarray] = []
        self.bias: list[np.ndarray] = []
        self.gain: list[np.ndarray] = []

    def unknown(self, equations, weights=None, bias=None, gain=None) -> None:
        """Adds an unknown.

        Args:
            equations: pairs (first row, values) of its entries.
            weights: pairs (units, their rows) of dW.
            bias: pairs (units, values) of db.
            gain: pairs (units, values) of dg.
        """
        column, dW = np.zeros(self.rows), np.zeros((self.units, self.dims))
        vectors = np.zeros((2, self.units))
        for start, values in equations:
            column[start : start + len(values)] += values
        if weights is not None:
            dW[weights[0]] = weights[1]
        for vector, pair in zip(vectors, (bias, gain), strict=True):
            if pair is not None:
                vector[pair[0]] = pair[1]
        self.columns.append(column)
        self.weights.append(dW)
        self.bias.append(vectors[0])
        self.gain.append(vectors[1])

    def solve(self, into: Collector) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The directions that satisfy all equations, and not those that only rounding may let satisfy them."""
        columns = np.stack(self.columns, 1)
        kernel = into.spans(columns, "the equations of trades between gain and weights", most=True)[1].T
        return tuple(np.tensordot(kernel, np.stack(v), 1) for v in (self.weights, self.bias, self.gain))  # pyright: ignore


def _add_trades(into: Collector, groups: list[_Group], cell: Cell, parts: _Parts, eps: float) -> None:
    """Solves 2. of the theorem on the samples: for one group, or for all that feed one softmax."""
    samples, dims = parts.data.shape
    dead = [np.flatnonzero(group.gain == 0) for group in groups]
    # Rows: of each group Σ e u, Σ e u² and dg_k u_k = t for each zero gain; then t/σ is the same in all groups.
    starts = np.cumsum([0, *(samples * (2 + len(d)) for d in dead)])
    system = _Trades(into.units, dims, int(starts[-1]) + samples * (len(groups) - 1))
    for k, (group, zero, start) in enumerate(zip(groups, dead, starts, strict=False)):
        _add_unknowns(into, system, group, cell, parts, eps, zero, int(start))
        others = range(1, len(groups)) if k == 0 else [k]
        coupling = [(int(starts[-1]) + samples * (other - 1), -1.0 if k == 0 else 1.0) for other in others]
        if cell.softmax:
            _add_common(system, group, cell, parts, zero, int(start), coupling)
        if k:
            ones = np.ones(samples)
            system.unknown([(at, sign * ones) for at, sign in coupling], bias=(group.members, 1.0))
    weights, bias, gain = system.solve(into)
    into.add(TRADES, weights @ parts.columns, bias, gain)


def _add_unknowns(
    into: Collector, system: _Trades, group: _Group, cell: Cell, parts: _Parts, eps: float, zero, start: int
) -> None:
    """The unknowns e, c and l of a group, and β = db/g where σ is linear in x on the data."""
    samples, dims = parts.data.shape
    n, members, U = group.outputs, group.members, group.weights
    seen = np.abs(n).max(1) > 1e-12  # with ε > 0 a sample with u = 0 says nothing of Σ e u²
    live = bool(len(group.live))

    def entries(value: np.ndarray, unit: int) -> list[tuple[int, np.ndarray]]:
        """Of a change `value` of n_unit: in the sum over units, and in that times n."""
        first = [(start, value)] if cell.centred else []
        return [*first, (start + samples, value * n[:, unit] * seen)] if live else []

    line = _linear(into, parts.data, group.scale)
    for i in group.live:
        at, g = members[i], group.gain[i]
        system.unknown(entries(n[:, i], i), (at, -U[i]), gain=(at, g))
        if line is not None:
            system.unknown(entries(np.ones(samples), i), (at, -line), bias=(at, g))
    for place, k in enumerate(zero):
        tie = start + samples * (2 + place)
        system.unknown([(tie, n[:, k])], gain=(members[k], 1.0))
        system.unknown([(tie, np.ones(samples))], bias=(members[k], 1.0))
        for form, values in zip(np.eye(dims), parts.data.T if live else [], strict=False):
            system.unknown(entries(-values / group.scale, k), (members[k], form))
    for part, chosen in zip(parts.members, parts.samples, strict=True) if cell.eps and live else ():
        values = np.zeros(samples)
        values[chosen] = len(members) * eps / group.scale[chosen] ** 2
        system.unknown([(start + samples, values * seen)], (members, _on(part, U)))


def _add_common(system: _Trades, group: _Group, cell: Cell, parts: _Parts, zero, start: int, coupling) -> None:
    """The unknown t of a group: under a softmax all outputs may move by t/σ."""
    samples, n, live = len(parts.data), group.outputs, group.live
    share = 1 / group.gain[live]
    for form, values in zip(np.eye(parts.data.shape[1]), (parts.data / group.scale[:, None]).T, strict=True):
        equations = [(start + samples * (2 + place), -values) for place in range(len(zero))]
        equations += [(at, sign * values) for at, sign in coupling]
        if len(live):
            equations += [(start, -share.sum() * values)] if cell.centred else []
            equations += [(start + samples, -(n[:, live] @ share) * values)]
        system.unknown(equations, (group.members[live], share[:, None] * form))


def _linear(
    into: Collector, data: Float[np.ndarray, "N r"], scale: Float[np.ndarray, " N"]
) -> Float[np.ndarray, " r"] | None:
    """The linear form that is σ on the data, if there is one; a doubt is noted where σ is nearly linear."""
    directions = data / scale[:, None]
    form = np.linalg.lstsq(directions, np.ones_like(scale))[0]
    off = np.abs(directions @ form - 1).max()
    if tolerance(data.dtype) < off < NEARLY_LINEAR:
        into.doubts.append(f"σ is linear in x on the data up to {off:.0e} of its size, and taken not to be")
    return form if off <= tolerance(data.dtype) else None
