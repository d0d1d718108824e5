"""A group action on the parameters of a problem: its elements, its derivatives, and what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from lngeom._core.numerics import agreement, tolerance
from lngeom._core.trees import leaf_paths
from lngeom._core.types import is_concrete
from lngeom.information._problem import Problem

DRAWN = 4
"""Elements that are drawn where none are given."""

Map = Callable[[PyTree], PyTree]


@dataclass(frozen=True)
class Action:
    """θ ↦ gθ on the differentiated leaves of a problem.

    Attributes:
        function: action(g, params) → params, of the user's whole parameters.
        problem: the model at θ.
        identity: g₀; None for a finite group.
    """

    function: Callable[[Any, PyTree], PyTree]
    problem: Problem
    identity: Array | None

    def __call__(self, g: Any, params: PyTree) -> PyTree:
        """The differentiated leaves of gθ.

        Raises:
            ValueError: if the action returns another pytree, other shapes or dtypes, changes what is not
                differentiated, or is not finite.
        """
        whole = self.problem.join(params)
        try:
            moved = self.function(g, whole)
        except Exception as error:
            error.add_note(f"(raised by action(g, params) as lg.equivariance called it, with g = {shown(g)})")
            if not is_concrete(g, params):
                error.add_note("(lg.equivariance differentiates the action: write the action in jax.numpy)")
            raise
        before, after = jax.tree.structure(whole), jax.tree.structure(moved)
        if before != after:
            raise ValueError(f"action(g, params) must return a pytree like params, {before}; got {after}")
        trained, found = set(leaf_paths(params)), []
        for path, old, new in zip(leaf_paths(whole), jax.tree.leaves(whole), jax.tree.leaves(moved), strict=True):
            if path in trained:
                found.append(_checked(path, old, new, g))
            elif eqx.is_array_like(old) and is_concrete(new) and not np.array_equal(old, new):
                raise ValueError(
                    f"action(g, params) must leave {path!r} as it is, which is no parameter that lg.fisher "
                    "differentiates"
                )
        return jax.tree.unflatten(jax.tree.structure(params), found)

    def derivative(self, g: Any, params: PyTree) -> tuple[Map, Map]:
        """Dg, the derivative of gθ by θ, and Dgᵀ, as maps of tangents."""
        push = jax.linearize(lambda p: self(g, p), params)[1]
        pull = jax.linear_transpose(push, params)
        return jax.jit(push), jax.jit(lambda u: pull(u)[0])

    def generator(self, direction: Array, params: PyTree) -> PyTree:
        """ξθ, the derivative of gθ by g at g₀ in a direction."""
        assert self.identity is not None
        return jax.jvp(lambda g: self(g, params), (self.identity,), (direction,))[1]

    def directions(self, key: PRNGKeyArray, most: int) -> list[Array]:
        """Directions of g at g₀, whose generators span all; of more than `most`, so many random combinations."""
        if self.identity is None:
            return []
        size, shape, dtype = self.identity.size, self.identity.shape, self.identity.dtype
        if size <= most:
            return list(jnp.eye(size, dtype=dtype).reshape(size, *shape))
        return list(jax.random.normal(key, (most, *shape), dtype))

    def require_identity(self, params: PyTree) -> None:
        """Refuses an action that moves the parameters at g₀.

        Raises:
            ValueError: if it does; the message says which leaf, and by how much.
        """
        if self.identity is None:
            return
        moved = self(self.identity, params)
        for path, old, new in zip(leaf_paths(params), jax.tree.leaves(params), jax.tree.leaves(moved), strict=True):
            if old.size and agreement(new, old).residual > tolerance(old.dtype):
                raise ValueError(
                    f"action(g, params) must be the identity at g = {shown(self.identity)}; it changes {path!r} there, "
                    f"by {agreement(new, old).residual:.2g} of its size. Name the identity with identity=, as identity="
                    "1.0 of a scaling, or None of a finite group"
                )


def _checked(path: str, old: Any, new: Any, g: Any) -> Any:
    """A moved leaf.

    Raises:
        ValueError: if its shape or dtype is not that of the leaf, or it is not finite.
    """
    if jnp.shape(new) != jnp.shape(old) or jnp.result_type(new) != jnp.result_type(old):
        raise ValueError(
            f"action(g, params) must keep shapes and dtypes: {path!r} is {jnp.result_type(old)}{list(jnp.shape(old))}; "
            f"got {jnp.result_type(new)}{list(jnp.shape(new))}"
        )
    if is_concrete(new) and not bool(jnp.all(jnp.isfinite(new))):
        raise ValueError(f"action(g, params) must be finite; it is not in {path!r} at g = {shown(g)}")
    return jnp.asarray(new)


def read_identity(identity: Any, dtype: jnp.dtype) -> Array | None:
    """g₀ in the dtype of the parameters.

    Raises:
        ValueError: if it is no finite real number or array.
    """
    if identity is None:
        return None
    kind = np.asarray(identity).dtype.kind if eqx.is_array_like(identity) else "O"
    plain = isinstance(identity, int) and not isinstance(identity, bool)
    if (kind != "f" and not plain) or not np.all(np.isfinite(identity)) or not np.size(identity):
        raise ValueError(
            "identity must be a real number or an array of them, at which the action is smooth, or None for a finite "
            f"group, whose elements= are given; got {shown(identity)}"
        )
    return jnp.asarray(identity, dtype)


def read_elements(elements: Any, identity: Array | None, key: PRNGKeyArray) -> list[Any]:
    """The elements given, a list or the rows of an array, or some drawn around g₀.

    They are drawn uniformly within ½, over the root of a matrix's width.

    Raises:
        ValueError: if there are none, or one is not like g₀.
    """
    if elements is None and identity is not None:
        shape = identity.shape
        width = 2 * float(np.sqrt(shape[-1])) if len(shape) > 1 else 2.0
        draws = jax.random.uniform(key, (DRAWN, *shape), identity.dtype, -1, 1) / jnp.asarray(width, identity.dtype)
        return [identity + draw for draw in draws]
    if isinstance(elements, jax.Array | np.ndarray) and elements.ndim:
        elements = list(elements)
    if elements is None or not isinstance(elements, Sequence) or not elements:
        raise ValueError(
            "elements must be a list of at least one element g, as action(g, params) takes; a finite group, whose "
            f"identity is None, has no others; got {shown(elements)}"
        )
    if identity is None:
        return list(elements)
    for g in elements:
        if not eqx.is_array_like(g) or np.shape(g) != identity.shape or np.asarray(g).dtype.kind not in "fi":
            raise ValueError(
                f"elements must be real and of the shape {identity.shape} of the identity; got {shown(g)}. For a "
                "finite group say identity=None"
            )
    return [jnp.asarray(g, identity.dtype) for g in elements]


def shown(g: Any) -> str:
    """An element in a line; a traced one has no value to show."""
    if isinstance(g, jax.core.Tracer):
        return "a traced value"
    if eqx.is_array_like(g) and np.ndim(g):
        return f"an array {list(np.shape(g))}"
    if eqx.is_array_like(g) and not jnp.iscomplexobj(g):
        return f"{float(g):.4g}"
    text = repr(g)
    return text if len(text) <= 40 else f"{text[:37]}…"
