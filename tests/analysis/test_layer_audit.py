"""The audit's numbers: ours keep Table 1 in float32, and what others lose is what was measured before."""

import numpy as np
import pytest
from analysis.measurements.audited_layers import LAYERS, OFFSETS, SCALES, exact_cells, gap, measure, reference
from analysis.measurements.layer_audit import Audit, draw, epsilon_law, tables
from rich.console import Console


@pytest.fixture(scope="module")
def rows():
    names = ("flax linen", "equinox", "lngeom, exact")
    return {
        name: measure(
            "layer", name, LAYERS["layer", name], "float32", width=96, samples=16, causes=name == "flax linen"
        )
        for name in names
    }


def test_every_yes_of_table_1_holds_for_the_exact_layers_in_float32():
    cells = exact_cells()
    assert len(cells) == 10
    for cell in cells:
        assert cell.worst <= cell.bound == 1e-6, cell
    shifts = [cell.against_rounding for cell in cells if cell.against_rounding is not None]
    assert len(shifts) == 2
    assert 0 < max(shifts) <= 1


def test_one_pass_variance_loses_recentering_and_the_exact_layer_does_not(rows):
    at = OFFSETS.index(1e3)
    assert rows["flax linen"].errors[at] > 1e-2
    assert 1e-6 < rows["equinox"].errors[at] < 1e-4
    assert max(rows["lngeom, exact"].errors) < 3e-7
    assert "variance in one pass" in rows["flax linen"].cause
    assert rows["flax linen"].cause.startswith("ε")


@pytest.mark.parametrize("name", ["flax linen", "equinox"])
def test_scaling_fails_as_eps_must_make_it(rows, name):
    row = rows[name]
    for scale in (1e-4, 1e-3, 1e-2, 1e-1):
        predicted = float(epsilon_law(row.eps, np.array(scale)))
        assert row.deviations[SCALES.index(scale)] == pytest.approx(predicted, rel=0.5)
    assert row.deviations[SCALES.index(1e-18)] > 0.99
    assert max(rows["lngeom, exact"].deviations) < 1e-6
    assert rows["lngeom, exact"].scales == (1e-18, 1e18)


def test_the_reference_and_the_gap_see_what_is_wrong():
    a = np.random.default_rng(0).normal(size=(5, 8))
    assert gap(reference("layer", a, 0.0), reference("rms", a, 0.0)) > 0.01
    assert gap(reference("batch", a, 0.0), reference("group", a, 0.0)) > 0.01
    assert gap(np.array([1.0, np.nan]), np.ones(2)) == float("inf")


def test_the_figure_and_the_tables_are_made(rows, tmp_path):
    found = Audit(tuple(rows.values()), exact_cells(), ("torch",), 96, 16)
    console = Console(width=400, record=True)
    for table in tables(found, {"equinox": 2.5}):
        console.print(table)
    assert "variance in one pass" in console.export_text()
    paths = draw(found, tmp_path / "audit", {})
    assert {p.suffix for p in paths} == {".svg", ".png", ".json"}
