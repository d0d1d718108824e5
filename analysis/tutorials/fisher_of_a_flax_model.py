"""The Fisher matrix of a flax model: its null space by name, and a natural-gradient step that respects it.

Run it from a checkout: `python -m analysis.tutorials.fisher_of_a_flax_model`.
With a folder as argument it also draws the figure.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from jax.flatten_util import ravel_pytree

try:
    import flax.linen as nn
except ModuleNotFoundError:
    if __name__ != "__main__":
        raise
    print("error: this tutorial needs flax: pip install flax", file=sys.stderr)
    sys.exit(2)


class Net(nn.Module):
    """One hidden layer with layer norm, and three classes."""

    @nn.compact
    def __call__(self, x):
        """Logits [N 3]."""
        x = nn.Dense(6, use_bias=False)(x)
        return nn.Dense(3)(nn.relu(nn.LayerNorm(epsilon=0.0)(x)))


def draw(F, rank: int, out: Path) -> None:
    """Draws the eigenvalues, those of the null space apart."""
    values = np.abs(np.linalg.eigvalsh(np.asarray(F.as_matrix())))[::-1]
    index = np.arange(1, len(values) + 1)
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        axis.semilogy(index[:rank], values[:rank], "o", label="identifiable")
        axis.semilogy(index[rank:], values[rank:], "x", label="null space")
        axis.set(xlabel="index", ylabel="absolute eigenvalue of F")
        axis.legend()
        caption = "Eigenvalues of the Fisher matrix of a flax model. Those of the null space are zero up to rounding."
        lg.plots.save(figure, out / "fisher_of_a_flax_model", {"eigenvalues": values, "rank": rank}, caption=caption)


def main(out: Path | None = None) -> dict[str, float]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

    Returns:
        The numbers it arrives at, by name.
    """
    # A model is any function apply(params, X) -> natural parameters. Fisher matrices want float64.
    with jax.enable_x64(True):
        X = jax.random.normal(jax.random.key(0), (60, 4), jnp.float64)
        variables = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), Net().init(jax.random.key(1), X))
        apply: Any = Net().apply
        F = lg.fisher(apply, variables, X, family=lg.families.Categorical())

        # It is a lineax operator: products are cheap, the matrix is made only when asked for.
        size, rank = F.in_size(), F.rank()
        print(f"{size} parameters, rank {rank}")

        # What is lost is named in the model's own parameters: the scale and the shifts of the layer before the norm.
        null = F.nullspace()
        print(null.describe())

        if out:
            draw(F, rank, out)

        # Moving along W of the normalized layer costs nothing: ds² = 0, whatever the length of the step.
        kernel = variables["params"]["Dense_0"]["kernel"]
        zero = jax.tree.map(jnp.zeros_like, variables)
        radial = {"params": {**zero["params"], "Dense_0": {"kernel": kernel}}}
        along, total = float(lg.metric.ds2(F, radial)), float(F.trace())
        print(f"ds² along the kernel: {along:.1e}, trace of F: {total:.2f}")

        # A natural gradient on a singular F: the shortest solution, orthogonal to the null space.
        y = jax.random.randint(jax.random.key(2), (60,), 0, 3)

        def loss(params):
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(apply(params, X)), y[:, None], 1))

        step = F.solve(jax.grad(loss)(variables), damping=1e-3)
        moved = ravel_pytree(step.value)[0]
        overlap = float(jnp.max(jnp.abs(null.basis.T @ moved)) / jnp.linalg.norm(moved))
        print(f"natural gradient of length {float(jnp.linalg.norm(moved)):.2f}; part in the null space {overlap:.1e}")
    return {"size": size, "rank": rank, "along": along, "total": total, "overlap": overlap}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
