"""Draws of two parameters at a time: ridges, and who walks them to the end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr
from scipy.stats import skew

from tightrope.cells import Cell
from tightrope.diagnostics import scalars
from tightrope.reproduce import pictures
from tightrope.reproduce.families import family_cells, kept_draws
from tightrope.reproduce.measured import OURS, PRINTED, measured_cells
from tightrope.reproduce.request import Claim, Request

Draws = dict[str, np.ndarray]  # by name: those of all chains, one after the other

RIDGE = ("x0[1]", "gamma", "delta", "zeta")  # known only together
SIGMAS = (0.01, 0.1)
LINES = OURS_BELOW, THEIRS_ABOVE = "lifted, Newton", "HMC, dense"
COVERED = 0.9  # of a ridge: with less, a tail is missed
CROOKED = 0.5  # skewness of what is no Gaussian


def figure_c5(request: Request) -> list[Claim]:
    """FitzHugh and Nagumo's ridge at two noise scales: HMC with a dense metric drawn over the lifted sampler."""
    found: dict[float, dict[str, Draws]] = {sigma: {} for sigma in SIGMAS}
    for sigma in SIGMAS:
        for line in LINES:
            draws = joined(kept_draws(request, family_cells(request, "figure-6", line, sigma)))
            if draws:
                found[sigma][line] = {name: draws[name] for name in RIDGE}
    pictures.pair_plots({f"noise {sigma:g}": lines for sigma, lines in found.items()}, request.file(""))
    request.left(".png", ".svg")
    return [misses_tails(found)]


def ridge_cells(request: Request) -> list[Cell]:
    """The cells of figure C5, some of which figure 6 has as well."""
    return [cell for sigma in SIGMAS for line in LINES for cell in family_cells(request, "figure-6", line, sigma)]


def misses_tails(found: dict[float, dict[str, Draws]]) -> Claim:
    text = "HMC with a dense metric misses the tails of the ridge."
    if any(len(lines) < 2 for lines in found.values()):
        return Claim(text, None, "there was no time for draws of both samplers")
    shares = {
        sigma: reach(lines[THEIRS_ABOVE]["gamma"]) / reach(lines[OURS_BELOW]["gamma"]) for sigma, lines in found.items()
    }
    told = ", ".join(f"{share:.2f} at noise {sigma:g}" for sigma, share in shares.items())
    return Claim(text, all(share < COVERED for share in shares.values()), f"share of the range of log gamma {told}")


def reach(values: np.ndarray) -> float:
    """The range of the logarithm of a positive parameter: its middle 99 %."""
    low, high = np.quantile(np.log(values), (0.005, 0.995))
    return float(high - low)


def joined(runs: list[xr.Dataset]) -> Draws:
    """The draws of several runs by name; none if there are no runs."""
    found = [scalars(run) for run in runs]
    return {name: np.concatenate([run[name].ravel() for run in found]) for name in found[0]} if found else {}


def measured_pairs(model: str, group: str, space: str) -> Callable[[Request], list[Claim]]:
    """The figure of a measured posterior in one of its spaces."""

    def figure(request: Request) -> list[Claim]:
        runs = kept_draws(request, measured_cells(request, model, OURS), group)
        draws = joined(runs)
        pictures.pair_plots({"": {OURS: draws} if draws else {}}, request.file(""))
        request.left(".png", ".svg")
        return [is_gaussian(model, draws)] if group == "unconstrained_posterior" else []

    figure.__doc__ = f"Draws of {model}, pair by pair, in {space} space."
    return figure


def is_gaussian(model: str, draws: Draws) -> Claim:
    """Whether the posterior is near a Gaussian, which the paper says of one of the five."""
    expected = model == "lotka-volterra"
    text = f"In its unconstrained space {model} is {'near a' if expected else 'unlike any'} Gaussian."
    if not draws:
        return Claim(text, None, "there was no time for draws")
    most = skewness(np.stack(list(draws.values())))
    return Claim(text, bool((most < CROOKED) == expected), f"largest skewness of a principal component {most:.2f}")


def skewness(values: np.ndarray) -> float:
    """The largest of any principal component; the first axis is that of the coordinates."""
    _, axes = np.linalg.eigh(np.cov(values))
    return float(np.abs(skew(axes.T @ values, axis=1)).max())


SPACES = {"posterior": "parameter", "unconstrained_posterior": "unconstrained"}
ORDER = ("lotka-volterra", "soil-ak-t25", "soil-hn-t35", "squid-potassium", "squid-sodium")  # as in the paper
MEASURED = {
    f"figure-g{2 * place + second + 1}": measured_pairs(model, group, space)
    for place, model in enumerate(ORDER)
    for second, (group, space) in enumerate(SPACES.items())
}
assert set(ORDER) == set(PRINTED)
