"""Plan a training run: what weight decay does, where norms and angles will settle, and what may be changed for what.

Run it from a checkout: `python -m analysis.tutorials.plan_a_training`.
With a folder as argument it also draws the figure.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
import optax
from sklearn.datasets import load_digits


def main(out: Path | None = None) -> dict[str, float]:
    """Runs the tutorial.

    Args:
        out: folder for the figure and the records; none is written by default.

    Returns:
        The numbers it arrives at, by name.
    """
    digits = load_digits()
    X, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "hidden": jax.random.normal(keys[0], (64, 32)) / 8,
        "gain": jnp.ones(32),
        "bias": jnp.zeros(32),
        "out": jax.random.normal(keys[1], (32, 10)) / 6,
    }

    def apply(p, x):
        return jax.nn.relu(lg.nn.layer_norm(x @ p["hidden"], p["gain"], p["bias"], eps=1e-5)) @ p["out"]

    # Which weights does decay regularize, and for which is it a part of the learning rate? The model itself says so.
    mask = lg.training.decay_mask(apply, params, X[:32])
    print("decay acts as a rate on:", *[name for name, chosen in mask.items() if chosen])

    # AdamW decays those alone. The plan predicts where they will settle.
    rate, decay = 2e-3, 0.5
    optimizer = optax.adamw(rate, 0.9, 0.99, weight_decay=decay, mask=mask)
    settings = {"learning_rate": rate, "weight_decay": decay, "momentum": 0.9, "b2": 0.99}
    plan = lg.training.plan(apply, params, X[:32], optimizer=optimizer, mask=mask, **settings)
    print(plan)
    row = plan.rows[0]

    # Train, and look.
    tracked = lg.training.track_geometry(optimizer, groups=["hidden"], every=10, history=300, **settings)

    def loss(p, key):
        rows, noise, labels, replaced = jax.random.split(key, 4)
        rows = jax.random.randint(rows, (32,), 0, len(X))
        # Noise on pixels and on a fifth of the labels keeps gradients random, as they are while a large model learns.
        x = X[rows] + 0.3 * jax.random.normal(noise, (32, 64))
        random = jax.random.randint(labels, (32,), 0, 10)
        label = jnp.where(jax.random.uniform(replaced, (32,)) < 0.2, random, y[rows])
        return optax.softmax_cross_entropy_with_integer_labels(apply(p, x), label).mean()

    @jax.jit
    def train(params, state):
        def step(carry, key):
            updates, state = tracked.update(jax.grad(loss)(carry[0], key), carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(step, (params, state), jax.random.split(keys[2], 3000))[0]

    params, state = train(params, tracked.init(params))
    record = lg.training.read_geometry(state)
    print(record.line())
    _, curves = record.curves()
    norm = float(jnp.mean(curves["norm"][-100:]))
    angle = float(jnp.sqrt(jnp.mean(curves["angle"][-100:] ** 2)))
    print(f"last thousand steps: norm {norm:.3f}, planned {row['equilibrium_norm']:.3f}")
    print(f"                     angle {angle:.4f}, planned {row['equilibrium_angle']:.4f}")

    # Twice the learning rate is not a new experiment for these weights: it is this one, from other weights.
    twice = plan.equivalent(2.0)
    print(f"η × 2 is: λ × {twice['weight_decay']:g} from initial weights × {twice['initial_weights']:g}")
    if out:
        lg.training.write_record(record, out / "plan_a_training.csv")
        caption = (
            "The hidden weights of a layer-normalized network on digits under AdamW. Norm and angle per step go to the "
            "equilibrium that was planned before (dashed). Right: the share of ε in the denominators of the norm."
        )
        lg.plots.training(record, out / "plan_a_training", plan=plan, caption=caption)
    return {
        "norm": norm,
        "planned norm": row["equilibrium_norm"],
        "angle": angle,
        "planned angle": row["equilibrium_angle"],
        "decay": twice["weight_decay"],
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
