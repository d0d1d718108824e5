"""Checks certificates of lngeom again, with Python's integers and fractions alone.

    python analysis/check_certificate.py FILE_OR_FOLDER ... [--quiet]

It shares no code with lngeom. Status 1: something does not hold. Status 2: a file is no certificate.

**Identities** are evaluated at random points modulo P = 2⁶¹ − 1. A root is any a + b√−1 with the right square, with a
random sign for each square: what holds for all signs holds for positive roots. A false identity of rational functions
of degree g passes a point with probability g/P at most. Where signs matter, and for exp, intervals enclose both sides.

**All sizes.** A side multiplied out has s sums over a size, f free indices, and the power g of the size itself. The
coefficient of a monomial that touches t values of the index is one polynomial of the size, of degree s + f − t + g at
most, for all sizes from t on. So it is zero if it is zero at the sizes 2 to s + f + g + 2. This needs denominators and
roots that do not change with an index that is summed over. Elsewhere the sizes are small, and said.
"""

import itertools
import json
import random
import sys
from fractions import Fraction
from math import isqrt
from pathlib import Path

P = 2**61 - 1
BITS = 600
SMALL = (2, 3, 4)
BUDGET = 60_000
"""Terms that one identity may add up for all sizes."""


class Refused(Exception):
    """Something in the certificate that does not hold; its text says what."""


class Unsupported(Exception):
    """An operation that a kind of numbers does not have."""


class _Numbers:
    """Random values of symbols and entries, drawn when they are first asked for, at given sizes."""

    def __init__(self, draw, sizes=(), positive=(), known=()):
        self.draw, self.sizes, self.positive, self.known, self.roots = draw, dict(sizes), positive, dict(known), {}

    def entry(self, *key):
        if key not in self.known:
            self.known[key] = self.random(key[0] in self.positive)
        return self.known[key]


class _Residues(_Numbers):
    """Numbers a + b√−1 modulo P, as pairs; −1 is no square modulo P, so each a has a root."""

    def random(self, positive):
        return self.draw.randrange(1, P), 0

    def number(self, value):
        return value.numerator * pow(value.denominator, -1, P) % P, 0

    def add(self, x, y):
        return (x[0] + y[0]) % P, (x[1] + y[1]) % P

    def times(self, x, y):
        return (x[0] * y[0] - x[1] * y[1]) % P, (x[0] * y[1] + x[1] * y[0]) % P

    def inverse(self, x):
        norm = (x[0] * x[0] + x[1] * x[1]) % P
        if not norm:
            raise ZeroDivisionError
        scale = pow(norm, -1, P)
        return x[0] * scale % P, -x[1] * scale % P

    def root(self, x):
        if x[1]:
            raise Unsupported("a root of a root")
        if x[0] not in self.roots:
            found = pow(x[0], (P + 1) // 4, P)
            sign = self.draw.choice((1, -1))
            self.roots[x[0]] = (sign * found % P, 0) if found * found % P == x[0] else (0, sign * found % P)
        return self.roots[x[0]]

    def exp(self, x):
        raise Unsupported("exp")

    log = exp

    def same(self, x, y):
        return x == y


class _Reals(_Numbers):
    """Intervals with ends that are multiples of 2^−BITS, as pairs of integers."""

    def random(self, positive):
        value = Fraction(self.draw.randint(1, 99), 64)
        return self.number(value if positive or self.draw.random() < 0.5 else -value)

    def number(self, value):
        top = value.numerator << BITS
        return top // value.denominator, -(-top // value.denominator)

    def add(self, x, y):
        return x[0] + y[0], x[1] + y[1]

    def times(self, x, y):
        ends = [a * b for a in x for b in y]
        return min(ends) >> BITS, -(-max(ends) >> BITS)

    def inverse(self, x):
        if x[0] <= 0 <= x[1]:
            raise ZeroDivisionError
        one = 1 << 2 * BITS
        return one // x[1], -(-one // x[0])

    def root(self, x):
        if x[1] < 0:
            raise Unsupported("the root of a negative number")
        return isqrt(max(x[0], 0) << BITS), isqrt(x[1] << BITS) + 1

    def exp(self, x):
        """The series at x/2ᵏ, of which the rest is below twice its first term, squared k times."""
        ends = []
        for end in x:
            halvings = (abs(end) >> BITS).bit_length() + 8
            small, total = (end >> halvings, -(-end >> halvings)), self.number(1)
            term = total
            for order in range(1, BITS):
                term = self.times(self.times(term, small), self.number(Fraction(1, order)))
                total = self.add(total, term)
            total = total[0] - 8, total[1] + 8
            for _ in range(halvings):
                total = self.times(total, total)
            ends.append(total)
        return ends[0][0], ends[1][1]

    def log(self, x):
        """By bisection."""
        ends = []
        for end in x:
            low, high = -64 << BITS, 64 << BITS
            while high - low > 2:
                middle = (low + high) // 2
                low, high = (middle, high) if self.exp((middle, middle))[0] <= end else (low, middle)
            ends.append((low - (1 << BITS // 4), high + (1 << BITS // 4)))
        return ends[0][0], ends[1][1]

    def same(self, x, y):
        """Whether two intervals meet; they must be narrow enough to say so."""
        width = max(x[1] - x[0], y[1] - y[0])
        if width > (max(map(abs, (*x, *y))) + (1 << BITS)) >> BITS // 2:
            raise Unsupported("numbers of which too many digits are lost")
        return x[0] <= y[1] and y[0] <= x[1]


class _Node:
    """A formula: an operation, its parts, and the indices that are free in it."""

    def __init__(self, operation, parts, free):
        self.operation, self.parts, self.free = operation, parts, tuple(sorted(free))


def formula(tree, known):
    """The node of a formula of the file; equal formulas are one node.

    ``3``, ``["/", 1, 2]``, ``"delta"``, ``["at", "W", "i", 1]``, ``["+", …]``, ``["*", …]``, ``["^", base, a, b]`` for
    a power a/b, b = 1 or 2, ``["sum", "d", "D", body]``, ``["same", "i", "j"]``, ``["size", "H"]``, ``["exp", x]``.
    """
    if not isinstance(tree, list):
        tree = ["symbol" if isinstance(tree, str) else "number", tree]
    operation, *rest = tree
    if operation not in {"number", "symbol", "/", "at", "+", "*", "^", "sum", "same", "size", "exp", "log"}:
        raise Refused(f"unknown operation {operation!r}")
    if operation == "/":
        operation, rest = "number", [Fraction(*rest)]
    inside = {"sum": slice(2, 3), "^": slice(1), "+": slice(None), "*": slice(None), "exp": slice(1), "log": slice(1)}
    inside = inside.get(operation, slice(0))
    rest[inside] = [formula(part, known) for part in rest[inside]]
    free = {index for part in rest[inside] for index in part.free} - ({rest[0]} if operation == "sum" else set())
    if operation in {"at", "same"}:
        free = {index for index in rest[operation == "at" :] if isinstance(index, str)}
    key = (operation, *(id(part) if isinstance(part, _Node) else part for part in rest))
    return known.setdefault(key, _Node(operation, rest, free))


def value(node, numbers, places, memory):
    """The value of a formula at a point, by loops over every sum."""
    key = (node, *(places[index] for index in node.free))
    if key in memory:
        return memory[key]
    operation, parts = node.operation, node.parts
    if operation == "number":
        found = numbers.number(parts[0])
    elif operation in {"symbol", "at"}:
        found = numbers.entry(parts[0], *(places.get(k, k) for k in parts[1:]))
    elif operation == "size":
        found = numbers.number(numbers.sizes[parts[0]])
    elif operation == "same":
        first, second = (places.get(k, k) for k in parts)
        found = numbers.number(int(first == second))
    elif operation == "sum":
        index, size, body = parts
        found = numbers.number(0)
        for place in range(1, numbers.sizes[size] + 1):
            found = numbers.add(found, value(body, numbers, {**places, index: place}, memory))
    elif operation in {"+", "*"}:
        found = numbers.number(int(operation == "*"))
        combine = numbers.add if operation == "+" else numbers.times
        for item in parts:
            found = combine(found, value(item, numbers, places, memory))
    elif operation == "^":
        base, top, bottom = value(parts[0], numbers, places, memory), *parts[1:]
        if bottom == 2:
            base = numbers.root(base)
        base = numbers.inverse(base) if top < 0 else base
        found = numbers.number(1)
        for _ in range(abs(top)):
            found = numbers.times(found, base)
    else:
        found = getattr(numbers, operation)(value(parts[0], numbers, places, memory))
    memory[key] = found
    return found


def parts_of(node, seen=None):
    """A formula and all its parts, each once."""
    seen = set() if seen is None else seen
    if node not in seen:
        seen.add(node)
        yield node
        for part in node.parts:
            if isinstance(part, _Node):
                yield from parts_of(part, seen)


def named(node):
    """The largest index that is a number."""
    return max([0, *(i for p in parts_of(node) if p.operation in {"at", "same"} for i in p.parts if type(i) is int)])


def bounds(node, size, bound=frozenset()):
    """Sums over a size and power of the size: those of a numerator, and those of the factors of its denominator."""
    operation, parts = node.operation, node.parts
    if operation == "sum":
        (s, g), below = bounds(parts[2], size, bound | {parts[0]})
        return (s + (parts[1] == size), g), below
    if operation == "size":
        return (0, int(parts[0] == size)), {}
    if operation == "^":
        base, top, bottom = parts
        (s, g), below = bounds(base, size, bound)
        power = abs(top) if bottom == 1 else (abs(top) + 1) // 2 + (top < 0)
        if (top < 0 or bottom == 2) and bound & set(base.free):
            raise Unsupported("a denominator or root that changes with an index")
        weight = sum((c[0] + c[1]) * m for c, m in below.values())
        if top > 0:
            return (s * power, g * power), {k: (c, m * power) for k, (c, m) in below.items()}
        return (weight * power, 0), {base: ((s, g), power)}
    if operation in {"+", "*"}:
        found = [bounds(part, size, bound) for part in parts]
        common = {}
        for _, below in found:
            for k, (c, m) in below.items():
                before = common.get(k, (c, 0))[1]
                common[k] = (c, max(before, m) if operation == "+" else before + m)
        if operation == "*":
            return (sum(t[0] for t, _ in found), sum(t[1] for t, _ in found)), common
        lifted = []
        for (s, g), below in found:
            rest = [(c, m - below.get(k, (c, 0))[1]) for k, (c, m) in common.items()]
            lifted.append((s + sum(c[0] * m for c, m in rest), g + sum(c[1] * m for c, m in rest)))
        return (max(s for s, _ in lifted), max(g for _, g in lifted)), common
    if operation in {"exp", "log"}:
        raise Unsupported(operation)
    return (0, 0), {}


def deciding(difference, indices, sizes):
    """Sizes at which an identity decides all, or None where this program knows none that it can add up."""
    ranges, cost = {}, 1
    for size in sizes:
        try:
            sums, power = bounds(difference, size)[0]
        except Unsupported:
            return None
        start, free = max(2, named(difference)), named(difference) + list(indices.values()).count(size)
        ranges[size] = range(start, start + sums + free + power + 1)
        cost *= sum(ranges[size])
    return ranges if cost <= BUDGET else None


def identity(check, draw):
    """Checks left = right; what was shown, in words."""
    known = {}
    left, right = formula(check["left"], known), formula(check["right"], known)
    indices, positive = check["indices"], set(check["positive"])
    if set(left.free) | set(right.free) != set(indices):
        raise Refused("the free indices are not those that the certificate names")
    allowed = {formula(t, known) for t in check["nonzero"]}
    for node in (*parts_of(left), *parts_of(right)):
        divides = node.operation == "^" and (node.parts[1] < 0 or node.parts[2] == 2)
        if divides and node.parts[0] not in allowed and node.parts[0].operation not in {"size", "number"}:
            raise Refused("it divides by, or takes the root of, what no hypothesis allows")
    difference = formula(["+", check["left"], ["*", -1, check["right"]]], known)
    place = {"sum": 1, "size": 0}
    sizes = {p.parts[place[p.operation]] for p in parts_of(difference) if p.operation in place} | set(indices.values())
    ranges = deciding(difference, indices, sorted(sizes))
    try:
        compare(left, right, indices, ranges or dict.fromkeys(sorted(sizes), SMALL), lambda at: _Residues(draw, at))
        return "for all sizes" if ranges or not sizes else f"at sizes {SMALL}"
    except (Unsupported, Refused):
        try:
            compare(
                left, right, indices, dict.fromkeys(sorted(sizes), SMALL[1:]), lambda at: _Reals(draw, at, positive)
            )
        except Unsupported as reason:
            raise Refused(f"it cannot be decided here: {reason}") from None
        return f"to {BITS // 4} digits" + (f" at sizes {SMALL[1:]}" if sizes else "")


def compare(left, right, indices, ranges, numbers_at):
    """Compares both sides at random points, for all sizes and all patterns of equal and different free indices."""
    for point in itertools.product(*ranges.values()):
        sizes, largest = dict(zip(ranges, point, strict=True)), max(named(left), named(right))
        kinds = list(indices.values())
        # entries are random, so an index that differs from those before it may as well be the next number
        places = [range(1, min(sizes[k], largest + 1 + kinds[:n].count(k)) + 1) for n, k in enumerate(kinds)]
        for trial in range(4):
            numbers, memory = numbers_at(sizes), {}
            try:
                for place in itertools.product(*places):
                    at = dict(zip(indices, place, strict=True))
                    if not numbers.same(*(value(side, numbers, at, memory) for side in (left, right))):
                        raise Refused("the two sides differ" + (f" at {sizes}, {at}" if sizes or at else ""))
                break
            except ZeroDivisionError:
                if trial == 3:
                    raise Unsupported(f"a denominator is zero at {sizes}") from None


def counterexample(check, draw):
    """Both sides from the instance, where the certificate has their formulas, and that they differ."""
    known, nothing = {}, _Reals(draw)
    instance = {(name,): value(formula(tree, known), nothing, {}, {}) for name, tree in check["instance"].items()}
    sides = [value(formula(check[side], known), nothing, {}, {}) for side in ("left", "right")]
    if sides[0][0] <= sides[1][1] and sides[1][0] <= sides[0][1]:
        raise Refused("the two sides of a counterexample do not differ")
    if "formulas" not in check:
        return "two exact numbers that differ"
    at = _Reals(draw, known=instance)
    for tree, stated in zip(check["formulas"], sides, strict=True):
        found = value(formula(tree, known), at, {}, {})
        if at.known.keys() != instance.keys():
            raise Refused("a side of a counterexample uses what its instance does not have")
        if not at.same(found, stated):
            raise Refused("a side of a counterexample does not follow from its instance")
    return "both sides from the instance"


def rank(check, draw):
    """The rank of a matrix of residues a + b√−1, by elimination."""
    p, rows, pivots = check["prime"], [[tuple(entry) for entry in row] for row in check["rows"]], []
    if p % 4 != 3 or any(p % q == 0 for q in range(3, isqrt(p) + 1, 2)):
        raise Refused(f"{p} is no prime of the form 4k + 3")
    for column in range(len(rows[0])):
        top = next((row for row in rows if row[column][0] % p or row[column][1] % p), None)
        if top is None:
            continue
        pivots.append(column)
        rows.remove(top)
        a, b = top[column]
        scale = pow(a * a + b * b, -1, p)
        for row in rows:
            c, d = row[column]
            x, y = (c * a + d * b) * scale % p, (d * a - c * b) * scale % p
            if x or y:
                row[:] = [
                    ((v - x * t + y * u) % p, (w - x * u - y * t) % p) for (v, w), (t, u) in zip(row, top, strict=True)
                ]
    if pivots != check["pivots"] or len(pivots) != check["rank"]:
        raise Refused(f"the rank is {len(pivots)}, not {check['rank']}, or other columns have the pivots")
    return f"rank {len(pivots)} modulo {p}"


KINDS = {"identity": identity, "counterexample": counterexample, "rank": rank}


def proof(data, lemmas, draw):
    """Each step of a proof with what was shown of it: nothing where it rests on words."""
    dropped = [h for h in data["hypotheses"] if h["without"]]
    if not data["steps"] or (data["establishes"] == "conditional" and not dropped):
        raise Refused("a proof without steps, or conditional without a counterexample to a dropped hypothesis")
    found = [(f"without: {h['text']}", {counterexample(h["without"], draw)}) for h in dropped]
    for step in data["steps"]:
        shown = set()
        for check in step["checks"]:
            if check["kind"] == "lemma" and check["name"] in lemmas:
                shown.add(f"by {check['name']}")
                continue
            if check["kind"] not in KINDS:
                raise Refused(f"{step['text']}: nothing here is a check: {check['kind']!r}, {check.get('name')!r}")
            try:
                shown.add(KINDS[check["kind"]](check, draw))
            except Refused as reason:
                raise Refused(f"{step['text']}: {reason}") from None
        found.append((step["text"], shown))
    return found


def certificate(data):
    """Steps of a certificate, those of lemmas first, with what was shown of each; `Refused` where it does not hold."""
    if data.get("schema") != "lngeom.certificate/1":
        raise Refused("no certificate of lngeom (schema lngeom.certificate/1)")
    draw, found, lemmas = random.Random(json.dumps(data, sort_keys=True)), [], set()
    for name, lemma in data["lemmas"].items():
        found += [(f"{name}: {text}", shown) for text, shown in proof(lemma, lemmas, draw)]
        lemmas.add(name)
    refutes = data["establishes"] in {"refuted", "slip"}
    if not (data["counterexample"] or data["proof"]) or (refutes and not (data["counterexample"] and data["proof"])):
        raise Refused("no proof, or a refutation without a counterexample and a proof of what is true")
    if data["counterexample"]:
        found.append(("counterexample", {counterexample(data["counterexample"], draw)}))
    return found + (proof(data["proof"], lemmas, draw) if data["proof"] else [])


def main(arguments):
    """Checks files, prints what each rests on, and returns the exit status."""
    paths = [Path(name) for name in arguments if name != "--quiet"]
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    status, checked, words = 0 if files else 2, 0, 0
    for file in files:
        try:
            steps = certificate(json.loads(file.read_text("utf-8")))
        except Refused as reason:
            status, steps = max(status, 1), []
            print(f"{file.name}: REFUSED: {reason}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            status, steps = 2, []
            print(f"{file.name}: no certificate: {error!r}")
        checked, words = checked + sum(bool(s) for _, s in steps), words + sum(not s for _, s in steps)
        for text, shown in () if "--quiet" in arguments else steps:
            print(f"{file.stem}: {'; '.join(sorted(shown)) or 'WORDS'}: {text}")
    print(
        f"{len(files)} certificates: {checked} steps checked, {words} rest on words or on lngeom alone"
        if files
        else __doc__
    )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
