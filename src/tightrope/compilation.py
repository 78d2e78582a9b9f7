"""Keep compiled programs from one process to the next, so that the second start of a model is quick."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import threading
from pathlib import Path
from typing import Any

import jax

MIN_SECONDS = 0.05  # of compilation, to be kept
MAX_BYTES = 2**30  # in all
TRACING = threading.RLock()  # two threads that trace one function at a time are too many for JAX


def compiled(function: Any, *args: Any) -> Any:
    """A jitted function, compiled for arguments like these: one thread traces, several compile."""
    with TRACING:
        program = function.lower(*args)
    return program.compile()


def keep_programs() -> None:
    """Let JAX keep what it compiles in the user's cache folder, unless the user has told it where or not to."""
    settings = jax.config.values
    is_quiet = os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3" or jax.__version_info__ >= (0, 12)  # not if JAX came before us
    if settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"] or not is_quiet:
        return
    directory = cache_folder() / f"programs-{machine()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        trim(directory, MAX_BYTES)
    except OSError:
        return  # a home that cannot be written to: all is compiled anew
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)


def cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path("~/.cache").expanduser()) / "tightrope"


def machine() -> str:
    """A name for processors of this kind: in a home that machines share, each finds programs that it can run."""
    words = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def trim(directory: Path, max_bytes: int) -> None:
    """Remove the oldest files until the rest is small enough."""
    files = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(directory)]
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            break
        Path(path).unlink(missing_ok=True)
        total -= size
