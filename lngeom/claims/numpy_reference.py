"""Normalization written straight from Eqs. 1, 2, 3 and 5 in NumPy: a second route that shares no code with the library.

It works in the machine's long double (80 bits on x86-64), so that its rounding errors are not the library's either.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from lngeom._types import GLMParameters


def natural_parameters(method: str, params: GLMParameters, inputs: ArrayLike) -> Float[np.ndarray, "N H"]:
    """z = g (a − μ)/σ + b for the method "identity", "bn", "wn", "ln" or "rms", with ε = 0."""
    weights, bias, gain = (np.asarray(v, np.longdouble) for v in (params.weights, params.bias, params.gain))
    x = np.asarray(inputs, np.longdouble)
    a = np.stack([(x * w).sum(1) for w in weights], 1)
    mean, scale = np.longdouble(0), np.longdouble(1)
    match method:
        case "bn":
            mean = a.sum(0) / len(x)
            scale = np.sqrt(((a - mean) ** 2).sum(0) / len(x))
        case "ln":
            mean = a.sum(1, keepdims=True) / len(weights)
            scale = np.sqrt(((a - mean) ** 2).sum(1, keepdims=True) / len(weights))
        case "rms":
            scale = np.sqrt((a**2).sum(1, keepdims=True) / len(weights))
        case "wn":
            scale = np.sqrt((weights**2).sum(1))
        case "identity":
            pass
        case _:
            raise ValueError(f"no reference for {method!r}")
    return gain * (a - mean) / scale + bias


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
