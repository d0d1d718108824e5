"""The Fisher operator that the options of `lngeom fisher` describe."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lngeom
from lngeom import families
from lngeom.checks.adapters import load
from lngeom.claims.data import load as load_data
from lngeom.cli.fisher_inputs import Given, from_object, read_whole
from lngeom.information import FisherOperator
from lngeom.methods import AbstractNormalizer, Identity, page

FAMILIES = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): kind
    for name, kind in vars(families).items()
    if inspect.isclass(kind) and issubclass(kind, families.AbstractFamily) and not inspect.isabstract(kind)
}
"""Families by name. A family's parameter has its default; for another value use MODULE:NAME."""


def named(source: str, params: Path | None, data: str | None, epsilon: float | None, dtype: str) -> Given:
    """The model that MODULE:NAME names, its parameters and inputs."""
    found = load(source, "a model is named as PACKAGE.MODULE:NAME, such as mypkg.models:problem")
    return from_object(
        found, source, params=params, data=None if data is None else Path(data), eps=epsilon, dtype=_dtype(dtype)
    )


def normalized_glm(
    normalizer: str, family: str | None, outputs: int, data: str | None, epsilon: float | None, dtype: str, seed: int
) -> Given:
    """A normalized GLM with random weights on real data."""
    dataset = load_data(data or "digits", seed)
    X = jnp.asarray(dataset.inputs, _dtype(dtype))
    responses = _family(family or "categorical")
    start = lngeom.NormalizedGLM(Identity(), responses)
    key = jax.random.key(seed)
    arguments: dict[str, Any] = {"inputs": X.shape[1], "outputs": outputs, "dtype": X.dtype}
    made = _normalizer(normalizer, start.init(key, **arguments).weights, X, epsilon)
    model = lngeom.NormalizedGLM(made, responses)
    return Given(model, model.init(key, **arguments), X, {}, dataset)


def operator(
    given: Given,
    family: str | None,
    method: str,
    wrt: list[str] | None,
    responses: str | None,
    samples: int,
    batch_coupled: bool | None,
    memory: float | None,
    seed: int,
) -> FisherOperator:
    """The Fisher operator. Options override the arguments that the model brings.

    Args:
        given: model, parameters and inputs.
        family: name of the family.
        method: as in `fisher`.
        wrt: leaves to differentiate.
        responses: file of y, or "digits".
        samples: draws per input, for "monte_carlo".
        batch_coupled: whether samples interact.
        memory: budget in GiB.
        seed: random seed, for "monte_carlo".

    Returns:
        The operator.

    Raises:
        ValueError: if the options do not fit together, or the model raises.
    """
    arguments = dict(given.arguments)
    options = {
        "family": None if family is None else _family(family),
        "method": method,
        "wrt": wrt or None,
        "batch_coupled": batch_coupled,
        "memory": None if memory is None else int(memory * 2**30),
        "y": None if responses is None else _responses(responses),
    }
    if method == "monte_carlo":
        options |= {"key": jax.random.key(seed), "samples": samples}
    arguments |= {name: value for name, value in options.items() if value is not None}
    if method == "empirical" and "y" not in arguments:
        raise ValueError("--method empirical needs --responses, the observed y (a file, or 'digits' for their labels)")
    if "family" not in arguments and not isinstance(given.model_or_apply, lngeom.NormalizedGLM):
        raise ValueError(f"--family must say how outputs are distributed: one of {', '.join(FAMILIES)}")
    try:
        return lngeom.fisher(given.model_or_apply, given.params, given.X, **arguments)
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ValueError(f"the model raised {type(error).__name__}: {first}") from error


def check_save(path: Path) -> None:
    """Checks the name of the file for the matrix.

    Args:
        path: of the file.

    Raises:
        ValueError: if it is not a .npz.
    """
    if path.suffix != ".npz" or path.is_dir():
        raise ValueError(f"--save takes a .npz file; got {path}")


def _family(name: str) -> families.AbstractFamily:
    if name not in FAMILIES:
        raise ValueError(f"no family {name!r}; there are {', '.join(FAMILIES)}")
    make: Any = FAMILIES[name]
    return make()


def _normalizer(name: str, weights: jax.Array, X: jax.Array, epsilon: float | None) -> AbstractNormalizer:
    found = Identity() if name == "identity" else page.named(name).make(weights, X)
    if epsilon is None:
        return found
    if name == "identity" or not hasattr(found, "eps"):
        raise ValueError(f"{type(found).__name__} has no ε to set with --epsilon")
    return replace(found, eps=epsilon)  # pyright: ignore[reportCallIssue]


def _responses(source: str) -> jax.Array:
    if source == "digits":
        from sklearn.datasets import load_digits

        return jnp.asarray(np.asarray(load_digits(return_X_y=True)[1]))
    return jnp.asarray(read_whole(Path(source)))


def _dtype(name: str) -> Any:
    if name not in {"float32", "float64"}:
        raise ValueError(f"--dtype must be float64 or float32; got {name!r}")
    return jnp.dtype(name)
