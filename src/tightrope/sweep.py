"""Many runs: each once, side by side, and what came of them in a folder and as a table."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tightrope.cells import FAILED, FINISHED, MISSING, Cell, described, name_of, sentence
from tightrope.checks import one_of
from tightrope.diagnostics import MAX_R_HAT_OF_ESS
from tightrope.engines import ENGINES, Result, packed
from tightrope.methods import method_of
from tightrope.sampling import check_count
from tightrope.store import Store, StoreError, as_json, write
from tightrope.types import InputError, SamplingError

Record = dict[str, Any]


def sweep(
    cells: Iterable[Cell],
    directory: Path | str,
    *,
    engine: str = "local",
    workers: int | None = None,
    scheduler: str | None = None,
    time_limit: float | None = None,
    retry: bool = False,
    keep_draws: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Run every cell that the directory has no record of; a table of all, one row a cell.

    `engine="dask"` runs them on the workers of a `scheduler`. After Ctrl-C, a crash or `time_limit` seconds the same
    call goes on with the cells that are left; `retry` repeats those that failed.
    """
    one_of("engine", engine, ENGINES)
    if time_limit is not None and not time_limit > 0:
        raise InputError(f"time_limit={time_limit} must be a positive number of seconds.")
    if workers is not None:
        check_count("workers", workers, 1)
    grid = Grid(cells, Store.create(directory), keep_draws)
    with grid.store.held():
        grid.look(retry)
        payloads = {name: packed(grid.cells[name], keep_draws) for name in grid.missing()}
        if payloads:
            with (
                ENGINES[engine](workers or grid.side_by_side(), scheduler) as submit,
                Display(grid, progress) as display,
            ):
                futures = {submit(payload, grid.cells[name].cores): name for name, payload in payloads.items()}
                gather(futures, grid, display, time_limit)
    return grid.table()


class Grid:
    """The cells of a sweep, and what is known of each."""

    def __init__(self, cells: Iterable[Cell], store: Store, keep_draws: bool):
        self.store, self.keep_draws = store, keep_draws
        self.cells: dict[str, Cell] = {}
        self.records: dict[str, Record] = {}
        self.rows: list[tuple[str, Mapping[str, Any]]] = []  # name and labels of each; some may be the same cell
        for cell in cells:
            if not isinstance(cell, Cell):
                raise InputError(f"cells must be tr.Cell objects, not {type(cell).__name__}.")
            definition = cell.definition()
            name = name_of(definition)
            self.rows.append((name, cell.labels))
            self.cells[name] = cell
            self.records[name] = {"cell": definition, "status": MISSING}
        if not self.rows:
            raise InputError("cells is empty: give at least one.")

    def look(self, retry: bool) -> None:
        """Find what earlier calls have left."""
        others = set()
        for name in self.cells:
            try:
                record = json.loads(self.file(name).read_bytes())
            except (OSError, ValueError):
                continue
            lacks_draws = self.keep_draws and record["status"] == FINISHED and not self.file(name, ".nc").exists()
            if not lacks_draws and not (retry and record["status"] == FAILED):
                self.records[name] = record
                made = record.get("versions", {})
                others |= {f"{package} {made[package]}" for package in made if made[package] != version(package)}
        if others:
            warnings.warn(
                f"{self.store.path} has cells that were made with {', '.join(sorted(others))}, which is not what is "
                "installed now: choose another folder to make them again.",
                stacklevel=3,
            )

    def side_by_side(self) -> int:
        """How many cells the cores that this process may use have room for."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // max(cell.cores for cell in self.cells.values()))

    def missing(self) -> list[str]:
        return [name for name, record in self.records.items() if record["status"] == MISSING]

    def file(self, name: str, suffix: str = ".json") -> Path:
        return self.store.path / f"{name}{suffix}"

    def keep(self, name: str, result: Result) -> None:
        """Write down what came of a cell, the record last: where there is one, the cell is done."""
        self.records[name] |= result.record | {"labels": dict(self.cells[name].labels)}
        try:
            if result.draws is not None:
                write(self.file(name, ".nc"), result.draws)
            write(self.file(name), as_json(self.records[name]))
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.store.path}: {error.strerror or error}. The cells that were kept before are "
                "safe: mend that, and start the same sweep again."
            ) from error

    def table(self) -> pd.DataFrame:
        """One row a cell: what it is, how it went, and where the rest of its record is."""
        return pd.DataFrame([self.row(name, labels) for name, labels in self.rows])

    def row(self, name: str, labels: Mapping[str, Any]) -> Record:
        record = self.records[name]
        asked, figures = record["cell"], record.get("figures", {})
        return {
            "model": asked["model"]["name"],
            **asked["model"].get("options", {}),
            "method": described(method_of(asked["method"]["name"], **asked["method"]["options"])),
            **labels,
            **{key: asked[key] for key in ("chains", "warmup", "draws", "seed")},
            "status": record["status"],
            "error": record.get("error"),
            "reached": record.get("draws", 0),
            **{key: float("nan") if value is None else value for key, value in figures.items()},
            **{key: record[key] for key in ("run_time", "d", "m", "host") if key in record},
            "file": str(self.file(name)),
        }


def gather(pending: dict[Future[Result], str], grid: Grid, display: Display, time_limit: float | None) -> None:
    """Keep results as they come, and none of them in memory, until there are no more or time is up."""
    deadline = time.monotonic() + (float("inf") if time_limit is None else time_limit)
    while pending and time.monotonic() < deadline:
        done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        for future in done:
            name = pending.pop(future)
            grid.keep(name, result_of(future))
            display.tell(name)


def result_of(future: Future[Result]) -> Result:
    """What a cell has come to; what it does wrong is in its record, so an error is the engine's."""
    try:
        return future.result()
    except CancelledError:
        raise SamplingError(
            "the scheduler has given up cells that were not done, or is gone: the others are kept, so start the same "
            "sweep again."
        ) from None
    except Exception as error:
        if type(error).__name__ == "KilledWorker":  # several workers have died of it
            return Result({"status": FAILED, "error": sentence(error)}, None)
        raise SamplingError(f"no cell can be run: {sentence(error)}") from error


class Display:
    """A line for each cell that is done, and below them a bar on a terminal."""

    def __init__(self, grid: Grid, wanted: bool):
        self.grid, self.wanted = grid, wanted
        console = Console(stderr=True, soft_wrap=True)
        columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=console, disable=not (wanted and console.is_terminal))
        self.task = self.progress.add_task("", total=len(grid.records))

    def __enter__(self) -> Display:
        self.progress.start()
        self.progress.update(self.task, completed=self.done)
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    @property
    def done(self) -> int:
        return len(self.grid.records) - len(self.grid.missing())

    def tell(self, name: str) -> None:
        """That a cell is done."""
        self.progress.update(self.task, completed=self.done)
        if self.wanted:
            row = self.grid.row(name, {})
            line = f"{self.done}/{len(self.grid.records)} {name}: {row['status']}, {went(row)}"
            self.progress.console.print(escape(line), highlight=False)


def went(row: Record) -> str:
    """How a cell went, in words."""
    if "r_hat" not in row:
        return row["error"]
    rate = f"{row['ess_per_second']:.3g} ESS/s" if row["r_hat"] <= MAX_R_HAT_OF_ESS else "not converged"
    return f"{rate}, R-hat {row['r_hat']:.3f}"
