"""Figures of Fisher matrices and metrics; each takes a study of `lngeom.studies` and writes it."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from lngeom.plots.style import COLOURS, figure, save

MARKERS = ("o", "s", "^", "D", "v", "x")
COLOUR_OF = dict(zip(("batch norm", "standard", "layer norm", "weight norm"), COLOURS, strict=False))

FLOOR = 1e-18
"""Eigenvalues below this fraction of the largest count as zero and are drawn at the lower limit."""


def _powers(axis, values) -> None:
    """Ticks at these values, as plain numbers."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


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
                ax.axhline(edge, color="0.35", linewidth=1.0 if bold else 0.4, linestyle="-")
                ax.axvline(edge, color="0.35", linewidth=1.0 if bold else 0.4, linestyle="-")
            centres = [(study.shape[1] - 1) / 2, study.shape[1] + 0.5]
            ticks = centres + [c + width for c in centres]
            labels = ["$w_1$", "$b_1,g_1$", "$w_2$", "$b_2,g_2$"]
            ax.set_xticks(ticks, labels)
            ax.set_yticks(ticks, labels)
            ax.tick_params(length=0)
            ax.set_title(f"{name}: units 1 and 2" + (" (Eqs. 13, 14)" if name == "printed" else ""))
        fig.colorbar(
            image,
            ax=axes[0, :].tolist(),
            shrink=0.85,
            label="entry of $F$",
            ticks=[-0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1],
        )
        ax = axes[1, 0]
        index = np.arange(1, len(study.exact_spectrum) + 1)
        for name, marker in (("printed", "s"), ("exact", "o")):
            values = getattr(study, f"{name}_spectrum")
            ax.semilogy(
                index,
                np.maximum(values, FLOOR * values[0]),
                marker=marker,
                markersize=2.5,
                linestyle="none",
                label=name,
            )
        ax.axvspan(len(index) - study.nullity + 0.5, len(index) + 0.5, color="0.88", zorder=0)
        ax.annotate(
            f"null space,\ndimension {study.nullity}",
            (len(index) - study.nullity, 1e-13),
            ha="right",
            xytext=(-3, 0),
            textcoords="offset points",
        )
        ax.set(xlabel="index", ylabel="eigenvalue", title="spectrum")
        ax.legend(loc="lower left")
        ax = axes[1, 1]
        for values, name, marker in (
            (study.block_error, "diagonal blocks, mean", "o"),
            (study.spectral_error, "whole matrix, spectral norm", "s"),
        ):
            ax.loglog(study.widths, values.mean(0), marker=marker, label=name)
            ax.fill_between(study.widths, values.min(0), values.max(0), alpha=0.15, linewidth=0)
        _powers(ax.xaxis, study.widths)
        ax.set(xlabel="width $H$", ylabel="relative error of the printed matrix", title="error against width")
        ax.legend(loc="lower left")
        samples, features, units = study.shape
        return save(
            fig,
            stem,
            asdict(study),
            caption=(
                f"Layer norm's Fisher matrix by Eqs. 13 and 14, and the exact one (H = {units}, D = {features}, "
                f"N = {samples}, logistic responses). The printed matrix lacks the blocks between units and the null "
                "space. Its diagonal blocks improve with width, the whole matrix does not. Bands: range over seeds."
            ),
            configuration={"shape": study.shape, "widths": study.widths},
        )


def block_scaling(study, stem: Path | str) -> list[Path]:
    """Norms of blocks against the factor of the weights, with their slopes.

    Args:
        study: a `studies.BlockScaling`.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    with figure(1, len(study.cases), height=2.6, sharey=True) as (fig, axes):
        for ax, (title, blocks) in zip(axes[0], study.cases.items(), strict=True):
            law = title != "layer norm, one unit"
            for (block, norms), marker in zip(blocks.items(), MARKERS, strict=False):
                slope = study.exponents[title][block]
                label = f"{block}: slope {slope:+.2f}".replace("+0.00", "0").replace("-0.00", "0") if law else block
                ax.loglog(study.factors, norms, marker=marker, label=label)
            ax.set_title(title + ("" if law else " (no law)"))
            ax.set_xlabel("factor $c$ of the weights")
            _powers(ax.xaxis, study.factors[::2])
            ax.legend()
        axes[0, 0].set_ylabel("norm of the block, relative to $c = 1$")
        return save(
            fig,
            stem,
            asdict(study),
            caption=(
                "Blocks of the Fisher matrix as weights are multiplied by c (softmax responses). The block of the "
                "scaled weights with themselves goes as c⁻², not c⁻¹: twice the norm is a quarter of the curvature. "
                "Under layer norm scaling one unit changes the output, and no power of c fits."
            ),
            configuration={"shape": study.shape},
        )


def line_elements(study, stem: Path | str) -> list[Path]:
    """ds² along gains and magnitudes against the scale of the inputs.

    Args:
        study: a `studies.LineElements`.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    with figure(1, len(study.values), height=3.1, sharey=True) as (fig, axes):
        for ax, (response, curves) in zip(axes[0], study.values.items(), strict=True):
            for (name, values), marker in zip(curves.items(), MARKERS, strict=True):
                wrong = "printed" in name
                drawn = np.where(np.abs(values) > 0, np.abs(values), np.nan)
                ax.loglog(
                    study.scales,
                    drawn,
                    label=name,
                    marker=marker,
                    color=COLOUR_OF[name.split(",")[0]],
                    linestyle="--" if wrong else "-",
                    fillstyle="none" if wrong else "full",
                )
            ax.set_title(f"{response} responses")
            ax.set_xlabel("scale $s$ of the inputs, $X → sX$")
            _powers(ax.xaxis, study.scales[::2])
        axes[0, 0].set_ylabel("$|ds^2|$ (nats)")
        handles, labels = axes[0, -1].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside upper center", ncols=3)
        return save(
            fig,
            stem,
            asdict(study),
            caption=(
                "ds² of a change of two gains, or of two weight magnitudes in the standard model, against the scale of "
                "the inputs. Batch and layer norm are invariant to it. Eq. 32 as printed is right for Gaussian "
                "responses only. Eq. 35 as printed is zero for independent responses (not drawn) and one of four terms "
                "for dependent ones."
            ),
            configuration={"shape": study.shape, "delta": "0.1 and −0.1 on two units"},
        )


def spectra(study, stem: Path | str) -> list[Path]:
    """Eigenvalues of the Fisher matrix under each normalizer.

    Args:
        study: a `studies.Spectra`.
        stem: path without a suffix.

    Returns:
        The paths written.
    """
    with figure(1, 2, height=2.8, sharey=True, width_ratios=[3, 2]) as (fig, axes):
        total = len(next(iter(study.eigenvalues.values())))
        for index, ((name, values), marker) in enumerate(zip(study.eigenvalues.items(), MARKERS, strict=False)):
            drawn = np.maximum(values / values[0], FLOOR / 10**index)  # floors one below the other, to be told apart
            kept = total - study.nullity[name]
            label = f"{name}: rank {kept} of {total}"
            for ax in axes[0]:
                ax.semilogy(np.arange(1, total + 1), drawn, marker=marker, markersize=2.6, linewidth=0.9, label=label)
        axes[0, 0].set(xlabel="index", ylabel="eigenvalue, relative to the largest", title="Fisher spectrum")
        axes[0, 1].set_xlim(total - 2 * max(study.nullity.values()), total + 0.5)
        axes[0, 1].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0, 1].set(xlabel="index", title="its end: the null spaces")
        axes[0, 0].legend(loc="lower left")
        samples, features, units = study.shape
        return save(
            fig,
            stem,
            asdict(study),
            caption=(
                f"Eigenvalues of the Fisher matrix on the same weights and inputs (H = {units}, D = {features}, "
                f"N = {samples}, logistic responses). The smallest values, drawn one below the other, are the null "
                "space: the scale of a unit against its gain (none), of each weight vector (batch, weight norm), of "
                "all of W with the D shifts (layer norm), or of all of W (RMS norm)."
            ),
            configuration={"shape": study.shape, "floor": FLOOR},
        )
