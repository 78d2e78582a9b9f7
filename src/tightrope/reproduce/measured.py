"""Effective draws per second on the posteriors of measured data."""

from __future__ import annotations

import numpy as np

from tightrope.cells import Cell
from tightrope.kinds import Method
from tightrope.methods import LiftedNUTS
from tightrope.reproduce import pictures
from tightrope.reproduce.families import Rates, agree, compared, rates_in, run, sets, told
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
    found = rates_in(table, "model")
    entry = lambda line, model: told(found.median.at[line, model], found.is_late.at[line, model])
    head = ["posterior", "d", "m", *(name for line in IN_TABLE for name in (line, "paper")), OURS]
    rows = [head, ["---"] * len(head)]
    for model, printed in PRINTED.items():
        sizes = [f"{size:.0f}" for size in table.loc[table["model"] == model, ["d", "m"]].max()]
        pairs = zip(IN_TABLE, printed, strict=True)
        values = [text for line, value in pairs for text in (entry(line, model), f"{value:g}")]
        rows.append([model, *sizes, *values, entry(OURS, model)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    request.file(".md").write_text("\n".join([f"Min bulk ESS per second, by `{request.command}`.", "", *lines, ""]))
    for line in lines:
        request.say(line)
    pictures.posteriors(found.median.T[list(METHODS)], PRINTED, list(IN_TABLE), request.file(""))
    request.left(".csv", ".md", ".png", ".svg")
    models = list(PRINTED)
    return [beats(found, "HMC, diagonal", models), beats(found, "HMC, dense", models[1:]), exception(found)]


def beats(found: Rates, other: str, models: list[str]) -> Claim:
    """That the lifted sampler by Newton is faster than another method."""
    ratios = {model: ratio(found, "lifted, Newton", other, model) for model in models}
    where = "on every measured posterior" if len(models) == len(PRINTED) else "on every one but Lotka and Volterra's"
    told = "times as fast: " + ", ".join(f"{model} {told_ratio(value)}" for model, value in ratios.items())
    text = f"The lifted sampler by Newton beats {other}, {where}."
    return Claim(text, agree(list(ratios.values()), lambda value: value > 1), told)


def ratio(found: Rates, line: str, other: str, model: str) -> float:
    """How many times as fast a line is as another: 0 if it does not converge, NaN where one had no time to."""
    ours, theirs = found.median[model].fillna(0.0)[[line, other]]
    if found.is_late[model][[line, other]].any():
        return np.nan
    return float(ours / theirs) if theirs else np.inf * ours if ours else 0.0


def told_ratio(value: float) -> str:
    words = {0.0: "not converged", np.inf: "without bound, the other not converged"}
    return "unknown" if np.isnan(value) else words.get(value, f"{value:.2g}")


def exception(found: Rates) -> Claim:
    """That dense HMC is faster where the posterior is near Gaussian."""
    model, lines = "lotka-volterra", ("HMC, dense", "lifted, Newton", OURS)
    at, late = found.median[model], found.is_late[model]
    theirs, newton, ours = (told(at[line], late[line]) for line in lines)
    text = (
        "On Lotka and Volterra's, which is near Gaussian, HMC with a dense metric beats the lifted sampler by Newton."
    )
    is_so = agree([ratio(found, *lines[:2], model)], lambda value: value > 1)
    return Claim(text, is_so, f"{theirs} against {newton}, and {ours} as Tightrope comes")
