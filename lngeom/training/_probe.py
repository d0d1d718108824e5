"""Responses of an optimizer on small weights: from its start, or with the numbers of the state of a run.

Numbers in a state are counts, which say where its schedules are, and hyperparameters, which may be changed there. All
other parts, such as averages of gradients, are as at the start.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from lngeom._core.draws import probe_generator
from lngeom._core.programs import inner_programs

LONG = 16
"""Most entries of small weights along each axis."""

SECOND = -2.0
"""The gradient of the second step, in units of that of the first. It shows the memory of an optimizer."""

MANY = 20
"""Leaves above which an optimizer is compiled."""

LONGEST = 64
"""Most gradients that are accumulated for one step, and most steps of a warm-up that do nothing."""


@dataclass(frozen=True)
class Start:
    """Responses at the first step that moves a leaf, to which those of later steps are compared.

    Attributes:
        along: the response along the gradient.
        pull: that along the weights, in units of the first.
        second: the second response along the gradient, likewise.
    """

    along: float
    pull: float
    second: float


class Responses(NamedTuple):
    """Responses of each leaf at some step; see `Start`."""

    along: list[Any]
    pull: list[Any]
    second: list[Any]


def small(leaf: Any) -> Any:
    """Ones, few along each axis."""
    dtype = jnp.result_type(leaf)
    if jnp.issubdtype(dtype, jnp.floating):  # as many bits as there are, so that rounding hides no memory
        dtype = jnp.result_type(float)
    return jnp.ones([2 * (min(n, LONG) // 2) or 1 for n in jnp.shape(leaf)], dtype)  # even, so that signs cancel


def signs(leaf: Any) -> Any:
    """Signs that alternate, the pattern of gradients."""
    return jnp.asarray(np.resize((1, -1), leaf.size).reshape(leaf.shape)).astype(leaf.dtype)


def mean(u: Any, pattern: Any) -> Any:
    """The coefficient of a pattern in an update. One number cannot tell weights and gradients apart."""
    return (u * pattern).mean().real if pattern.size > 1 else np.nan


def numbers(state: PyTree, kind: Any) -> list[Any]:
    """The numbers of a state that are of some kind of dtype."""
    return [leaf for leaf in jax.tree.leaves(state) if _is_number(leaf, kind)]


def with_numbers(state: PyTree, of: Sequence[Any], kind: Any) -> PyTree:
    """A state with other numbers of some kind of dtype."""
    found = iter(of)
    return jax.tree.map(
        lambda leaf: jnp.asarray(next(found)).astype(leaf.dtype) if _is_number(leaf, kind) else leaf, state
    )


def _is_number(leaf: Any, kind: Any) -> bool:
    return jnp.ndim(leaf) == 0 and jnp.issubdtype(jnp.result_type(leaf), kind)


def respond(update: Callable, weights: PyTree, state: PyTree, sizes: Sequence[Any]) -> Responses:
    """Responses of an optimizer at small weights, at two steps between which its counts stand still.

    Args:
        update: (gradients, state, weights) → (updates, state).
        weights: ones.
        state: of the optimizer.
        sizes: the size of each leaf's gradient.
    """
    leaves, structure = jax.tree.flatten(weights)
    patterns = [signs(w) for w in leaves]
    counts = numbers(state, jnp.integer)

    def step(state: PyTree, by: Array) -> tuple[PyTree, tuple[list, list]]:
        given = [(by * size * g).astype(g.dtype) for size, g in zip(sizes, patterns, strict=True)]
        updates, after = update(jax.tree.unflatten(structure, given), state, weights)
        onto = [[mean(u, v) for u, v in zip(jax.tree.leaves(updates), of, strict=True)] for of in (patterns, leaves)]
        after = jax.tree.map(lambda new, old: jnp.asarray(new, jnp.result_type(old)), after, state)
        return with_numbers(after, counts, jnp.integer), (onto[0], onto[1])

    # a scan, so that the update is compiled once
    _, (along, radial) = jax.lax.scan(step, state, jnp.array([1.0, SECOND]))
    pull = [r[0] / a[0] for r, a in zip(radial, along, strict=True)]
    second = [a[1] / a[0] for a in along]
    along = [a[0] for a in along]
    return Responses(along, pull, second)


@contextmanager
def at_once():
    """Computes with numbers in 64 bits, inside of `jit` as well."""
    with jax.enable_x64(True), jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        yield


def led(x: Sequence[float] | np.ndarray, steps: int) -> np.ndarray:
    """A sequence that begins with more of its first value, at steps that do not move anything yet."""
    return np.concatenate([np.full(steps, np.asarray(x, float)[0]), np.asarray(x, float)])


class NoStep(ValueError):
    """An optimizer does not move its weights."""


class Probe:
    """Runs an optimizer on small weights.

    Attributes:
        optimizer: the optimizer.
        update: its update, compiled where it has loops or branches.
        weights: ones, few along each axis.
        signs: the pattern of gradients.
        uneven: gradients without a pattern, of sizes from 1 to 2.
        first: the first step that moves something.
        period: gradients that are accumulated for a step.
    """

    def __init__(self, optimizer: optax.GradientTransformationExtraArgs, params: PyTree):
        self.optimizer = optimizer
        self.weights = jax.tree.map(small, params)
        self.signs = jax.tree.map(signs, self.weights)
        self.uneven = jax.tree.map(_without_pattern, self.weights)
        program = jax.make_jaxpr(optimizer.update)(self.signs, optimizer.init(self.weights), self.weights)
        loops = any(inner_programs(e) and e.primitive.name not in {"jit", "pjit"} for e in program.jaxpr.eqns)
        many = len(jax.tree.leaves(params)) > MANY
        self.update = jax.jit(optimizer.update) if loops or many else optimizer.update  # loops compile at each call
        self.first, self.period = self._find_steps()
        self.counts = self._counts()

    def steps(self, x: Sequence[float] | np.ndarray, weight: float = 1.0, pattern: PyTree = None) -> list[list]:
        """Updates of each leaf at each step, for gradients x_t times a pattern."""
        w, pattern = _times(weight, self.weights), self.signs if pattern is None else pattern
        state, found = self.optimizer.init(w), []
        for value in x:
            g = _times(value, pattern)
            for _ in range(self.period):
                step, state = self.update(g, state, w)
            found.append([np.asarray(u) for u in jax.tree.leaves(step)])
        return found

    def run(self, x: Sequence[float] | np.ndarray, weight: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Responses [steps leaves] along the signs and along the weights, from the first step that moves something."""
        steps = self.steps(led(x, self.first), weight)

        def onto(patterns: PyTree) -> np.ndarray:
            each = [np.asarray(v) for v in jax.tree.leaves(patterns)]
            return np.array([[mean(u, v) for u, v in zip(s, each, strict=True)] for s in steps], float)[self.first :]

        return onto(self.signs), onto(self.weights)

    def starts(self) -> list[Start | None]:
        """Responses of each leaf at the first step that moves something; None for single numbers."""
        state = with_numbers(self.optimizer.init(self.weights), self.counts, jnp.integer)
        with jax.disable_jit():
            found = respond(self.optimizer.update, self.weights, state, [1.0] * len(jax.tree.leaves(self.weights)))
        numbers = [tuple(float(v) for v in each) for each in zip(*found, strict=True)]
        return [Start(*each) if each[0] and np.all(np.isfinite(each)) else None for each in numbers]

    def _find_steps(self) -> tuple[int, int]:
        state, moved = self.optimizer.init(self.weights), []
        for k in range(2 * LONGEST):
            step, state = self.update(self.signs, state, self.weights)
            if any(np.any(np.asarray(u)) for u in jax.tree.leaves(step)):
                moved.append(k)
            if len(moved) == 2:
                break
        if len(moved) < 2:
            raise NoStep("the optimizer takes no step at the gradients tried")
        period = moved[1] - moved[0]
        return (moved[0] + 1) // period - 1, period

    def _counts(self) -> tuple[int, ...]:
        """The counts in the state before the first step that moves something."""
        state = self.optimizer.init(self.weights)
        for _ in range((self.first + 1) * self.period - 1):
            _, state = self.update(self.signs, state, self.weights)
        return tuple(int(n) for n in numbers(state, jnp.integer))


def _without_pattern(leaf: Any) -> Any:
    values = probe_generator().permutation(np.linspace(1, 2, leaf.size)) * np.resize((1, -1), leaf.size)
    return jnp.asarray(values.reshape(leaf.shape)).astype(leaf.dtype)


def _times(by: Any, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda v: (by * v).astype(v.dtype), tree)
