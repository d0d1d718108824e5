"""Ids of claims whose check is still to come: the learning rate and the experiments."""

from lngeom.claims._evidence import Verdict
from lngeom.claims._registry import reserve

for _id, _topic, _source, _statement in (
    ("experiments.order_embeddings", "experiments", "Section 6.1", "Best model in 60 % of the time."),
    ("experiments.attentive_reader", "experiments", "Section 6.2", "Trains faster; not sensitive to the gain's start."),
    ("experiments.skip_thoughts", "experiments", "Section 6.3", "Speed-up and better final results."),
    ("experiments.draw", "experiments", "Section 6.4", "Converges almost twice as fast."),
    ("experiments.handwriting", "experiments", "Section 6.5", "Comparable likelihood, much faster."),
    ("experiments.mnist", "experiments", "Section 6.6", "Robust to batch sizes, faster than batch norm."),
    ("experiments.convolutions", "experiments", "Section 6.7", "Faster than the baseline; batch norm is best."),
    ("text.implicit_early_stopping", "learning-rate", "Section 5.2.2", "Normalization has an early-stopping effect."),
):
    reserve(_id, topic=_topic, source=_source, statement=_statement, expected=Verdict.UNDECIDED)
