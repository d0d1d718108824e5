"""The figure of one Fisher operator: its eigenvalues, their density, and where its null space lies."""

from pathlib import Path
from typing import Any

import numpy as np

from lngeom.plots.axes import log_scale
from lngeom.plots.style import COLOURS, PALE, figure, save

LEAVES = 12
"""Most leaves that are drawn, those with most of the null space."""

ROUNDING = 1e-18
"""Eigenvalues up to this fraction of the largest are drawn as zeros."""


def spectrum(F: Any, stem: Path | str) -> list[Path]:
    """Draws the eigenvalues of a Fisher operator with its rank, their density, and its null space by leaf.

    Where a decomposition would not fit, only the density is drawn, from stochastic Lanczos quadrature.

    Args:
        F: a `FisherOperator`.
        stem: path without a suffix.

    Returns:
        The paths of the SVG, the PNG and the JSON written.

    Example:
        >>> import jax.numpy as jnp, lngeom as lg, tempfile
        >>> X = jnp.array([[1.0, 2.0], [2.0, 4.0]])
        >>> F = lg.fisher(lambda p, x: x @ p["w"], {"w": jnp.ones((2, 1))}, X, family=lg.families.Gaussian())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in lg.plots.spectrum(F, f"{folder}/spectrum")]
        ['spectrum.svg', 'spectrum.png', 'spectrum.json']
    """
    try:
        null = F.nullspace()
    except MemoryError:
        return _density(F, stem)
    values = np.zeros(F.in_size())
    found = np.square(np.asarray(F.singular_values(), float))[: len(values)]
    values[: len(found)] = found
    rows = sorted(null.by_leaf(), key=lambda row: -row["null"])[:LEAVES]
    rank, size = F.in_size() - null.dimension, F.in_size()
    data = {"eigenvalues": values, "rank": rank, "gap": null.gap, "certain": null.certain, "by_leaf": null.by_leaf()}
    with figure(1, 3, height=2.6) as (fig, axes):
        left, middle, right = axes[0]
        place = log_scale(left, values, below=ROUNDING * values.max())
        left.plot(np.arange(1, size + 1), place(values), "o", markersize=2.5, color=COLOURS[0])
        left.axvspan(rank + 0.5, size + 0.5, color=PALE, zorder=0, linewidth=0)
        left.set(xlabel="index", ylabel="eigenvalue", title=f"rank {rank} of {size}")
        kept = values[:rank]
        if rank:
            middle.hist(np.log10(kept), bins=min(40, max(5, rank // 4)), color=COLOURS[0])
        middle.set(xlabel="$\\log_{10}$ eigenvalue", ylabel="number", title="density of nonzero eigenvalues")
        right.barh([row["leaf"] for row in rows][::-1], [row["null"] for row in rows][::-1], color=COLOURS[1])
        right.set(xlabel="null directions in the leaf", title=f"null space of dimension {null.dimension}")
        caption = (
            f"Eigenvalues of {F!r} with the null space shaded, the density of the others, and the squared norm of an "
            "orthonormal basis of the null space on each leaf, which adds up to its dimension."
        )
        return save(fig, stem, data, caption=caption)


def _density(F: Any, stem: Path | str) -> list[Path]:
    """The cumulative density of eigenvalues alone."""
    density = F.spectral_density()
    nodes, weights = np.asarray(density.nodes, float), np.asarray(density.weights, float)
    positive = nodes > ROUNDING * nodes.max()
    with figure(1, 1, width="column") as (fig, axes):
        ax = axes[0, 0]
        ax.step(nodes[positive], 1 - weights.sum() + np.cumsum(weights)[positive], where="post", color=COLOURS[0])
        ax.set_xscale("log")
        ax.set(xlabel="eigenvalue", ylabel="fraction of smaller ones", ylim=(0, 1))
        caption = f"Spectral density of {F!r}, by stochastic Lanczos quadrature."
        return save(fig, stem, {"nodes": nodes, "weights": weights}, caption=caption)
