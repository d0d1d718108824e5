"""What is shown in short is what is checked in full."""

import pytest
import sympy as sp
from lngeom.claims.ba2016.nullspace import layer_norm_jacobian
from lngeom.symbolic.jacobian import LAYER, RADIAL, along
from lngeom.symbolic.layers import BATCH_NORM, GROUP_NORM, LAYER_NORM, Layer
from lngeom.symbolic.notation import shown
from lngeom.symbolic.sums import H, field, i, m, mean, n, total, vanishes
from sympy import Indexed


@pytest.mark.parametrize(
    ("expression", "short"),
    [
        (LAYER.a(n, i), "a[n, i]"),
        (LAYER_NORM.numerator(LAYER), "u[n, i]"),
        (LAYER_NORM.square(LAYER), "sigma[n]**2"),
        (LAYER_NORM(LAYER), "u[n, i]/sigma[n]"),
        (BATCH_NORM(LAYER), "u[n, i]/sigma[i]"),
        (GROUP_NORM(LAYER), "u[n, p, q]/sigma[n, p]"),
    ],
)
def test_definitions_are_shown_in_short(expression, short):
    assert str(shown(expression)) == short


@pytest.mark.parametrize(
    "expression",
    [
        LAYER.a(n, i) - mean(lambda j: LAYER.a(m, j), H),
        LAYER.a(n, i) - total(lambda j: LAYER.a(n, j), H),
        LAYER.a(n, i) + mean(lambda j: LAYER.a(n, j), H),
    ],
)
def test_what_is_not_centred_is_not_shown_as_centred(expression):
    assert "u[" not in str(shown(expression))


def _written_out(expression):
    """The short form with a, u and σ of layer norm written out again."""
    parts = {"a": LAYER.a, "u": lambda n, i: LAYER_NORM.numerator(LAYER, n, i)}

    def written(entry: Indexed):
        if entry.base.name == "sigma":
            return sp.sqrt(LAYER_NORM.square(LAYER, entry.indices[0]))
        return parts[entry.base.name](*entry.indices)

    return expression.replace(lambda e: isinstance(e, Indexed) and e.base.name in {"a", "u", "sigma"}, written)


@pytest.mark.parametrize("direction", [RADIAL, field("V")])
def test_short_form_written_out_is_the_original(direction):
    for original in (along(LAYER_NORM, direction), LAYER_NORM(LAYER) ** 2, LAYER_NORM(Layer())):
        assert vanishes(_written_out(shown(original)) - original)


def test_steps_are_short_enough_to_read():
    assert all(len(step.plain) < 450 for step in layer_norm_jacobian())
