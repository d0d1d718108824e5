"""The suite of checks, as a runner, a generator of checks, and a decorator for pytest."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lngeom.checks._diagnosis import diagnose
from lngeom.checks._examine import NOT_FINITE, Examination
from lngeom.checks._findings import FATAL, findings, units_that_run
from lngeom.checks._orbits import Data, Move, example
from lngeom.checks._outputs import Comparison, compare
from lngeom.checks._shrink import column_moves, shrink
from lngeom.checks.adapters import adapt
from lngeom.checks.derivatives.check import check_derivatives
from lngeom.checks.findings import SEE, Diagnosis, Finding, Report, Result, Verdict
from lngeom.checks.rows import POSITIONS, Row, columns, row
from lngeom.checks.subject import Subject, layer_tolerance

BATCH = "batch_independence"
"""Name of the check that outputs do not depend on other samples."""

OUTPUTS = "outputs"
"""Name of the check that outputs are those of the row, up to a gain and a bias."""


class Suite:
    """Every check of one layer, on one set of data.

    Attributes:
        subject: the layer.
        dtype: in which it is run.
        data: W and X.
        counterexamples: whether to search for a small counterexample where an invariance fails.
    """

    def __init__(
        self,
        subject: Subject,
        dtype: jax.typing.DTypeLike = "float32",
        seed: int = 0,
        *,
        data: Data | None = None,
        counterexamples: bool = True,
    ):
        self.subject, self.dtype, self.seed = subject, np.dtype(dtype), seed
        self.data = data or example(subject, grid=8 if jnp.finfo(self.dtype).nmant > 20 else 2, seed=seed)
        self.counterexamples = counterexamples
        self._results: dict[str, Result] = {}
        self._beside: dict[str, Comparison] = {}

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Defects of the layer other than missing invariances."""
        return findings(self.subject, self.data, self.dtype)

    @cached_property
    def _examination(self) -> Examination:
        return Examination(self.subject, self.data, self.dtype)

    def names(self) -> list[str]:
        """Names of the transformations that apply."""
        return [*(c.name for c in columns(self.subject)), BATCH]

    def result(self, name: str) -> Result:
        """The result for one transformation, with a counterexample where the invariance fails."""
        if name not in self._results:
            self._results[name] = self._checked(name)
        return self._results[name]

    def beside(self, like: str) -> Comparison:
        """The layer compared with a row of the table."""
        if like not in self._beside:
            self._beside[like] = self._compared(like)
        return self._beside[like]

    def diagnosis(self, like: str | None = None) -> Diagnosis:
        """What the layer is: as the row `like` if it agrees, else the closest row of the table."""
        if any(f.name in FATAL for f in self.findings):
            return Diagnosis()
        return diagnose(self.subject, [self.result(name) for name in self.names()], self.beside, like)

    def _compared(self, like: str) -> Comparison:
        if any(f.name in FATAL for f in self.findings):
            return Comparison(note="could not be compared: see the findings")
        expected = row(like)
        results = [self.result(name) for name in self.names()]
        wrong = [r.name for r in results if r.name in expected.cells and not r.as_expected(expected.cells[r.name])]

        def checked(subject: Subject) -> list[Result]:
            bare = Suite(subject, self.dtype, self.seed, counterexamples=False)
            return [bare.result(name) for name in wrong]

        return compare(self.subject, self.data, like, expected, self._examination.wide, results, checked)

    def _checked(self, name: str) -> Result:
        column = next((c for c in columns(self.subject) if c.name == name), None)
        formula = r"x_m \mapsto x_m',\ m \neq n"
        title = column.title if column else "Independence of the batch"
        unknown = Result(name, title, column.formula if column else formula, Verdict.UNKNOWN, float("inf"), 0.0)
        if any(f.name in FATAL for f in self.findings):
            return replace(unknown, note=SEE)
        result = self._examination.examine(column) if column else self._batch(unknown)
        if self.counterexamples and result.verdict in {Verdict.NOT, Verdict.LOST}:
            moves = column_moves(column, result) if column else _replaced_rows
            found = shrink(self.subject, moves, self.dtype, finite=result.verdict is Verdict.NOT)
            result = replace(result, counterexample=found)
        return result

    def _batch(self, result: Result) -> Result:
        tolerance = layer_tolerance(self.dtype)
        if not np.all(np.isfinite(self._examination.base[self.dtype])):
            return replace(result, note=NOT_FINITE.format(when="to begin with"))
        try:
            found = [self._examination.under(change, self.dtype) for change in _replaced_rows(self.data)]
        except Exception as error:  # any error of a layer is a result
            return replace(result, note=f"{type(error).__name__}: {error}".splitlines()[0])
        finite = [value for value in found if math.isfinite(value)]
        if not finite:
            return replace(result, note=NOT_FINITE.format(when="with another sample in the place of one"))
        verdict = Verdict.INVARIANT if max(finite) <= tolerance else Verdict.NOT
        return replace(result, verdict=verdict, deviation=max(finite), tolerance=tolerance)


def _replaced_rows(data: Data) -> Iterator[Move]:
    """Moves that replace one sample; outputs for the others should stay."""
    for case in range(len(data.inputs)):

        def by(change: Callable[[np.ndarray], np.ndarray], case: int = case) -> Move:
            def apply(data: Data) -> Data:
                inputs = data.inputs.copy()
                inputs[case] = change(inputs[case])
                return Data(data.weights, inputs)

            others = tuple(n for n in range(len(data.inputs)) if n != case)
            return Move(apply, rows=others, simpler=lambda: map(by, (lambda x: 2 * x, np.negative)))

        yield by(lambda x: 3 - x)


def check_invariances(
    layer: Any,
    *,
    like: str | None = None,
    dtype: jax.typing.DTypeLike = "float32",
    kind: str | None = None,
    training: bool = True,
    units: int | None = None,
    positions: int | None = None,
    seed: int = 0,
) -> Report:
    """Finds a layer's invariances, their precision, and the scales at which they hold.

    Args:
        layer: a normalizer, a function (W, X) → outputs or a → normalized a, a module of lngeom.nn, equinox, flax,
            haiku, Keras 3 or torch (or its class), or "package.module:NAME".
        like: row of the invariance table for comparison, such as "layer".
        dtype: dtype of the computation.
        kind: for a function: "weights" or "summed"; see `adapt`.
        training: whether a module with two modes is in training mode.
        units: H; by default the layer's own, else 8, else a number with which it runs, which the report names.
        positions: T, for inputs [N T D].
        seed: seed of weights, inputs and transformations.

    Returns:
        The report. `print` it, or look up a result such as `report["weight_matrix_rescaling"]`. Its `derivatives` are
        checked when they are asked for, as by `check_derivatives`.

    Raises:
        ValueError: if the layer cannot be adapted, or there is no such row or dtype.

    Example:
        >>> import lngeom as lg
        >>> report = lg.check_invariances(lg.normalizers.RMSNorm())
        >>> report["weight_matrix_rescaling"].verdict.value, report["weight_matrix_recentering"].verdict.value
        ('invariant', 'not invariant')
    """
    _check_dtype(dtype)
    expected = row(like) if like else None
    options = {"kind": kind, "training": training, "units": units, "positions": positions}
    suite = Suite(_subject(layer, expected, options, dtype), dtype, seed)
    results = tuple(suite.result(name) for name in suite.names())
    beside = suite.beside(like) if like else Comparison()
    return Report(
        suite.subject.name,
        np.dtype(dtype).name,
        results,
        suite.findings,
        like,
        beside.differences,
        beside.sizes,
        beside.note,
        beside.removed,
        suite.diagnosis(like),
        functools.partial(check_derivatives, suite.subject, dtype=np.dtype(dtype).name, training=training, seed=seed),
    )


def _subject(layer: Any, expected: Row | None, options: dict[str, Any], dtype: Any) -> Subject:
    """The layer, on data of the kind that the row requires; with the number of units that it needs, which is named."""
    options = dict(options)
    if expected and expected.positions and not options.get("positions"):
        options["positions"] = POSITIONS

    def adapted(**more: Any) -> Subject:
        found = adapt(layer, **options | more)
        return replace(found, groups=expected.groups, square=expected.square) if expected else found

    subject = adapted()
    if options.get("units") or isinstance(layer, Subject):
        return subject
    units = units_that_run(subject, example(subject), dtype)
    return subject if units is None else replace(adapted(units=units), name=f"{subject.name} ({units} units)")


def _check_dtype(dtype: Any) -> None:
    try:
        known = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"dtype must be float64, float32, bfloat16 or float16; got {dtype!r}")


@dataclass(frozen=True)
class Check:
    """One check. Calling it raises an AssertionError where a layer differs from a table.

    Attributes:
        name: name of the transformation; "findings" for defects other than invariance; "outputs" for their size.
        suite: the layer and its data.
        expected: "I", "no" or "±"; "as the row" for "outputs"; None for "findings".
        reason: reason of an expected failure; empty where none is expected.
        like: name of the row.
    """

    name: str
    suite: Suite
    expected: str | None
    reason: str = ""
    like: str = ""

    def __call__(self, layer: Any = None) -> None:
        """Runs the check.

        Args:
            layer: ignored; the generator already has the layer.

        Raises:
            AssertionError: with the counterexample, if the layer differs.
        """
        if self.expected is None:
            found = self.suite.findings
            assert not found, "\n".join(f"{f.name}: {f.message}\n{f.code}" for f in found)
            return
        if self.name == OUTPUTS:
            sizes = self.suite.beside(self.like).sizes
            assert not sizes, "\n".join(f"{f.name}: {f.message}" for f in sizes)
            return
        result = self.suite.result(self.name)
        code = f"\n{result.counterexample.code}" if result.counterexample else ""
        as_expected = result.as_expected(self.expected) or result.title in self.suite.beside(self.like).removed
        assert as_expected, (
            f"{self.suite.subject.name}, {result.title}: {result.verdict.value} (deviation {result.deviation:.1e}, "
            f"tolerance {result.tolerance:.1e}), where the table says {self.expected!r}. {result.note}{code}"
        )


def generate_checks(
    layer: Any,
    like: str,
    *,
    expected_failures: Mapping[str, str] | None = None,
    dtype: jax.typing.DTypeLike = "float32",
    **options: Any,
) -> Iterator[Check]:
    """Yields checks of a layer against a row of the invariance table.

    Args:
        layer: as for `check_invariances`.
        like: the row, such as "layer".
        expected_failures: reasons by name of the checks that should fail.
        dtype: dtype of the computation.
        **options: passed to `adapt`.

    Yields:
        The checks.

    Raises:
        ValueError: if an expected failure names no check.
    """
    _check_dtype(dtype)
    reasons = dict(expected_failures or {})
    expected = row(like)
    suite = Suite(_subject(layer, expected, options, dtype), dtype)
    names = ["findings", *(n for n in suite.names() if n in expected.cells), OUTPUTS]
    if unknown := sorted(set(reasons) - set(names)):
        raise ValueError(f"no check {', '.join(unknown)}; the checks are {', '.join(names)}")
    for name in names:
        says = "as the row" if name == OUTPUTS else expected.cells.get(name)
        yield Check(name, suite, says, reasons.get(name, ""), like)


def parametrize_with_invariances(
    layers: Any | Iterable[Any] | Iterable[tuple[Any, str]],
    like: str | None = None,
    *,
    expected_failures: Mapping[str, str] | None = None,
    **options: Any,
) -> Callable:
    """Decorates a test with arguments `layer` and `check`, which then runs once for each check of each layer.

    Args:
        layers: a layer, as for `check_invariances`; a list of layers; or pairs of a layer and its row where `like` is
            not given.
        like: the row for all layers.
        expected_failures: reasons by name of the checks that should fail; pytest shows them.
        **options: passed to `generate_checks`.

    Returns:
        The decorator.

    Raises:
        ValueError: if there is no layer, or a layer without a row.

    Example:
        >>> import lngeom as lg
        >>> @lg.checks.parametrize_with_invariances([lg.nn.LayerNorm(8, exact=True)], like="layer")
        ... def test_my_layers(layer, check):
        ...     check(layer)
    """
    import pytest

    if isinstance(layers, str) or callable(layers):
        layers = [layers]
    if not isinstance(layers, Iterable):
        raise ValueError(f"layers must be a layer, a list of layers or pairs (layer, row); got {layers!r}")
    parameters = []
    for entry in layers:
        if not like and not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], str)):
            raise ValueError(
                f"{getattr(entry, '__name__', type(entry).__name__)} has no row of the table to be compared with: give "
                'like=, such as like="layer", or pairs (layer, row)'
            )
        layer, method = (entry, like) if like else entry
        for check in generate_checks(layer, method, expected_failures=expected_failures, **options):
            marks = [pytest.mark.xfail(reason=check.reason, strict=True)] if check.reason else []
            parameters.append(pytest.param(layer, check, marks=marks, id=f"{check.suite.subject.name}-{check.name}"))
    if not parameters:
        raise ValueError("layers is empty, so that nothing would be checked: give a layer or a list of layers")
    return pytest.mark.parametrize(("layer", "check"), parameters)
