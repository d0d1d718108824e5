"""From a theorem to a verdict: audit a paper of your own in twenty lines.

Run it from a checkout: `python -m analysis.tutorials.audit_a_paper`. A folder as argument is where it draws the figure.
The theorem: layer norm of d inputs is √d times the projection of the centred input to the unit sphere (Brody, Alon and
Yahav 2023). `lngeom new-paper NAME` writes a folder of this form, with a test; `lngeom verify --paper NAME` runs it.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import lngeom as lg
from lngeom.claims import Paper, Problem, Role, Verdict, agree, differ, run

PAPER = Paper("tutorial_sphere", "A tutorial", ("lngeom",), 2026, finding="RMSNorm leaves the mean in.")


def on_sphere(a, centred=True):
    """√d times the unit vector along a, or along a less its mean."""
    u = a - a.mean(1, keepdims=True) if centred else a
    return jnp.sqrt(1.0 * a.shape[1]) * u / jnp.linalg.norm(u, axis=1, keepdims=True)


@PAPER.claim(
    "tutorial_sphere.projection",
    source="Section 2",
    statement="Normalization projects to the sphere of radius √d around 0, within the hyperplane of mean 0.",
    assumptions=("the mean is subtracted: layer norm, not RMSNorm",),
    expected=Verdict.CONDITIONAL,
)
def projection(problem):
    """Layer norm is the projection; RMSNorm's outputs have a mean."""
    _, params, inputs = problem.case("ln")
    a = inputs @ params.weights.T
    yield agree("layer norm and the projection", lg.normalizers.LayerNorm()(params.weights, inputs), on_sphere(a))
    rms = lg.normalizers.RMSNorm()(params.weights, inputs)
    yield differ("RMSNorm and the projection", rms, on_sphere(a), role=Role.FAILS_WITHOUT_CONDITION)


def draw(out: Path) -> None:
    """Draws both methods' outputs for three units: a circle, and the sphere around it."""
    a = jax.random.normal(jax.random.key(1), (400, 3)) + 0.7
    found = {"layer norm": on_sphere(a), "RMSNorm": on_sphere(a, centred=False)}
    with lg.plots.figure(width="column") as (figure, axes):
        axis = axes[0, 0]
        for name, points in found.items():
            axis.plot(points[:, 0], points[:, 1], ".", markersize=3, label=name)
        axis.set(xlabel="first output", ylabel="second output", aspect="equal")
        axis.legend()
        caption = "Outputs for three units, seen along the third: layer norm's lie on a circle of mean 0, a tilted "
        caption += "great circle; RMSNorm's fill the sphere of radius √3."
        data = {name: points.tolist() for name, points in found.items()}
        lg.plots.save(figure, out / "audit_a_paper", data, caption=caption)


def main(out: Path | None = None) -> dict[str, str]:
    """Runs the tutorial.

    Args:
        out: folder for the figure; none is drawn by default.

    Returns:
        Verdicts by claim.
    """
    with jax.enable_x64(True):
        problem = Problem(jax.random.normal(jax.random.key(0), (50, 5), jnp.float64))
        outcomes = [run(claim, problem) for claim in PAPER.claims]
        if out:
            draw(out)
    for outcome in outcomes:
        print(f"{outcome.claim.id}: {outcome.verdict.value}, as recorded: {outcome.as_recorded}")
        for evidence in outcome.evidence:
            print(f"  {evidence.role.value}: {evidence.description}, residual {evidence.residual:.1e}")
    return {outcome.claim.id: outcome.verdict.value for outcome in outcomes}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
