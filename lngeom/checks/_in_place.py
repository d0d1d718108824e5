"""One norm in its place: its invariances, its formula beside the row that it should be, and what else is wrong."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lngeom._core.text import counted, verb
from lngeom.checks._formula import Formula, Sets, fit, padded
from lngeom.checks._invariances import FLIP, invariances, probe_data
from lngeom.checks._masks import findings as ignored_masks
from lngeom.checks._reach import listed
from lngeom.checks._running import Update, findings as evaluation_of, said as moved_by, update_of
from lngeom.checks.findings import Finding, Result, Verdict
from lngeom.checks.placed import ROWS, Placed
from lngeom.checks.placing import place
from lngeom.checks.recorded import Layer
from lngeom.checks.reports import NormReport
from lngeom.checks.rows import row
from lngeom.methods import METHODS

VISIBLE = 1e-3
"""Error of outputs in their own dtype, relative to them, from which it is reported."""

ALLOWED = {"ln": {"ln", "ln_pooled"}, "rms": {"rms", "ln", "ln_pooled"}, "gn": {"gn", "gn_spatial", "in"}}
ALLOWED["gn_spatial"] = ALLOWED["gn"]
"""Rows of formulas that a row allows; others allow themselves only. More invariance than the row's is allowed."""

SEVERAL, CALLS = 4, 32
"""Calls of different kinds that are examined, and calls whose inputs are looked at."""

MOST_UNITS = 256
"""Units that are moved one by one to see which statistics they enter."""


def examined(
    layer: Layer, training: bool, like: str | None = None, *, asked: bool = False
) -> tuple[NormReport, Placed | None]:
    """The report of a norm at the worst of its calls; an error of the layer is its note.

    Args:
        layer: the norm.
        training: whether to examine it in training mode, where the model has one for it.
        like: the row to compare it with; by default that which its class promises.
        asked: whether it is examined even if it is no norm of the table.

    Returns:
        The report, and the norm in its place at its first call; None where nothing could be checked.
    """
    bare = NormReport(layer.path, layer.kind, calls=len(layer.calls))
    try:
        first = place(layer, training)
        reports = [_report(first, bare, like, asked)]
    except Exception as error:  # any error of a layer is a result
        text = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return replace(bare, note=f"could not be checked: {text}".splitlines()[0]), None
    others = list(layer.each_call())[1:CALLS]
    known = {_kind(layer)}
    for other in others:
        try:
            if _kind(other) in known or len(known) >= SEVERAL:
                again = first.elsewhere(other)
                findings = (*reports[0].findings, *_own(again)) if reports[0].findings == () else reports[0].findings
                reports.append(
                    replace(reports[0], eps_share=again.share, findings=findings, note=_noted(again, reports[0].like))
                )
            else:
                known.add(_kind(other))
                reports.append(_report(place(other, training), bare, like, asked))
        except Exception as error:
            reports.append(replace(bare, note=f"call could not be checked: {error}".splitlines()[0]))
    if len(reports) == 1:
        return reports[0], first
    worst = max(range(len(reports)), key=lambda i: (*_badness(reports[i]), -i))
    said = f"called {len(layer.calls)} times; call {worst + 1} is shown"
    shares = [r.eps_share for r in reports if not math.isnan(r.eps_share)]
    note = "; ".join(filter(None, (said, reports[worst].note)))
    return replace(reports[worst], note=note, eps_share=max(shares, default=math.nan)), first


def _kind(layer: Layer) -> Any:
    call = layer.call
    leaves = tuple(map(repr, call.given.leaves))
    return leaves, tuple((a.shape[1:], a.dtype.name) for a in call.arrays), tuple(o.shape[1:] for o in call.outputs)


def _badness(report: NormReport) -> tuple[bool, bool, bool, float]:
    """What makes one call worse than another: differences, findings, notes, the share of ε."""
    share = 0.0 if math.isnan(report.eps_share) else report.eps_share
    return bool(report.differences), bool(report.findings), "outputs are up to" in report.note, share


def _report(placed: Placed, bare: NormReport, like: str | None, asked: bool) -> NormReport:
    if placed.unsteady:
        said = f"called twice, its outputs differ by {placed.unsteady:.1e}: no more can be told"
        return replace(bare, units=placed.units, axis=placed.axes, findings=(Finding("not deterministic", said),))
    if placed.outside and like is None and not asked:
        return replace(bare, note=f"not examined: {placed.outside}")
    expected = like or placed.expected
    results = results_of(placed)
    if placed.few:  # a change of sign, or of what is rounding alone, is no evidence
        results = tuple(_undecided(r) for r in results)
    wrong = differing(results, expected)
    if placed.fitted is None and placed.formula is not None:  # a step after the norm, as a rectifier, has no sign
        wrong = tuple(name for name in wrong if name != FLIP)
    update = _update(placed)
    moving = () if update is None else evaluation_of(placed, update)
    statistics = _statistics(placed, expected, asked=like is not None)
    findings = (*_own(placed), *_defects(placed), *statistics, *moving, *_masked(placed))
    return replace(
        bare,
        units=placed.units,
        axis=placed.axes,
        statistics=_over(placed),
        like=expected,
        results=results,
        differences=wrong,
        findings=findings,
        eps_share=placed.share,
        note=_noted(placed, expected, update),
    )


def _undecided(result: Result) -> Result:
    """The result, where it is that of outputs which are constants or signs."""
    if result.verdict is not Verdict.NOT:
        return result
    return replace(result, verdict=Verdict.UNKNOWN, note="outputs are constants or signs, which is no evidence")


def results_of(placed: Placed) -> tuple[Result, ...]:
    """The behaviour of a norm under every transformation of the layer before it."""
    data = probe_data(placed.rows(placed.probe).shape)

    def outputs(data: Any, scale: float) -> np.ndarray:
        return placed(scale * (data.inputs @ data.weights.T))

    return invariances(
        outputs,
        data,
        groups=placed.group_count,
        tolerance=placed.tolerance,
        scales=(placed.size, placed.far),
        damped=lambda: None if placed.fitted is None or placed.formula is None else placed.damped,
        saturates=not placed.normalizes,
    )


def differing(results: Sequence[Result], expected: str | None) -> tuple[str, ...]:
    """Names of the invariances of a row that a layer lacks."""
    if expected is None:
        return ()
    cells = row(expected).cells
    allowed = {
        "I": {Verdict.INVARIANT, Verdict.UP_TO_EPS},
        "±": {Verdict.FLIPS, Verdict.INVARIANT, Verdict.UP_TO_EPS},
    }
    known = [r for r in results if r.verdict is not Verdict.UNKNOWN and cells.get(r.name) in allowed]
    return tuple(r.name for r in known if r.verdict not in allowed[cells[r.name]])


def _over(placed: Placed) -> str:
    """What its statistics are taken over, in words."""
    if placed.few:
        own = {"in": ("positions",), "bn": ("positions" if placed.positions else "", "samples")}
        whole = {"gn": (f"units in {placed.promised_groups} groups", "positions" if placed.positions else "")}
        return ", ".join(filter(None, (own | whole).get(placed.layer.declared or "", ("units",))))
    if placed.constant or not (placed.normalizes or placed.coupling != (False, False, 1)):
        return "nothing"
    over = ["units" if placed.coupling.units > 1 else "", "positions" if placed.coupling.positions else ""]
    over += ["samples"] if placed.coupling.samples else []
    if placed.groups not in {1, placed.units}:
        over[0] = f"units in {placed.groups} groups"
    return ", ".join(filter(None, over)) or "nothing"


def _noted(placed: Placed, expected: str | None, update: Update | None = None) -> str:
    """What was measured beside invariances."""
    layer, said = placed.layer, []
    if layer.place not in {None, layer.call.examined[1]}:
        said.append(f"output {layer.slot + 1} of {len(layer.call.outputs)} is examined")
    if layer.fill is not None:
        said.append(f"examined with {layer.fill[0]:g} for its other inputs, {bool(layer.fill[1])} in a mask")
    if placed.changed:
        name = next(iter(placed.changed)).rsplit(".", 1)[-1]
        said.append(f"its outputs do not depend on its inputs; examined with 1 more of {name}")
    elif placed.few:
        constant = placed.few == 1 and placed.layer.declared != "rms"
        what = "one value: outputs are constants" if constant else f"{counted(placed.few, 'value')}: outputs are signs"
        said.append(f"its statistics are over sets of {what} up to gain, bias and ε")
    elif placed.constant:
        said.append("its outputs do not depend on its inputs")
    elif placed.affine and layer.declared is None:
        said.append("each output is an affine function of its own input: nothing is normalized")
    elif placed.normalizes and placed.stepped:
        said.append("a further step follows the normalized values")
    if not placed.measured and not placed.formula:
        said.append("no parameter shows the axis of its units: that of its library's convention")
    if placed.refused:
        said.append(f"it cannot be called on its inputs in this mode: {placed.refused}")
    if placed.pools and placed.formula is not None and placed.axes != (len(placed.shape) - 1,):
        said.append(
            f"its statistics are over axes {', '.join(map(str, sorted(placed.formula.scale.axes)))}, positions too"
        )
    if placed.blends:
        said.append("no row of the table: in training its outputs depend on its running statistics and on the batch")
    elif placed.normalizes and expected is None:
        found = placed.formula
        found = "outputs are those of no norm over axes" if found is None else found.said(placed.shape)
        said.append(f"no row of the table: {found}")
    if expected in ROWS and placed.row == expected and placed.formula is not None and _of_gain(placed):
        words = _factor(placed, METHODS[expected].title, placed.formula)
        said += [f"{words}: the factor belongs to the gain"] if words else []
    if placed.uncentred and expected == "rms":
        said.append(f"its class is called {layer.kind}; it is {METHODS['rms'].title}: no mean is subtracted")
    lost = placed.lost
    if placed.follows_dtype:
        said.append(f"its ε follows the dtype: its share is that in {layer.inputs.dtype}, not in {placed.dtype}")
    elif lost > max(VISIBLE, 16 * placed.short) and not placed.few:
        said.append(
            f"in {layer.inputs.dtype} outputs are up to {min(lost, 9.99):.1%} from those in {placed.dtype}, on its "
            "inputs and others near them"
        )
    if placed.shortened:
        said.append(
            f"it computes in a shorter dtype than {layer.inputs.dtype}: outputs are rounded by {placed.shortened:.1e}"
        )
    return "; ".join([*said, *_running(placed, update)])


def _masked(placed: Placed) -> tuple[Finding, ...]:
    """Masks that are ignored; none where the layer does not run with its own."""
    try:
        return tuple(ignored_masks(placed)) if placed.layer.several else ()
    except Exception:  # place has found other values with which it runs
        return ()


def _update(placed: Placed) -> Update | None:
    """How a step moves its running statistics; None where that is no average, or it fails."""
    try:
        return update_of(placed)
    except Exception:  # what fails is said where running statistics are looked at
        return None


def _running(placed: Placed, update: Update | None) -> Iterator[str]:
    """How running statistics are used, and how far they are from the data."""
    if not placed.running:
        return
    if fixed := placed.layer.fixed:
        yield f"the model has {fixed.by} and with it one mode, {'training' if fixed.training else 'evaluation'}"
    try:
        if update is not None:
            yield moved_by(placed, update)
        if placed.training and placed.affine and (placed.layer.fixed is None or placed.layer.fixed.training):
            yield "its running statistics are used in training mode too" + (
                "" if placed.updated else ", and no step of training moves them"
            )
        elif apart := placed.apart():
            yield f"evaluation differs from training by {min(apart, 9.99):.0%} of the outputs"
            if not placed.updated:
                yield "no step of training moves its running statistics"
    except Exception as error:
        yield f"its running statistics could not be looked at: {error}".splitlines()[0]


def _own(placed: Placed) -> tuple[Finding, ...]:
    """Defects on the inputs that reach it."""
    inputs, outputs = placed.layer.inputs, placed.layer.outputs.astype(np.float64)
    bad = int(np.sum(~np.isfinite(outputs)))
    if bad and np.all(np.isfinite(inputs.astype(np.float64))):
        return (
            Finding("not finite", f"{bad} of {outputs.size} outputs {verb(bad)} NaN or infinite for finite inputs"),
        )
    return ()


def _defects(placed: Placed) -> Iterator[Finding]:
    """Defects on ordinary inputs, and on inputs without variance."""
    if not np.all(np.isfinite(placed.run(placed.size * placed.probe))):
        yield Finding("not finite", "outputs are NaN or infinite on ordinary inputs")
        return
    dtype = placed.layer.inputs.dtype
    zeros, same = placed.probe.copy(), placed.probe.copy()
    zeros[0], same[:] = 0, same[:1]
    for title, inputs in (("a sample of zeros", zeros), ("the same sample throughout", same)):
        outputs = placed.run((placed.size * inputs).astype(dtype), dtype=None)
        if not np.all(np.isfinite(outputs)):
            yield Finding("not finite at zero variance", f"{title} gives NaN or infinity in {dtype}")


def _statistics(placed: Placed, expected: str | None, *, asked: bool) -> Iterator[Finding]:
    """Statistics over other values than the row's, and another factor."""
    if expected in ROWS and not (placed.normalizes or placed.few) and (words := _left_out(placed)):
        yield Finding("statistics", words)
    if expected not in ROWS or not placed.normalizes:
        return
    title, formula = METHODS[expected].title, placed.formula
    if formula is None:
        if not placed.layer.several or asked:
            yield Finding("statistics", f"outputs are those of no norm over axes or parts of one: {_parts(placed)}")
        return
    promised = placed.promised_groups
    sets = formula.scale
    if placed.pools and not asked and placed.axes == (len(placed.shape) - 1,):  # units last: positions are samples
        yield Finding("statistics", f"{formula.said(placed.shape)}; gains are along axis {placed.axes[0]} alone")
        return
    groups = expected in {"gn", "gn_spatial"} and placed.layer.declared == "gn"
    inner = sets.split is not None and sets.split != 0
    fits = placed.row in ALLOWED.get(expected, {expected}) and formula.usual
    if fits and inner and not (sets.parts == promised or (promised is None and groups)):
        fits = False
    if fits and groups and promised is not None and placed.groups != promised:
        fits = False
    if not fits or (inner and sets.strided):
        place = f"{title}{f', {promised} groups' if promised else ''}"
        yield Finding("statistics", f"{formula.said(placed.shape)}, which is not {place}")
        return
    words = _factor(placed, title, formula)
    if words and not _of_gain(placed):
        yield Finding("factor", words)


def _of_gain(placed: Placed) -> bool:
    """Whether a factor belongs to the gain: that is one for all units, or its class promises no formula.

    Gains of 1, or of 0 beside which 1 is added, are none that were chosen.
    """
    value = None if placed.gain is None else placed.gain[0]
    if value is None:
        return False
    return placed.layer.declared is None or value.size == 1 or (not np.ptp(value) and value.flat[0] not in {0, 1})


def _factor(placed: Placed, title: str, formula: Formula) -> str:
    """A factor beside the row's formula, where the gain is known; empty where there is none."""
    if placed.fitted is None:
        return ""
    n = placed.rows(formula.normalized(placed.probe))
    size = float(np.sum(n**2))
    count = formula.scale.size(placed.shape)
    if placed.gain is not None:
        change, slack = placed.gain[1], max(1e-4, 10 * placed.tolerance)
        factor = float(np.sum(change * n)) / size
        if abs(np.max(np.abs(change - factor * n))) > slack * np.max(np.abs(change)):
            return ""
    elif not placed.layer.parameters and np.ptp(placed.fitted.gain) <= 1e-4 * np.max(np.abs(placed.fitted.gain)):
        factor, slack = float(placed.fitted.gain.mean()), max(1e-4, 10 * placed.tolerance)
        if abs(factor**2 - (1 - 1 / count)) > 1e-3 / count:
            return ""
    else:
        return ""
    if abs(factor - 1) <= slack:
        return ""
    divisor = f" = √(1 − 1/{count})" if count > 1 and abs(factor**2 - (1 - 1 / count)) <= 1e-3 / count else ""
    return f"per unit of gain, outputs are {factor:.5g}{divisor} times those of {title}"


def _parts(placed: Placed) -> str:
    """Which units enter the statistics, and which units are not normalized, as far as moves of single units show."""
    for axis in placed.axes:
        size = placed.shape[axis]
        for length in {2 ** math.ceil(math.log2(size)), -(-size // 32) * 32, -(-size // 128) * 128} - {size}:
            if _as_padded(placed, axis, length):
                return f"its sums over axis {axis} run over {length} values, {length - size} of them zeros"
    rows = placed.rows(placed.far * placed.probe)
    start = placed(rows)
    count = rows.shape[-1]
    units = np.unique(np.linspace(0, count - 1, min(count, MOST_UNITS)).astype(int))
    first = (0, 0) if rows.ndim == 3 else (0,)
    scale = np.max(np.abs(start), tuple(range(start.ndim - 1)))
    alone, lonely = [], []
    reach = np.zeros((len(units), count), bool)
    for i, unit in enumerate(units):
        moved = rows.copy()
        moved[(*first, unit)] += 2 * placed.far
        change = np.max(np.abs(placed(moved) - start).reshape(-1, count), 0)
        reach[i] = change > 1e-6 * np.maximum(scale, 1e-300)
        reach[i, unit] = False
    alone = [int(u) for u, r in zip(units, reach, strict=True) if not r.any()]
    lonely = [int(u) for u in units if not reach[:, u].any()]
    words = []
    if 0 < len(alone) < len(units):
        words.append(f"units {listed(alone, units)} of {count} do not enter the statistics of others")
    if 0 < len(lonely) < len(units):
        words.append(f"units {listed(lonely, units)} of {count} do not move with others")
    if words:
        return "; ".join(words)
    where = placed.reach.said() if placed.reach is not None else ""
    return "no division of an axis explains them" + (f"; {where}" if where else "")


def _left_out(placed: Placed) -> str:
    """Which units change where all inputs are doubled, if others do not."""
    rows = placed.rows(placed.far * placed.probe)
    start, twice = placed(rows), placed(2 * rows)
    over = tuple(range(start.ndim - 1))
    doubled = np.max(np.abs(twice - start), over) > 10 * placed.tolerance * np.max(np.abs(start), over)
    if not 0 < doubled.sum() < doubled.size:
        return ""
    units = listed([int(u) for u in np.flatnonzero(doubled)], np.arange(doubled.size))
    return f"units {units} of {doubled.size} change where all inputs are doubled: they are not normalized"


def _as_padded(placed: Placed, axis: int, length: int) -> bool:
    """Whether sums run over an axis that was filled up with zeros."""
    others = tuple(a for a in placed.axes if a != axis)
    for axes in {(axis,), (*others, axis), (*placed.positions, *placed.axes)}:
        sets = Sets(tuple(sorted(axes)))
        for formula in (Formula(sets, sets, True), Formula(sets)):
            kinds = zip(*(padded(formula, x, axis, length) for x in placed.probes), strict=True)
            for n in kinds:
                found = fit(np.stack(n), placed.outputs, placed.unit)
                if np.max(found.off) <= max(10 * placed.tolerance, 1e-6):
                    return True
    return False
