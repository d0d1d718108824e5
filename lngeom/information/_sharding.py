"""Sums over samples: in chunks, so that memory is bounded, and over any number of devices.

Samples that lie on several devices are summed where they lie (`jax.shard_map`, chunks inside each shard) and reduced
once. Where parameters are divided too, the compiler gathers what a layer needs, and tangents are divided like them.
Little else in this package knows about chunks or devices.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from lngeom._core.lifting import widened
from lngeom._core.sums import fold_chunks
from lngeom._core.types import is_concrete
from lngeom.information._problem import Problem


class Placement(NamedTuple):
    """Where the samples are.

    Attributes:
        mesh: the mesh they are divided over, or None.
        axes: names of the mesh axes that divide the samples.
        chunk: samples processed at a time on each device.
        params: how each leaf of the parameters is divided; None where every device has all of them.
    """

    mesh: Any
    axes: tuple[str, ...]
    chunk: int
    params: tuple[PartitionSpec, ...] | None = None

    @property
    def shards(self) -> int:
        """Number of parts the samples are divided into."""
        return 1 if self.mesh is None else int(np.prod([self.mesh.shape[a] for a in self.axes]))


def find_placement(inputs: PyTree) -> tuple[Any, tuple[str, ...]]:
    """The mesh and the axes that divide the first axis of the inputs, or (None, ())."""
    for leaf in jax.tree.leaves(inputs):
        sharding = getattr(leaf, "sharding", None) if is_concrete(leaf) else jax.typeof(leaf).sharding
        if not isinstance(sharding, NamedSharding) or not sharding.spec or sharding.spec[0] is None:
            continue
        first = sharding.spec[0]
        return sharding.mesh, first if isinstance(first, tuple) else (first,)
    return None, ()


def find_division(params: PyTree) -> tuple[Any, tuple[PartitionSpec, ...] | None]:
    """The mesh over which concrete parameters are divided, and how each leaf is; (None, None) where none is.

    Raises:
        ValueError: if they are divided over several meshes.
    """
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(params)]
    named = [s for s in shardings if isinstance(s, NamedSharding) and any(axis is not None for axis in s.spec)]
    if not named:
        return None, None
    if len({s.mesh for s in named}) > 1:
        raise ValueError(f"parameters must be divided over one mesh; got {', '.join(str(s.mesh.shape) for s in named)}")
    specs = tuple(s.spec if isinstance(s, NamedSharding) else PartitionSpec() for s in shardings)
    return named[0].mesh, specs


def like_params(tangent: PyTree, at: Placement) -> PyTree:
    """A tangent, divided over the devices as the parameters are."""
    if at.params is None:
        return tangent
    leaves, structure = jax.tree.flatten(tangent)
    held = [
        jax.lax.with_sharding_constraint(leaf, NamedSharding(at.mesh, spec))
        for leaf, spec in zip(leaves, at.params, strict=True)
    ]
    return jax.tree.unflatten(structure, held)


def automatic_mesh(mesh: Any) -> Any:
    """The same devices with axes of the Auto type, on which every operation is allowed."""
    if not isinstance(mesh, Mesh):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def put_on_automatic_mesh(tree: PyTree) -> PyTree:
    """The same concrete arrays where they are, on axes of the Auto type; no data move. Tracers stay as they are."""

    def move(leaf: jax.Array) -> jax.Array:
        sharding = getattr(leaf, "sharding", None) if is_concrete(leaf) else None
        if not isinstance(sharding, NamedSharding):
            return jnp.asarray(leaf)
        return jax.device_put(leaf, NamedSharding(automatic_mesh(sharding.mesh), sharding.spec))

    return jax.tree.map(move, tree)


def place(problem: Problem, at: Placement) -> Problem:
    """Puts samples on a mesh, divided over its axes, and everything else on every device, or divided as it was.

    Where N is not a multiple of the devices, samples are padded with copies of weight 0; a coupled problem, which
    copies would change, is divided unevenly by the compiler instead.
    """
    missing = -problem.rows % at.shards
    everywhere = NamedSharding(at.mesh, PartitionSpec())
    if missing and problem.coupled:
        return _put(problem, everywhere)
    if missing:
        z = problem.output_shape
        weights = problem.weights if problem.weights is not None else jnp.ones(z.shape[:-1], z.dtype)
        inputs, scores = jax.tree.map(lambda a: pad(a, missing, "edge"), (problem.inputs, problem.scores))
        problem = problem.with_samples((inputs, pad(weights, missing, "constant"), scores))
    divided = _put(problem.per_sample, NamedSharding(at.mesh, PartitionSpec(at.axes)))
    if at.params is None:
        return _put(problem, everywhere).with_samples(divided)
    rest = _put(replace(problem, params=None, inputs=None, weights=None, scores=None), everywhere)
    return replace(rest, params=problem.params).with_samples(divided)


def pad(array: jax.Array, rows: int, mode: str) -> jax.Array:
    """The array with so many more rows: copies of its last one for the mode "edge", else zeros."""
    last = array[-1:] if mode == "edge" else jnp.zeros_like(array[-1:])
    return jnp.concatenate([array, jnp.repeat(last, rows, 0)])


def _put(tree: PyTree, sharding: NamedSharding) -> PyTree:
    def move(leaf: jax.Array) -> jax.Array:
        return leaf if leaf.sharding == sharding else jax.device_put(leaf, sharding)

    return jax.tree.map(move, tree)


def sum_over_chunks(term: Callable[[PyTree], PyTree], rows: PyTree, chunk: int) -> PyTree:
    """Σ of term(rows of a chunk); terms of 16 bits are added in 32."""
    if chunk >= len(jax.tree.leaves(rows)[0]):
        return term(rows)
    shapes = jax.eval_shape(term, jax.tree.map(lambda a: a[:1], rows))
    zero = widened(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))
    total = fold_chunks(lambda carry, part: jax.tree.map(jnp.add, carry, widened(term(part))), zero, rows, chunk)
    return jax.tree.map(lambda s, value: value.astype(s.dtype), shapes, total)


def sum_over_samples(term: Callable[..., PyTree], problem: Problem, at: Placement, *arguments: PyTree) -> PyTree:
    """Σ of term(problem on a chunk, *arguments) over all chunks on all devices; the sum is on every device."""
    if is_sharded(at, problem):
        alone = at._replace(mesh=None)
        part = lambda *a: jax.lax.psum(sum_over_samples(term, a[0], alone, *a[1:]), at.axes)  # noqa: E731
        return on_each_shard(part, problem, at, *arguments)

    def of_rows(rows: PyTree) -> PyTree:
        return term(problem.with_samples(rows), *arguments)

    if at.params is None or at.shards == 1 or problem.coupled:
        return sum_over_chunks(of_rows, problem.per_sample, at.chunk)
    # A chunk has rows of every device: [N …] as [N/devices, devices, …], which moves no data.
    by_device = jax.tree.map(lambda a: a.reshape(at.shards, -1, *a.shape[1:]).swapaxes(0, 1), problem.per_sample)
    merged = lambda part: jax.tree.map(lambda a: a.swapaxes(0, 1).reshape(-1, *a.shape[2:]), part)  # noqa: E731
    return sum_over_chunks(lambda part: of_rows(merged(part)), by_device, at.chunk)


def on_each_shard(
    function: Callable[..., PyTree], problem: Problem, at: Placement, *arguments: PyTree, divided: bool = False
) -> PyTree:
    """Runs function(problem on a shard, *arguments) on each device."""
    rows = PartitionSpec(at.axes)
    specs = jax.tree.map(lambda _: PartitionSpec(), problem)
    specs = specs.with_samples(jax.tree.map(lambda _: rows, problem.per_sample))
    run = jax.shard_map(
        function,
        mesh=at.mesh,
        in_specs=(specs, *(jax.tree.map(lambda _: PartitionSpec(), a) for a in arguments)),
        out_specs=rows if divided else PartitionSpec(),
        check_vma=False,
    )
    return run(problem, *arguments)


def is_sharded(at: Placement, problem: Problem) -> bool:
    """Whether work is divided over devices by hand; coupled samples and divided parameters are left to the compiler."""
    return at.mesh is not None and at.params is None and not problem.coupled
