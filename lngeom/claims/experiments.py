"""Claims of Section 6, which rest on training runs: what each is to show, by which curves and which test.

`python -m analysis NAME` trains; `lngeom verify --results DIR` compares the curves it has left anew. The comparison of
two arms is an exact sign test over seeds (`lngeom.training.Statement`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lngeom.claims._evidence import Evidence, Kind, Role, Verdict
from lngeom.claims._problem import Problem
from lngeom.claims._registry import Claim, register
from lngeom.claims._results import read_curves
from lngeom.training import Finding, Statement

TOPIC = "experiments"


def _speed(treated: str, baseline: str, metric: str, *, text: str, paper: str, **more) -> Statement:
    return Statement(text, paper, treated, baseline, metric, **more)


def _best(treated: str, baseline: str, metric: str, *, text: str, paper: str, **more) -> Statement:
    return Statement(text, paper, treated, baseline, metric, measure="best", **more)


_ROWS = "recurrent networks benefit the most, for small mini-batches too"
_READER = "trains faster than the baseline and both variants of batch norm"
_BETTER = "converges to a better validation result than the baseline and both variants of batch norm"
_MLP = "faster convergence than batch norm on all layers"

STATEMENTS: dict[str, tuple[Statement, ...]] = {
    "rows_of_digits": (
        *(
            _speed(
                f"{kind} + LN, {which}",
                f"{kind}, {which}",
                "test error",
                text=f"{kind} with layer norm, {which}: at most {bound:g} of the steps to 5 % test error",
                paper=_ROWS,
                target=0.05,
                bound=bound,
                claim=claim,
            )
            for which, bound, claim in (
                ("batch 64", 0.6, ""),
                ("batch 4", 0.6, ""),
                ("scaled start", 0.6, "scaled_start"),
            )
            for kind in ("GRU", "LSTM")
        ),
    ),
    "order_embeddings": tuple(
        _speed(
            f"OE + LN, {adam}",
            f"OE, {adam}",
            "image R@1",
            text=f"layer norm, {adam}: at most {bound:g} of the steps to the baseline's best image R@1",
            paper="converges to its best validation model in 60 % of the time",
            lower_is_better=False,
            bound=bound,
            claim=claim,
        )
        for adam, bound, claim in (
            ("reference Adam", 0.6, ""),
            ("Adam", 1.0, "adam"),
        )
    ),
    "attentive_reader": (
        _speed(
            "LN-LSTM", "LSTM", "validation error", text="layer norm: fewer steps to the best of LSTM", paper=_READER
        ),
        _best("LN-LSTM", "LSTM", "validation error", text="layer norm: lower best error than LSTM", paper=_BETTER),
        *(
            measure(
                "LN-LSTM",
                than,
                "validation error",
                text=f"layer norm: {what} {than}",
                paper=paper,
                claim="batch_norm",
            )
            for than in ("BN-LSTM", "BN-everywhere")
            for measure, what, paper in (
                (_speed, "fewer steps to the best error of", _READER),
                (_best, "lower best error than", _BETTER),
            )
        ),
        _best(
            "LN-LSTM",
            "LN-LSTM, gain 0.1",
            "validation NLL",
            text="gain 1.0: lower best NLL than gain 0.1",
            paper="1.0 performed significantly better than 0.1",
            claim="gain",
        ),
    ),
    "skip_thoughts": (
        _speed(
            "LN",
            "baseline",
            "test NLL",
            text="layer norm: at most 0.6 of the steps to the baseline's best NLL",
            paper="a speedup over the baseline",
            bound=0.6,
        ),
        *(
            _best("LN", "baseline", metric, text=f"layer norm: {what}", paper=paper, lower_is_better=low, claim="final")
            for metric, what, paper, low in (
                ("test NLL", "a better best NLL", "better final results", True),
                ("relatedness r", "a better best r of relatedness", "SICK r 0.854 against 0.842", False),
                ("topic accuracy", "a better best classifier", "MR 79.5 against 77.3, and three more", False),
            )
        ),
    ),
    "draw": (
        *(
            _speed(
                "LN",
                "baseline",
                "test bound",
                text=f"layer norm: at most {bound:g} of the steps to the baseline's best bound",
                paper="converges almost twice as fast",
                bound=bound,
                claim=claim,
            )
            for bound, claim in ((0.9, ""), (0.6, "twice_as_fast"))
        ),
        _best(
            "LN",
            "baseline",
            "test bound",
            text="layer norm: a better best bound",
            paper="82.09 against 82.36 nats",
            claim="final",
        ),
    ),
    "handwriting": (
        _speed(
            "LN",
            "baseline",
            "test NLL",
            text="layer norm: at most 0.65 of the steps to the baseline's best NLL",
            paper="comparable log likelihood, much faster",
            bound=0.65,
        ),
    ),
    "mnist": (
        *(
            _speed(
                f"LN on hidden layers, batch {size}",
                f"{than}, batch {size}",
                "train NLL",
                text=f"layer norm, batch {size}: fewer steps to train NLL 0.1 than {than}",
                paper=paper,
                target=0.1,
                claim=claim,
            )
            for size, than, paper, claim in (
                (128, "BN on all layers", _MLP, ""),
                (4, "BN on all layers", _MLP, ""),
                (128, "BN on hidden layers", "not compared", "hidden_batch_norm_128"),
                (4, "BN on hidden layers", "not compared", "hidden_batch_norm_4"),
                (128, "none", "not compared", "none"),
                (4, "none", "not compared", "none"),
            )
        ),
        *(
            _best(
                f"LN on hidden layers, batch {size}",
                f"BN on all layers, batch {size}",
                "test error",
                text=f"layer norm, batch {size}: lower best test error than BN on all layers",
                paper="lower test error in Figure 6",
                claim=f"test_error_{size}",
            )
            for size in (128, 4)
        ),
    ),
    "convnet": tuple(
        _speed(
            treated,
            baseline,
            "test error",
            text=f"{treated}: fewer steps to 5 % test error than {baseline}",
            paper=paper,
            target=0.05,
            claim=claim,
        )
        for treated, baseline, paper, claim in (
            ("layer norm", "none", "a speedup over the baseline", ""),
            ("batch norm", "none", "batch normalization outperforms the other methods", "batch_norm"),
            ("batch norm", "layer norm", "batch normalization outperforms the other methods", "batch_norm"),
        )
    ),
}
"""For each experiment of `analysis/`, what its arms are compared by."""


def _evidence(experiment: str, statements: tuple[Statement, ...], problem: Problem) -> Iterator[Evidence]:
    arms = read_curves(problem.results, experiment)
    for s in statements:
        treated, baseline = arms[s.treated], arms[s.baseline]
        found = s.compare(treated.steps, {arm: arms[arm].values[s.metric] for arm in (s.treated, s.baseline)})
        values = " ".join(f"{'>' if c else ''}{v:.3g}" for v, c in zip(found.values, found.censored, strict=True))
        yield Evidence(
            Kind.EXPERIMENT,
            Role.SUPPORTS,
            f"{s.text}: {found.finding} ({values}; {found.wins} seeds for, {found.losses} against)",
            passed=found.finding is Finding.SUPPORTED,
            contradicts=found.finding is Finding.REFUTED,
            residual=found.p_supports,
            tolerance=0.05,
            samples=len(found.values),
            curves={
                name: (arm.steps, arm.values[s.metric].mean(0))
                for name, arm in ((s.treated, treated), (s.baseline, baseline))
            },
        )


_H, _R, _U = Verdict.HOLDS, Verdict.REFUTED, Verdict.UNDECIDED


@dataclass(frozen=True)
class Record:
    """A claim about training, and what was found.

    Attributes:
        id: after "experiments.".
        experiment: whose results it rests on.
        source: where in the paper.
        text: what is claimed.
        expected: the recorded verdict.
        group: which of the experiment's statements it rests on.
        correction: what was found instead, where it is refuted.
    """

    id: str
    experiment: str
    source: str
    text: str
    expected: Verdict
    group: str = ""
    correction: str = ""


RECORDS = (
    Record(
        "recurrent_digits",
        "rows_of_digits",
        "Section 7",
        "Recurrent networks that start as in the reference code train faster with layer norm, in small batches too.",
        _H,
    ),
    Record(
        "recurrent_digits.scaled_start",
        "rows_of_digits",
        "Section 7",
        "So do those whose weights start scaled to their inputs.",
        _R,
        "scaled_start",
        "The start explains a part of the speed-up: with normal weights of variance 1/D it is smaller.",
    ),
    Record("order_embeddings", "order_embeddings", "Section 6.1", "Best model in 60 % of the time.", _H),
    Record(
        "order_embeddings.adam",
        "order_embeddings",
        "Section 6.1",
        "With the standard Adam, too, layer norm reaches the baseline's best model in fewer steps.",
        _U,
        "adam",
    ),
    Record("attentive_reader", "attentive_reader", "Section 6.2", "Trains faster and better than the baseline.", _H),
    Record(
        "attentive_reader.batch_norm",
        "attentive_reader",
        "Section 6.2",
        "Trains faster and better than both variants of recurrent batch norm.",
        _H,
        "batch_norm",
    ),
    Record(
        "attentive_reader.gain",
        "attentive_reader",
        "Section 6.2",
        "Gains that start at 1.0 do significantly better than those that start at 0.1.",
        _R,
        "gain",
        "On the small task those that start at 0.1 do better.",
    ),
    Record("skip_thoughts", "skip_thoughts", "Section 6.3", "Layer norm trains faster.", _H),
    Record("skip_thoughts.final", "skip_thoughts", "Section 6.3", "Better final results.", _H, "final"),
    Record("draw", "draw", "Section 6.4", "Layer norm converges faster.", _H),
    Record("draw.twice_as_fast", "draw", "Section 6.4", "Converges almost twice as fast.", _U, "twice_as_fast"),
    Record("draw.final", "draw", "Section 6.4", "A better bound in the end (82.09 against 82.36 nats).", _H, "final"),
    Record("handwriting", "handwriting", "Section 6.5", "Comparable likelihood, much faster.", _H),
    Record("mnist", "mnist", "Section 6.6", "Faster than batch norm on all layers, at both batch sizes.", _H),
    Record(
        "mnist.hidden_batch_norm_128",
        "mnist",
        "Section 6.6",
        "At batch 128, faster than batch norm that leaves the logits alone, as layer norm does.",
        _R,
        "hidden_batch_norm_128",
        "Batch norm on the hidden layers is faster: the logits cause most of the deficit in Figure 6.",
    ),
    Record(
        "mnist.hidden_batch_norm_4",
        "mnist",
        "Section 6.6",
        "At batch 4, faster than batch norm that leaves the logits alone.",
        _H,
        "hidden_batch_norm_4",
    ),
    Record("mnist.none", "mnist", "Section 6.6", "Faster than no normalization, at both batch sizes.", _H, "none"),
    Record(
        "mnist.test_error_128",
        "mnist",
        "Figure 6",
        "At batch 128, a lower test error than batch norm.",
        _U,
        "test_error_128",
    ),
    Record("mnist.test_error_4", "mnist", "Figure 6", "At batch 4, a lower test error than BN.", _H, "test_error_4"),
    Record("convolutions", "convnet", "Section 6.7", "Layer norm is faster than no normalization.", _H),
    Record("convolutions.batch_norm", "convnet", "Section 6.7", "Batch norm is faster than both.", _H, "batch_norm"),
)


def _register() -> None:
    for record in RECORDS:
        statements = tuple(s for s in STATEMENTS[record.experiment] if s.claim == record.group)
        if not statements:
            raise ValueError(f"no statement of {record.experiment} belongs to {record.group!r}")

        def check(problem, experiment=record.experiment, statements=statements):
            """Compares the curves of the experiment anew."""
            return _evidence(experiment, statements, problem)

        register(
            Claim(
                f"experiments.{record.id}",
                topic=TOPIC,
                source=record.source,
                statement=record.text,
                expected=record.expected,
                assumptions=("at the small size of `python -m analysis`",),
                correction=record.correction,
                why_numeric="it is about training",
                check=check,
            )
        )
    resting = {(r.experiment, r.group) for r in RECORDS}
    for experiment, statements in STATEMENTS.items():
        if missing := {s.claim for s in statements} - {group for name, group in resting if name == experiment}:
            raise ValueError(f"no claim rests on the statements {missing} of {experiment}")


_register()
