"""Table 3 from real files: skip-thought vectors on SICK, MR, CR, SUBJ and MPQA, with an expanded vocabulary.

`python -m analysis table3 --data DIR --vectors FILE` takes the weights of `python -m analysis skip_thoughts --full
--data DIR` after the last step. SICK has its official split, and the others have cross-validation in ten parts, with
the penalty chosen inside each. Words of these tasks that training has not seen get a vector from their word2vec vector,
by the affine map of least squares from word2vec vectors to learned ones, fitted to the words of training (Kiros et al.
2015, Section 2.2).
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.console import Console

from analysis.experiments import skip_thoughts, weights
from analysis.experiments.loaders import assemble, sentences
from analysis.experiments.loaders.vectors import read_vectors
from analysis.experiments.sentence_tasks import AUTHORS

SICK = "SICK"
OF_SICK = {"r": "SICK r", "ρ": "SICK ρ", "MSE": "SICK MSE"}
COLUMNS = (*OF_SICK.values(), *sentences.CLASSES)

PAPER = {
    "the paper: ours": (0.842, 0.767, 0.298, 77.3, 81.8, 92.6, 87.9),
    "the paper: ours + LN": (0.854, 0.785, 0.277, 79.5, 82.6, 93.4, 89.0),
}
"""Rows of Table 3, in the order of `COLUMNS`."""

CHUNK = 50
"""Triples whose neighbours are told at once."""


def expanded(
    learned: Float[np.ndarray, "V E"],
    known: Mapping[str, int],
    vectors: Mapping[str, Float[np.ndarray, " D"]],
    further: Sequence[str],
) -> Float[np.ndarray, "V+X E"]:
    """The learned vectors, and below them those of further words, by an affine map of least squares.

    Args:
        learned: vectors of the symbols of training.
        known: symbols of the words of training.
        vectors: word vectors, of words of training and of the further ones.
        further: words that have a vector and are not of training.

    Returns:
        All vectors.

    Raises:
        ValueError: if too few words of training have a vector for the map to be determined.
    """
    from sklearn.linear_model import LinearRegression

    if not further:
        return learned
    both = [word for word in known if word in vectors]
    size = len(vectors[further[0]])
    if len(both) <= size:
        raise ValueError(
            f"{len(both)} of {len(known)} words of training are among the word vectors; an affine map from vectors of "
            f"{size} numbers needs at least {size + 1}"
        )
    fitted = LinearRegression().fit(np.stack([vectors[w] for w in both]), learned[[known[w] for w in both]])
    return np.concatenate([learned, fitted.predict(np.stack([vectors[w] for w in further])).astype(learned.dtype)])


class Words(NamedTuple):
    """Words of training and of the tasks.

    Attributes:
        known: symbols of the words of training.
        further: words of the tasks that get a vector by the map.
        unknown: how many words of the tasks have no vector.
        vectors: word vectors.
    """

    known: dict[str, int]
    further: list[str]
    unknown: int
    vectors: dict[str, np.ndarray]

    def symbols(self, size: int) -> dict[str, int]:
        """Symbols of all words; the further ones come after those of training, of which there are `size`."""
        return self.known | {word: size + k for k, word in enumerate(self.further)}


def words_of(folder: Path, known: dict[str, int], tasks: Sequence[str], *, sick: bool, path: Path | None) -> Words:
    """Which words of the tasks get a vector.

    Args:
        folder: of the data.
        known: symbols of the words of training.
        tasks: of classification.
        sick: whether SICK is among the tasks.
        path: of the word vectors, or None.

    Returns:
        The words.
    """
    wanted = assemble.words_of_tasks(folder, tasks, sick=sick) - set(known)
    vectors = {} if path is None else read_vectors(path, wanted | set(known))
    further = sorted(wanted & set(vectors))
    return Words(known, further, len(wanted) - len(further), vectors)


_nll = jax.jit(jax.vmap(skip_thoughts.SkipThoughts.nll, (0, None, None)))


def held_out_nll(models: Any, found: Any, settings: Any) -> Float[np.ndarray, " S"]:
    """NLL of a word of the held-out triples, for each seed."""
    told = assemble.held_out(found, settings)
    parts = [
        [np.asarray(v, np.float64) for v in _nll(models, told.sentences[k : k + CHUNK], told.lengths[k : k + CHUNK])]
        for k in range(0, len(told.sentences), CHUNK)
    ]
    total, count = (np.sum(part, 0) for part in zip(*parts, strict=True))
    return total / count


def measure(folder: Path, kept: weights.Kept, tasks: Sequence[str], vectors: Path | None) -> dict[str, Any]:
    """All tasks of every arm.

    Args:
        folder: of the data.
        kept: weights after the last step.
        tasks: SICK or a task of classification.
        vectors: file of word vectors, or None for no expansion.

    Returns:
        Arm → seeds' steps, numbers of words, and each value of each seed.

    Raises:
        ValueError: if files are missing or damaged, or the data are not those of training.
    """
    experiment, settings = skip_thoughts.EXPERIMENT, kept.settings
    sick, classes = SICK in tasks, [task for task in tasks if task != SICK]
    found, known = assemble.books(folder, settings)
    words = words_of(folder, known, classes, sick=sick, path=vectors)
    judged = assemble.sentence_tasks(folder, words.symbols(settings.vocabulary), classes, sick=sick)
    data, rows = assemble.held_out(found, settings), {}
    for arm, path in kept.paths.items():
        _, trained = weights.load(experiment, kept, arm, data)
        models = trained.states.model
        now = held_out_nll(models, found, settings)
        weights.check_same_data(path, "test NLL", now, trained.values["test NLL"], folder)
        tables = [expanded(np.asarray(w), words.known, words.vectors, words.further) for w in models.words]
        models = eqx.tree_at(lambda m: m.words, models, jnp.asarray(np.stack(tables)))
        values = skip_thoughts.scores(models, judged.pairs, judged.tasks, judge=AUTHORS)
        values = {OF_SICK.get(name, name): v for name, v in values.items()}
        counts = {"by the map": len(words.further), "unknown": words.unknown}
        rows[arm] = {"steps": list(trained.steps), "words of the tasks": counts} | values
    return rows


def main() -> None:
    """Entry point of `python -m analysis table3`."""
    every = (SICK, *sentences.CLASSES)
    parser = weights.parser("table3", "Table 3: sentence tasks on skip-thought vectors.", "skip_thoughts")
    parser.add_argument(
        "--vectors", type=Path, metavar="FILE", help="word2vec vectors, .bin or text, to expand the vocabulary"
    )
    parser.add_argument("--tasks", nargs="+", choices=every, default=every, help="some of the tasks; all by default")
    options = parser.parse_args()
    console = Console()
    try:
        kept = weights.find(skip_thoughts.EXPERIMENT, options.weights, "checkpoint")
        found = measure(options.data, kept, options.tasks, options.vectors)
        rows = {
            arm: [float(f"{np.mean(values[c]):.4g}") if c in values else None for c in COLUMNS]
            for arm, values in found.items()
        }
        counts = next(iter(found.values()))["words of the tasks"]
        details = {
            "seeds": found,
            "data": "official split of SICK; ten-fold cross-validation of the others",
            "vocabulary": f"expanded from {options.vectors.name}" if options.vectors else "of training, not expanded",
        }
        text, paths = weights.write_table(options.out, "table3", COLUMNS, rows | PAPER, details)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Vocabulary {details['vocabulary']}. Of the words of the tasks, {counts['by the map']} have a vector by the "
        f"map, and {counts['unknown']} have none.",
        highlight=False,
        soft_wrap=True,
    )
    console.print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
