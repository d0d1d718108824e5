"""Applying steps to a model: the plan, the refusals and the certificate."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from lngeom.numerics import tolerance
from lngeom.rewrite.certificate import Certificate, Difference, Rounded, certify, difference, outputs, probe_tokens
from lngeom.rewrite.draft import Draft
from lngeom.rewrite.steps import AbstractStep, Refused
from lngeom.stacks.description import Stack

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

    def changes(self) -> dict[str, int]:
        """What is done, and to how many arrays."""
        return dict(Counter(label for found in self.draft.labels.values() for label in found))

    def describe(self) -> str:
        """The steps, and what happens to how many arrays."""
        steps = ", ".join(step.word for step in self.steps)
        rows = [f"plan: {steps}; {len(self.draft.labels)} of {len(self.draft)} arrays change"]
        rows += [f"  {count:5d} × {label}" for label, count in self.changes().items()]
        return "\n".join(rows)

    def to_json(self) -> dict[str, Any]:
        """The steps, and what happens to how many arrays, as JSON takes them."""
        return {"steps": [step.word for step in self.steps], "changes": self.changes(), "arrays": len(self.draft)}

    def certify(self) -> Certificate:
        """Runs both models on the probes.

        Returns:
            The certificate.
        """
        reasons = tuple((step.word, step.identity) for step in self.steps)
        original = Draft(self.draft.source)
        return certify((self.before, original), (self.stack, self.draft), reasons, self.tokens, self.moves_logits)


@dataclass(frozen=True)
class Rewritten:
    """A rewritten model with its certificate.

    Attributes:
        stack: its description.
        weights: its arrays by name, as stored. Arrays of files are computed when they are read.
        certificate: the evidence that its function is that of the original.
        draft: the same arrays in float64, before rounding, and where they come from.
    """

    stack: Stack
    weights: Mapping[str, np.ndarray]
    certificate: Certificate
    draft: Draft


def plan(
    stack: Stack,
    weights: Mapping[str, Any],
    steps: Sequence[AbstractStep],
    *,
    probes: tuple[int, int] | Int[np.ndarray, "N T"] = PROBES,
    seed: int = 0,
) -> Plan:
    """Checks the preconditions of each step in turn, and records the changes.

    Args:
        stack: the description.
        weights: arrays by name.
        steps: steps, in order.
        probes: numbers of sequences and of positions, or token ids.
        seed: of random probes.

    Returns:
        The plan.

    Raises:
        Refused: if a step would change the function. The message has the part at fault, the reason, the difference
            measured on this model, and the remedy.
        ValueError: if the arrays do not fit the description, or there is no description.
    """
    if not isinstance(stack, Stack):
        raise ValueError(
            f"a rewrite needs the description of a model (lg.Stack); got {type(stack).__name__}. A function does not "
            "say which of its arrays read and write the stream: describe it, and hold the description against the "
            "function with lg.rewrite.check_description"
        )
    stack.check(weights)
    original = draft = Draft(weights)
    tokens = probe_tokens(stack, draft, probes, seed) if isinstance(probes, tuple) else np.asarray(probes)
    before = stack
    for i, step in enumerate(steps):
        if obstacles := step.obstacles(stack, draft):
            trial = draft.copy()
            try:
                with np.errstate(all="ignore"):
                    changed = step.run(stack, trial)
                    found = difference(outputs(before, original, tokens), outputs(changed, trial, tokens))
                moved = found.residual(any(s.moves_logits for s in steps[: i + 1]))
            except (ValueError, ZeroDivisionError, np.linalg.LinAlgError):
                moved = float("nan")
            raise Refused(type(step).__name__, obstacles, moved)
        draft = draft.copy()
        stack = step.run(stack, draft)
    return Plan(tuple(steps), before, stack, draft, tokens)


def check_description(
    stack: Stack,
    weights: Mapping[str, Any],
    model: Callable[[Int[np.ndarray, "N T"]], Any],
    *,
    probes: tuple[int, int] | Int[np.ndarray, "N T"] = PROBES,
    seed: int = 0,
) -> Difference:
    """Checks a description that was written by hand against the model that it describes.

    A certificate compares a rewritten model with its own description. It cannot see that the description is wrong.

    Args:
        stack: the description.
        weights: arrays by name.
        model: the model itself, from token ids to logits [N, T, V].
        probes: numbers of sequences and of positions, or token ids.
        seed: of random probes.

    Returns:
        How far the logits of description and model are apart.

    Raises:
        ValueError: if they differ by more than rounding in the dtype of the arrays or of the logits.
    """
    stack.check(weights)
    draft = Draft(weights)
    tokens = probe_tokens(stack, draft, probes, seed) if isinstance(probes, tuple) else np.asarray(probes)
    theirs = np.asarray(model(tokens))
    dtypes = (draft.dtype(stack.tables[0].weight), theirs.dtype)
    allowed = max(tolerance(dtype) for dtype in dtypes)
    found = difference(theirs.astype(np.float64), outputs(stack, draft, tokens))
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
) -> Rewritten:
    """Rewrites a model without changing its function, and certifies it.

    All arithmetic is in float64, with one rounding to the stored dtype at the end.

    Args:
        stack: the description.
        weights: arrays by name.
        steps: steps, in order; a usual order is untie, fold, centre, exchange norms, rotate.
        probes: numbers of sequences and of positions, or token ids.
        seed: of random probes.

    Returns:
        The new description, arrays and certificate. See `Certificate.passed`.

    Raises:
        Refused: if a step would change the function.
        ValueError: if the arrays do not fit the description.

    >>> from lngeom import rewrite as rw
    >>> from lngeom.stacks import Attention, Block, FeedForward, Head, Linear, Norm, Stack, Table
    >>> attention = Attention(*(Linear(name) for name in ("q", "k", "v", "o")), 1, 1, 4, 4)
    >>> block = Block(attention, FeedForward(Linear("up"), Linear("down")), "pre", Norm("rms", "g1"), Norm("rms", "g2"))
    >>> stack = Stack((Table("E"),), (block,), Head(Linear("U")), Norm("rms", "g3"))
    >>> draw = np.random.default_rng(0)
    >>> weights = {name: draw.normal(size=(4, 4)) for name in ("q", "k", "v", "o", "up", "down", "E", "U")}
    >>> weights |= {name: draw.uniform(1, 2, 4) for name in ("g1", "g2", "g3")}
    >>> out = rw.apply(stack, weights, [rw.FoldNorms(), rw.Rotate(seed=0)])
    >>> out.certificate.passed, out.weights["g1"]
    (True, array([1., 1., 1., 1.]))
    """
    found = plan(stack, weights, steps, probes=probes, seed=seed)
    lazy: Mapping[str, np.ndarray] = Rounded(found.draft)
    if all(isinstance(weights[name], np.ndarray | jax.Array) for name in weights):
        lazy = dict(lazy)
    return Rewritten(found.stack, lazy, found.certify(), found.draft)
