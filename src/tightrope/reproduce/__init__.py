"""The figures and tables of the paper, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from tightrope.checks import one_of
from tightrope.reproduce import acceptance, density, efficiency
from tightrope.reproduce.request import DEFAULT, PAPER, QUICK, Length, Request

__all__ = ["DEFAULT", "PAPER", "QUICK", "TARGETS", "Length", "Request", "description", "reproduce"]

TARGETS: dict[str, Callable[[Request], None]] = {
    "figure-1": density.figure_1,
    "figure-2": acceptance.figure_2,
    "figure-3": density.figure_3,
    "figure-4": efficiency.figure_4,
    "figure-5": efficiency.figure_5,
    "figure-6": efficiency.figure_6,
    "figure-7": efficiency.figure_7,
    "figure-8": efficiency.figure_8,
    "table-1": efficiency.table_1,
    "figure-a1": acceptance.figure_a1,
}


def description(target: str) -> str:
    """What a target shows."""
    return inspect.getdoc(TARGETS[target]) or ""


def reproduce(request: Request) -> None:
    """Make a figure or table: run what it needs into the folder, then draw from the files there."""
    one_of("target", request.target, TARGETS)
    request.out.mkdir(parents=True, exist_ok=True)
    TARGETS[request.target](request)
