"""The spaces inside a function of parameters, with the leaves that write to them and read from them.

Read from the traced program alone. An *atom* is an axis of the program that several variables share: a sum, a product
or a contraction makes two axes one, and a reshape divides an axis into factors. A *cut* is a set of variables that are
linear in each other along an atom: sums, views, averages over positions, products with what is constant along it. A
kernel that is contracted with a variable reads the variable's cut, and writes to that of the product. A bias or a table
writes; a gain stands between two cuts. A nonlinear function entry by entry, or a product, joins cuts to a *chain*,
along which entries can still be rescaled.

Whether anything can be moved along such a space without a change of the outputs is not known here.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Literal
from jaxtyping import PyTree

from lngeom._core.programs import CASTS, inner_programs

LINEAR_UNARY = {*CASTS, "copy", "neg", "stop_gradient", "identity", "cumsum", "rev", "optimization_barrier"}
"""Operations of one operand whose result is linear in it and has its shape."""

REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin")

WINDOWS = ("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum", "cumlogsumexp")

Var = int
"""Number of a variable of the flat program."""


class Step(NamedTuple):
    """An operation of the flat program; a literal operand is None."""

    name: str
    params: dict[str, Any]
    inputs: tuple[Var | None, ...]
    outputs: tuple[Var, ...]


class Member(NamedTuple):
    """A leaf that writes to a cut or reads from it, along an atom.

    Attributes:
        leaf: its number.
        atom: number of the atom.
        slot: place of the atom among the leaf's.
        cut: number of the cut.
        reads: whether it is contracted with the cut's variables; else what it makes is added to them.
        enters: "kernel", "table" or "offset".
    """

    leaf: int
    atom: int
    slot: int
    cut: int
    reads: bool
    enters: str


class Gain(NamedTuple):
    """A leaf by whose entries, to a power of 1 or −1, the variables of one cut are multiplied to give another's."""

    leaf: int
    atom: int
    before: int
    after: int
    power: int


class Spaces(NamedTuple):
    """What the program says of leaves.

    Attributes:
        labels: of each leaf the atoms of its axes, in order, without those of size 1.
        sizes: of each atom.
        members: kernels, tables and offsets, once each.
        gains: gains, once each.
        forms: atom and cuts of variables that are contracted with each other.
        chains: of each cut the number of its chain.
        first: leaves that are members, by their first use.
    """

    labels: tuple[tuple[int, ...], ...]
    sizes: dict[int, int]
    members: tuple[Member, ...]
    gains: tuple[Gain, ...]
    forms: tuple[tuple[int, int, int], ...]
    chains: dict[int, int]
    first: tuple[int, ...]


def find_spaces(function: Callable[[PyTree, PyTree], Any], params: PyTree, inputs: PyTree) -> Spaces:
    """The spaces of a function of parameters and inputs (shapes alone matter)."""
    closed = jax.make_jaxpr(function)(params, inputs)
    program = _Flat()
    given = [program.new(v.aval.shape) for v in closed.jaxpr.invars]
    program.run(closed.jaxpr, given)
    return _Reader(program, given[: len(jax.tree.leaves(params))]).spaces()


class _Flat:
    """A program with its inner programs written out: steps, and shapes of its numbered variables."""

    def __init__(self):
        self.steps: list[Step] = []
        self.shapes: list[tuple[int, ...]] = []

    def new(self, shape: Sequence[int]) -> Var:
        self.shapes.append(tuple(shape))
        return len(self.shapes) - 1

    def add(self, name: str, inputs: Sequence[Var | None], outputs: Sequence[Var], **params: Any) -> None:
        self.steps.append(Step(name, params, tuple(inputs), tuple(outputs)))

    def same(self, a: Var | None, b: Var) -> None:
        """One variable is the other, as what a loop carries."""
        if a is not None:
            self.add("identity", [a], [b])

    def run(self, jaxpr: Any, given: Sequence[Var | None]) -> list[Var | None]:
        """Appends the steps of a program; returns its results."""
        known: dict[Any, Var | None] = dict(zip(jaxpr.invars, given, strict=True))
        known |= {v: self.new(v.aval.shape) for v in jaxpr.constvars}

        def number(v: Any) -> Var | None:
            return None if isinstance(v, Literal) else known[v]

        for equation in jaxpr.eqns:
            operands = [number(v) for v in equation.invars]
            results = [self.new(getattr(v.aval, "shape", ())) for v in equation.outvars]
            known |= dict(zip(equation.outvars, results, strict=True))
            if not self._written_out(equation, operands, results):
                self.steps.append(Step(equation.primitive.name, equation.params, tuple(operands), tuple(results)))
        return [number(v) for v in jaxpr.outvars]

    def _written_out(self, equation: Any, operands: list[Var | None], results: list[Var]) -> bool:
        name, params, programs = equation.primitive.name, equation.params, inner_programs(equation)
        if not programs:
            return False
        if name == "scan":
            self._scan(params, programs[0], operands, results)
        elif name == "while":
            body = params["body_jaxpr"].jaxpr
            first = params["cond_nconsts"]
            consts, carry = operands[first : first + params["body_nconsts"]], operands[first + params["body_nconsts"] :]
            self._loop(body, consts, carry, [], results)
        elif name == "cond":
            for program in programs:
                for a, b in zip(self.run(program, operands[1:]), results, strict=True):
                    self.same(a, b)
        elif len(programs[0].invars) == len(operands) and len(programs[0].outvars) == len(results):
            for a, b in zip(self.run(programs[0], operands), results, strict=True):
                self.same(a, b)
        else:
            return False
        return True

    def _loop(self, body: Any, consts: list, carry: list, rows: list, results: list) -> list[Var | None]:
        inside = [self.new(v.aval.shape) for v in body.invars[len(consts) : len(consts) + len(carry)]]
        for a, b in zip(carry, inside, strict=True):
            self.same(a, b)
        found = self.run(body, [*consts, *inside, *rows])
        for a, b, c in zip(found, inside, results, strict=False):
            self.same(a, b)
            self.same(a, c)
        return found[len(inside) :]

    def _scan(self, params: dict, body: Any, operands: list, results: list) -> None:
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
        steps = self.new((params["length"],))
        rows = [self.new(v.aval.shape) for v in body.invars[last:]]
        for a, b in zip(operands[last:], rows, strict=True):
            if a is not None:
                self.add("take", [a, steps], [b])
        stacked = self._loop(body, operands[:first], operands[first:last], rows, results[: last - first])
        for a, b in zip(stacked, results[last - first :], strict=True):
            if a is not None:
                self.add("stack", [a, steps], [b])


class _Union:
    """Disjoint sets of anything that hashes."""

    def __init__(self):
        self.parents: dict[Any, Any] = {}

    def find(self, a: Any) -> Any:
        root = a
        while (parent := self.parents.get(root, root)) != root:
            root = parent
        while a != root:
            self.parents[a], a = root, self.parents.get(a, a)
        return root

    def join(self, a: Any, b: Any) -> None:
        self.parents[self.find(a)] = self.find(b)


class _Atoms:
    """Axes as products of atoms, which are found to be the same, or to be products themselves."""

    def __init__(self):
        self.sizes: list[int] = []
        self.parts: dict[int, tuple[int, int]] = {}
        self.sets = _Union()

    def new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def resolved(self, atoms: Sequence[int]) -> list[int]:
        """The atoms that are no products, without those of size 1."""
        found: list[int] = []
        for atom in atoms:
            root = self.sets.find(atom)
            if root in self.parts:
                found += self.resolved(self.parts[root])
            elif self.sizes[root] != 1:
                found.append(root)
        return found

    def unify(self, a: Sequence[int], b: Sequence[int]) -> None:
        """Two products of atoms are the same axis, the slowest atom first; as far as their sizes divide each other."""
        left, right = self.resolved(a), self.resolved(b)
        while left and right:
            left, right = self.resolved(left), self.resolved(right)
            p, q = left[0], right[0]
            small, large = sorted((p, q), key=self.sizes.__getitem__)
            if p == q or self.sizes[p] == self.sizes[q]:
                self.sets.join(p, q)
                left, right = left[1:], right[1:]
            elif self.sizes[large] % self.sizes[small]:
                return
            else:
                self.parts[large] = self.new(self.sizes[small]), self.new(self.sizes[large] // self.sizes[small])


class _Reader:
    """Finds atoms in a first pass over the steps, and cuts in a second."""

    def __init__(self, program: _Flat, leaves: list[Var]):
        self.program, self.leaves = program, leaves
        self.atoms = _Atoms()
        self.axes: list[list[list[int]]] = [[[self.atoms.new(n)] for n in shape] for shape in program.shapes]
        for step in program.steps:
            for v, w in _same_axes(step, program.shapes):
                self.atoms.unify(self._of(v), self._of(w))
        self.cuts, self.joined = _Union(), _Union()
        self.constant: dict[Var, set[int]] = {}
        self.views: dict[Var, int] = {v: k for k, v in enumerate(leaves)}
        self.members: set[tuple[int, int, int, tuple, bool, str]] = set()
        self.order = {
            v: tuple(range(len(self.labels(v)))) for v in leaves
        }  # of a view's atoms, where they are its leaf's
        self.gains: set[tuple[int, int, tuple, tuple, int]] = set()
        self.forms: set[tuple[int, tuple, tuple]] = set()
        self.first: dict[int, None] = {}
        self.scaled: set[Var] = set()  # views of a leaf that are multiplied by values of the data

    def _of(self, where: tuple[Var, Sequence[int]]) -> list[int]:
        v, axes = where
        return [atom for k in axes for atom in self.axes[v][k]]

    def labels(self, v: Var) -> list[int]:
        """The atoms of a variable, in order."""
        return self.atoms.resolved([atom for axis in self.axes[v] for atom in axis])

    def spaces(self) -> Spaces:
        for step in self.program.steps:
            self._read(step)
        cut = self.cuts.find
        for a, b in list(self.joined.parents.items()):
            self.joined.join(cut(a), cut(b))
        names: dict[Any, int] = {}
        number = lambda node: names.setdefault(cut(node), len(names))  # noqa: E731
        members = {Member(k, a, slot, number(n), reads, kind) for k, a, slot, n, reads, kind in self.members}
        gains = {Gain(k, a, number(n), number(m), power) for k, a, n, m, power in self.gains}
        pairs = [(a, number(n), number(m)) for a, n, m in self.forms]
        forms = {(a, min(n, m), max(n, m)) for a, n, m in pairs if n != m}
        chain: dict[Any, int] = {}
        chains = {i: chain.setdefault(self._chain(node), len(chain)) for node, i in names.items()}
        sizes = {a: self.atoms.sizes[a] for leaf in self.leaves for a in self.labels(leaf)}
        labels = tuple(tuple(self.labels(leaf)) for leaf in self.leaves)
        found = tuple(sorted(members)), tuple(sorted(gains)), tuple(sorted(forms))
        return Spaces(labels, sizes, *found, chains, tuple(self.first))

    def _chain(self, node: Any) -> Any:
        return self.joined.find(self.cuts.find(node))

    def _link(self, v: Var, w: Var, atoms: Sequence[int] | None = None, linear: bool = True) -> None:
        shared = set(self.labels(v)) & set(self.labels(w))
        for atom in shared if atoms is None else shared & set(atoms):
            (self.cuts if linear else self.joined).join((v, atom), (w, atom))

    def _write(self, v: Var, out: Var, kind: str) -> None:
        """A leaf is added to the variables of a cut, along its atoms that the result has."""
        self._add(v, self.labels(v), (), out, False, "kernel" if v in self.scaled else kind)

    def _add(
        self, v: Var, atoms: Sequence[int], axes: Sequence[int], at: Var, reads: bool, kind: str = "kernel"
    ) -> None:
        """Adds a view's leaf as a member of the cuts of a variable, along atoms of some axes of the view (all if none).

        An atom that the leaf has twice is taken at the place where the view has it.
        """
        leaf, there, place = self.views[v], set(self.labels(at)), 0
        self.first.setdefault(leaf)
        own = self.labels(self.leaves[leaf])
        for axis, parts in enumerate(self.axes[v]):
            for atom in self.atoms.resolved(parts):
                known = self.order.get(v)
                slots = [known[place]] if known is not None else [k for k, a in enumerate(own) if a == atom]
                place += 1
                if atom in atoms and atom in there and (not axes or axis in axes):
                    for slot in slots:
                        if own[slot] == atom:
                            self.members.add((leaf, atom, slot, (at, atom), reads, kind))

    def _read(self, step: Step) -> None:
        name, outs = step.name, step.outputs
        given = [v for v in step.inputs if v is not None]
        if not outs or not given:
            return
        out = outs[0]
        if self._is_view(step):
            self._view(step, given[0], out)
        elif name in {"add", "add_any", "sub"}:
            for v in given:
                if v in self.views:
                    self._write(v, out, "offset")
                else:
                    self._link(v, out)
        elif name in {"mul", "div"}:
            self._product(step, out)
        elif name == "dot_general":
            self._contraction(step, out)
        elif name == "conv_general_dilated":
            self._convolution(step, out)
        elif name in {"gather", "dynamic_slice", "dynamic_index_in_dim"} and given[0] in self.views:
            self._write(given[0], out, "table")
        else:
            linear = name in {"reduce_sum", "cumsum", "gather", "dynamic_slice", "reduce_window_sum"}
            linear = linear or name in {"select_n", "concatenate", "dynamic_update_slice", "split", "pad", "slice"}
            for v in given:
                if v in self.views:
                    self._write(v, out, "offset")
                for w in outs:
                    self._link(v, w, linear=linear)
        self._constancy(step, given)

    def _is_view(self, step: Step) -> bool:
        return step.name in LINEAR_UNARY or step.name in {
            *("reshape", "transpose", "squeeze", "broadcast_in_dim", "expand_dims", "take", "stack", "slice"),
        }

    def _view(self, step: Step, v: Var, out: Var) -> None:
        if v in self.views and step.name not in {"stack", "cumsum"}:
            self._follow(v, out)
            self._place(step, v, out)
        else:
            self._link(v, out)

    def _place(self, step: Step, v: Var, out: Var) -> None:
        """Where the atoms of a view are in its leaf, as long as it has the leaf's and no others."""
        known, before, after = self.order.get(v), self.labels(v), self.labels(out)
        if known is None:
            return
        if step.name == "transpose":
            edges = [0]
            for parts in self.axes[v]:
                edges.append(edges[-1] + len(self.atoms.resolved(parts)))
            self.order[out] = tuple(known[i] for k in step.params["permutation"] for i in range(edges[k], edges[k + 1]))
        elif before == after and not step.params.get("dimensions"):  # a reshape of a transpose has some
            self.order[out] = known

    def _follow(self, v: Var, out: Var) -> None:
        self.views[out] = self.views[v]
        if v in self.scaled:
            self.scaled.add(out)

    def _product(self, step: Step, out: Var) -> None:
        a, b = step.inputs
        if a is None or b is None:
            v = b if a is None else a
            assert v is not None
            if v in self.views and not (step.name == "div" and a is None):
                self._follow(v, out)
                self._place(step, v, out)
            else:
                self._link(v, out, linear=not (step.name == "div" and a is None))
            return
        for v, w in ((a, b), (b, a)):
            inverse = step.name == "div" and v == b
            if v in self.views and w not in self.views:
                leaf = self.views[v]
                own = set(self.labels(self.leaves[leaf])) & set(self.labels(out))
                if not inverse and own <= self.constant.get(w, set()) | (own - set(self.labels(w))):
                    self.views[out] = leaf  # a multiple of the leaf, as of a gain with 1/σ
                    self.scaled.add(out)
                    continue
                for atom in own & set(self.labels(w)):
                    self.gains.add((leaf, atom, (w, atom), (out, atom), -1 if inverse else 1))
                self._link(w, out, [x for x in self.labels(w) if x not in own], linear=not inverse)
            elif out in self.views:
                continue
            elif v not in self.views:
                varying = set(self.labels(w)) - self.constant.get(w, set()) if w not in self.views else set()
                if w in self.views:
                    continue
                atoms = self.labels(v)
                self._link(v, out, [x for x in atoms if x not in varying], linear=not inverse)
                self._link(v, out, [x for x in atoms if x in varying], linear=False)
            else:  # a product of two leaves
                self._write(v, out, "offset")

    def _contraction(self, step: Step, out: Var) -> None:
        (contracted, _), (a, b) = step.params["dimension_numbers"], step.inputs
        if a is None or b is None:
            return
        sides = ((a, contracted[0]), (b, contracted[1]))
        for (v, mine), (w, theirs) in (sides, sides[::-1]):
            inside = self.atoms.resolved(self._of((v, mine)))
            others = [k for k in range(len(self.axes[v])) if k not in mine]
            if v in self.views and (w not in self.views or v == b):
                if w in self.views:
                    self._writer_itself(w)
                self._add(v, inside, mine, w, True)
                if others:
                    self._add(v, self.labels(v), others, out, False)
            elif v in self.views:
                if others:
                    self._add(v, self.labels(v), others, out, False)
            else:
                self._link(v, out, [x for x in self.labels(v) if x not in inside])
                if w not in self.views:  # a bilinear form of two spaces
                    for x, y in zip(inside, self.atoms.resolved(self._of((w, theirs))), strict=False):
                        self.joined.join((v, x), (w, y))
                        self.forms.add((x, (v, x), (w, y)))

    def _writer_itself(self, v: Var) -> None:
        """A leaf that is a variable too, which another leaf is contracted with."""
        self._add(v, self.labels(v), (), v, False)

    def _convolution(self, step: Step, out: Var) -> None:
        x, kernel = step.inputs[:2]
        if x is None or kernel is None:
            return
        self._link(x, out)
        if kernel not in self.views:
            return
        (_, feature, *_), (last, first, *_), (_, column, *_) = step.params["dimension_numbers"]
        self._add(kernel, self.atoms.resolved(self._of((x, [feature]))), [first], x, True)
        self._add(kernel, self.atoms.resolved(self._of((out, [column]))), [last], out, False)

    def _constancy(self, step: Step, given: list[Var]) -> None:
        """Atoms along which a result is constant: those that a broadcast makes, as long as no other operand varies."""
        for out in step.outputs:
            labels = set(self.labels(out))
            if step.name == "broadcast_in_dim":
                kept = set(self.labels(given[0])) - self.constant.get(given[0], set())
                self.constant[out] = labels - kept
            else:
                varying: set[int] = set()
                for v in given:
                    varying |= set(self.labels(v)) - self.constant.get(v, set())
                simple = step.name not in {"iota", "cumsum", "sort", "concatenate", "gather", "scatter", "pad"}
                known = set().union(*(set(self.labels(v)) for v in given))
                self.constant[out] = {a for a in labels & known if a not in varying} if simple else set()


Place = tuple[Var, Sequence[int]]


def _same_axes(step: Step, shapes: list[tuple[int, ...]]) -> Iterator[tuple[Place, Place]]:
    """Pairs of axes, or of products of axes, that an operation makes one."""
    name, params, inputs, outputs = step.name, step.params, step.inputs, step.outputs
    if not outputs:
        return
    out = outputs[0]
    operands = [v for v in inputs if v is not None]
    every = lambda v: range(len(shapes[v]))  # noqa: E731
    if name == "dot_general":
        a, b = inputs
        (contracted, batch) = params["dimension_numbers"]
        sides = []
        for k, v in enumerate((a, b)):
            if v is not None:
                sides.append((v, [i for i in every(v) if i not in contracted[k] and i not in batch[k]]))
        if a is None or b is None:
            return
        yield from (((a, [i]), (b, [j])) for i, j in zip(*contracted, strict=True))
        yield from (((a, [i]), (b, [j])) for i, j in zip(*batch, strict=True))
        yield from (((a, [i]), (out, [k])) for k, i in enumerate(batch[0]))
        place = len(batch[0])
        for v, free in sides:
            for i in free:
                yield (v, [i]), (out, [place])
                place += 1
    elif name == "conv_general_dilated":
        x, kernel = inputs[:2]
        lhs, rhs, result = params["dimension_numbers"]
        if x is None or kernel is None:
            return
        yield (x, [lhs[0]]), (out, [result[0]])
        if params["feature_group_count"] == params["batch_group_count"] == 1:
            yield (x, [lhs[1]]), (kernel, [rhs[1]])
        yield (kernel, [rhs[0]]), (out, [result[1]])
        for i, k in zip(lhs[2:], result[2:], strict=True):
            if shapes[x][i] == shapes[out][k]:
                yield (x, [i]), (out, [k])
    elif name == "reshape":
        yield (operands[0], list(params["dimensions"] or every(operands[0]))), (out, every(out))
    elif name == "transpose":
        yield from (((operands[0], [i]), (out, [k])) for k, i in enumerate(params["permutation"]))
    elif name == "broadcast_in_dim":
        for i, k in enumerate(params["broadcast_dimensions"]):
            if operands and shapes[operands[0]][i] == shapes[out][k]:
                yield (operands[0], [i]), (out, [k])
    elif name == "squeeze":
        kept = [i for i in every(operands[0]) if i not in params["dimensions"]]
        yield from (((operands[0], [i]), (out, [k])) for k, i in enumerate(kept))
    elif name in REDUCTIONS:
        kept = [i for i in every(operands[0]) if i not in params["axes"]]
        yield from (((operands[0], [i]), (out, [k])) for k, i in enumerate(kept))
    elif name in {"take", "stack"}:
        whole, row = (operands[0], out) if name == "take" else (out, operands[0])
        yield (whole, [0]), (operands[1], [0])
        yield from (((whole, [k + 1]), (row, [k])) for k in every(row))
    elif name == "gather":
        numbers, table = params["dimension_numbers"], inputs[0]
        if table is None:
            return
        batched = getattr(numbers, "operand_batching_dims", ())
        kept = [i for i in every(table) if i not in numbers.collapsed_slice_dims and i not in batched]
        for i, k in zip(kept, numbers.offset_dims, strict=True):
            if shapes[table][i] == shapes[out][k]:
                yield (table, [i]), (out, [k])
        rest = [k for k in every(out) if k not in numbers.offset_dims]
        if inputs[1] is not None:
            yield from (((inputs[1], [i]), (out, [k])) for i, k in enumerate(rest))
    elif name == "concatenate":
        for v in operands:
            yield from (((v, [k]), (out, [k])) for k in every(out) if k != params["dimension"])
    else:  # entry by entry, or along some axes alone: those of one size are the same
        for other in outputs:
            for v in operands:
                if len(shapes[v]) == len(shapes[other]):
                    yield from (((v, [k]), (other, [k])) for k in every(other) if shapes[v][k] == shapes[other][k])


def slots(labels: Sequence[int], atom: int) -> list[int]:
    """Positions of an atom among those of a leaf."""
    return [k for k, label in enumerate(labels) if label == atom]


def fits(spaces: Spaces, sizes: Sequence[int]) -> bool:
    """Whether the atoms of each leaf have as many entries as the leaf."""
    found = [math.prod(spaces.sizes[a] for a in labels) for labels in spaces.labels]
    return found == list(sizes)
