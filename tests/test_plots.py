"""Figures carry their data and leave nothing half-written."""

import json
import math

import jax
import lngeom as lg
import matplotlib
import numpy as np
import pytest
from lngeom import GLMParameters, NormalizedGLM, families, methods as normalizers, plots
from lngeom.information import reference
from lngeom.plots import geometry, studies
from lngeom.plots.axes import log_scale, number, span
from lngeom.plots.style import options


def test_a_saved_figure_carries_its_data_and_leaves_global_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    with plots.figure(1, 2) as (fig, axes):
        axes[0, 0].plot([1, 2], [3, 4])
        paths = plots.save(fig, tmp_path / "new" / "f", {"a": np.array([1.0, np.nan])}, caption="A line.")
    assert dict(matplotlib.rcParams) == before
    assert (
        sorted(p.name for p in (tmp_path / "new").iterdir())
        == ["f.json", "f.png", "f.svg"]
        == sorted(p.name for p in paths)
    )
    document = json.loads((tmp_path / "new" / "f.json").read_text())
    assert document["data"] == {"a": [1.0, None]}
    assert document["caption"] == "A line."


def test_a_saved_figure_is_the_same_to_the_byte(tmp_path):
    for name in ("a", "b"):
        with plots.figure() as (fig, axes):
            axes[0, 0].plot([1, 2], [3, 4], label="x")
            axes[0, 0].legend()
            plots.save(fig, tmp_path / name / "f", {}, caption="A line.")
    for suffix in ("svg", "png", "json"):
        assert (tmp_path / "a" / f"f.{suffix}").read_bytes() == (tmp_path / "b" / f"f.{suffix}").read_bytes()


def test_a_failed_save_leaves_nothing_half_written(tmp_path):
    with plots.figure() as (fig, _), pytest.raises(TypeError):
        plots.save(fig, tmp_path / "f", {"a": object()}, caption="A line.")
    assert not list(tmp_path.iterdir())


def test_an_unknown_width_is_refused():
    with pytest.raises(ValueError, match="no width 'wide'"), plots.figure(width="wide"):
        pass


@pytest.mark.thorough
def test_block_scaling_has_slopes_of_minus_two_minus_one_and_zero(tmp_path):
    study = studies.block_scaling((40, 3, 4), factors=(0.5, 2.0))
    for title in ("batch norm, one unit", "layer norm, all of W"):
        np.testing.assert_allclose(list(study.exponents[title].values()), [-2, -1, 0], atol=1e-9)
    assert abs(study.exponents["layer norm, one unit"]["w₁ with w₁"] + 2) > 0.1
    assert geometry.block_scaling(study, tmp_path / "f")[0].exists()


def random_case(normalizer, family, shape, seed):
    """A model, parameters and inputs as the studies draw them."""
    keys = jax.random.split(jax.random.key(seed), 4)
    model = NormalizedGLM(normalizer, family)
    W = model.init(keys[0], inputs=shape[1], outputs=shape[2]).weights
    gain = jax.random.uniform(keys[2], (shape[2],), W.dtype, 0.5, 1.5)
    bias = 0.3 * jax.random.normal(keys[3], (shape[2],), W.dtype)
    return model, GLMParameters(W, bias, gain), jax.random.normal(keys[1], shape[:2], W.dtype)


def test_block_scaling_compares_the_blocks_that_it_names():
    study = studies.block_scaling((40, 3, 4), factors=(0.5, 2.0))
    model, params, inputs = random_case(normalizers.LayerNorm(), families.Categorical(), (40, 3, 4), 1)
    moved = GLMParameters(params.weights.at[0].multiply(2), params.bias, params.gain)
    first, later = (np.asarray(lg.fisher(model, p, inputs).as_matrix()) for p in (params, moved))
    one, two = slice(0, 3), slice(3, 6)
    for name, block in {"w₁ with w₁": (one, one), "w₁ with w₂": (one, two), "w₂ with w₂": (two, two)}.items():
        ratio = np.linalg.norm(later[block]) / np.linalg.norm(first[block])
        np.testing.assert_allclose(study.cases["layer norm, one unit"][name][1], ratio, rtol=1e-9)


def test_the_error_of_the_printed_matrix_is_of_the_spectral_norm():
    study = studies.printed_against_exact((40, 3, 4), widths=(4,), sweep=(40, 3), seeds=1)
    case = random_case(normalizers.LayerNorm(), families.Bernoulli(), (40, 3, 4), 100)
    printed, exact = (np.asarray(route(*case)) for route in (reference.as_printed, studies.structured))
    sizes = [np.max(np.abs(np.linalg.eigvalsh(m))) for m in (printed - exact, exact)]
    np.testing.assert_allclose(study.spectral_error, sizes[0] / sizes[1], rtol=1e-9)


def test_the_printed_matrix_has_no_null_space_and_the_exact_one_has(tmp_path):
    study = studies.printed_against_exact((40, 3, 4), widths=(4,), sweep=(40, 3), seeds=1)
    assert np.sum(study.exact_spectrum < 1e-20) == study.nullity == 4
    assert study.printed_spectrum[-1] > 1e-6
    assert study.block_error[0, 0] > 0.05
    assert json.loads(geometry.printed_against_exact(study, tmp_path / "f")[2].read_text())["data"]["nullity"] == 4


@pytest.mark.thorough
def test_gains_do_not_feel_the_scale_of_the_inputs_and_magnitudes_do(tmp_path):
    study = studies.line_elements((40, 3, 4), scales=(1.0, 2.0))
    gaussian, logistic, softmax = study.values.values()
    for values in (gaussian, logistic, softmax):
        for name in ("batch norm, exact", "layer norm, Eq. 33"):
            np.testing.assert_allclose(values[name][1], values[name][0], rtol=1e-12)
    np.testing.assert_allclose(gaussian["standard, exact"][1], 4 * gaussian["standard, exact"][0], rtol=1e-12)
    np.testing.assert_allclose(gaussian["batch norm, Eq. 32 printed"], gaussian["batch norm, exact"], rtol=1e-12)
    assert logistic["batch norm, Eq. 32 printed"][0] > 1.1 * logistic["batch norm, exact"][0]
    assert np.all(logistic["standard, Eq. 35 printed"] == 0)
    assert np.all(softmax["standard, Eq. 35 printed"] != 0)
    assert geometry.line_elements(study, tmp_path / "f")[0].exists()


@pytest.mark.thorough
def test_spectra_fall_to_zero_where_the_null_space_is_predicted(tmp_path):
    study = studies.spectra((40, 3, 4))
    for name, values in study.eigenvalues.items():
        assert np.sum(values < 1e-20 * values[0]) == study.nullity[name], name
    assert geometry.spectra(study, tmp_path / "f")[0].exists()


def test_a_table_is_drawn_from_a_report_and_marks_nothing_it_does_not_hold(tmp_path):
    cell = {"claim": "a.b.c", "says": "invariant", "verdict": "holds", "strength": "proof", "as_recorded": True}
    row = [cell | {"deviation": 1e-16}, cell | {"says": "no", "deviation": 0.5}, None]
    columns = [{"name": n, "title": f"Column {n}", "formula": ""} for n in "xyz"]
    table = {"name": "t", "title": "T", "columns": columns, "rows": [{"name": "r", "title": "Row", "cells": row}]}
    svg, _, data = plots.invariance_table(table, tmp_path / "t")
    assert json.loads(data.read_text())["data"]["table"]["rows"][0]["cells"][2] is None
    assert svg.read_text().startswith("<?xml")


def test_a_logarithmic_axis_has_a_band_for_zeros_only_where_there_are_zeros():
    with plots.figure(1, 2) as (_, axes):
        left, right = axes[0]
        place = log_scale(left, [0.0, 1e-3, 1.0], rows=2)
        (band,) = left.patches
        bottom, top = band.get_y(), band.get_y() + band.get_height()
        zeros = place([0.0]), place([0.0], 1)
        assert bottom < zeros[1][0] < zeros[0][0] < top < 1e-3
        np.testing.assert_array_equal(place([1e-3, 1.0]), [1e-3, 1.0])
        plain = log_scale(right, [1e-3, np.nan, 1.0])
        assert not right.patches
        np.testing.assert_array_equal(plain([0.5]), [0.5])
    with pytest.raises(ValueError, match="a positive one"), plots.figure() as (_, axes):
        log_scale(axes, [0.0])
    with pytest.raises(ValueError, match="not negative"), plots.figure() as (_, axes):
        log_scale(axes, [-1.0, 1.0])


def test_numbers_and_ranges_are_read_as_written():
    assert [number(v) for v in (0, 0.85, -3.0, 1e5, 4.2e-14)] == ["0", "0.85", "−3", "10⁵", "4·10⁻¹⁴"]
    assert [number(4.2e-14, math.ceil), number(4.8e-14, math.floor), number(9.5e-4, math.ceil)] == [
        "5·10⁻¹⁴",
        "4·10⁻¹⁴",
        "10⁻³",
    ]
    assert [number(v, math.ceil) for v in (0.851, 3.0, 0.3, 1e-6)] == ["0.86", "3", "0.3", "10⁻⁶"]
    assert [span(v) for v in ([1, 1.0], [0.5, 3], [-1, 2])] == ["1", "0.5–3", "−1 to 2"]


@pytest.mark.parametrize("captions", [True, False])
def test_options_decide_whether_captions_are_drawn_and_end_with_their_block(tmp_path, captions):
    with options(captions=captions), plots.figure() as (fig, _):
        plots.save(fig, tmp_path / "f", {}, caption="A caption.", title="A finding")
    assert [text.get_text() for text in fig.texts] == ["A finding", *["A caption."] * captions]
    document = json.loads((tmp_path / "f.json").read_text())
    assert (document["title"], document["caption"]) == ("A finding", "A caption.")
    with plots.figure() as (fig, _):
        plots.save(fig, tmp_path / "g", {}, caption="A caption.")
    assert len(fig.texts) == 1
    with pytest.raises(ValueError, match="caption"), options(caption=False):
        pass
