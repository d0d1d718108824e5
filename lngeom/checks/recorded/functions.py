"""Calls of the norms of torch.nn.functional inside of forward passes, as layers."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from lngeom.checks._frameworks import from_torch, tensor_of
from lngeom.checks.recorded.lines import Lines
from lngeom.checks.recorded.tape import Made, Tape

_AFFINE, _STORED = ("weight", "bias"), ("running_mean", "running_var")
_NAMES = {
    "layer_norm": ("input", "normalized_shape", *_AFFINE, "eps"),
    "group_norm": ("input", "num_groups", *_AFFINE, "eps"),
    "normalize": ("input", "p", "dim", "eps"),
    "local_response_norm": ("input", "size", "alpha", "beta", "k"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "batch_norm": ("input", *_AFFINE, *_STORED, "training", "momentum", "eps", "cudnn_enabled"),
    "instance_norm": ("input", *_AFFINE, *_STORED, "use_input_stats", "momentum", "eps", "cudnn_enabled"),
}
"""Names of the norms, with those of the arguments of the functions of torch, which have no signature."""


@functools.cache
def _functions() -> dict[Any, tuple[str, tuple[str, ...]]]:
    """Name and names of arguments of each function that is a norm."""
    import torch
    import torch.nn.functional as F

    found: dict[Any, tuple[str, tuple[str, ...]]] = {}
    for name, known in _NAMES.items():
        if hasattr(torch, name):
            found[getattr(torch, name)] = name, known
        if hasattr(F, name):
            found[getattr(F, name)] = name, tuple(inspect.signature(getattr(F, name)).parameters)
    return found


class Function:
    """What stands for a module: a norm that is a function, called in the forward pass of a module.

    Attributes:
        original_name: name of the function.
        owner: path of the module.
        arguments: its arguments by name, with those in place of the input left out.
        trained: parameters of the model among its arguments, by name.
    """

    def __init__(self, name: str, owner: str, arguments: dict[str, Any], trained: dict[str, Any]):
        self.original_name, self.owner, self.arguments, self.trained = name, owner, arguments, trained

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__.get("arguments", {}).get(name)
        if value is None:
            raise AttributeError(name)
        return tuple(value) if isinstance(value, list) else value

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Parameters of the model among its arguments."""
        yield from self.trained.items()


class Key(NamedTuple):
    """What calls of one norm that is a function have in common; the mode is none of it.

    Attributes:
        owner: path of the module in whose forward pass it is called.
        name: of the function.
        arguments: identities of its arrays, and its other arguments in words.
    """

    owner: str
    name: str
    arguments: tuple[Any, ...]


class Functions:
    """Records of norms that are functions.

    Args:
        tape: records of all layers.
        names: paths of modules by their identities.
        parameters: parameters of the model by the identities of their copies.
    """

    def __init__(self, tape: Tape, names: dict[int, str], parameters: dict[int, Any]):
        self.tape, self.names, self.parameters = tape, names, parameters
        self.found: dict[Key, tuple[Any, dict[str, Any]]] = {}
        self.training: dict[Key, dict[str, Any]] = {}

    @contextmanager
    def watched(self, model: Any, record: Callable[..., Any], inputs: Any = None) -> Iterator[None]:
        """Gives calls of norms that are functions to `record`, with a key, the function and its arguments by name.

        Where inputs of the model are given, `lines` are then those that normalize values which depend on them.
        """
        lines = Lines(inputs)
        from torch.overrides import TorchFunctionMode

        running: list[str | None] = []  # paths of the modules whose forward passes run; None for those of torch itself

        class Watching(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                known, owner = _functions().get(function), running[-1] if running else None
                if known is None or owner is None:
                    outputs = function(*args, **(kwargs or {}))
                    lines.see(function, args, kwargs or {}, outputs, owner)
                    return outputs
                name, names = known
                arguments = dict(zip(names, args, strict=False)) | (kwargs or {})
                return record(_key(owner, name, arguments), function, arguments)

        import torch

        parts = [part for part in model.modules() if not isinstance(part, torch.jit.ScriptModule)]
        handles = [p.register_forward_pre_hook(lambda part, _: running.append(self._path(part))) for p in parts]
        handles += [p.register_forward_hook(lambda *_: running.pop() and None) for p in parts]
        try:
            with Watching():
                yield
            self.lines = lines.found
        finally:
            for handle in handles:
                handle.remove()

    def _path(self, part: Any) -> str | None:
        return None if type(part).__module__.startswith("torch.nn.modules.") else self.names[id(part)]

    def evaluate(self, key: Key, function: Any, arguments: dict[str, Any]) -> Any:
        """Runs a function in the pass in evaluation mode, and records it."""
        self.found.setdefault(key, (function, arguments))
        inputs = arguments["input"]
        taped, _ = self.tape.enter(key, (inputs,), {}, [[from_torch(inputs)]])
        outputs = _called(function, arguments)
        taped.outputs = [[from_torch(outputs)]]
        return outputs

    def see_training(self, model: Any, modes: list[bool], args: tuple, kwargs: dict) -> None:
        """Runs a model in training mode for what its functions are given there; its buffers stay."""
        import torch

        def record(key, function, arguments):
            self.training.setdefault(key, arguments)
            self.tape.enter_training(key, (arguments["input"],), {}, [[from_torch(arguments["input"])]])
            return _called(function, arguments)

        before = [(v, v.clone()) for v in model.buffers()]
        for part, mode in zip(model.modules(), modes, strict=True):
            part.training = mode
        try:
            with torch.no_grad(), self.watched(model, record):
                model(*args, **kwargs)
        except Exception:  # the arguments of evaluation are kept
            self.training.clear()
            self.tape.training.clear()
        finally:
            for value, own in before:
                value.copy_(own)
            model.eval()

    def made(self, key: Key) -> tuple[str, str, Any, bool, Callable[[], Made]]:
        """A function as a layer; its path is that of the module in whose forward pass it is called, and its name."""
        alike = [k for k in self.found if k[:2] == key[:2]]
        number = f" {alike.index(key) + 1}" if key != alike[0] else ""
        function, arguments = self.found[key]
        trained = {k: self.parameters[id(v)] for k, v in arguments.items() if id(v) in self.parameters}
        rest = {k: v for k, v in arguments.items() if not hasattr(v, "dtype")}
        both = {False: arguments, True: self.training.get(key, arguments)}
        path = ".".join(filter(None, (key.owner, f"{key.name}(){number}")))
        return path, "torch", Function(key.name, key.owner, rest, trained), True, lambda: _made(function, both)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch: inputs are small, and threads wait for each other where the machine is busy."""
    import torch

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def _called(function: Any, arguments: dict[str, Any]) -> Any:
    """A function called; those of torch itself take their first arguments by position alone."""
    return function(**arguments) if hasattr(function, "__code__") else function(*arguments.values())


def _key(owner: str, name: str, arguments: dict[str, Any]) -> Key:
    rest = {k: v for k, v in arguments.items() if k not in {"input", "training", "use_input_stats"}}
    return Key(owner, name, tuple((k, id(v) if hasattr(v, "dtype") else repr(v)) for k, v in sorted(rest.items())))


def _made(function: Any, both: dict[bool, dict[str, Any]]) -> Made:
    import torch

    tensors = {k: v for k, v in both[False].items() if k != "input" and isinstance(v, torch.Tensor)}
    parameters = {k: from_torch(v) for k, v in tensors.items() if k not in _STORED}
    statistics = {k: from_torch(v) for k, v in tensors.items() if k in _STORED}

    def apply(arguments, arrays, weights, stored, training):
        free = any(isinstance(v, torch.Tensor) for v in (*arrays, *weights.values()))  # it is differentiated
        given = {k: tensor_of(v) for k, v in (weights | stored).items()}
        whole = both[training] | given | {"input": tensor_of(arrays[0])}
        with one_thread(), nullcontext() if free else torch.no_grad():
            outputs = _called(function, whole)
        if free:
            return (outputs,), stored
        return (from_torch(outputs),), {k: from_torch(given[k]) for k in stored}

    return parameters, statistics, apply
