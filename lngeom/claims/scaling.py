"""How blocks of the Fisher matrix scale with the weights: the implicit learning-rate reduction of Section 5.2.2."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lngeom import families
from lngeom._types import GLMParameters
from lngeom.claims._evidence import Role, Verdict, agree, differ
from lngeom.claims._problem import TITLES, Problem
from lngeom.claims._registry import claim
from lngeom.claims.fisher import automatic
from lngeom.information import _closed_form

TOPIC = "scaling"
FACTORS = (2.0, 0.3)


def scaled(params: GLMParameters, factor: float, unit: int | None = None) -> GLMParameters:
    """Parameters with all of W, or the weights of one unit, multiplied by a factor."""
    weights = params.weights * factor if unit is None else params.weights.at[unit].multiply(factor)
    return GLMParameters(weights, params.bias, params.gain)


def predicted(F, params: GLMParameters, factor: float, unit: int | None = None):
    """S F S with S = 1/c on the scaled weights and 1 elsewhere: ww by c⁻², wb and wg by c⁻¹, the rest unchanged."""
    inverse = jnp.ones_like(params.weights)
    inverse = inverse / factor if unit is None else inverse.at[unit].divide(factor)
    s = jnp.concatenate([inverse.reshape(-1), jnp.ones(2 * params.units, inverse.dtype)])
    return s[:, None] * F * s[None, :]


def _power_law(method: str, unit: int | None):
    which = "the weights of one unit" if unit is not None else "all of W"

    @claim(
        f"scaling.{'matrix' if unit is None else 'unit'}.{method}",
        topic=TOPIC,
        source="Section 5.2.2",
        statement=(
            f"{TITLES[method]}: multiplying {which} by c multiplies their own block of F by c⁻², their blocks "
            f"with anything "
            "else by c⁻¹, and leaves the rest as it is."
        ),
        formula=r"F(cw) = S F(w) S,\quad S = c^{-1} \text{ on } w,\ 1 \text{ elsewhere}",
        assumptions=("ε = 0", "c > 0"),
        expected=Verdict.HOLDS,
    )
    def check(problem: Problem):
        """Softmax outputs, so that off-diagonal blocks are there to scale; and the closed form on the data."""
        model, params, inputs = problem.small(method, families.Categorical())
        F = automatic(model, params, inputs)
        found = [automatic(model, scaled(params, c, unit), inputs) for c in FACTORS]
        laws = [predicted(F, params, c, unit) for c in FACTORS]
        yield agree("softmax, by definition", jnp.stack(found), jnp.stack(laws))
        model, params, inputs = problem.case(method)
        closed = eqx.filter_jit(_closed_form.dense)
        F = closed(model, params, inputs)
        found = closed(model, scaled(params, FACTORS[0], unit), inputs)
        yield agree("data, closed form", found, predicted(F, params, FACTORS[0], unit))

    return check


for _method in ("bn", "wn"):
    _power_law(_method, 0)
for _method in ("bn", "wn", "ln", "rms"):
    _power_law(_method, None)


@claim(
    "scaling.no_power_law.ln",
    topic=TOPIC,
    source="Section 5.2.2",
    statement="Layer norm: scaling the weights of one unit follows no such law, since it changes the output.",
    expected=Verdict.HOLDS,
)
def no_power_law_ln(problem: Problem):
    """Neither the law of batch norm nor any power of c fits the unit's own block."""
    model, params, inputs = problem.small("ln")
    F = automatic(model, params, inputs)
    own = slice(0, params.inputs)
    found = [automatic(model, scaled(params, c, 0), inputs) for c in FACTORS]
    yield differ("one unit scaled: F and S F S", found[0], predicted(F, params, FACTORS[0], 0))
    powers = np.array(
        [
            np.log(jnp.trace(f[own, own]) / jnp.trace(F[own, own])) / np.log(c)
            for f, c in zip(found, FACTORS, strict=True)
        ]
    )
    yield differ("exponents from two factors c", powers[:1], powers[1:])


@claim(
    "text.factor_half",
    topic=TOPIC,
    source="Section 5.2.2, implicit learning rate reduction",
    statement=(
        "If the norm of w_i grows twice as large, the curvature along the w_i direction changes by a factor of 1/2."
    ),
    expected=Verdict.REFUTED,
    correction=(
        "By 1/4: the diagonal block and the quadratic form go as ‖w‖⁻². The factor 1/2 is that of blocks "
        "between w_i and "
        "other parameters, and of the length ds. The effective learning rate is η/‖w‖²."
    ),
)
def factor_half(problem: Problem):
    """Ratios of blocks of F before and after doubling w_1, batch norm with a softmax."""
    model, params, inputs = problem.small("bn", families.Categorical())
    F, doubled = (automatic(model, p, inputs) for p in (params, scaled(params, 2.0, 0)))
    width, bias = params.inputs, params.units * params.inputs
    own, other = slice(0, width), slice(width, 2 * width)
    diagonal, moved = F[own, own], doubled[own, own]
    yield differ("own block: doubled, and ½ of before", moved, diagonal / 2, role=Role.REFUTES)
    yield agree("own block: doubled, and ¼ of before", moved, diagonal / 4, role=Role.CORRECTS)
    yield agree("block with w_2: ½", doubled[own, other], F[own, other] / 2, role=Role.CORRECTS)
    yield agree("block with biases and gains: ½", doubled[own, bias:], F[own, bias:] / 2, role=Role.CORRECTS)
    direction = jax.random.normal(problem.key("direction"), (width,), F.dtype)
    lengths = [jnp.sqrt(direction @ block @ direction) for block in (moved, diagonal)]
    yield agree("length ds along w_1: ½", lengths[0], lengths[1] / 2, role=Role.CORRECTS)


@claim(
    "text.norm_controls_learning_rate",
    topic=TOPIC,
    source="Section 5.2.2, implicit learning rate reduction",
    statement=(
        "The norm of the weights controls the learning rate: at a larger norm the same learning rate turns them less."
    ),
    formula=r"\theta \approx \eta\,\|\nabla\|/\|w\| \propto \|w\|^{-2}",
    assumptions=("η small", "ε = 0"),
    expected=Verdict.HOLDS,
)
def norm_controls_learning_rate(problem: Problem):
    """The angle of one SGD step against ‖W‖, over a factor of 32: a slope of −2 in the logarithms."""
    model, params, inputs = problem.case("ln")
    y = model.sample(problem.key("responses"), params, inputs)
    factors = 2.0 ** np.arange(-2, 4)
    rate = 1e-4

    @eqx.filter_jit
    def angle(factor):
        def loss(weights):
            return -jnp.mean(model.log_prob(GLMParameters(weights, params.bias, params.gain), inputs, y))

        weights = factor * params.weights
        gradient = jax.grad(loss)(weights)
        moved = weights - rate * gradient
        sine = jnp.linalg.norm(moved - weights * jnp.sum(moved * weights) / jnp.sum(jnp.square(weights)))
        return jnp.arcsin(sine / jnp.linalg.norm(moved))

    angles = np.array([angle(f) for f in factors])
    curve = {"angle of one step against ‖W‖": (factors, angles)}
    yield agree("angle · c² is constant", angles * factors**2, np.full(len(angles), angles[2]), tol=1e-3, curves=curve)
