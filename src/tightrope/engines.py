"""Where the cells of a sweep run: each in a process of its own, which a thread here or a worker of Dask looks after."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tightrope.cells import FAILED, Cell, overdue, run_cell
from tightrope.store import as_json, write
from tightrope.types import InputError

CELL, RECORD, DRAWS, ERRORS = "cell", "record.json", "draws.nc", "errors"  # files between a process and its keeper
SECONDS_PER_LOOK = 0.2
GRACE, MIN_GRACE = 0.2, 5.0  # beyond a cell's time, a share of it and seconds: compilation does not stop in time
INSTALL = "pip install 'tightrope[cluster]'"


class Result(NamedTuple):
    """What a process brings home."""

    record: dict[str, Any]
    draws: bytes | None  # a file of netCDF


Submit: TypeAlias = Callable[[bytes, int], "Future[Result]"]  # a packed cell, and the cores it may use


def packed(cell: Cell, keep_draws: bool) -> bytes:
    """A cell, ready to travel; functions and what they refer to are taken along by cloudpickle."""
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps((cell, keep_draws))
    except Exception as error:
        remedy = f"needs cloudpickle ({INSTALL})" if pickler is pickle else "holds something that cannot be pickled"
        raise InputError(
            f"cells: a model of your own cannot travel to its process, for it {remedy}: {error}"
        ) from error


def environment(cores: int) -> dict[str, str]:
    """That of a cell's process: threads for so many cores, and the modules that are found here."""
    threads = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # the first is XLA's
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    # JAX, where it came before Tightrope, has asked for the remarks of XLA; here nobody reads them.
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **quiet, **dict.fromkeys(threads, str(cores)), "PYTHONPATH": path}


def run_apart(payload: bytes, cores: int, is_wanted: Callable[[], bool]) -> Result:
    """A cell in a process of its own, which ends with this one, or when it is not wanted any more."""
    with tempfile.TemporaryDirectory(prefix="tightrope-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / CELL).write_bytes(payload)
        with (folder / ERRORS).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", "from tightrope.engines import serve; serve()", name],
                stdin=subprocess.PIPE,  # nothing comes: it closes when this process dies, however it dies
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment(cores),
                start_new_session=True,  # Ctrl-C is for this process to answer
            )
        try:
            while is_running(process):
                if not is_wanted():
                    raise CancelledError
        finally:
            process.kill()
            process.communicate()
        if not (folder / RECORD).exists():
            return Result(died(process.returncode, (folder / ERRORS).read_text(errors="replace")), None)
        draws = folder / DRAWS
        return Result(json.loads((folder / RECORD).read_bytes()), draws.read_bytes() if draws.exists() else None)


def is_running(process: subprocess.Popen) -> bool:
    """Whether it still does after a short while."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_PER_LOOK)
    return process.returncode is None


def died(status: int, errors: str) -> dict[str, Any]:
    """The record of a cell whose process could not write one."""
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    last = [line[:300] for line in errors.strip().splitlines()[-1:]]
    return {"status": FAILED, "error": ": ".join([f"its process {how}", *last])}


def serve() -> None:
    """The work of a cell's process."""
    folder = Path(sys.argv[1])
    threading.Thread(target=end_with_keeper, daemon=True).start()
    cell, keep_draws = pickle.loads((folder / CELL).read_bytes())
    began = (folder / CELL).stat().st_mtime  # when it was asked for: starting Python counts
    answered = threading.Lock()

    def answer(record: dict[str, Any]) -> None:
        if answered.acquire(blocking=False):  # the first to answer is heard
            write(folder / RECORD, as_json(record))

    def end_overdue() -> None:
        answer(overdue(cell, began))
        os._exit(1)

    if cell.max_time is not None:
        last = began + cell.max_time + max(MIN_GRACE, GRACE * cell.max_time)
        timer = threading.Timer(max(0.0, last - time.time()), end_overdue)
        timer.daemon = True
        timer.start()
    answer(run_cell(cell, folder / DRAWS if keep_draws else None, began))


def end_with_keeper() -> None:
    """Wait for the end of the one who asked, and end."""
    os.read(0, 1)
    os._exit(1)


@contextlib.contextmanager
def local(workers: int, scheduler: str | None) -> Iterator[Submit]:
    """Processes of this machine."""
    if scheduler is not None:
        raise InputError('scheduler is for engine="dask".')
    stopped = threading.Event()
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield lambda payload, cores: pool.submit(run_apart, payload, cores, lambda: not stopped.is_set())
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def dask(workers: int, scheduler: str | None) -> Iterator[Submit]:
    """Workers of Dask: those of a scheduler, or threads of this process that look after as many processes."""
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        raise InputError(f'engine="dask" needs dask.distributed: {INSTALL}.') from None
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            cluster = distributed.LocalCluster(
                n_workers=1, threads_per_worker=workers, processes=False, dashboard_address=None
            )
            address = stack.enter_context(cluster)
        else:
            address = scheduler
        try:
            client = stack.enter_context(distributed.Client(address))
        except (OSError, ValueError) as error:
            raise InputError(f"scheduler={scheduler} does not answer: {error}.") from None
        executor = client.get_executor(pure=False)
        stack.callback(executor.shutdown, wait=False)
        yield lambda payload, cores: executor.submit(run_on_worker, payload, cores)


def run_on_worker(payload: bytes, cores: int) -> Result:
    """A cell on a worker of Dask, as long as the scheduler asks for it."""
    worker = importlib.import_module("distributed").get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    return run_apart(payload, cores, is_wanted)


ENGINES: dict[str, Callable[[int, str | None], contextlib.AbstractContextManager[Submit]]] = {
    "local": local,
    "dask": dask,
}
