"""What a function reads besides its arguments, seen in the program that JAX traces.

Compiled programs are kept by function. A function may read more than its arguments: attributes of an object, globals,
arrays that it closes over. `capture` traces it, so that programs are found again only where all of that is the same.
"""

import functools
import hashlib
import math
import os
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import PyTree

from lngeom._core.lifting import has_narrow
from lngeom._core.programs import inner_programs
from lngeom._core.types import is_concrete

CHOSEN_BY_JAX = {"ctx_mesh", "in_layouts", "out_layouts"}
"""Parameters of operations that follow settings of JAX, by which `jax.jit` keeps programs apart itself."""

CALLBACKS = {"pure_callback", "io_callback"}
"""Operations that call a function of Python. What it reads when it runs, it reads anew each time."""


class ByContent:
    """An array of NumPy or JAX that is compared by its entries, as they are when this is made.

    They are kept as a digest: an array of JAX may share the memory of one of NumPy, which changes in place.
    """

    def __init__(self, array: Any):
        self._form = (np.shape(array), str(array.dtype))
        self._digest = hashlib.blake2b(_bits(array)).digest()

    def __hash__(self) -> int:
        """Of shape, dtype and all bits."""
        return hash((self._form, self._digest))

    def __eq__(self, other: object) -> bool:
        """Whether shapes, dtypes and all bits are equal."""
        return isinstance(other, ByContent) and (self._form, self._digest) == (other._form, other._digest)


def _bits(array: Any) -> bytes:
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        with jax.ensure_compile_time_eval():
            array = jax.random.key_data(array)
    return np.asarray(array).tobytes()


class Captured:
    """The program of a function at its arguments, without their values, and the constants that it holds.

    Two are equal where the same operations are applied to the same constants.

    Attributes:
        arguments: shapes and dtypes of the function and its arguments; None where a program is not traced again.
        narrow: whether it has floating point numbers of 16 bits.
    """

    def __init__(self, signature: Any, arguments: PyTree, narrow: bool):
        self._signature, self._hash, self.arguments, self.narrow = signature, hash(signature), arguments, narrow

    def __hash__(self) -> int:
        """Computed once: a hash is taken at every call of a compiled program."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether both are of one program with the same constants."""
        if self is other:
            return True
        return isinstance(other, Captured) and self._hash == other._hash and self._signature == other._signature

    def __reduce__(self) -> tuple:
        """Not pickled: what is restored is equal to nothing else."""
        return Captured, (object(), None, self.narrow)

    def of_another(self) -> "Captured":
        """The same of a function that is made of arrays and of this one."""
        return Captured(self, None, self.narrow)


def capture(function: Any, *arguments: PyTree) -> Captured:
    """What a function reads at these arguments.

    Args:
        function: a pytree that is called, whose arrays are arguments too.
        *arguments: arrays, or their shapes.
    """
    closed = _trace(function, arguments)
    # where a mesh is set, or a constant has no value yet, tracing again says nothing
    again = is_concrete(closed.consts) and jax.sharding.get_abstract_mesh().empty
    shapes = jax.tree.map(_shape, (function, arguments)) if again else None
    return Captured(_signature(closed, function, arguments), shapes, has_narrow(closed))


def unchanged(captured: Captured, function: Any) -> bool:
    """Whether a function of the same structure reads what it read when it was captured."""
    if captured.arguments is None or not jax.sharding.get_abstract_mesh().empty:
        return True
    was, arguments = captured.arguments
    shapes = jax.tree.map(
        lambda now, before: before if isinstance(before, jax.ShapeDtypeStruct) else now, function, was
    )
    found = _signature(_trace(shapes, arguments), shapes, arguments)
    return Captured(found, None, captured.narrow) == captured


def _shape(leaf: Any) -> Any:
    return (
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
        if _is_array(leaf)
        else leaf
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def _trace(function: Any, arguments: PyTree, derive: Callable[..., Any] = lambda f: f) -> Any:
    """The program of a function, or of what is derived from it as a function of arrays."""
    leaves, structure = jax.tree.flatten((function, arguments))
    arrays = [leaf for leaf in leaves if _is_array(leaf)]

    def run(*given: Any) -> list:  # a new function: JAX keeps what it traced by function
        arrays = iter(given)
        call, values = jax.tree.unflatten(structure, [next(arrays) if _is_array(leaf) else leaf for leaf in leaves])
        return [leaf for leaf in jax.tree.leaves(call(*values)) if isinstance(leaf, jax.Array)]

    with jax.default_matmul_precision(None):  # so that a precision in the program is the function's own
        return jax.make_jaxpr(derive(run))(*arrays)


def _gradient(run: Callable[..., list]) -> Callable[..., list]:
    """A derivative, in which rules that users define are programs too."""

    def smooth(value: Any) -> bool:
        return jnp.issubdtype(jnp.result_type(value), jnp.floating)

    def derived(*given: Any) -> Any:
        def of(*floats: Any) -> list:
            found = iter(floats)
            return [v for v in run(*(next(found) if smooth(v) else v for v in given)) if smooth(v)]

        outputs, pull = jax.vjp(of, *(v for v in given if smooth(v)))
        return pull(outputs)

    return derived


def _signature(closed: Any, function: Any, arguments: PyTree) -> tuple:
    """The program of a function as a value that can be compared, and that of a derivative where it has own rules."""
    found = (_Signature().of(closed.jaxpr, closed.consts),)
    if not _has_own_rules(closed.jaxpr):
        return found
    try:
        derived = _trace(function, arguments, _gradient)
    except Exception:  # of a function that has no derivative, which is told where one is taken
        return found
    return (*found, _Signature().of(derived.jaxpr, derived.consts))


def _has_own_rules(jaxpr: Any) -> bool:
    """Whether a program has rules of derivatives that are not JAX's own."""
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith(("custom_jvp", "custom_vjp")):
            programs = inner_programs(equation)
            written = str(getattr(getattr(programs[0], "debug_info", None), "func_src_info", "")) if programs else ""
            if os.path.dirname(jax.__file__) not in written:
                return True
        if any(map(_has_own_rules, inner_programs(equation))):
            return True
    return False


class _Signature:
    """A program as a value that can be compared: operations, parameters, literals and constants."""

    def __init__(self):
        self._inner: dict[int, tuple] = {}  # JAX keeps programs such as that of a mean, and uses them again

    def of(self, jaxpr: Any, consts: Sequence[Any] = ()) -> tuple:
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        numbers = {v: k for k, v in enumerate(inputs)}
        rows = [tuple(map(_constant, consts)), tuple(_form(v.aval) for v in inputs)]

        def operand(v: Any) -> Any:
            return (_form(v.aval), np.asarray(v.val).tobytes()) if isinstance(v, Literal) else numbers[v]

        for equation in jaxpr.eqns:
            operands = tuple(map(operand, equation.invars))
            for v in equation.outvars:
                numbers[v] = len(numbers)
            value = _called if equation.primitive.name in CALLBACKS else self._value
            params = tuple((name, value(p)) for name, p in sorted(equation.params.items()) if name not in CHOSEN_BY_JAX)
            rows.append((equation.primitive.name, operands, tuple(_form(v.aval) for v in equation.outvars), params))
        rows.append(tuple(map(operand, jaxpr.outvars)))
        return tuple(rows)

    def _of_inner(self, program: Any) -> tuple:
        if id(program) not in self._inner:
            closed = isinstance(program, ClosedJaxpr)
            self._inner[id(program)] = self.of(program.jaxpr, program.consts) if closed else self.of(program)
        return self._inner[id(program)]

    def _value(self, parameter: Any) -> Any:
        """A parameter of an operation, as a value that can be compared."""
        if isinstance(parameter, ClosedJaxpr) or hasattr(parameter, "eqns"):
            return self._of_inner(parameter)
        if isinstance(parameter, dict):
            return tuple((str(key), self._value(value)) for key, value in sorted(parameter.items(), key=str))
        if isinstance(parameter, tuple | list):
            return tuple(map(self._value, parameter))
        if isinstance(parameter, np.ndarray | np.generic | jax.Array):
            return _constant(parameter)
        if isinstance(parameter, float):
            return "nan" if math.isnan(parameter) else parameter
        if (callable(parameter) and not isinstance(parameter, type | np.dtype)) or hasattr(parameter, "call_wrapped"):
            return type(parameter).__name__  # rules of a custom derivative, which the program of a derivative shows
        try:
            hash(parameter)
        except TypeError:
            return repr(parameter)
        return parameter


def _called(parameter: Any) -> Any:
    """A parameter of a callback: functions are compared by their code and what they close over."""
    parameter = getattr(parameter, "callback_func", parameter)
    if isinstance(parameter, functools.partial):
        held = (*parameter.args, *parameter.keywords.values())
        return _called(parameter.func), tuple(map(_Same, held)), tuple(parameter.keywords)
    if not isinstance(parameter, types.FunctionType):
        return _Same(parameter)
    held = [cell.cell_contents for cell in parameter.__closure__ or ()]
    held += [*(parameter.__defaults__ or ()), *(parameter.__kwdefaults__ or {}).values()]
    return parameter.__code__, tuple(_called(v) if callable(v) else _Same(v) for v in held)


class _Same:
    """An object that is compared by identity, and else by its own equality."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        """Of the type alone."""
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        """Whether both are the same."""
        if not isinstance(other, _Same):
            return False
        try:
            return self.value is other.value or bool(np.all(self.value == other.value))
        except Exception:  # whatever an equality of users raises
            return False


def _form(aval: Any) -> Any:
    """Shape, dtype and weakness of an array; what else there is, such as references, by its text."""
    if hasattr(aval, "weak_type"):
        return type(aval).__name__, aval.shape, aval.dtype, aval.weak_type
    return str(aval)


def _constant(value: Any) -> Any:
    return ByContent(value) if is_concrete(value) else object()  # a traced value is equal to no other
