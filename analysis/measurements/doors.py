"""Every door for every framework: is the answer right, and how long does it take? `python -m analysis doors`.

Models of plain JAX, nnx, linen, equinox, haiku, Keras and torch go through the doors of the library, each model in a
process of its own without a compilation cache. A cell says whether the answer is right, refused or wrong, and the
seconds of the processor for the first call and for the second one. It writes `figures/doors.json` and, as a table,
`figures/doors.md`; `--only TEXT` picks models. About ten minutes on one core. It needs the extra `peers`.

The reference is literal, in float64 and in NumPy: J by the framework's own reverse mode, a row at a time (torch) or at
once (JAX); Λ by its closed form, F = Σ JᵀΛJ / N, its rank by a singular value decomposition of its factor, log p by
scipy. Doors that look for faults must report none: the models have none.
"""

import functools
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from analysis.measurements import from_torch
from analysis.measurements.model_table import ModelTable
from analysis.models.architectures import ARCHITECTURES, Foreign
from analysis.models.small_models import MODELS as SMALL

SECONDS = 40.0
"""What a model takes on an idle core, about."""

CLOSE = 1e-8
"""Largest difference, relative to the largest entry, that counts as right in float64."""

SINGLE = {"BN CNN, Keras": 1e-5}
"""The same of models that compute in float32 whatever their dtype, as batch norm of Keras does: set after a first run
had shown differences of 6·10⁻⁸."""

EXPECTED = {"BN CNN, Keras": {"redundant-bias"}, "BN ResNet, torch": {"redundant-bias"}}
"""What `lint` has to find: these models have biases before batch norms, as a first run said. Else nothing."""

LIBRARIES = ("jax", "flax", "equinox", "dm-haiku", "keras", "torch")
"""Packages whose versions are written beside the results."""


class Made(NamedTuple):
    """A model as the doors take it, with the literal reference.

    Attributes:
        model: as `check_model` and `lint` take it.
        X: inputs.
        apply: for the other doors.
        params: for `apply`.
        family: of the outputs.
        z: outputs of the framework, [R C].
        J: their derivatives by the parameters, [R C P].
    """

    model: Any
    X: Any
    apply: Any
    params: Any
    family: Any
    z: np.ndarray
    J: np.ndarray


def of_jax(make: Callable[..., Foreign]) -> Made:
    """A model of a framework on JAX."""
    foreign = make("float64")
    assert foreign.apply is not None
    F = lg.fisher(foreign.apply, foreign.params, foreign.X, family=foreign.family)
    flat, unravel = ravel_pytree(F.problem.params)  # which of the arrays are parameters the library says
    outputs = jax.jit(lambda p: F.problem.outputs(unravel(p), foreign.X))
    z = np.asarray(outputs(flat), float)
    J = np.asarray(jax.jit(jax.jacrev(outputs))(flat), float)
    classes = z.shape[-1]
    return Made(
        *foreign[:2],
        foreign.apply,
        foreign.params,
        foreign.family,
        z.reshape(-1, classes),
        J.reshape(-1, classes, flat.size),
    )


def of_torch(make: Callable[..., from_torch.Model]) -> Made:
    """A torch module."""
    made = from_torch.made(make, "float64")
    apply, params = lg.from_torch(made.module, made.X, output=made.output)
    expected = from_torch.reference(made, sorted(params))
    return Made(made.module, made.X, apply, params, lg.families.Categorical(), expected.z, expected.J)


MODELS: dict[str, Callable[[], Made]] = {
    "LN MLP, nnx": functools.partial(of_jax, SMALL["LN MLP, nnx"]),
    "CNN, nnx": functools.partial(of_jax, SMALL["CNN, nnx"]),
    "group norms, linen": functools.partial(of_jax, SMALL["group norms, linen"]),
    "gated residual, equinox": functools.partial(of_jax, SMALL["gated residual, equinox"]),
    "state space, equinox": functools.partial(of_jax, ARCHITECTURES["SSM, equinox"]),
    "LN MLP, haiku": functools.partial(of_jax, ARCHITECTURES["MLP, haiku"]),
    "BN CNN, Keras": functools.partial(of_jax, ARCHITECTURES["CNN, keras"]),
    "tied autoencoder, JAX": functools.partial(of_jax, SMALL["tied autoencoder"]),
    "LN MLP, torch": functools.partial(of_torch, from_torch.mlp),
    "BN ResNet, torch": functools.partial(of_torch, from_torch.cnn),
    "ViT, torch": functools.partial(of_torch, from_torch.vit),
    "GPT-2, torch": functools.partial(of_torch, from_torch.gpt2),
    "BERT, torch": functools.partial(of_torch, from_torch.bert),
}
"""Models by name and framework."""


def _off(found: Any, expected: Any) -> float:
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    if found.shape != expected.shape:
        return float("inf")
    return float(np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), 1e-300))


def _factor(made: Made) -> np.ndarray:
    """Rows √Λ J of the literal matrix, whose sum of squares is N F."""
    if isinstance(made.family, lg.families.Gaussian):
        return made.J.reshape(-1, made.J.shape[-1])
    p = np.exp(made.z - scipy.special.logsumexp(made.z, 1, keepdims=True))
    centred = made.J - np.einsum("rc,rcp->rp", p, made.J)[:, None]
    return (np.sqrt(p)[..., None] * centred).reshape(-1, made.J.shape[-1])


def doors(
    made: Made, findings: Collection[str] = (), single: bool = False
) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], float]]]:
    """Each door: its name, what is called, and how far the answer is from the literal one.

    Args:
        made: the model.
        findings: rules of which `lint` has to find a case.
        single: whether the model computes in float32.
    """
    rows, samples = _factor(made), len(jax.tree.leaves(made.X)[0])
    matrix = rows.T @ rows / samples
    singular = np.linalg.svd(rows, compute_uv=False)
    rank = int(np.sum(singular > singular[0] * max(rows.shape) * np.finfo("f4" if single else "f8").eps))
    v = np.random.default_rng(1).normal(size=len(matrix))
    fisher = functools.partial(lg.fisher, made.apply, made.params, family=made.family)
    y: Any = _responses(made)

    def null(found: Any) -> float:
        if found.dimension != len(matrix) - rank:
            return float("inf")
        return float(np.linalg.norm(rows @ np.asarray(found.basis)) / np.linalg.norm(rows)) if found.dimension else 0.0

    def halves() -> lg.Batches:
        cut = samples // 2 + 1
        return lg.Batches([jax.tree.map(lambda a: a[:cut], made.X), jax.tree.map(lambda a: a[cut:], made.X)])

    yield "fisher", lambda: fisher(made.X) @ jnp.asarray(v), lambda found: _off(found, matrix @ v)
    yield "matrix", lambda: fisher(made.X).as_matrix(), lambda found: _off(found, matrix)
    yield "diagonal", lambda: fisher(made.X).diagonal(), lambda found: _off(found, np.diag(matrix))
    yield "rank", lambda: fisher(made.X).rank(), lambda found: abs(int(found) - rank) / max(rank, 1)
    yield "null space", lambda: fisher(made.X).nullspace(), null
    yield "loader", lambda: fisher(halves()).as_matrix(), lambda found: _off(found, matrix)
    yield (
        "laplace",
        lambda: lg.laplace(made.apply, made.params, made.X, y, family=made.family, gauge=False).log_evidence,
        lambda found: _off(found, _evidence(made, rows, y)),
    )
    yield "check", lambda: lg.check_model(made.model, made.X), lambda found: float(found.differs)
    yield (
        "lint",
        lambda: lg.lint(made.model, made.X),
        lambda found: float({f.rule for f in found.findings} != {*findings}),
    )
    plan = functools.partial(lg.training.plan, made.apply, made.params, made.X)
    yield "plan", lambda: plan(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1), lambda found: 0.0


def _responses(made: Made) -> np.ndarray:
    """Responses of the model's family, in the shape of its outputs."""
    draw = np.random.default_rng(2)
    shape = jax.eval_shape(made.apply, made.params, made.X).shape
    if isinstance(made.family, lg.families.Gaussian):
        return draw.normal(size=shape)
    return draw.integers(0, shape[-1], shape[:-1])


def _evidence(made: Made, rows: np.ndarray, y: np.ndarray) -> float:
    """Log Z of the usual Laplace approximation with prior precision 1."""
    theta = np.concatenate(
        [
            np.ravel(leaf)
            for leaf in jax.tree.leaves(lg.fisher(made.apply, made.params, made.X, family=made.family).problem.params)
        ]
    )
    if isinstance(made.family, lg.families.Gaussian):
        likelihood = scipy.stats.norm.logpdf(y.reshape(made.z.shape), made.z).sum()
    else:
        likelihood = np.take_along_axis(scipy.special.log_softmax(made.z, 1), y.reshape(-1, 1), 1).sum()
    small = rows @ rows.T if rows.shape[0] < rows.shape[1] else rows.T @ rows
    return float(likelihood - theta @ theta / 2 - np.linalg.slogdet(np.eye(len(small)) + small)[1] / 2)


def measured(name: str) -> dict[str, Any]:
    """All doors of a model in this process.

    Args:
        name: of `MODELS`.

    Returns:
        Parameters, and of each door the difference from the literal answer or why it was refused, and seconds of the
        processor, cold and warm.
    """
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    made = MODELS[name]()
    found: dict[str, Any] = {}
    for door, call, distance in doors(made, EXPECTED.get(name, ()), name in SINGLE):
        jax.clear_caches()
        try:
            seconds = []
            for _ in range(2):
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    answer = jax.block_until_ready(call())
                seconds.append(time.process_time() - start)
            found[door] = {
                "off": distance(answer),
                "close": SINGLE.get(name, CLOSE),
                "cold": seconds[0],
                "warm": seconds[1],
            }
        except ValueError as error:
            found[door] = {"refused": str(error).splitlines()[0]}
    return {"parameters": made.J.shape[-1], "doors": found}


def alone(name: str) -> dict[str, Any]:
    """The same in a process of its own."""
    given = [sys.executable, "-W", "ignore", "-m", "analysis.measurements.doors", "--alone", name]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | {"KERAS_BACKEND": "jax"}
    return json.loads(
        subprocess.run(given, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.splitlines()[-1]
    )


DOORS = ("fisher", "matrix", "diagonal", "rank", "null space", "loader", "laplace", "check", "lint", "plan")
"""Columns after the model and its number of parameters."""


def _is_right(found: dict[str, Any]) -> bool:
    return found.get("off") is not None and found["off"] <= found["close"]


def cell(found: dict[str, Any]) -> str:
    """Right, refused or wrong, and seconds cold and warm."""
    if "refused" in found:
        return "refused"
    wrong = "" if _is_right(found) else "WRONG "
    return f"{wrong}{found['cold']:.1f} / {found['warm']:.1f}"


def rows(results: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row a model."""
    return [(name, f"{r['parameters']:,}", *(cell(r["doors"][door]) for door in DOORS)) for name, r in results.items()]


def page(results: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown: a table, and why doors were refused."""
    every = [each for r in results.values() for door, each in r["doors"].items() if door != "plan"]
    right = sum(map(_is_right, every))
    refused = sum("refused" in each for each in every)
    lines = [
        "# Every door for every framework",
        "",
        f"{len(every)} answers: {right} right, {refused} refused, {len(every) - right - refused} wrong. Cells: seconds",
        "of the processor for the first call, with all compilations, and for the second one, in float64. Right means",
        "within 10⁻⁸ of a literal matrix of the framework's own derivatives (the same rank; nothing found by `check`,",
        "and by `lint` only the biases before two batch norms, which a first run had found). `plan` has no literal",
        "answer: it is timed and not counted. Which arrays are parameters the library says. Plain functions have no",
        "norms in place to check. Batch norm of Keras computes in float32 whatever its dtype: right means 10⁻⁵ there,",
        "set after a first run. Measured beside other programs. Written by `python -m analysis doors`.",
        "",
        *TABLE.markdown(results),
        "",
    ]
    reasons = [
        f"- {name}, {door}: {each['refused']}"
        for name, r in results.items()
        for door, each in r["doors"].items()
        if "refused" in each
    ]
    return "\n".join([*lines, *(["Refused:", "", *reasons, ""] if reasons else [])])


TABLE = ModelTable("doors", ("model", "P", *DOORS), rows, page, LIBRARIES, SECONDS)


def main() -> None:
    """Runs the models and writes their results."""
    if "--alone" in sys.argv:
        print(json.dumps(measured(sys.argv[-1])))
        return
    TABLE.command({name: functools.partial(alone, name) for name in MODELS}, (__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
