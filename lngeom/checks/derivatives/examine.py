"""Every derivative of a layer beside differences of its outputs."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._core.draws import probe_generator
from lngeom.checks.derivatives.differences import Differences, Stencils, Value
from lngeom.checks.derivatives.report import Answer, Derivative
from lngeom.checks.derivatives.routes import Engine, Route, routes
from lngeom.checks.derivatives.vector import Vector
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

MOVES = 4
"""Points beside one, which differ from it in the last digits."""

BATCHED = ("jvp", "vjp")
"""Routes that are also run under `vmap`."""

NARROW = ("jvp", "vjp", "backward", "jvp∘jvp", "vjp∘vjp")
"""Routes that are also run in a narrower dtype."""

TOGETHER = "all arguments together"
"""A number in which every entry of a gradient takes part: its product with a direction."""

EPS = 1e-5
"""ε where the layer does not say."""


class NoReference(ValueError):
    """Outputs have no digits, or are no numbers, so that nothing tells what their derivatives are."""


@dataclass(frozen=True, eq=False)
class Case:
    """A layer at one point, with directions and a cotangent, all with the digits of a dtype.

    Attributes:
        vector: the layer.
        values: its outputs in the widest dtype.
        wide: name of that dtype.
        dtype: name of the dtype in which it is differentiated.
        x: the point.
        u: a direction.
        v: another one.
        c: a cotangent.
        name: what is special about the point.
        differences: derivatives of the outputs from their values.
    """

    vector: Vector
    values: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " M"]]
    wide: str
    dtype: str
    x: Float[np.ndarray, " P"]
    u: Float[np.ndarray, " P"]
    v: Float[np.ndarray, " P"]
    c: Float[np.ndarray, " M"]
    name: str
    differences: Differences

    @cached_property
    def outputs(self) -> Float[np.ndarray, " M"]:
        """The outputs at the point."""
        return self.values(self.x)

    @property
    def unit(self) -> float:
        """Relative size of the rounding of outputs in the widest dtype."""
        return self.differences.unit

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The point, the directions and the cotangent in its dtype."""
        return tuple(a.astype(jnp.dtype(self.dtype)) for a in (self.x, self.u, self.v, self.c))

    def natural(self, argument: str, order: int) -> float:
        """The size of a derivative where nothing cancels, |f| |c| (|u|/|x|)ᵏ⁻¹ / |x|, by the largest entries."""
        at = self.vector.slices.get(argument, slice(None))
        size, inner = _size(self.x[at]) or 1.0, min(_size(x) or 1.0 for _, x in self.vector.split(self.x) if x.size)
        moved = (_size(self.u) / inner) ** (order - 1) / (inner if argument in {"outputs", TOGETHER} else size)
        c = _size(self.u) if argument == "outputs" else _size(self.c)
        return _size(self.outputs) * c * moved

    @cached_property
    def entries(self) -> dict[str, Float[np.ndarray, " K"]]:
        """Places in the vector whose derivatives are compared, for each argument."""
        rng = probe_generator(3)
        return {
            name: at.start + np.sort(rng.permutation(at.stop - at.start)[: max(ENTRIES.values())])
            for name, at in self.vector.slices.items()
        }

    def reference(self, route: Route) -> dict[str, Value]:
        """The derivative of a route by differences: for "outputs", or for the entries of each argument."""
        if route.of_outputs:
            return {"outputs": self._along(route, self.u if route.order == 1 else self.v)}
        basis = {n: [np.eye(1, len(self.x), k)[0] for k in places] for n, places in self._places(route.order)}
        return {n: self._contracted(route, along) for n, along in ({TOGETHER: [self.v]} | basis).items()}

    def again(self, route: Route, argument: str, k: int) -> float:
        """Entry k of the reference of an argument, by the second way of taking differences."""
        other = Stencils(self.values, self.x, self.unit)
        if route.of_outputs:
            return float(self._along(route, self.u if route.order == 1 else self.v, other).value[k])
        along = self.v if argument == TOGETHER else np.eye(1, len(self.x), self.entries[argument][k])[0]
        return float(self.c @ self._along(route, along, other).value)

    def compared(self, route: Route, found: np.ndarray) -> dict[str, np.ndarray]:
        """The entries of a result that `reference` has."""
        if route.of_outputs:
            return {"outputs": found}
        return {TOGETHER: np.array([found @ self.v])} | {n: found[p] for n, p in self._places(route.order)}

    def _places(self, order: int) -> Iterator[tuple[str, np.ndarray]]:
        for name, places in self.entries.items():
            yield name, places[: ENTRIES[order]]

    def _along(self, route: Route, direction: np.ndarray, by: Differences | None = None) -> Value:
        """Df[d], D²f[u, d] or D³f[u, u, d], as the order says."""
        by = by or self.differences
        if route.order == 1:
            return by.along(direction, 1)
        return by.second(self.u, direction) if route.order == 2 else by.third(self.u, direction)

    def _contracted(self, route: Route, directions: Sequence[np.ndarray]) -> Value:
        found = [self._along(route, d) for d in directions]
        error = max((f.error for f in found), default=0.0) * float(np.sum(np.abs(self.c)))
        return Value(np.array([self.c @ f.value for f in found]), error)


def cases(subject: Subject, vector: Vector, dtype: str, seed: int) -> list[Case]:
    """The points at which a layer is differentiated: an ordinary one, and two at which derivatives break.

    Raises:
        TypeError: as for `cases_at`.
        ValueError: as for `cases_at`.
    """
    first = vector.draw(seed)
    at = dict(vector.split(first))["inputs"]
    equal = at.copy()
    equal[0] = equal[..., 0] = 0.0 if subject.takes_weights else 1.0
    points = {
        "": first,
        "a row and a column of equal values": vector.with_inputs(first, equal),
        "a variance near ε": vector.with_inputs(first, at * math.sqrt(subject.eps or EPS)),
    }
    what = "ordinary inputs, which have both signs"
    return cases_at(points, subject.name, vector, _wide(subject, vector, first).name, dtype, seed, what)


def cases_at(
    points: Mapping[str, Float[np.ndarray, " P"]],
    layer: str,
    vector: Vector,
    wide: str,
    dtype: str,
    seed: int = 0,
    what: str = "its inputs",
    digits: str | None = None,
) -> list[Case]:
    """A layer at points, in the widest dtype and in another one.

    Points have the digits of the dtype by default, so that numbers that a layer keeps in fewer digits show. Where
    outputs are not finite there is no derivative, and the point is left out.

    Args:
        points: by what is special about them; "" is the ordinary one.
        layer: its name.
        vector: the layer.
        wide: the widest dtype in which it computes.
        dtype: the other one.
        seed: of directions.
        what: the inputs of the ordinary point, in words.
        digits: the dtype whose digits all numbers have, so that both dtypes share their differences.

    Raises:
        TypeError: if the outputs are not one array of numbers that are floating.
        ValueError: if there are no outputs, if they differ from call to call, or are not finite at the ordinary point,
            then as `NoReference`.
    """
    first = points[""]
    values = lambda x: vector.values(x.astype(wide))  # noqa: E731
    outputs = values(first)
    if not outputs.size:
        raise ValueError(f"{layer} has no outputs for inputs {list(vector.shapes['inputs'])}")
    if not np.array_equal(outputs, values(first), equal_nan=True):
        raise ValueError(f"outputs of {layer} differ for the same inputs, so that there is nothing to compare")
    if not np.all(np.isfinite(outputs)):
        raise NoReference(f"outputs of {layer} are not finite for {what}: there is nothing to compare")
    rng = probe_generator(seed + 1)
    directions = [rng.normal(size=n) for n in (len(first), len(first), len(outputs))]
    found = []
    shared: dict[tuple[str, str], Differences] = {}
    for kind in dict.fromkeys((wide, dtype)):
        short = jnp.dtype(digits or kind)
        for name, x in points.items():
            at_x, u, v, c = (a.astype(short).astype(np.float64) for a in (x, *directions))
            if (name, short.name) not in shared:
                shared[name, short.name] = Differences(values, at_x, _rounding(values, at_x, wide))
            found.append(Case(vector, values, wide, kind, at_x, u, v, c, name, shared[name, short.name]))
    return [case for case in found if np.all(np.isfinite(case.outputs))]


def _rounding(values: Callable[[np.ndarray], np.ndarray], x: np.ndarray, dtype: str) -> float:
    """Relative rounding of outputs: that of the dtype, or their change with the last digits of x, where it is larger.

    It is larger where numbers cancel, as in a row of large numbers that differ little.
    """
    unit, outputs = float(jnp.finfo(dtype).eps), values(x)
    signs = probe_generator(2).choice([-1.0, 1.0], (2, len(x)))
    changes = [_size(values(x * (1 + unit * sign)) - outputs) / (_size(outputs) or 1.0) for sign in signs]
    return max([unit, *filter(math.isfinite, changes)])


def _wide(subject: Subject, vector: Vector, x: np.ndarray) -> np.dtype:
    """The widest dtype in which the layer computes: float64 unless digits that its outputs have tell otherwise."""
    inputs = dict(vector.split(x))["inputs"]
    weights = dict(vector.split(x)).get("weights", np.eye(inputs.shape[-1]))
    outputs = vector.values(x)
    narrow = np.array_equal(outputs, outputs.astype(np.float32), equal_nan=True)
    return np.dtype("float32" if narrow and not computes_in_float64(subject, (weights, inputs)) else "float64")


def results(case: Case, highest: int = 3, modes: Collection[str] | None = None) -> Iterator[Derivative]:
    """Every derivative at a point in the dtype of the case: to third order in float64, at the ordinary point.

    Args:
        case: the layer at a point.
        highest: the highest order; derivatives under `vmap` are taken where it is the third.
        modes: names of the only routes to take; all by default.
    """
    ordinary, wide = not case.name, case.dtype == case.wide
    narrow = None if wide else case.vector.values(case.x.astype(jnp.dtype(case.dtype)))
    if narrow is not None and not np.all(np.isfinite(narrow)):
        note = f"outputs are not finite in {case.dtype}"
        yield Derivative("vjp", 1, "Dfᵀc", case.dtype, case.name, Answer.UNDEFINED, note=note)
        return
    batched, highest = (
        highest == 3 and ordinary and wide,
        min(highest, 3 if ordinary and case.dtype == "float64" else 2),
    )
    if not wide:
        highest = min(highest, 2 if ordinary and jnp.finfo(case.dtype).nmant > 20 else 1)
    for engine in case.vector.engines():
        chosen = [
            route
            for route in routes(engine, highest)
            if (wide or route.name in NARROW) and (modes is None or route.name in modes)
        ]
        found: dict[str, np.ndarray | None] = {**case.vector.together(engine, chosen, *case.arrays)}
        for route in chosen:
            result, found[route.name] = _examined(case, engine, route, found.get(route.name))
            yield result if wide or ordinary else _finite(result)
        if batched and hasattr(engine, "vmap"):
            yield from _batched(case, engine, found)


def _examined(
    case: Case, engine: Engine, route: Route, found: np.ndarray | None
) -> tuple[Derivative, np.ndarray | None]:
    """The result of a route, and its entries where there are any; they may be known already."""
    bare = Derivative(f"{engine.name}{route.name}", route.order, route.formula, case.dtype, case.name, Answer.UNDEFINED)
    try:
        found = run(case, engine, route) if found is None else found
        result = judged(case, route, found, bare)
        if result.answer is Answer.WRONG and case.dtype != case.wide and _moved(case, engine, route, found, result):
            result = replace(result, answer=Answer.UNDECIDED, note="the last digits of the point move it as far")
        return result, found
    except Exception as error:  # any error of a framework is a result
        return replace(bare, note=f"{type(error).__name__}: {error}".splitlines()[0][:200]), None


def _moved(case: Case, engine: Engine, route: Route, found: np.ndarray, result: Derivative) -> bool:
    """Whether a result moves with the last digits of the point by what it is off, so that rounding explains it.

    It does where a variance near 0 is a difference of large numbers: its error is no part of outputs that are equal.
    """
    if not math.isfinite(result.deviation):
        return False
    x, *others = case.arrays
    signs = probe_generator(4).choice([-1, 1], (MOVES, len(x)))
    unit, call, own = jnp.finfo(x.dtype).eps, case.vector.route(engine, route), case.compared(route, found)
    near = [engine.run(call, (x * (1 + unit * sign)).astype(x.dtype), *others) for sign in signs]
    moves = [_size(case.compared(route, other)[result.argument] - own[result.argument]) for other in near]
    return abs(result.found - result.expected) <= 4 * max(filter(math.isfinite, moves), default=0.0)


def _finite(result: Derivative) -> Derivative:
    """At a special point a narrow dtype loses digits by itself: whether entries are numbers is what it tells."""
    if result.answer is Answer.WRONG and math.isfinite(result.deviation):
        return replace(result, answer=Answer.UNDECIDED, note="rounding is large at this point in this dtype")
    return result


def run(case: Case, engine: Engine, route: Route) -> np.ndarray:
    """A route at the point of a case, in its dtype."""
    return engine.run(case.vector.route(engine, route), *case.arrays)


def judged(case: Case, route: Route, found: np.ndarray, bare: Derivative) -> Derivative:
    """A result beside differences of outputs; a wrong one is confirmed by a second reference."""
    expected, entries = case.reference(route), case.compared(route, found)
    largest = max(_size(e.value) for name, e in expected.items() if name != TOGETHER)
    allowed = _allowed(case, route.order)
    worst = None
    for argument, reference in expected.items():
        floor = max(SMALL * largest, case.natural(argument, route.order) * (SMALL if case.dtype == case.wide else 1))
        scale = max(_size(reference.value), floor)
        if argument == TOGETHER:
            scale = max(largest, floor) * float(np.linalg.norm(case.v))
        off = np.abs(entries[argument] - reference.value) / (scale or 1.0)
        off = np.where(np.isfinite(off), off, np.inf)
        k = int(np.argmax(off))
        tolerance = allowed + 4 * reference.error / (scale or 1.0)
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
        if not math.isfinite(result.found) and largest > float(jnp.finfo(case.dtype).max) / 16:
            result = replace(result, answer=Answer.UNDEFINED, note=f"it is no number of {case.dtype}")
        if result.answer is Answer.WRONG and math.isfinite(result.found):
            again = case.again(route, argument, k)
            if not abs(again - result.expected) < abs(again - result.found) / 4:
                result = replace(result, answer=Answer.UNDECIDED, note="two ways of taking differences disagree")
        key = (result.answer is Answer.WRONG, result.answer is Answer.UNDECIDED, result.deviation / tolerance)
        if worst is None or key > worst[0]:
            worst = (key, result)
    assert worst is not None
    return worst[1]


def _allowed(case: Case, order: int) -> float:
    """Relative error that rounding explains: by the dtype, and as the outputs themselves are off in it."""
    info, own = jnp.finfo(case.dtype), 64 * 4 ** (order - 1) * case.unit
    if case.dtype == "float64":
        return max(EXACT[order], own)
    units = ROUNDINGS[order] if info.nmant > 20 else ROUNDINGS_16
    narrow = case.vector.values(case.x.astype(jnp.dtype(case.dtype)))
    off = float(np.max(np.abs(narrow - case.outputs))) / (_size(case.outputs) or 1.0)
    return max(units * float(info.eps), 16 * 4 ** (order - 1) * off, own)


def _batched(case: Case, engine: Any, found: Mapping[str, np.ndarray | None]) -> Iterator[Derivative]:
    """Outputs and first derivatives under `vmap` over two points, beside the same alone."""
    other = case.vector.draw(17)
    pairs = ((case.x, other), *((a, -a) for a in (case.u, case.v, case.c)))
    stacks = [np.stack(pair).astype(case.dtype) for pair in pairs]
    outputs = Route("f", 0, True, "f(x)", lambda e, f: lambda x, u, v, c: f(x))
    chosen = [outputs, *(r for r in routes(engine, 1) if r.name in BATCHED and found.get(r.name) is not None)]
    both = case.vector.together(engine, chosen, *stacks, batched=True)
    for route in chosen:
        alone = case.outputs if route is outputs else found.get(route.name)
        if alone is None:
            continue
        name = f"{engine.name}vmap({route.name})"
        bare = Derivative(name, route.order, route.formula, case.dtype, "", Answer.UNDEFINED, argument="a batch")
        try:
            mapped = case.vector.compiled(engine.vmap(route.make(engine, case.vector)))
            first = (both[route.name] if both else engine.run(mapped, *stacks))[0]
        except Exception as error:  # any error of a framework is a result
            yield replace(bare, note=f"{type(error).__name__}: {error}".splitlines()[0][:200])
            continue
        off = np.abs(first - alone) / (_size(alone) or 1.0)
        k = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
        allowed = _allowed(case, max(route.order, 1))
        answer = Answer.RIGHT if off[k] <= allowed else Answer.WRONG
        numbers = {"found": float(first[k]), "expected": float(alone[k])}
        yield replace(bare, answer=answer, deviation=float(off[k]), tolerance=allowed, **numbers)


def _size(values: np.ndarray) -> float:
    return float(np.max(np.abs(values), initial=0.0))
