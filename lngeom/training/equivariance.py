r"""`lg.equivariance`: what a symmetry of a model's parameters implies, each consequence measured.

Let a group act on parameters so that $f_{g\theta} = f_\theta$. Differentiation gives identities of the Fisher matrix,
of the gradient and of the Hessian, and says which optimizers map trajectories to trajectories. They are stated and
proved in `lngeom/symbolic/equivariance.py`; here they are measured at given parameters and data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import jax
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count, check_nonnegative
from lngeom._core.draws import probe_key
from lngeom._core.numerics import MARGIN, WITNESS, Agreement
from lngeom._core.text import counted
from lngeom.families import AbstractDistribution
from lngeom.information import fisher
from lngeom.information.glm import NormalizedGLM
from lngeom.training._action import Action, read_elements, read_identity, shown
from lngeom.training._consequences import Consequence, Generators, Loss, Measured, invariance, moves

COLUMN = 48
"""Where the deviations begin, in the table."""

MOST_GENERATORS, MOST_HESSIANS = 32, 8
"""Generators that are taken one by one, and those along which second derivatives are; of more, random combinations."""


@dataclass(frozen=True)
class Equivariance:
    """A group action on the parameters of a model, whether outputs are invariant under it, and what follows.

    Attributes:
        invariance: deviation of the outputs at gθ from those at θ, the largest of all elements and outputs, at θ and
            near it, relative to the spread of the output over samples; with its measured rounding.
        here: the same at θ alone.
        elements: the g that were looked at.
        moving: positions in `elements` of those that move θ; the others act as the identity and test nothing.
        parameters: number of scalar parameters P.
        samples: number of samples N.
        group: what g is, in words.
        generators: ξθ of each direction of g, like the differentiated parameters; of more than 32, so many random
            combinations; none of a finite group. One that is rounding alone is zero.
        null_directions: rank of the generators: F has at least as many null directions. 0 where outputs are not
            invariant, and where F ξθ = 0 was measured and does not hold.
        combined: whether the generators are random combinations.
        consequences: what follows, in order; empty where outputs are not invariant, or no element moves θ.
    """

    invariance: Agreement
    here: Agreement
    elements: tuple[Any, ...]
    moving: tuple[int, ...]
    parameters: int
    samples: int
    group: str
    generators: tuple[PyTree, ...] = ()
    null_directions: int = 0
    combined: bool = False
    consequences: tuple[Consequence, ...] = ()

    @property
    def invariant(self) -> bool:
        """Whether outputs are invariant, up to rounding."""
        return self.invariance.agrees

    @property
    def holds(self) -> bool:
        """Whether outputs are invariant, and what was measured holds: something, and all of it but an optimizer."""
        followed = [c for c in self.consequences if c.name != "optimizer" and c.found is not None]
        return self.invariant and bool(followed) and all(c.holds for c in followed)

    def __getitem__(self, name: str) -> Consequence:
        """A consequence by its name."""
        found = {c.name: c for c in self.consequences}
        if name not in found:
            raise KeyError(f"no consequence {name!r}; there are {', '.join(found) or 'none'}")
        return found[name]

    def __repr__(self) -> str:
        """The table of the consequences, in 80 columns."""
        lines = [
            f"Equivariance of {counted(self.parameters, 'parameter')} under {self.group}",
            f"f(gθ) = f(θ) at {counted(len(self.elements), 'element')} g, on {counted(self.samples, 'sample')}:",
        ]
        if not self.invariant:
            where = ["  it holds at θ itself, not near it"] if self.here.agrees else []
            return "\n".join([*lines, f"  {_not_invariant(self.invariance)}", *where, "nothing follows"])
        lines[-1] += f" deviation {self.invariance.residual:.1e}, rounding"
        if not self.moving:
            return "\n".join([*lines, "no element moves θ: nothing was tested"])
        if idle := len(self.elements) - len(self.moving):
            lines.append(
                f"{idle} of the elements act{'s' * (idle == 1)} as the identity, and test{'s' * (idle == 1)} nothing"
            )
        lines += self._about_null_directions()
        for c in self.consequences:
            number = f"{c.deviation:.1e}" if c.found is not None else ""
            lines.append(f"  {c.formula}".ljust(COLUMN + c.formula.count("\u0303")) + f"{number:>8}  {c.outcome}")
            lines += [f"      {c.note}"] if c.note else []
        return "\n".join(lines)

    def _about_null_directions(self) -> list[str]:
        if not self.generators:
            return []
        null = self["null"]
        if null.found is not None and not null.holds:
            return ["null directions of F: no conclusion, F ξθ = 0 was not found"]
        if not self.null_directions and not any(leaf.any() for leaf in jax.tree.leaves(self.generators)):
            return ["every generator ξθ is zero, though elements move θ: no null direction counts"]
        of = f"the rank of {len(self.generators)} random combinations" if self.combined else "the generators ξθ"
        return [f"null directions of F: at least {self.null_directions}, {of}"]


def _not_invariant(found: Agreement) -> str:
    """What the deviation of the outputs says."""
    if found.undefined:
        return "no conclusion: outputs at some gθ are NaN or infinite"
    sizes = f"deviation {found.residual:.1e}, rounding about {found.rounding:.0e}"
    if found.residual <= found.tolerance:
        return f"no conclusion: {sizes} is too large"
    return f"not invariant: {sizes}" + ("; a near-symmetry" if found.residual < WITNESS else "")


def equivariance(
    apply: NormalizedGLM | Callable[[PyTree, PyTree], PyTree],
    params: PyTree,
    X: PyTree,
    action: Callable[[Any, PyTree], PyTree],
    *,
    family: AbstractDistribution | PyTree | None = None,
    y: PyTree = None,
    identity: Any = 0.0,
    elements: Sequence[Any] | None = None,
    optimizer: optax.GradientTransformation | Callable[[Any], optax.GradientTransformation] | None = None,
    steps: int = 5,
    batch_coupled: bool | None = None,
    tol: float | None = None,
    key: PRNGKeyArray | None = None,
) -> Equivariance:
    r"""Checks $f_{g\theta} = f_\theta$ on data, and measures what follows from it.

    With $\xi\theta = \partial_g (g\theta)$ at the identity, $Dg$ the derivative of $g\theta$ by θ, and L the mean of
    $-\log p(y \mid f_\theta(x))$:

    - "fisher": $F(g\theta) = Dg^{-\top} F(\theta)\, Dg^{-1}$, as $Dg^\top F(g\theta)\, Dg\, v = F(\theta)\, v$;
    - "null": $F\, \xi\theta = 0$;
    - "gradient": $Dg^\top \nabla L(g\theta) = \nabla L(\theta)$;
    - "orthogonality": $\langle \xi\theta, \nabla L\rangle = 0$;
    - "hessian": $\nabla^2 L\, \xi\theta = -(D\xi)^\top \nabla L$, the derivative of the line above;
    - "norm": where $A = D\xi$ is symmetric and constant, gradient flow conserves
      $Q = \langle \xi 0, \theta\rangle + \tfrac12 \langle\theta, A\theta\rangle$, and a step of SGD adds
      $\tfrac12 \eta^2 \langle \nabla L, A \nabla L\rangle$: for $W \mapsto cW$, $\|W\|^2$ grows by
      $\eta^2\|\nabla_W L\|^2$; a shift conserves $\langle \xi 0, \theta\rangle$ under SGD too;
    - "sgd", "momentum": where gθ is affine in θ, g maps the run from θ to the run from gθ with rate
      $\eta\, Dg\, Dg^\top$; for orthogonal Dg that is the same rate, for $W \mapsto cW$ it is $c^2 \eta$ on W;
    - "natural_gradient": with the same rate, and damping $\rho I$ that becomes $\rho\, Dg^{-\top} Dg^{-1}$;
    - "optimizer": the same question for an optimizer of your own. It is no consequence, and may fail: Adam's steps are
      no vectors, and a rotation does not map its runs.

    Where outputs are not invariant nothing follows: the result has no consequences, and says by how much they differ.
    Outputs are compared at θ and at points near it, since derivatives by θ are used; those of a softmax up to a shift
    of all logits. Each output is judged on its own, relative to its spread over samples. A deviation is rounding up to
    10 times the change of that output when the parameters change by one unit in the last place. Runs are compared at
    all elements that move θ, and the note names the worst; their rounding is measured in the same way.

    Deviations of consequences are relative to the size that the same quantity has in directions with the same entries
    up to random signs. Their tolerance is that of the dtype (`lngeom.numerics.tolerance`). Where that size is zero, as
    where no output depends on the parameters, a consequence is "not measured".

    What is not checked: that the action is a group action, g(hθ) = (gh)θ with inverses. At g₀ it must be the identity.
    Elements other than those looked at may fail.

    When not to use it: to find symmetries, for which there are `lg.discover_symmetries` and the null space of F.

    Args:
        apply: a `NormalizedGLM`, or a function apply(params, X) → outputs, as `lg.fisher` takes.
        params: θ, any pytree; floating point leaves are parameters, as in `lg.fisher`.
        X: inputs, one sample a row.
        action: action(g, params) → params of the same shapes. Where g is a real number or array, all values near the
            identity must be elements.
        family: of the outputs of a function.
        y: responses; drawn from the model where None.
        identity: g₀, a real number or an array: 0.0 of shifts and rotations by an angle, 1.0 of a scaling. None of a
            finite group, which has no generators.
        elements: the g to look at, a list or an array with one g a row; by default 4, drawn within ½ of g₀. Needed for
            a finite group.
        optimizer: an optax optimizer for both runs, or a function g ↦ optimizer, called at g₀ for the run from θ.
        steps: of each run, of 5 % of ‖θ‖ each at first.
        batch_coupled: whether samples interact, as in `lg.fisher`.
        tol: relative deviation that counts as rounding; by default what was measured for outputs, and that of the dtype
            for consequences.
        key: of the draws.

    Returns:
        The result; `print` it, or take `result["fisher"].deviation`.

    Raises:
        ValueError: if the action changes shapes, dtypes or the pytree, is not finite, is not the identity at g₀, or
            changes what is no parameter; if identity and elements do not fit, params are no pytree, or it is called
            under jit; and where `lg.fisher` raises.

    Example:
        >>> import jax, lngeom as lg
        >>> model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
        >>> theta = model.init(jax.random.key(0), inputs=3, outputs=5)
        >>> X = jax.random.normal(jax.random.key(1), (40, 3))
        >>> scale = lambda c, p: lg.GLMParameters(c * p.weights, p.bias, p.gain)
        >>> found = lg.equivariance(model, theta, X, scale, identity=1.0)
        >>> found.invariant, found.null_directions, found.holds
        (True, 1, True)
    """
    steps = check_count("steps", steps, 1, what="a whole number of steps")
    check_nonnegative("tol", 0.0 if tol is None else tol)
    if not callable(action):
        raise ValueError(f"action must be a function action(g, params) → params; got {type(action).__name__}")
    own = _read_optimizer(optimizer)
    _require_pytree(params)
    F = fisher(apply, params, X, family=family, batch_coupled=batch_coupled)
    problem, theta = F.problem, F.problem.params
    if not problem.is_concrete:
        raise ValueError("equivariance measures values, which do not exist yet under jit: call it outside jit and vmap")
    keys = iter(jax.random.split(probe_key() if key is None else key, 6))
    unit = read_identity(identity, problem.dtype)
    chosen = read_elements(elements, unit, next(keys))
    acting = Action(action, problem, unit)
    acting.require_identity(theta)
    if own is not None:
        own(unit)  # raises before long computations
    loss = Loss.of(problem, y, next(keys))
    limit = MARGIN * float(problem.precision().eps) if tol is None else float(tol)
    here, everywhere = invariance(acting, chosen, tol, next(keys))
    moving = {k: g for k, g in enumerate(chosen) if moves(acting, g)}
    result = Equivariance(everywhere, here, tuple(chosen), tuple(moving), problem.size, problem.samples, _group(unit))
    if not result.invariant or not moving:
        return result
    measured = Measured(F, acting, moving, loss, limit, next(keys))
    directions = acting.directions(draw := next(keys), MOST_GENERATORS)
    generators = Generators.of(acting, directions, next(keys))
    found, null_directions = [measured.fisher(), measured.gradient()], 0
    if directions:
        few = acting.directions(draw, MOST_HESSIANS)
        found += [null := measured.null(generators.tangents), measured.orthogonality(generators.tangents)]
        found += [measured.hessian(few), measured.norm(few, steps)]
        null_directions = generators.rank if null.holds or null.found is None else 0
    found += measured.runs(steps)
    if own is not None:
        found.append(measured.own_run(own, steps))
    return replace(
        result,
        generators=generators.tangents,
        null_directions=null_directions,
        combined=unit is not None and unit.size > MOST_GENERATORS,
        consequences=tuple(found),
    )


def _require_pytree(params: PyTree) -> None:
    """Refuses an object with fields that JAX takes for a leaf.

    Raises:
        ValueError: if a leaf is a dataclass.
    """
    for leaf in jax.tree.leaves(params):
        if is_dataclass(leaf):
            name = (leaf if isinstance(leaf, type) else type(leaf)).__name__
            raise ValueError(f"{name} is not a pytree: register it (jax.tree_util.register_dataclass)")


def _read_optimizer(optimizer: Any) -> Any:
    """The function g ↦ optimizer.

    Raises:
        ValueError: if it is neither an optimizer nor a function.
    """
    if hasattr(optimizer, "update"):
        return lambda g: optimizer
    if optimizer is None:
        return None
    if not callable(optimizer):
        raise ValueError(f"optimizer must be one of optax, or a function g ↦ optimizer; got {type(optimizer).__name__}")

    def at(g: Any) -> optax.GradientTransformation:
        found: Any = optimizer(g)
        if not (hasattr(found, "init") and hasattr(found, "update")):
            raise ValueError(
                f"optimizer(g) must return an optimizer of optax; got {type(found).__name__} at g = {shown(g)}"
            )
        return found

    return at


def _group(unit: Array | None) -> str:
    if unit is None:
        return "a finite group"
    return f"g, {'a real number' if not unit.ndim else shown(unit)}" + (
        f", identity {shown(unit)}" if not unit.ndim else ""
    )
