"""The null space that theory predicts is the one that singular values find."""

import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._numerics import decide_rank

from tests.cases import numpy_factor, random_configuration


def measured_nullity(configuration) -> tuple[int, np.ndarray]:
    factor, cancelled = numpy_factor(configuration.model, configuration.params, configuration.inputs)
    values = np.linalg.svd(factor, compute_uv=False)
    return factor.shape[1] - decide_rank(values, *factor.shape, scale=cancelled).rank, factor


def sweep(seed: int, count: int) -> tuple[int, list[str]]:
    """Counts configurations whose conditions hold; lists disagreements."""
    rng = np.random.default_rng(seed)
    exact, wrong = 0, []
    while count:
        case = random_configuration(rng)
        try:
            predicted = lg.predicted_nullspace(case.model, case.params, jnp.asarray(case.inputs))
        except ValueError as error:
            if "zero variance" not in str(error):
                raise
            continue
        count -= 1
        nullity, factor = measured_nullity(case)
        moved = np.abs(factor @ predicted.basis).max(initial=0.0) / max(np.abs(factor).max(), 1e-300)
        exact += predicted.exact
        right = predicted.dimension == nullity if predicted.exact else predicted.dimension <= nullity
        if not right or moved > 1e-8:
            failing = [c.name for c in predicted.conditions if not c.holds]
            wrong.append(
                f"{case.name}: predicted {predicted.dimension}, measured {nullity}, moved {moved:.1e} {failing}"
            )
    return exact, wrong


@pytest.mark.parametrize("seed", range(4))
def test_predicted_dimension_is_measured_in_every_regime(seed):
    exact, wrong = sweep(seed, 150)
    assert not wrong, "\n".join(wrong)
    assert exact > 75
