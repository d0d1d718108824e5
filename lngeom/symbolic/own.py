r"""A normalization method of one's own: a formula over symbolic arrays, read for all sizes and over exact numbers.

A formula is written as for arrays, in a (summed inputs), w (weights), x (inputs) and eps. The normal form knows that
$|cu| = c|u|$ and $\max_i (c u_i + v) = c \max_i u_i + v$ for c > 0, and how powers of a common factor leave a root.
"""

import ast
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy as sp
from sympy import Expr

from lngeom.symbolic.layers import Layer, Method
from lngeom.symbolic.sums import D, H, Largest, N

SIZES = {"samples": N, "units": H, "inputs": D}
"""Axes of a formula's arrays, and how far their indices run."""


@dataclass(frozen=True, eq=False)
class Entries:
    """A symbolic array: numbers or expressions by their indices.

    Attributes:
        layer: whose weights and inputs it is made of.
        entry: an entry by the index of its sample, unit and input, of which it uses those of its axes.
        axes: names of its axes: "samples", "units", "inputs".
    """

    layer: Layer
    entry: Callable[..., Any]
    axes: frozenset[str]

    def _with(self, function: Callable[[Any, Any], Any], other: Any) -> "Entries":
        if not isinstance(other, Entries):
            number = other if isinstance(other, Expr) else sp.nsimplify(other)
            return Entries(self.layer, lambda *at: function(self.entry(*at), number), self.axes)
        return Entries(self.layer, lambda *at: function(self.entry(*at), other.entry(*at)), self.axes | other.axes)

    def _map(self, function: Callable[[Any], Any]) -> "Entries":
        return Entries(self.layer, lambda *at: function(sp.sympify(self.entry(*at))), self.axes)

    def __add__(self, other: Any) -> "Entries":
        return self._with(operator.add, other)

    def __radd__(self, other: Any) -> "Entries":
        return self._with(operator.add, other)

    def __sub__(self, other: Any) -> "Entries":
        return self._with(operator.sub, other)

    def __rsub__(self, other: Any) -> "Entries":
        return self._with(lambda a, b: b - a, other)

    def __mul__(self, other: Any) -> "Entries":
        return self._with(operator.mul, other)

    def __rmul__(self, other: Any) -> "Entries":
        return self._with(operator.mul, other)

    def __truediv__(self, other: Any) -> "Entries":
        return self._with(_quotient, other)

    def __rtruediv__(self, other: Any) -> "Entries":
        return self._with(lambda a, b: _quotient(b, a), other)

    def __pow__(self, exponent: Any) -> "Entries":
        power = sp.nsimplify(exponent, rational=True)
        return self._map(lambda value: value**power)

    def __neg__(self) -> "Entries":
        return -1 * self

    def __abs__(self) -> "Entries":
        return self._map(sp.Abs)

    def sqrt(self) -> "Entries":
        """The square root."""
        return self._map(sp.sqrt)

    def tanh(self) -> "Entries":
        """The hyperbolic tangent."""
        return self._map(sp.tanh)

    def _reduced(self, axis: str | None, reduce: Callable[[Callable[[Any], Any], Expr], Any]) -> "Entries":
        axis = axis or next((name for name in ("inputs", "units", "samples") if name in self.axes), "units")
        if axis not in self.axes:
            raise ValueError(f"an array with the axes {sorted(self.axes)} has none called {axis!r}")
        place = list(SIZES).index(axis)

        def entry(*at: Any) -> Any:
            return reduce(lambda k: self.entry(*at[:place], k, *at[place + 1 :]), SIZES[axis])

        keep = functools.cache(entry) if self.layer.sizes else entry
        used = [name in self.axes and name != axis for name in SIZES]
        at_used = lambda *at: keep(*(index if use else None for index, use in zip(at, used, strict=True)))
        return Entries(self.layer, at_used, self.axes - {axis})

    def sum(self, axis: str | None = None) -> "Entries":
        """The sum over an axis: by default the inputs, or the units of an array without inputs."""
        return self._reduced(axis, self.layer.total)

    def mean(self, axis: str | None = None) -> "Entries":
        """The mean over an axis, by default as of `sum`."""
        return self._reduced(axis, self.layer.mean)

    def max(self, axis: str | None = None) -> "Entries":
        """The largest entry along an axis, by default as of `sum`."""
        sizes = self.layer.sizes

        def largest(body: Callable[[Any], Any], size: Expr) -> Any:
            return sp.Max(*map(body, range(1, sizes[str(size)] + 1))) if sizes else Largest.over(body, size)

        return self._reduced(axis, largest)

    def min(self, axis: str | None = None) -> "Entries":
        """The smallest entry along an axis, by default as of `sum`."""
        return -((-self).max(axis))

    def var(self, axis: str | None = None) -> "Entries":
        """The mean squared deviation from the mean along an axis, by default as of `sum`."""
        return ((self - self.mean(axis)) ** 2).mean(axis)

    def std(self, axis: str | None = None) -> "Entries":
        """The square root of `var`."""
        return self.var(axis).sqrt()


def _quotient(a: Any, b: Any) -> Any:
    if b == 0:
        raise ZeroDivisionError("division by zero")
    return sp.sympify(a) / b


def maximum(a: Any, b: Any) -> Entries:
    """The larger of two, entry by entry: (a + b + |a − b|) / 2."""
    return (a + b + abs(a - b)) / 2


FUNCTIONS: dict[str, Callable] = {
    **{name: getattr(Entries, name) for name in ("sqrt", "tanh", "sum", "mean", "max", "min", "var", "std")},
    "abs": abs,
    "maximum": maximum,
    "minimum": lambda a, b: -maximum(-a, -b),
}
"""What a formula in a string may call."""

NAMES = ("a", "w", "x", "eps")

OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


def method(formula: str | Callable[..., Any], name: str = "") -> Method:
    r"""A normalization method of one's own, which `prove` takes: by a formula, or a function of symbolic arrays.

    Arrays are a, the summed inputs [samples, units]; w, the weights [units, inputs]; x, the inputs [samples, inputs];
    and the number eps. They take + − · / and rational powers, `abs`, and sqrt, tanh, sum, mean, max, min, var, std,
    along axis="units" (the default for a), "inputs" (the default for w and x) or "samples", as functions in a string
    and as methods in Python. A string may call `maximum` and `minimum` of two arrays.

    Args:
        formula: such as "(a - mean(a)) / sqrt(var(a) + eps)", or a function of any of a, w, x and eps, by these names.
        name: of the method.

    Returns:
        The method.

    Raises:
        ValueError: if the formula holds anything else, or its result has an axis other than samples and units.

    Example:
        >>> import lngeom as lg
        >>> by_largest = lg.symbolic.method("a / max(abs(a))", "by the largest")
        >>> proof = lg.symbolic.prove(by_largest, lg.transformations.WEIGHT_MATRIX_RESCALING)
        >>> example = lg.symbolic.prove(by_largest, lg.transformations.WEIGHT_VECTOR_RESCALING)
        >>> type(proof).__name__, type(example).__name__, example.left == example.right
        ('Proof', 'Counterexample', False)
    """
    if isinstance(formula, str):
        tree = ast.parse(formula.strip(), mode="eval").body
        written, compute = formula, lambda arrays: _value(tree, arrays)
    else:
        written, code = getattr(formula, "__name__", "method"), formula.__code__
        wanted = code.co_varnames[: code.co_argcount]
        if unknown := set(wanted) - set(NAMES):
            raise ValueError(f"a formula is a function of {', '.join(NAMES)}; got {sorted(unknown)}")
        compute = lambda arrays: formula(*(arrays[name] for name in wanted))

    def output(L: Layer, eps: Any) -> Entries:
        arrays = {
            "a": Entries(L, L.once(lambda n, i, d: L.a(n, i)), frozenset({"samples", "units"})),
            "w": Entries(L, lambda n, i, d: L.W(i, d), frozenset({"units", "inputs"})),
            "x": Entries(L, lambda n, i, d: L.X(n, d), frozenset({"samples", "inputs"})),
            "eps": Entries(L, lambda n, i, d: sp.sympify(eps), frozenset()),
        }
        found = compute(arrays)
        if not isinstance(found, Entries) or not found.axes <= {"samples", "units"}:
            axes = sorted(found.axes) if isinstance(found, Entries) else type(found).__name__
            raise ValueError(f"the formula must give outputs [samples, units]; got {axes}: reduce the inputs")
        return found

    output(Layer(), sp.S.Zero)
    keep = functools.lru_cache(maxsize=4)(lambda key: output(*key[1]))

    def fraction(L: Layer, n: Any, i: Any, eps: Any) -> tuple[Any, Any]:
        if not L.sizes:
            return output(L, eps).entry(n, i, None), sp.S.One
        return keep(_Once((id(L), eps), (L, eps))).entry(n, i, None), sp.S.One

    smallest = (3, 2, 3 if not isinstance(formula, str) or "samples" in formula else 1)
    return Method(fraction, name=name or written, smallest=smallest, irrational=True, own=True)


class _Once(tuple):
    """Arguments (key, value) that are hashed and compared by their key alone."""

    def __new__(cls, key: Any, value: Any):
        return super().__new__(cls, (key, value))

    def __hash__(self) -> int:
        return hash(self[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Once) and self[0] == other[0]


def _value(node: ast.AST, arrays: dict[str, Any]) -> Any:
    """The value of a parsed formula, which holds names, numbers, operators and `FUNCTIONS` alone."""
    match node:
        case ast.Name(id=name) if name in arrays:
            return arrays[name]
        case ast.Constant(value=int() | float() as number):
            return sp.nsimplify(number, rational=True)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, arrays), _value(right, arrays))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, arrays)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if name in FUNCTIONS:
            axis = {k.arg: k.value.value for k in keywords if isinstance(k.value, ast.Constant) and k.arg == "axis"}
            if len(axis) == len(keywords):
                return FUNCTIONS[name](*(_value(argument, arrays) for argument in arguments), **axis)
    raise ValueError(
        f"a formula holds {', '.join(NAMES)}, numbers, + - * / **, and {', '.join(FUNCTIONS)} with axis='units', "
        f"'inputs' or 'samples'; got {ast.unparse(node)!r}"
    )
