"""Applying steps to a model: the plan, the refusals and the certificate."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from lngeom._core import numerics
from lngeom._core.arguments import check_count, check_nonnegative
from lngeom._core.text import counted
from lngeom.transformers.description import Stack
from lngeom.transformers.parts import shown
from lngeom.transformers.rewrite.array_files import check_floats
from lngeom.transformers.rewrite.certificate import (
    Certificate,
    Difference,
    Rounded,
    certify,
    compare,
    difference,
    everything,
    not_finite,
    outputs,
    probe_tokens,
    reach,
)
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.steps import AbstractStep, Refused, check_steps

PROBES = (4, 16)
"""Sequences and positions of the default probes."""


@dataclass(frozen=True)
class Plan:
    """Steps that were found to be exact for a model, with nothing computed yet.

    Attributes:
        steps: the steps.
        before: description of the original.
        stack: description of the rewritten model.
        draft: its arrays.
        tokens: probes.
    """

    steps: tuple[AbstractStep, ...]
    before: Stack
    stack: Stack
    draft: Draft
    tokens: Int[np.ndarray, "N T"]

    @property
    def moves_logits(self) -> bool:
        """Whether only log-probabilities stay."""
        return any(step.moves_logits for step in self.steps)

    @property
    def _count(self) -> int:
        """How many arrays there are, those that are left out included."""
        return len(self.draft) + len(self.draft.dropped)

    def changes(self) -> dict[str, int]:
        """What is done, and to how many arrays."""
        return dict(Counter(label for found in self.draft.labels.values() for label in found))

    def describe(self) -> str:
        """The steps, and what happens to how many arrays."""
        steps = ", ".join(step.word for step in self.steps)
        count = len(self.draft.labels)
        rows = [f"plan: {steps}; {count} of {counted(self._count, 'array')} change{'s' * (count == 1)}"]
        rows += [f"  {count:5d} × {label}" for label, count in self.changes().items()]
        return "\n".join(rows)

    def to_json(self) -> dict[str, Any]:
        """The steps, and what happens to how many arrays, as JSON takes them."""
        return {"steps": [step.word for step in self.steps], "changes": self.changes(), "arrays": self._count}

    def certify(self) -> Certificate:
        """Runs both models on the probes.

        Returns:
            The certificate.
        """
        reasons = tuple((step.word, step.identity) for step in self.steps)
        original = Draft(self.draft.source)
        with np.errstate(all="ignore"):  # the certificate names what is not finite
            return certify((self.before, original), (self.stack, self.draft), reasons, self.tokens, self.moves_logits)

    def rewritten(self, certificate: Certificate) -> "Rewritten":
        """The rewritten model. Arrays of files are computed when they are read."""
        lazy: Mapping[str, np.ndarray] = Rounded(self.draft)
        if all(isinstance(array, np.ndarray | jax.Array) for array in self.draft.source.values()):
            lazy = dict(lazy)
        return Rewritten(self.stack, lazy, certificate, self.draft, self.before, self.tokens)


@dataclass(frozen=True)
class Rewritten:
    """A rewritten model with its certificate.

    Attributes:
        stack: its description.
        weights: its arrays by name, as stored. Arrays of files are computed when they are read.
        certificate: the evidence that its function is that of the original.
        draft: the same arrays in float64, before rounding, and where they come from.
        before: description of the original.
        tokens: the probes.
    """

    stack: Stack
    weights: Mapping[str, np.ndarray]
    certificate: Certificate
    draft: Draft
    before: Stack
    tokens: Int[np.ndarray, "N T"]


def plan(
    stack: Stack,
    weights: Mapping[str, Any],
    steps: Sequence[AbstractStep],
    *,
    probes: tuple[int, int] | Int[np.ndarray, "N T"] = PROBES,
    seed: int = 0,
    exclude: Collection[int] = (),
) -> Plan:
    """Checks the preconditions of each step in turn, and records the changes.

    Args:
        stack: the description.
        weights: arrays by name.
        steps: steps, in order.
        probes: numbers of sequences and of positions, or token ids.
        seed: of random probes.
        exclude: token ids that random probes leave out, such as that of padding. The padding of a checkpoint's config
            is always left out.

    Returns:
        The plan.

    Raises:
        Refused: if a step would change the function. The message has the part at fault, the reason, the difference
            measured on this model, and the remedy.
        TypeError: if steps are no steps, or arrays no arrays.
        ValueError: if the arrays do not fit the description, or there is no description.
    """
    _check_stack(stack)
    steps = check_steps(steps)
    stack.check(weights)
    check_floats(stack.arrays, weights)
    original = draft = Draft(weights)
    tokens = _tokens(stack, draft, probes, seed, exclude)
    before = stack
    for i, step in enumerate(steps):
        with np.errstate(all="ignore"):
            obstacles = step.obstacles(stack, draft)
        if obstacles:
            trial = draft.copy()
            try:
                with np.errstate(all="ignore"):
                    changed = step.run(stack, trial)
                    found = compare(everything(before, original, tokens), everything(changed, trial, tokens))
                moved = found.residual(any(s.moves_logits for s in steps[: i + 1]))
            except (ValueError, ZeroDivisionError, np.linalg.LinAlgError):
                moved = float("nan")
            raise Refused(step.word, obstacles, moved, not_finite(before.arrays, Rounded(original)))
        draft = draft.copy()
        with np.errstate(all="ignore"):  # certificates name what is not finite
            stack = step.run(stack, draft)
    return Plan(tuple(steps), before, stack, draft, tokens)


def _check_stack(stack: Any) -> None:
    """Refuses what is no description.

    Raises:
        ValueError: naming what it is.
    """
    if not isinstance(stack, Stack):
        raise ValueError(
            f"a rewrite needs the description of a model (lg.Stack); got {shown(stack)}. A function does not "
            "say which of its arrays read and write the stream: describe it, and hold the description against the "
            "function with lg.rewrite.check_description"
        )


def _tokens(
    stack: Stack,
    draft: Draft,
    probes: tuple[int, int] | Int[np.ndarray, "N T"],
    seed: int,
    exclude: Collection[int],
    least: int = 1,
) -> Int[np.ndarray, "N T"]:
    """The probes: those given, or random ones with so many positions at least.

    Raises:
        TypeError: if what is excluded is no list.
        ValueError: if they are no token ids of the model.
    """
    check_count("seed", seed, 0)
    if isinstance(exclude, str) or not isinstance(exclude, Iterable):
        raise TypeError(f"exclude must be a list of token ids; got {shown(exclude)}")
    for token in (exclude := tuple(exclude)):
        check_count("a token id to exclude", token, 0)
    if isinstance(probes, tuple) and all(np.ndim(size) == 0 for size in probes):
        if len(probes) != 2:
            raise ValueError(f"probes must be two numbers, of sequences and of positions; got {probes}")
        for size in probes:
            check_count("a number of probes", size, 1)
        return probe_tokens(stack, draft, (probes[0], max(probes[1], least)), seed, exclude)
    tokens, rows = np.asarray(probes), stack.ends(draft.shape)[0]
    if stack.inputs != "token" and tokens.ndim == 3 and tokens.dtype.kind == "f":
        if tokens.shape[2] != rows or not tokens.size or not np.isfinite(tokens).all():
            raise ValueError(f"probes must be vectors [N, T, {rows}] of finite numbers; got shape {tokens.shape}")
        return tokens
    if stack.inputs != "token" and (tokens.ndim != 2 or tokens.dtype.kind not in "iu"):
        raise ValueError(f"probes must be vectors [N, T, {rows}]; got {tokens.dtype} of shape {tokens.shape}")
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or not tokens.size:
        raise ValueError(f"probes must be token ids [N, T]; got {tokens.dtype} of shape {tokens.shape}")
    if tokens.min() < 0 or tokens.max() >= rows:
        raise ValueError(f"probes must be ids from 0 to {rows - 1}; got {tokens.min()} to {tokens.max()}")
    return tokens


def check_description(
    stack: Stack,
    weights: Mapping[str, Any],
    model: Callable[[Int[np.ndarray, "N T"]], Any],
    *,
    probes: tuple[int, int] | Int[np.ndarray, "N T"] = PROBES,
    seed: int = 0,
    exclude: Collection[int] = (),
    tolerance: float | None = None,
) -> Difference:
    """Checks a description that was written by hand against the model that it describes.

    A certificate compares a rewritten model with its own description. It cannot see that the description is wrong.

    Many models compute norms, rotary angles and softmax in float32 whatever their dtype. Therefore the description is
    also run in float32, and a difference from the model of ten times its own rounding is allowed.

    Args:
        stack: the description.
        weights: arrays by name.
        model: the model itself, from token ids to logits [N, T, V].
        probes: numbers of sequences and of positions, or token ids. There are more positions where tables of relative
            positions, or the windows of a front end, need them.
        seed: of random probes.
        exclude: token ids that random probes leave out, such as that of padding. The padding of a checkpoint's config
            is always left out.
        tolerance: largest difference of logits that is allowed, relative to the largest logit; None: ten times the
            rounding of float32, measured on this model, or the tolerance of the dtype of arrays or logits where that is
            larger.

    Returns:
        How far the logits of description and model are apart.

    Raises:
        TypeError: if the model cannot be called, or arrays are no arrays.
        ValueError: if they differ by more, or the model does not give logits [N, T, V].
    """
    _check_stack(stack)
    if tolerance is not None:
        check_nonnegative("tolerance", tolerance)
    if not callable(model):
        raise TypeError(f"the model must be a function from token ids to logits; got {shown(model)}")
    stack.check(weights)
    check_floats(stack.arrays, weights)
    draft = Draft(weights)
    tokens = _tokens(stack, draft, probes, seed, exclude, reach(stack, draft.shape))
    theirs, ours = np.asarray(model(tokens)), outputs(stack, draft, tokens)
    if theirs.shape != ours.shape:
        raise ValueError(f"the model must give logits of shape {ours.shape}; it gives {theirs.shape}")
    allowed = tolerance
    if allowed is None:
        stored = draft.dtype(stack.beginning[0])
        single = outputs(stack, Rounded(draft.copy(), np.dtype(np.float32)), tokens)
        allowed = max(
            10 * difference(ours, single).relative, *(numerics.tolerance(dtype) for dtype in (stored, theirs.dtype))
        )
    found = difference(theirs.astype(np.float64), ours)
    if not found.relative <= allowed:
        raise ValueError(
            f"the description is not that of the model: logits of {tokens.shape[0]} × {tokens.shape[1]} probe tokens "
            f"differ by {found.relative:.1e} of the largest, more than {allowed:.1e}"
        )
    return found


def apply(
    stack: Stack,
    weights: Mapping[str, Any],
    steps: Sequence[AbstractStep],
    *,
    probes: tuple[int, int] | Int[np.ndarray, "N T"] = PROBES,
    seed: int = 0,
    exclude: Collection[int] = (),
) -> Rewritten:
    """Rewrites a model without changing its function, and certifies it.

    All arithmetic is in float64, with one rounding to the stored dtype at the end.

    Args:
        stack: the description.
        weights: arrays by name.
        steps: steps, in order; a usual order is untie, fold, centre, exchange norms, rotate.
        probes: numbers of sequences and of positions, or token ids.
        seed: of random probes.
        exclude: token ids that random probes leave out, such as that of padding. The padding of a checkpoint's config
            is always left out.

    Returns:
        The new description, arrays and certificate. See `Certificate.passed`.

    Raises:
        Refused: if a step would change the function.
        TypeError: if steps are no steps, or arrays no arrays.
        ValueError: if the arrays do not fit the description.

    >>> from lngeom import rewrite as rw
    >>> from lngeom.transformers import Attention, Block, FeedForward, Head, Linear, Norm, Stack, Table
    >>> attention = Attention(*(Linear(name) for name in ("q", "k", "v", "o")), 1, 1, 4, 4)
    >>> block = Block(attention, FeedForward(Linear("up"), Linear("down")), "pre", Norm("rms", "g1"), Norm("rms", "g2"))
    >>> stack = Stack((Table("E"),), (block,), Head(Linear("U")), Norm("rms", "g3"))
    >>> draw = np.random.default_rng(0)
    >>> weights = {name: draw.normal(size=(4, 4)) for name in ("q", "k", "v", "o", "up", "down", "E", "U")}
    >>> weights |= {name: draw.uniform(1, 2, 4) for name in ("g1", "g2", "g3")}
    >>> out = rw.apply(stack, weights, [rw.steps.FoldNorms(), rw.steps.Rotate(seed=0)])
    >>> out.certificate.passed, out.weights["g1"]
    (True, array([1., 1., 1., 1.]))
    """
    found = plan(stack, weights, steps, probes=probes, seed=seed, exclude=exclude)
    return found.rewritten(found.certify())
