"""The layers of a function at some samples: inputs, and derivatives of the outputs by what enters at each point."""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Float

from lngeom._core.programs import bind, signature, variables
from lngeom.information._problem import Problem
from lngeom.information.layers import FEW, MORE, Entry, Irregular, Layers, linear_program


class Evaluated(NamedTuple):
    """The layers at some samples.

    Attributes:
        outputs: z.
        sources: by entry: x [N P D] of a kernel, and of a table ([1 P D] of positions), x [N P H] of a gain, None of a
            bias. Of G groups, [N P G D].
        pull: cotangent of z ↦ by point, the derivative by what enters there.
        entries: the layers' entries.
        factors: by entry, the number by which its leaf is multiplied, or None for 1.
    """

    outputs: Array
    sources: tuple[Array | None, ...]
    pull: Any
    entries: tuple[Entry, ...]
    factors: tuple[Array | None, ...]

    def signals(self, cotangent: Array) -> list[Float[Array, "N P *G H"]]:
        """Of each entry, the derivative by what it adds, at each position that shares it."""
        found = self.pull(cotangent)
        split = [entry.split(found[entry.point], entry.rows, entry.columns) for entry in self.entries]
        return [m if factor is None else m * factor for m, factor in zip(split, self.factors, strict=True)]


def joined(sources: list[Array | None], rows: int) -> Array | None:
    """Inputs of all places where a leaf is used, as positions one after the other; of a table those of each sample."""
    found = [jnp.broadcast_to(x, (rows, *x.shape[1:])) for x in sources if x is not None]
    return jnp.concatenate(found, 1) if found else None


def evaluate(problem: Problem, layers: Layers) -> Evaluated:
    """The layers' inputs at the samples held here, and the transposed derivative.

    Raises:
        Irregular: if the function's program at this number of samples is another.
    """
    closed, residuals, z = linear_program(problem, layers.unrolled)
    jaxpr = closed.jaxpr
    if signature(jaxpr) != layers.program:
        raise Irregular(
            f"the function's program at {problem.rows} samples is another than at {FEW} and {MORE}: its layers cannot "
            "be read"
        )
    everything = variables(jaxpr)
    points = [everything[k] for k in layers.points]
    start = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *residuals], strict=False))
    known = _known_values(jaxpr, start)

    def after(values: list[Array]) -> Array:
        return _value_after(jaxpr, known, dict(zip(points, values, strict=True)))

    transposed = jax.linear_transpose(after, [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in points])
    values = (None if entry.source is None else known[everything[entry.source]] for entry in layers.entries)
    shapes = (None if e.product is None else everything[e.product].aval.shape for e in layers.entries)
    sources = tuple(map(_source, layers.entries, values, shapes))
    factors = tuple(_factor(entry, points[entry.point], everything, known) for entry in layers.entries)
    return Evaluated(z, sources, lambda cotangent: transposed(cotangent)[0], layers.entries, factors)


def _factor(entry: Entry, point: Any, everything: list, known: dict) -> Array | None:
    """The number by which an entry's leaf is multiplied, in the dtype of its signals; None for 1."""
    found = [known[everything[f]] if isinstance(f, int) else f for f in entry.factors]
    return functools.reduce(operator.mul, (jnp.asarray(f, point.aval.dtype) for f in found)) if found else None


def _known_values(jaxpr: Any, start: dict) -> dict:
    """Values of all variables that depend on what is given alone."""
    values = dict(start)
    for equation in jaxpr.eqns:
        operands = [v.val if isinstance(v, Literal) else values.get(v) for v in equation.invars]
        if all(v is not None for v in operands):
            values.update(zip(equation.outvars, bind(equation, operands), strict=True))
    return values


def _value_after(jaxpr: Any, known: dict, added: dict) -> Array:
    """The tangent of the outputs where these are the only ones that are added: all before them are zero."""
    values = dict(known)

    def value(v: Any) -> Any:
        if isinstance(v, Literal):
            return v.val
        zeros = np.zeros if v.aval.dtype == jax.dtypes.float0 else jnp.zeros
        return values[v] if v in values else zeros(v.aval.shape, v.aval.dtype)

    for equation in jaxpr.eqns:
        if equation.outvars[0] in known:
            continue
        if any(not isinstance(v, Literal) and v in values and v not in known for v in equation.invars):
            values.update(zip(equation.outvars, bind(equation, list(map(value, equation.invars))), strict=True))
        out = equation.outvars[0]
        if out in added:
            values[out] = values[out] + added[out] if out in values else added[out]
    return value(jaxpr.outvars[0])


def _source(entry: Entry, value: Array | None, shape: tuple[int, ...] | None) -> Array | None:
    """x of an entry, from the value of the variable it is multiplied by or read at, and the shape of the product."""
    count = entry.place.matrix[-2]
    if value is None:  # a bias; of a table each position reads its own row
        return None if entry.kind == "bias" else jnp.eye(count)[None]
    if entry.kind == "kernel":
        return entry.split(value if entry.window is None else entry.window.patches(value), *_axes(entry))
    if entry.kind == "gain":
        assert shape is not None
        return entry.split(jnp.broadcast_to(value, shape), *_axes(entry))
    indices = entry.split(value[..., 0], entry.source_rows, ())[..., 0]
    indices = jnp.clip(indices, 0, count - 1) if entry.clipped else indices
    return jax.nn.one_hot(indices, count)  # rows beyond the table are zeros, as a gather drops them


def _axes(entry: Entry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return entry.source_rows, entry.features
