"""`plan`: what weight decay does to each parameter of a model, and where its norm and angle will settle."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PyTree

from lngeom._core.text import table, terminal_width, wrapped
from lngeom._core.trees import leaf_paths
from lngeom.information._epsilon import denominators
from lngeom.training._detect import detect, require
from lngeom.training._record import Geometry
from lngeom.training._settings import UNDECAYED, Moves, Said, as_one
from lngeom.training.decay import RATE, REGULARIZER, Part, check_model, parts
from lngeom.training.equilibrium import predict_equilibrium
from lngeom.training.equivalence import equivalent_schedule
from lngeom.training.laws import LAWS, check_settings, law_of

_BY_GRADIENT = {"sgd", "momentum", "lars"}
"""Laws whose norm at rest depends on the size of the gradient."""


AT_REST = ("norm at rest", "angle at rest", "half life")
"""Headings of what is predicted."""


@dataclass(frozen=True)
class PlanRow:
    """What weight decay does to some parameters. NaN stands for unknown or undefined.

    Attributes:
        name: paths of the parameters, joined by "+".
        size: how many numbers they hold.
        acts: what weight decay does to them, or would do: "rate", "regularizer" or "none".
        decayed: whether they decay.
        norm: ‖w‖ now.
        effective_learning_rate: η/‖w‖^p now, of scale-invariant parameters.
        equilibrium_norm: ‖w‖ at rest.
        equilibrium_angle: angle per step at rest, in radians.
        half_life: steps in which half of the difference between ‖w‖^q and its value at rest is gone.
        epsilon_share: mean share of ε in the denominators of the norms that these parameters are scaled in.
        remark: conditions of the prediction, or why there is none.
    """

    name: str
    size: int
    acts: str
    decayed: bool
    norm: float
    effective_learning_rate: float
    equilibrium_norm: float
    equilibrium_angle: float
    half_life: float
    epsilon_share: float
    remark: str


@dataclass(frozen=True)
class NormRow:
    """A norm in the model.

    Attributes:
        number: its place in the order of the program, from 0.
        eps: ε.
        share: mean of ε/(x + ε) over all denominators √(x + ε) that it has for the inputs.
        largest_share: the largest.
        of: names of the scale-invariant parameters that its denominator is proportional to.
    """

    number: int
    eps: float
    share: float
    largest_share: float
    of: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What `plan` found. `print` shows it as a table; `pandas.DataFrame(plan.rows)` takes its data.

    Attributes:
        optimizer: name of the optimizer's law.
        learning_rate: η.
        weight_decay: λ.
        parameters: one entry for each part of the parameters.
        norms: one entry for each norm whose ε was read.
        groups: paths of each scale-invariant set, by name, as `scale_invariant_groups` gives them.
        equivalences: sentences on changes of η, λ and the initial scale that are one and the same run.
    """

    optimizer: str
    learning_rate: float
    weight_decay: float
    parameters: tuple[PlanRow, ...]
    norms: tuple[NormRow, ...]
    groups: Mapping[str, tuple[str, ...]]
    equivalences: tuple[str, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The entries of all parameters, as dictionaries."""
        return [asdict(row) for row in self.parameters]

    def equivalent(self, factor: float) -> dict[str, float]:
        """Factors of a run at the same η that is the same as one at `factor` times η, with the rest unchanged.

        Args:
            factor: of the learning rate.

        Returns:
            Factors of "weight_decay", "eps" and "initial_weights" (of the scale-invariant ones).

        Raises:
            ValueError: if the factor is not positive and finite, or the optimizer's rate has no equivalent scale.
        """
        law = law_of(self.optimizer)
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be positive and finite; got {factor}")
        if law.rate == 0:
            raise ValueError(
                f"a step of {self.optimizer!r} turns the weights by an angle that depends on η and not on their scale: "
                "no change of scale or decay is equivalent to a change of η"
            )
        c = factor ** (-1 / law.rate)
        return {"weight_decay": c**law.decay, "eps": c**law.eps, "initial_weights": c}

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int | None = None) -> str:
        """The table of parameters, the units of its columns, and remarks.

        Args:
            width: columns, at least 40; those of the terminal by default.

        Returns:
            Lines of at most `width` columns. Where that is too few for a table, each
            parameter has a paragraph.
        """
        width = terminal_width() if width is None else width
        title = f"{self.optimizer}, learning rate {self.learning_rate:.3g}, weight decay {self.weight_decay:.3g}"
        lines = [*wrapped(title, width), ""]
        effective = {0: "η", 1: "η/‖w‖", 2: "η/‖w‖²"}[LAWS[self.optimizer].rate]
        headings = ("parameters", "decay acts as", "norm now", effective, *AT_REST, "share of ε")
        marks = self._marks()
        rows = []
        for row in self.parameters:
            numbers = (row.norm, row.effective_learning_rate, row.equilibrium_norm, row.equilibrium_angle)
            acts = row.acts if row.decayed else f"{row.acts} (not decayed)"
            mark = f" [{marks[row.remark]}]" if row.remark else ""
            rows.append((_short(row.name) + mark, acts, *map(_number, (*numbers, row.half_life, row.epsilon_share))))
        whole = max(len(word) for name, *_ in rows for word in name.split())  # paths are not broken
        columns = table([headings, *rows], width, [(0, max(14, whole)), (1, 11)], right=range(2, len(headings)))
        if max(map(len, columns)) <= width:
            lines += columns
        else:
            for name, *cells in rows:
                said = "; ".join(f"{h} {cell}" for h, cell in zip(headings[1:], cells, strict=True) if cell)
                lines += wrapped(f"{name}: {said}", width)
        units = f"{effective}: effective learning rate. Angle: radians a step. Half life: steps. Share of ε: in the "
        units += "denominators of norms, 0 to 1. "
        units += (
            "Decay as a rate leaves the function as it is: lngeom.training.decay_mask decays those parameters alone."
        )
        notes = [*(f"[{number}] {remark}" for remark, number in marks.items()), *self.equivalences]
        below = (line for note in notes for line in wrapped(note, width, "    " if note[0] == "[" else ""))
        return "\n".join([*lines, "", *wrapped(units, width, ""), *below])

    def _marks(self) -> dict[str, int]:
        remarks = dict.fromkeys(row.remark for row in self.parameters if row.remark)
        return {remark: number for number, remark in enumerate(remarks, 1)}


def _short(name: str) -> str:
    first, *others = name.split("+")
    return " + ".join([first, *others]) if len(others) < 2 else f"{first} and {len(others)} more"


def _number(value: float) -> str:
    """Three digits, in few columns; nothing for NaN."""
    if math.isnan(value):
        return ""
    if 100 <= abs(value) < 1e6:
        return f"{value:.0f}"
    text = f"{value:.3g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.2e}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def plan(
    apply: Callable[..., PyTree],
    params: PyTree,
    *args: Any,
    optimizer: optax.GradientTransformation | str,
    learning_rate: float | Callable,
    weight_decay: float | Callable = 0.0,
    mask: PyTree | None = None,
    step: int = 0,
    momentum: float | None = None,
    b2: float | None = None,
    trust_coefficient: float | None = None,
    gradient_scale: float | Mapping[str, float] | Geometry | None = None,
) -> Plan:
    r"""Says what weight decay does to each parameter, and where the norms and angles per step will settle.

    Scale-invariant weights are found by derivatives of the model, as `scale_invariant_groups` finds them, not by their
    number of axes. On them weight decay acts as a rate: norm and angle per step go to an equilibrium, which
    `predict_equilibrium` predicts for a gradient that is random over time. The share of ε is
    $\epsilon / (x + \epsilon)$ for a denominator $\sqrt{x + \epsilon}$, measured on the inputs.

    Args:
        apply: (params, *args) → outputs.
        params: the parameters.
        *args: inputs, such as a batch.
        optimizer: an optax optimizer, or the name of its law, one of `LAWS`.
        learning_rate: η, a number or a schedule.
        weight_decay: λ, a number or a schedule; decoupled or in the gradient as usual for the law (see
            `predict_equilibrium`).
        mask: which parameters decay, a tree of booleans like `params`; by default those that an optax optimizer
            decays, or all.
        step: where the schedules are read.
        momentum: β of momentum (needed for its name), or β₁ of adamw and lion (0.9 by default); of an optax optimizer
            it is found.
        b2: β₂ (by default 0.999 of adamw, 0.99 of lion and 0.9 of rmsprop).
        trust_coefficient: κ of lars.
        gradient_scale: root mean square of ‖w‖‖∇‖, for the norms of sgd, momentum and lars: a number, numbers by name
            of the parameters, or the record of a tracker with these groups.

    Returns:
        The plan.

    Raises:
        ValueError: if the model's outputs are not finite, the optimizer's law is unknown, the mask has another
            structure, the schedule has no positive value at `step`, or a number is out of its range.

    Source: Kosson et al. 2024 (arXiv 2305.17212), van Laarhoven 2017 (arXiv 1706.05350). Not to be used for a run whose
    gradient keeps its direction for many steps, such as the first ones: norms then grow faster than by a random walk.

    Example:
        >>> import jax.numpy as jnp
        >>> X = jnp.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]])
        >>> def apply(p, x):
        ...     a = x @ p["hidden"]
        ...     return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + 1e-6) * p["gain"]
        >>> params = {"gain": jnp.ones((1, 3)), "hidden": jnp.array([[1.0, 2.0, 0.5], [0.2, -1.0, 3.0]])}
        >>> found = plan(apply, params, X, optimizer="adamw", learning_rate=1e-3, weight_decay=0.1)
        >>> [(row["name"], row["acts"], round(row["equilibrium_norm"], 3)) for row in found.rows]
        [('hidden', 'rate', 0.173), ('gain', 'regularizer', nan)]
    """
    check_model(apply, params)
    given = {"momentum": momentum, "b2": b2, "trust_coefficient": trust_coefficient}
    given = {name: value for name, value in given.items() if value is not None}
    check_settings(learning_rate=learning_rate, weight_decay=weight_decay, **given)
    said = Said(learning_rate, weight_decay, momentum, b2, trust_coefficient)
    moves = _moves(optimizer, params, said)
    if isinstance(optimizer, str) and optimizer == "momentum" and momentum is None:
        raise ValueError("the equilibrium under momentum depends on it: give momentum=")
    law = _common(moves, params)
    decay = float(weight_decay(step)) if callable(weight_decay) else float(weight_decay)
    eta = float(learning_rate(step)) if callable(learning_rate) else float(learning_rate)
    if not 0 < eta < math.inf:
        where = f" at step {step} of the schedule: choose another with step=" if callable(learning_rate) else ""
        raise ValueError(f"the learning rate must be positive and finite; got {eta}{where}")
    decays = _decays(params, mask, moves)
    found = parts(
        apply, params, *args, decayed=frozenset(k for k, kept in enumerate(decays) if kept and mask is not None)
    )
    norms = _norm_rows(lambda p: apply(p, *args), params, found)
    leaves = jax.tree.leaves(params)
    rows = []
    for part in found:
        kept = [decays[k] for k in part.leaves]
        own = [row.share for row in norms if part.name in row.of]
        rows.append(
            _row(
                part,
                decayed=any(kept) and decay > 0,
                parted=any(kept) and not all(kept),
                norm=math.sqrt(sum(float(np.sum(np.square(np.asarray(leaves[k], np.float64)))) for k in part.leaves)),
                share=float(np.mean(own)) if own else math.nan,
                move=as_one([moves[k] for k in part.leaves]),
                eta=eta,
                decay=decay,
                scale=_scale_of(part, gradient_scale),
            )
        )
    paths = leaf_paths(params)
    groups = {part.name: tuple(paths[k] for k in part.leaves) for part in found if part.acts == RATE}
    return Plan(law, eta, decay, tuple(rows), norms, groups, _equivalences(law, eta, decay, momentum, b2))


def _moves(optimizer: Any, params: PyTree, said: Said) -> list[Moves]:
    """How each leaf moves."""
    paths = leaf_paths(params)
    if isinstance(optimizer, str):
        law_of(optimizer)
        return [said.of_kind(optimizer)] * len(paths)
    if not hasattr(optimizer, "update"):
        raise ValueError(
            f"optimizer must be an optax optimizer or one of {', '.join(LAWS)}; got a {type(optimizer).__name__}"
        )
    try:
        motions = detect(optax.with_extra_args_support(optimizer), params)
        known = [require(motion, path) for motion, path in zip(motions, paths, strict=True)]
    except ValueError as error:
        raise ValueError(str(error).replace("with kind=", "as optimizer=")) from error
    return said.beside(tuple((path, (k,)) for k, path in enumerate(paths)), known)


def _common(moves: list[Moves], params: PyTree) -> str:
    """The law of most parameters."""
    sizes: Counter[str] = Counter()
    for move, leaf in zip(moves, jax.tree.leaves(params), strict=True):
        sizes[move.law] += int(np.size(leaf)) if move.law else 0
    return sizes.most_common(1)[0][0] or "adaptive"


def _decays(params: PyTree, mask: PyTree | None, moves: list[Moves]) -> list[bool]:
    """Whether each leaf decays."""
    if callable(mask):
        mask = mask(params)
    if mask is None:
        return [move.remark != UNDECAYED for move in moves]
    expected, got = leaf_paths(params), leaf_paths(mask)
    if got != expected:  # not the structures: a state of nnx has nodes of its own, which a mask of booleans lacks
        raise ValueError(
            f"mask must be a tree of booleans like the parameters, with the leaves {', '.join(expected)}; "
            f"got {', '.join(got)}"
        )
    return [bool(leaf) for leaf in jax.tree.leaves(mask)]


def _scale_of(part: Part, given: Any) -> float | None:
    """The size of the gradient of some parameters, if it is given."""
    if isinstance(given, Geometry):
        given = dict(zip(given.names, map(float, np.asarray(given.gradient_scale)), strict=True))
    scale = given.get(part.name) if isinstance(given, Mapping) else given
    if scale is not None and not 0 < scale < math.inf:
        raise ValueError(f"gradient_scale must be positive and finite; got {scale} for {part.name}")
    return None if scale is None else float(scale)


def _row(part: Part, *, decayed, parted, norm, share, move: Moves, eta, decay, scale) -> PlanRow:
    rest_norm = rest_angle = half_life = effective = math.nan
    acts, remark = part.acts, ""
    if acts == RATE:
        if move.law:
            effective = eta * move.rate / norm ** LAWS[move.law].rate if norm > 0 else math.nan
        if parted:
            acts = REGULARIZER
            remark = "scale-invariant only together, but the mask decays only some of these parameters"
        elif not decayed:
            remark = "without weight decay the norm only grows, and there is no equilibrium"
        elif move.decay is None:
            remark = move.remark
        else:
            settings: dict[str, Any] = {"momentum": move.memory, "b2": move.b2, "trust_coefficient": move.trust}
            settings |= {"gradient_scale": 1.0 if scale is None else scale, "size": part.size}
            try:
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    rest = predict_equilibrium(move.law, eta * move.rate, decay * move.decay, **settings)
            except ValueError as error:
                remark = str(error)
            else:
                rest_angle, half_life = rest.angle, rest.half_life
                unknown = scale is None and move.law in _BY_GRADIENT
                rest_norm = math.nan if unknown else rest.norm
                remark = str(told[0].message) if told else "if gradients are independent over time"
                remark += "; the norm at rest needs gradient_scale=" if unknown else ""
    return PlanRow(
        name=part.name,
        size=part.size,
        acts=acts,
        decayed=decayed,
        norm=norm,
        effective_learning_rate=effective,
        equilibrium_norm=rest_norm,
        equilibrium_angle=rest_angle,
        half_life=half_life,
        epsilon_share=share,
        remark=remark,
    )


def _norm_rows(function: Callable[[PyTree], PyTree], params: PyTree, found: tuple[Part, ...]) -> tuple[NormRow, ...]:
    """The share of ε in each norm, and the parameters that its denominator is proportional to.

    A denominator belongs to parameters if it is multiplied by two, or x by four, where they are: with ε = 0 elsewhere.
    """
    read: list[tuple[float, int]] = []

    def values(p: PyTree, keep: bool) -> list:
        norms = denominators(function, p, keep=keep)
        read[:] = [(d.eps, d.power) for d in norms]
        return [d.value for d in norms]

    measure = jax.jit(values, static_argnums=1)
    shares = [(eps, eps / (np.asarray(x, float) + eps)) for (eps, _), x in _paired(measure(params, True), read)]
    base = [np.asarray(v, float) for v in measure(params, False)]
    of: list[list[str]] = [[] for _ in base]
    leaves, structure = jax.tree.flatten(params)
    for part in found:
        if part.acts == RATE:
            doubled = [2 * v if k in part.leaves else v for k, v in enumerate(leaves)]
            scaled = measure(jax.tree.unflatten(structure, doubled), False)
            for names, (_, power), before, after in zip(of, read, base, scaled, strict=True):
                expected = before * 2**power
                if np.any(expected) and np.allclose(after, expected, rtol=1e-3, atol=1e-6 * float(np.max(expected))):
                    names.append(part.name)
    return tuple(
        NormRow(k, eps, float(np.mean(share)), float(np.max(share)), tuple(names))
        for k, ((eps, share), names) in enumerate(zip(shares, of, strict=True))
    )


def _paired(values: list, read: list[tuple[float, int]]):
    return zip(list(read), values, strict=True)


def _equivalences(law: str, eta: float, decay: float, momentum: float | None, b2: float | None) -> tuple[str, ...]:
    """Changes of η, λ and the initial scale-invariant weights that give the same function at every step."""
    powers, told = LAWS[law], []
    if powers.rate == 0:
        told.append("The angle of a step does not depend on the scale of the weights.")
    else:
        c = {1: "1/f", 2: "1/√f"}[powers.rate]
        by_decay = -powers.decay / powers.rate
        raised = "f" if by_decay == 1 else f"f^{by_decay:g}"
        also = "" if powers.eps == 0 else f", ε times {'f' if powers.eps == -1 else f'f^{-powers.eps / powers.rate:g}'}"
        told.append(
            f"A learning rate f times as large is the same run as a weight decay {raised} times as large{also}, and "
            f"initial scale-invariant weights {c} times as large."
        )
    if decay > 0:
        try:
            other = equivalent_schedule(
                law,
                eta,
                decay,
                without_weight_decay=True,
                momentum=0.9 if momentum is None else momentum,
                b2=0.999 if b2 is None else b2,
            )
        except ValueError as error:
            told.append(f"No growing learning rate replaces the weight decay: {error}.")
        else:
            growth = float(other.norm_ratio(1)) ** powers.rate
            told.append(
                f"Weight decay {decay:.3g} is the same as none and a learning rate that grows by "
                f"{100 * (growth - 1):.3g} % a step; `equivalent_schedule` gives it exactly."
            )
    return tuple(told)
