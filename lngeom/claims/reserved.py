"""Ids of claims whose check is still to come: recurrent dynamics."""

from lngeom.claims._evidence import Verdict
from lngeom.claims._registry import reserve

for _id, _topic, _source, _statement in (
    ("text.stable_dynamics", "recurrent", "Section 3.1", "Layer norm makes hidden-to-hidden dynamics more stable."),
    ("text.bn_per_time_step", "recurrent", "Sections 1, 3.1", "Recurrent batch norm needs statistics for every step."),
):
    reserve(_id, topic=_topic, source=_source, statement=_statement, expected=Verdict.UNDECIDED)
