"""Pictures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from tightrope.diagnostics import scalars, summary

MAX_ROWS = 12  # scalars shown; the rest is in the trace
COLOURS = ("#1b6ca8", "#d1603d", "#3a7d44", "#7b5ea7")


def overview(trace: xr.DataTree, path: Path) -> None:
    """Marginals and traces, one row a scalar."""
    shown = dict(list(scalars(trace.children["posterior"].to_dataset()).items())[:MAX_ROWS])
    figure, axes = plt.subplots(
        len(shown), 2, figsize=(10, 1.25 * len(shown) + 0.8), width_ratios=(1, 2), squeeze=False
    )
    for (label, values), (left, right) in zip(shown.items(), axes, strict=True):
        bins = np.histogram_bin_edges(values, 40)
        for chain, draws in enumerate(values):
            colour = COLOURS[chain % len(COLOURS)]
            left.hist(draws, bins, histtype="step", color=colour, density=True)
            right.plot(draws, color=colour, linewidth=0.4)
        left.set_yticks([])
        left.set_ylabel(label, rotation=0, ha="right", va="center")
        right.margins(x=0)
        for axis in (left, right):
            axis.tick_params(labelsize=7)
            axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:-1, 1]:
        axis.set_xticklabels([])
    axes[-1, 1].set_xlabel("draw")
    attributes, table = trace["posterior"].attrs, summary(trace)
    figure.suptitle(
        f"{attributes['model']} by {attributes['method']}: min bulk ESS {table['ess_bulk'].min():.0f}, "
        f"max R-hat {table['r_hat'].max():.3f}",
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def cell_edges(values: np.ndarray) -> np.ndarray:
    """Where the cells around equally spaced logarithms end."""
    half = np.sqrt(values[1] / values[0])
    return np.append(values / half, values[-1] * half)


def heat_maps(acceptance: xr.DataArray, stem: Path) -> None:
    """Mean acceptance over noise scale and step size, one map a method."""
    names = acceptance["method"].values
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(3.4 * columns, 3.1 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        shown = acceptance.sel({"method": name}).transpose("step_size", "sigma")
        edges = [cell_edges(shown[name].values) for name in ("sigma", "step_size")]
        mesh = axis.pcolormesh(*edges, shown, vmin=0, vmax=1, cmap="viridis")
        axis.set(xscale="log", yscale="log", title=name)
    for axis in axes[-1]:
        axis.set_xlabel("noise scale")
    for axis in axes[:, 0]:
        axis.set_ylabel("step size")
    figure.colorbar(mesh, ax=axes, label="mean acceptance", shrink=0.8)
    save(figure, stem)


def save(figure: Any, stem: Path) -> None:
    """A figure as PNG and as SVG."""
    for suffix in ("png", "svg"):
        figure.savefig(stem.with_name(f"{stem.name}.{suffix}"), dpi=120)
    plt.close(figure)
