"""The attentive reader of cloze questions (Section 6.2, Figure 2), with layer norm and with recurrent batch norm.

Batch norm as in Cooijmans et al. (arXiv 1603.09025): on both summed inputs and on the cell, with statistics of every
time step, and gains that start at 0.1; "everywhere" puts it on the embedded words and the attention too.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement

from analysis.experiments.authors_reader import AuthorsReader
from analysis.experiments.batch_norm_lstm import BatchNormLSTM
from analysis.experiments.datasets import Questions
from analysis.experiments.experiment import Experiment, Panel, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import plain_task
from analysis.experiments.networks import Dense, cell, embedding, fresh_statistics, negative_log_likelihood, rows


@dataclass(frozen=True)
class ReaderSettings(Settings):
    """Sizes."""

    vocabulary: int = 24
    entities: int = 8
    embedding: int = 32
    hidden: int = 64
    rate: float = 1e-3
    batch: int = 64
    dropout: float = 0.0
    documents: int = 40_000
    held_out: int = 500
    clip: float = 100.0
    permuted: bool = False


class Arm(NamedTuple):
    """What an arm consists of.

    Attributes:
        norm: "none", "batch norm" or "layer norm".
        everywhere: whether batch norm is also outside the LSTMs.
        gain: value at which the gains start.
        authors: whether all else is as in the authors' code, see `authors_reader`.
    """

    norm: str
    everywhere: bool = False
    gain: float = 1.0
    authors: bool = False


POPULATION = 256
"""Training questions whose statistics batch norm is evaluated with: running ones lag behind the weights, which the
small variance of nearly constant words makes fatal."""

FACTS, RELATIONS, NOUNS = 5, 4, 8


def stories(settings: ReaderSettings, seed: int = 0) -> Questions:
    """Five facts "@entity relation noun .", with different entities and nouns, and one of them with a gap.

    Entities are drawn anew for every document, so that none can be learned by heart.

    Args:
        settings: sizes.
        seed: of the stories.

    Returns:
        The questions.
    """
    rng = np.random.default_rng(seed)
    relations = 1 + settings.entities + np.arange(RELATIONS)
    nouns = relations[-1] + 1 + np.arange(NOUNS)
    stop, gap = nouns[-1] + 1, nouns[-1] + 2

    def draw(count):
        entities = rng.permuted(np.tile(np.arange(settings.entities), (count, 1)), axis=1)[:, :FACTS]
        pairs = rng.permuted(np.tile(np.arange(RELATIONS * NOUNS), (count, 1)), axis=1)[:, :FACTS]
        facts = np.stack([1 + entities, relations[pairs // NOUNS], nouns[pairs % NOUNS], np.full_like(pairs, stop)], -1)
        asked = rng.integers(0, FACTS, count)
        chosen = facts[np.arange(count), asked]
        chosen[:, 0] = gap
        return (
            facts.reshape(count, -1).astype(np.int32),
            np.full(count, 4 * FACTS, np.int32),
            chosen.astype(np.int32),
            np.full(count, 4, np.int32),
            entities[np.arange(count), asked].astype(np.int32),
        )

    return Questions(*draw(settings.documents), test=Questions(*draw(settings.held_out)))


def renamed(batch: Questions, entities: int, vocabulary: int, key: PRNGKeyArray) -> Questions:
    """The same questions with entities renamed at random, so that none is learned by heart (Hermann et al., 2015)."""
    names = jax.random.permutation(key, entities).astype(batch.documents.dtype)
    kept = jnp.arange(entities + 1, vocabulary, dtype=names.dtype)
    table = jnp.concatenate([jnp.zeros(1, names.dtype), 1 + names, kept])
    return batch._replace(
        documents=table[batch.documents], questions=table[batch.questions], answers=names[batch.answers]
    )


class Reader(eqx.Module):
    """Two LSTMs, attention over the document, and a softmax over entities."""

    words: Float[Array, "V E"]
    document: Any
    question: Any
    from_document: Dense
    from_question: Dense
    attention: Float[Array, " A"]
    read: Dense
    asked: Dense
    answer: Dense
    gains: tuple[Array, ...] | None
    dropout: float = eqx.field(static=True)

    def __call__(self, data: Questions, running: dict[str, Any], training: bool, key=None):
        """Logits of the entities, and statistics: in training those of the batch."""
        stored: dict[str, Any] = {}

        def normalized(name, values, gain):
            if self.gains is None:
                return values
            out, stored[name] = nn.batch_norm(
                values, self.gains[gain], None, running[name], training=training, momentum=0.0
            )
            return out

        def encode(name, encoder, symbols, lengths):
            xs = jnp.swapaxes(self.words[symbols], 0, 1)
            xs = normalized(f"{name} words", xs, 0)
            if isinstance(encoder, BatchNormLSTM):
                last, outputs, stored[name] = encoder.unroll(xs, lengths, running[name], training)
                return last, outputs
            state, outputs = nn.unroll(encoder, xs, lengths=lengths)
            return encoder.output(state), outputs

        _, d = encode("document", self.document, data.documents, data.document_lengths)
        q, _ = encode("question", self.question, data.questions, data.question_lengths)
        m = jnp.tanh(normalized("attention", self.from_document(d) + self.from_question(q)[None], 1))
        scores = m @ self.attention
        inside = jnp.arange(d.shape[0])[:, None] < data.document_lengths[None]
        weights = jax.nn.softmax(jnp.where(inside, scores, -1e9), 0)
        r = jnp.sum(weights[..., None] * d, 0)
        g = jnp.tanh(normalized("joint", self.read(r) + self.asked(q), 1))
        if training and self.dropout > 0 and key is not None:
            kept = jax.random.bernoulli(key, 1 - self.dropout, g.shape)
            g = jnp.where(kept, g / (1 - self.dropout), 0)
        return self.answer(g), stored


def task(settings: ReaderSettings, arm: Arm, data: Questions):
    """Training of one arm."""
    h, e = settings.hidden, settings.embedding
    lengths = {"document": data.documents.shape[1], "question": data.questions.shape[1]}

    def encoder(key):
        if arm.norm == "batch norm":
            return BatchNormLSTM(e, h, key=key, gain=arm.gain)
        return cell("LSTM", arm.norm == "layer norm", e, h, key=key, gain=arm.gain)

    def init(key):
        if arm.authors:
            return AuthorsReader(
                settings.vocabulary,
                e,
                h,
                settings.entities,
                encoders=(encoder, encoder),
                gain=arm.gain if arm.everywhere else None,
                dropout=settings.dropout,
                key=key,
            )
        k = jax.random.split(key, 9)
        gains = None
        if arm.everywhere:
            gains = (jnp.full(e, 1.0, jnp.float32), jnp.full(h, 1.0, jnp.float32))
        return Reader(
            embedding(k[0], settings.vocabulary, e),
            encoder(k[1]),
            encoder(k[2]),
            Dense(h, h, key=k[3]),
            Dense(h, h, key=k[4]),
            jax.random.normal(k[5], (h,), jnp.float32) / h**0.5,
            Dense(h, h, key=k[6]),
            Dense(h, h, key=k[7]),
            Dense(h, settings.entities, key=k[8]),
            gains,
            settings.dropout,
        )

    def fresh(model):
        if arm.authors:
            return model.fresh(lengths)
        running: dict[str, Any] = {}
        if arm.norm == "batch norm":
            running = {name: getattr(model, name).fresh(steps) for name, steps in lengths.items()}
        if arm.everywhere:
            running |= {f"{name} words": fresh_statistics(e) for name in lengths}
            running |= {name: fresh_statistics(h) for name in ("attention", "joint")}
        return running

    def loss(model, key, data):
        keys = jax.random.split(key)
        chosen = rows(keys[0], data.documents.shape[0], settings.batch)
        batch = Questions(*(v[chosen] for v in data[:5]))
        if settings.permuted:
            batch = renamed(batch, settings.entities, settings.vocabulary, jax.random.fold_in(key, 2))
        logits, _ = model(batch, fresh(model), True, keys[1])
        return jnp.mean(negative_log_likelihood(logits, batch.answers))

    def evaluate(model, data):
        _, statistics = model(Questions(*(v[:POPULATION] for v in data[:5])), fresh(model), True, jax.random.key(0))
        logits, _ = model(data.test, statistics, False)
        wrong = jnp.argmax(logits, -1) != data.test.answers
        return {
            "validation error": jnp.mean(wrong.astype(jnp.float32)),
            "validation NLL": jnp.mean(negative_log_likelihood(logits, data.test.answers)),
        }

    optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optax.adam(settings.rate))
    return plain_task(init, loss, optimizer, evaluate)


def made_up(settings: ReaderSettings) -> Questions:
    """Noise of the shape of the full size."""
    rng = np.random.default_rng(0)

    def draw(count, test=None):
        documents = rng.integers(1, settings.vocabulary, (count, 140)).astype(np.int32)
        questions = rng.integers(1, settings.vocabulary, (count, 20)).astype(np.int32)
        lengths = (np.full(count, v, np.int32) for v in (140, 20))
        answers = rng.integers(0, settings.entities, count).astype(np.int32)
        return Questions(documents, next(lengths), questions, next(lengths), answers, test)

    return draw(128, draw(8))


ARMS = {
    "LSTM": Arm("none"),
    "BN-LSTM": Arm("batch norm", gain=0.1),
    "BN-everywhere": Arm("batch norm", everywhere=True, gain=0.1),
    "LN-LSTM": Arm("layer norm"),
    "LN-LSTM, gain 0.1": Arm("layer norm", gain=0.1),
}
AUTHORS = {name: arm._replace(authors=True) for name, arm in ARMS.items()}

FASTER = "trains faster than the baseline and both variants of batch norm"
BETTER = "converges to a better validation result than the baseline and both variants of batch norm"
MEASURES: tuple[tuple[Literal["speed", "best"], str, str], ...] = (
    ("speed", "fewer steps to the best error of", FASTER),
    ("best", "lower best error than", BETTER),
)
compared = partial(TrainingStatement, treated="LN-LSTM")
STATEMENTS = (
    compared(
        claim="experiments.attentive_reader",
        text="layer norm: fewer steps to an error of one half than LSTM",
        paper=FASTER,
        baseline="LSTM",
        metric="validation error",
        target=0.5,
    ),
    compared(
        claim="experiments.attentive_reader",
        text="layer norm: lower best error than LSTM",
        paper=BETTER,
        baseline="LSTM",
        metric="validation error",
        measure="best",
    ),
    *(
        compared(
            claim="experiments.attentive_reader.batch_norm",
            text=f"layer norm: {what} {than}",
            paper=paper,
            baseline=than,
            metric="validation error",
            measure=measure,
        )
        for than in ("BN-LSTM", "BN-everywhere")
        for measure, what, paper in MEASURES
    ),
    compared(
        claim="experiments.attentive_reader.gain",
        text="gain 1.0: lower best NLL than gain 0.1",
        paper="1.0 performed significantly better than 0.1",
        baseline="LN-LSTM, gain 0.1",
        metric="validation NLL",
        measure="best",
    ),
)

EXPERIMENT = Experiment(
    name="attentive_reader",
    title="Attentive reader",
    source="Section 6.2, Figure 2",
    arms=ARMS,
    authors=AUTHORS,
    small=ReaderSettings(steps=400, every=20, rate=3e-3),
    full=ReaderSettings(
        steps=800_000,
        every=1000,
        vocabulary=30_000,
        entities=600,
        embedding=240,
        hidden=240,
        rate=8e-5,
        dropout=0.5,
        documents=0,
        permuted=True,
    ),
    data=stories,
    task=task,
    generated=True,
    files="questions/training/*.question and questions/validation/*.question of CNN",
    load=assemble.attentive_reader,
    cost=11.5,
    statements=STATEMENTS,
    batched=False,
    panels=(
        Panel("validation error", "Validation error", "error rate", limits=(0, None)),
        Panel("validation NLL", "Validation NLL", "NLL, nats"),
    ),
    synthetic=made_up,
    note="Five facts, of which one is asked; gains of batch norm start at 0.1.",
)
