"""Audit your own layer: which invariances it has, to what precision, and where they end.

Run it from a checkout: `python -m analysis.tutorials.audit_your_own_layer`.
"""

import jax.numpy as jnp
from lngeom import checks


def my_norm(a):
    """A norm of summed inputs [N H], written from memory: the mean is taken out, ε stands in the root."""
    centred = a - jnp.mean(a, -1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + 1e-5)


def shifted_norm(a):
    """The same with a slip: the mean square is taken before the mean is taken out."""
    mean_square = jnp.mean(jnp.square(a), -1, keepdims=True)
    return (a - jnp.mean(a, -1, keepdims=True)) / jnp.sqrt(mean_square + 1e-5)


def main() -> dict[str, str]:
    """Runs the tutorial.

    Returns:
        Verdicts by name.
    """
    # A normalizer, a function, or a module of flax, equinox, haiku, torch or Keras; here a function of summed inputs.
    report = checks.check_invariances(my_norm, kind="summed", like="layer")
    print(report)

    # "Lost to rounding" means: invariant, until the numbers that cancel are too large for the dtype. A slip shows as
    # "not invariant", with a small counterexample.
    slip = checks.check_invariances(shifted_norm, kind="summed")
    name = "weight_matrix_recentering"
    print(f"{name}: {report[name].verdict.value} in the first, {slip[name].verdict.value} in the second")

    # From a shell: `lngeom check mypackage.layers:MyNorm --like layer`, which exits with 1 where the rows differ.
    return {"right": report[name].verdict.value, "slip": slip[name].verdict.value}


if __name__ == "__main__":
    main()
