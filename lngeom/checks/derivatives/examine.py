"""Every derivative of a layer beside differences of its outputs."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom.checks.derivatives.differences import Differences, Stencils, Value
from lngeom.checks.derivatives.report import Answer, Derivative
from lngeom.checks.derivatives.routes import Engine, Route, routes
from lngeom.checks.derivatives.vector import Vector, rounded
from lngeom.checks.subject import Subject, computes_in_float64

ENTRIES = {1: 6, 2: 6, 3: 4}
"""Entries of each argument whose derivatives are compared, by order."""

EXACT = {1: 1e-9, 2: 1e-7, 3: 1e-5}
"""Relative errors that rounding explains in the widest dtype, besides that of the reference."""

ROUNDINGS = {1: 2**8, 2: 2**11}
"""Relative errors that rounding explains in float32, in units of its ε."""

ROUNDINGS_16 = 32
"""Likewise for first derivatives in 16 bits."""

UNSETTLED = 0.1
"""Relative error of the reference from which on it decides nothing."""

SMALL = 1e-2
"""Entries of an argument count as at least this share of the largest of all."""

BATCHED = ("jvp", "vjp", "jvp∘vjp", "vjp∘vjp")
"""Routes that are also run under `vmap`."""

EPS = 1e-5
"""ε where the layer does not say."""


@dataclass(frozen=True, eq=False)
class Case:
    """A layer at one point, with directions and a cotangent that every dtype represents.

    Attributes:
        vector: the layer.
        values: its outputs in the widest dtype.
        unit: relative size of their rounding.
        x: the point.
        u: a direction.
        v: another one.
        c: a cotangent.
        name: what is special about the point.
    """

    vector: Vector
    values: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " M"]]
    unit: float
    x: Float[np.ndarray, " P"]
    u: Float[np.ndarray, " P"]
    v: Float[np.ndarray, " P"]
    c: Float[np.ndarray, " M"]
    name: str = ""

    @cached_property
    def outputs(self) -> Float[np.ndarray, " M"]:
        """The outputs at the point."""
        return self.values(self.x)

    @cached_property
    def differences(self) -> Differences:
        """Derivatives of the outputs from their values."""
        return Differences(self.values, self.x, self.unit)

    @cached_property
    def entries(self) -> dict[str, Float[np.ndarray, " K"]]:
        """Places in the vector whose derivatives are compared, for each argument."""
        rng = np.random.default_rng(3)
        return {
            name: at.start + np.sort(rng.permutation(at.stop - at.start)[: max(ENTRIES.values())])
            for name, at in self.vector.slices.items()
        }

    def reference(self, route: Route, of: Differences | None = None) -> dict[str, Value]:
        """The derivative of a route by differences: for "outputs", or for the entries of each argument."""
        found = of or self.differences
        at: Mapping[int, Callable[[np.ndarray], Value]] = {
            1: lambda d: found.along(d, 1),
            2: lambda d: found.second(self.u, d),
            3: lambda d: found.third(self.u, d),
        }
        if route.of_outputs:
            return {"outputs": at[route.order](self.u if route.order == 1 else self.v)}
        return {name: self._contracted(at[route.order], places) for name, places in self._places(route.order)}

    def compared(self, route: Route, found: np.ndarray) -> dict[str, np.ndarray]:
        """The entries of a result that `reference` has."""
        return {"outputs": found} if route.of_outputs else {n: found[p] for n, p in self._places(route.order)}

    def _places(self, order: int) -> Iterator[tuple[str, np.ndarray]]:
        for name, places in self.entries.items():
            yield name, places[: ENTRIES[order]]

    def _contracted(self, at: Callable[[np.ndarray], Value], places: np.ndarray) -> Value:
        found = [at(np.eye(1, len(self.x), k)[0]) for k in places]
        error = max((f.error for f in found), default=0.0) * float(np.sum(np.abs(self.c)))
        return Value(np.array([self.c @ f.value for f in found]), error)


def cases(subject: Subject, vector: Vector, seed: int) -> Iterator[Case]:
    """The points at which a layer is differentiated; the first one is ordinary.

    Where outputs are not finite, there is no derivative, and the point is left out.
    """
    values = vector.values
    first = vector.draw(seed)
    wide = _wide(subject, vector, first)
    rng = np.random.default_rng(seed + 1)
    outputs = values(first.astype(wide))
    u, v, c = (rounded(rng.normal(size=n)) for n in (len(first), len(first), len(outputs)))
    at = dict(vector.split(first))["inputs"]
    equal = at.copy()
    equal[0] = equal[..., 0] = 0.0 if subject.takes_weights else 1.0
    points = {
        "": first,
        "a row and a column of equal values": vector.with_inputs(first, equal),
        "a variance near ε": vector.with_inputs(first, at * math.sqrt(subject.eps or EPS)),
    }
    for name, x in points.items():
        case = Case(
            vector,
            lambda x: values(x.astype(wide)),
            float(jnp.finfo(wide).eps),
            x,
            u,
            v,
            c,
            name,
        )
        if np.all(np.isfinite(case.outputs)):
            yield case


def _wide(subject: Subject, vector: Vector, x: np.ndarray) -> np.dtype:
    """The widest dtype in which the layer computes."""
    arguments = dict(vector.split(x))
    inputs = arguments["inputs"]
    weights = arguments.get("weights", np.eye(inputs.shape[-1]))
    return np.dtype("float64" if computes_in_float64(subject, (weights, inputs)) else "float32")


def wide_of(case: Case) -> str:
    """Name of the widest dtype in which the layer of a case computes."""
    return "float64" if case.unit < 1e-12 else "float32"


def results(case: Case, dtype: str) -> Iterator[Derivative]:
    """Every derivative at a point: in the widest dtype to third order, at an ordinary point also in narrower ones.

    Args:
        case: the point.
        dtype: dtype of the report.
    """
    wide, ordinary = wide_of(case), not case.name
    for engine in case.vector.engines():
        found = {}
        for route in routes(engine, 3 if ordinary and wide == "float64" else 2):
            result, found[route.name] = _examined(case, engine, route, wide)
            yield result
        if dtype != wide:
            for route in routes(engine, 2 if ordinary and jnp.finfo(dtype).nmant > 20 else 1):
                result = _examined(case, engine, route, dtype)[0]
                yield result if ordinary else _finite(result)
        if ordinary and engine.batches:
            yield from _batched(case, engine, found, wide)


def _examined(case: Case, engine: Engine, route: Route, dtype: str) -> tuple[Derivative, np.ndarray | None]:
    """The result of a route, and its entries where there are any."""
    bare = Derivative(f"{engine.name}{route.name}", route.order, route.formula, dtype, case.name, Answer.UNDEFINED)
    try:
        found = run(case, engine, route, dtype)
        return judged(case, route, found, bare), found
    except Exception as error:  # any error of a framework is a result
        return replace(bare, note=f"{type(error).__name__}: {error}".splitlines()[0][:200]), None


def _finite(result: Derivative) -> Derivative:
    """At a special point a narrow dtype loses digits by itself: whether entries are numbers is what it tells."""
    if result.answer is Answer.WRONG and math.isfinite(result.deviation):
        return replace(result, answer=Answer.UNDECIDED, note="rounding is large at this point in this dtype")
    return result


def run(case: Case, engine: Engine, route: Route, dtype: str) -> np.ndarray:
    """A route at the point of a case, in a dtype."""
    arrays = (a.astype(jnp.dtype(dtype)) for a in (case.x, case.u, case.v, case.c))
    return engine.run(case.vector.route(engine, route), *arrays)


def judged(case: Case, route: Route, found: np.ndarray, bare: Derivative) -> Derivative:
    """A result beside differences of outputs; a wrong one is confirmed by a second reference."""
    expected, entries = case.reference(route), case.compared(route, found)
    floor = SMALL * max(_size(e.value) for e in expected.values())
    allowed = _allowed(case, route.order, bare.dtype)
    worst = None
    for argument, reference in expected.items():
        scale = max(_size(reference.value), floor) or 1.0
        off = np.abs(entries[argument] - reference.value) / scale
        off = np.where(np.isfinite(off), off, np.inf)
        k = int(np.argmax(off))
        tolerance = allowed + 4 * reference.error / scale
        result = replace(
            bare,
            answer=Answer.RIGHT if off[k] <= tolerance else Answer.WRONG,
            deviation=float(off[k]),
            tolerance=tolerance,
            argument=argument,
            found=float(entries[argument][k]),
            expected=float(reference.value[k]),
        )
        number = math.isfinite(result.found) or route.order > 1  # where outputs are finite, a first derivative is to be
        if tolerance > UNSETTLED + allowed and number:
            result = replace(result, answer=Answer.UNDECIDED, note="differences of the outputs do not settle")
        if result.answer is Answer.WRONG and math.isfinite(result.found) and not _confirmed(case, route, result, k):
            result = replace(result, answer=Answer.UNDECIDED, note="two ways of taking differences disagree")
        key = (result.answer is Answer.WRONG, result.answer is Answer.UNDECIDED, result.deviation / tolerance)
        if worst is None or key > worst[0]:
            worst = (key, result)
    assert worst is not None
    return worst[1]


def _confirmed(case: Case, route: Route, result: Derivative, k: int) -> bool:
    """Whether Stencils are nearer to the reference than to what was found."""
    other = Stencils(case.values, case.x, case.unit)
    if route.of_outputs:
        value = case.reference(route, other)["outputs"].value[k]
    else:
        alone = replace(case)
        alone.__dict__["entries"] = {result.argument: case.entries[result.argument][k : k + 1]}
        value = alone.reference(route, other)[result.argument].value[0]
    return abs(value - result.expected) < abs(value - result.found) / 4


def _allowed(case: Case, order: int, dtype: str) -> float:
    """Relative error that rounding explains: by the dtype, and as the outputs themselves are off in it."""
    info = jnp.finfo(dtype)
    if dtype == wide_of(case):
        return EXACT[order] if dtype == "float64" else ROUNDINGS[order] * float(info.eps)
    units = ROUNDINGS[order] if info.nmant > 20 else ROUNDINGS_16
    narrow = case.vector.values(case.x.astype(jnp.dtype(dtype)))
    off = float(np.max(np.abs(narrow - case.outputs))) / (_size(case.outputs) or 1.0)
    return max(units * float(info.eps), 16 * 4 ** (order - 1) * off)


def _batched(case: Case, engine: Engine, found: Mapping[str, np.ndarray | None], dtype: str) -> Iterator[Derivative]:
    """Routes under `vmap` over two points, beside the same routes alone."""
    other = case.vector.draw(17)
    stacks = [np.stack(pair).astype(dtype) for pair in ((case.x, other), *((a, -a) for a in (case.u, case.v, case.c)))]
    for route in routes(engine, 2):
        alone = found.get(route.name)
        if route.name not in BATCHED or alone is None:
            continue
        bare = Derivative(
            f"{engine.name}vmap({route.name})",
            route.order,
            route.formula,
            dtype,
            "",
            Answer.UNDEFINED,
            argument="a batch",
        )
        try:
            together = case.vector.compiled(engine.vmap(route.make(engine, case.vector)))
            first = engine.run(together, *stacks)[0]
        except Exception as error:  # any error of a framework is a result
            yield replace(bare, note=f"{type(error).__name__}: {error}".splitlines()[0][:200])
            continue
        off = np.abs(first - alone) / (_size(alone) or 1.0)
        k = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
        allowed = _allowed(case, route.order, dtype)
        answer = Answer.RIGHT if off[k] <= allowed else Answer.WRONG
        yield replace(
            bare,
            answer=answer,
            deviation=float(off[k]),
            tolerance=allowed,
            found=float(first[k]),
            expected=float(alone[k]),
        )


def _size(values: np.ndarray) -> float:
    return float(np.max(np.abs(values), initial=0.0))
