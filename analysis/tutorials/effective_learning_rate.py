"""The effective learning rate in your loop: what a step does to the direction of the weights before a norm.

Run it from a checkout: `python -m analysis.tutorials.effective_learning_rate`.
With a folder as argument it also draws the figure.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
import optax


def main(out: Path | None = None) -> dict[str, float]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

    Returns:
        The numbers it arrives at, by name.
    """
    X = jax.random.normal(jax.random.key(0), (64, 8))
    y = jnp.sin(X @ jnp.arange(8.0))

    def loss(params):
        hidden = jax.nn.relu(lg.nn.layer_norm(X @ params["hidden"].T, eps=0.0))
        return jnp.mean(jnp.square(hidden @ params["out"] - y))

    keys = jax.random.split(jax.random.key(1))
    params = {"hidden": jax.random.normal(keys[0], (16, 8)) / 17, "out": jax.random.normal(keys[1], (16,)) / 4}

    # Wrap the optimizer you have. Its updates are unchanged; the record is part of its state.
    rate = 0.1
    # By default it records every fiftieth step, which costs least; here every one, and it keeps them all.
    wrap = lg.training.track_geometry
    optimizer = wrap(optax.sgd(rate), learning_rate=rate, groups=["hidden"], every=1, history=60)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(60):
        params, state = step(params, state)

    # The norm can only grow, since gradients are orthogonal to the weights; so the effective rate η/‖w‖² falls.
    record = lg.training.read_geometry(state)
    history = record.history
    rates = history["effective_learning_rate"][:, 0]
    first, last = float(rates[0]), float(rates[-1])
    halved = int(jnp.argmax(rates <= first / 2))
    radial = float(jnp.max(jnp.abs(history["radial_residual"])))
    print(f"effective learning rate {first:.2f} → {last:.2f}, half of the first at step {halved}")
    print(f"angle of the last step {float(record.angle[0]):.3f} rad")
    print(f"gradients along the weights: {radial:.1e} of their length")
    if out:
        caption = (
            "The first layer of a layer-normalized network under SGD at a constant learning rate: its norm grows, and "
            "the effective learning rate falls below half of the first."
        )
        lg.plots.training(record, out / "effective_learning_rate", caption=caption)
    return {
        "first": first,
        "last": last,
        "halved": halved,
        "radial": radial,
        "norm": float(record.norm[0]),
        "rate": rate,
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
