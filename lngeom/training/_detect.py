"""Detection of an optax optimizer's law and first learning rate, from its state and its response to gradients."""

import math
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from lngeom.training.groups import Groups
from lngeom.training.laws import LAWS

FACTOR = 5.0
"""Ratio between the given rate and the optimizer's own that causes a warning. It is above that of Nesterov momentum,
whose first step is 1 + β times the rate."""

_GROWTH = {"sgd": 2.0, "momentum": 2.0, "adamw": 1.0, "lion": 1.0}
"""Laws whose first step is −η∇ or −η sign(∇), with the factor of the step for a gradient of twice the size."""

_BY_STATE = {
    "MuonState": "muon",  # first: the rest of its parameters has Adam's state
    "ScaleByAdamState": "adamw",
    "ScaleByLionState": "lion",
    "ScaleByRmsState": "rmsprop",
}


def _state_names(state: PyTree) -> set[str]:
    """Names of the types of all named tuples in a state."""
    found = set()

    def visit(node) -> bool:
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            found.add(type(node).__name__)
        return False

    jax.tree.leaves(state, is_leaf=visit)
    return found


def _tiny(params: PyTree) -> PyTree:
    """Ones of the same structure, at most two along each axis."""
    return jax.tree.map(lambda v: np.ones([min(n, 2) for n in jnp.shape(v)], jnp.result_type(v)), params)


def _alternating(leaf: np.ndarray) -> np.ndarray:
    return np.where(np.arange(leaf.size) % 2 == 0, 1, -1).astype(leaf.dtype).reshape(leaf.shape)


def _response(
    optimizer: optax.GradientTransformationExtraArgs, params: PyTree, weights: float, gradient: float
) -> list[float]:
    """Length of the first step along a gradient of signs, orthogonal to weights of ones, for each leaf."""
    ones = _tiny(params)
    signs = jax.tree.map(_alternating, ones)
    times = lambda by, tree: jax.device_put(jax.tree.map(lambda v: (by * v).astype(v.dtype), tree))  # noqa: E731
    w, g = times(weights, ones), times(gradient, signs)
    step, _ = optimizer.update(g, optimizer.init(w), w)
    pairs = zip(jax.tree.leaves(step), jax.tree.leaves(signs), strict=True)
    return [float(np.sum(np.asarray(u) * s)) if s.size > 1 else 0.0 for u, s in pairs]


def _first_rates(law: str, params: PyTree, base: list[float], steeper: list[float]) -> list[float]:
    """η of the first step for each leaf, where that is −η∇ or −η sign(∇); NaN elsewhere."""
    growth = _GROWTH.get(law)
    sizes = [leaf.size for leaf in jax.tree.leaves(_tiny(params))]
    return [
        -b / size if b and round(s / b, 1) == growth else math.nan
        for b, s, size in zip(base, steeper, sizes, strict=True)
    ]


def compare_rate(given: float | Callable, rates: list[float], groups: Groups) -> None:
    """Warns where the tracker's learning rate is far from that of the optimizer's first step.

    Args:
        given: the tracker's rate, or its schedule.
        rates: rates of the optimizer, from `detect`.
        groups: the tracked groups.

    Warns:
        UserWarning: if the given rate is `FACTOR` times too large or too small for a group.
    """
    try:
        with jax.ensure_compile_time_eval():
            rate = float(given(jnp.zeros((), jnp.int32)) if callable(given) else given)
    except (TypeError, jax.errors.ConcretizationTypeError):  # traced, as under a `vmap` over rates
        return
    for name, members in groups:
        for own in (rates[k] for k in members if rates):
            if rate > 0 and own > 0 and not 1 / FACTOR < rate / own < FACTOR:
                warnings.warn(
                    f"track_geometry was given the learning rate {rate:.3g}, but the first update of {name!r} by its "
                    f"optimizer has the rate {own:.3g}: the effective learning rate and the equilibrium that are "
                    "recorded would be wrong by that factor. Give learning_rate= what the optimizer was given, its "
                    "schedule if it has one",
                    stacklevel=3,
                )
                return


def detect(optimizer: optax.GradientTransformationExtraArgs, params: PyTree) -> tuple[str, list[float]]:
    """Finds the law of an optimizer from its state and from its first step at twice the gradient and twice the weights.

    Args:
        optimizer: the optimizer.
        params: the parameters. Only their structure and numbers of axes are used.

    Returns:
        The law, one of `LAWS`, and the learning rate of the first step for each leaf. The law is "adaptive" where only
        the effective learning rate can be known. Adam with weight decay in the gradient ("adam_l2") looks like "adamw".
        Rates are known for SGD, momentum, Adam and Lion. An unknown rate is NaN, or the list is empty.

    Raises:
        ValueError: if the law cannot be found.
    """
    advice = f"give its law with kind=, one of {', '.join(LAWS)}"
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        start = jax.eval_shape(optimizer.init, params)
        names = _state_names(start)
        known = next((law for state, law in _BY_STATE.items() if state in names), None)
        if known == "muon":
            return known, []
        try:
            responses = [_response(optimizer, params, *at) for at in ((1, 1), (1, 2), (2, 1))]
            base, steeper, larger = map(sum, responses)
        except Exception as error:
            raise ValueError(f"the optimizer cannot be probed ({type(error).__name__}: {error}); {advice}") from error
    if not abs(base) > 0:
        if known:
            return known, []
        raise ValueError(f"the optimizer takes no step at its first learning rate, so that its law is unseen; {advice}")
    momentum = "TraceState" in names
    by_gradient, by_weights = round(steeper / base, 1), round(larger / base, 1)
    match by_gradient, by_weights:
        case 2.0, 1.0 if not known:
            law = "momentum" if momentum else "sgd"
        case 1.0, 1.0 if not momentum:
            law = known or "adaptive"
        case 1.0, 1.0 if known == "rmsprop":
            law = "adaptive"  # with momentum, its equilibrium is another
        case 1.0, 2.0:
            law = "lamb" if known else "lars"
        case _:
            raise ValueError(
                f"unknown optimizer: its first step is multiplied by {by_gradient:g} for a gradient of twice the size, "
                f"and by {by_weights:g} for weights of twice the size; {advice}"
            )
    averages = law == "sgd" and any(leaf.ndim for leaf in jax.tree.leaves(start))  # it remembers gradients
    return law, [] if averages or "EmaState" in names else _first_rates(law, params, *responses[:2])
