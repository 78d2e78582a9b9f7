"""Chains that stick: HMC where its steps are too large for the narrow end of a ridge."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from tightrope.cells import Cell
from tightrope.diagnostics import scalars
from tightrope.reproduce import pictures
from tightrope.reproduce.families import family_cells, kept_draws
from tightrope.reproduce.pairs import RIDGE
from tightrope.reproduce.request import Claim, Request

SIGMA = 10**-1.5
STUCK = 50  # rejections in a row


def figure_c6(request: Request) -> list[Claim]:
    """Traces of the chain of HMC with a dense metric that sticks longest on FitzHugh and Nagumo's ridge."""
    runs = kept_draws(request, searched_cells(request))
    found = pd.DataFrame(
        [
            {"run": run, "chain": chain, "stuck": stuck}
            for run, data in enumerate(runs)
            for chain, stuck in enumerate(longest(data))
        ],
        columns=["run", "chain", "stuck"],
    )
    found.to_csv(request.file(".csv"), index=False)
    text = f"Chains of HMC with a dense metric stick for {STUCK} draws and more."
    if found.empty:
        return [Claim(text, None, "there was no time for draws")]
    worst = found.loc[found["stuck"].idxmax()]
    draws = scalars(runs[worst["run"]].isel(chain=[worst["chain"]]))
    pictures.traces({name: draws[name][0] for name in RIDGE}, request.file(""))
    request.left(".csv", ".png", ".svg")
    told = f"at most {worst['stuck']} rejections in a row in {len(found)} chains from {len(runs)} seeds"
    return [Claim(text, bool(worst["stuck"] >= STUCK), told)]


def searched_cells(request: Request) -> list[Cell]:
    """More seeds than figure 6 has."""
    length = request.length
    longer = length._replace(num_sets=length.num_searched * length.num_sets, inits=("auto",))
    return family_cells(request._replace(length=longer), "figure-6", "HMC, dense", SIGMA)


def longest(draws: xr.Dataset) -> list[int]:
    """Of each chain, the most rejections in a row."""
    return [most_in_a_row(chain[1:] == chain[:-1]) for chain in draws["gamma"].values]


def most_in_a_row(is_same: np.ndarray) -> int:
    """The length of the longest run of True."""
    ends = np.flatnonzero(np.concatenate([[True], ~is_same, [True]]))
    return int(np.diff(ends).max() - 1)
