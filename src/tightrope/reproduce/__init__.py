"""The figures and tables of the paper, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from tightrope.checks import one_of
from tightrope.reproduce import (
    acceptance,
    curvature,
    density,
    efficiency,
    fields,
    measured,
    pairs,
    step_sizes,
    sticking,
)
from tightrope.reproduce.families import FAMILIES, cells_of, swept
from tightrope.reproduce.page import note, write_index
from tightrope.reproduce.request import DEFAULT, PAPER, QUICK, Claim, Length, Request
from tightrope.types import SamplingError

__all__ = ["ALL", "DEFAULT", "PAPER", "QUICK", "TARGETS", "Claim", "Length", "Request", "description", "reproduce"]

ALL = "all"
TARGETS: dict[str, Callable[[Request], Sequence[Claim]]] = {
    "figure-1": density.figure_1,
    "figure-2": acceptance.figure_2,
    "figure-3": density.figure_3,
    "figure-4": efficiency.figure_4,
    "figure-5": efficiency.figure_5,
    "figure-6": efficiency.figure_6,
    "figure-7": efficiency.figure_7,
    "figure-8": efficiency.figure_8,
    "table-1": measured.table_1,
    "figure-a1": acceptance.figure_a1,
    "figure-c1": step_sizes.figure_c1,
    "figure-c2": step_sizes.figure_c2,
    "figure-c3": curvature.figure_c3,
    "figure-c4": fields.figure_c4,
    "figure-c5": pairs.figure_c5,
    "figure-c6": sticking.figure_c6,
    **pairs.MEASURED,
}


def description(target: str) -> str:
    """What a target shows."""
    return inspect.getdoc(TARGETS[target]) or ""


def reproduce(request: Request) -> None:
    """Make a figure or table, or all: run what it needs into the folder, draw from the files there, write the page."""
    one_of("target", request.target, (*TARGETS, ALL))
    request.out.mkdir(parents=True, exist_ok=True)
    failed = []
    if request.target == ALL:
        try:
            run_all(request)
        except Exception as error:
            request.say(f"{type(error).__name__}: {error}")  # some targets need no runs, or have theirs
    for target in TARGETS if request.target == ALL else [request.target]:
        try:
            make(request._replace(target=target))
        except Exception as error:
            if request.target != ALL:
                raise
            failed.append(target)  # an hour's work is not lost for one of thirty
            request.say(f"{target}: {type(error).__name__}: {error}")
    request.say(f"Left {write_index(request.out, list(TARGETS))}")
    if failed:
        raise SamplingError(f"not made: {', '.join(failed)}. What was kept is not run again by the same command.")


def run_all(request: Request) -> None:
    """The runs of all targets, in two sweeps, so that no core waits for the last run of every figure."""
    names = [name for name in FAMILIES if not FAMILIES[name].keeps_draws]
    swept(request, [cell for name in names for cell in cells_of(request, name)], keep_draws=False)
    shown = [cell for name in FAMILIES if FAMILIES[name].keeps_draws for cell in cells_of(request, name)]
    shown += pairs.ridge_cells(request) + sticking.searched_cells(request) + measured.table_cells(request)
    swept(request, shown, keep_draws=True)


def make(request: Request) -> None:
    """One target, and a record of what it has come to."""
    claims = TARGETS[request.target](request)
    for claim in claims:
        word = {True: "borne out", False: "not borne out", None: "not told"}[claim.is_borne_out]
        request.say(f"{request.target}: {claim.text} {word.capitalize()}: {claim.found}.")
    note(request, description(request.target), claims)
