"""Add a claim with its proof: the verdict follows from the evidence.

Run it from a checkout: `python -m analysis.tutorials.add_a_claim`. With a folder as argument it also draws the figure.
The claim: n has no entry above √(H − 1) in absolute value. A claim that stays belongs in the file of its topic under
`lngeom/papers/ba2016/`. All names are public.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
import sympy
from lngeom.claims import Problem, Role, Verdict, agree, all_claims, claim, differ, run, vanishes
from lngeom.symbolic import Proof, equality


def largest(weights, inputs):
    """The largest |n| of layer norm."""
    return jnp.max(jnp.abs(lg.normalizers.LayerNorm()(weights, inputs)))


def extreme(units: int):
    """Weights and an input at which one unit stands against all others."""
    return jnp.eye(units, 1), jnp.ones((1, 1))


@claim(
    "tutorial.bound",
    topic="tutorial",
    source="Eq. 3",
    statement="Layer norm gives |n| ≤ √(H − 1).",
    expected=Verdict.HOLDS,
)
def bound(problem):
    """By numbers: no entry exceeds the bound, and one unit against all others attains it."""
    units = 8
    weights = jax.random.normal(jax.random.key(problem.seed), (units, problem.inputs.shape[1]))
    limit = (units - 1) ** 0.5
    excess = jnp.maximum(largest(weights, problem.inputs) - limit, 0)
    yield vanishes("excess of |n| over √(H − 1)", excess, scale=limit)
    yield agree("largest |n|, one unit against all others", largest(*extreme(units)), limit)


@bound.proof()
def bound_proof() -> Proof:
    """For all H: a is the unit's summed input, m and s² are the mean and the variance of the others."""
    H, s = sympy.symbols("H s", positive=True)
    a, m = sympy.symbols("a m", real=True)
    mean = ((H - 1) * m + a) / H
    variance = ((H - 1) * (s**2 + (m - mean) ** 2) + (a - mean) ** 2) / H
    square = (a - mean) ** 2 / variance
    gap = (H - 1) * H * s**2 / (H * s**2 + (a - m) ** 2)  # not negative for H ≥ 1, and zero as s → 0
    step = equality("The square of an entry stays below H − 1 by a term that is not negative", H - 1 - square, gap)
    return Proof(r"|n_i| \leq \sqrt{H - 1}", (step,))


@claim(
    "tutorial.too_tight",
    topic="tutorial",
    source="Eq. 3",
    statement="Layer norm gives |n| ≤ √H − 1.",
    expected=Verdict.REFUTED,
    correction="|n| ≤ √(H − 1).",
)
def too_tight(problem):
    """A tighter bound, which is false, and its correction."""
    found = largest(*extreme(8))
    yield differ("largest |n| and √H − 1", found, 8**0.5 - 1, role=Role.REFUTES)
    yield agree("largest |n| and √(H − 1)", found, 7**0.5, role=Role.CORRECTS)


def draw(out: Path) -> None:
    """Draws the largest |n| against both bounds."""
    sizes = list(range(3, 33))
    found = [float(largest(*extreme(units))) for units in sizes]
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        axis.plot(sizes, [(units - 1) ** 0.5 for units in sizes], label="√(H − 1)")
        axis.plot(sizes, [units**0.5 - 1 for units in sizes], label="√H − 1")
        axis.plot(sizes, found, ".", label="largest |n|")
        axis.set(xlabel="number of units H", ylabel="largest |n|")
        axis.legend()
        caption = "One unit against all others attains the bound √(H − 1) for every H, and exceeds √H − 1."
        lg.plots.save(figure, out / "add_a_claim", {"units": sizes, "largest": found}, caption=caption)


def main(out: Path | None = None) -> dict[str, str]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

    Returns:
        Verdicts by claim.
    """
    with jax.enable_x64(True):
        problem = Problem(jax.random.normal(jax.random.key(0), (50, 5), jnp.float64))
        outcomes = [run(found, problem) for found in all_claims("tutorial")]
        if out:
            draw(out)
    for outcome in outcomes:
        print(f"{outcome.claim.id}: {outcome.verdict.value}, as recorded: {outcome.as_recorded}")
        for evidence in outcome.evidence:
            print(f"  {evidence.role.value}: {evidence.description}, residual {evidence.residual:.1e}")
    print(bound_proof().to_text())
    return {outcome.claim.id: outcome.verdict.value for outcome in outcomes}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
