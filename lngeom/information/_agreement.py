"""Compares what other routes give with the product F v of one random vector, before it is handed out."""

import functools
import itertools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._core.draws import probe_generator
from lngeom._core.numerics import MARGIN
from lngeom._core.types import is_concrete
from lngeom.information._products import AbstractFisher, promoted_product


def is_compared(F: AbstractFisher) -> bool:
    """Whether routes are compared with the product: not under jit, nor where the user said no."""
    return F._checked and F.problem.is_concrete


def probe_vector(F: AbstractFisher, seed: int = 0) -> Float[Array, " P"]:
    """The random numbers on which two routes are compared, zeros where they are not; XLA would compile each size.

    They are numbers of the parameters' dtype, so that both routes see the same.
    """
    size = F.in_size()
    vector = probe_generator(seed).normal(size=size) if is_compared(F) else np.zeros(size)
    return jnp.asarray(vector, F.problem.dtype).astype(F.problem.decomposition_dtype)


IMAGES: dict[str, Callable[[Array, Array], Array]] = {
    "matrix": lambda matrix, v: matrix @ v,
    "factor": lambda rows, v: rows.T @ (rows @ v),
    "diagonal": lambda image, _: image,
}
"""How what is compared with the product gives the image of v. In a diagonal's place its rows' image is passed."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gaps_and_norms(what: str, edges: tuple[int, ...], found: Array, v: Array, product: Array) -> tuple[Array, Array]:
    """How far the image is from the product, and the size of that, for each leaf."""
    gap = IMAGES[what](found.astype(v.dtype), v) - product
    each = lambda a: jnp.stack([jnp.linalg.norm(a[i:j]) for i, j in itertools.pairwise(edges)])  # noqa: E731
    return each(gap), each(product)


def agrees(F: AbstractFisher, what: str, found: Array, whole: AbstractFisher | None = None) -> bool:
    r"""Whether a result, one of `IMAGES`, gives the image r that the product gives: $|r - Fv| \le \sqrt{eps}\, |Fv|$.

    In each leaf by itself, so that none hides another of a smaller scale. A wrong route misses by far more, rounding
    stays far below. eps is that of the precision in which the model computes. A gap of `MARGIN` eps times |F| |v| is
    rounding too, since v may be almost null or a leaf 0, and so is one of numbers too small to have all digits. Where F
    is a part of a larger matrix, |F| is the norm of that.

    Raises:
        ValueError: if numbers are beyond the largest of the parameters' dtype.
    """
    if not is_compared(F):
        return True
    vector = probe_vector(F)
    edges = tuple(F.problem.layout.edges)
    distances = _gaps_and_norms(what, edges, found, vector, promoted_product(F, vector))
    if not is_concrete(distances):
        return True  # the function closes over a traced value
    gaps, norms = (np.asarray(d, float) for d in distances)
    dtype = jnp.finfo(F.problem.dtype)
    if (gaps <= float(dtype.eps) ** 0.5 * norms).all() and np.isfinite(norms).all():
        return True
    eps = F.problem.precision().eps
    total = _scale(F if whole is None else whole)
    if not np.isfinite([*norms, total]).all():
        raise ValueError(
            f"products F @ v are beyond the largest number of {dtype.dtype}, {float(dtype.max):.3g}, the dtype of the "
            "parameters: cast them to one of a wider range, or scale the outputs (check=False skips this check)"
        )
    rounding = min(MARGIN * eps, eps**0.5) * total + float(dtype.tiny) * F.in_size() ** 0.5
    return bool((gaps <= np.maximum(eps**0.5 * norms, rounding)).all())


def _scale(F: AbstractFisher) -> float:
    """An estimate of |F| |v| for the probe v, by one step of power iteration; a random |Fv| may be far smaller."""
    v = probe_vector(F, 1)
    w = promoted_product(F, v)
    length = jnp.linalg.norm(w)
    again = promoted_product(F, w / jnp.where(length > 0, length, 1))
    return float(jnp.linalg.norm(again) * jnp.linalg.norm(v))


def require_agreement(F: AbstractFisher, what: str, found: Array, whole: AbstractFisher | None = None) -> None:
    """Raises a ValueError where a result that has no alternative is not of the product (see `agrees`)."""
    if not agrees(F, what, found, whole):
        raise ValueError(
            f"the {what} and the products F @ v are not of one matrix: the function's outputs depend on how many "
            "samples it is given, its forward- and reverse-mode derivatives differ, or it takes a maximum that two "
            "programs round differently. Say batch_coupled=True if samples interact; else make the function "
            "deterministic, correct its derivative rule, or take the maximum by jnp.argmax and jnp.take_along_axis "
            "(check=False skips this check)"
        )


def agreed(
    F: AbstractFisher, what: str, found: Array, plain: Callable[[], Array], whole: AbstractFisher | None = None
) -> Array:
    """A result; that of the plain route, with a warning, where that of the structured route is not of the product."""
    if agrees(F, what, found, whole):
        return found
    other = plain()
    require_agreement(F, what, other, whole)
    warnings.warn(
        f"the {what} read off the structure of the program differs from the products F @ v: the plain route is used "
        "instead, which is slower; please report this model",
        RuntimeWarning,
        stacklevel=5,
    )
    return other
