"""Planted faults in the claims about how batch norm helps optimization."""

import jax.numpy as jnp
import pytest
from lngeom.papers.gallery import santurkar2018
from lngeom.papers.gallery.santurkar2018 import GAMMA, normalized

from tests.gallery.faults import assert_turns

LENGTH, WORST = santurkar2018.row_length, santurkar2018.corrected


def without_last(slope, y):
    """Fact C.1 without the part along ŷ."""
    return GAMMA / jnp.std(y) * (slope - jnp.mean(slope))


def without_radius(found):
    """The correction of Theorem 4.4 without λ²."""
    kept = found.plain - (found.size * found.average**2 + found.inner**2 / found.size)
    return found.factor * kept


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("fact_c1", {"through": without_last}),
        ("theorem_4_1", {"scale_of": jnp.linalg.norm}),
        ("theorem_4_2", {"SIGN": 1.0}),
        ("theorem_4_4", {"corrected": without_radius}),
        ("lemma_4_5", {"improvement": lambda W0, W: (W @ W + W @ W0) ** 2 / (W @ W)}),
        ("layer_norm", {"row_length": lambda slope, a, n, centred: LENGTH(slope, a, n, centred=True)}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"santurkar2018.{id}", **patches)


def test_the_normalized_batch_has_mean_square_one():
    assert float(jnp.mean(normalized(jnp.arange(5.0)) ** 2)) == pytest.approx(1)
