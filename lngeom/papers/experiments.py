"""Claims of Section 6, which rest on training runs.

`python -m analysis protocol` chooses the learning rate of every arm, trains fresh seeds, and writes the curves and the
statements that compare them. `lngeom verify --results DIR` reads both and judges each statement again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lngeom.claims import judge
from lngeom.claims.comparison import SIGNIFICANCE
from lngeom.claims.context import Context, Read, Reading
from lngeom.claims.evidence import Evidence, Kind, Role, Verdict
from lngeom.claims.problem import Problem
from lngeom.claims.registry import Claim, register
from lngeom.claims.results import read_protocol

TOPIC = "experiments"


def _evidence(claim: str, experiment: str, problem: Problem) -> Iterator[Evidence]:
    """What the protocol's curves say of each statement that the claim rests on."""
    configuration, statements, curved = read_protocol(problem.results, experiment)
    if all(s.claim != claim for s in statements):
        raise ValueError(
            f"no statement of {experiment} in {problem.results} belongs to {claim}: run `python -m analysis protocol "
            f"{experiment}` again"
        )
    data = "generated" if configuration.get("generated") else "real"
    for s, row in zip(statements, judge.report(statements, *curved), strict=True):
        if s.claim != claim:
            continue
        rates = {arm: values["rate"] for arm, values in row["arms"].items()}
        low, high = ("unknown" if end is None else f"{end:.3g}" for end in row["interval"])
        yield Evidence(
            Kind.EXPERIMENT,
            Role.SUPPORTS,
            f"{s.text}: {_SAID[row['verdict']]} ({row['median']}, 95 % {low} to {high}; {row['wins']} of "
            f"{row['fresh seeds']} fresh seeds for, {row['losses']} against; learning rates "
            f"{' and '.join(f'{rate:g}' for rate in rates.values())}; {data} data)",
            passed=row["verdict"] == "SUPPORTED",
            contradicts=row["verdict"] == "REFUTED",
            residual=row["p, corrected"],
            tolerance=SIGNIFICANCE,
            samples=row["fresh seeds"],
            curves={
                arm: (curves.steps, curves.values[s.metric].mean(0))
                for arm, rate in rates.items()
                for curves in (curved.fresh[arm][rate],)
            },
        )


_SAID = {"SUPPORTED": "reproduced", "REFUTED": "not reproduced", "UNDECIDED": "undecided"}
"""Verdicts of the protocol on a statement, as they bear on the paper's."""

_H, _N, _U = Verdict.HOLDS, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED

_SIXTY_BEFORE = "We plot R@1, R@5 and R@10 for the image retrieval task."
_SIXTY = (
    "We observe that layer normalization offers a per-iteration speedup across all metrics and converges to its best "
    "validation model in 60% of the time it takes the baseline model to do so."
)
_SIXTY_AFTER = (
    "In Table 2, the test set results are reported from which we observe that layer normalization also results in "
    "improved generalization over the original model."
)


@dataclass(frozen=True)
class Record:
    """A claim about training, and what was found.

    Attributes:
        id: after "experiments.".
        experiment: whose results it rests on.
        source: where in the paper.
        text: what is claimed.
        expected: the recorded verdict.
        correction: what was found instead, where the paper's result is not reproduced.
        context: the paper's sentence and how it is read, where the paper's result is not reproduced.
    """

    id: str
    experiment: str
    source: str
    text: str
    expected: Verdict
    correction: str = ""
    context: Context | None = None


RECORDS = (
    Record(
        "recurrent_digits",
        "rows_of_digits",
        "Section 7",
        "Recurrent networks that start as in the reference code train faster with layer norm, in small batches too.",
        _U,
    ),
    Record(
        "recurrent_digits.scaled_start",
        "rows_of_digits",
        "beyond Section 7",
        "So do those whose weights start scaled to their inputs.",
        _U,
    ),
    Record(
        "recurrent_digits.scaled_start.as_much",
        "rows_of_digits",
        "beyond Section 7",
        "The speed-up does not depend on how the weights start.",
        _N,
        "With normal weights of variance 1/D, and both arms at their best rates, layer norm takes as many steps "
        "(median ratio 1).",
    ),
    Record(
        "order_embeddings",
        "order_embeddings",
        "Section 6.1",
        "Layer norm speeds up training.",
        _U,
    ),
    Record(
        "order_embeddings.sixty_percent",
        "order_embeddings",
        "Section 6.1",
        "Best model in 60 % of the time.",
        _N,
        "On the small task the median ratio of steps is 0.84 (95 % interval 0.68 to 1.3), both at their best rates.",
        Context(
            sentence=_SIXTY,
            before=_SIXTY_BEFORE,
            after=_SIXTY_AFTER,
            readings=(
                Reading(
                    "The sentence is about MS COCO and the authors' code, with both models at one learning rate.",
                    Verdict.NOT_REPRODUCED,
                ),
            ),
            verdict=(
                "This setting is not repeated here. Not reproduced is the same ratio on a small generated task, with "
                "each model at its own best rate."
            ),
        ),
    ),
    Record(
        "order_embeddings.printed",
        "order_embeddings",
        "Eqs. 26–28",
        "So it is without the biases that the authors' code keeps inside the norms, which the equations do not have.",
        _N,
        "Without them the median ratio of steps is 1.5 on the small task (95 % interval 0.97 to 2.6), both at their "
        "best rates.",
        Context(
            sentence=_SIXTY,
            before=_SIXTY_BEFORE,
            after=_SIXTY_AFTER,
            readings=(
                Reading(
                    "The sentence is about the authors' code, which keeps biases inside the norms.",
                    Verdict.NOT_REPRODUCED,
                ),
            ),
            verdict=(
                "With these biases the ratio is 0.68 to 1.3 on the small task, without them 0.97 to 2.6: the "
                "equations, which have none, are not faster than the baseline there."
            ),
        ),
    ),
    Record(
        "order_embeddings.adam",
        "order_embeddings",
        "beyond Section 6.1",
        "With the standard Adam, too, layer norm reaches the baseline's best model in fewer steps.",
        _U,
    ),
    Record(
        "attentive_reader",
        "attentive_reader",
        "Section 6.2",
        "Trains faster and better than the baseline.",
        _H,
    ),
    Record(
        "attentive_reader.batch_norm",
        "attentive_reader",
        "Section 6.2",
        "Trains faster and better than both variants of recurrent batch norm.",
        _N,
        "On the small task the median ratio of steps to batch norm everywhere is 4.3 (95 % interval 2.3 to 15), both "
        "at their best rates. Against BN-LSTM the speeds are undecided, and so is which of them ends better.",
        Context(
            sentence=(
                "We observe that layer normalization not only trains faster but converges to a better validation "
                "result over both the baseline and BN variants."
            ),
            before="The results of this experiment are shown in Figure 2.",
            after=(
                "In Cooijmans et al. [2016], it is argued that the scale parameter in BN must be carefully chosen and "
                "is set to 0.1 in their experiments."
            ),
            readings=(
                Reading(
                    "The sentence is about the CNN corpus, the published curves of batch norm and the authors' code.",
                    Verdict.NOT_REPRODUCED,
                ),
            ),
            verdict=(
                'This setting is not repeated here. Not reproduced is "trains faster" against batch norm everywhere '
                "on a small generated task, with batch norm evaluated by statistics of its present weights."
            ),
        ),
    ),
    Record(
        "attentive_reader.gain",
        "attentive_reader",
        "Section 6.2",
        "Gains that start at 1.0 do significantly better than those that start at 0.1.",
        _U,
    ),
    Record(
        "skip_thoughts",
        "skip_thoughts",
        "Section 6.3",
        "Layer norm trains faster.",
        _H,
    ),
    Record(
        "skip_thoughts.final",
        "skip_thoughts",
        "Section 6.3",
        "Better final results.",
        _U,
    ),
    Record(
        "skip_thoughts.classification",
        "skip_thoughts",
        "Table 3",
        "Better classifiers of sentences (at the small size both end at 100 %).",
        _U,
    ),
    Record(
        "draw",
        "draw",
        "Section 6.4",
        "Layer norm converges faster.",
        _U,
    ),
    Record(
        "draw.twice_as_fast",
        "draw",
        "Section 6.4",
        "Converges almost twice as fast.",
        _N,
        "On the small task the median ratio of steps is 1.1 (95 % interval 0.64 to 1.4), both at their best rates. "
        "Both still improve at the end of 4800 steps.",
        Context(
            sentence=(
                "It highlights the speedup benefit of applying layer normalization that the layer normalized DRAW "
                "converges almost twice as fast than the baseline model."
            ),
            before="Figure 4 shows the test variational bound for the first 100 epoch.",
            after=(
                "After 200 epoches, the baseline model converges to a variational log likelihood of 82.36 nats on the "
                "test data and the layer normalization model obtains 82.09 nats."
            ),
            readings=(
                Reading(
                    "The sentence is about 28 × 28 images and 64 glimpses, with both models at one learning rate.",
                    Verdict.NOT_REPRODUCED,
                ),
            ),
            verdict=(
                "This setting is not repeated here. Not reproduced is a ratio of at most 0.6 on 8 × 8 digits with 8 "
                "glimpses, with each model at its own best rate."
            ),
        ),
    ),
    Record(
        "draw.final",
        "draw",
        "Section 6.4",
        "A better bound in the end (82.09 against 82.36 nats).",
        _U,
    ),
    Record(
        "handwriting",
        "handwriting",
        "Section 6.5",
        "Comparable likelihood, much faster.",
        _N,
        "On the small task the median ratio of steps is 1 (95 % interval 0.93 to 3.3), both at their best rates. "
        "Whether the likelihoods are comparable is undecided.",
        Context(
            sentence=(
                "Figure 5 shows that layer normalization converges to a comparable log likelihood as the baseline "
                "model but is much faster."
            ),
            before=(
                "The combination of small mini-batch size and very long sequences makes it important to have very "
                "stable hidden dynamics."
            ),
            after="In addition to RNNs, we investigated layer normalization in feed-forward networks.",
            readings=(
                Reading(
                    "The sentence is about IAM-OnDB, with both networks at one learning rate.", Verdict.NOT_REPRODUCED
                ),
            ),
            verdict=(
                'This setting is not repeated here. Not reproduced is "much faster" on a small generated task, with '
                "each network at its own best rate."
            ),
        ),
    ),
    Record(
        "mnist",
        "mnist",
        "Section 6.6",
        "Faster than batch norm on all layers, at both batch sizes.",
        _U,
    ),
    Record(
        "mnist.hidden_batch_norm_128",
        "mnist",
        "beyond Section 6.6",
        "At batch 128, faster than batch norm that leaves the logits alone, as layer norm does.",
        _N,
        "Batch norm on the hidden layers is faster: the logits cause most of the deficit in Figure 6.",
    ),
    Record(
        "mnist.hidden_batch_norm_4",
        "mnist",
        "beyond Section 6.6",
        "At batch 4, faster than batch norm that leaves the logits alone.",
        _U,
    ),
    Record(
        "mnist.none",
        "mnist",
        "beyond Section 6.6",
        "Faster than no normalization, at both batch sizes.",
        _U,
    ),
    Record(
        "mnist.test_error_128",
        "mnist",
        "Figure 6",
        "At batch 128, a lower test error than batch norm.",
        _U,
    ),
    Record(
        "mnist.test_error_4",
        "mnist",
        "Figure 6",
        "At batch 4, a lower test error than BN.",
        _U,
    ),
    Record(
        "convolutions",
        "convnet",
        "Section 6.7",
        "Layer norm is faster than no normalization.",
        _H,
    ),
    Record(
        "convolutions.batch_norm",
        "convnet",
        "Section 6.7",
        "Batch norm is faster than both.",
        _H,
    ),
)


def _register() -> None:
    for record in RECORDS:

        def check(problem, id=f"experiments.{record.id}", experiment=record.experiment):
            """Judges the curves of the experiment again."""
            return _evidence(id, experiment, problem)

        register(
            Claim(
                f"experiments.{record.id}",
                topic=TOPIC,
                source=record.source,
                statement=record.text,
                read=Read.OWN if record.source.startswith("beyond") else Read.PAPER,
                expected=record.expected,
                assumptions=(
                    "at the small size, each arm at its own best learning rate, on ten fresh seeds "
                    "(`analysis/PROTOCOL.md`)",
                ),
                correction=record.correction,
                context=record.context,
                why_numeric="it is about training",
                check=check,
            )
        )


_register()
