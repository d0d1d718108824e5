"""What a Fisher matrix is like, in numbers: sizes, rank and null space, leading eigenvalues."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from lngeom._core.numerics import effective_rank
from lngeom._core.types import GLMParameters
from lngeom.information import _spectrum
from lngeom.information._derivative import GLMFunction
from lngeom.information._nullspace import Description, measure
from lngeom.information._operator import FisherOperator
from lngeom.information._planner import Plan
from lngeom.information.predicted import PredictedNullspace, predicted_nullspace


@dataclass(frozen=True)
class Summary:
    """A Fisher matrix in numbers.

    Attributes:
        operator: its sizes, method, family and dtype in words.
        plan: predicted bytes.
        leaves: path and shape of each differentiated leaf.
        excluded: arrays left out.
        trace: sum of the eigenvalues.
        eigenvalues: the largest, descending.
        rank: numerical rank; None (as all below) where only products were used.
        gap: smallest kept ÷ largest dropped singular value of the factor.
        ranks: smallest and largest rank that the singular values allow; equal where the rank is certain.
        nullity: P less the rank.
        description: names of the null directions.
        predicted: what theory says about the null space, of an exact matrix of a normalized GLM; else None.
        effective_rank: exponential of the entropy of the eigenvalues.
        pseudo_logdet: sum of the logarithms of the nonzero eigenvalues.
    """

    operator: str
    plan: Plan
    leaves: tuple[tuple[str, tuple[int, ...]], ...]
    excluded: tuple[str, ...]
    trace: float
    eigenvalues: Float[np.ndarray, " k"]
    rank: int | None = None
    gap: float | None = None
    ranks: tuple[int, int] | None = None
    nullity: int | None = None
    description: Description | None = None
    predicted: PredictedNullspace | None = None
    effective_rank: float | None = None
    pseudo_logdet: float | None = None

    @property
    def as_predicted(self) -> bool | None:
        """Whether the nullity is the predicted one.

        None without a prediction that is certain. Of a lower bound: False where the nullity is surely less, else None.
        """
        if self.predicted is None or self.nullity is None or self.predicted.doubts:
            return None
        if self.predicted.exact:
            return self.nullity == self.predicted.dimension
        doubtful = 0 if self.ranks is None or self.rank is None else self.rank - self.ranks[0]
        return False if self.nullity + doubtful < self.predicted.dimension else None


def summarize(
    operator: FisherOperator,
    top: int = 8,
    *,
    products_only: bool = False,
    watch: Callable[[str], None] = lambda stage: None,
) -> Summary:
    """Rank, null space and spectrum of a Fisher matrix (eager).

    Args:
        operator: a Fisher operator, with concrete arrays.
        top: how many of the largest eigenvalues.
        products_only: no decomposition (unless all P eigenvalues are asked for): eigenvalues by Lanczos iterations,
            and no rank; for large P.
        watch: told the name of each stage as it begins.

    Returns:
        The summary.

    Raises:
        MemoryError: if a decomposition would not fit.
        ConvergenceError: if the iterations do not converge.
        ValueError: if `top` is less than 1.

    Example:
        >>> import jax, lngeom as lg
        >>> from lngeom.information.summary import summarize
        >>> model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
        >>> params = model.init(jax.random.key(0), inputs=3, outputs=5)
        >>> F = lg.fisher(model, params, jax.random.normal(jax.random.key(1), (100, 3)))
        >>> found = summarize(F, top=2)
        >>> found.rank, found.nullity, found.as_predicted, len(found.eigenvalues)
        (21, 4, True, 2)
    """
    if top < 1:
        raise ValueError(f"top must be at least 1; got {top}")
    params = operator.problem.params
    top = min(top, operator.in_size())
    common: dict[str, Any] = {
        "operator": repr(operator),
        "plan": operator.plan,
        "leaves": tuple(zip(operator.leaves, (leaf.shape for leaf in jax.tree.leaves(params)), strict=True)),
        "excluded": operator.excluded,
    }
    if products_only:
        watch("leading eigenvalues")
        whole = top == operator.in_size()
        values = np.asarray(operator.eigenvalues(top) if whole else _spectrum.leading_eigenvalues(operator, top))
        watch("trace")
        return Summary(**common, trace=float(operator.trace()), eigenvalues=values)
    watch("decomposition of the factor")
    parts = operator._decomposed()
    s = np.asarray(parts.singular_values, np.float64)
    watch("names of null directions")
    null = measure(operator, parts)
    return Summary(
        **common,
        trace=float(np.sum(s**2)),
        eigenvalues=s[:top] ** 2,
        rank=parts.rank,
        gap=parts.decision.gap,
        ranks=(parts.decision.fewest, parts.decision.most),
        nullity=null.dimension,
        description=null.describe(),
        predicted=_predicted(operator),
        effective_rank=float(effective_rank(parts.singular_values)),
        pseudo_logdet=float(2 * np.sum(np.log(s[: parts.rank]))),
    )


def _predicted(operator: FisherOperator) -> PredictedNullspace | None:
    """Theory's null space, for the exact matrix of a whole normalized GLM on inputs [N D] without a mask."""
    problem = operator.problem
    model, params = problem.model, problem.params
    whole = isinstance(params, GLMParameters) and len(jax.tree.leaves(params)) == 3 and not operator.in_parts
    if not isinstance(model, GLMFunction) or not whole or operator.method != "exact" or problem.weights is not None:
        return None
    try:
        return predicted_nullspace(model.model, params, problem.inputs)
    except ValueError:  # a normalizer without theory
        return None
