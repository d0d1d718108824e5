"""Add a claim: a statement, a check and a proof of a few lines, whose verdict follows from the evidence.

Run it from a checkout: `python -m analysis.tutorials.add_a_claim`. A claim that stays belongs on the page of its topic
under `lngeom/claims/`, where `@claim` and `@proves` register it; here it is made and run without being registered.
"""

import jax
import jax.numpy as jnp
from lngeom.claims import Problem, Role, Verdict, agree, differ, run, vanishes
from lngeom.claims.registry import Claim
from lngeom.symbolic import Proof, equality
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import LAYER_NORM
from lngeom.symbolic.sums import H, mean, n


def bounded(problem):
    """|n| ≤ √(H − 1) for layer norm, attained where one unit stands against all others."""
    model, params, inputs = problem.small("ln")
    bound = (params.units - 1) ** 0.5
    n = model.normalized(params, inputs)
    yield vanishes("excess of |n| over √(H − 1)", jnp.maximum(jnp.abs(n) - bound, 0), scale=bound)
    single = jnp.zeros_like(params.weights).at[0].set(1.0)
    extreme = model.normalized(type(params)(single, params.bias, params.gain), inputs)
    yield agree("one unit against all others attains it", jnp.max(jnp.abs(extreme)), bound)


def squares_proof() -> Proof:
    """What the bound rests on, for all sizes: the squares of the H values sum to H; a step that fails raises."""
    step = equality("The mean square is one", mean(lambda l: LAYER_NORM(LAYER, n, l) ** 2, H), 1)
    return Proof("tutorial.squares", r"\sum_i n_i^2 = H", (step,))


def too_tight(problem):
    """The same with √H − 1, which is false, and the correction."""
    model, params, inputs = problem.small("ln")
    single = jnp.zeros_like(params.weights).at[0].set(1.0)
    largest = jnp.max(jnp.abs(model.normalized(type(params)(single, params.bias, params.gain), inputs)))
    yield differ("largest |n| and √H − 1", largest, params.units**0.5 - 1, role=Role.REFUTES)
    yield agree("largest |n| and √(H − 1)", largest, (params.units - 1) ** 0.5, role=Role.CORRECTS)


def main() -> dict[str, str]:
    """Runs the tutorial.

    Returns:
        Verdicts by claim.
    """
    claims = [
        Claim(
            "tutorial.bound",
            topic="tutorial",
            source="Eq. 3",
            statement="|n| ≤ √(H − 1).",
            expected=Verdict.HOLDS,
            check=bounded,
        ),
        Claim(
            "tutorial.too_tight",
            topic="tutorial",
            source="Eq. 3",
            statement="|n| ≤ √H − 1.",
            expected=Verdict.REFUTED,
            correction="|n| ≤ √(H − 1).",
            check=too_tight,
        ),
    ]
    with jax.enable_x64(True):
        problem = Problem(jax.random.normal(jax.random.key(0), (50, 5), jnp.float64))
        outcomes = [run(claim, problem) for claim in claims]
    for outcome in outcomes:
        print(f"{outcome.claim.id}: {outcome.verdict.value}, as recorded: {outcome.as_recorded}")
        for evidence in outcome.evidence:
            print(f"  {evidence.role.value}: {evidence.description}, residual {evidence.residual:.1e}")
    print(squares_proof().to_text())
    return {outcome.claim.id: outcome.verdict.value for outcome in outcomes}


if __name__ == "__main__":
    main()
