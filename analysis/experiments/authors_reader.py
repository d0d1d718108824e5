r"""The attentive reader as in the code of Cooijmans et al., with which the paper trained it (Section 6.2).

What differs from `attentive_reader`: weights start by Glorot and Bengio's rule, square ones as 0.05 times an orthogonal
matrix; the hidden vectors before the first word are learned; the score of a word also has the bilinear term
$(B d_t)^\top B q$; the answer also sees the mean of the document; dropout acts on embedded words, too. Batch norm
"everywhere" is on each affine map into a tanh by itself, with gains that start at 0.1, and not on embedded words.

Here every matrix is drawn by itself. The code sets the seed anew before each: matrices of one shape start equal there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from lngeom import nn
from lngeom.nn.gated import LSTMState

from analysis.experiments.batch_norm_lstm import BatchNormLSTM
from analysis.experiments.datasets import Questions
from analysis.experiments.networks import Dense, fresh_statistics, glorot

ORTHOGONAL = 0.05
"""Scale of orthogonal weights."""


def start(key: PRNGKeyArray, outputs: int, inputs: int, *, square: bool = True) -> Float[Array, "H D"]:
    """Weights as they start: 0.05 times orthogonal where they are square, else uniform by Glorot and Bengio's rule.

    Args:
        key: for the weights.
        outputs: H.
        inputs: D.
        square: whether square ones differ from the others.

    Returns:
        The weights.
    """
    if square and outputs == inputs:
        return ORTHOGONAL * jax.random.orthogonal(key, outputs, dtype=jnp.float32)
    limit = glorot(inputs, outputs + 1)  # the code counts the bias
    return jax.random.uniform(key, (outputs, inputs), jnp.float32, -limit, limit)


def restarted(encoder: Any, key: PRNGKeyArray) -> Any:
    """An LSTM whose weights start so, gate by gate.

    Args:
        encoder: `nn.LSTM`, `nn.LayerNormLSTM` or `BatchNormLSTM`.
        key: for the weights.

    Returns:
        The LSTM.
    """

    def matrices(made: Any) -> list[Any]:
        inner = made.lstm if isinstance(made, BatchNormLSTM) else made
        return [inner.recurrent_weights, inner.input_weights]

    fresh = []
    for k, old in zip(jax.random.split(key), matrices(encoder), strict=True):
        rows = old.shape[0] // 4
        fresh.append(jnp.concatenate([start(gate, rows, old.shape[1]) for gate in jax.random.split(k, 4)]))
    return eqx.tree_at(matrices, encoder, fresh)


class Affine(eqx.Module):
    """An affine map, batch-normalized by itself where it has gains.

    Attributes:
        weights: [H D].
        bias: [H], or None.
        gain: of the norm, [H], or None for no norm.
    """

    weights: Float[Array, "H D"]
    bias: Float[Array, " H"] | None
    gain: Float[Array, " H"] | None

    def __call__(self, x: Float[Array, "*batch D"], running: Any, training: bool) -> tuple[Array, Any]:
        """Outputs, and statistics to store where there is a norm."""
        summed = x @ self.weights.T
        if self.gain is not None:
            return nn.batch_norm(summed, self.gain, self.bias, running, training=training, momentum=0.0)
        return (summed if self.bias is None else summed + self.bias.reshape((1,) * (x.ndim - 1) + (-1,))), None


MAPS = {
    "attended document": (True, True),
    "attended question": (False, False),
    "mean document": (False, False),
    "joint question": (True, False),
    "joint document": (False, False),
}
"""Affine map into a tanh → whether it has a bias, and whether it starts orthogonal where it is square."""


class AuthorsReader(eqx.Module):
    """Two LSTMs, attention over the document, and a softmax over entities.

    Attributes:
        words: vectors of the symbols.
        encoders: LSTMs of document and question.
        starts: their hidden vectors before the first word.
        maps: affine maps into a tanh, by the names of `MAPS`.
        similarity: B.
        attention: weights of the score.
        answer: the last map.
        dropout: share of units that is dropped in training.
    """

    words: Float[Array, "V E"]
    encoders: tuple[Any, Any]
    starts: tuple[Array, Array]
    maps: dict[str, Affine]
    similarity: Float[Array, "H H"]
    attention: Float[Array, " H"]
    answer: Dense
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        hidden: int,
        entities: int,
        *,
        encoders: Sequence[Callable[[PRNGKeyArray], Any]],
        gain: float | None,
        dropout: float,
        key: PRNGKeyArray,
    ):
        keys = jax.random.split(key, 8)
        h = hidden
        self.words = start(keys[0], vocabulary, embedding, square=False)
        first, second = (
            restarted(make(k), jax.random.fold_in(k, 1)) for make, k in zip(encoders, keys[1:3], strict=True)
        )
        self.encoders = (first, second)
        self.starts = (jnp.zeros(h, jnp.float32), jnp.zeros(h, jnp.float32))
        self.maps = {
            name: Affine(
                start(k, h, h, square=orthogonal),
                jnp.zeros(h, jnp.float32) if bias else None,
                None if gain is None else jnp.full(h, gain, jnp.float32),
            )
            for (name, (bias, orthogonal)), k in zip(MAPS.items(), jax.random.split(keys[3], len(MAPS)), strict=True)
        }
        self.similarity = start(keys[4], h, h)
        self.attention = jax.random.uniform(keys[5], (h,), jnp.float32, -(h**-0.5), h**-0.5)
        answer = Dense(h, entities, key=keys[6])
        self.answer = eqx.tree_at(lambda d: d.weights, answer, start(keys[7], entities, h, square=False))
        self.dropout = dropout

    def fresh(self, steps: Mapping[str, int]) -> dict[str, Any]:
        """Statistics before the first batch.

        Args:
            steps: words of a document and of a question.

        Returns:
            Name → statistics; none where there is no batch norm.
        """
        running: dict[str, Any] = {
            name: encoder.fresh(count)
            for (name, count), encoder in zip(steps.items(), self.encoders, strict=True)
            if isinstance(encoder, BatchNormLSTM)
        }
        return running | {
            name: fresh_statistics(len(made.gain)) for name, made in self.maps.items() if made.gain is not None
        }

    def __call__(self, data: Questions, running: Mapping[str, Any], training: bool, key: PRNGKeyArray | None = None):
        """Logits of the entities, and statistics: in training those of the batch."""
        stored: dict[str, Any] = {}
        keys = None if key is None else jax.random.split(key, 3)

        def dropped(values: Array, which: int) -> Array:
            if not training or self.dropout <= 0 or keys is None:
                return values
            kept = jax.random.bernoulli(keys[which], 1 - self.dropout, values.shape)
            return jnp.where(kept, values / (1 - self.dropout), 0)

        def mapped(name: str, values: Array) -> Array:
            out, statistics = self.maps[name](values, running.get(name), training)
            if statistics is not None:
                stored[name] = statistics
            return out

        def encoded(name: str, which: int, symbols: Any, lengths: Any) -> tuple[Array, Array]:
            xs = dropped(jnp.swapaxes(self.words[symbols], 0, 1), which)
            encoder = self.encoders[which]
            first = jnp.tile(self.starts[which][None], (xs.shape[1], 1))
            if isinstance(encoder, BatchNormLSTM):
                last, outputs, stored[name] = encoder.unroll(xs, lengths, running[name], training, first)
                return last, outputs
            state, outputs = nn.unroll(encoder, xs, LSTMState(first, jnp.zeros_like(first)), lengths=lengths)
            return encoder.output(state), outputs

        lengths = data.document_lengths
        _, d = encoded("document", 0, data.documents, lengths)  # zero where a document is padded
        q, _ = encoded("question", 1, data.questions, data.question_lengths)
        alike = jnp.sum((d @ self.similarity) * (q @ self.similarity)[None], -1)[..., None]
        m = jnp.tanh(mapped("attended document", d) + mapped("attended question", q)[None] + alike)
        inside = jnp.arange(d.shape[0])[:, None] < lengths[None]
        weights = jax.nn.softmax(jnp.where(inside, m @ self.attention, -1e9), 0)
        context = jnp.sum(weights[..., None] * d, 0)
        mean = jnp.sum(d, 0) / lengths.astype(d.dtype)[:, None]
        parts = (("joint document", context), ("joint question", q), ("mean document", mean))
        g = dropped(jnp.tanh(sum((mapped(*part) for part in parts), start=jnp.zeros_like(q))), 2)
        return self.answer(g), stored
