"""The check of derivatives, as a function and as a decorator for pytest."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax

from lngeom.checks.adapters import adapt
from lngeom.checks.derivatives.diagnosis import diagnose
from lngeom.checks.derivatives.examine import cases, results
from lngeom.checks.derivatives.program import program, shows
from lngeom.checks.derivatives.report import Derivatives
from lngeom.checks.derivatives.routes import one_thread
from lngeom.checks.derivatives.vector import Vector, vectors
from lngeom.checks.subject import Subject, as_elsewhere, same_draws

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Dtypes in which derivatives can be asked for."""


def check_derivatives(
    layer: Any,
    *,
    dtype: jax.typing.DTypeLike = "float32",
    kind: str | None = None,
    training: bool = True,
    units: int | None = None,
    positions: int | None = None,
    seed: int = 0,
    constant: Sequence[str] = (),
    compiled: bool = False,
) -> Derivatives:
    r"""Compares a layer's derivatives, in all modes, with differences of its own outputs.

    The layer is a function f of its inputs, weights and parameters, x. Forward mode gives $Df(x)[u]$, reverse mode
    $Df(x)^\top c$; nested in every way they give second and third derivatives. The reference uses no rule of
    differentiation and no formula of a method: f is interpolated along lines at Chebyshev points in the widest dtype
    in which it computes, and what it calls wrong is confirmed by central differences with Richardson's extrapolation.
    Besides ordinary inputs there are inputs with a row and a column of equal values, and of a variance near ε.

    Where outputs are invariant along 1 or x, of a row or of a unit over the batch, a wrong derivative is said to break
    what follows: $\langle 1, \partial L/\partial x\rangle = 0$, $\langle x, \partial L/\partial x\rangle = 0$, and in
    second order $D^2f[1, v] = 0$ and Euler's $D^2f[x, v] = -Df[v]$.

    Args:
        layer: as for `check_invariances`; of JAX (functions, lngeom, equinox, flax, haiku, Keras on JAX) or of torch,
            where `torch.func` and autograd are both checked.
        dtype: a second dtype in which derivatives are computed: to second order in float32, first in 16 bits.
        kind: for a function: "weights" or "summed"; see `adapt`.
        training: whether a module with two modes is in training mode.
        units: H; by default the layer's own, else 6.
        positions: T, for inputs [N T D].
        seed: seed of inputs, parameters and directions.
        constant: names of parameters in which no derivative is taken, where a stopped gradient is meant.
        compiled: whether a layer of torch is also differentiated as torch.compile makes it, as one graph: the route
            "torch.compile backward", which takes ten seconds and needs a C++ compiler. Where it is not compiled, the
            route is not defined, and its note says why. What torch.compile made before is compiled again when it is
            next called. JAX compiles every route.

    Returns:
        The report. `print` it, or read `wrong` and `diagnosis`.

    Raises:
        ValueError: if the layer cannot be adapted, has no derivatives, or its outputs are not one array of finite
            numbers that are the same at every call; or for another dtype, or units, positions or a seed that are none;
            or if there is no parameter of a name in `constant`.

    Example:
        >>> import jax.numpy as jnp, lngeom as lg
        >>> report = lg.check_derivatives(lambda a: a / jnp.sqrt(jnp.mean(a**2, -1, keepdims=True) + 1e-6))
        >>> report.wrong, report["vjp∘vjp"].answer.value
        ((), 'right')
    """
    narrow = str(getattr(dtype, "__name__", None) or getattr(dtype, "name", dtype))  # jnp.float32, np.dtype("float32")
    if narrow not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    for name, value, least in (("units", units, 1), ("positions", positions, 1), ("seed", seed, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}")
    subject = adapt(layer, kind=kind, training=training, units=units, positions=positions)
    with as_elsewhere(), same_draws(), one_thread():
        reports = [_checked(subject, flat, narrow, training, seed) for flat in vectors(subject, constant, compiled)]
    whole = reports[0]
    for report in reports[1:]:  # a function that JAX and torch run
        diagnosis = (*whole.diagnosis, *report.diagnosis)
        whole = replace(
            whole, results=whole.results + report.results, diagnosis=diagnosis, code=whole.code or report.code
        )
    return whole


def _checked(subject: Subject, flat: Vector, dtype: str, training: bool, seed: int) -> Derivatives:
    try:
        points = cases(subject, flat, dtype, seed)
    except ValueError:
        raise
    except Exception as error:  # any error of a layer
        said = str(error).splitlines() or [""]
        raise ValueError(f"{subject.name} does not run: {type(error).__name__}: {said[0]}") from error
    found = tuple(result for case in points for result in results(case))
    report = Derivatives(subject.name, points[0].wide, tuple(flat.shapes), found, tuple(diagnose(points[0], found)))
    codes = (program(subject, points[0], wrong, training) for wrong in report.wrong if not wrong.point)
    return replace(report, code=next((code for code in codes if code and shows(code)), ""))


def parametrize_with_derivatives(layers: Any | Iterable[Any], **options: Any) -> Callable:
    """Decorates a test with arguments `layer` and `check`, which then runs once for each layer.

    Args:
        layers: a layer, as for `check_derivatives`, or a list of layers.
        **options: passed to `check_derivatives`.

    Returns:
        The decorator. A layer is examined when its test runs; a failure shows the report and a program.

    Raises:
        ValueError: if there is no layer.

    Example:
        >>> import lngeom as lg
        >>> @lg.checks.parametrize_with_derivatives([lg.nn.LayerNorm(8)])
        ... def test_my_layers(layer, check):
        ...     check(layer)
    """
    import pytest

    if isinstance(layers, str) or callable(layers):
        layers = [layers]
    found = []
    for layer in layers:
        subject = adapt(layer, **{k: v for k, v in options.items() if k in {"kind", "training", "units", "positions"}})
        found.append(pytest.param(layer, _Check(layer, options), id=subject.name))
    if not found:
        raise ValueError("layers is empty, so that nothing would be checked: give a layer or a list of layers")
    return pytest.mark.parametrize(("layer", "check"), found)


class _Check:
    """Calling it raises an AssertionError where derivatives of the layer are wrong."""

    def __init__(self, layer: Any, options: dict[str, Any]):
        self.layer, self.options = layer, options

    def __call__(self, layer: Any = None) -> None:
        report = check_derivatives(self.layer, **self.options)
        assert report.checked, report.to_text(100)
        assert not report.wrong, report.to_text(100, code=True)
