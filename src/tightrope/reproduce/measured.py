"""Effective draws per second on the posteriors of measured data."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tightrope.cells import Cell
from tightrope.kinds import Method
from tightrope.methods import LiftedNUTS
from tightrope.reproduce import pictures
from tightrope.reproduce.families import compared, medians, run, sets, told
from tightrope.reproduce.request import Claim, Request

# ESS per second as printed in the paper: lifted by Newton, HMC with a diagonal and with a dense metric.
PRINTED = {
    "lotka-volterra": (35.0, 15.0, 300.0),
    "soil-hn-t35": (6.6, 2.1, 3.4),
    "soil-ak-t25": (17.0, 4.4, 2.8),
    "squid-potassium": (52.0, 23.0, 29.0),
    "squid-sodium": (3.9, 1.6, 3.0),
}
IN_TABLE = {name: compared()[name] for name in ("lifted, Newton", "HMC, diagonal", "HMC, dense")}
OURS = "lifted, as it comes"
METHODS: dict[str, Method] = {**IN_TABLE, OURS: LiftedNUTS()}


def measured_cells(request: Request, model: str, line: str) -> list[Cell]:
    """The cells of one entry of the table."""
    return sets(request, line, model=model, method=METHODS[line])


def table_cells(request: Request) -> list[Cell]:
    """The cells of the table."""
    return [cell for model in PRINTED for line in METHODS for cell in measured_cells(request, model, line)]


def table_1(request: Request) -> list[Claim]:
    """Effective draws per second on the five measured posteriors, beside the paper's."""
    table = run(request, table_cells(request), keep_draws=True)
    found = medians(table, ["model", "line"])
    head = ["posterior", "d", "m", *(name for line in IN_TABLE for name in (line, "paper")), OURS]
    rows = [head, ["---"] * len(head)]
    for model, printed in PRINTED.items():
        sizes = [f"{size:.0f}" for size in table.loc[table["model"] == model, ["d", "m"]].max()]
        pairs = zip(IN_TABLE, printed, strict=True)
        values = [text for line, value in pairs for text in (told(found[model, line]), f"{value:g}")]
        rows.append([model, *sizes, *values, told(found[model, OURS])])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    request.file(".md").write_text("\n".join([f"Min bulk ESS per second, by `{request.command}`.", "", *lines, ""]))
    for line in lines:
        request.say(line)
    pictures.posteriors(found.unstack("line")[list(METHODS)], PRINTED, list(IN_TABLE), request.file(""))
    request.left(".csv", ".md", ".png", ".svg")
    rates, models = found.unstack("line").fillna(0.0), list(PRINTED)
    return [beats(rates, "HMC, diagonal", models), beats(rates, "HMC, dense", models[1:]), exception(rates)]


def beats(rates: pd.DataFrame, other: str, models: list[str]) -> Claim:
    """That the lifted sampler by Newton is faster than another method."""
    ours, theirs = rates.loc[models, "lifted, Newton"], rates.loc[models, other]
    where = "on every measured posterior" if len(models) == len(PRINTED) else "on every one but Lotka and Volterra's"
    found = "times as fast: " + ", ".join(f"{model} {told_ratio(ours[model], theirs[model])}" for model in models)
    return Claim(f"The lifted sampler by Newton beats {other}, {where}.", bool((ours > theirs).all()), found)


def told_ratio(ours: float, theirs: float) -> str:
    """How many times as fast, where both converge at all."""
    if not ours:
        return "not converged"
    return f"{ours / theirs:.2g}" if theirs else "without bound, the other not converged"


def exception(rates: pd.DataFrame) -> Claim:
    """That dense HMC is faster where the posterior is near Gaussian."""
    at = rates.loc["lotka-volterra"]
    theirs, newton, ours = (told(at[line] or np.nan) for line in ("HMC, dense", "lifted, Newton", OURS))
    found = f"{theirs} against {newton}, and {ours} as Tightrope comes"
    text = (
        "On Lotka and Volterra's, which is near Gaussian, HMC with a dense metric beats the lifted sampler by Newton."
    )
    return Claim(text, bool(at["HMC, dense"] > at["lifted, Newton"]), found)
