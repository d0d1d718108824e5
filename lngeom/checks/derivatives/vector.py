"""A layer as a function of one vector, which holds its inputs, weights, gain and bias one after another."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._core.draws import probe_generator
from lngeom._core.programs import QUICKLY
from lngeom.checks._frameworks import tensor_of
from lngeom.checks.derivatives.routes import Engine, Jax, Route, TorchAutograd, TorchCompiled, TorchFunc
from lngeom.checks.subject import UNITS, Opened, Subject

SAMPLES, INPUTS = 3, 4
"""Rows, and inputs of a layer that has weights."""


@dataclass(frozen=True, eq=False)
class Vector:
    """The layer and the layout of its vector.

    Attributes:
        opened: the layer.
        shapes: shape of each argument, in the order in which they stand in the vector: arrays, then parameters.
        arrays: number of arrays among them: the inputs, or weights and inputs.
        start: values that the parameters came with.
        compiles: whether the layer is also differentiated as torch.compile makes it.
    """

    opened: Opened
    shapes: Mapping[str, tuple[int, ...]]
    arrays: int
    start: Mapping[str, Float[np.ndarray, "..."]]
    compiles: bool = False
    _routes: dict[tuple[str, str], Callable[..., Any]] = field(default_factory=dict)
    _programs: dict[tuple[bool, str], Callable[..., Any]] = field(default_factory=dict)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each argument stands."""
        ends = np.cumsum([0, *(int(np.prod(s)) for s in self.shapes.values())])
        return {name: slice(int(a), int(b)) for name, a, b in zip(self.shapes, ends, ends[1:], strict=False)}

    def __call__(self, x: Any) -> Any:
        """The outputs, as a vector of the framework.

        Raises:
            TypeError: if they are not one array of numbers that are floating.
        """
        own = (lambda part: part.clone()) if self.opened.torch else lambda part: part  # a layer may write to its inputs
        parts = [own(x[at]).reshape(self.shapes[name]) for name, at in self.slices.items()]
        params = jax.tree.unflatten(jax.tree.structure(self.opened.parameters), parts[self.arrays :])
        outputs = self.opened.call(params, *parts[: self.arrays])
        if not hasattr(outputs, "reshape") or "float" not in str(getattr(outputs, "dtype", "")):
            kind = getattr(outputs, "dtype", type(outputs).__name__)
            raise TypeError(f"one array of floating numbers is expected of a layer; got {kind}")
        return outputs.reshape(-1)

    def engines(self) -> tuple[Engine, ...]:
        """The ways in which its framework differentiates."""
        if not self.opened.torch:
            return (Jax(),)
        return (TorchAutograd(), TorchFunc(), *([TorchCompiled()] if self.compiles else []))

    @cached_property
    def values(self) -> Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " M"]]:
        """The layer on vectors of NumPy, in their dtype."""
        call, engine = self.compiled(self), self.engines()[0]
        return lambda x: engine.run(call, x)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of arrays of the framework, compiled where that is JAX: quickly, since it runs a few times."""
        return function if self.opened.torch else jax.jit(function, compiler_options=QUICKLY)

    def route(self, engine: Engine, route: Route) -> Callable[..., Any]:
        """A route of the layer, which is compiled once a dtype."""
        key = engine.name, route.name
        if key not in self._routes:
            made = self
            if isinstance(engine, TorchCompiled) and self.opened.compiled:
                made = replace(self, opened=self.opened._replace(call=self.opened.compiled))
            self._routes[key] = self.compiled(route.make(engine, made))
        return self._routes[key]

    def together(
        self, engine: Engine, routes: Sequence[Route], *arrays: Float[np.ndarray, "..."], batched: bool = False
    ) -> dict[str, Float[np.ndarray, "..."]]:
        """The results of routes by one program of JAX, which is compiled in half the time of theirs; else none.

        A program is made once a dtype, of the routes that are asked for first. Where it fails there are no results:
        each route has to be run alone, and then says why.

        Args:
            engine: JAX, or another one, which has no results.
            routes: the routes.
            *arrays: the point, directions and a cotangent, of one dtype.
            batched: whether they are run under `vmap`.
        """
        if not isinstance(engine, Jax):
            return {}
        key = batched, arrays[0].dtype.name
        if key not in self._programs:
            mapped = engine.vmap if batched else lambda function: function
            made = {route.name: mapped(route.make(engine, self)) for route in routes}
            self._programs[key] = jax.jit(
                lambda *given: {name: function(*given) for name, function in made.items()}, compiler_options=QUICKLY
            )
        try:
            found = self._programs[key](*arrays)
        except Exception:  # any error of a layer
            self._programs[key] = lambda *given: {}
            return {}
        return {name: np.asarray(value, np.float64) for name, value in found.items()}

    def split(self, x: Float[np.ndarray, " P"]) -> Iterator[tuple[str, Float[np.ndarray, "..."]]]:
        """Each argument with its values."""
        for name, at in self.slices.items():
            yield name, x[at].reshape(self.shapes[name])

    def draw(self, seed: int) -> Float[np.ndarray, " P"]:
        """Inputs and weights of variance 1, and parameters of variance 0.1 around those that the layer came with."""
        rng = probe_generator(seed)
        parts = [
            self.start[name] + 0.3 * rng.normal(size=shape) if name in self.start else rng.normal(size=shape)
            for name, shape in self.shapes.items()
        ]
        return np.concatenate([p.ravel() for p in parts])

    def with_inputs(self, x: Float[np.ndarray, " P"], inputs: Float[np.ndarray, "..."]) -> Float[np.ndarray, " P"]:
        """The vector with other inputs."""
        out = x.copy()
        out[self.slices["inputs"]] = inputs.ravel()
        return out


def vectors(subject: Subject, constant: Sequence[str] = (), compiles: bool = False) -> list[Vector]:
    """The layer of a subject as a function of one vector, for each framework that runs it.

    Args:
        subject: the layer.
        constant: names of parameters that are no arguments.
        compiles: whether a layer of torch is also compiled.

    Raises:
        ValueError: if the layer can be evaluated alone, or has no parameter of a name.
    """
    if not subject.opened:
        raise ValueError(
            f"{subject.name} has no derivatives that could be checked: it is no function that JAX or torch "
            "differentiates, of one argument or of weights and inputs (Keras: with its backend jax)"
        )
    kept = [_without(opened, constant) if constant else opened for opened in subject.opened]
    return [replace(_vector(subject, opened), compiles=compiles and opened.compiled is not None) for opened in kept]


def _without(opened: Opened, constant: Sequence[str]) -> Opened:
    """The layer with some of its parameters as constants."""
    leaves, structure = jax.tree.flatten_with_path(opened.parameters)
    names: list[str] = []
    for path, _ in leaves:
        names.append(_named(path, {"inputs", "weights", *names}))
    if missing := sorted({*constant} - {*names}):
        known = f"; it has {', '.join(names)}" if names else ", and none at all"
        raise ValueError(f"no parameter {', '.join(missing)}{known}")
    whole = dict(zip(names, (leaf for _, leaf in leaves), strict=True))

    def call(by: Callable[..., Any], parameters: Mapping[str, Any], *arrays: Any) -> Any:
        def own(name: str) -> Any:
            value = np.asarray(whole[name], np.float64)
            return tensor_of(value).to(arrays[0].dtype) if opened.torch else jnp.asarray(value, arrays[0].dtype)

        given = [parameters[name] if name in parameters else own(name) for name in names]
        return by(jax.tree.unflatten(structure, given), *arrays)

    rest = {k: v for k, v in whole.items() if k not in constant}
    both = [by and functools.partial(call, by) for by in (opened.call, opened.compiled)]
    return opened._replace(parameters=rest, call=both[0], compiled=both[1])


def _vector(subject: Subject, opened: Opened) -> Vector:
    units, places = subject.units or UNITS, (subject.positions,) if subject.positions else ()
    shapes: dict[str, tuple[int, ...]] = {"inputs": (SAMPLES, *places, units)}
    if subject.takes_weights:
        inputs = units if subject.square else INPUTS
        shapes = {"weights": (units, inputs), "inputs": (SAMPLES, *places, inputs)}
    return vector_of(opened, shapes)


def vector_of(opened: Opened, arrays: Mapping[str, tuple[int, ...]]) -> Vector:
    """An opened layer as a function of one vector.

    Args:
        opened: the layer.
        arrays: shapes of its arrays by name: of "inputs", or of "weights" and "inputs".
    """
    shapes, start = dict(arrays), {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(opened.parameters)[0]:
        name = _named(path, {*shapes})
        shapes[name] = tuple(leaf.shape)
        start[name] = np.asarray(leaf, np.float64)
    return Vector(opened, shapes, len(arrays), start)


def _named(path: tuple[Any, ...], taken: set[str]) -> str:
    """The last name of a path that tells the parameter from the others."""
    names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    names = [part for name in names if name != "value" for part in re.split("[/.]", name)] or ["parameter"]
    for first in range(len(names) - 1, -1, -1):
        if ".".join(names[first:]) not in taken:
            return ".".join(names[first:])
    return f"{'.'.join(names)} {len(taken)}"
