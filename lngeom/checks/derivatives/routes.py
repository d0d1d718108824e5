"""Derivatives by the rules of a framework: forward and reverse mode, and what follows when they are nested.

A route is a name such as "jvp∘vjp": forward mode over reverse mode. Every one acts on a function of one vector x, with
directions u and v, and a cotangent c of the outputs.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Float

from lngeom.checks._frameworks import torch_tensor

Function = Callable[[Any], Any]


class Engine(Protocol):
    """Differentiation in a framework.

    An engine that has forward mode has `jvp(f, x, u)`, Df(x)[u]; one that has reverse mode `vjp(f, x, c)`, Df(x)ᵀc. One
    whose reverse mode has another way, which cannot be differentiated again, has `backward(f, x, c)`. One that runs
    functions over a first axis has `vmap(f)`.

    Attributes:
        name: what stands before the names of its routes, empty for the only one of a framework.
    """

    name: str

    def run(self, f: Callable[..., Any], *arrays: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """A function of arrays of the framework on those of NumPy, as NumPy's in float64."""
        ...


class Jax:
    """JAX; every route is compiled."""

    name = ""

    def jvp(self, f: Function, x: Any, u: Any) -> Any:
        return jax.jvp(f, (x,), (u,))[1]

    def vjp(self, f: Function, x: Any, c: Any) -> Any:
        return jax.vjp(f, x)[1](c)[0]

    def run(self, f: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
        return np.asarray(f(*arrays), np.float64)

    def vmap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(f)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, afterwards on as many as before: tensors of some entries wait for threads, not for sums."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    try:
        if torch:
            torch.set_num_threads(1)
        yield
    finally:
        if torch:
            torch.set_num_threads(threads)


class _Torch:
    def run(self, f: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
        import torch

        return f(*map(torch_tensor, arrays)).detach().to(torch.float64).numpy()


class TorchFunc(_Torch):
    """`torch.func`."""

    name = "torch.func "

    def jvp(self, f: Function, x: Any, u: Any) -> Any:
        import torch

        return torch.func.jvp(f, (x,), (u,))[1]

    def vjp(self, f: Function, x: Any, c: Any) -> Any:
        import torch

        return torch.func.vjp(f, x)[1](c)[0]

    def vmap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        return torch.func.vmap(f)


class TorchAutograd(_Torch):
    """`torch.autograd.grad`, plainly and with `create_graph`; it has no forward mode that nests."""

    name = "autograd "

    def vjp(self, f: Function, x: Any, c: Any) -> Any:
        import torch

        x = x if x.requires_grad else x.detach().requires_grad_()
        c = c if c.requires_grad else c.detach().requires_grad_()  # so that the graph tells what was refused
        out = f(x)
        if not out.requires_grad:  # autograd sees no dependence
            return torch.zeros_like(x)
        (found,) = torch.autograd.grad(out, x, c, create_graph=True, allow_unused=True)
        if found is None and any("Error" in node.name() for node in _graph(out.grad_fn)):
            raise RuntimeError("torch refuses to differentiate a function twice: it is marked once_differentiable")
        return torch.zeros_like(x) if found is None else found

    def backward(self, f: Function, x: Any, c: Any) -> Any:
        import torch

        x = x.detach().requires_grad_()
        out = f(x)
        return torch.autograd.grad(out, x, c, materialize_grads=True)[0] if out.requires_grad else torch.zeros_like(x)


class TorchCompiled(_Torch):
    """`torch.autograd.grad` of a layer that torch.compile compiled, which it differentiates once."""

    name = "torch.compile "

    def backward(self, f: Function, x: Any, c: Any) -> Any:
        return TorchAutograd().backward(f, x, c)


def _graph(root: Any) -> Iterator[Any]:
    """The nodes of a graph of torch's autograd."""
    left, seen = [root], set()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            left += [following for following, _ in node.next_functions]


class Route(NamedTuple):
    """A derivative, and how it is composed.

    Attributes:
        name: forward and reverse modes, the last one applied first.
        order: 1, 2 or 3.
        of_outputs: whether it has an entry for each output, and not for each entry of x.
        formula: what it is.
        make: (engine, f) → function of (x, u, v, c).
    """

    name: str
    order: int
    of_outputs: bool
    formula: str
    make: Callable[[Any, Function], Callable[..., Any]]

    @property
    def modes(self) -> set[str]:
        """What an engine needs for it."""
        return set(re.findall("jvp|vjp|backward", self.name))


ROUTES = (
    Route("jvp", 1, True, "Df[u]", lambda e, f: lambda x, u, v, c: e.jvp(f, x, u)),
    Route("vjp", 1, False, "Dfᵀc", lambda e, f: lambda x, u, v, c: e.vjp(f, x, c)),
    Route("backward", 1, False, "Dfᵀc", lambda e, f: lambda x, u, v, c: e.backward(f, x, c)),
    Route("jvp∘jvp", 2, True, "D²f[u, v]", lambda e, f: lambda x, u, v, c: e.jvp(lambda y: e.jvp(f, y, u), x, v)),
    Route("jvp∘vjp", 2, False, "⟨c, D²f[u, ·]⟩", lambda e, f: lambda x, u, v, c: e.jvp(lambda y: e.vjp(f, y, c), x, u)),
    Route("vjp∘jvp", 2, False, "⟨c, D²f[u, ·]⟩", lambda e, f: lambda x, u, v, c: e.vjp(lambda y: e.jvp(f, y, u), x, c)),
    Route("vjp∘vjp", 2, False, "⟨c, D²f[u, ·]⟩", lambda e, f: lambda x, u, v, c: e.vjp(lambda y: e.vjp(f, y, c), x, u)),
    Route("vjp∘vjp in c", 1, True, "Df[u]", lambda e, f: lambda x, u, v, c: e.vjp(lambda d: e.vjp(f, x, d), c, u)),
    Route(
        "jvp∘jvp∘jvp",
        3,
        True,
        "D³f[u, u, v]",
        lambda e, f: lambda x, u, v, c: e.jvp(lambda z: e.jvp(lambda y: e.jvp(f, y, u), z, u), x, v),
    ),
    Route(
        "jvp∘vjp∘vjp",
        3,
        False,
        "⟨c, D³f[u, u, ·]⟩",
        lambda e, f: lambda x, u, v, c: e.jvp(lambda z: e.vjp(lambda y: e.vjp(f, y, c), z, u), x, u),
    ),
    Route(
        "vjp∘vjp∘vjp",
        3,
        False,
        "⟨c, D³f[u, u, ·]⟩",
        lambda e, f: lambda x, u, v, c: e.vjp(lambda z: e.vjp(lambda y: e.vjp(f, y, c), z, u), x, u),
    ),
)
"""All routes, lower orders first."""


def routes(engine: Engine, highest: int) -> list[Route]:
    """The routes of an engine up to an order."""
    return [r for r in ROUTES if r.order <= highest and all(hasattr(engine, mode) for mode in r.modes)]
