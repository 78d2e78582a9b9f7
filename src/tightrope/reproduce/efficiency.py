"""Effective draws per second of the paper's methods on its posteriors, as the noise vanishes and on measured data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tightrope.cells import Cell
from tightrope.kinds import Method
from tightrope.methods import NUTS, LiftedNUTS, RiemannianNUTS
from tightrope.reproduce import pictures
from tightrope.reproduce.request import Length, Request
from tightrope.sweep import sweep

TARGET_ACCEPT = 0.9


def lifted(solver: str, **options: Any) -> Method:
    # The tolerance is in units of the noise, the paper's in those of the data: stricter wherever sigma is below 1.
    return LiftedNUTS(solver=solver, target_accept=TARGET_ACCEPT, max_iterations=50, **options)


def compared(**options: Any) -> dict[str, Method]:
    """The methods of every figure; with the paper's solvers go the exact forces of the paper."""
    flat = {"target_accept": TARGET_ACCEPT, **options}
    return {
        "lifted, Newton": lifted("newton", force="exact", **options),
        "lifted, symmetric": lifted("symmetric", force="exact", **options),
        "lifted, Broyden": lifted("broyden", **options),
        "HMC, diagonal": NUTS(metric="diagonal", **flat),
        "HMC, dense": NUTS(metric="dense", **flat),
    }


def riemannian(**options: Any) -> dict[str, Method]:
    """Both metrics by the paper's fixed-point iteration, and by Newton's."""
    flat = {"target_accept": TARGET_ACCEPT, **options}
    return {
        f"RM-HMC, {name}{how}": RiemannianNUTS(metric=metric, solver=solver, **flat)
        for name, metric in {"Fisher": "fisher", "SoftAbs": "softabs"}.items()
        for how, solver in {"": "fixed-point", ", Newton": "newton"}.items()
    }


class Family(NamedTuple):
    """A posterior for a range of noise scales, and the methods to compare there."""

    model: str
    sigmas: tuple[float, ...]
    methods: Mapping[str, Method] = compared()


FAMILIES = {
    "figure-4": Family(
        "toy", (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0), {**compared(max_depth=15), **riemannian(max_depth=15)}
    ),
    "figure-5": Family("nonlinear-ssm", (1e-3, 1e-2, 1e-1, 1.0, 10.0)),
    "figure-6": Family("fitzhugh-nagumo", (1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2, 10**-1.5, 1e-1, 10**-0.5, 1.0)),
    "figure-7": Family("hodgkin-huxley", (1e-2, 10**-1.5, 1e-1, 1.0)),
    "figure-8": Family("poisson", (1e-3, 1e-2, 1e-1, 1.0)),
}

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


def figure_4(request: Request) -> None:
    """Effective draws per second and R-hat on the toy, all methods, as its noise vanishes."""
    against_noise(request)


def figure_5(request: Request) -> None:
    """The same for the nonlinear state space model."""
    against_noise(request)


def figure_6(request: Request) -> None:
    """The same for FitzHugh and Nagumo's neuron."""
    against_noise(request)


def figure_7(request: Request) -> None:
    """The same for Hodgkin and Huxley's neuron."""
    against_noise(request)


def figure_8(request: Request) -> None:
    """The same for the conductivity of a disc."""
    against_noise(request)


def against_noise(request: Request) -> None:
    """Run a family, then draw and tell what the file holds."""
    family = FAMILIES[request.target]
    cells = [
        cell
        for sigma in spread(family.sigmas, request.length)
        for line, method in family.methods.items()
        for cell in sets(request, line, model=family.model, options={"sigma": float(sigma)}, method=method)
    ]
    table = run(request, cells)
    found = medians(table, ["line", "sigma"]).unstack("sigma")
    for line in table["line"].unique():
        values = " ".join(f"{sigma:.0e}: {told(value)}" for sigma, value in found.loc[line].items())
        request.say(f"{line:28} ESS/s at sigma  {values}")
    pictures.efficiency(table, found, request.file(""))
    request.left(".csv", ".png", ".svg")


def table_1(request: Request) -> None:
    """Effective draws per second on the five measured posteriors, beside the paper's."""
    methods = {**IN_TABLE, OURS: LiftedNUTS()}
    cells = [
        cell
        for model in PRINTED
        for line, method in methods.items()
        for cell in sets(request, line, model=model, method=method)
    ]
    table = run(request, cells)
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
    pictures.posteriors(found.unstack("line")[list(methods)], PRINTED, list(IN_TABLE), request.file(""))
    request.left(".csv", ".md", ".png", ".svg")


def spread(values: tuple[float, ...], length: Length) -> list[float]:
    """So many of the values, the ends among them."""
    number = length.num_sigmas or len(values)
    return [values[place] for place in np.linspace(0, len(values) - 1, number).round().astype(int)]


def sets(request: Request, line: str, **options: Any) -> list[Cell]:
    """The cells of one dot: sets of chains from several seeds, and from other starts where they are asked for."""
    length = request.length
    return [
        Cell(
            **options,
            init=init,
            chains=length.chains,
            warmup=length.warmup,
            draws=length.draws,
            seed=seed,
            max_time=length.max_time,
            labels={"line": line if init == "auto" else f"{line}, from the {init}", "command": request.command},
        )
        for init in length.inits
        for seed in range(1, length.num_sets + 1)
    ]


def run(request: Request, cells: list[Cell]) -> pd.DataFrame:
    """All cells, as the file has them that is left of them; those that did not converge have no ESS."""
    table = sweep(
        cells, request.file("-cells"), engine=request.engine, workers=request.workers, scheduler=request.scheduler
    )
    table = table.reindex(columns=[*dict.fromkeys([*table.columns, "r_hat", "ess_per_second", "d", "m"])])
    table.assign(is_converged=table["r_hat"] <= pictures.MAX_R_HAT).to_csv(request.file(".csv"), index=False)
    return pd.read_csv(request.file(".csv"))


def medians(table: pd.DataFrame, by: list[str]) -> pd.Series:
    """Median ESS per second over sets of chains, of which one that did not converge has none; NaN for none."""
    values = table["ess_per_second"].where(table["is_converged"], 0.0)
    return values.groupby([table[name] for name in by]).median().replace(0.0, np.nan)


def told(value: float) -> str:
    return "not converged" if np.isnan(value) else f"{value:.3g}"
