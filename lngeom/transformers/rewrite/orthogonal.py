r"""Orthogonal matrices that act quickly: randomized Hadamard matrices, and their kin that fix the vector of ones.

A Hadamard matrix H has entries ±1 and $H H^\top = d I$. Those here are Kronecker products of Sylvester's matrices of
powers of two with one of Paley's of size q + 1 or 2(q + 1), q a prime (Paley, 1933).
"""

from functools import cache

import numpy as np
import scipy


@cache
def hadamard_factor(size: int) -> np.ndarray | None:
    """A Hadamard matrix of this size that is not built from smaller ones, or None where none is known here.

    >>> H = hadamard_factor(12)
    >>> bool((H @ H.T == 12 * np.eye(12)).all())
    True
    """
    if size in {1, 2}:
        return scipy.linalg.hadamard(size).astype(float)
    for q, kind in ((size - 1, 3), (size // 2 - 1, 1)):
        if q > 2 and q % 4 == kind and size % 4 == 0 and all(q % p for p in range(2, int(q**0.5) + 1)):
            squares = {i * i % q for i in range(1, q)}
            character = np.array([0] + [1 if i in squares else -1 for i in range(1, q)])
            jacobsthal = character[(np.arange(q)[:, None] - np.arange(q)) % q]
            bordered = np.zeros((q + 1, q + 1))
            bordered[1:, 1:] = jacobsthal
            if kind == 3:
                bordered[0, 1:], bordered[1:, 0] = 1, -1
                return bordered + np.eye(q + 1)
            bordered[0, 1:] = bordered[1:, 0] = 1
            blocks = np.kron(bordered, np.array([[1, 1], [1, -1]]))
            return blocks + np.kron(np.eye(q + 1), np.array([[1, -1], [-1, -1]]))
    return None


@cache
def hadamard_factors(size: int) -> tuple[np.ndarray, ...] | None:
    """Hadamard matrices whose Kronecker product has this size, or None where no such product is known here."""
    odd, twos = size, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for used in range(min(twos, 6) + 1):
        core = hadamard_factor(odd << used) if odd > 1 or used == 0 else None
        if core is None:
            continue
        rest = twos - used
        small, large = rest // 2, rest - rest // 2
        return tuple(
            f for f in (core, *(scipy.linalg.hadamard(1 << p).astype(float) for p in (small, large))) if len(f) > 1
        )
    return None


class Orthogonal:
    r"""An orthogonal matrix Q [d, d] that is applied by its factors where it has any.

    - Hadamard: $Q = H D/\sqrt{d}$ with random signs D. It spreads large entries over all coordinates.
    - Hadamard that fixes the ones: $Q = H D H^\top/d$ with $D_{11} = 1$ and $H^\top 1 = d e_1$.
    - Random: from the QR decomposition of a Gaussian matrix.
    - In blocks: such a matrix for each K coordinates, all with the same Hadamard matrix and signs of their own.

    Args:
        size: d.
        seed: of the signs, or of the Gaussian matrix.
        fix_ones: whether Q1 = 1, as LayerNorm needs.
        matrix: Q itself, in place of all that.
        hadamard: whether to use a Hadamard matrix where one of this size is known.
        block: K, which divides d and has a known Hadamard matrix; None: d.

    Raises:
        ValueError: if `matrix` has another shape or is not orthogonal, or there are no such blocks.
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        *,
        fix_ones: bool = False,
        matrix: np.ndarray | None = None,
        hadamard: bool = True,
        block: int | None = None,
    ) -> None:
        self.size, self.fix_ones, self.block = size, fix_ones, size if block is None else block
        factors = hadamard_factors(self.block)
        if block is not None and (size % block or factors is None or block < 2):
            raise ValueError(f"no Hadamard matrix in blocks of {block} is known here for a width of {size}")
        self._factors: tuple[np.ndarray, ...] | None = None
        self._matrix = None
        draw = np.random.default_rng(seed)
        if matrix is not None:
            self._matrix = np.asarray(matrix, np.float64)
            if self._matrix.shape != (size, size):
                raise ValueError(f"the matrix must be {size} × {size}, the width of the stream; got {matrix.shape}")
            gap = np.abs(self._matrix @ self._matrix.T - np.eye(size)).max()
            if not gap < 1e-12:
                raise ValueError(f"the matrix must be orthogonal in float64; |QQᵀ − I| is {gap:.1e}")
        elif hadamard and factors is not None and size > 1:
            signs = [f[:, :1] for f in factors]  # which make the first column of H all ones
            self._factors = tuple(f * s for f, s in zip(factors, signs, strict=True))
            self._signs = draw.choice([-1.0, 1.0], size)
            self._signs[:: self.block] = 1.0
        else:
            n = size - 1 if fix_ones else size
            q, r = np.linalg.qr(draw.standard_normal((n, n)))
            q = q * np.sign(np.diag(r))
            if fix_ones:
                frame = scipy.linalg.helmert(size)  # rows: an orthonormal basis of what is orthogonal to the ones
                q = frame.T @ q @ frame + 1 / size
            self._matrix = q

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if self._factors is not None:
            blocks = "" if self.block == self.size else f", {self.size // self.block} blocks"
            sizes = " × ".join(str(len(f)) for f in self._factors)
            return f"Hadamard {sizes}{blocks}{', Q1 = 1' if self.fix_ones else ''}"
        return f"orthogonal{', Q1 = 1' if self.fix_ones else ''}"

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Qx for each vector along the last axis, which is X Qᵀ for rows X."""
        if self._matrix is not None:
            return x @ self._matrix.T
        if self.fix_ones:
            return self._transform(self._transform(x, transposed=True) * self._signs)
        return self._transform(x * self._signs)

    def matrix(self) -> np.ndarray:
        """Q as an array."""
        return self.apply(np.eye(self.size)).T

    def _transform(self, x: np.ndarray, transposed: bool = False) -> np.ndarray:
        assert self._factors is not None
        sizes = [len(f) for f in self._factors]
        y = x.reshape(-1, *sizes)
        for axis, factor in enumerate(self._factors, start=1):
            y = np.moveaxis(np.moveaxis(y, axis, -1) @ (factor if transposed else factor.T), -1, axis)
        return y.reshape(x.shape) * self.block**-0.5
