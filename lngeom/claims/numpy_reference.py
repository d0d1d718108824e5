"""Methods, recurrent cells and the Fisher matrix in NumPy: a second route, which shares no formula with the first.

Methods are read from their index formulas; the rest is written straight from the paper's equations. It works in the
machine's long double (80 bits on x86-64), so that its rounding errors are not the library's either.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from lngeom._core.types import GLMParameters
from lngeom.claims.distributions import STEP, distribution
from lngeom.families import AbstractFamily
from lngeom.methods import METHODS, Identity, readings


def _wide(values: ArrayLike) -> np.ndarray:
    """In long double; complex numbers, for complex steps, in two of them."""
    values = np.asarray(values)
    return values.astype(np.clongdouble if np.iscomplexobj(values) else np.longdouble)


def normalized(method: str, weights: ArrayLike, inputs: ArrayLike) -> np.ndarray:
    """Outputs of a method of the extended table, by its name there, or of "identity", before gain and bias.

    Stored statistics are those of these weights and inputs.

    Args:
        method: name.
        weights: W, [H D].
        inputs: X, [N D], or [N T D] for the methods that run over positions.

    Returns:
        The outputs, [N H], [N T H], or logits [N T T].

    Raises:
        ValueError: if there is no such method.
    """
    W, x = _wide(weights), _wide(inputs)
    if method not in ("identity", *METHODS):
        raise ValueError(f"no reference for {method!r}")
    settings = Identity() if method == "identity" else METHODS[method].make(W.real.astype(float), x.real.astype(float))
    return readings.normalized(settings, W, x)


def natural_parameters(method: str, params: GLMParameters, inputs: ArrayLike) -> np.ndarray:
    """z = g n + b for a method by its name in the extended table, or for "identity"."""
    return _wide(params.gain) * normalized(method, params.weights, inputs) + _wide(params.bias)


def jacobian(method: str, params: GLMParameters, inputs: ArrayLike) -> Float[np.ndarray, "N H P"]:
    """∂z/∂θ by complex steps, θ = [W row by row, b, g]."""
    shape = (params.units, params.inputs)
    theta = np.concatenate([_wide(v).reshape(-1) for v in (params.weights, params.bias, params.gain)])
    columns = []
    for entry in np.eye(len(theta)):
        W, b, g = np.split(theta + 1j * STEP * entry, [shape[0] * shape[1], len(theta) - shape[0]])
        columns.append((g * normalized(method, W.reshape(shape), inputs) + b).imag / STEP)
    return np.stack(columns, -1)


def covariance(method: str, family: AbstractFamily, params: GLMParameters, inputs: ArrayLike) -> np.ndarray:
    """Cov[y | x] of a normalized GLM, [N H H], summed outcome by outcome."""
    return distribution(family, params.units).covariance(natural_parameters(method, params, inputs))


def fisher(method: str, family: AbstractFamily, params: GLMParameters, inputs: ArrayLike) -> Float[np.ndarray, "P P"]:
    """The Fisher matrix by its definition, E[Jᵀ Cov[y | x] J]/φ², in the order [W row by row, b, g]."""
    J = jacobian(method, params, inputs)
    covariances = covariance(method, family, params, inputs) / np.longdouble(family.dispersion) ** 2
    return sum(j.T @ c @ j for j, c in zip(J, covariances, strict=True)) / len(J)


def layer_norm(z: np.ndarray, norm) -> np.ndarray:
    """Eqs. 15 and 16, on the last axis."""
    spread = z - z.sum(-1, keepdims=True) / z.shape[-1]
    scale = np.sqrt((spread**2).sum(-1, keepdims=True) / z.shape[-1])
    return spread / scale * np.asarray(norm.gain) + np.asarray(norm.bias)


def _logistic(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def recurrent(
    cell, inputs: Float[np.ndarray, "T B D"], h: Float[np.ndarray, "B H"], c: Float[np.ndarray, "B H"]
) -> Float[np.ndarray, "T B H"]:
    """Hidden states of a cell of `lngeom.nn` after h and c, by a loop over Eqs. 4 and 17–31, with ε = 0."""
    weights = {name: np.asarray(value) for name, value in vars(cell).items() if hasattr(value, "dtype")}
    outputs = []
    for x in inputs:
        from_h, from_x = h @ weights["recurrent_weights"].T, x @ weights["input_weights"].T
        match type(cell).__name__:
            case "RNN":
                h = np.tanh(from_h + from_x + weights["bias"])
            case "LayerNormRNN":
                h = np.tanh(layer_norm(from_h + from_x, cell.norm))
            case "LSTM" | "LayerNormLSTM" as name:
                if getattr(cell, "input_norm", None) is not None:
                    from_h, from_x = layer_norm(from_h, cell.recurrent_norm), layer_norm(from_x, cell.input_norm)
                f, i, o, g = np.split(from_h + from_x + weights["bias"], 4, axis=-1)
                c = _logistic(f) * c + _logistic(i) * np.tanh(g)
                h = _logistic(o) * np.tanh(c if name == "LSTM" else layer_norm(c, cell.cell_norm))
            case "GRU" | "LayerNormGRU" as name:
                candidate_h = h @ weights["candidate_recurrent_weights"].T
                candidate_x = x @ weights["candidate_input_weights"].T
                if name == "LayerNormGRU":
                    from_h, from_x = layer_norm(from_h, cell.recurrent_norm), layer_norm(from_x, cell.input_norm)
                    candidate_h = layer_norm(candidate_h, cell.candidate_recurrent_norm)
                    candidate_x = layer_norm(candidate_x, cell.candidate_input_norm)
                z, r = np.split(from_h + from_x, 2, axis=-1)
                candidate = np.tanh(candidate_x + _logistic(r) * candidate_h)
                h = (1 - _logistic(z)) * h + _logistic(z) * candidate
            case other:
                raise ValueError(f"no reference for {other}")
        outputs.append(h)
    return np.stack(outputs)


def recurrent_batch_norm(
    cell, inputs: Float[np.ndarray, "T N D"], eps: float = 1e-5
) -> tuple[Float[np.ndarray, "T N H"], Float[np.ndarray, "T H"]]:
    """Hidden states of tanh(BN_t(W_hh h + W_xh x) + b) from zero, and the means of each step, by a loop."""
    W, V, bias = (np.asarray(v, np.longdouble) for v in (cell.recurrent_weights, cell.input_weights, cell.bias))
    h, outputs, means = np.zeros((inputs.shape[1], len(W)), np.longdouble), [], []
    for x in np.asarray(inputs, np.longdouble):
        a = np.stack([(h * w).sum(1) + (x * v).sum(1) for w, v in zip(W, V, strict=True)], 1)
        mean = a.sum(0) / len(a)
        h = np.tanh((a - mean) / np.sqrt(((a - mean) ** 2).sum(0) / len(a) + eps) + bias)
        outputs.append(h)
        means.append(mean)
    return np.array(outputs), np.array(means)
