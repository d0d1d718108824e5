"""What the arms of each experiment are compared by, and what the paper says of it."""

from lngeom.training import Statement


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
            for kind, which, bound, claim in (
                ("GRU", "batch 64", 0.6, ""),
                ("LSTM", "batch 64", 1.0, ""),
                ("GRU", "batch 4", 0.6, ""),
                ("LSTM", "batch 4", 1.0, ""),
                ("GRU", "scaled start", 1.0, "scaled_start"),
                ("LSTM", "scaled start", 1.0, "scaled_start"),
                ("GRU", "scaled start", 0.6, "scaled_start.as_much"),
            )
        ),
    ),
    "order_embeddings": tuple(
        _speed(
            f"OE + LN{which}, {adam}",
            f"OE, {adam}",
            "image R@1",
            text=f"layer norm{which}, {adam}: at most {bound:g} of the steps to the baseline's best image R@1",
            paper="converges to its best validation model in 60 % of the time",
            lower_is_better=False,
            bound=bound,
            claim=claim,
        )
        for which, adam, bound, claim in (
            ("", "reference Adam", 1.0, ""),
            ("", "reference Adam", 0.6, "sixty_percent"),
            (" as printed", "reference Adam", 0.6, "printed"),
            ("", "Adam", 1.0, "adam"),
        )
    ),
    "attentive_reader": (
        _speed(
            "LN-LSTM",
            "LSTM",
            "validation error",
            text="layer norm: fewer steps to an error of one half than LSTM",
            paper=_READER,
            target=0.5,
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
            _best("LN", "baseline", metric, text=f"layer norm: {what}", paper=paper, lower_is_better=low, claim=claim)
            for metric, what, paper, low, claim in (
                ("test NLL", "a better best NLL", "better final results", True, "final"),
                ("relatedness r", "a better best r of relatedness", "SICK r 0.854 against 0.842", False, "final"),
                ("topic accuracy", "a better best classifier", "MR 79.5 against 77.3", False, "classification"),
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
