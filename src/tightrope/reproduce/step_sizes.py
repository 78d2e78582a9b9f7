"""Adapted step sizes: those of the lifted sampler do not shrink with the noise."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tightrope.reproduce import pictures
from tightrope.reproduce.families import FAMILIES, HMC, LIFTED, RIEMANNIAN, agree, family_table
from tightrope.reproduce.request import Claim, Request

MAX_SLOPE, MIN_SLOPE = 0.2, 0.5  # of log step size over log noise: next to none, and one that shrinks


def figure_c1(request: Request) -> list[Claim]:
    """Adapted step sizes against the noise, for the four simulated posteriors of figures 5 to 8."""
    tables = {name: family_table(request, name) for name in ("figure-5", "figure-6", "figure-7", "figure-8")}
    pd.concat(tables.values()).to_csv(request.file(".csv"), index=False)
    pictures.step_sizes({FAMILIES[name].model: table for name, table in tables.items()}, request.file(""))
    request.left(".csv", ".png", ".svg")
    slopes = {FAMILIES[name].model: step_slopes(table) for name, table in tables.items()}
    return [
        Claim(
            "The lifted sampler's steps do not shrink with the noise.",
            agree([slope[line] for slope in slopes.values() for line in LIFTED[:2]], lambda slope: slope < MAX_SLOPE),
            told_slopes({f"{model} {line}": slope[line] for model, slope in slopes.items() for line in LIFTED[:2]}),
        ),
        Claim(
            "On the conductivity of a disc the steps of HMC shrink in proportion to the noise.",
            agree([slopes["poisson"][line] for line in HMC], lambda slope: slope > MIN_SLOPE),
            told_slopes({line: slopes["poisson"][line] for line in HMC}),
        ),
    ]


def figure_c2(request: Request) -> list[Claim]:
    """R-hat and adapted step sizes on the toy, all methods, as its noise vanishes."""
    table = family_table(request, "figure-4")
    table.to_csv(request.file(".csv"), index=False)
    pictures.convergence(table, request.file(""))
    request.left(".csv", ".png", ".svg")
    slopes = step_slopes(table)
    thin = table[table["sigma"] < table["sigma"].max()]
    agreeing = {line: int((thin.loc[thin["line"] == line, "r_hat"] <= 1.01).sum()) for line in RIEMANNIAN}
    return [
        Claim(
            "The lifted sampler's steps do not shrink with the noise.",
            agree([slopes[line] for line in LIFTED[:2]], lambda slope: slope < MAX_SLOPE),
            told_slopes({line: slopes[line] for line in LIFTED[:2]}),
        ),
        Claim(
            "The steps of HMC and of Riemannian HMC do.",
            agree([slopes[line] for line in HMC + RIEMANNIAN], lambda slope: slope > MIN_SLOPE),
            told_slopes({line: slopes[line] for line in HMC + RIEMANNIAN}),
        ),
        Claim(
            "Riemannian HMC does not converge but at the largest noise.",
            not any(agreeing.values()),
            "runs with R-hat up to 1.01 below it: " + ", ".join(f"{line} {n}" for line, n in agreeing.items()),
        ),
    ]


def step_slopes(table: pd.DataFrame) -> pd.Series:
    """How the step size goes with the noise for each line, both as logarithms, below the largest noise scales."""
    thin = table[(table["sigma"] <= 0.1) & table["step_size"].notna()]

    def slope(rows: pd.DataFrame) -> float:
        few = rows["sigma"].nunique() < 2
        return np.nan if few else float(np.polyfit(np.log(rows["sigma"]), np.log(rows["step_size"]), 1)[0])

    found = {line: slope(rows) for line, rows in thin.groupby("line")}
    return pd.Series(found).reindex(table["line"].unique())


def told_slopes(slopes: dict[str, float]) -> str:
    words = {name: "unknown" if np.isnan(slope) else f"{slope:.2f}" for name, slope in slopes.items()}
    return "slopes " + ", ".join(f"{name} {word}" for name, word in words.items())
