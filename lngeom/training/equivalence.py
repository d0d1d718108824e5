r"""Equivalent hyperparameters: runs with other scales, or without weight decay, that compute the same functions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.training.laws import check_settings, law_of

Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class EquivalentSchedule:
    r"""A run that computes the same function at every step.

    Attributes:
        optimizer: name of the optimizer.
        learning_rate: η of every step: a number, or a schedule of the step count.
        weight_decay: λ, a number or a schedule.
        weight_scale: factor on the initial scale-invariant weights.
        momentum: β, or β₁; None where the optimizer has none.
        b2: β₂; None where it has none.
        eps: the constant in the denominator.
        initial_trace: initial momentum buffer, as a multiple of the initial weights of this run.
        norm_ratio: ‖w‖ of this run over ‖w‖ of the given one, as a function of the step count.
    """

    optimizer: str
    learning_rate: float | Schedule
    weight_decay: float | Schedule
    weight_scale: float
    momentum: float | None
    b2: float | None
    eps: float
    initial_trace: float
    norm_ratio: Schedule


_NOT_EXPONENTIAL = {
    "adam_l2": "its weight decay is part of the gradient and enters both moments; decouple it ('adamw')",
    "adaptive": "its conversion depends on the particular adaptive optimizer",
    "rmsprop": "no memory is known here that makes up for the decay from its first step on; use 'adamw' with β₁ = 0",
    "lamb": "its weight decay is inside the trust ratio, which fixes the length of a step whatever the decay is",
    "lars": "its weight decay is inside the trust ratio, which fixes the length of a step whatever the decay is",
    "natural_gradient": "the Fisher matrix of the run without decay is scaled from step to step, and damping with it",
}


def equivalent_schedule(
    optimizer: str,
    learning_rate: float | Schedule,
    weight_decay: float | Schedule = 0.0,
    *,
    scale: float | None = None,
    without_weight_decay: bool = False,
    momentum: float | None = None,
    b2: float | None = None,
    eps: float = 0.0,
    bias_correction: bool = True,
    nesterov: bool = False,
) -> EquivalentSchedule:
    r"""Converts hyperparameters to those of a run that computes the same function at every step.

    With `scale` = c the run starts from cW. The hyperparameters η, λ and ε are multiplied by powers of c (see `LAWS`),
    and so is a schedule of η. For lars this holds with weight decay inside the trust ratio, as in optax: η stays the
    same and λ scales as c⁻².

    `without_weight_decay` converts to a run with λ = 0 and a growing learning rate. With $A_t = \prod_{s<t}
    (1-\eta_s\lambda)$ and $w_t = A_t \tilde w_t$,

    - sgd: $\tilde\eta_t = \eta_t/(A_t A_{t+1})$; normalized_gd: $\tilde\eta_t = \eta_t/A_{t+1}$;
    - momentum β, η constant: α the larger root of $\alpha^2 - (1+\beta-\lambda\eta)\alpha + \beta = 0$, $\tilde\eta_t =
      \eta\alpha^{-2t-1}$, the buffer starts with $-(1-\alpha)/(\eta\alpha)$ times the weights;
    - adamw, η constant, ε = 0, α = 1 − ηλ: adam with β₁α and β₂α² and $\tilde\eta_t = \eta\alpha^{-t-1} \cdot
      \frac{1-\beta_1}{1-\beta_1\alpha} \sqrt{\frac{1-\beta_2\alpha^2}{1-\beta_2}}$, times the ratio of the bias
      corrections of the two runs;
    - lion, η constant: β₂α, and β₁ such that $\frac{\tilde\beta_1}{1-\tilde\beta_1} =
      \frac{\beta_1\alpha}{1-\beta_1} \cdot \frac{1-\beta_2}{1-\beta_2\alpha}$; muon: βα; both $\tilde\eta_t =
      \eta\alpha^{-t-1}$.

    Only the scale-invariant weights are converted. Use `optax.partition` to keep the hyperparameters of the other
    parameters.

    Args:
        optimizer: one of `LAWS`.
        learning_rate: η, a number or an optax schedule.
        weight_decay: λ, a number or, with `scale`, a schedule.
        scale: c > 0.
        without_weight_decay: convert to exponential learning rates instead.
        momentum: β of momentum and muon, β₁ of the Adam family and lion.
        b2: β₂ of the Adam family and lion.
        eps: ε of the denominator; the damping of the natural gradient.
        bias_correction: whether Adam's moments are corrected, as optax's are; in both runs.
        nesterov: whether momentum is Nesterov's.

    Returns:
        The hyperparameters of the other run.

    Raises:
        ValueError: if the optimizer is unknown, not exactly one conversion is chosen, a number is out of its range, or
            the equivalence does not hold. The message gives the reason.

    Source: van Laarhoven 2017 (arXiv 1706.05350); Li and Arora 2020 (arXiv 1910.07454) for exponential rates.

    Example:
        >>> equivalent_schedule("sgd", 0.1, 1e-4, scale=2.0).learning_rate
        0.4
    """
    law = law_of(optimizer)
    if (scale is None) == (not without_weight_decay):
        raise ValueError("choose one conversion: scale=c, or without_weight_decay=True")
    check_settings(
        **{"learning_rate": learning_rate} if not callable(learning_rate) else {},
        weight_decay=weight_decay,
        eps=eps,
        **{name: value for name, value in (("momentum", momentum), ("b2", b2)) if value is not None},
    )
    if scale is not None:
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite (a negative one turns g to −g); got {scale}")
        if optimizer == "adaptive" and eps > 0:
            raise ValueError(
                "the conversion of eps depends on the particular adaptive optimizer: eps / c where it is added to a "
                f"root, eps / c² inside one, as in optax.rmsprop; convert it yourself and leave it out; got {eps}"
            )
        return EquivalentSchedule(
            optimizer,
            _times(scale**law.rate, learning_rate),
            _times(scale**law.decay, weight_decay),
            scale,
            momentum,
            b2,
            scale**law.eps * eps,
            0.0,
            lambda count: jnp.full_like(jnp.asarray(count, float), scale),
        )
    if callable(weight_decay):
        raise ValueError(
            "without_weight_decay=True needs a constant weight_decay; got a schedule, which scale=c alone converts"
        )
    return _exponential(optimizer, learning_rate, weight_decay, momentum, b2, eps, bias_correction, nesterov)


def equivalent_decay(
    optimizer: str,
    learning_rate: float,
    growth: float,
    *,
    momentum: float | None = None,
) -> EquivalentSchedule:
    r"""Converts an exponentially growing learning rate without weight decay to a constant one with weight decay.

    The inverse of `equivalent_schedule(without_weight_decay=True)`. With $\tilde\eta_t = \tilde\eta_0 r^t$,

    - sgd: $\alpha = r^{-1/2}$, $\eta = \alpha\tilde\eta_0$, $\lambda = (1-\alpha)/\eta$;
    - momentum β: the same α and η, $\lambda = (1-\alpha)(1-\beta/\alpha)/\eta$, for α > √β. The buffer starts with
      $(1-\alpha)/(\eta\alpha)$ times the weights;
    - normalized_gd and muon (β/α for β): $\alpha = r^{-1}$, and the rest as for sgd.

    Args:
        optimizer: one of these. Others have memories of weights that no constant rate reproduces from the first step.
        learning_rate: η̃₀, the rate of the first step.
        growth: r > 1, by which it is multiplied at every step; r < 1 would be a negative weight decay.
        momentum: β.

    Returns:
        The run with weight decay.

    Raises:
        ValueError: if the optimizer is unknown or another, a number is out of its range, or the rate grows too fast for
            the momentum.

    Source: Li and Arora 2020 (arXiv 1910.07454).

    Example:
        >>> run = equivalent_decay("sgd", 0.1, 1.0002)
        >>> round(run.learning_rate, 5), round(run.weight_decay, 5)
        (0.09999, 0.001)
    """
    law = law_of(optimizer)
    if optimizer not in {"sgd", "momentum", "normalized_gd", "muon"}:
        reason = _NOT_EXPONENTIAL.get(
            optimizer, "the ratio of its two memories would depend on the decay; convert in the other direction"
        )
        raise ValueError(f"a growing learning rate of {optimizer!r} cannot be converted to weight decay: {reason}")
    if callable(learning_rate):
        raise ValueError(
            "give the rate of the first step, and growth= for its factor from step to step; got a schedule"
        )
    check_settings(learning_rate=learning_rate, **({} if momentum is None else {"momentum": momentum}))
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive and finite; got {learning_rate}")
    if not 1 <= growth < math.inf:
        raise ValueError(f"growth must be at least 1: a rate that falls is no weight decay; got {growth}")
    alpha = growth ** (-1 / law.rate)
    rate = learning_rate * alpha
    decay, trace = (1 - alpha) / rate, 0.0
    if optimizer == "momentum":
        beta = _needed("momentum", momentum, optimizer)
        if not alpha**2 > beta:
            raise ValueError(
                f"growth must be below 1/β = {1 / beta:.3g}, or weight decay with momentum cannot follow; got {growth}"
            )
        decay, trace = decay * (1 - beta / alpha), (1 - alpha) / (rate * alpha)
    if optimizer == "muon":
        longer = _needed("momentum", momentum, optimizer) / alpha
        if not longer < 1:
            raise ValueError(f"growth · β must be below 1, or the average never forgets; got {longer}")
        momentum = longer
    return EquivalentSchedule(
        optimizer,
        rate,
        decay,
        1.0,
        momentum,
        None,
        0.0,
        trace,
        lambda count: jnp.power(alpha, jnp.asarray(count, float)),
    )


@dataclass(frozen=True)
class FixedNormSchedule:
    r"""A run on a sphere that goes through the same directions.

    Attributes:
        optimizer: name of the optimizer, without weight decay.
        norm: the norm R to which the weights are set before the first step and after every step.
        learning_rate: rate of every step, a schedule.
        gradient_factor: factor of the gradients before they enter the optimizer, a schedule; 1 for sgd and
            normalized_gd.
    """

    optimizer: str
    norm: float
    learning_rate: Schedule
    gradient_factor: Schedule


def fixed_norm_schedule(
    optimizer: str,
    learning_rate: float | Schedule,
    weight_decay: float = 0.0,
    *,
    initial_norm: float | None = None,
    norms: Any = None,
    norm: float = 1.0,
) -> FixedNormSchedule:
    r"""Converts a run with weight decay to one whose scale-invariant weights keep the norm R.

    A step $w^+ = (1-\eta\lambda)w - \eta u$ turns the direction of w as $R\hat w - \tilde\eta\tilde u$ does, with

    - normalized_gd: $\tilde\eta_t = R\eta_t/((1-\eta_t\lambda)n_t)$, where $n_{t+1}^2 = (1-\eta_t\lambda)^2n_t^2 +
      \eta_t^2$ is known in advance from $n_0$ = `initial_norm`: one run for all data;
    - sgd: $\tilde\eta_t = R^2\eta_t/((1-\eta_t\lambda)n_t^2)$, where $n_t = \|w_t\|$ has to be recorded;
    - adamw (ε = 0, any bias correction), lion: $\tilde\eta_t = R\eta_t/((1-\eta_t\lambda)n_t)$ with recorded $n_t$, and
      gradients times $R/n_t$: their moments weigh gradients by the norm at their time;
    - lars without weight decay: $\tilde\eta_t = \eta_t$, as every step turns the weights by the same angle.

    The norms of sgd, adamw and lion depend on the data, so that no schedule that is chosen in advance is equivalent to
    their weight decay. With the norms of a run, as recorded by a tracker with `every=1`, it is exact for that run.

    Args:
        optimizer: one of these. Weight decay is decoupled for normalized_gd, adamw and lion.
        learning_rate: η, a number or a schedule.
        weight_decay: λ.
        initial_norm: n₀, for normalized_gd.
        norms: n_t before each step, [T], for sgd, adamw and lion. Later steps have the last.
        norm: R.

    Returns:
        The run on the sphere. Set the weights to the norm R again after every step, as by
        `optax.projections.projection_l2_sphere(weights, scale=R)`.

    Raises:
        ValueError: if there is no such run, the norms are missing, or a number is out of its range.

    Source: van Laarhoven 2017 (arXiv 1706.05350) for the direction's step; Hyperball (arXiv 2606.16899) for runs on a
    sphere.

    Example:
        >>> run = fixed_norm_schedule("normalized_gd", 0.1, 0.1, initial_norm=0.7)
        >>> [round(float(run.learning_rate(t)), 4) for t in (0, 500)]
        [0.1443, 0.1425]
    """
    law_of(optimizer)
    if optimizer == "lars" and weight_decay:
        _refuse_sphere(optimizer, "inside the trust ratio the decay changes the direction of its step; set it to zero")
    if optimizer == "momentum":
        _refuse_sphere(
            optimizer,
            "its buffer adds gradients, and decay with them, across weights of different norms, and is not orthogonal "
            "to the weights on the sphere",
        )
    if optimizer not in {"sgd", "normalized_gd", "adamw", "adam", "lion", "lars"}:
        _refuse_sphere(optimizer, "no exact step on the sphere is known for it")
    numbers = {"weight_decay": weight_decay, "norm": norm}
    numbers |= {} if callable(learning_rate) else {"learning_rate": learning_rate}
    check_settings(**numbers)
    if not 0 < norm < math.inf:
        raise ValueError(f"norm must be positive and finite; got {norm}")
    rate = learning_rate if callable(learning_rate) else lambda count: jnp.asarray(learning_rate, float)
    if not callable(learning_rate) and not learning_rate * weight_decay < 1:
        raise ValueError(f"learning_rate · weight_decay must be below 1; got {learning_rate * weight_decay}")
    one = lambda count: jnp.ones((), float)  # noqa: E731
    if optimizer == "lars":
        return FixedNormSchedule(optimizer, norm, rate, one)
    if optimizer == "normalized_gd":
        if initial_norm is None or not 0 < initial_norm < math.inf:
            raise ValueError(f"the norms follow from the first one: give initial_norm= > 0; got {initial_norm}")
        norm_at = _norms_in_advance(rate, weight_decay, initial_norm)
    else:
        if norms is None:
            _refuse_sphere(
                optimizer,
                "its norm depends on the gradients, so that no schedule chosen in advance is equivalent; give the "
                "recorded norms=, of read_geometry(state).history['norm'] with every=1, for the same run",
            )
        recorded = jnp.asarray(norms, float)
        if recorded.ndim != 1 or not recorded.size or not bool(jnp.all(jnp.isfinite(recorded) & (recorded > 0))):
            raise ValueError(f"norms must be positive and finite numbers [T]; got an array of shape {recorded.shape}")
        norm_at = lambda count: recorded[jnp.clip(jnp.asarray(count, int), 0, recorded.size - 1)]  # noqa: E731
    power = 2 if optimizer == "sgd" else 1

    def on_sphere(count):
        eta = jnp.asarray(rate(count), float)
        return eta / (1 - eta * weight_decay) * (norm / norm_at(count)) ** power

    factor = one if optimizer in {"sgd", "normalized_gd"} else lambda count: norm / norm_at(count)
    return FixedNormSchedule("adam" if optimizer == "adamw" else optimizer, norm, on_sphere, factor)


def _refuse_sphere(optimizer: str, reason: str):
    raise ValueError(f"a run of {optimizer!r} cannot be converted to one of fixed norm: {reason}")


def _norms_in_advance(rate: Schedule, decay: float, first: float) -> Schedule:
    """‖w_t‖ where every step is orthogonal to w and of length η, by a loop over the earlier steps."""

    def after(step, square):
        eta = jnp.asarray(rate(step), float)
        return jnp.square(1 - eta * decay) * square + jnp.square(eta)

    return lambda count: jnp.sqrt(
        jax.lax.fori_loop(0, jnp.asarray(count, jnp.int32), after, jnp.asarray(first, float) ** 2)
    )


def _times(factor: float, rate: float | Schedule) -> float | Schedule:
    return (lambda count: factor * rate(count)) if callable(rate) else factor * rate


def _refuse(optimizer: str, reason: str):
    raise ValueError(f"weight decay of {optimizer!r} cannot be converted to a learning rate: {reason}")


def _exponential(optimizer, rate, decay, momentum, b2, eps, bias_correction, nesterov) -> EquivalentSchedule:
    if optimizer in _NOT_EXPONENTIAL:
        _refuse(optimizer, _NOT_EXPONENTIAL[optimizer])
    if eps > 0:
        _refuse(optimizer, f"the constant in the denominator, eps = {eps}, would have to change from step to step")
    if callable(rate):
        if optimizer not in {"sgd", "normalized_gd"}:
            _refuse(optimizer, "its moments remember learning rates of the past; the conversion takes a constant one")
        return _of_schedule(optimizer, rate, decay)
    if optimizer == "momentum":
        return _of_momentum(rate, decay, momentum, nesterov)
    alpha = 1 - rate * decay
    if not alpha > 0:
        _refuse(optimizer, f"learning_rate · weight_decay must be below 1; got {rate * decay}")
    power, factor, correction = (2 if optimizer == "sgd" else 1), 1.0, None
    if optimizer == "muon":
        if nesterov:
            _refuse(optimizer, "Nesterov's look-ahead mixes buffer and gradient in a ratio that would have to change")
        momentum = _needed("momentum", momentum, optimizer) * alpha
    elif optimizer == "lion":
        b1, b2 = _needed("momentum", momentum, optimizer), _needed("b2", b2, optimizer)
        ratio = b1 * alpha / (1 - b1) * (1 - b2) / (1 - b2 * alpha)
        momentum, b2 = ratio / (1 + ratio), b2 * alpha
    elif optimizer in {"adam", "adamw"}:
        b1, old_b2 = _needed("momentum", momentum, optimizer), _needed("b2", b2, optimizer)
        momentum, b2 = b1 * alpha, old_b2 * alpha**2
        factor = (1 - b1) / (1 - momentum) * math.sqrt((1 - b2) / (1 - old_b2))
        if bias_correction:
            correction = (b1, old_b2, momentum, b2)

    def learning_rate(count):
        t = jnp.asarray(count, float)
        found = factor * rate * jnp.power(alpha, -power * t - 1)
        return found if correction is None else found * _bias_corrections(t + 1, *correction)

    return EquivalentSchedule(
        optimizer,
        learning_rate,
        0.0,
        1.0,
        momentum,
        b2,
        0.0,
        0.0,
        lambda count: jnp.power(alpha, -jnp.asarray(count, float)),
    )


def _bias_corrections(t, b1: float, b2: float, new_b1: float, new_b2: float) -> Float[Array, "..."]:
    """Bias correction of the first run over that of the second: (1−β̃₁ᵗ)/(1−β₁ᵗ) · √((1−β₂ᵗ)/(1−β̃₂ᵗ))."""
    return (1 - new_b1**t) / (1 - b1**t) * jnp.sqrt((1 - b2**t) / (1 - new_b2**t))


def _needed(name: str, value: float | None, optimizer: str) -> float:
    if value is None:
        raise ValueError(f"the conversion of {optimizer!r} depends on {name}: give {name}=")
    return value


def _of_momentum(rate: float, decay: float, momentum: float | None, nesterov: bool) -> EquivalentSchedule:
    beta = _needed("momentum", momentum, "momentum")
    if nesterov:
        _refuse("momentum", "Nesterov's look-ahead mixes buffer and gradient in a ratio that would have to change")
    limit = (1 - math.sqrt(beta)) ** 2
    if rate * decay > limit:
        _refuse("momentum", f"learning_rate · weight_decay must be at most (1 − √β)² = {limit:.3g}; got {rate * decay}")
    total = 1 + beta - rate * decay
    alpha = (total + math.sqrt(max(total**2 - 4 * beta, 0.0))) / 2
    return EquivalentSchedule(
        "momentum",
        lambda count: rate * jnp.power(alpha, -2 * jnp.asarray(count, float) - 1),
        0.0,
        1.0,
        beta,
        None,
        0.0,
        -(1 - alpha) / (rate * alpha),
        lambda count: jnp.power(alpha, -jnp.asarray(count, float)),
    )


def _of_schedule(optimizer: str, rate: Schedule, decay: float) -> EquivalentSchedule:
    """A_t by a loop that calls the schedule for every earlier step."""

    def shrinkage(count):
        return jax.lax.fori_loop(
            0,
            jnp.asarray(count, jnp.int32),
            lambda s, product: product * (1 - jnp.asarray(rate(s), float) * decay),
            jnp.ones((), float),
        )

    def learning_rate(count):
        count = jnp.asarray(count, jnp.int32)
        now, before = jnp.asarray(rate(count), float), shrinkage(count)
        after = before * (1 - now * decay)
        return now / (before * after if optimizer == "sgd" else after)

    return EquivalentSchedule(
        optimizer, learning_rate, 0.0, 1.0, None, None, 0.0, 0.0, lambda count: 1 / shrinkage(jnp.asarray(count))
    )
