"""The runs behind the figures: posteriors over a range of noise scales, the methods compared, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from tightrope.cells import UNFINISHED, Cell
from tightrope.diagnostics import MAX_R_HAT_OF_ESS
from tightrope.kinds import Method
from tightrope.methods import NUTS, LiftedNUTS, RiemannianNUTS
from tightrope.reproduce.request import CELLS, Length, Request
from tightrope.sweep import sweep

TARGET_ACCEPT = 0.9


def lifted(solver: str, **options: Any) -> Method:
    # The tolerance is in units of the noise, the paper's in those of the data: stricter wherever sigma is below 1.
    return LiftedNUTS(solver=solver, target_accept=TARGET_ACCEPT, max_iterations=50, **options)


def compared(**options: Any) -> dict[str, Method]:
    """The methods of every figure; with the paper's solvers go its exact forces, and moves solved for at once."""
    flat = {"target_accept": TARGET_ACCEPT, **options}
    return {
        "lifted, Newton": lifted("newton", force="exact", metric="identity", max_halvings=0, **options),
        "lifted, symmetric": lifted("symmetric", force="exact", metric="identity", max_halvings=0, **options),
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


LIFTED = ("lifted, Newton", "lifted, symmetric", "lifted, Broyden")
HMC = ("HMC, diagonal", "HMC, dense")
RIEMANNIAN = ("RM-HMC, Fisher", "RM-HMC, SoftAbs")


class Family(NamedTuple):
    """A posterior for a range of noise scales, and the methods to compare there."""

    model: str
    sigmas: tuple[float, ...]
    methods: Mapping[str, Method] = compared()
    keeps_draws: bool = False  # where a figure of the supplement shows them


FAMILIES = {
    "figure-4": Family(
        "toy", (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0), {**compared(max_depth=15), **riemannian(max_depth=15)}
    ),
    "figure-5": Family("nonlinear-ssm", (1e-3, 1e-2, 1e-1, 1.0, 10.0)),
    "figure-6": Family(
        "fitzhugh-nagumo",
        (1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2, 10**-1.5, 1e-1, 10**-0.5, 1.0),
        keeps_draws=True,
    ),
    "figure-7": Family("hodgkin-huxley", (1e-2, 10**-1.5, 1e-1, 1.0)),
    "figure-8": Family("poisson", (1e-3, 1e-2, 1e-1, 1.0)),
}


def family_table(request: Request, name: str) -> pd.DataFrame:
    """What came of a family's runs, whichever figure they were first made for."""
    return run(request._replace(target=name), cells_of(request, name), FAMILIES[name].keeps_draws)


def cells_of(request: Request, name: str) -> list[Cell]:
    """The cells of a figure."""
    family = FAMILIES[name]
    return [
        cell
        for sigma in spread(family.sigmas, request.length)
        for line in family.methods
        for cell in family_cells(request, name, line, sigma)
    ]


def family_cells(request: Request, name: str, line: str, sigma: float) -> list[Cell]:
    """The cells of one dot of a figure."""
    family = FAMILIES[name]
    options = {"sigma": float(sigma)}
    return sets(request._replace(target=name), line, model=family.model, options=options, method=family.methods[line])


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


def run(request: Request, cells: list[Cell], keep_draws: bool = False) -> pd.DataFrame:
    """All cells, as the file has them that is left of them; those that did not converge have no ESS."""
    table = swept(request, cells, keep_draws)
    table = table.reindex(columns=[*dict.fromkeys([*table.columns, "r_hat", "ess_per_second", "step_size", "d", "m"])])
    table.assign(is_converged=table["r_hat"] <= MAX_R_HAT_OF_ESS).to_csv(request.file(".csv"), index=False)
    return pd.read_csv(request.file(".csv"))


def swept(request: Request, cells: list[Cell], keep_draws: bool) -> pd.DataFrame:
    """All cells, each once, in a folder that targets share."""
    return sweep(
        cells,
        request.out / CELLS,
        engine=request.engine,
        workers=request.workers,
        scheduler=request.scheduler,
        keep_draws=keep_draws,
    )


def kept_draws(request: Request, cells: list[Cell], group: str = "posterior") -> list[xr.Dataset]:
    """A group of the draws of each cell; a cell that had no time for any is left out."""
    files = [Path(file).with_suffix(".nc") for file in swept(request, cells, keep_draws=True)["file"]]
    return [xr.load_dataset(file, group=group, engine="h5netcdf") for file in files if file.exists()]


def medians(table: pd.DataFrame, by: list[str]) -> pd.Series:
    """Median ESS per second over sets of chains, of which one that did not converge has none; NaN for none."""
    values = table["ess_per_second"].where(table["is_converged"], 0.0)
    return values.groupby([table[name] for name in by]).median().replace(0.0, np.nan)


class Rates(NamedTuple):
    """ESS per second of each line, in columns by what it was run on."""

    median: pd.DataFrame  # NaN where no run converged
    is_late: pd.DataFrame  # whether that may be because time was up
    is_seen: pd.DataFrame  # whether there are draws at all


def rates_in(table: pd.DataFrame, column: str) -> Rates:
    """Medians over the runs of each line at each noise scale, or on each model."""
    by = ["line", column]
    any_of = lambda values: values.groupby([table[name] for name in by]).any().unstack(column)
    median = medians(table, by).unstack(column)
    return Rates(median, median.isna() & any_of(table["status"] == UNFINISHED), any_of(table["r_hat"].notna()))


def told(value: float, is_late: bool = False) -> str:
    missing = "out of time" if is_late else "not converged"
    return missing if np.isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def agree(values: Sequence[float], is_so: Callable[[float], bool]) -> bool | None:
    """Whether something is so of all values; None if some are not known, and it is so of the others."""
    known = [value for value in values if not np.isnan(value)]
    if not all(map(is_so, known)):
        return False
    return True if len(known) == len(values) else None
