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
