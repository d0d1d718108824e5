"""One matrix, whatever the route: a result is compared with the product of one random vector before it is given out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom._types import is_concrete, is_tracing
from lngeom.information._factor import decomposition_dtype
from lngeom.information._precision import working_precision
from lngeom.information._spectrum import promoted_product

Route = Callable[[Float[Array, " K"]], tuple[Float[Array, " P"], Float[Array, " P"]]]
"""Random numbers ↦ (the image of a vector by some route, that vector)."""


def agrees(operator: Any, route: Route, size: int | None = None) -> bool:
    r"""Whether a route gives the image that the product gives: $|r - Fv| \le \sqrt{\text{eps}}\, |Fv|$.

    A wrong route misses by far more, rounding stays far below. eps is that of the precision in which the model
    computes.

    Args:
        operator: a Fisher operator. One that is traced, or was made with check=False, is not looked at.
        route: how the image was found.
        size: how many random numbers it takes; P where None.

    Returns:
        The answer; True where nothing is looked at.
    """
    if not operator.checked or not is_concrete(operator.problem) or is_tracing():
        return True
    dtype = decomposition_dtype(operator.problem.dtype)
    image, vector = route(jax.random.normal(jax.random.key(0), (operator.in_size() if size is None else size,), dtype))
    product = promoted_product(operator, vector)
    gap, norm = float(jnp.linalg.norm(image - product)), float(jnp.linalg.norm(product))
    if gap <= float(jnp.finfo(operator.problem.dtype).eps) ** 0.5 * norm:
        return True
    return gap <= working_precision(operator.problem).eps ** 0.5 * norm


def require_agreement(operator: Any, what: str, route: Route, size: int | None = None) -> None:
    """Raises an error where a route that has no alternative differs from the product.

    Args:
        operator: a Fisher operator.
        what: was computed.
        route: how (see `agrees`).
        size: how many random numbers the route takes.

    Raises:
        ValueError: if the two differ.
    """
    if not agrees(operator, route, size):
        raise ValueError(
            f"{what} and the products F @ v are not of one matrix: the function's outputs depend on how many samples "
            "it is given, or its forward- and reverse-mode derivatives differ. Say batch_coupled=True if samples "
            "interact; else make the function deterministic, or correct its derivative rule (check=False skips this "
            "check)"
        )
