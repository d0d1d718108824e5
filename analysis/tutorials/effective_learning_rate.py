"""The effective learning rate in your loop: what a step does to the direction of the weights before a norm.

Run it from a checkout: `python -m analysis.tutorials.effective_learning_rate`.
"""

import jax
import jax.numpy as jnp
import lngeom as lg
import optax


def main() -> dict[str, float]:
    """Runs the tutorial.

    Returns:
        The numbers it arrives at, by name.
    """
    X = jax.random.normal(jax.random.key(0), (64, 8))
    y = jnp.sin(X @ jnp.arange(8.0))

    def loss(params):
        hidden = jax.nn.relu(lg.nn.layer_norm(X @ params["hidden"].T, jnp.ones(16), jnp.zeros(16)))
        return jnp.mean(jnp.square(hidden @ params["out"] - y))

    keys = jax.random.split(jax.random.key(1))
    params = {"hidden": jax.random.normal(keys[0], (16, 8)) / 8**0.5, "out": jax.random.normal(keys[1], (16,)) / 4}

    # Wrap the optimizer you have. Its updates are unchanged; the record is part of its state.
    rate = 0.2
    # By default it records every fiftieth step, which costs least; here every one, and it keeps them all.
    wrap = lg.training.track_geometry
    optimizer = wrap(optax.sgd(rate), learning_rate=rate, groups=["hidden"], every=1, history=40)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(40):
        params, state = step(params, state)

    # The norm can only grow, since gradients are orthogonal to the weights; so the effective rate η/‖w‖² falls.
    record = lg.training.read_geometry(state)
    history = record.history
    first, last = (float(history["effective_learning_rate"][k, 0]) for k in (0, -1))
    radial = float(jnp.max(jnp.abs(history["radial_residual"])))
    print(f"effective learning rate {first:.4f} → {last:.4f}; angle of the last step {float(record.angle[0]):.4f} rad")
    print(f"gradients along the weights: {radial:.1e} of their length")
    return {"first": first, "last": last, "radial": radial, "norm": float(record.norm[0]), "rate": rate}


if __name__ == "__main__":
    main()
