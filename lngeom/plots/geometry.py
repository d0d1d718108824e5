"""Figures of Fisher matrices and metrics; each takes a study of `lngeom.plots.studies` and writes it.

What a title says is computed from the study. Lines of an equation as printed are dashed, with hollow markers.
"""

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import MaxNLocator

from lngeom.plots.axes import common_legend, log_scale, number, plain_ticks, span
from lngeom.plots.style import COLOUR_OF, DASHES, GUIDE, INK, MARKERS, PALE, figure, method_of, save

FLOOR = 1e-18
"""Eigenvalues up to this fraction of the largest are zeros, which rounding has changed."""

LAYER = COLOUR_OF["layer norm"]


def printed_against_exact_title(study) -> str:
    """The dimension of the exact matrix's null space, and whether the printed matrix has one."""
    printed, exact = (int(np.sum(v <= FLOOR * v[0])) for v in (study.printed_spectrum, study.exact_spectrum))
    has = f"a null space of dimension {exact}" if exact else "no null space"
    return f"Layer norm's Fisher matrix has {has}; " + (
        "the printed one has none"
        if not printed
        else "the printed one has another"
        if printed != exact
        else "so has the printed one"
    )


def printed_against_exact_numbers(study) -> str:
    """Both ranks, and the error of the whole printed matrix at the smallest and the largest width."""
    printed, exact = (int(np.sum(v > FLOOR * v[0])) for v in (study.printed_spectrum, study.exact_spectrum))
    size = len(study.exact_spectrum)
    first, last = (number(v) for v in np.median(study.spectral_error, 0)[[0, -1]])
    return (
        f"The printed Fisher matrix of layer norm has rank {printed} of {size}, the exact one {exact}; the relative "
        f"error of the whole matrix is {first} at width {study.widths[0]} and {last} at width {study.widths[-1]}"
    )


def printed_against_exact(study, stem: Path | str) -> list[Path]:
    """Matrices, spectra and errors of Eqs. 13 and 14 for layer norm.

    Args:
        study: a `studies.PrintedAgainstExact`.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    width = study.shape[1] + 2
    extent = 2 * width
    largest = np.abs(study.exact).max()
    with figure(2, 2, height=2.75) as (fig, axes):
        for ax, name in zip(axes[0], ("printed", "exact"), strict=True):
            matrix = getattr(study, name)[:extent, :extent]
            norm = SymLogNorm(1e-3 * largest, vmin=-largest, vmax=largest)
            image = ax.imshow(matrix, norm=norm, cmap="PuOr", interpolation="nearest")
            ax.grid(False)
            edges = [-0.5, study.shape[1] - 0.5, width - 0.5, width + study.shape[1] - 0.5]
            for edge in edges[1:]:
                bold = edge == width - 0.5
                ax.axhline(edge, color=INK, linewidth=1.0 if bold else 0.4, linestyle="-")
                ax.axvline(edge, color=INK, linewidth=1.0 if bold else 0.4, linestyle="-")
            centres = [(study.shape[1] - 1) / 2, study.shape[1] + 0.5]
            ticks = centres + [c + width for c in centres]
            labels = ["$w_1$", "$b_1,g_1$", "$w_2$", "$b_2,g_2$"]
            ax.set_xticks(ticks, labels)
            ax.set_yticks(ticks, labels)
            ax.tick_params(length=0)
            ax.set_title(f"{name}, units 1 and 2" + (" (Eqs. 13, 14)" if name == "printed" else ""))
        ticks = [-0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1]
        fig.colorbar(image, ax=axes[0, :].tolist(), shrink=0.85, label="entry of $F$", ticks=ticks)
        ax = axes[1, 0]
        index = np.arange(1, len(study.exact_spectrum) + 1)
        both = np.concatenate([study.printed_spectrum, np.maximum(study.exact_spectrum, 0)])
        place = log_scale(ax, both, below=FLOOR * both.max())
        for name, fill in (("printed", "none"), ("exact", "full")):
            values = place(np.maximum(getattr(study, f"{name}_spectrum"), 0))
            shape = "s" if name == "printed" else MARKERS["layer norm"]
            style = {"color": LAYER, "marker": shape, "fillstyle": fill, "linestyle": "none"}
            ax.plot(index, values, markersize=3, label=name, **style)
        ax.axvspan(len(index) - study.nullity + 0.5, len(index) + 0.5, color=PALE, zorder=0, linewidth=0)
        about = f"null space,\ndimension {study.nullity}"
        at = (len(index) - study.nullity, 0.3)
        ax.annotate(
            about,
            at,
            ha="right",
            va="center",
            xytext=(-3, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
        )
        ax.set(xlabel="index", ylabel="eigenvalue", title="spectrum of the whole matrix")
        ax.legend(loc="center left")
        ax = axes[1, 1]
        log_scale(ax, np.concatenate([study.block_error, study.spectral_error]))
        ax.set_xscale("log")
        for values, name, marker, dash in (
            (study.block_error, "diagonal blocks, mean", "o", "-"),
            (study.spectral_error, "whole matrix, spectral norm", "s", "--"),
        ):
            style = {"color": LAYER, "linestyle": dash, "marker": marker, "fillstyle": "none"}
            ax.plot(study.widths, np.median(values, 0), label=name, **style)
            ax.fill_between(study.widths, values.min(0), values.max(0), color=LAYER, alpha=0.15, linewidth=0)
        plain_ticks(ax.xaxis, study.widths)
        ax.set(xlabel="width $H$", ylabel="relative error", title="error against width")
        ax.legend(loc="lower left")
        samples, features, units = study.shape
        return save(
            fig,
            stem,
            asdict(study),
            title=printed_against_exact_title(study),
            caption=(
                f"{printed_against_exact_numbers(study)}. "
                f"Layer norm's Fisher matrix by Eqs. 13 and 14, and the exact one (H = {units}, D = {features}, "
                f"N = {samples}, logistic responses). The printed matrix lacks the blocks between units and the null "
                "space. In the band 0: eigenvalues that are zero up to rounding. Lower right: median and range of "
                f"{len(study.block_error)} seeds."
            ),
            configuration={"shape": study.shape, "widths": study.widths},
        )


def block_scaling_title(study) -> str:
    """What twice the norm leaves of the curvature along the scaled weights, where it follows a law."""
    law = [next(iter(study.exponents[case].values())) for case in study.cases if case != "layer norm, one unit"]
    left = 100 * 2 ** float(np.mean(law))
    other = "" if abs(left - 50) < 1 else ", not half of it"
    return f"Twice the norm leaves {left:.0f} % of the curvature along the scaled weights{other}"


def block_scaling_numbers(study) -> str:
    """The measured power of the block of the scaled weights with themselves, and by how much doubling changes it."""
    law = [next(iter(study.exponents[case].values())) for case in study.cases if case != "layer norm, one unit"]
    return (
        f"The curvature along scaled weights goes as c to the power {span(law, lambda v: f'{v:.2f}')}: "
        f"twice the norm leaves {span((2**v for v in law), lambda v: f'{100 * v:.0f} %')} of it; the paper says 50 %"
    ).replace("-", "−")


def block_scaling(study, stem: Path | str) -> list[Path]:
    """Norms of blocks against the factor of the weights, with their slopes.

    Args:
        study: a `studies.BlockScaling`.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    shown = [norms for blocks in study.cases.values() for norms in blocks.values()]
    with figure(1, len(study.cases), height=2.8, sharey=True) as (fig, axes):
        log_scale(axes, shown)
        for ax, (title, blocks) in zip(axes[0], study.cases.items(), strict=True):
            law = title != "layer norm, one unit"
            colour = COLOUR_OF[method_of(title)]
            ax.set_xscale("log")
            paper = {"color": GUIDE, "linestyle": "-", "linewidth": 4, "alpha": 0.35}
            ax.plot(study.factors, 1 / study.factors, label="paper: $c^{-1}$", **paper)
            for (block, norms), marker, dash in zip(blocks.items(), "os^", ("-", "--", ":"), strict=True):
                label = block + (f": slope {study.exponents[title][block]:.2f}" if law else "")
                label = label.replace("-0.00", "0").replace("0.00", "0").replace("-", "−")
                ax.plot(study.factors, norms, color=colour, marker=marker, linestyle=dash, label=label)
            ax.set_title(title + ("" if law else " (no law)"))
            ax.set_xlabel("factor $c$ of the weights")
            plain_ticks(ax.xaxis, study.factors[::2])
            ax.legend(loc="lower left")
        axes[0, 0].set_ylabel("norm of the block, relative to $c = 1$")
        return save(
            fig,
            stem,
            asdict(study),
            title=block_scaling_title(study),
            caption=(
                f"{block_scaling_numbers(study)}. "
                "Blocks of the Fisher matrix as weights are multiplied by c (softmax responses). The block of the "
                "scaled weights with themselves goes as c⁻². Broad grey line: the paper's c⁻¹, by which twice the norm "
                "would halve the curvature. Under layer norm scaling one unit changes the output, and no power of c "
                "fits. One random model for each case."
            ),
            configuration={"shape": study.shape},
        )


def line_elements_title(study) -> str:
    """For which responses Eq. 32 is right as printed, and its worst error elsewhere."""
    worst = {
        response: float(np.max(np.abs(v["batch norm, Eq. 32 printed"] / v["batch norm, exact"] - 1)))
        for response, v in study.values.items()
    }
    right = [response for response, error in worst.items() if error < 1e-9]
    if len(right) == len(worst):
        return "Eq. 32 as printed is right"
    where = f"for {' and '.join(right)} responses only" if right else "for no responses"
    return f"Eq. 32 as printed is right {where}; else it is up to {number(100 * max(worst.values()), math.ceil)} % off"


def line_elements_numbers(study) -> str:
    """By how much each ds² changes over the scales, and the error of Eq. 32."""

    def ratio(curve: str) -> float:
        return max(float(np.max(v[curve]) / np.min(v[curve])) for v in study.values.values())

    gains = max(ratio(curve) for curve in ("batch norm, exact", "layer norm, Eq. 33"))
    magnitudes = min(float(v["standard, exact"].max() / v["standard, exact"].min()) for v in study.values.values())
    wrong = max(float(np.max(v["batch norm, Eq. 32 printed"] / v["batch norm, exact"])) for v in study.values.values())
    change = "does not change" if gains < 1 + 1e-9 else f"changes {number(gains, math.ceil)}-fold"
    return (
        f"ds² along gains of batch and layer norm {change} with the scale of the inputs; along magnitudes it "
        f"changes at least {number(magnitudes, math.floor)}-fold. Eq. 32 as printed gives about {number(wrong)} times "
        "ds² at worst"
    )


def line_elements(study, stem: Path | str) -> list[Path]:
    """ds² along gains and magnitudes against the scale of the inputs.

    Args:
        study: a `studies.LineElements`.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    everything = [np.abs(values) for curves in study.values.values() for values in curves.values()]
    with figure(1, len(study.values), height=3.1, sharey=True) as (fig, axes):
        place = log_scale(axes, everything)
        below = ("batch norm, exact", "weight norm, Eq. 34")
        for ax, (response, curves) in zip(axes[0], study.values.items(), strict=True):
            ax.set_xscale("log")
            for name, values in curves.items():
                wrong, method = "printed" in name, method_of(name)
                ax.plot(
                    study.scales,
                    place(np.abs(values)),
                    label=name,
                    marker="o" if wrong else MARKERS[method],
                    markersize=6 if wrong else 4,
                    color=COLOUR_OF[method],
                    linestyle="--" if wrong else "-",
                    linewidth=6 if name in below else 1.4,  # broad and pale where another line lies on it
                    alpha=0.35 if name in below else 1,
                    fillstyle="none" if wrong else "full",
                )
            ax.set_title(f"{response} responses")
            ax.set_xlabel("scale $s$ of the inputs, $X → sX$")
            plain_ticks(ax.xaxis, study.scales[::2])
        axes[0, 0].set_ylabel("$|ds^2|$ (nats)")
        common_legend(fig, axes[0, -1:], columns=3)
        return save(
            fig,
            stem,
            asdict(study),
            title=line_elements_title(study),
            caption=(
                f"{line_elements_numbers(study)}. "
                "ds² of a change of two gains, or of two weight magnitudes in the standard model, against the scale of "
                "the inputs. Batch and layer norm are invariant to it. Eq. 32 as printed is right for Gaussian "
                "responses only. Eq. 35 as printed is zero for independent responses (in the band 0) and one of four "
                "terms for dependent ones. One random model."
            ),
            configuration={"shape": study.shape, "delta": "0.1 and −0.1 on two units"},
        )


def spectra_title(study) -> str:
    """Under which normalizers the Fisher matrix is singular."""
    singular = [name for name, v in study.eigenvalues.items() if np.any(v <= FLOOR * v[0])]
    regular = [name for name in study.eigenvalues if name not in singular]
    if not regular:
        return "The Fisher matrix is singular with every normalizer, and without one"
    return f"The Fisher matrix is singular, but for {', '.join(regular)}"


def spectra_numbers(study) -> str:
    """The rank of each matrix, counted from its eigenvalues."""
    size = len(next(iter(study.eigenvalues.values())))
    ranks: dict[int, list[str]] = {}
    for name, values in study.eigenvalues.items():
        ranks.setdefault(int(np.sum(values > FLOOR * values[0])), []).append(name)
    parts = (f"{rank} ({', '.join(names)})" for rank, names in ranks.items())
    return f"Rank of the Fisher matrix of {size} parameters, by normalizer: {', '.join(parts)}"


def spectra(study, stem: Path | str) -> list[Path]:
    """Eigenvalues of the Fisher matrix under each normalizer.

    Args:
        study: a `studies.Spectra`.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    relative = {name: np.maximum(values / values[0], 0) for name, values in study.eigenvalues.items()}
    total = len(next(iter(relative.values())))
    with figure(1, 2, height=2.9, sharey=True, width_ratios=[3, 2]) as (fig, axes):
        place = log_scale(axes, list(relative.values()), below=FLOOR, rows=len(relative))
        for row, (name, values) in enumerate(relative.items()):
            style = {"color": COLOUR_OF[name], "linestyle": DASHES[name], "marker": MARKERS[name], "linewidth": 0.9}
            label = f"{name}: rank {total - study.nullity[name]}"
            for ax in axes[0]:
                ax.plot(np.arange(1, total + 1), place(values, row), markersize=3, label=label, **style)
        axes[0, 0].set(xlabel="index", ylabel="eigenvalue, relative to the largest", title="all eigenvalues")
        axes[0, 1].set_xlim(total - 2 * max(study.nullity.values()), total + 0.5)
        axes[0, 1].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0, 1].set(xlabel="index", title="the smallest, with the null spaces")
        common_legend(fig, axes[0, :1])
        samples, features, units = study.shape
        return save(
            fig,
            stem,
            asdict(study),
            title=spectra_title(study),
            caption=(
                f"{spectra_numbers(study)}. "
                f"Eigenvalues of the Fisher matrix on the same weights and inputs (H = {units}, D = {features}, "
                f"N = {samples}, logistic responses). In the band 0, in rows: eigenvalues that are zero up to "
                "rounding. They are the null space: the scale of a unit against its gain (none), of each weight "
                "vector (batch, weight norm), of all of W with the D shifts (layer norm), or of all of W (RMS norm). "
                "One random model."
            ),
            configuration={"shape": study.shape, "floor": FLOOR},
        )
