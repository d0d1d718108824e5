"""What claims about training run on: a small normalized network on the data, and a loop over optimizer steps."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from lngeom._core.draws import draw_small
from lngeom.claims.problem import NORMALIZERS, Problem
from lngeom.methods import AbstractNormalizer

FEATURES, HIDDEN, CLASSES, SAMPLES, STEPS = 12, 8, 4, 240, 60
Parameters = dict[str, Array]


class Network(NamedTuple):
    """A network with one normalized layer, on data with labels that a random teacher gives.

    The inputs are the data along random directions, so that no column is constant.

    Attributes:
        params: "weights" [H D], which are scale-invariant, "gain" [H], "bias" [H] and "readout" [C H].
        inputs: X.
        labels: of a random linear teacher.
    """

    params: Parameters
    inputs: Float[Array, "N D"]
    labels: Int[Array, " N"]


def network(problem: Problem) -> Network:
    """The network at the start of training."""
    keys = jax.random.split(problem.key("network"), 4)
    width, dtype = problem.inputs.shape[1], problem.dtype
    normal = lambda key, shape: draw_small(jax.random.normal, key, shape, dtype)
    directions = normal(keys[0], (width, FEATURES)) / width**0.5
    inputs = problem.inputs[:SAMPLES] @ directions
    teacher = normal(keys[1], (FEATURES, CLASSES))
    params = {
        "weights": normal(keys[2], (HIDDEN, FEATURES)) / FEATURES**0.5,
        "gain": jnp.ones(HIDDEN, dtype),
        "bias": jnp.zeros(HIDDEN, dtype),
        "readout": normal(keys[3], (CLASSES, HIDDEN)) / HIDDEN**0.5,
    }
    return Network(params, inputs, jnp.argmax(inputs @ teacher, -1))


def logits(
    params: Parameters, inputs: Float[Array, "N D"], normalizer: str | AbstractNormalizer = "ln"
) -> Float[Array, "N C"]:
    """The network's outputs: readout · tanh(g ⊙ n(W, X) + b)."""
    normalize = NORMALIZERS[normalizer] if isinstance(normalizer, str) else normalizer
    n = normalize(params["weights"], inputs)
    return jnp.tanh(n * params["gain"][None, :] + params["bias"][None, :]) @ params["readout"].T


def loss(params: Parameters, inputs: Array, labels: Array, normalizer: str | AbstractNormalizer = "ln"):
    """Mean cross-entropy in nats."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits(params, inputs, normalizer), labels))


compiled_loss, compiled_gradient = (jax.jit(function, static_argnums=3) for function in (loss, jax.grad(loss)))
"""The loss and its gradient, a program for each normalizer."""


def scaled(params: Parameters, factor) -> Parameters:
    """The parameters with the weights multiplied."""
    return params | {"weights": factor * params["weights"]}


def partitioned(optimizer: optax.GradientTransformation, rest: float = 0.1) -> optax.GradientTransformation:
    """An optimizer for the weights alone; the other parameters take plain gradient steps."""
    labels = {"weights": "weights", "gain": "rest", "bias": "rest", "readout": "rest"}
    return optax.partition({"weights": optimizer, "rest": optax.sgd(rest)}, labels)


def train(
    net: Network,
    optimizer: optax.GradientTransformation,
    params: Parameters,
    record: Callable[[Parameters, Parameters, Parameters, Any], Any],
    *,
    normalizer: str | AbstractNormalizer = "ln",
    steps: int = STEPS,
    batch: int = 60,
    start: Callable[[Any], Any] = lambda state: state,
):
    """Runs an optimizer over successive minibatches; to be traced inside `jit`.

    Args:
        net: data and labels.
        optimizer: of all parameters.
        params: where to start.
        record: (parameters, gradients, parameters after the step, state) → what to keep of a step.
        normalizer: of the network.
        steps: number of steps.
        batch: samples in a minibatch; fewer where the data have fewer.
        start: changes the optimizer's initial state.

    Returns:
        What was kept, stacked over the steps.
    """
    batch = min(batch, len(net.inputs))
    batches = len(net.inputs) // batch

    def step(carry, t):
        params, state = carry
        first = (t % batches) * batch
        x, y = (jax.lax.dynamic_slice_in_dim(v, first, batch) for v in (net.inputs, net.labels))
        gradients = jax.grad(loss)(params, x, y, normalizer)
        updates, state = optimizer.update(gradients, state, params)
        after = jax.tree.map(jnp.add, params, updates)
        return (after, state), record(params, gradients, after, state)

    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer count
        return jax.lax.scan(step, (params, start(optimizer.init(params))), jnp.arange(steps))[1]


class Path(NamedTuple):
    """A run, stacked over its steps.

    Attributes:
        params: before each step.
        gradients: at each step.
        after: parameters after each step.
    """

    params: Parameters
    gradients: Parameters
    after: Parameters


@partial(jax.jit, static_argnames="normalizer")
def sgd_path(net: Network, rate: float, normalizer: str = "ln") -> Path:
    """A run of plain SGD on minibatches, one program for every claim about the same normalizer."""
    return train(net, optax.sgd(rate), net.params, lambda p, g, after, s: Path(p, g, after), normalizer=normalizer)
