"""Known mistakes with one array: what each leaves of it, and what an array looks like that none explains."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lngeom.transformers.description import Attention, Norm
from lngeom.transformers.forward import hadamard
from lngeom.transformers.rewrite.comparison.aligned import far
from lngeom.transformers.rewrite.comparison.plain import Affine

LEVELS = 256
"""Distinct values in a group up to which an array looks quantized."""


def mistakes(
    a: Affine,
    turn: np.ndarray | None,
    label: str,
    over: Norm | None,
    name: str = "",
    attention: Attention | None = None,
) -> Iterator[tuple[str, bool, np.ndarray]]:
    """Known mistakes: a text, whether it speaks of the norm before the map, and the matrix that it leaves."""
    M, W = a.matrix, a.weight
    if a.gain is not None:
        g = a.gain
        if far(np.ones_like(g), g) > 1e-9:
            yield f"the gain γ of {label} is left out", True, a.with_gain(np.ones_like(g))
            yield f"the gain γ of {label} is there twice", True, a.with_gain(g * g)
            yield f"γ − 1 stands for γ of {label}", True, a.with_gain(g - 1)
            yield f"1 + γ stands for γ of {label}", True, a.with_gain(g + 1)
            with np.errstate(divide="ignore", invalid="ignore"):
                inverse = np.where(g != 0, 1 / np.where(g != 0, g, 1), 0)
            yield f"1/γ stands for γ of {label}", True, a.with_gain(inverse)
        if over is not None and not a.centred:
            centred = W - W.mean(1, keepdims=True)
            yield f"its rows are centred, and {label} (RMSNorm) does not centre", False, centred * a.gain
            yield f"its rows are centred, and {label} (RMSNorm) does not centre", False, M - M.mean(1, keepdims=True)
        if turn is not None:
            yield "it is not rotated with the stream", False, M @ turn
            yield "it is rotated the other way than the stream", False, M @ turn @ turn
    else:
        centred = M - M.mean(0, keepdims=True)
        if a.centred:
            yield "it is not centred, and the new norms do not centre", False, W
            for part in [] if turn is None else [turn]:
                yield "it is not centred, and the new norms do not centre", False, part.T @ (part @ W)
        else:
            yield "its outputs are centred, and the norms (RMSNorm) do not centre", False, centred
        if turn is not None:
            yield "it is not rotated with the stream", False, turn.T @ M
            yield "it is rotated the other way than the stream", False, turn.T @ turn.T @ M
    if name.endswith("down"):
        count = M.shape[1]
        for block in (1 << k for k in range(1, count.bit_length()) if count % (1 << k) == 0):
            text = f"its input is to be turned by a Hadamard matrix in blocks of {block} at run time, and is not"
            yield text, False, hadamard(M, block)
    plain = W
    if (scale := a.scale) is not None:
        plain = W / np.where(scale != 0, scale, 1)[:, None]
        yield "the factors of channels are there twice", False, replace(a, weight=scale[:, None] * W).matrix
        yield "the factors of channels are left out", False, replace(a, weight=plain).matrix
    if M.shape[0] == M.shape[1]:
        other = plain.T if scale is None else scale[:, None] * plain.T
        yield "it is transposed", False, replace(a, weight=other).matrix
    if attention is not None and attention.rotary is not None:
        own = attention.key_width
        heads, first, last = {
            "attention.query": (attention.heads, 0, attention.query_width),
            "attention.key": (attention.kv_heads, 0, own),
            "attention.shared_key": (1, own, attention.query_width),
        }.get(name, (0, 0, 0))
        for text, order in _pair_orders(attention) if heads else ():
            here = order[first:last] - first
            if set(here) == set(range(last - first)):
                yield text, False, M.reshape(heads, -1, M.shape[1])[:, here].reshape(M.shape)


def _pair_orders(a: Attention) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of a head after a change of the order of rotary pairs."""
    assert a.rotary is not None
    half = np.arange(a.rotary.coordinates).reshape(2, -1).T.reshape(-1)  # 0 m 1 m+1 …
    text = "its rows are in the other order of rotary pairs (halves for neighbours)"
    for order in (half, np.argsort(half)):
        every = np.arange(a.query_width)
        every[a.rotary.turned] = a.rotary.start + order
        yield text, every


def fits(gap: float, before: float, rounding: float) -> bool:
    """Whether a mistake leaves no more than rounding, and far less than was there."""
    return gap <= max(1e-3 * min(before, 1.0), rounding) and gap < before / 4


def vector_mistakes(name: str, a: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Known mistakes with a vector, such as a gain: a text, and the vector that each leaves."""
    if name.endswith("gain"):
        yield "γ − 1 stands for γ", a - 1
        yield "1 + γ stands for γ", a + 1
    if name.endswith(("gain", "scale")):
        yield "it is 1", np.ones_like(a)
    yield "it is zero", np.zeros_like(a)
    yield "it has the other sign", -a


def rows_reordered(a: np.ndarray, b: np.ndarray, rounding: float) -> str | None:
    """What a matrix looks like whose rows are those of another in another order; None where they are not."""
    if a.ndim != 2 or a.shape != b.shape:
        return None
    first, second = (np.lexsort(v.T[::-1]) for v in (a, b))
    same = fits(far(a[first], b[second]), far(a, b), rounding)
    return f"its rows are in another order ({int(np.sum(first != second))} of {len(a)})" if same else None


def offset_mistakes(a: Affine) -> Iterator[tuple[str, np.ndarray]]:
    """Known mistakes with a bias: a text, and the offset that each leaves."""
    if a.shift is not None and np.any(a.shift):
        yield "the bias β of its norm is not in its bias", a.bias
        yield "the bias β of its norm is in its bias twice", a.bias + 2 * (a.weight @ a.shift)
        yield "its own bias is lost", a.weight @ a.shift
    yield "its bias is lost", np.zeros_like(a.offset)
    yield "its bias is there twice", 2 * a.offset
    if a.gain is None and a.centred:
        yield "its bias is not centred", a.bias


def multiplied(factor: float) -> str:
    """A factor in words, with digits enough to tell it from 1."""
    near = f"{factor:.4g}"
    return f"it is multiplied by {near if near != '1' else f'1 {factor - 1:+.2g}'}"


def looks(a: Affine, b: Affine, rounding: float, before: np.ndarray, after: np.ndarray) -> str:
    """How far a matrix is, and whether it looks scaled, permuted or quantized."""
    M, T = a.matrix, b.matrix
    size = float(np.sum(M**2))
    factor = float(np.sum(M * T)) / size if size else 0.0
    if factor and fits(far(factor * M, T), far(M, T), rounding):
        return multiplied(factor)
    order = np.argsort(M @ np.cos(np.arange(M.shape[1])))
    other = np.argsort(T @ np.cos(np.arange(M.shape[1])))
    if fits(far(M[order], T[other]), far(M, T), rounding):
        return f"its rows are in another order ({int(np.sum(order != other))} of {len(order)})"
    if size and fits(far(np.abs(M), np.abs(T)), far(M, T), rounding):
        return "some of its entries have the other sign"
    rows = np.flatnonzero(np.linalg.norm(M - T, axis=1) > max(1e-3, rounding) * np.linalg.norm(M, axis=1))
    if 0 < len(rows) <= max(1, len(M) // 8):
        return f"{len(rows)} of its {len(M)} rows {'differs' if len(rows) == 1 else 'differ'} (first {int(rows[0])})"
    text = f"it is {far(M, T):.2g} away, relative"
    levels = _levels(before, after)
    return text if levels is None else f"{text}; it looks quantized ({levels})"


def _levels(first: Any, second: Any) -> str | None:
    """Whether a stored matrix has few distinct values along a row or column, or a group of them; the first has not."""
    for axis in (-1, 0):
        old, new = (np.moveaxis(np.asarray(v, np.float64), axis, -1) for v in (first, second))
        if new.ndim < 2 or old.shape != new.shape or new.size < 64:
            return None
        for group in (new.shape[-1], 128, 64, 32):
            if group > new.shape[-1] or new.shape[-1] % group:
                continue
            counts = [
                [len(np.unique(part)) for part in v.reshape(-1, v.shape[-1])[:64].reshape(-1, group)]
                for v in (old, new)
            ]
            if max(counts[1]) <= LEVELS and np.mean(counts[1]) <= 0.8 * np.mean(counts[0]):
                return f"at most {max(counts[1])} values along {group} entries"
    return None
