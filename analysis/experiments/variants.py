"""Arms as the authors' code has them, in the place of an experiment's own or beside them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from analysis.experiments.experiment import Experiment, Panel

AUTHORS = ", authors' code"
"""What ends the name of an arm as the authors' code has it."""

Variant = Literal["ours", "authors", "both"]


def with_variant(experiment: Experiment, variant: Variant) -> Experiment:
    """The experiment with its own arms, with those as the authors' code has them in their place, or with both.

    Arms of the authors' code have a name of their own, and statements of their own beside those they correspond to.

    Args:
        experiment: the experiment.
        variant: which.

    Returns:
        An experiment; the same one where no arm differs.
    """
    if variant == "ours" or not experiment.authors:
        return experiment
    both = variant == "both"
    name = {arm: f"{arm}{AUTHORS}" if arm in experiment.authors else arm for arm in experiment.arms}
    arms = dict(experiment.arms) if both else {}
    arms |= {name[arm]: experiment.authors.get(arm, made) for arm, made in experiment.arms.items()}

    def renamed(old: Any) -> Any:
        treated, baseline = (name[arm] for arm in old.arms)
        return (
            old
            if (treated, baseline) == old.arms
            else replace(old, treated=treated, baseline=baseline, text=f"{old.text}{AUTHORS}")
        )

    def panel(old: Panel) -> Panel:
        kept = old.arms if old.arms is not None else tuple(experiment.arms)
        labels = {name[arm]: f"{label}{AUTHORS if both else ''}" for arm, label in old.labels.items()}
        shown = (*(kept if both else ()), *(name[arm] for arm in kept))
        return replace(old, arms=tuple(dict.fromkeys(shown)), labels=(dict(old.labels) if both else {}) | labels)

    def statements(old: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys((*(old if both else ()), *map(renamed, old))))

    return replace(
        experiment,
        arms=arms,
        statements=statements(experiment.statements),
        panels=tuple(map(panel, experiment.panels)),
    )


def variant_of(experiment: Experiment, out: Path) -> Variant:
    """Which arms the results of an experiment are of.

    Args:
        experiment: the experiment.
        out: folder of all results.

    Returns:
        The variant whose arms they have; "ours" where there are no results that can be read.
    """
    try:
        arms = json.loads((out / experiment.name / "config.json").read_text(encoding="utf-8"))["arms"]
    except (OSError, ValueError, KeyError, TypeError):
        return "ours"
    return next((v for v in get_args(Variant) if list(with_variant(experiment, v).arms) == arms), "ours")
