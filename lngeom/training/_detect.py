"""Which law an optax optimizer follows, found from its state and from its response to gradients."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from lngeom.training._laws import LAWS

_BY_STATE = {
    "MuonState": "muon",  # first: the rest of its parameters has Adam's state
    "ScaleByAdamState": "adamw",
    "ScaleByLionState": "lion",
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
    return jax.tree.map(lambda v: jnp.ones([min(n, 2) for n in jnp.shape(v)], jnp.result_type(v)), params)


def _alternating(leaf):
    signs = jnp.where(jnp.arange(leaf.size) % 2 == 0, 1, -1).astype(leaf.dtype)
    return signs.reshape(leaf.shape)


def _response(
    optimizer: optax.GradientTransformationExtraArgs, params: PyTree, weights: float, gradient: float
) -> float:
    """Size of the first step along a gradient of signs, orthogonal to weights of ones."""
    ones = _tiny(params)
    signs = jax.tree.map(_alternating, ones)
    w = jax.tree.map(lambda v: jnp.asarray(weights, v.dtype) * v, ones)
    g = jax.tree.map(lambda v: jnp.asarray(gradient, v.dtype) * v, signs)
    step, _ = optimizer.update(g, optimizer.init(w), w)
    pairs = zip(jax.tree.leaves(step), jax.tree.leaves(signs), strict=True)
    return float(sum(jnp.sum(jnp.where(jnp.size(s) > 1, u * s, 0)) for u, s in pairs))


def detect(optimizer: optax.GradientTransformationExtraArgs, params: PyTree) -> str:
    """Finds the law of an optimizer from its state and from its first step at twice the gradient and twice the weights.

    Args:
        optimizer: the optimizer.
        params: the parameters, of which structure and number of axes are used.

    Returns:
        One of `LAWS`: "adaptive" where nothing more than the effective learning rate can be told. Adam with weight
        decay in the gradient ("adam_l2") looks like "adamw".

    Raises:
        ValueError: if the law cannot be told.
    """
    advice = f"say which law it follows with kind=, one of {', '.join(LAWS)}"
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        names = _state_names(jax.eval_shape(optimizer.init, params))
        known = next((law for state, law in _BY_STATE.items() if state in names), None)
        if known == "muon":
            return known
        try:
            base, steeper, larger = (_response(optimizer, params, *at) for at in ((1, 1), (1, 2), (2, 1)))
        except Exception as error:
            raise ValueError(f"the optimizer cannot be probed ({type(error).__name__}: {error}); {advice}") from error
    if not abs(base) > 0:
        if known:
            return known
        raise ValueError(f"the optimizer takes no step at its first learning rate, so that its law is unseen; {advice}")
    momentum = "TraceState" in names
    by_gradient, by_weights = round(steeper / base, 1), round(larger / base, 1)
    match by_gradient, by_weights:
        case 2.0, 1.0 if not known:
            return "momentum" if momentum else "sgd"
        case 1.0, 1.0 if not momentum:
            return known or "adaptive"
        case 1.0, 2.0:
            return "lamb" if known else "lars"
    raise ValueError(
        f"unknown optimizer: its first step is multiplied by {by_gradient:g} for a gradient of twice the size, and by "
        f"{by_weights:g} for weights of twice the size; {advice}"
    )
