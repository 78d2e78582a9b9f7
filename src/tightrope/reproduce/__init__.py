"""The figures and tables of the paper, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tightrope.checks import one_of
from tightrope.reproduce import acceptance

Say = Callable[[str], None]

TARGETS: dict[str, Callable[[Path, bool, Say], None]] = {
    "figure-2": acceptance.figure_2,
    "figure-a1": acceptance.figure_a1,
}


def reproduce(target: str, out: Path, quick: bool, say: Say) -> None:
    """Make a figure or table: run what it needs into the folder, then draw from the files there."""
    one_of("target", target, TARGETS)
    out.mkdir(parents=True, exist_ok=True)
    TARGETS[target](out, quick, say)
