"""Ids of claims whose check is still to come: recurrent dynamics and the experiments."""

from lngeom.claims._evidence import Verdict
from lngeom.claims._registry import reserve

for _id, _topic, _source, _statement in (
    ("text.stable_dynamics", "recurrent", "Section 3.1", "Layer norm makes hidden-to-hidden dynamics more stable."),
    ("text.bn_per_time_step", "recurrent", "Sections 1, 3.1", "Recurrent batch norm needs statistics for every step."),
    ("experiments.order_embeddings", "experiments", "Section 6.1", "Best model in 60 % of the time."),
    ("experiments.attentive_reader", "experiments", "Section 6.2", "Trains faster; not sensitive to the gain's start."),
    ("experiments.skip_thoughts", "experiments", "Section 6.3", "Speed-up and better final results."),
    ("experiments.draw", "experiments", "Section 6.4", "Converges almost twice as fast."),
    ("experiments.handwriting", "experiments", "Section 6.5", "Comparable likelihood, much faster."),
    ("experiments.mnist", "experiments", "Section 6.6", "Robust to batch sizes, faster than batch norm."),
    ("experiments.convolutions", "experiments", "Section 6.7", "Faster than the baseline; batch norm is best."),
):
    reserve(_id, topic=_topic, source=_source, statement=_statement, expected=Verdict.UNDECIDED)
