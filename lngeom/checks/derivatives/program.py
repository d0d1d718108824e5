"""A program of the framework alone that shows a wrong derivative, ready for a bug report."""

import contextlib
import importlib
import io

import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks.derivatives.examine import Case
from lngeom.checks.derivatives.report import Derivative
from lngeom.checks.subject import Subject

TORCH = {
    "torch.func jvp": "jvp(f, (x,), (u,))[1] * c",
    "torch.func vjp": "vjp(f, x)[1](c)[0] * u",
    "autograd backward": "torch.autograd.grad(f(x), x, c)[0] * u",
    "autograd vjp": "torch.autograd.grad(f(x), x, c, create_graph=True)[0] * u",
    "torch.func jvp∘jvp": "jvp(lambda y: jvp(f, (y,), (u,))[1], (x,), (u,))[1] * c",
    "torch.func jvp∘vjp": "jvp(lambda y: vjp(f, y)[1](c)[0], (x,), (u,))[1] * u",
    "torch.func vjp∘jvp": "vjp(lambda y: jvp(f, (y,), (u,))[1], x)[1](c)[0] * u",
    "torch.func vjp∘vjp": "vjp(lambda y: vjp(f, y)[1](c)[0], x)[1](u)[0] * u",
    "autograd vjp∘vjp": "torch.autograd.grad(torch.autograd.grad(f(x), x, c, create_graph=True)[0], x, u)[0] * u",
}
JAX = {
    "jvp": "jvp(f, (x,), (u,))[1] * c",
    "vjp": "vjp(f, x)[1](c)[0] * u",
    "jvp∘jvp": "jvp(lambda y: jvp(f, (y,), (u,))[1], (x,), (u,))[1] * c",
    "jvp∘vjp": "jvp(lambda y: vjp(f, y)[1](c)[0], (x,), (u,))[1] * u",
    "vjp∘jvp": "vjp(lambda y: jvp(f, (y,), (u,))[1], x)[1](c)[0] * u",
    "vjp∘vjp": "vjp(lambda y: vjp(f, y)[1](c)[0], x)[1](u)[0] * u",
}
"""What a route gives, contracted with direction and cotangent to the number ⟨c, Dᵏf[u, …, u]⟩."""

DIFFERENCES = {1: "(f(x + h * u) - f(x - h * u)) / (2 * h)", 2: "(f(x + h * u) - 2 * f(x) + f(x - h * u)) / h**2"}

IN_TORCH = """import torch
from torch.func import jvp, vjp
import {module}

layer = {make}.double().train({training})
x = torch.tensor({x}, dtype=torch.float64, requires_grad={grad})
u = torch.tensor({u}, dtype=torch.float64)
c = torch.tensor({c}, dtype=torch.float64)
f, h = lambda x: layer(x), 1e-3
found = ({found}).sum().item()
expected = (c * {differences}).sum().item()
print("{route}:", found, "differences of outputs:", expected)
assert abs(found - expected) < 1e-3 * max(1, abs(expected))
"""

FLAG = 'jax.config.update("jax_enable_x64", True)'

IN_JAX = """import jax
import jax.numpy as jnp
from jax import jvp, vjp
from {module} import {name} as f

jax.config.update("jax_enable_x64", True)
x = jnp.array({x})
u = jnp.array({u})
c = jnp.array({c})
h = 1e-3
found = ({found}).sum()
expected = (c * {differences}).sum()
print("{route}:", found, "differences of outputs:", expected)
assert abs(found - expected) < 1e-3 * max(1, abs(expected))
"""


def program(subject: Subject, case: Case, wrong: Derivative, training: bool) -> str:
    """A program that shows that a derivative in the inputs is wrong; empty where none is known.

    The layer has the parameters that its constructor gives it, and inputs of one decimal.

    Args:
        subject: the layer, which has a name.
        case: the ordinary point.
        wrong: a derivative that is wrong.
        training: whether a module is in training mode.
    """
    shape = case.vector.shapes["inputs"]
    if not subject.source or subject.takes_weights or wrong.order not in DIFFERENCES:
        return ""
    if case.outputs.size != int(np.prod(shape)):
        return ""
    rng = probe_generator()
    x, u, c = (np.round(rng.normal(size=shape), 1).tolist() for _ in range(3))
    module, _, name = subject.source.partition(":")
    shared = {"x": x, "u": u, "c": c, "route": wrong.route, "differences": DIFFERENCES[wrong.order], "module": module}
    if case.vector.opened.torch and wrong.route in TORCH and _is_module(module, name):
        text = IN_TORCH.format(
            make=f"{module}.{name}({shape[-1]}{_stateless(module, name, shape[-1]) if training else ''})",
            training=training,
            grad=wrong.route.startswith("autograd"),
            found=TORCH[wrong.route],
            **shared,
        )
        return text if wrong.route.startswith("autograd") else text.replace(", requires_grad=False", "")
    if not case.vector.opened.torch and not case.vector.start and wrong.route in JAX:
        return IN_JAX.format(name=name, found=JAX[wrong.route], **shared)
    return ""


def shows(text: str) -> bool:
    """Whether the program fails on the assertion at its end."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # float64 is enabled where this runs
            exec(compile(text.replace(FLAG, ""), "<program>", "exec"), {})
    except AssertionError:
        return True
    except Exception:  # a layer that is made with other arguments
        return False
    return False


def _stateless(module: str, name: str, units: int) -> str:
    """The argument without which forward mode refuses to write to running statistics."""
    made = getattr(importlib.import_module(module), name)(units)
    return ", track_running_stats=False" if hasattr(made, "track_running_stats") else ""


def _is_module(module: str, name: str) -> bool:
    import torch

    found = getattr(importlib.import_module(module), name, None)
    return isinstance(found, type) and issubclass(found, torch.nn.Module)
