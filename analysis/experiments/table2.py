"""Table 2 from real files: retrieval on COCO's test split, with the weights chosen by recall on the validation split.

`python -m analysis table2 --data DIR` takes the weights of `python -m analysis order_embeddings --full --data DIR`: of
each seed those at the greatest sum of the recalls at 1, 5 and 10 of images, as in the authors' code. As there, a test
split of more than a thousand images is taken in parts of a thousand, and the table has their means.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from analysis.experiments import order_embeddings, weights
from analysis.experiments.datasets import Captioned
from analysis.experiments.loaders import assemble

FOLD = 1000
"""Images among which one is looked for."""

METRICS = tuple(f"{side} {what}" for side in ("caption", "image") for what in ("R@1", "R@5", "R@10", "mean rank"))
"""Columns of the table: captions found by images, then images found by captions."""

PAPER = {
    "the paper: OE": (46.6, 79.3, 89.1, 5.2, 37.8, 73.6, 85.7, 7.9),
    "the paper: OE + LN": (48.5, 80.6, 89.8, 5.1, 38.9, 74.3, 86.3, 7.6),
}
"""Rows of Table 2."""


def folds(data: Captioned, size: int = FOLD) -> list[Captioned]:
    """The held-out images in parts of equal size, or the whole where there are no more; a rest is left out.

    Args:
        data: with the test split held out.
        size: images of a part.

    Returns:
        The parts.
    """
    count = len(data.test_features)
    starts = range(0, count - size + 1, size) if count > size else (0,)
    return [
        data._replace(
            test_features=data.test_features[k : k + size],
            test_captions=data.test_captions[k : k + size],
            test_lengths=data.test_lengths[k : k + size],
        )
        for k in starts
    ]


def measure(folder: Path, kept: weights.Kept) -> dict[str, Any]:
    """Retrieval of every arm on the test split.

    Args:
        folder: of the data.
        kept: weights at the best validation recall.

    Returns:
        Arm → seeds' steps, and each metric of each seed, a mean of the parts.

    Raises:
        ValueError: if files are missing or damaged, or the data are not those of training.
    """
    experiment = order_embeddings.EXPERIMENT
    validation = assemble.order_embeddings(folder, kept.settings)
    test = assemble.order_embeddings(folder, kept.settings, "test")
    metric = experiment.selection.metric
    found = {}
    for arm, path in kept.paths.items():
        task, trained = weights.load(experiment, kept, arm, validation)
        evaluate = jax.jit(task.evaluate)
        states = [jax.tree.map(lambda v, s=s: v[s], trained.states) for s in range(len(trained.steps))]

        def of(data: Captioned, evaluate: Any = evaluate, states: Any = states) -> dict[str, np.ndarray]:
            held = data._replace(features=data.features[:0], captions=data.captions[:0], lengths=data.lengths[:0])
            each = [{k: float(v) for k, v in evaluate(state, held).items()} for state in states]
            return {k: np.array([e[k] for e in each]) for k in each[0]}

        weights.check_same_data(path, f"validation {metric}", of(validation)[metric], trained.values[metric], folder)
        parts = [of(part) for part in folds(test)]
        found[arm] = {"steps": list(trained.steps), "parts": len(parts)} | {
            name: [float(v) for v in np.mean([part[name] for part in parts], 0)] for name in METRICS
        }
    return found


def main() -> None:
    """Entry point of `python -m analysis table2`."""
    parser = weights.parser("table2", "Table 2: retrieval on COCO's test split.", "order_embeddings")
    options = parser.parse_args()
    console = Console()
    try:
        kept = weights.find(order_embeddings.EXPERIMENT, options.weights, "best")
        found = measure(options.data, kept)
        rows = {arm: [float(f"{np.mean(v[name]):.4g}") for name in METRICS] for arm, v in found.items()}
        details = {"seeds": found, "data": "COCO, test split", "chosen by": "validation R@1+5+10 of images"}
        text, paths = weights.write_table(options.out, "table2", METRICS, rows | PAPER, details)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
