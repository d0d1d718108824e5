r"""Hypothesis strategies for normalized models: every value they draw is valid, and shrinks to small integers.

Use them in your own tests of a layer's properties. Every statistic is defined on the drawn weights and inputs (σ > 0,
well above rounding), so that no example has to be filtered out.

Example:
    >>> import jax.numpy as jnp
    >>> import lngeom as lg
    >>> from hypothesis import given, settings, strategies as st
    >>> layer = lg.normalizers.LayerNorm()
    >>> @settings(max_examples=10, database=None)
    ... @given(lg.strategies.points(layer), lg.strategies.scales())
    ... def test_layer_norm_is_invariant_to_scale(point, scale):
    ...     weights, inputs = point
    ...     assert jnp.allclose(layer(scale * weights, inputs), layer(weights, inputs), rtol=1e-4, atol=1e-5)
    >>> test_layer_norm_is_invariant_to_scale()

Numbers are dyadic fractions of modest size, exact in float32 too. Sizes are integers, or strategies of integers.
"""

from lngeom.checks.strategies.models import families, normalizers, points, problems, transformations
from lngeom.checks.strategies.numbers import breaking_inputs, data_sets, layer_inputs, matrices, scales

__all__ = [
    "breaking_inputs",
    "data_sets",
    "families",
    "layer_inputs",
    "matrices",
    "normalizers",
    "points",
    "problems",
    "scales",
    "transformations",
]
