"""The layers of `python -m analysis layer_audit` and how one of them is measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from lngeom import nn
from lngeom.checks import adapt, check_invariances
from lngeom.checks.findings import Verdict
from lngeom.checks.subject import Subject

OFFSETS = (0.0, 1e1, 1e2, 1e3, 1e4, 1e5)
SCALES = tuple(10.0**k for k in range(-18, 19))
WIDE = np.longdouble


def _lngeom(name: str, **options: Any) -> Callable[[int], Any]:
    return lambda width: getattr(nn, name)(width, **options)


def _linen_two_pass(width: int) -> Any:
    from flax import linen

    return linen.LayerNorm(use_fast_variance=False)


LAYERS: dict[tuple[str, str], str | Callable[[int], Any]] = {
    ("layer", "flax linen"): "flax.linen:LayerNorm",
    ("layer", "flax nnx"): "flax.nnx:LayerNorm",
    ("layer", "flax linen, fast variance off"): _linen_two_pass,
    ("layer", "equinox"): "equinox.nn:LayerNorm",
    ("layer", "haiku"): "haiku:LayerNorm",
    ("layer", "keras"): "keras.layers:LayerNormalization",
    ("layer", "torch"): "torch.nn:LayerNorm",
    ("layer", "lngeom"): _lngeom("LayerNorm"),
    ("layer", "lngeom, exact"): _lngeom("LayerNorm", exact=True),
    ("rms", "flax nnx"): "flax.nnx:RMSNorm",
    ("rms", "equinox"): "equinox.nn:RMSNorm",
    ("rms", "haiku"): "haiku:RMSNorm",
    ("rms", "keras"): "keras.layers:RMSNormalization",
    ("rms", "torch"): "torch.nn:RMSNorm",
    ("rms", "lngeom, exact"): _lngeom("RMSNorm", exact=True),
    ("batch", "flax nnx"): "flax.nnx:BatchNorm",
    ("batch", "equinox"): "equinox.nn:BatchNorm",
    ("batch", "haiku"): "haiku:BatchNorm",
    ("batch", "keras"): "keras.layers:BatchNormalization",
    ("batch", "torch"): "torch.nn:BatchNorm1d",
    ("batch", "lngeom, exact"): _lngeom("BatchNorm", exact=True),
    ("group", "flax nnx"): "flax.nnx:GroupNorm",
    ("group", "equinox"): "equinox.nn:GroupNorm",
    ("group", "haiku"): "haiku:GroupNorm",
    ("group", "keras"): "keras.layers:GroupNormalization",
    ("group", "torch"): "torch.nn:GroupNorm",
    ("group", "lngeom, exact"): lambda width: nn.GroupNorm(width, 2, exact=True),
}
"""Method and library → where its layer is; groups are two."""

STATED_EPS = {"haiku": 1e-5}
"""ε of layers which do not say theirs; torch's RMSNorm takes that of the dtype."""


@dataclass(frozen=True)
class Row:
    """One layer in one dtype.

    Attributes:
        method: "layer", "rms", "batch" or "group".
        library: whose.
        dtype: of the input.
        eps: of the layer.
        errors: of the output at each offset, on the scale of the largest output.
        deviations: change of the output at each scale.
        largest_offset: up to which the error is at most 1e-4 (in bfloat16 2^-7), None if at none.
        scales: between which the change is at most that, None if even ten does not.
        cause: why it fails, in words.
    """

    method: str
    library: str
    dtype: str
    eps: float
    errors: tuple[float, ...]
    deviations: tuple[float, ...]
    largest_offset: float | None
    scales: tuple[float, float] | None
    cause: str = ""


@dataclass(frozen=True)
class Cell:
    """A "yes" of Table 1 for an exact layer of `lngeom.nn`, in float32.

    Attributes:
        method: "layer", "batch" or "weight".
        column: name of the column.
        worst: largest change of the output over scales 1e-18 … 1e18; for a shift the largest error against extended
            precision on the rounded shifted input, over shifts up to 1e5 standard deviations.
        bound: what it must not exceed.
        against_rounding: for a shift, the largest change of the output in units of κ·2^-24, what rounding the
            shifted input does by itself.
    """

    method: str
    column: str
    worst: float
    bound: float
    against_rounding: float | None = None


def reference(method: str, a: np.ndarray, eps: float) -> Float[np.ndarray, "N H"]:
    """The textbook formula in extended precision, apart from the library."""
    a = np.asarray(a, WIDE)
    shape = a.shape
    if method == "group":
        a = a.reshape(shape[0], 2, -1)
    axis = 0 if method == "batch" else -1
    centered = a if method == "rms" else a - a.mean(axis, keepdims=True)
    return (centered / np.sqrt((centered**2).mean(axis, keepdims=True) + WIDE(eps))).reshape(shape)


def gap(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference on the scale of the largest expected entry; infinite where one is not finite."""
    actual, expected = np.asarray(actual).astype(WIDE), np.asarray(expected).astype(WIDE)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.abs(actual - expected).max() / np.abs(expected).max()
    return float(found) if np.isfinite(found) else float("inf")


def _eps(method: str, library: str, subject: Subject, dtype: Any) -> float:
    if subject.eps is not None:
        return subject.eps
    if (method, library) == ("rms", "torch"):
        return float(jnp.finfo(dtype).eps)
    return STATED_EPS[library]


def _cause(source: Any, method: str) -> str:
    """What the checks say about scaling and shifting, in short."""
    report = check_invariances(source, units=None if not isinstance(source, str) else 6)
    shift = "weight_matrix_recentering" if method in {"layer", "group"} else "dataset_recentering"
    names = ("weight_matrix_rescaling", *(() if method == "rms" else (shift,)))
    causes = []
    for result in (report[name] for name in names):
        if result.verdict is Verdict.UP_TO_EPS:
            causes.append("ε")
        if "overflow" in result.note:
            causes.append("squares overflow")
        if "E[a²] − E[a]²" in result.note:
            causes.append("variance in one pass")
        elif "κu" in result.note:
            causes.append("mean rounded once")
    return ", ".join(dict.fromkeys(causes)) or "–"


def measure(
    method: str, library: str, source: Any, dtype: str, *, width: int, samples: int, seed: int = 0, causes: bool = True
) -> Row:
    """Runs one layer over offsets and scales.

    Args:
        method: "layer", "rms", "batch" or "group".
        library: name of the row.
        source: "package.module:NAME", or what makes the layer for a width.
        dtype: of the input.
        width: units.
        samples: rows.
        seed: of the input.
        causes: whether to find out why it fails.

    Returns:
        The row.
    """
    subject = adapt(source if isinstance(source, str) else source(width), units=width)
    eps = _eps(method, library, subject, dtype)
    noise = np.random.default_rng(seed).normal(size=(samples, width))
    identity = np.eye(width)

    def run(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = subject.arguments(identity, a, dtype)[0]
        return given, subject(identity, a, dtype)

    errors = []
    for offset in OFFSETS:
        given, outputs = run(noise + offset)
        errors.append(gap(outputs, reference(method, given, eps)))
    base = run(noise)[1]
    deviations = [gap(run(noise.astype(base.dtype).astype(float) * delta)[1], base) for delta in SCALES]
    limit = 1e-4 if dtype == "float32" else 2.0**-6
    within = [offset for offset, error in zip(OFFSETS, errors, strict=True) if error <= limit]
    return Row(
        method=method,
        library=library,
        dtype=dtype,
        eps=eps,
        errors=tuple(errors),
        deviations=tuple(deviations),
        largest_offset=max(within, default=None),
        scales=_interval(deviations, limit),
        cause=_cause(source if isinstance(source, str) else source(6), method) if causes else "",
    )


def _interval(deviations: list[float], limit: float) -> tuple[float, float] | None:
    low = high = SCALES.index(1.0)
    while low > 0 and deviations[low - 1] <= limit:
        low -= 1
    while high < len(SCALES) - 1 and deviations[high + 1] <= limit:
        high += 1
    return (SCALES[low], SCALES[high]) if low < high else None


def _exact_layers() -> Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """The exact layers as functions of W and X in float32; summed inputs are rounded once."""

    def summed(W: np.ndarray, X: np.ndarray) -> np.ndarray:
        return (X.astype(np.float64) @ W.astype(np.float64).T).astype(np.float32)

    return {
        "layer": lambda W, X: np.asarray(nn.layer_norm(jnp.asarray(summed(W, X)), exact=True)),
        "batch": lambda W, X: np.asarray(nn.batch_norm(jnp.asarray(summed(W, X)), exact=True)[0]),
        "weight": lambda W, X: np.asarray(nn.weight_norm(jnp.asarray(X), jnp.asarray(W), exact=True)),
    }


def exact_cells(units: int = 24, features: int = 10, samples: int = 40, seed: int = 0) -> tuple[Cell, ...]:
    """Every "yes" of Table 1 for the exact layers in float32.

    Args:
        units: H.
        features: D.
        samples: N.
        seed: of weights and inputs.

    Returns:
        One cell for each.
    """
    rng = np.random.default_rng(seed)
    W, X = (rng.normal(size=shape).astype(np.float32) for shape in ((units, features), (samples, features)))
    layers, cells = _exact_layers(), []
    row, case, gamma = np.arange(units)[:, None] == 3, np.arange(samples)[:, None] == 5, rng.normal(size=(1, features))

    def scaled(array: np.ndarray, delta: float, where: Any = True) -> np.ndarray:
        return np.where(where, array * np.float32(delta), array)

    scalings: dict[tuple[str, str], Callable[[float], tuple[np.ndarray, np.ndarray]]] = {}
    for method in ("layer", "batch", "weight"):
        scalings[method, "weight_matrix_rescaling"] = lambda d: (scaled(W, d), X)
    for method in ("batch", "weight"):
        scalings[method, "weight_vector_rescaling"] = lambda d: (scaled(W, d, row), X)
    for method in ("layer", "batch"):
        scalings[method, "dataset_rescaling"] = lambda d: (W, scaled(X, d))
    scalings["layer", "single_case_rescaling"] = lambda d: (W, scaled(X, d, case))
    for (method, column), move in scalings.items():
        base = layers[method](W, X)
        worst = max(gap(layers[method](*move(delta)), base) for delta in SCALES)
        cells.append(Cell(method, column, worst, 1e-6))
    shifts = {
        ("layer", "weight_matrix_recentering"): lambda c: (W + (c * gamma).astype(np.float32), X),
        ("batch", "dataset_recentering"): lambda c: (W, X + (c * gamma).astype(np.float32)),
    }
    for (method, column), move in shifts.items():
        base, worst, ratio = layers[method](W, X), 0.0, 0.0
        for c in (*OFFSETS[1:], 1.0):
            moved = move(c)
            outputs = layers[method](*moved)
            a = (moved[1].astype(np.float64) @ moved[0].astype(np.float64).T).astype(np.float32)
            worst = max(worst, gap(outputs, reference(method, a, 0.0)))
            kappa = float(np.abs(a).max() / a.std(0 if method == "batch" else -1).min())
            ratio = max(ratio, gap(outputs, base) / (kappa * 2.0**-24))
        cells.append(Cell(method, column, worst, 1e-6, ratio))
    return tuple(cells)
