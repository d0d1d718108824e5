"""`natural_gradient`: an optax transformation to natural gradients, with the predicted null space projected out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_nonnegative
from lngeom._core.trees import leaf_paths
from lngeom._core.types import is_concrete, is_tracing
from lngeom.families import AbstractFamily
from lngeom.information import FisherOperator, fisher
from lngeom.information.glm import NormalizedGLM
from lngeom.information.predicted import predicted_nullspace


class NaturalGradientState(NamedTuple):
    """The state between updates.

    Attributes:
        step: number of updates so far.
    """

    step: Array


def natural_gradient(
    model_or_apply: NormalizedGLM | Callable[[PyTree, PyTree], Array],
    *,
    family: AbstractFamily | None = None,
    wrt: str | Sequence[str] | Callable[[str, Array], bool] | None = None,
    approximation: str | None = "ekfac",
    damping: float | Callable[[Array], Array] = 1e-3,
    nullspace: Callable[[PyTree, PyTree], Any] | None = None,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    convention: str = "expand",
) -> optax.GradientTransformationExtraArgs:
    r"""Turns gradients into natural gradients $(\hat F + \lambda I)^{-1} g$, without their part along null directions.

    An approximation by blocks does not know the null directions of F, which run across layers: on them it divides noise
    by the damping. The part of the result along them does not change the outputs, and is projected out.

    `update` takes the inputs of the batch: `update(gradients, state, params, inputs=X)`. The result points uphill, like
    a gradient: follow it by `optax.scale(-0.1)`.

    Args:
        model_or_apply: a `NormalizedGLM`, or any JAX function apply(params, X), as `lg.fisher` takes.
        family: of the outputs of a function.
        approximation: one of those of `F.approximate`; None for F itself, by conjugate gradients.
        wrt: which leaves are trained, as in `lg.fisher`; by default its parameters. The updates of the others are 0.
            Use it in the place of `optax.masked`, which hides the other leaves from the model.
        damping: λ > 0, or a schedule: number of updates so far ↦ λ.
        nullspace: (params, X) ↦ null directions: orthonormal columns [P k], or what `lg.predicted_nullspace` returns.
            By default the predicted ones of a whole normalized GLM (not under jit), and none of a function.
        key: for draws of an approximation; each update has its own.
        samples: draws, as in `F.approximate`.
        convention: "expand" or "reduce", as in `F.approximate`.

    Returns:
        The transformation.

    Raises:
        ValueError: if damping is not positive, or the model is none. At `update`, if params or inputs are missing, a
            gradient is missing, or a null space is to be predicted under jit.

    Example:
        >>> import lngeom as lg
        >>> model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
        >>> X = jax.random.normal(jax.random.key(0), (50, 3))
        >>> params = model.init(jax.random.key(1), inputs=3, outputs=4)
        >>> opt = optax.chain(lg.training.natural_gradient(model), optax.scale(-0.1))
        >>> gradients = jax.grad(lambda p: -model.log_prob(p, X, jnp.ones((50, 4))).mean())(params)
        >>> updates, _ = opt.update(gradients, opt.init(params), params, inputs=X)
        >>> null, _ = lg.predicted_nullspace(model, params, X)
        >>> bool(jnp.abs(null.T @ ravel_pytree(updates)[0]).max() < 1e-6)
        True
    """
    if not callable(damping):
        check_nonnegative("damping", damping)
        if not damping > 0:
            raise ValueError(f"damping must be more than 0; got {damping}")

    if not isinstance(model_or_apply, NormalizedGLM) and not callable(model_or_apply):
        raise ValueError(
            f"expected a NormalizedGLM or a function apply(params, X); got a {type(model_or_apply).__name__}"
        )

    def init(params: PyTree) -> NaturalGradientState:
        del params
        return NaturalGradientState(jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree,
        state: NaturalGradientState,
        params: PyTree | None = None,
        *,
        inputs: PyTree = None,
        **extra: Any,
    ) -> tuple[PyTree, NaturalGradientState]:
        del extra
        if params is None or inputs is None:
            raise ValueError(
                "natural_gradient needs the parameters and the inputs of the batch: call update(gradients, state, "
                "params, inputs=X)"
            )
        F = fisher(model_or_apply, params, inputs, family=family, wrt=wrt, check=False)
        gradient = _trained(F, updates)
        strength = damping(state.step) if callable(damping) else damping
        if approximation is None:
            solution = F.solve(gradient, strength, method="cg")
        else:
            drawn = None if key is None else jax.random.fold_in(key, state.step)
            chosen = F.approximate(approximation, key=drawn, samples=samples, convention=convention)
            solution = chosen.solve(gradient, strength)
        found = _known(model_or_apply, params, inputs, nullspace, whole=wrt is None)
        moved = dict(zip(F.leaves, jax.tree.leaves(_horizontal(solution.value, found)), strict=True))
        leaves, structure = jax.tree.flatten(updates)
        # a leaf that is not trained stays where it is
        result = [moved.get(path, jnp.zeros_like(g)) for path, g in zip(leaf_paths(updates), leaves, strict=True)]
        return jax.tree.unflatten(structure, result), NaturalGradientState(state.step + 1)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _trained(F: FisherOperator, updates: PyTree) -> PyTree:
    """The gradients of the differentiated leaves, as a tangent."""
    given = dict(zip(leaf_paths(updates), jax.tree.leaves(updates), strict=True))
    if missing := [path for path in F.leaves if path not in given]:
        raise ValueError(
            f"there are no gradients of {', '.join(missing)}; those given are of {', '.join(given) or 'nothing'}. Name "
            "the leaves that are trained with wrt="
        )
    return jax.tree.unflatten(F.problem.layout.structure, [given[path] for path in F.leaves])


def _known(model: Any, params: PyTree, inputs: PyTree, nullspace: Callable | None, whole: bool) -> Any:
    """The null directions that are known, or None."""
    if nullspace is not None:
        return nullspace(params, inputs)
    if not isinstance(model, NormalizedGLM) or not whole:
        return None
    if is_tracing() or not is_concrete(params, inputs):
        raise ValueError(
            "a null space is predicted from values, which do not exist yet under jit: call update outside jit, or give "
            "nullspace= a function that returns a basis"
        )
    return predicted_nullspace(model, params, inputs)


def _horizontal(v: PyTree, found: Any) -> PyTree:
    """The part of v orthogonal to null directions."""
    if found is None:
        return v
    if hasattr(found, "project"):
        return jax.tree.map(jnp.subtract, v, found.project(v))
    flat, unravel = ravel_pytree(v)
    basis = jnp.asarray(getattr(found, "basis", found), flat.dtype)
    return unravel(flat - basis @ (basis.T @ flat))
