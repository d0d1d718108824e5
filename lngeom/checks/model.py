"""Every norm of a model, checked in its place with its own weights, on the inputs that reach it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lngeom.checks._orbits import Data
from lngeom.checks._outputs import ALIKE, Fit, fit
from lngeom.checks.findings import Finding, Result, Verdict
from lngeom.checks.placed import FAR, Placed, place
from lngeom.checks.recorded import MIXES, Layer, layers_of
from lngeom.checks.rows import row
from lngeom.checks.subject import Subject
from lngeom.checks.suite import BATCH, Suite
from lngeom.normalizers import METHODS
from lngeom.transformations.columns import extended

HOLD = {Verdict.INVARIANT, Verdict.UP_TO_EPS, Verdict.FLIPS}
"""Verdicts of transformations under which outputs stay, up to ε or sign."""

LEAST = 3e-3
"""Smallest gain, relative to the largest, that outputs are divided by."""

MATRICES = (
    "it normalizes weights, and has no matrix or kernel of its own, or several; check the function of weights and "
    "inputs with lg.check_invariances(lambda W, X: ...)"
)
"""Why a norm of weights was left out."""


@dataclass(frozen=True)
class NormReport:
    """One norm of a model, or one layer with the norm that follows it.

    Attributes:
        path: its place in the model.
        kind: name of its class; "A → B" for a layer and the norm after it.
        units: H; 0 where nothing could be checked.
        axis: axes of its inputs that are units.
        statistics: what its statistics are taken over.
        like: the expected row of the invariance table; None where there is none.
        results: one for each transformation.
        differences: names of the transformations under which it differs from the row.
        findings: other defects.
        eps_share: median share of ε in σ² + ε on the inputs that reach it; NaN where it has no such denominator.
        note: why nothing could be checked, or what else is to be said.
    """

    path: str
    kind: str
    units: int = 0
    axis: tuple[int, ...] = ()
    statistics: str = ""
    like: str | None = None
    results: tuple[Result, ...] = ()
    differences: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    eps_share: float = math.nan
    note: str = ""

    @property
    def holds(self) -> tuple[str, ...]:
        """Names of the transformations under which its outputs stay, up to ε and the sign."""
        return tuple(r.name for r in self.results if r.verdict in HOLD)

    @property
    def checked(self) -> bool:
        """Whether any transformation has a verdict."""
        return any(r.verdict is not Verdict.UNKNOWN for r in self.results)


@dataclass(frozen=True)
class ModelReport:
    """The report of `check_model`.

    Attributes:
        model: its name.
        norms: one for each norm, and for each layer with the norm that follows it.
    """

    model: str
    norms: tuple[NormReport, ...]

    def __getitem__(self, path: str) -> NormReport:
        found = [n for n in self.norms if n.path == path]
        if not found:
            raise KeyError(f"no norm {path!r}; there are {', '.join(n.path for n in self.norms)}")
        return found[0]

    @property
    def differs(self) -> bool:
        """Whether a norm differs from its row, or has another defect."""
        return any(n.differences or n.findings for n in self.norms)

    @property
    def unchecked(self) -> tuple[NormReport, ...]:
        """The norms of which nothing could be checked."""
        return tuple(n for n in self.norms if not n.checked)

    def rows(self) -> list[dict[str, Any]]:
        """The table as a list of dicts, such as `pandas.DataFrame` takes."""
        return [
            {
                "path": n.path or "(model)",
                "kind": n.kind,
                "units": n.units or None,
                "axis": ", ".join(map(str, n.axis)),
                "statistics": n.statistics,
                "holds": list(n.holds),
                "row": n.like,
                "differs": list(n.differences),
                "findings": [f.name for f in n.findings],
                "eps_share": None if math.isnan(n.eps_share) else n.eps_share,
                "note": n.note,
            }
            for n in self.norms
        ]

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """One table; below it, what differs and what could not be checked."""
        if not self.norms:
            return f"{self.model}: no norm was found."
        lines = [("path", "kind", "units", "axis", "statistics over", "invariances", "ε share")]
        for n, line in zip(self.norms, self.rows(), strict=True):
            title = METHODS[n.like].title if n.like in METHODS else "no row"
            compared = f"differs from {title}" if n.differences else f"{len(n.holds)} hold, as {title}"
            share = "" if math.isnan(n.eps_share) else f"{n.eps_share:.1e}"
            shown = compared if n.checked and n.like else f"{len(n.holds)} hold" if n.checked else "not checked"
            lines.append((line["path"], n.kind, str(n.units or ""), line["axis"], n.statistics, shown, share))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip() for cells in lines]
        table.insert(1, "─" * (sum(widths) + 2 * len(widths) - 2))
        return "\n".join([f"{self.model}: {len(self.norms)} checked in place.", "", *table, *self._below()])

    def _below(self) -> Iterator[str]:
        for n in self.norms:
            place = n.path or "(model)"
            if n.differences:
                verdicts = ", ".join(f"{r.title}: {r.verdict.value}" for r in n.results if r.name in n.differences)
                yield f"  {place} differs: {verdicts}"
            yield from (f"  {place}: {f.name}: {f.message}" for f in n.findings)
            if n.note:
                yield f"  {place}: {n.note}"


def check_model(model: Any, X: Any, *, training: bool = True, include: Sequence[str] = ()) -> ModelReport:
    """Checks every norm of a model in its place: its own weights, and the inputs that reach it.

    One forward pass on X in evaluation mode records the inputs of every layer. Each norm is then examined as
    `check_invariances` examines a layer, on a few of these inputs, without its gain and bias. Layers of torch with
    weight norm or spectral norm are examined as functions of weights and inputs, and so is a linear layer together with
    the norm that follows it.
    The axis of the units is measured.

    Args:
        model: a module of torch, flax.nnx, Keras 3 or equinox (which takes one sample; with a state, as (module,
            state)); (module, variables) of flax.linen, or a bound module; (transformed, params[, state]) of haiku.
        X: inputs [N …]; a tuple of several; a dict of arrays; or a list of dict rows, one a sample.
        training: whether norms with two modes are examined in training mode.
        include: paths of further layers, such as whole blocks, to examine.

    Returns:
        The report; `print` it, look up a norm by its path, or take its `rows()`.

    Raises:
        ValueError: if the model is of another kind, the forward pass fails, or there is no layer of a path.

    Example:
        >>> import equinox as eqx, jax, lngeom as lg
        >>> model = eqx.nn.Sequential([eqx.nn.Linear(3, 4, key=jax.random.key(0)), eqx.nn.LayerNorm(4)])
        >>> report = lg.check_model(model, jax.random.normal(jax.random.key(1), (5, 3)))
        >>> norm = report["layers.1"]
        >>> norm.units, norm.axis, norm.like, norm.differences
        (4, (1,), 'ln', ())
    """
    layers = layers_of(model, X)
    paths = {layer.path for layer in layers}
    if missing := sorted(set(include) - paths):
        raise ValueError(f"no layer {', '.join(missing)}; there are {', '.join(sorted(paths - {''}))}")
    found = []
    for layer in layers:
        if weighted := weight_subject(layer):
            found.append(_of_weights(layer, *weighted))
        elif layer.normalizes_weights:
            found.append(NormReport(layer.path, layer.kind, note=f"could not be checked: {MATRICES}"))
        elif layer.is_norm or layer.path in include:
            norm, placed = _in_place(layer, training, known=layer.is_norm)
            found.append(norm)
            before = producer(layer, layers)
            if placed and before and norm.checked:
                found += _pair(before, placed, norm)
    first = model[0] if isinstance(model, tuple) else model
    return ModelReport(type(first).__name__, tuple(found))


def _in_place(layer: Layer, training: bool, *, known: bool) -> tuple[NormReport, Placed | None]:
    bare = NormReport(layer.path, layer.kind)
    try:
        placed = place(layer, training)
        expected = placed.expected if known else None
        subject, data = placed.subject(), placed.data
        reference = placed.reference(expected, data) if expected else None
        if reference is not None:
            found = fit(placed(FAR * placed.rows(placed.small)), reference)
            subject = _without(subject, found) if found.gap <= ALIKE else subject
        results, findings = _results(subject, data)
        wrong = _wrong(results, expected)
        share = placed.share if known else math.nan
    except ValueError as error:
        return replace(bare, note=f"could not be checked: {error}"), None
    over = ["units" if placed.coupling.units > 1 else "", "positions" if placed.coupling.positions else ""]
    over += ["samples"] if placed.coupling.samples else []
    if placed.groups not in {1, placed.units}:
        over[0] = f"units in {placed.groups} groups"
    report = replace(
        bare,
        units=placed.units,
        axis=placed.axes,
        statistics=", ".join(filter(None, over)) or "nothing",
        like=expected,
        results=results,
        differences=wrong,
        findings=findings,
        eps_share=share,
        note="" if placed.measured else "no parameter shows the axis of its units: that of its library's convention",
    )
    return report, placed


def _without(subject: Subject, found: Fit) -> Subject:
    """The layer without bias and gain; gains below `LEAST` of the largest are undone in part only."""
    function, size = subject.function, np.nan_to_num(np.abs(found.gain))
    gain = np.maximum(size, LEAST * np.max(size)) if np.any(size) else 1.0

    def bare(summed: np.ndarray) -> np.ndarray:
        outputs = function(summed)
        return ((outputs.astype(np.float64) - found.bias) / gain).astype(outputs.dtype)

    return replace(subject, function=bare)


def _results(subject: Subject, data: Data) -> tuple[tuple[Result, ...], tuple[Finding, ...]]:
    suite = Suite(subject, "float32", data=data, counterexamples=False)
    whole = len(data.weights) % subject.groups == 0 and 1 < subject.groups < len(data.weights)
    chosen = [c for c in extended(subject.groups) if not c.compares_first]
    names = [c.name for c in chosen if whole or "group" not in c.name]
    return tuple(suite.result(name) for name in [*names, BATCH]), suite.findings


def _wrong(results: Sequence[Result], expected: str | None) -> tuple[str, ...]:
    if expected not in METHODS:
        return ()
    cells = row(expected).cells
    known = [r for r in results if r.name in cells and r.verdict is not Verdict.UNKNOWN]
    return tuple(r.name for r in known if not r.as_expected(cells[r.name]))


def producer(layer: Layer, layers: Sequence[Layer]) -> Layer | None:
    """The linear or convolutional layer whose outputs are the inputs of a layer, value by value."""
    for other in reversed(layers):
        if MIXES.match(other.kind) and other.order < layer.order and _same(other.outputs, layer.inputs):
            return other
    return None


def consumers(layer: Layer, layers: Sequence[Layer]) -> list[Layer]:
    """The linear or convolutional layers whose inputs are the outputs of a layer, value by value."""
    return [o for o in layers if MIXES.match(o.kind) and o.order > layer.order and _same(layer.outputs, o.inputs)]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


def weights_of(layer: Layer) -> tuple[str, np.ndarray] | None:
    """Name and value of the matrix of a linear layer; None for another layer."""
    return next(((k, v) for k, v in layer.parameters.items() if v.ndim == 2), None)


def _pair(before: Layer, placed: Placed, norm: NormReport) -> list[NormReport]:
    """The linear layer before a norm, and the norm, as one function of weights and inputs."""
    found = weights_of(before)
    if found is None or placed.axes != (placed.layer.inputs.ndim - 1,) or before.inputs.ndim != placed.small.ndim:
        return []
    name, value = found
    transposed = before.framework not in {"torch", "equinox"}
    crop = tuple(slice(n) for n in placed.small.shape[:-1])
    inputs = np.asarray(before.inputs, np.float64)[crop]
    flat = inputs.reshape(len(inputs), -1, inputs.shape[-1]) if inputs.ndim > 3 else inputs
    weights = np.asarray(value.T if transposed else value, np.float64)
    if weights.shape != (placed.units, inputs.shape[-1]):
        return []

    def function(W: np.ndarray, X: np.ndarray) -> np.ndarray:
        given = X.reshape(*inputs.shape[:-1], X.shape[-1])
        summed = before.run(given, dtype=X.dtype, parameters={name: W.T if transposed else W})
        return placed.rows(placed.layer.run(summed, dtype=X.dtype, training=placed.training))

    subject = Subject(
        f"{before.path} → {norm.path}",
        function,
        takes_weights=True,
        units=placed.units,
        positions=flat.shape[1] if flat.ndim == 3 else None,
        groups=placed.subject().groups,
    )
    results, findings = _results(subject, Data(weights, flat))
    lost = _wrong(results, norm.like)
    titles = ", ".join(r.title for r in results if r.name in lost)
    note = f"a bias, gain or ε keeps these from holding: {titles}" if lost else ""
    kind = f"{before.kind} → {norm.kind}"
    return [replace(norm, path=subject.name, kind=kind, results=results, differences=(), findings=findings, note=note)]


def weight_subject(layer: Layer) -> tuple[Subject, Data, str] | None:
    """A layer with weight norm or spectral norm, as a function of the unnormalized weights and inputs."""
    found = _direction(layer)
    if found is None:
        return None
    direction, kind = found
    value = np.asarray(layer.parameters[direction], np.float64)
    bias = {k: np.zeros_like(v) for k, v in layer.parameters.items() if k.rsplit(".", 1)[-1] == "bias"}
    last = layer.framework not in {"torch", "equinox"}  # units are the last axis of the weights, and of outputs
    weights = value.reshape(-1, value.shape[-1]).T if last else value.reshape(len(value), -1)
    patch = value.shape[:-1] if last else value.shape[1:]
    rng = np.random.default_rng(0)
    inputs = np.asarray(layer.inputs, np.float64)
    if value.ndim == 2:
        X = inputs.reshape(-1, inputs.shape[-1])[:6]
    else:
        X = rng.choice(inputs.ravel(), (6, weights.shape[1]))

    def function(W: np.ndarray, X: np.ndarray) -> np.ndarray:
        own = {direction: (W.T if last else W).reshape(value.shape), **bias}
        training = layer.framework == "keras"  # there, weights are normalized in training alone
        outputs = layer.run(X.reshape(len(X), *patch), dtype=X.dtype, training=training, parameters=own)
        outputs = np.moveaxis(outputs, -1, 1) if last else outputs
        centre = (slice(None), slice(None), *(n // 2 for n in outputs.shape[2:]))
        return outputs[centre]

    name = layer.path or layer.kind
    return Subject(name, function, takes_weights=True, units=len(weights)), Data(weights, X), kind


def _direction(layer: Layer) -> tuple[str, str] | None:
    """Name of the weights that a layer normalizes, and the row of the table; None where it normalizes none."""
    names = layer.parameters
    if layer.framework == "torch":
        known = {
            "parametrizations.weight.original1": "wn",
            "weight_v": "wn",
            "parametrizations.weight.original": "sn",
        }
        return next(((name, kind) for name, kind in known.items() if name in names), None)
    matrices = [k for k, v in names.items() if v.ndim > 1 and k.rsplit(".", 1)[-1] != "g"]  # equinox's gain is [H 1]
    if not layer.normalizes_weights or len(matrices) != 1 or layer.declared is None:
        return None
    return matrices[0], layer.declared


def _of_weights(layer: Layer, subject: Subject, data: Data, expected: str) -> NormReport:
    kind = layer.kind.removeprefix("Parametrized")
    title = METHODS[expected].title
    try:
        results, findings = _results(subject, data)
    except ValueError as error:
        return NormReport(layer.path, f"{kind}, {title}", note=f"could not be checked: {error}")
    cells = row(expected).cells
    judged = [r for r in results if r.name in cells and r.verdict is not Verdict.UNKNOWN]
    keeps = {"weight_matrix_rescaling", "weight_vector_rescaling"}  # g is fixed: signs and others follow from g
    wrong = tuple(r.name for r in judged if r.name in keeps and not r.as_expected(cells[r.name]))
    return NormReport(
        layer.path, f"{kind}, {title}", subject.units or 0, (0,), "weights", expected, results, wrong, findings
    )
