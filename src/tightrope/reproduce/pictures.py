"""What the paper's figures look like; each is left as PNG and as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr

from tightrope import plots
from tightrope.diagnostics import MAX_R_HAT_OF_ESS

MAX_DRAWS = 1500  # in one scatter plot
ROW = 0.025  # of crosses, in heights of the axes
# Limits that have logarithms, where there is nothing to show.
NOTHING = {"ess_per_second": (0.1, 10.0), "step_size": (0.1, 10.0), "r_hat": (0.98, 2.0)}
FROM = ", from the "  # between a method and where its chains start
FLOOR = -4.0  # where the posterior lies below the surface


def efficiency(table: pd.DataFrame, medians: pd.DataFrame, stem: Path) -> None:
    """ESS per second and R-hat against the noise scale: a dot for each set of chains, lines through medians."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    lines = list(table["line"].unique())
    colours = colours_of(table)
    for place, line in enumerate(lines):
        rows, colour, style = table[table["line"] == line], colours[line], style_of(line)
        good = rows[rows["is_converged"]]
        ess = medians.loc[line]  # a line breaks where there is none
        left.plot(ess.index, ess, style, color=colour, label=line)
        dots(left, good, "ess_per_second", colour)
        # No ESS is quoted of chains that do not agree, only that there is none.
        bad = rows.loc[~rows["is_converged"], "sigma"]
        height = np.full(len(bad), ROW * (place + 1))
        left.plot(bad, height, "x", color=colour, markersize=5, transform=left.get_xaxis_transform())
    through_medians(right, table, "r_hat")
    right.axhline(MAX_R_HAT_OF_ESS, color="grey", linewidth=0.8, linestyle=":")
    left.set(ylabel="min bulk ESS per second", title=f"× : R-hat above {MAX_R_HAT_OF_ESS}, or no draws")
    right.set(ylabel="max R-hat", title="hollow: stopped by its time limit")
    if not table["is_converged"].any():
        left.set_ylim(NOTHING["ess_per_second"])
    xlim = table["sigma"].min() / 2, table["sigma"].max() * 2
    for axis in (left, right):
        logarithmic(axis, xlim)
    low, high = np.log(left.get_ylim())
    share = ROW * (len(lines) + 2)
    left.set_ylim(np.exp(low - (high - low) * share / (1 - share)))  # room for the crosses below all else
    plain_numbers(right)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    plots.save(figure, stem)


def step_sizes(tables: Mapping[str, pd.DataFrame], stem: Path) -> None:
    """Adapted step sizes against the noise scale, one box a posterior."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for axis, (model, table) in zip(axes.flat, tables.items(), strict=True):
        through_medians(axis, table, "step_size")
        logarithmic(axis, (table["sigma"].min() / 2, table["sigma"].max() * 2))
        axis.set(title=model, ylabel="step size")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    plots.save(figure, stem)


def convergence(table: pd.DataFrame, stem: Path) -> None:
    """R-hat and adapted step sizes against the noise scale."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for axis, column, label in zip(axes, ("r_hat", "step_size"), ("max R-hat", "step size"), strict=True):
        through_medians(axis, table, column)
        logarithmic(axis, (table["sigma"].min() / 2, table["sigma"].max() * 2))
        axis.set_ylabel(label)
    plain_numbers(axes[0])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    plots.save(figure, stem)


def colours_of(table: pd.DataFrame) -> dict[str, Any]:
    """A colour for each line; those of one method from several starts have the same."""
    methods = list(dict.fromkeys(line.split(FROM)[0] for line in table["line"]))
    return {line: plt.get_cmap("tab10")(methods.index(line.split(FROM)[0])) for line in table["line"].unique()}


def style_of(line: str) -> str:
    return "--" if FROM in line else "-"


def through_medians(axis: Any, table: pd.DataFrame, column: str) -> None:
    """A dot for each run, and lines through their medians."""
    for line, colour in colours_of(table).items():
        rows = table[table["line"] == line]
        middle = rows.groupby("sigma")[column].median()
        axis.plot(middle.index, middle, style_of(line), color=colour, label=line)
        dots(axis, rows, column, colour)
    if table[column].isna().all():
        axis.set_ylim(NOTHING[column])


def logarithmic(axis: Any, xlim: tuple[float, float]) -> None:
    axis.set(xscale="log", yscale="log", xlabel="noise scale", xlim=xlim)
    axis.spines[["top", "right"]].set_visible(False)


def plain_numbers(axis: Any) -> None:
    """No powers of ten beside numbers that are all about one."""
    for set_formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        set_formatter("{x:g}")


def dots(axis: Any, rows: pd.DataFrame, column: str, colour: Any) -> None:
    """Each row, hollow where the run was stopped."""
    for filled in (True, False):
        shown = rows[(rows["status"] == "finished") == filled]
        face = colour if filled else "none"
        axis.plot(shown["sigma"], shown[column], "o", markersize=4, color=colour, markerfacecolor=face)


def posteriors(found: pd.DataFrame, printed: Mapping[str, Sequence[float]], lines: list[str], stem: Path) -> None:
    """ESS per second by posterior and method, and the paper's as diamonds."""
    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    names = list(printed)
    for place, line in enumerate([*lines, *[name for name in found.columns if name not in lines]]):
        colour, height = plots.COLOURS[place % len(plots.COLOURS)], np.arange(len(names)) + 0.15 * place
        axis.plot(found[line].reindex(names), height, "o", color=colour, label=line)
        if line in lines:
            values = [printed[name][lines.index(line)] for name in names]
            axis.plot(values, height, "D", color=colour, markerfacecolor="none", label=f"{line}, paper")
    axis.set(xscale="log", xlabel="min bulk ESS per second", yticks=np.arange(len(names)) + 0.2, yticklabels=names)
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    plots.save(figure, stem)


def densities(data: xr.Dataset, stem: Path) -> None:
    """Posterior densities as heat maps, and the curve that they close on."""
    sigmas = data["sigma"].values
    figure, axes = plt.subplots(1, len(sigmas), figsize=(3.6 * len(sigmas), 4.2), sharey=True, layout="constrained")
    for axis, sigma in zip(axes, sigmas, strict=True):
        axis.pcolormesh(data["theta0"], data["theta1"], data["density"].sel(sigma=sigma), cmap="Blues", rasterized=True)
        axis.plot(*data["curve"].values.T, color="#e07b39", linewidth=0.6)
        axis.set(title=rf"$\sigma$ = {sigma:g}", xlabel=r"$\theta_0$", aspect="equal")
    axes[0].set_ylabel(r"$\theta_1$")
    plots.save(figure, stem)


def surfaces(data: xr.Dataset, stem: Path) -> None:
    """The manifolds, coloured by the lifted density, above the posteriors."""
    sigmas = data["sigma"].values
    figure, axes = plt.subplots(
        1, len(sigmas), figsize=(4 * len(sigmas), 4.4), subplot_kw={"projection": "3d"}, layout="constrained"
    )
    noise = np.broadcast_to(data["noise"].values[:, None], data["lifted"].shape[1:])
    for axis, sigma in zip(axes, sigmas, strict=True):
        at = data.sel(sigma=sigma)
        theta0, theta1 = np.moveaxis(at["place"].values, -1, 0)
        colours = plt.get_cmap("Greens")(0.15 + 0.85 * at["lifted"].values)
        below = at["density"] / at["density"].max()
        levels = np.linspace(0.05, 1, 8)
        axis.contourf(data["theta0"], data["theta1"], below, levels, zdir="z", offset=FLOOR, cmap="Blues")
        surface = axis.plot_surface(
            theta0,
            theta1,
            noise,
            facecolors=colours,
            rcount=200,
            ccount=400,
            linewidth=0,
            antialiased=False,
            shade=False,
        )
        surface.set_rasterized(True)
        axis.set(title=rf"$\sigma$ = {sigma:g}", xlabel=r"$\theta_0$", ylabel=r"$\theta_1$", zlabel=r"$\eta$")
        axis.set(zlim=(FLOOR, 2), xticks=(-1, 0, 1), yticks=(-1, 0, 1), zticks=(-2, 0, 2))
        axis.view_init(elev=28, azim=-60)
    plots.save(figure, stem)


def condition_numbers(table: pd.DataFrame, stem: Path) -> None:
    """The ratio of the largest to the smallest eigenvalue against the noise scale."""
    figure, axis = plt.subplots(figsize=(5.5, 4), layout="constrained")
    axis.plot(table["sigma"], table["largest"] / table["smallest"], "o-", color=plots.COLOURS[0])
    logarithmic(axis, (table["sigma"].min() / 2, table["sigma"].max() * 2))
    axis.set_ylabel("condition number of the Hessian")
    plots.save(figure, stem)


def disc(data: xr.Dataset, stem: Path) -> None:
    """The true field, and the temperature with the mesh and where it is seen."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    (x, y), corners = data["place"].values, data["corners"].values.T
    for axis, name in ((left, "z"), (right, "temperature")):
        shown = axis.tripcolor(x, y, corners, data[name].values, shading="gouraud", rasterized=True)
        figure.colorbar(shown, ax=axis, shrink=0.8)
        axis.set(title={"z": "true log conductivity z"}.get(name, name), aspect="equal", xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    right.triplot(x, y, corners, color="white", linewidth=0.3)
    seen = data["sensor"].values
    right.plot(x[seen], y[seen], "x", color="red", markersize=7, markeredgewidth=2)
    plots.save(figure, stem)


def pair_plots(panels: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]], stem: Path) -> None:
    """For each panel, draws of several samplers, each drawn over the one before: pairs below, histograms on top."""
    names = list(dict.fromkeys(name for lines in panels.values() for draws in lines.values() for name in draws))
    size = max(4.0, 1.25 * len(names))
    figure = plt.figure(figsize=(size * len(panels), size + 0.3), layout="constrained")
    for part, (title, lines) in zip(figure.subfigures(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        part.suptitle("   ".join([title, *(lines if len(lines) > 1 else [])]), fontsize=10)
        if not lines:
            part.text(0.5, 0.5, "no draws", ha="center")
            continue
        axes = part.subplots(len(names), len(names), sharex="col", squeeze=False)
        for line, colour in zip(lines, PAIR_COLOURS, strict=False):
            pairs_of(axes, lines[line], colour)
    plots.save(figure, stem)


PAIR_COLOURS = ("#1b6ca8", "#c0392b")


def pairs_of(axes: Any, draws: Mapping[str, np.ndarray], colour: str) -> None:
    """One sampler's draws in a triangle of boxes."""
    for row, (below, y) in enumerate(draws.items()):
        for column, (right, x) in enumerate(draws.items()):
            axis = axes[row, column]
            if column > row:
                axis.set_visible(False)
                continue
            if column == row:
                axis.hist(x, 40, density=True, histtype="step", color=colour)
                axis.set_yticks([])
            else:
                few = slice(None, None, -(-len(x) // MAX_DRAWS))
                axis.plot(x[few], y[few], ".", markersize=1.5, color=colour, alpha=0.4, rasterized=True)
            axis.tick_params(labelsize=5, labelleft=column == 0 and row > 0, labelbottom=row == len(draws) - 1)
            axis.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axis.set_ylabel(below, fontsize=7)
            if row == len(draws) - 1:
                axis.set_xlabel(right, fontsize=7)


def traces(draws: Mapping[str, np.ndarray], stem: Path) -> None:
    """A chain of each parameter, one below the other."""
    figure, axes = plt.subplots(len(draws), 1, figsize=(9, 1.5 * len(draws)), sharex=True, layout="constrained")
    for axis, (name, values) in zip(axes, draws.items(), strict=True):
        axis.plot(values, color=plots.COLOURS[0], linewidth=0.6)
        axis.set_ylabel(name)
        axis.margins(x=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("draw")
    plots.save(figure, stem)
