r"""`lg.equivariance`: what a symmetry of a model's parameters implies, each consequence measured.

Let a group act on parameters so that $f_{g\theta} = f_\theta$. Differentiation gives identities of the Fisher matrix,
of the gradient and of the Hessian, and says which optimizers map trajectories to trajectories. They are stated and
proved in `lngeom/symbolic/equivariance.py`; here they are measured at given parameters and data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count, check_nonnegative
from lngeom._core.numerics import MARGIN, Agreement
from lngeom.families import AbstractDistribution
from lngeom.information import fisher
from lngeom.information.glm import NormalizedGLM
from lngeom.training._action import Action, read_elements, read_identity, shown
from lngeom.training._consequences import Consequence, Loss, Measured, invariance, rank

COLUMN = 48
"""Where the deviations begin, in the table."""

MOST_GENERATORS, MOST_HESSIANS = 32, 8
"""Generators that are taken one by one, and those along which second derivatives are; of more, random combinations."""


@dataclass(frozen=True)
class Equivariance:
    """A group action on the parameters of a model, whether outputs are invariant under it, and what follows.

    Attributes:
        invariance: deviation of the outputs at gθ from those at θ, the largest of all elements, at θ and near it.
        here: the same at θ alone.
        elements: the g that were looked at.
        parameters: number of scalar parameters P.
        samples: number of samples N.
        group: what g is, in words.
        generators: ξθ of each direction of g, like the differentiated parameters; of more than 32, so many random
            combinations; none of a finite group.
        null_directions: rank of the generators: F has at least as many null directions. 0 where outputs are not
            invariant.
        consequences: what follows, in order; empty where outputs are not invariant.
    """

    invariance: Agreement
    here: Agreement
    elements: tuple[Any, ...]
    parameters: int
    samples: int
    group: str
    generators: tuple[PyTree, ...] = ()
    null_directions: int = 0
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
            f"Equivariance of {self.parameters:,} parameters under {self.group}",
            f"f(gθ) = f(θ) at {len(self.elements)} elements g, on {self.samples:,} samples:",
        ]
        if not self.invariant:
            verdict = "no" if self.invariance.differs else "not shown: more than rounding, less than a clear difference"
            where = "; it holds at θ itself, not near it" if self.here.agrees else ""
            lines[-1] += f" deviation {self.invariance.residual:.1e}"
            return "\n".join([*lines, f"  {verdict}{where}", "nothing follows"])
        lines[-1] += f" deviation {self.invariance.residual:.1e}, rounding"
        if self.generators:
            lines.append(f"null directions of F: at least {self.null_directions}, the generators ξθ")
        for c in self.consequences:
            number = f"{c.deviation:.1e}" if c.found is not None else ""
            lines.append(f"  {c.formula}".ljust(COLUMN + c.formula.count("\u0303")) + f"{number:>8}  {c.outcome}")
            lines += [f"      {c.note}"] if c.note else []
        return "\n".join(lines)


def equivariance(
    apply: NormalizedGLM | Callable[[PyTree, PyTree], PyTree],
    action: Callable[[Any, PyTree], PyTree],
    params: PyTree,
    X: PyTree,
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
    of all logits. Deviations are relative to the size that the same quantity has in directions with the same entries up
    to random signs. The tolerance is that of the dtype (`lngeom.numerics.tolerance`). Where that size is zero, as where
    no output depends on the parameters, a consequence is "not measured".

    When not to use it: to find symmetries, for which there are `lg.discover_symmetries` and the null space of F.

    Args:
        apply: a `NormalizedGLM`, or a function apply(params, X) → outputs, as `lg.fisher` takes.
        action: action(g, params) → params of the same shapes. Where g is a real number or array, all values near the
            identity must be elements.
        params: θ, any pytree; floating point leaves are parameters, as in `lg.fisher`.
        X: inputs, one sample a row.
        family: of the outputs of a function.
        y: responses; drawn from the model where None.
        identity: g₀, a real number or an array: 0.0 of shifts and rotations by an angle, 1.0 of a scaling. None of a
            finite group, which has no generators.
        elements: the g to look at; by default 4, drawn within ½ of g₀. Needed for a finite group.
        optimizer: an optax optimizer for both runs, or a function g ↦ optimizer, called at g₀ for the run from θ.
        steps: of each run, of 5 % of ‖θ‖ each at first.
        batch_coupled: whether samples interact, as in `lg.fisher`.
        tol: relative deviation that counts as rounding; by default that of the dtype.
        key: of the draws.

    Returns:
        The result; `print` it, or take `result["fisher"].deviation`.

    Raises:
        ValueError: if the action changes shapes, dtypes or the pytree, is not finite, is not the identity at g₀, or
            changes what is no parameter; if identity and elements do not fit, or it is called under jit; and where
            `lg.fisher` raises.

    Example:
        >>> import jax, lngeom as lg
        >>> model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
        >>> theta = model.init(jax.random.key(0), inputs=3, outputs=5)
        >>> X = jax.random.normal(jax.random.key(1), (40, 3))
        >>> scale = lambda c, p: lg.GLMParameters(c * p.weights, p.bias, p.gain)
        >>> found = lg.equivariance(model, scale, theta, X, identity=1.0)
        >>> found.invariant, found.null_directions, found.holds
        (True, 1, True)
    """
    steps = check_count("steps", steps, 1, what="a whole number of steps")
    check_nonnegative("tol", 0.0 if tol is None else tol)
    if not callable(action):
        raise ValueError(f"action must be a function action(g, params) → params; got {type(action).__name__}")
    own = _read_optimizer(optimizer)
    F = fisher(apply, params, X, family=family, batch_coupled=batch_coupled)
    problem, theta = F.problem, F.problem.params
    if not problem.is_concrete:
        raise ValueError("equivariance measures values, which do not exist yet under jit: call it outside jit and vmap")
    keys = iter(jax.random.split(jax.random.key(0) if key is None else key, 5))
    unit = read_identity(identity, problem.dtype)
    chosen = read_elements(elements, unit, next(keys))
    acting = Action(action, problem, unit)
    acting.require_identity(theta)
    loss = Loss.of(problem, y, next(keys))
    limit = MARGIN * float(problem.precision().eps) if tol is None else float(tol)
    here, everywhere = invariance(acting, chosen, limit, next(keys))
    result = Equivariance(everywhere, here, tuple(chosen), problem.size, problem.samples, _group(unit))
    if not result.invariant:
        return result
    measured = Measured(F, acting, chosen, loss, limit, next(keys))
    directions = acting.directions(draw := next(keys), MOST_GENERATORS)
    generators = tuple(acting.generator(e, theta) for e in directions)
    found = [measured.fisher(), measured.gradient()]
    if directions:
        few = acting.directions(draw, MOST_HESSIANS)
        found += [measured.null(generators), measured.orthogonality(generators)]
        found += [measured.hessian(few), measured.norm(few, steps)]
    found += measured.runs(steps)
    if own is not None:
        found.append(measured.own_run(own, steps))
    return replace(result, generators=generators, null_directions=rank(generators), consequences=tuple(found))


def _read_optimizer(optimizer: Any) -> Any:
    """The function g ↦ optimizer.

    Raises:
        ValueError: if it is neither an optimizer nor a function.
    """
    if hasattr(optimizer, "update"):
        return lambda g: optimizer
    if optimizer is not None and not callable(optimizer):
        raise ValueError(f"optimizer must be one of optax, or a function g ↦ optimizer; got {type(optimizer).__name__}")
    return optimizer


def _group(unit: Array | None) -> str:
    if unit is None:
        return "a finite group"
    return f"g, {'a real number' if not unit.ndim else shown(unit)}" + (
        f", identity {shown(unit)}" if not unit.ndim else ""
    )
