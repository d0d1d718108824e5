r"""The equilibrium of weight decay and noisy gradients: stationary norm and angle of scale-invariant weights."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import scipy

from lngeom.training.laws import check_settings, law_of

_REFUSED = {
    "adam_l2": "weight decay inside the moments is divided by the size of the gradient, so that no closed form holds; "
    "decouple it and use 'adamw'",
    "muon": "the correlation in time of orthogonalized momentum has no closed form",
    "adaptive": "its equilibrium depends on the particular adaptive optimizer",
    "lamb": "the correlation in time of its momentum has no closed form",
    "natural_gradient": "the length of its step depends on the Fisher matrix along the way",
}


@dataclass(frozen=True)
class Equilibrium:
    r"""The stationary state of scale-invariant weights under weight decay.

    Attributes:
        angle: between the weights before and after a step, in radians.
        norm: ‖w‖.
        relaxation: rate per step at which $\|w\|^q$ approaches its stationary value, $e^{-\text{rate}\cdot t}$.
        power: q; −2 for lars, whose ‖w‖² follows a logistic curve.
        half_life: steps in which a small difference of $\|w\|^q$ from its stationary value halves.
    """

    angle: float
    norm: float
    relaxation: float
    power: int
    half_life: float


SLOW = 0.1
"""Largest ηλ, in units of an optimizer's slowest 1 − β, for which its prediction is right to about 5 %."""


SHORT = 0.89
"""Least β₂ of averages of squared gradients for which a prediction is right to about 5 %, in simulations: 0.9, with
room for one that is measured."""


def is_short(optimizer: str, b2: float) -> bool:
    """Whether squared gradients are averaged over so few steps that an average depends on the last one."""
    signs = optimizer == "rmsprop" and b2 == 0
    return optimizer in {"adam", "adamw", "rmsprop"} and b2 < SHORT and not signs


def largest_product(optimizer: str, momentum: float, b2: float) -> float:
    """The largest ηλ for which norm and angle of a prediction are right to about 5 %, in simulations.

    Averages of squared gradients may turn as slowly as the weights; those of gradients must turn ten times as fast.
    None is right where squared gradients are averaged over a few steps only.
    """
    if is_short(optimizer, b2):
        return 0.0
    forget = 1 - b2
    return {
        "momentum": SLOW * (1 - momentum),
        "lion": SLOW * forget,
        "adamw": 1.5 * forget,
        "adam": 1.5 * forget,
        "rmsprop": 1.5 * forget,
    }.get(optimizer, 1.0)


def lagging_half_life(product: float, b2: float) -> float:
    r"""Steps in which a small excess a of ‖w‖² halves where an average of squared gradients lags behind.

    Gradients are of size 1/‖w‖. With y the relative excess of their mean square, which starts at −a,
    $a' = -2\eta\lambda (2a + y)$ and $y' = -(1-\beta_2)(y + a)$. For a short memory that is $a' = -2\eta\lambda a$.

    Args:
        product: ηλ.
        b2: β₂.

    Returns:
        The half-life.
    """
    forget = 1 - b2
    mean = 2 * product + forget / 2
    spread = math.sqrt(mean**2 - 2 * product * forget)

    def left(t: float) -> float:
        decayed = math.exp(-2 * spread * t)
        both = (1 + decayed) / 2 + (mean - 2 * product) / spread * (1 - decayed) / 2
        return math.exp((spread - mean) * t) * both - 0.5

    found: Any = scipy.optimize.brentq(left, 0.0, 10 / (mean - spread))
    return float(found)


def lion_correlation(b1: float, b2: float) -> float:
    r"""$S = \sum_{h\in\mathbb Z} \frac2\pi \arcsin \rho_h$: variance of a sum of Lion's signs over that of one sign.

    ρ is the correlation in time of $\beta_1 m_{t-1} + (1-\beta_1) g_t$ for independent gradients; the correlation of
    the signs of two Gaussians is $\frac2\pi\arcsin\rho$.

    Args:
        b1: β₁.
        b2: β₂.

    Returns:
        S, 1 without memory.
    """
    tail = (b1 * (1 - b2)) ** 2 / (1 - b2**2)
    variance, total, h = (1 - b1) ** 2 + tail, 1.0, 1
    while True:
        covariance = (1 - b1) * b1 * (1 - b2) * b2 ** (h - 1) + tail * b2**h
        if covariance < 1e-12 * variance:
            return total
        total += 2 * (2 / math.pi) * math.asin(covariance / variance)
        h += 1


def at_rest(optimizer: str, eta, decay, beta, b2, scale, size, trust, by: Any = math) -> tuple | None:
    """Angle, norm, relaxation and power of `predict_equilibrium`, whose arguments it takes, in numbers or in JAX.

    Args:
        optimizer: one of `LAWS`.
        eta: η.
        decay: λ > 0.
        beta: β of momentum, β₁ of the Adam family and lion.
        b2: β₂ of lion.
        scale: G̃.
        size: P.
        trust: κ of lars.
        by: the module of the functions: `math` for numbers, `jax.numpy` for arrays.

    Returns:
        The four values, or None where there is no closed form.
    """
    product = eta * decay

    def angle(versine):
        """From 1 − cos θ: small angles are lost in cos θ itself, in float32."""
        return 2 * by.asin(by.sqrt(versine / 2))

    match optimizer:
        case "sgd" | "momentum":
            beta = beta if optimizer == "momentum" else 0.0
            fourth = eta * scale**2 * (1 + beta) / (decay * (1 - beta) * (2 * (1 + beta) - product))
            return angle(product / (1 + beta)), fourth**0.25, 4 * product / (1 - beta), 4
        case "normalized_gd":
            return angle(product), by.sqrt(eta / (decay * (2 - product))), 2 * product, 2
        case "adamw" | "adam" | "rmsprop":
            beta = 0.0 if optimizer == "rmsprop" else beta
            kept = (1 - product) * beta
            square = eta * size * (1 - beta) * (1 + kept) / ((1 + beta) * decay * (2 - product) * (1 - kept))
            return angle(product * (1 - beta) / (1 + kept)), by.sqrt(square), 2 * product, 2
        case "lion":
            memory = lion_correlation(beta, b2)
            return by.sqrt(2 * product / memory), by.sqrt(eta * size * memory / (2 * decay)), 2 * product, 2
        case "lars":
            step = eta * trust
            return 2 * by.asin(step / 2), by.sqrt(scale / (decay * by.sqrt(4 / step**2 - 1))), step**2, -2
    return None


def predict_equilibrium(
    optimizer: str,
    learning_rate: float,
    weight_decay: float,
    *,
    momentum: float | None = None,
    b2: float | None = None,
    gradient_scale: float = 1.0,
    size: int = 1,
    trust_coefficient: float = 1.0,
) -> Equilibrium:
    r"""Predicts angle per step, norm and relaxation of scale-invariant weights under weight decay.

    The gradient is a random walk's: of mean zero, independent over time, of constant size
    $\tilde G = \|w\|\,\|\nabla\|$ on the unit sphere. Then, with $\alpha = 1 - \eta\lambda$, and with
    $\eta\lambda \ll 1 - \beta$ where "≈" stands and for the relaxation: the weights must turn slowly against the
    optimizer's memory,

    | optimizer | angle | norm | relaxation of |
    |---|---|---|---|
    | sgd | $\cos\theta = 1-\eta\lambda$ | $\|w\|^4 = \eta\tilde G^2/(\lambda(2-\eta\lambda))$ | ‖w‖⁴: 4ηλ |
    | momentum β | $\cos\theta = 1-\eta\lambda/(1+\beta)$ | $\|w\|^4 = M$ | ‖w‖⁴: 4ηλ/(1−β) |
    | normalized_gd | $\cos\theta = 1-\eta\lambda$ | $\|w\|^2 = \eta/(\lambda(2-\eta\lambda))$ | ‖w‖²: 2ηλ |
    | adamw | $\cos\theta = (\alpha+\beta_1)/(1+\alpha\beta_1)$ | $\|w\|^2 = A$ | ‖w‖²: 2ηλ |
    | rmsprop | $\cos\theta = \alpha$ | as adamw with β₁ = 0 | ‖w‖²: 2ηλ |
    | lion | ≈ $\sqrt{2\eta\lambda/S}$ | ≈ $\|w\|^2 = \eta PS/2\lambda$ | 2ηλ |
    | lars, trust κ | $2\arcsin(\eta\kappa/2)$ | $\|w\|^4 = \tilde G^2/(\lambda^2(4/(\eta\kappa)^2-1))$ | ‖w‖⁻²: (ηκ)² |

    $$M = \frac{\eta\tilde G^2(1+\beta)}{\lambda(1-\beta)(2(1+\beta)-\eta\lambda)},\qquad
    A = \frac{\eta P}{\lambda(2-\eta\lambda)} \cdot \frac{(1-\beta_1)(1+\alpha\beta_1)}{(1+\beta_1)(1-\alpha\beta_1)}$$

    The half-life is $\ln 2$ over the relaxation. For adamw and rmsprop it is longer, since the average of squared
    gradients lags behind: 407 steps instead of 347 at ηλ = 0.001, β₂ = 0.99 (393 under random gradients, from an excess
    of a half).

    A is that of β₂ → 1: the norm was 2 % smaller under random gradients at β₁ = 0, β₂ = 0.95, and 3.5 % at 0.9.

    Args:
        optimizer: one of these. Weight decay is the optimizer's own: decoupled for adamw, rmsprop, lion and
            normalized_gd, in the gradient for the others.
        learning_rate: η, constant.
        weight_decay: λ.
        momentum: β of momentum (no default), β₁ of adamw and lion (0.9 by default).
        b2: β₂ of adamw (0.999 by default), rmsprop (0.9) and lion (0.99).
        gradient_scale: $\tilde G$, root mean square of ‖w‖‖∇‖; for sgd, momentum and lars.
        size: P, the number of weights; for adamw, rmsprop and lion.
        trust_coefficient: κ, for lars.

    Returns:
        The prediction.

    Raises:
        ValueError: if the optimizer is unknown or has no closed form, a hyperparameter is out of its range, λ is 0
            (then the norm grows without end), or ηλ (ηκ for lars) is too large for a stationary state.

    Warns:
        RuntimeWarning: if ηλ > 0.1 (1 − β) for momentum, or for β₂ of adamw, rmsprop or lion. There, at β₂ = 0.99,
            the angle of lion was 3.5 % larger and its norm 4.4 % smaller under random gradients; at ten times that ηλ
            its angle was 32 % larger, and the norm of adamw 5 % smaller.

    Source: van Laarhoven 2017 (arXiv 1706.05350), Kosson et al. 2024 (arXiv 2305.17212); for adamw at any ηλ the claims
    `wen2026.exact_angle` and `wen2026.norm`. Not to be used for weights whose scale changes the loss: track the radial
    residual with `track_geometry`.

    Example:
        >>> round(predict_equilibrium("sgd", 0.1, 1e-3).angle, 5)
        0.01414
    """
    law_of(optimizer)
    if optimizer in _REFUSED:
        raise ValueError(f"no equilibrium is predicted for {optimizer!r}: {_REFUSED[optimizer]}")
    if optimizer == "momentum" and momentum is None:
        raise ValueError("the equilibrium under momentum depends on it: give momentum=")
    beta = 0.9 if momentum is None else momentum
    b2 = {"adamw": 0.999, "adam": 0.999, "rmsprop": 0.9}.get(optimizer, 0.99) if b2 is None else b2
    check_settings(learning_rate=learning_rate, weight_decay=weight_decay, momentum=beta, b2=b2)
    if callable(learning_rate):
        raise ValueError("an equilibrium needs a constant learning rate; got a schedule: give its value")
    if not learning_rate > 0 or not weight_decay > 0:
        raise ValueError(
            f"an equilibrium needs learning_rate > 0 and weight_decay > 0 (without decay the norm only grows); "
            f"got {learning_rate} and {weight_decay}"
        )
    product = learning_rate * weight_decay
    if optimizer == "lars":
        step = learning_rate * trust_coefficient
        if not step < 2:
            raise ValueError(f"learning_rate · trust_coefficient must be below 2; got {step}")
    elif not product < 1:
        raise ValueError(f"learning_rate · weight_decay must be below 1; got {product}")
    memories = {"momentum": (beta,), "adamw": (b2,), "adam": (b2,), "rmsprop": (b2,), "lion": (b2,)}.get(optimizer, ())
    slowest = min((1 - m for m in memories), default=math.inf)
    if product > SLOW * slowest * (1 + 1e-9):
        warnings.warn(
            f"the equilibrium of {optimizer} is predicted for learning_rate · weight_decay far below 1 − β = "
            f"{slowest:.3g}; here it is {product:.3g}, and the prediction may be wrong by more than 5 %",
            RuntimeWarning,
            stacklevel=2,
        )
    if is_short(optimizer, b2):
        warnings.warn(
            f"the equilibrium of {optimizer} is predicted for b2 of 0.9 and more; with {b2:.3g} an average of "
            "squared gradients depends on the last one, and the prediction may be wrong by more than 5 %",
            RuntimeWarning,
            stacklevel=2,
        )
    found = at_rest(optimizer, learning_rate, weight_decay, beta, b2, gradient_scale, size, trust_coefficient)
    assert found is not None  # those without a closed form are refused above
    lags = optimizer in {"adam", "adamw", "rmsprop"} and b2 > 0
    half_life = lagging_half_life(product, b2) if lags else math.log(2) / found[2]
    angle, norm, relaxation, power = found
    return Equilibrium(angle, norm, relaxation, power, half_life)
