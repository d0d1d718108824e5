"""The consequences of a symmetry, measured: of the Fisher matrix, the gradient, the Hessian, norms and runs."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.numerics import Agreement, agreement, decide_rank
from lngeom.families import Categorical
from lngeom.information import FisherOperator
from lngeom.information._given import read_responses
from lngeom.information._problem import Problem
from lngeom.information._products import at_problem
from lngeom.training._action import Action, Map

PROBES = 3
"""Random directions on which linear maps are compared."""

NEAR = 2
"""Points near θ at which the invariance is looked for too: its derivative by θ is used."""

ROUNDINGS = 3
"""Random changes of the parameters by one unit in the last place, from which the rounding of outputs is measured."""

ROUNDED = 10.0
"""A deviation of up to so many times the measured rounding is rounding."""

MOVED = 0.05
"""Length of the first step of a run, as a part of ‖θ‖."""

DAMPING = 0.3
"""Damping of the natural gradient, as a part of the largest eigenvalue of F."""

Vector = Float[np.ndarray, " P"]

_DEAD = "no output depends on the parameters here: there is nothing to compare with"
_STILL = "the run does not move"
_NO_NORM = {
    "antisymmetric": "A = Dξ is antisymmetric: gθ is as long as θ, and no norm is conserved",
    "not constant": "A = Dξ depends on θ: no quadratic Q has the gradient ξ",
    "other": "A = Dξ is not symmetric: no Q has the gradient ξ",
}


@dataclass(frozen=True)
class Consequence:
    """One consequence of the symmetry, measured.

    Attributes:
        name: "fisher", "null", "gradient", "orthogonality", "hessian", "norm", "sgd", "momentum", "natural_gradient" or
            "optimizer".
        formula: what is said.
        found: deviation of both sides, relative to the size that each would have without the symmetry; None where
            nothing was measured.
        note: what was measured, or why nothing was.
    """

    name: str
    formula: str
    found: Agreement | None
    note: str = ""

    @property
    def deviation(self) -> float:
        """The relative deviation; NaN where nothing was measured."""
        return math.nan if self.found is None else self.found.residual

    @property
    def outcome(self) -> str:
        """One of "holds", "fails", "unclear" (between rounding and a clear difference) and "not measured"."""
        if self.found is None or not self.found.count:
            return "not measured"
        return "holds" if self.found.agrees else "fails" if self.found.differs else "unclear"

    @property
    def holds(self) -> bool:
        """Whether it was measured and holds."""
        return self.outcome == "holds"


def invariance(
    acting: Action, elements: Sequence[Any], tol: float | None, key: PRNGKeyArray
) -> tuple[Agreement, Agreement]:
    """The largest deviations of f(gθ) from f(θ): at θ, and at θ and near it.

    Each output, a column of f, is judged on its own: relative to its spread over the samples, or to its size where it
    is constant. Its rounding is the largest change when parameters, at θ and at gθ, change by a unit in the last place.
    """
    problem, theta = acting.problem, acting.problem.params

    def at(point: PyTree) -> list[Agreement]:
        there = _seen(problem, point)
        if point is not theta and not np.isfinite(there).all():
            return []  # outside of the model's domain
        own = _rounding(problem, point, there, key)
        found = []
        for g in elements:
            moved = acting(g, point)
            here = _seen(problem, moved)
            found += _by_output(here, there, np.maximum(own, _rounding(problem, moved, here, key)), tol)
        return found

    first = at(theta)
    around = [found for k in jax.random.split(key, NEAR) for found in at(near(theta, k))]
    return _least_invariant(first), _least_invariant([*first, *around])


def _by_output(a: np.ndarray, b: np.ndarray, rounding: np.ndarray, tol: float | None) -> list[Agreement]:
    """The deviation of each output over the samples."""
    found = []
    for here, there, error in zip(_by_column(a), _by_column(b), rounding.tolist(), strict=True):
        size, spread = float(np.max(np.abs(there))), float(np.ptp(there))
        scale = spread if spread > ROUNDED * error else size
        gap = float(np.max(np.abs(here - there)))
        if not np.isfinite([gap, error]).all():
            found.append(Agreement(math.inf, 0.0, size, here.size, int(np.sum(~np.isfinite(here))) or 1))
            continue
        scale = scale or float(np.max(np.abs(here))) or 1.0
        limit = ROUNDED * error / scale if tol is None else tol
        found.append(Agreement(gap / scale, limit, scale, here.size, 0, error / scale))
    return found


def _by_column(z: np.ndarray) -> np.ndarray:
    return z.reshape(-1, z.shape[-1]).T.astype(np.float64)


def _least_invariant(found: Sequence[Agreement]) -> Agreement:
    """The output that shows most clearly that there is no invariance; the largest deviation where none does."""
    return max(found, key=lambda a: (a.undefined > 0, a.residual > a.tolerance, not a.agrees, a.residual))


def _rounding(problem: Problem, params: PyTree, there: np.ndarray, key: PRNGKeyArray) -> np.ndarray:
    """Rounding of each output: its unit in the last place, or its change when parameters change by theirs."""
    ulp = float(jnp.finfo(problem.output_shape.dtype).eps)
    found = ulp * np.max(np.abs(_by_column(np.asarray(problem.forward(params)))), axis=1)
    for k in jax.random.split(key, ROUNDINGS):
        changed = _seen(problem, rounded(problem, params, k))
        found = np.maximum(found, np.max(np.abs(_by_column(changed) - _by_column(there)), axis=1))
    return found


def rounded(problem: Problem, params: PyTree, key: PRNGKeyArray) -> PyTree:
    """The parameters with every entry changed by a unit in the last place, up or down."""
    leaves, structure = jax.tree.flatten(params)
    least, keys = problem.precision().eps, jax.random.split(key, len(leaves))

    def change(leaf: Array, k: PRNGKeyArray) -> Array:
        unit = jnp.asarray(max(least, float(jnp.finfo(leaf.dtype).eps)), leaf.dtype)
        return leaf + leaf * unit * jax.random.rademacher(k, leaf.shape, leaf.dtype)

    return jax.tree.unflatten(structure, [change(leaf, k) for leaf, k in zip(leaves, keys, strict=True)])


def moves(acting: Action, g: Any) -> bool:
    """Whether gθ is not θ, up to rounding."""
    theta = acting.problem.params
    pairs = zip(jax.tree.leaves(acting(g, theta)), jax.tree.leaves(theta), strict=True)
    return any(a.size and agreement(a, b).residual > 10 * float(jnp.finfo(b.dtype).eps) for a, b in pairs)


def _seen(problem: Problem, params: PyTree) -> np.ndarray:
    """The outputs; logits of a softmax up to a shift of all, which the family does not see."""
    z = np.asarray(problem.forward(params))
    return z - z.mean(-1, keepdims=True) if isinstance(problem.family, Categorical) else z


def near(theta: PyTree, key: PRNGKeyArray) -> PyTree:
    """A point near θ: entries change by a tenth of their size, those that are zero by a tenth of the mean size."""
    flat, unravel = ravel_pytree(theta)
    size = jnp.sqrt(jnp.mean(jnp.square(flat)))
    sizes = jnp.where(flat == 0, jnp.where(size > 0, size, 1), jnp.abs(flat)) / 10
    return unravel(flat + sizes.astype(flat.dtype) * jax.random.normal(key, flat.shape, flat.dtype))


class Generators(NamedTuple):
    """ξθ of each direction, zero where it is rounding alone, and the relative rounding of the others."""

    tangents: tuple[PyTree, ...]
    rounding: float

    @classmethod
    def of(cls, acting: Action, directions: Sequence[Array], key: PRNGKeyArray) -> "Generators":
        """The generators at θ, whose rounding is their change when θ changes by a unit in the last place."""
        problem = acting.problem
        changed, found = rounded(problem, problem.params, key), []
        errors = [problem.precision().eps]
        for e in directions:
            v = acting.generator(e, problem.params)
            error, length = float(np.linalg.norm(flat(acting.generator(e, changed)) - flat(v))), _norm(v)
            if length > ROUNDED * error:
                errors.append(error / length)
            else:
                v = jax.tree.map(jnp.zeros_like, v)
            found.append(v)
        return cls(tuple(found), max(errors))

    @property
    def rank(self) -> int:
        """Number of independent generators, in the precision in which they were computed."""
        rows = [flat(v) / _norm(v) for v in self.tangents if flat(v).any()]
        if not rows:
            return 0
        singular_values = np.linalg.svd(np.stack(rows), compute_uv=False)
        return decide_rank(singular_values, len(rows), rows[0].size, eps=self.rounding).rank


def flat(v: PyTree) -> Vector:
    """A tangent as a vector in double precision."""
    return np.asarray(ravel_pytree(v)[0], np.float64)


def _dot(u: PyTree, v: PyTree) -> float:
    return float(flat(u) @ flat(v))


def _norm(v: PyTree) -> float:
    return float(np.linalg.norm(flat(v)))


def _worst(found: Sequence[Agreement]) -> Agreement:
    return max(found, key=lambda a: math.inf if a.undefined else a.residual)


class Loss(NamedTuple):
    """L, the mean of −log p(y | f(x)), at observed or drawn responses."""

    problem: Problem
    y: PyTree

    @classmethod
    def of(cls, problem: Problem, y: PyTree, key: PRNGKeyArray) -> "Loss":
        """The loss at y, which is checked, or at a draw.

        Raises:
            ValueError: if y are no responses of the model.
        """
        z = problem.forward(problem.params)
        if y is None:
            return cls(problem, problem.family.sample(key, z))
        y = read_responses(y, problem.family)
        jax.eval_shape(problem.family.score, z, y)  # looks at shapes
        problem.family.check_responses(y, z.shape)
        return cls(problem, y)

    def gradient(self, params: PyTree) -> PyTree:
        """∇L."""
        return _gradient(self.problem, self.y, params)

    def hessian(self, params: PyTree, v: PyTree) -> PyTree:
        """∇²L v."""
        return _hessian(self.problem, self.y, params, v)


def _loss(problem: Problem, y: PyTree, params: PyTree) -> Array:
    return -jnp.sum(problem.family.log_prob(problem.forward(params), y)) / problem.samples


@jax.jit
def _gradient(problem: Problem, y: PyTree, params: PyTree) -> PyTree:
    return jax.grad(_loss, argnums=2)(problem, y, params)


@jax.jit
def _hessian(problem: Problem, y: PyTree, params: PyTree, v: PyTree) -> PyTree:
    return jax.jvp(lambda p: _gradient(problem, y, p), (params,), (v,))[1]


@dataclass(frozen=True)
class Measured:
    """Measures consequences at θ.

    Attributes:
        F: the Fisher matrix at θ.
        acting: the action.
        elements: the g that move θ, by their positions in the list of all.
        loss: L.
        limit: relative deviation that counts as rounding.
        key: of random directions.
    """

    F: FisherOperator
    acting: Action
    elements: Mapping[int, Any]
    loss: Loss
    limit: float
    key: PRNGKeyArray

    @property
    def theta(self) -> PyTree:
        """θ."""
        return self.F.problem.params

    def fisher_at(self, params: PyTree) -> FisherOperator:
        """F at other parameters."""
        return at_problem(self.F, replace(self.F.problem, params=params))

    def _random(self, count: int = PROBES) -> list[PyTree]:
        """Random directions."""
        shape = (count, self.F.in_size())
        return [self.F.problem.unravel(v) for v in jax.random.normal(self.key, shape, self.F.problem.dtype)]

    def _like(self, v: PyTree) -> list[PyTree]:
        """The direction with random signs of its entries: what has its size, and not its meaning."""
        flips = jax.random.rademacher(self.key, (PROBES, self.F.in_size()), self.F.problem.dtype)
        return [jax.tree.map(jnp.multiply, self.F.problem.unravel(f), v) for f in flips]

    def _compared(self, gap: float, matched: float, generic: float) -> Agreement:
        """A deviation, relative to what random signs give, and where that is rounding to what any direction gives."""
        scale = matched if matched > self.limit * generic else generic
        bad = not np.isfinite([gap, scale]).all()
        return Agreement(gap / scale if scale else 0.0, self.limit, scale, int(scale > 0), int(bad))

    def _size(self, v: PyTree) -> tuple[float, float]:
        """√(vᵀFv) of directions like v, and of any as long as it; the largest of a few."""
        form = lambda u: float(self.F.quadratic_form(u)) ** 0.5  # noqa: E731
        generic = max(form(u) * _norm(v) / _norm(u) for u in self._random())
        return max(map(form, self._like(v))), generic

    def fisher(self) -> Consequence:
        """Dgᵀ F(gθ) Dg v = F(θ) v."""
        found = []
        for g in self.elements.values():
            there, (push, pull) = self.fisher_at(self._moved(g)), self.acting.derivative(g, self.theta)
            for v in self._random():
                image = flat(self.F.mv(v))
                gap, size = (float(np.max(np.abs(a))) for a in (flat(pull(there.mv(push(v)))) - image, image))
                found.append(self._compared(gap, size, 0.0))
        return Consequence("fisher", "F(gθ) = Dg⁻ᵀ F(θ) Dg⁻¹", *_reported(found))

    def gradient(self) -> Consequence:
        """Dgᵀ ∇L(gθ) = ∇L(θ), on the scale of the scores of single samples, which may cancel."""
        slope = flat(self.loss.gradient(self.theta))
        spread = max(self._size(v)[0] for v in self._random(1)) / self.F.in_size() ** 0.5
        found = []
        for g in self.elements.values():
            _, pull = self.acting.derivative(g, self.theta)
            gap = float(np.max(np.abs(flat(pull(self.loss.gradient(self._moved(g)))) - slope)))
            found.append(self._compared(gap, max(float(np.max(np.abs(slope))), spread), 0.0))
        return Consequence("gradient", "Dgᵀ ∇L(gθ) = ∇L(θ)", *_reported(found))

    def null(self, generators: Sequence[PyTree]) -> Consequence:
        """√(ξᵀFξ) of each generator."""
        forms = [(float(self.F.quadratic_form(v)) ** 0.5, v) for v in generators if flat(v).any()]
        return self._of_generators("null", "F ξθ = 0", [self._compared(gap, *self._size(v)) for gap, v in forms])

    def orthogonality(self, generators: Sequence[PyTree]) -> Consequence:
        """⟨ξθ, ∇L⟩, on the scale of the scores of single samples."""
        slope, found = self.loss.gradient(self.theta), []
        for v in generators:
            if flat(v).any():
                matched, generic = self._size(v)
                along = max(abs(_dot(u, slope)) for u in self._like(v))
                found.append(self._compared(abs(_dot(v, slope)), max(matched, along), generic))
        return self._of_generators("orthogonality", "⟨ξθ, ∇L⟩ = 0", found)

    def hessian(self, directions: Sequence[Array]) -> Consequence:
        """∇²L ξθ = −(Dξ)ᵀ ∇L, by automatic differentiation of both sides."""
        slope, found = self.loss.gradient(self.theta), []
        for e in directions:
            v, back = jax.vjp(lambda p, e=e: self.acting.generator(e, p), self.theta)
            if not flat(v).any():
                continue
            image, other = flat(self.loss.hessian(self.theta, v)), -flat(back(slope)[0])
            size = lambda u: float(np.max(np.abs(flat(self.loss.hessian(self.theta, u)))))  # noqa: E731
            matched = max(np.max(np.abs(image)), np.max(np.abs(other)), *map(size, self._like(v)))
            generic = max(size(u) * _norm(v) / _norm(u) for u in self._random())
            found.append(self._compared(float(np.max(np.abs(image - other))), float(matched), generic))
        return self._of_generators("hessian", "∇²L ξθ = −(Dξ)ᵀ ∇L", found)

    def _of_generators(self, name: str, formula: str, found: Sequence[Agreement]) -> Consequence:
        return Consequence(name, formula, *(_reported(found) if found else (None, "every generator is zero at θ")))

    def norm(self, directions: Sequence[Array], steps: int) -> Consequence:
        """What gradient flow conserves, and how far SGD goes from it: where A = Dξ is symmetric and constant."""
        formula, run = "Q(θ⁺) − Q(θ) = ½η²⟨∇L, A∇L⟩", self._descent(steps)
        if run is None:
            return Consequence("norm", formula, None, _STILL)
        found, kinds, changes = [], set(), []
        for e in directions:
            A = functools.partial(self._derivative, e, self.theta)
            kinds.add(kind := self._kind(e))
            if kind not in {"zero", "symmetric"}:
                continue
            constant = flat(self.acting.generator(e, self.theta)) - flat(A(self.theta))
            before, after = (constant @ flat(p) + flat(p) @ flat(A(p)) / 2 for p in (self.theta, run.path[-1]))
            said = run.rate**2 / 2 * sum(flat(g) @ flat(A(g)) for g in run.gradients)
            first_order = sum(
                np.abs(flat(self.acting.generator(e, p))) @ np.abs(run.rate * flat(g))
                for p, g in zip(run.path[:-1], run.gradients, strict=True)
            )
            found.append(self._compared(abs(float(after - before - said)), float(first_order), 0.0))
            changes.append((before, after))
        if not found:
            return Consequence("norm", formula, None, _NO_NORM[kinds.pop() if len(kinds) == 1 else "other"])
        if kinds == {"zero"}:
            note = "conserved by gradient flow, and by every step of SGD"
            return Consequence("norm", "Q(θ⁺) = Q(θ), Q = ⟨ξ, θ⟩", *_reported(found, note, "ξ is zero at θ"))
        scale = self._is_projector(directions[0])
        grew = f"; ‖Aθ‖² grew by {changes[0][1] / changes[0][0] - 1:.2%} in {steps} SGD steps" if scale else ""
        note = f"flow conserves Q = ½⟨θ, Aθ⟩, A = Dξ{grew}"
        return Consequence("norm", formula, *_reported(found, note, "ξ is zero at θ"))

    def _derivative(self, e: Array, at: PyTree, v: PyTree) -> PyTree:
        """(Dξ) v at a point."""
        return jax.jvp(lambda p: self.acting.generator(e, p), (at,), (v,))[1]

    def _is_projector(self, e: Array) -> bool:
        """Whether A = Dξ is 1 on some entries and 0 on others, as of a scaling: A²θ = Aθ, and ξθ = Aθ is not zero."""
        once = self._derivative(e, self.theta, self.theta)
        twice = self._derivative(e, self.theta, once)
        same = agreement(flat(twice), flat(once), self.limit).agrees
        return same and bool(flat(once) @ flat(self.acting.generator(e, self.theta)) > 0)

    def _kind(self, e: Array) -> str:
        """What A = Dξ is: "zero", "symmetric", "antisymmetric" or "other"; "not constant" where it depends on θ."""
        u, v, _ = self._random()
        first, second = (flat(self._derivative(e, self.theta, w)) for w in (u, v))
        if not agreement(flat(self._derivative(e, near(self.theta, self.key), u)), first, self.limit).agrees:
            return "not constant"
        if not first.any():
            return "zero"
        one, other = flat(v) @ first, flat(u) @ second
        rounding = self.limit * max(np.abs(flat(v)) @ np.abs(first), np.abs(flat(u)) @ np.abs(second))
        if abs(one - other) <= rounding:
            return "symmetric"
        return "antisymmetric" if abs(one + other) <= rounding else "other"

    def runs(self, steps: int) -> list[Consequence]:
        """Runs from θ and from gθ of SGD, of momentum and of natural gradient, where gθ is affine in θ."""
        formulas = {
            "sgd": "SGD, rate ηDgDgᵀ from gθ: θ̃ₜ = gθₜ",
            "momentum": "momentum, rate ηDgDgᵀ from gθ: θ̃ₜ = gθₜ",
            "natural_gradient": "natural gradient, ρDg⁻ᵀDg⁻¹: θ̃ₜ = gθₜ",
        }
        run = self._descent(steps)
        why = _STILL if run is None else self._why_not_affine()
        if run is None or why:
            return [Consequence(name, formula, None, why) for name, formula in formulas.items()]
        bases = {"sgd": optax.sgd(run.rate), "momentum": optax.sgd(run.rate, momentum=0.9)}
        paths = {name: self._run(base, self.theta, steps) for name, base in bases.items()}
        natural, near_natural = (self._natural(_same, _same, start) for start in (self.theta, self._changed))
        near_paths = {name: self._run(base, self._changed, steps) for name, base in bases.items()}
        found: dict[str, dict[int, Agreement]] = {name: {} for name in formulas}
        orthogonal = True
        for k, g in self.elements.items():
            push, pull = self.acting.derivative(g, self.theta)
            metric = optax.stateless(lambda updates, params, push=push, pull=pull: push(pull(updates)))
            start = self._moved(g)
            for name, base in bases.items():
                mapped = self._run(optax.chain(metric, base), start, steps)
                found[name][k] = self._apart(g, paths[name], mapped, near_paths[name])
            mapped = self._natural(push, pull, start) if natural else None
            if natural and mapped and near_natural:
                found["natural_gradient"][k] = self._apart(g, natural, mapped, near_natural)
            orthogonal &= all(agreement(flat(push(pull(v))), flat(v), self.limit).agrees for v in self._random(1))
        same = dict.fromkeys(bases, "Dg is orthogonal: the same rate" if orthogonal else "")
        return [self._of_elements(name, formula, found[name], same.get(name, "")) for name, formula in formulas.items()]

    def own_run(self, of: Callable[[Any], optax.GradientTransformation], steps: int) -> Consequence:
        """Runs of the user's optimizer, given at g₀ and at g."""
        formula = "the optimizer given: θ̃ₜ = gθₜ"
        path = self._run(of(self.acting.identity), self.theta, steps)
        if all(np.array_equal(flat(path[0]), flat(p)) for p in path):
            return Consequence("optimizer", formula, None, _STILL)
        near_path = self._run(of(self.acting.identity), self._changed, steps)
        found = {
            k: self._apart(g, path, self._run(of(g), self._moved(g), steps), near_path)
            for k, g in self.elements.items()
        }
        return self._of_elements("optimizer", formula, found)

    @property
    def _changed(self) -> PyTree:
        """θ, changed by a unit in the last place: how far a run from there goes apart is the rounding of the run."""
        return rounded(self.F.problem, self.theta, self.key)

    def _of_elements(self, name: str, formula: str, found: Mapping[int, Agreement], note: str = "") -> Consequence:
        """The worst of all elements, which the note names."""
        able = {k: one for k, one in found.items() if one.count}
        if not able:
            return Consequence(name, formula, None, _DEAD)
        worst = _worst(list(able.values()))
        named = f"largest at {_named(next(k for k, one in able.items() if one is worst))}" if len(able) > 1 else ""
        return Consequence(name, formula, worst, "; ".join(part for part in (note, named) if part))

    def _why_not_affine(self) -> str:
        bent = [k for k, g in self.elements.items() if not self._is_affine(g)]
        return f"gθ is not affine in θ at {_named(bent[0])}: steps are not mapped" if bent else ""

    def _moved(self, g: Any) -> PyTree:
        return self.acting(g, self.theta)

    def _is_affine(self, g: Any) -> bool:
        """Whether Dg is the same near θ."""
        pushes = [self.acting.derivative(g, at)[0] for at in (self.theta, near(self.theta, self.key))]
        images = [[flat(push(v)) for v in self._random()] for push in pushes]
        return agreement(*map(np.stack, images), self.limit).agrees  # pyright: ignore[reportCallIssue]

    def _descent(self, steps: int) -> "_Descent | None":
        """Plain SGD from θ; None where the gradient is zero."""
        length, slope = _norm(self.theta), _norm(self.loss.gradient(self.theta))
        if not slope > 0:
            return None
        rate = MOVED * (length or 1.0) / slope
        path = self._run(optax.sgd(rate), self.theta, steps)
        return _Descent(path, [self.loss.gradient(p) for p in path[:-1]], rate)

    def _run(self, optimizer: optax.GradientTransformation, start: PyTree, steps: int) -> list[PyTree]:
        """Parameters before the first step and after each."""
        extended, path = optax.with_extra_args_support(optimizer), [start]
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer count
            state = extended.init(start)
            for _ in range(steps):
                slope, given = self.loss.gradient(path[-1]), {"inputs": self.F.problem.inputs}
                updates, state = extended.update(slope, state, path[-1], **given)
                path.append(jax.tree.map(lambda p, u: (p + u).astype(p.dtype), path[-1], updates))
        return path

    def _natural(self, push: Map, pull: Map, start: PyTree) -> list[PyTree] | None:
        """Three steps Dg s with (Dgᵀ F Dg + ρI) s = Dgᵀ∇L: natural gradient with damping ρ Dg⁻ᵀDg⁻¹."""
        largest = _largest_eigenvalue(self.F, self._random(1)[0])
        if not largest > 0:
            return None
        path, rate = [start], None
        unravel, length = self.F.problem.unravel, _norm(self.theta) or 1.0
        for _ in range(3):
            F = self.fisher_at(path[-1])
            product = lambda v, F=F: self._ravel(pull(F.mv(push(unravel(v)))))  # noqa: E731
            s = _solution(product, self._ravel(pull(self.loss.gradient(path[-1]))), DAMPING * largest)
            rate = MOVED * float(length / jnp.linalg.norm(s)) if rate is None else rate
            path.append(jax.tree.map(lambda p, u, rate=rate: p - rate * u, path[-1], push(unravel(s))))
        return path

    def _ravel(self, v: PyTree) -> Array:
        return self.F.problem.ravel(v)

    def _apart(self, g: Any, run: Sequence[PyTree], mapped: Sequence[PyTree], near_run: Sequence[PyTree]) -> Agreement:
        """How far g times a run is from another, in parameters and in outputs, relative to how far that one moved.

        A run amplifies rounding: `near_run`, from θ changed by a unit in the last place, shows how much.
        """
        problem, found = self.F.problem, []
        seen = lambda p: _seen(problem, p)  # noqa: E731
        for of, image in ((flat, lambda p: flat(self.acting(g, p))), (seen, seen)):
            moved = max(float(np.max(np.abs(of(p) - of(mapped[0])))) for p in mapped)
            gap = max(float(np.max(np.abs(of(q) - image(p)))) for p, q in zip(run, mapped, strict=True))
            error = max(float(np.max(np.abs(of(q) - of(p)))) for p, q in zip(run, near_run, strict=True))
            one = self._compared(gap, moved, 0.0)
            error = error / one.scale if one.scale else 0.0
            found.append(one._replace(tolerance=max(self.limit, ROUNDED * error), rounding=error))
        return _reported(found)[0] or found[0]


def _named(k: int) -> str:
    return f"g = elements[{k}]"


class _Descent(NamedTuple):
    """A run of SGD: parameters before the first step and after each, the gradient of each, the rate."""

    path: list[PyTree]
    gradients: list[PyTree]
    rate: float


def _same(v: PyTree) -> PyTree:
    return v


def _reported(found: Sequence[Agreement], note: str = "", why: str = _DEAD) -> tuple[Agreement | None, str]:
    """The worst of those that could be measured, with a note; None and the reason where none could."""
    able = [one for one in found if one.count]
    return (_worst(able), note) if able else (None, why)


def _largest_eigenvalue(F: FisherOperator, v: PyTree) -> float:
    """A lower bound, by five steps of power iteration."""
    x = F.problem.ravel(v)
    for _ in range(5):
        x = F @ (x / jnp.linalg.norm(x))
        if not float(jnp.linalg.norm(x)) > 0:
            return 0.0
    return float(jnp.linalg.norm(x))


def _solution(product: Callable[[Array], Array], b: Array, damping: float) -> Array:
    """Conjugate gradients for (A + ρI)x = b, to rounding; eager, since the product is another program each time."""
    x, r, p = jnp.zeros_like(b), b, b
    for _ in range(200):
        q = product(p) + damping * p
        squared = jnp.vdot(r, r)
        if not float(squared) > float(jnp.finfo(b.dtype).eps) ** 2 * float(jnp.vdot(b, b)):
            break
        alpha = squared / jnp.vdot(p, q)
        x, r = x + alpha * p, r - alpha * q
        p = r + jnp.vdot(r, r) / squared * p
    return x
