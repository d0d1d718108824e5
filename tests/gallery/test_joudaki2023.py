"""Planted faults in the claims about isometry."""

import numpy as np
import pytest
from lngeom.papers.gallery import joudaki2023

from tests.gallery.faults import assert_turns


def of_squares(lengths):
    """The bound with the squares of the norms."""
    return 1 + np.var(lengths**2, 1) / np.mean(lengths**2, 1) ** 2


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("normalize", {"gain_bound": of_squares}),
        ("centring", {"not_centred": lambda rows: rows - rows.mean(2, keepdims=True)}),
        ("contraction", {"rate": lambda strength: strength}),
        ("depth", {"layer_norm": joudaki2023.rms_norm}),
        ("rms", {"activation_with_mean": np.tanh}),
        ("linear", {"linear": joudaki2023.relu}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"joudaki2023.{id}", **patches)


def test_the_arc_cosine_kernel_is_that_of_quadrature():
    rho = np.array([-0.9, 0.1, 0.5])
    by_quadrature = joudaki2023.kernel(lambda x: joudaki2023.relu(x), rho)
    assert joudaki2023.kernel(joudaki2023.relu, rho) == pytest.approx(by_quadrature, abs=1e-2)
