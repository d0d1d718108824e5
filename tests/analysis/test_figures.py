"""Figures: one source of colours, titles that the data decide, zeros in a band, captions that can be left out."""

import ast
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib.colors
import numpy as np
import pytest
from analysis.__main__ import main as analysis_main
from analysis.benchmarks import bench_fisher, fisher_growth
from analysis.experiments import drawing
from analysis.figures import __main__ as command, redraw as figures
from analysis.measurements import layer_audit, neuron_blocks, recurrent_stability
from analysis.measurements.learning_rate import __main__ as learning_rate, figures as lr
from analysis.site.documents import LINK, resolved
from lngeom import plots
from lngeom.claims.data import load
from lngeom.cli import running
from lngeom.papers.training import equilibria
from lngeom.plots import geometry, invariance, studies, style
from lngeom.plots.axes import ZERO
from lngeom.plots.style import COLOUR_OF, method_of
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image

ROOT = Path(__file__).parents[2]
STORED = ROOT / "figures"
NAMES = sorted({*figures.DRAWINGS, *figures.EXPERIMENTS})
OPEN = {"COLOURS"}
"""Colours of series that are no method, for `lngeom.plots` alone."""

ARGUMENTS = {"color", "c", "colors", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor", "ecolor"}
FORMAT = re.compile(r"[-.:,ov^<>sp*hH+xXDd|_\d]*[bgrcmykw][-.:,ov^<>sp*hH+xXDd|_\d]*")
AREAS = {"fill_between", "axvspan", "axhspan", "axvline", "axhline"}
DRAWING = {"plot", "loglog", "semilogx", "semilogy", "errorbar", "bar", "scatter"}


def stray(source):
    """Colours that a module names itself."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"#[0-9a-fA-F]{3,8}", node.value):
                found.append(node.value)
        elif (isinstance(node, ast.Attribute) and node.attr in OPEN) or (
            isinstance(node, ast.Name) and node.id in OPEN
        ):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found += [_text(v) for k, v in pairs if _text(k) in ARGUMENTS and _is_colour(v)]
        elif isinstance(node, ast.Call):
            found += [_text(k.value) for k in node.keywords if k.arg in ARGUMENTS and _is_colour(k.value)]
            if isinstance(node.func, ast.Attribute) and node.func.attr in DRAWING:
                found += [text for a in node.args if (text := _text(a)) and FORMAT.fullmatch(text)]
    return found


def unstated(source):
    """Lines of a module at which something is drawn without a colour, so that its position decides."""
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    drawing_calls = [n for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr in {*DRAWING, *AREAS}]
    return [n.lineno for n in drawing_calls if not {k.arg for k in n.keywords} & {*ARGUMENTS, None}]


def _text(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_colour(node):
    return (text := _text(node)) is not None and text != "none" and matplotlib.colors.is_color_like(text)


def drawing_modules():
    """Modules that draw, except those of the package that give colours to series that are no method."""
    own = {ROOT / "lngeom/plots" / name for name in ("style.py", "runs.py", "spectrum.py", "__init__.py")}
    paths = [*(ROOT / "lngeom/plots").glob("*.py"), *(ROOT / "analysis").rglob("*.py")]
    return [p for p in paths if p not in own and "plots" in p.read_text(encoding="utf-8")]


@pytest.fixture(scope="module")
def drawn():
    """Name → figure and what was saved with it, of all figures, drawn from the stored data and not written."""
    found = {}

    def keep(fig, stem, data, **words):
        found[Path(stem).name] = fig, data, words
        return []

    with pytest.MonkeyPatch.context() as patched:
        for module in (geometry, invariance, plots):
            patched.setattr(module, "save", keep)
        for name in NAMES:
            figures.redraw(name, STORED)
    return found


def lines(fig):
    return [line for axis in fig.axes for line in axis.lines]


def foreign_colours(fig):
    """Colours of lines and areas that are neither a method's nor one of the greys."""
    known = {*COLOUR_OF.values(), style.INK, style.GUIDE, style.PALE, *style.ANSWERS.values()}
    known = {matplotlib.colors.to_hex(c) for c in known}
    axes = [axis for axis in fig.axes if axis.get_label() != "<colorbar>"]
    used = [line.get_color() for axis in axes for line in axis.lines]
    used += [colour for axis in axes for area in axis.collections for colour in area.get_facecolor()]
    return {matplotlib.colors.to_hex(colour) for colour in used} - known


def miscoloured(fig):
    """Labels of lines that name a method and have another colour."""
    found = []
    for line in lines(fig):
        label = str(line.get_label())
        named = method_of(label) if method_of(label) != "none" else label
        if named in COLOUR_OF and matplotlib.colors.to_hex(line.get_color()) != COLOUR_OF[named]:
            found.append(label)
    return found


def outside(fig):
    """Coordinates on logarithmic axes that cannot be drawn, or that are below the axis."""
    found = []
    for line in lines(fig):
        for along, values in (("x", line.get_xdata()), ("y", line.get_ydata())):
            axis = line.axes
            limit = getattr(axis, f"get_{along}lim")()[0]
            if getattr(axis, f"get_{along}scale")() == "log" and line.get_transform() == axis.transData:
                values = np.asarray(values, float)
                found += [v for v in values[np.isfinite(values)] if v <= 0 or (v < 0.999 * limit and axis.patches)]
    return found


def bands(fig):
    return [patch for axis in fig.axes for patch in axis.patches if patch.get_gid() == ZERO]


def test_colours_come_from_one_place():
    modules = drawing_modules()
    assert len(modules) > 15
    assert not {str(p): found for p in modules if (found := stray(p.read_text(encoding="utf-8")))}
    figures_of_methods = [p for p in modules if p.parent.name != "tutorials"]
    assert not {str(p): found for p in figures_of_methods if (found := unstated(p.read_text(encoding="utf-8")))}


@pytest.mark.parametrize(
    "source",
    [
        'axis.plot(x, y, color="#d55e00")',
        'axis.plot(x, y, "k:")',
        'axis.plot(x, y, color="0.6")',
        'axis.fill_between(x, y, z, color="red")',
        'axis.plot(x, y, c="C1")',
        "axis.plot(x, y, color=plots.COLOURS[1])",
        'look = {"color": "black"}',
    ],
)
def test_a_stray_colour_is_seen(source):
    assert stray(source)


def test_a_line_without_a_colour_is_seen():
    assert unstated('axis.plot(x, y, "-", label="SGD")') == [1]
    assert not unstated("axis.plot(x, y, **look)")


@pytest.mark.parametrize("source", ['axis.plot(x, y, "--", color=COLOUR_OF["SGD"])', 'axis.plot(x, y, "o")'])
def test_a_colour_of_the_project_and_a_marker_are_no_stray_colours(source):
    assert not stray(source)


def test_methods_of_a_group_have_different_colours():
    for group in (style.NORMALIZERS, style.OPTIMIZERS, style.LIBRARIES):
        assert len(set(group.values())) == len(group)
    assert not set(style.NORMALIZERS.values()) & set(style.OPTIMIZERS.values())
    assert set(style.DASHES) == set(style.MARKERS) == set(style.NORMALIZERS)


def test_every_optimizer_of_a_walk_has_a_line():
    assert set(equilibria.OPTIMIZERS) <= set(lr.OPTIMIZER)
    assert set(lr.OPTIMIZER.values()) == set(lr.DASH) == set(style.OPTIMIZERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_the_methods_colours_and_nothing_off_its_axes(drawn, name):
    fig, _, _ = drawn[name]
    assert fig.axes
    assert not foreign_colours(fig)
    assert not miscoloured(fig)
    assert not outside(fig)


def test_another_colour_and_a_zero_off_the_band_are_seen(drawn):
    fig, _, _ = drawn["line_elements"]
    line = next(line for line in lines(fig) if line.get_label() == "layer norm, Eq. 33")
    line.set_color(COLOUR_OF["batch norm"])
    assert miscoloured(fig) == ["layer norm, Eq. 33"]
    line.set_color("#123456")
    assert foreign_colours(fig) == {"#123456"}
    line.set_color(COLOUR_OF["layer norm"])
    kept = line.get_ydata()
    line.set_ydata([0.0, *kept[1:]])
    assert outside(fig)
    line.set_ydata(kept)
    assert not outside(fig)


@pytest.mark.parametrize("name", ["printed_against_exact", "line_elements", "spectra", "lr_growth", "layer_audit"])
def test_figures_with_zeros_have_a_band_for_them(drawn, name):
    assert bands(drawn[name][0])


def test_zeros_of_the_line_elements_are_in_the_band(drawn):
    fig, data, _ = drawn["line_elements"]
    zero = data["values"]["logistic"]["standard, Eq. 35 printed"]
    assert not np.any(zero)
    line = next(line for line in fig.axes[1].lines if line.get_label() == "standard, Eq. 35 printed")
    (band,) = (patch for patch in fig.axes[1].patches if patch.get_gid() == ZERO)
    bottom, top = band.get_y(), band.get_y() + band.get_height()
    assert np.all((line.get_ydata() > bottom) & (line.get_ydata() < top))
    positive = [v for curves in data["values"].values() for values in curves.values() for v in np.abs(values) if v > 0]
    assert top < min(positive)
    ticks = dict(zip(fig.axes[1].yaxis.get_major_locator()(), fig.axes[1].yaxis.get_major_formatter().seq, strict=True))
    assert [bottom < place < top for place, label in ticks.items() if label == "0"] == [True]


@pytest.mark.parametrize("name", NAMES)
def test_stored_figures_have_the_title_that_their_data_give(drawn, name):
    stored = json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))
    assert stored["title"] == drawn[name][2]["title"]
    assert len(stored["title"]) > 20
    assert stored["caption"] == drawn[name][2]["caption"]


@pytest.mark.parametrize("name", sorted({*NAMES} - {"table1", "extended"}))
def test_curves_are_medians_with_bands_or_the_caption_says_why_not(drawn, name):
    assert re.search(
        r"[Mm]edian|One run each|One random model|One network|Smallest times|averages over walks",
        drawn[name][2]["caption"],
    )


def test_every_figure_that_is_stored_is_drawn_again_from_its_data():
    stored = {p.stem for p in STORED.glob("*.json") if "caption" in json.loads(p.read_text(encoding="utf-8"))}
    assert stored == set(NAMES)


def test_pictures_are_stored_where_a_page_shows_them_and_nowhere_else():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout: which files are stored is not known")
    files = {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    shown = set()
    for page in (name for name in files if name.endswith(".md")):
        text = (ROOT / page).read_text(encoding="utf-8")
        shown |= {resolved(page, address) for image, _, address in LINK.findall(text) if image}
    shown = {name for name in shown if name and name.startswith("figures/")}
    stored = {name for name in files if name.startswith("figures/") and Path(name).suffix in {".png", ".svg"}}
    assert shown == stored
    size = sum((ROOT / name).stat().st_size for name in files if name.startswith("figures/"))
    assert size < 8e6


def test_a_palette_is_taken_where_it_cannot_be_seen():
    def written(pixels):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return Image.open(io.BytesIO(style._compact(file.getvalue())))

    few = np.repeat(np.arange(0, 200, 2, dtype=np.uint8), 300).reshape(100, 100, 3)
    assert written(few).mode == "P"
    np.testing.assert_array_equal(written(few).convert("RGB"), few)
    many = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
    assert written(many).mode == "RGB"
    np.testing.assert_array_equal(written(many), many)


def test_panels_of_one_scale_have_equal_limits(drawn):
    for name in ("mnist", "order_embeddings", "rows_of_digits", "lr_gain_magnitude", "lr_edge_of_stability"):
        fig, _, _ = drawn[name]
        assert len({axis.get_ylim() for axis in fig.axes}) == 1, name
        assert len(fig.legends) == 1, name
        assert not any(axis.get_legend() for axis in fig.axes), name


def document(name):
    return json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))["data"]


def study(name):
    kinds = {"printed_against_exact": studies.PrintedAgainstExact, "block_scaling": studies.BlockScaling}
    kinds |= {"line_elements": studies.LineElements, "spectra": studies.Spectra}
    return kinds[name](**figures.arrays(document(name)))


def test_captions_of_tables_count_what_the_cells_say():
    table = document("table1")["table"]
    assert invariance.invariance_numbers(table) == "Table 1: 18 of 18 cells printed in the paper hold"
    table["rows"][0]["cells"][0]["says"] = "no"
    assert "17 of 18" in invariance.invariance_numbers(table)
    assert invariance.agreement("bn", "weight_matrix_rescaling", table["rows"][0]["cells"][0]) == "✗"
    extended = document("extended")["table"]
    assert "20 up to the sign" in invariance.invariance_numbers(extended)
    row = next(row for row in extended["rows"] if row["name"] == "rms")
    assert invariance.agreement("rms", "dataset_rescaling", row["cells"][3]) == ""


def test_captions_of_studies_follow_their_numbers():
    found = study("printed_against_exact")
    assert "rank 64 of 64, the exact one 57" in geometry.printed_against_exact_numbers(found)
    found.exact_spectrum[:] = 1.0
    found.spectral_error[:, -1] = 0.01
    title = geometry.printed_against_exact_numbers(found)
    assert "the exact one 64" in title
    assert "0.01 at width 64" in title

    found = study("block_scaling")
    for exponents in found.exponents.values():
        exponents[next(iter(exponents))] = -1.0
    assert "power −1.00: twice the norm leaves 50 %" in geometry.block_scaling_numbers(found)

    found = study("line_elements")
    assert "does not change" in geometry.line_elements_numbers(found)
    found.values["logistic"]["layer norm, Eq. 33"][0] /= 3
    assert "changes 3-fold" in geometry.line_elements_numbers(found)

    found = study("spectra")
    found.eigenvalues["RMS norm"][-1] = 1.0
    assert "64 (RMS norm)" in geometry.spectra_numbers(found)


@pytest.mark.parametrize(
    ("numbers", "name", "change", "expected"),
    [
        (
            lr.doubling_numbers,
            "lr_doubling",
            lambda d: d["blocks"].update({"w–w": 1 / np.asarray(d["factor"])}),
            "leaves 50 %",
        ),
        (lr.equivalence_numbers, "lr_equivalence", lambda d: d["muon"]["equivalent"].fill(0.3), "within 0.3;"),
        (lr.exponential_numbers, "lr_exponential", lambda d: d["sgd"]["difference"].fill(0.2), "at most 0.2"),
        (lr.growth_numbers, "lr_growth", lambda d: d["MLP, SGD"]["norm/w1"][:, -1].fill(1e-9), "−100"),
        (lr.equilibrium_numbers, "lr_equilibrium", lambda d: d["walk, sgd"]["angle"].fill(0.5), "settles at 0.50–1.00"),
        (
            lr.gain_magnitude_numbers,
            "lr_gain_magnitude",
            lambda d: d["gain of layer norm, inputs × 10"].__imul__(2),
            "changes the loss by up to 100 %",
        ),
        (
            lr.edge_of_stability_numbers,
            "lr_edge_of_stability",
            lambda d: d["ηλ = 1e-03"]["sharpness"].fill(0.1),
            "medians of 0.1–3.4; it is above 2, the edge of stability, at 0–",
        ),
        (
            lr.fisher_spectra_numbers,
            "lr_fisher_spectra",
            lambda d: d["ln"]["effective rank"].fill(120),
            "Training changes",
        ),
        (
            recurrent_stability.numbers,
            "recurrent_stability",
            lambda d: d["layer norm"]["lyapunov"].fill(-2),
            "and −2 with layer norm",
        ),
        (
            neuron_blocks.numbers,
            "neuron_blocks",
            lambda d: [stages["trained"].update(frobenius=0.0) for k, stages in d.items() if k != "dampings"],
            "miss 0 %",
        ),
        (
            layer_audit.numbers,
            "layer_audit",
            lambda d: [row.update(deviations=[1.0]) for row in d["rows"]],
            "no layer changes",
        ),
        (bench_fisher.times_numbers, "bench_fisher", lambda d: d["product-S"].update(somax=1e-9), "takes 5·10⁻⁶–"),
        (
            fisher_growth.numbers,
            "fisher_growth",
            lambda d: d["samples"]["1000000"].update(product=1.0),
            "1.47 (samples)",
        ),
    ],
)
def test_the_numbers_of_a_caption_change_with_what_the_data_say(numbers, name, change, expected):
    data = figures.arrays(document(name)) if name != "layer_audit" else document(name)
    assert expected not in numbers(data)
    change(data)
    assert expected in numbers(data)


NAMED = re.compile(r"Table \d+|Eqs?\. \d+|float\d+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?")


@pytest.mark.parametrize("name", NAMES)
def test_a_title_is_a_sentence_with_one_number_at_most(drawn, name):
    title = drawn[name][2]["title"]
    assert len(NUMBER.findall(NAMED.sub("", title))) <= 1, title
    assert title[0].isupper() or title.startswith("lngeom")
    assert not title.endswith(".")


def changed(name, change):
    data = figures.arrays(document(name))
    change(data)
    return data


@pytest.mark.parametrize(
    ("title", "name", "change", "expected"),
    [
        (lr.equivalence_title, "lr_equivalence", lambda d: d["muon"]["equivalent"].fill(0.3), "more than 0.3"),
        (lr.exponential_title, "lr_exponential", lambda d: d["sgd"]["difference"].fill(0.2), "at most 0.2"),
        (lr.equilibrium_title, "lr_equilibrium", lambda d: d["walk, sgd"]["angle"].fill(0.5), "settles at 0.50"),
        (lr.fisher_spectra_title, "lr_fisher_spectra", lambda d: d["ln"]["effective rank"].fill(120), "changes"),
        (bench_fisher.times_title, "bench_fisher", lambda d: d["dense-S"].update(somax=1e-9), "Another library"),
        (fisher_growth.title, "fisher_growth", lambda d: d["samples"]["1000000"].update(product=1.0), "its samples"),
    ],
)
def test_a_title_follows_the_data(title, name, change, expected):
    assert expected not in title(figures.arrays(document(name)))
    assert expected in title(changed(name, change))


def test_titles_of_tables_and_studies_follow_the_data():
    table = document("table1")["table"]
    assert invariance.invariance_title(table) == "All 18 cells of the paper's Table 1 hold"
    table["rows"][0]["cells"][0]["says"] = "no"
    assert invariance.invariance_title(table) == "1 cell of the paper's Table 1 does not hold"
    found = study("printed_against_exact")
    assert geometry.printed_against_exact_title(found).endswith("the printed one has none")
    found.printed_spectrum[-7:] = 0
    assert geometry.printed_against_exact_title(found).endswith("so has the printed one")
    found = study("line_elements")
    assert "for Gaussian responses only" in geometry.line_elements_title(found)
    for curves in found.values.values():
        curves["batch norm, Eq. 32 printed"] = curves["batch norm, exact"]
    assert geometry.line_elements_title(found) == "Eq. 32 as printed is right"
    found = study("spectra")
    found.eigenvalues["RMS norm"][:] = 1.0
    assert geometry.spectra_title(found).endswith("but for RMS norm")


def test_the_tasks_that_are_lost_are_named_in_plain_words(drawn):
    results = document("bench_fisher")
    named = bench_fisher.lost(results)
    assert "64 products at once, network 784-512-512-10 (the products one after the other: 38 % less time)" in named
    assert all(task in drawn["bench_fisher"][2]["caption"] for task in named)
    assert not any(code in drawn["bench_fisher"][2]["caption"] for code in results)
    fine = {task: {"lngeom": 1.0, "somax": 2.0} for task in results}
    assert bench_fisher.lost(fine) == []


def test_every_png_is_2400_pixels_wide_and_a_slide_is_16_to_9(tmp_path):
    shutil.copy(STORED / "table1.json", tmp_path)
    figures.redraw("table1", tmp_path)
    assert imread(tmp_path / "table1.png").shape[1] == style.PIXELS == 2400
    plain = (tmp_path / "table1.svg").read_text()
    with style.options(slide=True):
        figures.redraw("table1", tmp_path)
    assert imread(tmp_path / "table1.png").shape[:2] == (1350, 2400)
    assert (tmp_path / "table1.svg").read_text() != plain


@pytest.mark.parametrize("name", ["spectra", "line_elements", "table1", "block_scaling", "printed_against_exact"])
def test_nothing_of_a_slide_is_cut(name, tmp_path, monkeypatch):
    """A legend in one row would be wider than the slide of the spectra."""
    drawn, write = [], Figure.savefig

    def measured(figure, *args, **kwargs):
        drawn.append(figure.get_tightbbox().extents)
        return write(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", measured)
    shutil.copy(STORED / f"{name}.json", tmp_path)
    with style.options(slide=True):
        figures.redraw(name, tmp_path)
    left, bottom, right, top = drawn[0]
    assert min(left, bottom) >= 0
    assert right <= style.SLIDE[0]
    assert top <= style.SLIDE[1]


def comparison(treated, baseline, ratios, target=None):
    row = {"treated": treated, "baseline": baseline, "measure": "speed", "metric": "test NLL"}
    return row | {"target": target, "low": ratios, "high": ratios}


def test_the_finding_of_an_experiment_is_in_its_comparisons():
    slower = [comparison("LN", "baseline", [1.5] * 5)]
    assert drawing.finding(slower) == (
        "Layer norm reaches the best common test NLL in 150 % of the steps of no normalization"
    )
    both = [comparison("LN", "none", [0.5] * 5, 0.1), comparison("LN", "BN", [0.9, 1.2, 1.3], 0.1)]
    assert drawing.finding(both) == (
        "Layer norm reaches test NLL 0.1 in 50 % of the steps of no normalization and 120 % (seeds disagree) of the "
        "steps of batch norm"
    )
    two = [comparison("LN", "none", [0.5] * 5, 0.1), comparison("BN", "none", [0.7] * 5, 0.1)]
    assert drawing.finding(two) == (
        "Layer norm reaches test NLL 0.1 in 50 % of the steps of no normalization; batch norm in 70 % of the steps of "
        "no normalization"
    )
    assert drawing.finding([slower[0] | {"measure": "best"}]) == ""


def test_the_headline_of_an_experiment_says_who_needs_fewer_steps():
    one, other = comparison("LN", "none", [0.5] * 5, 0.1), comparison("LN", "BN", [1.5] * 5, 0.1)
    assert drawing.headline([one, other]) == (
        "Layer norm needs fewer steps than no normalization, but more steps than batch norm"
    )
    split = comparison("LN", "BN", [0.9, 1.2, 1.3], 0.1)
    assert drawing.headline([split, one]) == (
        "Layer norm needs fewer steps than no normalization, but not always fewer than batch norm"
    )
    assert drawing.headline([split]) == "Layer norm needs not always fewer steps than batch norm"
    bound = one | {"low": [0.0] * 5, "high": [1.5] * 5}
    assert drawing.headline([bound]) == "Layer norm needs not always fewer steps than no normalization"
    assert drawing.headline([one | {"measure": "best"}]) == ""


@pytest.mark.parametrize(
    ("side", "count", "expected"),
    [("low", 5, "in at most 50 % of"), ("high", 5, "in at least 50 % of"), ("low", 1, "in 50 % of"), ("high", 1, "50")],
)
def test_a_finding_says_where_a_run_never_reached_the_goal(side, count, expected):
    row = comparison("LN", "none", [0.4, 0.5, 0.5, 0.5, 0.6], 0.1)
    unknown = 0.0 if side == "low" else None
    order = range(5) if side == "low" else range(4, -1, -1)
    row[side] = [unknown if k in list(order)[:count] else v for k, v in enumerate(row[side])]
    assert expected in drawing.finding([row])


def test_a_finding_is_silent_where_nothing_is_known():
    assert drawing.finding([comparison("LN", "none", [0.5] * 5) | {"low": [0.0] * 5, "high": [None] * 5}]) == ""


def test_arms_of_the_same_method_differ_by_their_dashes():
    found = style.lines_of(["LSTM", "BN-LSTM", "BN-everywhere", "LN-LSTM", "LN-LSTM, gain 0.1"])
    assert len({(look["color"], str(look["linestyle"])) for look in found.values()}) == 5
    assert found["BN-LSTM"]["color"] == found["BN-everywhere"]["color"] == COLOUR_OF["batch norm"]


def heights(folder):
    return {p.stem: imread(p).shape[0] for p in folder.glob("*.png")}


def test_captions_can_be_left_out_of_the_pictures(tmp_path, monkeypatch):
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        shutil.copy(STORED / "table1.json", tmp_path / name)
        shutil.copy(STORED / "draw.json", tmp_path / name)
        shutil.copytree(STORED / "draw", tmp_path / name / "draw")
        extra = ["--no-caption"] if name == "without" else []
        monkeypatch.setattr(sys, "argv", ["figures", "--redraw", "table1", "--out", str(tmp_path / name), *extra])
        command.main()
        monkeypatch.setattr(sys, "argv", ["analysis", "draw", "--redraw", "--out", str(tmp_path / name), *extra])
        analysis_main()
    long, short = heights(tmp_path / "with"), heights(tmp_path / "without")
    assert all(short[name] < long[name] for name in ("table1", "draw"))
    for name in ("table1", "draw"):
        first, second = ((tmp_path / k / f"{name}.json").read_text() for k in ("with", "without"))
        assert first == second
        assert json.loads(first)["caption"]


def test_the_command_line_leaves_captions_out(tmp_path, monkeypatch):
    from lngeom.cli.commands import app
    from typer.testing import CliRunner

    report = {"tables": [document("table1")["table"]], "data": {"sha256": load().fingerprint}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    monkeypatch.setattr(studies, "ALL", ())
    for name, extra in (("with", []), ("without", ["--no-caption"])):
        arguments = ["figures", "--out", str(tmp_path / name), "--report", str(tmp_path), *extra]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert heights(tmp_path / "without")["table1"] < heights(tmp_path / "with")["table1"]


def from_stored_data(name, monkeypatch):
    """Arguments of a script, which takes what it would compute from the figures that are stored."""
    if name == "learning_rate":
        monkeypatch.setattr(learning_rate, "compute", lambda part, *_: figures.arrays(document(part)))
        return learning_rate, ["--only", "lr_doubling"], "lr_doubling"
    if name == "bench_fisher":
        stored = {task: lambda rounds, task=task: document("bench_fisher")[task] for task in document("bench_fisher")}
        monkeypatch.setattr(bench_fisher, "TASKS", stored)
        return bench_fisher, [], "bench_fisher"
    monkeypatch.setattr(layer_audit, "audit", lambda **_: SimpleNamespace(missing=()))
    monkeypatch.setattr(layer_audit, "tables", lambda *_: [])
    monkeypatch.setattr(
        layer_audit, "draw", lambda found, stem, _: layer_audit.draw_data(document(stem.name), stem, {})
    )
    return layer_audit, [], "layer_audit"


@pytest.mark.parametrize("name", ["learning_rate", "bench_fisher", "layer_audit"])
def test_scripts_with_options_of_their_own_leave_captions_out(name, tmp_path, monkeypatch):
    script, arguments, drawn = from_stored_data(name, monkeypatch)
    for folder, extra in (("with", []), ("without", ["--no-caption"])):
        (tmp_path / folder).mkdir()
        out = tmp_path / folder / drawn if name == "layer_audit" else tmp_path / folder
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--out", str(out), *extra])
        script.main()
    assert heights(tmp_path / "without")[drawn] < heights(tmp_path / "with")[drawn]
    first, second = ((tmp_path / folder / f"{drawn}.json").read_text() for folder in ("with", "without"))
    assert json.loads(first)["caption"] == json.loads(second)["caption"] != ""


def test_an_axis_that_says_the_panel_s_title_has_none_above(drawn):
    assert [axis.get_title() for axis in drawn["convnet"][0].axes] == [""]
    assert drawn["convnet"][0].axes[0].get_ylabel() == "test error"
    assert "DRAW" in drawn["draw"][0].axes[0].get_title()


def test_a_figure_that_cannot_be_drawn_again_is_one_error(tmp_path):
    with pytest.raises(ValueError, match=r"table1\.json is missing or damaged"):
        figures.redraw("table1", tmp_path)
    with pytest.raises(ValueError, match="no figure 'other'"):
        figures.redraw("other", STORED)


def test_a_redrawn_figure_keeps_the_versions_of_its_computation(tmp_path):
    stored = json.loads((STORED / "table1.json").read_text(encoding="utf-8"))
    stored["versions"]["jax"] = "0.0.1"
    (tmp_path / "table1.json").write_text(json.dumps(stored))
    figures.redraw("table1", tmp_path)
    assert json.loads((tmp_path / "table1.json").read_text(encoding="utf-8")) == stored


def test_figures_use_the_data_and_say_what_they_leave(tmp_path, monkeypatch):
    from lngeom.cli.commands import app
    from typer.testing import CliRunner

    mine = tmp_path / "mine.csv"
    np.savetxt(mine, np.random.default_rng(0).normal(size=(50, 8)) * np.arange(1, 9), delimiter=",")
    report = {"tables": [document("table1")["table"]], "data": {"sha256": load().fingerprint}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    monkeypatch.setattr(running, "run", lambda *_, **__: ((), []))  # Table 1 is measured elsewhere
    arguments = ["figures", "--data", str(mine), "--report", str(tmp_path), "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "--only", "table1", "--only", "extended", "--only", "spectra"])
    assert done.exit_code == 0, done.output
    assert "is on other data, or has no table: Table 1 is measured again" in done.stderr
    assert "Left out: extended, whose cells take minutes; first lngeom verify --topic extended --data" in done.stderr
    written = json.loads((tmp_path / "spectra.json").read_text())
    assert written["caption"].endswith("Inputs: the 6 columns of mine.csv that vary most.")
    assert written["data"]["shape"] == [50, 6, 8]
    assert written["data"]["eigenvalues"] != document("spectra")["eigenvalues"]
    assert {p.stem for p in tmp_path.glob("*.png")} == {"spectra"}
    strange = CliRunner().invoke(app, ["figures", "--only", "spectrum"])
    assert strange.exit_code == 2
    assert "no figure 'spectrum'; the figures are table1, extended, printed_against_exact" in strange.output


@pytest.mark.parametrize("study", studies.ALL, ids=lambda study: study.__name__)
def test_a_study_on_data_differs_from_the_one_on_random_inputs(study):
    rows = studies.features(np.random.default_rng(1).normal(size=(40, 3)))
    options = {"sweep": (40, 3), "widths": (4,), "seeds": 1} if study is studies.printed_against_exact else {}
    first, second = (repr(study(data=data, **options)) for data in (rows, -2 * rows**3))
    assert "shape=(40, 3," in first
    assert first != second


def test_constant_columns_are_no_features():
    with pytest.raises(ValueError, match="no column of the data varies"):
        studies.features(np.ones((5, 3)))
