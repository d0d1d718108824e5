"""Parts that the models of several experiments share; all leaves are arrays, so that a model is a plain pytree."""

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray
from lngeom import nn
from lngeom.nn.functional import RunningStatistics

Norm = Literal["none", "batch norm", "layer norm"]


class Dense(eqx.Module):
    """An affine map of the last axis; weights start normal of variance `scale`²/D, or uniform in ±`uniform`.

    Attributes:
        weights: as rows, [H D].
        bias: [H].
    """

    weights: Float[Array, "H D"]
    bias: Float[Array, " H"]

    def __init__(
        self, inputs: int, outputs: int, *, key: PRNGKeyArray, scale: float = 1.0, uniform: float | None = None
    ):
        if uniform is None:
            self.weights = scale * jax.random.normal(key, (outputs, inputs), jnp.float32) / math.sqrt(inputs)
        else:
            self.weights = jax.random.uniform(key, (outputs, inputs), jnp.float32, -uniform, uniform)
        self.bias = jnp.zeros(outputs, jnp.float32)

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch H"]:
        """Outputs."""
        return x @ self.weights.T + self.bias.reshape((1,) * (x.ndim - 1) + (-1,))


def glorot(inputs: int, outputs: int) -> float:
    r"""The limit of uniform weights by Glorot and Bengio (2010): $\sqrt{6/(D + H)}$.

    Args:
        inputs: D.
        outputs: H.

    Returns:
        The limit.

    Example:
        >>> glorot(2, 4)
        1.0
    """
    return math.sqrt(6 / (inputs + outputs))


def embedding(key: PRNGKeyArray, symbols: int, size: int) -> Float[Array, "V E"]:
    """Vectors of each symbol, uniform in ±0.1 as in the reference code."""
    return jax.random.uniform(key, (symbols, size), jnp.float32, -0.1, 0.1)


def cell(
    kind: Literal["GRU", "LSTM"],
    normalized: bool,
    inputs: int,
    hidden: int,
    *,
    key: PRNGKeyArray,
    gain: float = 1.0,
    scaled_start: bool = False,
    inner_bias: bool = False,
) -> Any:
    """A recurrent cell of the paper, with as many biases in either version, which starts as in the reference code.

    There, input weights are uniform in ±0.1 and recurrent ones orthogonal, gate by gate.

    Args:
        kind: which cell.
        normalized: whether it is layer-normalized.
        inputs: D.
        hidden: H.
        key: for the weights.
        gain: value at which the gains of its layer norms start.
        scaled_start: whether weights are normal of variance 1/D instead, so that summed inputs have variance 1.
        inner_bias: whether a normalized GRU keeps the biases of the plain one inside its norms, as the authors' does.

    Returns:
        The cell.
    """
    if kind == "GRU":
        plain = nn.GRU(inputs, hidden, key=key, use_bias=True)
        made = nn.LayerNormGRU(inputs, hidden, key=key, use_bias=inner_bias) if normalized else plain
    else:
        made = nn.LayerNormLSTM(inputs, hidden, key=key) if normalized else nn.LSTM(inputs, hidden, key=key)
    if not scaled_start:
        made = reference_start(made, jax.random.fold_in(key, 1))
    return made if gain == 1.0 else with_gain(made, gain)


def reference_start(made: Any, key: PRNGKeyArray) -> Any:
    """The cell with uniform input weights in ±0.1 and orthogonal recurrent weights of each gate.

    Args:
        made: a cell of `lngeom.nn`.
        key: for the weights; two cells of one kind get the same ones.

    Returns:
        The cell.
    """
    names = [n for n in vars(made) if n.endswith("_weights")]
    fresh = []
    for name, k in zip(names, jax.random.split(key, len(names)), strict=True):
        old = getattr(made, name)
        if "recurrent" in name:
            blocks = jax.random.split(k, old.shape[0] // made.hidden)
            fresh.append(jnp.concatenate([jax.random.orthogonal(b, made.hidden, dtype=old.dtype) for b in blocks]))
        else:
            fresh.append(jax.random.uniform(k, old.shape, old.dtype, -0.1, 0.1))
    return eqx.tree_at(lambda c: [getattr(c, n) for n in names], made, fresh)


def with_gain(model: Any, gain: float) -> Any:
    """The model with the gains of all its layer norms at one value."""
    norms = (nn.LayerNorm, nn.GroupNorm)

    def change(part: Any) -> Any:
        if isinstance(part, norms) and part.gain is not None:
            return eqx.tree_at(lambda n: n.gain, part, jnp.full_like(part.gain, gain))
        return part

    return jax.tree.map(change, model, is_leaf=lambda part: isinstance(part, norms))


def fresh_statistics(units: int) -> RunningStatistics:
    """Stored statistics before the first batch."""
    return RunningStatistics(jnp.zeros(units, jnp.float32), jnp.ones(units, jnp.float32))


def negative_log_likelihood(logits: Float[Array, "*batch C"], labels: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Of each label under the softmax of the logits, in nats."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]


def classification_metrics(logits: Float[Array, "N C"], labels: Int[Array, " N"], prefix: str = "") -> dict[str, Array]:
    """Negative log-likelihood and error rate."""
    return {
        f"{prefix}NLL": jnp.mean(negative_log_likelihood(logits, labels)),
        f"{prefix}error": jnp.mean((jnp.argmax(logits, -1) != labels).astype(jnp.float32)),
    }


def rows(key: PRNGKeyArray, size: int, count: int, *, replace: bool = True) -> Int[Array, " B"]:
    """Indices of a batch, drawn with replacement or all different.

    They are all, in order, where there are no more, as in a batch of a stream.

    Args:
        key: for the draw.
        size: number of rows there are.
        count: number of rows in the batch.
        replace: whether a row can be drawn twice.

    Returns:
        The indices.
    """
    if size == count:
        return jnp.arange(count, dtype=jnp.int32)
    if not replace:
        return jax.random.choice(key, jnp.arange(size, dtype=jnp.int32), (count,), replace=False)
    return jax.random.randint(key, (count,), 0, size, jnp.int32)


def parameters(model: Any) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(model))
