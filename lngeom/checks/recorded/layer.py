"""A layer of a model with its weights, and what went through it."""

import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lngeom.checks._frameworks import from_torch
from lngeom.checks.subject import Opened, as_elsewhere, same_draws

Arrays = dict[str, np.ndarray]
"""Arrays by name."""

ARRAY, KEY = "an array", "a random key"
"""Stand for an array and for a random key among the leaves of arguments."""

_NORM = re.compile(r"norm", re.IGNORECASE)
_SHORT = re.compile(r"(^|_)(norm|ln|bn|gn)_?(\d+|_\w+)?$")
_DECLARED = (
    ("weightnorm", "wn"),
    ("spectral", "sn"),
    ("instance", "in"),
    ("group", "gn"),
    ("batch", "bn"),
    ("(?<!no)rms", "rms"),  # not that of LayerNormSimple
    ("layer", "ln"),
)
MIXES = re.compile(r"^_?(linear|dense|conv|einsum|embed)(?!.*norm)", re.IGNORECASE)
"""Names of classes whose layers mix units by weights."""


class Given(NamedTuple):
    """Arguments of a call, arrays apart from all else.

    Attributes:
        structure: of (positional arguments, arguments by name).
        leaves: what is no array; `ARRAY` stands for an array, and `KEY` for a random key.
    """

    structure: Any
    leaves: tuple[Any, ...]

    def filled(self, arrays: tuple[Any, ...]) -> tuple[tuple, dict[str, Any]]:
        """The arguments with other arrays, and one random key."""
        rest = iter(arrays)
        whole = [next(rest) if leaf is ARRAY else jax.random.key(0) if leaf is KEY else leaf for leaf in self.leaves]
        return jax.tree.unflatten(self.structure, whole)


def given(args: tuple, kwargs: Mapping[str, Any]) -> tuple[Given, tuple[Any, ...]]:
    """Arguments of a call, and the arrays among them."""
    leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs)))
    arrays = tuple(leaf for leaf in leaves if is_plain(leaf))
    rest = tuple(ARRAY if is_plain(leaf) else KEY if is_key(leaf) else leaf for leaf in leaves)
    return Given(structure, rest), arrays


class Fixed(NamedTuple):
    """The one mode of a model that cannot be called in the other.

    Attributes:
        training: whether it is that of training.
        by: what fixes it, such as "train=True".
    """

    training: bool
    by: str


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        given: its arguments in evaluation mode.
        training: those in training mode, where the model was seen in it.
        arrays: arrays among its arguments.
        outputs: arrays among what it returned.
        trained: arrays among its arguments in training mode; None where the model was not seen in it.
    """

    given: Given
    training: Given | None
    arrays: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    trained: tuple[np.ndarray, ...] | None = None

    @property
    def examined(self) -> tuple[int, int]:
        """Places of the input and of the output that are examined: the first two of one shape."""
        for j, output in enumerate(self.outputs):
            for i, array in enumerate(self.arrays):
                if floating(array) and floating(output) and array.ndim > 1 and array.shape == output.shape:
                    return i, j
        return next((i for i, a in enumerate(self.arrays) if floating(a)), 0), 0

    @property
    def places(self) -> list[int]:
        """Places of the outputs of the shape of the examined input."""
        shape = self.arrays[self.examined[0]].shape
        return [j for j, o in enumerate(self.outputs) if floating(o) and o.shape == shape]


Apply = Callable[[Given, tuple[Any, ...], Mapping[str, Any], Arrays, bool], tuple[tuple[Any, ...], dict[str, Any]]]
"""A layer: (arguments, their arrays, parameters, statistics, training) → arrays of its outputs and new statistics.

It takes arrays of NumPy and of its library, and can be differentiated in the latter.
"""


@dataclass(frozen=True)
class Layer:
    """A layer of a model with its weights, and what went through it.

    Attributes:
        path: its place in the model.
        kind: name of its class.
        framework: the library it belongs to.
        module: the object.
        calls: its calls in one forward pass; none where the pass did not reach it.
        order: place of its first call.
        parameters: its trainable arrays.
        statistics: its other arrays, such as running means.
        apply: the layer as a function.
        childless: whether it has no layers inside.
        at: the call that is looked at.
        fill: values in place of its other inputs: of those with fractions, and of the others; None for its own.
        place: place of the output that is examined; None for the first of the shape of its input.
        problem: why it cannot be called again; empty where it can.
        normalized: the row of its weights, where a hook or parametrization of its library normalizes them.
        fixed: the one mode in which the model was seen, where it has no other.
    """

    path: str
    kind: str
    framework: str
    module: Any
    calls: tuple[Call, ...]
    order: int
    parameters: Arrays
    statistics: Arrays
    apply: Apply
    childless: bool = True
    at: int = 0
    fill: tuple[float, float] | None = None
    place: int | None = None
    problem: str = ""
    normalized: str | None = None
    fixed: Fixed | None = None

    @property
    def call(self) -> Call:
        """The call that is looked at."""
        return self.calls[self.at]

    @property
    def inputs(self) -> np.ndarray:
        """The input that is examined."""
        return self.call.arrays[self.call.examined[0]]

    def reaching(self, training: bool) -> np.ndarray:
        """The input that is examined, as it is in a mode; that of evaluation where no other was seen."""
        trained = self.call.trained if training else None
        return self.inputs if trained is None else trained[self.call.examined[0]]

    @property
    def outputs(self) -> np.ndarray:
        """The output that is examined."""
        return self.call.outputs[self.slot]

    @property
    def slot(self) -> int:
        """Place of the output that is examined."""
        return self.call.examined[1] if self.place is None else self.place

    @property
    def several(self) -> bool:
        """Whether it has further arrays as inputs."""
        return len(self.call.arrays) > 1

    def each_call(self) -> Iterator["Layer"]:
        """The layer at each of its calls that has arrays."""
        yield from (replace(self, at=i) for i, call in enumerate(self.calls) if call.arrays and call.outputs)

    @property
    def same_shape(self) -> bool:
        """Whether an output has the shape of an input."""
        seen = bool(self.calls) and bool(self.call.arrays) and bool(self.call.outputs)
        return seen and self.inputs.shape == self.outputs.shape and floating(self.inputs) and floating(self.outputs)

    @property
    def named(self) -> bool:
        """Whether the name of its class or of its place is that of a norm."""
        if self.normalizes_weights or MIXES.match(self.kind):
            return False
        return bool(_NORM.search(self.kind) or _SHORT.search(self.path.rsplit(".", 1)[-1].rsplit("/", 1)[-1]))

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm by name, has no layers inside, and outputs of the shape of its inputs."""
        return self.named and self.childless and self.same_shape

    @property
    def declared(self) -> str | None:
        """Row of the invariance table that the name of its class promises; None where it names none."""
        if not _NORM.search(self.kind):
            return None
        name = self.kind.lower().replace("_", "")
        return next((row for word, row in _DECLARED if re.search(word, name)), None)

    @property
    def normalizes_weights(self) -> bool:
        """Whether it normalizes the weights of a layer, by the name of its class or by what its library does there."""
        return self.normalized is not None or (bool(_NORM.search(self.kind)) and self.declared in {"wn", "sn"})

    @property
    def eps(self) -> float | None:
        """Its attribute for ε."""
        for name in ("eps", "epsilon", "variance_epsilon"):
            value = getattr(self.module, name, None)
            if isinstance(value, float | int):
                return float(value)
        return None

    @property
    def default_eps(self) -> float | None:
        """ε of an RMS norm of torch that is given none: the machine epsilon of the dtype in which it computes."""
        names = {c.__name__ for c in type(self.module).__mro__ if c.__module__.startswith("torch.nn")}
        function = getattr(self.module, "original_name", None) == "rms_norm"
        if self.framework != "torch" or not ("RMSNorm" in names or function) or self.eps is not None:
            return None
        return torch_rms_eps(self.inputs.dtype.name)

    def run(
        self,
        inputs: np.ndarray,
        *,
        dtype: Any = None,
        training: bool = True,
        parameters: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Outputs for other inputs, with the layer's own weights and statistics.

        Args:
            inputs: in the layout of `self.inputs`.
            dtype: in which inputs, parameters and statistics are given; by default, that of the inputs, with
                parameters as they are.
            training: the mode, where there are two and the model does not choose.
            parameters: values in place of its own.

        Returns:
            The outputs.
        """
        return self.step(inputs, self.statistics, dtype=dtype, training=training, parameters=parameters)[0]

    def step(
        self,
        inputs: np.ndarray,
        statistics: Arrays,
        *,
        dtype: Any = None,
        training: bool = True,
        parameters: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, Arrays]:
        """Outputs, and the statistics after the call.

        Args:
            inputs: as in `run`.
            statistics: before the call.
            dtype: as in `run`.
            training: as in `run`.
            parameters: as in `run`.

        Returns:
            Both.

        Raises:
            ValueError: if the layer cannot be called again.
        """
        if self.problem:
            raise ValueError(self.problem)
        known = {**self.parameters, **(parameters or {})}
        if dtype is None:  # values in place of its own are given as its own are stored
            known = {k: np.asarray(v).astype(self.parameters[k].dtype) for k, v in known.items()}
        else:
            inputs = inputs.astype(jnp.dtype(dtype))
            known = {k: np.asarray(v).astype(jnp.dtype(dtype)) for k, v in known.items()}
            statistics = {k: v.astype(jnp.dtype(dtype)) if floating(v) else v for k, v in statistics.items()}
        arguments = (self.call.training if training else None) or self.call.given
        with as_elsewhere(), same_draws():
            outputs, after = self.apply(arguments, self._arrays(inputs), known, statistics, training)
            return as_numpy(outputs[self.slot]), {k: as_numpy(v) for k, v in after.items()}

    def opened(self, training: bool, parameters: Mapping[str, np.ndarray]) -> Opened:
        """The layer as a function of its parameters and of the input that is examined, which can be differentiated.

        Args:
            training: the mode, where there are two and the model does not choose.
            parameters: values of its parameters.

        Returns:
            The function, whose input is in the layout of `self.inputs`; statistics and further inputs are its own.

        Raises:
            ValueError: if the layer cannot be called again.
        """
        if self.problem:
            raise ValueError(self.problem)
        arguments, own = (self.call.training if training else None) or self.call.given, self.call.examined[0]

        @functools.cache
        def others(shape: tuple[int, ...], dtype: str) -> tuple[tuple[np.ndarray, ...], Arrays]:
            inputs = np.zeros(shape, jnp.dtype(dtype))
            statistics = {k: v.astype(inputs.dtype) if floating(v) else v for k, v in self.statistics.items()}
            return self._arrays(inputs), statistics

        def call(parameters: Mapping[str, Any], inputs: Any) -> Any:
            arrays, statistics = others(tuple(inputs.shape), str(inputs.dtype).removeprefix("torch."))
            given = (*arrays[:own], inputs, *arrays[own + 1 :])
            return self.apply(arguments, given, parameters, statistics, training)[0][self.slot]

        return Opened(dict(parameters), call, torch=self.framework == "torch")

    def _arrays(self, inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Arrays of the arguments with other inputs; the others have as many samples."""
        own, count = self.call.examined[0], len(self.inputs)

        def other(value: np.ndarray) -> np.ndarray:
            value = value[: len(inputs)] if value.ndim and len(value) == count else value
            if self.fill is not None:
                value = np.full_like(value, self.fill[0] if floating(value) else self.fill[1])
            return value.astype(inputs.dtype) if floating(value) else value

        return tuple(_ordered(inputs, v) if i == own else other(v) for i, v in enumerate(self.call.arrays))


@functools.cache
def torch_rms_eps(dtype: str) -> float:
    """The default ε of torch's RMS norm in a dtype: that of the dtype, or of float32 for shorter ones."""
    import torch

    own = {name: float(jnp.finfo(name).eps) for name in (dtype, "float32")}
    tiny = torch.full((1,), own[dtype] ** 0.5, dtype=getattr(torch, dtype))
    square = float(tiny.double()) ** 2
    found = square / float(torch.nn.functional.rms_norm(tiny, (1,)).double()) ** 2 - square
    return min(own.values(), key=lambda eps: abs(found - eps))


def _ordered(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Values without gaps in memory, their axes there in the order of those of another array, as views need it."""
    if values.ndim != like.ndim or any(s <= 0 and n > 1 for s, n in zip(like.strides, like.shape, strict=True)):
        return np.ascontiguousarray(values)
    axes = sorted(range(like.ndim), key=lambda a: -like.strides[a])
    return np.ascontiguousarray(values.transpose(axes)).transpose(np.argsort(axes))


def as_numpy(value: Any) -> np.ndarray:
    """An array of any library as one of NumPy, in its dtype."""
    return from_torch(value) if hasattr(value, "detach") else np.asarray(value)


def is_array(value: Any) -> bool:
    """Whether a value is an array of any library."""
    return hasattr(value, "dtype") and hasattr(value, "ndim")


def is_plain(value: Any) -> bool:
    """Whether a value is an array of numbers, and not of random keys."""
    if not is_array(value):
        return False
    return not (isinstance(value.dtype, np.dtype) and value.dtype == object) and not is_key(value)


def held(function: Callable[[Any], Any], value: Any) -> Any:
    """A value with a function applied to every array in it, also in dataclasses and dicts that JAX takes for leaves."""

    def leaf(inner: Any) -> Any:
        if is_plain(inner):
            return function(inner)
        if isinstance(inner, MutableMapping):  # before dataclasses: the ModelOutput of transformers is both
            copied = copy.copy(inner)
            for key, one in inner.items():
                copied[key] = held(function, one)
            return copied
        if dataclasses.is_dataclass(inner) and not isinstance(inner, type):
            copied = copy.copy(inner)
            for field in dataclasses.fields(inner):
                if hasattr(inner, field.name):
                    object.__setattr__(copied, field.name, held(function, getattr(inner, field.name)))
            return copied
        return inner

    return jax.tree.map(leaf, value)


def arrays_in(value: Any) -> list[Any]:
    """The arrays in what a layer returned, in order."""
    found: list[Any] = []
    held(lambda array: found.append(array) or array, value)
    return found


def is_key(value: Any) -> bool:
    """Whether a value is an array of random keys."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended)


def floating(value: Any) -> bool:
    """Whether a value is an array of floating point numbers."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
