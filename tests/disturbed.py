"""`tightrope`, for tests that kill it: it saves often, writes slowly, and notes in the file $EVENTS what it is at."""

import contextlib
import fcntl
import functools
import os
import resource
import sys
import termios
import time
from pathlib import Path

import jax

import tightrope.store
from tightrope import cli, runs
from tightrope.runs import Run
from tightrope.store import Store

PAUSE = 0.01  # seconds at every write


def note(event):
    with Path(os.environ["EVENTS"]).open("a") as file:
        print(event, file=file)


@contextlib.contextmanager
def noted(event):
    note(f"begin {event}")
    yield
    note(f"end {event}")


def noting(cls, name, event):
    """Let a method note when it begins and ends."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        with noted(event(self, *args)):
            return original(self, *args, **kwargs)

    setattr(cls, name, method)


def slow_write(path, data, whole=tightrope.store.write):
    path.with_name(f"{path.name}.partial").write_bytes(data[: len(data) // 2])
    time.sleep(PAUSE)
    whole(path, data)


def slow_array(self, name, original=Store.array):
    time.sleep(PAUSE)
    return original(self, name)


def disturb():
    """Make it so, in this process."""
    runs.FIRST_LEG = runs.LONGEST_LEG = 0.1
    runs.MAX_SHARE = 1.0
    if "LIMIT" in os.environ:  # of the size of files
        resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(os.environ["LIMIT"]),))
    if "TERMINAL" in os.environ:  # from which keys are signals
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    jax.config.update("jax_compilation_cache_dir", os.environ["CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    noting(Run, "prepare", lambda run: "compilation")
    noting(Run, "advance", lambda run, *_: "warm-up" if run.stage_stop <= run.num_warmup else "sampling")
    noting(Store, "save", lambda *_: "write")
    noting(Store, "write_draws", lambda *_: "write")
    noting(Store, "write_rows", lambda *_: "write")
    tightrope.store.write, Store.array = slow_write, slow_array


if __name__ == "__main__":
    disturb()
    sys.exit(cli.main())
