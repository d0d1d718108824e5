"""What is wrong with a derivative, in sentences: from which order on, in which modes, and the error that explains it.

Every explanation is measured: a gradient that would come out by the error, from differences of the layer's outputs,
equals the one that was found. What no explanation fits is said with its numbers alone.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from lngeom._core.text import verb
from lngeom.checks.derivatives.examine import EPS, EXACT, Case, run
from lngeom.checks.derivatives.report import ORDINALS, Answer, Derivative
from lngeom.checks.derivatives.routes import ROUTES, Engine, Route

UNEXPLAINED = "no known error explains it"
"""What is said of a gradient that is wrong in no known way."""


SHARE = 2e-2
"""Share of a gradient's error that an explanation may leave unexplained."""

CLOSE = 2e-3
"""Relative difference up to which a factor counts as a number."""

FEW, LARGEST = 96, 2**14
"""Entries of an argument up to which gradients are taken by interpolation, and by one stencil, for errors in them."""

STEP = 2.0**-8
"""Of that stencil."""

DIGITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
"""Relative rounding of narrower dtypes."""


def diagnose(case: Case, results: Sequence[Derivative]) -> Iterator[str]:
    """Sentences about the wrong ones among the results of a layer.

    Args:
        case: the ordinary point.
        results: all results.
    """
    wide = case.wide
    wrong = [r for r in results if r.answer is Answer.WRONG]
    at_large = [r for r in wrong if not r.point]
    exact = [r for r in at_large if r.dtype == wide and not r.batched]
    yield from _orders(results, exact)
    if exact and min(r.order for r in exact) == 2:
        yield from _second_identities(case, [r for r in exact if r.order == 2])
    gradient = next((r for r in exact if r.order == 1 and r.route.endswith(("vjp", "backward"))), None)
    if gradient:
        yield from _gradient(case, *_taken(case, gradient))
    elif any(r.found == 0 and r.expected for r in exact):
        zero = [r.route for r in exact if r.found == 0 and r.expected]
        yield f"{', '.join(zero)} {verb(len(zero))} zero: what a derivative depends on is cut off, as by detach."
    exactly = {r.route for r in exact}
    narrow = [r for r in at_large if r.dtype != wide and r.route not in exactly]
    if narrow:
        worst = min(narrow, key=lambda r: (r.order, -r.deviation))
        yield (
            f"Right in {wide}, but {worst.route} is off by {worst.deviation:.0e} in {worst.dtype}, more than rounding "
            f"explains ({worst.tolerance:.0e}): a sum or a tensor has fewer digits, a number leaves the "
            "range of that dtype, or it has a fault."
        )
    batched = [r for r in at_large if r.batched]
    if batched:
        yield f"Right alone, wrong under vmap: {', '.join(r.route for r in batched)}."
    yield from _special(wrong, {r.route for r in at_large})


def _taken(case: Case, result: Derivative) -> tuple[Engine, Route]:
    """The engine and the route of a result."""
    engine = next(e for e in case.vector.engines() if result.route.startswith(e.name))
    return engine, next(route for route in ROUTES if result.route == engine.name + route.name)


def _orders(results: Sequence[Derivative], exact: Sequence[Derivative]) -> Iterator[str]:
    """From which order on, and in which modes."""
    if not exact:
        return
    first = min(r.order for r in exact)
    before = [n for k, n in ORDINALS.items() if k < first]
    those = [r for r in exact if r.order == first]
    right = {r.route for r in results if r.order == first and r.answer is Answer.RIGHT and not r.batched}
    right -= {r.route for r in those}
    worst = max(those, key=lambda r: r.deviation)
    lead = f"Derivatives of {' and '.join(before)} order are right. " if before else ""
    said = ", ".join(dict.fromkeys(r.route for r in those))
    others = f"; {', '.join(sorted(right))} {verb(len(right))} right" if right else ""
    yield (
        f"{lead}Of {ORDINALS[first]} order {said} {verb(len({r.route for r in those}))} wrong{others}. {worst.route} "
        f"in {worst.argument}: {worst.found:.6g} for {worst.expected:.6g}."
    )


def _special(wrong: Sequence[Derivative], known: set[str]) -> Iterator[str]:
    """What is wrong only at special points."""
    for point in dict.fromkeys(r.point for r in wrong if r.point):
        these = [r for r in wrong if r.point == point and r.route not in known]
        if not these:
            continue
        names = ", ".join(dict.fromkeys(r.route for r in these))
        if any(not math.isfinite(r.found) for r in these):
            yield f"At {point}, where the outputs are finite, {names} {verb(len(these))} not: infinite or not a number."
        else:
            worst = max(these, key=lambda r: r.deviation)
            yield f"At {point} alone, {names} {verb(len(these))} wrong: {worst.found:.6g} for {worst.expected:.6g}."


def _gradient(case: Case, engine: Engine, route: Route) -> Iterator[str]:
    """Which error explains the first derivative of reverse mode, for each argument."""
    found = run(case, engine, route)
    for name, at in case.vector.slices.items():
        count = at.stop - at.start
        if count > LARGEST:
            yield f"Gradient in {name}: of {count} entries, too many to look for the error that explains them."
            continue
        least = 10 * EXACT[1] if case.wide == "float64" and count <= FEW else CLOSE
        truth, mine = _truth(case, case.x, at), found[at]
        if not _off(mine, truth) > least:
            continue
        shape = case.vector.shapes[name]
        reasons = list(_reasons(case, name, at, mine.reshape(shape), truth.reshape(shape)))
        broken = list(_identities(case, name, at, mine.reshape(shape)))
        yield f"Gradient in {name}: " + "; ".join([*(reasons or [UNEXPLAINED]), *broken]) + "."


def explained(diagnosis: Sequence[str]) -> bool:
    """Whether a known error explains one of the gradients that a diagnosis speaks of."""
    return any(sentence.startswith("Gradient in ") and UNEXPLAINED not in sentence for sentence in diagnosis)


def _truth(case: Case, x: np.ndarray, at: slice) -> Float[np.ndarray, " K"]:
    """The gradient of ⟨c, f⟩ in the entries of an argument, at any vector, by differences."""
    moved = type(case.differences)(case.values, x, case.unit)
    if at.stop - at.start <= FEW:
        return np.array([case.c @ moved.along(e, 1).value for e in _basis(case, at)])
    f = lambda direction: float(case.c @ case.values(x + STEP * direction))  # noqa: E731
    return np.array([(8 * (f(e) - f(-e)) - (f(2 * e) - f(-2 * e))) / (12 * STEP) for e in _basis(case, at)])


def _basis(case: Case, at: slice) -> Iterator[Float[np.ndarray, " P"]]:
    """The directions of the entries of an argument."""
    return (np.eye(1, len(case.x), k)[0] for k in range(at.start, at.stop))


def _off(found: np.ndarray, truth: np.ndarray) -> float:
    """The error relative to the largest entry; infinite where one is not finite."""
    if not np.all(np.isfinite(found)):
        return math.inf
    return float(np.max(np.abs(found - truth), initial=0.0) / (np.max(np.abs(truth), initial=0.0) or 1.0))


def _ratio(found: np.ndarray, truth: np.ndarray) -> float:
    """The k for which k · truth is nearest."""
    return float(np.sum(found * truth) / (np.sum(truth * truth) or 1.0))


def _reasons(case: Case, name: str, at: slice, found: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """The first error that explains a gradient."""
    if not np.all(np.isfinite(found)):
        yield "not finite"
    elif not np.any(found):
        yield "it is zero: the argument is cut off"
    else:
        off = float(np.max(np.abs(found - truth)))
        explanations = itertools.chain(
            [(f"{_times(case, k, truth)} the true one", k * truth) for k in [_ratio(found, truth)]],
            _statistics(case, found, truth) if name == "inputs" else (),
            _elsewhere(case, at, truth.shape),
            _factors(case, found, truth) if name == "inputs" else (),
            _sums(case, at, truth) if name not in {"inputs", "weights"} else (),
        )
        words = next((words for words, by in explanations if np.max(np.abs(found - by)) <= SHARE * off), "")
        digits = next((d for d, unit in DIGITS.items() if unit / 8 <= _off(found, truth) <= 4 * unit), "")
        if words or digits:
            yield words or f"off by {_off(found, truth):.0e}, as a tensor kept in {digits} makes it"


def _times(case: Case, k: float, truth: np.ndarray) -> str:
    rows, units = case.vector.shapes["inputs"][0], case.vector.shapes["inputs"][-1]
    named = {rows: "the number of rows", units: "the number of units", units - 1: "the number of units less one"}
    for number, what in named.items():
        for value, words in ((number, f"{what} ({number}) times"), (1 / number, f"one over {what} ({number}) times")):
            if number > 1 and math.isclose(k, value, rel_tol=CLOSE):
                return words
    for count in (rows, units):
        for a, b in ((count - 1, count), (count, count - 1)):
            if min(a, b) > 0 and math.isclose(k, math.sqrt(a / b), rel_tol=CLOSE):
                return f"√({a}/{b}), as by another divisor of a variance, times"
    return "minus" if math.isclose(k, -1, rel_tol=CLOSE) else f"{k:.4g} times"


def _elsewhere(case: Case, at: slice, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Gradients of the layer with another value of a parameter."""
    for name, place in list(case.vector.slices.items())[case.vector.arrays :]:
        if place == at:
            continue
        own = case.x[place]
        for words, value in (("were 1", np.ones_like(own)), ("were squared", own**2), ("were 1 more", own + 1)):
            x = case.x.copy()
            x[place] = value
            yield f"as if {name} {words}", _truth(case, x, at).reshape(shape)


def _statistics(case: Case, found: np.ndarray, truth: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Gradients without what depends on the statistics of a row, or of the batch."""
    x = dict(case.vector.split(case.x))["inputs"]
    if found.shape != x.shape or case.outputs.size != x.size:
        return
    off, c = found - truth, case.c.reshape(x.shape)
    for axes, of in _sets(x):
        zero = np.all(found == 0, axes, keepdims=True) & np.any(truth != 0, axes, keepdims=True)
        if zero.any():
            what = "row" if of == "a row" else "unit"
            yield f"it is zero in {what} {', '.join(map(str, np.flatnonzero(zero)))}", np.where(zero, 0, truth)
    constants = _by_constants(found, c)
    alike = np.max(np.ptp(constants / c, axis=0)) < CLOSE * np.max(np.abs(constants))
    yield f"mean and variance of {'the batch' if alike else 'a row'} are treated as constants", constants
    for axes, of in _sets(x):
        scale = f"the derivative of the scale of {of} is missing or has a wrong factor"
        yield f"the derivative of the mean of {of} is missing or wrong", truth + _fit(off, np.ones_like(x), axes)
        centred = x - x.mean(axes, keepdims=True)
        yield scale, truth + _fit(off, centred, axes)
        count = int(np.prod([x.shape[a] for a in axes]))
        for numbers in ((count - 1, count), (count, count - 1)):
            if min(numbers) > 0:
                by = math.sqrt(numbers[0] / numbers[1]) * truth
                words = f"1/σ of {of} is √({numbers[0]}/{numbers[1]}) times the true one"
                yield f"{words}, as by another divisor of its variance", by + _fit(found - by, centred, axes)
        yield scale, truth + _fit(off, x, axes)
        for name, gain in case.vector.split(case.x):
            if gain.shape == x.shape[-1:]:
                words = f"the derivative of the scale of {of} is multiplied by {name} once too often"
                yield from ((words, truth + _fit(off, values * (gain - 1), axes)) for values in (x, centred))


def _sets(x: np.ndarray) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Axes over which statistics may be taken, in words."""
    return ((x.ndim - 1,), "a row"), (tuple(range(x.ndim - 1)), "the batch")


def _factors(case: Case, found: np.ndarray, truth: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Gradients that are off by a factor for each row, or for each unit."""
    if found.shape != dict(case.vector.split(case.x))["inputs"].shape:
        return
    for axes, of in _sets(found):
        k = np.sum(found * truth, axes) / np.maximum(np.sum(truth * truth, axes), 1e-300)
        factors = f"along {of} off by one factor, by another along the next ({k.min():.6g} to {k.max():.6g})"
        yield f"{factors}, as by another ε or power of σ", _fit(found, truth, axes)


def _fit(values: np.ndarray, by: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The multiple of `by` nearest to the values, for each place of the other axes."""
    k = np.sum(values * by, axes, keepdims=True) / np.maximum(np.sum(by * by, axes, keepdims=True), 1e-300)
    return k * by


def _by_constants(found: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The nearest gradient that is c times a number for each row and one for each unit, such as 1/σ and the gain."""
    u, s, v = np.linalg.svd((found / c).reshape(-1, found.shape[-1]), full_matrices=False)
    return c * (s[0] * np.outer(u[:, 0], v[0])).reshape(found.shape)


def _sums(case: Case, at: slice, truth: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Sums of a parameter's gradient over other entries than all rows, and of other products."""
    each = np.array([case.c * case.differences.along(e, 1).value for e in _basis(case, at)])  # [K M]
    rows = each.reshape(len(each), case.vector.shapes["inputs"][0], -1).sum(-1)
    for words, value in (
        ("only the first row counts", rows[:, 0]),
        ("only the last row counts", rows[:, -1]),
        ("the last row is left out", rows[:, :-1].sum(1)),
        ("the first row is left out", rows[:, 1:].sum(1)),
        ("every entry is the sum over all units", np.full(len(each), truth.sum())),
        ("every entry is the mean over all units", np.full(len(each), truth.mean())),
    ):
        yield words, value.reshape(truth.shape)
    x = dict(case.vector.split(case.x))["inputs"]
    if case.outputs.size == x.size and x.shape[-1] == truth.size:
        c, axes = case.c.reshape(x.shape), tuple(range(x.ndim - 1))
        outputs = case.outputs.reshape(x.shape)
        for words, by in (("the inputs", x), ("the outputs", outputs), ("ones", np.ones_like(x))):
            yield (
                f"cotangents are multiplied by {words}, not by the normalized inputs",
                np.sum(c * by, axes).reshape(truth.shape),
            )
        left_out = ~np.any(each.reshape(len(each), *x.shape), (0, -1))
        for by in (*_normalized(x), np.ones_like(x)) if np.any(left_out) else ():
            yield (
                "rows that do not reach the outputs are counted, as without the mask",
                truth + np.sum((c * by)[left_out], 0).reshape(truth.shape),
            )


def _normalized(x: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of inputs as layer norm and RMS norm make them."""
    for values in (x - x.mean(-1, keepdims=True), x):
        yield values / np.sqrt(np.mean(values**2, -1, keepdims=True) + EPS)


def _identities(case: Case, name: str, at: slice, found: np.ndarray) -> Iterator[str]:
    """The first identity that an invariance of the outputs demands of a gradient, and that this one breaks."""
    if name != "inputs":
        return
    for place, what, direction in _invariances(case):
        along = direction[at]
        value = float(found.ravel() @ along)
        if abs(value) > 1e-2 * np.linalg.norm(found.ravel()[along != 0]) * np.linalg.norm(along):
            yield f"it breaks ⟨{what}, ∂L/∂x⟩ = 0, which the outputs' invariance demands ({value:.3g} in {place})"
            return


def _second_identities(case: Case, results: Sequence[Derivative]) -> Iterator[str]:
    r"""Those that second derivatives break: $D^2f[1, v] = 0$, and by Euler $D^2f[x, v] = -Df[v]$."""
    broken: dict[str, list[str]] = {}
    for result in results:
        engine, route = _taken(case, result)
        for place, what, direction in _invariances(case):
            along = np.where(direction, case.v, 0.0)
            moved = case.differences.along(along, 1).value
            found = run(replace(case, u=direction, v=along), engine, route)
            off = found @ (case.c if route.of_outputs else along) + (case.c @ moved if what == "x" else 0.0)
            if abs(off) > 1e-2 * np.linalg.norm(case.c) * np.linalg.norm(moved):
                identity = "D²f[x, v] = −Df[v]" if what == "x" else "D²f[1, v] = 0"
                broken.setdefault(f"{identity} for x and v of {place}", []).append(result.route)
                break
    for identity, names in broken.items():
        breaks = verb(len(names), "breaks", "break")
        yield f"{', '.join(names)} {breaks} {identity}, which the outputs' invariance demands."


def _invariances(case: Case) -> Iterator[tuple[str, str, np.ndarray]]:
    """Rows, and units of a batch, whose change along 1, or along x, leaves the outputs: name, which, and direction."""
    at, x = case.vector.slices["inputs"], dict(case.vector.split(case.x))["inputs"]
    rows = [(f"row {k}", (k,)) for k in range(len(x))]
    units = [(f"unit {k}", (..., k)) for k in range(x.shape[-1])]
    for place, chosen in rows + units:
        for what, values in (("1", np.ones_like(x)), ("x", x)):
            along = np.zeros_like(case.x)
            along[at].reshape(x.shape)[chosen] = values[chosen]
            if np.max(np.abs(case.differences.along(along, 1).value)) <= 1e-3:
                yield place, what, along
