"""Claims of Section 6, which rest on training runs: what each is to show, by which curves and which test."""

from lngeom.training import Statement

STATEMENTS: dict[str, tuple[Statement, ...]] = {
    "rows_of_digits": tuple(
        Statement(
            f"{kind} with layer norm, batch {size}: ≤ {bound:g} of the steps to 5 % test error",
            "recurrent networks benefit the most, for small mini-batches too",
            f"{kind} + LN, batch {size}",
            f"{kind}, batch {size}",
            "test error",
            target=0.05,
            bound=bound,
        )
        for kind, size, bound in (("GRU", 64, 0.6), ("LSTM", 64, 0.6), ("GRU", 4, 0.6), ("LSTM", 4, 0.6))
    ),
    "mnist": (
        *(
            Statement(
                f"layer norm, batch {size}: fewer steps to train NLL 0.1 than {than}",
                paper,
                f"LN on hidden layers, batch {size}",
                f"{than}, batch {size}",
                "train NLL",
                target=0.1,
            )
            for size in (128, 4)
            for than, paper in (
                ("BN on all layers", "faster convergence than batch normalization applied to all layers"),
                ("BN on hidden layers", "not compared"),
                ("none", "not compared"),
            )
        ),
        *(
            Statement(
                f"layer norm, batch {size}: lower best test error than BN on all layers",
                "lower test error in Figure 6",
                f"LN on hidden layers, batch {size}",
                f"BN on all layers, batch {size}",
                "test error",
                measure="best",
            )
            for size in (128, 4)
        ),
    ),
    "order_embeddings": tuple(
        Statement(
            f"layer norm, {adam}: ≤ {bound:g} of the steps to the baseline's best R@1+5+10",
            "best validation model in 60 % of the time",
            f"OE + LN, {adam}",
            f"OE, {adam}",
            "R@1+5+10",
            lower_is_better=False,
            bound=bound,
        )
        for adam, bound in (("reference Adam", 0.6), ("Adam", 0.6), ("Adam", 1.0))
    ),
    "attentive_reader": (
        *(
            Statement(
                f"layer norm: fewer steps to the best error of {than}",
                "trains faster than the baseline and both variants of batch norm",
                "LN-LSTM",
                than,
                "validation error",
            )
            for than in ("LSTM", "BN-LSTM", "BN-everywhere")
        ),
        *(
            Statement(
                f"layer norm: lower best error than {than}",
                "converges to a better validation result",
                "LN-LSTM",
                than,
                "validation error",
                measure="best",
            )
            for than in ("LSTM", "BN-LSTM", "BN-everywhere")
        ),
        Statement(
            "gain 1.0: lower best NLL than gain 0.1",
            "1.0 performed significantly better than 0.1",
            "LN-LSTM",
            "LN-LSTM, gain 0.1",
            "validation NLL",
            measure="best",
        ),
    ),
    "convnet": (
        Statement(
            "layer norm: fewer steps to 5 % test error than none",
            "a speedup over the baseline",
            "layer norm",
            "none",
            "test error",
            target=0.05,
        ),
        Statement(
            "batch norm: fewer steps to 5 % test error than layer norm",
            "batch normalization outperforms the other methods",
            "batch norm",
            "layer norm",
            "test error",
            target=0.05,
        ),
        Statement(
            "batch norm: fewer steps to 5 % test error than none",
            "batch normalization outperforms the other methods",
            "batch norm",
            "none",
            "test error",
            target=0.05,
        ),
    ),
    "handwriting": (
        Statement(
            "layer norm: ≤ 0.65 of the steps to the baseline's best NLL",
            "comparable log likelihood, much faster",
            "LN",
            "baseline",
            "test NLL",
            bound=0.65,
        ),
        Statement(
            "layer norm: a better NLL at the end of training",
            "comparable log likelihood",
            "LN",
            "baseline",
            "test NLL",
            measure="best",
        ),
    ),
    "draw": (
        Statement(
            "layer norm: ≤ 0.9 of the steps to the baseline's best bound",
            "converges almost twice as fast",
            "LN",
            "baseline",
            "test bound",
            bound=0.9,
        ),
        Statement(
            "layer norm: about half the steps (≤ 0.6) to the baseline's best bound",
            "converges almost twice as fast",
            "LN",
            "baseline",
            "test bound",
            bound=0.6,
        ),
        Statement(
            "layer norm: a better bound at the end of training",
            "82.09 against 82.36 nats",
            "LN",
            "baseline",
            "test bound",
            measure="best",
        ),
    ),
    "skip_thoughts": (
        Statement(
            "layer norm: ≤ 0.6 of the steps to the baseline's best NLL",
            "a speedup over the baseline",
            "LN",
            "baseline",
            "test NLL",
            bound=0.6,
        ),
        Statement(
            "layer norm: a better NLL at the end of training",
            "better final results",
            "LN",
            "baseline",
            "test NLL",
            measure="best",
        ),
        Statement(
            "layer norm: a better r of relatedness",
            "SICK r .854 against .842",
            "LN",
            "baseline",
            "relatedness r",
            measure="best",
            lower_is_better=False,
        ),
        Statement(
            "layer norm: a better classifier of sentences",
            "MR 79.5 against 77.3, CR 82.6 against 81.8, SUBJ 93.4 against 92.6, MPQA 89.0 against 87.9",
            "LN",
            "baseline",
            "topic accuracy",
            measure="best",
            lower_is_better=False,
        ),
    ),
}
