"""What is asked of a target: how long its runs are, where they run, and where they and the picture go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CELLS = "cells"  # a folder of all runs
Say = Callable[[str], None]


class Length(NamedTuple):
    """How much is run."""

    flag: str  # that asks for it on the command line
    chains: int
    warmup: int
    draws: int
    num_sets: int  # of chains, from the seeds 1, 2, ...
    max_time: float  # seconds of a run, with all that goes before it
    num_sigmas: int | None = None  # noise scales, spread over all; None is all of them
    inits: tuple[str, ...] = ("auto",)  # ways to start
    num_searched: int = 4  # sets of chains among which one that sticks is looked for, for each that other figures have


QUICK = Length("--quick", 4, 200, 300, 1, 60.0, 3, num_searched=2)
DEFAULT = Length("", 4, 500, 1000, 1, 600.0)
PAPER = Length("--paper", 4, 1000, 2500, 3, 3600.0, None, ("auto", "prior"))


class Claim(NamedTuple):
    """Something that the paper says, and what our runs have to say about it."""

    text: str
    is_borne_out: bool | None  # None where the runs do not tell
    found: str  # the figures that it was judged by


class Request(NamedTuple):
    """A target, as it was asked for."""

    target: str
    out: Path
    say: Say
    length: Length = DEFAULT
    engine: str = "local"
    workers: int | None = None
    scheduler: str | None = None

    @property
    def command(self) -> str:
        return f"tightrope reproduce {self.target} {self.length.flag}".strip()

    def file(self, suffix: str) -> Path:
        return self.out / f"{self.target}{suffix}"

    def left(self, *suffixes: str) -> None:
        """Say which files there are now."""
        *first, last = [str(self.file(suffix)) for suffix in suffixes]
        self.say(f"Left {', '.join(first)} and {last}")
