"""Small models of many kinds, each a function as users write it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from hypothesis import strategies as st

from tests.cases import definition, metric_of

D, H, C = 3, 4, 3
"""Inputs, hidden units and classes."""


@dataclass(frozen=True)
class Model:
    """A function of (params, X), shapes of its parameters, and what its outputs can be."""

    name: str
    apply: Callable[[Any, Any], Any]
    shapes: dict[str, tuple[int, ...]]
    X: str = "rows"


@dataclass(frozen=True)
class Case:
    """A model with values."""

    model: Model
    params: dict[str, np.ndarray]
    X: Any
    family: Any

    def __repr__(self) -> str:
        return f"Case({self.model.name}, {type(self.family).__name__}, N = {len(jax.tree.leaves(self.X)[0])})"

    def fisher(self, apply: Any = None, params: Any = None, X: Any = None, **more: Any) -> lg.FisherOperator:
        apply, params = self.model.apply if apply is None else apply, self.params if params is None else params
        return lg.fisher(apply, params, self.X if X is None else X, **({"family": self.family} | more))


def linear(p, x):
    return x @ p["w"] + p["b"]


def mlp(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]


def relu(p, x):
    return jax.nn.relu(x @ p["w"] + p["b"]) @ p["v"] + p["c"]


def layer_norm(p, x):
    h = x @ p["w"]
    h = h - h.mean(-1, keepdims=True)
    return jnp.tanh(h / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-5) * p["g"]) @ p["v"]


def rms_gated(p, x):
    h = x @ p["w"]
    h = h / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-6)
    return (h * jax.nn.sigmoid(x @ p["u"])) @ p["v"]


def residual(p, x):
    h = x @ p["w"]
    for _ in range(2):
        h = h + jnp.tanh(h @ p["r"])
    return h @ p["v"]


def scaled(p, x):
    return jnp.exp(p["s"]) * (x @ p["w"])


def attention(p, x):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2), -1) @ v


def convolution(p, x):
    h = jax.lax.conv_general_dilated(x, p["w"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return jnp.tanh(h).mean(1) @ p["v"]


def recurrent(p, x):
    def step(h, x):
        return jnp.tanh(x @ p["w"] + h @ p["r"]), None

    h, _ = jax.lax.scan(step, jnp.zeros((x.shape[0], H), x.dtype), jnp.swapaxes(x, 0, 1))
    return h @ p["v"]


def embedding(p, x):
    return jnp.tanh(p["e"][x].mean(1)) @ p["v"]


W, B, V = {"w": (D, H)}, {"b": (H,)}, {"v": (H, C)}
MODELS = (
    Model("linear", linear, {"w": (D, C), "b": (C,)}),
    Model("mlp", mlp, W | B | V),
    Model("relu", relu, W | B | V | {"c": (C,)}),
    Model("layer_norm", layer_norm, W | {"g": (H,)} | V),
    Model("rms_gated", rms_gated, W | {"u": (D, H)} | V),
    Model("residual", residual, W | {"r": (H, H)} | V),
    Model("scaled", scaled, {"w": (D, C), "s": ()}),
    Model("attention", attention, {"q": (D, 2), "k": (D, 2), "v": (D, C)}, "sequences"),
    Model("convolution", convolution, {"w": (3, D, H)} | V, "sequences"),
    Model("recurrent", recurrent, W | {"r": (H, H)} | V, "sequences"),
    Model("embedding", embedding, {"e": (5, H)} | V, "tokens"),
)
FAMILIES = (lg.families.Gaussian(0.7), lg.families.Bernoulli(), lg.families.Categorical(), lg.families.Poisson())
N = 12
ROWS = tuple(model for model in MODELS if model.X == "rows")


@st.composite
def cases(draw, models=MODELS, families=FAMILIES, samples: int = N, dtype: Any = np.float64) -> Case:
    """A model of a few fixed shapes: programs are compiled once, values are drawn."""
    model, family = draw(st.sampled_from(models)), draw(st.sampled_from(families))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    size = draw(st.sampled_from([0.5, 1.0, 2.0]))
    params = {k: (size * rng.normal(size=s) / max(s[:1] or (1,)) ** 0.5).astype(dtype) for k, s in model.shapes.items()}
    X = {
        "rows": lambda: rng.normal(size=(samples, D)).astype(dtype),
        "sequences": lambda: rng.normal(size=(samples, 4, D)).astype(dtype),
        "tokens": lambda: rng.integers(0, 5, (samples, 6)),
    }[model.X]()
    return Case(model, {k: jnp.asarray(v) for k, v in params.items()}, jnp.asarray(X), family)


_programs: dict = {}


def plain(case: Case, params: Any = None) -> np.ndarray:
    """F by its definition, whose program is kept by function and family."""
    key = case.model.apply, repr(case.family)
    if key not in _programs:
        _programs[key] = definition(case.model.apply, metric_of(case.family))
    return np.asarray(_programs[key](case.params if params is None else params, case.X))


def plain_of(case: Case, apply: Callable[[Any, Any], Any], **changes: Any) -> np.ndarray:
    """F by its definition, of another function at the data of a case, or with other values."""
    return plain(replace(case, model=replace(case.model, apply=apply), **changes))
