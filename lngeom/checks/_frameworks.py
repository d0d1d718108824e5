"""Layers of flax, haiku, keras and torch as functions of summed inputs; each package is imported when needed.

Every layer here takes summed inputs [N *T H], units last, and returns outputs of the same shape.
"""

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lngeom.checks.subject import Opened, cast


def _by_dtype(make: Callable[[Any], Callable]) -> Callable:
    """A function that calls `make(dtype)` once per dtype, and applies the result."""
    made = functools.cache(make)
    return lambda a: made(a.dtype)(a)


MODES = {
    "use_running_average": False,
    "is_training": True,
    "is_train": True,
    "training": True,
    "train": True,
    "deterministic": False,
    "inference": False,
    "update_stats": True,
}
"""Usual names of arguments and attributes that select the mode, with their values in training mode."""


def mode(call: Callable, training: bool) -> dict[str, bool]:
    """The keyword argument that selects the mode, under its usual names."""
    names = inspect.signature(call).parameters
    return next(({name: value == training} for name, value in MODES.items() if name in names), {})


def linen(module: Any, shape: tuple[int, ...], training: bool) -> Opened:
    """A flax.linen module: initialized on ones, its mutable state discarded after each call."""
    options = mode(type(module).__call__, training)
    fixed = next(iter(options), None)
    if fixed and getattr(module, fixed, None) is not None:
        options = {}  # linen refuses what was already given to the constructor
    variables = module.init(jax.random.key(0), np.ones(shape, np.float32), **options)
    mutable = [name for name in variables if name != "params"]
    state = {name: variables[name] for name in mutable}

    def call(params, a):
        return module.apply({"params": params, **cast(state, a.dtype)}, a, mutable=mutable, **options)[0]

    return Opened(variables.get("params", {}), call)


def nnx(module: Any, shape: tuple[int, ...], training: bool) -> Opened:
    """A flax.nnx module, in training or evaluation mode; every call starts from the state it came with."""
    from flax import nnx

    module = copy.deepcopy(module)
    if not callable(module):
        raise TypeError(f"{type(module).__name__} cannot be called")
    (module.train if training else module.eval)()
    definition, params, state = nnx.split(module, nnx.Param, ...)

    def call(params, a):
        return nnx.merge(definition, params, cast(state, a.dtype))(a)

    return Opened(params, call)


def with_state(transformed: Any) -> Any:
    """A transformed haiku function as one with a state and a random key, whichever it has."""
    import haiku as hk

    stateful = isinstance(transformed, hk.TransformedWithState)
    if "rng" in list(inspect.signature(transformed.apply).parameters)[: 3 if stateful else 2]:
        return transformed if stateful else hk.with_empty_state(transformed)

    def apply(params, state, rng, *args, **kwargs):
        if stateful:
            return transformed.apply(params, state, *args, **kwargs)
        return transformed.apply(params, *args, **kwargs), state

    if stateful:
        return hk.TransformedWithState(transformed.init, apply)
    return hk.TransformedWithState(lambda *args, **kwargs: (transformed.init(*args, **kwargs), {}), apply)


def haiku(make: Any, shape: tuple[int, ...], training: bool) -> Opened:
    """A haiku module class with its arguments bound, or a transformed function."""
    import haiku as hk

    if isinstance(make, (hk.Transformed, hk.TransformedWithState)):
        fresh = transformed = with_state(make)
    else:  # the state of batch norm exists only after a call in training mode
        fresh, transformed = (
            hk.transform_with_state(
                lambda a, options=mode(getattr(make, "func", make).__call__, on): make()(a, **options)
            )
            for on in (True, training)
        )
    params, state = fresh.init(jax.random.key(0), np.ones(shape, np.float32))

    def call(params, a):
        return transformed.apply(params, cast(state, a.dtype), None, a)[0]

    return Opened(params, call)


def keras(layer: Any, shape: tuple[int, ...], training: bool) -> Callable | Opened:
    """A Keras 3 layer on any backend, opened on JAX's. It is rebuilt for each dtype."""
    from keras import backend, ops

    options = mode(layer.call, training)
    if not layer.built:
        layer.build(shape)
    weights = layer.get_weights()

    @functools.cache
    def twin(dtype):
        with jax.ensure_compile_time_eval():  # its variables are values, also where this is traced
            made = type(layer).from_config(layer.get_config() | {"dtype": dtype.name})
            made.build(shape)
            made.set_weights([np.asarray(w).astype(dtype) for w in weights])
        return made

    def eager(a):
        found = twin(a.dtype)
        state = found.get_weights()
        outputs = np.asarray(ops.convert_to_numpy(found(a, **options)))
        found.set_weights(state)
        return outputs

    def call(params, a):
        state = [v.value for v in twin(a.dtype).non_trainable_variables]
        values = [params[v.path] for v in layer.trainable_variables]
        return twin(a.dtype).stateless_call(values, state, a, **options)[0]

    if backend.backend() != "jax":
        return eager
    return Opened({v.path: v.value for v in layer.trainable_variables}, call)


def torch_tensor(array: np.ndarray) -> Any:
    """A tensor of its own with the array's values and dtype (NumPy's bfloat16 too)."""
    import torch

    if array.dtype.name in {"float64", "float32", "float16"}:
        return torch.from_numpy(np.array(array))
    dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(np.array(array, np.float64)).to(dtype)


def tensor_of(value: Any) -> Any:
    """A tensor of its own with the values of an array; a tensor stays."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    return torch_tensor(array) if jax.numpy.issubdtype(array.dtype, np.floating) else torch.tensor(array)


def from_torch(tensor: Any) -> np.ndarray:
    """The values of a tensor, in its dtype."""
    import jax.numpy as jnp
    import torch

    if not isinstance(tensor, torch.Tensor):
        return tensor
    name = str(tensor.dtype).removeprefix("torch.")
    return tensor.detach().cpu().to(torch.float64).numpy().astype(jnp.dtype(name))


def torch(module: Any, shape: tuple[int, ...], training: bool) -> tuple[Callable, Callable, Opened]:
    """A torch module on tensors, what it leaves of them, and opened; every call starts from the state it came with."""
    import torch

    channels_first = len(shape) == 3 and any(hasattr(module, name) for name in ("num_features", "num_channels"))

    def make(dtype):
        twin = copy.deepcopy(module).to(getattr(torch, dtype.name)).train(training)
        buffers = {name: value.clone() for name, value in twin.named_buffers()}

        def call(a):
            tensor = torch_tensor(a)
            with torch.no_grad():
                out = twin(tensor.movedim(-1, 1) if channels_first else tensor)
                for name, value in twin.named_buffers():
                    value.copy_(buffers[name])
            if channels_first and isinstance(out, torch.Tensor):
                out = out.movedim(1, -1)
            return from_torch(out), (from_torch(tensor),)

        return call

    free = copy.deepcopy(module).train(training)
    for part in free.modules():
        if training and hasattr(part, "running_mean"):  # forward mode refuses to write to them; no output needs them
            part.running_mean = part.running_var = part.num_batches_tracked = None

    def opened(params, a, run=free, prefix=""):
        buffers = free.named_buffers()  # copies, since a layer may write to them
        state = {k: v.to(a.dtype, copy=True) if v.is_floating_point() else v.clone() for k, v in buffers}
        tensors = {f"{prefix}{k}": v for k, v in {**params, **state}.items()}
        out = torch.func.functional_call(run, tensors, (a.movedim(-1, 1) if channels_first else a,))
        return out.movedim(1, -1) if channels_first else out

    program = compiled(free)
    both = _by_dtype(make)
    params = {name: value.detach() for name, value in free.named_parameters()}
    by_compiler = lambda params, a: program(lambda run: opened(params, a, run, "_orig_mod."))  # noqa: E731
    return lambda a: both(a)[0], lambda a: both(a)[1], Opened(params, opened, True, by_compiler)


def compiled(function: Any) -> Callable[[Callable[[Any], Any]], Any]:
    """A module or function of torch by torch.compile, as one graph: takes what calls it, and gives what that returns.

    Raises:
        RuntimeError: at a call, if it is not compiled: without a C++ compiler, say, or if it is no single graph.
    """

    @functools.cache
    def program() -> Any:
        import torch

        torch.compiler.reset()  # torch compiles one piece of code eight times in all, for whatever objects
        return torch.compile(function, fullgraph=True)

    def run(call: Callable[[Any], Any]) -> Any:
        try:
            return call(program())
        except Exception as error:  # outside of torch.compile the layer runs
            said = next(filter(None, str(error).splitlines()), "")
            beside = "; torch.compile does not work beside torchax, which lg.from_torch loads"
            words = f"not compiled here: {type(error).__name__}: {said}{beside if 'torchax' in sys.modules else ''}"
            raise RuntimeError(words) from error

    return run
