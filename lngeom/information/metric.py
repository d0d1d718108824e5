r"""The line element ds² of the Fisher metric, and Eqs. 32–35 about gains and weight magnitudes, printed and exact.

Units: nats, since $ds^2 \approx D_{KL}$ (Eq. 8).
"""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from lngeom._core.types import GLMParameters
from lngeom.information.glm import NormalizedGLM, require_affine
from lngeom.methods import BatchNorm, BatchNormEvaluation, Identity
from lngeom.methods.base import computes, summed_inputs

Method = Literal["exact", "printed"]


def ds2(fisher, delta) -> Float[Array, ""]:
    r"""Eq. 8: $ds^2 = \tfrac12\, \delta^\top F \delta$ in nats.

    Args:
        fisher: a matrix [P P], or an operator with a `quadratic_form` method.
        delta: a vector [P], or a pytree like the parameters.

    Returns:
        A scalar.

    Example:
        >>> float(ds2(jnp.diag(jnp.array([1.0, 4.0])), jnp.array([1.0, 0.5])))
        1.0
    """
    if hasattr(fisher, "quadratic_form"):
        return 0.5 * fisher.quadratic_form(delta)
    vector = ravel_pytree(delta)[0]
    return 0.5 * vector @ (fisher @ vector)


def gain_matrix(
    model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"], method: Method = "exact"
) -> Float[Array, "H H"]:
    r"""The block of the Fisher matrix along the gains, $E[\Lambda_{ij}\, n_i n_j]$.

    As printed, batch norm's (Eq. 32) is $E[\Lambda_{ij}]$, which is right only where Λ is uncorrelated with n². Layer
    norm's (Eq. 33) and weight norm's (Eq. 34) are exact.

    Args:
        model: a normalized GLM.
        params: parameters at which the metric is evaluated.
        inputs: X, one sample a row.
        method: "exact", or "printed" for the paper's formula.

    Returns:
        The matrix $E[\mathrm{Cov}[y_i, y_j|x]\, n_i n_j]/\phi^2$.

    Raises:
        ValueError: if the method is unknown, or a subclass has replaced z = g ⊙ n + b.
    """
    _check(method)
    require_affine(model, "the metric along the gains")
    covariance = model.family.metric(model.natural_parameters(params, inputs))
    if method == "printed" and computes(model.normalizer, BatchNorm, BatchNormEvaluation):
        return jnp.mean(covariance, 0)
    n = model.normalized(params, inputs)
    return jnp.einsum("nij,ni,nj->ij", covariance, n, n) / len(inputs)


def gain(
    model: NormalizedGLM,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    delta: Float[Array, " H"],
    method: Method = "exact",
) -> Float[Array, ""]:
    r"""Eqs. 32–34: ds² of a change δ_g of the gains, $\tfrac12\, \delta_g^\top E[\Lambda_{ij}\, n_i n_j]\, \delta_g$.

    Args:
        model: a normalized GLM.
        params: parameters at which the metric is evaluated.
        inputs: X, one sample a row.
        delta: δ_g.
        method: "exact", or "printed" for the paper's formula.

    Returns:
        A scalar, in nats.

    Raises:
        ValueError: if the method is unknown.
    """
    return 0.5 * delta @ gain_matrix(model, params, inputs, method) @ delta


def magnitude(
    model: NormalizedGLM,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    delta: Float[Array, " H"],
    method: Method = "exact",
) -> Float[Array, ""]:
    r"""Eq. 35: ds² of changes δ of the weight magnitudes of a standard GLM, $w_i \mapsto w_i + \delta_i w_i / \|w_i\|$.

    The exact value is $\frac{1}{2}\sum_{p,q} \delta_p \delta_q\, E[\Lambda_{pq}\, a_p a_q] / (\|w_p\| \|w_q\|)$.
    The paper prints, for two units i and j, only the cross term (p, q) = (i, j). It is zero for independent responses.

    Args:
        model: a GLM with the identity normalizer.
        params: parameters at which the metric is evaluated; gains of one.
        inputs: X, one sample a row.
        delta: δ; for "printed" exactly two entries may be nonzero.
        method: "exact", or "printed" for the paper's formula.

    Returns:
        A scalar, in nats.

    Raises:
        ValueError: if the model normalizes or has gains other than one, if the method is unknown, or if "printed" is
            used with other than two units.
    """
    _check(method)
    require_affine(model, "Eq. 35")
    if not computes(model.normalizer, Identity) or not bool(jnp.all(params.gain == 1)):
        raise ValueError("Eq. 35 is about the standard GLM: use normalizers.Identity() and a gain of ones")
    covariance = model.family.metric(model.natural_parameters(params, inputs))
    unit_output = summed_inputs(params.weights, inputs) / jnp.linalg.norm(params.weights, axis=1)[None, :]
    matrix = jnp.einsum("nij,ni,nj->ij", covariance, unit_output, unit_output) / len(inputs)
    if method == "exact":
        return 0.5 * delta @ matrix @ delta
    pair = np.flatnonzero(delta)
    if len(pair) != 2:
        raise ValueError(f"Eq. 35 is printed for two units i and j; got {len(pair)} nonzero entries of delta")
    i, j = pair
    return 0.5 * delta[i] * delta[j] * matrix[i, j]


def _check(method: str) -> None:
    if method not in {"exact", "printed"}:
        raise ValueError(f"method must be 'exact' or 'printed'; got {method!r}")
