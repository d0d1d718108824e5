"""Numbers, matrices and data sets.

Strategies that are drawn from again and again are made once: hypothesis checks each new one.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jaxtyping import Array, Float

Size = int | st.SearchStrategy[int]


def sizes(size: Size) -> st.SearchStrategy[int]:
    """A strategy of sizes: one integer, or the strategy given."""
    return st.just(size) if isinstance(size, int) else size


def array(values: np.ndarray, dtype: jax.typing.DTypeLike | None) -> Array:
    """Values in a dtype, by default that of Python floats in JAX."""
    return jnp.asarray(values, jnp.result_type(float if dtype is None else dtype))


@functools.cache
def entries(*, bound: int = 4) -> st.SearchStrategy[float]:
    """Numbers in [−bound, bound]: integers first, then multiples of 1/16.

    Args:
        bound: largest size.

    Returns:
        The strategy; it shrinks to 0, 1, −1, …

    Example:
        >>> from hypothesis import find
        >>> find(entries(), lambda v: v > 1.5)
        2.0
    """
    sixteenths = st.integers(-16 * bound, 16 * bound).map(lambda k: k / 16)
    return st.one_of(st.integers(-bound, bound).map(float), sixteenths)


@functools.cache
def scales(*, negative: bool = False) -> st.SearchStrategy[float]:
    """Scales δ ≠ 1 between 1/16 and 16, which shrink to 2.

    Args:
        negative: whether δ < 0 may be drawn.

    Returns:
        The strategy.
    """
    positive = st.one_of(st.integers(2, 16).map(float), st.integers(1, 15).map(lambda k: k / 16))
    return st.one_of(positive, positive.map(lambda v: -v)) if negative else positive


def matrices(
    *, rows: Size, columns: Size, bound: int = 4, dtype: jax.typing.DTypeLike | None = None
) -> st.SearchStrategy[Float[Array, "rows columns"]]:
    """Matrices of `entries`.

    Args:
        rows: how many.
        columns: how many.
        bound: largest size of an entry.
        dtype: floating point type; JAX's default where None.

    Returns:
        The strategy; it shrinks to few rows and columns of zeros.
    """
    return grids(sizes(rows), sizes(columns), bound).map(lambda values: array(values, dtype))


@st.composite
def grids(draw: st.DrawFn, rows: st.SearchStrategy[int], columns: st.SearchStrategy[int], bound: int) -> np.ndarray:
    """Matrices of `entries` up to a bound in magnitude."""
    shape = draw(rows), draw(columns)
    return np.array(draw(many(entries(bound=bound), shape[0] * shape[1])), np.float64).reshape(shape)


@functools.cache
def many(one: st.SearchStrategy, count: int) -> st.SearchStrategy[list]:
    """Lists of `count` values."""
    return st.lists(one, min_size=count, max_size=count)


@st.composite
def data_sets(
    draw: st.DrawFn,
    *,
    samples: Size = st.integers(2, 6),
    features: Size = st.integers(1, 4),
    rank: int | None = None,
    dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "N D"]:
    """Data sets X of a rank that is exact by construction: X = `[I; A] [I B]` up to the order of rows and columns.

    Args:
        draw: supplied by hypothesis.
        samples: N.
        features: D.
        rank: of X, at least 1 and at most what N and D allow; any by default, deficient ones too.
        dtype: floating point type; JAX's default where None.

    Returns:
        X.

    Raises:
        ValueError: if N and D do not allow the rank.

    Example:
        >>> from hypothesis import find
        >>> find(data_sets(samples=3, features=2, rank=1), lambda X: True).tolist()
        [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    N, D = draw(sizes(samples)), draw(sizes(features))
    if rank is not None and not 1 <= rank <= min(N, D):
        raise ValueError(f"rank must be between 1 and min(N, D) = {min(N, D)}; got {rank}")
    r = min(N, D) - draw(st.integers(0, min(N, D) - 1)) if rank is None else rank
    below = draw(grids(st.just(N - r), st.just(r), 2))
    right = draw(grids(st.just(r), st.just(D - r), 2))
    X = np.concatenate([np.eye(r), below]) @ np.concatenate([np.eye(r), right], 1)
    rows, columns = draw(st.permutations(range(N))), draw(st.permutations(range(D)))
    return array(X[np.ix_(rows, columns)], dtype)


@st.composite
def layer_inputs(
    draw: st.DrawFn,
    *,
    rows: Size = st.integers(1, 4),
    width: Size = st.integers(2, 8),
    offset: float | st.SearchStrategy[float] = 0.0,
    scale: float | st.SearchStrategy[float] = 1.0,
    dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "N H"]:
    """Summed inputs a [N H] without constant rows or rows of zeros.

    Args:
        draw: supplied by hypothesis.
        rows: N.
        width: H, at least 2.
        offset: added to every entry; large ones test how statistics are computed.
        scale: factor on every entry, before the offset; powers of two keep it exact.
        dtype: floating point type; JAX's default where None.

    Returns:
        a.

    Raises:
        ValueError: if the width is less than 2.

    Example:
        >>> from hypothesis import find
        >>> find(layer_inputs(offset=1000.0), lambda a: True).tolist()
        [[1000.0, 1001.0]]
    """
    N, H = draw(sizes(rows)), draw(sizes(width))
    if H < 2:
        raise ValueError(f"a row of one entry has no variance: width must be at least 2; got {H}")
    a = draw(grids(st.just(N), st.just(H), 4))
    a[np.ptp(a, axis=1) < 0.5, -1] += 1.0
    factor, shift = (v if isinstance(v, float | int) else draw(v) for v in (scale, offset))
    return array(a * factor + shift, dtype)


BREAKING = ("constant rows", "one unit", "tiny variance", "large offset", "masked")
"""Kinds of inputs at which derivatives of norms break."""


@st.composite
def breaking_inputs(
    draw: st.DrawFn,
    *,
    kinds: Sequence[str] = BREAKING,
    rows: Size = st.integers(1, 4),
    width: Size = st.integers(2, 8),
    dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "N H"]:
    r"""Summed inputs a [N H] at which derivatives of norms break, though outputs may be right.

    "constant rows": some rows have equal values, σ = 0, where √ has no derivative. "one unit": H = 1, whatever the
    width. "tiny variance": σ between 2⁻³⁰ and 2⁻⁸, near √ε. "large offset": a mean of 2⁸ to 2¹² at σ of about 1, which
    loses digits in sums of squares. "masked": the last entries of rows are zero, and so are some whole rows, as by
    padding.

    Args:
        draw: supplied by hypothesis.
        kinds: which of these may be drawn; it shrinks to the first.
        rows: N.
        width: H, at least 2.
        dtype: floating point type; JAX's default where None.

    Returns:
        a.

    Raises:
        ValueError: if there is no such kind, or the width is less than 2.

    Example:
        >>> from hypothesis import find
        >>> import jax, jax.numpy as jnp
        >>> def norm(a):
        ...     return a / (jnp.linalg.norm(a, axis=-1, keepdims=True) + 1e-6)
        >>> def breaks(a):
        ...     return not jnp.all(jnp.isfinite(jax.jacobian(norm)(a)))
        >>> find(breaking_inputs(), breaks).tolist()
        [[0.0, 0.0]]
    """
    if unknown := sorted({*kinds} - {*BREAKING}) or not kinds:
        raise ValueError(f"kinds must be some of {', '.join(BREAKING)}; got {unknown if kinds else 'none'}")
    kind, N, H = draw(st.sampled_from(list(kinds))), draw(sizes(rows)), draw(sizes(width))
    if H < 2:
        raise ValueError(f"width must be at least 2, and 'one unit' among kinds for inputs of one unit; got {H}")
    a = draw(grids(st.just(N), st.just(1 if kind == "one unit" else H), 4))
    if kind not in {"one unit", "constant rows"}:
        a[np.ptp(a, axis=1) < 0.5, 0] += 1.0
    chosen = np.array(draw(st.lists(st.booleans(), min_size=N, max_size=N)))
    match kind:
        case "constant rows":
            chosen[0] = True
            a[chosen] = a[chosen, :1]
        case "tiny variance":
            a *= 2.0 ** -draw(st.integers(8, 30))
        case "large offset":
            a += 2.0 ** draw(st.integers(8, 12))
        case "masked":
            a[:, draw(st.integers(1, H - 1)) :] = 0.0
            a[chosen] = 0.0
    return array(a, dtype)
