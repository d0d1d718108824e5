r"""The null space of the Fisher matrix, predicted from the normalizer, the weights and the span of the data.

Nothing here differentiates the model. *Unit by unit* (identity, batch, weight norm) z_i of the whole data set ranges
over span[X̃, 1] and its null directions are (a) combinations of the columns of [X̃, 1] that vanish, (b) the radial one,
w_i against g_i. Methods which act within groups of units are in `_grouped_nullspace`.
"""

import numpy as np
from jaxtyping import Array, Float

from lngeom._types import GLMParameters, check_parameters
from lngeom.families import Categorical
from lngeom.glm import NormalizedGLM
from lngeom.information._directions import Collector, Condition, PredictedNullspace, spans
from lngeom.information._grouped_nullspace import grouped
from lngeom.normalizers import (
    AbstractGroupedNormalizer,
    AbstractNormalizer,
    BatchNorm,
    BatchNormEvaluation,
    Identity,
    WeightNorm,
)


def predicted_nullspace(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> PredictedNullspace:
    """Predicts the null space of the exact Fisher matrix from theory, without computing the matrix.

    Args:
        model: a GLM with identity, batch (training or evaluation), weight, layer, RMS or group norm, and a family of
            independent responses or `Categorical`.
        params: where the Fisher matrix is taken.
        inputs: X, one sample a row. Only its span matters, and the number of samples when there are few.

    Returns:
        Basis, dimension, what each direction is, and the conditions checked.

    Raises:
        ValueError: if shapes do not agree, values are not finite, a σ is zero, or the normalizer or
            family has no theory here.

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
    if isinstance(model.normalizer, AbstractGroupedNormalizer):
        seen, more = grouped(into, model.normalizer, joint, W, g, X, n)
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
    """Identity, batch and weight norm, exact for any N; returns the most directions seen, and conditions."""
    units, features = W.shape
    offset, slope = np.zeros(units), np.zeros_like(W)  # X̃ w = σ n + offset; slope is ∂σ/∂w
    if isinstance(normalizer, BatchNorm):
        X = X - X.mean(0)
        scale = np.sqrt(np.mean((X @ W.T) ** 2, 0) + normalizer.eps)
        slope = (X @ W.T / scale).T @ X / len(X)
    elif isinstance(normalizer, WeightNorm):
        scale = np.sqrt(np.sum(W**2, 1) + normalizer.eps)
        slope = W / scale[:, None]
    elif isinstance(normalizer, BatchNormEvaluation):
        scale = np.sqrt(np.asarray(normalizer.variance, float) + normalizer.eps)
        offset = np.asarray(normalizer.mean, float)
    elif isinstance(normalizer, Identity):
        scale = np.ones(units)
    else:
        raise ValueError(
            f"no theory of the null space for {type(normalizer).__name__}; measure it with "
            f"lngeom.fisher(...).nullspace()"
        )
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
