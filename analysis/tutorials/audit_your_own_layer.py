"""Audit your own layer: which invariances it has, to what precision, and where they end.

Run it from a checkout: `python -m analysis.tutorials.audit_your_own_layer`.
With a folder as argument it also draws the figure.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
from lngeom import checks, plots


def my_norm(a):
    """A norm of summed inputs [N H], written from memory: the mean is taken out, ε stands in the root."""
    centred = a - jnp.mean(a, -1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + 1e-5)


def shifted_norm(a):
    """The same with a slip: the mean square is taken before the mean is taken out."""
    mean_square = jnp.mean(jnp.square(a), -1, keepdims=True)
    return (a - jnp.mean(a, -1, keepdims=True)) / jnp.sqrt(mean_square + 1e-5)


def draw(reports, out: Path) -> None:
    """Draws the largest change of the output under each transformation."""
    titles = [result.title for result in next(iter(reports.values())).results]
    changes = {label: [result.deviation for result in report.results] for label, report in reports.items()}
    with plots.figure(height=3.6) as (figure, axes):
        axis = axes[0, 0]
        for (label, values), marker in zip(changes.items(), "ox", strict=True):
            axis.plot(values, titles, marker, label=label)
        axis.set(xlabel="largest relative change of the output")
        axis.set_xscale("symlog", linthresh=1e-8)
        axis.invert_yaxis()
        axis.legend()
        caption = (
            "Largest change of the output under each transformation, in float32, for two norms written from memory. "
            "The one with the slip changes where weights are re-centered."
        )
        plots.save(figure, out / "audit_your_own_layer", {"titles": titles, "changes": changes}, caption=caption)


def main(out: Path | None = None) -> dict[str, str]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

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

    if out:
        draw({"my_norm": report, "shifted_norm": slip}, out)

    # From a shell: `lngeom check mypackage.layers:MyNorm --like layer`, which exits with 1 where the rows differ.
    return {"right": report[name].verdict.value, "slip": slip[name].verdict.value}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
