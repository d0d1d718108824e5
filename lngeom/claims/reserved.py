"""Ids of claims whose check is still to come: recurrent cells, initialization, the logits, and the experiments."""

from lngeom.claims._evidence import Verdict
from lngeom.claims._registry import reserve

for _id, _topic, _source, _statement in (
    ("equation.4", "recurrent", "Eq. 4", "The layer-normalized RNN is invariant to re-scaling all summed inputs."),
    ("equation.15_16", "recurrent", "Eqs. 15, 16", "LN(z; α, β) normalizes over the D entries of a vector."),
    ("equation.17_19", "recurrent", "Eqs. 17–19", "The LSTM."),
    ("equation.20", "recurrent", "Eq. 20", "Layer norm of W_h h and W_x x separately, with one more bias."),
    ("equation.21_22", "recurrent", "Eqs. 21, 22", "The raw cell is carried; its layer norm feeds the output."),
    ("equation.23_28", "recurrent", "Eqs. 23–28", "The GRU, with and without layer norm."),
    ("equation.29_31", "recurrent", "Eqs. 29–31", "The LSTM with layer norm on the output alone."),
    ("text.stable_dynamics", "recurrent", "Section 3.1", "Layer norm makes hidden-to-hidden dynamics more stable."),
    ("text.bn_per_time_step", "recurrent", "Sections 1, 3.1", "Recurrent batch norm needs statistics for every step."),
    ("supplement.initialization", "recurrent", "Supplement", "Each α is initialized to zeros and each β to ones."),
    ("experiments.no_ln_on_logits", "experiments", "Section 6.6", "Layer norm is unnecessary for the logits."),
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
