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

MAX_R_HAT = 1.05  # of chains whose ESS means something
ROW = 0.025  # of crosses, in heights of the axes
FLOOR = -4.0  # where the posterior lies below the surface


def efficiency(table: pd.DataFrame, medians: pd.DataFrame, stem: Path) -> None:
    """ESS per second and R-hat against the noise scale: a dot for each set of chains, lines through medians."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    lines = list(table["line"].unique())
    methods = list(dict.fromkeys(line.split(", from the ")[0] for line in lines))
    for place, line in enumerate(lines):
        rows, (method, *others) = table[table["line"] == line], line.split(", from the ")
        colour, style = plt.get_cmap("tab10")(methods.index(method)), "--" if others else "-"
        good, in_time = rows[rows["is_converged"]], rows["status"] == "finished"
        ess = medians.loc[line]  # a line breaks where there is none
        left.plot(ess.index, ess, style, color=colour, label=line)
        dots(left, good, in_time, "ess_per_second", colour)
        # No ESS is quoted of chains that do not agree, only that there is none.
        bad = rows.loc[~rows["is_converged"], "sigma"]
        height = np.full(len(bad), ROW * (place + 1))
        left.plot(bad, height, "x", color=colour, markersize=5, transform=left.get_xaxis_transform())
        r_hat = rows.groupby("sigma")["r_hat"].median()
        right.plot(r_hat.index, r_hat, style, color=colour)
        dots(right, rows, in_time, "r_hat", colour)
    right.axhline(MAX_R_HAT, color="grey", linewidth=0.8, linestyle=":")
    left.set(ylabel="min bulk ESS per second", title=f"× : R-hat above {MAX_R_HAT}, or no draws")
    right.set(ylabel="max R-hat", title="hollow: stopped by its time limit")
    if not table["is_converged"].any():
        left.set_ylim(0.1, 10)  # with nothing to show, there are no limits that have logarithms
    xlim = table["sigma"].min() / 2, table["sigma"].max() * 2
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="noise scale", xlim=xlim)
        axis.spines[["top", "right"]].set_visible(False)
    low, high = np.log(left.get_ylim())
    share = ROW * (len(lines) + 2)
    left.set_ylim(np.exp(low - (high - low) * share / (1 - share)))  # room for the crosses below all else
    for set_formatter in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
        set_formatter("{x:g}")
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    plots.save(figure, stem)


def dots(axis: Any, rows: pd.DataFrame, in_time: pd.Series, column: str, colour: Any) -> None:
    """Each row, hollow where the run was stopped."""
    for filled in (True, False):
        shown = rows[in_time.loc[rows.index] == filled]
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
