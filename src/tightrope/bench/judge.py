"""Watch the processes of a contender, and say when it has drawn enough, and how fast that was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import arviz_base
import numpy as np

from tightrope.diagnostics import MAX_R_HAT_OF_ESS, summary
from tightrope.environment import without_ours
from tightrope.results import Converter

WORKER = ["-m", "tightrope.bench.worker"]
MIN_SECONDS = 2.0  # of sampling, for a time that can be told
PATIENCE, SHARE = 0.3, 0.05  # seconds between two looks, at first and as a share of the time so far


class Rules(NamedTuple):
    """When a contender is done."""

    ess: float = 400.0  # the least bulk effective sample size to reach
    r_hat: float = 1.01  # the largest to end with
    budget: float = 600.0  # seconds from the start of its processes


class Found(NamedTuple):
    """Draws so far, as many of each chain."""

    u: np.ndarray  # coordinates, shape (chain, draw, d)
    seconds: float  # of sampling, of the slowest process
    steps_per_draw: float


class Reader:
    """The draws that a process leaves in its folder, read as they come."""

    def __init__(self, folder: Path):
        self.folder, self.num_read = folder, 0
        self.seconds, self.num_steps = 0.0, 0
        self.parts: list[np.ndarray] = []

    def read(self) -> None:
        """What is new."""
        while (path := self.folder / f"batch-{self.num_read:05d}.npz").exists():
            with np.load(path) as batch:
                self.parts.append(batch["u"])
                self.seconds, self.num_steps = float(batch["seconds"]), self.num_steps + int(batch["num_steps"])
            self.num_read += 1

    @property
    def num_draws(self) -> int:
        """Of each chain."""
        return sum(part.shape[1] for part in self.parts)


def draws_in(readers: list[Reader]) -> Found | None:
    """What the processes have left by now, as many draws of each chain."""
    for reader in readers:
        reader.read()
    if not all(reader.parts for reader in readers):
        return None
    shortest = min(reader.num_draws for reader in readers)
    u = np.concatenate([np.concatenate(reader.parts, axis=1)[:, :shortest] for reader in readers])
    # Each process is charged for the draws that count: its others were for nothing.
    seconds = max(reader.seconds * shortest / reader.num_draws for reader in readers)
    draws = sum(reader.num_draws * len(reader.parts[0]) for reader in readers)
    return Found(u, seconds, sum(reader.num_steps for reader in readers) / draws)


def figures_of(quantities: Converter, found: Found) -> dict[str, Any]:
    """The worst R-hat and effective sample sizes of the model's quantities; none where a chain stands still."""
    if found.u.shape[1] < 4 or (np.ptp(found.u, axis=1) == 0).all(axis=1).any():
        return {"r_hat": None, "ess_bulk": 0.0, "ess_tail": 0.0}
    table = summary(arviz_base.from_dict({"posterior": quantities.values(found.u)}))
    worst = {"r_hat": table["r_hat"].max(), "ess_bulk": table["ess_bulk"].min(), "ess_tail": table["ess_tail"].min()}
    return {name: float(value) if np.isfinite(value) else None for name, value in worst.items()}


def has_converged(figures: Mapping[str, Any]) -> bool:
    return figures.get("r_hat") is not None and figures["r_hat"] <= MAX_R_HAT_OF_ESS


def is_enough(figures: Mapping[str, Any], rules: Rules) -> bool:
    """Whether there are draws enough, of chains that agree."""
    return has_converged(figures) and figures["r_hat"] <= rules.r_hat and (figures["ess_bulk"] or 0.0) >= rules.ess


def judged(quantities: Converter, folders: list[Path], rules: Rules) -> dict[str, Any]:
    """Start a process for each folder, end them when they have drawn enough or for too long; what came of it."""
    processes = [start(folder) for folder in folders]
    try:
        figures = watched(quantities, folders, processes, rules)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return figures | times_in(folders)


def watched(
    quantities: Converter, folders: list[Path], processes: list[subprocess.Popen[bytes]], rules: Rules
) -> dict[str, Any]:
    """Look at the draws from time to time, until there are enough or time is up."""
    began, readers = time.perf_counter(), [Reader(folder) for folder in folders]
    figures: dict[str, Any] = {"status": "out of time", "draws": 0}
    while (elapsed := time.perf_counter() - began) < rules.budget:
        # A look takes time from those who are looked at: the longer it goes on, the fewer.
        time.sleep(max(PATIENCE, SHARE * elapsed))
        ended = [process.returncode for process in processes if process.poll() is not None]
        if ended:
            return figures | {"status": "failed", "error": f"exit code {ended[0]}: {last_words(folders)}"}
        found = draws_in(readers)
        if found is None:
            continue
        figures |= figures_of(quantities, found)
        figures |= {
            "chains": found.u.shape[0],
            "draws": found.u.shape[1],
            "sampling_time": found.seconds,
            "steps_per_draw": found.steps_per_draw,
        }
        if is_enough(figures, rules) and found.seconds >= MIN_SECONDS:
            return figures | {"status": "finished"}
    return figures


def times_in(folders: list[Path]) -> dict[str, float]:
    """Of compilation and warm-up, of the slowest process."""
    known = [json.loads(path.read_text()) for folder in folders for path in (folder / "warm.json",) if path.exists()]
    if len(known) < len(folders):
        return {}
    return {name: max(times[name] for times in known) for name in ("compile_time", "warmup_time")}


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The process of a folder, on its cores; what it says is kept beside its draws."""
    task = json.loads((folder / "task.json").read_text())
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *WORKER, str(folder)],
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ) if task["has_our_compiler"] else without_ours(),
        )
    if hasattr(os, "sched_setaffinity"):  # else the system shares the cores out as it likes
        os.sched_setaffinity(process.pid, task["affinity"])
    return process


def last_words(folders: list[Path]) -> str:
    """The last line that any of the processes said."""
    lines = [line for folder in folders for line in (folder / "said.txt").read_text().splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"
