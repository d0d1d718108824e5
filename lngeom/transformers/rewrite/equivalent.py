"""Whether two checkpoints are one model: canonical forms compared, with heads, units and experts matched."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from lngeom._core.numerics import tolerance
from lngeom.transformers.description import (
    Attention,
    FeedForward,
    Linear,
    Mixture,
    Norm,
    Stack,
    Table,
    check_stack,
    walk,
)
from lngeom.transformers.forward import logits
from lngeom.transformers.parts import shown
from lngeom.transformers.readings import output_heads
from lngeom.transformers.rewrite.array_files import check_floats
from lngeom.transformers.rewrite.canonical import Form
from lngeom.transformers.rewrite.certificate import positions

Model = tuple[Stack, Mapping[str, Any]]
"""A description and its arrays by name."""

PROBES = (4, 16)
"""Sequences and positions on which both models are compared."""


@dataclass(frozen=True)
class Equivalence:
    """What the comparison of two checkpoints found.

    Attributes:
        verdict: "equivalent", "different", or "undecided" where canonical forms differ and logits do not.
        distance: Frobenius distance of the canonical forms, relative to the norm of the first.
        tolerance: distance up to which they count as equal: rounding of the stored dtypes, divided by the gap.
        gap: the smaller of both canonical forms' gaps.
        narrowest: where that gap is.
        logits: largest difference of log-probabilities on random tokens, relative to the largest.
        farthest: the part whose canonical forms are farthest apart.
    """

    verdict: Literal["equivalent", "different", "undecided"]
    distance: float
    tolerance: float
    gap: float
    narrowest: str
    logits: float
    farthest: str

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.verdict}: canonical forms {self.distance:.1e} apart (tolerance {self.tolerance:.1e}, farthest "
            f"{self.farthest}), log-probabilities {self.logits:.1e}, smallest gap {self.gap:.1e} at {self.narrowest}"
        )


def equivalent(a: Model, b: Model, *, seed: int = 0) -> Equivalence:
    """Whether two checkpoints differ by a symmetry only: by continuous ones, and permutations of heads, units, experts.

    Names and layouts of the arrays may differ.

    Args:
        a: description and weights of one.
        b: of the other.
        seed: of the random tokens on which the logits are compared.

    Returns:
        The verdict, the distance without gauge freedom, and the evidence.

    Raises:
        TypeError: if a model is no pair of a description and arrays.
        ValueError: if the descriptions have other parts or sizes, or have no canonical form.
    """
    for model in (a, b):
        if not isinstance(model, tuple) or len(model) != 2:
            raise TypeError(f"a model must be a pair of description and arrays, as lg.rewrite.load; got {shown(model)}")
        check_stack(model[0])
        model[0].check(model[1])
        check_floats(model[0].arrays, model[1])
    if _skeleton(a[0]) != _skeleton(b[0]):
        raise ValueError("the descriptions differ in more than names and layouts; canonical forms are for one of both")
    forms = Form(*a), Form(*b)
    shapes = [[v.shape for _, v in _parts(f)] for f in forms]
    if shapes[0] != shapes[1]:
        raise ValueError("the arrays of the two models differ in size")
    _match(*forms)
    gaps = [(f.gap, f.narrowest) for f in forms]
    gap, narrowest = min(gaps)
    stored = max(tolerance(model[1][name].dtype) for model in (a, b) for name in model[0].arrays)
    allowed = stored / max(gap, 1e-300)
    apart = {path: float(np.linalg.norm(v - w)) for (path, v), (_, w) in zip(*map(_parts, forms), strict=True)}
    size = np.sqrt(sum(np.linalg.norm(v) ** 2 for _, v in _parts(forms[0])))
    distance = float(max(np.linalg.norm(list(apart.values())) / size, _farthest_row(*forms)))
    change = _probe(a, b, seed)
    if change > max(stored, 1e-9):
        verdict = "different"
    elif distance <= min(allowed, 1e-2):
        verdict = "equivalent"
    else:
        verdict = "undecided"
    return Equivalence(verdict, distance, allowed, gap, narrowest, change, max(apart, key=lambda path: apart[path]))


def _skeleton(part: Any) -> Any:
    """A description without names and layouts."""
    if isinstance(part, tuple):
        return tuple(map(_skeleton, part))
    if isinstance(part, Linear):
        return "linear", part.bias is not None
    if isinstance(part, Norm):
        return part.kind, part.gain is not None, part.bias is not None, part.eps
    if not is_dataclass(part):
        return part
    names = {"weight", "temperature", "sink", "relative"}
    inner = ((f.name, getattr(part, f.name)) for f in fields(part))
    return type(part).__name__, *(v is not None if name in names else _skeleton(v) for name, v in inner)


def _parts(form: Form) -> list[tuple[str, np.ndarray]]:
    """Values by path, in an order that does not depend on names."""
    found: list[tuple[str, np.ndarray]] = []
    for path, part in walk(form.stack):
        if isinstance(part, Linear):
            found += [(f"{path} weight", form.matrix(part)), (f"{path} bias", form.offsets(part))]
        elif isinstance(part, Norm):
            found += [(f"{path} gain", form.gain(part)), (f"{path} bias", form.bias(part))]
        elif isinstance(part, Table):
            found.append((path, form.values[part.weight][part.offset :] * part.scale))
        elif isinstance(part, Attention):
            for name in (part.sink, part.relative):
                if name is not None:
                    found.append((f"{path} {name}", form.values[name]))
    return found


def _farthest_row(a: Form, b: Form) -> float:
    """Largest distance of two rows of a table, in units of its mean row: probes see few tokens and positions."""
    found = [0.0]
    for (_, x), (_, y) in zip(walk(a.stack), walk(b.stack), strict=True):
        if isinstance(x, Table) and isinstance(y, Table):
            v, w = a.values[x.weight][x.offset :] * x.scale, b.values[y.weight][y.offset :] * y.scale
            found.append(float(np.linalg.norm(v - w, axis=1).max() / np.sqrt(np.mean(np.sum(v**2, 1)))))
    return max(found)


def _match(a: Form, b: Form) -> None:
    """Permutes heads, units and experts of b to lie nearest to those of a."""
    for first, second in zip(a.stack.blocks, b.stack.blocks, strict=True):
        x, y = first.attention, second.attention
        if x.alibi is None or len(set(x.alibi)) == 1:
            _match_heads(a, x, b, y)
        one, other = first.feed_forward, second.feed_forward
        pairs = [(one, other)]
        if isinstance(one, Mixture) and isinstance(other, Mixture):
            b.permute_experts(other, _nearest(_experts(a, one), _experts(b, other)))
            pairs = list(zip(one.experts, other.experts, strict=True))
        for x, y in pairs:
            assert isinstance(x, FeedForward)
            assert isinstance(y, FeedForward)
            b.permute_units(y, _nearest(_units(a, x), _units(b, y)))


def _experts(form: Form, mixture: Mixture) -> np.ndarray:
    return np.array([np.sort(np.linalg.norm(form.matrix(e.down), axis=0)) for e in mixture.experts])


def _match_heads(a: Form, x: Attention, b: Form, y: Attention) -> None:
    n, m = x.kv_heads, x.group
    outputs, values = [], []
    for form, part in ((a, x), (b, y)):
        outputs.append(output_heads(form, part).reshape(n, m, -1))
        values.append(np.concatenate([form.matrix(part.value).reshape(n, -1), outputs[-1].sum(1)], 1))
    groups = _nearest(*values)
    inside = np.tile(np.arange(m), (n, 1))
    for g, old in enumerate(groups):
        inside[old] = _nearest(outputs[0][g], outputs[1][old])
    b.permute_heads(y, groups, inside)


def _units(form: Form, part: FeedForward) -> np.ndarray:
    rows = [form.matrix(part.up), form.offsets(part.up)[:, None], form.matrix(part.down).T]
    if part.gate is not None:
        rows.append(form.matrix(part.gate))
    return np.concatenate(rows, 1)


def _nearest(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The order of the rows of the second that lies nearest to the first."""
    squares = np.sum(first**2, 1)[:, None] + np.sum(second**2, 1)[None] - 2 * first @ second.T
    return scipy.optimize.linear_sum_assignment(squares)[1]


def _probe(a: Model, b: Model, seed: int) -> float:
    """Largest relative difference of log-probabilities on random tokens."""
    stack, weights = a
    samples, length = PROBES
    vocabulary = weights[stack.tables[0].weight].shape[0]
    length = min(length, positions(stack, lambda name: weights[name].shape) or length)
    tokens = np.random.default_rng(seed).integers(0, vocabulary, (samples, length))
    with jax.enable_x64(True):
        found = []
        for stack, weights in (a, b):
            wide = {name: np.asarray(w, np.float64) for name, w in weights.items()}
            found.append(np.asarray(jax.nn.log_softmax(logits(stack, wide, jnp.asarray(tokens)))))
    return float(np.max(np.abs(found[0] - found[1])) / np.max(np.abs(found[0])))
