"""What sentence vectors are good for: relatedness (as on SICK) and classification (as on MR, CR, SUBJ, MPQA)."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Judge(NamedTuple):
    """How sentence vectors are judged; the defaults are quick.

    Attributes:
        unit: whether vectors are scaled to norm 1.
        penalties: inverse strengths C of the penalty of classification, of which each part chooses one.
        inner: parts of the cross-validation that chooses it, if there is a choice.
        of_pairs: likewise for relatedness, chosen by Pearson's r on the last tenth of the training pairs.
    """

    unit: bool = False
    penalties: tuple[float, ...] = (0.1, 1.0, 10.0)
    inner: int = 3
    of_pairs: tuple[float, ...] = (1.0,)


POWERS = tuple(2.0**k for k in range(9))
AUTHORS = Judge(unit=True, penalties=POWERS, inner=10, of_pairs=POWERS)
"""Unit vectors and the penalties of the code of skip-thoughts."""


def pair_features(first: Float[np.ndarray, "N H"], second: Float[np.ndarray, "N H"]) -> Float[np.ndarray, "N 2*H"]:
    """|u − v| and u ⊙ v, as Tai et al. (arXiv 1503.00075) have it."""
    return np.concatenate([np.abs(first - second), first * second], 1)


def score_distribution(scores: Float[np.ndarray, " N"], levels: int = 5) -> Float[np.ndarray, "N L"]:
    """Scores from 1 to L as distributions over the integers next to them, of that mean."""
    below = np.floor(scores).astype(int)
    weights = np.zeros((len(scores), levels))
    weights[np.arange(len(scores)), below - 1] = 1 - (scores - below)
    above = np.minimum(below, levels - 1)
    weights[np.arange(len(scores)), above] += scores - below
    return weights


def relatedness(
    train: tuple[Float[np.ndarray, "N F"], Float[np.ndarray, " N"]],
    test: tuple[Float[np.ndarray, "M F"], Float[np.ndarray, " M"]],
    penalties: Sequence[float] = (1.0,),
) -> dict[str, float]:
    """Pearson's r, Spearman's ρ and the mean squared error of scores predicted from pair features.

    A logistic regression is fitted to the distributions of the scores; its mean is the prediction. Of a constant
    prediction both correlations count as 0. Of several penalties the one is taken whose r is greatest on the last tenth
    of the training pairs, when the regression is fitted to the others. On SICK that tenth is the trial split.

    Args:
        train: features and scores, from 1 to 5.
        test: likewise.
        penalties: inverse strengths C of the penalty.

    Returns:
        The three numbers.
    """
    from scipy import stats
    from sklearn.linear_model import LogisticRegression

    def measured(known: tuple, wanted: tuple, penalty: float) -> dict[str, float]:
        weights = score_distribution(known[1])
        rows, labels = np.nonzero(weights)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=penalty, max_iter=500)
            model.fit(known[0][rows], labels, sample_weight=weights[rows, labels])
        predicted = model.predict_proba(wanted[0]) @ (model.classes_ + 1)
        varied = np.ptp(predicted) > 0 and np.ptp(wanted[1]) > 0  # there is no correlation with a constant
        return {
            "r": float(np.corrcoef(predicted, wanted[1])[0, 1]) if varied else 0.0,
            "ρ": float(stats.spearmanr(predicted, wanted[1]).statistic) if varied else 0.0,
            "MSE": float(np.mean((predicted - wanted[1]) ** 2)),
        }

    if len(penalties) == 1:
        return measured(train, test, penalties[0])
    cut = max(1, len(train[1]) * 9 // 10)
    fitted, trial = ((train[0][part], train[1][part]) for part in (slice(cut), slice(cut, None)))
    return measured(fitted, test, max(penalties, key=lambda c: measured(fitted, trial, c)["r"]))


def classification(vectors: Any, labels: Int[np.ndarray, " N"], folds: int = 10, judge: Judge | None = None) -> float:
    """Accuracy of a logistic regression in nested cross-validation, with the penalty chosen inside each fold.

    Args:
        vectors: of the sentences, [N H], dense or sparse.
        labels: classes.
        folds: of the outer cross-validation.
        judge: which penalties, and how one is chosen.

    Returns:
        The accuracy, in percent.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

    judge = judge or Judge()
    if len(judge.penalties) == 1:
        model = LogisticRegression(C=judge.penalties[0], max_iter=300)
    else:
        model = GridSearchCV(LogisticRegression(max_iter=300), {"C": list(judge.penalties)}, cv=judge.inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outer = StratifiedKFold(folds, shuffle=True, random_state=0)
        return 100 * float(np.mean(cross_val_score(model, vectors, labels, cv=outer)))
