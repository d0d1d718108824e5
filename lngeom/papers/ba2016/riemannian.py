"""Section 5.2.1: where the parameters of a normalized model are a Riemannian manifold."""

import random
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.flatten_util import ravel_pytree
from sympy import Expr, sqrt

from lngeom._core.types import GLMParameters
from lngeom.claims import (
    Problem,
    Role,
    Verdict,
    claim,
    differ,
    same_integer,
    vanishes,
)
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.problem import TITLES, Case
from lngeom.information import reference
from lngeom.methods import LayerNorm, RMSNorm
from lngeom.papers.ba2016.lg_fisher import LAMBDA, SMALL, TOPIC, operator
from lngeom.symbolic.jacobian import RADIAL, null_step
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Method
from lngeom.symbolic.modular import PRIME, jacobian_rows, random_layer, rank
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    equality,
    fact,
)
from lngeom.symbolic.sums import H, field, total


@claim(
    "text.riemannian",
    topic=TOPIC,
    source="Section 5.2.1",
    statement="Under the KL divergence metric, the parameter space (of a normalized model) is a Riemannian manifold.",
    assumptions=(
        "its points are input–output relations, as the paper says: parameters with equal outputs are one point",
        "near regular points, where the rank of F does not change: almost all, but not where several gains are zero, "
        "(centred) weights have rank one, or two units have the same weights",
    ),
    context=Context(
        sentence="Under the KL divergence metric, the parameter space is a Riemannian manifold.",
        before=(
            "The learnable parameters in a statistical model form a smooth manifold that consists of all possible "
            "input-output relations of the model. …"
        ),
        after=(
            "The curvature of a Riemannian manifold is entirely captured by its Riemannian metric, whose quadratic "
            "form is denoted as ds²."
        ),
        readings=(
            Reading(
                "The points of the manifold are input–output relations, as the paragraph says: parameters with equal "
                "outputs are one point.",
                Verdict.HOLDS,
            ),
            Reading(
                "The points of the manifold are the parameters. F is singular there, along vec(W) under layer norm.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "Near a regular point the relations form a manifold, on which F is positive definite, and the statement "
            "holds. The conditions are needed because the sentence says “parameter space”, and because at singular "
            "points the relations need not form a manifold. No conclusion of the paper depends on it."
        ),
    ),
    erratum=Erratum(
        Consequence.SENTENCE, "The metric is degenerate on the parameters: along some directions no output moves."
    ),
    expected=Verdict.CONDITIONAL,
)
def riemannian(problem: Problem):
    """The rank of F, at regular points and near them, and at singular points; the length of vec(W)."""
    units, inputs = 4, 3
    for method in ("ln", "rms", "bn", "wn"):
        case, title = problem.small(method, shape=(100, inputs, units), name="regular"), TITLES[method]
        near = [_rank(_nearby(problem, case, name)) for name in ("first", "second", "third")]
        for other in near:
            yield same_integer(
                f"{title}, a regular point: rank there, and at a random point near it", _rank(case), other
            )
        for what, point in _singular_points(case):
            yield differ(
                f"{title}, {what}: rank there, and near it",
                np.array([float(_rank(point))]),
                np.array([float(near[0])]),
                role=Role.FAILS_WITHOUT_CONDITION,
            )
    case = problem.small("ln")
    params = case.params
    W, _ = ravel_pytree(GLMParameters(params.weights, jnp.zeros_like(params.bias), jnp.zeros_like(params.gain)))
    F = np.asarray(operator(case).as_matrix())
    yield vanishes(
        "Layer norm, parameters themselves: ds² along vec(W), which is not zero",
        W @ F @ W,
        scale=float(np.trace(F) * W @ W / len(W)),
        role=Role.FAILS_WITHOUT_CONDITION,
    )


_triangle = eqx.filter_jit(lambda case: jnp.linalg.qr(reference.factor(*case), mode="r"))


def _rank(case: Case) -> int:
    """Rank of the factor of F, by automatic differentiation; √eps decides, as no singular value is near it."""
    values = np.linalg.svd(np.asarray(_triangle(case)), compute_uv=False)
    return int(np.sum(values > 1e-8 * values[0]))


def _nearby(problem: Problem, case: Case, name: str) -> Case:
    """The same model at parameters of which each is moved by about a tenth."""
    moved = lambda value: value + 0.1 * problem.normal(f"near {name} {value.shape}", *value.shape)
    return case._replace(params=jax.tree.map(moved, case.params))


def _singular_points(case: Case) -> Iterator[tuple[str, Case]]:
    """Points at which the rank of F is lower than near them."""
    gain, weights = case.params.gain, case.params.weights
    at = lambda where, value: case._replace(params=eqx.tree_at(where, case.params, value))
    grouped = isinstance(case.model.normalizer, LayerNorm | RMSNorm)
    yield "three zero gains", at(lambda p: p.gain, gain.at[:3].set(0.0))
    if grouped:
        yield "weights of rank one", at(lambda p: p.weights, weights[:, :1] * weights[:1])
    if isinstance(case.model.normalizer, LayerNorm):
        yield "two units with the same weights", at(lambda p: p.weights, weights.at[0].set(weights[1]))


MOVED = field("dz")
"""The change of the natural parameters of a case along a direction of all parameters."""


NORMS = (LAYER_NORM, RMS_NORM, BATCH_NORM, WEIGHT_NORM)


def exact_rank(method: Method, *, zero_gains: int = 0, alike: bool = False) -> int:
    """Rank of the Jacobian at H = 4, D = 3 over a prime field, at a random point; with zero gains or two equal rows."""
    draw = random.Random(f"{method.name} {zero_gains} {alike}")
    layer = random_layer(method, 4, 3, cases=40, draw=draw)
    layer.gain[:zero_gains] = 0
    if alike:
        layer.weights[0] = layer.weights[1]
    return rank(jacobian_rows(layer))


@riemannian.proof("conditional")
def riemannian_proof() -> Proof:
    """The form is zero only along directions that leave the output; on parameters themselves it is a semi-metric."""

    def length_of_null_vector(values) -> tuple[Expr, Expr]:
        W, x, t = values["W"], values["x"], sp.Symbol("t")
        outputs = LAYER_NORM.exactly(W, x), LAYER_NORM.exactly((1 + t) * W, x)
        change = (outputs[1] - outputs[0]).diff(t).subs(t, 0)
        form = sum(sp.nsimplify(sp.radsimp(entry)) ** 2 for entry in change)
        return (sum(w**2 for w in W) if sp.expand(form) == 0 else sp.S.Zero), sp.S.Zero

    on_parameters = Counterexample(
        "text.riemannian on parameters",
        r"v^\top F v = 0 \Rightarrow |v|^2 = 0",
        SMALL,
        length_of_null_vector,
        "The squared length of vec(W) (left), which has vᵀFv = 0, should be zero (right).",
    )
    return Proof(
        r"v^\top F v = E\sum_k\lambda_k (dz_k[v])^2 \geq 0, \text{ zero exactly where no output moves; } "
        r"\text{near a regular point the relations are a manifold, on which it is positive definite}",
        (
            equality(
                "At each case the form is a sum of squares, zero only where no output moves",
                total(lambda l: LAMBDA(l) * MOVED(l) ** 2, H),
                total(lambda l: (sqrt(LAMBDA(l)) * MOVED(l)) ** 2, H),
                r"v^\top F v",
            ),
            null_step("Under layer norm none moves along W", LAYER_NORM, RADIAL, moving="W", of="LN"),
            fact(
                "Where the rank of the derivative is constant, parameters with equal outputs are submanifolds, and the "
                "outputs near the point a manifold (constant rank theorem). The rank is the largest on an open dense "
                f"set; exactly, at (H, D) = (4, 3) modulo {PRIME}",
                r"\mathrm{rank} = 16\text{ (LN)},\ 19\text{ (RMS)},\ 16\text{ (BN, WN)}",
                lambda: [exact_rank(method) for method in NORMS] == [16, 19, 16, 16],
            ),
            fact(
                "There are points of lower rank: three zero gains,",
                r"\mathrm{rank} = 15,\ 15,\ 10,\ 10",
                lambda: [exact_rank(method, zero_gains=3) for method in NORMS] == [15, 15, 10, 10],
            ),
            fact(
                "and under layer norm two units with the same weights",
                r"\mathrm{rank} = 15",
                lambda: exact_rank(LAYER_NORM, alike=True) == 15,
            ),
        ),
        (
            Assumption("outputs are independent and have positive variance", r"\Lambda = \mathrm{diag}\,\lambda > 0"),
            Assumption("near a regular point", r"\mathrm{rank}\,F(\theta') = \mathrm{rank}\,F(\theta)"),
            Assumption(
                "points are input–output relations",
                r"\theta \sim \theta' \Leftrightarrow z_\theta(x) = z_{\theta'}(x)\ \forall x",
                on_parameters,
            ),
        ),
    )
