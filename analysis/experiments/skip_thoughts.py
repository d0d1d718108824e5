"""Skip-thought vectors (Section 6.3, Figure 3, Table 3): a sentence is encoded to tell those before and after it.

Decoders start from the encoder's state and see the words so far, as in the public code. The vectors are judged by
linear probes at every evaluation and, at the end, by the two kinds of tasks of the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, Int
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement

from analysis.experiments.datasets import Triples
from analysis.experiments.experiment import Experiment, Panel, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import Run, gradient_task
from analysis.experiments.networks import Dense, cell, embedding, negative_log_likelihood, rows
from analysis.experiments.sentence_tasks import classification, pair_features, relatedness


@dataclass(frozen=True)
class SkipSettings(Settings):
    """Sizes."""

    vocabulary: int = 68
    embedding: int = 32
    hidden: int = 64
    rate: float = 1e-3
    batch: int = 64
    clip: float = 5.0
    triples: int = 8000
    held_out: int = 400


class Arm(NamedTuple):
    """Whether encoder and decoders are layer-normalized."""

    normalized: bool


TOPICS, NOUNS, WORDS = 6, 12, 3


def stories(settings: SkipSettings, seed: int = 0) -> Triples:
    """Stories with a topic and a running noun: "adjective noun verb adverb .".

    Adjective, verb and adverb are drawn from the words of the topic; the noun is the next one in each sentence. Pairs
    of sentences are scored 1 + 2 (same topic) + up to 2 (nearness of their nouns).

    Args:
        settings: sizes.
        seed: of the stories.

    Returns:
        The triples.
    """
    rng = np.random.default_rng(seed)
    noun_words = 2 + np.arange(NOUNS)
    topic_words = noun_words[-1] + 1 + np.arange(3 * TOPICS * WORDS).reshape(3, TOPICS, WORDS)

    def sentences(topic, noun):
        adjective, verb, adverb = (topic_words[k, topic, rng.integers(0, WORDS, topic.shape)] for k in range(3))
        said = np.stack([adjective, noun_words[noun % NOUNS], verb, adverb, np.ones_like(noun)], -1)
        short = rng.random(topic.shape) < 0.5  # every other sentence has no adverb
        said[short, 3:] = [1, 0]
        return said.astype(np.int32), np.where(short, 4, 5).astype(np.int32)

    def draw(count, **more):
        topic, first = rng.integers(0, TOPICS, count), rng.integers(0, NOUNS, count)
        said, lengths = sentences(np.repeat(topic[:, None], 3, 1), first[:, None] + np.arange(3))
        return Triples(said, lengths, labels=topic.astype(np.int32), **more)

    count = settings.held_out
    topics = rng.integers(0, TOPICS, (count, 2))
    topics[: count // 2, 1] = topics[: count // 2, 0]
    nouns = rng.integers(0, NOUNS, (count, 2))
    apart = np.abs(nouns[:, 0] - nouns[:, 1])
    near = 1 - np.minimum(apart, NOUNS - apart) / (NOUNS / 2)
    scores = (1 + 2 * (topics[:, 0] == topics[:, 1]) + 2 * near).astype(np.float32)
    order = rng.permutation(count)
    pairs = (*(v[order] for v in sentences(topics, nouns)), scores[order])
    return draw(settings.triples)._replace(test=draw(count, pairs=pairs), labels=None)


class SkipThoughts(eqx.Module):
    """Encoder, two decoders and the words."""

    words: Float[Array, "V E"]
    encoder: Any
    before: Any
    after: Any
    readout: Dense

    def encode(self, symbols: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Float[Array, "B H"]:
        """Vectors of sentences."""
        state, _ = nn.unroll(self.encoder, jnp.swapaxes(self.words[symbols], 0, 1), lengths=lengths)
        return state

    def nll(self, sentences: Int[Array, "B 3 T"], lengths: Int[Array, "B 3"]) -> tuple[Array, Array]:
        """Summed negative log-likelihood of the words of both neighbours, and the number of words."""
        state = self.encode(sentences[:, 1], lengths[:, 1])
        total, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
        for decoder, which in ((self.before, 0), (self.after, 2)):
            target = sentences[:, which].T
            known = jnp.concatenate([jnp.zeros_like(target[:1]), target[:-1]])
            seen = jnp.where((jnp.arange(target.shape[0]) > 0)[:, None, None], self.words[known], 0)
            _, hidden = nn.unroll(decoder, seen, state)
            inside = (jnp.arange(target.shape[0])[:, None] < lengths[:, which][None]).astype(jnp.float32)
            total += jnp.sum(inside * negative_log_likelihood(self.readout(hidden), target))
            count += jnp.sum(inside)
        return total, count


def ridge(features: Float[Array, "N F"], targets: Float[Array, "N K"], penalty: float = 1e-2) -> Float[Array, "M K"]:
    """Predictions for the second half of the rows by ridge regression on the first.

    By conjugate gradients: a batch of decompositions, as seeds side by side need, waits for XLA's threads on a CPU
    while it holds one of them, and arms that are trained at once can so wait for each other for ever.
    """
    half = features.shape[0] // 2
    x = features - jnp.mean(features[:half], 0, keepdims=True)
    x = jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1)
    gram = x[:half].T @ x[:half] / half + penalty * jnp.eye(x.shape[1], dtype=x.dtype)
    return x[half:] @ cg(gram, x[:half].T @ targets[:half] / half, tol=1e-6)[0]


def probes(model: SkipThoughts, test: Triples) -> dict[str, Array]:
    """Accuracy of a linear classifier, and r and MSE of a linear predictor of relatedness; none without labels."""
    found = {}
    if test.labels is not None:
        vectors = model.encode(test.sentences[:, 1], test.lengths[:, 1])
        scores = ridge(vectors, jax.nn.one_hot(test.labels, TOPICS, dtype=vectors.dtype))
        right = jnp.argmax(scores, 1) == test.labels[len(test.labels) // 2 :]
        found["topic accuracy"] = 100 * jnp.mean(right.astype(jnp.float32))
    if test.pairs is not None:
        symbols, lengths, scores = test.pairs
        u, v = (model.encode(symbols[:, i], lengths[:, i]) for i in (0, 1))
        predicted = ridge(jnp.concatenate([jnp.abs(u - v), u * v], 1), scores[:, None])[:, 0]
        wanted = scores[len(scores) // 2 :]
        found["relatedness r"] = jnp.corrcoef(predicted, wanted)[0, 1]
        found["relatedness MSE"] = jnp.mean(jnp.square(predicted - wanted))
    return found


def task(settings: SkipSettings, arm: Arm, data: Triples):
    """Training of one arm."""

    def init(key):
        keys = jax.random.split(key, 5)
        words = embedding(keys[0], settings.vocabulary, settings.embedding)
        encoder, before, after = (
            cell("GRU", arm.normalized, settings.embedding, settings.hidden, key=k) for k in keys[1:4]
        )
        readout = Dense(settings.hidden, settings.vocabulary, key=keys[4], scale=0.1)
        return SkipThoughts(words, encoder, before, after, readout), None

    def loss(model, extra, key, data):
        chosen = rows(key, data.sentences.shape[0], settings.batch)
        total, _ = model.nll(data.sentences[chosen], data.lengths[chosen])
        return total, extra

    def evaluate(model, extra, data):
        total, count = model.nll(data.test.sentences, data.test.lengths)
        return {"test NLL": total / count} | probes(model, data.test)

    optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optax.adam(settings.rate))
    return gradient_task(init, loss, optimizer, evaluate)


def finish(settings: SkipSettings, data: Triples, runs: Mapping[str, Run]) -> dict[str, Any]:
    """The paper's two kinds of tasks on the vectors after training: relatedness and classification, for each seed."""
    found = {}
    for name, run in runs.items():
        encode = jax.jit(jax.vmap(SkipThoughts.encode, (0, None, None)))
        each: list[dict[str, float]] = [{} for _ in run.seeds]
        if data.test.pairs is not None:
            symbols, lengths, scores = data.test.pairs
            half = len(scores) // 2
            u, v = (np.asarray(encode(run.state.model, symbols[:, i], lengths[:, i])) for i in (0, 1))
            for s, row in enumerate(each):
                features = pair_features(u[s], v[s])
                row |= relatedness((features[:half], scores[:half]), (features[half:], scores[half:]))
        tasks = dict(data.test.tasks or {})
        if data.test.labels is not None:
            tasks["accuracy"] = (data.test.sentences[:, 1], data.test.lengths[:, 1], data.test.labels)
        for task_name, (symbols, lengths, labels) in tasks.items():
            vectors = np.asarray(encode(run.state.model, symbols, lengths))
            for s, row in enumerate(each):
                row[task_name] = classification(
                    vectors[s], labels, folds=10 if task_name in (data.test.tasks or {}) else 5
                )
        found[name] = {k: [round(e[k], 4) for e in each] for k in each[0]}
    return {"sentence tasks after training": found}


def made_up(settings: SkipSettings) -> Triples:
    """Noise of the shape of the full size."""
    rng = np.random.default_rng(0)

    def draw(count, test=None):
        symbols = rng.integers(2, settings.vocabulary, (count, 3, 30)).astype(np.int32)
        return Triples(symbols, np.full((count, 3), 30, np.int32), test)

    return draw(64, draw(2))


STATEMENTS = (
    TrainingStatement(
        claim="experiments.skip_thoughts",
        text="layer norm: at most 0.6 of the steps to the baseline's best NLL",
        paper="a speedup over the baseline",
        treated="LN",
        baseline="baseline",
        metric="test NLL",
        bound=0.6,
    ),
    *(
        TrainingStatement(
            claim=f"experiments.skip_thoughts.{part}",
            text=f"layer norm: {what}",
            paper=paper,
            treated="LN",
            baseline="baseline",
            metric=metric,
            measure="best",
            lower_is_better=lower,
        )
        for metric, what, paper, lower, part in (
            ("test NLL", "a better best NLL", "better final results", True, "final"),
            ("relatedness r", "a better best r of relatedness", "SICK r 0.854 against 0.842", False, "final"),
            ("topic accuracy", "a better best classifier", "MR 79.5 against 77.3", False, "classification"),
        )
    ),
)

EXPERIMENT = Experiment(
    name="skip_thoughts",
    title="Skip-thought vectors",
    source="Section 6.3, Figure 3",
    arms={"baseline": Arm(False), "LN": Arm(True)},
    small=SkipSettings(steps=800, every=20),
    full=SkipSettings(
        steps=1_000_000,
        every=50_000,
        vocabulary=20_000,
        embedding=620,
        hidden=2400,
        rate=2e-4,
        triples=0,
        held_out=0,
    ),
    data=stories,
    task=task,
    load=assemble.skip_thoughts,
    statements=STATEMENTS,
    panels=(
        Panel("test NLL", "Neighbouring sentences", "NLL of a word, nats"),
        Panel("relatedness r", "Relatedness, r", "Pearson's r"),
        Panel("relatedness MSE", "Relatedness, MSE", "mean squared error"),
    ),
    finish=finish,
    synthetic=made_up,
    note="Stories with a topic and a running noun. Accuracy of the topic saturates, and is not drawn.",
)
