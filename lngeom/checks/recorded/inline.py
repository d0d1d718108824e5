"""Norms that are lines of a forward pass and no layer: where they stand is found, so that none passes in silence.

Such lines divide values by a root of a sum over them. The flow of one pass shows it: each value carries the values of
which it is a function place by place (its line), those over which it is a sum, and those of which it is the root of a
sum. A product with the root of a sum over the own line is a norm. Sums over weights alone are none, and neither is a
softmax, which has no root.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend

from lngeom.checks.recorded.layer import Layer, arrays_in, given
from lngeom.checks.subject import as_elsewhere, same_draws

NONE: frozenset[int] = frozenset()


class Flow(NamedTuple):
    """Where a value comes from, as numbers of values.

    Attributes:
        line: values of which it is a function place by place.
        sums: values over which it is a sum.
        roots: values of which it is the root of a sum.
    """

    line: frozenset[int] = NONE
    sums: frozenset[int] = NONE
    roots: frozenset[int] = NONE

    @property
    def known(self) -> bool:
        """Whether it depends on the inputs of the model."""
        return bool(self.line or self.sums or self.roots)


CONSTANT = Flow()
"""The flow of weights and of numbers."""


class Flows:
    """Flows of the values of one pass."""

    def __init__(self):
        self.count = 0

    def fresh(self, like: Flow | None = None) -> Flow:
        """The flow of a value that no other value gives place by place; that of a constant for one."""
        if like is not None and not like.known:
            return CONSTANT
        self.count += 1
        return Flow(frozenset({self.count}))

    def placewise(self, inputs: Sequence[Flow]) -> Flow:
        """The flow of a function that acts place by place; it is a statistic where all of its inputs are."""
        known = [flow for flow in inputs if flow.known]
        if not known:
            return CONSTANT
        found = Flow(*(frozenset().union(*some) for some in zip(*known, strict=True)))
        return found if all(flow.sums or flow.roots for flow in known) else Flow(found.line)

    def summed(self, inputs: Sequence[Flow]) -> Flow:
        """The flow of a sum over products of values that all depend on the inputs."""
        if not all(flow.known for flow in inputs):
            return self.fresh(self.placewise(inputs))
        return self.fresh()._replace(sums=self.placewise(inputs).line)

    def root(self, value: Flow) -> Flow:
        """The flow of a root."""
        return value._replace(roots=value.sums, sums=NONE)

    @staticmethod
    def normalizes(value: Flow, factor: Flow) -> bool:
        """Whether the product of a value and a factor is a value divided by the root of a sum over its line."""
        return bool(value.line & factor.roots)


class Code:
    """What stands for a module: a line of the forward pass of a layer that normalizes values.

    Attributes:
        owner: path of the layer.
    """

    original_name = "code"

    def __init__(self, owner: str):
        self.owner = owner


class Place(NamedTuple):
    """Where a norm stands.

    Attributes:
        owner: path of the layer in whose forward pass it stands.
        function: name of the function.
        line: number of its line.
        file: name of the file.
    """

    owner: str
    function: str
    line: int
    file: str


ADVICE = "make a module of it, or check the function with lg.check_invariances"
"""What to do about lines that could not be examined."""


def of_code(places: Iterable[Place], framework: str) -> list[Layer]:
    """Layers that stand for lines of code, which are not called again."""
    found = []
    for owner, function, line, file in dict.fromkeys(places):
        said = f"line {line} of {file} divides values by the root of a sum over them, in {function}(); {ADVICE}"
        found.append(_uncalled(".".join(filter(None, (owner, f"{function}():{line}"))), owner, said, framework))
    return found


def _uncalled(path: str, owner: str, problem: str, framework: str) -> Layer:
    return Layer(path, "code", framework, Code(owner), (), -1, {}, {}, _cannot, problem=problem)


def _cannot(*_: Any) -> Any:
    raise ValueError("lines of code cannot be called again")


MARK = "lngeom_layer_"
"""Name of the scope of a layer of JAX, before its number."""


class Scopes:
    """Layers of JAX as named scopes, which a program keeps."""

    def __init__(self):
        self.paths: list[str] = []

    def record(self, path: str, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Calls a layer in a scope of its own."""
        self.paths.append(path)
        with jax.named_scope(f"{MARK}{len(self.paths) - 1}_"):
            return function(*args, **kwargs)

    def found(self, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], framework: str) -> list[Layer]:
        """Lines of code that normalize values that depend on the inputs of a model.

        Args:
            call: the model on (*args, **kwargs), which gives the calls of its layers to `record`.
            args: positional arguments.
            kwargs: arguments by name.
            framework: the library of the model.

        Returns:
            The lines; one row without a line where no program can be made of the call.
        """
        arguments, arrays = given(args, kwargs)

        def run(*values):
            args, kwargs = arguments.filled(values)
            return arrays_in(call(*args, **kwargs))

        try:
            with as_elsewhere(), same_draws():
                closed = jax.make_jaxpr(run)(*arrays)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
            said = f"norms that are lines of code could not be looked for: jax.make_jaxpr of the model fails: {text}"
            return [_uncalled("code", "", said, framework)]
        flows = Flows()
        starts = [flows.fresh() for _ in closed.jaxpr.invars]
        return of_code((self._place(within) for within in _walked(closed.jaxpr, starts, flows, ())[1]), framework)

    def _place(self, within: Sequence[Any]) -> Place:
        """The place of an operation inside of programs, of which each has a source; the innermost is last."""
        numbers = re.findall(rf"{MARK}(\d+)_", "/".join(str(source.name_stack) for source in within))
        frames = (f for source in reversed(within) if source.traceback for f in source.traceback.frames)
        line = first_own((f.file_name, f.line_num, f.function_name) for f in frames)
        return Place(self.paths[int(numbers[-1])] if numbers else "", *line)


_MIXES = {"dot_general", "conv_general_dilated"}
_SUMS = {"reduce_sum", "reduce_window_sum", "cumsum", "reduce_max", "psum", "pmean"}
_ROOTS = {"sqrt", "rsqrt"}
_FRESH = {"gather", "argmax", "argmin", "sort", "top_k", "scatter", "scatter-add", "iota", "rng_bit_generator"}


def _walked(jaxpr: Any, given: Sequence[Flow], flows: Flows, within: tuple) -> tuple[list[Flow], list]:
    """Flows of the outputs of a program inside of others, and the sources of each norm in it."""
    known: dict[Any, Flow] = dict(zip(jaxpr.invars, given, strict=True))
    found: list[tuple] = []

    def flow(atom: Any) -> Flow:
        return CONSTANT if isinstance(atom, jax.extend.core.Literal) else known.get(atom, CONSTANT)

    for equation in jaxpr.eqns:
        inputs, name = [flow(atom) for atom in equation.invars], equation.primitive.name
        here = (*within, equation.source_info)
        outputs: list[Flow] | None = None
        for inner in _programs(equation.params):
            skipped = len(inputs) - len(inner.invars)  # a branch is not given the number that chooses it
            fits = skipped in {0, 1} and len(inner.outvars) == len(equation.outvars)
            passed = inputs[skipped:] if fits else [flows.fresh(flows.placewise(inputs)) for _ in inner.invars]
            after, places = _walked(inner, passed, flows, here)
            found += places
            outputs = after if fits else outputs
        if outputs is None:
            outputs = [_of_operation(name, equation.params, inputs, flows)] * len(equation.outvars)
        if _is_norm(name, inputs):
            found.append(here)
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [flow(atom) for atom in jaxpr.outvars], found


def _programs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns") and hasattr(inner, "invars"):
                yield inner


def _of_operation(name: str, params: dict[str, Any], inputs: Sequence[Flow], flows: Flows) -> Flow:
    if name in _SUMS | _MIXES:
        return flows.summed(inputs)
    if name in _ROOTS or (name == "pow" and len(inputs) == 2 and not inputs[1].known):
        return flows.root(inputs[0])
    if name in _FRESH or "callback" in name:
        return flows.fresh(flows.placewise(inputs))
    return flows.placewise(inputs)


def _is_norm(name: str, inputs: Sequence[Flow]) -> bool:
    if name not in {"mul", "div"}:
        return False
    a, b = inputs
    return Flows.normalizes(a, b) or (name == "mul" and Flows.normalizes(b, a))


_PACKAGES = re.compile(r"[/\\](jax|jaxlib|flax|equinox|keras|torch|numpy|haiku|lngeom[/\\]checks)[/\\]|^<")


def first_own(frames: Iterable[tuple[str, int, str]]) -> tuple[str, int, str]:
    """Function, line and name of the file of the innermost frame that is of no library of layers."""
    kept = ((function, line, os.path.basename(file)) for file, line, function in frames if not _PACKAGES.search(file))
    return next(kept, ("code", 0, "a library"))
