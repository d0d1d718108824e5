"""Gradients of a norm under loss scaling, in float16: whether they scale with what comes back to it."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._core.draws import probe_generator
from lngeom.checks._frameworks import torch_tensor
from lngeom.checks.derivatives.in_place import few_inputs
from lngeom.checks.derivatives.routes import Jax, TorchAutograd, one_thread
from lngeom.checks.placed import Placed
from lngeom.checks.subject import as_elsewhere, same_draws

LARGEST, LEAST = 2.0**9, 2.0**-10
"""What cotangents and gradients in float16 reach when they are scaled up and down: 1/128 of its largest number, and 16
times its smallest normal one."""

OFF = 0.1
"""Relative error from which on a scaled gradient is wrong; rounding is a hundredth of it."""


def scaled_gradient(placed: Placed) -> str | None:
    r"""How a norm's gradient in its inputs fails to scale with cotangents: $J^\top(sc) = s J^\top c$, in words.

    Loss scaling multiplies cotangents by s. Both sides are finite numbers of float16 that lose no digits, so that what
    overflows or vanishes is inside of the backward pass. Inputs and parameters have the dtypes they have in the model,
    with the casts of autocast.

    Args:
        placed: the norm in its place.

    Returns:
        The sentence; None where it scales, and where the inputs are not in float16.

    Raises:
        ValueError: if the norm cannot be called again.
    """
    layer = placed.layer
    if layer.inputs.dtype != np.float16:
        return None
    gradient, rng = _gradient(placed), probe_generator()
    with as_elsewhere(), same_draws(), one_thread():
        inputs = few_inputs(placed).astype(np.float16)
        c = rng.normal(size=gradient(inputs, None).shape)
        own = gradient(inputs, c)
        sizes = [float(np.max(np.abs(v), initial=0.0)) for v in (c, own)]
        if not all(map(math.isfinite, sizes)) or not min(sizes):
            return None
        up, down = math.floor(math.log2(LARGEST / max(sizes))), math.ceil(math.log2(LEAST / min(sizes)))
        for power in (up, down) if down <= up else ():
            scale = 2.0**power
            found = gradient(inputs, scale * c)
            off = np.max(np.abs(found - scale * own)) / (scale * sizes[1])
            if not off <= OFF:
                what = "are not finite" if not math.isfinite(off) else f"are off by {min(off, 9.99):.0%}"
                return (
                    f"with cotangents 2^{power} times as large, as loss scaling makes them, gradients "
                    f"in its inputs {what}; the true ones, up to {scale * sizes[1]:.2g}, fit float16"
                )
    return None


def _gradient(placed: Placed) -> Callable[[np.ndarray, np.ndarray | None], Float[np.ndarray, "..."]]:
    """(inputs, cotangents) to the gradient in the inputs, in the model's dtypes; the outputs without cotangents."""
    parameters = {**placed.layer.parameters, **placed.changed}
    opened = placed.layer.opened(placed.training, parameters)
    as_array = torch_tensor if opened.torch else jnp.asarray
    own = jax.tree.map(as_array, opened.parameters)
    f = lambda x: opened.call(own, x)  # noqa: E731

    def gradient(inputs: np.ndarray, c: np.ndarray | None) -> np.ndarray:
        if not opened.torch:
            engine = Jax()
            given: Any = lambda x: engine.vjp(f, x, jnp.asarray(c, jax.eval_shape(f, x).dtype))  # noqa: E731
            return engine.run(f if c is None else given, inputs)
        engine = TorchAutograd()
        given = lambda x: engine.backward(f, x, torch_tensor(np.asarray(c)).to(f(x).dtype))  # noqa: E731
        return engine.run(f if c is None else given, inputs)

    return gradient
