"""Matrix-free products with the Fisher matrix, one or many vectors at a time, in bounded memory.

Where the derivative of all samples fits in memory it is computed once and kept. Else each product computes it again,
chunk by chunk.
"""

import abc
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from lngeom._core.trees import Layout, leaf_paths
from lngeom.information._derivative import BlockedPullback, Pullback, has_closed_form, pullback_of
from lngeom.information._planner import Plan
from lngeom.information._problem import Problem
from lngeom.information._sharding import (
    Placement,
    is_sharded,
    like_params,
    on_each_shard,
    put_on_automatic_mesh,
    sum_over_samples,
)

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator


class Stored(eqx.Module):
    """The pullback of all samples; on several devices, one part on each, stacked.

    Attributes:
        pullback: of all samples, or with one more leading axis for the devices.
        layout: of a tangent.
        at: where the samples are.
    """

    pullback: Pullback | BlockedPullback
    layout: Layout = eqx.field(static=True)
    at: Placement = eqx.field(static=True)

    def apply(self, function, *arguments: PyTree) -> PyTree:
        """Σ over devices of function(pullback, *arguments)."""
        if self.at.mesh is None:
            return function(self.pullback, *arguments)

        def local(pullback: Pullback | BlockedPullback, *arguments: PyTree) -> PyTree:
            part = jax.tree.map(lambda leaf: leaf[0], pullback)
            return jax.lax.psum(function(part, *arguments), self.at.axes)

        specs = jax.tree.map(lambda _: PartitionSpec(self.at.axes), self.pullback)
        whole = tuple(jax.tree.map(lambda _: PartitionSpec(), a) for a in arguments)
        run = jax.shard_map(
            local, mesh=self.at.mesh, in_specs=(specs, *whole), out_specs=PartitionSpec(), check_vma=False
        )
        return run(self.pullback, *arguments)


Sums = Callable[[Problem, Pullback | BlockedPullback], PyTree]
"""Something that is summed over samples, from a part of them and their pullback."""


@functools.partial(jax.jit, static_argnames=("at", "also"))
def store(problem: Problem, at: Placement, also: Sums = lambda part, pullback: ()) -> tuple[Stored, PyTree]:
    """Computes the derivative of all samples once, to be used by every product, and what else is asked of it."""
    if not is_sharded(at, problem):
        pullback = pullback_of(problem)
        return Stored(pullback, problem.layout, at._replace(mesh=None)), also(problem, pullback)

    def on_shard(part: Problem) -> PyTree:
        pullback = pullback_of(part)
        return jax.tree.map(lambda leaf: leaf[None], (pullback, also(part, pullback)))

    stacked, sums = on_each_shard(on_shard, problem, at, divided=True)
    return Stored(stacked, problem.layout, at), jax.tree.map(lambda leaf: jnp.sum(leaf, 0), sums)


Source = Stored | Problem
"""What a product is computed from: a stored derivative, or the problem, to be differentiated again."""


def _run(source: Source, at: Placement, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Σ over samples of function(pullback, *arguments)."""
    if isinstance(source, Stored):
        return source.apply(function, *arguments)
    return sum_over_samples(lambda part, *a: function(pullback_of(part), *a), source, at, *arguments)


@functools.partial(jax.jit, static_argnames="at")
def product(source: Source, at: Placement, v: PyTree) -> PyTree:
    """F v for one tangent like params."""
    source.layout.check(v)
    return _run(source, at, lambda pullback, v: like_params(pullback.product(v), at), v)


@functools.partial(jax.jit, static_argnames="at")
def flat_product(source: Source, at: Placement, vector: Float[Array, " P"]) -> Float[Array, " P"]:
    """F v for one ravelled tangent."""
    return ravel_pytree(_run(source, at, lambda pullback, v: pullback.product(v), source.layout.unravel(vector)))[0]


@functools.cache
def _compiled(function: Callable, structure: Any, at: Placement) -> Callable[[list[Array], PyTree], PyTree]:
    return jax.jit(lambda leaves, v: function(jax.tree.unflatten(structure, leaves), at, v))


def compiled(function: Callable, source: Source, at: Placement) -> Callable[[PyTree], PyTree]:
    """The map v ↦ function(source, at, v), compiled: a list of arrays is read faster than nested modules."""
    leaves, structure = jax.tree.flatten(source)
    return functools.partial(_compiled(function, structure, at), leaves)


Method = TypeVar("Method", bound=Callable)


class _LightMethod:
    """Descriptor of a method bound as a `jax.tree_util.Partial`."""

    def __init__(self, function: Callable):
        self.function = function

    def __get__(self, instance: Any, owner: type) -> Any:
        return self.function if instance is None else jax.tree_util.Partial(self.function, instance)


def light(method: Method) -> Method:
    """Binds as `tree_util.Partial`, for faster dispatch: to bind as equinox does takes as long as a small product."""
    return cast(Method, _LightMethod(method))


@functools.partial(jax.jit, static_argnames=("at", "batch"))
def products(source: Source, at: Placement, vectors: Float[Array, "P K"], batch: int) -> Float[Array, "P K"]:
    """F V for the columns of a matrix, `batch` vectors in one pass through the model."""
    return jax.lax.map(lambda v: flat_product(source, at, v), vectors.T, batch_size=batch).T


class FlatProduct(eqx.Module):
    """The map v ↦ F v of ravelled vectors in any dtype: a pytree that changes with F only where its program does.

    Attributes:
        source: what it is computed from.
        at: where the samples are, and how many are taken at a time.
        dtype: of the parameters.
    """

    source: Source
    at: Placement = eqx.field(static=True)
    dtype: jnp.dtype = eqx.field(static=True)

    def __call__(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        """The product, in the dtype of v."""
        return flat_product(self.source, self.at, v.astype(self.dtype)).astype(v.dtype)


class TreeProduct(eqx.Module):
    """The map v ↦ F v of pytrees in any dtypes, which are never ravelled.

    Attributes:
        source: what it is computed from.
        at: where the samples are, and how many are taken at a time.
    """

    source: Source
    at: Placement = eqx.field(static=True)

    def __call__(self, v: PyTree) -> PyTree:
        """The product, in the dtypes of v."""
        narrow = jax.tree.map(lambda x, like: x.astype(like.dtype), v, self.source.layout.shapes())
        return jax.tree.map(lambda x, like: x.astype(like.dtype), product(self.source, self.at, narrow), v)


@functools.partial(jax.jit, static_argnames="at")
def quadratic_form(source: Source, at: Placement, v: PyTree) -> Float[Array, ""]:
    """The form vᵀFv ≥ 0."""
    source.layout.check(v)
    return _run(source, at, lambda pullback, v: pullback.squared_norm(v), v)


@functools.partial(jax.jit, static_argnames=("at", "batch"))
def quadratic_forms(source: Source, at: Placement, vectors: Float[Array, "P K"], batch: int) -> Float[Array, " K"]:
    """The forms of the columns of a matrix, `batch` of them in one pass through the model."""
    form = lambda v: quadratic_form(source, at, source.layout.unravel(v))  # noqa: E731
    return jax.lax.map(form, vectors.T, batch_size=batch)


class AbstractFisher(lx.AbstractLinearOperator):
    r"""Products with $F = \frac1N \sum_n J_n^\top \Lambda_n J_n$, the base of spectra, solutions and checks.

    Attributes:
        problem: function, parameters and data.
        plan: predicted sizes and chosen chunks; `plan.describe()` prints them.
        method: "exact", "printed", "monte_carlo" or "empirical".
        excluded: array leaves of params which are not differentiated.
    """

    problem: Problem
    _stored: Stored | None  # derivative kept for repeated products
    _placement: Placement = eqx.field(static=True)  # devices the samples lie on
    plan: Plan = eqx.field(static=True)
    method: str = eqx.field(static=True)
    excluded: tuple[str, ...] = eqx.field(static=True)
    _checked: bool = eqx.field(static=True, default=True)  # whether other routes are compared with products

    @light
    def mv(self, vector: PyTree) -> PyTree:
        """F v for a pytree v like the differentiated parameters, ravelled [P], or several as columns [P K]."""
        if isinstance(vector, jax.Array | np.ndarray) and self.problem.layout.kind_of(vector) != "tangent":
            return self @ jnp.asarray(vector)
        return self._product(vector)

    @light
    def mm(self, vectors: Float[Array, "P K"]) -> Float[Array, "P K"]:
        """F V for the K columns of a matrix, several at a time.

        Args:
            vectors: ravelled tangents as columns, [P K].

        Raises:
            ValueError: if the shape is not [P K].
        """
        if jnp.ndim(vectors) != 2 or vectors.shape[0] != self.in_size():
            raise ValueError(f"mm takes a matrix [P K] with P = {self.in_size()} rows; got shape {jnp.shape(vectors)}")
        return products(source_of(self), product_chunks(self), vectors, self.plan.batch)

    def __matmul__(self, other: Any) -> Any:
        """F v for a ravelled vector [P], F V for a matrix [P K], or a composition with another operator."""
        if isinstance(other, lx.AbstractLinearOperator):
            return super().__matmul__(other)
        return self._flat_product(jnp.asarray(other)) if jnp.ndim(other) == 1 else self.mm(jnp.asarray(other))

    @light
    def quadratic_form(self, delta: PyTree) -> Float[Array, " *K"]:
        """δᵀFδ, never negative; δ a pytree like params, ravelled [P], or columns [P K]."""
        if self.problem.layout.kind_of(delta) == "columns":
            return quadratic_forms(source_of(self), product_chunks(self), jnp.asarray(delta), self.plan.batch)
        return quadratic_form(source_of(self), product_chunks(self), as_tangent(self, delta))

    def transpose(self) -> Self:
        """Itself."""
        return self

    def in_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a tangent."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.problem.params)

    def out_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The same as `in_structure`."""
        return self.in_structure()

    def as_scipy(self) -> "LinearOperator":
        """A `scipy.sparse.linalg.LinearOperator` on ravelled NumPy vectors."""
        from scipy.sparse.linalg import LinearOperator

        dtype = self.problem.decomposition_dtype
        apply = lambda x: jax.device_get(promoted_product(self, jnp.asarray(x, dtype)))  # noqa: E731
        one = lambda x: apply(x.reshape(-1))  # noqa: E731
        make: Any = LinearOperator
        return make((self.in_size(),) * 2, one, one, apply, dtype, apply)

    @property
    def in_parts(self) -> bool:
        """Whether `problem` is that of one part of the data only."""
        return False

    @property
    def has_closed_form(self) -> bool:
        """Whether a derivative is that of a normalized GLM in closed form, in which parts cancel."""
        return has_closed_form(self.problem)

    @property
    def samples(self) -> int:
        """Number of samples N, over which the mean is taken."""
        return self.problem.samples

    @property
    def leaves(self) -> tuple[str, ...]:
        """Paths of the differentiated leaves, in the order of the columns."""
        return tuple(leaf_paths(self.problem.params))

    def __reduce__(self) -> tuple:
        """What pickles: the problem, its samples on one device; a stored derivative is computed again."""
        at = self._placement._replace(mesh=None, axes=())
        rest = (at, self.plan, self.method, self.excluded, self._checked)
        return restored, (type(self), self.problem, self._stored is not None, *rest)

    @abc.abstractmethod
    def factor(self) -> Float[Array, "NR P"]:
        """Rows of the factor, A with AᵀA = F; a MemoryError where they do not fit."""

    @abc.abstractmethod
    def triangular_factor(self) -> Float[Array, "r P"]:
        """A matrix R of at most P rows with RᵀR = F."""

    @property
    @abc.abstractmethod
    def rows_that_count(self) -> int:
        """Most that the rank can be for so many rows of the factor."""

    def summed(
        self, function: Callable, *arguments: Any, at: "At | None" = None, of: "Change | None" = None, **static: Any
    ) -> PyTree:
        """A sum over samples, function(problem, placement, *arguments): what all but products are computed from.

        Args:
            function: linear in the terms of the samples, and in 1/N.
            *arguments: what it takes besides.
            at: F ↦ where its samples are, and how many are taken at a time; `row_chunks` by default.
            of: (problem, number of the part, 0 of the first) ↦ the problem that is meant, where it is another.
            **static: keyword arguments.
        """
        problem = self.problem if of is None else of(self.problem, 0)
        return function(problem, (row_chunks if at is None else at)(self), *arguments, **static)

    def changed(self, of: "Change") -> Self:
        """The operator of a changed problem of the same shapes, with no derivative stored."""
        return at_problem(self, of(self.problem, 0))

    @functools.cached_property
    def _product(self) -> Callable[[PyTree], PyTree]:
        of = compiled(product, source_of(self), product_chunks(self))
        return of if self._placement.params is None else lambda v: of(put_on_automatic_mesh(v))

    def _flat_map(self) -> Callable[[Float[Array, " P"]], Float[Array, " P"]]:
        return FlatProduct(source_of(self), product_chunks(self), self.problem.dtype)

    def _tree_map(self) -> Callable[[PyTree], PyTree]:
        return TreeProduct(source_of(self), product_chunks(self))

    @functools.cached_property
    def _flat_product(self) -> Callable[[Float[Array, " P"]], Float[Array, " P"]]:
        return compiled(flat_product, source_of(self), product_chunks(self))


At = Callable[[AbstractFisher], Placement]
Change = Callable[[Problem, int], Problem]


def product_chunks(F: AbstractFisher) -> Placement:
    """Where the samples are, and how many are taken at a time in products."""
    return F._placement._replace(chunk=F.plan.chunk)


def row_chunks(F: AbstractFisher) -> Placement:
    """The same where rows of the factor are formed."""
    return F._placement._replace(chunk=F.plan.row_chunk)


def source_of(F: AbstractFisher) -> Source:
    """What its products are computed from."""
    return F.problem if F._stored is None else F._stored


def flat_map(F: AbstractFisher) -> Callable[[Float[Array, " P"]], Float[Array, " P"]]:
    """Products with ravelled vectors, for programs that hold them."""
    return F._flat_map()


def tree_map(F: AbstractFisher) -> Callable[[PyTree], PyTree]:
    """Products with pytrees, for iterations whose vectors are divided over devices as the parameters are."""
    return F._tree_map()


def promoted_product(F: AbstractFisher, v: Float[Array, " P"]) -> Float[Array, " P"]:
    """F v of a ravelled vector in the dtype of decompositions."""
    return (F @ v.astype(F.problem.dtype)).astype(v.dtype)


def as_tangent(F: AbstractFisher, v: PyTree) -> PyTree:
    """A vector, ravelled or not, as a pytree like the differentiated parameters."""
    tangent = F.problem.unravel(jnp.asarray(v)) if F.problem.layout.kind_of(v) == "vector" else v
    return tangent if F._placement.params is None else put_on_automatic_mesh(tangent)


Fisher = TypeVar("Fisher", bound=AbstractFisher)


def at_problem(F: Fisher, problem: Problem) -> Fisher:
    """The operator of a changed problem of the same shapes, with no derivative stored."""
    return replace(F, problem=problem, _stored=None)


def unchecked(F: Fisher) -> Fisher:
    """The operator without comparisons of its routes."""
    return replace(F, _checked=False)


def restored(kind: type, problem: Problem, keep: bool, at: Placement, plan: Plan, *rest: Any) -> AbstractFisher:
    """An operator that was pickled."""
    return kind(problem, store(problem, at._replace(chunk=plan.chunk))[0] if keep else None, at, plan, *rest)
