r"""Higher-order geometry: the Levi-Civita connection of the Fisher metric, and geodesics.

The metric is degenerate along symmetries, so geodesics are those of the quotient: at each step the acceleration is the
minimum-norm one. With $\Gamma(v, v)_k = \frac12 (2\, \partial_v F v - \nabla \langle v, F v\rangle)_k$ (first kind), a
geodesic obeys $\ddot\theta = -F^+ \Gamma(\dot\theta, \dot\theta)$.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lngeom.information._coupled import at_parameters
from lngeom.information._factor import triangular
from lngeom.information._operator import FisherOperator
from lngeom.information._products import product, quadratic_form
from lngeom.information._spectrum import decompose


def christoffel(operator: FisherOperator, v: PyTree) -> PyTree:
    r"""Christoffel symbols of the first kind contracted twice with a vector, $\Gamma_{ijk} v^i v^j$.

    Two more derivatives of a matrix-free product: no matrix and no array of P³ is formed.

    Args:
        operator: a Fisher operator of an exact or printed metric.
        v: a pytree like params, or ravelled.

    Returns:
        Γ(v, v), a covector of the form of v.

    Raises:
        ValueError: if the operator is a Monte Carlo or empirical one, whose metric has no derivative of its
            own.
    """
    if operator.problem.scores is not None:
        raise ValueError(f"the connection is that of the exact metric; got method={operator.method!r}")
    flat = isinstance(v, jax.Array) and jax.tree.structure(v) != jax.tree.structure(operator.problem.params)
    tangent = operator.problem.unravel(v) if flat else v
    result = _christoffel(operator, tangent)
    return operator.problem.ravel(result) if flat else result


@jax.jit
def _christoffel(operator: FisherOperator, v: PyTree) -> PyTree:
    problem, at = operator.problem, operator.chunks

    def image(params: PyTree) -> PyTree:
        return product(at_parameters(problem, params), at, v)

    def form(params: PyTree) -> Array:
        return quadratic_form(at_parameters(problem, params), at, v)

    _, along = jax.jvp(image, (problem.params,), (v,))
    gradient = jax.grad(form)(problem.params)
    return jax.tree.map(lambda a, g: a - g / 2, along, gradient)


def geodesic(
    operator: FisherOperator, velocity: Float[Array, " P"], time: float = 1.0, steps: int = 20
) -> tuple[PyTree, Array]:
    """Follows the geodesic of the quotient from the operator's parameters (fourth-order Runge–Kutta).

    The velocity is made horizontal first; its length in the Fisher metric is conserved, up to the error of the steps. A
    decomposition a stage: for small P.

    Args:
        operator: a Fisher operator of the exact metric.
        velocity: initial velocity, ravelled.
        time: how long to follow it.
        steps: number of steps.

    Returns:
        Parameters at the end, and the velocity there.
    """
    at = operator.row_chunks
    start = operator.problem.ravel(operator.problem.params)

    def acceleration(theta: Array, v: Array) -> Array:
        problem = at_parameters(operator.problem, operator.problem.unravel(theta))
        parts = decompose(triangular(problem, at), problem, at, operator.plan.budget)
        gamma = christoffel(operator.at_problem(problem), v)
        s = parts.singular_values[: parts.rank]
        return -parts.range @ ((parts.range.T @ gamma) / jnp.square(s))

    def derivative(state: Array) -> Array:
        return jnp.stack([state[1], acceleration(state[0], state[1])])

    state = jnp.stack([start, operator.project_horizontal(velocity)])
    h = time / steps
    for _ in range(steps):
        k1 = derivative(state)
        k2 = derivative(state + h / 2 * k1)
        k3 = derivative(state + h / 2 * k2)
        k4 = derivative(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return operator.problem.unravel(state[0]), state[1]
