"""What sentence vectors are good for: relatedness (as on SICK) and classification (as on MR, CR, SUBJ, MPQA)."""

import warnings

import numpy as np
from jaxtyping import Float, Int


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
) -> dict[str, float]:
    """Pearson's r, Spearman's ρ and the mean squared error of scores predicted from pair features.

    A logistic regression is fitted to the distributions of the scores; its mean is the prediction.

    Args:
        train: features and scores, from 1 to 5.
        test: likewise.

    Returns:
        The three numbers.
    """
    from scipy import stats
    from sklearn.linear_model import LogisticRegression

    weights = score_distribution(train[1])
    rows, labels = np.nonzero(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(max_iter=500).fit(train[0][rows], labels, sample_weight=weights[rows, labels])
    predicted = model.predict_proba(test[0]) @ (model.classes_ + 1)
    return {
        "r": float(np.corrcoef(predicted, test[1])[0, 1]),
        "ρ": float(stats.spearmanr(predicted, test[1]).statistic),
        "MSE": float(np.mean((predicted - test[1]) ** 2)),
    }


def classification(vectors: Float[np.ndarray, "N H"], labels: Int[np.ndarray, " N"], folds: int = 10) -> float:
    """Accuracy of a logistic regression in nested cross-validation, with the penalty chosen inside each fold.

    Args:
        vectors: of the sentences.
        labels: classes.
        folds: of the outer cross-validation.

    Returns:
        The accuracy, in percent.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(LogisticRegression(max_iter=300), {"C": [0.1, 1.0, 10.0]}, cv=3)
        outer = StratifiedKFold(folds, shuffle=True, random_state=0)
        return 100 * float(np.mean(cross_val_score(search, vectors, labels, cv=outer)))
