"""One suite behind three doors: a runner, a generator of checks, and a decorator for pytest."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lngeom.checks._adapters import adapt
from lngeom.checks._examine import Examination
from lngeom.checks._findings import FATAL, findings
from lngeom.checks._orbits import Data, Move, example
from lngeom.checks._report import Finding, Report, Result, Verdict
from lngeom.checks._rows import POSITIONS, Row, columns, row
from lngeom.checks._shrink import column_moves, shrink
from lngeom.checks._subject import Subject, layer_tolerance

BATCH = "batch_independence"
"""Name of the check that outputs do not depend on the other samples."""


class Suite:
    """Every check of one layer, on one set of data.

    Attributes:
        subject: the layer.
        dtype: in which it is run.
        data: W and X.
    """

    def __init__(self, subject: Subject, dtype: jax.typing.DTypeLike = "float32", seed: int = 0):
        self.subject, self.dtype = subject, np.dtype(dtype)
        self.data = example(subject, grid=8 if jnp.finfo(self.dtype).nmant > 20 else 2, seed=seed)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the layer apart from invariance."""
        return findings(self.subject, self.data, self.dtype)

    @cached_property
    def _examination(self) -> Examination:
        return Examination(self.subject, self.data, self.dtype)

    def names(self) -> list[str]:
        """Names of the transformations that apply."""
        return [*(c.name for c in columns(self.subject)), BATCH]

    def result(self, name: str) -> Result:
        """What the layer does under one transformation, with a counterexample where it should have one."""
        column = next((c for c in columns(self.subject) if c.name == name), None)
        formula = r"x_m \mapsto x_m',\ m \neq n"
        title = column.title if column else "Independence of the batch"
        unknown = Result(name, title, column.formula if column else formula, Verdict.UNKNOWN, float("inf"), 0.0)
        if any(f.name in FATAL for f in self.findings):
            return replace(unknown, note="see the findings")
        result = self._examination.examine(column) if column else self._batch(unknown)
        if result.verdict in {Verdict.NOT, Verdict.LOST}:
            moves = column_moves(column, result) if column else _replaced_rows
            found = shrink(self.subject, moves, self.dtype, finite=result.verdict is Verdict.NOT)
            result = replace(result, counterexample=found)
        return result

    def _batch(self, result: Result) -> Result:
        tolerance = layer_tolerance(self.dtype)
        if not np.all(np.isfinite(self._examination.base[self.dtype])):
            return replace(result, note="the outputs are not finite to begin with")
        worst = max(self._examination.under(change, self.dtype) for change in _replaced_rows(self.data))
        verdict = Verdict.INVARIANT if worst <= tolerance else Verdict.NOT
        return replace(result, verdict=verdict, deviation=worst, tolerance=tolerance)


def _replaced_rows(data: Data) -> Iterator[Move]:
    """Another sample in the place of one; outputs for the others should stay."""
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
    """Finds out which invariances a layer has, to what precision, and at which scales.

    Args:
        layer: a normalizer, a function (W, X) → outputs or a → normalized a, a module of lngeom.nn, equinox, flax,
            haiku, Keras 3 or torch (or its class), or "package.module:NAME".
        like: a row of the table of invariances to compare with, such as "layer".
        dtype: in which the layer is run.
        kind: for a function: "weights" or "summed"; see `adapt`.
        training: whether a module that has two modes is in training mode.
        units: H; by default the layer's own, or 8.
        positions: T, for inputs [N T D].
        seed: of weights, inputs and transformations.

    Returns:
        The report: `print` it, or look up `report["weight_matrix_rescaling"]`.

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
    suite = Suite(_subject(layer, expected, options), dtype, seed)
    results = tuple(suite.result(name) for name in suite.names())
    cells = expected.cells if expected else {}
    differences = tuple(
        (r.name, cells[r.name]) for r in results if r.name in cells and not r.as_expected(cells[r.name])
    )
    return Report(suite.subject.name, np.dtype(dtype).name, results, suite.findings, like, differences)


def _subject(layer: Any, expected: Row | None, options: dict[str, Any]) -> Subject:
    """The layer on data of the kind that the row it should be like is about."""
    if expected and expected.positions and not options.get("positions"):
        options = options | {"positions": POSITIONS}
    subject = adapt(layer, **options)
    return replace(subject, groups=expected.groups, square=expected.square) if expected else subject


def _check_dtype(dtype: Any) -> None:
    try:
        known = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"dtype must be float64, float32, bfloat16 or float16; got {dtype!r}")


@dataclass(frozen=True)
class Check:
    """One check: calling it raises an AssertionError where a layer does not do what a table says.

    Attributes:
        name: of the transformation; or "findings", for all that is apart from invariance.
        suite: the layer and its data.
        expected: "I", "no" or "±"; None for "findings".
        reason: why a failure is expected; empty where it is not.
    """

    name: str
    suite: Suite
    expected: str | None
    reason: str = ""

    def __call__(self, layer: Any = None) -> None:
        """Runs the check.

        Args:
            layer: ignored; the layer was given to the generator.

        Raises:
            AssertionError: with the counterexample, if the layer differs.
        """
        if self.expected is None:
            found = self.suite.findings
            assert not found, "\n".join(f"{f.name}: {f.message}\n{f.code}" for f in found)
            return
        result = self.suite.result(self.name)
        code = f"\n{result.counterexample.code}" if result.counterexample else ""
        assert result.as_expected(self.expected), (
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
    """Checks of a layer against a row of the table of invariances, one after another.

    Args:
        layer: as for `check_invariances`.
        like: the row, such as "layer".
        expected_failures: for checks that should fail, the reason.
        dtype: in which the layer is run.
        **options: passed to `adapt`.

    Yields:
        The checks.

    Raises:
        ValueError: if an expected failure names no check.
    """
    _check_dtype(dtype)
    reasons = dict(expected_failures or {})
    expected = row(like)
    suite = Suite(_subject(layer, expected, options), dtype)
    names = ["findings", *(n for n in suite.names() if n in expected.cells)]
    if unknown := sorted(set(reasons) - set(names)):
        raise ValueError(f"no check {', '.join(unknown)}; the checks are {', '.join(names)}")
    for name in names:
        yield Check(name, suite, expected.cells.get(name), reasons.get(name, ""))


def parametrize_with_invariances(
    layers: Sequence[Any] | Iterable[tuple[Any, str]],
    like: str | None = None,
    *,
    expected_failures: Mapping[str, str] | None = None,
    **options: Any,
) -> Callable:
    """Decorates a test of arguments `layer` and `check` to run once for each check of each layer.

    Args:
        layers: the layers; or pairs of a layer and its row where `like` is not given.
        like: the row that all of them should be like.
        expected_failures: for checks that should fail, the reason; pytest shows it.
        **options: passed to `generate_checks`.

    Returns:
        The decorator.

    Example:
        >>> import lngeom as lg
        >>> @lg.checks.parametrize_with_invariances([lg.nn.LayerNorm(8, exact=True)], like="layer")
        ... def test_my_layers(layer, check):
        ...     check(layer)
    """
    import pytest

    parameters = []
    for entry in layers:
        layer, method = (entry, like) if like else entry
        for check in generate_checks(layer, method, expected_failures=expected_failures, **options):
            marks = [pytest.mark.xfail(reason=check.reason, strict=True)] if check.reason else []
            parameters.append(pytest.param(layer, check, marks=marks, id=f"{check.suite.subject.name}-{check.name}"))
    return pytest.mark.parametrize(("layer", "check"), parameters)
