"""Faults made by changing syntax trees: one change at one place of one function, the rest of the file byte for byte.

An operator looks at a node and gives what may stand in its place. The mutants of a function are the changes of all its
nodes in the order of the source, numbered by operator. Annotations, decorators, docstrings, messages of errors and
formatted strings are not changed: they decide no result.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

Definition = ast.FunctionDef | ast.Assign | ast.AnnAssign
"""What a fault can be planted in: a function or method, or an assignment to a name of a module or class."""

Change = ast.AST
Changes = Iterator[Change]

REVERSED = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
"""Comparisons, and the other direction of each."""

NUMBERS = {0: 1, 1: 2, 2: 1, 0.5: 1.0, 3: 4}
"""Numbers, and what takes their place. Others are mostly sizes and tolerances."""

FUNCTIONS = {"mean": "sum", "sum": "mean", "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}
"""Attributes that are called, and what takes their place."""

DROPPED = frozenset({"sqrt", "square", "exp", "log", "abs", "tanh", "conj", "transpose", "stop_gradient"})
"""Functions of one argument whose call may be left out."""

IN_ORDER = frozenset({
    "max", "min", "maximum", "minimum", "add", "multiply", "zip", "allclose", "array_equal", "gcd",
    "cast", "isinstance", "hasattr", "getattr", "next", "map", "partial", "issubdtype", "jvp", "vjp", "vmap",
    "broadcast_to", "resize", "reshape", "zeros", "ones", "full", "cond", "scan", "while_loop", "fori_loop",
})  # fmt: skip
"""Functions whose arguments are not exchanged: their order means nothing, or the exchange is an error of types."""

EXCHANGED = ast.Name | ast.Attribute | ast.Call | ast.BinOp | ast.Subscript | ast.UnaryOp
"""Arguments that are exchanged. Texts, functions and shapes with others would be errors of types."""

KEPT = frozenset({"dtype", "strict", "precision", "stacklevel", "preferred_element_type", "name", "is_leaf"})
"""Keywords that are not dropped: they say no formula."""


def _called(node: ast.AST) -> str:
    """The last name of the function that a call calls; empty for another node."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def _is_number(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in {int, float}


def _joins(node: ast.BinOp) -> bool:
    """Whether an operation joins texts or sequences."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set)
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """The node with other fields."""
    found = copy.copy(node)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def sums(node: ast.AST) -> Changes:
    """+ for −, − for +."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and not _joins(node):
        yield _with(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())


def products(node: ast.AST) -> Changes:
    """× for ÷, ÷ for ×."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div) and not _joins(node):
        yield _with(node, op=ast.Div() if isinstance(node.op, ast.Mult) else ast.Mult())


def powers(node: ast.AST) -> Changes:
    """A product for a power."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        yield _with(node, op=ast.Mult())


def comparisons(node: ast.AST) -> Changes:
    """A comparison in the other direction."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in REVERSED:
        other: Any = REVERSED[type(node.ops[0])]
        yield _with(node, ops=[other()])


def connectives(node: ast.AST) -> Changes:
    """`or` for `and`, `and` for `or`."""
    if isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def signs(node: ast.AST) -> Changes:
    """A minus left out; 0 for −1, the last axis."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if isinstance(node.operand, ast.Constant) and node.operand.value == 1:
            yield ast.Constant(0)
        else:
            yield node.operand


def constants(node: ast.AST) -> Changes:
    """A number, an index, an axis, or a flag that is another."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value in NUMBERS:
        other = NUMBERS[node.value]
        yield ast.Constant(float(other) if isinstance(node.value, float) else other)


def terms(node: ast.AST) -> Changes:
    """A term of a sum left out: the last, or the first."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and not _joins(node):
        yield node.left
        yield node.right if isinstance(node.op, ast.Add) else ast.UnaryOp(ast.USub(), node.right)


def factors(node: ast.AST) -> Changes:
    """A factor or a divisor left out."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div) and not _joins(node):
        yield node.left
        if isinstance(node.op, ast.Mult):
            yield node.right


def calls(node: ast.AST) -> Changes:
    """A function of one argument left out, one for another, and the mean for the sum."""
    if not isinstance(node, ast.Call):
        return
    name = _called(node)
    if name in DROPPED and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
        yield node.args[0]
    if name in FUNCTIONS and isinstance(node.func, ast.Attribute):
        yield _with(node, func=_with(node.func, attr=FUNCTIONS[name]))


def arguments(node: ast.AST) -> Changes:
    """The first two arguments of a call in the other order."""
    if isinstance(node, ast.Call) and len(node.args) > 1 and _called(node) not in IN_ORDER:
        first, second, *rest = node.args
        if all(isinstance(a, EXCHANGED) for a in (first, second)) and ast.dump(first) != ast.dump(second):
            yield _with(node, args=[second, first, *rest])


def keywords(node: ast.AST) -> Changes:
    """A keyword of a call left out."""
    if isinstance(node, ast.Call):
        for k, keyword in enumerate(node.keywords):
            if keyword.arg is not None and keyword.arg not in KEPT:
                yield _with(node, keywords=node.keywords[:k] + node.keywords[k + 1 :])


def transposes(node: ast.AST) -> Changes:
    """A transposition left out."""
    if isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}:
        yield node.value


def guards(node: ast.AST) -> Changes:
    """A refusal left out: `if …: raise …`."""
    if isinstance(node, ast.If) and not node.orelse and all(isinstance(s, ast.Raise) for s in node.body):
        yield ast.Pass()


def cases(node: ast.AST) -> Changes:
    """One case of `where` for both."""
    if _called(node) == "where" and isinstance(node, ast.Call) and len(node.args) == 3:
        yield node.args[1]
        yield node.args[2]


def conditions(node: ast.AST) -> Changes:
    """A condition negated."""
    if isinstance(node, ast.If | ast.IfExp):
        test = node.test
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        yield _with(node, test=test.operand if negated else ast.UnaryOp(ast.Not(), test))


OPERATORS: dict[str, Callable[[ast.AST], Changes]] = {
    operator.__name__: operator
    for operator in (
        sums, products, powers, comparisons, connectives, signs, constants, terms, factors, calls, arguments, keywords,
        transposes, guards, cases, conditions,
    )
}  # fmt: skip
"""The operators by their names."""


class Site(NamedTuple):
    """A place of a definition and a change there.

    Attributes:
        operator: its name.
        position: of this change among those of the operator.
        node: what is changed.
        change: what takes its place.
    """

    operator: str
    position: int
    node: ast.AST
    change: ast.AST

    @property
    def text(self) -> str:
        """What is changed and what takes its place, in a line."""
        before, after = _line(self.node), _line(self.change)
        return f"{before} → {after}"


def _line(node: ast.AST) -> str:
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}: …"
    if isinstance(node, ast.Pass):
        return "nothing"
    return ast.unparse(node)


def _changed_parts(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node, without those that decide no result."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_comment", "targets", "target", "type_params"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a definition that may be changed, in the order of the source."""
    yield definition
    text = isinstance(definition, ast.Expr) and isinstance(definition.value, ast.Constant)
    one = isinstance(definition, ast.UnaryOp) and _is_number(definition.operand) and definition.operand.value == 1
    if text or one or isinstance(definition, ast.Raise | ast.JoinedStr):
        return
    for child in _changed_parts(definition):
        yield from nodes(child)


def sites(definition: Definition) -> list[Site]:
    """Every change of a definition, in the order of the source.

    Args:
        definition: a function or an assignment.

    Returns:
        Changes; each has an operator and a position of its own.
    """
    found: list[Site] = []
    count = dict.fromkeys(OPERATORS, 0)
    for node in nodes(definition):
        for name, operator in OPERATORS.items():
            for change in operator(node):
                found.append(Site(name, count[name], node, change))
                count[name] += 1
    return found


class _Replace(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, site: Site):
        self.site = site

    def visit(self, node: ast.AST) -> ast.AST:
        return self.site.change if node is self.site.node else super().generic_visit(node)


def definitions(tree: ast.AST, prefix: str = "") -> dict[str, Definition]:
    """Functions, methods and assignments of a module, by their qualified names; what a function has inside is its own.

    Args:
        tree: the module, or a class.
        prefix: of the names.

    Returns:
        Definitions, in the order of the source. The second one of a name has "#2" after it.
    """
    found: dict[str, Definition] = {}

    def add(name: str, node: Definition) -> None:
        count = sum(known.partition("#")[0] == prefix + name for known in found)
        found[prefix + name + (f"#{count + 1}" if count else "")] = node

    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.ClassDef):
            found |= definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            add(node.name, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                add(target.id, node)
    return found


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: path below `lngeom/`.
        name: qualified name of the function, or of what is assigned.
        operator: name of the operator.
        position: of the change among those of the operator.
    """

    file: str
    name: str
    operator: str
    position: int

    @property
    def id(self) -> str:
        """Such as `information/metric.py:gain_matrix:factors:0`."""
        return f"{self.file}:{self.name}:{self.operator}:{self.position}"

    @classmethod
    def of(cls, id: str) -> "Mutant":
        """The mutant of an id.

        Raises:
            ValueError: if it is none.
        """
        file, name, operator, position = (id.split(":") + [""] * 4)[:4]
        if id.count(":") != 3 or operator not in OPERATORS or not position.isdecimal():
            raise ValueError(f"{id!r} is no id of a mutant; one is FILE:NAME:OPERATOR:POSITION, with an operator among "
                             f"{', '.join(OPERATORS)}")  # fmt: skip
        return cls(file, name, operator, int(position))

    def apply(self, source: str) -> tuple[str, str]:
        """Plants the fault.

        Args:
            source: text of the file.

        Returns:
            The text with the fault, and the change in a line. Lines outside of the definition stay as they are.

        Raises:
            ValueError: if there is no such definition or place.
        """
        definition = definitions(ast.parse(source)).get(self.name)
        if definition is None:
            raise ValueError(f"{self.id}: lngeom/{self.file} defines no {self.name!r}")
        site = next((s for s in sites(definition) if (s.operator, s.position) == (self.operator, self.position)), None)
        if site is None:
            raise ValueError(f"{self.id}: {self.name} has no place {self.position} for {self.operator!r}")
        text = site.text
        return render(source, definition, _Replace(site).visit(definition)), text


def render(source: str, before: Definition, after: ast.AST) -> str:
    """The source with one definition written anew; decorators and all other lines stay as they are.

    Args:
        source: text of the file.
        before: a definition of its tree.
        after: the definition in its place.

    Returns:
        The text.
    """
    if isinstance(after, ast.FunctionDef):
        after = _with(after, decorator_list=[])
    assert before.end_lineno is not None
    assert before.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    head = b"".join(lines[: before.lineno - 1]) + lines[before.lineno - 1][: before.col_offset]
    tail = lines[before.end_lineno - 1][before.end_col_offset :] + b"".join(lines[before.end_lineno :])
    text = ast.unparse(ast.fix_missing_locations(after)).replace("\n", "\n" + " " * before.col_offset)
    return (head + text.encode() + tail).decode()
