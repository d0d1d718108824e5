r"""Linear fields on the stream, dx = Xx, that norms, residual sums and tied tables allow.

A norm lets its normalized input n move by a skew S (with S1 = 0 where it centres) and its scale λ be lost (ε = 0):
X = S + λ on what it reads, up to columns along 1 where it centres. A norm that writes, γ⊙n + β, moves by XD n + Xβ,
so XD = diag(η) + DS′ with η = dγ and S′ the field of its own input. The table of tokens that is also the head needs
diag(η) + DS + TᵀD = 0, T the field of the table. All are linear in the unknowns: the fields are one kernel.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from lngeom.transformers.arrays import Change, StackArrays, contract
from lngeom.transformers.description import Linear, Norm, Stack
from lngeom.transformers.readings import Reading, head_norm, readings, unseen_along_one

LARGEST = 1500
"""Unknowns up to which the equations are solved."""


class TooManyUnknowns(Exception):
    """The equations of the fields are too large to be solved."""


class Fields:
    """Unknown matrices, each in the span of a basis, and linear equations between them."""

    def __init__(self, width: int):
        self.width = width
        self.bases: dict[str, np.ndarray] = {}
        self.equations: list[list[tuple[str, np.ndarray, np.ndarray, bool]]] = []

    def unknown(self, name: str, basis: Float[np.ndarray, "n d d"]) -> str:
        """An unknown Σ c_i basis_i."""
        self.bases[name] = basis
        return name

    def equation(self, *terms: tuple[str, np.ndarray, np.ndarray, bool]) -> None:
        """Σ L · M · R = 0 over terms (name of M, L, R, whether M is transposed)."""
        self.equations.append([t for t in terms if len(self.bases[t[0]])])

    def solve(self, bases: dict[str, np.ndarray]) -> dict[str, Float[np.ndarray, "K d d"]]:
        """Fields with each unknown in the basis given here, zero where it is left out."""
        names = [n for n in self.bases if n in bases and len(bases[n])]
        sizes = [len(bases[n]) for n in names]
        total = sum(sizes)
        if total > LARGEST:
            raise TooManyUnknowns
        rows = []
        for terms in self.equations:
            row = {n: np.zeros((len(bases[n]), self.width, self.width)) for n in names}
            for name, left, right, transposed in terms:
                if name in row:
                    inner = bases[name].transpose(0, 2, 1) if transposed else bases[name]
                    row[name] += left @ inner @ right
            if row:
                rows.append(np.concatenate([v.reshape(len(v), -1) for v in row.values()]).T)
        kernel = np.eye(total)
        if rows and total:
            triangle = np.linalg.qr(np.concatenate([*rows, np.zeros((total, total))]), mode="r")  # the same kernel
            _, s, right = np.linalg.svd(triangle)
            kernel = right[s <= 1e-10 * max(s[0], 1.0)]
        found, start = {}, 0
        for name, size in zip(names, sizes, strict=True):
            found[name] = contract("kc,cij->kij", kernel[:, start : start + size], bases[name])
            start += size
        empty = np.zeros((len(kernel), self.width, self.width))
        return {name: found.get(name, empty) for name in self.bases}

    def families(
        self, steps: list[tuple[str, dict[str, np.ndarray]]]
    ) -> Iterator[tuple[str, int, dict[str, Float[np.ndarray, "K d d"]]]]:
        """What each step's bases allow beyond those before it: (code, how many, fields), where there is anything."""
        known = np.zeros((len(self.bases) * self.width**2, 0))
        for code, bases in steps:
            found = self.solve(bases)
            known, new = _beyond(known, np.stack(list(found.values()), 1).reshape(-1, len(known)).T)
            count = new.shape[1]
            if count:
                split = new.T.reshape(count, -1, self.width, self.width)
                yield code, count, dict(zip(found, split.transpose(1, 0, 2, 3), strict=True))


def identity(width: int, present: bool = True) -> Float[np.ndarray, "n d d"]:
    """The scale, or nothing."""
    return np.eye(width)[None][: int(present)]


def skew(width: int, centred: bool) -> Float[np.ndarray, "n d d"]:
    """Skew matrices, on the complement of 1 where centred."""
    frame = complement(width) if centred else np.eye(width)
    k = frame.shape[1]
    basis = [np.outer(frame[:, i], frame[:, j]) for i in range(k) for j in range(i)]
    return np.array([b - b.T for b in basis]).reshape(-1, width, width)


def complement(width: int) -> Float[np.ndarray, "d e"]:
    """Orthonormal columns orthogonal to 1."""
    return np.linalg.svd(np.ones((1, width)))[2][1:].T


def centring(width: int, present: bool = True) -> Float[np.ndarray, "d d"]:
    """P = I − 11ᵀ/d, or I."""
    return np.eye(width) - present / width


def diagonals(width: int, present: bool) -> Float[np.ndarray, "n d d"]:
    """Diagonal matrices: changes of a gain, if there is one."""
    return (np.eye(width)[:, :, None] * np.eye(width)[None])[: width * present]


def shears(width: int, present: bool) -> Float[np.ndarray, "n d d"]:
    """1uᵀ for every u."""
    return np.stack([np.outer(np.ones(width), e) for e in np.eye(width)])[: width * present]


def everything(width: int) -> Float[np.ndarray, "n d d"]:
    """All matrices."""
    return np.eye(width * width).reshape(-1, width, width)


def stream_fields(arrays: StackArrays) -> Iterator[tuple[str, list[Change], int]]:
    """Families of changes that move the stream linearly: (code, changes, how many).

    Raises:
        TooManyUnknowns: where the equations are too large.
    """
    stack = arrays.stack
    post = any(b.placing == "post" for b in stack.blocks)
    fields, steps = (_post if post else _shared)(arrays)
    lift = _lift_post if post else _lift_shared
    for code, count, found in fields.families(steps):
        yield code, lift(arrays, found), count


def _beyond(
    known: Float[np.ndarray, "n k"], found: Float[np.ndarray, "n m"]
) -> tuple[Float[np.ndarray, "n l"], Float[np.ndarray, "n p"]]:
    """Orthonormal columns of both, and of what the second adds to the first."""
    if not found.shape[1]:
        return known, found
    rest = found - known @ (known.T @ found)
    left, s, _ = np.linalg.svd(rest, full_matrices=False)
    new = left[:, s > 1e-9 * np.linalg.norm(found, 2)]
    return np.concatenate([known, new], 1), new


def writing_norms(stack: Stack) -> list[tuple[str, Norm, tuple[Linear, ...]]]:
    """Norms that write to a shared stream, by path, with the linear maps that write to them."""
    found = []
    for i, block in enumerate(stack.blocks):
        for name, branch, norm in (
            ("attention", block.attention, block.attention_writing_norm),
            ("feed_forward", block.feed_forward, block.feed_forward_writing_norm),
        ):
            if norm is not None:
                found.append((f"blocks.{i}.{name}_writing_norm", norm, tuple(m for _, m in branch.writers())))
    return found


def reading_norms(stack: Stack) -> list[Norm]:
    """Norms that read a shared stream."""
    norms = [n for b in stack.blocks if b.placing != "post" for n in (b.attention_norm, b.feed_forward_norm)]
    return [n for n in (*norms, stack.final) if n is not None]


def can_turn_freely(stack: Stack) -> bool:
    """Whether nothing but reading norms with linear readers restricts the fields of the stream."""
    placed = all(b.placing == "pre" for b in stack.blocks)
    return placed and not stack.tied and stack.embedding_norm is None


def stream_scale(arrays: StackArrays) -> list[Change] | None:
    """Changes that scale a shared stream, in one direction; None where ε or the lack of a gain forbids it."""
    stack, eye = arrays.stack, np.eye(arrays.width)[None]
    written = [*writing_norms(stack)]
    if stack.embedding_norm is not None:
        written.append(("embedding_norm", stack.embedding_norm, ()))
    needed = [norm for _, norm, _ in written]
    if stack.tied and stack.embedding_norm is None and (norm := head_norm(stack)) is not None:
        needed.append(norm)
    norms = reading_norms(stack)
    if not norms or any(n.eps != 0 for n in norms) or any(n.gain is None for n in needed):
        return None
    zero = np.zeros_like(eye)
    names = ("S", "u", "S embedding_norm", "u embedding", "λ embedding", *(f"S {path}" for path, *_ in written))
    found = dict.fromkeys(names, zero) | {"λ": eye, "η head": zero}
    for path, norm, _ in written:
        found[f"η {path}"] = np.diag(arrays.gain(norm))[None]
    if stack.tied and stack.embedding_norm is None and (norm := head_norm(stack)) is not None:
        found["η head"] = -np.diag(arrays.gain(norm))[None]
    return _lift_shared(arrays, found)


def turn_stream(arrays: StackArrays, rotation: Any) -> list[Change]:
    """Changes that turn the stream by skew matrices [K d d], where only reading norms with linear readers meet it."""
    stack = arrays.stack
    changes = move_tables(arrays, rotation)
    for block in stack.blocks:
        for branch in (block.attention, block.feed_forward):
            changes += [c for _, m in branch.writers() for c in write(arrays, m, rotation)]
    last = len(list(readings(arrays))) - (stack.head.transform is not None)
    for reading in list(readings(arrays))[:last]:
        changes += fold_rotation(arrays, reading, rotation)
    return changes


def _shared(arrays: StackArrays) -> tuple[Fields, list[tuple[str, dict[str, np.ndarray]]]]:
    """Unknowns and equations where one field moves the whole stream: all placings but post-norm."""
    stack, d = arrays.stack, arrays.width
    norms = reading_norms(stack)
    centred = any(n.centres for n in norms)
    all_centre = all(n.centres for n in norms)
    direct = any(b.placing == "outer" for b in stack.blocks)
    fields, eye = Fields(d), np.eye(d)
    fields.unknown("S", skew(d, centred))
    fields.unknown("λ", identity(d, all(n.eps == 0 for n in norms)))
    fields.unknown("u", shears(d, all_centre and (stack.tied or direct)))
    x = [(name, eye, eye, False) for name in ("S", "λ", "u")]
    table = x
    gains, inner = [], []
    written = list(writing_norms(stack))
    if (norm := stack.embedding_norm) is not None:
        written.append(("embedding_norm", norm, ()))
        fields.unknown("λ embedding", identity(d, norm.eps == 0))
        fields.unknown("u embedding", shears(d, norm.centres and stack.tied))
        table = [(f"{n} embedding_norm" if n == "S" else f"{n} embedding", eye, eye, False) for n in ("S", "λ", "u")]
    for path, norm, _ in written:
        gains.append(fields.unknown(f"η {path}", diagonals(d, norm.gain is not None)))
        inner.append(fields.unknown(f"S {path}", skew(d, norm.centres)))
        left, right = centring(d, unseen_along_one(stack, path)), centring(d, norm.centres)
        D = np.diag(arrays.gain(norm))
        terms = [(name, left, D @ right, False) for name, *_ in x]
        fields.equation(*terms, (gains[-1], -left, right, False), (inner[-1], -left @ D, right, False))
    _tie(arrays, fields, gains, table, "S")
    b = fields.bases
    every = {n: b[n] for n in gains}
    steps = [
        ("cE", {n: b[n] for n in ("λ embedding", "η head") if n in b}),
        ("c", {"λ": b["λ"], **every}),
        ("R", {n: b[n] for n in ("S", *inner)}),
        ("z" if direct else "w", {n: b[n] for n in ("u", "u embedding") if n in b}),
        ("i", b),
    ]
    return fields, [(code, bases) for code, bases in steps if bases]


def _tie(arrays: StackArrays, fields: Fields, gains: list[str], table: list, rotation: str) -> None:
    """The equation of a token table that is also the head."""
    stack, d = arrays.stack, arrays.width
    if not stack.tied:
        return
    norm = head_norm(stack)
    assert norm is not None
    gains.append(fields.unknown("η head", diagonals(d, norm.gain is not None)))
    D, right, eye = np.diag(arrays.gain(norm)), centring(d, norm.centres), np.eye(d)
    terms = [("η head", eye, right, False), *((name, eye, D @ right, True) for name, *_ in table)]
    if stack.head.transform is None:
        terms.append((rotation, D, right, False))
    fields.equation(*terms)


def _lift_shared(arrays: StackArrays, found: dict[str, np.ndarray]) -> list[Change]:
    """Changes of the parameters that belong to fields of a shared stream."""
    stack = arrays.stack
    X = found["S"] + found["λ"] + found["u"]
    changes: list[Change] = []
    written = {path: (norm, maps) for path, norm, maps in writing_norms(stack)}
    for path, (norm, maps) in written.items():
        changes += _move_norm(arrays, norm, found[f"η {path}"], X)
        changes += [c for m in maps for c in write(arrays, m, found[f"S {path}"])]
    for i, block in enumerate(stack.blocks):
        for name, branch in (("attention", block.attention), ("feed_forward", block.feed_forward)):
            if f"blocks.{i}.{name}_writing_norm" not in written:
                changes += [c for _, m in branch.writers() for c in write(arrays, m, X)]
    table = X
    if (norm := stack.embedding_norm) is not None:
        changes += _move_norm(arrays, norm, found["η embedding_norm"], X)
        table = found["S embedding_norm"] + found["λ embedding"] + found["u embedding"]
    changes += move_tables(arrays, table)
    for reading in readings(arrays):
        if reading.kind == "folds" and (reading.norm is not head_norm(stack) or stack.head.transform is None):
            changes += fold_rotation(arrays, reading, found["S"])
        elif reading.kind == "direct":
            changes += [arrays.change_matrix(r.part, -(arrays.matrix(r.part) @ X)) for r in reading.readers]
    return changes + _move_tied(arrays, found, table)


def _move_tied(arrays: StackArrays, found: dict[str, np.ndarray], table: np.ndarray) -> list[Change]:
    stack = arrays.stack
    if not stack.tied:
        return []
    norm = head_norm(stack)
    assert norm is not None
    return _move_norm(arrays, norm, found["η head"], -table.transpose(0, 2, 1))


def _move_norm(arrays: StackArrays, norm: Norm, diagonal: np.ndarray, field: np.ndarray) -> list[Change]:
    """Dγ from diag(η), and dβ = Xβ."""
    changes = []
    if norm.gain is not None:
        changes.append(arrays.change_array(norm.gain, np.einsum("kii->ki", diagonal)))
    if norm.bias is not None:
        changes.append(arrays.change_array(norm.bias, field @ arrays.bias(norm)))
    return changes


def move_tables(arrays: StackArrays, field: Any) -> list[Change]:
    """DE = EXᵀ of every table."""
    found = []
    for table in arrays.stack.tables:
        rows = arrays.values[table.weight][table.offset :]
        found.append(arrays.change_rows(table, contract("nd,Ked->Kne", rows, field)))
    return found


def write(arrays: StackArrays, part: Linear, field: Any) -> list[Change]:
    """DW = XW and db = Xb of a map that writes."""
    changes = [arrays.change_matrix(part, contract("Kij,jo->Kio", field, arrays.matrix(part)))]
    if part.bias is not None:
        changes.append(arrays.change_offsets(part, contract("Kij,j->Ki", field, arrays.offsets(part))))
    return changes


def fold_rotation(arrays: StackArrays, reading: Reading, rotation: Any) -> list[Change]:
    """DW = −W D S D⁻¹ of the readers and dβ = D S D⁻¹ β of their norm, where its input turns by S."""
    norm = reading.norm
    assert norm is not None
    gain = arrays.gain(norm)
    turned = contract("i,Kij,j->Kij", gain, rotation, 1 / gain)
    changes = [
        arrays.change_matrix(r.part, -contract("oi,Kij->Koj", arrays.matrix(r.part), turned)) for r in reading.readers
    ]
    if norm.bias is not None:
        changes.append(arrays.change_array(norm.bias, contract("Kij,j->Ki", turned, arrays.bias(norm))))
    return changes


def _post(arrays: StackArrays) -> tuple[Fields, list[tuple[str, dict[str, np.ndarray]]]]:
    """Unknowns and equations of a post-norm stack: a field for each piece of the stream between norms."""
    stack, d = arrays.stack, arrays.width
    fields, eye = Fields(d), np.eye(d)
    gains: list[str] = []
    norms = _post_norms(stack)
    pieces = []
    table = [("X 0", eye, eye, False)]
    if (norm := stack.embedding_norm) is not None:
        fields.unknown("S embedding", skew(d, norm.centres))
        fields.unknown("λ embedding", identity(d, norm.eps == 0))
        fields.unknown("u embedding", shears(d, norm.centres and stack.tied))
        table = [(f"{n} embedding", eye, eye, False) for n in ("S", "λ", "u")]
    for j, norm in enumerate(norms):
        pieces.append(fields.unknown(f"X {j}", everything(d)))
        fields.unknown(f"S {j}", skew(d, norm.centres))
        fields.unknown(f"λ {j}", identity(d, norm.eps == 0))
        left = centring(d, norm.centres)
        fields.equation((f"X {j}", left, eye, False), (f"S {j}", -left, eye, False), (f"λ {j}", -left, eye, False))
    for j, norm in enumerate((stack.embedding_norm, *norms[:-1])):
        if norm is not None:
            inner = "S embedding" if j == 0 else f"S {j - 1}"
            gains.append(fields.unknown(f"η {j}", diagonals(d, norm.gain is not None)))
            D, right = np.diag(arrays.gain(norm)), centring(d, norm.centres)
            fields.equation(
                (f"X {j}", eye, D @ right, False), (f"η {j}", -eye, right, False), (inner, -D, right, False)
            )
    _tie(arrays, fields, gains, table, f"S {len(norms) - 1}")
    b = fields.bases
    scales = {n: identity(d) for n in pieces} | {n: b[n] for n in (*b,) if n[0] in "λη"}
    first = [("cE", {n: b[n] for n in ("λ embedding", "η head") if n in b})] if stack.embedding_norm else []
    alone = {"X 0": identity(d), "λ 0": b["λ 0"]} | {n: b[n] for n in ("η head",) if n in b}
    if not stack.embedding_norm:
        first = [("c", alone), ("z", {"X 0": shears(d, True)})]
    turns = {n: v for n, v in b.items() if not n.startswith("η")}
    return fields, [*first, ("cN", scales), ("R", turns), ("i", b)]


def _post_norms(stack: Stack) -> list[Norm]:
    return [n for b in stack.blocks for n in (b.attention_norm, b.feed_forward_norm) if n is not None]


def _lift_post(arrays: StackArrays, found: dict[str, np.ndarray]) -> list[Change]:
    """Changes of the parameters that belong to fields of a post-norm stack."""
    stack = arrays.stack
    changes: list[Change] = []
    if stack.embedding_norm is None:
        table = found["X 0"]
    else:
        table = found["S embedding"] + found["λ embedding"] + found["u embedding"]
        changes += _move_norm(arrays, stack.embedding_norm, found["η 0"], found["X 0"])
    changes += move_tables(arrays, table)
    norms = _post_norms(stack)
    for j, norm in enumerate(norms[:-1], 1):
        changes += _move_norm(arrays, norm, found[f"η {j}"], found[f"X {j}"])
    inner = [r for r in readings(arrays) if r.branch is not None]
    for j, reading in enumerate(inner):
        X = found[f"X {j}"]
        changes += [arrays.change_matrix(r.part, -(arrays.matrix(r.part) @ X)) for r in reading.readers]
        assert reading.branch is not None
        changes += [c for _, m in reading.branch.writers() for c in write(arrays, m, X)]
    last = next(r for r in readings(arrays) if r.branch is None)
    if last.kind == "folds":
        changes += fold_rotation(arrays, last, found[f"S {len(norms) - 1}"])
    return changes + _move_tied(arrays, found, table)
