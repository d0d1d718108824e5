"""Defects of a layer other than missing invariances."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from lngeom._core.draws import probe_generator
from lngeom._core.text import verb
from lngeom.checks._orbits import Data
from lngeom.checks._shrink import adapted
from lngeom.checks.findings import Finding
from lngeom.checks.subject import Subject, as_elsewhere, computes_in_float64, deviation, layer_tolerance


def findings(subject: Subject, data: Data, dtype: jax.typing.DTypeLike) -> tuple[Finding, ...]:
    """Runs a layer on inputs that reveal common defects.

    Args:
        subject: the layer.
        data: W and X.
        dtype: in which it is run.

    Returns:
        The defects. The first three kinds ("raises", "not an array", "wrong shape") make further checks impossible.
    """
    fatal = _fatal(subject, data, dtype)
    if fatal:
        return (fatal,)
    return tuple(
        finding
        for look in (_values, _repeats, _constant, _writes, _degenerate)
        for finding in look(subject, data, dtype)
    )


FATAL = {"raises", "not an array", "wrong shape"}


def _fatal(subject: Subject, data: Data, dtype: Any) -> Finding | None:
    expected = (*data.inputs.shape[:-1], data.weights.shape[0])
    try:
        outputs = subject(*data, dtype)
    except Exception as error:
        text = str(error).splitlines() or [""]
        given = ", ".join(f"{a.dtype}{list(a.shape)}" for a in subject.arguments(*data, dtype))
        return Finding("raises", f"called with {given}: {type(error).__name__}: {text[0]}")
    if outputs.dtype == object or not jax.numpy.issubdtype(outputs.dtype, jax.numpy.floating):
        return Finding("not an array", f"it should return one floating-point array; got {outputs.dtype}")
    if outputs.shape != expected and (subject.outputs_are_units or outputs.shape[:-1] != expected[:-1]):
        return Finding("wrong shape", f"it should return {list(expected)}; got {list(outputs.shape)}")
    return None


SIZES = (*range(2, 33), 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of units to try for a layer that raises."""


def units_that_run(subject: Subject, data: Data, dtype: Any) -> int | None:
    """The number of units with which a layer runs that raises with those of the data; None where none is found."""
    try:
        subject(*data, dtype)
    except Exception:
        pass
    else:
        return None
    rng = probe_generator()
    for units in SIZES:
        weights = rng.integers(-8, 9, (units, data.weights.shape[1])) / 4
        try:
            outputs = subject(weights, data.inputs, dtype)
        except Exception:
            continue
        if outputs.shape == (*data.inputs.shape[:-1], units):
            return units
    return None


def _values(subject: Subject, data: Data, dtype: Any) -> Iterator[Finding]:
    outputs = subject(*data, dtype)
    if outputs.dtype != np.dtype(dtype):
        yield Finding("other dtype", f"given {np.dtype(dtype).name}, it returns {outputs.dtype.name}")
    elif outputs.dtype == np.float64 and np.all(np.isfinite(outputs)) and not computes_in_float64(subject, data):
        yield Finding("fewer digits", "given float64, it computes in a narrower dtype and returns float64")
    bad = np.sum(~np.isfinite(outputs.astype(np.float64)))
    if bad:
        yield Finding("not finite", f"{bad} of {outputs.size} outputs {verb(bad)} NaN or infinite on ordinary data")


def _repeats(subject: Subject, data: Data, dtype: Any) -> Iterator[Finding]:
    first, second = subject(*data, dtype), subject(*data, dtype)
    if not np.array_equal(first, second, equal_nan=True):
        yield Finding("not deterministic", f"called twice, its outputs differ by {deviation(first, second):.1e}")


def _constant(subject: Subject, data: Data, dtype: Any) -> Iterator[Finding]:
    other = Data(data.weights[::-1] + 0.5, data.inputs[::-1] - 0.5)
    if deviation(subject(*data, dtype), subject(*other, dtype)) <= layer_tolerance(dtype):
        yield Finding("constant", "its outputs do not depend on weights and inputs: every invariance is empty")


def _writes(subject: Subject, data: Data, dtype: Any) -> Iterator[Finding]:
    if subject.after_call is None:
        return
    arguments = subject.arguments(*data, dtype)
    names = ("weights", "inputs") if subject.takes_weights else ("summed inputs",)
    try:
        with as_elsewhere():
            left = subject.after_call(*(a.copy() for a in arguments))
    except Exception:  # a function of JAX that does not take NumPy arrays cannot write to them either
        return
    for name, before, after in zip(names, arguments, left, strict=True):
        if not np.array_equal(before, after, equal_nan=True):
            yield Finding("writes to its input", f"the {name} are not what they were after the call")


def _degenerate(subject: Subject, data: Data, dtype: Any) -> Iterator[Finding]:
    """One sample of zeros; all the same sample: variances of zero, where ε is needed."""
    cases: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "a sample of zeros": lambda X: np.where(np.arange(len(X)).reshape((-1,) + (1,) * (X.ndim - 1)) == 0, 0, X),
        "the same sample throughout": lambda X: np.broadcast_to(X[:1], X.shape),
    }
    for title, change in cases.items():
        inputs = change(data.inputs)
        outputs = subject(data.weights, inputs, dtype)
        if not np.all(np.isfinite(outputs.astype(np.float64))):
            small = change(np.ones((2, *data.inputs.shape[1:])))
            code = [
                "import numpy as np",
                *adapted(subject),
                f"W = np.eye({', '.join(map(str, data.weights.shape))})",
                f"X = np.array({small.astype(int).tolist()}, float)",
                f'assert np.isfinite(layer(W, X, "{np.dtype(dtype).name}").astype(float)).all()',
            ]
            yield Finding("not finite at zero variance", f"{title} gives NaN or infinity", "\n".join(code))
