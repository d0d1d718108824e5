"""Tasks that are made once, so that further runs of them find the programs that were compiled for them."""

import hashlib
from dataclasses import replace

import jax
import numpy as np


def made_once(experiment):
    """The experiment, of which equal settings, arms and data give the same task.

    Args:
        experiment: an `Experiment`.

    Returns:
        An experiment.
    """
    known = {}

    def task(settings, arm, data):
        leaves, structure = jax.tree.flatten(data)
        digest = hashlib.sha256()
        for leaf in map(np.asarray, leaves):
            digest.update(f"{leaf.shape} {leaf.dtype}".encode() + leaf.tobytes())
        key = repr((settings, arm, structure)), digest.digest()
        if key not in known:
            known[key] = experiment.task(settings, arm, data)
        return known[key]

    return replace(experiment, task=task)
